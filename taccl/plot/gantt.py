"""Charts over time: sends of a schedule, a step of computation and sends, load of network dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taccl._internal.arguments import Count, checked
from taccl._internal.arrays import Floats, Ints
from taccl._internal.units import BYTES_PER_MB, format_count, format_us
from taccl.plot import style
from taccl.plot.style import (
    GREY,
    INK,
    OKABE_ITO,
    axes,
    drawing,
    dress,
    headline,
    legend,
    remark,
    schedule_of,
    time_rows,
)
from taccl.problem.costs import hold_columns, link_ends
from taccl.schedule.bars import SEVERAL, Bars, By, bars_of
from taccl.schedule.implicit_schedule import ImplicitSchedule
from taccl.schedule.schedule import Schedule
from taccl.synthesis.result import Result
from taccl.topology.products import Dimensions
from taccl.topology.recognise import dimensions as find_dimensions
from taccl.topology.topology import Topology

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Patch

    from taccl.workload.step import Step


#: `COPIES`: SVG id of the group of bars that stand for copies.
#: `REDUCTIONS`: SVG id of the group of bars that stand for reductions.
COPIES, REDUCTIONS = "copies", "reductions"
#: Max bars that SVG and PDF hold as shapes; more become one raster image.
MOST_SHAPES = 8000
_ROW_INCHES = 0.17
#: Hues that remain distinct when lightened, unlike black.
_HUES = (*OKABE_ITO[:-1], "#6B4226")
#: Share of white in the colours of the first group of ranks (usually a node), and of the second group.
_WHITE = (0.0, 0.45)


@checked
def gantt(
    schedule: Result | Schedule, by: By = "link", *, max_rows: Count = 48, ax: Axes | None = None
) -> Axes:
    """Draw a bar for each send, in rows by link, resource or rank; reductions are hatched.

    The colour shows the rank where the data starts, or the root of a sum.

    Parameters
    ----------
    schedule : Result or Schedule
        The schedule; for a result, its bound is drawn as well.
    by : {"link", "resource", "rank"}
        Meaning of the rows. A send is in the row of its link, of the sending rank, or of each resource that
        it holds, for as long as it holds it.
    max_rows : int
        Max rows. If there are more, the busiest are shown, and the picture says so.
    ax : Axes, optional
        Axes to draw on; by default those of a new figure.

    Raises
    ------
    InputError
        If an option is invalid, or the schedule has too many transfers to list.
    """
    whole = schedule_of(schedule)
    bound_us = schedule.bound_us if isinstance(schedule, Result) else None
    bars = bars_of(whole, by, max_rows=max_rows)
    return draw_bars(whole, bars, by, bound_us=bound_us, ax=ax)


@drawing
def draw_bars(
    schedule: Schedule,
    bars: Bars,
    by: By,
    *,
    bound_us: float | None = None,
    is_image: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Draw a Gantt chart, as `gantt` does, from bars that `bars_of` has returned.

    - `is_image`: True to make the bars one image in SVG and PDF, even if they are few.
    """
    finish_us = schedule.finish_us
    ax = axes(ax, height=rows_height(len(bars.rows)))
    title = "root of the sum" if schedule.problem.collective.combining else "rank where the data starts"
    is_image |= len(bars.row) > MOST_SHAPES
    _bars(ax, bars, title, schedule.problem.topology, is_image=is_image)
    labels = [name if len(name) <= 40 else f"{name[:37]}..." for name in bars.rows]
    style.time_rows(ax, labels, finish_us)
    ax.spines["left"].set_visible(False)
    ax.set_axisbelow(True)
    finish = f"finish {finish_us:.4g} us{schedule.predicted_text}"
    if bound_us:
        ax.axvline(bound_us, color=INK, linewidth=0.8, linestyle="--")
        finish += f", bound {bound_us:.4g} us (dashed)"
    dress(ax, f"{schedule.problem.heading}\nsends by {by}, {finish}", "time in us", grid="x")
    if bars.num_rows > len(bars.rows):
        hidden = format_count(bars.num_hidden, "bar")
        remark(ax, f"the {len(bars.rows)} busiest of {bars.num_rows} {by}s; {hidden} not shown")
    return ax


def rows_height(num_rows: int) -> float:
    """Height in inches of a picture with `num_rows` rows."""
    return min(12.0, max(2.6, 1.4 + _ROW_INCHES * num_rows))


def _bars(ax: Axes, bars: Bars, title: str, topology: Topology, *, is_image: bool) -> None:
    """Add a collection of rectangles for copies, one for reductions, and a legend for their colours."""
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch

    height = 0.82 / bars.num_lanes
    top = bars.row - 0.41 + bars.lane * height
    corners = _corners(bars.start_us, bars.end_us, top, top + height)
    colours, key = _colours(ax, bars.origin, title, topology)
    line = 0.4 if len(bars.row) <= MOST_SHAPES // 4 else 0.0
    for name, some in ((COPIES, ~bars.reduce), (REDUCTIONS, bars.reduce)):
        if not some.any():
            continue
        hatch = "/////" if name == REDUCTIONS else None
        drawn = PolyCollection(
            corners[some], facecolors=colours[some], edgecolors="white", linewidths=line, hatch=hatch,
            rasterized=is_image,
        )  # fmt: skip
        drawn.set_gid(name)
        ax.add_collection(drawn, autolim=False)
    if key:
        columns = -(-len(key) // len(OKABE_ITO))
        beside = style.legend(ax, key, title=title, title_fontsize=8, handlelength=1.2, ncols=columns)
        ax.add_artist(beside)
        beside.set_clip_on(False)  # else the layout leaves no room for it
    above = [Patch(facecolor=GREY, label="several")] if (bars.origin == SEVERAL).any() else []
    if bars.reduce.any():
        above.append(Patch(facecolor=GREY, edgecolor="white", hatch="/////", label="reduced on arrival"))
    if above:
        style.legend(ax, above, loc="lower right", ncols=2, borderaxespad=0.1, handlelength=1.6)


def _corners(left: Any, right: Any, top: Any, bottom: Any) -> Any:
    """Corners of rectangles, (count, 4, 2), as a single collection of them draws faster than one by one."""
    pairs = ((left, top), (right, top), (right, bottom), (left, bottom))
    return np.stack([np.stack(pair, axis=1) for pair in pairs], axis=1)


def _shades(topology: Topology, ranks: list[int]) -> dict[int, str]:
    """{rank: colour}; empty if the nodes are too many or too large for distinct colours.

    Up to eight ranks have the colours of the palette. With more ranks, the local rank decides the hue, and
    ranks of a second node have lighter colours.
    """
    from matplotlib.colors import to_hex, to_rgb

    if len(ranks) <= len(OKABE_ITO):
        return dict(zip(ranks, OKABE_ITO, strict=False))
    places = {rank: divmod(topology.local_rank[rank], len(_HUES)) for rank in ranks}
    groups = sorted({(topology.node_of_rank[rank], turn) for rank, (turn, _) in places.items()})
    if len(groups) > len(_WHITE):
        return {}
    white = dict(zip(groups, _WHITE, strict=False))
    shades = {}
    for rank, (turn, hue) in places.items():
        part = white[topology.node_of_rank[rank], turn]
        red, green, blue = (part + (1 - part) * each for each in to_rgb(_HUES[hue]))
        shades[rank] = to_hex((red, green, blue))
    return shades


def _colours(ax: Axes, origin: Ints, title: str, topology: Topology) -> tuple[Floats, list[Patch]]:
    """RGBA colour of each bar, as a (bars, 4) array, and the entries of the legend.

    Few ranks have one colour each. Many ranks share a colour scale, which has an axis instead of entries.
    """
    from matplotlib import colormaps
    from matplotlib.colors import Normalize, to_rgba
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    known = np.unique(origin[origin != SEVERAL]).tolist()
    shades = _shades(topology, known)
    if shades or not known:
        rgba = {each: to_rgba(shades[each]) for each in known} | {SEVERAL: to_rgba(GREY)}
        colours = np.array([rgba[each] for each in origin.tolist()]).reshape(-1, 4)
        return colours, [Patch(facecolor=shades[each], label=str(each)) for each in known]
    scale = Normalize(known[0], known[-1])
    axis = style.scale_beside(ax, scale, "cividis", title, aspect=30, shrink=0.8)
    axis.set_major_locator(MaxNLocator(integer=True))
    colours = colormaps["cividis"](scale(origin.astype(float)))
    return np.where((origin == SEVERAL)[:, None], to_rgba(GREY), colours), []


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
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch

    shown = min(step.workload.num_ranks, max_ranks)
    drawn = axes(ax, height=rows_height(2 * shown))

    def boxes(row: Any, start: Any, end: Any, **look: Any) -> None:
        corners = _corners(start, end, row - 0.4, row + 0.4)
        drawn.add_collection(PolyCollection(corners, **look), autolim=False)

    hues = OKABE_ITO[:-1]
    names = list(dict.fromkeys(each.operation for each in step.tiles))
    for number, name in enumerate(names):
        tiles = [each for each in step.tiles if each.operation == name and each.rank < shown]
        start, end = (
            np.array([float(getattr(each, side)) for each in tiles]) for side in ("start_us", "end_us")
        )
        row, hue = np.array([2 * each.rank for each in tiles]), hues[number % len(hues)]
        boxes(row, start, end, facecolors=hue, edgecolors="white", linewidths=0.3)
    if step.schedule.num_sends:
        links, per_us = step.topology.links, step.schedule.problem.costs.ticks_per_us
        source = np.array([link.src for link in links])[step.schedule.link]
        here = source < shown
        start, end = (column[here] / per_us for column in (step.schedule.start, step.schedule.end))
        boxes(2 * source[here] + 1, start, end, facecolors=GREY, alpha=0.5)
    time_rows(
        drawn, [f"{what} {rank}" for rank in range(shown) for what in ("compute", "send")], step.finish_us
    )
    drawn.set_xlabel("time in us")
    headline(drawn, f"{step.workload.name} on {step.topology.name}\nfinish {step.finish_us:.4g} us")
    keys = [Patch(color=hues[i % len(hues)], label=name) for i, name in enumerate(names[: len(hues)])]
    legend(drawn, [*keys, Patch(color=GREY, alpha=0.5, label="sends")])
    if shown < step.workload.num_ranks:
        remark(drawn, f"the first {shown} of {format_count(step.workload.num_ranks, 'rank')}")
    return drawn


_BINS = 200


@checked
@drawing
def dimensions(schedule: Schedule | ImplicitSchedule, *, ax: Axes | None = None) -> Axes:
    """Draw the busy share of each dimension of the network over time, one row per dimension.

    To compare two schedules side by side, for example with different orders of dimensions, pass an axes for
    each.

    Parameters
    ----------
    schedule : Schedule or ImplicitSchedule
        A schedule on a product of dimensions (`taccl.dimensions`).
    ax : Axes, optional
        Axes to draw on; by default those of a new figure.

    Raises
    ------
    TopologyError
        If the topology is not a product.
    """
    dims, time_us, share = dimension_use(schedule)
    ax = axes(ax, height=1.2 + 0.9 * len(dims))
    begin_us = np.concatenate(([0], time_us))
    for k in range(len(dims)):
        base = len(dims) - 1 - k
        level = np.append(share[k], share[k][-1:])
        ax.fill_between(begin_us, base, base + 0.85 * level, step="post", color=OKABE_ITO[k % len(OKABE_ITO)])
        ax.axhline(base, color="#cccccc", linewidth=0.8)
    ax.set_yticks([len(dims) - 0.6 - k for k in range(len(dims))])
    ax.set_yticklabels([f"{each}\n{share[k].mean():.0%} busy" for k, each in enumerate(dims.dims)])
    ax.set_ylim(-0.05, len(dims))
    ax.set_xlim(0, schedule.finish_us or 1)
    ax.set_xlabel("time in us")
    name = schedule.collective if isinstance(schedule, ImplicitSchedule) else schedule.problem.collective.name
    size = f", {schedule.size_bytes / BYTES_PER_MB:.4g} MB" if schedule.size_bytes else ""
    headline(ax, f"{name}{size}: {schedule.producer}, {format_us(schedule.finish_us)}")
    return ax


def dimension_use(
    schedule: Schedule | ImplicitSchedule, *, num_bins: int = _BINS
) -> tuple[Dimensions, Floats, Floats]:
    """Busy share of each dimension of the network, in equal time bins.

    - `num_bins`: Number of bins from 0 to the finish.

    Returns the dimensions, the ends of the bins in us, (num_bins,), and the shares, (dimensions, num_bins).
    """
    if isinstance(schedule, ImplicitSchedule):
        dims, shape, ticks = find_dimensions(schedule.host), schedule.translations, schedule.ticks
        to = np.array([each.dst for each in shape.classes])
        axis_of, held_of = (dims.digits(to) > 0).argmax(axis=0), [max(h[1] for h in x) for x in ticks.holds]
        # Under all translations each rank makes every send of the pattern once, so one rank stands for all.
        count = [each.links_per_rank for each in dims.dims]
        axis, held = axis_of[schedule.pattern.link_class], np.array(held_of)[schedule.pattern.link_class]
        begin, per_us = schedule.pattern.start, ticks.ticks_per_us
    else:
        problem = schedule.problem
        dims, columns = find_dimensions(problem.topology), hold_columns(problem.topology)
        costs = problem.costs
        src, dst = (dims.digits(ends) for ends in link_ends(problem.topology))
        axis_of = (src != dst).argmax(axis=0)
        links = np.bincount(axis_of, minlength=len(dims))
        count = [
            dims.num_ranks if each.kind == "switch" else int(links[k]) for k, each in enumerate(dims.dims)
        ]
        send, hold = columns.of_sends(schedule.link.astype(np.int64))
        units = costs.chunk_units[schedule.chunk[send]]
        held = np.zeros(len(schedule.link), np.int64)
        np.maximum.at(held, send, costs.hold_alpha[hold] + units * costs.hold_beta[hold])
        axis, begin, per_us = axis_of[schedule.link], schedule.start, costs.ticks_per_us
    time = np.linspace(0, schedule.finish_ticks, num_bins + 1)
    share = np.zeros((len(dims), num_bins))
    for k in range(len(dims)):
        some = axis == k
        done = _busy(time, begin[some]) - _busy(time, begin[some] + held[some])
        share[k] = np.diff(done) / (count[k] * np.diff(time))
    return dims, time[1:] / per_us, share


def _busy(time: Floats, begins: Ints) -> Floats:
    """For each entry of `time`, the sum of the times elapsed since all earlier entries of `begins`."""
    begins = np.sort(begins)
    count = np.searchsorted(begins, time)
    so_far = np.concatenate(([0], np.cumsum(begins, dtype=np.float64)))
    return np.asarray(count * time - so_far[count])
