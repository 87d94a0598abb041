"""The progress of a search: the best finish so far and the bound, over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from taccl._internal.arguments import checked
from taccl.errors import InputError
from taccl.plot import style
from taccl.plot.style import INK, OKABE_ITO, axes, drawing, dress, title_of
from taccl.synthesis.result import Result, TraceEntry

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WORDS = {"": "whole", "reduce": "reduction half", "spread": "spreading half"}


@checked
def progress(result: Result, *, ax: Axes | None = None) -> Axes:
    """Draw the best finish so far and the bound, over the seconds of a synthesis.

    A reduction may be searched as a reduce phase and a broadcast phase. Each phase then has its own line
    until they are joined.

    Parameters
    ----------
    result : Result
        Result of a synthesis.
    ax : Axes, optional
        Axes to draw on; by default those of a new figure.

    Raises
    ------
    InputError
        If the result has no trace of the search, for example because it was not made by a synthesis.
    """
    return draw_trace(result.trace, title_of(result.schedule.problem), ax=ax)


@drawing
def draw_trace(trace: Sequence[TraceEntry], title: str, *, ax: Axes | None = None) -> Axes:
    """Draw a trace without a result; otherwise as `progress`."""
    if not any(entry.finish_us is not None for entry in trace):
        said = "the result does not say what was known when; synthesize it with this version"
        raise InputError(said, where="progress")
    ax = axes(ax, height=4.0)
    halves = list(dict.fromkeys(entry.half for entry in trace))
    several = len(halves) > 1
    last = max(entry.seconds for entry in trace)
    for number, half in enumerate(halves):
        word, colour = (f"{_WORDS.get(half, half)}: " if several else ""), OKABE_ITO[number]
        some = [entry for entry in trace if entry.half == half]
        solid: dict[str, Any] = {"color": colour, "marker": "o", "markersize": 4, "linewidth": 1.6}
        dashed: dict[str, Any] = {"color": colour if several else INK, "linestyle": "--", "linewidth": 1.2}
        for name, figure, how in (("best finish so far", "finish_us", solid), ("bound", "bound_us", dashed)):
            known = [(m.seconds, getattr(m, figure)) for m in some if getattr(m, figure) is not None]
            if known:
                steps = zip(*known, (last, known[-1][1]), strict=True)
                ax.step(*steps, where="post", label=word + name, **how)
    ax.set_xlim(left=0)
    ax.margins(y=0.12)
    style.legend(ax, ax.get_legend_handles_labels()[0])
    title = f"{title}\nbest finish and bound over time"
    dress(ax, title, "seconds since the synthesis began", "finish in us")
    return ax


def trace_in(details: Mapping[str, Any]) -> tuple[TraceEntry, ...]:
    """The trace in plain values from a file; empty unless every entry is valid."""
    listed = details.get("trace")
    trace = []
    for each in listed if isinstance(listed, list) else ():
        if not isinstance(each, dict) or not isinstance(each.get("half", ""), str):
            return ()
        seconds, finish_us, bound_us = (each.get(name) for name in ("seconds", "finish_us", "bound_us"))
        known = [time for time in (finish_us, bound_us) if time is not None]
        if not all(type(time) in (int, float) and 0 <= time < 1e15 for time in (seconds, *known)):
            return ()
        trace.append(TraceEntry(seconds, finish_us, bound_us, each.get("half", "")))  # type: ignore[arg-type]
    return tuple(trace)
