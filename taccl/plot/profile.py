"""Performance profile of a comparison: share of the problems that each backend solves within a factor."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl._internal.arguments import checked
from taccl._internal.units import format_count
from taccl.errors import InputError
from taccl.plot.comparison import rows_of
from taccl.plot.style import OKABE_ITO, axes, drawing, dress, legend, mark, remark

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Columns that say which problem a run is of, if the table has them.
_LABELS = ("topology", "collective", "num_ranks", "sketch", "size_bytes", "chunks_per_rank", "seed")


@checked
@drawing
def performance_profile(table: Any, *, ax: Axes | None = None) -> Axes:
    """Draw, for each backend, the share of runs whose finish is within a factor of the best of their problem.

    A curve that starts higher is the best more often; one that is higher on the right fails less often. Each
    seed of a problem counts as a run. Source: Dolan and More, "Benchmarking optimization software with
    performance profiles", Mathematical Programming 91, 2002.

    Parameters
    ----------
    table : DataFrame
        Result of `taccl.compare` or `taccl.sweep`.
    ax : Axes, optional
        Axes to draw on; by default those of a new figure.

    Raises
    ------
    InputError
        If the table has no rows, lacks one of their columns, or has no schedule.
    """
    problems: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows_of(table):
        problems[tuple(row.get(name) for name in _LABELS)].append(row)
    ratios: dict[str, list[float]] = defaultdict(list)
    for rows in problems.values():
        best = min((row["finish_us"] for row in rows if row["finish_us"] is not None), default=None)
        for row in rows:
            is_none = row["finish_us"] is None or best is None
            ratios[row["backend"]].append(np.inf if is_none else row["finish_us"] / best if best else 1.0)
    largest = max((each for some in ratios.values() for each in some if each < np.inf), default=None)
    if largest is None:
        raise InputError("found no run with a schedule; expected one at least", where="table")
    ax, end, lines = axes(ax, height=4.0), 1 + 1.08 * max(largest - 1, 0.01), []
    for number, (backend, some) in enumerate(ratios.items()):
        within = np.sort([each for each in some if each < np.inf])
        share = np.arange(1, len(within) + 1) / len(some)
        again, colour = divmod(number, len(OKABE_ITO))
        lines += ax.step(
            [1.0, *within, end], [0.0, *share, share[-1] if len(share) else 0.0], where="post",
            color=OKABE_ITO[colour], marker=mark(number), markevery=slice(1, -1), markersize=5,
            linestyle=("-", "--", ":")[again % 3], label=str(backend),
        )  # fmt: skip
    ax.set_xlim(1.0, end)
    ax.set_ylim(0.0, 1.03)
    ax.yaxis.set_major_formatter("{x:.0%}")
    legend(ax, lines)
    dress(ax, "performance profile of backends", "finish over the best of the problem", "share of runs")
    remark(ax, format_count(len(problems), "problem"))
    return ax
