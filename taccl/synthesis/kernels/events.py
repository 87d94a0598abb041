"""Common part of event-driven kernels: a binary heap of events, and sends that occupy resources.

Time advances from event to event: a chunk arrives, a link becomes free, or a group of links is examined
because a resource that they share is released.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl._internal.kernels import inner
from taccl.schedule.spill import room_for
from taccl.synthesis.kernels.limits import Limits, Sends, counting

if TYPE_CHECKING:
    from taccl.synthesis.kernels.fabric import Fabric, Floats, Int32s, Ints

#: Negative return values of a kernel in place of a finish: the reasons why it found no schedule.
STUCK, OVER_LIMIT, STOPPED, HEAP_FULL = -1, -2, -3, -4
#: Max sends whose starts are computed in 64 bits; with more, 32 bits are tried, and redone on overflow.
MOST_WIDE = 1 << 22

#: Indices in `Timeline.scalar`; the last one is a count for the kernel's own use.
SIGNAL, NUM_SENT, FINISH, NUM_EVENTS, NUM_ACTIVE = range(5)


class Timeline(NamedTuple):
    """State of an event-driven run: sends so far, in order of start, and pending events."""

    # Chunk of each send, as one or two 16-bit words, so that one kernel serves both types of chunk numbers.
    sent_chunk: NDArray[np.uint16]
    sent_link: Int32s  # link of each send: its index in the topology
    sent_start: Int32s  # start of each send in ticks, as 32-bit words
    link_free: Ints  # ticks at which each slot is free
    resource_free: Ints
    event_time: Ints  # ticks of pending events: a heap, together with `event_what`
    # Code of each pending event: a group of slots to examine, a slot that becomes free, or an arrival.
    # Slots are numbered from num_groups on, arrivals from num_groups + num_slots on.
    event_what: Ints
    scalar: Ints  # stop signal, number of sends, last arrival, number of events, a count for the kernel


def run_events(
    begin: Callable[[], tuple[int, Callable[[Timeline, int], int]]],
    fabric: Fabric,
    limits: Limits,
    limit: int,
    *,
    doing: str,
    chunk_type: type[np.integer[Any]],
    least_ticks: int = 0,
    steps: float = 1.0,
    begins: Ints | None = None,
) -> Sends:
    """Run an event-driven kernel and return its sends; a negative finish says why there is no schedule.

    - `begin`: Function that returns the number of sends, and the kernel as a function of a timeline and a
      latest finish. It is called again if the event heap was too small, or starts need 64 bits.
    - `least_ticks`: Lower bound on the finish.
    - `begins`, (num_slots,): Earliest starts on each link, in ticks; None for 0.
    """
    narrow = int(np.iinfo(np.int32).max)
    start_type: type[np.integer[Any]] = np.int32 if least_ticks <= narrow else np.int64
    room = 8 * fabric.num_slots + 4 * len(fabric.wake_hold) + 1024
    while True:
        num_sends, kernel = begin()
        if num_sends <= MOST_WIDE and limits.spill_dir is None:
            start_type = np.int64
        types = (chunk_type, np.int32, start_type)
        chunk, link, start = (room_for(num_sends, dtype, limits.spill_dir) for dtype in types)
        s = Timeline(
            sent_chunk=chunk.view(np.uint16).reshape(num_sends, chunk.itemsize // 2),
            sent_link=link,
            sent_start=start.view(np.int32).reshape(num_sends, start.itemsize // 4),
            link_free=np.zeros(fabric.num_slots, np.int64) if begins is None else begins.copy(),
            resource_free=np.zeros(fabric.num_resources, np.int64),
            event_time=np.empty(room, np.int64),
            event_what=np.empty(room, np.int64),
            scalar=np.zeros(5, np.int64),
        )
        at_most = min(limit, narrow) if start_type is np.int32 else limit
        under_way = counting(limits.deadline, s.scalar, doing, num_sends, steps)
        with under_way, limits.deadline.stopping(s.scalar):
            finish = int(kernel(s, at_most))
        if finish == OVER_LIMIT and at_most < limit:
            start_type = np.int64
        elif finish == HEAP_FULL:
            room *= 4
        else:
            if start_type is np.int64 and limits.spill_dir is None and 0 <= finish <= narrow:
                start = start.astype(np.int32)
            return Sends(chunk, link, start, finish)


# Index names below: e slot, c chunk, h hold, g group of slots.


@inner
def has_room(fabric: Fabric, s: Timeline, num_arrivals: int) -> bool:
    """True if the event heap has room for the events of one send on every link."""
    most = s.scalar[NUM_EVENTS] + len(fabric.wake_hold) + len(s.link_free) + num_arrivals
    return bool(most <= len(s.event_time))


@inner
def is_free(fabric: Fabric, s: Timeline, e: int, size: int, time: int) -> bool:
    """True if the shared resources of a link are free for a send that starts at `time`."""
    took = fabric.alpha[e] + size * fabric.beta[e]
    for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
        lead = took - fabric.hold_alpha[h] - size * fabric.hold_beta[h] if fabric.hold_receives[h] else 0
        if s.resource_free[fabric.hold_resource[h]] > time + lead:
            return False
    return True


@inner
def start_send(
    fabric: Fabric, s: Timeline, e: int, c: int, size: int, time: int, arrival: int, frees: bool
) -> None:
    """Start a send: record it, occupy its resources, and post the events that follow.

    - `arrival`: Number of the arrival event; -1 for none.
    - `frees`: True if the arrival event also handles the release of the link when both coincide.
    """
    put_down(fabric, s, e, c, time)
    took = fabric.alpha[e] + size * fabric.beta[e]
    own = fabric.own_alpha[e] + size * fabric.own_beta[e]
    s.scalar[FINISH] = max(s.scalar[FINISH], time + took)
    s.link_free[e] = time + own
    if arrival >= 0:
        post_arrival(fabric, s, time + took, arrival)
    if own != took or not frees:
        _post(s, time + own, len(fabric.group_lead) + e)
    for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
        held = took if fabric.hold_receives[h] else fabric.hold_alpha[h] + size * fabric.hold_beta[h]
        s.resource_free[fabric.hold_resource[h]] = time + held
    for w in range(fabric.wake_of[e], fabric.wake_of[e + 1]):
        h = fabric.wake_hold[w]
        g = fabric.wake_group[w]
        held = took if fabric.hold_receives[h] else fabric.hold_alpha[h] + size * fabric.hold_beta[h]
        _post(s, time + max(0, held - fabric.group_lead[g]), g)


@inner
def put_down(fabric: Fabric, s: Timeline, e: int, c: int, time: int) -> None:
    """Record a send of a chunk as a row; consecutive rows with equal link and start are one merged send."""
    row = s.scalar[NUM_SENT]
    s.scalar[NUM_SENT] = row + 1
    s.sent_link[row] = fabric.link[e]
    # The low word comes first, as numba compiles for little-endian machines only.
    for i in range(s.sent_chunk.shape[1]):
        s.sent_chunk[row, i] = c >> 16 * i & 0xFFFF
    for i in range(s.sent_start.shape[1]):
        s.sent_start[row, i] = time >> 32 * i


@inner
def post_begins(fabric: Fabric, s: Timeline) -> None:
    """Post an event at the earliest start of each link, if that is after time 0."""
    for e in range(len(s.link_free)):
        if s.link_free[e] > 0:
            _post(s, s.link_free[e], len(fabric.group_lead) + e)


@inner
def post_arrival(fabric: Fabric, s: Timeline, at: int, arrival: int) -> None:
    """Post the event of arrival number `arrival` at time `at`."""
    _post(s, at, len(fabric.group_lead) + len(s.link_free) + arrival)


@inner
def _post(s: Timeline, at: int, what: int) -> None:
    """Add event `what` at time `at` to the heap of pending events."""
    s.scalar[NUM_EVENTS] = push(s.event_time, s.event_what, s.scalar[NUM_EVENTS], at, what)


@inner
def next_event(s: Timeline, time: int) -> int:
    """Next event at the given time, removed from the heap; -1 if there is none."""
    if not s.scalar[NUM_EVENTS] or s.event_time[0] != time:
        return -1
    what = pop(s.event_time, s.event_what, s.scalar[NUM_EVENTS])
    s.scalar[NUM_EVENTS] -= 1
    return what


@inner
def push(heap_key: NDArray[Any], heap_what: NDArray[Any], size: int, key: float, what: int) -> int:
    """Push an entry on a binary heap of `size` entries, the smallest key first; returns the new size."""
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if heap_key[parent] <= key:
            break
        heap_key[i], heap_what[i] = heap_key[parent], heap_what[parent]
        i = parent
    heap_key[i], heap_what[i] = key, what
    return size + 1


@inner
def pop(heap_key: NDArray[Any], heap_what: NDArray[Any], size: int) -> int:
    """Pop the entry with the smallest key off a binary heap of `size` entries."""
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


@inner
def tidy(heap_key: NDArray[Any], heap_what: NDArray[Any], cost: Floats, size: int) -> int:
    """Keep only the heap entries whose key still equals their current cost; returns the new size."""
    kept = 0
    for i in range(size):
        key, what = heap_key[i], heap_what[i]
        if key == cost[what]:
            kept = push(heap_key, heap_what, kept, key, what)
    return int(kept)
