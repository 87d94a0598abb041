"""Random numbers in kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taccl._internal.kernels import inner

if TYPE_CHECKING:
    from numpy.typing import NDArray


@inner
def draw_below(random: NDArray[np.uint64], below: int) -> int:
    """Random whole number from 0 to `below` - 1, of the generator xorshift64* whose state is `random`."""
    x = random[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    random[0] = x
    return int(np.int64(x * np.uint64(2685821657736338717) >> np.uint64(33)) % below)
