"""Location of data in a collective that combines: which contributions each rank's buffer holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.analysis.verification.columns import BLOCK, Columns, LinkEnds, flat_sets, roots_of
from taccl.analysis.verification.findings import MOST_LISTED, Findings
from taccl.analysis.verification.loops import NEVER, SumChunks, Sums, accept_trees, fitted, views

if TYPE_CHECKING:
    from taccl.collective import RankSets


class ChunkBlock(NamedTuple):
    """Sends of the chunks from `low` on, grouped by chunk and in order of start; `at` are their indices."""

    low: int
    at: NDArray[Any]
    sums: Sums
    chunks: SumChunks


class Fault(NamedTuple):
    """Fault of a sum: a violation at a rank, by a send or (None) at the end; sorted by `time` and `phase`."""

    time: int
    phase: int
    send: int | None
    chunk: int
    rank: int
    kind: str
    text: str


def by_chunk(columns: Columns, starts: RankSets) -> Iterator[ChunkBlock]:
    """Yield all transfers in blocks of chunks.

    - `starts`: Ranks of each chunk, taken as `SumChunks.origins`.
    """
    root = roots_of(columns.problem)
    order = np.argsort(columns.chunk, kind="stable")  # stable: sends of a chunk stay in order of start
    first = np.searchsorted(columns.chunk, np.arange(len(root) + 1), sorter=order)
    ranks = *flat_sets(starts), *flat_sets(columns.collective.destination_sets)
    low = 0
    while low < len(root):
        high = max(low + 1, int(np.searchsorted(first, first[low] + BLOCK)) - 1)
        at, local = order[first[low] : first[high]], first[low : high + 1] - first[low]
        (chunk, link, start, end), adds = columns.read(at), columns.adds(at)
        sums = Sums(link, start, end, adds, landing_order(chunk, end, adds), np.zeros(len(at), bool))
        origins, given, given_end, wanted, want, want_end = ranks
        mine = slice(low, high)
        chunks = SumChunks(
            local, root[mine], origins, given[mine], given_end[mine], wanted, want[mine], want_end[mine]
        )
        yield ChunkBlock(low, at, sums, chunks)
        low = high


def landing_order(
    chunk: NDArray[np.int64], end: NDArray[np.int64], adds: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Sends in order of chunk and end; at equal ends, additions come first."""
    key = 2 * end + ~adds
    if (np.diff(key)[np.diff(chunk) == 0] >= 0).all():  # e.g. all sends take equally long
        return np.arange(len(end))
    return np.lexsort((key, chunk))


def replay(
    sums: Sums, chunks: SumChunks, ends: LinkEnds, num_ranks: int, *, is_large: bool, by_trees: bool = True
) -> tuple[list[Fault], int, dict[int, int]]:
    """Replay sums, and set ``sums.gathers``.

    Returns the faults, the number of redundant copies, and {chunk: ticks from which its root holds the whole
    sum} for chunks that do not travel along trees.
    """
    accepted = np.zeros(len(chunks.root), bool)
    faults: list[Fault] = []
    num_redundant, whole_since = 0, {}
    if by_trees:
        state = np.empty(num_ranks, np.int64), np.empty(num_ranks, bool), np.empty_like(sums.link)
        num_redundant = fitted(accept_trees, is_large)(sums, chunks, ends, *state, accepted)
    for c in np.flatnonzero(~accepted).tolist():
        found, redundant, whole_since[c] = _replay_chunk(sums, views(chunks), views(ends), c)
        faults += found
        num_redundant += redundant
    return faults, int(num_redundant), whole_since


def _replay_chunk(sums: Sums, chunks: SumChunks, ends: LinkEnds, c: int) -> tuple[list[Fault], int, int]:
    """Replay one sum with arbitrary sends, as `replay` does; the contents of buffers are bit masks."""
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
                text = f"wipes out contributions of ranks {ranks_text(before & ~bits)}"
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
    """Ranks of a bit mask, as text."""
    return ", ".join(str(rank) for rank in range(bits.bit_length()) if bits >> rank & 1)


class SumReplay:
    """Replay of all sums of a schedule.

    - `num_redundant`: Copies that bring a rank the contributions that it holds.
    - `reducing`, (num_transfers,) bool: True for transfers on the way to their root; empty unless asked for.
    """

    def __init__(self, columns: Columns, *, tells_phases: bool) -> None:
        self.reducing = np.zeros(len(columns) if tells_phases else 0, bool)
        self.num_redundant, self._faults, counts = 0, list[Fault](), Counter[str]()
        collective, is_large = columns.collective, columns.is_large
        is_updated = collective.update_us_per_mb is not None
        for some in by_chunk(columns, collective.origin_sets):
            low, at, sums, chunks = some
            faults, num_redundant, whole_since = replay(
                sums, chunks, columns.ends, collective.num_ranks, is_large=is_large, by_trees=not is_updated
            )
            self.num_redundant += num_redundant
            if is_updated:
                faults += _unupdated(columns, some, faults, whole_since)
            for each in faults:
                send = None if each.send is None else int(at[each.send])
                counts[each.kind] += 1
                if counts[each.kind] <= MOST_LISTED + 1:  # one more than is listed
                    self._faults.append(each._replace(chunk=low + each.chunk, send=send))
            if tells_phases:
                self.reducing[at] = sums.gathers

    def report(self, findings: Findings) -> None:
        """Report all faults, in order of time."""
        for _, _, send, chunk, rank, kind, text in sorted(self._faults, key=_when):
            findings.report(kind, text, send, rank=rank, chunk=chunk)


def _when(fault: Fault) -> tuple[int, int, int]:
    return fault.time, fault.phase, fault.chunk if fault.send is None else fault.send


def _unupdated(
    columns: Columns, some: ChunkBlock, faults: list[Fault], whole_since: dict[int, int]
) -> Iterator[Fault]:
    """Yield whole sums that leave a root before it has updated them, or end without its update."""
    low, _, sums, chunks = some
    links, per_us = columns.topology.links, columns.ticks.per_us
    us_per_mb = columns.collective.update_us_per_mb or 0
    lacking = {(each.chunk, each.rank) for each in faults if each.kind == "postcondition"}
    for c, whole in whole_since.items():
        data, root = columns.collective.chunks[low + c], int(chunks.root[c])
        us = us_per_mb * Fraction(columns.problem.chunk_bytes[low + c], 10**6)
        ready = max(whole, 0) + us * per_us
        since: dict[int, int] = {}  # tick from which a rank holds the updated sum
        for i in range(int(chunks.first[c]), int(chunks.first[c + 1])):
            link, start, end = links[sums.link[i]], int(sums.start[i]), int(sums.end[i])
            for rank in link.srcs:
                is_updated = since.get(rank, NEVER) <= start
                if not is_updated and rank == root and whole <= start < ready:
                    text = f"the server updates the sum until {columns.ticks.us(ready)} us"
                    yield Fault(start, 2, i, c, rank, "update", text)
                if is_updated or (rank == root and whole <= start):
                    since |= {dst: min(end, since.get(dst, end)) for dst in link.dsts}
        for rank in data.destinations:
            if rank != root and rank not in since and (c, rank) not in lacking:
                text = f"the sum is not that which rank {root}, its server, updated"
                yield Fault(NEVER, 3, None, c, rank, "update", text)
