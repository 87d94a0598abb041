"""Picture of a topology: nodes, ranks, switches and links, with the load of a schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taccl._internal.arguments import checked
from taccl.errors import InputError
from taccl.plot import style
from taccl.plot.layout import Line, Places, height_of, lay_out, lines_of
from taccl.plot.style import GREY, INK, OKABE_ITO, axes, drawing, headline, in_key, schedule_of, title_of
from taccl.schedule.bars import busy_shares
from taccl.schedule.schedule import Schedule
from taccl.synthesis.result import Result
from taccl.topology.topology import Topology

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Max kinds of links with their own colour and label; the rest share one.
_MOST_KINDS = 7
#: Max lines drawn; more would not be distinct.
_MOST_LINES = 6000
_MOST_LABELS = 128


@checked
@drawing
def topology(
    topology: Topology,
    schedule: Result | Schedule | None = None,
    *,
    ax: Axes | None = None,
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
        "a dot is a node with all its ranks": places.by_node,
        "between nodes one line stands for all links": "between nodes" in whats,
        "links at the border lead round to the other side": "link round the border" in whats,
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
        title = f"{title_of(whole.problem)}\nlink loads until the finish at {whole.finish_us:.4g} us"
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
        name = {"port": "port of a switch", "between nodes": "between nodes"}.get(line.what, own)
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
