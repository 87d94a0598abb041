"""Checks of sends on their links: indices, intervals, merging, durations, and contention for resources.

Each resource is held by one send at a time; hold intervals are half open.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arrays import lexsort, ranges
from taccl.analysis.verification.columns import Block, Columns
from taccl.analysis.verification.findings import MOST_LISTED, Findings
from taccl.analysis.verification.loops import NEVER, Held, Holds, fitted, list_holds, sweep
from taccl.problem.costs import hold_columns


def check_indices(columns: Columns, findings: Findings) -> NDArray[np.int64] | None:
    """Check chunk, link and interval of each transfer; return indices of valid ones, or None if all are."""
    num_chunks, num_links = columns.collective.num_chunks, len(columns.topology.links)
    if not len(columns):
        return None
    bounds = ((columns.chunk, num_chunks), (columns.link, num_links))
    exist = all(0 <= int(column.min()) <= int(column.max()) < count for column, count in bounds)
    is_positive = columns.end is None or bool((columns.end > columns.start).all())
    if exist and is_positive and int(columns.start.min()) >= 0:
        return None
    chunk, link = columns.chunk, columns.link
    chunk_exists = (chunk >= 0) & (chunk < num_chunks)
    known = chunk_exists & (link >= 0) & (link < num_links)
    lasts = known.copy()
    at = np.flatnonzero(known)
    *_, start, end = columns.read(at)
    lasts[at] = end > start
    for i in np.flatnonzero(~lasts | (columns.start < 0)).tolist():
        if not chunk_exists[i]:
            findings.report("index", f"there is no such chunk; expected 0-{num_chunks - 1}", i)
        elif not known[i]:
            findings.report("index", f"there is no such link; expected 0-{num_links - 1}", i)
        elif not lasts[i]:
            findings.report("interval", "the send does not end after it starts", i)
        else:
            findings.report("interval", "the send starts before time 0", i)
    return None if lasts.all() else np.flatnonzero(lasts)


#: Chunk, link, start, end of a transfer, and True if it is reduced.
_Row = tuple[int, int, int, int, bool]


def check_merging(columns: Columns, findings: Findings, sizes: Counter[int]) -> None:
    """Check that transfers of a group share link, times and operation, and respect the merge limits.

    Sets ``columns.units``.

    - `sizes`: {group: number of its transfers, invalid ones included}, for groups of several transfers.
    """
    if not sizes or columns.group is None:
        return
    members: dict[int, list[tuple[int, _Row]]] = defaultdict(list)
    at = np.flatnonzero(np.isin(columns.group, list(sizes)))
    columns.units = columns.ticks.chunk_units[columns.chunk]
    at = _without_sound_groups(columns, at, sizes)
    rows = zip(*(column.tolist() for column in (*columns.read(at), columns.adds(at))), strict=True)
    for group, i, row in zip(columns.group[at].tolist(), at.tolist(), rows, strict=True):
        members[group].append((i, row))
    units = columns.units.tolist()
    columns.units[at] = -1
    for group, each in members.items():
        if _is_one_send(findings, group, each) and len(each) == sizes[group]:
            columns.units[each[0][0]] = sum(units[i] for i, _ in each)
            _check_limits(columns, findings, [i for i, _ in each])


def _without_sound_groups(
    columns: Columns, at: NDArray[np.int64], sizes: Mapping[int, int]
) -> NDArray[np.int64]:
    """Transfers of groups that break a rule, or may break one; sets ``columns.units`` of all other groups.

    - `at`: Indices of the transfers of all groups of several transfers.
    - `sizes`: As in `check_merging`.
    """
    assert columns.group is not None and columns.units is not None, "both are set"
    if not len(at):
        return at
    order = lexsort((columns.chunk[at], columns.group[at]))
    at = at[order]
    group = columns.group[at]
    begins = np.flatnonzero(np.diff(group, prepend=group[:1] - 1))
    count = np.diff(np.append(begins, len(at)))
    first = at[np.repeat(begins, count)]
    chunk, *times = columns.read(at)
    alike = columns.adds(at) == columns.adds(first)
    for each, other in zip(times, columns.read(first)[1:], strict=True):
        alike &= each == other
    alike[1:] &= (np.diff(chunk) != 0) | (np.diff(group) != 0)
    clauses = columns.clauses
    merges = np.isin(columns.link[at[begins]], list(clauses.merging)) & (count <= clauses.max_merge)
    expected = np.array([sizes[each] for each in group[begins].tolist()])
    is_sound = np.logical_and.reduceat(alike, begins) & merges & (count == expected)
    units = np.add.reduceat(columns.units[at], begins)
    is_single = np.repeat(is_sound, count)
    columns.units[at[is_single]] = -1
    firsts = np.minimum.reduceat(at, begins)
    columns.units[firsts[is_sound]] = units[is_sound]
    return np.sort(at[~is_single])


def _is_one_send(findings: Findings, group: int, members: list[tuple[int, _Row]]) -> bool:
    """Check that the transfers of a group agree on link, times and operation, and have different chunks.

    - `members`: (index, row) of each transfer.
    """
    (top, (first, *same_send, reduce)), is_sound = members[0], True
    seen: set[int] = set()
    shares = f"shares group {group} with chunk {first}"
    for i, (chunk, *send, reduces) in members:
        text = ""
        if reduces != reduce:
            text = f"{shares}, one reduced and one copied; expected one of the two for a whole send"
        elif send != same_send:
            when = f"{findings.link_text(same_send[0])}, {findings.span_text(top)}"
            text = f"{shares}, {when}; expected the same link, start and end"
        elif chunk in seen:
            text = f"the chunk is twice in group {group}"
        if text:
            findings.report("merge", text, i)
            is_sound = False
        seen.add(chunk)
    return is_sound


def _check_limits(columns: Columns, findings: Findings, members: list[int]) -> None:
    """Check a merged send against the sketch's limits on merging."""
    count, clauses = len(members), columns.clauses
    if count > 1 and int(columns.link[members[0]]) not in clauses.merging:
        text = f"{count} chunks in one send; sends over this link do not merge"
        findings.report("merge", text, members[0], clause="merging")
    elif count > clauses.max_merge:
        text = f"{count} chunks in one send; expected at most {clauses.max_merge}"
        findings.report("merge", text, members[0], clause="max_merge")


def check_times(columns: Columns, findings: Findings) -> None:
    """Check that every send lasts alpha + bytes * beta of its link.

    A schedule that does not state ends has nothing to check.
    """
    if columns.end is None:
        return
    ticks = columns.ticks
    for block in columns.blocks():
        expected = ticks.link_alpha[block.link] + block.units * ticks.link_beta[block.link]
        is_off = (block.end - block.start != expected // ticks.divisor) | (expected % ticks.divisor != 0)
        for i in np.flatnonzero(is_off & (block.units >= 0)).tolist():
            link, units = int(block.link[i]), int(block.units[i])
            ends = columns.topology.links[link]
            found, due = int(block.end[i]) - int(block.start[i]), ticks.exact_latency(link, units)
            findings.report(
                "times",
                f"takes {ticks.us(found)} us; alpha {ends.alpha_us} us and {units * ticks.unit_bytes} bytes "
                f"at {ends.beta_us_per_mb} us/MB make {ticks.us(due)} us",
                block.first + i,
            )


class Contention:
    """Sweep over the intervals in which sends hold resources, by start, for one block of sends at a time."""

    def __init__(self, columns: Columns) -> None:
        self._columns, topology, ticks = columns, columns.topology, columns.ticks
        found = hold_columns(topology)
        order = lexsort((found.link,))
        of_link = np.searchsorted(found.link[order], np.arange(len(topology.links) + 1)).astype(np.int64)
        self._holds = Holds(
            of_link, found.resource[order], found.receives[order], ticks.hold_alpha[order],
            ticks.hold_beta[order], ticks.divisor,
        )  # fmt: skip
        self._most_holds = int(np.diff(of_link).max(initial=0))
        num_resources = len(topology.resources)
        #: `_until`: For each resource, the latest end of the intervals swept so far.
        #: `_holder`: For each resource, the send whose interval ends then.
        self._until, self._holder = np.full(num_resources, -NEVER), np.full(num_resources, -1)
        self._waiting: tuple[NDArray[np.int64], ...] = (np.zeros(0, np.int64),) * 4
        self._clashes: list[NDArray[np.int64]] = []

    def note(self, block: Block) -> None:
        """Add the hold intervals of a block's sends to the sweep, and keep the overlaps that it finds."""
        after = block.first + len(block.chunk)
        next_start = int(self._columns.start[after]) if after < len(self._columns) else NEVER
        held, count = (self._held if self._columns.is_sorted else self._listed)(block)
        begin = held.begin[:count]
        order = np.arange(count)
        if (begin[1:] < begin[:-1]).any():
            order = lexsort((begin,))
            begin = begin[order]
        final = int(np.searchsorted(begin, next_start))
        if not (self._columns.is_sorted and self._is_clear(held, order[:final])):
            clashes, state = np.empty((MOST_LISTED + 1, 5), np.int64), (self._until, self._holder)
            found = fitted(sweep, self._columns.is_large)(held, order[:final], *state, clashes)
            self._clashes.append(clashes[:found].copy())
        self._waiting = tuple(column[order[final:]] for column in held)

    def _listed(self, block: Block) -> tuple[Held, int]:
        """(intervals that wait and those of a block's sends, in columns with spare rows, their number)."""
        count = len(self._waiting[0])
        held = Held(*np.empty((4, count + len(block.chunk) * self._most_holds), np.int64))
        for column, waiting in zip(held, self._waiting, strict=True):
            column[:count] = waiting
        return held, fitted(list_holds, self._columns.is_large)(block, self._holds, held, count)

    def _held(self, block: Block) -> tuple[Held, int]:
        """Intervals as of `_listed`, computed by arrays without a loop."""
        holds, sent = self._holds, np.flatnonzero(block.units >= 0)
        link = block.link[sent]
        row, at = ranges(holds.of_link[link], holds.of_link[link + 1])
        send = sent[row]
        length = -(-(holds.alpha[at] + block.units[send] * holds.beta[at]) // holds.divisor)
        begin = np.where(holds.receives[at], block.end[send] - length, block.start[send])
        columns = holds.resource[at], begin, begin + length, block.first + send
        held = Held(*map(np.append, self._waiting, columns))
        return held, len(held.begin)

    def _is_clear(self, held: Held, order: NDArray[np.int64]) -> bool:
        """True if no intervals of a resource overlap; they are then swept.

        - `order`: Rows of `held` in order of start.
        """
        rows = order[lexsort((held.resource[order],))]
        resource, begin, until = held.resource[rows], held.begin[rows], held.until[rows]
        is_first = np.diff(resource, prepend=-1) != 0
        before = np.where(is_first, self._until[resource], np.append(-NEVER, until[:-1]))
        if (begin < before).any():
            return False
        last = np.flatnonzero(np.append(is_first[1:], True))[: len(rows)]
        self._until[resource[last]], self._holder[resource[last]] = until[last], held.send[rows[last]]
        return True

    def report(self, findings: Findings) -> None:
        """Report sends that begin to hold a resource before another send has released it."""
        columns, us = self._columns, self._columns.ticks.us
        clashes = np.concatenate([np.zeros((0, 5), np.int64), *self._clashes])
        order = lexsort((clashes[:, 2], clashes[:, 1], clashes[:, 0]))
        for resource, begin, send, other, until in clashes[order].tolist():
            findings.report(
                "contention",
                f"holds {columns.topology.resources[resource].name} from {us(begin)} us, which chunk "
                f"{columns.chunk[other]} over {findings.link_text(int(columns.link[other]))} holds until "
                f"{us(until)} us",
                send,
            )
