"""Parse one line of a log as a row, by the pattern of nccl-tests."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from taccl.errors import FormatError

_NUMBER = r"[-+]?(?:\d{1,18}\.?\d{0,18}|\.\d{1,18})(?:[eE][-+]?\d{1,2})?"
_SIZE = r"\d{1,18}(?:\.\d{1,6})?(?:\s?[KMGT]?i?B)?|\d{1,18}[KMGT]"
#: Terminal escape sequences for colours and cursor movements.
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
#: Label of a rank at the beginning of a line.
_LABEL = re.compile(r"\[\d+(?:,\d+)?\](?:<std(?:out|err)>:)?(?=\D)")
#: Characters that web pages, lists and quotes put between cells; spaces replace them.
_BETWEEN = str.maketrans("\u00a0|\"',;", "      ")
#: `_DECIMAL_COMMA`: number between spaces, of a locale whose decimal mark is a comma.
#: `_GROUPED`: number between spaces, with commas between thousands.
#: `_COMMA_CELLS`: line whose commas are between cells.
_DECIMAL_COMMA = re.compile(r"(?<!\S)(\d{1,18}),(\d{1,4})(?!\S)")
_GROUPED = re.compile(r"(?<!\S)\d{1,3}(?:,\d{3})+(?:\.\d+)?(?!\S)")
_COMMA_CELLS = re.compile(r",\s|\s,|^\s*[\d,.]+(?:\s+\D*)?$")
#: Row of nccl-tests: size, count, type, optional reduction and root, times and bandwidths.
#: Launchers' prefixes (``0:``, ``[1,0]<stdout>:``, a time, a name), remarks and time stamps are skipped.
#: Words after the figures are skipped as well: rccl-tests prints the algorithm and the protocol there.
_NCCL = re.compile(
    rf"(?:^|[\s:>])({_SIZE})\s+(\d{{1,18}}|\d\.\d{{1,9}}e\+?\d{{1,2}})\s+([a-z][a-z0-9_]*)\s+(?:([a-z]+)\s+)?"
    rf"({_NUMBER}(?:\s+(?:{_NUMBER}|N/A|nan|inf))*)(?:\s+(?:#|//|<|\d{{4}}-\d\d-|[A-Za-z]{{3}}).*)?\s*$"
)
#: A row has a group of cells for out-of-place results, and one for in-place results.
#: {number of cells of a group: positions in it of time, algbw, busbw and #wrong; None without #wrong}.
#: With five cells, one is the time of HIP events (rccl-tests).
#: With eight cells, some are the spread over iterations (nccl-tests 2.19).
_GROUPS = {3: (0, 1, 2, None), 4: (0, 1, 2, 3), 5: (0, 2, 3, 4), 8: (0, 1, 2, 3)}
#: `_TWO_GROUPS`: numbers of cells in rows of two groups. `_WIDTHS`: numbers of cells in rows of one or two.
_TWO_GROUPS = tuple(2 * width for width in _GROUPS)
_WIDTHS = {*_GROUPS, *_TWO_GROUPS}
#: Names of types of elements, and of reductions.
_TYPE = r"u?int\d*|u?char|float\d*|half|double|b?fp?\d+\w*|bfloat16|f8e\w+"
_REDUCTION = "sum|prod|min|max|avg|mulsum|none"
#: Beginning of a row of nccl-tests (see `_NCCL`), up to the reduction or the root.
_BEGINS_ROW = re.compile(rf"(?:^|[\s:>])(\d{{1,18}})\s+\d{{1,18}}\s+(?:{_TYPE})\s+(?:{_REDUCTION}|-?\d)")
#: Line with a size and further cells of a table, but no other words.
_CELLS = re.compile(rf"\s*(\d{{1,18}})(?:\s+(?:{_NUMBER}|N/A|nan|{_TYPE}|{_REDUCTION}))+\s*")
#: Row of nccl-tests that ends within its size, count, type or reduction, as the log was cut off there.
_CUT_ROW = re.compile(r"\s*\d{1,18}(?:\s+\d{1,18}(?:\s+[a-z]\w{0,15}(?:\s+[a-z]{1,6}|\s+-)?)?)?\s*")
_SIZE_CELL = re.compile(r"(\d{1,18}(?:\.\d{1,6})?)\s?([KMGT]?)(i?)(?:B|bytes)?", re.IGNORECASE)
#: Bits in the name of a type of elements, such as ``bfloat16``. `_BYTES`: {type without them: bytes}.
_BITS = re.compile(r"[a-z]+(8|16|32|64)(?:e\dm\d)?")
_BYTES = {"char": 1, "uchar": 1, "half": 2, "int": 4, "uint": 4, "float": 4, "double": 8}
#: Size with underscores between thousands, as Python writes it.
_UNDERSCORES = re.compile(r"\d{1,3}(?:_\d{3})+")
_PREFIXES = " KMGT"
#: `_TOLERANCE`: relative tolerance of algbw.
#: `HALF_DIGIT`: additional absolute tolerance of algbw in GB/s: half of the last printed digit.
#: `HALF_TIME`: half of the last digit, in us, of times in ms; nccl-tests 1 printed three decimals.
_TOLERANCE, HALF_DIGIT, HALF_TIME = 0.02, 0.0051, 0.51
#: Microseconds of the unit of times in tables of nccl-tests 1 and of later ones.
MS, US = 1000.0, 1.0


class Row(NamedTuple):
    """One line of a log: the figures for one size.

    - `algbw`, `busbw`: Bandwidths in GB/s; 0 if not stated.
    - `agrees`: True if time and algbw agree.
    - `reduces`: True if a reduction operator is named; None if there is no such column.
    - `is_bus`: True if the time is size / busbw, because the line states neither time nor algbw.
    - `num_wrong`: Wrong elements, out of place and in place; 0 if not stated.
    - `dtype`: Type of the elements; empty if not stated.
    - `checks_in_place`: True if results in place were checked as well, False if those out of place alone
      were; None if neither was, or the line does not state it.
    - `collective`: Cell that names the collective; empty if there is none.
    - `is_other_place`: True if the figures are those in place although those out of place were asked for,
      because the line has no others.
    - `parts`: Size over the bytes of the counted elements: 1 if the count is of the whole size, and the
      number of ranks if it is of one rank's part; 0 if the line does not tell.
    - `has_root`: True if the line names a root rank.
    - `other_us`: Time of the other place in us; 0 if not stated.
    """

    size_bytes: int
    time_us: float
    algbw: float = 0.0
    busbw: float = 0.0
    agrees: bool = True
    reduces: bool | None = None
    is_bus: bool = False
    num_wrong: int = 0
    dtype: str = ""
    checks_in_place: bool | None = None
    collective: str = ""
    is_other_place: bool = False
    parts: int = 0
    has_root: bool = False
    other_us: float = 0.0


def plain(line: str) -> str:
    """The line without terminal escape sequences, trailing spaces, and labels of ranks within it.

    Launchers put a label before each piece of output of a rank. A rank that flushes often writes a line in
    several pieces.
    """
    line = _ESCAPES.sub("", line).rstrip()
    label = _LABEL.match(line)
    return line[: label.end()] + line[label.end() :].replace(label[0], " ") if label else line


def nccl_row(line: str, where: str, *, in_place: bool = False, unit_us: float = US) -> Row | None:
    """The row of nccl-tests or rccl-tests in a line; None if the line has none.

    With `in_place`, the row has the in-place times; the result is None if the line lacks them. Without it,
    the row has them only if the line states ``N/A`` out of place. `unit_us` is the unit of times, `US` or
    `MS`.

    Raises `FormatError` if its time is not above 0 although its size is.
    """
    line = _spaced(line)
    found = _NCCL.search(line)
    if found is None or num_begun(line) > 1:
        return None
    words = found[5].split()
    rows = []
    for start in _root_cells(words):
        cells = words[start:]
        twice = len(cells) in _TWO_GROUPS
        width = len(cells) // 2 if twice else len(cells)
        *places, wrong = _GROUPS.get(width, _GROUPS[3])
        at = width if in_place else 0
        num_wrong = sum(wrong_count(each[wrong]) for each in (cells[:width], cells[width:]) if wrong and each)
        checks = (
            [bool(re.fullmatch(_NUMBER, cells[i + wrong])) for i in (0, width)] if twice and wrong else []
        )
        figures = [cells[at + place] for place in places if at + place < len(cells)]
        is_other_place = twice and not in_place and set(figures) == {"N/A"}
        if is_other_place:
            figures = [cells[width + place] for place in places]
        if len(figures) == 3 and "N/A" not in figures and (twice or not in_place):
            reduces = found[4] not in (None, "none")
            time_us, algbw, busbw = unit_us * float(figures[0]), float(figures[1]), float(figures[2])
            half_us = HALF_TIME if unit_us == MS else 0.0
            made = (row_of(size, time_us, algbw, busbw, reduces, half_us) for size in sizes_of(found[1]))
            checked = checks[1] if checks and checks[0] else None
            other = cells[width - at + places[0]] if twice else ""
            rows += [
                row._replace(
                    num_wrong=num_wrong, dtype=found[3], checks_in_place=checked,
                    is_other_place=is_other_place, parts=_parts(row.size_bytes, found[2], found[3]),
                    has_root=start == 1 and words[0] != "-1",
                    other_us=unit_us * float(other) if re.fullmatch(_NUMBER, other) else 0.0,
                )
                for row in made
            ]  # fmt: skip
    return best_row(rows, where)


def _root_cells(words: list[str]) -> list[int]:
    """Possible numbers of root cells, 1 and 0, before the figures of a row, the likelier first.

    An integer at the start may be a root or, in tables of nccl-tests 2.0 to 2.10, a time. If both give a
    possible number of figures, `best_row` prefers the one with which time and algbw agree.
    """
    if words[0] == "-1" or not words[0].isdigit():
        return [int(words[0] == "-1")]
    return sorted((1, 0), key=lambda cells: len(words) - cells not in _WIDTHS)


@lru_cache(maxsize=1)  # a line is looked at several times
def _spaced(line: str) -> str:
    """The line with spaces between its cells, and with points alone in its numbers."""
    return with_points(line).translate(_BETWEEN)


def with_points(line: str) -> str:
    """The line without commas between thousands, or with points in place of decimal commas.

    Three digits after each comma may be thousands as well as decimals; such a line is returned as it is.
    """
    if "," not in line or _COMMA_CELLS.search(line):
        return line
    if re.search(r"\d\.\d", line):
        return _GROUPED.sub(lambda found: found[0].replace(",", ""), line)
    decimals = [found[2] for found in _DECIMAL_COMMA.finditer(line)]
    is_clear = len(decimals) > 1 and any(len(each) != 3 for each in decimals)
    return _DECIMAL_COMMA.sub(r"\1.\2", line) if is_clear else line


def num_begun(line: str) -> int:
    """Number of rows of nccl-tests, with a size above 0, that begin in a line."""
    return sum(int(size) > 0 for size in _BEGINS_ROW.findall(_spaced(line)))


def _parts(size: int, count: str, dtype: str) -> int:
    """Ratio of a row's size to the bytes of its `count` elements (`Row.parts`); 0 if not whole or unknown."""
    one = element_bytes(dtype)
    parts, rest = divmod(size, int(count) * one) if one and count.isdigit() and int(count) else (0, 0)
    return 0 if rest else parts


def element_bytes(dtype: str) -> int:
    """Bytes of an element of a type such as ``"float"``; 0 if unknown."""
    bits = _BITS.fullmatch(dtype)
    return int(bits[1]) // 8 if bits else _BYTES.get(dtype, 0)


def wrong_count(cell: str) -> int:
    """Number of wrong elements that a cell states, also as 1e+03; 0 if the cell is not a number."""
    return int(float(cell)) if re.fullmatch(_NUMBER, cell) else 0


def is_complete(line: str) -> bool:
    """True for a row of nccl-tests whose figures are two groups, of which the first agrees with itself."""
    found = _NCCL.search(_spaced(line))
    if found is None:
        return False
    words = found[5].split()
    try:
        rows = [nccl_row(line, "", unit_us=unit_us) for unit_us in (US, MS)]
    except FormatError:
        return False
    row = next((each for each in rows if each is not None and each.agrees), None)
    return row is not None and len(words) - (words[0] == "-1" or row.has_root) in _TWO_GROUPS


def is_broken(line: str) -> bool:
    """True for a line that begins as a row of nccl-tests, with a size above 0, but is not one."""
    return num_begun(line) > 0 and nccl_row(line, "") is None


def lacks_cells(line: str, size_bytes: int) -> bool:
    """True for cells of a table behind a larger size than that of the row above, which are no row."""
    spaced = _spaced(line)
    if not spaced.lstrip()[:1].isdigit():
        return False
    found = _CELLS.fullmatch(spaced)
    return found is not None and int(found[1]) > size_bytes


def is_cut(line: str) -> bool:
    """True for the beginning of a row of nccl-tests that ends before its figures."""
    return _CUT_ROW.fullmatch(_spaced(line)) is not None


def sizes_of(cell: str, unit: str = "") -> list[int]:
    """Possible sizes of a cell in bytes: K, M, G and T as powers of 1024, then of 1000; empty if none.

    - `unit`: Unit of a cell that is only a number, such as ``"KB"``; empty for bytes.
    """
    cell = cell.replace("_", "") if _UNDERSCORES.fullmatch(cell) else cell
    found = _SIZE_CELL.fullmatch(f"{cell}{unit}" if re.fullmatch(r"[\d.]+", cell) else cell)
    if found is None:
        return []
    power = _PREFIXES.index(found[2].upper() or " ")
    bases = (1024,) if found[3] or not power else (1024, 1000)
    return [round(float(found[1]) * base**power) if power else int(float(found[1])) for base in bases]


def row_of(
    size: int, time_us: float, algbw: float | None, busbw: float, reduces: bool | None, half_us: float = 0.0
) -> Row:
    """Row of a size; `agrees` is True as well if the line states no algbw.

    - `half_us`: Half of the last digit of the time, in us, if that matters.
    """
    stated = size / time_us / 1000 if time_us > 0 else 0.0
    off = _TOLERANCE * max(stated, algbw or 0.0) + HALF_DIGIT
    off += stated * half_us / (time_us - half_us) if time_us > half_us else 0.0
    agrees = algbw is None or abs(stated - algbw) <= off
    return Row(size, time_us, algbw or 0.0, busbw, agrees, reduces)


def best_row(rows: list[Row], where: str) -> Row | None:
    """The first interpretation of a line whose time is above 0 and agrees with algbw; None if there is none.

    If no interpretation is like this, the first one is returned.

    Raises `FormatError` if the size is above 0 and the time is not.
    """
    if not rows:
        return None
    best = next((row for row in rows if row.agrees and row.time_us > 0), rows[0])
    if best.size_bytes and not 0 < best.time_us < 1e15:
        said = f"found a time of {best.time_us:g} us for {best.size_bytes} bytes; expected more than 0"
        raise FormatError(f"{said}; correct or remove it", where=where)
    return best
