"""Picture of a fit: measured times as points, predictions as curves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taccl._internal.arguments import checked
from taccl._internal.units import format_size
from taccl.plot.style import MARKS, OKABE_ITO, axes, drawing, dress, plain_log

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from taccl.measure.fit import Fit


@drawing
@checked
def measured(fit: Fit, *, ax: Axes | None = None) -> Axes:
    """Draw measured and predicted times over size, for each series of a fit.

    Parameters
    ----------
    fit : Fit
        Result of `taccl.fit`.
    ax : Axes, optional
        Axes to draw on; by default those of a new figure.
    """
    ax = axes(ax)
    for number, each in enumerate(fit.series):
        colour, mark = OKABE_ITO[number % len(OKABE_ITO)], MARKS[number % len(MARKS)]
        sizes = each.series.size_bytes
        ax.plot(sizes, each.series.times_us, mark, color=colour, markersize=4, label=each.series.title)
        ax.plot(sizes, each.predicted_us, color=colour, linewidth=1.4)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    plain_log(ax.yaxis)
    ax.xaxis.set_major_formatter(lambda value, _: format_size(round(value)))
    ax.legend(fontsize=8, frameon=False, loc="upper left")
    left = fit.left_out_median_error
    told = "" if left is None else f", of sizes left out {left:.1%}"
    title = f"{fit.machine}: measured (points) and fitted\nmedian error {fit.median_error:.1%}{told}"
    dress(ax, title, "size", "time in us")
    return ax
