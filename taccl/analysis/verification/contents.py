"""Location of data: replay of which rank holds which chunk, or which contributions, and since when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction
from functools import reduce
from operator import or_

import numpy as np

from taccl.analysis.verification.replay import Replay

#: Start time in ticks that precedes every send.
_ALWAYS = -(2**62)
#: Max search nodes to compose one sum from arrived sums; beyond it, the sum is reported as undecided.
_MOST_TRIED = 200_000


def check_copies(replay: Replay) -> int:
    """Check presence and postcondition without reductions; return the number of redundant arrivals."""
    links, since = replay.topology.links, replay.since
    num_arrivals = 0
    for i in replay.usable:
        chunk, end = replay.chunk[i], replay.end[i]
        for rank in links[replay.link[i]].dsts:
            num_arrivals += 1
            if end < since.get((rank, chunk), end + 1):
                since[rank, chunk] = end
        if replay.reduce[i]:
            text = f"is reduced, but nothing is reduced on its way in {replay.collective.name}"
            replay.report("reduce", text, i, rank=links[replay.link[i]].dst)
    brought = dict(since)
    for chunk, data in enumerate(replay.collective.chunks):
        for rank in data.origins:
            release = replay.release.get((chunk, rank), _ALWAYS)
            since[rank, chunk] = min(release, since.get((rank, chunk), release))
    made = _derive(replay, since)
    num_useful = sum(since[key] == end < made.get(key, end + 1) for key, end in brought.items())
    for i in replay.usable:
        for rank in links[replay.link[i]].srcs:
            held_from = since.get((rank, replay.chunk[i]))
            if (replay.chunk[i], rank) in replay.release:
                continue  # `check_moments` judges it
            if held_from is None or held_from > replay.start[i]:
                _report_absent(replay, i, rank, held_from)
    for chunk, data in enumerate(replay.collective.chunks):
        for rank in data.destinations:
            if (rank, chunk) not in since:
                replay.report("postcondition", "the chunk never arrives", rank=rank, chunk=chunk)
    return num_arrivals - num_useful


def check_sums(replay: Replay) -> int:
    """Check presence, reductions and postcondition of a combining collective.

    Returns the number of redundant arrivals, as `check_copies` does. Sets ``replay.reducing`` for each
    transfer: True on the way to the chunk's root, that is while a source or the root lacks contributions.
    """
    links = replay.topology.links
    held: dict[tuple[int, int], int] = {}  # (rank, chunk) -> contributing ranks, as bits
    everyone = replay.everyone
    for chunk, data in enumerate(replay.collective.chunks):
        for rank in data.origins:
            held[rank, chunk] = 1 << rank
    last: dict[tuple[int, int], tuple[int, bool, int]] = {}  # the last arrival: end, reduce, bits
    taken: dict[int, int] = {}  # transfer -> contributions under way
    num_redundant = 0
    updates = _Updates(replay)
    for i, arrives in events(replay):
        chunk, ends = replay.chunk[i], links[replay.link[i]]
        if not arrives:
            updates.leave(i, held)
            whole = everyone[chunk]
            root = replay.collective.chunks[chunk].root
            awaited = root is not None and held.get((root, chunk)) != whole
            replay.reducing[i] = awaited or any(held.get((r, chunk), 0) != whole for r in ends.srcs)
            bits = 0
            for rank in ends.srcs:
                mine = held.get((rank, chunk), 0)
                if not mine:
                    _report_absent(replay, i, rank, None)
                if bits & mine:
                    text = f"sources both hold contributions of ranks {_ranks(bits & mine)}"
                    replay.report("double-count", text, i, rank=rank)
                bits |= mine
            taken[i] = bits
            continue
        bits, adds = taken.pop(i), replay.reduce[i]
        for rank in ends.dsts if bits else ():
            key = (rank, chunk)
            before, (when, added, brought) = held.get(key, 0), last.get(key, (_ALWAYS, True, 0))
            if when == replay.end[i] and not (adds and added) and (adds or added or bits != brought):
                text = "arrives together with another value that it replaces or is replaced by"
                replay.report("race", text, i, rank=rank)
            elif adds and before & bits:
                text = f"adds contributions of ranks {_ranks(before & bits)} that the rank already holds"
                replay.report("double-count", text, i, rank=rank)
            elif not adds and before & ~bits:
                text = f"wipes out contributions of ranks {_ranks(before & ~bits)}"
                replay.report("lost-contribution", text, i, rank=rank)
            num_redundant += not adds and bits == before
            held[key] = before | bits if adds else bits
            updates.arrive(i, rank, held[key])
            last[key] = (replay.end[i], adds, bits)
    for chunk, data in enumerate(replay.collective.chunks):
        for rank in data.destinations:
            missing = everyone[chunk] & ~held.get((rank, chunk), 0)
            if missing:
                text = f"the sum lacks contributions of ranks {_ranks(missing)}"
                replay.report("postcondition", text, rank=rank, chunk=chunk)
            else:
                updates.check_end(rank, chunk)
    return num_redundant


class _Updates:
    """Tracker of the ranks that hold each sum as updated by its root, if roots update whole sums."""

    def __init__(self, replay: Replay) -> None:
        self._replay, self._everyone = replay, replay.everyone
        self._us_per_mb = replay.collective.update_us_per_mb
        chunks = enumerate(replay.collective.chunks)
        #: Time at which the root has updated a chunk, for chunks whose sum is whole.
        self._ready = {c: self._after(0, c) for c, data in chunks if data.origins == (data.root,)}
        self._has: set[tuple[int, int]] = set()  # (rank, chunk) that came from there
        self._under_way: set[int] = set()

    def _after(self, tick: int, chunk: int) -> Fraction:
        us = (self._us_per_mb or 0) * Fraction(self._replay.chunk_bytes[chunk], 10**6)
        return tick + us * self._replay.ticks_per_us

    def leave(self, i: int, held: dict[tuple[int, int], int]) -> None:
        """Record the start of a send; a whole sum must leave after its root's update, or carry it already."""
        if self._us_per_mb is None:
            return
        replay, chunk = self._replay, self._replay.chunk[i]
        root = replay.collective.chunks[chunk].root
        for rank in replay.topology.links[replay.link[i]].srcs:
            if (rank, chunk) in self._has:
                self._under_way.add(i)
            elif rank == root and held.get((rank, chunk)) == self._everyone[chunk]:
                if replay.start[i] < self._ready[chunk]:
                    when = replay.us(self._ready[chunk])
                    replay.report("update", f"the server updates the sum until {when} us", i, rank=rank)
                self._under_way.add(i)

    def arrive(self, i: int, rank: int, bits: int) -> None:
        """Record the end of a send at a rank, which then holds these contributions."""
        chunk = self._replay.chunk[i]
        if i in self._under_way:
            self._has.add((rank, chunk))
        root, is_whole = self._replay.collective.chunks[chunk].root, bits == self._everyone[chunk]
        if rank == root and is_whole and chunk not in self._ready:
            self._ready[chunk] = self._after(self._replay.end[i], chunk)

    def check_end(self, rank: int, chunk: int) -> None:
        """Check that the whole sum at a destination is the updated one."""
        root = self._replay.collective.chunks[chunk].root
        if self._us_per_mb is not None and rank != root and (rank, chunk) not in self._has:
            text = f"the sum is not that which rank {root}, its server, updated"
            self._replay.report("update", text, rank=rank, chunk=chunk)


def check_named_sums(replay: Replay, carried: list[int]) -> int:
    """Check presence and postcondition if transfers name the contributions that they carry.

    A rank keeps its own contribution and every arrival separately and permanently. Each sum that it sends,
    and each of its results, must be a disjoint union of sums that it holds by then. A sum that only its root
    wants counts as on the way there whenever it is sent. Any other sum spreads once it is whole, at any rank.
    Returns the number of redundant arrivals, as `check_sums` does.
    """
    links, chunks, everyone = replay.topology.links, replay.collective.chunks, replay.everyone
    has: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)  # (rank, chunk) -> sum -> since when
    for chunk, data in enumerate(chunks):
        for rank in data.origins:
            has[rank, chunk][1 << rank] = _ALWAYS
    num_redundant = 0
    for i in sorted(replay.usable, key=lambda i: replay.end[i]):
        chunk, bits = replay.chunk[i], carried[i]
        lacks = bits != everyone[chunk]
        replay.reducing[i] = lacks or chunks[chunk].destinations == (chunks[chunk].root,)
        if replay.reduce[i] != lacks:
            expected = "reduced, as it lacks some" if lacks else "copied, as it has all"
            replay.report("reduce", f"expected the sum of ranks {_ranks(bits)} to be {expected}", i)
        if not bits or bits & ~everyone[chunk]:
            text = f"carries contributions of ranks {_ranks(bits & ~everyone[chunk])}, which have none"
            replay.report("presence", text if bits else "carries nothing", i)
        for rank in links[replay.link[i]].dsts:
            num_redundant += bits in has[rank, chunk]
            has[rank, chunk].setdefault(bits, replay.end[i])
    for i in replay.usable:
        chunk, ends, start = replay.chunk[i], links[replay.link[i]], replay.start[i]
        if any(has[rank, chunk].get(carried[i], start + 1) <= start for rank in ends.srcs):
            continue
        by_then = []
        for rank in ends.srcs:
            by_then += [bits for bits, since in has[rank, chunk].items() if since <= start]
        _report_unmade(replay, carried[i], by_then, i=i, rank=ends.src, chunk=chunk)
    for chunk, data in enumerate(chunks):
        for rank in data.destinations:
            _report_unmade(replay, everyone[chunk], [*has[rank, chunk]], rank=rank, chunk=chunk)
    return num_redundant


def _report_unmade(
    replay: Replay, wanted: int, known: list[int], *, rank: int, chunk: int, i: int | None = None
) -> None:
    """Report a sum that is not a disjoint union of known ones, by what it lacks or counts twice."""
    usable = {bits for bits in known if bits and not bits & ~wanted}
    reached = reduce(or_, usable, 0)
    # Without an overlap, the sum of the bit masks equals their union.
    if wanted in usable or reached == wanted == sum(usable):
        return
    if reached != wanted:
        lacking = _ranks(wanted & ~reached)
        if i is None:
            text = f"the sum lacks contributions of ranks {lacking}"
            replay.report("postcondition", text, rank=rank, chunk=chunk)
        else:
            text = f"the rank holds no contributions of ranks {lacking} that fit when the send starts"
            replay.report("presence", text, i, rank=rank)
        return
    of_rank: dict[int, list[int]] = defaultdict(list)
    for bits in sorted(usable, key=lambda bits: (-bits.bit_count(), bits)):
        for place in range(bits.bit_length()):
            if bits >> place & 1:
                of_rank[place].append(bits)
    left, tried = [wanted], 0
    while left and left[-1]:
        tried += 1
        missing = left.pop()
        # Branch first on the rank contained in the fewest known sums.
        place = min(
            (r for r in range(missing.bit_length()) if missing >> r & 1), key=lambda r: len(of_rank[r])
        )
        left += [missing & ~bits for bits in of_rank[place] if not bits & ~missing]
        if tried > _MOST_TRIED:
            text = f"whether the sum of ranks {_ranks(wanted)} can be made was not decided"
            replay.report("double-count", text, i, rank=rank, chunk=chunk)
            return
    if not left:
        text = f"the sum of ranks {_ranks(wanted)} cannot be made without counting a contribution twice"
        replay.report("double-count", text, i, rank=rank, chunk=chunk)


def _derive(
    replay: Replay, since: dict[tuple[int, int], int | Fraction]
) -> dict[tuple[int, int], int | Fraction]:
    """Add the chunks that ranks derive from others, chains included; return when each is derived."""
    makes: dict[tuple[int, int], list[int]] = defaultdict(list)
    for each in replay.collective.derivations:
        makes[each.rank, each.source].append(each.chunk)
    made: dict[tuple[int, int], int | Fraction] = {}
    waiting = [key for key in makes if key in since]
    while waiting:
        rank, source = waiting.pop()
        when = since[rank, source]
        for chunk in makes[rank, source]:
            key = (rank, chunk)
            made[key] = min(when, made.get(key, when))
            if when < since.get(key, when + 1):
                since[key] = when
                if key in makes:
                    waiting.append(key)
    return made


def events(replay: Replay) -> Iterable[tuple[int, bool]]:
    """Transfers in order of time, each at its start (False) and at its end (True).

    Ties are ordered: reducing arrivals first, then copies, then starts.
    """
    usable = np.array(replay.usable, dtype=np.int64)
    ends, starts = np.array(replay.end, np.int64)[usable], np.array(replay.start, np.int64)[usable]
    phase = np.where(np.array(replay.reduce, bool)[usable], 0, 1)
    order = np.lexsort((np.concatenate([phase, np.full(len(usable), 2)]), np.concatenate([ends, starts])))
    for event in order.tolist():
        yield replay.usable[event % len(usable)], event < len(usable)


def _report_absent(replay: Replay, i: int, rank: int, held_from: int | Fraction | None) -> None:
    when = "never" if held_from is None else f"only from {replay.us(held_from)} us"
    if replay.collective.combining and not replay.collective.derivations:
        when = "not when the send starts"
    replay.report("presence", f"rank {rank} holds the chunk {when}", i, rank=rank)


def _ranks(bits: int) -> str:
    return ", ".join(str(rank) for rank in range(bits.bit_length()) if bits >> rank & 1)
