"""Hub time: a bound on sums over one switch, by the order of the sends into and out of each rank.

In a short schedule, data of a sum passes at most one rank between its source and its destination. That rank,
the hub, receives one send after another, and may only then send the sum. Prices of port time, by time, bound
the cost of a hub for each pair of ranks that it joins. In longer schedules data may pass one more rank. Then
its first send ends early, and pays for all pairs that it serves, or shares their price with the last send.
See docs/formulation.md, "Hub time".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from taccl.analysis.certificates.certificate import Claim, Witness
from taccl.analysis.certificates.evaluation.facts import Facts
from taccl.analysis.certificates.evaluation.hubs import Hubs
from taccl.analysis.certificates.evaluation.port_prices import (
    FACTOR,
    NEVER,
    Port,
    are_admitted,
    costs_of,
    port_of,
    twice_priced,
)
from taccl.analysis.certificates.finding.horizons import HorizonSearch
from taccl.analysis.certificates.finding.lowest_prices import highest_factors
from taccl.analysis.certificates.finding.needed_sends import NeededSends
from taccl.problem.problem import Problem

#: Max number of ranks: the evaluation takes time proportional to its square.
_MOST_RANKS = 16
#: Max number of cells of the grid of times in a witness.
_MOST_CELLS = 400
#: Integer value of the price 1.
_PRICE = 1000
#: Prices to try fall from the start to a constant, and rise symmetrically to the end.
#: `_MIDDLES`: price in the middle, as a share of the price at both ends.
#: `_FALLS`: time at which prices stop falling, as a share of half the horizon.
_MIDDLES, _FALLS = (0.1, 0.15, 0.2, 0.25, 0.32, 0.4, 0.55), (0.3, 0.45, 0.6, 0.75, 0.9, 1.0)
#: `_COARSE`: number of cells of the grid to find prices, up to 8 ranks; more ranks have fewer cells.
#: `_FINE`: number of cells of the grid to find the bound, up to 8 ranks.
_COARSE, _FINE = 64, 256
#: Steps of the search for the longest horizon, as shares of the horizon.
_COARSE_STEPS, _FINE_STEPS = (0.08, 0.04, 0.02, 0.01), (0.03, 0.01, 0.003)
#: Longest horizon of the search, as a multiple of the time of a send of no bytes.
_MOST_HOPS = 4


@dataclass(frozen=True, slots=True)
class HubTime(Witness):
    """Witness of hub time: a horizon, prices by time, and factors by length.

    - `horizon`: Ticks within which no schedule can end, as the prices prove.
    - `prices`: Prices of port time at the ends of the cells of a grid. The grid divides the horizon, less the
      idle ticks of a send, into equal cells. Prices in between are interpolated linearly.
    - `factors`: Factors on the prices for holds of 0, 1, 2, ... cells, in millionths.
    - `shared`: True if the first and the last of three sends share the price of a pair; else the first one
      pays it.
    """

    kind = proves = "hub time"
    preference = 13
    any_chunking = True
    horizon: Fraction
    prices: tuple[int, ...]
    factors: tuple[int, ...]
    shared: bool

    def fits(self, problem: Problem) -> bool:
        """True if there are prices and factors for each number of cells, and few enough ranks to evaluate."""
        few = 3 <= problem.topology.num_ranks <= _MOST_RANKS and 3 <= len(self.prices) <= _MOST_CELLS + 1
        return few and len(self.prices) == len(self.factors) and isinstance(self.shared, bool)

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        return ticks <= self.horizon and _is_proven(facts, self)


def hub_time_bounds(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Yield the hub-time bound for sums that have contributions of all ranks and are wanted by all."""
    problem, num_ranks = demand.problem, demand.topology.num_ranks
    units = demand.shared_units(in_network=in_network)
    if not 3 <= num_ranks <= _MOST_RANKS or not units or not demand.allowed:
        return
    facts = Facts(problem, divisible=True, in_network=False)
    port = port_of(facts, facts.allowed)
    if port is None or _MOST_HOPS * (port.alpha + port.idle) <= demand.known:
        return
    shrunk = min(1.0, (8 / num_ranks) ** 0.5)
    what = f"sums of {num_ranks} ranks, which hubs receive one send after another"
    searches = [
        _Search(facts, port, num_ranks, units, shared=shared, check=lambda: demand.deadline.check())
        for shared in (False, True)
    ]
    for search in searches:
        for found in search.lengthened(round(_COARSE * shrunk), _COARSE_STEPS):
            yield Claim(found.horizon, what, found)
    best = max(searches, key=lambda each: each.best.horizon if each.best else 0)
    for found in best.lengthened(round(_FINE * shrunk), _FINE_STEPS):
        yield Claim(found.horizon, what, found)


class _Search(HorizonSearch["HubTime"]):
    """Search for the longest horizon that prices prove, over a family of prices that fall and rise again.

    - `units`: Total units of the sums.
    - `shared`: As in the witness. It matters in horizons in which three sends in a row have time.
    """

    families = _MIDDLES, _FALLS

    def __init__(
        self, facts: Facts, port: Port, num_ranks: int, units: int, *, shared: bool, check: Callable[[], None]
    ) -> None:
        self.facts, self.port, self.shared = facts, port, shared
        # The search starts at the latency of two hops, or at the time of all bytes through a port if longer.
        busy = port.idle + 2 * (num_ranks - 1) * port.beta * units / num_ranks
        # In longer horizons most holds are early, and other bounds prove more.
        hop = port.alpha + port.idle
        start = max(3.0 * hop if shared else 2.0 * hop, busy)
        super().__init__((start,), _MOST_HOPS * hop, (2, 4), check)

    def witness(self, horizon: float, cells: int, one: float, two: float) -> HubTime | None:
        """Witness with `one` of `_MIDDLES` and `two` of `_FALLS`; None if it does not prove the horizon."""
        middle, fall = one, two
        whole = Fraction(round(horizon))
        # Times are rounded down to whole cells: least on a grid on which idle times are nearly whole.
        alpha, idle = (each / (horizon - self.port.idle) for each in (self.port.alpha, self.port.idle))
        grids = range(cells, cells * 7 // 8, -1)
        cells = min(grids, key=lambda each: (-math.floor(alpha * each), (idle * each + 1e-3) % 1))
        alpha = float(self.port.alpha * cells / (whole - self.port.idle))
        if alpha >= cells - 1:
            return None
        # If early holds pay for all pairs of their source, prices are constant as long as holds are early.
        early = 0 if self.shared else max(0, _last_early(whole, self.port, cells))
        times = np.minimum(np.arange(-early, cells + 1 - early).clip(0), np.arange(cells, -1, -1)) * 2 / cells
        prices = np.rint(_PRICE * (middle + (1 - middle) * np.maximum(0, 1 - times / fall)))
        swing = float(np.abs(np.diff(prices)).max() / prices.min())
        factors = highest_factors(alpha, cells, swing)
        found = HubTime(whole, tuple(map(int, prices.tolist())), factors, self.shared)
        return found if _is_proven(self.facts, found) else None


def _is_proven(facts: Facts, witness: HubTime) -> bool:
    """True if the prices prove that no schedule ends before the horizon, over all chunkings."""
    num_ranks, units = facts.topology.num_ranks, facts.shared_units
    port = port_of(facts, facts.allowed) if units else None
    if port is None or not port.idle < witness.horizon <= _MOST_HOPS * (port.alpha + port.idle):
        return False
    prices, cells = witness.prices, len(witness.prices) - 1
    cell = Fraction(witness.horizon - port.idle) / cells
    if not are_admitted(prices, witness.factors, port.alpha / cell):
        return False
    budget = twice_priced(prices)
    # Price of a pair of ranks, rounded up, at which the bytes of all pairs cost as much as the ports' time.
    pair = math.ceil(FACTOR * budget * cell / (2 * port.beta * units * (num_ranks - 1)))
    least, shift = math.floor(port.alpha / cell), math.floor(port.idle / cell)
    costs = costs_of(prices, witness.factors, least)
    if pair >= NEVER // num_ranks**2:
        return False
    early = _last_early(witness.horizon, port, cells)
    hop = cells + 1  # no send is known to be in the middle of three
    if early >= 0 and witness.shared:
        hop = least + shift
        if hop < 1 or cells >= 3 * hop + least:  # the grid has room for four sends in a row
            return False
    elif early >= 0:
        if int(costs[: early + 1, : early + 1].min()) < pair * (num_ranks - 1):
            return False
        costs[:, : early + 1] = NEVER  # early sends pay for their pairs themselves
    return not Hubs.rounded(costs, (least, shift, hop), pair, num_ranks - 1).gain()


def _last_early(horizon: Fraction, port: Port, cells: int) -> int:
    """Last cell by which a hold may end if two more sends follow in a row; -1 if no hold does."""
    if horizon <= 3 * (port.alpha + port.idle):
        return -1
    cell = Fraction(horizon - port.idle) / cells
    return max(-1, cells - 2 * (math.floor(port.alpha / cell) + math.floor(port.idle / cell)))
