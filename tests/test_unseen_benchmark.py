"""The benchmark of unseen logs marks rows whose constants come from the same log."""

import pytest

from benchmarks.constants import SOURCE_OF, costs_without
from benchmarks.unseen import CASES
from taccl.measure.predict import costs_of

TOPOLOGIES = {case.log: case.topology for case in CASES}


@pytest.mark.parametrize("log", SOURCE_OF)
def test_constants_of_own_logs_are_replaced(log):
    """Without its own log a machine has other constants."""
    assert costs_without(TOPOLOGIES[log], log) != costs_of(TOPOLOGIES[log])


def test_a_network_without_its_log_is_of_other_classes():
    """Without its log, EFA of p4d has its plugin's hop latency, 75 us, and medians over the other five networks."""
    found = costs_without("p4de.24xlarge", "a100_p4de.24xlarge_x2_allreduce_aws").network
    assert (found.hop_us, found.start_us, found.efficiency) == (75, 9, 0.93)
