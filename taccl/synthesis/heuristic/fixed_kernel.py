"""The compiled schedule-generation scheme over given routes: of the sends that can start, the most urgent."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.kernels import compiled, inner
from taccl.synthesis.heuristic.events import ZERO, pop, push

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Network", "Queues", "list_starts", "longest_chains", "starts_of", "tails_of"]


class Network(NamedTuple):
    """Sends, what each waits for, and what it holds.

    Parameters
    ----------
    duration : (num_sends,) int64
        Ticks.
    num_before : (num_sends,) int64
        How many sends each waits for.
    after_of, after : (num_sends + 1,) int64, (num_arcs,) int64
        Sends that wait for send m are ``after[after_of[m]:after_of[m + 1]]``.
    hold_of, resource, length, lead : (num_sends + 1,) int64, (num_holds,) int64
        Holds of send m are rows ``hold_of[m]:hold_of[m + 1]``: `lead` ticks after its start it takes the
        resource, for `length` ticks.
    num_resources : int
    """

    duration: NDArray[np.int64]
    num_before: NDArray[np.int64]
    after_of: NDArray[np.int64]
    after: NDArray[np.int64]
    hold_of: NDArray[np.int64]
    resource: NDArray[np.int64]
    length: NDArray[np.int64]
    lead: NDArray[np.int64]
    num_resources: int


class Queues(NamedTuple):
    """What changes while sends are started; all of it is used up.

    Parameters
    ----------
    left : (num_sends,) int64
        How many sends each still waits for.
    free : (num_resources,) int64
        When resources are free.
    first_waiting, next_waiting : (num_resources,), (num_sends,) int64
        Lists of the sends that wait for each resource.
    came_from : (num_sends,) int64
        The resource that let a send try; -1 for none.
    event_time, event_what, ready_key, ready_what
        Heaps.
    """

    left: NDArray[np.int64]
    free: NDArray[np.int64]
    first_waiting: NDArray[np.int64]
    next_waiting: NDArray[np.int64]
    came_from: NDArray[np.int64]
    event_time: NDArray[np.int64]
    event_what: NDArray[np.int64]
    ready_key: NDArray[np.int64]
    ready_what: NDArray[np.int64]


def starts_of(network: Network, priority: NDArray[np.int64]) -> NDArray[np.int64]:
    """Starts in ticks, (num_sends,) int64, of list scheduling by priority, higher first."""
    count, num_resources = len(network.duration), network.num_resources
    room = len(network.resource) + 2 * count + 1
    queues = Queues(
        left=network.num_before.copy(),
        free=np.zeros(num_resources, np.int64),
        first_waiting=np.full(num_resources, -1),
        next_waiting=np.full(count, -1),
        came_from=np.full(count, -1),
        event_time=np.empty(room, np.int64),
        event_what=np.empty(room, np.int64),
        ready_key=np.empty(count + 1, np.int64),
        ready_what=np.empty(count + 1, np.int64),
    )
    start = np.full(count, -1)
    list_starts(network, queues, priority, start)
    return start


def tails_of(backwards: Network) -> NDArray[np.int64]:
    """Ticks of the longest chain of sends that each is the first of, (num_sends,) int64.

    Parameters
    ----------
    backwards : Network
        In which each send waits for those that wait for it in truth.
    """
    tails = backwards.duration.copy()
    longest_chains(backwards, backwards.num_before.copy(), np.empty(len(tails), np.int64), tails)
    return tails


@compiled
def longest_chains(
    network: Network, left: NDArray[np.int64], queue: NDArray[np.int64], chain: NDArray[np.int64]
) -> None:
    """Turn durations into the longest chains of sends that end with each; `left` is used up."""
    size = 0
    for m in range(len(left)):
        if left[m] == 0:
            queue[size] = m
            size += 1
    done = 0
    while done < size:
        m = queue[done]
        done += 1
        for i in range(network.after_of[m], network.after_of[m + 1]):
            other = network.after[i]
            chain[other] = max(chain[other], chain[m] + network.duration[other])
            left[other] -= 1
            if left[other] == 0:
                queue[size] = other
                size += 1


@compiled
def list_starts(network: Network, s: Queues, priority: NDArray[np.int64], start: NDArray[np.int64]) -> None:
    """Fill in when each send starts.

    An event is the end of send m (number m), the release of resource q (num_sends + q), or the moment from
    which send m can take a resource that it needs only some time after its start (num_sends +
    num_resources + m).
    """
    count, num_resources = len(s.left), network.num_resources
    num_ready = num_events = ZERO
    for m in range(count):
        if s.left[m] == 0:
            push(s.ready_key, s.ready_what, num_ready, -priority[m], m)
            num_ready += 1
    time = 0
    while True:
        while num_ready:
            m = pop(s.ready_key, s.ready_what, num_ready)
            num_ready -= 1
            blocking = -1
            for h in range(network.hold_of[m], network.hold_of[m + 1]):
                if s.free[network.resource[h]] > time + network.lead[h]:
                    blocking = h
                    break
            if blocking >= 0:
                q = network.resource[blocking]
                if network.lead[blocking] > 0:
                    at = s.free[q] - network.lead[blocking]
                    push(s.event_time, s.event_what, num_events, at, count + num_resources + m)
                    num_events += 1
                else:
                    s.next_waiting[m] = s.first_waiting[q]
                    s.first_waiting[q] = m
                # What let it try is still free for the next that waits for it.
                q = s.came_from[m]
                s.came_from[m] = -1
                if q >= 0 and s.free[q] <= time:
                    m = _take_best(s, q, priority)
                    if m >= 0:
                        s.came_from[m] = q
                        push(s.ready_key, s.ready_what, num_ready, -priority[m], m)
                        num_ready += 1
                continue
            start[m] = time
            for h in range(network.hold_of[m], network.hold_of[m + 1]):
                q = network.resource[h]
                s.free[q] = max(s.free[q], time + network.lead[h] + network.length[h])
                push(s.event_time, s.event_what, num_events, s.free[q], count + q)
                num_events += 1
            push(s.event_time, s.event_what, num_events, time + network.duration[m], m)
            num_events += 1
        if num_events == 0:
            break
        time = s.event_time[0]
        while num_events and s.event_time[0] == time:
            what = pop(s.event_time, s.event_what, num_events)
            num_events -= 1
            if what < count:
                for i in range(network.after_of[what], network.after_of[what + 1]):
                    m = network.after[i]
                    s.left[m] -= 1
                    if s.left[m] == 0:
                        push(s.ready_key, s.ready_what, num_ready, -priority[m], m)
                        num_ready += 1
            elif what < count + num_resources:
                q = what - count
                m = _take_best(s, q, priority) if s.free[q] <= time else -1
                if m >= 0:
                    s.came_from[m] = q
                    push(s.ready_key, s.ready_what, num_ready, -priority[m], m)
                    num_ready += 1
            else:
                m = what - count - num_resources
                push(s.ready_key, s.ready_what, num_ready, -priority[m], m)
                num_ready += 1


@inner
def _take_best(s: Queues, q: int, priority: NDArray[np.int64]) -> int:
    """Take the most urgent send off the list of those that wait for a resource; -1 if there is none."""
    best = before_best = before = -1
    m = s.first_waiting[q]
    while m >= 0:
        if best < 0 or priority[m] > priority[best]:
            best, before_best = m, before
        before = m
        m = s.next_waiting[m]
    if best >= 0:
        if before_best < 0:
            s.first_waiting[q] = s.next_waiting[best]
        else:
            s.next_waiting[before_best] = s.next_waiting[best]
    return best
