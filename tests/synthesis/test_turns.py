"""Rounds ("turns") of the portfolio: results up to some time do not depend on the time limit."""

from types import SimpleNamespace

import pytest

import taccl
from taccl._internal.deadline import Deadline
from taccl.synthesis.options import Options
from taccl.synthesis.proposers import stages
from taccl.synthesis.search import Search


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
    monkeypatch.setattr(stages, "busy_factor", lambda: 1.0)
    monkeypatch.setattr(stages, "ruin_and_recreate", lambda each: left_s.append(each.deadline.left_s))
    monkeypatch.setattr(stages, "run", lambda each, _: stages._ruin_early(each))
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
