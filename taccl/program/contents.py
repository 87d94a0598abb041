"""Exact content of slots in a symbolic run: the contributing ranks of each chunk.

Contents are numbered, equal ones alike, so that a run over many steps moves numbers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np

from taccl._internal.arrays import Ints
from taccl.problem.collective import Collective
from taccl.program.columns import Slots, StepColumns
from taccl.program.layout import RankLayout, contributions, contributor
from taccl.program.program import BUFFERS, OPERATIONS, Program, Slot

#: `ANYONE`: any contributor, if the collective does not reduce, as all copies of a chunk are then equal.
#: `AGAIN`: mark of contributions that were added twice to a sum.
ANYONE, AGAIN = -1, "again"
#: Number of the operation that adds to its destination.
REDUCE = [*OPERATIONS].index("reduce")


class Content(frozenset[tuple[Any, int]]):
    """Content of a slot: pairs of a chunk and the ranks that contributed to it, as bits.

    Contributions that were added twice have (`AGAIN`, chunk) in place of the chunk. The content of a
    slot that was never written has the slot in place of the chunk.
    """

    __slots__ = ()

    @classmethod
    def of(cls, parts: Iterable[tuple[int, Any]]) -> Self:
        """Content that consists of the given (rank, chunk) contributions."""
        held: dict[Any, int] = defaultdict(int)
        for rank, chunk in parts:
            held[chunk] |= 1 << (rank - ANYONE)
        return cls(held.items())

    def parts(self) -> set[tuple[int, Any]]:
        """All (rank, chunk) contributions to this content."""
        return {
            (place + ANYONE, chunk)
            for chunk, ranks in self
            for place in range(ranks.bit_length())
            if ranks >> place & 1
        }

    def __add__(self, other: Content) -> Content:
        held: dict[Any, int] = dict(self)
        for chunk, ranks in other:
            mine = held.get(chunk, 0)
            if mine & ranks:
                held[AGAIN, chunk] = held.get((AGAIN, chunk), 0) | mine & ranks
            held[chunk] = mine | ranks
        return Content(held.items())


def contents_of(collective: Collective) -> list[Content]:
    """Required final content of each chunk."""
    return [
        Content.of((_owner(collective, rank), part) for rank, part in parts)
        for parts in contributions(collective)
    ]


def content_at_start(collective: Collective, rank: int, chunk: int) -> Content:
    """Initial content of a chunk at a rank."""
    return Content.of([(_owner(collective, contributor(collective, rank, chunk)), chunk)])


def _owner(collective: Collective, rank: int) -> int:
    return rank if collective.combining else ANYONE


class Places:
    """Memory of a program's ranks as places, numbered from 0; each slot of a buffer has a place.

    In place, a slot of the input and one of the output may have the same place.

    - `begin`, (num_ranks, num_buffers): Place of the first slot of each rank's buffers.
    - `count`: Number of places.
    """

    def __init__(self, program: Program, layouts: Sequence[RankLayout]) -> None:
        begin, at = [], 0
        self._first: list[int] = []  # first place of each rank's areas of memory
        self._areas: list[tuple[int, str]] = []  # rank and name of each
        for rank, (own, where) in enumerate(zip(program.ranks, layouts, strict=True)):
            inputs, outputs = own.input_chunks, own.output_chunks
            areas = [("input", inputs), ("output", outputs), ("scratch", own.scratch_chunks)]
            if program.in_place:
                user = max(where.input_offset + inputs, where.output_offset + outputs)
                areas = [("scratch", own.scratch_chunks), ("user", user)]
            first: dict[str, int] = {}
            for name, length in areas:
                first[name] = at
                self._first.append(at)
                self._areas.append((rank, name))
                at += length
            if program.in_place:
                ends = (("input", where.input_offset), ("output", where.output_offset))
                first |= {name: first["user"] + offset for name, offset in ends}
            begin.append([first[name] for name in BUFFERS])
        self.count = at
        self.begin = np.array(begin, dtype=np.int64).reshape(-1, len(BUFFERS))

    def of(self, rank: Ints, slots: Slots) -> list[int]:
        """Places of several slots; any number for no slot."""
        found: list[int] = (self.begin[rank, slots.buffer] + slots.offset).tolist()
        return found

    def slot(self, place: int) -> tuple[int, Slot]:
        """Rank and slot of a place; in place, the slot is in the user's common buffer, ``user``."""
        area = bisect_right(self._first, place) - 1
        rank, name = self._areas[area]
        return rank, Slot(name, place - self._first[area])


class Memory:
    """Contents of all places in a symbolic run of a program, by their numbers.

    - `contents`: Content of each number; 0 is nothing.
    - `at_start`: Number of each place's content before the run; -1 if it was never written.
    """

    def __init__(self, program: Program, layouts: Sequence[RankLayout]) -> None:
        self.places = Places(program, layouts)
        self.contents = [Content()]
        self._numbers = {self.contents[0]: 0}
        self._sums: dict[tuple[int, int], int] = {}
        self.at_start = [-1] * self.places.count
        if program.collective is not None:
            for rank, where in enumerate(layouts):
                first = int(self.places.begin[rank, 0])
                for index, chunk in enumerate(where.inputs):
                    content = content_at_start(program.collective, rank, chunk)
                    self.at_start[first + index] = self.number(content)
        self._held = [*self.at_start]

    def number(self, content: Content) -> int:
        """Number that stands for a content; a new content gets the next number."""
        found = self._numbers.setdefault(content, len(self.contents))
        if found == len(self.contents):
            self.contents.append(content)
        return found

    def at(self, place: int) -> int:
        """Number that stands for the content at a place (a slot of a buffer)."""
        found = self._held[place]
        if found < 0:
            _, slot = self.places.slot(place)
            found = self._held[place] = self.number(Content.of([(ANYONE, slot)]))
        return found

    def _sum(self, one: int, other: int) -> int:
        found = self._sums.get((one, other))
        if found is None:
            found = self._sums[one, other] = self.number(self.contents[one] + self.contents[other])
        return found

    def run(self, steps: StepColumns, order: Sequence[int], chunks: int) -> dict[int, list[int]]:
        """Run steps in a feasible order; return {sending step: content of each chunk sent}.

        - `order`: The step of each message, and each local step (`taccl.program.execution.Run.messages`).
        - `chunks`: Max chunks per message.
        """
        held, at, add = self._held, self.at, self._sum
        sources, targets = (self.places.of(steps.rank, slots) for slots in (steps.src, steps.dst))
        counts = np.maximum(steps.num_chunks, 1).tolist()
        inbox, outbox = (ends[steps.block].tolist() for ends in (steps.incoming, steps.outgoing))
        parts, is_sum = steps.parts.tolist(), (steps.operation == REDUCE).tolist()
        queues: list[deque[int]] = [deque() for _ in steps.queues]
        sent: dict[int, list[int]] = {}
        done: dict[int, int] = {}  # {step of several messages: number of chunks before the next message}
        for step in order:
            begin, end = 0, counts[step]
            if end > chunks:
                begin = done.get(step, 0)
                end = done[step] = min(begin + chunks, end)
            receives, reads, writes, sends = parts[step]
            source, target = sources[step], targets[step]
            for i in range(begin, end):
                content = queues[inbox[step]].popleft() if receives else 0
                if reads:
                    own = at(source + i)
                    content = add(content, own) if content else own
                if writes:
                    held[target + i] = add(at(target + i), content) if is_sum[step] else content
                if sends:
                    queues[outbox[step]].append(content)
                    sent.setdefault(step, []).append(content)
        return sent
