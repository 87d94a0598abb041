"""The symmetries of a topology: how many there are, and which of them a sketch's offsets express.

Ranks, nodes, links, resources and holds become one coloured graph, whose automorphisms nauty finds. A link is
two vertices, one at either end: nauty is slow on directed graphs.
A symmetry of a sketch shifts ranks inside blocks, so the shifts are tried one by one: `link_permutation` and
`resource_permutation` decide, as they do for a sketch that a person writes.

References
----------
McKay and Piperno, "Practical graph isomorphism, II", Journal of Symbolic Computation 60 (2014).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from taccl.deadline import NEVER, Deadline
from taccl.sketch.symmetry import (
    block_shifts,
    link_permutation,
    offset_permutation,
    resource_permutation,
)

if TYPE_CHECKING:
    from collections.abc import Hashable

    from taccl.topology.topology import Topology

__all__ = ["Shift", "count_symmetries", "find_shifts"]

#: nauty keeps the graph as a matrix of bits: beyond so many vertices only shifts are looked for.
_MOST_VERTICES = 4_000
#: Beyond so many links a shift takes too long to check.
_MOST_LINKS = 200_000


@dataclass(frozen=True, slots=True, order=True)
class Shift:
    """Rank r to (r + offset) mod group inside its block of `group` ranks, as ``[[symmetry]]`` says it."""

    group: int
    offset: int

    def ranks(self, num_ranks: int) -> tuple[int, ...]:
        """Where every rank goes."""
        return offset_permutation(num_ranks, self.offset, self.group)


def find_shifts(topology: Topology, *, deadline: Deadline = NEVER) -> tuple[Shift, ...]:
    """Every shift by a divisor of its block that the topology has; whole nodes go to whole nodes.

    Raises
    ------
    OutOfTime
        Once the deadline has passed.
    """
    found: list[Shift] = []
    if len(topology.links) > _MOST_LINKS:
        return ()
    for offset, group in block_shifts(topology.num_ranks):
        deadline.check()
        shift = Shift(group, offset)
        # A shift applied several times is another, which need not be checked.
        power = any(known.group == shift.group and shift.offset % known.offset == 0 for known in found)
        if power or _holds(topology, shift):
            found.append(shift)
    return tuple(found)


def _holds(topology: Topology, shift: Shift) -> bool:
    ranks = shift.ranks(topology.num_ranks)
    node = topology.node_of_rank
    images = {(node[r], node[ranks[r]]) for r in range(topology.num_ranks)}
    if len(images) != topology.num_nodes:
        return False
    if any(len(topology.links_from[r]) != len(topology.links_from[ranks[r]]) for r in range(len(ranks))):
        return False
    links = link_permutation(topology, ranks)
    return links is not None and resource_permutation(topology, links) is not None


def count_symmetries(topology: Topology) -> int | None:
    """How many symmetries a topology has, with the one that moves nothing; None where it is too large."""
    graph = _Graph(topology)
    if graph.count > _MOST_VERTICES:
        return None
    import pynauty  # type: ignore[import-untyped]

    colours = [set(graph.members[colour]) for colour in sorted(graph.members, key=str)]
    coloured = pynauty.Graph(graph.count, adjacency_dict=graph.edges, vertex_coloring=colours)
    _, mantissa, exponent, _, _ = pynauty.autgrp(coloured)
    return int(round(mantissa * 10**exponent))


class _Graph:
    """The topology as a coloured graph: its first vertices are the ranks."""

    def __init__(self, topology: Topology) -> None:
        self.members: dict[Hashable, list[int]] = defaultdict(list)
        self.edges: dict[int, list[int]] = defaultdict(list)
        self.count = 0
        ranks = [self._add("rank") for _ in range(topology.num_ranks)]
        nodes = [self._add("node") for _ in range(topology.num_nodes)]
        for rank, node in zip(ranks, topology.node_of_rank, strict=True):
            self.edges[rank].append(nodes[node])
        users: dict[int, list[int]] = defaultdict(list)
        costs: dict[int, set[tuple[Hashable, ...]]] = defaultdict(set)
        for index, hold in enumerate(topology.holds):
            users[hold.resource].append(index)
            costs[hold.resource].add((str(hold.alpha_us), str(hold.beta_us_per_mb), hold.side))
        # What only one link holds is a part of that link's colour.
        own: dict[int, list[Hashable]] = defaultdict(list)
        for resource, holds in users.items():
            if len(holds) == 1:
                own[topology.holds[holds[0]].link].extend(costs[resource])
        links = []
        for index, link in enumerate(topology.links):
            mine = tuple(sorted(map(str, own[index])))
            looks = ("link", str(link.alpha_us), str(link.beta_us_per_mb), mine)
            out, into = self._add(looks), self._add("end of a link")
            self.edges[out] = [into, *(ranks[rank] for rank in link.srcs)]
            self.edges[into] = [ranks[rank] for rank in link.dsts]
            links.append(out)
        for resource, holds in sorted(users.items()):
            if len(holds) > 1:
                self._add_shared(topology, links, holds, costs[resource])

    def _add(self, colour: Hashable) -> int:
        self.members[colour].append(self.count)
        self.count += 1
        return self.count - 1

    def _add_shared(
        self, topology: Topology, links: list[int], holds: list[int], costs: set[tuple[Hashable, ...]]
    ) -> None:
        """A resource that several links hold; a vertex per hold only where their costs differ."""
        if len(costs) == 1:
            resource = self._add(("resource", *next(iter(costs))))
            for index in holds:
                self.edges[links[topology.holds[index].link]].append(resource)
            return
        resource = self._add(("resource",))
        for index in holds:
            each = topology.holds[index]
            vertex = self._add(("hold", str(each.alpha_us), str(each.beta_us_per_mb), each.side))
            self.edges[links[each.link]].append(vertex)
            self.edges[vertex].append(resource)
