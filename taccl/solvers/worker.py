"""Tasks in worker processes.

A task is a function of taccl that runs in another process, with progress, a cooperative stop, and hard limits
on time and memory. Workers are kept per family, because not every pair of libraries loads into one process
(highspy 1.15 and ortools 9.15 do not), and reused, because starting one takes 0.3 to 0.5 s.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from taccl._internal.address_space import MEMORY_WORDS
from taccl.solvers.process import WORKERS, Process
from taccl.solvers.wire import encode

_LOG = logging.getLogger(__name__)

Status = Literal["done", "crashed", "out-of-memory", "timed-out", "interrupted"]

_TASK_NUMBERS = itertools.count()
_START_S = 60.0  # what starting Python and importing a library may take on a busy machine
_GRACE_S = 5.0  # past its time limit, before a task is killed
_LONGEST_WAIT_S = 3600.0  # at a time: channels know no wait of years
# After Ctrl-C, before a task is killed: HiGHS 1.15, SCIP 10 and CBC 2.10 hear no interrupt within the first
# relaxation of a MILP. HiGHS has reported its best point by then; of SCIP and CBC a point may be lost, if it
# comes within a relaxation, or rounds of cuts, that take longer.
_INTERRUPT_S = 0.35
_KILLED_S = 2.0  # until a killed process is gone
#: After these a worker that was bounded may hold half a library.
_FAILED = ("crashed", "out-of-memory", "unavailable")


@dataclass(frozen=True, slots=True)
class Outcome:
    """End of a task.

    - `status`: "done" (`result` is what the function returned), "crashed", "out-of-memory", "timed-out"
      (killed because it overran its time limit), or "interrupted" (Ctrl-C).
    - `result`: What the function returned; present unless the task died.
    - `last_progress`: The last news the task sent.
    - `message`: What happened, for a person; empty when done.
    - `seconds`: From `run_task` until the outcome was known.
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
    memory_limit_mb: int | None = None,
    on_progress: Callable[[dict[str, Any]], None] | None = None,
    log: bool = False,
) -> Outcome:
    """The outcome of a task, however long it takes.

    On Ctrl-C the task is asked to stop and killed if it has not within a third of a second (at once, if its
    worker is still loading); the outcome is then "interrupted", with its result or last progress, and the
    KeyboardInterrupt is not raised again.

    - `family`: Which worker: one of `taccl.solvers.process.FAMILIES`.
    - `function`: ``"taccl.package.module:name"``. It is called in the worker as ``function(payload,
      control)``, where `control` is a `taccl.solvers.child.Control`, and returns a dict. Where a library of
      its module's ``LIBRARIES`` does not load, the result says so: a status "unavailable", and a message.
    - `payload`: JSON values and numpy arrays; what the function returns is limited to the same.
    - `time_limit_s`: The function should return by itself; a few seconds later its process is killed.
    - `memory_limit_mb`: How much the task may add to the worker's address space, in units of 10**6 bytes,
      where the platform can enforce it.
    - `on_progress`: Gets what the function gives to ``control.progress``; called in this thread.
    - `log`: Let native libraries print to standard error.

    Raises `TypeError` if the payload cannot be sent.
    """
    task = _Task(family, float(time_limit_s), memory_limit_mb, on_progress)
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
    """A task under way.

    - `is_running`: Whether the worker has read it, so that it can be asked to stop.
    - `limit_s`: When it is killed.
    """

    family: str
    time_limit_s: float
    memory_limit_mb: int | None
    on_progress: Callable[[dict[str, Any]], None] | None
    number: int = field(default_factory=_TASK_NUMBERS.__next__)
    start_s: float = field(default_factory=time.monotonic)
    process: Process | None = None
    is_running: bool = False
    limit_s: float = 0.0
    last_progress: dict[str, Any] | None = None

    def run(self, request: bytes) -> Outcome:
        """The outcome, once a worker has taken the task."""
        for _ in range(3):  # an idle worker may have been killed since its last task
            try:
                self.process = WORKERS.acquire(self.family)
            except OSError as error:
                return self._outcome("crashed", f"the worker process could not be started: {error}")
            if self.process.begin(request):
                break
            self.process.end()
        else:
            return self._outcome("crashed", "worker processes end before they take a task")
        del request
        self.limit_s = self.start_s + _START_S + self.time_limit_s + _GRACE_S
        late = f"killed: it overran its time limit of {self.time_limit_s:g} s"
        return self._listen() or self._killed("timed-out", late)

    def interrupted(self) -> Outcome:
        """The outcome after Ctrl-C: the task is asked to stop, and killed if it does not."""
        outcome = None
        if self.is_running and self.process is not None:
            with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C: do not wait
                self.process.send_stop(self.number)
                outcome = self._listen(_INTERRUPT_S)
        outcome = outcome or self._killed("interrupted", "")
        return replace(outcome, status="interrupted", message="stopped by Ctrl-C")

    def _killed(self, status: Status, message: str) -> Outcome:
        """The outcome of a task whose process is ended; what it has sent by then still counts."""
        if self.process is not None:
            self.process.kill()
            outcome = self._listen(_KILLED_S)
            if outcome is not None and outcome.status == "done":
                return outcome
        return self._outcome(status, message)

    def _listen(self, seconds: float | None = None) -> Outcome | None:
        """The outcome; None if it is not known in time: by the task's limit, or quietly for some seconds."""
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
                self.limit_s = time.monotonic() + self.time_limit_s + _GRACE_S
            elif message["kind"] == "progress":
                self.last_progress = message["progress"]
                if self.on_progress is not None and not quietly:
                    self.on_progress(message["progress"])
            else:
                return self._ended(message)

    def _ended(self, message: dict[str, Any]) -> Outcome:
        """The outcome as the worker tells it, which is kept for the next task if it may be."""
        assert self.process is not None
        kind, result = message["kind"], message.get("result")
        failed = (result or {}).get("status", kind) in _FAILED
        if kind == "out-of-memory" or (self.memory_limit_mb is not None and failed):
            self.process.end()  # what it holds, and which parts of a library, is not known any more
        else:
            WORKERS.release(self.process)
        if message.get("traceback"):
            _LOG.debug("task %d failed in its worker:\n%s", self.number, message["traceback"])
        return self._outcome(kind, message.get("message", ""), result)

    def _outcome(self, status: Status, message: str, result: dict[str, Any] | None = None) -> Outcome:
        return Outcome(status, result, self.last_progress, message, time.monotonic() - self.start_s)


def warm_up(family: str) -> None:
    """Start a worker in the background, unless an idle one exists, so that the next task begins at once."""
    with contextlib.suppress(OSError):
        WORKERS.release(WORKERS.acquire(family))


def _diagnose(code: int, tail: str, memory_limit_mb: int | None) -> tuple[Status, str]:
    """Why a worker died, from its exit code and the end of what it printed."""
    limit = f" under a memory limit of {memory_limit_mb} MB" if memory_limit_mb is not None else ""
    lines = tail.strip().splitlines()
    said = f"; its last words: {lines[-1].strip()}" if lines else ""
    if any(word in tail for word in MEMORY_WORDS):
        return "out-of-memory", f"the worker ran out of memory{limit}"
    if code == -signal.SIGKILL:
        return "out-of-memory", "the worker was killed by SIGKILL, as the system does when memory runs out"
    if code >= 0:
        return "crashed", f"the worker ended by itself with exit code {code}{said}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return "crashed", f"the worker died of {name}{limit}{said}"
