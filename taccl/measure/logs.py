"""Read benchmark logs as users paste them: nccl-tests, rccl-tests, perftest, OSU, and reports of `taccl run`.

A file may hold several runs, with other text between them. Rows match the pattern of nccl-tests, which needs
no header, or follow a header that names size and time or bandwidth. If the number of ranks is not stated, it
follows from busbw / algbw. The number of nodes follows from the list of devices.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from taccl._internal.file_kinds import LOGS, unquoted
from taccl._internal.names import first_of, shown
from taccl._internal.reading import read_text, reads
from taccl._internal.units import format_count, format_size
from taccl.errors import FormatError
from taccl.measure.debug_lines import debug_facts
from taccl.measure.json_logs import printed
from taccl.measure.rows import (
    HALF_DIGIT,
    Columns,
    Row,
    columns_of,
    is_broken,
    is_cut,
    names_unit,
    nccl_row,
    plain,
)
from taccl.measure.run_reports import run_reports, series_of_reports
from taccl.measure.series import POINT_TO_POINT, Counted, Log, Series, joined
from taccl.problem.collective import busbw_factor

#: {collective: pattern of its names in logs}.
#: SURE stands for the text that must follow a common word such as "reduce" to make it a name.
_NAMES = {
    "allreduce": r"all[_ -]?reduce", "allgather": r"all[_ -]?gather",
    "alltoall": r"all[_ -]?to[_ -]?all(?!v)", "alltoallv": r"all[_ -]?to[_ -]?allv",
    "reduce-scatter": r"reduce[_ -]?scatter",
    "broadcast": r"broadcastSURE|osu_bcast",
    "reduce": r"(?<!all[_ -])reduce(?![_ -]?scatter)SURE",
    "gather": r"(?<!all[_ -])gatherSURE", "scatter": r"(?<!reduce[_ -])scatterSURE",
    "hypercube": "hypercube_perf",
    POINT_TO_POINT: r"sendrecv(?=_perf)|(?:OSU \S+ (?:bi-directional )?|RDMA_\w+ |Send )"
    r"(?:latency|bandwidth) test",
}  # fmt: skip
#: `_MENTIONS`: {collective or other test: pattern of its names in lines}.
#: `_IN_STEM`: {collective or other test: pattern of its names in file names, such as nccl_broadcast.log}.
_MENTIONS, _IN_STEM = (
    {
        name: re.compile(rf"(?<![a-z])(?:{form.replace('SURE', sure)})", re.IGNORECASE)
        for name, form in _NAMES.items()
    }
    for sure in (r"(?=_perf|[^#]*latency test)", r"(?![a-z])")
)
_SUMS = ("allreduce", "reduce", "reduce-scatter")
_PARTED = ("allgather", "alltoall", "reduce-scatter")  #: nccl-tests counts the elements of one rank's part.
#: Beginning of a run of nccl-tests, or of its table.
_BEGINS = re.compile(r"nThreads?\b|Using devices|Collective test starting|\bsize\s+count\s+(?:type|time)\b")
#: Rank, group, host and GPU in a list of devices. Pages leave out hosts or addresses, and add remarks.
_DEVICE = re.compile(
    r"\bRank\s+(\d+)\s(?:\s*Group\s+(\d+))?(?:.*?\bon\s+(\S+)\s+|(?:\s*Pid:?\s+\d+)?\s*)device\s+\d+"
    r"(?:\s+\[[^\]]*\]|(?=\s+(?:NVIDIA|AMD|Tesla|Quadro|GeForce)\b))\s*(.*?)\s*(?:\([^()]*\))?$"
)
#: Number of threads of a process, and of GPUs whose kernels one thread launches, in the header of nccl-tests.
_GPUS_PER_THREAD = re.compile(r"\bnThreads?:?\s+(\d{1,4})\s+nGpus:?\s+(\d{1,4})\b")
#: Number of ranks of a communicator, in a line of NCCL_DEBUG=INFO. Atomic groups match at one place of a line
#: only, so that the search takes linear time.
_NUM_RANKS = re.compile(r"(?m)^(?>.*?CCL INFO )(?>.*?\bcomm\b).*\bn[Rr]anks (\d{1,7})\b")
#: Process id of a rank, in the list of devices.
_PID = re.compile(r"\bPid:?\s+(\d+)\b")
#: `_BANDWIDTH_TEST`: title of a bandwidth test; its group matches if the test adds up both directions.
#: `_OSU`: title of an OSU benchmark, or of a latency test of perftest.
_BANDWIDTH_TEST = re.compile(r"(bi-?directional\s+)?(?:BW|Bandwidth)\s+Test", re.IGNORECASE)
_OSU = re.compile(r"#\s*OSU\s|^\s*(?:RDMA_\w+|Send)\s+Latency Test", re.IGNORECASE)
#: Title of a benchmark of OSU or of perftest.
_TITLE = re.compile(r"^[# \t]*((?:OSU|RDMA_\w+|Send)\b.* Test\b.*)", re.MULTILINE)
#: {note: pattern of lines that show that buffers were in host memory}.
_HOST_MEMORY = {
    "measured in host memory (OSU without CUDA or ROCm)": re.compile(r"^#\s*OSU MPI [A-Z]", re.MULTILINE),
    "measured by gloo, which runs on CPUs": re.compile(r"\bgloo\b", re.IGNORECASE),
}
#: {note: pattern of headers of benchmarks of other libraries than NCCL and RCCL}.
OTHER_LIBRARY = {
    "an MPI library ran the collective (OSU), not NCCL or RCCL; nccl-tests or rccl-tests measure these":
        re.compile(r"^#\s*OSU MPI-(?:CUDA|ROCM) (?!Latency|Bandwidth|Bi-)\S", re.MULTILINE | re.IGNORECASE),
}  # fmt: skip
#: Header of a run whose times are those of the CPU; its bandwidths are still those of the GPUs.
_CPU_TIME = re.compile(r"\bcputime\b")
#: {note: pattern of headers of runs whose operations are not launched one by one}.
_LAUNCHED = {
    "operations were launched several at a time (-m), so times are shares of theirs": re.compile(
        r"\bagg iters:\s*(?!1\b)\d"
    ),
    "operations were launched in CUDA graphs (-G), without a launch of their own": re.compile(
        r"\bgraph:\s*[1-9]"
    ),
    "times are of the CPU (-C), so they are computed from algbw, at 1 GB/s and more": _CPU_TIME,
}
#: {note: pattern of lines in which nccl-tests or rccl-tests end because of an error}.
_FAILED = {
    "the run ended with an error (Test failure), so rows may be missing; see the log": re.compile(
        r"\bTest (?:NCCL |RCCL |CUDA |HIP |MPI )?failure\b"
    ),
}
#: `_COMPARED_BYTES`: min bytes at which times are compared for a note, as times of smaller sizes are noisy.
#: `_RUNS_DIFFER`: min ratio of the slowest to the fastest of merged runs for a note that they differ, at the
#: largest size that at least two runs measured.
#: `_OTHER_FASTER`: max ratio of two times at the largest size, in the other place and in the place that is
#: read (in place or out of place), for a note that the other place is faster.
_COMPARED_BYTES, _RUNS_DIFFER, _OTHER_FASTER = 2**26, 1.15, 0.9
#: Min algbw in GB/s whose two decimals are precise enough for the ratio of busbw to algbw.
_PRECISE_ALGBW = 1.0
#: Relative difference below which bus bandwidth counts as equal to algorithm bandwidth.
_FACTOR_OFF = 0.01
#: Min share of the greatest bandwidth at which a stream of messages counts as bandwidth-bound.
_PLATEAU = 0.95


@dataclass
class _LogRun:
    """One benchmark run of a log, filled in while the lines of the log are read.

    - `line`: Number of its first row's line.
    - `names`: Collectives named above its rows, in order.
    - `hosts`: {rank: host}, of the first group.
    - `groups`: Groups of ranks that ran at the same time.
    - `twice`: Hosts of rank 0, if several lists of ranks precede the rows, each with another host for rank 0.
      Independent processes write such lists.
    - `streams`: True if the run states bandwidths only.
    - `is_osu`: True for OSU benchmarks and perftest's latency tests.
    - `ranks_per_process`: Number of GPUs whose kernels one thread launches, 0 if unknown.
    - `is_doubtful_process`: True if more ranks share a process than its header states.
    - `unnamed`: Unit that is assumed of its times or rates, as its header names none; else empty.
    """

    line: int
    names: list[str] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    hosts: dict[int, str] = field(default_factory=dict)
    streams: bool = False
    is_osu: bool = False
    groups: frozenset[str] = frozenset()
    twice: tuple[str, ...] = ()
    ranks_per_process: int = 0
    is_doubtful_process: bool = False
    unnamed: str = ""


@reads("log of a benchmark", *LOGS)
def read_log(path: str | os.PathLike[str], *, collective: str | None = None, in_place: bool = False) -> Log:
    """Read the measurements in a file.

    - `path`: A text file, or JSON of nccl-tests (``-J``), rccl-tests (``-x``) or ``taccl run --json``.
    - `collective`: The collective measured, if the file does not name it.
    - `in_place`: True for the in-place times of nccl-tests and rccl-tests.

    Raises `FormatError` if the file has no usable row, a time is not above 0, or the collective cannot be
    identified.
    """
    return log_of_text(read_text(path), os.fspath(path), collective=collective, in_place=in_place)


def log_of_text(text: str, where: str, *, collective: str | None = None, in_place: bool = False) -> Log:
    """Read the measurements in a text, as `read_log` does for a file; messages name `where` as the source."""
    path, given = where, unquoted(text)
    text = printed(given)
    # Line numbers in messages count the lines of `text`, into which JSON output was converted.
    where = path if text == given else f"{path}, as text"
    lines = [plain(line) for line in text.splitlines()]
    left_out: list[str] = []
    reports = list(run_reports(text))
    series = series_of_reports(reports, where)
    notes = ["measured by MPI processes in host memory (taccl run)"] if reports else []
    if not reports:
        runs = _runs(lines, where, left_out, in_place=in_place)
        stated = {int(number) for number in _NUM_RANKS.findall(text)}
        series = [_of_run(run, where, collective, stated) for run in runs]
        forms = {**_HOST_MEMORY, **OTHER_LIBRARY, **_LAUNCHED, **_FAILED}
        notes = [*_uneven(runs), *_doubtful(runs), *_merged(runs, series)]
        notes += dict.fromkeys(_by_place(runs, in_place=in_place))
        notes += [] if collective else dict.fromkeys(_concluded(runs, where))
        notes += [said for said, form in forms.items() if form.search(text)]
    if not series:
        expected = "rows of nccl-tests, rccl-tests, perftest or OSU, or a report of `taccl run --json`"
        title = _TITLE.search(text)
        told = f" of {shown(repr(title[1].strip()), 90)}" if title else ""
        told += f" ({left_out[0]})" if left_out else ""
        raise FormatError(f"found no usable measurement{told}; expected {expected}", where=where)
    devices = filter(None, map(_DEVICE.search, lines))
    gpus = frozenset(device[4].strip() for device in devices) - {""}
    return Log(path, tuple(joined(series)), gpus, tuple(left_out), tuple(notes), debug_facts(text))


def _uneven(runs: Iterable[_LogRun]) -> Iterable[str]:
    """Notes on runs whose hosts have different numbers of ranks, each distinct case once."""
    # Only complete lists of devices count: pasted lists often lack lines.
    whole = [run.hosts for run in runs if len(run.hosts) == max(run.hosts, default=-1) + 1]
    counts = dict.fromkeys(tuple(Counter(hosts.values()).items()) for hosts in whole)
    for hosts in counts:
        if len({count for _, count in hosts}) > 1:
            listed = first_of([f"{count} on {shown(host, 60)}" for host, count in hosts], 4)
            yield f"the nodes differ, with ranks {listed}; the model takes nodes to be equal"


def _by_place(runs: Iterable[_LogRun], *, in_place: bool) -> Iterable[str]:
    """Notes on runs whose largest size is faster in the other place than in the place that is read."""
    other, how = ("out of place", "without --in-place") if in_place else ("in place", "--in-place")
    for run in runs:
        row = run.rows[-1]
        if row.size_bytes >= _COMPARED_BYTES and 0 < row.other_us <= _OTHER_FASTER * row.time_us:
            said = f"{format_size(row.size_bytes)} takes {row.other_us / row.time_us:.0%} of the time {other}"
            yield f"{said}; judge that, too ({how})"


def _doubtful(runs: Sequence[_LogRun]) -> Iterable[str]:
    """Notes on doubtful runs, each once.

    They are on wrong results, times in place, several groups of ranks, unknown units, and independent
    processes.
    """
    wrong = [row for run in runs for row in run.rows if row.num_wrong]
    if wrong:
        sizes = first_of([str(row.size_bytes) for row in wrong], 4)
        yield f"results were wrong at {format_count(len(wrong), 'size')} (#wrong above 0), in bytes: {sizes}"
    if any(row.is_other_place for run in runs for row in run.rows):
        yield "times are those in place where the log has no others"
    for groups in dict.fromkeys(run.groups for run in runs if len(run.groups) > 1):
        yield f"{len(groups)} groups of ranks ran at the same time and share links; times are of one group"
    for unit in dict.fromkeys(run.unnamed for run in runs if run.unnamed):
        yield f"figures are assumed to be in {unit}, as the header of their table names no unit"
    for hosts in dict.fromkeys(run.twice for run in runs if run.twice):
        listed = first_of([shown(host, 60) for host in hosts], 4)
        yield f"rank 0 is listed on {listed}: the runs are independent, as of nccl-tests built without MPI=1"


def _concluded(runs: Iterable[_LogRun], where: str) -> Iterable[str]:
    """Notes on collectives that were inferred from columns or checks of results, not from names in logs."""
    for run in runs:
        name = [] if run.streams else _named(run, where)[-1:]
        if not run.streams and not name and (found := _by_counts(run.rows)):
            part = "all elements" if found == "allreduce" else "a rank's part"
            yield f"no collective is named; sums that count {part} are assumed to be {found}s (--collective)"
        elif not run.streams and not name:
            found = _by_checks(run)
            told = "are" if found == "allgather" else "are not"
            yield f"no collective is named; results in place {told} checked, as in {found}s (--collective)"
        elif name and run.names and name[0] not in run.names:
            said = (
                f"the log names {first_of(sorted(set(run.names)), 3)}, but its columns are those of {name[0]}"
            )
            yield f"{said}, which is assumed (--collective)"


def _merged(runs: Iterable[_LogRun], series: Iterable[Series]) -> Iterable[str]:
    """Notes on runs that `joined` merges, if some size was measured in several of them."""
    of_kind: dict[str, list[_LogRun]] = defaultdict(list)
    for run, each in zip(runs, series, strict=True):
        of_kind[each.title if each.num_ranks else each.collective].append(run)
    for title, some in of_kind.items():
        times: dict[int, list[float]] = defaultdict(list)
        for run in some:
            for size, time_us in {row.size_bytes: row.time_us for row in run.rows}.items():
                times[size].append(time_us)
        common = max((size for size, each in times.items() if len(each) > 1), default=0)
        if common:
            types = sorted({row.dtype for run in some for row in run.rows} - {""})
            of_types = f" (types {', '.join(types)})" if len(types) > 1 else ""
            said = f"{len(some)} runs of {title}{of_types} are merged: a time is the median of its size"
            ratio = max(times[common]) / min(times[common])
            if ratio >= _RUNS_DIFFER and common >= _COMPARED_BYTES:
                said += f"; at {format_size(common)} they differ by {ratio:.3g} times: judge them one by one"
            yield said


def _runs(lines: list[str], where: str, left_out: list[str], *, in_place: bool) -> list[_LogRun]:
    """The runs in a file, each with its rows; rows that contradict themselves go to `left_out`."""
    run, runs = _LogRun(0), []
    names: list[str] = []
    hosts: dict[int, str] = {}
    pids: dict[int, str] = {}
    groups: set[str] = set()
    firsts: list[str] = []  # hosts of rank 0, one for each list of devices
    fresh = True  # True if the next device line begins the list of a new run
    columns: Columns | None = None
    directions, is_osu, is_cpu, threads, per_process = 1, False, False, 0, 0
    last = max((number for number, line in enumerate(lines, 1) if line.strip()), default=0)
    for number, line in enumerate(lines, 1):
        here = f"{where}: line {number}"
        row = columns.row(line, here) if columns is not None and columns.is_by_name else None
        row = row or nccl_row(line, here, in_place=in_place)
        unnamed = columns.unnamed if columns is not None and row is None and not names_unit(line) else ""
        streams = row is None and columns is not None and "rate" in columns.places
        if row is None and columns is not None:
            row = columns.row(line, here)
        if row is None:
            names += [each for each, form in _MENTIONS.items() if form.search(line)]
            if (device := _DEVICE.search(line)) is not None:
                if fresh:
                    hosts, pids, groups, firsts = {}, {}, set(), []
                rank, group = int(device[1]), device[2] or "0"
                groups.add(group)
                if group == min(groups):
                    hosts.setdefault(rank, device[3] or "")
                    if (pid := _PID.search(line)) is not None:
                        pids.setdefault(rank, pid[1])
                    firsts += [device[3] or ""] * (rank == 0)
                fresh = False
            if (title := _BANDWIDTH_TEST.search(line)) is not None:
                directions = 2 if title[1] else 1
            if (launched := _GPUS_PER_THREAD.search(line)) is not None:
                threads, per_process = int(launched[1]), int(launched[2])
            header = columns_of(line, in_place=in_place)
            is_osu = bool(_OSU.search(line)) or is_osu and not _BEGINS.search(line)
            if header is not None or _BEGINS.search(line) or _OSU.search(line):
                columns, is_cpu = header, bool(_CPU_TIME.search(line))
                if run.rows:
                    run, fresh = _LogRun(0), True
            if is_broken(line) or number == last and run.rows and is_cut(line):
                left_out.append(f"line {number}: found a row without all figures; write it on one line")
            continue
        if not row.size_bytes:
            continue
        names += [each for each, form in _IN_STEM.items() if row.collective and form.search(row.collective)]
        if is_cpu:
            if row.algbw < _PRECISE_ALGBW:
                continue
            row = row._replace(time_us=row.size_bytes / row.algbw / 1000, agrees=True)
        if not row.agrees:
            stated = row.size_bytes / row.time_us / 1000
            left_out.append(
                f"line {number}: found algbw {row.algbw:g} GB/s; expected {stated:.4g}, of {row.size_bytes} "
                f"bytes in {row.time_us:g} us"
            )
            continue
        if run.rows and (row.size_bytes < run.rows[-1].size_bytes or _differs(row, run.rows[-1])):
            run = _LogRun(0)
        if not run.rows:
            apart = tuple(dict.fromkeys(firsts)) if len(set(firsts)) > 1 else ()
            run = _LogRun(
                number, list(names), [], dict(hosts), streams, is_osu, frozenset(groups), apart,
                per_process or _ranks_per_process(hosts, pids),
                bool(per_process) and max(_shared(hosts, pids).values(), default=0) > threads * per_process,
                unnamed,
            )  # fmt: skip
            runs.append(run)
            fresh = True
        run.rows.append(row._replace(time_us=row.time_us * directions) if streams else row)
    return runs


def _ranks_per_process(hosts: dict[int, str], pids: dict[int, str]) -> int:
    """Max number of ranks that share a process, from the host and the process of each rank.

    0 if a rank's process is unknown, or if several ranks of a host state process 1: the first process of
    every container has this number.
    """
    ranks = _shared(hosts, pids)
    if any(pid == "1" and count > 1 for (_, pid), count in ranks.items()):
        return 0
    return max(ranks.values(), default=0)


def _shared(hosts: dict[int, str], pids: dict[int, str]) -> Counter[tuple[str, str]]:
    """Number of ranks of each (host, process); empty if a rank's process is unknown."""
    if hosts.keys() != pids.keys():
        return Counter()
    return Counter((host, pids[rank]) for rank, host in hosts.items())


def _differs(row: Row, last: Row) -> bool:
    """True if two rows of one size have ratios of busbw to algbw that show unequal numbers of ranks."""
    if row.size_bytes != last.size_bytes or min(row.algbw, last.algbw) < _PRECISE_ALGBW:
        return False
    off = abs(row.busbw / row.algbw - last.busbw / last.algbw)
    return off > 2 * HALF_DIGIT * (1 / row.algbw + 1 / last.algbw) * max(row.busbw / row.algbw, 1)


def _of_run(run: _LogRun, where: str, given: str | None, stated: Collection[int]) -> Series:
    """Series of a run; `stated` are the numbers of ranks of communicators in the log."""
    source = f"{where}: line {run.line}"
    rows = run.rows
    if run.streams:
        most = max(row.size_bytes / row.time_us for row in rows)
        rows = [row for row in rows if row.size_bytes / row.time_us >= _PLATEAU * most]
    sizes, times = tuple(row.size_bytes for row in rows), tuple(row.time_us for row in rows)
    if run.streams:
        return Series(POINT_TO_POINT, 2, 2, sizes, times, source, streams=True)
    if any(row.algbw >= _PRECISE_ALGBW for row in rows if row.reduces is not None) and not any(
        row.busbw for row in rows
    ):
        said = "found a run of one rank, which sends nothing (busbw is 0); give a log of several ranks"
        raise FormatError(f"{said} (nccl-tests built with MPI=1)", where=source)
    if given and given != POINT_TO_POINT and rows[0].reduces is not None and not _may_be(given, rows):
        fits = " or ".join(each for each in _MENTIONS if _may_be(each, rows)) or "no known collective"
        said = f"found a table of {fits}, by redop and busbw, but collective={given!r}"
        raise FormatError(f"{said}; leave it out or correct it", where=source)
    name = given or _collective(run, where)
    listed = max(run.hosts, default=-1) + 1
    # With n ranks, busbw / algbw is 2 (n - 1) / n for an allreduce, and 1 for a broadcast or reduce.
    # It is (n - 1) / n for other collectives.
    factor = _factor(rows[-8:]) / (2 if name == "allreduce" else 1)
    is_informative = 0.4 < factor < 0.9999 and name not in ("broadcast", "reduce")
    num_ranks = round(1 / (1 - factor)) if is_informative else 0
    known = stated if len(stated) == 1 else _parts(name, rows)
    num_ranks = next((n for n in known if n > 1 and _may_have(n, name, rows)), num_ranks)
    # busbw / algbw is imprecise for many ranks, and at low bandwidths.
    if not num_ranks or abs(num_ranks - listed) <= num_ranks // 10 or _may_have(listed, name, rows):
        num_ranks = listed or num_ranks
    complete = num_ranks and len(run.hosts) >= num_ranks - 1  # pasted lists often lack the first line
    num_nodes = len(set(run.hosts.values())) if complete and all(run.hosts.values()) else 0
    counted: Counted = "busbw" if any(row.is_bus for row in run.rows) else ""
    if run.is_osu:
        counted = "part" if name in ("allgather", "alltoall") else ""
        num_ranks = num_nodes = 2 if name == POINT_TO_POINT else 0
    return Series(
        name, num_ranks, num_nodes, sizes, times, source, counted=counted,
        ranks_per_process=run.ranks_per_process, is_doubtful_process=run.is_doubtful_process,
        other_us=run.rows[-1].other_us,
    )  # fmt: skip


def _collective(run: _LogRun, where: str) -> str:
    """Collective of a run: the last one named that fits the columns, else the one that its checks imply."""
    found = _named(run, where)
    if found:
        return found[-1]
    if concluded := _by_counts(run.rows) or _by_checks(run):
        return concluded
    kind = {True: "a reduction", False: "no reduction", None: "times"}[run.rows[0].reduces]
    said = f"found a table of {kind} without its collective; give --collective"
    raise FormatError(said, where=f"{where}: line {run.line}")


def _named(run: _LogRun, where: str) -> list[str]:
    """Collectives named in the log that fit the run's columns; if none, the only one that fits them."""
    stem = os.path.basename(where)
    named = [*(each for each, form in _IN_STEM.items() if form.search(stem)), *run.names]
    possible = [each for each in _MENTIONS if _may_be(each, run.rows)]
    # sendrecv_perf prints a reduction operator although it does not reduce.
    known = {*possible, POINT_TO_POINT} if abs(_factor(run.rows) - 1) < _FACTOR_OFF else possible
    return [each for each in named if each in known] or (possible if len(possible) == 1 else [])


def _by_checks(run: _LogRun) -> str:
    """Allgather or alltoall, told apart by the checks of a run's results; empty if these do not decide.

    Both have the same columns, but nccl-tests does not check an alltoall in place.
    """
    checks = {row.checks_in_place for row in run.rows}
    is_either = all(_may_be(each, run.rows) for each in ("allgather", "alltoall"))
    if len(checks) > 1 or not is_either or not (_factor(run.rows) or _parts("alltoall", run.rows)):
        return ""
    return {True: "allgather", False: "alltoall", None: ""}[checks.pop()]


def _by_counts(rows: list[Row]) -> str:
    """Sum without a root that the counts of elements tell: all of them, or one rank's part; empty if none."""
    parts = {row.parts for row in rows}
    if len(parts) > 1 or parts == {0} or any(not row.reduces or row.has_root for row in rows):
        return ""
    return "allreduce" if parts == {1} else "reduce-scatter"


def _may_be(name: str, rows: list[Row]) -> bool:
    """True if the columns fit a collective in their reduction operator and their ratio of busbw to algbw."""
    factor = _factor(rows)
    # nccom-test names no reduction operator; only an allreduce has a busbw above algbw.
    is_allreduce = name == "allreduce" and factor > 1 + _FACTOR_OFF
    if rows[0].reduces not in (None, name in _SUMS) and not is_allreduce:
        return False
    if not factor:
        return True
    if name == "allreduce":
        return factor > 0.99
    return (
        abs(factor - 1) < _FACTOR_OFF if name in ("broadcast", "reduce", POINT_TO_POINT) else factor < 0.9999
    )


def _parts(name: str, rows: list[Row]) -> set[int]:
    """Number of ranks by the counts of elements, which are those of one rank's part; empty if unknown."""
    parts = {row.parts for row in rows}
    return parts - {0, 1} if len(parts) == 1 and name in _PARTED else set()


def _factor(rows: list[Row]) -> float:
    """Median ratio of busbw to algbw; 0 if no row has an algbw of `_PRECISE_ALGBW` or more."""
    ratios = [row.busbw / row.algbw for row in rows if row.algbw >= _PRECISE_ALGBW]
    return median(ratios) if ratios else 0.0


def _may_have(num_ranks: int, name: str, rows: list[Row]) -> bool:
    """True if each row's ratio of busbw to algbw fits `num_ranks`, up to the rounding of both."""
    factor = busbw_factor(name, num_ranks) if num_ranks > 1 else 0.0
    return all(abs(row.busbw - factor * row.algbw) <= HALF_DIGIT * (1 + factor) for row in rows)
