"""Rounds ("turns") of the portfolio: results up to some time do not depend on the time limit."""

from types import SimpleNamespace

import pytest

from taccl.synthesis.proposers import stages


@pytest.fixture
def turns(monkeypatch):
    """Function that returns the seconds of each round ("turn") of a search in which no stage improves."""

    def lengths(limit_s, backend="auto", found=()):
        asked = []
        monkeypatch.setattr(stages, "run", lambda search, stages: asked.append(search.turn_s))
        deadline = SimpleNamespace(left_s=limit_s)
        search = SimpleNamespace(
            deadline=deadline, backend=backend, done=False, finish=1, prefix="", stages=found
        )
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
