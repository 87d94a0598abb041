"""Compiled kernels of placement: makespan of a placement, simulated annealing, and branch and bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taccl._internal.arrays import Floats, Ints
from taccl._internal.kernels import compiled, inner

if TYPE_CHECKING:
    from taccl.placement.fabric import Flows, HostPaths, RankMessages, Relaxed, Room

#: Returned for a makespan above the cutoff.
TOO_LONG = 2**62


@compiled
def tails(messages: RankMessages, takes: Ints, tail: Ints) -> None:
    """Set `tail` to the least time from each message's end to the makespan; message m takes ``takes[m]``."""
    for m in range(len(takes) - 1, -1, -1):
        for i in range(messages.wait_of[m], messages.wait_of[m + 1]):
            before = messages.wait[i]
            tail[before] = max(tail[before], takes[m] + tail[m])


@inner
def _copy_paths(flows: Flows, paths: HostPaths, order: Ints, near: HostPaths) -> None:
    """Copy the path of each flow under a rank order to `near`, with the times for the flow's message size.

    Path f of `near` is that of flow f. Flows use few of all pairs of hosts, so the copies fit into the
    processor's cache, unlike all paths.
    """
    hops = holds = 0
    for f in range(flows.src.size):
        kind, pair = flows.kind[f], order[flows.src[f]] * order.size + order[flows.dst[f]]
        near.path_of[f] = hops
        for hop in range(paths.path_of[pair], paths.path_of[pair + 1]):
            link = paths.link[hop]
            near.hold_of[hops] = holds
            near.takes[0, hops] = paths.takes[kind, link]
            for h in range(paths.hold_of[link], paths.hold_of[link + 1]):
                near.resource[holds] = paths.resource[h]
                near.held[0, holds] = paths.held[kind, h]
                near.before[0, holds] = paths.before[kind, h]
                near.after[0, holds] = paths.after[kind, h]
                holds += 1
            hops += 1
    near.path_of[flows.src.size] = hops
    near.hold_of[hops] = holds


@compiled
def timed(
    messages: RankMessages,
    paths: HostPaths,
    relaxed: Relaxed,
    order: Ints,
    cutoff: int,
    room: Room,
    is_relaxed: bool = False,
) -> int:
    """Makespan of the algorithm under a rank order, by serial schedule generation in the order of messages.

    A message starts once its data has arrived and every resource of its link is free for the whole of its
    hold. Each resource serves messages in the algorithm's order. A message over several links is stored and
    forwarded at each.

    - `order`, (num_ranks,) int64: Host of each rank, or -1 if open. With open ranks the result is a lower
      bound over all their placements, as open ranks only lower the start times.
    - `cutoff`: Return `TOO_LONG` once the makespan must exceed it.
    - `room`: Work arrays. If there are flows, every rank has a host.
    - `is_relaxed`: Relax the model: a message holds each of its resources as soon as that one is free. The
      result is then a lower bound on the makespan.
    """
    end, free, hosts = room.end, room.free, order.size
    ports = free.size - 2 * hosts
    finish = 0
    by_flow = relaxed.flows.src.size > 0
    if by_flow:
        _copy_paths(relaxed.flows, paths, order, room.near)
        paths = room.near
    for r in range(free.size):
        free[r] = 0
    for m in range(messages.src.size):
        start = 0
        for i in range(messages.wait_of[m], messages.wait_of[m + 1]):
            start = max(start, end[messages.wait[i]])
        src = dst = kind = a = b = 0
        pair = messages.flow[m]
        if not by_flow:
            src, dst, kind = messages.src[m], messages.dst[m], messages.kind[m]
            a, b = order[src], order[dst]
            pair = a * hosts + b
        if a >= 0 and b >= 0:
            for hop in range(paths.path_of[pair], paths.path_of[pair + 1]):
                link = paths.link[hop]
                until = start + paths.takes[kind, link]
                for h in range(paths.hold_of[link], paths.hold_of[link + 1]):
                    r = paths.resource[h]
                    if is_relaxed:
                        free[r] = max(free[r], start) + paths.held[kind, h]
                        until = max(until, free[r])
                    else:
                        until = max(until, free[r] + paths.before[kind, h])
                if not is_relaxed:
                    for h in range(paths.hold_of[link], paths.hold_of[link + 1]):
                        free[paths.resource[h]] = until - paths.after[kind, h]
                start = until
        else:
            takes = relaxed.anywhere[kind]
            if a >= 0:
                takes = relaxed.from_host[kind, a]
            elif b >= 0:
                takes = relaxed.to_host[kind, b]
            out, into = ports + src, ports + hosts + dst
            # The minimum time at a port is 0 if hosts have no ports; then a message delays no other.
            if relaxed.port_out[kind]:
                free[out] = max(free[out], start) + relaxed.port_out[kind]
            if relaxed.port_in[kind]:
                free[into] = max(free[into], start) + relaxed.port_in[kind]
            start = max(start + takes, free[out], free[into])
        end[m] = start
        if start + relaxed.tail[m] > cutoff:
            return TOO_LONG
        finish = max(finish, start)
    return finish


@inner
def _exceeds(flows: Flows, paths: HostPaths, order: Ints, cutoff: int, free: Ints) -> bool:
    """True if a resource is held for longer than `cutoff` in total, so that the makespan exceeds it, too.

    - `free`: Work array; busy time of each resource.
    """
    for r in range(free.size):
        free[r] = 0
    for f in range(flows.src.size):
        kind, number = flows.kind[f], flows.number[f]
        pair = order[flows.src[f]] * order.size + order[flows.dst[f]]
        for hop in range(paths.path_of[pair], paths.path_of[pair + 1]):
            link = paths.link[hop]
            for h in range(paths.hold_of[link], paths.hold_of[link + 1]):
                r = paths.resource[h]
                free[r] += number * paths.held[kind, h]  # all before the makespan: a hold ends with its send
                if free[r] > cutoff:
                    return True
    return False


@inner
def _copy(source: Ints, target: Ints) -> None:
    for i in range(source.size):
        target[i] = source[i]


@inner
def _moved(order: Ints, trial: Ints, draw: Floats) -> bool:
    """Set `trial` to the order with one random change; False if the draw gives no change.

    The changes: swap two ranks (half of all draws), reverse a segment, rotate a segment, or swap two aligned
    blocks whose length is a power of two.
    """
    _copy(order, trial)
    count = order.size
    kind, part = draw[0], draw[3]
    i, j = int(draw[1] * count), int(draw[2] * count)
    low, high = min(i, j), max(i, j) + 1
    if i == j:
        return False
    if kind < 0.5:
        trial[i], trial[j] = order[j], order[i]
    elif kind < 0.65:
        for k in range(high - low):
            trial[low + k] = order[high - 1 - k]
    elif kind < 0.85:
        shift = 1 + int(part * (high - low - 1))
        for k in range(high - low):
            trial[low + k] = order[low + (shift + k) % (high - low)]
    else:
        length = 1
        while 4 * length <= count and part < 0.7:
            length, part = 2 * length, part / 0.7
        i, j = i // length * length, j // length * length
        if i == j or max(i, j) + length > count:
            return False
        for k in range(length):
            trial[i + k], trial[j + k] = order[j + k], order[i + k]
    return True


@compiled
def anneal(
    messages: RankMessages,
    paths: HostPaths,
    relaxed: Relaxed,
    orders: Ints,
    numbers: Ints,
    draws: Floats,
    warmth: float,
    room: Room,
) -> int:
    """Makespan of the best placement found by simulated annealing, in ticks.

    - `orders`, (3, num_ranks) int64: Initial placement, replaced by the best one; work space for the current
      and the next one.
    - `numbers`, (2,) int64: Stop signal (nonzero ends the search); number of placements tried.
    - `draws`, (tries, 5) float64: Random numbers from 0 to 1.
    - `warmth`: Initial temperature, as a part of the current makespan; it falls linearly to 0.
    - `room`: Work arrays of `timed`.
    """
    best_order, order, trial = orders[0], orders[1], orders[2]
    _copy(best_order, order)
    present = timed(messages, paths, relaxed, order, TOO_LONG, room, False)
    best, tries = present, len(draws)
    for t in range(tries):
        numbers[1] = t
        if numbers[0]:
            break
        if not _moved(order, trial, draws[t]):
            continue
        heat = warmth * present * (1.0 - t / tries)
        limit = present - int(heat * np.log(1.0 - draws[t, 4]))
        if _exceeds(relaxed.flows, paths, trial, limit, room.free):
            continue
        found = timed(messages, paths, relaxed, trial, limit, room, False)
        if found > limit:
            continue
        _copy(trial, order)
        present = found
        if found < best:
            best = found
            _copy(trial, best_order)
    return best


@compiled
def prove(
    messages: RankMessages,
    paths: HostPaths,
    relaxed: Relaxed,
    orders: Ints,
    numbers: Ints,
    best: int,
    room: Room,
) -> int:
    """Makespan of the best placement, by depth-first branch and bound over the host of each rank in turn.

    - `orders`, (3, num_ranks) int64: Best known placement, replaced by a better one; work space.
    - `numbers`, (2,) int64: Stop signal (nonzero ends the search); set to 1 if the search was completed.
    - `best`: Makespan of the best known placement, in ticks.
    - `room`: Work arrays of `timed`.
    """
    best_order, order, tried = orders[0], orders[1], orders[2]
    count = order.size
    depth = 0
    for r in range(count):
        order[r] = tried[r] = -1
    while depth >= 0 and not numbers[0]:
        order[depth] = -1
        host, r = tried[depth] + 1, 0
        while r < depth:  # the next host that no earlier rank has
            host, r = (host + 1, 0) if order[r] == host else (host, r + 1)
        if host == count:
            tried[depth] = -1
            depth -= 1
            continue
        tried[depth] = order[depth] = host
        found = timed(messages, paths, relaxed, order, best - 1, room, False)
        if found >= best:
            continue
        if depth < count - 1:
            depth += 1
            continue
        best = found
        _copy(order, best_order)
    numbers[1] = depth < 0
    return best
