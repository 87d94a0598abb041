"""The interpreter: runs a program on arrays, and says whether any rank can hang, race or end up wrong.

It shares nothing with what lowers schedules but where chunks are in the user's buffers (`layout`). Inputs are
random whole numbers, so that an output is right only if exactly the right contributions were added; slots
that nobody has written yet hold random numbers, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taccl.arguments import checked
from taccl.collective import Collective
from taccl.errors import VerificationError
from taccl.names import listed
from taccl.program.checks import Fault, check_queues, check_sizes, check_steps
from taccl.program.execution import Memory, execute, rank_memory
from taccl.program.layout import contributions, layout
from taccl.program.program import Program
from taccl.program.races import find_races
from taccl.units import format_count

#: Two 64-bit numbers a chunk: that a wrong one looks right by chance is out of the question.
_ELEMENTS = 2
#: No more faults than these are listed.
_MOST_FAULTS = 100


#: Every kind of fault that `interpret` reports.
FAULT_KINDS = (
    "step",  # a step that no rank can run: a slot past its buffer, a missing peer, an unknown dependency
    "queue",  # two threadblocks at one end of a queue, or not as much received, in all or at once, as sent
    "deadlock",  # steps that wait for each other, or for what never comes
    "race",  # two accesses to one slot, one of them a write, that nothing orders
    "output",  # an output slot without what the collective asks for
    "input",  # a slot of the user's input that the program overwrote, though it is not its output
)


@dataclass(frozen=True, slots=True, repr=False)
class Interpretation:
    """What `interpret` found.

    Parameters
    ----------
    num_steps : int
        Steps that were run to their end.
    outputs_checked : bool
        Whether it is known what the outputs must be, and everything ran so that they could be looked at.
    """

    faults: tuple[Fault, ...]
    num_steps: int
    outputs_checked: bool

    @property
    def ok(self) -> bool:
        """Whether the program has no fault."""
        return not self.faults

    def raise_if_failed(self) -> None:
        """Do nothing of a correct program.

        Raises
        ------
        VerificationError
            If there are faults: their number, and the first ten.
        """
        if not self.ok:
            raise VerificationError(self._text(), violations=self.faults)

    def _text(self) -> str:
        kinds = Counter(each.kind for each in self.faults)
        tally = ", ".join(f"{kind} {kinds[kind]}" for kind in FAULT_KINDS if kinds[kind])
        head = f"the program has {format_count(len(self.faults), 'fault')} ({tally}):"
        return "\n".join([head, *listed(self.faults)])

    def __repr__(self) -> str:
        unchecked = "" if self.outputs_checked else ", outputs not checked"
        verdict = "ok" if self.ok else self._text()
        return f"Interpretation({format_count(self.num_steps, 'step')} run{unchecked}: {verdict})"


@checked
def interpret(program: Program, *, capacity: int | None = None) -> Interpretation:
    """Run a program and judge it.

    Parameters
    ----------
    capacity : int, optional
        Chunks that a queue holds before a send must wait; default: 2 for Simple, 8 for LL and LL128. A
        program that runs with 1 runs with any.
    """
    faults: list[Fault] = []

    def report(found: Iterator[Fault]) -> None:
        faults.extend(islice(found, _MOST_FAULTS - len(faults)))

    random = np.random.default_rng(0)
    data = None if program.collective is None else _Data(program.collective, random)
    layouts = () if data is None else data.layouts
    report(check_steps(program))
    report(check_queues(program))
    report(check_sizes(program, layouts))
    if any(fault.kind == "step" or (fault.kind == "queue" and fault.steps) for fault in faults):
        return Interpretation(tuple(faults), 0, outputs_checked=False)
    rows = partial(_numbers, random)
    memory = [
        rank_memory(program, r, layouts[r] if layouts else None, rows) for r in range(program.num_ranks)
    ]
    if data is not None:
        for rank, where in enumerate(layouts):
            for index, chunk in enumerate(where.inputs):
                memory[rank].input[index] = data.contribution(rank, chunk)
    execution = execute(program, memory, capacity=capacity)
    if execution.stuck is not None:
        faults.append(execution.stuck)
    report(find_races(program, execution))
    if execution.stuck is not None or data is None:
        return Interpretation(tuple(faults), len(execution.done), outputs_checked=False)
    report(_check_outputs(memory, data))
    if not program.in_place:
        report(_check_inputs(memory, data))
    return Interpretation(tuple(faults), len(execution.done), outputs_checked=True)


def _numbers(random: np.random.Generator, rows: int) -> NDArray[np.int64]:
    return random.integers(-(2**62), 2**62, size=(rows, _ELEMENTS), dtype=np.int64)


class _Data:
    """Where chunks are, the random contribution of every rank to each, and what they must become."""

    def __init__(self, collective: Collective, random: np.random.Generator) -> None:
        self.adds = collective.combining
        self.of_chunk = _numbers(random, collective.num_chunks)
        self.of_rank = _numbers(random, collective.num_ranks)
        self.layouts, self.contributions = layout(collective), contributions(collective)

    def contribution(self, rank: int, chunk: int) -> NDArray[np.int64]:
        """What a rank starts with of a chunk: of a sum its own part."""
        # Any function of both without a pattern that could cancel out.
        value: NDArray[np.int64] = self.of_chunk[chunk]
        return value * (self.of_rank[rank] | 1) if self.adds else value


def _check_outputs(memory: list[Memory], data: _Data) -> Iterator[Fault]:
    expected: dict[int, dict[int, NDArray[np.int64]]] = {}
    for rank, where in enumerate(data.layouts):
        for index, chunk in enumerate(where.outputs):
            if chunk not in expected:
                own = data.contributions[chunk]
                expected[chunk] = {origin: data.contribution(origin, part) for origin, part in own}
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


def _check_inputs(memory: list[Memory], data: _Data) -> Iterator[Fault]:
    """Faults of inputs that were changed out of place; in place the whole of the buffer may be used."""
    for rank, where in enumerate(data.layouts):
        for index, chunk in enumerate(where.inputs):
            if not np.array_equal(memory[rank].input[index], data.contribution(rank, chunk)):
                yield Fault(
                    "input",
                    f"input[{index}] of rank {rank}, its chunk {chunk}, was overwritten; out of place the "
                    "input belongs to the user",
                    rank=rank,
                    chunk=chunk,
                )
