"""The compiled search for what is sent inside nodes, once it is known what crosses between them, and when.

Node after node and chunk after chunk, those first whose sum has to leave soonest: of all that hold a part of
a sum, the two that can be added earliest are, until all is where it leaves. Copies are found in the same way
backwards in time. No resource is taken twice: sends go into the gaps between those that are there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.kernels import compiled

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Booked", "Inside", "book", "earliest", "gather", "make_booked", "time_sums"]

_LONG = 1 << 40
_TRIES = 8


class Inside(NamedTuple):
    """Links inside nodes.

    Parameters
    ----------
    link : (num_ranks, num_ranks) int64
        The topology's link from one rank to another of its node; -1 for none.
    alpha, beta : (num_links,) int64
        Of all links of the topology, as the next five.
    hold_of, hold_resource, hold_alpha, hold_beta, hold_receives
        Holds of link e are rows ``hold_of[e]:hold_of[e + 1]``.
    num_resources : int
    rank_of, rank : (num_nodes + 1,), (num_ranks,) int64
        The ranks of node n are ``rank[rank_of[n]:rank_of[n + 1]]``.
    starts_at, wanted : (num_chunks, num_ranks) bool
        Origins and destinations.
    """

    link: NDArray[np.int64]
    alpha: NDArray[np.int64]
    beta: NDArray[np.int64]
    hold_of: NDArray[np.int64]
    hold_resource: NDArray[np.int64]
    hold_alpha: NDArray[np.int64]
    hold_beta: NDArray[np.int64]
    hold_receives: NDArray[np.bool_]
    num_resources: int
    rank_of: NDArray[np.int64]
    rank: NDArray[np.int64]
    starts_at: NDArray[np.bool_]
    wanted: NDArray[np.bool_]


class Booked(NamedTuple):
    """When resources are taken, and room for the parts of one sum.

    Parameters
    ----------
    first, taken : (num_resources + 1,), (num_resources,) int64
        Resource q is taken as rows ``first[q]:first[q] + taken[q]`` of the next two say, in order of time.
    begin, end : (num_rows,) int64
    holder, ready : (num_ranks,) int64
        Ranks that hold a part of the sum, and when each rank's part is there.
    sent_src, sent_dst, sent_at : (num_ranks,) int64
        What was sent for it.
    """

    first: NDArray[np.int64]
    taken: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    holder: NDArray[np.int64]
    ready: NDArray[np.int64]
    sent_src: NDArray[np.int64]
    sent_dst: NDArray[np.int64]
    sent_at: NDArray[np.int64]


def make_booked(inside: Inside, num_chunks: int) -> Booked:
    """Nothing taken yet, and room for sums and copies of so many chunks."""
    links = np.bincount(inside.hold_resource, minlength=inside.num_resources)
    nodes = np.diff(inside.rank_of)
    # A rank takes in no more parts of a sum than there are in its node, and one from every other node.
    most = 2 * num_chunks * np.minimum(links, int(nodes.max()) + len(nodes))
    first = np.concatenate(([0], np.cumsum(most))).astype(np.int64)
    begin, end = np.zeros((2, int(first[-1])), np.int64)
    count = np.zeros(inside.num_resources, np.int64)
    return Booked(first, count, begin, end, *np.zeros((5, len(inside.link)), np.int64))


def time_sums(inside: Inside, node: int, units: int, ticks: NDArray[np.int64]) -> None:
    """When the first, second, ... sum of all of a node's ranks can be there, if there is nothing else to do.

    Parameters
    ----------
    units : int
        The size of the chunks.
    ticks : (num_sums,) int64
        To be filled in.
    """
    ranks = inside.rank[inside.rank_of[node] : inside.rank_of[node + 1]]
    soonest = np.full(len(ticks), _LONG)
    booked = make_booked(inside, len(ticks))
    rng = np.random.default_rng(0)
    for run in range(_TRIES):
        booked.taken[:] = 0
        ends = np.zeros(len(ticks), np.int64)
        for i in range(len(ticks)):
            sink = ranks[i % len(ranks)]
            booked.holder[: len(ranks)] = ranks
            booked.ready[ranks] = 0
            jitter = rng.random(len(inside.link)) * (0.2 if run else 0.0)
            gather(inside, booked, len(ranks), sink, units, False, jitter)
            ends[i] = booked.ready[sink]
        if ends.sum() < soonest.sum():
            soonest = np.sort(ends)
    ticks[:] = soonest


# In all below: a, b ranks, e link of the topology, h hold, q resource.


@compiled
def earliest(inside: Inside, booked: Booked, e: int, units: int, time: int, is_backward: bool) -> int:
    """The earliest moment from `time` at which a send over a link can start."""
    took = inside.alpha[e] + units * inside.beta[e]
    while True:
        is_free = True
        for h in range(inside.hold_of[e], inside.hold_of[e + 1]):
            q = inside.hold_resource[h]
            length = inside.hold_alpha[h] + units * inside.hold_beta[h]
            lead = max(took - length, 0) if inside.hold_receives[h] != is_backward else 0
            begin = time + lead
            low, last = booked.first[q], booked.first[q] + booked.taken[q]
            high = last
            while low < high:
                middle = (low + high) >> 1
                if booked.end[middle] <= begin:
                    low = middle + 1
                else:
                    high = middle
            while low < last and booked.begin[low] < begin + length:
                begin = booked.end[low]
                low += 1
            if begin - lead > time:
                time = begin - lead
                is_free = False
        if is_free:
            return time


@compiled
def book(inside: Inside, booked: Booked, e: int, units: int, time: int, is_backward: bool) -> None:
    """Take what a send over a link holds."""
    took = inside.alpha[e] + units * inside.beta[e]
    for h in range(inside.hold_of[e], inside.hold_of[e + 1]):
        q = inside.hold_resource[h]
        length = inside.hold_alpha[h] + units * inside.hold_beta[h]
        begin = time + (max(took - length, 0) if inside.hold_receives[h] != is_backward else 0)
        i = booked.first[q] + booked.taken[q]
        while i > booked.first[q] and booked.begin[i - 1] > begin:
            booked.begin[i], booked.end[i] = booked.begin[i - 1], booked.end[i - 1]
            i -= 1
        booked.begin[i], booked.end[i] = begin, begin + length
        booked.taken[q] += 1


@compiled
def gather(
    inside: Inside,
    booked: Booked,
    num_holders: int,
    sink: int,
    units: int,
    is_backward: bool,
    jitter: NDArray[np.float64],
) -> int:
    """Add up at one rank what several hold, the earliest two first; how many sends that takes.

    Parameters
    ----------
    num_holders : int
        The first so many of ``booked.holder`` count; ``booked.ready`` says from when. Both are used up.
    is_backward : bool
        Whether time runs backwards, and links are gone against their direction.
    jitter : (num_ranks,) float64
        By how much of its time a send to each rank counts as later than it is.
    """
    done = 0
    while num_holders > 1:
        best, best_a, best_b, best_time = 1e300, -1, -1, 0
        for i in range(num_holders):
            a = booked.holder[i]
            if a == sink or booked.ready[a] > best:
                continue
            for k in range(num_holders):
                b = booked.holder[k]
                if i == k:
                    continue
                e = inside.link[b, a] if is_backward else inside.link[a, b]
                time = earliest(inside, booked, e, units, booked.ready[a], is_backward)
                took = inside.alpha[e] + units * inside.beta[e]
                cost = time + took * (1.0 + jitter[b])
                if b != sink and booked.ready[b] > time + took:
                    cost += 0.3 * took  # it would wait there for what comes later
                if cost < best:
                    best, best_a, best_b, best_time = cost, i, b, time
        a = booked.holder[best_a]
        e = inside.link[best_b, a] if is_backward else inside.link[a, best_b]
        book(inside, booked, e, units, best_time, is_backward)
        booked.ready[best_b] = max(booked.ready[best_b], best_time + inside.alpha[e] + units * inside.beta[e])
        booked.sent_src[done], booked.sent_dst[done], booked.sent_at[done] = a, best_b, best_time
        done += 1
        num_holders -= 1
        booked.holder[best_a] = booked.holder[num_holders]
    return done
