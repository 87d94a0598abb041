"""Mean flow time: a bound from the mean time at which bytes leave one rank and enter another.

All bytes of a send leave at its end. With few sends, early bytes wait for later ones; with many sends, each
adds its latency. So the mean byte leaves the source late. The same holds in reversed time: the mean byte
enters the target long before the finish. In between, bytes cross the network; sums that servers update pass
their servers. See docs/formulation.md, "Mean flow time".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
from numpy.typing import NDArray

from taccl.analysis.certificates.certificate import Claim, Witness
from taccl.analysis.certificates.evaluation.facts import NEVER, Facts, lanes
from taccl.analysis.certificates.finding.distances import shortest_times
from taccl.analysis.certificates.finding.needed_sends import Lane, NeededSends
from taccl.analysis.certificates.finding.volume import crossing_links
from taccl.problem.costs import link_ends
from taccl.problem.problem import Problem

#: Max ranks for which all pairs of source and target are examined (about 1 s).
_MOST_RANKS = 256
#: Max product of units and ticks, which is exact in 64 bits.
_MOST_WORK = 2**62


@dataclass(frozen=True, slots=True)
class FlowTime(Witness):
    """Witness of mean flow time: two ranks, resources that cover the links out of and into them, and prices.

    If servers update sums, both may be one rank, whose contribution comes back in the sum.

    - `leaving`, `entering`: Resources that cover the links out of `source`, and into `target`. A link is
      assigned to the first of them that it holds.
    - `prices`: Dual prices in ticks: flow times of the marginal byte out of `source`, and into `target`.
    """

    kind = proves = "mean flow time"
    preference = 10
    any_chunking = True
    source: int
    target: int
    leaving: tuple[int, ...]
    entering: tuple[int, ...]
    prices: tuple[Fraction, Fraction]

    def fits(self, problem: Problem) -> bool:
        """True if the problem has the ranks and resources, and no field names a resource twice."""
        ranks, resources = problem.topology.num_ranks, len(problem.topology.resources)
        named = (
            (self.leaving, resources),
            (self.entering, resources),
            ((self.source,), ranks),
            ((self.target,), ranks),
        )
        return all(len({*some}) == len(some) and {*some} <= {*range(most)} for some, most in named)

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        return ticks <= _least_ticks(facts, self)


def flow_time_bounds(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Yield the highest mean-flow-time bound over all pairs of ranks.

    Only pairs without a link between them count, unless servers update sums.
    """
    problem, num_ranks = demand.problem, demand.topology.num_ranks
    if in_network or not demand.single_ended or problem.collective.derivations or num_ranks > _MOST_RANKS:
        return
    demand.deadline.check()
    passing = _passing_servers if problem.collective.updates else _passing
    units, between = passing(demand)
    pairs = np.argwhere((units > 0) & np.isfinite(between) & (between >= 0))
    lanes = {}
    for rank in sorted({*pairs.ravel().tolist()}):
        demand.deadline.check()
        for entering in (False, True):
            links = crossing_links(problem, (frozenset([rank]),), entering=entering).tolist()
            lanes[rank, entering] = demand.lanes(links)
    costs = {key: tuple(sorted(each.values())) for key, each in lanes.items()}

    @cache
    def mean(some: tuple[Lane, ...], count: int) -> tuple[Fraction, Fraction]:
        return _mean_ticks(some, count)

    best, of_best = Fraction(0), None
    for source, target in pairs[_first_of_kind(units, between, costs, pairs)].tolist():
        count, at_ends = int(units[source, target]), (costs[source, False], costs[target, True])
        if not all(at_ends):
            continue
        (before, price), (after, other) = (mean(some, count) for some in at_ends)
        ticks = before + after + int(between[source, target])
        if ticks > best:
            best, of_best = ticks, (source, target, (price, other))
    if of_best is not None:
        source, target, prices = of_best
        leaving, into = tuple(lanes[source, False]), tuple(lanes[target, True])
        ends = (target, source) if demand.is_reversed else (source, target)
        what = f"data from rank {ends[0]} to rank {ends[1]}, stored and forwarded send by send"
        yield Claim(best, what, FlowTime(source, target, leaving, into, prices))


def _first_of_kind(
    units: NDArray[np.int64],
    between: NDArray[np.float64],
    costs: dict[tuple[int, bool], tuple[Lane, ...]],
    pairs: NDArray[np.intp],
) -> NDArray[np.intp]:
    """Ascending rows of `pairs`: the first pair of each kind, as pairs of one kind have the same bound."""
    kinds = {each: index for index, each in enumerate(dict.fromkeys(costs.values()))}
    source, target = pairs.T
    leaving, entering = (
        np.array([kinds[costs[rank, is_target]] for rank in ranks.tolist()], np.int64)
        for is_target, ranks in ((False, source), (True, target))
    )
    kind = np.column_stack([leaving, entering, units[source, target], between[source, target]])
    return np.sort(np.unique(kind, axis=0, return_index=True)[1])


def _passing(demand: NeededSends) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Two (num_ranks, num_ranks) arrays: units of data of the row's rank that the column's rank wants; ticks.

    The ticks pass at least between a send out of the row's rank and one into the column's. Only alphas count.
    Entries are -1 where a link joins the two ranks directly.
    """
    found = np.zeros((demand.topology.num_ranks,) * 2, np.int64)
    for kind, count in demand.classes.items():
        if demand.sums_for_all or len(kind.data.origins) == 1:
            wanted = list(kind.data.destinations)
            for origin in kind.data.origins:
                found[origin, wanted] += kind.units * count
    np.fill_diagonal(found, 0)
    joined, onward, _ = _at_ends(demand.problem)
    between = np.array([onward[:, column].min(axis=1, initial=np.inf) for column in joined.T]).T
    return found, np.where(joined, -1.0, between)


def _passing_servers(demand: NeededSends) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """`_passing` for sums that pass the servers that update them; the ticks are a mean over the data."""
    _, onward, before = _at_ends(demand.problem)
    units, ticks = (np.zeros(onward.shape, np.int64) for _ in range(2))
    total, longest = sum(kind.units * count for kind, count in demand.classes.items()), 0.0
    for kind, count in demand.classes.items():
        server, number = kind.data.root, kind.units * count
        sources = [rank for rank in kind.data.origins if rank != server]
        targets = [rank for rank in kind.data.destinations if rank != server]
        passed = np.add.outer(onward[sources, server], before[server, targets])
        longest = max(longest, float(passed.max(initial=0.0)))
        if total * longest >= _MOST_WORK:  # also without a path
            return np.zeros_like(units), onward
        units[np.ix_(sources, targets)] += number
        ticks[np.ix_(sources, targets)] += number * passed.astype(np.int64)
    return units, (ticks // np.maximum(units, 1)).astype(np.float64)


def _at_ends(problem: Problem) -> tuple[NDArray[np.bool_], NDArray[np.float64], NDArray[np.float64]]:
    """Three (num_ranks, num_ranks) arrays: True where a link joins the ranks; ticks onward; ticks before.

    Onward: from the end of a send out of the row's rank until data is at the column's, by alphas alone.
    Before: from data at the row's rank to the start of a send into the column's.
    """
    links = tuple(problem.links_allowed)
    src, dst = (ends[list(links)] for ends in link_ends(problem.topology))
    joined = np.zeros((problem.topology.num_ranks,) * 2, bool)
    joined[src, dst] = True
    times = shortest_times(problem, links, 0)
    onward = np.array([times[row].min(axis=0, initial=np.inf) for row in joined])
    before = np.array([times[:, column].min(axis=1, initial=np.inf) for column in joined.T]).T
    return joined, onward, before


def _mean_ticks(lanes: Sequence[Lane], units: int) -> tuple[Fraction, Fraction]:
    """Least mean ticks until a unit of data has left, over all schedules, and the dual price that proves it.

    The price is a flow time in ticks. A unit gains the price minus its own flow time, and each lane carries
    the number of units that maximises its total gain. The number of units over all lanes is convex and
    piecewise linear in the price. Newton's method from above therefore ends at the price at which all units
    leave.
    """
    counted = Counter(lanes)
    caps = [Fraction(lane.idle + lane.alpha) for lane in lanes if not lane.beta]
    price = min(caps, default=Fraction(max(1, *(lane.idle + lane.alpha for lane in lanes))))

    def carried() -> tuple[Fraction, Fraction, Fraction]:
        """(units that all resources carry at the dual price, their derivative by the price, total gain)."""
        some = [(count, _carried(lane, price)) for lane, count in counted.items()]
        number, rate, gain = (sum((n * each[i] for n, each in some), Fraction(0)) for i in range(3))
        return number, rate, gain

    number, rate, gain = carried()
    while not caps and number < units:
        price *= 2
        number, rate, gain = carried()
    while number > units:
        price -= (number - units) / rate
        number, rate, gain = carried()
    return price - gain / units, price


def _carried(lane: Lane, price: Fraction) -> tuple[Fraction, Fraction, Fraction]:
    """Optimal load of a resource at a dual price: (units, their derivative by the price, total gain)."""
    left = price - lane.idle
    if left <= lane.alpha or not lane.beta:
        return Fraction(0), Fraction(0), Fraction(0)
    if not lane.alpha:
        return left / lane.beta, Fraction(1, lane.beta), left**2 / (2 * lane.beta)
    num = (math.isqrt(8 * math.ceil(left / lane.alpha) + 1) + 1) // 2
    while num * (num + 1) * lane.alpha >= 2 * left:
        num -= 1
    units, _, gain = lane.load(left, num, Fraction(lane.alpha, lane.beta))
    return units, Fraction(num, (num + 1) * lane.beta), gain


def _least_ticks(facts: Facts, witness: FlowTime) -> Fraction:
    """Bound in ticks that the witness proves; 0 if it proves nothing."""
    source, target = witness.source, witness.target
    updates = facts.collective.updates
    if facts.multi or facts.made_at or facts.in_network or (source == target and not updates):
        return Fraction(0)
    outward = [e for e in facts.allowed if facts.src[e] == source]
    inward = [e for e in facts.allowed if facts.dst[e] == target]
    after = facts.times(facts.allowed, 0, {facts.dst[e]: 0 for e in outward})
    before = facts.times(facts.allowed, 0, {facts.src[e]: 0 for e in inward}, backwards=True)
    if not updates and set(outward) & set(inward):
        return Fraction(0)
    units, work = 0, 0
    for chunk, size in zip(facts.collective.chunks, facts.units, strict=True):
        if source not in chunk.origins or target not in chunk.destinations:
            continue
        if updates and chunk.root is not None and chunk.root not in (source, target):
            units += size
            work += size * (after.get(chunk.root, NEVER) + before.get(chunk.root, NEVER))
        elif not updates and (facts.sums or len(chunk.origins) == 1):
            units += size
            work += size * min((after.get(facts.src[e], NEVER) for e in inward), default=NEVER)
    if not units:
        return Fraction(0)
    total = Fraction(work, units)
    for links, resources, price in (
        (outward, witness.leaving, witness.prices[0]),
        (inward, witness.entering, witness.prices[1]),
    ):
        gained = _gained(facts, links, resources, price)
        if gained is None:
            return Fraction(0)
        total += price - gained / units
    return total


def _gained(facts: Facts, links: Sequence[int], resources: Sequence[int], price: Fraction) -> Fraction | None:
    """Max total gain of units at a price; the gain of a unit is the price minus the time when it has left.

    None if the resources do not cover the links, or if one of them (beta 0) passes any number of units.
    """
    gained = Fraction(0)
    found, is_covered = lanes(facts, links, resources)
    for alpha, beta, wait in found:
        spare = price - wait
        if spare <= alpha:
            continue
        if not beta:
            return None
        if not alpha:
            gained += spare * spare / (2 * beta)
            continue
        # At the optimum, the marginal gain of every send i is 0: i * alpha + beta * (units + own) = spare.
        # Here own is the size of send i, and units is the total size of all sends.
        sends = 1
        while alpha * (sends + 1) * (sends + 2) < 2 * spare:
            sends += 1
        units = (sends * spare - Fraction(alpha * sends * (sends + 1), 2)) / (beta * (1 + sends))
        own = ((spare - i * alpha) / beta - units for i in range(1, sends + 1))
        gained += beta * (units * units + sum(size * size for size in own)) / 2
    return gained if is_covered else None
