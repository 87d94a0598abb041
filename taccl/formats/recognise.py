"""What a file holds, by its content: the first thing to ask of a file that anybody may have written.

A format is a name and the field, with its value, that marks the top of such a file. A format more is an entry
more in `FORMATS`, and a word to the caller that loads it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from taccl.errors import FormatError
from taccl.formats.files import read_limited
from taccl.sketch.reading import parse_json

if TYPE_CHECKING:
    import os

__all__ = ["FORMATS", "TACCL_SCHEDULE", "UPSTREAM_ALGORITHM", "Format", "recognise"]

TACCL_SCHEDULE = "taccl schedule"
UPSTREAM_ALGORITHM = "upstream algorithm"

_LIMIT_BYTES = 10**9
#: A file whose first field does not say what it is must be parsed whole, which takes many times its size.
_PARSED_CHARACTERS = 64 * 10**6


class Format(NamedTuple):
    """A JSON format: files of it have `field` with `value` at their top."""

    name: str
    field: str
    value: str
    description: str


FORMATS = (
    Format(TACCL_SCHEDULE, "format", "taccl-schedule", "what `taccl synthesize -o` writes"),
    Format(
        UPSTREAM_ALGORITHM, "sccl_type", "algorithm", "what the published TACCL tool writes when it solves"
    ),
)

#: Fields that tell other files a user may have at hand, which hold no transfers.
_OTHERS = {
    "nnodes": "an upstream sketch", "gpus_per_node": "an upstream topology",
    "schema": "a sketch or a topology", "sccl_type": "another object of the published TACCL tool",
}  # fmt: skip


def recognise(path: str | os.PathLike[str]) -> str:
    """The name of the format that a file is in: one of `FORMATS`.

    The file is not checked any further; whoever loads it does that.

    Raises
    ------
    InputError
        If the file cannot be read.
    FormatError
        If it is in none of these formats; the message says what was found, and lists them.
    """
    where = str(path)
    text = read_limited(path, _LIMIT_BYTES).lstrip()
    for each in FORMATS:
        mark = rf'\{{\s*"{re.escape(each.field)}"\s*:\s*"{re.escape(each.value)}"\s*[,}}]'
        if re.match(mark, text):
            return each.name
    if not text.startswith("{"):
        raise _unknown("XML" if text.startswith("<") else "text that is no JSON object", where)
    if len(text) > _PARSED_CHARACTERS:
        raise _unknown(f"{len(text)} characters of JSON whose first field does not say what they are", where)
    data = parse_json(text, source=where, exact=True)
    for each in FORMATS:
        if data.get(each.field) == each.value:
            return each.name
    other = next((found for field, found in _OTHERS.items() if field in data), None)
    names = ", ".join(repr(name[:40]) for name in list(data)[:6])
    raise _unknown(other or (f"JSON with fields {names}" if data else "an empty JSON object"), where)


def _unknown(found: str, where: str) -> FormatError:
    known = " or ".join(
        f"{_article(each.name)} {each.name} ({each.field!r} is {each.value!r}: {each.description})"
        for each in FORMATS
    )
    return FormatError(f"found {found}; expected {known}; check the path", where=where)


def _article(name: str) -> str:
    return "an" if name[0] in "aeiou" else "a"
