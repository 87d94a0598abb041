"""Loops of the verifier over sends: run as Python for few transfers, compiled by numba for many.

The loops are plain functions that call no other, so that both ways run the same code. Callers allocate all
arrays; indices and times are int64.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from taccl.analysis.verification.columns import Block, LinkEnds

_Loop = TypeVar("_Loop", bound="Callable[..., Any]")

#: Later than all times, in ticks.
NEVER = 2**62


def fitted(loop: _Loop, is_large: bool) -> _Loop:
    """The compiled form of a loop for many transfers, or the loop as Python for few."""
    chosen: _Loop = (compiled_loop if is_large else interpreted_loop)(loop)
    return chosen


@cache
def interpreted_loop(loop: _Loop) -> _Loop:
    """The loop as Python, on `views` of its arrays, which is faster than on arrays."""
    return cast("_Loop", lambda *args: loop(*map(views, args)))


def views(value: Any) -> Any:
    """Memory views of the arrays in a value, which hand out Python's own numbers."""
    if isinstance(value, tuple):
        return type(value)(*map(views, value))
    return value.data if isinstance(value, np.ndarray) else value


@cache
def compiled_loop(loop: _Loop) -> _Loop:
    """The loop compiled by numba."""
    from taccl.kernels import compiled

    return compiled(loop)


class Arrivals(NamedTuple):
    """Columns of an `ArrivalTable`, with `since` updated in place.

    `since`, (num_places + 1, 1 or 2) int32: Arrival ticks as 32-bit words, low word first. This form lets one
    compiled loop serve both widths.
    """

    num_ranks: int
    keys: NDArray[np.int64]
    first: NDArray[np.int64]
    since: NDArray[np.int32]
    never: int


def replay_copies(
    block: Block, ends: LinkEnds, table: Arrivals, absent: NDArray[np.int64]
) -> tuple[int, int]:
    """Replay sends in order of start: (number of absent sources, number of redundant arrivals).

    - `absent`, (most, 2) int64: Output: the first sends, each with a source that lacks its chunk.
    """
    num_absent = num_redundant = 0
    num_words = table.since.shape[1]
    for i in range(len(block.chunk)):
        e, c, time = block.link[i], block.chunk[i], block.start[i]
        for at in range(ends.first[e], ends.first[e + 1]):
            place = key = c * table.num_ranks + ends.rank[at]
            if len(table.first):  # binary search among the chunk's keys
                place, limit = table.first[c], table.first[c + 1]
                high = limit
                while place < high:
                    middle = (place + high) >> 1
                    if table.keys[middle] < key:
                        place = middle + 1
                    else:
                        high = middle
                if place == limit or table.keys[place] != key:
                    place = len(table.keys)
            since = 0 + table.since[place, 0]  # as 64 bits
            if num_words > 1:
                since = ((0 + table.since[place, 1]) << 32) | (since & 0xFFFFFFFF)
            if at < ends.middle[e]:
                if since > time:
                    if num_absent < len(absent):
                        absent[num_absent, 0], absent[num_absent, 1] = block.first + i, ends.rank[at]
                    num_absent += 1
                continue
            num_redundant += since != table.never
            if block.end[i] < since:
                end = block.end[i]
                if num_words > 1:
                    table.since[place, 1] = end >> 32
                    end = ((end & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000  # the low word, with a sign
                table.since[place, 0] = end
    return num_absent, num_redundant


class Holds(NamedTuple):
    """Holds in order of link; rows ``of_link[e]:of_link[e + 1]`` belong to link e.

    A hold lasts ``(alpha + units * beta) / divisor`` ticks, rounded up, from the start of its send, or until
    its end if it `receives`.
    """

    of_link: NDArray[np.int64]
    resource: NDArray[np.int64]
    receives: NDArray[np.bool_]
    alpha: NDArray[np.int64]
    beta: NDArray[np.int64]
    divisor: int


class Held(NamedTuple):
    """Intervals in which sends hold resources: columns, and how many rows are filled; all int64."""

    resource: NDArray[np.int64]
    begin: NDArray[np.int64]
    until: NDArray[np.int64]
    send: NDArray[np.int64]


def list_holds(block: Block, holds: Holds, held: Held, count: int) -> int:
    """Append the intervals of all sends of a block to `held`, from row `count` on; return the new count."""
    for i in range(len(block.chunk)):
        units = block.units[i]
        if units < 0:
            continue
        e = block.link[i]
        for h in range(holds.of_link[e], holds.of_link[e + 1]):
            length = holds.alpha[h] + units * holds.beta[h]
            if holds.divisor > 1:
                length = -(-length // holds.divisor)
            begin = block.end[i] - length if holds.receives[h] else block.start[i]
            held.resource[count], held.begin[count] = holds.resource[h], begin
            held.until[count], held.send[count] = begin + length, block.first + i
            count += 1
    return count


def sweep(
    held: Held, order: NDArray[np.int64], until: NDArray[np.int64], holder: NDArray[np.int64],
    clashes: NDArray[np.int64],
) -> int:  # fmt: skip
    """Sweep intervals in order of begin; return the number that begin before another send's has ended.

    - `order`, (num_rows,): Rows in order of begin.
    - `until`, `holder`, (num_resources,): Latest end so far, and its send; updated in place.
    - `clashes`, (most, 5): Output: resource, begin, send, the other send, and its end.
    """
    count = 0
    for at in range(len(order)):
        row = order[at]
        r = held.resource[row]
        if held.begin[row] < until[r] and held.send[row] != holder[r]:
            if count < len(clashes):
                clashes[count, 0], clashes[count, 1] = r, held.begin[row]
                clashes[count, 2], clashes[count, 3] = held.send[row], holder[r]
                clashes[count, 4] = until[r]
            count += 1
        if held.until[row] >= until[r]:
            until[r], holder[r] = held.until[row], held.send[row]
    return count


class Sums(NamedTuple):
    """Sends of chunks that are summed, in order of chunk and start.

    - `link`, `start`, `end`, `adds`, (num_sends,): `adds` is True if the arrival is added to what its
      destination holds, and False if it replaces that.
    - `lands`, (num_sends,): Sends in order of chunk and end; at equal ends, additions come first.
    - `gathers`, (num_sends,): Output: True for sends on their way to the root, that is while the source or
      the root lacks contributions.
    """

    link: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    adds: NDArray[np.bool_]
    lands: NDArray[np.int64]
    gathers: NDArray[np.bool_]


class SumChunks(NamedTuple):
    """Chunks of a block, all int64; sends ``first[c]:first[c + 1]`` are those of chunk c.

    - `root`, (num_chunks,): Root of each chunk; -1 if there is none.
    - `origins`, `given`, `given_end`: Ranks ``origins[given[c]:given_end[c]]`` contribute to chunk c.
    - `wanted`, `want`, `want_end`: The same for the destinations of each sum.
    """

    first: NDArray[np.int64]
    root: NDArray[np.int64]
    origins: NDArray[np.int64]
    given: NDArray[np.int64]
    given_end: NDArray[np.int64]
    wanted: NDArray[np.int64]
    want: NDArray[np.int64]
    want_end: NDArray[np.int64]


def accept_trees(
    sums: Sums, chunks: SumChunks, ends: LinkEnds, size: NDArray[np.int64], spent: NDArray[np.bool_],
    taken: NDArray[np.int64], accepted: NDArray[np.bool_],
) -> int:  # fmt: skip
    """Accept chunks whose partial sums travel along trees and arrive; return the number of redundant copies.

    The tree rule has two conditions. A rank adds its partial sum to another's once, after all its own
    arrivals. Only whole sums are copied. Every contribution is then in exactly one sum that has not been sent
    on. These sums are therefore disjoint, and a sum is whole if its number of contributions is. A link may
    add up the partial sums of several sources, or copy a whole sum to several destinations.

    - `size`, `spent`, (num_ranks,), `taken`, (num_sends,): State; their contents need no preparation.
    - `accepted`, (num_chunks,): Output: True for chunks that are valid by this rule; others may be valid.
    """
    num_redundant = 0
    for c in range(len(accepted)):
        low, high, root = chunks.first[c], chunks.first[c + 1], chunks.root[c]
        whole, redundant, landed, is_tree = chunks.given_end[c] - chunks.given[c], 0, low, True
        for i in range(low, high):
            for at in range(ends.first[sums.link[i]], ends.first[sums.link[i] + 1]):
                size[ends.rank[at]], spent[ends.rank[at]] = 0, False
        for at in range(chunks.want[c], chunks.want_end[c]):
            size[chunks.wanted[at]] = 0
        if root >= 0:
            size[root] = 0
        for at in range(chunks.given[c], chunks.given_end[c]):
            size[chunks.origins[at]] = 1
        i = low
        while is_tree and (i < high or landed < high):
            t = sums.lands[landed]
            if i == high or sums.end[t] <= sums.start[i]:
                landed += 1
                for at in range(ends.middle[sums.link[t]], ends.first[sums.link[t] + 1]):
                    rank = ends.rank[at]
                    if not sums.adds[t]:
                        redundant += size[rank] == whole
                        size[rank] = whole
                    elif spent[rank] or size[rank] == whole:
                        is_tree = False
                    else:
                        size[rank] += taken[t]
                continue
            e, adds, number = sums.link[i], sums.adds[i], 0
            for at in range(ends.first[e], ends.middle[e]):
                rank = ends.rank[at]
                is_tree &= size[rank] > 0 and (size[rank] == whole) != adds and not (adds and spent[rank])
                number += size[rank]
                spent[rank] |= adds
            is_tree &= (ends.first[e + 1] - ends.middle[e] if adds else ends.middle[e] - ends.first[e]) == 1
            taken[i] = number
            sums.gathers[i] = number != whole or (root >= 0 and size[root] != whole)
            i += 1
        for at in range(chunks.want[c], chunks.want_end[c]):
            is_tree &= size[chunks.wanted[at]] == whole
        accepted[c] = is_tree
        num_redundant += redundant * is_tree
    return num_redundant


def count_links(
    sums: Sums, chunks: SumChunks, ends: LinkEnds, copies: NDArray[np.int64], summed: NDArray[np.int64],
    passed: NDArray[np.int64],
) -> None:  # fmt: skip
    """Count the links that each send's chunk has passed, its own included, into `passed`.

    A copy has passed one link more than its sender's copy; of several copies, the one with the fewest links
    counts. The number is 0 where the chunk starts, the ranks of `chunks.origins`. A sum on its way to the
    root (`Sums.gathers`) has passed the maximum over its contributions.

    - `copies`, `summed`, (num_ranks,): State of one chunk; their contents need no preparation.
    """
    for c in range(len(chunks.first) - 1):
        low, high = chunks.first[c], chunks.first[c + 1]
        for i in range(low, high):
            for at in range(ends.first[sums.link[i]], ends.first[sums.link[i] + 1]):
                copies[ends.rank[at]], summed[ends.rank[at]] = -1, 0
        for at in range(chunks.given[c], chunks.given_end[c]):
            copies[chunks.origins[at]] = 0
        landed, i = low, low
        while i < high:
            t = sums.lands[landed]
            if sums.end[t] <= sums.start[i]:
                landed += 1
                for at in range(ends.middle[sums.link[t]], ends.first[sums.link[t] + 1]):
                    rank = ends.rank[at]
                    if sums.gathers[t]:
                        summed[rank] = max(summed[rank], passed[t]) if sums.adds[t] else passed[t]
                    elif copies[rank] < 0 or passed[t] < copies[rank]:
                        copies[rank] = passed[t]
                continue
            most = 0
            for at in range(ends.first[sums.link[i]], ends.middle[sums.link[i]]):
                rank = ends.rank[at]
                most = max(most, summed[rank] if sums.gathers[i] else copies[rank])
            passed[i] = 1 + most
            i += 1
