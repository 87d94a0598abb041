"""Sums between nodes: a bound over all chunkings for sums that several nodes share (allreduce).

Each byte of a sum that n nodes share needs at least 2(n - 1) sends between nodes. A send that starts before
a rank can hold all contributions of its node counts for less than one. So does a send that ends when a copy
can no longer reach all ranks of a node. Resources between nodes carry one byte after another, and so pass
few sends in a given time. This is `gossip` without chunks: see docs/formulation.md, "Sums between nodes".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from taccl.analysis.certificates.byte_counting import weightless
from taccl.analysis.certificates.certificate import Claim, Labels, OfResources
from taccl.analysis.certificates.evaluation.arrivals import reached_in_nodes
from taccl.analysis.certificates.evaluation.facts import Facts, lanes
from taccl.analysis.certificates.finding.gates import GateCosts, labels_of
from taccl.analysis.certificates.finding.needed_sends import Lane, NeededSends
from taccl.analysis.certificates.gossip import sharing, spreading_in_nodes
from taccl.schedule.combine import reduce_phase


@dataclass(frozen=True, slots=True)
class NodeSums(OfResources):
    """Witness of sums between nodes: resources that cover the links between nodes, and times inside nodes.

    - `resources`: The resources; a link is assigned to the first that it holds.
    - `collected`: ((ticks, most), ...): before `ticks`, a rank can hold the contributions of at most `most`
      ranks of its node.
    - `spread`: ((ticks, most), ...): less than `ticks` after a copy enters a node, at most `most` ranks of
      the node can hold it.
    """

    kind = proves = "sums between nodes"
    preference = 12
    any_chunking = True
    resources: tuple[int, ...]
    collected: Labels = ()
    spread: Labels = ()

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        return _fills(facts, self, ticks)


def node_sum_bounds(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Yield the bound of sums between nodes, if several nodes share sums and data may be cut anywhere."""
    problem, topology = demand.problem, demand.topology
    if in_network or not demand.single_ended or problem.collective.derivations or not demand.sums_for_all:
        return
    crossing = sorted(demand.allowed.intersection(topology.internode_links))
    found = [
        (shared, kind.units * demand.classes[kind])
        for kind in demand.classes
        if (shared := sharing(kind.data, topology.node_of_rank)) is not None
    ]
    resources = demand.lanes(crossing)
    if not found or not resources or _holds_longer(demand, crossing):
        return
    demand.deadline.check()
    need = sum(2 * (nodes - 1) * units for (nodes, _, _), units in found)
    adding, wanting = (min(shared[i] for shared, _ in found) for i in (1, 2))
    single = problem.with_clauses(max_merge=1, merging=frozenset())
    inside = np.array(sorted(demand.allowed.difference(crossing)), dtype=np.int64)
    times = (
        spreading_in_nodes(GateCosts(reduce_phase(single), 0), inside, adding),
        spreading_in_nodes(GateCosts(single, 0), inside, wanting),
    )
    passing = Counter(resources.values())
    longest = max(int(problem.costs.link_alpha[e]) for e in crossing)
    ticks = _least_ticks(passing, times, longest, need)
    if ticks > 0:
        most = max(nodes for (nodes, _, _), _ in found)
        what = f"sends of sums between {most} nodes, after the first sums there and before the last copies"
        collected, spread = map(labels_of, times)
        yield Claim(ticks, what, NodeSums(tuple(resources), collected, spread))


def _holds_longer(demand: NeededSends, links: Sequence[int]) -> bool:
    """True if a send over one of the links holds a resource for more time per byte than the send takes."""
    beta = demand.problem.costs.link_beta
    return any(held > beta[e] for e in links for _, held, _ in demand.held[e].values())


def _least_ticks(
    passing: Counter[Lane], times: tuple[Sequence[int], Sequence[int]], longest: int, need: int
) -> Fraction:
    """Bound in ticks from the sums that nodes share; 0 if nothing is proven.

    - `passing`: {lane: number of resources with its costs}; these resources cover all links between nodes.
    - `times`: Two lists of min ticks, with an entry for each number of ranks 1, 2, ... of a node. The first
      is until one rank can hold the data of that number of ranks; the second, until a copy can reach them.
    - `longest`: Max latency of a link between nodes.
    - `need`: Required sends, times the units of each.
    """
    shortest = min(lane.idle for lane in passing)
    if not all(lane.beta for lane in passing) or shortest <= 0:
        return Fraction(0)
    head, tail = (min(shortest, each[-1]) for each in times)
    best = Fraction(0)
    for early, late in (times, ([0, head], [0, tail])):
        starts = [min(start, head) for start in early for _ in late]
        ends = [min(end, tail) for end in late for _ in early]
        for some in (ends, ends[::-1]):
            spans = Counter(a + b for a, b in zip(starts, some, strict=True))
            best = max(best, least_filled(passing, spans, len(starts) * need))
    return best if best > head + tail + 2 * longest else Fraction(0)


def least_filled(passing: Counter[Lane], spans: Counter[int], need: int) -> Fraction:
    """Least ticks T in which resources pass `need` units; for each span s, they pass units for T - s ticks.

    - `passing`: {lane: number of resources with its costs}.
    - `spans`: {ticks s in which a resource carries nothing: number of such spans}.
    """
    events = sorted(
        (lane.idle + span, Fraction(count * number, lane.beta))
        for lane, count in passing.items()
        for span, number in spans.items()
    )
    passed, rate, now = Fraction(0), Fraction(0), 0
    for when, more in events:
        if passed + rate * (when - now) >= need:
            break
        passed, rate, now = passed + rate * (when - now), rate + more, when
    return now + (need - passed) / rate


def _fills(facts: Facts, witness: NodeSums, ticks: Fraction) -> bool:
    """True if resources between nodes cannot pass the required sends before `ticks`, in any chunking."""
    if facts.multi or facts.made_at or facts.in_network or facts.only_switches_add or not facts.sums:
        return False
    node, links = facts.topology.node_of_rank, [e for e in facts.allowed if facts.topology.is_internode(e)]
    need = 0
    for data, units in zip(facts.collective.chunks, facts.units, strict=True):
        shared = {node[r] for r in data.origins}.intersection(node[r] for r in data.destinations)
        need += 2 * max(0, len(shared) - 1) * units
    if not need or any(beta > facts.beta[e] for e in links for _, beta, _ in facts.holds[e].values()):
        return False
    times = reached_in_nodes(facts, witness.collected, witness.spread, weightless)
    found, is_covered = lanes(facts, links, witness.resources)
    if times is None or not is_covered:
        return False
    wait = min(idle for _, _, idle in found)
    head, tail = (min(wait, each[-1]) for each in times)
    if wait <= 0 or ticks <= head + tail + 2 * max(facts.alpha[e] for e in links):
        return False

    def passed(span: int | Fraction) -> Fraction:
        return sum((max(Fraction(0), ticks - span - idle) / beta for _, beta, idle in found), Fraction(0))

    for early, late in (times, ([0, head], [0, tail])):
        before = [min(each, head) for each in early for _ in late]
        after = [min(each, tail) for each in late for _ in early]
        for some in (after, after[::-1]):
            spans = Counter(a + b for a, b in zip(before, some, strict=True))
            total = sum((number * passed(span) for span, number in spans.items()), Fraction(0))
            if total <= len(before) * need:
                return True
    return False
