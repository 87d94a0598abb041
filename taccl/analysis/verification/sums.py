"""Location of data in a collective that combines: which contributions each rank's buffer holds."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.analysis.verification.columns import BLOCK, Columns, LinkEnds, flat_sets, roots_of
from taccl.analysis.verification.findings import MOST_LISTED, Findings
from taccl.analysis.verification.loops import NEVER, fitted
from taccl.analysis.verification.sum_loops import (
    ABSENT,
    DOUBLE,
    LOST,
    MISSING,
    RACE,
    SHARED,
    Buffers,
    SumChunks,
    Sums,
    accept_trees,
    replay_sums,
)

if TYPE_CHECKING:
    from taccl.collective import RankSets

#: Max rows for the faults of sums, each of one word of contributions (50 MB).
_MOST_WORDS = 1 << 20
#: {code of a fault: kind of violation, and message}
_WORDS = {
    ABSENT: ("presence", "rank {rank} does not hold the chunk when the send starts"),
    SHARED: ("double-count", "sources both hold contributions of ranks {ranks}"),
    RACE: ("race", "arrives together with another value that it replaces or is replaced by"),
    DOUBLE: ("double-count", "adds contributions of ranks {ranks} that the rank already holds"),
    LOST: ("lost-contribution", "wipes out contributions of ranks {ranks}"),
    MISSING: ("postcondition", "the sum lacks contributions of ranks {ranks}"),
}


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


class Replayed(NamedTuple):
    """Result of `replay`.

    - `whole_since`, (num_chunks,) int64: Ticks from which roots hold the whole sum, or `NEVER`; of chunks
      that were not accepted as trees.
    - `is_complete`: False if there are more faults than were listed.
    """

    faults: list[Fault]
    num_redundant: int
    whole_since: NDArray[np.int64]
    is_complete: bool


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
) -> Replayed:
    """Replay sums, and set ``sums.gathers``."""
    slot = np.concatenate(([0], np.cumsum(ends.first[sums.link + 1] - ends.middle[sums.link])))
    buffers = Buffers(
        np.empty(num_ranks, np.int64), np.empty(num_ranks, np.int64), np.empty(num_ranks, bool),
        np.empty(len(sums.link), np.int64), np.empty(len(sums.link), bool), slot, np.empty(slot[-1], bool),
    )  # fmt: skip
    accepted = np.zeros(len(chunks.root), bool)
    num_redundant = redundant = count = 0
    if by_trees:
        num_redundant = fitted(accept_trees, is_large)(sums, chunks, ends, buffers, accepted)
    others, whole_since = np.flatnonzero(~accepted), np.full(len(accepted), NEVER)
    faults = np.empty((0, 6), np.int64)
    for most in (4 * MOST_LISTED, _MOST_WORDS) if len(others) else ():
        faults = np.empty((most, 6), np.int64)
        loop = fitted(replay_sums, is_large)
        count, redundant = loop(sums, chunks, ends, buffers, others, whole_since, faults)
        if count <= most:
            break
    is_complete = count <= len(faults)
    merged = _merged(faults[:count], sums, chunks)
    return Replayed(merged, int(num_redundant + redundant), whole_since, is_complete)


def _merged(faults: NDArray[np.int64], sums: Sums, chunks: SumChunks) -> list[Fault]:
    """Faults of single words of contributions as faults of whole sums.

    Codes are in order of precedence: a race makes other faults of an arrival meaningless.
    """
    found: dict[tuple[int, int, int, bool], tuple[int, list[int]]] = {}
    for chunk, code, send, rank, base, bits in faults.tolist():
        key = (chunk, send, rank, code in (ABSENT, SHARED))
        known, ranks = found.get(key, (code, []))
        if code <= known:
            places = [base + bit for bit in range(bits.bit_length()) if bits >> bit & 1]
            found[key] = code, (ranks if code == known else []) + chunks.origins[places].tolist()
    merged = []
    for (chunk, send, rank, at_start), (code, ranks) in found.items():
        time, phase = NEVER, 3
        if send >= 0:
            time, phase = int(sums.end[send]), 1 - int(sums.adds[send])
        if at_start:
            time, phase = int(sums.start[send]), 2
        kind, text = _WORDS[code]
        text = text.format(rank=rank, ranks=", ".join(map(str, sorted(ranks))))
        merged.append(Fault(time, phase, None if send < 0 else send, chunk, rank, kind, text))
    return merged


class SumReplay:
    """Replay of all sums of a schedule.

    - `num_redundant`: Copies that bring a rank the contributions that it holds.
    - `reducing`, (num_transfers,) bool: True for transfers on the way to their root; empty unless asked for.
    """

    def __init__(self, columns: Columns, *, tells_phases: bool) -> None:
        self.reducing = np.zeros(len(columns) if tells_phases else 0, bool)
        self.num_redundant, self._is_complete = 0, True
        self._faults: list[Fault] = []
        collective = columns.collective
        is_updated = collective.update_us_per_mb is not None
        for some in by_chunk(columns, collective.origin_sets):
            found = replay(
                some.sums,
                some.chunks,
                columns.ends,
                collective.num_ranks,
                is_large=columns.is_large,
                by_trees=not is_updated,
            )
            self.num_redundant += found.num_redundant
            self._is_complete &= found.is_complete
            faults = found.faults + (unupdated(columns, some, found) if is_updated else [])
            self._faults += [
                each._replace(
                    chunk=some.low + each.chunk, send=None if each.send is None else int(some.at[each.send])
                )
                for each in faults
            ]
            if tells_phases:
                self.reducing[some.at] = some.sums.gathers

    def report(self, findings: Findings) -> None:
        """Report all faults, in order of time."""
        for _, _, send, chunk, rank, kind, text in sorted(self._faults, key=_when):
            findings.report(kind, text, send, rank=rank, chunk=chunk)
        if not self._is_complete:
            findings.is_complete = False


def _when(fault: Fault) -> tuple[int, int, int]:
    return fault.time, fault.phase, fault.chunk if fault.send is None else fault.send


def unupdated(columns: Columns, some: ChunkBlock, found: Replayed) -> list[Fault]:
    """Whole sums that leave a root before it has updated them, or end without its update."""
    (_, _, sums, chunks), ends, ticks = some, columns.ends, columns.ticks
    lacking = {(each.chunk, each.rank) for each in found.faults if each.kind == "postcondition"}
    faults = []
    for c, since in enumerate(found.whole_since.tolist()):
        root = int(chunks.root[c])
        us = (columns.collective.update_us_per_mb or 0) * Fraction(
            columns.problem.chunk_bytes[some.low + c], 10**6
        )
        ready = max(since, 0) + us * ticks.per_us
        has: set[int] = set()  # ranks that hold the updated sum
        under_way: set[int] = set()
        low, high = int(chunks.first[c]), int(chunks.first[c + 1])
        events = [(int(sums.end[i]), 0, i) for i in range(low, high)]
        events += [(int(sums.start[i]), 1, i) for i in range(low, high)]
        for time, starts, i in sorted(events):
            first, middle, last = (
                int(column[sums.link[i] + k])
                for column, k in ((ends.first, 0), (ends.middle, 0), (ends.first, 1))
            )
            if not starts:
                has.update(ends.rank[middle:last].tolist() if i in under_way else ())
                continue
            for rank in ends.rank[first:middle].tolist():
                if rank in has:
                    under_way.add(i)
                elif rank == root and since <= time:
                    under_way.add(i)
                    if time < ready:
                        text = f"the server updates the sum until {ticks.us(ready)} us"
                        faults.append(Fault(time, 2, i, c, rank, "update", text))
        for rank in columns.collective.chunks[some.low + c].destinations:
            if rank != root and rank not in has and (c, rank) not in lacking:
                text = f"the sum is not that which rank {root}, its server, updated"
                faults.append(Fault(NEVER, 3, None, c, rank, "update", text))
    return faults
