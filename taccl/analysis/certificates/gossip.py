"""Gossip: the sends that ranks, or nodes, need for sums that they share.

A send between nodes that starts before any rank can hold all contributions of its node, or ends after the
last moment at which one copy could still spread in a node, does only part of what one must do: it counts
half. docs/formulation.md, "Gossip", has the argument.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterator
from copy import copy
from typing import TYPE_CHECKING

import numpy as np

from taccl.analysis.certificates.gates import (
    FOREVER,
    Costs,
    Ints,
    fastest_senders,
    first_tick,
    gates_of,
    passed_by,
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
            what = f"{sends.total()} sends are needed between all {name} together, through {resources}"
            witness = Border(everyone, name == "ranks")
            yield Claim(ticks, what, witness)
            if max(adding, wanting) > 1 and demand.spreads_alike(in_network=False):
                inside = demand.allowed - links
                later = _between_ends(demand, sends.total(), links, inside, adding, wanting)
                if later > ticks:
                    yield Claim(
                        later, f"{what}, after the first sums there and before the last copies", witness
                    )


def _between_ends(
    demand: NeededSends,
    sends: int,
    links: Collection[int],
    inside: Collection[int],
    adding: int,
    wanting: int,
) -> int:
    """When links between nodes can have passed so many sends, those too early or too late to do all for half.

    - `adding`, `wanting`: The fewest ranks of a node that contribute to a sum, and that want it.
    """
    costs, e = _one_by_one(demand.costs), np.array(sorted(links), dtype=np.int64)
    none = np.zeros(len(costs.src), dtype=np.int64)
    took = (costs.link_alpha + costs.link_beta)[e]
    backwards = Costs(reduction_half(demand.problem), int(demand.problem.costs.chunk_units[0]))
    head = min(int(took.min()), _doubling(backwards, inside, adding))
    tail = min(int(took.min()), _doubling(demand.costs, inside, wanting))
    gates = gates_of(costs, e, none, none)
    if not (head or tail) or not gates.hold.all() or not _hold_no_longer(demand.costs, e):
        return 0

    def passes(ticks: int) -> bool:
        room = min(head + tail, max(0, ticks - 2 * int(took.max())))
        first, last = room * head // (head + tail), ticks - room * tail // (head + tail)
        halves = [
            2 * gates.within(start, end) - (start < first) - (end > last)
            for start in (0, first)
            for end in (last, ticks)
        ]
        return int(np.max(halves, axis=0).sum()) >= 2 * sends

    return first_tick(passes)


def _one_by_one(costs: Costs) -> Costs:
    """Costs of chunks that may travel merged, taken one behind the other: no chunk pays a latency."""
    some = copy(costs)
    some.alpha = np.where(costs.merges[costs.link], 0, costs.alpha)
    some.link_alpha = np.where(costs.merges, 0, costs.link_alpha)
    some.merges = np.zeros_like(costs.merges)
    return some


def _hold_no_longer(costs: Costs, links: Ints) -> bool:
    """Whether sends that may merge hold nothing for longer than they take."""
    at = np.flatnonzero(costs.merges[costs.link] & np.isin(costs.link, links))
    e = costs.link[at]
    return bool(((costs.alpha[at] <= costs.link_alpha[e]) & (costs.beta[at] <= costs.link_beta[e])).all())


def _doubling(costs: Costs, links: Collection[int], num: int) -> int:
    """How long a chunk takes at least from one rank to so many, each of which sends it on."""
    out = gates_of(costs, np.array(sorted(links), dtype=np.int64), costs.src, np.zeros_like(costs.src))
    senders = fastest_senders(out) if links else []
    queue, when = sorted(senders), 0
    for _ in range(num - 1):
        if not queue:
            return FOREVER
        when, again = queue[0]
        heapq.heapreplace(queue, (when + again, again))
        for first, every in senders:
            heapq.heappush(queue, (when + first, every))
    return when
