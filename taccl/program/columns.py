"""Steps of a program as columns of numbers, for checks and symbolic runs of programs of many steps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from taccl._internal.arrays import Flags, Ints
from taccl._internal.caching import cached
from taccl.program.program import BUFFERS, OPERATIONS, Block, Program, Queue, Slot, Step, StepAddress

#: Numbers of buffers and operations; -1 stands for no slot, and for an unknown operation.
_BUFFER_NUMBERS = {name: number for number, name in enumerate(BUFFERS)}
_OPERATION_NUMBERS = {name: number for number, name in enumerate(OPERATIONS)}
#: Number of a buffer with an unknown name.
_UNKNOWN = -2
#: (num_operations + 1, 4): parts of each operation; the last row, all False, is for an unknown one.
_PARTS = np.array([*OPERATIONS.values(), (False,) * 4], dtype=np.bool_)
#: Largest number of a column; larger numbers, which no check accepts, are reduced to it.
_MOST = 2**63 - 1


class Slots(NamedTuple):
    """First slot that each step reads, or writes; the buffer is an index in `BUFFERS`, or -1 for no slot."""

    buffer: Ints
    offset: Ints


class StepColumns(NamedTuple):
    """Steps of a program as columns, in order of rank, threadblock and position.

    Steps and threadblocks are numbered over all ranks.

    - `blocks`: Rank and number of each threadblock.
    - `first`, (num_blocks + 1,): Steps ``first[b]:first[b + 1]`` are those of threadblock b.
    - `first_block`, (num_ranks + 1,): Threadblocks ``first_block[r]:first_block[r + 1]`` are those of rank r.
    - `queues`: All queues, in order.
    - `outgoing`, `incoming`, (num_blocks,): Queue that each threadblock sends into, or receives from; -1 for
      none.
    - `block`, (num_steps,): Threadblock of each step.
    - `operation`, (num_steps,): Index in `OPERATIONS`; -1 for an unknown operation.
    - `parts`, (num_steps, 4): Fields of `OperationParts` of each step.
    - `src`, `dst`: Slots of each step.
    - `num_chunks`, (num_steps,): Number of chunks that a step moves, at least 1 if the step is valid.
    - `first_need`, (num_steps + 1,): Steps ``needs[first_need[s]:first_need[s + 1]]`` are those on which step
      s depends; -1 for a step that does not exist.
    """

    blocks: list[Block]
    first: Ints
    first_block: Ints
    queues: list[Queue]
    outgoing: Ints
    incoming: Ints
    block: Ints
    operation: Ints
    parts: Flags
    src: Slots
    dst: Slots
    num_chunks: Ints
    first_need: Ints
    needs: Ints

    @property
    def rank(self) -> Ints:
        """Rank of each step."""
        of_block = np.array([rank for rank, _ in self.blocks], dtype=np.int64)
        return of_block[self.block]

    def needs_of(self) -> list[list[int]]:
        """Steps on which each step depends."""
        ends, needs = self.first_need.tolist(), self.needs.tolist()
        return [needs[begin:end] for begin, end in pairwise(ends)]

    def address(self, step: int) -> StepAddress:
        """Address of a step."""
        (found,) = self.addresses([step])
        return found

    def addresses(self, steps: Sequence[int]) -> list[StepAddress]:
        """Addresses of several steps."""
        index = np.array(steps, dtype=np.int64)
        of_steps: list[int] = self.block[index].tolist()
        positions: list[int] = (index - self.first[of_steps]).tolist()
        return [
            StepAddress(*self.blocks[block], position)
            for block, position in zip(of_steps, positions, strict=True)
        ]


@cached
def columns_of(program: Program) -> StepColumns:
    """Columns of a program's steps."""
    blocks, threadblocks = [], []
    for block, threadblock in program.threadblocks():
        blocks.append(block)
        threadblocks.append(threadblock)
    first = _starts([len(each.steps) for each in threadblocks])
    first_block = _starts([len(each.threadblocks) for each in program.ranks])
    steps = [step for threadblock in threadblocks for step in threadblock.steps]
    ends = [
        (each.sends_into(rank), each.receives_from(rank))
        for (rank, _), each in zip(blocks, threadblocks, strict=True)
    ]
    queues = sorted({queue for pair in ends for queue in pair if queue is not None})
    numbers: dict[Queue | None, int] = {queue: number for number, queue in enumerate(queues)}
    outgoing, incoming = (_column([numbers.get(pair[i], -1) for pair in ends]) for i in (0, 1))
    operation = _column([_OPERATION_NUMBERS.get(step.operation, -1) for step in steps])
    of_step = np.repeat(np.arange(len(blocks)), np.diff(first))
    first_need, needs = _needs(steps, blocks, of_step, first, first_block)
    return StepColumns(
        blocks, first, first_block, queues, outgoing, incoming, of_step, operation, _PARTS[operation],
        _slots([step.src for step in steps]), _slots([step.dst for step in steps]),
        _column([step.count for step in steps]), first_need, needs,
    )  # fmt: skip


def _column(values: Sequence[int]) -> Ints:
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return np.array([max(-_MOST, min(_MOST, value)) for value in values], dtype=np.int64)


def _starts(counts: Sequence[int]) -> Ints:
    """Start of each group of items, and the end of the last, from the number of items in each."""
    return np.concatenate([[0], np.cumsum(_column(counts))]).astype(np.int64)


def _slots(slots: Sequence[Slot | None]) -> Slots:
    number = _BUFFER_NUMBERS.get
    return Slots(
        _column([-1 if slot is None else number(slot.buffer, _UNKNOWN) for slot in slots]),
        _column([0 if slot is None else slot.offset for slot in slots]),
    )


def _needs(
    steps: Sequence[Step], blocks: Sequence[Block], block: Ints, first: Ints, first_block: Ints
) -> tuple[Ints, Ints]:
    """Columns `first_need` and `needs` of `StepColumns`: the steps for which each step waits."""
    depends = [step.depends for step in steps]
    first_need = _starts([len(each) for each in depends])
    pairs = _column([number for each in depends for pair in each for number in pair]).reshape(-1, 2)
    of_step = np.repeat(np.arange(len(steps)), np.diff(first_need))
    rank_of_block = np.array([rank for rank, _ in blocks], dtype=np.int64)
    rank = rank_of_block[block[of_step]]
    begin, end = first_block[rank], first_block[rank + 1]
    other = np.where((pairs[:, 0] >= 0) & (pairs[:, 0] < end - begin), begin + pairs[:, 0], -1)
    begin, end = first[other], first[other + 1]
    is_known = (other >= 0) & (pairs[:, 1] >= 0) & (pairs[:, 1] < end - begin)
    return first_need, np.where(is_known, begin + pairs[:, 1], -1)
