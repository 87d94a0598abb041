"""Workload: the operations of a step, in order, with the layout of every tensor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any
from zlib import crc32

from taccl.arguments import checked_as, quoted
from taccl.errors import WorkloadError
from taccl.names import did_you_mean
from taccl.workload.operations import (
    Operation,
    Tensor,
    infer,
    operand_axes,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from taccl.arguments import Count, Natural

__all__ = ["Overlap", "Workload", "seed_of"]


@dataclass(frozen=True, slots=True)
class Overlap:
    """Operations that run tile by tile: each tile goes through all of them, beside its neighbours.

    Tiles are cut along `axis` of what the first of them makes; `Workload.tile_axes` follows it through the
    others.
    """

    operations: tuple[str, ...]
    tiles: int
    axis: int = 0


@checked_as(WorkloadError)
@dataclass(frozen=True, repr=False)
class Workload:
    """The operations of a step, that all ranks run in the same order, each on what it has of every tensor.

    It begins with a name and a number of ranks; `input`, `then`, `returning` and `updating` each return one
    with more in it.

    Parameters
    ----------
    name : str
        For people.
    num_ranks : int
        Ranks that run it.
    inputs : tuple of Tensor
        What is there when the step begins.
    operations : tuple of Operation
        Each reads inputs, and what operations before it make.
    returned : tuple of str
        What the step is for; where nothing is named and no state kept, what nobody reads.
    state : tuple of (str, str)
        Inputs that are kept from step to step, each with the tensor that it is replaced by.
    overlaps : tuple of Overlap
        What runs tile by tile.

    Raises
    ------
    WorkloadError
        If an operation reads what is not there, or what its ranks have of it is not enough.

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

    def __post_init__(self) -> None:
        tensors = self.tensors
        for name in self.returned:
            self._known(name, "returned")
        for old, new in self.state:
            for name in (old, new):
                self._known(name, "state")
            if old not in {each.name for each in self.inputs}:
                raise WorkloadError("is no input, and so no state; name an input", where=old)
            a, b = tensors[old], tensors[new]
            if (a.shape, a.dtype, a.layout) != (b.shape, b.dtype, b.layout):
                raise WorkloadError(
                    f"is {a}, and is to be replaced by {new}, which is {b}; make them equal", where=old
                )
        seen: set[str] = set()
        for each in self.overlaps:
            twice = seen.intersection(each.operations)
            if twice:
                raise WorkloadError("is in two overlaps; put it into one", where=min(twice))
            seen.update(each.operations)
            self.tile_axes(each)
        if self.overlaps:
            self.units  # noqa: B018 - refuses what would wait for itself

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by name, with its layout."""
        made: dict[str, Tensor] = {}
        for tensor in self.inputs:
            _named(tensor.name, made)
            made[tensor.name] = tensor.check(self.num_ranks)
        for operation in self.operations:
            _named(operation.name, made)
            for name in operation.inputs:
                if name not in made:
                    raise self._absent(operation, name, made)
            made[operation.name] = infer(operation, [made[name] for name in operation.inputs], self.num_ranks)
        return made

    @cached_property
    def operation(self) -> dict[str, Operation]:
        """Every operation by the name of what it makes."""
        return {each.name: each for each in self.operations}

    @cached_property
    def readers(self) -> dict[str, tuple[str, ...]]:
        """The operations that read each tensor, in order."""
        found: dict[str, list[str]] = {name: [] for name in self.tensors}
        for operation in self.operations:
            for name in dict.fromkeys(operation.inputs):
                found[name].append(operation.name)
        return {name: tuple(readers) for name, readers in found.items()}

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """What the step is for: what is returned, and what replaces its state."""
        new = [name for _, name in self.state]
        unread = (each.name for each in self.operations if not self.readers[each.name])
        return tuple(dict.fromkeys((*self.returned, *new))) or tuple(unread)

    @cached_property
    def state_bytes(self) -> int:
        """What one rank keeps from step to step."""
        return sum(self.tensors[old].local_bytes(self.num_ranks) for old, _ in self.state)

    def operands(self, operation: Operation) -> list[Tensor]:
        """The tensors that an operation reads, in its order."""
        return [self.tensors[name] for name in operation.inputs]

    @cached_property
    def tiles_of(self) -> dict[str, tuple[int, int]]:
        """How many tiles operations that overlap are cut into, and along which axis of what they make."""
        return {
            name: (each.tiles, axis) for each in self.overlaps for name, axis in self.tile_axes(each).items()
        }

    def tile_axes(self, overlap: Overlap) -> dict[str, int]:
        """The axis along which tiles of each operation of an overlap are cut.

        Raises
        ------
        WorkloadError
            If a tile of one of them needs more than that tile of those before it.
        """
        axes: dict[str, int] = {}
        for name in overlap.operations:
            if name not in self.operation:
                raise WorkloadError(f"is no operation of {self.name}; overlap what it makes", where=name)
        for operation in self.operations:
            if operation.name not in overlap.operations:
                continue
            tensors, out = self.operands(operation), self.tensors[operation.name]
            found: set[int] = set() if axes else {overlap.axis}
            for at, name in enumerate(operation.inputs):
                if name in axes:
                    read = operand_axes(operation, tensors, out, at)[axes[name]]
                    if read is None:
                        said = f"reads all of {name} along axis {axes[name]} for each tile of its own"
                        raise WorkloadError(f"{said}; end the overlap before it", where=operation.name)
                    found.add(read)
            if len(found) != 1:
                said = (
                    f"reads tiles along axes {sorted(found)}"
                    if found
                    else "reads nothing that the overlap makes"
                )
                raise WorkloadError(f"{said}; leave it out of the overlap", where=operation.name)
            axes[operation.name] = found.pop()
            if overlap.tiles < 1 or not 0 <= axes[operation.name] < len(out.shape):
                said = f"found {overlap.tiles} tiles along axis {axes[operation.name]} of shape {out.shape}"
                raise WorkloadError(f"{said}; expected 1 or more along an axis that it has", where=out.name)
        ways = self._ways(axes)
        for name, axis in axes.items():
            length = self.tensors[name].shape[axis]
            if length % (ways * overlap.tiles):
                pieces = f"{ways} slices of {overlap.tiles} tiles" if ways > 1 else f"{overlap.tiles} tiles"
                few = "there are more tiles than chunks; " if length < ways * overlap.tiles else ""
                said = f"axis {axis} of length {length} does not divide into {pieces}"
                raise WorkloadError(f"{said}; {few}choose a number of tiles that divides it", where=name)
        return axes

    def _ways(self, axes: Mapping[str, int]) -> int:
        """Stretches that each tile falls into: one, or one a slice where its axis is that of slices."""
        for name, axis in axes.items():
            operation, out = self.operation[name], self.tensors[name]
            inputs = self.operands(operation)
            for at, each in enumerate(inputs):
                read = operand_axes(operation, inputs, out, at)
                if each.axis is not None and read[each.axis] == axis:
                    return self.num_ranks
            if out.axis == axis:
                return self.num_ranks
        return 1

    @cached_property
    def tile_ways(self) -> dict[str, int]:
        """Into how many stretches each tile of operations that overlap falls along its axis."""
        every = (self.tile_axes(each) for each in self.overlaps)
        return {name: ways for axes in every for ways in [self._ways(axes)] for name in axes}

    @cached_property
    def units(self) -> tuple[tuple[Operation, ...], ...]:
        """Operations in an order in which they can run; those that overlap together.

        Raises
        ------
        WorkloadError
            If an overlap needs something that needs a part of it.
        """
        unit_of = {name: index for index, each in enumerate(self.overlaps) for name in each.operations}
        members: dict[object, list[Operation]] = {}
        for operation in self.operations:
            members.setdefault(unit_of.get(operation.name, operation.name), []).append(operation)
        done = {each.name for each in self.inputs}
        waiting, units = list(members.values()), []
        while waiting:
            for unit in waiting:
                names = {each.name for each in unit}
                if all(name in done or name in names for each in unit for name in each.inputs):
                    break
            else:
                overlapped = next(each for unit in waiting if len(unit) > 1 for each in unit)
                said = "overlaps with operations that need what is made of it outside"
                raise WorkloadError(
                    f"{said}; put that into the overlap, too, or end it before", where=overlapped.name
                )
            waiting.remove(unit)
            units.append(tuple(unit))
            done |= names
        return tuple(units)

    def _known(self, name: str, what: str) -> None:
        if name not in self.tensors:
            raise WorkloadError(
                f"there is no such tensor{did_you_mean(name, list(self.tensors))}", where=f"{what}: {name}"
            )

    def _absent(self, operation: Operation, name: str, made: Mapping[str, Tensor]) -> WorkloadError:
        by_name = {each.name: each for each in self.operations}
        if name not in by_name:
            said = f"reads {quoted(name)}, which nothing makes{did_you_mean(name, list(made))}"
            return WorkloadError(f"{said}; make it an input, or correct the name", where=operation.name)
        needs, pending = set(), [name]
        while pending:
            for each in by_name[pending.pop()].inputs:
                if each in by_name and each not in needs:
                    needs.add(each)
                    pending.append(each)
        if operation.name in needs:
            said = (
                f"reads {name}, which needs {operation.name} itself: a cycle; break it, for "
                f"example with an input"
            )
        elif name == operation.name:
            said = "reads itself: a cycle; read an input instead"
        else:
            said = f"reads {name} before it is made; put {name} first"
        return WorkloadError(said, where=operation.name)

    @checked_as(WorkloadError)
    def input(
        self, name: str, shape: Sequence[int], *, dtype: str = "float32", layout: str = "replicated"
    ) -> Workload:
        """The step with one more tensor that is there when it begins.

        Parameters
        ----------
        name : str
            For operations to read it by.
        shape : sequence of int
            Of the whole array.
        dtype, layout : str
            As in `Tensor`.
        """
        return replace(self, inputs=(*self.inputs, Tensor(name, tuple(shape), dtype, layout)))

    @checked_as(WorkloadError)
    def then(
        self,
        name: str,
        kind: str,
        *inputs: str,
        axis: Natural | None = None,
        value: float | None = None,
        seed: Natural | None = None,
        shift: int = 1,
        shape: Sequence[int] = (),
        dtype: str = "float32",
        layout: str = "replicated",
        cost_us: float | None = None,
        flops: float | None = None,
        memory_bytes: float | None = None,
    ) -> Workload:
        """The step with one more operation, which makes a tensor of its name.

        Parameters
        ----------
        name, kind : str
            Of what it makes, and one of ``taccl.workload.operations.KINDS``.
        *inputs : str
            Tensors that are there.
        axis, value, shift, shape, dtype, layout, cost_us, flops, memory_bytes
            As in `Operation`.
        seed : int, optional
            By default it follows from the name.
        """
        tensors = self.tensors
        reads = tuple(tensors[each].layout for each in inputs if each in tensors) if kind == "compute" else ()
        made = Operation(
            name, kind, inputs, axis, value, seed_of(name, kind) if seed is None else seed, shift,
            tuple(shape), dtype, layout, reads, cost_us, flops, memory_bytes,
        )  # fmt: skip
        return replace(self, operations=(*self.operations, made))

    @checked_as(WorkloadError)
    def returning(self, *names: str) -> Workload:
        """The step with what it is for."""
        return replace(self, returned=names)

    @checked_as(WorkloadError)
    def updating(self, **state: str) -> Workload:
        """The step with state: inputs by name, each with the name of what replaces it."""
        return replace(self, state=(*self.state, *state.items()))

    def run(self, inputs: Mapping[str, Any] | None = None, *, seed: int = 0) -> dict[str, list[NDArray[Any]]]:
        """What every rank has of every tensor in the end; see `taccl.workload.run_workload`."""
        from taccl.workload.meaning import run_workload

        return run_workload(self, inputs, seed=seed)

    def __repr__(self) -> str:
        lines = [f"Workload {self.name} of {self.num_ranks} ranks:"]
        successor = dict(self.state)
        for tensor in self.inputs:
            kept = f", then {successor[tensor.name]}" if tensor.name in successor else ""
            lines.append(f"  {tensor.name}: {tensor}{kept}")
        for unit in self.units:
            overlapped = next((each for each in self.overlaps if unit[0].name in each.operations), None)
            if overlapped:
                lines.append(
                    f"  for each of {overlapped.tiles} tiles along axis {overlapped.axis} of {unit[0].name}:"
                )
            for operation in unit:
                fused = f", fused into {operation.fused}" if operation.fused else ""
                indent = "    " if overlapped else "  "
                lines.append(f"{indent}{operation}    {self.tensors[operation.name]}{fused}")
        return "\n".join([*lines, f"  return {', '.join(self.outputs)}"])


def seed_of(name: str, kind: str) -> int:
    """The seed of an operation that was given none."""
    return crc32(name.encode()) if kind in ("dropout", "compute") else 0


def _named(name: str, made: Mapping[str, Tensor]) -> None:
    if not name.isidentifier():
        raise WorkloadError(
            "found a name that is none; expected letters, digits and underscores", where=repr(name)
        )
    if name in made:
        raise WorkloadError("the name is taken already; choose another", where=name)
