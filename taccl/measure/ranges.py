"""Size ranges of a library's protocols, inferred from the times."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from taccl._internal.address_space import require_address_space

#: Relative error below which the cost is quadratic; above, it is linear (own choice).
NOISE = 0.02
#: Penalty of a further line, in units of `robust`.
_PRICE = 3.0
_ROUNDS = 5
#: Min sizes per range: any two points fit a line.
_LEAST = 3


def robust(relative: NDArray[np.float64]) -> NDArray[np.float64]:
    """Pseudo-Huber loss of relative errors in units of `NOISE`: quadratic if small, linear if large."""
    return np.sqrt(1 + (relative / NOISE) ** 2) - 1


def lines(size_bytes: NDArray[np.float64], times_us: NDArray[np.float64]) -> NDArray[np.int64]:
    """Protocol index of each size (0 ll, 1 ll128, 2 simple); sizes ascend.

    The sizes are cut into at most three ranges, each fitted by a line of latency and bandwidth. A further
    range must reduce the cost by `_PRICE`. One range is simple; two are ll and simple.
    """
    n = len(size_bytes)
    cost = _costs_of_lines(size_bytes, times_us)
    first, second = np.triu_indices(n + 1)
    named = (second < n) & ((first > 0) | (second == 0))
    num_further = (first > 0).astype(int) + (second > first)
    totals = cost[0, first] + cost[first, second] + cost[second, n] + _PRICE * num_further
    return _cut_at(np.where(named, totals, np.inf), n)


def _costs_of_lines(size_bytes: NDArray[np.float64], times_us: NDArray[np.float64]) -> NDArray[np.float64]:
    """Costs, (n + 1, n + 1), of the best line through the sizes from row to column - 1; 0 for no size.

    Both terms of a line are nonnegative. Iteratively reweighted least squares minimizes the pseudo-Huber
    loss. Ranges of fewer than `_LEAST` sizes cost infinity.
    """
    require_address_space()
    from scipy.optimize import nnls

    n = len(size_bytes)
    # Columns differ by many powers of ten, so each is scaled by its maximum.
    rows = np.stack([1 / times_us, size_bytes / times_us], axis=1)
    rows /= rows.max(axis=0)
    costs = np.zeros((n + 1, n + 1))
    for begin, end in combinations(range(n + 1), 2):
        some, errors = rows[begin:end], np.zeros(end - begin)
        for _ in range(_ROUNDS):
            root = (1 + (errors / NOISE) ** 2) ** -0.25
            line, _ = nnls(some * root[:, None], root)
            errors = some @ line - 1
        costs[begin, end] = np.inf if end - begin < min(_LEAST, n) else robust(errors).sum()
    return costs


def reassigned(predicted_us: NDArray[np.float64], times_us: NDArray[np.float64]) -> NDArray[np.int64]:
    """Protocol index of each size with the best agreement of predictions, (3, sizes), and times.

    Protocols keep their order over ascending sizes, and a range has at least `_LEAST` sizes.
    """
    costs = robust(np.log(predicted_us / times_us))
    n = costs.shape[1]
    sums = np.concatenate([np.zeros((3, 1)), np.cumsum(costs, axis=1)], axis=1)
    first, second = np.triu_indices(n + 1)
    totals = sums[0, first] + sums[1, second] - sums[1, first] + sums[2, n] - sums[2, second]
    lengths = np.stack([first, second - first, n - second])
    short = ((lengths > 0) & (lengths < min(_LEAST, n))).any(axis=0)
    return _cut_at(np.where(short, np.inf, totals), n)


def _cut_at(totals: NDArray[np.float64], n: int) -> NDArray[np.int64]:
    """Protocol index of each of `n` sizes, for the pair of cuts with the least total.

    - `totals`: Cost of each pair of cuts, in the order of `np.triu_indices(n + 1)`.
    """
    cuts = np.transpose(np.triu_indices(n + 1))[np.argmin(totals)]
    return np.searchsorted(cuts, np.arange(n), side="right")
