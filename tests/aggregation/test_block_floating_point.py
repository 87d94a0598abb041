"""Block floating point: a shared exponent per block, sums within the error bound, no overflow."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl.aggregation import (
    block_error_bounds,
    block_exponents,
    block_scales,
    dequantise,
    dequantise_blocks,
    error_bound,
    largest_scale,
    quantise,
    quantise_blocks,
)
from taccl.aggregation.block_floating_point import LEAST
from taccl.errors import InputError
from tests.fuzzing import fuzzed

numbers = st.floats(-(2.0**100), 2.0**100, width=32) | st.floats(-1, 1) | st.floats(-1e-30, 1e-30)


@fuzzed(few=25, many=3000)
@given(
    rows=st.lists(st.lists(numbers, min_size=5, max_size=5), min_size=1, max_size=9), block=st.integers(1, 6)
)
def test_each_sum_is_within_the_bound_of_its_block(rows, block):
    """Sums of n ranks are off by at most n / (2 * scale), as computed in exact fractions.

    That is n**2 / 2**31 of the block's largest number.
    """
    ranks, agreed = len(rows), np.max([block_exponents(row, block=block) for row in rows], axis=0)
    sums = sum(quantise_blocks(row, agreed, ranks=ranks, block=block).astype(np.int64) for row in rows)
    assert np.abs(sums).max() < 2**31
    scales, bounds = block_scales(agreed, ranks=ranks), block_error_bounds(agreed, ranks=ranks)
    for i in range(5):
        scale = Fraction(float(scales[i // block]))
        error = abs(Fraction(int(sums[i])) / scale - sum(Fraction(row[i]) for row in rows))
        assert error <= Fraction(ranks) / (2 * scale) <= Fraction(float(bounds[i // block]))
        most = max(
            Fraction(abs(x)) for row in rows for x in row[i // block * block : (i // block + 1) * block]
        )
        if most > Fraction(1, 2**127):
            assert error <= Fraction(ranks**2, 2**31 - 2 * ranks) * most  # about n**2 / 2**31


@pytest.mark.parametrize(
    ("most", "exponent"),
    [(1.0, 0), (1.0000001, 1), (0.75, 0), (0.5, -1), (2.0**128, 128), (0.0, LEAST), (1e-45, LEAST)],
)
def test_the_exponent_is_the_least_that_bounds_a_block(most, exponent):
    """A block's exponent is the least one whose power of two bounds its numbers, but not below the smallest
    exponent."""
    assert block_exponents([most / 2, -most], block=2).tolist() == [exponent]


def test_blocks_are_cut_in_order_and_the_last_one_may_be_short():
    """Arrays of any shape are cut in order: seven numbers give two blocks of three and a shorter last one."""
    values = np.array([[1, 2, 4, 8, 16, 32, 64]], np.float32)
    exponents = block_exponents(values, block=3)
    assert exponents.tolist() == [2, 5, 6]
    found = quantise_blocks(values, exponents, ranks=2, block=3)
    assert found.shape == (1, 7)
    assert np.abs(dequantise_blocks(found, exponents, ranks=2, block=3) - values).max() < 1e-7


def test_small_blocks_keep_their_digits_beside_large_ones():
    """A scale per block keeps the digits of small blocks beside large ones.

    One block has numbers of 1e-6, another one of 1. A common scale gives relative errors of 1 in 10**3, and a
    scale per block 1 in 10**8.
    """
    rng = np.random.default_rng(0)
    rows = rng.uniform(-1, 1, (8, 512)) * np.repeat([1.0, 1e-6], 256)
    exact = rows.sum(0)[256:]
    scale = largest_scale(1.0, 8)
    one = dequantise(sum(quantise(row, scale, ranks=8, most=1.0) for row in rows), scale)[256:]
    agreed = np.max([block_exponents(row) for row in rows], axis=0)
    sums = sum(quantise_blocks(row, agreed, ranks=8) for row in rows)
    blocks = dequantise_blocks(sums, agreed, ranks=8)[256:]
    assert np.abs(one - exact).max() > 1e4 * np.abs(blocks - exact).max()
    assert error_bound(8, scale) > 1e5 * block_error_bounds(agreed, ranks=8)[1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: block_exponents([1e39]), r"found 1e\+39; expected at most 2\*\*128"),
        (lambda: block_exponents([np.inf]), "infinite"),
        (lambda: block_scales([0.5], ranks=2), "expected whole exponents from -126 to 128"),
        (lambda: block_scales([129], ranks=2), "expected whole exponents"),
        (lambda: quantise_blocks([4.0], [1], ranks=2), "found 1 for block 0, whose numbers need 2"),
        (lambda: quantise_blocks([4.0], [2, 2], ranks=2), r"found exponents of shape \(2,\); expected 1"),
        (lambda: dequantise_blocks([4], [2, 2], ranks=2), r"found exponents of shape \(2,\); expected 1"),
    ],
)
def test_invalid_values_are_refused(call, message):
    """The error for an invalid value says which values are valid."""
    with pytest.raises(InputError, match=message):
        call()


def test_an_empty_array_has_no_blocks():
    """An empty array has no blocks and is not an error."""
    nothing = block_exponents([])
    assert nothing.shape == quantise_blocks([], nothing, ranks=2).shape == (0,)
