"""Hop time: a bound on data that is copied, from the sends that take it one hop farther from its origin.

Data reach a distance of h hops only by h sends, one after another. In a short schedule these sends are short,
and spend much of the links' time on latency. Sends that start late are short, too. See docs/formulation.md,
"Hop time".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import NamedTuple, TypeVar

from taccl.analysis.certificates.certificate import Claim, Witness
from taccl.analysis.certificates.evaluation.facts import Facts, lanes
from taccl.analysis.certificates.finding.needed_sends import NeededSends
from taccl.problem.problem import Problem

#: `_MOST_RANKS`: max number of ranks. `_MOST_KINDS`: max number of kinds of data.
_MOST_RANKS, _MOST_KINDS = 256, 64
#: `_HORIZONS`: number of horizons that the search tries by bisection, after doubling.
#: `_ROUNDS`: number of changes of all hops per horizon. `_HALVINGS`: bisections of their common price.
_HORIZONS, _ROUNDS, _HALVINGS = 24, 8, 40
#: Denominator of times in ticks.
_TICK = 2**10
#: First horizon, as a multiple of the latency of the longest path and of the best other bound. Less is not
#: worth a claim.
_ABOVE = 1.001
#: Share of a horizon that is still proven once times are rounded.
_LESS = Fraction(9999, 10_000)
#: {number of destinations at 0, 1, 2, ... hops from the nearest origin: units of such data}.
_Kinds = Counter[tuple[int, ...]]
_Number = TypeVar("_Number", Fraction, float)


@dataclass(frozen=True, slots=True)
class HopTime(Witness):
    """Witness of hop time: a horizon, resources, and times at which charges of sends are linearized.

    - `horizon`: Ticks within which no schedule can end, as the times prove.
    - `resources`: Resources that cover all links. A link is assigned to the first of them that it holds.
    - `hops`: For each kind of data, ticks from the first arrival at each number of hops to the next one.
      Kinds ascend by their numbers of destinations at 0, 1, 2, ... hops.
    """

    kind = proves = "hop time"
    preference = 19
    any_chunking = True
    horizon: Fraction
    resources: tuple[int, ...]
    hops: tuple[tuple[Fraction, ...], ...]

    def fits(self, problem: Problem) -> bool:
        """True if the problem has the resources, and each is named once."""
        known = {*range(len(problem.topology.resources))}
        return len({*self.resources}) == len(self.resources) and {*self.resources} <= known

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        return ticks <= self.horizon and _is_proven(facts, self)


class _Costs(NamedTuple):
    """Costs of all sends, in ticks and units.

    - `alpha`, `extra`: Least latency, and ticks such that a unit in a send of m ticks is charged
      ``1 + extra / (m - alpha)``.
    - `waits`, `rates`: For each resource, ticks in which it passes nothing, and units per tick.
    """

    alpha: int
    extra: Fraction
    waits: tuple[int, ...]
    rates: tuple[Fraction, ...]

    def passed(self, horizon: Fraction) -> Fraction:
        """Max units that all resources pass within a horizon, less those that latencies cost."""
        pairs = zip(self.waits, self.rates, strict=True)
        return sum((max(Fraction(0), horizon - wait) * rate for wait, rate in pairs), Fraction(0))


def hop_time_bounds(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Yield the hop-time bound of data that is copied."""
    problem = demand.problem
    if in_network or not demand.single_ended or demand.topology.num_ranks > _MOST_RANKS:
        return
    facts = Facts(problem, divisible=True, in_network=False)
    resources = tuple(demand.lanes(facts.allowed))
    costs, kinds = _costs(facts, resources), _kinds(facts)
    if costs is None or not costs.extra or not 0 < len(kinds) <= _MOST_KINDS:
        return
    counts = sorted(kinds)
    hops = [[1.0] * (len(each) - 1) for each in counts]

    def is_overloaded(horizon: float) -> bool:
        """True if the data need more than all resources pass within a horizon; adapts `hops` to it."""
        demand.deadline.check()
        needed = 0.0
        for number, each in enumerate(counts):
            if horizon <= (len(each) - 1) * costs.alpha:
                return True
            hops[number] = _best_hops(each, hops[number], horizon, float(costs.alpha), float(costs.extra))
            charge = _least_charge(each, hops[number], horizon, float(costs.alpha), float(costs.extra))
            needed += kinds[each] * float(charge or 0)
        return needed >= float(costs.passed(Fraction(horizon)))

    low = _ABOVE * max(float(demand.known), (max(map(len, counts)) - 1) * costs.alpha)
    if not is_overloaded(low):
        return
    high = 2 * low
    while is_overloaded(high):
        low, high = high, 2 * high
    for _ in range(_HORIZONS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_overloaded(middle) else (low, middle)
    horizon = Fraction(math.floor(low * _LESS * _TICK), _TICK)
    is_overloaded(float(horizon))
    exact = tuple(tuple(Fraction(round(hop * _TICK), _TICK) for hop in each) for each in hops)
    witness = HopTime(horizon, resources, exact)
    if horizon > demand.known and _is_proven(facts, witness):
        farthest = max(map(len, counts)) - 1
        yield Claim(horizon, f"time of all links for data that take up to {farthest} hops", witness)


def _best_hops(
    counts: Sequence[int], hops: list[float], horizon: float, alpha: float, extra: float
) -> list[float]:
    """Ticks of hops that nearly minimize the charge of a unit, from those for another horizon.

    At the minimum, the derivative of the charge by each hop is the same. It is minus the derivative of the
    hop's own charge, plus those of sends that must start after the hop.
    """
    total = sum(hops)
    hops = [alpha + (horizon - alpha * len(hops)) * hop / total for hop in hops]
    for _ in range(_ROUNDS):
        arrivals, later, delays = [0.0, *accumulate(hops)], 0.0, [0.0] * len(hops)
        for k in range(len(hops) - 1, -1, -1):
            delays[k] = later
            late = max(horizon - arrivals[k], alpha + 1e-6 * horizon)
            later += max(counts[k + 1] - 1, 0) * extra / (late - alpha) ** 2
        low, high = 0.0, extra / (1e-3 * horizon / len(hops)) ** 2
        for _ in range(_HALVINGS):
            price = (low + high) / 2
            spent = sum(alpha + math.sqrt(extra / max(price + delay, 1e-18)) for delay in delays)
            low, high = (price, high) if spent > horizon else (low, price)
        best = [alpha + math.sqrt(extra / max(high + delay, 1e-18)) for delay in delays]
        hops = [(hop + min(other, horizon)) / 2 for hop, other in zip(hops, best, strict=True)]
        spare, spent = horizon - alpha * len(hops), sum(hops) - alpha * len(hops)
        if spent > spare:
            hops = [alpha + (hop - alpha) * spare / spent for hop in hops]
    return hops


def _least_charge(
    counts: Sequence[int], hops: Sequence[_Number], horizon: _Number, alpha: _Number, extra: _Number
) -> _Number | None:
    """Lower bound on the charges of a unit's sends within a horizon; None if `hops` are not within it.

    The least charge over all first arrivals is at least that of the tangent at `hops`, which is linear.
    """
    if min(hops) <= alpha or len(hops) * alpha >= horizon:
        return None
    slopes = [-extra / (hop - alpha) ** 2 for hop in hops]
    charge, arrival = 0 * horizon, 0 * horizon
    for k, hop in enumerate(hops):
        charge += 1 + extra / (hop - alpha)
        others, late = max(counts[k + 1] - 1, 0), horizon - arrival - alpha
        if others and late <= 0:
            return None
        if others:
            charge += others * (1 + extra / late)
            slopes[:k] = [slope + others * extra / late**2 for slope in slopes[:k]]
        arrival += hop
    # The tangent is least where all hops are as short as possible, but for the one that shortens it most.
    for slope, hop in zip(slopes, hops, strict=True):
        charge -= slope * (hop - alpha)
    steepest = min(slopes)
    return charge + (horizon - len(hops) * alpha) * steepest if steepest < 0 else charge


def _costs(facts: Facts, resources: Sequence[int]) -> _Costs | None:
    """Costs of sends; None if the resources do not cover the links, or pass bytes in no time."""
    found, are_covered = lanes(facts, facts.allowed, resources)
    if not (found and are_covered) or any(beta <= 0 for _, beta, _ in found):
        return None
    alpha, beta = (min(each[e] for e in facts.allowed) for each in (facts.alpha, facts.beta))
    extra = beta * min(Fraction(hold, rate) for hold, rate, _ in found)
    return _Costs(
        alpha, extra, tuple(wait for *_, wait in found), tuple(Fraction(1, rate) for _, rate, _ in found)
    )


def _kinds(facts: Facts) -> _Kinds:
    """Units of data of each kind that must be sent; empty if data are added up, derived or updated."""
    found: _Kinds = Counter()
    if facts.sums or facts.made_at or facts.collective.updates:
        return found
    near: dict[int, list[int]] = {}
    for e in facts.allowed:
        near.setdefault(facts.src[e], []).append(facts.dst[e])
    starts, ends = facts.collective.origin_sets, facts.collective.destination_sets
    alike: Counter[tuple[int, int]] = Counter()
    for *pair, units in zip(starts.of_chunk.tolist(), ends.of_chunk.tolist(), facts.units, strict=True):
        alike[pair[0], pair[1]] += units
    distances = [_num_hops(near, frozenset(origins)) for origins in starts.sets]
    for (start, end), units in alike.items():
        number = Counter(distances[start].get(rank, 0) for rank in set(ends.sets[end]))
        if max(number, default=0):
            found[tuple(number[k] * (k > 0) for k in range(max(number) + 1))] += units
    return found


def _num_hops(near: dict[int, list[int]], origins: frozenset[int]) -> dict[int, int]:
    """{rank: number of hops from the nearest origin}."""
    found, frontier = dict.fromkeys(origins, 0), [*origins]
    for rank in frontier:
        for other in near.get(rank, ()):
            if other not in found:
                found[other] = found[rank] + 1
                frontier.append(other)
    return found


def _is_proven(facts: Facts, witness: HopTime) -> bool:
    """True if no schedule ends before the horizon, over all chunkings."""
    if not facts.divisible or facts.multi or facts.in_network or facts.only_switches_add:
        return False
    costs, kinds = _costs(facts, witness.resources), _kinds(facts)
    if costs is None or not kinds or len(witness.hops) != len(kinds):
        return False
    needed = Fraction(0)
    for (counts, units), hops in zip(sorted(kinds.items()), witness.hops, strict=True):
        if len(hops) != len(counts) - 1:
            return False
        alpha, extra = Fraction(costs.alpha), costs.extra
        charge = _least_charge(counts, hops, witness.horizon, alpha, extra)
        if charge is None:
            return False
        needed += units * charge
    return needed >= costs.passed(witness.horizon)
