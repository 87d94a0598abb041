"""Equal chunks searched as a single chunk per rank, if all chunks may travel in one send.

Small sums cut into many chunks can finish as early as with one chunk per rank. But a search in many chunks
does not find such schedules. So they are searched with one chunk per rank, over a topology with adjusted
costs: a send that may not merge takes as long as the sends of all its chunks in sequence. The schedules found
there are then expanded to all chunks.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taccl._internal.deadline import OutOfTime
from taccl.errors import NoSolutionError
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.schedule.timing import exact_times
from taccl.synthesis.kernels.fabric import most_merged
from taccl.synthesis.proposers.large import schedule_large, suits
from taccl.synthesis.search import Search

#: Share of the time for the search with a single chunk per rank.
_FUSED_SHARE = 0.4


def fused(problem: Problem) -> tuple[Problem, list[list[int]]] | None:
    """(problem with one chunk per rank, original chunks of each); None if the problem does not allow it.

    It applies if all chunks may merge into one send on some links, and the sketch has no other clauses.
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
        return each if link in clauses.merging else each._replace(alpha_us=many * each.alpha_us)

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
    """Convert a schedule of the problem that `fused` returned to a schedule of the original problem.

    A send that may not merge becomes a sequence of sends, one per original chunk. Each of them carries the
    same contributions as the send of the single chunk. The last of them may arrive later than that send.

    If two ranks exchange sums, and only one direction merges, this deadlocks: the merged send waits for the
    last chunk of the other direction, whose first chunk waits for the merged send. Such chunks are sent in
    sequence both ways; if sends would still wait for each other, so are all chunks.

    Raises `NoSolutionError` if the ticks of the two problems do not fit, or if sends would wait for each
    other.
    """
    # Larger chunks never need finer ticks.
    finer, rounded = divmod(problem.costs.ticks_per_us, schedule.problem.costs.ticks_per_us)
    if rounded:
        raise NoSolutionError("times of the fused problem are none of the problem's", bound_us=None)
    may_merge = np.isin(schedule.link, sorted(problem.clauses.merging))
    exchanged = may_merge & np.isin(schedule.group, schedule.group[_overlapping(schedule, ~may_merge)])
    ways = [may_merge, may_merge & ~exchanged][: 1 + bool(exchanged.any())]
    for some in (ways, [np.zeros_like(may_merge)]):
        found = []
        for together in some:
            with suppress(ValueError):
                found.append(_cut(schedule, problem, parts, together, finer))
        if found:
            return min(found, key=lambda each: each.finish_ticks)
    raise NoSolutionError("parts of the fused problem's sends wait for each other", bound_us=None)


def _overlapping(schedule: Schedule, alone: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(num_transfers,) True for reductions during which the destination sends the same chunk, unmerged.

    - `alone`, (num_transfers,): True for transfers in sends that do not merge.
    """
    links, sent = schedule.problem.topology.links, defaultdict[tuple[int, int], list[tuple[int, int]]](list)
    columns = [column.tolist() for column in (schedule.chunk, schedule.link, schedule.start, schedule.end)]
    transfers = list(zip(*columns, strict=True))
    for (chunk, link, start, end), is_alone in zip(transfers, alone.tolist(), strict=True):
        for rank in links[link].srcs if is_alone else ():
            sent[rank, chunk].append((start, end))
    found = [
        any(since < end and start < until for rank in links[link].dsts for since, until in sent[rank, chunk])
        for chunk, link, start, end in transfers
    ]
    return np.array(found, bool) & schedule.reduce


def _cut(
    schedule: Schedule,
    problem: Problem,
    parts: Sequence[Sequence[int]],
    together: NDArray[np.bool_],
    finer: int,
) -> Schedule:
    """The schedule with each single chunk cut into its original chunks.

    Raises `ValueError` if sends would wait for each other.

    - `together`, (num_transfers,): True for transfers whose chunks stay in one send.
    - `finer`: Ticks of the original problem per tick of the schedule's problem.
    """
    many, sums = problem.collective.chunks_per_rank, schedule.contributions
    row = np.repeat(np.arange(len(schedule)), many)
    place = np.tile(np.arange(many), len(schedule))
    return exact_times(
        problem,
        chunk=np.array(parts)[schedule.chunk[row], place],
        link=schedule.link[row],
        # These times only fix the order of sends and arrivals; `exact_times` computes new ones.
        starts=schedule.start[row] * finer,
        ends=schedule.end[row] * finer,
        group=schedule.group[row] * many + np.where(together[row], 0, place),
        reduce=schedule.reduce[row],
        contributions=None if sums is None else [sums[i] for i in row.tolist()],
        producer=schedule.producer,
    )


def offer_fused(search: Search) -> None:
    """Propose a schedule found with a single chunk per rank, if merging all chunks pays on some link."""
    found, least_share = fused(search.problem), search.parameters.large.merging_share
    pays = (most_merged(search.problem, least_share) > 1).any()
    if found is None or search.solve is None or not pays:
        return
    since, (whole, parts), options = time.monotonic(), found, search.options
    limit = search.deadline.sooner(_FUSED_SHARE * search.deadline.left_s)
    ways: list[Callable[[], Schedule]] = [partial(search.solve, whole, options.unobserved, limit)]
    if suits(whole) and not whole.clauses.merging.issuperset(whole.links_allowed):
        # Not all links merge sends. The original chunks are relayed one by one over the others, and finish
        # sooner than the fused model predicts. So the schedule of the compiled scheduler may be the best.
        compiled = partial(schedule_large, whole, merges=True, num_runs=1, seed=options.seed, deadline=limit)
        ways.insert(0, compiled)
    finish_us = None
    for way in ways:
        with suppress(NoSolutionError, OutOfTime):
            schedule = parted(way(), search.problem, parts)
            search.offer_whole(schedule, producer=schedule.producer, proposed=True)
            finish_us = search.best_us
    status = "no-solution" if finish_us is None else "done"
    search.record("single-chunk reduction", "taccl", status, since, finish_us=finish_us)
