"""Checks of pair counting: the contributions that can reach the ranks in time, send by send."""

# n contributions in a send, k ranks that its data can reach

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from fractions import Fraction
from itertools import chain, repeat

from taccl.analysis.certificates.check_facts import NEVER, Facts
from taccl.analysis.certificates.check_gates import passages, passages_of
from taccl.analysis.certificates.check_spread_tail import fastest, reached
from taccl.analysis.certificates.witnesses import PairCounting
from taccl.schedule.combine import reduction_half

#: Max steps to which numbers of contributions, and of ranks, are rounded up.
_STEPS = 12
#: Max ranks for which distances are used; above it, all ranks count as near.
_MOST_RANKS = 256


def pairs_left(facts: Facts, witness: PairCounting, ticks: Fraction) -> bool:
    """True if every schedule that ends before `ticks` leaves a (contribution, rank) pair unserved."""
    if not facts.spreads_alike or not facts.sums or facts.divisible:
        return False
    links, inside = facts.topology.links, witness.ranks
    number, most_added, most_wanted = 0, 0, 0
    for data in facts.collective.chunks:
        added, wanted = len(set(data.origins) - inside), len(inside.intersection(data.destinations))
        number += added * wanted
        most_added, most_wanted = max(most_added, added), max(most_wanted, wanted)
    border = [e for e in facts.allowed if links[e].src not in inside and links[e].dst in inside]
    ways = passages(facts, border)
    if not number or not all(way.hold for way in ways):
        return False
    turned = Facts(reduction_half(facts.problem), divisible=False, in_network=False)
    outside = set(range(facts.topology.num_ranks)) - inside
    soonest = _soonest(turned, facts.allowed, outside, most_added)
    within = [e for e in facts.allowed if {links[e].src, links[e].dst} <= inside]
    latest = _soonest(facts, within, inside, most_wanted)
    last = math.ceil(ticks) - 1
    passed: dict[tuple[int, int], int] = {}

    def passing(start: int, end: int) -> int:
        if (start, end) not in passed:
            passed[start, end] = sum(way.between(start, end) for way in ways)
        return passed[start, end]

    # A send that can serve this many pairs or more starts late enough for n, and ends early enough for k.
    served = 0
    for gain, spans in spans_of(soonest, latest):
        one_by_one = sum(passing(start, last - after) for start, after in spans.items())
        served += gain * min(one_by_one, passing(min(spans), last - min(spans.values())))
    return served < number


def spans_of(soonest: Mapping[int, int], latest: Mapping[int, int]) -> Iterator[tuple[int, dict[int, int]]]:
    """(gain, {start: tail}): spans in which a send can serve `gain` pairs more than at the level before.

    A send in a span starts at `start` or later, and ends at least `tail` ticks before the finish.
    """
    below = 0
    for pairs in sorted({n * k for n in soonest for k in latest}):
        spans: dict[int, int] = {}
        for n, start in soonest.items():
            after = min((after for k, after in latest.items() if n * k >= pairs), default=NEVER)
            if after < min(spans.values(), default=NEVER):
                spans[start] = after
        yield pairs - below, spans
        below = pairs


def _soonest(facts: Facts, links: list[int], starts: Collection[int], most: int) -> dict[int, int]:
    """{number: ticks} until a chunk can be at more ranks than the previous number, up to this one."""
    times = reached(fastest(passages_of(facts, links, facts.src).values()), [0], most)
    if facts.topology.num_ranks <= _MOST_RANKS:
        # The first rank is one of `starts`, and a path leads from it to each further rank.
        times = [*map(max, times, chain(facts.nearest(links, starts), repeat(NEVER)))]
    return stepwise(times, most)


def stepwise(times: list[int], most: int) -> dict[int, int]:
    """Times in few steps: {number: ticks} until more than the previous number can be reached."""
    times = [ticks for ticks in times if ticks < NEVER]
    steps: dict[int, int] = {}
    shrink = len(set(times)) > _STEPS
    number = 0
    while number < len(times):
        start = times[number]
        number = min(int((number + 1) * most ** (1 / _STEPS)) if shrink else number + 1, len(times))
        while number < len(times) and times[number] == times[number - 1]:
            number += 1
        steps[number] = start
    return steps
