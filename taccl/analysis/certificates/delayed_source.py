"""The delayed-source bound: ranks without data can only send after something has reached them.

Disjoint sets of ranks initially hold none of some chunks, and one rank of each set, its target, wants them.
An entry is a chunk that must enter a set for its target. Sends that start before a time `fed` come from the
few initial holders, or from a set that was reached before. From then on, sends may enter the sets as fast as
resources allow. At a later time `since`, many entries are still missing. Those must still reach the targets,
and all other ranks of their sets that want them.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from itertools import accumulate, chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taccl.analysis.certificates.gates import (
    FOREVER,
    GateCosts,
    Gates,
    Ints,
    fastest,
    fastest_senders,
    first_tick,
    gates_of,
    let_in,
    sends_of,
    waking,
)
from taccl.analysis.certificates.needed_sends import NeededSends
from taccl.analysis.certificates.spread_tail import TailSpread
from taccl.analysis.certificates.volume import set_of_rank
from taccl.analysis.certificates.witnesses import Claim, DelayedSource
from taccl.caching import cached
from taccl.deadline import Deadline
from taccl.units import format_count, part_of

#: Max choices of the initially holding sets to try, for ranks and for nodes.
_MOST_HOMES = 3
#: Max missing entries whose time to spread in their sets is computed.
_MOST_SPREAD = 128
#: Max values of `fed`, and of `since`, to try.
_MOST_FED, _MOST_SINCE = 8, 16


def delayed_source_bounds(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Yield claims for each choice of initially holding ranks or nodes, and for each other node alone.

    Contributions of the initial holders to a sum count as chunks. If fewer ranks hold chunks initially than
    want some, the time-reversed problem is bounded, too.
    """
    if not demand.spreads_alike(in_network=in_network):
        return
    for needed, backwards in demand.both_ways():
        yield from _bounds(needed, backwards=backwards)


def _bounds(demand: NeededSends, *, backwards: bool) -> Iterator[Claim]:
    tried: set[tuple[frozenset[int], ...]] = set()
    costs = demand.costs
    choices = [(family, sets, home) for family, sets in demand.families for home in _homes(demand, sets)]
    for family, sets in demand.families[1:]:
        for alone in demand.different(sets):
            choices.append((family, sets, frozenset(i for i, ranks in enumerate(sets) if ranks != alone)))
    for family, sets, home in choices:
        late = tuple(ranks for i, ranks in enumerate(sets) if i not in home and ranks)
        if not late or late in tried:
            continue
        tried.add(late)
        demand.deadline.check()
        found = _bound(_LateSets(demand, costs, late), backwards=backwards, deadline=demand.deadline)
        if found is None:
            continue
        ticks, missing, total, witness = found
        few, sides = format_count(len(home), family), format_count(len(late), family)
        if backwards:
            those = part_of("first", missing, total, "exit", "exits")
            what = f"{those} from {sides}, which only {few} can take in the end"
        else:
            those = part_of("last", missing, total, "entry", "entries")
            what = f"{those} into {sides}, which only {few} can feed at first"
        yield Claim(ticks, what, witness)


def _homes(demand: NeededSends, sets: Sequence[frozenset[int]]) -> list[frozenset[int]]:
    """Sets that hold chunks initially: of all chunks together, and of each of few kinds; never all sets."""
    set_of = {r: i for i, ranks in enumerate(sets) for r in ranks}
    count: Counter[frozenset[int]] = Counter()
    for kind, number in demand.classes.items():
        origins = kind.data.origins[:1] if demand.sums_for_all else kind.data.origins
        if origins:
            count[frozenset(set_of[r] for r in origins)] += number * len(kind.data.destinations)
    homes = [frozenset().union(*count)]
    if len(count) <= _MOST_HOMES:
        homes += [home for home, _ in count.most_common()]
    elif demand.sums_for_all:
        homes += [home for home, _ in count.most_common(1)]
    return [home for home in dict.fromkeys(homes) if home and len(home) < len(sets)]


class _LateSets:
    """Initially empty sets, the chunks wanted in them, and the bottleneck resources that lead there."""

    def __init__(self, demand: NeededSends, costs: GateCosts, late: tuple[frozenset[int], ...]) -> None:
        self.late = late
        self.cache: dict[Any, Any] = {}
        label = set_of_rank(demand.topology.num_ranks, late)
        early = demand.outside(frozenset().union(*late))
        release = demand.first_uses(early)
        kinds = [(frozenset(kind.data.destinations), demand.classes[kind]) for kind in early]
        wanted = np.zeros(len(label), dtype=np.int64)
        for ends, number in kinds:
            wanted[list(ends)] += number
        self.targets = tuple(max(sorted(ranks), key=lambda r: wanted[r]) for ranks in late)
        self.wanted = wanted[list(self.targets)]
        self.total = int(self.wanted.sum())
        self._costs, self._release, self._kinds = costs, release, kinds
        self._spread_ticks: list[int] = []
        used = release < FOREVER
        src, dst = label[costs.src], label[costs.dst]
        is_target = np.zeros(len(label), dtype=bool)
        is_target[list(self.targets)] = True
        enters = used & (dst >= 0) & (src != dst)
        counts = (dst >= 0) & (self.wanted[dst] > 0)
        arrives = used & counts & is_target[costs.dst]
        takes = costs.link_alpha + costs.link_beta
        #: Min ticks for a chunk to enter a set.
        self.soonest = int(takes[enters].min(initial=FOREVER))

        def gates(chosen: NDArray[np.bool_], of_set: Ints) -> Gates:
            return gates_of(costs, np.flatnonzero(chosen), of_set, release)

        self.early, self.onward = gates(enters & (src < 0), src), fastest(gates(enters & (src >= 0), src))
        self.enter = gates(enters & counts, dst)
        self.inside, self.direct = gates(arrives & (src == dst), dst), gates(arrives & (src != dst), dst)

    def missing(self, since: int) -> tuple[int, int]:
        """(missing entries, `fed`) at time `since`, for the `fed` that leaves the most entries missing."""
        fed = [*self._moments, max(0, since - self.soonest)]
        ever = self.enter.within(0, since - 1)
        best = (0, 0)
        for moment, later in zip(fed, self.enter.within(np.array(fed)[:, None], since - 1), strict=True):
            sends, chunks = self._started_before(moment)
            # A bottleneck resource gains from earlier sends only if one of them used it.
            gained = int(np.sort(np.minimum(ever - later, chunks))[::-1][:sends].sum())
            missing = self.total - let_in(self.wanted, (self.enter, later)) - min(chunks, gained)
            best = max(best, (missing, moment))
        return best

    @cached_property
    def _moments(self) -> list[int]:
        """Some of the times from which more sends can enter than before."""
        reached = self._reached[self._reached < FOREVER].tolist()
        moments = sorted({*reached, int(self.early.release.min())})
        return moments[:: -(-len(moments) // _MOST_FED)]

    @cached
    def _started_before(self, moment: int) -> tuple[int, int]:
        """(max sends, max chunks in them) into the sets that can have started before a given time."""
        by = moment - 1
        after = by - self._reached[:, None]
        sends = self.early.sends(by).sum() + self.onward.sends(after).sum()
        chunks = self.early.started(by).sum() + self.onward.started(after).sum()
        return int(sends), int(chunks)

    @cached_property
    def _reached(self) -> Ints:
        """(num_sets,) earliest times at which 1, 2, ... sets can be reached; each send reaches one more."""
        first = sends_of(fastest_senders(self.early), [0])
        return np.array(waking(fastest_senders(self.onward), first, len(self.late)), dtype=np.int64)

    def rest(self, missing: int, since: int) -> int:
        """Min ticks after `since` for `missing` entries to be over, if none has ended before."""
        known = self._spread_ticks
        if len(known) < missing <= _MOST_SPREAD:
            known += islice(self._spreading, missing - len(known))
        return max(self._to_targets(missing, since), known[missing - 1] if missing <= len(known) else 0)

    @cached_property
    def _spreading(self) -> Iterator[int]:
        """Min ticks until the first, second, ... missing entry can be at all ranks that want it.

        The entries may be into any sets. Empty if some set gives no information.
        """
        sets = []
        for ranks, target in zip(self.late, self.targets, strict=True):
            if len(ranks) == 1:
                return iter(())
            spread = TailSpread(self._costs, (ranks,), self._release)
            if not len(spread.enter.of_set):
                return iter(())
            some = [(len(ranks & ends), count) for ends, count in self._kinds if target in ends]
            sizes = sorted(chain.from_iterable([size] * count for size, count in some))
            sets.append(accumulate(map(partial(spread.after, sizes), range(1, len(sizes) + 1)), max))
        return heapq.merge(*sets)

    def _to_targets(self, missing: int, since: int) -> int:
        """Min ticks after `since` until `missing` more chunks can be at the targets."""

        def come(ticks: int) -> int:
            ended = np.minimum(self.direct.ended(ticks), self.direct.within(0, since + ticks))
            started = self.inside.within(since, since + ticks)
            return let_in(self.wanted, (self.inside, started), (self.direct, ended))

        return first_tick(lambda ticks: come(ticks) >= missing)


def _bound(
    late: _LateSets, *, backwards: bool, deadline: Deadline
) -> tuple[int, int, int, DelayedSource] | None:
    """(ticks, missing entries, all entries, witness); None if nothing is proven.

    After the deadline, the best result so far is returned.
    """
    gates = (late.early, late.onward, late.enter, late.inside, late.direct)
    if not late.total or not all(each.hold.all() for each in gates):  # a bottleneck without hold time
        return None
    best: tuple[int, int, int, DelayedSource] | None = None
    longest = late.rest(late.total, 0)
    for turn in range(1 + _MOST_SINCE):
        if best is not None and deadline.has_passed:
            break
        if turn < 2:  # last time at which all are missing; then last times at which any are
            missed, since = (late.total - 1, 0)[turn], FOREVER
        since = first_tick(lambda s: late.missing(s)[0] <= missed, since) - 1  # noqa: B023  used at once
        if since < 0 or (best is not None and since + longest <= best[0]):
            break
        missed, fed = late.missing(since)
        ticks = since + late.rest(missed, since)
        if best is None or ticks > best[0]:
            best = (ticks, missed, late.total, DelayedSource(late.late, late.targets, fed, since, backwards))
    return best
