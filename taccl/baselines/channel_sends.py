"""Sends of a collective over channels as columns, and their times under given orders on resources."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections import defaultdict
from heapq import heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from taccl.baselines.lanes import Floats, Ints, Lanes, Plan
    from taccl.problem.problem import Problem
    from taccl.topology.topology import Topology


#: Times in us that differ by less are equal.
_ROUNDING = 1e-9


def in_order_us(topology: Topology, mb: float, columns: Columns, order: Ints) -> float:
    """Time of all sends, of `mb` MB each, if resources serve them in the given order."""
    us, holds = _held_us(topology, mb)
    free = [0.0] * len(topology.resources)
    copied: dict[tuple[int, int], float] = {}
    summed: dict[tuple[int, int], float] = {}
    sends = (columns.chunk[order].tolist(), columns.link[order].tolist(), columns.adds[order].tolist())
    for chunk, over, adds in zip(*sends, strict=True):
        source, end = (chunk, topology.links[over].src), (chunk, topology.links[over].dst)
        sum_us = summed.get(source, 0.0)
        start = sum_us if adds else copied.get(source, sum_us)
        start = max(start, *(free[resource] - begin for resource, begin, _ in holds[over]))
        for resource, _, until in holds[over]:
            free[resource] = max(free[resource], start + until)
        reached = summed if adds else copied
        reached[end] = max(reached.get(end, 0.0), start + us[over])
    return max(max(each.values(), default=0.0) for each in (copied, summed))


def as_planned_us(topology: Topology, mb: float, columns: Columns) -> float:
    """Time of all sends, of `mb` MB each, if each resource keeps the order of a plan; inf if it is cyclic.

    The order is that of the planned begins of holds: a send that starts before another one may hold a
    receiving port after it, if its link is slower.
    """
    num_awaited, followers = _waits(topology, columns)
    us, holds = _held_us(topology, mb)
    link = columns.link.tolist()
    #: (planned begin of the hold, send, begin and end of the hold from the send's start) by resource.
    held: list[list[tuple[float, int, float, float]]] = [[] for _ in topology.resources]
    for send, start in enumerate(columns.start.tolist()):
        for resource, begin, until in holds[link[send]]:
            held[resource].append((start + begin, send, begin, until))
    waits = [[(later, us[link[send]]) for later in some] for send, some in enumerate(followers)]
    for spans in held:
        spans.sort()
        for (_, send, _, until), (_, later, begin, _) in pairwise(spans):
            waits[send].append((later, until - begin))
            num_awaited[later] += 1
    starts, left = [0.0] * len(link), len(link)
    ready = [send for send, number in enumerate(num_awaited) if not number]
    while ready:
        send = ready.pop()
        left -= 1
        for later, gap_us in waits[send]:
            starts[later] = max(starts[later], starts[send] + gap_us)
            num_awaited[later] -= 1
            if not num_awaited[later]:
                ready.append(later)
    return math.inf if left else max(start + us[over] for start, over in zip(starts, link, strict=True))


def first_come_us(topology: Topology, mb: float, columns: Columns) -> tuple[Floats, Floats]:
    """Start and end of each send in us, (num_sends,), if resources serve sends first come, first served.

    Among sends that are ready at the same time, those of earlier steps go first, then those of earlier turns
    (`Lanes.turns`). A send waits for its chunk of `mb` MB, or for all contributions that it adds up, to reach
    its source.
    """
    num_awaited, followers = _waits(topology, columns)
    us, holds = _held_us(topology, mb)
    order = np.lexsort((columns.lane, columns.turn, columns.step)).tolist()
    place = [0] * len(order)
    for number, send in enumerate(order):
        place[send] = number
    # Messages of one ring, chain or tree pass a link in order: only the next one requests its resources.
    last_of: dict[tuple[int, int], int] = {}
    next_of: dict[int, int] = {}
    link, lane = columns.link.tolist(), columns.lane.tolist()
    for send in order:
        before = last_of.get((link[send], lane[send]), -1)
        if before >= 0:
            next_of[before] = send
            num_awaited[send] += 1
        last_of[link[send], lane[send]] = send
    #: Holds of each resource that have not ended, as ascending (begin, end).
    taken: list[list[tuple[float, float]]] = [[] for _ in topology.resources]
    ready = [0.0] * len(order)
    starts = np.zeros(len(order))
    pending = [(0.0, place[send]) for send in order if not num_awaited[send]]
    while pending:
        now, number = heappop(pending)
        send = order[number]
        over = link[send]
        start = now
        for resource, begin, until in holds[over]:
            free, held = now + begin, taken[resource]
            # Begin at the last hold that begins by then: thousands may end before it, far from the senders.
            for i in range(max(bisect_right(held, (free, math.inf)) - 1, 0), len(held)):
                first, last = held[i]
                if first >= free + until - begin - _ROUNDING:
                    break  # fits before a hold of a send that arrives later
                if last > free:
                    free = last
            if free - begin > start + _ROUNDING:
                start = free - begin
        if start > now:
            heappush(pending, (start, number))
            continue
        starts[send] = now
        for resource, begin, until in holds[over]:
            held = taken[resource]
            while held and held[0][1] <= now:
                del held[0]
            insort(held, (now + begin, now + until))
        reached = [(later, now + us[over]) for later in followers[send]]
        if send in next_of:
            reached.append((next_of[send], now))
        for later, at in reached:
            if at > ready[later]:
                ready[later] = at
            num_awaited[later] -= 1
            if not num_awaited[later]:
                heappush(pending, (ready[later], place[later]))
    return starts, starts + np.array(us)[columns.link]


def _waits(topology: Topology, columns: Columns) -> tuple[list[int], list[list[int]]]:
    """For each send: number of sends that it waits for at its source, and the sends that wait for it."""
    links = topology.links
    chunk, link, adds = columns.chunk.tolist(), columns.link.tolist(), columns.adds.tolist()
    arrivals: dict[tuple[int, int, bool], list[int]] = defaultdict(list)
    for send, over in enumerate(link):
        arrivals[chunk[send], links[over].dst, adds[send]].append(send)
    num_awaited: list[int] = []
    followers: list[list[int]] = [[] for _ in link]
    for send, over in enumerate(link):
        sums = arrivals.get((chunk[send], links[over].src, True), [])
        copies = [] if adds[send] else arrivals.get((chunk[send], links[over].src, False), [])
        awaited = copies or sums
        num_awaited.append(len(awaited))
        for earlier in awaited:
            followers[earlier].append(send)
    return num_awaited, followers


def _held_us(topology: Topology, mb: float) -> tuple[list[float], list[list[tuple[int, float, float]]]]:
    """Time in us of a send of `mb` MB over each link, and the resources that the send holds.

    Resources are lists of (resource, begin of the hold, end of the hold), relative to the send's start.
    """
    us = [float(e.alpha_us) + mb * float(e.beta_us_per_mb) for e in topology.links]
    holds: list[list[tuple[int, float, float]]] = []
    for over, each in enumerate(topology.holds_of_link):
        lasts = [(hold, float(hold.alpha_us) + mb * float(hold.beta_us_per_mb)) for hold in each]
        holds.append(
            [
                (hold.resource, us[over] - last, us[over])
                if hold.side == "receive"
                else (hold.resource, 0.0, last)
                for hold, last in lasts
            ]
        )
    return us, holds


class Columns(NamedTuple):
    """Sends of a collective over channels, as columns.

    - `adds`: True for reductions.
    - `start`: Planned start in us; 0 without a plan.
    - `turn`: Turn of the send within its step (`Lanes.turns`).
    - `lane`: Index of the lane to which the send belongs.
    """

    chunk: Ints
    link: Ints
    adds: Ints
    start: Floats
    step: Ints
    turn: Ints
    lane: Ints


def sends_around(problem: Problem, lanes: Lanes, roots: Sequence[int] | None) -> Columns:
    """Columns of sends on rings: chunks are dealt to the rings, and go round once, or twice for allreduce."""
    num, n = len(lanes.hops), problem.topology.num_ranks
    ends = roots or [c.origins[0] if c.root is None else c.root for c in problem.collective.chunks]
    number_of = [0] * n
    numbers = []
    for rank in ends:
        numbers.append(number_of[rank])
        number_of[rank] += 1
    row, lane = np.divmod(np.array(numbers), num)
    return _around(lanes, max(problem.chunk_bytes) / 1e6, lane, _places(lanes)[lane, np.array(ends)], row)


def one_round(lanes: Lanes, mb: float) -> Columns:
    """Columns of sends on rings, if every rank has one chunk of `mb` MB for each ring."""
    num = len(lanes.hops)
    rank, lane = np.divmod(np.arange(lanes.problem.topology.num_ranks * num), num)
    return _around(lanes, mb, lane, _places(lanes)[lane, rank], 0 * lane)


def _places(lanes: Lanes) -> Ints:
    """Place of each rank in each ring, (lanes, num_ranks)."""
    n = lanes.problem.topology.num_ranks
    place = np.empty((len(lanes.hops), n), dtype=np.int64)
    for number, hops in enumerate(lanes.hops):
        place[number, [src for src, _ in hops]] = np.arange(n)
    return place


def ring_orders(columns: Columns) -> Iterator[tuple[Ints | Floats, ...]]:
    """Yield orders of sends on rings, as keys of `numpy.lexsort`: by planned start, and by step."""
    for key in (columns.start, columns.step):
        yield columns.lane, columns.turn, key


def _around(lanes: Lanes, mb: float, lane: Ints, begin: Ints, row: Ints) -> Columns:
    """Columns of sends of chunks of `mb` MB on rings.

    - `lane`, `begin`, `row`, (num_chunks,): Ring of each chunk, the hop at which its copies begin, and the
      number of chunks before it at the same place.
    """
    collective, n = lanes.problem.collective, lanes.problem.topology.num_ranks
    lane, begin, row = (each[:, None] for each in (lane, begin, row))
    steps = np.arange(n - 1)[None, :]
    phases = []
    if collective.combining:
        phases.append((begin + 1 + steps, steps, True))
    if not collective.stays_at_roots:
        phases.append((begin + steps, steps + (n - 1) * collective.combining, False))
    starts = lanes.round_us(mb * (1 + row.max()), (n - 1) * len(phases))[0]
    found = []
    for place_of_hop, step, adds in phases:
        hop = place_of_hop % n
        nothing = 0 * hop
        found.append(
            (np.arange(len(lane))[:, None] + nothing, lanes.links[0, lane, hop],
             np.full(hop.shape, adds), starts[step, lane, hop], step * (1 + row.max()) + row + nothing,
             row * (1 + lanes.turns.max()) + lanes.turns[0, lane, hop],
             lane + nothing)
        )  # fmt: skip
    return Columns(
        *(np.concatenate([each.ravel() for each in column]) for column in zip(*found, strict=True))
    )


def sends_of_pieces(num_chunks: int, lanes: Lanes, plan: Plan | None) -> Columns:
    """Columns of sends on chains or trees (open lanes): chunks are dealt to them, and follow one another.

    - `plan`: Plan with the starts of the sends; None sets all starts to 0.
    """
    num = len(lanes.hops)
    chunk = np.arange(num_chunks)[:, None]
    piece, lane = np.divmod(chunk, num)
    period = 0.0 if plan is None else plan.period_us
    starts = np.zeros(lanes.links.shape) if plan is None else plan.starts_us
    hop = np.arange(starts.shape[2])[None, :]
    found = [
        (chunk + 0 * hop, lanes.links[way, lane, hop], np.full((len(chunk), hop.size), adds),
         piece * period + starts[way, lane, hop], piece + 0 * hop, lanes.turns[way, lane, hop],
         lane + 0 * hop)
        for way, adds in enumerate(lanes.backwards)
    ]  # fmt: skip
    return Columns(
        *(np.concatenate([each.ravel() for each in column]) for column in zip(*found, strict=True))
    )
