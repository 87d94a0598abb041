"""From an order of sends to their exact times: one longest path over what each send waits for.

The producer decides which chunk goes over which link, what merges, and who goes first on every resource;
here each send starts as early as its chunks and its resources let it, in exact ticks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import ArrayLike

from taccl.problem import Problem
from taccl.schedule.listing import Tasks
from taccl.schedule.precedence import Precedence, Wait
from taccl.schedule.schedule import Schedule, lacking, make_schedule


def exact_times(
    problem: Problem,
    *,
    chunk: ArrayLike,
    link: ArrayLike,
    starts: ArrayLike | None = None,
    sequence: ArrayLike | None = None,
    group: ArrayLike | None = None,
    reduce: ArrayLike | None = None,
    producer: str = "",
    contributions: Sequence[Collection[int]] | None = None,
) -> Schedule:
    """The schedule in which every send starts as early as data, resources and the given order allow.

    - `chunk`, `link`, `group`, `reduce`, `contributions`, (num_transfers,) array_like: As in
      `make_schedule`.
    - `starts`, (num_transfers,) array_like of int: Tentative starts in ticks: the order on each resource is
      that of the holds they imply. They need not be exact, and times in the result are never later when they
      were valid.
    - `sequence`, (num_transfers,) array_like of int: Instead of `starts`: sends take their resources in this
      order, and read what came before.

    Raises `ValueError` if a merged send has two links, a chunk is sent from where it never is, or the order
    contradicts itself.
    """
    if (starts is None) == (sequence is None):
        raise ValueError("give either starts or sequence")
    key = np.asarray(starts if sequence is None else sequence, dtype=np.int64)
    chunk, link = np.asarray(chunk, dtype=np.int64), np.asarray(link, dtype=np.int64)
    group = np.arange(len(key)) if group is None else np.asarray(group)
    if reduce is None:
        nothing = np.zeros(len(key), dtype=bool)
        reduce = nothing if contributions is None else lacking(problem, chunk.tolist(), contributions)
    reduce = np.asarray(reduce, dtype=bool)
    # Of sends at one moment on one resource, the one that was named first goes first.
    _, first, send = np.unique(group, return_index=True, return_inverse=True)
    send = np.argsort(np.argsort(first))[send]
    order = Precedence(
        problem, problem, chunk=chunk, link=link, group=send, reduce=reduce, start=key,
        places=starts is None, impose=True, contributions=contributions,
    )  # fmt: skip
    begin = np.array(_longest_path(order.num_events, order.waits), dtype=np.int64)[send]
    return make_schedule(
        problem,
        chunk=chunk,
        link=link,
        start=begin,
        end=begin + np.array(order.duration, dtype=np.int64)[send],
        group=send,
        reduce=reduce,
        producer=producer,
        contributions=contributions,
    )


def _longest_path(count: int, waits: Sequence[Wait]) -> list[int]:
    """Earliest starts of events under every wait within a tile."""
    events = Tasks([0] * count, after=[[] for _ in range(count)])
    for a, b, after, lead, extra, _, tile in waits:
        if not tile:
            events.after[a].append((b, after - lead + extra))
    try:
        return events.heads()
    except ValueError:
        return _longest_path_around(events)


def _longest_path_around(events: Tasks) -> list[int]:
    """The same where some wait for each other: two ranks that exchange partial sums bound each other so.

    That is no contradiction as long as going round such a cycle delays nobody. Events that wait for each
    other are timed together, and after all that these wait for.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import NegativeCycleError, bellman_ford, connected_components

    count = len(events.after)
    longest: dict[tuple[int, int], int] = {}
    for a, after in enumerate(events.after):
        for b, gap in after:
            longest[a, b] = max(gap, longest.get((a, b), gap))
    ends = np.array(list(longest)).T
    graph = csr_array((np.ones(len(longest), np.int8), (ends[0], ends[1])), shape=(count, count))
    number, part = connected_components(graph, connection="strong")
    part_of: list[int] = part.tolist()
    members: list[list[int]] = [[] for _ in range(number)]
    inside: list[list[tuple[int, int, int]]] = [[] for _ in range(number)]
    beyond: list[list[tuple[int, int, int]]] = [[] for _ in range(number)]
    followers = Tasks(after=[[] for _ in range(number)])
    start = [0] * count
    for event, each in enumerate(part_of):
        members[each].append(event)
    for (a, b), gap in longest.items():
        here, there = part_of[a], part_of[b]
        (inside if here == there else beyond)[here].append((a, b, gap))
        if here != there:
            followers.after[here].append((there, gap))
    for each in followers.order():
        some = members[each]
        if len(some) > 1:
            place = {event: i for i, event in enumerate(some, 1)}  # 0 is what comes before all of them
            rows = [(0, place[a], -start[a]) for a in some]
            rows += [(place[a], place[b], -gap) for a, b, gap in inside[each]]
            srcs, dsts, lengths = np.array(rows, dtype=np.int64).T
            shape = (len(some) + 1,) * 2
            try:
                found = bellman_ford(csr_array((lengths.astype(float), (srcs, dsts)), shape=shape), indices=0)
            except NegativeCycleError:
                raise ValueError("the order of sends contradicts itself: some wait for each other") from None
            for event, time in zip(some, found[1:].tolist(), strict=True):
                start[event] = -int(time)
        for a, b, gap in beyond[each]:
            start[b] = max(start[b], start[a] + gap)
    return start
