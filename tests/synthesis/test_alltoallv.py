"""Schedules of exchanges, one matrix of sizes after another."""

from __future__ import annotations

import numpy as np
import pytest

import taccl
from taccl.problem.alltoallv import skewed_sizes

TWO_NODES = taccl.topologies.dgx_h100(2)


@pytest.mark.parametrize("skew", ["hot:64", "zipf:0.4", "zipf:0.8"])
def test_skew_costs_no_more_than_a_twentieth(skew):
    """Skewed exchanges on two nodes end within 5 % of the bound over all chunkings."""
    sizes = skewed_sizes(16, 64 * 10**6, skew)
    found = taccl.AllToAllV(TWO_NODES).schedule(sizes)
    bound = taccl.lower_bound(found.problem, divisible=True)
    assert found.finish <= 1.05 * bound.bound


def test_the_data_of_every_pair_arrive():
    """The chunks of a pair have its bytes, and the schedule is verified against them."""
    sizes = skewed_sizes(16, 10**6, "zipf:1", seed=3)
    found = taccl.AllToAllV(TWO_NODES, chunk_bytes=10**4).schedule(sizes)
    arrived = np.zeros_like(sizes)
    for chunk, num_bytes in zip(found.problem.collective.chunks, found.problem.chunk_bytes, strict=True):
        arrived[chunk.origins[0], chunk.destinations[0]] += num_bytes
    assert (arrived == sizes).all()
    assert taccl.verify(found).ok


def test_nothing_to_send_is_a_schedule():
    """A matrix of zeros has a schedule without sends."""
    assert taccl.AllToAllV(TWO_NODES).schedule(np.zeros((16, 16), int)).num_sends == 0


def test_more_orders_finish_no_later():
    """The best of several orders of sends is kept."""
    sizes = skewed_sizes(16, 10**6, "zipf:1.2")
    one, many = (taccl.AllToAllV(TWO_NODES, num_orders=n).schedule(sizes) for n in (1, 6))
    assert many.finish <= one.finish
