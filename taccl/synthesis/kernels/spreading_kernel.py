"""Compiled list scheduling without given routes: copies chunks to the ranks that want them.

Routing and scheduling are joint, event by event: a chunk arrives, a link or a resource becomes free. Then
the affected ranks look for links into them that can start a send. Two things make it fast:

- every rank keeps a log of its chunks in order of arrival, and every link a position in its source's log that
  only advances: chunks before it are ones that the destination has or expects already;
- only links whose source, link or resource changed are examined.

A chunk enters a log when it arrives, so a send never starts before its chunk is available.

If some links are slow, two rules keep them from work that fast links do better. First they carry chunks that
no rank of the destination's fast component has or expects. Other chunks go only to ranks that are far behind
their component.

Chunks may also go rarest first: those that the fewest components have, and that few ranks near the sender
could send. Ranks that miss the most chunks then choose first. So a few sources are not asked repeatedly for
chunks that others can forward. Source: Cohen, "Incentives build robustness in BitTorrent", P2PECON 2003.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from taccl._internal.kernels import compiled, inner
from taccl.synthesis.kernels import events

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.synthesis.kernels.fabric import Bools, Bytes, Fabric, Ints

_LONGEST_SORTED = 16  # max links of a rank to be sorted (by insertion)
_CHUNK_BITS = 32  # low bits of an arrival event's number, which hold its chunk
_NONE = -1


class SpreadingState(NamedTuple):
    """State of one run of `spread_chunks`, which modifies all fields.

    Sets of chunks are bit masks, by rank, or by class and component. If the first axis of `held` is empty,
    there are no rules for slow links; if that of `copies` is empty, chunks go in order of arrival.
    """

    units: Ints  # sizes of chunks
    log_of: Ints  # rank r's chunks in order of arrival are `log[log_of[r]:log_end[r]]`, its own first
    log: NDArray[Any]
    log_end: Ints  # up to `log_of[r + 1]` there is room for all chunks that rank r will receive
    claimed: Bytes  # chunks that a rank has, expects, or is not to receive
    missing: Ints  # number of chunks that each rank has yet to claim
    held: Bytes  # by class and component: chunks that some rank of the component has or expects
    num_held: Ints  # by class and component: number of chunks in `held`
    copies: Ints  # by component of the slowest class and chunk: number of ranks that have or expect it
    holders: Ints  # by chunk: number of components of the slowest class that have or expect it
    place: Ints  # by slot: position in the source's log before which the destination has claimed all chunks
    fresh_place: Ints  # by slot: position before which the destination's component holds all chunks
    armed: Bools  # slots (links) to examine
    turn: Ints  # by first slot of links that are asked together: offset of the link asked first
    queue: Ints  # work array: the links that a rank asks
    active: Ints  # ranks with links to examine
    is_active: Bools


# Index names below: d destination, e slot, k speed class, c chunk, h hold.


@compiled
def spread_chunks(
    fabric: Fabric, s: SpreadingState, in_turn: bool, theta: float, now: events.Timeline, limit: int
) -> int:
    """Bring every chunk to the ranks that want it; returns the finish in ticks.

    A negative value is the reason why there is no schedule (`events.STUCK` and others).

    - `in_turn`: True if a rank asks its incoming links in turn; false if it begins with the links that have
      the fewest chunks to offer.
    - `theta`: A slow link may repeat a chunk of a rank's component if the rank is far enough behind the
      component: by more chunks than fast links deliver during `theta` slow sends.
    - `limit`: Time at which the run is given up.
    """
    num_ranks = len(fabric.into) - 1
    tiered = s.held.shape[0] > 1
    left = s.missing.sum()
    now.scalar[events.NUM_ACTIVE] = num_ranks
    time = 0
    forced = False
    while left > 0:
        if now.scalar[events.SIGNAL]:
            return events.STOPPED
        if not events.has_room(fabric, now, len(now.link_free)):
            return events.HEAP_FULL
        for sweep in range(2 if tiered and not forced else 1):
            if len(s.copies):
                _neediest_first(s, now)
            for i in range(now.scalar[events.NUM_ACTIVE]):
                d = s.active[i]
                if s.missing[d] == 0:
                    continue
                begin = fabric.into[d + 1]
                while begin > fabric.into[d]:
                    # Slow links into d go first, as only they can bring some chunks over shared resources.
                    end = begin
                    k = fabric.speed[end - 1] if tiered else 0
                    while begin > fabric.into[d] and (not tiered or fabric.speed[begin - 1] == k):
                        begin -= 1
                    if sweep == 1 and k == 0:
                        continue
                    asked = _ask(fabric, s, now, begin, end, in_turn, time, forced or sweep == 1)
                    for j in range(asked):
                        e = s.queue[j]
                        is_fresh = sweep == 0 and k > 0 and not forced
                        may_start = _may_start(fabric, now, e, time)  # quicker than to find a chunk first
                        if not may_start and in_turn:
                            continue
                        if sweep == 1 and not _is_behind(fabric, s, e, d, k, theta, time):
                            continue
                        p = _advance(fabric, s, e, d, k, is_fresh)
                        if not may_start or p < 0:
                            continue
                        where = fabric.component[k, d] if is_fresh else _NONE
                        c = _rarest(fabric, s, e, p, k, where) if len(s.copies) else int(s.log[p])
                        if c >= 0 and events.is_free(fabric, now, e, s.units[c], time):
                            _claim(fabric, s, d, c)
                            events.start_send(fabric, now, e, c, s.units[c], time, e << _CHUNK_BITS | c, True)
                            left -= 1
                            if in_turn:
                                s.turn[begin] = e - begin + 1
        if left == 0:
            break
        for i in range(now.scalar[events.NUM_ACTIVE]):
            s.is_active[s.active[i]] = False
        now.scalar[events.NUM_ACTIVE] = 0
        if not now.scalar[events.NUM_EVENTS]:
            # No send is under way, so missing chunks need a slow link against the rules, or are unreachable.
            if forced:
                return events.STUCK
            forced = True
            for d in range(num_ranks):
                _look_at(s, now, d)
            continue
        time = now.event_time[0]
        if time > limit:
            return events.OVER_LIMIT
        forced = False
        event = events.next_event(now, time)
        while event >= 0:
            _happen(fabric, s, now, event, time)
            event = events.next_event(now, time)
    return int(now.scalar[events.FINISH])


@compiled
def mark_needed(chunk: NDArray[Any], src: Ints, dst: Ints, needed: Bytes, keep: Bools) -> None:
    """Mark the sends that lead to a rank that needs the chunk; `needed` is modified.

    - `chunk`, `src`, `dst`, `keep` ((num_sends,)): Columns of sends in order of start, at most one
      send per chunk and destination.
    - `needed` ((num_ranks, ceil(num_chunks / 8)) uint8): Bit masks of the chunks that ranks need.
    """
    for t in range(len(chunk) - 1, -1, -1):
        c = int(chunk[t])
        if needed[dst[t], c >> 3] >> (c & 7) & 1:
            keep[t] = True
            needed[src[t], c >> 3] |= 1 << (c & 7)


@inner
def _look_at(s: SpreadingState, now: events.Timeline, d: int) -> None:
    """Add a rank to the list of ranks whose incoming links are to be examined."""
    if not s.is_active[d]:
        s.is_active[d] = True
        s.active[now.scalar[events.NUM_ACTIVE]] = d
        now.scalar[events.NUM_ACTIVE] += 1


@inner
def _ask(
    fabric: Fabric,
    s: SpreadingState,
    now: events.Timeline,
    begin: int,
    end: int,
    in_turn: bool,
    time: int,
    every: bool,
) -> int:
    """Put the links of ``begin:end`` that may send into `queue`, in the order in which they choose chunks.

    Returns their number.

    - `in_turn`: True to begin after the link that sent last; false to begin with the links that have the
      fewest chunks to offer.
    - `every`: True for all free links; false for those that must be examined (`armed`).
    """
    width = end - begin
    asked = 0
    first = s.turn[begin] % width if width > 1 else 0
    for step in range(width):
        e = begin + first + step
        if e >= end:
            e -= width
        if (s.armed[e] or every) and now.link_free[e] <= time:
            s.queue[asked] = e
            asked += 1
        s.armed[e] = False
    if not in_turn:
        s.turn[begin] += 1
        for j in range(1, asked if asked <= _LONGEST_SORTED else 0):
            e = s.queue[j]
            offers = s.log_end[fabric.src[e]] - s.place[e]
            i = j
            while i > 0:
                other = s.queue[i - 1]
                if s.log_end[fabric.src[other]] - s.place[other] <= offers:
                    break
                s.queue[i] = other
                i -= 1
            s.queue[i] = e
    return asked


@inner
def _neediest_first(s: SpreadingState, now: events.Timeline) -> None:
    """Sort the ranks with links to examine, those that miss the most chunks first."""
    for i in range(1, now.scalar[events.NUM_ACTIVE]):
        d = s.active[i]
        j = i
        while j > 0 and s.missing[s.active[j - 1]] < s.missing[d]:
            s.active[j] = s.active[j - 1]
            j -= 1
        s.active[j] = d


@inner
def _is_behind(fabric: Fabric, s: SpreadingState, e: int, d: int, k: int, theta: float, time: int) -> bool:
    """True if a slow link may bring rank d a chunk that d's component has, as fast links would take too long.

    Fast links deliver at their rate until a slow send ends, except in the last `fast_lag` ticks, which their
    own last chunk needs to arrive. Before the first slow arrivals, they have little to deliver.
    """
    claimed = s.log_of[d + 1] - s.log_of[d] - s.missing[d]
    behind = min(s.num_held[k, fabric.component[k, d]] - claimed, s.missing[d])
    took = fabric.alpha[e] + s.units[0] * fabric.beta[e] - fabric.fast_lag[k, d]
    busy = time + fabric.own_alpha[e] + s.units[0] * fabric.own_beta[e] - fabric.fast_lag[k, d]
    rate = fabric.fast_rate[k, d]
    return bool(rate <= 0 or behind > theta * min(took, max(busy, 0)) * rate)


@inner
def _advance(fabric: Fabric, s: SpreadingState, e: int, d: int, k: int, is_fresh: bool) -> int:
    """First position in link e's source log with a chunk that the link may bring to rank d; -1 for none.

    Links that are not examined in turn are ordered by the number of chunks from that position on.

    - `is_fresh`: True to accept only chunks that the destination's component does not hold.
    """
    where = fabric.component[k, d] if is_fresh else _NONE
    end = s.log_end[fabric.src[e]]
    p = s.fresh_place[e] if is_fresh else s.place[e]
    while p < end:
        c = int(s.log[p])
        taken = s.claimed[d, c >> 3]
        if is_fresh:
            taken |= s.held[k, where, c >> 3]
        if not taken >> (c & 7) & 1:
            break
        p += 1
    if is_fresh:
        s.fresh_place[e] = p
    else:
        s.place[e] = p
    return _NONE if p == end else p


@inner
def _rarest(fabric: Fabric, s: SpreadingState, e: int, p: int, k: int, where: int) -> int:
    """Find the rarest chunk that link e may bring, in its source's log from position p on; at ties, the last.

    - `where`: A component that must not hold the chunk; -1 for no such condition.
    """
    at = fabric.component[-1, fabric.src[e]]
    least, chunk = -1, _NONE
    for i in range(p, s.log_end[fabric.src[e]]):
        c = int(s.log[i])
        taken = s.claimed[fabric.dst[e], c >> 3]
        if where >= 0:
            taken |= s.held[k, where, c >> 3]
        if not taken >> (c & 7) & 1:
            count = s.holders[c] * len(s.missing) + s.copies[at, c]
            if chunk < 0 or count <= least:
                least, chunk = count, c
    return chunk


@inner
def _claim(fabric: Fabric, s: SpreadingState, d: int, c: int) -> None:
    """Mark a chunk as on its way to a rank, and to the components of the fabric that contain it."""
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


@inner
def _happen(fabric: Fabric, s: SpreadingState, now: events.Timeline, event: int, time: int) -> None:
    """Process an event: the release of a resource or a link, or the arrival of a chunk."""
    num_groups = len(fabric.group_lead)
    if event < num_groups:
        for i in range(fabric.group_of[event], fabric.group_of[event + 1]):
            _arm(fabric, s, now, fabric.group_slot[i], time)
    elif event < num_groups + len(s.armed):
        _arm(fabric, s, now, event - num_groups, time)
    else:
        arrival = event - num_groups - len(s.armed)
        e = arrival >> _CHUNK_BITS
        d = fabric.dst[e]
        _arm(fabric, s, now, e, time)
        s.log[s.log_end[d]] = arrival & ((1 << _CHUNK_BITS) - 1)
        s.log_end[d] += 1
        for i in range(fabric.out_of[d], fabric.out_of[d + 1]):
            o = fabric.out_slot[i]
            if not s.armed[o] and _may_start(fabric, now, o, time):
                _arm(fabric, s, now, o, time)


@inner
def _may_start(fabric: Fabric, now: events.Timeline, e: int, time: int) -> bool:
    """True if a send over a link might start now, as none of its shared resources is surely occupied.

    If chunks differ in size, the one that would use the resource last counts. The release of an occupied
    resource causes the link to be examined again.
    """
    for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
        if now.resource_free[fabric.hold_resource[h]] > time + fabric.hold_lead[h]:
            return False
    return True


@inner
def _arm(fabric: Fabric, s: SpreadingState, now: events.Timeline, e: int, time: int) -> None:
    """Mark a link to be examined next, if it is free and its destination misses chunks."""
    if not s.armed[e] and now.link_free[e] <= time and s.missing[fabric.dst[e]]:
        s.armed[e] = True
        _look_at(s, now, fabric.dst[e])
