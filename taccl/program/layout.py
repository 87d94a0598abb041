"""Positions of a collective's chunks in the user's buffers, as nccl-tests lays them out.

One rule gives every layout: a rank's input holds the chunks that it starts with, and its output those that
it must end with, both in order of chunk. In place, the smaller buffer lies inside the larger, at the position
of its own chunks there. (For allgather and gather the input is inside the output; for reduce-scatter and
scatter the output is inside the input.) If there is no such position, both buffers begin together.

If chunks derive from one another (scan), a rank's input holds its contributions to the chunks that it makes,
and its output these chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from taccl.problem.collective import Collective
from taccl.program.program import Program, Slot


@dataclass(frozen=True, slots=True)
class RankLayout:
    """Chunk of each slot of one rank's input and output, and their offsets in the common buffer in place.

    - `inputs`, `outputs`: Chunk of each slot.
    - `input_offset`, `output_offset`: Number of chunks before each buffer in the common one.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    input_offset: int = 0
    output_offset: int = 0

    def canonical(self, slot: Slot, *, in_place: bool) -> Slot:
        """Unique slot for a place of memory: in place, a slot of the larger buffer if it lies there.

        If both buffers are equally large, it is the output.
        """
        whole, place = self.place(slot, in_place=in_place)
        if whole == slot.buffer:
            return slot
        ours, theirs = self.input_offset, self.output_offset
        larger = "input" if len(self.inputs) > len(self.outputs) else "output"
        begin, length = (ours, len(self.inputs)) if larger == "input" else (theirs, len(self.outputs))
        return Slot(larger, place - begin) if begin <= place < begin + length else slot

    def place(self, slot: Slot, *, in_place: bool) -> Slot:
        """Memory place of a slot: the slot itself, or in place its position in the user's common buffer."""
        if not in_place or slot.buffer == "scratch":
            return slot
        begin = self.input_offset if slot.buffer == "input" else self.output_offset
        return Slot("user", begin + slot.offset)


def layout(collective: Collective) -> tuple[RankLayout, ...]:
    """Layout of each rank's buffers.

    A chunk from which a rank derives another one is not among its outputs.
    """
    inputs: list[list[int]] = [[] for _ in range(collective.num_ranks)]
    outputs: list[list[int]] = [[] for _ in range(collective.num_ranks)]
    used_up = {(each.source, each.rank) for each in collective.derivations}
    for index, chunk in enumerate(collective.chunks):
        for rank in collective.starts[index]:
            inputs[rank].append(index)
        for rank in chunk.destinations:
            if (index, rank) not in used_up:
                outputs[rank].append(index)
    return tuple(_with_offsets(tuple(i), tuple(o)) for i, o in zip(inputs, outputs, strict=True))


def layouts_of(program: Program) -> tuple[RankLayout, ...]:
    """Layout of each rank's buffers of a program; without a collective, every slot holds its own chunk."""
    if program.collective is not None:
        return layout(program.collective)
    return tuple(
        RankLayout(tuple(range(rank.input_chunks)), tuple(range(rank.output_chunks)))
        for rank in program.ranks
    )


def contributions(collective: Collective) -> list[tuple[tuple[int, int], ...]]:
    """(rank, chunk) contributions to each chunk; only one origin if the collective does not reduce."""
    derived = {each.chunk: each for each in collective.derivations}
    made = []
    for chunk in range(collective.num_chunks):
        parts: list[tuple[int, int]] = []
        while chunk in derived:
            parts.append((derived[chunk].rank, chunk))
            chunk = derived[chunk].source
        origins = collective.chunks[chunk].origins
        made.append((*parts, *((rank, chunk) for rank in (origins if collective.combining else origins[:1]))))
    return made


def _with_offsets(inputs: tuple[int, ...], outputs: tuple[int, ...]) -> RankLayout:
    inside = _position(inputs, outputs)
    if inside is not None:
        return RankLayout(inputs, outputs, input_offset=inside)
    return RankLayout(inputs, outputs, output_offset=_position(outputs, inputs) or 0)


def _position(part: Sequence[int], whole: Sequence[int]) -> int | None:
    """Index of `part` as a contiguous run in `whole`; None if absent or empty."""
    if not part or part[0] not in whole:
        return None
    begin = whole.index(part[0])
    return begin if tuple(whole[begin : begin + len(part)]) == tuple(part) else None
