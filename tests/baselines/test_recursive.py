"""The recursive doubling baseline."""

import pytest

from taccl.baselines import recursive
from taccl.errors import CollectiveError
from taccl.topology import fabrics


def test_allgather_of_four(make, unit_costs):
    """Allgather of four ranks takes two exchanges: one chunk, then two."""
    schedule = recursive(make("allgather", fabrics.hypercube(2, **unit_costs)))
    # In the second exchange a link carries the sender's own chunk, then its first partner's.
    assert (schedule.finish_us, schedule.num_transfers) == (4, 12)


def test_allreduce_halves_and_doubles(make, unit_costs):
    """An allreduce is the reversed allgather, then the allgather."""
    assert recursive(make("allreduce", fabrics.hypercube(2, **unit_costs))).finish_us == 8


def test_broadcast_is_a_binomial_tree(make, unit_costs):
    """A broadcast reaches 8 ranks in 3 hops."""
    schedule = recursive(make("broadcast", fabrics.hypercube(3, **unit_costs)), cut=False)
    assert (schedule.finish_us, schedule.num_transfers) == (6, 7)


def test_alltoall_carries_only_what_is_needed(make, unit_costs):
    """In an alltoall each chunk takes as many hops as source and destination differ in bits."""
    # 4 sources, each with two chunks one bit away and one chunk two bits away: 4 * (1 + 1 + 2).
    assert recursive(make("alltoall", fabrics.hypercube(2, **unit_costs))).num_transfers == 16


def test_other_numbers_of_ranks_are_refused(make, unit_costs):
    """Six ranks are not a power of two, and are refused."""
    with pytest.raises(CollectiveError, match="power of two, but found 6 ranks"):
        recursive(make("allgather", fabrics.ring(6, **unit_costs)))
