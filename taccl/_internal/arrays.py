"""Names of types of arrays, rows of ranges, and quick sorts of columns of integers.

NumPy's stable sorts of several columns take 5 to 50 times as long as one sort of packed integers. So does its
hash table of distinct values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Max rows for which `np.lexsort` is quicker than packing columns.
_FEW_ROWS = 300
#: Bits of a packed row: those of a positive int64.
_BITS = 63


def ranges(begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """(index of the range, value) for all values of the ranges from `begin` to `end`, exclusive."""
    count = np.maximum(0, end - begin)
    row = np.repeat(np.arange(len(count)), count)
    return row, np.arange(len(row)) + np.repeat(begin - (np.cumsum(count) - count), count)


def lexsort(keys: Sequence[NDArray[Any]]) -> Ints:
    """Stable order of rows by columns of integers, the last column first: the result of `np.lexsort`.

    Columns are packed into one integer per row, with the row's place in the order so far in the lowest bits.
    Columns that do not fit together are sorted in several passes, the least significant ones first.
    """
    num_rows = len(keys[0])
    if num_rows <= _FEW_ROWS or any(key.dtype.kind not in "bi" for key in keys):
        return np.lexsort(keys)
    lows = [int(key.min()) for key in keys]
    widths = [(int(key.max()) - low).bit_length() for key, low in zip(keys, lows, strict=True)]
    bits = num_rows.bit_length()
    place, first = np.arange(num_rows), 0
    order = place
    while first < len(keys):
        last = first + 1
        if widths[first] > _BITS - bits:
            order = order[np.argsort(keys[first][order], kind="stable")]
            first = last
            continue
        while last < len(keys) and sum(widths[first : last + 1]) <= _BITS - bits:
            last += 1
        code = np.zeros(num_rows, np.int64)
        for k in reversed(range(first, last)):
            code <<= widths[k]
            code |= keys[k].astype(np.int64) - lows[k]
        code = code[order] if first else code
        if (code[1:] < code[:-1]).any():
            code <<= bits
            code |= place
            code.sort()
            code &= (1 << bits) - 1
            order = order[code] if first else code
        first = last
    return order


def distinct(values: NDArray[Any]) -> NDArray[Any]:
    """Distinct values in ascending order: the result of `np.unique`."""
    found = np.sort(values, axis=None)
    is_new = np.ones(len(found), bool)
    np.not_equal(found[1:], found[:-1], out=is_new[1:])
    return found[is_new]


def places_of(keys: Ints, wanted: Ints) -> tuple[Ints, Flags]:
    """(index of each wanted key in the sorted `keys`, True if `keys` contains it)."""
    if not len(keys):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return place, keys[place] == wanted


def first_rows(values: ArrayLike) -> tuple[Ints, Ints]:
    """(distinct values in ascending order, index of the first row of each)."""
    values = np.asarray(values)
    order = lexsort((values,))
    found = values[order]
    is_new = np.ones(len(found), bool)
    np.not_equal(found[1:], found[:-1], out=is_new[1:])
    return found[is_new], order[is_new]


def numbered(values: ArrayLike) -> tuple[Ints, Ints, Ints]:
    """(distinct values in ascending order, index of the first row of each, number of each row's value)."""
    values = np.asarray(values)
    order = lexsort((values,))
    found = values[order]
    is_new = np.ones(len(found), bool)
    np.not_equal(found[1:], found[:-1], out=is_new[1:])
    number = np.empty(len(values), np.int64)
    number[order] = np.cumsum(is_new) - 1
    return found[is_new], order[is_new], number
