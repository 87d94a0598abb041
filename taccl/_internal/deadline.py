"""Deadlines of long tasks, their cancellation and their progress; the share of a core that a thread gets.

A `Deadline` is a time on the clock and a `Cancellation`. All deadlines of one task share the cancellation.
Python code checks the deadline. Compiled kernels poll a signal that it sets. `Deadline.run` keeps the
caller's thread free for Ctrl-C while kernels run. Nested scopes report the progress of a task.
"""

from __future__ import annotations

import atexit
import math
import os
import signal as signals
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from taccl._internal.interrupts import Interrupt, TimeIsUp, start
from taccl.errors import NoSolutionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    import numpy as np
    from numpy.typing import NDArray


#: Times for which the calling thread ran and waited for a core, in ns; seconds that it ran between two looks.
_RUN_TIMES, _LEAST_RUN_S = "/proc/thread-self/schedstat", 0.2


def busy_factor() -> float:
    """About how many seconds on the clock a second of work takes, by the load of the machine; at least 1.

    Linux tells how long the calling thread ran and how long it waited for a core; the factor is of its last
    work. Other platforms tell the load of the last minute, or none, and then count as idle.
    """
    try:
        with open(_RUN_TIMES, encoding="ascii") as file:
            ran_ns, waited_ns, _ = map(int, file.read().split())
    except (OSError, ValueError):
        return _load_factor()
    ran_s, waited_s = (ran_ns - _seen.ran_ns) / 1e9, (waited_ns - _seen.waited_ns) / 1e9
    if ran_s >= _LEAST_RUN_S:
        _seen.ran_ns, _seen.waited_ns = ran_ns, waited_ns
        _Seen.factor = _seen.factor = 1 + waited_s / ran_s
    return _seen.factor


class _Seen(threading.local):
    """Run time of a thread, its wait for a core, and the factor of these, when it last looked.

    A thread that has done little work has the factor of the thread that looked last.
    """

    ran_ns, waited_ns, factor = 0, 0, 1.0


_seen = _Seen()


def _load_factor() -> float:
    """The factor by the load of the last minute."""
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):
        return 1.0
    return max(1.0, load / (os.cpu_count() or 1))


def process_began_s() -> float:
    """About the start of this program on the clock of `time.monotonic`: before it ran and waited for a core.

    The kernel's start time of a process is not used: it may be that of a shell that ran other commands first,
    and then made way for this one (``exec``).
    """
    now_s = time.monotonic()
    try:
        with open(_RUN_TIMES, encoding="ascii") as file:
            ran_ns, waited_ns, _ = map(int, file.read().split())
    except (OSError, ValueError):
        return now_s - time.process_time()
    return now_s - (ran_ns + waited_ns) / 1e9


T = TypeVar("T")

#: Seconds between two looks at a thread that works.
_TICK_S = 0.1
#: Seconds that are waited for what has been found, once time is up or Ctrl-C came.
_PATIENCE_S = 0.75
#: Name of threads that may be left behind, and seconds that the end of the interpreter waits for each.
_LEFT_BEHIND, _LAST_WAIT_S = "taccl-work", 5.0


class OutOfTime(NoSolutionError):
    """Work was stopped as its time was up. A caller with an earlier answer returns that."""


@dataclass(slots=True)
class _Scope:
    """A part of a task: what is done, and, in steps, what it takes, what follows it, what of it has ended."""

    doing: str
    steps: float
    ahead: float
    ended: float = 0.0


class Cancellation:
    """Progress of a task, and the reason to end it: `why`, empty while it may go on."""

    def __init__(self) -> None:
        self.why = ""
        self._signals: list[NDArray[np.int64]] = []
        #: Scopes from the task down, and the part of the last that is done; replaced, never changed, as
        #: another thread reads it.
        self._under_way: tuple[tuple[_Scope, ...], Callable[[], float] | None] = (_Scope("", 1.0, 0.0),), None
        self._known: float | None = None
        self._doing = ""

    def cancel(self, why: str) -> None:
        """End the kernels under way, and every later one; the first reason stands."""
        self.why = self.why or why
        for signal in self._signals:
            signal[0] = 1

    @property
    def doing(self) -> str:
        """The scopes under way, the outermost first."""
        self._doing = ", ".join(scope.doing for scope in self._under_way[0] if scope.doing) or self._doing
        return self._doing

    @property
    def done(self) -> float | None:
        """The part of the task that is done, by its steps; None where that is not known."""
        scopes, done = self._under_way
        if done is not None:
            known = done()
            for i in range(len(scopes) - 1, 0, -1):
                outer, inner = scopes[i - 1], scopes[i]
                all_steps = outer.ended + inner.steps + inner.ahead
                known = min(1.0, (outer.ended + inner.steps * known) / max(all_steps, 1e-9))
            self._known = known
        return self._known

    @contextmanager
    def _over(self, signal: NDArray[np.int64]) -> Iterator[None]:
        self._signals.append(signal)
        if self.why:
            signal[0] = 1
        try:
            yield
        finally:
            self._signals = [each for each in self._signals if each is not signal]

    @contextmanager
    def _within(self, scope: _Scope, done: Callable[[], float] | None) -> Iterator[None]:
        outside = self._under_way
        self._under_way = (*outside[0], scope), done
        try:
            yield
        finally:
            self.done  # noqa: B018  what is known is kept until the next scope begins
            self._under_way = outside
            outside[0][-1].ended += scope.steps


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time after which work is given up, or the cancellation that ends it before.

    - `at_s`: On the clock of `time.monotonic`.
    - `cancellation`: Shared by all deadlines that are made of this one.
    """

    at_s: float = math.inf
    cancellation: Cancellation = field(default_factory=Cancellation, compare=False, repr=False)

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """So many seconds from now, of a task of its own."""
        return cls(time.monotonic() + seconds)

    def sooner(self, seconds: float) -> Deadline:
        """The earlier of the deadline and the time in `seconds` seconds."""
        return replace(self, at_s=min(self.at_s, time.monotonic() + seconds))

    def at_least(self, seconds: float) -> Deadline:
        """The later of the deadline and the time in `seconds` seconds."""
        return replace(self, at_s=max(self.at_s, time.monotonic() + seconds))

    def later(self, seconds: float) -> Deadline:
        """The deadline postponed by `seconds`."""
        return replace(self, at_s=self.at_s + seconds)

    @property
    def left_s(self) -> float:
        """Seconds until then; at least 0, and 0 once it is cancelled."""
        return 0.0 if self.cancellation.why else max(0.0, self.at_s - time.monotonic())

    @property
    def has_passed(self) -> bool:
        """True if work must end."""
        return bool(self.cancellation.why) or time.monotonic() >= self.at_s

    def check(self) -> None:
        """Raise `OutOfTime` once it has passed. To be called where work can be given up."""
        if self.has_passed:
            raise OutOfTime("the time limit came first; give more time")

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Let Ctrl-C end what is within, and then cancel the task, which goes on to what must be done."""
        try:
            yield
        except KeyboardInterrupt:
            self.cancellation.cancel("interrupted")

    @contextmanager
    def enforced(self, ready: Callable[[], bool] | None = None) -> Iterator[None]:
        """Raise `OutOfTime` in this thread, wherever it is, once time is up.

        For Python code that never checks its deadline. The interrupt arrives between two bytecodes, so a
        compiled function ends first, and files must be written outside. It waits for the end of an import, a
        compilation and the start of a process. Handlers of `Exception` do not see it; an error by which
        compiled code replaces it is `OutOfTime`, too. Python implementations without such interrupts run the
        code to its end.

        - `ready`: The interrupt waits until this is true; called in another thread.
        """
        if ready is None or ready():
            self.check()
        if self.at_s == math.inf:
            yield
            return
        interrupt = Interrupt(self.at_s, ready)
        try:
            try:
                interrupt.begin()
                yield
            finally:
                try:
                    interrupt.end()
                finally:  # the interrupt of a deadline around this one may have come meanwhile
                    interrupt.end()
        except (TimeIsUp, Exception) as error:
            is_outer = isinstance(error, TimeIsUp) and error.number < interrupt.number
            is_own = isinstance(error, TimeIsUp) or interrupt.was_sent
            if is_outer or not is_own:  # compiled code may answer an interrupt with an error of its own
                raise
            interrupt.end()  # it may have come while that was under way
            raise OutOfTime("the time limit came first; give more time") from error

    @contextmanager
    def stopping(self, signal: NDArray[np.int64]) -> Iterator[None]:
        """Let compiled kernels be stopped: they end once the first number of `signal` is 1."""

        def stop() -> None:
            signal[0] = 1

        timer = threading.Timer(self.left_s if self.at_s < math.inf else 0.0, stop)
        timer.daemon = True
        try:
            if self.at_s < math.inf:
                start(timer)
            with self.cancellation._over(signal):
                yield
        finally:
            timer.cancel()

    @contextmanager
    def scope(
        self, doing: str, *, done: Callable[[], float] | None = None, steps: float = 1.0, ahead: float = 0.0
    ) -> Iterator[None]:
        """Say which part of the task is under way, and how far it is.

        Without `doing` or `done`, scopes within it say what is done, or which part of it. `steps` is what it
        takes, and `ahead` what follows it in the scope around it, in any unit that these share.
        """
        with self.cancellation._within(_Scope(doing, steps, ahead), done):
            yield

    def run(
        self,
        work: Callable[[], T],
        *,
        tell: Callable[[float, str, float | None], None] | None = None,
        patience_s: float = _PATIENCE_S,
    ) -> T:
        """What `work` returns, which runs in a thread of its own.

        Python sees no Ctrl-C while compiled code runs in its first thread. Where `work` does not end within
        `patience_s` once time is up or Ctrl-C came, it is left behind, to end at its next look at the
        deadline.

        - `tell`: Called now and then with the seconds since the start, what is being done, and the part that
          is done.
        """
        began, given_up = time.monotonic(), self.at_s + patience_s
        found: list[T] = []
        errors: list[BaseException] = []
        ended = threading.Event()  # a join that Ctrl-C breaks off may take the thread for dead

        def working() -> None:
            try:
                found.append(work())
            except BaseException as error:  # it is raised again in the thread that waits
                errors.append(error)
            finally:
                ended.set()

        start(threading.Thread(target=working, name=_LEFT_BEHIND, daemon=True))
        while not ended.is_set() and time.monotonic() < given_up:
            try:
                if not ended.wait(_TICK_S) and tell is not None and not self.has_passed:
                    tell(time.monotonic() - began, self.cancellation.doing, self.cancellation.done)
            except KeyboardInterrupt:
                self.cancellation.cancel("interrupted")
                given_up = min(given_up, time.monotonic() + patience_s)
        if found:
            return found[0]
        if self.cancellation.why == "interrupted":
            raise KeyboardInterrupt
        self.check()
        raise errors[0]


def await_left_behind() -> None:
    """Wait for threads that were left behind, before the interpreter ends, which would abort them.

    They end at their next look at the deadline.
    """
    for each in threading.enumerate():
        if each.name == _LEFT_BEHIND:
            each.join(_LAST_WAIT_S)


atexit.register(await_left_behind)


#: Work is finished, however long it takes.
NEVER = Deadline()


@contextmanager
def signals_to(handle: Any, *names: str, only: Any = None) -> Iterator[None]:
    """Have signals handled by a function meanwhile, in the main thread; `only` those handled so by now.

    Signals that the platform lacks are passed over.
    """
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        numbers = [getattr(signals, name) for name in names if hasattr(signals, name)]
        every = ((each, signals.getsignal(each)) for each in numbers)
        # One that was not installed by Python could not be put back.
        before = {each: known for each, known in every if known is not None and only in (None, known)}
    for each in before:
        signals.signal(each, handle)
    try:
        yield
    finally:
        for each, known in before.items():
            signals.signal(each, known)


def leave(number: int, _frame: FrameType | None) -> None:
    """Exit on a signal instead of dying of it, so that drafts are removed: a handler for `signals_to`."""
    signals.signal(number, signals.SIG_DFL)  # the next one ends it at once
    raise SystemExit(128 + number)
