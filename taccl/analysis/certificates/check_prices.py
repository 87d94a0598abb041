"""Checks of dual prices: the payment of each send is added up link by link, in fractions.

The idle time of each resource at the start and at the end is recomputed, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction

from taccl.analysis.certificates.check_facts import Facts, shortest_ways
from taccl.analysis.certificates.witnesses import CutDual, FlowDual


def cut_dual(facts: Facts, witness: CutDual) -> Fraction:
    """Bound in ticks that prices and charges prove; 0 if some send is charged more than it pays."""
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
    """Bound in ticks that prices prove, as every chunk pays at least its cheapest path."""
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


def _pays(facts: Facts, prices: Sequence[int]) -> list[Fraction]:
    """Payment of a chunk on every link; of a unit of data if sizes differ or data is divisible."""
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


def _needed(facts: Facts, parts: Sequence[frozenset[int]]) -> int:
    """Min volume of the sends into a set, or between the parts of a partition."""
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
