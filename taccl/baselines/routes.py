"""Shortest routes over a topology's links, for steps between ranks that no link joins."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from taccl.errors import TopologyError

if TYPE_CHECKING:
    from taccl.problem import Problem

__all__ = ["Routes"]


class Routes:
    """Shortest routes of one problem, found from each rank once, when first asked for.

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
        self._fastest: list[dict[int, tuple[int, int]]] = [{} for _ in range(problem.topology.num_ranks)]
        for index, link in enumerate(problem.topology.links):
            if len(link.srcs) == len(link.dsts) == 1:
                choice = (costs.duration(index, units), index)
                self._fastest[link.src][link.dst] = min(choice, self._fastest[link.src].get(link.dst, choice))
        self._last_link: dict[int, dict[int, int]] = {}

    def direct(self, src: int, dst: int) -> tuple[int, int] | None:
        """Ticks and index of the fastest link from `src` to `dst`; None without one."""
        return self._fastest[src].get(dst)

    def route(self, src: int, dst: int) -> list[int]:
        """The links of a shortest route, in order.

        Raises
        ------
        TopologyError
            If no links lead from `src` to `dst`.
        """
        if src not in self._last_link:
            self._last_link[src] = self._search(src)
        last_link = self._last_link[src]
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

    def _search(self, src: int) -> dict[int, int]:
        """Dijkstra's algorithm: the last link of a shortest route to every rank; ties go to fewer hops."""
        last_link: dict[int, int] = {}
        queue = [(0, 0, src, -1)]
        seen: set[int] = set()
        while queue:
            ticks, hops, rank, link = heapq.heappop(queue)
            if rank in seen:
                continue
            seen.add(rank)
            if link >= 0:
                last_link[rank] = link
            for dst, (cost, e) in self._fastest[rank].items():
                if dst not in seen:
                    heapq.heappush(queue, (ticks + cost, hops + 1, dst, e))
        return last_link
