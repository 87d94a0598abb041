"""Page and pictures of a diagnosis: measured and expected bus bandwidth over size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taccl._internal.arguments import checked
from taccl._internal.units import format_size
from taccl.measure.diagnosis import Diagnosis, SeriesDiagnosis
from taccl.plot.page import html_page, picture
from taccl.plot.style import GREY, OKABE_ITO, axes, drawing, dress, figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@drawing
@checked
def diagnosis(found: SeriesDiagnosis, *, ax: Axes | None = None) -> Axes:
    """Draw measured and expected bus bandwidth of a series over size, and the bound of its largest size.

    Parameters
    ----------
    found : SeriesDiagnosis
        One of the series of a `taccl.diagnose`.
    ax : Axes, optional
        Axes to draw on; by default those of a new figure.
    """
    ax = axes(ax)
    sizes, measured_us = found.series.size_bytes, found.series.times_us
    pairs = zip(sizes, measured_us, found.expected_us, strict=True)
    measured, expected = zip(*((found.busbw(s, m), found.busbw(s, e)) for s, m, e in pairs), strict=True)
    ax.plot(sizes, expected, color=OKABE_ITO[0], linewidth=1.4, label="expected of NCCL")
    ax.plot(sizes, measured, "o", color=OKABE_ITO[5], markersize=4, label="measured")
    if found.bound_us is not None:
        ax.axhline(
            found.busbw(sizes[-1], found.bound_us), color=GREY, linestyle="--", linewidth=1, label="bound"
        )
    ax.set_xscale("log", base=2)
    ax.set_ylim(bottom=0)
    ax.xaxis.set_major_formatter(lambda value, _: format_size(round(value)))
    ax.legend(fontsize=8, frameon=False, loc="center left")
    dress(ax, f"{found.series.title}, {found.topology}", "size", "bus bandwidth in GB/s")
    return ax


@checked
@drawing
def diagnosis_page(found: Diagnosis) -> str:
    """HTML page of a diagnosis: verdict, limits, causes, sizes and gains of each series, with a picture."""
    parts = []
    for number, each in enumerate(found.series):
        drawn = diagnosis(each, ax=figure(width=7, height=4))
        parts.append(
            f'<section class="wide">{each._repr_html_()}</section>{picture(drawn, f"series-{number}")}'
        )
    return html_page("Diagnosis of measured collectives", "".join([*parts, found.links_html()]))
