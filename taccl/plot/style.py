"""Common parts of all pictures: colours, axes, and byte-identical files."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar

from taccl._internal.address_space import require_address_space
from taccl._internal.arguments import checked
from taccl._internal.names import shown, shown_lines
from taccl.errors import InputError
from taccl.schedule.schedule import Schedule
from taccl.synthesis.result import Result

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

_REMARK = 90  #: Max characters of a line below a picture.
#: Palette of M. Okabe and K. Ito, "Color Universal Design" (2008), ordered so that neighbours differ most.
OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
GREY = "#9a9a9a"
INK = "#333333"
FORMATS = ("svg", "png", "pdf")

#: {format: metadata to omit}, so that files show neither their date nor the version that wrote them.
_METADATA: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
_RULES: Any = {"svg.hashsalt": "taccl", "svg.fonttype": "none", "text.parse_math": False}
_DOTS_PER_INCH = 150
#: Max memory in bytes for the columns of a schedule that is drawn.
_MOST_LISTED_BYTES = 2 * 10**9

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


def drawing(function: Callable[_Given, _Made]) -> Callable[_Given, _Made]:
    """Let a function draw under fixed matplotlib settings, in which a dollar in a name starts no formula."""

    @wraps(function)
    def drawn(*given: _Given.args, **named: _Given.kwargs) -> _Made:
        require_address_space()  # without enough memory, numpy's BLAS would end the process
        from matplotlib import interactive, is_interactive, rc_context

        with rc_context(_RULES):
            made = function(*given, **named)
            # In a notebook, loading the backend turns interactive mode on, which must outlast these settings.
            shows = is_interactive()
        interactive(shows)
        return made

    return drawn


def axes(ax: Axes | None, *, width: float = 9.0, height: float = 5.0) -> Axes:
    """The axes given, or those of a new pyplot figure (size in inches), which a notebook then shows."""
    if ax is None:
        from matplotlib import pyplot

        _, ax = pyplot.subplots(figsize=(width, height), layout="constrained")
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)
    return ax


def figure(*, width: float = 9.0, height: float = 5.0) -> Axes:
    """Axes of a new figure (size in inches) outside pyplot, which is neither shown nor kept."""
    from matplotlib.figure import Figure

    made: Axes = Figure(figsize=(width, height), layout="constrained").subplots()
    return made


def mark(number: int) -> Any:
    """Matplotlib marker by number: first those of `MARKS`, then stars with increasing numbers of points."""
    return MARKS[number] if number < len(MARKS) else (number - len(MARKS) + 4, 1, 0)


def plain_log(axis: Axis) -> None:
    """Label a logarithmic axis with plain numbers at 1, 2 and 5 of each decade."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def headline(ax: Axes, text: str) -> None:
    """Set the title, left-aligned above the axes."""
    ax.set_title(shown_lines(text), loc="left", fontsize=10)


def dress(ax: Axes, title: str, x: str, y: str = "", *, grid: Literal["both", "x"] = "both") -> None:
    """Set the title, the labels of the axes, and faint grid lines along one or both axes."""
    headline(ax, title)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.grid(axis=grid, linewidth=0.5, alpha=0.4)


def time_rows(ax: Axes, labels: Sequence[str], finish_us: float) -> None:
    """Set up axes with time in us along x, labelled rows from the top, and a line at the finish."""
    count = len(labels)
    ax.set_ylim(max(1, count) - 0.4, -0.6)
    ax.set_xlim(0, finish_us * 1.01 or 1)
    ax.set_yticks(range(count), labels, fontsize=8 if count <= 32 else 7 if count <= 48 else 6)
    ax.tick_params(axis="y", length=0)
    ax.axvline(finish_us, color=INK, linewidth=0.8)


def legend(ax: Axes, handles: Sequence[Artist], **look: Any) -> Any:
    """Add a legend to the right of the axes, aligned with their top."""
    place: Any = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.0}
    return ax.legend(handles=handles, fontsize=8, frameon=False, **place | look)


def scale_beside(ax: Axes, scale: Normalize, colours: str, title: str, **look: Any) -> Axis:
    """Add a colour bar to the right of the axes, and return its axis."""
    from matplotlib.cm import ScalarMappable

    bar = ax.figure.colorbar(ScalarMappable(scale, colours), ax=ax, pad=0.01, fraction=0.03, **look)
    bar.set_label(title, fontsize=8)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)
    return bar.ax.yaxis


def remark(ax: Axes, text: str) -> None:
    """Add a note below the picture, after the label of the x axis, in lines that fit the picture."""
    if text:
        old, lines = ax.get_xlabel(), fill(text, _REMARK)
        ax.set_xlabel(f"{old}\n{lines}" if old else lines)


@checked
def render(picture: Axes | Figure, format: str = "svg") -> bytes:
    """Render a picture as bytes; the same picture gives the same bytes.

    Parameters
    ----------
    picture : Axes or Figure
        Picture, as a function of `taccl.plot` returned it.
    format : {"svg", "png", "pdf"}
        File format.

    Raises
    ------
    InputError
        If the format is none of these.
    """
    from matplotlib import rc_context

    if format not in FORMATS:
        raise InputError(f"found {format!r}; expected one of {', '.join(FORMATS)}", where="format")
    drawn: Any = picture
    while not hasattr(drawn, "savefig"):  # axes may be in a subfigure
        drawn = drawn.figure
    buffer = io.BytesIO()
    with rc_context(_RULES), warnings.catch_warnings():
        if format == "svg":  # SVG holds text, not glyphs
            warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        with _images_after_layout(drawn):
            drawn.savefig(buffer, format=format, dpi=_DOTS_PER_INCH, metadata=_METADATA[format])
    return buffer.getvalue()


@contextmanager
def _images_after_layout(figure: Figure) -> Iterator[None]:
    """Context that hides rasterized artists in a figure's first drawing, which only computes its layout.

    Otherwise vector formats draw these artists pixel by pixel twice, which doubles a dense picture's time.
    """
    has_first = figure.get_layout_engine() is not None
    hidden = figure.findobj(lambda each: each.get_rasterized() and each.get_visible()) if has_first else []

    def show(event: object = None) -> None:
        for artist in hidden:
            artist.set_visible(True)

    for artist in hidden:
        artist.set_visible(False)
    connection = figure.canvas.mpl_connect("draw_event", show)
    try:
        yield
    finally:
        figure.canvas.mpl_disconnect(connection)
        show()


def in_key(name: str) -> str:
    """Name as a legend label; a space precedes a leading underscore, or matplotlib would omit the label."""
    return f" {shown(name)}" if name.startswith("_") else shown(name)


@checked
def save(picture: Axes | Figure, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a picture to a file, whole or not at all; the extension gives the format.

    Parameters
    ----------
    picture : Axes or Figure
        Picture, as a function of `taccl.plot` returned it.
    path : path
        Path that ends in ``.svg``, ``.png`` or ``.pdf``.
    overwrite : bool
        True to replace an existing file.

    Raises
    ------
    InputError
        If the extension is another one, or the file cannot be written.
    """
    from taccl.formats.files import check_writable, write_whole

    format = format_of(path)
    check_writable(path, overwrite=overwrite)
    write_whole(path, render(picture, format), overwrite=overwrite)


def format_of(path: str | os.PathLike[str]) -> str:
    """Picture format that the extension of a path names; `InputError` if the extension is unknown."""
    ending = os.path.splitext(os.fspath(path))[1].lower().removeprefix(".")
    if ending not in FORMATS:
        known = ", ".join("." + each for each in FORMATS)
        found = f"the ending {ending!r}" if ending else "no ending"
        raise InputError(f"found {found}; expected a name that ends in {known}", where=os.fspath(path))
    return ending


def schedule_of(found: Result | Schedule) -> Schedule:
    """The schedule of a result, or the one given; `InputError` if it is too large to be drawn."""
    schedule = found.schedule if isinstance(found, Result) else found
    return schedule.listable(memory_limit_bytes=_MOST_LISTED_BYTES)
