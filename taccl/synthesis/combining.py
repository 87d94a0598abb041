"""An allreduce from its two halves: the reduction and the spreading as one job shop, so that they overlap.

Each half brings its routes. A chunk's sum is complete at a rank when all that it reduces from has arrived
(a join); from its root it spreads. CP-SAT orders and merges the sends of both halves together.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from taccl.analysis.verification.verify import verify
from taccl.schedule.timing import exact_times
from taccl.synthesis import jobshop
from taccl.synthesis.greedy import ListSchedule, Send
from taccl.synthesis.orbits import Move, Orbits, Place
from taccl.synthesis.result import Stage
from taccl.synthesis.routing import needed_moves

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.analysis.certificates.certificate import Certificate
    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.synthesis.search import Search

__all__ = ["retime"]


@dataclass(frozen=True, slots=True)
class _Joint:
    """Both halves on one fold: reducing moves first, then spreading ones."""

    orbits: Orbits
    reducing: frozenset[int]
    joins: frozenset[int]


def retime(
    problem: Problem, halves: Sequence[Search], schedule: Schedule, bound: Certificate, deadline: float
) -> tuple[Schedule, list[Stage]]:
    """A schedule in which the halves overlap better, and the stage that tried; never a worse one.

    Parameters
    ----------
    halves : (reduction, spreading) searches
        Over folds by the same group.
    schedule : Schedule
        One half after the other.
    deadline : float
        On the clock of `time.monotonic`.
    """
    since = time.monotonic()
    lower = -int(-bound.bound * problem.costs.ticks_per_us // 1)
    reduction, spreading = halves
    groups = [half.folded.group for half in halves]
    same = groups[0].made_by((g.ranks for g in groups[1].generators), groups[1].order)
    left = deadline - since
    if schedule.finish_ticks <= lower or left < 0.3 or not same:
        return schedule, []
    joint = _joint(problem, reduction, spreading)
    options = spreading.options
    answer = jobshop.solve(
        joint.orbits,
        optional=(),
        required=range(len(joint.orbits.moves)),
        upper_ticks=schedule.finish_ticks,
        lower_ticks=lower,
        hint=_hint(joint, schedule),
        joins=joint.joins,
        reducing=joint.reducing,
        time_limit_s=left,
        threads=options.threads,
        seed=options.seed,
        memory_limit_mb=options.memory_limit_mb,
        log=options.log,
    )
    spreading.interrupted |= answer.status == "interrupted"
    best, finish, message = schedule, None, answer.message
    if answer.schedule is not None:
        found = _unfold(joint, answer.schedule.sends)
        finish = found.finish_us
        verification = verify(found)
        if not verification.ok:
            message = f"refused by the verifier: {verification.violations[0]}"
        elif found.finish_ticks < schedule.finish_ticks:
            best = found
    bound_us = None if answer.bound_ticks is None else float(problem.costs.us(answer.bound_ticks))
    seconds = time.monotonic() - since
    return best, [Stage("overlap", "cpsat", answer.status, seconds, finish, bound_us, message)]


def _joint(problem: Problem, reduction: Search, spreading: Search) -> _Joint:
    """The chosen moves of both halves on one fold of the combining problem."""
    moves: list[Move] = []
    places: dict[tuple[str, int, int], int] = {}
    kinds: list[tuple[str, Place]] = []

    def place(half: str, at: Place) -> int:
        # The spreading starts where the sum is complete: its origins are the reduction's roots.
        key = ("reduce" if at.is_origin else half, at.chunk, at.rank)
        if key not in places:
            places[key] = len(kinds)
            kinds.append((key[0], at))
        return places[key]

    for half, search in (("reduce", reduction), ("spread", spreading)):
        assert search.best_fold is not None, "each half has a schedule"
        for m in sorted(needed_moves(search.folded, search.best_fold)):
            move = search.folded.moves[m]
            srcs = tuple(place(half, search.folded.places[p]) for p in move.srcs)
            dsts = tuple(place(half, search.folded.places[p]) for p in move.dsts)
            if half == "reduce":
                srcs, dsts = dsts, srcs
            moves.append(replace(move, srcs=srcs, dsts=dsts, after_ticks=0, tail_ticks=0))
    num_reducing = len(needed_moves(reduction.folded, reduction.best_fold))  # type: ignore[arg-type]
    entered = {p for move in moves for p in move.dsts}
    joins = {p for p, (kind, _) in enumerate(kinds) if kind == "reduce"}
    base = spreading.folded
    into = [tuple(m for m, move in enumerate(moves) if p in move.dsts) for p in range(len(kinds))]
    out = [tuple(m for m, move in enumerate(moves) if p in move.srcs) for p in range(len(kinds))]
    orbits = Orbits(
        problem=problem,
        group=base.group,
        places=tuple(
            Place(
                at.chunk,
                at.rank,
                0,
                p not in entered,
                kind == "spread" and at.is_destination,
                into[p],
                out[p],
            )
            for p, (kind, at) in enumerate(kinds)
        ),
        moves=tuple(moves),
        link_rep=base.link_rep,
        holds=base.holds,
        num_resources=base.num_resources,
        single_path=(False,) * problem.collective.num_chunks,
        link_orbit=base.link_orbit,
        resource_orbit=base.resource_orbit,
    )
    return _Joint(orbits, frozenset(range(num_reducing)), frozenset(joins))


def _hint(joint: _Joint, schedule: Schedule) -> ListSchedule:
    """The halves one after the other, on the joint fold."""
    number = {(move.chunk, move.link, m in joint.reducing): m for m, move in enumerate(joint.orbits.moves)}
    groups: dict[int, list[int]] = {}
    times: dict[int, tuple[int, int]] = {}
    for t in schedule:
        m = number.get((t.chunk, t.link, t.reduce))
        if m is not None:
            groups.setdefault(t.group, []).append(m)
            times[t.group] = (t.start_ticks, t.end_ticks)
    sends = [
        Send(joint.orbits.moves[moves[0]].link_orbit, tuple(moves), *times[group])
        for group, moves in groups.items()
    ]
    return ListSchedule(tuple(sends), schedule.finish_ticks)


def _unfold(joint: _Joint, sends: Sequence[Send]) -> Schedule:
    """The schedule of the whole problem that sends on the joint fold stand for."""
    columns: dict[tuple[int, int, bool], tuple[int, int]] = {}
    number = 0
    for send in sends:
        reduces = send.moves[0] in joint.reducing
        moves = [joint.orbits.moves[m] for m in send.moves]
        for pairs in joint.orbits.group.sends([(move.chunk, move.link) for move in moves]):
            for c, e in pairs:
                columns.setdefault((c, e, reduces), (send.start_ticks, number))
            number += 1
    return exact_times(
        joint.orbits.problem,
        chunk=[c for c, _, _ in columns],
        link=[e for _, e, _ in columns],
        reduce=[r for _, _, r in columns],
        starts=[start for start, _ in columns.values()],
        group=[group for _, group in columns.values()],
        producer="both halves, overlapped",
    )
