"""Read matrices with a latency or a bandwidth for each pair of hosts from cells of text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl._internal.named_tables import ENDS, is_index, is_nothing, square_of
from taccl._internal.names import first_of, shown
from taccl.errors import FormatError

#: Unit of a rate: prefix, bits or bytes, and time. ``gb/s`` and ``gb_per_s`` are bytes, ``gbps`` are bits.
_RATE = re.compile(
    r"(?<![A-Za-z])([KMGT]i?|)(bits?|bytes?|b)(ps|/s(?:ec)?|_per_s)(?![A-Za-z])", re.IGNORECASE
)
_TIME = re.compile(
    r"(?<![A-Za-z0-9/-])([numµμ]s(?:ec)?|(?:nano|micro|milli)?sec(?:onds?)?)(?![A-Za-z0-9-])"
    r"|(?<!\w)[(\[]s[)\]]|^\s*s\s*$"
)
#: Words that mark times as round-trip times, which are halved to get latencies.
_ROUND_TRIP = re.compile(r"(?<![a-z])(rtt|round[ _-]?trip|ping(?![ _-]?pong|[a-z]))", re.IGNORECASE)
#: {beginning of a unit of time: microseconds}.
_US = {"n": 1e-3, "u": 1.0, "µ": 1.0, "μ": 1.0, "micro": 1.0, "m": 1e3, "milli": 1e3}
#: Separators of cells, in order of preference; a line without any of them is split at blanks.
_SEPARATORS = "|;\t,"
#: Number whose decimal mark is a comma.
_DECIMAL_COMMA = re.compile(r"([-+]?\d+),(\d+)")
_WITH_UNIT = re.compile(r"([-+]?[\d.]+(?:[eE][-+]?\d+)?)\s?([^\W\d]\S*)")


class Unit(NamedTuple):
    """Unit of the entries of a matrix of latencies or bandwidths.

    - `is_rate`: True for bandwidths, False for latencies.
    - `factor`: GB/s or us of an entry of 1.
    - `assumed`: Assumption if the text does not name the unit; else empty.
    """

    is_rate: bool
    factor: float
    assumed: str = ""


class Table(NamedTuple):
    """Square matrix of values from the row's host to the column's, with host names and the corner's text."""

    corner: str
    names: tuple[str, ...]
    values: NDArray[np.float64]


def unit_of(said: Sequence[str], where: str) -> Unit:
    """Unit in the first text that names a unit, else an assumed one; `FormatError` if it names several."""
    for text in said:
        units = _units_in(text)
        if len(set(units.values())) > 1:
            found = first_of(list(units), 4)
            raise FormatError(f"found the units {found}; expected one for all entries", where=where)
        for unit in units.values():
            if not unit.is_rate and any(map(_ROUND_TRIP.search, said)):
                return Unit(False, unit.factor / 2, "latencies are half of the round-trip times")
            return unit
    is_rate = any(re.search(r"bandwidth|\b\w*bw\b", text, re.IGNORECASE) for text in said)
    kind, unit_name = ("bandwidths", "GB/s") if is_rate else ("latencies", "us")
    why = f"entries are {kind} in {unit_name}, as the file names no unit (the first cell may, e.g. GB/s)"
    return Unit(is_rate, 1.0, why)


def _units_in(text: str) -> dict[str, Unit]:
    """{unit as written: unit} of all units in a text."""
    units = {}
    for match in _RATE.finditer(text):
        prefix, thing, per = match.groups()
        is_bits = thing.lower().startswith("bit") or (
            thing == "b" and (prefix[:1].isupper() or per.lower() == "ps")
        )
        power = " KMGT".index(prefix[:1].upper() or " ")
        rate = (1024 if "i" in prefix.lower() else 1000) ** power / 1e9 / (8 if is_bits else 1)
        units[match[0]] = Unit(True, rate)
    for match in _TIME.finditer(text):
        begins = (match[1] or "").partition("sec")[0].removesuffix("s")
        units[match[0].strip()] = Unit(False, _US.get(begins, 1e6))
    return units


def without_units(rows: dict[int, list[str]], where: str) -> tuple[dict[int, list[str]], str]:
    """Strip the unit from cells such as ``3 us``; return the rows and the unit, empty if there is none."""
    found = {match[2] for row in rows.values() for match in map(_WITH_UNIT.fullmatch, row) if match}
    units = sorted(each for each in found if _units_in(each))
    if not units:
        return rows, ""
    unit_of([" ".join(units)], where)
    bare = {
        number: [match[1] if (match := _WITH_UNIT.fullmatch(cell)) else cell for cell in row]
        for number, row in rows.items()
    }
    return bare, units[0]


def table_of(rows: dict[int, list[str]], where: str, *, each: str = "host", remedy: str = "") -> Table:
    """Read a square matrix from {line number: cells}, in which rows or columns may begin with names of hosts.

    A cell on the diagonal that is not a number becomes nan. Named rows are put into the order of the columns.

    - `each`: Kind of object that a row describes, for messages.
    - `remedy`: Advice on a pair without a number; default: to measure it.
    """
    square = square_of([*rows.items()], where, is_name=is_name, each=each)
    values = np.empty((len(square.names), len(square.names)))
    for place, (number, cells) in enumerate(square.rows):
        for column, cell in enumerate(cells):
            values[place, column] = _number(cell)
            if np.isnan(values[place, column]) and column != place:  # the diagonal is unused
                said = f"found {shown(repr(cell), 60)}; expected a number for every pair of {each}s"
                here = f"{where}: line {number}, column {square.num_left + column + 1}"
                raise FormatError(f"{said}; {remedy or f'measure it, or leave the {each} out'}", where=here)
    return Table(square.corner, square.names, values)


def matrices_in(lines: Sequence[str], where: str) -> list[tuple[range, Table, str]]:
    """Square matrices of numbers amid other text: line numbers, matrix, and the unit in its cells.

    Bars, semicolons, tabs, commas or blanks separate cells. A line above a matrix may name its columns.
    """
    entries = [(number, cells) for number, line in enumerate(lines, 1) if (cells := _split(line))]
    found, start = [], 0
    while start < len(entries):
        width, end = len(entries[start][1]), start
        while end < len(entries) and len(entries[end][1]) == width and _is_row(entries[end][1]):
            end += 1
        rows = entries[start:end]
        starts = [cells[0] for _, cells in rows]
        diagonal = [cells[place] for place, (_, cells) in enumerate(rows) if place < width]
        # A table with a column of row numbers, unless it is a matrix of distances along a line.
        is_numbered = width == len(rows) and is_index(starts) and any(map(_is_figure, diagonal))
        if 1 < len(rows) <= width <= len(rows) + 1 and not is_numbered:
            head = entries[start - 1 : start] if start else []
            # Names of rows must be those of columns; without these, a line of prose may be above numbers.
            is_head = head and (is_name(starts[0]) or all(map(_may_name, head[0][1])))
            table = _table_below([*head, *rows], lines, where) if is_head else None
            table = table or _table_below(rows, lines, where)
            found += [table] if table else []
        start = max(end, start + 1)
    return found


def _table_below(
    rows: Sequence[tuple[int, list[str]]], lines: Sequence[str], where: str
) -> tuple[range, Table, str] | None:
    """Line numbers, matrix and the unit in its cells, of rows (line number, cells); None if they are none.

    Raises `FormatError` if the first row is a header, rather than prose, that contradicts the others.
    """
    try:
        bare, unit = without_units(dict(rows), where)
        return range(rows[0][0], rows[-1][0] + 1), table_of(bare, where), unit
    except FormatError:
        first = lines[rows[0][0] - 1]
        if _is_row(rows[0][1]) or " " in first.strip() or "\t" in first.strip():
            return None
        raise


def _split(line: str) -> list[str]:
    """Cells of a line; empty for a blank line, and for a ruler such as ``|---|---|``."""
    if not re.sub(r"[-|:=+\s]", "", line):
        return []
    separator = next((each for each in _SEPARATORS if each in line), None)
    cells = [cell.strip(" \"'") for cell in line.strip().strip("|").split(separator)]
    return cells if separator == "," else [_DECIMAL_COMMA.sub(r"\1.\2", cell) for cell in cells]


def _is_row(cells: Sequence[str]) -> bool:
    """True for the cells of a row of a matrix: numbers, with units or without, behind at most one name."""
    numbers = [cell for cell in cells[1:] if not is_nothing(cell)]
    return len(cells) > 1 and all(
        not is_name(match[1] if (match := _WITH_UNIT.fullmatch(cell)) else cell) for cell in numbers
    )


def _may_name(cell: str) -> bool:
    """True if a cell may be the name of a host, or the unit of a matrix, rather than a word of prose."""
    return len(cell) < 2 or any(map(str.isdigit, cell)) or bool(_units_in(cell)) or is_nothing(cell)


def tables_of_pairs(rows: dict[int, list[str]], where: str) -> list[Table] | None:
    """A matrix for each column of figures, from rows (host, host, figure, ...); None if there are none.

    Numbers count as names of hosts only below a header such as ``src,dst,us``. The header of a column of
    figures becomes the corner of its matrix.
    """
    body, corners = list(rows.items()), [""] * (max(map(len, rows.values()), default=0) - 2)
    if len(body) > 1 and len(body[0][1]) > 2 and all(map(np.isnan, map(_number, body[0][1]))):
        corners = body.pop(0)[1][2:]
    head = next(iter(rows.values()), [])
    has_head = len(body) < len(rows) and all(end.match(cell) for end, cell in zip(ENDS, head, strict=False))
    for _, row in body:
        if len(row) < 3 or not (has_head or all(map(is_name, row[:2]))) or np.isnan(_number(row[2])):
            return None
    places = {name: i for i, name in enumerate(dict.fromkeys(name for _, row in body for name in row[:2]))}
    values = np.full((len(corners), len(places), len(places)), np.nan)
    for number, row in body:
        here, (a, b) = f"{where}: line {number}", (places[name] for name in row[:2])
        if len(row) != len(corners) + 2:
            raise FormatError(f"found {len(row)} entries; expected {len(corners) + 2}", where=here)
        for table, cell in zip(values, row[2:], strict=True):
            if np.isnan(_number(cell)):
                raise FormatError(f"found {shown(repr(cell), 60)}; expected a number", where=here)
            if not np.isnan(table[a, b]):
                pair = " to ".join(shown(repr(name), 60) for name in row[:2])
                raise FormatError(f"found the pair {pair} again; keep one of its rows", where=here)
            table[a, b] = _number(cell)
    return [Table(corner, tuple(places), table) for corner, table in zip(corners, values, strict=True)]


def is_name(cell: str) -> bool:
    """True for a cell with text that is not a number, such as the name of a host."""
    return not is_nothing(cell) and bool(np.isnan(_number(cell)))


def _is_figure(cell: str) -> bool:
    """True for a cell that is neither empty nor zero, as cells on the diagonal of a matrix are."""
    return not is_nothing(cell) and _number(cell) != 0


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")
