"""Small programs of baselines, to execute and to break."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import taccl
from taccl.problem.collectives import make
from tests.arguments import arguments_for

if TYPE_CHECKING:
    from taccl.program.program import Program, Step
    from taccl.schedule.schedule import Schedule


def schedule_for(name: str, topology: str = "ring:4", *, chunks_per_rank: int = 1) -> Schedule:
    """A baseline's schedule of a collective by name."""
    topo = taccl.topologies.parse(topology)
    collective = make(
        name, topo.num_ranks, chunks_per_rank=chunks_per_rank, **arguments_for(name, topo.num_ranks)
    )
    problem = taccl.make_problem(topo, collective, chunk_bytes=1000)
    way = (
        "ring" if name in ("allgather", "reduce-scatter", "allreduce", "broadcast", "reduce") else "pairwise"
    )
    return taccl.baselines.baseline(way, problem, cut=False)


def program_for(
    name: str, topology: str = "ring:4", *, chunks_per_rank: int = 1, **options: object
) -> Program:
    """The lowered program of a baseline's schedule."""
    return taccl.lower(schedule_for(name, topology, chunks_per_rank=chunks_per_rank), **options)


def first_step(program: Program, rank: int, operation: str) -> tuple[int, int]:
    """The (threadblock, step) of a rank's first step with an operation."""
    for address, step in program.steps():
        if address.rank == rank and step.operation == operation:
            return address.threadblock, address.step
    raise AssertionError(f"rank {rank} has no {operation}")


def with_changed_step(program: Program, rank: int, place: tuple[int, int], step: Step | None) -> Program:
    """The program with the step at one place replaced, or removed."""
    threadblock, index = place
    mine = program.ranks[rank]
    blocks = list(mine.threadblocks)
    steps = list(blocks[threadblock].steps)
    steps[index : index + 1] = [] if step is None else [step]
    blocks[threadblock] = replace(blocks[threadblock], steps=tuple(steps))
    ranks = list(program.ranks)
    ranks[rank] = replace(mine, threadblocks=tuple(blocks))
    return replace(program, ranks=tuple(ranks))


def step_of(program: Program, rank: int, place: tuple[int, int]) -> Step:
    """The step at one place of a rank."""
    return program.ranks[rank].threadblocks[place[0]].steps[place[1]]
