"""Shortest routes over a topology's links, for steps between ranks without a direct link."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from taccl._internal.arrays import ranges
from taccl._internal.caching import REVERSED_FROM, cached
from taccl._internal.graph_algorithms import shortest_paths
from taccl.errors import TopologyError
from taccl.problem.costs import link_ends, wide_links

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.problem.problem import Problem
    from taccl.topology.topology import Topology

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

Ticks = TypeVar("Ticks", int, "Ints")


class ShortestRoutes:
    """Shortest routes over a topology whose links take `ticks` each.

    Multicast and reduction links are not used, and a problem's clauses do not apply.
    """

    def __init__(self, topology: Topology, ticks: tuple[int, ...]) -> None:
        self._topology, self.ticks = topology, ticks
        self.cache: dict[Any, Any] = {}
        #: Cache: {rank: distances from it to all ranks}.
        self._known: dict[int, Floats] = {}
        #: Cache: {rank: last arcs of the shortest routes from it to all ranks}.
        self._known_last: dict[int, Ints] = {}

    @cached_property
    def _into(self) -> list[dict[int, tuple[int, int]]]:
        """Fastest links into each rank, as one mapping {source rank: (ticks, link)} per destination."""
        into: list[dict[int, tuple[int, int]]] = [{} for _ in self._topology.node_of_rank]
        for src, dst, link in zip(*self.arcs[:2].tolist(), self._fastest[1].tolist(), strict=True):
            into[dst][src] = self.ticks[link], link
        return into

    @cached_property
    def _least_out(self) -> dict[int, int]:
        """{rank: ticks of the fastest link from it}."""
        least: dict[int, int] = {}
        for into in self._into:
            for src, (ticks, _) in into.items():
                least[src] = min(ticks, least.get(src, ticks))
        return least

    @cached_property
    def _least_into(self) -> list[int]:
        """Ticks of the fastest link into every rank; 0 if no link leads to it."""
        return [min((ticks for ticks, _ in into.values()), default=0) for into in self._into]

    @classmethod
    def of(cls, problem: Problem) -> ShortestRoutes:
        """Shortest routes for the largest chunk of a problem."""
        return _routes_of(problem)

    def direct(self, src: int, dst: int) -> tuple[int, int] | None:
        """(ticks, index) of the fastest link from `src` to `dst`; None if there is none."""
        return self._into[dst].get(src)

    def hop(self, src: int, dst: int) -> list[int]:
        """Fastest direct link between two ranks, as a list; without one, the links of a shortest route."""
        direct = self.direct(src, dst)
        return self.route(src, dst) if direct is None else [direct[1]]

    @cached_property
    def arcs(self) -> NDArray[np.int64]:
        """Source, destination and length of the fastest link between each pair of ranks, (3, num_arcs).

        A length is the ticks times the number of ranks, plus one: of equally fast routes, the one with fewer
        hops is the shortest. Ticks are in a unit in which double precision adds the longest route exactly.
        """
        code, link = self._fastest
        ticks = np.array(self.ticks, np.int64)[link]
        return np.stack((*np.divmod(code, self._num_ranks), self._length(ticks)))

    @cached_property
    def _fastest(self) -> tuple[Ints, Ints]:
        """Linked pairs of ranks, as ascending source * num_ranks + destination, and their fastest links."""
        src, dst = link_ends(self._topology)
        single = np.ones(len(src), bool)
        single[list(wide_links(self._topology))] = False
        link = np.flatnonzero(single)
        code, ticks = src[link] * self._num_ranks + dst[link], np.array(self.ticks, np.int64)[link]
        order = np.lexsort((link, ticks, code))
        first = order[np.flatnonzero(np.diff(code[order], prepend=-1))]
        return code[first], link[first]

    @property
    def fastest_links(self) -> bytes:
        """The fastest link between each linked pair of ranks, encoded; equal for many sizes of chunks."""
        return self._fastest[1].tobytes()

    @property
    def _num_ranks(self) -> int:
        return self._topology.num_ranks

    @cached_property
    def _unit(self) -> int:
        return max(self.ticks, default=0) * self._num_ranks**2 // 2**53 + 1

    def _length(self, ticks: Ticks) -> Ticks:
        return ticks // self._unit * self._num_ranks + 1

    def _unconnected(self, src: int, dst: int) -> TopologyError:
        """Error for ranks without a path; for reversed links it names those of the original topology."""
        topology = self._topology
        if REVERSED_FROM in topology.cache:
            topology, src, dst = topology.cache[REVERSED_FROM], dst, src
        said = f"no links lead from rank {src} to rank {dst}, as this algorithm needs; synthesize instead"
        return TopologyError(said, where=topology.name)

    @cached
    def route(self, src: int, dst: int) -> list[int]:
        """Links of a shortest route, in order; raises `TopologyError` if none lead from `src` to `dst`."""
        direct = self.direct(src, dst)
        # Any other route has a link out of `src` and another one into `dst`.
        if direct is not None and direct[0] <= self._least_out[src] + self._least_into[dst]:
            return [direct[1]]
        lengths = self._lengths_from(np.array([src]))[0]
        if lengths[dst] == float("inf"):
            raise self._unconnected(src, dst)
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

    def hops(self, src: Ints, dst: Ints, *, direct_first: bool = False) -> tuple[Ints, Ints, Ints]:
        """Hops of the shortest routes between pairs of ranks, as columns: pair, position in route, link.

        - `direct_first`: True to use the direct link of a pair that has one, as `hop` does.
        """
        code, links = self._fastest
        pairs = src * self._num_ranks + dst
        arc = np.minimum(np.searchsorted(code, pairs), max(len(code) - 1, 0))
        is_linked = code[arc] == pairs if len(code) else np.zeros(len(pairs), bool)
        if is_linked.all() and (direct_first or self._is_surely_direct[arc].all()):
            return np.arange(len(pairs)), np.zeros(len(pairs), np.int64), links[arc]
        pairs, place, which = np.unique(pairs, return_index=True, return_inverse=True)
        if direct_first:
            direct = np.full(len(pairs), -1)
            linked = np.flatnonzero(is_linked[place])
            direct[linked] = links[arc[place[linked]]]
        else:
            direct = self._direct_links(pairs)
        relayed = np.flatnonzero(direct < 0)
        lengths = np.ones(len(pairs), np.int64)
        lengths[relayed], over = self._relayed_links(pairs[relayed])
        links = np.repeat(direct, lengths)
        links[links < 0] = over
        pair, hop = ranges(np.zeros(len(which), np.int64), lengths[which])
        return pair, hop, links[(np.cumsum(lengths) - lengths)[which[pair]] + hop]

    def _relayed_links(self, pairs: Ints) -> tuple[Ints, Ints]:
        """Number of links in the shortest route of each pair of ranks, (num_pairs,), and links of all routes.

        - `pairs`: As in `_direct_links`.
        """
        tail, (_, links) = self.arcs[0], self._fastest
        src, dst = np.divmod(pairs, self._num_ranks)
        starts, row = np.unique(src, return_inverse=True)
        last = self._last_arcs(starts)
        at = dst
        found: list[Ints] = []
        while len(left := np.flatnonzero(at != src)):
            arc = np.full(len(pairs), -1)
            arc[left] = last[row[left], at[left]]
            if (arc[left] < 0).any():
                first = left[np.argmax(arc[left] < 0)]
                self.route(int(src[first]), int(dst[first]))  # raises the error for a missing route
            found.append(np.where(arc < 0, -1, links[arc]))
            at = np.where(arc < 0, at, tail[arc])
        hops = np.stack((np.full(len(pairs), -1), *found[::-1]), axis=1)
        return (hops >= 0).sum(axis=1), hops[hops >= 0]

    def _last_arcs(self, starts: Ints) -> Ints:
        """Last arc of the shortest route from each given rank to each rank, (num_starts, num_ranks).

        It is -1 where no route leads, and at the start itself. If there are several such arcs, it is the one
        with the lowest link index. Rows are cached.
        """
        tail, head, length = self.arcs
        unknown = [rank for rank in starts.tolist() if rank not in self._known_last]
        if unknown:
            by_link = np.argsort(-self._fastest[1])  # of several arcs, the last one assigned remains
            tail, head, length = tail[by_link], head[by_link], length[by_link]
        for rank, lengths in zip(unknown, self._lengths_from(np.array(unknown, np.int64)), strict=True):
            is_last = np.flatnonzero((lengths[tail] + length == lengths[head]) & np.isfinite(lengths[head]))
            last = np.full(self._num_ranks, -1)
            last[head[is_last]] = by_link[is_last]
            self._known_last[rank] = last
        return np.array([self._known_last[rank] for rank in starts.tolist()]).reshape(-1, self._num_ranks)

    def _direct_links(self, pairs: Ints) -> Ints:
        """Link that is the shortest route of each pair of ranks, (num_pairs,); -1 if that route has relays.

        - `pairs`: Source times the number of ranks plus destination.
        """
        n, length, (code, links) = self._num_ranks, self.arcs[2], self._fastest
        found, arc = np.full(len(pairs), -1), np.searchsorted(code, pairs)
        joined = np.flatnonzero(code[np.minimum(arc, len(code) - 1)] == pairs) if len(code) else found[:0]
        arc, (src, dst) = arc[joined], np.divmod(pairs[joined], n)
        is_shortest = self._is_surely_direct[arc]
        rest = np.flatnonzero(~is_shortest)
        starts, row = np.unique(src[rest], return_inverse=True)
        lengths = self._lengths_from(starts)
        is_shortest[rest] = length[arc[rest]] == lengths[row, dst[rest]]
        found[joined[is_shortest]] = links[arc[is_shortest]]
        return found

    @cached_property
    def _is_surely_direct(self) -> NDArray[np.bool_]:
        """True for each arc that is a shortest route already by the least lengths of arcs, (num_arcs,)."""
        n, (tail, head, length) = self._num_ranks, self.arcs
        least_out, least_into = (np.full(n, length.max(initial=0)) for _ in range(2))
        np.minimum.at(least_out, tail, length)
        np.minimum.at(least_into, head, length)
        # A route with relays has two links or more; between nodes, at least one of them crosses.
        node, most = np.array(self._topology.node_of_rank), length.max(initial=0)
        crosses = node[tail] != node[head]
        least = length[crosses].min(initial=most) + length.min(initial=most)
        found: NDArray[np.bool_] = length <= np.maximum(
            least_out[tail] + least_into[head], np.where(crosses, least, 0)
        )
        return found

    def _lengths_from(self, starts: Ints) -> Floats:
        """Distance from each of the given ranks to every rank, (num_starts, num_ranks); rows are cached."""
        src, dst, length = self.arcs
        unknown = [rank for rank in starts.tolist() if rank not in self._known]
        if unknown:
            found = shortest_paths(self._num_ranks, src, dst, length, unknown)
            self._known.update(zip(unknown, found, strict=True))
        return np.array([self._known[rank] for rank in starts.tolist()]).reshape(-1, self._num_ranks)

    @cached
    def paths_in(self, dst: int) -> list[tuple[float, int, list[tuple[int, int]]]]:
        """Shortest routes from all other ranks to `dst`, as a row per rank, the farthest rank first.

        A row is (distance to `dst`, rank, [(ticks, link), ...]). The list has the first hops of all shortest
        routes from the rank.
        """
        tail, head, length = self.arcs
        far: Floats = shortest_paths(self._num_ranks, head, tail, length, dst)[0]  # from every rank to `dst`
        is_first = np.isfinite(far[head]) & (far[tail] == far[head] + length) & (tail != dst)
        arcs = np.flatnonzero(is_first)
        lengths: list[float] = far.tolist()
        first: list[list[tuple[int, int]]] = [[] for _ in lengths]
        for src, link in zip(tail[arcs].tolist(), self._fastest[1][arcs].tolist(), strict=True):
            first[src].append((self.ticks[link], link))
        return sorted(((lengths[r], r, first[r]) for r in range(len(first)) if r != dst), reverse=True)


@cached
def _routes_of(problem: Problem) -> ShortestRoutes:
    costs = problem.costs
    units = int(costs.chunk_units.max(initial=1))
    return _routes(problem.topology, tuple((costs.link_alpha + units * costs.link_beta).tolist()))


@cached
def _routes(topology: Topology, ticks: tuple[int, ...]) -> ShortestRoutes:
    return ShortestRoutes(topology, ticks)
