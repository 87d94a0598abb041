"""Pictures of a placement."""

import numpy as np
import pytest

import taccl
from taccl.placement.pictures import matrices, ring
from taccl.plot.style import figure, render
from tests.placement.clouds import cloud


@pytest.fixture(scope="module")
def placement():
    """Placement of nine hosts in three racks, reordered."""
    truth, _, _ = cloud((3, 3, 3), seed=1)
    return taccl.reorder(truth)


@pytest.mark.slow
def test_matrices_show_both_orders(placement):
    """Both matrices are shown side by side, with the same values in different order."""
    ax = matrices(placement, ax=figure())
    shown = np.ma.filled(ax.images[0].get_array(), np.nan)
    before, after = shown[:, :9], shown[:, -9:]
    assert np.array_equal(np.sort(before, axis=None), np.sort(after, axis=None))
    assert np.array_equal(before, placement.distance_us)
    assert after[0, 1] == placement.distance_us[placement.order[0], placement.order[1]]


@pytest.mark.slow
def test_ring_counts_steps_between_racks(placement):
    """In the new order, a ring has as many steps between racks as there are racks."""
    texts = [text.get_text() for text in ring(placement, ax=figure()).texts]
    assert "new order: 3 steps leave a rack" in texts


@pytest.mark.slow
def test_pictures_are_the_same_each_time(placement):
    """Pictures of a placement are reproducible to the byte."""
    assert render(matrices(placement, ax=figure()), "svg") == render(matrices(placement, ax=figure()), "svg")
