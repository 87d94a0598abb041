"""Contributions of ranks to sums as bit masks, and the search for arrivals that compose a sum."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

#: Max search steps to compose one sum from arrivals.
_MOST_STEPS = 100_000


class Arrival(NamedTuple):
    """A sum that arrived at a rank: time, contributing ranks as a bit mask, and send (-1: the rank's own)."""

    end: int
    bits: int
    send: int


def bits_of(ranks: Iterable[int]) -> int:
    """Bit mask of a set of ranks."""
    return sum(1 << rank for rank in set(ranks))


def all_bits(sets: Iterable[Collection[int]]) -> list[int]:
    """Bit masks of sets of ranks; equal sets are converted once."""
    rows = [tuple(ranks) for ranks in sets]
    bits = {ranks: bits_of(ranks) for ranks in set(rows)}
    return [bits[ranks] for ranks in rows]


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
