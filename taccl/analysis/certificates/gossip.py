"""Gossip: a bound from the number of sends that a sum shared by all ranks or nodes (allreduce) requires.

The bound on sends between nodes counts early and late sends as fractions of a send. A send is early if it
starts before any rank can hold all contributions of its node. It is late if it ends when a copy can no longer
reach all ranks of a node. Such a send counts as a half, or as a share of the node's ranks: those whose data
it can carry, or those that it can still reach. docs/formulation.md, "Gossip", has the proof.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from taccl._internal.caching import cached
from taccl.analysis.certificates.certificate import Claim, Labels, OfRanks
from taccl.analysis.certificates.evaluation.arrivals import reached_in_nodes
from taccl.analysis.certificates.evaluation.facts import Facts
from taccl.analysis.certificates.evaluation.passages import GatePassage, fills, passages
from taccl.analysis.certificates.finding.gates import (
    GateCosts,
    Ints,
    fastest_senders,
    first_tick,
    gates_of,
    labels_of,
    passed_by,
    spread_times,
)
from taccl.problem.chunks import Chunk
from taccl.problem.costs import link_ends
from taccl.schedule.combine import reduce_phase

if TYPE_CHECKING:
    from taccl.analysis.certificates.finding.needed_sends import NeededSends


@dataclass(frozen=True, slots=True)
class Gossip(OfRanks):
    """Witness of gossip: sends between ranks of a set, or between nodes, that shared sums require.

    - `between_nodes`: True for sends between nodes; `ranks` are then all ranks.
    - `collected`: ((ticks, most), ...): before `ticks`, a rank can hold the contributions of at most `most`
      ranks of its node.
    - `spread`: ((ticks, most), ...): less than `ticks` after a copy enters a node, at most `most` ranks of
      the node can hold it.
    """

    kind, proves = "gossip", "cut counting"
    preference = 4
    ranks: frozenset[int]
    between_nodes: bool = False
    collected: Labels = ()
    spread: Labels = ()

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        if facts.multi or facts.in_network or not facts.sums:
            return False
        if self.between_nodes:
            return _between_nodes(facts, self, ticks)
        return _between_ranks(facts, self.ranks, ticks)


def gossip(demand: NeededSends) -> Iterator[Claim]:
    """Yield gossip bounds: n ranks (or nodes) that share a sum need at least 2(n - 1) sends among them.

    Each sharer's contribution must leave it, and the sum must reach it. At least n - 1 sends are made until
    some sharer holds the sum; each of the n - 1 others then needs one more. For ranks of one node, those with
    links to other nodes count as one sharer, together with all ranks outside.
    """
    topology = demand.topology
    everyone, nodes = frozenset(range(topology.num_ranks)), demand.families[1:]
    some = (everyone, *(each for _, sets in nodes for each in demand.different(sets)))
    witnesses = [*map(Gossip, some), Gossip(everyone, between_nodes=True)]
    for witness in witnesses:
        sends, links = Counter[int](), set[int]()
        adding, wanting = topology.num_ranks, topology.num_ranks
        for kind, count in demand.classes.items():
            part_of, over = _parts(demand, witness, demand.carried(demand.example[kind]))
            shared = sharing(kind.data, part_of)
            if shared is not None:
                parts, adders, takers = shared
                sends[kind.units] += 2 * (parts - 1) * count
                adding, wanting = min(adding, adders), min(wanting, takers)
                links |= over
        if sends and links:
            ticks, resources = passed_by(demand.problem, sends, links)
            name = f"between {'nodes' if witness.between_nodes else 'ranks'}"
            if witness.ranks != everyone:
                name = f"between ranks of node {topology.node_of_rank[min(witness.ranks)]}"
            what = f"{sends.total()} sends {name}, through {resources}"
            yield Claim(ticks, what, witness)
            if witness.between_nodes and demand.spreads_alike(in_network=False):
                costs, crossing = demand.costs, np.array(sorted(links), dtype=np.int64)
                inside = np.array(sorted(demand.allowed.difference(links)), dtype=np.int64)
                reduction = GateCosts(reduce_phase(demand.problem), int(demand.problem.costs.chunk_units[0]))
                # Ticks to gather all contributions of a node at one rank, and to spread a copy in a node.
                times = (
                    spreading_in_nodes(reduction, inside, adding),
                    spreading_in_nodes(costs, inside, wanting),
                )
                later = _passed(costs, crossing, times, sends.total())
                if later > ticks:
                    more = f"{what}, after the first sums there and before the last copies"
                    collected, spread = map(labels_of, times)
                    yield Claim(later, more, replace(witness, collected=collected, spread=spread))


def sharing(data: Chunk, part_of: Sequence[int]) -> tuple[int, int, int] | None:
    """(number of parts that share a sum, min contributors in such a part, min ranks in one that want it).

    None if fewer than two parts share the sum. A part shares a sum if one of its ranks contributes to it, and
    one of its ranks wants it.
    """
    starts, ends = (Counter(part_of[r] for r in at) for at in (data.origins, data.destinations))
    both = starts.keys() & ends.keys()
    if len(both) < 2:
        return None
    return len(both), min(starts[each] for each in both), min(ends[each] for each in both)


@cached
def _parts(demand: NeededSends, witness: Gossip, number: int) -> tuple[list[int], frozenset[int]]:
    """(number of each rank's part, links between parts); parts are nodes, or ranks, as the witness says.

    For sends between ranks, -1 is the part of all ranks outside the witness's set, and of its ranks that have
    links to them.

    - `number`: Index of the set of links that may carry the sum.
    """
    node, ranks = demand.topology.node_of_rank, np.arange(demand.topology.num_ranks)
    if witness.between_nodes:
        return list(node), demand.allowed.intersection(demand.topology.internode_links)
    links = np.array(demand.distances.links(number), dtype=np.int64)
    src, dst = (ends[links] for ends in link_ends(demand.topology))
    part = np.where(np.isin(ranks, list(witness.ranks)), ranks, -1)
    border = (part[src] < 0) != (part[dst] < 0)
    part[np.concatenate((src[border], dst[border]))] = -1
    return part.tolist(), frozenset(links[part[src] != part[dst]].tolist())


def _passed(costs: GateCosts, e: Ints, times: tuple[list[int], list[int]], sends: int) -> int:
    """Earliest tick by which links `e` can complete `sends` sends; early and late sends count in part.

    0 if nothing is proven.

    - `times`: Two lists of min ticks, with an entry for each number of ranks 1, 2, ... of a node. The first
      is until one rank can hold the data of that number of ranks; the second, until a copy can reach them.
    """
    single = _one_by_one(costs)
    took, gates = (single.link_alpha + single.link_beta)[e], gates_of(single, e, np.zeros_like(single.src))
    if not _hold_no_longer(costs, e) or not gates.hold.all():
        return 0
    head, tail = (min(int(took.min()), each[-1]) for each in times)

    def pass_all(ticks: int) -> bool:
        room = min(head + tail, max(0, ticks - 2 * int(took.max())))
        first, last = room * head // max(head + tail, 1), ticks - room * tail // max(head + tail, 1)
        for early, late in (times, ([0, head], [0, tail])):
            size = len(early) * len(late)
            starts = [min(early[i // len(late)], first) for i in range(size)]
            ends = [max(ticks - late[i // len(early)], last) for i in range(size)]
            pairs = Counter(zip(starts, ends, strict=True)), Counter(zip(starts, ends[::-1], strict=True))
            work = [
                np.sum([gates.within(*pair) * number for pair, number in some.items()], axis=0)
                for some in pairs
            ]
            if int(np.min(work, axis=0).sum()) < size * sends:
                return False
        return True

    return first_tick(pass_all)


def _one_by_one(costs: GateCosts) -> GateCosts:
    """Costs if chunks that may merge are sent one by one, and hold resources for beta only.

    A single chunk then never holds a resource for longer than its share of a merged send does.
    """
    some = copy(costs)
    some.alpha = np.where(costs.merges[costs.link], 0, costs.alpha)
    some.merges = np.zeros_like(costs.merges)
    return some


def _hold_no_longer(costs: GateCosts, links: Ints) -> bool:
    """True if no mergeable send over these links holds a resource for longer than the send itself takes."""
    at = np.flatnonzero(costs.merges[costs.link] & np.isin(costs.link, links))
    e = costs.link[at]
    return bool(((costs.alpha[at] <= costs.link_alpha[e]) & (costs.beta[at] <= costs.link_beta[e])).all())


def spreading_in_nodes(costs: GateCosts, links: Ints, num: int) -> list[int]:
    """Min ticks for a chunk to spread from one rank to 1, 2, ..., `num` ranks, all of which send it on."""
    out = gates_of(costs, links, costs.src)
    return spread_times(fastest_senders(out), [0], num)


def _between_nodes(facts: Facts, witness: Gossip, ticks: Fraction) -> bool:
    """True if links between nodes cannot pass, before `ticks`, the sends of sums that several nodes share.

    A node shares a sum if one of its ranks contributes to the sum, and one of its ranks wants it.
    """
    node = facts.topology.node_of_rank
    links = [e for e in facts.allowed if facts.topology.is_internode(e)]
    sharing = [_num_sharing(data, node) for data in facts.collective.chunks]
    sends = Counter[int]()
    for num, units in zip(sharing, facts.units, strict=True):
        sends[units] += max(0, 2 * (num - 1))
    return fills(facts, sends, links, ticks) or _fills_between_ends(facts, witness, sharing, links, ticks)


def _between_ranks(facts: Facts, ranks: frozenset[int], ticks: Fraction) -> bool:
    """True if links among the ranks cannot pass, before `ticks`, the sends of sums that several ranks share.

    A rank shares a sum if it contributes to the sum and wants it. All ranks outside together count as one
    sharer. Ranks at links that may carry the sum to or from outside belong to this sharer.
    """
    sends, over = Counter[int](), set[int]()
    for c, (data, units) in enumerate(zip(facts.collective.chunks, facts.units, strict=True)):
        links, part_of = facts.carried(c), {r: r for r in ranks}
        for e in links:
            if (facts.src[e] in ranks) != (facts.dst[e] in ranks):
                part_of.pop(facts.src[e], None)
                part_of.pop(facts.dst[e], None)
        rest = [part_of.get(r, -1) for r in range(facts.topology.num_ranks)]
        if (sharing := _num_sharing(data, rest)) > 1:
            sends[units] += 2 * (sharing - 1)
            over |= {e for e in links if rest[facts.src[e]] != rest[facts.dst[e]]}
    return fills(facts, sends, sorted(over), ticks)


def _num_sharing(data: Chunk, part_of: Sequence[int]) -> int:
    """Number of parts with a rank that contributes to a sum and a rank that wants it."""
    return len({part_of[r] for r in data.origins} & {part_of[r] for r in data.destinations})


def _fills_between_ends(
    facts: Facts, witness: Gossip, sharing: list[int], links: Sequence[int], ticks: Fraction
) -> bool:
    """True if links between nodes cannot pass the required sends before `ticks`.

    Early and late sends count as fractions of a send, as the module's docstring says.

    - `sharing`: Number of nodes that share each sum.
    """
    if not facts.spreads_alike or not links or max(sharing, default=0) < 2:
        return False
    times = reached_in_nodes(facts, witness.collected, witness.spread)
    if times is None:
        return False
    (collected, spread), last = times, math.ceil(ticks) - 1
    single, size = _singly(facts), facts.units[0]
    for e in facts.clauses.merging.intersection(links) if facts.clauses.max_merge > 1 else ():
        if any(a > facts.alpha[e] or b > facts.beta[e] for a, b, _ in facts.holds[e].values()):
            return False
    took = [single.took(e, size) for e in links]
    head, tail = min(collected[-1], *took), min(spread[-1], *took)
    room = min(head + tail, max(0, last - 2 * max(took)))
    first = room * head // max(head + tail, 1)
    since = last - room * tail // max(head + tail, 1)
    found = passages(single, links)
    number = sum(2 * max(0, n - 1) for n in sharing)
    rules = times, ([0, head], [0, tail])
    return all(gate.hold for gate in found) and any(
        sum(_most_work(gate, early, late, first, since, last) for gate in found)
        < len(early) * len(late) * number
        for early, late in rules
    )


def _most_work(
    gate: GatePassage, early: Sequence[int], late: Sequence[int], first: int, since: int, last: int
) -> int:
    """Max total weight of sends over a resource until `last`; a full send weighs ``len(early) * len(late)``.

    - `early`: Ticks, capped at `first`. For each of them, a send that starts before it loses ``len(late)`` of
      its weight.
    - `late`: Spans of ticks before `last`, which begin at `since` or later. For each of them, a send that
      ends in it loses ``len(early)`` of its weight.
    """
    starts = [min(start, first) for start in early for _ in late]
    ends = [max(last - end, since) for end in late for _ in early]
    return min(
        sum(number * gate.between(*pair) for pair, number in Counter(zip(starts, some, strict=True)).items())
        for some in (ends, ends[::-1])
    )


def _singly(facts: Facts) -> Facts:
    """Facts in which chunks that may merge are sent one by one, and hold resources for beta only."""
    if facts.clauses.max_merge == 1:
        return facts
    single, merging = copy(facts), facts.clauses.merging
    single.clauses = replace(facts.clauses, max_merge=1, merging=frozenset())
    single.holds = [
        {r: (0 if e in merging else alpha, beta, side) for r, (alpha, beta, side) in held.items()}
        for e, held in enumerate(facts.holds)
    ]
    return single
