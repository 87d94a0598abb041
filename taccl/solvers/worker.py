"""Run tasks in worker processes.

A task is a function of taccl that runs in another process, with progress reports, stop requests, and hard
limits on time and memory. Each family of libraries has workers of its own, as some libraries cannot be loaded
into one process (highspy 1.15 and ortools 9.15). Workers are reused, because starting one takes 0.3 to 0.5 s.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from taccl._internal.address_space import MEMORY_WORDS
from taccl._internal.units import format_s
from taccl.solvers.wire import encode

if TYPE_CHECKING:
    from taccl.solvers.process import Process, Workers

_LOG = logging.getLogger(__name__)

Status = Literal["done", "crashed", "out-of-memory", "timed-out", "interrupted"]

_TASK_NUMBERS = itertools.count()
_START_S = 60.0  # max seconds to start Python and import a library on a busy machine
_GRACE_S = 5.0  # seconds past its time limit after which a task is killed
_LONGEST_WAIT_S = 3600.0  # max seconds of a single wait; channels cannot wait for years
# Seconds between Ctrl-C and killing the task.
# HiGHS 1.15, SCIP 10 and CBC 2.10 do not react to an interrupt during the first relaxation of a MILP.
# HiGHS reports its best solution before it is killed.
# The best solution of SCIP or CBC is lost if a relaxation, or a round of cuts, takes longer.
_INTERRUPT_S = 0.35
_KILLED_S = 2.0  # seconds for a killed process to end
#: Statuses after which a worker with a memory limit ends, as a library may be only partly imported.
_FAILED = ("crashed", "out-of-memory", "unavailable")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a task.

    - `status`: "done" (the function returned `result`), "crashed", "out-of-memory", "timed-out" (killed past
      its time limit), or "interrupted" (Ctrl-C).
    - `result`: Result of the function; None if the task died.
    - `last_progress`: Last progress report of the task.
    - `message`: Reason of a failure, as text for users; empty if done.
    - `seconds`: Time from the call of `run_task` to the outcome.
    """

    status: Status
    result: dict[str, Any] | None = None
    last_progress: dict[str, Any] | None = None
    message: str = ""
    seconds: float = 0.0


def run_task(
    family: str,
    function: str,
    payload: dict[str, Any],
    *,
    time_limit_s: float,
    end_s: float = math.inf,
    memory_limit_mb: int | None = None,
    on_progress: Callable[[dict[str, Any]], None] | None = None,
    log: bool = False,
) -> Outcome:
    """Run a task in a worker, and wait for its outcome.

    On Ctrl-C the task is asked to stop, and killed if it has not ended within a third of a second. If its
    worker is still loading, it is killed immediately. The outcome is then "interrupted", with the result or
    last progress, and no KeyboardInterrupt is raised.

    - `family`: Worker family, one of `taccl.solvers.process.FAMILIES`.
    - `function`: ``"taccl.package.module:name"``. The worker calls it as ``function(payload, control)`` with
      a `taccl.solvers.child.Control`; it returns a dict. If a library of its module's ``LIBRARIES`` cannot be
      imported, the result has the status "unavailable" and a message.
    - `payload`: JSON values and numpy arrays; the function's result is limited to the same.
    - `time_limit_s`: Time limit of the function; its process is killed a few seconds later.
    - `end_s`: Time (`time.monotonic`) at which the process is killed at the latest, even while it starts.
    - `memory_limit_mb`: Maximum growth of the worker's address space in MB (10**6 bytes), where the platform
      can enforce it.
    - `on_progress`: Called in this thread with each argument of ``control.progress``.
    - `log`: True to let native libraries print to standard error.

    Raises `TypeError` if the payload cannot be sent.
    """
    task = _Task(family, float(time_limit_s), end_s, memory_limit_mb, on_progress)
    limits = {"time_limit_s": task.time_limit_s, "memory_limit_mb": memory_limit_mb}
    request = {"task": task.number, "function": function, "payload": payload, "log": log, **limits}
    try:
        return task.run(encode({"kind": "task", **request}))
    except KeyboardInterrupt:
        return task.interrupted()
    except BaseException:
        if task.process is not None:
            task.process.end()
        raise


@dataclass(slots=True)
class _Task:
    """A running task.

    - `is_running`: True once the worker has read the task, and can be asked to stop.
    - `limit_s`: Time (`time.monotonic`) at which the task is killed.
    """

    family: str
    time_limit_s: float
    end_s: float
    memory_limit_mb: int | None
    on_progress: Callable[[dict[str, Any]], None] | None
    number: int = field(default_factory=_TASK_NUMBERS.__next__)
    start_s: float = field(default_factory=time.monotonic)
    process: Process | None = None
    is_running: bool = False
    limit_s: float = 0.0
    last_progress: dict[str, Any] | None = None

    def run(self, request: bytes) -> Outcome:
        """Start the task on a worker, and return its outcome."""
        for _ in range(3):  # an idle worker may have died since its last task
            try:
                self.process = _workers().acquire(self.family)
            except OSError as error:
                return self._outcome("crashed", f"the worker process could not be started: {error}")
            if self.process.begin(request):
                break
            self.process.end()
        else:
            return self._outcome("crashed", "worker processes end before their first task")
        del request
        self.limit_s = min(self.end_s, self.start_s + _START_S + self.time_limit_s + _GRACE_S)
        late = f"gave no answer within its time of {format_s(self.time_limit_s)}; give more time"
        return self._listen() or self._killed("timed-out", late)

    def interrupted(self) -> Outcome:
        """Ask the task to stop after Ctrl-C, kill it if it does not, and return the outcome."""
        outcome = None
        if self.is_running and self.process is not None:
            with contextlib.suppress(KeyboardInterrupt):  # on a second Ctrl-C, do not wait
                self.process.send_stop(self.number)
                outcome = self._listen(_INTERRUPT_S)
        outcome = outcome or self._killed("interrupted", "")
        return replace(outcome, status="interrupted", message="stopped by Ctrl-C")

    def _killed(self, status: Status, message: str) -> Outcome:
        """Kill the task's process; return the outcome that it had sent, or else one with `status`."""
        if self.process is not None:
            self.process.kill()
            outcome = self._listen(_KILLED_S)
            if outcome is not None and outcome.status == "done":
                return outcome
        return self._outcome(status, message)

    def _listen(self, seconds: float | None = None) -> Outcome | None:
        """Read the worker's messages until the task's outcome arrives; None once `limit_s` has passed.

        - `seconds`: New limit from now, during which progress is not passed on.
        """
        quietly = seconds is not None
        if seconds is not None:
            self.limit_s = time.monotonic() + seconds
        assert self.process is not None
        while True:
            left_s = min(max(0.0, self.limit_s - time.monotonic()), _LONGEST_WAIT_S)
            try:
                message = self.process.next_message(left_s)
            except EOFError:
                return self._outcome(*_diagnose(*self.process.end(), self.memory_limit_mb))
            if message is None:
                if time.monotonic() >= self.limit_s:
                    return None
            elif message["kind"] == "started":
                self.is_running = True
                self.limit_s = min(self.end_s, time.monotonic() + self.time_limit_s + _GRACE_S)
            elif message["kind"] == "progress":
                self.last_progress = message["progress"]
                if self.on_progress is not None and not quietly:
                    self.on_progress(message["progress"])
            else:
                return self._ended(message)

    def _ended(self, message: dict[str, Any]) -> Outcome:
        """Outcome sent by the worker; the worker is then kept for reuse, or ended if its state is unknown."""
        assert self.process is not None
        kind, result = message["kind"], message.get("result")
        failed = (result or {}).get("status", kind) in _FAILED
        if kind == "out-of-memory" or (self.memory_limit_mb is not None and failed):
            self.process.end()  # its memory and loaded libraries are in an unknown state
        else:
            _workers().release(self.process)
        if message.get("traceback"):
            _LOG.debug("task %d failed in its worker:\n%s", self.number, message["traceback"])
        return self._outcome(kind, message.get("message", ""), result)

    def _outcome(self, status: Status, message: str, result: dict[str, Any] | None = None) -> Outcome:
        return Outcome(status, result, self.last_progress, message, time.monotonic() - self.start_s)


def _workers() -> Workers:
    """All workers; to load what they need takes 7 ms of CPU."""
    from taccl.solvers.process import WORKERS

    return WORKERS


def warm_up(family: str) -> None:
    """Start a worker unless one is idle, so that the next task begins without delay."""
    with contextlib.suppress(OSError):
        _workers().release(_workers().acquire(family))


def _diagnose(code: int, tail: str, memory_limit_mb: int | None) -> tuple[Status, str]:
    """Status and message for a dead worker, from its exit code and the end of its output."""
    limit = f" under a memory limit of {memory_limit_mb} MB" if memory_limit_mb is not None else ""
    lines = tail.strip().splitlines()
    said = f"; its last words: {lines[-1].strip()}" if lines else ""
    if any(word in tail for word in MEMORY_WORDS):
        return "out-of-memory", f"the worker ran out of memory{limit}"
    if code == -signal.SIGKILL:
        return "out-of-memory", "the worker was killed by SIGKILL, probably for lack of memory"
    if code >= 0:
        return "crashed", f"the worker exited with code {code}{said}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return "crashed", f"the worker was killed by {name}{limit}{said}"
