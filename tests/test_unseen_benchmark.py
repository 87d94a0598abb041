"""The benchmark of unseen logs marks rows whose constants come from the same log."""

import tomllib

import pytest

from benchmarks.constants import SOURCE_OF, costs_without
from benchmarks.unseen import CASES, PUBLISHED
from taccl.measure.predict import costs_of

TOPOLOGIES = {case.log: case.topology for case in CASES}


@pytest.mark.parametrize("log", SOURCE_OF)
def test_constants_of_own_logs_are_replaced(log):
    """A prediction that may not use a machine's own log has constants of other machines."""
    assert costs_without(TOPOLOGIES[log], log) != costs_of(TOPOLOGIES[log])


def test_a_network_without_its_log_is_of_other_classes():
    """Without its log, EFA of p4d has its plugin's hop latency, 75 us, and medians over the other six networks."""
    found = costs_without("p4de.24xlarge", "a100_p4de.24xlarge_x2_allreduce_aws").network
    assert (found.hop_us, found.start_us, found.efficiency) == (75, 9, 0.93)


def test_further_logs_test_predictions():
    """At least 10 of the further published logs are the source of no constant.

    Each log cites where it was published, has at least one time, all positive, and a unique name.
    """
    logs = tomllib.loads(PUBLISHED.read_text())["log"]
    assert sum("source_of" not in log for log in logs) >= 10
    assert all(log["source"] and log["times_us"] and min(log["times_us"]) > 0 for log in logs)
    assert len({log["name"] for log in logs}) == len(logs)
