"""The spread-tail bound: the last chunks to enter sets of ranks must still spread inside them.

In any schedule, consider the last k entries of chunks into the sets. None of them ends before the border
resources can have let in all but k - 1 entries. Nor does one end before enough ranks can hold chunks to send.
Before that time, none of these k chunks is in the set that it enters. Each rank that wants such a chunk must
then get it over the border, or from a rank of its set that holds it. Each arrival adds one sender at most,
and ranks far from the entry point get the chunk later.
"""

# Symbols: k is the number of last entries: chunks that are the last to enter sets of ranks.
# A pair is a last entry, and a rank of its set that wants the chunk.

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from itertools import chain, islice, repeat

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arrays import distinct
from taccl._internal.units import part_of
from taccl.analysis.certificates.certificate import Claim, Labels, Witness
from taccl.analysis.certificates.evaluation.arrivals import Entries, Pairs, steps
from taccl.analysis.certificates.evaluation.facts import Facts
from taccl.analysis.certificates.finding.gates import (
    FOREVER,
    GateCosts,
    Gates,
    Ints,
    fastest_senders,
    gates_of,
    labels_of,
    nearest,
    sends_of,
    spread_times,
)
from taccl.analysis.certificates.finding.needed_sends import NeededSends
from taccl.analysis.certificates.finding.volume import set_of_rank
from taccl.problem.problem import Problem

#: A bound considers the last k first arrivals of chunks in sets of ranks, for several k.
#: `_EVERY`: each k up to this one is considered; beyond it, k grows by a quarter each time.
#: `_MOST`: max k that is considered.
_EVERY, _MOST = 16, 256
#: Max number of values of `SpreadTail.least` to try (min ranks of a set that want a chunk, for it to count).
_MOST_SIZES = 4
#: Max entries (number of sums times number of ranks less 1) for bounds over sets of one rank each.
_MOST_BY_RANK = 128
#: Max entries times ranks for which distances inside sets from the ranks that chunks enter are used.
_MOST_DISTANCES = 2_000_000

#: [(bottleneck resources by sender, ticks from which senders hold data), ...]
Fed = list[tuple[Gates, list[int]]]


@dataclass(frozen=True, slots=True)
class SpreadTail(Witness):
    """Witness of spread tail: sets of ranks, and the last chunks to enter them.

    Only chunks that at least `least` ranks of a set want count as entries.

    - `last`: Number of last entries.
    - `backwards`: True if the bound is for the time-reversed problem.
    - `since`: Earliest time, in ticks, of the first of the last entries.
    - `awake`, `inside`, `entered`: ((ticks, most), ...): before `ticks`, at most `most` outside ranks, ranks
      of the sets, and sets, respectively, can hold some chunk.
    - `pairs`: ((ticks, most), ...): before `ticks`, there are at most `most` pairs of a last entry and a rank
      of its set that holds the chunk.
    """

    kind = proves = "spread tail"
    preference = 6
    sets: tuple[frozenset[int], ...]
    least: int
    last: int
    backwards: bool = False
    since: int = 0
    awake: Labels = ()
    inside: Labels = ()
    entered: Labels = ()
    pairs: Labels = ()

    def fits(self, problem: Problem) -> bool:
        """True if the problem has the ranks of all sets."""
        return frozenset().union(*self.sets) <= frozenset(range(problem.topology.num_ranks))

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        return _spreads_late(facts, self, math.ceil(ticks) - 1)


def spread_tail_bounds(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Yield spread-tail bounds for sets of ranks that chunks must enter.

    The sets are nodes, one of each orbit under symmetry, and all ranks or nodes that start without data. For
    sums, contributions of outside ranks count as chunks. Small problems with sums also get a bound in which
    every rank but one is a set of its own.
    """
    if demand.spreads_alike(in_network=in_network):
        for needed, backwards in demand.both_directions():
            yield from _bounds(needed, backwards=backwards)


def _bounds(demand: NeededSends, *, backwards: bool) -> Iterator[Claim]:
    origins = frozenset().union(*(kind.data.origins for kind in demand.classes))
    choices: dict[tuple[frozenset[int], ...], str] = {}
    if demand.topology.num_nodes > 1:
        for ranks in demand.different(demand.families[1][1]):
            choices[ranks,] = f"node {demand.topology.node_of_rank[min(ranks)]}"
    for name, family in demand.families:
        empty = tuple(ranks for ranks in family if ranks.isdisjoint(origins))
        if empty:
            into = f"{name}s that want nothing" if demand.is_reversed else f"empty {name}s"
            choices.setdefault((frozenset().union(*empty),), into)
            if name == "node":
                choices.setdefault(empty, f"{into} one by one")
    others = demand.topology.num_ranks - 1
    if demand.sums_for_all and demand.classes.total() * others <= _MOST_BY_RANK:
        source = min(origins)
        rest = tuple(ranks for ranks in demand.families[0][1] if source not in ranks)
        choices[rest] = f"ranks other than {source}, one by one"
    for sets, into in choices.items():
        demand.deadline.check()
        sizes, release, first, wanting = _entering(demand, sets)
        if not sizes:
            continue
        spread = TailSpread(demand.costs, sets, release, first, wanting)
        for least in sorted(set(sizes), reverse=True)[:_MOST_SIZES]:
            some = [size for size in sizes if size >= least]
            ticks, last, since, pairs = spread.best(some)
            what = _text(into, last, len(some), least, is_reversed=demand.is_reversed)
            labels = (*spread.labels, labels_of(pairs))
            yield Claim(ticks, what, SpreadTail(sets, least, last, backwards, since, *labels))


def _text(into: str, last: int, total: int, least: int, *, is_reversed: bool) -> str:
    """Text that names a set of ranks, and its last chunks; of a reversed problem its first ones.

    - `last`: Number of these chunks of `total`.
    - `least`: Min number of ranks inside that want, or contribute to, each of them.
    """
    those = part_of("first" if is_reversed else "last", last, total, "chunk", "chunks")
    if is_reversed:
        before = f"sums of at least {least} ranks" if least > 1 else "sends from their origins"
        return f"{those} out of {into}, after {before} inside"
    after = f"copied inside to at least {least} ranks"
    return f"{those} into {into}, then {after if least > 1 else 'sent on to their destinations inside'}"


def _entering(
    demand: NeededSends, sets: tuple[frozenset[int], ...]
) -> tuple[list[int], Ints, frozenset[int], frozenset[int]]:
    """Sizes, release dates and ranks of chunks that must enter the sets: (sizes, release, first, wanting).

    - `sizes`: Number of ranks of the set that want the chunk, for each entry, ascending.
    - `release`, (num_links,) int64: Earliest tick at which each link can carry one of the chunks.
    - `first`: Outside ranks that initially hold some of the chunks.
    - `wanting`: Ranks of the sets that want some of the chunks.
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
    wanting = every.intersection(chain.from_iterable(kind.data.destinations for kind in starts))
    return sorted(sizes), demand.first_uses(starts), frozenset().union(*starts.values()), wanting


class TailSpread:
    """Rates at which chunks can enter sets of ranks, and spread inside.

    - `release`, (num_links,) int64: Earliest tick at which each link can carry a chunk.
    - `first`: Outside ranks that initially hold data. Default: all.
    - `wanting`: Ranks that want some of the chunks. Default: all.
    """

    def __init__(
        self,
        costs: GateCosts,
        sets: Sequence[frozenset[int]],
        release: Ints,
        first: frozenset[int] | None = None,
        wanting: frozenset[int] | None = None,
    ) -> None:
        label = set_of_rank(costs.num_ranks, sets)
        used, src, dst = release < FOREVER, label[costs.src], label[costs.dst]
        enters, inside = used & (dst >= 0) & (src != dst), used & (dst >= 0) & (src == dst)
        none = np.zeros(len(src), dtype=np.int64)

        def gates(chosen: NDArray[np.bool_], of_set: Ints, since: Ints | None = None) -> Gates:
            return gates_of(costs, np.flatnonzero(used & chosen), of_set, since)

        #: `enter`: Gates (bottleneck resources) of sends into the sets, as one group.
        #: `into_set`: Gates of sends into the sets, by set.
        #: `direct`: Gates of sends into the sets, by receiving rank.
        #: `inside`: Gates of sends inside the sets, by receiving rank.
        self.enter, self.into_set = gates(enters, none, release), gates(enters, dst)
        self.direct, self.inside = gates(enters, costs.dst, release), gates(inside, costs.dst)
        #: (num_ranks,) min ticks until 1, 2, ... ranks can hold a chunk that entered at one of them.
        self.near = nearest(costs, inside, costs.dst[enters], label >= 0)
        out = gates(inside, costs.src)
        self._wants = np.isin(np.arange(costs.num_ranks), list(wanting)) if wanting else label >= 0
        self._merges = out.most.max(initial=1) > 1
        self._senders = cache(lambda most: fastest_senders(out, most))
        #: Senders into the sets, as two lists: ranks outside all sets, then ranks of other sets.
        #: Each list groups them twice: by rank, and with all outside ranks (or each set) as one sender.
        self._fed: list[Fed] = []
        #: Labels `awake`, `inside` and `entered` of the witness, as `SpreadTail` defines them.
        self.labels: tuple[Labels, Labels, Labels] = (), (), ()
        outside, every = int(np.count_nonzero(label < 0)), int(np.count_nonzero(label >= 0))
        if first is not None and (len(sets) > 1 or len(first) < outside):
            took = costs.link_alpha + costs.link_beta
            awake = spread_times(
                fastest_senders(gates((src < 0) & (dst < 0), costs.src)), [0] * len(first), outside
            )
            # Once an entered chunk can have left a set again, all outside ranks count as holding data.
            again = sum(
                int(took[some].min(initial=FOREVER)) for some in (enters, used & (src >= 0) & (dst < 0))
            )
            border, onward = enters & (src < 0), enters & (src >= 0)
            early = [
                (gates(border, costs.src), [min(each, again) for each in awake]),
                (gates(border, none, release), [0]),
            ]
            wakes = fastest_senders(gates((src >= 0) & (dst >= 0), costs.src))
            late = spread_times(wakes, _entries(early, 1), every)
            entered = spread_times(fastest_senders(gates(onward, src)), _entries(early, 1), len(sets))
            self._fed = [early, [(gates(onward, costs.src), late), (gates(onward, src), entered)]]
            self.labels = labels_of(awake), labels_of(late), labels_of(entered)

    def best(self, sizes: Sequence[int]) -> tuple[int, int, int, list[int]]:
        """Best bound in ticks from the last k entries of chunks into sets, over several k.

        Returns (bound, k, earliest tick of these entries, earliest ticks by which there can be 1, 2, ...
        pairs of such a chunk and a rank of the set that wants it).

        - `sizes`: Number of ranks of the set that want the chunk, for each entry, ascending.
        """
        num, most = len(sizes), min(len(sizes), _MOST)
        pairs = np.cumsum(sizes[:most])
        entries = np.sort(self.enter.arrivals(num + int(pairs[-1])).ravel())[: num + int(pairs[-1])]
        if self._fed:  # a send carries each chunk at most once, so at most `num` chunks
            sent = chain(heapq.merge(*(_entries(fed, num) for fed in self._fed)), repeat(FOREVER))
            entries = np.maximum(entries, [*islice(sent, len(entries))])
        best: tuple[int, int, int, list[int]] = 0, 1, 0, []
        last = 0
        while last < most:
            last = min(most, last + 1 if last < _EVERY else last + last // 4)
            # Include all entries at the earliest time among the last ones.
            since = int(entries[num - last])
            last = min(most, num - int(np.searchsorted(entries, since)))
            into, wanting = self._into_ranks(last, since)
            wanted = int(pairs[last - 1])
            coming = np.maximum(
                entries[num - last :][: wanted + 1], since + self._into_sets(last, wanted + 1)
            )
            made = self._spread(coming, into, wanted, last)
            ticks = max(made[-1], int(wanting[wanted - 1]))
            best = max(best, (ticks, last, since, made), key=lambda each: each[0])
        return best

    def _into_sets(self, last: int, num: int) -> Ints:
        """(num,) min ticks until the last chunks to enter sets of ranks have crossed borders 1, 2, ... times.

        Ticks count from the earliest of these entries. A chunk may cross into its set several times.
        The entries are into at most `last` sets, each assumed to be as fast as the fastest.
        """
        most = np.minimum(self.into_set.most, last)  # a send carries each chunk at most once
        times, of_set = replace(self.into_set, most=most).late_arrivals(num), self.into_set.of_set
        each = [np.sort(times[of_set == i], axis=None)[:num] for i in distinct(of_set)]
        fastest = np.min(each, axis=0)
        return np.sort(np.repeat(fastest, min(last, len(each))))[:num]

    def _into_ranks(self, last: int, since: int) -> tuple[Ints, Ints]:
        """Earliest arrivals of `last` chunks at all ranks, and at ranks that want them, ascending.

        Sends inside a set start at `since` or later; sends over a border end at `since` or later.
        """
        rank = np.repeat(np.append(self.inside.of_set, self.direct.of_set), last)
        near = self.inside.arrivals(last) + since
        direct = np.maximum(self.direct.late_arrivals(last) + since, self.direct.arrivals(last))
        times = np.append(near, direct)
        order = np.lexsort((times, rank))
        rank, times = rank[order], times[order]
        place = np.arange(len(rank)) - np.searchsorted(rank, rank)
        first = place < last
        return np.sort(times[first]), np.sort(times[first & self._wants[rank]])

    def _spread(self, entries: Ints, into: Ints, pairs: int, last: int) -> list[int]:
        """Earliest ticks by which 1, 2, ... (chunk, rank) pairs can exist, of the last chunks to enter sets.

        Ranks count once per chunk (a pair). A pair arises if the chunk crosses into the set, or if a rank of
        the set sends it to another.

        - `entries`: Earliest ticks of successive crossings into the sets, ascending.
        - `into`: Earliest arrivals of the chunks at ranks, ascending.
        - `last`: Number of last entries.
        """
        senders = self._senders(last if self._merges else 1)
        soonest = np.maximum(into[:pairs], self._reached(entries, pairs)[: len(into)])
        return spread_times(
            senders, entries.tolist(), pairs, soonest=soonest.tolist(), num_senders=len(self.near)
        )

    def _reached(self, entries: Ints, pairs: int) -> Ints:
        """(pairs,) earliest ticks at which 1, 2, ... (chunk, rank) pairs can exist.

        A pair exists no sooner than its chunk enters the set and then travels on to the pair's rank.
        """
        some = entries[:pairs]
        if not self.near.any() or len(some) * len(self.near) > _MOST_DISTANCES:
            return np.repeat(entries[:1], pairs)
        times: Ints = np.sort((some[:, None] + self.near).ravel())[:pairs]
        return times


def _entries(fed: Fed, most: int) -> Iterator[int]:
    """Yield earliest ticks by which 1, 2, ... chunks can have entered sets, with at most `most` per send."""
    return map(max, *(sends_of(fastest_senders(gates, most), when) for gates, when in fed))


def _spreads_late(facts: Facts, witness: SpreadTail, ticks: int) -> bool:
    """True if the witness proves that its last chunks to enter sets of ranks still spread at `ticks`."""
    if not facts.spreads_alike or len(frozenset().union(*witness.sets)) != sum(map(len, witness.sets)):
        return False
    wanted, release, first, wanting = _entries_into(facts, witness.sets)
    wanted = sorted(each for each in wanted if each >= witness.least)
    if not 1 <= witness.last <= len(wanted):
        return False
    entries = Entries(facts, witness.sets, release, len(first), len(wanted))
    if not entries.border or not entries.limited_by(witness.awake, witness.inside, witness.entered):
        return False
    pairs = Pairs(entries, witness.since, witness.last)
    if not pairs.limited_by(witness.pairs):
        return False
    needed = sum(wanted[: witness.last])
    made = sum(more for since, more in steps(witness.pairs, needed) if since <= ticks)
    return min(made, pairs.room(ticks, wanting)) < needed


def _entries_into(
    facts: Facts, sets: tuple[frozenset[int], ...]
) -> tuple[list[int], dict[int, int], frozenset[int], frozenset[int]]:
    """Entries of chunks into sets of ranks that must occur, to evaluate a witness.

    An entry is a pair of a chunk and a set of ranks that it must enter. Returns ([number of the set's ranks
    that want the chunk, for each entry], {link: earliest tick of use}, outside ranks that initially hold some
    chunk, ranks of the sets that want some chunk).
    """
    every, wanted, starts, wanting = frozenset().union(*sets), list[int](), [], set[int]()
    for c, others in facts.outside(every):
        ends = every.intersection(facts.collective.chunks[c].destinations)
        if ends:
            wanted += [len(ranks & ends) for ranks in sets if ranks & ends]
            starts.append((c, others))
            wanting |= ends
    first = frozenset().union(*(others for _, others in starts))
    return wanted, facts.releases(starts), first, frozenset(wanting)
