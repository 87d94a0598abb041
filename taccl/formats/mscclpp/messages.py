"""Places of a program's messages under MSCCL++, and the sends that must wait for room.

In MSCCL++ a rank writes into another's memory, and nothing waits there for room. So

- the first message of a queue waits until the other rank has begun: before, the memory is the user's;
- a message that lands on a place which its rank has used before waits until that use is over;
- what is to be added to something lands beside it: in the slot of the sum where that is another one, else in
  scratch of its own.

As packets (protocol LL), every message lands in scratch of its own, and nothing has to wait for room.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from taccl.program.checks import Parcel, match
from taccl.program.emit import read_slots, written_slots
from taccl.program.execution import running_order
from taccl.program.layout import RankLayout, layouts_of
from taccl.program.program import Program, Slot, Step, StepAddress


@dataclass(frozen=True, slots=True)
class PlacedMessages:
    """The parcels of a program, and what their ranks do with them.

    - `packets`: Whether they go as packets (protocol LL).
    - `received`, `sent` (dict of step to parcel)
    - `landing` (dict of step to Slot): Where a receiving step's chunks land; a packet's number in the scratch
      of packets, under LL.
    - `sums` (dict of step to Slot): Where a step that sends on what it adds up, and keeps it nowhere, adds it
      up.
    - `crowded`: Those that land where something was before.
    - `opening` (dict of (rank, threadblock) to parcels): The first parcels of the queues that a threadblock
      receives from, where they may land at once.
    - `awaiting`: Both: those whose send waits for a signal that says there is room.
    - `scratch_chunks`: Of every rank, with the program's own.
    """

    packets: bool
    layouts: tuple[RankLayout, ...]
    received: dict[StepAddress, Parcel]
    sent: dict[StepAddress, Parcel]
    landing: dict[StepAddress, Slot]
    sums: dict[StepAddress, Slot]
    crowded: set[Parcel]
    opening: dict[tuple[int, int], list[Parcel]]
    awaiting: set[Parcel]
    scratch_chunks: int


def place_messages(program: Program, *, packets: bool) -> PlacedMessages:
    """Follow a program in an order in which it can run, and find every message its place."""
    parcels = match(program)
    received = {parcel.receive: parcel for parcel in parcels}
    layouts = layouts_of(program)
    own = program.scratch_chunks
    staged, packed = [own] * program.num_ranks, [0] * program.num_ranks
    landing: dict[StepAddress, Slot] = {}
    sums: dict[StepAddress, Slot] = {}
    crowded: set[Parcel] = set()
    used: list[set[Slot]] = [set() for _ in program.ranks]
    for address in running_order(program):
        rank, step = address.rank, program.step(address)
        if address in received:
            if step.operation == "receive-reduce-send" and packets:
                sums[address] = Slot("scratch", staged[rank])
                staged[rank] += step.count
            if packets:
                landing[address] = Slot("scratch", packed[rank])
                packed[rank] += step.count
            elif _lands_in_place(step, layouts[rank], program.in_place):
                assert step.dst is not None
                landing[address] = layouts[rank].canonical(step.dst, in_place=program.in_place)
            else:
                landing[address] = Slot("scratch", staged[rank])
                staged[rank] += step.count
            if not packets:
                if step.operation == "receive-reduce-send":
                    sums[address] = landing[address]
                slots = landing[address].neighbours(step.count)
                if used[rank].intersection(slots):
                    crowded.add(received[address])
                used[rank].update(slots)
        for slot in (*read_slots(step), *written_slots(step)):
            used[rank].add(layouts[rank].canonical(slot, in_place=program.in_place))
    opening: dict[tuple[int, int], list[Parcel]] = defaultdict(list)
    for parcel in () if packets else {parcel.queue: parcel for parcel in reversed(parcels)}.values():
        if parcel not in crowded:
            opening[parcel.receive[:2]].append(parcel)
    awaiting = crowded.union(*opening.values())
    scratch = max(staged)
    if packets:
        # A packet is twice as long as its data: packet p lies where data 2p and 2p + 1 would.
        base = -(-scratch // 2)
        landing = {address: Slot("scratch", base + slot.offset) for address, slot in landing.items()}
        scratch = base + max(packed)
    sent = {parcel.send: parcel for parcel in parcels}
    return PlacedMessages(
        packets, layouts, received, sent, landing, sums, crowded, dict(opening), awaiting, scratch
    )


def _lands_in_place(step: Step, where: RankLayout, in_place: bool) -> bool:
    """True if the arrival may lie in the step's destination before it is added to its source."""
    if step.dst is None:
        return False
    if step.operation in ("receive", "receive-send"):
        return True
    assert step.src is not None
    if step.operation == "receive-reduce-send":
        return False
    target = where.canonical(step.dst, in_place=in_place).neighbours(step.count)
    return not {*target} & {*where.canonical(step.src, in_place=in_place).neighbours(step.count)}
