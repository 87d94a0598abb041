"""Who talks across nodes, and for whom: plans, made of what a topology looks like to a person.

All is said in local ranks, so it must be alike in every node; where nodes differ, there is less to say. A NIC
that several ranks share is saturated by one sender as well as by all of them; what differs is how far chunks
travel inside the node, how many messages pay a latency, and how small the model gets.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from taccl.deadline import NEVER, Deadline
from taccl.errors import TopologyError
from taccl.sketch.symmetry import block_shifts, link_permutation, offset_permutation
from taccl.topology.topology import Topology
from taccl.units import BYTES_PER_MB

#: Beyond so many links a shift takes too long to check.
_MOST_LINKS = 200_000

Ranks = tuple[int, ...]


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


@dataclass(frozen=True)
class SketchShape:
    """What of a topology matters for a sketch, in local ranks, alike in every node."""

    topology: Topology
    ranks_per_node: int
    shifts: tuple[Shift, ...]

    def is_small(self, chunk_bytes: int) -> bool:
        """Whether a chunk's latency between nodes (of one node, inside) is at least as long as its bytes."""
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
    def egress(self) -> tuple[Ranks, ...]:
        """Ranks that share a way out of their node, such as a NIC; each rank that has one is in one group."""
        return self._sharing("src", "send")

    @cached_property
    def ingress(self) -> tuple[Ranks, ...]:
        """Ranks that share a way into their node."""
        return self._sharing("dst", "receive")

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

    @cached_property
    def apart_us_per_mb(self) -> dict[int, dict[int, Fraction]]:
        """[s][r]: a megabyte's quickest path inside the first node, store and forward, where there is one."""
        import networkx as nx

        topology = self.topology
        local = {rank: place for place, rank in enumerate(topology.ranks_of_node[0])}
        node = nx.MultiDiGraph()
        node.add_nodes_from(local.values())
        for link in topology.links if topology.num_nodes > 1 else ():
            if link.src in local and link.dst in local:
                node.add_edge(local[link.src], local[link.dst], weight=link.alpha_us + link.beta_us_per_mb)
        return dict(nx.all_pairs_dijkstra_path_length(node))

    def _sharing(self, end: str, side: str) -> tuple[Ranks, ...]:
        """Local ranks whose links between nodes share a resource at the sending or the receiving end."""
        import networkx as nx

        sharing = nx.Graph()
        sharing.add_nodes_from(getattr(self.topology.links[e], end) for e in self.topology.internode_links)
        held: dict[int, set[int]] = defaultdict(set)
        for hold in self.topology.holds:
            if hold.side == side and self.topology.is_internode(hold.link):
                held[hold.resource].add(getattr(self.topology.links[hold.link], end))
        for ranks in held.values():
            if len({self.topology.node_of_rank[r] for r in ranks}) == 1:
                nx.add_path(sharing, ranks)
        return self._in_every_node(nx.connected_components(sharing))

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
    """Who talks across nodes, what speaks for it, and fields of ``[internode]`` with a comment on each."""

    name: str
    why: str
    internode: Mapping[str, tuple[object, str]] = field(default_factory=dict)


def find_shape(topology: Topology, *, deadline: Deadline = NEVER) -> SketchShape:
    """What a topology looks like to a person who writes a sketch.

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
    count = len(shape.egress)
    busy = f"all {count} NICs of a node are in use" if count > 1 else "the NIC of a node is in use"
    if all((r, r) in shape.joined for r in local):
        same_number = {"connections": ("direct-map", "Local rank i to local rank i of every other node.")}
        nobody = {r: (r,) for r in local}, "Nobody relays: a sender carries no chunks but its own."
        yield InternodePlan(
            "own-chunks",
            "every rank sends its own chunks to the rank with its number, once for each node: "
            f"{busy}, and no chunk crosses twice",
            {**same_number, "relays": nobody},
        )
        why = f"every rank sends to the rank with its number, whosever chunk it is: {busy}"
        yield InternodePlan("same-number", why, same_number)
    if any(len(group) > 1 for group in shape.egress):
        yield from _one_for_each_nic(shape, busy)
    elif count < shape.ranks_per_node:
        yield from _nearest_sender(shape)
    why = "any rank may send any chunk over any link; the search decides which NICs are used"
    yield InternodePlan("free", why)


def _one_for_each_nic(shape: SketchShape, busy: str) -> Iterator[InternodePlan]:
    """One sender and one receiver for every NIC, so that a rank's links carry one direction each."""
    if not set(shape.egress) <= set(shape.ingress):
        return
    apart = shape.apart_us_per_mb
    connections, relays = {}, {}
    for group in shape.egress:
        pairs = [(s, r) for s in group for r in group if s != r and (s, r) in shape.joined]
        if not pairs or any(s not in apart[r] for r in group for s in group):
            return
        # The sender that the others reach soonest, and the receiver nearest to it.
        sender, receiver = min(
            pairs, key=lambda pair: (max(apart[r][pair[0]] for r in group), -pair[0], apart[pair[0]][pair[1]])
        )
        connections[sender], relays[sender] = (receiver,), group
    yield InternodePlan(
        "relays",
        f"{len(shape.egress[0])} ranks share a NIC: one of them sends for all and another receives, so that "
        f"neither end's links carry both directions, and {busy}",
        {
            "connections": (connections, "Of the ranks that share a NIC one sends, and another receives."),
            "relays": (relays, "A sender carries the chunks of all ranks at its NIC off the node."),
        },
    )


def _nearest_sender(shape: SketchShape) -> Iterator[InternodePlan]:
    """Only some ranks are linked across: each of the others has its chunks carried by the nearest."""
    senders = sorted({sender for sender, _ in shape.joined})
    carried: dict[int, list[int]] = defaultdict(list)
    for rank in range(shape.ranks_per_node):
        apart = shape.apart_us_per_mb[rank]
        reachable = [s for s in senders if s in apart]
        if not reachable:
            return
        nearest = min(reachable, key=lambda s: (apart[s], len(carried[s]), abs(s - rank), s))
        carried[nearest].append(rank)
    connections = {s: tuple(sorted(r for sender, r in shape.joined if sender == s)) for s in senders}
    relays = {s: tuple(carried[s]) for s in senders if carried[s]}
    yield InternodePlan(
        "relays",
        f"not all ranks are linked across nodes ({len(senders)} of {shape.ranks_per_node}): each of these "
        "carries its own chunks and those of the ranks nearest to it",
        {
            "connections": (connections, "The ranks that are linked to other nodes."),
            "relays": (relays, "Every rank's chunks leave the node at the sender nearest to it."),
        },
    )


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
