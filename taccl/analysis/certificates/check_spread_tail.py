"""Checks of spread tails: pairs of a chunk and a rank in sequence, each as early as possible."""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, count, islice, repeat

from taccl.analysis.certificates.check_facts import NEVER, Facts
from taccl.analysis.certificates.check_gates import GatePassage, passages, passages_of
from taccl.analysis.certificates.witnesses import SpreadTail

#: Max ranks, and max pairs of an entry and a rank, for which distances from entries are used.
_MOST_RANKS, _MOST_WAYS = 4_000, 4_000_000


def spreads_late(facts: Facts, witness: SpreadTail) -> int:
    """Earliest time at which the last chunks to enter the sets can have spread there; 0 proves nothing."""
    if not facts.spreads_alike or len(frozenset().union(*witness.sets)) != sum(map(len, witness.sets)):
        return 0
    wanted, release, first, wanting = _entering(facts, witness.sets)
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
            return map(max, by_all, _sent(self._fastest(early, most), woken))

        onward = self._links(lambda a, b: None is not a != b is not None)
        later = self._links(lambda a, b: a is not None and b is not None)
        ranks = reached(self._fastest(later, 1), from_early(1), len(self.set_of))
        sets = reached(self._fastest(onward, 1, of=self.set_of), from_early(1), len(self.sets))
        by_ranks = _sent(self._fastest(onward, chunks), ranks)
        by_sets = _sent(self._fastest(onward, chunks, of=self.set_of), sets)
        sent = heapq.merge(from_early(chunks), map(max, by_ranks, by_sets))
        return map(max, let_in, chain(sent, repeat(NEVER)))

    def spread(
        self, since: int, entries: Iterator[int], last: int, pairs: int, wanting: frozenset[int]
    ) -> int:
        """Earliest time of `pairs` pairs of the last `last` chunks, none of which entered before `since`.

        - `wanting`: Ranks that want some of the chunks.
        """
        room = {rank: self._room(rank, since, last) for rank in self.set_of}
        entered = [*map(max, (since, *islice(entries, pairs)), self._into_sets(since, last))]
        within_reach = map(max, sorted(chain.from_iterable(room.values())), self._in_reach(entered, pairs))
        senders = self._fastest(self.inside, last)
        there = reached(senders, entered, pairs, room=within_reach, num_senders=len(self.set_of))
        taken = sorted(chain.from_iterable(room[rank] for rank in wanting))[:pairs]
        return max([*there, *taken], default=0)

    def _room(self, rank: int, since: int, last: int) -> list[int]:
        """Earliest arrivals of `last` chunks at a rank.

        Sends inside a set start at `since` or later. Those over a border end then or later, and start when
        they can.
        """
        times = [way.ends(since) for way in self._near.get(rank, ())]
        for way in self._direct.get(rank, ()):
            times.append(map(max, way.ends_since(since), way.ends(0)))
        return list(islice(heapq.merge(*times), last))

    def _into_sets(self, since: int, last: int) -> Iterator[int]:
        """Earliest ends of the first, second, ... entry of `last` chunks, if each chunk enters a set once.

        Every set counts as one that admits at least as much as any set. A send carries a chunk once.
        """
        label = [self.set_of.get(rank, -1) for rank in self.facts.dst]
        into = passages_of(self.facts, self.border, label).values()
        sets = {frozenset(Counter(of_most(way, last) for way in ways).items()) for ways in into}
        merged = (
            heapq.merge(*(way.ends_since(since) for way, number in ways for _ in range(number)))
            for ways in sets
        )
        fastest = map(min, zip(*merged, strict=True))
        return (each for each in fastest for _ in range(min(last, len(into))))

    def _in_reach(self, entered: list[int], pairs: int) -> Iterator[int]:
        """Earliest times of the first, second, ... pair by the distance of ranks from the entered chunks."""
        num = len(self.set_of)
        if num > _MOST_RANKS or num * pairs > _MOST_WAYS:
            return repeat(entered[0])
        nearest = self.facts.nearest(self.inside, {self.facts.dst[e] for e in self.border})
        return chain(sorted(when + way for when in entered[:pairs] for way in nearest), repeat(NEVER))

    def _links(self, belongs: Callable[[int | None, int | None], bool]) -> list[int]:
        """Usable links whose ends satisfy `belongs`, given the indices of their sets; None: in no set."""
        src, dst, set_of = self.facts.src, self.facts.dst, self.set_of
        return [e for e in self.release if belongs(set_of.get(src[e]), set_of.get(dst[e]))]

    def _fastest(self, links: list[int], most: int, *, of: Mapping[int, int] | None = None) -> list[Fastest]:
        """Component-wise fastest sender of all ranks, or sets, over some links.

        A send carries at most `most` chunks.
        """
        label = [rank if of is None else of.get(rank, -1) for rank in self.facts.src]
        return fastest(passages_of(self.facts, links, label).values(), most)


def _entering(
    facts: Facts, sets: tuple[frozenset[int], ...]
) -> tuple[list[int], dict[int, int], frozenset[int], frozenset[int]]:
    """Entries into the sets: (numbers of wanting ranks, link releases, first outside holders, wanting ranks).

    The numbers are those of ranks of a set that want a chunk, for each set and each chunk that must enter it.
    """
    every, wanted, starts, wanting = frozenset().union(*sets), list[int](), [], set[int]()
    for c, others in facts.outside(every):
        ends = every.intersection(facts.collective.chunks[c].destinations)
        if ends:
            wanted += [len(ranks & ends) for ranks in sets if ranks & ends]
            starts.append((c, others))
            wanting |= ends
    first = frozenset().union(*(others for _, others in starts))
    return wanted, facts.releases(starts), first, frozenset(wanting)


def of_most(passage: GatePassage, most: int) -> GatePassage:
    """The same passage for sends of at most `most` chunks."""
    return replace(passage, most=min(passage.most, most), after=passage.after[:most])


class Fastest:
    """Best of several passages: earliest arrivals of successive chunks, sent from a given time on."""

    def __init__(self, ways: Iterable[GatePassage]) -> None:
        self._coming = map(min, zip(*(way.ends(0) for way in ways), strict=True))
        self._known: list[int] = []

    def since(self, moment: int) -> Iterator[int]:
        """Arrivals of successive chunks, sent from a given time on."""
        for i in count():
            if i == len(self._known):
                self._known.append(next(self._coming))
            yield moment + self._known[i]


def fastest(senders: Iterable[list[GatePassage]], most: int = 1) -> list[Fastest]:
    """Component-wise fastest sender, passage by passage, with at most `most` chunks per send."""
    ways: dict[int, set[GatePassage]] = defaultdict(set)
    for mine in senders:
        some = (of_most(each, most) for each in mine)
        for place, way in enumerate(sorted(some, key=lambda p: (p.hold, p.before + p.after[0]))):
            ways[place].add(way)
    return [Fastest(some) for some in ways.values()]


def _sent(fast: list[Fastest], awake: list[int]) -> Iterator[int]:
    """Merged arrivals of what all senders send, each from the time at which it holds something."""
    return heapq.merge(*(each.since(when) for when in awake if when < NEVER for each in fast))


def reached(
    fast: list[Fastest],
    woken: Iterable[int],
    num: int,
    *,
    room: Iterable[int] = repeat(0),
    num_senders: float = math.inf,
) -> list[int]:
    """Earliest times at which 1, 2, ..., num ranks can be reached, if each reached rank sends on.

    - `woken`: Times at which ranks are reached from elsewhere.
    - `room`: Earliest admissible times of the first, second, ... arrival.
    - `num_senders`: Max reached ranks that send.
    """
    sources: list[Iterator[int]] = [chain(woken, repeat(NEVER))]
    queue = [(next(sources[0]), 0)]
    when: list[int] = []
    for soonest in islice(room, num):
        now, source = queue[0]
        heapq.heapreplace(queue, (next(sources[source]), source))
        now = max(now, soonest)
        when.append(now)
        for each in fast if now < NEVER and len(when) <= num_senders else ():
            sources.append(each.since(now))
            heapq.heappush(queue, (next(sources[-1]), len(sources) - 1))
    return when
