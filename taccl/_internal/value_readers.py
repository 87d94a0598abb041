"""Readers of single values, such as counts and sizes, by the names of their annotations."""

from __future__ import annotations

import functools
import math
import numbers
import operator
import os
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from taccl._internal.names import quoted
from taccl._internal.units import exact, parse_size, parse_time_us
from taccl.errors import InputError

_MAX_WHOLE = 2**63 - 1
#: Max seconds of a time limit, some 31 years; clocks and solvers fail for far longer ones.
MOST_S = 1e9
_A_SHARE = "a share such as 0.01 or '1%'; above 1 with a percent sign"


@dataclass(frozen=True, slots=True)
class Reader:
    """Check and conversion of values for an annotation.

    - `expected`: Description of valid values, for messages.
    - `read`: Function of a value and its parameter's name; returns the converted value or raises
      `InputError`.
    - `family`: Kinds of values that it reads ("number", "text", "several"). If all readers of a union fail,
      the error is that of a reader whose family includes the value.
    - `classes`: Names of classes whose instances are valid.
    - `plain`: Types whose values need no conversion, for speed.
    """

    expected: str
    read: Callable[[Any, str], Any]
    family: str = ""
    classes: tuple[str, ...] = ()
    plain: frozenset[type] = frozenset()


def whole_number(number: object, where: str, *, at_least: int | None = None) -> int:
    """Convert a whole number of any type to `int`, or raise `InputError`.

    - `where`: Place of the number, for the message of the error.
    - `at_least`: Min value. If it is given, the number must also be less than 2**63.
    """
    if type(number) is int:
        whole: int | None = number
    else:
        whole = None if isinstance(number, (bool, np.bool_)) else _whole(number)
    if whole is None or (at_least is not None and whole < at_least):
        raise InputError(f"found {quoted(number)}; expected {_whole_words(at_least)}", where=where)
    if at_least is not None and whole > _MAX_WHOLE:
        raise InputError(f"found {quoted(number)}; expected less than 2**63", where=where)
    return whole


def _whole(number: Any) -> int | None:
    try:
        return int(operator.index(number))
    except TypeError:
        if isinstance(number, numbers.Rational):
            return int(number.numerator) if number.denominator == 1 else None
        is_real = isinstance(number, (numbers.Real, Decimal))
        whole = is_real and math.isfinite(number) and not number % 1
        return int(number) if whole else None


def _whole_words(at_least: int | None) -> str:
    return "a whole number" if at_least is None else f"a whole number of at least {at_least}"


def _count(at_least: int) -> Reader:
    return Reader(_whole_words(at_least), functools.partial(whole_number, at_least=at_least), "number")


def _finite(value: Any, where: str) -> float:
    is_real = isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_))
    try:
        number = float(value) if is_real else math.nan
    except OverflowError:  # a whole number or a fraction beyond the largest float
        number = math.inf
    if not math.isfinite(number):
        raise InputError(f"found {quoted(value)}; expected a finite number", where=where)
    return number


def _extended(value: Any, where: str) -> float:
    if isinstance(value, str) and value in ("inf", "-inf"):
        value = float(value)
    if isinstance(value, float) and math.isinf(value):
        return value
    return _finite(value, where)


def _seconds(value: Any, where: str, *, zero: bool = False) -> float:
    expected = f"expected a {'finite' if zero else 'positive'} number of seconds, or a time such as '60s'"
    try:
        has_unit = isinstance(value, str) and value.strip()[-1:].isalpha()
        seconds = float(parse_time_us(value) / 10**6) if has_unit else _finite(value, where)
    except (InputError, OverflowError):
        seconds = -1.0
    if seconds < 0 or (seconds == 0 and not zero):
        raise InputError(f"found {quoted(value)}; {expected}", where=where)
    return min(seconds, MOST_S)


def share(value: Any, where: str) -> float:
    """Convert a share, such as 0.01 or ``"1%"``, or raise `InputError`.

    A number above 1 without a percent sign is refused, as it is likely meant as a percentage.
    """
    text = value.strip() if isinstance(value, str) else ""
    try:
        found = _finite(float(text.removesuffix("%")) if text else value, where)
    except (InputError, OverflowError, ValueError):
        found = -1.0
    if found < 0 or (found > 1 and not text.endswith("%")):
        raise InputError(f"found {quoted(value)}; expected {_A_SHARE}", where=where)
    return found / 100 if text.endswith("%") else found


def _bytes(value: Any, where: str) -> int:
    if not isinstance(value, str):
        value = whole_number(value, at_least=1, where=where)
    return parse_size(value, where=where)


def _megabytes(value: Any, where: str) -> int:
    if isinstance(value, str):
        return max(1, parse_size(value, where=where) // 10**6)
    return whole_number(value, at_least=1, where=where)


def _number(value: Any, where: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if not isinstance(value, (int, float, str, Fraction)):
        raise InputError(f"found {quoted(value)}; expected a finite number", where=where)
    return value


def _fraction(value: Any, where: str) -> Fraction:
    return exact(_number(value, where), where=where)


def _such(
    fits: Callable[[Any], bool],
    expected: str,
    family: str = "",
    *,
    make: Any = None,
    plain: type | None = None,
) -> Reader:
    """Reader of values that fulfil `fits`; `make` converts them if given."""

    def read(value: Any, where: str) -> Any:
        if not fits(value):
            raise InputError(f"found {quoted(value)}; expected {expected}", where=where)
        return make(value) if make else value

    return Reader(expected, read, family, plain=frozenset({plain} if plain else ()))


def _is_a(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


KINDS = {
    "int": Reader("a whole number", whole_number, "number", plain=frozenset({int})),
    "Count": _count(1),
    "Natural": _count(0),
    "AtLeastTwo": _count(2),
    **dict.fromkeys(
        ("Bytes", "Size"), Reader("a size such as '1MB', or a number of bytes", _bytes, "number text")
    ),
    "Megabytes": Reader("a whole number of MB, or a size such as '4GB'", _megabytes, "number text"),
    "Seconds": Reader("a positive number of seconds", _seconds, "number text"),
    "Duration": Reader("a number of seconds", functools.partial(_seconds, zero=True), "number text"),
    "Share": Reader(_A_SHARE, share, "number text"),
    "float": Reader("a finite number", _finite, "number"),
    "Extended": Reader("a finite number, 'inf' or '-inf'", _extended, "number text"),
    "Fraction": Reader("a number that is not negative", _fraction, "number text"),
    "Number": Reader(
        "a number that is not negative", _number, "number text", plain=frozenset({int, Fraction})
    ),
    "bool": _such(_is_a(bool, np.bool_), "True or False", make=bool, plain=bool),
    "str": _such(_is_a(str), "text", "text", plain=str),
    "PathLike": _such(_is_a(os.PathLike), "a path"),
    "Callable": _such(lambda value: callable(value) and not isinstance(value, type), "a function"),
    "None": _such(_is_a(type(None)), "None", plain=type(None)),
}
