"""Symbolic execution of a program: threadblocks step by step, bounded queues, content of slots, and races.

The content of a slot is exact: the contributing ranks of each chunk. A waiting threadblock continues as soon
as its condition holds, before the threadblock that made it true. So few messages are in flight at once. A
race is a pair of unordered accesses to one place, one of them a write; MSCCL++ plans are searched for races,
too.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple, Self

from taccl._internal.units import format_count
from taccl.errors import InputError
from taccl.problem.collective import Collective
from taccl.program.checks import ProgramFault, parcels_of, queue_ends
from taccl.program.emit import read_slots, written_slots
from taccl.program.layout import RankLayout, contributions, layouts_of
from taccl.program.program import OPERATIONS, PROTOCOLS, Block, Program, Queue, Slot, Step, StepAddress

#: `ANYONE`: any contributor, if the collective does not reduce, as all copies of a chunk are then equal.
#: `AGAIN`: mark of contributions that were added twice to a sum.
ANYONE, AGAIN = -1, "again"


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
    return Content.of([(_owner(collective, rank), chunk)])


def _owner(collective: Collective, rank: int) -> int:
    return rank if collective.combining else ANYONE


class SlotContents:
    """Content of the slots of one rank; in place, input and output are one buffer."""

    def __init__(self, program: Program, rank: int, layout: RankLayout) -> None:
        self._contents: dict[Slot, Content] = {}
        self._places = _Places(layout) if program.in_place else None
        if program.collective is not None:
            for index, chunk in enumerate(layout.inputs):
                self[Slot("input", index)] = content_at_start(program.collective, rank, chunk)

    def place(self, slot: Slot) -> Slot:
        """Identity of a slot's memory; in place, an input and an output slot may have the same one."""
        return slot if self._places is None else self._places[slot]

    def __getitem__(self, slot: Slot) -> Content:
        place = slot if self._places is None else self._places[slot]
        return self._contents.get(place) or Content.of([(ANYONE, place)])

    def __setitem__(self, slot: Slot, content: Content) -> None:
        self._contents[slot if self._places is None else self._places[slot]] = content


class _Places(dict[Slot, Slot]):
    """{slot: its place in memory}, in place; each is computed once."""

    def __init__(self, layout: RankLayout) -> None:
        self._layout = layout

    def __missing__(self, slot: Slot) -> Slot:
        place = self[slot] = self._layout.place(slot, in_place=True)
        return place


def execute(
    program: Program,
    *,
    capacity: int | None = None,
    chunks: int = 1,
    sent: dict[StepAddress, list[Content]] | None = None,
) -> ExecutionState:
    """Run a program with valid steps (`check_steps`) whose queues have one threadblock at each end.

    - `capacity`: Number of messages that a queue holds; by default that of the protocol.
    - `chunks`: Max chunks per message; further chunks of a step go in further messages.
    - `sent`: Dictionary to fill with {sending step: content of each chunk it sends}.
    """
    return ExecutionState(program, capacity or PROTOCOLS[program.protocol], chunks, sent).run()


def running_order(program: Program, *, capacity: int = sys.maxsize) -> list[StepAddress]:
    """All steps in an order feasible for dependencies and queues of `capacity` one-chunk messages.

    Raises `InputError` if the program deadlocks.
    """
    execution = execute(program, capacity=capacity)
    if execution.stuck is not None:
        raise InputError(str(execution.stuck), where="program")
    return execution.done


class _Wait(NamedTuple):
    """Condition that a threadblock waits for: a message or room in a queue."""

    what: Literal["a chunk", "room"]
    queue: Queue | None


class ExecutionState:
    """State of a program's symbolic run, in progress or ended.

    - `memory`: Content of slots, by rank.
    - `done`: Steps in the order in which they ended, a feasible order for dependencies and queues.
    - `stuck`: The deadlock, if the run did not reach the end of the program; else None.
    - `position`: {threadblock: index of its current step}.
    - `queues`: {queue: messages in it}, each with the content of its chunks.
    - `waiting`: {condition: threadblocks that wait for it}; a step as condition must end first.
    """

    def __init__(
        self, program: Program, capacity: int, chunks: int, sent: dict[StepAddress, list[Content]] | None
    ) -> None:
        self.program, self.capacity, self.chunks, self.sent = program, capacity, chunks, sent
        self.memory = [SlotContents(program, r, where) for r, where in enumerate(layouts_of(program))]
        self.done: list[StepAddress] = []
        self.stuck: ProgramFault | None = None
        self.blocks = dict(program.threadblocks())
        self.position: dict[Block, int] = dict.fromkeys(self.blocks, 0)
        self.queues: dict[Queue | None, deque[list[Content]]] = defaultdict(deque)
        self.waiting: dict[_Wait | StepAddress, list[Block]] = defaultdict(list)

    def run(self) -> Self:
        """Run all threadblocks until each has ended or waits."""
        running = {block: self._run(block) for block in self.blocks}
        ready = deque(running)
        while ready:
            block = ready.popleft()
            said = next(running[block], None)
            if isinstance(said, list):
                ready.extendleft([block, *said])
            elif said is not None:
                self.waiting[said].append(block)
        if self.waiting:
            self.stuck = self._explain()
        return self

    def _run(self, block: Block) -> Iterator[_Wait | StepAddress | list[Block]]:
        """Run a threadblock; yield conditions that it waits for, and threadblocks that it wakes."""
        (rank, number), threadblock, memory = block, self.blocks[block], self.memory[block[0]]
        incoming, outgoing = threadblock.receives_from(rank), threadblock.sends_into(rank)
        inbox, outbox = self.queues[incoming], self.queues[outgoing]
        arrival, departure, more, room = (
            _Wait(what, queue) for queue in (incoming, outgoing) for what in ("a chunk", "room")
        )
        waiting, position = self.waiting, self.position
        for s, step in enumerate(threadblock.steps):
            address, count = StepAddress(rank, number, s), max(step.count, 1)
            receives, _, _, sends = OPERATIONS[step.operation]
            for other, index in step.depends:
                if position[rank, other] <= index:
                    yield StepAddress(rank, other, index)
            for begin in range(0, count, self.chunks):
                end = min(begin + self.chunks, count)
                if receives and not inbox:
                    yield arrival
                if sends and len(outbox) >= self.capacity:
                    yield room
                woken: list[Block] = []
                if receives:
                    contents = inbox.popleft()
                    woken += waiting.pop(departure, ())
                else:
                    contents = [_NOTHING] * (end - begin)
                contents = _moved(step, memory, begin, contents)
                if sends:
                    outbox.append(contents)
                    if self.sent is not None:
                        self.sent.setdefault(address, []).extend(contents)
                    woken += waiting.pop(more, ())
                if end == count:
                    position[block] += 1
                    self.done.append(address)
                    woken += waiting.pop(address, ())
                if woken:
                    yield woken

    def _explain(self) -> ProgramFault:
        """The deadlock: a cycle of steps that wait for each other, or a step whose condition never holds."""
        waits = {block: wait for wait, blocks in self.waiting.items() for block in blocks}
        path: list[Block] = []
        reasons: dict[Block, str] = {}
        block: Block | None = next(each for each in self.blocks if each in waits)
        while block is not None and block not in reasons:
            path.append(block)
            block, reasons[path[-1]] = self._waits_for(block, waits)
        cycle = path[-1:] if block is None else path[path.index(block) :]
        first = cycle.index(min(cycle))
        cycle = cycle[first:] + cycle[:first]
        told = "; ".join(f"{self._at(each)} {reasons[each]}" for each in cycle)
        if block is not None:
            told = f"{format_count(len(cycle), 'step')} wait for each other: {told}"
        return ProgramFault("deadlock", told, tuple(self._at(each) for each in cycle), rank=cycle[0][0])

    def _at(self, block: Block) -> StepAddress:
        return StepAddress(*block, self.position[block])

    def _waits_for(
        self, block: Block, waits: Mapping[Block, _Wait | StepAddress]
    ) -> tuple[Block | None, str]:
        """Threadblock for which the waiting threadblock `block` waits, and the reason as text.

        The threadblock is None if none will ever end the wait.
        """
        wait = waits[block]
        if isinstance(wait, StepAddress):
            return wait[:2], f"depends on {wait}"
        what, where = wait
        assert where is not None, "what sends or receives has a queue"
        senders, receivers = queue_ends(self.program)
        ends = (senders if what == "a chunk" else receivers)[where]
        partner = next((each for each in ends if each in waits), None)
        if partner is not None:
            return partner, f"waits for {what} {where}"
        never = "a chunk that is never sent" if what == "a chunk" else "room, but no step receives the data"
        return None, f"waits for {never} {where}"


_NOTHING = Content()


def _moved(step: Step, memory: SlotContents, begin: int, received: list[Content]) -> list[Content]:
    """Results of a step for its chunks from `begin` on, from the contents received; stored if it writes."""
    (_, reads, writes, _), results = OPERATIONS[step.operation], []
    src, dst = step.src if reads else None, step.dst if writes else None
    for i, content in enumerate(received, start=begin):
        if src is not None:
            own = memory[src if i == 0 else Slot(src.buffer, src.offset + i)]
            content = content + own if content else own
        if dst is not None:
            slot = dst if i == 0 else Slot(dst.buffer, dst.offset + i)
            memory[slot] = memory[slot] + content if step.operation == "reduce" else content
        results.append(content)
    return results


class Event(NamedTuple):
    """Event of a program's run: the places in memory that one thread reads and writes.

    - `by`: Step or operation to which the event belongs; consecutive events with equal `by` are one access.
    - `after`: Indices of its direct predecessors: the previous event of its thread, and those it waited for.
    - `reads`, `writes`: Places that it accesses.
    """

    by: Any
    after: Collection[int]
    reads: Collection[Hashable] = ()
    writes: Collection[Hashable] = ()


def unordered(events: Sequence[Event]) -> Iterator[tuple[Any, Event, Event]]:
    """Yield (place, earlier event, later event) for events that race, in order of the run.

    Every access must be ordered after the last write before it, and every write after the reads since that
    write. If these pairs are ordered, all conflicting pairs are.
    """
    uses = Counter(each for event in events for each in event.after)
    known: dict[int, int] = {}  # {event: events known to precede it, and itself, as bits}
    writers: dict[Hashable, list[int]] = {}
    readers: dict[Hashable, list[int]] = defaultdict(list)
    for _, group in groupby(range(len(events)), key=lambda number: events[number].by):
        numbers = list(group)
        for number in numbers:
            known[number] = 1 << number
            for each in events[number].after:
                known[number] |= known[each]
                uses[each] -= 1
                if not uses[each]:
                    del known[each]
        reads, writes = ({*events[numbers[0]].reads}, {*events[numbers[0]].writes})
        reported: set[int] = set()
        for place in sorted(reads | writes):  # type: ignore[type-var]
            others = writers.get(place, [])
            if place in writes:
                others = others + readers.pop(place, [])
                writers[place] = numbers
            if place in reads:
                readers[place] += numbers
            for other in others:
                if other not in reported and not all(known[number] >> other & 1 for number in numbers):
                    reported.add(other)
                    yield place, events[other], events[numbers[0]]


def find_races(program: Program, execution: ExecutionState) -> Iterator[ProgramFault]:
    """Yield a fault for each race between steps that ran: unordered accesses to a slot, one a write.

    In most programs the steps of each rank order all its accesses by themselves. The order across ranks is
    evaluated only if they do not, as that takes far longer for programs of many steps.
    """
    of_rank: dict[int, list[StepAddress]] = defaultdict(list)
    for address in execution.done:
        of_rank[address.rank].append(address)
    if not any(_may_race(program, execution.memory[r], each) for r, each in of_rank.items()):
        return
    sent_by = {parcel.receive: parcel.send for parcel in parcels_of(program)}
    when = {address: index for index, address in enumerate(execution.done)}
    events = []
    for address in execution.done:
        step, memory = program.step(address), execution.memory[address.rank]
        reads = {(address.rank, memory.place(slot)) for slot in read_slots(step)}
        writes = {(address.rank, memory.place(slot)) for slot in written_slots(step)}
        after = {when[each] for each in _right_before(program, address, sent_by)}
        events.append(Event(address, after, reads, writes))
    for (rank, place), earlier, later in unordered(events):
        yield ProgramFault(
            "race",
            f"{earlier.by}, {program.step(earlier.by)}, and {later.by}, {program.step(later.by)}, both use "
            f"{place} of rank {rank}, and no dependency orders them",
            (earlier.by, later.by),
            rank=rank,
        )


def _may_race(program: Program, memory: SlotContents, addresses: Sequence[StepAddress]) -> bool:
    """True if two accesses to a slot of a rank may race, as no steps of the rank order them.

    - `addresses`: Steps of the rank, in order of the run.
    """
    known: dict[tuple[int, int], int] = {}  # {(threadblock, step): steps known to precede it, and itself}
    written: dict[Slot, int] = {}  # last write of each slot, as a bit
    read: dict[Slot, int] = {}  # reads since that write
    threadblocks, place_of = program.ranks[addresses[0].rank].threadblocks, memory.place
    for number, (_, t, s) in enumerate(addresses):
        step, bit = threadblocks[t].steps[s], 1 << number
        before = known[t, s - 1] if s else 0
        for each in step.depends:
            before |= known[each]
        known[t, s] = before | bit
        for slot in read_slots(step):
            place = place_of(slot)
            if written.get(place, 0) & ~before:
                return True
            read[place] = read.get(place, 0) | bit
        own = before | bit
        for slot in written_slots(step):
            place = place_of(slot)
            if (written.get(place, 0) | read.pop(place, 0)) & ~own:
                return True
            written[place] = bit
    return False


def _right_before(
    program: Program, address: StepAddress, sent_by: dict[StepAddress, StepAddress]
) -> set[StepAddress]:
    """Direct predecessors of a step: in its threadblock, its dependencies, and the send of its message."""
    rank, t, s = address
    before = {StepAddress(rank, *each) for each in program.step(address).depends}
    if s:
        before.add(StepAddress(rank, t, s - 1))
    if address in sent_by:
        before.add(sent_by[address])
    return before
