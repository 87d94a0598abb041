"""Compiled scheduler of chunks along given routes: every link has a queue of the chunks that wait for it.

When links or shared resources are released, or chunks arrive, the affected links may send in order of
urgency. Urgency is the remaining load of a link's shared resources, so that the busiest resource does not
idle. Ties are broken by the remaining route of the first chunk in each link's queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl._internal.kernels import compiled, inner
from taccl.synthesis.kernels import events

if TYPE_CHECKING:
    from taccl.synthesis.kernels.fabric import Bools, Fabric, Floats, Int32s, Ints


class Hops(NamedTuple):
    """Routes of chunks as columns of hops, with their order and priorities."""

    units: Ints  # size of each chunk
    slot: Int32s
    chunk: Int32s
    waits_for: Int32s  # number of hops that hop t follows: 0 at an origin, several where it sends a sum
    next_of: Int32s  # the hops that follow hop t are `next_of[t]:next_end[t]`
    next_end: Int32s
    key: Floats  # priority among chunks that wait for the same link, the smallest first
    #: True for hops that precede all others on their link, and do not merge with them; empty if none merge.
    is_urgent: Bools
    most_merged: Ints  # max chunks in a send over slot e


class Queues(NamedTuple):
    """Queues of hops that wait for links; `send_along` modifies all fields."""

    waiting: Int32s  # number of hops that each hop still waits for
    queue_of: Ints  # hops that wait for slot e, a heap, are `queue_of[e]:queue_of[e] + queue_size[e]`
    queue_size: Ints
    queue_key: Floats
    queue_hop: Int32s
    resource_left: Ints  # ticks of remaining load of each resource
    #: Earliest start of the first hop in slot e's queue, by holds of its link and resources; 0 if it is new.
    not_before: Ints
    #: Port of each slot: slots of one port hold the same resource from the start of each send.
    port_of: Ints
    port_resource: Ints  # this resource, or -1 for ports of one slot
    #: Slots of port p that may send now, a heap: `offer[offer_of[p]:offer_of[p] + offer_size[p]]`.
    offer_of: Ints
    offer_size: Ints
    offer_key: Floats
    offer: Ints
    asked_at: Ints  # number of the turn in which each slot was last added to its heap
    asking: Ints  # ports with slots that may send, and a heap of them, together with `asking_key`
    asking_key: Floats
    turn: Ints  # number of the current turn
    together: Ints  # hops of the current send


_NEVER = 2**62  # ticks


# Index names below: t hop, c chunk, e slot, h hold, q resource, g group of slots.


@compiled
def send_along(fabric: Fabric, hops: Hops, s: Queues, now: events.Timeline, limit: int) -> int:
    """Schedule every hop of the routes; returns the finish in ticks, or a negative reason for a failure.

    - `limit`: Latest finish; the run is given up above it. The integer type of the starts must
      be able to hold it.
    """
    num_groups, num_slots = len(fabric.group_lead), len(fabric.link)
    for t in range(len(hops.slot)):
        e, size = hops.slot[t], hops.units[hops.chunk[t]]
        for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
            s.resource_left[fabric.hold_resource[h]] += fabric.hold_alpha[h] + size * fabric.hold_beta[h]
    time = 0
    events.post_begins(fabric, now)
    num_arrivals = min(hops.most_merged.sum(), len(hops.slot))
    for t in range(len(hops.slot)):
        if not hops.waits_for[t]:
            _wait(fabric, hops, s, now, t, time)
    while True:
        if not events.has_room(fabric, now, num_arrivals):
            return events.HEAP_FULL
        _line_up(s, now)
        while now.scalar[events.NUM_ACTIVE]:
            e = _next_slot(fabric, hops, s, now, time)
            if e < 0:
                continue
            c = int(np.int64(hops.chunk[int(np.int64(s.queue_hop[s.queue_of[e]]))]))
            count, size = _take(fabric, hops, s, now, e, time)
            events.start_send(fabric, now, e, c, size, time, -1, False)
            took = fabric.alpha[e] + size * fabric.beta[e]
            for i in range(count):
                t = s.together[i]
                if i:
                    events.put_down(fabric, now, e, int(np.int64(hops.chunk[t])), time)
                if hops.next_of[t] < hops.next_end[t]:
                    events.post_arrival(fabric, now, time + took, t)
            for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
                left = count * fabric.hold_alpha[h] + size * fabric.hold_beta[h]
                s.resource_left[fabric.hold_resource[h]] -= left
        s.turn[0] += 1
        if now.scalar[events.FINISH] > limit:
            return events.OVER_LIMIT
        if not now.scalar[events.NUM_EVENTS]:
            break
        if now.scalar[events.SIGNAL]:
            return events.STOPPED
        time = now.event_time[0]
        what = events.next_event(now, time)
        while what >= 0:
            if what < num_groups:
                for i in range(fabric.group_of[what], fabric.group_of[what + 1]):
                    _ask(fabric, hops, s, now, fabric.group_slot[i], time)
            elif what < num_groups + num_slots:
                _ask(fabric, hops, s, now, what - num_groups, time)
            else:
                t = what - num_groups - num_slots
                for after in range(hops.next_of[t], hops.next_end[t]):
                    s.waiting[after] -= 1
                    if not s.waiting[after]:
                        _wait(fabric, hops, s, now, int(np.int64(after)), time)
            what = events.next_event(now, time)
    return int(now.scalar[events.FINISH])


@compiled(allocates=True)
def send_in_order(fabric: Fabric, hops: Hops, order: Ints, start: Ints) -> int:
    """Start every hop as early as possible in the given order; returns the finish in ticks.

    - `order`: Hops, each after those that it waits for.
    - `start`: Zeros; on return the start of each hop in ticks.
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
            start[after] = max(start[after], time + took)
    return int(finish)


@compiled
def join_hops(fabric: Fabric, hop_of: Ints, hops: Hops, into: Ints, took: Ints, signal: Ints) -> None:
    """Record the hops that follow each hop, and sum up times along routes.

    - `hop_of` ((num_chunks + 1,) int64): The hops of chunk c are ``hop_of[c]:hop_of[c + 1]``. Each follows
      the hop that brings the chunk to its source, and hops from the same rank are adjacent.
    - `into` ((num_ranks,) int64): Work array.
    - `took` ((num_hops,) int64): Ticks of each hop; on return, of the longest chain of hops that starts with
      it.
    - `signal` ((2,) int64): The function stops once the first is 1, and sets the second to the number of
      chunks done.
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
            hops.waits_for[t] = before >= 0
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
def _wait(fabric: Fabric, hops: Hops, s: Queues, now: events.Timeline, t: int, time: int) -> None:
    """Add a hop to the queue of its link."""
    e = int(np.int64(hops.slot[t]))
    base = s.queue_of[e]
    s.queue_size[e] = events.push(s.queue_key[base:], s.queue_hop[base:], s.queue_size[e], hops.key[t], t)
    if s.queue_hop[base] == t:
        s.not_before[e] = 0
    _ask(fabric, hops, s, now, e, time)


@inner
def _take(fabric: Fabric, hops: Hops, s: Queues, now: events.Timeline, e: int, time: int) -> tuple[int, int]:
    """Take the hops of one send off the queue of a free link; returns their number and total size."""
    base = s.queue_of[e]
    count = size = 0
    while s.queue_size[e] and count < hops.most_merged[e]:
        t = int(np.int64(s.queue_hop[base]))
        larger = size + hops.units[hops.chunk[t]]
        if count and (
            hops.is_urgent[t] != hops.is_urgent[s.together[0]]
            or not events.is_free(fabric, now, e, larger, time)
        ):
            break
        events.pop(s.queue_key[base:], s.queue_hop[base:], s.queue_size[e])
        s.queue_size[e] -= 1
        s.together[count] = t
        count, size = count + 1, larger
    s.not_before[e] = 0
    return count, size


@inner
def _ask(fabric: Fabric, hops: Hops, s: Queues, now: events.Timeline, e: int, time: int) -> None:
    """Add a link to the heap of its port, if the first hop in its queue can start now."""
    if s.not_before[e] > time or s.asked_at[e] == s.turn[0]:  # most links wait for other resources
        return
    if not s.queue_size[e]:
        s.not_before[e] = _NEVER
        return
    t = s.queue_hop[s.queue_of[e]]
    s.not_before[e] = _free_at(fabric, now, e, hops.units[hops.chunk[t]])
    if s.not_before[e] > time:
        return
    urgency = 0
    for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
        urgency += s.resource_left[fabric.hold_resource[h]]
    s.asked_at[e] = s.turn[0]
    port = s.port_of[e]
    if not s.offer_size[port]:
        s.asking[now.scalar[events.NUM_ACTIVE]] = port
        now.scalar[events.NUM_ACTIVE] += 1
    base, key = s.offer_of[port], hops.key[t] - urgency
    s.offer_size[port] = events.push(s.offer_key[base:], s.offer[base:], s.offer_size[port], key, e)


@inner
def _line_up(s: Queues, now: events.Timeline) -> None:
    """Sort the ports that may send into a heap, by their most urgent link."""
    for i in range(now.scalar[events.NUM_ACTIVE]):
        port = s.asking[i]
        events.push(s.asking_key, s.asking, i, s.offer_key[s.offer_of[port]], port)


@inner
def _next_slot(fabric: Fabric, hops: Hops, s: Queues, now: events.Timeline, time: int) -> int:
    """Take the most urgent link off the heaps; -1 if it cannot send any more.

    All links of a port are taken off once the resource of the port is occupied.
    """
    port = events.pop(s.asking_key, s.asking, now.scalar[events.NUM_ACTIVE])
    now.scalar[events.NUM_ACTIVE] -= 1
    q, base = s.port_resource[port], s.offer_of[port]
    if q >= 0 and now.resource_free[q] > time:
        s.offer_size[port] = 0
        return -1
    e = events.pop(s.offer_key[base:], s.offer[base:], s.offer_size[port])
    s.offer_size[port] -= 1
    if s.offer_size[port]:
        now.scalar[events.NUM_ACTIVE] = events.push(
            s.asking_key, s.asking, now.scalar[events.NUM_ACTIVE], s.offer_key[base], port
        )
    size = hops.units[hops.chunk[s.queue_hop[s.queue_of[e]]]]
    return int(e) if _free_at(fabric, now, e, size) <= time else -1


@inner
def _free_at(fabric: Fabric, now: events.Timeline, e: int, size: int) -> int:
    """Earliest start of a send over a link in ticks, if no other send starts before it."""
    took = fabric.alpha[e] + size * fabric.beta[e]
    at = now.link_free[e]
    for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
        lead = took - fabric.hold_alpha[h] - size * fabric.hold_beta[h] if fabric.hold_receives[h] else 0
        at = max(at, now.resource_free[fabric.hold_resource[h]] - lead)
    return int(at)
