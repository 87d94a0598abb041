"""The compiled loop of ruin and recreate over routes and order.

In every turn the routes of some chunks are taken out of the schedule, and inserted anew into its resource
calendar: a schedule again, unless a send that merges had to end later, or one would have to start before
time 0. Then, and in some of the other turns, all sends are timed again. What is not much worse is kept.

Time runs forwards for chunks that spread and backwards for contributions that come together, so that both
grow from their roots: a tree of either kind is a tree of *arcs*, and the time at which one reaches a rank
counts from its root.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.kernels import compiled, inner
from taccl.synthesis.heuristic.events import pop, push

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Arcs", "Calendar", "Room", "Rules", "State", "Trees", "Work", "improve"]

_NONE = -1
_NEVER = 1 << 60
_FAR = 1e300


class Arcs(NamedTuple):
    """Links as trees see them: arc ``kind * num_links + link``, of kind 0 for spreading and 1 for reducing.

    Parameters
    ----------
    num_ranks, num_links : int
    alpha, beta : (num_links,) int64
        A send of u units takes ``alpha + u * beta`` ticks.
    may_merge : (num_links,) bool
        Whether a send may carry several chunks.
    most_merged : int
    hold_of, resource, hold_alpha, hold_beta, receives
        Holds of link e are rows ``hold_of[e]:hold_of[e + 1]``.
    tail : (2 * num_links,) int64
        The rank that a tree goes on from over an arc; -1 where trees of its kind cannot use it.
    head_of, head : (2 * num_links + 1,) int64, int64
        The ranks that it reaches so.
    out_of, out : (2 * num_ranks + 1,) int64, int64
        Arcs of kind k from rank r are ``out[out_of[k * num_ranks + r]:...]``.
    in_of, into : the same of arcs that reach rank r.
    """

    num_ranks: int
    num_links: int
    alpha: NDArray[np.int64]
    beta: NDArray[np.int64]
    may_merge: NDArray[np.bool_]
    most_merged: int
    hold_of: NDArray[np.int64]
    resource: NDArray[np.int64]
    hold_alpha: NDArray[np.int64]
    hold_beta: NDArray[np.int64]
    receives: NDArray[np.bool_]
    tail: NDArray[np.int64]
    head_of: NDArray[np.int64]
    head: NDArray[np.int64]
    out_of: NDArray[np.int64]
    out: NDArray[np.int64]
    in_of: NDArray[np.int64]
    into: NDArray[np.int64]


class Trees(NamedTuple):
    """What every tree has to reach, and over which links.

    Parameters
    ----------
    units, kind, partner : (num_trees,) int64
        The partner is the other tree of a chunk that is reduced and then spreads; -1 for none.
    is_origin, is_target : (num_trees, num_ranks) bool
    open_class : (num_trees,) int64
    is_open : (num_classes, num_links) bool
        Links that trees of a class may use.
    is_free : (num_trees,) bool
        Whether routes may change.
    may_reroot : bool
        Whether sums may be complete first at any rank that contributes.
    """

    units: NDArray[np.int64]
    kind: NDArray[np.int64]
    partner: NDArray[np.int64]
    is_origin: NDArray[np.bool_]
    is_target: NDArray[np.bool_]
    open_class: NDArray[np.int64]
    is_open: NDArray[np.bool_]
    is_free: NDArray[np.bool_]
    may_reroot: bool


class Calendar(NamedTuple):
    """When every resource is held: rows ``row_of[q]`` on, `size[q]` of them, in order of time."""

    row_of: NDArray[np.int64]
    size: NDArray[np.int64]
    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    send: NDArray[np.int64]


class State(NamedTuple):
    """Routes and sends.

    Parameters
    ----------
    root : (num_trees,) int64
        Where trees with a partner grow from; -1 for others.
    way : (num_trees, num_ranks) int64
        The link by which a tree reaches a rank; -1 for none.
    send : (num_trees, num_ranks) int64
        The send over that link.
    link, kind, carries : (num_sends,) int64
        Of each send; it carries so many chunks, 0 where the number is not in use.
    units, start, end : (num_sends,) int64
    member : (num_sends, most_merged) int64
        The trees whose chunks it carries.
    order : (num_sends,) int64
        Sends in use, in order of time.
    spare : (num_sends,) int64
        Numbers not in use.
    size : (3,) int64
        How many there are of either, and the finish in ticks.
    load : (num_resources,) int64
        Ticks for which sends hold each resource.
    calendar : Calendar
        The same sends.
    """

    root: NDArray[np.int64]
    way: NDArray[np.int64]
    send: NDArray[np.int64]
    link: NDArray[np.int64]
    kind: NDArray[np.int64]
    carries: NDArray[np.int64]
    units: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    member: NDArray[np.int64]
    order: NDArray[np.int64]
    spare: NDArray[np.int64]
    size: NDArray[np.int64]
    load: NDArray[np.int64]
    calendar: Calendar


class Room(NamedTuple):
    """Room for working.

    Parameters
    ----------
    ready : (num_trees, num_ranks) int64
        When a chunk is there.
    when : (num_ranks,) int64
        When the tree that grows reaches a rank, counted from its root.
    cost, paid : (num_ranks,) float64
        What this costs in all, and what of it is not time.
    came : (num_ranks,) int64
        The arc that it is reached by.
    is_in : (num_ranks,) bool
        Whether the tree reaches it already.
    path : (num_ranks,) int64
    heap_cost, heap_rank
    price : (num_resources,) float64
        Of a tick.
    key, sorted : (num_sends,) int64, int64
    following, first : (num_sends,), (num_arcs,) int64
        Sends on arcs that may merge.
    ruined : (num_trees,) int64
        Trees that have lost routes.
    is_ruined : (num_trees,) bool
    queue : (num_ranks,) int64
    chain : (num_sends,) int64
    reach : (3,) int64
        When an arc's heads are reached, the send that is joined for it, and whether all must be timed again.
    random : (2,) uint64
        The state of random choices, and what they are mixed with in a turn.
    """

    ready: NDArray[np.int64]
    when: NDArray[np.int64]
    cost: NDArray[np.float64]
    paid: NDArray[np.float64]
    came: NDArray[np.int64]
    is_in: NDArray[np.bool_]
    path: NDArray[np.int64]
    heap_cost: NDArray[np.float64]
    heap_rank: NDArray[np.int64]
    price: NDArray[np.float64]
    key: NDArray[np.int64]
    sorted: NDArray[np.int64]
    following: NDArray[np.int64]
    first: NDArray[np.int64]
    ruined: NDArray[np.int64]
    is_ruined: NDArray[np.bool_]
    queue: NDArray[np.int64]
    chain: NDArray[np.int64]
    reach: NDArray[np.int64]
    random: NDArray[np.uint64]


class Work(NamedTuple):
    """A problem, and what its search works with."""

    arcs: Arcs
    trees: Trees
    room: Room


class Rules(NamedTuple):
    """How to search.

    Parameters
    ----------
    target_ticks : int
        A finish that is good enough.
    turns : int
        At most.
    patience : int
        So many turns without a better finish are the last.
    passes, every : int
        How often all is timed backwards and forwards again; in one of so many turns.
    threshold : float
        How much worse than the present one, relatively, a schedule may be to go on from; and three times so
        much than the best.
    most_ruined : int
        Sends that a turn takes out, about, at most.
    lateness, economy : float
        How much it counts how late sends end, and how busy resources are, both as parts of the finish.
    sharpness : int
        So often the part of the finish at which a send ends is squared.
    """

    target_ticks: int
    turns: int
    patience: int
    passes: int
    every: int
    threshold: float
    most_ruined: int
    lateness: float
    economy: float
    sharpness: int


# In all below: t tree, r rank, e link, a arc, k kind, m send, h hold, q resource.


@compiled
def improve(
    w: Work,
    states: tuple[State, State, State],
    rules: Rules,
    counts: NDArray[np.int64],
    signal: NDArray[np.int64],
) -> int:
    """Better schedules by ruin and recreate; the finish of the best in ticks, -1 where there is none.

    Parameters
    ----------
    states : (now, kept, best)
        Routes and starts are those of a schedule in `now`, or of a part of one, which is completed first; the
        others are room, and `best` ends as the best schedule.
    counts : (3,) int64
        Set to the turns made, the turns kept, and the turns that found a better finish.
    signal : (1,) int64
        It stops once this is 1.
    """
    now, kept, best = states
    w.room.is_ruined[:] = False
    w.room.queue[0] = 0
    for t in range(len(w.trees.kind)):
        _mark(w.room, t)
    _retime(w, now, 0)
    least = _NEVER
    value = record = _FAR
    idle = turn = 0
    while turn <= rules.turns and least > rules.target_ticks and idle <= rules.patience:
        if turn:
            if signal[0]:
                break
            counts[0] += 1
            idle += 1
            w.room.reach[2] = 0
            _ruin(w, now, rules)
        is_whole = _recreate(w, now)
        if not is_whole and turn == 0:
            return -1
        passes = 0 if _draw(w.room, rules.every) else rules.passes
        if is_whole and (turn == 0 or passes or not _settle(w, now)):
            _retime(w, now, passes)
        new = _value(now, rules)
        limit = min(value * (1.0 + rules.threshold), record * (1.0 + 3.0 * rules.threshold))
        if is_whole and new <= limit:
            value = new
            record = min(record, new)
            counts[1] += turn > 0
            if now.size[2] < least:
                counts[2] += turn > 0
                idle = 0
                least = now.size[2]
                _copy(now, best)
            _copy(now, kept)
        else:
            _copy(kept, now)
        turn += 1
    return int(least)


@inner
def _settle(w: Work, now: State) -> bool:
    """Work out the finish where sends are as they were inserted; False if they must be timed again."""
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
            if _at_root(w, now, reduce) > _at_root(w, now, spread):
                return False
    return bool(first == 0 and room.reach[2] == 0)


@inner
def _draw(room: Room, below: int) -> int:
    """A random whole number from 0 on (xorshift)."""
    x = room.random[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    room.random[0] = x
    return int((x * np.uint64(2685821657736338717) >> np.uint64(33)) % np.uint64(below))


@inner
def _copy(a: State, b: State) -> None:
    """Make the second state like the first."""
    num_trees, num_ranks = a.way.shape
    for t in range(num_trees):
        b.root[t] = a.root[t]
        for r in range(num_ranks):
            b.way[t, r] = a.way[t, r]
            b.send[t, r] = a.send[t, r]
    for i in range(a.size[1]):
        b.spare[i] = a.spare[i]
        b.carries[a.spare[i]] = 0
    for i in range(a.size[0]):
        m = a.order[i]
        b.order[i] = m
        b.link[m], b.kind[m], b.carries[m] = a.link[m], a.kind[m], a.carries[m]
        b.units[m], b.start[m], b.end[m] = a.units[m], a.start[m], a.end[m]
        for j in range(a.carries[m]):
            b.member[m, j] = a.member[m, j]
    for i in range(3):
        b.size[i] = a.size[i]
    for q in range(len(a.load)):
        b.load[q] = a.load[q]
        row, size = a.calendar.row_of[q], a.calendar.size[q]
        b.calendar.size[q] = size
        for i in range(row, row + size):
            b.calendar.begin[i] = a.calendar.begin[i]
            b.calendar.end[i] = a.calendar.end[i]
            b.calendar.send[i] = a.calendar.send[i]


@inner
def _value(now: State, rules: Rules) -> float:
    """What to compare schedules by: the finish, and then how late sends end on the whole."""
    finish = max(1.0, float(now.size[2]))
    late = 0.0  # mostly of the last few: schedules that finish alike differ in how much is left to be mended
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


# ----- the calendar


@inner
def _book(arcs: Arcs, calendar: Calendar, e: int, units: int, start: int, m: int, mirrored: bool) -> None:
    """Enter what a send holds; what there is no room for is left out until all is timed."""
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
def _book_anew(w: Work, now: State, m: int) -> None:
    """Enter a send that carries more or less than before; note if that needs all to be timed again."""
    arcs, e = w.arcs, now.link[m]
    _unbook(arcs, now.calendar, e, m)
    fits = _earliest(arcs, now.calendar, e, now.units[m], now.start[m], False) == now.start[m]
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
    _book(arcs, now.calendar, e, now.units[m], now.start[m], m, False)


@inner
def _unbook(arcs: Arcs, calendar: Calendar, e: int, m: int) -> None:
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
def _earliest(arcs: Arcs, calendar: Calendar, e: int, units: int, start: int, mirrored: bool) -> int:
    """The earliest start from `start` on at which all that a send holds is free for it."""
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
        high = row + calendar.size[q]
        if high > row and calendar.end[high - 1] > begin:
            low, top = row, high
            while low < top:
                middle = (low + top) >> 1
                if calendar.end[middle] > begin:
                    top = middle
                else:
                    low = middle + 1
            while low < high and calendar.begin[low] < begin + length:
                begin = max(begin, calendar.end[low])
                low += 1
        if begin > start + lead:
            start = begin - lead
            fits = 0
        fits += 1
        h += 1
        if h == last:
            h = first
    return start


@inner
def _latest(arcs: Arcs, calendar: Calendar, e: int, units: int, end: int) -> int:
    """The latest end up to `end` of a send for which all that it holds is free."""
    took = arcs.alpha[e] + units * arcs.beta[e]
    start = end - took
    first, last = arcs.hold_of[e], arcs.hold_of[e + 1]
    fits = 0
    h = first
    while fits < last - first:
        q = arcs.resource[h]
        length = arcs.hold_alpha[h] + units * arcs.hold_beta[h]
        lead = max(took - length, 0) if arcs.receives[h] else 0
        begin = start + lead
        row = calendar.row_of[q]
        low, top = row, row + calendar.size[q]
        while low < top:
            middle = (low + top) >> 1
            if calendar.begin[middle] < begin + length:
                low = middle + 1
            else:
                top = middle
        i = low - 1
        while i >= row and calendar.end[i] > begin:
            begin = min(begin, calendar.begin[i] - length)
            i -= 1
        if begin < start + lead:
            start = begin - lead
            fits = 0
        fits += 1
        h += 1
        if h == last:
            h = first
    return int(start + took)


# ----- timing


@inner
def _retime(w: Work, now: State, passes: int) -> None:
    """Time all sends forwards, then backwards and forwards again while that makes the finish earlier.

    Serial schedule generation in the order of the starts, each send inserted as early as may be; then as
    late as may be in the order of the ends (forward-backward improvement).
    """
    least = _NEVER
    for i in range(2 * passes + 1):
        is_backwards = i % 2 == 1
        if i % 2 == 1:
            if now.size[2] >= least:
                break
            least = now.size[2]
        _sort(now, w.room, is_backwards)
        _place(w, now, is_backwards)


@inner
def _sort(now: State, room: Room, mirrored: bool) -> None:
    """Put sends in order of their starts, or of their ends from the last on; leave out those not in use."""
    count = size = 0
    for i in range(now.size[0]):
        m = now.order[i]
        if now.carries[m]:
            push(room.key, room.sorted, count, -now.end[m] if mirrored else now.start[m], m)
            count += 1
    now.size[0] = count
    while size < count:
        now.order[size] = pop(room.key, room.sorted, count - size)
        size += 1


@inner
def _place(w: Work, now: State, mirrored: bool) -> None:
    """Insert all sends in order, each as early as may be; `mirrored`, time runs backwards meanwhile."""
    arcs, trees, calendar, room = w.arcs, w.trees, now.calendar, w.room
    num_links, count = arcs.num_links, now.size[0]
    for q in range(len(calendar.size)):
        calendar.size[q] = 0
    room.ready[:] = 0
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
        start = _earliest(arcs, calendar, e, now.units[m], begin, mirrored)
        _book(arcs, calendar, e, now.units[m], start, m, mirrored)
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
                    room.ready[other, tail] = max(room.ready[other, tail], end)
    if mirrored:
        for i in range(count):
            m = now.order[i]
            now.start[m], now.end[m] = finish - now.end[m], finish - now.start[m]
    now.size[2] = finish


# ----- ruin


@inner
def _ruin(w: Work, now: State, rules: Rules) -> None:
    """Take out the routes of some chunks: on a critical chain, next to one another on a resource, or any."""
    arcs, calendar, room = w.arcs, now.calendar, w.room
    room.is_ruined[:] = False
    room.queue[0] = 0  # how many trees are ruined
    left = 1 + _draw(room, rules.most_ruined)
    kind = _draw(room, 8)
    whole = _draw(room, 2) == 0
    length = _critical(w, now) if kind < 6 else 0
    tries = 16
    row = at = 0
    if 3 <= kind < 6:
        m = room.chain[_draw(room, length)]
        e = now.link[m]
        q = arcs.resource[arcs.hold_of[e] + _draw(room, arcs.hold_of[e + 1] - arcs.hold_of[e])]
        tries = min(calendar.size[q], 1 + _draw(room, 8))
        row = calendar.row_of[q]
        at = _draw(room, calendar.size[q] - tries + 1)
        for i in range(tries):
            room.chain[i] = calendar.send[row + at + i]
    for i in range(tries):
        if left <= 0:
            break
        if kind < 3:
            m = room.chain[_draw(room, length)]
        elif kind < 6:
            m = room.chain[i]
        else:
            m = now.order[_draw(room, now.size[0])]
            for _ in range(64):
                if now.carries[m] and w.trees.is_free[now.member[m, 0]]:
                    break
                m = now.order[_draw(room, now.size[0])]
        left -= _ruin_send(w, now, m, whole)


@inner
def _critical(w: Work, now: State) -> int:
    """A chain of sends that hold one another up to the finish, into `chain`; how many."""
    room = w.room
    size = now.size[0]
    last = now.order[0]
    seen = 0
    for i in range(size):
        m = now.order[i]
        if now.end[m] == now.size[2]:
            seen += 1
            if _draw(room, seen) == 0:
                last = m
    length = 0
    m = last
    while m >= 0 and length < size:
        room.chain[length] = m
        length += 1
        m = _held_up_by(w, now, m)
    return length


@inner
def _held_up_by(w: Work, now: State, m: int) -> int:
    """A send that ends, or lets go of a resource, when send m starts or takes it; -1 if there is none."""
    arcs, trees, calendar, room = w.arcs, w.trees, now.calendar, w.room
    e, k = now.link[m], now.kind[m]
    a = k * arcs.num_links + e
    tail = arcs.tail[a]
    found, seen = _NONE, 0
    took = now.end[m] - now.start[m]
    for h in range(arcs.hold_of[e], arcs.hold_of[e + 1]):
        q = arcs.resource[h]
        length = arcs.hold_alpha[h] + now.units[m] * arcs.hold_beta[h]
        begin = now.start[m] + (max(took - length, 0) if arcs.receives[h] else 0)
        row = calendar.row_of[q]
        low, top = row, row + calendar.size[q]
        while low < top:
            middle = (low + top) >> 1
            if calendar.end[middle] >= begin:
                top = middle
            else:
                low = middle + 1
        if low < row + calendar.size[q] and calendar.end[low] == begin and calendar.send[low] != m:
            seen += 1
            if _draw(room, seen) == 0:
                found = calendar.send[low]
    for j in range(now.carries[m]):
        t = now.member[m, j]
        if k == 0:
            other = now.send[t, tail]
            if now.way[t, tail] >= 0:
                if now.end[other] == now.start[m]:
                    seen += 1
                    if _draw(room, seen) == 0:
                        found = other
            elif trees.partner[t] >= 0:
                seen, found = _into(w, now, trees.partner[t], tail, now.start[m], seen, found)
        else:
            for x in range(arcs.head_of[a], arcs.head_of[a + 1]):
                if now.way[t, arcs.head[x]] == e:
                    seen, found = _into(w, now, t, arcs.head[x], now.start[m], seen, found)
    return found


@inner
def _into(w: Work, now: State, t: int, r: int, at: int, seen: int, found: int) -> tuple[int, int]:
    """One of the contributions that come to a rank at a moment."""
    for d in range(w.arcs.num_ranks):
        if _reaches(w, now, t, r, d) and now.end[now.send[t, d]] == at:
            seen += 1
            if _draw(w.room, seen) == 0:
                found = now.send[t, d]
    return seen, found


@inner
def _ruin_send(w: Work, now: State, m: int, whole: bool) -> int:
    """Take out one of a send's chunks with all that its tree reaches from there on, or all of its tree.

    How many routes that takes out is returned; 1 where there is nothing to take out.
    """
    arcs, trees, room = w.arcs, w.trees, w.room
    if now.carries[m] == 0:
        return 1
    t = now.member[m, _draw(room, now.carries[m])]
    if not trees.is_free[t]:
        return 1
    other = trees.partner[t] if whole and _draw(room, 2) else _NONE
    if whole:
        m = _NONE
    else:
        # A rank that only passed the chunk on, to there, has no use for it any more.
        tail = arcs.tail[now.kind[m] * arcs.num_links + now.link[m]]
        while now.way[t, tail] >= 0 and not trees.is_target[t, tail] and _num_sent(w, now, t, tail) == 1:
            m = now.send[t, tail]
            tail = arcs.tail[now.kind[m] * arcs.num_links + now.link[m]]
    first, gone = t, 0
    while t >= 0:
        gone += _cut(w, now, t, m)
        t = other if t == first else _NONE
    if other >= 0 and trees.may_reroot and _draw(room, 4) == 0:
        _reroot(arcs, trees, now, room, first, other)
    return gone


@inner
def _reroot(arcs: Arcs, trees: Trees, now: State, room: Room, t: int, other: int) -> None:
    """Let the sum of two trees without routes be complete at another rank."""
    r = _draw(room, arcs.num_ranks)
    reducing = t if trees.kind[t] == 1 else other
    if trees.is_target[reducing, r]:
        now.root[t] = now.root[other] = r
        _mark(room, t)
        _mark(room, other)


@inner
def _mark(room: Room, t: int) -> None:
    """Have a tree recreated."""
    if not room.is_ruined[t]:
        room.is_ruined[t] = True
        room.ruined[room.queue[0]] = t
        room.queue[0] += 1


@inner
def _num_sent(w: Work, now: State, t: int, r: int) -> int:
    """How many ranks a tree reaches straight from a rank."""
    found = 0
    for d in range(w.arcs.num_ranks):
        found += _reaches(w, now, t, r, d)
    return found


@inner
def _reaches(w: Work, now: State, t: int, r: int, d: int) -> bool:
    """Whether a tree goes straight from rank r to rank d."""
    e = now.way[t, d]
    return bool(e >= 0 and w.arcs.tail[w.trees.kind[t] * w.arcs.num_links + e] == r)


@inner
def _cut(w: Work, now: State, t: int, m: int) -> int:
    """Take a tree's send out and all beyond it, or (-1) all of the tree; how many sends."""
    arcs, room = w.arcs, w.room
    size = gone = 0
    for r in range(arcs.num_ranks):
        if now.way[t, r] >= 0 and (m < 0 or now.send[t, r] == m):
            room.path[size] = r
            size += 1
    done = 0
    while m >= 0 and done < size:
        for d in range(arcs.num_ranks):
            if _reaches(w, now, t, room.path[done], d) and now.send[t, d] != m:
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
def _take_out(w: Work, now: State, t: int, m: int) -> None:
    """Take a tree's chunk out of a send, and the send itself if it carries nothing else."""
    arcs, trees, calendar, room = w.arcs, w.trees, now.calendar, w.room
    e, k = now.link[m], now.kind[m]
    a = k * arcs.num_links + e
    for x in range(arcs.head_of[a], arcs.head_of[a + 1]):
        if now.way[t, arcs.head[x]] == e:
            now.way[t, arcs.head[x]] = _NONE
    _mark(room, t)
    _charge(arcs, now, e, now.units[m], -1)
    count = now.carries[m]
    for j in range(count):
        if now.member[m, j] == t:
            now.member[m, j] = now.member[m, count - 1]
            break
    now.carries[m] = count - 1
    now.units[m] -= trees.units[t]
    if count == 1:
        _unbook(arcs, calendar, e, m)
        now.spare[now.size[1]] = m
        now.size[1] += 1
    else:
        _charge(arcs, now, e, now.units[m], 1)
        now.end[m] = now.start[m] + arcs.alpha[e] + now.units[m] * arcs.beta[e]
        _book_anew(w, now, m)


@inner
def _charge(arcs: Arcs, now: State, e: int, units: int, sign: int) -> None:
    for h in range(arcs.hold_of[e], arcs.hold_of[e + 1]):
        now.load[arcs.resource[h]] += sign * (arcs.hold_alpha[h] + units * arcs.hold_beta[h])


# ----- recreate


@inner
def _recreate(w: Work, now: State) -> bool:
    """Complete all ruined trees, in random order; False where there is no way."""
    arcs, room = w.arcs, w.room
    count = room.queue[0]
    for i in range(count - 1, 0, -1):
        j = _draw(room, i + 1)
        room.ruined[i], room.ruined[j] = room.ruined[j], room.ruined[i]
    room.random[1] = room.random[0]
    most = 1
    for q in range(len(now.load)):
        most = max(most, now.load[q])
    weight = (0.0, 0.25, 1.0, 4.0)[_draw(room, 4)]
    steepness = (0.0, 1.0, 2.0, 4.0)[_draw(room, 4)]
    for q in range(len(now.load)):
        room.price[q] = weight * (now.load[q] / most) ** steepness
    # Numbers of sends that were taken out may be given anew: they leave the order first.
    size = 0
    for i in range(now.size[0]):
        if now.carries[now.order[i]]:
            now.order[size] = now.order[i]
            size += 1
    now.size[0] = size
    if arcs.most_merged > 1:
        room.first[:] = _NONE
        for i in range(now.size[0] if _draw(room, 2) else 0):
            m = now.order[i]
            if arcs.may_merge[now.link[m]]:
                a = now.kind[m] * arcs.num_links + now.link[m]
                room.following[m] = room.first[a]
                room.first[a] = m
    noise = (0, 0, 1, 3)[_draw(room, 4)]
    reached = True
    for i in range(count):
        reached = reached and _grow(w, now, room.ruined[i], noise)
    return reached


@inner
def _pivot(w: Work, now: State, t: int) -> int:
    """When a tree's root has what spreads from there, or must have what comes together there."""
    if w.trees.partner[t] < 0:
        return 0 if w.trees.kind[t] == 0 else now.size[2]
    at = _at_root(w, now, w.trees.partner[t])
    return at if -_NEVER < at < _NEVER else int(now.size[2] * (3 + _draw(w.room, 3)) // 8)


@inner
def _at_root(w: Work, now: State, t: int) -> int:
    """When the last contribution is at a tree's root, or the first copy leaves it; -/+ `_NEVER` if none."""
    at = -_NEVER if w.trees.kind[t] == 1 else _NEVER
    for d in range(w.arcs.num_ranks):
        if _reaches(w, now, t, now.root[t], d):
            m = now.send[t, d]
            at = max(at, now.end[m]) if w.trees.kind[t] == 1 else min(at, now.start[m])
    return int(at)


@inner
def _grow(w: Work, now: State, t: int, noise: int) -> bool:
    """Reach all targets of a tree, the cheapest first; False where there is no way."""
    arcs, trees, room = w.arcs, w.trees, w.room
    n, k = arcs.num_ranks, trees.kind[t]
    pivot = _pivot(w, now, t)
    is_open = trees.is_open[trees.open_class[t]]
    count = left = 0
    for r in range(n):
        room.cost[r] = _FAR
        room.paid[r] = 0.0
        root = now.root[t]
        is_origin = trees.is_origin[t, r] if root < 0 else r == root
        room.is_in[r] = is_origin or now.way[t, r] >= 0
        if room.is_in[r]:
            at = pivot
            if not is_origin:
                at = now.end[now.send[t, r]] if k == 0 else now.start[now.send[t, r]]
            room.when[r] = at if k == 0 else -at
            room.cost[r] = float(room.when[r])
            push(room.heap_cost, room.heap_rank, count, room.cost[r], r)
            count += 1
        elif trees.is_target[t, r]:
            left += 1
    while left:
        if count == 0:
            return False
        key = room.heap_cost[0]
        r = pop(room.heap_cost, room.heap_rank, count)
        count -= 1
        if key != room.cost[r]:
            continue
        if trees.is_target[t, r] and not room.is_in[r]:
            # Since it was found, the tree may have taken what this way needs: another may be cheaper by now.
            if _cost(w, now, t, room.came[r], noise) > key:
                room.cost[r] = _FAR
                for i in range(arcs.in_of[k * n + r], arcs.in_of[k * n + r + 1]):
                    a = arcs.into[i]
                    x = arcs.tail[a]
                    is_passed = room.is_in[x] or not trees.is_target[t, x]
                    if is_passed and room.cost[x] < _FAR and is_open[a - k * arcs.num_links]:
                        cost = _cost(w, now, t, a, noise)
                        if cost < room.cost[r]:
                            room.cost[r] = cost
                            room.came[r] = a
                            room.when[r] = room.reach[0]
                            room.paid[r] = cost - room.when[r]
                if room.cost[r] > key:
                    if room.cost[r] < _FAR:
                        push(room.heap_cost, room.heap_rank, count, room.cost[r], r)
                        count += 1
                    continue
            reached, length = _attach(w, now, t, r)
            if length == 0:
                return False
            left -= reached
            for i in range(length):
                x = room.queue[1 + i]
                push(room.heap_cost, room.heap_rank, count, room.cost[x], x)
                count += 1
            continue
        for i in range(arcs.out_of[k * n + r], arcs.out_of[k * n + r + 1]):
            a = arcs.out[i]
            e = a - k * arcs.num_links
            if not is_open[e]:
                continue
            quickest = room.cost[r] + arcs.alpha[e] + trees.units[t] * arcs.beta[e]
            is_new = False
            for x in range(arcs.head_of[a], arcs.head_of[a + 1]):
                d = arcs.head[x]
                if not room.is_in[d] and quickest < room.cost[d]:
                    is_new = True
            if not is_new:
                continue
            cost = _cost(w, now, t, a, noise)
            for x in range(arcs.head_of[a], arcs.head_of[a + 1]):
                d = arcs.head[x]
                if not room.is_in[d] and cost < room.cost[d]:
                    room.cost[d] = cost
                    room.came[d] = a
                    room.when[d] = room.reach[0]
                    room.paid[d] = cost - room.when[d]
                    if count + 2 * n >= len(room.heap_cost):
                        count = _tidy(room, count)
                    push(room.heap_cost, room.heap_rank, count, cost, d)
                    count += 1
    return True


@inner
def _cost(w: Work, now: State, t: int, a: int, noise: int) -> float:
    """What it costs to reach the heads of an arc: time, and a price for what it holds.

    When they are reached is written to `reach`, and the send that is joined for it, -1 for one of its own.
    """
    arcs, trees, room = w.arcs, w.trees, w.room
    k, units = trees.kind[t], trees.units[t]
    e = a - k * arcs.num_links
    tail = arcs.tail[a]
    if k == 1:
        # A send of several contributions counts each once.
        for x in range(arcs.head_of[a], arcs.head_of[a + 1]):
            if room.is_in[arcs.head[x]]:
                return _FAR
    at = room.when[tail]
    took = arcs.alpha[e] + units * arcs.beta[e]
    if k == 0:
        when = _earliest(arcs, now.calendar, e, units, at, False) + took
    else:
        when = took - _latest(arcs, now.calendar, e, units, -at)
    joined = _NONE
    if arcs.may_merge[e] and arcs.most_merged > 1:
        m = room.first[a]
        while m >= 0:
            if 0 < now.carries[m] < arcs.most_merged and now.link[m] == e and now.kind[m] == k:
                begin, end = (now.start[m], now.end[m]) if k == 0 else (-now.end[m], -now.start[m])
                end += units * arcs.beta[e]
                if begin >= at and end <= when:
                    when, joined = end, m
            m = room.following[m]
    room.reach[0], room.reach[1] = when, joined
    price = 0.0
    for h in range(arcs.hold_of[e], arcs.hold_of[e + 1]):
        alpha = arcs.hold_alpha[h] if joined < 0 else 0
        price += (alpha + units * arcs.hold_beta[h]) * room.price[arcs.resource[h]]
    if noise:
        # The same for an arc and a tree in this turn, or ways would seem dearer each time they are looked at.
        mixed = (np.uint64(a) * np.uint64(2654435761) + np.uint64(t) * np.uint64(40503)) ^ room.random[1]
        part = ((mixed * np.uint64(2685821657736338717)) >> np.uint64(40)) / 16777216.0
        price += 0.5 * noise * part * took
    heads = arcs.head_of[a + 1] - arcs.head_of[a]
    return float(when + (0.0 if room.is_in[tail] else room.paid[tail]) + price / heads)


@inner
def _attach(w: Work, now: State, t: int, r: int) -> tuple[int, int]:
    """Book the sends on the way to a rank; how many targets they reach, and how many ranks (in `queue`)."""
    arcs, trees, calendar, room = w.arcs, w.trees, now.calendar, w.room
    k, units = trees.kind[t], trees.units[t]
    length = 0
    x = r
    while not room.is_in[x]:
        if length >= arcs.num_ranks:
            return 0, 0
        room.path[length] = x
        length += 1
        x = arcs.tail[room.came[x]]
    found = listed = 0
    for i in range(length - 1, -1, -1):
        x = room.path[i]
        if room.is_in[x]:
            continue
        a = room.came[x]
        e = a - k * arcs.num_links
        _cost(w, now, t, a, 0)
        end, m = room.reach[0], room.reach[1]
        took = arcs.alpha[e] + units * arcs.beta[e]
        if m < 0:
            if now.size[1] == 0:
                return 0, 0
            now.size[1] -= 1
            m = now.spare[now.size[1]]
            now.link[m], now.kind[m], now.carries[m], now.units[m] = e, k, 0, 0
            now.start[m], now.end[m] = (end - took, end) if k == 0 else (-end, took - end)
            now.order[now.size[0]] = m
            now.size[0] += 1
            _book(arcs, calendar, e, units, now.start[m], m, False)
            if arcs.may_merge[e] and arcs.most_merged > 1:
                room.following[m] = room.first[a]
                room.first[a] = m
        else:
            _charge(arcs, now, e, now.units[m], -1)
        now.member[m, now.carries[m]] = t
        now.carries[m] += 1
        now.units[m] += units
        _charge(arcs, now, e, now.units[m], 1)
        if now.carries[m] > 1:
            if k == 0:
                now.end[m] = end
                _book_anew(w, now, m)
            else:  # what it waits for may be in the way: all is timed again
                room.reach[2] = 1
        for j in range(arcs.head_of[a], arcs.head_of[a + 1]):
            d = arcs.head[j]
            if room.is_in[d]:
                continue
            now.way[t, d], now.send[t, d] = e, m
            room.is_in[d] = True
            room.when[d] = end
            room.cost[d] = float(end)
            room.paid[d] = 0.0
            found += trees.is_target[t, d]
            listed += 1
            room.queue[listed] = d
    return found, listed


@inner
def _tidy(room: Room, count: int) -> int:
    """Leave out of the heap what is stale; how much is left."""
    kept = 0
    for i in range(count):
        key, r = room.heap_cost[i], room.heap_rank[i]
        if key == room.cost[r]:
            push(room.heap_cost, room.heap_rank, kept, key, r)
            kept += 1
    return kept
