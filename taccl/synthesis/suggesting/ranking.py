"""What a sketch is good for, in a moment: a verified schedule of the list scheduler, and its finish."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from taccl.analysis.verification.verify import verify
from taccl.deadline import NEVER, Deadline
from taccl.schedule.combine import concatenate, reduction_half, reverse, spreading_half
from taccl.synthesis import stages
from taccl.synthesis.large import effort, schedule_large, suits
from taccl.synthesis.search import Options, Search
from taccl.synthesis.timing_group import timing_group
from taccl.synthesis.twins import find_twin, hand_over

if TYPE_CHECKING:
    from taccl.problem import Problem
    from taccl.schedule.compact import CompactSchedule
    from taccl.schedule.schedule import Schedule

__all__ = ["quick_schedule"]

#: With more moves than this, once folded, the list scheduler's first run is no longer quick.
_MOST_MOVES = 40_000
#: Runs of the list scheduler: each of its noises with each of its patiences.
_MOST_RUNS = 15


def quick_schedule(
    problem: Problem, *, budget_s: float = 0.5, seed: int = 0, give_up: Deadline = NEVER
) -> Schedule | CompactSchedule | None:
    """A verified schedule by the list scheduler; None where none is found, or not quickly.

    Parameters
    ----------
    budget_s : float
        For a few restarts, of each half of a reduction.
    give_up : Deadline
        When to stop without a schedule; by default the first run is always finished.

    Raises
    ------
    OutOfTime
        If that passed before there was one.
    """
    if effort(problem) > _MOST_MOVES * timing_group(problem).counted:
        if not suits(problem):
            return None
        found = schedule_large(problem, num_runs=1, seed=seed)
        verify(found).raise_if_failed()
        return found
    collective = problem.collective
    if not collective.combining or collective.derivations:
        return _search(problem, budget_s, seed, give_up).best
    first = _search(reduction_half(problem), budget_s, seed, give_up)
    if first.best is None:
        return None
    reduction = reverse(first.best, problem)
    if all(set(chunk.destinations) == {chunk.root} for chunk in collective.chunks):
        return _verified(reduction)
    half = spreading_half(problem)
    twin = find_twin(first.problem, half)
    second = Search(half, first.options, first.deadline, 0, give_up=give_up)
    if twin is None or not hand_over(first, second, twin) or second.best is None:
        second = _search(half, budget_s, seed, give_up)
    if second.best is None:
        return None
    return _verified(concatenate([reduction, replace(second.best, problem=problem)], problem))


def _search(problem: Problem, budget_s: float, seed: int, give_up: Deadline) -> Search:
    options = Options(threads=1, seed=seed, memory_limit_mb=None, log=False, progress=None)
    search = Search(problem, options, min(give_up.at_s, time.monotonic() + 60.0), 0, give_up=give_up)
    stages.greedy(search, budget_s=budget_s, max_runs=_MOST_RUNS)
    return search


def _verified(schedule: Schedule) -> Schedule:
    verify(schedule).raise_if_failed()
    return schedule
