"""Example programs, and functions to change them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import taccl
from taccl.problem.collectives import make
from taccl.program.lower import lower
from taccl.program.program import Program, RankProgram, Slot, Step, Threadblock
from taccl.schedule.timing import exact_times
from tests.arguments import arguments_for
from tests.effort import first_schedule

if TYPE_CHECKING:
    from taccl.problem.problem import Problem
    from taccl.program.interpret import Interpretation
    from taccl.schedule.schedule import Schedule


@cache
def schedule_of(name: str, topology: str = "ring:4", *, chunks_per_rank: int = 1) -> Schedule:
    """The first schedule of a search, by the names of its collective and topology."""
    topo = taccl.topologies.parse(topology)
    collective = make(
        name, topo.num_ranks, chunks_per_rank=chunks_per_rank, **arguments_for(name, topo.num_ranks)
    )
    problem = taccl.make_problem(topo, collective, chunk_bytes=100_000)
    return first_schedule(problem)


def timed(problem: Problem, transfers: list[tuple[int, int, int, int, bool]]) -> Schedule:
    """Schedule of transfers (start tick, chunk, link, group, reduce), in that order, each as early as
    possible."""
    starts, chunks, links, groups, reduces = zip(*transfers, strict=True)
    return exact_times(problem, chunk=chunks, link=links, starts=starts, group=groups, reduce=reduces)


def program_of(
    name: str, topology: str = "ring:4", *, chunks_per_rank: int = 1, **options: object
) -> Program:
    """The lowered program of a list schedule."""
    return lower(schedule_of(name, topology, chunks_per_rank=chunks_per_rank), **options)  # type: ignore[arg-type]


def exchange(count: int, protocol: str = "Simple", *, num_ranks: int = 2, num_steps: int = 1) -> Program:
    """An in-place allgather in which each rank first sends all its chunks, in steps, and then receives."""
    own, per_step = count * num_steps, count
    collective = taccl.collectives.allgather(num_ranks, chunks_per_rank=own)

    def step(operation: str, rank: int, i: int) -> Step:
        slot = Slot("output", rank * own + i * per_step)
        return Step(operation, *((slot, None) if operation == "send" else (None, slot)), count=per_step)

    ranks = []
    for rank in range(num_ranks):
        blocks = [
            Threadblock(
                (
                    *(step("send", rank, i) for i in range(num_steps)),
                    *(step("receive", peer, i) for i in range(num_steps)),
                ),
                send_to=peer,
                receive_from=peer,
            )
            for peer in range(num_ranks)
            if peer != rank
        ]
        ranks.append(RankProgram(own, own * num_ranks, 0, tuple(blocks)))
    return Program("exchange", tuple(ranks), collective, in_place=True, protocol=protocol)


def with_steps(program: Program, rank: int, threadblock: int, steps: tuple[Step, ...]) -> Program:
    """The program with the steps of one threadblock replaced."""
    mine = program.ranks[rank]
    blocks = list(mine.threadblocks)
    blocks[threadblock] = replace(blocks[threadblock], steps=steps)
    ranks = list(program.ranks)
    ranks[rank] = replace(mine, threadblocks=tuple(blocks))
    return replace(program, ranks=tuple(ranks))


def edited(program: Program, rank: int, threadblock: int, step: int, **changes: object) -> Program:
    """The program with fields of one step replaced."""
    steps = list(program.ranks[rank].threadblocks[threadblock].steps)
    steps[step] = replace(steps[step], **changes)  # type: ignore[arg-type]
    return with_steps(program, rank, threadblock, tuple(steps))


def kinds(interpretation: Interpretation) -> set[str]:
    """The kinds of fault found."""
    return {fault.kind for fault in interpretation.faults}
