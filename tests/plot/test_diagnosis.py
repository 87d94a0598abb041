"""The picture of a diagnosis has measured points, the expected curve and the bound."""

import pytest

import taccl
from tests.explore.degraded import RINGS, SIZES, node_log


@pytest.mark.slow
def test_measured_expected_and_bound_are_drawn(tmp_path):
    """One point per size, a curve through the expected times at these sizes, and a line at the bound."""
    (tmp_path / "a.log").write_text(node_log(RINGS))
    (found,) = taccl.diagnose([str(tmp_path / "a.log")], gains=False).series
    expected, measured, bound = taccl.plot.diagnosis(found).lines
    assert len(expected.get_xdata()) == len(measured.get_xdata()) == len(SIZES)
    assert max(measured.get_ydata()) < min(max(expected.get_ydata()), *bound.get_ydata())
