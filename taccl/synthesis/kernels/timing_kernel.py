"""Resource calendar of ruin and recreate: booking of sends, free times, and re-timing of all sends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taccl._internal.kernels import inner
from taccl.synthesis.kernels.improvement_state import NEVER, Arcs, Calendar, Room, SearchState, Work

if TYPE_CHECKING:
    from taccl.synthesis.kernels.fabric import Ints

# Index names below: t tree, r rank, e link, a arc, k kind, m send, h hold, q resource.


@inner
def book(arcs: Arcs, calendar: Calendar, e: int, units: int, start: int, m: int, mirrored: bool) -> None:
    """Book the resources of a send; entries without room in the calendar are dropped until re-timing."""
    took = arcs.alpha[e] + units * arcs.beta[e]
    for h in range(arcs.hold_of[e], arcs.hold_of[e + 1]):
        q = arcs.resource[h]
        length = arcs.hold_alpha[h] + units * arcs.hold_beta[h]
        begin = start + (max(took - length, 0) if arcs.receives[h] != mirrored else 0)
        row, size = calendar.row_of[q], calendar.size[q]
        if row + size >= calendar.row_of[q + 1]:
            continue
        i = row + size
        while i > row and calendar.begin[i - 1] > begin:
            calendar.begin[i] = calendar.begin[i - 1]
            calendar.end[i] = calendar.end[i - 1]
            calendar.send[i] = calendar.send[i - 1]
            i -= 1
        calendar.begin[i] = begin
        calendar.end[i] = begin + length
        calendar.send[i] = m
        calendar.size[q] = size + 1


@inner
def rebook(w: Work, now: SearchState, m: int) -> None:
    """Book a send again at its unchanged start, after its size changed.

    Sets the flag ``reach[2]`` if all sends must be re-timed: its resources are not free, or sends that depend
    on it start before its end.
    """
    arcs, e = w.arcs, now.link[m]
    unbook(arcs, now.calendar, e, m)
    fits = nearest(arcs, now.calendar, e, now.units[m], now.start[m], False, False) == now.start[m]
    for j in range(now.carries[m]):
        t = now.member[m, j]
        for r in range(arcs.num_ranks):
            if now.way[t, r] < 0:
                continue
            x = now.send[t, r]
            tail = arcs.tail[now.kind[x] * arcs.num_links + now.link[x]]
            if now.way[t, tail] >= 0 and now.send[t, tail] == m:
                before, after = (m, x) if now.kind[m] == 0 else (x, m)
                fits = fits and now.end[before] <= now.start[after]
    if not fits:
        w.room.reach[2] = 1
    book(arcs, now.calendar, e, now.units[m], now.start[m], m, False)


@inner
def unbook(arcs: Arcs, calendar: Calendar, e: int, m: int) -> None:
    for h in range(arcs.hold_of[e], arcs.hold_of[e + 1]):
        q = arcs.resource[h]
        row, size = calendar.row_of[q], calendar.size[q]
        found = False
        for i in range(row, row + size):
            if found:
                calendar.begin[i - 1] = calendar.begin[i]
                calendar.end[i - 1] = calendar.end[i]
                calendar.send[i - 1] = calendar.send[i]
            elif calendar.send[i] == m:
                found = True
        if found:
            calendar.size[q] = size - 1


@inner
def charge(arcs: Arcs, now: SearchState, e: int, units: int, sign: int) -> None:
    for h in range(arcs.hold_of[e], arcs.hold_of[e + 1]):
        now.load[arcs.resource[h]] += sign * (arcs.hold_alpha[h] + units * arcs.hold_beta[h])


@inner
def nearest(
    arcs: Arcs, calendar: Calendar, e: int, units: int, start: int, mirrored: bool, backwards: bool
) -> int:
    """First start from `start` on (last one up to it if `backwards`) at which a send's resources are free."""
    took = arcs.alpha[e] + units * arcs.beta[e]
    first, last = arcs.hold_of[e], arcs.hold_of[e + 1]
    fits = 0
    h = first
    while fits < last - first:
        q = arcs.resource[h]
        length = arcs.hold_alpha[h] + units * arcs.hold_beta[h]
        lead = max(took - length, 0) if arcs.receives[h] != mirrored else 0
        begin = start + lead
        row = calendar.row_of[q]
        top = row + calendar.size[q]
        if backwards:
            i = first_from(calendar.begin, row, top, begin + length) - 1
            while i >= row and calendar.end[i] > begin:
                begin = min(begin, calendar.begin[i] - length)
                i -= 1
        elif top > row and calendar.end[top - 1] > begin:
            i = first_from(calendar.end, row, top, begin + 1)
            while i < top and calendar.begin[i] < begin + length:
                begin = max(begin, calendar.end[i])
                i += 1
        if begin != start + lead:
            start = begin - lead
            fits = 0
        fits += 1
        h += 1
        if h == last:
            h = first
    return start


@inner
def first_from(times: Ints, low: int, top: int, at: int) -> int:
    """First row of ``low:top`` with a time of at least `at`; the times ascend."""
    while low < top:
        middle = (low + top) >> 1
        if times[middle] >= at:
            top = middle
        else:
            low = middle + 1
    return low


@inner
def retime(w: Work, now: SearchState, passes: int) -> None:
    """Re-time all sends forwards, then backwards and forwards again while the finish falls.

    Serial schedule generation: in order of starts, each send is inserted as early as possible; then, in
    reverse order of ends, as late as possible (forward-backward improvement).
    """
    least = NEVER
    for i in range(2 * passes + 1):
        is_backwards = i % 2 == 1
        if is_backwards:
            if now.size[2] >= least:
                break
            least = now.size[2]
        if i:
            _reverse(now)
        _sort(now, w.room, is_backwards)
        _place(w, now, is_backwards)


@inner
def _reverse(now: SearchState) -> None:
    """Reverse the order of sends, which brings them roughly into the order of reversed time."""
    last = now.size[0] - 1
    for i in range((last + 1) // 2):
        now.order[i], now.order[last - i] = now.order[last - i], now.order[i]


@inner
def _sort(now: SearchState, room: Room, mirrored: bool) -> None:
    """Sort sends by start, or by descending end if `mirrored`, and drop unused sends.

    Merge sort that skips runs already in order, as most are.
    """
    order, key, left = now.order, room.key, room.sorted
    count = 0
    for i in range(now.size[0]):
        m = order[i]
        if now.carries[m]:
            order[count] = m
            key[m] = -now.end[m] if mirrored else now.start[m]
            count += 1
    now.size[0] = count
    width = 1
    while width < count:
        for low in range(0, count - width, 2 * width):
            middle, top = low + width, min(low + 2 * width, count)
            if key[order[middle - 1]] <= key[order[middle]]:
                continue
            for i in range(low, middle):
                left[i] = order[i]
            i, j = low, middle
            for at in range(low, top):
                if i == middle:
                    break
                if j < top and key[order[j]] < key[left[i]]:
                    order[at] = order[j]
                    j += 1
                else:
                    order[at] = left[i]
                    i += 1
        width *= 2


@inner
def _place(w: Work, now: SearchState, mirrored: bool) -> None:
    """Insert all sends in order, each as early as possible; in reversed time if `mirrored`."""
    arcs, trees, calendar, room = w.arcs, w.trees, now.calendar, w.room
    num_links, count = arcs.num_links, now.size[0]
    for q in range(len(calendar.size)):
        calendar.size[q] = 0
    room.ready[:] = 0
    for t in range(0 if mirrored else len(trees.kind)):
        if trees.update[t] and trees.kind[t] == 0:  # for a sum to which only its server contributes
            room.ready[t, now.root[t]] = trees.update[t]
    finish = 0
    for i in range(count):
        m = now.order[i]
        e, k = now.link[m], now.kind[m]
        a = k * num_links + e
        tail = arcs.tail[a]
        outward = (k == 1) == mirrored
        begin = 0
        for j in range(now.carries[m]):
            t = now.member[m, j]
            if outward:
                begin = max(begin, room.ready[t, tail])
            else:
                for x in range(arcs.head_of[a], arcs.head_of[a + 1]):
                    r = arcs.head[x]
                    if now.way[t, r] == e:
                        begin = max(begin, room.ready[t, r])
        start = nearest(arcs, calendar, e, now.units[m], begin, mirrored, False)
        book(arcs, calendar, e, now.units[m], start, m, mirrored)
        end = start + arcs.alpha[e] + now.units[m] * arcs.beta[e]
        now.start[m], now.end[m] = start, end
        finish = max(finish, end)
        for j in range(now.carries[m]):
            t = now.member[m, j]
            if outward:
                for x in range(arcs.head_of[a], arcs.head_of[a + 1]):
                    r = arcs.head[x]
                    if now.way[t, r] == e:
                        room.ready[t, r] = end
            else:
                room.ready[t, tail] = max(room.ready[t, tail], end)
                other = trees.partner[t]
                if other >= 0 and now.root[t] == tail:
                    done = end + trees.update[t]
                    room.ready[other, tail] = max(room.ready[other, tail], done)
                    if mirrored:
                        finish = max(finish, done)
    if mirrored:
        for i in range(count):
            m = now.order[i]
            now.start[m], now.end[m] = finish - now.end[m], finish - now.start[m]
    now.size[2] = finish
