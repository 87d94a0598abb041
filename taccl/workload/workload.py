"""Workload: the operations of a step, in order, with the layout of every tensor."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from taccl.arguments import checked_as, known_word, quoted
from taccl.errors import WorkloadError
from taccl.names import did_you_mean
from taccl.workload.operations import POINTWISE, Operation, Tensor, infer, operand_axes, refuse_first

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from taccl.arguments import Count, Natural


@dataclass(frozen=True, slots=True)
class Overlap:
    """Operations that run tile by tile: each tile goes through all of them, beside its neighbours.

    Tiles are cut along `axis` of what the first of them makes, which is followed through the others.
    """

    operations: tuple[str, ...]
    tiles: Count
    axis: Natural = 0


class Tiling(NamedTuple):
    """How what an operation makes is cut: into how many tiles, along which axis, for which overlap.

    Each tile falls into `ways` stretches along the axis: one, or one a slice where that is the slices' axis.
    """

    tiles: int
    axis: int
    ways: int
    overlap: Overlap | None


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
        for what, names in (("returned", self.returned), ("state", sum(self.state, ()))):
            for name in names:
                known_word(name, tensors, what, WorkloadError)
        for old, new in self.state:
            if old not in {each.name for each in self.inputs}:
                raise WorkloadError("is no input, and so no state; name an input", where=old)
            a, b = tensors[old], tensors[new]
            if (a.shape, a.dtype, a.layout) != (b.shape, b.dtype, b.layout):
                said = f"is {a}, and is to be replaced by {new}, which is {b}; make them equal"
                raise WorkloadError(said, where=old)
        for name, times in Counter(name for each in self.overlaps for name in each.operations).items():
            if name not in self.operation:
                raise WorkloadError(f"is no operation of {self.name}; overlap what it makes", where=name)
            if times > 1:
                raise WorkloadError("is in two overlaps; put it into one", where=name)
        for each in self.operations:
            if each.fused:
                self._check_fused(each)
        _ = self._tilings, self.tiles  # which refuse what does not divide, or would wait for itself

    def _check_fused(self, operation: Operation) -> None:
        """Raise `WorkloadError` unless the last step of a collective has in hand what an operation reads."""
        into = operation.fused
        if into not in self.operation or not self.operation[into].is_collective:
            raise WorkloadError("is no collective; name the one that others are fused into", where=into)
        inside = {into, *(each.name for each in self.operations if each.fused == into)}
        beside = [name for name in operation.inputs if name not in inside]
        late = next((name for name in beside if name in self.operation and into in self.needed(name)), "")
        is_apart = self.tensors[operation.name].layout != self.tensors[into].layout
        refuse_first(
            operation.name,
            (operation.kind not in POINTWISE, f"is a {operation.kind}, which needs more than the element in "
             "hand; only point-wise ones are fused"),
            (beside == [*operation.inputs], f"does not read {into} or what is fused into it; fuse what does"),
            (late, f"reads {late}, which is made after {into}; it stays behind it"),
            (is_apart, f"is laid out otherwise than {into}; it stays behind it"),
        )  # fmt: skip

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by name, with its layout."""
        made: dict[str, Tensor] = {}
        every: tuple[Tensor | Operation, ...] = (*self.inputs, *self.operations)
        for each in every:
            if not each.name.isidentifier():
                said = "found a name that is none; expected letters, digits and underscores"
                raise WorkloadError(said, where=repr(each.name))
            if each.name in made:
                raise WorkloadError("the name is taken already; choose another", where=each.name)
            if isinstance(each, Tensor):
                made[each.name] = each.check(self.num_ranks)
                continue
            for name in each.inputs:
                if name not in made:
                    raise self._absent(each, name, made)
            made[each.name] = infer(each, [made[name] for name in each.inputs], self.num_ranks)
        return made

    def _absent(self, operation: Operation, name: str, made: Mapping[str, Tensor]) -> WorkloadError:
        """Why something cannot be read: nothing makes it, or what does comes later, or needs its reader."""
        if name not in self.operation:
            said = f"reads {quoted(name)}, which nothing makes{did_you_mean(name, list(made))}"
            return WorkloadError(f"{said}; make it an input, or correct the name", where=operation.name)
        if operation.name in self.needed(name) | {name}:
            said = f"reads {name}, which needs {operation.name} itself: a cycle; break it with an input"
        else:
            said = f"reads {name} before it is made; put {name} first"
        return WorkloadError(said, where=operation.name)

    def needed(self, name: str) -> set[str]:
        """The names of all operations that one needs, directly or not."""
        found, pending = set[str](), [name]
        while pending:
            more = self.operation.keys() & set(self.operation[pending.pop()].inputs) - found
            found |= more
            pending += more
        return found

    @cached_property
    def operation(self) -> dict[str, Operation]:
        """Every operation by the name of what it makes."""
        return {each.name: each for each in self.operations}

    @cached_property
    def readers(self) -> dict[str, tuple[str, ...]]:
        """The operations that read each tensor, in order."""
        return {
            name: tuple(each.name for each in self.operations if name in each.inputs) for name in self.tensors
        }

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

    def tiling(self, name: str) -> Tiling:
        """How what an operation makes is cut; anything that does not overlap is whole."""
        return self._tilings.get(name, Tiling(1, 0, 1, None))

    @cached_property
    def _tilings(self) -> dict[str, Tiling]:
        """How operations that overlap are cut.

        Raises `WorkloadError` if a tile of one of them needs more than that tile of those before it, or tiles
        do not divide.
        """
        found = {}
        for each in self.overlaps:
            axes, ways = self._tile_axes(each)
            for name, axis in axes.items():
                length = self.tensors[name].shape[axis]
                if length % (ways * each.tiles):
                    few = "there are more tiles than chunks; " if length < ways * each.tiles else ""
                    pieces = (f"{ways} slices of " if ways > 1 else "") + f"{each.tiles} tiles"
                    said = f"axis {axis} of length {length} does not divide into {pieces}"
                    raise WorkloadError(f"{said}; {few}choose a number of tiles that divides it", where=name)
                found[name] = Tiling(each.tiles, axis, ways, each)
        return found

    def _tile_axes(self, overlap: Overlap) -> tuple[dict[str, int], int]:
        """The axis along which tiles of each operation of an overlap are cut, and into how many stretches."""
        axes: dict[str, int] = {}
        ways = 1
        for operation in (each for each in self.operations if each.name in overlap.operations):
            tensors, out = self.operands(operation), self.tensors[operation.name]
            to_axes = [operand_axes(operation, tensors, out, at) for at in range(len(tensors))]
            both = zip(operation.inputs, to_axes, strict=True)
            read = {name: to_axis[axes[name]] for name, to_axis in both if name in axes}
            found = set(read.values()) if axes else {overlap.axis}
            axis = min((each for each in found if each is not None), default=0)
            whole = next((name for name, each in read.items() if each is None), None)
            shape = out.shape
            refuse_first(
                operation.name,
                (not found, "reads nothing that the overlap makes; leave it out of the overlap"),
                (whole, f"reads all of {whole} along axis {axes.get(whole or '')} for each tile of its own; "
                 "end the overlap before it"),
                (len(found) > 1, f"reads tiles along axes {found}; leave it out of the overlap"),
                (overlap.tiles < 1 or not 0 <= axis < len(shape), f"found {overlap.tiles} tiles along axis "
                 f"{axis} of shape {shape}; expected 1 or more along an axis that it has"),
            )  # fmt: skip
            axes[operation.name] = axis
            # Whether what it makes is sliced along its tiles' axis, or what it reads for that.
            sliced = {
                to[each.axis] for each, to in zip(tensors, to_axes, strict=True) if each.axis is not None
            }
            ways = self.num_ranks if axis in (out.axis, *sliced) else ways
        return axes, ways

    @cached_property
    def tiles(self) -> dict[tuple[str, int], tuple[tuple[str, int], ...]]:
        """Every tile, by operation and number, and those that it reads, which come first.

        Overlaps go tile by tile. Raises `WorkloadError` if one needs something that needs a part of it.
        """
        import networkx as nx

        unit = {name: place for place, name in enumerate(self.operation)}  # what overlaps is one
        for overlap in self.overlaps:
            first = min((unit[name] for name in overlap.operations), default=0)
            unit |= dict.fromkeys(overlap.operations, first)
        members = defaultdict[int, list[str]](list)
        for name, number in unit.items():
            members[number].append(name)
        graph = nx.DiGraph()
        graph.add_nodes_from(members)
        for each in self.operations:
            sources = {unit[name] for name in each.inputs if name in unit} - {unit[each.name]}
            graph.add_edges_from((source, unit[each.name]) for source in sources)
        try:
            order = list(nx.lexicographical_topological_sort(graph))
        except nx.NetworkXUnfeasible:
            said = "overlaps with operations that need what is made of it outside"
            raise WorkloadError(
                f"{said}; put that into the overlap, too, or end it before",
                where=self.overlaps[0].operations[0],
            ) from None
        return {
            (name, tile): tuple(self._reads(name, tile))
            for number in order
            for tile in range(self.tiling(members[number][0]).tiles)
            for name in members[number]
        }

    def _reads(self, operation: str, tile: int) -> Iterator[tuple[str, int]]:
        """The tiles that a tile of an operation needs: in its overlap those of its number, else all."""
        overlap = self.tiling(operation).overlap
        for name in dict.fromkeys(self.operation[operation].inputs):
            cut = self.tiling(name)
            within = overlap is not None and cut.overlap is overlap
            yield from ((name, each) for each in ([tile] if within else range(cut.tiles)))

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
    def then(self, name: str, kind: str, *inputs: str, **options: Any) -> Workload:
        """The step with one more operation, which makes a tensor of its name.

        Parameters
        ----------
        name, kind : str
            Of what it makes, and one of ``taccl.workload.operations.KINDS``.
        *inputs : str
            Tensors that are there.
        **options
            What the kind takes, and its cost; as in `taccl.workload.operations.Operation`.
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
        """The step with what it is for."""
        return replace(self, returned=names)

    @checked_as(WorkloadError)
    def updating(self, **state: str) -> Workload:
        """The step with state: inputs by name, each with the name of what replaces it."""
        return replace(self, state=(*self.state, *state.items()))

    @checked_as(WorkloadError)
    def run(
        self, inputs: Mapping[str, Any] | None = None, *, seed: Natural = 0
    ) -> dict[str, list[NDArray[Any]]]:
        """What every rank has of every tensor when the step has run: for each name a list of arrays, by rank.

        Parameters
        ----------
        inputs : mapping of str to list of array, optional
            What each rank has of each input; by default random numbers.
        seed : int
            Of those.

        Raises
        ------
        WorkloadError
            If an input is missing, or has another shape.
        """
        from taccl.workload.meaning import run_workload

        return run_workload(self, inputs, seed=seed)

    def __repr__(self) -> str:
        lines = [f"Workload {self.name} of {self.num_ranks} ranks:"]
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
