"""Names of types of arrays, and rows of ranges."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def ranges(begin: Ints, end: Ints) -> tuple[Ints, Ints]:
    """(index of the range, value) for all values of the ranges from `begin` to `end`, exclusive."""
    count = np.maximum(0, end - begin)
    row = np.repeat(np.arange(len(count)), count)
    return row, np.arange(len(row)) + np.repeat(begin - (np.cumsum(count) - count), count)
