"""The spread-tail bound: the last chunks to enter sets of ranks must still spread inside them.

For any order of the sends into the sets, two limits apply to the last k entries. They end no sooner than the
border resources can have let in all but k - 1 entries. Nor do they end before enough ranks can have had
chunks to send. Until then, no rank of a set holds any of these k entries. Each rank that wants one must then
get it, over the border or from a rank of its set that has it. A chunk that arrives at a rank adds one sender
at most. Ranks far from the entry point get it later.
"""

# n chunks that enter, once for each set, k the last of them; a pair is one of these and a rank that wants it

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import chain, islice, repeat

import numpy as np
from numpy.typing import NDArray

from taccl._internal.units import part_of
from taccl.analysis.certificates.evaluation.arrivals import (
    Fastest,
    fastest,
    into_sets,
    of_most,
    reached,
    sent,
)
from taccl.analysis.certificates.evaluation.facts import NEVER, Facts
from taccl.analysis.certificates.evaluation.passages import passages, passages_of
from taccl.analysis.certificates.finding.gates import (
    FOREVER,
    GateCosts,
    Gates,
    Ints,
    fastest_senders,
    gates_of,
    nearest,
    sends_of,
    waking,
)
from taccl.analysis.certificates.finding.needed_sends import NeededSends
from taccl.analysis.certificates.finding.volume import set_of_rank
from taccl.analysis.certificates.witness import Claim, Witness
from taccl.problem.problem import Problem

#: Numbers of last chunks to try: every number up to the first value, some up to the second.
_EVERY, _MOST = 16, 256
#: Max thresholds to try for the number of ranks that want a chunk.
_MOST_SIZES = 4
#: Max contributions of one rank to sums, times the other ranks, each of which is a set.
_MOST_BY_RANK = 128
#: Max pairs of an entry and a rank for which distances from entries are used.
_MOST_WAYS = 2_000_000


#: Max ranks, and max pairs of an entry and a rank, for which evaluations use distances from entries.
_MOST_CHECKED_RANKS, _MOST_CHECKED_WAYS = 4_000, 4_000_000

#: Gates by sender, and the times from which the senders hold data.
Fed = list[tuple[Gates, list[int]]]


@dataclass(frozen=True, slots=True)
class SpreadTail(Witness):
    """The last chunks to enter sets, among those that at least `least` ranks of a set want.

    - `last`: Number of these chunks.
    - `backwards`: True for the time-reversed problem.
    """

    kind = proves = "spread tail"
    sets: tuple[frozenset[int], ...]
    least: int
    last: int
    backwards: bool = False

    def fits(self, problem: Problem) -> bool:
        """True if the witness names only what the problem has, and nothing twice."""
        return frozenset().union(*self.sets) <= frozenset(range(problem.topology.num_ranks))

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        return ticks <= facts.rounded(_spreads_late(facts, self))


def spread_tail_bounds(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Yield claims for every node up to symmetry, and for all initially empty ranks or nodes.

    For a sum, contributions of outside ranks count as chunks.
    """
    if demand.spreads_alike(in_network=in_network):
        for needed, backwards in demand.both_ways():
            yield from _bounds(needed, backwards=backwards)


def _bounds(demand: NeededSends, *, backwards: bool) -> Iterator[Claim]:
    origins = frozenset().union(*(kind.data.origins for kind in demand.classes))
    choices: dict[tuple[frozenset[int], ...], str] = {}
    if demand.topology.num_nodes > 1:
        for ranks in demand.different(demand.families[1][1]):
            choices[ranks,] = f"node {demand.topology.node_of_rank[min(ranks)]}"
    for name, family in demand.families:
        empty = tuple(ranks for ranks in family if ranks.isdisjoint(origins))
        if empty:
            choices.setdefault((frozenset().union(*empty),), f"empty {name}s")
            if name == "node":
                choices.setdefault(empty, f"empty {name}s one by one")
    others = demand.topology.num_ranks - 1
    if demand.sums_for_all and demand.classes.total() * others <= _MOST_BY_RANK:
        source = min(origins)
        rest = tuple(ranks for ranks in demand.families[0][1] if source not in ranks)
        choices[rest] = f"ranks other than {source}, one by one"
    for sets, into in choices.items():
        demand.deadline.check()
        sizes, release, first, wanting = _entering(demand, sets)
        if not sizes:
            continue
        spread = TailSpread(demand.costs, sets, release, first, wanting)
        for least in sorted(set(sizes), reverse=True)[:_MOST_SIZES]:
            some = [size for size in sizes if size >= least]
            ticks, last = spread.best(some)
            those, s = part_of("last", last, len(some), "chunk", "chunks"), "s" * (last == 1)
            what = f"{those} to enter {into}, which then spread{s} to {least} ranks or more of it"
            if least == 1:
                what = f"{those} to enter {into}, which must then get to ranks that want them there"
            if backwards:
                what = f"reversed in time, {what}"
            yield Claim(ticks, what, SpreadTail(sets, least, last, backwards))


def _entering(
    demand: NeededSends, sets: tuple[frozenset[int], ...]
) -> tuple[list[int], Ints, frozenset[int], frozenset[int]]:
    """(sizes, release, first, wanting) of the entries into the sets.

    - `sizes`: Number of ranks in a set that want a chunk, for each entry, ascending.
    - `release`, (num_links,) int64: Earliest time at which each link can carry one of the chunks.
    - `first`: Ranks outside that initially hold some of the chunks.
    - `wanting`: Ranks of the sets that want some of the chunks.
    """
    every = frozenset().union(*sets)
    starts = {
        kind: others
        for kind, others in demand.outside(every).items()
        if not every.isdisjoint(kind.data.destinations)
    }
    sizes: list[int] = []
    for kind in starts:
        wanted = (len(ranks.intersection(kind.data.destinations)) for ranks in sets)
        sizes += [number for number in wanted if number] * demand.classes[kind]
    wanting = every.intersection(chain.from_iterable(kind.data.destinations for kind in starts))
    return sorted(sizes), demand.first_uses(starts), frozenset().union(*starts.values()), wanting


class TailSpread:
    """Rate at which chunks can enter sets of ranks, and spread inside.

    - `release`, (num_links,) int64: Earliest time at which each link can carry a chunk.
    - `first`: Ranks outside that initially hold data. Default: all, so that no rank waits for data.
    - `wanting`: Ranks that want some of the chunks. Default: all.
    """

    def __init__(
        self,
        costs: GateCosts,
        sets: Sequence[frozenset[int]],
        release: Ints,
        first: frozenset[int] | None = None,
        wanting: frozenset[int] | None = None,
    ) -> None:
        label = set_of_rank(costs.num_ranks, sets)
        used, src, dst = release < FOREVER, label[costs.src], label[costs.dst]
        enters, inside = used & (dst >= 0) & (src != dst), used & (dst >= 0) & (src == dst)
        none = np.zeros(len(src), dtype=np.int64)

        def gates(chosen: NDArray[np.bool_], of_set: Ints, since: Ints | None = None) -> Gates:
            return gates_of(costs, np.flatnonzero(used & chosen), of_set, since)

        #: Gates of sends over a border: together, by set, by receiving rank; and of sends inside, by
        #: receiving rank.
        self.enter, self.into_set = gates(enters, none, release), gates(enters, dst)
        self.direct, self.inside = gates(enters, costs.dst, release), gates(inside, costs.dst)
        #: (num_ranks,) min ticks until 1, 2, ... ranks can hold a chunk that entered at one.
        self.near = nearest(costs, inside, costs.dst[enters], label >= 0)
        out = gates(inside, costs.src)
        self._wants = np.isin(np.arange(costs.num_ranks), list(wanting)) if wanting else label >= 0
        self._merges = out.most.max(initial=1) > 1
        self._senders = cache(lambda most: fastest_senders(out, most))
        #: Border sends from outside, and from other sets; each limited by sending rank, and together or by
        #: set.
        self._fed: list[Fed] = []
        outside, every = int(np.count_nonzero(label < 0)), int(np.count_nonzero(label >= 0))
        if first is not None and (len(sets) > 1 or len(first) < outside):
            took = costs.link_alpha + costs.link_beta
            awake = waking(
                fastest_senders(gates((src < 0) & (dst < 0), costs.src)), [0] * len(first), outside
            )
            # Once an entered chunk can be out again, all outside ranks count as holding data.
            again = sum(
                int(took[some].min(initial=FOREVER)) for some in (enters, used & (src >= 0) & (dst < 0))
            )
            border, onward = enters & (src < 0), enters & (src >= 0)
            early = [
                (gates(border, costs.src), [min(each, again) for each in awake]),
                (gates(border, none, release), [0]),
            ]
            wakes = fastest_senders(gates((src >= 0) & (dst >= 0), costs.src))
            late = waking(wakes, _entries(early, 1), every)
            reached = waking(fastest_senders(gates(onward, src)), _entries(early, 1), len(sets))
            self._fed = [early, [(gates(onward, costs.src), late), (gates(onward, src), reached)]]

    def best(self, sizes: Sequence[int]) -> tuple[int, int]:
        """(ticks, k) for the k last chunks that prove most; `sizes`: numbers of wanting ranks, ascending."""
        num, most = len(sizes), min(len(sizes), _MOST)
        pairs = np.cumsum(sizes[:most])
        entries = np.sort(self.enter.arrivals(num + int(pairs[-1])).ravel())[: num + int(pairs[-1])]
        if self._fed:  # a send carries each chunk once
            sent = chain(heapq.merge(*(_entries(fed, num) for fed in self._fed)), repeat(FOREVER))
            entries = np.maximum(entries, [*islice(sent, len(entries))])
        best, last = (0, 1), 0
        while last < most:
            last = min(most, last + 1 if last < _EVERY else last + last // 4)
            # Include all entries with the same earliest time as the last k.
            since = int(entries[num - last])
            last = min(most, num - int(np.searchsorted(entries, since)))
            into, wanting = self._into_ranks(last, since)
            wanted = int(pairs[last - 1])
            coming = np.maximum(
                entries[num - last :][: wanted + 1], since + self._into_sets(last, wanted + 1)
            )
            ticks = max(self._spread(coming, into, wanted, last), int(wanting[wanted - 1]))
            best = max(best, (ticks, last), key=lambda each: each[0])
        return best

    def _into_sets(self, last: int, num: int) -> Ints:
        """(num,) min ticks until 1, 2, ... entries of `last` chunks, each chunk once per set."""
        most = np.minimum(self.into_set.most, last)  # a send carries each chunk once
        times, of_set = replace(self.into_set, most=most).more_ends(num), self.into_set.of_set
        each = [np.sort(times[of_set == i], axis=None)[:num] for i in np.unique(of_set)]
        fastest = np.min(each, axis=0)
        return np.sort(np.repeat(fastest, min(last, len(each))))[:num]

    def _into_ranks(self, last: int, since: int) -> tuple[Ints, Ints]:
        """Earliest arrivals of `last` chunks at any ranks, and at those that want them, ascending.

        Sends from inside start at `since` or later, and those over a border end then or later.
        """
        rank = np.repeat(np.append(self.inside.of_set, self.direct.of_set), last)
        near = self.inside.arrivals(last) + since
        direct = np.maximum(self.direct.more_ends(last) + since, self.direct.arrivals(last))
        times = np.append(near, direct)
        order = np.lexsort((times, rank))
        rank, times = rank[order], times[order]
        place = np.arange(len(rank)) - np.searchsorted(rank, rank)
        first = place < last
        return np.sort(times[first]), np.sort(times[first & self._wants[rank]])

    def _spread(self, entries: Ints, into: Ints, pairs: int, last: int) -> int:
        """Earliest time of `pairs` pairs, made by entries and by ranks that hold a chunk by then."""
        senders = self._senders(last if self._merges else 1)
        soonest = np.maximum(into[:pairs], self._reached(entries, pairs)[: len(into)])
        awake = waking(senders, entries.tolist(), pairs, soonest=soonest.tolist(), num_senders=len(self.near))
        return awake[-1]

    def _reached(self, entries: Ints, pairs: int) -> Ints:
        """(pairs,) earliest times of 1, 2, ... pairs by the distance of ranks from the entries."""
        some = entries[:pairs]
        if not self.near.any() or len(some) * len(self.near) > _MOST_WAYS:
            return np.repeat(entries[:1], pairs)
        ways: Ints = np.sort((some[:, None] + self.near).ravel())[:pairs]
        return ways


def _entries(fed: Fed, most: int) -> Iterator[int]:
    """Earliest ends of successive entries, with at most `most` chunks per send."""
    return map(max, *(sends_of(fastest_senders(gates, most), when) for gates, when in fed))


def _spreads_late(facts: Facts, witness: SpreadTail) -> int:
    """Earliest time at which the last chunks to enter the sets can have spread there; 0 proves nothing."""
    if not facts.spreads_alike or len(frozenset().union(*witness.sets)) != sum(map(len, witness.sets)):
        return 0
    wanted, release, first, wanting = _entries_into(facts, witness.sets)
    wanted = sorted(each for each in wanted if each >= witness.least)
    if not 1 <= witness.last <= len(wanted):
        return 0
    inside = _Inside(facts, witness.sets, release)
    if not inside.border:
        return 0
    entries = inside.entries(first, len(wanted))
    since = next(islice(entries, len(wanted) - witness.last, None))  # when the first of the last enters
    return inside.spread(since, entries, witness.last, sum(wanted[: witness.last]), wanting)


class _Inside:
    """Sets of ranks, the links into them and inside, and the rate at which chunks can reach each rank."""

    def __init__(self, facts: Facts, sets: tuple[frozenset[int], ...], release: dict[int, int]) -> None:
        self.facts, self.sets, self.release = facts, sets, release
        self.set_of = {r: i for i, ranks in enumerate(sets) for r in ranks}
        self.inside = self._links(lambda a, b: a == b is not None)
        self.border = self._links(lambda a, b: a != b is not None)
        self._near = passages_of(facts, self.inside, facts.dst)
        self._direct = passages_of(facts, self.border, facts.dst, release)

    def entries(self, first: frozenset[int], chunks: int) -> Iterator[int]:
        """Earliest arrivals of the first, second, ... of `chunks` entries.

        - `first`: Ranks outside the sets that hold some chunk initially.
        """
        let_in = heapq.merge(*(way.ends(0) for way in passages(self.facts, self.border, self.release)))
        others = self.facts.topology.num_ranks - len(self.set_of)
        if len(self.sets) == 1 and len(first) >= others:
            return let_in
        back = self._links(lambda a, b: a is not None and b is None)
        out_and_in = ((self.facts.took(e, self.facts.units[0]) for e in some) for some in (back, self.border))
        again = sum(min(ticks, default=NEVER) for ticks in out_and_in)
        waking = reached(self._fastest(self._links(lambda a, b: a is b is None), 1), [0] * len(first), others)
        early = self._links(lambda a, b: a is None and b is not None)
        woken = [min(when, again) for when in waking]

        def from_early(most: int) -> Iterator[int]:
            by_all = heapq.merge(
                *(of_most(way, most).ends(0) for way in passages(self.facts, early, self.release))
            )
            return map(max, by_all, sent(self._fastest(early, most), woken))

        onward = self._links(lambda a, b: None is not a != b is not None)
        later = self._links(lambda a, b: a is not None and b is not None)
        ranks = reached(self._fastest(later, 1), from_early(1), len(self.set_of))
        sets = reached(self._fastest(onward, 1, of=self.set_of), from_early(1), len(self.sets))
        by_ranks = sent(self._fastest(onward, chunks), ranks)
        by_sets = sent(self._fastest(onward, chunks, of=self.set_of), sets)
        every = heapq.merge(from_early(chunks), map(max, by_ranks, by_sets))
        return map(max, let_in, chain(every, repeat(NEVER)))

    def spread(
        self, since: int, entries: Iterator[int], last: int, pairs: int, wanting: frozenset[int]
    ) -> int:
        """Earliest time of `pairs` pairs of the last `last` chunks, none of which entered before `since`.

        - `wanting`: Ranks that want some of the chunks.
        """
        room = {rank: self._room(rank, since, last) for rank in self.set_of}
        label = [self.set_of.get(rank, -1) for rank in self.facts.dst]
        into = passages_of(self.facts, self.border, label).values()
        entered = [*map(max, (since, *islice(entries, pairs)), into_sets(into, since, last))]
        within_reach = map(max, sorted(chain.from_iterable(room.values())), self._in_reach(entered, pairs))
        senders = self._fastest(self.inside, last)
        there = reached(senders, entered, pairs, room=within_reach, num_senders=len(self.set_of))
        taken = sorted(chain.from_iterable(room[rank] for rank in wanting))[:pairs]
        return max([*there, *taken], default=0)

    def _room(self, rank: int, since: int, last: int) -> list[int]:
        """Earliest arrivals of `last` chunks at a rank: sends inside start, and others end, since a time."""
        times = [way.ends(since) for way in self._near.get(rank, ())]
        for way in self._direct.get(rank, ()):
            times.append(map(max, way.ends_since(since), way.ends(0)))
        return list(islice(heapq.merge(*times), last))

    def _in_reach(self, entered: list[int], pairs: int) -> Iterator[int]:
        """Earliest times of the first, second, ... pair by the distance of ranks from the entered chunks."""
        num = len(self.set_of)
        if num > _MOST_CHECKED_RANKS or num * pairs > _MOST_CHECKED_WAYS:
            return repeat(entered[0])
        nearest = self.facts.nearest(self.inside, {self.facts.dst[e] for e in self.border})
        return chain(sorted(when + way for when in entered[:pairs] for way in nearest), repeat(NEVER))

    def _links(self, belongs: Callable[[int | None, int | None], bool]) -> list[int]:
        """Usable links whose ends satisfy `belongs`, given the indices of their sets; None: in no set."""
        src, dst, set_of = self.facts.src, self.facts.dst, self.set_of
        return [e for e in self.release if belongs(set_of.get(src[e]), set_of.get(dst[e]))]

    def _fastest(self, links: list[int], most: int, *, of: Mapping[int, int] | None = None) -> list[Fastest]:
        """Component-wise fastest sender of all ranks, or sets, in sends of at most `most` chunks."""
        label = [rank if of is None else of.get(rank, -1) for rank in self.facts.src]
        return fastest(passages_of(self.facts, links, label).values(), most)


def _entries_into(
    facts: Facts, sets: tuple[frozenset[int], ...]
) -> tuple[list[int], dict[int, int], frozenset[int], frozenset[int]]:
    """(ranks that want each entry, link releases, first outside holders, ranks that want some entry)."""
    every, wanted, starts, wanting = frozenset().union(*sets), list[int](), [], set[int]()
    for c, others in facts.outside(every):
        ends = every.intersection(facts.collective.chunks[c].destinations)
        if ends:
            wanted += [len(ranks & ends) for ranks in sets if ranks & ends]
            starts.append((c, others))
            wanting |= ends
    first = frozenset().union(*(others for _, others in starts))
    return wanted, facts.releases(starts), first, frozenset(wanting)
