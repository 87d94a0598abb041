"""Fixed point: real numbers as whole numbers, for switches that add only integers.

A number x is sent as q, the whole number nearest to x * scale, with an error of at most 1 / 2. The sum of n
such numbers, divided by scale, therefore has an error of at most n / (2 * scale).
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taccl._internal.arguments import Count, checked, quoted
from taccl.errors import InputError

_MOST = 2**31 - 1
#: Veltkamp's constant: it splits a float64 into halves whose products are exact.
_SPLITTER = 2.0**27 + 1


@checked
def largest_scale(most: float, ranks: Count) -> float:
    """Largest scale at which no sum of `ranks` numbers of at most `most` exceeds 32 bits.

    - `most`: Bound on the absolute values of the numbers, above 0.
    """
    if not (most > 0 and np.isfinite(most)):
        raise InputError(f"found {most}; expected a finite number above 0", where="most")
    scale = (_MOST // ranks - 0.5) / float(most)
    if scale <= 0:
        raise InputError(f"found {ranks} ranks, whose sum cannot fit into 32 bits", where="ranks")
    while ranks * (float(most) * scale + 0.5) > _MOST:
        scale = math.nextafter(scale, 0)
    return scale


@checked
def error_bound(ranks: Count, scale: float) -> float:
    """Largest error of a sum of `ranks` numbers in fixed point: ranks / (2 * scale), rounded up to a float64.

    The error is the difference between two numbers: the sum of whole numbers divided by `scale`, and the
    exact sum of the real numbers. `dequantise` also rounds this quotient, to the nearest float64.
    """
    exact = Fraction(ranks) / (2 * Fraction(_positive(scale)))
    try:
        bound = float(exact)
    except OverflowError:
        return math.inf
    return math.nextafter(bound, math.inf) if bound < exact else bound


@checked
def quantise(
    values: ArrayLike, scale: float, *, ranks: Count, most: float | None = None
) -> NDArray[np.int32]:
    """Whole numbers nearest to ``values * scale``; sums over all ranks fit into 32 bits.

    Parameters
    ----------
    values : array_like
        Finite numbers of any type that float64 holds; for bfloat16 see
        `taccl.aggregation.fixed_point.from_bfloat16`.
    scale : float
        Whole numbers per unit.
    ranks : int
        Number of ranks that contribute to each sum.
    most : float, optional
        Bound on the absolute values of all ranks. Default: that of these `values`, which is right only if no
        other rank has larger ones.

    Raises
    ------
    InputError
        If a sum could overflow (the message has the largest scale that fits), or a value is not finite or
        above `most`.
    """
    real, scale = finite_numbers(values), _positive(scale)
    found = float(np.abs(real).max(initial=0.0))
    most = found if most is None else float(most)
    if found > most:
        raise InputError(f"found a value of {found:g}; expected at most the stated {most:g}", where="most")
    if ranks * (most * scale + 0.5) > _MOST:
        raise InputError(
            f"found {scale:g}, at which a sum of {ranks} numbers of {most:g} leaves 32 bits; expected at "
            f"most {largest_scale(most, ranks)!r}",
            where="scale",
        )
    return nearest_whole(real, scale)


@checked
def dequantise(sums: ArrayLike, scale: float) -> NDArray[np.float64]:
    """Convert sums in fixed point to real numbers: each sum over `scale`, rounded to the nearest float64.

    Raises `InputError` if a result is too large for a float64.
    """
    whole, scale = _numbers(sums, "sums"), _positive(scale)
    with np.errstate(over="ignore"):
        real = np.asarray(whole / scale)
    if (np.isinf(real) & np.isfinite(whole)).any():
        most = float(np.abs(whole).max())
        said = f"found {scale:g}, at which a sum of {most:g} stands for more than float64 holds"
        raise InputError(f"{said}; give the scale of quantise", where="scale")
    return real


def from_bfloat16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Numbers with the given bfloat16 bits, which are the upper halves of float32 numbers."""
    upper = np.ascontiguousarray(bits)
    if upper.dtype != np.uint16:
        raise InputError(f"found {upper.dtype}; expected uint16, the bits of bfloat16", where="bits")
    return (upper.astype(np.uint32) << 16).view(np.float32)


def nearest_whole(real: NDArray[np.float64], scale: float | NDArray[np.float64]) -> NDArray[np.int32]:
    """Whole numbers nearest to ``real * scale`` in exact arithmetic; they must fit into 32 bits."""
    product, error = _product(real, scale)
    whole = np.rint(product)
    # `rest` is exact, and the error is at most half an ulp of the product.
    # An error this small changes the nearest whole number only if `rest` is 1/2 or -1/2.
    # The error is not added to `rest`, as the rounded sum would lose a small error.
    rest = product - whole
    up, down = (rest == 0.5) & (error > 0), (rest == -0.5) & (error < 0)
    return np.asarray(whole + up - down).astype(np.int32)


def finite_numbers(values: ArrayLike) -> NDArray[np.float64]:
    """Values as float64. Raises `InputError` unless all are finite real numbers."""
    real = _numbers(values, "values")
    if not np.isfinite(real).all():
        raise InputError("found infinite values or NaN; expected finite ones", where="values")
    return real


def _numbers(values: ArrayLike, where: str) -> NDArray[np.float64]:
    try:
        given = np.asarray(values)
        with np.errstate(over="ignore"):  # numbers of wider types may become infinite, and are then refused
            if given.dtype.kind != "c":
                return given.astype(np.float64, copy=False)
    except (OverflowError, TypeError, ValueError):
        pass
    raise InputError(f"found {quoted(values)}; expected an array of real numbers", where=where)


def _positive(scale: float) -> float:
    if not (np.isfinite(scale) and scale > 0):
        raise InputError(f"found {scale}; expected a finite number above 0", where="scale")
    return float(scale)


def _product(
    real: NDArray[np.float64], scale: float | NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Product ``real * scale`` rounded to float64, and the exact rounding errors of the mantissas' products.

    The errors are exact, as products of mantissas neither overflow nor underflow: Dekker, "A floating-point
    technique for extending the available precision", 1971.
    """
    mantissa, exponent = np.frexp(real)
    factor, places = np.frexp(scale)
    high, low = _halves(mantissa)
    factor_high, factor_low = _halves(factor)
    product = mantissa * factor
    error = ((high * factor_high - product) + high * factor_low + low * factor_high) + low * factor_low
    with np.errstate(under="ignore"):
        return np.ldexp(product, exponent + places), error


def _halves(mantissa: Any) -> tuple[Any, Any]:
    """Split each mantissa into two floats of at most 26 bits that add up to it."""
    high = _SPLITTER * mantissa - (_SPLITTER * mantissa - mantissa)
    return high, mantissa - high
