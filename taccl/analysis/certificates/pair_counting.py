"""Pair counting: a bound from the (contribution, rank) pairs that sends into a set of ranks can serve.

A pair is a rank outside a set that contributes to a sum, and a rank of the set that wants the sum. The last
send into the set on the path between them serves the pair. It carries only contributions that its sender can
hold when it starts, and serves only ranks that its data can reach before the finish. So early sends carry
few contributions, and late ones serve few ranks. See docs/formulation.md, "Pair counting".
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np

from taccl._internal.units import format_count
from taccl.analysis.certificates.certificate import Claim, Labels, OfRanks
from taccl.analysis.certificates.evaluation.arrivals import reached
from taccl.analysis.certificates.evaluation.facts import NEVER, Facts
from taccl.analysis.certificates.evaluation.passages import passages
from taccl.analysis.certificates.finding.gates import (
    FOREVER,
    GateCosts,
    fastest_senders,
    first_tick,
    gates_of,
    labels_of,
    nearest,
    nearest_by_node,
    spread_times,
)
from taccl.analysis.certificates.finding.needed_sends import NeededSends
from taccl.analysis.certificates.finding.volume import crossing_links
from taccl.schedule.combine import reduce_phase

#: Max ranks, and max nodes, for which pair counting is evaluated.
_MOST_SETS = 8
#: Approximate max length of a list of (tick, number) labels; in longer lists, numbers are rounded up.
_MOST_STEPS = 12
#: Max ranks at which a chunk may start for shortest paths between ranks to limit arrival times.
#: For chunks that can start at more ranks, shortest paths between nodes limit arrival times.
_MOST_RANKS = 256


@dataclass(frozen=True, slots=True)
class PairCounting(OfRanks):
    """Witness of pair counting: ranks that want sums to which ranks outside contribute.

    - `collected`: ((ticks, most), ...): before `ticks`, a rank can hold the contributions of at most `most`
      ranks.
    - `spread`: ((ticks, most), ...): less than `ticks` after data entered at a rank of the set, at most
      `most` ranks of the set can hold them.
    """

    kind = proves = "pair counting"
    preference = 8
    ranks: frozenset[int]
    collected: Labels = ()
    spread: Labels = ()

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        return _pairs_left(facts, self, ticks)


def pair_counting_bounds(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Yield pair-counting bounds for a few ranks and a few nodes, one of each orbit under symmetry."""
    if not demand.sums_for_all or not demand.spreads_alike(in_network=in_network):
        return
    for name, sets in demand.families:
        for ranks in demand.different(sets)[:_MOST_SETS]:
            demand.deadline.check()
            pairs, ticks, labels = _served(demand, ranks)
            if ticks:
                what = f"{format_count(pairs, 'contribution')} that rank {min(ranks)} needs"
                if name == "node":
                    where = demand.topology.node_of_rank[min(ranks)]
                    pair = "of a contribution and a rank in node"
                    what = f"{format_count(pairs, 'pair')} {pair} {where} that needs it"
                yield Claim(ticks, what, PairCounting(ranks, *labels))


def _served(demand: NeededSends, ranks: frozenset[int]) -> tuple[int, int, tuple[Labels, Labels]]:
    """(number of (contribution, rank) pairs, earliest tick by which all can be served, witness's labels).

    The tick is 0 if there are no pairs. It is also 0 if a send into the set holds no resource, as any number
    of sends can then enter at once.
    """
    problem, pairs, adding, wanting = demand.problem, 0, 0, 0
    for (data, *_), count in demand.classes.items():
        some, wanted = len(set(data.origins) - ranks), len(ranks.intersection(data.destinations))
        pairs += count * some * wanted
        adding, wanting = max(adding, some), max(wanting, wanted)
    none = np.zeros(len(demand.costs.src), dtype=np.int64)
    gates = gates_of(demand.costs, crossing_links(problem, (ranks,)), none, none)
    if not pairs or not gates.hold.all():
        return pairs, 0, ((), ())
    backwards = GateCosts(reduce_phase(problem), int(problem.costs.chunk_units[0]))
    everyone = frozenset(range(demand.topology.num_ranks))
    collected = times_of(backwards, demand.allowed, everyone, everyone - ranks, adding)
    spread = times_of(demand.costs, demand.allowed, ranks, ranks, wanting)
    windows = windows_of(steps_of(collected), steps_of(spread))

    def served(ticks: int) -> int:
        @cache
        def within(since: int, tail: int) -> int:
            return int(gates.within(since, ticks - tail).sum())

        return sum(
            gain * min(sum(within(*window) for window in some), within(some[0][0], some[-1][1]))
            for gain, some in windows
        )

    labels = labels_of(collected), labels_of(spread)
    return pairs, first_tick(lambda ticks: served(ticks) >= pairs), labels


def times_of(
    costs: GateCosts, allowed: Collection[int], among: frozenset[int], starts: frozenset[int], num: int
) -> list[int]:
    """Earliest ticks at which 1, 2, ..., `num` ranks can hold a chunk; `FOREVER` if they never can.

    The chunk starts at one of the ranks `starts`, and travels over links between ranks of `among`.
    """
    if num == 1:
        return [0]
    inner, links = np.zeros(costs.num_ranks, dtype=bool), np.zeros(len(costs.src), dtype=bool)
    inner[list(among)], links[list(allowed)] = True, True
    links &= inner[costs.src] & inner[costs.dst]
    out = gates_of(costs, np.flatnonzero(links), costs.src, np.zeros_like(costs.src))
    received = spread_times(fastest_senders(out), [0], num)
    near = nearest if len(starts) <= _MOST_RANKS else nearest_by_node
    soonest = near(costs, links, np.array(sorted(starts)), inner)
    times: list[int] = np.maximum(received, soonest[:num]).tolist()
    return times


def steps_of(times: Sequence[int]) -> list[tuple[int, int]]:
    """[(tick, number), ...]: from each tick until the next one, at most `number` ranks can hold a chunk.

    Long lists of times are thinned out to about `_MOST_STEPS` entries.

    - `times`: Earliest ticks at which 1, 2, ... ranks can hold a chunk.
    """
    num, times = len(times), [ticks for ticks in times if ticks < FOREVER]
    factor = 1 if len(set(times)) <= _MOST_STEPS else num ** (1 / _MOST_STEPS)
    steps, number = [], 0
    while number < len(times):
        since, together = times[number], min(int((number + 1) * factor), len(times))
        number = bisect_right(times, times[together - 1])
        steps.append((since, number))
    return steps


#: [(gain, [window, ...]), ...] by level: a send in a window serves up to `gain` more pairs than below.
#: Sends in a window (since, tail) start at `since` or later, and end at least `tail` ticks before the finish.
Windows = list[tuple[int, list[tuple[int, int]]]]


def windows_of(collected: list[tuple[int, int]], spread: list[tuple[int, int]]) -> Windows:
    """Windows of time in which a send can serve many pairs: levels (gain, [(since, tail), ...]), ascending.

    A send serves at most `gain` more pairs than at the level below, and only if it lies in one of the
    windows: it starts at `since` or later, and ends at least `tail` ticks before the finish.
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


def _pairs_left(facts: Facts, witness: PairCounting, ticks: Fraction) -> bool:
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
    found = passages(facts, border)
    if not number or not all(gate.hold for gate in found):
        return False
    reduction = Facts(reduce_phase(facts.problem), divisible=False, in_network=False)
    outside = set(range(facts.topology.num_ranks)) - inside
    collected = reached(reduction, witness.collected, facts.allowed, most_added, starts=outside)
    within = [e for e in facts.allowed if {links[e].src, links[e].dst} <= inside]
    spread = reached(facts, witness.spread, within, most_wanted, starts=inside)
    if collected is None or spread is None:
        return False
    last = math.ceil(ticks) - 1
    passed: dict[tuple[int, int], int] = {}

    def passing(start: int, end: int) -> int:
        if (start, end) not in passed:
            passed[start, end] = sum(gate.between(start, end) for gate in found)
        return passed[start, end]

    served = 0
    for gain, spans in spans_of(stepwise(collected), stepwise(spread)):
        one_by_one = sum(passing(start, last - after) for start, after in spans.items())
        served += gain * min(one_by_one, passing(min(spans), last - min(spans.values())))
    return served < number


def spans_of(soonest: Mapping[int, int], latest: Mapping[int, int]) -> Iterator[tuple[int, dict[int, int]]]:
    """Yield (gain, {since: tail}) for each number of pairs that a send can serve, in ascending order.

    A send that serves this number serves `gain` pairs more than one that serves the number before. It can do
    so only if one entry admits it: it starts at `since` or later, and ends at least `tail` ticks before the
    finish.

    - `soonest`: {number of contributions: earliest tick at which a sender can hold that many}.
    - `latest`: {number of ranks: min ticks for data to reach that many}.
    """
    below = 0
    # A send that starts late enough carries up to n contributions; one that ends early enough serves k ranks.
    for pairs in sorted({n * k for n in soonest for k in latest}):
        spans: dict[int, int] = {}
        for n, start in soonest.items():
            after = min((after for k, after in latest.items() if n * k >= pairs), default=NEVER)
            if after < min(spans.values(), default=NEVER):
                spans[start] = after
        yield pairs - below, spans
        below = pairs


def stepwise(times: list[int]) -> dict[int, int]:
    """{number: tick}: from each tick until the next one, `number` is an upper bound on the items reached.

    Long lists of times are thinned out to about `_MOST_STEPS` entries.

    - `times`: Earliest ticks at which 1, 2, ... items can be reached.
    """
    most, times = len(times), [ticks for ticks in times if ticks < NEVER]
    steps: dict[int, int] = {}
    shrink = len(set(times)) > _MOST_STEPS
    number = 0
    while number < len(times):
        start = times[number]
        number = min(int((number + 1) * most ** (1 / _MOST_STEPS)) if shrink else number + 1, len(times))
        while number < len(times) and times[number] == times[number - 1]:
            number += 1
        steps[number] = start
    return steps
