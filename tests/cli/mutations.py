"""Random mutations of valid files of every input format: by structure, by line, by byte."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taccl.errors import FormatError
from taccl.formats.native import load_schedule

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

CORPUS = Path(__file__).parents[1] / "data" / "corpus"

#: Values that few fields accept, if any: other types, extreme numbers, and hostile text.
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 2**31, 2**62, 2**64, 10**30, 0.5, -0.0, 1e-300, 1e300, "", " ", "x", "0",
    "1/0", "1e99", "1e999999999", "-1", "nan", "1MB", "9" * 4000, "a\nb", "\x1b[31m\x07", "\u202ename", "\ud800",
    "]]>", "</script>", "$\\frac$", "n" * 10_000, [], {}, [[]], [0], [0, 0], [-1], [[0, 1]], {"0": [1]}, {"": None},
    [None] * 3, list(range(100)),
)  # fmt: skip
_BYTES = (
    b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\x1b", b"{", b"}", b"[", b"]", b'"', b"'", b"<", b">",
    b"&x;", b"&#0;", b"\n", b"\r", b"-", b"=", b":", b",", b"NaN", b"1e400", b"9" * 5000, b"[" * 2000, b"\t",
    b"<!DOCTYPE a [<!ENTITY x 'y'>]>", b"\xf0\x9f\x92\xa9",
)  # fmt: skip
_TOML_VALUES = (
    "nan", "inf", "-1", "0", "true", '""', "[]", "{}", "1e400", "1979-05-27", "[[0]]", '"\\u0000"', "{ 0 = [0] }",
    "9223372036854775808", '"1e999999999"', "0.5", "[0, 0]", '"ring:99999999"', "99999999", "2", "7",
)  # fmt: skip


def mutated(path: Path, random: random.Random) -> bytes:
    """Content of a file after one to three random changes."""
    content = path.read_bytes()
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        content = random.choice(_WAYS.get(path.suffix, _WAYS[".txt"]))(content, random)
    return content


def _bytes(content: bytes, random: random.Random) -> bytes:
    """Change, swap, delete, duplicate or insert some bytes."""
    if not content:
        return random.choice(_BYTES)
    a, b = sorted(random.randrange(len(content)) for _ in range(2))
    short = min(b, a + 20)
    return random.choice((
        content[:a],
        content[:a] + bytes([random.randrange(256)]) + content[a + 1 :],
        content[:a] + content[b : b + 1] + content[a + 1 : b] + content[a : a + 1] + content[b + 1 :],
        content[:a] + content[short:],
        content[:b] + content[a:b] + content[b:],
        content[:a] + random.choice(_BYTES) + content[a:],
    ))  # fmt: skip


def _lines(content: bytes, random: random.Random) -> bytes:
    """Delete, duplicate or move a line, or change the text after its equals sign or colon."""
    lines = content.split(b"\n")
    at, to = random.randrange(len(lines)), random.randrange(len(lines))
    kind = random.randrange(5)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(to, lines[at])
    elif kind == 2:
        lines[at], lines[to] = lines[to], lines[at]
    else:
        value = random.choice(_TOML_VALUES).encode()
        lines[at] = re.sub(rb"([=:]\s*).*", lambda match: match[1] + value, lines[at], count=1)
    return b"\n".join(lines)


def _cells(content: bytes, random: random.Random) -> bytes:
    """Replace a word or an attribute's value by another one of the file, or by a hostile value."""
    words = list(re.finditer(rb'"[^"]*"|[^\s"<>=,]+', content))
    if not words:
        return content
    old, other = random.choice(words), random.choice(words)[0]
    new = random.choice(
        (other, b"", b'""', b'"-1"', b'"1000000"', b'"99999999999"', b"0", b"-1", b"GPU0", b'"x"')
    )
    return content[: old.start()] + new + content[old.end() :]


def _elements(content: bytes, random: random.Random) -> bytes:
    """Delete, duplicate or move an XML element without children."""
    found = list(re.finditer(rb"<\w+[^<>]*/>", content))
    if not found:
        return content
    one, two = random.choice(found), random.choice(found)
    new = random.choice((b"", one[0] + two[0], two[0]))
    return content[: one.start()] + new + content[one.end() :]


def _values(content: bytes, random: random.Random) -> bytes:
    """Delete, duplicate, rename or replace a value of a JSON file."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return _bytes(content, random)
    places = [place for place in _places(document) if place]
    if not places:
        return _bytes(content, random)
    *above, key = random.choice(places)
    table = _at(document, above)
    value = copy.deepcopy(table[key])
    kind = random.randrange(6)
    if kind == 0:
        del table[key]
    elif kind == 1 and isinstance(table, list):
        table.insert(key, value)
    elif kind == 1:
        table[random.choice(("", "extra", key + "s", "\x1b", *table))] = value
    elif kind == 2:
        table[key] = copy.deepcopy(_at(document, random.choice(places)))
    elif kind == 3 and isinstance(value, (int, float)):
        table[key] = random.choice((value + 1, value - 1, -value, value * 1000, str(value), value + 0.5))
    else:
        table[key] = copy.deepcopy(random.choice(_VALUES))
    return json.dumps(document).encode()


def _sealed(content: bytes, random: random.Random) -> bytes:
    """Change a value of a schedule file; if it is still a schedule, recompute its digests."""
    changed = _values(content, random)
    try:
        document = json.loads(changed)
    except (ValueError, RecursionError):
        return changed
    for _ in range(5):
        try:
            load_schedule(document, where="f")
        except FormatError as error:
            match = re.search(r"the content makes it (.*?): the file was edited", error.message)
            field = (error.where or "").removeprefix("f: ")
            if not match or field not in document:
                break
            document[field] = match[1] if "digest" in field else json.loads(match[1])
        except Exception:  # which the command that reads the file meets as well, and is judged by
            break
    return json.dumps(document).encode()


def _places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Path of keys and indices to every nested value, including the value itself."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(place for key, each in inside for place in _places(each, (*here, key)))]


def _at(value: Any, place: tuple[Any, ...] | list[Any]) -> Any:
    for key in place:
        value = value[key]
    return value


_WAYS: dict[str, tuple[Callable[[bytes, random.Random], bytes], ...]] = {
    ".json": (_values, _values, _values, _sealed, _sealed, _bytes),
    ".toml": (_lines, _lines, _bytes),
    ".xml": (_cells, _cells, _elements, _bytes),
    ".yml": (_lines, _cells, _bytes),
    ".txt": (_cells, _cells, _lines, _bytes),
}
