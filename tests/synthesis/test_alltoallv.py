"""Schedules of exchanges, one matrix of sizes after another."""

from __future__ import annotations

import numpy as np
import pytest

import taccl
from benchmarks.skew import one_heavy_pair, zipf

TWO_NODES = taccl.topologies.dgx_h100(2)


@pytest.mark.parametrize(
    "sizes",
    [one_heavy_pair(16), *(zipf(16, exponent) for exponent in (0.4, 0.8, 1.2))],
    ids=["one heavy pair", "Zipf 0.4", "Zipf 0.8", "Zipf 1.2"],
)
def test_skew_costs_no_more_than_a_twentieth(sizes):
    """Skewed exchanges on two nodes end within 5 % of the bound over all chunkings."""
    found = taccl.AllToAllV(TWO_NODES).schedule(sizes)
    bound = taccl.lower_bound(found.problem, divisible=True)
    assert found.finish <= 1.05 * bound.bound


def test_the_data_of_every_pair_arrive():
    """The chunks of a pair have its bytes, and the schedule is verified against them."""
    sizes = zipf(16, 1.0, 10**6, seed=3)
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
    sizes = zipf(16, 1.2, 10**6)
    one, many = (taccl.AllToAllV(TWO_NODES, num_orders=n).schedule(sizes) for n in (1, 6))
    assert many.finish <= one.finish
