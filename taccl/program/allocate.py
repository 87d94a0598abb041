"""Slot of every value: the user's buffers where they are free, else as little scratch as possible.

A *value* is what a rank holds of a chunk from one arrival to the next. It needs its slot from the end of the
send that brings it to the last send that reads it, or to the end where it is the rank's output. Values are
placed in order of arrival, each in the first slot that fits: for intervals of single chunks no assignment
needs less scratch.

A slot is given to a new value only if what reads the old one ends strictly before the new one arrives. So no
receive ever waits for a send that could wait for it: two ranks that exchange partial sums at the same time
write theirs beside the old ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from taccl.program.layout import RankLayout
from taccl.program.program import Slot

#: Before every send, and after all.
START, FOREVER = -1, 2**63


@dataclass(eq=False, slots=True)
class Value:
    """Content of one rank for one chunk during an interval; times are ticks.

    - `chunk`: -1: a block in which a merged send is packed.
    - `born`: When it is there whole.
    - `read_until`: The end of the last send, or copy, that reads it.
    - `added_at`: When an arrival is added to it, which makes the next value; -1: never.
    - `added_to`: The value that it was made from, with an arrival added.
    - `final`: Whether it is the rank's output.
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
        """Its slot, once it has one."""
        assert self.slot is not None, "a value is placed before it is used"
        return self.slot

    def makes_room(self, successor: Value) -> bool:
        """True if another value may have its slot, given more easily to its successor."""
        if self.final:
            return False
        if successor.added_to is self:
            return self.read_until < successor.born
        return max(self.born, self.read_until, self.added_at) < successor.born


@dataclass(eq=False, slots=True)
class Allocator:
    """The slots of one rank while values are placed, in order of arrival."""

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
        """Give values that arrive together their slots: neighbours where they go to scratch."""
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
        """Neighbouring slots of scratch for a packed send."""
        values = [Value(-1, born, read_until) for _ in range(count)]
        self.place_scratch(values)
        return [value.place for value in values]

    def place_scratch(self, values: Sequence[Value]) -> None:
        """Give values the first neighbouring slots of scratch that are free for all of them."""
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
