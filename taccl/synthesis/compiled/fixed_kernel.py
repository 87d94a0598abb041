"""The compiled list scheduler for sends whose ways are given: of those that can start, the most urgent."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.kernels import compiled
from taccl.synthesis.compiled.events import pop, push

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Network", "list_starts", "longest_chains", "starts_of", "tails_of"]


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


def starts_of(network: Network, priority: NDArray[np.int64]) -> NDArray[np.int64]:
    """Starts in ticks, (num_sends,) int64, of list scheduling by priority, higher first."""
    count = len(network.duration)
    room = len(network.resource) + 2 * count + 1
    start = np.full(count, -1, np.int64)
    list_starts(
        network,
        priority,
        network.num_before.copy(),
        np.zeros(network.num_resources, np.int64),
        np.full(network.num_resources, -1, np.int64),
        np.full(count, -1, np.int64),
        np.full(count, -1, np.int64),
        np.empty(room, np.int64),
        np.empty(room, np.int64),
        np.empty(count + 1, np.int64),
        np.empty(count + 1, np.int64),
        start,
    )
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
def list_starts(
    network: Network,
    priority: NDArray[np.int64],
    left: NDArray[np.int64],
    free: NDArray[np.int64],
    first_waiting: NDArray[np.int64],
    next_waiting: NDArray[np.int64],
    came_from: NDArray[np.int64],
    event_time: NDArray[np.int64],
    event_what: NDArray[np.int64],
    ready_key: NDArray[np.int64],
    ready_what: NDArray[np.int64],
    start: NDArray[np.int64],
) -> None:
    """Fill in `start`; the other arrays are room, or are used up.

    An event is the end of send m (number m), the release of resource q (num_sends + q), or the moment from
    which send m can take a resource that it needs only some time after its start (num_sends +
    num_resources + m).
    """
    count, num_resources = len(left), network.num_resources
    num_ready = num_events = 0
    for m in range(count):
        if left[m] == 0:
            push(ready_key, ready_what, num_ready, -priority[m], m)
            num_ready += 1
    time = 0
    while True:
        while num_ready:
            m = pop(ready_key, ready_what, num_ready)
            num_ready -= 1
            blocking = -1
            for h in range(network.hold_of[m], network.hold_of[m + 1]):
                if free[network.resource[h]] > time + network.lead[h]:
                    blocking = h
                    break
            if blocking >= 0:
                q = network.resource[blocking]
                if network.lead[blocking] > 0:
                    at = free[q] - network.lead[blocking]
                    push(event_time, event_what, num_events, at, count + num_resources + m)
                    num_events += 1
                else:
                    next_waiting[m] = first_waiting[q]
                    first_waiting[q] = m
                # What let it try is still free for the next that waits for it.
                q = came_from[m]
                came_from[m] = -1
                if q >= 0 and free[q] <= time:
                    m = _take_best(q, priority, first_waiting, next_waiting)
                    if m >= 0:
                        came_from[m] = q
                        push(ready_key, ready_what, num_ready, -priority[m], m)
                        num_ready += 1
                continue
            start[m] = time
            for h in range(network.hold_of[m], network.hold_of[m + 1]):
                q = network.resource[h]
                free[q] = max(free[q], time + network.lead[h] + network.length[h])
                push(event_time, event_what, num_events, free[q], count + q)
                num_events += 1
            push(event_time, event_what, num_events, time + network.duration[m], m)
            num_events += 1
        if num_events == 0:
            break
        time = event_time[0]
        while num_events and event_time[0] == time:
            what = pop(event_time, event_what, num_events)
            num_events -= 1
            if what < count:
                for i in range(network.after_of[what], network.after_of[what + 1]):
                    m = network.after[i]
                    left[m] -= 1
                    if left[m] == 0:
                        push(ready_key, ready_what, num_ready, -priority[m], m)
                        num_ready += 1
            elif what < count + num_resources:
                q = what - count
                m = _take_best(q, priority, first_waiting, next_waiting) if free[q] <= time else -1
                if m >= 0:
                    came_from[m] = q
                    push(ready_key, ready_what, num_ready, -priority[m], m)
                    num_ready += 1
            else:
                m = what - count - num_resources
                push(ready_key, ready_what, num_ready, -priority[m], m)
                num_ready += 1


@compiled
def _take_best(
    q: int, priority: NDArray[np.int64], first_waiting: NDArray[np.int64], next_waiting: NDArray[np.int64]
) -> int:
    """Take the most urgent send off the list of those that wait for a resource; -1 if there is none."""
    best = before_best = before = -1
    m = first_waiting[q]
    while m >= 0:
        if best < 0 or priority[m] > priority[best]:
            best, before_best = m, before
        before = m
        m = next_waiting[m]
    if best >= 0:
        if before_best < 0:
            first_waiting[q] = next_waiting[best]
        else:
            next_waiting[before_best] = next_waiting[best]
    return best
