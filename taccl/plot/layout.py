"""Where ranks, nodes and switches are drawn, and which lines join them."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from taccl.topology.topology import Topology

#: With more ranks than this, nodes stand for their ranks.
_MOST_RANKS = 256
#: With more pairs of ranks of different nodes than this, one line stands for all links from node to node.
_MOST_PAIRS = 48
#: Between more nodes than this, one line stands for both ways.
_MOST_NODES = 10
#: Graphs of more ranks are put on a circle: the search for a better place takes too long.
_MOST_PLACED = 128


@dataclass(frozen=True, slots=True)
class Layout:
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


def lay_out(topology: Topology) -> Layout:
    """Nodes side by side or round a circle, with their ranks round each; ranks of one node by their links."""
    num_nodes = topology.num_nodes
    by_node = topology.num_ranks > _MOST_RANKS and num_nodes > 1
    alone = max(len(ranks) for ranks in topology.ranks_of_node) == 1
    if (num_nodes == 1 or alone) and not topology.switches:
        shape = _grid_shape(topology)
        if shape is None:
            place = _by_links(topology)
        else:
            row, column = np.divmod(np.arange(topology.num_ranks), shape[1])
            place = np.stack([column, shape[0] - 1 - row], axis=1).astype(float)
        centre = place if alone else np.zeros((1, 2))
        return Layout(place, centre, np.zeros((0, 2)), 0.0, grid=shape is not None)
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
    return Layout(place, centre, _hubs(topology, place), radius, by_node)


def lines_of(topology: Topology, layout: Layout) -> list[Line]:
    """The lines of a picture: each way of a pair has its own."""
    switched = {link: hub for hub, switch in enumerate(topology.switches) for link in switch.links}
    pairs: dict[tuple[int, int], list[int]] = defaultdict(list)
    ports: dict[tuple[int, int, bool], list[int]] = defaultdict(list)
    for index, link in enumerate(topology.links):
        if index in switched and not layout.by_node and not topology.is_internode(index):
            for ranks, out in ((link.srcs, True), (link.dsts, False)):
                for rank in ranks:
                    ports[rank, switched[index], out].append(index)
        else:
            for pair in product(link.srcs, link.dsts):
                pairs[pair].append(index)
    lines = []
    for (rank, hub, out), links in ports.items():
        ends = (layout.place[rank], layout.hub[hub])
        held = _held(topology, links, "send" if out else "receive")
        lines.append(Line(*_beside(*(ends if out else ends[::-1])), tuple(links), held, "port"))
    node = topology.node_of_rank
    inside: list[tuple[int, int]] = [pair for pair in pairs if node[pair[0]] == node[pair[1]]]
    between = [pair for pair in pairs if node[pair[0]] != node[pair[1]]]
    if not layout.by_node:
        lines += [_link(topology, layout, pair, pairs[pair]) for pair in inside]
    if len({frozenset(pair) for pair in between}) <= _MOST_PAIRS and not layout.by_node:
        return lines + [_link(topology, layout, pair, pairs[pair]) for pair in between]
    bundles: dict[tuple[int, int], list[int]] = defaultdict(list)
    both_ways = topology.num_nodes > _MOST_NODES
    for src, dst in between:
        nodes = node[src], node[dst]
        bundles[(min(nodes), max(nodes)) if both_ways else nodes] += pairs[src, dst]
    edge = 0.0 if layout.by_node else 1.17 * layout.radius
    for (src, dst), links in bundles.items():  # from edge to edge of two nodes
        start, end = layout.centre[src], layout.centre[dst]
        margin = (end - start) / np.linalg.norm(end - start) * edge
        ends = _beside(start + margin, end - margin, by=0.06)
        lines.append(Line(*ends, tuple(links), _held(topology, links), "between nodes"))
    return lines


def _hubs(topology: Topology, place: NDArray[np.float64]) -> NDArray[np.float64]:
    """A place for every switch: amid its ranks, apart from other switches there."""
    hubs: list[NDArray[np.float64]] = []
    for switch in topology.switches:
        middle = place[list(switch.ranks)].mean(axis=0)
        taken = sum(bool(np.linalg.norm(hub - middle) < 0.45) for hub in hubs)
        turn = 2.4 * taken
        hubs.append(middle + 0.14 * taken**0.5 * np.array([math.cos(turn), math.sin(turn)]))
    return np.array(hubs).reshape(-1, 2)


def _held(topology: Topology, links: Sequence[int], side: str | None = None) -> frozenset[int]:
    return frozenset(
        hold.resource for link in links for hold in topology.holds_of_link[link] if side in (None, hold.side)
    )


def _link(topology: Topology, layout: Layout, pair: tuple[int, int], links: list[int]) -> Line:
    start, end = layout.place[pair[0]], layout.place[pair[1]]
    length = float(np.linalg.norm(end - start))
    if layout.grid and length > 1.5:  # leads round: a stub at its source, away from its destination
        end = start - 0.5 * (end - start) / length
        return Line(start, end, tuple(links), _held(topology, links), "link round the border")
    return Line(*_beside(start, end), tuple(links), _held(topology, links), "link")


def _beside(
    start: NDArray[np.float64], end: NDArray[np.float64], *, by: float = 0.018
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A line moved a little to its right, so that the other way has a place of its own."""
    length = float(np.linalg.norm(end - start)) or 1.0
    aside = by * np.array([end[1] - start[1], start[0] - end[0]]) / length
    return start + aside, end + aside


def _circle(count: int, *, turn: float = 0.0) -> NDArray[np.float64]:
    """Places round a circle of radius 1, from the top or so much beside it, clockwise."""
    angles = math.pi / 2 - turn - 2 * math.pi * np.arange(count) / max(1, count)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _grid_shape(topology: Topology) -> tuple[int, int] | None:
    """Rows and columns of a mesh or torus of two dimensions, which its name tells; None for others."""
    found = re.search(r"(\d+)x(\d+)$", topology.name)
    if topology.machine not in ("mesh", "torus") or found is None or "x" in topology.name[: found.start()]:
        return None
    rows, columns = int(found[1]), int(found[2])
    return (rows, columns) if rows * columns == topology.num_ranks else None


def _by_links(topology: Topology) -> NDArray[np.float64]:
    """Ranks that links join near each other (Kamada and Kawai 1989), or, of many links, round a circle."""
    num_ranks = topology.num_ranks
    if topology.machine == "hypercube":
        bits = np.arange(num_ranks)[:, None] >> np.arange((num_ranks - 1).bit_length()) & 1
        turns = math.pi * (np.arange(bits.shape[1]) + 0.5) / max(1, bits.shape[1])
        spread: NDArray[np.float64] = bits @ np.stack([np.cos(turns), np.sin(turns)], axis=1)
        return spread
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
