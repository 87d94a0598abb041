"""Loops over the sends of chunks that are summed, chunk by chunk; see `loops`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from taccl.analysis.verification.loops import NEVER

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from taccl.analysis.verification.columns import LinkEnds

#: Codes of faults of a sum. A send fails if a source has no contribution (ABSENT) or shares one with another
#: source (SHARED). An arrival fails if its order with a simultaneous arrival matters (RACE), if it adds a
#: contribution twice (DOUBLE), or if it overwrites contributions (LOST). The end fails if one lacks
#: (MISSING).
ABSENT, SHARED, RACE, DOUBLE, LOST, MISSING = 1, 2, 3, 4, 5, 6
#: Contributions tracked in one pass: the bits of a nonnegative int64 below its top bit.
WORD = 62


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


class Buffers(NamedTuple):
    """State of one chunk's buffers, by rank, and of its sends; contents need no preparation.

    - `held`, `last`, (num_ranks,) int64, `present`, (num_ranks,) bool: Contributions (or their number), the
      last arrival, and whether there is any contribution (or whether it was sent on).
    - `taken`, `full`, (num_sends,): Contributions under way, and whether there are any.
    - `slot`, (num_sends + 1,), `same`, (num_arrivals,): Arrivals of every send; those that change nothing.
    """

    held: NDArray[np.int64]
    last: NDArray[np.int64]
    present: NDArray[np.bool_]
    taken: NDArray[np.int64]
    full: NDArray[np.bool_]
    slot: NDArray[np.int64]
    same: NDArray[np.bool_]


def accept_trees(
    sums: Sums, chunks: SumChunks, ends: LinkEnds, buffers: Buffers, accepted: NDArray[np.bool_]
) -> int:
    """Accept chunks whose partial sums travel along trees and arrive; return the number of redundant copies.

    The tree rule has two conditions. A rank adds its partial sum to another's once, after all its own
    arrivals. Only whole sums are copied. Every contribution is then in exactly one sum that has not been sent
    on. These sums are therefore disjoint, and a sum is whole if its number of contributions is. Other chunks
    are left to `replay_sums`.
    """
    size, spent, taken = buffers.held, buffers.present, buffers.taken
    num_redundant = 0
    for c in range(len(accepted)):
        low, high, root = chunks.first[c], chunks.first[c + 1], chunks.root[c]
        given, given_end = chunks.given[c], chunks.given_end[c]
        want, want_end = chunks.want[c], chunks.want_end[c]
        whole, redundant, landed, is_tree = given_end - given, 0, low, True
        for i in range(low, high):
            e = sums.link[i]
            is_tree &= ends.first[e + 1] - ends.first[e] == 2
            for at in range(ends.first[e], ends.first[e + 1]):
                size[ends.rank[at]], spent[ends.rank[at]] = 0, False
        for at in range(want, want_end):
            size[chunks.wanted[at]] = 0
        if root >= 0:
            size[root] = 0
        for at in range(given, given_end):
            size[chunks.origins[at]] = 1
        i = low
        while is_tree and (i < high or landed < high):
            t = sums.lands[landed]
            if i == high or sums.end[t] <= sums.start[i]:
                rank = ends.rank[ends.middle[sums.link[t]]]
                landed += 1
                if not sums.adds[t]:
                    redundant += size[rank] == whole
                    size[rank] = whole
                elif spent[rank] or size[rank] == whole:
                    is_tree = False
                else:
                    size[rank] += taken[t]
                continue
            rank = ends.rank[ends.first[sums.link[i]]]
            number, adds = size[rank], sums.adds[i]
            if number == 0 or (number == whole) == adds or (adds and spent[rank]):
                is_tree = False
            taken[i] = number
            spent[rank] |= adds
            sums.gathers[i] = number != whole or (root >= 0 and size[root] != whole)
            i += 1
        for at in range(want, want_end):
            is_tree &= size[chunks.wanted[at]] == whole
        accepted[c] = is_tree
        num_redundant += redundant * is_tree
    return num_redundant


def replay_sums(
    sums: Sums, chunks: SumChunks, ends: LinkEnds, buffers: Buffers, open_chunks: NDArray[np.int64],
    whole_since: NDArray[np.int64], faults: NDArray[np.int64],
) -> tuple[int, int]:  # fmt: skip
    """Replay sums with arbitrary sends: (number of faults, number of redundant copies).

    The contents of a rank's buffer for a chunk are a set of contributions, tracked one word of contributions
    at a time.

    - `open_chunks`: Chunks to replay.
    - `whole_since`, (num_chunks,): Output: tick from which each chunk's root holds the whole sum, or `NEVER`.
    - `faults`, (most, 6): Output: chunk, code, send (-1 at the end), rank, index of the word's first
      contribution in ``chunks.origins``, and the contributions at fault as bits of that word.
    """
    held, last, present, taken, full, slot, same = buffers
    count = num_redundant = 0
    for c in open_chunks:
        low, high, root = chunks.first[c], chunks.first[c + 1], chunks.root[c]
        given, given_end = chunks.given[c], chunks.given_end[c]
        want, want_end = chunks.want[c], chunks.want_end[c]
        whole_since[c] = -NEVER
        for i in range(low, high):
            sums.gathers[i] = False
            for at in range(slot[i], slot[i + 1]):
                same[at] = not sums.adds[i]
        for base in range(given, given_end, WORD):
            for i in range(low, high):
                for at in range(ends.first[sums.link[i]], ends.first[sums.link[i] + 1]):
                    held[ends.rank[at]], present[ends.rank[at]], last[ends.rank[at]] = 0, False, -1
            for at in range(want, want_end):
                held[chunks.wanted[at]] = 0
            if root >= 0:
                held[root], last[root] = 0, -1
            whole, root_since = 0, NEVER
            for at in range(given, given_end):
                held[chunks.origins[at]], present[chunks.origins[at]] = 0, True
            for at in range(base, min(base + WORD, given_end)):
                held[chunks.origins[at]] = 1 << (at - base)
                whole |= 1 << (at - base)
            if root >= 0 and held[root] == whole:
                root_since = -NEVER
            landed, i = low, low
            while i < high or landed < high:
                t = sums.lands[landed]
                if i == high or sums.end[t] <= sums.start[i]:
                    landed += 1
                    e, adds, now = sums.link[t], sums.adds[t], sums.end[t]
                    for at in range(ends.middle[e], ends.first[e + 1] if full[t] else ends.middle[e]):
                        rank = ends.rank[at]
                        before, other, code, bits = held[rank], last[rank], 0, 0
                        if (
                            other >= 0
                            and sums.end[other] == now
                            and not (adds and sums.adds[other])
                            and (adds or sums.adds[other] or taken[other] != taken[t])
                        ):
                            code = RACE
                        elif adds and before & taken[t]:
                            code, bits = DOUBLE, before & taken[t]
                        elif not adds and before & ~taken[t]:
                            code, bits = LOST, before & ~taken[t]
                        if code:
                            if count < len(faults):
                                faults[count, 0], faults[count, 1], faults[count, 2] = c, code, t
                                faults[count, 3], faults[count, 4], faults[count, 5] = rank, base, bits
                            count += 1
                        same[slot[t] + at - ends.middle[e]] &= before == taken[t]
                        held[rank] = before | taken[t] if adds else taken[t]
                        present[rank], last[rank] = True, t
                        if rank == root and held[rank] == whole:
                            root_since = min(root_since, now)
                    continue
                e, bits, full[i] = sums.link[i], 0, False
                for at in range(ends.first[e], ends.middle[e]):
                    rank = ends.rank[at]
                    mine, code = held[rank], 0
                    if not present[rank] and base == given:
                        code = ABSENT
                    elif bits & mine:
                        code = SHARED
                    if code:
                        if count < len(faults):
                            faults[count, 0], faults[count, 1], faults[count, 2] = c, code, i
                            faults[count, 3], faults[count, 4], faults[count, 5] = rank, base, bits & mine
                        count += 1
                    full[i] |= present[rank]
                    bits |= mine
                    sums.gathers[i] |= mine != whole or (root >= 0 and held[root] != whole)
                taken[i] = bits
                i += 1
            whole_since[c] = max(whole_since[c], root_since)
            for at in range(want, want_end):
                missing = whole & ~held[chunks.wanted[at]]
                if missing:
                    if count < len(faults):
                        faults[count, 0], faults[count, 1], faults[count, 2] = c, MISSING, -1
                        faults[count, 3], faults[count, 4], faults[count, 5] = (
                            chunks.wanted[at],
                            base,
                            missing,
                        )
                    count += 1
        for i in range(low, high):
            for at in range(slot[i], slot[i + 1]):
                num_redundant += full[i] and same[at]
    return count, num_redundant


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
