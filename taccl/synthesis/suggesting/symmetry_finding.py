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
from taccl.sketch.symmetry import block_shifts, link_permutation, offset_permutation, resource_permutation

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

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

    def repeats_one_of(self, known: Iterable[Shift]) -> bool:
        """Whether it is another shift applied several times."""
        return any(each.group == self.group and self.offset % each.offset == 0 for each in known)


def find_shifts(topology: Topology, *, deadline: Deadline = NEVER) -> tuple[Shift, ...]:
    """Every shift by a divisor of its block that the topology has; whole nodes go to whole nodes.

    Raises
    ------
    OutOfTime
        Once the deadline has passed.
    """
    found: list[Shift] = []
    for offset, group in block_shifts(topology.num_ranks) if len(topology.links) <= _MOST_LINKS else ():
        deadline.check()
        shift = Shift(group, offset)
        if shift.repeats_one_of(found) or _holds(topology, shift.ranks(topology.num_ranks)):
            found.append(shift)
    return tuple(found)


def _holds(topology: Topology, ranks: tuple[int, ...]) -> bool:
    node, degree = topology.node_of_rank, [len(links) for links in topology.links_from]
    if len({(node[r], node[image]) for r, image in enumerate(ranks)}) != topology.num_nodes:
        return False
    if any(degree[r] != degree[image] for r, image in enumerate(ranks)):
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
        for rank, node in enumerate(topology.node_of_rank):
            self.edges[ranks[rank]].append(nodes[node])
        held: dict[int, list[tuple[int, Hashable]]] = defaultdict(list)
        for hold in topology.holds:
            cost = str(hold.alpha_us), str(hold.beta_us_per_mb), hold.side
            held[hold.resource].append((hold.link, cost))
        # What only one link holds is a part of that link's colour.
        own: dict[int, list[Hashable]] = defaultdict(list)
        for holds in held.values():
            if len(holds) == 1:
                own[holds[0][0]].append(holds[0][1])
        links = []
        for index, link in enumerate(topology.links):
            looks = (
                "link",
                str(link.alpha_us),
                str(link.beta_us_per_mb),
                tuple(sorted(map(str, own[index]))),
            )
            out, into = self._add(looks), self._add("end of a link")
            self.edges[out] = [into, *(ranks[rank] for rank in link.srcs)]
            self.edges[into] = [ranks[rank] for rank in link.dsts]
            links.append(out)
        for holds in (each for each in held.values() if len(each) > 1):
            costs = {cost for _, cost in holds}  # a vertex per hold only where they differ
            resource = self._add(("resource", *costs) if len(costs) == 1 else "resource")
            for index, own_cost in holds:
                vertex = links[index]
                if len(costs) > 1:
                    vertex = self._add(("hold", own_cost))
                    self.edges[links[index]].append(vertex)
                self.edges[vertex].append(resource)

    def _add(self, colour: Hashable) -> int:
        self.members[colour].append(self.count)
        self.count += 1
        return self.count - 1
