"""The problem folded by its symmetry: a move per orbit of (chunk, link), a place per orbit of (chunk, rank).

Routing, ordering, contiguity, the list scheduler and the job shop all work on `Orbits`. With the trivial
group it is the problem itself. A *place* is a chunk at a rank; a *move* takes a chunk over a link, from
places to places. Symmetry is applied by substitution: what the members of an orbit do, they do alike.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taccl.analysis.certificates.distances import Distances
from taccl.costs import hold_columns, wide_links
from taccl.deadline import NEVER, Deadline
from taccl.problem import Problem
from taccl.sketch.group import Symmetries

#: Times to destinations that are looked at together.
_BLOCK = 2**21


@dataclass(frozen=True, slots=True)
class Held:
    """A send of u units holds an orbit of resources for ``alpha + u * beta`` ticks, `count` times over."""

    resource: int
    alpha: int
    beta: int
    receives: bool
    count: int


@dataclass(frozen=True, slots=True)
class Place:
    """An orbit of chunks at ranks.

    - `chunk`, `rank`: Of the representative.
    - `head_ticks`: Earliest possible arrival; 0 at an origin.
    """

    chunk: int
    rank: int
    head_ticks: int
    is_origin: bool
    is_destination: bool
    moves_in: tuple[int, ...] = ()
    moves_out: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Move:
    """An orbit of chunks over links.

    - `chunk`, `link`: Of a member whose link represents its orbit, so that moves of one link orbit can merge.
    - `srcs`, `dsts`: Places. A destination that holds the chunk from the start is left out.
    - `units`, `duration`: Of a send of its own, in ticks.
    - `tail_ticks`: The longest shortest way that is left, from the end of the move, to a destination that the
      move is on a shortest way to; -1 where it is on none.
    - `after_ticks`: The shortest way that is left, from the end of the move, to the nearest destination.
    - `is_own`: Whether the chunk starts at the link's sender (for links on which own chunks go first).
    - `enters`: Where the link joins nodes and the chunk has more than one destination: the number of the
      orbit of (chunk, node) that it enters; -1 elsewhere.
    - `links`: Those of the members whose chunk represents its orbit.
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
class Hops:
    """How many links a chunk may pass; of each place the fewest to it, and from it to a destination."""

    limit: int
    least: list[int]
    left: list[int]
    starts_anew: frozenset[int]

    def after(self, m: int, move: Move, passed: Sequence[int]) -> int:
        """How many links the chunk has passed after a move, from how many it had at every place."""
        return 1 if m in self.starts_anew else 1 + max(passed[p] for p in move.srcs)

    def leads_on(self, after: int, p: int) -> bool:
        """Whether a chunk that comes to a place after so many links may still get to a destination."""
        return after + self.left[p] <= self.limit

    def is_near(self, m: int, move: Move) -> bool:
        """Whether a chunk that passes as few links as it can may still get to a destination after a move."""
        after = self.after(m, move, self.least)
        return any(self.leads_on(after, p) for p in move.dsts)

    def is_shortest(self, m: int, move: Move, *, alone: bool) -> bool:
        """Whether a move is on a path of the fewest links; `alone`: of a chunk with one destination.

        Following such moves alone a chunk never comes too far to go on.
        """
        if alone:
            return all(self.left[a] == 1 + min(self.left[p] for p in move.dsts) for a in move.srcs)
        after = self.after(m, move, self.least)
        return any(self.least[p] == after for p in move.dsts)


@dataclass(frozen=True)
class Orbits:
    """A problem folded by a group; see `fold`.

    - `link_rep`, (num_link_orbits,) tuple of int: The representative of every orbit of links.
    - `num_resources`: Orbits of resources.
    - `single_path`: Whether the chunk has one destination, so that it travels along one path.
    - `link_orbit`, `resource_orbit`: The number of the orbit that every link and resource is in.
    """

    problem: Problem
    group: Symmetries
    places: tuple[Place, ...]
    moves: tuple[Move, ...]
    link_rep: tuple[int, ...]
    holds: tuple[tuple[Held, ...], ...]
    num_resources: int
    single_path: tuple[bool, ...]
    link_orbit: tuple[int, ...]
    resource_orbit: tuple[int, ...]

    @cached_property
    def merging(self) -> tuple[bool, ...]:
        """Whether sends over each orbit of links may merge."""
        clauses = self.problem.clauses
        return tuple(clauses.max_merge > 1 and e in clauses.merging for e in self.link_rep)

    @cached_property
    def num_entries(self) -> int:
        """Orbits of (chunk, node) that moves enter."""
        return 1 + max((move.enters for move in self.moves), default=-1)

    @cached_property
    def moves_of_link(self) -> tuple[tuple[int, ...], ...]:
        """The moves over every orbit of links."""
        moves: list[list[int]] = [[] for _ in self.link_rep]
        for m, move in enumerate(self.moves):
            moves[move.link_orbit].append(m)
        return tuple(tuple(each) for each in moves)

    @cached_property
    def hops(self) -> Hops | None:
        """How many links chunks may pass where the problem limits that; else None."""
        limit = self.problem.clauses.path_limit
        if limit is None:
            return None
        never = limit + 1
        least = [0 if place.is_origin else never for place in self.places]
        left = [0 if place.is_destination else never for place in self.places]
        hops = Hops(limit, least, left, self._starts_anew)
        for _ in range(limit):
            known = [*least, *left]
            for m, move in enumerate(self.moves):
                after, ahead = hops.after(m, move, least), min([left[p] for p in move.dsts], default=never)
                for p in move.dsts:
                    least[p] = min(least[p], after)
                for p in move.srcs:
                    left[p] = min(left[p], 0 if m in self._starts_anew else 1 + ahead)
            if [*least, *left] == known:
                break
        return hops

    @cached_property
    def _starts_anew(self) -> frozenset[int]:
        """Moves of derived chunks from where they are made, which is the place of what they are made from."""
        derives = bool(self.problem.collective.derivations)
        return frozenset(m for m, move in enumerate(self.moves) if derives and move.is_own)

    @cached_property
    def links_of_resource(self) -> tuple[tuple[int, ...], ...]:
        """The orbits of links that hold every orbit of resources."""
        links: list[list[int]] = [[] for _ in range(self.num_resources)]
        for link, holds in enumerate(self.holds):
            for held in holds:
                links[held.resource].append(link)
        return tuple(tuple(dict.fromkeys(each)) for each in links)

    def earliest_start(self, move: Move) -> int:
        """The first moment at which all sources may have the chunk, in ticks."""
        return max(self.places[p].head_ticks for p in move.srcs)

    def members(self, move: int) -> list[tuple[int, int]]:
        """The (chunk, link) pairs of a move, one per member of its orbit."""
        return [pair for (pair,) in self.group.sends([(self.moves[move].chunk, self.moves[move].link)])]

    def num_members(self, move: int) -> int:
        """How many members a move has."""
        size = self._chunk_orbit_size[int(self.group.chunks[self.moves[move].chunk])]
        return size * len(self.moves[move].links)

    @cached_property
    def _chunk_orbit_size(self) -> Counter[int]:
        return Counter(self.group.chunks.tolist())

    def restrict(self, moves: Iterable[tuple[int, int]]) -> Orbits:
        """The same fold with only the moves whose representative is among the (chunk, link) pairs."""
        wanted = set(moves)
        return _with_moves(self, [m for m in self.moves if (m.chunk, m.link) in wanted])


def fold(problem: Problem, group: Symmetries | None = None, *, give_up: Deadline = NEVER) -> Orbits:
    """Fold a problem by a group of its symmetries; by none, it is the problem itself.

    Moves are those that the sketch admits and that lie on ways of the routing slack: a chunk with one
    destination keeps links on a way at most (1 + slack) times the shortest; one with several keeps links
    whose both ends lie on such ways. Raises `OutOfTime` if it is time to give up.
    """
    topology, collective, costs = problem.topology, problem.collective, problem.costs
    group = Symmetries(problem) if group is None else group
    link_reps, link_number = np.unique(group.links, return_inverse=True)
    resource_reps, resource_number = np.unique(group.resources, return_inverse=True)
    link_orbit, resource_orbit = tuple(link_number.tolist()), tuple(resource_number.tolist())
    alias, node, link_rep = _derived_places(problem), topology.node_of_rank, group.links.tolist()
    distances = Distances(problem)
    entries: dict[tuple[int, int], int] = {}
    places: dict[tuple[int, int], tuple[int, bool, bool]] = {}

    def place(c: int, r: int) -> tuple[int, int]:
        c, r = alias.get((c, r), (c, r)) if alias else (c, r)
        r = ranks[r]
        if (c, r) not in places:
            data = collective.chunks[c]
            head = distances.heads(c)[r]  # 0 where the chunk cannot come, as no move leads there
            places[c, r] = (int(head) if np.isfinite(head) else 0, r in data.origins, r in data.destinations)
        return c, r

    made: list[tuple[dict[str, Any], list[tuple[int, int]], list[tuple[int, int]]]] = []
    for c in np.flatnonzero(group.chunks == np.arange(collective.num_chunks)).tolist():
        give_up.check()
        durations = costs.link_alpha + costs.chunk_units[c] * costs.link_beta
        ways = _useful_links(problem, c, distances, durations)
        origins = distances.origins(c)
        targets = set(collective.chunks[c].destinations) - set(origins)
        fixing = group.fixing(c)
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
            if len(targets) > 1 and node[ends.dst] not in homes and topology.is_internode(e):
                enters = entries.setdefault((c, nodes[node[ends.dst]]), len(entries))
            move = dict(
                chunk=turned[e],
                link=link_rep[e],
                link_orbit=link_orbit[e],
                units=units,
                duration=took[e],
                tail_ticks=tail,
                after_ticks=after,
                is_own=any(r in origins for r in ends.srcs),
                enters=enters,
                links=tuple(alike[e]),
            )
            srcs = [place(c, r) for r in ends.srcs]
            dsts = [place(c, r) for r in ends.dsts if r not in origins]
            made.append((move, srcs, dsts))
        for r in collective.chunks[c].destinations:
            place(c, r)
    names = sorted(places)
    number = {name: i for i, name in enumerate(names)}

    def numbers(ends: Iterable[tuple[int, int]]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(number[at] for at in ends))

    moves = [Move(srcs=numbers(srcs), dsts=numbers(dsts), **move) for move, srcs, dsts in made]
    # Where a link has several sources a chunk comes to it along several paths.
    wide = set(wide_links(topology)).intersection(problem.links_allowed)
    joined = any(len(topology.links[e].srcs) > 1 for e in wide)
    single = tuple(
        not joined and len(set(data.destinations) - set(distances.origins(c))) <= 1
        for c, data in enumerate(collective.chunks)
    )
    empty = Orbits(
        problem=problem,
        group=group,
        places=tuple(Place(c, r, *places[c, r]) for c, r in names),
        moves=(),
        link_rep=tuple(link_reps.tolist()),
        holds=tuple(_held_by_links(problem, resource_number, link_reps)),
        num_resources=len(resource_reps),
        single_path=single,
        link_orbit=link_orbit,
        resource_orbit=resource_orbit,
    )
    return _with_moves(empty, moves)


def _alike_nodes(problem: Problem, ranks: NDArray[np.int64]) -> list[int]:
    """For every node, the smallest of those that have ranks in the same orbits."""
    node = np.asarray(problem.topology.node_of_rank)
    smallest = np.full(len(ranks), len(ranks))
    np.minimum.at(smallest, ranks, node)
    alike = np.full(problem.topology.num_nodes, len(ranks))
    np.minimum.at(alike, node, smallest[ranks])
    nodes: list[int] = alike.tolist()
    return nodes


def _with_moves(orbits: Orbits, moves: Sequence[Move]) -> Orbits:
    """The fold with these moves, places knowing which of them enter and leave."""
    into: dict[int, list[int]] = defaultdict(list)
    out: dict[int, list[int]] = defaultdict(list)
    for m, move in enumerate(moves):
        for p in move.dsts:
            into[p].append(m)
        for p in move.srcs:
            out[p].append(m)
    places = tuple(
        replace(place, moves_in=tuple(into[i]), moves_out=tuple(out[i]))
        for i, place in enumerate(orbits.places)
    )
    return replace(orbits, places=places, moves=tuple(moves))


def _held_by_links(
    problem: Problem, resource_orbit: NDArray[np.int64], links: NDArray[np.int64]
) -> list[tuple[Held, ...]]:
    """What a send over each of some links holds."""
    costs, columns = problem.costs, hold_columns(problem.topology)
    counts: list[Counter[tuple[int, int, int, bool]]] = [Counter() for _ in links]
    place, hold = columns.of_sends(links)
    held = (resource_orbit[columns.resource], costs.hold_alpha, costs.hold_beta, columns.receives)
    rows = zip(*(each[hold].tolist() for each in held), strict=True)
    for i, (resource, alpha, beta, receives) in zip(place.tolist(), rows, strict=True):
        counts[i][resource, alpha, beta, receives] += 1
    return [tuple(Held(*key, count) for key, count in each.items()) for each in counts]


def _derived_places(problem: Problem) -> dict[tuple[int, int], tuple[int, int]]:
    """A derived chunk is where its source is: (chunk, rank) -> the underived place behind it."""
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
    """(link, tail, after) of the links worth considering for a chunk; see `Move` for the two times."""
    topology = problem.topology
    origins = distances.origins(c)
    destinations = [r for r in problem.collective.chunks[c].destinations if r not in origins]
    if not destinations:
        return []
    head = distances.heads(c)
    to_go = np.array([distances.to_go(c, v) for v in destinations])  # destination x rank
    release = min(origins.values())
    slack = float(problem.clauses.routing_slack) + 1e-6
    limit = head[destinations] + slack * (head[destinations] - release)
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
    while len(at):  # some links at a time, as each has a time to every destination
        several = link[at[: max(1, _BLOCK // len(destinations))]]
        count = int(np.searchsorted(link[at], several[-1], side="right"))
        some, at = at[:count], at[count:]
        first = np.flatnonzero(np.diff(link[some], prepend=-1))
        links = link[some][first]
        end = np.maximum.reduceat(head[src[some]], first) + durations[links]
        ahead = np.where(is_new[dst[some]], to_go[:, dst[some]], np.inf)  # destination x arc
        left = np.minimum.reduceat(ahead, first, axis=1)
        nearest = left.min(axis=0)
        longest = np.where(end + left <= head[destinations][:, None], left, -1).max(axis=0)
        fits = np.isfinite(nearest)
        if len(destinations) == 1:
            fits &= end + left[0] <= limit[0]
        times = (np.where(np.isfinite(each), each, 0)[fits].astype(np.int64) for each in (longest, nearest))
        useful += zip(links[fits].tolist(), *(each.tolist() for each in times), strict=True)
    return useful
