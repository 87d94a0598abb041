"""Search of a problem on its quotient by its symmetry, where each send stands for all of its images."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from taccl._internal.deadline import NEVER, Deadline
from taccl.analysis.certificates.finding.distances import Distances
from taccl.problem.costs import hold_columns, wide_links
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.sketch.group import Symmetries
from taccl.synthesis.proposers.greedy import ListSchedule, expand
from taccl.synthesis.symmetry.quotient import ChunkState, Held, Hop, Quotient, with_hops
from taccl.synthesis.symmetry.timing_group import timing_group
from taccl.synthesis.transforms.transform import Transform

#: Max number of distances to destinations in memory; links are processed in blocks that keep to it.
_BLOCK = 2**21


@dataclass(frozen=True)
class Symmetry(Transform[Quotient, ListSchedule]):
    """Quotient by the symmetries that schedules may have; without symmetries, the problem itself."""

    name: ClassVar[str] = "symmetry"

    @classmethod
    def apply(cls, problem: Problem, *, give_up: Deadline = NEVER) -> Self:
        """Take the quotient. Raises `OutOfTime` at the deadline `give_up`."""
        return cls(problem, (take_quotient(problem, timing_group(problem), give_up=give_up),))

    def invert(self, found: Sequence[ListSchedule], *, producer: str = "list scheduler") -> Schedule:
        """Schedule of the whole problem, pruned and exactly timed."""
        return expand(self.parts[0], found[0].sends, producer=producer)


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
