"""Compiled core of the verifiers of large schedules: replay of sends in order of time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.kernels import compiled, inner

if TYPE_CHECKING:
    from taccl.analysis.verification.sketch_clauses import SendColumns

#: Fault codes. A send fails if its source lacks the chunk (ABSENT), or if a resource is held (BUSY). An
#: arriving sum fails if its order with a simultaneous arrival matters (RACE), if it adds a contribution twice
#: (DOUBLE), or if it overwrites contributions (LOST). The end fails if a contribution is missing (MISSING).
OK, ABSENT, BUSY, RACE, DOUBLE, LOST, MISSING = 0, 1, 2, 3, 4, 5, 6
#: Contributions tracked in one pass: the bits of a nonnegative int64 below its top bit.
_WORD = 62
_NO_TREES = -1


class Arrivals(NamedTuple):
    """Columns of an `ArrivalTable`, with `since` updated in place; an empty table checks resources only.

    `since`, (num_places + 1, 1 or 2) int32: Arrival ticks as 32-bit words, low word first. This form lets one
    compiled kernel serve both widths.
    """

    num_ranks: int
    keys: NDArray[np.int64]
    first: NDArray[np.int64]
    since: NDArray[np.int32]
    never: int


class HoldRows(NamedTuple):
    """Holds that begin at the start of their send; rows ``of_link[e]:of_link[e + 1]`` belong to link e.

    - `alpha`, `beta`, (num_rows,) int64: Ticks, and ticks per unit of size.
    - `units`, (num_chunks,) int64: Sizes of chunks, in units.
    - `free`, (num_resources,) int64: Tick from which each resource is free again; updated in place.
    """

    of_link: NDArray[np.int64]
    resource: NDArray[np.int64]
    alpha: NDArray[np.int64]
    beta: NDArray[np.int64]
    units: NDArray[np.int64]
    free: NDArray[np.int64]


class Sums(NamedTuple):
    """Sends of chunks that are summed, in order of chunk and start.

    - `src`, `dst`, `start`, `end`, `adds`, (num_sends,): `adds` is True if the arrival is added to what its
      destination holds, and False if it replaces that.
    - `lands`, (num_sends,): Sends in order of chunk and end; at equal ends, additions come first.
    - `gathers`, (num_sends,): Output: True for sends on their way to the root, that is while the source or
      the root lacks contributions.
    """

    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    adds: NDArray[np.bool_]
    lands: NDArray[np.int64]
    gathers: NDArray[np.bool_]


@inner
def _place_of(table: Arrivals, chunk: int, rank: int) -> int:
    """Place of one pair, as in `ArrivalTable.of`, by binary search among the chunk's keys."""
    key = chunk * table.num_ranks + rank
    if len(table.first) == 0:
        return key
    low, end = table.first[chunk], table.first[chunk + 1]
    high = end
    while low < high:
        middle = (low + high) >> 1
        if table.keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    if low < end and table.keys[low] == key:
        return int(low)
    return len(table.keys)


@inner
def _since(table: Arrivals, place: int) -> int:
    """Tick from which the chunk is at a place of the table."""
    since = np.int64(table.since[place, 0])
    if table.since.shape[1] > 1:
        since = (np.int64(table.since[place, 1]) << 32) | (since & 0xFFFFFFFF)
    return int(since)


@compiled
def replay_sends(
    sends: SendColumns, src: NDArray[np.int64], dst: NDArray[np.int64], table: Arrivals, held: HoldRows
) -> tuple[int, int, int]:
    """Replay sends in order of start: (code of the first fault, its send, number of redundant arrivals).

    - `src`, `dst`: (num_links,) ranks at the ends of each link.
    """
    num_redundant = 0
    for i in range(len(sends.chunk)):
        e, c, time = sends.link[i], sends.chunk[i], sends.start[i]
        if len(table.since):
            if _since(table, _place_of(table, c, src[e])) > time:
                return ABSENT, i, num_redundant
            enters = _place_of(table, c, dst[e])
            since = _since(table, enters)
            num_redundant += since != table.never
            since = min(since, sends.end[i])
            table.since[enters, 0] = since
            if table.since.shape[1] > 1:
                table.since[enters, 1] = since >> 32
        for h in range(held.of_link[e], held.of_link[e + 1]):
            if held.free[held.resource[h]] > time:
                return BUSY, i, num_redundant
        # Update only after all checks, as a link may hold a resource by two rows.
        for h in range(held.of_link[e], held.of_link[e + 1]):
            r = held.resource[h]
            held.free[r] = max(held.free[r], time + held.alpha[h] + held.units[c] * held.beta[h])
    return OK, 0, num_redundant


@compiled(allocates=True)
def replay_sums(
    first: NDArray[np.int64],
    sums: Sums,
    root: NDArray[np.int64],
    origins: tuple[NDArray[np.int64], NDArray[np.int64]],
    origins_of: NDArray[np.int32],
    wanted: tuple[NDArray[np.int64], NDArray[np.int64]],
    wanted_of: NDArray[np.int32],
    num_ranks: int,
) -> tuple[int, int, int, int]:
    """Replay sums: (fault code, its chunk, its send or rank, number of redundant copies).

    The contents of a rank's buffer for a chunk are a set of contributions. If sums travel along trees, the
    size of a set identifies it. Otherwise the sets are tracked, one word of contributions at a time.

    - `first`, (num_chunks + 1,): Sends of chunk c are ``first[c]:first[c + 1]``, in order of start.
    - `root`, (num_chunks,): Root of each chunk; -1 if there is none.
    - `origins`, `origins_of`: Sets of ranks in the form of `flat_sets`, and the set that contributes to each
      chunk.
    - `wanted`, `wanted_of`: The same for the destinations of each sum.
    """
    size, held, last = np.zeros((3, num_ranks), np.int64)
    spent = np.zeros(num_ranks, np.bool_)
    num_redundant = 0
    for c in range(len(first) - 1):
        given = origins[0][origins[1][origins_of[c]] : origins[1][origins_of[c] + 1]]
        ends = wanted[0][wanted[1][wanted_of[c]] : wanted[1][wanted_of[c] + 1]]
        mine = slice(first[c], first[c + 1])
        own = Sums(
            sums.src[mine], sums.dst[mine], sums.start[mine], sums.end[mine], sums.adds[mine],
            sums.lands[mine] - first[c], sums.gathers[mine],
        )  # fmt: skip
        kind, at, redundant = _along_trees(own, given, ends, root[c], size, spent)
        if kind == _NO_TREES:
            kind, at, redundant = _as_sets(own, given, ends, root[c], held, size, last)
        if kind != OK:
            return kind, c, at if kind == MISSING else first[c] + at, 0
        num_redundant += redundant
    return OK, 0, 0, num_redundant


@inner(allocates=True)
def _along_trees(
    sums: Sums,
    origins: NDArray[np.int64],
    ends: NDArray[np.int64],
    root: int,
    size: NDArray[np.int64],
    spent: NDArray[np.bool_],
) -> tuple[int, int, int]:
    """Replay one chunk whose partial sums travel along trees; `_NO_TREES` if they do not.

    The tree rule has two conditions. A rank adds its partial sum to another's once, after all its own
    arrivals. Only whole sums are copied. Every contribution is then in exactly one sum that has not been sent
    on. These sums are therefore disjoint, and a sum is whole if its number of contributions is.
    """
    src, dst, start, end, adds, lands, gathers = sums
    size[src] = size[dst] = size[ends] = size[max(root, 0)] = 0
    spent[src] = spent[dst] = False
    size[origins] = 1
    whole, redundant, landed = len(origins), 0, 0
    taken = np.empty(len(src), np.int64)
    for i in range(len(src) + 1):
        while landed < len(src) and (i == len(src) or end[lands[landed]] <= start[i]):
            t = lands[landed]
            landed += 1
            if not adds[t]:
                redundant += size[dst[t]] == whole
                size[dst[t]] = whole
            elif spent[dst[t]] or size[dst[t]] == whole:
                return _NO_TREES, 0, 0
            else:
                size[dst[t]] += taken[t]
        if i == len(src):
            break
        taken[i] = size[src[i]]
        is_whole = taken[i] == whole
        if taken[i] == 0:
            return ABSENT, i, 0
        if is_whole == adds[i] or (adds[i] and spent[src[i]]):
            return _NO_TREES, 0, 0
        spent[src[i]] |= adds[i]
        gathers[i] = not is_whole or (root >= 0 and size[root] != whole)
    for rank in ends:
        if size[rank] != whole:
            return MISSING, rank, 0
    return OK, 0, redundant


@inner(allocates=True)
def _as_sets(
    sums: Sums,
    origins: NDArray[np.int64],
    ends: NDArray[np.int64],
    root: int,
    held: NDArray[np.int64],
    size: NDArray[np.int64],
    last: NDArray[np.int64],
) -> tuple[int, int, int]:
    """Replay one chunk with arbitrary sends, as `replay_sums` does, one word of contributions at a time.

    The earliest fault of a word is reported. Among faulty arrivals at the same time, a race comes first, in
    either order of the arrivals. `size` is nonzero for ranks that hold any contribution.
    """
    src, dst, start, end, adds, lands, gathers = sums
    taken, full = np.zeros(len(src), np.int64), np.zeros(len(src), np.bool_)
    same = ~adds
    gathers[:] = False
    kind, when, at, missing = OK, 0, 0, -1
    for low in range(0, len(origins), _WORD):
        size[src] = size[dst] = held[src] = held[dst] = held[ends] = held[max(root, 0)] = 0
        last[dst] = -1
        size[origins] = 1
        held[origins] = 0
        for place in range(low, min(low + _WORD, len(origins))):
            held[origins[place]] = 1 << (place - low)
        whole = (1 << (min(len(origins) - low, _WORD))) - 1
        landed = 0
        for i in range(len(src) + 1):
            while landed < len(src) and (i == len(src) or end[lands[landed]] <= start[i]):
                t = lands[landed]
                landed += 1
                if not full[t]:
                    continue
                rank, other, found = dst[t], last[dst[t]], OK
                before = held[rank]
                if (
                    other >= 0
                    and end[other] == end[t]
                    and not adds[t]
                    and (adds[other] or taken[other] != taken[t])
                ):
                    found = RACE
                elif adds[t] and before & taken[t]:
                    found = DOUBLE
                elif not adds[t] and before & ~taken[t]:
                    found = LOST
                if found != OK and (kind == OK or end[t] < when or (end[t] == when and found < kind)):
                    kind, when, at = found, end[t], t
                same[t] &= before == taken[t]
                held[rank] = before | taken[t] if adds[t] else taken[t]
                size[rank], last[rank] = 1, t
            if i == len(src):
                break
            full[i], taken[i] = size[src[i]] > 0, held[src[i]]
            if not full[i] and (kind == OK or start[i] < when):
                kind, when, at = ABSENT, start[i], i
            gathers[i] |= taken[i] != whole or (root >= 0 and held[root] != whole)
        for rank in ends:
            if held[rank] != whole:
                missing = rank
        if kind != LOST and (kind != OK or missing >= 0):  # an overwrite here may be a race in another word
            break
    if kind == OK and missing >= 0:
        return MISSING, missing, 0
    return kind, at, int(same.sum())


@compiled(allocates=True)
def links_passed(
    first: NDArray[np.int64],
    sums: Sums,
    root: NDArray[np.int64],
    origins: tuple[NDArray[np.int64], NDArray[np.int64]],
    origins_of: NDArray[np.int32],
    num_ranks: int,
) -> NDArray[np.int64]:
    """(num_sends,) Links passed by each send's chunk; for a sum, the maximum over its contributions.

    The send's own link counts. Parameters are those of `replay_sums`; `Sums.gathers` marks the sends that
    gather sums.
    """
    src, dst, start, end, adds, lands, gathers = sums
    passed = np.empty(len(src), np.int64)
    copies, summed = np.empty(num_ranks, np.int64), np.empty(num_ranks, np.int64)
    for c in range(len(first) - 1):
        low, high = first[c], first[c + 1]
        copies[src[low:high]] = copies[dst[low:high]] = -1
        summed[src[low:high]] = summed[dst[low:high]] = 0
        if root[c] >= 0:
            copies[root[c]] = 0
        else:
            copies[origins[0][origins[1][origins_of[c]] : origins[1][origins_of[c] + 1]]] = 0
        landed = low
        for i in range(low, high):
            while landed < high and end[lands[landed]] <= start[i]:
                t = lands[landed]
                landed += 1
                rank = dst[t]
                if gathers[t]:
                    summed[rank] = max(summed[rank], passed[t]) if adds[t] else passed[t]
                elif copies[rank] < 0 or passed[t] < copies[rank]:
                    copies[rank] = passed[t]
            passed[i] = 1 + (summed[src[i]] if gathers[i] else max(0, copies[src[i]]))
    return passed
