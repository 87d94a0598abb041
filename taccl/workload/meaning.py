"""What a step means: its operations carried out on arrays of numpy, on what every rank has of each tensor.

A rank has a *piece* of a tensor: an array, and for each axis the places of the whole array that it holds.
What an operation needs is found by those places; so slices and tiles need no code of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl.arguments import checked_as
from taccl.errors import WorkloadError
from taccl.workload.operations import operand_axes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from taccl.arguments import Natural
    from taccl.workload.operations import Operation, Tensor
    from taccl.workload.workload import Workload

    Array = NDArray[Any]
    Places = tuple[NDArray[np.int64], ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """An array, and the places that it holds along each axis of the whole one."""

    array: Array
    places: Places


def run_workload(
    workload: Workload, inputs: Mapping[str, Sequence[Any]] | None, *, seed: int
) -> dict[str, list[Array]]:
    """What `Workload.run` returns; overlapped operations run tile by tile."""
    given = given_parts(workload, inputs, seed=seed)
    ranks = [RankTiles(workload, rank, given) for rank in range(workload.num_ranks)]
    for name, number in workload.tiles:
        operation = workload.operation[name]
        if operation.is_collective:
            whole = _whole(workload.operands(operation)[0], [each.read(name, number)[0] for each in ranks])
        for each in ranks:
            if operation.is_collective:
                here = places(workload, name, each.rank, number)
                each.made[name, number] = Piece(taken(whole, sent_from(workload, operation, here)), here)
            else:
                each.tile(name, number)
    return {name: [each.tensor(name).array for each in ranks] for name in workload.tensors}


class RankTiles:
    """What one rank has: inputs, what collectives bring (`made`), and tiles of both, made when asked for."""

    def __init__(self, workload: Workload, rank: int, inputs: Mapping[str, Sequence[Piece]]) -> None:
        self.workload, self.rank = workload, rank
        self.made = {(name, 0): parts[rank] for name, parts in inputs.items()}

    def tensor(self, name: str) -> Piece:
        """All that the rank has of a tensor."""
        cut = self.workload.tiling(name)
        return join([self.tile(name, number) for number in range(cut.tiles)], cut.axis)

    def tile(self, name: str, number: int) -> Piece:
        """A tile of what an operation makes."""
        if (name, number) not in self.made:
            operation = self.workload.operation[name]
            wanted = places(self.workload, name, self.rank, number)
            read = self.read(name, number)
            self.made[name, number] = _calculated(self.workload, operation, read, self.rank, wanted)
        return self.made[name, number]

    def read(self, name: str, number: int) -> list[Piece]:
        """What the rank has of each input of an operation for one tile of it."""
        keys = self.workload.tiles[name, number]
        return [
            join([self.tile(*key) for key in keys if key[0] == source], self.workload.tiling(source).axis)
            for source in self.workload.operation[name].inputs
        ]


def given_parts(
    workload: Workload, inputs: Mapping[str, Any] | None, *, seed: int = 0
) -> dict[str, list[Piece]]:
    """What every rank is given of every input; `WorkloadError` if that is not what it should have."""
    given = random_inputs(workload, seed=seed) if inputs is None else inputs
    found: dict[str, list[Piece]] = {}
    for tensor in workload.inputs:
        where = f"inputs: {tensor.name}"
        if tensor.name not in given or len(given[tensor.name]) != workload.num_ranks:
            said = f"expected an array of it for each of {workload.num_ranks} ranks; give all of them"
            raise WorkloadError(said, where=where)
        found[tensor.name] = []
        for rank, array in enumerate(given[tensor.name]):
            here = places(workload, tensor.name, rank)
            wanted = tuple(map(len, here))
            if np.shape(array) != wanted:
                said = f"found shape {np.shape(array)} at rank {rank}; expected {wanted}"
                raise WorkloadError(said, where=where)
            found[tensor.name].append(Piece(np.asarray(array, dtype=dtype_of(tensor)), here))
    return found


@checked_as(WorkloadError)
def random_inputs(workload: Workload, *, seed: Natural = 0) -> dict[str, list[Array]]:
    """Arrays of every rank for every input: normal, of partial tensors another one at each rank."""
    source = np.random.default_rng(seed)
    found = {}
    for tensor in workload.inputs:
        count = workload.num_ranks if tensor.layout == "partial" else 1
        # Whole arrays are drawn, so that they do not depend on whether they are sliced.
        drawn = [source.normal(size=tensor.shape).astype(dtype_of(tensor)) for _ in range(count)]
        if tensor.axis is not None:
            drawn = np.split(drawn[0], workload.num_ranks, axis=tensor.axis)
        found[tensor.name] = [drawn[rank % len(drawn)].copy() for rank in range(workload.num_ranks)]
    return found


def places(workload: Workload, name: str, rank: int, tile: int | None = None) -> Places:
    """What a rank has of a tensor, or of one tile of it."""
    tensor, cut = workload.tensors[name], workload.tiling(name)
    here = [np.arange(length) for length in tensor.shape]
    if tensor.axis is not None:
        here[tensor.axis] = np.split(here[tensor.axis], workload.num_ranks)[rank]
    if tile is not None and cut.overlap is not None:
        # A tile has a part of each slice, if anything is sliced along its axis.
        of_tile = np.arange(tensor.shape[cut.axis]).reshape(cut.ways, cut.tiles, -1)[:, tile]
        here[cut.axis] = np.intersect1d(here[cut.axis], of_tile)
    return tuple(here)


def taken(part: Piece, wanted: Places) -> Array:
    """The values at some places, which the part holds."""
    array = part.array
    for axis, (held, want) in enumerate(zip(part.places, wanted, strict=True)):
        if len(held) != len(want) or not np.array_equal(held, want):
            at = np.searchsorted(held, want)
            assert np.array_equal(held[np.minimum(at, len(held) - 1)], want), "places that are not held"
            array = np.take(array, at, axis=axis)
    return array


def join(parts: Sequence[Piece], axis: int) -> Piece:
    """Parts that differ along one axis, as one; its places in order."""
    if len(parts) == 1:
        return parts[0]
    along = np.concatenate([part.places[axis] for part in parts])
    order = np.argsort(along)
    array = np.take(np.concatenate([part.array for part in parts], axis=axis), order, axis=axis)
    here = parts[0].places
    return Piece(array, (*here[:axis], along[order], *here[axis + 1 :]))


def dtype_of(tensor: Tensor) -> str:
    """The type of numpy's: it has no bfloat16, and float32 holds all values of that."""
    return "float32" if tensor.dtype == "bfloat16" else tensor.dtype


def _whole(tensor: Tensor, parts: Sequence[Piece]) -> Piece:
    """What ranks have together."""
    if tensor.layout == "partial":
        return Piece(np.sum([part.array for part in parts], axis=0), parts[0].places)
    return parts[0] if tensor.axis is None else join(parts, tensor.axis)


def sent_from(workload: Workload, operation: Operation, wanted: Places) -> Places:
    """The places in a collective's input of what is at some places of its result."""
    tensor = workload.tensors[operation.name]
    if operation.kind != "send" or tensor.axis is None:
        return wanted
    axis, length = tensor.axis, tensor.shape[tensor.axis]
    by = operation.shift * (length // workload.num_ranks)
    return (*wanted[:axis], (wanted[axis] - by) % length, *wanted[axis + 1 :])


def places_read(
    operation: Operation, out: Tensor, tensors: Sequence[Tensor], held: Sequence[Any], wanted: Any
) -> list[tuple[Any, ...]]:
    """Where a rank reads each of some tensors, of which it holds places, for some places of the result."""
    needs = []
    for at, here in enumerate(held):
        axes = operand_axes(operation, tensors, out, at)
        needs.append([here[i] if axis is None else wanted[axis] for i, axis in enumerate(axes)])
    if operation.kind == "matmul":
        # Where one of the two is sliced along the axis that is summed over, so is what is read of the other.
        needs[0][-1] = needs[1][-2] = min(held[0][-1], held[1][-2], key=len)
    return [tuple(each) for each in needs]


def _calculated(
    workload: Workload, operation: Operation, parts: Sequence[Piece], rank: int, wanted: Places
) -> Piece:
    """What an operation that moves nothing makes at one rank at some places.

    - `parts`: What the rank has of each tensor that is read.
    """
    out, tensors = workload.tensors[operation.name], workload.operands(operation)
    needs = places_read(operation, out, tensors, [part.places for part in parts], wanted)
    read = [taken(part, need) for part, need in zip(parts, needs, strict=True)]
    if operation.kind == "compute":  # what is not read at the places of the result counts as one number
        apart = (set(operand_axes(operation, tensors, out, at)) == {None} for at in range(len(read)))
        read = [value.mean() if each else value for value, each in zip(read, apart, strict=True)]
    return Piece(np.asarray(_value(operation, out, read, rank, wanted), dtype=dtype_of(out)), wanted)


def _value(operation: Operation, out: Tensor, read: Sequence[Array], rank: int, wanted: Places) -> Any:
    kind, value = operation.kind, operation.value or 0.0

    def drawn(*seed: int) -> Array:
        numbers = np.random.default_rng((operation.seed or 0, *seed)).random(out.shape)
        return numbers[np.ix_(*wanted)] if wanted else np.asarray(numbers)

    if kind == "compute":  # it stands for some kernel: numbers of its own, and what it reads
        return sum(read, start=drawn(rank if out.layout == "partial" else 0))
    a = read[0]
    if kind == "layernorm":
        rows = (a - a.mean(axis=-1, keepdims=True)) / np.sqrt(a.var(axis=-1, keepdims=True) + 1e-5)
        # A tile of columns takes whole rows.
        return rows[..., wanted[-1]]
    if kind == "gelu":
        return a / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (a + 0.044715 * a**3)))
    if kind in ("norm", "sum_of_squares"):
        total = np.sum(np.square(a))
        return np.sqrt(total) if kind == "norm" else total
    simple: dict[str, Any] = {
        "relu": lambda: np.maximum(a, 0), "scale": lambda: a * value, "offset": lambda: a + value,
        "dropout": lambda: np.where(drawn() >= value, a / (1 - value), 0),
    }  # fmt: skip
    return simple[kind]() if kind in simple else getattr(np, kind)(*read)
