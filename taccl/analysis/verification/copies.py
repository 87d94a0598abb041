"""Location of data in a collective that copies: from when on each rank holds each chunk."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from taccl.analysis.verification.arrival_table import ArrivalTable
from taccl.analysis.verification.columns import BLOCK, Block, Columns, pairs
from taccl.analysis.verification.findings import MOST_LISTED, Findings
from taccl.analysis.verification.loops import Arrivals, fitted, replay_copies


class Copies:
    """Replay of copies: a rank holds a chunk from its first arrival, its release date or its derivation on.

    - `num_redundant`: Arrivals that bring a rank what it holds by then, or derives as early.
    """

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        release = self._release = {
            (chunk, rank): math.ceil(us * columns.ticks.per_us)
            for chunk, rank, us in columns.problem.release_us
        }
        derivations = columns.collective.derivations
        derived = [(c, each.rank) for each in derivations for c in (each.source, each.chunk)]
        self.table = ArrivalTable(columns, derived, _longest(columns, release))
        places = [self.table.at(*key) for key in release]
        self.table.since[places] = list(release.values())
        words = self.table.since.view(np.int32).reshape(len(self.table.since), -1)
        self._arrivals = Arrivals(
            self.table.num_ranks, self.table.keys, self.table.first, words, self.table.never
        )
        self._reducing: list[int] = []
        self._absent: list[NDArray[np.int64]] = []
        self.num_redundant = 0
        self._is_known = bool(derivations)  # arrivals are known before sends are judged
        if self._is_known:
            for block in columns.blocks():
                self.num_redundant += self._replay(block)
            self._absent.clear()
            self.num_redundant += self._derive() - self._num_before_release()

    def note(self, block: Block) -> None:
        """Replay a block of sends, in order of start."""
        if self._columns.reduces_any and len(self._reducing) <= MOST_LISTED:
            self._reducing += (block.first + np.flatnonzero(self._columns.adds(block.rows))).tolist()
        num_redundant = self._replay(block)
        self.num_redundant += 0 if self._is_known else num_redundant

    def report(self, findings: Findings) -> None:
        """Report reductions, sources without their chunk, and destinations that end without it."""
        columns, links = self._columns, self._columns.topology.links
        for i in self._reducing:
            text = f"is reduced, but nothing is reduced on its way in {columns.collective.name}"
            findings.report("reduce", text, i, rank=links[int(columns.link[i])].dst)
        for i, rank in np.concatenate([np.zeros((0, 2), np.int64), *self._absent]).tolist():
            chunk = int(columns.chunk[i])
            if (chunk, rank) not in self._release:  # otherwise the release dates are checked
                since = int(self.table.since[self.table.at(chunk, rank)])
                when = "never" if since == self.table.never else f"only from {columns.ticks.us(since)} us"
                findings.report("presence", f"rank {rank} holds the chunk {when}", i, rank=rank)
        self._report_undelivered(findings)
        self.num_redundant -= 0 if self._is_known else self._num_before_release()

    def _replay(self, block: Block) -> int:
        """Enter the arrivals of a block, and note absent sources; return the number of redundant arrivals."""
        absent = np.empty((MOST_LISTED + 1, 2), np.int64)
        replay = fitted(replay_copies, self._columns.is_large)
        num_absent, num_redundant = replay(block, self._columns.ends, self._arrivals, absent)
        self._absent.append(absent[:num_absent].copy())
        return int(num_redundant)

    def _derive(self) -> int:
        """Enter derived chunks, chains included; return how many were delivered no earlier than derived."""
        table, since = self.table, self.table.since
        makes: dict[int, list[int]] = defaultdict(list)
        for each in self._columns.collective.derivations:
            makes[table.at(each.source, each.rank)].append(table.at(each.chunk, each.rank))
        made: dict[int, int] = {}
        brought = {place: int(since[place]) for derived in makes.values() for place in derived}
        waiting = [place for place in makes if since[place] != table.never]
        while waiting:
            source = waiting.pop()
            for place in makes[source]:
                made[place] = min(int(since[source]), made.get(place, table.never))
                if since[source] < since[place]:
                    since[place] = since[source]
                    if place in makes:
                        waiting.append(place)
        return sum(made[place] <= brought[place] < table.never for place in made)

    def _num_before_release(self) -> int:
        """Number of first arrivals before the release date of what the rank has by itself."""
        return sum(
            int(self.table.since[self.table.at(*key)]) < release for key, release in self._release.items()
        )

    def _report_undelivered(self, findings: Findings) -> None:
        destinations = [data.destinations for data in self._columns.collective.chunks]
        until = np.cumsum([0, *map(len, destinations)])
        first = 0
        while first < len(destinations):
            last = max(first + 1, int(np.searchsorted(until, until[first] + BLOCK)))
            chunk, rank = pairs(destinations[first:last], first=first)
            never = self.table.since[self.table.of(chunk, rank)] == self.table.never
            for at in np.flatnonzero(never).tolist():
                findings.report(
                    "postcondition", "the chunk never arrives", rank=int(rank[at]), chunk=int(chunk[at])
                )
            first = last


def _longest(columns: Columns, release: dict[tuple[int, int], int]) -> int:
    """Bound on the distance of all times from 0, in ticks."""
    bounds = [0, *release.values()]
    if len(columns):
        latest = int(columns.start.max())
        if columns.end is not None:
            latest = int(columns.end.max())
        else:
            ticks = columns.ticks
            latest += int(ticks.latency(slice(None), ticks.chunk_units.max()).max())
        bounds += [latest, -int(columns.start.min())]
    return max(bounds)
