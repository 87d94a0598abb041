"""The throughput bound, proven by dual prices of resources and by charges for sends into sets of ranks.

A linear program on the orbits of a problem's symmetries finds both. Its first sets are ranks, nodes, and
their complements, for sums also groups of ranks that fast links join. For chunks that spread, maximum flows
find violated cuts: sets that the primal solution enters too rarely. Sources: Edmonds, "Edge-disjoint
branchings", in *Combinatorial Algorithms* (1973), on why cuts decide how fast chunks can spread. Dantzig,
Fulkerson and Johnson, Operations Research 2 (1954), on adding cuts as they are found.
"""

# Symbols in this module: w is the price of a resource per tick, z the charge for each send into a set.

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arrays import distinct
from taccl._internal.graph_algorithms import maximum_flow, strong_components
from taccl.analysis.certificates.certificate import OfPrices
from taccl.analysis.certificates.evaluation.facts import Facts, pays, soonest
from taccl.analysis.certificates.finding.distances import idle_at_most, least_time, proven_in_rounds
from taccl.analysis.certificates.finding.volume import Volume, crossing_links
from taccl.problem.costs import link_ends
from taccl.problem.problem import Problem
from taccl.sketch.group import Symmetries
from taccl.solvers.highs import minimise

Parts = tuple[frozenset[int], ...]

_MAX_SETS = 5_000
#: Max single-rank sets in the linear program; one rank stands for each orbit under symmetry.
_MOST_RANKS = 1_024
_FLOW_SCALE = 1_000_000
#: Max number of kinds of links, from fast to slow, whose groups of ranks are partitions in a linear program.
_MOST_LEVELS = 16
#: Min seconds for a linear program.
_LEAST_S = 0.1
#: Max sets whose bounds are computed one by one, if no linear program was solved in time.
_MOST_ALONE = 8


@dataclass(frozen=True, slots=True)
class SetCharge:
    """Charge for each send into a set of ranks, or between the parts of a partition of ranks.

    With one set in `parts`, each send that enters the set is charged. With several sets (a partition), each
    send from one part to another is charged. If k parts contribute to a sum and also want it, it needs at
    least 2(k - 1) of these sends. If a server updates the sum, a contribution leaves each other part that
    contributes, and the updated sum enters each other part that wants it.
    A multicast or reduction link counts once for each pair of parts that it joins.
    """

    parts: tuple[frozenset[int], ...]
    charge: Fraction


@dataclass(frozen=True, slots=True)
class CutDual(OfPrices):
    """Witness: a price per tick of each resource, and charges for sends into sets of ranks.

    For every tick of its hold on a resource, a send costs the price of that resource. The witness is valid if
    the charges of each send add up to at most its cost.
    """

    kind, proves = "cut dual", "throughput"
    preference = 2
    prices: tuple[int, ...]
    charges: tuple[SetCharge, ...]

    def fits(self, problem: Problem) -> bool:
        """True if the ranks exist, and there is one price for each resource."""
        ranks = frozenset(range(problem.topology.num_ranks))
        charged = all(each.parts and frozenset().union(*each.parts) <= ranks for each in self.charges)
        return charged and len(self.prices) == len(problem.topology.resources)

    def proven(self, facts: Facts) -> int | Fraction:
        """Bound in ticks that the prices prove, evaluated exactly."""
        return facts.rounded(_priced(facts, self))


@dataclass(frozen=True, slots=True)
class _Priced:
    """Solution of the linear program: prices and charges per orbit, sends per link, and bound in ticks."""

    price: NDArray[np.float64]
    charge: NDArray[np.float64]
    sends: NDArray[np.float64]
    value: float


def throughput(
    volume: Volume, symmetries: Symmetries, *, in_network: bool, budget_s: float, known: int = 0
) -> tuple[Fraction, CutDual] | None:
    """(throughput bound in ticks, its witness); None if none is found, as when no send must enter any set.

    - `in_network`: True if switches are assumed to reduce.
    - `budget_s`: Seconds after which no further linear program is solved, and no further set sought.
    - `known`: A known bound in ticks; a bound below it is of no use.
    """
    deadline = time.monotonic() + budget_s
    sets = _sets(volume, symmetries, in_network=in_network)
    if not sets:
        return None
    program = _Program(volume, symmetries)
    for parts in sets:
        program.add(parts)
    solved = program.solve(known, deadline)
    if solved is None:
        return program.best_of_one()
    while time.monotonic() < deadline and len(program.sets) < _MAX_SETS:
        missing = _violated_cuts(volume, symmetries, solved.sends, set(program.sets), deadline)
        if not missing or time.monotonic() >= deadline:
            break
        before = solved.value
        for parts in missing:
            program.add(parts)
        better = program.solve(known, deadline)
        if better is None:
            break
        solved = better
        if solved.value <= before * (1 + 1e-9):
            break

    def prove(least: int) -> tuple[Fraction, CutDual] | None:
        if least == known:
            return program.witness(solved)
        again = program.solve(least, deadline) if time.monotonic() < deadline else None
        return None if again is None else program.witness(again)

    return proven_in_rounds(program.idle, known, prove)


def _sets(volume: Volume, symmetries: Symmetries, *, in_network: bool) -> list[Parts]:
    """Initial sets: ranks, nodes, their complements; for sums as in allreduce, also partitions into them."""
    topology = volume.problem.topology
    everyone = frozenset(range(topology.num_ranks))
    different = set(symmetries.ranks.tolist())
    # If there are very many ranks, keep those with the fewest links, which are most likely the bottleneck.
    fewest = sorted(different, key=lambda r: (len(topology.links_to[r]), len(topology.links_from[r]), r))
    families = [[frozenset((r,)) for r in sorted(fewest[:_MOST_RANKS])]]
    nodes = [frozenset(ranks) for ranks in topology.ranks_of_node if ranks]
    if topology.num_nodes > 1:
        families.append([nodes[i] for i in sorted(set(symmetries.sets(nodes).tolist()))])
    sets: list[Parts] = []
    for family in families:
        for ranks in family:
            sets += [(part,) for part in (ranks, everyone - ranks) if part and part != everyone]
    shared = (set(chunk.origins) & set(chunk.destinations) for chunk in volume.collective.chunks)
    is_shared = volume.collective.updates or any(len(each) > 1 for each in shared)
    if not (volume.spreads or in_network) and is_shared:
        sets.append(tuple(frozenset((r,)) for r in sorted(everyone)))
        sets += [tuple(nodes)] if topology.num_nodes > 1 else []
        sets += _fast_groups(volume)
    return [parts for parts in dict.fromkeys(sets) if volume.needed(parts)]


def _fast_groups(volume: Volume) -> list[Parts]:
    """Partitions of the ranks into groups that only slow links join, the coarsest first.

    Such groups are GPUs with an NVLink bridge, or under one CPU. Links are added from fast to slow, and each
    partition into the components of these links counts. A link's slowness is the time that a unit of volume
    takes, multiplied by the number of links that share the resource.
    """
    link, resource, ticks = volume.holds
    allowed = np.array(volume.problem.links_allowed, dtype=np.int64)
    users = np.bincount(resource[np.isin(link, allowed)], minlength=len(volume.problem.topology.resources))
    slowness = np.zeros(len(volume.problem.topology.links))
    np.maximum.at(slowness, link, ticks.astype(float) * users[resource])
    src, dst = (ends[allowed] for ends in link_ends(volume.problem.topology))
    slowness, num_ranks = slowness[allowed], volume.problem.topology.num_ranks
    found: list[Parts] = []
    for most in distinct(slowness).tolist()[:_MOST_LEVELS]:
        fast = slowness <= most
        ends = np.concatenate((src[fast], dst[fast])), np.concatenate((dst[fast], src[fast]))
        group = strong_components(num_ranks, *ends)
        if group.max() == 0:
            break
        groups = [frozenset(np.flatnonzero(group == each).tolist()) for each in distinct(group).tolist()]
        if len(groups) < num_ranks:
            found.append(tuple(sorted(groups, key=min)))
    return list(dict.fromkeys(found))[::-1]


class _Program:
    """Linear program for the prices of resources and the charges of sets that prove the highest bound.

    It maximises sum(need z) + sum(b w), where z are charges and w prices. Here need is the volume that must
    enter a set, and b the idle ticks of a resource (`idle_at_most`). The prices add up to 1, and the charges
    of a send over a link are at most its cost. Idle ticks beyond the bound must not count. A linear program
    cannot express this, so they are capped at a known bound.
    """

    def __init__(self, volume: Volume, symmetries: Symmetries) -> None:
        self.volume, self.symmetries = volume, symmetries
        allowed = np.array(volume.problem.links_allowed, dtype=np.int64)
        orbit_of_link = symmetries.links[allowed]
        self.rows, size = np.unique(orbit_of_link, return_counts=True)
        self.row_size = size
        self.row_of_link = np.full(len(symmetries.links), -1)
        self.row_of_link[allowed] = np.searchsorted(self.rows, orbit_of_link)
        idle = volume.heads_tails.idle(len(symmetries.resources))
        used = _worth_pricing([volume.held[e] for e in allowed.tolist()], idle.tolist())
        self.columns, self.column_size = np.unique(symmetries.resources[used], return_counts=True)
        column_of = np.searchsorted(self.columns, symmetries.resources).tolist()
        self.idle = idle[self.columns]
        self.column_of = {resource: column_of[resource] for resource in used}
        self.sets: dict[Parts, tuple[int, NDArray[np.float64]]] = {}
        self.holds: list[tuple[int, int, int]] = [
            (row, self.column_of[resource], ticks)
            for row, e in enumerate(self.rows.tolist())
            for resource, ticks in volume.held[e].items()
            if resource in self.column_of
        ]

    def add(self, parts: Parts) -> None:
        """Add a set or partition; store how often a send crosses its border, as a mean per orbit of links."""
        if parts in self.sets:
            return
        rows = self.row_of_link[crossing_links(self.volume.problem, parts)]
        count = np.bincount(rows[rows >= 0], minlength=len(self.rows)) / self.row_size
        self.sets[parts] = (self.volume.needed(parts), count)

    def solve(self, known: int, deadline: float) -> _Priced | None:
        """Optimal prices and charges; None if the program is unbounded, or not solved in time."""
        need = np.array([needed for needed, _ in self.sets.values()], dtype=float)
        scale = need.max()
        crossing = np.array([count for _, count in self.sets.values()])
        number, crossed = np.nonzero(crossing)
        row, column, held = (np.array(each) for each in zip(*self.holds, strict=True))
        ticks = float(held.max()) or 1.0
        total = np.concatenate((np.zeros(len(need)), self.column_size.astype(float)))
        idle = idle_at_most(self.idle, known) * self.column_size
        answer = minimise(
            np.concatenate((-need / scale, -idle * (self.volume.ticks_scale / scale / ticks))),
            (
                np.concatenate((crossed, row, np.full(len(total), len(self.rows)))),
                np.concatenate((number, len(need) + column, np.arange(len(total)))),
                np.concatenate((crossing[number, crossed], -held / ticks, total)),
            ),
            (np.zeros(len(self.rows)), [1.0]),
            limit_s=max(deadline - time.monotonic(), _LEAST_S),
        )
        if answer is None:
            return None
        sends = -answer.duals[: len(self.rows)] * scale / self.row_size
        return _Priced(
            np.maximum(answer.values[len(need) :], 0),
            np.maximum(answer.values[: len(need)], 0) * ticks,
            np.where(self.row_of_link >= 0, np.maximum(sends, 0)[self.row_of_link], 0.0),
            -answer.objective * scale * ticks,
        )

    def best_of_one(self) -> tuple[Fraction, CutDual] | None:
        """Best bound from a single set, at equal prices of its links' resources; needs no linear program."""
        row, column, held = (np.array(each) for each in zip(*self.holds, strict=True))
        found = []
        for index, (_, count) in enumerate(list(self.sets.values())[:_MOST_ALONE]):
            price, charge = np.zeros(len(self.columns)), np.zeros(len(self.sets))
            price[column[count[row] > 0]] = 1.0
            charge[index] = float(held.sum())  # an upper bound; `_exact` lowers it to what sends pay
            if price.any():
                found.append(self._exact(_Priced(price, charge, np.zeros(0), 0.0), 1))
        return max(filter(None, found), key=lambda each: each[0], default=None)

    def witness(self, solved: _Priced) -> tuple[Fraction, CutDual] | None:
        """Bound and witness, from the solution rounded to rational prices; None if no rounding proves one."""
        found = (self._exact(solved, digits) for digits in (10**3, 10**7))
        return max(filter(None, found), key=lambda each: each[0], default=None)

    def _exact(self, solved: _Priced, digits: int) -> tuple[Fraction, CutDual] | None:
        top = solved.price.max()
        rounded = [Fraction(float(w / top)).limit_denominator(digits) for w in solved.price]
        scale = math.lcm(*(w.denominator for w in rounded))
        if scale > 10**12:
            rounded, scale = [Fraction(round(w / top * digits), digits) for w in solved.price], digits
        price = [int(w * scale) for w in rounded]
        total = sum(w * int(size) for w, size in zip(price, self.column_size, strict=True))
        # Sets added after the program was solved have no charge.
        charged = [
            (parts, needed, count, Fraction(float(z / top)).limit_denominator(digits) * scale)
            for (parts, (needed, count)), z in zip(self.sets.items(), solved.charge, strict=False)
            if z > top * 1e-9
        ]
        if not total or not charged:
            return None
        pays = [0] * len(self.rows)
        for row, column, ticks in self.holds:
            pays[row] += price[column] * ticks
        size = self.row_size.tolist()
        share = Fraction(1)
        entered = np.sum([count for _, _, count, _ in charged], axis=0) > 0
        for row in np.flatnonzero(entered).tolist():
            links = ((round(count[row] * size[row]), z) for _, _, count, z in charged if count[row])
            asked = sum(number * z for number, z in links)
            if asked:
                share = min(share, pays[row] * size[row] / asked)
        needed = share * sum(needed * z for _, needed, _, z in charged)
        # Only links that enter a set with a positive price count towards a resource's idle time.
        idle = self.volume.heads_tails.idle(
            len(self.symmetries.resources), np.append(entered, False)[self.row_of_link]
        )
        rates = [
            w * int(size) * self.volume.ticks_scale for w, size in zip(price, self.column_size, strict=True)
        ]
        bound = least_time(zip(rates, idle[self.columns].tolist(), strict=True), needed)
        prices = [0] * len(self.symmetries.resources)
        for resource, column in self.column_of.items():
            prices[resource] = price[column]
        images = [
            (self.symmetries.images(parts), share * z / self.volume.ticks_scale) for parts, _, _, z in charged
        ]
        charges = [SetCharge(image, charge / len(some)) for some, charge in images for image in some]
        return bound, CutDual(tuple(prices), tuple(charges))


def _worth_pricing(held: list[dict[int, int]], idle: list[int]) -> list[int]:
    """Resources to price: all except those that only one link holds and that a shared resource dominates.

    A shared resource dominates if the same link holds it for at least as long, and it has at least as many
    idle ticks.
    """
    users: Counter[int] = Counter(resource for mine in held for resource in mine)
    worth = set(users)
    for mine in held:
        for resource, ticks in mine.items():
            shared = (other for other in mine if users[other] > 1 and idle[other] >= idle[resource])
            if users[resource] == 1 and any(mine[other] >= ticks for other in shared):
                worth.discard(resource)
    return sorted(worth)


def _violated_cuts(
    volume: Volume, symmetries: Symmetries, sends: NDArray[np.float64], known: set[Parts], deadline: float
) -> list[Parts]:
    """Find violated cuts by maximum flows: sets that chunks must enter more often than `sends` allows.

    There is one flow problem per receiving rank. Each link is an arc, with its sends as capacity. A source
    supplies the origins of the chunks that the rank wants. If the flow does not meet this demand, the minimum
    cut is a violated set.
    """
    if not (volume.spreads and volume.single_ended):
        return []
    num_ranks = volume.problem.topology.num_ranks
    src, dst = link_ends(volume.problem.topology)
    scale = _FLOW_SCALE / max(1.0, float(sends.max()), float(volume.total))
    found: list[Parts] = []
    targets = sorted(set(symmetries.ranks.tolist()))
    for target in targets:
        supply = volume.wanted_by(target)
        if not supply.any() or time.monotonic() > deadline:
            continue
        width = np.concatenate((np.rint(sends * scale), np.rint(supply * scale))).astype(np.int64)
        rows = np.concatenate((src, np.full(num_ranks, num_ranks)))
        columns = np.concatenate((dst, np.arange(num_ranks)))
        enough = (1 - 1e-4) * width[len(src) :].sum()
        flow, behind = maximum_flow(
            num_ranks + 1, rows, columns, width, num_ranks, target, num_flows=len(targets), enough=enough
        )
        if flow >= enough:
            continue
        parts = (frozenset(range(num_ranks)).difference(behind.tolist()),)
        if parts not in known:
            found.append(parts)
    return found


def _priced(facts: Facts, witness: CutDual) -> Fraction:
    """Bound in ticks that the prices and charges prove; 0 if the charges of a send exceed its cost."""
    if min(witness.prices, default=0) < 0 or any(each.charge < 0 for each in witness.charges):
        return Fraction(0)
    paid = pays(facts, witness.prices)
    asked = [Fraction(0)] * len(paid)
    need, moves = Fraction(0), _moves(facts)
    for each in witness.charges:
        part_of = {r: i for i, part in enumerate(each.parts) for r in part}
        if len(each.parts) > 1 and (facts.in_network or not facts.sums):
            return Fraction(0)
        if len(part_of) != sum(map(len, each.parts)):
            return Fraction(0)
        inside = each.parts[0]
        for e in facts.allowed:
            link = facts.topology.links[e]
            if len(each.parts) > 1:
                ends = {(part_of.get(src), part_of.get(dst)) for src in link.srcs for dst in link.dsts}
                crosses = sum(out != into for out, into in ends)
            else:
                crosses = not (inside.isdisjoint(link.dsts) or inside.issuperset(link.srcs))
            if crosses:
                asked[e] += crosses * each.charge
        need += each.charge * _must_enter(moves, each.parts, sums=facts.sums)
    if any(asked[e] > paid[e] for e in facts.allowed):
        return Fraction(0)
    return soonest(facts, witness.prices, [e for e in facts.allowed if asked[e]], need)


class _Move(NamedTuple):
    """Volume of a chunk, the ranks where it starts or is derived, those that want it, and its server.

    - `server`: Rank that updates the sum; None if no rank does.
    """

    weight: int
    starts: Sequence[int]
    ends: Sequence[int]
    server: int | None


def _moves(facts: Facts) -> list[_Move]:
    """Move of each chunk."""
    return [
        _Move(
            1 if facts.by_chunk else units,
            (*data.origins, facts.made_at[c].rank) if c in facts.made_at else data.origins,
            data.destinations,
            data.root if facts.collective.updates else None,
        )
        for c, (data, units) in enumerate(zip(facts.collective.chunks, facts.units, strict=True))
    ]


def _must_enter(moves: Sequence[_Move], parts: Parts, *, sums: bool) -> int:
    """Min volume that must enter a set, or pass between the parts of a partition."""
    return sum(move.weight * _num_entering(move, parts, sums=sums) for move in moves)


def _num_entering(move: _Move, parts: Parts, *, sums: bool) -> int:
    """Min number of sends of a chunk into a set, or between the parts of a partition."""
    starts, ends = move.starts, move.ends
    if move.server is not None:
        others = [part for part in parts if move.server not in part]
        wanting = sum(not part.isdisjoint(ends) for part in others)
        if len(parts) > 1:
            return wanting + sum(not part.isdisjoint(starts) for part in others)
        return wanting + (not others and not parts[0].issuperset(starts))
    if len(parts) > 1:
        sharing = sum(not (part.isdisjoint(starts) or part.isdisjoint(ends)) for part in parts)
        return max(0, 2 * (sharing - 1))
    (inside,) = parts
    comes = not inside.issuperset(starts) if sums else inside.isdisjoint(starts)
    return int(comes and not inside.isdisjoint(ends))
