"""Timeline of a step: for each rank a row of its computed tiles and a row of its sends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taccl._internal.arguments import checked
from taccl._internal.units import format_count
from taccl.plot.gantt import rows_height
from taccl.plot.style import GREY, OKABE_ITO, axes, drawing, headline, legend, remark, time_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from taccl._internal.arguments import Count
    from taccl.workload.step import Step


@checked
@drawing
def step(step: Step, *, max_ranks: Count = 16, ax: Axes | None = None) -> Axes:
    """Draw a bar for each computed tile, coloured by operation, and for each send, rank by rank.

    Parameters
    ----------
    step : Step
        Result of `taccl.workload.schedule_workload`.
    max_ranks : int
        Max ranks. If there are more, the first are shown, and the picture says so.
    ax : Axes, optional
        Axes to draw on; by default those of a new figure.
    """
    from matplotlib.patches import Patch

    shown = min(step.workload.num_ranks, max_ranks)
    ax = axes(ax, height=rows_height(2 * shown))
    hues = OKABE_ITO[:-1]
    names = list(dict.fromkeys(each.operation for each in step.tiles))
    for number, name in enumerate(names):
        tiles = [each for each in step.tiles if each.operation == name and each.rank < shown]
        spans = [(float(each.start_us), float(each.end_us - each.start_us)) for each in tiles]
        rows, left, width = [2 * each.rank for each in tiles], [a for a, _ in spans], [b for _, b in spans]
        hue = hues[number % len(hues)]
        ax.barh(rows, width, left=left, height=0.8, color=hue, edgecolor="white", linewidth=0.3)
    if step.schedule.num_sends:
        links, per_us = step.topology.links, step.schedule.problem.costs.ticks_per_us
        source = np.array([link.src for link in links])[step.schedule.link]
        here = source < shown
        start, end = (column[here] / per_us for column in (step.schedule.start, step.schedule.end))
        ax.barh(2 * source[here] + 1, end - start, left=start, height=0.8, color=GREY, alpha=0.5)
    time_rows(ax, [f"{what} {rank}" for rank in range(shown) for what in ("compute", "send")], step.finish_us)
    ax.set_xlabel("time in us")
    headline(ax, f"{step.workload.name} on {step.topology.name}\nfinish {step.finish_us:.4g} us")
    keys = [Patch(color=hues[i % len(hues)], label=name) for i, name in enumerate(names[: len(hues)])]
    legend(ax, [*keys, Patch(color=GREY, alpha=0.5, label="sends")])
    if shown < step.workload.num_ranks:
        remark(ax, f"the first {shown} of {format_count(step.workload.num_ranks, 'rank')}")
    return ax
