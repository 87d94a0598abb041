"""Results of `diagnose` as plain values, and their former names."""

import pytest

from taccl.measure.diagnosis import Point

POINT = Point(1024, 12.0, 10.0, "ring ll")


def test_points_have_former_names_in_files_for_one_release():
    """A point's dictionary has the prediction as `predicted_us`, and also under the former name
    `expected_us`."""
    found = POINT.to_dict()
    assert found["predicted_us"] == found["expected_us"] == 10.0
    assert found["predicted_by"] == found["expected_by"] == "ring ll"


@pytest.mark.parametrize(
    ("measured_us", "off"), [(13.1, "+31%"), (9.98, "+0%"), (10.0, "+0%"), (9.0, "-10%")]
)
def test_the_error_of_a_point_has_whole_percent(measured_us, off):
    """Times that differ by 0.2 % differ by 0 %, with the sign of 0."""
    assert POINT._replace(measured_us=measured_us).off == off


@pytest.mark.parametrize(("former", "value"), [("expected_us", 10.0), ("expected_by", "ring ll")])
def test_former_names_of_a_point_warn(former, value):
    """Former names of the fields of a point still work, with a warning."""
    with pytest.warns(DeprecationWarning, match=f"Point.{former} is named predicted"):
        assert getattr(POINT, former) == value
