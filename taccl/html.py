"""Small tables in HTML, which notebooks show in place of a repr; every text is escaped.

Colours are those of the page around them, so that a dark page stays dark.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["card", "facts", "table"]

_CELL = "padding:2px 10px 2px 0;text-align:left;vertical-align:top;background:none;color:inherit;border:0"
_RULE = "border:0;border-bottom:1px solid rgba(128,128,128,.5)"


def card(title: str, *parts: str, notes: Sequence[str] = ()) -> str:
    """A title, tables below it, and notes.

    Parameters
    ----------
    title : str
        Text, escaped here.
    parts : str
        HTML, as `facts` and `table` make it.
    notes : sequence of str
        Text, escaped here.
    """
    shown = "".join(
        f'<div style="opacity:.75;margin-top:4px">note: {escape(note)}</div>' for note in notes if note
    )
    return (
        '<div style="font-size:90%;line-height:1.4;max-width:70em;overflow-x:auto">'
        f'<div style="font-weight:600;margin-bottom:4px">{escape(title)}</div>{"".join(parts)}{shown}</div>'
    )


def facts(rows: Sequence[tuple[str, str]]) -> str:
    """A table of names and what they are; rows without a value are left out."""
    cells = "".join(
        f'<tr style="background:none"><th style="{_CELL};font-weight:400;opacity:.75">{escape(name)}</th>'
        f'<td style="{_CELL}">{escape(value)}</td></tr>'
        for name, value in rows
        if value
    )
    return f'<table style="border:0;margin:0;background:none;color:inherit">{cells}</table>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, limit: int | None = None) -> str:
    """A table with a head; of more rows than `limit` the first are shown, and the rest are counted."""
    top = "".join(f'<th style="{_CELL};{_RULE};font-weight:600">{escape(cell)}</th>' for cell in head)
    shown = rows if limit is None else rows[:limit]
    body = "".join(
        '<tr style="background:none">'
        + "".join(f'<td style="{_CELL}">{escape(cell)}</td>' for cell in row)
        + "</tr>"
        for row in shown
    )
    hidden = len(rows) - len(shown)
    more = f'<div style="opacity:.75">... and {hidden} more</div>' if hidden else ""
    return (
        '<table style="border:0;border-collapse:collapse;margin:4px 0 0;background:none;color:inherit">'
        f'<thead><tr style="background:none">{top}</tr></thead><tbody>{body}</tbody></table>{more}'
    )
