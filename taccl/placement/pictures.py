"""Plots of a placement: a heat map of distances in rank order, and a ring drawn over racks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taccl._internal.arguments import checked
from taccl.plot.style import GREY, INK, OKABE_ITO, axes, drawing, headline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from taccl.placement.placement import Placement


@drawing
@checked
def matrices(placement: Placement, *, ax: Axes | None = None) -> Axes:
    """Heat map of the distance of each pair of ranks (`distance_us`), in the original and the new order.

    Parameters
    ----------
    placement : Placement
        As `taccl.reorder` returns it.
    ax : Axes, optional
        Axes to draw on. Default: a new figure.
    """
    ax = axes(ax, width=9.0, height=4.6)
    between = placement.distance_us
    count = len(placement.order)
    gap = max(1, count // 16)
    whole = np.full((count, 2 * count + gap), np.nan)
    for at, order in ((0, range(count)), (count + gap, placement.order)):
        whole[:, at : at + count] = between[np.ix_(order, order)]
    image = ax.imshow(whole, cmap="cividis", interpolation="nearest")
    ax.figure.colorbar(image, ax=ax, shrink=0.8, label="us per largest message")
    ticks = [(count - 1) / 2, count + gap + (count - 1) / 2]
    ax.set_xticks(ticks, ["rank, given order", "rank, new order"])
    ax.set_ylabel("rank")
    headline(ax, f"{placement.title}\n{placement.faster}")
    return ax


@drawing
@checked
def ring(placement: Placement, *, ax: Axes | None = None) -> Axes:
    """Ring of ranks drawn over the racks of their hosts, in the original and in the new order.

    Parameters
    ----------
    placement : Placement
        Returned by `taccl.reorder`; the racks are the nodes of its topology.
    ax : Axes, optional
        Axes to draw on. Default: a new figure.
    """
    ax = axes(ax, width=9.0, height=4.6)
    racks = placement.topology.ranks_of_node
    spot = {host: (rack, -level) for rack, hosts in enumerate(racks) for level, host in enumerate(hosts)}
    across = len(racks) + 0.5
    given = range(len(placement.order))
    for shift, name, order in ((0.0, "order given", given), (across, "new order", placement.order)):
        ends = list(zip(order, [*order[1:], order[0]], strict=True))
        crossing = [pair for pair in ends if spot[pair[0]][0] != spot[pair[1]][0]]
        for pair in ends:
            (x, y), (u, v) = spot[pair[0]], spot[pair[1]]
            leaves = x != u
            ax.plot(
                [x + shift, u + shift], [y, v], color=OKABE_ITO[5] if leaves else GREY,
                linewidth=0.8 if leaves else 1.6, alpha=0.8,
            )  # fmt: skip
        points = np.array([spot[host] for host in order], dtype=float)
        ax.plot(points[:, 0] + shift, points[:, 1], "o", color=INK, markersize=4)
        ax.text(shift + (len(racks) - 1) / 2, 0.8, f"{name}: {len(crossing)} steps leave a rack", ha="center")
    ax.set_ylim(-max(map(len, racks)) + 0.3, 1.6)
    ax.set_axis_off()
    headline(ax, placement.title)
    return ax
