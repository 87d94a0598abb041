"""Static checks of a program: faults of steps and queues, sends matched with receives, chunks per message.

The kernels of MSCCL cut a step of several chunks into messages of at most one buffer slot each. A queue holds
a fixed number of messages (`PROTOCOLS`), however small they are. So a step of several small chunks is one
message, and the same step of large chunks is several.

The number of messages of a step never decreases as sizes grow. A program that runs to its end with some
number of messages per step does so with fewer. Proof: drop the first messages of every step, at the sender
and at the receiver, and leave the others at their times in that run. Every queue then holds no more than it
did, and each message still comes before its receive. A step begins no earlier and ends when it did. So a
program that deadlocks at one size deadlocks at every larger one.

Large chunks are sent in several rounds of all steps. A round that ends leaves every queue empty. Deadlocks do
not depend on timing, so one round decides for all.

Sources: ``msccl_setup.cc`` and ``msccl_kernel_impl.h`` of RCCL 2.21.5, ``enqueue.cc`` and
``msccl_interpreter.h`` of microsoft/msccl (NCCL 2.12.12), and ``msccl_setup.cc`` of Azure/msccl-executor-nccl
(NCCL 2.23.4).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from taccl._internal.names import shown
from taccl.errors import InputError
from taccl.program.layout import RankLayout
from taccl.program.program import BUFFERS, OPERATIONS, Block, Program, Queue, Step, StepAddress, Threadblock

#: {queue: steps that send into it, or that receive from it}.
Traffic = defaultdict[Queue, list[tuple[StepAddress, Step]]]
#: {queue: threadblocks that send into it, or that receive from it}.
Ends = defaultdict[Queue, list[Block]]


@dataclass(frozen=True, slots=True)
class ProgramFault:
    """One fault of a program.

    - `kind`: One of `taccl.program.interpret.FAULT_KINDS`.
    - `message`: A sentence on the fault.
    - `steps`: The steps at fault. For a deadlock they are a cycle: each waits for the next and the last for
      the first.
    - `rank`, `chunk`: Rank and chunk of the fault; None if they do not apply.
    """

    kind: str
    message: str
    steps: tuple[StepAddress, ...] = ()
    rank: int | None = None
    chunk: int | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {shown(self.message, 1000)}"


class Parcel(NamedTuple):
    """Neighbouring chunks that one step sends and another step receives; `chunks` counts them."""

    queue: Queue
    send: StepAddress
    receive: StepAddress
    chunks: int


def match(program: Program) -> tuple[Parcel, ...]:
    """Match each send with its receive, by queue in FIFO order; `InputError` for faulty steps or queues."""
    for fault in (*check_steps(program), *check_queues(program)):
        raise InputError(f"{fault}; call taccl.interpret for all faults", where="program")
    return tuple(parcels_of(program))


def parcels_of(program: Program) -> Iterator[Parcel]:
    """Yield each send of a program, faulty or not, with its receive; omit sends without a receive."""
    sent, received = traffic(program)
    for queue in sorted(sent):
        for (send, step), (receive, _) in zip(sent[queue], received[queue], strict=False):
            yield Parcel(queue, send, receive, step.count)


def check_steps(program: Program) -> Iterator[ProgramFault]:
    """Yield faults of single steps: invalid operations, counts, slots, peers and dependencies."""
    for (r, t), threadblock in program.threadblocks():
        for s, step in enumerate(threadblock.steps):
            for text in _step_faults(program, r, threadblock, step):
                address = StepAddress(r, t, s)
                yield ProgramFault("step", f"{address}, {step}: {text}", (address,), rank=r)


def _step_faults(program: Program, r: int, threadblock: Threadblock, step: Step) -> Iterator[str]:
    rank = program.ranks[r]
    parts = OPERATIONS.get(step.operation)
    if parts is None:
        yield f"there is no such operation; expected one of {', '.join(OPERATIONS)}"
        return
    if step.count < 1 and step.operation != "nop":
        yield f"found a count of {step.count}; expected at least 1"
    for used, slot, word in ((parts.reads, step.src, "reads"), (parts.writes, step.dst, "writes")):
        if not used:
            continue
        if slot is None:
            yield f"{word} nothing; expected a slot"
        elif slot.buffer not in BUFFERS:
            yield f"{word} buffer {slot.buffer!r}; expected one of {', '.join(BUFFERS)}"
        else:
            end, length = slot.offset + step.count, getattr(rank, f"{slot.buffer}_chunks")
            if slot.offset < 0 or end > length:
                yield f"{word} chunks {slot.offset} to {end - 1} of {slot.buffer}, which holds {length}"
    for acts, peer, word in (
        (parts.sends, threadblock.send_to, "sends to"),
        (parts.receives, threadblock.receive_from, "receives from"),
    ):
        if acts and (peer is None or not 0 <= peer < program.num_ranks or peer == r):
            named = "no rank" if peer is None else f"rank {peer}"
            yield f"{word} {named}; expected another one of 0-{program.num_ranks - 1}"
    for other, index in step.depends:
        if not 0 <= other < len(rank.threadblocks):
            yield f"depends on threadblock {other}; expected 0-{len(rank.threadblocks) - 1}"
        elif not 0 <= index < len(rank.threadblocks[other].steps):
            last = len(rank.threadblocks[other].steps) - 1
            yield f"depends on step {index} of threadblock {other}; expected 0-{last}"


def queue_ends(program: Program) -> tuple[Ends, Ends]:
    """Threadblocks that send into each queue, and those that receive from it."""
    senders, receivers = Ends(list), Ends(list)
    for (r, t), threadblock in program.threadblocks():
        outgoing, incoming = threadblock.sends_into(r), threadblock.receives_from(r)
        if outgoing is not None:
            senders[outgoing].append((r, t))
        if incoming is not None:
            receivers[incoming].append((r, t))
    return senders, receivers


def traffic(program: Program) -> tuple[Traffic, Traffic]:
    """Steps that send into each queue, and those that receive from it, in program order."""
    sent, received = Traffic(list), Traffic(list)
    for (r, t), threadblock in program.threadblocks():
        outgoing, incoming = threadblock.sends_into(r), threadblock.receives_from(r)
        for s, step in enumerate(threadblock.steps):
            parts = OPERATIONS.get(step.operation)
            if parts is not None and parts.sends and outgoing is not None:
                sent[outgoing].append((StepAddress(r, t, s), step))
            if parts is not None and parts.receives and incoming is not None:
                received[incoming].append((StepAddress(r, t, s), step))
    return sent, received


def check_ends(program: Program) -> Iterator[ProgramFault]:
    """Yield faults of queues with several threadblocks at one end."""
    senders, receivers = queue_ends(program)
    for ends, word in ((senders, "send"), (receivers, "receive")):
        for queue, blocks in ends.items():
            if len(blocks) > 1:
                rank = blocks[0][0]
                numbers = ", ".join(str(t) for _, t in blocks)
                yield ProgramFault(
                    "queue",
                    f"threadblocks {numbers} of rank {rank} all {word} {queue} in undefined order; give "
                    "each its own channel",
                    tuple(StepAddress(r, t, 0) for r, t in blocks),
                    rank=rank,
                )


def check_queues(program: Program) -> Iterator[ProgramFault]:
    """Yield faults of queues: shared ends, and numbers of chunks sent that differ from those received."""
    yield from check_ends(program)
    sent, received = traffic(program)
    for queue in sorted({*sent, *received}):
        total, taken = (sum(step.count for _, step in each[queue]) for each in (sent, received))
        if total != taken:
            yield ProgramFault(
                "queue", f"{total} chunks are sent and {taken} received {queue}", rank=queue.dst
            )
        for (send, ours), (receive, theirs) in zip(sent[queue], received[queue], strict=False):
            if ours.count != theirs.count:
                yield ProgramFault(
                    "queue",
                    f"{send} sends {ours.count} chunks at once, of which {receive} receives {theirs.count} "
                    "at once; cut both ends into the same steps",
                    (send, receive),
                    rank=queue.dst,
                )
                break


def check_sizes(program: Program, layouts: Sequence[RankLayout]) -> Iterator[ProgramFault]:
    """Yield faults of buffers that are too small for the collective."""
    for rank, (mine, where) in enumerate(zip(program.ranks, layouts, strict=False)):
        for word, found, expected in (
            ("input", mine.input_chunks, len(where.inputs)),
            ("output", mine.output_chunks, len(where.outputs)),
        ):
            if found < expected:
                yield ProgramFault(
                    "step", f"the {word} of rank {rank} holds {found} chunks; expected {expected}", rank=rank
                )


def check_runnable(program: Program, layouts: Sequence[RankLayout]) -> Iterator[ProgramFault]:
    """Yield faults with which a rank would exceed its buffers, or mix up messages."""
    yield from check_steps(program)
    yield from (fault for fault in check_queues(program) if fault.steps)
    yield from check_sizes(program, layouts)


#: Largest size in bytes if there is no limit.
NO_LIMIT = 2**63 - 1
#: Max chunks per message (``MSCCL_MAX_COUNT - 1``).
MAX_CHUNKS = 71
#: Max payload of a message in bytes, by library and protocol, with the default buffer sizes.
#: Simple: half of a 4 MiB buffer.
#: LL: half of a slot of 8 lines x 16 bytes x 512 (NCCL) or 256 (RCCL) threads.
#: LL128: 15/16 of a slot of 120 x 640 words (NCCL), or 7/8 of one of 28 x 256 words (RCCL).
LIBRARIES = {
    "NCCL": {"Simple": 2**21, "LL": 2**15, "LL128": 576_000},
    "RCCL": {"Simple": 2**21, "LL": 2**14, "LL128": 50_176},
}
#: Collectives whose messages use one slot of the Simple buffer, not four.
#: Sources: ``BROADCAST_CHUNKSTEPS`` and ``REDUCE_CHUNKSTEPS``.
_ONE_STEP = ("broadcast", "reduce")


def chunks_per_message(program: Program, size_bytes: int, library: str) -> int:
    """Max chunks per message that `library` sends, for a collective of `size_bytes` as nccl-tests counts."""
    chunk_bytes = max(-(-size_bytes // program.size_chunks), 1)
    return min(max(_payload(program, library) // chunk_bytes, 1), MAX_CHUNKS)


def fewest_chunks(program: Program, size_bytes: int) -> int:
    """Max chunks per message (`chunks_per_message`) in the library with the smallest messages."""
    return min(chunks_per_message(program, size_bytes, each) for each in LIBRARIES)


def first_size(program: Program, chunks: int, library: str) -> int:
    """Smallest size of the collective in bytes at which a message carries at most `chunks` chunks.

    - `chunks`: A number below `MAX_CHUNKS`.
    """
    return _payload(program, library) // (chunks + 1) * program.size_chunks + 1


def _payload(program: Program, library: str) -> int:
    payload = LIBRARIES[library][program.protocol]
    is_one_step = program.collective is not None and program.collective.name in _ONE_STEP
    return payload // 4 if is_one_step and program.protocol == "Simple" else payload
