"""Corrections by size are smooth, and kept only if they predict sizes left out better."""

import numpy as np
import pytest

from taccl.measure.correction import LeftOut, correction, is_better, smooth_factors
from taccl.topology.profile_files import factors_at

SIZES = 2.0 ** np.arange(10, 34)


def folds_of(ratios, num=10):
    """Cross-validation of times with these ratios to predictions of 100 us, which no fold changes."""
    out = [np.arange(len(SIZES)) % num == fold for fold in range(num)]
    predicted = np.full(len(SIZES), 100.0)
    return [
        LeftOut(
            SIZES[a], 100 * ratios[a], predicted[a], SIZES[~a], 100 * ratios[~a], predicted[~a]
        )
        for a in out
    ]  # fmt: skip


def test_a_wave_is_followed_and_kept():
    """A smooth deviation of 15 % is followed within 2 %, and predicts sizes left out."""
    ratios = 1 + 0.15 * np.sin(np.arange(len(SIZES)) / 4)
    assert smooth_factors(SIZES, ratios) == pytest.approx(ratios, abs=0.02)
    assert correction(SIZES, ratios, folds_of(ratios)).size == len(SIZES)


@pytest.mark.parametrize("seed", range(8))
def test_noise_gives_no_correction(seed):
    """Independent deviations of 4 % do not predict sizes left out, so no correction is kept."""
    ratios = np.exp(np.random.default_rng(seed).normal(0, 0.04, len(SIZES)))
    assert not is_better(folds_of(ratios))


def test_one_outlier_moves_its_neighbours_little():
    """A single size that takes twice as long changes the factors of other sizes by less than 3 %."""
    ratios = np.where(np.arange(len(SIZES)) == 12, 2.0, 1.0)
    found = smooth_factors(SIZES, ratios)
    assert np.abs(np.delete(found, 12) - 1).max() < 0.03


def test_ends_are_held():
    """Beyond the sizes, the factor is that of the first or last; between two sizes, it is in the middle."""
    found = factors_at(2.0 ** np.array([5, 10.5, 40]), SIZES[:2], np.array([1.0, 1.2]))
    assert found == pytest.approx([1.0, 1.1, 1.2])


def test_few_sizes_have_no_correction():
    """Corrections need at least 8 sizes, and sizes that were left out."""
    ratios = np.full(4, 1.2)
    few = [LeftOut(*(each[:4] for each in fold)) for fold in folds_of(np.full(len(SIZES), 1.2))]
    assert not correction(SIZES[:4], ratios, few[:1]).size
    assert not correction(SIZES[:4], ratios, []).size
