"""From an order of sends to their exact times: one longest path, used by every producer of schedules.

The producer decides which chunk goes over which link, what merges, and who goes first on every resource;
here each send starts as early as its chunks and its resources let it, in exact ticks.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from taccl.schedule.schedule import Schedule, make_schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from taccl.problem import Problem

__all__ = ["exact_times"]


@dataclass(slots=True)
class _Send:
    """A merged send while its time is being found; `key_start` and `key_end` only order."""

    link: int
    chunks: list[int]
    reduce: bool
    units: int
    duration: int
    key_start: int
    key_end: int


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
) -> Schedule:
    """The schedule in which every send starts as early as data, resources and the given order allow.

    Parameters
    ----------
    chunk, link, group, reduce : (num_transfers,) array_like
        As in `make_schedule`.
    starts : (num_transfers,) array_like of int, optional
        Tentative starts in ticks: the order on each resource is that of the holds they imply. They need
        not be exact, and times in the result are never later when they were valid.
    sequence : (num_transfers,) array_like of int, optional
        Instead of `starts`: sends take their resources in this order, and read what came before.

    Raises
    ------
    ValueError
        If neither or both orders are given, a merged send has two links, a chunk is sent from where it
        never is, or the order contradicts itself.
    """
    if (starts is None) == (sequence is None):
        raise ValueError("give either starts or sequence")
    key = np.asarray(starts if sequence is None else sequence, dtype=np.int64).tolist()
    chunks, links = np.asarray(chunk).tolist(), np.asarray(link).tolist()
    groups = list(range(len(chunks))) if group is None else np.asarray(group).tolist()
    reduces = [False] * len(chunks) if reduce is None else np.asarray(reduce, dtype=bool).tolist()
    sends, send_of_transfer = _collect(problem, chunks, links, groups, reduces, key, timed=starts is not None)
    edges: list[tuple[int, int, int]] = []
    _order_resources(problem, sends, edges, timed=starts is not None)
    _order_data(problem, sends, edges)
    _order_own_first(problem, sends, edges)
    start = _longest_path(len(sends), edges)
    begin = np.array([start[s] for s in send_of_transfer], dtype=np.int64)
    duration = np.array([sends[s].duration for s in send_of_transfer], dtype=np.int64)
    return make_schedule(
        problem,
        chunk=chunks,
        link=links,
        start=begin,
        end=begin + duration,
        group=send_of_transfer,
        reduce=reduces,
        producer=producer,
    )


def _collect(
    problem: Problem,
    chunks: Sequence[int],
    links: Sequence[int],
    groups: Sequence[int],
    reduces: Sequence[bool],
    key: Sequence[int],
    *,
    timed: bool,
) -> tuple[list[_Send], list[int]]:
    """Merge transfers into sends."""
    costs = problem.costs
    units = costs.chunk_units.tolist()
    index_of_group: dict[int, int] = {}
    sends: list[_Send] = []
    send_of_transfer = []
    for c, e, g, r, k in zip(chunks, links, groups, reduces, key, strict=True):
        if g not in index_of_group:
            index_of_group[g] = len(sends)
            sends.append(_Send(e, [], r, 0, 0, k, 0))
        send = sends[index_of_group[g]]
        if send.link != e or send.reduce != r:
            raise ValueError(f"group {g} holds sends of two links, or both copies and reductions")
        send.chunks.append(c)
        send.units += units[c]
        send.key_start = max(send.key_start, k)
        send_of_transfer.append(index_of_group[g])
    for send in sends:
        send.duration = costs.duration(send.link, send.units)
        send.key_end = send.key_start + (send.duration if timed else 0)
    return sends, send_of_transfer


def _order_resources(
    problem: Problem, sends: Sequence[_Send], edges: list[tuple[int, int, int]], *, timed: bool
) -> None:
    """One send at a time holds a resource: edges between neighbours in its order."""
    costs, topology = problem.costs, problem.topology
    holds: list[list[tuple[int, int, int, bool]]] = [[] for _ in topology.links]
    for index, hold in enumerate(topology.holds):
        alpha, beta = int(costs.hold_alpha[index]), int(costs.hold_beta[index])
        holds[hold.link].append((hold.resource, alpha, beta, hold.side == "receive"))
    users: dict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
    for s, send in enumerate(sends):
        for resource, alpha, beta, receives in holds[send.link]:
            held = alpha + beta * send.units
            offset = send.duration - held if receives else 0
            users[resource].append((send.key_start + (offset if timed else 0), s, offset, held))
    for queue in users.values():
        queue.sort()
        for (_, first, offset, held), (_, second, later_offset, _) in zip(queue, queue[1:], strict=False):
            edges.append((first, second, offset + held - later_offset))


def _order_data(problem: Problem, sends: Sequence[_Send], edges: list[tuple[int, int, int]]) -> None:
    """A chunk is sent after it arrived; of a reduction, after all that it is to include."""
    collective, topology = problem.collective, problem.topology
    arrivals: dict[tuple[int, int], list[int]] = defaultdict(list)
    for s, send in enumerate(sends):
        for rank in topology.links[send.link].dsts:
            for c in send.chunks:
                arrivals[c, rank].append(s)
    derived_from = {(d.chunk, d.rank): d.source for d in collective.derivations}
    accumulates = collective.combining and not collective.derivations
    for s, send in enumerate(sends):
        for rank in topology.links[send.link].srcs:
            for c in send.chunks:
                if accumulates:
                    for a in arrivals.get((c, rank), ()):
                        arrival = sends[a]
                        if arrival.key_end <= send.key_start and a != s:
                            edges.append((a, s, arrival.duration))
                        elif a != s:
                            edges.append((s, a, 1 - arrival.duration))
                    continue
                # A derived chunk is there by whichever comes first: itself, or what it derives from.
                ways, have = [c], c
                while (have, rank) in derived_from:
                    have = derived_from[have, rank]
                    ways.append(have)
                if any(rank in collective.chunks[way].origins for way in ways):
                    continue
                sources = [a for way in ways for a in arrivals.get((way, rank), ())]
                if not sources:
                    raise ValueError(f"chunk {c} is sent from rank {rank}, where it never is")
                first = min(sources, key=lambda a: (sends[a].key_end, a))
                edges.append((first, s, sends[first].duration))


def _order_own_first(problem: Problem, sends: Sequence[_Send], edges: list[tuple[int, int, int]]) -> None:
    """Where own chunks go before relayed ones, they start at least one latency apart."""
    for link in problem.clauses.own_first:
        ends = problem.topology.links[link]
        for reducing in (False, True):
            here = [s for s, send in enumerate(sends) if send.link == link and send.reduce == reducing]
            rank = ends.dst if reducing else ends.src
            own = [s for s in here if _is_own(problem, sends[s], rank)]
            rest = [s for s in here if s not in set(own)]
            for a in own:
                for b in rest:
                    first, second = (b, a) if reducing else (a, b)
                    if sends[first].key_start > sends[second].key_start:
                        continue
                    units = max(int(problem.costs.chunk_units[c]) for c in sends[a].chunks)
                    gap = problem.costs.duration(link, units)
                    if reducing:
                        gap += sends[first].duration - sends[second].duration
                    edges.append((first, second, gap))


def _is_own(problem: Problem, send: _Send, rank: int) -> bool:
    """Whether the send's chunks are the rank's own: they start there, or are rooted there."""
    data = problem.collective.chunks[send.chunks[0]]
    return rank == data.root if data.root is not None else rank in data.origins


def _longest_path(count: int, edges: Sequence[tuple[int, int, int]]) -> list[int]:
    """Earliest starts under ``start[b] >= start[a] + gap`` for every edge (a, b, gap)."""
    successors: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    waiting = [0] * count
    for a, b, gap in edges:
        successors[a].append((b, gap))
        waiting[b] += 1
    start = [0] * count
    ready = [s for s in range(count) if not waiting[s]]
    done = 0
    while ready:
        a = ready.pop()
        done += 1
        for b, gap in successors[a]:
            start[b] = max(start[b], start[a] + gap)
            waiting[b] -= 1
            if not waiting[b]:
                ready.append(b)
    if done == count:
        return start
    # Two ranks that exchange partial sums bound each other from both sides, which is no contradiction as
    # long as going round such a cycle delays nobody: relax until nothing moves.
    for _ in range(count + 1):
        moved = False
        for a, b, gap in edges:
            if start[a] + gap > start[b]:
                start[b], moved = start[a] + gap, True
        if not moved:
            return start
    raise ValueError("the order of sends contradicts itself: some wait for each other")
