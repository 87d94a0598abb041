"""Low prices of time by which every hold of a resource pays for what its sends gain."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from taccl.analysis.certificates.evaluation.port_prices import FACTOR, MOST_FACTOR

#: Number of times that prices are lowered.
_LOWERED = 5


def lowest_prices(worth: NDArray[np.float64], alpha: float) -> tuple[NDArray[np.int64], tuple[int, ...]]:
    """Prices at the ends of cells, and factors of holds by length, as in hub time.

    - `worth`, (C, C): Gain per unit of data of a hold, by the cells at whose starts it begins and ends.
    - `alpha`: Fixed time of a hold, in cells.
    """
    # Start from the prices that holds of length 0 need.
    # A few times, multiply each price by the largest ratio of gain to cost of any hold over its time.
    # At last, multiply all prices by the largest ratio of any hold.
    prices, cells = whole(np.diag(worth)), len(worth) - 1
    for again in range(_LOWERED, -1, -1):
        if again in (0, 1, _LOWERED):  # prices differ little between the others
            factors = highest_factors(alpha, cells, swing(prices))
        needed = worth / _costs_near(prices, factors, math.floor(alpha))
        if again:
            needed = np.maximum.accumulate(needed, axis=0)
            needed = np.diag(np.maximum.accumulate(needed[:, ::-1], axis=1)[:, ::-1])
        prices = whole(prices * (needed if again else needed.max()))
    return prices, highest_factors(alpha, cells, swing(prices))


def highest_factors(alpha: float, cells: int, swing: float) -> tuple[int, ...]:
    """Highest factors for holds of 0, 1, ... cells that the proof admits, computed from the longest hold on.

    Factors are interpolated linearly. That of x cells is at most ``x / (x - alpha)``, less ``swing / 4``
    times the difference of the two neighbouring factors.

    - `alpha`: Fixed time of a hold, in cells.
    - `swing`: Largest difference between neighbouring prices, divided by the lowest price.
    """
    swing = max(swing, 1e-9)  # equal prices would divide by 0 below
    found = [1 + alpha / (cells - alpha)]
    for length in range(cells - 1, math.floor(alpha) - 1, -1):
        over, end = found[-1] - 1, length + 1 - alpha
        # Make the line through the next longer length's factor as steep as the limit permits.
        # The line touches the limit at one of `points` (each u is a length less alpha).
        far, points = end + swing / 4, [end, max(end - 1, 1e-12)]
        if over > 0 and alpha > over * far:
            points.append((alpha - (alpha * alpha - over * alpha * far) ** 0.5) / over)
        slopes = [(alpha / u - over) / (far - u) for u in points if max(end - 1, 0) <= u <= end]
        rise = max(0.0, min(slopes)) * (1 - 1e-6)
        # Stay so far below the limit that a line to the next shorter length exists.
        if over > 0 and (rest := length - alpha) > 0:
            room = alpha / rest * (1 - (swing + 1 / rest) / (4 * rest)) - over
            rise = min(rise, max(0.0, room))
        found.append(found[-1] + rise)
    found += found[-1:] * math.floor(alpha)  # no hold is that short
    # Rounding lengthens the difference of two factors by 1 at most.
    rounded = (int(factor * FACTOR * (1 - 1e-6) - swing / 4) for factor in reversed(found))
    return tuple(min(factor, MOST_FACTOR) for factor in rounded)


def _costs_near(prices: NDArray[np.int64], factors: Sequence[int], least: int) -> NDArray[np.float64]:
    """Costs as those of `costs_of`, without rounding and in units of a price; infinite for no hold."""
    lengths = np.maximum(np.arange(-len(prices) + 1, len(prices)), 0)
    each = np.array(factors)[lengths] / (2 * FACTOR * np.maximum(lengths, 1))
    each[: len(prices) - 1 + least] = np.inf
    each = np.lib.stride_tricks.sliding_window_view(each, len(prices))[::-1]
    twice = np.concatenate(([0], np.cumsum(prices[1:] + prices[:-1])))
    areas = (twice - twice[:, None]).astype(float)
    np.fill_diagonal(areas, 2 * prices)
    areas *= each
    return areas


def whole(prices: NDArray[np.float64]) -> NDArray[np.int64]:
    """Integers that exceed the prices by 1 to 2, and by a relative 1e-6, as a margin for rounding."""
    return np.ceil(prices * (1 + 1e-6)).astype(np.int64) + 1


def swing(prices: NDArray[np.int64]) -> float:
    """Largest difference between neighbouring prices, divided by the lowest price."""
    return float(np.abs(np.diff(prices)).max() / prices.min())
