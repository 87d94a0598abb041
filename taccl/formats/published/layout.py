"""Where the links of a topology go in an algorithm file of the published tool, and what has no place there.

The tool's model: nodes are copies of one. Inside it, a pair of local ranks has so many parallel links of one
cost for a chunk. Between nodes, the same local ranks are joined for every ordered pair of nodes, all at one
latency and one cost per chunk, and only there do chunks merge. Beyond two nodes a rank sends to one other
node at a time, and receives from one. Ranks at a switch have a port out and a port in for each of its planes.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from taccl.errors import ExportError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from taccl.schedule.schedule import Schedule
    from taccl.topology.topology import Topology

__all__ = ["Across", "Layout", "lay_out"]

_SHOWN = 3


class Across(NamedTuple):
    """The links between nodes: costs in ticks, and the local receivers of every local sender."""

    alpha: int
    beta: int
    receivers: dict[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Layout:
    """The fields of the file's topology; costs of a chunk are in ticks.

    Parameters
    ----------
    size : int
        Ranks in a node.
    number : mapping of link to int
        Its place among the parallel links between its ranks.
    parallel, inside : mapping of (source, destination) to int
        Of local ranks: how many links there are, and what a chunk costs over each.
    switches : tuple of tuple of int
        Local ranks; equal ones are planes of one.
    lost : tuple of str
        What has no place.
    """

    num_nodes: int
    size: int
    number: dict[int, int]
    parallel: dict[tuple[int, int], int]
    inside: dict[tuple[int, int], int]
    across: Across | None
    switches: tuple[tuple[int, ...], ...]
    lost: tuple[str, ...]

    def costs(self) -> list[int]:
        """Every cost that the file states."""
        between = [self.across.alpha, self.across.beta] if self.across else []
        return sorted({*self.inside.values(), *between})


class _Misfit(Exception):
    """Why a way to lay the links out does not do."""


class _Sends:
    """The sends of a schedule, one per group."""

    def __init__(self, schedule: Schedule) -> None:
        first: dict[int, int] = {}
        groups = schedule.group.tolist()
        for position, group in enumerate(groups):
            first.setdefault(group, position)
        at = list(first.values())
        counts = Counter(groups)
        self.size: list[int] = [counts[group] for group in first]
        self.link: list[int] = schedule.link[at].tolist()
        self.start: list[int] = schedule.start[at].tolist()
        self.end: list[int] = schedule.end[at].tolist()
        self.used = frozenset(self.link)

    def overlap(self, places: Iterable[tuple[Hashable, int]]) -> Hashable | None:
        """A place that two sends hold at one time, of (place, send); None if there is none."""
        held: dict[Hashable, list[tuple[int, int]]] = defaultdict(list)
        for place, send in places:
            held[place].append((self.start[send], self.end[send]))
        for place, spans in held.items():
            spans.sort()
            if any(later[0] < earlier[1] for earlier, later in zip(spans, spans[1:], strict=False)):
                return place
        return None


def lay_out(schedule: Schedule) -> Layout:
    """The layout that keeps most: nodes as they are rather than all as one, idle links rather than not.

    Raises
    ------
    ExportError
        If the tool's model has no place for the schedule's sends.
    """
    problem = schedule.problem
    sends = _Sends(schedule)
    used = sends.used
    refused: list[str] = []
    for num_nodes in sorted({problem.topology.num_nodes, 1}, reverse=True):
        for kept in dict.fromkeys((used.union(problem.links_allowed), used)):
            try:
                return _laid_out(schedule, sends, num_nodes, sorted(kept))
            except _Misfit as misfit:
                refused.append(str(misfit))
    reasons = "; or else ".join(dict.fromkeys((refused[0], refused[-1])))
    raise ExportError(
        f"an algorithm of the published tool cannot hold this schedule: {reasons}; write another format"
    )


def _laid_out(schedule: Schedule, sends: _Sends, num_nodes: int, kept: list[int]) -> Layout:
    """The layout with so many nodes and these links; `_Misfit` if there is none."""
    problem = schedule.problem
    topology, costs = problem.topology, problem.costs
    size, rest = divmod(topology.num_ranks, num_nodes)
    if rest or any(node != rank // size for rank, node in enumerate(topology.node_of_rank) if num_nodes > 1):
        raise _Misfit("its nodes differ in size, or their ranks do not follow one another")
    for link in kept:
        ends = topology.links[link]
        if len(ends.srcs) > 1 or len(ends.dsts) > 1:
            raise _Misfit(f"link {ends} joins more than two ranks")
    units = int(costs.chunk_units[0]) if len(costs.chunk_units) else 1
    inside_links = [e for e in kept if topology.links[e].src // size == topology.links[e].dst // size]
    across_links = sorted(set(kept).difference(inside_links))
    number, parallel, inside = _inside(schedule, inside_links, size, units)
    _check_merges(topology, sends, frozenset(inside_links), num_nodes)
    across = _across(schedule, across_links, size, units) if num_nodes > 1 else None
    number |= dict.fromkeys(across_links, 0)
    _check_overlaps(topology, sends, size, num_nodes)
    _check_grid(schedule, [*inside.values(), *((across.alpha, across.beta) if across else ())])
    switches, kept_switches = _switches(topology, sends, size, number)
    lost = [
        *_lost_nodes(topology, num_nodes),
        *_lost_links(schedule, kept),
        *_added_links(topology, inside_links, across_links, parallel, across, num_nodes),
        *_lost_resources(topology, kept, size, num_nodes, kept_switches),
    ]
    if any(costs.link_alpha[e] for e in inside_links):
        lost.append("latencies inside nodes, which become a part of what a chunk costs")
    return Layout(num_nodes, size, number, parallel, inside, across, switches, tuple(lost))


def _inside(
    schedule: Schedule, links: list[int], size: int, units: int
) -> tuple[dict[int, int], dict[tuple[int, int], int], dict[tuple[int, int], int]]:
    """Inside nodes: the number of every link; how many there are between local ranks, and what each costs."""
    topology, costs = schedule.problem.topology, schedule.problem.costs
    number: dict[int, int] = {}
    parallel: dict[tuple[int, int], int] = {}
    inside: dict[tuple[int, int], int] = {}
    met: Counter[tuple[int, int]] = Counter()
    for e in links:
        src, dst = topology.links[e].src, topology.links[e].dst
        number[e] = met[src, dst]
        met[src, dst] += 1
        pair = src % size, dst % size
        parallel[pair] = max(parallel.get(pair, 0), met[src, dst])
        cost = costs.duration(e, units)
        if inside.setdefault(pair, cost) != cost:
            raise _Misfit(f"links from rank {src} to rank {dst}, or from their like, differ in cost")
        if not cost:
            raise _Misfit(f"link {topology.links[e]} costs nothing")
    return number, parallel, inside


def _check_merges(topology: Topology, sends: _Sends, inside: frozenset[int], num_nodes: int) -> None:
    """Raise `_Misfit` for a merged send inside a node, where a reader merges nothing."""
    for link, num_chunks in zip(sends.link, sends.size, strict=True):
        if num_chunks > 1 and link in inside:
            where = "inside a node" if num_nodes > 1 else "where all ranks are in one node"
            raise _Misfit(f"a send over link {topology.links[link]} merges {num_chunks} chunks {where}")


def _across(schedule: Schedule, links: list[int], size: int, units: int) -> Across:
    """The links between nodes, if all cost the same and no two join the same ranks."""
    topology, costs = schedule.problem.topology, schedule.problem.costs
    if not links:
        raise _Misfit("no link joins its nodes")
    found = {(int(costs.link_alpha[e]), units * int(costs.link_beta[e])) for e in links}
    if len(found) > 1:
        raise _Misfit("links between nodes differ in cost")
    alpha, beta = found.pop()
    if not beta:
        raise _Misfit("links between nodes cost the same for any number of chunks")
    pairs = [(topology.links[e].src, topology.links[e].dst) for e in links]
    if len(set(pairs)) < len(pairs):
        raise _Misfit("two ranks of different nodes are joined by parallel links")
    receivers: dict[int, set[int]] = defaultdict(set)
    for src, dst in pairs:
        receivers[src % size].add(dst % size)
    return Across(alpha, beta, {src: tuple(sorted(receivers[src])) for src in sorted(receivers)})


def _check_overlaps(topology: Topology, sends: _Sends, size: int, num_nodes: int) -> None:
    """Raise `_Misfit` where sends overlap that the tool's model serialises."""
    link = sends.overlap((e, s) for s, e in enumerate(sends.link))
    if link is not None:
        raise _Misfit(
            f"sends over link {topology.links[link]} overlap, which the tool's links do not allow"  # type: ignore[call-overload]
        )
    if num_nodes <= 2:
        return
    across = [(s, topology.links[e]) for s, e in enumerate(sends.link)]
    across = [(s, ends) for s, ends in across if ends.src // size != ends.dst // size]
    for way, places in (
        ("sends to", ((ends.src, s) for s, ends in across)),
        ("receives from", ((ends.dst, s) for s, ends in across)),
    ):
        rank = sends.overlap(places)
        if rank is not None:
            raise _Misfit(f"rank {rank} {way} two ranks of other nodes at once, and there are {num_nodes}")


def _check_grid(schedule: Schedule, costs: list[int]) -> None:
    """Raise `_Misfit` where starts are finer than a reader's ticks, which it makes from the file's costs."""
    per_us = schedule.problem.costs.ticks_per_us
    finest = math.lcm(*(Fraction(ticks, per_us).denominator for ticks in costs))
    if any(finest % Fraction(ticks, per_us).denominator for ticks in set(schedule.start.tolist())):
        raise _Misfit(
            f"a send starts at no whole number of 1/{finest} us, in which the costs of its links are"
        )


def _switches(
    topology: Topology, sends: _Sends, size: int, number: dict[int, int]
) -> tuple[tuple[tuple[int, ...], ...], frozenset[tuple[int, ...]]]:
    """The switches of node 0 whose ports the sends leave to one at a time, with planes; and their ranks."""
    planes = Counter(tuple(sorted(s.ranks)) for s in topology.switches if max(s.ranks) < size)
    members: Counter[int] = Counter(rank for ranks in planes for rank in ranks)
    kept = []
    for ranks, num_planes in planes.items():
        if len(ranks) < 2 or any(members[rank] > 1 for rank in ranks):
            continue
        places: list[tuple[Hashable, int]] = []
        for s, e in enumerate(sends.link):
            src, dst = topology.links[e].src, topology.links[e].dst
            if src // size == dst // size and {src % size, dst % size} <= set(ranks):
                plane = number[e] % num_planes
                places += [((src, plane, "out"), s), ((dst, plane, "in"), s)]
        if sends.overlap(places) is None:
            kept.append((ranks, num_planes))
    return tuple(ranks for ranks, count in kept for _ in range(count)), frozenset(ranks for ranks, _ in kept)


def _lost_nodes(topology: Topology, num_nodes: int) -> list[str]:
    if num_nodes == topology.num_nodes:
        return []
    return [f"its {topology.num_nodes} nodes, whose ranks are written as one"]


def _lost_links(schedule: Schedule, kept: list[int]) -> list[str]:
    problem = schedule.problem
    idle = len(set(problem.links_allowed).difference(kept))
    return [f"{idle} of {len(problem.links_allowed)} links, which carry nothing"] if idle else []


def _added_links(
    topology: Topology, inside_links: list[int], across_links: list[int],
    parallel: dict[tuple[int, int], int], across: Across | None, num_nodes: int,
) -> list[str]:  # fmt: skip
    """What sets nodes apart: the file gives each all links that one of them has."""
    written = sum(parallel.values()) * num_nodes
    if across is not None:
        written += sum(map(len, across.receivers.values())) * num_nodes * (num_nodes - 1)
    added = written - len(inside_links) - len(across_links)
    return [f"the difference of its nodes: {added} links are added to make them alike"] if added else []


def _lost_resources(
    topology: Topology, kept: list[int], size: int, num_nodes: int, switches: frozenset[tuple[int, ...]]
) -> list[str]:
    """Resources that several links share, unless the tool's model has the like."""
    holders: dict[int, list[int]] = defaultdict(list)
    known = set(kept)
    for hold in topology.holds:
        if hold.link in known and hold.link not in holders[hold.resource]:
            holders[hold.resource].append(hold.link)
    lost = [
        topology.resources[resource].name
        for resource, links in sorted(holders.items())
        if len(links) > 1 and not _is_port(topology, links, size, num_nodes, switches)
    ]
    if not lost:
        return []
    more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
    return [f"resources that links share ({', '.join(lost[:_SHOWN])}{more})"]


def _is_port(
    topology: Topology, links: list[int], size: int, num_nodes: int, switches: frozenset[tuple[int, ...]]
) -> bool:
    """Whether links share no more than a rank's port at a kept switch, or its way to and from other nodes."""
    ends = [topology.links[e] for e in links]
    if len({e.src for e in ends}) > 1 and len({e.dst for e in ends}) > 1:
        return False
    if all(e.src // size != e.dst // size for e in ends):
        return num_nodes > 2
    local = {rank % size for e in ends for rank in (e.src, e.dst)}
    inside = all(e.src // size == e.dst // size for e in ends)
    return inside and any(local <= set(ranks) for ranks in switches)
