"""Compiled broadcast by random draws: a free link sends a chunk that its destination lacks.

A chunk is useful to a link if its source holds it, and its destination neither holds nor expects it. Sets of
chunks are masks of 64-bit words. A link draws a word and goes on from there to the first few useful chunks.
It sends the one that the fewest ranks hold or expect.

If chunks went in order of arrival, neighbours would soon have the same chunks, and links between them would
idle. Random draws keep the sets of chunks different. So each rank receives at the rate of all links into it,
even if link speeds vary irregularly. Rare chunks are drawn first, since otherwise the last few would arrive
late. Source: Cohen, "Incentives build robustness in BitTorrent", P2PECON 2003.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl._internal.kernels import compiled, inner
from taccl.synthesis.kernels import events

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.synthesis.kernels.fabric import Bools, Fabric, Int32s, Ints

_CHUNK_BITS = 32  # low bits of an arrival event's number, which hold its chunk
_NONE = -1
_DRAWN = 8  # number of useful chunks of which a link takes the rarest
_ONE, _BIT_HASH, _HASH_SHIFT = np.uint64(1), np.uint64(0x03F79D71B4CB0A89), np.uint64(58)


class DrawingState(NamedTuple):
    """State of a run of `spread_by_draws`, which modifies all fields except `units` and `place_of_bit`."""

    units: Ints  # sizes of chunks
    has: NDArray[np.uint64]  # chunks that each rank has, as a mask of 64-bit words
    claimed: NDArray[np.uint64]  # chunks that a rank has, expects, or is not to receive
    missing: Ints  # number of chunks that each rank has yet to claim
    holders: Int32s  # by chunk: number of ranks that have or expect it
    asked: Ints  # slots (links) to examine next
    is_asked: Bools
    place_of_bit: Ints  # position of a word's only set bit, by the word's hash
    drawn: Ints  # last random number


def places_of_bits() -> Ints:
    """(64,) position of the only set bit of a word, indexed by the word's hash (a de Bruijn sequence)."""
    place = np.arange(64, dtype=np.int64)
    found = np.empty(64, np.int64)
    with np.errstate(over="ignore"):
        found[((_ONE << place.astype(np.uint64)) * _BIT_HASH) >> _HASH_SHIFT] = place
    return found


# Index names below: d destination, e and o slot, c chunk, w word.


@compiled
def spread_by_draws(fabric: Fabric, s: DrawingState, now: events.Timeline, limit: int) -> int:
    """Bring every chunk to the ranks that want it; returns the finish in ticks.

    A negative value is the reason why there is no schedule (`events.STUCK` and others).

    - `limit`: Time at which the run is given up.
    """
    left = s.missing.sum()
    time = 0
    for e in range(len(now.link_free)):
        _ask(s, now, e)
    while left > 0:
        if now.scalar[events.SIGNAL]:
            return events.STOPPED
        if not events.has_room(fabric, now, len(now.link_free)):
            return events.HEAP_FULL
        for i in range(now.scalar[events.NUM_ACTIVE]):
            e = s.asked[i]
            s.is_asked[e] = False
            d = fabric.dst[e]
            if s.missing[d] == 0 or now.link_free[e] > time:
                continue
            c = _draw(s, fabric.src[e], d)
            if c >= 0 and events.is_free(fabric, now, e, s.units[c], time):
                s.claimed[d, c >> 6] |= _ONE << np.uint64(c & 63)
                s.missing[d] -= 1
                s.holders[c] += 1
                left -= 1
                events.start_send(fabric, now, e, c, s.units[c], time, e << _CHUNK_BITS | c, True)
        now.scalar[events.NUM_ACTIVE] = 0
        if left == 0:
            break
        if not now.scalar[events.NUM_EVENTS]:
            return events.STUCK
        time = now.event_time[0]
        if time > limit:
            return events.OVER_LIMIT
        event = events.next_event(now, time)
        while event >= 0:
            _happen(fabric, s, now, event, time)
            event = events.next_event(now, time)
    return int(now.scalar[events.FINISH])


@inner
def _ask(s: DrawingState, now: events.Timeline, e: int) -> None:
    """Add a slot (link) to the list of slots that are examined next."""
    if not s.is_asked[e]:
        s.is_asked[e] = True
        s.asked[now.scalar[events.NUM_ACTIVE]] = e
        now.scalar[events.NUM_ACTIVE] += 1


@inner
def _draw(s: DrawingState, r: int, d: int) -> int:
    """Rarest of up to `_DRAWN` chunks that rank r has and rank d neither has nor expects; -1 for none."""
    num_words = s.has.shape[1]
    s.drawn[0] = (s.drawn[0] * 1103515245 + 12345) & 0x7FFFFFFF
    w = (s.drawn[0] >> 8) % num_words
    least, chunk, seen = 0, _NONE, 0
    for _ in range(num_words):
        word = s.has[r, w] & ~s.claimed[d, w]
        while word and seen < _DRAWN:
            low = word & (~word + _ONE)
            word ^= low
            c = (w << 6) + s.place_of_bit[(low * _BIT_HASH) >> _HASH_SHIFT]
            if seen == 0 or s.holders[c] < least:
                least, chunk = s.holders[c], c
            seen += 1
        if seen >= _DRAWN:
            break
        w += 1
        if w == num_words:
            w = 0
    return int(chunk)


@inner
def _happen(fabric: Fabric, s: DrawingState, now: events.Timeline, event: int, time: int) -> None:
    """Process an event: the release of a resource or a link, or the arrival of a chunk."""
    num_groups = len(fabric.group_lead)
    if event < num_groups:
        for i in range(fabric.group_of[event], fabric.group_of[event + 1]):
            e = fabric.group_slot[i]
            if now.link_free[e] <= time and s.missing[fabric.dst[e]]:
                _ask(s, now, e)
        return
    if event < num_groups + len(now.link_free):
        _ask(s, now, event - num_groups)
        return
    arrival = event - num_groups - len(now.link_free)
    e, c = arrival >> _CHUNK_BITS, arrival & ((1 << _CHUNK_BITS) - 1)
    d, w, bit = fabric.dst[e], c >> 6, _ONE << np.uint64(c & 63)
    _ask(s, now, e)
    s.has[d, w] |= bit
    for i in range(fabric.out_of[d], fabric.out_of[d + 1]):
        o = fabric.out_slot[i]
        # Idle links whose destination lacks chunks had nothing useful before: only this chunk can be useful.
        is_idle = now.link_free[o] <= time and s.missing[fabric.dst[o]] > 0
        is_useful = is_idle and not s.claimed[fabric.dst[o], w] & bit
        if is_useful and events.is_free(fabric, now, o, s.units[c], time):
            _ask(s, now, o)
