"""The single-machine relaxation with batches: jobs that all pass one resource, with heads and tails.

Source: Carlier, "The one-machine sequencing problem", European Journal of Operational Research 11 (1982),
with batches in place of single jobs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from taccl.problem.problem import Problem

#: Max states; above it, the queues of a machine merge into one, which only weakens the bound.
_MAX_STATES = 20_000


@dataclass(frozen=True, slots=True)
class BorderJob:
    """A send that every schedule has: a chunk enters or leaves a set of ranks over one of `links`.

    It starts at `release` or later, and at least `tail` ticks remain after its end. If the tail is positive,
    the chunk then holds the resources that all its onward links share, for the ticks in `onward`.
    """

    links: frozenset[int]
    units: int
    release: int
    tail: int
    onward: frozenset[tuple[int, int]]


def machine_ticks(
    problem: Problem, held: Mapping[int, tuple[int, int, bool]], jobs: Sequence[BorderJob]
) -> int:
    """Best bound over the subsets of jobs with at least a given tail, in ticks.

    After the last batch of a subset, its chunks leave one by one if all their onward links share a resource.

    - `held` (mapping of link to (alpha, beta, receives)): Hold of the machine by a send over each link of the
      jobs; `receives` is True if the hold lasts until the send's end.
    """
    links = {e for job in jobs for e in job.links}
    alpha, beta = min(held[e][0] for e in links), min(held[e][1] for e in links)
    size = min(job.units for job in jobs)
    # Ticks by which a send outlasts its hold.
    lags = {e: problem.costs.duration(e, size) - held[e][0] - size * held[e][1] for e in links}
    before = min(lag if held[e][2] else 0 for e, lag in lags.items())
    after = min(0 if held[e][2] else lag for e, lag in lags.items())
    max_merge = problem.clauses.max_merge if not links.isdisjoint(problem.clauses.merging) else 1
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
    """Min ticks for which each job holds a resource that all jobs share on their way out."""
    held = [dict(each) for each in onward]
    common = set.intersection(*(set(each) for each in held)) if held else set()
    return max((min(each[resource] for each in held) for resource in common), default=0)


def _queues(jobs: Sequence[BorderJob]) -> list[list[int]]:
    """Sorted releases per queue; jobs that may merge, as their links overlap, share a queue."""
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
    """{size of the last batch: earliest end of all batches}.

    A batch of n chunks of one queue starts when the machine is free and its chunks are released. It takes
    ``alpha + n * beta`` ticks. The dynamic program runs over the number of finished jobs per queue.
    """
    if max_merge == 1 or math.prod(len(queue) + 1 for queue in queues) > _MAX_STATES:
        queues = [sorted(release for queue in queues for release in queue)]
    goal = tuple(len(queue) for queue in queues)
    earliest: dict[tuple[int, ...], int] = {(0,) * len(queues): 0}
    ends: dict[int, int] = {}
    for state in product(*(range(size + 1) for size in goal)):  # topological order
        for q, queue in enumerate(queues):
            for count in range(1, min(max_merge, len(queue) - state[q]) + 1):
                after = (*state[:q], state[q] + count, *state[q + 1 :])
                end = max(earliest[state], queue[after[q] - 1]) + alpha + count * beta
                if after == goal:
                    ends[count] = min(end, ends.get(count, end))
                earliest[after] = min(end, earliest.get(after, end))
    return ends
