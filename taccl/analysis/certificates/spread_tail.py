"""The spread-tail bound: what enters a node last must still spread to all ranks of the node that want it.

However the sends into the node are ordered, the last k chunks are in no sooner than the resources at its
border have let in all but k - 1. Before that no rank of the node has any of these k, and each rank that wants
one must still get it: over the border, or from a rank of the node that has some of them by then. A chunk that
comes to a rank lets one rank more send such chunks, at most.
"""

# n chunks that enter, k the last of them; a pair is a chunk and a rank of the node that wants it

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from taccl.analysis.certificates.gates import FOREVER, Costs, Gates, Ints, fastest_senders, gates_of
from taccl.analysis.certificates.needed_sends import NeededSends
from taccl.analysis.certificates.witnesses import Claim, SpreadTail

#: Of how many last chunks every number is tried, and how many they are at most.
_EVERY, _MOST = 16, 256
#: So many numbers of ranks that want a chunk are tried as the least.
_MOST_SIZES = 4


def spread_tail_bounds(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Of every node that no symmetry takes to an earlier one, whose inside merges no sends.

    Of a sum, what ranks outside contribute is a chunk like others.
    """
    if demand.topology.num_nodes == 1 or not demand.spreads_alike(in_network=in_network):
        return
    for ranks in demand.different(demand.families[1][1]):
        sizes, release = _entering(demand, ranks)
        spread = Spread.of(demand.costs, ranks, release) if len(ranks) > 1 else None
        if spread is None:
            continue
        for least in sorted(set(sizes), reverse=True)[:_MOST_SIZES]:
            some = [size for size in sizes if size >= least]
            ticks, last = spread.best(some)
            node = demand.topology.node_of_rank[min(ranks)]
            of = f"{last} of {len(some)} chunks" if len(some) > 1 else "chunk"
            what = f"the last {of} to enter node {node}, which then spread to {least} ranks or more of it"
            yield Claim(ticks, what, SpreadTail(ranks, least, last))


def _entering(demand: NeededSends, ranks: frozenset[int]) -> tuple[list[int], Ints]:
    """By how many ranks of a node chunks are wanted that must enter it, rising; when links can have one."""
    sizes: list[int] = []
    starts: dict[int, set[int]] = defaultdict(set)
    for kind, c in demand.example.items():
        outside, wanted = set(kind.data.origins) - ranks, ranks.intersection(kind.data.destinations)
        if outside and wanted and (demand.sums_for_all or ranks.isdisjoint(kind.data.origins)):
            sizes += [len(wanted)] * demand.classes[kind]
            starts[demand.carried(c)].update(outside)
    return sorted(sizes), demand.first_uses(starts)


class Spread:
    """How fast chunks can come into a node, and spread inside."""

    def __init__(self, enter: Gates, inside: Gates, direct: Gates, out: Gates, num_ranks: int) -> None:
        self.enter, self.inside, self.direct, self.num_ranks = enter, inside, direct, num_ranks
        self.senders = fastest_senders(out)

    @classmethod
    def of(cls, costs: Costs, ranks: frozenset[int], release: Ints) -> Spread | None:
        """The gates of a node; None where nothing can be said."""
        inner = np.zeros(int(max(costs.src.max(), costs.dst.max())) + 1, dtype=bool)
        inner[list(ranks)] = True
        used = (release < FOREVER) & inner[costs.dst]
        border, inside = np.flatnonzero(used & ~inner[costs.src]), np.flatnonzero(used & inner[costs.src])
        if not len(border) or costs.merges[inside].any():
            return None
        none = np.zeros(len(costs.src), dtype=np.int64)
        return cls(
            gates_of(costs, border, none, release),
            gates_of(costs, inside, costs.dst, none),
            gates_of(costs, border, costs.dst, none),
            gates_of(costs, inside, costs.src, none),
            len(ranks),
        )

    def best(self, sizes: Sequence[int]) -> tuple[int, int]:
        """(ticks, k) of the number of last chunks that says the most; `sizes` are those of chunks, rising."""
        num, most = len(sizes), min(len(sizes), _MOST)
        pairs = np.cumsum(sizes[:most])
        entries = np.sort(self.enter.arrivals(num + int(pairs[-1])).ravel())[: num + int(pairs[-1])]
        into_rank = self._into_ranks(most)
        best, last = (0, 1), 0
        while last < most:
            last = min(most, last + 1 if last < _EVERY else last + last // 4)
            # All that can be in no sooner than the last so many.
            since = int(entries[num - last])
            last = min(most, num - int(np.searchsorted(entries, since)))
            into = np.sort(into_rank[:, :last], axis=None) + since
            ticks = self._spread(entries[num - last :].tolist(), into.tolist(), int(pairs[last - 1]))
            best = max(best, (ticks, last), key=lambda each: each[0])
        return best

    def after(self, sizes: Sequence[int], last: int) -> int:
        """How long after a moment so many chunks take at least to be with all, if none is in before."""
        pairs = sum(sizes[:last])
        enter = replace(self.enter, most=np.minimum(self.enter.most, last))  # a send has each but once
        entries = np.sort(enter.more_ends(pairs + 1), axis=None)
        into = np.sort(self._into_ranks(last), axis=None)
        return self._spread(entries.tolist(), into.tolist(), pairs)

    def _into_ranks(self, num: int) -> Ints:
        """(num_ranks, num) after how long since some moment so many chunks can come to each rank."""
        found: dict[int, list[Ints]] = {}
        for gates, times in (
            (self.inside, self.inside.arrivals(num)),
            (self.direct, self.direct.more_ends(num)),
        ):
            for i, ticks in zip(gates.of_set.tolist(), times, strict=True):
                found.setdefault(i, []).append(ticks)
        return np.array([np.sort(np.concatenate(each))[:num] for each in found.values()], dtype=np.int64)

    def _spread(self, entries: Sequence[int], into: Sequence[int], pairs: int) -> int:
        """When so many pairs can have come about: by entries, and by ranks that have a chunk by then."""
        queue: list[tuple[int, int]] = []
        entered = awake = when = 0
        for soonest in into[:pairs]:
            if queue and queue[0][0] <= entries[entered]:
                when, again = queue[0]
                heapq.heapreplace(queue, (when + again, again))
            else:
                when = entries[entered]
                entered += 1
            when = max(when, soonest)
            if awake < self.num_ranks:
                awake += 1
                for first, again in self.senders:
                    heapq.heappush(queue, (when + first, again))
        return when
