"""Gathers and scatters in finer chunks that share messages, improved by ruin and recreate."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from taccl.baselines.chunking import are_pairs, may_merge, merging
from taccl.baselines.moves import Sends
from taccl.problem.costs import wide_links
from taccl.schedule.combine import back_in_time, reverse
from taccl.synthesis.bounding import look_for_bound_over_all_chunkings
from taccl.synthesis.improve.improvement import improve_schedule, suits_improvement
from taccl.synthesis.kernels.limits import Limits
from taccl.synthesis.proposers.compiling import have_compiled
from taccl.synthesis.proposers.finer import cut, is_at_one_rank, search_for

if TYPE_CHECKING:
    from taccl.problem.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.synthesis.search import Search

#: `_PARTS`: numbers of parts of each chunk.
#: `_TURNS`: turns of ruin and recreate on each of them (0.1 s), and then on the best.
#: `_MOST_TRANSFERS`: max transfers of these schedules.
_PARTS, _TURNS, _MOST_TRANSFERS = (1, 2, 3), (3_000, 20_000), 3_000


def gathers_or_scatters(problem: Problem) -> bool:
    """True if each chunk goes from one rank to one rank, and all chunks start, or all end, at one rank."""
    return are_pairs(problem) and is_at_one_rank(problem)


def offer_merged(search: Search) -> Search | None:
    """Propose the earliest schedule of a gather or scatter with merged messages, once improved.

    Returns the search that holds the schedule; None if it is not earlier than the one so far.
    """
    since, first = time.monotonic(), search.earliest_search.best
    if first is None or not may_merge(replace(search.problem, chunks_open=True)):
        return None
    every = look_for_bound_over_all_chunkings(search)
    if (every is not None and first.finish <= every.bound) or not have_compiled(search):
        return None
    tried = [_cut_and_merged(search.problem, first, parts) for parts in _PARTS]
    found = [each for each in tried if each is not None]
    for turns in _TURNS:
        limits = Limits(search.deadline, seed=search.options.seed, parameters=search.parameters)
        if found and not search.done:
            found = [min((_improved(each, limits, turns) for each in found), key=lambda each: each.finish)]
    better = search_for(search, found[0]) if found and found[0].finish < first.finish else None
    said = "none better" if better is None else "messages of a gather or scatter merged"
    finish_us = min(first.finish_us, math.inf if better is None else found[0].finish_us)
    search.record("ruin and recreate", "compiled", "done", since, finish_us=finish_us, message=said)
    return better


def _cut_and_merged(problem: Problem, schedule: Schedule, parts: int) -> Schedule | None:
    """The schedule with each chunk cut into parts that travel together, for a problem that merges messages.

    None if it has too many transfers, or chunks have too few bytes.

    - `problem`: The problem in its own chunks, which those of the schedule are parts of.
    """
    count = parts * schedule.problem.collective.chunks_per_rank // problem.collective.chunks_per_rank
    if parts * schedule.num_transfers > _MOST_TRANSFERS or count > min(problem.chunk_bytes):
        return None
    finer = merging(cut(problem, count))
    if not suits_improvement(finer):
        return None
    sends, part = Sends.of(schedule), np.tile(np.arange(parts), schedule.num_transfers)
    chunk, link, group = (np.repeat(each, parts) for each in (sends.chunk, sends.link, sends.group))
    may_join = np.zeros(len(problem.topology.links), bool)
    may_join[list(finer.clauses.merging)] = True
    begins = (np.diff(group, prepend=-1) > 0) | ((part > 0) & ~may_join[link])
    cut_sends = Sends(chunk * parts + part, link, np.cumsum(begins) - 1, np.zeros(len(chunk), bool))
    return cut_sends.schedule(finer, producer=schedule.producer)


def _improved(schedule: Schedule, limits: Limits, turns: int) -> Schedule:
    """The schedule after ruin and recreate.

    A scatter is improved as a gather in reversed time: there, chunks join messages that wait for a link.
    Multicasts cannot be reversed, as their reverse would have several sources.
    """
    problem = schedule.problem
    if len(problem.collective.destination_sets.sets) == 1 or not _is_reversible(schedule):
        return improve_schedule(schedule, limits, turns=turns)[0]
    gather = improve_schedule(reverse(schedule, back_in_time(problem)), limits, turns=turns)[0]
    found = reverse(gather, problem) if _is_reversible(gather) else schedule
    return min(schedule, found, key=lambda each: each.finish)


def _is_reversible(schedule: Schedule) -> bool:
    """True if all sends are from one rank to one rank."""
    return not np.isin(schedule.link, wide_links(schedule.problem.topology)).any()
