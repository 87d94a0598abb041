"""Callbacks of a search, stopping rules, and the record of every second."""

from __future__ import annotations

import math
import time

import pytest

import taccl
from taccl._internal.deadline import Cancellation
from taccl.synthesis.observing import Observer, SearchState
from tests.effort import brief_synthesis


def problem_of(collective="allgather", size="64MB"):
    ring = taccl.topologies.ring(4, alpha_us=1, bandwidth_gb_per_s=100)
    return taccl.make_problem(ring, collective, size_bytes=size)


def test_progress_never_goes_back():
    """The finish that is told only falls, and the bound only rises."""
    told = []
    observer = Observer(progress=lambda *news: told.append(news))
    for news in (("a", 5.0, 1.0), ("b", 7.0, 3.0), ("c", None, 2.0), ("d", 4.0, None)):
        observer.report(*news)
    assert told == [("a", 5.0, 1.0), ("b", 5.0, 3.0), ("c", 5.0, 3.0), ("d", 4.0, 3.0)]


def test_a_state_without_a_bound_has_an_infinite_gap():
    assert SearchState(1.0, 5.0, 0.0).gap == math.inf
    assert SearchState(1.0, 6.0, 4.0).gap == 0.5


@pytest.mark.slow
@pytest.mark.parametrize("collective", ["allgather", "allreduce"])
def test_incumbents_get_better_and_end_with_the_result(collective):
    """The last schedule that is told of is the one that is returned."""
    found, bounds, stages = [], [], []
    result = brief_synthesis(
        problem_of(collective),
        on_incumbent=found.append,
        on_bound=bounds.append,
        on_stage=stages.append,
    )
    finishes = [schedule.finish_us for schedule in found]
    assert finishes == sorted(set(finishes), reverse=True)
    assert finishes[-1] == result.finish_us
    proven = [bound.bound_us for bound in bounds]
    assert proven == sorted(set(proven)) and proven
    assert set(result.stages) <= set(stages)


@pytest.mark.slow
def test_a_rule_ends_the_search():
    """The search ends with its first schedule where the rule says so, and the result names the rule."""
    problem = taccl.make_problem(taccl.topologies.dgx1(), "alltoall", size_bytes="8MB")
    asked = []
    result = brief_synthesis(problem, stop_when=lambda state: asked.append(state) or True)
    assert result.stopped == "stopping rule"
    assert len(asked) >= 1 and asked[0].finish_us >= result.finish_us
    assert taccl.verify(result.schedule).ok


def test_a_rule_is_not_asked_before_there_is_a_schedule():
    """Without a schedule there is nothing to return."""
    cancellation = Cancellation()
    problem = problem_of()
    observer = Observer(stop_when=lambda state: True, cancellation=cancellation)
    observer.bound(taccl.lower_bound(problem))
    assert not cancellation.why
    observer.incumbent(taccl.baselines.ring(problem))
    assert cancellation.why == "stopping rule"


@pytest.mark.slow
@pytest.mark.parametrize("collective", ["allgather", "allreduce", "alltoall"])
def test_stages_account_for_the_time(collective, monkeypatch):
    """Rows of the stages add up to 95 % of the CPU of the search, but for 20 ms, and to no more than it."""
    monkeypatch.setattr(time, "monotonic", time.process_time)
    problem = taccl.make_problem(taccl.topologies.dgx1(), collective, size_bytes="1MB")
    result = brief_synthesis(problem)
    table = result.stage_table()
    assert 0.95 * result.seconds - 0.02 <= table.seconds.sum() <= 1.001 * result.seconds
    assert (table.seconds >= -1e-6).all()
