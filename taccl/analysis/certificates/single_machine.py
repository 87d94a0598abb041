"""The single-machine relaxation with batches: jobs that all pass one resource, with their heads and tails.

Source: Carlier, "The one-machine sequencing problem", European Journal of Operational Research 11 (1982),
with batches in place of single jobs.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.analysis.certificates.needed_sends import Job, NeededSends

__all__ = ["batch_ends", "machine_ticks"]

#: Beyond this many states the queues of a machine are merged into one, which only weakens the bound.
_MAX_STATES = 20_000


def machine_ticks(demand: NeededSends, resource: int, jobs: Sequence[Job]) -> int:
    """The best bound over the subsets of jobs with at least a given tail, in ticks.

    After the last batch of a subset its chunks leave one by one where all their ways out share something.
    """
    links = {e for job in jobs for e in job.links}
    held = [demand.held[e][resource] for e in links]
    alpha, beta = min(alpha for alpha, _, _ in held), min(beta for _, beta, _ in held)
    size = min(job.units for job in jobs)
    lags = {e: _lag(demand, e, resource, size) for e in links}
    receives = {e: demand.held[e][resource][2] for e in links}
    before = min(lag if receives[e] else 0 for e, lag in lags.items())
    after = min(0 if receives[e] else lag for e, lag in lags.items())
    merges = any(e in demand.problem.clauses.merging for e in links)
    max_merge = demand.problem.clauses.max_merge if merges else 1
    best = 0
    tails = sorted({job.tail for job in jobs}, reverse=True)
    for tail in tails if len(tails) <= 4 else [*tails[:3], tails[-1]]:
        some = [job for job in jobs if job.tail >= tail]
        without_tail = sum(job.tail == 0 for job in some)
        onward = _shared([job.onward for job in some if job.tail])
        if len({job.units for job in some}) > 1:
            total = sum(job.units for job in some)
            end = min(job.release for job in some) + alpha * -(-len(some) // max_merge) + beta * total
            ends = {0: end}
        else:
            ends = batch_ends(_queues(some), alpha, beta * some[0].units, max_merge)
        found = min(
            end + (max(0, last - 1) * onward + tail if tail else max(0, last - without_tail) * onward)
            for last, end in ends.items()
        )
        best = max(best, before + found + after)
    return best


def _shared(onward: Sequence[frozenset[tuple[int, int]]]) -> int:
    """How long each job at least holds some resource that all of them hold on their way out."""
    held = [dict(each) for each in onward]
    common = set.intersection(*(set(each) for each in held)) if held else set()
    return max((min(each[resource] for each in held) for resource in common), default=0)


def _lag(demand: NeededSends, link: int, resource: int, units: int) -> int:
    """How much shorter the hold is than the send."""
    alpha, beta, _ = demand.held[link][resource]
    return demand.problem.costs.duration(link, units) - alpha - units * beta


def _queues(jobs: Sequence[Job]) -> list[list[int]]:
    """Releases of jobs that may merge with each other: those whose links overlap; sorted, per queue."""
    queues: list[tuple[set[int], list[int]]] = []
    for job in jobs:
        links, releases, apart = set(job.links), [job.release], []
        for other in queues:
            if other[0] & links:
                links |= other[0]
                releases += other[1]
            else:
                apart.append(other)
        queues = [*apart, (links, releases)]
    return [sorted(releases) for _, releases in queues]


def batch_ends(queues: list[list[int]], alpha: int, beta: int, max_merge: int) -> dict[int, int]:
    """Earliest end of all batches, by the size of the last one.

    A batch of n chunks of one queue starts no earlier than the machine is free and the chunks' releases,
    and takes ``alpha + n * beta``. Dynamic programming over how many of each queue are done.
    """
    if max_merge == 1 or _states(queues) > _MAX_STATES:
        queues = [sorted(release for queue in queues for release in queue)]
    if max_merge == 1:
        end = 0
        for release in queues[0]:
            end = max(end, release) + alpha + beta
        return {1: end}
    goal = tuple(len(queue) for queue in queues)
    earliest: dict[tuple[int, ...], int] = {(0,) * len(queues): 0}
    ends: dict[int, int] = {}
    order = [(0, (0,) * len(queues))]
    seen = set()
    while order:
        _, state = heapq.heappop(order)
        if state in seen:
            continue
        seen.add(state)
        for q, queue in enumerate(queues):
            for count in range(1, min(max_merge, len(queue) - state[q]) + 1):
                after = (*state[:q], state[q] + count, *state[q + 1 :])
                end = max(earliest[state], queue[after[q] - 1]) + alpha + count * beta
                if after == goal:
                    ends[count] = min(end, ends.get(count, end))
                if end < earliest.get(after, end + 1):
                    earliest[after] = end
                heapq.heappush(order, (sum(after), after))
    return ends


def _states(queues: Sequence[Sequence[int]]) -> int:
    states = 1
    for queue in queues:
        states *= len(queue) + 1
    return states
