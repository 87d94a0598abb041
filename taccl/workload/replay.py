"""Replay of a scheduled step on arrays: tiles are computed and chunks sent in the order of their times.

A rank sends the data that it holds when the send starts, so the result is right only if the schedule is.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl._internal.arguments import checked_as
from taccl.errors import WorkloadError
from taccl.schedule.contributions import Arrival, bits_of, make_up
from taccl.workload.exchange import parts_by_chunk
from taccl.workload.meaning import Piece, RankTiles, dtype_of, given_parts, places, rounded, taken

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from taccl._internal.arguments import Natural
    from taccl.schedule.schedule import Transfer
    from taccl.workload.meaning import Places
    from taccl.workload.step import Step

    Array = NDArray[Any]


@checked_as(WorkloadError)
def replay_step(
    step: Step, inputs: Mapping[str, Sequence[Any]] | None = None, *, seed: Natural = 0
) -> dict[str, list[Array]]:
    """Outputs of a step at every rank, computed by following its schedule.

    Parameters
    ----------
    step : Step
        A verified step.
    inputs : mapping of str to list of array, optional
        Array of each rank for each input; by default random numbers.
    seed : int
        Seed of the random inputs.

    Returns
    -------
    dict of str to list of array
        {output: array of each rank}.

    Raises
    ------
    WorkloadError
        If a rank sends or reads a chunk before it has arrived.
    """
    given = given_parts(step.workload, inputs, seed=seed)
    ranks = [StepRank(step, rank, given) for rank in range(step.workload.num_ranks)]
    under_way: dict[int, Array] = {}
    for number, starts, transfer in events_in_order(step):
        link = step.topology.links[transfer.link]
        if starts:
            every = [ranks[rank].sent(transfer) for rank in link.srcs]
            under_way[number] = np.sum(every, axis=0, dtype=every[0].dtype)
            continue
        for rank in link.dsts:
            ranks[rank].receive(transfer, under_way[number])
        del under_way[number]
    return {name: [each.tensor(name).array for each in ranks] for name in step.workload.outputs}


def events_in_order(step: Step) -> Iterator[tuple[int, bool, Transfer]]:
    """Yield (index, True for a start, transfer) for the start and end of every transfer, in time order.

    At equal times, ends come before starts.
    """
    transfers = list(step.schedule)
    ends = [(each.end_ticks, False, number) for number, each in enumerate(transfers)]
    starts = [(each.start_ticks, True, number) for number, each in enumerate(transfers)]
    for _, is_start, number in sorted(ends + starts):
        yield number, is_start, transfers[number]


class StepRank(RankTiles):
    """Tensors of one rank, and the chunks that have arrived at the rank."""

    def __init__(self, step: Step, rank: int, inputs: Mapping[str, Sequence[Piece]]) -> None:
        super().__init__(step.workload, rank, inputs)
        self.step, self.ends = step, step.schedule.problem.collective.chunks
        self.part_of = parts_by_chunk(step.workload)
        self.chunks: dict[int, Array] = {}
        #: Arrivals and values of each chunk whose sends name their contributions; they are kept unreduced.
        self.arrived: dict[int, list[tuple[Arrival, Array]]] = defaultdict(list)

    def held(self, chunk: int) -> Array:
        """The rank's current values of a chunk, flattened. Raises `WorkloadError` if it has none."""
        if chunk in self.arrived:
            return self._sum(chunk, self.ends[chunk].origins)
        if chunk not in self.chunks and self.rank not in self.ends[chunk].origins:
            said = f"rank {self.rank} lacks chunk {chunk} of it; verify the step"
            raise WorkloadError(said, where=self.part_of[chunk].operation)
        return self._kept(chunk)

    def sent(self, transfer: Transfer) -> Array:
        """Values that the rank sends in a transfer: the named contributions, or all that it holds."""
        if transfer.contributions is None:
            return self.held(transfer.chunk)
        return self._sum(transfer.chunk, transfer.contributions)

    def _sum(self, chunk: int, ranks: Iterable[int]) -> Array:
        """Sum of the contributions of some ranks to a chunk, composed of arrivals and the rank's own data."""
        arrivals = [each for each, _ in self.arrived.get(chunk, ())]
        if self.rank in self.ends[chunk].origins:
            arrivals.insert(0, Arrival(-1, 1 << self.rank, -1))
        parts = make_up(bits_of(ranks), arrivals)
        if parts is None:
            said = f"rank {self.rank} lacks contributions to chunk {chunk} of it; verify the step"
            raise WorkloadError(said, where=self.part_of[chunk].operation)
        values = [
            self.arrived[chunk][each.send][1] if each.send >= 0 else self._kept(chunk) for each in parts
        ]
        return np.sum(values, axis=0, dtype=values[0].dtype)

    def _kept(self, chunk: int) -> Array:
        """Values of a chunk in place, flattened; first, the rank's own contribution."""
        if chunk not in self.chunks:
            part = self.part_of[chunk]
            (mine,) = self.read(part.operation, part.tile)
            self.chunks[chunk] = self._cut(chunk, taken(mine, self._places(chunk, at_source=True)))
        return self.chunks[chunk]

    def room(self, chunk: int) -> Array:
        """Uninitialised receive buffer for a chunk."""
        dtype = dtype_of(self.workload.tensors[self.part_of[chunk].operation])
        return np.empty(len(self._spots(chunk)), dtype=dtype)

    def receive(self, transfer: Transfer, data: Array) -> None:
        """Receive a chunk: add it to the rank's values, if any, if the transfer reduces, else replace them.

        Named contributions are kept as they arrive.
        """
        chunk = transfer.chunk
        if transfer.contributions is not None:
            here = self.arrived[chunk]
            here.append((Arrival(len(here), bits_of(transfer.contributions), len(here)), data))
            return
        has_own = chunk in self.chunks or self.rank in self.ends[chunk].origins
        self.chunks[chunk] = self.held(chunk) + data if transfer.reduce and has_own else data

    def tile(self, name: str, number: int) -> Piece:
        """The rank's piece of one tile of a result; a collective's piece is assembled from its chunks."""
        key = (name, number)
        if key not in self.made and self.workload.operation[name].is_collective:
            wanted, out = places(self.workload, name, self.rank, number), self.workload.tensors[name]
            whole = np.empty(out.shape, dtype=dtype_of(out))
            for chunk in self.step.chunks[key]:
                if self.rank in self.ends[chunk].destinations:
                    whole.reshape(-1)[self._spots(chunk)] = self.held(chunk)
            here = whole[np.ix_(*wanted)] if wanted else whole
            self.made[key] = Piece(rounded(here, out), wanted)
        return super().tile(name, number)

    def _places(self, chunk: int, *, at_source: bool = False) -> Places:
        """Global indices, by axis, of the part of a collective's tile from which a chunk is cut.

        - `at_source`: For a send, the sender's indices instead of the receiver's.
        """
        part, workload = self.part_of[chunk], self.workload
        members, number = part.place(chunk)
        operation, size = workload.operation[part.operation], len(members)
        if operation.kind == "send":
            end = members[number if at_source else (number + operation.shift) % size]
            return places(workload, part.operation, end, part.tile)
        source, target = divmod(number, size) if operation.kind == "alltoall" else (number, number)
        written = places(workload, part.operation, members[target], part.tile)
        given = places(workload, operation.inputs[0], members[source])
        return tuple(np.intersect1d(one, two) for one, two in zip(written, given, strict=True))

    def _cut(self, chunk: int, values: Array) -> Array:
        """Cut a chunk from the values at its `_places`.

        The values are cut into `pieces` pieces, of which one is the chunk. For an allreduce, each piece is
        cut further into a share per rank, of which one is the chunk.
        """
        part = self.part_of[chunk]
        is_sum = self.workload.operation[part.operation].kind == "allreduce"
        members, number = part.place(chunk)
        share, of = (number, len(members)) if is_sum else (0, 1)
        return np.array_split(values.ravel(), part.pieces * of)[part.piece * of + share]

    def _spots(self, chunk: int) -> Array:
        """Indices of a chunk's values in the flattened global result."""
        axes, shape = self._places(chunk), self.workload.tensors[self.part_of[chunk].operation].shape
        return self._cut(chunk, np.ravel_multi_index(np.ix_(*axes), shape) if axes else np.array(0))
