"""Chunks that start, are summed and end alike searched as one, where all that travels may travel together.

Small sums cut into many chunks take as long as in one chunk a rank, but no search of that many finds it. So
they are searched in one, over a topology on which a send that may not merge takes as long as those of all its
chunks, one after another. Its schedules are schedules of all chunks.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from taccl.deadline import Deadline, OutOfTime
from taccl.errors import NoSolutionError
from taccl.problem import Problem
from taccl.schedule.compact import CompactSchedule
from taccl.schedule.schedule import Schedule
from taccl.schedule.timing import exact_times
from taccl.synthesis.heuristic.fabric import most_merged
from taccl.synthesis.large import schedule_large, suits
from taccl.synthesis.result import Result
from taccl.synthesis.search import Options, Search


def fused(problem: Problem) -> tuple[Problem, list[list[int]]] | None:
    """The problem in one chunk a rank, and of which chunks each is made; None where that would not do.

    All chunks may merge into one send, on some links, and no clause speaks of anything else.
    """
    collective, clauses = problem.collective, problem.clauses
    many = collective.chunks_per_rank
    if many == 1 or clauses.max_merge < collective.num_chunks or clauses != clauses.only("merge"):
        return None
    alike: dict[object, list[int]] = defaultdict(list)
    for c, chunk in enumerate(collective.chunks):
        alike[chunk, problem.chunk_bytes[c]].append(c)
    if any(len(each) != many for each in alike.values()) or collective.derivations or collective.groups:
        return None
    parts = list(alike.values())

    def together(each: Any, link: int) -> Any:
        return each if link in clauses.merging else replace(each, alpha_us=many * each.alpha_us)

    topology = problem.topology
    topology = replace(
        topology,
        links=tuple(together(link, e) for e, link in enumerate(topology.links)),
        holds=tuple(together(hold, hold.link) for hold in topology.holds),
    )
    chunks = tuple(collective.chunks[each[0]] for each in parts)
    return replace(
        problem,
        topology=topology,
        collective=replace(collective, chunks=chunks, chunks_per_rank=1),
        chunk_bytes=tuple(many * problem.chunk_bytes[each[0]] for each in parts),
    ), parts


def parted(schedule: Schedule, problem: Problem, parts: Sequence[Sequence[int]]) -> Schedule:
    """The schedule of a problem that one of `fused` is: where sends may not merge, one chunk after another.

    Raises `NoSolutionError` where costs are so fine that the times of one were rounded, not of the other.
    """
    many = problem.collective.chunks_per_rank
    row = np.repeat(np.arange(len(schedule)), many)
    place = np.tile(np.arange(many), len(schedule))
    link = schedule.link[row]
    may_merge = np.isin(link, sorted(problem.clauses.merging))
    # A place in a send that may not merge is a send.
    apart = np.where(may_merge, 0, place)
    # Larger chunks need no finer ticks.
    finer, rounded = divmod(problem.costs.ticks_per_us, schedule.problem.costs.ticks_per_us)
    start, end = (times[row] * finer for times in (schedule.start, schedule.end))
    sums = schedule.contributions
    if rounded:
        raise NoSolutionError("times of the fused problem are none of the problem's", bound_us=None)
    return exact_times(
        problem,
        chunk=np.array(parts)[schedule.chunk[row], place],
        link=link,
        starts=start + apart * ((end - start) // many),
        group=schedule.group[row] * many + apart,
        reduce=schedule.reduce[row],
        contributions=None if sums is None else [sums[i] for i in row.tolist()],
        producer=schedule.producer,
    )


def offer_fused(search: Search, synthesize: Callable[[Problem, Options, Deadline], Result]) -> None:
    """Offer what is found in one chunk a rank, in a part of the time, where merging all of them pays."""
    found, least_share = fused(search.problem), search.parameters.large.merging_share
    if found is None or not (most_merged(search.problem, least_share) > 1).any():
        return
    since, (whole, parts), options = time.monotonic(), found, search.options
    limit = search.deadline.sooner(search.parameters.portfolio.fused_share * search.deadline.left_s)
    ways: list[Callable[[], Any]] = [
        lambda: synthesize(whole, replace(options, progress=None), limit).schedule
    ]
    if suits(whole) and not whole.clauses.merging.issuperset(whole.links_allowed):
        # What a rank sends on chunk by chunk is sooner there than it seems, and may be the best.
        ways.insert(
            0, lambda: schedule_large(whole, merges=True, num_runs=1, seed=options.seed, deadline=limit)
        )
    finish_us = None
    for way in ways:
        with suppress(NoSolutionError, OutOfTime):
            best = way()
            listed = best.expand() if isinstance(best, CompactSchedule) else best
            schedule = parted(listed, search.problem, parts)
            search.offer_whole(schedule, producer=schedule.producer, proposed=True)
            finish_us = search.best_us
    status = "no-solution" if finish_us is None else "done"
    search.record("in one chunk a rank", "taccl", status, since, finish_us=finish_us)
