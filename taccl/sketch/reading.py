"""Text of a small file, and TOML or JSON from it, with an error that names the file and the line."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from typing import TYPE_CHECKING, Any

from taccl.errors import FormatError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MAX_FILE_BYTES", "parse_json", "parse_toml", "read_text"]

#: A sketch or a topology file is kilobytes; anything this large is some other file.
MAX_FILE_BYTES = 16 * 10**6
_SHOWN = 60  # characters of a key


def read_text(path: Path) -> str:
    """The text of a file.

    Raises
    ------
    FormatError
        If the file is missing, a directory, empty, larger than 16 MB, or not UTF-8 text.
    """
    where = str(path)
    if path.is_dir():
        raise FormatError("found a directory; expected a file; give the path of a file in it", where=where)
    try:
        size = path.stat().st_size
        data = path.read_bytes() if size <= MAX_FILE_BYTES else b""
    except FileNotFoundError:
        raise FormatError("found no such file; check the path", where=where) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise FormatError(f"the file cannot be read ({reason}); check the path", where=where) from None
    if size > MAX_FILE_BYTES:
        raise FormatError(
            f"found {size} bytes; expected at most {MAX_FILE_BYTES}; check that this is the right file",
            where=where,
        )
    if not data.strip():
        raise FormatError("found an empty file; expected TOML or JSON; check the path", where=where)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise FormatError("found UTF-16 text; expected UTF-8; save it as UTF-8", where=where)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise FormatError("found binary data; expected UTF-8 text; check the path", where=where)
    return text


def parse_toml(text: str, *, source: str) -> dict[str, Any]:
    """The tables of a TOML text.

    Raises
    ------
    FormatError
        If it is not TOML; the message has the line.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        end = f"at line {text.count(chr(10)) + 1}, the end of the text"
        reason = str(error).replace("at end of document", end)
        raise FormatError(f"found text that is not TOML: {reason}; correct that line", where=source) from None
    except RecursionError:
        raise FormatError("found values nested too deeply; expected a few levels", where=source) from None
    except ValueError as error:  # a number of 5000 digits
        raise _unreadable_number(error, source) from None


def parse_json(text: str, *, source: str, exact: bool = False) -> dict[str, Any]:
    """The object in a JSON text; with `exact`, numbers with a point or exponent come as `decimal.Decimal`.

    Raises
    ------
    FormatError
        If it is not JSON (as NaN is not), its top is no object, an object has one key twice, or a number is
        too long to be read.
    """
    from decimal import Decimal

    def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            shown = repr(twice) if len(twice) <= _SHOWN else f"{twice[:_SHOWN]!r}..."
            raise FormatError(f"found key {shown} twice in one object; remove one", where=source)
        return table

    try:
        data = json.loads(
            text,
            object_pairs_hook=without_repeats,
            parse_float=Decimal if exact else float,
            parse_constant=_refuse_constant,
        )
    except json.JSONDecodeError as error:
        raise FormatError(
            f"found text that is not JSON: {error.msg} (at line {error.lineno}, column {error.colno}); "
            "correct that line",
            where=source,
        ) from None
    except RecursionError:
        raise FormatError("found values nested too deeply; expected a few levels", where=source) from None
    except FormatError:
        raise
    except (ArithmeticError, ValueError) as error:
        raise _unreadable_number(error, source) from None
    if not isinstance(data, dict):
        raise FormatError(f"found a JSON {type(data).__name__}; expected an object with fields", where=source)
    return data


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _unreadable_number(error: Exception, source: str) -> FormatError:
    reason = str(error).partition(";")[0]
    return FormatError(f"found a number that cannot be read ({reason}); correct it", where=source)
