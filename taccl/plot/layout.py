"""Positions of ranks, nodes and switches in a topology's picture, and the lines between them."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise, product
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from taccl.errors import TopologyError
from taccl.topology.recognise import dimensions
from taccl.topology.topology import Topology

#: Max ranks drawn; with more (in several nodes), one dot stands for each node.
_MOST_RANKS = 256
#: Max linked pairs of ranks in different nodes drawn as own lines; with more, one line joins two nodes.
_MOST_PAIRS = 48
#: Max ranks placed by their links, which is slow; more go on a circle.
_MOST_PLACED = 128


@dataclass(frozen=True, slots=True)
class Places:
    """Positions in units of a node's radius, as float64.

    - `place`, (num_ranks, 2): Position of each rank; that of its node if `by_node`.
    - `centre`, (num_nodes, 2): Centre of each node.
    - `hub`, (num_switches, 2): Position of each switch.
    - `radius`: Radius of a node; 0 if nodes have no circle.
    - `by_node`: True if one dot stands for each node.
    - `grid`: True if ranks are on a grid whose border links may wrap around.
    """

    place: NDArray[np.float64]
    centre: NDArray[np.float64]
    hub: NDArray[np.float64]
    radius: float
    by_node: bool = False
    grid: bool = False


#: (field of `Places`, index in it).
_End: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Line:
    """A line that stands for links in one direction.

    - `start`, `end`, (2,): Its ends.
    - `links`: Indices of the links.
    - `resources`: Indices of the resources that sends over the links hold at this end of their path.
    - `what`: One of ``"link"`` for two ranks, ``"port"`` for a rank's port of a switch, and ``"between
      nodes"`` for all links from one node to another. The stub of a link that wraps around a grid is a
      ``"link round the border"``.
    """

    start: NDArray[np.float64]
    end: NDArray[np.float64]
    links: tuple[int, ...]
    resources: frozenset[int]
    what: str


def height_of(topology: Topology) -> float:
    """Height in inches of a picture 9 inches wide; less for two or three nodes, which lie side by side."""
    return 4.6 if 1 < topology.num_nodes <= 3 else 7.5


def lay_out(topology: Topology) -> Places:
    """Positions for a topology: nodes in a row or on a circle, each with its ranks around it.

    A single node without switches, or nodes of one rank, are placed by their links or coordinates.
    """
    num_nodes = topology.num_nodes
    by_node = topology.num_ranks > _MOST_RANKS and num_nodes > 1
    alone = max(len(ranks) for ranks in topology.ranks_of_node) == 1
    if (num_nodes == 1 or alone) and not topology.switches:
        digits = _digits(topology)
        is_grid = digits is not None and len(digits) == 2
        if digits is None or not (is_grid or topology.machine == "hypercube"):
            place = _by_links(topology)
        elif is_grid:
            place = digits.T * [1.0, -1.0]
        else:
            axes = np.arange(len(digits))
            turns = math.pi * (axes + 0.5) / max(1, len(digits))
            # Axes differ in length, or the first and the third of three would add up to the second.
            place = digits.T @ (np.stack([np.cos(turns), np.sin(turns)], axis=1) * (1 + 0.2 * axes)[:, None])
        centre = place if alone else np.zeros((1, 2))
        return Places(place, centre, np.zeros((0, 2)), 0.0, grid=is_grid)
    radius = 0.0 if alone else 1.0
    if num_nodes <= 3:
        centre = np.array([(2.9 * node, 0.0) for node in range(num_nodes)])
    else:
        centre = _circle(num_nodes) * 1.35 / math.sin(math.pi / num_nodes)
    place = np.zeros((topology.num_ranks, 2))
    for node, ranks in enumerate(topology.ranks_of_node):
        # For nodes in a row, turn the ranks so that horizontal lines between nodes miss other ranks.
        turn = math.pi / 2 / len(ranks) if 1 < num_nodes <= 3 else 0.0
        ring = _circle(len(ranks), turn=turn) * (0.0 if by_node or len(ranks) == 1 else radius)
        place[list(ranks)] = centre[node] + ring
    return Places(place, centre, _hubs(topology, place), radius, by_node)


def lines_of(topology: Topology, places: Places) -> list[Line]:
    """Lines of a picture; each direction of a pair has its own."""
    node = topology.node_of_rank
    hub_of = {link: hub for hub, switch in enumerate(topology.switches) for link in switch.links}
    pairs = {pair for link in topology.links for pair in product(link.srcs, link.dsts)}
    between = {frozenset(pair) for pair in pairs if node[pair[0]] != node[pair[1]]}
    bundled = places.by_node or len(between) > _MOST_PAIRS
    links: dict[tuple[str, _End, _End], dict[int, None]] = defaultdict(dict)
    for index, link in enumerate(topology.links):
        for src, dst in product(link.srcs, link.dsts):
            ends: list[_End] = [("place", src), ("place", dst)]
            what = "link"
            if node[src] != node[dst] and bundled:
                ends, what = [("centre", node[src]), ("centre", node[dst])], "between nodes"
            elif places.by_node:
                continue
            elif node[src] == node[dst] and index in hub_of:
                ends.insert(1, ("hub", hub_of[index]))
                what = "port"
            for pair in pairwise(ends):
                links[what, *pair][index] = None
    return [_line(topology, places, *key, tuple(some)) for key, some in links.items()]


def _line(
    topology: Topology, places: Places, what: str, src: _End, dst: _End, links: tuple[int, ...]
) -> Line:
    start, end = (getattr(places, kind)[number] for kind, number in (src, dst))
    length = float(np.linalg.norm(end - start)) or 1.0
    along = (end - start) / length
    by = 0.018
    if what == "between nodes":  # from circle to circle
        margin = 0.0 if places.by_node else 1.17 * places.radius
        start, end, by = start + margin * along, end - margin * along, 0.06
    elif places.grid and length > 1.5:  # wraps around: a stub at its source, away from its destination
        what, end, by = "link round the border", start - 0.5 * along, 0.0
    side = "receive" if src[0] == "hub" else "send" if dst[0] == "hub" else None
    held = (hold for link in links for hold in topology.holds_of_link[link])
    resources = frozenset(hold.resource for hold in held if side in (None, hold.side))
    aside = by * np.array([along[1], -along[0]])  # keeps the two directions apart
    return Line(start + aside, end + aside, links, resources, what)


def _hubs(topology: Topology, place: NDArray[np.float64]) -> NDArray[np.float64]:
    """Position of each switch, (num_switches, 2): amid its ranks, apart from other switches there."""
    hubs: list[NDArray[np.float64]] = []
    for switch in topology.switches:
        middle = place[list(switch.ranks)].mean(axis=0)
        taken = sum(bool(np.linalg.norm(hub - middle) < 0.45) for hub in hubs)
        turn = 2.4 * taken
        hubs.append(middle + 0.14 * taken**0.5 * np.array([math.cos(turn), math.sin(turn)]))
    return np.array(hubs).reshape(-1, 2)


def _circle(count: int, *, turn: float = 0.0) -> NDArray[np.float64]:
    """Positions on the unit circle, (count, 2), clockwise from the top, turned on by `turn` radians."""
    angles = math.pi / 2 - turn - 2 * math.pi * np.arange(count) / max(1, count)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _digits(topology: Topology) -> NDArray[np.int64] | None:
    """Coordinates of ranks, (axes, num_ranks), in a mesh, torus or hypercube; None for other topologies."""
    if topology.machine not in ("mesh", "torus", "hypercube"):
        return None
    try:
        return dimensions(topology).digits(np.arange(topology.num_ranks))
    except TopologyError:  # ranks or links were left out
        return None


def _by_links(topology: Topology) -> NDArray[np.float64]:
    """Positions of ranks, (num_ranks, 2), with linked ranks near each other (Kamada and Kawai 1989).

    Ranks go on a circle if they are few, many, densely linked, or not connected.
    """
    num_ranks = topology.num_ranks
    pairs = {frozenset((src, dst)) for e in topology.links for src in e.srcs for dst in e.dsts if src != dst}
    if num_ranks > _MOST_PLACED or num_ranks < 4 or 2 * len(pairs) > 0.5 * num_ranks * (num_ranks - 1):
        return _circle(num_ranks)
    import networkx

    graph = networkx.Graph()
    graph.add_nodes_from(range(num_ranks))
    graph.add_edges_from(sorted(sorted(pair) for pair in pairs))
    if not networkx.is_connected(graph):
        return _circle(num_ranks)
    places = networkx.kamada_kawai_layout(graph)
    return np.array([places[rank] for rank in range(num_ranks)])
