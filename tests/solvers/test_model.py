"""The builder of linear models, and its arrays."""

import re

import numpy as np
import pytest

from taccl.solvers.model import LinearModel, MilpModel
from taccl.solvers.wire import decode, encode


def small():
    """x whole in 0..3, y in 0..10, x + 2y <= 4 (a), 3x = 3 (b)."""
    model = MilpModel()
    x, y = model.add_variable(0, 3, integer=True, cost=1), model.add_variable(0, 10, cost=-1)
    model.add_row([(1, x), (1, y), (1, y)], upper=4, tag="a")
    model.add_row([(3, x), (0, y)], 3, 3, tag="b")
    return model


def test_terms_of_one_variable_are_summed():
    """Repeated terms of a variable in a row are summed into one nonzero."""
    arrays = small().arrays()
    assert arrays.coefficient[arrays.row_start[0] : arrays.row_start[1]].tolist() == [1, 2]


def test_zero_factors_are_dropped():
    """A term with a factor of zero makes no nonzero in the model's matrix."""
    assert small().arrays().num_nonzeros == 3


def test_counts():
    """A model counts its variables and rows."""
    model = small()
    assert (model.num_variables, model.arrays().num_rows) == (2, 2)


def test_rows_have_tags():
    """Tags are numbered in order of first use, and each row has one."""
    model = small()
    model.add_row([(1, 0)], upper=9, tag="a")
    assert model.tags == {"a": 0, "b": 1}
    assert model.arrays().row_tag.tolist() == [0, 1, 0]


def test_arrays_are_read_only():
    """The arrays of a model are read-only."""
    with pytest.raises(ValueError, match="read-only"):
        small().arrays().cost[0] = 5


def test_feasible_point_breaks_nothing():
    """x = 1, y = 1.5 satisfies all rows."""
    assert small().arrays().violations(np.array([1.0, 1.5])) == []


@pytest.mark.parametrize(
    ("point", "word"),
    [
        ([1.0, -1.0], "variable 1"),
        ([1.5, 0.0], "whole number"),
        ([1.0, 2.0], r"row 0 \(a\)"),  # 1 + 4 > 4
        ([0.0, 0.0], r"row 1 \(b\)"),  # 0 != 3
        ([np.nan, 0.0], "finite"),
        ([1.0], "shape"),
    ],
)
def test_violations_name_what_breaks(point, word):
    """`violations` names the variable, or the row and its tag, that a point breaks."""
    broken = small().arrays().violations(np.array(point))
    assert any(re.search(word, line) for line in broken)


def test_message_round_trip():
    """A model sent as a message is unchanged."""
    before = small().arrays()
    message = decode(encode(before.to_message()))
    after = LinearModel.from_message(message)
    assert after.tag_names == before.tag_names
    for name in (
        "cost",
        "lower",
        "upper",
        "integer",
        "row_start",
        "column",
        "coefficient",
        "row_lower",
        "row_tag",
    ):
        assert np.array_equal(getattr(after, name), getattr(before, name))
