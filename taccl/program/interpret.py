"""The interpreter: runs a program on arrays, and says whether any rank can hang, race or end up wrong.

It shares nothing with what lowers schedules but where chunks are in the user's buffers (`layout`). Inputs are
random whole numbers, so that an output is right only if exactly the right contributions were added; slots
that nobody has written yet hold random numbers, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taccl.arguments import checked
from taccl.program.checks import check_queues, check_steps
from taccl.program.execution import allocate_memory, execute
from taccl.program.faults import FAULT_KINDS, Fault, Interpretation
from taccl.program.layout import layout
from taccl.program.races import find_races

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from taccl.arguments import Natural
    from taccl.collective import Collective
    from taccl.program.execution import Memory
    from taccl.program.layout import RankLayout
    from taccl.program.program import Program

__all__ = ["FAULT_KINDS", "Fault", "Interpretation", "interpret"]

#: Two 64-bit numbers a chunk: that a wrong one looks right by chance is out of the question.
_ELEMENTS = 2


@checked
def interpret(
    program: Program, *, capacity: int | None = None, seed: Natural = 0, max_faults: int = 100
) -> Interpretation:
    """Run a program and judge it.

    Parameters
    ----------
    capacity : int, optional
        Chunks that a queue holds before a send must wait; default: 2 for Simple, 8 for LL and LL128. A
        program that runs with 1 runs with any.
    seed : int
        Of the inputs.
    max_faults : int
        No more than so many are listed.
    """
    faults = list(_first(check_steps(program), max_faults))
    faults += _first(check_queues(program), max_faults - len(faults))
    shared = any(fault.kind == "queue" and fault.steps for fault in faults)
    if shared or any(fault.kind == "step" for fault in faults):
        return Interpretation(tuple(faults), 0, outputs_checked=False)
    layouts = None if program.collective is None else layout(program.collective)
    if layouts is not None:
        faults += _first(_check_sizes(program, layouts), max_faults - len(faults))
        if any(fault.kind == "step" for fault in faults):
            return Interpretation(tuple(faults), 0, outputs_checked=False)
    random = np.random.default_rng(seed)

    def fill(rows: int, _rank: int) -> NDArray[np.int64]:
        return random.integers(-(2**62), 2**62, size=(rows, _ELEMENTS), dtype=np.int64)

    memory = allocate_memory(program, layouts, fill)
    data = None if program.collective is None else _Data(program.collective, random)
    if layouts is not None and data is not None:
        for rank, where in enumerate(layouts):
            for index, chunk in enumerate(where.inputs):
                memory[rank].input[index] = data.contribution(rank, chunk)
    execution = execute(program, memory, capacity=capacity)
    if execution.stuck is not None:
        faults.append(execution.stuck)
    faults += _first(find_races(program, execution), max_faults - len(faults))
    complete = execution.stuck is None and data is not None
    if complete and layouts is not None and data is not None:
        faults += _first(_check_outputs(program, layouts, memory, data), max_faults - len(faults))
        faults += _first(_check_inputs(program, layouts, memory, data), max_faults - len(faults))
    return Interpretation(tuple(faults), len(execution.done), outputs_checked=complete)


class _Data:
    """The random contribution of every rank to every chunk, and what the chunks must become."""

    def __init__(self, collective: Collective, random: np.random.Generator) -> None:
        self.collective = collective
        shape = (collective.num_chunks, _ELEMENTS)
        self.adds = collective.combining
        self.of_chunk = random.integers(-(2**62), 2**62, size=shape, dtype=np.int64)
        self.of_rank = random.integers(
            -(2**62), 2**62, size=(collective.num_ranks, _ELEMENTS), dtype=np.int64
        )
        self.source = {each.chunk: each for each in collective.derivations}

    def contribution(self, rank: int, chunk: int) -> NDArray[np.int64]:
        """What a rank starts with of a chunk: of a sum its own part."""
        # Any function of both without a pattern that could cancel out.
        value: NDArray[np.int64] = self.of_chunk[chunk]
        return value * (self.of_rank[rank] | 1) if self.adds else value

    def contributors(self, chunk: int) -> tuple[int, ...]:
        """The ranks whose contributions are summed."""
        ranks: list[int] = []
        while chunk in self.source:
            ranks.append(self.source[chunk].rank)
            chunk = self.source[chunk].source
        origins = self.collective.chunks[chunk].origins
        return (*ranks, *(origins if self.adds else origins[:1]))

    def parts(self, chunk: int) -> dict[int, NDArray[np.int64]]:
        """The contribution of each of them to the output."""
        own: dict[int, NDArray[np.int64]] = {}
        while chunk in self.source:
            own[self.source[chunk].rank] = self.contribution(self.source[chunk].rank, chunk)
            chunk = self.source[chunk].source
        for rank in self.contributors(chunk):
            own[rank] = self.contribution(rank, chunk)
        return own


def _first(faults: Iterator[Fault], count: int) -> list[Fault]:
    found: list[Fault] = []
    for fault in faults:
        if len(found) >= count:
            break
        found.append(fault)
    return found


def _check_sizes(program: Program, layouts: tuple[RankLayout, ...]) -> Iterator[Fault]:
    """Faults of buffers that are too small for the collective."""
    for rank, (mine, where) in enumerate(zip(program.ranks, layouts, strict=True)):
        for word, found, expected in (
            ("input", mine.input_chunks, len(where.inputs)),
            ("output", mine.output_chunks, len(where.outputs)),
        ):
            if found < expected:
                yield Fault(
                    "step", f"the {word} of rank {rank} holds {found} chunks; expected {expected}", rank=rank
                )


def _check_outputs(
    program: Program, layouts: tuple[RankLayout, ...], memory: list[Memory], data: _Data
) -> Iterator[Fault]:
    expected: dict[int, dict[int, NDArray[np.int64]]] = {}
    for rank, where in enumerate(layouts):
        for index, chunk in enumerate(where.outputs):
            if chunk not in expected:
                expected[chunk] = data.parts(chunk)
            found = memory[rank].output[index]
            if not np.array_equal(found, _sum(expected[chunk])):
                yield Fault(
                    "output",
                    f"output[{index}] of rank {rank} should hold chunk {chunk}, and holds "
                    f"{_describe(found, expected[chunk], data)}",
                    rank=rank,
                    chunk=chunk,
                )


def _sum(parts: dict[int, NDArray[np.int64]]) -> Any:
    return np.sum(list(parts.values()), axis=0, dtype=np.int64)


def _describe(found: NDArray[np.int64], parts: dict[int, NDArray[np.int64]], data: _Data) -> str:
    """What is there instead, where a simple slip explains it."""
    whole = _sum(parts)
    if len(parts) > 1:
        for rank, part in parts.items():
            if np.array_equal(found, whole - part):
                return f"the sum without the contribution of rank {rank}"
            if np.array_equal(found, whole + part):
                return f"the sum with the contribution of rank {rank} counted twice"
            if np.array_equal(found, part):
                return f"the contribution of rank {rank} alone"
    if not data.adds:
        matches = np.flatnonzero((data.of_chunk == found).all(axis=1))
        if len(matches):
            return f"chunk {matches[0]}"
    return "something else"


def _check_inputs(
    program: Program, layouts: tuple[RankLayout, ...], memory: list[Memory], data: _Data
) -> Iterator[Fault]:
    """Faults of inputs that were changed out of place; in place the whole of the buffer may be used."""
    if program.in_place:
        return
    for rank, where in enumerate(layouts):
        for index, chunk in enumerate(where.inputs):
            if not np.array_equal(memory[rank].input[index], data.contribution(rank, chunk)):
                yield Fault(
                    "input",
                    f"input[{index}] of rank {rank}, its chunk {chunk}, was overwritten; out of place the "
                    "input belongs to the user",
                    rank=rank,
                    chunk=chunk,
                )
