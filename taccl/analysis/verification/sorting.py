"""Transfers sorted by chunk, in passes over the columns in order of start.

Random reads of long columns would take most of the time of the verifier. So a pass reads all columns once and
places the transfers of some of the chunks into arrays, which the next pass overwrites.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from taccl.analysis.verification.columns import BLOCK, Columns
from taccl.analysis.verification.loops import compiled_loop, place_by_chunk

#: A pass places at most 1 / `_PASSES` of all transfers, or `_PASS` transfers (24 bytes each) if that is more.
#: A single chunk is placed in one pass, even if it has more transfers.
_PASSES, _PASS = 8, 1 << 20


def offsets(columns: Columns, num_chunks: int) -> NDArray[np.int64]:
    """Position of each chunk's first transfer in order by chunk; the last entry counts all transfers."""
    first = np.zeros(num_chunks + 1, np.int64)
    for i in range(0, len(columns), BLOCK):
        np.add.at(first, columns.chunk[i : i + BLOCK].astype(np.int64) + 1, 1)
    return np.cumsum(first)


def sorted_blocks(
    columns: Columns, first: NDArray[np.int64]
) -> Iterator[tuple[int, int, tuple[NDArray[np.int64], ...]]]:
    """Yield (low, high, (index, link, start) of the transfers) for blocks of chunks `low` to `high` - 1.

    The transfers are sorted by chunk and start. Their arrays are valid until the next block.

    - `first`: The result of `offsets`.
    """
    num_chunks, most = len(first) - 1, max(_PASS, len(columns) // _PASSES)
    low, placed = 0, np.empty((3, 0), np.int64)
    while low < num_chunks:
        after, begin = _end(first, low, most), first[low]
        count = int(first[after] - begin)
        if placed.shape[1] < count:
            placed = np.empty((3, max(count, min(most, len(columns)))), np.int64)
        _place(columns, first[low : after + 1], low, placed)
        while low < after:
            high = min(_end(first, low, BLOCK), after)
            yield low, high, tuple(placed[:, first[low] - begin : first[high] - begin])
            low = high


def _end(first: NDArray[np.int64], low: int, most: int) -> int:
    """End (exclusive) of the longest run of chunks from `low` on with at most `most` transfers in total.

    The run has at least one chunk.
    """
    return max(low + 1, int(np.searchsorted(first, first[low] + most, side="right")) - 1)


def _place(columns: Columns, first: NDArray[np.int64], low: int, placed: NDArray[np.int64]) -> None:
    """Write the transfers of chunks from `low` on, sorted by chunk, into `placed` (index, link, start).

    - `first`: `offsets` of these chunks.
    """
    place, high, is_all = first[:-1] - first[0], low + len(first) - 1, first[-1] - first[0] == len(columns)
    if not columns.is_large:
        order = np.argsort(columns.chunk, kind="stable")[first[0] : first[-1]]
        placed[:, : len(order)] = order, columns.link[order], columns.start[order]
        return
    loop = compiled_loop(place_by_chunk)
    for i in range(0, len(columns), BLOCK):
        some = slice(i, i + BLOCK)
        chunk, link, start = columns.chunk[some], columns.link[some], columns.start[some]
        rows = np.arange(len(chunk)) if is_all else np.flatnonzero((chunk >= low) & (chunk < high))
        loop(
            chunk[rows].astype(np.int64) - low, i + rows, link[rows].astype(np.int64),
            start[rows].astype(np.int64), place, placed,
        )  # fmt: skip
