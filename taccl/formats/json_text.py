"""JSON from strangers: an object, or one sentence that says why there is none."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from taccl.errors import FormatError

__all__ = ["parse_object"]


def parse_object(text: str, *, where: str) -> dict[str, Any]:
    """The object in a JSON text; numbers with a point or an exponent come as `decimal.Decimal`.

    Parameters
    ----------
    where : str
        The file, for messages.

    Raises
    ------
    FormatError
        If it is not JSON, its top is no object, an object has one key twice, or it is nested too deeply.
    """

    def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise FormatError(f"found key {_short(twice)} twice in one object; remove one", where=where)
        return table

    try:
        data = json.loads(
            text, object_pairs_hook=without_repeats, parse_float=Decimal, parse_constant=_no_constant
        )
    except json.JSONDecodeError as error:
        raise FormatError(
            f"found no valid JSON at line {error.lineno}, column {error.colno} ({error.msg}); the file is "
            "cut short or was edited, write it anew",
            where=where,
        ) from None
    except RecursionError:
        raise FormatError(
            "found values nested too deeply; expected a few levels; write the file anew", where=where
        ) from None
    except FormatError:
        raise
    except (ArithmeticError, ValueError) as error:  # numbers that no file needs: NaN, or 5000 digits
        raise FormatError(
            f"found a number that cannot be read ({error}); correct it, or write the file anew", where=where
        ) from None
    if not isinstance(data, dict):
        raise FormatError(
            f"found a JSON {type(data).__name__}; expected an object with fields; check the path", where=where
        )
    return data


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _short(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
