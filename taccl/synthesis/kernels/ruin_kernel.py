"""The ruin step, which removes the routes of some chunks from a schedule."""

from __future__ import annotations

from taccl._internal.kernels import inner
from taccl.synthesis.kernels.improvement_state import NONE, Rules, SearchState, Work, draw, mark, reaches
from taccl.synthesis.kernels.timing_kernel import charge, first_from, rebook, unbook

# Index names below: t tree, r rank, e link, a arc, k kind, m send, h hold, q resource.

#: Limits of the moves: a number below `_ANY` is drawn, and the first move with a higher limit is made.
#: In 8 ruins, 3 remove sends on a critical chain, 3 remove neighbours in time on its resource, 2 any sends.
_ON_CHAIN, _ADJACENT, _ANY = 3, 6, 8


@inner
def ruin(w: Work, now: SearchState, rules: Rules) -> None:
    """Remove routes of some chunks, chosen by their sends in one of three ways.

    The sends are on a critical chain (`_ON_CHAIN`), or adjacent in time on a resource that this chain uses
    (`_ADJACENT`), or random (`_ANY`).
    """
    arcs, calendar, room = w.arcs, now.calendar, w.room
    room.is_ruined[:] = False
    room.queue[0] = 0  # number of ruined trees
    left = 1 + draw(room, rules.most_ruined)
    kind = draw(room, _ANY)
    whole = draw(room, 2) == 0
    length = _critical(w, now) if kind < _ADJACENT else 0
    tries = 16
    row = at = 0
    if _ON_CHAIN <= kind < _ADJACENT:
        m = room.chain[draw(room, length)]
        e = now.link[m]
        q = arcs.resource[arcs.hold_of[e] + draw(room, arcs.hold_of[e + 1] - arcs.hold_of[e])]
        tries = min(calendar.size[q], 1 + draw(room, 8))
        row = calendar.row_of[q]
        at = draw(room, calendar.size[q] - tries + 1)
        for i in range(tries):
            room.chain[i] = calendar.send[row + at + i]
    for i in range(tries):
        if left <= 0:
            break
        if kind < _ON_CHAIN:
            m = room.chain[draw(room, length)]
        elif kind < _ADJACENT:
            m = room.chain[i]
        else:
            m = now.order[draw(room, now.size[0])]
            for _ in range(64):
                if now.carries[m] and w.trees.is_free[now.member[m, 0]]:
                    break
                m = now.order[draw(room, now.size[0])]
        left -= _ruin_send(w, now, m, whole)


@inner
def _critical(w: Work, now: SearchState) -> int:
    """Find a critical chain from the finish back: each send waits for the next one; return its length."""
    room = w.room
    size = now.size[0]
    last = now.order[0]
    seen = 0
    for i in range(size):
        m = now.order[i]
        if now.end[m] == now.size[2]:
            seen += 1
            if draw(room, seen) == 0:
                last = m
    length = 0
    m = last
    while m >= 0 and length < size:
        room.chain[length] = m
        length += 1
        m = _held_up_by(w, now, m)
    return length


@inner
def _held_up_by(w: Work, now: SearchState, m: int) -> int:
    """Draw one of the sends that delay send m, as m needs their data or a resource; -1 for none."""
    arcs, trees, calendar, room = w.arcs, w.trees, now.calendar, w.room
    e, k = now.link[m], now.kind[m]
    a = k * arcs.num_links + e
    tail = arcs.tail[a]
    found, seen = NONE, 0
    took = now.end[m] - now.start[m]
    for h in range(arcs.hold_of[e], arcs.hold_of[e + 1]):
        q = arcs.resource[h]
        length = arcs.hold_alpha[h] + now.units[m] * arcs.hold_beta[h]
        begin = now.start[m] + (max(took - length, 0) if arcs.receives[h] else 0)
        row = calendar.row_of[q]
        top = row + calendar.size[q]
        at = first_from(calendar.end, row, top, begin)
        if at < top and calendar.end[at] == begin and calendar.send[at] != m:
            seen += 1
            if draw(room, seen) == 0:
                found = calendar.send[at]
    for j in range(now.carries[m]):
        t = now.member[m, j]
        if k == 0:
            other = now.send[t, tail]
            if now.way[t, tail] >= 0:
                if now.end[other] == now.start[m]:
                    seen += 1
                    if draw(room, seen) == 0:
                        found = other
            elif trees.partner[t] >= 0:
                done = now.start[m] - trees.update[t]
                seen, found = _into(w, now, trees.partner[t], tail, done, seen, found)
        else:
            for x in range(arcs.head_of[a], arcs.head_of[a + 1]):
                if now.way[t, arcs.head[x]] == e:
                    seen, found = _into(w, now, t, arcs.head[x], now.start[m], seen, found)
    return int(found)


@inner
def _into(w: Work, now: SearchState, t: int, r: int, at: int, seen: int, found: int) -> tuple[int, int]:
    """Draw one of the sends that bring contributions of tree t to rank r at time `at`.

    Reservoir sampling over several calls; returns (number of sends seen so far, send drawn).
    """
    for d in range(w.arcs.num_ranks):
        if reaches(w, now, t, r, d) and now.end[now.send[t, d]] == at:
            seen += 1
            if draw(w.room, seen) == 0:
                found = now.send[t, d]
    return seen, found


@inner
def _ruin_send(w: Work, now: SearchState, m: int, whole: bool) -> int:
    """Remove a chunk from a send, with its tree's routes beyond that send, or its whole tree (`whole`).

    Returns the number of routes removed; 1 if there is nothing to remove.
    """
    arcs, trees, room = w.arcs, w.trees, w.room
    if now.carries[m] == 0:
        return 1
    t = now.member[m, draw(room, now.carries[m])]
    if not trees.is_free[t]:
        return 1
    other = trees.partner[t] if whole and draw(room, 2) else NONE
    if whole:
        m = NONE
    else:
        # Ranks that only forwarded the chunk along this path need it no longer.
        tail = arcs.tail[now.kind[m] * arcs.num_links + now.link[m]]
        while now.way[t, tail] >= 0 and not trees.is_target[t, tail] and _num_sent(w, now, t, tail) == 1:
            m = now.send[t, tail]
            tail = arcs.tail[now.kind[m] * arcs.num_links + now.link[m]]
    gone = _cut(w, now, t, m)
    if other >= 0:
        gone += _cut(w, now, other, m)
    if other >= 0 and trees.may_reroot and draw(room, 4) == 0:
        # The sum's reduction tree and broadcast tree are both empty now, so their common root may move.
        r = draw(room, arcs.num_ranks)
        if trees.is_target[t if trees.kind[t] == 1 else other, r]:
            now.root[t] = now.root[other] = r
            mark(room, t)
            mark(room, other)
    return gone


@inner
def _num_sent(w: Work, now: SearchState, t: int, r: int) -> int:
    """Number of ranks that a tree reaches directly from rank r."""
    found = 0
    for d in range(w.arcs.num_ranks):
        found += reaches(w, now, t, r, d)
    return found


@inner
def _cut(w: Work, now: SearchState, t: int, m: int) -> int:
    """Remove a tree's chunk from send m and all sends beyond, or (m is -1) from all; returns their number."""
    arcs, room = w.arcs, w.room
    size = gone = 0
    for r in range(arcs.num_ranks):
        if now.way[t, r] >= 0 and (m < 0 or now.send[t, r] == m):
            room.path[size] = r
            size += 1
    done = 0
    while m >= 0 and done < size:
        for d in range(arcs.num_ranks):
            if reaches(w, now, t, room.path[done], d) and now.send[t, d] != m:
                room.path[size] = d
                size += 1
        done += 1
    for i in range(size):
        r = room.path[i]
        if now.way[t, r] >= 0:
            _take_out(w, now, t, now.send[t, r])
            gone += 1
    return gone


@inner
def _take_out(w: Work, now: SearchState, t: int, m: int) -> None:
    """Remove a tree's chunk from a send, and the send itself if it carries nothing else."""
    arcs, trees, calendar, room = w.arcs, w.trees, now.calendar, w.room
    e, k = now.link[m], now.kind[m]
    a = k * arcs.num_links + e
    for x in range(arcs.head_of[a], arcs.head_of[a + 1]):
        if now.way[t, arcs.head[x]] == e:
            now.way[t, arcs.head[x]] = NONE
    mark(room, t)
    charge(arcs, now, e, now.units[m], -1)
    count = now.carries[m]
    for j in range(count):
        if now.member[m, j] == t:
            now.member[m, j] = now.member[m, count - 1]
            break
    now.carries[m] = count - 1
    now.units[m] -= trees.units[t]
    if count == 1:
        unbook(arcs, calendar, e, m)
        now.spare[now.size[1]] = m
        now.size[1] += 1
    else:
        charge(arcs, now, e, now.units[m], 1)
        now.end[m] = now.start[m] + arcs.alpha[e] + now.units[m] * arcs.beta[e]
        rebook(w, now, m)
