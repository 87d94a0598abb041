"""Choose where messages of a program land under MSCCL++, and which sends must wait for room at the receiver.

In MSCCL++ a rank writes directly into another rank's memory, without flow control. Hence

- the first message of a queue waits until the receiver has begun, as the user may access the receiver's
  memory until then;
- a message waits if its receiver has used the destination slots before, until that use is over;
- a received summand must not overwrite the data that it is added to. It lands in the slot of the sum if the
  other summand is elsewhere, and otherwise in scratch chunks of its own.

Under protocol LL, messages are packets. Each lands in scratch chunks of its own, and no send waits for room.
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
    """Messages of a program (`Parcel`, chunks that one step sends), with the slots where they land.

    - `packets`: True if messages are packets (protocol LL).
    - `layouts`: Layout of each rank's buffers.
    - `received`, `sent`: {receiving step: message}, {sending step: message}.
    - `landing`: {receiving step: slot where its chunks land}; under LL, the packet's number in the scratch.
    - `sums`: {step: slot of its sum}, for steps that send a sum without keeping it.
    - `crowded`: Messages that land in a slot that the receiver has used before.
    - `opening`: {(rank, threadblock): first message of each queue that it receives from, unless crowded}.
    - `awaiting`: Crowded and opening messages: their sends wait for a signal that there is room.
    - `scratch_chunks`: Number of scratch chunks of every rank, including the program's own.
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
    """Assign a slot at its receiver to every message, by following a program's steps in a feasible order."""
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
        # A packet is twice as long as its data: packet p occupies the places of chunks 2p and 2p + 1.
        base = -(-scratch // 2)
        landing = {address: Slot("scratch", base + slot.offset) for address, slot in landing.items()}
        scratch = base + max(packed)
    sent = {parcel.send: parcel for parcel in parcels}
    return PlacedMessages(
        packets, layouts, received, sent, landing, sums, crowded, dict(opening), awaiting, scratch
    )


def _lands_in_place(step: Step, where: RankLayout, in_place: bool) -> bool:
    """True if received data may land directly in the step's destination without overwriting its source."""
    if step.dst is None:
        return False
    if step.operation in ("receive", "receive-send"):
        return True
    assert step.src is not None
    if step.operation == "receive-reduce-send":
        return False
    target = where.canonical(step.dst, in_place=in_place).neighbours(step.count)
    return not {*target} & {*where.canonical(step.src, in_place=in_place).neighbours(step.count)}
