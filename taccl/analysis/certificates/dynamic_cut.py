"""Dynamic cuts: a bound from chunks that must cross a border whose position changes with time.

Each rank has its own time at which it moves from the far side of the border to the near side. The target
rank always stays on the far side. Any chunk that reaches the target has crossed the border, by a send that
starts on the near side and ends on the far side. The best times are the labels of a quickest flow. Source:
Ford and Fulkerson, "Constructing maximal dynamic flows from static flows", Oper. Res. (1958).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from taccl.analysis.certificates.certificate import Claim, Witness
from taccl.analysis.certificates.evaluation.facts import NEVER, Facts
from taccl.analysis.certificates.evaluation.passages import passages_of
from taccl.analysis.certificates.finding.gates import FOREVER, GateCosts, Gates, Ints, first_tick, gates_of
from taccl.problem.problem import Problem

if TYPE_CHECKING:
    from taccl.analysis.certificates.finding.needed_sends import ChunkKind, NeededSends

#: `_MOST_TARGETS`: max target ranks to examine.
#: `_MOST_NODES`: max nodes of origin to examine for each target.
#: `_MOST_BORDERS`: max borders to examine for each target and node of origin.
_MOST_TARGETS, _MOST_NODES, _MOST_BORDERS = 8, 2, 32
#: Scale of flow rates in chunks per tick, which makes them large integers.
_RATE_SCALE = 2**32


@dataclass(frozen=True, slots=True)
class DynamicCut(Witness):
    """Witness of a dynamic cut: a set of ranks that grows over time, and a target rank that is never in it.

    - `joins_at`: Tick from which each rank is in the set.
    - `backwards`: True if the bound is for the time-reversed problem.
    """

    kind, proves = "dynamic cut", "cut counting"
    preference = 4
    target: int
    joins_at: tuple[int, ...]
    backwards: bool = False

    def fits(self, problem: Problem) -> bool:
        """True if the target exists, and there is one time for each rank."""
        num_ranks = problem.topology.num_ranks
        return 0 <= self.target < num_ranks and len(self.joins_at) == num_ranks

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        return _crosses(facts, self, ticks)


def dynamic_cut_bounds(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Yield dynamic-cut bounds for target ranks; the chunks that they lack are grouped by node of origin.

    If fewer ranks hold chunks initially than want chunks, the time-reversed problem is bounded, too.
    """
    if demand.sums_for_all or not demand.spreads_alike(in_network=in_network):
        return
    for needed, backwards in demand.both_directions():
        yield from _bounds(needed, backwards=backwards)


def _bounds(demand: NeededSends, *, backwards: bool) -> Iterator[Claim]:
    node, verb = demand.topology.node_of_rank, "come from" if demand.is_reversed else "get to"
    sets = [frozenset((r,)) for r in range(demand.topology.num_ranks)]
    for (target,) in demand.different(sets)[:_MOST_TARGETS]:
        of_node: dict[int, list[ChunkKind]] = defaultdict(list)
        for kind in demand.outside(frozenset((target,))):
            if target in kind.data.destinations:
                of_node[node[kind.data.origins[0]]].append(kind)
        nodes = sorted(of_node, key=lambda each: (each != node[target], -len(of_node[each])))  # noqa: B023
        for kinds in map(of_node.__getitem__, nodes[:_MOST_NODES]):
            number = sum(demand.classes[kind] for kind in kinds)
            if number == 1:  # the latency bound covers a single chunk
                continue
            demand.deadline.check()
            starts = sorted({r for kind in kinds for r in kind.data.origins})
            links = np.flatnonzero(demand.first_uses({kind: starts for kind in kinds}) < FOREVER)
            ticks, joins_at = _best(demand.costs, links, starts, target, number)
            what = f"{number} chunks that must {verb} rank {target}, across a cut that moves with time"
            yield Claim(ticks, what, DynamicCut(target, tuple(joins_at), backwards))


def _best(
    costs: GateCosts, links: Ints, starts: Sequence[int], target: int, number: int
) -> tuple[int, list[int]]:
    """Best border to the target: (its bound in ticks, tick from which each rank is on the near side)."""
    best, joins_at = 0, [0] * costs.num_ranks
    took = costs.link_alpha + costs.link_beta
    for label in islice(_labels(costs, links, starts, target), _MOST_BORDERS):
        since = label.copy()
        since[target] = FOREVER
        crossing = links[since[costs.dst[links]] - since[costs.src[links]] > took[links]]
        gates = gates_of(costs, crossing, costs.dst, since[costs.src])
        ends = since[gates.of_set] - 1

        def all_cross(ticks: int, gates: Gates = gates, ends: Ints = ends) -> bool:
            return bool(gates.within(0, np.minimum(ends, ticks)).sum() >= number)

        if gates.hold.all() and not all_cross(best):
            best = first_tick(all_cross, after=best)
            # Capped above all times that decide which links can cross.
            last = max(best, int(since[since < FOREVER].max()) + int(took.max()) + 1)
            joins_at = np.minimum(since, last).tolist()
    return best, joins_at


def _labels(costs: GateCosts, links: Ints, starts: Sequence[int], target: int) -> Iterator[Ints]:
    """Yield distances of ranks from the origins, before each augmentation along a shortest path.

    These are the labels of successive shortest paths to the target, which make up a quickest flow.
    """
    most = np.where(costs.merges, costs.max_merge, 1)
    held = np.ones(len(most), dtype=np.int64)
    np.maximum.at(held, costs.link, costs.alpha // most[costs.link] + costs.beta)
    src, dst, took = costs.src[links], costs.dst[links], (costs.link_alpha + costs.link_beta)[links]
    # Among equally short paths, prefer those with the fewest links, so that no path visits a rank twice.
    tail, head, length = (
        np.append(src, dst),
        np.append(dst, src),
        np.append(took, -took) * costs.num_ranks + 1,
    )
    room = np.append(_RATE_SCALE * 2**20 // held[links], np.zeros(len(links), dtype=np.int64))
    while True:
        label = np.full(costs.num_ranks, FOREVER)
        label[list(starts)] = 0
        better = True
        while better:
            at = np.flatnonzero((room > 0) & (label[tail] < FOREVER))
            before = label.copy()
            np.minimum.at(label, head[at], label[tail[at]] + length[at])
            better = not np.array_equal(before, label)
        if label[target] == FOREVER:
            return
        yield np.where(label < FOREVER, label // costs.num_ranks, FOREVER)
        rank, path = target, []
        while rank not in starts:
            path.append(
                int(np.flatnonzero((head == rank) & (room > 0) & (label[tail] + length == label[rank]))[0])
            )
            rank = int(tail[path[-1]])
        most_now = room[path].min()
        room[path] -= most_now
        room[(np.array(path) + len(links)) % len(tail)] += most_now


def _crosses(facts: Facts, cut: DynamicCut, ticks: Fraction) -> bool:
    """True if not all chunks that the target wants can cross the border and arrive before `ticks`.

    A chunk counts only if it starts on the near side of the border. A link counts only if a send over it can
    cross: start once its source is on the near side, and end while its destination is on the far side.
    """
    if facts.sums or not facts.spreads_alike:
        return False
    last, since = math.ceil(ticks) - 1, list(cut.joins_at)
    since[cut.target] = NEVER
    some = [
        c
        for c, others in facts.outside(frozenset((cut.target,)))
        if cut.target in facts.collective.chunks[c].destinations and all(since[r] <= 0 for r in others)
    ]
    links = {e for c in some for e in facts.carried(c)}
    release = {
        e: since[facts.src[e]]
        for e in links
        if since[facts.src[e]] + facts.took(e, facts.units[0]) < since[facts.dst[e]]
    }
    gates = [
        (gate, min(last, since[r] - 1))
        for r, each in passages_of(facts, release, facts.dst, release).items()
        for gate in each
    ]
    return all(gate.hold for gate, _ in gates) and sum(gate.between(0, end) for gate, end in gates) < len(
        some
    )
