"""Kernel that improves mixed plans of recursive multiplying by simulated annealing.

A mix is simulated as in `taccl.baselines.multiplying_mix_times`, with equal results: the part whose next step
can start first takes it, and parts wait for the resources that other parts hold.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from taccl._internal.draws import draw_below
from taccl._internal.kernels import compiled, inner

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

#: Ratio by which a lower bound must exceed a limit to end a simulation, as sums of times are rounded.
_ROUNDING = 1 + 1e-9
#: Values of `Plans.verb`.
SCATTER, SUM, GATHER = 0, 1, 2
#: Moves of the search, as indices of a row of `SHARES`.
#: `NEW`: chunks of the largest part get another plan, first or last.
#: `SPLIT`: chunks of a part become a part of their own.
#: `SHIFT`: chunks move from one part to another.
#: `REPLAN`: a part gets another plan.
#: `DELAY`: a step of a part starts only after a step of another part, or at once. In the other moves, a part
#: gets another place.
NEW, SPLIT, SHIFT, REPLAN, DELAY = 0, 1, 2, 3, 4
#: Upper ends of the shares of these moves in percent, without and with delays.
SHARES = (20, 35, 70, 80, 80), (20, 35, 65, 75, 88)


class Plans(NamedTuple):
    """Plans that a part may have.

    - `kind`: (num_plans, num_steps) index of each step in `Steps`; -1 behind the last one.
    - `verb`: (num_plans, num_steps) `SCATTER`, `SUM` or `GATHER`.
    - `base`: (num_plans, num_steps) number of ranks that exchange in each step.
    - `own`: (num_plans, num_steps) the `own` of its digit.
    - `back`, `shares`: (num_plans, num_steps) and (num_plans, num_steps, 2, 2) when it may start, as in
      `taccl.baselines.multiplying_overlaps.follows`.
    """

    kind: Ints
    verb: Ints
    base: Ints
    own: Ints
    back: Ints
    shares: Floats


class Steps(NamedTuple):
    """Times of steps, by the number of chunks in each message.

    - `ticks`: (num_kinds, num_chunks + 1) ticks of a step.
    - `per_chunk`, `per_send`: (num_kinds, num_resources) ticks for which it holds each resource: per chunk of
      a message, and per send of merged chunks.
    - `most_merged`: (1,) max chunks of such a send.
    - `pieces`: (num_kinds,) number of messages to a partner.
    """

    ticks: Floats
    per_chunk: Floats
    per_send: Floats
    most_merged: Ints
    pieces: Ints


class Mixes(NamedTuple):
    """Mixes of at most `num_parts` parts: the best one, the current one, and a changed one.

    - `number`: (3,) number of parts.
    - `plan`, `size`: (3, num_parts) plan of each part, and number of its chunks.
    - `step`, `delay`: (3, num_parts) index of a step of each part, and its earliest start.
    """

    number: Ints
    plan: Ints
    size: Ints
    step: Ints
    delay: Floats


class Room(NamedTuple):
    """Storage of a simulation, by part, step and resource.

    - `ticks`, `lead`, `left`: (num_parts, num_steps) ticks of a step; from the start of the step that it
      follows to its earliest start; from its start to the end of the steps that depend on it.
    - `since`, `longest`: (num_parts, num_steps) its start, and ticks for which it holds its bottleneck.
    - `back`: (num_parts, num_steps) how many steps before it is the one that it follows; 0: it follows all.
    - `busy`: (num_parts, num_steps, num_resources) ticks for which it holds each resource.
    - `ready`, `done`: (num_parts,) earliest start of the next step, and end of all steps so far.
    - `length`, `place`: (num_parts,) number of steps, and index of the next one.
    - `other`: (num_parts,) 1 if the step after the next one may start before it, -1 if it has, else 0.
    - `loads`: (4, num_resources) figures of a resource. The first two are the ticks of all further holds, and
      the time at which it is free. The others are the shortest times of a part before its first hold, and
      after its last one.
    """

    ticks: Floats
    lead: Floats
    left: Floats
    since: Floats
    longest: Floats
    back: Ints
    busy: Floats
    ready: Floats
    done: Floats
    length: Ints
    place: Ints
    other: Ints
    loads: Floats


@inner
def _prepare(plans: Plans, steps: Steps, mixes: Mixes, which: int, room: Room, most: float) -> bool:
    """Fill the storage with the steps of a mix; false if it surely takes longer than `most`."""
    num_resources = steps.per_chunk.shape[1]
    load, free, head, tail = room.loads
    load[:], free[:], head[:], tail[:] = 0.0, 0.0, math.inf, math.inf
    for k in range(mixes.number[which]):
        plan, held, length, total = mixes.plan[which, k], mixes.size[which, k], 0, 0.0
        while length < plans.kind.shape[1] and plans.kind[plan, length] >= 0:
            kind, verb, base = plans.kind[plan, length], plans.verb[plan, length], plans.base[plan, length]
            own, count = plans.own[plan, length], held
            if verb == SCATTER and own <= 0:
                held = count = (held + base - 1) // base
            if own < 0:
                count -= (count - own - 1) // -own
            elif own > 0 and verb == GATHER:
                count = (count + own - 1) // own
            count = max(1, count)
            pieces = min(steps.pieces[kind], count)
            together = pieces * steps.most_merged[0]
            sends, longest = pieces * ((count + together - 1) // together), 0.0
            for r in range(num_resources):
                busy = count * steps.per_chunk[kind, r] + sends * steps.per_send[kind, r]
                room.busy[k, length, r] = busy
                longest = max(longest, busy)
            ticks, back, begin, lead = steps.ticks[kind, count], plans.back[plan, length], total, 0.0
            if back > 0:
                before, shares = length - back, plans.shares[plan, length]
                if shares[1, 0] > 0.0:
                    held_before = room.longest[k, before]
                    lead = max(
                        shares[0, 0] * held_before - shares[0, 1] * longest,
                        shares[1, 0] * held_before - shares[1, 1] * longest,
                    )
                    lead = max(0.0, room.ticks[k, before] - held_before + lead)
                begin = room.since[k, before] + lead
            room.ticks[k, length], room.longest[k, length], room.back[k, length] = ticks, longest, back
            room.lead[k, length], room.since[k, length], room.left[k, length] = lead, begin, ticks
            total = max(total, begin + ticks)
            if verb == GATHER and own <= 0:
                held *= base
            length += 1
        if total > most:
            return False
        room.length[k], room.place[k], room.other[k] = length, 0, 0
        room.ready[k] = room.done[k] = 0.0
        then = 0.0
        for s in range(length - 1, -1, -1):
            left, back = max(room.left[k, s], room.ticks[k, s] + then), room.back[k, s]
            room.left[k, s] = left
            if back > 0:
                room.left[k, s - back] = max(room.left[k, s - back], room.lead[k, s] + left)
            else:
                then = left
        for r in range(num_resources):
            first = last = total
            for s in range(length):
                if room.busy[k, s, r] > 0:
                    load[r] += room.busy[k, s, r]
                    first = min(first, room.since[k, s])
                    last = min(last, room.left[k, s] - room.busy[k, s, r])
            head[r], tail[r] = min(head[r], first), min(tail[r], last)
    least = 0.0
    for r in range(num_resources):
        least = max(least, load[r] + head[r] + tail[r])
    return least <= most * _ROUNDING


@inner
def _finish(plans: Plans, steps: Steps, mixes: Mixes, which: int, room: Room, most: float) -> float:
    """Finish of a mix in ticks; infinite beyond `most`."""
    if not _prepare(plans, steps, mixes, which, room, most):
        return math.inf
    load, free, _, tail = room.loads
    finish = 0.0
    while True:
        since, first, is_own, early = math.inf, -1, False, 0
        for k in range(mixes.number[which]):
            for after in range(1 + max(0, room.other[k])):
                s = room.place[k] + after
                if s < room.length[k]:
                    start = room.ready[k]
                    if s == mixes.step[which, k]:
                        start = max(start, mixes.delay[which, k])
                    for r in range(len(free)):
                        if free[r] > start and room.busy[k, s, r] > 0:
                            start = free[r]
                    own = plans.own[mixes.plan[which, k], s] > 0
                    if start < since or (start == since and is_own and not own):
                        since, first, is_own, early = start, k, own, after
        if first < 0:
            return finish
        s = room.place[first] + early
        if since + room.left[first, s] > most:
            return math.inf
        for r in range(len(free)):
            busy = room.busy[first, s, r]
            if busy > 0:
                free[r] = since + busy
                load[r] -= busy
                if free[r] + load[r] + tail[r] > most * _ROUNDING:
                    return math.inf
        room.since[first, s] = since
        room.done[first] = max(room.done[first], since + room.ticks[first, s])
        finish = max(finish, room.done[first])
        if early > 0:
            room.other[first] = -1
            continue
        s += 1
        if room.other[first] < 0:
            s += 1
        room.place[first], room.other[first] = s, 0
        if s < room.length[first]:
            plan, back = mixes.plan[which, first], room.back[first, s]
            if plans.own[plan, s] <= 0:
                room.ready[first] = (
                    room.done[first] if back == 0 else room.since[first, s - back] + room.lead[first, s]
                )
            if s + 1 < room.length[first] and plans.own[plan, s + 1] > 0:
                room.other[first] = 1


@inner
def _copy(mixes: Mixes, src: int, dst: int) -> None:
    """Copy one of the mixes to another one."""
    mixes.number[dst] = mixes.number[src]
    for k in range(mixes.number[src]):
        mixes.plan[dst, k], mixes.size[dst, k] = mixes.plan[src, k], mixes.size[src, k]
        mixes.step[dst, k], mixes.delay[dst, k] = mixes.step[src, k], mixes.delay[src, k]


@inner
def _insert(mixes: Mixes, place: int, plan: int, size: int, step: int, delay: float) -> None:
    """Insert a part into the changed mix."""
    for k in range(mixes.number[2], place, -1):
        mixes.plan[2, k], mixes.size[2, k] = mixes.plan[2, k - 1], mixes.size[2, k - 1]
        mixes.step[2, k], mixes.delay[2, k] = mixes.step[2, k - 1], mixes.delay[2, k - 1]
    mixes.plan[2, place], mixes.size[2, place] = plan, size
    mixes.step[2, place], mixes.delay[2, place] = step, delay
    mixes.number[2] += 1


@inner
def _remove(mixes: Mixes, place: int) -> None:
    """Remove the part at index `place` from the changed mix, row 2 of `mixes`."""
    mixes.number[2] -= 1
    for k in range(place, mixes.number[2]):
        mixes.plan[2, k], mixes.size[2, k] = mixes.plan[2, k + 1], mixes.size[2, k + 1]
        mixes.step[2, k], mixes.delay[2, k] = mixes.step[2, k + 1], mixes.delay[2, k + 1]


@inner
def _amount(size: int, random: NDArray[np.uint64]) -> int:
    """Random power of two up to `size`, or all of it."""
    powers = 1
    while 1 << powers <= size:
        powers += 1
    return min(size, 1 << draw_below(random, powers + 1))


@inner
def _draw_plan(mixes: Mixes, num_plans: int, random: NDArray[np.uint64]) -> int:
    """Random plan: half of the time that of a part of the changed mix, which has at least one."""
    if draw_below(random, 2) == 0:
        return int(mixes.plan[2, draw_below(random, mixes.number[2])])
    return draw_below(random, num_plans)


@inner
def _change(mixes: Mixes, num_plans: int, room: Room, shares: Ints, random: NDArray[np.uint64]) -> bool:
    """Make the changed mix a random neighbour of the current one; false if it would have too many parts.

    - `room`: Starts of steps in an earlier mix, after which a step may be delayed.
    - `shares`: As for `anneal`.
    """
    _copy(mixes, 1, 2)
    plan, size, number = mixes.plan[2], mixes.size[2], mixes.number[2]
    move, here = draw_below(random, 100), draw_below(random, number)
    if move < shares[NEW]:
        for k in range(number):
            if size[k] > size[here]:
                here = k
    moved, old = _amount(size[here], random), plan[here]
    step, delay = mixes.step[2, here], mixes.delay[2, here]
    if move < shares[SPLIT]:
        if number == len(plan) and moved < size[here]:
            return False
        if move < shares[NEW]:
            old = _draw_plan(mixes, num_plans, random)  # before a removal, which may leave no part
        size[here] -= moved
        if size[here] == 0:
            _remove(mixes, here)
        if move < shares[NEW]:
            _insert(mixes, mixes.number[2] * draw_below(random, 2), old, moved, 0, 0.0)
        else:
            _insert(mixes, draw_below(random, mixes.number[2] + 1), old, moved, step, delay)
    elif move < shares[SHIFT]:
        size[draw_below(random, number)] += moved
        size[here] -= moved
        if size[here] == 0:
            _remove(mixes, here)
    elif move < shares[REPLAN]:
        plan[here] = _draw_plan(mixes, num_plans, random)
    elif move < shares[DELAY]:
        mixes.step[2, here], mixes.delay[2, here] = 0, 0.0
        other = draw_below(random, 2 * number)
        if other < number and room.length[other] > 0:
            # One tick later, so that the other step goes first.
            mixes.delay[2, here] = room.since[other, draw_below(random, room.length[other])] + 1.0
            if draw_below(random, 2) == 0:
                mixes.step[2, here] = draw_below(random, max(1, room.length[here]))
    else:
        moved = size[here]
        _remove(mixes, here)
        _insert(mixes, draw_below(random, number), old, moved, step, delay)
    return True


@compiled
def anneal(
    plans: Plans,
    steps: Steps,
    mixes: Mixes,
    room: Room,
    ticks: Floats,
    heats: Floats,
    shares: Ints,
    random: NDArray[np.uint64],
) -> None:
    """Try moves from the current mix; the best mix is kept.

    - `ticks`: (2,) finish of the best mix and of the current one, which change; infinite if not known.
    - `heats`: (num_moves,) temperature of each move, in ticks.
    - `shares`: (5,) upper ends of the shares of moves, one of `SHARES`.
    """
    if ticks[1] == math.inf:
        ticks[:] = _finish(plans, steps, mixes, 1, room, math.inf)
    for heat in heats:
        if not _change(mixes, len(plans.kind), room, shares, random):
            continue
        unit = (1 + draw_below(random, 1 << 30)) / (1 << 30)
        found = _finish(plans, steps, mixes, 2, room, ticks[1] - heat * math.log(unit))
        if found == math.inf:
            continue
        _copy(mixes, 2, 1)
        ticks[1] = found
        if found < ticks[0]:
            ticks[0] = found
            _copy(mixes, 1, 0)
