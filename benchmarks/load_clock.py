"""Run a command as on a busy machine: its clock runs a given factor faster than its CPU time.

Beside four busy processes on two cores, a command has 0.4 of a core, so a factor of 2.5 imitates them. The
other processes need not run, and the load of the machine has little effect. CPU time of worker processes
counts as if it followed that of the command, so commands with solvers seem slower than they are.

``python -m benchmarks.load_clock 2.5 plan ndv2 --nodes 2 ...`` runs ``taccl plan ...``, and last prints the
imitated seconds on stderr.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: `_TICK_S`: max seconds that a thread waits before it reads the clock again.
#: `_CHILDREN_S`: seconds between two readings of the CPU time of worker processes.
_TICK_S, _CHILDREN_S = 0.01, 0.05
#: Text before the imitated seconds in the last line of stderr.
SECONDS = "imitated seconds: "


class LoadClock:
    """Clock that reads `factor` times the CPU time of this process and of its workers.

    It replaces ``time.monotonic``. Waits with a time limit end by this clock, too.
    """

    def __init__(self, factor: float) -> None:
        self._factor, self._now_s = factor, time.monotonic
        self._children_s, self._read_s = 0.0, 0.0

    def __call__(self) -> float:
        return self._factor * (time.process_time() + self._of_children())

    def _of_children(self) -> float:
        """CPU seconds of worker processes, ended ones and others."""
        if self._now_s() >= self._read_s + _CHILDREN_S:
            self._read_s, times = self._now_s(), os.times()
            spent_s = times.children_user + times.children_system + _running_s()
            self._children_s = max(self._children_s, spent_s)
        return self._children_s

    def run_times(self) -> tuple[int, int]:
        """(run time, waiting time) of this thread in ns, as on the imitated machine."""
        ran_ns = time.thread_time_ns()
        return ran_ns, int((self._factor - 1) * ran_ns)

    def waiting(self, wait: Callable[..., bool]) -> Callable[..., bool]:
        """`threading.Condition.wait` by this clock, in terms of `wait`, the original method."""

        def until(condition: threading.Condition, timeout: float | None = None) -> bool:
            if timeout is None:
                return wait(condition)
            end_s = self() + timeout
            while (left_s := end_s - self()) > 0:
                if wait(condition, min(_TICK_S, max(left_s / self._factor, 0.001))):
                    return True
            return wait(condition, 0)

        return until


def _running_s() -> float:
    """CPU seconds of the worker processes that still run; 0 if the system does not report them."""
    total, per_s = 0.0, os.sysconf("SC_CLK_TCK")
    for listed in Path("/proc/self/task").glob("*/children"):
        try:
            for number in listed.read_text().split():
                fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
                total += sum(map(int, fields[11:15])) / per_s
        except OSError:  # it has just ended
            continue
    return total


def main(argv: Sequence[str]) -> NoReturn:
    """Run a command of taccl by a load clock, and exit with its code."""
    clock = LoadClock(float(argv[0]))
    replaced: tuple[tuple[Any, str], ...] = (time, "monotonic"), (threading, "_time")
    for owner, name in replaced:
        setattr(owner, name, clock)
    threading.Condition.wait = clock.waiting(threading.Condition.wait)  # type: ignore[method-assign]
    from taccl._internal import deadline, program_start
    from taccl._internal.garbage import COLLECT_EVERY
    from taccl.cli.command import run

    for module in (deadline, program_start):
        module.run_times = clock.run_times  # type: ignore[attr-defined]
    gc.set_threshold(COLLECT_EVERY)  # as the command line does
    code = run(list(argv[1:]), began_s=0.0)
    sys.stdout.flush()
    print(f"{SECONDS}{clock():.2f}", file=sys.stderr, flush=True)
    os._exit(code)  # threads that were left behind do not delay the end


if __name__ == "__main__":
    main(sys.argv[1:])
