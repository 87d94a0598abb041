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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from taccl._internal.arrays import Flags, Ints
from taccl._internal.names import shown
from taccl.errors import InputError
from taccl.program.columns import StepColumns, columns_of
from taccl.program.layout import RankLayout
from taccl.program.program import (
    BUFFERS,
    OPERATIONS,
    OperationParts,
    Program,
    Queue,
    Step,
    StepAddress,
    Threadblock,
)


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
    steps = columns_of(program)
    queues, sends, receives = (column.tolist() for column in matched(steps))
    counts = steps.num_chunks[sends].tolist()
    ends = steps.addresses(sends), steps.addresses(receives)
    for queue, send, receive, count in zip(queues, *ends, counts, strict=True):
        yield Parcel(steps.queues[queue], send, receive, count)


def matched(steps: StepColumns) -> tuple[Ints, Ints, Ints]:
    """(queue, sending step, receiving step) of each send with a receive, by queue in FIFO order."""
    (sent, send), (received, receive) = (_traffic(steps, *end) for end in _ENDS)
    num_queues = len(steps.queues)
    num_sent, num_received = (np.bincount(each, minlength=num_queues) for each in (sent, received))
    paired = np.minimum(num_sent, num_received)
    send, receive = (
        steps_of[np.arange(len(steps_of)) - (np.cumsum(num) - num)[queue] < paired[queue]]
        for queue, steps_of, num in ((sent, send, num_sent), (received, receive, num_received))
    )
    return np.repeat(np.arange(num_queues), paired), send, receive


#: (part of an operation, column of a threadblock's queue) of the two ends of a queue.
_ENDS = ("sends", "outgoing"), ("receives", "incoming")


def _traffic(steps: StepColumns, part: str, end: str) -> tuple[Ints, Ints]:
    """(queue, step) of each step that sends, or receives, by queue and position."""
    own = np.flatnonzero(steps.parts[:, OperationParts._fields.index(part)])
    queue = getattr(steps, end)[steps.block[own]]
    own, queue = own[queue >= 0], queue[queue >= 0]
    order = np.argsort(queue, kind="stable")
    return queue[order], own[order]


def check_steps(program: Program) -> Iterator[ProgramFault]:
    """Yield faults of single steps: invalid operations, counts, slots, peers and dependencies."""
    steps = columns_of(program)
    for address in steps.addresses(np.flatnonzero(_may_be_faulty(program)).tolist()):
        threadblock, step = program.threadblock(address), program.step(address)
        for text in _step_faults(program, address.rank, threadblock, step):
            yield ProgramFault("step", f"{address}, {step}: {text}", (address,), rank=address.rank)


def _may_be_faulty(program: Program) -> Flags:
    """True for each step that may have a fault; `_step_faults` judges these."""
    steps = columns_of(program)
    rank = steps.rank
    receives, reads, writes, sends = steps.parts.T
    found = steps.num_chunks < 1
    found |= steps.operation < 0
    lengths = np.array(
        [(each.input_chunks, each.output_chunks, each.scratch_chunks) for each in program.ranks]
    ).reshape(-1, len(BUFFERS))
    for used, (buffer, offset) in ((reads, steps.src), (writes, steps.dst)):
        length = lengths[rank, buffer]
        found |= used & ((buffer < 0) | (offset < 0) | (offset > length - steps.num_chunks))
    threadblocks = [threadblock for _, threadblock in program.threadblocks()]
    for acts, end in ((sends, "send_to"), (receives, "receive_from")):
        peers = np.array([-1 if (peer := getattr(each, end)) is None else peer for each in threadblocks])
        peer = peers[steps.block]
        found |= acts & ((peer < 0) | (peer >= program.num_ranks) | (peer == rank))
    lacking = np.flatnonzero(steps.needs < 0)
    found[np.searchsorted(steps.first_need, lacking, side="right") - 1] = True
    return found


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


def check_ends(program: Program) -> Iterator[ProgramFault]:
    """Yield faults of queues with several threadblocks at one end."""
    steps = columns_of(program)
    for ends, word in ((steps.outgoing, "send"), (steps.incoming, "receive")):
        used = np.flatnonzero(ends >= 0)
        queues, first, counts = np.unique(ends[used], return_index=True, return_counts=True)
        for number in queues[np.argsort(first)][counts[np.argsort(first)] > 1].tolist():
            blocks = [steps.blocks[block] for block in np.flatnonzero(ends == number).tolist()]
            rank = blocks[0][0]
            numbers = ", ".join(str(t) for _, t in blocks)
            yield ProgramFault(
                "queue",
                f"threadblocks {numbers} of rank {rank} all {word} {steps.queues[number]} in undefined "
                "order; give each its own channel",
                tuple(StepAddress(r, t, 0) for r, t in blocks),
                rank=rank,
            )


def check_queues(program: Program) -> Iterator[ProgramFault]:
    """Yield faults of queues: shared ends, and numbers of chunks sent that differ from those received."""
    yield from check_ends(program)
    steps = columns_of(program)
    totals = np.zeros((2, len(steps.queues)), dtype=np.int64)
    for total, end in zip(totals, _ENDS, strict=True):
        queue, own = _traffic(steps, *end)
        np.add.at(total, queue, steps.num_chunks[own])
    queue, send, receive = matched(steps)
    differs = np.flatnonzero(steps.num_chunks[send] != steps.num_chunks[receive])
    first = dict(zip(queue[differs[::-1]].tolist(), differs[::-1].tolist(), strict=True))
    for number in sorted({*first, *np.flatnonzero(totals[0] != totals[1]).tolist()}):
        name, (total, taken) = steps.queues[number], totals[:, number].tolist()
        if total != taken:
            yield ProgramFault("queue", f"{total} chunks are sent and {taken} received {name}", rank=name.dst)
        if number in first:
            ends = int(send[first[number]]), int(receive[first[number]])
            ours, theirs = steps.num_chunks[[*ends]].tolist()
            one, other = steps.addresses(ends)
            yield ProgramFault(
                "queue",
                f"{one} sends {ours} chunks at once, of which {other} receives {theirs} at once; cut both "
                "ends into the same steps",
                (one, other),
                rank=name.dst,
            )


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
ONE_STEP = ("broadcast", "reduce")


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
    is_one_step = program.collective is not None and program.collective.name in ONE_STEP
    return payload // 4 if is_one_step and program.protocol == "Simple" else payload
