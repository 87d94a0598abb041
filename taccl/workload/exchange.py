"""The collectives of a step as one problem: a process group for each of them, or for each tile."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from taccl import collectives
from taccl.baselines import BASELINES, baseline
from taccl.errors import InputError, WorkloadError
from taccl.problem import make_problem
from taccl.schedule.schedule import Schedule
from taccl.synthesis.synthesize import synthesize

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from taccl.collective import Collective
    from taccl.problem import Problem
    from taccl.topology.topology import Topology
    from taccl.workload.operations import Operation
    from taccl.workload.workload import Workload

__all__ = ["Exchange", "Part", "num_chunks", "parts_of", "problem_of", "sends_of"]

#: Collectives that no tiles cut are cut into pieces whose chunks are not smaller than this, and not into
#: more; ours.
_PIECE_BYTES, _MOST_PIECES = 1 << 20, 8
#: Seconds for the schedule of one piece.
_SEARCH_S = 60.0


@dataclass(frozen=True, slots=True)
class Part:
    """A tile of a collective, or a piece of one that no tiles cut, and its chunks in the step's problem."""

    operation: str
    tile: int
    first: int
    chunks: int
    chunk_bytes: int


@dataclass(frozen=True)
class Exchange:
    """Sends of all parts, in an order in which one part after another could run.

    Parameters
    ----------
    chunk, link, group, place, part : (num_transfers,) int64
        `place` is where a send is in that order.
    reduce : (num_transfers,) bool
    """

    problem: Problem
    parts: tuple[Part, ...]
    chunk: np.ndarray
    link: np.ndarray
    reduce: np.ndarray
    group: np.ndarray
    place: np.ndarray

    @cached_property
    def part_of_chunk(self) -> list[int]:
        """The number of the part of every chunk."""
        return np.repeat(np.arange(len(self.parts)), [part.chunks for part in self.parts]).tolist()


def parts_of(workload: Workload) -> tuple[Part, ...]:
    """The parts of all collectives, tile by tile where they overlap."""
    parts: list[Part] = []
    first = 0
    for unit in workload.units:
        tiles = workload.tiles_of.get(unit[0].name, (0, 0))[0]
        for tile in range(max(tiles, 1)):
            for operation in unit:
                if not operation.is_collective:
                    continue
                tensor, count = (
                    workload.tensors[operation.name],
                    _collective(operation, workload.num_ranks).num_chunks,
                )
                share = count if operation.kind != "alltoall" else workload.num_ranks**2
                pieces = 1
                if not tiles:
                    pieces = max(1, min(_MOST_PIECES, tensor.num_bytes // (share * _PIECE_BYTES)))
                size = max(1, -(-tensor.num_bytes // (max(tiles, 1) * pieces * share)))
                for piece in range(pieces):
                    parts.append(Part(operation.name, tile if tiles else piece, first, count, size))
                    first += count
    return tuple(parts)


def num_chunks(workload: Workload) -> int:
    """Chunks of all collectives of a step, in its tiles."""
    return sum(part.chunks for part in parts_of(workload))


def problem_of(
    workload: Workload, topology: Topology, parts: Sequence[Part], *, sums: Collection[str] = ()
) -> Problem:
    """Some parts together, on one topology; those of the operations in `sums` are allreduces."""
    every = []
    for part in parts:
        operation = workload.operation[part.operation]
        whole = replace(operation, kind="allreduce") if part.operation in sums else operation
        every.append(_collective(whole, workload.num_ranks))
    sizes = [part.chunk_bytes for part in parts for _ in range(part.chunks)]
    return make_problem(topology, collectives.together(every), chunk_bytes=sizes)


def sends_of(workload: Workload, topology: Topology, algorithm: str) -> Exchange:
    """All sends of the collectives of a step.

    Parameters
    ----------
    workload, topology
        Of one number of ranks.
    algorithm : str
        ``"synthesized"``, or the name of a baseline.
    """
    parts = parts_of(workload)
    problem = problem_of(workload, topology, parts)
    columns: list[list[np.ndarray]] = [[], [], [], [], []]
    known: dict[tuple[object, ...], Exchange] = {}
    groups = places = 0
    for part in parts:
        operation = workload.operation[part.operation]
        key = (operation.kind, operation.shift, part.chunk_bytes)
        if key not in known:
            known[key] = _template(operation, topology, part.chunk_bytes, algorithm)
        found = known[key]
        for column, values in zip(
            columns,
            (found.chunk + part.first, found.link, found.reduce, found.group + groups, found.place + places),
            strict=True,
        ):
            column.append(values)
        groups += int(found.group.max(initial=-1)) + 1
        places += int(found.place.max(initial=-1)) + 1
    chunk, link, reduce, group, place = (np.concatenate(column) for column in columns)
    return Exchange(problem, parts, chunk, link, reduce, group, place)


def _collective(operation: Operation, num_ranks: int) -> Collective:
    if operation.kind == "send":
        starts = {rank: [rank] for rank in range(num_ranks)}
        ends = {rank: [(rank + operation.shift) % num_ranks] for rank in range(num_ranks)}
        return collectives.custom(num_ranks, precondition=starts, postcondition=ends, name="send")
    return collectives.make(operation.kind, num_ranks)


def _template(operation: Operation, topology: Topology, chunk_bytes: int, algorithm: str) -> Exchange:
    """The sends of one part; an allreduce is a reduce-scatter and then an allgather."""
    if operation.kind == "allreduce" and algorithm == "synthesized":
        one, two = (
            _template(replace(operation, kind=kind), topology, chunk_bytes, algorithm)
            for kind in ("reduce_scatter", "allgather")
        )
        return replace(
            one,
            chunk=np.concatenate([one.chunk, two.chunk]),
            link=np.concatenate([one.link, two.link]),
            reduce=np.concatenate([one.reduce, two.reduce]),
            group=np.concatenate([one.group, two.group + one.group.max(initial=-1) + 1]),
            place=np.concatenate([one.place, two.place + one.place.max(initial=-1) + 1]),
        )
    memo = topology.memo.setdefault("workload sends", {})
    # Which sends are best changes little with sizes: they are found anew for every fourfold size.
    key = (operation.kind, operation.shift, chunk_bytes.bit_length() // 2, algorithm)
    if key not in memo:
        memo[key] = _found(operation, topology, chunk_bytes, algorithm)
    template: Exchange = memo[key]
    return template


def _found(operation: Operation, topology: Topology, chunk_bytes: int, algorithm: str) -> Exchange:
    problem = make_problem(topology, _collective(operation, topology.num_ranks), chunk_bytes=chunk_bytes)
    if problem.collective.is_met:
        nothing = np.zeros(0, dtype=np.int64)
        return Exchange(problem, (), nothing, nothing, nothing.astype(bool), nothing, nothing)
    if algorithm == "synthesized" or operation.kind == "send":
        schedule = synthesize(problem, backend="greedy", time_limit_s=_SEARCH_S).schedule
    else:
        schedule = baseline(algorithm, problem, cut=False)
    if not isinstance(schedule, Schedule):
        schedule = schedule.expand()
    if schedule.carries is not None:
        schedule = _added_up(problem, schedule.producer, operation)
    group = np.unique(schedule.group, return_inverse=True)[1].astype(np.int64)
    start = np.full(int(group.max()) + 1, schedule.start.max())
    np.minimum.at(start, group, schedule.start)
    place = np.argsort(np.argsort(start, kind="stable"))[group]
    return Exchange(
        problem, (), schedule.chunk.astype(np.int64), schedule.link.astype(np.int64),
        schedule.reduce.astype(bool), group, place,
    )  # fmt: skip


def _added_up(problem: Problem, producer: str, operation: Operation) -> Schedule:
    """The quickest baseline that adds up what arrives, in place of one that keeps contributions apart."""
    found = []
    for name in BASELINES:
        with contextlib.suppress(InputError):
            found.append(baseline(name, problem, cut=False))
    sums = [each for each in found if each.carries is None]
    if not sums:
        said = f"{producer} keeps contributions apart, and no other algorithm works here; change the topology"
        raise WorkloadError(said, where=operation.name)
    return min(sums, key=lambda each: each.finish_ticks)
