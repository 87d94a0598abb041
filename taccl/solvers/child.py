"""What runs inside a worker process: one task after another, answered over a pipe.

Started by `taccl.solvers.process` as ``python -m taccl.solvers.child FAMILY``. Frames come in on descriptor 0
and leave on a copy of descriptor 1; descriptor 1 itself becomes descriptor 2, so that what a native library
prints cannot damage the channel. The process ignores Ctrl-C (its parent decides) and ends when descriptor 0
closes.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import shutil
import signal
import sys
import threading
import time
import traceback
import warnings
from typing import TYPE_CHECKING, Any

from taccl.solvers.memory import limited_memory, tells_of_memory
from taccl.solvers.wire import FrameReader, encode_message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["Control", "main"]

# Loaded before the first task, so that a warm worker answers at once.
_PRELOAD = {
    "highs": ("highspy",),
    "ortools": ("ortools.sat.python.cp_model",),
    "gurobi": ("gurobipy",),
    "pulp": (),
}
_READ_BYTES = 1 << 20


class Control:
    """What a running task may ask of its worker."""

    def __init__(self, send: Callable[[dict[str, Any]], None], time_limit_s: float) -> None:
        self._send = send
        self._stop = threading.Event()
        self._start_s = time.monotonic()
        self._time_limit_s = time_limit_s

    def progress(self, news: dict[str, Any]) -> None:
        """Send news (JSON values and arrays) to whoever started the task."""
        self._send({"kind": "progress", "progress": news})

    def stop_requested(self) -> bool:
        """Whether the task should end soon and return its best."""
        return self._stop.is_set()

    def time_left_s(self) -> float:
        """Seconds until the task's time limit, never negative."""
        return max(0.0, self._time_limit_s - self.seconds())

    def seconds(self) -> float:
        """Seconds since the task began."""
        return time.monotonic() - self._start_s

    def request_stop(self) -> None:
        """Make `stop_requested` true; called when the parent asks for it."""
        self._stop.set()


class _Worker:
    def __init__(self, channel: int, quiet: int) -> None:
        self._channel = channel
        self._quiet = quiet
        self._send_lock = threading.Lock()
        self._tasks: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._stopped: set[int] = set()
        self._current: tuple[int, Control] | None = None
        self._state_lock = threading.Lock()

    def send(self, message: dict[str, Any]) -> None:
        frame = memoryview(encode_message(message))
        with self._send_lock:
            while frame:
                frame = frame[os.write(self._channel, frame) :]

    def read_commands(self) -> None:
        """Queue tasks and pass stop requests on; end the process when the parent is gone."""
        reader = FrameReader()
        try:
            while data := os.read(0, _READ_BYTES):
                for message in reader.feed(data):
                    if message["kind"] == "task":
                        self._tasks.put(message)
                    else:
                        self._stop(message["task"])
        finally:
            _end_process_group()

    def _stop(self, task: int) -> None:
        with self._state_lock:
            self._stopped.add(task)
            if self._current is not None and self._current[0] == task:
                self._current[1].request_stop()

    def run_tasks(self) -> None:
        while True:
            message = self._tasks.get()
            control = Control(self.send, message["time_limit_s"])
            with self._state_lock:
                self._current = (message["task"], control)
                if message["task"] in self._stopped:
                    control.request_stop()
            self.send({"kind": "started"})
            answer = self._run(message, control)
            with self._state_lock:
                self._current = None
                self._stopped.clear()
            self.send(answer)

    def _run(self, message: dict[str, Any], control: Control) -> dict[str, Any]:
        limit_mb = message["memory_limit_mb"]
        try:
            with _native_output(message["log"], self._quiet):
                function = _load_function(message["function"])
                with limited_memory(limit_mb):
                    result = function(message["payload"], control)
            encode_message({"result": result})
            return {"kind": "done", "result": result}
        except BaseException as error:
            if tells_of_memory(error, bounded=limit_mb is not None):
                limit = f" under a memory limit of {limit_mb} MB" if limit_mb is not None else ""
                return {
                    "kind": "out-of-memory",
                    "message": f"the worker ran out of memory{limit}",
                    "traceback": traceback.format_exc(),
                }
            return {
                "kind": "crashed",
                "message": f"{type(error).__name__}: {error}",
                "traceback": traceback.format_exc(),
            }


def main() -> None:
    """Serve tasks until the parent goes away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")  # nobody would see what a library warns of; nor shall it end a task
    channel = os.dup(1)
    quiet = os.dup(2)  # the parent gave a file that it reads when this process dies
    os.dup2(2, 1)
    worker = _Worker(channel, quiet)
    threading.Thread(target=worker.read_commands, name="taccl-commands", daemon=True).start()
    _load(_PRELOAD.get(sys.argv[1], ()))
    worker.run_tasks()


def _end_process_group() -> None:
    """End this process at once, with its temporary files and any process that a task left behind."""
    shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def _load_function(function: str) -> Callable[[dict[str, Any], Control], dict[str, Any]]:
    """The function behind a name, with the libraries that its module lists in LIBRARIES loaded.

    A library that is loaded under a memory limit may fail half-way, and then looks like one that is missing,
    as long as the process lives. One that is missing or broken is the task's to report.
    """
    module_name, _, name = function.partition(":")
    module = importlib.import_module(module_name)
    _load(getattr(module, "LIBRARIES", ()))
    found: Callable[[dict[str, Any], Control], dict[str, Any]] = getattr(module, name)
    return found


def _load(libraries: Iterable[str]) -> None:
    for library in libraries:
        with contextlib.suppress(Exception):
            importlib.import_module(library)


@contextlib.contextmanager
def _native_output(log: bool, quiet: int) -> Iterator[None]:
    """Send what native code prints to the parent's error stream if `log`, else to the parent's quiet file."""
    log_descriptor = (
        int(os.environ["TACCL_WORKER_LOG"]) if log and "TACCL_WORKER_LOG" in os.environ else quiet
    )
    os.dup2(log_descriptor, 1)
    os.dup2(log_descriptor, 2)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)


if __name__ == "__main__":
    main()
