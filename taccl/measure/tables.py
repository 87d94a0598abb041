"""Parse lines of a table of results as rows, by the columns of its header."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from itertools import product
from types import MappingProxyType
from typing import NamedTuple

from taccl.errors import FormatError
from taccl.measure.rows import Row, best_row, row_of, sizes_of, wrong_count

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
#: Number in a cell, with a unit of its own or without.
_FIGURE = re.compile(
    r"([-+]?(?:(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|nan|inf(?:inity)?))\s?([^\W\d]\S*)?", re.IGNORECASE
)
#: Word behind a number.
_AFTER_NUMBER = re.compile(r"\d\s?([^\W\d_][\w/]*)")
#: Number in quotes, with commas between thousands.
_THOUSANDS = re.compile(r"\"\d{1,3}(?:,\d{3})+(?:\.\d+)?\"")
#: {beginning of a unit of time: microseconds}.
_US = {"": 1e6, "n": 1e-3, "u": 1.0, "µ": 1.0, "μ": 1.0, "m": 1e3, "nano": 1e-3, "micro": 1.0, "milli": 1e3}
#: {unit: GB/s}. perftest, which writes ``/sec``, means MiB by MB (see `_unit`).
_GB_PER_S: dict[str, float] = {
    f"{prefix}{binary}{of}": (1024 if binary else 1000) ** power / 1e9 / (8 if of == "b" else 1)
    for power, prefix in enumerate(("", "K", "M", "G"))
    for binary in ("i", "")[not prefix :]
    for of in "bB"
}
#: GB/s of units of bits per second.
_BITS = frozenset(rate for unit, rate in _GB_PER_S.items() if unit.endswith("b"))


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
        # Authors of tables write Gbps for GB/s as well; a time beside a rate shows which is meant.
        is_in_bits = self.places.get("algbw", (0, 0.0))[1] in _BITS
        rows = []
        for times, size in product(
            (1, 8) if is_in_bits and "time" in found else (1,),
            sizes_of(cells[0].split()[-1] if cells[0] else "", self.size_unit),
        ):
            stated_us = size / rate / 1000 if rate > 0 else 0.0
            made = row_of(size, found.get("time", stated_us), times * algbw or None, times * busbw, None)
            rows.append(made._replace(is_bus=is_bus))
        best = best_row(rows, where)
        if best is None or not self.is_by_name:
            return best
        is_other = said.get("in_place", "") in (("0", "false") if self.in_place else ("1", "true"))
        return best._replace(
            size_bytes=0 if is_other else best.size_bytes, num_wrong=wrong_count(said.get("wrong", "")),
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


def label_of(header: str) -> re.Pattern[str] | None:
    """Pattern of the label that a launcher or a logger puts before each line, from the header; None without.

    Numbers in it, such as those of ranks and times, may differ from line to line.
    """
    found = _HEADER.search(header)
    left = header[: found.start()].strip('# \t"|>') if found else ""
    return re.compile(r"[ \t]*" + re.sub(r"\d+", r"\\d+", re.escape(left)) + r"[ \t]*") if left else None


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
