"""Jobs of ranks: a program, its size, number type and number of runs, checked before any rank starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from taccl._internal.arguments import Count, Natural, Seconds, Size, checked, known_word
from taccl._internal.names import listed
from taccl._internal.units import format_count, format_size, parse_size
from taccl.errors import InputError, VerificationError
from taccl.program.checks import check_runnable, fewest_chunks
from taccl.program.layout import layouts_of
from taccl.program.program import PROTOCOLS, Program

#: Types of numbers. ``"fixed32"``: real numbers in fixed point, which travel and are added up as int32.
DTYPES = ("int32", "int64", "float32", "float64", "fixed32")


@dataclass(frozen=True, slots=True)
class RunJob:
    """Request to execute a program; `make_job` makes and checks it.

    - `elements`: Number of elements of type `dtype` in a chunk.
    """

    program: Program
    elements: int
    dtype: str
    repetitions: int
    timeout_s: float
    seed: int

    @property
    def wire(self) -> np.dtype[Any]:
        """Data type of messages."""
        return _wire(self.dtype)

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one chunk."""
        return self.elements * self.wire.itemsize

    @property
    def size_bytes(self) -> int:
        """Bytes of the larger of one rank's input and output buffer."""
        return self.chunk_bytes * self.program.size_chunks

    def to_dict(self) -> dict[str, Any]:
        """The job as plain values."""
        return {**{name: getattr(self, name) for name in self.__slots__}, "program": self.program.to_dict()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RunJob:
        """The job that `to_dict` wrote."""
        return cls(**{**data, "program": Program.from_dict(data["program"])})


@checked
def make_job(
    program: Program,
    size: Size,
    *,
    dtype: str = "int32",
    repetitions: Count = 10,
    timeout_s: Seconds = 60.0,
    seed: Natural = 0,
) -> RunJob:
    """Make a checked request to execute a program.

    - `size`: Size of the larger of one rank's input and output buffer; rounded up to whole elements in every
      chunk.
    """
    known_word(dtype, DTYPES, "dtype")
    size_bytes = parse_size(size)
    _check(program)
    per_chunk = _wire(dtype).itemsize * program.size_chunks
    return RunJob(program, -(-size_bytes // per_chunk), dtype, repetitions, timeout_s, seed)


def check_memory(job: RunJob, available_bytes: int) -> None:
    """Raise `InputError` for a job whose buffers exceed the memory available on one machine."""
    room = PROTOCOLS[job.program.protocol]
    chunks = 0
    for rank in job.program.ranks:
        # Three copies of inputs and outputs: the program's, the expected ones, and those of MPI's collective.
        chunks += 3 * (rank.input_chunks + rank.output_chunks) + rank.scratch_chunks
        for block in rank.threadblocks:
            if block.send_to is not None:
                most = max((step.count for step in block.steps), default=0)
                chunks += room * min(most, fewest_chunks(job.program, job.size_bytes))
    needed = chunks * job.chunk_bytes
    if needed > available_bytes:
        raise InputError(
            f"found {format_size(job.size_bytes)}, for which {format_count(job.program.num_ranks, 'rank')} "
            f"need about {format_size(needed)} of memory; {format_size(available_bytes)} are free; give a "
            "smaller size",
            where="size",
        )


def _wire(dtype: str) -> np.dtype[Any]:
    return np.dtype("int32" if dtype == "fixed32" else dtype)


def _check(program: Program) -> None:
    """Raise `VerificationError` for faults that would make a rank exceed its buffers, or mix up messages."""
    if not program.num_ranks:
        raise InputError("found no ranks; expected at least one", where="program")
    faults = list(check_runnable(program, layouts_of(program)))
    if faults:
        lines = ["the program cannot be executed:", *listed(faults, most=5)]
        raise VerificationError("\n".join(lines), violations=faults)
