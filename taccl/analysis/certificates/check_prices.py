"""Checks prices: what each send pays is added up link by link, as fractions.

How long each resource is idle at the beginning and at the end is worked out anew, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction

from taccl.analysis.certificates.check_facts import Facts, shortest_ways
from taccl.analysis.certificates.witnesses import CutDual, FlowDual


def cut_dual(facts: Facts, witness: CutDual) -> Fraction:
    """The bound in ticks that prices and charges prove; 0 if some send is charged more than it pays."""
    if min(witness.prices, default=0) < 0 or any(each.charge < 0 for each in witness.charges):
        return Fraction(0)
    pays = _pays(facts, witness.prices)
    asked = [Fraction(0)] * len(pays)
    need = Fraction(0)
    for each in witness.charges:
        part_of = {r: i for i, part in enumerate(each.parts) for r in part}
        if len(each.parts) > 1 and (facts.in_network or not facts.sums):
            return Fraction(0)
        if len(part_of) != sum(map(len, each.parts)):
            return Fraction(0)
        for e in facts.allowed:
            link = facts.topology.links[e]
            if len(each.parts) > 1:
                ends = {(part_of.get(src), part_of.get(dst)) for src in link.srcs for dst in link.dsts}
                crosses = sum(out != into for out, into in ends)
            else:
                crosses = any(r in part_of for r in link.dsts) and any(r not in part_of for r in link.srcs)
            asked[e] += crosses * each.charge
        need += each.charge * _needed(facts, each.parts)
    if any(asked[e] > pays[e] for e in facts.allowed):
        return Fraction(0)
    return _soonest(facts, witness.prices, [e for e in facts.allowed if asked[e]], need)


def flow_dual(facts: Facts, witness: FlowDual) -> Fraction:
    """The bound in ticks that prices prove when every chunk takes its cheapest path."""
    if min(witness.prices, default=0) < 0 or facts.sums or facts.collective.derivations:
        return Fraction(0)
    pays = _pays(facts, witness.prices)
    scale = facts.clauses.max_merge * _joined(facts)
    whole = [int(each * scale) for each in pays]
    total, known = 0, {}
    for c, data in enumerate(facts.collective.chunks):
        targets = set(data.destinations) - set(data.origins)
        if not targets or not data.origins:
            continue
        links = facts.carried(c)
        key = (data.origins, id(links))
        if key not in known:
            ways = facts.arcs({e: whole[e] for e in links})
            known[key] = shortest_ways(ways, dict.fromkeys(data.origins, 0))
        weight = 1 if facts.by_chunk else facts.units[c]
        total += weight * max(known[key].get(r, 0) for r in targets)
    return _soonest(facts, witness.prices, facts.allowed, Fraction(total, scale))


def _soonest(facts: Facts, prices: Sequence[int], links: Sequence[int], need: Fraction) -> Fraction:
    """When resources can have been held for as long as sends over the links pay for, at the earliest.

    By T each can have been held for T less the ticks for which it is idle, if that is positive.
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
    """For how long sends over the links that serve some chunk leave resources that they hold idle."""
    before: dict[int, int] = {}
    after: dict[int, int] = {}
    chosen = set(links)
    for some, units, first, last in _ways(facts):
        for e in chosen.intersection(some):
            begins = [first[r] for r in facts.topology.links[e].srcs if r in first]
            ends = [last[r] for r in facts.topology.links[e].dsts if r in last]
            for r, (alpha, beta, receives) in facts.holds[e].items() if begins and ends else ():
                if beta or alpha:
                    # Sends of more than this outlast their holds by no less.
                    rest = facts.alpha[e] - alpha + units * (facts.beta[e] - beta)
                    begin = min(begins) + (rest if receives else 0)
                    end = min(ends) + (0 if receives else rest)
                    before[r] = min(begin, before.get(r, begin))
                    after[r] = min(end, after.get(r, end))
    return {r: before[r] + after[r] for r in before}


def _ways(facts: Facts) -> Iterator[tuple[Sequence[int], int, dict[int, int], dict[int, int]]]:
    """(links, units, when a chunk can be at a rank, how long it then takes it to get where one is wanted).

    Of all chunks together that go over the same links and have the same size. One of which another is made
    is wanted there, too.
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


def _pays(facts: Facts, prices: Sequence[int]) -> list[Fraction]:
    """What a chunk (or, where sizes differ or data is divisible, a unit of it) pays on every link."""
    units, joined = facts.units[0] if facts.by_chunk else 1, _joined(facts)
    pays = []
    for e, held in enumerate(facts.holds):
        merges = facts.clauses.max_merge > 1 and e in facts.clauses.merging
        share = Fraction(1, joined * (facts.clauses.max_merge if merges else 1))
        total = Fraction(0)
        for resource, (alpha, beta, _) in held.items():
            total += prices[resource] * (alpha * share + beta * units)
        pays.append(total)
    return pays


def _joined(facts: Facts) -> int:
    """What one alpha sends at most: a chunk, or the units of the largest or of all that travel alike."""
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


def _needed(facts: Facts, parts: Sequence[frozenset[int]]) -> int:
    """The least volume of what enters a set, or what the parts of a partition must exchange."""
    volume = 0
    for c, (data, units) in enumerate(zip(facts.collective.chunks, facts.units, strict=True)):
        weight = 1 if facts.by_chunk else units
        starts, ends = set(data.origins), set(data.destinations)
        starts |= {facts.made_at[c].rank} if c in facts.made_at else set()
        if len(parts) > 1:
            sharers = sum(not part.isdisjoint(starts) and not part.isdisjoint(ends) for part in parts)
            volume += weight * max(0, 2 * (sharers - 1))
        elif ends.isdisjoint(parts[0]):
            continue
        elif starts - parts[0] if facts.sums else starts.isdisjoint(parts[0]):
            volume += weight
    return volume
