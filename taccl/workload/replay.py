"""A scheduled step carried out: tiles computed on arrays, chunks moved by its sends, in the order of time.

What a rank sends is what it has at that moment; so the result is that of the workload only if the schedule is
right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taccl.arguments import checked_as
from taccl.errors import WorkloadError
from taccl.workload.meaning import Piece, RankTiles, dtype_of, given_parts, places, places_of_tile, sent_from

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from taccl.arguments import Natural
    from taccl.schedule.schedule import Transfer
    from taccl.workload.exchange import CollectivePart
    from taccl.workload.step import Step

    Array = NDArray[Any]
    #: Places in the whole array, flattened.
    Flat = NDArray[np.int64]


@checked_as(WorkloadError)
def replay_step(
    step: Step, inputs: Mapping[str, Sequence[Any]] | None = None, *, seed: Natural = 0
) -> dict[str, list[Array]]:
    """What every rank has of every output of a step when all its sends have come.

    Parameters
    ----------
    step : Step
        Verified.
    inputs : mapping of str to list of array, optional
        What each rank has of each input; by default random numbers.
    seed : int
        Of those.

    Raises
    ------
    WorkloadError
        If a rank sends or reads what it does not have at that moment.
    """
    given = given_parts(step.workload, inputs, seed=seed)
    ranks = [StepRank(step, rank, given) for rank in range(step.workload.num_ranks)]
    under_way: dict[int, Array] = {}
    for number, starts, transfer in moments(step):
        link = step.topology.links[transfer.link]
        if starts:
            every = [ranks[rank].held(transfer.chunk) for rank in link.srcs]
            under_way[number] = np.sum(every, axis=0, dtype=every[0].dtype)
            continue
        for rank in link.dsts:
            ranks[rank].receive(transfer, under_way[number])
        del under_way[number]
    return {name: [each.tensor(name).array for each in ranks] for name in step.workload.outputs}


def moments(step: Step) -> Iterator[tuple[int, bool, Transfer]]:
    """The start and the end of every transfer, in the order of time; ends first."""
    transfers = list(step.schedule or ())
    ends = [(each.end_ticks, False, number) for number, each in enumerate(transfers)]
    starts = [(each.start_ticks, True, number) for number, each in enumerate(transfers)]
    for _, is_start, number in sorted(ends + starts):
        yield number, is_start, transfers[number]


class StepRank(RankTiles):
    """What one rank has, and the chunks that have come to it."""

    def __init__(self, step: Step, rank: int, inputs: Mapping[str, Sequence[Piece]]) -> None:
        super().__init__(step.workload, rank, inputs)
        self.step = step
        self.chunks: dict[int, Array] = {}
        self.part_of = [part for part in step.parts for _ in part.chunks]
        self.whole: dict[tuple[str, int], Array] = {}

    def held(self, chunk: int) -> Array:
        """A chunk as the rank has it now."""
        if chunk not in self.chunks:
            assert self.step.schedule is not None
            part = self.part_of[chunk]
            if self.rank not in self.step.schedule.problem.collective.chunks[chunk].origins:
                said = f"rank {self.rank} has no chunk {chunk} of it yet; verify the step"
                raise WorkloadError(said, where=part.operation)
            self.chunks[chunk] = self._source(part)[self._places(part, chunk)[0]]
        return self.chunks[chunk]

    def room(self, chunk: int) -> Array:
        """An empty array for a chunk."""
        part = self.part_of[chunk]
        dtype = dtype_of(self.workload.tensors[part.operation])
        return np.empty(len(self._places(part, chunk)[0]), dtype=dtype)

    def receive(self, transfer: Transfer, data: Array) -> None:
        """A chunk that comes is added to what is here, or takes its place."""
        chunk = transfer.chunk
        self.chunks[chunk] = self.held(chunk) + data if transfer.reduce else data

    def tile(self, name: str, number: int) -> Piece:
        """A tile of what an operation makes; of a collective as its chunks bring it."""
        key = (name, number)
        if key not in self.made and (operation := self.workload.operation[name]).is_collective:
            wanted = places_of_tile(self.workload, operation, self.rank, number)
            out = self.workload.tensors[name]
            whole = np.empty(out.shape, dtype=dtype_of(out))
            assert self.step.schedule is not None
            ends = self.step.schedule.problem.collective.chunks
            for chunk in self.step.chunks[key]:
                if self.rank in ends[chunk].destinations:
                    whole.reshape(-1)[self._places(self.part_of[chunk], chunk)[1]] = self.held(chunk)
            self.made[key] = Piece(whole[np.ix_(*wanted)] if wanted else whole, wanted)
        return super().tile(name, number)

    def _source(self, part: CollectivePart) -> Array:
        """What the rank has of a collective's input, flat at its places of the whole array."""
        key = (part.operation, part.tile)
        if key not in self.whole:
            (mine,) = self.read(part.operation, part.tile)
            tensor = self.workload.tensors[part.operation]
            whole = np.empty(tensor.shape, dtype=dtype_of(tensor))
            whole[np.ix_(*mine.places) if mine.places else ()] = mine.array
            self.whole[key] = whole.reshape(-1)
        return self.whole[key]

    def _places(self, part: CollectivePart, chunk: int) -> tuple[Flat, Flat]:
        """Where the values of a chunk are in the collective's input, and in its result."""
        workload, ranks = self.workload, self.workload.num_ranks
        operation, number = workload.operation[part.operation], chunk - part.first
        kind, given = operation.kind, workload.operands(operation)[0]
        source, target = divmod(number, ranks) if kind == "alltoall" else (number, number)
        if kind == "send":
            target = (number + operation.shift) % ranks
        written = places_of_tile(workload, operation, target, part.tile)
        if kind != "send":
            both = zip(written, places(given, source, ranks), strict=True)
            written = tuple(np.intersect1d(one, two) for one, two in both)
        # An allreduce is cut into chunks by their roots, and everything into its pieces.
        share, of = (number, part.count) if kind == "allreduce" else (0, 1)
        found = []
        for axes in (sent_from(workload, operation, written), written):
            flat = (
                np.ravel_multi_index(np.ix_(*axes), given.shape).ravel() if axes else np.zeros(1, dtype=int)
            )
            found.append(np.array_split(flat, part.pieces * of)[part.piece * of + share])
        return found[0], found[1]
