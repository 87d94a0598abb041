"""Replay of copies and of sums along trees by operations on whole columns, without numba.

A place is a chunk at a rank. These functions accept the same chunks as the loops in
`taccl.analysis.verification.loops`, in less time than these take in Python.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arrays import distinct, places_of, ranges
from taccl.analysis.verification.columns import LinkEnds
from taccl.analysis.verification.loops import NEVER, SumChunks, Sums

#: Max places per transfer for which sums are replayed here, as each place takes memory.
_MOST_PLACES = 8


def accept_copies_sorted(
    sums: Sums, chunks: SumChunks, ends: LinkEnds, num_ranks: int
) -> tuple[NDArray[np.bool_], int]:
    """`accept_copies` by sorts, in a fifth of the time of its loop in Python.

    A send is valid if the earliest arrival at its source ends by its start.
    That arrival started earlier, as sends last longer than 0, so by induction it is valid, too.

    Returns (True for valid chunks, number of redundant copies).
    """
    count = len(chunks.root)
    chunk_of = np.repeat(np.arange(count), np.diff(chunks.first))

    def places(low: NDArray[np.int64], high: NDArray[np.int64], ranks: NDArray[np.int64]) -> Any:
        """(chunk, place, row of `ranks`) columns of ``ranks[low[c]:high[c]]`` for each chunk c."""
        chunk, at = ranges(low, high)
        return chunk, chunk * num_ranks + ranks[at], at

    _, given, _ = places(chunks.given, chunks.given_end, chunks.origins)
    _, dated, at = places(chunks.date[:-1], chunks.date[1:], chunks.dated)
    # A date takes the place of an origin: the rank holds the chunk only from then on.
    begins, which = np.unique(np.append(given, dated), return_inverse=True)
    since = np.full(len(begins), -NEVER)
    np.maximum.at(since, which[len(given) :], chunks.since[at])
    send, rank = ends.destinations(sums.link)
    arrived, arrival = chunk_of[send] * num_ranks + rank, sums.end[send]
    reached, which, arrivals = np.unique(arrived, return_inverse=True, return_counts=True)
    first = np.full(len(reached), NEVER)
    np.minimum.at(first, which, arrival)
    place, is_begun = places_of(begins, reached)
    redundant = arrivals - ~is_begun
    redundant[is_begun] -= first[is_begun] < since[place[is_begun]]  # the rank gets the chunk before its date
    held, which = np.unique(np.append(begins, reached), return_inverse=True)
    earliest = np.full(len(held), NEVER)
    np.minimum.at(earliest, which, np.append(since, first))
    is_valid = np.ones(count, bool)
    send, rank = ends.sources(sums.link)
    place, is_known = places_of(held, chunk_of[send] * num_ranks + rank)
    is_ready = is_known & (earliest[place] <= sums.start[send]) if len(held) else is_known
    is_valid[chunk_of[send[~is_ready]]] = False
    is_valid[chunk_of[sums.adds]] = False
    chunk, wanted, _ = places(chunks.want, chunks.want_end, chunks.wanted)
    is_valid[chunk[~places_of(held, wanted)[1]]] = False
    return is_valid, int(redundant[is_valid[reached // num_ranks]].sum())


def accept_trees_sorted(
    sums: Sums, chunks: SumChunks, ends: LinkEnds, num_ranks: int
) -> tuple[NDArray[np.bool_], int]:
    """`accept_trees` by columns; sets ``sums.gathers`` of the chunks that it accepts.

    Chunks over links of several sources or destinations, and chunks without origins, are not accepted. Nor
    are any if few places take part (`_MOST_PLACES`).

    If each place adds its sum to one other place, after all its own arrivals, sums travel along trees. The
    sum at a place then has the contributions of its subtree. It is whole once all have arrived, or a copy.
    As in `accept_copies_sorted`, a copy is valid if its source is whole in time.

    Returns (True for accepted chunks, number of redundant copies).
    """
    count, (link, start, end, adds, _, gathers) = len(chunks.root), sums
    if count * num_ranks > _MOST_PLACES * len(link):
        return np.zeros(count, bool), 0
    chunk = np.repeat(np.arange(count), np.diff(chunks.first))
    whole = chunks.given_end - chunks.given
    is_valid = whole > 0
    is_valid[chunk[ends.first[link + 1] - ends.first[link] > 2]] = False
    src, dst = (chunk * num_ranks + ends.rank[ends.first[link] + i] for i in (0, 1))
    up, down = np.flatnonzero(adds), np.flatnonzero(~adds)
    below, above, begun, ended = src[up], dst[up], start[up], end[up]
    #: For each place: number of contributions at the end, addition that sends it on, arrivals to come.
    origin, at = ranges(chunks.given, chunks.given_end)
    size = np.bincount(origin * num_ranks + chunks.origins[at], minlength=count * num_ranks)
    sent, awaited = np.full(len(size), -1), np.bincount(above, minlength=len(size))
    sent[below] = np.arange(len(up))
    is_valid[chunk[up[sent[below] != np.arange(len(up))]]] = False  # a place sends its sum once
    some = np.flatnonzero(awaited[below] == 0)
    while len(some):
        np.add.at(size, above[some], size[below[some]])
        np.subtract.at(awaited, above[some], 1)
        reached = above[some]
        some = distinct(sent[reached[(awaited[reached] == 0) & (sent[reached] >= 0)]])
    #: `summed`, `copied`: Last addition to each place, and first copy there.
    summed, copied = np.full(len(size), -NEVER), np.full(len(size), NEVER)
    np.maximum.at(summed, above, ended)
    np.minimum.at(copied, dst[down], end[down])
    is_in_turn = (summed[below] <= begun) & (copied[below] > begun) & (copied[above] >= ended)
    is_partial = (size[below] > 0) & (size[below] < whole[chunk[up]])
    is_valid[chunk[up[~(is_in_turn & is_partial)]]] = False
    is_top = (sent < 0) & (size == np.repeat(whole, num_ranks))
    since = np.where(is_top, np.minimum(summed, copied), copied)
    is_valid[chunk[down[since[src[down]] > start[down]]]] = False
    wants, at = ranges(chunks.want, chunks.want_end)
    is_valid[wants[since[wants * num_ranks + chunks.wanted[at]] == NEVER]] = False
    accepted = is_valid[chunk]
    root = chunks.root[chunk] + chunk * num_ranks
    gathers[accepted] = (adds | ((chunks.root[chunk] >= 0) & (since[root] > start)))[accepted]
    num_copies = np.bincount(chunk[down], minlength=count)
    needed = ((copied < NEVER) & ~is_top).reshape(count, num_ranks).sum(axis=1)
    return is_valid, int((num_copies - needed)[is_valid].sum())
