"""Steps executed by MPI ranks."""

import pytest

import taccl
from taccl.runtime.step import execute_step
from taccl.workload import Rates, overlap, schedule_workload
from tests.fuzzing import thinned
from tests.workload.test_replay import block, momentum, sliced
from tests.workload.test_torch_program import pipeline

pytestmark = pytest.mark.slow
RANKS = taccl.topologies.fully_connected(4, alpha_us=1, bandwidth_gb_per_s=10)


def squares(num_ranks=4):
    """A workload of purely local work: each rank squares its slice."""
    return taccl.Workload("squares", num_ranks).input("x", (8,), layout="sliced(0)").then("y", "square", "x")


@pytest.mark.parametrize(
    ("plain", "transformed"),
    [
        *thinned([(momentum, lambda: sliced(momentum())), (block, block), (squares, squares)]),
        (pipeline, lambda: overlap(pipeline(), ["y", "sum", "z", "sent", "out"], tiles=2)),
    ],
)
def test_ranks_give_what_the_program_says(plain, transformed, ranks):
    """Ranks that execute a transformed workload end with the values of the untransformed one.

    The cases are a product and its sum, a sliced update in tiles, local work without sends, and a tiled
    pipeline stage with tensor-parallel ranks.
    """
    step = schedule_workload(transformed(), RANKS, rates=Rates(1, 100))
    assert execute_step(step, reference=plain()) < 1e-12


def test_another_program_differs(mpiexec):
    """The comparison can fail: a reference that doubles in place of squaring has other values. The ranks are started for it."""
    pair = taccl.topologies.fully_connected(2, alpha_us=1, bandwidth_gb_per_s=10)
    step = schedule_workload(squares(2), pair, rates=Rates(1, 100))
    other = taccl.Workload("other", 2, squares(2).inputs).then("y", "add", "x", "x")
    assert execute_step(step, reference=other) > 1e-3
