"""The compiled core of the verifiers of very many sends: sends replayed in order of time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taccl.kernels import compiled

if TYPE_CHECKING:
    from typing import Any

    from numpy.typing import NDArray

__all__ = [
    "ABSENT", "BUSY", "DOUBLE", "LOST", "MISSING", "OK", "RACE", "by_chunk", "replay_sends", "replay_sums",
]  # fmt: skip

#: Of a send: its source has not got the chunk, or a resource is held. Of a sum that arrives: its order with
#: another decides, it is added a second time, it wipes out others; or in the end a contribution is missing.
OK, ABSENT, BUSY, RACE, DOUBLE, LOST, MISSING = 0, 1, 2, 3, 4, 5, 6
#: Contributions that are followed at a time: bits of a number that is not negative.
_WORD = 62
_NO_TREES = -1


@compiled
def _place_of(
    chunk: int, rank: int, num_ranks: int, keys: NDArray[np.int64], first: NDArray[np.int64]
) -> int:
    """What `Places.of` returns, looked for among the few keys of the chunk alone."""
    key = chunk * num_ranks + rank
    if len(first) == 0:
        return key
    low, end = first[chunk], first[chunk + 1]
    high = end
    while low < high:
        middle = (low + high) >> 1
        if keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    if low < end and keys[low] == key:
        return int(low)
    return len(keys)


@compiled
def replay_sends(
    chunk: NDArray[np.int64], link: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64],
    src: NDArray[np.int64], dst: NDArray[np.int64],
    num_ranks: int, keys: NDArray[np.int64], first: NDArray[np.int64], since: NDArray[Any], never: int,
    free: NDArray[np.int64], hold_of: NDArray[np.int64], hold_resource: NDArray[np.int64],
    hold_alpha: NDArray[np.int64], hold_beta: NDArray[np.int64], units: NDArray[np.int64],
) -> tuple[int, int, int]:  # fmt: skip
    """The kind and number of the first fault among sends in order of start, and how many bring nothing new.

    Parameters
    ----------
    chunk, link, start, end : (num_sends,)
    src, dst : (num_links,)
    num_ranks, keys, first, since, never
        Of `Places`; `since` is kept up to date. An empty `since`: only resources are looked at.
    free : (num_resources,)
        When each resource is free again; kept up to date.
    hold_of, hold_resource, hold_alpha, hold_beta
        Link e holds what rows ``hold_of[e]:hold_of[e + 1]`` say, from the start of a send.
    units : (num_chunks,)
    """
    num_redundant = 0
    for i in range(len(chunk)):
        e, c, time = link[i], chunk[i], start[i]
        if len(since):
            if since[_place_of(c, src[e], num_ranks, keys, first)] > time:
                return ABSENT, i, num_redundant
            enters = _place_of(c, dst[e], num_ranks, keys, first)
            num_redundant += since[enters] != never
            since[enters] = min(since[enters], end[i])
        for h in range(hold_of[e], hold_of[e + 1]):
            if free[hold_resource[h]] > time:
                return BUSY, i, num_redundant
        # Only then, as a link may hold a resource by two rows.
        for h in range(hold_of[e], hold_of[e + 1]):
            r = hold_resource[h]
            free[r] = max(free[r], time + hold_alpha[h] + units[c] * hold_beta[h])
    return OK, 0, num_redundant


@compiled
def by_chunk(chunk: NDArray[np.int64], number: int, after: NDArray[np.int64], order: NDArray[Any]) -> None:
    """Enter some sends, numbered from `number` on, into `order`; ``after[c]`` is where the next of c goes."""
    for i in range(len(chunk)):
        order[after[chunk[i]]] = number + i
        after[chunk[i]] += 1


@compiled(allocates=True)
def replay_sums(
    first: NDArray[np.int64], src: NDArray[np.int64], dst: NDArray[np.int64],
    start: NDArray[np.int64], end: NDArray[np.int64], adds: NDArray[np.bool_], lands: NDArray[np.int64],
    root: NDArray[np.int64],
    origins: tuple[NDArray[np.int64], NDArray[np.int64]], origins_of: NDArray[np.int32],
    wanted: tuple[NDArray[np.int64], NDArray[np.int64]], wanted_of: NDArray[np.int32],
    num_ranks: int, gathers: NDArray[np.bool_],
) -> tuple[int, int, int, int]:  # fmt: skip
    """The kind of a fault among sums, its chunk, its send or rank, and how many copies are redundant.

    What a rank holds of a chunk is a set of contributions. Where sums go along trees each is told by its
    size; else sets are followed, some contributions at a time.

    Parameters
    ----------
    first : (num_chunks + 1,)
        Sends of chunk c are ``first[c]:first[c + 1]``, in order of start.
    src, dst, start, end, adds : (num_sends,)
        `adds`: it is added to what its destination holds, rather than put in its place.
    lands : (num_sends,)
        Sends in order of chunk and end; of what ends at one moment, what is added comes first.
    root : (num_chunks,)
        -1 where there is none.
    origins, origins_of
        Sets of ranks as of `flat_sets`, and the number of the set that contributes to each chunk.
    wanted, wanted_of
        The same of where its sum must end.
    gathers : (num_sends,)
        Is told whether each send is on its way to the root: while its source or the root lack contributions.
    """
    size, held, last = np.zeros((3, num_ranks), np.int64)
    spent = np.zeros(num_ranks, np.bool_)
    num_redundant = 0
    for c in range(len(first) - 1):
        given = origins[0][origins[1][origins_of[c]] : origins[1][origins_of[c] + 1]]
        ends = wanted[0][wanted[1][wanted_of[c]] : wanted[1][wanted_of[c] + 1]]
        mine = slice(first[c], first[c + 1])
        landing = lands[mine] - first[c]
        kind, at, redundant = _along_trees(
            src[mine], dst[mine], start[mine], end[mine], adds[mine], gathers[mine], landing,
            given, ends, root[c], size, spent,
        )  # fmt: skip
        if kind == _NO_TREES:
            kind, at, redundant = _as_sets(
                src[mine], dst[mine], start[mine], end[mine], adds[mine], gathers[mine], landing,
                given, ends, root[c], held, size, last,
            )  # fmt: skip
        if kind != OK:
            return kind, c, at if kind == MISSING else first[c] + at, 0
        num_redundant += redundant
    return OK, 0, 0, num_redundant


@compiled(allocates=True)
def _along_trees(
    src: NDArray[np.int64], dst: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64],
    adds: NDArray[np.bool_], gathers: NDArray[np.bool_], lands: NDArray[np.int64],
    origins: NDArray[np.int64], ends: NDArray[np.int64], root: int,
    size: NDArray[np.int64], spent: NDArray[np.bool_],
) -> tuple[int, int, int]:  # fmt: skip
    """As `replay_sums`, of one chunk whose partial sums each go one way, or `_NO_TREES`.

    A rank adds what it holds to another's once, after all that comes to it; only whole sums are copied. Then
    every contribution is in one sum that has not been sent on, so that no two of these have one in common,
    and the number of contributions tells whether one is whole.
    """
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


@compiled(allocates=True)
def _as_sets(
    src: NDArray[np.int64], dst: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64],
    adds: NDArray[np.bool_], gathers: NDArray[np.bool_], lands: NDArray[np.int64],
    origins: NDArray[np.int64], ends: NDArray[np.int64], root: int,
    held: NDArray[np.int64], size: NDArray[np.int64], last: NDArray[np.int64],
) -> tuple[int, int, int]:  # fmt: skip
    """As `replay_sums`, of one chunk, whatever its sends do: a word of contributions at a time.

    Of the faults of a word the first in time is named, and of these a race, whichever arrival comes first.
    `size` tells whether a rank holds any contribution.
    """
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
        if kind != LOST and (kind != OK or missing >= 0):  # what wipes out in this word may race in another
            break
    if kind == OK and missing >= 0:
        return MISSING, missing, 0
    return kind, at, int(same.sum())
