"""Contributions of ranks to sums as bit masks, and the search for arrivals that compose a sum."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arrays import Ints, first_rows, lexsort, numbered, ranges

#: Max search steps to compose one sum from arrivals.
_MOST_STEPS = 100_000


class Arrival(NamedTuple):
    """A sum that arrived at a rank: time, contributing ranks as a bit mask, and send (-1: the rank's own)."""

    end: int
    bits: int
    send: int


class Carried(Sequence[tuple[int, ...]]):
    """Contributions that transfers name, as distinct sums: a sequence of the ranks of each transfer's sum.

    - `sums`: Distinct sums, each as its ranks in ascending order.
    - `number`, (num_transfers,) int64: Index of each transfer's sum.
    """

    def __init__(self, sums: Iterable[Collection[int]], number: NDArray[np.int64]) -> None:
        index: dict[tuple[int, ...], int] = {}
        known = np.array([index.setdefault(tuple(sorted(each)), len(index)) for each in sums], np.int64)
        self.sums, self.number = tuple(index), known[number]

    @classmethod
    def of(cls, contributions: Sequence[Collection[int]]) -> Carried:
        """Contributions of each transfer in this form; raises `TypeError` if they are no collections."""
        if isinstance(contributions, Carried):
            return contributions
        index: dict[tuple[int, ...], int] = {}
        number = [index.setdefault(tuple(ranks), len(index)) for ranks in contributions]
        return cls(index, np.array(number, np.int64))

    def in_order(self) -> tuple[tuple[tuple[int, ...], ...], NDArray[np.int32]]:
        """(sums that transfers carry, in order of their first transfers; index of each transfer's sum)."""
        used, first, number = numbered(self.number)
        order = np.argsort(first)
        place = np.argsort(order).astype(np.int32)
        return tuple(self.sums[i] for i in used[order].tolist()), place[number]

    @cached_property
    def bits(self) -> list[int]:
        """Bit mask of each sum."""
        return [bits_of(ranks) for ranks in self.sums]

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """(num_sums,) Number of ranks that contribute to each sum."""
        return np.array([len({*ranks}) for ranks in self.sums], np.int64)

    def words(self, num_ranks: int) -> NDArray[np.uint64]:
        """Bit masks of the sums as words of 64 bits for at least `num_ranks` ranks, (num_sums, num_words)."""
        num_words = -(-max(1, num_ranks, *(bits.bit_length() for bits in self.bits)) // 64)
        every = b"".join(bits.to_bytes(8 * num_words, "little") for bits in self.bits)
        return np.frombuffer(every, "<u8").reshape(-1, num_words).astype(np.uint64)

    def __len__(self) -> int:
        return len(self.number)

    @overload
    def __getitem__(self, place: int) -> tuple[int, ...]: ...
    @overload
    def __getitem__(self, place: slice) -> list[tuple[int, ...]]: ...
    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self.sums[i] for i in self.number[place].tolist()]
        return self.sums[self.number[place]]

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        return map(self.sums.__getitem__, self.number.tolist())


def bits_of(ranks: Iterable[int]) -> int:
    """Bit mask of a set of ranks."""
    return sum(1 << rank for rank in set(ranks))


def make_up(wanted: int, arrivals: Sequence[Arrival]) -> list[Arrival] | None:
    """Disjoint arrivals that compose a sum, early ones preferred; None if the search finds no composition.

    This is an exact cover problem, searched depth first by the lowest missing rank. The search gives up after
    `_MOST_STEPS` steps.

    - `wanted`: Bit mask of the ranks that contribute to the sum.
    """
    parts, union = [], 0
    for each in arrivals:
        if not each.bits & ~wanted:
            if each.bits & union:
                break
            union |= each.bits
            parts.append(each)
    else:
        if union == wanted:  # all arrivals within the sum are disjoint, so this is the only composition
            return parts
    by_lowest: dict[int, list[Arrival]] = defaultdict(list)
    for each in sorted(set(arrivals)):
        if not each.bits & ~wanted:
            by_lowest[each.bits & -each.bits].append(each)
    chosen: list[Arrival] = []
    untried: list[tuple[int, Iterator[Arrival]]] = []
    missing, steps = wanted, 0
    while missing:
        if len(untried) == len(chosen):
            untried.append((missing, iter(by_lowest[missing & -missing])))
        missing, candidates = untried[-1]
        found = next((each for each in candidates if not each.bits & ~missing), None)
        steps += 1
        if found is not None:
            chosen.append(found)
            missing &= ~found.bits
            continue
        untried.pop()
        if not untried or steps > _MOST_STEPS:
            return None
        chosen.pop()
    return chosen


def compositions(
    carried: Carried, wanted: Ints, own: Ints, begin: Ints, end: Ints, last: Ints, sums: Ints
) -> tuple[Ints, Ints, list[int]]:
    """Arrivals that compose sums: (index of the sum, arrival) columns by sum, and sums without composition.

    If all arrivals within a sum are disjoint and complete it, they compose it. If they are incomplete without
    arrivals of the whole sum, the first of these does. Otherwise `make_up` searches.

    - `wanted`, (num_wanted,): Index in `carried` of each sum.
    - `own`, (num_wanted,): Rank whose own data may be a part of the sum; -1 for none.
    - `begin`, `end`, (num_wanted,): Range of arrivals to compose the sum from.
    - `last`, (num_wanted,): End of the range to take if the range to `end` does not suffice.
    - `sums`, (num_arrivals,): Index in `carried` of the sum that each arrival brings.
    """
    words = carried.words(int(own.max(initial=0)) + 1)
    row, each = ranges(begin, end)
    within = ~(words[sums[each]] & ~words[wanted[row]]).any(axis=1)
    row, each = row[within], each[within]
    is_whole = sums[each] == wanted[row]
    lone, first = first_rows(row[is_whole])
    whole, row, each = each[is_whole][first], row[~is_whole], each[~is_whole]
    has_whole = np.isin(np.arange(len(wanted)), lone)
    union, size = np.zeros((len(wanted), words.shape[1]), np.uint64), np.zeros(len(wanted), np.int64)
    first = np.flatnonzero(np.diff(row, prepend=-1))
    if len(first):
        union[row[first]] = np.bitwise_or.reduceat(words[sums[each]], first)
        size[row[first]] = np.add.reduceat(carried.sizes[sums[each]], first)
    word, bit = own // 64, np.uint64(1) << (own % 64).astype(np.uint64)
    has_own = np.flatnonzero((own >= 0) & ((words[wanted, word] & bit) > 0))
    union[has_own, word[has_own]] |= bit[has_own]
    size[has_own] += 1
    is_full = (union == words[wanted]).all(axis=1)
    by_parts, by_whole = ~has_whole & is_full & (size == carried.sizes[wanted]), has_whole & ~is_full
    rows = [row[by_parts[row]], lone[by_whole[lone]]]
    parts = [each[by_parts[row]], whole[by_whole[lone]]]
    missing = []
    for k in np.flatnonzero(~(by_parts | by_whole)).tolist():
        known = [Arrival(-1, 1 << int(own[k]), -1)] if own[k] >= 0 else []
        known += [Arrival(i, carried.bits[sums[i]], i) for i in range(begin[k], last[k])]
        count = len(known) - int(last[k] - end[k])
        found = make_up(carried.bits[wanted[k]], known[:count]) or make_up(carried.bits[wanted[k]], known)
        if found is None:
            missing.append(k)
            continue
        parts.append(np.array([part.send for part in found if part.send >= 0], np.int64))
        rows.append(np.full(len(parts[-1]), k))
    row, part = np.concatenate(rows), np.concatenate(parts)
    order = lexsort((row,))
    return row[order], part[order], missing
