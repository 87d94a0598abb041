"""The spread-tail bound: what enters sets of ranks last must still spread to all there that want it.

However the sends into the sets are ordered, the last k entries are no sooner over than the resources at the
borders have let in all but k - 1, and than so many ranks as it takes can have had chunks to send. Before that
no rank has any of these k in its set, and each that wants one must still get it: over the border, or from a
rank of the set that has it by then. A chunk that comes to a rank lets one rank more send such chunks, at
most; and from where it enters it is a while to the ranks farther off.
"""

# n chunks that enter, once for each set, k the last of them; a pair is one of these and a rank that wants it

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, islice, repeat

import numpy as np
from numpy.typing import NDArray

from taccl.analysis.certificates.gates import (
    FOREVER,
    GateCosts,
    Gates,
    Ints,
    fastest_senders,
    gates_of,
    nearest,
    sends_of,
    waking,
)
from taccl.analysis.certificates.needed_sends import NeededSends
from taccl.analysis.certificates.volume import set_of_rank
from taccl.analysis.certificates.witnesses import Claim, SpreadTail
from taccl.units import part_of

#: Of how many last chunks every number is tried, and how many they are at most.
_EVERY, _MOST = 16, 256
#: So many numbers of ranks that want a chunk are tried as the least.
_MOST_SIZES = 4
#: Of more pairs of an entry and a rank it is not asked how far ranks are from entries.
_MOST_WAYS = 2_000_000


#: Gates by sender, and when each sender has something.
Fed = list[tuple[Gates, list[int]]]


def spread_tail_bounds(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Of every node that no symmetry takes to an earlier one; of all ranks, or nodes, without any at first.

    Of a sum, what ranks outside contribute is a chunk like others.
    """
    if not demand.spreads_alike(in_network=in_network):
        return
    origins = frozenset().union(*(kind.data.origins for kind in demand.classes))
    choices: dict[tuple[frozenset[int], ...], str] = {}
    if demand.topology.num_nodes > 1:
        for ranks in demand.different(demand.families[1][1]):
            choices[ranks,] = f"node {demand.topology.node_of_rank[min(ranks)]}"
    for name, family in demand.families:
        empty = tuple(ranks for ranks in family if ranks.isdisjoint(origins))
        if empty:
            choices.setdefault((frozenset().union(*empty),), f"empty {name}s")
            if name == "node":
                choices.setdefault(empty, f"empty {name}s one by one")
    for sets, into in choices.items():
        demand.deadline.check()
        sizes, release, first = _entering(demand, sets)
        if max(sizes, default=0) < 2:
            continue
        spread = TailSpread(demand.costs, sets, release, first)
        for least in sorted(set(sizes), reverse=True)[:_MOST_SIZES]:
            some = [size for size in sizes if size >= least]
            ticks, last = spread.best(some)
            those, s = part_of("last", last, len(some), "chunk", "chunks"), "s" * (last == 1)
            what = f"{those} to enter {into}, which then spread{s} to {least} ranks or more of it"
            yield Claim(ticks, what, SpreadTail(sets, least, last))


def _entering(
    demand: NeededSends, sets: tuple[frozenset[int], ...]
) -> tuple[list[int], Ints, frozenset[int]]:
    """What must enter sets: by how many of the ranks of each set each chunk is wanted, rising.

    And when links can have some first, and the ranks outside that do at first.
    """
    every = frozenset().union(*sets)
    starts = {
        kind: others
        for kind, others in demand.outside(every).items()
        if not every.isdisjoint(kind.data.destinations)
    }
    sizes: list[int] = []
    for kind in starts:
        wanted = (len(ranks.intersection(kind.data.destinations)) for ranks in sets)
        sizes += [number for number in wanted if number] * demand.classes[kind]
    return sorted(sizes), demand.first_uses(starts), frozenset().union(*starts.values())


class TailSpread:
    """How fast chunks can come into sets of ranks, and spread inside.

    - `release`, (num_links,) int64: When each link can carry one first.
    - `first`: The ranks outside that have something at first. Default: all, and no rank is waited for.
    """

    def __init__(
        self,
        costs: GateCosts,
        sets: Sequence[frozenset[int]],
        release: Ints,
        first: frozenset[int] | None = None,
    ) -> None:
        label = set_of_rank(costs.num_ranks, sets)
        used, src, dst = release < FOREVER, label[costs.src], label[costs.dst]
        enters, inside = used & (dst >= 0) & (src != dst), used & (dst >= 0) & (src == dst)
        none = np.zeros(len(src), dtype=np.int64)

        def gates(chosen: NDArray[np.bool_], of_set: Ints, since: Ints | None = None) -> Gates:
            return gates_of(costs, np.flatnonzero(used & chosen), of_set, since)

        #: What crosses a border, all of it, by set and by rank; and what does not, by rank.
        self.enter, self.into_set = gates(enters, none, release), gates(enters, dst)
        self.direct, self.inside = gates(enters, costs.dst), gates(inside, costs.dst)
        #: (num_ranks,) after how long so many ranks at most can have what entered at one.
        self.near = nearest(costs, inside, costs.dst[enters], label >= 0)
        out = gates(inside, costs.src)
        self._merges = out.most.max(initial=1) > 1
        self._senders = cache(lambda most: fastest_senders(out, most))
        #: What crosses a border, of those outside and of those in other sets, as ranks and as sets send it.
        self._fed: list[Fed] = []
        outside, every = int(np.count_nonzero(label < 0)), int(np.count_nonzero(label >= 0))
        if first is not None and (len(sets) > 1 or len(first) < outside):
            took = costs.link_alpha + costs.link_beta
            awake = waking(
                fastest_senders(gates((src < 0) & (dst < 0), costs.src)), [0] * len(first), outside
            )
            # From when on one that was in can be out again, all outside are taken to have something.
            again = sum(
                int(took[some].min(initial=FOREVER)) for some in (enters, used & (src >= 0) & (dst < 0))
            )
            border, onward = enters & (src < 0), enters & (src >= 0)
            early = [
                (gates(border, costs.src), [min(each, again) for each in awake]),
                (gates(border, none, release), [0]),
            ]
            wakes = fastest_senders(gates((src >= 0) & (dst >= 0), costs.src))
            late = waking(wakes, _entries(early, 1), every)
            reached = waking(fastest_senders(gates(onward, src)), _entries(early, 1), len(sets))
            self._fed = [early, [(gates(onward, costs.src), late), (gates(onward, src), reached)]]

    def best(self, sizes: Sequence[int]) -> tuple[int, int]:
        """(ticks, k) of the number of last chunks that says the most; `sizes` are those of chunks, rising."""
        num, most = len(sizes), min(len(sizes), _MOST)
        pairs = np.cumsum(sizes[:most])
        entries = np.sort(self.enter.arrivals(num + int(pairs[-1])).ravel())[: num + int(pairs[-1])]
        if self._fed:  # a send has each chunk but once
            sent = chain(heapq.merge(*(_entries(fed, num) for fed in self._fed)), repeat(FOREVER))
            entries = np.maximum(entries, [*islice(sent, len(entries))])
        into_rank = self._into_ranks(most)
        best, last = (0, 1), 0
        while last < most:
            last = min(most, last + 1 if last < _EVERY else last + last // 4)
            # All that can be in no sooner than the last so many.
            since = int(entries[num - last])
            last = min(most, num - int(np.searchsorted(entries, since)))
            into = np.sort(into_rank[:, :last], axis=None) + since
            wanted = int(pairs[last - 1])
            coming = np.maximum(
                entries[num - last :][: wanted + 1], since + self._into_sets(last, wanted + 1)
            )
            ticks = self._spread(coming, into, wanted, last)
            best = max(best, (ticks, last), key=lambda each: each[0])
        return best

    def after(self, sizes: Sequence[int], last: int) -> int:
        """How long after a moment so many chunks take at least to be with all, if none is in before."""
        pairs = sum(sizes[:last])
        into = np.sort(self._into_ranks(last), axis=None)
        return self._spread(self._into_sets(last, pairs + 1), into, pairs, last)

    def _into_sets(self, last: int, num: int) -> Ints:
        """(num,) after how long so many entries of so many chunks can have come, each chunk into one set."""
        most = np.minimum(self.into_set.most, last)  # a send has each but once
        times, of_set = replace(self.into_set, most=most).more_ends(num), self.into_set.of_set
        each = [np.sort(times[of_set == i], axis=None)[:num] for i in np.unique(of_set)]
        fastest = np.min(each, axis=0)
        return np.sort(np.repeat(fastest, min(last, len(each))))[:num]

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

    def _spread(self, entries: Ints, into: Ints, pairs: int, last: int) -> int:
        """When so many pairs can have come about: by entries, and by ranks that have a chunk by then."""
        senders = self._senders(last if self._merges else 1)
        soonest = np.maximum(into[:pairs], self._reached(entries, pairs)[: len(into)])
        awake = waking(senders, entries.tolist(), pairs, soonest=soonest.tolist(), num_senders=len(self.near))
        return awake[-1]

    def _reached(self, entries: Ints, pairs: int) -> Ints:
        """(pairs,) when so many pairs are no farther from the entries than they can have come."""
        some = entries[:pairs]
        if not self.near.any() or len(some) * len(self.near) > _MOST_WAYS:
            return np.repeat(entries[:1], pairs)
        ways: Ints = np.sort((some[:, None] + self.near).ravel())[:pairs]
        return ways


def _entries(fed: Fed, most: int) -> Iterator[int]:
    """When what is fed is over at the earliest, chunk after chunk, of which a send has so many at most."""
    return map(max, *(sends_of(fastest_senders(gates, most), when) for gates, when in fed))
