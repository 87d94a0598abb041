"""Greedy synthesis of problems that no MILP and no list scheduler in Python reaches, by the compiled kernel.

A collective that combines is made of its halves: the reduction is a spread read backwards over reversed
links, and the copies follow once it has ended. Nothing is merged, and no object is made for any send.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl.schedule.combine import reduction_half, spreading_half
from taccl.schedule.compact import CompactSchedule
from taccl.synthesis.compiled.fabric import problem_arrays
from taccl.synthesis.compiled.relays import with_relays
from taccl.synthesis.compiled.scale import spread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.problem import Problem

__all__ = ["effort", "schedule_large", "suits"]


def suits(problem: Problem) -> bool:
    """Whether the kernel obeys all that is asked: single-ended links, no clause on what they carry."""
    clauses, links = problem.clauses, problem.topology.links
    return not (
        problem.collective.derivations
        or clauses.carries_from
        or clauses.carries_to
        or clauses.own_first
        or clauses.direct_crossing
        or clauses.relays is not None
        or any(len(links[e].srcs) + len(links[e].dsts) > 2 for e in problem.links_allowed)
    )


def effort(problem: Problem) -> int:
    """How many moves a list scheduler or a model would have, before any symmetry: chunks times links."""
    return problem.collective.num_chunks * len(problem.links_allowed)


def schedule_large(
    problem: Problem,
    *,
    target_ticks: int = 0,
    time_limit_s: float | None = None,
    memory_limit_mb: int | None = None,
    seed: int = 0,
    num_runs: int | None = None,
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

    Raises
    ------
    InputError
        If it needs more memory than it may.
    """

    def spreads(half: Problem, target: int, share: float) -> CompactSchedule:
        fabric, demand = problem_arrays(half)
        found = spread(
            fabric,
            with_relays(fabric, demand),
            seed=seed,
            num_runs=num_runs,
            target_ticks=target,
            time_limit_s=None if time_limit_s is None else share * time_limit_s,
            memory_limit_bytes=None if memory_limit_mb is None else memory_limit_mb * 10**6,
        )
        return CompactSchedule(half, found.chunk, found.link, found.start, "greedy")

    if not problem.collective.combining:
        return spreads(problem, target_ticks, 1.0)
    copies = any(set(c.destinations) != {c.root} for c in problem.collective.chunks)
    share, target = (0.5, target_ticks // 2) if copies else (1.0, target_ticks)
    backwards = spreads(reduction_half(problem), target, share)
    chunk, link, start = _reversed(backwards)
    reduction = CompactSchedule(problem, chunk, link, start, "greedy", len(chunk))
    if not copies:
        return reduction
    forwards = spreads(spreading_half(problem), target, share)
    after = reduction.finish_ticks + _overhang(problem)
    last = after + int(forwards.start.max(initial=0))
    narrow: type[np.int32] | type[np.int64] = np.int32 if last < 2**31 else np.int64
    return replace(
        reduction,
        chunk=np.concatenate((chunk, forwards.chunk)),
        link=np.concatenate((link, forwards.link)),
        start=np.concatenate((start, forwards.start.astype(np.int64) + after)).astype(narrow),
    )


def _reversed(schedule: CompactSchedule) -> tuple[NDArray[Any], NDArray[np.int32], NDArray[Any]]:
    """The columns with time turned round, in order of start again."""
    finish = schedule.finish_ticks
    start = np.empty_like(schedule.start)
    at = 0
    for _, _, _, end in schedule.blocks():
        start[at : at + len(end)] = finish - end
        at += len(end)
    order = np.argsort(start, kind="stable")
    return schedule.chunk[order], schedule.link[order], start[order]


def _overhang(problem: Problem) -> int:
    """For how long a send may hold a resource beyond its end, at most."""
    costs = problem.costs
    over = 0
    for hold, alpha, beta in zip(problem.topology.holds, costs.hold_alpha, costs.hold_beta, strict=True):
        for units in {int(costs.chunk_units.min(initial=0)), int(costs.chunk_units.max(initial=0))}:
            over = max(over, int(alpha) + units * int(beta) - costs.duration(hold.link, units))
    return over
