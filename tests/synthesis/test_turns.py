"""Rounds ("turns") of the portfolio and of a named solver: results up to some time do not depend on the time limit."""

import math
import time
from types import SimpleNamespace

import pytest

import taccl
from taccl._internal.deadline import Deadline
from taccl.solvers import solver
from taccl.synthesis.options import Options
from taccl.synthesis.proposers import ruin, solver_loop, solver_stages, stages, table
from taccl.synthesis.proposers.solver_stages import Routed
from taccl.synthesis.search import Search
from taccl.synthesis.stopping import BOUND_MET, NOTHING_BETTER


@pytest.fixture
def turns(monkeypatch):
    """Function that returns the seconds of each round ("turn") of a search in which no stage improves."""

    def lengths(limit_s, backend="auto", found=()):
        asked = []
        monkeypatch.setattr(stages, "run", lambda search, stages: asked.append(search.turn_s))
        deadline = SimpleNamespace(left_s=limit_s)
        search = SimpleNamespace(
            deadline=deadline, backend=backend, done=False, finish=1, prefix="", stages=found, kept_s=0.0,
            allow=lambda seconds: None,
        )  # fmt: skip
        stages._in_turns(search)
        return asked

    return lengths


@pytest.mark.parametrize("limit_s", [3.0, 12.0, 30.0])
def test_turns_are_as_long_at_every_limit(limit_s, turns):
    """At every time limit the first round of the portfolio has 4 s and the second 8 s. The second is the
    last, as it finds nothing."""
    assert turns(limit_s) == [4.0, 8.0]


def test_a_proven_job_shop_of_all_hops_ends_the_turns(turns):
    """Once a job shop of all hops is proven optimal, no further round begins."""
    assert turns(12.0, found=[SimpleNamespace(name="joint", status="optimal")]) == [4.0]


def test_a_named_backend_has_one_turn(turns):
    """With a named backend the search is a single round of the whole time limit."""
    assert turns(12.0, "greedy") == [12.0]


def test_an_early_ruin_takes_its_time_from_the_last_one(monkeypatch):
    """Ruin and recreate has 0.3 of a turn, of the seconds reserved for it; after the turns they are missing.

    A turn has 4 s, so its run has 1.2 s. It ends at once, so that the deadline after the turns is as before.
    """
    problem = taccl.make_problem(taccl.topologies.ring(4), "allgather", size_bytes="1MB")
    search = Search(problem, Options(), Deadline.after(100.0), backend="auto")
    left_s = []
    monkeypatch.setattr(ruin, "busy_factor", lambda: 1.0)
    monkeypatch.setattr(ruin, "ruin_and_recreate", lambda each: left_s.append(each.deadline.left_s))
    monkeypatch.setattr(stages, "run", lambda each, _: ruin.ruin_early(each))
    with search.keeping(30.0):
        before = search.deadline.at_s
        stages._in_turns(search)
        assert search.kept_s == 30.0
        assert search.deadline.at_s == pytest.approx(before, abs=0.1)
    assert left_s == pytest.approx([1.2, 2.4], abs=0.1)


def test_an_early_ruin_needs_reserved_time():
    """Without seconds reserved for ruin and recreate, and in a phase of a sum, it does not run in turns."""
    problem = taccl.make_problem(taccl.topologies.ring(4), "allgather", size_bytes="1MB")
    search = Search(problem, Options(), Deadline.after(100.0), backend="auto")
    with search.keeping(30.0):
        part = search.part(problem, "reduce: ", search.deadline)
        part.kept_s = 30.0
        assert not stages._may_ruin_early(part)
    assert not stages._may_ruin_early(search)


@pytest.fixture
def loop(monkeypatch):
    """Function that returns the steps of a named solver's loop of 20 steps, in which nothing improves.

    A step is (name, seconds); the seconds are those of routing, and of the turn for ruin and recreate.
    """

    def steps(limit_s, *, status="feasible", is_optimal=False, idle_s=math.inf):
        problem = taccl.make_problem(taccl.topologies.ring(4), "allgather", size_bytes="1MB")
        rival = Search(problem, Options(backend="scip"), Deadline.after(limit_s))
        stages.greedy(rival, budget_s=0.0, max_runs=1)
        search = rival.part(problem, "", rival.deadline, rival=rival)
        done = []

        def step(name, seconds=0.0):
            done.append((name, round(seconds, 2)))
            if len(done) == 20:
                search.interrupt()

        def route(search, solver, *, budget_s, **options):
            step("routing", budget_s)
            search.record("routing", solver, status, time.monotonic())
            return Routed({}, 0, is_optimal) if status == "feasible" else None

        monkeypatch.setattr(Search, "idle_s", idle_s)
        monkeypatch.setattr(solver_loop, "busy_factor", lambda: 1.0)
        monkeypatch.setattr(solver_loop, "route", route)
        monkeypatch.setattr(solver_loop, "_sequenced", lambda *_: rival.best_on_quotient)
        monkeypatch.setattr(solver_loop, "_to_sequence", lambda *_: frozenset())
        monkeypatch.setattr(solver_loop, "_cuts", lambda *_: [])
        monkeypatch.setattr(solver_loop, "improve_by_job_shop", lambda *_: step("improve"))
        solver_loop.alone(search, "scip", lambda: step("ruin", search.turn_s))
        return done

    return steps


@pytest.mark.parametrize("limit_s", [300.0, 3000.0])
def test_a_named_solver_has_turns_of_doubling_length(limit_s, loop):
    """At every time limit routing of a named solver has 1 s, then 2 s, then 4 s if nothing is proven."""
    assert [seconds for name, seconds in loop(limit_s) if name == "routing"][:4] == [1.0, 2.0, 4.0, 8.0]


def test_a_named_solver_that_proves_its_routing_keeps_its_turns(loop):
    """After a routing that is proven optimal the next turn is as long."""
    done = loop(300.0, is_optimal=True)
    assert done[:6] == [("routing", 1.0), ("ruin", 4.0), ("improve", 0.0)] * 2


def test_a_named_solver_without_a_routing_goes_on(loop):
    """If the solver finds no routing in time, improvement follows, and the next routing has twice the time."""
    names = [name for name, _ in loop(300.0, status="no-solution")]
    assert names[:5] == ["routing", "ruin", "improve", "routing", "ruin"]
    assert loop(300.0, status="crashed") == [("routing", 1.0)]


def test_a_named_solver_ends_after_an_idle_turn(loop):
    """If no time is left for improvement, the loop ends after a turn that improved neither finish nor bound."""
    assert [name for name, _ in loop(300.0, idle_s=0.0)] == ["routing", "ruin", "improve"]


def test_a_solver_is_killed_soon_after_the_deadline_of_its_search(monkeypatch):
    """A solver that does not end by itself is killed 0.75 s after the deadline; its stage says so."""
    problem = taccl.make_problem(taccl.topologies.ring(4), "allgather", size_bytes="1MB")
    monkeypatch.setattr(solver, "solver_task", lambda _: ("pulp", "tests.solvers.faults:stall"))
    search = Search(problem, Options(backend="highs"), Deadline.after(0.3), backend="highs")
    search.best = taccl.baselines.ring(problem)
    began = time.monotonic()
    assert solver_stages.route(search, "highs", budget_s=20.0) is None
    assert time.monotonic() - began < 3.0
    assert search.stages[-1].status == "no-solution"
    assert search.stages[-1].message.startswith("gave no answer within its time of 20 s; give more time")


@pytest.mark.parametrize(
    ("stopped", "is_open", "finish_us", "turns"),
    [
        (BOUND_MET, True, 12.0, table.LAST),
        (BOUND_MET, True, 10.0, table.LAST_OF_OTHERS),
        (BOUND_MET, False, 12.0, table.LAST_OF_OTHERS),
        (NOTHING_BETTER, True, 10.0, table.LAST),
    ],
)
def test_baselines_follow_if_other_chunks_may_be_earlier(monkeypatch, stopped, is_open, finish_us, turns):
    """Baselines are the last to run, unless the bound for the chunks asked, or over all chunkings, is met."""
    monkeypatch.setattr(table, "no_bound", lambda problem: problem)
    monkeypatch.setattr(table, "known_bound_over_all_chunkings", lambda _: SimpleNamespace(bound_us=10.0))
    search = SimpleNamespace(
        problem=None, others=[SimpleNamespace(stopped=stopped)], is_open=is_open, earliest_us=finish_us
    )
    assert table.last_turns(search) is turns
