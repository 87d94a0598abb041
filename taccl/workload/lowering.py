"""Lower scheduled steps to programs whose instructions wait for tiles, and to execution traces.

The name of a tile, such as ``y.3``, is a *mark*. A kernel that computes tiles signals the mark of each tile
that is finished. A program instruction that needs a mark waits for its signal, as in CoCoNet's overlapped
kernels. The kernel that consumes a tile of a collective waits for all instructions that give its mark.
"""

from __future__ import annotations

import os
from dataclasses import replace
from fractions import Fraction
from itertools import compress
from pathlib import Path

import numpy as np

from taccl._internal.arguments import checked_as
from taccl.errors import WorkloadError
from taccl.formats.astra.chakra import Computed, dump_chakra
from taccl.formats.files import write_all
from taccl.program.layout import RankLayout, layout
from taccl.program.lower import lower
from taccl.program.program import OPERATIONS, Program, RankProgram, Slot
from taccl.program.program import Step as Instruction
from taccl.schedule.schedule import make_schedule
from taccl.workload.exchange import CollectivePart, problem_of
from taccl.workload.step import Made, Step


@checked_as(WorkloadError)
def lower_step(step: Step, operation: str) -> Program:
    """Lower one collective of a step, with all its tiles, to a program whose instructions wait for tiles.

    Parameters
    ----------
    step : Step
        A verified step.
    operation : str
        Name of the collective's result.

    Returns
    -------
    Program
        The program. `needs` of an instruction names the computed tiles that it reads, and `gives` the
        collective's tiles that it writes.

    Raises
    ------
    WorkloadError
        If there is no such collective.
    """
    parts = [part for part in step.parts if part.operation == operation]
    if not parts:
        known = sorted({part.operation for part in step.parts})
        said = f"is not a collective of {step.workload.name}; name one of {', '.join(known) or 'none'}"
        raise WorkloadError(said, where=operation)
    schedule, chunks = step.schedule, [chunk for part in parts for chunk in part.chunks]
    part_of = [part for part in parts for _ in part.chunks]
    here, problem = np.isin(schedule.chunk, chunks), problem_of(step.workload, step.topology, parts)
    columns = {name: getattr(schedule, name)[here] for name in ("link", "start", "end", "group", "reduce")}
    carried = schedule.contributions and [*compress(schedule.contributions, here.tolist())]
    number = np.searchsorted(chunks, schedule.chunk[here])
    program = lower(
        make_schedule(problem, chunk=number, **columns, contributions=carried),
        name=f"{step.workload.name}: {operation}",
    )

    def touched(slot: Slot | None, count: int, buffer: str, chunks: tuple[int, ...]) -> list[CollectivePart]:
        if slot is None or slot.buffer != buffer:
            return []
        return [part_of[chunk] for chunk in chunks[slot.offset : slot.offset + count]]

    def marked(each: Instruction, where: RankLayout) -> Instruction:
        does = OPERATIONS[each.operation]
        read = touched(each.src, each.count, "input", where.inputs) if does.reads else []
        written = touched(each.dst, each.count, "output", where.outputs) if does.writes else []
        sources = (key for part in read for key in step.workload.tiles[part.operation, part.tile])
        needs = (f"{name}.{tile}" for name, tile in sources if name in step.workload.operation)
        gives = (f"{part.operation}.{part.tile}" for part in written)
        return replace(each, needs=tuple(dict.fromkeys(needs)), gives=tuple(dict.fromkeys(gives)))

    def of_rank(rank: RankProgram, where: RankLayout) -> RankProgram:
        steps = ((block, tuple(marked(each, where) for each in block.steps)) for block in rank.threadblocks)
        return replace(rank, threadblocks=tuple(replace(block, steps=each) for block, each in steps))

    return replace(program, ranks=tuple(map(of_rank, program.ranks, layout(problem.collective))))


@checked_as(WorkloadError)
def save_traces(step: Step, path: str | os.PathLike[str], *, overwrite: bool = False) -> tuple[Path, ...]:
    """Write execution traces for ASTRA-sim, one file per rank, with a node for each computed tile and send.

    Parameters
    ----------
    step : Step
        A step whose links each join two ranks.
    path : path
        Prefix of the files, or ``PREFIX.et``.
    overwrite : bool
        True to replace existing files.

    Returns
    -------
    tuple of Path
        Paths of the files written.

    Raises
    ------
    ExportError
        If a link joins more than two ranks.
    """

    def waits(name: str, tile: int, rank: int, begin_us: Fraction, end_us: Fraction) -> Computed:
        read = Made.of_all(step.made_of[*each, rank] for each in step.workload.tiles[name, tile])
        return Computed(f"tile {tile} of {name}", rank, begin_us, end_us, *read)

    computed = [
        waits(each.operation, each.tile, each.rank, each.start_us, each.end_us) for each in step.tiles
    ]
    ends = step.schedule.problem.collective.chunks
    sources = {
        (chunk, rank): waits(*key, rank, step.finish, step.finish)
        for key, chunks in step.chunks.items()
        for chunk in chunks
        for rank in ends[chunk].origins
    }
    return write_all(dump_chakra(step.schedule, path, computed, sources), overwrite=overwrite)
