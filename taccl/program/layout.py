"""Positions of chunks in the user's buffers, as in nccl-tests, and allocation of slots to values over time.

One rule gives every layout: a rank's input holds the chunks that it starts with, and its output those that
it must end with, both in order of chunk. In place, the smaller buffer lies inside the larger, at the position
of its own chunks there. (For allgather and gather the input is inside the output; for reduce-scatter and
scatter the output is inside the input.) If there is no such position, both buffers begin together.

If chunks derive from one another (scan), a rank's input holds its contributions to the chunks that it makes,
and its output holds these chunks.

A *value* is the content of a chunk at a rank from one arrival to the next. It needs its slot from the end of
the send that delivers it to the end of the last send that reads it. If it is the rank's output, it needs the
slot to the end. Values are placed in order of arrival, each in the first slot that fits: the user's buffers
where they are free, else scratch. For intervals of single chunks, no assignment needs less scratch.

A slot is given to a new value only if the last read of the old one ends strictly before the new one arrives.
So no receive ever waits for a send that could wait for it. Two ranks that exchange partial sums at the same
time write them to other slots than the old ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from taccl.problem.collective import Collective
from taccl.program.program import Program, Slot


@dataclass(frozen=True, slots=True)
class RankLayout:
    """Chunks in the slots of one rank's input and output, and the offsets of both in their common buffer.

    - `inputs`, `outputs`: Chunk of each slot.
    - `input_offset`, `output_offset`: Number of chunks before each buffer in the common one, if in place.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    input_offset: int = 0
    output_offset: int = 0

    def canonical(self, slot: Slot, *, in_place: bool) -> Slot:
        """Slot by which to name the memory of `slot`; in place, a slot of the larger buffer where possible.

        If both buffers are equally large, it is the slot of the output.
        """
        if not in_place or slot.buffer == "scratch":
            return slot
        place = self.place(slot, in_place=True).offset
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
    """Layout of each rank's input and output for a collective: the chunk of each slot.

    A chunk from which a rank derives another one is not among the rank's outputs.
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
    """Layout of a program's buffers, by rank; without a collective, every slot holds its own chunk."""
    if program.collective is not None:
        return layout(program.collective)
    return tuple(
        RankLayout(tuple(range(rank.input_chunks)), tuple(range(rank.output_chunks)))
        for rank in program.ranks
    )


def contributions(collective: Collective) -> list[tuple[tuple[int, int], ...]]:
    """(rank, chunk) contributions to each chunk; only one origin if the origins hold equal copies."""
    derived = {each.chunk: each for each in collective.derivations}
    made = []
    for chunk in range(collective.num_chunks):
        parts: list[tuple[int, int]] = []
        while chunk in derived:
            parts.append((derived[chunk].rank, chunk))
            chunk = derived[chunk].source
        origins = collective.chunks[chunk].origins
        made.append((*parts, *((rank, chunk) for rank in (origins if collective.sums_up else origins[:1]))))
    return made


def contributor(collective: Collective, rank: int, chunk: int) -> int:
    """Rank whose contribution a rank's initial content of a chunk is; of equal copies, the first origin."""
    origins = collective.chunks[chunk].origins
    return rank if collective.sums_up or not origins else origins[0]


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


#: `START`: tick before every send.
#: `FOREVER`: tick after all sends.
START, FOREVER = -1, 2**63


@dataclass(eq=False, slots=True)
class Value:
    """Content of a chunk at a rank during an interval; times are in ticks.

    - `chunk`: Number of the chunk; -1 for a part of a block in which a merged send is packed.
    - `born`: Time from which it is complete.
    - `read_until`: End of the last send or copy that reads it.
    - `added_at`: Time at which an arrival is added to it, which makes the next value; -1 if none is.
    - `added_to`: Value from which it was made by adding an arrival; None if it was made otherwise.
    - `final`: True if it is the rank's output.
    - `slot`: Its slot; None until it is placed.
    """

    chunk: int
    born: int
    read_until: int = START
    added_at: int = START
    added_to: Value | None = None
    final: bool = False
    slot: Slot | None = None

    @property
    def place(self) -> Slot:
        """Slot of the value, which must have been placed."""
        assert self.slot is not None, "a value is placed before it is used"
        return self.slot

    def makes_room(self, successor: Value) -> bool:
        """True if `successor` may reuse this value's slot, for example as a sum with this value."""
        if self.final:
            return False
        if successor.added_to is self:
            return self.read_until < successor.born
        return max(self.born, self.read_until, self.added_at) < successor.born


@dataclass(eq=False, slots=True)
class Allocator:
    """Allocator of one rank's buffer slots to the contents of chunks, in order of their arrival.

    - `user`: {slot of the user's buffers: its latest value}.
    - `scratch`: Latest value of each scratch slot.
    - `home`: {chunk: its output slot}.
    - `output_from`: {chunk: tick at which its output arrives}.
    """

    layout: RankLayout
    in_place: bool
    user: dict[Slot, Value] = field(default_factory=dict)
    scratch: list[Value] = field(default_factory=list)
    home: dict[int, Slot] = field(default_factory=dict)
    output_from: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.home = {
            chunk: self.layout.canonical(Slot("output", i), in_place=self.in_place)
            for i, chunk in enumerate(self.layout.outputs)
        }

    def place(self, values: Sequence[Value]) -> None:
        """Assign slots to values that arrive together; values in scratch get neighbouring slots."""
        homeless = []
        for value in values:
            slot = self.home.get(value.chunk)
            if slot is not None and self._may_take_output_slot(value, slot):
                value.slot = slot
                self.user[slot] = value
            else:
                homeless.append(value)
        if homeless:
            self.place_scratch(homeless)

    def place_block(self, count: int, born: int, read_until: int) -> list[Slot]:
        """Neighbouring scratch slots for a packed send of `count` chunks; times in ticks."""
        values = [Value(-1, born, read_until) for _ in range(count)]
        self.place_scratch(values)
        return [value.place for value in values]

    def place_scratch(self, values: Sequence[Value]) -> None:
        """Place values in the first neighbouring scratch slots that are free for all of them."""
        begin, i = 0, 0
        while i < len(values) and begin + i < len(self.scratch):
            if self.scratch[begin + i].makes_room(values[i]):
                i += 1
            else:
                begin, i = begin + i + 1, 0
        for i, value in enumerate(values):
            self._put(value, begin + i)

    def _put(self, value: Value, index: int) -> None:
        value.slot = Slot("scratch", index)
        if index == len(self.scratch):
            self.scratch.append(value)
        self.scratch[index] = value

    def _may_take_output_slot(self, value: Value, slot: Slot) -> bool:
        """True if `value` may use `slot`, the output slot of its chunk, until the output itself arrives."""
        occupant = self.user.get(slot)
        if occupant is not None and not occupant.makes_room(value):
            return False
        return value.final or value.read_until < self.output_from.get(value.chunk, FOREVER)
