"""Searches whose time ends at an arbitrary reading of the clock."""

import time

import pytest

import taccl
from taccl import topologies
from taccl._internal.deadline import Deadline
from taccl.synthesis import bounding
from taccl.synthesis.search import Options, Search
from tests.fuzzing import MANY, thinned

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
