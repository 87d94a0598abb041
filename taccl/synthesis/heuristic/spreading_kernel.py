"""The compiled core of open spreading: routes and times of chunks at once, event by event.

Time jumps from event to event: a chunk arrives, a link or a shared resource is free again. After each jump
the ranks concerned look for links into them that can start a send. What makes it fast:

- every rank keeps a log of its chunks in order of arrival, and every link a place in its source's log,
  which only moves on: what the destination has or expects by then, it will not need later;
- only links whose source, link or resource changed are looked at.

A chunk is in a log only once it is there, so a send never starts before its chunk has arrived.

Where some links are slow, two rules keep them from doing what fast links do better. First they bring what no
rank of the destination's fast component has or expects. What the component has already, they bring only to
ranks that are far behind it.

Chunks may also go rarest first: those that the fewest components have, and that few ranks beside the sender
could send; and to ranks that miss the most. Few sources are then not asked twice for what others can pass on.
Source: Cohen, "Incentives build robustness in BitTorrent", P2PECON 2003.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from taccl.kernels import compiled, inner
from taccl.synthesis.heuristic.events import is_free, keep_ticks, pop, push

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from taccl.synthesis.heuristic.fabric import Fabric

#: In which order a rank asks the links into it: by how few chunks they have left to offer, or in turn.
FEWEST_FIRST, IN_TURN = 0, 1
#: What `spread_chunks` returns for a finish when it found none.
STUCK, OVER_LIMIT, STOPPED, HEAP_FULL = -1, -2, -3, -4

_LONGEST_SORTED = 16
_CHUNK_BITS = 32
_FREED = (1 << _CHUNK_BITS) - 1  # in the place of a chunk: only the link is free again
_NONE = -1

# Places in `State.scalar`.
_NUM_ACTIVE, NUM_SENDS, _FINISH, SIGNAL, _NUM_EVENTS = range(5)

# What a link may bring to a rank.
_FRESH, _BEHIND, _ANYTHING = 0, 1, 2


class State(NamedTuple):
    """What changes while chunks spread; all of it is used up.

    - `log_of`, `log`, `log_end`: Rank r's chunks in order of arrival are ``log[log_of[r]:log_end[r]]``: its
      own to begin with; there is room for all it is to receive.
    - `claimed`, `missing`: Bits of the chunks that a rank has, expects, or is not to receive; how many are
      left to claim.
    - `held`, `num_held`: Bits of the chunks that some rank of a component has or expects, by class and
      component, and their number. An empty first axis switches the rules for slow links off.
    - `copies`, `holders` ((num_components, num_chunks), (num_chunks,) int64): How many ranks of a component
      of the slowest class have or expect a chunk, and how many components. An empty first axis of `copies`
      has chunks go in order of arrival.
    - `resource_free` ((num_resources,)): When shared resources are free.
    - `link_free`, `place`, `fresh_place`, `armed`, `turn`, `queue` ((num_slots,)): When links are free; the
      place in the source's log before which all is claimed at the destination, and before which all is held
      in its component; links to look at; where a rank's turn of links is; room for the links that a rank
      asks.
    - `active`, `is_active` ((num_ranks,)): Ranks with links to look at.
    - `event_time`, `event_what`: A heap: what is a slot and, in the last bits, the chunk that arrives over
      it; or a group of slots.
    - `sent_chunk`, `sent_link`, `sent_start`: One row for every send, in order of start; see `keep_ticks`.
    - `scalar` ((5,) int64): Active ranks, sends, the finish so far, a sign from outside to stop, and events.
    """

    log_of: NDArray[np.int64]
    log: NDArray[Any]
    log_end: NDArray[np.int64]
    claimed: NDArray[np.uint8]
    missing: NDArray[np.int64]
    held: NDArray[np.uint8]
    num_held: NDArray[np.int64]
    copies: NDArray[np.int64]
    holders: NDArray[np.int64]
    resource_free: NDArray[np.int64]
    link_free: NDArray[np.int64]
    place: NDArray[np.int64]
    fresh_place: NDArray[np.int64]
    armed: NDArray[np.bool_]
    turn: NDArray[np.int64]
    queue: NDArray[np.int64]
    active: NDArray[np.int64]
    is_active: NDArray[np.bool_]
    event_time: NDArray[np.int64]
    event_what: NDArray[np.int64]
    sent_chunk: NDArray[Any]
    sent_link: NDArray[np.int32]
    sent_start: NDArray[np.int32]
    scalar: NDArray[np.int64]


# In all below: d destination, e slot, k speed class, c chunk, h hold; s the State.


@compiled
def spread_chunks(
    fabric: Fabric,
    s: State,
    units: NDArray[np.int64],
    order: int,
    theta: float,
    limit: int,
) -> int:
    """Spread every chunk to the ranks that want it; the finish in ticks.

    - `units` ((num_chunks,) int64): Sizes of chunks.
    - `order`: How a rank orders the links into it.
    - `theta`: A slow link brings a rank a chunk that its component has only if the rank is more than theta
      slow sends behind its component.
    - `limit`: Give up once time passes it.

    Returns
    -------
    int
        The finish; or, with no schedule, `STUCK`, `OVER_LIMIT`, `STOPPED` or `HEAP_FULL`.
    """
    num_ranks = len(fabric.into) - 1
    tiered = s.held.shape[0] > 1
    left = s.missing.sum()
    _look_everywhere(fabric, s)
    time = 0
    forced = False
    while left > 0:
        if s.scalar[SIGNAL]:
            return STOPPED
        if s.scalar[_NUM_EVENTS] + len(fabric.wake_hold) + 2 * len(s.armed) > len(s.event_time):
            return HEAP_FULL
        for sweep in range(2 if tiered and not forced else 1):
            if len(s.copies):
                _neediest_first(s)
            for i in range(s.scalar[_NUM_ACTIVE]):
                d = s.active[i]
                if s.missing[d] == 0:
                    continue
                begin = fabric.into[d + 1]
                while begin > fabric.into[d]:
                    # The next run of links of one class into d, slow ones first: what they share with fast
                    # ones is better used for chunks that only they can bring.
                    end = begin
                    k = fabric.speed[end - 1] if tiered else 0
                    while begin > fabric.into[d] and (not tiered or fabric.speed[begin - 1] == k):
                        begin -= 1
                    if sweep == 1 and k == 0:
                        continue
                    what = _BEHIND if sweep == 1 else _FRESH if k > 0 and not forced else _ANYTHING
                    asked = _ask(fabric, s, begin, end, order, time, forced or sweep == 1)
                    for j in range(asked):
                        e = s.queue[j]
                        c = _find(fabric, s, e, d, k, what, theta, units)
                        if c >= 0 and is_free(fabric, s.resource_free, e, units[c], time):
                            _start(fabric, s, e, d, c, units[c], time)
                            left -= 1
                            if order == IN_TURN:
                                s.turn[begin] = e - begin + 1
        if left == 0:
            break
        for i in range(s.scalar[_NUM_ACTIVE]):
            s.is_active[s.active[i]] = False
        s.scalar[_NUM_ACTIVE] = 0
        if not s.scalar[_NUM_EVENTS]:
            # Nothing is under way: whatever is missing must come against the rules, or cannot come.
            if forced:
                return STUCK
            forced = True
            for d in range(num_ranks):
                _look_at(s, d)
            continue
        time = s.event_time[0]
        if time > limit:
            return OVER_LIMIT
        forced = False
        _let_happen(fabric, s, time)
    return int(s.scalar[_FINISH])


@compiled
def mark_needed(
    chunk: NDArray[Any],
    src: NDArray[np.int64],
    dst: NDArray[np.int64],
    needed: NDArray[np.uint8],
    keep: NDArray[np.bool_],
) -> None:
    """Mark the sends that lead to a rank that needs the chunk; `needed` is used up.

    - `chunk`, `src`, `dst`, `keep` ((num_sends,)): In order of start, one send at most for a chunk and
      destination.
    - `needed` ((num_ranks, ceil(num_chunks / 8)) uint8): Bits of the chunks that ranks need.
    """
    for t in range(len(chunk) - 1, -1, -1):
        c = int(chunk[t])
        if needed[dst[t], c >> 3] >> (c & 7) & 1:
            keep[t] = True
            needed[src[t], c >> 3] |= 1 << (c & 7)


@inner
def _look_everywhere(fabric: Fabric, s: State) -> None:
    for e in range(len(s.armed)):
        s.place[e] = s.log_of[fabric.src[e]]
        s.fresh_place[e] = s.place[e]
        s.armed[e] = True
    for d in range(len(s.active)):
        _look_at(s, d)


@inner
def _look_at(s: State, d: int) -> None:
    """Put a rank on the list of those with links to look at."""
    if not s.is_active[d]:
        s.is_active[d] = True
        s.active[s.scalar[_NUM_ACTIVE]] = d
        s.scalar[_NUM_ACTIVE] += 1


@inner
def _ask(fabric: Fabric, s: State, begin: int, end: int, order: int, time: int, every: bool) -> int:
    """Put the links to ask of ``begin:end`` into the queue, in order; how many."""
    width = end - begin
    asked = 0
    first = s.turn[begin] % width if width > 1 else 0
    for step in range(width):
        e = begin + first + step
        if e >= end:
            e -= width
        if s.link_free[e] <= time and (s.armed[e] or every):
            s.queue[asked] = e
            asked += 1
        s.armed[e] = False
    if order == FEWEST_FIRST:
        s.turn[begin] += 1
        if asked <= _LONGEST_SORTED:
            for j in range(1, asked):
                e = s.queue[j]
                offers = s.log_end[fabric.src[e]] - s.place[e]
                i = j - 1
                while i >= 0:
                    other = s.queue[i]
                    if s.log_end[fabric.src[other]] - s.place[other] <= offers:
                        break
                    s.queue[i + 1] = other
                    i -= 1
                s.queue[i + 1] = e
    return asked


@inner
def _neediest_first(s: State) -> None:
    """Put those that miss the most first among the ranks with links to look at."""
    for i in range(1, s.scalar[_NUM_ACTIVE]):
        d = s.active[i]
        j = i - 1
        while j >= 0 and s.missing[s.active[j]] < s.missing[d]:
            s.active[j + 1] = s.active[j]
            j -= 1
        s.active[j + 1] = d


@inner
def _rarest(fabric: Fabric, s: State, e: int, p: int, k: int, where: int) -> int:
    """The rarest chunk from place p of its source's log on that a link may bring; of several the last.

    Unless `where` is -1, that component is not to have it.
    """
    at = fabric.component[-1, fabric.src[e]]
    least, chunk = -1, _NONE
    while p < s.log_end[fabric.src[e]]:
        c = int(s.log[p])
        taken = s.claimed[fabric.dst[e], c >> 3]
        if where >= 0:
            taken |= s.held[k, where, c >> 3]
        if not taken >> (c & 7) & 1:
            count = s.holders[c] * len(s.missing) + s.copies[at, c]
            if chunk < 0 or count <= least:
                least, chunk = count, c
        p += 1
    return chunk


@inner
def _find(
    fabric: Fabric, s: State, e: int, d: int, k: int, what: int, theta: float, units: NDArray[np.int64]
) -> int:
    """A chunk in the log of the link's source that it may bring, the first or the rarest; -1 for none."""
    if what == _BEHIND:
        claimed = s.log_of[d + 1] - s.log_of[d] - s.missing[d]
        behind = min(s.num_held[k, fabric.component[k, d]] - claimed, s.missing[d])
        took = fabric.alpha[e] + units[0] * fabric.beta[e]
        rate = fabric.fast_rate[k, d]
        if rate > 0 and behind <= theta * took * rate:
            return _NONE
    is_fresh = what == _FRESH
    where = fabric.component[k, d] if is_fresh else _NONE
    p = s.fresh_place[e] if is_fresh else s.place[e]
    chunk = _NONE
    while p < s.log_end[fabric.src[e]]:
        c = int(s.log[p])
        taken = s.claimed[d, c >> 3]
        if is_fresh:
            taken |= s.held[k, where, c >> 3]
        if not taken >> (c & 7) & 1:
            chunk = c
            break
        p += 1
    if is_fresh:
        s.fresh_place[e] = p
    else:
        s.place[e] = p
    if chunk >= 0 and len(s.copies):
        chunk = _rarest(fabric, s, e, p, k, where)
    return chunk


@inner
def _start(fabric: Fabric, s: State, e: int, d: int, c: int, size: int, time: int) -> None:
    """Start a send: claim the chunk, hold the resources, and post what will happen."""
    s.claimed[d, c >> 3] |= 1 << (c & 7)
    s.missing[d] -= 1
    for k in range(1, s.held.shape[0]):
        where = fabric.component[k, d]
        if not s.held[k, where, c >> 3] >> (c & 7) & 1:
            s.held[k, where, c >> 3] |= 1 << (c & 7)
            s.num_held[k, where] += 1
    if len(s.copies):
        at = fabric.component[-1, d]
        s.holders[c] += s.copies[at, c] == 0
        s.copies[at, c] += 1
    row = s.scalar[NUM_SENDS]
    s.sent_chunk[row] = c
    s.sent_link[row] = fabric.link[e]
    keep_ticks(s.sent_start, row, time)
    s.scalar[NUM_SENDS] = row + 1
    took = fabric.alpha[e] + size * fabric.beta[e]
    own = fabric.own_alpha[e] + size * fabric.own_beta[e]
    s.scalar[_FINISH] = max(s.scalar[_FINISH], time + took)
    s.link_free[e] = time + own
    _post(s, time + took, e << _CHUNK_BITS | c)
    if own != took:
        _post(s, time + own, e << _CHUNK_BITS | _FREED)
    for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
        held = took if fabric.hold_receives[h] else fabric.hold_alpha[h] + size * fabric.hold_beta[h]
        s.resource_free[fabric.hold_resource[h]] = time + held
    for w in range(fabric.wake_of[e], fabric.wake_of[e + 1]):
        h = fabric.wake_hold[w]
        g = fabric.wake_group[w]
        held = took if fabric.hold_receives[h] else fabric.hold_alpha[h] + size * fabric.hold_beta[h]
        at = time + max(0, held - fabric.group_lead[g])
        _post(s, at, (len(s.armed) + g) << _CHUNK_BITS)


@inner
def _post(s: State, at: int, what: int) -> None:
    """Have an event happen."""
    push(s.event_time, s.event_what, s.scalar[_NUM_EVENTS], at, what)
    s.scalar[_NUM_EVENTS] += 1


@inner
def _let_happen(fabric: Fabric, s: State, time: int) -> None:
    """Everything that happens at this time."""
    while s.scalar[_NUM_EVENTS] and s.event_time[0] == time:
        what = pop(s.event_time, s.event_what, s.scalar[_NUM_EVENTS])
        s.scalar[_NUM_EVENTS] -= 1
        _happen(fabric, s, what, time)


@inner
def _happen(fabric: Fabric, s: State, what: int, time: int) -> None:
    """One event: a chunk arrives, a link is free, or a resource is."""
    e = what >> _CHUNK_BITS
    c = what & _FREED
    if e >= len(s.armed):
        g = e - len(s.armed)
        for i in range(fabric.group_of[g], fabric.group_of[g + 1]):
            _arm(s, fabric.group_slot[i], fabric.dst[fabric.group_slot[i]], time)
    else:
        _arm(s, e, fabric.dst[e], time)
        if c != _FREED:
            d = fabric.dst[e]
            s.log[s.log_end[d]] = c
            s.log_end[d] += 1
            for i in range(fabric.out_of[d], fabric.out_of[d + 1]):
                o = fabric.out_slot[i]
                if not s.armed[o] and _may_start(fabric, s, o, time):
                    _arm(s, o, fabric.dst[o], time)


@inner
def _may_start(fabric: Fabric, s: State, e: int, time: int) -> bool:
    """Whether no shared resource of a link is surely held; if one is, its release will wake the link."""
    free = True
    for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
        if s.resource_free[fabric.hold_resource[h]] > time + fabric.hold_lead[h]:
            free = False
    return free


@inner
def _arm(s: State, e: int, d: int, time: int) -> None:
    """Have a link looked at, if it is free and its destination misses anything."""
    if s.link_free[e] <= time and s.missing[d]:
        s.armed[e] = True
        _look_at(s, d)
