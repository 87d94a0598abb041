"""The quotient of a problem by its symmetries: one hop or state stands for all symmetric ones.

A *state* is a chunk at a rank. A *hop* sends a chunk over a link, from states to states. The quotient has one
state for each orbit of (chunk, rank) pairs, and one hop for each orbit of (chunk, link) pairs. All members of
an orbit are routed and timed alike.

Routing, ordering, contiguity, the list scheduler and the job shop all work on `Quotient`. With the trivial
group it is the problem itself. Each send of a schedule on it stands for all of its images.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taccl._internal.deadline import NEVER, Deadline
from taccl.analysis.certificates.finding.distances import Distances
from taccl.problem.costs import hold_columns, wide_links
from taccl.problem.problem import Problem
from taccl.sketch.group import Symmetries

#: Max number of distances to destinations in memory; links are processed in blocks that keep to it.
_BLOCK = 2**21


@dataclass(frozen=True, slots=True)
class Held:
    """A send of u units occupies `count` resources of one orbit, each for ``alpha + u * beta`` ticks."""

    resource: int
    alpha: int
    beta: int
    receives: bool
    count: int


@dataclass(frozen=True, slots=True)
class ChunkState:
    """An orbit of (chunk, rank) pairs: symmetric chunks at symmetric ranks.

    - `chunk`, `rank`: Chunk and rank that represent the orbit.
    - `head_ticks`: Earliest possible arrival; 0 at an origin.
    - `hops_in`, `hops_out`: Hops that enter the state, and hops that leave it.
    """

    chunk: int
    rank: int
    head_ticks: int
    is_origin: bool
    is_destination: bool
    hops_in: tuple[int, ...] = ()
    hops_out: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Hop:
    """An orbit of (chunk, link) pairs: symmetric sends of single chunks.

    - `chunk`, `link`: The pair that represents the orbit. Its link also represents the orbit of the link, so
      that hops over one orbit of links can merge.
    - `srcs`, `dsts`: States that the hop leaves and enters. `dsts` leaves out states that have the chunk from
      the start.
    - `units`, `duration`: Size of the chunk, and ticks of an unmerged send.
    - `tail_ticks`: Longest time from the end of the hop to a destination, over the destinations to which a
      shortest path contains the hop; -1 if there is none.
    - `after_ticks`: Least remaining time from the end of the hop to the nearest destination.
    - `is_own`: True if the chunk starts at the link's sender (for local-first priority).
    - `enters`: Number of the orbit of (chunk, node) that the hop enters; -1 if the link does not join nodes,
      or the chunk has only one destination.
    - `links`: Links of the orbit's pairs whose chunk is the representative of its own orbit.
    """

    chunk: int
    link: int
    link_orbit: int
    srcs: tuple[int, ...]
    dsts: tuple[int, ...]
    units: int
    duration: int
    tail_ticks: int
    after_ticks: int
    is_own: bool
    enters: int = -1
    links: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class HopLimit:
    """Limit on the number of links of a chunk's path.

    - `least`, `left`: For each state, min links of a path to it, and from it to a destination.
    - `begins`: (hop, source state) pairs at which a path begins; see `Quotient._begins`.
    """

    limit: int
    least: list[int]
    left: list[int]
    begins: frozenset[tuple[int, int]]

    def after(self, m: int, hop: Hop, passed: Sequence[int]) -> int:
        """Number of links that a chunk has passed after a hop.

        - `passed`: Number of links that it has passed at each state.
        """
        return 1 + max(0 if (m, p) in self.begins else passed[p] for p in hop.srcs)

    def leads_on(self, after: int, p: int) -> bool:
        """True if a chunk that reaches a state after `after` links can still reach a destination."""
        return after + self.left[p] <= self.limit

    def is_near(self, m: int, hop: Hop) -> bool:
        """True if some path from a source over a hop to a destination has at most `limit` links."""
        after = self.after(m, hop, self.least)
        return any(self.leads_on(after, p) for p in hop.dsts)

    def is_shortest(self, m: int, hop: Hop, *, alone: bool) -> bool:
        """True if a hop is on a path of the fewest links.

        A chunk that only follows such hops never exceeds the limit before it reaches a destination.

        - `alone`: True for a chunk with one destination.
        """
        if alone:
            ahead = 1 + min(self.left[p] for p in hop.dsts)
            return all((m, a) in self.begins or self.left[a] == ahead for a in hop.srcs)
        after = self.after(m, hop, self.least)
        return any(self.least[p] == after for p in hop.dsts)


@dataclass(frozen=True)
class Quotient:
    """A problem reduced by a group of its symmetries.

    - `link_rep`, (num_link_orbits,): Representative of each orbit of links.
    - `holds`, (num_link_orbits,): Occupations of resources by a send over each orbit of links.
    - `num_resources`: Number of orbits of resources.
    - `single_path`, (num_chunks,): True if the chunk has one destination, so that it travels along one path.
    - `link_orbit`, `resource_orbit`: Number of the orbit of each link and resource.
    """

    problem: Problem
    group: Symmetries
    states: tuple[ChunkState, ...]
    hops: tuple[Hop, ...]
    link_rep: tuple[int, ...]
    holds: tuple[tuple[Held, ...], ...]
    num_resources: int
    single_path: tuple[bool, ...]
    link_orbit: tuple[int, ...]
    resource_orbit: tuple[int, ...]

    @cached_property
    def merging(self) -> tuple[bool, ...]:
        """(num_link_orbits,) True if sends over the links may merge."""
        clauses = self.problem.clauses
        return tuple(clauses.max_merge > 1 and e in clauses.merging for e in self.link_rep)

    @cached_property
    def num_entries(self) -> int:
        """Number of orbits of (chunk, node) pairs whose chunk enters the node by a hop."""
        return 1 + max((hop.enters for hop in self.hops), default=-1)

    @cached_property
    def hops_of_link(self) -> tuple[tuple[int, ...], ...]:
        """(num_link_orbits,) hops over each orbit of links."""
        hops: list[list[int]] = [[] for _ in self.link_rep]
        for m, hop in enumerate(self.hops):
            hops[hop.link_orbit].append(m)
        return tuple(tuple(each) for each in hops)

    @cached_property
    def hop_limit(self) -> HopLimit | None:
        """Limit on the number of links of paths; None if the problem has no such limit."""
        limit = self.problem.clauses.path_limit
        if limit is None:
            return None
        never = limit + 1
        least = [0 if state.is_origin else never for state in self.states]
        left = [0 if state.is_destination else never for state in self.states]
        limits = HopLimit(limit, least, left, self._begins)
        for _ in range(limit):
            known = [*least, *left]
            for m, hop in enumerate(self.hops):
                after, ahead = limits.after(m, hop, least), min([left[p] for p in hop.dsts], default=never)
                for p in hop.dsts:
                    least[p] = min(least[p], after)
                for p in hop.srcs:
                    left[p] = min(left[p], 0 if (m, p) in limits.begins else 1 + ahead)
            if [*least, *left] == known:
                break
        return limits

    @cached_property
    def _begins(self) -> frozenset[tuple[int, int]]:
        """(hop, source state) pairs at which the hop's chunk is derived; empty without derived chunks.

        A derived chunk and its source share a state at the rank that derives it. Links that the source has
        passed before do not count for the derived chunk.
        """
        if not self.problem.collective.derivations:
            return frozenset()
        hops = enumerate(self.hops)
        return frozenset((m, p) for m, hop in hops for p in hop.srcs if self.states[p].chunk != hop.chunk)

    @cached_property
    def links_of_resource(self) -> tuple[tuple[int, ...], ...]:
        """(num_resources,) orbits of links that use each orbit of resources."""
        links: list[list[int]] = [[] for _ in range(self.num_resources)]
        for link, holds in enumerate(self.holds):
            for held in holds:
                links[held.resource].append(link)
        return tuple(tuple(dict.fromkeys(each)) for each in links)

    def earliest_start(self, hop: Hop) -> int:
        """Earliest tick at which all sources of a hop can have the chunk."""
        return max(self.states[p].head_ticks for p in hop.srcs)

    def members(self, hop: int) -> list[tuple[int, int]]:
        """The (chunk, link) pairs of a hop, one per member of its orbit."""
        return [pair for (pair,) in self.group.sends([(self.hops[hop].chunk, self.hops[hop].link)])]

    def num_members(self, hop: int) -> int:
        """Number of (chunk, link) pairs in the orbit of a hop."""
        size = self._chunk_orbit_size[int(self.group.chunks[self.hops[hop].chunk])]
        return size * len(self.hops[hop].links)

    @cached_property
    def _chunk_orbit_size(self) -> Counter[int]:
        return Counter(self.group.chunks.tolist())

    def restrict(self, hops: Iterable[tuple[int, int]]) -> Quotient:
        """Restrict the quotient to hops whose representative (chunk, link) pair is in `hops`."""
        wanted = set(hops)
        return with_hops(self, [m for m in self.hops if (m.chunk, m.link) in wanted])


def with_hops(quotient: Quotient, hops: Sequence[Hop]) -> Quotient:
    """Replace the hops of a quotient, and enter them as `hops_in` and `hops_out` of its states."""
    into: dict[int, list[int]] = defaultdict(list)
    out: dict[int, list[int]] = defaultdict(list)
    for m, hop in enumerate(hops):
        for p in hop.dsts:
            into[p].append(m)
        for p in hop.srcs:
            out[p].append(m)
    states = tuple(
        replace(state, hops_in=tuple(into[i]), hops_out=tuple(out[i]))
        for i, state in enumerate(quotient.states)
    )
    return replace(quotient, states=states, hops=tuple(hops))


def take_quotient(
    problem: Problem, group: Symmetries | None = None, *, give_up: Deadline = NEVER
) -> Quotient:
    """Quotient of a problem by a group of its symmetries; without `group`, the problem itself as a quotient.

    Hops are those that the sketch allows and that lie on paths within the routing slack: a chunk with one
    destination keeps links on a path of at most (1 + slack) times the shortest time; a chunk with several
    keeps links whose two ends lie on such paths. Raises `OutOfTime` at the deadline `give_up`.
    """
    topology, collective = problem.topology, problem.collective
    group = Symmetries(problem) if group is None else group
    link_reps, link_number = np.unique(group.links, return_inverse=True)
    resource_reps, resource_number = np.unique(group.resources, return_inverse=True)
    link_orbit = tuple(link_number.tolist())
    parts = _Parts(problem, group, link_orbit)
    for c in np.flatnonzero(group.chunks == np.arange(collective.num_chunks)).tolist():
        give_up.check()
        parts.add(c)
    # For a link of several sources, a chunk must arrive at each of them, so it travels along several paths.
    wide = set(wide_links(topology)).intersection(problem.links_allowed)
    joined = any(len(topology.links[e].srcs) > 1 for e in wide)
    single = tuple(
        not joined and len(set(ends) - set(parts.distances.origins(c))) <= 1
        for c, ends in enumerate(collective.ends)
    )
    empty = Quotient(
        problem=problem,
        group=group,
        states=tuple(ChunkState(c, r, *state) for (c, r), state in sorted(parts.states.items())),
        hops=(),
        link_rep=tuple(link_reps.tolist()),
        holds=tuple(_held_by_links(problem, resource_number, link_reps)),
        num_resources=len(resource_reps),
        single_path=single,
        link_orbit=link_orbit,
        resource_orbit=tuple(resource_number.tolist()),
    )
    return with_hops(empty, parts.hops())


class _Parts:
    """Chunk states and hops of a quotient, added chunk by chunk.

    - `states`: {(chunk, rank): `ChunkState` without these two fields}.
    """

    def __init__(self, problem: Problem, group: Symmetries, link_orbit: tuple[int, ...]) -> None:
        self.distances = Distances(problem)
        self.states: dict[tuple[int, int], tuple[int, bool, bool]] = {}
        self._problem, self._group, self._link_orbit = problem, group, link_orbit
        self._link_rep, self._alias = group.links.tolist(), _derived_states(problem)
        self._entries: dict[tuple[int, int], int] = {}  # {(chunk, node): number for `Hop.enters`}
        # [(fields of a hop, its states before it, its states after it)].
        self._hops: list[tuple[dict[str, Any], list[tuple[int, int]], list[tuple[int, int]]]] = []

    def add(self, c: int) -> None:
        """Add the hops of a chunk, one for each orbit under the symmetries that fix it, and their states."""
        problem, distances, fixing = self._problem, self.distances, self._group.fixing(c)
        topology, collective, costs = problem.topology, problem.collective, problem.costs
        node, link_rep, link_orbit = topology.node_of_rank, self._link_rep, self._link_orbit
        durations = costs.link_alpha + costs.chunk_units[c] * costs.link_beta
        ways, origins = _useful_links(problem, c, distances, durations), distances.origins(c)
        num_targets = len(set(collective.ends[c]) - set(origins))
        smallest, turned, ranks = fixing.links.tolist(), fixing.turned.tolist(), fixing.ranks.tolist()
        alike: dict[int, list[int]] = defaultdict(list)
        for e, _, _ in ways:
            alike[smallest[e]].append(e)
        nodes, homes = _alike_nodes(problem, fixing.ranks), {node[r] for r in collective.chunks[c].origins}
        units, took = int(costs.chunk_units[c]), durations.tolist()
        for e, tail, after in ways:
            if smallest[e] != e:
                continue
            ends, enters = topology.links[e], -1
            if num_targets > 1 and node[ends.dst] not in homes and topology.is_internode(e):
                enters = self._entries.setdefault((c, nodes[node[ends.dst]]), len(self._entries))
            hop = dict(
                chunk=turned[e], link=link_rep[e], link_orbit=link_orbit[e], units=units, duration=took[e],
                tail_ticks=tail, after_ticks=after, is_own=any(r in origins for r in ends.srcs),
                enters=enters, links=tuple(alike[e]),
            )  # fmt: skip
            srcs = [self._state(c, r, ranks) for r in ends.srcs]
            dsts = [self._state(c, r, ranks) for r in ends.dsts if r not in origins]
            self._hops.append((hop, srcs, dsts))
        for r in collective.ends[c]:
            self._state(c, r, ranks)

    def _state(self, c: int, r: int, ranks: list[int]) -> tuple[int, int]:
        """(Chunk, rank) of a state up to symmetry, added to `states`; `ranks` maps ranks to orbits."""
        c, r = self._alias.get((c, r), (c, r)) if self._alias else (c, r)
        r = ranks[r]
        if (c, r) not in self.states:
            collective = self._problem.collective
            head = self.distances.heads(c)[r]  # inf if no hop leads there; 0 is stored then
            is_start, is_end = r in collective.chunks[c].origins, r in collective.ends[c]
            self.states[c, r] = (int(head) if np.isfinite(head) else 0, is_start, is_end)
        return c, r

    def hops(self) -> list[Hop]:
        """Hops between the states, which are numbered in order of chunk and rank."""
        number = {name: i for i, name in enumerate(sorted(self.states))}

        def numbers(ends: Iterable[tuple[int, int]]) -> tuple[int, ...]:
            return tuple(dict.fromkeys(number[at] for at in ends))

        return [Hop(srcs=numbers(srcs), dsts=numbers(dsts), **hop) for hop, srcs, dsts in self._hops]


def _alike_nodes(problem: Problem, ranks: NDArray[np.int64]) -> list[int]:
    """For every node, the lowest-numbered node whose ranks are in the same orbits."""
    node = np.asarray(problem.topology.node_of_rank)
    smallest = np.full(len(ranks), len(ranks))
    np.minimum.at(smallest, ranks, node)
    alike = np.full(problem.topology.num_nodes, len(ranks))
    np.minimum.at(alike, node, smallest[ranks])
    nodes: list[int] = alike.tolist()
    return nodes


def _held_by_links(
    problem: Problem, resource_orbit: NDArray[np.int64], links: NDArray[np.int64]
) -> list[tuple[Held, ...]]:
    """For each of the given links, the occupations of resources by a send over it."""
    costs, columns = problem.costs, hold_columns(problem.topology)
    counts: list[Counter[tuple[int, int, int, bool]]] = [Counter() for _ in links]
    at, hold = columns.of_sends(links)
    held = (resource_orbit[columns.resource], costs.hold_alpha, costs.hold_beta, columns.receives)
    rows = zip(*(each[hold].tolist() for each in held), strict=True)
    for i, (resource, alpha, beta, receives) in zip(at.tolist(), rows, strict=True):
        counts[i][resource, alpha, beta, receives] += 1
    return [tuple(Held(*key, count) for key, count in each.items()) for each in counts]


def _derived_states(problem: Problem) -> dict[tuple[int, int], tuple[int, int]]:
    """{(derived chunk, rank): (base chunk, rank)}: the state of a derived chunk where it is made."""
    source = {(d.chunk, d.rank): (d.source, d.rank) for d in problem.collective.derivations}
    alias = {}
    for key in source:
        behind = key
        while behind in source:
            behind = source[behind]
        alias[key] = behind
    return alias


def _useful_links(
    problem: Problem, c: int, distances: Distances, durations: NDArray[np.int64]
) -> list[tuple[int, int, int]]:
    """[(link, `Hop.tail_ticks`, `Hop.after_ticks`)] of links within the routing slack for a chunk."""
    topology = problem.topology
    origins = distances.origins(c)
    destinations = [r for r in problem.collective.ends[c] if r not in origins]
    if not destinations:
        return []
    head = distances.heads(c)
    to_go = np.array([distances.to_go(c, v) for v in destinations])  # (num_destinations, num_ranks)
    release = min(origins.values())
    slack = float(problem.clauses.routing_slack) + 1e-6
    limit = head[destinations] + slack * (head[destinations] - release)
    wide = set(wide_links(topology)).intersection(problem.links_allowed)
    if any(len(topology.links[e].srcs) > 1 for e in wide):
        # A link of several sources waits for all of them, so paths from the nearest origin do not limit it.
        limit[:] = np.finfo(np.float64).max
    on_way = (head[None, :] + to_go <= limit[:, None]).any(axis=0)
    is_new = np.ones(topology.num_ranks, dtype=bool)
    is_new[list(origins)] = False
    link, src, dst = distances.arcs(distances.carried(c))
    first = np.flatnonzero(np.diff(link, prepend=-1))
    if not len(first):
        return []
    leads = np.logical_and.reduceat(on_way[src], first)
    leads &= np.logical_or.reduceat(on_way[dst] & is_new[dst], first)
    at = np.flatnonzero(np.repeat(leads, np.diff(first, append=len(link))))
    useful: list[tuple[int, int, int]] = []
    while len(at):  # blocks limit the memory of (destination, arc) times
        several = link[at[: max(1, _BLOCK // len(destinations))]]
        count = int(np.searchsorted(link[at], several[-1], side="right"))
        some, at = at[:count], at[count:]
        first = np.flatnonzero(np.diff(link[some], prepend=-1))
        links = link[some][first]
        end = np.maximum.reduceat(head[src[some]], first) + durations[links]
        ahead = np.where(is_new[dst[some]], to_go[:, dst[some]], np.inf)  # (num_destinations, num_arcs)
        left = np.minimum.reduceat(ahead, first, axis=1)
        nearest = left.min(axis=0)
        longest = np.where(end + left <= head[destinations][:, None], left, -1).max(axis=0)
        fits = np.isfinite(nearest)
        if len(destinations) == 1:
            fits &= end + left[0] <= limit[0]
        times = (np.where(np.isfinite(each), each, 0)[fits].astype(np.int64) for each in (longest, nearest))
        useful += zip(links[fits].tolist(), *(each.tolist() for each in times), strict=True)
    return useful
