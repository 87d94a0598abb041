"""Picture of a topology: nodes, ranks, switches and links, with the load of a schedule."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from taccl._internal.arguments import checked
from taccl._internal.arrays import Floats, Ints
from taccl.errors import InputError, TopologyError
from taccl.plot import style
from taccl.plot.style import GREY, INK, OKABE_ITO, axes, drawing, headline, in_key, schedule_of
from taccl.schedule.bars import busy_shares
from taccl.schedule.schedule import Schedule
from taccl.synthesis.result import Result
from taccl.topology.recognise import dimensions
from taccl.topology.topology import Topology

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Max kinds of links with a colour and label of their own; further kinds share one colour and label.
_MOST_KINDS = 7
#: Max lines drawn; more would not be distinct.
_MOST_LINES = 6000
_MOST_LABELS = 128

#: Max ranks drawn one by one; with more ranks, in several nodes, one dot stands for each node.
_MOST_RANKS = 256
#: Max pairs of linked ranks in different nodes that have a line each.
#: If more pairs are linked, a single line joins two nodes.
_MOST_PAIRS = 48
#: Max ranks whose positions are computed from their links, which is slow; more ranks go on a circle.
_MOST_PLACED = 128


@checked
@drawing
def topology(
    topology: Topology, schedule: Result | Schedule | None = None, *, ax: Axes | None = None
) -> Axes:
    """Draw ranks, nodes, switches and links; with a schedule, the load of the links.

    Parameters
    ----------
    topology : Topology
        The topology.
    schedule : Result or Schedule, optional
        A schedule on this topology. The colour of a line then shows the busy share of the busiest resource
        that its sends hold: the link itself, a port of a switch, or a NIC. Unused lines are grey. Without a
        schedule, colours show kinds of links.
    ax : Axes, optional
        Axes to draw on; by default those of a new figure.

    Raises
    ------
    InputError
        If the schedule is of another topology.
    """
    places = lay_out(topology)
    lines = lines_of(topology, places)
    ax = axes(ax, width=9.0, height=height_of(topology))
    whats = {line.what for line in lines}
    remarks = {
        f"{_MOST_LINES} of {len(lines)} lines are drawn": len(lines) > _MOST_LINES,
        "each dot is a node with all its ranks": places.by_node,
        "one line represents all links between two nodes": "between nodes" in whats,
        "links at the border wrap around": "wrap-around link" in whats,
    }
    lines = lines[:_MOST_LINES]
    title = f"{topology.name}: {topology.num_ranks} ranks, {len(topology.links)} links"
    if schedule is None:
        _kinds(ax, topology, lines)
    else:
        whole = schedule_of(schedule)
        if whole.problem.topology != topology:
            said = f"found a schedule on {whole.problem.topology.name}; expected one on this {topology.name}"
            raise InputError(f"{said}; give schedule.problem.topology", where="schedule")
        _loads(ax, whole, lines)
        title = f"{whole.problem.heading}\nlink loads until the finish at {whole.finish_us:.4g} us"
    _ranks(ax, topology, places, lines)
    ax.set_axis_off()
    ax.set_aspect("equal")
    ax.margins(0.06)
    ax.autoscale_view()
    headline(ax, title)
    said = "; ".join(remark for remark, holds in remarks.items() if holds)
    if said:
        ax.text(0.0, 1.0, said, transform=ax.transAxes, fontsize=8, va="top", color=INK)
    return ax


def _kinds(ax: Axes, topology: Topology, lines: list[Line]) -> None:
    """Draw each line in the colour of its kind, which is the name and bandwidth of its links."""
    from matplotlib.lines import Line2D

    kinds: dict[str, list[Line]] = {}
    for line in lines:
        link = topology.links[line.links[0]]
        rate = f"{float(1000 / link.beta_us_per_mb):.4g} GB/s" if link.beta_us_per_mb else "no beta"
        own = in_key(link.name) or "link"
        name = {"port": "switch port", "between nodes": "between nodes"}.get(line.what, own)
        kinds.setdefault(f"{name}, {rate} a link", []).append(line)
    key = []
    for number, (name, some) in enumerate(kinds.items()):
        colour, label = (OKABE_ITO[number], name) if number < _MOST_KINDS else (INK, "others")
        width = _bundle_width(some) if some[0].what == "between nodes" else 1.0
        _draw(ax, some, colours=[colour] * len(some), widths=[width] * len(some))
        if number <= _MOST_KINDS:
            key.append(Line2D([], [], color=colour, linewidth=max(1.0, width), label=label))
    if key:
        style.legend(ax, key, bbox_to_anchor=(0.0, 0.0), ncols=3)


def _loads(ax: Axes, schedule: Schedule, lines: list[Line]) -> None:
    """Draw lines from light to dark and thin to thick, by the busy share of their busiest resource."""
    from matplotlib import colormaps
    from matplotlib.colors import Normalize

    shares = busy_shares(schedule)
    used = set(np.unique(schedule.link).tolist())

    def load(line: Line) -> float:
        return float(max((shares[each] for each in line.resources), default=0.0))

    busy = sorted((line for line in lines if used.intersection(line.links)), key=load)
    idle = [line for line in lines if not used.intersection(line.links)]
    _draw(ax, idle, colours=["#dddddd"] * len(idle), widths=[0.6] * len(idle))
    scale = Normalize(0, 1)
    colours = colormaps["cividis_r"](scale([load(line) for line in busy]))
    thick = {"between nodes": min(1.0, _bundle_width(lines) / 2)}
    widths = [(0.7 + 2.1 * load(line)) * thick.get(line.what, 1.0) for line in busy]
    _draw(ax, busy, colours=list(colours), widths=widths)
    axis = style.scale_beside(ax, scale, "cividis_r", "busy share of the busiest resource held", shrink=0.7)
    axis.set_major_formatter("{x:.0%}")


def _draw(ax: Axes, lines: list[Line], *, colours: list[Any], widths: list[float]) -> None:
    from matplotlib.collections import LineCollection

    for between in (True, False):  # draw lines between nodes behind the nodes
        some = [i for i, line in enumerate(lines) if (line.what == "between nodes") == between]
        if some:
            ends = [(lines[i].start, lines[i].end) for i in some]
            how = {"colors": [colours[i] for i in some], "linewidths": [widths[i] for i in some]}
            ax.add_collection(LineCollection(ends, zorder=0.5 if between else 2, **how))


def _bundle_width(lines: list[Line]) -> float:
    """Width in points of lines between nodes: the more lines, the thinner."""
    count = sum(line.what == "between nodes" for line in lines)
    return min(2.0, max(0.15, 60 / max(1, count)))


def _ranks(ax: Axes, topology: Topology, places: Places, lines: list[Line]) -> None:
    """Draw ranks as numbered dots, nodes as circles, and switches as squares."""
    from matplotlib.patches import Circle

    if places.radius and not places.by_node:
        middle = places.centre.mean(axis=0)
        for node, centre in enumerate(places.centre):
            look = {"facecolor": "white", "edgecolor": "#cccccc", "linewidth": 0.8, "zorder": 1}
            ax.add_patch(Circle(tuple(centre), 1.17, **look))
            if topology.num_nodes > 1:
                outward = centre - middle if topology.num_nodes > 3 else np.array([0.0, -1.0])
                x, y = centre + 1.35 * outward / np.linalg.norm(outward)
                side = "center" if abs(x - centre[0]) < 0.6 else "left" if x > centre[0] else "right"
                ax.text(x, y, f"node {node}", fontsize=8, ha=side, va="center", color=INK)
    dots = places.centre if places.by_node else places.place
    count = len(dots)
    labelled = count <= _MOST_LABELS
    size = 6.5 if count <= 36 else 5.0 if count <= 72 else 4.0
    area = (2.6 * size) ** 2 * 0.62 if labelled else 12.0
    ax.scatter(dots[:, 0], dots[:, 1], s=area, color="white", edgecolors=INK, linewidths=0.8, zorder=3)
    if labelled:
        for index, (x, y) in enumerate(dots.tolist()):
            ax.text(x, y, str(index), fontsize=size, ha="center", va="center", zorder=4)
    if len(places.hub) and any(line.what == "port" for line in lines):
        ax.scatter(places.hub[:, 0], places.hub[:, 1], s=70, marker="s", color=GREY, edgecolors=INK, zorder=3)


@dataclass(frozen=True, slots=True)
class Places:
    """Positions of ranks, nodes and switches in a picture, in units of a node's radius.

    - `place`, (num_ranks, 2): Position of each rank; that of its node if `by_node`.
    - `centre`, (num_nodes, 2): Centre of each node.
    - `hub`, (num_switches, 2): Position of each switch.
    - `radius`: Radius of a node; 0 if nodes have no circle.
    - `by_node`: True if one dot stands for each node.
    - `grid`: True if ranks are on a grid whose border links may wrap around.
    """

    place: Floats
    centre: Floats
    hub: Floats
    radius: float
    by_node: bool = False
    grid: bool = False


#: End of a line: (name of a field of `Places`, index in that field).
_End: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Line:
    """A line that stands for links in one direction.

    - `start`, `end`, (2,): Its ends.
    - `links`: Indices of the links.
    - `resources`: Indices of the resources that sends over the links hold; for a port, those at its rank.
    - `what`: One of ``"link"`` for two ranks, ``"port"`` for a rank's port of a switch, and ``"between
      nodes"`` for all links from one node to another. The stub of a link that wraps around a grid is a
      ``"wrap-around link"``.
    """

    start: Floats
    end: Floats
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
            # Vectors of different axes differ in length, so that ranks do not coincide.
            # With equal lengths, the first and the third of three vectors would add up to the second.
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
    """Lines of a topology's picture; the two directions between a pair of ranks have separate lines."""
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
    if what == "between nodes":  # a line from one node's circle to the other's
        margin = 0.0 if places.by_node else 1.17 * places.radius
        start, end, by = start + margin * along, end - margin * along, 0.06
    elif places.grid and length > 1.5:  # a wrap-around link: a stub at its source, pointing away
        what, end, by = "wrap-around link", start - 0.5 * along, 0.0
    side = "receive" if src[0] == "hub" else "send" if dst[0] == "hub" else None
    held = (hold for link in links for hold in topology.holds_of_link[link])
    resources = frozenset(hold.resource for hold in held if side in (None, hold.side))
    aside = by * np.array([along[1], -along[0]])  # moves the line aside, so that the two directions are apart
    return Line(start + aside, end + aside, links, resources, what)


def _hubs(topology: Topology, place: Floats) -> Floats:
    """Position of each switch, (num_switches, 2): the centre of its ranks, or beside it if taken."""
    hubs: list[Floats] = []
    for switch in topology.switches:
        middle = place[list(switch.ranks)].mean(axis=0)
        taken = sum(bool(np.linalg.norm(hub - middle) < 0.45) for hub in hubs)
        turn = 2.4 * taken
        hubs.append(middle + 0.14 * taken**0.5 * np.array([math.cos(turn), math.sin(turn)]))
    return np.array(hubs).reshape(-1, 2)


def _circle(count: int, *, turn: float = 0.0) -> Floats:
    """Positions on the unit circle, (count, 2), clockwise from the top, rotated by `turn` radians."""
    angles = math.pi / 2 - turn - 2 * math.pi * np.arange(count) / max(1, count)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _digits(topology: Topology) -> Ints | None:
    """Coordinates of ranks, (axes, num_ranks), in a mesh, torus or hypercube; None for other topologies."""
    if topology.machine not in ("mesh", "torus", "hypercube"):
        return None
    try:
        return dimensions(topology).digits(np.arange(topology.num_ranks))
    except TopologyError:  # TopologyError: ranks or links of the network were left out
        return None


def _by_links(topology: Topology) -> Floats:
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
