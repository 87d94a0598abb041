"""Plans of ranks that talk across nodes, from features of the topology that a person sees.

All is said in local ranks, so it must be alike in every node; where nodes differ, there is less to say. Plans
that name one sender for a NIC that ranks share, or for ranks that are not linked across, came first nowhere.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from taccl._internal.deadline import NEVER, Deadline
from taccl._internal.units import BYTES_PER_MB
from taccl.errors import TopologyError
from taccl.sketch.symmetry import block_shifts, link_permutation, offset_permutation
from taccl.topology.topology import Topology

#: Most links for which a shift is checked, for the time it takes.
_MOST_LINKS = 200_000

Ranks = tuple[int, ...]


@dataclass(frozen=True, slots=True, order=True)
class Shift:
    """Rank r to (r + offset) mod group inside its block of `group` ranks, as ``[[symmetry]]`` says it."""

    group: int
    offset: int

    def ranks(self, num_ranks: int) -> tuple[int, ...]:
        """Image of every rank."""
        return offset_permutation(num_ranks, self.offset, self.group)

    def repeats_one_of(self, known: Iterable[Shift]) -> bool:
        """True if it is another shift applied several times."""
        return any(each.group == self.group and self.offset % each.offset == 0 for each in known)


@dataclass(frozen=True)
class SketchShape:
    """Features of a topology that matter for a sketch, in local ranks, equal in every node."""

    topology: Topology
    ranks_per_node: int
    shifts: tuple[Shift, ...]

    def is_small(self, chunk_bytes: int) -> bool:
        """True if a chunk's latency between nodes (inside, for one node) is at least as long as its bytes."""
        topology = self.topology
        quickest = min(
            (topology.links[e] for e in topology.internode_links or range(len(topology.links))),
            key=lambda link: link.alpha_us + link.beta_us_per_mb,
        )
        return quickest.alpha_us >= quickest.beta_us_per_mb * Fraction(chunk_bytes, BYTES_PER_MB)

    @cached_property
    def switches(self) -> tuple[Ranks, ...]:
        """Ranks that are said to be behind a switch; or, where none is, that share ports with each other.

        A rank has a port where one resource is held by everything that it sends inside its node. Behind one
        switch are ranks with ports that all reach each other.
        """
        declared = self._in_every_node(switch.ranks for switch in self.topology.switches)
        if declared:
            return declared
        users: dict[int, list[int]] = defaultdict(list)
        for hold in self.topology.holds:
            users[hold.resource].append(hold.link)
        ports: Counter[frozenset[int]] = Counter()
        for links in users.values():
            srcs = {self.topology.links[e].src for e in links}
            if len(srcs) == 1 and len(links) > 1 and not any(map(self.topology.is_internode, links)):
                ports[frozenset(srcs.union(self.topology.links[e].dst for e in links))] += 1
        return self._in_every_node(ranks for ranks, count in ports.items() if count >= len(ranks))

    @cached_property
    def joined(self) -> frozenset[tuple[int, int]]:
        """Local ranks that are linked across every ordered pair of nodes."""
        count: dict[tuple[int, int], set[tuple[int, int]]] = defaultdict(set)
        topology = self.topology
        node, local = topology.node_of_rank, topology.local_rank
        for e in topology.internode_links:
            link = topology.links[e]
            count[local[link.src], local[link.dst]].add((node[link.src], node[link.dst]))
        pairs = topology.num_nodes * (topology.num_nodes - 1)
        return frozenset(ends for ends, found in count.items() if len(found) == pairs)

    def _in_every_node(self, sets: Iterable[Iterable[int]]) -> tuple[Ranks, ...]:
        """Sets of ranks of one node, in local ranks, that are found in every node."""
        nodes_of: dict[Ranks, set[int]] = defaultdict(set)
        for ranks in sets:
            nodes = {self.topology.node_of_rank[r] for r in ranks}
            if len(nodes) == 1:
                nodes_of[tuple(sorted(self.topology.local_rank[r] for r in ranks))] |= nodes
        return tuple(sorted(s for s, nodes in nodes_of.items() if len(nodes) == self.topology.num_nodes))


@dataclass(frozen=True, slots=True)
class InternodePlan:
    """Ranks that talk across nodes, the reason, and fields of ``[internode]`` with a comment on each."""

    name: str
    why: str
    internode: Mapping[str, tuple[object, str]] = field(default_factory=dict)


def find_shape(topology: Topology, *, deadline: Deadline = NEVER) -> SketchShape:
    """Features of a topology for a sketch's author.

    Raises `TopologyError` if nodes differ in their number of ranks, a link has several ends, or there is only
    one rank. `OutOfTime` once the deadline has passed.
    """
    sizes = sorted({len(ranks) for ranks in topology.ranks_of_node})
    refused = ""
    if len(sizes) > 1:
        refused = (
            f"nodes of {', '.join(map(str, sizes))} ranks; a sketch speaks of local ranks of every node, so "
            "it is suggested only where nodes are alike"
        )
    elif topology.num_ranks < 2 or not topology.links:
        refused = "nothing to send over; expected two ranks and a link at least"
    elif any(len(link.srcs) + len(link.dsts) > 2 for link in topology.links):
        refused = "links of several sources or destinations, for which no sketch is suggested"
    if refused:
        raise TopologyError(f"found {refused}", where=topology.name)
    return SketchShape(topology, sizes[0], find_shifts(topology, deadline=deadline))


def relay_plans(shape: SketchShape) -> Iterator[InternodePlan]:
    """Plans for a topology, each of them possible on its links; the freest last."""
    if shape.topology.num_nodes == 1:
        yield InternodePlan("one-node", "there is one node, so nobody relays")
        return
    local = range(shape.ranks_per_node)
    if all((r, r) in shape.joined for r in local):
        same_number = {"connections": ("direct-map", "Local rank i to local rank i of every other node.")}
        nobody = {r: (r,) for r in local}, "Nobody relays: a sender carries no chunks but its own."
        yield InternodePlan(
            "own-chunks",
            "every rank sends its own chunks to the rank with its number, once for each node: "
            "every NIC is in use, and no chunk crosses twice",
            {**same_number, "relays": nobody},
        )
        why = "every rank sends to the rank with its number, whosever chunk it is: every NIC is in use"
        yield InternodePlan("same-number", why, same_number)
    why = "any rank may send any chunk over any link; the search decides which NICs are used"
    yield InternodePlan("free", why)


def find_shifts(topology: Topology, *, deadline: Deadline = NEVER) -> tuple[Shift, ...]:
    """Every shift by a divisor of its block that the topology has; whole nodes go to whole nodes.

    Raises `OutOfTime` once the deadline has passed.
    """
    found: list[Shift] = []
    node = topology.node_of_rank
    for offset, group in block_shifts(topology.num_ranks) if len(topology.links) <= _MOST_LINKS else ():
        deadline.check()
        shift = Shift(group, offset)
        ranks = shift.ranks(topology.num_ranks)
        whole_nodes = len({(node[r], node[image]) for r, image in enumerate(ranks)}) == topology.num_nodes
        is_known = shift.repeats_one_of(found)
        if is_known or (whole_nodes and link_permutation(topology, ranks) is not None):
            found.append(shift)
    return tuple(found)
