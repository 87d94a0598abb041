"""Sums of switches and servers on real ranks: exact for integers, within the error bound for fixed point."""

import numpy as np
import pytest

import taccl
from taccl.problem.collectives import exchange
from taccl.runtime.buffers import Data
from taccl.runtime.job import make_job
from taccl.topologies import in_network, rack


def switch_schedule():
    """Allreduce of three workers with in-network reduction; the root rank plays the switch."""
    problem = taccl.make_problem(in_network(3), "allreduce", size_bytes="1MB", chunks_per_rank=1)
    return taccl.synthesize(problem, in_network="only").schedule


def exchange_schedule():
    """Exchange of two workers and a server without contributions of its own."""
    problem = taccl.make_problem(rack(2, 1), exchange(2, 1, update_us_per_mb=1), size_bytes="1MB")
    return taccl.synthesize(problem).schedule


def test_fixed_point_is_judged_by_the_sums_of_real_numbers():
    """A fixed-point sum of three ranks is off by at most 3/2 of a unit; contributions are 32-bit integers."""
    data = Data(make_job(taccl.lower(switch_schedule()), "12KB", dtype="fixed32"))
    sums = sum(data.contribution(rank, 0).astype(np.int64) for rank in range(3))
    assert data.contribution(0, 0).dtype == np.int32
    assert abs(sums).max() < 2**31
    assert data.tolerance == 1.5
    assert 0 < np.abs(sums - data.result(0)).max() <= 1.5


@pytest.mark.slow
@pytest.mark.parametrize(("make", "dtype"), [(switch_schedule, "int32"), (exchange_schedule, "fixed32")])
def test_ranks_agree_with_what_is_due(make, dtype, ranks):
    """Every output of every rank is correct in every repetition."""
    found = taccl.execute(make(), "16KB", dtype=dtype, repetitions=2)
    assert found.ok, found.failure()
    assert found.tolerance == (0 if dtype == "int32" else pytest.approx(1.5 / 2**29))
