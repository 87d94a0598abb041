"""The picture of a fit: points that were measured, and the curve beside them."""

import pytest

import taccl
from tests.measure.logs import SIZES


@pytest.mark.slow
def test_points_and_curve_of_every_series(line_fit):
    """One series is one row of points and one curve, over all of its sizes; the title tells the error."""
    ax = taccl.plot.measured(line_fit)
    points, curve = ax.get_lines()
    assert tuple(points.get_xdata()) == tuple(curve.get_xdata()) == SIZES
    assert "median error" in ax.get_title(loc="left")
