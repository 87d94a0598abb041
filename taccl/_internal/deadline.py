"""Deadlines of long tasks, their cancellation and progress, and the load of the machine.

A `Deadline` is a time on the clock plus a `Cancellation`, which all deadlines of one task share. Python code
checks the deadline; compiled kernels poll a signal array that it sets. `Deadline.run` keeps the caller's
thread free to receive Ctrl-C while kernels run. Nested scopes report the progress of a task. Within
`Deadline.ended_by_interrupts`, Ctrl-C ends all deadlines. Code that keeps partial results at its time limit
then keeps them at Ctrl-C.
"""

from __future__ import annotations

import atexit
import math
import os
import signal as signals
import threading
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from taccl._internal.interrupts import Interrupt, TimeIsUp, start
from taccl.errors import NoSolutionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    import numpy as np
    from numpy.typing import NDArray


#: `_RUN_TIMES`: file with the run time and the waiting time of the calling thread, in ns.
#: `_LEAST_RUN_S`: min seconds of run time between two updates of the busy factor from `_RUN_TIMES`.
#: `_FIRST_RUN_S`: min seconds of run time before its first update in this process.
_RUN_TIMES, _LEAST_RUN_S, _FIRST_RUN_S = "/proc/thread-self/schedstat", 0.2, 0.05


def busy_factor() -> float:
    """Approximate wall-clock seconds per CPU second of this thread; 1 on an idle machine, more under load.

    On Linux, the factor follows from the run time and the waiting time of the calling thread since the last
    evaluation. Elsewhere the load average of the last minute is used, or 1 if there is none.
    """
    times = run_times()
    if times is None:
        return _load_factor()
    ran_ns, waited_ns = times
    ran_s, waited_s = (ran_ns - _seen.ran_ns) / 1e9, (waited_ns - _seen.waited_ns) / 1e9
    if ran_s >= (_LEAST_RUN_S if _Seen.is_known else _FIRST_RUN_S):
        _seen.ran_ns, _seen.waited_ns = ran_ns, waited_ns
        _Seen.factor = _seen.factor = 1 + waited_s / ran_s
        _Seen.is_known = True
    return _seen.factor


class _Seen(threading.local):
    """Run time, waiting time and busy factor of a thread at its last evaluation.

    A thread that has not yet run for `_LEAST_RUN_S` uses the factor that another thread found last.
    `is_known` is True once some thread has found one.
    """

    ran_ns, waited_ns, factor, is_known = 0, 0, 1.0, False


_seen = _Seen()


def _load_factor() -> float:
    """Estimate of `busy_factor`: load average of the last minute per core, at least 1."""
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):
        return 1.0
    return max(1.0, load / (os.cpu_count() or 1))


def num_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_times() -> tuple[int, int] | None:
    """(run time, waiting time) of this thread in ns; None if the system does not report them."""
    try:
        with open(_RUN_TIMES, encoding="ascii") as file:
            ran_ns, waited_ns, _ = map(int, file.read().split())
    except (OSError, ValueError):
        return None
    return ran_ns, waited_ns


T = TypeVar("T")

#: Interval in seconds at which a waiting thread checks the working one.
_TICK_S = 0.1
#: Seconds to wait for the work's result once time is up or Ctrl-C came.
_PATIENCE_S = 0.75
#: `_LEFT_BEHIND`: name of threads that may be abandoned.
#: `_LAST_WAIT_S`: seconds that the exit of the interpreter waits for each abandoned thread.
_LEFT_BEHIND, _LAST_WAIT_S = "taccl-work", 5.0


#: Messages of `OutOfTime`.
_TIME_IS_UP, _INTERRUPTED = "the time limit was reached; give more time", "stopped by Ctrl-C"


class OutOfTime(NoSolutionError):
    """Raised when work stops because its time is up; a caller with an earlier result returns that."""


@dataclass(slots=True)
class _Scope:
    """Running part of a task, for reports of progress; sizes are in any common unit of work.

    - `doing`: Description.
    - `steps`, `ahead`: Size of this part, and of what follows it in the outer part.
    - `ended`: Size of the parts that have ended inside it.
    """

    doing: str
    steps: float
    ahead: float
    ended: float = 0.0


class _Interruptible(threading.local):
    """Number of contexts around this thread's code that turn Ctrl-C into the end of a deadline."""

    depth = 0


_interruptible = _Interruptible()

#: Cancellations of the contexts `Deadline.ended_by_interrupts` under way, innermost last.
_ended_by_interrupts: list[Cancellation] = []


class Cancellation:
    """Progress of a task, and the reason to end it; `why` is empty while the task may go on.

    A task that begins in `Deadline.ended_by_interrupts` ends with the deadline of that context.
    """

    def __init__(self) -> None:
        self._why = ""
        self._outer = _ended_by_interrupts[-1] if _ended_by_interrupts else None
        self._signals: list[NDArray[np.int64]] = []
        #: (stack of scopes, outermost first; function that returns the done part of the innermost scope).
        #: The pair is replaced, never modified, as another thread reads it.
        self._under_way: tuple[tuple[_Scope, ...], Callable[[], float] | None] = (_Scope("", 1.0, 0.0),), None
        self._known: float | None = None
        self._doing = ""

    def cancel(self, why: str) -> None:
        """Cancel the task: running kernels stop, later ones stop at once. The first reason `why` is kept."""
        self._why = self._why or why
        for signal in self._signals:
            signal[0] = 1

    def interrupt(self) -> None:
        """Cancel the task because of Ctrl-C, and the task around it."""
        self.cancel("interrupted")
        if self._outer is not None:
            self._outer.interrupt()

    @property
    def why(self) -> str:
        """Reason to end the task; empty while it may go on."""
        return self._why or ("" if self._outer is None else self._outer.why)

    @property
    def doing(self) -> str:
        """Descriptions of the running scopes, the outermost first."""
        self._doing = ", ".join(scope.doing for scope in self._under_way[0] if scope.doing) or self._doing
        return self._doing

    @property
    def done(self) -> float | None:
        """Share of the task's work that is done, from 0 to 1; None if unknown."""
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
            self.done  # noqa: B018  keep the last known progress
            self._under_way = outside
            outside[0][-1].ended += scope.steps


@dataclass(frozen=True, slots=True)
class Deadline:
    """Time after which a task is given up; its cancellation may end it earlier.

    - `at_s`: Time on the clock of `time.monotonic`.
    - `cancellation`: Shared by all deadlines derived from this one.
    """

    at_s: float = math.inf
    cancellation: Cancellation = field(default_factory=Cancellation, compare=False, repr=False)

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Deadline `seconds` from now, for a new task."""
        return cls(time.monotonic() + seconds)

    def sooner(self, seconds: float) -> Deadline:
        """Earlier of this deadline and `seconds` from now."""
        return replace(self, at_s=min(self.at_s, time.monotonic() + seconds))

    def at_least(self, seconds: float) -> Deadline:
        """Later of this deadline and `seconds` from now."""
        return replace(self, at_s=max(self.at_s, time.monotonic() + seconds))

    def later(self, seconds: float) -> Deadline:
        """Deadline that is later by `seconds`."""
        return replace(self, at_s=self.at_s + seconds)

    @property
    def left_s(self) -> float:
        """Seconds until the deadline, at least 0; 0 if cancelled."""
        return 0.0 if self.cancellation.why else max(0.0, self.at_s - time.monotonic())

    @property
    def has_passed(self) -> bool:
        """True if work must end: the time is up, or the task is cancelled."""
        return bool(self.cancellation.why) or time.monotonic() >= self.at_s

    def check(self) -> None:
        """Raise `OutOfTime` if the deadline has passed; call this where work can be given up."""
        if self.has_passed:
            raise OutOfTime(_INTERRUPTED if self.cancellation.why == "interrupted" else _TIME_IS_UP)

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Context that Ctrl-C ends without an error; the deadline then counts as passed."""
        try:
            yield
        except KeyboardInterrupt:
            self.cancellation.interrupt()

    @contextmanager
    def ended_by_interrupts(self) -> Iterator[None]:
        """Context in which the first Ctrl-C ends this deadline, and all deadlines made within the context.

        Contexts `enforced` then raise `OutOfTime`, and code outside of these runs on until it checks its
        deadline. A second Ctrl-C raises `KeyboardInterrupt`.
        """
        before: Any = signals.getsignal(signals.SIGINT)

        def end(number: int, frame: FrameType | None) -> None:
            is_second = bool(self.cancellation.why)
            self.cancellation.interrupt()
            if is_second or _interruptible.depth:
                before(number, frame)

        _ended_by_interrupts.append(self.cancellation)
        try:
            with signals_to(end, *["SIGINT"] * callable(before)):
                yield
        finally:
            _ended_by_interrupts.pop()

    @contextmanager
    def enforced(self, ready: Callable[[], bool] | None = None) -> Iterator[None]:
        """Context in which `OutOfTime` is raised in this thread once time is up, at any bytecode.

        This is for Python code that never checks its deadline. The interrupt arrives between two bytecodes,
        so a compiled function ends first. Files must be written outside the context. The interrupt also waits
        for the end of an import, a compilation or the start of a process. Handlers of `Exception` do not
        catch it; if compiled code replaces it by another error, that becomes `OutOfTime`, too. Python
        implementations without such interrupts run the code to its end.

        Within `ended_by_interrupts`, Ctrl-C raises `OutOfTime`, too.

        - `ready`: Called in another thread; the interrupt waits until it returns True.
        """
        if ready is None or ready():
            self.check()
        _interruptible.depth += 1
        try:
            with nullcontext() if self.at_s == math.inf else self._timed(ready):
                yield
        except KeyboardInterrupt as error:
            if not _ended_by_interrupts:
                raise
            raise OutOfTime(_INTERRUPTED) from error
        finally:
            _interruptible.depth -= 1

    @contextmanager
    def _timed(self, ready: Callable[[], bool] | None) -> Iterator[None]:
        """Context of `enforced` with a time limit."""
        interrupt = Interrupt(self.at_s, ready)
        try:
            try:
                interrupt.begin()
                yield
            finally:
                try:
                    interrupt.end()
                finally:  # an outer deadline's interrupt may have come meanwhile
                    interrupt.end()
        except (TimeIsUp, Exception) as error:
            is_outer = isinstance(error, TimeIsUp) and error.number < interrupt.number
            is_own = isinstance(error, TimeIsUp) or interrupt.was_sent
            if is_outer or not is_own:  # compiled code may turn an interrupt into another error
                raise
            interrupt.end()  # the interrupt may have come during the handling
            raise OutOfTime(_TIME_IS_UP) from error

    @contextmanager
    def stopping(self, signal: NDArray[np.int64]) -> Iterator[None]:
        """Context in which the deadline stops compiled kernels: when it passes, ``signal[0]`` is set to 1."""

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
        """Context that reports a part of the task as under way, with its progress.

        - `doing`: Description of the part; if empty, inner scopes describe it.
        - `done`: Function that returns the done share, from 0 to 1; if None, inner scopes determine it.
        - `steps`, `ahead`: Size of this part, and of what follows it in the outer scope, in any common unit.
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
        """Run `work` in another thread and return its result.

        Python receives no Ctrl-C while its main thread runs compiled code. If `work` does not end within
        `patience_s` after the deadline or Ctrl-C, its thread is abandoned; it ends when it next checks the
        deadline.

        - `tell`: Called at intervals with the seconds since the start, the description of what runs, and the
          done part (None if unknown).
        """
        began, given_up = time.monotonic(), self.at_s + patience_s
        found: list[T] = []
        errors: list[BaseException] = []
        ended = threading.Event()  # a join interrupted by Ctrl-C may take the thread for ended

        def working() -> None:
            try:
                found.append(work())
            except BaseException as error:  # the waiting thread raises it again
                errors.append(error)
            finally:
                ended.set()

        start(threading.Thread(target=working, name=_LEFT_BEHIND, daemon=True))
        _interruptible.depth += 1
        try:
            while not ended.is_set() and time.monotonic() < given_up:
                try:
                    if not ended.wait(_TICK_S) and tell is not None and not self.has_passed:
                        tell(time.monotonic() - began, self.cancellation.doing, self.cancellation.done)
                except KeyboardInterrupt:
                    self.cancellation.interrupt()
                    given_up = min(given_up, time.monotonic() + patience_s)
        finally:
            _interruptible.depth -= 1
        if found:
            return found[0]
        if self.cancellation.why == "interrupted":
            raise KeyboardInterrupt
        self.check()
        raise errors[0]


def await_left_behind() -> None:
    """Wait for abandoned threads before the interpreter exits, as it would abort them.

    They end when they next check the deadline.
    """
    for each in threading.enumerate():
        if each.name == _LEFT_BEHIND:
            each.join(_LAST_WAIT_S)


atexit.register(await_left_behind)


#: Deadline that never passes.
NEVER = Deadline()


@contextmanager
def signals_to(handle: Any, *names: str, only: Any = None) -> Iterator[None]:
    """Context in which `handle` handles some signals; it changes nothing outside the main thread.

    - `names`: Names of the signals; those that the platform lacks are ignored.
    - `only`: If given, only signals whose current handler is this one.
    """
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        numbers = [getattr(signals, name) for name in names if hasattr(signals, name)]
        every = ((each, signals.getsignal(each)) for each in numbers)
        # A handler that Python did not install could not be restored.
        before = {each: known for each, known in every if known is not None and only in (None, known)}
    for each in before:
        signals.signal(each, handle)
    try:
        yield
    finally:
        for each, known in before.items():
            signals.signal(each, known)


def leave(number: int, _frame: FrameType | None) -> None:
    """Signal handler that exits by `SystemExit`, so that temporary files are still removed."""
    signals.signal(number, signals.SIG_DFL)  # a second signal ends the process immediately
    raise SystemExit(128 + number)
