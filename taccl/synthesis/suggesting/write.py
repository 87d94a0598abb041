"""Sketches as TOML with comments: a file that a person reads, edits and keeps."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taccl.sketch.sketch import Sketch

__all__ = ["commented_toml"]

_WIDTH = 100
_SCHEMA_LINE = "#:schema sketch.schema.json"


def commented_toml(sketch: Sketch, *, header: Sequence[str] = (), comments: Mapping[str, str]) -> str:
    """The sketch as TOML, with a comment above what has one.

    Parameters
    ----------
    header : sequence of str
        Paragraphs at the top, behind the line that names the schema for editors.
    comments : mapping of str to str
        By field, ``"internode.connections"``, or table, ``"symmetry"``; of several tables of one name the
        first is commented.
    """
    lines = [_SCHEMA_LINE, *(line for paragraph in header for line in _wrapped(paragraph))]
    table, left = "", dict(comments)
    for line in sketch.to_toml().splitlines():
        if line.startswith("["):
            table = line.strip("[]")
            comment = left.pop(table, None)
        else:
            name = line.partition(" = ")[0]
            comment = left.pop(f"{table}.{name}" if table else name, None) if line else None
        lines += [*_wrapped(comment), line] if comment else [line]
    return "\n".join(lines) + "\n"


def _wrapped(paragraph: str) -> list[str]:
    return textwrap.wrap(paragraph, _WIDTH, initial_indent="# ", subsequent_indent="# ")
