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
    topology, collective, costs = problem.topology, problem.collective, problem.costs
    group = Symmetries(problem) if group is None else group
    link_reps, link_number = np.unique(group.links, return_inverse=True)
    resource_reps, resource_number = np.unique(group.resources, return_inverse=True)
    link_orbit, resource_orbit = tuple(link_number.tolist()), tuple(resource_number.tolist())
    alias, node, link_rep = _derived_states(problem), topology.node_of_rank, group.links.tolist()
    distances = Distances(problem)
    entries: dict[tuple[int, int], int] = {}
    states: dict[tuple[int, int], tuple[int, bool, bool]] = {}

    def state(c: int, r: int) -> tuple[int, int]:
        c, r = alias.get((c, r), (c, r)) if alias else (c, r)
        r = ranks[r]
        if (c, r) not in states:
            data = collective.chunks[c]
            head = distances.heads(c)[r]  # inf if no hop leads there; 0 is stored then
            states[c, r] = (int(head) if np.isfinite(head) else 0, r in data.origins, r in collective.ends[c])
        return c, r

    made: list[tuple[dict[str, Any], list[tuple[int, int]], list[tuple[int, int]]]] = []
    for c in np.flatnonzero(group.chunks == np.arange(collective.num_chunks)).tolist():
        give_up.check()
        durations = costs.link_alpha + costs.chunk_units[c] * costs.link_beta
        ways = _useful_links(problem, c, distances, durations)
        origins = distances.origins(c)
        targets = set(collective.ends[c]) - set(origins)
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
            hop = dict(
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
            srcs = [state(c, r) for r in ends.srcs]
            dsts = [state(c, r) for r in ends.dsts if r not in origins]
            made.append((hop, srcs, dsts))
        for r in collective.ends[c]:
            state(c, r)
    names = sorted(states)
    number = {name: i for i, name in enumerate(names)}

    def numbers(ends: Iterable[tuple[int, int]]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(number[at] for at in ends))

    hops = [Hop(srcs=numbers(srcs), dsts=numbers(dsts), **hop) for hop, srcs, dsts in made]
    # For a link of several sources, a chunk must arrive at each of them, so it travels along several paths.
    wide = set(wide_links(topology)).intersection(problem.links_allowed)
    joined = any(len(topology.links[e].srcs) > 1 for e in wide)
    single = tuple(
        not joined and len(set(ends) - set(distances.origins(c))) <= 1
        for c, ends in enumerate(collective.ends)
    )
    empty = Quotient(
        problem=problem,
        group=group,
        states=tuple(ChunkState(c, r, *states[c, r]) for c, r in names),
        hops=(),
        link_rep=tuple(link_reps.tolist()),
        holds=tuple(_held_by_links(problem, resource_number, link_reps)),
        num_resources=len(resource_reps),
        single_path=single,
        link_orbit=link_orbit,
        resource_orbit=resource_orbit,
    )
    return with_hops(empty, hops)


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
