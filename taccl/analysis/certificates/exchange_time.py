"""Exchange time: a bound on sums that nodes exchange directly, by the order of the sends in each node.

In a short schedule, data of a rank reaches a rank of another node by few sends between nodes, with sends
inside nodes. Data that a send between nodes carries has come to its source over a tree of sends, one
after another. Prices of port time bound the cost of a send between nodes, and of the trees before and after
it. This cost is per pair of ranks that it joins: a rank whose data it carries, and a rank that gets them.
See docs/formulation.md, "Exchange time".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.analysis.certificates.certificate import Claim
from taccl.analysis.certificates.evaluation.facts import Facts
from taccl.analysis.certificates.evaluation.gathering import hub_of, trees_of
from taccl.analysis.certificates.evaluation.port_prices import (
    FACTOR,
    OfPorts,
    Port,
    costs_of,
    port_of,
    twice_priced,
)
from taccl.analysis.certificates.finding.horizons import HorizonSearch, neighbours
from taccl.analysis.certificates.finding.lowest_prices import highest_factors, lowest_prices, swing
from taccl.analysis.certificates.finding.needed_sends import NeededSends

#: Max number of ranks of a node, and of nodes.
_MOST_IN_NODE, _MOST_NODES = 16, 64
#: Sum of the prices of all pairs of ranks in two different nodes, as the search sets them.
_PRICE = 10**5
#: Cost that stands for infinity: it exceeds the sum of the prices of all pairs that a send can serve.
_TOO_MUCH = 2**46
#: Gain of a send that is not bounded: it exceeds all gains, and twice it fits in 64 bits.
_UNKNOWN = 2**61
#: Denominator of the horizons that are tried, in ticks.
_PER_TICK = 1000
#: Parts into which the price of a pair is split, between the nodes of its source and of its destination.
_SHARES = 8
#: Prices of a port's time to try: they fall linearly from the start to a low level, and then end.
#: `_HEIGHTS`: price at the start, as a multiple of the price of a pair of ranks.
#: `_FALLS`: time of a whole fall to 0, as a share of the latency of a send in a node.
#: `_LOW`, `_END`: lowest price, as a share of that at the start, and time of the end over that of the fall.
_HEIGHTS, _LOW, _END = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0), 0.08, 1.2
_FALLS = (0.15, 0.3, 0.45, 0.6, 0.8, 1.0, 1.3, 1.7, 2.2, 2.7, 3.3, 4.0, 5.0)
#: Grids, coarse to fine: (number of cells, first and least step of the search for the longest horizon). Steps
#: are shares of the horizon.
_GRIDS = ((180, (0.08, 0.01)), (340, (0.016, 0.004)), (640, (0.008, 0.001)))
#: `_FINER`: largest share by which fine grids prove more than the first one. If the first one does not prove
#: the other bounds less this share, the search ends.
#: `_MEASURED`: least step over which the rise of the load is measured, as times are rounded to cells.
_FINER, _MEASURED = 0.015, 0.01


@dataclass(frozen=True, slots=True)
class ExchangeTime(OfPorts):
    """Witness of exchange time: a horizon, prices by time, and factors by length.

    - `horizon`: Ticks within which no schedule can end, as the prices prove.
    - The other fields are those of `OfPorts`. The grid of the prices of NICs divides the horizon, less the
      idle ticks of a send between nodes, into equal cells.
    """

    kind = proves = "exchange time"
    preference = 14
    horizon: Fraction
    port_prices: tuple[int, ...]
    port_factors: tuple[int, ...]
    nic_prices: tuple[int, ...]
    nic_factors: tuple[int, ...]

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        return ticks <= self.horizon and _is_proven(facts, self)


def exchange_time_bounds(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Yield the exchange-time bound for sums that have contributions of all ranks and are wanted by all."""
    if not demand.shared_units(in_network=in_network):
        return
    facts = Facts(demand.problem, divisible=True, in_network=False)
    nodes = _nodes_of(facts)
    if nodes is None or nodes.longest <= demand.known:
        return
    known = float(demand.known) * (1 - _FINER)
    search = _Search(facts, nodes, known, check=lambda: demand.deadline.check())
    what = f"sums that {nodes.number} nodes exchange, each after the contributions of the node"
    for cells, steps in _GRIDS:
        for found in search.lengthened(cells, steps):
            yield Claim(found.horizon, what, found)
        if search.best is None:
            return


class _Nodes(NamedTuple):
    """Nodes that are alike, and costs of sends.

    - `number`, `size`: Number of nodes, and number of ranks of each.
    - `port`: Costs of sends inside nodes.
    - `nic`: Costs of sends between nodes.
    - `nics`: Number of ranks that send to other nodes.
    - `units`: Units of the sums to which all ranks contribute, and which all ranks want.
    - `reach`: Max number of ranks of another node to which a rank has links, or from which it has links.
    """

    number: int
    size: int
    port: Port
    nic: Port
    nics: int
    units: int
    reach: int

    @property
    def pairs(self) -> int:
        """Number of pairs of ranks of different nodes."""
        return self.number * (self.number - 1) * self.size**2

    @property
    def longest(self) -> int:
        """Longest horizon of the proof, in ticks.

        Within it, no send between nodes follows two others and precedes two others.
        """
        return 4 * (self.nic.alpha + self.nic.idle) + self.nic.idle


def _nodes_of(facts: Facts) -> _Nodes | None:
    """The nodes, if all are alike, and all ranks contribute to a sum that all want; else None."""
    number, size = facts.equal_nodes() or (0, 0)
    if not 2 <= number <= _MOST_NODES or not 2 <= size <= _MOST_IN_NODE or not facts.shared_units:
        return None
    inside, between = facts.links_by_place()
    port, nic = port_of(facts, inside), port_of(facts, between)
    if port is None or nic is None:
        return None
    nics = len({facts.src[e] for e in between})
    return _Nodes(number, size, port, nic, nics, facts.shared_units, facts.reach(between))


class _Grid(NamedTuple):
    """Grid that divides time into cells of `cell` ticks; other times are in cells.

    - `shift`: Min time from the end of a hold inside a node to the start of a NIC's hold that follows it.
    """

    cell: Fraction
    shift: int


def _grid(nodes: _Nodes, horizon: Fraction, cells: int) -> _Grid:
    """Grid for a horizon, with `cells` cells in which NICs have prices."""
    cell = Fraction(horizon - nodes.nic.idle) / cells
    return _Grid(cell, math.floor(nodes.port.idle / cell))


def _is_proven(facts: Facts, witness: ExchangeTime) -> bool:
    """True if the prices prove that no schedule ends before the horizon, over all chunkings."""
    nodes = _nodes_of(facts)
    if nodes is None or not nodes.nic.idle < witness.horizon <= nodes.longest:
        return False
    cells = len(witness.nic_prices) - 1
    grid = _grid(nodes, witness.horizon, cells)
    if not witness.are_admitted(nodes.port, nodes.nic, grid.cell):
        return False
    # Price of a pair of ranks, rounded up, at which the bytes of all pairs cost as much as all ports' time.
    ports = Fraction(2 * nodes.number * nodes.size * twice_priced(witness.port_prices), nodes.port.beta)
    total = ports + Fraction(nodes.nics * twice_priced(witness.nic_prices), nodes.nic.beta)
    pair = math.ceil(FACTOR * total * grid.cell / (2 * nodes.units * nodes.pairs))
    most = nodes.number * nodes.size**2
    early = _num_early(nodes, grid, cells)
    if pair * most * nodes.size * (nodes.number - 1) >= _TOO_MUCH or 2 * early > cells + 1:
        return False
    least = math.floor(nodes.port.alpha / grid.cell)
    ports_cost = _costs_of_ports(witness.port_prices, witness.port_factors, least)
    worth = _worth(nodes, grid, cells, ports_cost, pair)
    least = math.floor(nodes.nic.alpha / grid.cell)
    cost = np.minimum(costs_of(witness.nic_prices, witness.nic_factors, least), _TOO_MUCH)
    return bool((worth <= cost * nodes.size * (nodes.number - 1)).all())


def _costs_of_ports(prices: Sequence[int], factors: Sequence[int], least: int) -> NDArray[np.int64]:
    """Costs of holds inside nodes, as from `costs_of`; without those that end with the last cell.

    These are free, as they may be later than the last price before the grid is shifted.
    """
    return costs_of(prices, factors, least)[:-1, :-1]


def _worth(nodes: _Nodes, grid: _Grid, cells: int, costs: NDArray[np.int64], pair: int) -> NDArray[np.int64]:
    """Max gain of a send between nodes, by the cells at whose starts its hold begins and ends.

    The send gains the price of each pair of ranks that it joins, less what the pair pays for sends inside
    nodes. If a pair needs several sends between nodes, the first and the last gain half of its price each.
    Gains are multiplied by the number of pairs that share a send inside a node, which makes them whole.

    - `costs`: Costs of holds inside nodes, from `_costs_of_ports`.

    On one side of the send, each rank pays for a tree of its own. On the other side, ranks may pay for a hub.
    """
    size, whole, middle = nodes.size, pair * nodes.size * (nodes.number - 1), _SHARES // 2
    trees = [trees_of(size, grid.shift, costs, -(-whole * share // _SHARES)) for share in range(_SHARES + 1)]
    half, early = trees[middle], _num_early(nodes, grid, cells)
    starts = np.clip(np.arange(cells + 1) - grid.shift, -1, len(costs))
    found = np.full((cells + 1, cells + 1), _UNKNOWN)
    for share, (one, other) in enumerate(zip(trees, trees[::-1], strict=True)):
        hubs = hub_of(trees[-1], other, grid.shift, costs)[starts[::-1]]
        hubs[:early] = _UNKNOWN
        if early and share >= middle:  # pairs of the send's source may need three sends, the given one first
            hubs[:early] = size * half.each + hub_of(half, other, grid.shift, costs)[starts[::-1]][:early]
        gains = size * one.best[starts, None] + hubs
        gains[cells + 1 - early :] = _UNKNOWN  # it may be the last of three: see the reversed gains
        np.minimum(found, gains, out=found)
        np.minimum(found, gains[::-1, ::-1].T, out=found)
    onwards = (half.each + half.best[starts, None]) * _onwards(nodes, grid, cells)
    found += onwards + onwards[::-1, ::-1].T
    return np.triu(found)


def _num_early(nodes: _Nodes, grid: _Grid, cells: int) -> int:
    """Number of cells at whose starts a send between nodes may end if two more of them follow."""
    once = (nodes.nic.alpha + nodes.nic.idle) / grid.cell
    return max(0, math.ceil(cells - 2 * once) + 1)


def _onwards(nodes: _Nodes, grid: _Grid, cells: int) -> NDArray[np.int64]:
    """Number of ranks of further nodes that a second send between nodes serves, by the first one's end."""
    once, hop = ((port.alpha + port.idle) / grid.cell for port in (nodes.nic, nodes.port))
    end = np.arange(cells + 1)
    ends = np.where(end <= math.ceil(cells - once - min(once, hop)), nodes.size, nodes.reach)
    return np.where(end <= math.ceil(cells - once), (nodes.number - 2) * ends, 0)


class _Search(HorizonSearch["ExchangeTime"]):
    """Search for the longest horizon that prices prove, over a family of prices of ports.

    - `load`: Cost of all ports' time over the prices of all pairs, for the last prices tried.
    - `slope`: Rise of the load over a step, divided by the step; 0 before the first one.
    """

    families = _HEIGHTS, _FALLS

    def __init__(self, facts: Facts, nodes: _Nodes, least: float, *, check: Callable[[], None]) -> None:
        self.facts, self.nodes = facts, nodes
        self.load, self.slope = math.inf, 0.0
        # The search starts at the latency of three hops, or at the time of the bytes through a NIC if longer.
        # If no prices prove three hops, it starts at two. It starts at `least` if that is longer.
        sends = 2 * (nodes.number - 1) * nodes.units * nodes.nic.beta
        once, hop = (port.alpha + port.idle for port in (nodes.nic, nodes.port))
        least = max(least, nodes.nic.idle + sends / nodes.nics)
        starts = {max(float(once + number * hop), least) for number in (1, 2)}
        super().__init__(sorted(starts, reverse=True), nodes.longest, (4, 4), check)

    def lengthened(self, cells: int, steps: tuple[float, ...]) -> Iterator[ExchangeTime]:
        """Lengthen the horizon until the last of `steps` is not proven; yield each witness.

        A step ends where the load reaches 1 if it rises as before. No step exceeds the first one.
        """
        if self.best is None:  # find prices that prove anything
            if not any(self._proves(start, cells) for start in self.starts):
                return
            yield self._found
        first, least = steps[0], steps[-1]
        low, load, step = float(self._found.horizon), self.load, least if self.slope else first
        while True:
            is_proven = self._proves(low * (1 + step), cells)
            if step >= _MEASURED and math.isfinite(self.load):
                self.slope = (self.load - load) / step
            if is_proven:
                yield self._found
                low, load = low * (1 + step), self.load
            elif step <= least:
                return
            step = max(least, min(first if is_proven else step / 2, (1 - load) / max(self.slope, 1.0)))

    def _proves(self, horizon: float, cells: int) -> bool:
        """True if some prices prove that no schedule ends within `horizon` ticks; `best` keeps the witness.

        From the last shape of prices on, the search moves to the neighbour that comes nearest to a proof.
        """
        self.load = math.inf
        if horizon > self.longest:
            return False
        found: dict[tuple[int, int], tuple[float, ExchangeTime | None]] = {}

        def missing(shape: tuple[int, int]) -> float:
            one, two = (family[index] for family, index in zip(self.families, shape, strict=True))
            found[shape] = found.get(shape) or self._loaded(horizon, cells, one, two)
            return found[shape][0]

        shape = self.shape
        while missing(shape) > 1:
            best = min(neighbours(shape, self.families), key=missing)
            if missing(best) >= missing(shape):
                break
            shape = best
        self.shape, (self.load, witness) = shape, found[shape]
        if self.load > 1 or witness is None or not _is_proven(self.facts, witness):
            return False
        self.best = witness
        return True

    def _loaded(
        self, horizon: float, cells: int, height: float, fall: float
    ) -> tuple[float, ExchangeTime | None]:
        """Cost of all ports' time over the prices of all pairs, and the witness; it proves ratios up to 1."""
        nodes, whole = self.nodes, Fraction(round(horizon * _PER_TICK), _PER_TICK)
        # Times are rounded down to whole cells: least on a grid on which idle times are nearly whole.
        alpha, idle = (each / float(whole - nodes.nic.idle) for each in (nodes.port.alpha, nodes.port.idle))
        grids = range(cells, cells * 15 // 16, -1)
        cells = min(grids, key=lambda each: (-math.floor(alpha * each), (idle * each + 1e-3) % 1))
        grid = _grid(nodes, whole, cells)
        alpha, nic_alpha = (float(port.alpha / grid.cell) for port in (nodes.port, nodes.nic))
        priced = min(cells, math.ceil(_END * fall * nodes.port.idle / grid.cell))
        is_short = 2 * _num_early(nodes, grid, cells) <= cells + 1
        if alpha >= priced - 1 or nic_alpha >= cells - 1 or not is_short:
            return math.inf, None
        pair = _PRICE / nodes.size**2
        times = np.arange(priced + 1) * float(grid.cell / nodes.port.idle) / fall
        ports = np.rint(height * pair * np.maximum(_LOW, 1 - times)).astype(np.int64) + 1
        factors = highest_factors(alpha, priced, swing(ports))
        costs = _costs_of_ports(ports.tolist(), factors, math.floor(alpha))
        sharing = nodes.size * (nodes.number - 1)
        worth = _worth(nodes, grid, cells, costs, round(pair * FACTOR)) / (sharing * FACTOR)
        nics, nic_factors = lowest_prices(worth, nic_alpha)
        total = 2 * nodes.number * nodes.size * twice_priced(ports.tolist()) / nodes.port.beta
        total += nodes.nics * twice_priced(nics.tolist()) / nodes.nic.beta
        found = ExchangeTime(whole, tuple(ports.tolist()), factors, tuple(nics.tolist()), nic_factors)
        return total * float(grid.cell) / (2 * nodes.units * nodes.pairs * pair * (1 + 1e-6)), found
