"""Gossip: the sends that ranks, or nodes, need for sums that they share.

A send between nodes that starts before any rank can hold all contributions of its node, or ends after the
last moment at which one copy could still spread in a node, does only part of what one must do: it counts
half. docs/formulation.md, "Gossip", has the arguments.
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
from taccl.analysis.certificates.witnesses import Border, Claim
from taccl.schedule.combine import reduction_half

if TYPE_CHECKING:
    from taccl.analysis.certificates.needed_sends import NeededSends


def gossip(demand: NeededSends) -> Iterator[Claim]:
    """A sum that n ranks (or nodes) share takes at least 2(n - 1) sends, whoever adds what.

    Each one's contribution must leave it and the sum must reach it: until some one holds the sum, n - 1
    sends have been made at least, and each of the n - 1 others then still needs one.
    """
    topology = demand.topology
    everyone = frozenset(range(topology.num_ranks))
    for name, part_of, links in (
        ("ranks", tuple(everyone), demand.allowed),
        ("nodes", topology.node_of_rank, demand.allowed.intersection(topology.internode_links)),
    ):
        sends: Counter[int] = Counter()
        adding, wanting = topology.num_ranks, topology.num_ranks
        for kind, count in demand.classes.items():
            starts, ends = (
                Counter(part_of[r] for r in at) for at in (kind.data.origins, kind.data.destinations)
            )
            parts = starts.keys() & ends.keys()
            if len(parts) > 1:
                sends[kind.units] += 2 * (len(parts) - 1) * count
                adding = min(adding, *(starts[part] for part in parts))
                wanting = min(wanting, *(ends[part] for part in parts))
        if sends and links:
            ticks, resources = passed_by(demand.problem, sends, links)
            what = f"{sends.total()} sends that are needed between all {name} together, through {resources}"
            witness = Border(everyone, name == "ranks")
            yield Claim(ticks, what, witness)
            if name == "nodes" and demand.spreads_alike(in_network=False):
                costs, crossing = demand.costs, np.array(sorted(links), dtype=np.int64)
                inside = np.array(sorted(demand.allowed.difference(links)), dtype=np.int64)
                turned = GateCosts(reduction_half(demand.problem), int(demand.problem.costs.chunk_units[0]))
                # When some rank can have all that its node adds; how long a copy takes to all that want it.
                margins = _doubling(turned, inside, adding), _doubling(costs, inside, wanting)
                later = _passed(costs, crossing, margins, sends.total())
                if later > ticks:
                    more = f"{what}, after the first sums there and before the last copies"
                    yield Claim(later, more, witness)


def _passed(costs: GateCosts, e: Ints, ends: tuple[int, int], sends: int) -> int:
    """When links can have passed so many, of which those too early or too late count half; 0 says nothing."""
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
    """Costs of chunks that may travel merged, taken one behind the other: no chunk pays a latency."""
    some = copy(costs)
    some.alpha = np.where(costs.merges[costs.link], 0, costs.alpha)
    some.link_alpha = np.where(costs.merges, 0, costs.link_alpha)
    some.merges = np.zeros_like(costs.merges)
    return some


def _hold_no_longer(costs: GateCosts, links: Ints) -> bool:
    """Whether sends that may merge hold nothing for longer than they take."""
    at = np.flatnonzero(costs.merges[costs.link] & np.isin(costs.link, links))
    e = costs.link[at]
    return bool(((costs.alpha[at] <= costs.link_alpha[e]) & (costs.beta[at] <= costs.link_beta[e])).all())


def _doubling(costs: GateCosts, links: Ints, num: int) -> int:
    """How long a chunk takes at least from one rank to so many, each of which sends it on."""
    out = gates_of(costs, links, costs.src)
    return waking(fastest_senders(out), [0], num)[-1]
