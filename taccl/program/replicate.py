"""Instances of a program, which are copies that move a part of every chunk each, over their own channels."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from math import ceil, log2

from taccl._internal.arguments import Count, checked
from taccl.program.limits import MAX_DEPENDED_ID, MAX_ELEMENTS
from taccl.program.program import Program, RankProgram, Slot, Step, Threadblock
from taccl.program.split import weight
from taccl.runtimes.table import RUNTIMES
from taccl.topology.tuning import CHANNEL_GB_PER_S

#: Min bytes of a part of a chunk, as smaller parts are latency-bound; a choice of this library.
_LEAST_PART_BYTES = 1024


def choose_instances(program: Program, *, gb_per_s: float, chunk_bytes: int) -> tuple[int, str]:
    """Number of instances that fills a link, within the limits of MSCCL and MSCCL++; and the reason as text.

    The number is a power of two, as sizes are usually divisible by powers of two.

    - `gb_per_s`: Bandwidth of the program's fastest link in GB/s; one instance uses one channel of it.
    - `chunk_bytes`: Size of the smallest chunk in bytes.
    """
    msccl, mscclpp = RUNTIMES["msccl"], RUNTIMES["mscclpp"]
    needed = 2 ** ceil(log2(max(gb_per_s / CHANNEL_GB_PER_S, 1)))
    threadblocks = [tb for rank in program.ranks for tb in rank.threadblocks]
    lengths = [[_length(tb) for tb in rank.threadblocks] for rank in program.ranks]
    longest = max(map(max, filter(None, lengths)), default=1)
    pieces = ceil(longest / msccl.max_steps)  # number of threadblocks into which the longest one is split
    elements = max(sum(own) + len(own) for own in lengths)
    depended = max((t for tb in threadblocks for step in tb.steps for t, _ in step.depends), default=0)
    awaited = MAX_DEPENDED_ID + 1
    limits = {
        f"parts of chunks have at least {_LEAST_PART_BYTES} bytes": chunk_bytes // _LEAST_PART_BYTES,
        f"MSCCL has {msccl.max_channels} channels": msccl.max_channels // (program.num_channels * pieces),
        f"MSCCL has at most {MAX_ELEMENTS} elements per rank": (MAX_ELEMENTS - program.num_ranks)
        // max(elements, 1),
        f"steps of MSCCL wait for {awaited} threadblocks": awaited // (depended + 1),
        f"MSCCL++ runs at most {mscclpp.max_threadblocks} threadblocks per rank": (
            mscclpp.max_threadblocks // max(program.max_threadblocks * pieces, 1)
        ),
    }
    why, least = min(limits.items(), key=lambda limit: limit[1])
    most = 2 ** (max(least, 1).bit_length() - 1)
    said = f"{needed} for {gb_per_s:g} GB/s at {CHANNEL_GB_PER_S} GB/s per channel"
    if most >= needed:
        return needed, f"instances: {said}"
    return most, f"instances: {most}, and not {said}: {why}"


def _length(threadblock: Threadblock) -> int:
    """Number of steps of a threadblock once each step is cut into steps of one chunk and one dependency."""
    return sum(weight(step) * max(step.count, 1) for step in threadblock.steps)


@checked
def replicate(program: Program, instances: Count) -> Program:
    """The program with every chunk cut into parts, each moved by its own threadblocks over its own channels.

    The parts of a chunk are contiguous, so equal parts of neighbouring chunks are not. A step of n chunks
    therefore becomes n steps of one part in each instance.
    """
    if instances == 1:
        return program
    channels = program.num_channels
    return replace(
        program,
        collective=None if program.collective is None else program.collective.split(instances),
        ranks=tuple(_replicate_rank(rank, instances, channels) for rank in program.ranks),
    )


def _replicate_rank(rank: RankProgram, instances: int, channels: int) -> RankProgram:
    # A step of n chunks becomes n steps. ends[threadblock][step]: number of new steps up to its end.
    ends = [[*accumulate(max(step.count, 1) for step in tb.steps)] for tb in rank.threadblocks]
    threadblocks: list[Threadblock] = []
    for threadblock in rank.threadblocks:
        for part in range(instances):
            steps: list[Step] = []
            for step in threadblock.steps:
                # MSCCL steps can only wait for threadblocks with low numbers (`MAX_DEPENDED_ID`).
                # So the copies of a threadblock get consecutive numbers.
                depends = tuple((other * instances + part, ends[other][s] - 1) for other, s in step.depends)
                for i in range(max(step.count, 1)):
                    src, dst = (_part_slot(each, i, instances, part) for each in (step.src, step.dst))
                    steps.append(Step(step.operation, src, dst, min(step.count, 1), () if i else depends))
            channel = threadblock.channel + part * channels
            threadblocks.append(replace(threadblock, steps=tuple(steps), channel=channel))
    return RankProgram(
        rank.input_chunks * instances,
        rank.output_chunks * instances,
        rank.scratch_chunks * instances,
        tuple(threadblocks),
    )


def _part_slot(slot: Slot | None, offset: int, instances: int, part: int) -> Slot | None:
    return None if slot is None else Slot(slot.buffer, (slot.offset + offset) * instances + part)
