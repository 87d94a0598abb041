"""The compiled step from crossings to all sends: what is sent inside every node, and when.

First come the sends between two crossings of a chunk, from the rank where it comes in to that where it goes
on. Then sums are made, those first that leave soonest; then, backwards in time, copies, those first that came
in last. Backwards copies look like sums, so that both are found alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.kernels import compiled
from taccl.synthesis.compiled.events import pop, push
from taccl.synthesis.crossing.inside_nodes import book, earliest, gather
from taccl.synthesis.crossing.times import near_node, near_rank, root_rank

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.synthesis.crossing.crossings import Crossings
    from taccl.synthesis.crossing.inside_nodes import Booked, Inside
    from taccl.synthesis.crossing.rounds import Plan

__all__ = ["CHUNK", "LINK", "REDUCES", "START", "Rows", "list_sends", "make_rows"]

#: Columns of the answer.
CHUNK, LINK, REDUCES, START = range(4)
_NEVER = 1 << 60
_NONE = -1


class Rows(NamedTuple):
    """All sends, and room for finding them.

    Parameters
    ----------
    sends : (most_sends, 4) int64
        Chunk, link of the topology, whether it reduces, and the start in ticks.
    num_sends : (1,) int64
    hops : (num_crossings, 4) int64
        Of sends between two crossings: chunk, source, destination, the earliest start.
    is_done : (2, num_chunks, num_ranks) bool
        Whether such a send has a rank's part of a sum (0), or its copy (1).
    meets : (num_chunks,) int64
        The rank where a chunk starts, or its sum is complete.
    heap_key, heap_what : (num_crossings,)
    """

    sends: NDArray[np.int64]
    num_sends: NDArray[np.int64]
    hops: NDArray[np.int64]
    is_done: NDArray[np.bool_]
    meets: NDArray[np.int64]
    heap_key: NDArray[np.float64]
    heap_what: NDArray[np.int64]


def make_rows(x: Crossings, inside: Inside) -> Rows:
    """Room for all sends."""
    count, num_ranks = 2 * x.num_chunks * x.num_nodes, len(inside.link)
    return Rows(
        np.zeros((2 * x.num_chunks * num_ranks + count, 4), np.int64),
        np.zeros(1, np.int64),
        np.zeros((count, 4), np.int64),
        np.zeros((2, x.num_chunks, num_ranks), bool),
        np.zeros(x.num_chunks, np.int64),
        np.zeros(count),
        np.zeros(count, np.int64),
    )


# In all below: c chunk, n and m nodes, a and b ranks, e crossing link, i crossing; t is 0 for sums, and 1 for
# copies, of which all is seen backwards in time.


@compiled
def list_sends(
    x: Crossings,
    inside: Inside,
    plan: Plan,
    booked: Booked,
    rows: Rows,
    finish: int,
    jitter: NDArray[np.float64],
) -> int:
    """Fill in all sends of a plan; how many there are.

    Parameters
    ----------
    finish : int
        Ticks; when the last copy is to be there.
    jitter : (num_ranks,) float64
        As in `gather`.
    """
    for q in range(len(booked.taken)):
        booked.taken[q] = 0
    rows.num_sends[0] = 0
    for i in range(len(plan.link)):
        if plan.link[i] >= 0:
            c = (i // x.num_nodes) % x.num_chunks
            e = x.link[plan.link[i]]
            book(inside, booked, e, x.units[c], plan.start[i], False)
            row = rows.sends[rows.num_sends[0]]
            row[CHUNK], row[LINK], row[START] = c, e, plan.start[i]
            row[REDUCES] = i < x.num_chunks * x.num_nodes
            rows.num_sends[0] += 1
    for c in range(x.num_chunks):
        rows.meets[c] = root_rank(x, plan, c)
        if rows.meets[c] < 0:
            rows.meets[c] = inside.rank[inside.rank_of[plan.root[c]]]
        for a in range(len(inside.link)):
            rows.is_done[0, c, a] = rows.is_done[1, c, a] = False
    for phase in range(4):
        t = phase & 1
        if t:
            _turn(booked, finish)
        if phase < 2:
            _hop_on(x, inside, plan, booked, rows, t, finish)
        else:
            _gather_all(x, inside, plan, booked, rows, t, finish, jitter)
        if t:
            _turn(booked, finish)
    return int(rows.num_sends[0])


@compiled
def _hop_on(
    x: Crossings, inside: Inside, plan: Plan, booked: Booked, rows: Rows, t: int, finish: int
) -> None:
    """Book the sends between a chunk's crossings, the most urgent first."""
    found = 0
    for c in range(x.num_chunks):
        for n in range(x.num_nodes):
            b = _centre(x, plan, rows, c, n, t)
            if b < 0 or (t and n == plan.root[c] and x.origin[c] >= 0):
                continue
            first = (t * x.num_chunks + c) * x.num_nodes
            for m in range(first, first + x.num_nodes):
                e = plan.link[m]
                if e < 0 or near_node(x, e, t) != n:
                    continue
                a = near_rank(x, e, t)
                if a == b or rows.is_done[t, c, a]:
                    continue
                rows.is_done[t, c, a] = True
                hop = rows.hops[found]
                hop[0], hop[1], hop[2], hop[3] = c, a, b, 0
                for k in range(first, first + x.num_nodes):
                    if plan.link[k] >= 0 and near_rank(x, plan.link[k], t) == a:
                        hop[3] = max(hop[3], _near_time(x, plan, k, t, finish))
                push(rows.heap_key, rows.heap_what, found, _due(x, plan, c, n, t, finish), found)
                found += 1
    for k in range(found):
        hop = rows.hops[pop(rows.heap_key, rows.heap_what, found - k)]
        e = inside.link[hop[2], hop[1]] if t else inside.link[hop[1], hop[2]]
        time = earliest(inside, booked, e, x.units[hop[0]], hop[3], t == 1)
        book(inside, booked, e, x.units[hop[0]], time, t == 1)
        _add(x, inside, rows, hop[0], e, t, time, finish)


@compiled
def _gather_all(
    x: Crossings,
    inside: Inside,
    plan: Plan,
    booked: Booked,
    rows: Rows,
    t: int,
    finish: int,
    jitter: NDArray[np.float64],
) -> None:
    """Make all sums, those first that are needed first."""
    found = 0
    for c in range(x.num_chunks):
        for n in range(x.num_nodes):
            if (t or x.origin[c] < 0) and _centre(x, plan, rows, c, n, t) >= 0:
                due = _due(x, plan, c, n, t, finish)
                push(rows.heap_key, rows.heap_what, found, due, c * x.num_nodes + n)
                found += 1
    for k in range(found):
        place = pop(rows.heap_key, rows.heap_what, found - k)
        c, n = place // x.num_nodes, place % x.num_nodes
        sink = _centre(x, plan, rows, c, n, t)
        for j in range(inside.rank_of[n], inside.rank_of[n + 1]):
            a = inside.rank[j]
            has_part = inside.wanted[c, a] if t else inside.starts_at[c, a]
            booked.ready[a] = 0 if a == sink or has_part else _NONE
        first = (t * x.num_chunks + c) * x.num_nodes
        for m in range(first, first + x.num_nodes):
            if plan.link[m] >= 0 and near_node(x, plan.link[m], t) == n:
                a = near_rank(x, plan.link[m], t)
                booked.ready[a] = max(booked.ready[a], _near_time(x, plan, m, t, finish))
        num_holders = 0
        for j in range(inside.rank_of[n], inside.rank_of[n + 1]):
            a = inside.rank[j]
            if booked.ready[a] >= 0 and not rows.is_done[t, c, a]:
                booked.holder[num_holders] = a
                num_holders += 1
        done = gather(inside, booked, num_holders, sink, x.units[c], t == 1, jitter)
        for j in range(done):
            a, b = booked.sent_src[j], booked.sent_dst[j]
            e = inside.link[b, a] if t else inside.link[a, b]
            _add(x, inside, rows, c, e, t, booked.sent_at[j], finish)


@compiled
def _add(x: Crossings, inside: Inside, rows: Rows, c: int, e: int, t: int, time: int, finish: int) -> None:
    row = rows.sends[rows.num_sends[0]]
    row[CHUNK], row[LINK], row[REDUCES], row[START] = c, e, 1 - t, time
    if t:
        row[START] = finish - time - inside.alpha[e] - inside.beta[e] * x.units[c]
    rows.num_sends[0] += 1


@compiled
def _centre(x: Crossings, plan: Plan, rows: Rows, c: int, n: int, t: int) -> int:
    """The rank of a node where a chunk's sum is made, or the chunk comes in; -1 where nothing is to do."""
    if n == plan.root[c]:
        return int(rows.meets[c])
    e = plan.link[(t * x.num_chunks + c) * x.num_nodes + n]
    if e < 0:
        return _NONE
    return int(x.dst[e] if t else x.src[e])


@compiled
def _near_time(x: Crossings, plan: Plan, i: int, t: int, finish: int) -> int:
    """When what crosses is there at the end that is nearer to the root."""
    if t:
        return int(finish - plan.start[i])
    e = plan.link[i]
    return int(plan.start[i] + x.alpha[e] + x.beta[e] * x.units[(i // x.num_nodes) % x.num_chunks])


@compiled
def _due(x: Crossings, plan: Plan, c: int, n: int, t: int, finish: int) -> float:
    """When a node's sum of a chunk is to be there."""
    half = x.num_chunks * x.num_nodes
    i = t * half + c * x.num_nodes + n
    if n != plan.root[c]:
        if not t:
            return float(plan.start[i])
        return float(finish - _near_time(x, plan, i, 0, finish))
    due = _NEVER
    # What is complete at the root goes out by the other kind of crossings, all but a chunk that starts there.
    other = 1 if x.origin[c] >= 0 else 1 - t
    first = other * half + c * x.num_nodes
    for k in range(first, first + x.num_nodes):
        e = plan.link[k]
        if e >= 0 and near_node(x, e, other) == n:
            time = _near_time(x, plan, k, 0, finish)
            due = min(due, finish - time if t else plan.start[k])
    return float(due)


@compiled
def _turn(booked: Booked, finish: int) -> None:
    """Turn what is taken round in time, as it looks from the finish backwards."""
    for q in range(len(booked.taken)):
        first, last = booked.first[q], booked.first[q] + booked.taken[q] - 1
        while first <= last:
            begin, end = booked.begin[first], booked.end[first]
            booked.begin[first], booked.end[first] = finish - booked.end[last], finish - booked.begin[last]
            booked.begin[last], booked.end[last] = finish - end, finish - begin
            first += 1
            last -= 1
