"""Fixed point: real numbers as whole ones, for switches that add nothing else.

Each number x is sent as q = round(x * scale), which is off by at most 1 / 2; so the sum of n of them, over
scale, is off by at most n / (2 * scale).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taccl.arguments import checked, quoted
from taccl.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from taccl.arguments import Count

_MOST = 2**31 - 1
#: Veltkamp's constant: it splits a float64 into halves whose products are exact.
_SPLITTER = 2.0**27 + 1


@checked
def largest_scale(most: float, ranks: Count) -> float:
    """The largest scale at which no sum of `ranks` numbers of at most `most` leaves 32 bits.

    - `most`: A bound on the numbers' absolute values, above 0.
    """
    if not (most > 0 and np.isfinite(most)):
        raise InputError(f"found {most}; expected a finite number above 0", where="most")
    scale = (_MOST // ranks - 0.5) / float(most)
    if scale <= 0:
        raise InputError(f"found {ranks} ranks; no sum of so many fits into 32 bits", where="ranks")
    while ranks * (float(most) * scale + 0.5) > _MOST:
        scale = float(np.nextafter(scale, 0))
    return scale


@checked
def error_bound(ranks: Count, scale: float) -> float:
    """How far a sum of `ranks` numbers in fixed point may be from the sum of the numbers: n / (2 * scale)."""
    return ranks / (2 * _positive(scale))


@checked
def quantise(
    values: ArrayLike, scale: float, *, ranks: Count, most: float | None = None
) -> NDArray[np.int32]:
    """The nearest whole numbers to ``values * scale``, such that sums over all ranks fit into 32 bits.

    Parameters
    ----------
    values : array_like
        Finite numbers of any type that float64 holds; for bfloat16 see
        `taccl.aggregation.fixed_point.from_bfloat16`.
    scale : float
        Whole numbers to 1.
    ranks : int
        How many contribute to each sum.
    most : float, optional
        A bound on the absolute values of all ranks; default: that of these `values`, which is right only
        where no other rank's are larger.

    Raises
    ------
    InputError
        If a sum could overflow, with the largest scale that fits; or a value is not finite, or above `most`.
    """
    real, scale = _numbers(values, "values"), _positive(scale)
    if not np.isfinite(real).all():
        raise InputError("found values that are infinite or no numbers; expected finite ones", where="values")
    found = float(np.abs(real).max(initial=0.0))
    most = found if most is None else float(most)
    if found > most:
        raise InputError(f"found a value of {found:g}; expected at most {most:g}, as was said", where="most")
    if ranks * (most * scale + 0.5) > _MOST:
        raise InputError(
            f"found {scale:g}, at which a sum of {ranks} numbers of {most:g} leaves 32 bits; expected at "
            f"most {largest_scale(most, ranks)!r}",
            where="scale",
        )
    product = real * scale
    whole = np.rint(product)
    # What the product itself was rounded by may decide which whole number is nearest.
    rest = (product - whole) + _error_of_product(real, scale, product)
    return np.asarray(whole + (rest > 0.5) - (rest < -0.5)).astype(np.int32)


@checked
def dequantise(sums: ArrayLike, scale: float) -> NDArray[np.float64]:
    """The real numbers that sums in fixed point stand for."""
    return np.asarray(_numbers(sums, "sums") / _positive(scale))


def from_bfloat16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The numbers whose bfloat16 bits these are: the upper halves of float32."""
    upper = np.ascontiguousarray(bits)
    if upper.dtype != np.uint16:
        raise InputError(f"found {upper.dtype}; expected uint16, the bits of bfloat16", where="bits")
    return (upper.astype(np.uint32) << 16).view(np.float32)


def _numbers(values: ArrayLike, where: str) -> NDArray[np.float64]:
    try:
        return np.asarray(values, dtype=np.float64)
    except (OverflowError, TypeError, ValueError):
        raise InputError(f"found {quoted(values)}; expected an array of numbers", where=where) from None


def _positive(scale: float) -> float:
    if not (np.isfinite(scale) and scale > 0):
        raise InputError(f"found {scale}; expected a finite number above 0", where="scale")
    return float(scale)


def _error_of_product(
    real: NDArray[np.float64], scale: float, product: NDArray[np.float64]
) -> NDArray[np.float64]:
    """What was rounded off products, exactly (Dekker, "A floating-point technique ...", 1971)."""
    high = _SPLITTER * real - (_SPLITTER * real - real)
    low = real - high
    scale_high = _SPLITTER * scale - (_SPLITTER * scale - scale)
    scale_low = scale - scale_high
    return ((high * scale_high - product) + high * scale_low + low * scale_high) + low * scale_low
