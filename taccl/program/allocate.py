"""Slot allocation for values: the user's buffers where they are free, else as little scratch as possible.

A *value* is the content of a chunk at a rank from one arrival to the next. It needs its slot from the end of
the send that delivers it to the end of the last send that reads it. If it is the rank's output, it needs the
slot to the end. Values are placed in order of arrival, each in the first slot that fits. For intervals of
single chunks, no assignment needs less scratch.

A slot is given to a new value only if the last read of the old one ends strictly before the new one arrives.
So no receive ever waits for a send that could wait for it. Two ranks that exchange partial sums at the same
time write them to other slots than the old ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from taccl.program.layout import RankLayout
from taccl.program.program import Slot

#: Ticks before every send, and after all sends.
START, FOREVER = -1, 2**63


@dataclass(eq=False, slots=True)
class Value:
    """Content of a chunk at a rank during an interval; times are in ticks.

    - `chunk`: Number of the chunk; -1 for a part of a block in which a merged send is packed.
    - `born`: Time from which it is complete.
    - `read_until`: End of the last send or copy that reads it.
    - `added_at`: Time at which an arrival is added to it, which makes the next value; -1 if none is.
    - `added_to`: The value that it was made from by adding an arrival; None if it was made otherwise.
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
        """Its slot; the value must have been placed."""
        assert self.slot is not None, "a value is placed before it is used"
        return self.slot

    def makes_room(self, successor: Value) -> bool:
        """True if another value may take its slot; the condition is weaker for the value made from it."""
        if self.final:
            return False
        if successor.added_to is self:
            return self.read_until < successor.born
        return max(self.born, self.read_until, self.added_at) < successor.born


@dataclass(eq=False, slots=True)
class Allocator:
    """Slots of one rank while values are placed, in order of arrival.

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
        """Place values that arrive together; those that go to scratch get neighbouring slots."""
        homeless = []
        for value in values:
            slot = self.home.get(value.chunk)
            if slot is not None and self._may_go_home(value, slot):
                value.slot = slot
                self.user[slot] = value
            else:
                homeless.append(value)
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

    def _may_go_home(self, value: Value, slot: Slot) -> bool:
        """True if the output slot of a value's chunk is free now, and again when the output arrives."""
        occupant = self.user.get(slot)
        if occupant is not None and not occupant.makes_room(value):
            return False
        return value.final or value.read_until < self.output_from.get(value.chunk, FOREVER)
