"""Read benchmark logs as users paste them: nccl-tests, rccl-tests, perftest, OSU, and reports of `taccl run`.

A file may hold several runs, with other text between them. Rows match the pattern of nccl-tests, which needs
no header, or follow a header that names size and time or bandwidth. If the number of ranks is not stated, it
follows from busbw / algbw. The number of nodes follows from the list of devices.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from taccl._internal.file_kinds import LOGS, kinds_in, unquoted
from taccl._internal.names import first_of, shown
from taccl._internal.reading import REPLACED, read_text, reads
from taccl._internal.units import format_count, format_size
from taccl.errors import FormatError
from taccl.measure.broken_rows import rows_without_debug, whole_rows
from taccl.measure.debug_lines import debug_facts, is_debug
from taccl.measure.inspector import INSPECTOR
from taccl.measure.json_logs import CUT_OFF, printed, run_reports, series_of_reports
from taccl.measure.log_runs import CPU_TIME, DEVICE, TIMES_IN_MS, LogRun, runs_in
from taccl.measure.rows import plain
from taccl.measure.run_series import by_checks, by_counts, by_root, named_in, series_of_run
from taccl.measure.series import COMPARED_BYTES, WRONG, Log, Series, alike_joined, differing

_MAX_FILE_BYTES = 64 * 10**6  #: Logs of NCCL_DEBUG have a line for each channel of each rank.
#: Number of ranks of a communicator in a line of NCCL_DEBUG=INFO; atomic groups keep the match linear.
_NUM_RANKS = re.compile(r"(?>.*?CCL INFO )(?>.*?\bcomm\b).*\bn[Rr]anks (\d{1,7})\b")
#: Title of a benchmark of OSU or of perftest.
_TITLE = re.compile(r"^[# \t]*((?:OSU|OMB|RDMA_\w+|Send)\b.* Test\b.*)", re.MULTILINE)
#: {note: pattern of lines that show that buffers were in host memory}.
_HOST_MEMORY = {
    "measured in host memory (OSU without CUDA or ROCm)": re.compile(r"#\s*OSU MPI [A-Z]"),
    "measured by gloo, which runs on CPUs": re.compile(r"\bgloo\b", re.IGNORECASE),
}
#: {note: pattern of headers of benchmarks of other libraries than NCCL and RCCL}.
OTHER_LIBRARY = {
    "an MPI library ran the collective (OSU), not NCCL or RCCL; nccl-tests or rccl-tests measure these":
        re.compile(
            r"#\s*(?:OSU MPI-(?:CUDA|ROCM)|OMB-Py MPI|OMB Python MPI) (?!Latency|Bandwidth|Bi-)\S",
            re.IGNORECASE,
        ),
}  # fmt: skip
#: {note: pattern of headers of runs whose operations are not launched one by one}.
_LAUNCHED = {
    "operations were launched several at a time (-m), so times are shares of theirs": re.compile(
        r"\bagg iters:\s*(?!1\b)\d"
    ),
    "operations were launched in CUDA graphs (-G), without a launch of their own": re.compile(
        r"\bgraph:\s*[1-9]"
    ),
    "times are of kernels, without launches, by NCCL's Inspector; each is the median of its size": re.compile(
        f"^{INSPECTOR}", re.MULTILINE
    ),
    "times are of the CPU (-C), so they are computed from algbw, at 1 GB/s and more": CPU_TIME,
    "times are in ms (nccl-tests 1), to 1 us or as exactly as algbw states them": TIMES_IN_MS,
}
#: {note: pattern of lines in which a benchmark ends with an error or states wrong results}.
_FAILED = {
    "the run ended with an error (Test failure), so rows may be missing; see the log": re.compile(
        r"\bTest (?:NCCL |RCCL |CUDA |HIP |MPI )?failure\b"
    ),
    "the run ended as an operation hung (Test timeout), so rows are missing; see the log": re.compile(
        r"(?::| )Test timeout \(\d"
    ),
    f"{WRONG} by the log's last lines (Out of bounds values)": re.compile(
        r"\bOut of bounds values\s*:\s*[1-9]"
    ),
    f"{WRONG} by the column of checks (Fail)": re.compile(
        r"(?m)^[ \t|]*\d[\d.]*(?: ?[KMG]i?B)?(?:[ \t|]+[\d.]+){1,20}[ \t|]+(?:Fail|FAIL)\b"
    ),
}
#: {note: pattern of the line that the reader appends to JSON output that is cut off}.
_CUT_OFF = {"its JSON is cut off, so rows may be missing": re.compile(rf"(?m)^{re.escape(CUT_OFF)}$")}
#: Least size in bytes, and least bytes of a rank, whose absence from a log is noted: smaller ones are
#: rounded. Max number of announced sizes that are looked for.
_LEAST_ANNOUNCED, _ROUNDED_BYTES, _MOST_ANNOUNCED = 1 << 16, 256, 1000
#: Max ratio, at the largest size, of the time not read (in or out of place) to the time read, for a note.
_OTHER_FASTER = 0.9


@reads("log of a benchmark", *LOGS)
def read_log(path: str | os.PathLike[str], *, collective: str | None = None, in_place: bool = False) -> Log:
    """Read the measurements in a file.

    - `path`: A text file, or JSON of nccl-tests (``-J``), rccl-tests (``-x``) or ``taccl run --json``.
    - `collective`: The collective measured, if the file does not name it.
    - `in_place`: True for the in-place times of nccl-tests and rccl-tests.

    Raises `FormatError` if the file has no usable row, a time is not above 0, or the collective cannot be
    identified.
    """
    return log_of_text(
        read_text(path, _MAX_FILE_BYTES, replaces=True),
        os.fspath(path),
        collective=collective,
        in_place=in_place,
    )


def log_of_text(text: str, where: str, *, collective: str | None = None, in_place: bool = False) -> Log:
    """Read the measurements in a text, as `read_log` does for a file; messages name `where` as the source."""
    path, given = where, unquoted(text)
    text = printed(_unescaped(given))
    # Line numbers in messages count the lines of `text`, into which JSON output was converted.
    where = path if text == given else f"{path}, as text"
    expected = "rows of nccl-tests, rccl-tests, perftest or OSU, or a report of `taccl run --json`"
    if _is_of_other_kind(text):
        raise FormatError(f"found no usable measurement; expected {expected}", where=where)
    raw = text.splitlines()
    lines = whole_rows(rows_without_debug([line if is_debug(line) else plain(line) for line in raw]))
    left_out: list[str] = []
    reports = list(run_reports(text))
    series = series_of_reports(reports, where)
    notes = ["measured by MPI processes in host memory (taccl run)"] if reports else []
    if not reports:
        runs = runs_in(lines, where, left_out, in_place=in_place)
        inits = (line for line in lines if " comm " in line and "anks " in line)
        stated = {int(found[1]) for found in map(_NUM_RANKS.match, inits) if found}
        series = [series_of_run(run, where, collective, stated) for run in runs]
        forms = {**_HOST_MEMORY, **OTHER_LIBRARY, **_LAUNCHED, **_FAILED, **_CUT_OFF}
        notes = [*_uneven(runs), *_doubtful(runs), *_unlisted(runs, series), *_merged(runs, series)]
        notes += [*dict.fromkeys(_by_place(runs, in_place=in_place)), *_absent(runs, series)]
        notes += [] if collective else dict.fromkeys(_concluded(runs, where))
        others = "\n".join(line for line in raw if not is_debug(line))
        notes += [said for said, form in forms.items() if form.search(others)]
    notes += ["the file has bytes that are not UTF-8 text, which are passed over"] * (REPLACED in text)
    if not series:
        title = _TITLE.search(text)
        told = f" of {shown(repr(title[1].strip()), 90)}" if title else ""
        told += f" ({left_out[0]})" if left_out else ""
        told += "".join(f"; {said}" for said, form in _FAILED.items() if form.search(text))
        raise FormatError(f"found no usable measurement{told}; expected {expected}", where=where)
    devices = filter(None, (DEVICE.search(line) for line in lines if "device" in line))
    gpus = frozenset(device[4].strip() for device in devices) - {""}
    return Log(path, tuple(alike_joined(series)), gpus, tuple(left_out), tuple(notes), debug_facts(text))


def _is_of_other_kind(text: str) -> bool:
    """True if a text is one JSON object of a known kind without measurements, such as a schedule."""
    if not text.lstrip().startswith("{"):
        return False
    try:
        kinds = kinds_in(json.loads(text))
    except (ValueError, RecursionError):
        return False
    return bool(kinds) and not set(kinds) & set(LOGS)


def _unescaped(text: str) -> str:
    """The text with line breaks in place of escaped ones, if it has more of these than lines.

    Loggers and programs write the whole output of a benchmark as one string.
    """
    if text.count("\\n") <= text.count("\n"):
        return text
    return text.replace("\\r", "").replace("\\n", "\n").replace("\\t", " ")


def _uneven(runs: Iterable[LogRun]) -> Iterable[str]:
    """Notes on runs whose hosts have different numbers of ranks, each distinct case once."""
    # Only complete lists of devices count: pasted lists often lack lines.
    whole = [run.hosts for run in runs if len(run.hosts) == max(run.hosts, default=-1) + 1]
    counts = dict.fromkeys(tuple(Counter(hosts.values()).items()) for hosts in whole)
    for hosts in counts:
        if len({count for _, count in hosts}) > 1:
            listed = first_of([f"{count} on {shown(host, 60)}" for host, count in hosts], 4)
            yield f"the nodes differ, with ranks {listed}; the model takes nodes to be equal"


def _by_place(runs: Iterable[LogRun], *, in_place: bool) -> Iterable[str]:
    """Notes on runs whose largest size is faster in the other place than in the place that is read."""
    other, how = ("out of place", "without --in-place") if in_place else ("in place", "--in-place")
    for run in runs:
        row = run.rows[-1]
        if row.size_bytes >= COMPARED_BYTES and 0 < row.other_us <= _OTHER_FASTER * row.time_us:
            said = f"{format_size(row.size_bytes)} takes {row.other_us / row.time_us:.0%} of the time {other}"
            yield f"{said}; judge that, too ({how})"


def _doubtful(runs: Sequence[LogRun]) -> Iterable[str]:
    """Notes on doubtful runs, each once.

    They are on wrong results, times in place, several groups of ranks, unknown units, and independent
    processes.
    """
    wrong = [row for run in runs for row in run.rows if row.num_wrong]
    if wrong:
        sizes = first_of([str(row.size_bytes) for row in wrong], 4)
        yield f"{WRONG} at {format_count(len(wrong), 'size')} (#wrong above 0), in bytes: {sizes}"
    if any(row.is_other_place for run in runs for row in run.rows):
        yield "times are those in place where the log has no others"
    for groups in dict.fromkeys(run.groups for run in runs if len(run.groups) > 1):
        yield f"{len(groups)} groups of ranks ran at the same time and share links; times are of one group"
    for unit in dict.fromkeys(run.unnamed for run in runs if run.unnamed):
        yield f"figures are assumed to be in {unit}, as the header of their table names no unit"
    for hosts in dict.fromkeys(run.twice for run in runs if run.twice):
        listed = first_of([shown(host, 60) for host in hosts], 4)
        yield f"rank 0 is listed on {listed}: the runs are independent, as of nccl-tests built without MPI=1"


def _unlisted(runs: Iterable[LogRun], series: Iterable[Series]) -> Iterable[str]:
    """Notes on runs whose bandwidths contradict their list of devices, each distinct case once."""
    pairs = [(max(run.hosts, default=-1), each.num_ranks) for run, each in zip(runs, series, strict=True)]
    for last, num_ranks in dict.fromkeys(pairs):
        if last >= 0 < num_ranks != last + 1:
            said = f"busbw / algbw is that of {num_ranks} ranks, but the list of devices ends with rank"
            yield f"{said} {last}; {num_ranks} are assumed"


def _absent(runs: Iterable[LogRun], series: Iterable[Series]) -> Iterable[str]:
    """Notes on sizes that the header of a run announces and no run below it has, one for each header."""
    found: dict[tuple[str, ...], set[int]] = defaultdict(set)
    most: dict[tuple[str, ...], int] = defaultdict(int)
    for run, each in zip(runs, series, strict=True):
        if run.announced:
            found[run.announced] |= {row.size_bytes for row in run.rows}
            most[run.announced] = max(most[run.announced], each.num_ranks)
    for announced, sizes in found.items():
        expected = _announced(announced, least=max(_LEAST_ANNOUNCED, _ROUNDED_BYTES * most[announced]))
        absent = [size for size, above in expected if not any(above < each <= size for each in sizes)]
        if absent:
            listed = first_of([format_size(size) for size in absent], 4)
            said = f"its header announces {format_count(len(absent), 'more size')} ({listed})"
            yield f"{said}; the run ended early, or the log is not whole"


def _announced(announced: tuple[str, ...], least: int) -> list[tuple[int, float]]:
    """[(announced size, size between it and the next smaller one)] from `least` bytes on.

    Benchmarks round sizes down, so that all ranks have equal parts.
    """
    begin, end, step = map(int, announced[:3])
    expected: list[tuple[int, float]] = []
    size, is_factor = begin, announced[3] == "factor"
    while size <= end and step > is_factor and len(expected) < _MOST_ANNOUNCED:
        if size >= least:
            expected.append((size, size / step**0.5 if is_factor else size - step / 2))
        size = size * step if is_factor else size + step
    return expected


def _concluded(runs: Iterable[LogRun], where: str) -> Iterable[str]:
    """Notes on collectives that were inferred from columns or checks of results, not from names in logs."""
    for run in runs:
        name = [] if run.streams else named_in(run, where)[-1:]
        if not run.streams and not name and (found := by_counts(run.rows)):
            part = "all elements" if found == "allreduce" else "a rank's part"
            yield f"no collective is named; sums that count {part} are assumed to be {found}s (--collective)"
        elif not run.streams and not name and (found := by_checks(run)):
            told = "are" if found == "allgather" else "are not"
            yield f"no collective is named; results in place {told} checked, as in {found}s (--collective)"
        elif not run.streams and not name and (found := by_root(run.rows)):
            yield f"no collective is named; rows with a root are assumed to be of a {found} (--collective)"
        elif name and run.names and name[0] not in run.names:
            said = (
                f"the log names {first_of(sorted(set(run.names)), 3)}, but its columns are those of {name[0]}"
            )
            yield f"{said}, which is assumed (--collective)"


def _merged(runs: Iterable[LogRun], series: Iterable[Series]) -> Iterable[str]:
    """Notes on runs of one kind, if some size was measured in several of them."""
    of_kind: dict[str, list[LogRun]] = defaultdict(list)
    for run, each in zip(runs, series, strict=True):
        of_kind[each.title if each.num_ranks else each.collective].append(run)
    for title, some in of_kind.items():
        times: dict[int, list[float]] = defaultdict(list)
        for run in some:
            for size, time_us in {row.size_bytes: row.time_us for row in run.rows}.items():
                times[size].append(time_us)
        if any(len(each) > 1 for each in times.values()):
            types = sorted({row.dtype for run in some for row in run.rows} - {""})
            of_types = f" (types {', '.join(types)})" if len(types) > 1 else ""
            said = f"{len(some)} runs of {title}{of_types}"
            yield f"{said} {differing(times) or 'are merged: a time is the median of its size'}"
