"""Baselines that compete with what a search finds, where they obey the same sketch."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from taccl.analysis.verification.verify import verify
from taccl.baselines import BASELINES, baseline
from taccl.errors import InputError
from taccl.schedule.compact import CompactSchedule
from taccl.synthesis.balanced import search_balanced
from taccl.topology.recognise import dimensions

if TYPE_CHECKING:
    from taccl.deadline import Deadline
    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.synthesis.parameters import SearchParameters
    from taccl.synthesis.search import Search

#: Baselines that switches and servers are searched by, and nobody else.
_APART = ("in-network", "servers")
#: Those that name what travels, of as many transfers as there are contributions, or so many at most.
_NAMED, _MOST_NAMED = ("one-shot", "multiplying"), 400_000


def sums_are_small(problem: Problem) -> bool:
    """Whether sums are so small that latency counts most: some link takes longer to pass than to fill."""
    if not problem.collective.sums_up:
        return False
    costs, allowed = problem.costs, np.array(problem.links_allowed, dtype=np.int64)
    units = int(costs.chunk_units.sum())
    return bool((costs.link_alpha > units * costs.link_beta)[allowed].any())


def offer_baselines(search: Search, share: float = 1.0) -> None:
    """Offer well-known algorithms that obey the same sketch, where they take a moment and finish sooner.

    - `share`: Of the time that is left, which they may take.
    """
    problem, since, portfolio = search.problem, time.monotonic(), search.parameters.portfolio
    if not _may_compete(problem, search.parameters) or isinstance(search.best, CompactSchedule):
        late = _balanced_s(problem, search.parameters) > max(
            search.deadline.left_s, portfolio.balanced_least_s
        )
        if not (search.is_met or search.interrupted or late):
            search_balanced(search, most_transfers=portfolio.balanced_transfers, competes=True)
        return
    names = [name for name in BASELINES if name not in _APART]
    if sums_are_small(problem):  # those for small messages first
        names.reverse()
    until = search.deadline.sooner(share * search.deadline.left_s)
    longest_s = competing_s(problem, until.left_s, search.parameters)
    named_s = min(_contributions(problem), _MOST_NAMED) * portfolio.named_s_per_transfer
    for name in names:
        begun = time.monotonic()
        if name in _NAMED and named_s > until.left_s:
            continue
        # What takes very little has its moment even where the search took all of the time.
        if search.is_met or longest_s > max(until.left_s, portfolio.baseline_least_s):
            return
        with suppress(InputError):  # it is not defined here
            other = _as_asked(name, problem)
            if (search.best is None or other.finish < search.best.finish) and verify(other).ok:
                search.offer_whole(other, producer=other.producer, verified=True)
                search.record("baselines", "taccl", "done", since, finish_us=other.finish_us, message=name)
        longest_s = max(longest_s, time.monotonic() - begun)


def competing_s(problem: Problem, left_s: float, parameters: SearchParameters) -> float:
    """About what `offer_baselines` takes for each of what it offers; 0 where there is nothing in time."""
    if _may_compete(problem, parameters):
        portfolio = parameters.portfolio
        return (
            _arrivals(problem) * portfolio.baseline_s_per_arrival
            + len(problem.topology.links) * portfolio.baseline_s_per_link
        )
    balanced_s = _balanced_s(problem, parameters)
    if balanced_s < left_s:
        with suppress(InputError):  # the topology has no dimensions
            dimensions(problem.topology)
            return balanced_s
    return 0.0


def _balanced_s(problem: Problem, parameters: SearchParameters) -> float:
    """About what it takes to balance chunks over dimensions, once found; infinity where that is too much."""
    portfolio, topology = parameters.portfolio, problem.topology
    transfers = 2 * problem.collective.chunks_per_rank * topology.num_ranks**2
    if transfers > portfolio.balanced_transfers:
        return math.inf
    links_s = len(topology.links) * portfolio.baseline_s_per_link
    return transfers * portfolio.balanced_s_per_transfer + links_s


def _may_compete(problem: Problem, parameters: SearchParameters) -> bool:
    """Whether baselines do, and not only what is balanced over dimensions."""
    return _arrivals(problem) <= parameters.portfolio.baseline_arrivals


def ring_us(problem: Problem, limit: Deadline, parameters: SearchParameters) -> float:
    """When a ring finishes, if it may compete: infinity where it is too much to do by then, or it is none."""
    if _may_compete(problem, parameters) and competing_s(problem, limit.left_s, parameters) <= limit.left_s:
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


def _contributions(problem: Problem) -> int:
    """How many contributions all ranks want to their sums, each apart."""
    return sum(len(chunk.origins) * len(chunk.destinations) for chunk in problem.collective.chunks)


def _arrivals(problem: Problem) -> int:
    """Of chunks, or of contributions to their sums where these are more."""
    collective = problem.collective
    ending, starting = (
        np.array([len(ranks) for ranks in ends.sets])[ends.of_chunk]
        for ends in (collective.destination_sets, collective.origin_sets)
    )
    return int(np.maximum(ending, starting * collective.sums_up).sum())


def _as_asked(name: str, problem: Problem) -> Schedule:
    """A baseline of the problem's own chunks, to be judged by all that its sketch says."""
    return replace(baseline(name, problem, cut=False), problem=problem)
