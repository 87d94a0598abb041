"""Shortest times of chunks over the links that may carry them, in ticks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taccl._internal.caching import cached
from taccl._internal.graph_algorithms import paths_from_nearest, shortest_paths
from taccl.problem.costs import link_ends, wide_links
from taccl.problem.problem import Problem

Arcs = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


def shortest_times(problem: Problem, links: tuple[int, ...], units: int) -> NDArray[np.float64]:
    """Shortest times between all ranks over some links, for a send of `units`.

    A link of several sources counts as waiting for its first source, which can only shorten times. Paths
    respect the problem's limit on the links that a chunk may pass. For sums, they may have twice as many: up
    to the limit to the root, and again from it.

    Returns
    -------
    (num_ranks, num_ranks) float64
        Ticks from the row's rank to the column's; inf if there is no path. Whole numbers, exact below 2**53.
    """
    num_ranks = problem.topology.num_ranks
    arc, src, dst = arcs_of(problem, links)
    took, limit = (
        problem.costs.link_alpha[arc] + units * problem.costs.link_beta[arc],
        problem.clauses.path_limit,
    )
    if limit is None:
        times = shortest_paths(num_ranks, src, dst, took, np.arange(num_ranks))
    else:
        direct = np.full((num_ranks, num_ranks), np.inf)
        np.minimum.at(direct, (src, dst), took)
        times = _over_few_links(direct, limit * (1 + problem.collective.sums_up))
    times.setflags(write=False)
    return times


def _over_few_links(direct: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """Shortest times over at most `most` links, from the times of single links."""
    times = np.where(np.eye(len(direct), dtype=bool), 0.0, np.inf)
    into = [(dst, np.flatnonzero(np.isfinite(column))) for dst, column in enumerate(direct.T)]
    for _ in range(min(most, len(direct))):
        before = times.copy()
        for dst, srcs in into:
            over = (before[:, srcs] + direct[srcs, dst]).min(axis=1, initial=np.inf)
            np.minimum(times[:, dst], over, out=times[:, dst])
        if (times == before).all():
            break
    return times


def arcs_of(problem: Problem, links: Sequence[int]) -> Arcs:
    """(link, source, destination) of every pair of ranks that the links join."""
    ends, wide = problem.topology.links, wide_links(problem.topology)
    if not wide:
        some, (src, dst) = np.array(links, dtype=np.int64), link_ends(problem.topology)
        return some, src[some], dst[some]
    found = [(e, a, b) for e in links for a in ends[e].srcs for b in ends[e].dsts]
    table = np.array(found, dtype=np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


class Distances:
    """Shortest times of a problem's chunks; computed on demand, once per set of links and size."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._derived_at = {d.chunk: d.rank for d in problem.collective.derivations}
        self._made: dict[int | None, dict[int, int]] = {}
        self._numbers: dict[bytes | tuple[int, ...], int] = {}  # by mask bytes, and by mask identities
        self._link_sets: list[tuple[int, ...]] = []
        self.cache: dict[Any, Any] = {}
        self._times: dict[tuple[int, int], NDArray[np.float64]] = {}

    def origins(self, c: int, *, units: int | None = None) -> dict[int, int]:
        """{rank: time} at which the chunk first exists."""
        starts = dict.fromkeys(self.problem.collective.chunks[c].origins, 0)
        if c in self._derived_at:
            made = self._when_made(units)
            if c in made:
                starts[self._derived_at[c]] = made[c]
        return starts

    def _when_made(self, units: int | None) -> dict[int, int]:
        """{derived chunk: earliest time at which it can be made}."""
        if units not in self._made:
            made: dict[int, int] = {}
            self._made[units] = made  # filled below: `heads` of a source reads the entries so far
            for each in self.problem.collective.derivations_in_turn:
                head = self.heads(each.source, units=units)[each.rank]
                if np.isfinite(head):
                    made[each.chunk] = int(head)
        return self._made[units]

    def heads(self, c: int, *, units: int | None = None) -> NDArray[np.float64]:
        """(num_ranks,) earliest arrival of the chunk at every rank; inf if it cannot arrive.

        - `units`: Assumed size of the chunk, and of the chunks that it is derived from; default: their own.
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

    def nearest(
        self, links: int, units: int, ranks: Collection[int], *, backwards: bool = False
    ) -> NDArray[np.float64]:
        """(num_ranks,) shortest time over a numbered set of links from, or to, the nearest of some ranks."""
        num_ranks = self.problem.topology.num_ranks
        if len(ranks) == num_ranks:
            return np.zeros(num_ranks)
        if (links, units) in self._times:
            times = self._times[links, units]
            found: NDArray[np.float64] = (times.T if backwards else times)[list(ranks)].min(axis=0)
            return found
        arc, src, dst = self.arcs(links)
        costs = self.problem.costs
        length = (costs.link_alpha[arc] + units * costs.link_beta[arc]).astype(float)
        ends = (dst, src) if backwards else (src, dst)
        return paths_from_nearest(num_ranks, *ends, length, ranks)

    @cached
    def arcs(self, number: int) -> Arcs:
        """`arcs_of` a numbered set of links."""
        return arcs_of(self.problem, self._link_sets[number])

    def links(self, number: int) -> tuple[int, ...]:
        """The links of a numbered set."""
        return self._link_sets[number]

    @cached
    def link_set(self, number: int) -> frozenset[int]:
        """The links of a numbered set, as a frozenset."""
        return frozenset(self._link_sets[number])

    def carried(self, c: int, *, reducing: bool | None = False) -> int:
        """Number of the set of links that may carry a chunk: spreading, reducing, or (None) either."""
        modes = (False, True) if reducing is None else (reducing,)
        masks = [self.problem.open_links(c, reducing=mode) for mode in modes]
        alike = tuple(map(id, masks))  # chunks that clauses treat alike share them
        if alike not in self._numbers:
            is_open = np.logical_or.reduce(masks)
            number = self._numbers.setdefault(is_open.tobytes(), len(self._link_sets))
            if number == len(self._link_sets):
                self._link_sets.append(tuple(np.flatnonzero(is_open).tolist()))
            self._numbers[alike] = number
        return self._numbers[alike]
