"""Node exit: a bound on sums of nodes, by the sends inside a node before data leaves it, and after it enters.

Data of a sum leaves each node but one, and enters each node but one later. A send between nodes may start
early, with few contributions, or after sends inside its node have brought more. Prices of time for both
bound what the data of a node pays to leave it; reversed in time, they bound what the data pays to enter. In
between, each send between nodes pays the full price. See docs/formulation.md, "Node exit".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.analysis.certificates.certificate import Claim
from taccl.analysis.certificates.evaluation.facts import Facts
from taccl.analysis.certificates.evaluation.gathering import trees_of
from taccl.analysis.certificates.evaluation.port_prices import (
    FACTOR,
    MOST_CELLS,
    OfPorts,
    Port,
    costs_of,
    port_of,
    twice_priced,
)
from taccl.analysis.certificates.finding.horizons import neighbours
from taccl.analysis.certificates.finding.lowest_prices import highest_factors, lowest_prices, swing
from taccl.analysis.certificates.finding.needed_sends import NeededSends
from taccl.problem.problem import Problem

#: Max number of ranks of a node.
_MOST_IN_NODE = 16
#: Price of a contribution. The price of a send with those of a whole node is a multiple of it.
_PRICE = 50_000
#: `_CELLS`: number of cells in the idle time of a send inside a node, on grids from coarse to fine.
#: `_COARSE`: max number with a search for prices; finer grids keep the shape that is found.
#: `_LEAST_CELLS`: min cells of a window in which prices are searched.
_CELLS, _COARSE, _LEAST_CELLS = (17, 34, 68, 136), 34, 6
#: Prices of sends inside nodes fall from the start of a window to a low level, and end there.
#: `_HEIGHTS`: price at the start, as a multiple of the price of a contribution.
#: `_FALLS`: time of the fall, as a share of the time in which sends can precede one between nodes in the
#: window; and exponent of time in the fall. Above 1, prices fall late.
#: `_LOW`: price at the end. `_FIRST`: indices of the height and the fall from which the search starts.
_HEIGHTS = (0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
_FALLS = (
    *((share, 1.0) for share in (0.05, 0.07, 0.1, 0.14, 0.2, 0.28, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)),
    *((1.0, bend) for bend in (1.0, 1.3, 1.7, 2.3, 3.2)),
)
_LOW, _FIRST = 0.05, (7, 12)


@dataclass(frozen=True, slots=True)
class NodeExit(OfPorts):
    """Witness of node exit: a window at each end of the schedule, prices by time, and factors by length.

    - `window`: Ticks of a window. The grid of the prices of NICs divides it into equal cells.
    - The other fields are those of `OfPorts`. Links of their own stand for ports inside nodes; NICs have the
      same prices in reversed time.
    """

    kind = proves = "node exit"
    preference = 17
    window: Fraction
    port_prices: tuple[int, ...]
    port_factors: tuple[int, ...]
    nic_prices: tuple[int, ...]
    nic_factors: tuple[int, ...]

    def fits(self, problem: Problem) -> bool:
        """True if, in addition, ports have prices within the window only."""
        # The base is named, as `super` does not know a dataclass with slots.
        return OfPorts.fits(self, problem) and len(self.port_prices) <= len(self.nic_prices)

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        return ticks <= _least_ticks(facts, self)


def node_exit_bounds(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Yield node-exit bounds for sums that have contributions of all ranks and are wanted by all."""
    if not demand.shared_units(in_network=in_network):
        return
    facts = Facts(demand.problem, divisible=True, in_network=False)
    nodes = _nodes_of(facts)
    if nodes is None or nodes.most <= demand.known:
        return
    what = f"sums that leave {nodes.number} nodes after sends inside, and enter them before others"
    shape, best = _FIRST, Fraction(0)
    for cells in _CELLS:
        search = _Search(facts, nodes, cells, max(Fraction(demand.known), best))
        for shape in search.improved(shape, moves=cells <= _COARSE):
            demand.deadline.check()
        if search.best is not None and search.ticks > best:
            best = search.ticks
            yield Claim(best, what, search.best)


class _Nodes(NamedTuple):
    """Nodes that are alike, and costs of sends.

    - `number`, `size`: Number of nodes, and number of ranks of each.
    - `port`: Costs of sends inside nodes.
    - `lanes`: Number of ports into ranks for these sends, or of links.
    - `takes_turns`: True if all sends into a rank hold one port; False if each link has a resource.
    - `nic`: Costs of sends between nodes.
    - `nics`: Number of ranks that send to other nodes.
    - `units`: Units of the sums to which all ranks contribute, and which all ranks want.
    - `reach`: Max number of ranks of another node to which a rank has links, or from which it has links.
    """

    number: int
    size: int
    port: Port
    lanes: int
    takes_turns: bool
    nic: Port
    nics: int
    units: int
    reach: int

    @property
    def least(self) -> Fraction:
        """Ticks that the sends between nodes take, if all have the full price."""
        return Fraction(2 * (self.number - 1) * self.units * self.nic.beta, self.nics) + self.nic.idle

    @property
    def longest(self) -> int:
        """Max ticks of a window; on rails, one send between nodes may follow another in it."""
        return self.nic.idle + self.port.idle * (self.reach == 1 or self.number == 2)

    @property
    def few_onwards(self) -> int:
        """Number of sends that pay a whole price together, if one between nodes follows each (step 6)."""
        return 1 + self.size * (self.number - 1) // (2 * self.number)

    @property
    def most(self) -> Fraction:
        """Ticks that no witness exceeds: in the longest windows, each send carries one contribution."""
        return self.least + 2 * self.longest * Fraction(self.size - 1, self.size)


def _nodes_of(facts: Facts) -> _Nodes | None:
    """The nodes, if all are alike, and all ranks contribute to a sum that all want; else None."""
    number, size = facts.equal_nodes() or (0, 0)
    if not 2 <= size <= _MOST_IN_NODE or not facts.shared_units:
        return None
    inside, between = facts.links_by_place()
    nic, port = port_of(facts, between), port_of(facts, inside)
    lanes, takes_turns = number * size, port is not None
    if port is None:
        port, lanes = _link_of(facts, inside), len(inside)
    if nic is None or port is None:
        return None
    nics = len({facts.src[e] for e in between})
    return _Nodes(number, size, port, lanes, takes_turns, nic, nics, facts.shared_units, facts.reach(between))


def _link_of(facts: Facts, links: Sequence[int]) -> Port | None:
    """Costs of sends over links that are alike, and each hold a resource of their own; else None."""
    costs = {(facts.alpha[e], facts.beta[e]) for e in links}
    users = Counter(r for e in links for r in facts.holds[e])
    if len(costs) != 1 or len({(facts.src[e], facts.dst[e]) for e in links}) < len(links):
        return None
    ((latency, beta),) = costs
    found = set()
    for e in links:
        own = [hold for r, hold in facts.holds[e].items() if users[r] == 1 and hold[1] == beta]
        found.add(max((hold[0] for hold in own), default=-1))
    (alpha, *others) = found
    return None if others or not beta or not 0 <= alpha < latency else Port(alpha, beta, latency - alpha)


def _least_ticks(facts: Facts, witness: NodeExit) -> Fraction:
    """Bound in ticks that the witness proves; 0 if it proves nothing."""
    nodes, none = _nodes_of(facts), Fraction(0)
    if nodes is None or not 0 < witness.window <= nodes.longest:
        return none
    cells = len(witness.nic_prices) - 1
    cell = Fraction(witness.window) / cells
    if not witness.are_admitted(nodes.port, nodes.nic, cell):
        return none
    worth = _worth(nodes, cell, cells, witness.port_prices, witness.port_factors)
    least = math.floor(nodes.nic.alpha / cell)
    if not (worth[:, None] <= costs_of(witness.nic_prices, witness.nic_factors, least)).all():
        return none
    ticks = _ticks(nodes, cell, witness.port_prices, witness.nic_prices)
    return ticks if ticks > 2 * (witness.window + nodes.nic.idle) else none


def _ticks(nodes: _Nodes, cell: Fraction, ports: Sequence[int], nics: Sequence[int]) -> Fraction:
    """Ticks in which the time of all ports costs as much as all units must pay.

    A message that fills the time between both windows may lack the price of one latency.
    """
    whole = nodes.size * _PRICE
    needed = 2 * (nodes.number - 1) * nodes.units * whole
    left = needed - nodes.lanes * twice_priced(ports) * cell / nodes.port.beta
    middle = left * nodes.nic.beta / nodes.nics - twice_priced(nics) * cell
    return nodes.nic.idle + 2 * cell * (len(nics) - 1) - nodes.nic.alpha + middle / whole


def _worth(
    nodes: _Nodes, cell: Fraction, cells: int, prices: Sequence[int], factors: Sequence[int]
) -> NDArray[np.int64]:
    """Max gain of a send between nodes, by the cell at whose start it begins.

    - `prices`, `factors`: Those of ports. Holds that end with the last cell or later are free.
    """
    costs = costs_of(prices, factors, math.floor(nodes.port.alpha / cell))[:-1, :-1]
    shifts = math.floor(nodes.port.idle / cell), math.floor(nodes.nic.idle / cell)
    return _gains(nodes, shifts, cells, costs)


def _gains(nodes: _Nodes, shifts: tuple[int, int], cells: int, costs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Gain of each contribution: its price in a send between nodes, less the costs of bringing it there.

    - `shifts`: Min cells from the end of a hold to the start of the next send between nodes, for holds
      inside and between nodes.
    - `costs`: Costs of holds inside nodes, by the cells at whose starts they begin and end.
    """
    each, size, (shift, far) = _PRICE * FACTOR, nodes.size, shifts
    if nodes.takes_turns:
        gains = trees_of(size, shift, costs, each).best
    else:
        cheapest = np.minimum.accumulate(costs.min(axis=0))
        gains = np.concatenate(((size - 1) * np.maximum(0, each - cheapest), [(size - 1) * each, 0]))
    # A send that starts after others has at least the price that the proof needs.
    start = np.arange(cells + 1)
    lowest = np.where(start >= min(shifts), -(-size * each // nodes.number), each)
    lowest[far:] = np.maximum(lowest[far:], -(-size * each // nodes.few_onwards))
    found: NDArray[np.int64] = np.maximum(lowest, each + gains[np.clip(start - shift, -1, len(costs))])
    return found


class _Search:
    """Search for the prices of ports that prove most, on a grid with the given cells in an idle time.

    - `best`, `ticks`: Best witness, and its bound.
    """

    def __init__(self, facts: Facts, nodes: _Nodes, cells: int, known: Fraction) -> None:
        self.facts, self.nodes = facts, nodes
        self.cell = Fraction(nodes.port.idle, cells)
        # The bound must exceed twice the window and the idle time of a send between nodes.
        longest = min(Fraction(nodes.longest), max(known, nodes.least) / 2 - nodes.nic.idle)
        self.cells = min(math.floor(longest / self.cell), MOST_CELLS - 1)
        self.priced = self.cells - cells  # later holds are free, as no send within the window follows them
        self.best: NodeExit | None = None
        self.ticks = Fraction(0)
        self._found: dict[tuple[int, int], float] = {}

    def improved(self, shape: tuple[int, int], *, moves: bool) -> Iterator[tuple[int, int]]:
        """Move from a shape, as indices of height and fall, to better neighbours; yield each shape.

        - `moves`: False to evaluate the given shape only.
        """
        while self.priced >= _LEAST_CELLS:
            near = neighbours(shape, (_HEIGHTS, _FALLS)) if moves else []
            best = max([shape, *near], key=self._proven)
            yield best
            if best == shape:
                return
            shape = best

    def _proven(self, shape: tuple[int, int]) -> float:
        """Ticks by prices with a given height and fall; `best` keeps the best proven witness."""
        if shape not in self._found:
            nodes, height, (share, bend) = self.nodes, _HEIGHTS[shape[0]], _FALLS[shape[1]]
            priced = max(2, round(share * self.priced))
            alpha, nic_alpha = (float(port.alpha / self.cell) for port in (nodes.port, nodes.nic))
            if max(alpha - priced, nic_alpha - self.cells) >= -1:
                return 0.0
            falls = (np.arange(priced + 1) / priced) ** bend
            ports = np.rint(_PRICE * (height - (height - _LOW) * falls)).astype(np.int64)
            factors = highest_factors(alpha, priced, swing(ports))
            worth = _worth(nodes, self.cell, self.cells, ports.tolist(), factors) / FACTOR
            nics, nic_factors = lowest_prices(np.triu(np.repeat(worth[:, None], len(worth), 1)), nic_alpha)
            found = NodeExit(
                self.cell * self.cells, tuple(ports.tolist()), factors, tuple(nics.tolist()), nic_factors
            )
            ticks = _ticks(nodes, self.cell, found.port_prices, found.nic_prices)
            self._found[shape] = float(ticks)
            if ticks > self.ticks and ticks == _least_ticks(self.facts, found):
                self.best, self.ticks = found, ticks
        return self._found[shape]
