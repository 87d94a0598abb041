"""Volume that must cross the border of a set of ranks, and ticks for which a unit of it holds resources.

Volume is counted in chunks if all chunks have one size and data is not divisible, otherwise in units of data.
A piece is the largest volume of an unmerged send: one chunk, or, if data is divisible, all chunks with equal
origins and destinations. A merged send carries several pieces, but at most all data. A send pays alpha once,
so each unit of volume pays its share of the alpha of a full send: one piece, or all that a merged send can
carry.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arrays import distinct
from taccl._internal.caching import cached
from taccl.analysis.certificates.finding.distances import (
    Arcs,
    Distances,
    HeadsTails,
    arcs_of,
    heads_and_tails,
)
from taccl.problem.chunks import RankSets
from taccl.problem.costs import hold_columns, wide_links
from taccl.problem.problem import Problem

if TYPE_CHECKING:
    from taccl.analysis.certificates.finding.needed_sends import NeededSends

#: `_MOST_OF_BETA`: max product of `Volume.ticks_scale` and a beta, so that double precision is exact.
#: `_MOST_OF_ALPHA`: max product of `Volume.ticks_scale` and an alpha, so that it fits into 64 bits.
_MOST_OF_BETA, _MOST_OF_ALPHA = 2**31, 2**62
#: `_MOST_EXACT`: max sum of whole numbers that double precision adds exactly.
#: `_SPARSE`: max ratio of all (start set, destination set) pairs to those of chunks, to multiply matrices.
_MOST_EXACT, _SPARSE = 2**53, 4


class Volume:
    """Volume of a problem's chunks, and the ticks for which a unit of volume holds resources.

    - `problem`: A problem whose chunks are copied, or are summed for all ranks.
    - `divisible`: True if data may be cut arbitrarily.
    - `sends`: Needed sends of the problem, if they exist: the source of `distances` and `is_reversed`.
    """

    def __init__(self, problem: Problem, *, divisible: bool, sends: NeededSends | None = None) -> None:
        self.problem, self.divisible = problem, divisible
        self.distances = Distances(problem) if sends is None else sends.distances
        self.is_reversed = sends is not None and sends.is_reversed
        self.collective = problem.collective
        units = problem.costs.chunk_units
        self.spreads = not self.collective.sums_up
        self.by_chunk = not divisible and len(distinct(units)) == 1
        self.weight = np.ones(len(units), dtype=np.int64) if self.by_chunk else units
        self.total = int(self.weight.sum())
        #: Max volume of an unmerged send, which pays one alpha.
        self.piece = 1 if self.by_chunk else largest_piece(problem, divisible=divisible)
        #: Max volume of a merged send, which pays one alpha.
        self.merged_piece = max(self.piece, min(problem.clauses.max_merge * self.piece, self.total))
        #: Integer factor on ticks, which makes a unit's share of alpha whole, or nearly so.
        self.ticks_scale = self.merged_piece
        if not self.by_chunk:
            of_beta = _MOST_OF_BETA // int(problem.costs.hold_beta.max(initial=1))
            of_alpha = _MOST_OF_ALPHA // int(problem.costs.hold_alpha.max(initial=1))
            self.ticks_scale = max(1, min(self.ticks_scale, of_beta, of_alpha))

    @cached_property
    def holds(self) -> Arcs:
        """(link, resource, hold in ticks times `ticks_scale` per chunk, or per unit of data) columns.

        They are sorted by link. A link that holds a resource twice has one row, with the last of the holds.
        """
        columns, costs, clauses = (
            hold_columns(self.problem.topology),
            self.problem.costs,
            self.problem.clauses,
        )
        share = np.where(np.isin(columns.link, sorted(clauses.merging)), self.merged_piece, self.piece)
        ticks = self.ticks_scale * costs.hold_beta * (costs.chunk_units[0] if self.by_chunk else 1)
        ticks = ticks + self.ticks_scale * costs.hold_alpha // share
        order = np.argsort(columns.link, kind="stable")
        link, resource, ticks = columns.link[order], columns.resource[order], ticks[order]
        code = link * len(self.problem.topology.resources) + resource
        _, last = np.unique(code[::-1], return_index=True)
        if len(last) == len(code):
            return link, resource, ticks
        _, first, which = np.unique(code, return_index=True, return_inverse=True)
        ticks = ticks[len(code) - 1 - last[which]]
        first.sort()
        return link[first], resource[first], ticks[first]

    @cached_property
    def held(self) -> list[dict[int, int]]:
        """{resource: ticks for which a unit of volume holds it} for every link, as in `holds`."""
        table: list[dict[int, int]] = [{} for _ in self.problem.topology.links]
        for link, resource, ticks in zip(*(column.tolist() for column in self.holds), strict=True):
            table[link][resource] = ticks
        return table

    @cached_property
    def heads_tails(self) -> HeadsTails:
        """Heads and tails of holds: earliest start, and min ticks between the hold and the finish."""
        return heads_and_tails(self.distances, divisible=self.divisible)

    @cached_property
    def single_ended(self) -> bool:
        """True if every usable link joins one rank to one rank."""
        return set(wide_links(self.problem.topology)).isdisjoint(self.problem.links_allowed)

    @property
    def _starts(self) -> RankSets:
        return self.collective.start_sets

    def needed(self, parts: Sequence[frozenset[int]]) -> int:
        """Min volume of the sends that enter a set of ranks, or that pass between the parts of a partition.

        A chunk that spreads enters a set that wants it and lacks it. A sum enters a set that wants it, unless
        all its contributions are inside. If k parts contribute to a sum and also want it, it needs 2(k - 1)
        sends between them. If servers update sums, contributions must reach the server, and the updated sum
        must come from there (`_needed_by_servers`).
        """
        if self.collective.updates:
            return self._needed_by_servers(parts)
        targets = self.collective.destination_sets
        if len(parts) > 1:
            inside = np.stack([self._starts.meeting(p) & targets.meeting(p) for p in parts])
            sharers = inside.sum(axis=0)
            return int((self.weight * np.maximum(0, 2 * (sharers - 1))).sum())
        ranks = parts[0]
        wants = targets.meeting(ranks)
        if self.spreads:
            return int(self.weight[wants & ~self._starts.meeting(ranks)].sum())
        rest = frozenset(range(self.collective.num_ranks)) - ranks
        return int(self.weight[wants & self._starts.meeting(rest)].sum())

    def _needed_by_servers(self, parts: Sequence[frozenset[int]]) -> int:
        """`needed` if servers update sums.

        Contributions enter a set that has the server, unless all are inside; they leave each part of a
        partition without it. Updated sums enter each set without the server that wants them.
        """
        starts, targets = self._starts, self.collective.destination_sets
        root = np.array([chunk.root for chunk in self.collective.chunks], np.int64)
        everyone, sends = frozenset(range(self.collective.num_ranks)), np.zeros(len(root), np.int64)
        for ranks in parts:
            has_server = np.isin(root, sorted(ranks))
            leaves = starts.meeting(ranks) & ~has_server
            enters = starts.meeting(everyone - ranks) & has_server
            sends += leaves if len(parts) > 1 else enters
            sends += targets.meeting(ranks) & ~has_server
        return int((self.weight * sends).sum())

    def entering_estimates(self, sets: Sequence[frozenset[int]]) -> NDArray[np.float64]:
        """(num_sets,) estimated ticks for the wanted volume to enter each of the disjoint sets of ranks.

        Data that starts inside counts, too, and links that share a resource count as independent.
        """
        problem, targets = self.problem, self.collective.destination_sets
        label = set_of_rank(problem.topology.num_ranks, sets)
        weights = np.bincount(targets.of_chunk, self.weight, len(targets.sets))
        wanted = np.zeros(len(sets) + 1)  # the last place is for ranks outside all sets
        for weight, ranks in zip(weights, targets.sets, strict=True):
            wanted[distinct(label[list(ranks)])] += weight
        link, _, ticks = self.holds
        slowest = np.zeros(len(problem.topology.links))
        np.maximum.at(slowest, link, ticks / self.ticks_scale)
        link, src, dst = _arcs(problem)
        crosses = (label[src] != label[dst]) & (label[dst] >= 0) & (slowest[link] > 0)
        rate = np.bincount(label[dst[crosses]], 1 / slowest[link[crosses]], len(sets))
        return np.divide(wanted[:-1], rate, out=np.zeros(len(sets)), where=rate > 0)

    @cached_property
    def _kinds(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Start set, destination set and volume of each kind of chunk, as (num_kinds,) columns.

        Chunks with the same starting ranks and destinations are of one kind.
        """
        ends = self.collective.destination_sets
        code = self._starts.of_chunk.astype(np.int64) * len(ends.sets) + ends.of_chunk
        kinds, kind_of = np.unique(code, return_inverse=True)
        weight = np.zeros(len(kinds), dtype=np.int64)
        np.add.at(weight, kind_of, self.weight)
        start, end = np.divmod(kinds, max(1, len(ends.sets)))
        return start, end, weight

    @cached_property
    def num_ends(self) -> int:
        """Number of origins plus destinations of chunks, with one chunk counted for each kind."""
        start, end, _ = self._kinds
        lengths = (
            np.array(list(map(len, each.sets)), np.int64)
            for each in (self._starts, self.collective.destination_sets)
        )
        return sum(int(length[kind].sum()) for length, kind in zip(lengths, (start, end), strict=True))

    @property
    def num_kinds(self) -> int:
        """Number of different pairs of starting ranks and destinations."""
        return len(self._kinds[2])

    def needed_in(self, sides: NDArray[np.bool_]) -> NDArray[np.int64]:
        """(num_sets,) min volume of the sends into each set of ranks; see `needed`.

        - `sides`, (num_sets, num_ranks) bool: The sets.
        """
        if self.collective.updates:
            sets = (frozenset(np.flatnonzero(side).tolist()) for side in sides)
            return np.array([self._needed_by_servers((ranks,)) for ranks in sets], np.int64)
        start, end, weight = self._kinds
        wants = _meeting(self.collective.destination_sets, sides)
        starts = _meeting(self._starts, sides if self.spreads else ~sides)
        comes = ~starts if self.spreads else starts
        needed: NDArray[np.int64]
        if self.total > _MOST_EXACT or len(starts) * len(wants) > _SPARSE * len(weight):
            needed = weight @ (wants[end] & comes[start])
        else:
            table = np.zeros((len(wants), len(starts)))
            table[end, start] = weight
            needed = ((table @ comes.astype(float)) * wants).sum(axis=0).astype(np.int64)
        return needed

    def wanted_by(self, rank: int) -> NDArray[np.int64]:
        """(num_ranks,) volume that a rank lacks, by origin; chunks with several origins do not count."""
        one = frozenset((rank,))
        wants = self.collective.destination_sets.meeting(one) & ~self._starts.meeting(one)
        supply = np.zeros(self.collective.num_ranks, dtype=np.int64)
        for c in np.flatnonzero(wants).tolist():
            if len(starts := self.collective.starts[c]) == 1:
                supply[starts[0]] += self.weight[c]
        return supply


def _meeting(sets: RankSets, sides: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(num_sets, num_sides) True if a set of ranks contains at least one rank of a side."""
    found = np.zeros((len(sets.sets), len(sides)), bool)
    filled = [number for number, ranks in enumerate(sets.sets) if ranks]
    if filled:
        ranks = np.fromiter(chain.from_iterable(sets.sets), np.int64)
        first = np.cumsum([0, *(len(sets.sets[number]) for number in filled[:-1])])
        for side, inside in enumerate(sides):
            found[filled, side] = np.logical_or.reduceat(inside[ranks], first)
    return found


def largest_piece(problem: Problem, *, divisible: bool) -> int:
    """Max units in an unmerged send: one chunk, or all chunks with equal origins and destinations.

    The latter count if data is `divisible`, as another chunking may join them. For sums, it may join them
    even if their roots differ.
    """
    units, collective = problem.costs.chunk_units, problem.collective
    if divisible and len(units):
        both = collective.start_sets, collective.destination_sets
        start, end = map(_equal_sets, both)
        _, kind = np.unique(start * (end.max() + 1) + end, return_inverse=True)
        joined = np.zeros(kind.max() + 1, np.int64)
        np.add.at(joined, kind, units)
        units = joined
    return int(units.max()) if len(units) else 1


def _equal_sets(sets: RankSets) -> NDArray[np.int64]:
    """(num_chunks,) number of each chunk's set; sets of the same ranks have the same number."""
    number: dict[frozenset[int], int] = {}
    numbers = [number.setdefault(frozenset(ranks), len(number)) for ranks in sets.sets]
    return np.array(numbers, np.int64)[sets.of_chunk]


def crossing_links(
    problem: Problem, parts: Sequence[frozenset[int]], *, entering: bool = True
) -> NDArray[np.int64]:
    """Usable links that enter (or leave) a set of ranks, or that join two parts of a partition.

    A multicast or reduction link appears once for each pair of parts that it joins.
    """
    label = set_of_rank(problem.topology.num_ranks, parts)
    link, src, dst = _arcs(problem)
    a, b = (label[src], label[dst]) if entering else (label[dst], label[src])
    crosses = (a != b) & (b >= 0) & ((a >= 0) | (len(parts) == 1))
    count = len(parts) + 1
    pairs = distinct((link[crosses] * count + a[crosses] + 1) * count + b[crosses])
    found: NDArray[np.int64] = pairs // count**2
    return found


def cover_of(held: Sequence[Mapping[int, object]], links: Iterable[int]) -> list[tuple[int, list[int]]]:
    """Greedy cover of links: [(resource, the links that it covers), ...]; empty if links remain uncovered.

    The next resource is always the one that the most uncovered links hold.

    - `held`: Resources that each link holds, as keys.
    """
    left, users = set(links), defaultdict[int, set[int]](set)
    for e in left:
        for resource in held[e]:
            users[resource].add(e)
    queue = [(-len(mine), resource) for resource, mine in users.items()]
    heapq.heapify(queue)
    cover: list[tuple[int, list[int]]] = []
    while left and queue:
        size, resource = heapq.heappop(queue)
        mine = users[resource] & left
        if len(mine) < -size:
            heapq.heappush(queue, (-len(mine), resource))
        elif mine:
            cover.append((resource, sorted(mine)))
            left -= mine
    return [] if left else cover


def set_of_rank(num_ranks: int, sets: Sequence[frozenset[int]]) -> NDArray[np.int64]:
    """(num_ranks,) index of the set that contains each rank; -1 if none does."""
    number = np.full(num_ranks, -1)
    for i, ranks in enumerate(sets):
        number[list(ranks)] = i
    return number


@cached
def _arcs(problem: Problem) -> Arcs:
    return arcs_of(problem, problem.links_allowed)
