"""Reference outputs, and the comparison of a run's outputs with them."""

import numpy as np
import pytest

from taccl.problem.collectives import COLLECTIVES, allgather, broadcast, custom, make, scatter
from taccl.runtime.buffers import Buffers
from taccl.runtime.job import make_job
from taccl.runtime.reference import counterpart, expected_output, find_wrong
from tests.arguments import arguments_for
from tests.runtime.small_programs import program_for


@pytest.mark.parametrize("name", [each for each in COLLECTIVES if not each.startswith("multi-root")])
def test_mpi_has_a_counterpart(name):
    """Collectives are matched with MPI's own, also with several chunks per rank; MPI has none with several
    roots."""
    assert counterpart(make(name, 4, chunks_per_rank=3, **arguments_for(name, 4))) is not None


@pytest.mark.parametrize(
    "collective",
    [
        allgather(4).among([3, 1, 0, 2], num_ranks=4),
        allgather(2).among([0, 2], num_ranks=4),
        custom(4, precondition={0: [1]}, postcondition={0: [0, 3]}),
        custom(2, precondition={0: [0], 1: [1]}, postcondition={0: [0], 1: [0, 1]}, name="allgather"),
    ],
    ids=["other order", "group", "custom", "by name only"],
)
def test_collectives_with_other_conditions_have_no_counterpart(collective):
    """A collective with a standard name but other conditions has no MPI counterpart."""
    assert counterpart(collective) is None


@pytest.mark.parametrize("collective", [broadcast(4, root=2), scatter(4, root=3, chunks_per_rank=2)])
def test_roots_are_found(collective):
    """The root passed to MPI is the rank where the chunks start."""
    roots = []

    class Recorder:
        rank = 0

        def Bcast(self, _output, root):
            roots.append(root)

        def Scatter(self, _given, _output, root):
            roots.append(root)

    counterpart(collective).run(Recorder(), np.zeros((0, 1)), np.zeros((1, 1)))
    assert roots == [collective.chunks[0].origins[0]]


def wrong(name, spoil, *, dtype="int32"):
    """Faults found at rank 1 of four after its correct output was changed by `spoil`."""
    job = make_job(program_for(name), "1KB", dtype=dtype)
    buffers, expected = Buffers(job, 1), expected_output(job, 1)
    buffers.restore()
    tolerance = 12 * np.finfo(dtype).eps if dtype.startswith("float") else 0.0
    buffers.memory.output[: len(expected)] = expected
    spoil(buffers.memory)
    return find_wrong(job, 1, buffers, expected, tolerance=tolerance, run=0, by="MPI_X")


def test_one_bit_is_enough():
    """One flipped bit of an integer is found, and its element is named."""

    def spoil(memory):
        memory.output[2, 5] ^= 1

    (found,) = wrong("allgather", spoil)
    assert (found.rank, found.slot, found.chunk) == (1, 2, 2)
    assert "1 of 63 elements differ from MPI_X; element 5 is" in found.found


def test_another_chunk_is_recognised():
    """A chunk in the wrong slot is recognised as the other chunk."""

    def spoil(memory):
        memory.output[0] = memory.output[3]

    (found,) = wrong("allgather", spoil)
    assert found.found == "it holds chunk 3"


@pytest.mark.parametrize(("off", "is_wrong"), [(5e-7, False), (1e-3, True), (float("nan"), True)])
def test_floats_may_be_off_by_the_tolerance(off, is_wrong):
    """float32 sums may be off by 12 eps, 1.4e-6; NaN is always wrong."""

    def spoil(memory):
        memory.output[0, 0] += off

    assert bool(wrong("allreduce", spoil, dtype="float32")) is is_wrong
