"""Scaling of linear models to integers."""

import pytest

from taccl.solvers.cpsat import NotScalableError, to_whole_numbers
from taccl.solvers.model import MilpModel
from tests.solvers.solver_models import assignment, two_jobs


def test_decimals_are_read_as_written():
    """0.1 x + 0.25 y <= 0.3 is scaled by 20 to 2 x + 5 y <= 6."""
    model = MilpModel()
    x, y = model.add_variable(0, 9, integer=True), model.add_variable(0, 9, integer=True)
    model.add_row([(0.1, x), (0.25, y)], upper=0.1 + 0.2, tag="a")
    assert to_whole_numbers(model.arrays()).rows == [([x, y], [2, 5], None, 6)]


def test_difference_rows_have_an_exact_grid():
    """Difference constraints with 2.5 and 1.5 have an exact grid of halves."""
    whole = to_whole_numbers(two_jobs().arrays())
    assert (whole.grid, whole.exact) == (2, True)


def test_other_continuous_rows_have_not():
    """x + y <= 1 in continuous variables has no exact grid."""
    model = MilpModel()
    model.add_row([(1, model.add_variable(0, 1)), (1, model.add_variable(0, 1))], upper=1, tag="sum")
    assert not to_whole_numbers(model.arrays()).exact


def test_whole_models_need_no_grid():
    """Models without continuous variables need no grid."""
    whole = to_whole_numbers(assignment().arrays())
    assert (whole.grid, whole.exact) == (1, True)


def test_too_many_digits_are_refused():
    """The square root of two is not a decimal with few digits."""
    model = MilpModel()
    model.add_row([(2**0.5, model.add_variable(0, 1, integer=True))], upper=1, tag="irrational")
    with pytest.raises(NotScalableError, match="digits"):
        to_whole_numbers(model.arrays())


def test_sums_past_64_bits_are_refused():
    """Sums that may exceed 64 bits are refused: 10**12 times a variable up to 10**9 passes 2**62."""
    model = MilpModel()
    model.add_row([(10**12, model.add_variable(0, 10**9, integer=True))], upper=1, tag="huge")
    with pytest.raises(NotScalableError, match="huge"):
        to_whole_numbers(model.arrays())
