"""What compiled event-driven kernels share: a binary heap, queues of events, a stop, and how far they are."""

from __future__ import annotations

import ctypes
import math
import threading
import time
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from taccl.kernels import compiled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "Events", "Watch", "is_stopped", "next_time", "part", "pop", "post", "push", "stopping",
    "time_left_s", "watched",
]  # fmt: skip

_Value = TypeVar("_Value")


@dataclass(slots=True)
class _Part:
    """A part of a search: what is done, what it takes, what follows it takes, and what of it has ended.

    All that lies in one part is counted in the same steps, whatever these are.
    """

    doing: str
    steps: float
    ahead: float
    ended: float = 0.0


class Watch:
    """Looks after compiled kernels that run in another thread: stops them, and knows how far they are.

    Attributes
    ----------
    deadline : float
        When they will be stopped, on the clock of `time.monotonic`.
    why_stopped : str
        ``"time limit"`` or ``"interrupted"``; empty while nothing was stopped.
    """

    def __init__(self, deadline: float = math.inf) -> None:
        self.deadline = deadline
        self.why_stopped = ""
        self._signals: list[NDArray[np.int64]] = []
        #: Parts from the whole search down, and the part of the last that is done; replaced, never changed,
        #: as another thread reads it.
        self._under_way: tuple[tuple[_Part, ...], Callable[[], float] | None] = ((_Part("", 1.0, 0.0),), None)
        self._known: float | None = None
        self._doing = ""

    def stop(self, why: str) -> None:
        """Stop the kernel under way, and every later one."""
        self.why_stopped = self.why_stopped or why
        for signal in self._signals:
            signal[0] = 1

    @property
    def doing(self) -> str:
        """The parts of the search that are under way, the whole first."""
        self._doing = ", ".join(part.doing for part in self._under_way[0] if part.doing) or self._doing
        return self._doing

    @property
    def done(self) -> float | None:
        """The part of the search that is done, by its steps; None where that is not known."""
        parts, done = self._under_way
        if done is not None:
            known = done()
            for i in range(len(parts) - 1, 0, -1):
                outer, inner = parts[i - 1], parts[i]
                all_steps = outer.ended + inner.steps + inner.ahead
                known = min(1.0, (outer.ended + inner.steps * known) / max(all_steps, 1e-9))
            self._known = known
        return self._known

    @contextmanager
    def over(self, signal: NDArray[np.int64]) -> Iterator[None]:
        """Look after the kernels that `signal` stops."""
        self._signals.append(signal)
        if self.why_stopped:
            signal[0] = 1
        try:
            yield
        finally:
            self._signals.pop()

    @contextmanager
    def within(self, part: _Part, done: Callable[[], float] | None) -> Iterator[None]:
        """Know that a part is under way."""
        outside = self._under_way
        self._under_way = (*outside[0], part), done
        try:
            yield
        finally:
            self.done  # noqa: B018  what is known is kept until the next part begins
            self._under_way = outside
            outside[0][-1].ended += part.steps


_WATCH: ContextVar[Watch | None] = ContextVar("watch", default=None)
_TICK_S = 0.25
_PATIENCE_S = 5.0


def watched(
    run: Callable[[], _Value],
    *,
    seconds: float | None = None,
    patience_s: float = _PATIENCE_S,
    tell: Callable[[float, str, float | None], None] | None = None,
) -> tuple[_Value, str]:
    """What `run` returns, and why it was stopped, if it was: ``"time limit"`` or ``"interrupted"``.

    It runs in a thread of its own, as Python sees no Ctrl-C while compiled code runs in the first one.

    Parameters
    ----------
    seconds : float, optional
        After which kernels under `run` are stopped.
    patience_s : float
        How long to wait then, or after Ctrl-C, for what has been found; after that it is given up.
    tell : callable, optional
        Called now and then with the seconds since the start, what is being done, and the part that is done.

    Raises
    ------
    TimeoutError
        If `run` was stopped by the limit before it had anything.
    KeyboardInterrupt
        If Ctrl-C came before it had anything.
    """
    began, given_up = time.monotonic(), math.inf
    watch = Watch(math.inf if seconds is None else began + seconds)
    found: list[_Value] = []
    errors: list[BaseException] = []

    def work() -> None:
        _WATCH.set(watch)
        try:
            found.append(run())
        except BaseException as error:  # it is raised again in the thread that waits
            errors.append(error)
        finally:
            ended.set()

    ended = threading.Event()  # a join that Ctrl-C breaks off may take the thread for dead
    thread = threading.Thread(target=work, name="taccl-kernel", daemon=True)
    thread.start()
    while True:
        try:
            ended.wait(_TICK_S)
            past = time.monotonic() - began
            if ended.is_set() or past > given_up:
                break
            if tell is not None and not watch.why_stopped:
                tell(past, watch.doing, watch.done)
            if seconds is not None and past > seconds and not watch.why_stopped:
                watch.stop("time limit")
                given_up = past + patience_s
        except KeyboardInterrupt:
            watch.stop("interrupted")
            given_up = time.monotonic() - began + patience_s
    if found:
        return found[0], watch.why_stopped
    if not ended.is_set():  # what it does is of no use to anyone any more
        ident = ctypes.c_ulong(thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(SystemExit))
    if watch.why_stopped == "interrupted":
        raise KeyboardInterrupt
    if watch.why_stopped:
        raise TimeoutError
    raise errors[0]


@contextmanager
def stopping(signal: NDArray[np.int64], seconds: float | None) -> Iterator[None]:
    """Let kernels be stopped: after so many seconds, and by a `Watch` over this thread.

    Parameters
    ----------
    signal : (1 or more,) int64
        A kernel stops once the first is 1.
    """

    def stop() -> None:
        signal[0] = 1

    timer = None if seconds is None else threading.Timer(seconds, stop)
    if timer is not None:
        timer.daemon = True
        timer.start()
    watch = _WATCH.get()
    try:
        with nullcontext() if watch is None else watch.over(signal):
            yield
    finally:
        if timer is not None:
            timer.cancel()


def part(
    doing: str, *, done: Callable[[], float] | None = None, steps: float = 1.0, ahead: float = 0.0
) -> AbstractContextManager[None]:
    """Let a `Watch` over this thread know which part of the search is under way, and how far it is.

    Parameters
    ----------
    doing : str
        What is done; may be empty, where parts within it say.
    done : callable, optional
        The part of it that is done; without, parts within it say.
    steps, ahead : float
        What it takes, and what follows it in the part that it lies in, in any unit that these share.
    """
    watch = _WATCH.get()
    return nullcontext() if watch is None else watch.within(_Part(doing, steps, ahead), done)


def is_stopped() -> bool:
    """Whether a `Watch` over this thread has stopped its kernels."""
    watch = _WATCH.get()
    return watch is not None and bool(watch.why_stopped)


def time_left_s() -> float:
    """Seconds until a `Watch` over this thread stops its kernels; infinite where none will."""
    watch = _WATCH.get()
    return math.inf if watch is None else watch.deadline - time.monotonic()


class Events(NamedTuple):
    """What is to happen, in order of time: lanes, and a heap for what has none.

    Parameters
    ----------
    lane_of, lane_head, lane_size, lane_time, lane_what
        Lane q is a ring in ``lane_of[q]:lane_of[q + 1]``.
    heap_time, heap_what, heap_size
        A binary heap; the last has one number.
    """

    lane_of: NDArray[np.int64]
    lane_head: NDArray[np.int64]
    lane_size: NDArray[np.int64]
    lane_time: NDArray[np.int64]
    lane_what: NDArray[np.int64]
    heap_time: NDArray[np.int64]
    heap_what: NDArray[np.int64]
    heap_size: NDArray[np.int64]


@compiled
def post(events: Events, q: int, at: int, what: int) -> None:
    """Post an event to lane q, or (-1) to the heap."""
    if q >= 0:
        row = events.lane_of[q] + events.lane_head[q] + events.lane_size[q]
        if row >= events.lane_of[q + 1]:
            row -= events.lane_of[q + 1] - events.lane_of[q]
        events.lane_time[row] = at
        events.lane_what[row] = what
        events.lane_size[q] += 1
    else:
        push(events.heap_time, events.heap_what, events.heap_size[0], at, what)
        events.heap_size[0] += 1


@compiled
def next_time(events: Events) -> int:
    """The time of the next event; -1 if there is none."""
    time = -1
    if events.heap_size[0]:
        time = events.heap_time[0]
    for q in range(len(events.lane_size)):
        if events.lane_size[q]:
            at = events.lane_time[events.lane_of[q] + events.lane_head[q]]
            if time < 0 or at < time:
                time = at
    return time


@compiled
def push(heap_key: NDArray[Any], heap_what: NDArray[Any], size: int, key: float, what: int) -> None:
    """Put something on a binary heap of `size`, the smallest key first."""
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if heap_key[parent] <= key:
            break
        heap_key[i], heap_what[i] = heap_key[parent], heap_what[parent]
        i = parent
    heap_key[i], heap_what[i] = key, what


@compiled
def pop(heap_key: NDArray[Any], heap_what: NDArray[Any], size: int) -> int:
    """Take what has the smallest key off a binary heap of `size`."""
    first = heap_what[0]
    last = size - 1
    key, what = heap_key[last], heap_what[last]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= last:
            break
        if child + 1 < last and heap_key[child + 1] < heap_key[child]:
            child += 1
        if heap_key[child] >= key:
            break
        heap_key[i], heap_what[i] = heap_key[child], heap_what[child]
        i = child
    heap_key[i], heap_what[i] = key, what
    return int(first)
