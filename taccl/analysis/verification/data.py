"""Location of data: contributions of each chunk that a rank holds, with the times from which it holds them.

A copied chunk is a sum with one contribution, which each of its origins holds. Chunks are replayed one by
one. Fast loops or sorts accept valid ones; Python replays all others, and names their faults.

Random reads of long columns would take most of the time of the verifier. So a pass reads all columns once, in
order of start. It places the transfers of some of the chunks into arrays, which the next pass overwrites.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arrays import distinct, lexsort, places_of
from taccl.analysis.verification.columns import BLOCK, MANY, Columns, LinkEnds, flat_sets, roots_of
from taccl.analysis.verification.findings import MOST_LISTED, Findings
from taccl.analysis.verification.loops import (
    NEVER,
    SumChunks,
    Sums,
    accept_copies,
    accept_sets,
    accept_trees,
    compiled_loop,
    fitted,
    place_by_chunk,
    views,
)
from taccl.analysis.verification.sorted_replay import accept_copies_sorted, accept_trees_sorted
from taccl.problem.chunks import RankSets

#: Number of transfers replayed in Python (about 3 s) before replay stops on an excess of faults of a kind.
_MOST_REPLAYED = 1 << 20


class ChunkBlock(NamedTuple):
    """Sends of consecutive chunks from chunk `low` on, sorted by chunk and start.

    - `at`: Index of each send in `Columns`.
    """

    low: int
    at: NDArray[Any]
    sums: Sums
    chunks: SumChunks


class Fault(NamedTuple):
    """A violation at a rank; `send` is the number of the faulty send, or None at the end of the schedule.

    Faults are sorted by time and `phase`, the order of events at one time. Phase 0 has arrivals that are
    added, 1 arrivals that are copied, 2 starts of sends, and 3 the end of the schedule.
    """

    time: int
    phase: int
    send: int | None
    chunk: int
    rank: int
    kind: str
    text: str


def by_chunk(
    columns: Columns, starts: RankSets, dates: Mapping[tuple[int, int], int] | None = None
) -> Iterator[ChunkBlock]:
    """Yield all transfers in blocks of chunks.

    - `starts`: Ranks of each chunk, which become `SumChunks.origins`.
    - `dates`: {(chunk, rank): ticks} from which a rank holds a copy without an arrival. None for sums:
      `Sums.lands` is then filled, too.
    """
    root = roots_of(columns.problem)
    first = offsets(columns, len(root))
    origins, given, given_end = flat_sets(starts)
    wanted, want, want_end = flat_sets(columns.collective.destination_sets)
    rows = sorted((c, rank, ticks) for (c, rank), ticks in (dates or {}).items())
    dated_chunk, dated, since = np.array(rows, np.int64).reshape(-1, 3).T.copy()
    for low, high, (at, link, start) in sorted_blocks(columns, first):
        chunk, adds = np.repeat(np.arange(low, high), np.diff(first[low : high + 1])), columns.adds(at)
        if columns.end is None:
            end = start + columns.durations(chunk, link)
        else:
            end = columns.end[at].astype(np.int64)
        lands = landing_order(chunk, end, adds) if dates is None else at[:0]
        sums = Sums(link, start, end, adds, lands, np.zeros(len(at), bool))
        mine = slice(low, high)
        date = np.searchsorted(dated_chunk, np.arange(low, high + 1))
        chunks = SumChunks(
            first[low : high + 1] - first[low], root[mine], origins, given[mine], given_end[mine],
            wanted, want[mine], want_end[mine], dated, date, since,
        )  # fmt: skip
        yield ChunkBlock(low, at, sums, chunks)


class Replay:
    """Replay of all chunks of a schedule whose transfers carry everything that their senders hold.

    - `dates`: {(chunk, rank): ticks} from which a rank holds a copy without an arrival: released or derived.
      None for sums.
    - `num_redundant`: Number of copies that arrive where the rank already holds them.
    - `reducing`, (num_transfers,) bool: True for transfers on the way to their root. Empty for copies, and if
      no clause distinguishes transfers to the root from those away from it.
    """

    def __init__(self, columns: Columns) -> None:
        collective = columns.collective
        is_copied, is_updated = not collective.sums_up, collective.updates
        needs_phases = not is_copied and bool(columns.clauses.said("chunk", "order", "path"))
        self.dates = own_dates(columns) if is_copied else None
        self.reducing = np.zeros(len(columns) if needs_phases else 0, bool)
        self.num_redundant, self._faults, counts, num_replayed = 0, list[Fault](), Counter[str](), 0
        released = {(chunk, rank) for chunk, rank, _ in columns.problem.release_us if is_copied}
        for some in by_chunk(columns, collective.origin_sets, self.dates):
            low, at, sums, chunks = some
            accepted, num_redundant = _accepted(columns, sums, chunks, is_copied=is_copied)
            if is_updated:  # only the replay in Python returns `whole_since`
                accepted[:], num_redundant = False, 0
            seen = views(sums), views(chunks), views(columns.ends)
            for c in np.flatnonzero(~accepted).tolist():
                if num_replayed > _MOST_REPLAYED and max(counts.values(), default=0) > MOST_LISTED:
                    break  # enough faults to list
                num_replayed += int(chunks.first[c + 1] - chunks.first[c])
                if is_copied:
                    faults, redundant = replay_copy(*seen, c, us=columns.ticks.us)
                else:
                    faults, redundant, whole_since = replay_sum(*seen, c)
                    if is_updated:
                        faults += _unupdated(columns, some, c, faults, whole_since)
                        redundant = _redundant_updates(columns, some, c)
                num_redundant += redundant
                for each in faults:
                    if each.kind == "presence" and (low + c, each.rank) in released:
                        continue  # reported by the check of release dates
                    send = None if each.send is None else int(at[each.send])
                    counts[each.kind] += 1
                    # One fault more than is listed marks the list as incomplete.
                    if counts[each.kind] <= MOST_LISTED + 1:
                        self._faults.append(each._replace(chunk=low + c, send=send))
            self.num_redundant += num_redundant
            if needs_phases:
                self.reducing[at] = sums.gathers

    def report(self, findings: Findings) -> None:
        """Report all faults, in order of time."""
        for _, _, send, chunk, rank, kind, text in sorted(self._faults, key=_when):
            findings.report(kind, text, send, rank=rank, chunk=chunk)


def _when(fault: Fault) -> tuple[int, int, int]:
    return fault.time, fault.phase, fault.chunk if fault.send is None else fault.send


def own_dates(columns: Columns) -> dict[tuple[int, int], int]:
    """{(chunk, rank): ticks} from which a rank holds a released or derived copy without an arrival."""
    per_us, collective = columns.ticks.per_us, columns.collective
    dates = {(chunk, rank): math.ceil(us * per_us) for chunk, rank, us in columns.problem.release_us}
    first = arrivals(columns, [(each.source, each.rank) for each in collective.derivations])
    for each in collective.derivations_in_turn:
        source, made = (each.source, each.rank), (each.chunk, each.rank)
        is_origin = source not in dates and each.rank in collective.chunks[each.source].origins
        since = -NEVER if is_origin else min(first.get(source, NEVER), dates.get(source, NEVER))
        dates[made] = min(since, dates.get(made, NEVER))
    return dates


def arrivals(
    columns: Columns, places: Collection[tuple[int, int]], *, last: bool = False
) -> dict[tuple[int, int], int]:
    """{(chunk, rank): ticks of the first (or `last`) arrival}, for each of `places` that has an arrival."""
    if not places:
        return {}
    num_ranks = columns.topology.num_ranks
    keys = distinct(np.array([chunk * num_ranks + rank for chunk, rank in places], np.int64))
    found = np.full(len(keys), -NEVER if last else NEVER)
    for block in columns.blocks():
        send, rank = columns.ends.destinations(block.link)
        place, is_known = places_of(keys, block.chunk[send] * num_ranks + rank)
        (np.maximum if last else np.minimum).at(found, place[is_known], block.end[send[is_known]])
    pairs = zip(keys.tolist(), found.tolist(), strict=True)
    return {divmod(key, num_ranks): ticks for key, ticks in pairs if abs(ticks) < NEVER}


def _accepted(
    columns: Columns, sums: Sums, chunks: SumChunks, *, is_copied: bool
) -> tuple[NDArray[np.bool_], int]:
    """Replay chunks by sorts or by `accept`, whichever is quicker; returns the same as `accept`."""
    num_ranks, is_large = columns.collective.num_ranks, columns.is_large
    if columns.is_sorted:
        judge = accept_copies_sorted if is_copied else accept_trees_sorted
        accepted, num_redundant = judge(sums, chunks, columns.ends, num_ranks)
        if is_copied or accepted.all():
            return accepted, num_redundant
        is_large = int(np.diff(chunks.first)[~accepted].sum()) >= MANY
    return accept(sums, chunks, columns.ends, num_ranks, is_copied=is_copied, is_large=is_large)


def accept(
    sums: Sums, chunks: SumChunks, ends: LinkEnds, num_ranks: int, *, is_copied: bool, is_large: bool
) -> tuple[NDArray[np.bool_], int]:
    """Replay chunks by fast loops; return (True for chunks found valid, number of redundant copies).

    Sets ``sums.gathers``. Valid copied chunks are always accepted. Valid sums are all accepted if there are
    many transfers (`is_large`); otherwise only sums that travel along trees.
    """
    accepted, state = np.zeros(len(chunks.root), bool), np.empty(num_ranks, np.int64)
    if is_copied:
        return accepted, int(fitted(accept_copies, is_large)(sums, chunks, ends, state, accepted))
    others = np.empty(num_ranks, bool), np.empty_like(sums.link)
    num_redundant = fitted(accept_trees, is_large)(sums, chunks, ends, state, *others, accepted)
    if is_large and not accepted.all():
        num_words = -(-int((chunks.given_end - chunks.given).max()) // 64)
        num_sends = int(np.diff(chunks.first).max())
        sets = np.empty((num_ranks + 1, num_words), np.int64), np.empty((num_sends, num_words), np.int64)
        last = np.empty(num_ranks, np.int64)
        num_redundant += fitted(accept_sets, is_large)(sums, chunks, ends, *sets, last, accepted)
    return accepted, int(num_redundant)


def replay_copy(
    sums: Sums, chunks: SumChunks, ends: LinkEnds, c: int, *, us: Callable[[int], str] = str
) -> tuple[list[Fault], int]:
    """Replay copied chunk `c`; return (faults, number of redundant copies).

    `sums`, `chunks` and `ends` hold memory views instead of arrays, as `loops.views` makes them.

    - `us`: Converts ticks to text.
    """
    own = dict.fromkeys(chunks.origins[chunks.given[c] : chunks.given_end[c]].tolist(), -NEVER)
    for k in range(chunks.date[c], chunks.date[c + 1]):
        own[chunks.dated[k]] = chunks.since[k]
    sends = range(chunks.first[c], chunks.first[c + 1])
    landings = sorted(
        (sums.end[i], rank)
        for i in sends
        for rank in ends.rank[ends.middle[sums.link[i]] : ends.first[sums.link[i] + 1]].tolist()
    )
    first = {rank: end for end, rank in reversed(landings)}
    num_redundant = len(landings) - sum(end < own.get(rank, NEVER) for rank, end in first.items())
    since = {rank: min(own.get(rank, NEVER), first.get(rank, NEVER)) for rank in own.keys() | first.keys()}
    faults = []
    for i in sends:
        e, start = sums.link[i], sums.start[i]
        if sums.adds[i]:
            faults.append(
                Fault(start, 2, i, c, ends.rank[ends.middle[e]], "reduce", "is reduced; expected a copy")
            )
        for rank in ends.rank[ends.first[e] : ends.middle[e]].tolist():
            if since.get(rank, NEVER) > start:
                when = f"only from {us(since[rank])} us" if rank in since else "never"
                faults.append(Fault(start, 2, i, c, rank, "presence", f"rank {rank} holds the chunk {when}"))
    for rank in chunks.wanted[chunks.want[c] : chunks.want_end[c]].tolist():
        if rank not in since:
            faults.append(Fault(NEVER, 3, None, c, rank, "postcondition", "the chunk never arrives"))
    return faults, num_redundant


def replay_sum(sums: Sums, chunks: SumChunks, ends: LinkEnds, c: int) -> tuple[list[Fault], int, int]:
    """Replay sum `c` over any routes; each rank's buffer is a bit mask of the ranks that contributed to it.

    Returns (faults, number of redundant copies, tick from which the root holds the whole sum). `sums`,
    `chunks` and `ends` hold memory views instead of arrays, as `loops.views` makes them.
    """
    low, root, num_redundant = chunks.first[c], chunks.root[c], 0
    mine = slice(low, chunks.first[c + 1])
    links, starts, landings, adds = (column[mine].tolist() for column in sums[:4])
    srcs = [ends.rank[ends.first[e] : ends.middle[e]].tolist() for e in links]
    dsts = [ends.rank[ends.middle[e] : ends.first[e + 1]].tolist() for e in links]
    held = {r: 1 << r for r in chunks.origins[chunks.given[c] : chunks.given_end[c]].tolist()}
    whole = sum(held.values())
    whole_since = -NEVER if held.get(root) == whole else NEVER
    last: dict[int, tuple[int, bool, int]] = {}  # the last arrival at a rank: end, adds, bits
    taken: dict[int, int] = {}  # send -> contributions under way
    faults = []
    events = [(time, 1 - adds[i], i) for i, time in enumerate(landings)]
    events += [(time, 2, i) for i, time in enumerate(starts)]
    for time, phase, i in sorted(events):
        found: list[tuple[int, str, str]] = []
        if phase == 2:
            bits = 0
            for rank in srcs[i]:
                parts = held.get(rank, 0)
                if not parts:
                    text = f"rank {rank} does not hold the chunk when the send starts"
                    found.append((rank, "presence", text))
                if bits & parts:
                    text = f"sources both hold contributions of ranks {ranks_text(bits & parts)}"
                    found.append((rank, "double-count", text))
                bits |= parts
            holders = [*srcs[i], root] if root >= 0 else srcs[i]
            sums.gathers[low + i] = any(held.get(rank, 0) != whole for rank in holders)
            taken[i] = bits
        for rank in dsts[i] if phase < 2 and taken[i] else ():
            bits, before = taken[i], held.get(rank, 0)
            when, added, brought = last.get(rank, (-NEVER, True, 0))
            if when == time and not (adds[i] and added) and (adds[i] or added or bits != brought):
                text = "arrives together with another value that it replaces or is replaced by"
                found.append((rank, "race", text))
            elif adds[i] and before & bits:
                text = f"adds contributions of ranks {ranks_text(before & bits)} that the rank already holds"
                found.append((rank, "double-count", text))
            elif not adds[i] and before & ~bits:
                text = f"overwrites contributions of ranks {ranks_text(before & ~bits)}"
                found.append((rank, "lost-contribution", text))
            num_redundant += not adds[i] and bits == before
            held[rank] = before | bits if adds[i] else bits
            last[rank] = time, adds[i], bits
            if rank == root and held[rank] == whole:
                whole_since = min(whole_since, time)
        faults += [Fault(time, phase, low + i, c, *each) for each in found]
    for rank in chunks.wanted[chunks.want[c] : chunks.want_end[c]].tolist():
        missing = whole & ~held.get(rank, 0)
        if missing:
            text = f"the sum lacks contributions of ranks {ranks_text(missing)}"
            faults.append(Fault(NEVER, 3, None, c, rank, "postcondition", text))
    return faults, num_redundant, whole_since


def ranks_text(bits: int) -> str:
    """Text of the ranks in a bit mask."""
    return ", ".join(str(rank) for rank in range(bits.bit_length()) if bits >> rank & 1)


def landing_order(
    chunk: NDArray[np.int64], end: NDArray[np.int64], adds: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Indices that sort sends by chunk and end; at equal ends, sends that reduce come first."""
    key = 2 * end + ~adds
    if (np.diff(key)[np.diff(chunk) == 0] >= 0).all():  # already sorted, e.g. all sends take equally long
        return np.arange(len(end))
    return lexsort((key, chunk))


def _unupdated(
    columns: Columns, some: ChunkBlock, c: int, faults: list[Fault], whole: int
) -> Iterator[Fault]:
    """Yield faults where a rank uses a sum without the update that its root, a server, must make first.

    Such are sends from the root before the update is done, copies over the updated sum, and ends without it.

    - `whole`: Tick from which the root holds the whole sum of chunk `c` of the block.
    """
    (low, _, sums, chunks), links = some, columns.topology.links
    data, root = columns.collective.chunks[low + c], int(chunks.root[c])
    spent = (columns.collective.update_us_per_mb or 0) * Fraction(columns.problem.chunk_bytes[low + c], 10**6)
    ready, us = max(whole, 0) + spent * columns.ticks.per_us, columns.ticks.us
    since = {root: whole}  # {rank: tick from which it holds the updated sum, or begins to update it}
    copied: list[tuple[int, int, int]] = []  # (send, rank, end) of copies without the update
    for i in range(int(chunks.first[c]), int(chunks.first[c + 1])):
        link, start, end = links[sums.link[i]], int(sums.start[i]), int(sums.end[i])
        if root in link.srcs and whole <= start < ready:
            yield Fault(start, 2, i, c, root, "update", f"the server updates the sum until {us(ready)} us")
        if any(since.get(rank, NEVER) <= start for rank in link.srcs):
            since |= {dst: min(end, since.get(dst, end)) for dst in link.dsts}
        elif not sums.adds[i]:
            copied += [(i, dst, end) for dst in link.dsts]
    for i, rank, end in copied:
        if since.get(rank, NEVER) < end + (rank != root):
            yield Fault(end, 1, i, c, rank, "update", "overwrites the updated sum with one before the update")
    lacking = (each.rank for each in faults if each.kind == "postcondition")
    for rank in sorted(set(data.destinations).difference(since, lacking)):
        yield Fault(NEVER, 3, None, c, rank, "update", f"the sum is not the one that rank {root} updated")


def _redundant_updates(columns: Columns, some: ChunkBlock, c: int) -> int:
    """Number of copies of chunk `c` of the block that arrive at its server, or after another copy."""
    _, _, sums, chunks = some
    copies = [i for i in range(int(chunks.first[c]), int(chunks.first[c + 1])) if not sums.adds[i]]
    ranks = [rank for i in copies for rank in columns.topology.links[sums.link[i]].dsts]
    return len(ranks) - len({*ranks} - {int(chunks.root[c])})


#: A pass places at most 1 / `_PASSES` of all transfers, or `_PASS` transfers (24 bytes each) if that is more.
#: All transfers of a chunk are placed in the same pass, even if they exceed this limit.
_PASSES, _PASS = 8, 1 << 20


def offsets(columns: Columns, num_chunks: int) -> NDArray[np.int64]:
    """Position of each chunk's first transfer in order by chunk; the last entry counts all transfers."""
    first = np.zeros(num_chunks + 1, np.int64)
    for i in range(0, len(columns), BLOCK):
        np.add.at(first, columns.chunk[i : i + BLOCK].astype(np.int64) + 1, 1)
    return np.cumsum(first)


def sorted_blocks(
    columns: Columns, first: NDArray[np.int64]
) -> Iterator[tuple[int, int, tuple[NDArray[np.int64], ...]]]:
    """Yield (low, high, (index, link, start) of the transfers) for blocks of chunks `low` to `high` - 1.

    The transfers are sorted by chunk and start. Their arrays are valid until the next block.

    - `first`: The result of `offsets`.
    """
    num_chunks, most = len(first) - 1, max(_PASS, len(columns) // _PASSES)
    low, placed = 0, np.empty((3, 0), np.int64)
    while low < num_chunks:
        after, begin = _end(first, low, most), first[low]
        count = int(first[after] - begin)
        if placed.shape[1] < count:
            placed = np.empty((3, max(count, min(most, len(columns)))), np.int64)
        _place(columns, first[low : after + 1], low, placed)
        while low < after:
            high = min(_end(first, low, BLOCK), after)
            yield low, high, tuple(placed[:, first[low] - begin : first[high] - begin])
            low = high


def _end(first: NDArray[np.int64], low: int, most: int) -> int:
    """End (exclusive) of the longest run of chunks from `low` on with at most `most` transfers in total.

    The run has at least one chunk.
    """
    return max(low + 1, int(np.searchsorted(first, first[low] + most, side="right")) - 1)


def _place(columns: Columns, first: NDArray[np.int64], low: int, placed: NDArray[np.int64]) -> None:
    """Write the transfers of chunks from `low` on, sorted by chunk, into `placed` (index, link, start).

    - `first`: `offsets` of these chunks.
    """
    place, high, is_all = first[:-1] - first[0], low + len(first) - 1, first[-1] - first[0] == len(columns)
    if not columns.is_large:
        order = lexsort((columns.chunk,))[first[0] : first[-1]]
        placed[:, : len(order)] = order, columns.link[order], columns.start[order]
        return
    loop = compiled_loop(place_by_chunk)
    for i in range(0, len(columns), BLOCK):
        some = slice(i, i + BLOCK)
        chunk, link, start = columns.chunk[some], columns.link[some], columns.start[some]
        rows = np.arange(len(chunk)) if is_all else np.flatnonzero((chunk >= low) & (chunk < high))
        loop(
            chunk[rows].astype(np.int64) - low, i + rows, link[rows].astype(np.int64),
            start[rows].astype(np.int64), place, placed,
        )  # fmt: skip
