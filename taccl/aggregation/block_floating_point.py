"""Block floating point: fixed point with an exponent, and so a scale, for each block of a tensor.

Before ranks send a block, they agree on its exponent: the largest of their own, which a switch finds as a
maximum. Each number of a block is then at most ``2**exponent``. The scale of the block is the largest at
which no sum of all ranks leaves 32 bits. The error of fixed point is thus bounded by the numbers of the block
itself.

References
----------
A. Sapio et al., "Scaling distributed machine learning with in-network aggregation", NSDI 2021. Its prototype,
github.com/p4lang/p4app-switchML, takes a packet as a block and sends the exponents of later blocks with the
numbers of earlier ones (`cpu_exponent_quantizer`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taccl._internal.arguments import Count, checked
from taccl.aggregation.fixed_point import error_bound, finite_numbers, largest_scale, nearest_whole
from taccl.errors import InputError

#: `LEAST`: least exponent, that of the smallest normal float32; blocks of smaller numbers have it, too.
#: `MOST`: largest exponent, that of the largest float32 numbers.
LEAST, MOST = -126, 128


@checked
def block_exponents(values: ArrayLike, *, block: Count = 256) -> NDArray[np.int16]:
    """Least exponent for each block of the flattened `values`: no number of the block exceeds 2**exponent.

    Signs are ignored. Ranks agree on the maximum of their exponents.

    Parameters
    ----------
    values : array_like
        Finite numbers of at most 2**128, as of float32.
    block : int
        Number of values in a block; the last block may have fewer.

    Raises
    ------
    InputError
        If a value is not finite, or above 2**128.
    """
    found = np.abs(finite_numbers(values)).ravel()
    most = np.maximum.reduceat(found, np.arange(0, len(found), block)) if len(found) else found
    mantissa, exponent = np.frexp(most)
    exponent = np.where(mantissa == 0.5, exponent - 1, exponent)  # the number is exactly a power of two
    if (exponent > MOST).any():
        raise InputError(f"found {most.max():g}; expected at most 2**{MOST}, as of float32", where="values")
    return np.where(most > 0, np.maximum(exponent, LEAST), LEAST).astype(np.int16)


@checked
def block_scales(exponents: ArrayLike, *, ranks: Count) -> NDArray[np.float64]:
    """Largest scale of each block at which a sum of `ranks` numbers, each up to 2**exponent, fits 32 bits."""
    given = np.asarray(exponents)
    if given.dtype.kind not in "iu" or ((given < LEAST) | (given > MOST)).any():
        found = f"expected whole exponents from {LEAST} to {MOST}, as block_exponents finds them"
        raise InputError(found, where="exponents")
    return np.asarray(np.ldexp(largest_scale(1.0, ranks), -given.astype(np.int64)))


@checked
def quantise_blocks(
    values: ArrayLike, exponents: ArrayLike, *, ranks: Count, block: Count = 256
) -> NDArray[np.int32]:
    """Round each value times its block's scale to a whole number; sums over all ranks then fit into 32 bits.

    Parameters
    ----------
    values : array_like
        Finite numbers of any float type.
    exponents : array_like of int
        The exponents on which all ranks agreed: element by element the largest of their `block_exponents`.
    ranks : int
        Number of ranks that contribute.
    block : int
        As in `block_exponents`.

    Raises
    ------
    InputError
        If a block has a number above 2**exponent, or there are more or fewer exponents than blocks.
    """
    real = finite_numbers(values)
    own, agreed = block_exponents(real, block=block), np.asarray(exponents)
    scales = block_scales(agreed, ranks=ranks)
    _check_number(agreed, real, block)
    if (above := np.flatnonzero(own > agreed)).size:
        at = int(above[0])
        raise InputError(
            f"found {agreed[at]} for block {at}, whose numbers need {own[at]}; give the largest exponent of "
            "all ranks",
            where="exponents",
        )
    return nearest_whole(real, _spread(scales, real, block))


@checked
def dequantise_blocks(
    sums: ArrayLike, exponents: ArrayLike, *, ranks: Count, block: Count = 256
) -> NDArray[np.float64]:
    """Convert sums of quantised blocks back to real numbers, by the scale of each block.

    Parameters
    ----------
    sums : array_like of int
        Sums over all ranks of what `quantise_blocks` returned.
    exponents, ranks, block
        As in `quantise_blocks`.

    Raises
    ------
    InputError
        If there are more or fewer exponents than blocks.
    """
    whole, scales = finite_numbers(sums), block_scales(exponents, ranks=ranks)
    _check_number(np.asarray(exponents), whole, block)
    return np.asarray(whole / _spread(scales, whole, block))


@checked
def block_error_bounds(exponents: ArrayLike, *, ranks: Count) -> NDArray[np.float64]:
    """Largest error of a sum of n ranks, by block: n / (2 * scale), about n**2 * 2**exponent / 2**32."""
    return np.array([error_bound(ranks, each) for each in block_scales(exponents, ranks=ranks).tolist()])


def _check_number(exponents: NDArray[np.int64], real: NDArray[np.float64], block: int) -> None:
    needed = -(-real.size // block)
    if exponents.shape != (needed,):
        found = f"found exponents of shape {exponents.shape}; expected {needed}, one for each block"
        raise InputError(found, where="exponents")


def _spread(scales: NDArray[np.float64], real: NDArray[np.float64], block: int) -> NDArray[np.float64]:
    """For each number in `real`, the scale of its block."""
    return np.repeat(scales, block)[: real.size].reshape(real.shape)
