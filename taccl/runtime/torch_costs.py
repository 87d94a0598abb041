"""Predictions for PyTorch: cost per round and per byte, fitted to logs of ``taccl run --engine torch``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import TYPE_CHECKING

from taccl._internal.arguments import Bytes, checked
from taccl._internal.reading import read_text
from taccl._internal.units import format_count
from taccl.errors import FormatError, InputError
from taccl.formats.torch.rounds import rounds_of
from taccl.measure.predict import Prediction
from taccl.program.lower import lower
from taccl.program.program import Program
from taccl.runtime.torch_report import TorchReport, fitted_costs

if TYPE_CHECKING:
    from taccl.schedule.schedule import Schedule

#: Beginning of the line of a log that holds the report.
_MARK = "# taccl "


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """Costs of messages in PyTorch, fitted to logs that share their number of ranks and their backend.

    - `round_us`: Time of a round without data.
    - `us_per_byte`: Time in us for each byte that the busiest rank of a round moves; None if the logs have
      one size only.
    - `source`: The logs, and the backend.
    """

    num_ranks: int
    round_us: float
    us_per_byte: float | None
    source: str


def report_in(path: str | PathLike[str]) -> TorchReport:
    """The report in a log that ``taccl run --engine torch --log`` wrote; `FormatError` if there is none."""
    where = fspath(path)
    line = next((each for each in read_text(path).splitlines() if each.startswith(_MARK)), None)
    if line is None:
        said = "found no report; expected a log of `taccl run --engine torch --log FILE`"
        raise FormatError(said, where=where)
    try:
        report = TorchReport.from_dict(json.loads(line.removeprefix(_MARK)))
        if not (report.sizes and report.num_rounds > 0 and all(each.times_us for each in report.sizes)):
            raise ValueError("no times")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError(
            f"found a report that cannot be read ({error}); run it again", where=where
        ) from None
    return report


def costs_in(logs: Sequence[str | PathLike[str]]) -> RoundCosts:
    """Fit the costs of a round and of a byte to the times of the schedules in logs.

    Raises `InputError` if the logs differ in their number of ranks or in their backend.
    """
    reports = [report_in(each) for each in logs]
    first = reports[0]
    for path, each in zip(logs, reports, strict=True):
        if (each.num_ranks, each.backend) != (first.num_ranks, first.backend):
            found, due = (f"{format_count(r.num_ranks, 'rank')} of {r.backend}" for r in (each, first))
            raise InputError(
                f"found {found}; {fspath(logs[0])} is of {due}: give logs of one collective and backend",
                where=fspath(path),
            )
    rows = [row for each in reports for row in each.rows()]
    round_us, us_per_byte = fitted_costs(rows)
    source = f"fitted to {', '.join(fspath(each) for each in logs)} ({first.backend})"
    return RoundCosts(first.num_ranks, round_us, us_per_byte, source)


@checked
def predict_run(schedule: Program | Schedule, size: Bytes, logs: Sequence[str | PathLike[str]]) -> Prediction:
    """Predict the time of a schedule in PyTorch, from logs of other schedules on as many ranks.

    Parameters
    ----------
    schedule : Schedule or Program
        A schedule or program that ``taccl run --engine torch`` can run.
    size : int or str
        The larger of a rank's input and output, as nccl-tests counts it.
    logs : path or sequence of path
        Logs of ``taccl run --engine torch --log``; the times of their schedules at all sizes are used.

    Returns
    -------
    Prediction
        Rounds times the fitted cost of a round, plus the data of the busiest ranks times that of a byte.

    Raises
    ------
    FormatError
        If a log holds no such report.
    InputError
        If the logs are of another number of ranks, or of one size only.
    ExportError
        If PyTorch has no such collective.
    """
    program = schedule if isinstance(schedule, Program) else lower(schedule)
    costs, found = costs_in(logs), rounds_of(program)
    if costs.num_ranks != program.num_ranks:
        said = (
            f"found logs of {format_count(costs.num_ranks, 'rank')}; the schedule is for {program.num_ranks}"
        )
        raise InputError(f"{said}: run one of as many", where="logs")
    if costs.us_per_byte is None:
        raise InputError("found one size; expected two or more: run with --sizes", where="logs")
    time_us = found.num_rounds * costs.round_us + found.volume * size * costs.us_per_byte
    return Prediction(time_us, format_count(found.num_rounds, "round"), "", 0.0, costs.source)
