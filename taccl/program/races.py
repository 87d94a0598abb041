"""Races: two accesses to one slot, one of them a write, that no dependency, threadblock or message orders."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from taccl.program.checks import Fault, parcels_of
from taccl.program.emit import read_slots, written_slots
from taccl.program.execution import ExecutionState, Memory
from taccl.program.program import Program, Slot, Step, StepAddress


def find_races(program: Program, execution: ExecutionState) -> Iterator[Fault]:
    """Races among the steps that ran.

    Every access must come after the last write before it, and every write after the reads since then: if
    neighbours are in order, all are.
    """
    sent_by = {parcel.receive: parcel.send for parcel in parcels_of(program)}
    when = {address: index for index, address in enumerate(execution.done)}
    before = {address: _right_before(program, address, sent_by) for address in execution.done}
    uses = Counter(each for mine in before.values() for each in mine)
    accesses = [_Accesses(memory) for memory in execution.memory]
    known: dict[StepAddress, int] = {}  # what was done once a step is done: a bit for each, by `when`
    for later in execution.done:
        step, done = program.step(later), 0
        for each in before[later]:
            done |= known[each]
            uses[each] -= 1
            if not uses[each]:
                del known[each]
        known[later] = done | 1 << when[later]
        for place, earlier in accesses[later.rank].add(later, step):
            if not done >> when[earlier] & 1:
                yield Fault(
                    "race",
                    f"{earlier}, {program.step(earlier)}, and {later}, {step}, both use {place} of rank "
                    f"{later.rank}, and no dependency orders them",
                    (earlier, later),
                    rank=later.rank,
                )


def _right_before(
    program: Program, address: StepAddress, sent_by: dict[StepAddress, StepAddress]
) -> set[StepAddress]:
    """The steps that a step waits for: in its threadblock, by its dependencies, and for its message."""
    rank, t, s = address
    before = {StepAddress(rank, *each) for each in program.step(address).depends}
    if s:
        before.add(StepAddress(rank, t, s - 1))
    if address in sent_by:
        before.add(sent_by[address])
    return before


class _Accesses:
    """Who used each place of one rank last."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._writer: dict[Slot, StepAddress] = {}
        self._readers: dict[Slot, list[StepAddress]] = defaultdict(list)

    def add(self, address: StepAddress, step: Step) -> Iterator[tuple[Slot, StepAddress]]:
        """The accesses of a step; returns those before it that it must come after, and where, once each."""
        told = {address}
        reads = {self._memory.place(slot) for slot in read_slots(step)}
        writes = {self._memory.place(slot) for slot in written_slots(step)}
        for place in sorted(reads | writes):
            others = [self._writer[place]] if place in self._writer else []
            if place in writes:
                others += self._readers.pop(place, ())
                self._writer[place] = address
            if place in reads:
                self._readers[place].append(address)
            for other in others:
                if other not in told:
                    told.add(other)
                    yield place, other
