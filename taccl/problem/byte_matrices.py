"""Matrices with a number of bytes for each pair of ranks: checks, and files."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taccl._internal.arguments import Count, checked
from taccl._internal.arrays import Ints
from taccl._internal.named_tables import ENDS, Row, cells_of, is_nothing, square_of
from taccl._internal.names import quoted, shown
from taccl._internal.reading import read_bytes, read_text
from taccl._internal.units import parse_size
from taccl._internal.value_readers import whole_number
from taccl.errors import CollectiveError, FormatError, InputError

#: Number of bytes of all pairs together from which 64-bit sums would overflow.
_MOST_BYTES = 2.0**62
_MOST_RANKS = 8192  #: Max ranks of a list of pairs, whose matrix then has 512 MiB.
_DIGITS = 19  #: Number of decimal digits with which a number may exceed this.
#: A number without a unit, in decimal or scientific notation.
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.ASCII | re.IGNORECASE)
#: Zero with or without a unit.
_ZERO = re.compile(r"(?:0+\.?0*|\.0+)\s*([A-Za-z]*)", re.ASCII)
#: Unit of sizes, alone or in brackets at the end of the first cell or of a comment, as in ``sizes in MB``.
_UNIT = re.compile(r"(?<![\w.])(?<!\d )([KMGT]i?B)[)\]]?\s*$")
#: Beginning of a list of lists, as JSON or as Python prints it, such as ``tensor([[0, 1],``.
_LISTS = re.compile(r"\s*(?:[\w.]+\()?\[\s*\[(?!\s*\[)")
#: Head of a column with bytes.
BYTES_HEAD = re.compile(r"(?:(?:size|num)[ _]?(?:in )?)?\(?bytes\)?|size", re.IGNORECASE)
#: Name of a rank in a table, with its number.
_RANK = re.compile(r"(?:rank|gpu|r|p)?[ _-]?(\d{1,9})", re.ASCII | re.IGNORECASE)


def checked_sizes(sizes: ArrayLike, num_ranks: int, name: str) -> Ints:
    """Check a matrix of bytes per pair of ranks; return it as int64 with 0 on the diagonal.

    Entries may be whole numbers of any type, or texts such as ``"64KB"``. Rows and columns of a data frame
    whose labels number the ranks are put into the order of ranks.

    - `name`: Owner of the ranks, for error messages.
    """
    table = _array_of(sizes)
    if table.shape != (num_ranks, num_ranks):
        raise CollectiveError(
            f"found a matrix of shape {table.shape}; expected {(num_ranks, num_ranks)}, a row and a column "
            f"for each rank of {name}",
            where="sizes",
        )
    whole = _whole(table)
    if (whole < 0).any():
        row, column = (int(i) for i in np.argwhere(whole < 0)[0])
        said = f"found {whole[row, column]} bytes from rank {row} to {column}; expected 0 or more"
        raise CollectiveError(said, where="sizes")
    if whole.astype(float).sum() >= _MOST_BYTES:
        total = f"found {whole.astype(float).sum():.3g} bytes in total"
        raise CollectiveError(f"{total}; expected less than 2**62", where="sizes")
    return whole.astype(np.int64) * ~np.eye(num_ranks, dtype=bool)


def _array_of(sizes: Any) -> NDArray[Any]:
    """Array of a matrix or a data frame; the rows and columns of a frame in the order of their ranks."""
    if np.ma.is_masked(sizes):
        raise CollectiveError("found masked entries; expected a number for every pair", where="sizes")
    try:
        table = np.asarray(sizes)
    except ValueError:
        raise CollectiveError("found rows that differ in length; expected a matrix", where="sizes") from None
    labels = [getattr(sizes, axis, None) for axis in ("index", "columns")]
    if table.ndim == 2 and all(hasattr(each, "tolist") for each in labels):
        rows, columns = ([str(label) for label in each.tolist()] for each in labels)  # type: ignore[union-attr]
        by_rank = [_ranks_in(each) for each in (rows, columns)]
        if None not in by_rank:
            return table[np.ix_(*map(np.argsort, by_rank))]  # type: ignore[arg-type]
        if rows != columns and sorted(rows) == sorted(columns):
            raise CollectiveError("found rows and columns in different orders; sort them", where="sizes")
    return table


def _whole(table: NDArray[Any]) -> NDArray[Any]:
    """The table with whole numbers; raises `CollectiveError` with the first entry that is none."""
    if table.dtype.kind in "iu":
        return table
    wrong: tuple[int, ...] | None = None
    if table.dtype.kind == "f":
        table = table.astype(np.float64)
        if not (is_wrong := ~((table == np.floor(table)) & (abs(table) < _MOST_BYTES))).any():
            return table.astype(np.int64)
        wrong = tuple(np.argwhere(is_wrong)[0].tolist())
    elif table.dtype.kind in "OU":
        made = np.zeros(table.shape, np.int64)
        for place in np.ndindex(table.shape):
            entry, wrong = table[place], place
            try:
                made[place] = bytes_of(entry) if isinstance(entry, str) else whole_number(entry, "sizes")
            except (InputError, OverflowError):
                break
        else:
            return made
    if wrong is None:
        raise CollectiveError(f"found {table.dtype} values; expected whole numbers of bytes", where="sizes")
    found = table[wrong]
    found = found.item() if isinstance(found, np.generic) else found
    said = f"found {quoted(found)} from rank {wrong[0]} to {wrong[1]}; expected a whole number of bytes"
    raise CollectiveError(said, where="sizes")


@checked
def load_sizes(path: str | os.PathLike[str], *, num_ranks: Count | None = None) -> NDArray[np.int64]:
    """Load an alltoallv's matrix of bytes per pair of ranks, from ``.npy`` or text with a line per rank.

    Numbers in a line are separated by commas, semicolons, tabs or blanks. They may be sizes like ``64MB``, or
    whole numbers like ``6.4e+07``, as ``numpy.savetxt`` writes them. Lines that begin with ``#`` are
    comments. The first cell or a comment may end with the unit of all numbers, such as MB. Ranks may be named
    in the first row, in the first column, or in both, and the diagonal may be empty. Lists of lists, as JSON
    or as Python prints them, are read as well. So are lists of pairs of ranks below a header such as
    ``src,dst,bytes``.

    - `num_ranks`: Number of ranks of a list of pairs, which may lack some; default: up to the last one.

    Returns
    -------
    (num_ranks, num_ranks) ndarray of int64
        Bytes from the row's rank to the column's.

    Raises
    ------
    FormatError
        If the file cannot be read, or does not contain such a matrix.
    """
    where = os.fspath(path)
    if where.lower().endswith(".npy"):
        return _of_numpy(read_bytes(path), where)
    text = read_text(path)
    rows = _rows_in(text)
    if cut := next((number for number, cells in rows if "..." in cells), None):
        said = f"line {cut}: found '...', as of a matrix that is printed in part; save it by numpy.save"
        raise FormatError(said, where=where)
    if rows and all(end.match(cell) for end, cell in zip(ENDS, [*rows[0][1], "", ""], strict=False)):
        return _of_pairs(rows, num_ranks or 0, where)
    square = square_of(rows, where, is_name=_is_name, each="rank")
    comments = [line for line in text.splitlines() if line.lstrip().startswith("#")]
    unit_bytes = _unit_bytes([square.corner, *comments], where)
    made = np.zeros((len(square.names), len(square.names)), np.int64)
    for place, (number, cells) in enumerate(square.rows):
        for column, cell in enumerate(cells):
            if place == column and is_nothing(cell):
                continue
            try:
                made[place, column] = bytes_of(cell, unit_bytes)
            except InputError as error:
                raise FormatError(f"line {number}: {error.message}", where=where) from None
    ranks = _ranks_in(square.names)
    return made if ranks is None else made[np.ix_(np.argsort(ranks), np.argsort(ranks))]


def _unit_bytes(said: Sequence[str], where: str) -> int:
    """Bytes in the unit that the first cell or a comment names; 1 if none does, `FormatError` for several."""
    units = {match[1] for text in said if (match := _UNIT.search(text))}
    if len(units) > 1:
        found = " and ".join(sorted(units))
        raise FormatError(f"found the units {found}; expected one for all numbers", where=where)
    return parse_size(f"1{units.pop()}") if units else 1


def _of_pairs(rows: Sequence[Row], num_ranks: int, where: str) -> Ints:
    """Matrix of a list of pairs: rows (source, destination, bytes) below a header."""
    (_, head), *body = rows
    if len(head) != 3 or not BYTES_HEAD.fullmatch(head[2]):
        said = f"found the columns {shown(', '.join(head), 60)}; expected source, destination and bytes alone"
        raise FormatError(f"line {rows[0][0]}: {said}", where=where)
    found: dict[tuple[int, int], int] = {}
    for number, cells in body:
        ranks = [match for match in map(_RANK.fullmatch, cells[:2]) if match]
        if len(cells) != 3 or len(ranks) != 2:
            said = f"found {shown(', '.join(cells), 60)}; expected two numbers of ranks, and bytes"
            raise FormatError(f"line {number}: {said}", where=where)
        pair = int(ranks[0][1]), int(ranks[1][1])
        if pair in found:
            said = f"found the pair {pair[0]} to {pair[1]} again; keep one of its rows"
            raise FormatError(f"line {number}: {said}", where=where)
        try:
            found[pair] = bytes_of(cells[2])
        except InputError as error:
            raise FormatError(f"line {number}: {error.message}", where=where) from None
    size = max(num_ranks, *(rank + 1 for pair in found for rank in pair), 1)
    if size > _MOST_RANKS:
        raise FormatError(f"found rank {size - 1}; expected ranks below {_MOST_RANKS}", where=where)
    made = np.zeros((size, size), np.int64)
    for pair, num_bytes in found.items():
        made[pair] = num_bytes
    return made


def _of_numpy(content: bytes, where: str) -> Ints:
    try:
        found = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise FormatError(f"found no NumPy array ({error}); save it with numpy.save", where=where) from None
    if found.ndim != 2 or len(set(found.shape)) > 1:
        said = f"found an array of shape {found.shape}; expected a matrix, a row and a column for each rank"
        raise FormatError(said, where=where)
    try:
        return checked_sizes(found, len(found), "the file")
    except CollectiveError as error:
        raise FormatError(error.message, where=where) from None


def _rows_in(text: str) -> list[Row]:
    """Line number and cells of each row of a matrix in a text."""
    if _LISTS.match(text):
        lists = re.finditer(r"\[([^\[\]]*)\]", text)
        return [
            (text.count("\n", 0, each.start()) + 1, cells_of(each[1].replace("\n", " "))) for each in lists
        ]
    lines = [
        (number, line)
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if all(line.rstrip().endswith((",", ";")) for _, line in lines):
        lines = [(number, line.rstrip()[:-1]) for number, line in lines]
    return [(number, cells_of(line)) for number, line in lines]


def _is_name(cell: str) -> bool:
    """True for a cell that is neither empty nor begins like a number, such as the name of a rank."""
    return not is_nothing(cell) and not cell.lstrip("+-.")[:1].isdigit() and cell.lower() != "inf"


def _ranks_in(names: Sequence[str]) -> list[int] | None:
    """Rank of each name such as ``rank3``; None if the names do not number ranks from 0 or 1 on."""
    found = [match for match in map(_RANK.fullmatch, names) if match]
    ranks = [int(match[1]) for match in found]
    first = min(ranks, default=0)
    is_whole = first in (0, 1) and sorted(ranks) == list(range(first, first + len(names)))
    return ranks if is_whole else None


def bytes_of(word: str, unit_bytes: int = 1) -> int:
    """Bytes from a cell of a table: a number in any notation, or a size with a unit.

    - `unit_bytes`: Bytes in the unit of numbers that have none of their own.

    Raises `InputError` if the word is neither, or no whole number of bytes.
    """
    if unit_bytes == 1 and word.isascii() and word.isdecimal() and len(word) < _DIGITS:
        return int(word)
    if match := _ZERO.fullmatch(word):
        return 0 * parse_size(f"1{match[1]}")
    if not _NUMBER.fullmatch(word):
        if not word[:1].isdigit():
            said = f"found {shown(repr(word), 60)}; expected a number of bytes or a size such as '64KB'"
            raise InputError(said)
        return parse_size(word)
    if not 0 <= float(word) * unit_bytes < _MOST_BYTES:
        raise InputError(f"found {shown(repr(word), 60)}; expected from 0 to less than 2**62 bytes")
    value = Fraction(word) * unit_bytes
    if value.denominator != 1:
        raise InputError(f"found {shown(repr(word), 60)}; expected a whole number of bytes")
    return int(value)
