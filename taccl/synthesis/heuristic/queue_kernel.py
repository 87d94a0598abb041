"""The compiled scheduler of chunks whose routes are given: every link has a queue of those that wait for it.

Time jumps from event to event. Whenever links or shared resources are let go, or chunks arrive, the links
concerned are asked in order of urgency: by what is left to be sent over the resources they share, so that the
busiest never idles for the sake of others, and by what lies before the first chunk in their queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.kernels import compiled, inner
from taccl.synthesis.heuristic.events import is_free, keep_ticks, pop, push

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.synthesis.heuristic.fabric import Fabric

#: What `send_along` returns for a finish when it found none.
HEAP_FULL, OVER_LIMIT, STOPPED = -1, -2, -3

# Places in `Queues.scalar`.
_NUM_ASKED, SIGNAL, NUM_SENT = range(3)


class Hops(NamedTuple):
    """Routes of chunks, hop after hop.

    - `units` ((num_chunks,) int64): Sizes.
    - `slot`: (num_hops,) int32.
    - `chunk`: (num_hops,) int32.
    - `is_first` ((num_hops,) bool): Whether a hop leaves where its chunk starts.
    - `next_of`, `next_end` ((num_hops,) int32): The hops that go on from where hop t ends are
      ``next_of[t]:next_end[t]``.
    - `key` ((num_hops,) float64): Of chunks that wait for one link the smallest goes first.
    """

    units: NDArray[np.int64]
    slot: NDArray[np.int32]
    chunk: NDArray[np.int32]
    is_first: NDArray[np.bool_]
    next_of: NDArray[np.int32]
    next_end: NDArray[np.int32]
    key: NDArray[np.float64]


class Queues(NamedTuple):
    """What changes while chunks are sent; all of it is used up.

    - `queue_of`, `queue_size`, `queue_key`, `queue_hop`: Hops that wait for slot e are a heap in
      ``queue_of[e]:queue_of[e] + queue_size[e]``.
    - `resource_left` ((num_resources,) int64): Ticks for which resources are yet to be taken.
    - `free`, `resource_free`: When links and resources are free.
    - `is_asked`, `asked_key`, `asked`: Links to ask, as a heap.
    - `event_time`, `event_what`: A heap: what is a hop that arrives, a link that is free (num_hops + e), or a
      group of links to ask (num_hops + num_slots + g).
    - `scalar` ((3,) int64): How many links there are to ask, a sign from outside to stop, and how many hops
      were sent.
    - `sent_chunk`, `sent_link`, `sent_start` ((num_hops,), (num_hops,), (num_hops, 1 or 2) int32): What is
      found, in order of start; links by index of the topology. See `keep_ticks`.
    """

    queue_of: NDArray[np.int64]
    queue_size: NDArray[np.int64]
    queue_key: NDArray[np.float64]
    queue_hop: NDArray[np.int32]
    resource_left: NDArray[np.int64]
    free: NDArray[np.int64]
    resource_free: NDArray[np.int64]
    is_asked: NDArray[np.bool_]
    asked_key: NDArray[np.float64]
    asked: NDArray[np.int64]
    event_time: NDArray[np.int64]
    event_what: NDArray[np.int64]
    scalar: NDArray[np.int64]
    sent_chunk: NDArray[np.int32]
    sent_link: NDArray[np.int32]
    sent_start: NDArray[np.int32]


# In all below: t hop, c chunk, e slot, h hold, q resource, g group of slots.


@compiled
def send_along(fabric: Fabric, hops: Hops, s: Queues, limit: int) -> int:
    """Find a start for every hop; the finish in ticks, or why there is none.

    - `limit`: Give up once the finish passes it, which the column of starts must have room for.
    """
    num_hops, num_slots = len(hops.slot), len(s.free)
    finish = 0
    for t in range(num_hops):
        e, size = hops.slot[t], hops.units[hops.chunk[t]]
        for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
            s.resource_left[fabric.hold_resource[h]] += fabric.hold_alpha[h] + size * fabric.hold_beta[h]
    num_events = 0
    time = 0
    for t in range(num_hops):
        if hops.is_first[t]:
            _wait(fabric, hops, s, t, time)
    while True:
        while s.scalar[_NUM_ASKED]:
            e = pop(s.asked_key, s.asked, s.scalar[_NUM_ASKED])
            s.scalar[_NUM_ASKED] -= 1
            s.is_asked[e] = False
            base = s.queue_of[e]
            t = int(np.int64(s.queue_hop[base]))
            size = hops.units[hops.chunk[t]]
            if s.free[e] > time or not is_free(fabric, s.resource_free, e, size, time):
                continue
            if num_events + 2 + fabric.wake_of[e + 1] - fabric.wake_of[e] > len(s.event_time):
                return HEAP_FULL
            pop(s.queue_key[base:], s.queue_hop[base:], s.queue_size[e])
            s.queue_size[e] -= 1
            row = s.scalar[NUM_SENT]
            s.scalar[NUM_SENT] = row + 1
            s.sent_chunk[row] = hops.chunk[t]
            s.sent_link[row] = fabric.link[e]
            keep_ticks(s.sent_start, row, time)
            took = fabric.alpha[e] + size * fabric.beta[e]
            own = fabric.own_alpha[e] + size * fabric.own_beta[e]
            s.free[e] = time + own
            finish = max(finish, time + took)
            if hops.next_of[t] < hops.next_end[t]:
                push(s.event_time, s.event_what, num_events, time + took, t)
                num_events += 1
            push(s.event_time, s.event_what, num_events, time + own, num_hops + e)
            num_events += 1
            for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
                q = fabric.hold_resource[h]
                length = fabric.hold_alpha[h] + size * fabric.hold_beta[h]
                s.resource_free[q] = time + (took if fabric.hold_receives[h] else length)
                s.resource_left[q] -= length
            for w in range(fabric.wake_of[e], fabric.wake_of[e + 1]):
                h = fabric.wake_hold[w]
                g = fabric.wake_group[w]
                length = fabric.hold_alpha[h] + size * fabric.hold_beta[h]
                until = took if fabric.hold_receives[h] else length
                at = time + max(0, until - fabric.group_lead[g])
                push(s.event_time, s.event_what, num_events, at, num_hops + num_slots + g)
                num_events += 1
        if finish > limit:
            return OVER_LIMIT
        if num_events == 0:
            break
        if s.scalar[SIGNAL]:
            return STOPPED
        time = s.event_time[0]
        while num_events and s.event_time[0] == time:
            what = pop(s.event_time, s.event_what, num_events)
            num_events -= 1
            if what < num_hops:
                for t in range(hops.next_of[what], hops.next_end[what]):
                    _wait(fabric, hops, s, int(np.int64(t)), time)
            elif what < num_hops + num_slots:
                _ask(fabric, hops, s, what - num_hops, time)
            else:
                g = what - num_hops - num_slots
                for i in range(fabric.group_of[g], fabric.group_of[g + 1]):
                    _ask(fabric, hops, s, fabric.group_slot[i], time)
    return int(finish)


@compiled(allocates=True)
def send_in_order(fabric: Fabric, hops: Hops, order: NDArray[np.int64], start: NDArray[np.int64]) -> int:
    """Start every hop as soon as those before it in an order let it; the finish in ticks.

    - `order`, `start` ((num_hops,)): Hops, each after that which brings its chunk; and room for when each
      starts.
    """
    link_free = np.zeros(len(fabric.link), np.int64)
    resource_free = np.zeros(fabric.num_resources, np.int64)
    finish = 0
    for t in order:
        e, size = hops.slot[t], hops.units[hops.chunk[t]]
        took = fabric.alpha[e] + size * fabric.beta[e]
        time = max(start[t], link_free[e])
        for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
            length = fabric.hold_alpha[h] + size * fabric.hold_beta[h]
            lead = took - length if fabric.hold_receives[h] else 0
            time = max(time, resource_free[fabric.hold_resource[h]] - lead)
        for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
            length = fabric.hold_alpha[h] + size * fabric.hold_beta[h]
            resource_free[fabric.hold_resource[h]] = time + (took if fabric.hold_receives[h] else length)
        start[t] = time
        link_free[e] = time + fabric.own_alpha[e] + size * fabric.own_beta[e]
        finish = max(finish, time + took)
        for after in range(hops.next_of[t], hops.next_end[t]):
            start[after] = time + took
    return int(finish)


@compiled
def join_hops(
    fabric: Fabric,
    hop_of: NDArray[np.int64],
    hops: Hops,
    into: NDArray[np.int64],
    took: NDArray[np.int64],
    signal: NDArray[np.int64],
) -> None:
    """Fill in which hops go on from which, and turn their times into those until all that follow end.

    - `hop_of` ((num_chunks + 1,) int64): The hops of chunk c are ``hop_of[c]:hop_of[c + 1]``, each after that
      which brings the chunk to its source, and those from one rank next to one another.
    - `into` ((num_ranks,) int64): Room.
    - `took` ((num_hops,) int64): Ticks of each hop; in the end, of the longest chain of hops that begins with
      it.
    - `signal` ((2,) int64): It stops once the first is 1. The second becomes the number of chunks that are
      done.
    """
    for c in range(len(hop_of) - 1):
        if signal[0]:
            return
        signal[1] = c
        for t in range(hop_of[c], hop_of[c + 1]):
            into[fabric.src[hops.slot[t]]] = -1
        for t in range(hop_of[c], hop_of[c + 1]):
            before = into[fabric.src[hops.slot[t]]]
            into[fabric.dst[hops.slot[t]]] = t
            hops.is_first[t] = before < 0
            if before >= 0:
                if hops.next_of[before] == hops.next_end[before]:
                    hops.next_of[before] = t
                hops.next_end[before] = t + 1
        for t in range(hop_of[c + 1] - 1, hop_of[c] - 1, -1):
            longest = 0
            for other in range(hops.next_of[t], hops.next_end[t]):
                longest = max(longest, took[other])
            took[t] += longest


@inner
def _wait(fabric: Fabric, hops: Hops, s: Queues, t: int, time: int) -> None:
    """Put a hop into the queue of its link."""
    e = int(np.int64(hops.slot[t]))
    base = s.queue_of[e]
    push(s.queue_key[base:], s.queue_hop[base:], s.queue_size[e], hops.key[t], t)
    s.queue_size[e] += 1
    _ask(fabric, hops, s, e, time)


@inner
def _ask(fabric: Fabric, hops: Hops, s: Queues, e: int, time: int) -> None:
    """Have a link asked, if the first in its queue can start now."""
    if s.is_asked[e] or not s.queue_size[e] or s.free[e] > time:
        return
    t = s.queue_hop[s.queue_of[e]]
    if not is_free(fabric, s.resource_free, e, hops.units[hops.chunk[t]], time):
        return
    urgency = 0
    for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
        urgency += s.resource_left[fabric.hold_resource[h]]
    key = hops.key[t] - urgency
    s.is_asked[e] = True
    push(s.asked_key, s.asked, s.scalar[_NUM_ASKED], key, e)
    s.scalar[_NUM_ASKED] += 1
