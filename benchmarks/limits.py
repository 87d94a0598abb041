"""Time limits on a busy machine: each verb must end with an answer within its limit plus 2 s.

A synthesized schedule must finish no later than the best baseline, which is computed before without a limit.

Compute-bound processes run concurrently with each verb. Seconds are wall-clock seconds from the start of the
process to its end. CPU seconds are those of the verb and of its solvers. Kernels and bytecode are compiled
before (``taccl warmup``): modules without bytecode would add up to 0.4 s of CPU to each verb.

Examples
--------
    python -m benchmarks.limits                                # limits of 1, 2, 5 and 15 s beside 4 processes
    python -m benchmarks.limits --limit 5 --only plan
    python -m benchmarks.limits --limit 2 --imitate 2.5        # an imitated load; see benchmarks.load_clock
    python -m benchmarks.limits --output benchmarks/results/limits.json
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.load_clock import SECONDS
from benchmarks.report import parser_of, shown, summed_up, wanted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.report import Column, Row

#: `_SPARE_S`: max seconds that a verb may take beyond its limit.
#: `_SAME`: max ratio of finishes that count as equal.
#: `_BUS_FACTOR`: ratio of busbw to algbw of an allreduce on 16 ranks.
_SPARE_S, _SAME, _BUS_FACTOR = 2.0, 1 + 1e-9, 2 * 15 / 16
#: (arguments of a verb, option for its time limit); ``{folder}`` is a separate folder for each run.
VERBS: tuple[tuple[str, str], ...] = (
    ("synthesize ndv2 --nodes 2 --collective allgather --size 1MB", "--time-limit"),
    ("synthesize dgx-h100 --nodes 4 --collective allreduce --size 64MB", "--time-limit"),
    ("synthesize dgx2 --nodes 4 --collective alltoall --size 1MB", "--time-limit"),
    ("synthesize gb200-nvl72 --collective allreduce --size 1MB", "--time-limit"),
    ("plan ndv2 --nodes 2 --collective allgather -o {folder}/plan", "--time-limit"),
    ("plan dgx-h100 --nodes 2 --collective allreduce --sizes 64KB,1MB,64MB", "--time-limit"),
    ("report {folder}/schedule.json -o {folder}/page.html", "--time-limit"),
    ("suggest ndv2 --nodes 2 --collective allgather --size 1MB", "--time-limit"),
    ("explain ndv2/sk1 --collective allgather", "--time-limit"),
    ("reorder torus:4x4", "--time-limit"),
    ("synthesize dgx2 --nodes 8 --collective allreduce --size 1MB", "--time-limit"),
    ("synthesize dgx2 --nodes 4 --collective allreduce --size 1MB", "--time-limit"),
    ("synthesize h200 --nodes 8 --collective broadcast --size 16MB", "--time-limit"),
    ("synthesize dgx1 --nodes 2 --collective allreduce --size 64KB", "--time-limit"),
    ("synthesize torus:8x8 --collective allgather --size 1MB", "--time-limit"),
    ("synthesize dgx-h100 --nodes 16 --collective reduce --size 64MB", "--time-limit"),
    ("plan ndv2 --nodes 2 --collective allgather --sizes 1KB,32KB,1MB,16MB,256MB", "--time-limit"),
    ("compare ndv2/sk1 --collective allgather --backends greedy --no-cache", "--time-limit"),
    ("sweep ndv2 --nodes 2 --collective allgather --sizes 1MB --backends greedy --no-cache", "--time-limit"),
    ("baseline best gb200-nvl72 --nodes 2 --collective allreduce --size 1MB", "--time-limit"),
    ("bound gb200-nvl72 --nodes 4 --collective alltoall --size 1MB", "--time-limit"),
    ("suggest gb200-nvl72 --nodes 2 --collective allgather --size 1MB", "--time-limit"),
    ("plan gb200-nvl72 --nodes 2 --collective allgather --sizes 1MB", "--time-limit"),
    ("reorder dgx-h100 --nodes 32", "--time-limit"),
    ("diagnose {folder}/nccl.log --topology p5.48xlarge", "--time-limit"),
    ("suggest ndv2 --nodes 2 --collective allgather --size 1MB --check ndv2/sk1", "--time-limit"),
    ("baseline best gb200-nvl72 --nodes 4 --collective alltoall --size 64MB", "--time-limit"),
    ("bound fully-connected:300 --collective alltoall --size 1MB", "--time-limit"),
    ("bound fully-connected:1000 --collective alltoall --size 1MB", "--time-limit"),
    ("synthesize mesh:16x16 --collective alltoall --size 1MB", "--time-limit"),
)
_BUSY = "while True: pass"


COLUMNS: tuple[Column, ...] = (
    ("verb", "command", "<68"), ("limit", "limit_s", ">6.1f"), ("seconds", "seconds", ">8.2f"),
    ("CPU", "cpu_s", ">7.2f"), ("exit code", "exit_code", ">10d"), ("left behind", "left_behind", ">12d"),
    ("finish us", "finish_us", ">10.4g"), ("best baseline", "baseline_us", ">14.4g"),
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run all verbs under all limits; return 1 if one ends too late, or without an answer."""
    parser = parser_of(__doc__)
    parser.add_argument("--limit", type=float, action="append", help="seconds; more than once for several")
    parser.add_argument("--busy", type=int, default=4, help="processes beside each verb")
    parser.add_argument("--imitate", type=float, help="seconds per CPU second, in place of busy processes")
    parser.add_argument("--only", action="append", help="a part of a command")
    options = parser.parse_args(argv)
    verbs = [(command, limited_by) for command, limited_by in VERBS if wanted(command, options.only)]
    subprocess.run([sys.executable, "-m", "taccl", "warmup"], check=True, stdout=subprocess.DEVNULL)
    baselines_us = {command: _baseline_us(command) for command, _ in verbs}
    with tempfile.TemporaryDirectory() as folder:
        _schedule(folder)
        _log(folder)
        with _busy(0 if options.imitate else options.busy):
            asked = (
                _row(command, limited_by, limit_s, folder, baselines_us[command], options.imitate)
                for command, limited_by in verbs
                for limit_s in options.limit or (1.0, 2.0, 5.0, 15.0)
            )
            rows = shown(COLUMNS, asked)
    return summed_up(options.output, {"limits": rows}, busy=options.busy)


def _schedule(folder: str) -> None:
    """Write ``schedule.json`` into the folder, for the verb ``report``."""
    words = "synthesize ndv2 --nodes 2 --collective allgather --size 1MB --time-limit 5 -o"
    path = f"{folder}/schedule.json"
    subprocess.run(
        [sys.executable, "-m", "taccl", *words.split(), path], check=True, stdout=subprocess.DEVNULL
    )


def _log(folder: str) -> None:
    """Write ``nccl.log``, an allreduce on two nodes of eight GPUs at 480 GB/s, for the verb ``diagnose``."""
    lines = ["# Collective test starting: all_reduce_perf"]
    lines += [f"#  Rank {r} Pid {r + 1} on host{r // 8} device {r % 8} [0x00] NVIDIA H100" for r in range(16)]
    lines.append("#  size  count  type  redop  root  time  algbw  busbw #wrong")
    for size in (2**power for power in range(10, 35)):
        time_us = 70 + size * _BUS_FACTOR / 480e3
        algbw = size / time_us / 1000
        figures = f"{time_us:.2f} {algbw:.2f} {algbw * _BUS_FACTOR:.2f}"
        lines.append(f"{size} {size // 4} float sum -1 {figures} 0")
    Path(folder, "nccl.log").write_text("\n".join(lines) + "\n")


def _baseline_us(command: str) -> float | None:
    """Finish in us of the best baseline for a synthesis; None for other verbs."""
    verb, *words = shlex.split(command)
    if verb != "synthesize":
        return None
    asked = ["baseline", "best", "--topology", *words, "--json"]
    done = subprocess.run([sys.executable, "-m", "taccl", *asked], check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout)["finish_us"])


@contextmanager
def _busy(count: int) -> Iterator[None]:
    """Context in which `count` compute-bound processes run.

    Linux shares cores among sessions first, so each process has a session of its own, as other programs have.
    """
    words = [sys.executable, "-c", _BUSY]
    processes = [subprocess.Popen(words, start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _row(
    command: str, limited_by: str, limit_s: float, folder: str, baseline_us: float | None,
    imitated: float | None,
) -> Row:  # fmt: skip
    """Row of one verb under one limit: wall and CPU seconds, lateness, and the files in its folder.

    - `imitated`: Factor of a load clock, whose seconds then count; None for the wall clock.
    """
    words = shlex.split(command.format(folder=folder))
    extra = ["--overwrite"] if "-o" in words else []
    extra += [] if baseline_us is None else ["--json"]
    before, began = os.times(), time.monotonic()
    module = ["taccl"] if imitated is None else ["benchmarks.load_clock", f"{imitated:g}"]
    done = subprocess.run(
        [sys.executable, "-m", *module, *words, limited_by, f"{limit_s:g}", *extra],
        capture_output=True, text=True, timeout=20 * (limit_s + _SPARE_S),
    )  # fmt: skip
    took_s, after = time.monotonic() - began, os.times()
    if imitated is not None:
        took_s = float(done.stderr.rpartition(SECONDS)[2])
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    left = [each.name for each in Path(folder).iterdir() if each.name.endswith((".tmp", ".old"))]
    late = ["LATE"] * (took_s > limit_s + _SPARE_S)
    finish_us = None
    if baseline_us is not None and done.returncode == 0:
        finish_us = float(json.loads(done.stdout)["finish_us"])
        late += ["LATER THAN A BASELINE"] * (finish_us > baseline_us * _SAME)
    return {
        "command": command.replace("{folder}/", ""), "limit_s": limit_s, "seconds": round(took_s, 2),
        "cpu_s": round(cpu_s, 2), "exit_code": done.returncode, "left_behind": len(left),
        "finish_us": finish_us, "baseline_us": baseline_us,
        "missed": late + ["NO ANSWER"] * bool(done.returncode) + ["LEFT FILES"] * bool(left),
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
