"""Race detection: unordered accesses to one place, one of them a write, in programs and execution plans."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from taccl.program.checks import ProgramFault, parcels_of
from taccl.program.emit import read_slots, written_slots
from taccl.program.execution import ExecutionState
from taccl.program.program import Program, StepAddress


class Event(NamedTuple):
    """Event of a run: reads and writes of one thread.

    - `by`: Owner of the event; consecutive events of the same owner are one access.
    - `after`: Numbers of its direct predecessors: the previous event of its thread, and those it waited for.
    - `reads`, `writes`: Places that it accesses.
    """

    by: Any
    after: Collection[int]
    reads: Collection[Hashable] = ()
    writes: Collection[Hashable] = ()


def unordered(events: Sequence[Event]) -> Iterator[tuple[Any, Event, Event]]:
    """Yield (place, event, event) for every two events that race, in order of the run.

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
        told: set[int] = set()
        for place in sorted(reads | writes):  # type: ignore[type-var]
            others = writers.get(place, [])
            if place in writes:
                others = others + readers.pop(place, [])
                writers[place] = numbers
            if place in reads:
                readers[place] += numbers
            for other in others:
                if other not in told and not all(known[number] >> other & 1 for number in numbers):
                    told.add(other)
                    yield place, events[other], events[numbers[0]]


def find_races(program: Program, execution: ExecutionState) -> Iterator[ProgramFault]:
    """Yield the races among the steps that ran."""
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
