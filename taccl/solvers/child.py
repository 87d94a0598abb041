"""Code inside a worker process: runs one task after another, and answers over a channel.

Started by `taccl.solvers.process` as ``python -m taccl.solvers.child FAMILY CHANNEL LOG``; the last two are
file descriptors. Standard output and error lead to a file of the parent, so that output of libraries stays
off the terminal. The process ignores Ctrl-C, which its parent handles, and ends when the channel closes.
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

from taccl._internal.address_space import limited_memory, means_out_of_memory
from taccl.solvers.wire import decode, encode

if TYPE_CHECKING:
    import numpy as np

# {worker family: module to import before the first task}, so that a waiting worker can start at once.
_PRELOAD = {"highs": "highspy", "ortools": "ortools.sat.python.cp_model", "gurobi": "gurobipy"}
_STOP_TICK_S = 0.05
_BOUND_NEWS_S = 0.5  # minimum interval between reports of a solver that reports its bound at every node
_NOTHING = 1e40  # solvers write larger values if they have no solution or no bound


class Control:
    """Services of the worker for a running task: progress, stop requests and the time limit.

    - `version`: Version of the solver, once the task sets it.
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
        """Send a progress report (JSON values and arrays) to the parent process."""
        self._send({"kind": "progress", "progress": news})

    def tell(self, objective: float | None, bound: float | None, values: np.ndarray | None = None) -> None:
        """Report the best objective and bound so far, and a new solution, if any; None or nan if unknown."""
        numbers = {
            name: None if value is None or math.isnan(value) or abs(value) > _NOTHING else value
            for name, value in (("objective", objective), ("bound", bound))
        }
        point = {} if values is None else {"values": values, "version": self.version}
        self.progress({"seconds": self.seconds(), **numbers, **point})

    def tell_now_and_then(self, objective: float, bound: float) -> None:
        """Report objective and bound, at most every half second."""
        if self.seconds() - self._bound_news_s >= _BOUND_NEWS_S:
            self._bound_news_s = self.seconds()
            self.tell(objective, bound)

    def stop_requested(self) -> bool:
        """True if the task should end soon and return its best solution."""
        return self._stop.is_set()

    @contextlib.contextmanager
    def stopping(self, stop: Callable[[], object]) -> Iterator[None]:
        """Context in which another thread calls `stop` repeatedly once a stop is requested."""
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
        """Start tasks and pass on stop requests; end the process when the parent is gone."""
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
            if means_out_of_memory(error, bounded=limit_mb is not None):
                limit = f" under a memory limit of {limit_mb} MB" if limit_mb is not None else ""
                kind, text = "out-of-memory", f"the worker ran out of memory{limit}"
            else:
                kind, text = "crashed", f"{type(error).__name__}: {error}"
            return {"kind": kind, "message": text, "traceback": traceback.format_exc()}

    @contextlib.contextmanager
    def _native_output(self, *, log: bool) -> Iterator[None]:
        """Send the output of native code to the parent's error stream if `log`, else to the parent's file."""
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
    """Run tasks of the parent process until that process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")  # warnings of libraries have no reader, and must not become errors
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
    """Kill this process and all processes that its tasks started, and delete its temporary files."""
    shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def _load_function(
    function: str,
) -> tuple[Callable[[dict[str, Any], Control], dict[str, Any]], dict[str, Any] | None]:
    """Import ``"module:name"``; return (function, answer if a library of its module is missing, else None).

    The module's ``LIBRARIES`` are imported here, before the memory limit applies: an import that fails
    half-way under a limit would make the library look missing for the rest of the process.
    """
    module_name, _, name = function.partition(":")
    module = importlib.import_module(module_name)
    lacking = None
    for library in getattr(module, "LIBRARIES", ()):
        try:
            importlib.import_module(library)
        except Exception as error:  # a broken installation may raise any exception
            message = f"{library.partition('.')[0]} does not load: {error}"
            lacking = lacking or {"status": "unavailable", "message": message}
    return getattr(module, name), lacking


if __name__ == "__main__":
    main()
