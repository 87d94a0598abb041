"""What compiled event-driven kernels share: a binary heap, queues of events, and a way to stop them."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numba

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Events", "compiled", "next_time", "pop", "post", "push", "stopping"]

_Function = TypeVar("_Function", bound="Callable[..., Any]")


def compiled(function: _Function) -> _Function:
    """The function compiled, but without counting references to arrays, which doubles the time.

    So it must not make an array.
    """
    options: dict[str, Any] = {"cache": True, "nogil": True, "_nrt": False}
    result: _Function = numba.njit(**options)(function)
    return result


@contextmanager
def stopping(signal: NDArray[np.int64], seconds: float | None) -> Iterator[None]:
    """Set the first of `signal` to 1 after so many seconds: kernels that are given it stop."""
    if seconds is None:
        yield
        return

    def stop() -> None:
        signal[0] = 1

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


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
def push(heap_key: NDArray[Any], heap_what: NDArray[np.int64], size: int, key: float, what: int) -> None:
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
def pop(heap_key: NDArray[Any], heap_what: NDArray[np.int64], size: int) -> int:
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
