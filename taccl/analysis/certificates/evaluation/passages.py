"""Throughput of bottleneck resources (passages), and sends required at a border, for checking certificates.

Sends may carry several chunks where the problem lets them merge.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from operator import add

from taccl.analysis.certificates.certificate import BorderJob
from taccl.analysis.certificates.evaluation.facts import NEVER, Facts


@dataclass(frozen=True, slots=True)
class GatePassage:
    """A bottleneck resource, which a send of n chunks holds for at least ``alpha + n * beta`` ticks.

    All sends over certain links hold it, each with at most `most` chunks. A hold begins at least `before`
    ticks after the start of its send. The send ends between ``after[n - 1]`` and `after_most` ticks after the
    start of its hold. No send starts before `release`.
    """

    alpha: int
    beta: int
    most: int
    release: int
    before: int
    after: tuple[int, ...]
    after_most: int

    @property
    def hold(self) -> int:
        """Min ticks for which a send of one chunk holds the resource."""
        return self.alpha + self.beta

    def one_after_another(self, ticks: int) -> int:
        """Max chunks in sends that hold the resource for `ticks` ticks in total."""
        if not self.alpha + self.beta:
            return NEVER
        full, rest = divmod(ticks, self.alpha + self.most * self.beta)
        part = max(0, rest - self.alpha) // self.beta if self.beta else 0
        return full * self.most + part

    def between(self, start: int, end: int) -> int:
        """Max chunks in sends that start at `start` or later and end at `end` or earlier."""
        first = max(start, self.release) + self.before
        found = [0]
        for n, after in enumerate(self.after, 1):
            if end - after >= first:  # the last send's hold begins at `end - after` at the latest
                found.append(n + self.one_after_another(end - after - first))
        return max(found)

    def ending(self, start: int, end: int) -> int:
        """Max chunks in sends that end between `start` and `end`."""
        if end < start:
            return 0
        return self.most + self.one_after_another(end - start + self.after_most - min(self.after))

    def of_most(self, most: int) -> GatePassage:
        """Copy of this bottleneck resource for sends of at most `most` chunks."""
        return replace(self, most=min(self.most, most), after=self.after[:most])


def passages(
    facts: Facts, links: Collection[int], release: Mapping[int, int] | None = None, *, size: int | None = None
) -> list[GatePassage]:
    """Greedy cover of links by bottleneck resources.

    The next resource has the highest product of two numbers: the uncovered links that hold it, and the ticks
    of the shortest of these holds.

    - `release`: {link: earliest tick of use}; default: 0 for all links.
    - `size`: Size of a chunk in units; default: the common size of all chunks.
    """
    most, size = facts.clauses.max_merge, facts.units[0] if size is None else size
    merging = facts.clauses.merging if most > 1 else frozenset()
    users: dict[int, dict[int, int]] = defaultdict(dict)
    for e in links:
        for r, (alpha, beta, _) in facts.holds[e].items():
            users[r][e] = (alpha if e in merging else most * alpha) + most * size * beta
    queue = [(-len(mine) * min(mine.values()), r) for r, mine in users.items()]
    heapq.heapify(queue)
    left, chosen = set(links), {}
    while left:
        weight, r = heapq.heappop(queue)
        users[r] = {e: ticks for e, ticks in users[r].items() if e in left}
        now = -len(users[r]) * min(users[r].values(), default=0)
        if now <= weight and users[r]:
            chosen[r] = list(users[r])
            left -= set(chosen[r])
        elif now:
            heapq.heappush(queue, (now, r))
    found = []
    for r, mine in chosen.items():
        in_send = {e: most if e in merging else 1 for e in mine}
        spans = [(_span(facts, e, r, n * size), n) for e, m in in_send.items() for n in range(1, m + 1)]
        alphas = [facts.holds[e][r][0] for e in mine]
        betas = [size * facts.holds[e][r][1] for e in mine]
        merged = max(in_send.values()) > 1
        before = [span[0] for span, _ in spans]
        after = [span[1] for span, _ in spans]
        found.append(
            GatePassage(
                alpha=min(alphas) if merged else 0,
                beta=min(betas) if merged else min(map(add, alphas, betas)),
                most=max(in_send.values()),
                release=min(release[e] for e in mine) if release else 0,
                before=min(before),
                after=tuple(
                    min(span[1] for span, k in spans if k == n) for n in range(1, max(in_send.values()) + 1)
                ),
                after_most=max(after),
            )
        )
    return found


def passages_of(
    facts: Facts, links: Iterable[int], label: Sequence[int], release: Mapping[int, int] | None = None
) -> dict[int, list[GatePassage]]:
    """{label: bottleneck resources that cover the links with that label}.

    - `label`: Label of every link of the topology.
    """
    links_of: dict[int, list[int]] = defaultdict(list)
    for e in links:
        links_of[label[e]].append(e)
    return {each: passages(facts, some, release) for each, some in links_of.items()}


def by_place(
    sets: Iterable[Iterable[GatePassage]], key: Callable[[GatePassage], tuple[object, ...]]
) -> list[set[GatePassage]]:
    """Sort each set of bottleneck resources by `key`, and return [all first ones, all second ones, ...]."""
    places: dict[int, set[GatePassage]] = defaultdict(set)
    for gates in sets:
        for place, gate in enumerate(sorted(gates, key=key)):
            places[place].add(gate)
    return list(places.values())


def strongest(sets: Iterable[list[GatePassage]]) -> list[GatePassage]:
    """Hypothetical bottleneck resources that pass chunks at least as fast as those of every set.

    Each set is sorted by hold, alpha, `most` and `before`. The i-th resource of the result has the best
    figures of the i-th resources of all sets.
    """
    found = []
    for some in by_place(sets, lambda gate: (gate.hold, gate.alpha, gate.most, gate.before)):
        most, before = max(gate.most for gate in some), min(gate.before for gate in some)
        found.append(
            GatePassage(
                alpha=min(gate.alpha for gate in some),
                beta=min(gate.beta for gate in some),
                most=most,
                release=0,
                before=before,
                after=tuple(min(after for gate in some for after in gate.after[m:]) for m in range(most)),
                after_most=max(gate.after_most for gate in some),
            )
        )
    return found


def _span(facts: Facts, e: int, r: int, units: int) -> tuple[int, int]:
    """(ticks from the start of a send to the start of its hold, ticks from there to the send's end)."""
    alpha, beta, receives = facts.holds[e][r]
    took = facts.took(e, units)
    before = took - alpha - units * beta if receives else 0
    return before, took - before


def fills(
    facts: Facts, sends: Counter[int], links: Sequence[int], ticks: Fraction, *, since: int = 0
) -> bool:
    """True if the links cannot pass all sends between `since` and just before `ticks`.

    Every send counts as the smallest one.

    - `sends`: {size in units: number of sends}.
    """
    number = sends.total()
    if not number or ticks <= since:
        return ticks <= since
    size = min(units for units, some in sends.items() if some)
    gates = passages(facts, links, dict.fromkeys(links, since), size=size)
    return (
        all(gate.hold for gate in gates)
        and sum(gate.between(0, math.ceil(ticks) - 1) for gate in gates) < number
    )


def jobs(facts: Facts, ranks: frozenset[int], *, entering: bool) -> Iterator[BorderJob]:
    """Yield the sends that every schedule must have at the border of a set of ranks."""
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
        root = data.root if is_direct and len(ranks) > 1 else None
        if root is not None and ranks.issuperset(r for r, n in enumerate(node) if n == node[root]):
            # With direct crossing, each other node's contributions enter the root's node in one send.
            # The sum then goes on to every destination outside the sending node.
            # If the set is only part of the root's node, one send may carry several nodes' contributions.
            parts = []
            for n in sorted({node[r] for r in sources}):
                over = [e for e in facts.admitted(c, reducing=True) if node[links[e].src] == n]
                theirs = {r for r in sources if node[r] == n}
                parts.append((over, theirs, {r for r in ends if node[r] != n}))
        for over, some, wanted in parts:
            both_ends = ((e, links[e].srcs, links[e].dsts) for e in over)
            ends_of = ((e, a, b) if entering else (e, b, a) for e, a, b in both_ends)
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
    """Required send of a chunk over one of the links `crossing`, with its release date and tail.

    The release date is that of the farthest contribution for a sum, and of the nearest copy otherwise.
    The tail is the least time from the send's end until the chunk reaches the farthest target.
    """
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
    out = [e for e in every if not ranks.isdisjoint(facts.topology.links[e].srcs)]
    shared: dict[int, int] = {}
    for i, e in enumerate(out):
        merges = facts.clauses.max_merge > 1 and e in facts.clauses.merging
        mine = {
            r: (0 if merges else alpha) + units * beta
            for r, (alpha, beta, receives) in facts.holds[e].items()
            if not receives
        }
        shared = mine if i == 0 else {r: min(t, mine[r]) for r, t in shared.items() if r in mine}
    return frozenset(shared.items())
