"""Checks spread tails: pair after pair of a chunk and a rank, as early as each can come about."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from taccl.analysis.certificates.check_facts import Facts
from taccl.analysis.certificates.check_gates import Passage, passages
from taccl.analysis.certificates.witnesses import SpreadTail


def spreads_late(facts: Facts, witness: SpreadTail) -> int:
    """When the last chunks that enter the set can have spread in it at the earliest; 0 says nothing."""
    if not facts.spreads_alike:
        return 0
    ranks = witness.ranks
    wanted, release = _entering(facts, ranks)
    wanted = sorted(each for each in wanted if each >= witness.least)
    if not 1 <= witness.last <= len(wanted):
        return 0
    node = _Node(facts, ranks, release)
    if node.says_nothing:
        return 0
    entries = node.entries()
    since = next(islice(entries, len(wanted) - witness.last, None))  # the first of the last ones is in
    return node.spread(since, entries, witness.last, sum(wanted[: witness.last]))


def spread_after(
    facts: Facts, ranks: frozenset[int], release: dict[int, int], wanted: list[int], last: int
) -> int:
    """How long so many entries at least take to spread in a set after a moment at which none is in."""
    node = _Node(facts, ranks, release)
    if node.says_nothing:
        return 0
    # A send has each of the chunks but once.
    later = heapq.merge(*(replace(g, most=min(g.most, last)).ends_since(0) for g in node.gates))
    return node.spread(next(later), later, last, sum(sorted(wanted)[:last]))


class _Node:
    """A set of ranks, the links into it and inside, and how fast chunks can come to each rank."""

    def __init__(self, facts: Facts, ranks: frozenset[int], release: dict[int, int]) -> None:
        links = facts.topology.links
        self.facts, self.ranks = facts, ranks
        self.inside = [e for e in release if links[e].dst in ranks and links[e].src in ranks]
        self.border = [e for e in release if links[e].dst in ranks and links[e].src not in ranks]
        self.at_once = dict.fromkeys(release, 0)
        self.gates = passages(facts, self.border, release)

    @property
    def says_nothing(self) -> bool:
        """Whether sends inside may merge, or nothing can enter."""
        clauses = self.facts.clauses
        merges = clauses.max_merge > 1 and not clauses.merging.isdisjoint(self.inside)
        return merges or not self.border

    def entries(self) -> Iterator[int]:
        """When at the earliest one chunk after another is in."""
        return heapq.merge(*(gate.ends(0) for gate in self.gates))

    def spread(self, since: int, entries: Iterator[int], last: int, pairs: int) -> int:
        """When so many pairs can be there, of so many chunks of which none was in before a moment."""
        facts, links = self.facts, self.facts.topology.links
        sending: dict[int, list[int]] = defaultdict(list)
        coming: dict[int, list[int]] = defaultdict(list)
        for e in self.inside:
            sending[links[e].src].append(e)
        for e in self.inside + self.border:
            coming[links[e].dst].append(e)
        fast = fastest([passages(facts, some, self.at_once) for some in sending.values()])
        room: list[int] = []
        for some in coming.values():
            near, far = (
                passages(facts, [e for e in some if (links[e].src in self.ranks) is is_near], self.at_once)
                for is_near in (True, False)
            )
            times = (*(gate.ends(since) for gate in near), *(gate.ends_since(since) for gate in far))
            room += islice(heapq.merge(*times), last)
        return _spread(since, entries, sorted(room), fast, len(self.ranks), pairs)


def _entering(facts: Facts, ranks: frozenset[int]) -> tuple[list[int], dict[int, int]]:
    """By how many of the ranks each chunk is wanted that must enter them; when links can have one."""
    wanted, starts = [], []
    for c, data in enumerate(facts.collective.chunks):
        outside, ends = set(data.origins) - ranks, ranks.intersection(data.destinations)
        if outside and ends and (facts.sums or ranks.isdisjoint(data.origins)):
            wanted.append(len(ends))
            starts.append((c, outside))
    return wanted, facts.releases(starts)


def fastest(senders: list[list[Passage]]) -> list[tuple[int, int]]:
    """(soonest end, ticks to the next) of the sends of a rank that is no slower than any, way by way."""
    ways: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for mine in senders:
        for place, way in enumerate(sorted((p.hold, p.before + p.after[0]) for p in mine)):
            ways[place].append(way)
    return [(min(first for _, first in some), min(each for each, _ in some)) for some in ways.values()]


def _spread(
    since: int,
    entries: Iterator[int],
    room: list[int],
    fast: list[tuple[int, int]],
    num_ranks: int,
    pairs: int,
) -> int:
    """When so many pairs are there: each wakes one more rank, which then sends whenever it can."""
    awake, now = 0, since
    coming = [(since, 0)]  # when a chunk comes, and after how long the same sender's next; 0 is an entry
    for soonest in room[:pairs]:
        when, again = heapq.heappop(coming)
        heapq.heappush(coming, (when + again, again) if again else (next(entries), 0))
        now = max(when, soonest)
        if awake < num_ranks:
            awake += 1
            for first, every in fast:
                heapq.heappush(coming, (now + first, every))
    return now
