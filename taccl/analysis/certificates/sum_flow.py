"""Sum flow: a bound on sums from sends that end early in a schedule, or start late in it.

Consider the sends that carry one byte of a sum of n ranks. At any time, A of them have ended, B have not
started, and C are under way. Then ``A + B + C / (n - 1) >= n``, as docs/formulation.md, "Sum flow", proves.
A resource carries one send after another, each with its latency, so few bytes can be in sends that end early
or start late. This bounds the makespan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from taccl.analysis.certificates.certificate import Claim, OfResources
from taccl.analysis.certificates.evaluation.facts import Facts, lanes
from taccl.analysis.certificates.finding.needed_sends import Lane, NeededSends

#: Approximate max number of early sends over a resource for which the bound is computed.
_MOST_SENDS = 200
#: Values of `SumFlow.price` to try, as multiples of the lowest price that the proof admits.
_MULTIPLES = (1.0, 1.4, 2.5, 8.0)
#: `_VALUES`: number of values of `SumFlow.horizon` that are tried in each round.
#: `_ROUNDS`: number of rounds, each of which narrows the range around the best value.
_VALUES, _ROUNDS = 9, 4
#: Number of fixed-point iterations. Each computes the bound at a price, and from it the next price.
#: The next price is the least that the proof admits at the bound, times one of `_MULTIPLES`.
_SETTLING = 4
#: Denominator of `SumFlow.horizon`. The denominator of `SumFlow.price` is `_FINE` times the number of ranks.
_FINE = 16


@dataclass(frozen=True, slots=True)
class SumFlow(OfResources):
    """Witness of sum flow: resources that cover all links, a horizon and a price in ticks.

    - `resources`: Resources that cover the usable links; a link is assigned to the first that it holds.
    - `horizon`: Ticks w that define two times: w after the start, and w before the finish. A unit of data
      gains the ticks by which its send ends before the first time, or starts after the second.
    - `price`: Further gain of each unit in each of its sends, in ticks.
    """

    kind = proves = "sum flow"
    preference = 11
    any_chunking = True
    resources: tuple[int, ...]
    horizon: Fraction
    price: Fraction

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        return ticks <= _least_ticks(facts, self)


def sum_flow_bounds(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Yield the sum-flow bound for sums that have contributions of all ranks and are wanted by all."""
    problem, num_ranks = demand.problem, demand.topology.num_ranks
    units = demand.shared_units(in_network=in_network)
    if not units or num_ranks < 3:
        return
    demand.deadline.check()
    resources = demand.lanes(demand.allowed)
    lanes = Counter(resources.values())
    shortest = min((int(problem.costs.link_alpha[e]) for e in demand.allowed), default=0)
    if not lanes or not shortest or not all(lane.beta for lane in lanes):
        return
    flow = _Flow(num_ranks, units, lanes, shortest)
    found = flow.best()
    if found is not None:
        ticks, horizon, price = found
        what = f"sums of {num_ranks} ranks, whose sends end early or start late"
        yield Claim(ticks, what, SumFlow(tuple(resources), horizon, price))


class _Flow:
    """Sum-flow bound at a given horizon and price, for sums with contributions of all ranks.

    - `units`: Total units of the sums.
    - `lanes`: {lane: number of resources with its costs}; the resources together cover every usable link.
    - `shortest`: Min latency of a usable link, in ticks.
    """

    def __init__(self, num_ranks: int, units: int, lanes: Counter[Lane], shortest: int) -> None:
        self.num_ranks, self.units, self.lanes, self.shortest = num_ranks, units, lanes, shortest
        self.pairs = units * (num_ranks - 1)

    def near(self, horizon: NDArray[np.float64], price: NDArray[np.float64]) -> NDArray[np.float64]:
        """Approximate bounds in ticks at given horizons and prices, even at those that prove nothing."""
        held, rate = 2 * float(self.pairs) * (price + horizon), np.full(price.shape, float(self.pairs))
        for lane, count in self.lanes.items():
            held += count * (price * lane.idle / lane.beta - 2 * _gain_near(lane, horizon, price))
            rate += count * price / lane.beta
        bound: NDArray[np.float64] = held / rate
        return bound

    def best(self) -> tuple[Fraction, Fraction, Fraction] | None:
        """(bound in ticks, horizon, price) with the highest bound found; None if none is above 0."""
        start = float(min(lane.idle + lane.alpha for lane in self.lanes))
        busy = 2 * self.pairs / sum(count / lane.beta for lane, count in self.lanes.items())
        if any(lane.alpha and 2 * busy > lane.alpha * _MOST_SENDS**2 for lane in self.lanes):
            return None
        low, high = start, start + 2 * busy + self.shortest
        best = (0.0, start, 1.0)
        for _ in range(_ROUNDS):
            horizons, multiples = np.meshgrid(np.linspace(low, high, _VALUES), _MULTIPLES)
            best = max(best, *self._settled(horizons.ravel(), multiples.ravel()))
            step = (high - low) / (_VALUES - 1)
            low, high = max(start, best[1] - step), best[1] + step
        horizon = Fraction(round(best[1] * _FINE), _FINE)
        # Exact prices are rounded up, so that the proof still admits them.
        price = Fraction(int(best[2] * _FINE * self.num_ranks) + 2, _FINE * self.num_ranks)
        ticks = self.exact(horizon, price)
        return (ticks, horizon, price) if ticks > 0 else None

    def _settled(
        self, horizon: NDArray[np.float64], multiple: NDArray[np.float64]
    ) -> Iterator[tuple[float, float, float]]:
        """(bound, horizon, price) for each horizon, at a multiple of the least price that the proof admits.

        The bound is 0 if the proof admits no such price.
        """
        price = multiple * self.shortest / (self.num_ranks - 2)
        may_hold = np.ones(len(price), dtype=bool)
        for _ in range(_SETTLING):
            width = 2 * horizon - self.near(horizon, price)
            may_hold &= width > 0
            price = np.where(may_hold, multiple * width / (self.num_ranks - 2) * (1 + 1e-6), price)
        ticks = self.near(horizon, price)
        width = 2 * horizon - ticks
        price = np.where(may_hold, np.maximum(price, width / (self.num_ranks - 2)), price)
        ticks = np.where(may_hold & (width > 0) & (width <= self.shortest), ticks, 0.0)
        return zip(ticks.tolist(), horizon.tolist(), price.tolist(), strict=True)

    def exact(self, horizon: Fraction, price: Fraction) -> Fraction:
        """Bound in ticks at a horizon and a price, exact; 0 if the proof does not admit these."""
        held, rate = 2 * self.pairs * (price + horizon), Fraction(self.pairs)
        for lane, count in self.lanes.items():
            held += count * (price * lane.idle / lane.beta - 2 * _gain(lane, horizon, price))
            rate += count * price / lane.beta
        ticks = held / rate
        width = 2 * horizon - ticks
        if not 0 < width <= self.shortest or width > price * (self.num_ranks - 2):
            return Fraction(0)
        return ticks if ticks >= max(lane.idle for lane in self.lanes) else Fraction(0)


def _gain(lane: Lane, horizon: Fraction, price: Fraction) -> Fraction:
    """Max total gain (see `SumFlow`) of the units that a lane sends before the horizon.

    It is reduced by `price` for every unit that the lane could send during the latencies.
    """
    spare = horizon - lane.idle
    if not lane.alpha:
        return max(spare, Fraction(0)) ** 2 / (2 * lane.beta)
    best, sends = Fraction(0), 1
    while True:
        _, last, gain = lane.load(spare, sends, Fraction(lane.alpha, lane.beta))
        if last <= 0:
            return best
        best = max(best, gain - price * lane.alpha * sends / lane.beta)
        sends += 1


def _gain_near(lane: Lane, horizon: NDArray[np.float64], price: NDArray[np.float64]) -> NDArray[np.float64]:
    """`_gain` in floating point, for arrays of horizons and prices."""
    spare = np.maximum(horizon - lane.idle, 0.0)[:, None]
    if not lane.alpha:
        return spare[:, 0] ** 2 / (2 * lane.beta)
    sends = np.arange(1.0, 2 + (2 * spare.max() / lane.alpha) ** 0.5)
    _, last, gain = lane.load(spare, sends, lane.alpha / lane.beta)
    gains = gain - price[:, None] * lane.alpha * sends / lane.beta
    most: NDArray[np.float64] = np.max(gains, axis=1, where=last > 0, initial=0.0)
    return most


def _least_ticks(facts: Facts, witness: SumFlow) -> Fraction:
    """Bound in ticks that the witness proves; 0 if it proves nothing."""
    number, units, none = facts.topology.num_ranks, facts.shared_units, Fraction(0)
    if number < 3 or not units:
        return none
    needed = 2 * units * (number - 1) * (witness.price + witness.horizon)
    slope, idlest = Fraction(units * (number - 1)), Fraction(0)
    gains: dict[tuple[int, int, int], Fraction] = {}
    found, is_covered = lanes(facts, facts.allowed, witness.resources)
    for alpha, beta, idle in found:
        if not beta:
            return none
        idlest = max(Fraction(idle), idlest)
        key = alpha, beta, idle
        if key not in gains:
            gains[key] = _most_gained(witness.horizon - idle, alpha, beta, witness.price)
        needed += witness.price * idle / beta - 2 * gains[key]
        slope += witness.price / beta
    ticks = needed / slope
    overlap = 2 * witness.horizon - ticks
    fastest = min(facts.alpha[e] for e in facts.allowed)
    proven = is_covered and 0 < overlap <= fastest and overlap <= witness.price * (number - 2)
    return ticks if proven and ticks >= idlest else none


def _most_gained(spare: Fraction, alpha: int, beta: int, price: Fraction) -> Fraction:
    """Max total gain of the units that one resource sends, less ``price * alpha / beta`` for each send.

    A unit gains the ticks from the end of its send to the horizon. The maximum is over the number and the
    sizes of the sends.

    - `spare`: Horizon minus idle ticks.
    """
    if spare <= alpha:
        return Fraction(0)
    if not alpha:
        return spare * spare / (2 * beta)
    found, number = Fraction(0), 0
    while True:
        number += 1
        total = (number * spare - Fraction(alpha * number * (number + 1), 2)) / (beta * (1 + number))
        sizes = [(spare - i * alpha) / beta - total for i in range(1, number + 1)]
        if sizes[-1] <= 0:
            return found
        gained = beta * (total * total + sum(size * size for size in sizes)) / 2
        found = max(found, gained - price * alpha * number / beta)
