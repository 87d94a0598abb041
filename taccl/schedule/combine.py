"""Transformations of schedules: reversal, concatenation, pruning, and named contributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from taccl._internal.caching import cached
from taccl.problem.chunks import Chunk, converted
from taccl.problem.collective import Collective
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule, make_schedule
from taccl.schedule.timing import exact_times


@cached
def broadcast_phase(problem: Problem) -> Problem:
    """Broadcast phase of a combining problem: each chunk is copied from its root to its destinations.

    Dates are left out: the sends of both phases are timed together, under the dates of the problem.
    """
    collective = _from_roots(problem.collective, to="destinations")
    return _as_costly(replace(problem.without_dates(), collective=collective), problem)


@cached
def reduce_phase(problem: Problem) -> Problem:
    """Reduce phase of a combining problem, as a broadcast problem in reversed time.

    Each chunk is copied from its root to all contributors, over reversed links. `reverse` turns schedules of
    this problem into reductions. The sketch's clauses for reductions become clauses for copies, and dates
    are left out (see `broadcast_phase`).
    """
    phase = replace(
        problem.without_dates(),
        topology=problem.topology.reversed(),
        collective=_from_roots(problem.collective, to="origins"),
        clauses=problem.clauses.reversed(),
    )
    return _as_costly(phase, problem)


def back_in_time(problem: Problem) -> Problem:
    """Problem in reversed time, of chunks that each go from one rank to one rank, over reversed links.

    So a scatter becomes a gather. `reverse` turns its schedules into schedules of `problem`. Dates are left
    out (see `broadcast_phase`).
    """
    collective = problem.collective
    phase = replace(
        problem.without_dates(),
        topology=problem.topology.reversed(),
        collective=replace(
            collective,
            name=f"{collective.name} (reversed)",
            chunks=converted(collective.chunks, lambda each: Chunk(each.destinations, each.origins)),
        ),
        clauses=problem.clauses.reversed(),
    )
    return _as_costly(phase, problem)


def _as_costly(phase: Problem, problem: Problem) -> Problem:
    """Return the problem of a phase, with the costs of `problem` copied to it if they are computed already.

    Chunks, links and holds have the same indices in both problems.
    """
    if "costs" in vars(problem):
        vars(phase)["costs"] = problem.costs
    return phase


def naming_contributions(schedule: Schedule, problem: Problem) -> Schedule:
    """Convert a schedule to one of a summing `problem`: the same sends, with their contributions named."""
    links, chunks = problem.topology.links, problem.collective.chunks
    held = {(rank, c): frozenset((rank,)) for c, chunk in enumerate(chunks) for rank in chunk.origins}
    start, end, reduce = (column.tolist() for column in (schedule.start, schedule.end, schedule.reduce))
    of_chunk, link = schedule.chunk.tolist(), schedule.link.tolist()
    carried = [frozenset[int]()] * len(start)
    # At equal times, reducing arrivals come first, then copies, then starts.
    arrivals = [(end[t], 0 if reduce[t] else 1, t) for t in range(len(start))]
    for _, phase, t in sorted(arrivals + [(start[t], 2, t) for t in range(len(start))]):
        ends, c = links[link[t]], of_chunk[t]
        if phase == 2:
            carried[t] = frozenset().union(*(held.get((rank, c), ()) for rank in ends.srcs))
            continue
        for rank in ends.dsts:
            held[rank, c] = carried[t] | held.get((rank, c), frozenset())
    return make_schedule(
        problem, chunk=schedule.chunk, link=schedule.link, start=schedule.start, end=schedule.end,
        group=schedule.group, producer=schedule.producer, contributions=carried,
    )  # fmt: skip


def _from_roots(collective: Collective, *, to: str) -> Collective:
    alone = [(rank,) for rank in range(collective.num_ranks)]

    def copied(chunk: Chunk) -> Chunk:
        assert chunk.root is not None, "a combining chunk has a root"
        is_met = chunk.is_met(is_sum=True, updates=collective.updates)
        return Chunk(alone[chunk.root], () if is_met else getattr(chunk, to))

    return Collective(
        f"{collective.name} ({'broadcast' if to == 'destinations' else 'reduce, reversed'})",
        collective.num_ranks,
        converted(collective.chunks, copied),
        chunks_per_rank=collective.chunks_per_rank,
        groups=collective.process_groups,
    )


def reverse(schedule: Schedule, problem: Problem) -> Schedule:
    """Reverse a schedule of ``reduce_phase(problem)`` in time to a reduction of `problem`, and re-time it.

    The schedule must have at most one arrival per chunk and rank (`prune`). If `problem` is itself a
    ``reduce_phase``, a reduction becomes a broadcast again; copies of `back_in_time` remain copies.
    """
    return exact_times(
        problem,
        chunk=schedule.chunk,
        link=schedule.link,
        starts=schedule.finish_ticks - schedule.end,
        group=schedule.group,
        reduce=~schedule.reduce & problem.collective.combining,
        producer=schedule.producer,
    )


def concatenate(schedules: Sequence[Schedule], problem: Problem) -> Schedule:
    """Concatenate and re-time schedules: on each resource, sends of one precede all sends of the next.

    The schedules may then overlap in time, on different resources.

    - `schedules`: Schedules whose chunk and link indices are those of `problem`.
    """
    starts, groups = [], []
    time = num_groups = 0
    for each in schedules:
        starts.append(each.start + time)
        groups.append(each.group + num_groups)
        time += each.finish_ticks
        num_groups += int(each.group.max(initial=-1)) + 1
    return exact_times(
        problem,
        chunk=np.concatenate([each.chunk for each in schedules]),
        link=np.concatenate([each.link for each in schedules]),
        starts=np.concatenate(starts),
        group=np.concatenate(groups),
        reduce=np.concatenate([each.reduce for each in schedules]),
        producer=" + ".join(dict.fromkeys(each.producer for each in schedules)),
    )


def prune(schedule: Schedule) -> Schedule:
    """Remove transfers on which no destination depends, and re-time the schedule.

    If a chunk arrives several times at a rank, the first arrival is kept. A schedule with reductions, or with
    chunks that derive from one another, is returned unchanged.
    """
    problem = schedule.problem
    if schedule.reduce.any() or problem.collective.derivations:
        return schedule
    first: dict[tuple[int, int], int] = {}
    chunks, links = schedule.chunk.tolist(), schedule.link.tolist()
    ends = problem.topology.links
    for t in np.argsort(schedule.end, kind="stable").tolist():
        for rank in ends[links[t]].dsts:
            if rank not in problem.collective.chunks[chunks[t]].origins:
                first.setdefault((chunks[t], rank), t)
    needed: set[int] = set()
    for c, chunk in enumerate(problem.collective.chunks):
        pending = [rank for rank in chunk.destinations if rank not in chunk.origins]
        while pending:
            t = first.get((c, pending.pop()))
            if t is not None and t not in needed:
                needed.add(t)
                pending.extend(r for r in ends[links[t]].srcs if r not in chunk.origins)
    if len(needed) == len(schedule):
        return schedule
    kept = np.array(sorted(needed), dtype=np.int64)
    return exact_times(
        problem,
        chunk=schedule.chunk[kept],
        link=schedule.link[kept],
        starts=schedule.start[kept],
        group=schedule.group[kept],
        producer=schedule.producer,
    )
