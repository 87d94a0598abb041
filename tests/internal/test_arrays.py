"""Sorts of columns of integers: the results of NumPy's own functions."""

import numpy as np
import pytest

from taccl._internal.arrays import distinct, first_rows, lexsort, numbered

RNG = np.random.default_rng(0)
#: Kinds of columns: (lowest value, highest value, type); together, some need more than 63 bits.
KINDS = (
    (0, 1, bool), (-3, 4, np.int8), (5, 5, np.int64), (-(2**40), 2**40, np.int64), (0, 2**61, np.int64),
    (-(2**63), 2**63 - 1, np.int64), (0, 700, np.int32), (0, 2**63, np.uint64),
)  # fmt: skip


def column(number, num_rows):
    low, high, kind = KINDS[number]
    if kind is np.uint64:
        return RNG.integers(low, high, num_rows, dtype=np.uint64)
    return RNG.integers(low, high, num_rows, dtype=np.int64, endpoint=True).astype(kind)


@pytest.mark.parametrize("num_rows", [0, 7, 301, 1000])
def test_rows_are_in_the_order_of_numpy(num_rows):
    """Columns of any width are sorted stably, in one pass or in several."""
    for seed in range(60):
        which = np.random.default_rng(seed).integers(0, len(KINDS), 1 + seed % 5)
        keys = tuple(column(number, num_rows) for number in which)
        assert (lexsort(keys) == np.lexsort(keys)).all(), which


def test_floats_are_in_the_order_of_numpy():
    """Columns of other types are sorted by NumPy."""
    keys = RNG.random(500), RNG.integers(0, 3, 500)
    assert (lexsort(keys) == np.lexsort(keys)).all()


@pytest.mark.parametrize("num_rows", [0, 1, 50, 2000])
def test_distinct_values_and_their_rows(num_rows):
    """Distinct values, the first row of each, and the number of each row's value."""
    values = RNG.integers(-40, 40, num_rows)
    found, first, number = np.unique(values, return_index=True, return_inverse=True)
    assert (distinct(values) == found).all()
    assert all((a == b).all() for a, b in zip(first_rows(values), (found, first), strict=True))
    assert all((a == b).all() for a, b in zip(numbered(values), (found, first, number), strict=True))
