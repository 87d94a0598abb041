"""Parse one line of a log as a row, by the pattern of nccl-tests or the columns of a header."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
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
#: `_DECIMAL_COMMA`: number of a locale whose decimal mark is a comma. `_GROUPED`: number with commas between
#: thousands. Both stand between spaces. `_COMMA_CELLS`: line whose commas are between cells.
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
#: Numbers of cells of two groups.
_TWO_GROUPS = tuple(2 * width for width in _GROUPS)
#: Beginning of a row of nccl-tests (see `_NCCL`), up to the reduction or the root.
_BEGINS_ROW = re.compile(
    r"(?:^|[\s:>])(\d{1,18})\s+\d{1,18}\s+(?:u?int\d*|u?char|float\d*|half|double|b?fp?\d+\w*|bfloat16|f8e\w+)"
    r"\s+(?:sum|prod|min|max|avg|mulsum|none|-?\d)"
)
#: Row of nccl-tests that ends within its size, count, type or reduction, as the log was cut off there.
_CUT_ROW = re.compile(r"\s*\d{1,18}(?:\s+\d{1,18}(?:\s+[a-z]\w{0,15}(?:\s+[a-z]{1,6}|\s+-)?)?)?\s*")
_SIZE_CELL = re.compile(r"(\d{1,18}(?:\.\d{1,6})?)\s?([KMGT]?)(i?)(?:B|bytes)?", re.IGNORECASE)
#: Header of a table, which begins with the size. The first pattern that fits a cell names its column.
_HEADER = re.compile(r"(?:message |msg |buffer )?(?:size|bytes)(?:\b|_).*", re.IGNORECASE)
_KINDS = (
    ("", re.compile(r"(?<![^\W_])(?:min|max|peak|total|std|p(?!50)\d\d)", re.IGNORECASE)),
    ("algbw", re.compile(r"\balg(?!o\s*$)", re.IGNORECASE)), ("busbw", re.compile(r"\bbus", re.IGNORECASE)),
    ("rate", re.compile(r"\bbw average|\bbandwidth", re.IGNORECASE)),
    ("time", re.compile(r"(?:\b|_)time|latency|\bt_typical", re.IGNORECASE)),
)  # fmt: skip
#: {word: pattern of its column in tables of rccl-tests with commas}; see `Columns.words`.
_WORDS = {
    word: re.compile(form, re.IGNORECASE)
    for word, form in {
        "collective": "collective|name", "dtype": "type", "redop": "redop", "wrong": "wrong",
        "in_place": "in[_ -]?place",
    }.items()
}  # fmt: skip
#: Unit of a time or a rate in the name of a column or behind a number, such as ``(ms)`` or ``time_us``.
_UNIT = re.compile(
    r"(?<![^\W_])(?<!['\u2019])"
    r"((?:nano|micro|milli|[nuµμm])?s(?:ec(?:ond)?s?)?|(?:[GMK]i?|)[Bb](?:ps|/s(?:ec)?)|[gmk]bps"
    r"|(?:[GMKgmk]i?|)[Bb]_per_s)(?![^\W_]|/)"
)
#: Unit of a size in the name of its column, such as ``Size (KB)`` or ``size_mib``; default: bytes.
_SIZE_UNIT = re.compile(r"(?<![^\W_])([KMGT]i?)(?:B|bytes?)(?![^\W_])", re.IGNORECASE)
#: Bits in the name of a type of elements, such as ``bfloat16``. `_BYTES`: {type without them: bytes}.
_BITS = re.compile(r"[a-z]+(8|16|32|64)(?:e\dm\d)?")
_BYTES = {"char": 1, "uchar": 1, "half": 2, "int": 4, "uint": 4, "float": 4, "double": 8}
#: Number in a cell, with a unit of its own or without.
_FIGURE = re.compile(
    r"([-+]?(?:(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|nan|inf(?:inity)?))\s?([^\W\d]\S*)?", re.IGNORECASE
)
#: Word behind a number.
_AFTER_NUMBER = re.compile(r"\d\s?([^\W\d_][\w/]*)")
#: Number in quotes, with commas between thousands.
_THOUSANDS = re.compile(r"\"\d{1,3}(?:,\d{3})+(?:\.\d+)?\"")
#: Size with underscores between thousands, as Python writes it.
_UNDERSCORES = re.compile(r"\d{1,3}(?:_\d{3})+")
#: {beginning of a unit of time: microseconds}.
_US = {"": 1e6, "n": 1e-3, "u": 1.0, "µ": 1.0, "μ": 1.0, "m": 1e3, "nano": 1e-3, "micro": 1.0, "milli": 1e3}
#: {unit: GB/s}. perftest, which writes ``/sec``, means MiB by MB (see `_unit`).
_GB_PER_S: dict[str, float] = {
    f"{prefix}{binary}{of}": (1024 if binary else 1000) ** power / 1e9 / (8 if of == "b" else 1)
    for power, prefix in enumerate(("", "K", "M", "G"))
    for binary in ("i", "")[not prefix :]
    for of in "bB"
}
_PREFIXES = " KMGT"
#: `_TOLERANCE`: relative tolerance of algbw.
#: `HALF_DIGIT`: additional absolute tolerance of algbw in GB/s: half of the last printed digit.
_TOLERANCE, HALF_DIGIT = 0.02, 0.0051


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


def nccl_row(line: str, where: str, *, in_place: bool = False) -> Row | None:
    """The row of nccl-tests or rccl-tests in a line; None if the line has none.

    With `in_place`, the row has the in-place times; the result is None if the line lacks them. Without it,
    the row has them only if the line states ``N/A`` out of place.

    Raises `FormatError` if its time is not above 0 although its size is.
    """
    line = _spaced(line)
    found = _NCCL.search(line)
    if found is None or num_begun(line) > 1:
        return None
    words = found[5].split()
    # An integer at the start may be a root or a time; prefer the choice with which time and algbw agree.
    starts = (1,) if words[0] == "-1" else (1, 0) if words[0].isdigit() else (0,)
    rows = []
    for start in starts:
        cells = words[start:]
        twice = len(cells) in _TWO_GROUPS
        width = len(cells) // 2 if twice else len(cells)
        *places, wrong = _GROUPS.get(width, _GROUPS[3])
        at = width if in_place else 0
        num_wrong = sum(_count(each[wrong]) for each in (cells[:width], cells[width:]) if wrong and each)
        checks = (
            [bool(re.fullmatch(_NUMBER, cells[i + wrong])) for i in (0, width)] if twice and wrong else []
        )
        figures = [cells[at + place] for place in places if at + place < len(cells)]
        is_other_place = twice and not in_place and set(figures) == {"N/A"}
        if is_other_place:
            figures = [cells[width + place] for place in places]
        if len(figures) == 3 and "N/A" not in figures and (twice or not in_place):
            reduces = found[4] not in (None, "none")
            time_us, algbw, busbw = map(float, figures)
            made = (_row(size, time_us, algbw, busbw, reduces) for size in _sizes(found[1]))
            checked = checks[1] if checks and checks[0] else None
            other = cells[width - at + places[0]] if twice else ""
            rows += [
                row._replace(
                    num_wrong=num_wrong, dtype=found[3], checks_in_place=checked,
                    is_other_place=is_other_place, parts=_parts(row.size_bytes, found[2], found[3]),
                    has_root=start == 1 and words[0] != "-1",
                    other_us=float(other) if re.fullmatch(_NUMBER, other) else 0.0,
                )
                for row in made
            ]  # fmt: skip
    return _best(rows, where)


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
    """Size over the bytes of `count` elements, as `Row.parts`; 0 if the line does not state the type."""
    one = element_bytes(dtype)
    parts, rest = divmod(size, int(count) * one) if one and count.isdigit() and int(count) else (0, 0)
    return 0 if rest else parts


def element_bytes(dtype: str) -> int:
    """Bytes of an element of a type such as ``"float"``; 0 if unknown."""
    bits = _BITS.fullmatch(dtype)
    return int(bits[1]) // 8 if bits else _BYTES.get(dtype, 0)


def _count(cell: str) -> int:
    """Number of wrong elements that a cell states, also as 1e+03; 0 if the cell is not a number."""
    return int(float(cell)) if re.fullmatch(_NUMBER, cell) else 0


def is_complete(line: str) -> bool:
    """True for a row of nccl-tests whose figures are two groups, of which the first agrees with itself."""
    found = _NCCL.search(_spaced(line))
    if found is None:
        return False
    words = found[5].split()
    has_root = words[0].lstrip("-").isdigit()
    try:
        row = nccl_row(line, "")
    except FormatError:
        return False
    return len(words) - has_root in _TWO_GROUPS and row is not None and row.agrees


def is_broken(line: str) -> bool:
    """True for a line that begins as a row of nccl-tests, with a size above 0, but is not one."""
    return num_begun(line) > 0 and nccl_row(line, "") is None


def is_cut(line: str) -> bool:
    """True for the beginning of a row of nccl-tests that ends before its figures."""
    return _CUT_ROW.fullmatch(_spaced(line)) is not None


class Columns(NamedTuple):
    """Columns of a table of results, as the header of the table states them.

    - `splits`: Separator of cells; empty for any white space.
    - `width`: Number of cells in a row.
    - `places`: {kind of column: (its index, its unit in us or GB/s)}.
    - `half`: Number of cells if the second of two equal groups of columns is empty; 0 without groups.
    - `before`: Number of columns left of the size, in tables with commas, semicolons or tabs.
    - `words`: {"collective", "dtype", "redop", "in_place" or "wrong": index in the whole row}, in tables
      with such separators, as those of rccl-tests.
    - `in_place`: True if rows of times in place are wanted.
    - `size_unit`: Unit of sizes without one of their own, such as ``"KB"``; empty for bytes.
    - `unnamed`: Unit that is assumed of times or rates, if the header names none and no two columns agree on
      it; else empty.
    """

    splits: str
    width: int
    places: dict[str, tuple[int, float]]
    half: int = 0
    before: int = 0
    words: Mapping[str, int] = MappingProxyType({})
    in_place: bool = False
    size_unit: str = ""
    unnamed: str = ""

    @property
    def is_by_name(self) -> bool:
        """True if rows must be read by the header's names, as the pattern of nccl-tests misreads them."""
        return self.before > 0 or bool(self.words)

    def row(self, line: str, where: str) -> Row | None:
        """The row in a line; None if its cells do not fit. `FormatError` for an infinite or NaN cell.

        The size is 0 if the row has in-place results and `in_place` is False, or the reverse.
        """
        cells = _cells(re.sub(r"(\d) ([KMGT]i?B)\b", r"\1\2", line), self.splits)
        width = self.half if self.half and len(cells) == self.half else self.width
        before, cells = cells[:-width], cells[-width:]
        is_prefix = self.splits == "|" or not before or before[-1].endswith((":", ">", "]", ")"))
        if len(cells) < width or not (len(before) == self.before if self.is_by_name else is_prefix):
            return None
        said = {word: [*before, *cells][place] for word, place in self.words.items()}
        found: dict[str, float] = {}
        for kind, (place, unit) in self.places.items():
            figure = _figure(cells[place], unit, is_time=kind == "time")
            if figure is None:
                return None
            if not math.isfinite(figure):
                here = f"{where}, column {len(before) + place + 1}"
                raise FormatError(f"found {cells[place]}; expected a number above 0; correct it", where=here)
            found[kind] = figure
        algbw, busbw = found.get("algbw", found.get("rate", 0.0)), found.get("busbw", 0.0)
        is_bus = not {"time", "algbw", "rate"} & set(found)
        rate = busbw if is_bus else algbw
        rows = []
        for size in _sizes(cells[0].split()[-1] if cells[0] else "", self.size_unit):
            stated_us = size / rate / 1000 if rate > 0 else 0.0
            made = _row(size, found.get("time", stated_us), algbw or None, busbw, None)
            rows.append(made._replace(is_bus=is_bus))
        best = _best(rows, where)
        if best is None or not self.is_by_name:
            return best
        is_other = said.get("in_place", "") in (("0", "false") if self.in_place else ("1", "true"))
        return best._replace(
            size_bytes=0 if is_other else best.size_bytes, num_wrong=_count(said.get("wrong", "")),
            dtype=said.get("dtype", ""), collective=said.get("collective", ""),
            reduces=said["redop"] not in ("", "none") if "redop" in said else None,
        )  # fmt: skip


def columns_of(line: str, *, in_place: bool = False) -> Columns | None:
    """Columns of a header line, which begins with the size and has a time or bandwidth; else None."""
    found = _HEADER.search(line)
    if found is None:
        return None
    splits = next((each for each in "|;,\t" if each in found[0]), "")
    header = re.sub("(?i)^bytes #", "bytes  #", found[0])  # perftest's latency tests have one space here
    cells = _cells(header, splits or "  ")
    if len(cells) == 1:  # single spaces both between and within columns
        words = re.sub(r"\b(avg|average|min|max|alg|bus) ", r"\1_", found[0], flags=re.IGNORECASE)
        cells = _cells(re.sub(r"\s+([\[(])", r"\1", words), "")
    places: dict[str, tuple[int, float]] = {}
    unnamed = ""
    for place, cell in enumerate(cells[1:], 1):
        kind = next((kind for kind, form in _KINDS if form.search(cell)), "")
        unit = _unit(cell, is_time=kind == "time")
        if kind and (kind != "rate" or unit) and (kind not in places or in_place):
            places[kind] = place, unit or 1.0
            unnamed = unnamed or ("" if unit else "us" if kind == "time" else "GB/s")
    if not places:
        return None
    size_unit = _SIZE_UNIT.search(cells[0])
    columns = Columns(
        splits, len(cells), places, in_place=in_place,
        size_unit=f"{size_unit[1]}B" if size_unit else "",
        unnamed="" if {"time", "algbw"} <= places.keys() else unnamed,
    )  # fmt: skip
    if splits in (",", ";", "\t"):
        left = line[: found.start()].rstrip(" ")
        every = [*(_cells(left[:-1], splits) if left.endswith(splits) else []), *cells]
        at = {
            word: next(place for place, cell in enumerate(every) if form.fullmatch(cell))
            for word, form in _WORDS.items()
            if any(map(form.fullmatch, every))
        }
        if len(every) > len(cells) or "in_place" in at:
            return columns._replace(before=len(every) - len(cells), words=at)
    group = next((cells[i:] for i in (1, 2) if cells[i:] == 2 * cells[i : (len(cells) + i) // 2]), [])
    return columns._replace(half=len(cells) - len(group) // 2 if group else 0)


def names_unit(line: str) -> bool:
    """True if a number of the line has a unit of time or rate behind it."""
    return any(_UNIT.match(unit) for unit in _AFTER_NUMBER.findall(line))


def _figure(cell: str, unit: float, *, is_time: bool) -> float | None:
    """Time in us or rate in GB/s that a cell states, in `unit` or in a unit of its own.

    None if the cell is not a number, or has an unknown unit.
    """
    found = _FIGURE.fullmatch(cell)
    if found is None:
        return None
    own = _unit(found[2], is_time=is_time) if found[2] else unit
    return None if own is None else float(found[1]) * own


def _unit(cell: str, *, is_time: bool) -> float | None:
    """The unit that a cell names, in microseconds or GB/s; None if it names none."""
    for unit in _UNIT.findall(cell):
        if is_time and (begins := unit.partition("sec")[0].removesuffix("s")) in _US:
            return _US[begins]
        of, _, per = re.sub("(_per_s|/sec|/s|ps)$", r" \1", unit).partition(" ")
        if not is_time and per:
            if per == "/sec" and of in ("MB", "GB"):
                of = f"{of[0]}iB"
            elif of.islower() and len(of) > 1:  # mbps are bits, and mb_per_s bytes
                of = f"{of[:-1].capitalize()}{'B' if per == '_per_s' else 'b'}"
            return _GB_PER_S[of]
    return None


def _cells(line: str, splits: str) -> list[str]:
    if splits == "  ":
        return re.split(r"\s{2,}", line.strip())
    if splits == ";":  # spreadsheets whose decimal mark is a comma put semicolons between cells
        line = re.sub(r"(?<=\d),(?=\d)", ".", line)
    if splits == ",":
        line = _THOUSANDS.sub(lambda found: found[0].replace(",", ""), line)
    return [each.strip(" \"'#") for each in line.strip().strip("|").split(splits or None)]


def _sizes(cell: str, unit: str = "") -> list[int]:
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


def _row(size: int, time_us: float, algbw: float | None, busbw: float, reduces: bool | None) -> Row:
    stated = size / time_us / 1000 if time_us > 0 else 0.0
    agrees = algbw is None or abs(stated - algbw) <= _TOLERANCE * max(stated, algbw) + HALF_DIGIT
    return Row(size, time_us, algbw or 0.0, busbw, agrees, reduces)


def _best(rows: list[Row], where: str) -> Row | None:
    """The first interpretation of a line whose time and algbw agree, else the first; None if there is none.

    Raises `FormatError` if the size is above 0 and the time is not.
    """
    if not rows:
        return None
    best = next((row for row in rows if row.agrees), rows[0])
    if best.size_bytes and not 0 < best.time_us < 1e15:
        said = f"found a time of {best.time_us:g} us for {best.size_bytes} bytes; expected more than 0"
        raise FormatError(f"{said}; correct or remove it", where=where)
    return best
