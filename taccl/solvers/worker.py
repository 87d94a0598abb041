"""Tasks in worker processes.

A task is a function of taccl that runs in another process, with progress, a cooperative stop, and hard limits
on time and memory. Workers are kept per family, because not every pair of libraries loads into one process
(highspy 1.15 and ortools 9.15 do not), and reused, because starting one takes 0.3 to 0.5 s.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import queue
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from taccl.errors import InputError
from taccl.solvers.memory import MEMORY_WORDS
from taccl.solvers.process import FAMILIES, WORKERS, Process
from taccl.solvers.wire import encode

_LOG = logging.getLogger(__name__)

Status = Literal["done", "crashed", "out-of-memory", "timed-out", "interrupted"]

_TASK_NUMBERS = itertools.count()
_START_S = 60.0  # what starting Python and importing a library may take on a busy machine
_GRACE_S = 5.0  # past its time limit, before a task is killed
_LONGEST_WAIT_S = 3600.0  # at a time: queues know no wait of years
_INTERRUPT_S = 2.0  # after Ctrl-C, before a task is killed
# HiGHS 1.15 hears no interrupt within the first relaxation of a MILP. It has reported its best point by then.
_INTERRUPT_HIGHS_S = 0.5
_KILLED_S = 2.0  # until a killed process is gone
#: After these a worker that was bounded may hold half a library.
_FAILED = ("crashed", "out-of-memory", "unavailable")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a task ended.

    - `status`: "done" (`result` is what the function returned), "crashed", "out-of-memory", "timed-out"
      (killed because it overran its time limit), or "interrupted" (Ctrl-C or `Task.kill`).
    - `result`: What the function returned; present unless the task died.
    - `last_progress`: The last news the task sent.
    - `message`: What happened, for a person; empty when done.
    - `seconds`: From `start_task` until the outcome was known.
    """

    status: Status
    result: dict[str, Any] | None = None
    last_progress: dict[str, Any] | None = None
    message: str = ""
    seconds: float = 0.0


class Task:
    """A task, once it has begun in a worker process; see `start_task` for what it takes.

    - `is_running` (bool): Whether the worker has read the task, so that it can be asked to stop.
    """

    def __init__(
        self,
        family: str,
        function: str,
        payload: dict[str, Any],
        *,
        time_limit_s: float,
        memory_limit_mb: int | None = None,
        on_progress: Callable[[dict[str, Any]], None] | None = None,
        log: bool = False,
    ) -> None:
        _check(family)
        if memory_limit_mb is not None and not memory_limit_mb >= 1:
            raise InputError(f"found {memory_limit_mb}; expected MB, at least 1", where="memory_limit_mb")
        if not math.isfinite(time_limit_s):
            raise InputError(f"found {time_limit_s}; expected a number of seconds", where="time_limit_s")
        self.family = family
        self.number = next(_TASK_NUMBERS)
        self.time_limit_s = float(time_limit_s)
        self.memory_limit_mb = memory_limit_mb
        self.is_running = False
        request = {"function": function, "payload": payload, "log": log}
        limits = {"time_limit_s": self.time_limit_s, "memory_limit_mb": memory_limit_mb}
        self._request = encode({"kind": "task", "task": self.number, **request, **limits})
        self._on_progress = on_progress
        self._last_progress: dict[str, Any] | None = None
        self._outcome: Outcome | None = None
        self._process: Process | None = None
        self._killed: tuple[Status, str] | None = None  # as what, and why
        self._start_s = time.monotonic()
        self._limit_s = self._start_s + _START_S + self.time_limit_s + _GRACE_S
        self._owner_pid = os.getpid()

    def hand_over(self) -> None:
        """Find a worker that takes the task."""
        for _ in range(3):  # an idle worker may have been killed since its last task
            try:
                self._process = WORKERS.acquire(self.family)
            except OSError as error:
                self._finish("crashed", message=f"the worker process could not be started: {error}")
                return
            if self._process.begin(self._request):
                self._request = b""
                return
        self._finish("crashed", message="worker processes end before they take a task")

    def wait(self, timeout_s: float | None = None, *, quietly: bool = False) -> Outcome | None:
        """The outcome, or None if not known within `timeout_s`; hands news to `on_progress` meanwhile.

        A few seconds past its time limit the task is killed.

        - `quietly`: Keep news to itself.
        """
        if os.getpid() != self._owner_pid:
            return Outcome("crashed", message="the task belongs to another process")
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while self._outcome is None:
            assert self._process is not None
            until_s = min(deadline_s, self._limit_s)
            try:
                left_s = min(max(0.0, until_s - time.monotonic()), _LONGEST_WAIT_S)
                message = self._process.messages.get(timeout=left_s)
            except queue.Empty:
                if time.monotonic() < until_s:
                    continue
                if until_s == deadline_s:
                    return None
                self._kill("timed-out", f"killed: it overran its time limit of {self.time_limit_s:g} s")
                continue
            self._take(message, quietly=quietly)
        return self._outcome

    def stop(self) -> None:
        """Ask the task to end soon; its outcome still arrives, with the best it has."""
        if self._process is not None:
            self._process.send_stop(self.number)

    def kill(self) -> None:
        """End the task's process at once; its outcome becomes "interrupted"."""
        self._kill("interrupted", "killed on request")

    def interrupt(self) -> Outcome:
        """The outcome after Ctrl-C: the task is asked to stop, and killed if it does not."""
        outcome = None
        if self.is_running:
            with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C: do not wait
                self.stop()
                outcome = self.wait(
                    _INTERRUPT_HIGHS_S if self.family == "highs" else _INTERRUPT_S, quietly=True
                )
        if outcome is None and self._process is not None:
            self.kill()
            outcome = self.wait(_KILLED_S, quietly=True)
        return replace(outcome or Outcome("interrupted"), status="interrupted", message="stopped by Ctrl-C")

    def _kill(self, status: Status, message: str) -> None:
        """End the process unless the task has ended; how it then ended is as first said."""
        if self._process is not None and self._outcome is None:
            self._killed, self._limit_s = self._killed or (status, message), math.inf
            self._process.kill()

    def _take(self, message: dict[str, Any] | None, *, quietly: bool) -> None:
        """What the worker sent; None where it has ended."""
        assert self._process is not None
        if message is None:
            assert self._process.ended is not None
            status, why = self._killed or _diagnose(*self._process.ended, self.memory_limit_mb)
            self._finish(status, message=why)
        elif message["kind"] == "started":
            self.is_running = True
            self._limit_s = time.monotonic() + self.time_limit_s + _GRACE_S
        elif message["kind"] == "progress":
            self._last_progress = message["progress"]
            if self._on_progress is not None and not quietly:
                self._on_progress(message["progress"])
        else:
            kind, result = message["kind"], message.get("result")
            failed = (result or {}).get("status", kind) in _FAILED
            if kind == "out-of-memory" or (self.memory_limit_mb is not None and failed):
                self._process.kill()  # what it holds, and which parts of a library, is not known any more
            else:
                WORKERS.release(self._process)
            if message.get("traceback"):
                _LOG.debug("task %d failed in its worker:\n%s", self.number, message["traceback"])
            self._finish(kind, result, message.get("message", ""))

    def _finish(self, status: Status, result: dict[str, Any] | None = None, message: str = "") -> None:
        seconds = time.monotonic() - self._start_s
        self._outcome = Outcome(status, result, self._last_progress, message, seconds)


def start_task(family: str, function: str, payload: dict[str, Any], **options: Any) -> Task:
    """A task that has begun in a worker process.

    - `family`: Which worker: one of `FAMILIES`.
    - `function`: ``"taccl.package.module:name"``. It is called in the worker as ``function(payload,
      control)``, where `control` is a `taccl.solvers.child.Control`, and returns a dict. Where a library of
      its module's ``LIBRARIES`` does not load, the result says so: a status "unavailable", and a message.
    - `payload`: JSON values and numpy arrays; what the function returns is limited to the same.
    - `**options`: Of the following, the first is needed.
    - `time_limit_s`: The function should return by itself; a few seconds later `Task.wait` kills its process.
    - `memory_limit_mb`: How much the task may add to the worker's address space, in units of 10**6 bytes,
      where the platform can enforce it.
    - `on_progress`: Gets what the function gives to ``control.progress``; called from `Task.wait`.
    - `log`: Let native libraries print to standard error.

    Raises `InputError` if the family is unknown, or a limit makes no sense. `TypeError` if the payload cannot
    be sent.
    """
    task = Task(family, function, payload, **options)
    task.hand_over()
    return task


def run_task(family: str, function: str, payload: dict[str, Any], **options: Any) -> Outcome:
    """The outcome of a task, however long it takes; parameters as for `start_task`.

    On Ctrl-C the task is asked to stop and killed if it has not within two seconds (half a second for HiGHS;
    at once, if its worker is still loading); the outcome is then "interrupted", with its result or last
    progress, and the KeyboardInterrupt is not raised again.
    """
    task = None
    try:
        task = Task(family, function, payload, **options)
        task.hand_over()
        outcome = task.wait()
        assert outcome is not None
        return outcome
    except KeyboardInterrupt:
        return Outcome("interrupted", message="stopped by Ctrl-C") if task is None else task.interrupt()
    except BaseException:
        if task is not None:
            task.kill()
        raise


def warm_up(family: str) -> None:
    """Start a worker in the background, unless an idle one is there, so that the next task begins at once."""
    _check(family)
    with contextlib.suppress(OSError):
        WORKERS.release(WORKERS.acquire(family))


def _check(family: str) -> None:
    if family not in FAMILIES:
        raise InputError(f"found {family!r}; expected one of {', '.join(FAMILIES)}", where="worker family")


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
