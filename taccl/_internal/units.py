"""Conversion of sizes and costs, given as text or numbers, to exact values; the only definition of units.

Bytes are integers. MB is 10**6 bytes and MiB is 2**20. Times are microseconds. Costs are exact fractions; a
float is read as its decimal text (0.1 is one tenth).
"""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache

from taccl.errors import InputError

BYTES_PER_MB = 10**6

_SIZE_UNITS = {
    "": 1, "B": 1,
    "K": 10**3, "KB": 10**3, "M": 10**6, "MB": 10**6, "G": 10**9, "GB": 10**9, "T": 10**12, "TB": 10**12,
    "KI": 2**10, "KIB": 2**10, "MI": 2**20, "MIB": 2**20, "GI": 2**30, "GIB": 2**30, "TI": 2**40,
    "TIB": 2**40,
}  # fmt: skip
#: Bits, refused as sizes: units with a capital prefix and a small b, such as Mb or Gib.
_BITS = re.compile(r"[KMGT]i?b")
#: Upper limit of sizes in bytes: byte counts in files, and times in integer ticks, then fit 64 bits.
_MAX_BYTES = 2**62
_MAX_DIGITS = 400
#: Maximum binary exponent of costs, so that their products and quotients fit a float.
_MAX_BITS = 333
_TIME_UNITS_US = {
    "": Fraction(1), "NS": Fraction(1, 1000), "US": Fraction(1), "MS": Fraction(1000), "S": Fraction(10**6),
    "MIN": Fraction(60 * 10**6), "H": Fraction(3600 * 10**6),
}  # fmt: skip
_EXPONENT = re.compile(r"[eE]([+-]?[0-9_]+)\s*$")
_QUANTITY = re.compile(r"^\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)\s*$")


def parse_size(size: int | float | str, *, where: str = "size") -> int:
    """Whole number of bytes from ``"1MB"``, ``"512 KiB"`` or a number of bytes."""
    if type(size) is int and 0 < size < _MAX_BYTES:
        return size
    if isinstance(size, bool) or not isinstance(size, (int, float, str)):
        raise InputError(f"found {size!r}; expected a size such as '1MB' or a number of bytes", where=where)
    if isinstance(size, int) and size >= _MAX_BYTES:
        raise InputError("found a number of 2**62 bytes or more; expected less", where=where)
    text = str(size) if not isinstance(size, float) else format(size, "f")
    match = _QUANTITY.match(text)
    unit = match.group(2).upper() if match else ""
    if match is None or unit not in _SIZE_UNITS:
        raise InputError(
            f"found {_short(size)}; expected a size such as '512B', '64KB' (powers of 1000) or '1MiB' "
            "(of 1024)",
            where=where,
        )
    if _BITS.fullmatch(match.group(2)):
        said = f"found {_short(size)}, whose unit reads as bits; expected bytes, e.g. {match.group(1)}{unit}"
        raise InputError(said, where=where)
    value = Fraction(match.group(1)) * _SIZE_UNITS[unit] if len(match.group(1)) <= _MAX_DIGITS else None
    if value is None or value >= _MAX_BYTES:
        raise InputError(f"found {_short(size)}; expected less than 2**62 bytes", where=where)
    if value.denominator != 1 or value <= 0:
        shown = str(value) if value.denominator == 1 else f"{float(value):g}"
        raise InputError(
            f"found {_short(size)}, which is {shown} bytes; expected a positive whole number", where=where
        )
    return int(value)


def parse_sizes(text: str) -> tuple[int, ...]:
    """Bytes of the sizes in a list ``"1KB,1MB"`` or a range ``"FIRST:LAST[:FACTOR]"`` (default factor 10)."""
    words = text.split(":")
    if len(words) == 1:
        try:
            return tuple(parse_size(word, where="sizes") for word in text.split(","))
        except InputError:
            if "," in text:
                raise
            said = f"found {text!r}; expected sizes such as 1KB,1MB, or a range such as 1KB:1GB"
            raise InputError(said, where="sizes") from None
    first, last, factor = (*words, "10")[:3] if len(words) < 4 else ("1", "1", "1")
    found, most = [parse_size(first, where="sizes")], parse_size(last, where="sizes")
    times = int(factor) if factor.isascii() and factor.isdigit() and len(factor) <= _MAX_DIGITS else 1
    while times > 1 and found[-1] <= most:
        found.append(found[-1] * times)
    if len(found) == 1:
        expected = "FIRST:LAST[:FACTOR], from a smaller size to a larger one by a factor of 2 or more"
        raise InputError(f"found {text!r}; expected {expected}", where="sizes")
    return tuple(found[:-1])


def parse_time_us(time: int | float | str, *, where: str = "time") -> Fraction:
    """Exact microseconds from ``"2.6us"``, ``"1ms"`` or a number of microseconds."""
    if isinstance(time, str):
        match = _QUANTITY.match(time)
        unit = match.group(2).upper() if match else ""
        if match is None or unit not in _TIME_UNITS_US:
            raise InputError(f"found {_short(time)}; expected a time such as '2.6us' or '1ms'", where=where)
        return exact(match.group(1), where=where) * _TIME_UNITS_US[unit]
    return exact(time, where=where)


def exact(number: int | float | str | Fraction, *, where: str = "number") -> Fraction:
    """Nonnegative number as an exact fraction; floats are read as their shortest decimal text."""
    if isinstance(number, str) and len(number) <= _USUAL_LENGTH:
        known = _known.get(number)
        if known is not None:
            return known
    value = number if isinstance(number, Fraction) else _fraction(number, where)
    if value.numerator < 0:
        raise InputError(f"found {_short(number)}; expected a number that is not negative", where=where)
    if value.numerator and abs(value.numerator.bit_length() - value.denominator.bit_length()) > _MAX_BITS:
        said = f"found {_short(number)}; expected 0, or a number between 1e-100 and 1e100"
        raise InputError(said, where=where)
    if isinstance(number, str) and len(number) <= _USUAL_LENGTH and len(_known) < _MOST_KNOWN:
        _known[number] = value
    return value


#: {text of a number: its checked fraction}, as large files repeat few costs.
_known: dict[str, Fraction] = {}
#: Max characters of a number in `_known`, and max numbers in it.
_USUAL_LENGTH, _MOST_KNOWN = 64, 4096


def _fraction(number: int | float | str, where: str) -> Fraction:
    if isinstance(number, bool):
        raise InputError(f"found {number!r}; expected a number", where=where)
    try:
        text = str(number)
        if len(text) <= _MAX_DIGITS and _exponent(text) <= _MAX_DIGITS:
            return _fraction_of(text)
    except (ValueError, ZeroDivisionError):
        raise InputError(f"found {_short(number)}; expected a finite number", where=where) from None
    raise InputError(f"found {_short(number)}; expected at most {_MAX_DIGITS} digits", where=where)


@lru_cache(maxsize=4096)
def _fraction_of(text: str) -> Fraction:
    """Exact fraction from a number's text, cached: files repeat costs, and one object compares faster."""
    return Fraction(text)


def _exponent(text: str) -> int:
    """Absolute value of the exponent in a number's text; the number itself might not fit into memory."""
    found = _EXPONENT.search(text)
    return abs(int(found.group(1))) if found else 0


def gb_per_s(num_bytes: int | None, time_us: Fraction | float) -> float | None:
    """Bytes per time in GB/s (10**9 bytes); None without a size or if the time is 0."""
    return None if num_bytes is None or not time_us else float(num_bytes / time_us / 1000)


def format_rates(algbw: float | None, busbw_factor: float) -> str:
    """Algorithm and bus bandwidth as text: ``"algbw 17.44 GB/s, busbw 16.35 GB/s"``; empty for None.

    - `algbw`: Algorithm bandwidth of nccl-tests in GB/s.
    - `busbw_factor`: Bus bandwidth divided by algorithm bandwidth.
    """
    return "" if algbw is None else f"algbw {algbw:.4g} GB/s, busbw {algbw * busbw_factor:.4g} GB/s"


def format_count(number: int, noun: str) -> str:
    """Number with its noun: ``"1 chunk"``, ``"2 chunks"``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def format_about(number: float) -> str:
    """Large number with two significant digits: ``"2,600,000"``."""
    return f"{int(float(f'{number:.2g}')):,}"


def part_of(which: str, number: int, total: int, noun: str, nouns: str) -> str:
    """Part of a list in words: ``"the last of 3 chunks"``, ``"all 3 chunks"``."""
    if number == total:
        return f"all {total} {nouns}" if total > 1 else f"the only {noun}"
    return f"the {which} of {total} {nouns}" if number == 1 else f"the {which} {number} of {total} {nouns}"


def format_gap(gap: float | None, *, num_decimals: int = 2) -> str:
    """Gap as a percentage of the bound: ``"2.38%"``; ``"none proven"`` if infinite or None."""
    return "none proven" if gap is None or gap == float("inf") else f"{gap:.{num_decimals}%}"


def format_size(num_bytes: int) -> str:
    """Size in a convenient unit: ``1000000 -> '1MB'``, ``1048576 -> '1MiB'``, ``4096000 -> '4.096MB'``."""
    decimal = ((10**9, "GB"), (10**6, "MB"), (10**3, "KB"))
    binary = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
    for scale, unit in (*decimal, *binary):
        finest = scale // 1000 if unit in ("GB", "MB") else scale  # so that 1024 bytes give 1KiB, not 1.024KB
        if num_bytes >= scale and num_bytes % finest == 0:
            return f"{num_bytes / scale:.3f}".rstrip("0").rstrip(".") + unit
    for scale, unit in decimal:
        if num_bytes >= scale:
            return f"{num_bytes / scale:.4g}{unit}"
    return f"{num_bytes}B"


def format_limit(num_bytes: int) -> str:
    """Size as a limit of a range: as `format_size` if exact, else in bytes: ``1048575 -> '1048575B'``."""
    text = format_size(num_bytes)
    return text if num_bytes == 0 or parse_size(text) == num_bytes else f"{num_bytes}B"


def format_us(time_us: Fraction | float) -> str:
    """Microseconds with at most three decimals and no trailing zeros: ``507.8 us``."""
    text = f"{float(time_us):.3f}".rstrip("0").rstrip(".")
    return f"{text} us"


def format_digits(number: float, num_digits: int = 4) -> str:
    """Number with its first significant digits, and never a positive exponent: ``"12346"``, ``"0.5125"``."""
    text = f"{number:.{num_digits}g}"
    return f"{number:.0f}" if "e+" in text else text


def format_s(seconds: float) -> str:
    """Seconds with two significant digits, or whole seconds from 100 on: ``0.094 s``, ``360 s``."""
    return f"{seconds:.0f} s" if seconds >= 100 else f"{seconds:.2g} s"


def _short(value: object) -> str:
    try:
        text = str(value) if isinstance(value, (int, float, Fraction, Decimal)) else repr(value)
    except ValueError:  # Python converts no number of more than 4300 digits
        return "a number with thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."
