"""What a step means: its operations carried out on arrays of numpy, on what every rank has of each tensor.

A rank has a *part* of a tensor: an array, and for each axis the places of the whole array that it holds. What
an operation needs is found by those places; so slices and tiles need no code of their own.
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

    from taccl.workload.operations import Operation, Tensor
    from taccl.workload.workload import Workload

    Array = NDArray[Any]
    Places = tuple[NDArray[np.int64], ...]

__all__ = ["Part", "assembled", "carry_out", "join", "places", "random_inputs", "run_workload", "taken"]


@dataclass(frozen=True, slots=True)
class Part:
    """An array, and the places that it holds along each axis of the whole one."""

    array: Array
    places: Places


@checked_as(WorkloadError)
def run_workload(
    workload: Workload, inputs: Mapping[str, Any] | None = None, *, seed: int = 0
) -> dict[str, list[Array]]:
    """What every rank has of every tensor when the step has run: for each name a list of arrays, by rank.

    Parameters
    ----------
    workload : Workload
        What is run, overlapped operations tile by tile.
    inputs : mapping of str to list of array, optional
        What each rank has of each input; by default `random_inputs`.
    seed : int
        Of those.

    Raises
    ------
    WorkloadError
        If an input is missing, or has another shape.
    """
    given = random_inputs(workload, seed=seed) if inputs is None else inputs
    ranks = range(workload.num_ranks)
    held: dict[str, list[Part]] = {}
    for tensor in workload.inputs:
        if tensor.name not in given or len(given[tensor.name]) != workload.num_ranks:
            raise WorkloadError(
                f"expected an array of it for each of {workload.num_ranks} ranks", where=tensor.name
            )
        held[tensor.name] = []
        for rank, array in enumerate(given[tensor.name]):
            here = places(tensor, rank, workload.num_ranks)
            array = np.asarray(array, dtype=_dtype(tensor))
            if array.shape != tuple(map(len, here)):
                said = f"found shape {array.shape} at rank {rank}; expected {tuple(map(len, here))}"
                raise WorkloadError(said, where=tensor.name)
            held[tensor.name].append(Part(array, here))
    for unit in workload.units:
        tiles = workload.tiles_of.get(unit[0].name, (1, 0))[0]
        pieces: dict[str, list[list[Part]]] = {operation.name: [] for operation in unit}
        for tile in range(tiles):
            now = dict(held)
            for operation in unit:
                now[operation.name] = [
                    carry_out(workload, operation, now, rank, places_of_tile(workload, operation, rank, tile))
                    for rank in ranks
                ]
                pieces[operation.name].append(now[operation.name])
        for name, made in pieces.items():
            axis = workload.tiles_of.get(name, (1, 0))[1]
            held[name] = [join([parts[rank] for parts in made], axis) for rank in ranks]
    return {name: [part.array for part in parts] for name, parts in held.items()}


@checked_as(WorkloadError)
def random_inputs(workload: Workload, *, seed: int = 0) -> dict[str, list[Array]]:
    """Arrays of every rank for every input: normal, of partial tensors another one at each rank."""
    source = np.random.default_rng(seed)
    found = {}
    for tensor in workload.inputs:
        count = workload.num_ranks if tensor.layout == "partial" else 1
        # Whole arrays are drawn, so that they do not depend on whether they are sliced.
        drawn = [source.normal(size=tensor.shape).astype(_dtype(tensor)) for _ in range(count)]
        whole = tuple(np.arange(length) for length in tensor.shape)
        found[tensor.name] = [
            taken(Part(drawn[rank % count], whole), places(tensor, rank, workload.num_ranks)).copy()
            for rank in range(workload.num_ranks)
        ]
    return found


def assembled(tensor: Tensor, arrays: Sequence[Array]) -> Array:
    """The array that a tensor stands for, from what every rank has of it."""
    if tensor.axis is not None:
        return np.concatenate(arrays, axis=tensor.axis)
    if tensor.layout == "partial":
        total: Array = np.sum(np.stack(arrays), axis=0)
        return total
    return arrays[0]


def places(tensor: Tensor, rank: int, num_ranks: int) -> Places:
    """What a rank has of a tensor."""
    whole = [np.arange(length) for length in tensor.shape]
    if tensor.axis is not None:
        whole[tensor.axis] = np.split(whole[tensor.axis], num_ranks)[rank]
    return tuple(whole)


def places_of_tile(workload: Workload, operation: Operation, rank: int, tile: int) -> Places:
    """What one tile of an operation makes at a rank."""
    tensor = workload.tensors[operation.name]
    here = places(tensor, rank, workload.num_ranks)
    if operation.name not in workload.tiles_of:
        return here
    tiles, axis = workload.tiles_of[operation.name]
    # A tile has a part of each slice, if anything is sliced along its axis.
    ways = workload.tile_ways[operation.name]
    of_tile = np.arange(tensor.shape[axis]).reshape(ways, tiles, -1)[:, tile].ravel()
    return (*here[:axis], np.intersect1d(here[axis], of_tile), *here[axis + 1 :])


def taken(part: Part, wanted: Places) -> Array:
    """The values at some places, which the part holds."""
    array = part.array
    for axis, (held, want) in enumerate(zip(part.places, wanted, strict=True)):
        if len(held) != len(want) or not np.array_equal(held, want):
            at = np.searchsorted(held, want)
            assert np.array_equal(held[np.minimum(at, len(held) - 1)], want), "places that are not held"
            array = np.take(array, at, axis=axis)
    return array


def join(parts: Sequence[Part], axis: int) -> Part:
    """Parts that differ along one axis, as one; its places in order."""
    if len(parts) == 1:
        return parts[0]
    along = np.concatenate([part.places[axis] for part in parts])
    order = np.argsort(along)
    array = np.take(np.concatenate([part.array for part in parts], axis=axis), order, axis=axis)
    here = parts[0].places
    return Part(array, (*here[:axis], along[order], *here[axis + 1 :]))


def carry_out(
    workload: Workload, operation: Operation, held: Mapping[str, Sequence[Part]], rank: int, wanted: Places
) -> Part:
    """What an operation makes at one rank at some places.

    Parameters
    ----------
    held : mapping of str to sequence of Part
        What each rank has of every tensor that is read.
    """
    out = workload.tensors[operation.name]
    if operation.is_collective:
        array = _exchanged(workload, operation, held, wanted)
    elif operation.kind == "compute":
        array = _computed(workload, operation, held, rank, wanted)
    else:
        array = _calculated(workload, operation, [held[name][rank] for name in operation.inputs], wanted)
    return Part(np.asarray(array, dtype=_dtype(out)), wanted)


def _dtype(tensor: Tensor) -> str:
    # numpy has no bfloat16; float32 holds all of its values.
    return "float32" if tensor.dtype == "bfloat16" else tensor.dtype


def _whole(tensor: Tensor, parts: Sequence[Part]) -> Part:
    """What ranks have together."""
    if tensor.layout == "partial":
        total: Array = np.sum(np.stack([part.array for part in parts]), axis=0)
        return Part(total, parts[0].places)
    return parts[0] if tensor.axis is None else join(parts, tensor.axis)


def _exchanged(
    workload: Workload, operation: Operation, held: Mapping[str, Sequence[Part]], wanted: Places
) -> Array:
    tensor = workload.tensors[operation.inputs[0]]
    whole = _whole(tensor, held[tensor.name])
    if operation.kind == "send":
        axis = tensor.axis
        assert axis is not None
        length = tensor.shape[axis]
        by = operation.shift * (length // workload.num_ranks)
        moved = (wanted[axis] - by) % length
        return taken(whole, (*wanted[:axis], moved, *wanted[axis + 1 :]))
    return taken(whole, wanted)


def _computed(
    workload: Workload, operation: Operation, held: Mapping[str, Sequence[Part]], rank: int, wanted: Places
) -> Array:
    """Numbers of its own, and all that it reads, in the layout asked for: it stands for some kernel."""
    out = workload.tensors[operation.name]
    share = workload.num_ranks if out.layout == "partial" else 1
    own = np.random.default_rng((operation.seed, rank if share > 1 else 0)).random(out.shape)
    total = own[np.ix_(*wanted)] if wanted else own
    for tensor in workload.operands(operation):
        whole = _whole(tensor, held[tensor.name])
        read = taken(whole, wanted) if tensor.shape == out.shape else whole.array.mean()
        total = total + read / share
    return np.asarray(total)


def _calculated(workload: Workload, operation: Operation, parts: Sequence[Part], wanted: Places) -> Array:
    kind, out = operation.kind, workload.tensors[operation.name]
    tensors = workload.operands(operation)
    read = []
    for at, part in enumerate(parts):
        axes = operand_axes(operation, tensors, out, at)
        need = [part.places[i] if axis is None else wanted[axis] for i, axis in enumerate(axes)]
        if kind == "matmul":
            inner = len(axes) - (1 if at == 0 else 2)
            other = parts[1 - at].places[-2 if at == 0 else -1]
            # Where one of the two is sliced along the axis that is summed over, so is what is read of the
            # other.
            if len(other) < len(need[inner]):
                need[inner] = other
        read.append(taken(part, tuple(need)))
    a = read[0]
    value = 0.0 if operation.value is None else operation.value
    if kind == "matmul":
        return np.asarray(np.matmul(a, read[1]))
    if kind == "layernorm":
        spread = a.std(axis=-1, keepdims=True)
        rows = (a - a.mean(axis=-1, keepdims=True)) / np.sqrt(spread**2 + 1e-5)
        # A tile of columns takes whole rows.
        return taken(Part(rows, (*wanted[:-1], parts[0].places[-1])), wanted)
    if kind in ("norm", "sum_of_squares"):
        total = np.sum(np.square(a))
        return np.asarray(np.sqrt(total) if kind == "norm" else total)
    if kind == "dropout":
        drawn = np.random.default_rng(operation.seed).random(out.shape)
        kept = (drawn[np.ix_(*wanted)] if wanted else drawn) >= value
        return np.where(kept, a / (1 - value), 0)
    if len(read) == 2:
        function: Any = getattr(np, kind)
        return np.asarray(function(a, read[1]))
    if kind == "gelu":
        return np.asarray(a / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (a + 0.044715 * a**3))))
    unary: dict[str, Any] = {
        "relu": lambda: np.maximum(a, 0), "tanh": lambda: np.tanh(a), "square": lambda: np.square(a),
        "sqrt": lambda: np.sqrt(a), "scale": lambda: a * value, "offset": lambda: a + value,
    }  # fmt: skip
    return np.asarray(unary[kind]())
