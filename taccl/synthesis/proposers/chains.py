"""Pipelines of derived chunks: pieces of the data follow one another along several paths.

In a scan, each rank derives its chunk from that of the rank before. So all pieces of the data pass through
this chain of ranks. List schedulers route all pieces between two ranks along one path. Here, routes of a few
pieces load all links evenly, and repeat for the pieces that follow. List scheduling then times all sends.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from taccl._internal.deadline import OutOfTime
from taccl._internal.units import format_count
from taccl.baselines.chunking import cut_chunks
from taccl.errors import InputError
from taccl.problem.chunks import Chunk
from taccl.problem.collective import Collective
from taccl.schedule.listing import Tasks
from taccl.schedule.precedence import Precedence
from taccl.schedule.schedule import Schedule
from taccl.synthesis.kernels.fabric import problem_arrays
from taccl.synthesis.kernels.limits import Limits
from taccl.synthesis.proposers.compiling import compile_in_a_row
from taccl.synthesis.proposers.finer import search_for
from taccl.synthesis.proposers.large import suits
from taccl.synthesis.proposers.router import find_trees

if TYPE_CHECKING:
    from taccl.problem.problem import Problem
    from taccl.synthesis.search import Search

#: `_PERIODS`: numbers of consecutive pieces with routes of their own.
#: `_CUTS`: numbers of parts of each chunk, if the number of chunks is open.
#: `_MOST_SENDS`: max sends of a schedule (about 0.15 s of CPU).
_PERIODS, _CUTS, _MOST_SENDS = (1, 2, 3, 4, 6, 8, 12), (1, 6, 12, 24, 48, 96, 192, 384), 5_000
#: Number of the best periods that are tried in the next finer chunks, from `_FINE` parts on.
_BEST_PERIODS, _FINE = 2, 48
#: Max ratio of the finish in finer chunks to the one before for which still finer chunks are tried.
_PAYS = Fraction(99, 100)


def offer_chains(search: Search) -> Search | None:
    """Propose pipelines of derived chunks; if the number of chunks is open, in finer chunks while that pays.

    Returns a search that holds the best schedule, if that is in finer chunks.
    """
    problem, since = search.problem, time.monotonic()
    copies, share = _copies(problem, 1), search.parameters.portfolio.first_share
    limit = search.deadline.sooner(share * search.deadline.left_s)
    if copies is None or not compile_in_a_row(search, copies, limit):
        return None
    best: Schedule | None = None
    limit, periods = search.deadline.sooner(share * search.deadline.left_s), list(_PERIODS)
    with suppress(InputError, OutOfTime), limit.enforced():
        for parts in _CUTS if search.is_open else (1,):
            if parts > min(problem.chunk_bytes):
                break
            finer = cut_chunks(problem, parts) if parts > 1 else problem
            limits, made = Limits(limit, seed=search.options.seed), dict[int, Schedule]()
            for period in periods if parts < _FINE else periods[:_BEST_PERIODS]:
                is_whole = period <= finer.collective.chunks_per_rank
                if is_whole and (found := pipeline(finer, period, limits)) is not None:
                    made[period] = found
            if not made:
                break
            periods.sort(key=lambda each: made[each].finish if each in made else math.inf)
            soonest, before = made[periods[0]], best
            if before is None or soonest.finish < before.finish:
                best = soonest
            if before is not None and soonest.finish > _PAYS * before.finish:
                break
    return _offered(search, best, since)


def _offered(search: Search, best: Schedule | None, since: float) -> Search | None:
    """Propose a pipeline, if there is one, and record the stage.

    Returns a search that holds it, if it is in finer chunks.
    """
    made = None
    if best is not None and best.finish_us < search.earliest_us:
        if best.problem is search.problem:
            search.offer_whole(best, producer=best.producer, proposed=True)
        else:
            made = search_for(search, best)
    finish_us, said = (None, "") if best is None else (best.finish_us, best.producer)
    search.record("chains", "compiled", "done", since, finish_us=finish_us, message=said)
    return made


def pipeline(problem: Problem, period: int, limits: Limits = Limits()) -> Schedule | None:
    """Schedule of derived chunks whose routes repeat after `period` pieces; None if it is not supported.

    Chunks with the same start and destination are pieces of the same data, in order of their numbers.
    """
    copies = _copies(problem, period)
    if copies is None:
        return None
    fabric, demand = problem_arrays(copies)
    routes = find_trees(fabric, demand, limits)
    depth, number = _depths(problem.collective), 0
    rows: list[tuple[int, int, int, int, int]] = []
    for chunks in _kinds(problem.collective).values():
        own = range(number, number + min(period, len(chunks)))
        links = [fabric.link[routes.slot[slice(*routes.hop_of[i : i + 2])]].tolist() for i in own]
        number += len(own)
        for piece, c in enumerate(chunks):
            along = links[piece % period]
            rows += [(depth[c], piece, hop, c, e) for hop, e in enumerate(along)]
    if len(rows) > _MOST_SENDS:
        return None
    depth_of, piece_of, hop_of, chunk, link = np.array(sorted(rows), np.int64).reshape(-1, 5).T
    sends = np.arange(len(rows))
    waits = Precedence(
        problem, problem, chunk=chunk, link=link, group=sends, reduce=np.zeros(len(sends), bool), start=sends,
        places=True,
    )  # fmt: skip
    tasks = Tasks.of_sends(waits)
    tails, last = tasks.tails(), [(math.inf,)] * (waits.num_events - len(sends))
    in_turn = [*zip(piece_of.tolist(), depth_of.tolist(), hop_of.tolist(), strict=True), *last]
    by_tail = [(-tail, turn) for turn, tail in enumerate(tails)]
    said = f"pipeline (routes repeat after {format_count(period, 'piece')})"
    made = (waits.schedule(tasks.starts(rule), producer=said) for rule in (in_turn, by_tail))
    return min(made, key=lambda each: each.finish)


def _copies(problem: Problem, period: int) -> Problem | None:
    """Problem of the first `period` chunks of each kind as copies from one rank to one other, at time 0.

    None if a chunk starts or ends at several ranks, or chunks differ in size. None also if a sketch has
    clauses on anything but merging, or the compiled kernels do not support the links.
    """
    collective, clauses = problem.collective, problem.clauses
    kinds = _kinds(collective)
    is_single = all(len(starts) == len(ends) == 1 for starts, ends in kinds)
    if not (kinds and is_single) or clauses != clauses.only("merge") or len({*problem.chunk_bytes}) > 1:
        return None
    chunks = tuple(Chunk(*ends) for ends, some in kinds.items() for _ in some[:period])
    copies = Collective(f"{collective.name} (copies)", collective.num_ranks, chunks, chunks_per_rank=period)
    sizes = problem.chunk_bytes[:1] * len(chunks)
    found = replace(problem, collective=copies, chunk_bytes=sizes, size_bytes=None, chunks_open=False)
    return found if suits(found) else None


def _kinds(collective: Collective) -> dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]]:
    """{(ranks where a chunk starts or is derived, other ranks that it must reach): such chunks}."""
    found = defaultdict[tuple[tuple[int, ...], tuple[int, ...]], list[int]](list)
    for chunk, (starts, ends) in enumerate(zip(collective.starts, collective.ends, strict=True)):
        if others := tuple(rank for rank in ends if rank not in starts):
            found[starts, others].append(chunk)
    return dict(found)


def _depths(collective: Collective) -> list[int]:
    """Number of derivations that lead to each chunk."""
    depth = [0] * collective.num_chunks
    for each in collective.derivations_in_turn:
        depth[each.chunk] = depth[each.source] + 1
    return depth
