"""Gantt chart of a schedule, with a bar for each send."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arguments import Count, checked
from taccl._internal.units import format_count
from taccl.plot import style
from taccl.plot.style import GREY, INK, OKABE_ITO, axes, drawing, dress, remark, schedule_of, title_of
from taccl.schedule.bars import SEVERAL, Bars, By, bars_of
from taccl.schedule.schedule import Schedule
from taccl.synthesis.result import Result
from taccl.topology.topology import Topology

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Patch

#: Ids of the two groups of bars in an SVG file.
COPIES, REDUCTIONS = "copies", "reductions"
#: Max bars that SVG and PDF hold as shapes; more become one raster image.
MOST_SHAPES = 8000
_ROW_INCHES = 0.17
#: Hues that remain distinct when lightened, unlike black.
_HUES = (*OKABE_ITO[:-1], "#6B4226")
#: Share of white in the hues of the first and the second group of ranks.
_WHITE = (0.0, 0.45)


@checked
def gantt(
    schedule: Result | Schedule,
    by: By = "link",
    *,
    max_rows: Count = 48,
    ax: Axes | None = None,
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
    """Draw bars from `bars_of`; otherwise as `gantt`.

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
    dress(ax, f"{title_of(schedule.problem)}\nsends by {by}, {finish}", "time in us", grid="x")
    if bars.num_rows > len(bars.rows):
        hidden = format_count(bars.num_hidden, "bar")
        remark(ax, f"the {len(bars.rows)} busiest of {bars.num_rows} {by}s; {hidden} not shown")
    return ax


def rows_height(num_rows: int) -> float:
    """Height in inches of a picture with `num_rows` rows."""
    return min(12.0, max(2.6, 1.4 + _ROW_INCHES * num_rows))


def _bars(ax: Axes, bars: Bars, title: str, topology: Topology, *, is_image: bool) -> None:
    """Add a collection of rectangles for copies, one for reductions, and a key to their colours."""
    from matplotlib.collections import PolyCollection
    from matplotlib.patches import Patch

    height = 0.82 / bars.num_lanes
    top = bars.row - 0.41 + bars.lane * height
    left, right, bottom = bars.start_us, bars.end_us, top + height
    pairs = ((left, top), (right, top), (right, bottom), (left, bottom))
    corners: Any = np.stack([np.stack(pair, axis=1) for pair in pairs], axis=1)
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


def _shades(topology: Topology, ranks: list[int]) -> dict[int, str]:
    """{rank: colour}; hues follow the place in the node, and a second node has lighter ones.

    Empty if the nodes are too many or too large for distinct shades.
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


def _colours(
    ax: Axes, origin: NDArray[np.int64], title: str, topology: Topology
) -> tuple[NDArray[np.float64], list[Patch]]:
    """RGBA colour of each bar, (bars, 4), and the entries of the key.

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
