"""Checks of dual prices: the payment of each send is added up link by link, in fractions.

The idle time of each resource at the start and at the end is recomputed, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction

from taccl.analysis.certificates.evaluation.facts import Facts


def soonest(facts: Facts, prices: Sequence[int], links: Sequence[int], need: Fraction) -> Fraction:
    """Earliest time by which resources can have been held for as long as sends over `links` pay for.

    Each resource can have been held by time T for T less its idle ticks, if that is positive.
    """
    idle = _idle(facts, links)
    events = sorted((idle[r], price) for r, price in enumerate(prices) if price and r in idle)
    if need <= 0 or not events:
        return Fraction(0)
    paid, rate, now = Fraction(0), 0, 0
    for when, price in events:
        more = rate * (when - now)
        if paid + more >= need:
            break
        paid, rate, now = paid + more, rate + price, when
    return now + (need - paid) / rate


def _idle(facts: Facts, links: Sequence[int]) -> dict[int, int]:
    """{resource: min idle ticks}, over the sends on `links` that serve some chunk."""
    before: dict[int, int] = {}
    after: dict[int, int] = {}
    chosen = set(links)
    for some, units, first, last in _ways(facts):
        for e in chosen.intersection(some):
            begins = [first[r] for r in facts.topology.links[e].srcs if r in first]
            ends = [last[r] for r in facts.topology.links[e].dsts if r in last]
            for r, (alpha, beta, receives) in facts.holds[e].items() if begins and ends else ():
                if beta or alpha:
                    # Larger sends outlast their holds by at least as much.
                    rest = facts.alpha[e] - alpha + units * (facts.beta[e] - beta)
                    begin = min(begins) + (rest if receives else 0)
                    end = min(ends) + (0 if receives else rest)
                    before[r] = min(begin, before.get(r, begin))
                    after[r] = min(end, after.get(r, end))
    return {r: before[r] + after[r] for r in before}


def _ways(facts: Facts) -> Iterator[tuple[Sequence[int], int, dict[int, int], dict[int, int]]]:
    """Yield (links, units, earliest time at each rank, least time left from each rank).

    Each item covers all chunks with the same links and size. A chunk that another is derived from is also
    wanted where the other is made.
    """
    makes: dict[int, set[int]] = defaultdict(set)
    for each in facts.collective.derivations:
        makes[each.source].add(each.rank)
    found: dict[tuple[int, int], tuple[list[int], dict[int, int], dict[int, int]]] = {}
    for c, data in enumerate(facts.collective.chunks):
        units = 0 if facts.divisible else facts.units[c]
        starts = facts.origins(c, 0 if facts.divisible else None)
        wanted = makes[c].union(data.destinations)
        if not facts.sums or len(starts) == 1:
            wanted -= starts.keys()
        if not starts or not wanted:
            continue
        links = facts.carried(c)
        _, first, last = found.setdefault((id(links), units), (links, {}, {}))
        for rank, when in starts.items():
            first[rank] = min(when, first.get(rank, when))
        last.update(dict.fromkeys(wanted, 0))
    for (_, units), (links, first, last) in found.items():
        yield links, units, facts.times(links, units, first), facts.times(links, units, last, backwards=True)


def pays(facts: Facts, prices: Sequence[int]) -> list[Fraction]:
    """Payment of a chunk on every link; of a unit of data if sizes differ or data is divisible."""
    units, most, most_merged = facts.units[0] if facts.by_chunk else 1, joined(facts), merged(facts)
    pays = []
    for e, held in enumerate(facts.holds):
        share = Fraction(1, most_merged if e in facts.clauses.merging else most)
        total = Fraction(0)
        for resource, (alpha, beta, _) in held.items():
            total += prices[resource] * (alpha * share + beta * units)
        pays.append(total)
    return pays


def merged(facts: Facts) -> int:
    """Max amount that one alpha can send where chunks merge: no more than all chunks together."""
    total = len(facts.units) if facts.by_chunk else sum(facts.units)
    return max(joined(facts), min(facts.clauses.max_merge * joined(facts), total))


def joined(facts: Facts) -> int:
    """Max amount that one alpha can send: one chunk if chunks count, otherwise units of data.

    The units are those of the largest chunk, or, if data is divisible, of all chunks with equal ends.
    """
    if facts.by_chunk:
        return 1
    largest: int = max(facts.units)
    if not facts.divisible:
        return largest
    sizes: dict[tuple[frozenset[int], frozenset[int]], int] = defaultdict(int)
    for c, (data, units) in enumerate(zip(facts.collective.chunks, facts.units, strict=True)):
        made = {facts.made_at[c].rank} if c in facts.made_at else set()
        sizes[frozenset(made.union(data.origins)), frozenset(data.destinations)] += units
    return max(largest, *sizes.values())
