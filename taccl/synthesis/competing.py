"""Baselines that compete with what a search finds, where they obey the same sketch."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from taccl.analysis.verification.verify import verify
from taccl.baselines import BASELINES, baseline
from taccl.errors import InputError
from taccl.schedule.compact import CompactSchedule
from taccl.synthesis.balanced import search_balanced

if TYPE_CHECKING:
    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.synthesis.parameters import SearchParameters
    from taccl.synthesis.search import Search

#: Baselines that switches and servers are searched by, and nobody else.
_APART = ("in-network", "servers")


def sums_are_small(problem: Problem) -> bool:
    """Whether sums are so small that latency counts most: some link takes longer to pass than to fill."""
    links, num_bytes = problem.topology.links, sum(problem.chunk_bytes)
    return problem.collective.sums_up and any(
        links[e].alpha_us * 10**6 > links[e].beta_us_per_mb * num_bytes for e in problem.links_allowed
    )


def offer_baselines(search: Search) -> None:
    """Offer well-known algorithms that obey the same sketch, where they take a moment and finish sooner."""
    problem, since, portfolio = search.problem, time.monotonic(), search.parameters.portfolio
    arrivals = _arrivals(problem)
    if arrivals > portfolio.baseline_arrivals or isinstance(search.best, CompactSchedule):
        if not search.is_met:
            search_balanced(search, most_transfers=portfolio.balanced_transfers, competes=True)
        return
    names = [name for name in BASELINES if name not in _APART]
    if sums_are_small(problem):  # those for small messages first
        names.reverse()
    for name in names:
        # The first, and what takes less still, has its moment even where the search took all of the time.
        left_s = max(search.deadline.left_s, portfolio.baseline_least_s)
        is_late = arrivals * portfolio.baseline_s_per_arrival > left_s
        if search.is_met or (is_late and name != names[0]):
            return
        with suppress(InputError):  # it is not defined here
            other = _as_asked(name, problem)
            if (search.best is None or other.finish < search.best.finish) and verify(other).ok:
                search.offer_whole(other, producer=other.producer, verified=True)
                search.record("baselines", "taccl", "done", since, finish_us=other.finish_us, message=name)


def ring_us(problem: Problem, parameters: SearchParameters) -> float:
    """When a ring finishes, if it may compete: infinity where there are too many chunks, or it is none."""
    if _arrivals(problem) <= parameters.portfolio.baseline_arrivals:
        with suppress(InputError):  # it is not defined here
            ring = _as_asked("ring", problem)
            if verify(ring).ok:
                return ring.finish_us
    return math.inf


def sums_apart(problem: Problem) -> Schedule | None:
    """Every contribution sent to all that want the sum, where the sketch lets it."""
    with suppress(InputError):  # it is not defined here
        found = _as_asked("one-shot", problem)
        if verify(found).ok:
            return found
    return None


def _arrivals(problem: Problem) -> int:
    return sum(len(chunk.destinations) for chunk in problem.collective.chunks)


def _as_asked(name: str, problem: Problem) -> Schedule:
    """A baseline of the problem's own chunks, to be judged by all that its sketch says."""
    return replace(baseline(name, problem, cut=False), problem=problem)
