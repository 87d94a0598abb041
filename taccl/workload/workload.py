"""Workloads, which are the operations of a step, in order, with the layout of every tensor."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, reduce
from operator import or_
from typing import Any

from numpy.typing import NDArray

from taccl._internal.arguments import Count, Natural, checked_as, known_word, quoted
from taccl._internal.names import did_you_mean
from taccl.errors import WorkloadError
from taccl.workload.kernels import check_kernels, waits
from taccl.workload.layouts import infer
from taccl.workload.mesh import Mesh
from taccl.workload.operations import Operation, Tensor, operand_axes, refuse_first
from taccl.workload.tiling import Overlap, Tiling, circular, ordered_tiles, reached, tilings_of

#: Cached properties of a step that do not depend on its overlaps and returned tensors.
_APART_FROM_OVERLAPS = frozenset(
    {"grid", "tensors", "operation", "readers", "waits", "kernels", "place", "axes_read", "cuts"}
)


@checked_as(WorkloadError)
@dataclass(frozen=True, repr=False)
class Workload:
    """The operations of a step, which all ranks run in the same order, each on its part of every tensor.

    Start with a name and a number of ranks; `input`, `then`, `returning` and `updating` each return a larger
    workload.

    Parameters
    ----------
    name : str
        Name for display.
    num_ranks : int
        Number of ranks that run it.
    inputs : tuple of Tensor
        Tensors available when the step begins.
    operations : tuple of Operation
        Operations; each reads inputs and results of earlier operations.
    returned : tuple of str
        Names of the tensors that the step returns. Default: if there is no state, the results that no
        operation reads.
    state : tuple of (str, str)
        State: (input, tensor that replaces it in the next step) pairs.
    overlaps : tuple of Overlap
        Operations that run tile by tile.
    mesh : tuple of (str, int)
        Names and sizes of the mesh dimensions, e.g. ``(("dp", 2), ("tp", 4))``; ranks are in row-major order.
        Empty if every collective is over all ranks.
    pieces : tuple of (str, int)
        Collectives, each with the number of pieces into which its tiles are cut. The default depends on the
        size; `taccl.workload.schedule_workload` chooses more on networks of several dimensions, and for a
        collective that is alone in one tile.

    Raises
    ------
    WorkloadError
        If an operation reads an unknown tensor, or its result has no valid layout.

    Examples
    --------
    >>> import taccl
    >>> step = taccl.Workload("mlp", 8).input("x", (64, 32), layout="sliced(1)")
    >>> step = step.input("w", (32, 16), layout="sliced(0)")
    >>> step.then("y", "matmul", "x", "w").then("sum", "allreduce", "y")
    Workload mlp of 8 ranks:
      x: float32[64, 32] sliced(1)
      w: float32[32, 16] sliced(0)
      y = matmul(x, w)    float32[64, 16] partial
      sum = allreduce(y)    float32[64, 16] replicated
      return sum
    """

    name: str
    num_ranks: Count
    inputs: tuple[Tensor, ...] = ()
    operations: tuple[Operation, ...] = ()
    returned: tuple[str, ...] = ()
    state: tuple[tuple[str, str], ...] = ()
    overlaps: tuple[Overlap, ...] = ()
    mesh: tuple[tuple[str, Count], ...] = ()
    pieces: tuple[tuple[str, Count], ...] = ()

    def __post_init__(self) -> None:
        self._check_mesh()
        tensors = self.tensors
        for what, names in (("returned", self.returned), ("state", sum(self.state, ()))):
            for name in names:
                known_word(name, tensors, what, WorkloadError)
        for old, new in self.state:
            if old not in {each.name for each in self.inputs}:
                raise WorkloadError("is not an input, so it cannot be a state; name an input", where=old)
            a, b = tensors[old], tensors[new]
            if (a.shape, a.dtype, a.layout) != (b.shape, b.dtype, b.layout):
                said = f"is {a}, but its replacement {new} is {b}; make them equal"
                raise WorkloadError(said, where=old)
        check_kernels(self)
        self._check_names_of_overlaps()
        _ = self._tilings, self.tiles  # these raise if an axis does not divide, or a tile depends on itself

    def _check_names_of_overlaps(self) -> None:
        """Raise `WorkloadError` if an overlap names an unknown operation, or two overlaps the same one."""
        for name, times in Counter(name for each in self.overlaps for name in each.operations).items():
            if name not in self.operation:
                raise WorkloadError(f"is not an operation of {self.name}; name an operation", where=name)
            if times > 1:
                raise WorkloadError("is in two overlaps; put it into one", where=name)

    def with_overlap(self, overlap: Overlap, *, returned: tuple[str, ...]) -> Workload:
        """Add an overlap to the step, and set the step's returned tensors; only the new overlap is checked.

        Raises `WorkloadError` if the overlap is not possible.
        """
        same = {name: value for name, value in vars(self).items() if name in _APART_FROM_OVERLAPS}
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        other = object.__new__(Workload)
        vars(other).update(same | given, overlaps=(*self.overlaps, overlap), returned=returned)
        other._check_names_of_overlaps()
        vars(other)["_tilings"] = self._tilings | tilings_of(self, overlap)
        units, needed, dependent = self.depending(overlap.operations)
        if needed & dependent & ~units:
            raise circular(overlap.operations[0])
        return other

    def depending(self, names: Iterable[str]) -> tuple[int, int, int]:
        """Bit masks of three sets of units; a unit is an overlap, or an operation outside overlaps.

        Returns (units of `names`, units on which these depend, units that depend on these).
        """
        place, before, behind = self._reached
        inside = {place[name] for name in names}
        needed = reduce(or_, (before[unit] for unit in inside), 0)
        dependent = reduce(or_, (behind[unit] for unit in inside), 0)
        return sum(1 << unit for unit in inside), needed, dependent

    @cached_property
    def _reached(self) -> tuple[dict[str, int], dict[int, int], dict[int, int]]:
        """({operation: its unit}, units each unit needs, units that need it), as bit masks; see `reached`."""
        return reached(self, self._units)

    @property
    def _units(self) -> dict[str, int]:
        """{operation: index of the first operation of its overlap, or its own index}."""
        unit = dict(self.place)
        for overlap in self.overlaps:
            first = min((unit[name] for name in overlap.operations), default=0)
            unit |= dict.fromkeys(overlap.operations, first)
        return unit

    def _check_mesh(self) -> None:
        """Raise `WorkloadError` unless dimensions have unique names, and their product is `num_ranks`."""
        names = [name for name, _ in self.mesh]
        refuse_first(
            "mesh",
            (not all(name.isidentifier() for name in names), f"found dimensions {names}; expected names"),
            (len(set(names)) < len(names), f"found dimensions {names}; give each a name of its own"),
            (math.prod(size for _, size in self.mesh) != self.num_ranks and self.mesh,
             f"found {dict(self.mesh)}, and the step is of {self.num_ranks} ranks; make their product equal"),
        )  # fmt: skip

    @cached_property
    def grid(self) -> Mesh:
        """Mesh of ranks; one dimension without a name if the step has no mesh."""
        return Mesh(self.mesh or (("", self.num_ranks),))

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """{name: tensor} of all inputs and results, with inferred layouts."""
        made: dict[str, Tensor] = {}
        every: tuple[Tensor | Operation, ...] = (*self.inputs, *self.operations)
        for each in every:
            if not each.name.isidentifier():
                said = "found an invalid name; expected letters, digits and underscores"
                raise WorkloadError(said, where=repr(each.name))
            if each.name in made:
                raise WorkloadError("the name is taken already; choose another", where=each.name)
            if isinstance(each, Tensor):
                made[each.name] = each.check(self.grid)
                continue
            for name in each.inputs:
                if name not in made:
                    raise self._absent(each, name, made)
            made[each.name] = infer(each, [made[name] for name in each.inputs], self.grid)
        return made

    def _absent(self, operation: Operation, name: str, made: Mapping[str, Tensor]) -> WorkloadError:
        """Error for an operand whose producer is missing, comes later, or depends on the reader."""
        if name not in self.operation:
            said = f"reads {quoted(name)}, which nothing makes{did_you_mean(name, list(made))}"
            return WorkloadError(f"{said}; make it an input, or correct the name", where=operation.name)
        if operation.name in self.needed(name) | {name}:
            said = f"reads {name}, which depends on {operation.name}: a cycle; break it with an input"
        else:
            said = f"reads {name} before it is made; put {name} first"
        return WorkloadError(said, where=operation.name)

    def needed(self, name: str) -> set[str]:
        """Names of all operations on which operation `name` depends, directly or indirectly."""
        found, pending = set[str](), [name]
        while pending:
            more = self.operation.keys() & set(self.operation[pending.pop()].inputs) - found
            found |= more
            pending += more
        return found

    @cached_property
    def operation(self) -> dict[str, Operation]:
        """{name: operation}."""
        return {each.name: each for each in self.operations}

    @cached_property
    def readers(self) -> dict[str, tuple[str, ...]]:
        """{tensor: names of the operations that read it, in program order}."""
        found: dict[str, list[str]] = {name: [] for name in self.tensors}
        for each in self.operations:
            for name in dict.fromkeys(each.inputs):
                found[name].append(each.name)
        return {name: tuple(names) for name, names in found.items()}

    @cached_property
    def kernels(self) -> dict[str, list[str]]:
        """{head: names of the operations of its kernel, the head first}; also kernels of one operation."""
        found = {each.name: [each.name] for each in self.operations if not each.fused}
        for each in self.operations:
            if each.fused in found:
                found[each.fused].append(each.name)
        return found

    @cached_property
    def place(self) -> dict[str, int]:
        """{operation: its position in the program}."""
        return {name: place for place, name in enumerate(self.operation)}

    @cached_property
    def waits(self) -> dict[str, tuple[str, ...]]:
        """{operation: tensors that must be ready before it starts}; see `kernels.waits`."""
        return waits(self)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs: returned tensors and replacements of state.

        If there are none, the results that no operation reads.
        """
        new = [name for _, name in self.state]
        unread = (each.name for each in self.operations if not self.readers[each.name])
        return tuple(dict.fromkeys((*self.returned, *new))) or tuple(unread)

    @cached_property
    def state_bytes(self) -> int:
        """Bytes of state that one rank keeps from step to step."""
        return sum(self.tensors[old].local_bytes(self.grid) for old, _ in self.state)

    @cached_property
    def axes_read(self) -> dict[str, list[list[int | None]]]:
        """{operation: axis of its result for each axis of each operand}; see `operations.operand_axes`."""
        return {
            each.name: [
                operand_axes(each, self.operands(each), self.tensors[each.name], at)
                for at in range(len(each.inputs))
            ]
            for each in self.operations
        }

    @cached_property
    def cuts(self) -> dict[tuple[str, int], tuple[frozenset[str], frozenset[int]]]:
        """Cache of the results of `tiling._cut`, empty at first."""
        return {}

    def operands(self, operation: Operation) -> list[Tensor]:
        """Tensors that an operation reads, in the order of its inputs."""
        return [self.tensors[name] for name in operation.inputs]

    def tiling(self, name: str) -> Tiling:
        """Tiling of an operation's result; one tile if it does not overlap."""
        return self._tilings.get(name, Tiling(1, 0, 1, None))

    @cached_property
    def _tilings(self) -> dict[str, Tiling]:
        """{operation: tiling} of operations that overlap; raises the errors of `tilings_of`."""
        return {name: tiling for each in self.overlaps for name, tiling in tilings_of(self, each).items()}

    @cached_property
    def tiles(self) -> dict[tuple[str, int], tuple[tuple[str, int], ...]]:
        """{(operation, number of a tile): tiles that it reads}, in order; see `tiling.ordered_tiles`."""
        return ordered_tiles(self, self._units)

    @checked_as(WorkloadError)
    def input(
        self, name: str, shape: Sequence[int], *, dtype: str = "float32", layout: str = "replicated"
    ) -> Workload:
        """Add an input tensor; return the new step.

        Parameters
        ----------
        name : str
            Name by which operations read the tensor.
        shape : sequence of int
            Shape of the global array.
        dtype, layout : str
            Element type and layout, as in `Tensor`.
        """
        return replace(self, inputs=(*self.inputs, Tensor(name, tuple(shape), dtype, layout)))

    @checked_as(WorkloadError)
    def then(self, name: str, kind: str, *inputs: str, **options: Any) -> Workload:
        """Add an operation, whose result is a tensor of the same name; return the new step.

        Parameters
        ----------
        name : str
            Name of the operation and of its result.
        kind : str
            One of ``taccl.workload.operations.KINDS``.
        *inputs : str
            Names of inputs and earlier results that the operation reads.
        **options
            Options and costs of the kind, as in `taccl.workload.operations.Operation`.
        """
        try:
            made = Operation(name, kind, inputs, **options)
        except WorkloadError as error:
            raise WorkloadError(error.message, where=f"{name}: {error.where}") from None
        except TypeError:
            known = [each.name for each in fields(Operation)[3:-1]]
            odd = next((each for each in options if each not in known), "")
            said = f"found an unknown option {odd!r}{did_you_mean(odd, known)}"
            raise WorkloadError(f"{said}; expected some of {', '.join(known)}", where=name) from None
        return replace(self, operations=(*self.operations, made))

    @checked_as(WorkloadError)
    def returning(self, *names: str) -> Workload:
        """Set the names of the tensors that the step returns; return the new step."""
        return replace(self, returned=names)

    @checked_as(WorkloadError)
    def updating(self, **state: str) -> Workload:
        """Add state that the step updates, as ``input="tensor that replaces it"``; return the new step."""
        return replace(self, state=(*self.state, *state.items()))

    @checked_as(WorkloadError)
    def run(
        self, inputs: Mapping[str, Any] | None = None, *, seed: Natural = 0
    ) -> dict[str, list[NDArray[Any]]]:
        """Run the step on arrays; return {tensor: array of each rank}, for all tensors.

        Parameters
        ----------
        inputs : mapping of str to list of array, optional
            Array of each rank for each input; by default random numbers.
        seed : int
            Seed of the random inputs.

        Raises
        ------
        WorkloadError
            If an input is missing, or has another shape.
        """
        from taccl.workload.meaning import run_workload

        return run_workload(self, inputs, seed=seed)

    def __repr__(self) -> str:
        dims = "".join(f", {name} {size}" for name, size in self.mesh)
        lines = [f"Workload {self.name} of {self.num_ranks} ranks{dims}:"]
        successor = dict(self.state)
        for tensor in self.inputs:
            kept = f", then {successor[tensor.name]}" if tensor.name in successor else ""
            lines.append(f"  {tensor.name}: {tensor}{kept}")
        for name in (name for name, tile in self.tiles if tile == 0):
            operation, overlap = self.operation[name], self.tiling(name).overlap
            if overlap and name == min(overlap.operations, key=list(self.operation).index):
                lines.append(f"  for each of {overlap.tiles} tiles along axis {overlap.axis} of {name}:")
            fused = f", fused into {operation.fused}" if operation.fused else ""
            lines.append(f"  {'  ' if overlap else ''}{operation}    {self.tensors[name]}{fused}")
        return "\n".join([*lines, f"  return {', '.join(self.outputs)}"])
