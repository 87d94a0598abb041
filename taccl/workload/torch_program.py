"""Steps as programs of torch.distributed and torch operations, which need PyTorch alone.

Each operation becomes one line on a rank's local tensors. Collectives start at once and are waited for by
their first reader. In an overlap, a reader of a collective runs one turn of the loop behind it, so that the
next tile is computed while one is sent. Kernels become functions, which `torch.compile` makes one launch of
on a GPU.
"""

from __future__ import annotations

import keyword
import math
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from taccl._internal.arguments import checked_as
from taccl.errors import LossyConversionWarning, WorkloadError, warn
from taccl.workload.autotransform import autotransform
from taccl.workload.files import load_workload
from taccl.workload.kernels import kernel
from taccl.workload.meaning import TOLERANCE
from taccl.workload.operations import ROWWISE, operand_axes, permutation
from taccl.workload.torch_template import HEAD, TAIL

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taccl._internal.arguments import Seconds
    from taccl.topology.topology import Topology
    from taccl.workload.operations import Operation
    from taccl.workload.workload import Overlap, Tiling, Workload

#: {kind: expression of its operands}; `{v}` is the value, `{axis}` the axis.
_VALUES = {
    "relu": "torch.relu({0})", "gelu": 'torch.nn.functional.gelu({0}, approximate="tanh")',
    "tanh": "torch.tanh({0})", "sigmoid": "torch.sigmoid({0})", "exp": "torch.exp({0})",
    "square": "torch.square({0})", "sqrt": "torch.sqrt({0})",
    "scale": "{0} * {v}", "offset": "{0} + {v}", "cast": "{0}", "add": "{0} + {1}",
    "subtract": "{0} - {1}", "multiply": "{0} * {1}", "divide": "{0} / {1}",
    "maximum": "torch.maximum({0}, {1})", "matmul": "torch.matmul({0}, {1})",
    "softmax": "torch.softmax({0}, -1)", "sum_of_squares": "torch.square({0}).sum()",
    "layernorm": "torch.nn.functional.layer_norm({0}, ({0}).shape[-1:])",
    "norm": "torch.linalg.vector_norm({0})", "sum": "({0}).sum({axis})",
    "relu_grad": "torch.where({1} > 0, {0}, 0.0)",
}  # fmt: skip
#: Names of the module's own functions, which tensors may not shadow.
_TAKEN = frozenset(re.findall(r"^(?:def|class|import) (\w+)", HEAD, re.MULTILINE)) | {
    "dist", "t", "turn", "tuple", "isinstance", "range", "float", "int", "RANKS",
}  # fmt: skip


@checked_as(WorkloadError)
def dump_torch_step(
    workload: Workload,
    *,
    topology: Topology | None = None,
    original: str | os.PathLike[str] = "",
    step_s: Seconds = 60.0,
) -> str:
    """Text of a Python module that runs a step, and compares it with the untransformed program.

    Parameters
    ----------
    workload : Workload
        The step, with the transformations that it has.
    topology : Topology, optional
        The network to transform the step for; None to write it as it is.
    original : path
        File of the untransformed program, with which the module compares. The default is the step before
        `topology` was given, or its own operations one after another.
    step_s : float
        Seconds of the search for transformations.

    Raises
    ------
    WorkloadError
        If the original has other outputs or another number of ranks.
    """
    plain = load_workload(original) if original else workload
    if topology is not None:
        workload = autotransform(workload, topology, time_limit_s=step_s).workload
    plain = replace(
        plain, overlaps=(), operations=tuple(replace(each, fused="") for each in plain.operations)
    )
    absent = next((name for name in workload.outputs if name not in plain.tensors), "")
    if absent or plain.num_ranks != workload.num_ranks:
        said = f"has no {absent}, which the step gives" if absent else f"is of {plain.num_ranks} ranks"
        raise WorkloadError(f"{said}; give the program that was transformed", where=os.fspath(original))
    _note_unknown(workload)
    compared = {
        name: (_layout(workload, name), _layout(plain, name))
        for name in workload.outputs
    }  # fmt: skip
    every = [*workload.tensors.values(), *plain.tensors.values()]
    fields = {
        "TITLE": workload.name.encode("unicode_escape").decode().replace('"', "'").replace("@", " at "),
        "RANKS": str(workload.num_ranks),
        "TOLERANCE": repr(max((TOLERANCE[each.dtype] for each in every), default=0.0)),
    }
    head = HEAD
    for name, text in fields.items():
        head = head.replace(f"@{name}@", text)
    programs = [*_Program(workload, "transformed").lines(), "", "", *_Program(plain, "untransformed").lines()]
    tables = [f"INPUTS = {_inputs(workload)}", f"UNTRANSFORMED_INPUTS = {_inputs(plain)}"]
    tables += ["#: {output: its layout in both}; a number is the axis of slices.", f"OUTPUTS = {compared!r}"]
    return "\n".join([head, *programs, "", "", *tables]) + "\n" + TAIL


def _note_unknown(workload: Workload) -> None:
    unknown = [each.name for each in workload.operations if each.kind == "compute"]
    if unknown:
        said = f"a program for PyTorch has no kernels for {', '.join(unknown[:3])}; replace its stand_in()"
        warn(said, LossyConversionWarning)


def _layout(workload: Workload, name: str) -> int | str:
    tensor = workload.tensors[name]
    return tensor.layout if tensor.axis is None else tensor.axis


def _inputs(workload: Workload) -> str:
    rows = (
        f"    {_local(each.name, workload)!r}: ({each.shape}, torch.{each.dtype}, "
        f"{_layout(workload, each.name)!r}),"
        for each in workload.inputs
    )
    return "\n".join(["{", *rows, "}"])


def _local(name: str, workload: Workload) -> str:
    """Name of a tensor in the program: its own, unless Python or the module has that name."""
    while keyword.iskeyword(name) or name in _TAKEN or name.startswith(("kernel_", "_")):
        name = f"t_{name}"
        while name in workload.tensors:
            name = f"t_{name}"
    return name


class _Program:
    """One function of the module, with the kernels that it calls."""

    def __init__(self, workload: Workload, name: str) -> None:
        self.workload, self.name = workload, name
        self.kernels: list[str] = []
        self.waited: set[str] = set()

    def lines(self) -> list[str]:
        """Lines of the kernels and of the function."""
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
        return _local(name, self.workload)

    def _loop(self, overlap: Overlap) -> list[str]:
        """A loop over tiles, in which readers of collectives run a turn behind them."""
        workload = self.workload
        units = _arranged(workload, list(overlap.operations), whole=False)
        stage: dict[str, int] = {}
        for unit in units:
            read = {name for each in unit for name in workload.operation[each].inputs if name in stage}
            late = max((stage[n] + workload.operation[n].is_collective for n in read), default=0)
            stage |= dict.fromkeys(unit, late)
        most, tiles = max(stage.values()), overlap.tiles
        names = [self._var(name) for unit in units for name in self._kept(unit)]
        lines = [f"# {tiles} tiles: while one is sent, the next is computed."]
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
                sliced = workload.tensors[name].axis == tiling.axis
                ways = tiling.ways // (workload.num_ranks if sliced else 1)
                lines.append(f"{var} = joined({var}, {tiling.axis}, {ways})")
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
        """Lines of an operation or of a kernel; `at` is the index of a tile, or empty."""
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
        """The call of a kernel, whose function is added to the module."""
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
            if is_drawn or any(word in value for word in ("mine(", "cut(")):
                # Numbers drawn on the host, and places of this rank, enter as parameters.
                drawn = self._drawn(operation)
                value = value.replace(drawn, given.setdefault(drawn, f"drawn_{each}"))
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
        """Names of a unit's results that are read elsewhere: all but those inside a kernel."""
        workload = self.workload
        return [
            name
            for name in unit
            if len(unit) == 1 or name in workload.outputs or not set(workload.readers[name]) <= set(unit)
        ]

    def _operand(self, operation: Operation, place: int) -> str:
        """Expression of an operand: the rank's slice and the tile of it that the operation reads."""
        workload, name = self.workload, operation.inputs[place]
        tensors, out = workload.operands(operation), workload.tensors[operation.name]
        tensor, tiling = tensors[place], workload.tiling(operation.name)
        together = tiling.overlap is not None and workload.tiling(name).overlap is tiling.overlap
        text = self._var(name) + ("[t]" if together else "")
        axes = operand_axes(operation, tensors, out, place)
        if operation.kind == "matmul" and tensor.axis is None:
            other = tensors[1 - place]
            summed = len(tensor.shape) - (1 if place == 0 else 2)
            if other.axis == len(other.shape) - (2 if place == 0 else 1):
                text = f"mine({text}, {summed})"
        for axis, to in enumerate(axes):
            if to is None:
                continue
            if out.axis == to and tensor.axis is None and not operation.is_collective:
                text = f"mine({text}, {axis})"
            if tiling.overlap is not None and tiling.axis == to and not together:
                layout = tensor if operation.is_collective else out
                text = self._cut(text, axis, layout.axis == (axis if operation.is_collective else to), tiling)
        wanted = out.dtype if operation.kind != "cast" else tensor.dtype
        if tensor.dtype != wanted and not operation.is_collective:
            text = f"{text}.to(torch.{wanted})"
        return text

    def _cut(self, text: str, axis: int, sliced: bool, tiling: Tiling) -> str:
        """Expression of the tile of a tensor, which this rank has a slice of along the axis if `sliced`."""
        ways = tiling.ways // (self.workload.num_ranks if sliced else 1)
        return f"cut({text}, {axis}, {ways}, {tiling.tiles}, t)"

    def _drawn(self, operation: Operation) -> str:
        """Expression of the random numbers of a dropout or an unknown kernel, at the elements in hand."""
        out, tiling = self.workload.tensors[operation.name], self.workload.tiling(operation.name)
        is_own = out.layout == "partial" and operation.kind == "compute"
        seed = f"rank_seed({operation.seed})" if is_own else str(operation.seed)
        text = f"drawn({out.shape}, {seed}, device())"
        if out.axis is not None:
            text = f"mine({text}, {out.axis})"
        if tiling.overlap is not None:
            text = self._cut(text, tiling.axis, out.axis == tiling.axis, tiling)
        return text

    def _value(self, operation: Operation, operands: Sequence[str]) -> str:
        """Expression of an operation's value at this rank."""
        kind, out = operation.kind, self.workload.tensors[operation.name]
        value, to = operation.value or 0.0, f".to(torch.{out.dtype})"
        if operation.is_collective:
            return _collective(self.workload, operation, operands[0])
        if kind == "transpose":
            return f"{operands[0]}.permute({permutation(operation, len(out.shape))})"
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
        if kind == "cast":
            return f"{operands[0]}{to}"
        text = _VALUES[kind].format(*operands, v=_number(value), axis=operation.axis)
        tiling = self.workload.tiling(operation.name)
        if kind in ROWWISE and tiling.overlap is not None and tiling.axis == len(out.shape) - 1:
            text = self._cut(f"({text})", tiling.axis, out.axis == tiling.axis, tiling)
        return text


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else f'float("{value}")'


def _collective(workload: Workload, operation: Operation, operand: str) -> str:
    source, kind = workload.tensors[operation.inputs[0]], operation.kind
    calls = {
        "allreduce": f"all_reduce({operand})",
        "reduce_scatter": f"reduce_scatter({operand}, {operation.axis})",
        "allgather": f"all_gather({operand}, {source.axis})",
        "alltoall": f"all_to_all({operand}, {source.axis}, {operation.axis})",
        "send": f"send({operand}, {operation.shift})",
    }
    return calls[kind]


def _arranged(workload: Workload, names: Sequence[str], *, whole: bool) -> list[list[str]]:
    """Operations in units, each behind what it reads: kernels, and whole overlaps if asked."""
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
    """Yield units whose inputs have been yielded, as long as there are any."""
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
