"""Instances: the program several times over, each on its own part of every chunk and its own channels."""

from __future__ import annotations

from dataclasses import replace

from taccl.errors import InputError
from taccl.program.program import Program, RankProgram, Slot, Step, Threadblock

__all__ = ["replicate"]


def replicate(program: Program, instances: int) -> Program:
    """The program with every chunk cut into parts, each moved by its own threadblocks over its own channels.

    Parts of a chunk are neighbours, so that a step of several chunks becomes as many steps of one.
    """
    if instances < 1:
        raise InputError(f"found {instances}; expected at least 1", where="instances")
    if instances == 1:
        return program
    channels = program.num_channels
    return replace(
        program,
        collective=None if program.collective is None else program.collective.split(instances),
        ranks=tuple(_replicate_rank(rank, instances, channels) for rank in program.ranks),
    )


def _replicate_rank(rank: RankProgram, instances: int, channels: int) -> RankProgram:
    # Steps (threadblock, position) begin at `begins` once those of several chunks are several steps.
    begins: list[list[int]] = []
    for threadblock in rank.threadblocks:
        ends = [0]
        for step in threadblock.steps:
            ends.append(ends[-1] + max(step.count, 1))
        begins.append(ends)
    threadblocks: list[Threadblock] = []
    for threadblock in rank.threadblocks:
        for part in range(instances):
            steps: list[Step] = []
            for step in threadblock.steps:
                # Copies of one threadblock have neighbouring numbers, so that low numbers stay low.
                depends = tuple(
                    (other * instances + part, begins[other][s + 1] - 1) for other, s in step.depends
                )
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
