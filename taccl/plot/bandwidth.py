"""Bus bandwidth over message size: a schedule, what no schedule can pass, and what a library would do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taccl.arguments import checked
from taccl.plot.sizes import NAMES_OF_BASELINES, Bandwidths, bandwidths
from taccl.plot.style import GREY, INK, MARKS, OKABE_ITO, axes, drawing, headline, plain_log, remark
from taccl.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from taccl.arguments import Size
    from taccl.schedule.compact import CompactSchedule
    from taccl.schedule.schedule import Schedule
    from taccl.synthesis.result import Result

__all__ = ["bandwidth"]


@checked
@drawing
def bandwidth(
    schedule: Bandwidths | Result | Schedule | CompactSchedule,
    *,
    sizes: Sequence[Size] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Lines of bus bandwidth over size, for a schedule, its bound, every baseline and the best of these.

    Parameters
    ----------
    schedule : Bandwidths, Result, Schedule or CompactSchedule
        Bandwidths that are worked out already (`taccl.plot.bandwidths`), or what to work them out for.
    sizes : sequence of int or str, optional
        As nccl-tests counts them, where they are to be worked out.
    ax : Axes, optional
        Where to draw; a new figure unless given.

    Raises
    ------
    InputError
        If a size is none, the schedule's own is not known, or it has too many transfers.
    """
    found = schedule if isinstance(schedule, Bandwidths) else bandwidths(schedule, sizes=sizes)
    ax = axes(ax, height=5.2)
    at, aside = found.sizes_bytes, found.bound_under_sketch
    dashed = {"color": INK, "linestyle": "--", "linewidth": 1.2}
    ends: list[tuple[Sequence[float | None], str, dict[str, Any]]] = [
        (found.bound, "bound, sketch aside" if aside else "bound", dashed),
        (aside, "bound under the sketch", dashed | {"linestyle": ":"}),
    ]
    if found.baselines:
        best = [None if each is None else each[1] for each in found.best_baseline]
        ends.append((best, "best of baselines", {"color": GREY, "linewidth": 5, "alpha": 0.45}))
    thin = {"linewidth": 1.0, "markersize": 4}
    for number, (name, rates) in enumerate(found.baselines.items(), 1):
        style = {"color": OKABE_ITO[number], "marker": MARKS[number], **thin}
        ends.append((rates, NAMES_OF_BASELINES[name], style))
    own = {"color": OKABE_ITO[0], "marker": MARKS[0], "linewidth": 2.2, "markersize": 5}
    ends.append((found.schedule, "this schedule", own))
    for line, label, how in ends:
        points = [(size, rate) for size, rate in zip(at, line, strict=bool(line)) if rate]
        if points:
            ax.plot(*zip(*points, strict=True), label=label, **how)
    problem = found.problem
    assert problem.size_bytes is not None, "bandwidths needs it"
    ax.axvline(problem.size_bytes, color=GREY, linewidth=0.8, linestyle=":")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    shown = at if len(at) <= 13 else at[:: -(-len(at) // 13)]
    ax.set_xticks(shown, [format_size(size) for size in shown], fontsize=8, rotation=30)
    ax.minorticks_off()
    plain_log(ax.yaxis)
    ax.grid(linewidth=0.5, alpha=0.4)
    ax.set_xlabel("size (the larger of one rank's input and output buffer)")
    ax.set_ylabel("bus bandwidth in GB/s")
    headline(
        ax,
        f"{problem.title}: bus bandwidth over size\n"
        f"made for {format_size(problem.size_bytes)} (dotted), its order kept at other sizes",
    )
    if ax.get_lines()[1:]:
        ax.legend(fontsize=8, frameon=False, loc="lower right", reverse=True)
    else:
        remark(ax, "nothing is sent, which takes no time and has no bandwidth")
    if found.undefined:
        names = ", ".join(NAMES_OF_BASELINES[name] for name in found.undefined)
        remark(ax, f"not defined here: {names}")
    return ax
