"""Cells of tables in text, and square tables with names of rows or columns, or both."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from taccl._internal.names import shown
from taccl.errors import FormatError

#: Cells without a number that tools write on the diagonal, in lower case.
_NOTHING = ("", "-", "x", "na", "n/a", "nan", "none", "null")
#: Headers of the two columns of hosts or ranks in a list of pairs.
ENDS = (
    re.compile(r"(src|source|from|sender|client)(?![a-z])", re.IGNORECASE),
    re.compile(r"(dst|dest|destination|to|receiver|server|target|peer)(?![a-z])", re.IGNORECASE),
)
#: Number with commas between thousands.
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+", re.ASCII)

#: Line number of a row, and its cells.
Row = tuple[int, list[str]]


class Square(NamedTuple):
    """Cells of a square table without its names.

    - `corner`: Text above the names of rows; empty if there is none.
    - `names`: Name of each column; its index if the table has no names.
    - `rows`: Line number and cells of each row, in the order of the columns.
    - `num_left`: 1 if the first column of the table has names, else 0.
    """

    corner: str
    names: tuple[str, ...]
    rows: tuple[Row, ...]
    num_left: int


def square_of(rows: Sequence[Row], where: str, *, is_name: Callable[[str], bool], each: str) -> Square:
    """Split the rows of a square table into names and cells.

    Names may head rows, columns, or both.

    - `is_name`: True for a cell that is neither a number nor empty.
    - `each`: Kind of object that a row describes, for messages: ``"host"`` or ``"rank"``.

    Raises `FormatError` if the cells are no square, or rows and columns have different names.
    """
    if not rows:
        raise FormatError(f"found no rows; expected a matrix, a row for every {each}", where=where)
    has_top, has_left = _heads([cells for _, cells in rows], is_name)
    body = list(rows)[has_top:]
    first = rows[0][1]
    is_cornered = has_top and has_left and len(first) >= max((len(cells) for _, cells in body), default=0)
    corner, columns = (first[0], first[1:]) if is_cornered else ("", first)
    starts = [cells[0] for _, cells in body] if has_left else []
    names = columns if has_top else starts or [str(i) for i in range(len(first))]
    head = next((cell for cell in first[has_left:] if is_name(cell)), "") if has_top else ""
    below = f", below names such as {shown(repr(head), 60)}" if head else ""
    for number, cells in body:
        if len(cells) - has_left != len(names) and (has_top or not has_left):
            said = f"found {len(cells) - has_left} entries; expected {len(names)}, one for every {each}"
            raise FormatError(said + below, where=f"{where}: line {number}")
    widths = {len(cells) - has_left for _, cells in body}
    if len(widths) > 1 or {len(body)} != widths or len(body) != len(names):
        size = f"{len(body)} x {max(widths, default=0)}"
        said = f"found {size} entries for {len(names)} {each}s; expected a square of two or more"
        raise FormatError(f"{said}, with a row and a column for every {each}{below}", where=where)
    places = _places(starts, names, where) if has_top and has_left else [*range(len(body))]
    in_order = sorted(zip(places, body, strict=True), key=lambda placed: placed[0])
    cells_of = tuple((number, cells[has_left:]) for _, (number, cells) in in_order)
    return Square(corner, tuple(names), cells_of, int(has_left))


def _heads(rows: list[list[str]], is_name: Callable[[str], bool]) -> tuple[bool, bool]:
    """(True if the first row has names, True if the first column has names)."""
    first, others = rows[0], rows[1:]
    starts = [row[0] for row in others]
    are_names, are_named = any(map(is_name, first[1:])), any(map(is_name, starts))
    if any(len(row) == len(first) + 1 for row in others):
        return True, True
    if are_names:
        return True, are_named or is_index(starts) or (
            len(rows) == len(first) and all(map(is_nothing, starts))
        )
    if is_name(first[0]):  # either the corner above numbered columns, or the name of the first row
        return (True, True) if not are_named or len(rows) >= len(first) else (False, True)
    if is_nothing(first[0]) and first[1:] == starts:
        # Numbers name rows and columns, unless they are a symmetric matrix with an empty diagonal. 1, 2, 3
        # may be either: beside a mark such as "-" that is on the whole diagonal, they are entries.
        diagonal = [row[place] for place, row in enumerate(rows) if place < len(row)]
        is_marked = bool(first[0]) and set(diagonal) == {first[0]} and starts[:1] != ["0"]
        if not is_marked and (is_index(starts) or not all(map(is_nothing, diagonal))):
            return True, True
    # An extra first row (or column) of consecutive numbers holds the numbers of the columns (or rows).
    is_wide, is_long = len(first) == len(rows) + 1, len(rows) == len(first) + 1
    return is_long and is_index(first), is_wide and is_index([first[0], *starts])


def _places(starts: list[str], names: list[str], where: str) -> list[int]:
    """Index in `names` of the name of each row; `FormatError` if rows and columns have different names."""
    if starts == names or is_index(starts) or all(map(is_nothing, starts)):
        return [*range(len(names))]
    if len(set(names)) < len(names) or sorted(starts) != sorted(names):
        row, column = next(pair for pair in zip(starts, names, strict=True) if pair[0] != pair[1])
        said = f"found the row {shown(repr(row), 60)} and the column {shown(repr(column), 60)}"
        raise FormatError(f"{said} at one place; expected the same names; correct one", where=where)
    place = {name: i for i, name in enumerate(names)}
    return [place[each] for each in starts]


def is_index(cells: list[str]) -> bool:
    """True if the cells are consecutive numbers that begin with 0 or 1."""
    return any(cells == [str(i) for i in range(begin, begin + len(cells))] for begin in (0, 1))


def is_nothing(cell: str) -> bool:
    """True for a cell without a number, as tools write it on the diagonal."""
    return cell.lower() in _NOTHING


def cells_of(line: str) -> list[str]:
    """Cells of a line between commas, semicolons or tabs, else between blanks; no commas in numbers."""
    separator = next((each for each in ";\t," if each in line), "")
    try:
        parts = next(csv.reader([line.strip(" ")], delimiter=separator)) if separator else line.split()
    except csv.Error:  # quote marks that do not match, or a cell of more than 128 KiB
        parts = line.split(separator)
    cells = [part.strip(" '") for part in parts]
    return [cell.replace(",", "") if _THOUSANDS.fullmatch(cell) else cell for cell in cells]
