"""Irreducible sets of tags that make a model infeasible."""

from __future__ import annotations

import pytest

from taccl.errors import InputError, NoSolutionError
from taccl.solvers import conflict as conflict_module
from taccl.solvers.conflict import smallest_conflict
from taccl.solvers.model import MilpModel
from taccl.solvers.registry import known_solvers, solver_infos

_INFOS = {info.name: info for info in solver_infos()}


def three_blocks() -> MilpModel:
    """x + y >= 3 (much), x <= 1 (little), y <= 1 (less), and x - y = 0 (same), over whole x and y."""
    model = MilpModel()
    x, y = (model.add_variable(0, 10, integer=True, cost=1.0) for _ in range(2))
    model.add_row([(1, x), (-1, y)], 0, 0, tag="same")
    model.add_row([(1, x), (1, y)], 3, tag="much")
    model.add_row([(1, x)], upper=1, tag="little")
    model.add_row([(1, y)], upper=1, tag="less")
    return model


@pytest.mark.parametrize("solver", known_solvers())
def test_every_solver_finds_the_blocks(solver):
    """x <= 1, y <= 1 and x + y >= 3 clash; that x = y is no part of it.

    The filter goes through the tags in order. Without `same` the others still clash, so it stays out. Without
    `much`, (0, 0) is a point; without `little`, (2, 1); without `less`, (1, 2): these three stay.
    """
    if not _INFOS[solver].available:
        pytest.skip(f"{solver} is not here: {_INFOS[solver].why_not}")
    found = smallest_conflict(three_blocks(), solver)
    assert found is not None
    assert found.tags == ("much", "little", "less")
    assert found.irreducible
    assert found.num_solves == 5


def test_feasible_model_has_no_conflict():
    """x >= 1 with x <= 10 has a point."""
    model = MilpModel()
    model.add_row([(1, model.add_variable(0, 10))], 1, tag="some")
    assert smallest_conflict(model) is None


def test_kept_rows_are_no_part_of_the_answer():
    """With `much` always held and `same` too, either of the other two clashes alone: x = y <= 1, x + y >= 3."""
    found = smallest_conflict(three_blocks(), keep=("much", "same"))
    assert found is not None
    assert found.tags == ("less",)


def test_conflict_of_integrality():
    """2x = 1 has a point, but no whole one: the tag is found although the relaxation is feasible."""
    model = MilpModel()
    x = model.add_variable(0, 5, integer=True)
    model.add_row([(2, x)], 1, 1, tag="half")
    model.add_row([(1, x)], upper=4, tag="idle")
    found = smallest_conflict(model)
    assert found is not None
    assert found.tags == ("half",)


def test_bounds_that_no_row_causes():
    """A variable whose bounds cross clashes with no tag at all."""
    model = MilpModel()
    model.add_row([(1, model.add_variable(2, 1))], 0, tag="idle")
    found = smallest_conflict(model)
    assert found is not None
    assert found.tags == ()


def test_all_rows_of_a_tag_count_as_one():
    """x >= 2 and y >= 2 under one tag clash with x <= 1; the tag of y <= 5 is idle."""
    model = MilpModel()
    x, y = model.add_variable(), model.add_variable()
    model.add_row([(1, y)], upper=5, tag="idle")
    model.add_row([(1, x)], 2, tag="floor")
    model.add_row([(1, x)], upper=1, tag="roof")
    model.add_row([(1, y)], 2, tag="floor")
    found = smallest_conflict(model)
    assert found is not None
    assert found.tags == ("floor", "roof")


def test_no_time_is_said():
    """With no time at all nothing can be told."""
    with pytest.raises(NoSolutionError, match="could not tell in 0 s"):
        smallest_conflict(three_blocks(), time_limit_s=0)


def test_time_that_runs_out_keeps_blocks(monkeypatch):
    """Once time is up, blocks that were not tried stay in, and the answer says so."""
    clock = iter([0.0, 0.0, 100.0, 100.0, 100.0, 100.0, 100.0])
    monkeypatch.setattr(conflict_module.time, "monotonic", lambda: next(clock, 100.0))
    statuses = []

    def infeasible(model, solver, **options):
        from taccl.solvers.solver import Solution

        statuses.append(model.num_rows)
        return Solution(solver, "", "infeasible", None, None, None, 0.0, None, "", ())

    monkeypatch.setattr(conflict_module, "solve", infeasible)
    found = smallest_conflict(three_blocks(), time_limit_s=50)
    assert found is not None
    assert found.tags == ("same", "much", "little", "less")
    assert not found.irreducible
    assert statuses == [4]


def test_unknown_solver():
    """A wrong name is bad input, as it is for `solve`."""
    with pytest.raises(InputError, match="glpk"):
        smallest_conflict(three_blocks(), "glpk")
