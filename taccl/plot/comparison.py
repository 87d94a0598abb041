"""Pictures of one search (its progress) and of several (gaps, ratios to bounds, performance profile)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl._internal.arguments import checked
from taccl._internal.names import shown
from taccl._internal.units import format_count, format_size, format_us
from taccl.errors import InputError
from taccl.plot import style
from taccl.plot.style import (
    GREY,
    INK,
    OKABE_ITO,
    axes,
    drawing,
    dress,
    in_key,
    legend,
    mark,
    plain_log,
    remark,
)
from taccl.synthesis.result import Result, Trace, TraceEntry

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_NEEDED = ("backend", "seconds", "finish_us", "bound_us", "gap", "status")
#: Max bars in a picture.
_MOST_BARS = 100
#: Height at which a run without a schedule is marked, as a share of the axes' height.
_TOP = 0.95


@checked
@drawing
def comparison(table: Any, *, ax: Axes | None = None) -> Axes:
    """Draw each run's optimality gap over its run time, as a marker with the colour of its backend.

    Marker shapes show sketches, sizes or collectives, whichever differ first. If the bounds of runs differ,
    marker size grows with the bound. Runs without a schedule or a bound are crosses at the top, and the key
    states the reason.

    Parameters
    ----------
    table : DataFrame
        Result of `taccl.compare` or `taccl.sweep`.
    ax : Axes, optional
        Axes to draw on; by default those of a new figure.

    Raises
    ------
    InputError
        If the table has no rows, or lacks a column that these functions write.
    """
    rows = rows_of(table)
    ax = axes(ax, height=5.0)
    shape_name, shapes = _shapes(rows)
    backends = list(dict.fromkeys(row["backend"] for row in rows))
    bounds = [row["bound_us"] for row in rows if row["bound_us"]]
    largest = max(bounds, default=1.0)
    one_bound = len({round(bound, 6) for bound in bounds}) <= 1
    ax.set_xscale("log")
    highest = max((row["gap"] for row in rows if row["gap"] is not None), default=0.0)
    for row in rows:
        colour, mark = _look(backends.index(row["backend"]), shapes.index(row[shape_name]), len(shapes))
        seconds = max(row["seconds"] or row.get("time_limit_s") or 1e-3, 1e-3)
        if row["gap"] is None or row["finish_us"] is None:
            ax.plot(
                seconds, _TOP, marker="x", color=colour, markersize=8, markeredgewidth=2, linestyle="",
                transform=ax.get_xaxis_transform(),
            )  # fmt: skip
            continue
        area = 55.0 if one_bound else 25 + 90 * (row["bound_us"] / largest) ** 0.5
        ax.scatter(
            seconds, row["gap"], s=area, marker=mark, color=colour, alpha=0.8, edgecolors="white",
            linewidths=0.6, zorder=3,
        )  # fmt: skip
    _key(ax, rows, backends, shape_name, shapes)
    failed = sum(row["gap"] is None for row in rows)
    ax.set_ylim(bottom=-0.04 * (highest or 0.1), top=(highest or 0.1) * (1.3 if failed else 1.12))
    ax.yaxis.set_major_formatter("{x:.1%}" if highest < 0.1 else "{x:.0%}")
    plain_log(ax.xaxis)
    if failed:
        band = {"facecolor": GREY, "alpha": 0.2, "pad": 2, "linewidth": 0}
        ax.text(0.01, 0.91, "no schedule", transform=ax.transAxes, fontsize=8, va="bottom", bbox=band)
    title = "gap over time"
    if len({row.get("collective") for row in rows} | {None}) == 2 and rows[0].get("topology"):
        title = f"{rows[0]['collective']} on {rows[0]['topology']}: {title}"
    title += f"\n{format_count(len(rows), 'run')}, {len(rows) - failed} with a schedule and a gap"
    dress(ax, title, "seconds of the run", "gap: (finish - bound) / bound")
    remark(ax, "" if one_bound else "marker size grows with the bound")
    return ax


@checked
@drawing
def backends(table: Any, *, ax: Axes | None = None) -> Axes:
    """Draw the ratio of finish to bound as a bar for each run, with the runs of a backend together.

    Unlike `comparison`, this picture stays readable if all gaps are equal. Colours show sketches, sizes or
    collectives, whichever differ first. Runs without a schedule or a bound have their status instead of a
    bar.

    Parameters
    ----------
    table : DataFrame
        Result of `taccl.compare` or `taccl.sweep`.
    ax : Axes, optional
        Axes to draw on; by default those of a new figure.

    Raises
    ------
    InputError
        If the table has no rows, has more than 100, or lacks a column that these functions write.
    """
    rows = rows_of(table)
    if len(rows) > _MOST_BARS:
        said = f"found {len(rows)} runs; expected at most {_MOST_BARS}: select fewer"
        raise InputError(said, where="table")
    rows.sort(key=lambda row: row["backend"])  # the sort is stable, so runs of one backend keep their order
    shape_name, shapes = _shapes(rows)
    ax = axes(ax, height=min(12.0, 1.6 + 0.24 * len(rows)))
    for place, row in enumerate(rows):
        end, said, ink = 1.0, f" {row['status']}", INK
        if row["gap"] is not None:
            colour = OKABE_ITO[shapes.index(row[shape_name]) % len(OKABE_ITO)]
            ax.barh(place, row["gap"], left=1.0, height=0.7, color=colour)
            end, ink = 1 + row["gap"], "black"
            said = f" {end:.4g} ({format_us(row['finish_us'])})"
        ax.annotate(said, (end, place), fontsize=8, va="center", color=ink, annotation_clip=False)
    highest = max((row["gap"] for row in rows if row["gap"] is not None), default=0.0)
    ax.set_xlim(1.0, 1.0 + 1.25 * (highest or 0.1))
    ax.axvline(1.0, color=INK, linewidth=0.8)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    names = [shown(str(row["backend"])) for row in rows]
    if len(shapes) > 1:
        names = [f"{n}, {_shape_text(shape_name, r[shape_name])}" for n, r in zip(names, rows, strict=True)]
    if len({row.get("seed") for row in rows}) > 1:
        names = [f"{name}, seed {row['seed']}" for name, row in zip(names, rows, strict=True)]
    ax.set_yticks(range(len(rows)), names)
    ax.set_axisbelow(True)
    finish = "finish / bound (1 = proven optimal)"
    dress(ax, f"{format_count(len(rows), 'run')} by backend", finish, grid="x")
    return ax


def rows_of(table: Any) -> list[dict[str, Any]]:
    """Rows of a comparison as dictionaries; `InputError` if the table has none or lacks a column.

    A table with details has no column for the sketch if all rows have the same one; the sketch is then "".
    """
    missing = [name for name in _NEEDED if name not in getattr(table, "columns", ())]
    if missing:
        said = f"found a table without {', '.join(missing)}; give what taccl.compare or taccl.sweep returned"
        raise InputError(said, where="table")
    rows: list[dict[str, Any]] = table.astype(object).where(table.notna(), None).to_dict("records")
    if not rows:
        raise InputError("found a table without rows; expected at least one run", where="table")
    return [{"sketch": "", **row} for row in rows]


def _look(backend: int, shape: int, num_shapes: int) -> tuple[str, Any]:
    """Colour and marker of a run, distinct for each pair of a backend's and a shape's number."""
    again, colour = divmod(backend, len(OKABE_ITO))
    return OKABE_ITO[colour], style.mark(again * num_shapes + shape)


def _shapes(rows: Sequence[dict[str, Any]]) -> tuple[str, list[Any]]:
    """Name of the column that decides the marker of a run, and the different values in that column.

    The column is the first of sketch, size and collective whose value varies; else the sketch.
    """
    for name in ("sketch", "size_bytes", "collective"):
        values = list(dict.fromkeys(row.get(name) for row in rows))
        if len(values) > 1:
            return name, values
    return "sketch", [rows[0]["sketch"]]


def _shape_text(shape_name: str, value: Any) -> str:
    return format_size(int(value)) if shape_name == "size_bytes" and value else in_key(str(value))


def _key(
    ax: Axes, rows: Sequence[dict[str, Any]], backends: list[str], shape_name: str, shapes: list[Any]
) -> None:
    """Add a legend for colours and shapes, beside the picture."""
    from matplotlib.lines import Line2D

    key = []
    for number, backend in enumerate(backends):
        why = Counter(row["status"] for row in rows if row["backend"] == backend and row["gap"] is None)
        reasons = ", ".join(status if count == 1 else f"{count} {status}" for status, count in why.items())
        label = f"{backend} (x: {reasons})" if reasons else str(backend)
        key.append((*_look(number, 0, len(shapes)), label))
    for number, value in enumerate(shapes if len(shapes) > 1 else ()):
        key.append((GREY, style.mark(number), _shape_text(shape_name, value)))
    look: dict[str, Any] = {"linestyle": ""}
    style.legend(ax, [Line2D([], [], color=c, marker=m, label=text, **look) for c, m, text in key])


#: Columns of a table that identify the problem of a run; a table may lack some.
_LABELS = ("topology", "collective", "num_ranks", "sketch", "size_bytes", "chunks_per_rank", "seed")


@checked
@drawing
def performance_profile(table: Any, *, ax: Axes | None = None) -> Axes:
    """Draw the share of each backend's runs that finish within a factor x of their problem's best, over x.

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
        If the table has no rows, has no schedule, or lacks a column that these functions write.
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
    dress(ax, "performance profile of backends", "finish / best finish of the problem", "share of runs")
    remark(ax, format_count(len(problems), "problem"))
    return ax


_WORDS = {"": "whole", "reduce": "reduce phase", "broadcast": "broadcast phase"}


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
    return draw_trace(result.trace, result.schedule.problem.heading, ax=ax)


@drawing
def draw_trace(trace: Sequence[TraceEntry], title: str, *, ax: Axes | None = None) -> Axes:
    """Draw a search trace like `progress`, for a trace that comes without its `Result`."""
    if not any(entry.finish_us is not None for entry in trace):
        said = "found no record of a search, as for a baseline; give a schedule that `taccl synthesize` wrote"
        raise InputError(said, where="progress")
    ax = axes(ax, height=4.0)
    phases = list(dict.fromkeys(entry.phase for entry in trace))
    several = len(phases) > 1
    last = max(entry.seconds for entry in trace)
    for number, phase in enumerate(phases):
        word, colour = (f"{_WORDS.get(phase, phase)}: " if several else ""), OKABE_ITO[number]
        some = [entry for entry in trace if entry.phase == phase]
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
    dress(ax, title, "seconds since the start", "finish in us")
    return ax


def trace_in(details: Mapping[str, Any]) -> Trace:
    """Search trace from the details in a schedule file; empty unless every entry is valid."""
    listed = details.get("trace")
    trace = []
    for each in listed if isinstance(listed, list) else ():
        if not isinstance(each, dict) or not isinstance(_phase_of(each), str):
            return Trace()
        seconds, finish_us, bound_us = (each.get(name) for name in ("seconds", "finish_us", "bound_us"))
        known = [time for time in (finish_us, bound_us) if time is not None]
        if not all(type(time) in (int, float) and 0 <= time < 1e15 for time in (seconds, *known)):
            return Trace()
        trace.append(TraceEntry(seconds, finish_us, bound_us, _phase_of(each)))  # type: ignore[arg-type]
    return Trace(trace)


def _phase_of(entry: Mapping[str, Any]) -> Any:
    """Phase of an entry of a saved trace; earlier files name it ``half``, and the broadcast ``spread``."""
    phase = entry.get("phase", entry.get("half", ""))
    return "broadcast" if phase == "spread" else phase
