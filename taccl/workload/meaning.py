"""Reference execution of a step on numpy arrays: each rank computes its own part of every tensor.

A rank has a *piece* of a tensor: an array, and along each axis the sorted indices of its elements in the
global array (`Places`). Operands are looked up by these indices, so slices and tiles need no separate code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl._internal.arguments import checked_as
from taccl.errors import WorkloadError
from taccl.workload.kind_values import value_of
from taccl.workload.kinds import TABLE
from taccl.workload.operations import FLOATS, free_axes, inner_axes, labels_of, operand_axes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from taccl._internal.arguments import Natural
    from taccl.workload.operations import Operation, Tensor
    from taccl.workload.workload import Workload

    Array = NDArray[Any]
    Places = tuple[NDArray[np.int64], ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """A rank's part of a tensor: an array, and the indices of its elements in the global array, by axis."""

    array: Array
    places: Places


def run_workload(
    workload: Workload, inputs: Mapping[str, Sequence[Any]] | None, *, seed: int
) -> dict[str, list[Array]]:
    """Run a step as `Workload.run` does; overlapped operations run tile by tile."""
    given = given_parts(workload, inputs, seed=seed)
    ranks = [RankTiles(workload, rank, given) for rank in range(workload.num_ranks)]
    for name, number in workload.tiles:
        operation = workload.operation[name]
        if not operation.is_collective:
            for each in ranks:
                each.tile(name, number)
            continue
        read = [each.read(name, number)[0] for each in ranks]
        for members in groups_of(workload, operation):
            for place, rank in enumerate(members):
                here = places(workload, name, rank, number)
                if operation.kind == "send":
                    source = members[(place - operation.shift) % len(members)]
                    array = taken(read[source], places(workload, name, source, number))
                else:
                    array = taken(_whole(workload, operation, [read[each] for each in members]), here)
                ranks[rank].made[name, number] = Piece(array, here)
    return {name: [each.tensor(name).array for each in ranks] for name in workload.tensors}


class RankTiles:
    """Tensors of one rank: inputs, results of collectives (`made`), and tiles computed on demand."""

    def __init__(self, workload: Workload, rank: int, inputs: Mapping[str, Sequence[Piece]]) -> None:
        self.workload, self.rank = workload, rank
        self.made = {(name, 0): parts[rank] for name, parts in inputs.items()}

    def tensor(self, name: str) -> Piece:
        """The rank's piece of a tensor, joined from all tiles."""
        cut = self.workload.tiling(name)
        return join([self.tile(name, number) for number in range(cut.tiles)], cut.axis)

    def tile(self, name: str, number: int) -> Piece:
        """The rank's piece of one tile of an operation's result."""
        if (name, number) not in self.made:
            operation = self.workload.operation[name]
            wanted = places(self.workload, name, self.rank, number)
            read = self.read(name, number)
            self.made[name, number] = _calculated(self.workload, operation, read, self.rank, wanted)
        return self.made[name, number]

    def read(self, name: str, number: int) -> list[Piece]:
        """The rank's piece of each input that one tile of an operation reads."""
        keys = self.workload.tiles[name, number]
        return [
            join([self.tile(*key) for key in keys if key[0] == source], self.workload.tiling(source).axis)
            for source in self.workload.operation[name].inputs
        ]


def given_parts(
    workload: Workload, inputs: Mapping[str, Any] | None, *, seed: int = 0
) -> dict[str, list[Piece]]:
    """{input: piece of each rank}, from the given arrays, or from random numbers if `inputs` is None.

    Raises `WorkloadError` if an input is missing, or has a wrong shape or number of ranks.
    """
    given = random_inputs(workload, seed=seed) if inputs is None else inputs
    found: dict[str, list[Piece]] = {}
    for tensor in workload.inputs:
        where = f"inputs: {tensor.name}"
        if tensor.name not in given or len(given[tensor.name]) != workload.num_ranks:
            said = f"expected one array for each of {workload.num_ranks} ranks; give all of them"
            raise WorkloadError(said, where=where)
        found[tensor.name] = []
        for rank, array in enumerate(given[tensor.name]):
            here = places(workload, tensor.name, rank)
            wanted = tuple(map(len, here))
            if np.shape(array) != wanted:
                said = f"found shape {np.shape(array)} at rank {rank}; expected {wanted}"
                raise WorkloadError(said, where=where)
            found[tensor.name].append(Piece(rounded(array, tensor), here))
    return found


@checked_as(WorkloadError)
def random_inputs(workload: Workload, *, seed: Natural = 0) -> dict[str, list[Array]]:
    """{input: array of each rank}, with normally distributed numbers, valid ids, and random masks.

    Ranks have different parts of a partial tensor.
    """
    source = np.random.default_rng(seed)
    bounds = bounds_of(workload)
    found = {}
    for tensor in workload.inputs:
        differing = workload.grid.partial(tensor)
        count = workload.grid.size(differing) if differing else 1
        # The global array is drawn and then sliced, so its values do not depend on the layout's slices.
        drawn = [
            rounded(
                source.normal(size=tensor.shape)
                if tensor.dtype in FLOATS
                else source.integers(bounds[tensor.name], size=tensor.shape),
                tensor,
            )
            for _ in range(count)
        ]
        whole = tuple(np.arange(length) for length in tensor.shape)
        found[tensor.name] = [
            np.array(
                taken(
                    Piece(drawn[workload.grid.index(rank, differing)], whole),
                    places(workload, tensor.name, rank),
                )
            )
            for rank in range(workload.num_ranks)
        ]
    return found


def bounds_of(workload: Workload) -> dict[str, int]:
    """{integer or bool input: exclusive upper bound of valid values}; 2 for masks and unused inputs.

    The bound of ids is the number of rows of the smallest table that they index.
    """
    least: dict[str, int] = {}
    for each in reversed(workload.operations):
        kind = TABLE.get(each.kind)
        # Elements of operands may reach the result unchanged, so the result's bound applies to them.
        if kind is None or kind.ids is None:
            masks = kind.masks if kind is not None else ()
            moved = [name for at, name in enumerate(each.inputs) if at not in masks]
            for name in moved if each.name in least else ():
                least[name] = min(least.get(name, least[each.name]), least[each.name])
            continue
        shape = workload.tensors[each.inputs[0]].shape if each.inputs else ()
        rows = {"embedding": shape[:1], "pick": shape[-1:]}.get(each.kind, (each.stop,))
        for at in kind.ids:
            name = each.inputs[at]
            least[name] = min(least.get(name, rows[0]), rows[0])
    return {each.name: least.get(each.name, 2) for each in workload.inputs if each.dtype not in FLOATS}


def places(workload: Workload, name: str, rank: int, tile: int | None = None) -> Places:
    """Global indices, by axis, of a rank's part of a tensor, or of its part of one tile of the tensor."""
    tensor, cut = workload.tensors[name], workload.tiling(name)
    here = [np.arange(length) for length in tensor.shape]
    for axis in range(len(here)):
        dims = workload.grid.slicing(tensor, axis)
        if dims:
            here[axis] = np.split(here[axis], workload.grid.size(dims))[workload.grid.index(rank, dims)]
    if tile is not None and cut.overlap is not None:
        # A tile contains a part of each slice along the tile axis.
        of_tile = np.arange(tensor.shape[cut.axis]).reshape(cut.ranges, cut.tiles, -1)[:, tile]
        here[cut.axis] = np.intersect1d(here[cut.axis], of_tile)
    return tuple(here)


def taken(part: Piece, wanted: Places) -> Array:
    """Values of a piece at the wanted indices of the global array, all of which the piece must contain."""
    array = part.array
    for axis, (held, want) in enumerate(zip(part.places, wanted, strict=True)):
        if len(held) != len(want) or not np.array_equal(held, want):
            at = np.searchsorted(held, want)
            assert np.array_equal(held[np.minimum(at, len(held) - 1)], want), "places that are not held"
            array = np.take(array, at, axis=axis)
    return array


def join(parts: Sequence[Piece], axis: int) -> Piece:
    """Join pieces along one axis, with their indices in ascending order."""
    if len(parts) == 1:
        return parts[0]
    along = np.concatenate([part.places[axis] for part in parts])
    order = np.argsort(along)
    array = np.take(np.concatenate([part.array for part in parts], axis=axis), order, axis=axis)
    here = parts[0].places
    return Piece(array, (*here[:axis], along[order], *here[axis + 1 :]))


def dtype_of(tensor: Tensor) -> str:
    """Numpy dtype of a tensor; bfloat16 becomes float32, which holds all of its values."""
    return "float32" if tensor.dtype == "bfloat16" else tensor.dtype


#: {element type: largest difference attributed to rounding, relative to the largest value}.
#: We chose 256 machine epsilons for float64 and float32, 32 for float16, and 8 for bfloat16.
TOLERANCE = {
    "float64": 2.0**-44, "float32": 2.0**-15, "float16": 2.0**-5, "bfloat16": 2.0**-4,
    "int64": 0.0, "int32": 0.0, "bool": 0.0,
}  # fmt: skip


def rounded(values: Any, tensor: Tensor) -> Array:
    """Convert values to a tensor's element type; for bfloat16, round to nearest, ties to even, in float32."""
    array = np.asarray(values, dtype=dtype_of(tensor))
    if tensor.dtype != "bfloat16":
        return array
    bits = np.ascontiguousarray(array).view(np.uint32)
    near = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(array), array, near.view(np.float32)).reshape(array.shape)


def groups_of(workload: Workload, operation: Operation) -> tuple[tuple[int, ...], ...]:
    """Ranks of each group that runs the collective `operation`."""
    return workload.grid.groups(workload.grid.dims_of(operation.group, where=operation.name))


def _whole(workload: Workload, operation: Operation, parts: Sequence[Piece]) -> Piece:
    """Combine the pieces of a group's ranks: sum them for a reduction, else join the slices."""
    (tensor,) = workload.operands(operation)
    if operation.kind in ("allreduce", "reduce_scatter"):
        return Piece(rounded(np.sum([part.array for part in parts], axis=0), tensor), parts[0].places)
    over = workload.grid.dims_of(operation.group, where=operation.name)
    return join(parts, int(tensor.along(over[0]).removeprefix("sliced(").removesuffix(")")))


def places_read(
    operation: Operation, out: Tensor, tensors: Sequence[Tensor], held: Sequence[Any], wanted: Any
) -> list[tuple[Any, ...]]:
    """Global indices, by axis, at which a rank reads each operand to compute the wanted part of the result.

    - `out`, `tensors`: The result and the operands.
    - `held`: Indices of the rank's part of each operand, by axis.
    - `wanted`: Indices of the result to compute, by axis.
    """
    labels, needs = labels_of(operation, tensors, out), []
    for at, here in enumerate(held):
        axes = operand_axes(operation, tensors, out, at)
        lengths = [
            (n, out.shape[to or 0] if out.shape else 1) for n, to in zip(tensors[at].shape, axes, strict=True)
        ]
        needs.append(
            [here[i] if to is None else _blocks(wanted[to], *lengths[i]) for i, to in enumerate(axes)]
        )
    for axes_of in inner_axes(labels).values():
        # If one operand is sliced along an inner (summed) axis, the same slice of the others is read.
        least = min((held[at][axis] for at, axis in axes_of.items()), key=len)
        for at, axis in axes_of.items():
            needs[at][axis] = least
    return [tuple(each) for each in needs]


def _blocks(wanted: Any, length: int, out_length: int) -> Any:
    """Indices along an operand's axis that correspond to the wanted indices along the result's axis.

    If the axes differ in length, each index of the shorter axis corresponds to a block of the longer axis.

    - `length`, `out_length`: Lengths of the operand's and the result's axis.
    """
    if length == out_length:
        return wanted
    here = np.asarray(wanted, dtype=np.int64)
    if length > out_length:
        block = length // out_length
        return (here[:, None] * block + np.arange(block)).ravel()
    return np.unique(here // (out_length // length))


def _calculated(
    workload: Workload, operation: Operation, parts: Sequence[Piece], rank: int, wanted: Places
) -> Piece:
    """Compute one rank's piece of an operation's result.

    - `parts`: The rank's piece of each operand.
    - `wanted`: Indices of the result to compute, by axis.
    """
    out, tensors = workload.tensors[operation.name], workload.operands(operation)
    needs = places_read(operation, out, tensors, [part.places for part in parts], wanted)
    read = [taken(part, need) for part, need in zip(parts, needs, strict=True)]
    if operation.kind == "compute":  # an operand none of whose axes match contributes its mean
        apart = (set(operand_axes(operation, tensors, out, at)) == {None} for at in range(len(read)))
        read = [value.mean() if each else value for value, each in zip(read, apart, strict=True)]
    place = workload.grid.index(rank, workload.grid.partial(out))

    def drawn(*seed: int) -> Array:
        numbers = np.random.default_rng((operation.seed or 0, *seed)).random(out.shape)
        return numbers[np.ix_(*wanted)] if wanted else np.asarray(numbers)

    if operation.kind == "compute":  # its kernel is unknown: the result is random numbers plus the operands
        return Piece(rounded(sum(read, start=drawn(place)), out), wanted)
    free = free_axes(operation, tensors, out)
    shape = tuple(out.shape[axis] if axis in free else len(here) for axis, here in enumerate(wanted))
    values = value_of(operation, read, needs, shape, drawn)
    for axis in free:
        values = np.take(values, wanted[axis], axis=axis)
    return Piece(rounded(values, out), wanted)
