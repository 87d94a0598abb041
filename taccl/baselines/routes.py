"""Shortest routes over a topology's links, for steps between ranks that no link joins."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from taccl.errors import TopologyError

if TYPE_CHECKING:
    from taccl.problem import Problem

__all__ = ["Routes"]


class Routes:
    """Shortest routes of one problem, each found once, when first asked for.

    A link costs what a send of the problem's largest chunk takes. Links that multicast or reduce are left
    aside.

    Parameters
    ----------
    problem : Problem
        Its clauses are not looked at.
    """

    def __init__(self, problem: Problem) -> None:
        self._topology = problem.topology
        costs = problem.costs
        units = int(costs.chunk_units.max(initial=1))
        num_ranks = problem.topology.num_ranks
        self._fastest: list[dict[int, tuple[int, int]]] = [{} for _ in range(num_ranks)]
        for index, link in enumerate(problem.topology.links):
            if len(link.srcs) == len(link.dsts) == 1:
                choice = (costs.duration(index, units), index)
                self._fastest[link.src][link.dst] = min(choice, self._fastest[link.src].get(link.dst, choice))
        self._least_out = [min((ticks for ticks, _ in out.values()), default=0) for out in self._fastest]
        self._least_into = [0] * num_ranks
        for out in self._fastest:
            for dst, (ticks, _) in out.items():
                self._least_into[dst] = min(ticks, self._least_into[dst] or ticks)
        self._searches: dict[int, _Search] = {}
        self._found: dict[tuple[int, int], list[int]] = {}

    def direct(self, src: int, dst: int) -> tuple[int, int] | None:
        """Ticks and index of the fastest link from `src` to `dst`; None without one."""
        return self._fastest[src].get(dst)

    def route(self, src: int, dst: int) -> list[int]:
        """The links of a shortest route, in order; ties go to fewer hops.

        Raises
        ------
        TopologyError
            If no links lead from `src` to `dst`.
        """
        found = self._found.get((src, dst))
        if found is None:
            found = self._found[src, dst] = self._find(src, dst)
        return found

    def _find(self, src: int, dst: int) -> list[int]:
        direct = self._fastest[src].get(dst)
        # Any other way takes a link out of the one, and another into the other.
        if direct is not None and direct[0] <= self._least_out[src] + self._least_into[dst]:
            return [direct[1]]
        if src not in self._searches:
            self._searches[src] = _Search(self._fastest, src)
        last_link = self._searches[src].until(dst)
        links: list[int] = []
        at = dst
        while at != src:
            if at not in last_link:
                raise TopologyError(
                    f"no links lead from rank {src} to rank {dst}; every rank must reach every other",
                    where=self._topology.name,
                )
            links.append(last_link[at])
            at = self._topology.links[links[-1]].src
        return links[::-1]


class _Search:
    """Dijkstra's algorithm from one rank, which goes no further than it is asked to."""

    def __init__(self, fastest: list[dict[int, tuple[int, int]]], src: int) -> None:
        self._fastest = fastest
        self._queue = [(0, 0, src, -1)]
        self._seen: set[int] = set()
        self._last_link: dict[int, int] = {}

    def until(self, dst: int) -> dict[int, int]:
        """The last link of a shortest route to every rank that is as near as `dst`; ties go to fewer hops."""
        queue, seen = self._queue, self._seen
        while queue and dst not in seen:
            ticks, hops, rank, link = heapq.heappop(queue)
            if rank in seen:
                continue
            seen.add(rank)
            if link >= 0:
                self._last_link[rank] = link
            for other, (cost, e) in self._fastest[rank].items():
                if other not in seen:
                    heapq.heappush(queue, (ticks + cost, hops + 1, other, e))
        return self._last_link
