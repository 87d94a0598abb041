"""The picture of a fit: measured points and the fitted curve."""

import pytest

import taccl
from tests.measure.logs import SIZES


@pytest.mark.slow
def test_points_and_curve_of_every_series(line_fit):
    """One series has its points and one curve over all of its sizes; the title has the error."""
    ax = taccl.plot.measured(line_fit)
    points, curve = ax.get_lines()
    assert tuple(points.get_xdata()) == tuple(curve.get_xdata()) == SIZES
    assert "median error" in ax.get_title(loc="left")
