"""Predicted times (launch and finish) against published measurements and a fit."""

import pytest

import taccl


def predicted_us(name, topology, collective, size):
    """The predicted time of a baseline in us."""
    problem = taccl.make_problem(topology, collective, size_bytes=size)
    return taccl.baselines.baseline(name, problem).predicted_us


@pytest.mark.slow
def test_eight_bytes_on_eight_h100_take_what_logs_say():
    """8 bytes on eight H100 take 12.9 to 22.3 us, as in a published NCCL log."""
    assert 12.9 <= predicted_us("nccl", taccl.topologies.dgx_h100(), "allreduce", 8) <= 22.3


@pytest.mark.slow
def test_one_step_takes_launch_base_and_hop():
    """The predicted time of one step under LL is the sum of its terms.

    These are launch, base and hop, 1.8 + 6.6 + 0.6 us, and 0.02 us for each of 6 more messages.
    """
    topology = taccl.topologies.dgx_h100(protocol="ll")
    assert predicted_us("best", topology, "allreduce", 8) == pytest.approx(9.0 + 6 * 0.02, abs=1e-3)


def test_large_messages_stay_within_what_was_measured():
    """A ring of 1 GiB on 8 H100 is no faster than the log's 442 GB/s, which uses NVLS."""
    topology = taccl.topologies.dgx_h100()
    bus_gb_per_s = 2 * 7 / 8 * 2**30 / predicted_us("ring", topology, "allreduce", 2**30) / 1000
    assert 0.75 * 442 <= bus_gb_per_s <= 442


def test_launch_is_no_part_of_finish_or_bound():
    """Prediction minus finish is the launch, for any size."""
    topology = taccl.topologies.dgx_h100(protocol="ll")
    problem = taccl.make_problem(topology, "allgather", size_bytes=8000)
    schedule = taccl.baselines.ring(problem)
    assert schedule.launch == topology.launch_us
    assert schedule.predicted_us == float(topology.launch_us + schedule.finish)
    assert taccl.lower_bound(problem).bound <= schedule.finish
    assert f"predicted {schedule.predicted_us:.3f}".rstrip("0") in repr(schedule)


def test_an_allgather_takes_one_alpha_and_not_seven():
    """Messages of a port overlap in latency: an allgather pays one alpha, not seven.

    8 KB on 8 ranks, 1.5 us per link: the other 6 messages of a port add 0.02 us and 1 KB each.
    """
    topology = taccl.topologies.dgx_h100(profile="nominal", constants={"nvswitch_alpha_us": "1.5"})
    problem = taccl.make_problem(topology, "allgather", size_bytes=8000)
    finish_us = taccl.baselines.pairwise(problem).finish_us
    assert finish_us == pytest.approx(1.5 + 6 * 0.02 + 7 * 1000 / 450_000)


@pytest.mark.slow
def test_a_fitted_profile_predicts_what_its_fit_does(line_fit, tmp_path):
    """A ring with a fitted profile predicts the fit's times within 3 %, by baseline and by plan."""
    (tmp_path / "mine.toml").write_text(line_fit.to_toml())
    topology = taccl.topologies.parse("dgx-h100", profile=str(tmp_path / "mine.toml"))
    for size in (2**28, 2**30, 2**32):
        expected = line_fit.predict_us("allreduce", 8, 1, size)
        assert predicted_us("ring", topology, "allreduce", size) == pytest.approx(expected, rel=0.03)
    launch = next(each for each in line_fit.parameters if each.name == "launch_us").value
    assert float(topology.launch_us) > launch  # the base of simple is a part
