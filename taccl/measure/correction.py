"""Corrections by size: smooth factors by which a library's times differ from the fitted cost model.

A library's own model has such factors (NCCL: tables of tree corrections, ring plateau). A correction is kept
only if it predicts sizes that were left out of the fit better than the cost model alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from taccl._internal.arrays import Floats
from taccl.measure.estimate import NOISE, robust
from taccl.topology.profile_files import factors_at

#: Standard deviation of a correction's change from one size to twice that size (our choice).
_CHANGE = 0.04
#: Min reduction of the loss at sizes left out, as a share, for which a correction is kept (our choice).
_MARGIN = 0.1
#: Min sizes of a series with a correction (our choice): with fewer, sizes left out have distant neighbours.
_MIN_SIZES = 8
_ROUNDS = 10


class LeftOut(NamedTuple):
    """Sizes of a series that a fit leaves out, and those that it keeps, with its predictions of both."""

    size_bytes: Floats
    times_us: Floats
    predicted_us: Floats
    kept_bytes: Floats
    kept_us: Floats
    kept_predicted_us: Floats

    def errors(self, *, corrected: bool) -> Floats:
        """Relative errors at the sizes left out, with the correction or without it."""
        predicted = self.corrected_us() if corrected else self.predicted_us
        return np.asarray(np.abs(predicted / self.times_us - 1))

    def corrected_us(self) -> Floats:
        """Predictions at the sizes left out, with the correction by the sizes kept."""
        factors = smooth_factors(self.kept_bytes, self.kept_us / self.kept_predicted_us)
        return self.predicted_us * factors_at(self.size_bytes, self.kept_bytes, factors)


def smooth_factors(size_bytes: Floats, ratios: Floats) -> Floats:
    """Smooth curve through ratios of measured to predicted times; sizes ascend.

    The factors are the most likely ones under two assumptions. Changes of their logarithms from size to size
    are normal, with a variance proportional to the change of the size's logarithm. The loss of deviations of
    measured times is the pseudo-Huber loss of `estimate`. Iteratively reweighted least squares finds them.
    """
    logs, num = np.log(ratios), len(ratios)
    steps = np.diff(np.eye(num), axis=0) / np.sqrt(np.diff(np.log2(size_bytes)))[:, None]
    smoothness = steps.T @ steps * (NOISE / _CHANGE) ** 2
    weights = np.ones(num)
    for _ in range(_ROUNDS):
        found = np.linalg.solve(np.diag(weights) + smoothness, weights * logs)
        weights = 1 / np.sqrt(1 + ((logs - found) / NOISE) ** 2)
    return np.asarray(np.exp(found))


def correction(size_bytes: Floats, ratios: Floats, folds: Iterable[LeftOut]) -> Floats:
    """Factors of a series at its sizes; empty if they are no better at sizes left out, or all near 1.

    - `ratios`: Ratios of measured to predicted times.
    """
    factors = smooth_factors(size_bytes, ratios)
    is_small = bool((np.abs(factors - 1) < NOISE).all())
    return np.array([]) if is_small or not is_better(folds) else factors


def is_better(folds: Iterable[LeftOut]) -> bool:
    """True if corrections predict the sizes of a series that were left out better, by a clear margin."""
    folds = list(folds)
    if sum(len(each.times_us) for each in folds) < _MIN_SIZES:
        return False
    times = np.concatenate([each.times_us for each in folds])
    plain, corrected = (
        float(robust(np.log(np.concatenate(predicted) / times)).sum())
        for predicted in ([each.predicted_us for each in folds], [each.corrected_us() for each in folds])
    )
    return corrected < (1 - _MARGIN) * plain
