"""Fits and predictions of published logs meet the benchmark's figures."""

import statistics

import pytest

import taccl
from benchmarks.fit import SWEEPS, WORST_LEFT_OUT, WORST_MEDIAN, WORST_P90, model_of, predicted_row
from benchmarks.unseen import WORST_DEFAULT, default_rows
from taccl.measure.logs import read_log
from tests.effort import quick_fits
from tests.fuzzing import thinned

#: Every third log by default; the benchmark uses all.
NAMES = thinned(SWEEPS)


@pytest.fixture(scope="module")
def fits(shared_data):
    """{log: fit of its full sweep}."""
    with quick_fits():
        return {
            name: taccl.fit([str(shared_data / "nccl-tests" / f"{name}.txt")], model_of(name))
            for name in NAMES
        }


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_sweeps_are_fitted(fits, name):
    """Median and 90th percentile of errors are within the limits."""
    found = fits[name].to_dict()
    assert found["median_error"] <= WORST_MEDIAN
    assert found["p90_error"] <= WORST_P90


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_sizes_left_out_are_predicted(fits, name):
    """The median error at sizes left out of the fit is within its limit."""
    assert fits[name].left_out_median_error <= WORST_LEFT_OUT


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_fastest_protocol_is_the_one_that_was_taken(fits, name):
    """The fastest protocol by the fitted parameters predicts the measured times within 10 % (median)."""
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
    """A fit to the log of one node, with the rate of a NIC, predicts the time of 1 GiB on two nodes."""
    assert predicted_row(shared_data / "nccl-tests")["met"]


@pytest.mark.slow
def test_default_figures_predict_unseen_logs(shared_data):
    """Predictions without any fit match the logs of each machine, except logs marked as outliers. They also
    match all logs together (median)."""
    rows = [row for row in default_rows(shared_data / "nccl-tests") if not row["outlier"]]
    assert all(row["met"] for row in rows)
    assert statistics.median([error for row in rows for error in row["errors"]]) <= WORST_DEFAULT


def test_every_log_is_read(shared_data):
    """Every published file gives a series, without skipped rows."""
    for path in (shared_data / "nccl-tests").glob("*.txt"):
        log = read_log(path)
        assert log.series
        assert not log.left_out
