"""Shortest routes over a topology's links, for steps between ranks that no link joins."""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl.caching import cached
from taccl.errors import TopologyError
from taccl.graph_algorithms import shortest_paths

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.problem import Problem
    from taccl.topology.topology import Topology

    Ints = NDArray[np.int64]


class ShortestRoutes:
    """Shortest routes over a topology, whose links take `ticks` each.

    Links that multicast or reduce are left aside, and so are a problem's clauses.
    """

    def __init__(self, topology: Topology, ticks: tuple[int, ...]) -> None:
        self._topology, self.ticks = topology, ticks
        #: {rank: (fastest link from it, its ticks)}, for every destination.
        self._into: list[dict[int, tuple[int, int]]] = [{} for _ in topology.node_of_rank]
        self._least_out: dict[int, int] = {}
        for index, link in enumerate(topology.links):
            if len(link.srcs) == len(link.dsts) == 1:
                choice = (ticks[index], index)
                into, src = self._into[link.dst], link.src
                into[src] = min(choice, into.get(src, choice))
                self._least_out[src] = min(choice[0], self._least_out.get(src, choice[0]))
        self._least_into = [min((ticks for ticks, _ in into.values()), default=0) for into in self._into]
        self.cache: dict[Any, Any] = {}

    @classmethod
    def of(cls, problem: Problem) -> ShortestRoutes:
        """Shortest routes for the largest chunk of a problem."""
        costs = problem.costs
        units = int(costs.chunk_units.max(initial=1))
        return _routes(problem.topology, tuple((costs.link_alpha + units * costs.link_beta).tolist()))

    def direct(self, src: int, dst: int) -> tuple[int, int] | None:
        """Ticks and index of the fastest link from `src` to `dst`; None without one."""
        return self._into[dst].get(src)

    @cached_property
    def arcs(self) -> NDArray[np.int64]:
        """(source, end, length) of the fastest links; each hop adds a little, so fewer hops win ties."""
        rows = [(s, d, self._length(t)) for d, into in enumerate(self._into) for s, (t, _) in into.items()]
        return np.array(rows, dtype=np.int64).reshape(-1, 3).T

    def _length(self, ticks: int) -> int:
        return ticks * len(self._into) + 1

    @cached
    def route(self, src: int, dst: int) -> list[int]:
        """The links of a shortest route, in order; `TopologyError` if none lead from `src` to `dst`."""
        direct = self.direct(src, dst)
        # Any other route has a link out of `src` and another one into `dst`.
        if direct is not None and direct[0] <= self._least_out[src] + self._least_into[dst]:
            return [direct[1]]
        lengths = self._lengths(src)
        if lengths[dst] == float("inf"):
            raise TopologyError(
                f"no links lead from rank {src} to rank {dst}; every rank must reach every other",
                where=self._topology.name,
            )
        if direct is not None and lengths[dst] == self._length(direct[0]):
            return [direct[1]]
        links: list[int] = []
        at = dst
        while at != src:
            last = (
                (e, r) for r, (t, e) in self._into[at].items() if lengths[r] + self._length(t) == lengths[at]
            )
            link, at = min(last)
            links.append(link)
        return links[::-1]

    def hops(self, src: Ints, dst: Ints) -> tuple[Ints, Ints, Ints]:
        """Hops of the shortest routes of some pairs of ranks: (pair, place in its route, link) of each."""
        n = len(self._into)
        pairs, which = np.unique(src * n + dst, return_inverse=True)
        found = [self.route(*divmod(pair, n)) for pair in pairs.tolist()]
        lengths = np.array([len(route) for route in found], np.int64)
        links = np.array([link for route in found for link in route], np.int64)
        each = lengths[which]
        pair = np.repeat(np.arange(len(which)), each)
        hop = np.arange(len(pair)) - np.repeat(np.cumsum(each) - each, each)
        return pair, hop, links[(np.cumsum(lengths) - lengths)[which[pair]] + hop]

    @cached
    def paths_in(self, dst: int) -> list[tuple[float, int, list[tuple[int, int]]]]:
        """Every other rank, farthest first: (distance, rank, (ticks, link) of its routes' first hops)."""
        lengths = self._lengths(dst, backwards=True)
        first: list[list[tuple[int, int]]] = [[] for _ in lengths]
        for at, into in enumerate(self._into):
            for src, (ticks, link) in into.items():
                is_first = lengths[at] < math.inf and lengths[src] == lengths[at] + self._length(ticks)
                if src != dst and is_first:
                    first[src].append((ticks, link))
        return sorted(((lengths[r], r, first[r]) for r in range(len(first)) if r != dst), reverse=True)

    @cached
    def _lengths(self, rank: int, *, backwards: bool = False) -> list[float]:
        """Distance from a rank to each rank, or (`backwards`) from each rank to it."""
        src, dst, length = self.arcs
        ends = (dst, src) if backwards else (src, dst)
        lengths: list[float] = shortest_paths(len(self._into), *ends, length, rank)[0].tolist()
        return lengths


@cached
def _routes(topology: Topology, ticks: tuple[int, ...]) -> ShortestRoutes:
    return ShortestRoutes(topology, ticks)
