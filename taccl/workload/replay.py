"""A scheduled step carried out: tiles computed on arrays, chunks moved by its sends, in the order of time.

What a rank sends is what it has at that moment; so the result is that of the workload only if the schedule is
right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taccl.errors import WorkloadError
from taccl.workload.meaning import Part, carry_out, join, places, places_of_tile, random_inputs, taken

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from taccl.workload.exchange import Part as Chunks
    from taccl.workload.meaning import Places
    from taccl.workload.operations import Operation
    from taccl.workload.step import Step

    Array = NDArray[Any]

__all__ = ["Rank", "replay_step"]


def replay_step(
    step: Step, inputs: Mapping[str, Any] | None = None, *, seed: int = 0
) -> dict[str, list[Array]]:
    """What every rank has of every output of a step when all its sends have come.

    Parameters
    ----------
    step : Step
        Verified; of what it computes, every `compute` reads replicated tensors alone.
    inputs : mapping of str to list of array, optional
        What each rank has of each input; by default `random_inputs`.
    seed : int
        Of those.

    Raises
    ------
    WorkloadError
        If a rank sends or reads what it does not have at that moment.
    """
    given = random_inputs(step.workload, seed=seed) if inputs is None else inputs
    numbers = range(step.workload.num_ranks)
    ranks = [Rank(step, rank, {name: given[name][rank] for name in given}) for rank in numbers]
    schedule = step.schedule
    if schedule is not None:
        links = step.topology.links
        moments = [(int(t), 0, i) for i, t in enumerate(schedule.end)]
        moments += [(int(t), 1, i) for i, t in enumerate(schedule.start)]
        under_way: dict[int, Array] = {}
        for _, starts, i in sorted(moments):
            chunk, link = int(schedule.chunk[i]), links[int(schedule.link[i])]
            if starts:
                every = [ranks[rank].held(chunk) for rank in link.srcs]
                under_way[i] = np.sum(every, axis=0, dtype=every[0].dtype)
                continue
            for rank in link.dsts:
                ranks[rank].receive(chunk, under_way[i], reduce=bool(schedule.reduce[i]))
            del under_way[i]
    return {name: [each.tensor(name).array for each in ranks] for name in step.workload.outputs}


class Rank:
    """What one rank has: its inputs, chunks, and the tiles made of them, each when it is first asked for."""

    def __init__(self, step: Step, rank: int, inputs: Mapping[str, Array]) -> None:
        self.step, self.workload, self.rank = step, step.workload, rank
        ranks = self.workload.num_ranks
        self.inputs = {
            each.name: Part(np.asarray(inputs[each.name]), places(each, rank, ranks))
            for each in self.workload.inputs
        }
        self.chunks: dict[int, Array] = {}
        self.made: dict[tuple[str, int], Part] = {}
        self.part_of = [part for part in step.parts for _ in range(part.chunks)]
        self.pieces = {
            part.operation: 1 + max(p.tile for p in step.parts if p.operation == part.operation)
            for part in step.parts
        }

    def held(self, chunk: int) -> Array:
        """A chunk as the rank has it now."""
        if chunk not in self.chunks:
            assert self.step.schedule is not None
            part = self.part_of[chunk]
            if self.rank not in self.step.schedule.problem.collective.chunks[chunk].origins:
                said = f"rank {self.rank} has no chunk {chunk} of it yet; verify the step"
                raise WorkloadError(said, where=part.operation)
            name = self.workload.operation[part.operation].inputs[0]
            tile = self._tile(part)
            source = self._read(self.workload.operation[part.operation], name, tile)
            self.chunks[chunk] = self._cut(taken(source, self._places(part, chunk)), part, chunk)
        return self.chunks[chunk]

    def blank(self, chunk: int) -> Array:
        """Room for a chunk, of its size and type."""
        part = self.part_of[chunk]
        tensor = self.workload.tensors[part.operation]
        dtype = "float32" if tensor.dtype == "bfloat16" else tensor.dtype
        size = int(np.prod([len(axis) for axis in self._places(part, chunk)]))
        return self._cut(np.empty(size, dtype=dtype), part, chunk)

    def receive(self, chunk: int, data: Array, *, reduce: bool) -> None:
        """A chunk that comes is added to what is here, or takes its place."""
        self.chunks[chunk] = self.held(chunk) + data if reduce else data

    def tensor(self, name: str) -> Part:
        """All that the rank has of a tensor."""
        if name in self.inputs:
            return self.inputs[name]
        tiles, axis = self.workload.tiles_of.get(name, (1, 0))
        return join([self.tile(name, tile) for tile in range(tiles)], axis)

    def tile(self, name: str, tile: int) -> Part:
        """A tile of what an operation makes."""
        if (name, tile) not in self.made:
            operation = self.workload.operation[name]
            wanted = places_of_tile(self.workload, operation, self.rank, tile)
            if operation.is_collective:
                self.made[name, tile] = self._assembled(operation, tile, wanted)
            else:
                read = {each: {self.rank: self._read(operation, each, tile)} for each in operation.inputs}
                if operation.kind == "compute":
                    if any(each.layout != "replicated" for each in self.workload.operands(operation)):
                        said = "reads more than one rank has, as it stands for a kernel that is not known"
                        raise WorkloadError(f"{said}; it cannot be replayed", where=name)
                    every = {each: [mine[self.rank]] for each, mine in read.items()}
                    self.made[name, tile] = carry_out(self.workload, operation, every, self.rank, wanted)
                else:
                    self.made[name, tile] = carry_out(self.workload, operation, read, self.rank, wanted)  # type: ignore[arg-type]
        return self.made[name, tile]

    def _read(self, operation: Operation, name: str, tile: int) -> Part:
        overlap = next((each for each in self.workload.overlaps if operation.name in each.operations), None)
        inside = overlap is not None and name in overlap.operations
        return self.tile(name, tile) if inside else self.tensor(name)

    def _tile(self, part: Chunks) -> int:
        return part.tile if part.operation in self.workload.tiles_of else 0

    def _places(self, part: Chunks, chunk: int) -> Places:
        """Where the values of a chunk, and of other pieces of its like, are in the collective's input."""
        workload = self.workload
        operation = workload.operation[part.operation]
        ranks, number = workload.num_ranks, chunk - part.first
        tensor, tile = workload.tensors[operation.inputs[0]], self._tile(part)
        if operation.kind == "alltoall":
            source, target = divmod(number, ranks)
            out = places_of_tile(workload, operation, target, tile)
            mine = places(tensor, source, ranks)
            return tuple(np.intersect1d(a, b) for a, b in zip(out, mine, strict=True))
        if operation.kind in ("allgather", "send"):
            mine = places(tensor, number, ranks)
            target = number if operation.kind == "allgather" else (number + operation.shift) % ranks
            out = places_of_tile(workload, operation, target, tile)
            if operation.kind == "allgather":
                return tuple(np.intersect1d(a, b) for a, b in zip(out, mine, strict=True))
            assert tensor.axis is not None
            length = tensor.shape[tensor.axis]
            by = operation.shift * (length // ranks)
            moved = np.sort((out[tensor.axis] - by) % length)
            return (*out[: tensor.axis], moved, *out[tensor.axis + 1 :])
        return places_of_tile(workload, operation, number if operation.kind == "reduce_scatter" else 0, tile)

    def _cut(self, values: Array, part: Chunks, chunk: int) -> Array:
        """The chunk's share of the values: its piece, and of an allreduce that of its root."""
        return self._pieces(values.ravel(), part)[self._number(part, chunk)]

    def _number(self, part: Chunks, chunk: int) -> int:
        piece = 0 if part.operation in self.workload.tiles_of else part.tile
        is_sum = self.workload.operation[part.operation].kind == "allreduce"
        return piece * part.chunks + chunk - part.first if is_sum else piece

    def _pieces(self, values: Array, part: Chunks) -> list[Array]:
        pieces = 1 if part.operation in self.workload.tiles_of else self.pieces[part.operation]
        is_sum = self.workload.operation[part.operation].kind == "allreduce"
        return np.array_split(values, pieces * (part.chunks if is_sum else 1))

    def _assembled(self, operation: Operation, tile: int, wanted: Places) -> Part:
        """What the chunks that are wanted here make together."""
        assert self.step.schedule is not None
        collective, out = self.step.schedule.problem.collective, self.workload.tensors[operation.name]
        whole = np.empty(out.shape, dtype="float32" if out.dtype == "bfloat16" else out.dtype)
        found: dict[int, dict[int, Array]] = {}  # by number of the chunk in its part
        where: dict[int, Places] = {}
        for part in self.step.parts:
            if part.operation != operation.name or self._tile(part) != tile:
                continue
            for chunk in range(part.first, part.first + part.chunks):
                if self.rank in collective.chunks[chunk].destinations:
                    key = 0 if operation.kind == "allreduce" else chunk - part.first
                    found.setdefault(key, {})[self._number(part, chunk)] = self.held(chunk)
                    where[key] = self._places(part, chunk)
        for key, pieces in found.items():
            here = where[key]
            if operation.kind == "send":
                here = wanted
            values = np.concatenate([pieces[number] for number in sorted(pieces)])
            whole[np.ix_(*here) if here else ()] = values.reshape(tuple(map(len, here)))
        return Part(whole[np.ix_(*wanted)] if wanted else whole, wanted)
