"""Buffers of one rank: inputs that any rank can compute, and poison values elsewhere."""

from __future__ import annotations

from math import floor, log2
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.problem.collective import Collective
from taccl.program.layout import contributions, contributor, layouts_of
from taccl.runtime.job import RunJob

#: Bound on sums over all ranks, so that they neither overflow nor equal the poison value.
_LARGEST = 2**30


class Data:
    """Test data: the contribution of every rank to every chunk, generated from a seed.

    Integers are so small that no sum over all ranks overflows. Floats are in [-1, 1). In fixed point, the
    scale of numbers is the largest power of two for which no sum overflows.
    """

    def __init__(self, job: RunJob) -> None:
        assert job.program.collective is not None
        self.collective: Collective = job.program.collective
        self.dtype, self.elements, self.seed = job.wire, job.elements, job.seed
        #: `is_fixed`: True if numbers travel in fixed point.
        #: `scale`: The number that represents 1 in messages.
        self.is_fixed, self.scale = job.dtype == "fixed32", 1.0
        if self.is_fixed:
            from taccl.aggregation.fixed_point import largest_scale

            self.scale = 2.0 ** floor(log2(largest_scale(1.0, self.collective.num_ranks)))
        self._contributions = contributions(self.collective)

    def contribution(self, rank: int, chunk: int) -> NDArray[Any]:
        """Initial content of a chunk at a rank, one entry per element; for a sum, the rank's contribution."""
        if self.is_fixed:
            from taccl.aggregation.fixed_point import quantise

            real, ranks = self._real(rank, chunk), self.collective.num_ranks
            return quantise(real, self.scale, ranks=ranks, most=1.0)
        random = self._random(rank, chunk)
        if self.dtype.kind == "f":
            return random.uniform(-1, 1, self.elements).astype(self.dtype)
        limit = _LARGEST // self.collective.num_ranks
        return random.integers(-limit, limit, self.elements, dtype=self.dtype)

    def _random(self, rank: int, chunk: int) -> np.random.Generator:
        owner = contributor(self.collective, rank, chunk) if self.collective.combining else 0
        return np.random.default_rng((self.seed, chunk, owner))

    def _real(self, rank: int, chunk: int) -> NDArray[np.float64]:
        return self._random(rank, chunk).uniform(-1, 1, self.elements)

    def result(self, chunk: int) -> NDArray[Any]:
        """Required final content of a chunk: its data or, for a sum, the sum of all contributions.

        In fixed point it is the sum of the real numbers, times the scale.
        """
        if self.is_fixed:
            parts = [self._real(rank, part) for rank, part in self._contributions[chunk]]
            return np.asarray(np.sum(parts, axis=0) * self.scale)
        own = [self.contribution(rank, part) for rank, part in self._contributions[chunk]]
        return np.asarray(np.sum(own, axis=0, dtype=self.dtype))

    @property
    def tolerance(self) -> float:
        """Largest rounding difference between two sums of the same contributions, per element.

        A sum of n numbers of at most 1 is off by at most (n - 1) u n; u = eps / 2 is the unit roundoff.
        Source: Higham, Accuracy and Stability of Numerical Algorithms, section 4.2. In fixed point each of n
        numbers is off by at most half a unit.
        """
        if self.is_fixed:
            return self.collective.num_ranks / 2
        if self.dtype.kind != "f" or not self.collective.combining:
            return 0.0
        n = self.collective.num_ranks
        return float(np.finfo(self.dtype).eps) * (n - 1) * n


class RankMemory(NamedTuple):
    """One rank's buffers, (slots, elements) each."""

    input: NDArray[Any]
    output: NDArray[Any]
    scratch: NDArray[Any]


class Buffers:
    """Input, output and scratch buffers of one rank, each of shape (chunks, elements).

    - `given` ((inputs, elements) array): Input that `restore` writes.
    """

    def __init__(self, job: RunJob, rank: int) -> None:
        program, mine, where = job.program, job.program.ranks[rank], layouts_of(job.program)[rank]

        def rows(count: int) -> NDArray[Any]:
            return np.empty((count, job.elements), job.wire)

        # Input and output are views of one array: overlapping if in place, else one after the other.
        at_in, at_out = 0, mine.input_chunks
        if program.in_place:
            at_in, at_out = where.input_offset, where.output_offset
        end_in, end_out = at_in + mine.input_chunks, at_out + mine.output_chunks
        whole = rows(max(end_in, end_out))
        self.memory = RankMemory(whole[at_in:end_in], whole[at_out:end_out], rows(mine.scratch_chunks))
        inputs = () if program.collective is None else where.inputs
        self.given = rows(len(inputs))
        if inputs:
            data = Data(job)
            for index, chunk in enumerate(inputs):
                self.given[index] = data.contribution(rank, chunk)

    def restore(self) -> None:
        """Restore the inputs, and put poison values elsewhere."""
        for buffer in self.memory:
            buffer.fill(unwritten(buffer.dtype))
        self.memory.input[: len(self.given)] = self.given


def unwritten(dtype: np.dtype[Any]) -> float | int:
    """Poison value of unwritten memory: NaN, or an integer that no sum of inputs equals."""
    return float("nan") if dtype.kind == "f" else int(np.iinfo(dtype).min // 2 - 1)
