"""Report of a schedule that ran in PyTorch beside the stock collective: text, plain values, and a log.

From logs, `predict_run` fits the cost per round and per byte, and predicts times of other schedules.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from os import PathLike, fspath
from typing import Any

import numpy as np

from taccl._internal.arguments import Bytes, checked
from taccl._internal.names import table
from taccl._internal.reading import read_text
from taccl._internal.units import format_count, format_size
from taccl.errors import FormatError, InputError, VerificationError
from taccl.formats.torch.rounds import METHODS, rounds_of
from taccl.measure.predict import Prediction
from taccl.program.lower import lower
from taccl.program.program import Program
from taccl.schedule.schedule import Schedule

#: {type: its name in nccl-tests}, where they differ.
_TYPES = {"float32": "float", "float64": "double", "float16": "half"}


@dataclass(frozen=True, slots=True)
class TimedSize:
    """Times of a schedule and of the stock collective at one size: those of the slowest rank, in us.

    - `count`: Number of elements of the larger buffer.
    - `num_wrong`: Elements of all ranks that differ from those of the stock collective, over all runs.
    """

    size_bytes: int
    count: int
    times_us: tuple[float, ...]
    stock_us: tuple[float, ...]
    num_wrong: int


@dataclass(frozen=True, slots=True)
class TorchReport:
    """Results of a schedule that ran in PyTorch, next to those of the stock collective.

    - `num_rounds`: Rounds of messages of the schedule.
    - `volume`: Data that the busiest rank of each round moves, over all rounds, as a share of the size; 0 if
      unknown.
    - `devices`: Host, index and name of each rank's device, as the log lists them; the name is empty for a
      CPU.
    - `crowded`: True if ranks shared cores.
    """

    program: str
    collective: str
    num_ranks: int
    num_rounds: int
    root: int
    dtype: str
    backend: str
    version: str
    busbw_factor: float
    devices: tuple[tuple[str, int, str], ...]
    crowded: bool
    sizes: tuple[TimedSize, ...]
    volume: float = 0.0

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> TorchReport:
        """The report that `to_dict` wrote."""
        sizes = tuple(
            TimedSize(**{**each, "times_us": tuple(each["times_us"]), "stock_us": tuple(each["stock_us"])})
            for each in data["sizes"]
        )
        return cls(**{**data, "devices": tuple(map(tuple, data["devices"])), "sizes": sizes})

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values."""
        return asdict(self)

    def figures(self) -> dict[str, Any]:
        """The report as plain values, with a verdict, as ``taccl run --json`` prints them."""
        verdict = {"round_us": self.round_us(), "failure": self.failure()}
        return {"ok": self.ok, **self.to_dict(), **verdict}

    @property
    def ok(self) -> bool:
        """True if every output was that of the stock collective, bit for bit."""
        return not self.failure()

    def failure(self) -> str:
        """Fault in a sentence; empty if there is none."""
        wrong = [each for each in self.sizes if each.num_wrong]
        if not wrong:
            return ""
        said = f"{format_count(wrong[0].num_wrong, 'element')} of {format_size(wrong[0].size_bytes)}"
        return f"{said} differ from those of the stock {METHODS[self.collective][0]}"

    def raise_if_failed(self) -> None:
        """Raise `VerificationError` if an output was wrong."""
        if not self.ok:
            raise VerificationError(self.failure(), violations=())

    def round_us(self) -> float | None:
        """Time of a round without data in us, by a fit of time = rounds * cost + size * rate over the sizes.

        None with fewer than two sizes, or for a schedule without messages. Errors are relative, so that small
        sizes count; neither term is negative.
        """
        if len(self.sizes) < 2 or not self.num_rounds:
            return None
        return fitted_costs(self.rows())[0]

    def rows(self) -> list[tuple[float, float, float]]:
        """(rounds, bytes that the busiest ranks move, median time in us) of the schedule, for each size."""
        return [
            (self.num_rounds, (self.volume or 1.0) * each.size_bytes, statistics.median(each.times_us))
            for each in self.sizes
        ]

    def text(self) -> str:
        """The report as text for users."""
        ranks, hosts = format_count(self.num_ranks, "rank"), len({host for host, _, _ in self.devices})
        where = f"{ranks} on {format_count(hosts, 'machine')}, {self.dtype}, {self.backend}"
        lines = [f"{self.program}: {where}, {format_count(self.num_rounds, 'round')}"]
        if self.ok:
            lines.append(f"  correct: every output agrees bit for bit with {METHODS[self.collective][0]}")
        rows = [("size", "schedule", "stock", "stock/schedule", "busbw", "stock busbw", "wrong")]
        for each in self.sizes:
            ours, stock = statistics.median(each.times_us), statistics.median(each.stock_us)
            rates = (each.size_bytes / time_us / 1000 * self.busbw_factor for time_us in (ours, stock))
            ours_rate, stock_rate = (f"{rate:.4g} GB/s" for rate in rates)
            rows.append(
                (format_size(each.size_bytes), f"{ours:.1f} us", f"{stock:.1f} us", f"{stock / ours:.2f}",
                 ours_rate, stock_rate, str(each.num_wrong))
            )  # fmt: skip
        lines.append(table(rows, indent="  "))
        cost = self.round_us()
        if cost is not None:
            lines.append(f"  fitted: a round costs {cost:.1f} us")
        if self.crowded:
            lines.append("  ranks share cores: times are not representative")
        lines.append(f"  PyTorch {self.version}")
        return "\n".join(lines)

    def log(self) -> str:
        """The stock collective's times as nccl-tests prints them, for `taccl fit` and `taccl diagnose`.

        A comment holds the schedule's report as JSON.
        """
        sums = self.collective in ("allreduce", "reduce", "reduce-scatter")
        name = METHODS[self.collective][0].removesuffix("_into_tensor").removesuffix("_tensor")
        name = {"all_to_all_single": "alltoall"}.get(name, name)
        lines = [
            f"# {name}_perf by `taccl run`: the stock collective of PyTorch {self.version}, {self.backend}",
            "# Using devices",
        ]
        for rank, (host, device, gpu) in enumerate(self.devices):
            lines.append(f"#  Rank {rank:2} Group  0 Pid 0 on {host} device {device:2} [0x00] {gpu}".rstrip())
        lines.append(f"# taccl {json.dumps(self.to_dict(), allow_nan=False)}")
        head = ("size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong")
        units = ("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "")
        lines += [_row(head, "#"), _row(units, "#")]
        for each in self.sizes:
            time_us = statistics.median(each.stock_us)
            algbw = each.size_bytes / time_us / 1000
            cells = (
                str(each.size_bytes), str(each.count), _TYPES.get(self.dtype, self.dtype),
                "sum" if sums else "none", str(self.root), f"{time_us:.2f}", f"{algbw:.4f}",
                f"{algbw * self.busbw_factor:.4f}", "0",
            )  # fmt: skip
            lines.append(_row(cells, " "))
        return "\n".join(lines) + "\n"


def _row(cells: Sequence[str], first: str) -> str:
    widths = (12, 13, 10, 7, 7, 11, 10, 10, 7)
    return first + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def fitted_costs(rows: Sequence[tuple[float, float, float]]) -> tuple[float, float | None]:
    """Fit the costs of a round and of a byte in us, by least squares of the relative errors of times.

    Neither is negative. With a single row, all time is attributed to rounds, and the cost of a byte is None.

    - `rows`: Number of rounds, bytes, and time in us.
    """
    rounds, moved, times_us = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    columns = np.stack([rounds / times_us, moved / times_us], axis=1)
    alone = [1 / float(column.mean()) for column in columns.T]
    if len(rows) < 2:
        return alone[0], None
    of_round, of_byte = np.linalg.lstsq(columns, np.ones(len(rows)), rcond=None)[0]
    if of_byte < 0:  # times do not grow with the size
        return alone[0], 0.0
    return (float(of_round), float(of_byte)) if of_round >= 0 else (0.0, alone[1])


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
