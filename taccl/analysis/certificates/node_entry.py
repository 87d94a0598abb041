"""Node entry: a bound on data copied into a node, which ports inside the node wait for, message by message.

Data from outside enters a node in messages. Each message pays its latency, and none of its bytes can be sent
on before all are there. Prices of time for messages into the node and inside it bound the time that all pairs
of a byte and a rank need. A message into the node also pays for pairs that others serve later: more if it is
early, as it then leaves more time. See docs/formulation.md, "Node entry".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from taccl._internal.deadline import Deadline
from taccl.analysis.certificates.certificate import Claim, OfRanks
from taccl.analysis.certificates.evaluation.facts import Facts, lanes
from taccl.analysis.certificates.finding.needed_sends import NeededSends
from taccl.problem.problem import Problem
from taccl.solvers.highs import GrowingProgram

#: `_MOST_NODES`: max number of nodes tried, none of which a symmetry maps to another.
#: `_MOST_CELLS`: max number of cells of the grid of times in a witness.
_MOST_NODES, _MOST_CELLS = 4, 200
#: `_CELLS`: number of cells of the grid that the search uses.
#: `_GRADED`: exponent by which cells shrink towards both ends of the grid; 1 for equal cells.
#: `_TRIALS`: max number of linear programs for a node.
#: `_ENOUGH`: least gain of one, as a share of the bound.
_CELLS, _GRADED, _TRIALS, _ENOUGH = 60, 1.7, 8, 3e-4
#: Max seconds for a linear program (0.05 s is usual).
_LIMIT_S = 2.0
#: Integer value of the price of a pair.
_PRICE = 10**9


@dataclass(frozen=True, slots=True)
class NodeEntry(OfRanks):
    """Witness of node entry: a node, a grid of times, and prices by time.

    - `ranks`: Ranks of the node.
    - `entering`, `inner`: Resources that cover the links into the node, and those inside it.
    - `times`: Ends of the cells of the grid, in ticks. No schedule ends before the last of them.
    - `entry_prices`, `inner_prices`: Prices of a tick of these resources, by cell. The price of a pair of a
      unit and a rank that needs it is 10^9.
    - `credits`: Part of this price that the unit's first message into the node pays for each further rank, by
      the cell in which the message ends.
    - `backwards`: True if the bound is for the time-reversed problem.
    """

    kind = proves = "node entry"
    preference = 16
    any_chunking = True
    ranks: frozenset[int]
    entering: tuple[int, ...]
    inner: tuple[int, ...]
    times: tuple[int, ...]
    entry_prices: tuple[int, ...]
    inner_prices: tuple[int, ...]
    credits: tuple[int, ...]
    backwards: bool = False

    def fits(self, problem: Problem) -> bool:
        """True if the problem has the ranks, and there are prices for each of a few cells."""
        cells = len(self.times) - 1
        each = {len(self.entry_prices), len(self.inner_prices), len(self.credits)}
        return 1 <= cells <= _MOST_CELLS and each == {cells} and OfRanks.fits(self, problem)

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        return ticks <= self.times[-1] and _is_too_short(facts, self)


def node_entry_bounds(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Yield the node-entry bounds of a few nodes, one of each orbit under symmetry."""
    nodes = [frozenset(ranks) for ranks in demand.topology.ranks_of_node]
    if in_network or demand.sums_for_all or not 1 < len(nodes) < demand.topology.num_ranks:
        return
    for needed, backwards in demand.both_directions():
        facts = Facts(needed.problem, divisible=True, in_network=False)
        for ranks in needed.different(nodes)[:_MOST_NODES]:
            demand.deadline.check()
            border, within = _links_of(facts, ranks)
            resources = tuple(needed.lanes(border)), tuple(needed.lanes(within))
            node = _node_of(facts, ranks, *resources)
            if node is None:
                continue
            where = facts.topology.node_of_rank[min(ranks)]
            what = f"data {'out of' if needed.is_reversed else 'into'} node {where}, message by message"
            for grid in _priced(node, float(demand.known), demand.deadline):
                witness = NodeEntry(ranks, *resources, *grid, backwards)
                if _is_too_short(facts, witness):
                    yield Claim(Fraction(witness.times[-1]), what, witness)
                demand.deadline.check()


class _Lanes(NamedTuple):
    """Least costs of resources, in ticks, and the number of resources.

    A send of u units holds one of them for ``alpha + beta * u`` ticks at least, and takes `wait` longer.
    """

    alpha: int
    beta: int
    wait: int
    number: int


class _Node(NamedTuple):
    """Demand for data from outside a node, and the costs of its sends.

    - `entry`, `inner`: Resources of sends into the node, and inside it.
    - `pairs`: Number of pairs of a unit from outside and a rank of the node that needs it.
    - `most`: Max number of ranks of the node that need a unit.
    """

    entry: _Lanes
    inner: _Lanes
    pairs: int
    most: int


def _links_of(facts: Facts, ranks: frozenset[int]) -> tuple[list[int], list[int]]:
    """Links into a set of ranks, and links inside it."""
    into = [e for e in facts.allowed if facts.dst[e] in ranks]
    return [e for e in into if facts.src[e] not in ranks], [e for e in into if facts.src[e] in ranks]


def _node_of(
    facts: Facts, ranks: frozenset[int], entering: Sequence[int], inside: Sequence[int]
) -> _Node | None:
    """Demand and costs of a node; None if the proof does not apply, or nothing must enter."""
    if facts.multi or facts.made_at or facts.in_network or facts.only_switches_add or facts.sums:
        return None
    wanted = [
        (units, len(ranks.intersection(data.destinations)))
        for data, units in zip(facts.collective.chunks, facts.units, strict=True)
        if ranks.isdisjoint(data.origins)
    ]
    pairs = sum(units * number for units, number in wanted)
    found = []
    for links, resources in zip(_links_of(facts, ranks), (entering, inside), strict=True):
        costs, is_covered = lanes(facts, links, resources)
        if not links or not is_covered:
            return None
        alpha, beta, wait = (min(values) for values in zip(*costs, strict=True))
        found.append(_Lanes(alpha, beta, wait, len(costs)))
    if not pairs or any(each.beta <= 0 or each.wait < 0 for each in found):
        return None
    entry, inner = found
    return _Node(entry, inner, pairs, max(number for _, number in wanted))


def _is_too_short(facts: Facts, witness: NodeEntry) -> bool:
    """True if the prices prove that no schedule ends before the last time of the grid."""
    node, times = _node_of(facts, witness.ranks, witness.entering, witness.inner), witness.times
    if node is None or times[0] > node.entry.wait or any(one >= two for one, two in pairwise(times)):
        return False
    credits, cells = witness.credits, len(times) - 1
    if min(witness.entry_prices + witness.inner_prices) < 0 or not 0 <= credits[-1] <= credits[0] <= _PRICE:
        return False
    if any(one < two for one, two in pairwise(credits)):
        return False
    paid = []
    for prices in (witness.entry_prices, witness.inner_prices):
        paid.append([0])
        for price, (one, two) in zip(prices, pairwise(times), strict=True):
            paid[-1].append(paid[-1][-1] + price * (two - one))
    entry, inner = paid
    for p in range(cells):
        for q in range(p + 1, cells + 1):
            span = times[q] - times[p]
            owed = (span - node.entry.alpha) * (_PRICE + (node.most - 1) * credits[q - 1])
            if (entry[q] - entry[p]) * node.entry.beta < owed:
                return False
            if (inner[q] - inner[p]) * node.inner.beta < (span - node.inner.alpha) * (_PRICE - credits[p]):
                return False
    last = times[-1] - node.inner.wait
    inner_time = sum(
        price * max(0, min(two, last) - one)
        for price, (one, two) in zip(witness.inner_prices, pairwise(times), strict=True)
    )
    return node.entry.number * entry[-1] + node.inner.number * inner_time < _PRICE * node.pairs


#: Times, prices of resources into the node and inside it, and credits, as in the witness.
_Grid = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def _priced(node: _Node, known: float, deadline: Deadline) -> Iterator[_Grid]:
    """Yield grids with prices that prove longer and longer horizons, all above `known`."""
    # The search starts at the latency of two sends, or at the time of all units at the resources if longer.
    start = node.entry.wait + node.entry.beta * node.pairs / node.most / node.entry.number
    start = max(start, sum(lane.wait + lane.alpha for lane in (node.entry, node.inner)))
    horizon, step, best = max(known, start) * (1 + _ENOUGH), 0.02, 0.0
    loads: dict[float, float] = {}
    for _ in range(_TRIALS):
        found = _program(node, horizon, min(_LIMIT_S, deadline.left_s))
        if found is None:
            return
        loads[horizon], grid = found
        if loads[horizon] < 1:
            best = horizon
            yield grid
        elif not best:
            return
        above = [each for each in loads if loads[each] >= 1]
        if above:  # between the longest horizon that is proven and the shortest one that is not
            high = min(above)
            share = (1 - loads[best]) / (loads[high] - loads[best])
            gain = (high - best) * min(0.95 * share, 0.9)
            if gain < _ENOUGH * best:
                return
            horizon = best + gain
        else:
            horizon = best * (1 + step)
            step *= 2


def _program(node: _Node, horizon: float, limit_s: float) -> tuple[float, _Grid] | None:
    """(cost of all resources over the price of all pairs, cheapest grid); None if unsolved.

    Columns are the costs of a resource inside the node and of one into it, both from the start to each time
    of the grid. The credits follow. The price of a pair is 1. Costs are in units, divided by `scale`.

    - `limit_s`: Time limit of the linear program in seconds.
    """
    first, end = node.entry.wait, math.floor(horizon)
    last = end - node.inner.wait  # end of the last hold inside the node
    at = np.linspace(-1, 1, _CELLS + 1)
    graded = np.sign(at) * (1 - (1 - np.abs(at)) ** _GRADED)
    if last <= first:
        return None
    inner_points = np.rint(first + (end - first) * (graded + 1) / 2)
    times = np.unique(np.append(inner_points, [first, last, end])).astype(int)
    size = len(times)
    cells = size - 1
    p, q = np.triu_indices(size, 1)
    span = (times[q] - times[p]).astype(float)
    # Three entries of each row: costs up to its two times, and a credit. The last rows compare two credits.
    falls, ones, none = np.arange(cells - 1), np.ones(len(p)), np.zeros(cells - 1)
    # Units that a resource could carry in all, as HiGHS may never end on coefficients above 10^11.
    scale = max(1.0, (end - first) / min(node.entry.beta, node.inner.beta))
    columns = [np.stack([2 * size + falls + 1, 2 * size + falls, 2 * size + falls])]
    values, upper = [np.stack([none + 1, none - 1, none])], [none]
    for lane, place, cell, share in ((node.inner, 0, p, -1.0), (node.entry, size, q - 1, node.most - 1.0)):
        units = np.maximum(0.0, span - lane.alpha) / lane.beta / scale
        columns.append(np.stack([place + p, place + q, 2 * size + cell]))
        values.append(np.stack([ones, -ones, share * units]))
        upper.append(-units)
    at_columns, at_values = np.concatenate(columns, axis=1), np.concatenate(values, axis=1)
    rows = np.broadcast_to(np.arange(at_columns.shape[1]), at_columns.shape)
    cost = np.zeros(2 * size + cells)
    cost[int(np.searchsorted(times, last))] = node.inner.number
    cost[2 * size - 1] = node.entry.number
    entries = rows.ravel(), at_columns.ravel(), at_values.ravel()
    program = GrowingProgram(cost, entries, (np.concatenate(upper), np.zeros(0)))
    limits = np.zeros(len(cost))
    limits[1:size] = limits[size + 1 : 2 * size] = np.inf
    limits[2 * size :] = 1
    program.set_bounds(np.zeros(len(cost)), limits)
    solved = program.solved(limit_s)
    if solved is None:
        return None
    x = np.array(solved.values)
    x[: 2 * size] *= scale
    credits = np.floor(np.minimum.accumulate(x[2 * size :].clip(0, 1)) * _PRICE)
    ticks = np.diff(times)
    inner, entry = (
        np.ceil(np.diff(each).clip(0) / ticks * _PRICE * (1 + 1e-6)) + 1
        for each in (x[:size], x[size : 2 * size])
    )
    total = node.inner.number * (inner * np.maximum(0, np.minimum(times[1:], last) - times[:-1])).sum()
    total += node.entry.number * (entry * ticks).sum()
    whole = [tuple(map(int, each.tolist())) for each in (times, entry, inner, credits)]
    return total / (_PRICE * node.pairs), (whole[0], whole[1], whole[2], whole[3])
