"""Published logs are fitted as well as the benchmark promises."""

import statistics

import pytest

import taccl
from benchmarks.fit import SWEEPS, WORST_LEFT_OUT, WORST_MEDIAN, WORST_P90, model_of, predicted_row
from benchmarks.unseen import WORST_DEFAULT, default_rows
from taccl.measure.logs import read_log
from tests.fuzzing import thinned

#: Every third by default; the benchmark goes through all.
NAMES = thinned(SWEEPS)


@pytest.fixture(scope="module")
def fits(shared_data):
    """Full sweeps, each fitted by itself."""
    return {
        name: taccl.fit([str(shared_data / "nccl-tests" / f"{name}.txt")], model_of(name)) for name in NAMES
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_sweeps_are_fitted(fits, name):
    """Median and 90th percentile of the errors are within the figures."""
    found = fits[name].to_dict()
    assert found["median_error"] <= WORST_MEDIAN
    assert found["p90_error"] <= WORST_P90


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_sizes_left_out_are_predicted(fits, name):
    """So is the median error at sizes that the fit did not see."""
    assert fits[name].left_out_median_error <= WORST_LEFT_OUT


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_fastest_protocol_is_the_one_that_was_taken(fits, name):
    """Who asks for a time knows no protocol: the fastest by the fitted parameters comes as near as any."""
    (found,) = fits[name].series
    asked = found.series
    predicted = [
        fits[name].predict_us(asked.collective, asked.num_ranks, asked.num_nodes, size)
        for size in asked.size_bytes
    ]
    errors = [abs(a / b - 1) for a, b in zip(predicted, asked.times_us, strict=True)]
    assert statistics.median(errors) <= 0.10


@pytest.mark.slow
def test_two_nodes_are_predicted_from_one(shared_data):
    """One node's log and the rate of a NIC tell what two nodes take for 1 GiB."""
    assert predicted_row(shared_data / "nccl-tests")["met"]


@pytest.mark.slow
def test_default_figures_predict_what_no_fit_has_seen(shared_data):
    """Every machine but outliers of its class, and all points together, without any measurement."""
    rows = [row for row in default_rows(shared_data / "nccl-tests") if not row["outlier"]]
    assert all(row["met"] for row in rows)
    assert statistics.median([error for row in rows for error in row["errors"]]) <= WORST_DEFAULT


def test_every_log_is_read(shared_data):
    """Each of the published files gives a series, and no row of them is left out."""
    for path in (shared_data / "nccl-tests").glob("*.txt"):
        log = read_log(path)
        assert log.series
        assert not log.left_out
