"""Exact times of crossings, once rounds say which comes before which; compiled.

In the order of their rounds they start as early as what they wait for lets them, then backwards in time, then
forwards again (Li and Willis, EJOR 56, 1992).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.kernels import compiled
from taccl.synthesis.compiled.events import pop, push

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.synthesis.crossing.crossings import Crossings
    from taccl.synthesis.crossing.rounds import Plan

__all__ = ["Times", "make_times", "near_node", "near_rank", "pin", "root_rank", "time_crossings"]

_NEVER, _FOREVER = 1 << 60, 1e300


class Times(NamedTuple):
    """What crossings wait for, and room for working out their times.

    Parameters
    ----------
    before_of, before, after_of, after : (num_crossings + 1,), (num_arcs,) int64
        Crossings that wait for crossing i are ``after[after_of[i]:after_of[i + 1]]``; `before`, what it waits
        for.
    before_delay, after_delay : (num_arcs,) int64
        For how long they wait beyond its end.
    arc_from, arc_to, arc_delay : (num_arcs,) int64
        The same as a list.
    head : (num_crossings,) int64
        Ticks before a crossing can start, at least.
    start, rest : (num_crossings,) int64
        Forwards, when each starts; backwards, how long it is from its start until all ends.
    soonest, release : (num_crossings,), (num_resources,) int64
        When each can start, and each resource is free.
    num_started : (num_nodes,) int64
        Sums that have left a node; backwards in time, chunks that have come in.
    last, num_last : (num_nodes, num_sums), (num_nodes,) int64
        The latest of the others, in order.
    key : (num_crossings,) float64
        What crossings are ordered by.
    order, heap_key, heap_what : (num_crossings,)
    origin_key : (num_chunks,) float64
        The least key of a crossing out of the node where a chunk starts.
    """

    before_of: NDArray[np.int64]
    before: NDArray[np.int64]
    before_delay: NDArray[np.int64]
    after_of: NDArray[np.int64]
    after: NDArray[np.int64]
    after_delay: NDArray[np.int64]
    arc_from: NDArray[np.int64]
    arc_to: NDArray[np.int64]
    arc_delay: NDArray[np.int64]
    head: NDArray[np.int64]
    start: NDArray[np.int64]
    rest: NDArray[np.int64]
    soonest: NDArray[np.int64]
    release: NDArray[np.int64]
    num_started: NDArray[np.int64]
    last: NDArray[np.int64]
    num_last: NDArray[np.int64]
    key: NDArray[np.float64]
    order: NDArray[np.int64]
    heap_key: NDArray[np.float64]
    heap_what: NDArray[np.int64]
    origin_key: NDArray[np.float64]


def make_times(x: Crossings) -> Times:
    """Room for working out the times of crossings."""
    count = 2 * x.num_chunks * x.num_nodes
    arcs = count * x.num_nodes + 1

    def zeros(size: int) -> NDArray[np.int64]:
        return np.zeros(size, np.int64)

    return Times(
        zeros(count + 1), zeros(arcs), zeros(arcs), zeros(count + 1), zeros(arcs), zeros(arcs),
        zeros(arcs), zeros(arcs), zeros(arcs), zeros(count), zeros(count), zeros(count), zeros(count),
        zeros(x.num_resources), zeros(x.num_nodes), np.zeros(x.ramp.shape, np.int64), zeros(x.num_nodes),
        np.zeros(count), zeros(count), np.zeros(count), zeros(count), np.zeros(x.num_chunks),
    )  # fmt: skip


# In all below: c chunk, n node, e crossing link, h hold, q resource, i crossing.


@compiled
def time_crossings(x: Crossings, plan: Plan, t: Times, turns: int) -> int:
    """Start all in the order of ``t.key``, forwards and backwards by turns; when it ends.

    The starts are filled in.
    """
    _join(x, plan, t)
    _set_heads(x, plan, t)
    best = _NEVER
    for _ in range(turns):
        is_better = False
        for direction in range(2):
            is_backward = direction == 1
            count = _sort(plan, t)
            finish = _start_all(x, plan, t, count, is_backward)
            for k in range(count):
                i = t.order[k]
                if is_backward:
                    t.rest[i] += _took(x, plan, i)
                t.key[i] = -t.rest[i] if is_backward else -t.start[i] - _took(x, plan, i)
                if finish < best:
                    plan.start[i] = finish - t.rest[i] if is_backward else t.start[i]
            is_better |= finish < best
            best = min(best, finish)
        if not is_better:
            break
    return best


@compiled
def pin(x: Crossings, plan: Plan, t: Times) -> int:
    """Start copies as early and sums as late as that allows, in the order of their starts; when it ends."""
    for i in range(len(plan.link)):
        t.key[i] = plan.start[i]
    finish = time_crossings(x, plan, t, 1)
    for i in range(len(plan.link)):
        t.key[i] = t.start[i]
    count = _sort(plan, t)
    for q in range(x.num_resources):
        t.release[q] = _NEVER
    for k in range(count - 1, -1, -1):
        i = t.order[k]
        e, took = plan.link[i], _took(x, plan, i)
        units = x.units[(i // x.num_nodes) % x.num_chunks]
        start = t.start[i]
        if i < x.num_chunks * x.num_nodes:
            latest = _NEVER
            for a in range(t.after_of[i], t.after_of[i + 1]):
                latest = min(latest, plan.start[t.after[a]] - t.after_delay[a] - took)
            for h in range(x.hold_of[e], x.hold_of[e + 1]):
                length = x.hold_alpha[h] + units * x.hold_beta[h]
                lead = max(took - length, 0) if x.hold_receives[h] else 0
                latest = min(latest, t.release[x.hold_resource[h]] - length - lead)
            if latest < _NEVER >> 1:
                start = latest
        plan.start[i] = start
        for h in range(x.hold_of[e], x.hold_of[e + 1]):
            length = x.hold_alpha[h] + units * x.hold_beta[h]
            t.release[x.hold_resource[h]] = start + (max(took - length, 0) if x.hold_receives[h] else 0)
    return finish


@compiled
def root_rank(x: Crossings, plan: Plan, c: int) -> int:
    """The rank where a chunk starts, or its sum is complete, as most of its crossings meet there; or -1."""
    if x.meets[c] >= 0:
        return int(x.meets[c])
    best, most = -1, 0
    for k in range(2 * x.num_nodes):
        rank = _end_at_root(x, plan, c, k)
        if rank < 0:
            continue
        meeting = 0
        for other in range(2 * x.num_nodes):
            meeting += _end_at_root(x, plan, c, other) == rank
        if meeting > most:
            best, most = rank, meeting
    return best


@compiled
def _end_at_root(x: Crossings, plan: Plan, c: int, k: int) -> int:
    """The rank of the root's node where a crossing comes in, or (the second half) leaves; or -1."""
    t, n = k // x.num_nodes, k % x.num_nodes
    e = plan.link[(t * x.num_chunks + c) * x.num_nodes + n]
    if e < 0 or near_node(x, e, t) != plan.root[c]:
        return -1
    return near_rank(x, e, t)


@compiled
def near_node(x: Crossings, e: int, t: int) -> int:
    """The node at that end of a link which is nearer to the root: for a sum (t = 0) where it ends."""
    return int(x.src_node[e] if t else x.dst_node[e])


@compiled
def near_rank(x: Crossings, e: int, t: int) -> int:
    """The rank at that end; for the other kind of crossings, the rank at the other end."""
    return int(x.src[e] if t else x.dst[e])


@compiled
def _took(x: Crossings, plan: Plan, i: int) -> int:
    e = plan.link[i]
    return int(x.alpha[e] + x.beta[e] * x.units[(i // x.num_nodes) % x.num_chunks])


@compiled
def _join(x: Crossings, plan: Plan, t: Times) -> None:
    """Find which crossing waits for which, and for how long."""
    half = x.num_chunks * x.num_nodes
    arcs = 0
    for i in range(2 * half):
        e = plan.link[i]
        if e < 0:
            continue
        way, c = i // half, (i // x.num_nodes) % x.num_chunks
        n = near_node(x, e, way)
        first = c * x.num_nodes
        if n != plan.root[c]:
            other = way * half + first + n
            f = plan.link[other]
            t.arc_from[arcs], t.arc_to[arcs] = (other, i) if way else (i, other)
            t.arc_delay[arcs] = x.hop * (near_rank(x, e, way) != near_rank(x, f, 1 - way))
            arcs += 1
        elif way:
            meets = root_rank(x, plan, c)
            for other in range(first, first + x.num_nodes):
                f = plan.link[other]
                if f >= 0 and x.dst_node[f] == n:
                    t.arc_from[arcs], t.arc_to[arcs] = other, i
                    t.arc_delay[arcs] = x.hop * ((x.dst[f] != meets) + (x.src[e] != meets))
                    arcs += 1
    _list_arcs(t, arcs, t.arc_from, t.arc_to, t.after_of, t.after, t.after_delay)
    _list_arcs(t, arcs, t.arc_to, t.arc_from, t.before_of, t.before, t.before_delay)


@compiled
def _list_arcs(
    t: Times,
    arcs: int,
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    first: NDArray[np.int64],
    others: NDArray[np.int64],
    delays: NDArray[np.int64],
) -> None:
    """Put arcs in the order of where they begin."""
    for i in range(len(first)):
        first[i] = 0
    for a in range(arcs):
        first[begin[a] + 1] += 1
    for i in range(len(first) - 1):
        first[i + 1] += first[i]
    for a in range(arcs):
        others[first[begin[a]]], delays[first[begin[a]]] = end[a], t.arc_delay[a]
        first[begin[a]] += 1
    for i in range(len(first) - 1, 0, -1):
        first[i] = first[i - 1]
    first[0] = 0


@compiled
def _set_heads(x: Crossings, plan: Plan, t: Times) -> None:
    """A rank that chunks start at sends one after another to where they leave, in the order of ``t.key``."""
    half = x.num_chunks * x.num_nodes
    for i in range(len(plan.link)):
        t.head[i] = 0
    for c in range(x.num_chunks):
        t.origin_key[c] = _FOREVER
        for n in range(x.num_nodes):
            i = half + c * x.num_nodes + n
            if plan.link[i] >= 0 and x.src_node[plan.link[i]] == plan.root[c]:
                t.origin_key[c] = min(t.origin_key[c], t.key[i])
    for c in range(x.num_chunks):
        if x.origin[c] < 0:
            continue
        earlier = 1
        for other in range(x.num_chunks):
            if x.origin[other] == x.origin[c]:
                earlier += t.origin_key[other] < t.origin_key[c]
                earlier += t.origin_key[other] == t.origin_key[c] and other < c
        for n in range(x.num_nodes):
            i = half + c * x.num_nodes + n
            e = plan.link[i]
            if e >= 0 and x.src_node[e] == plan.root[c] and x.src[e] != x.origin[c]:
                t.head[i] = earlier * x.hop


@compiled
def _sort(plan: Plan, t: Times) -> int:
    """Put what crosses into the order of ``t.key``; how many there are."""
    count = 0
    for i in range(len(plan.link)):
        if plan.link[i] >= 0:
            push(t.heap_key, t.heap_what, count, t.key[i], i)
            count += 1
    for k in range(count):
        t.order[k] = pop(t.heap_key, t.heap_what, count - k)
    return count


@compiled
def _is_counted(x: Crossings, i: int, is_backward: bool) -> bool:
    """Whether a crossing takes its turn behind the sums of its node, or (backwards) before its copies."""
    half = x.num_chunks * x.num_nodes
    c, n = (i // x.num_nodes) % x.num_chunks, i % x.num_nodes
    if is_backward:
        return bool(i >= half and x.is_copied[c, n])
    return bool(i < half and x.is_summed[c, n])


@compiled
def _start_all(
    x: Crossings,
    plan: Plan,
    t: Times,
    count: int,
    is_backward: bool,
) -> int:
    """Start one crossing after another, in order, each as early as may be; when all ends."""
    first = t.before_of if is_backward else t.after_of
    others = t.before if is_backward else t.after
    delays = t.before_delay if is_backward else t.after_delay
    start = t.rest if is_backward else t.start
    for q in range(x.num_resources):
        t.release[q] = 0
    for n in range(x.num_nodes):
        t.num_started[n] = 0
    for k in range(count):
        i = t.order[k]
        t.soonest[i] = 0 if is_backward else t.head[i]
    for k in range(count):
        i = t.order[k]
        e, took, n = plan.link[i], _took(x, plan, i), i % x.num_nodes
        units = x.units[(i // x.num_nodes) % x.num_chunks]
        time = t.soonest[i]
        if _is_counted(x, i, is_backward):
            time = max(time, x.ramp[n, min(t.num_started[n], x.ramp.shape[1] - 1)])
            t.num_started[n] += 1
        for h in range(x.hold_of[e], x.hold_of[e + 1]):
            length = x.hold_alpha[h] + units * x.hold_beta[h]
            lead = max(took - length, 0) if x.hold_receives[h] != is_backward else 0
            time = max(time, t.release[x.hold_resource[h]] - lead)
        start[i] = time
        for h in range(x.hold_of[e], x.hold_of[e + 1]):
            length = x.hold_alpha[h] + units * x.hold_beta[h]
            lead = max(took - length, 0) if x.hold_receives[h] != is_backward else 0
            t.release[x.hold_resource[h]] = time + lead + length
        for a in range(first[i], first[i + 1]):
            t.soonest[others[a]] = max(t.soonest[others[a]], time + took + delays[a])
    return _finish(x, plan, t, count, start, is_backward)


@compiled
def _finish(
    x: Crossings, plan: Plan, t: Times, count: int, start: NDArray[np.int64], is_backward: bool
) -> int:
    """When all ends: the last, last but one, ... that comes in leaves time for one, two, ... to be copied."""
    finish = 0
    for n in range(x.num_nodes):
        t.num_last[n] = 0
    for k in range(count):
        i = t.order[k]
        n, end = i % x.num_nodes, start[i] + _took(x, plan, i)
        finish = max(finish, end + (t.head[i] if is_backward else 0))
        if not _is_counted(x, i, not is_backward):
            continue
        place = t.num_last[n]
        if place < t.last.shape[1]:
            t.num_last[n] += 1
        elif end <= t.last[n, place - 1]:
            continue
        else:
            place -= 1
        while place > 0 and t.last[n, place - 1] < end:
            t.last[n, place] = t.last[n, place - 1]
            place -= 1
        t.last[n, place] = end
    for n in range(x.num_nodes):
        for k in range(t.num_last[n]):
            finish = max(finish, t.last[n, k] + x.ramp[n, k])
    return int(finish)
