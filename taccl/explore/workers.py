"""Guard of joblib's worker processes: end them with their parent process, and interrupt their runs at Ctrl-C.

A terminal sends Ctrl-C to the workers, too, but also while they receive or return a run, and would end them.
Hence only the parent reacts. It writes a file, which a thread of each worker notices and then interrupts the
run, which returns its best schedule so far.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import cache
from types import FrameType
from typing import Any, NamedTuple

from taccl.explore.run import RunRequest, failed_row, perform
from taccl.solvers.process import WORKERS

#: Seconds between checks that the parent process exists and that it has not stopped the runs.
_LOOK_EVERY_S = 0.5


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Context that delays Ctrl-C until its end, and in processes that start within, until their guard starts.

    Without it, Ctrl-C would end such processes with a traceback while they load modules.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # its start unblocks Ctrl-C, before Python 3.13
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Parent(NamedTuple):
    """The process that starts workers, as they receive it.

    - `folder`: Folder for solver files, which the parent removes, as joblib may kill workers.
    - `stop`: Path of the file that stops all runs as soon as it exists.
    """

    process: int
    folder: str
    stop: str


class _UnderWay:
    """The run of this worker process; `stop` is None between runs."""

    stop: str | None = None
    is_stopped = False


def perform_for(parent: Parent, run: RunRequest) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Perform a run in a worker process as `perform` does; not begun after `parent` has stopped the runs."""
    _guard(parent.process, parent.folder)
    if os.path.exists(parent.stop):
        return run.row, None
    _UnderWay.stop = parent.stop
    try:
        return perform(run)
    except KeyboardInterrupt as error:  # before or after the search
        return failed_row(run.row, error), None
    finally:
        _UnderWay.stop = None


@cache
def _guard(parent: int, folder: str) -> None:
    """Start the guard thread of this worker process.

    Without it, joblib's workers wait minutes for the next run of a dead parent, and keep its pipes open.
    """
    WORKERS.folder = folder
    signal.signal(signal.SIGINT, _interrupt)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    threading.Thread(target=_watch, args=(parent,), name="parent-death guard", daemon=True).start()


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """Raise `KeyboardInterrupt` in a run that the parent has stopped, once."""
    if _UnderWay.is_stopped and _UnderWay.stop is not None:
        _UnderWay.is_stopped = False
        raise KeyboardInterrupt


def _watch(parent: int) -> None:
    heeded = None
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY_S)
        stop = _UnderWay.stop
        if stop not in (None, heeded) and os.path.exists(stop):
            heeded, _UnderWay.is_stopped = stop, True
            if hasattr(signal, "pthread_kill"):  # it also ends a wait in the main thread
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            else:
                _thread.interrupt_main()
    WORKERS.kill_all()
    os._exit(1)
