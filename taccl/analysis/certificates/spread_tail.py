"""The spread-tail bound: what enters a set of ranks last must still spread to all of them that want it.

However the sends into the set are ordered, the last k chunks are in no sooner than the resources at its
border have let in all but k - 1, and than so many ranks outside as it takes can have had chunks to send.
Before that no rank of the set has any of these k, and each rank that wants one must still get it: over the
border, or from a rank of the set that has some of them by then. A chunk that comes to a rank lets one rank
more send such chunks, at most.
"""

# n chunks that enter, k the last of them; a pair is a chunk and a rank of the set that wants it

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice

import numpy as np

from taccl.analysis.certificates.gates import (
    FOREVER,
    Costs,
    Gates,
    Ints,
    Sender,
    fastest_senders,
    gates_of,
    waking,
)
from taccl.analysis.certificates.needed_sends import NeededSends
from taccl.analysis.certificates.witnesses import Claim, SpreadTail

#: Of how many last chunks every number is tried, and how many they are at most.
_EVERY, _MOST = 16, 256
#: So many numbers of ranks that want a chunk are tried as the least.
_MOST_SIZES = 4


def spread_tail_bounds(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Of every node that no symmetry takes to an earlier one; of all ranks, or nodes, without any at first.

    Of a sum, what ranks outside contribute is a chunk like others.
    """
    if not demand.spreads_alike(in_network=in_network):
        return
    nodes = demand.families[1][1] if demand.topology.num_nodes > 1 else []
    origins = frozenset().union(*(kind.data.origins for kind in demand.classes))
    empty = [
        frozenset().union(*(each for each in sets if each.isdisjoint(origins))) for _, sets in demand.families
    ]
    for ranks in dict.fromkeys((*demand.different(nodes), *empty)):
        sizes, release, first = _entering(demand, ranks)
        spread = Spread.of(demand.costs, ranks, release, first) if len(ranks) > 1 else None
        if spread is None:
            continue
        for least in sorted(set(sizes), reverse=True)[:_MOST_SIZES]:
            some = [size for size in sizes if size >= least]
            ticks, last = spread.best(some)
            of = f"{last} of {len(some)} chunks" if len(some) > 1 else "chunk"
            into = f"node {demand.topology.node_of_rank[min(ranks)]}" if ranks in nodes else "empty ranks"
            what = f"the last {of} to enter {into}, which then spread to {least} ranks or more of it"
            yield Claim(ticks, what, SpreadTail(ranks, least, last))


def _entering(demand: NeededSends, ranks: frozenset[int]) -> tuple[list[int], Ints, frozenset[int]]:
    """What must enter a set: by how many of its ranks each chunk is wanted, rising.

    And when links can have some first, and the ranks outside that do at first.
    """
    sizes: list[int] = []
    starts: dict[int, set[int]] = defaultdict(set)
    for kind, c in demand.example.items():
        outside, wanted = set(kind.data.origins) - ranks, ranks.intersection(kind.data.destinations)
        if outside and wanted and (demand.sums_for_all or ranks.isdisjoint(kind.data.origins)):
            sizes += [len(wanted)] * demand.classes[kind]
            starts[demand.carried(c)].update(outside)
    return sorted(sizes), demand.first_uses(starts), frozenset().union(*starts.values())


class Spread:
    """How fast chunks can come into a set of ranks, and spread inside.

    - `enter`, `direct`: What crosses the border, all of it and by rank; `inside`: what does not, by rank.
    - `out`: What ranks of the set send inside.
    - `fed`: The same of ranks outside, over the border; and when they have something, one after another.
    """

    def __init__(
        self,
        enter: Gates,
        inside: Gates,
        direct: Gates,
        out: Gates,
        num_ranks: int,
        fed: tuple[Gates, list[int]] | None,
    ) -> None:
        self.enter, self.inside, self.direct, self.num_ranks = enter, inside, direct, num_ranks
        self.fed = fed
        self._senders = cache(lambda most: fastest_senders(out, most))
        self._merges = out.most.max(initial=1) > 1

    @classmethod
    def of(
        cls, costs: Costs, ranks: frozenset[int], release: Ints, first: frozenset[int] | None = None
    ) -> Spread | None:
        """The gates of a set; None where nothing can be said.

        - `first`: The ranks outside that have something at first. Default: all.
        """
        inner = np.zeros(int(max(costs.src.max(), costs.dst.max())) + 1, dtype=bool)
        inner[list(ranks)] = True
        used, leaves, enters = release < FOREVER, inner[costs.src], inner[costs.dst]
        border, inside = np.flatnonzero(used & enters & ~leaves), np.flatnonzero(used & enters & leaves)
        if not len(border):
            return None
        none = np.zeros(len(costs.src), dtype=np.int64)
        enter = gates_of(costs, border, none, release)
        fed = None
        if first is not None and len(first) < np.count_nonzero(~inner):
            outside, back = np.flatnonzero(used & ~enters & ~leaves), used & leaves & ~enters
            took = costs.link_alpha + costs.link_beta
            # From when on one that was in can be out again, all are taken to have something.
            again = int((release + took)[border].min()) + int(took[back].min(initial=FOREVER))
            wakes = fastest_senders(gates_of(costs, outside, costs.src, none)) if len(outside) else []
            when = waking(wakes, len(first), int(np.count_nonzero(~inner)))
            fed = gates_of(costs, border, costs.src, none), [min(each, again) for each in when]
        return cls(
            enter,
            gates_of(costs, inside, costs.dst, none),
            gates_of(costs, border, costs.dst, none),
            gates_of(costs, inside, costs.src, none),
            len(ranks),
            fed,
        )

    def best(self, sizes: Sequence[int]) -> tuple[int, int]:
        """(ticks, k) of the number of last chunks that says the most; `sizes` are those of chunks, rising."""
        num, most = len(sizes), min(len(sizes), _MOST)
        pairs = np.cumsum(sizes[:most])
        entries = np.sort(self.enter.arrivals(num + int(pairs[-1])).ravel())[: num + int(pairs[-1])]
        entries = np.maximum(entries, self._fed(num, len(entries)))
        into_rank = self._into_ranks(most)
        best, last = (0, 1), 0
        while last < most:
            last = min(most, last + 1 if last < _EVERY else last + last // 4)
            # All that can be in no sooner than the last so many.
            since = int(entries[num - last])
            last = min(most, num - int(np.searchsorted(entries, since)))
            into = np.sort(into_rank[:, :last], axis=None) + since
            ticks = self._spread(entries[num - last :].tolist(), into.tolist(), int(pairs[last - 1]), last)
            best = max(best, (ticks, last), key=lambda each: each[0])
        return best

    def after(self, sizes: Sequence[int], last: int) -> int:
        """How long after a moment so many chunks take at least to be with all, if none is in before."""
        pairs = sum(sizes[:last])
        enter = replace(self.enter, most=np.minimum(self.enter.most, last))  # a send has each but once
        entries = np.sort(enter.more_ends(pairs + 1), axis=None)
        into = np.sort(self._into_ranks(last), axis=None)
        return self._spread(entries.tolist(), into.tolist(), pairs, last)

    def _fed(self, chunks: int, num: int) -> Ints:
        """(num,) when so many entries, of so many chunks, can have come from outside at the earliest."""
        if self.fed is None:
            return np.zeros(num, dtype=np.int64)
        border, when = self.fed

        def sent(since: int, sender: Sender) -> Iterator[int]:
            return (since + sender.when(i) for i in range(num))

        senders = fastest_senders(border, chunks)  # a send has each chunk but once
        ends = heapq.merge(*(sent(since, sender) for since in when[:num] for sender in senders))
        return np.array([*islice(ends, num)], dtype=np.int64)

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

    def _spread(self, entries: Sequence[int], into: Sequence[int], pairs: int, last: int) -> int:
        """When so many pairs can have come about: by entries, and by ranks that have a chunk by then."""
        senders = self._senders(last if self._merges else 1)
        queue: list[tuple[int, int, int, Sender]] = []
        entered = awake = when = 0
        for soonest in into[:pairs]:
            if queue and queue[0][0] <= entries[entered]:
                when, since, sent, sender = queue[0]
                heapq.heapreplace(queue, (since + sender.when(sent + 1), since, sent + 1, sender))
            else:
                when = entries[entered]
                entered += 1
            when = max(when, soonest)
            if awake < self.num_ranks:
                awake += 1
                for sender in senders:
                    heapq.heappush(queue, (when + sender.when(0), when, 0, sender))
        return when
