"""Where the links of a topology go in an algorithm file of the published tool, and what has no place there.

The tool's model: nodes are copies of one. Inside it, a pair of local ranks has so many parallel links of one
cost for a chunk. Between nodes, the same local ranks are joined for every ordered pair of nodes, all at one
latency and one cost per chunk, and only there do chunks merge. Beyond two nodes a rank sends to one other
node at a time, and receives from one. Ranks at a switch have a port out and a port in for each of its planes.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import count
from typing import NamedTuple, TypeVar

import numpy as np

from taccl.errors import ExportError
from taccl.names import first_of
from taccl.schedule.schedule import Schedule

_SHOWN = 3
Place = TypeVar("Place", bound="Hashable")


class Across(NamedTuple):
    """The links between nodes: costs in ticks, and the local receivers of every local sender."""

    alpha: int
    beta: int
    receivers: dict[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Layout:
    """The fields of the file's topology; costs of a chunk are in ticks.

    - `size`: Ranks in a node.
    - `number` (mapping of link to int): Its place among the parallel links between its ranks.
    - `parallel`, `inside` (mapping of (source, destination) to int): Of local ranks: how many links there
      are, and what a chunk costs over each.
    - `costs`: Every cost that the file states.
    - `switches`: Local ranks; equal ones are planes of one.
    - `lost`: What has no place.
    """

    num_nodes: int
    size: int
    number: dict[int, int]
    parallel: dict[tuple[int, int], int]
    inside: dict[tuple[int, int], int]
    across: Across | None
    costs: list[int]
    switches: tuple[tuple[int, ...], ...]
    lost: tuple[str, ...]


class _Misfit(Exception):
    """Why a way to lay the links out does not do."""


class _Sends:
    """The sends of a schedule, one per group."""

    def __init__(self, schedule: Schedule) -> None:
        _, at, counts = np.unique(schedule.group, return_index=True, return_counts=True)
        self.size: list[int] = counts.tolist()
        self.link: list[int] = schedule.link[at].tolist()
        self.start: list[int] = schedule.start[at].tolist()
        self.end: list[int] = schedule.end[at].tolist()
        self.used = frozenset(self.link)

    def overlap(self, places: Iterable[tuple[Place, int]]) -> Place | None:
        """A place that two sends hold at one time, of (place, send); None if there is none."""
        held: dict[Place, list[tuple[int, int]]] = defaultdict(list)
        for place, send in places:
            held[place].append((self.start[send], self.end[send]))
        for place, spans in held.items():
            spans.sort()
            if any(later[0] < earlier[1] for earlier, later in zip(spans, spans[1:], strict=False)):
                return place
        return None


def lay_out(schedule: Schedule) -> Layout:
    """The layout that keeps most: nodes as they are rather than all as one, idle links rather than not."""
    problem = schedule.problem
    sends = _Sends(schedule)
    used = sends.used
    refused: list[str] = []
    for num_nodes in sorted({problem.topology.num_nodes, 1}, reverse=True):
        for kept in dict.fromkeys((used.union(problem.links_allowed), used)):
            try:
                return _Way(schedule, sends, num_nodes, sorted(kept)).layout()
            except _Misfit as misfit:
                refused.append(str(misfit))
    reasons = "; or else ".join(dict.fromkeys((refused[0], refused[-1])))
    raise ExportError(
        f"an algorithm of the published tool cannot hold this schedule: {reasons}; write another format"
    )


class _Way:
    """A way to lay out a schedule: so many nodes, and these links; its methods raise `_Misfit`."""

    def __init__(self, schedule: Schedule, sends: _Sends, num_nodes: int, kept: list[int]) -> None:
        self.schedule, self.sends, self.num_nodes, self.kept = schedule, sends, num_nodes, kept
        self.topology, self.costs = schedule.problem.topology, schedule.problem.costs
        self.links = self.topology.links
        self.size, rest = divmod(self.topology.num_ranks, num_nodes)
        in_order = all(node == rank // self.size for rank, node in enumerate(self.topology.node_of_rank))
        if rest or (num_nodes > 1 and not in_order):
            raise _Misfit("its nodes differ in size, or their ranks do not follow one another")
        for link in kept:
            if len(self.links[link].srcs) > 1 or len(self.links[link].dsts) > 1:
                raise _Misfit(f"link {self.links[link]} joins more than two ranks")
        self.units = int(self.costs.chunk_units[0]) if len(self.costs.chunk_units) else 1

    def layout(self) -> Layout:
        inside_links = [e for e in self.kept if self._is_inside(e)]
        across_links = [e for e in self.kept if not self._is_inside(e)]
        number, parallel, inside = self._inside(inside_links)
        for link, num_chunks in zip(self.sends.link, self.sends.size, strict=True):
            if num_chunks > 1 and self._is_inside(link):  # a reader merges nothing there
                where = "inside a node" if self.num_nodes > 1 else "where all ranks are in one node"
                raise _Misfit(f"a send over link {self.links[link]} merges {num_chunks} chunks {where}")
        across = self._across(across_links) if self.num_nodes > 1 else None
        number |= dict.fromkeys(across_links, 0)
        self._check_overlaps()
        costs = sorted({*inside.values(), *(across[:2] if across else ())})
        self._check_grid(costs)
        switches = self._switches(number)
        lost = []
        if self.num_nodes != self.topology.num_nodes:
            lost.append(f"its {self.topology.num_nodes} nodes, whose ranks are written as one")
        allowed = self.schedule.problem.links_allowed
        idle = len(set(allowed).difference(self.kept))
        if idle:
            lost.append(f"{idle} of {len(allowed)} links, which carry nothing")
        # What sets nodes apart: the file gives each all links that one of them has.
        written = sum(parallel.values()) * self.num_nodes
        if across is not None:
            written += sum(map(len, across.receivers.values())) * self.num_nodes * (self.num_nodes - 1)
        if written > len(self.kept):
            added = written - len(self.kept)
            lost.append(f"the difference of its nodes: {added} links are added to make them alike")
        shared = self._lost_resources(set(switches))
        if shared:
            lost.append(f"resources that links share ({first_of(shared, _SHOWN)})")
        if any(self.costs.link_alpha[e] for e in inside_links):
            lost.append("latencies inside nodes, which become a part of what a chunk costs")
        return Layout(
            self.num_nodes, self.size, number, parallel, inside, across, costs, switches, tuple(lost)
        )

    def _is_inside(self, link: int) -> bool:
        return self.links[link].src // self.size == self.links[link].dst // self.size

    def _inside(
        self, links: list[int]
    ) -> tuple[dict[int, int], dict[tuple[int, int], int], dict[tuple[int, int], int]]:
        """The number of every link in a node; how many there are between local ranks, and what each costs."""
        number: dict[int, int] = {}
        parallel: Counter[tuple[int, int]] = Counter()
        inside: dict[tuple[int, int], int] = {}
        met: dict[tuple[int, int], Iterator[int]] = defaultdict(count)
        for e in links:
            src, dst = self.links[e].src, self.links[e].dst
            number[e] = next(met[src, dst])
            pair = src % self.size, dst % self.size
            parallel[pair] = max(parallel[pair], number[e] + 1)
            cost = self.costs.duration(e, self.units)
            if inside.setdefault(pair, cost) != cost:
                raise _Misfit(f"links from rank {src} to rank {dst}, or from their like, differ in cost")
            if not cost:
                raise _Misfit(f"link {self.links[e]} costs nothing")
        return number, parallel, inside

    def _across(self, links: list[int]) -> Across:
        """The links between nodes, if all cost the same and no two join the same ranks."""
        if not links:
            raise _Misfit("no link joins its nodes")
        found = {(int(self.costs.link_alpha[e]), self.units * int(self.costs.link_beta[e])) for e in links}
        if len(found) > 1:
            raise _Misfit("links between nodes differ in cost")
        alpha, beta = found.pop()
        if not beta:
            raise _Misfit("links between nodes cost the same for any number of chunks")
        pairs = [(self.links[e].src, self.links[e].dst) for e in links]
        if len(set(pairs)) < len(pairs):
            raise _Misfit("two ranks of different nodes are joined by parallel links")
        local = {(src % self.size, dst % self.size) for src, dst in pairs}
        receivers = {src: tuple(sorted(d for s, d in local if s == src)) for src, _ in sorted(local)}
        return Across(alpha, beta, receivers)

    def _check_overlaps(self) -> None:
        """Raise `_Misfit` where sends overlap that the tool's model serialises."""
        link = self.sends.overlap((e, s) for s, e in enumerate(self.sends.link))
        if link is not None:
            raise _Misfit(f"sends over link {self.links[link]} overlap, which the tool's links do not allow")
        if self.num_nodes <= 2:
            return
        across = [(s, self.links[e]) for s, e in enumerate(self.sends.link) if not self._is_inside(e)]
        for way, places in (
            ("sends to", ((ends.src, s) for s, ends in across)),
            ("receives from", ((ends.dst, s) for s, ends in across)),
        ):
            rank = self.sends.overlap(places)
            if rank is not None:
                raise _Misfit(
                    f"rank {rank} {way} two ranks of other nodes at once, and there are {self.num_nodes}"
                )

    def _check_grid(self, costs: list[int]) -> None:
        """Raise `_Misfit` where starts are finer than the ticks that a reader makes of the file's costs."""
        per_us = self.costs.ticks_per_us
        finest = math.lcm(*(Fraction(ticks, per_us).denominator for ticks in costs))
        if any(finest % Fraction(ticks, per_us).denominator for ticks in set(self.sends.start)):
            raise _Misfit(
                f"a send starts at no whole number of 1/{finest} us, in which the costs of its links are"
            )

    def _switches(self, number: dict[int, int]) -> tuple[tuple[int, ...], ...]:
        """The switches of node 0, with planes, whose ports the sends leave to one at a time."""
        planes = Counter(tuple(sorted(s.ranks)) for s in self.topology.switches if max(s.ranks) < self.size)
        members: Counter[int] = Counter(rank for ranks in planes for rank in ranks)
        kept: list[tuple[int, ...]] = []
        for ranks, num_planes in planes.items():
            if len(ranks) < 2 or any(members[rank] > 1 for rank in ranks):
                continue
            places: list[tuple[Hashable, int]] = []
            for s, e in enumerate(self.sends.link):
                src, dst = self.links[e].src, self.links[e].dst
                if self._is_inside(e) and {src % self.size, dst % self.size} <= set(ranks):
                    plane = number[e] % num_planes
                    places += [((src, plane, "out"), s), ((dst, plane, "in"), s)]
            if self.sends.overlap(places) is None:
                kept += [ranks] * num_planes
        return tuple(kept)

    def _lost_resources(self, switches: set[tuple[int, ...]]) -> list[str]:
        """Resources that several links share, unless the tool's model has the like."""
        kept = set(self.kept)
        holders: dict[int, set[int]] = defaultdict(set)
        for hold in self.topology.holds:
            if hold.link in kept:
                holders[hold.resource].add(hold.link)
        return [
            self.topology.resources[resource].name
            for resource, links in sorted(holders.items())
            if len(links) > 1 and not self._is_port(links, switches)
        ]

    def _is_port(self, links: set[int], switches: set[tuple[int, ...]]) -> bool:
        """Whether links share no more than a rank's port at a switch, or its way to and from other nodes."""
        ends = [self.links[e] for e in links]
        if len({e.src for e in ends}) > 1 and len({e.dst for e in ends}) > 1:
            return False
        inside = {self._is_inside(e) for e in links}
        if inside == {False}:
            return self.num_nodes > 2
        local = {rank % self.size for e in ends for rank in (e.src, e.dst)}
        return inside == {True} and any(local <= set(ranks) for ranks in switches)
