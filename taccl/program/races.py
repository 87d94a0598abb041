"""Races: two accesses to one slot, one of them a write, that no dependency, threadblock or message orders."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taccl.program.checks import Fault, parcels_of
from taccl.program.emit import read_slots, written_slots
from taccl.program.execution import ExecutionState, Memory
from taccl.program.program import Program, Slot, StepAddress


def find_races(program: Program, execution: ExecutionState) -> Iterator[Fault]:
    """Races among the steps that ran.

    Every access must come after the last write before it, and every write after the reads since then: if
    neighbours are in order, all are. The order is looked for within the rank first, which nearly always
    settles it, and then along messages through other ranks.
    """
    sent_by = {parcel.receive: parcel.send for parcel in parcels_of(program)}
    when = {address: index for index, address in enumerate(execution.done)}
    by_rank: dict[int, list[StepAddress]] = defaultdict(list)
    for address in execution.done:
        by_rank[address.rank].append(address)
    for rank, addresses in by_rank.items():
        clocks = _local_clocks(program, addresses)
        for place, earlier, later in _conflicts(program, execution.memory[rank], addresses):
            if clocks[later][earlier.threadblock] >= earlier.step or _comes_before(
                program, sent_by, when, earlier, later
            ):
                continue
            first, second = program.step(earlier), program.step(later)
            yield Fault(
                "race",
                f"{earlier}, {first}, and {later}, {second}, both use {place} of rank {rank}, "
                "and no dependency orders them",
                (earlier, later),
                rank=rank,
            )


def _local_clocks(program: Program, addresses: Sequence[StepAddress]) -> dict[StepAddress, NDArray[Any]]:
    """Of every step: the last step of each threadblock of its rank done when it begins; -1: none."""
    count = len(program.ranks[addresses[0].rank].threadblocks)
    clocks: dict[StepAddress, NDArray[Any]] = {}
    for address in addresses:
        rank, t, s = address
        clock = np.full(count, -1, dtype=np.int32)
        if s:
            clock[:] = clocks[StepAddress(rank, t, s - 1)]
            clock[t] = s - 1
        for other, index in program.step(address).depends:
            np.maximum(clock, clocks[StepAddress(rank, other, index)], out=clock)
            clock[other] = max(clock[other], index)
        clocks[address] = clock
    return clocks


def _conflicts(
    program: Program, memory: Memory, addresses: Sequence[StepAddress]
) -> Iterator[tuple[Slot, StepAddress, StepAddress]]:
    """Pairs of accesses to one place that must be in order: (place, earlier, later)."""
    writer: dict[Slot, StepAddress] = {}
    readers: dict[Slot, list[StepAddress]] = defaultdict(list)
    for address in addresses:
        step = program.step(address)
        told: set[StepAddress] = set()
        reads = {memory.place(slot) for slot in read_slots(step)}
        writes = {memory.place(slot) for slot in written_slots(step)}
        for place in sorted(reads | writes):
            others = [writer[place]] if place in writer else []
            if place in writes:
                others += readers.pop(place, ())
            for other in others:
                if other.threadblock != address.threadblock and other not in told:
                    told.add(other)
                    yield place, other, address
        for place in reads:
            readers[place].append(address)
        for place in writes:
            writer[place] = address


def _comes_before(
    program: Program,
    sent_by: dict[StepAddress, StepAddress],
    when: dict[StepAddress, int],
    earlier: StepAddress,
    later: StepAddress,
) -> bool:
    """Whether a chain of dependencies, threadblocks and messages leads from one step to another."""
    seen = {later}
    pending = [later]
    while pending:
        address = pending.pop()
        rank, t, s = address
        before = [StepAddress(rank, *each) for each in program.step(address).depends]
        if s:
            before.append(StepAddress(rank, t, s - 1))
        if address in sent_by:
            before.append(sent_by[address])
        for each in before:
            if each == earlier:
                return True
            # A send of several chunks may still be under way.
            if each not in seen and when.get(each, len(when)) > when[earlier]:
                seen.add(each)
                pending.append(each)
    return False
