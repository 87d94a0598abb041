"""Run requests: sizes, element counts and refused values."""

import json
from dataclasses import replace

import numpy as np
import pytest

from taccl.errors import InputError, VerificationError
from taccl.runtime.buffers import Buffers, Data, unwritten
from taccl.runtime.job import RunJob, make_job
from tests.runtime.small_programs import program_for


def test_size_is_rounded_up_to_whole_numbers_in_every_chunk():
    """The size is rounded up to whole numbers in every chunk.

    1001 bytes over 4 chunks of int32 are 63 numbers each: 4 * 63 * 4 = 1008 bytes.
    """
    job = make_job(program_for("allgather"), 1001)
    assert (job.elements, job.size_bytes) == (63, 1008)


def test_round_trip():
    """A job survives conversion to JSON and back."""
    job = make_job(program_for("allreduce", in_place=True), "1KB", dtype="float64", seed=3)
    assert RunJob.from_dict(json.loads(json.dumps(job.to_dict()))) == job


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"dtype": "int8"}, "dtype"),
        ({"repetitions": 0}, "repetitions"),
        ({"repetitions": 1.5}, "repetitions"),
        ({"repetitions": "3"}, "repetitions"),
        ({"timeout_s": "5"}, "timeout_s"),
        ({"timeout_s": float("inf")}, "timeout_s"),
        ({"seed": -1}, "seed"),
        ({"seed": float("nan")}, "seed"),
    ],
)
def test_bad_values_are_refused(options, where):
    """The error for an invalid value of a job names the argument."""
    with pytest.raises(InputError) as refused:
        make_job(program_for("allgather"), "1KB", **options)
    assert refused.value.where == where


def test_buffers_that_do_not_fit_the_collective_are_refused():
    """An allgather of four chunks into an output of three is refused, as it would write past the output."""
    program = program_for("allgather")
    short = replace(program.ranks[0], output_chunks=3, threadblocks=())
    with pytest.raises(VerificationError, match="the output of rank 0 holds 3 chunks; expected 4"):
        make_job(replace(program, ranks=(short, *program.ranks[1:])), "1KB")


def test_no_sum_of_whole_numbers_runs_over():
    """Whole numbers are drawn so small that no sum overflows: at most 2**30 / 4 for four ranks."""
    job = make_job(program_for("allreduce"), "100KB")
    data = Data(job)
    assert all(np.abs(data.contribution(rank, 0)).max() <= 2**28 for rank in range(4))
    assert np.array_equal(data.result(1), sum(data.contribution(rank, 1) for rank in range(4)))


def test_restored_buffers_hold_inputs_and_poison():
    """In an in-place allgather the restored output holds the rank's own chunk; the other three are poisoned
    (NaN)."""
    job = make_job(program_for("allgather", in_place=True), "1KB", dtype="float32")
    buffers = Buffers(job, 2)
    buffers.memory.output[:] = 1
    buffers.restore()
    written = ~np.isnan(buffers.memory.output).all(axis=1)
    assert written.tolist() == [False, False, True, False]
    assert np.array_equal(buffers.memory.output[2], Data(job).contribution(2, 2))
    assert np.isnan(unwritten(np.dtype("float32")))
