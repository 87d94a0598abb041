"""Gossip: sends between ranks, between ranks of a node, or between nodes that shared sums require.

A send between nodes counts half if it does only part of the work of a send. This is so if it starts before
any rank can hold all contributions of its node. It is also so if it ends too late for one copy to spread in a
node. docs/formulation.md, "Gossip", has the arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from copy import copy
from typing import TYPE_CHECKING

import numpy as np

from taccl.analysis.certificates.gates import (
    GateCosts,
    Ints,
    fastest_senders,
    first_tick,
    gates_of,
    passed_by,
    waking,
)
from taccl.analysis.certificates.witnesses import Border, Claim, Gossip
from taccl.caching import cached
from taccl.costs import link_ends
from taccl.schedule.combine import reduction_half

if TYPE_CHECKING:
    from taccl.analysis.certificates.needed_sends import NeededSends


def gossip(demand: NeededSends) -> Iterator[Claim]:
    """Yield claims from shared sums: n ranks (or nodes) that share a sum need at least 2(n - 1) sends.

    Each sharer's contribution must leave it, and the sum must reach it. At least n - 1 sends are made until
    some sharer holds the sum; each of the n - 1 others then needs one more. Within a node, ranks with links
    to other nodes count as one, together with all ranks outside.
    """
    topology = demand.topology
    everyone, nodes = frozenset(range(topology.num_ranks)), demand.families[1:]
    some = (everyone, *(each for _, sets in nodes for each in demand.different(sets)))
    witnesses: list[Border | Gossip] = [*map(Gossip, some), Border(everyone, False)]
    for witness in witnesses:
        sends, links = Counter[int](), set[int]()
        adding, wanting = topology.num_ranks, topology.num_ranks
        for kind, count in demand.classes.items():
            part_of, over = _parts(demand, witness, demand.carried(demand.example[kind]))
            starts, ends = (
                Counter(part_of[r] for r in at) for at in (kind.data.origins, kind.data.destinations)
            )
            parts = starts.keys() & ends.keys()
            if len(parts) > 1:
                sends[kind.units] += 2 * (len(parts) - 1) * count
                adding = min(adding, *(starts[part] for part in parts))
                wanting = min(wanting, *(ends[part] for part in parts))
                links |= over
        if sends and links:
            ticks, resources = passed_by(demand.problem, sends, links)
            name = f"all {'ranks' if isinstance(witness, Gossip) else 'nodes'} together"
            if witness.ranks != everyone:
                name = f"ranks of node {topology.node_of_rank[min(witness.ranks)]}"
            what = f"{sends.total()} sends that are needed between {name}, through {resources}"
            yield Claim(ticks, what, witness)
            if isinstance(witness, Border) and demand.spreads_alike(in_network=False):
                costs, crossing = demand.costs, np.array(sorted(links), dtype=np.int64)
                inside = np.array(sorted(demand.allowed.difference(links)), dtype=np.int64)
                turned = GateCosts(reduction_half(demand.problem), int(demand.problem.costs.chunk_units[0]))
                # Time until some rank can hold all that its node adds; time for a copy to reach all that want
                # it.
                margins = _doubling(turned, inside, adding), _doubling(costs, inside, wanting)
                later = _passed(costs, crossing, margins, sends.total())
                if later > ticks:
                    more = f"{what}, after the first sums there and before the last copies"
                    yield Claim(later, more, witness)


@cached
def _parts(demand: NeededSends, witness: Border | Gossip, number: int) -> tuple[list[int], frozenset[int]]:
    """Part of every rank, and links between parts: nodes, or single ranks and all others."""
    node, ranks = demand.topology.node_of_rank, np.arange(demand.topology.num_ranks)
    if isinstance(witness, Border):
        return list(node), demand.allowed.intersection(demand.topology.internode_links)
    links = np.array(demand.distances.links(number), dtype=np.int64)
    src, dst = (ends[links] for ends in link_ends(demand.topology))
    part = np.where(np.isin(ranks, list(witness.ranks)), ranks, -1)
    border = (part[src] < 0) != (part[dst] < 0)
    part[np.concatenate((src[border], dst[border]))] = -1
    return part.tolist(), frozenset(links[part[src] != part[dst]].tolist())


def _passed(costs: GateCosts, e: Ints, ends: tuple[int, int], sends: int) -> int:
    """Earliest time by which links can pass the sends, early or late ones counted half; 0 proves nothing."""
    single = _one_by_one(costs)
    took, gates = (single.link_alpha + single.link_beta)[e], gates_of(single, e, np.zeros_like(single.src))
    if not _hold_no_longer(costs, e) or not gates.hold.all():
        return 0
    head, tail = (min(int(took.min()), end) for end in ends)

    def halves(ticks: int) -> int:
        room = min(head + tail, max(0, ticks - 2 * int(took.max())))
        first, last = room * head // max(head + tail, 1), ticks - room * tail // max(head + tail, 1)
        found = [
            2 * gates.within(start, end) - (start < first) - (end > last)
            for start in (0, first)
            for end in (last, ticks)
        ]
        found = [np.max(found, axis=0), gates.within(0, ticks) + gates.within(first, last)]
        return int(np.min(found, axis=0).sum())

    return first_tick(lambda ticks: halves(ticks) >= 2 * sends)


def _one_by_one(costs: GateCosts) -> GateCosts:
    """Costs of mergeable chunks that are sent one after the other, without latency."""
    some = copy(costs)
    some.alpha = np.where(costs.merges[costs.link], 0, costs.alpha)
    some.link_alpha = np.where(costs.merges, 0, costs.link_alpha)
    some.merges = np.zeros_like(costs.merges)
    return some


def _hold_no_longer(costs: GateCosts, links: Ints) -> bool:
    """True if sends that may merge hold no resource for longer than they last."""
    at = np.flatnonzero(costs.merges[costs.link] & np.isin(costs.link, links))
    e = costs.link[at]
    return bool(((costs.alpha[at] <= costs.link_alpha[e]) & (costs.beta[at] <= costs.link_beta[e])).all())


def _doubling(costs: GateCosts, links: Ints, num: int) -> int:
    """Min ticks for a chunk to get from one rank to `num` ranks, each of which sends it on."""
    out = gates_of(costs, links, costs.src)
    return waking(fastest_senders(out), [0], num)[-1]
