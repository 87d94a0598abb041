"""Pieces of a page: sections, tables, pictures. Text is escaped here, once and for all."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from taccl.html import as_html
from taccl.plot.style import render

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TAG = re.compile(r"<[^>]*>")
_PROLOGUE = re.compile(r"^.*?(?=<svg)|<metadata>.*?</metadata>\s*", re.DOTALL)
_REFERENCE = re.compile(r'(\bid="|url\(#|href="#)')


def section(name: str, title: str, *parts: str) -> str:
    """A part of the page, which `name` leads to."""
    return f'<section id="{as_html(name)}"><h2>{as_html(title)}</h2>{"".join(parts)}</section>\n'


def paragraph(text: str, *, kind: str = "") -> str:
    """A sentence or two; of kind ``"note"`` or ``"bad"`` it looks the part. Empty for no text."""
    mark = f' class="{as_html(kind)}"' if kind else ""
    return f"<p{mark}>{as_html(text)}</p>" if text else ""


def facts(rows: Sequence[tuple[str, str]]) -> str:
    """Names and what they are; without a value a row is left out."""
    body = "".join(f"<dt>{as_html(name)}</dt><dd>{as_html(value)}</dd>" for name, value in rows if value)
    return f'<dl class="facts">{body}</dl>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int] = ()) -> str:
    """A table; columns `numbers` are aligned to the right."""
    mark = [' class="number"' if column in numbers else "" for column in range(len(head))]
    top = "".join(f"<th{mark[i]}>{as_html(cell)}</th>" for i, cell in enumerate(head))
    body = "".join(
        "<tr>" + "".join(f"<td{mark[i]}>{as_html(cell)}</td>" for i, cell in enumerate(row)) + "</tr>\n"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def fold_away(title: str, *parts: str) -> str:
    """Parts that show when the title is clicked."""
    return f"<details><summary>{as_html(title)}</summary>{''.join(parts)}</details>"


def picture(drawn: Axes, name: str, title: str) -> str:
    """A picture as SVG within the page; `name` sets its identifiers apart from those of other pictures."""
    text = _PROLOGUE.sub("", render(drawn, "svg").decode())
    apart = _TAG.sub(lambda tag: _REFERENCE.sub(rf"\g<1>{name}-", tag[0]), text)
    known = f'id="{name}" role="img" aria-label="{as_html(title)}"'
    return f'<figure {known}><div class="scroll">{apart}</div></figure>'


def data(name: str, value: Any) -> str:
    """Plain values for the page's script; no text in them can end the element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="{as_html(name)}">{text}</script>'
