"""Logs of benchmarks as people paste them: nccl-tests, rccl-tests, perftest, OSU, and reports of `taccl run`.

A file may hold several runs, with whatever else stands between them. What a table leaves unsaid is worked
out: the number of ranks from busbw / algbw, the number of nodes from the list of devices.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from taccl.errors import FormatError
from taccl.measure.rows import bandwidth_row, nccl_row, pair_row, plain
from taccl.measure.series import POINT_TO_POINT, Log, Series
from taccl.reading import read_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taccl.measure.rows import Row

__all__ = ["joined", "log_of_text", "read_log"]

_NAMES = {
    "allreduce": r"all[_ -]?reduce", "allgather": r"all[_ -]?gather", "alltoall": r"all[_ -]?to[_ -]?all",
    "reduce-scatter": r"reduce[_ -]?scatter", "broadcast": r"broadcast(?=_perf)|osu_bcast",
    "reduce": r"(?<!all_)(?<!all)reduce(?=_perf)", POINT_TO_POINT: r"sendrecv(?=_perf)",
}  # fmt: skip
_MENTIONS = {name: re.compile(rf"(?<![a-z]){form}", re.IGNORECASE) for name, form in _NAMES.items()}
#: What begins a run of nccl-tests, or its table.
_BEGINS = re.compile(r"nThread\b|Using devices|Collective test starting|\bsize\s+count\s+type\b")
_DEVICE = re.compile(r"\bRank\s+(\d+)\b.*?\bon\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)")
_PERFTEST = re.compile(r"#bytes\s+#iterations\s+BW peak\s*\[(\w+)/sec\]", re.IGNORECASE)
_BYTES_A_SECOND = {
    "gb": 1e9 / 8, "mb": 2.0**20, "mib": 2.0**20, "gib": 2.0**30,  # as perftest means its units
}  # fmt: skip
_OSU = re.compile(r"#\s*OSU\s+\S+\s+(.*?)\s*(Latency|Bandwidth)\s+Test", re.IGNORECASE)
#: Below such an algbw (GB/s) its two decimals do not tell the number of ranks.
_TELLING_ALGBW = 1.0
#: A stream of messages has come to its bandwidth from such a part of the greatest on.
_PLATEAU = 0.95


@dataclass
class _Run:
    """What is known of one run while its lines are read."""

    line: int
    collective: str = ""
    rows: list[Row] = field(default_factory=list)
    hosts: dict[int, str] = field(default_factory=dict)


def read_log(path: str | os.PathLike[str], *, collective: str | None = None, in_place: bool = False) -> Log:
    """The measurements in a file.

    Parameters
    ----------
    path : path
        A text file, or JSON as ``taccl run --json`` prints it.
    collective : str, optional
        What was measured, where the file does not say.
    in_place : bool
        Which of the times of nccl-tests and rccl-tests.

    Raises
    ------
    FormatError
        If there is nothing to read in it, a time is not above 0, or nothing tells which collective it is.
    """
    return log_of_text(read_text(path), os.fspath(path), collective=collective, in_place=in_place)


def log_of_text(text: str, where: str, *, collective: str | None = None, in_place: bool = False) -> Log:
    """The measurements in a text, which messages say is from `where`; the rest is as in `read_log`."""
    lines = [plain(line) for line in text.splitlines()]
    left_out: list[str] = []
    reports = list(_reports(text))
    if reports:
        series = _of_reports(reports, where)
    else:
        runs = _runs(lines, where, left_out, in_place=in_place)
        series = [_of_run(run, where, collective) for run in runs]
        series += [*_perftest(lines, where), *_osu(lines, where)]
    if not series:
        expected = "rows of nccl-tests, rccl-tests, perftest or OSU, or a report of `taccl run --json`"
        told = f" ({left_out[0]})" if left_out else ""
        raise FormatError(f"found no measurement to use{told}; expected {expected}", where=where)
    return Log(where, tuple(joined(series)), _gpus(lines), tuple(left_out))


def _runs(lines: list[str], where: str, left_out: list[str], *, in_place: bool) -> list[_Run]:
    """The runs of nccl-tests in a file, each with its rows."""
    run, name = _Run(0), ""
    runs: list[_Run] = []
    hosts: dict[int, str] = {}
    fresh = True  # whether a list of devices would be of a new run
    for number, line in enumerate(lines, 1):
        row = nccl_row(line, f"{where}: line {number}", in_place=in_place)
        if row is None:
            mentioned = [each for each, form in _MENTIONS.items() if form.search(line)]
            name = mentioned[0] if len(mentioned) == 1 else name
            if (device := _DEVICE.search(line)) is not None:
                hosts = {} if fresh else hosts
                hosts[int(device[1])] = device[2]
                fresh = False
            if _BEGINS.search(line) and run.rows:
                run, fresh = _Run(0), True
            continue
        if not row.size_bytes:
            continue
        if not row.agrees:
            stated = row.size_bytes / row.time_us / 1000
            left_out.append(
                f"line {number}: found algbw {row.algbw:g} GB/s; expected {stated:.4g}, of {row.size_bytes} "
                f"bytes in {row.time_us:g} us"
            )
            continue
        if run.rows and row.size_bytes < run.rows[-1].size_bytes:
            run = _Run(0)
        if not run.rows:
            run = _Run(number, name, [], dict(hosts))
            runs.append(run)
            fresh = True
        run.rows.append(row)
    return runs


def _of_run(run: _Run, where: str, given: str | None) -> Series:
    name = _collective(run, where, given)
    num_ranks = _ranks_by_factor(name, run.rows) or (max(run.hosts, default=-1) + 1)
    complete = num_ranks and len(run.hosts) >= num_ranks - 1  # the first line of a list is easily cut off
    num_nodes = len(set(run.hosts.values())) if complete else 0
    sizes = tuple(row.size_bytes for row in run.rows)
    times = tuple(row.time_us for row in run.rows)
    return Series(name, num_ranks, num_nodes, sizes, times, f"{where}: line {run.line}")


def _collective(run: _Run, where: str, given: str | None) -> str:
    """The collective that was named last and that the columns can be of."""
    if given is not None:
        return given
    if _factor(run.rows) > 1.001:
        return "allreduce"
    named = run.collective
    if not named:
        stem = os.path.basename(where)
        named = next((each for each, form in _MENTIONS.items() if form.search(stem)), "")
    reduces = run.rows[0].reduces
    if not named and reduces:
        return "allreduce"
    if not named or reduces != (named in ("allreduce", "reduce", "reduce-scatter")):
        kind = "a reduction" if reduces else "no reduction"
        said = (
            f"found a table of {kind}, and no name of it; expected the collective above it: give --collective"
        )
        raise FormatError(said, where=f"{where}: line {run.line}")
    return named


def _factor(rows: list[Row]) -> float:
    """Bus bandwidth over algorithm bandwidth; 0 where no row tells."""
    telling = [row.busbw / row.algbw for row in rows if row.algbw >= _TELLING_ALGBW]
    return median(telling) if telling else 0.0


def _ranks_by_factor(name: str, rows: list[Row]) -> int:
    """The ranks that busbw / algbw means: 2 (n - 1) / n of an allreduce, (n - 1) / n; 0 if it is silent."""
    factor = _factor(rows[-8:]) / (2 if name == "allreduce" else 1)
    return round(1 / (1 - factor)) if 0.4 < factor < 0.9999 and name not in ("broadcast", "reduce") else 0


def _perftest(lines: list[str], where: str) -> Iterable[Series]:
    """Streams of messages over one NIC: the sizes at which they have come to their bandwidth."""
    unit, first = "", 0
    found: dict[int, float] = {}
    for number, line in enumerate(lines, 1):
        if (head := _PERFTEST.search(line)) is not None:
            unit = head[1].lower()
            first = first or number
        elif unit in _BYTES_A_SECOND and (row := bandwidth_row(line)) is not None:
            found[row[0]] = _above_0(row[1], where, number, "a bandwidth") * _BYTES_A_SECOND[unit]
    if found:
        yield _stream(found, f"{where}: line {first}")


def _stream(bytes_a_second: dict[int, float], source: str) -> Series:
    most = max(bytes_a_second.values())
    sizes = sorted(size for size, rate in bytes_a_second.items() if rate >= _PLATEAU * most)
    times = tuple(size / bytes_a_second[size] * 1e6 for size in sizes)
    return Series(POINT_TO_POINT, 2, 2, tuple(sizes), times, source, streams=True)


def _osu(lines: list[str], where: str) -> Iterable[Series]:
    """OSU micro-benchmarks: collectives by time, on ranks that no line tells; streams between two ranks."""
    name, streams, first = "", False, 0
    found: dict[int, float] = {}
    series = []

    def finish() -> None:
        if found and streams:
            series.append(
                _stream({size: rate * 1e6 for size, rate in found.items()}, f"{where}: line {first}")
            )
        elif found:
            sizes = sorted(found)
            ranks = 2 if name == POINT_TO_POINT else 0
            times = tuple(found[size] for size in sizes)
            series.append(Series(name, ranks, ranks, tuple(sizes), times, f"{where}: line {first}"))

    for number, line in enumerate(lines, 1):
        if (head := _OSU.search(line)) is not None:
            finish()
            found, first, streams = {}, number, head[2].lower() == "bandwidth"
            named = [each for each, form in _MENTIONS.items() if form.search(head[1])]
            name = named[0] if named else "" if head[1].strip(" -") else POINT_TO_POINT
        elif (name or streams) and (row := pair_row(line)) is not None and row[0]:
            found[row[0]] = _above_0(row[1], where, number, "a value")
    finish()
    return series


def _above_0(value: float, where: str, number: int, what: str) -> float:
    if value > 0:
        return value
    said = f"found {what} of {value:g}; expected more than 0; correct or remove it"
    raise FormatError(said, where=f"{where}: line {number}")


def _reports(text: str) -> Iterable[dict[str, Any]]:
    """What ``taccl run --json`` printed: a file that is one JSON object, or one on each line."""
    for part in (text, *text.splitlines()):
        if part.lstrip().startswith("{"):
            try:
                found = json.loads(part)
            except (ValueError, RecursionError):
                continue
            if isinstance(found, dict) and {"collective", "size_bytes", "times", "num_ranks"} <= set(found):
                yield found
                if part is text:
                    return


def _of_reports(reports: list[dict[str, Any]], where: str) -> list[Series]:
    found = []
    for report in reports:
        times = report["times"]
        time_us = times.get("median_us") if isinstance(times, dict) else None
        counts = [report["size_bytes"], report["num_ranks"], report.get("num_hosts", 0)]
        if not _is_time(time_us) or not all(type(each) is int and 0 <= each < 10**18 for each in counts):
            said = "found a report without a time above 0, or whole numbers of bytes, ranks and hosts"
            raise FormatError(f"{said}; expected what `taccl run --json` prints", where=where)
        size, ranks, hosts = counts
        if size:
            name = str(report["collective"])
            found.append(Series(name, ranks, min(hosts, ranks), (size,), (float(time_us),), where))  # type: ignore[arg-type]
    return found


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e15


def _gpus(lines: list[str]) -> frozenset[str]:
    found = (_DEVICE.search(line) for line in lines)
    return frozenset(device[3].strip() for device in found if device is not None and device[3].strip())


def joined(series: Iterable[Series]) -> Iterable[Series]:
    """Runs of one kind as one series, with the median of each size."""
    series = list(series)

    def key(each: Series) -> tuple[object, ...]:
        return each.collective, each.num_ranks, each.num_nodes, each.streams

    for kind in dict.fromkeys(map(key, series)):
        alike = [each for each in series if key(each) == kind]
        times: dict[int, list[float]] = {}
        for each in alike:
            for size, time_us in zip(each.size_bytes, each.times_us, strict=True):
                times.setdefault(size, []).append(time_us)
        first, sizes = alike[0], sorted(times)
        yield Series(
            first.collective, first.num_ranks, first.num_nodes, tuple(sizes),
            tuple(median(times[size]) for size in sizes), first.source, first.streams,
        )  # fmt: skip
