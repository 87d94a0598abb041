"""Searches that end before their time limit because improvement finds nothing."""

import math
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import pytest

import taccl
from taccl._internal.deadline import Deadline
from taccl.errors import InputError
from taccl.synthesis.improve import improvement
from taccl.synthesis.kernels.limits import Limits
from taccl.synthesis.options import Options
from taccl.synthesis.proposers import table
from taccl.synthesis.search import Search
from tests.effort import AMPLE_S, brief_synthesis
from tests.synthesis.small_problems import problem_of, ring

synthesize_module = import_module("taccl.synthesis.synthesize")
PROBLEM = problem_of(ring(4), taccl.collectives.allgather(4))


@pytest.mark.parametrize(("share", "idle_s"), [(None, math.inf), (1 / 3, 6.0), (0.5, 12.0), (0.01, 1.0)])
def test_seconds_for_improvement_follow_from_the_seconds_so_far(share, idle_s, monkeypatch):
    """A search ends after some idle time without improvement, which is a given share of the whole time.

    After 12 s it is 6 s at a share of a third; it is at least 1 s, and unlimited without a share.
    """
    monkeypatch.setattr("taccl.synthesis.search.time.monotonic", lambda: 112.0)
    monkeypatch.setattr("taccl.synthesis.search.busy_factor", lambda: 1.0)
    search = Search(PROBLEM, Options(idle_share=share, began_s=100.0), Deadline(1e9))
    assert search.idle_s == pytest.approx(idle_s)


@pytest.mark.parametrize(("finds", "runs"), [(0, 1), (1, 1), (2, 2), (4, 4)])
def test_successful_improvement_gets_more_time(finds, runs, monkeypatch):
    """Each run that improves the schedule gives the search time for another run; if the first run finds
    nothing, it is the last."""
    schedule = taccl.baselines.ring(PROBLEM)
    asked, finishes = [], [schedule.finish_ticks - i for i in range(1, finds + 1)]

    def idle_s():
        asked.append(None)
        return AMPLE_S if 1 < len(asked) <= finds else 0.0

    class Improving(SimpleNamespace):
        """An improvement that finds the next finish in every run, until none is left."""

        def __init__(self, *_, **__):
            super().__init__(counts=[1, 0, 1])

        def run(self, *, turns):
            self.finish = finishes.pop(0) if finishes else schedule.finish_ticks
            return self.finish

        def schedule(self):
            return SimpleNamespace(finish_ticks=self.finish)

    made = []
    monkeypatch.setattr(improvement, "Improvement", lambda *_, **__: made.append(Improving()) or made[-1])
    monkeypatch.setattr(improvement, "read_trees", lambda _: [])
    improvement.improve_schedule(schedule, Limits(idle_s=idle_s))
    assert len(made) == runs
    assert len(asked) == 1 + finds


@pytest.mark.parametrize(
    ("given", "share"),
    [({"time_limit_s": None}, 1 / 3), ({}, None), ({"idle_share": 0.2}, 0.2)],
    ids=["no limit", "a limit", "both"],
)
def test_only_a_search_without_a_limit_ends_early_by_default(given, share, monkeypatch):
    """A given time limit is used in full unless `idle_share` is given; without a limit the search may end
    early."""
    seen = []
    monkeypatch.setattr(synthesize_module, "begin_compiling", lambda search: seen.append(search.options))
    brief_synthesis(PROBLEM, **given)
    assert seen[0].idle_share == share


@pytest.mark.parametrize("share", [0, 1, -0.5])
def test_a_share_out_of_range_is_an_error(share):
    """`idle_share` of 0 or 1 is refused."""
    with pytest.raises(InputError, match="idle_share: found .*; expected a share above 0 and below 1"):
        taccl.synthesize(PROBLEM, idle_share=share)


def test_a_bound_cut_off_by_its_share_gets_the_rest_of_the_time(monkeypatch):
    """Before a search ends, the bound over all chunkings is computed again in the time that is left."""
    problem = problem_of(ring(4), taccl.collectives.allgather(4))
    budgets = []

    def bound(known, *, budget_s, **_):
        budgets.append(budget_s)
        return known

    monkeypatch.setattr("taccl.synthesis.bounding.bound_over_all_chunkings", bound)
    search = Search(replace(problem, chunks_open=True), Options(), Deadline.after(100.0))
    (turn,) = (each for each in table.LAST if each.proposer.name == "bound over all chunkings")
    turn.proposer.propose(search)
    assert 0.3 * 100 < budgets[0] <= 0.5 * 100
    assert [stage.name for stage in search.stages] == ["bound over all chunkings"]
