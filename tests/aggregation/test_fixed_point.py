"""Fixed point: sums within n / (2 * scale), and none that overflows."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taccl.aggregation import dequantise, error_bound, largest_scale, quantise
from taccl.aggregation.fixed_point import from_bfloat16
from taccl.errors import InputError
from tests.fuzzing import fuzzed


@pytest.mark.slow
@fuzzed(few=15, many=2000)
@given(
    rows=st.lists(st.lists(st.floats(-100, 100), min_size=3, max_size=3), min_size=1, max_size=9),
    scale=st.floats(1e-3, 2**20),
)
def test_a_sum_is_within_its_bound(rows, scale):
    """In exact fractions, whatever the numbers: those in the middle between whole ones among them."""
    ranks = len(rows)
    sums = sum(quantise(row, scale, ranks=ranks, most=100.0).astype(np.int64) for row in rows)
    for i in range(3):
        exact = sum(Fraction(row[i]) for row in rows)
        assert abs(Fraction(int(sums[i])) / Fraction(scale) - exact) <= Fraction(ranks) / (
            2 * Fraction(scale)
        )


@pytest.mark.slow
def test_the_bound_is_met_by_what_is_worst():
    """Eight ranks that are each off by a half: 0.5 / scale is rounded to even, 0, so the sum is off by 4."""
    ranks, scale = 8, 1024.0
    sums = ranks * quantise([0.5 / scale], scale, ranks=ranks)
    assert abs(dequantise(sums, scale)[0] - ranks * 0.5 / scale) == error_bound(ranks, scale) == 4 / 1024


def test_a_product_that_rounds_to_the_middle_is_decided_exactly():
    """0.7 * s lies a hair above k + 1/2, and its product in float64 on it: k + 1 is nearer."""
    rng = np.random.default_rng(0)
    values, scale = rng.uniform(-1, 1, 4000), 1e9 / 7
    found = quantise(values, scale, ranks=1)
    for value, number in zip(values.tolist(), found.tolist(), strict=True):
        assert abs(Fraction(value) * Fraction(scale) - number) <= Fraction(1, 2)


@pytest.mark.parametrize(("most", "ranks"), [(1.0, 8), (0.3, 16), (1e-30, 3), (12345.678, 1000)])
def test_the_largest_scale_fits_and_one_that_is_larger_does_not(most, ranks):
    """All ranks at their most: the sum of what they send fits into 32 bits."""
    scale = largest_scale(most, ranks)
    assert ranks * int(np.abs(quantise([most, -most], scale, ranks=ranks)).max()) < 2**31
    with pytest.raises(InputError, match="leaves 32 bits; expected at most"):
        quantise([most], scale * 1.001, ranks=ranks)


def test_a_scale_that_overflows_is_refused_with_the_largest_that_fits():
    """The scale that the message names is accepted."""
    with pytest.raises(InputError) as caught:
        quantise([3.0], 1e9, ranks=4)
    named = float(str(caught.value).rpartition(" ")[2])
    assert named == largest_scale(3.0, 4)
    quantise([3.0], named, ranks=4)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_shorter_numbers_are_taken_as_they_are(dtype):
    """float16 and float32 are exact in float64."""
    values = np.array([0.1, -2.5, 7], dtype)
    assert (quantise(values, 256.0, ranks=2) == np.rint(values.astype(np.float64) * 256)).all()


def test_bits_of_bfloat16_are_numbers():
    """1, -2 and 3.140625 are 0x3F80, 0xC000 and 0x4049."""
    values = from_bfloat16(np.array([0x3F80, 0xC000, 0x4049], np.uint16))
    assert values.tolist() == [1, -2, 3.140625]
    assert quantise(values, 64.0, ranks=1).tolist() == [64, -128, 201]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (
            lambda: quantise([float("nan")], 1.0, ranks=1),
            "values: found values that are infinite or no numbers",
        ),
        (lambda: quantise([2.0], 1.0, ranks=1, most=1.0), "most: found a value of 2; expected at most 1"),
        (lambda: quantise([1.0], 0.0, ranks=1), "scale: found 0.0; expected a finite number above 0"),
        (lambda: quantise([1.0], 1.0, ranks=0), "ranks: found 0"),
        (lambda: largest_scale(0.0, 2), "most: found 0.0"),
        (lambda: largest_scale(1.0, 2**32), "ranks"),
        (lambda: from_bfloat16(np.array([1.0])), "bits: found float64; expected uint16"),
    ],
)
def test_what_cannot_be_quantised_is_said(call, error):
    """With what was found and what is expected."""
    with pytest.raises(InputError, match=error):
        call()
