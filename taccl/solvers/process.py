"""Worker processes: start them, exchange messages, end them, and keep idle ones for reuse.

A native library can hang, abort, or use up all memory; in a process of its own it cannot harm the caller.
Only the channels of `multiprocessing` are used: its spawn method imports the caller's ``__main__`` again,
which fails for scripts without a ``__main__`` guard.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from multiprocessing.connection import Pipe
from typing import Any

from taccl.solvers.wire import decode, encode

FAMILIES = ("highs", "ortools", "gurobi", "pulp", "kernels")

_MAX_IDLE = 2  # idle workers kept per family
_KEPT_NONE = ("kernels",)  # families whose workers end with their task
_TAIL_BYTES = 4096


class Process:
    """One worker process and the channel to it."""

    def __init__(self, family: str, folder: str | None) -> None:
        self.family = family
        self._folder = tempfile.mkdtemp(prefix=f"taccl-{family}-", dir=folder)  # the worker's TMPDIR
        # Output of native code and Python's last error, read if the process dies.
        self._quiet = open(os.path.join(self._folder, "output"), "a+b", buffering=0)  # noqa: SIM115
        self._channel, theirs = Pipe()
        self._closing = threading.RLock()  # at exit, one thread may end the process while another listens
        try:
            with theirs:
                self._popen = _start_python(family, theirs.fileno(), self._quiet.fileno(), self._folder)
        except OSError:
            self._close()
            raise

    @property
    def is_alive(self) -> bool:
        """True until the process has ended."""
        return self._popen.poll() is None

    def begin(self, task: bytes) -> bool:
        """Send a task to the process; return False if the process has ended."""
        try:
            os.ftruncate(self._quiet.fileno(), 0)
            self._channel.send_bytes(task)
        except (OSError, ValueError):
            return False
        return True

    def send_stop(self, number: int) -> None:
        """Ask the process to end the task with this number soon."""
        with contextlib.suppress(OSError, ValueError):
            self._channel.send_bytes(encode({"kind": "stop", "task": number}))

    def next_message(self, timeout_s: float) -> dict[str, Any] | None:
        """Next message of the process; None if none arrives in time. Raises `EOFError` once it has ended."""
        there = False
        try:
            there = self._channel.poll(timeout_s)
            with self._closing:
                return decode(self._channel.recv_bytes()) if there else None
        except OSError:  # the channel was closed or reset
            raise EOFError from None
        except KeyboardInterrupt:
            if there:  # the message may be partly read
                self.end()
            raise

    def kill(self) -> None:
        """Kill the process and all processes that it started; messages already sent can still be read."""
        if self._popen.returncode is None:  # the process was not reaped yet, so its id is not reused
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._popen.pid, signal.SIGKILL)

    def end(self) -> tuple[int, str]:
        """Kill the process; return its exit code and the end of its output."""
        self.kill()
        code, tail = self._popen.wait(), b""
        with self._closing:
            if not self._quiet.closed:
                size = os.fstat(self._quiet.fileno()).st_size
                tail = os.pread(self._quiet.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
            self._close()
        return code, tail.decode(errors="replace")

    def forget(self) -> None:
        """In a forked child, close the channel to a worker of the parent without ending the worker."""
        self._channel.close()
        self._quiet.close()
        self._popen.returncode = 0

    def _close(self) -> None:
        self._channel.close()
        self._quiet.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class Workers:
    """All workers of this process, and the idle ones by family.

    - `folder`: Parent folder of the workers' temporary folders, if another process deletes it; None for the
      default.
    """

    def __init__(self) -> None:
        self.folder: str | None = None
        self._lock = threading.Lock()
        self._idle: dict[str, list[Process]] = {family: [] for family in FAMILIES}
        self._all: list[Process] = []

    def acquire(self, family: str) -> Process:
        """Idle worker of the family, or a new one."""
        with self._lock:
            while self._idle[family]:
                process = self._idle[family].pop()
                if process.is_alive:
                    return process
                process.end()
        process = Process(family, self.folder)
        with self._lock:
            self._all = [process, *(each for each in self._all if each.is_alive)]
        return process

    def release(self, process: Process) -> None:
        """Keep a worker for the next task, or end it if enough are idle."""
        with self._lock:
            if process.family not in _KEPT_NONE and len(self._idle[process.family]) < _MAX_IDLE:
                self._idle[process.family].append(process)
                return
        process.end()

    def end_idle(self) -> None:
        """End all idle workers."""
        with self._lock:
            idle = [process for processes in self._idle.values() for process in processes]
            for processes in self._idle.values():
                processes.clear()
        for process in idle:
            process.end()

    def kill_all(self) -> None:
        """End every worker and delete its files, at exit."""
        for process in self._all:
            process.end()

    def forget_all(self) -> None:
        """Start without workers in a forked child, as the workers belong to the parent."""
        processes = self._all
        self.__init__()  # type: ignore[misc]
        for process in processes:
            process.forget()


WORKERS = Workers()
atexit.register(WORKERS.kill_all)
os.register_at_fork(after_in_child=WORKERS.forget_all)


def _start_python(family: str, channel: int, quiet: int, folder: str) -> subprocess.Popen[bytes]:
    """Start Python with this process's module path, in its own session so that Ctrl-C does not reach it."""
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
