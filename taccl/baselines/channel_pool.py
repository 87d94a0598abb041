"""Pool of rings and chains (columns), from which channels are packed into the links.

Columns are regular, cheap at the dual prices of a linear program, or found by depth-first search.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from taccl.baselines.cheap_rings import cheap_paths, cheapest_paths
from taccl.baselines.ring import walk
from taccl.problem.costs import hold_columns, hold_costs_us
from taccl.solvers.highs import minimise
from taccl.topology.tuning import MAX_CHANNELS

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from taccl.baselines.channels import Pattern

    Floats = NDArray[np.float64]
    #: Order in which a channel passes the local ranks of a node.
    Walk = tuple[int, ...]
    #: Ring or chain, a column of the linear program, as one, two or four walks through nodes.
    #: One walk is for all nodes; two are for even and odd nodes; four also for each of the last two nodes.
    Column = tuple[Walk, ...]


#: Max ranks of a node for which the cheapest ring is found exactly: 10 * 2**10 states for each first rank.
MOST_EXACT = 10
#: Max ranks of a node for which a beam search looks for cheap rings.
_MOST_SEARCHED = 32
#: Max rounds of column generation: exact (nodes of eight ranks need about 20), and with a beam search.
_MAX_ROUNDS, _MAX_SEARCHED_ROUNDS = 60, 20


def column_of(walk: Walk, alternates: bool) -> Column:
    """Column with one walk through every node, or with that walk backwards in every other node."""
    return (walk, walk[::-1]) if alternates else (walk,)


class ChannelPool:
    """Known columns (rings or chains), and the us per MB for which each column keeps each resource busy."""

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.columns: list[Column] = []
        self._known: set[Column] = set()
        self._loads: list[Floats] = []
        topology = pattern.topology
        _, hold = hold_columns(topology).of_sends(np.arange(len(topology.links)))
        resource, beta = hold_columns(topology).resource[hold], hold_costs_us(topology)[1][hold]
        rows = iter(zip(resource.tolist(), beta.tolist(), strict=True))
        #: (resource, us per MB) of the holds of each link.
        self._holds = [[*islice(rows, len(holds))] for holds in topology.holds_of_link]

    def add(self, column: Column) -> bool:
        """Add a column; False if it is already known, or some of its ranks are not joined."""
        column = self.pattern.canonical(column)
        links = None if column in self._known else self.pattern.links(column)
        if links is None:
            return False
        load = np.zeros(len(self.pattern.topology.resources))
        for link, times in links:
            for resource, beta in self._holds[link]:
                load[resource] += times * beta
        self._known.add(column)
        self.columns.append(column)
        self._loads.append(load)
        return True

    def add_families(self, families: Iterable[list[Column]]) -> list[list[int]]:
        """Add regular families of rings or chains; return each family in which no link is missing."""
        sets = []
        for family in families:
            for column in family:
                self.add(column)
            known = {column: i for i, column in enumerate(self.columns)}
            found = {known.get(self.pattern.canonical(column), -1) for column in family}
            if found and min(found) >= 0:
                sets.append(sorted(found))
        return sets

    def rate(self, chosen: Sequence[int]) -> float:
        """MB per us that the chosen columns carry together, as channels with equal shares of the data."""
        load = np.sum([self._loads[i] for i in chosen], axis=0)
        return float(len(chosen) / max(load.max(), 1e-12))

    def shares(self) -> tuple[Floats, float]:
        """Share of each ring or chain in the optimal packing of resources, and the packing's MB per us."""
        for _ in range(_MAX_ROUNDS if self.pattern.size <= MOST_EXACT else _MAX_SEARCHED_ROUNDS):
            # Most rows are equal. Dropping these first leaves far fewer rows to sort.
            rows = {row.tobytes(): row.tolist() for row in np.array(self._loads).T}
            loads = np.array(sorted(rows.values()))
            scale = loads.max(initial=0) or 1.0  # HiGHS may violate limits by far if coefficients are huge
            entries = (*np.nonzero(loads), loads[loads != 0] / scale)
            found = minimise(-np.ones(loads.shape[1]), entries, (np.ones(len(loads)),))
            if found is None:  # links have no beta, so any column is optimal
                return np.eye(1, len(self.columns))[0], np.inf
            answer, full = found, np.array(self._loads).T
            prices = self._prices(full, loads, -answer.duals / scale)
            new = [self.add(column) for column in self._cheapest(prices)]
            if not any(new):
                break
        share = np.pad(answer.values.clip(0), (0, len(self.columns) - len(answer.values)))
        return share / share.sum(), -answer.objective / scale

    def _prices(self, full: Floats, rows: Floats, duals: Floats) -> Floats:
        """Cost of 1 MB over each link at the dual prices of resources.

        - `full`: Load of each resource by each column, (num_resources, num_columns).
        - `rows`: Distinct rows of `full`, which are the rows of the linear program.
        - `duals`: Dual price of each of `rows`.
        """
        of_resource = np.zeros(len(full))
        place = {row.tobytes(): i for i, row in enumerate(full)}
        for row, dual in zip(rows, duals, strict=True):
            of_resource[place[row.tobytes()]] = dual
        return np.array([sum(of_resource[r] * beta for r, beta in holds) for holds in self._holds])

    def _matrices(self, prices: Floats, alternates: bool) -> tuple[Floats, Floats]:
        """Costs of steps inside nodes, and between nodes, as matrices by local rank; inf if not joined."""
        size = self.pattern.size
        found = []
        for number, pairs in enumerate(self.pattern.known_pairs(alternates)):
            matrix = np.full((size, size), np.inf)
            for place, ranks in pairs.items():
                links = self.pattern.weighted(ranks, closing=number == 1)
                if links is not None:
                    matrix[place] = sum(times * prices[e] for e, times in links)
            found.append(matrix)
        return found[0], found[1]

    def _cheapest(self, prices: Floats) -> Iterator[Column]:
        """Yield columns with negative reduced cost: a cheap ring from each first rank."""
        if self.pattern.size > _MOST_SEARCHED:
            return
        paths = cheapest_paths if self.pattern.size <= MOST_EXACT else cheap_paths
        for alternates in self.pattern.variants:
            for cost, path in paths(*self._matrices(prices, alternates)):
                if cost < 1 - 1e-6:
                    yield column_of(path, alternates)

    def searched_sets(self, shuffled: random.Random) -> Iterator[list[int]]:
        """Yield one set of disjoint rings or chains per distinct link bandwidth, by depth-first search."""
        betas = {max(beta for _, beta in holds) for holds in self._holds if holds}
        for rate in sorted(1 / beta for beta in betas if beta):
            found = self.add_searched(shuffled, rate=rate)
            if found:
                yield found

    def add_searched(self, shuffled: random.Random, *, rate: float) -> list[int]:
        """Add rings or chains of `rate` MB per us each until no other fits; return their column indices."""
        remaining = np.ones(len(self.pattern.topology.resources))
        found: list[int] = []
        while len(found) < MAX_CHANNELS:
            slack = np.array(
                [all(beta * rate <= remaining[r] + 1e-9 for r, beta in holds) for holds in self._holds]
            )
            column = self._searched(np.where(slack, 0.0, np.inf), shuffled)
            if column is None:
                break
            self.add(column)
            number = self.columns.index(self.pattern.canonical(column))
            remaining -= rate * self._loads[number]
            if remaining.min() < -1e-9:
                break
            found.append(number)
            if not rate:
                break
        return found

    def _searched(self, prices: Floats, shuffled: random.Random) -> Column | None:
        for alternates in self.pattern.variants:
            steps, closing = self._matrices(prices, alternates)
            next_ranks = [set(np.flatnonzero(np.isfinite(row)).tolist()) for row in steps]
            closings = {(int(a), int(b)) for a, b in np.argwhere(np.isfinite(closing))}
            path = walk(next_ranks, closings, shuffled)
            if path is not None:
                return column_of(tuple(path), alternates)
        return None
