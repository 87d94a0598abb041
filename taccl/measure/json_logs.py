"""Read JSON of benchmarks: that of nccl-tests (-J, ``src/util.cu``) and rccl-tests (-x) becomes printed text.

Reports of `taccl run --json` are found between other text, too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, pairwise
from typing import Any

from taccl.errors import FormatError
from taccl.measure.inspector import inspector_lines
from taccl.measure.rows import element_bytes
from taccl.measure.series import Series

_HEAD = "# size count type redop root {time} algbw busbw #wrong {time} algbw busbw #wrong"
_DEVICE = "#  Rank {rank} Group {group} Pid {pid} on {hostname} device {device} [{device_hex}] {device_info}"
#: Max rank number, and max number of ranks per process. If a number exceeds it, unlisted ranks are not added.
_MOST_RANKS = 10_000
_FIGURES = ("time", "cpu_time"), ("alg_bw",), ("bus_bw",), ("nwrong",)


#: Line of a rank whose host and GPU are unknown.
_RANK = "#  Rank {rank} Group 0 device 0 [?]"
#: `_OF_RUN`: values that rows of a run of rccl-tests have in common. `_OF_ROW`: values that every row has.
_OF_RUN = ("numcycle", "name", "type", "redop", "ranks")
_OF_ROW = {"name", "size", "type", "redop", "inplace", "time", "algbw", "busbw"}


#: Line that replaces the missing end of a JSON file: the test writes rows one by one, and was stopped.
CUT_OFF = "# JSON is cut off here"
#: Characters that open or close objects and lists; or a whole string, which may contain them.
_BRACKETS = re.compile(r"[\[\]{}]|\"(?:[^\"\\]|\\.)*+\"")


def printed(text: str) -> str:
    """Text that nccl-tests or rccl-tests prints, if `text` is what it writes to a file; else `text`.

    Records of NCCL's Inspector become such text, too.
    """
    found = [each for each in _objects(text) if isinstance(each.get("results"), list)]
    lines = [line for each in found for line in _lines(each)] or list(_lines_of_records(_records(text)))
    if not lines and '"coll_perf"' in text:
        lines = list(inspector_lines(_objects(text)))
    if not lines and '"results"' in text and (closed := _closed(text)):
        found = [each for each in _objects(closed) if isinstance(each.get("results"), list)]
        lines = [*(line for each in found for line in _lines(each)), CUT_OFF] if found else []
    return "\n".join(lines) or text


def _records(text: str) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of rccl-tests' JSON, with the keys of old and new versions made alike."""
    given = text.strip()
    found: list[Any] = []
    if given.startswith("["):
        try:
            found = json.loads(given)
        except (ValueError, RecursionError):
            return
    else:
        found = list(_objects(given))
    for each in found:
        if isinstance(each, dict):
            named = {str(name).lower().lstrip("#"): value for name, value in each.items()}
            if named.keys() >= _OF_ROW and _number(named["size"]) > 0:
                yield named


def _lines_of_records(records: Iterator[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of the runs of rccl-tests: collective, ranks, and rows with the times in both places.

    Hosts are not listed, as the files' number of nodes is that of groups of processes.
    """
    for _, rows in groupby(records, lambda row: [row.get(each) for each in _OF_RUN]):
        first, *others = rows
        per_process = int(_number(first.get("gpusperrank", first.get("gpus"))))
        num_ranks = max(1.0, _number(first.get("ranks"))) * per_process
        yield f"# Collective test starting: {_cell(first['name']).lower()}_perf"
        yield f"# nThread 1 nGpus {per_process}"
        listed = range(int(num_ranks) if num_ranks <= _MOST_RANKS else 0)
        yield from (_RANK.format(rank=rank) for rank in listed)
        yield _HEAD.format(time="time")
        places: dict[int, dict[bool, Mapping[str, Any]]] = {}
        for row in (first, *others):
            places.setdefault(int(_number(row["size"])), {})[_number(row["inplace"]) > 0] = row
        dtype = _cell(first["type"])
        for size, of_place in places.items():
            cells = [str(size), str(size // (element_bytes(dtype) or 1)), dtype, _cell(first["redop"]), "-1"]
            for is_in_place in (False, True):
                row = of_place.get(is_in_place, {})
                figures = [_number(row.get(each)) for each in ("time", "algbw", "busbw", "wrong")]
                cells += ["N/A" if each < 0 else f"{each:.4f}" for each in figures[:3]]
                cells.append("N/A" if figures[3] < 0 else f"{figures[3]:.0f}")
            yield " ".join(cells)


def _number(value: object) -> float:
    """A value as a finite number, 1 for true; -1 if it is none."""
    try:
        found = float(value if isinstance(value, bool) else str(value))
    except ValueError:
        return -1.0
    return found if math.isfinite(found) else -1.0


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects at the beginning of a text, and those of a list there."""
    decoder, rest = json.JSONDecoder(), text.lstrip()
    while rest.startswith(("{", "[")):
        try:
            found, end = decoder.raw_decode(rest)
        except (ValueError, RecursionError):
            return
        yield from (
            each for each in (found if isinstance(found, list) else [found]) if isinstance(each, dict)
        )
        rest = rest[end:].lstrip()


def _closed(text: str) -> str:
    """JSON that ends early, cut behind its last whole object and closed there; empty if it has none."""
    closers: list[str] = []
    end, left = 0, ""
    for part in _BRACKETS.finditer(text):
        if part[0] in ("{", "["):
            closers.append("}" if part[0] == "{" else "]")
        elif part[0] in ("}", "]"):
            if not closers or closers.pop() != part[0]:
                return ""
            if part[0] == "}" and closers:
                end, left = part.end(), "".join(reversed(closers))
    return f"{text[:end]}{left}" if closers and end else ""


def _lines(run: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a run: its program, its settings, its devices and its rows."""
    rows = [row for row in run["results"] if isinstance(row, dict) and "size" in row and "count" in row]
    if not rows:
        return
    args, config = run.get("args"), run.get("config")
    program = args[0] if isinstance(args, list) and args else rows[0].get("experiment_name", "")
    yield f"# Collective test starting: {_cell(program).rpartition('/')[2]}"
    if isinstance(config, dict):
        yield f"# nThread {_cell(config.get('nthreads'))} nGpus {_cell(config.get('ngpus'))}"
        yield from _device_lines(config)
    env = run.get("env")
    for setting in env if isinstance(env, list) else ():
        name, _, value = str(setting).partition("=")
        if name.startswith("NCCL_"):
            yield f"NCCL INFO {_cell(name)} set by environment to {_cell(value)}"
    is_cpu = any("cpu_time" in str(row.get("out_of_place")) for row in rows)
    yield _HEAD.format(time="cputime" if is_cpu else "time")
    for row in rows:
        cells = [_cell(row.get(name)) for name in ("size", "count", "type", "redop", "root")]
        for side in ("out_of_place", "in_place"):
            figures = row.get(side)
            cells += [_figure(figures if isinstance(figures, dict) else {}, names) for names in _FIGURES]
        yield " ".join(cells)


def _device_lines(config: dict[str, Any]) -> Iterator[str]:
    """Yield a line of text for each rank, with its host and its GPU.

    nccl-tests lists only the first device of each process. So the further ranks of a process are taken to be
    on devices of the same kind, on the same host.
    """
    given = config.get("devices")
    devices = [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []
    numbers = [config.get("nthreads"), config.get("ngpus"), *(each.get("rank") for each in devices)]
    known = [number for number in numbers if type(number) is int and 0 <= number <= _MOST_RANKS]
    per_process = 1
    if len(known) == len(numbers):
        threads, gpus, *ranks = known
        if all(after - before >= threads * gpus for before, after in pairwise(ranks)):
            per_process = min(threads * gpus, _MOST_RANKS)
    for each in devices:
        words = {name: _cell(value) for name, value in each.items()}
        yield _DEVICE.format_map(_Known(words))
        for further in range(1, per_process):
            yield _DEVICE.format_map(_Known(words | {"rank": str(each["rank"] + further)}))


class _Known(dict[str, str]):
    """Values for `str.format_map`; an absent value becomes a question mark."""

    def __missing__(self, key: str) -> str:
        return "?"


def _cell(value: object) -> str:
    """A value as one word or several, on one line."""
    return " ".join(str(value).split())


def _figure(figures: dict[str, Any], names: tuple[str, ...]) -> str:
    """First of the figures `names` that is a number, as text; ``"N/A"`` if none is."""
    found = next((figures[name] for name in names if type(figures.get(name)) in (int, float)), None)
    return "N/A" if found is None else f"{found:.4f}" if isinstance(found, float) else str(found)


def run_reports(text: str) -> Iterable[dict[str, Any]]:
    """Yield reports of ``taccl run --json`` in a text that is one JSON object, or has one on some lines."""
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


def series_of_reports(reports: list[dict[str, Any]], where: str) -> list[Series]:
    """One series for each report of a size above 0. Raises `FormatError` for invalid times or counts."""
    found = []
    for report in reports:
        times = report["times"]
        time_us: Any = times.get("median_us") if isinstance(times, dict) else None
        counts = size, ranks, hosts = report["size_bytes"], report["num_ranks"], report.get("num_hosts", 0)
        is_time = type(time_us) in (int, float) and 0 < time_us < 1e15
        if not is_time or not all(type(each) is int and 0 <= each < 10**18 for each in counts):
            said = "found a report without a time above 0, or whole numbers of bytes, ranks and hosts"
            raise FormatError(f"{said}; expected what `taccl run --json` prints", where=where)
        if size:
            name = str(report["collective"])
            found.append(Series(name, ranks, min(hosts, ranks), (size,), (float(time_us),), where))
    return found
