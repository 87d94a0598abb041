"""Tasks in worker processes.

A task is a function of taccl that runs in another process, with progress, a cooperative stop, and hard limits
on time and memory. Workers are kept per family, because not every pair of libraries loads into one process
(highspy 1.15 and ortools 9.15 do not), and reused, because starting one takes 0.3 to 0.5 s.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from taccl.errors import InputError
from taccl.solvers.process import FAMILIES, WORKERS, Process, Status
from taccl.solvers.wire import encode

__all__ = ["FAMILIES", "Outcome", "Task", "run_task", "start_task", "warm_up"]

_TASK_NUMBERS = itertools.count()
_INTERRUPT_S = 2.0  # after Ctrl-C, before a task is killed
# HiGHS 1.15 hears no interrupt within the first relaxation of a MILP. It has reported its best point by then.
_INTERRUPT_HIGHS_S = 0.5
_KILLED_S = 2.0  # until a killed process is gone


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
        self._news: queue.SimpleQueue[dict[str, Any] | Outcome] = queue.SimpleQueue()
        self._last_progress: dict[str, Any] | None = None
        self._outcome: Outcome | None = None
        self._process: Process | None = None
        self._start_s = time.monotonic()
        self._owner_pid = os.getpid()

    def wait(self, timeout_s: float | None = None, *, quietly: bool = False) -> Outcome | None:
        """The outcome, or None if not known within `timeout_s`; hands news to `on_progress` meanwhile.

        - `quietly`: Keep news to itself.
        """
        if os.getpid() != self._owner_pid:
            return Outcome("crashed", message="the task belongs to another process")
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while self._outcome is None:
            try:
                left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
                item = self._news.get(timeout=left_s)
            except queue.Empty:
                return None
            if isinstance(item, Outcome):
                self._outcome = item
            elif self._on_progress is not None and not quietly:
                self._on_progress(item)
        return self._outcome

    def stop(self) -> None:
        """Ask the task to end soon; its outcome still arrives, with the best it has."""
        if self._process is not None:
            self._process.send_stop(self.number)

    def kill(self) -> None:
        """End the task's process at once; its outcome becomes "interrupted"."""
        if self._process is not None:
            self._process.kill_task(self, "interrupted", "killed on request")

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

    # Called by `start_task`, and by `Process` from its reader thread.

    def hand_over(self) -> None:
        """Find a worker that takes the task."""
        for _ in range(3):  # an idle worker may have been killed since its last task
            try:
                process = WORKERS.acquire(self.family)
            except OSError as error:
                self.finish("crashed", None, f"the worker process could not be started: {error}")
                return
            if process.begin(self):
                return
        self.finish("crashed", None, "worker processes end before they take a task")

    def begin(self, process: Process) -> bytes:
        """Note who runs the task; what to send there."""
        self._process = process
        return self._request

    def add_news(self, news: dict[str, Any]) -> None:
        """Note progress."""
        self._last_progress = news
        if self._on_progress is not None:
            self._news.put(news)

    def finish(self, status: Status, result: dict[str, Any] | None, message: str) -> None:
        """Set the outcome."""
        seconds = time.monotonic() - self._start_s
        self._news.put(Outcome(status, result, self._last_progress, message, seconds))
        self._request = b""


def start_task(family: str, function: str, payload: dict[str, Any], **options: Any) -> Task:
    """A task that has begun in a worker process.

    - `family`: Which worker: one of `FAMILIES`.
    - `function`: ``"taccl.package.module:name"``. It is called in the worker as ``function(payload,
      control)``, where `control` is a `taccl.solvers.child.Control`, and returns a dict. Where a library of
      its module's ``LIBRARIES`` does not load, the result says so: a status "unavailable", and a message.
    - `payload`: JSON values and numpy arrays; what the function returns is limited to the same.
    - `**options`: Of the following, the first is needed.
    - `time_limit_s`: The function should return by itself; a few seconds past this its process is killed.
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
