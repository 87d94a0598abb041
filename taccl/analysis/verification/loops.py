"""Loops of the verifier over sends: interpreted for few transfers, compiled by numba for many.

The loops are plain functions that call no others, so that both forms run the same code. Callers allocate all
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

#: A time later than all others, in ticks.
NEVER = 2**62


def fitted(loop: _Loop, is_large: bool) -> _Loop:
    """Compiled form of a loop for many transfers, interpreted form for few."""
    chosen: _Loop = (compiled_loop if is_large else interpreted_loop)(loop)
    return chosen


@cache
def interpreted_loop(loop: _Loop) -> _Loop:
    """Interpreted form of a loop; it reads arrays as memory views (`views`), which is faster in Python."""
    return cast("_Loop", lambda *args: loop(*map(views, args)))


def views(value: Any) -> Any:
    """Memory views of the arrays in a value; their elements are Python numbers."""
    if isinstance(value, tuple):
        return type(value)(*map(views, value))
    return value.data if isinstance(value, np.ndarray) else value


@cache
def compiled_loop(loop: _Loop) -> _Loop:
    """The given loop, compiled by numba at its first call."""
    from taccl._internal.kernels import compiled

    return compiled(loop)


class Holds(NamedTuple):
    """Resources that a send over each link holds; rows ``of_link[e]:of_link[e + 1]`` belong to link e.

    A hold lasts ``(alpha + units * beta) / divisor`` ticks, rounded up. It begins at the start of its send.
    A hold that `receives` instead ends at the end of its send.
    """

    of_link: NDArray[np.int64]
    resource: NDArray[np.int64]
    receives: NDArray[np.bool_]
    alpha: NDArray[np.int64]
    beta: NDArray[np.int64]
    divisor: int


class Held(NamedTuple):
    """Intervals in which sends hold resources, as columns with spare rows; all int64."""

    resource: NDArray[np.int64]
    begin: NDArray[np.int64]
    until: NDArray[np.int64]
    send: NDArray[np.int64]


def list_holds(block: Block, holds: Holds, held: Held, count: int) -> int:
    """Append the hold intervals of a block's sends to `held`, from row `count` on; return the new count."""
    first, _, links, starts, ends, sizes = block
    of_link, resources, receives, alphas, betas, divisor = holds
    resource, begins, until, send = held
    for i in range(len(links)):
        units, e = sizes[i], links[i]
        if units < 0:
            continue
        for h in range(of_link[e], of_link[e + 1]):
            length = alphas[h] + units * betas[h]
            if divisor > 1:
                length = -(-length // divisor)
            begin = ends[i] - length if receives[h] else starts[i]
            resource[count], begins[count] = resources[h], begin
            until[count], send[count] = begin + length, first + i
            count += 1
    return count


def sweep(
    held: Held, order: NDArray[np.int64], until: NDArray[np.int64], holder: NDArray[np.int64],
    clashes: NDArray[np.int64],
) -> int:  # fmt: skip
    """Sweep hold intervals in order of start; return the number of overlaps between different sends.

    - `order`, (num_rows,): Rows of `held` in order of start.
    - `until`, `holder`, (num_resources,): Latest end so far, and its send; updated in place.
    - `clashes`, (most, 5): Output: resource, begin, send, the other send, and that send's end.
    """
    count = 0
    resource, begin, end, send = held
    for at in range(len(order)):
        row = order[at]
        r, ends = resource[row], end[row]
        if begin[row] < until[r] and send[row] != holder[r]:
            if count < len(clashes):
                clashes[count, 0], clashes[count, 1] = r, begin[row]
                clashes[count, 2], clashes[count, 3] = send[row], holder[r]
                clashes[count, 4] = until[r]
            count += 1
        if ends >= until[r]:
            until[r], holder[r] = ends, send[row]
    return count


class Sums(NamedTuple):
    """Sends of a block of chunks as columns, in order of chunk and start.

    - `adds`, (num_sends,): True if the arrival is added to what its destination holds, False if it replaces
      that.
    - `lands`, (num_sends,): Sends in order of chunk and end; at equal ends, additions come first.
    - `gathers`, (num_sends,): Output: True for sends on their way to the root, i.e. while the source or the
      root lacks contributions.
    """

    link: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    adds: NDArray[np.bool_]
    lands: NDArray[np.int64]
    gathers: NDArray[np.bool_]


class SumChunks(NamedTuple):
    """Chunks of a block as int64 columns; sends ``first[c]:first[c + 1]`` of `Sums` carry chunk c.

    - `root`, (num_chunks,): Root of each chunk; -1 if there is none.
    - `origins`, `given`, `given_end`: Ranks ``origins[given[c]:given_end[c]]`` contribute to chunk c.
    - `wanted`, `want`, `want_end`: Ranks ``wanted[want[c]:want_end[c]]`` want chunk c.
    - `dated`, `date`, `since`: Rank ``dated[k]`` holds chunk c without an arrival from tick ``since[k]`` on,
      for k in ``date[c]:date[c + 1]``: released or derived copies.
    """

    first: NDArray[np.int64]
    root: NDArray[np.int64]
    origins: NDArray[np.int64]
    given: NDArray[np.int64]
    given_end: NDArray[np.int64]
    wanted: NDArray[np.int64]
    want: NDArray[np.int64]
    want_end: NDArray[np.int64]
    dated: NDArray[np.int64]
    date: NDArray[np.int64]
    since: NDArray[np.int64]


def place_by_chunk(
    chunk: NDArray[np.int64], row: NDArray[np.int64], link: NDArray[np.int64], start: NDArray[np.int64],
    place: NDArray[np.int64], placed: NDArray[np.int64],
) -> None:  # fmt: skip
    """Place transfers into their order by chunk: one step of a counting sort.

    - `place`, (num_chunks,): Next free position of each chunk in `placed`; updated.
    - `placed`, (3, num_transfers): Output: index, link and start of each transfer.
    """
    for i in range(len(chunk)):
        at = place[chunk[i]]
        placed[0, at], placed[1, at], placed[2, at] = row[i], link[i], start[i]
        place[chunk[i]] = at + 1


def accept_copies(
    sums: Sums, chunks: SumChunks, ends: LinkEnds, since: NDArray[np.int64], accepted: NDArray[np.bool_]
) -> int:
    """Accept copied chunks that all senders hold and all destinations get; count the redundant copies.

    One pass in order of start suffices, as a valid send starts only after the sends that it depends on have
    ended.

    - `since`, (num_ranks,): Scratch space.
    - `accepted`, (num_chunks,): Output: True for valid chunks.
    """
    num_redundant = 0
    link, start, end, adds = sums.link, sums.start, sums.end, sums.adds
    first, middle, ranks = ends
    for c in range(len(accepted)):
        sends, dates = range(chunks.first[c], chunks.first[c + 1]), range(chunks.date[c], chunks.date[c + 1])
        redundant, is_valid = 0, True
        if 2 * len(sends) > len(since):
            for rank in range(len(since)):
                since[rank] = NEVER
        else:  # reset only the ranks that take part
            for i in sends:
                for at in range(first[link[i]], first[link[i] + 1]):
                    since[ranks[at]] = NEVER
        for at in range(chunks.want[c], chunks.want_end[c]):
            since[chunks.wanted[at]] = NEVER
        for at in range(chunks.given[c], chunks.given_end[c]):
            since[chunks.origins[at]] = -NEVER
        for k in dates:
            since[chunks.dated[k]] = chunks.since[k]
        for i in sends:
            e, arrival = link[i], end[i]
            is_valid &= not adds[i]
            for at in range(first[e], middle[e]):
                is_valid &= since[ranks[at]] <= start[i]
            for at in range(middle[e], first[e + 1]):
                rank = ranks[at]
                redundant += since[rank] < NEVER
                if arrival < since[rank]:
                    since[rank] = arrival
        for at in range(chunks.want[c], chunks.want_end[c]):
            is_valid &= since[chunks.wanted[at]] < NEVER
        for k in dates:  # an arrival before the release date of the rank's own copy is not redundant
            redundant -= since[chunks.dated[k]] < chunks.since[k]
        accepted[c] = is_valid
        num_redundant += redundant * is_valid
    return num_redundant


def accept_trees(
    sums: Sums, chunks: SumChunks, ends: LinkEnds, size: NDArray[np.int64], spent: NDArray[np.bool_],
    taken: NDArray[np.int64], accepted: NDArray[np.bool_],
) -> int:  # fmt: skip
    """Accept sums built along trees that reach all destinations; return the number of redundant copies.

    The tree rule has two conditions. A rank adds its partial sum to another's once, after all its own
    arrivals. Only whole sums are copied. Every contribution is then in exactly one partial sum that has not
    been sent on, so these sums are disjoint. A sum is thus whole if it has enough contributions. A link may
    add up the partial sums of several sources, or copy a whole sum to several destinations.

    - `size`, `spent`, (num_ranks,), `taken`, (num_sends,): Scratch space.
    - `accepted`, (num_chunks,): Output: True for chunks that are valid by this rule; others may be valid.
    """
    num_redundant = 0
    link, start, end, adds, lands, gathers = sums
    first, middle, ranks = ends
    for c in range(len(accepted)):
        low, high, root = chunks.first[c], chunks.first[c + 1], chunks.root[c]
        whole, redundant, landed, is_tree = chunks.given_end[c] - chunks.given[c], 0, low, True
        if 2 * (high - low) > len(size):
            for rank in range(len(size)):
                size[rank], spent[rank] = 0, False
        else:  # reset only the ranks that take part
            for i in range(low, high):
                e = link[i]
                for at in range(first[e], first[e + 1]):
                    size[ranks[at]], spent[ranks[at]] = 0, False
        for at in range(chunks.want[c], chunks.want_end[c]):
            size[chunks.wanted[at]] = 0
        if root >= 0:
            size[root] = 0
        for at in range(chunks.given[c], chunks.given_end[c]):
            size[chunks.origins[at]] = 1
        i = low
        while is_tree and (i < high or landed < high):
            t = lands[landed]
            if i == high or end[t] <= start[i]:
                landed += 1
                e, is_sum = link[t], adds[t]
                for at in range(middle[e], first[e + 1]):
                    rank = ranks[at]
                    if not is_sum:
                        redundant += size[rank] == whole
                        size[rank] = whole
                    elif spent[rank] or size[rank] == whole:
                        is_tree = False
                    else:
                        size[rank] += taken[t]
                continue
            e, is_sum, number = link[i], adds[i], 0
            for at in range(first[e], middle[e]):
                rank = ranks[at]
                held = size[rank]
                is_tree &= held > 0 and (held == whole) != is_sum and not (is_sum and spent[rank])
                number += held
                spent[rank] |= is_sum
            is_tree &= (first[e + 1] - middle[e] if is_sum else middle[e] - first[e]) == 1
            taken[i] = number
            gathers[i] = number != whole or (root >= 0 and size[root] != whole)
            i += 1
        for at in range(chunks.want[c], chunks.want_end[c]):
            is_tree &= size[chunks.wanted[at]] == whole
        accepted[c] = is_tree
        num_redundant += redundant * is_tree
    return num_redundant


def accept_sets(
    sums: Sums, chunks: SumChunks, ends: LinkEnds, held: NDArray[np.int64], sent: NDArray[np.int64],
    last: NDArray[np.int64], accepted: NDArray[np.bool_],
) -> int:  # fmt: skip
    """Accept valid sums that are not yet in `accepted`; return the number of redundant copies.

    Sets of contributions are replayed, so unlike in `accept_trees` sums need not travel along trees. A set is
    a row of 64-bit words; bit k stands for the k-th origin of the chunk.

    - `held`, (num_ranks + 1, num_words), `sent`, (most sends of a chunk, num_words), `last`, (num_ranks,):
      Scratch space. The last row of `held` is the whole sum; `last` is each rank's latest arrival.
    - `accepted`, (num_chunks,): True for chunks that are known to be valid; updated.
    """
    num_redundant, whole = 0, len(held) - 1
    for c in range(len(accepted)):
        low, high, root = chunks.first[c], chunks.first[c + 1], chunks.root[c]
        redundant, landed, is_valid = 0, low, not accepted[c]
        if accepted[c]:
            continue
        held[:], last[:] = 0, -1
        for at in range(chunks.given[c], chunks.given_end[c]):
            place = at - chunks.given[c]
            held[chunks.origins[at], place >> 6] |= 1 << (place & 63)
            held[whole, place >> 6] |= 1 << (place & 63)
        i = low
        while is_valid and (i < high or landed < high):
            t = sums.lands[landed]
            if i == high or sums.end[t] <= sums.start[i]:
                landed += 1
                for at in range(ends.middle[sums.link[t]], ends.first[sums.link[t] + 1]):
                    rank, is_same = ends.rank[at], True
                    other = last[rank]
                    is_tie = other >= 0 and sums.end[other] == sums.end[t] and not sums.adds[t]
                    # A copy and an addition must not arrive at once, as their order would matter.
                    is_valid &= not (is_tie and sums.adds[other])
                    for w in range(held.shape[1]):
                        bits, has = sent[t - low, w], held[rank, w]
                        is_valid &= (bits & has if sums.adds[t] else has & ~bits) == 0
                        is_valid &= not is_tie or sent[other - low, w] == bits
                        is_same &= bits == has
                        held[rank, w] = bits | has
                    redundant += is_same and not sums.adds[t]
                    last[rank] = t
                continue
            e, is_whole = sums.link[i], True
            sent[i - low] = 0
            for at in range(ends.first[e], ends.middle[e]):
                rank, is_empty = ends.rank[at], True
                for w in range(held.shape[1]):
                    has = held[rank, w]
                    is_valid &= sent[i - low, w] & has == 0
                    is_empty &= has == 0
                    is_whole &= has == held[whole, w] and (root < 0 or held[root, w] == has)
                    sent[i - low, w] |= has
                is_valid &= not is_empty
            sums.gathers[i] = not is_whole
            i += 1
        for at in range(chunks.want[c], chunks.want_end[c]):
            for w in range(held.shape[1]):
                is_valid &= held[chunks.wanted[at], w] == held[whole, w]
        accepted[c] = is_valid
        num_redundant += redundant * is_valid
    return num_redundant


def count_links(
    sums: Sums, chunks: SumChunks, ends: LinkEnds, copies: NDArray[np.int64], summed: NDArray[np.int64],
    passed: NDArray[np.int64],
) -> None:  # fmt: skip
    """Write into `passed` how many links the chunk of each send has passed, including the send's own link.

    A copy has passed one link more than the copy at its sender; of several copies there, the one with the
    fewest links counts. The number is 0 at the ranks where the chunk starts, `chunks.origins`. A sum on its
    way to the root (`Sums.gathers`) has passed the maximum over its contributions.

    - `copies`, `summed`, (num_ranks,): Scratch space.
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
