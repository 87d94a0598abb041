"""What a topology looks like to a person who writes a sketch: nodes, switches, and who shares a NIC.

All is said in local ranks, so it must be alike in every node; where nodes differ, there is less to say.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from taccl.deadline import NEVER, Deadline
from taccl.errors import TopologyError
from taccl.synthesis.suggesting.symmetry_finding import find_shifts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taccl.synthesis.suggesting.symmetry_finding import Shift
    from taccl.topology.topology import Topology

__all__ = ["Shape", "find_shape"]

Ranks = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a topology matters for a sketch.

    Parameters
    ----------
    num_nodes, ranks_per_node : int
    switches : tuple of tuple of int
        Local ranks that a crossbar joins, in every node.
    egress, ingress : tuple of tuple of int
        Local ranks that share a way out of their node, such as a NIC; and a way into it. Each rank that has
        one is in one group.
    joined : frozenset of (int, int)
        Local ranks (sender, receiver) that are linked across every ordered pair of nodes.
    apart_us_per_mb : tuple of tuple of Fraction
        ``[s][r]``: a megabyte's way from local rank s to r inside a node, store and forward, the quickest
        way; negative where there is none.
    shifts : tuple of Shift
        Symmetries of the topology that a sketch can say.
    alpha_us, beta_us_per_mb : Fraction
        Of the quickest link between nodes; inside, where there is one node.
    """

    num_nodes: int
    ranks_per_node: int
    switches: tuple[Ranks, ...]
    egress: tuple[Ranks, ...]
    ingress: tuple[Ranks, ...]
    joined: frozenset[tuple[int, int]]
    apart_us_per_mb: tuple[tuple[Fraction, ...], ...]
    shifts: tuple[Shift, ...]
    alpha_us: Fraction
    beta_us_per_mb: Fraction


def find_shape(topology: Topology, *, deadline: Deadline = NEVER) -> Shape:
    """What a topology looks like to a person who writes a sketch.

    Raises
    ------
    TopologyError
        If nodes differ in their number of ranks, a link has several ends, or there is only one rank.
    OutOfTime
        Once the deadline has passed.
    """
    sizes = {len(ranks) for ranks in topology.ranks_of_node}
    if len(sizes) > 1:
        raise TopologyError(
            f"found nodes of {', '.join(map(str, sorted(sizes)))} ranks; a sketch speaks of local ranks of "
            "every node, so it is suggested only where nodes are alike",
            where=topology.name,
        )
    if topology.num_ranks < 2 or not topology.links:
        raise TopologyError(
            "found nothing to send over; expected two ranks and a link at least", where=topology.name
        )
    if any(len(link.srcs) + len(link.dsts) > 2 for link in topology.links):
        raise TopologyError(
            "found links of several sources or destinations, for which no sketch is suggested",
            where=topology.name,
        )
    across = topology.internode_links
    quickest = min(
        (topology.links[e] for e in across or range(len(topology.links))),
        key=lambda link: link.alpha_us + link.beta_us_per_mb,
    )
    return Shape(
        num_nodes=topology.num_nodes,
        ranks_per_node=sizes.pop(),
        switches=_switches(topology),
        egress=_sharing(topology, "src"),
        ingress=_sharing(topology, "dst"),
        joined=_joined(topology),
        apart_us_per_mb=_apart(topology) if topology.num_nodes > 1 else (),
        shifts=find_shifts(topology, deadline=deadline),
        alpha_us=quickest.alpha_us,
        beta_us_per_mb=quickest.beta_us_per_mb,
    )


def _in_every_node(topology: Topology, sets: Iterable[frozenset[int]]) -> tuple[Ranks, ...]:
    """Sets of ranks of one node, in local ranks, that are found in every node."""
    nodes_of: dict[frozenset[int], set[int]] = defaultdict(set)
    for ranks in sets:
        nodes = {topology.node_of_rank[r] for r in ranks}
        if len(nodes) == 1:
            nodes_of[frozenset(topology.local_rank[r] for r in ranks)].update(nodes)
    everywhere = [tuple(sorted(s)) for s, nodes in nodes_of.items() if len(nodes) == topology.num_nodes]
    return tuple(sorted(everywhere))


def _switches(topology: Topology) -> tuple[Ranks, ...]:
    """Ranks that are said to be behind a switch; or, where none is, that share ports with each other.

    A rank has a port where one resource is held by everything that it sends inside its node. Behind one
    switch are ranks with ports that all reach each other.
    """
    declared = _in_every_node(topology, (frozenset(switch.ranks) for switch in topology.switches))
    if declared:
        return declared
    reached: dict[int, set[int]] = defaultdict(set)
    users: dict[int, list[int]] = defaultdict(list)
    for hold in topology.holds:
        users[hold.resource].append(hold.link)
    for resource, links in users.items():
        srcs = {topology.links[e].src for e in links}
        if len(srcs) == 1 and len(links) > 1 and not any(topology.is_internode(e) for e in links):
            reached[resource] = srcs | {topology.links[e].dst for e in links}
    counted: dict[frozenset[int], int] = defaultdict(int)
    for ranks in reached.values():
        counted[frozenset(ranks)] += 1
    return _in_every_node(topology, (ranks for ranks, ports in counted.items() if ports >= len(ranks)))


def _sharing(topology: Topology, end: str) -> tuple[Ranks, ...]:
    """Local ranks whose links between nodes share a resource at the sending or the receiving end."""
    groups: dict[int, set[int]] = {}
    for e in topology.internode_links:
        rank = getattr(topology.links[e], end)
        groups.setdefault(rank, {rank})
    side = "send" if end == "src" else "receive"
    held: dict[int, set[int]] = defaultdict(set)
    for hold in topology.holds:
        if hold.side == side and topology.is_internode(hold.link):
            held[hold.resource].add(getattr(topology.links[hold.link], end))
    for ranks in held.values():
        nodes = {topology.node_of_rank[r] for r in ranks}
        if len(nodes) > 1 or len(ranks) < 2:
            continue
        together = set().union(*(groups[r] for r in ranks))
        for rank in together:
            groups[rank] = together
    return _in_every_node(topology, (frozenset(each) for each in groups.values()))


def _joined(topology: Topology) -> frozenset[tuple[int, int]]:
    """Local ranks that are linked across every ordered pair of nodes."""
    count: dict[tuple[int, int], set[tuple[int, int]]] = defaultdict(set)
    node, local = topology.node_of_rank, topology.local_rank
    for e in topology.internode_links:
        link = topology.links[e]
        count[local[link.src], local[link.dst]].add((node[link.src], node[link.dst]))
    pairs = topology.num_nodes * (topology.num_nodes - 1)
    return frozenset(ends for ends, found in count.items() if len(found) == pairs)


def _apart(topology: Topology) -> tuple[tuple[Fraction, ...], ...]:
    """The quickest way of a megabyte between the ranks of the first node."""
    here = {rank: place for place, rank in enumerate(topology.ranks_of_node[0])}
    none = Fraction(-1)
    apart = [[Fraction(0) if s == r else none for r in range(len(here))] for s in range(len(here))]
    for rank, place in here.items():
        for e in topology.links_from[rank]:
            link = topology.links[e]
            if link.dst in here:
                cost, old = link.alpha_us + link.beta_us_per_mb, apart[place][here[link.dst]]
                apart[place][here[link.dst]] = cost if old < 0 else min(old, cost)
    for k in range(len(here)):
        for s in range(len(here)):
            for r in range(len(here)):
                if apart[s][k] >= 0 and apart[k][r] >= 0:
                    through = apart[s][k] + apart[k][r]
                    if apart[s][r] < 0 or through < apart[s][r]:
                        apart[s][r] = through
    return tuple(map(tuple, apart))
