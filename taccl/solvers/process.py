"""The worker processes themselves: started, spoken to, ended, and kept for reuse.

A native library can hang, abort, or eat all memory; in a process of its own none of that reaches the caller.
`multiprocessing` lends its channels only: its spawn method imports the caller's ``__main__`` again, which a
script without a ``__main__`` guard does not survive.
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

_MAX_IDLE = 2  # workers kept per family
_KEPT_NONE = ("kernels",)  # whose workers end with their task, as each has another
_TAIL_BYTES = 4096


class Process:
    """One worker process: started, spoken to, and ended."""

    def __init__(self, family: str, folder: str | None) -> None:
        self.family = family
        self._folder = tempfile.mkdtemp(prefix=f"taccl-{family}-", dir=folder)  # the worker's TMPDIR
        # Output of native code, and Python's last words: read if the process dies.
        self._quiet = open(os.path.join(self._folder, "output"), "a+b", buffering=0)  # noqa: SIM115
        self._channel, theirs = Pipe()
        self._closing = threading.RLock()  # one thread may end it while another one listens, as at exit
        try:
            with theirs:
                self._popen = _start_python(family, theirs.fileno(), self._quiet.fileno(), self._folder)
        except OSError:
            self._close()
            raise

    @property
    def is_alive(self) -> bool:
        """True until it has ended."""
        return self._popen.poll() is None

    def begin(self, task: bytes) -> bool:
        """Hand a task over; False if the process has ended meanwhile."""
        try:
            os.ftruncate(self._quiet.fileno(), 0)
            self._channel.send_bytes(task)
        except (OSError, ValueError):
            return False
        return True

    def send_stop(self, number: int) -> None:
        """Ask the task of that number to end soon."""
        with contextlib.suppress(OSError, ValueError):
            self._channel.send_bytes(encode({"kind": "stop", "task": number}))

    def next_message(self, timeout_s: float) -> dict[str, Any] | None:
        """Its next message; None if there is none in time. Raises `EOFError` once it has ended."""
        there = False
        try:
            there = self._channel.poll(timeout_s)
            with self._closing:
                return decode(self._channel.recv_bytes()) if there else None
        except OSError:  # closed, or reset
            raise EOFError from None
        except KeyboardInterrupt:
            if there:  # half of it may have been read
                self.end()
            raise

    def kill(self) -> None:
        """End the process and whatever it started; what it has sent can still be read."""
        if self._popen.returncode is None:  # not reaped yet, so its number is still its own
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._popen.pid, signal.SIGKILL)

    def end(self) -> tuple[int, str]:
        """The exit code, and the end of what was printed, of the process, which is no more then."""
        self.kill()
        code, tail = self._popen.wait(), b""
        with self._closing:
            if not self._quiet.closed:
                size = os.fstat(self._quiet.fileno()).st_size
                tail = os.pread(self._quiet.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
            self._close()
        return code, tail.decode(errors="replace")

    def forget(self) -> None:
        """In a forked child: let go of the parent's worker."""
        self._channel.close()
        self._quiet.close()
        self._popen.returncode = 0

    def _close(self) -> None:
        self._channel.close()
        self._quiet.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class Workers:
    """Every worker of this process: the idle ones by family, and all, to end them at exit.

    - `folder` (str): For the folders of their temporary files, where another process removes these in the
      end.
    """

    def __init__(self) -> None:
        self.folder: str | None = None
        self._lock = threading.Lock()
        self._idle: dict[str, list[Process]] = {family: [] for family in FAMILIES}
        self._all: list[Process] = []

    def acquire(self, family: str) -> Process:
        """An idle worker of the family, or a new one."""
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
        """Keep a worker for the next task, or end it if there are enough."""
        with self._lock:
            if process.family not in _KEPT_NONE and len(self._idle[process.family]) < _MAX_IDLE:
                self._idle[process.family].append(process)
                return
        process.end()

    def end_idle(self) -> None:
        """End the workers that have no task."""
        with self._lock:
            idle = [process for processes in self._idle.values() for process in processes]
            for processes in self._idle.values():
                processes.clear()
        for process in idle:
            process.end()

    def kill_all(self) -> None:
        """End every worker and delete its files; at exit."""
        for process in self._all:
            process.end()

    def forget_all(self) -> None:
        """In a forked child: the workers are the parent's; start afresh."""
        processes = self._all
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
