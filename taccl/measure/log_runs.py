"""Split a benchmark log into runs: the rows of each, and the facts of the headers above them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from taccl.measure.debug_lines import called, is_debug
from taccl.measure.rows import (
    HALF_DIGIT,
    HALF_TIME,
    MS,
    US,
    Row,
    is_broken,
    is_cut,
    lacks_cells,
    nccl_row,
    num_begun,
)
from taccl.measure.series import POINT_TO_POINT
from taccl.measure.tables import Columns, columns_of, label_of, names_unit

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
    POINT_TO_POINT: r"sendrecv(?=_perf)|(?:(?:OSU|OMB-Py|OMB Python) \S+ (?:bi-directional )?"
    r"|RDMA_\w+ |Send )(?:latency|bandwidth) test",
}  # fmt: skip
#: `MENTIONS`: {collective or other test: pattern of its names in lines}.
#: `IN_STEM`: {collective or other test: pattern of its names in file names, such as nccl_broadcast.log}.
MENTIONS, IN_STEM = (
    {
        name: re.compile(rf"(?<![a-z])(?:{form.replace('SURE', sure)})", re.IGNORECASE)
        for name, form in _NAMES.items()
    }
    for sure in (r"(?=_perf|[^#]*latency test)", r"(?![a-z])")
)
#: Beginning of a run of nccl-tests, or of its table.
_BEGINS = re.compile(r"nThreads?\b|Using devices|Collective test starting|\bsize\s+count\s+(?:type|time)\b")
#: Rank, group, host and GPU in a list of devices. Pages leave out hosts or addresses, and add remarks.
DEVICE = re.compile(
    r"\bRank\s+(\d+)\s(?:\s*Group\s+(\d+))?(?:.*?\bon\s+(\S+)\s+|(?:\s*Pid:?\s+\d+)?\s*)device\s+\d+"
    r"(?:\s+\[[^\]]*\]|(?=\s+(?:NVIDIA|AMD|Tesla|Quadro|GeForce)\b))\s*(.*?)\s*(?:\([^()]*\))?[\",]*$"
)
#: Number of threads of a process, and of GPUs whose kernels one thread launches, in the header of nccl-tests.
_GPUS_PER_THREAD = re.compile(r"\bnThreads?:?\s+(\d{1,4})\s+nGpus:?\s+(\d{1,4})\b")
#: Least and greatest size of a run, and the step between sizes, in the header of nccl-tests.
_SIZES = re.compile(
    r"\bminBytes:?\s+(\d{1,18})\s+maxBytes:?\s+(\d{1,18})\s+step:?\s+(\d{1,18})\((factor|bytes)\)"
)
#: Process id of a rank, in the list of devices.
_PID = re.compile(r"\bPid:?\s+(\d+)\b")
#: `_BANDWIDTH_TEST`: title of a bandwidth test; its group matches if the test adds up both directions.
#: `_OSU`: title of an OSU benchmark, also of OMB-Py, or of a latency test of perftest.
_BANDWIDTH_TEST = re.compile(r"(bi-?directional\s+)?(?:BW|Bandwidth)\s+Test", re.IGNORECASE)
_OSU = re.compile(r"#\s*(?:OSU\s|OMB[ -]Py)|^\s*(?:RDMA_\w+|Send)\s+Latency Test", re.IGNORECASE)
#: Header of a run whose times are those of the CPU; its bandwidths are still those of the GPUs.
CPU_TIME = re.compile(r"\bcputime\b")
#: Header of a table of nccl-tests 1, whose times are in ms.
TIMES_IN_MS = re.compile(r"(?m)^.*\bbytes\s+N\s+type\b.*\btime\s+algbw\s+busbw\s+res\b")
#: Words in lower case, of which each line of a header, a title or a list of devices has one.
_TOLD_BY = (
    "reduce", "gather", "scatter", "broadcast", "bcast", "to_all", "to-all", "to all", "toall", "sendrecv",
    "hypercube", "device", "test", "nthread", "size", "bytes", "osu",
)  # fmt: skip
#: Min algbw in GB/s whose two decimals are precise enough for the ratio of busbw to algbw.
PRECISE_ALGBW = 1.0


@dataclass
class LogRun:
    """One benchmark run of a log, filled in while the lines of the log are read.

    - `line`: Number of its first row's line.
    - `names`: Collectives named above its rows, in order.
    - `hosts`: {rank: host}, of the group of rank 0.
    - `groups`: Groups of ranks that ran at the same time.
    - `twice`: Hosts of rank 0, if several lists of ranks precede the rows, each with another host for rank 0.
      Independent processes write such lists.
    - `streams`: True if the run states bandwidths only.
    - `is_osu`: True for OSU benchmarks and perftest's latency tests.
    - `ranks_per_process`: Number of GPUs whose kernels one thread launches, 0 if unknown.
    - `is_doubtful_process`: True if more ranks share a process than its header states.
    - `unnamed`: Unit that is assumed of its times or rates, as its header names none; else empty.
    - `announced`: Least size, greatest size and step that its header states, and ``"factor"`` or ``"bytes"``
      for the kind of step; empty without such a header.
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
    announced: tuple[str, ...] = ()


def runs_in(lines: Sequence[str], where: str, left_out: list[str], *, in_place: bool) -> list[LogRun]:
    """The runs in a file, each with its rows; rows that contradict themselves go to `left_out`."""
    reader = _Reader(where, left_out, in_place)
    last = max((number for number, line in enumerate(lines, 1) if line.strip()), default=0)
    for number, line in enumerate(lines, 1):
        reader.read(number, line, is_last=number == last)
    return reader.runs


class _Devices:
    """List of devices above the rows of a run.

    - `groups`: {group: {rank: (host, process)}}; the process is empty if the list does not state it.
    - `firsts`: Hosts of rank 0, one for each list, as independent processes write several.
    """

    def __init__(self) -> None:
        self.groups: dict[str, dict[int, tuple[str, str]]] = {}
        self.firsts: list[str] = []

    def add(self, device: re.Match[str], line: str) -> None:
        """Add a rank from a line of a device list; `device` is the line's match of `DEVICE`."""
        rank, host, pid = int(device[1]), device[3] or "", _PID.search(line)
        self.groups.setdefault(device[2] or "0", {}).setdefault(rank, (host, pid[1] if pid else ""))
        self.firsts += [host] * (rank == 0 and len(self.groups) == 1)

    def of_rank_0(self) -> tuple[dict[int, str], dict[int, str]]:
        """({rank: host}, {rank: process}) of the group of rank 0, which times the run.

        nccl-tests lists ranks of all groups together; those of a group are renumbered from 0 then.
        """
        ranks = min(self.groups.values(), key=min, default={})
        if len(self.groups) > 1:
            ranks = dict(enumerate(ranks[rank] for rank in sorted(ranks)))
        pids = {rank: pid for rank, (_, pid) in ranks.items() if pid}
        return {rank: host for rank, (host, _) in ranks.items()}, pids


class _Reader:
    """Reader of a log, line by line: facts of the headers so far, and the runs with their rows."""

    def __init__(self, where: str, left_out: list[str], in_place: bool) -> None:
        self.runs: list[LogRun] = []
        self._where, self._left_out, self._in_place = where, left_out, in_place
        self._run = LogRun(0)
        self._columns: Columns | None = None
        self._label: re.Pattern[str] | None = None  # label before each line of the table
        self._widths: list[int] = []  # characters of each row of a table whose cells blanks separate
        self._names: list[str] = []
        self._devices, self._ends_list = _Devices(), True  # True if the next device begins a new list
        self._is_osu = self._is_cpu = False
        self._unit_us = US  # unit of times in rows of nccl-tests
        self._announced: tuple[str, ...] = ()
        self._directions = 1  # 2 if rates are sums of both directions
        self._threads = self._per_process = 0  # threads of a process, and GPUs of a thread; 0: unknown

    def read(self, number: int, line: str, *, is_last: bool) -> None:
        """Read the line of this number: a row, a line of a header, or other text."""
        if is_debug(line):
            self._names += _mentioned(called(line))
            return
        columns, here = self._columns, f"{self._where}: line {number}"
        row, streams, unnamed = None, False, ""
        if columns is not None and columns.is_by_name:
            row = columns.row(line, here)
        row = row or nccl_row(line, here, in_place=self._in_place, unit_us=self._unit_us)
        if row is None and columns is not None:
            streams, unnamed = "rate" in columns.places, "" if names_unit(line) else columns.unnamed
            label = self._label.match(line) if self._label else None
            row = columns.row(line[label.end() :] if label else line, here)
            if row is not None and not columns.splits:
                widths = set(self._widths)
                if is_last and len(widths) == 1 < len(self._widths) and len(line) < min(widths):
                    said = "found a row shorter than all others, as if cut off; save the log whole"
                    self._left_out.append(f"line {number}: {said}")
                    return
                self._widths.append(len(line))
        if row is None:
            self._read_text(line)
            least = self._run.rows[-1].size_bytes if self._run.rows else 0
            if is_broken(line) or is_last and least and is_cut(line) or least and lacks_cells(line, least):
                advice = "save the log whole" if is_last else "write it on one line"
                said = f"found a row without all figures; {advice}"
                if num_begun(line) > 1:
                    said = "found several rows on one line; write each on a line, or give each log as a file"
                self._left_out.append(f"line {number}: {said}")
        elif row.size_bytes:
            name = row.collective
            self._names += [each for each, form in IN_STEM.items() if name and form.search(name)]
            self._read_row(number, row, streams=streams, unnamed=unnamed)

    def _read_text(self, line: str) -> None:
        lower = line.lower()
        # Most lines of a long log have none of these words, and need no search of patterns.
        if not any(word in lower for word in _TOLD_BY):
            return
        self._names += _mentioned(line)
        if (device := DEVICE.search(line)) is not None:
            if self._ends_list:
                self._devices = _Devices()
            self._devices.add(device, line)
            self._ends_list = False
        if (title := _BANDWIDTH_TEST.search(line)) is not None:
            self._directions = 2 if title[1] else 1
        if (launched := _GPUS_PER_THREAD.search(line)) is not None:
            self._threads, self._per_process = int(launched[1]), int(launched[2])
            announced = _SIZES.search(line)
            self._announced = announced.groups() if announced else ()
        header = columns_of(line, in_place=self._in_place)
        begins, is_osu = bool(_BEGINS.search(line)), bool(_OSU.search(line))
        self._is_osu = is_osu or self._is_osu and not begins
        if header is not None or begins or is_osu:
            self._columns, self._is_cpu, self._widths = header, bool(CPU_TIME.search(line)), []
            self._label = label_of(line) if header is not None and not header.is_by_name else None
            self._unit_us = MS if TIMES_IN_MS.search(line) else US
            if self._run.rows:
                self._run, self._ends_list = LogRun(0), True

    def _read_row(self, number: int, row: Row, *, streams: bool, unnamed: str) -> None:
        if self._is_cpu:
            if row.algbw < PRECISE_ALGBW:
                return
            row = row._replace(time_us=row.size_bytes / row.algbw / 1000, agrees=True)
        if not row.agrees:
            stated = row.size_bytes / row.time_us / 1000
            self._left_out.append(
                f"line {number}: found algbw {row.algbw:g} GB/s; expected {stated:.4g}, of {row.size_bytes} "
                f"bytes in {row.time_us:g} us"
            )
            return
        if self._unit_us == MS and HALF_DIGIT * row.time_us < HALF_TIME * row.algbw:
            row = row._replace(time_us=row.size_bytes / row.algbw / 1000)
        rows = self._run.rows
        if not rows or row.size_bytes < rows[-1].size_bytes or _differs(row, rows[-1]):
            self._begin_run(number, streams=streams, unnamed=unnamed)
        self._run.rows.append(row._replace(time_us=row.time_us * self._directions) if streams else row)

    def _begin_run(self, number: int, *, streams: bool, unnamed: str) -> None:
        devices, per_process = self._devices, self._per_process
        hosts, pids = devices.of_rank_0()
        most = max(_shared(hosts, pids).values(), default=0)
        self._run = LogRun(
            number, list(self._names), [], hosts, streams, self._is_osu,
            frozenset(devices.groups),
            tuple(dict.fromkeys(devices.firsts)) if len(set(devices.firsts)) > 1 else (),
            per_process or _ranks_per_process(hosts, pids),
            bool(per_process) and most > self._threads * per_process,
            unnamed, self._announced,
        )  # fmt: skip
        self.runs.append(self._run)
        self._ends_list = True


@lru_cache(maxsize=64)
def _mentioned(text: str) -> tuple[str, ...]:
    """Collectives that a text names."""
    return tuple(each for each, form in MENTIONS.items() if form.search(text))


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
    if row.size_bytes != last.size_bytes or min(row.algbw, last.algbw) < PRECISE_ALGBW:
        return False
    off = abs(row.busbw / row.algbw - last.busbw / last.algbw)
    return off > 2 * HALF_DIGIT * (1 / row.algbw + 1 / last.algbw) * max(row.busbw / row.algbw, 1)
