"""What can be said of a program without running it: every step can run, and queues have two ends."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

from taccl.program.faults import Fault
from taccl.program.program import BUFFERS, OPERATIONS, StepAddress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taccl.program.program import Program, RankProgram, Slot, Step, Threadblock

__all__ = ["Queue", "check_queues", "check_steps", "queue_ends"]


class Queue(NamedTuple):
    """What goes from one rank to another over one channel, first in, first out."""

    src: int
    dst: int
    channel: int

    def __str__(self) -> str:
        return f"from rank {self.src} to rank {self.dst} over channel {self.channel}"


def check_steps(program: Program) -> Iterator[Fault]:
    """Faults of single steps: slots past their buffer, peers, counts and dependencies that do not exist."""
    for address, step in program.steps():
        rank = program.ranks[address.rank]
        threadblock = rank.threadblocks[address.threadblock]
        for text in _complaints(program, rank, threadblock, address, step):
            yield Fault("step", f"{address}, {step}: {text}", (address,), rank=address.rank)


def _complaints(
    program: Program, rank: RankProgram, threadblock: Threadblock, address: StepAddress, step: Step
) -> Iterator[str]:
    parts = OPERATIONS.get(step.operation)
    if parts is None:
        yield f"there is no such operation; expected one of {', '.join(OPERATIONS)}"
        return
    if step.count < 1 and step.operation != "nop":
        yield f"found a count of {step.count}; expected at least 1"
    for used, slot, word in ((parts.reads, step.src, "reads"), (parts.writes, step.dst, "writes")):
        if not used:
            continue
        complaint = (
            f"{word} nothing; expected a slot" if slot is None else _past(rank, slot, step.count, word)
        )
        if complaint:
            yield complaint
    for acts, peer, word in (
        (parts.sends, threadblock.send_to, "sends to"),
        (parts.receives, threadblock.receive_from, "receives from"),
    ):
        if acts and (peer is None or not 0 <= peer < program.num_ranks or peer == address.rank):
            named = "no rank" if peer is None else f"rank {peer}"
            yield f"{word} {named}; expected another one of 0-{program.num_ranks - 1}"
    for other, index in step.depends:
        if not 0 <= other < len(rank.threadblocks):
            yield f"depends on threadblock {other}; expected 0-{len(rank.threadblocks) - 1}"
        elif not 0 <= index < len(rank.threadblocks[other].steps):
            last = len(rank.threadblocks[other].steps) - 1
            yield f"depends on step {index} of threadblock {other}; expected 0-{last}"


def _past(rank: RankProgram, slot: Slot, count: int, word: str) -> str:
    if slot.buffer not in BUFFERS:
        return f"{word} buffer {slot.buffer!r}; expected one of {', '.join(BUFFERS)}"
    length = {
        "input": rank.input_chunks, "output": rank.output_chunks, "scratch": rank.scratch_chunks,
    }[slot.buffer]  # fmt: skip
    if slot.offset >= 0 and slot.offset + count <= length:
        return ""
    return f"{word} chunks {slot.offset} to {slot.offset + count - 1} of {slot.buffer}, which holds {length}"


def queue_ends(
    program: Program,
) -> tuple[dict[Queue, list[tuple[int, int]]], dict[Queue, list[tuple[int, int]]]]:
    """The (rank, threadblock) that send into each queue, and those that receive from it."""
    senders: dict[Queue, list[tuple[int, int]]] = defaultdict(list)
    receivers: dict[Queue, list[tuple[int, int]]] = defaultdict(list)
    for r, rank in enumerate(program.ranks):
        for t, threadblock in enumerate(rank.threadblocks):
            if threadblock.send_to is not None:
                senders[Queue(r, threadblock.send_to, threadblock.channel)].append((r, t))
            if threadblock.receive_from is not None:
                receivers[Queue(threadblock.receive_from, r, threadblock.channel)].append((r, t))
    return dict(senders), dict(receivers)


def check_queues(program: Program) -> Iterator[Fault]:
    """Faults of queues: shared at one end, or with unequal numbers of chunks sent and received."""
    senders, receivers = queue_ends(program)
    for ends, word in ((senders, "send"), (receivers, "receive")):
        for queue, blocks in ends.items():
            if len(blocks) > 1:
                rank = blocks[0][0]
                numbers = ", ".join(str(t) for _, t in blocks)
                yield Fault(
                    "queue",
                    f"threadblocks {numbers} of rank {rank} all {word} {queue}, in no order; give each a "
                    "channel of its own",
                    tuple(StepAddress(r, t, 0) for r, t in blocks),
                    rank=rank,
                )
    sent, received = Counter[Queue](), Counter[Queue]()
    for address, step in program.steps():
        threadblock = program.ranks[address.rank].threadblocks[address.threadblock]
        parts = OPERATIONS.get(step.operation)
        if parts is None:
            continue
        if parts.sends and threadblock.send_to is not None:
            sent[Queue(address.rank, threadblock.send_to, threadblock.channel)] += step.count
        if parts.receives and threadblock.receive_from is not None:
            received[Queue(threadblock.receive_from, address.rank, threadblock.channel)] += step.count
    for queue in sorted({*sent, *received}):
        if sent[queue] != received[queue]:
            yield Fault(
                "queue",
                f"{sent[queue]} chunks are sent and {received[queue]} received {queue}",
                rank=queue.dst,
            )
