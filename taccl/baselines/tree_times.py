"""Kernels that time the sends of shares on a mesh, if no link waits for links that it takes no data from.

A link merges its sends of a step that add, and those that copy. Such a message starts when the link is free
and all data are there.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl._internal.kernels import compiled, inner

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

#: Share of a mean step by which data may be late for a message that comes after them (rounding of floats).
_ROUNDING = 1e-9


class Grid(NamedTuple):
    """Links between ranks, in classes of links that carry equal load as trees are repeated by symmetry.

    - `near`: (num_ranks, num_ways) neighbours; -1 if none.
    - `kind`: (2, num_ranks, num_ways) class of the link to each neighbour, then of that from it; -1 if none.
    - `alpha`, `beta`: (num_classes,) latency in us, and us per share for each of its sends over the class.
    - `span`: (num_classes,) number of steps that a message takes, unless links drift apart.
    """

    near: Ints
    kind: Ints
    alpha: Floats
    beta: Floats
    span: Ints


class Cores(NamedTuple):
    """Cores: groups of hubs that collect data, exchange sums and spread totals, with initial trees to them.

    - `num_hubs`: (num_cores,) number of hubs.
    - `length`: (num_cores,) number of steps of the exchange.
    - `kind`, `step`: (num_cores, num_sends) class and step of each send of the exchange; class -1: none.
    - `ends`: (num_cores, num_sends, 2) source and destination of each of these sends.
    - `way`: (num_cores, num_shapes, num_ranks) way of each rank towards the hubs; -1 at a hub.
    """

    num_hubs: Ints
    length: Ints
    kind: Ints
    step: Ints
    ends: Ints
    way: Ints


class Shares(NamedTuple):
    """Trees for each share of the data.

    - `core`: (num_shares,) core of each share; -1 as long as it has none.
    - `begin`: (num_shares,) step in which the exchange begins.
    - `way`, `step`: (2, num_shares, num_ranks) way to the next rank towards the hubs, and step of the send to
      it; then the way to the rank from which a rank gets the total, and the step of that send.
    - `sends`: (2, num_classes, num_steps) sends that add, then sends that copy, of all shares. A message of
      several steps is in the first of them if it adds, and in the last if it copies.
    - `closed`: (2, num_classes, num_steps) true for sends that shares avoid, unless links drift apart.
    - `random`: State of the random numbers.
    """

    core: Ints
    begin: Ints
    way: Ints
    step: Ints
    sends: Ints
    closed: NDArray[np.bool_]
    random: NDArray[np.uint64]


class Times(NamedTuple):
    """Sends of each share of the data, and the time of each message.

    Messages are numbered by steps. Within a step, messages that add come first, by the class of their links.
    Messages that copy follow.

    - `rows`: (num_shares, most_sends, 3) message, and source and destination in `has` of each send.
    - `number`: (num_shares,) number of sends of each share.
    - `live`: (1,) which of both tables in `first` and `order` holds; the other has the sends before a change.
    - `first`: (2, num_messages + 1) number of sends before each message.
    - `order`: (2, 2, num_sends) source and destination of all sends in the order of messages.
    - `has`, `free`: (num_shares * num_ranks,) and (num_classes,) storage of `arrivals`.
    - `end`: (2, num_steps, 2 * num_classes) time from the start to the end of each message, then from
      its start to the finish.
    - `span`: (2, 2, num_classes, num_steps) middle of the earliest and the latest start of each message, then
      its end. The steps and times of copies are reversed.
    - `before`: (2, num_classes, num_classes, num_steps) number of messages of a class that end before a
      message of another class starts. The steps of copies are reversed.
    - `joined`: (2, num_classes, num_classes) true if data pass from a link of one class to one of the other.
    """

    rows: NDArray[np.uint32]
    number: Ints
    live: Ints
    first: Ints
    order: NDArray[np.uint32]
    has: Floats
    free: Floats
    end: Floats
    span: Floats
    before: Ints
    joined: NDArray[np.bool_]


def room_for_times(grid: Grid, cores: Cores, shares: Shares) -> Times:
    """Storage for times; each message comes after those of all earlier steps."""
    num_shares, num_ranks = shares.way.shape[1:]
    _, num_classes, num_steps = shares.sends.shape
    before = np.empty((2, num_classes, num_classes, num_steps), np.int64)
    before[:] = np.maximum(np.arange(num_steps) + 1 - grid.span[:, None, None], 0)
    joined = np.zeros((2, num_classes, num_classes), bool)
    is_path = (grid.near[:, :, None] >= 0) & (grid.near[grid.near] >= 0)
    for half in range(2):
        first = np.broadcast_to(grid.kind[half][:, :, None], is_path.shape)
        joined[half, first[is_path], grid.kind[half][grid.near][is_path]] = True
    most_sends = 2 * num_ranks + cores.kind.shape[1]
    return Times(
        np.empty((num_shares, most_sends, 3), np.uint32),
        np.zeros(num_shares, np.int64),
        np.zeros(1, np.int64),
        np.empty((2, 2 * num_classes * num_steps + 1), np.int64),
        np.empty((2, 2, num_shares * most_sends), np.uint32),
        np.empty(num_shares * num_ranks),
        np.empty(num_classes),
        np.empty((2, num_steps, 2 * num_classes)),
        np.empty((2, 2, num_classes, num_steps)),
        before,
        joined,
    )


@inner
def list_sends(grid: Grid, cores: Cores, shares: Shares, i: int, times: Times) -> None:
    """Write the sends for one share of the data into `times.rows`."""
    core, rows, number = shares.core[i], times.rows[i], 0
    num_ranks, num_classes = len(grid.near), len(grid.alpha)
    for half in range(2):
        for v in range(num_ranks):
            way = shares.way[half, i, v]
            if way >= 0:
                row, number = rows[number], number + 1
                row[0] = (2 * shares.step[half, i, v] + half) * num_classes + grid.kind[half, v, way]
                row[1 + half], row[2 - half] = i * num_ranks + v, i * num_ranks + grid.near[v, way]
    for j in range(cores.kind.shape[1]):
        if cores.kind[core, j] >= 0:
            row, number = rows[number], number + 1
            row[0] = 2 * (shares.begin[i] + cores.step[core, j]) * num_classes + cores.kind[core, j]
            row[1], row[2] = i * num_ranks + cores.ends[core, j, 0], i * num_ranks + cores.ends[core, j, 1]
    times.number[i] = number


@inner
def order_sends(times: Times) -> None:
    """Sort the sends of all shares by message, into the other tables in `times`, which then hold."""
    times.live[0] = 1 - times.live[0]
    first, order = times.first[times.live[0]], times.order[times.live[0]]
    for k in range(len(first)):
        first[k] = 0
    for i in range(len(times.number)):
        for j in range(times.number[i]):
            first[times.rows[i, j, 0]] += 1
    for k in range(len(first) - 1):
        first[k + 1] += first[k]
    for i in range(len(times.number)):
        for j in range(times.number[i]):
            row = times.rows[i, j]
            first[row[0]] -= 1
            at = first[row[0]]
            order[0, at], order[1, at] = row[1], row[2]


@inner
def message_us(grid: Grid, count: Ints, half: int, c: int, k: int) -> float:
    """Time of the message of a class of links in a step; 0 if it has no sends."""
    number = count[half, c, k]
    return float(grid.alpha[c] + number * grid.beta[c] if number > 0 else 0.0)


@inner
def arrivals(grid: Grid, count: Ints, times: Times, back: int) -> float:
    """Set the end of each message in `times`, and return the finish.

    - `back`: 1 to let time run backwards.
    """
    _, num_classes, num_steps = count.shape
    first, order = times.first[times.live[0]], times.order[times.live[0]]
    takes, gives = order[back], order[1 - back]
    has, free, finish = times.has, times.free, 0.0
    for i in range(len(has)):
        has[i] = 0.0
    for c in range(num_classes):
        free[c] = 0.0
    for each in range(num_steps):
        k = num_steps - 1 - each if back else each
        end, at = times.end[back, k], 2 * num_classes * k
        for place in range(2):
            half = 1 - place if back else place
            for c in range(num_classes):
                m = half * num_classes + c
                start = free[c]
                for j in range(first[at + m], first[at + m + 1]):
                    start = max(start, has[takes[j]])
                end[m] = start + message_us(grid, count, half, c, k)
                if count[half, c, k] > 0:
                    free[c] = end[m]
                    finish = max(finish, end[m])
        for m in range(2 * num_classes):
            for j in range(first[at + m], first[at + m + 1]):
                has[gives[j]] = max(has[gives[j]], end[m])
    return finish


@inner
def weigh(grid: Grid, count: Ints, times: Times, sharp: float, weight: Floats, sorts: bool) -> None:
    """Set weights of messages; with `sorts`, also which messages come before which.

    - `sharp`: As in `taccl.baselines.tree_kernel.Rules`.
    - `weight`: (2, num_classes, num_steps) weights, which fall with the slack; at most 1 in each step.
    """
    finish = 0.0
    for back in range(2):  # one call is compiled to faster code than two
        end_us = arrivals(grid, count, times, back)
        finish = finish if back else end_us
    _, num_classes, num_steps = count.shape
    for k in range(num_steps):
        total = 0.0
        for half in range(2):
            for c in range(num_classes):
                length = message_us(grid, count, half, c, k)
                m, at = half * num_classes + c, num_steps - 1 - k if half else k
                slack = finish + length - times.end[0, k, m] - times.end[1, k, m]
                times.span[1, half, c, at] = times.end[half, k, m] + slack / 2
                times.span[0, half, c, at] = times.span[1, half, c, at] - length
                weight[half, c, k] = math.exp(-sharp * slack)
                total += weight[half, c, k]
        for half in range(2):
            for c in range(num_classes):
                weight[half, c, k] /= max(total, 1.0)
    if not sorts:
        return
    late = _ROUNDING * finish / num_steps
    for half in range(2):
        for c in range(num_classes):
            for d in range(num_classes):
                number = 0
                for k in range(num_steps if times.joined[half, c, d] else 0):
                    while number < k and times.span[1, half, c, number] <= times.span[0, half, d, k] + late:
                        number += 1
                    times.before[half, c, d, k] = number


@compiled
def finish_us(grid: Grid, cores: Cores, shares: Shares, times: Times) -> float:
    """Finish of all shares.

    - `times`: Storage, as from `room_for_times`.
    """
    for i in range(len(shares.core)):
        list_sends(grid, cores, shares, i, times)
    order_sends(times)
    return float(arrivals(grid, shares.sends, times, 0))
