"""Byte counting: pair counting of bytes, over all chunkings, with a latency for each send.

A pair is a byte that a set of ranks lacks, with a rank of the set that wants it. For sums, a pair also has a
contribution from outside. An early send into the set serves few pairs per byte, as its sender holds data of
few ranks by then. A late send serves few pairs, too, as its data then reaches few ranks. See
docs/formulation.md, "Byte counting".
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from taccl.analysis.certificates.gates import FOREVER, GateCosts, first_tick
from taccl.analysis.certificates.needed_sends import NeededSends
from taccl.analysis.certificates.pair_counting import Windows, steps_of, windows_of
from taccl.analysis.certificates.volume import crossing_links, largest_piece
from taccl.analysis.certificates.witnesses import ByteCounting, Claim

#: Max ranks, and nodes, to examine.
_MOST_SETS = 8

#: Ticks, whole or not.
Time = int | Fraction


class Port(NamedTuple):
    """A resource at a border.

    - `alpha`, `beta`: Hold of a send without bytes, and additional hold for each unit.
    - `most`: Max units of use in a send.
    - `idle`: Min time of a send, of any size, in which it does not hold the resource.

    Results are in units times `scale`, a multiple of every beta, so that they are whole at whole ticks.
    Between whole ticks they are linear, and each is the greatest from its tick on.
    """

    alpha: int
    beta: int
    most: int
    idle: int

    def passed(self, ticks: Time, scale: int) -> Time:
        """Max units in sends that take `ticks` in total, times `scale`."""
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
        """Max units within `ticks` in sends that carry no more than their senders hold, times `scale`.

        - `known`: (ticks, units): time from which a sender can hold that many units.
        - `enough`: Number of units beyond which counting may stop.
        """
        if not self.alpha:
            return self.passed(ticks, scale)
        start, room = ticks - self.idle - self.alpha, 0
        for since, units in reversed(known):  # from the last send backwards
            each, sends = min(self.most, units), (start - since) // self.alpha + 1
            if sends <= 0:
                continue
            if self.beta:  # time for the bytes of `whole` sends, and of a part of one more
                left = start + self.alpha - room * self.beta
                whole = max(0, left // (each * self.beta + self.alpha))
                if whole < sends:
                    time = (start - whole * self.alpha) * (scale // self.beta)
                    return max((room + whole * each) * scale, min((room + (whole + 1) * each) * scale, time))
            room, start = room + sends * each, start - sends * self.alpha
            if room >= enough:
                break
        return room * scale


def byte_counting_bounds(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Yield claims for ranks, and nodes, that no symmetry maps to an earlier one."""
    if in_network or not demand.single_ended or demand.problem.collective.derivations:
        return
    for name, sets in demand.families:
        for ranks in demand.different(sets)[:_MOST_SETS]:
            demand.deadline.check()
            ticks, resources = _counted(demand, ranks)
            if ticks > 0:
                node = demand.topology.node_of_rank[min(ranks)]
                where = f"rank {min(ranks)}" if name == "rank" else f"node {node}"
                what = f"data that must come to {where}, in sends that each pay their latency"
                yield Claim(ticks, what, ByteCounting(ranks, resources))


def _counted(demand: NeededSends, ranks: frozenset[int]) -> tuple[Fraction, tuple[int, ...]]:
    """Bound in ticks, and the border resources that it counts; 0 proves nothing."""
    pairs = total = adding = wanting = 0
    of_rank: Counter[int] = Counter()
    for kind, others in demand.outside(ranks).items():
        wanted = len(ranks.intersection(kind.data.destinations))
        if wanted:
            units = kind.units * demand.classes[kind]
            pairs += units * wanted * (len(others) if demand.sums_for_all else 1)
            total, adding, wanting = total + units, max(adding, len(others)), max(wanting, wanted)
            of_rank.update(dict.fromkeys(others, units))
    resources, ports = _ports(demand, ranks, total)
    if not pairs or not ports:
        return Fraction(0), ()
    forwards = GateCosts(demand.problem.with_clauses(max_merge=1, merging=frozenset()), 0)
    backwards = copy(forwards)
    backwards.src, backwards.dst, backwards.receives = forwards.dst, forwards.src, ~forwards.receives
    everyone = frozenset(range(demand.topology.num_ranks))
    most = adding if demand.sums_for_all else len(of_rank)
    collected = steps_of(backwards, demand.allowed, everyone, everyone - ranks, most)
    spread = steps_of(forwards, demand.allowed, ranks, ranks, wanting)
    if not collected or not spread:
        return Fraction(0), ()
    scale = math.lcm(*(port.beta for port in ports if port.beta))
    served = sums_served(ports, windows_of(collected, spread), scale)
    if not demand.sums_for_all:
        each = max(of_rank.values())
        known = [(since, number * each) for since, number in collected]
        served = copies_served(ports, known, spread, pairs, scale)
    return first_served(served, pairs * scale), resources


#: Pairs that sends serve by a time, as a sum of (gain, functions of time): gain times the least of them.
Served = list[tuple[int, tuple[Callable[[Time], Time], ...]]]


def copies_served(
    ports: Counter[Port],
    known: Sequence[tuple[int, int]],
    spread: Sequence[tuple[int, int]],
    enough: int,
    scale: int,
) -> Served:
    """Pairs of a byte that spreads and a rank: each level of `spread` ranks adds the sends early enough."""

    def fed(tail: int, ticks: Time) -> Time:
        return sum(count * port.fed(ticks - tail, scale, known, enough) for port, count in ports.items())

    levels = pairwise([(0, 0), *spread])
    return [(number - before, (partial(fed, tail),)) for (_, before), (tail, number) in levels]


def sums_served(ports: Counter[Port], windows: Windows, scale: int) -> Served:
    """Pairs of a contribution and a rank: sends in the windows of a level, one by one or all together."""

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


def first_served(served: Served, needed: int) -> Fraction:
    """Least ticks by which enough is served, exact.

    Between whole ticks every function is linear. The least of some is concave then, and so is their sum:
    following its tangents from the left never leads too far.
    """

    def reached(ticks: int) -> bool:
        return sum(gain * min(each(ticks) for each in least) for gain, least in served) >= needed

    end = first_tick(reached)
    if not end:
        return Fraction(0)
    start, middle = end - 1, end - Fraction(1, 2)
    lines = [
        (gain, [(each(start), 2 * (each(middle) - each(start))) for each in least]) for gain, least in served
    ]
    time = Fraction(0)
    while time < 1:
        now = [(gain, *min((value + rate * time, rate) for value, rate in some)) for gain, some in lines]
        missing, rate = needed - sum(gain * value for gain, value, _ in now), sum(g * r for g, _, r in now)
        if missing <= 0:
            break
        time = time + Fraction(missing) / rate if rate else Fraction(1)
    return start + min(time, Fraction(1))


def _ports(demand: NeededSends, ranks: frozenset[int], total: int) -> tuple[tuple[int, ...], Counter[Port]]:
    """Greedy cover of the links into a set: its resources, and {port: number of equal ports}.

    The next resource is the one that most of the remaining links hold. Both are empty if links remain
    uncovered.
    """
    links = crossing_links(demand.problem, (ranks,)).tolist()
    users: dict[int, set[int]] = defaultdict(set)
    for e in links:
        for resource in demand.held[e]:
            users[resource].add(e)
    queue = [(-len(mine), resource) for resource, mine in users.items()]
    heapq.heapify(queue)
    left, order, ports = set(links), list[int](), Counter[Port]()
    while left and queue:
        size, resource = heapq.heappop(queue)
        mine = users[resource] & left
        if len(mine) < -size:
            heapq.heappush(queue, (-len(mine), resource))
        elif mine:
            order.append(resource)
            left -= mine
            ports[_port(demand, sorted(mine), resource, total)] += 1
    return ((), Counter()) if left else (tuple(order), ports)


def _port(demand: NeededSends, links: Sequence[int], resource: int, total: int) -> Port:
    """Port that the given links share, with their least costs; `total` units are of use in all."""
    costs, clauses = demand.problem.costs, demand.problem.clauses
    longest, piece = int(costs.chunk_units.sum()), largest_piece(demand.problem, divisible=True)
    holds = [demand.held[e][resource] for e in links]
    idle = [
        int(costs.link_alpha[e]) - alpha + min(0, (int(costs.link_beta[e]) - beta) * longest)
        for e, (alpha, beta, _) in zip(links, holds, strict=True)
    ]
    pieces = clauses.max_merge if not clauses.merging.isdisjoint(links) else 1
    return Port(
        min(alpha for alpha, _, _ in holds),
        min(beta for _, beta, _ in holds),
        min(pieces * piece, total),
        min(idle),
    )
