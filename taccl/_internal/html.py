"""Small HTML tables that notebooks show instead of a repr; every text is escaped.

Colours are inherited from the page, so that a dark page stays dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from taccl._internal.names import shown

_CELL = "padding:2px 10px 2px 0;text-align:left;vertical-align:top;background:none;color:inherit;border:0"
_RULE = "border:0;border-bottom:1px solid rgba(128,128,128,.5)"


def as_html(text: str) -> str:
    """Text escaped for HTML, with control characters made visible."""
    return escape(shown(text))


def card(title: str, *parts: str, notes: Sequence[str] = ()) -> str:
    """HTML card of a title, HTML parts (from `facts` and `table`) and notes; escapes the title and notes."""
    noted = "".join(
        f'<div style="opacity:.75;margin-top:4px">note: {as_html(note)}</div>' for note in notes if note
    )
    return (
        '<div style="font-size:90%;line-height:1.4;max-width:70em;overflow-x:auto">'
        f'<div style="font-weight:600;margin-bottom:4px">{as_html(title)}</div>{"".join(parts)}{noted}</div>'
    )


def facts(rows: Sequence[tuple[str, str]]) -> str:
    """HTML table of names and values; rows without a value are left out. Empty if no row remains."""
    cells = "".join(
        f'<tr style="background:none"><th style="{_CELL};font-weight:400;opacity:.75">{as_html(name)}</th>'
        f'<td style="{_CELL}">{as_html(value)}</td></tr>'
        for name, value in rows
        if value
    )
    made = f'<table style="border:0;margin:0;background:none;color:inherit">{cells}</table>'
    return made if cells else ""


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, limit: int | None = None) -> str:
    """HTML table with a header; at most `limit` rows are shown, and the others are counted."""
    top = "".join(f'<th style="{_CELL};{_RULE};font-weight:600">{as_html(cell)}</th>' for cell in head)
    some = rows if limit is None else rows[:limit]
    body = "".join(
        '<tr style="background:none">'
        + "".join(f'<td style="{_CELL}">{as_html(cell)}</td>' for cell in row)
        + "</tr>"
        for row in some
    )
    hidden = len(rows) - len(some)
    more = f'<div style="opacity:.75">... and {hidden} more</div>' if hidden else ""
    return (
        '<table style="border:0;border-collapse:collapse;margin:4px 0 0;background:none;color:inherit">'
        f'<thead><tr style="background:none">{top}</tr></thead><tbody>{body}</tbody></table>{more}'
    )
