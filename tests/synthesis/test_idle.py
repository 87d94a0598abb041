"""Searches that end: by themselves without progress, or by the clock at an arbitrary reading."""

import math
import time
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import pytest

import taccl
from taccl import topologies
from taccl._internal.deadline import Deadline
from taccl.errors import InputError
from taccl.synthesis import bounding
from taccl.synthesis.improve import improvement
from taccl.synthesis.kernels.limits import Limits
from taccl.synthesis.options import Options
from taccl.synthesis.proposers import table
from taccl.synthesis.search import Search
from tests.effort import AMPLE_S, brief_synthesis
from tests.fuzzing import MANY, thinned
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


#: Seconds by which the clock jumps: past the time limit, but within the time for a first schedule.
_LIMIT_S = 5.0

PROBLEMS = {
    "reduce": lambda: taccl.make_problem(topologies.dgx_h100(2), "reduce", size_bytes="64MB"),
    "allreduce": lambda: taccl.make_problem(topologies.ring(4), "allreduce", size_bytes="1MB"),
    "alltoall": lambda: taccl.make_problem(topologies.ndv2(1), "alltoall", size_bytes="64KB"),
}


@pytest.fixture
def leaping(monkeypatch):
    """Function that makes the clock jump past the limit after a number of readings."""
    now, looks = time.monotonic, [0, 0]

    def read():
        looks[0] += 1
        return now() + _LIMIT_S * (looks[0] > looks[1])

    def leap_after(count):
        looks[:] = 0, count

    monkeypatch.setattr(time, "monotonic", read)
    return leap_after


@pytest.mark.slow
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_search_that_ends_at_any_look_at_the_clock_has_a_schedule(name, leaping):
    """The result is a verified schedule, no earlier than its bound, at whichever clock reading time ends.

    The limit counts from the second reading, and so ends at the third or later.
    """
    for count in thinned((3, 5, 12, 35, 250, *([100, 600] if MANY else [])), every=2):
        leaping(count)
        found = taccl.synthesize(PROBLEMS[name](), time_limit_s=_LIMIT_S)
        assert taccl.verify(found.schedule).ok, count
        assert found.bound_us <= found.finish_us, count


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_a_late_bound_is_left_out_on_a_busy_machine(monkeypatch, factor):
    """Once time is up, a bound of 3,328 hops (32 chunks, 104 links) is computed only on an idle machine.

    A third of a core would need three times as many seconds for it.
    """
    problem = taccl.make_problem(topologies.mesh(4, 8), "allreduce", size_bytes="256KB").in_its_chunks
    monkeypatch.setattr(bounding, "busy_factor", lambda: factor)
    monkeypatch.setattr(bounding, "bound_within", lambda problem, *_, **__: bounding.no_bound(problem))
    search = Search(problem, Options(), Deadline.after(-1))
    bounding.look_for_bound(search)
    assert (search.bound is None) == (factor == 3.0)


@pytest.mark.parametrize("late_s", [-1.0, 0.6, 30.0])
def test_the_bound_over_all_chunkings_has_less_time_once_the_limit_has_passed(monkeypatch, late_s):
    """Its half second of work shrinks with the time past the limit, to a tenth of a second."""
    problem = taccl.make_problem(topologies.mesh(8, 8), "alltoall", size_bytes="1MB")
    budgets = []
    monkeypatch.setattr(
        bounding, "bound_over_all_chunkings", lambda known, *, budget_s, most_s: budgets.append(budget_s)
    )
    monkeypatch.setattr(bounding, "busy_factor", lambda: 1.0)
    search = Search(problem, Options(ends_s=time.monotonic() - late_s), Deadline.after(-1))
    bounding.look_for_bound_over_all_chunkings(search)
    assert budgets == [pytest.approx({-1.0: 0.5, 0.6: 0.2, 30.0: 0.1}[late_s], abs=0.05)]


@pytest.mark.parametrize(("limit_s", "work_s"), [(2.0, 0.5), (8.0, 2.0), (40.0, 3.0)])
def test_the_bound_of_a_small_problem_leaves_time_to_search_on_a_busy_machine(monkeypatch, limit_s, work_s):
    """At a sixth of a core, half a second of work takes 3 s, but at most a quarter of the time left."""
    problem = taccl.make_problem(topologies.mesh(2, 2), "alltoall", size_bytes="1MB")
    budgets = []
    monkeypatch.setattr(
        bounding, "bound_over_all_chunkings", lambda known, *, budget_s, most_s: budgets.append(budget_s)
    )
    monkeypatch.setattr(bounding, "busy_factor", lambda: 6.0)
    search = Search(problem, Options(ends_s=time.monotonic() + limit_s), Deadline.after(limit_s))
    bounding.look_for_bound_over_all_chunkings(search)
    assert budgets == [pytest.approx(work_s, abs=0.05)]
