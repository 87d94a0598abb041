"""Code inside a worker process: one task after another, answered over a channel.

Started by `taccl.solvers.process` as ``python -m taccl.solvers.child FAMILY CHANNEL LOG``, the last two being
descriptors. Descriptors 1 and 2 are the parent's quiet file. The process ignores Ctrl-C (its parent decides)
and ends when the channel closes.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import queue
import shutil
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from taccl._internal.address_space import limited_memory, tells_of_memory
from taccl.solvers.wire import decode, encode

if TYPE_CHECKING:
    import numpy as np

# Loaded before the first task, so that a warm worker answers at once.
_PRELOAD = {"highs": "highspy", "ortools": "ortools.sat.python.cp_model", "gurobi": "gurobipy"}
_STOP_TICK_S = 0.05
_BOUND_NEWS_S = 0.5  # between two reports of an engine that tells of its bound at every node
_NOTHING = 1e40  # what engines write where they have no solution, or no bound, is larger


class Control:
    """Services of the worker for a running task.

    - `version` (str): Version of the engine that works on it, once the task knows it.
    """

    def __init__(
        self, send: Callable[[dict[str, Any]], None], time_limit_s: float, stop: threading.Event | None = None
    ) -> None:
        self.version = ""
        self._send = send
        self._stop = stop or threading.Event()
        self._start_s = time.monotonic()
        self._time_limit_s = time_limit_s
        self._bound_news_s = 0.0

    def progress(self, news: dict[str, Any]) -> None:
        """Send news (JSON values and arrays) to the parent process."""
        self._send({"kind": "progress", "progress": news})

    def tell(self, objective: float | None, bound: float | None, values: np.ndarray | None = None) -> None:
        """Send the best objective and bound so far, and the point where it is new."""
        numbers = {
            name: None if value is None or math.isnan(value) or abs(value) > _NOTHING else value
            for name, value in (("objective", objective), ("bound", bound))
        }
        point = {} if values is None else {"values": values, "version": self.version}
        self.progress({"seconds": self.seconds(), **numbers, **point})

    def tell_now_and_then(self, objective: float, bound: float) -> None:
        """The same, unless it was done shortly before."""
        if self.seconds() - self._bound_news_s >= _BOUND_NEWS_S:
            self._bound_news_s = self.seconds()
            self.tell(objective, bound)

    def stop_requested(self) -> bool:
        """True if the task should end soon and return its best."""
        return self._stop.is_set()

    @contextlib.contextmanager
    def stopping(self, stop: Callable[[], object]) -> Iterator[None]:
        """Call `stop`, in a thread of its own and until what is inside ends, once that is asked for."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(_STOP_TICK_S):
                if self.stop_requested():
                    stop()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()

    def time_left_s(self) -> float:
        """Seconds until the task's time limit, never negative."""
        return max(0.0, self._time_limit_s - self.seconds())

    def seconds(self) -> float:
        """Seconds since the task began."""
        return time.monotonic() - self._start_s


class _Worker:
    def __init__(self, channel: Connection, log: int) -> None:
        self._channel = channel
        self._log, self._quiet = log, os.dup(2)
        self._send_lock = threading.Lock()
        self._tasks: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._stops: dict[int, threading.Event] = {}

    def send(self, message: dict[str, Any]) -> None:
        data = encode(message)
        with self._send_lock:
            self._channel.send_bytes(data)

    def read_commands(self) -> None:
        """Queue tasks and pass stop requests on; end the process when the parent is gone."""
        try:
            while True:
                message = decode(self._channel.recv_bytes())
                if message["kind"] == "task":
                    self._stops = {message["task"]: threading.Event()}
                    self._tasks.put(message)
                elif message["task"] in self._stops:
                    self._stops[message["task"]].set()
        finally:
            _end_process_group()

    def run_tasks(self) -> None:
        while True:
            message = self._tasks.get()
            control = Control(self.send, message["time_limit_s"], self._stops[message["task"]])
            self.send({"kind": "started"})
            self.send(self._run(message, control))

    def _run(self, message: dict[str, Any], control: Control) -> dict[str, Any]:
        limit_mb = message["memory_limit_mb"]
        try:
            with self._native_output(log=message["log"]):
                function, lacking = _load_function(message["function"])
                with limited_memory(limit_mb):
                    result = lacking or function(message["payload"], control)
            if control.version:
                result = {"version": control.version, **result}
            encode({"result": result})
            return {"kind": "done", "result": result}
        except BaseException as error:
            if tells_of_memory(error, bounded=limit_mb is not None):
                limit = f" under a memory limit of {limit_mb} MB" if limit_mb is not None else ""
                kind, text = "out-of-memory", f"the worker ran out of memory{limit}"
            else:
                kind, text = "crashed", f"{type(error).__name__}: {error}"
            return {"kind": kind, "message": text, "traceback": traceback.format_exc()}

    @contextlib.contextmanager
    def _native_output(self, *, log: bool) -> Iterator[None]:
        """Send what native code prints to the parent's error stream if `log`."""
        for descriptor in (1, 2):
            os.dup2(self._log if log else self._quiet, descriptor)
        try:
            yield
        finally:
            for descriptor, stream in ((1, sys.stdout), (2, sys.stderr)):
                with contextlib.suppress(Exception):
                    stream.flush()
                os.dup2(self._quiet, descriptor)


def main() -> None:
    """Serve tasks until the parent goes away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")  # nobody would see what a library warns of; nor shall it end a task
    family, channel, log = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    for descriptor in (channel, log):
        os.set_inheritable(descriptor, False)
    worker = _Worker(Connection(channel), log)
    threading.Thread(target=worker.read_commands, name="taccl-commands", daemon=True).start()
    if family in _PRELOAD:
        with contextlib.suppress(Exception):
            importlib.import_module(_PRELOAD[family])
    worker.run_tasks()


def _end_process_group() -> None:
    """End this process at once, with its temporary files and any process that a task left behind."""
    shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def _load_function(
    function: str,
) -> tuple[Callable[[dict[str, Any], Control], dict[str, Any]], dict[str, Any] | None]:
    """The function behind a name; and, where a library of its module's LIBRARIES does not load, the answer.

    A library that is loaded under a memory limit may fail half-way, and then looks like one that is missing,
    as long as the process lives: so it is loaded before.
    """
    module_name, _, name = function.partition(":")
    module = importlib.import_module(module_name)
    lacking = None
    for library in getattr(module, "LIBRARIES", ()):
        try:
            importlib.import_module(library)
        except Exception as error:  # whatever a broken installation raises
            message = f"{library.partition('.')[0]} does not load: {error}"
            lacking = lacking or {"status": "unavailable", "message": message}
    return getattr(module, name), lacking


if __name__ == "__main__":
    main()
