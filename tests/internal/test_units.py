"""Sizes, times and costs as text: exact parsing, and refusals."""

import math
from fractions import Fraction

import pytest

from taccl._internal.units import (
    exact,
    format_about,
    format_count,
    format_digits,
    format_gap,
    format_limit,
    format_rates,
    format_s,
    format_size,
    format_us,
    parse_size,
    parse_sizes,
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
    """MB is 10**6 bytes and MiB 2**20, in any case."""
    assert parse_size(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1MB", (10**6,)), ("1KB,3MB", (1000, 3 * 10**6)), ("1KB:1MB", (1000, 10**4, 10**5, 10**6)),
        ("1KiB:10KiB:4", (1024, 4096)), ("5:5", (5,)),
    ],
)  # fmt: skip
def test_sizes_are_a_list_or_a_range(text, expected):
    """A range grows by its factor, 10 by default, up to its last size."""
    assert parse_sizes(text) == expected


@pytest.mark.parametrize("text", ["1MB:1KB", "1KB:1MB:1", "1KB:1MB:x", "1:2:3:4", "1KB-1MB", ""])
def test_other_lists_of_sizes_are_refused(text):
    """Sizes that are no list and no ascending range are an error with the text."""
    with pytest.raises(InputError, match=f"sizes: found '{text}'; expected"):
        parse_sizes(text)


_US = Fraction(1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2.6us", _US * 13 / 5),
        ("1ms", 1000),
        ("700 ns", _US * 7 / 10),
        ("2s", 2 * 10**6),
        (0.3, _US * 3 / 10),
    ],
)
def test_times_are_exact_microseconds(text, expected):
    """Decimal text is read as an exact fraction, and a float as its shortest decimal."""
    assert parse_time_us(text) == expected


@pytest.mark.parametrize(
    ("formatted", "expected"),
    [
        (format_count(0, "chunk"), "0 chunks"), (format_count(1, "chunk"), "1 chunk"),
        (format_count(2, "chunk"), "2 chunks"), (format_about(2_558_400), "2,600,000"),
        # Sizes have decimal units and at most three decimals, else whole binary units, else four digits.
        (format_size(10**6), "1MB"), (format_size(2**20), "1MiB"), (format_size(1500), "1.5KB"),
        (format_size(999), "999B"), (format_size(3 * 2**30), "3GiB"), (format_size(2000), "2KB"),
        (format_size(4_096_000), "4.096MB"), (format_size(1_500_000_000), "1.5GB"), (format_size(1024), "1KiB"),
        (format_size(1_333_334), "1.333MB"), (format_size(2**62), "4294967296GiB"),
        # Limits of ranges are exact.
        (format_limit(2**20), "1MiB"), (format_limit(2**20 - 1), "1048575B"), (format_limit(0), "0B"),
        # Seconds have two significant digits, else whole seconds.
        (format_digits(12345.6), "12346"), (format_digits(0.51249), "0.5125"), (format_digits(7750.2, 3), "7750"),
        (format_s(0.0941), "0.094 s"), (format_s(7), "7 s"), (format_s(99.4), "99 s"), (format_s(360.2), "360 s"),
        # Times have at most three decimals, without trailing zeros.
        (format_us(Fraction(2539, 5)), "507.8 us"), (format_us(69), "69 us"), (format_us(0.0004), "0 us"),
        # Gaps are in percent above the bound, or "none proven" without a bound.
        (format_gap(0.0), "0.00%"), (format_gap(0.02381), "2.38%"), (format_gap(math.inf), "none proven"),
        (format_gap(None), "none proven"),
        # Rates are both bandwidths of nccl-tests by name; the text is empty without a size.
        (format_rates(17.4409, 15 / 16), "algbw 17.44 GB/s, busbw 16.35 GB/s"), (format_rates(None, 1.0), ""),
        # Parts of lists are never called "the last 1" or "the last 3 of 3".
        (part_of("last", 2, 3, "entry", "entries"), "the last 2 of 3 entries"),
        (part_of("last", 1, 3, "entry", "entries"), "the last of 3 entries"),
        (part_of("last", 3, 3, "entry", "entries"), "all 3 entries"),
        (part_of("last", 1, 1, "entry", "entries"), "the only entry"),
    ],
)  # fmt: skip
def test_quantities_are_written_as_a_person_would(formatted, expected):
    """Counts, sizes, times, gaps, rates and parts of lists are formatted for readers."""
    assert formatted == expected


@pytest.mark.parametrize(
    "text",
    ["0", "-1MB", "1.5", "1.0001KB", "1 mega", "", "MB", True, None, "1e6", "nan", math.inf, math.nan, -1.0],
)
def test_other_sizes_are_refused(text):
    """Empty text, fractions of bytes, unknown units, signs, booleans and infinity are refused."""
    with pytest.raises(InputError, match="size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (parse_size, "1ZB", r"found '1ZB'; expected a size such as .*powers of 1000.*of 1024"),
        *((parse_time_us, text, None) for text in ("2 minutes", "", "-1us", True, -0.5)),
        (parse_time_us, "9" * 5000 + "us", "at most 400 digits"),
        *((exact, number, None) for number in ("one", math.nan, math.inf, "1/0", True, -1)),
    ],
    ids=range(13),
)
def test_other_times_and_costs_are_refused(read, text, message):
    """Unknown units, negative and infinite times are refused, and the error gives the known units and limits."""
    with pytest.raises(InputError, match=message):
        read(text)


@pytest.mark.parametrize(
    ("text", "num_bytes"), [("0", "0"), ("0MB", "0"), ("1.5", "1.5"), ("0.0001KB", "0.1")]
)
def test_the_number_of_bytes_found_is_shown(text, num_bytes):
    """The error for an invalid size shows the number of bytes that was found."""
    with pytest.raises(InputError, match=f"found '{text}', which is {num_bytes} bytes;"):
        parse_size(text)


@pytest.mark.parametrize("size", ["5000000TB", "9" * 5000, 2**62, 10**400, 1e300, "0." + "1" * 5000])
def test_sizes_beyond_64_bits_are_refused(size):
    """Sizes above 64 bits are refused with a short message."""
    with pytest.raises(InputError, match="expected less") as caught:
        parse_size(size)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("number", ["1e99999999", "1E-99999999", 10**400, "9" * 5000, 10**5000], ids=range(5))
def test_endless_numbers_are_refused_at_once(number):
    """Numbers of millions of digits are refused before they are converted, with a short message."""
    with pytest.raises(InputError) as caught:
        exact(number)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("number", ["1e101", "1e-101", "1" * 102, Fraction(1, 10**101)], ids=range(4))
def test_what_floats_cannot_show_is_refused(number):
    """Costs must be 0 or between 1e-100 and 1e100, as floats show them."""
    with pytest.raises(InputError, match="expected 0, or a number between 1e-100 and 1e100"):
        exact(number)
    assert exact("1e99") == 10**99
    assert exact("1e-99") == Fraction(1, 10**99)
    assert exact("0") == 0


@pytest.mark.parametrize("size", ["5Mb", "5 Gb", "1Kib", "2Tb"])
def test_sizes_in_bits_are_refused(size):
    """Units such as Gb read as bits and are refused."""
    with pytest.raises(InputError, match="whose unit reads as bits; expected bytes, e.g. "):
        parse_size(size)
    assert parse_size(size.lower()) == parse_size(size.upper())
