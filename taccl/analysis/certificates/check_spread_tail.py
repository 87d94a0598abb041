"""Checks spread tails: pair after pair of a chunk and a rank, as early as each can come about."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, count, islice

from taccl.analysis.certificates.check_facts import Facts
from taccl.analysis.certificates.check_gates import Passage, passages
from taccl.analysis.certificates.witnesses import SpreadTail

#: What never comes.
NEVER = 2**62


def spreads_late(facts: Facts, witness: SpreadTail) -> int:
    """When the last chunks that enter the set can have spread in it at the earliest; 0 says nothing."""
    if not facts.spreads_alike:
        return 0
    ranks = witness.ranks
    wanted, release, first = _entering(facts, ranks)
    wanted = sorted(each for each in wanted if each >= witness.least)
    if not 1 <= witness.last <= len(wanted):
        return 0
    inside = _Inside(facts, ranks, release)
    if not inside.border:
        return 0
    entries = inside.entries(first, len(wanted))
    since = next(islice(entries, len(wanted) - witness.last, None))  # the first of the last ones is in
    return inside.spread(since, entries, witness.last, sum(wanted[: witness.last]))


def spread_after(
    facts: Facts, ranks: frozenset[int], release: dict[int, int], wanted: list[int], last: int
) -> int:
    """How long so many entries at least take to spread in a set after a moment at which none is in."""
    inside = _Inside(facts, ranks, release)
    if not inside.border:
        return 0
    # A send has each of the chunks but once.
    later = heapq.merge(*(_of_most(gate, last).ends_since(0) for gate in inside.gates))
    return inside.spread(next(later), later, last, sum(sorted(wanted)[:last]))


class _Inside:
    """A set of ranks, the links into it and inside, and how fast chunks can come to each rank."""

    def __init__(self, facts: Facts, ranks: frozenset[int], release: dict[int, int]) -> None:
        links = facts.topology.links
        self.facts, self.ranks, self.release = facts, ranks, release
        self.inside = [e for e in release if links[e].dst in ranks and links[e].src in ranks]
        self.border = [e for e in release if links[e].dst in ranks and links[e].src not in ranks]
        self.at_once = dict.fromkeys(release, 0)
        self.gates = passages(facts, self.border, release)

    def entries(self, first: frozenset[int], chunks: int) -> Iterator[int]:
        """When at the earliest one entry after another is in, of so many chunks.

        - `first`: The ranks outside that have some at first.
        """
        let_in = heapq.merge(*(gate.ends(0) for gate in self.gates))
        others = self.facts.topology.num_ranks - len(self.ranks)
        if len(first) >= others:
            return let_in
        links = self.facts.topology.links
        outside = [
            e for e in self.release if links[e].src not in self.ranks and links[e].dst not in self.ranks
        ]
        back = [e for e in self.release if links[e].src in self.ranks and links[e].dst not in self.ranks]
        waking = reached(self._senders(outside, 1), len(first), others)
        out_again = min(map(self._took, self.border)) + min(map(self._took, back), default=NEVER)
        senders = self._senders(self.border, chunks)
        sent = heapq.merge(*(each.since(min(when, out_again)) for when in waking for each in senders))
        return map(max, let_in, sent)

    def _took(self, e: int) -> int:
        """How long a chunk takes over a link; of one into the set, from 0 on."""
        took: int = self.facts.alpha[e] + self.facts.units[0] * self.facts.beta[e]
        return took + (self.release[e] if self.facts.topology.links[e].dst in self.ranks else 0)

    def _senders(self, links: list[int], most: int) -> list[Fastest]:
        """The ways of a rank that sends no slower than any, over some links, so many chunks at a time."""
        sending: dict[int, list[int]] = defaultdict(list)
        for e in links:
            sending[self.facts.topology.links[e].src].append(e)
        return fastest([passages(self.facts, some, self.at_once) for some in sending.values()], most)

    def spread(self, since: int, entries: Iterator[int], last: int, pairs: int) -> int:
        """When so many pairs can be there, of so many chunks of which none was in before a moment."""
        facts, links = self.facts, self.facts.topology.links
        coming: dict[int, list[int]] = defaultdict(list)
        for e in self.inside + self.border:
            coming[links[e].dst].append(e)
        room: list[int] = []
        for some in coming.values():
            near, far = (
                passages(facts, [e for e in some if (links[e].src in self.ranks) is is_near], self.at_once)
                for is_near in (True, False)
            )
            times = (*(gate.ends(since) for gate in near), *(gate.ends_since(since) for gate in far))
            room += islice(heapq.merge(*times), last)
        fast = self._senders(self.inside, last)
        return _spread(since, entries, sorted(room), fast, len(self.ranks), pairs)


def _entering(facts: Facts, ranks: frozenset[int]) -> tuple[list[int], dict[int, int], frozenset[int]]:
    """By how many of the ranks each chunk is wanted that must enter them.

    And when links can have one, and which ranks do at first.
    """
    wanted, starts = [], []
    for c, data in enumerate(facts.collective.chunks):
        outside, ends = set(data.origins) - ranks, ranks.intersection(data.destinations)
        if outside and ends and (facts.sums or ranks.isdisjoint(data.origins)):
            wanted.append(len(ends))
            starts.append((c, outside))
    return wanted, facts.releases(starts), frozenset().union(*(outside for _, outside in starts))


def _of_most(passage: Passage, most: int) -> Passage:
    """The same for sends of so many chunks at most."""
    return replace(passage, most=min(passage.most, most), after=passage.after[:most])


class Fastest:
    """The best of some passages: when chunk after chunk comes that a rank sends from some moment on."""

    def __init__(self, ways: Iterable[Passage]) -> None:
        self._coming = map(min, zip(*(way.ends(0) for way in ways), strict=True))
        self._known: list[int] = []

    def since(self, moment: int) -> Iterator[int]:
        """When they come, from a moment on."""
        for i in count():
            if i == len(self._known):
                self._known.append(next(self._coming))
            yield moment + self._known[i]


def fastest(senders: list[list[Passage]], most: int = 1) -> list[Fastest]:
    """The sends of a rank that is no slower than any, way by way, of so many chunks each at most."""
    ways: dict[int, set[Passage]] = defaultdict(set)
    for mine in senders:
        some = (_of_most(each, most) for each in mine)
        for place, way in enumerate(sorted(some, key=lambda p: (p.hold, p.before + p.after[0]))):
            ways[place].add(way)
    return [Fastest(some) for some in ways.values()]


def reached(fast: list[Fastest], at_first: int, num: int) -> list[int]:
    """When one rank after another can have been reached, so many at once; each then sends to others, too."""
    when = [0] * at_first
    coming = [each.since(0) for _ in when for each in fast]
    queue = [(next(each), i) for i, each in enumerate(coming)]
    heapq.heapify(queue)
    while queue and len(when) < num:
        now, i = queue[0]
        heapq.heapreplace(queue, (next(coming[i]), i))
        when.append(now)
        for each in fast:
            coming.append(each.since(now))
            heapq.heappush(queue, (next(coming[-1]), len(coming) - 1))
    return when + [NEVER] * (num - len(when))


def _spread(
    since: int,
    entries: Iterator[int],
    room: list[int],
    fast: list[Fastest],
    num_ranks: int,
    pairs: int,
) -> int:
    """When so many pairs are there: each wakes one more rank, which then sends whenever it can."""
    awake, now = 0, since
    sources: list[Iterator[int]] = [chain((since,), entries)]
    coming = [(next(sources[0]), 0)]  # when a chunk comes, and from which source
    for soonest in room[:pairs]:
        when, source = heapq.heappop(coming)
        heapq.heappush(coming, (next(sources[source]), source))
        now = max(when, soonest)
        if awake < num_ranks:
            awake += 1
            for each in fast:
                sources.append(each.since(now))
                heapq.heappush(coming, (next(sources[-1]), len(sources) - 1))
    return now
