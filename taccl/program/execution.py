"""Symbolic execution of a program: threadblocks step by step, and bounded queues; races between its steps.

A waiting threadblock continues as soon as its condition holds, before the threadblock that made it true. So
few messages are in flight at once. A race is a pair of unordered accesses to one place, one of them a write;
MSCCL++ plans are searched for races, too.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from taccl._internal.units import format_count
from taccl.errors import InputError
from taccl.program.checks import ProgramFault, matched
from taccl.program.columns import StepColumns, columns_of
from taccl.program.contents import REDUCE, Places
from taccl.program.program import PROTOCOLS, Program, StepAddress

#: Min number of bits of a number that are read from its binary digits, rather than by shifts.
_FEW_BITS = 64


def execute(program: Program, *, capacity: int | None = None, chunks: int = 1) -> Run:
    """Run a program with valid steps (`check_steps`) whose queues have one threadblock at each end.

    - `capacity`: Number of messages that a queue holds; by default that of the protocol.
    - `chunks`: Max chunks per message; further chunks of a step go in further messages.
    """
    return Run(program, capacity or PROTOCOLS[program.protocol], chunks)


def running_order(program: Program, *, capacity: int = sys.maxsize) -> list[StepAddress]:
    """All steps in an order feasible for dependencies and queues of `capacity` one-chunk messages.

    Raises `InputError` if the program deadlocks.
    """
    run = execute(program, capacity=capacity)
    if run.stuck is not None:
        raise InputError(str(run.stuck), where="program")
    return columns_of(program).addresses(run.done)


class Run:
    """Symbolic run of a program, to its end or to a deadlock.

    - `messages`: The step of each message, and each step without messages, in an order that is feasible for
      dependencies and queues.
    - `done`: Steps in the order in which they ended.
    - `stuck`: The deadlock, if the run did not reach the end of the program; else None.
    """

    def __init__(self, program: Program, capacity: int, chunks: int) -> None:
        self.steps, self.chunks = columns_of(program), chunks
        self.messages: list[int] = []
        self.done: list[int] = []
        self._position: list[int] = self.steps.first[:-1].tolist()  # current step of each threadblock
        #: {condition: threadblocks that wait for it}. A condition is a step to end, or a number below 0.
        #: Numbers below 0 stand for a message in a queue (`_message_in`), or for room in it (`_room_in`).
        self._waiting: dict[int, list[int]] = {}
        self._run(capacity)
        self.stuck = self._explain() if self._waiting else None

    def _run(self, capacity: int) -> None:
        """Run all threadblocks until each has ended or waits."""
        steps, position, waiting = self.steps, self._position, self._waiting
        first, block_of, needs = steps.first.tolist(), steps.block.tolist(), steps.needs_of()
        incoming, outgoing = steps.incoming.tolist(), steps.outgoing.tolist()
        receives, sends = (steps.parts[:, i].tolist() for i in (0, 3))
        num_messages = (-(-np.maximum(steps.num_chunks, 1) // self.chunks)).tolist()
        begun = [0] * len(steps.blocks)  # messages of the current step that are done
        held = [0] * len(steps.queues)  # messages in each queue
        ready = deque(range(len(steps.blocks)))
        while ready:
            block = ready.popleft()
            inbox, outbox, end = incoming[block], outgoing[block], first[block + 1]
            while (step := position[block]) < end:
                condition = None
                for other in needs[step]:
                    if position[block_of[other]] <= other:
                        condition = other
                        break
                else:
                    if receives[step] and not held[inbox]:
                        condition = _message_in(inbox)
                    elif sends[step] and held[outbox] >= capacity:
                        condition = _room_in(outbox)
                if condition is not None:
                    waiting.setdefault(condition, []).append(block)
                    break
                woken: list[int] = []
                self.messages.append(step)
                if receives[step]:
                    held[inbox] -= 1
                    woken += waiting.pop(_room_in(inbox), ())
                if sends[step]:
                    held[outbox] += 1
                    woken += waiting.pop(_message_in(outbox), ())
                begun[block] += 1
                if begun[block] == num_messages[step]:
                    begun[block] = 0
                    position[block] += 1
                    self.done.append(step)
                    woken += waiting.pop(step, ())
                if woken:
                    ready.extendleft([block, *woken])
                    break

    def _explain(self) -> ProgramFault:
        """The deadlock: a cycle of steps that wait for each other, or a step whose condition never holds."""
        waits = {block: condition for condition, blocks in self._waiting.items() for block in blocks}
        path: list[int] = []
        reasons: dict[int, str] = {}
        block: int | None = min(waits)
        while block is not None and block not in reasons:
            path.append(block)
            block, reasons[path[-1]] = self._waits_for(waits[block], waits)
        cycle = path[-1:] if block is None else path[path.index(block) :]
        first = cycle.index(min(cycle))
        cycle = cycle[first:] + cycle[:first]
        places = self.steps.addresses([self._position[each] for each in cycle])
        told = "; ".join(f"{place} {reasons[each]}" for each, place in zip(cycle, places, strict=True))
        if block is not None:
            told = f"{format_count(len(cycle), 'step')} wait for each other: {told}"
        return ProgramFault("deadlock", told, tuple(places), rank=places[0].rank)

    def _waits_for(self, condition: int, waits: Mapping[int, int]) -> tuple[int | None, str]:
        """Threadblock that must make a condition true, and the condition as text.

        The threadblock is None if none will ever do so.
        """
        steps = self.steps
        if condition >= 0:
            return int(steps.block[condition]), f"depends on {steps.address(condition)}"
        number, is_room = divmod(-1 - condition, 2)
        ends = np.flatnonzero((steps.incoming if is_room else steps.outgoing) == number).tolist()
        queue, what = steps.queues[number], "room" if is_room else "a chunk"
        partner = next((each for each in ends if each in waits), None)
        if partner is not None:
            return partner, f"waits for {what} {queue}"
        never = "room, but no step receives the data" if is_room else "a chunk that is never sent"
        return None, f"waits for {never} {queue}"


def _message_in(queue: int) -> int:
    """Condition that a queue has a message."""
    return -1 - 2 * queue


def _room_in(queue: int) -> int:
    """Condition that a queue has room for a message."""
    return -2 - 2 * queue


class Event(NamedTuple):
    """Event of a program's run: the places in memory that one thread reads and writes.

    - `by`: Step or operation to which the event belongs; consecutive events with equal `by` are one access.
    - `after`: Indices of its direct predecessors: the previous event of its thread, and those it waited for.
    - `reads`, `writes`: Places that it accesses.
    - `received`: Reads, as (index of the event, place), whose values data that it received depend on. So they
      ended before, although no barrier or signal orders them.
    """

    by: Any
    after: Collection[int]
    reads: Collection[Hashable] = ()
    writes: Collection[Hashable] = ()
    received: frozenset[tuple[int, Hashable]] = frozenset()


def unordered(events: Sequence[Event]) -> Iterator[tuple[Any, Event, Event]]:
    """Yield (place, earlier event, later event) for events that race, in order of the run.

    Every access must be ordered after the last write before it, and every write after the reads since that
    write. If these pairs are ordered, all conflicting pairs are.
    """
    uses = [0] * len(events)
    for event in events:
        for each in event.after:
            uses[each] += 1
    known = [0] * len(events)  # of each event: accesses that precede it, or are its own, as bits
    ended = [0] * len(events)  # of each event: `Event.received` of it and of these, as bits
    bit_of: dict[int, int] = {}  # {access: its bit in `known`}
    bit_of_read: dict[tuple[int, Hashable], int] = {}  # {(event, place): its bit in `ended`}
    writers: dict[Hashable, Sequence[int]] = {}
    readers: dict[Hashable, list[int]] = {}
    end = 0
    while end < len(events):
        begin, by = end, events[end].by
        reads, writes = events[end].reads, events[end].writes
        while end < len(events) and events[end].by == by:
            before = done = 0
            for each in events[end].after:
                before |= known[each]
                done |= ended[each]
                uses[each] -= 1
                if not uses[each] and each < begin:  # the group itself is asked below
                    known[each] = ended[each] = 0
            for read in events[end].received:
                done |= 1 << bit_of_read.setdefault(read, len(bit_of_read))
            if reads or writes:
                before |= 1 << len(bit_of)
                bit_of[end] = len(bit_of)
            known[end], ended[end] = before, done
            end += 1
        if not reads and not writes:
            continue
        numbers, reads, writes = range(begin, end), {*reads}, {*writes}
        # Last writes and later reads of each place, which must precede this access.
        former: dict[Hashable, tuple[Sequence[int], Sequence[int]]] = {}
        for place in reads - writes:
            former[place] = writers.get(place, ()), ()
            readers.setdefault(place, []).extend(numbers)
        for place in writes:
            former[place] = writers.get(place, ()), readers.pop(place, ())
            writers[place] = numbers
        for place in reads & writes:
            readers[place] = [*numbers]
        others = {other for both in former.values() for some in both for other in some}
        if all(_has_bits(known[number], [bit_of[other] for other in others]) for number in numbers):
            continue
        reported: set[int] = set()
        for place in sorted(former):  # type: ignore[type-var]
            last, since = former[place]
            # An event that writes and reads a place counts as a write.
            for other, is_writer in (dict.fromkeys(since, False) | dict.fromkeys(last, True)).items():
                bit = bit_of[other]
                if other in reported or all(known[number] >> bit & 1 for number in numbers):
                    continue
                end_of = None if is_writer else bit_of_read.get((other, place))
                if end_of is None or not all(ended[number] >> end_of & 1 for number in numbers):
                    reported.add(other)
                    yield place, events[other], events[begin]


def _has_bits(number: int, bits: Sequence[int]) -> bool:
    """True if all of some bits of a number are 1."""
    if len(bits) < _FEW_BITS:
        return all(number >> bit & 1 for bit in bits)
    digits = bin(number)[:1:-1]
    return max(bits) < len(digits) and all(digits[bit] == "1" for bit in bits)


def find_races(program: Program, run: Run, places: Places) -> Iterator[ProgramFault]:
    """Yield a fault for each race between steps that ran: unordered accesses to a slot, one a write.

    In most programs the steps of each rank order all its accesses by themselves. The order across ranks is
    evaluated only if they do not, as that takes far longer for programs of many steps.
    """
    steps, accesses = run.steps, _Accesses(run.steps, places)
    done = np.array(run.done, dtype=np.int64)
    rank = steps.rank[done]
    by_rank = np.split(done[np.argsort(rank, kind="stable")], np.cumsum(np.bincount(rank))[:-1])
    if not any(_may_race(accesses, each.tolist()) for each in by_rank):
        return
    _, sends, receives = matched(steps)
    sent_by = dict(zip(receives.tolist(), sends.tolist(), strict=True))
    when = {step: index for index, step in enumerate(run.done)}
    events = []
    for step in run.done:
        before = {*accesses.before(step), *((sent_by[step],) if step in sent_by else ())}
        after = {when[each] for each in before}
        events.append(Event(step, after, accesses.reads(step), accesses.writes(step)))
    for place, earlier, later in unordered(events):
        first, second = steps.addresses([earlier.by, later.by])
        at, slot = places.slot(place)
        yield ProgramFault(
            "race",
            f"{first}, {program.step(first)}, and {second}, {program.step(second)}, both use "
            f"{slot} of rank {at}, and no dependency orders them",
            (first, second),
            rank=at,
        )


class _Accesses:
    """Places that each step reads and writes, and the steps of its rank that are known to precede it."""

    def __init__(self, steps: StepColumns, places: Places) -> None:
        self._counts = steps.num_chunks.tolist()
        self._sources, self._targets = (places.of(steps.rank, each) for each in (steps.src, steps.dst))
        self._reads, self._writes = (steps.parts[:, i].tolist() for i in (1, 2))
        self._adds = (steps.operation == REDUCE).tolist()
        self._needs, self._first = steps.needs_of(), {*steps.first.tolist()}

    def reads(self, step: int) -> Sequence[int]:
        """Places that a step reads."""
        source, count = self._sources[step], self._counts[step]
        reads = range(source, source + count) if self._reads[step] else ()
        return (*reads, *self.writes(step)) if self._adds[step] else reads

    def writes(self, step: int) -> Sequence[int]:
        """Places that a step writes."""
        target = self._targets[step]
        return range(target, target + self._counts[step]) if self._writes[step] else ()

    def before(self, step: int) -> Sequence[int]:
        """Direct predecessors of a step: in its threadblock, and its dependencies."""
        return self._needs[step] if step in self._first else (step - 1, *self._needs[step])


def _may_race(accesses: _Accesses, steps: Sequence[int]) -> bool:
    """True if two accesses to a slot of a rank may race, as no steps of the rank order them.

    - `steps`: Steps of the rank, in order of the run.
    """
    known: dict[int, int] = {}  # {step: steps known to precede it, and itself, as bits}
    written: dict[int, int] = {}  # last write of each place, as a bit
    read: dict[int, int] = {}  # reads since that write
    for number, step in enumerate(steps):
        bit, before = 1 << number, 0
        for each in accesses.before(step):
            before |= known[each]
        own = known[step] = before | bit
        for place in accesses.reads(step):
            if written.get(place, 0) & ~before:
                return True
            read[place] = read.get(place, 0) | bit
        for place in accesses.writes(step):
            if (written.get(place, 0) | read.pop(place, 0)) & ~own:
                return True
            written[place] = bit
    return False
