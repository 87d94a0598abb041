"""Results of `diagnose`: a verdict on each measured series, its limits, likely causes and possible gains."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from textwrap import fill
from typing import Any, NamedTuple

from taccl._internal.html import card, facts
from taccl._internal.html import table as html_table
from taccl._internal.names import first_of, note_lines, shown, table
from taccl._internal.units import format_digits, format_size
from taccl.measure.causes import Cause
from taccl.measure.series import Series

#: `_MOST_ROWS`: max number of sizes in the table that `repr` shows.
#: `_MOST_COLUMNS`: max columns of a line of the verdict that `repr` shows.
_MOST_ROWS, _MOST_COLUMNS = 10, 110


def _renamed(name: str, new: str) -> None:
    warnings.warn(f"{name} is named {new} now", DeprecationWarning, stacklevel=3)


class Limit(NamedTuple):
    """The busiest resource of one kind: its rate, and the share of the measured time for which it is busy."""

    resource: str
    gb_per_s: float
    use: float


class Point(NamedTuple):
    """Measured and predicted time at one size, and the algorithm and protocol of the prediction."""

    size_bytes: int
    measured_us: float
    predicted_us: float
    predicted_by: str

    @property
    def off(self) -> str:
        """Excess of the measured over the predicted time, in whole percent with its sign: ``"+31%"``."""
        return f"{round(self.measured_us / self.predicted_us - 1, 2) + 0.0:+.0%}"  # + 0.0: no "-0%"

    @property
    def expected_us(self) -> float:
        """Former name of `predicted_us`, removed in the next release."""
        _renamed("Point.expected_us", "predicted_us")
        return self.predicted_us

    @property
    def expected_by(self) -> str:
        """Former name of `predicted_by`, removed in the next release."""
        _renamed("Point.expected_by", "predicted_by")
        return self.predicted_by

    def to_dict(self) -> dict[str, Any]:
        """Fields as a dictionary; until the next release, it also has the former names."""
        return self._asdict() | {"expected_us": self.predicted_us, "expected_by": self.predicted_by}


class Gain(NamedTuple):
    """Predicted time of a better schedule, run by `runtime`, and the library's measured time at its size.

    - `error`: Factor by which the prediction of the library's time at this size is wrong; 1 if it is right.
    - `command`: Command line that makes the schedule.
    """

    size_bytes: int
    runtime: str
    measured_us: float
    predicted_us: float
    error: float
    command: str

    @property
    def text(self) -> str:
        """Share of the measured time that the schedule saves, or why no saving is certain."""
        if self.is_sure:
            return f"{1 - self.predicted_us / self.measured_us:.0%} less"
        return "none" if self.predicted_us > self.measured_us * self.error else "within the error"

    @property
    def is_sure(self) -> bool:
        """True if the gain exceeds the error of the prediction."""
        return self.predicted_us * self.error < self.measured_us


@dataclass(frozen=True, slots=True, repr=False)
class SeriesDiagnosis:
    """Verdict on one measured series.

    Parameters
    ----------
    series : Series
        Measured times.
    topology : str
        Name of the topology with which the series was compared.
    busbw_factor : float
        Bus bandwidth over algorithm bandwidth.
    points : tuple of Point
        Sizes at which the library's model was evaluated.
    predicted_us : tuple of float
        Predicted times with the library at all sizes, interpolated between `points`.
    bound_us : float or None
        Lower bound on the time at the largest size, launch included, over all chunkings; None if no bound
        was found in time.
    share : float or None
        Ratio of measured to predicted bandwidth of large messages; None if the series has none.
    small_us, usual_us : float or None
        Measured and usual time of small messages; None if unknown.
    limits : tuple of Limit
        Busiest resource of each kind in the library's schedule, for large messages.
    causes : tuple of Cause
        Likely causes first, then possible ones.
    sizes_off : tuple of str
        Irregular sizes of the series.
    gains : tuple of Gain
        Better schedules, by size and runtime.
    verdict : str
        One sentence.
    notes : tuple of str
        Assumptions.
    library : {"NCCL", "RCCL"}
        Stock library of the GPUs.
    """

    series: Series
    topology: str
    busbw_factor: float
    points: tuple[Point, ...]
    predicted_us: tuple[float, ...]
    bound_us: float | None
    share: float | None
    small_us: float | None
    usual_us: float | None
    limits: tuple[Limit, ...]
    causes: tuple[Cause, ...]
    sizes_off: tuple[str, ...]
    gains: tuple[Gain, ...]
    verdict: str
    notes: tuple[str, ...] = ()
    library: str = "NCCL"

    @property
    def expected_us(self) -> tuple[float, ...]:
        """Former name of `predicted_us`, removed in the next release."""
        _renamed("SeriesDiagnosis.expected_us", "predicted_us")
        return self.predicted_us

    @property
    def likely(self) -> tuple[Cause, ...]:
        """Causes graded likely, without those graded possible."""
        return tuple(cause for cause in self.causes if cause.grade == "likely")

    def busbw(self, size_bytes: int, time_us: float) -> float:
        """Bus bandwidth in GB/s."""
        return size_bytes / time_us / 1000 * self.busbw_factor

    def to_dict(self) -> dict[str, Any]:
        """The diagnosis of the series as plain values."""
        return {
            "title": self.series.title, "source": self.series.source, "topology": self.topology,
            "library": self.library,
            "verdict": self.verdict, "share": self.share, "bound_us": self.bound_us,
            "small_us": self.small_us, "usual_us": self.usual_us,
            "limits": [each._asdict() for each in self.limits],
            "causes": [each._asdict() for each in self.causes],
            "sizes_off": list(self.sizes_off),
            "points": [each.to_dict() for each in self.points],
            "gains": [each._asdict() | {"is_sure": each.is_sure} for each in self.gains],
            "notes": list(self.notes),
        }  # fmt: skip

    @property
    def _size_head(self) -> tuple[str, ...]:
        choice = f"{self.library}'s choice"
        return "size", "measured us", "predicted us", "off", "busbw GB/s", "predicted", choice

    @property
    def _gain_head(self) -> tuple[str, ...]:
        return "size", "runtime", "measured", "predicted", f"with {self.library}'s error", "gain"

    def size_rows(self) -> list[tuple[str, ...]]:
        """Table rows, one per size: times, bandwidths, and the library's choice of algorithm and protocol."""
        return [
            (
                format_size(each.size_bytes), f"{each.measured_us:.1f}", f"{each.predicted_us:.1f}",
                each.off,
                format_digits(self.busbw(each.size_bytes, each.measured_us)),
                format_digits(self.busbw(each.size_bytes, each.predicted_us)), each.predicted_by,
            )
            for each in self.points
        ]  # fmt: skip

    def limit_rows(self) -> list[tuple[str, str, str]]:
        """Table rows of the busiest resources: name, rate, and share of the time in use."""
        return [(each.resource, f"{each.gb_per_s:.4g} GB/s", f"{each.use:.0%} used") for each in self.limits]

    def gain_rows(self) -> list[tuple[str, ...]]:
        """Table rows of better schedules: size, runtime, measured and predicted time, and gain.

        The predicted time is given twice, the second time with the error of the library's prediction.
        """
        rows = []
        for each in self.gains:
            times_us = each.measured_us, each.predicted_us, each.predicted_us * each.error
            shown_us = (f"{format_digits(time_us)} us" for time_us in times_us)
            rows.append((format_size(each.size_bytes), each.runtime, *shown_us, each.text))
        return rows

    def __repr__(self) -> str:
        lines = [
            f"{self.series.title}, {shown(self.topology)} ({shown(self.series.source)})",
            fill(self.verdict, _MOST_COLUMNS, initial_indent="  ", subsequent_indent="  "),
        ]
        if self.limits:
            lines += ["", "  limits, for large messages", table(self.limit_rows(), indent="    ")]
        for number, cause in enumerate(self.causes):
            lines += [] if number else ["", "  causes"]
            lines += [
                f"    {cause.grade}: {cause.title}",
                f"      evidence: {cause.evidence}",
                f"      try: {cause.remedy}",
            ]
        if self.sizes_off:
            lines += ["", f"  sizes off the curve: {first_of(self.sizes_off, 8)}"]
        rows = self.size_rows()
        if rows:
            lines += ["", table([self._size_head, *rows[-_MOST_ROWS:]], indent="    ")]
        if self.gains:
            lines += ["", "  a better schedule", table([self._gain_head, *self.gain_rows()], indent="    ")]
            lines += [f"    {each.command}" for each in self.gains if each.is_sure]
        return "\n".join([*lines, *note_lines(self.notes)])

    def _repr_html_(self) -> str:
        """HTML card with the verdict, limits, causes, sizes and gains."""
        causes = [(each.grade, each.title, each.evidence, each.remedy) for each in self.causes]
        parts = [facts([("verdict", self.verdict), ("sizes off the curve", first_of(self.sizes_off, 8))])]
        for head, rows in (
            (("resource", "rate", "use"), self.limit_rows()), (CAUSE_HEAD, causes),
            (self._size_head, self.size_rows()), (self._gain_head, self.gain_rows()),
        ):  # fmt: skip
            parts += [html_table(head, rows)] if rows else []
        parts += [facts([("command", each.command) for each in self.gains if each.is_sure])]
        return card(f"{self.series.title}, {self.topology}", *parts, notes=self.notes)


CAUSE_HEAD = ("grade", "cause", "evidence", "what to try")


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosis:
    """Verdicts on all series of the diagnosed logs.

    Parameters
    ----------
    series : tuple of SeriesDiagnosis
        In the order of the logs.
    links : tuple of str
        Point-to-point rates compared with the rate of a link or a NIC, one sentence each.
    notes : tuple of str
        Facts about the logs.
    """

    series: tuple[SeriesDiagnosis, ...]
    links: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """Verdict with one sentence for each series, and one for each point-to-point log."""
        return "\n".join([*(each.verdict for each in self.series), *self.links])

    def to_dict(self) -> dict[str, Any]:
        """The diagnosis as plain values."""
        return {
            "series": [each.to_dict() for each in self.series], "links": list(self.links),
            "notes": list(self.notes),
        }  # fmt: skip

    def __repr__(self) -> str:
        noted = "\n".join(note_lines(self.notes)).strip("\n")
        return "\n\n".join(filter(None, [*map(repr, self.series), *self.links, noted]))

    def links_html(self) -> str:
        """HTML of the point-to-point rates and notes; empty if there are none."""
        said = (*self.links, *self.notes)
        return card("Links and notes", notes=said) if said else ""

    def _repr_html_(self) -> str:
        """HTML of all series, then of links and notes."""
        return "".join([*(each._repr_html_() for each in self.series), self.links_html()])
