"""Fixed point: sums within n / (2 * scale), without overflow."""

import math
import sys
import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from taccl.aggregation import dequantise, error_bound, largest_scale, quantise
from taccl.aggregation.fixed_point import from_bfloat16
from taccl.errors import InputError
from tests.fuzzing import fuzzed


@fuzzed(few=15, many=2000)
@given(
    rows=st.lists(st.lists(st.floats(-100, 100), min_size=3, max_size=3), min_size=1, max_size=9),
    scale=st.floats(1e-3, 2**20),
)
def test_a_sum_is_within_its_bound(rows, scale):
    """Sums are off by at most the error bound, as computed in exact fractions, also for ties."""
    ranks = len(rows)
    sums = sum(quantise(row, scale, ranks=ranks, most=100.0).astype(np.int64) for row in rows)
    for i in range(3):
        exact = sum(Fraction(row[i]) for row in rows)
        assert abs(Fraction(int(sums[i])) / Fraction(scale) - exact) <= Fraction(ranks) / (
            2 * Fraction(scale)
        )


@fuzzed(few=60, many=6000)
@given(
    whole=st.integers(0, 2**31 - 2),
    mantissa=st.integers(2**52, 2**53 - 1),
    exponent=st.integers(-1070, 960),
    ulps=st.integers(-2, 2),
    sign=st.sampled_from([-1, 1]),
)
def test_near_ties_go_to_the_nearest_whole_number(whole, mantissa, exponent, ulps, sign):
    """Near ties at any scale are rounded with an error of at most 1/2, exactly."""
    scale = math.ldexp(mantissa, exponent)
    try:
        value = float((whole + Fraction(1, 2)) / Fraction(scale))
    except OverflowError:
        value = sys.float_info.max
    for _ in range(abs(ulps)):
        value = math.nextafter(value, math.copysign(math.inf, ulps))
    assume(math.isfinite(value) and abs(value * scale) < 2**31 - 2)
    found = int(quantise([sign * value], scale, ranks=1)[0])
    assert abs(sign * Fraction(value) * Fraction(scale) - found) <= Fraction(1, 2)


def test_a_tie_of_the_product_is_decided_by_a_rounding_error_of_any_size():
    """If rounding to float64 makes a product a tie, k + 1/2, the number is rounded by its exact product."""
    for scale in (3 + 2**-51, 3 - 2**-51, 49.0, 1e9 / 7):
        for odd in range(1, 400, 2):
            value = odd / 2 / scale
            found = int(quantise([value], scale, ranks=1)[0])
            assert abs(Fraction(value) * Fraction(scale) - found) <= Fraction(1, 2)


@pytest.mark.parametrize("scale", [1e300, 1.7e308, 5e-324, 3.0, 1e-308])
@pytest.mark.parametrize("ranks", [1, 3, 7])
def test_the_bound_as_a_number_is_never_below_the_bound(scale, ranks):
    """The error bound as a float is rounded up, and is infinite above float64's range."""
    bound, exact = error_bound(ranks, scale), Fraction(ranks) / (2 * Fraction(scale))
    assert bound == math.inf or exact <= Fraction(bound) <= exact * (1 + Fraction(2, 2**52))


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([1e300, 1e305], 1e-300),
        ([1e308], 2e-300),
        ([1e-310, 3e-310], 1e308),
        ([5e-324], 5e-324),
        ([0.0], 1e300),
    ],
)
def test_extreme_numbers_are_quantised_without_a_warning(values, scale):
    """Extreme numbers are rounded to the nearest integer without a numpy warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = quantise(values, scale, ranks=1).tolist()
    exact = [Fraction(value) * Fraction(scale) for value in values]
    assert all(abs(one - two) <= Fraction(1, 2) for one, two in zip(exact, found, strict=True))


@pytest.mark.slow
def test_the_error_bound_can_be_reached():
    """The error bound can be reached: eight ranks that are each off by 1/2 give a sum that is off by 4."""
    ranks, scale = 8, 1024.0
    sums = ranks * quantise([0.5 / scale], scale, ranks=ranks)
    assert abs(dequantise(sums, scale)[0] - ranks * 0.5 / scale) == error_bound(ranks, scale) == 4 / 1024


def test_a_product_that_rounds_to_the_middle_is_decided_exactly():
    """Random numbers are rounded by the exact product, even where its float64 value is k + 1/2."""
    rng = np.random.default_rng(0)
    values, scale = rng.uniform(-1, 1, 4000), 1e9 / 7
    found = quantise(values, scale, ranks=1)
    for value, number in zip(values.tolist(), found.tolist(), strict=True):
        assert abs(Fraction(value) * Fraction(scale) - number) <= Fraction(1, 2)


@pytest.mark.parametrize(("most", "ranks"), [(1.0, 8), (0.3, 16), (1e-30, 3), (12345.678, 1000)])
def test_the_largest_scale_fits_and_one_that_is_larger_does_not(most, ranks):
    """At the largest scale the sum of all ranks' maxima fits into 32 bits; at a larger one it does not."""
    scale = largest_scale(most, ranks)
    assert ranks * int(np.abs(quantise([most, -most], scale, ranks=ranks)).max()) < 2**31
    with pytest.raises(InputError, match="leaves 32 bits; expected at most"):
        quantise([most], scale * 1.001, ranks=ranks)


def test_a_scale_that_overflows_is_refused_with_the_largest_that_fits():
    """The error for a scale that overflows names the largest that fits."""
    with pytest.raises(InputError) as caught:
        quantise([3.0], 1e9, ranks=4)
    named = float(str(caught.value).rpartition(" ")[2])
    assert named == largest_scale(3.0, 4)
    quantise([3.0], named, ranks=4)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_shorter_numbers_are_taken_as_they_are(dtype):
    """float16 and float32 are converted exactly to float64."""
    values = np.array([0.1, -2.5, 7], dtype)
    assert (quantise(values, 256.0, ranks=2) == np.rint(values.astype(np.float64) * 256)).all()


def test_bits_of_bfloat16_are_numbers():
    """Bits of bfloat16 are converted: 0x3F80, 0xC000 and 0x4049 are 1, -2 and 3.140625."""
    values = from_bfloat16(np.array([0x3F80, 0xC000, 0x4049], np.uint16))
    assert values.tolist() == [1, -2, 3.140625]
    assert quantise(values, 64.0, ranks=1).tolist() == [64, -128, 201]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: quantise([1 + 2j], 1.0, ranks=1), "values: found .*; expected an array of real numbers"),
        (lambda: dequantise(np.array([1 + 2j]), 1.0), "sums: found .*; expected an array of real numbers"),
        (lambda: quantise([float("nan")], 1.0, ranks=1), "values: found infinite values or NaN"),
        (
            lambda: quantise([2.0], 1.0, ranks=1, most=1.0),
            "most: found a value of 2; expected at most the stated 1",
        ),
        (lambda: quantise([1.0], 0.0, ranks=1), "scale: found 0.0; expected a finite number above 0"),
        (lambda: quantise([1.0], 1.0, ranks=0), "ranks: found 0"),
        (lambda: largest_scale(0.0, 2), "most: found 0.0"),
        (lambda: largest_scale(1.0, 2**32), "ranks"),
        (lambda: quantise([1e308], 1e308, ranks=1), "scale: found 1e\\+308, at which a sum of 1 numbers"),
        (lambda: quantise([np.longdouble("1e400")], 1.0, ranks=1), "infinite values or NaN"),
        (lambda: dequantise([10], 1e-308), "scale: found 1e-308, at which a sum of 10 stands for more"),
        (lambda: from_bfloat16(np.array([1.0])), "bits: found float64; expected uint16"),
    ],
)
def test_values_that_cannot_be_quantised_are_refused(call, error):
    """The error for values that cannot be quantised names the value found and what is expected."""
    with pytest.raises(InputError, match=error):
        call()
