"""An allreduce from its two halves: the reduction and the spreading as one job shop, so that they overlap.

Each half brings its routes. A chunk's sum is complete at a rank when all that it reduces from has arrived
(a join); from its root it spreads. CP-SAT orders and merges the sends of both halves together.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from taccl.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.synthesis.greedy import unfold
from taccl.synthesis.paper import jobshop
from taccl.synthesis.paper.orbits import Move, Orbits, Place, with_moves
from taccl.synthesis.paper.routing import needed_moves, refold
from taccl.synthesis.search import Search

_PRODUCER = "both halves, overlapped"


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
    orbits, num_reducing, joins = _joint(search.problem, reduction, spreading)
    reducing = range(num_reducing)
    answer = jobshop.solve(
        orbits,
        optional=(),
        required=range(len(orbits.moves)),
        upper_ticks=before.finish_ticks,
        lower_ticks=search.bound_ticks,
        hint=refold(orbits, before, reducing=reducing),  # the halves one after the other
        joins=joins,
        reducing=reducing,
        time_limit_s=search.deadline.left_s,
        **search.options.of_solvers,
    )
    search.note(answer.status)
    finish, message = None, answer.message
    if answer.schedule is not None:
        whole = unfold(orbits, answer.schedule.sends, producer=_PRODUCER, reducing=reducing)
        finish = search.offer_whole(whole, producer=_PRODUCER, proposed=True)
        message = message if finish is not None else "refused by the verifier"
    found: dict[str, Any] = {"ticks": answer.bound_ticks, "message": message}
    search.record("overlap", "cpsat", answer.status, since, finish_us=finish, **found)


def _joint(problem: Problem, reduction: Search, spreading: Search) -> tuple[Orbits, int, list[int]]:
    """The moves of both halves on one fold of the sum; how many, the first, reduce; and places of sums."""
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
    joins = [p for p, (kind, _) in enumerate(kinds) if kind == "reduce"]
    return with_moves(empty, moves), num_reducing, joins
