"""The compiled search for crossings that finish early.

Chunks whose crossings are late are taken out of their rounds and put back another way, as long as that is no
worse: judged by the exact finish, and by how much must come earlier for all to end by a target.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.kernels import compiled
from taccl.synthesis.crossing.rounds import (
    chance,
    copy_plan,
    draw,
    replace_chunk,
    seed_random,
    take_out,
)
from taccl.synthesis.crossing.times import time_crossings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.synthesis.crossing.crossings import Crossings
    from taccl.synthesis.crossing.rounds import Plan
    from taccl.synthesis.crossing.times import Times

__all__ = ["Room", "improve", "make_room"]

#: By how much a round comes before the next.
_A_ROUND = 2.0**32
#: What a tick of the finish weighs, beside one for which a crossing of an average chunk is late.
_FINISH, _LATE = 3.0, 0.5
#: How many chunks are taken out at once at most, how often each is tried, and how often the latest is one.
_MOST_OUT, _TRIES, _FOCUS = 3, 4, 0.5


class Room(NamedTuple):
    """Room for the search.

    Parameters
    ----------
    lateness : (num_crossings,) int64
        When all would end if it waited for this crossing alone.
    picked : (_MOST_OUT,) int64
        Chunks that are taken out.
    """

    lateness: NDArray[np.int64]
    picked: NDArray[np.int64]


def make_room(x: Crossings) -> Room:
    """Room for the search."""
    return Room(np.zeros(2 * x.num_chunks * x.num_nodes, np.int64), np.zeros(_MOST_OUT, np.int64))


# In all below: c chunk, i crossing.


@compiled
def improve(
    x: Crossings,
    plan: Plan,
    kept: Plan,
    t: Times,
    room: Room,
    num_rounds: int,
    turns: int,
    target: int,
    seed: int,
    signal: NDArray[np.int64],
) -> int:
    """Take chunks out of their rounds and put them back, turn after turn; when the plan ends.

    Parameters
    ----------
    plan, kept : Plan
        A complete plan with starts, and room for another.
    target : int
        Ticks; it stops at a plan that ends by then, and what could not end by then counts as late.
    signal : (1,) int64
        It stops once this is 1.
    """
    seed_random(plan, seed)
    count = len(plan.link)
    for i in range(count):
        t.key[i] = plan.start[i]
    finish = time_crossings(x, plan, t, 1)
    least = _measure(x, plan, t, finish, target)
    _note_lateness(plan, t, room)
    copy_plan(plan, kept)
    for _ in range(turns):
        if finish <= target or signal[0]:
            break
        out = 1 + draw(plan, _MOST_OUT)
        for k in range(out):
            room.picked[k] = draw(plan, x.num_chunks)
        if chance(plan) < _FOCUS:
            room.picked[0] = _late_chunk(x, plan, room)
        for k in range(out):
            take_out(x, plan, room.picked[k])
        is_in = True
        for k in range(out):
            is_second = False
            for other in range(k):
                is_second |= room.picked[other] == room.picked[k]
            if is_in and not is_second:
                is_in = replace_chunk(x, plan, room.picked[k], num_rounds, _TRIES) >= 0.0
        if is_in:
            for i in range(count):
                t.key[i] = plan.round[i] * _A_ROUND + plan.start[i]
            ends = time_crossings(x, plan, t, 1)
            measure = _measure(x, plan, t, ends, target)
            is_in = measure <= least
        if is_in:
            finish, least = ends, measure
            _note_lateness(plan, t, room)
            copy_plan(plan, kept)
        else:
            copy_plan(kept, plan)
    return finish


@compiled
def _measure(x: Crossings, plan: Plan, t: Times, finish: int, target: int) -> float:
    """The smaller the better: the finish, how late crossings are, and sends that they need between them."""
    late = 0.0
    for i in range(len(plan.link)):
        if plan.link[i] >= 0:
            late += max(0, t.start[i] + t.rest[i] - target)
    for a in range(t.after_of[len(plan.link)]):
        late += x.hop * (t.after_delay[a] > 0)
    return _FINISH * finish + _LATE * late / x.num_chunks


@compiled
def _note_lateness(plan: Plan, t: Times, room: Room) -> None:
    for i in range(len(plan.link)):
        room.lateness[i] = t.start[i] + t.rest[i]


@compiled
def _late_chunk(x: Crossings, plan: Plan, room: Room) -> int:
    """The chunk of a crossing that all waits for the longest, about."""
    worst, c = -1.0, 0
    for i in range(len(plan.link)):
        if plan.link[i] >= 0:
            late = room.lateness[i] + 2.0 * x.hop * chance(plan)
            if late > worst:
                worst, c = late, (i // x.num_nodes) % x.num_chunks
    return int(c)
