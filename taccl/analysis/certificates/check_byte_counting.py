"""Checks of byte counting: pairs of a byte and a rank that sends of any size can serve in time."""

# u units of data in a send, n ranks whose data is in it, k ranks that its data can reach

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection
from copy import copy
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import chain, repeat, zip_longest

from taccl.analysis.certificates.check_facts import NEVER, Facts, shortest_ways
from taccl.analysis.certificates.check_gates import passages_of
from taccl.analysis.certificates.check_pair_counting import spans_of, stepwise
from taccl.analysis.certificates.check_spread_tail import fastest, reached
from taccl.analysis.certificates.witnesses import ByteCounting

#: Above this number of ranks, no distances are used.
_MOST_RANKS = 256


@dataclass(frozen=True, slots=True)
class _Port:
    """A resource that sends of u units hold for ``alpha + beta u``, and leave free for `idle` ticks each."""

    alpha: int
    beta: int
    most: int  # max units in a send
    idle: int

    def passed(self, ticks: Fraction) -> Fraction:
        """Max units in sends that take `ticks` ticks in total."""
        busy, full = ticks - self.idle, self.alpha + self.beta * self.most
        if busy < self.alpha:
            return Fraction(0)
        if not full:
            return Fraction(NEVER)
        rounds = Fraction(busy // full)
        part = busy - rounds * full - self.alpha
        last = min(part / self.beta, Fraction(self.most)) if self.beta else Fraction(self.most)
        return rounds * self.most + (last if part >= 0 else Fraction(0))

    def fed(self, ticks: Fraction, soonest: dict[int, int], each: int, enough: int) -> Fraction:
        """Max units in `ticks` ticks, if a send has at most `each` units per rank whose data it can have."""
        if not self.alpha:
            return self.passed(ticks)
        start, brought = ticks - self.idle - self.alpha, Fraction(0)
        for n, since in sorted(soonest.items(), reverse=True):
            number = (start - since) // self.alpha + 1  # of sends that start while n ranks are known
            if number <= 0:
                continue
            unit = min(self.most, n * each)
            if self.beta:
                # x sends bring ``brought + x unit`` in all; time allows ``(start - (x - 1) alpha) / beta``.
                level = (start + self.alpha - brought * self.beta) / (unit * self.beta + self.alpha)
                few = min(number, max(0, math.floor(level)))
                if few < number:
                    time = (start - few * self.alpha) / self.beta
                    return max(brought + few * unit, min(brought + (few + 1) * unit, time))
            brought, start = brought + number * unit, start - number * self.alpha
            if brought >= enough:
                break
        return brought


def bytes_left(facts: Facts, witness: ByteCounting, ticks: Fraction) -> bool:
    """True if every schedule that ends before `ticks`, for any chunking, leaves a (byte, rank) pair unserved.

    Ports are counted just before `ticks`. If they can then serve exactly as much as is needed, but less the
    sooner it is, they cannot before.
    """
    if not facts.divisible or facts.multi or facts.made_at or facts.in_network:
        return False
    inside, pairs, total, most_added, most_wanted = witness.ranks, 0, 0, 0, 0
    of_rank: Counter[int] = Counter()
    for c, others in facts.outside(inside):
        wanted = len(inside.intersection(facts.collective.chunks[c].destinations))
        if wanted:
            units = facts.units[c]
            pairs += units * wanted * (len(others) if facts.sums else 1)
            total += units
            of_rank.update(dict.fromkeys(others, units))
            most_added, most_wanted = max(most_added, len(others)), max(most_wanted, wanted)
    ports = _ports(facts, witness, total)
    if not pairs or ports is None:
        return False
    outside = set(range(facts.topology.num_ranks)) - inside
    most = most_added if facts.sums else len(of_rank)
    soonest = _soonest(_weightless(facts, backwards=True), facts.allowed, outside, most, backwards=True)
    within = [e for e in facts.allowed if {facts.src[e], facts.dst[e]} <= inside]
    latest = _soonest(_weightless(facts), within, inside, most_wanted)
    served = [Fraction(0), Fraction(0)]
    if facts.sums:

        def passing(spans: dict[int, int], time: Fraction) -> Fraction:
            lengths = (time - after - start for start, after in spans.items())
            return sum((port.passed(length) for length in lengths for port in ports), Fraction(0))

        for gain, spans in spans_of(soonest, latest):
            widest = {min(spans): min(spans.values())}
            some = [_just_before(ticks, partial(passing, each)) for each in (spans, widest)]
            served = [sum_ + gain * more for sum_, more in zip(served, min(some), strict=True)]
    else:
        most_of_one, before = max(of_rank.values()), 0

        def fed(after: int, time: Fraction) -> Fraction:
            counts = (port.fed(time - after, soonest, most_of_one, pairs) for port in ports)
            return sum(counts, Fraction(0))

        for k, after in latest.items():
            more = _just_before(ticks, partial(fed, after))
            served = [sum_ + (k - before) * each for sum_, each in zip(served, more, strict=True)]
            before = k
    return served < [Fraction(pairs), Fraction(0)]


def _just_before(ticks: Fraction, counted: Callable[[Fraction], Fraction]) -> tuple[Fraction, Fraction]:
    """(limit from below, negated rate there) of a count that is linear between whole ticks."""
    start = Fraction(math.ceil(ticks) - 1)
    first, middle = counted(start), counted(start + Fraction(1, 2))
    rate = 2 * (middle - first)
    return first + rate * (ticks - start), -rate


def _ports(facts: Facts, witness: ByteCounting, total: int) -> list[_Port] | None:
    """Ports of the witness's resources; None if some link into the ranks holds none of them."""
    left = {e for e in facts.allowed if facts.src[e] not in witness.ranks and facts.dst[e] in witness.ranks}
    joined: Counter[object] = Counter()
    for starts, chunk, units in zip(
        facts.collective.starts, facts.collective.chunks, facts.units, strict=True
    ):
        joined[frozenset(starts), frozenset(chunk.destinations)] += units
    piece, longest, ports = max(joined.values()), sum(facts.units), list[_Port]()
    for resource in witness.resources:
        mine = {e for e in left if resource in facts.holds[e]}
        left -= mine
        holds = {e: facts.holds[e][resource] for e in mine}
        merges = facts.clauses.max_merge > 1 and not facts.clauses.merging.isdisjoint(mine)
        if mine:
            ports.append(
                _Port(
                    min(alpha for alpha, _, _ in holds.values()),
                    min(beta for _, beta, _ in holds.values()),
                    min(total, piece * (facts.clauses.max_merge if merges else 1)),
                    min(
                        facts.alpha[e] - alpha + min(0, (facts.beta[e] - beta) * longest)
                        for e, (alpha, beta, _) in holds.items()
                    ),
                )
            )
    return None if left else ports


def _weightless(facts: Facts, *, backwards: bool = False) -> Facts:
    """The same facts for data without bytes; with `backwards`, time is reversed."""
    bare = copy(facts)
    bare.clauses = replace(facts.clauses, max_merge=1, merging=frozenset())
    bare.beta = [0] * len(facts.beta)
    bare.holds = [
        {r: (alpha, 0, side != backwards) for r, (alpha, _, side) in held.items()} for held in facts.holds
    ]
    if backwards:
        bare.src, bare.dst = facts.dst, facts.src
    return bare


def _soonest(
    bare: Facts, links: list[int], starts: Collection[int], most: int, *, backwards: bool = False
) -> dict[int, int]:
    """{number: ticks} until data can be at that many ranks, or have come from that many."""
    times = reached(fastest(passages_of(bare, links, bare.src).values()), [0], most)
    if bare.topology.num_ranks <= _MOST_RANKS:
        out = bare.arcs({e: bare.alpha[e] for e in links}, backwards=backwards)
        ways = [sorted(shortest_ways(out, {rank: 0}).values()) for rank in starts]
        near = map(min, zip_longest(*ways, fillvalue=NEVER))
        times = [*map(max, times, chain(near, repeat(NEVER)))]
    return stepwise(times, most)
