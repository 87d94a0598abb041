"""Shortest times of chunks over the links that may carry them, in ticks."""

from __future__ import annotations

import heapq
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from taccl.problem import Problem

__all__ = ["Distances", "shortest_times"]


class Distances:
    """Shortest times of a problem's chunks, over the links that may carry them; computed on demand."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._derived = {d.chunk: (d.source, d.rank) for d in problem.collective.derivations}
        self._carried: dict[tuple[object, ...], tuple[int, ...]] = {}
        self._known: dict[object, tuple[dict[int, int], tuple[int, ...]]] = {}
        self._to_go: dict[tuple[tuple[int, ...], int, int], dict[int, int]] = {}

    def origins(self, c: int) -> dict[int, int]:
        """Where the chunk is first, and when."""
        starts = dict.fromkeys(self.problem.collective.chunks[c].origins, 0)
        if c in self._derived:
            source, rank = self._derived[c]
            starts[rank] = self.of(source)[0].get(rank, 0)
        return starts

    def of(self, c: int) -> tuple[dict[int, int], tuple[int, ...]]:
        """(rank -> earliest arrival in ticks, links that may carry the chunk)."""
        data, units = self.problem.collective.chunks[c], int(self.problem.costs.chunk_units[c])
        key = (
            c if self.problem.collective.derivations else (data.origins, data.destinations, data.root, units)
        )
        if key not in self._known:
            carried = self.carried(c)
            self._known[key] = (shortest_times(self.problem, carried, self.origins(c), units), carried)
        return self._known[key]

    def to_go(self, c: int, destination: int) -> dict[int, int]:
        """Shortest times from every rank to a destination of the chunk, in ticks."""
        units = int(self.problem.costs.chunk_units[c])
        key = (self.carried(c), destination, units)
        if key not in self._to_go:
            self._to_go[key] = shortest_times(self.problem, key[0], {destination: 0}, units, backward=True)
        return self._to_go[key]

    def carried(self, c: int) -> tuple[int, ...]:
        """Links that may carry the chunk."""
        problem, data = self.problem, self.problem.collective.chunks[c]
        node = problem.topology.node_of_rank
        key = (data.origins, data.root, frozenset(node[r] for r in data.destinations))
        if key not in self._carried:
            self._carried[key] = tuple(e for e in problem.links_allowed if problem.may_carry(e, c))
        return self._carried[key]


def shortest_times(
    problem: Problem, links: Iterable[int], starts: Mapping[int, int], units: int, *, backward: bool = False
) -> dict[int, int]:
    """Shortest times from (or, backward, to) the starts; a link of several sources waits for the first."""
    topology, costs = problem.topology, problem.costs
    adjacent: dict[int, list[tuple[int, tuple[int, ...]]]] = defaultdict(list)
    for e in links:
        ends, time = topology.links[e], costs.duration(e, units)
        here, there = (ends.dsts, ends.srcs) if backward else (ends.srcs, ends.dsts)
        for rank in here:
            adjacent[rank].append((time, there))
    distance = dict(starts)
    queue = [(time, rank) for rank, time in starts.items()]
    heapq.heapify(queue)
    while queue:
        time, rank = heapq.heappop(queue)
        if time > distance[rank]:
            continue
        for step, others in adjacent[rank]:
            for other in others:
                if time + step < distance.get(other, time + step + 1):
                    distance[other] = time + step
                    heapq.heappush(queue, (time + step, other))
    return distance
