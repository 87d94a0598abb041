"""Common parts of all pictures: colours, axes, and byte-identical files."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from taccl.arguments import checked
from taccl.errors import InputError
from taccl.names import shown, shown_lines
from taccl.problem import Problem
from taccl.schedule.compact import CompactSchedule
from taccl.schedule.schedule import Schedule
from taccl.synthesis.result import Result
from taccl.units import format_size

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

#: M. Okabe and K. Ito, "Color Universal Design" (2008), in an order in which neighbours differ most.
OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
GREY = "#9a9a9a"
INK = "#333333"
FORMATS = ("svg", "png", "pdf")

#: Nothing in a file may tell when or by what version it was written.
_METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
_RULES: Any = {"svg.hashsalt": "taccl", "svg.fonttype": "none", "text.parse_math": False}
_DOTS_PER_INCH = 150
#: Memory in bytes that a schedule may need to be drawn.
_MOST_EXPANDED_BYTES = 2 * 10**9

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


def drawing(function: Callable[_Given, _Made]) -> Callable[_Given, _Made]:
    """The function, whose texts are taken as they are: a dollar in a name begins no formula."""

    @wraps(function)
    def drawn(*given: _Given.args, **named: _Given.kwargs) -> _Made:
        from matplotlib import interactive, is_interactive, rc_context

        with rc_context(_RULES):
            made = function(*given, **named)
            # The first figure loads the backend. In a notebook it turns on that every figure is shown,
            # which must outlive the rules.
            shows = is_interactive()
        interactive(shows)
        return made

    return drawn


def axes(ax: Axes | None, *, width: float = 9.0, height: float = 5.0) -> Axes:
    """The axes given, or those of a new figure in inches, which a notebook then shows."""
    if ax is None:
        from matplotlib import pyplot

        _, ax = pyplot.subplots(figsize=(width, height), layout="constrained")
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)
    return ax


def figure(*, width: float = 9.0, height: float = 5.0) -> Axes:
    """Axes of a figure that nothing shows and nothing keeps."""
    from matplotlib.figure import Figure

    made: Axes = Figure(figsize=(width, height), layout="constrained").subplots()
    return made


def mark(number: int) -> Any:
    """The marker of that number: those of `MARKS` first, then stars of ever more points."""
    return MARKS[number] if number < len(MARKS) else (number - len(MARKS) + 4, 1, 0)


def plain_log(axis: Axis) -> None:
    """Numbers without powers at 1, 2 and 5 of each decade of a logarithmic axis."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def headline(ax: Axes, text: str) -> None:
    """The title, above the left end of the axes."""
    ax.set_title(shown_lines(text), loc="left", fontsize=10)


def dress(ax: Axes, title: str, x: str, y: str = "", *, grid: Literal["both", "x"] = "both") -> None:
    """The title, the names of the axes, and faint lines at the marks of one axis, or of both."""
    headline(ax, title)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.grid(axis=grid, linewidth=0.5, alpha=0.4)


def time_rows(ax: Axes, labels: Sequence[str], finish_us: float) -> None:
    """Rows from the top, with a label each, over the time up to the finish, which a line marks."""
    count = len(labels)
    ax.set_ylim(max(1, count) - 0.4, -0.6)
    ax.set_xlim(0, finish_us * 1.01 or 1)
    ax.set_yticks(range(count), labels, fontsize=8 if count <= 32 else 7 if count <= 48 else 6)
    ax.tick_params(axis="y", length=0)
    ax.axvline(finish_us, color=INK, linewidth=0.8)


def legend(ax: Axes, handles: Sequence[Artist], **look: Any) -> Any:
    """A key to the right of the axes, level with their top."""
    place: Any = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.0}
    return ax.legend(handles=handles, fontsize=8, frameon=False, **place | look)


def scale_beside(ax: Axes, scale: Normalize, colours: str, title: str, **look: Any) -> Axis:
    """The key to colours of a scale, to the right of the axes; its axis."""
    from matplotlib.cm import ScalarMappable

    bar = ax.figure.colorbar(ScalarMappable(scale, colours), ax=ax, pad=0.01, fraction=0.03, **look)
    bar.set_label(title, fontsize=8)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)
    return bar.ax.yaxis


def remark(ax: Axes, text: str) -> None:
    """Note below the picture on data that is not shown."""
    if text:
        old = ax.get_xlabel()
        ax.set_xlabel(f"{old}\n{text}" if old else text)


@checked
def render(picture: Axes | Figure, format: str = "svg") -> bytes:
    """The content of a file of a picture; of the same picture, the same bytes.

    Parameters
    ----------
    format : {"svg", "png", "pdf"}

    Raises
    ------
    InputError
        If the format is none of these.
    """
    from matplotlib import rc_context

    if format not in FORMATS:
        raise InputError(f"found {format!r}; expected one of {', '.join(FORMATS)}", where="format")
    drawn: Any = picture
    while not hasattr(drawn, "savefig"):  # axes may be in a part of a figure
        drawn = drawn.figure
    buffer = io.BytesIO()
    with rc_context(_RULES), warnings.catch_warnings():
        if format == "svg":  # which holds text and no shapes of letters
            warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        drawn.savefig(buffer, format=format, dpi=_DOTS_PER_INCH, metadata=_METADATA[format])
    return buffer.getvalue()


def in_key(name: str) -> str:
    """A name as it stands in a key, from which matplotlib leaves out what begins with an underscore."""
    return f" {shown(name)}" if name.startswith("_") else shown(name)


@checked
def save(picture: Axes | Figure, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a picture to a file, whole or not at all; the end of its name says in which format.

    Parameters
    ----------
    picture : Axes or Figure
        As a function of `taccl.plot` returned it.
    path : path
        Ends in ``.svg``, ``.png`` or ``.pdf``.
    overwrite : bool
        Whether a file of that name may be replaced.

    Raises
    ------
    InputError
        If the name ends otherwise, or the file cannot be written.
    """
    from taccl.formats.files import check_writable, write_whole

    format = format_of(path)
    check_writable(path, overwrite=overwrite)
    write_whole(path, render(picture, format), overwrite=overwrite)


def format_of(path: str | os.PathLike[str]) -> str:
    """The format that a file's name asks for."""
    ending = os.path.splitext(os.fspath(path))[1].lower().removeprefix(".")
    if ending not in FORMATS:
        known = ", ".join("." + each for each in FORMATS)
        found = f"the ending {ending!r}" if ending else "no ending"
        raise InputError(f"found {found}; expected a name that ends in {known}", where=os.fspath(path))
    return ending


def schedule_of(found: Result | Schedule | CompactSchedule) -> Schedule:
    """The schedule of a result, or the one given, with every transfer."""
    schedule = found.schedule if isinstance(found, Result) else found
    if isinstance(schedule, CompactSchedule):
        return schedule.expand(memory_limit_bytes=_MOST_EXPANDED_BYTES)
    return schedule


def title_of(problem: Problem) -> str:
    """Collective, topology and size of a problem, as a title."""
    size = f", {format_size(problem.size_bytes)}" if problem.size_bytes else ""
    sketch = f", sketch {shown(problem.clauses.name)}" if problem.clauses.name else ""
    return f"{problem.title}{size}{sketch}"
