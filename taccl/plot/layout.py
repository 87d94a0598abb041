"""Where ranks, nodes and switches are drawn, and which lines join them."""

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

#: With more ranks than this, nodes stand for their ranks.
_MOST_RANKS = 256
#: With more pairs of ranks of different nodes than this, one line stands for all links from node to node.
_MOST_PAIRS = 48
#: Graphs of more ranks are put on a circle: the search for a better place takes too long.
_MOST_PLACED = 128


@dataclass(frozen=True, slots=True)
class Places:
    """Places in units of a node's radius, as float64.

    - `place`, (num_ranks, 2): Of every rank; its node's where nodes stand for ranks.
    - `centre`, `hub`: (num_nodes, 2), (num_switches, 2).
    - `radius`: Of a node.
    - `by_node`: Whether nodes stand for their ranks.
    - `grid`: Whether ranks are on a grid whose border links may lead round.
    """

    place: NDArray[np.float64]
    centre: NDArray[np.float64]
    hub: NDArray[np.float64]
    radius: float
    by_node: bool = False
    grid: bool = False


#: Which of the arrays of `Places`, and the place in it.
_End: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Line:
    """A line that stands for links one way.

    - `resources` (frozenset of int): What sends over the links hold at this end of their way.
    - `what`: A link of two ranks, its first piece where it leads round a grid, a rank's port of a switch, or
      all links from one node to another.
    """

    start: NDArray[np.float64]
    end: NDArray[np.float64]
    links: tuple[int, ...]
    resources: frozenset[int]
    what: str


def height_of(topology: Topology) -> float:
    """Inches that a picture of nine inches wide needs: two or three nodes lie side by side."""
    return 4.6 if 1 < topology.num_nodes <= 3 else 7.5


def lay_out(topology: Topology) -> Places:
    """Nodes side by side or round a circle, with their ranks round each; ranks of one node by their links."""
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
            # Axes of several lengths: the first and the third of three would add up to the second.
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
        # Turned a little where nodes are in a row, so that level lines between them pass over no other rank.
        turn = math.pi / 2 / len(ranks) if 1 < num_nodes <= 3 else 0.0
        ring = _circle(len(ranks), turn=turn) * (0.0 if by_node or len(ranks) == 1 else radius)
        place[list(ranks)] = centre[node] + ring
    return Places(place, centre, _hubs(topology, place), radius, by_node)


def lines_of(topology: Topology, places: Places) -> list[Line]:
    """The lines of a picture: each way of a pair has its own."""
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
    if what == "between nodes":  # from edge to edge
        margin = 0.0 if places.by_node else 1.17 * places.radius
        start, end, by = start + margin * along, end - margin * along, 0.06
    elif places.grid and length > 1.5:  # leads round: a stub at its source, away from its destination
        what, end, by = "link round the border", start - 0.5 * along, 0.0
    side = "receive" if src[0] == "hub" else "send" if dst[0] == "hub" else None
    held = (hold for link in links for hold in topology.holds_of_link[link])
    resources = frozenset(hold.resource for hold in held if side in (None, hold.side))
    aside = by * np.array([along[1], -along[0]])  # so that the other way has a place of its own
    return Line(start + aside, end + aside, links, resources, what)


def _hubs(topology: Topology, place: NDArray[np.float64]) -> NDArray[np.float64]:
    """A place for every switch: amid its ranks, apart from other switches there."""
    hubs: list[NDArray[np.float64]] = []
    for switch in topology.switches:
        middle = place[list(switch.ranks)].mean(axis=0)
        taken = sum(bool(np.linalg.norm(hub - middle) < 0.45) for hub in hubs)
        turn = 2.4 * taken
        hubs.append(middle + 0.14 * taken**0.5 * np.array([math.cos(turn), math.sin(turn)]))
    return np.array(hubs).reshape(-1, 2)


def _circle(count: int, *, turn: float = 0.0) -> NDArray[np.float64]:
    """Places round a circle of radius 1, from the top or so much beside it, clockwise."""
    angles = math.pi / 2 - turn - 2 * math.pi * np.arange(count) / max(1, count)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _digits(topology: Topology) -> NDArray[np.int64] | None:
    """The coordinates of ranks, (axes, num_ranks), of a mesh, torus or hypercube; None of others."""
    if topology.machine not in ("mesh", "torus", "hypercube"):
        return None
    try:
        return dimensions(topology).digits(np.arange(topology.num_ranks))
    except TopologyError:  # ranks or links were left out
        return None


def _by_links(topology: Topology) -> NDArray[np.float64]:
    """Ranks that links join near each other (Kamada and Kawai 1989), or, of many links, round a circle."""
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
