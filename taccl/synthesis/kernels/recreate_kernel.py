"""The recreate step, which completes trees, and inserts each send directly into the resource calendar."""

from __future__ import annotations

import numpy as np

from taccl._internal.kernels import inner
from taccl.synthesis.kernels.events import pop, push, tidy
from taccl.synthesis.kernels.improvement_state import FAR, NEVER, NONE, SearchState, Work, draw, reaches
from taccl.synthesis.kernels.timing_kernel import book, charge, nearest, rebook

# Index names below: t tree, r rank, e link, a arc, k kind, m send, h hold, q resource.


@inner
def recreate(w: Work, now: SearchState) -> bool:
    """Complete all ruined trees, in random order; false if a target cannot be reached."""
    arcs, room = w.arcs, w.room
    count = room.queue[0]
    for i in range(count - 1, 0, -1):
        j = draw(room, i + 1)
        room.ruined[i], room.ruined[j] = room.ruined[j], room.ruined[i]
    room.random[1] = room.random[0]
    most = 1
    for q in range(len(now.load)):
        most = max(most, now.load[q])
    weight = (0.0, 0.25, 1.0, 4.0)[draw(room, 4)]
    steepness = (0.0, 1.0, 2.0, 4.0)[draw(room, 4)]
    for q in range(len(now.load)):
        room.price[q] = weight * (now.load[q] / most) ** steepness
    # Drop removed sends from the order first, as new sends may reuse their numbers.
    size = 0
    for i in range(now.size[0]):
        if now.carries[now.order[i]]:
            now.order[size] = now.order[i]
            size += 1
    now.size[0] = size
    if arcs.most_merged > 1:
        room.first[:] = NONE
        for i in range(now.size[0] if draw(room, 2) else 0):
            m = now.order[i]
            if arcs.may_merge[now.link[m]]:
                a = now.kind[m] * arcs.num_links + now.link[m]
                room.following[m] = room.first[a]
                room.first[a] = m
    noise = (0, 0, 1, 3)[draw(room, 4)]
    reached = True
    for i in range(count):
        reached = reached and _grow(w, now, room.ruined[i], noise)
    return reached


@inner
def _pivot(w: Work, now: SearchState, t: int) -> int:
    """Time at which the root of a broadcast tree has its chunk, or the sum of a reduction tree is due."""
    if w.trees.partner[t] < 0:
        return 0 if w.trees.kind[t] == 0 else now.size[2]
    at = at_root(w, now, w.trees.partner[t])
    if -NEVER < at < NEVER:
        return int(at + w.trees.update[t] if w.trees.kind[t] == 0 else at - w.trees.update[t])
    return int(now.size[2] * (3 + draw(w.room, 3)) // 8)


@inner
def at_root(w: Work, now: SearchState, t: int) -> int:
    """End of a reduction's last send to its root, or start of a broadcast's first send from its root.

    Without such a send: -`NEVER` for a reduction, `NEVER` for a broadcast.
    """
    at = -NEVER if w.trees.kind[t] == 1 else NEVER
    for d in range(w.arcs.num_ranks):
        if reaches(w, now, t, now.root[t], d):
            m = now.send[t, d]
            at = max(at, now.end[m]) if w.trees.kind[t] == 1 else min(at, now.start[m])
    return int(at)


@inner
def _grow(w: Work, now: SearchState, t: int, noise: int) -> bool:
    """Extend a tree to all its targets, those of least cost first; false if one cannot be reached."""
    arcs, trees, room = w.arcs, w.trees, w.room
    n, k = arcs.num_ranks, trees.kind[t]
    pivot = _pivot(w, now, t)
    is_open = trees.is_open[trees.open_class[t]]
    count, left = 0, 0
    for r in range(n):
        room.cost[r] = FAR
        room.paid[r] = 0.0
        root = now.root[t]
        is_origin = trees.is_origin[t, r] if root < 0 else r == root
        room.is_in[r] = is_origin or now.way[t, r] >= 0
        if room.is_in[r]:
            at = pivot
            if not is_origin:
                at = now.end[now.send[t, r]] if k == 0 else now.start[now.send[t, r]]
            room.when[r] = at if k == 0 else -at
            room.cost[r] = float(room.when[r])
            count = push(room.heap_cost, room.heap_rank, count, room.cost[r], r)
        elif trees.is_target[t, r]:
            left += 1
    while left:
        if count == 0:
            return False
        key = room.heap_cost[0]
        r = pop(room.heap_cost, room.heap_rank, count)
        count -= 1
        if key != room.cost[r]:
            continue
        if trees.is_target[t, r] and not room.is_in[r]:
            # Meanwhile the tree may have taken time slots of this path, so another path may be cheaper now.
            if _cost(w, now, t, room.came[r], noise) > key:
                room.cost[r] = FAR
                for i in range(arcs.in_of[k * n + r], arcs.in_of[k * n + r + 1]):
                    a = arcs.into[i]
                    x = arcs.tail[a]
                    is_passed = room.is_in[x] or not trees.is_target[t, x]
                    if is_passed and room.cost[x] < FAR and is_open[a - k * arcs.num_links]:
                        cost = _cost(w, now, t, a, noise)
                        if cost < room.cost[r]:
                            room.cost[r] = cost
                            room.came[r] = a
                            room.when[r] = room.reach[0]
                            room.paid[r] = cost - room.when[r]
                if room.cost[r] > key:
                    if room.cost[r] < FAR:
                        count = push(room.heap_cost, room.heap_rank, count, room.cost[r], r)
                    continue
            reached, length = _attach(w, now, t, r)
            if length == 0:
                return False
            left -= reached
            for i in range(length):
                x = room.queue[1 + i]
                count = push(room.heap_cost, room.heap_rank, count, room.cost[x], x)
            continue
        for i in range(arcs.out_of[k * n + r], arcs.out_of[k * n + r + 1]):
            a = arcs.out[i]
            e = a - k * arcs.num_links
            if not is_open[e]:
                continue
            quickest = room.cost[r] + arcs.alpha[e] + trees.units[t] * arcs.beta[e]
            is_new = False
            for x in range(arcs.head_of[a], arcs.head_of[a + 1]):
                d = arcs.head[x]
                if not room.is_in[d] and quickest < room.cost[d]:
                    is_new = True
            if not is_new:
                continue
            cost = _cost(w, now, t, a, noise)
            for x in range(arcs.head_of[a], arcs.head_of[a + 1]):
                d = arcs.head[x]
                if not room.is_in[d] and cost < room.cost[d]:
                    room.cost[d] = cost
                    room.came[d] = a
                    room.when[d] = room.reach[0]
                    room.paid[d] = cost - room.when[d]
                    if count + 2 * n >= len(room.heap_cost):
                        count = tidy(room.heap_cost, room.heap_rank, room.cost, count)
                    count = push(room.heap_cost, room.heap_rank, count, cost, d)
    return True


@inner
def _cost(w: Work, now: SearchState, t: int, a: int, noise: int) -> float:
    """Cost of reaching the heads of an arc: time, plus a price for its resources.

    Sets `reach` to the time at which they are reached, and to the send that is joined (-1 for a new one).
    """
    arcs, trees, room = w.arcs, w.trees, w.room
    k, units = trees.kind[t], trees.units[t]
    e = a - k * arcs.num_links
    tail = arcs.tail[a]
    if k == 1:
        # Ranks in the tree contribute already, so a send from one of them would count its data twice.
        for x in range(arcs.head_of[a], arcs.head_of[a + 1]):
            if room.is_in[arcs.head[x]]:
                return FAR
    m = _carrier(w, now, t, a)
    if m >= 0:
        room.reach[0], room.reach[1] = now.end[m], m
        return float(now.end[m])
    at = room.when[tail]
    took = arcs.alpha[e] + units * arcs.beta[e]
    if k == 0:
        when = nearest(arcs, now.calendar, e, units, at, False, False) + took
    else:
        when = -nearest(arcs, now.calendar, e, units, -at - took, False, True)
    joined = NONE
    if arcs.may_merge[e] and arcs.most_merged > 1:
        m = room.first[a]
        while m >= 0:
            if 0 < now.carries[m] < arcs.most_merged and now.link[m] == e and now.kind[m] == k:
                begin, end = (now.start[m], now.end[m]) if k == 0 else (-now.end[m], -now.start[m])
                end += units * arcs.beta[e]
                if begin >= at and end <= when:
                    when, joined = end, m
            m = room.following[m]
    room.reach[0], room.reach[1] = when, joined
    price = 0.0
    for h in range(arcs.hold_of[e], arcs.hold_of[e + 1]):
        alpha = arcs.hold_alpha[h] if joined < 0 else 0
        price += (alpha + units * arcs.hold_beta[h]) * room.price[arcs.resource[h]]
    if noise:
        # Noise depends on arc and tree alone within a turn, as new noise would change costs at each visit.
        mixed = (np.uint64(a) * np.uint64(2654435761) + np.uint64(t) * np.uint64(40503)) ^ room.random[1]
        part = ((mixed * np.uint64(2685821657736338717)) >> np.uint64(40)) / 16777216.0
        price += 0.5 * noise * part * took
    heads = arcs.head_of[a + 1] - arcs.head_of[a]
    return float(when + (0.0 if room.is_in[tail] else room.paid[tail]) + price / heads)


@inner
def _carrier(w: Work, now: SearchState, t: int, a: int) -> int:
    """Send that brings a tree's chunk over a multicast arc to some heads already; -1 if there is none.

    It reaches the other heads, too, so a second send would be redundant.
    """
    arcs, k = w.arcs, w.trees.kind[t]
    e = a - k * arcs.num_links
    if k == 0 and arcs.head_of[a + 1] - arcs.head_of[a] > 1:
        for x in range(arcs.head_of[a], arcs.head_of[a + 1]):
            if now.way[t, arcs.head[x]] == e:
                return int(now.send[t, arcs.head[x]])
    return NONE


@inner
def _attach(w: Work, now: SearchState, t: int, r: int) -> tuple[int, int]:
    """Book the sends on the path to a rank; returns the number of targets and of ranks added (in `queue`)."""
    arcs, trees, room = w.arcs, w.trees, w.room
    k = trees.kind[t]
    length = 0
    x = r
    while not room.is_in[x]:
        if length >= arcs.num_ranks:
            return 0, 0
        room.path[length] = x
        length += 1
        x = arcs.tail[room.came[x]]
    found = listed = 0
    for i in range(length - 1, -1, -1):
        x = room.path[i]
        if room.is_in[x]:
            continue
        a = room.came[x]
        e = a - k * arcs.num_links
        end, m = _book_over(w, now, t, a)
        if m < 0:
            return 0, 0
        for j in range(arcs.head_of[a], arcs.head_of[a + 1]):
            d = arcs.head[j]
            if room.is_in[d]:
                continue
            now.way[t, d], now.send[t, d] = e, m
            room.is_in[d] = True
            room.when[d] = end
            room.cost[d] = float(end)
            room.paid[d] = 0.0
            found += trees.is_target[t, d]
            listed += 1
            room.queue[listed] = d
    return found, listed


@inner
def _book_over(w: Work, now: SearchState, t: int, a: int) -> tuple[int, int]:
    """Book a send of a tree's chunk over an arc, or add the chunk to a send.

    Returns the time at which the heads are reached, and the send; -1 if all send numbers are used, or if the
    tree contains a source of a reduction link already.
    """
    arcs, room = w.arcs, w.room
    k, units = w.trees.kind[t], w.trees.units[t]
    e = a - k * arcs.num_links
    if _cost(w, now, t, a, 0) == FAR:
        return 0, NONE
    end, m = room.reach[0], room.reach[1]
    if m >= 0 and m == _carrier(w, now, t, a):
        return int(end), int(m)
    took = arcs.alpha[e] + units * arcs.beta[e]
    if m < 0:
        if now.size[1] == 0:
            return 0, NONE
        now.size[1] -= 1
        m = now.spare[now.size[1]]
        now.size[3] = max(now.size[3], m + 1)
        now.link[m], now.kind[m], now.carries[m], now.units[m] = e, k, 0, 0
        now.start[m], now.end[m] = (end - took, end) if k == 0 else (-end, took - end)
        now.order[now.size[0]] = m
        now.size[0] += 1
        book(arcs, now.calendar, e, units, now.start[m], m, False)
        if arcs.may_merge[e] and arcs.most_merged > 1:
            room.following[m] = room.first[a]
            room.first[a] = m
    else:
        charge(arcs, now, e, now.units[m], -1)
    now.member[m, now.carries[m]] = t
    now.carries[m] += 1
    now.units[m] += units
    charge(arcs, now, e, now.units[m], 1)
    if now.carries[m] > 1:
        if k == 0:
            now.end[m] = end
            rebook(w, now, m)
        else:  # contributions that the send waits for may end later, so all sends are re-timed
            room.reach[2] = 1
    return int(end), int(m)
