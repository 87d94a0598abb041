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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.program.program import OPERATIONS, Slot, Step, Threadblock

if TYPE_CHECKING:
    from numpy.typing import NDArray

_order = attrgetter("order")
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
    needs = _needs(drafts)
    if relays:
        joined = _join_relays(drafts, needs)
        moved = {draft: replace(draft, key=joined.get(draft.key, draft.key)) for draft in drafts}
        needs = {moved[draft]: {moved[other] for other in mine} for draft, mine in needs.items()}
        drafts = list(moved.values())
    ordered, needs = _fuse(sorted(drafts, key=_order), needs)
    blocks: dict[Key, list[Draft]] = {}
    position: dict[Draft, tuple[Key, int]] = {}
    for draft in ordered:
        block = blocks.setdefault(draft.key, [])
        position[draft] = (draft.key, len(block))
        block.append(draft)
    waits: dict[Draft, list[tuple[Key, int]]] = {}
    # Vector clock of each step: for each other threadblock, its last step that is known to end before.
    # Steps that wait for nothing new share the clock of the step before them.
    place = {key: i for i, key in enumerate(blocks)}
    clock = dict.fromkeys(blocks, np.full(len(place), -1, np.int32))
    passed: dict[Draft, NDArray[np.int32]] = {}
    for draft in ordered:
        key, others = draft.key, needs[draft]
        known = clock[key]
        # The latest step comes first, as a dependency on it may imply dependencies on the others.
        for other in sorted(others, key=_order, reverse=True) if len(others) > 1 else others:
            other_key, other_index = position[other]
            if other_key == key or known[place[other_key]] >= other_index:
                continue
            waits.setdefault(draft, []).append((other_key, other_index))
            known = np.maximum(known, passed[other])
            known[place[other_key]] = other_index
        passed[draft] = clock[key] = known
    awaited = {key for each in waits.values() for key, _ in each}
    numbers = {key: n for n, key in enumerate(sorted(blocks, key=lambda key: (key not in awaited, key)))}
    threadblocks = []
    for key in numbers:
        steps = tuple([
            Step(each.operation, each.src, each.dst, each.count, _numbered(waits.get(each), numbers))
            for each in blocks[key]
        ])  # fmt: skip
        operations = [OPERATIONS[each] for each in {step.operation for step in steps}]
        sends = any(each.sends for each in operations)
        receives = any(each.receives for each in operations)
        send_to = key.send_to if key.kind == "relay" else key.peer
        channel = 0 if key.kind == "local" else key.channel
        threadblocks.append(
            Threadblock(steps, send_to if sends else None, key.peer if receives else None, channel)
        )
    return tuple(threadblocks)


def _numbered(
    waits: Sequence[tuple[Key, int]] | None, numbers: Mapping[Key, int]
) -> tuple[tuple[int, int], ...]:
    """Steps for which a step waits, with the numbers of their threadblocks; `waits` is None for no steps."""
    return tuple(sorted([(numbers[key], index) for key, index in waits])) if waits else ()


def _needs(drafts: Sequence[Draft]) -> dict[Draft, set[Draft]]:
    """{step: steps it depends on}: writers of the slots it reads, and users of the slots it overwrites."""
    writer: dict[Slot, Draft] = {}
    readers: dict[Slot, list[Draft]] = defaultdict(list)
    needs: dict[Draft, set[Draft]] = {}
    for draft in sorted(drafts, key=attrgetter("at")):
        mine = needs[draft] = set()
        for slot in read_slots(draft):
            if slot in writer:
                mine.add(writer[slot])
            readers[slot].append(draft)
        for slot in written_slots(draft):
            mine.update(readers.pop(slot, ()))
            if slot in writer:
                mine.add(writer[slot])
            writer[slot] = draft
        mine.discard(draft)
    return needs


def _join_relays(drafts: Sequence[Draft], needs: Mapping[Draft, set[Draft]]) -> dict[Key, Key]:
    """{threadblock: relay that replaces it}, for pairs of a receiving and a sending threadblock to join.

    In each pair, at least half of the steps of each threadblock relay data from one to the other.
    """
    sizes = Counter(draft.key for draft in drafts)
    passed_on: Counter[tuple[Key, Key]] = Counter()
    for draft in drafts:
        if draft.operation == "send" and len(needs[draft]) == 1:
            (source,) = needs[draft]
            if source.operation in _FUSED and source.key.channel == draft.key.channel:
                passed_on[source.key, draft.key] += 1
    joined: dict[Key, Key] = {}
    for (source_key, key), count in sorted(passed_on.items(), key=lambda item: (-item[1], item[0])):
        if source_key in joined or key in joined or 2 * count < max(sizes[key], sizes[source_key]):
            continue
        joined[source_key] = joined[key] = source_key._replace(kind="relay", send_to=key.peer)
    return joined


def _fuse(
    drafts: Sequence[Draft], needs: Mapping[Draft, set[Draft]]
) -> tuple[list[Draft], dict[Draft, set[Draft]]]:
    """Fuse receives with the sends of their data; return the steps in order, and their dependencies.

    - `drafts`: All steps, in order.
    """
    blocks: dict[Key, list[Draft]] = defaultdict(list)
    for draft in drafts:
        blocks[draft.key].append(draft)
    pairs = [pair for block in blocks.values() for pair in pairwise(block) if _relays(*pair)]
    users: dict[Draft, set[Draft]] = {first: set() for first, _ in pairs}
    for draft, mine in needs.items() if users else ():
        for other in mine:
            if other in users:
                users[other].add(draft)
    becomes: dict[Draft, Draft] = {}
    gone: set[Draft] = set()
    for first, second in pairs:
        if needs[second] == {first} and all(
            user is second or user.order > second.order for user in users[first]
        ):
            becomes[first] = becomes[second] = _as_one(first, users[first] - {second})
            gone.add(second)
    if not becomes:
        return list(drafts), dict(needs)
    left = [draft for draft in drafts if draft not in gone]
    return [becomes.get(draft, draft) for draft in left], {
        becomes.get(draft, draft): {becomes.get(other, other) for other in needs[draft]} for draft in left
    }


def _relays(first: Draft, second: Draft) -> bool:
    """True if a step receives one chunk, and the step after it sends the slot that it writes."""
    return (
        first.operation in _FUSED
        and second.operation == "send"
        and first.count == second.count == 1
        and second.src == first.dst
    )


def _as_one(first: Draft, others: set[Draft]) -> Draft:
    """Fuse a receive and its send into one step; a sum in scratch that no other step reads is not stored.

    - `others`: Other steps that use the receive's data.
    """
    kept = first.dst is None or first.dst.buffer != "scratch"
    kept = kept or any(first.dst == (each.dst if each.operation == "reduce" else each.src) for each in others)
    operation = _FUSED[first.operation]
    if operation == "receive-reduce-copy-send" and not kept:
        return replace(first, operation="receive-reduce-send", dst=None)
    return replace(first, operation=operation)
