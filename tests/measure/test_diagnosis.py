"""Points of a diagnosis."""

import pytest

from taccl.measure.diagnosis import Point

POINT = Point(1024, 12.0, 10.0, "ring ll")


@pytest.mark.parametrize(
    ("measured_us", "off"), [(13.1, "+31%"), (9.98, "+0%"), (10.0, "+0%"), (9.0, "-10%")]
)
def test_the_error_of_a_point_has_whole_percent(measured_us, off):
    """Times that differ by 0.2 % differ by 0 %, with the sign of 0."""
    assert POINT._replace(measured_us=measured_us).off == off
