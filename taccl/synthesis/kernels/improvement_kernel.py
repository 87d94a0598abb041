"""Compiled loop of ruin and recreate over routes and order.

In every turn the routes of some chunks are removed from the schedule and re-inserted into its resource
calendar. The result is a schedule, unless a merged send would end later, or a send would start before time 0.
In these cases, and in some other turns, all sends are re-timed. The result is accepted if it is not much
worse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from taccl._internal.kernels import compiled, inner
from taccl.synthesis.kernels.improvement_state import FAR, NEVER, Rules, SearchState, Work, draw, mark
from taccl.synthesis.kernels.recreate_kernel import at_root, recreate
from taccl.synthesis.kernels.ruin_kernel import ruin
from taccl.synthesis.kernels.timing_kernel import retime

if TYPE_CHECKING:
    from taccl.synthesis.kernels.fabric import Ints


# Index names below: t tree, r rank, e link, a arc, k kind, m send, h hold, q resource.


@compiled
def improve(
    w: Work, states: tuple[SearchState, SearchState, SearchState], rules: Rules, counts: Ints, signal: Ints
) -> int:
    """Improve a schedule by ruin and recreate; returns the best finish in ticks, -1 if there is none.

    - `states`, (now, kept, best): `now` holds a schedule, or a part of one, which is completed first; the
      others are work arrays. On return `best` is the best schedule.
    - `counts`, (3,) int64: Set to the numbers of turns, of accepted turns, and of turns that improved the
      finish.
    - `signal`, (1,) int64: The search stops once this is 1.
    """
    now, kept, best = states
    w.room.is_ruined[:] = False
    w.room.queue[0] = 0
    for t in range(len(w.trees.kind)):
        mark(w.room, t)
    retime(w, now, 0)
    least = NEVER
    value = record = FAR
    turn = 0
    while turn <= rules.turns and least > rules.target_ticks:
        if turn:
            if signal[0]:
                break
            counts[0] += 1
            w.room.reach[2] = 0
            ruin(w, now, rules)
        is_whole = recreate(w, now)
        if not is_whole and turn == 0:
            return -1
        passes = 0 if draw(w.room, rules.every) else rules.passes
        if is_whole and (turn == 0 or passes or not _settle(w, now)):
            retime(w, now, passes)
        new = _value(now, rules)
        threshold = rules.threshold * (1.0 - turn / (rules.turns + 1.0))
        limit = min(value * (1.0 + threshold), record * (1.0 + 3.0 * threshold))
        if is_whole and new <= limit:
            value = new
            record = min(record, new)
            counts[1] += turn > 0
            if now.size[2] < least:
                counts[2] += turn > 0
                least = now.size[2]
                _copy(w, now, best, True)
            _copy(w, now, kept, False)
        else:
            _copy(w, kept, now, False)
        turn += 1
    return int(least)


@inner
def _settle(w: Work, now: SearchState) -> bool:
    """Compute the finish if all sends can stay as they were inserted; false if they must be re-timed."""
    trees, room = w.trees, w.room
    first = last = 0
    for i in range(now.size[0]):
        m = now.order[i]
        first = min(first, now.start[m])
        last = max(last, now.end[m])
    now.size[2] = last
    for i in range(room.queue[0]):
        t = room.ruined[i]
        other = trees.partner[t]
        if other >= 0:
            spread, reduce = (t, other) if trees.kind[t] == 0 else (other, t)
            if max(at_root(w, now, reduce), 0) + trees.update[t] > at_root(w, now, spread):
                return False
    return bool(first == 0 and room.reach[2] == 0)


@inner
def _copy(w: Work, a: SearchState, b: SearchState, whole: bool) -> None:
    """Copy state a to state b; of the routes, copy all if `whole`, otherwise only those of ruined trees."""
    for i in range(len(a.root) if whole else w.room.queue[0]):
        t = i if whole else w.room.ruined[i]
        b.root[t] = a.root[t]
        for r in range(w.arcs.num_ranks):
            b.way[t, r] = a.way[t, r]
            b.send[t, r] = a.send[t, r]
    top = max(a.size[3], b.size[3])
    _copy_part(a.size, b.size, 0, 4)
    for m in range(top):
        b.carries[m] = a.carries[m]
        for j in range(a.carries[m]):
            b.member[m, j] = a.member[m, j]
    _copy_part(a.link, b.link, 0, top)
    _copy_part(a.kind, b.kind, 0, top)
    _copy_part(a.units, b.units, 0, top)
    _copy_part(a.start, b.start, 0, top)
    _copy_part(a.end, b.end, 0, top)
    _copy_part(a.order, b.order, 0, a.size[0])
    _copy_part(a.spare, b.spare, len(a.spare) - top, a.size[1])
    _copy_part(a.load, b.load, 0, len(a.load))
    _copy_part(a.calendar.size, b.calendar.size, 0, len(a.load))
    for q in range(len(a.load)):
        row = a.calendar.row_of[q]
        top = row + a.calendar.size[q]
        _copy_part(a.calendar.begin, b.calendar.begin, row, top)
        _copy_part(a.calendar.end, b.calendar.end, row, top)
        _copy_part(a.calendar.send, b.calendar.send, row, top)


@inner
def _copy_part(a: Ints, b: Ints, first: int, last: int) -> None:
    for i in range(first, last):
        b[i] = a[i]


@inner
def _value(now: SearchState, rules: Rules) -> float:
    """Value to minimise: the finish, plus small terms for late sends and for resource usage."""
    finish = max(1.0, float(now.size[2]))
    late = 0.0  # schedules of equal finish differ in how many sends are late
    for i in range(now.size[0]):
        part = now.end[now.order[i]] / finish
        for _ in range(rules.sharpness):
            part *= part
        late += part
    burden = 0.0
    for q in range(len(now.load)):
        part = now.load[q] / finish
        burden += part * part
    late *= rules.lateness / max(1, now.size[0])
    burden *= rules.economy / len(now.load)
    value: float = finish * (1.0 + late + burden)
    return value
