"""Compiled core of translation-symmetric synthesis: it schedules one rank's chunks, and so those of all.

All places (ranks or switches) do the same at the same time. So a class of links acts as one server: one send
of the pattern stands for its images under all translations, which use each link of the class once. An *item*
is one chunk of the place, and an *offset* the position of another place relative to it. There are two
event-driven loops:

- `spread_offsets` builds a tree over all offsets: a free class forwards the first arrival in the log that the
  place at the other end of its link still lacks. Every class has a position in the log, which only advances.
- `route_offsets` sends every item along its own path: a free class takes the item with the longest path left.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl._internal.kernels import compiled, inner
from taccl.schedule.implicit_schedule import ClassTicks

_RANDOM_MASK = (1 << 31) - 1  # mask of the bits of a random number


class LinkClasses(NamedTuple):
    """Classes of equivalent links, each treated as one server, and the resources that they hold.

    All times are in ticks.

    - `latency`, (num_classes,) int64: Duration of a send.
    - `hold_of`, (num_classes + 1,) int64: The holds of class g are rows ``hold_of[g]:hold_of[g + 1]`` of the
      next three.
    - `resource`, `length`, `lead`, (num_holds,) int64: Class of resources held, duration of the hold, and
      time from the start of a send to the hold.
    - `free`, (num_resources,) int64: When each class of resources is free again; modified by runs.
    """

    latency: NDArray[np.int64]
    hold_of: NDArray[np.int64]
    resource: NDArray[np.int64]
    length: NDArray[np.int64]
    lead: NDArray[np.int64]
    free: NDArray[np.int64]


def make_link_classes(ticks: ClassTicks) -> LinkClasses:
    """Make the arrays of link classes from their costs, with all resources free at time 0."""
    counts = [len(holds) for holds in ticks.holds]
    rows = np.array([row for holds in ticks.holds for row in holds], dtype=np.int64).reshape(-1, 3)
    resource, length, lead = (np.ascontiguousarray(column) for column in rows.T)
    return LinkClasses(
        np.array(ticks.latency),
        np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
        resource,
        length,
        lead,
        np.zeros(int(resource.max(initial=-1)) + 1, dtype=np.int64),
    )


@inner(allocates=True)
def _free_at(classes: LinkClasses, g: int) -> int:
    """Earliest time at which a class of links can start a send."""
    at = 0
    for h in range(classes.hold_of[g], classes.hold_of[g + 1]):
        at = max(at, classes.free[classes.resource[h]] - classes.lead[h])
    return at


@inner(allocates=True)
def _take(classes: LinkClasses, g: int, time: int) -> None:
    """Occupy the resources of a class of links for a send that starts at `time`."""
    for h in range(classes.hold_of[g], classes.hold_of[g + 1]):
        classes.free[classes.resource[h]] = time + classes.lead[h] + classes.length[h]


class OffsetTree(NamedTuple):
    """Tree that brings items (chunks) to all offsets (relative places); its finish is -1 if it is incomplete.

    Node ``item * num_places + offset`` is an item at an offset. ``sequence`` lists the nodes other than the
    origins in the order of their sends. A node is reached from ``parent[node]`` over class ``taken[node]``,
    in a send at ``start[node]``.
    """

    finish: int
    sequence: NDArray[np.int32]
    parent: NDArray[np.int32]
    taken: NDArray[np.int16]
    start: NDArray[np.int64]


@compiled(allocates=True)
def spread_offsets(
    classes: LinkClasses,
    steps: NDArray[np.int32],
    first_in: NDArray[np.int32],
    num_items: int,
    random: int,
    deadline: int,
) -> tuple[int, NDArray[np.int32], NDArray[np.int32], NDArray[np.int16], NDArray[np.int64]]:
    """Fields of an `OffsetTree` that brings every item (chunk of one place) to every offset.

    - `steps`, (num_places, num_classes) int32: Offset to which the link of a class leads from each offset.
    - `first_in`, (num_classes, num_places) int32, or no columns: Component of each offset under faster
      classes. A slow class prefers to enter components that neither have the item nor expect it.
    - `random`: Seed of the order in which free classes choose; negative for the order of their numbers.
    - `deadline`: Latest end of a send, in ticks.
    """
    num_places, num_classes = steps.shape
    num_nodes, tiers = num_items * num_places, first_in.shape[1] > 0
    log, following = np.empty(num_nodes, np.int32), np.empty(num_nodes, np.int32)
    sequence, parent = np.empty(num_nodes, np.int32), np.empty(num_nodes, np.int32)
    taken, start = np.full(num_nodes, -1, np.int16), np.empty(num_nodes, np.int64)
    entered = np.zeros((num_classes, num_nodes if tiers else 0), np.bool_)
    fresh, place = np.zeros(num_classes, np.int64), np.zeros(num_classes, np.int64)
    head, tail = np.full(num_classes, -1, np.int64), np.full(num_classes, -1, np.int64)
    asked = np.arange(num_classes)
    num_log = num_items
    for item in range(num_items):
        log[item] = item * num_places
        taken[item * num_places] = 0
        if tiers:
            for g in range(num_classes):
                entered[g, item * num_places + first_in[g, 0]] = True
    sent = 0
    finish = 0
    time = 0
    while True:
        if random >= 0:
            for i in range(num_classes - 1, 0, -1):
                random = (1103515245 * random + 12345) & _RANDOM_MASK
                j = (random >> 8) % (i + 1)
                asked[i], asked[j] = asked[j], asked[i]
        for i in range(num_classes):
            g = asked[i]
            ends = time + classes.latency[g]
            if ends > deadline or _free_at(classes, g) > time:
                continue
            found = -1
            source = -1
            for sweep in range(0 if tiers else 1, 2):
                is_fresh = sweep == 0
                p = fresh[g] if is_fresh else place[g]
                while p < num_log and found < 0:
                    base = log[p] // num_places * num_places
                    node = base + steps[log[p] - base, g]
                    if taken[node] < 0 and not (is_fresh and entered[g, base + first_in[g, node - base]]):
                        found, source = node, log[p]
                    p += 1
                if is_fresh:
                    fresh[g] = p
                else:
                    place[g] = p
                if found >= 0:
                    break
            if found < 0:
                continue
            _take(classes, g, time)
            taken[found] = g
            parent[found] = source
            start[found] = time
            sequence[sent] = found
            sent += 1
            finish = max(finish, ends)
            following[found] = -1
            if head[g] < 0:
                head[g] = found
            else:
                following[tail[g]] = found
            tail[g] = found
            if tiers:
                base = found // num_places * num_places
                for other in range(num_classes):
                    entered[other, base + first_in[other, found - base]] = True
        if sent == num_items * (num_places - 1):
            return finish, sequence, parent, taken, start
        # Find the next event: an arrival, or the time at which a class with further items to send is free.
        later = -1
        for g in range(num_classes):
            if head[g] >= 0:
                at = start[head[g]] + classes.latency[g]
                if later < 0 or at < later:
                    later = at
            if place[g] < num_log:
                at = _free_at(classes, g)
                if at > time and (later < 0 or at < later):
                    later = at
        if later < 0:
            return -1, sequence, parent, taken, start
        time = later
        for g in range(num_classes):
            while head[g] >= 0 and start[head[g]] + classes.latency[g] == time:
                node = head[g]
                log[num_log] = node
                num_log += 1
                head[g] = following[node]


@compiled(allocates=True)
def route_offsets(
    classes: LinkClasses,
    path_of: NDArray[np.int64],
    path: NDArray[np.int16],
    left: NDArray[np.int64],
    start: NDArray[np.int64],
) -> int:
    """Schedule every item (chunk) along its own path of link classes; returns the finish in ticks.

    - `path_of`, (num_items + 1,) int64: The hops of item i are ``path_of[i]:path_of[i + 1]``.
    - `path`, (num_hops,) int16: Class of each hop.
    - `left`, (num_hops,) int64: Priority, the largest first: ticks from the start of a hop to the end of its
      path.
    - `start`, (num_hops,) int64: Output: start of each hop in ticks.
    """
    num_classes = len(classes.latency)
    num_items = len(path_of) - 1
    ready = [[(0, 0)] for _ in range(num_classes)]
    for queue in ready:
        queue.pop()
    last = [False for _ in range(len(path))]
    for item in range(num_items):
        hop = path_of[item]
        if hop < path_of[item + 1]:
            ready[path[hop]].append((-left[hop], hop))
            last[path_of[item + 1] - 1] = True
    for queue in ready:
        heapq.heapify(queue)
    events = [(0, -1)]
    finish = 0
    while events:
        time = events[0][0]
        while events and events[0][0] == time:
            hop = heapq.heappop(events)[1]
            if hop >= 0:
                heapq.heappush(ready[path[hop]], (-left[hop], hop))
        for g in range(num_classes):
            if not ready[g]:
                continue
            if _free_at(classes, g) > time:
                continue
            hop = heapq.heappop(ready[g])[1]
            _take(classes, g, time)
            start[hop] = time
            end = time + classes.latency[g]
            finish = max(finish, end)
            if not last[hop]:
                heapq.heappush(events, (end, hop + 1))
        for g in range(num_classes):
            if ready[g]:
                at = _free_at(classes, g)
                if at > time:
                    heapq.heappush(events, (at, -1))
    return finish
