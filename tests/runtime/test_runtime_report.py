"""Reports of executions."""

import json
from dataclasses import replace

import pytest

from taccl.errors import ExecutionError, VerificationError
from taccl.program.program import StepAddress
from taccl.runtime.report import Execution, Times, Wait, WrongChunk

RIGHT = Execution(
    program="ring", collective="allreduce", num_ranks=4, num_hosts=1, crowded=False, size_bytes=10**6,
    dtype="int32", in_place=False, busbw_factor=1.5, timeout_s=60.0, compared_with="MPI_Allreduce",
    tolerance=0.0, num_wrong=0, wrong=(), waits=(), cause="", idle_s=0.0,
    times=Times((300.0, 100.0, 200.0)), mpi_times=Times((400.0,)), versions={"mpi": "MPICH"},
)  # fmt: skip
WAIT = Wait(StepAddress(1, 0, 2), "receive output[0]", "a chunk from rank 0 to rank 1 over channel 3")
HELD = replace(WAIT, address=StepAddress(2, 0, 2))
STUCK = replace(RIGHT, waits=(WAIT, HELD), idle_s=59.0, times=None)
WRONG = replace(RIGHT, num_wrong=25, wrong=(WrongChunk(2, "output", 1, 7, "it was never written", 0),) * 20)


@pytest.mark.parametrize("execution", [RIGHT, STUCK, WRONG], ids=["right", "stuck", "wrong"])
def test_round_trip(execution):
    """A report survives a round trip through JSON."""
    assert Execution.from_dict(json.loads(json.dumps(execution.to_dict()))) == execution


def test_times_and_bandwidths():
    """Bandwidths of a report follow from the median time.

    1 MB in 200 us is an algbw of 5 GB/s; the busbw of an allreduce on four ranks is 3/2 of that.
    """
    assert (RIGHT.times.median_us, RIGHT.times.min_us) == (200.0, 100.0)
    assert RIGHT.algbw_gb_per_s(RIGHT.times) == pytest.approx(5.0)
    assert RIGHT.busbw_gb_per_s(RIGHT.times) == pytest.approx(7.5)


def test_right():
    """The report of a correct run raises nothing."""
    assert RIGHT.ok
    RIGHT.raise_if_failed()
    assert "agrees with MPI_Allreduce, 200 us (MPI's own 400 us)" in repr(RIGHT)


def test_stuck():
    """A stuck run names the waiting ranks and their steps."""
    with pytest.raises(ExecutionError, match="no step had run for 59.0 s; waiting: ranks 1-2 of 4"):
        STUCK.raise_if_failed()
    assert "(rank 1, threadblock 0, step 2), receive output[0]: waits for a chunk" in repr(STUCK)


def test_slow_is_not_stuck():
    """If steps still completed at the time limit, the report suggests a longer limit."""
    assert "a longer time limit may suffice" in replace(STUCK, idle_s=0.1).failure()


def test_wrong():
    """At most 20 violations are listed; 25 wrong chunks are counted."""
    with pytest.raises(VerificationError, match="25 chunks wrong, at 1 rank of 4") as raised:
        WRONG.raise_if_failed()
    assert len(raised.value.violations) == 20
    assert "... and 15 more" in str(raised.value)
