"""Greedy synthesis of problems that no MILP and no list scheduler in Python reaches, by the compiled kernel.

A collective that combines is made of its halves: the reduction is a spread read backwards over reversed
links, and the copies follow once it has ended. Nothing is merged, and no object is made for any send.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl.analysis.verification.verify_compact import verify_compact
from taccl.collectives import make
from taccl.problem import make_problem
from taccl.schedule.combine import reduction_half, spreading_half
from taccl.schedule.compact import CompactSchedule
from taccl.schedule.spill import room_for
from taccl.synthesis.compiled.events import part
from taccl.synthesis.compiled.fabric import problem_arrays
from taccl.synthesis.compiled.guided import is_guided, spread_guided
from taccl.synthesis.compiled.queues import send_along_trees
from taccl.synthesis.compiled.relays import with_relays
from taccl.synthesis.compiled.scale import spread
from taccl.synthesis.crossing.two_levels import compile_two_levels, spread_two_levels, suits_two_levels
from taccl.topology.fabrics import ring

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

    from taccl.problem import Problem

__all__ = ["compile_kernels", "effort", "schedule_large", "suits", "why_not"]


def suits(problem: Problem) -> bool:
    """Whether the kernel obeys all that is asked."""
    return not why_not(problem)


def why_not(problem: Problem) -> str:
    """What the kernel does not know of a problem; nothing where it obeys all that is asked."""
    links = problem.topology.links
    reasons = {
        "chunks that are made from others": bool(problem.collective.derivations),
        "links of several ends": any(
            len(links[e].srcs) + len(links[e].dsts) > 2 for e in problem.links_allowed
        ),
        "own chunks first on links that are free before a send ends": not _own_first_holds(problem),
    }
    return ", ".join(what for what, is_asked in reasons.items() if is_asked)


def _own_first_holds(problem: Problem) -> bool:
    """Whether links on which own chunks go first are taken until a send ends, so that relayed ones wait."""
    topology = problem.topology
    taken = set()
    for hold in topology.holds:
        link = topology.links[hold.link]
        if (hold.alpha_us, hold.beta_us_per_mb) == (link.alpha_us, link.beta_us_per_mb):
            taken.add(hold.link)
    return problem.clauses.own_first <= taken


def effort(problem: Problem) -> int:
    """How many moves a list scheduler or a model would have, before any symmetry: chunks times links."""
    return problem.collective.num_chunks * len(problem.links_allowed)


def compile_kernels(problem: Problem) -> float:
    """Have the kernels compiled, if they are not: once, as what is compiled is kept on disk.

    Returns
    -------
    float
        The seconds that this took, which no time limit should count.
    """
    began = time.monotonic()
    to_one = all(len(chunk.destinations) == 1 for chunk in problem.collective.chunks)
    name = "reduce-scatter" if problem.collective.combining else "alltoall" if to_one else "allgather"
    pair = make_problem(ring(2), make(name, 2), chunk_bytes=1)
    to_all = make_problem(ring(2), make("allgather", 2), chunk_bytes=1)
    verify_compact(schedule_large(pair, num_runs=1))
    # Chunks that go to one rank each go along trees, too, where a sketch guides them, be it a suggested one.
    send_along_trees(*problem_arrays(to_all), limit_ticks=2**62, num_runs=1)
    if not to_one and suits_two_levels(problem):
        compile_two_levels()
    return time.monotonic() - began


def schedule_large(
    problem: Problem,
    *,
    target_ticks: int = 0,
    time_limit_s: float | None = None,
    memory_limit_mb: int | None = None,
    seed: int = 0,
    num_runs: int | None = None,
    spill_dir: str | os.PathLike[str] | None = None,
) -> CompactSchedule:
    """A schedule by the kernel.

    Parameters
    ----------
    problem : Problem
        One that `suits`.
    target_ticks : int
        A finish that is good enough, such as a lower bound.
    time_limit_s : float, optional
        After which no run but the first is begun.
    memory_limit_mb : int, optional
        Refuse, before any work, what needs more.
    num_runs : int, optional
        How many rules and seeds to try at most; by default each rule once.
    spill_dir : path, optional
        A folder for columns while they are found, in files without names; by default they are in memory.

    Raises
    ------
    InputError
        If it needs more memory than it may.
    """

    def spreads(half: Problem, target: int, share: float) -> CompactSchedule:
        if half.collective.is_met:
            nothing = np.zeros(0, np.int32)
            return CompactSchedule(half, nothing, nothing, nothing, "greedy")
        began = time.monotonic()
        fabric, demand = problem_arrays(half)
        limit_s = None if time_limit_s is None else share * time_limit_s
        if is_guided(half):
            columns = spread_guided(
                half, fabric, demand, seed=seed, num_runs=num_runs, target_ticks=target, time_limit_s=limit_s,
                spill_dir=spill_dir,
            )  # fmt: skip
            return CompactSchedule(half, *columns, "greedy")
        found = spread(
            fabric,
            with_relays(fabric, demand),
            seed=seed,
            num_runs=num_runs,
            target_ticks=target,
            time_limit_s=limit_s,
            memory_limit_bytes=None if memory_limit_mb is None else memory_limit_mb * 10**6,
            spill_dir=spill_dir,
        )
        is_open = num_runs is None and found.finish_ticks > target and demand.target is None
        if is_open and suits_two_levels(half):
            left = None if limit_s is None else limit_s - (time.monotonic() - began)
            limit = found.finish_ticks - 1
            better = spread_two_levels(half, limit_ticks=limit, seconds=left, seed=seed)
            if better is not None:
                return CompactSchedule(half, *better, "greedy")
        return CompactSchedule(half, found.chunk, found.link, found.start, "greedy")

    if not problem.collective.combining:
        return spreads(problem, target_ticks, 1.0)
    copies = any(set(c.destinations) != {c.root} for c in problem.collective.chunks)
    share, target = (0.5, target_ticks // 2) if copies else (1.0, target_ticks)
    with part("reduction", ahead=1.0 if copies else 0.0):
        backwards = spreads(reduction_half(problem), target, share)
    reduction = _turned(backwards, problem, spill_dir)
    del backwards
    if not copies:
        return reduction
    with part("copies"):
        forwards = spreads(spreading_half(problem), target, share)
    after = reduction.finish_ticks
    last = after + int(forwards.start[-1:].max(initial=0))
    parts = (
        ((reduction.chunk, forwards.chunk), reduction.chunk.dtype, 0),
        ((reduction.link, forwards.link), np.int32, 0),
        ((reduction.start, forwards.start), np.int32 if last < 2**31 else np.int64, after),
    )
    columns = []
    for (first, second), dtype, later in parts:
        column = room_for(len(first) + len(second), dtype, spill_dir)
        column[: len(first)] = first
        np.add(second, later, out=column[len(first) :], casting="unsafe")
        columns.append(column)
    chunk, link, start = columns
    return replace(reduction, chunk=chunk, link=link, start=start)


def _turned(
    schedule: CompactSchedule, problem: Problem, spill_dir: str | os.PathLike[str] | None
) -> CompactSchedule:
    """The reduction that a spread is when it is read backwards in time."""
    finish, count = schedule.finish_ticks, len(schedule)
    start = room_for(count, schedule.start.dtype, spill_dir)
    at = count  # the last to start comes first
    for _, _, _, end in schedule.blocks():
        start[at - len(end) : at] = finish - end[::-1]
        at -= len(end)
    columns: tuple[NDArray[Any], ...] = (schedule.chunk[::-1], schedule.link[::-1], start)
    order = np.argsort(start, kind="stable") if (start[1:] < start[:-1]).any() else None
    turned = []
    for column in columns:
        if order is None and column is start:
            turned.append(start)
            continue
        room = room_for(count, column.dtype, spill_dir)
        if order is None:
            room[:] = column
        else:
            np.take(column, order, out=room, mode="clip")
        turned.append(room)
    chunk, link, start = turned
    return CompactSchedule(problem, chunk, link, start, "greedy", count)
