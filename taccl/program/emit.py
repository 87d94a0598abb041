"""Drafts of a rank's steps to its threadblocks: positions, and the dependencies that are not yet implied.

A receive and the send right after it in its threadblock become one step if the send is the next to use what
came, and waits for nothing else. Nobody then waits longer than before: whoever uses what came comes after the
send anyway. Only single chunks are fused, since a step of several would pass on the first while it waits for
the others.

Such a step takes nothing before there is room for what it sends. There is: what its threadblock sent before,
it sent before the receive, and so that has been received, whatever else waits. (Were sends moved up to
receives that they do not follow directly, a ring of such steps could wait for room all around.)
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from taccl.program.program import OPERATIONS, Slot, Step, Threadblock

_FUSED = {"receive": "receive-send", "receive-reduce": "receive-reduce-copy-send"}


class Key(NamedTuple):
    """A threadblock before it has a number: what it does, with which rank, over which channel.

    A relay receives from `peer`, and sends to another rank.
    """

    kind: str
    peer: int
    channel: int
    send_to: int = -1


@dataclass(frozen=True, eq=False, slots=True)
class Draft:
    """A step before its threadblock has a number.

    - `key`: Its threadblock.
    - `order`: Its place among all steps of its rank: threadblocks run in this order, and it waits for none
      later.
    - `at`: When it takes or leaves its data, which says what it reads and overwrites.
    """

    key: Key
    order: tuple[int, int, int, int]
    at: tuple[int, int, int, int]
    operation: str
    src: Slot | None
    dst: Slot | None
    count: int


def read_slots(step: Draft | Step) -> Iterator[Slot]:
    """Slots whose content a step uses."""
    if step.src is not None and OPERATIONS[step.operation].reads:
        yield from step.src.neighbours(step.count)
    if step.dst is not None and step.operation == "reduce":
        yield from step.dst.neighbours(step.count)


def written_slots(step: Draft | Step) -> Iterator[Slot]:
    """Slots that a step puts something into."""
    if step.dst is not None and OPERATIONS[step.operation].writes:
        yield from step.dst.neighbours(step.count)


def assemble(drafts: Sequence[Draft], *, relays: bool = False) -> tuple[Threadblock, ...]:
    """The rank's threadblocks; those that others wait for have the lowest numbers.

    - `relays`: Whether what mostly passes on what comes from one rank to another is one threadblock.
    """
    needs = _needs(drafts)
    if relays:
        joined = _join_relays(drafts, needs)
        moved = {draft: replace(draft, key=joined.get(draft.key, draft.key)) for draft in drafts}
        needs = {moved[draft]: {moved[other] for other in mine} for draft, mine in needs.items()}
        drafts = list(moved.values())
    ordered, needs = _fuse(sorted(drafts, key=lambda draft: draft.order), needs)
    blocks: dict[Key, list[Draft]] = defaultdict(list)
    position: dict[Draft, tuple[Key, int]] = {}
    for draft in ordered:
        position[draft] = (draft.key, len(blocks[draft.key]))
        blocks[draft.key].append(draft)
    waits: dict[Draft, list[tuple[Key, int]]] = {}
    passed: dict[tuple[Key, int], dict[Key, int]] = {}  # what is known to be done once a step is done
    for draft in ordered:
        key, index = position[draft]
        known = dict(passed[key, index - 1]) if index else {}
        waits[draft] = []
        # The latest first: it may imply the others.
        for other in sorted(needs[draft], key=lambda each: each.order, reverse=True):
            other_key, other_index = position[other]
            if known.get(other_key, -1) >= other_index or other_key == key:
                continue
            waits[draft].append((other_key, other_index))
            for each, done in passed[other_key, other_index].items():
                known[each] = max(done, known.get(each, -1))
        known[key] = index
        passed[key, index] = known
    awaited = {key for each in waits.values() for key, _ in each}
    numbers = {key: n for n, key in enumerate(sorted(blocks, key=lambda key: (key not in awaited, key)))}
    threadblocks = []
    for key in numbers:
        steps = tuple(
            Step(
                each.operation, each.src, each.dst, each.count,
                tuple(sorted((numbers[other], index) for other, index in waits[each])),
            )
            for each in blocks[key]
        )  # fmt: skip
        sends = any(OPERATIONS[step.operation].sends for step in steps)
        receives = any(OPERATIONS[step.operation].receives for step in steps)
        send_to = key.send_to if key.kind == "relay" else key.peer
        channel = 0 if key.kind == "local" else key.channel
        threadblocks.append(
            Threadblock(steps, send_to if sends else None, key.peer if receives else None, channel)
        )
    return tuple(threadblocks)


def _needs(drafts: Sequence[Draft]) -> dict[Draft, set[Draft]]:
    """The steps that each must come after: writers of what it reads, users of what it overwrites."""
    writer: dict[Slot, Draft] = {}
    readers: dict[Slot, list[Draft]] = defaultdict(list)
    needs: dict[Draft, set[Draft]] = {}
    for draft in sorted(drafts, key=lambda each: each.at):
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
    """Threadblocks to be joined: of a receiving and a sending one, most of whose sends were just received."""
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
    """The steps in order, and what each waits for, with what can be fused fused.

    - `drafts`: In order.
    """
    blocks: dict[Key, list[Draft]] = defaultdict(list)
    for draft in drafts:
        blocks[draft.key].append(draft)
    users: dict[Draft, set[Draft]] = defaultdict(set)
    for draft, mine in needs.items():
        for other in mine:
            users[other].add(draft)
    becomes: dict[Draft, Draft] = {}
    gone: set[Draft] = set()
    for block in blocks.values():
        for first, second in pairwise(block):
            if _fits(first, second, needs, users):
                becomes[first] = becomes[second] = _as_one(first, users[first] - {second})
                gone.add(second)
    left = [draft for draft in drafts if draft not in gone]
    return [becomes.get(draft, draft) for draft in left], {
        becomes.get(draft, draft): {becomes.get(other, other) for other in needs[draft]} for draft in left
    }


def _fits(
    first: Draft, second: Draft, needs: Mapping[Draft, set[Draft]], users: Mapping[Draft, set[Draft]]
) -> bool:
    return (
        first.operation in _FUSED
        and second.operation == "send"
        and first.count == second.count == 1
        and second.src == first.dst
        and needs[second] == {first}
        and all(user is second or user.order > second.order for user in users[first])
    )


def _as_one(first: Draft, others: set[Draft]) -> Draft:
    """Both in one; a sum that no other step reads is not even kept."""
    kept = first.dst is None or first.dst.buffer != "scratch"
    kept = kept or any(first.dst == (each.dst if each.operation == "reduce" else each.src) for each in others)
    operation = _FUSED[first.operation]
    if operation == "receive-reduce-copy-send" and not kept:
        return replace(first, operation="receive-reduce-send", dst=None)
    return replace(first, operation=operation)
