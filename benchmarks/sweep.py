"""Sweep of a hundred runs: speedup of two workers over one, and time of a cached re-run.

Every run is a synthesis on one solver thread that ends before its time limit. So the work does not depend on
the number of concurrent runs. Each sweep is a separate process, timed from its start to the complete table.
This includes the start of Python and of the workers. Each of the two sweeps has its own cache, empty at
first; the re-run uses that of the second. The load average states other load of the machine.

Examples
--------
    python -m benchmarks.sweep                                # about three minutes
    python -m benchmarks.sweep --runs 20
    python -m benchmarks.sweep --output benchmarks/results/sweep.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

import taccl
from benchmarks.report import keep, parser_of
from taccl.solvers.registry import package_versions

SPEED_UP_AT_LEAST = 1.6
CACHED_S_AT_MOST = 2.0
SIZES = ("10KB", "100KB", "1MB", "10MB", "100MB")


def main() -> int:
    """Measure the sweeps, or, in a process that is being measured, run one sweep."""
    parser = parser_of(__doc__)
    parser.add_argument("--runs", type=int, default=100, help="a multiple of 10 (default 100)")
    parser.add_argument("--workers", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--cache", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cache is not None:
        print(json.dumps(one_sweep(options.runs, options.workers, options.cache)))
        return 0
    with tempfile.TemporaryDirectory(prefix="taccl-sweep-") as folder:
        alone = timed(options.runs, 1, f"{folder}/one")
        both = timed(options.runs, 2, f"{folder}/two")
        cached = timed(options.runs, 2, f"{folder}/two")
    figures = {
        "runs": options.runs,
        "one_worker": alone,
        "two_workers": both,
        "cached": cached,
        "speed_up": round(alone["seconds"] / both["seconds"], 2),
        "speed_up_at_least": SPEED_UP_AT_LEAST,
        "cached_s": cached["seconds"],
        "cached_s_at_most": CACHED_S_AT_MOST,
    }
    print(f"{options.runs} runs: {alone['seconds']:.1f} s on one worker, {both['seconds']:.1f} s on two")
    print(
        f"speed-up {figures['speed_up']} (at least {SPEED_UP_AT_LEAST}); load {alone['load']}, {both['load']}"
    )
    print(f"cached re-run {cached['seconds']:.2f} s (at most {CACHED_S_AT_MOST})")
    if options.output is not None:
        keep(options.output, {"versions": package_versions(), **figures})
    met = figures["speed_up"] >= SPEED_UP_AT_LEAST and cached["seconds"] <= CACHED_S_AT_MOST
    return 0 if met else 1


def timed(runs: int, workers: int, cache: str) -> dict[str, Any]:
    """Run one sweep in a separate process; return its wall-clock seconds and the number of rows by kind."""
    command = [sys.executable, "-m", "benchmarks.sweep", f"--runs={runs}", f"--workers={workers}"]
    began = time.perf_counter()
    said = subprocess.run([*command, f"--cache={cache}"], check=True, capture_output=True, text=True).stdout
    seconds = round(time.perf_counter() - began, 2)
    load = round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None
    return {"seconds": seconds, "load": load, **json.loads(said.splitlines()[-1])}


def one_sweep(runs: int, workers: int, cache: str) -> dict[str, Any]:
    """Run a sweep; return the numbers of rows that are verified, cached, and ended by their time limit."""
    table = taccl.sweep(
        taccl.topologies.ndv2(nodes=2),
        "alltoall",
        sketches=["ndv2/sk1"],
        sizes=SIZES,
        backends=("highs", "cbc"),
        seeds=range(runs // (2 * len(SIZES))),
        time_limit_s=120,
        num_workers=workers,
        cache=cache,
        full=True,
    )
    return {
        "verified": int(table.verified.sum()),
        "from_cache": int(table.from_cache.sum()),
        "cut_by_time": int((table.stopped == "time limit").sum()),
        "run_seconds": round(float(table.seconds.sum()), 1),
    }


if __name__ == "__main__":
    raise SystemExit(main())
