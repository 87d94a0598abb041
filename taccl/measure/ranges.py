"""Which protocol a library took at which sizes, read off the times."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

#: Relative errors up to this are noise (our choice); beyond, they count by their size and not its square.
NOISE = 0.02
#: What a further line must explain, in units of noise.
_PRICE = 3.0
_ROUNDS = 5
#: Fewer sizes than this are no range: a line explains any two of them, however far off they are.
_LEAST = 3


def robust(relative: NDArray[np.float64]) -> NDArray[np.float64]:
    """What an error costs, in units of noise: half its square if it is small, its size if it is large."""
    return np.sqrt(1 + (relative / NOISE) ** 2) - 1


def lines(size_bytes: NDArray[np.float64], times_us: NDArray[np.float64]) -> NDArray[np.int64]:
    """Of each size, the index of its protocol (0 ll, 1 ll128, 2 simple), sizes ascending.

    Times are cut into at most three ranges, each a line of latency and bandwidth, as few as explain them. One
    range is simple; two are ll and simple.
    """
    n = len(size_bytes)
    cost = _costs_of_lines(size_bytes, times_us)
    first, second = np.triu_indices(n + 1)
    named = (second < n) & ((first > 0) | (second == 0))
    num_further = (first > 0).astype(int) + (second > first)
    totals = cost[0, first] + cost[first, second] + cost[second, n] + _PRICE * num_further
    return _cut_at(np.where(named, totals, np.inf), n)


def _costs_of_lines(size_bytes: NDArray[np.float64], times_us: NDArray[np.float64]) -> NDArray[np.float64]:
    """What errors of the best line cost from each size up to before each; 0 where there is no size.

    Neither term of a line is below 0: least squares reweighted, so that large errors count by their size.
    """
    from scipy.optimize import nnls

    n = len(size_bytes)
    # Sizes over times that differ by many powers of ten: each scaled by its largest.
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
    """The protocol of each size, in their order, under which predictions, (3, sizes), come closest."""
    costs = robust(np.log(predicted_us / times_us))
    n = costs.shape[1]
    sums = np.concatenate([np.zeros((3, 1)), np.cumsum(costs, axis=1)], axis=1)
    first, second = np.triu_indices(n + 1)
    totals = sums[0, first] + sums[1, second] - sums[1, first] + sums[2, n] - sums[2, second]
    lengths = np.stack([first, second - first, n - second])
    short = ((lengths > 0) & (lengths < min(_LEAST, n))).any(axis=0)
    return _cut_at(np.where(short, np.inf, totals), n)


def _cut_at(totals: NDArray[np.float64], n: int) -> NDArray[np.int64]:
    """The protocol of each of `n` sizes: cut twice, of all cuts where the total is least."""
    cuts = np.transpose(np.triu_indices(n + 1))[np.argmin(totals)]
    return np.searchsorted(cuts, np.arange(n), side="right")
