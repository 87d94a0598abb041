"""Export of steps as Python programs with torch.distributed, which need only PyTorch.

Each operation becomes one line on a rank's local tensors. Collectives start immediately, and their first
reader waits for them. In an overlap, readers of a collective run one loop iteration behind it, so that the
next tile is computed while one is sent. Each kernel becomes a function, which `torch.compile` turns into one
launch on a GPU.
"""

from __future__ import annotations

import keyword
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from taccl._internal.arguments import Seconds, checked_as
from taccl.errors import LossyConversionWarning, WorkloadError, warn
from taccl.topology.topology import Topology
from taccl.workload.autotransform import autotransform
from taccl.workload.costs import rates_of
from taccl.workload.files import load_workload
from taccl.workload.kernels import kernel
from taccl.workload.kind_programs import FUNCTIONS, functions_of, text_of
from taccl.workload.meaning import TOLERANCE, bounds_of
from taccl.workload.operations import (
    FLOATS,
    Operation,
    Tensor,
    free_axes,
    inner_axes,
    labels_of,
    operand_axes,
)
from taccl.workload.tiling import Overlap, Tiling
from taccl.workload.torch_template import HEAD, TAIL
from taccl.workload.workload import Workload

#: {kind of collective: function of the generated module}.
_CALLS = {
    "allreduce": "all_reduce", "reduce_scatter": "reduce_scatter", "allgather": "all_gather",
    "alltoall": "all_to_all", "send": "send",
}  # fmt: skip


@checked_as(WorkloadError)
def dump_torch_step(
    workload: Workload,
    *,
    topology: Topology | None = None,
    original: str | os.PathLike[str] = "",
    step_s: Seconds = 60.0,
    tflops: float | None = None,
    gb_per_s: float | None = None,
) -> str:
    """Text of a Python module that runs a step, and compares its outputs with the untransformed program's.

    Parameters
    ----------
    workload : Workload
        The step, possibly transformed already.
    topology : Topology, optional
        Network for which the step is transformed; None to write it unchanged.
    original : path
        File of the untransformed program, for the comparison. Default: `workload` as given, without overlaps
        and fusion.
    step_s : float
        Time limit in seconds of the search for transformations.
    tflops, gb_per_s : float, optional
        Peak rates of a rank's processor, in TFLOPS and GB/s of memory traffic, for operations without costs.
        Default: those of the machine, if they are known.

    Raises
    ------
    WorkloadError
        If the original has other outputs or another number of ranks.
    """
    plain = load_workload(original) if original else workload
    if topology is not None:
        workload = autotransform(
            workload, topology, rates=rates_of(tflops, gb_per_s), time_limit_s=step_s
        ).workload
    plain = replace(
        plain, overlaps=(), operations=tuple(replace(each, fused="") for each in plain.operations)
    )
    absent = next((name for name in workload.outputs if name not in plain.tensors), "")
    if absent or plain.num_ranks != workload.num_ranks:
        said = f"has no {absent}, an output of the step" if absent else f"is of {plain.num_ranks} ranks"
        raise WorkloadError(f"{said}; give the program that was transformed", where=os.fspath(original))
    _note_unknown(workload)
    groups: set[str] = set()
    slices = {name: compared(workload, plain, name, groups) for name in workload.outputs}
    every = [*workload.tensors.values(), *plain.tensors.values()]
    fields = {
        "TITLE": workload.name.encode("unicode_escape").decode().replace('"', "'").replace("@", " at "),
        "RANKS": str(workload.num_ranks),
        "TOLERANCE": repr(max((TOLERANCE[each.dtype] for each in every), default=0.0)),
    }
    programs = [*_Program(workload, "transformed", groups).lines(), "", ""]
    programs += _Program(plain, "untransformed", groups).lines()
    tables = [
        '#: {input: (shape, type, layout)}; a layout is pairs of an axis, or "partial", and a group.',
        f"INPUTS = {table_of_inputs(workload, groups)}",
        f"UNTRANSFORMED_INPUTS = {table_of_inputs(plain, groups)}",
        "#: {input of ids: the number below which its random values are}; 2 for masks.",
        f"BOUNDS = { {local_name(name, plain): most for name, most in bounds_of(plain).items()}!r}",
        "#: {output: (slices that only the transformed program makes, group of parts of a sum or None)}.",
        f"OUTPUTS = {slices!r}",
    ]  # fmt: skip
    grid = workload.grid
    made = {name: grid.groups(grid.dims_of(name, where=name)) for name in sorted(groups - {""})}
    head = HEAD
    for name, text in {**fields, "GROUPS": repr(made)}.items():
        head = head.replace(f"@{name}@", text)
    head += functions_of({each.kind for each in (*workload.operations, *plain.operations)})
    return "\n".join([head, *programs, "", "", *tables]) + "\n" + TAIL


def _note_unknown(workload: Workload) -> None:
    unknown = [each.name for each in workload.operations if each.kind == "compute"]
    if unknown:
        said = f"PyTorch lacks kernels for {', '.join(unknown[:3])}; replace stand_in() in the program"
        warn(said, LossyConversionWarning)


class _Program:
    """Writer of one function of the generated module, and of the kernels that this function calls."""

    def __init__(self, workload: Workload, name: str, groups: set[str]) -> None:
        self.workload, self.name, self.groups = workload, name, groups
        self.kernels: list[str] = []
        self.waited: set[str] = set()

    def lines(self) -> list[str]:
        """Source lines of the kernels, and of the function that calls them."""
        workload = self.workload
        body: list[str] = []
        for unit in _arranged(workload, list(workload.operation), whole=True):
            overlap = workload.tiling(unit[0]).overlap
            body += self._loop(overlap) if overlap is not None else self._unit(unit, "")
        for name in workload.outputs:
            body += self._wait(name, "")
        shown = ", ".join(f"{name!r}: {self._var(name)}" for name in workload.outputs)
        given = ", ".join(self._var(each.name) for each in workload.inputs)
        said = "overlapped and fused" if workload.overlaps else "one operation after another"
        return [
            *self.kernels, f"def {self.name}({given}):",
            f'    """The step on this rank\'s tensors, {said}: {{output: tensor}}."""',
            *(f"    {line}" for line in body), f"    return {{{shown}}}",
        ]  # fmt: skip

    def _var(self, name: str) -> str:
        return local_name(name, self.workload)

    def _loop(self, overlap: Overlap) -> list[str]:
        """Lines of a loop over tiles; readers of collectives run one iteration behind them."""
        workload = self.workload
        units = _arranged(workload, list(overlap.operations), whole=False)
        stage: dict[str, int] = {}
        for unit in units:
            read = {name for each in unit for name in workload.operation[each].inputs if name in stage}
            late = max((stage[n] + workload.operation[n].is_collective for n in read), default=0)
            stage |= dict.fromkeys(unit, late)
        most, tiles = max(stage.values()), overlap.tiles
        names = [self._var(name) for unit in units for name in self._kept(unit)]
        lines = [f"# {tiles} tiles: each is sent while the next one is computed."]
        lines += [f"{name} = [None] * {tiles}" for name in names]
        lines.append(f"for turn in range({tiles + most}):")
        for number in range(most + 1):
            lines += [f"    t = turn - {number}" if number else "    t = turn", f"    if 0 <= t < {tiles}:"]
            for unit in units:
                if stage[unit[0]] == number:
                    lines += [f"        {line}" for line in self._unit(unit, "[t]")]
            self.waited.clear()
        for name in overlap.operations:
            if name in workload.outputs or not set(workload.readers[name]) <= set(overlap.operations):
                tiling, var = workload.tiling(name), self._var(name)
                ranges = tiling.ranges // workload.grid.slices(workload.tensors[name], tiling.axis)
                lines.append(f"{var} = joined({var}, {tiling.axis}, {ranges})")
        self.waited |= {*overlap.operations}
        return lines

    def _wait(self, name: str, at: str) -> list[str]:
        if name not in self.workload.operation or not self.workload.operation[name].is_collective:
            return []
        if name in self.waited:
            return []
        self.waited.add(name)
        var = self._var(name) + at
        return [f"{var} = ready({var})"]

    def _unit(self, unit: Sequence[str], at: str) -> list[str]:
        """Lines of an operation or kernel; `at` is the index of a tile, or empty."""
        workload, lines = self.workload, list[str]()
        for each in unit:
            for name in workload.operation[each].inputs:
                mine = name in workload.operation and name not in unit
                is_tile = mine and bool(at) and workload.tiling(name).overlap is workload.tiling(each).overlap
                lines += self._wait(name, at if is_tile else "") if mine else []
        if len(unit) == 1:
            operation = workload.operation[unit[0]]
            operands = [self._operand(operation, place) for place in range(len(operation.inputs))]
            return [*lines, f"{self._var(unit[0])}{at} = {self._value(operation, operands)}"]
        return [*lines, self._kernel(unit, at)]

    def _kernel(self, unit: Sequence[str], at: str) -> str:
        """Add a kernel's function to the module; return the line that calls it."""
        workload = self.workload
        given: dict[str, str] = {}  # {expression at the call: parameter}
        inner: list[str] = []
        for each in unit:
            operation, operands = workload.operation[each], list[str]()
            for place, name in enumerate(operation.inputs):
                if name in unit:
                    operands.append(self._var(name))
                    continue
                parameter = f"{self._var(name)}{'' if name not in given.values() else len(given)}"
                while parameter in given.values() and self._operand(operation, place) not in given:
                    parameter += "_"
                operands.append(given.setdefault(self._operand(operation, place), parameter))
            is_drawn = operation.kind in ("dropout", "compute")
            value = self._value(operation, operands)
            if is_drawn:  # random numbers are drawn on the host and passed as a parameter
                drawn = self._drawn(operation)
                value = value.replace(drawn, given.setdefault(drawn, f"drawn_{each}"))
            elif "cut(" in value:  # the value of the whole axis is computed, then cut to tile `t`
                given.setdefault("t", "t")
            inner.append(f"    {self._var(each)} = {value}")
        kept = self._kept(unit)
        function = f"kernel_{self.name}_{unit[0]}"
        results = ", ".join(map(self._var, kept)) or "None"
        self.kernels += [
            "@compiled", f"def {function}({', '.join(given.values())}):",
            f'    """One kernel: {", ".join(unit)}."""', *inner, f"    return {results}", "", "",
        ]  # fmt: skip
        targets = ", ".join(f"{self._var(name)}{at}" for name in kept) or "_"
        return f"{targets} = {function}({', '.join(given)})"

    def _kept(self, unit: Sequence[str]) -> list[str]:
        """Names of a unit's results that are needed outside the unit; a single result is always included."""
        workload = self.workload
        return [
            name
            for name in unit
            if len(unit) == 1 or name in workload.outputs or not set(workload.readers[name]) <= set(unit)
        ]

    def _operand(self, operation: Operation, place: int) -> str:
        """Expression of an operand: the part that the operation reads at this rank for the current tile."""
        workload, name = self.workload, operation.inputs[place]
        tensors, out = workload.operands(operation), workload.tensors[operation.name]
        tensor, tiling = tensors[place], workload.tiling(operation.name)
        together = tiling.overlap is not None and workload.tiling(name).overlap is tiling.overlap
        text = self._var(name) + ("[t]" if together else "")
        axes = operand_axes(operation, tensors, out, place)
        grid = workload.grid
        if not operation.is_collective:
            for met in inner_axes(labels_of(operation, tensors, out)).values():
                if place in met:
                    most = max((grid.slicing(tensors[at], axis) for at, axis in met.items()), key=len)
                    text = self._mine(text, met[place], grid.slicing(tensor, met[place]), most)
        for axis, to in enumerate(axes):
            if to is None:
                continue
            if not operation.is_collective:
                text = self._mine(text, axis, grid.slicing(tensor, axis), grid.slicing(out, to))
            if tiling.overlap is not None and tiling.axis == to and not together:
                held = grid.slices(tensor, axis) if operation.is_collective else grid.slices(out, to)
                text = self._cut(text, axis, held, tiling)
        # Casts, comparisons (whose results are masks) and `aten` read operands in the operands' own types.
        is_typed = operation.kind not in ("cast", "aten") and out.dtype in FLOATS
        wanted = out.dtype if is_typed else tensor.dtype
        if tensor.dtype != wanted and tensor.dtype in FLOATS and not operation.is_collective:
            text = f"{text}.to(torch.{wanted})"
        return text

    def _mine(self, text: str, axis: int, held: Sequence[str], wanted: Sequence[str]) -> str:
        """Expression of this rank's slice of `text` over mesh dimensions in `wanted` but not in `held`."""
        more = [dim for dim in wanted if dim not in held]
        if not more:
            return text
        over = group_name(self.workload, more, self.groups)
        return f"mine({text}, {axis}{f', {over!r}' if over else ''})"

    def _cut(self, text: str, axis: int, slices: int, tiling: Tiling) -> str:
        """Expression of tile `t` of this rank's part of a tensor with `slices` slices along the axis."""
        return f"cut({text}, {axis}, {tiling.ranges // slices}, {tiling.tiles}, t)"

    def _drawn(self, operation: Operation) -> str:
        """Expression of the random numbers of a dropout or unknown kernel, for the rank's slice and tile."""
        out, tiling = self.workload.tensors[operation.name], self.workload.tiling(operation.name)
        grid, seed = self.workload.grid, str(operation.seed)
        if operation.kind == "compute" and grid.partial(out):
            over = group_name(self.workload, grid.partial(out), self.groups)
            seed = f"rank_seed({seed}{f', {over!r}' if over else ''})"
        text = f"drawn({out.shape}, {seed}, device())"
        for axis in range(len(out.shape)):
            text = self._mine(text, axis, (), grid.slicing(out, axis))
        if tiling.overlap is not None:
            text = self._cut(text, tiling.axis, grid.slices(out, tiling.axis), tiling)
        return text

    def _value(self, operation: Operation, operands: Sequence[str]) -> str:
        """Expression of an operation's value at this rank."""
        kind, out = operation.kind, self.workload.tensors[operation.name]
        value, to = operation.value or 0.0, f".to(torch.{out.dtype})"
        if operation.is_collective:
            return self._collective(operation, operands[0])
        if kind == "dropout":
            kept = f"{self._drawn(operation)} >= {value!r}"
            return f"torch.where({kept}, {operands[0]} * {1 / (1 - value)!r}, 0.0){to}"
        if kind == "compute":
            tensors = self.workload.operands(operation)
            apart = [set(operand_axes(operation, tensors, out, at)) == {None} for at in range(len(tensors))]
            terms = [
                f"{text}.mean()" if is_apart else text
                for text, is_apart in zip(operands, apart, strict=True)
            ]  # fmt: skip
            return f"stand_in({self._drawn(operation)}{to}, [{', '.join(terms)}]){to}"
        grid, tiling = self.workload.grid, self.workload.tiling(operation.name)
        free = free_axes(operation, self.workload.operands(operation), out)
        tiled = [] if tiling.overlap is None else [tiling.axis]
        shape = tuple(
            length // (tiling.tiles if axis in tiled and axis not in free else 1)
            for axis, length in enumerate(out.local_shape(grid))
        )
        first = (
            self._places(operation, 0, -2 if kind != "pick" else -1) if kind in ("embedding", "pick") else ""
        )
        queries = 1 if kind.startswith("attention_grad") else 0
        rows = self._places(operation, queries, -2) if operation.causal else ""
        text = text_of(operation, operands, shape, first=f"{first}[0]" if first else "0", rows=rows)
        for axis in {*tiled} & {*free}:
            text = self._cut(f"({text})", axis, grid.slices(out, axis), tiling)
        return text

    def _places(self, operation: Operation, place: int, axis: int) -> str:
        """Expression of the indices read along an axis of an operand; empty if the axis is read whole.

        - `place`: Position of the operand.
        - `axis`: The axis, counted from the last.
        """
        out, tensors = self.workload.tensors[operation.name], self.workload.operands(operation)
        tiling, grid = self.workload.tiling(operation.name), self.workload.grid
        labels = labels_of(operation, tensors, out)
        label = labels[place][axis]
        assert label is not None
        met = {(out.name, label): grid.slicing(out, label)} if label >= 0 else {}
        for at, along in inner_axes(labels).get(label, {}).items():
            met[tensors[at].name, along] = grid.slicing(tensors[at], along)
        dims = max(met.values(), key=len)
        text = f"torch.arange({tensors[place].shape[axis]}, device=device())"
        is_cut = tiling.overlap is not None and tiling.axis == label
        text = self._mine(text, 0, (), dims)
        if is_cut:
            text = self._cut(text, 0, grid.slices(out, label), tiling)
        return text if is_cut or dims else ""

    def _collective(self, operation: Operation, operand: str) -> str:
        """Expression of the call that starts a collective."""
        (source,), kind = self.workload.operands(operation), operation.kind
        dims = self.workload.grid.dims_of(operation.group, where=operation.name)
        before = replace(source, layout=source.along(dims[0])).axis
        given: dict[str, list[int | None]] = {
            "reduce_scatter": [operation.axis], "allgather": [before],
            "alltoall": [before, operation.axis], "send": [operation.shift],
        }  # fmt: skip
        over = group_name(self.workload, dims, self.groups)
        arguments = [operand, *map(repr, given.get(kind, [])), *([repr(over)] if over else [])]
        return f"{_CALLS[kind]}({', '.join(arguments)})"


def _arranged(workload: Workload, names: Sequence[str], *, whole: bool) -> list[list[str]]:
    """Group operations into units that run as a whole, in dependency order.

    A unit is a kernel without its collective, or a single operation. If `whole`, each overlap is one unit. If
    units depend on each other in a cycle, each operation becomes a unit.
    """
    unit_of: dict[str, str] = {}
    for name in names:
        group = [each for each in kernel(workload, name) if not workload.operation[each].is_collective]
        unit_of[name] = group[0] if name in group else name
        overlap = workload.tiling(name).overlap
        if whole and overlap is not None:
            unit_of[name] = min(overlap.operations, key=names.index)
    for units in (unit_of, {name: name if not whole else unit_of[name] for name in names}):
        order = list(_sorted(workload, names, units))
        if sum(map(len, order)) == len(names):
            return order
    return [[name] for name in names]


def _sorted(workload: Workload, names: Sequence[str], unit_of: dict[str, str]) -> Iterator[list[str]]:
    """Yield units in dependency order; end early if the remaining units depend on each other in a cycle."""
    order = [name for name, _ in workload.tiles if name in unit_of]
    members = {unit: [name for name in names if unit_of[name] == unit] for unit in unit_of.values()}
    left = list(dict.fromkeys(unit_of[name] for name in order))
    while left:
        for unit in left:
            read = {unit_of.get(i) for each in members[unit] for i in workload.operation[each].inputs}
            if not read & set(left) - {unit}:
                break
        else:
            return
        left.remove(unit)
        yield members[unit]


#: Names that the generated module uses itself, which tensors may not shadow.
_TAKEN = frozenset(re.findall(r"^(?:def|class|import) (\w+)", HEAD + FUNCTIONS, re.MULTILINE)) | {
    "dist", "t", "turn", "tuple", "isinstance", "range", "float", "int", "RANKS",
}  # fmt: skip


def group_name(workload: Workload, dims: Sequence[str], groups: set[str]) -> str:
    """Name of the process group over some mesh dimensions; empty for all ranks. It is added to `groups`."""
    name = "" if len(dims) == len(workload.grid.names) else "+".join(dims)
    groups.add(name)
    return name


def _layout(workload: Workload, tensor: Tensor, groups: set[str]) -> tuple[tuple[int | str, str], ...]:
    """Pairs of (axis of slices or "partial", group) that describe a tensor's layout."""
    grid = workload.grid
    found: list[tuple[int | str, str]] = []
    if partial := grid.partial(tensor):
        found.append(("partial", group_name(workload, partial, groups)))
    for axis in range(len(tensor.shape)):
        if dims := grid.slicing(tensor, axis):
            found.append((axis, group_name(workload, dims, groups)))
    return tuple(found)


def compared(workload: Workload, plain: Workload, name: str, groups: set[str]) -> tuple[object, str | None]:
    """Layout of an output of a transformed step, for its comparison with the output of the plain step.

    Returns (slices, group). Slices are (axis, group) pairs for axes that the transformed step slices over
    a group, but the plain step does not. The last item is the group over which the output of the transformed
    step is partial; None if it is not partial.
    """
    grid, ours, theirs = workload.grid, workload.tensors[name], plain.tensors[name]
    slices = []
    for axis in range(len(ours.shape)):
        more = [dim for dim in grid.slicing(ours, axis) if dim not in grid.slicing(theirs, axis)]
        if more:
            slices.append((axis, group_name(workload, more, groups)))
    partial = grid.partial(ours)
    return tuple(slices), group_name(workload, partial, groups) if partial else None


def table_of_inputs(workload: Workload, groups: set[str]) -> str:
    """Python source of a dict {input: (shape, type, layout)}."""
    rows = (
        f"    {local_name(each.name, workload)!r}: ({each.shape}, torch.{each.dtype}, "
        f"{_layout(workload, each, groups)!r}),"
        for each in workload.inputs
    )
    return "\n".join(["{", *rows, "}"])


def local_name(name: str, workload: Workload) -> str:
    """Name of a tensor's variable; prefixed if it is a Python keyword or a name that the module uses."""
    while keyword.iskeyword(name) or name in _TAKEN or name.startswith(("kernel_", "_")):
        name = f"t_{name}"
        while name in workload.tensors:
            name = f"t_{name}"
    return name
