"""Table of arrival times, for each chunk at each rank."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taccl.analysis.verification.columns import Columns, pairs

#: Largest time in ticks that 32 bits hold, beside the marks for "always" and "never".
_NARROW = 2**31 - 2


class ArrivalTable:
    """Arrival time of each chunk at each rank, as a dense table or over the pairs with an arrival only.

    - `since`, (num_places + 1,) int32 or int64: Arrival in ticks; `always` for origins, and `never` if the
      chunk has not arrived. The last entry stands for all pairs without origin or arrival.
    - `keys`, (num_places,) int64: Sorted keys ``chunk * num_ranks + rank`` of the pairs with an origin or an
      arrival. Empty if the table is dense; a key is then its own place.
    - `first`, (num_chunks + 1,) int64: Index of the first key of every chunk. Empty if the table is dense.
    """

    def __init__(self, columns: Columns, others: list[tuple[int, int]], latest: int) -> None:
        """Make the table.

        - `others`: Further pairs (chunk, rank) that need a place.
        - `latest`: No time in the table is later.
        """
        collective = columns.collective
        self.num_ranks, num_chunks = columns.topology.num_ranks, collective.num_chunks
        limits = np.iinfo(np.int32 if latest <= _NARROW else np.int64)
        self.always, self.never = int(limits.min), int(limits.max)
        chunk, origin = pairs([data.origins for data in collective.chunks])
        keys = [
            chunk * self.num_ranks + origin,
            np.array([c * self.num_ranks + r for c, r in others], np.int64),
        ]
        num_places, num_entered = self.num_ranks * num_chunks, len(columns) + len(origin)
        self.keys = self.first = np.zeros(0, np.int64)
        # Sorted keys take 12 bytes for each entered pair; a dense table takes 4 for every pair.
        if num_places > 3 * num_entered:
            for block in columns.blocks():
                send, rank = columns.ends.destinations(block.link)
                keys.append(block.chunk[send] * self.num_ranks + rank)
            self.keys = np.concatenate(keys)
            self.keys.sort()
            num_places = len(self.keys)
            self.first = np.searchsorted(self.keys, np.arange(num_chunks + 1) * self.num_ranks).astype(
                np.int64
            )
        self.since = np.full(num_places + 1, self.never, limits.dtype)
        self.since[self.of(chunk, origin)] = self.always

    def of(self, chunk: NDArray[np.int64], rank: NDArray[np.int64]) -> NDArray[np.int64]:
        """Places in `since` of chunks at ranks; fast if the chunks are sorted."""
        key = chunk * self.num_ranks + rank
        if not len(self.first):
            return key
        place = np.searchsorted(self.keys, key)
        place[place == len(self.keys)] = 0
        place[self.keys[place] != key] = len(self.keys)
        return place

    def at(self, chunk: int, rank: int) -> int:
        """Place in `since` of one chunk at one rank."""
        return int(self.of(np.array([chunk]), np.array([rank]))[0])
