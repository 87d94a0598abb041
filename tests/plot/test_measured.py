"""The picture of a fit: points that were measured, and the curve beside them."""

import pytest

import taccl
from tests.measure.logs import SIZES, table


@pytest.mark.slow
def test_points_and_curve_of_every_series(tmp_path):
    """One series is one row of points and one curve, over all of its sizes; the title tells the error."""
    (tmp_path / "a.log").write_text(table())
    ax = taccl.plot.measured(taccl.fit([str(tmp_path / "a.log")], "dgx-h100"))
    points, curve = ax.get_lines()
    assert tuple(points.get_xdata()) == tuple(curve.get_xdata()) == SIZES
    assert "median error" in ax.get_title(loc="left")
