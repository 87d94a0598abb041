"""Pictures of a comparison: gaps of runs over time, and ratios of finish to bound by backend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from taccl._internal.arguments import checked
from taccl._internal.names import shown
from taccl._internal.units import format_count, format_size, format_us
from taccl.errors import InputError
from taccl.plot import style
from taccl.plot.style import GREY, INK, OKABE_ITO, axes, drawing, dress, in_key, plain_log, remark

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NEEDED = ("backend", "sketch", "seconds", "finish_us", "bound_us", "gap", "status")
#: Max bars in a picture.
_MOST_BARS = 100
#: Height at which a run without a schedule is marked, as a share of the axes' height.
_TOP = 0.95


@checked
@drawing
def comparison(table: Any, *, ax: Axes | None = None) -> Axes:
    """Draw the gap of each run over its seconds; colours are backends, shapes are sketches or sizes.

    If the bounds of runs differ, larger marks have larger bounds. Runs without a schedule or a bound are
    crosses at the top, and the key states the reason.

    Parameters
    ----------
    table : DataFrame
        Result of `taccl.compare` or `taccl.sweep`.
    ax : Axes, optional
        Axes to draw on; by default those of a new figure.

    Raises
    ------
    InputError
        If the table has no rows, or lacks one of their columns.
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
    remark(ax, "" if one_bound else "larger marks have larger bounds")
    return ax


@checked
@drawing
def backends(table: Any, *, ax: Axes | None = None) -> Axes:
    """Draw the ratio of finish to bound as a bar for each run, in rows by backend.

    Unlike `comparison`, this picture stays readable if all gaps are equal. Colours are sketches or sizes.
    Runs without a schedule or a bound have their status instead of a bar.

    Parameters
    ----------
    table : DataFrame
        Result of `taccl.compare` or `taccl.sweep`.
    ax : Axes, optional
        Axes to draw on; by default those of a new figure.

    Raises
    ------
    InputError
        If the table has no rows, lacks one of their columns, or has more rows than a picture shows.
    """
    rows = rows_of(table)
    if len(rows) > _MOST_BARS:
        said = f"found {len(rows)} runs; expected at most {_MOST_BARS}: choose some of them"
        raise InputError(said, where="table")
    rows.sort(key=lambda row: row["backend"])  # stable: runs of one backend keep their order
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
    finish = "finish over bound; 1 is proven, and no schedule is below"
    dress(ax, f"{format_count(len(rows), 'run')} by backend", finish, grid="x")
    return ax


def rows_of(table: Any) -> list[dict[str, Any]]:
    """Rows of a comparison as dictionaries; `InputError` if the table has none or lacks a column."""
    missing = [name for name in _NEEDED if name not in getattr(table, "columns", ())]
    if missing:
        said = f"found a table without {', '.join(missing)}; give what taccl.compare or taccl.sweep returned"
        raise InputError(said, where="table")
    rows: list[dict[str, Any]] = table.astype(object).where(table.notna(), None).to_dict("records")
    if not rows:
        raise InputError("found a table without rows; expected a run at least", where="table")
    return rows


def _look(backend: int, shape: int, num_shapes: int) -> tuple[str, Any]:
    """Colour and marker of a backend and a shape, by their numbers; distinct for each pair."""
    again, colour = divmod(backend, len(OKABE_ITO))
    return OKABE_ITO[colour], style.mark(again * num_shapes + shape)


def _shapes(rows: Sequence[dict[str, Any]]) -> tuple[str, list[Any]]:
    """Column that shapes show, and its values: the first of sketch, size and collective that varies."""
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
    """Add the key to colours and shapes, beside the picture."""
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
