"""The problem folded by its symmetry: a move per orbit of (chunk, link), a place per orbit of (chunk, rank).

Routing, ordering, contiguity, the list scheduler and the job shop all work on `Orbits`. With the trivial
group it is the problem itself. A *place* is a chunk at a rank; a *move* takes a chunk over a link, from
places to places. Symmetry is applied by substitution: what the members of an orbit do, they do alike.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from taccl.analysis.certificates.distances import Distances
from taccl.sketch.symmetry import generate_group

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from taccl.problem import Problem
    from taccl.sketch.group import Element
    from taccl.topology.topology import Hold

__all__ = ["Held", "Move", "Orbits", "Place", "fold", "timing_group"]


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

    Parameters
    ----------
    chunk, rank : int
        Of the representative.
    head_ticks : int
        Earliest possible arrival; 0 at an origin.
    is_origin, is_destination : bool
    moves_in, moves_out : tuple of int
    """

    chunk: int
    rank: int
    head_ticks: int
    is_origin: bool
    is_destination: bool
    moves_in: tuple[int, ...]
    moves_out: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """An orbit of chunks over links.

    Parameters
    ----------
    chunk, link : int
        Of a member whose link represents its orbit, so that moves of one link orbit can merge.
    link_orbit : int
    srcs, dsts : tuple of int
        Places. A destination that holds the chunk from the start is left out.
    units, duration : int
        Of a send of its own, in ticks.
    tail_ticks : int
        The longest shortest way that is left, from the end of the move, to a destination that the move
        is on a shortest way to; -1 where it is on none.
    after_ticks : int
        The shortest way that is left, from the end of the move, to the nearest destination.
    is_own : bool
        Whether the chunk starts at the link's sender (for links on which own chunks go first).
    enters : int
        Where the link joins nodes and the chunk has more than one destination: the number of the orbit of
        (chunk, node) that it enters; -1 elsewhere.
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


@dataclass(frozen=True)
class Orbits:
    """A problem folded by a group; see `fold`.

    Parameters
    ----------
    group : tuple of Element
        The identity first.
    places, moves : tuple
    link_rep : (num_link_orbits,) tuple of int
        The representative of every orbit of links.
    holds : tuple per link orbit of Held
    num_resources : int
        Orbits of resources.
    single_path : tuple of bool, per chunk
        Whether the chunk has one destination, so that it travels along one path.
    link_orbit, resource_orbit : tuple of int
        The number of the orbit that every link and resource is in.
    """

    problem: Problem
    group: tuple[Element, ...]
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
    def links_of_resource(self) -> tuple[tuple[int, ...], ...]:
        """The orbits of links that hold every orbit of resources."""
        links: list[list[int]] = [[] for _ in range(self.num_resources)]
        for link, holds in enumerate(self.holds):
            for held in holds:
                links[held.resource].append(link)
        return tuple(tuple(dict.fromkeys(each)) for each in links)

    @cached_property
    def indexed_holds(self) -> list[list[tuple[int, Hold]]]:
        """(index, hold) of every link's holds."""
        return _indexed_holds(self.problem)

    def members(self, move: int) -> list[tuple[int, int]]:
        """The (chunk, link) pairs of a move, one per member of its orbit, in order of the group."""
        c, e = self.moves[move].chunk, self.moves[move].link
        return list(dict.fromkeys((g.chunks[c], g.links[e]) for g in self.group))

    def restrict(self, moves: Iterable[tuple[int, int]]) -> Orbits:
        """The same fold with only the moves whose representative is among the (chunk, link) pairs."""
        wanted = set(moves)
        return _rebuild(self, [m for m in self.moves if (m.chunk, m.link) in wanted])


def timing_group(problem: Problem, group: Sequence[Element]) -> tuple[Element, ...]:
    """The part of the group that may be folded in time: no resource in use is its own image.

    Several ranks behind one NIC take turns, so what one does the others cannot do at the same time.
    """
    used_links = set(problem.links_allowed)
    used = {hold.resource for hold in problem.topology.holds if hold.link in used_links}
    identity, *others = group
    by_ranks = {g.ranks: g for g in group}
    free = {g.ranks for g in others if all(g.resources[r] != r for r in used) and _one_hold(problem, g)}
    kept: set[tuple[int, ...]] = {identity.ranks}
    for ranks in sorted(free):
        if ranks in kept:
            continue
        larger = set(generate_group((*(kept - {identity.ranks}), ranks)))
        if larger <= free | {identity.ranks}:
            kept = larger
    return tuple(by_ranks[ranks] for ranks in sorted(kept, key=lambda p: p != identity.ranks))


def _one_hold(problem: Problem, element: Element) -> bool:
    """Whether no link and its image hold one resource (as half-duplex ports would)."""
    holds = problem.topology.holds_of_link
    for link in problem.links_allowed:
        mine = {hold.resource for hold in holds[link]}
        if any(hold.resource in mine for hold in holds[element.links[link]]):
            return False
    return True


def fold(problem: Problem, group: Sequence[Element]) -> Orbits:
    """Fold a problem by a group of its symmetries.

    Moves are those that the sketch admits and that lie on ways of the routing slack: a chunk with one
    destination keeps links on a way at most (1 + slack) times the shortest; one with several keeps links
    whose both ends lie on such ways.
    """
    topology, collective, costs = problem.topology, problem.collective, problem.costs
    num_links, num_ranks = len(topology.links), topology.num_ranks
    link_orbit = _orbit_ids([g.links for g in group], num_links)
    chunk_orbit = _orbit_ids([g.chunks for g in group], collective.num_chunks)
    resource_orbit = _orbit_ids([g.resources for g in group], len(topology.resources))
    resource_number = {rep: i for i, rep in enumerate(sorted(set(resource_orbit)))}
    link_reps = sorted(set(link_orbit))
    link_number = {rep: i for i, rep in enumerate(link_reps)}
    place_rep = _PairOrbits([(g.chunks, g.ranks) for g in group], num_ranks)
    move_rep = _PairOrbits([(g.chunks, g.links) for g in group], num_links)
    nodes = [[topology.node_of_rank[g.ranks[ranks[0]]] for ranks in topology.ranks_of_node] for g in group]
    entry_rep = _PairOrbits(
        [(g.chunks, images) for g, images in zip(group, nodes, strict=True)], topology.num_nodes
    )
    alias = _derived_places(problem)
    distances = Distances(problem)
    durations = costs.link_alpha[None, :] + costs.chunk_units[:, None] * costs.link_beta[None, :]
    found: list[Move] = []
    entries: dict[tuple[int, int], int] = {}
    places: dict[tuple[int, int], tuple[int, bool, bool]] = {}

    def place(c: int, r: int) -> tuple[int, int]:
        c, r = alias.get((c, r), (c, r))
        c, r = (c, place_rep.column(c, r))
        if (c, r) not in places:
            data = collective.chunks[c]
            head = _ticks(distances.heads(c)[r])
            places[c, r] = (head, r in data.origins, r in data.destinations)
        return c, r

    keyed: list[tuple[Move, list[tuple[int, int]], list[tuple[int, int]]]] = []
    for c in range(collective.num_chunks):
        if chunk_orbit[c] != c:
            continue
        ways = _useful_links(problem, c, distances, durations[c])
        origins = distances.origins(c)
        targets = set(collective.chunks[c].destinations) - set(origins)
        for e, tail, after in ways:
            if move_rep.column(c, e) != e:
                continue
            ends = topology.links[e]
            turn = next(g for g in group if g.links[e] == link_orbit[e])
            move = Move(
                chunk=turn.chunks[c],
                link=turn.links[e],
                link_orbit=link_number[link_orbit[e]],
                srcs=(),
                dsts=(),
                units=int(costs.chunk_units[c]),
                duration=int(durations[c, e]),
                tail_ticks=tail,
                after_ticks=after,
                is_own=bool(set(ends.srcs) & set(origins)),
                enters=_entry(problem, entries, entry_rep, c, e) if len(targets) > 1 else -1,
            )
            srcs = [place(c, r) for r in ends.srcs]
            dsts = [place(c, r) for r in ends.dsts if r not in origins]
            keyed.append((move, srcs, dsts))
        for r in collective.chunks[c].destinations:
            place(c, r)
    names = sorted(places)
    number = {name: i for i, name in enumerate(names)}
    for move, srcs, dsts in keyed:
        found.append(
            Move(
                move.chunk,
                move.link,
                move.link_orbit,
                tuple(dict.fromkeys(number[s] for s in srcs)),
                tuple(dict.fromkeys(number[d] for d in dsts)),
                move.units,
                move.duration,
                move.tail_ticks,
                move.after_ticks,
                move.is_own,
                move.enters,
            )
        )
    # Where a link has several sources a chunk comes to it along several paths.
    joined = any(len(topology.links[e].srcs) > 1 for e in problem.links_allowed)
    single = tuple(
        not joined and len(set(data.destinations) - set(distances.origins(c))) <= 1
        for c, data in enumerate(collective.chunks)
    )
    indexed = _indexed_holds(problem)
    empty = Orbits(
        problem=problem,
        group=tuple(group),
        places=tuple(Place(c, r, *places[c, r], (), ()) for c, r in names),
        moves=(),
        link_rep=tuple(link_reps),
        holds=tuple(_fold_holds(problem, indexed, e, resource_orbit, resource_number) for e in link_reps),
        num_resources=len(resource_number),
        single_path=single,
        link_orbit=tuple(link_number[rep] for rep in link_orbit),
        resource_orbit=tuple(resource_number[rep] for rep in resource_orbit),
    )
    return _rebuild(empty, found)


def _entry(
    problem: Problem,
    entries: dict[tuple[int, int], int],
    entry_rep: _PairOrbits,
    c: int,
    e: int,
) -> int:
    """The number of the (chunk, node) that a link between nodes enters; -1 inside a node, or at home."""
    topology = problem.topology
    if not topology.is_internode(e):
        return -1
    node = topology.node_of_rank
    into = node[topology.links[e].dst]
    if into in {node[r] for r in problem.collective.chunks[c].origins}:
        return -1
    return entries.setdefault((c, entry_rep.column(c, into)), len(entries))


def _rebuild(orbits: Orbits, moves: Sequence[Move]) -> Orbits:
    """The fold with these moves, places knowing which of them enter and leave."""
    into: dict[int, list[int]] = defaultdict(list)
    out: dict[int, list[int]] = defaultdict(list)
    for m, move in enumerate(moves):
        for p in move.dsts:
            into[p].append(m)
        for p in move.srcs:
            out[p].append(m)
    places = tuple(
        Place(p.chunk, p.rank, p.head_ticks, p.is_origin, p.is_destination, tuple(into[i]), tuple(out[i]))
        for i, p in enumerate(orbits.places)
    )
    return Orbits(
        orbits.problem,
        orbits.group,
        places,
        tuple(moves),
        orbits.link_rep,
        orbits.holds,
        orbits.num_resources,
        orbits.single_path,
        orbits.link_orbit,
        orbits.resource_orbit,
    )


def _orbit_ids(permutations: Sequence[Sequence[int]], size: int) -> list[int]:
    """For every index, the smallest index in its orbit."""
    smallest = np.arange(size)
    for permutation in permutations:
        smallest = np.minimum(smallest, np.asarray(permutation, dtype=np.int64))
    return [int(i) for i in smallest]


class _PairOrbits:
    """Orbits of (row, column), for rows that are the smallest of their own orbit.

    Among those a pair moves only with its row in place, so that an orbit is known by its smallest column.
    """

    def __init__(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], columns: int) -> None:
        self._rows = np.array([rows for rows, _ in pairs], dtype=np.int64)
        self._columns = np.array([images for _, images in pairs], dtype=np.int64).reshape(len(pairs), columns)
        self._known: dict[int, list[int]] = {}

    def column(self, row: int, column: int) -> int:
        """The smallest column that the pair's orbit has in this row."""
        if row not in self._known:
            staying = self._columns[self._rows[:, row] == row]
            self._known[row] = staying.min(axis=0).tolist()
        return self._known[row][column]


def _fold_holds(
    problem: Problem,
    indexed: Sequence[Sequence[tuple[int, Hold]]],
    link: int,
    resource_orbit: Sequence[int],
    number: dict[int, int],
) -> tuple[Held, ...]:
    costs, counts = problem.costs, defaultdict[tuple[int, int, int, bool], int](int)
    for index, hold in indexed[link]:
        resource = number[resource_orbit[hold.resource]]
        key = (
            resource,
            int(costs.hold_alpha[index]),
            int(costs.hold_beta[index]),
            hold.side == "receive",
        )
        counts[key] += 1
    return tuple(Held(*key, count) for key, count in counts.items())


def _indexed_holds(problem: Problem) -> list[list[tuple[int, Hold]]]:
    table: list[list[tuple[int, Hold]]] = [[] for _ in problem.topology.links]
    for index, hold in enumerate(problem.topology.holds):
        table[hold.link].append((index, hold))
    return table


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


def _ticks(time: float) -> int:
    """A time as ticks; 0 where a chunk cannot come, as no move leads there."""
    return int(time) if np.isfinite(time) else 0


def _useful_links(
    problem: Problem, c: int, distances: Distances, durations: Sequence[int]
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
    useful = []
    for e in distances.links(distances.carried(c)):
        ends, time = topology.links[e], int(durations[e])
        reached = [r for r in ends.dsts if r not in origins]
        if not reached or not on_way[list(ends.srcs)].all() or not on_way[reached].any():
            continue
        start = head[list(ends.srcs)].max()
        left = to_go[:, reached].min(axis=1)  # per destination
        if not np.isfinite(left).any():
            continue
        if len(destinations) == 1 and start + time + left[0] > limit[0]:
            continue
        shortest = left[start + time + left <= head[destinations]]
        useful.append((e, _ticks(shortest.max()) if len(shortest) else -1, _ticks(left.min())))
    return useful
