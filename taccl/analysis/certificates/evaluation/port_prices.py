"""Ports of sends that are alike, and prices of their time, by which bounds charge each hold of a port.

The cost of a hold is the mean price during it, times a factor for its length. See docs/formulation.md, "Hub
time", for the steps of the proof.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from operator import sub
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.analysis.certificates.certificate import Witness
from taccl.analysis.certificates.evaluation.facts import Facts
from taccl.problem.problem import Problem

#: `FACTOR`: integer value of the factor 1. `MOST_FACTOR`: largest factor of a hold in a witness.
FACTOR, MOST_FACTOR = 10**6, 10**9
#: Cost that nothing can pay.
NEVER = 2**50
#: Max number of cells of the grid of times in a witness.
MOST_CELLS = 800


class Port(NamedTuple):
    """Costs of all sends, in ticks: a send of u units holds a port for ``alpha + beta * u`` ticks.

    It holds the port of its source at its start, and that of its destination at its end; it takes `idle`
    ticks longer.
    """

    alpha: int
    beta: int
    idle: int


class OfPorts(Witness):
    """Witness with prices of the time of ports, for sends inside nodes and between nodes.

    - `port_prices`: Prices of the time of ports into ranks, for sends inside nodes. They are given at the
      ends of the cells of a grid, from time 0 on; holds that end with the last cell or later are free. Ports
      out of ranks have the same prices in reversed time.
    - `port_factors`: Factors on the prices for holds of 0, 1, 2, ... cells, in millionths.
    - `nic_prices`, `nic_factors`: The same for the ports of sends between nodes.
    """

    __slots__ = ()
    any_chunking = True
    port_prices: tuple[int, ...]
    port_factors: tuple[int, ...]
    nic_prices: tuple[int, ...]
    nic_factors: tuple[int, ...]

    def fits(self, problem: Problem) -> bool:
        """True if there are prices and factors for each number of cells, and few enough cells to evaluate."""
        ports, nics = len(self.port_prices), len(self.nic_prices)
        are_few = min(ports, nics) >= 3 and max(ports, nics) <= MOST_CELLS + 1
        return are_few and ports == len(self.port_factors) and nics == len(self.nic_factors)

    def are_admitted(self, port: Port, nic: Port, cell: Fraction) -> bool:
        """True if `are_admitted` is true for sends inside nodes, and for those between nodes."""
        inside = are_admitted(self.port_prices, self.port_factors, port.alpha / cell)
        return inside and are_admitted(self.nic_prices, self.nic_factors, nic.alpha / cell)


def port_of(facts: Facts, links: Sequence[int]) -> Port | None:
    """Costs that sends over given links have at a port of their source, and at a port of their destination.

    None if sends differ, or if some rank has no port that all its sends hold. A port may be a link's own
    resource if a rank has only one link.
    """
    costs = {(facts.alpha[e], facts.beta[e]) for e in links}
    if len(costs) != 1:
        return None
    ((latency, beta),) = costs
    found = set()
    for ends, receives in ((facts.src, False), (facts.dst, True)):
        of_rank: dict[int, set[tuple[int, tuple[int, int, bool]]]] = {}
        for e in links:
            held = {(r, hold) for r, hold in facts.holds[e].items() if hold[2] == receives}
            of_rank[ends[e]] = of_rank.get(ends[e], held) & held
        for held in of_rank.values():
            found.add(max((hold[:2] for _, hold in held if hold[1] == beta), default=None))
    if len(found) != 1 or None in found:
        return None
    ((alpha, _),) = (each for each in found if each is not None)
    return Port(alpha, beta, latency - alpha) if beta and latency > alpha else None


def twice_priced(prices: Sequence[int]) -> int:
    """Twice the integral of a port's prices over time, for linear interpolation between the ends of cells.

    Each upward change of slope adds to the integral half of this change: see step 2 of the proof.
    """
    bends = (prices[i - 1] - 2 * prices[i] + prices[i + 1] for i in range(1, len(prices) - 1))
    return sum(prices) * 2 - prices[0] - prices[-1] + sum(max(0, bend) for bend in bends)


def are_admitted(prices: Sequence[int], factors: Sequence[int], alpha: Fraction) -> bool:
    """True if prices and factors are within their limits, and step 3 of the proof admits the factors.

    - `alpha`: Fixed time of a hold, in cells.
    """
    cells = len(prices) - 1
    if min(prices) < 1 or max(prices) > 10**6:
        return False
    if alpha >= cells or min(factors) < 0 or max(factors) > MOST_FACTOR:
        return False
    swing = Fraction(max(map(abs, map(sub, prices[1:], prices))), min(prices))
    # Arithmetic is on whole numbers: times are multiples of a cell / `unit`, and factors are in millionths.
    unit = math.lcm(alpha.denominator, 4 * swing.denominator)
    least, quarter = int(alpha * unit), int(swing / 4 * unit)
    most = least * unit * FACTOR
    for length in range(math.floor(alpha), cells):
        fall, rest = factors[length] - factors[length + 1], length * unit - least
        if fall < 0:
            return False
        # Check that ``level - fall * u <= alpha / u`` for u from `low` to `high`; u is the length less alpha.
        level = (factors[length] - FACTOR) * unit + fall * (quarter + rest)
        low, high = max(rest, 0), rest + unit
        between = 2 * fall * low < level < 2 * fall * high and level * level > 4 * fall * most
        if between or any((level - fall * u) * u > most for u in (low, high)):
            return False
    return True


def costs_of(prices: Sequence[int], factors: Sequence[int], least: int) -> NDArray[np.int64]:
    """Cost per unit of data of a hold, by the cells at whose starts it begins and ends; rounded down.

    It is the mean price during the hold, times the factor for its length. It is `NEVER` if the hold ends
    before it starts, or has less than `least` cells.
    """
    at = np.array(prices, np.int64)
    twice = np.concatenate((np.zeros(1, np.int64), np.cumsum(at[1:] + at[:-1])))
    found = np.full((len(at), len(at)), NEVER, np.int64)
    diagonals, step = found.reshape(-1), len(at) + 1
    for length in range(least, len(at)):
        area = twice[length:] - twice[:-length] if length else 2 * at
        diagonals[length : step * (len(at) - length) : step] = area * factors[length] // (2 * max(1, length))
    return found
