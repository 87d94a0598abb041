"""Names as users type them (regardless of case and dashes), and texts for messages and tables."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Sequence
from decimal import Decimal
from difflib import SequenceMatcher, get_close_matches

#: Minimum number of letters with which a part of a name is recognised: ``h100`` for ``dgx-h100``.
_LEAST_LETTERS = 4
#: Minimum number of letters with which the start of a name is recognised: ``p5`` for ``p5.48xlarge``.
_LEAST_START = 2

#: `_COMPARED`: max similar names that are compared.
#: `_ALIKE`: max difference of the likenesses of names of which the first known one is suggested.
_COMPARED, _ALIKE = 5, 0.07

#: Numbers that stand alone, unlike those of names and of sizes with a unit.
_NUMBER = re.compile(r"(?<![\w.-])\d+(?:\.\d+)?(?![\w.-]*\w)")

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = _repr.maxlong = 60


def matching(word: str, known: Iterable[str]) -> str | None:
    """Known name, e.g. ``allgather``, that a word such as ``All_Gather`` spells; None if there is none."""
    return {_plain(name): name for name in known}.get(_plain(word))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Suggestion such as ``"; did you mean 'allgather'?"``; empty if no name is similar."""
    by_plain = {_plain(name): name for name in known}
    part = _plain(word)
    near = [name for name in by_plain if len(part) >= _LEAST_LETTERS and part in name]
    near = near or [name for name in by_plain if len(part) >= _LEAST_START and name.startswith(part)]
    if not near and (close := get_close_matches(part, by_plain, n=_COMPARED, cutoff=0.6)):
        likeness = {name: SequenceMatcher(None, name, part).ratio() for name in close}
        least = likeness[close[0]] - _ALIKE
        near = [name for name in by_plain if likeness.get(name, 0.0) >= least]
    return f"; did you mean {by_plain[near[0]]!r}?" if near else ""


def install_extra(extra: str) -> str:
    """Command that installs an extra, such as ``mpi``; the package is installed from its source."""
    return f"pip install '.[{extra}]' in the folder of taccl's source"


def shown(text: str, most: int | None = None) -> str:
    """Text of a user or a file, for display: control and invisible characters become Python's escapes.

    Line breaks and marks of writing direction are escaped as well. A text longer than `most` characters is
    shortened in the middle.
    """
    if most is not None and len(text) > most:
        head = (most - 3) // 2
        text = f"{text[:head]}...{text[len(text) - (most - 3 - head) :]}"
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii") for c in text
    )


def shown_lines(text: str) -> str:
    """Text of several lines, each escaped as by `shown`."""
    return "\n".join(map(shown, text.split("\n")))


def listed(things: Sequence[object], *, total: int | None = None, most: int = 10) -> list[str]:
    """One line for each of the first `most` items, and one with the number of the others.

    - `total`: Number of all items, if `things` is only a part of them.
    """
    lines = [f"  {each}" for each in things[:most]]
    left_out = (len(things) if total is None else total) - len(lines)
    return [*lines, f"  ... and {left_out} more"] if left_out > 0 else lines


def first_of(things: Sequence[object], most: int) -> str:
    """First `most` items on one line, and the number of the others: ``a, b and 3 more``."""
    left_out = len(things) - most
    return ", ".join(map(str, things[:most])) + (f" and {left_out} more" if left_out > 0 else "")


def notes_by_text(named: Iterable[tuple[str, str]]) -> list[str]:
    """A line for each text of (name, text) pairs, with the names that share it, at most three of them.

    Texts that differ in numbers alone share a line, with the smallest and the largest number.
    """
    groups: dict[str, tuple[list[str], list[str]]] = {}
    for name, text in named:
        names, texts = groups.setdefault(_NUMBER.sub("#", text), ([], []))
        names.append(name)
        texts.append(text)
    lines = []
    for names, texts in groups.values():
        numbers = zip(*map(_NUMBER.findall, texts), strict=True)
        spans = ((min(each, key=float), max(each, key=float)) for each in numbers)
        text = _NUMBER.sub(lambda _: " to ".join(dict.fromkeys(next(spans))), texts[0])  # noqa: B023
        lines.append(f"{first_of(names, 3)}: {text}")
    return lines


def in_runs(numbers: Iterable[int]) -> str:
    """Whole numbers as ranges: ``0-3, 7``; ``none`` if empty."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if not runs or number != runs[-1][-1] + 1:
            runs.append([])
        runs[-1].append(number)
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs) or "none"


def table(rows: Sequence[Sequence[str]], *, indent: str = "") -> str:
    """Table as text; each column is as wide as its widest cell, except the last."""
    rows = [[*(shown(cell, 100) for cell in row[:-1]), shown(row[-1])] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append((indent + "  ".join([*cells, row[-1]])).rstrip())
    return "\n".join(lines)


def note_lines(notes: Sequence[str]) -> list[str]:
    """Lines of notes, after an empty line; empty without notes."""
    return ["", *(f"  note: {shown(note)}" for note in notes)] if notes else []


def numbers_table(rows: Sequence[Sequence[str]], *, hidden: int = 0) -> str:
    """Table as text with right-aligned cells; unless `hidden` is 0, a last line counts the hidden rows."""
    cells = [[shown(cell, 100) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(map(str.rjust, row, widths)) for row in cells]
    return "\n".join([*lines, f"... and {hidden} more"] if hidden else lines)


def _plain(word: str) -> str:
    return "".join(letter for letter in word.lower() if letter.isalnum())


def quoted(value: object) -> str:
    """Value as a message shows it: on one line, at most 60 characters."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if type(value).__module__.partition(".")[0] == "taccl":
        return noun(type(value).__name__)
    try:
        text = str(value) if isinstance(value, Decimal) else " ".join(_repr.repr(value).split())
    except ValueError:  # Python converts no number of more than 4300 digits
        return "a number with thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


def noun(name: str) -> str:
    """Class name in words, with an article if it is singular: ``"an implicit schedule"``."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()
    if words.endswith("s"):
        return words
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"
