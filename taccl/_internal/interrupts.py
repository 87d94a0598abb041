"""Interrupts of threads: exceptions that reach a thread at its next bytecode, sent by another one."""

from __future__ import annotations

import ctypes
import itertools
import math
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_STARTS = threading.RLock()

#: Numbers of interrupts, rising.
_NUMBERS = itertools.count(1)
#: Seconds between two looks at whether work is ready to be interrupted.
_TICK_S = 0.1
#: Bytecodes, at least, within which an interrupt that was sent arrives.
_MOST_LOOKS = 1000
#: Seconds between two interrupts of a thread that does not end when its time is up.
_AGAIN_S = 1.0
#: Seconds between two looks at a thread that must not be interrupted where it is.
_APART_S = 0.01
#: Begin of the names of modules that must not be interrupted: what they import or compile, and the processes
#: that they start, are kept, and would be kept half done.
_APART = ("importlib.", "numba.", "llvmlite.", "subprocess")
#: And functions of modules that are interrupted elsewhere.
_APART_IN = {
    "taccl._internal.interrupts": frozenset({"begin", "end", "start"}),
    "taccl._internal.kernels": frozenset({"_prepare"}),
    "taccl.solvers.process": frozenset({"__init__", "acquire", "release", "begin", "end", "kill"}),
}


class TimeIsUp(BaseException):
    """Base of the exceptions that interrupt a thread. Handlers of `Exception` do not see it.

    One may arrive as its deadline is left, and then reaches the next deadline around that.

    - `number`: That of the interrupt; larger than those of deadlines around it.
    - `is_lost`: True once it arrived where Python drops exceptions: as an object was deleted.
    """

    number = 0
    is_lost = False


class Interrupt:
    """Raises an exception of its own `kind` in the thread that made it, from a given time on."""

    def __init__(self, at_s: float, ready: Callable[[], bool] | None) -> None:
        self._at_s, self._ready, self._thread = at_s, ready, threading.get_ident()
        self._left, self._lock = threading.Event(), threading.Lock()
        self._apart = _frames_apart(self._thread)  # a script may be imported itself
        self._is_sent = False  # an exception that has not arrived
        self.was_sent = False  # any

        def arrived(_: BaseException, *__: object) -> None:
            self._is_sent = False

        self.number = next(_NUMBERS)
        members = {"__init__": arrived, "number": self.number}
        self.kind: type[TimeIsUp] = type("TimeIsUp", (TimeIsUp,), members)

    def begin(self) -> None:
        """Start to watch the clock."""
        _note_lost_interrupts()
        start(threading.Thread(target=self._watch, name="taccl-deadline", daemon=True))

    def end(self) -> None:
        """Raise nothing from now on."""
        with self._lock:
            self._left.set()
        # An exception that was sent would hit what follows, so it is received here. It cannot be taken
        # back: CPython 3.11 then looks for it without end under a profiler. Another may have replaced it.
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
            self._at_s = now_s + _APART_S

    def _may_raise(self) -> bool:
        """True unless the thread is where it must not be interrupted.

        In `contextlib` it may be on its way out of `Deadline.enforced`, which would no longer catch the
        interrupt.
        """
        frame = sys._current_frames().get(self._thread)
        if frame is not None and frame.f_globals.get("__name__") == "contextlib":
            return False
        return _frames_apart(self._thread) <= self._apart


def _note_lost_interrupts() -> None:
    """Have interrupts noted that Python drops, instead of reported; they are sent again."""
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
    """Start a thread while no interrupt is sent.

    Until it runs, CPython 3.11 knows it by the number of the thread that starts it, and gives it that one's
    exceptions.
    """
    with _STARTS:
        thread.start()


def _frames_apart(thread: int) -> int:
    """Number of calls under way in a thread that must not be interrupted."""
    count, frame = 0, sys._current_frames().get(thread)
    while frame is not None:
        module = frame.f_globals.get("__name__") or ""
        is_apart = module.startswith(_APART) or frame.f_code.co_name in _APART_IN.get(module, ())
        count, frame = count + is_apart, frame.f_back
    return count


def _raise_in(thread: int, kind: type[BaseException]) -> None:
    """Raise an exception in another thread, between two of its bytecodes."""
    if hasattr(ctypes, "pythonapi"):
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(kind))
