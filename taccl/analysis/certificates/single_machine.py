"""The single-machine relaxation with batches: jobs that all pass one resource, with their heads and tails.

Source: Carlier, "The one-machine sequencing problem", European Journal of Operational Research 11 (1982),
with batches in place of single jobs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from taccl.problem import Problem

#: Beyond this many states the queues of a machine are merged into one, which only weakens the bound.
_MAX_STATES = 20_000


@dataclass(frozen=True, slots=True)
class BorderJob:
    """One send that every schedule has: a chunk enters or leaves a set of ranks over one of `links`.

    It starts at `release` at the earliest; after its end at least `tail` ticks are left, and where there is
    a tail the chunk then holds each resource that all its ways out share for the ticks of `onward`.
    """

    links: frozenset[int]
    units: int
    release: int
    tail: int
    onward: frozenset[tuple[int, int]]


def machine_ticks(
    problem: Problem, held: Mapping[int, tuple[int, int, bool]], jobs: Sequence[BorderJob]
) -> int:
    """The best bound over the subsets of jobs with at least a given tail, in ticks.

    After the last batch of a subset its chunks leave one by one where all their ways out share something.

    - `held` (mapping of link to (alpha, beta, receives)): How long a send over each link of the jobs holds
      the machine, and whether until it ends.
    """
    links = {e for job in jobs for e in job.links}
    alpha, beta = min(held[e][0] for e in links), min(held[e][1] for e in links)
    size = min(job.units for job in jobs)
    # By how much a send lasts longer than its hold.
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
    """How long each job at least holds some resource that all of them hold on their way out."""
    held = [dict(each) for each in onward]
    common = set.intersection(*(set(each) for each in held)) if held else set()
    return max((min(each[resource] for each in held) for resource in common), default=0)


def _queues(jobs: Sequence[BorderJob]) -> list[list[int]]:
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
    if max_merge == 1 or math.prod(len(queue) + 1 for queue in queues) > _MAX_STATES:
        queues = [sorted(release for queue in queues for release in queue)]
    goal = tuple(len(queue) for queue in queues)
    earliest: dict[tuple[int, ...], int] = {(0,) * len(queues): 0}
    ends: dict[int, int] = {}
    for state in product(*(range(size + 1) for size in goal)):  # each after all that lead to it
        for q, queue in enumerate(queues):
            for count in range(1, min(max_merge, len(queue) - state[q]) + 1):
                after = (*state[:q], state[q] + count, *state[q + 1 :])
                end = max(earliest[state], queue[after[q] - 1]) + alpha + count * beta
                if after == goal:
                    ends[count] = min(end, ends.get(count, end))
                earliest[after] = min(end, earliest.get(after, end))
    return ends
