"""Find a file format by its name, by a path's extension, or by a file's content."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from taccl._internal.arguments import known_name
from taccl._internal.file_kinds import has_fields, kinds_in, kinds_of_text, unquoted, wrong_kind
from taccl._internal.reading import kinds_of, parse_json, read_text, unknown_text
from taccl._internal.text_kinds import MATRIX_IN_TEXT
from taccl._internal.web_text import without_markup
from taccl.errors import FormatError, InputError
from taccl.formats.table import FORMATS, FileFormat

_LIMIT_BYTES = 10**9
#: Kinds of objects that formats hold, as messages name them.
_ANY_FORMAT = "a schedule, a program, a topology or a workload"
#: Max characters at the top of a file that are searched for marks of its format.
_HEAD_CHARACTERS = 1 << 16
#: Max characters of a JSON file that is parsed whole because its first field does not identify its format.
#: Parsing needs many times the memory of the file.
_PARSED_CHARACTERS = 64 * 10**6
#: Pattern that captures the name of the first XML element, after comments and declarations.
_FIRST_ELEMENT = re.compile(r"(?:\s|<!--(?:(?!-->)[\s\S])*+-->|<\?(?:(?!\?>)[\s\S])*+\?>)*+<([\w.:-]+)")


def format_named(name: str, *, where: str = "format") -> FileFormat:
    """Format by name, ignoring case and dashes.

    Raises `InputError` if no format has this name.
    """
    by_name = {each.family: each for each in FORMATS if each.family} | {each.name: each for each in FORMATS}
    return by_name[known_name(name, by_name, where)]


def format_of_name(path: str | os.PathLike[str], where: str = "format") -> FileFormat:
    """Format for writing, by a path's extension; the longest matching extension decides.

    - `where`: Name of the argument that states a format instead, for the message.

    Raises `InputError` if none matches.
    """
    name = os.fspath(path).lower()
    fitting = [
        (len(end), -place, each)
        for place, each in enumerate(FORMATS)
        for end in each.extensions
        if name.endswith(end) and each.dump
    ]
    if not fitting:
        ends = ", ".join(dict.fromkeys(end for each in FORMATS if each.dump for end in each.extensions))
        raise InputError(
            f"its ending names no format; expected one of {ends}; else give the format as {where}=NAME",
            where=os.fspath(path),
        )
    return max(fitting, key=lambda each: each[:2])[2]


def format_of_content(path: str | os.PathLike[str], wanted: str = _ANY_FORMAT) -> FileFormat:
    """Format of a file by its content, independent of its name.

    The file is not checked further; the format's reader does that.

    - `wanted`: Name of the kinds that the caller accepts, for the message on a file of another kind.

    Raises `InputError` if the file cannot be read. `FormatError` if it matches no format of the table; the
    message describes the content and lists the formats.
    """
    where = str(path)
    text = without_markup(read_text(path, _LIMIT_BYTES))
    head = unquoted(text[:_HEAD_CHARACTERS]).lstrip()
    text = text.lstrip()
    for each in FORMATS:
        if _first_field_shows(each, head) or (each.begins and re.search(each.begins, head, re.MULTILINE)):
            return each
    if text.startswith("<"):
        first = _FIRST_ELEMENT.match(text)
        element = first[1] if first else ""
        top = f"XML with <{element[:40]}> at its top" if element else "XML without an element"
        raise _unknown(top, where, kinds_of_text(text), wanted)
    if not text.startswith("{"):
        kinds = kinds_of(path)
        if kinds[:1] == ["topology"]:
            return format_named("taccl-topology")
        if kinds == [MATRIX_IN_TEXT]:
            return format_named("pair-matrix")
        raise _unknown(unknown_text(text), where, kinds, wanted)
    if len(text) > _PARSED_CHARACTERS:
        raise _unknown(f"{len(text)} characters of JSON of unknown kind", where)
    try:
        data = parse_json(text, source=where, exact=True)
    except FormatError:
        if kinds := kinds_of_text(text):
            raise _unknown("text that is no JSON", where, kinds, wanted) from None
        raise
    for each in FORMATS:
        if each.fields and has_fields(data, each.fields):
            return each
    kinds = kinds_in(data)
    if kinds[:1] == ["topology"]:
        return format_named("taccl-topology")
    names = ", ".join(repr(name[:40]) for name in list(data)[:6])
    raise _unknown(f"JSON with fields {names}" if data else "an empty JSON object", where, kinds, wanted)


def wrong_format(path: str | os.PathLike[str], found: FileFormat, wanted: str) -> InputError:
    """Error, with advice, for a file that holds another kind of object than `wanted`."""
    where = os.fspath(path)
    kind = next(iter(kinds_of(path)), found.kind_of_file)
    return InputError(wrong_kind(kind, where, wanted), where=where)


def _first_field_shows(each: FileFormat, head: str) -> bool:
    """True if the first field of a JSON text shows the format `each`; the text need not be parsed then."""
    if len(each.fields) != 1:
        return False
    [(name, value)] = each.fields.items()
    mark = rf'\{{\s*"{re.escape(name)}"\s*:' + (rf'\s*"{re.escape(value)}"\s*[,}}]' if value else "")
    return re.match(mark, head) is not None


def _unknown(found: str, where: str, kinds: Sequence[str] = (), wanted: str = _ANY_FORMAT) -> FormatError:
    if kinds:
        return FormatError(wrong_kind(kinds[0], where, wanted), where=where)
    known = ", ".join(each.name for each in FORMATS if each.load)
    said = f"found {found}; expected one of {known} (`taccl convert --list` describes them)"
    return FormatError(f"{said}; check the path", where=where)


def readable(
    path: str | os.PathLike[str], name: str | None = None, where: str = "format", wanted: str = _ANY_FORMAT
) -> FileFormat:
    """Format for reading a file: the format called `name` or, without a name, the format of its content.

    - `wanted`: See `format_of_content`.

    Raises `InputError` if the format is write-only, and the errors of `format_of_content` and `format_named`.
    """
    each = format_of_content(path, wanted) if name is None else format_named(name, where=where)
    if not each.load and not kinds_of(path):  # a write-only format that is not text, such as Parquet
        text = f"{each.name} ({each.description}) is write-only; give the {each.holds} that it was made of"
        raise InputError(text, where=os.fspath(path))
    if not each.load:
        raise wrong_format(path, each, "")
    return each


def writable(path: str | os.PathLike[str], name: str | None, where: str = "format") -> FileFormat:
    """Format for writing a file, by name or by the path's extension; `InputError` if it is read-only."""
    each = format_of_name(path, where) if name is None else format_named(name, where=where)
    if not each.dump:
        known = ", ".join(other.name for other in FORMATS if other.dump)
        text = f"{each.name} ({each.description}) is read-only; expected one of {known}"
        raise InputError(text, where=os.fspath(path))
    return each
