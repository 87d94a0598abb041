"""Interrupt a thread: raise an exception in it, from another thread, between two of its bytecodes."""

from __future__ import annotations

import ctypes
import itertools
import math
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_STARTS = threading.RLock()

#: Counter that numbers interrupts in ascending order.
_NUMBERS = itertools.count(1)
#: Interval in seconds at which a due interrupt calls its function `ready`, until that returns True.
_TICK_S = 0.1
#: Max number of checks for the arrival of a sent interrupt; each check executes several bytecodes.
_MOST_LOOKS = 1000
#: Seconds after which an interrupt is sent again if the thread has not ended its work.
_AGAIN_S = 1.0
#: Interval in seconds at which a thread that must not be interrupted is checked again.
_NO_INTERRUPT_S = 0.01
#: Prefixes of modules in which an interrupt would leave imports, compilations or processes half done.
_NO_INTERRUPT = ("importlib.", "numba.", "llvmlite.", "subprocess")
#: {module: functions} that must not be interrupted.
_NO_INTERRUPT_IN = {
    "taccl.baselines.forms": frozenset({"_keep_reversed"}),
    "taccl._internal.interrupts": frozenset({"begin", "end", "start"}),
    "taccl._internal.kernels": frozenset({"_prepare"}),
    "taccl.solvers.process": frozenset({"__init__", "acquire", "release", "begin", "end", "kill"}),
}


class TimeIsUp(BaseException):
    """Base class of the exceptions that interrupt a thread; not caught by handlers of `Exception`.

    Such an exception may arrive while its deadline ends; the next outer deadline then receives it.

    - `number`: Number of the interrupt; larger than the numbers of outer deadlines' interrupts.
    - `is_lost`: True if the exception arrived where Python ignores exceptions, such as in a finalizer.
    """

    number = 0
    is_lost = False


class Interrupt:
    """Timer that raises an exception, of a class of its own, in the thread that created the timer.

    - `at_s`: Time on the clock of `time.monotonic`.
    - `ready`: Called in another thread; the interrupt waits until it returns True.
    """

    def __init__(self, at_s: float, ready: Callable[[], bool] | None) -> None:
        self._at_s, self._ready, self._thread = at_s, ready, threading.get_ident()
        self._left, self._lock = threading.Event(), threading.Lock()
        # Calls on the thread's stack that must not be interrupted; above 0 if an import creates this object.
        self._apart = _frames_without_interrupt(self._thread)
        self._is_sent = False  # True while an exception that was sent has not arrived
        self.was_sent = False  # True once an exception was sent, whether it has arrived or not

        def arrived(_: BaseException, *__: object) -> None:
            self._is_sent = False

        self.number = next(_NUMBERS)
        members = {"__init__": arrived, "number": self.number}
        self.kind: type[TimeIsUp] = type("TimeIsUp", (TimeIsUp,), members)

    def begin(self) -> None:
        """Start the thread that watches the clock."""
        _note_lost_interrupts()
        start(threading.Thread(target=self._watch, name="taccl-deadline", daemon=True))

    def end(self) -> None:
        """End the interrupt: raise nothing in its thread from now on."""
        with self._lock:
            self._left.set()
        # Wait here for an exception that was sent, as it would otherwise interrupt later code.
        # The exception is not withdrawn: if it were, CPython 3.11 would look for it forever under a profiler.
        # The wait is limited, as the exception never arrives if another one has replaced it.
        with suppress(self.kind):
            for _ in range(_MOST_LOOKS):
                if not self._is_sent:
                    break
        self._is_sent = False

    def _watch(self) -> None:
        sent_s = -math.inf
        while not self._left.wait(min(max(0.0, self._at_s - time.monotonic()), threading.TIMEOUT_MAX)):
            if self._ready is not None and not self._ready():
                self._at_s = time.monotonic() + _TICK_S
                continue
            now_s = time.monotonic()
            with _STARTS, self._lock:
                is_due = self.kind.is_lost or now_s >= sent_s + _AGAIN_S
                if is_due and not self._left.is_set() and self._may_raise():
                    self._is_sent = self.was_sent = True
                    self.kind.is_lost, sent_s = False, now_s
                    _raise_in(self._thread, self.kind)
            self._at_s = now_s + _NO_INTERRUPT_S

    def _may_raise(self) -> bool:
        """True unless the thread is in code that must not be interrupted.

        In `contextlib`, the thread may be leaving `Deadline.enforced`, which would no longer catch the
        interrupt.
        """
        frame = sys._current_frames().get(self._thread)
        if frame is not None and frame.f_globals.get("__name__") == "contextlib":
            return False
        return _frames_without_interrupt(self._thread) <= self._apart


def _note_lost_interrupts() -> None:
    """Install a hook that marks interrupts which Python ignored, so that they are sent again."""
    others = sys.unraisablehook
    if getattr(others, "notes_interrupts", False):
        return

    def note(unraisable: Any) -> None:
        if issubclass(unraisable.exc_type, TimeIsUp):
            unraisable.exc_type.is_lost = True
        else:
            others(unraisable)

    note.notes_interrupts = True  # type: ignore[attr-defined]
    sys.unraisablehook = note


def start(thread: threading.Thread) -> None:
    """Start a thread while no interrupt is being sent.

    Until the new thread runs, CPython 3.11 gives it the identifier of the starting thread. It would then
    receive the interrupts of the starting thread.
    """
    with _STARTS:
        thread.start()


def _frames_without_interrupt(thread: int) -> int:
    """Number of calls on a thread's stack that must not be interrupted."""
    count, frame = 0, sys._current_frames().get(thread)
    while frame is not None:
        module = frame.f_globals.get("__name__") or ""
        must_finish = module.startswith(_NO_INTERRUPT) or frame.f_code.co_name in _NO_INTERRUPT_IN.get(
            module, ()
        )
        count, frame = count + must_finish, frame.f_back
    return count


def _raise_in(thread: int, kind: type[BaseException]) -> None:
    """Raise an exception in another thread between two of its bytecodes."""
    if hasattr(ctypes, "pythonapi"):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))
