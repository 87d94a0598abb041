"""What a sketch is good for, in a moment: a verified schedule of the list scheduler, and its finish."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taccl.analysis.verification.verify import verify
from taccl.deadline import NEVER, Deadline
from taccl.synthesis import stages
from taccl.synthesis.halves import search_halves
from taccl.synthesis.large import effort, schedule_large, suits
from taccl.synthesis.paper.timing_group import timing_group
from taccl.synthesis.parameters import DEFAULTS, SearchParameters
from taccl.synthesis.search import Options, Search

if TYPE_CHECKING:
    from taccl.problem import Problem
    from taccl.schedule.compact import CompactSchedule
    from taccl.schedule.schedule import Schedule

__all__ = ["quick_schedule"]


def quick_schedule(
    problem: Problem,
    *,
    budget_s: float = 0.5,
    seed: int = 0,
    give_up: Deadline = NEVER,
    parameters: SearchParameters = DEFAULTS,
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
    suggesting = parameters.suggesting
    if effort(problem) > suggesting.most_ranked_moves * timing_group(problem).counted:
        if not suits(problem):
            return None
        found = schedule_large(problem, num_runs=1, seed=seed, deadline=give_up)
        verify(found).raise_if_failed()
        return found
    search = Search(
        problem, Options(seed=seed, parameters=parameters), give_up, gives_up=give_up is not NEVER
    )
    search_halves(
        search, lambda half: stages.greedy(half, budget_s=budget_s, max_runs=suggesting.ranking_runs)
    )
    if search.best is not None:
        verify(search.best).raise_if_failed()
    return search.best
