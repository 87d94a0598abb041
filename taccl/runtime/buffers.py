"""One rank's buffers: inputs that any rank can work out, and everything else as nobody expects it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taccl.program.execution import Memory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.collective import Collective
    from taccl.runtime.job import Job

__all__ = ["Buffers", "Data", "unwritten"]

#: No sum over the ranks comes near it, nor past what the type holds.
_LARGEST = 2**30


class Data:
    """What every rank contributes to every chunk, from a seed.

    Whole numbers are so small that no sum of all ranks' runs over; real ones are in [-1, 1).
    """

    def __init__(self, job: Job) -> None:
        assert job.program.collective is not None
        self.collective: Collective = job.program.collective
        self.dtype, self.elements, self.seed = np.dtype(job.dtype), job.elements, job.seed
        self._source = {each.chunk: each for each in self.collective.derivations}

    def contribution(self, rank: int, chunk: int) -> NDArray[Any]:
        """What a rank starts with of a chunk, (elements,); of a sum its own part."""
        random = np.random.default_rng((self.seed, chunk, rank if self.collective.combining else 0))
        if self.dtype.kind == "f":
            return random.uniform(-1, 1, self.elements).astype(self.dtype)
        limit = _LARGEST // self.collective.num_ranks
        return random.integers(-limit, limit, self.elements, dtype=self.dtype)

    def result(self, chunk: int) -> NDArray[Any]:
        """What the chunk must become: the sum of all contributions to it, where it is one."""
        own: list[NDArray[Any]] = []
        while chunk in self._source:
            own.append(self.contribution(self._source[chunk].rank, chunk))
            chunk = self._source[chunk].source
        origins = self.collective.chunks[chunk].origins
        own += [self.contribution(r, chunk) for r in (origins if self.collective.combining else origins[:1])]
        return np.asarray(np.sum(own, axis=0, dtype=self.dtype))

    @property
    def tolerance(self) -> float:
        """How far two sums of the same contributions may differ, element for element.

        Either is off by at most (n - 1) u n, for n numbers of at most 1 and a unit roundoff u = eps / 2
        (Higham, Accuracy and Stability of Numerical Algorithms, section 4.2).
        """
        if self.dtype.kind != "f" or not self.collective.combining:
            return 0.0
        n = self.collective.num_ranks
        return float(np.finfo(self.dtype).eps) * (n - 1) * n


class Buffers:
    """The input, output and scratch of one rank, each (chunks, elements).

    Attributes
    ----------
    memory : Memory
    given : (inputs, elements) array
        What `restore` puts into the input.
    """

    def __init__(self, job: Job, rank: int) -> None:
        mine, layouts = job.program.ranks[rank], job.layouts()
        where = None if layouts is None else layouts[rank]
        dtype = np.dtype(job.dtype)

        def rows(count: int) -> NDArray[Any]:
            return np.empty((count, job.elements), dtype)

        scratch = rows(mine.scratch_chunks)
        if job.program.in_place:
            begin_in, begin_out = (where.input_offset, where.output_offset) if where else (0, 0)
            end_in, end_out = begin_in + mine.input_chunks, begin_out + mine.output_chunks
            whole = rows(max(end_in, end_out))
            self.memory = Memory(
                whole[begin_in:end_in], whole[begin_out:end_out], scratch, (begin_in, begin_out)
            )
        else:
            self.memory = Memory(rows(mine.input_chunks), rows(mine.output_chunks), scratch, None)
        inputs = where.inputs if where else ()
        self.given = rows(len(inputs))
        if inputs:
            data = Data(job)
            for index, chunk in enumerate(inputs):
                self.given[index] = data.contribution(rank, chunk)

    def restore(self) -> None:
        """The inputs as they were, and everything else as nobody expects it."""
        for buffer in (self.memory.input, self.memory.output, self.memory.scratch):
            buffer.fill(unwritten(buffer.dtype))
        self.memory.input[: len(self.given)] = self.given


def unwritten(dtype: np.dtype[Any]) -> float | int:
    """What is in memory that nobody has written: not a number, or one that is no sum of inputs."""
    return float("nan") if dtype.kind == "f" else int(np.iinfo(dtype).min // 2 - 1)
