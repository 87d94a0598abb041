"""Open, decode and parse files from outside; errors are one sentence.

Only regular files of limited size in UTF-8 are accepted. Pipes and devices are refused immediately, as most
files are read more than once: their content is first used to recognise their kind. The error for a file of a
wrong kind names that kind (`reads`).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import stat
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import lru_cache, wraps
from typing import Any, TypeVar, cast

from taccl._internal.file_kinds import a, kind_of_bytes, kinds_in, kinds_of_text, unquoted, wrong_kind
from taccl._internal.names import shown
from taccl._internal.units import format_size
from taccl.errors import ExportError, FormatError, InputError

#: Maximum file size; a sketch has kilobytes.
MAX_FILE_BYTES = 16 * 10**6
_PIECE_BYTES = 1 << 20
REPLACED = "\ufffd"  #: Character in place of bytes that are not UTF-8 text.

Reader = TypeVar("Reader", bound=Callable[..., Any])
#: Max nesting of tables: our files have ten levels or fewer; Python's recursion limit is near 1000.
_MAX_DEPTH = 64
#: Max entries of a nested TOML table written on one line; a larger table gets a line for each entry.
_FEW_ENTRIES = 4
#: First line of a CSV that tells Excel the separator.
_SEPARATOR_LINE = re.compile(r"\A[sS][eE][pP]=[,;|\t][ \t]*\r?(?=\n|\Z)")
#: Header of a table, or a key with its value; a text without either is probably not TOML.
_LIKE_TOML = re.compile(r"^\s*(\[\[?[^\]\n]*\]\]?[^\S\n]*(#.*)?$|[\w.\"'-]+\s*=)", re.MULTILINE)
#: Line of a key whose value has letters outside quotes, brackets and the words of TOML.
_UNQUOTED = re.compile(r"^\s*[\w.\"'-]+\s*=\s*(?!(?:true|false)\b)[^\"'\[{#\n]*[A-Za-z]")
#: Key of many parts, for which `tomllib` needs time quadratic in their number.
_LONG_KEY = re.compile(
    rf"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{_MAX_DEPTH}}}"""
)
#: Line that a logger, log service, notebook or remote-command tool stores as a string in JSON or YAML.
#: `_AROUND_LINES`: line around a list of such stored lines; one with ``=`` is TOML.
#: Several strings in one line are a row of a table with quoted cells, unless braces are around them.
_STRING = r"\"(?:[^\"\\\n]|\\.)*+\""
_LOGGED_LINE = re.compile(
    rf"[^\S\n]*(?:-[^\S\n]+)?(?:(?P<alone>{_STRING})|"
    r"\{[^\n]*?\"(?:log|line|message|msg|stdout|textPayload)\"\s*:\s*"
    rf"(?P<field>{_STRING})(?:[^\S\n]*,[^\S\n]*\"[^\n]*)?)[\s,}}\]]*"
)
_AROUND_LINES = re.compile(r"[^\"=\n]*=>\s*\{\s*|\s*\"?(?:msg|stdout_lines|output)\"?:\s*\[?\s*|[\s\]},]*")


@contextlib.contextmanager
def plain_values(where: str) -> Iterator[None]:
    """Context that builds an object of plain values; `FormatError` if one is missing or of another kind."""
    try:
        yield
    except FormatError:
        raise
    except KeyError as error:
        raise FormatError(f"found no field {error}; it is required", where=where) from None
    except (ArithmeticError, AttributeError, IndexError, TypeError, ValueError) as error:
        raise FormatError(f"found a field that is not of its kind: {error}", where=where) from None


def read_bytes(path: str | os.PathLike[str], limit_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Content of a regular file. Raises `FormatError` if it cannot be read."""
    where = os.fspath(path)
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            data = _bytes_within(file.fileno(), file.read, limit_bytes, where)
    except FormatError:
        raise
    except FileNotFoundError:
        raise FormatError("there is no such file; check the path", where=where) from None
    except IsADirectoryError:
        index = os.path.join(where, "plan.json")
        said = "is a folder; give the path of a file"
        if os.path.isfile(index):
            said = f"is the folder of a plan; give its index, {shown(index)}, or one of its files"
        raise FormatError(said, where=where) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL or a lone surrogate in the path
        reason = getattr(error, "strerror", None) or error
        raise FormatError(f"the file cannot be read ({reason}); give another path", where=where) from None
    return data


def read_text(
    path: str | os.PathLike[str], limit_bytes: int = MAX_FILE_BYTES, *, replaces: bool = False
) -> str:
    """Text of a UTF-8 file, without a byte order mark or Excel's line `sep=;`, which becomes empty.

    Raises `FormatError` for other files.

    - `replaces`: True to read bytes that are not UTF-8 as `REPLACED`, as in logs, whose figures are ASCII.

    If each line is a string in JSON, as loggers of containers store text, the strings are the text. The text
    of a notebook of Jupyter is the output of its cells, if there is any.
    """
    where, data = os.fspath(path), read_bytes(path, limit_bytes)
    if kind := kind_of_bytes(data):
        raise FormatError(wrong_kind(kind, where, "UTF-8 text"), where=where)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise FormatError("found UTF-16 text; expected UTF-8; save it as UTF-8", where=where)
    if b"\0" in data:
        raise FormatError("found binary data; expected UTF-8 text; check the path", where=where)
    try:
        text = data.decode("utf-8-sig", "replace" if replaces else "strict")
    except UnicodeDecodeError as error:
        raise FormatError(
            f"found bytes that are not UTF-8 text, at byte {error.start}; save the file as UTF-8", where=where
        ) from None
    if not text.strip():
        raise FormatError("the file is empty; save it again, or check the path", where=where)
    return _output_of_notebook(text) or _unlogged(_SEPARATOR_LINE.sub("", text))


def _output_of_notebook(text: str) -> str:
    """Text that the cells of a notebook of Jupyter printed; empty for other files."""
    if '"nbformat"' not in text or not text.lstrip().startswith("{"):
        return ""
    found = list[str]()
    with contextlib.suppress(AttributeError, KeyError, TypeError, ValueError, RecursionError):
        for cell in json.loads(text)["cells"]:
            for output in cell.get("outputs", ()):
                shown_as = output["text"] if "text" in output else output["data"]["text/plain"]
                found.append(shown_as if isinstance(shown_as, str) else "".join(shown_as))
    return "\n".join(found)


def _unlogged(text: str) -> str:
    """The text whose lines a logger stored in JSON, if each line is such a record; else the given text.

    A single record counts if its string holds several lines.
    """
    lines, texts = list(filter(str.strip, text.splitlines())), list[str]()
    for line in lines:
        found = _LOGGED_LINE.fullmatch(line)
        if found is None and _AROUND_LINES.fullmatch(line):
            continue
        string = "" if found is None else found["alone"] or found["field"]
        if not string or len(lines) == 1 and "\\n" not in string:
            return text
        try:
            texts.append(json.loads(string, strict=False).removesuffix("\n"))
        except ValueError:
            return text
    return "\n".join(texts) or text


def parse(text: str, *, source: str, exact: bool = False) -> dict[str, Any]:
    """Table in a TOML or JSON text; the ending of `source` decides, else a leading ``{`` means JSON.

    - `source`: Name of the file, also for messages.
    - `exact`: True to read numbers with a point or exponent as `decimal.Decimal`.
    """
    name = source.lower()
    is_json = name.endswith(".json") or (not name.endswith(".toml") and text.lstrip().startswith("{"))
    return (parse_json if is_json else parse_toml)(text, source=source, exact=exact)


def parse_toml(text: str, *, source: str, exact: bool = False) -> dict[str, Any]:
    """Tables of a TOML text; with `exact`, numbers with a point or exponent are `decimal.Decimal`."""

    def plain() -> dict[str, Any]:
        if _LONG_KEY.search(text):
            raise _too_deep(source)
        try:
            return tomllib.loads(text, parse_float=Decimal if exact else float)
        except tomllib.TOMLDecodeError as error:
            if not _LIKE_TOML.search(text):
                said = f"found {unknown_text(text)}; check the path, or give a file that the page on formats"
                raise FormatError(f"{said} lists", where=source) from None
            end = f"at line {text.count(chr(10)) + 1}, the end of the text"
            reason = str(error).replace("at end of document", end)
            at = re.search(r"at line (\d+)", reason)
            line = text.splitlines()[int(at[1]) - 1 :][:1] if at else []
            advice = "put quotes around text" if line and _UNQUOTED.match(line[0]) else "correct that line"
            raise FormatError(f"found text that is not TOML: {reason}; {advice}", where=source) from None

    tables: dict[str, Any] = _parsed(plain, source)
    return tables


def parse_json(text: str, *, source: str, exact: bool = False) -> dict[str, Any]:
    """Object in a JSON text; with `exact`, numbers with a point or exponent are `decimal.Decimal`."""

    def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            twice = shown(repr(Counter(key for key, _ in pairs).most_common(1)[0][0]), 60)
            raise FormatError(f"found key {twice} twice in one object; remove one", where=source)
        return table

    def plain() -> Any:
        try:
            number = Decimal if exact else _finite
            return json.loads(
                text, object_pairs_hook=without_repeats, parse_float=number, parse_constant=_refuse_constant
            )
        except json.JSONDecodeError as error:
            at = f"line {error.lineno}, column {error.colno}"
            is_cut = error.msg.startswith("Unterminated string") or not text[error.pos :].strip()
            advice = "the file ends too early: save or copy it again" if is_cut else "correct that line"
            said = f"found text that is not JSON: {error.msg} (at {at}); {advice}"
            raise FormatError(said, where=source) from None

    data = _parsed(plain, source)
    if not isinstance(data, dict):
        kind = {list: "list", str: "string", bool: "boolean", type(None): "null"}.get(type(data), "number")
        raise FormatError(f"found a JSON {kind}; expected an object with fields", where=source)
    return data


def unknown_text(text: str) -> str:
    """Description of a text of unknown kind for messages, with the beginning of its first line."""
    return f"text of unknown kind, which begins {shown(repr(text.strip().partition(chr(10))[0].strip()), 60)}"


def kinds_of(path: str | os.PathLike[str]) -> list[str]:
    """Kinds of a file by its content (TOML, JSON or other text); empty if unknown."""
    try:
        text = read_text(path, 10 * MAX_FILE_BYTES)
    except FormatError:
        return []
    # Larger texts would take up memory for as long as the process runs.
    find = _kinds_by_text if len(text) <= MAX_FILE_BYTES else _kinds_by_text.__wrapped__
    return list(find(text))


@lru_cache(maxsize=2)  # a command asks several times for the kind of the same file
def _kinds_by_text(text: str) -> tuple[str, ...]:
    try:
        return tuple(kinds_in(parse(unquoted(text), source="")) or kinds_of_text(text))
    except FormatError:
        return tuple(kinds_of_text(text))


def reads(*wanted: str) -> Callable[[Reader], Reader]:
    """Decorate a reader of a path: if it fails and the file is of another kind, the error names that kind."""

    def decorate(read: Reader) -> Reader:
        @wraps(read)
        def checked(*args: Any, **named: Any) -> Any:
            try:
                return read(*args, **named)
            except InputError as error:
                path = next(iter((*args, *named.values())), None)
                if not isinstance(path, (str, os.PathLike)):
                    raise
                found = kinds_of(path)
                if not found or set(found) & set(wanted):
                    raise
                where = os.fspath(path)
                raise type(error)(wrong_kind(found[0], where, a(wanted[0])), where=where) from None

        return cast("Reader", checked)

    return decorate


def toml_text(value: Any) -> str:
    """String, number, boolean, list or dict as TOML on one line.

    Strings have JSON's escapes, and escapes for invisible characters.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(toml_text, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {toml_text(each)}' for key, each in value.items())} }}"
    if not isinstance(value, str):
        return str(value)
    if any("\ud800" <= each <= "\udfff" for each in value):
        raise ExportError(f"TOML holds whole characters, and {shown(repr(value), 60)} has half of one")
    written = json.dumps(value, ensure_ascii=False)
    return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in written)


def toml_document(content: dict[str, Any]) -> str:
    """Text of a TOML file: plain values first, then tables; each long subtable has a header of its own."""
    plain = {key: value for key, value in content.items() if not _is_table(value)}
    lines = [f"{key} = {toml_text(value)}" for key, value in plain.items()]
    for key, value in content.items():
        if key in plain:
            continue
        for table in value if isinstance(value, list) else [value]:
            lines += ["", f"[[{key}]]" if isinstance(value, list) else f"[{key}]"]
            long = [n for n, each in table.items() if isinstance(each, dict) and len(each) > _FEW_ENTRIES]
            lines += [f"{name} = {toml_text(each)}" for name, each in table.items() if name not in long]
            for name in long:
                lines += ["", f"[{key}.{name}]"]
                lines += [f"{entry} = {toml_text(each)}" for entry, each in table[name].items()]
    return "\n".join(lines) + "\n"


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list) and bool(value) and all(isinstance(each, dict) for each in value)
    )


#: Types of values that contain no others; most lists of a large file have nothing else.
_PLAIN = frozenset((int, float, str, bool, Decimal, type(None)))


def check_depth(data: object, *, where: str) -> None:
    """Raise `FormatError` for values nested too deeply for recursion."""
    inside = [data]
    for _ in range(_MAX_DEPTH):
        containers = (each.values() if isinstance(each, dict) else each for each in inside)
        inside = [
            value
            for values in containers
            if not _PLAIN.issuperset(map(type, values))  # type: ignore[call-overload]
            for value in values  # type: ignore[attr-defined]
            if isinstance(value, (dict, list))
        ]
        if not inside:
            return
    raise _too_deep(where)


def _open_at_once(path: str, flags: int) -> int:
    # Opening a pipe without a writer would block.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _bytes_within(descriptor: int, read: Callable[[int], bytes], limit_bytes: int, where: str) -> bytes:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        said = "is a pipe or a device; save its output in a file, and give that"
        raise FormatError(said, where=where)
    pieces: list[bytes] = []
    num_bytes = 0
    while num_bytes <= limit_bytes >= status.st_size and (piece := read(_PIECE_BYTES)):
        num_bytes += len(piece)
        pieces.append(piece)
    if max(num_bytes, status.st_size) > limit_bytes:
        raise FormatError(
            f"the file is larger than {format_size(limit_bytes)}, the most that is read; "
            "check that it is the file you meant",
            where=where,
        )
    return b"".join(pieces)


def _parsed(plain: Callable[[], Any], source: str) -> Any:
    """Run a parser; raise `FormatError` for unreadable numbers, deep nesting, or lack of memory."""
    try:
        data = plain()
    except FormatError:
        raise
    except RecursionError:
        raise _too_deep(source) from None
    except MemoryError:
        raise FormatError("the file does not fit into memory; give a smaller file", where=source) from None
    except (ArithmeticError, ValueError) as error:  # e.g. a number of 5000 digits
        reason = str(error).partition(";")[0]
        said = f"found a number that cannot be read ({reason}); correct it"
        raise FormatError(said, where=source) from None
    if isinstance(data, (dict, list)):
        check_depth(data, where=source)
    return data


def _too_deep(where: str) -> FormatError:
    return FormatError("found values nested too deeply; expected a few levels", where=where)


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{shown(text, 60)} is larger than any number of 64 bits")
    return number


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
