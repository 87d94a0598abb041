"""Pair counting: each contribution must reach each rank that wants the sum, by few sends into a set.

A pair is a rank outside a set that contributes to a sum, and a rank of the set that wants the sum. Take the
last send into the set on the path between them. It carries only contributions that its sender can hold at its
start. It serves only ranks that its data can reach before the finish. Early sends therefore carry little, and
late ones serve few ranks. See docs/formulation.md, "Pair counting".
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator
from functools import cache

import numpy as np

from taccl.analysis.certificates.gates import (
    FOREVER,
    GateCosts,
    fastest_senders,
    first_tick,
    gates_of,
    nearest,
    waking,
)
from taccl.analysis.certificates.needed_sends import NeededSends
from taccl.analysis.certificates.volume import crossing_links
from taccl.analysis.certificates.witnesses import Claim, PairCounting
from taccl.schedule.combine import reduction_half
from taccl.units import format_count

#: Max ranks, and nodes, to examine.
_MOST_SETS = 8
#: Max steps to which the numbers of contributions, and of reached ranks, are rounded up.
_MOST_STEPS = 12
#: Max starting ranks for which distances are used.
_MOST_RANKS = 256


def pair_counting_bounds(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Yield claims for some ranks, and nodes, that no symmetry maps to an earlier one."""
    if not demand.sums_for_all or not demand.spreads_alike(in_network=in_network):
        return
    for name, sets in demand.families:
        for ranks in demand.different(sets)[:_MOST_SETS]:
            demand.deadline.check()
            pairs, ticks = _served(demand, ranks)
            if pairs:
                what = f"{format_count(pairs, 'contribution')} that rank {min(ranks)} needs"
                if name == "node":
                    where = demand.topology.node_of_rank[min(ranks)]
                    pair = "of a contribution and a rank of node"
                    what = f"{format_count(pairs, 'pair')} {pair} {where} that needs it"
                yield Claim(ticks, what, PairCounting(ranks))


def _served(demand: NeededSends, ranks: frozenset[int]) -> tuple[int, int]:
    """Number of pairs, and the earliest time by which sends into a set can have served them all."""
    problem, pairs, adding, wanting = demand.problem, 0, 0, 0
    for (data, *_), count in demand.classes.items():
        some, wanted = len(set(data.origins) - ranks), len(ranks.intersection(data.destinations))
        pairs += count * some * wanted
        adding, wanting = max(adding, some), max(wanting, wanted)
    none = np.zeros(len(demand.costs.src), dtype=np.int64)
    gates = gates_of(demand.costs, crossing_links(problem, (ranks,)), none, none)
    if not pairs or not gates.hold.all():
        return pairs, 0
    backwards = GateCosts(reduction_half(problem), int(problem.costs.chunk_units[0]))
    everyone = frozenset(range(demand.topology.num_ranks))
    windows = windows_of(
        steps_of(backwards, demand.allowed, everyone, everyone - ranks, adding),
        steps_of(demand.costs, demand.allowed, ranks, ranks, wanting),
    )

    def served(ticks: int) -> int:
        @cache
        def within(since: int, tail: int) -> int:
            return int(gates.within(since, ticks - tail).sum())

        return sum(
            gain * min(sum(within(*window) for window in some), within(some[0][0], some[-1][1]))
            for gain, some in windows
        )

    return pairs, first_tick(lambda ticks: served(ticks) >= pairs)


def steps_of(
    costs: GateCosts, allowed: Collection[int], among: frozenset[int], starts: frozenset[int], num: int
) -> list[tuple[int, int]]:
    """(ticks, number): max ranks that can hold a chunk from these ticks on, the first one included.

    The chunk starts at one of `starts`, and travels over links between ranks of `among`.
    """
    inner, links = np.zeros(costs.num_ranks, dtype=bool), np.zeros(len(costs.src), dtype=bool)
    inner[list(among)], links[list(allowed)] = True, True
    links &= inner[costs.src] & inner[costs.dst]
    out = gates_of(costs, np.flatnonzero(links), costs.src, np.zeros_like(costs.src))
    woken = waking(fastest_senders(out), [0], num)
    if len(starts) <= _MOST_RANKS:
        woken = np.maximum(woken, nearest(costs, links, np.array(sorted(starts)), inner)[:num]).tolist()
    times = [ticks for ticks in woken if ticks < FOREVER]
    factor = 1 if len(set(times)) <= _MOST_STEPS else num ** (1 / _MOST_STEPS)
    steps, number = [], 0
    while number < len(times):
        since, together = times[number], min(int((number + 1) * factor), len(times))
        number = bisect_right(times, times[together - 1])
        steps.append((since, number))
    return steps


#: (gain, [(since, tail), ...]) by ascending number of pairs that a send can serve.
Windows = list[tuple[int, list[tuple[int, int]]]]


def windows_of(collected: list[tuple[int, int]], spread: list[tuple[int, int]]) -> Windows:
    """(gain, [(since, tail), ...]) by ascending number of pairs that a send can serve.

    A send serves at most `gain` more pairs than at the level before, and only if it lies in a window. It must
    start at `since` or later, and end at least `tail` ticks before the finish.
    """
    levels, before = [], 0
    for pairs in sorted({brings * reaches for _, brings in collected for _, reaches in spread}):
        some: list[tuple[int, int]] = []
        for since, brings in collected:
            tail = next((tail for tail, reaches in spread if brings * reaches >= pairs), None)
            if tail is not None and (not some or tail < some[-1][1]):
                some.append((since, tail))
        levels.append((pairs - before, some))
        before = pairs
    return levels
