"""Byte counting: a bound over all chunkings, from the latency and the (byte, rank) pairs of each send.

A pair is a byte that a set of ranks lacks, and a rank of the set that wants the byte. For sums, a pair is a
contribution from outside the set, and a rank of the set that wants the sum. A send into the set that starts
early serves few pairs per byte, because its sender holds data of few ranks by then. A send that ends late
serves few pairs, too, because its data then reaches few ranks. If a few ranks have all data at first, all
others may be the set. See docs/formulation.md, "Byte counting".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from taccl.analysis.certificates.certificate import Claim, Labels, OfRanks
from taccl.analysis.certificates.evaluation.arrivals import reached
from taccl.analysis.certificates.evaluation.facts import NEVER, Facts, lane
from taccl.analysis.certificates.finding.gates import (
    FOREVER,
    GateCosts,
    Served,
    Time,
    first_served,
    labels_of,
)
from taccl.analysis.certificates.finding.needed_sends import NeededSends
from taccl.analysis.certificates.finding.volume import cover_of, crossing_links, largest_piece
from taccl.analysis.certificates.pair_counting import (
    Windows,
    spans_of,
    steps_of,
    stepwise,
    times_of,
    windows_of,
)

#: Max ranks, and max nodes, for which byte counting is evaluated.
_MOST_SETS = 8


class Port(NamedTuple):
    """Costs of a resource at the border of a set of ranks, in ticks, for sends that enter the set.

    - `alpha`, `beta`: A send of u units holds the resource for ``alpha + beta * u`` ticks.
    - `most`: Max useful units in a send.
    - `idle`: Min ticks of a send, of any size, in which it does not hold the resource.
    - `head`: Earliest tick at which a source of these sends can have data that the set lacks.

    Methods return numbers of units times `scale`, a multiple of every beta, so that results at whole ticks
    are whole. In between, they are linear in time and continuous from the right.
    """

    alpha: int
    beta: int
    most: int
    idle: int
    head: int = 0

    def passed(self, ticks: Time, scale: int) -> Time:
        """Max data units, times `scale`, that sends can carry if they start and end within `ticks` ticks."""
        busy, full = ticks - self.idle, self.alpha + self.beta * self.most
        if busy < self.alpha:
            return 0
        if not full:
            return FOREVER * scale
        rounds, left = divmod(busy, full)
        part = left - self.alpha
        last: Time = self.most * scale if part >= 0 else 0
        if self.beta and part >= 0:
            last = min(last, part * (scale // self.beta))
        return rounds * self.most * scale + last

    def fed(self, ticks: Time, scale: int, known: Sequence[tuple[int, int]], enough: int) -> Time:
        """Max data units, times `scale`, sent in `ticks` ticks, if senders hold no more than `known` says.

        - `known`: (ticks, units) pairs, ascending: from `ticks` on, a sender can hold that many units.
        - `enough`: Number of units beyond which counting may stop.
        """
        if not self.alpha:
            return self.passed(ticks, scale)
        start, room = ticks - self.idle - self.alpha, 0
        for since, units in reversed(known):  # from the last send backwards
            each, sends = min(self.most, units), (start - since) // self.alpha + 1
            if sends <= 0:
                continue
            if self.beta:  # `whole` sends and a part of one more fit into the time
                left = start + self.alpha - room * self.beta
                whole = max(0, left // (each * self.beta + self.alpha))
                if whole < sends:
                    time = (start - whole * self.alpha) * (scale // self.beta)
                    return max((room + whole * each) * scale, min((room + (whole + 1) * each) * scale, time))
            room, start = room + sends * each, start - sends * self.alpha
            if room >= enough:
                break
        return room * scale


@dataclass(frozen=True, slots=True)
class ByteCounting(OfRanks):
    """Witness of byte counting: ranks that want data from outside, and resources that links into them hold.

    - `resources`: Resources that cover the links into the ranks; a link counts for the first that it holds.
    - `collected`: ((ticks, most), ...): before `ticks`, a rank can hold the data of at most `most` ranks.
    - `spread`: ((ticks, most), ...): less than `ticks` after a byte entered at a rank of the set, at most
      `most` ranks of the set can hold it.
    """

    kind = proves = "byte counting"
    preference = 9
    any_chunking = True
    ranks: frozenset[int]
    resources: tuple[int, ...]
    collected: Labels = ()
    spread: Labels = ()
    backwards: bool = False

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        return _bytes_left(facts, self, ticks)


def byte_counting_bounds(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Yield byte-counting bounds for a few ranks and a few nodes, one of each orbit under symmetry.

    If fewer ranks start with data than want some, all ranks outside a rank or node with data form a set, too.
    Instead, a scatter is bounded in reversed time.
    """
    if in_network or not demand.single_ended or demand.problem.collective.derivations:
        return
    everyone = frozenset(range(demand.topology.num_ranks))
    directions = list(demand.both_directions())
    few = demand.few_start if len(directions) == 1 else frozenset[int]()
    for needed, backwards in directions:
        families = [(name, needed.different(sets)) for name, sets in needed.families]
        tried: list[tuple[str, frozenset[int], bool]] = []  # True: the set is all other ranks
        for name, sets in families:
            tried += [(name, ranks, True) for ranks in sets if not few.isdisjoint(ranks)][:_MOST_SETS]
        for name, sets in families:
            tried += [(name, ranks, False) for ranks in sets[:_MOST_SETS]]
        for name, ranks, others in tried:
            demand.deadline.check()
            ticks, witness = _counted(needed, everyone - ranks if others else ranks)
            if witness is not None and ticks > 0:
                node = needed.topology.node_of_rank[min(ranks)]
                where = f"rank {min(ranks)}" if name == "rank" else f"node {node}"
                way = "out of" if others != needed.is_reversed else "into"
                what = f"data {way} {where}, with the latency of every send"
                yield Claim(ticks, what, replace(witness, backwards=backwards))


def _counted(demand: NeededSends, ranks: frozenset[int]) -> tuple[Fraction, ByteCounting | None]:
    """(byte-counting bound in ticks, its witness) for a set of ranks; (0, None) if nothing is proven."""
    pairs = total = adding = wanting = 0
    of_rank: Counter[int] = Counter()
    wants = {
        kind: others
        for kind, others in demand.outside(ranks).items()
        if not ranks.isdisjoint(kind.data.destinations)
    }
    for kind, others in wants.items():
        wanted = len(ranks.intersection(kind.data.destinations))
        units = kind.units * demand.classes[kind]
        pairs += units * wanted * (len(others) if demand.sums_for_all else 1)
        total, adding, wanting = total + units, max(adding, len(others)), max(wanting, wanted)
        of_rank.update(dict.fromkeys(others, units))
    cover = cover_of(demand.held, crossing_links(demand.problem, (ranks,)).tolist())
    heads = (
        [0] * len(demand.held) if demand.sums_for_all else demand.first_uses(wants, divisible=True).tolist()
    )
    ports = Counter(
        _port(demand, links, resource, total, min(heads[e] for e in links)) for resource, links in cover
    )
    if not pairs or not ports:
        return Fraction(0), None
    forwards = GateCosts(demand.problem.with_clauses(max_merge=1, merging=frozenset()), 0)
    backwards = copy(forwards)
    backwards.src, backwards.dst, backwards.receives = forwards.dst, forwards.src, ~forwards.receives
    everyone = frozenset(range(demand.topology.num_ranks))
    most = adding if demand.sums_for_all else len(of_rank)
    times = (
        times_of(backwards, demand.allowed, everyone, everyone - ranks, most),
        times_of(forwards, demand.allowed, ranks, ranks, wanting),
    )
    collected, spread = map(steps_of, times)
    if not collected or not spread:
        return Fraction(0), None
    scale = math.lcm(*(port.beta for port in ports if port.beta))
    served = sums_served(ports, windows_of(collected, spread), scale)
    if not demand.sums_for_all:
        each = max(of_rank.values())
        known = [(since, number * each) for since, number in collected]
        served = copies_served(ports, known, spread, pairs, scale)
    gathering, spreading = map(labels_of, times)
    return first_served(served, pairs * scale), ByteCounting(
        ranks, tuple(resource for resource, _ in cover), gathering, spreading
    )


def copies_served(
    ports: Counter[Port],
    known: Sequence[tuple[int, int]],
    spread: Sequence[tuple[int, int]],
    enough: int,
    scale: int,
) -> Served:
    """Upper bound on the number of (copied byte, rank) pairs that sends can serve, as a function of time.

    It is a sum over the entries (ticks, ranks) of `spread`. In the term of an entry, only those sends count
    that end early enough for their data to reach that many ranks.

    - `known`: (ticks, units) pairs, ascending: from `ticks` on, a sender can hold that many units.
    - `spread`: (ticks, ranks) pairs, ascending: data needs `ticks` after its entry to reach that many ranks.
    - `enough`, `scale`: As in `Port.fed`.
    """

    later = {port: [(max(0, since - port.head), units) for since, units in known] for port in ports}

    def fed(tail: int, ticks: Time) -> Time:
        return sum(
            count * port.fed(ticks - tail - port.head, scale, later[port], enough)
            for port, count in ports.items()
        )

    levels = pairwise([(0, 0), *spread])
    return [(number - before, (partial(fed, tail),)) for (_, before), (tail, number) in levels]


def sums_served(ports: Counter[Port], windows: Windows, scale: int) -> Served:
    """Upper bound on the number of (contribution, rank) pairs that sends can serve, as a function of time.

    It is a sum over the levels of `windows`. A window is the time in which a send must lie; see `windows_of`.
    At each level, the smaller of two counts applies: the sum over all windows, or the count for the one span
    that contains them all.
    """

    def passed(some: Sequence[tuple[int, int]], ticks: Time) -> Time:
        return sum(
            count * port.passed(ticks - tail - since, scale)
            for since, tail in some
            for port, count in ports.items()
        )

    return [
        (gain, (partial(passed, some), partial(passed, [(some[0][0], some[-1][1])])))
        for gain, some in windows
    ]


def _port(demand: NeededSends, links: Sequence[int], resource: int, total: int, head: int) -> Port:
    """Costs of a resource as a `Port`: the least over the given links. A send has at most `total` units."""
    clauses, piece = demand.problem.clauses, largest_piece(demand.problem, divisible=True)
    pieces = clauses.max_merge if not clauses.merging.isdisjoint(links) else 1
    alpha, beta, idle = demand.lane(links, resource)
    return Port(alpha, beta, min(pieces * piece, total), idle, head)


@dataclass(frozen=True, slots=True)
class _CheckedPort:
    """Costs of a resource, to check a witness: a send of u units holds it for ``alpha + beta * u`` ticks."""

    alpha: int
    beta: int
    most: int  # max useful units in a send
    idle: int
    head: int  # earliest tick at which a source of the sends can have useful data

    def passed(self, ticks: Fraction) -> Fraction:
        """Max data units that sends can carry if they start and end within `ticks` ticks."""
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
        """Max data units sent in `ticks` ticks, if senders hold data no earlier than `soonest` says.

        - `soonest`: {number of ranks: earliest ticks at which a sender can hold data of that many}.
        - `each`: Max units from one rank.
        - `enough`: Number of units beyond which counting may stop.
        """
        ticks -= self.head
        if not self.alpha:
            return self.passed(ticks)
        start, brought = ticks - self.idle - self.alpha, Fraction(0)
        for n, when in sorted(soonest.items(), reverse=True):
            since = max(0, when - self.head)  # `ticks` counts from the head
            number = (start - since) // self.alpha + 1  # max sends after senders hold data of n ranks
            if number <= 0:
                continue
            unit = min(self.most, n * each)
            if self.beta:
                # If x sends start once senders hold data of n ranks, the number of units has two limits.
                # Limit by content: ``brought + x * unit``, where later sends bring `brought`.
                # Limit by time: ``(start - (x - 1) * alpha) / beta``. Both are equal for ``x = level``.
                level = (start + self.alpha - brought * self.beta) / (unit * self.beta + self.alpha)
                few = min(number, max(0, math.floor(level)))
                if few < number:
                    time = (start - few * self.alpha) / self.beta
                    return max(brought + few * unit, min(brought + (few + 1) * unit, time))
            brought, start = brought + number * unit, start - number * self.alpha
            if brought >= enough:
                break
        return brought


def _bytes_left(facts: Facts, witness: ByteCounting, ticks: Fraction) -> bool:
    """True if every schedule that ends before `ticks`, for any chunking, leaves a (byte, rank) pair unserved.

    It is true if fewer pairs than needed are served just before `ticks` (the limit from below). It is also
    true if that limit equals the need and is still rising, since any earlier time then serves fewer.
    """
    if not facts.divisible or facts.multi or facts.made_at or facts.in_network:
        return False
    inside, pairs, total, most_added, most_wanted = witness.ranks, 0, 0, 0, 0
    of_rank: Counter[int] = Counter()
    starts = list[tuple[int, set[int]]]()
    for c, others in facts.outside(inside):
        wanted = len(inside.intersection(facts.collective.chunks[c].destinations))
        if wanted:
            units = facts.units[c]
            starts.append((c, others))
            pairs += units * wanted * (len(others) if facts.sums else 1)
            total += units
            of_rank.update(dict.fromkeys(others, units))
            most_added, most_wanted = max(most_added, len(others)), max(most_wanted, wanted)
    heads = dict.fromkeys(facts.allowed, 0) if facts.sums else facts.releases(starts, 0)
    ports = _checked_ports(facts, witness, total, heads)
    if not pairs or ports is None:
        return False
    outside = set(range(facts.topology.num_ranks)) - inside
    most = most_added if facts.sums else len(of_rank)
    back, bare = weightless(facts, backwards=True), weightless(facts)
    within = [e for e in facts.allowed if {facts.src[e], facts.dst[e]} <= inside]
    collected = reached(back, witness.collected, facts.allowed, most, starts=outside, backwards=True)
    spread = reached(bare, witness.spread, within, most_wanted, starts=inside)
    if collected is None or spread is None:
        return False
    soonest, latest = stepwise(collected), stepwise(spread)
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
    """Limit from below and negated slope at `ticks`, for a function that is linear between whole ticks."""
    start = Fraction(math.ceil(ticks) - 1)
    first, middle = counted(start), counted(start + Fraction(1, 2))
    rate = 2 * (middle - first)
    return first + rate * (ticks - start), -rate


def _checked_ports(
    facts: Facts, witness: ByteCounting, total: int, heads: Mapping[int, int]
) -> list[_CheckedPort] | None:
    """Ports of the witness's resources; None if they do not cover every link into the ranks.

    - `heads`: {link: earliest tick at which its source can have useful data}; absent if never.
    """
    left = {e for e in facts.allowed if facts.src[e] not in witness.ranks and facts.dst[e] in witness.ranks}
    joined: Counter[object] = Counter()
    for starts, chunk, units in zip(
        facts.collective.starts, facts.collective.chunks, facts.units, strict=True
    ):
        joined[frozenset(starts), frozenset(chunk.destinations)] += units
    piece, ports = max(joined.values()), list[_CheckedPort]()
    for resource in witness.resources:
        mine = [e for e in left if resource in facts.holds[e]]
        left.difference_update(mine)
        merges = facts.clauses.max_merge > 1 and not facts.clauses.merging.isdisjoint(mine)
        if mine:
            alpha, beta, idle = lane(facts, mine, resource)
            most = min(total, piece * (facts.clauses.max_merge if merges else 1))
            head = min(heads.get(e, NEVER) for e in mine)
            ports.append(_CheckedPort(alpha, beta, most, idle, head))
    return None if left else ports


def weightless(facts: Facts, *, backwards: bool = False) -> Facts:
    """Copy of the facts with every beta 0, as if data had no size; `backwards` also reverses time."""
    bare = copy(facts)
    bare.clauses = replace(facts.clauses, max_merge=1, merging=frozenset())
    bare.beta = [0] * len(facts.beta)
    bare.holds = [
        {r: (alpha, 0, side != backwards) for r, (alpha, _, side) in held.items()} for held in facts.holds
    ]
    if backwards:
        bare.src, bare.dst = facts.dst, facts.src
    return bare
