"""Shortest times of chunks over the links that may carry them, in ticks."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.problem import Problem

__all__ = ["Distances", "shortest_times"]


def shortest_times(problem: Problem, links: tuple[int, ...], units: int) -> NDArray[np.float64]:
    """Shortest times between all ranks over some links, for a send of `units`.

    A link of several sources is taken to wait for its first, which can only shorten times.

    Returns
    -------
    (num_ranks, num_ranks) float64
        Ticks from the row's rank to the column's; inf where there is no way. Whole numbers, exact below
        2**53.
    """
    from scipy.sparse.csgraph import csgraph_from_dense, dijkstra

    num_ranks = problem.topology.num_ranks
    direct = np.full((num_ranks, num_ranks), np.inf)
    ends = problem.topology.links
    for e in links:
        time = problem.costs.duration(e, units)
        for src in ends[e].srcs:
            for dst in ends[e].dsts:
                direct[src, dst] = min(direct[src, dst], time)
    times: NDArray[np.float64] = dijkstra(csgraph_from_dense(direct, null_value=np.inf))
    times.setflags(write=False)
    return times


class Distances:
    """Shortest times of a problem's chunks; computed on demand, once per set of links and size."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._derived_at = {d.chunk: d.rank for d in problem.collective.derivations}
        self._makes: dict[int, list[tuple[int, int]]] = defaultdict(list)  # of each source: ranks and chunks
        for each in problem.collective.derivations:
            self._makes[each.source].append((each.rank, each.chunk))
        self._made: dict[int | None, dict[int, int]] = {}
        self._numbers: dict[tuple[int, ...], int] = {}
        self._link_sets: list[tuple[int, ...]] = []
        self._every: int | None = None
        self._as_sets: dict[int, frozenset[int]] = {}
        self._carried: dict[tuple[object, ...], int] = {}
        self._times: dict[tuple[int, int], NDArray[np.float64]] = {}

    def origins(self, c: int, *, units: int | None = None) -> dict[int, int]:
        """Where the chunk is first, and when."""
        starts = dict.fromkeys(self.problem.collective.chunks[c].origins, 0)
        if c in self._derived_at:
            made = self._when_made(units)
            if c in made:
                starts[self._derived_at[c]] = made[c]
        return starts

    def _when_made(self, units: int | None) -> dict[int, int]:
        """When every derived chunk is made at the earliest, found from the chunks that start somewhere on."""
        if units not in self._made:
            made: dict[int, int] = {}
            self._made[units] = made  # filled below: `heads` of a source asks for what is known by then
            pending = [c for c in self._makes if self.problem.collective.chunks[c].origins]
            while pending:
                source = pending.pop()
                heads = self.heads(source, units=units)
                for rank, chunk in self._makes[source]:
                    if heads[rank] < made.get(chunk, np.inf):
                        made[chunk] = int(heads[rank])
                        if chunk in self._makes:
                            pending.append(chunk)
        return self._made[units]

    def heads(self, c: int, *, units: int | None = None) -> NDArray[np.float64]:
        """(num_ranks,) earliest arrival of the chunk at every rank; inf where it cannot come.

        Parameters
        ----------
        units : int, optional
            As if the chunk, and what it is made from, had this size.
        """
        starts = self.origins(c, units=units)
        if not starts:
            return np.full(self.problem.topology.num_ranks, np.inf)
        size = int(self.problem.costs.chunk_units[c]) if units is None else units
        times = self.times(self.carried(c), size)
        earliest: NDArray[np.float64] = np.min([times[r] + start for r, start in starts.items()], axis=0)
        return earliest

    def to_go(self, c: int, destination: int) -> NDArray[np.float64]:
        """(num_ranks,) shortest time of the chunk from every rank to a destination."""
        return self.times(self.carried(c), int(self.problem.costs.chunk_units[c]))[:, destination]

    def times(self, links: int, units: int) -> NDArray[np.float64]:
        """`shortest_times` over a numbered set of links."""
        if (links, units) not in self._times:
            self._times[links, units] = shortest_times(self.problem, self._link_sets[links], units)
        return self._times[links, units]

    def links(self, number: int) -> tuple[int, ...]:
        """The links of a numbered set."""
        return self._link_sets[number]

    def link_set(self, number: int) -> frozenset[int]:
        """The same as a set."""
        if number not in self._as_sets:
            self._as_sets[number] = frozenset(self._link_sets[number])
        return self._as_sets[number]

    def carried(self, c: int, *, reducing: bool | None = False) -> int:
        """The number of the set of links that may carry a chunk: spreading, reducing, or (None) either."""
        problem, data = self.problem, self.problem.collective.chunks[c]
        clauses = problem.clauses
        holders = problem.holders(c)
        if not (clauses.carries_from or clauses.carries_to or clauses.direct_crossing or holders):
            if self._every is None:
                self._every = self._number(problem.links_allowed)
            return self._every
        node = problem.topology.node_of_rank
        ends = frozenset(node[r] for r in data.destinations)
        key = (data.origins, self._derived_at.get(c), data.root, ends, holders, reducing)
        if key not in self._carried:
            modes = (False, True) if reducing is None else (reducing,)
            links = tuple(
                e
                for e in problem.links_allowed
                if any(problem.may_carry(e, c, reducing=mode) for mode in modes)
            )
            self._carried[key] = self._number(links)
        return self._carried[key]

    def _number(self, links: tuple[int, ...]) -> int:
        if links not in self._numbers:
            self._numbers[links] = len(self._link_sets)
            self._link_sets.append(links)
        return self._numbers[links]
