"""Linear programs solved in this process: solutions and duals by hand, and against SciPy."""

import numpy as np
import pytest

from taccl.solvers.highs import minimise


def test_solution_and_duals_are_those_by_hand():
    """Solution and duals of a small program equal those computed by hand.

    Max x + y with x + 2 y <= 4 and 3 x + y <= 6 is at (8/5, 6/5); a unit of the first row is worth 2/5.
    """
    found = minimise([-1, -1], ([0, 0, 1, 1], [0, 1, 0, 1], [1, 2, 3, 1]), ([4, 6], []))
    assert found.values == pytest.approx([1.6, 1.2])
    assert found.duals == pytest.approx([-0.4, -0.2])
    assert found.objective == pytest.approx(-2.8)


def test_later_rows_are_equations():
    """Rows after the given number of inequalities are equations.

    Min x + 2 y with x + y = 3 and x <= 1 is met by (1, 2).
    """
    found = minimise([1, 2], ([0, 1, 1], [0, 0, 1], [1, 1, 1]), ([1], [3]))
    assert found.values == pytest.approx([1, 2])


def test_values_of_one_place_are_added():
    """Repeated entries of one matrix position are added: 1 x + 1 x <= 4 gives x = 2."""
    found = minimise([-1], ([0, 0], [0, 0], [1, 1]), ([4], []))
    assert found.objective == pytest.approx(-2)


@pytest.mark.parametrize("bounds", [([-1], []), ([], [-1])])
def test_no_solution_is_none(bounds):
    """Constraints x <= -1 or x = -1 are infeasible, as variables are at least 0."""
    assert minimise([1], ([0], [0], [1]), bounds) is None


def test_nothing_is_printed(capfd):
    """HiGHS prints nothing to standard output."""
    assert minimise([1], ([0], [0], [1]), ([1], [])) is not None
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_objectives_are_those_of_scipy():
    """Optima of twenty random programs equal SciPy's."""
    from scipy.optimize import linprog

    draw = np.random.default_rng(0)
    for _ in range(20):
        matrix = draw.integers(0, 4, (6, 8)) * draw.integers(0, 2, (6, 8))
        matrix[0] = 1
        cost, bounds = -draw.random(8), draw.integers(1, 9, 6)
        entries = (*np.nonzero(matrix), matrix[matrix != 0])
        found = minimise(cost, entries, (bounds, []))
        assert found.objective == pytest.approx(linprog(cost, A_ub=matrix, b_ub=bounds).fun)
