"""Parse one line of a log as a row, by the pattern of nccl-tests or the columns of a header."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
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
#: Row of nccl-tests: size, count, type, optional reduction and root, times and bandwidths.
#: Launchers' prefixes (``0:``, ``[1,0]<stdout>:``, a time, a name), remarks and time stamps are skipped.
#: Words after the figures are skipped as well: rccl-tests prints the algorithm and the protocol there.
_NCCL = re.compile(
    rf"(?:^|[\s:>])({_SIZE})\s+(\d{{1,18}})\s+([a-z][a-z0-9_]*)\s+(?:([a-z]+)\s+)?"
    rf"({_NUMBER}(?:\s+(?:{_NUMBER}|N/A|nan|inf))*)(?:\s+(?:#|//|<|\d{{4}}-\d\d-|[A-Za-z]{{3}}).*)?\s*$"
)
#: A row has a group of cells for out-of-place results, and one for in-place results.
#: {number of cells of a group: positions in it of time, algbw, busbw and #wrong; None without #wrong}.
#: With five cells, one is the time of HIP events (rccl-tests).
#: With eight cells, some are the spread over iterations (nccl-tests 2.19).
_GROUPS = {3: (0, 1, 2, None), 4: (0, 1, 2, 3), 5: (0, 2, 3, 4), 8: (0, 1, 2, 3)}
#: Beginning of a row of nccl-tests (see `_NCCL`), up to the reduction or the root.
_BEGINS_ROW = re.compile(
    r"(?:^|[\s:>])(\d{1,18})\s+\d{1,18}\s+(?:u?int\d*|u?char|float\d*|half|double|b?fp?\d+\w*|bfloat16|f8e\w+)"
    r"\s+(?:sum|prod|min|max|avg|mulsum|none|-?\d)"
)
#: Row of nccl-tests that ends within its size, count, type or reduction, as the log was cut off there.
_CUT_ROW = re.compile(r"\s*\d{1,18}(?:\s+\d{1,18}(?:\s+[a-z]\w{0,15}(?:\s+[a-z]{1,6}|\s+-)?)?)?\s*")
_SIZE_CELL = re.compile(r"(\d{1,18}(?:\.\d{1,6})?)\s?([KMGT]?)(i?)(?:B|bytes)?", re.IGNORECASE)
#: Header of a table, which begins with the size. The first pattern that fits a cell names its column.
_HEADER = re.compile(r"(?:message |msg |buffer )?(?:size|bytes)\b.*", re.IGNORECASE)
_KINDS = (
    ("", re.compile(r"\b(?:min|max|peak|total|p\d\d)", re.IGNORECASE)),
    ("algbw", re.compile(r"\balg(?!o\s*$)", re.IGNORECASE)), ("busbw", re.compile(r"\bbus", re.IGNORECASE)),
    ("rate", re.compile(r"\bbw average|\bbandwidth", re.IGNORECASE)),
    ("time", re.compile(r"\btime|latency|\bt_typical", re.IGNORECASE)),
)  # fmt: skip
#: {word: pattern of its column in tables of rccl-tests with commas}; see `Columns.words`.
_WORDS = {
    word: re.compile(form, re.IGNORECASE)
    for word, form in {
        "collective": "collective|name", "dtype": "type", "redop": "redop", "wrong": "wrong",
        "in_place": "in[_ -]?place",
    }.items()
}  # fmt: skip
_UNIT = re.compile(r"\b([nuµμm]?s(?:ec)?|(?:[GMK]i?|)[Bb](?:ps|/s(?:ec)?))(?![\w/])")
#: {unit: microseconds} and {unit: GB/s}. perftest, which writes ``/sec``, means MiB by MB (see `_unit`).
_US = {"ns": 1e-3, "us": 1.0, "µs": 1.0, "μs": 1.0, "ms": 1e3, "s": 1e6}
_GB_PER_S = {"GB": 1.0, "Gb": 1 / 8, "MB": 1e-3, "Mb": 1e-3 / 8, "GiB": 2**30 / 1e9, "MiB": 2**20 / 1e9}
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

    With `in_place`, the row has the in-place times; the result is None if the line lacks them.

    Raises `FormatError` if its time is not above 0 although its size is.
    """
    found = _NCCL.search(line.translate(_BETWEEN))
    if found is None:
        return None
    words = found[5].split()
    # An integer at the start may be a root or a time; prefer the choice with which time and algbw agree.
    starts = (1,) if words[0] == "-1" else (1, 0) if words[0].isdigit() else (0,)
    rows = []
    for start in starts:
        cells = words[start:]
        twice = len(cells) in (6, 8, 10, 16)
        width = len(cells) // 2 if twice else len(cells)
        *places, wrong = _GROUPS.get(width, _GROUPS[3])
        at = width if in_place else 0
        num_wrong = sum(_count(each[wrong]) for each in (cells[:width], cells[width:]) if wrong and each)
        checks = (
            [bool(re.fullmatch(_NUMBER, cells[i + wrong])) for i in (0, width)] if twice and wrong else []
        )
        figures = [cells[at + place] for place in places if at + place < len(cells)]
        if len(figures) == 3 and "N/A" not in figures and (twice or not in_place):
            reduces = found[4] not in (None, "none")
            time_us, algbw, busbw = map(float, figures)
            made = (_row(size, time_us, algbw, busbw, reduces) for size in _sizes(found[1]))
            checked = checks[1] if checks and checks[0] else None
            rows += [
                row._replace(num_wrong=num_wrong, dtype=found[3], checks_in_place=checked) for row in made
            ]
    return _best(rows, where)


def _count(cell: str) -> int:
    """Number of wrong elements that a cell states, also as 1e+03; 0 if the cell is not a number."""
    return int(float(cell)) if re.fullmatch(_NUMBER, cell) else 0


def is_broken(line: str) -> bool:
    """True for a line that begins as a row of nccl-tests, with a size above 0, but is not one."""
    begins = _BEGINS_ROW.search(line.translate(_BETWEEN))
    return begins is not None and int(begins[1]) > 0 and nccl_row(line, "") is None


def is_cut(line: str) -> bool:
    """True for the beginning of a row of nccl-tests that ends before its figures."""
    return _CUT_ROW.fullmatch(line.translate(_BETWEEN)) is not None


class Columns(NamedTuple):
    """Columns of a table of results, as the header of the table states them.

    - `splits`: Separator of cells; empty for any white space.
    - `width`: Number of cells in a row.
    - `places`: {kind of column: (its index, its unit in us or GB/s)}.
    - `half`: Number of cells if the second of two equal groups of columns is empty; 0 without groups.
    - `before`: Number of columns left of the size, in tables with commas.
    - `words`: {"collective", "dtype", "redop", "in_place" or "wrong": index in the whole row}, in tables of
      rccl-tests with commas.
    - `in_place`: True if rows of times in place are wanted.
    """

    splits: str
    width: int
    places: dict[str, tuple[int, float]]
    half: int = 0
    before: int = 0
    words: Mapping[str, int] = MappingProxyType({})
    in_place: bool = False

    @property
    def is_by_name(self) -> bool:
        """True if the header alone tells the columns, since the pattern of nccl-tests would misread rows."""
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
        try:
            found = {kind: float(cells[place]) * unit for kind, (place, unit) in self.places.items()}
        except ValueError:
            return None
        for place, _ in self.places.values():
            if not math.isfinite(float(cells[place])):
                here = f"{where}, column {len(before) + place + 1}"
                raise FormatError(f"found {cells[place]}; expected a number above 0; correct it", where=here)
        algbw, busbw = found.get("algbw", found.get("rate", 0.0)), found.get("busbw", 0.0)
        is_bus = not {"time", "algbw", "rate"} & set(found)
        rate = busbw if is_bus else algbw
        rows = []
        for size in _sizes(cells[0].split()[-1] if cells[0] else ""):
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
    splits = next((each for each in "|,\t" if each in found[0]), "")
    header = re.sub("(?i)^bytes #", "bytes  #", found[0])  # perftest's latency tests have one space here
    cells = _cells(header, splits or "  ")
    if len(cells) == 1:  # single spaces both between and within columns
        words = re.sub(r"\b(avg|average|min|max|alg|bus) ", r"\1_", found[0], flags=re.IGNORECASE)
        cells = _cells(re.sub(r"\s+([\[(])", r"\1", words), "")
    places: dict[str, tuple[int, float]] = {}
    for place, cell in enumerate(cells[1:], 1):
        kind = next((kind for kind, form in _KINDS if form.search(cell)), "")
        unit = _unit(cell, is_time=kind == "time")
        if kind and (kind != "rate" or _UNIT.search(cell)) and (kind not in places or in_place):
            places[kind] = place, unit
    if splits == "," and places:
        left = line[: found.start()].rstrip()
        every = [*(_cells(left, splits)[:-1] if left.endswith(splits) else []), *cells]
        at = {
            word: next(place for place, cell in enumerate(every) if form.fullmatch(cell))
            for word, form in _WORDS.items()
            if any(map(form.fullmatch, every))
        }
        if len(every) > len(cells) or "in_place" in at:
            return Columns(splits, len(cells), places, 0, len(every) - len(cells), at, in_place)
    group = next((cells[i:] for i in (1, 2) if cells[i:] == 2 * cells[i : (len(cells) + i) // 2]), [])
    return (
        Columns(splits, len(cells), places, len(cells) - len(group) // 2 if group else 0) if places else None
    )


def _unit(cell: str, *, is_time: bool) -> float:
    """The unit in a header cell, in microseconds or GB/s; 1 if it names none."""
    found = _UNIT.search(cell)
    unit = found[1] if found else ""
    if is_time:
        return _US.get(unit.removesuffix("ec"), 1.0)
    if unit.endswith("/sec") and unit[:2] in ("MB", "GB"):
        unit = f"{unit[0]}iB"
    return _GB_PER_S.get(re.split("ps|/", unit)[0], 1.0)


def _cells(line: str, splits: str) -> list[str]:
    if splits == "  ":
        return re.split(r"\s{2,}", line.strip())
    return [each.strip(" \"'#") for each in line.strip().strip("|").split(splits or None)]


def _sizes(cell: str) -> list[int]:
    """Possible sizes of a cell in bytes: K, M, G and T as powers of 1024, then of 1000; empty if none."""
    found = _SIZE_CELL.fullmatch(cell)
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
