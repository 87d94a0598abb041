"""Drafts of a rank's steps to its threadblocks: positions, and the dependencies that are not yet implied."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from taccl.program.fuse import fuse, join_relays
from taccl.program.program import OPERATIONS, RankProgram, Slot, Step, Threadblock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Draft", "Key", "assemble", "read_slots", "written_slots"]


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
        yield from (Slot(step.src.buffer, step.src.offset + i) for i in range(step.count))
    if step.dst is not None and step.operation == "reduce":
        yield from (Slot(step.dst.buffer, step.dst.offset + i) for i in range(step.count))


def written_slots(step: Draft | Step) -> Iterator[Slot]:
    """Slots that a step puts something into."""
    if step.dst is not None and OPERATIONS[step.operation].writes:
        yield from (Slot(step.dst.buffer, step.dst.offset + i) for i in range(step.count))


def assemble(
    drafts: Sequence[Draft],
    input_chunks: int,
    output_chunks: int,
    scratch_chunks: int,
    *,
    relays: bool = False,
) -> RankProgram:
    """The rank's threadblocks; those that others wait for have the lowest numbers.

    - `relays`: Whether what mostly passes on what comes from one rank to another is one threadblock.
    """
    needs = _needs(drafts)
    if relays:
        joined = join_relays(drafts, needs)
        moved = {draft: replace(draft, key=joined.get(draft.key, draft.key)) for draft in drafts}
        needs = {moved[draft]: {moved[other] for other in mine} for draft, mine in needs.items()}
        drafts = list(moved.values())
    ordered, needs = fuse(sorted(drafts, key=lambda draft: draft.order), needs)
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
                if known.get(each, -1) < done:
                    known[each] = done
        known[key] = index
        passed[key, index] = known
    awaited = {key for each in waits.values() for key, _ in each}
    numbers = {key: n for n, key in enumerate(sorted(blocks, key=lambda key: (key not in awaited, key)))}
    threadblocks = []
    for key in numbers:
        steps = tuple(
            Step(
                each.operation,
                each.src,
                each.dst,
                each.count,
                tuple(sorted((numbers[other], index) for other, index in waits[each])),
            )
            for each in blocks[key]
        )
        threadblocks.append(
            Threadblock(
                steps,
                (key.send_to if key.kind == "relay" else key.peer)
                if any(OPERATIONS[step.operation].sends for step in steps)
                else None,
                key.peer if any(OPERATIONS[step.operation].receives for step in steps) else None,
                0 if key.kind == "local" else key.channel,
            )
        )
    return RankProgram(input_chunks, output_chunks, scratch_chunks, tuple(threadblocks))


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
