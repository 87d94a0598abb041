"""Sizes and costs as text: what is read exactly, and what is refused."""

import math
from fractions import Fraction

import pytest

from taccl._internal.units import (
    exact,
    format_count,
    format_gap,
    format_rates,
    format_size,
    format_us,
    parse_size,
    parse_time_us,
    part_of,
)  # fmt: skip
from taccl.errors import InputError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1MB", 10**6), ("1MiB", 2**20), ("1 KiB", 1024), ("64kb", 64_000), ("1.5KB", 1500), ("2G", 2 * 10**9),
        (".5MB", 500_000), ("7", 7), (7, 7), (8.0, 8), ("3 tib", 3 * 2**40), ("1M", 10**6), ("1Ki", 1024),
    ],
)  # fmt: skip
def test_sizes_are_whole_bytes(text, expected):
    """MB is 10**6 bytes and MiB 2**20, whatever the case of the letters."""
    assert parse_size(text) == expected


@pytest.mark.parametrize(
    "text", ["0", "-1MB", "1.5", "1.0001KB", "1 mega", "", "MB", True, None, "1e6", "nan"]
)
def test_other_sizes_are_refused(text):
    """Nothing, parts of bytes, unknown units, signs and truth values."""
    with pytest.raises(InputError, match="size"):
        parse_size(text)


def test_units_are_listed():
    """A unit that is none: the message has those that are."""
    with pytest.raises(
        InputError, match=r"found '1ZB'.*units are B, KB, MB, GB, TB .*and KiB, MiB, GiB, TiB"
    ):
        parse_size("1ZB")


@pytest.mark.parametrize(
    ("text", "num_bytes"), [("0", "0"), ("0MB", "0"), ("1.5", "1.5"), ("0.0001KB", "0.1")]
)
def test_what_it_comes_to_is_shown(text, num_bytes):
    """Whole numbers are shown as such."""
    with pytest.raises(InputError, match=f"found '{text}', which is {num_bytes} bytes;"):
        parse_size(text)


@pytest.mark.parametrize("size", ["5000000TB", "9" * 5000, 2**62, 10**400, 1e300, "0." + "1" * 5000])
def test_sizes_beyond_64_bits_are_refused(size):
    """No schedule could be timed, and the message stays short."""
    with pytest.raises(InputError, match="expected less") as caught:
        parse_size(size)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(("number", "text"), [(0, "0 chunks"), (1, "1 chunk"), (2, "2 chunks")])
def test_counts_have_plurals(number, text):
    """One chunk, and several chunks."""
    assert format_count(number, "chunk") == text


@pytest.mark.parametrize("number", [float("inf"), float("nan"), -1.0])
def test_odd_floats_are_no_sizes(number):
    """Infinity and its like are refused with a word, not with a crash."""
    with pytest.raises(InputError):
        parse_size(number)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2.6us", Fraction(13, 5)),
        ("1ms", 1000),
        ("700 ns", Fraction(7, 10)),
        ("2s", 2 * 10**6),
        (0.3, Fraction(3, 10)),
    ],
)
def test_times_are_exact_microseconds(text, expected):
    """Decimal text is read as the fraction a person means."""
    assert parse_time_us(text) == expected


@pytest.mark.parametrize("text", ["2 minutes", "", "-1us", True, -0.5])
def test_other_times_are_refused(text):
    """Unknown units and negative times."""
    with pytest.raises(InputError):
        parse_time_us(text)


def test_a_float_is_its_shortest_decimal():
    """0.1 is one tenth, not the nearest binary fraction."""
    assert exact(0.1) == Fraction(1, 10)


@pytest.mark.parametrize("number", ["one", float("nan"), float("inf"), "1/0", True, -1])
def test_costs_are_finite_and_not_negative(number):
    """Everything else is refused."""
    with pytest.raises(InputError):
        exact(number)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (10**6, "1MB"), (2**20, "1MiB"), (1500, "1.5KB"), (999, "999B"), (3 * 2**30, "3GiB"), (2000, "2KB"),
        (4_096_000, "4.096MB"), (1_500_000_000, "1.5GB"), (1024, "1KiB"), (1_333_334, "1.333MB"), (2**62, "4294967296GiB"),
    ],
)  # fmt: skip
def test_sizes_are_written_as_a_person_would(size, expected):
    """Decimal units with three decimals at most first, then whole binary ones, then four digits."""
    assert format_size(size) == expected


@pytest.mark.parametrize(
    ("number", "total", "expected"),
    [
        (2, 3, "the last 2 of 3 entries"),
        (1, 3, "the last of 3 entries"),
        (3, 3, "all 3 entries"),
        (1, 1, "the only entry"),
    ],
)
def test_parts_are_named_without_needless_numbers(number, total, expected):
    """Neither "the last 1" nor "the last 3 of 3"."""
    assert part_of("last", number, total, "entry", "entries") == expected


@pytest.mark.parametrize(
    ("time", "expected"), [(Fraction(2539, 5), "507.8 us"), (69, "69 us"), (0.0004, "0 us")]
)
def test_times_are_written_without_trailing_zeros(time, expected):
    """At most three decimals."""
    assert format_us(time) == expected


@pytest.mark.parametrize("number", ["1e99999999", "1E-99999999", 10**400, "9" * 5000, 10**5000], ids=range(5))
def test_endless_numbers_are_refused_at_once(number):
    """The refusal comes before an integer of millions of digits is made, with a short message."""
    with pytest.raises(InputError) as caught:
        exact(number)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("number", ["1e101", "1e-101", "1" * 102, Fraction(1, 10**101)], ids=range(4))
def test_what_floats_cannot_show_is_refused(number):
    """Costs are shown as floats, and their products, too; 0 and what lies between are read."""
    with pytest.raises(InputError, match="expected 0, or a number between 1e-100 and 1e100"):
        exact(number)
    assert exact("1e99") == 10**99
    assert exact("1e-99") == Fraction(1, 10**99)
    assert exact("0") == 0


def test_endless_times_are_refused():
    """Digits that Python would not read."""
    with pytest.raises(InputError, match="at most 400 digits"):
        parse_time_us("9" * 5000 + "us")


@pytest.mark.parametrize(
    ("gap", "expected"),
    [(0.0, "0.00%"), (0.02381, "2.38%"), (math.inf, "none proven"), (None, "none proven")],
)
def test_gap_as_text(gap, expected):
    """A gap in percent of the bound; without a bound there is none."""
    assert format_gap(gap) == expected


def test_rates_say_which_they_are():
    """Both bandwidths of nccl-tests by their names, and nothing without a size."""
    assert format_rates(17.4409, 15 / 16) == "algbw 17.44 GB/s, busbw 16.35 GB/s"
    assert format_rates(None, 1.0) == ""


@pytest.mark.parametrize("size", ["5Mb", "5 Gb", "1Kib", "2Tb"])
def test_sizes_in_bits_are_refused(size):
    """A capital prefix and a small b read as bits, which are an eighth of the bytes."""
    with pytest.raises(InputError, match="whose unit reads as bits; expected bytes, e.g. "):
        parse_size(size)
    assert parse_size(size.lower()) == parse_size(size.upper())
