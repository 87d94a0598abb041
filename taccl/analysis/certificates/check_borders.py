"""Checks what must cross borders: shortest ways, counted chunks, nested cuts, the batches of a machine.

What must cross a set of ranks is read off the collective once more. Only the dynamic program over batches
(`batch_ends`), arithmetic itself, is run again as it is.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from taccl.analysis.certificates.needed_sends import Job, NeededSends
from taccl.analysis.certificates.single_machine import machine_ticks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from fractions import Fraction

    from taccl.analysis.certificates.certificate import Border, NestedCuts, Path, SingleMachine
    from taccl.analysis.certificates.check_facts import Facts

__all__ = ["batches", "crosses", "latency", "nested_cuts"]


def latency(facts: Facts, path: Path) -> int:
    """The shortest time of a chunk to a destination; of a sum, of its farthest contribution."""
    data = facts.collective.chunks[path.chunk]
    if path.destination not in data.destinations:
        return 0
    units = 0 if facts.divisible else facts.units[path.chunk]
    if not facts.sums:
        starts = facts.origins(path.chunk, 0 if facts.divisible else None)
        found = facts.times(facts.admitted(path.chunk, reducing=False), units, starts)
        return found.get(path.destination, 0)
    links = facts.admitted(path.chunk, reducing=None)
    found = facts.times(links, units, {path.destination: 0}, backwards=True)
    return max(found.get(rank, 0) for rank in data.origins)


def crosses(facts: Facts, border: Border, ticks: Fraction, *, in_network: bool) -> bool:
    """Whether what must cross the border cannot do so in less."""
    everyone = frozenset(range(facts.topology.num_ranks))
    if border.ranks == everyone:
        if facts.multi or in_network or not facts.sums:
            return False
        part_of: Sequence[int] = range(facts.topology.num_ranks)
        links = facts.allowed
        if not border.entering:
            part_of = facts.topology.node_of_rank
            links = [e for e in links if facts.topology.is_internode(e)]
        sends: Counter[int] = Counter()
        for data, units in zip(facts.collective.chunks, facts.units, strict=True):
            parts = {part_of[r] for r in data.origins} & {part_of[r] for r in data.destinations}
            sends[units] += max(0, 2 * (len(parts) - 1))
        return _fills(facts, sends, links, ticks)
    if facts.multi:
        return False
    jobs = list(_jobs(facts, border.ranks, entering=border.entering))
    if not jobs:
        return ticks <= 0
    around = min(job.release for job in jobs) + min(job.tail for job in jobs)
    links = sorted({e for job in jobs for e in job.links})
    return _fills(facts, Counter(job.units for job in jobs), links, ticks - around)


def _fills(facts: Facts, sends: Counter[int], links: Sequence[int], ticks: Fraction) -> bool:
    """Whether the resources that the links hold cannot pass so many of each size in less than `ticks`.

    Either their bytes are too many, or they themselves are, even if each were as small as the smallest.
    """
    if not sends.total() or ticks <= 0:
        return ticks <= 0
    less = -(-ticks.numerator // ticks.denominator) - 1  # the whole ticks before
    size, left = min(units for units, number in sends.items() if number), set(links)
    passed = 0
    volume: float = 0  # a whole number, or infinite where bytes cost nothing
    while left:
        users: dict[int, list[int]] = defaultdict(list)
        for e in sorted(left):
            for resource in facts.holds[e]:
                users[resource].append(e)
        resource = max(users, key=lambda r: (len(users[r]), -r))
        mine = users[resource]
        alpha = min(facts.holds[e][resource][0] for e in mine)
        beta = min(facts.holds[e][resource][1] for e in mine)
        merges = facts.clauses.max_merge > 1 and any(e in facts.clauses.merging for e in mine)
        left -= set(mine)
        if not alpha + beta:
            return False
        busy = max(0, less - _around(facts, resource, mine, size))
        if merges:
            full = alpha + facts.clauses.max_merge * size * beta
            rounds, rest = divmod(busy, full)
            part = max(0, rest - alpha) // (size * beta) if beta else 0
            passed += rounds * facts.clauses.max_merge + min(part, facts.clauses.max_merge)
        else:
            passed += busy // (alpha + size * beta)
        volume = volume + busy // beta if beta else math.inf
    return passed < sends.total() or volume < sum(units * number for units, number in sends.items())


def _around(facts: Facts, resource: int, links: Sequence[int], size: int) -> int:
    """Ticks from the start of the first send to its hold, and from the last hold to the end of its send."""
    before, after = [], []
    for e in links:
        alpha, beta, receives = facts.holds[e][resource]
        rest = facts.alpha[e] - alpha + size * (facts.beta[e] - beta)
        before.append(rest if receives else 0)
        after.append(0 if receives else rest)
    return min(before) + min(after)


def batches(facts: Facts, machine: SingleMachine) -> int:
    """The single-machine relaxation of what must pass a resource."""
    sets = [frozenset((r,)) for r in range(facts.topology.num_ranks)]
    if machine.family == "node":
        sets = [frozenset(ranks) for ranks in facts.topology.ranks_of_node]
    ends = [facts.topology.links[e] for e in facts.allowed if machine.resource in facts.holds[e]]
    near = {r for link in ends for r in (link.dsts if machine.entering else link.srcs)}
    sets = [ranks for ranks in sets if ranks & near]
    found: list[list[Job]] = []
    for ranks in sets:
        jobs = _jobs(facts, ranks, entering=machine.entering)
        found.append([job for job in jobs if all(machine.resource in facts.holds[e] for e in job.links)])
    passing = max(found, key=len, default=[]) if facts.multi else [job for jobs in found for job in jobs]
    return machine_ticks(NeededSends(facts.problem), machine.resource, passing) if passing else 0


def _jobs(facts: Facts, ranks: frozenset[int], *, entering: bool) -> Iterator[Job]:
    """The sends that every schedule has at the border of a set of ranks."""
    for c, count in facts.alike:
        data, units = facts.collective.chunks[c], facts.units[c]
        known = set(facts.origins(c))
        if facts.sums:
            sources = set(data.origins) - ranks if entering else set(data.origins) & ranks
            targets = set(data.destinations) & ranks if entering else set(data.destinations) - ranks
            if not sources or not targets:
                continue
            every = facts.admitted(c, reducing=None)
            parts = [(every, sources, targets)]
            if facts.clauses.direct_crossing and len(ranks) > 1 and entering and data.root in ranks:
                node = facts.topology.node_of_rank
                parts = []
                for n in sorted({node[r] for r in sources}):
                    over = [
                        e
                        for e in facts.admitted(c, reducing=True)
                        if any(node[r] == n for r in facts.topology.links[e].srcs)
                    ]
                    theirs = {r for r in sources if node[r] == n}
                    parts.append((over, theirs, set(data.destinations) - theirs))
        else:
            links = facts.admitted(c, reducing=False)
            every = links
            if entering:
                needed = not known & ranks and bool(set(data.destinations) & ranks)
                targets = set(data.destinations) & ranks
            else:
                needed = known <= ranks and not set(data.destinations) <= ranks
                targets = set(data.destinations) - ranks
            if not needed or not known:
                continue
            parts = [(links, known, targets)]
        for over, sources, targets in parts:
            job = _job(facts, over, every, ranks, units, sources, targets, entering)
            yield from [job] * count if job is not None else []


def _job(
    facts: Facts, over: Sequence[int], every: Sequence[int], ranks: frozenset[int], units: int,
    sources: set[int], targets: set[int], entering: bool,
) -> Job | None:  # fmt: skip
    ends = facts.topology.links
    crossing = []
    for e in over:
        outer, inner = (ends[e].srcs, ends[e].dsts) if entering else (ends[e].dsts, ends[e].srcs)
        if any(r in ranks for r in inner) and not all(r in ranks for r in outer):
            crossing.append(e)
    if not crossing:
        return None
    leave = {e for e in crossing}
    if facts.sums:
        release = 0
        for source in sorted(sources):
            there = facts.times(every, units, {source: 0})
            release = max(release, min(min(there.get(r, 0) for r in ends[e].srcs) for e in leave))
    else:
        there = facts.times(every, units, dict.fromkeys(sources, 0))
        release = min(min(there.get(r, 0) for r in ends[e].srcs) for e in leave)
    tail = 0
    for target in sorted(targets):
        left = facts.times(every, units, {target: 0}, backwards=True)
        tail = max(tail, min(min(left.get(r, 0) for r in ends[e].dsts) for e in leave))
    onward = _onward(facts, every, units, {r for e in leave for r in ends[e].dsts}) if tail else frozenset()
    return Job(frozenset(crossing), units, release, tail, onward)


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


def nested_cuts(facts: Facts, witness: NestedCuts) -> int:
    """When the last chunks that cross both borders can have done so at the earliest; 0 says nothing.

    Read backwards in time, what leaves enters.
    """
    if facts.sums or facts.made_at or facts.multi or len(set(facts.units)) != 1:
        return 0
    inner, outer, count = witness.inner, witness.outer, 0
    for data in facts.collective.chunks:
        starts, ends = set(data.origins), set(data.destinations)
        if witness.entering:
            count += starts.isdisjoint(outer) and not ends.isdisjoint(inner)
        else:
            count += starts <= inner and not ends <= outer
    crossing: dict[str, list[int]] = {"outer": [], "inside": [], "direct": []}
    for e in facts.allowed:
        near, far = facts.topology.links[e].dst, facts.topology.links[e].src
        if not witness.entering:
            near, far = far, near
        if near in outer and far not in outer:
            crossing["outer"].append(e)
        if near in inner and far not in inner:
            crossing["inside" if far in outer else "direct"].append(e)
    passes = {name: _passes(facts, links, entering=witness.entering) for name, links in crossing.items()}
    if any(length <= 0 for rows in passes.values() for length, _, _ in rows):
        return 0
    best = 0
    for last in range(1, count + 1):  # the last so many that are in
        since = _moment(passes["outer"], [], count - last + 1, 0)
        best = max(best, since + _moment(passes["inside"], passes["direct"], last, since))
    return best


def _passes(facts: Facts, links: Sequence[int], *, entering: bool) -> list[tuple[int, int, int]]:
    """Resources that share the links out: (shortest hold of a chunk, its soonest end, spread of ends).

    The spread is -1 where chunks merge.
    """
    size, left, rows = facts.units[0], set(links), []
    users: dict[int, list[int]] = defaultdict(list)
    for e in sorted(left):
        for resource in facts.holds[e]:
            users[resource].append(e)
    for resource in sorted(users, key=lambda r: (-len(users[r]), r)):
        mine = [e for e in users[resource] if e in left]
        left -= set(mine)
        begins, ends, lengths, merges = [], [], [], False
        for e in mine:
            alpha, beta, receives = facts.holds[e][resource]
            took, length = facts.alpha[e] + size * facts.beta[e], alpha + size * beta
            begin = max(0, took - length) if receives else 0
            if not entering:
                begin = took - begin - length
            begins.append(begin)
            ends.append(took - begin)
            lengths.append(length)
            merges |= facts.clauses.max_merge > 1 and e in facts.clauses.merging
        if mine and merges:
            too_long = any(facts.holds[e][resource][0] > facts.alpha[e] for e in mine)
            too_long |= any(facts.holds[e][resource][1] > facts.beta[e] for e in mine)
            least = 0 if too_long else min(size * facts.holds[e][resource][1] for e in mine)
            rows.append((least, least, -1))
        elif mine:
            rows.append((min(lengths), min(begins) + min(ends), max(ends) - min(ends)))
    return rows if not left else [(0, 0, 0)]


def _moment(
    whole: Sequence[tuple[int, int, int]], ending: Sequence[tuple[int, int, int]], chunks: int, since: int
) -> int:
    """How long after some moment so many chunks can have passed; some may begin before it (`ending`)."""
    queue = [(soonest, length) for length, soonest, _ in whole]
    for length, soonest, spread in ending:
        # So many can be there at that moment already, and one more whenever a hold's length has passed.
        at_once = 1 + spread // length if spread >= 0 else since // length
        chunks -= at_once
        queue.append((length - spread % length, length) if spread >= 0 else (length - since % length, length))
    if chunks <= 0 or not queue:
        return 0
    heapq.heapify(queue)
    moment = 0
    for _ in range(chunks):
        moment, length = heapq.heappop(queue)
        heapq.heappush(queue, (moment + length, length))
    return moment
