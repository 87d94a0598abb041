"""Assemble a rank's threadblocks from drafts of steps: fuse steps, and omit dependencies implied by others.

A receive and the send right after it in the same threadblock are fused into one step on two conditions. The
send is the first step to use the data received, and it waits for nothing else. Then no step waits longer than
before, since all other users of the data come after the send anyway. Only single chunks are fused: a step of
several chunks would send the first while it waits for the others.

A fused step receives only once there is room for its send. This cannot deadlock. All earlier sends of its
threadblock precede the receive, so they have been received, whatever else waits. (If sends were moved to
receives that they do not follow directly, a ring of fused steps could wait for room all around.)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.program.program import OPERATIONS, Slot, Step, Threadblock

_order = attrgetter("order")
#: Operations that send, and operations that receive.
_SENDING, _RECEIVING = (
    frozenset(name for name, parts in OPERATIONS.items() if getattr(parts, part))
    for part in ("sends", "receives")
)
_FUSED = {"receive": "receive-send", "receive-reduce": "receive-reduce-copy-send"}


class Key(NamedTuple):
    """Identity of a threadblock before it has a number: its kind, peer rank and channel.

    A relay receives from `peer` and sends to `send_to`.
    """

    kind: str
    peer: int
    channel: int
    send_to: int = -1


@dataclass(eq=False, slots=True)
class Draft:
    """A step before its threadblock has a number.

    - `key`: Its threadblock.
    - `order`: Sort key among all steps of its rank. Threadblocks run in this order, and no step waits for a
      later one.
    - `at`: Sort key of the time at which it reads or writes its data, which determines its dependencies.
    """

    key: Key
    order: tuple[int, int, int, int]
    at: tuple[int, int, int, int]
    operation: str
    src: Slot | None
    dst: Slot | None
    count: int


def read_slots(step: Draft | Step) -> Sequence[Slot]:
    """Slots that a step reads."""
    src, dst = step.src, step.dst
    reads = () if src is None or not OPERATIONS[step.operation].reads else src.neighbours(step.count)
    if dst is not None and step.operation == "reduce":
        return (*reads, *dst.neighbours(step.count))
    return reads


def written_slots(step: Draft | Step) -> Sequence[Slot]:
    """Slots that a step writes."""
    dst = step.dst
    return () if dst is None or not OPERATIONS[step.operation].writes else dst.neighbours(step.count)


def assemble(drafts: Sequence[Draft], *, relays: bool = False) -> tuple[Threadblock, ...]:
    """Threadblocks of a rank; threadblocks for which others wait have the lowest numbers.

    - `relays`: True to join a receiving threadblock with the one that sends at least half of its data on.
    """
    ordered = sorted(drafts, key=_order)
    needs = _needs(ordered)
    if relays:
        joined = _join_relays(ordered, needs)
        ordered = [replace(draft, key=joined.get(draft.key, draft.key)) for draft in ordered]
    ordered, needs = _fuse(ordered, needs)
    blocks: dict[Key, list[int]] = {}  # steps of each threadblock
    for number, draft in enumerate(ordered):
        blocks.setdefault(draft.key, []).append(number)
    keys, steps_of = [*blocks], [*blocks.values()]
    waits = _waits(steps_of, needs)
    awaited = {block for each in waits.values() for block, _ in each}
    in_order = sorted(range(len(keys)), key=lambda block: (block not in awaited, keys[block]))
    numbers = [0] * len(keys)
    for place, block in enumerate(in_order):
        numbers[block] = place
    threadblocks = []
    for block in in_order:
        key, steps = keys[block], []
        for number in steps_of[block]:
            each, waited = ordered[number], waits.get(number)
            depends = tuple(sorted([(numbers[other], index) for other, index in waited])) if waited else ()
            steps.append(Step(each.operation, each.src, each.dst, each.count, depends))
        operations = {step.operation for step in steps}
        send_to = key.send_to if key.kind == "relay" else key.peer
        threadblocks.append(
            Threadblock(
                tuple(steps),
                None if _SENDING.isdisjoint(operations) else send_to,
                None if _RECEIVING.isdisjoint(operations) else key.peer,
                0 if key.kind == "local" else key.channel,
            )
        )
    return tuple(threadblocks)


def _waits(
    blocks: Sequence[Sequence[int]], needs: Sequence[Collection[int]]
) -> dict[int, list[tuple[int, int]]]:
    """{step: (threadblock, index) of the steps for which it waits}, without those that other waits imply.

    - `blocks`: Steps of each threadblock.
    - `needs`: Steps on which each step depends.
    """
    position = [(0, 0)] * len(needs)
    for block, numbers in enumerate(blocks):
        for index, number in enumerate(numbers):
            position[number] = block, index
    waits: dict[int, list[tuple[int, int]]] = {}
    # Vector clock of each step: for each other threadblock, its last step that is known to end before.
    # Steps that wait for nothing new share the clock of the step before them.
    clock = [np.full(len(blocks), -1, np.int32)] * len(blocks)
    passed: list[NDArray[np.int32]] = []
    for number, (block, _) in enumerate(position):
        known, others = clock[block], needs[number]
        # The latest step comes first, as a dependency on it may imply dependencies on the others.
        for other in sorted(others, reverse=True) if len(others) > 1 else others:
            other_block, index = position[other]
            if other_block == block or known[other_block] >= index:
                continue
            waits.setdefault(number, []).append((other_block, index))
            known = np.maximum(known, passed[other])
            known[other_block] = index
        clock[block] = known
        passed.append(known)
    return waits


def _needs(drafts: Sequence[Draft]) -> list[set[int]]:
    """Steps on which each step depends: writers of the slots it reads, and users of the slots it overwrites.

    Steps are numbered as in `drafts`.
    """
    writer: dict[Slot, int] = {}
    readers: dict[Slot, list[int]] = {}
    needs: list[set[int]] = [set() for _ in drafts]
    times = [draft.at for draft in drafts]
    for number in sorted(range(len(drafts)), key=times.__getitem__):
        draft, mine = drafts[number], needs[number]
        for slot in read_slots(draft):
            if slot in writer:
                mine.add(writer[slot])
            readers.setdefault(slot, []).append(number)
        for slot in written_slots(draft):
            mine.update(readers.pop(slot, ()))
            if slot in writer:
                mine.add(writer[slot])
            writer[slot] = number
        mine.discard(number)
    return needs


def _join_relays(drafts: Sequence[Draft], needs: Sequence[set[int]]) -> dict[Key, Key]:
    """{threadblock: relay that replaces it}, for pairs of a receiving and a sending threadblock to join.

    In each pair, at least half of the steps of each threadblock relay data from one to the other.
    """
    sizes = Counter(draft.key for draft in drafts)
    passed_on: Counter[tuple[Key, Key]] = Counter()
    for draft, mine in zip(drafts, needs, strict=True):
        if draft.operation == "send" and len(mine) == 1:
            source = drafts[min(mine)]
            if source.operation in _FUSED and source.key.channel == draft.key.channel:
                passed_on[source.key, draft.key] += 1
    joined: dict[Key, Key] = {}
    for (source_key, key), count in sorted(passed_on.items(), key=lambda item: (-item[1], item[0])):
        if source_key in joined or key in joined or 2 * count < max(sizes[key], sizes[source_key]):
            continue
        joined[source_key] = joined[key] = source_key._replace(kind="relay", send_to=key.peer)
    return joined


def _fuse(drafts: Sequence[Draft], needs: list[set[int]]) -> tuple[list[Draft], list[set[int]]]:
    """Fuse receives with the sends of their data; return the steps in order, and their dependencies.

    - `drafts`: All steps, in order.
    - `needs`: Numbers of the steps on which each depends.
    """
    blocks: dict[Key, list[int]] = defaultdict(list)
    for number, draft in enumerate(drafts):
        blocks[draft.key].append(number)
    pairs = [
        (first, second)
        for block in blocks.values()
        for first, second in pairwise(block)
        if _relays(drafts[first], drafts[second])
    ]
    users: dict[int, list[int]] = {first: [] for first, _ in pairs}
    for number, mine in enumerate(needs) if users else ():
        for other in mine:
            if other in users:
                users[other].append(number)
    fused: dict[int, Draft] = {}
    gone: dict[int, int] = {}  # {send that is part of a receive: this receive}
    for first, second in pairs:
        if needs[second] == {first} and all(user >= second for user in users[first]):
            others = [drafts[user] for user in users[first] if user != second]
            fused[first], gone[second] = _as_one(drafts[first], others), first
    if not fused:
        return list(drafts), needs
    left = [number for number in range(len(drafts)) if number not in gone]
    places = {number: place for place, number in enumerate(left)}
    places |= {second: places[first] for second, first in gone.items()}
    return [fused.get(number, drafts[number]) for number in left], [
        {places[other] for other in needs[number]} for number in left
    ]


def _relays(first: Draft, second: Draft) -> bool:
    """True if a step receives one chunk, and the step after it sends the slot that it writes."""
    return (
        first.operation in _FUSED
        and second.operation == "send"
        and first.count == second.count == 1
        and second.src == first.dst
    )


def _as_one(first: Draft, others: Collection[Draft]) -> Draft:
    """Fuse a receive and its send into one step; a sum in scratch that no other step reads is not stored.

    - `others`: Other steps that use the receive's data.
    """
    kept = first.dst is None or first.dst.buffer != "scratch"
    kept = kept or any(first.dst == (each.dst if each.operation == "reduce" else each.src) for each in others)
    operation = _FUSED[first.operation]
    if operation == "receive-reduce-copy-send" and not kept:
        return replace(first, operation="receive-reduce-send", dst=None)
    return replace(first, operation=operation)
