"""Convert JSON that nccl-tests writes (-J, ``src/util.cu``) to the text that it prints."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD = "# size count type redop root {time} algbw busbw #wrong {time} algbw busbw #wrong"
_DEVICE = "#  Rank {rank} Group {group} Pid {pid} on {hostname} device {device} [{device_hex}] {device_info}"
#: Ranks that are not listed are added if no rank number, and no number of ranks per process, exceeds this.
_MOST_RANKS = 10_000
_FIGURES = ("time", "cpu_time"), ("alg_bw",), ("bus_bw",), ("nwrong",)


def printed(text: str) -> str:
    """Text that nccl-tests prints, if `text` is one or several of its JSON objects; else `text`."""
    found = [each for each in _objects(text) if isinstance(each.get("results"), list)]
    return "\n".join(line for each in found for line in _lines(each)) or text


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects at the beginning of a text."""
    decoder, rest = json.JSONDecoder(), text.lstrip()
    while rest.startswith("{"):
        try:
            found, end = decoder.raw_decode(rest)
        except (ValueError, RecursionError):
            return
        yield found
        rest = rest[end:].lstrip()


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
    """Values for a text, with a question mark for each absent one."""

    def __missing__(self, key: str) -> str:
        return "?"


def _cell(value: object) -> str:
    """A value as one word or several, on one line."""
    return " ".join(str(value).split())


def _figure(figures: dict[str, Any], names: tuple[str, ...]) -> str:
    """The first of some figures that is a number; ``"N/A"`` without one."""
    found = next((figures[name] for name in names if type(figures.get(name)) in (int, float)), None)
    return "N/A" if found is None else f"{found:.4f}" if isinstance(found, float) else str(found)
