"""The performance profile: a curve for each backend."""

import pytest

import taccl
from taccl.errors import InputError
from taccl.explore.rows import frame, new_row


def row(backend, finish_us, size_bytes=1000):
    """Row of a run; without a finish it has no schedule."""
    return new_row(backend=backend, sketch="none", seconds=2.0, finish_us=finish_us, size_bytes=size_bytes)


def curves(rows):
    """{backend: points of its curve}."""
    ax = taccl.plot.performance_profile(frame(rows))
    return {line.get_label(): [tuple(map(float, point)) for point in line.get_xydata()] for line in ax.lines}


def test_a_curve_rises_by_a_problem_at_the_ratio_to_its_best():
    """Two backends that are each best at one of two sizes, and need twice the best at the other, have equal
    curves."""
    rows = [row("highs", 1.0), row("scip", 2.0), row("highs", 4.0, 2000), row("scip", 2.0, 2000)]
    for points in curves(rows).values():
        assert points[:3] == [(1.0, 0.0), (1.0, 0.5), (2.0, 1.0)]


def test_a_run_without_a_schedule_keeps_its_curve_below_one():
    """A backend that solves one of two problems has a curve that ends at 1/2."""
    found = curves([row("highs", 1.0), row("scip", 1.0), row("highs", None, 2000), row("scip", 1.0, 2000)])
    assert found["highs"][-1][1] == 0.5
    assert found["scip"][-1][1] == 1.0


def test_a_table_without_a_schedule_is_an_error():
    """A table without any schedule is refused, as there is no best to compare with."""
    with pytest.raises(InputError, match="no run with a schedule"):
        curves([row("highs", None)])
