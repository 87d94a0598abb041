"""An allreduce from its two halves: the reduction and the spreading as one job shop, so that they overlap.

Each half brings its routes. A chunk's sum is complete at a rank when all that it reduces from has arrived
(a join); from its root it spreads. CP-SAT orders and merges the sends of both halves together.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from taccl.schedule.schedule import Schedule
from taccl.synthesis.greedy import unfold
from taccl.synthesis.paper import jobshop
from taccl.synthesis.paper.orbits import Move, Orbits, Place, with_moves
from taccl.synthesis.paper.routing import needed_moves, refold

if TYPE_CHECKING:
    from taccl.problem import Problem
    from taccl.synthesis.search import Search

_PRODUCER = "both halves, overlapped"


@dataclass(frozen=True, slots=True)
class _Joint:
    """Both halves on one fold: reducing moves first, then spreading ones."""

    orbits: Orbits
    reducing: frozenset[int]
    joins: frozenset[int]


def overlap(search: Search, halves: Sequence[Search]) -> None:
    """Look for a schedule in which reduction and spreading overlap better; it is offered, and recorded."""
    since = time.monotonic()
    reduction, spreading = halves
    before = search.best
    late = search.deadline.left_s < search.parameters.halves.least_overlap_s
    if search.is_met or late or not isinstance(before, Schedule):
        return
    group, other = reduction.folded.group, spreading.folded.group
    if not group.made_by((g.ranks for g in other.generators), other.order):
        return
    joint = _joint(search.problem, reduction, spreading)
    answer = jobshop.solve(
        joint.orbits,
        optional=(),
        required=range(len(joint.orbits.moves)),
        upper_ticks=before.finish_ticks,
        lower_ticks=search.bound_ticks,
        hint=refold(joint.orbits, before, reducing=joint.reducing),  # the halves one after the other
        joins=joint.joins,
        reducing=joint.reducing,
        time_limit_s=search.deadline.left_s,
        **search.options.of_solvers,
    )
    search.note(answer.status)
    finish, message = None, answer.message
    if answer.schedule is not None:
        whole = unfold(joint.orbits, answer.schedule.sends, producer=_PRODUCER, reducing=joint.reducing)
        finish = search.offer_whole(whole, producer=_PRODUCER, proposed=True)
        message = message if finish is not None else "refused by the verifier"
    found: dict[str, Any] = {"ticks": answer.bound_ticks, "message": message}
    search.record("overlap", "cpsat", answer.status, since, finish_us=finish, **found)


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

    num_reducing = 0
    for half, search in (("reduce", reduction), ("spread", spreading)):
        assert search.best_fold is not None, "each half has a schedule"
        num_reducing = len(moves)
        for m in sorted(needed_moves(search.folded, search.best_fold)):
            move = search.folded.moves[m]
            srcs = tuple(place(half, search.folded.places[p]) for p in move.srcs)
            dsts = tuple(place(half, search.folded.places[p]) for p in move.dsts)
            if half == "reduce":
                srcs, dsts = dsts, srcs
            moves.append(replace(move, srcs=srcs, dsts=dsts, after_ticks=0, tail_ticks=0))
    entered = {p for move in moves for p in move.dsts}
    empty = replace(
        spreading.folded,
        problem=problem,
        places=tuple(
            Place(at.chunk, at.rank, 0, p not in entered, kind == "spread" and at.is_destination)
            for p, (kind, at) in enumerate(kinds)
        ),
        single_path=(False,) * problem.collective.num_chunks,
    )
    orbits = with_moves(empty, moves)
    joins = frozenset(p for p, (kind, _) in enumerate(kinds) if kind == "reduce")
    return _Joint(orbits, frozenset(range(num_reducing)), joins)
