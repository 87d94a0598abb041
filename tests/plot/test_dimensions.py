"""Utilisation of dimensions over time."""

import numpy as np
import pytest

import taccl
from taccl.errors import TopologyError
from taccl.plot.gantt import dimension_use
from taccl.problem.making import make_problem
from taccl.topologies import multidim, parse


def test_use_by_hand():
    """The use of each dimension over time is the one computed by hand.

    On 2 x 2 ranks at 1 MB/us: 8 us along dimension 1, 4 us along 2, then in reverse order.
    """
    topology = multidim("switch2@1000,switch2@1000", alpha_us=0)
    problem = make_problem(topology, "allreduce", chunk_bytes=4 * 10**6, chunks_per_rank=1)
    dims, time_us, share = dimension_use(
        taccl.baselines.hierarchical(problem, order=(0, 1), chunks=1), num_bins=6
    )
    assert dims.sizes == (2, 2) and time_us.tolist() == [4, 8, 12, 16, 20, 24]
    assert np.allclose(share, [[1, 1, 0, 0, 1, 1], [0, 0, 1, 1, 0, 0]])


@pytest.mark.parametrize("dims", ["switch4@100,ring3@50", "ring4@100,fully-connected3@50"])
def test_use_is_the_load(dims):
    """For listed and implicit schedules, the busy time of a dimension equals the load on it."""
    topology = parse(f"multidim:{dims}")
    size = 48 * 12 * 10**4
    listed = taccl.baselines.hierarchical(
        make_problem(topology, "allgather", size_bytes=size, chunks_per_rank=4), order=(1, 0), chunks=4
    )
    implicit = taccl.baselines.hierarchical(
        taccl.dimensions(topology.name), order=(1, 0), chunks=4, size=size, collective="allgather"
    )
    for schedule in (listed, implicit):
        found, time_us, share = dimension_use(schedule)
        loads = [float(load) * size / 10**6 for load in found.loads_us_per_mb((1, 0))]
        assert np.allclose(share.mean(axis=1) * time_us[-1], loads, rtol=1e-6)
        assert share.max() <= 1 + 1e-9


def test_a_picture_has_a_row_for_each_dimension():
    """Each row has the dimension's name and utilisation; other topologies are refused."""
    fixed = taccl.baselines.hierarchical(taccl.dimensions("multidim:switch4@100,ring3@50"), chunks=4)
    ax = taccl.plot.dimensions(fixed)
    assert [label.get_text().split("\n")[0] for label in ax.get_yticklabels()] == ["switch4@100", "ring3@50"]
    problem = make_problem(taccl.topologies.ndv2(1), "allgather", size_bytes=10**6)
    with pytest.raises(TopologyError, match="no product"):
        taccl.plot.dimensions(taccl.baselines.ring(problem, cut=False))
