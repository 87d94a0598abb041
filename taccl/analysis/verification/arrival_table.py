"""Table of arrival times, for each chunk at each rank, in the verifier of compact schedules."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from taccl.costs import link_ends
from taccl.schedule.compact import CompactSchedule


class ArrivalTable:
    """Arrival time of each chunk at each rank, as a dense table or over the pairs with an arrival only.

    - `since`, (num_places + 1,) int32 or int64: Arrival in ticks; `never` if the chunk has not arrived. The
      last entry stands for all pairs without origin or arrival, and stays `never`.
    - `keys`, (num_places,) int64: Sorted keys ``chunk * num_ranks + rank`` of the pairs with an origin or an
      arrival. Empty if the table is dense; a key is then its own place.
    - `first`, (num_chunks + 1,) int64: Index of the first key of every chunk. Empty if the table is dense.
    """

    def __init__(self, schedule: CompactSchedule) -> None:
        problem = schedule.problem
        self.num_ranks = problem.topology.num_ranks
        num_chunks = problem.collective.num_chunks
        narrow = schedule.finish_ticks < 2**31 - 1
        self.never = int(np.iinfo(np.int32 if narrow else np.int64).max)
        chunk, origin = pairs([data.origins for data in problem.collective.chunks])
        num_places, num_entered = self.num_ranks * num_chunks, len(schedule) + len(origin)
        self.keys = self.first = np.zeros(0, np.int64)
        # Sorted keys take 12 bytes for each entered pair; a dense table takes 4 for every pair.
        if num_places > 3 * num_entered:
            _, dst = link_ends(problem.topology)
            keys = np.empty(num_entered, np.int64)
            keys[: len(origin)] = chunk * self.num_ranks + origin
            at = len(origin)
            for sent, link, _, _ in schedule.blocks():
                keys[at : at + len(sent)] = sent * self.num_ranks + dst[link]
                at += len(sent)
            keys.sort()
            self.keys, num_places = keys, len(keys)
            self.first = np.searchsorted(keys, np.arange(num_chunks + 1) * self.num_ranks).astype(np.int64)
        self.since = np.full(num_places + 1, self.never, np.int32 if narrow else np.int64)
        self.since[self.of(chunk, origin)] = 0

    def of(self, chunk: NDArray[np.int64], rank: NDArray[np.int64]) -> NDArray[np.int64]:
        """Places in `since` of chunks at ranks; fast if the chunks are sorted."""
        key = chunk * self.num_ranks + rank
        if not len(self.first):
            return key
        place = np.searchsorted(self.keys, key)
        place[place == len(self.keys)] = 0
        place[self.keys[place] != key] = len(self.keys)
        return place


def pairs(
    ranks_of_chunk: Sequence[tuple[int, ...]], *, first: int = 0
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Chunk and rank of every pair, given the ranks of each chunk; chunks are numbered from `first`."""
    counts = np.fromiter(map(len, ranks_of_chunk), np.int64, len(ranks_of_chunk))
    rank = np.fromiter(chain.from_iterable(ranks_of_chunk), np.int64, int(counts.sum()))
    return np.repeat(np.arange(first, first + len(counts)), counts), rank
