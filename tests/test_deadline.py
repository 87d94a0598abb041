"""`Deadline`: when to stop, and everything long that looks at it."""

from __future__ import annotations

import math
import time

import pytest

import taccl
from taccl import collectives, topologies
from taccl.analysis.certificates.bounds import lower_bound
from taccl.deadline import NEVER, Deadline, OutOfTime
from taccl.errors import NoSolutionError
from taccl.problem import make_problem
from taccl.synthesis.greedy import critical_priorities, list_schedule
from taccl.synthesis.orbits import fold
from taccl.synthesis.search import Options, Search
from taccl.synthesis.suggesting.shape import find_shape
from taccl.synthesis.suggesting.suggest import suggest_for

PAST = Deadline(0.0)


@pytest.fixture(scope="module")
def problem():
    """An allgather on two NDv2 nodes, which has no sketch."""
    return make_problem(topologies.ndv2(2), collectives.allgather(16), size_bytes=1_000_000)


def test_never_comes():
    """It leaves for ever, and checking it does nothing."""
    NEVER.check()
    assert NEVER.left_s == math.inf
    assert not NEVER.has_passed


def test_what_has_passed_leaves_nothing():
    """And checking it raises an error of the search, which says what to do."""
    assert PAST.has_passed
    assert PAST.left_s == 0.0
    with pytest.raises(NoSolutionError, match="give more time"):
        PAST.check()


def test_the_sooner_of_two():
    """A deadline is moved to an earlier time only."""
    far = Deadline.after(1000)
    assert time.monotonic() < far.sooner(10).at_s < far.at_s
    assert far.sooner(10_000) == far
    assert PAST.sooner(10) == PAST


@pytest.mark.parametrize(
    "work",
    [
        lambda problem: fold(problem, give_up=PAST),
        lambda problem: list_schedule(*_folded(problem), deadline=PAST),
        lambda problem: Search(problem, Options(1, 0, None, False, None), math.inf, 0, give_up=PAST),
        lambda problem: find_shape(problem.topology, deadline=PAST),
        lambda problem: suggest_for(problem, give_up=PAST),
    ],
    ids=["fold", "list scheduler", "search", "shape", "suggestions"],
)
def test_long_work_is_given_up(problem, work):
    """By `OutOfTime`, before it has done much."""
    with pytest.raises(OutOfTime):
        work(problem)


def _folded(problem):
    orbits = fold(problem)
    return orbits, critical_priorities(orbits)


def test_a_bound_needs_no_time(problem):
    """However little there is, one is proven; there may be a better one."""
    least = lower_bound(problem, budget_s=0.0, limit_s=0.0)
    assert 0 < least.bound <= lower_bound(problem).bound
    assert least.check()


def test_without_time_the_first_schedule_is_returned(problem):
    """It is verified, bounded, and the result says that no sketch could be tried."""
    result = taccl.synthesize(problem, time_limit_s=1e-3)
    assert taccl.verify(result.schedule).ok
    assert 0 < result.bound_us <= result.finish_us
    assert [stage.message for stage in result.stages if stage.name == "suggest"] == [
        "no time to try a sketch"
    ]
