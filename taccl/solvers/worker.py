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
import re
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from taccl.errors import InputError
from taccl.solvers.process import FAMILIES, WORKERS, Status
from taccl.solvers.wire import encode_message

if TYPE_CHECKING:
    from collections.abc import Callable

    from taccl.solvers.process import Process

__all__ = ["FAMILIES", "Outcome", "Task", "run_task", "start_task", "warm_up"]

_FUNCTION = re.compile(r"taccl(\.[A-Za-z_]\w*)+:[A-Za-z_]\w*")
_TASK_NUMBERS = itertools.count()
_INTERRUPT_S = 2.0  # after Ctrl-C, before a task is killed
# HiGHS 1.15 hears no interrupt within the first relaxation of a MILP. It has reported its best point by then.
_INTERRUPT_HIGHS_S = 0.5
_KILLED_S = 2.0  # until a killed process is gone


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a task ended.

    Attributes
    ----------
    status : str
        "done" (`result` is what the function returned), "crashed", "out-of-memory", "timed-out" (killed
        because it overran its time limit), or "interrupted" (Ctrl-C or `Task.kill`).
    result : dict or None
        What the function returned; present unless the task died.
    last_progress : dict or None
        The last news the task sent.
    message : str
        What happened, for a person; empty when done.
    seconds : float
        From `start_task` until the outcome was known.
    """

    status: Status
    result: dict[str, Any] | None
    last_progress: dict[str, Any] | None
    message: str
    seconds: float


class Task:
    """A running task; made by `start_task`."""

    def __init__(
        self, number: int, request: dict[str, Any], on_progress: Callable[[dict[str, Any]], None] | None
    ) -> None:
        self.number = number
        self.time_limit_s: float = request["time_limit_s"]
        self.memory_limit_mb: int | None = request["memory_limit_mb"]
        self._frame = encode_message({"kind": "task", "task": number, **request})
        self._on_progress = on_progress
        self._changed = threading.Condition()
        self._news: deque[dict[str, Any]] = deque()
        self._last_progress: dict[str, Any] | None = None
        self._outcome: Outcome | None = None
        self._process: Process | None = None
        self._running = False
        self._start_s = time.monotonic()
        self._owner_pid = os.getpid()

    def poll(self) -> Outcome | None:
        """The outcome if there is one, after handing any news to `on_progress`; never blocks."""
        return self.wait(0.0)

    def wait(self, timeout_s: float | None = None) -> Outcome | None:
        """The outcome, or None if not known within `timeout_s`; hands news to `on_progress` meanwhile."""
        return self._wait(timeout_s, self._on_progress)

    def stop(self) -> None:
        """Ask the task to end soon; its outcome still arrives, with the best it has."""
        if self._process is not None and self._outcome is None:
            self._process.send_stop(self.number)

    def kill(self) -> None:
        """End the task's process at once; its outcome becomes "interrupted"."""
        if self._process is not None and self._outcome is None:
            self._process.kill_task(self, "interrupted", "killed on request")

    def has_begun(self) -> bool:
        """Whether a worker has been given the task."""
        return self._process is not None

    def is_running(self) -> bool:
        """Whether the worker has read the task, so that it can be asked to stop."""
        return self._running

    def wait_quietly(self, timeout_s: float) -> Outcome | None:
        """As `wait`, but keeps news to itself."""
        return self._wait(timeout_s, None)

    def _wait(
        self, timeout_s: float | None, on_news: Callable[[dict[str, Any]], None] | None
    ) -> Outcome | None:
        if os.getpid() != self._owner_pid:
            return Outcome("crashed", None, None, "the task belongs to another process", 0.0)
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._changed:
                while not self._news and self._outcome is None:
                    left_s = None if deadline_s is None else deadline_s - time.monotonic()
                    if left_s is not None and left_s <= 0:
                        return None
                    self._changed.wait(left_s)
                news = list(self._news)
                self._news.clear()
                outcome = self._outcome
            if on_news is not None:
                for item in news:
                    on_news(item)
            if outcome is not None:
                return outcome

    # Called by `Process`, from its reader thread or on starting.

    def begin(self, process: Process) -> bytes:
        """Note who runs the task; the frame to send there."""
        self._process = process
        return self._frame

    def note_running(self) -> None:
        """Note that the worker is at it."""
        self._running = True

    def add_news(self, news: dict[str, Any]) -> None:
        """Note progress."""
        with self._changed:
            self._last_progress = news
            if self._on_progress is not None:
                self._news.append(news)
            self._changed.notify_all()

    def finish(self, status: Status, result: dict[str, Any] | None, message: str) -> None:
        """Set the outcome, once."""
        seconds = time.monotonic() - self._start_s
        with self._changed:
            if self._outcome is None:
                self._outcome = Outcome(status, result, self._last_progress, message, seconds)
            self._frame = b""
            self._changed.notify_all()


def start_task(
    family: str,
    function: str,
    payload: dict[str, Any],
    *,
    time_limit_s: float,
    memory_limit_mb: int | None = None,
    on_progress: Callable[[dict[str, Any]], None] | None = None,
    log: bool = False,
) -> Task:
    """A task that has begun in a worker process.

    Parameters
    ----------
    family : str
        Which worker: one of `FAMILIES`.
    function : str
        ``"taccl.package.module:name"``. It is called in the worker as ``function(payload, control)``, where
        `control` is a `taccl.solvers.child.Control`, and returns a dict.
    payload : dict
        JSON values and numpy arrays; what the function returns is limited to the same.
    time_limit_s : float
        The function should return by itself; a few seconds past this its process is killed.
    memory_limit_mb : int, optional
        How much the task may add to the worker's address space, in units of 10**6 bytes, where the platform
        can enforce it.
    on_progress : callable, optional
        Gets what the function gives to ``control.progress``; called from `Task.poll` and `Task.wait`.
    log : bool
        Let native libraries print to standard error.

    Raises
    ------
    InputError
        If the family is unknown, the function lies outside taccl, or a limit makes no sense.
    TypeError
        If the payload cannot be sent.
    """
    task = _make_task(family, function, payload, time_limit_s, memory_limit_mb, on_progress, log=log)
    _begin(task, family)
    return task


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
    """The outcome of a task, however long it takes; parameters as for `start_task`.

    On Ctrl-C the task is asked to stop and killed if it has not within two seconds (half a second for HiGHS;
    at once, if its worker is still loading); the outcome is then "interrupted", with its result or last
    progress, and the KeyboardInterrupt is not raised again.
    """
    start_s = time.monotonic()
    task = None
    try:
        task = _make_task(family, function, payload, time_limit_s, memory_limit_mb, on_progress, log=log)
        _begin(task, family)
        outcome = task.wait()
        assert outcome is not None
        return outcome
    except KeyboardInterrupt:
        if task is None:
            return Outcome("interrupted", None, None, "stopped by Ctrl-C", time.monotonic() - start_s)
        return _interrupt(task, _INTERRUPT_HIGHS_S if family == "highs" else _INTERRUPT_S)
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


def _make_task(
    family: str,
    function: str,
    payload: dict[str, Any],
    time_limit_s: float,
    memory_limit_mb: int | None,
    on_progress: Callable[[dict[str, Any]], None] | None,
    *,
    log: bool,
) -> Task:
    _check(family)
    if not _FUNCTION.fullmatch(function):
        raise InputError(
            f"found {function!r}; expected a function of taccl, as 'taccl.package.module:name'", where="task"
        )
    if memory_limit_mb is not None and not memory_limit_mb >= 1:
        raise InputError(f"found {memory_limit_mb}; expected MB, at least 1", where="memory_limit_mb")
    if not math.isfinite(time_limit_s):
        raise InputError(f"found {time_limit_s}; expected a number of seconds", where="time_limit_s")
    request = {
        "function": function,
        "payload": payload,
        "time_limit_s": float(time_limit_s),
        "memory_limit_mb": memory_limit_mb,
        "log": log,
    }
    return Task(next(_TASK_NUMBERS), request, on_progress)


def _begin(task: Task, family: str) -> None:
    for _ in range(3):  # an idle worker may have been killed since its last task
        try:
            process = WORKERS.acquire(family)
        except OSError as error:
            task.finish("crashed", None, f"the worker process could not be started: {error}")
            return
        if process.begin(task):
            return
    task.finish("crashed", None, "worker processes end before they take a task")


def _interrupt(task: Task, patience_s: float) -> Outcome:
    outcome = None
    if not task.has_begun():
        return Outcome("interrupted", None, None, "stopped by Ctrl-C", 0.0)
    if task.is_running():
        with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C: do not wait
            task.stop()
            outcome = task.wait_quietly(patience_s)
    if outcome is None:
        task.kill()
        outcome = task.wait_quietly(_KILLED_S)
    if outcome is None:
        return Outcome("interrupted", None, None, "stopped by Ctrl-C", 0.0)
    return replace(outcome, status="interrupted", message="stopped by Ctrl-C")
