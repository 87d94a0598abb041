"""The picture of a comparison: gap over seconds, a mark for every run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from taccl.arguments import checked
from taccl.errors import InputError
from taccl.plot import style
from taccl.plot.style import GREY, MARKS, OKABE_ITO, axes, drawing, headline, in_key, plain_log, remark
from taccl.units import format_count, format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

__all__ = ["comparison"]

_NEEDED = ("backend", "sketch", "seconds", "finish_us", "bound_us", "gap", "status")
#: Where a run without a schedule is marked, as a part of the height.
_TOP = 0.95


@checked
@drawing
def comparison(table: Any, *, ax: Axes | None = None) -> Axes:
    """A mark for every run: its gap over its seconds; colours are backends, shapes are sketches or sizes.

    Where the bounds of runs differ, larger marks have larger bounds. Runs without a schedule, or without a
    bound, are crosses at the top, and the key says why.

    Parameters
    ----------
    table : DataFrame
        Of `taccl.compare` or `taccl.sweep`.
    ax : Axes, optional
        Where to draw; a new figure unless given.

    Raises
    ------
    InputError
        If the table has no rows, or lacks one of their columns.
    """
    from matplotlib.patches import Rectangle

    missing = [name for name in _NEEDED if name not in getattr(table, "columns", ())]
    if missing:
        said = f"found a table without {', '.join(missing)}; give what taccl.compare or taccl.sweep returned"
        raise InputError(said, where="table")
    rows: list[dict[str, Any]] = table.astype(object).where(table.notna(), None).to_dict("records")
    if not rows:
        raise InputError("found a table without rows; expected a run at least", where="table")
    ax = axes(ax, height=5.0)
    shape_name, shapes = _shapes(rows)
    backends = list(dict.fromkeys(row["backend"] for row in rows))
    bounds = [row["bound_us"] for row in rows if row["bound_us"]]
    largest = max(bounds, default=1.0)
    one_bound = len({round(bound, 6) for bound in bounds}) <= 1
    ax.set_xscale("log")
    highest = max((row["gap"] for row in rows if row["gap"] is not None), default=0.0)
    if highest > 2:
        ax.set_yscale("symlog", linthresh=0.1)
    for row in rows:
        colour = OKABE_ITO[backends.index(row["backend"]) % len(OKABE_ITO)]
        seconds = max(row["seconds"] or row.get("time_limit_s") or 1e-3, 1e-3)
        if row["gap"] is None or row["finish_us"] is None:
            ax.plot(
                seconds, _TOP, marker="x", color=colour, markersize=8, markeredgewidth=2, linestyle="",
                transform=ax.get_xaxis_transform(),
            )  # fmt: skip
            continue
        area = 55.0 if one_bound else 25 + 90 * (row["bound_us"] / largest) ** 0.5
        mark = MARKS[shapes.index(row[shape_name]) % len(MARKS)]
        ax.scatter(
            seconds, row["gap"], s=area, marker=mark, color=colour, alpha=0.8, edgecolors="white",
            linewidths=0.6, zorder=3,
        )  # fmt: skip
    _key(ax, rows, backends, shape_name, shapes)
    failed = sum(row["gap"] is None for row in rows)
    ax.set_ylim(bottom=-0.04 * (highest or 0.1), top=(highest or 0.1) * (1.3 if failed else 1.12))
    ax.yaxis.set_major_formatter("{x:.1%}" if highest < 0.1 else "{x:.0%}")
    plain_log(ax.xaxis)
    ax.grid(linewidth=0.5, alpha=0.4)
    ax.set_xlabel("seconds of the run")
    ax.set_ylabel("gap: (finish - bound) / bound")
    if failed:
        band = Rectangle((0, 0.9), 1, 0.1, transform=ax.transAxes, color=GREY, alpha=0.15, linewidth=0)
        ax.add_patch(band)
        ax.text(0.01, 0.905, "no schedule", transform=ax.transAxes, fontsize=8, va="bottom")
    title = "gap over time"
    if len({row.get("collective") for row in rows} | {None}) == 2 and rows[0].get("topology"):
        title = f"{rows[0]['collective']} on {rows[0]['topology']}: {title}"
    headline(ax, f"{title}\n{format_count(len(rows), 'run')}, {len(rows) - failed} with a schedule and a gap")
    remark(ax, "" if one_bound else "larger marks have larger bounds")
    return ax


def _shapes(rows: Sequence[dict[str, Any]]) -> tuple[str, list[Any]]:
    """The column that shapes tell apart: sketches, or sizes where there is one sketch; and its values."""
    for name in ("sketch", "size_bytes", "collective"):
        values = list(dict.fromkeys(row.get(name) for row in rows))
        if len(values) > 1:
            return name, values
    return "sketch", [rows[0]["sketch"]]


def _key(
    ax: Axes, rows: Sequence[dict[str, Any]], backends: list[str], shape_name: str, shapes: list[Any]
) -> None:
    """What colours and shapes mean, beside the picture."""
    from matplotlib.lines import Line2D

    key: list[tuple[str, str, str]] = []
    for number, backend in enumerate(backends):
        why = Counter(row["status"] for row in rows if row["backend"] == backend and row["gap"] is None)
        reasons = ", ".join(status if count == 1 else f"{count} {status}" for status, count in why.items())
        label = f"{backend} (x: {reasons})" if reasons else str(backend)
        key.append(("o", OKABE_ITO[number % len(OKABE_ITO)], label))
    for number, value in enumerate(shapes if len(shapes) > 1 else ()):
        shown = format_size(int(value)) if shape_name == "size_bytes" and value else in_key(str(value))
        key.append((MARKS[number % len(MARKS)], GREY, shown))
    handles = [Line2D([], [], marker=m, linestyle="", color=colour, label=text) for m, colour, text in key]
    style.legend(ax, handles)
