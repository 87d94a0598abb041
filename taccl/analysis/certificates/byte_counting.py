"""Byte counting: pair counting of bytes, over all chunkings, with a latency for each send.

A pair is a byte that a set of ranks lacks, with a rank of the set that wants it. For sums, a pair also has a
contribution from outside. An early send into the set serves few pairs per byte, as its sender holds data of
few ranks by then. A late send serves few pairs, too, as its data then reaches few ranks. See
docs/formulation.md, "Byte counting".
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from copy import copy
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from taccl.analysis.certificates.gates import FOREVER, GateCosts, first_tick
from taccl.analysis.certificates.needed_sends import NeededSends
from taccl.analysis.certificates.pair_counting import steps_of, windows_of
from taccl.analysis.certificates.volume import crossing_links, largest_piece
from taccl.analysis.certificates.witnesses import ByteCounting, Claim

#: Fixed-point resolution: parts of a tick, and parts of the largest piece.
_TICK_PARTS, _PARTS = 1024, 2**20
#: Max ranks, and nodes, to examine.
_MOST_SETS = 8


class Port(NamedTuple):
    """A resource at a border; times are in parts of a tick.

    - `alpha`, `beta`: Hold of a send without bytes, and additional hold for the largest piece.
    - `most`: Max pieces in a send.
    - `idle`: Min time of a send, of any size, in which it does not hold the resource.
    """

    alpha: int
    beta: int
    most: int
    idle: int

    def passed(self, ticks: int, total: int) -> int:
        """Max parts of pieces in sends of at most `total` parts each, within `ticks`."""
        most = min(self.most * _PARTS, total)
        busy = ticks - self.idle
        if busy < self.alpha:
            return 0
        if not self.alpha + self.beta:
            return FOREVER
        rounds, left = divmod(busy * _PARTS, self.alpha * _PARTS + most * self.beta)
        part = left - self.alpha * _PARTS
        return rounds * most + (min(most, -(-part // self.beta) if self.beta else most) if part >= 0 else 0)

    def fed(self, ticks: int, total: int, known: Sequence[tuple[int, int]], enough: int) -> int:
        """Max parts of pieces delivered within `ticks` by sends that carry no more than their senders hold.

        - `known`: (ticks, parts): time from which a sender can hold that many parts.
        - `enough`: Number of parts beyond which counting may stop.
        """
        if not self.alpha:
            return self.passed(ticks, total)
        most, start, room = min(self.most * _PARTS, total), ticks - self.idle - self.alpha, 0
        for since, parts in reversed(known):  # from the last send backwards
            each, sends = min(most, parts), (start - since) // self.alpha + 1
            if sends <= 0:
                continue
            if self.beta:  # number of sends after which no time is left for their bytes
                left = (start + self.alpha) * _PARTS - room * self.beta
                full = max(1, -(-left // (each * self.beta + self.alpha * _PARTS)))
                if full <= sends:
                    time = start - (full - 1) * self.alpha
                    return max(
                        room + (full - 1) * each, min(room + full * each, -(-time * _PARTS // self.beta))
                    )
            room, start = room + sends * each, start - sends * self.alpha
            if room >= enough:
                break
        return room


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
                yield Claim(Fraction(ticks, _TICK_PARTS), what, ByteCounting(ranks, resources))


def _counted(demand: NeededSends, ranks: frozenset[int]) -> tuple[int, tuple[int, ...]]:
    """Bound in parts of a tick, and the border resources that it counts; 0 proves nothing."""
    piece = largest_piece(demand.problem, divisible=True)
    pairs = total = adding = wanting = 0
    of_rank: Counter[int] = Counter()
    for kind, others in demand.outside(ranks).items():
        wanted = len(ranks.intersection(kind.data.destinations))
        if wanted:
            units = kind.units * demand.classes[kind]
            pairs += units * wanted * (len(others) if demand.sums_for_all else 1)
            total, adding, wanting = total + units, max(adding, len(others)), max(wanting, wanted)
            of_rank.update(dict.fromkeys(others, units))
    resources, ports = _ports(demand, ranks, piece)
    if not pairs or not ports:
        return 0, ()
    pairs, total = pairs * _PARTS // piece, -(-total * _PARTS // piece)
    each = -(-max(of_rank.values()) * _PARTS // piece)
    forwards = GateCosts(demand.problem.with_clauses(max_merge=1, merging=frozenset()), 0)
    backwards = copy(forwards)
    backwards.src, backwards.dst, backwards.receives = forwards.dst, forwards.src, ~forwards.receives
    everyone = frozenset(range(demand.topology.num_ranks))
    most = adding if demand.sums_for_all else len(of_rank)
    collected = _finer(steps_of(backwards, demand.allowed, everyone, everyone - ranks, most))
    spread = _finer(steps_of(forwards, demand.allowed, ranks, ranks, wanting))
    if not collected or not spread:
        return 0, ()

    def passed(start: int, end: int) -> int:
        return sum(count * port.passed(end - start, total) for port, count in ports.items())

    if demand.sums_for_all:
        windows = windows_of(collected, spread)

        def served(ticks: int) -> int:
            return sum(
                gain
                * min(
                    sum(passed(since, ticks - tail) for since, tail in some),
                    passed(some[0][0], ticks - some[-1][1]),
                )
                for gain, some in windows
            )
    else:
        known = [(since, number * each) for since, number in collected]
        gains = [(tail, number - before) for (_, before), (tail, number) in pairwise([(0, 0), *spread])]

        def served(ticks: int) -> int:
            fed = (
                gain * count * port.fed(ticks - tail, total, known, pairs)
                for tail, gain in gains
                for port, count in ports.items()
            )
            return sum(fed)

    return first_tick(lambda ticks: served(ticks) >= pairs) - 1, resources


def _finer(steps: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(ticks * _TICK_PARTS, number) for ticks, number in steps]


def _ports(demand: NeededSends, ranks: frozenset[int], piece: int) -> tuple[tuple[int, ...], Counter[Port]]:
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
            ports[_port(demand, sorted(mine), resource, piece)] += 1
    return ((), Counter()) if left else (tuple(order), ports)


def _port(demand: NeededSends, links: Sequence[int], resource: int, piece: int) -> Port:
    """Port that the given links share, with their least costs."""
    costs, clauses = demand.problem.costs, demand.problem.clauses
    total = int(costs.chunk_units.sum())
    holds = [demand.held[e][resource] for e in links]
    idle = [
        int(costs.link_alpha[e]) - alpha + min(0, (int(costs.link_beta[e]) - beta) * total)
        for e, (alpha, beta, _) in zip(links, holds, strict=True)
    ]
    return Port(
        min(alpha for alpha, _, _ in holds) * _TICK_PARTS,
        min(beta for _, beta, _ in holds) * piece * _TICK_PARTS,
        clauses.max_merge if not clauses.merging.isdisjoint(links) else 1,
        min(idle) * _TICK_PARTS,
    )
