"""One warning that latencies are not counted, for topologies with the nominal profile (rates of data sheets)."""

import warnings

import pytest

import taccl
from taccl.synthesis.result import _tell_no_latency
from tests.effort import first_schedule


@pytest.fixture(autouse=True)
def told():
    """Reset the once-only warning before and after each test."""
    _tell_no_latency.cache_clear()
    yield
    _tell_no_latency.cache_clear()


def warnings_of(size, **options):
    """Latency warnings of two syntheses of a broadcast on a DGX-A100."""
    topology = taccl.topologies.dgx_a100(**options)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2):
            problem = taccl.make_problem(topology, "broadcast", size_bytes=size)
            first_schedule(problem)
    return [str(each.message) for each in found if "latency" in str(each.message)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "options", "count"),
    [
        (8, {"profile": "nominal"}, 1),
        (10**9, {"profile": "nominal"}, 0),
        (8, {"profile": "nominal", "constants": {"nvswitch_alpha_us": 1, "internode_alpha_us": 3}}, 0),
        (8, {}, 0),
    ],
)
def test_warning_is_given_once_where_latency_matters(size, options, count):
    """The warning comes once for 8 bytes under the nominal profile, and not for 1 GB or with given latencies."""
    found = warnings_of(size, **options)
    assert len(found) == count
    assert all("profile nominal has no latency" in each for each in found)
