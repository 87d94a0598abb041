"""What compiled event-driven kernels share: a binary heap, and queues of events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from taccl.kernels import inner

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.synthesis.heuristic.fabric import Fabric

__all__ = ["NO", "ZERO", "Events", "is_free", "next_time", "pop", "post", "push"]

#: What variables begin with that are handed on: for a plain 0 numba compiles what takes them once more.
ZERO: Any = np.int64(0)
#: The same for False.
NO: Any = np.bool_(False)


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


@inner
def is_free(fabric: Fabric, resource_free: NDArray[np.int64], e: int, size: int, time: int) -> bool:
    """Whether the shared resources of a link are free for a send that starts now.

    Parameters
    ----------
    resource_free : (num_resources,) int64
        When each is free.
    """
    took = fabric.alpha[e] + size * fabric.beta[e]
    for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
        lead = took - fabric.hold_alpha[h] - size * fabric.hold_beta[h] if fabric.hold_receives[h] else 0
        if resource_free[fabric.hold_resource[h]] > time + lead:
            return False
    return True


@inner
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


@inner
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


@inner
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


@inner
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
