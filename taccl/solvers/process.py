"""The worker processes themselves: started, listened to, ended, and kept for reuse.

A native library can hang, abort, or eat all memory; in a process of its own none of that reaches the caller.
`multiprocessing` lends its channels only: its spawn method imports the caller's ``__main__`` again, which a
script without a ``__main__`` guard does not survive.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from multiprocessing.connection import Pipe
from typing import TYPE_CHECKING, Any, Literal

from taccl.solvers.memory import MEMORY_WORDS
from taccl.solvers.wire import decode, encode

if TYPE_CHECKING:
    from taccl.solvers.worker import Task

_LOG = logging.getLogger(__name__)

FAMILIES = ("highs", "ortools", "gurobi", "pulp")
Status = Literal["done", "crashed", "out-of-memory", "timed-out", "interrupted"]

_START_S = 60.0  # what starting Python and importing a library may take on a busy machine
_GRACE_S = 5.0  # past its time limit, before a task is killed
_MAX_IDLE = 2  # workers kept per family
_TAIL_BYTES = 4096
_FAILED = ("crashed", "out-of-memory", "unavailable")


class Process:
    """One worker process, and the thread that listens to it."""

    def __init__(self, family: str, workers: Workers) -> None:
        self.family = family
        self._workers = workers
        self._lock = threading.RLock()
        self._send_lock = threading.Lock()
        self._task: Task | None = None
        self._limit: threading.Timer | None = None
        self._kill_outcome: tuple[Status, str] | None = None
        self._gone = False
        self._folder = tempfile.mkdtemp(prefix=f"taccl-{family}-", dir=workers.folder)  # the worker's TMPDIR
        # What native code prints, and Python's last words: read if the process dies.
        self._quiet = open(os.path.join(self._folder, "output"), "a+b", buffering=0)  # noqa: SIM115
        self._channel, theirs = Pipe()
        try:
            with theirs:
                self._popen = _start_python(family, theirs.fileno(), self._quiet.fileno(), self._folder)
        except OSError:
            self._close()
            raise
        threading.Thread(target=self._listen, name=f"taccl-{family}-worker", daemon=True).start()

    def begin(self, task: Task) -> bool:
        """Hand a task over; False if the process has ended meanwhile."""
        with self._lock:
            if self._gone:
                return False
            self._task = task
            self._end_after(_START_S + task.time_limit_s + _GRACE_S)
            os.ftruncate(self._quiet.fileno(), 0)
        try:
            self._send(task.begin(self))
        except OSError:
            with self._lock:
                if self._task is task:
                    self._task = None
                    return False
        return True

    def send_stop(self, number: int) -> None:
        """Ask the task of that number to end soon."""
        with contextlib.suppress(OSError, ValueError):
            self._send(encode({"kind": "stop", "task": number}))

    def kill_task(self, task: Task, status: Status, message: str) -> None:
        """End the process, if it still runs the task, and say how the task then ended."""
        with self._lock:
            if self._task is task:
                self._kill_outcome = self._kill_outcome or (status, message)
                self.kill()

    def kill(self) -> None:
        """End the process and whatever it started."""
        with self._lock:
            if self._popen.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._popen.pid, signal.SIGKILL)

    def remove_folder(self) -> None:
        """Delete the process's temporary files."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def forget(self) -> None:
        """In a forked child: let go of the parent's worker."""
        self._channel.close()
        self._quiet.close()
        self._popen.returncode = 0

    def _send(self, data: bytes) -> None:
        with self._send_lock:
            self._channel.send_bytes(data)

    def _end_after(self, seconds: float | None) -> None:
        """Kill the task then, unless another time is set, or none, before."""
        if self._limit is not None:
            self._limit.cancel()
        self._limit = None
        if seconds is not None and self._task is not None:
            message = f"killed: it overran its time limit of {self._task.time_limit_s:g} s"
            self._limit = threading.Timer(seconds, self.kill_task, (self._task, "timed-out", message))
            self._limit.daemon = True
            self._limit.start()

    def _listen(self) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._receive(decode(self._channel.recv_bytes()))
        self._bury()

    def _receive(self, message: dict[str, Any]) -> None:
        task = self._task
        if task is None:
            return
        kind = message["kind"]
        if kind == "started":
            with self._lock:
                self._end_after(task.time_limit_s + _GRACE_S)
            task.is_running = True
        elif kind == "progress":
            task.add_news(message["progress"])
        else:
            with self._lock:
                self._end_after(None)
                self._task = None
            status = (message.get("result") or {}).get("status") if kind == "done" else kind
            bounded = task.memory_limit_mb is not None
            if kind == "out-of-memory" or (bounded and status in _FAILED):
                self.kill()  # what it holds, and which parts of a library, is not known any more
            else:
                self._workers.release(self)
            if message.get("traceback"):
                _LOG.debug("task %d failed in its worker:\n%s", task.number, message["traceback"])
            task.finish(kind, message.get("result"), message.get("message", ""))

    def _bury(self) -> None:
        """The process has ended, or closed its channel: say why."""
        self.kill()  # and any process it started; it is not reaped yet, so its number is still its own
        with self._lock:
            self._gone = True
            self._end_after(None)
            code = self._popen.wait()
            task, self._task = self._task, None
        self._workers.remove(self)
        size = os.fstat(self._quiet.fileno()).st_size
        tail = os.pread(self._quiet.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        self._close()
        if task is not None:
            status, message = self._kill_outcome or _diagnose(
                code, tail.decode(errors="replace"), task.memory_limit_mb
            )
            task.finish(status, None, message)

    def _close(self) -> None:
        self._channel.close()
        self._quiet.close()
        self.remove_folder()


class Workers:
    """Every worker of this process: the idle ones by family, and all, to end them at exit.

    - `folder` (str): For the folders of their temporary files, where another process removes these in the
      end.
    """

    def __init__(self) -> None:
        self.folder: str | None = None
        self._lock = threading.Lock()
        self._idle: dict[str, list[Process]] = {family: [] for family in FAMILIES}
        self._all: set[Process] = set()

    def acquire(self, family: str) -> Process:
        """An idle worker of the family, or a new one."""
        with self._lock:
            if self._idle[family]:
                return self._idle[family].pop()
        process = Process(family, self)
        with self._lock:
            self._all.add(process)
        return process

    def release(self, process: Process) -> None:
        """Keep a worker for the next task, or end it if there are enough."""
        with self._lock:
            if len(self._idle[process.family]) < _MAX_IDLE:
                self._idle[process.family].append(process)
                return
        process.kill()

    def end_idle(self) -> None:
        """End the workers that have no task."""
        with self._lock:
            idle = [process for processes in self._idle.values() for process in processes]
            for processes in self._idle.values():
                processes.clear()
        for process in idle:
            process.kill()

    def remove(self, process: Process) -> None:
        """Forget a worker that has ended."""
        with self._lock:
            self._all.discard(process)
            if process in self._idle[process.family]:
                self._idle[process.family].remove(process)

    def kill_all(self) -> None:
        """End every worker and delete its files; at exit."""
        for process in tuple(self._all):
            process.kill()
            process.remove_folder()

    def forget_all(self) -> None:
        """In a forked child: the workers are the parent's; start afresh."""
        processes = tuple(self._all)
        self.__init__()  # type: ignore[misc]
        for process in processes:
            process.forget()


WORKERS = Workers()
atexit.register(WORKERS.kill_all)
os.register_at_fork(after_in_child=WORKERS.forget_all)


def _start_python(family: str, channel: int, quiet: int, folder: str) -> subprocess.Popen[bytes]:
    """A Python that finds the modules this one finds, in its own session, so that Ctrl-C passes it by."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
    with contextlib.ExitStack() as stack:
        log = quiet
        with contextlib.suppress(OSError):
            log = os.dup(2)
            stack.callback(os.close, log)
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "taccl.solvers.child", family, str(channel), str(log)],
            stdin=subprocess.DEVNULL,
            stdout=quiet,
            stderr=quiet,
            env={**os.environ, "PYTHONPATH": path, "TMPDIR": folder},
            pass_fds=(channel, log),
            start_new_session=True,
        )


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
