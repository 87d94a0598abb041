"""Checks of border arguments: shortest paths, counted chunks, and the batches of a machine.

The chunks that must cross a set of ranks are derived again from the collective. The dynamic program over
batches (`machine_ticks`) is itself arithmetic; it runs again, on these jobs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from fractions import Fraction

from taccl.analysis.certificates.check_facts import Facts
from taccl.analysis.certificates.check_gates import GatePassage, passages, passages_of
from taccl.analysis.certificates.check_spread_tail import fastest, reached
from taccl.analysis.certificates.single_machine import BorderJob, machine_ticks
from taccl.analysis.certificates.witnesses import Border, DynamicCut, Path, SingleMachine
from taccl.collective import Chunk
from taccl.schedule.combine import reduction_half


def latency(facts: Facts, path: Path) -> int:
    """Shortest time of a chunk to a destination; for a sum, from its farthest contribution."""
    data = facts.collective.chunks[path.chunk]
    if path.destination not in data.destinations:
        return 0
    units = 0 if facts.divisible else facts.units[path.chunk]
    links = facts.carried(path.chunk)
    if not facts.sums:
        starts = facts.origins(path.chunk, 0 if facts.divisible else None)
        return facts.times(links, units, starts).get(path.destination, 0)
    found = facts.times(links, units, {path.destination: 0}, backwards=True)
    return max(found.get(rank, 0) for rank in data.origins)


def crosses(facts: Facts, border: Border, ticks: Fraction) -> bool:
    """True if no schedule with the required crossings of the border can finish before `ticks`."""
    everyone = frozenset(range(facts.topology.num_ranks))
    if border.ranks == everyone and not border.entering:
        if facts.multi or facts.in_network or not facts.sums:
            return False
        node = facts.topology.node_of_rank
        links = [e for e in facts.allowed if facts.topology.is_internode(e)]
        sharing = [_num_sharing(data, node) for data in facts.collective.chunks]
        sends = Counter[int]()
        for num, units in zip(sharing, facts.units, strict=True):
            sends[units] += max(0, 2 * (num - 1))
        return _fills(facts, sends, links, ticks) or _fills_between_ends(facts, sharing, links, ticks)
    if facts.multi:
        return False
    jobs = list(_jobs(facts, border.ranks, entering=border.entering))
    if not jobs:
        return ticks <= 0
    early, late = min(job.release for job in jobs), min(job.tail for job in jobs)
    links = sorted({e for job in jobs for e in job.links})
    return _fills(facts, Counter(job.units for job in jobs), links, ticks - late, since=early)


def crosses_dynamic(facts: Facts, cut: DynamicCut, ticks: Fraction) -> bool:
    """True if the target's chunks cannot all cross a moving border and arrive before `ticks`.

    The chunks that count are those that the target wants and that start on the near side of the border.
    """
    if facts.sums or not facts.spreads_alike:
        return False
    last, since = math.ceil(ticks) - 1, list(cut.moments)
    since[cut.target] = last + 1
    until = [min(last, moment - 1) for moment in since]
    some = [
        c
        for c, others in facts.outside(frozenset((cut.target,)))
        if cut.target in facts.collective.chunks[c].destinations and all(since[r] <= 0 for r in others)
    ]
    links = {e for c in some for e in facts.carried(c)}
    release = {e: since[facts.src[e]] for e in links if since[facts.src[e]] <= until[facts.dst[e]]}
    ways = [
        (way, until[r]) for r, each in passages_of(facts, release, facts.dst, release).items() for way in each
    ]
    return all(way.hold for way, _ in ways) and sum(way.between(0, end) for way, end in ways) < len(some)


def gossips(facts: Facts, ranks: frozenset[int], ticks: Fraction) -> bool:
    """True if links among the ranks cannot pass the sends required by shared sums before `ticks`.

    For each sum, all other ranks together are one of its sharers. So are the ranks at links that may carry
    the sum from or to them.
    """
    if facts.multi or facts.in_network or not facts.sums:
        return False
    sends, over = Counter[int](), set[int]()
    for c, (data, units) in enumerate(zip(facts.collective.chunks, facts.units, strict=True)):
        links, part_of = facts.carried(c), {r: r for r in ranks}
        for e in links:
            if (facts.src[e] in ranks) != (facts.dst[e] in ranks):
                part_of.pop(facts.src[e], None)
                part_of.pop(facts.dst[e], None)
        rest = [part_of.get(r, -1) for r in range(facts.topology.num_ranks)]
        if (sharing := _num_sharing(data, rest)) > 1:
            sends[units] += 2 * (sharing - 1)
            over |= {e for e in links if rest[facts.src[e]] != rest[facts.dst[e]]}
    return _fills(facts, sends, sorted(over), ticks)


def _num_sharing(data: Chunk, part_of: Sequence[int]) -> int:
    """Number of parts of the ranks that both contribute to a sum and want it."""
    return len({part_of[r] for r in data.origins} & {part_of[r] for r in data.destinations})


def _fills(
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


def _fills_between_ends(facts: Facts, sharing: list[int], links: Sequence[int], ticks: Fraction) -> bool:
    """True if links between nodes cannot pass the sends of sums, with those at either end counted half.

    A send does only part of its work if it starts before one rank can hold all contributions of a node. The
    same is true if it ends too late for one copy to spread in a node.

    - `sharing`: Number of nodes that share each sum.
    """
    node, last = facts.topology.node_of_rank, math.ceil(ticks) - 1
    if not facts.spreads_alike or not links or max(sharing, default=0) < 2:
        return False
    adding = wanting = facts.topology.num_ranks
    for data in facts.collective.chunks:
        starts, ends = (Counter(node[r] for r in at) for at in (data.origins, data.destinations))
        parts = starts.keys() & ends.keys()
        if len(parts) > 1:
            adding = min([adding, *(starts[part] for part in parts)])
            wanting = min([wanting, *(ends[part] for part in parts)])
    turned = Facts(reduction_half(facts.problem), divisible=False, in_network=False)
    reaching = [_reaching(some, num) for some, num in ((turned, adding), (facts, wanting))]
    single, size = _one_by_one(facts), facts.units[0]
    for e in facts.clauses.merging.intersection(links) if facts.clauses.max_merge > 1 else ():
        if any(a > facts.alpha[e] or b > facts.beta[e] for a, b, _ in facts.holds[e].values()):
            return False
    took = [single.took(e, size) for e in links]
    head, tail = (min(each, *took) for each in reaching)
    room = min(head + tail, max(0, last - 2 * max(took)))
    first = room * head // max(head + tail, 1)
    since = last - room * tail // max(head + tail, 1)
    ways = passages(single, links)

    def halves(way: GatePassage) -> int:
        whole, some = way.between(first, since), way.between(0, last)
        late, early = way.between(first, last), way.between(0, since)
        return min(max(2 * whole, 2 * late - 1, 2 * early - 1, 2 * some - 2), some + whole)

    number = sum(2 * max(0, n - 1) for n in sharing)
    return all(way.hold for way in ways) and sum(map(halves, ways)) < 2 * number


def _one_by_one(facts: Facts) -> Facts:
    """Facts with each merged send replaced by single chunks in sequence, without latency."""
    if facts.clauses.max_merge == 1:
        return facts
    single, merging = copy(facts), facts.clauses.merging
    single.clauses = replace(facts.clauses, max_merge=1, merging=frozenset())
    single.alpha = [0 if e in merging else alpha for e, alpha in enumerate(facts.alpha)]
    single.holds = [
        {r: (0 if e in merging else alpha, beta, side) for r, (alpha, beta, side) in held.items()}
        for e, held in enumerate(facts.holds)
    ]
    return single


def _reaching(facts: Facts, num: int) -> int:
    """Min ticks for a chunk to spread from one rank of a node to `num` ranks of the node."""
    inside = [e for e in facts.allowed if not facts.topology.is_internode(e)]
    return reached(fastest(passages_of(facts, inside, facts.src).values()), [0], num)[-1]


def batches(facts: Facts, machine: SingleMachine) -> int:
    """Single-machine relaxation of the jobs that must pass a resource, in ticks."""
    sets = [frozenset((r,)) for r in range(facts.topology.num_ranks)]
    if machine.family == "node":
        sets = [frozenset(ranks) for ranks in facts.topology.ranks_of_node]
    ends = [facts.topology.links[e] for e in facts.allowed if machine.resource in facts.holds[e]]
    near = {r for link in ends for r in (link.dsts if machine.entering else link.srcs)}
    sets = [ranks for ranks in sets if ranks & near]
    found: list[list[BorderJob]] = []
    for ranks in sets:
        jobs = _jobs(facts, ranks, entering=machine.entering)
        found.append([job for job in jobs if all(machine.resource in facts.holds[e] for e in job.links)])
    passing = max(found, key=len, default=[]) if facts.multi else [job for jobs in found for job in jobs]
    held = {e: facts.holds[e][machine.resource] for job in passing for e in job.links}
    return machine_ticks(facts.problem, held, passing) if passing else 0


def _jobs(facts: Facts, ranks: frozenset[int], *, entering: bool) -> Iterator[BorderJob]:
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
