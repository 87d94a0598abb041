"""Sends that every schedule has at the border of a set of ranks, read off the collective for evaluations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from taccl.analysis.certificates.evaluation.facts import Facts
from taccl.analysis.certificates.evaluation.passages import passages
from taccl.analysis.certificates.witness import BorderJob

if TYPE_CHECKING:
    from collections import Counter


def fills(
    facts: Facts, sends: Counter[int], links: Sequence[int], ticks: Fraction, *, since: int = 0
) -> bool:
    """True if links cannot pass the sends, each counted as the smallest, from `since` to before `ticks`."""
    number = sends.total()
    if not number or ticks <= since:
        return ticks <= since
    size = min(units for units, some in sends.items() if some)
    ways = passages(facts, links, dict.fromkeys(links, since), size=size)
    return (
        all(way.hold for way in ways) and sum(way.between(0, math.ceil(ticks) - 1) for way in ways) < number
    )


def jobs(facts: Facts, ranks: frozenset[int], *, entering: bool) -> Iterator[BorderJob]:
    """Yield the sends that every schedule has at the border of a set of ranks."""
    node, links = facts.topology.node_of_rank, facts.topology.links
    is_direct = facts.sums and facts.clauses.direct_crossing and entering and not facts.multi
    for c, count in facts.alike:
        data = facts.collective.chunks[c]
        starts, ends = set(facts.origins(c)), set(data.destinations)
        sources, targets = (starts - ranks, ends & ranks) if entering else (starts & ranks, ends - ranks)
        if not sources or not targets or not (facts.sums or sources == starts):
            continue
        every = facts.carried(c)
        parts = [(every, sources, targets)]
        if is_direct and len(ranks) > 1 and data.root in ranks:
            # From each other node straight to the root's, for all ranks that want the sum except those of
            # that node.
            parts = []
            for n in sorted({node[r] for r in sources}):
                over = [e for e in facts.admitted(c, reducing=True) if node[links[e].src] == n]
                theirs = {r for r in sources if node[r] == n}
                parts.append((over, theirs, {r for r in ends if node[r] != n}))
        for over, some, wanted in parts:
            ways = ((e, links[e].srcs, links[e].dsts) for e in over)
            ends_of = ((e, a, b) if entering else (e, b, a) for e, a, b in ways)
            crossing = [
                e for e, far, near in ends_of if not ranks.isdisjoint(near) and not ranks.issuperset(far)
            ]
            if crossing and wanted:
                yield from [_job(facts, crossing, every, facts.units[c], some, wanted)] * count


def _job(
    facts: Facts,
    crossing: Sequence[int],
    every: Sequence[int],
    units: int,
    sources: set[int],
    targets: set[int],
) -> BorderJob:
    """Job that crosses one of the links, from the farthest contribution of a sum or the nearest copy."""
    srcs = {r for e in crossing for r in facts.topology.links[e].srcs}
    dsts = {r for e in crossing for r in facts.topology.links[e].dsts}

    def least(starts: Iterable[int], ends: set[int], *, backwards: bool = False) -> int:
        times = facts.times(every, units, dict.fromkeys(starts, 0), backwards=backwards)
        return min(times.get(r, 0) for r in ends)

    release = max(least(some, srcs) for some in ([{r} for r in sources] if facts.sums else [sources]))
    tail = max(least({target}, dsts, backwards=True) for target in targets)
    onward = _onward(facts, every, units, dsts) if tail else frozenset[tuple[int, int]]()
    return BorderJob(frozenset(crossing), units, release, tail, onward)


def _onward(facts: Facts, every: Sequence[int], units: int, ranks: set[int]) -> frozenset[tuple[int, int]]:
    ways = [e for e in every if not ranks.isdisjoint(facts.topology.links[e].srcs)]
    shared: dict[int, int] = {}
    for i, e in enumerate(ways):
        merges = facts.clauses.max_merge > 1 and e in facts.clauses.merging
        mine = {
            r: (0 if merges else alpha) + units * beta
            for r, (alpha, beta, receives) in facts.holds[e].items()
            if not receives
        }
        shared = mine if i == 0 else {r: min(t, mine[r]) for r, t in shared.items() if r in mine}
    return frozenset(shared.items())
