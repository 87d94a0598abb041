"""Bounds from whole chunks that must cross the border of a set of ranks: cut counting and single machine.

Cut counting divides the number of crossing chunks by the rate of the border's resources. The single-machine
bound schedules the crossing chunks on one resource that all of them must hold. Each chunk is a job with a
release date (earliest start) and a tail (least time between its end and the end of the schedule).

Source: Carlier, "The one-machine sequencing problem", European Journal of Operational Research 11 (1982).
Here a send of several chunks is a batch of jobs. A dynamic program over batches finds the earliest ends; the
witness stores them as labels.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import product

from taccl.analysis.certificates.certificate import BorderJob, Claim, OfRanks, Witness
from taccl.analysis.certificates.evaluation.facts import Facts
from taccl.analysis.certificates.evaluation.passages import fills
from taccl.analysis.certificates.evaluation.passages import jobs as border_jobs
from taccl.analysis.certificates.finding.gates import FOREVER, passed_by
from taccl.analysis.certificates.finding.needed_sends import NeededSends
from taccl.analysis.certificates.finding.volume import Volume, crossing_links
from taccl.analysis.certificates.gossip import gossip
from taccl.problem.problem import Problem


@dataclass(frozen=True, slots=True)
class Border(OfRanks):
    """Witness of cut counting: chunks that must enter (or, if not `entering`, leave) a set of ranks."""

    kind, proves = "border", "cut counting"
    preference = 4
    ranks: frozenset[int]
    entering: bool

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        return _crosses(facts, self, ticks)


def counting(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Yield cut-counting bounds: chunks that must cross a set's border, divided by the rate of its links.

    The sets are nodes and single ranks. For sums that all ranks need, gossip bounds (`gossip`) come first,
    unless all switches are assumed to reduce (`in_network`).
    """
    if not demand.single_ended:
        return
    if demand.sums_for_all and not in_network:
        yield from gossip(demand)
    for name, sets in reversed(demand.families):  # nodes first: they limit more often, and are fewer
        for entering in (True, False):
            for ranks in demand.different(sets):
                jobs = demand.border(ranks, entering=entering)
                if not jobs:
                    continue
                sends = Counter(job.units for job in jobs)
                early, late = min(job.release for job in jobs), min(job.tail for job in jobs)
                links = {e for job in jobs for e in job.links}
                ticks, resources = passed_by(demand.problem, sends, links, since=early)
                verb = "enter" if entering != demand.is_reversed else "leave"
                chunks = f"{len(jobs)} chunks" if len(jobs) > 1 else "a chunk"
                what = f"{chunks} that must {verb} {_set_name(demand, name, ranks)} through {resources}"
                yield Claim(ticks + late, what, Border(ranks, entering))


def counted(demand: NeededSends, volume: Volume) -> Iterator[Claim]:
    """Yield cut-counting bounds for very large problems, from chunks that must enter a rank or a node.

    Release dates and tails are ignored. Only sets with high estimates are counted, so this takes a fraction
    of a second and needs no symmetries.
    """
    if not (volume.by_chunk and volume.spreads and demand.single_ended):
        return
    size = int(demand.problem.costs.chunk_units[0])
    for name, sets in demand.families:
        estimates = dict(zip(sets, volume.entering_estimates(sets).tolist(), strict=True))
        for ranks in sorted(sets, key=estimates.__getitem__, reverse=True)[:_MOST_COUNTED]:
            needed = volume.needed((ranks,))
            if needed:
                links = crossing_links(demand.problem, (ranks,)).tolist()
                ticks, resources = passed_by(demand.problem, Counter({size: needed}), links)
                verb = "leave" if demand.is_reversed else "enter"
                what = (
                    f"{needed} chunks that must {verb} {_set_name(demand, name, ranks)} through {resources}"
                )
                yield Claim(ticks, what, Border(ranks, True))


def _set_name(demand: NeededSends, family: str, ranks: frozenset[int]) -> str:
    return f"{family} {demand.topology.node_of_rank[min(ranks)] if family == 'node' else min(ranks)}"


def _crosses(facts: Facts, border: Border, ticks: Fraction) -> bool:
    """True if the chunks that must cross the border cannot all arrive in a schedule shorter than `ticks`."""
    if facts.multi:
        return False
    jobs = list(border_jobs(facts, border.ranks, entering=border.entering))
    if not jobs:
        return ticks <= 0
    early, late = min(job.release for job in jobs), min(job.tail for job in jobs)
    links = sorted({e for job in jobs for e in job.links})
    return fills(facts, Counter(job.units for job in jobs), links, ticks - late, since=early)


#: Max sets (ranks, nodes) per kind for cut counting on very large problems; the best by estimate are taken.
_MOST_COUNTED = 32
#: Max states of the dynamic program. Above it, all jobs are put into one queue, which may lower the bound.
_MAX_STATES = 20_000


@dataclass(frozen=True, slots=True)
class SingleMachine(Witness):
    """Witness of the single-machine bound: a resource that chunks hold when they enter or leave rank sets.

    - `family`: Family of the sets, ``"rank"`` or ``"node"``.
    - `entering`: True for chunks that enter, False for chunks that leave.
    - `tail`: Min tail of the jobs that count, in ticks.
    - `ends`: Labels of the dynamic program: for each number of finished jobs per queue, the earliest end in
      ticks, in row-major order. Jobs whose links overlap share a queue, or all jobs share one.
    """

    kind = proves = "single machine"
    preference = 5
    resource: int
    family: str
    entering: bool
    tail: int = 0
    ends: tuple[int, ...] = ()

    def fits(self, problem: Problem) -> bool:
        """True if the problem has the witness's resource, and the family of rank sets is known."""
        is_there = 0 <= self.resource < len(problem.topology.resources)
        return is_there and self.family in ("rank", "node")

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        return _passes_late(facts, self, math.ceil(ticks))


def single_machine(demand: NeededSends, *, in_network: bool = False) -> Iterator[Claim]:
    """Yield single-machine bounds for each resource that chunks must hold to enter or leave ranks or nodes.

    They hold with and without reduction in switches (`in_network`).

    Ranks are disjoint sets, and so are nodes, so jobs of different sets are different sends. If a link
    multicasts or reduces, one send can be a job of several sets; then only the set with the most jobs counts.
    """
    links_of: dict[int, list[int]] = defaultdict(list)
    for e in demand.problem.links_allowed:
        for resource in demand.held[e]:
            links_of[resource].append(e)
    ends = demand.topology.links

    @cache
    def jobs_over(ranks: frozenset[int], entering: bool) -> dict[frozenset[int], list[BorderJob]]:
        over: dict[frozenset[int], list[BorderJob]] = defaultdict(list)
        for job in demand.border(ranks, entering=entering):
            over[job.links].append(job)
        return over

    for resource in sorted(set(demand.symmetries.resources[sorted(links_of)].tolist())):
        mine = frozenset(links_of[resource])
        held = {e: demand.held[e][resource] for e in mine}
        for family, sets in demand.families:
            set_of = {r: ranks for ranks in sets for r in ranks}
            for entering in (True, False):
                near = {set_of[r] for e in mine for r in (ends[e].dsts if entering else ends[e].srcs)}
                jobs: list[BorderJob] = []
                for ranks in sorted(near, key=min):
                    over = jobs_over(ranks, entering).items()
                    some = [job for links, alike in over if links <= mine for job in alike]
                    jobs = [*jobs, *some] if demand.single_ended else max(jobs, some, key=len)
                if jobs:
                    verb = "entering" if entering != demand.is_reversed else "leaving"
                    chunks = f"{len(jobs)} chunks" if len(jobs) > 1 else "a chunk"
                    name = demand.topology.resources[resource].name
                    ticks, tail, labels = machine_ticks(demand.problem, held, jobs)
                    witness = SingleMachine(resource, family, entering, tail, labels)
                    yield Claim(ticks, f"{name}, which {chunks} {verb} a {family} must pass", witness)


def machine_ticks(
    problem: Problem, held: Mapping[int, tuple[int, int, bool]], jobs: Sequence[BorderJob]
) -> tuple[int, int, tuple[int, ...]]:
    """(single-machine bound in ticks, min tail of the jobs that it counts, labels of the dynamic program).

    Several minimum tails are tried, and the highest bound is returned. Jobs with a shorter tail are ignored.
    Chunks of the last batch leave one by one if their onward links share a resource.

    - `held`: {link: (alpha, beta, receives)}: hold of the machine by a send over each link of the jobs.
      `receives` is True if the hold ends with the send (receiving side), False if it starts with it.
    """
    links = {e for job in jobs for e in job.links}
    alpha, beta = min(held[e][0] for e in links), min(held[e][1] for e in links)
    size = min(job.units for job in jobs)
    # Ticks of a send outside its hold: before the hold at the receiving side, after it at the sending side.
    lags = {e: problem.costs.duration(e, size) - held[e][0] - size * held[e][1] for e in links}
    before = min(lag if held[e][2] else 0 for e, lag in lags.items())
    after = min(0 if held[e][2] else lag for e, lag in lags.items())
    max_merge = problem.clauses.max_merge if not links.isdisjoint(problem.clauses.merging) else 1
    best: tuple[int, int, tuple[int, ...]] = 0, 0, ()
    tails = sorted({job.tail for job in jobs}, reverse=True)
    for tail in tails if len(tails) <= 4 else [*tails[:3], tails[-1]]:
        some = [job for job in jobs if job.tail >= tail]
        without_tail = sum(job.tail == 0 for job in some)
        onward = _shared([job.onward for job in some if job.tail])
        if len({job.units for job in some}) > 1:
            total = sum(job.units for job in some)
            end = min(job.release for job in some) + alpha * -(-len(some) // max_merge) + beta * total
            ends, labels = {0: end}, list[int]()
        else:
            ends, labels = batch_ends(_queues(some), alpha, beta * some[0].units, max_merge)
        found = min(
            end + (max(0, last - 1) * onward + tail if tail else max(0, last - without_tail) * onward)
            for last, end in ends.items()
        )
        if before + found + after > best[0]:
            best = before + found + after, tail, tuple(labels)
    return best


def _shared(onward: Sequence[frozenset[tuple[int, int]]]) -> int:
    """Min ticks per job on a resource that every job holds once its chunk has crossed; 0 if there is none."""
    held = [dict(each) for each in onward]
    common = set.intersection(*(set(each) for each in held)) if held else set()
    return max((min(each[resource] for each in held) for resource in common), default=0)


def _queues(jobs: Sequence[BorderJob]) -> list[list[int]]:
    """Put jobs whose links overlap into one queue; return the release dates of each queue, ascending.

    Queues are in order of their lowest link.
    """
    queues: list[tuple[set[int], list[int]]] = []
    for job in jobs:
        links, releases, disjoint = set(job.links), [job.release], []
        for other in queues:
            if other[0] & links:
                links |= other[0]
                releases += other[1]
            else:
                disjoint.append(other)
        queues = [*disjoint, (links, releases)]
    return [sorted(releases) for _, releases in sorted(queues, key=lambda queue: min(queue[0]))]


def batch_ends(
    queues: list[list[int]], alpha: int, beta: int, max_merge: int
) -> tuple[dict[int, int], list[int]]:
    """Earliest ends, in ticks, of jobs that one machine runs in batches of at most `max_merge`.

    Returns ({size of the last batch: earliest end of all jobs}, [earliest end for each state]).

    A batch of n chunks of one queue starts when the machine is free and its chunks are released. It takes
    ``alpha + n * beta`` ticks. A state of the dynamic program is the number of finished jobs of each queue.
    """
    if max_merge == 1 or math.prod(len(queue) + 1 for queue in queues) > _MAX_STATES:
        queues = [sorted(release for queue in queues for release in queue)]
    goal = [len(queue) for queue in queues]
    stride = [math.prod(size + 1 for size in goal[q + 1 :]) for q in range(len(goal))]
    earliest = [0] + [FOREVER] * (math.prod(size + 1 for size in goal) - 1)
    ends: dict[int, int] = {}
    # States in topological order: their predecessors have fewer finished jobs.
    for place, state in enumerate(product(*(range(size + 1) for size in goal))):
        for done, queue, step in zip(state, queues, stride, strict=True):
            for count in range(1, min(max_merge, len(queue) - done) + 1):
                after = place + count * step
                end = max(earliest[place], queue[done + count - 1]) + alpha + count * beta
                if after == len(earliest) - 1:
                    ends[count] = min(end, ends.get(count, end))
                earliest[after] = min(end, earliest[after])
    return ends, earliest


def _passes_late(facts: Facts, machine: SingleMachine, ticks: int) -> bool:
    """True if the jobs that must hold the resource cannot all end, tails included, before `ticks`."""
    jobs = _passing(facts, machine)
    some = [job for job in jobs if job.tail >= machine.tail]
    if not some or ticks <= 0:
        return ticks <= 0
    links = {e for job in jobs for e in job.links}
    holds, size = {e: facts.holds[e][machine.resource] for e in links}, min(job.units for job in jobs)
    alpha, beta = min(hold[0] for hold in holds.values()), min(hold[1] for hold in holds.values())
    most = 1 if links.isdisjoint(facts.clauses.merging) else facts.clauses.max_merge
    # Ticks of a send outside its hold: before the hold at the receiving side, after it at the sending side.
    longer = {e: facts.took(e, size) - hold[0] - size * hold[1] for e, hold in holds.items()}
    ticks -= min(ticks if holds[e][2] else 0 for e, ticks in longer.items())
    ticks -= min(0 if holds[e][2] else ticks for e, ticks in longer.items())
    if len({job.units for job in some}) > 1:
        batches, units = math.ceil(Fraction(len(some), most)), sum(job.units for job in some)
        return ticks <= min(job.release for job in some) + batches * alpha + units * beta + machine.tail
    ends = _last_ends(some, machine.ends, alpha, beta * some[0].units, most)
    each, without = _leaving(some), sum(not job.tail for job in some)
    waiting = {n: (n - 1 if machine.tail else max(0, n - without)) * each for n in ends}
    return bool(ends) and all(ticks <= end + waiting[n] + machine.tail for n, end in ends.items())


def _leaving(jobs: Sequence[BorderJob]) -> int:
    """Min ticks per job on a resource that all jobs with a tail hold after the border; 0 if none exists."""
    held = [dict(job.onward) for job in jobs if job.tail]
    shared = frozenset(held[0]).intersection(*held[1:]) if held else ()
    return max((min(each[resource] for each in held) for resource in shared), default=0)


def _passing(facts: Facts, machine: SingleMachine) -> list[BorderJob]:
    """Jobs at the borders of ranks (or nodes) that must hold the resource.

    If links multicast or reduce, only the jobs of a single set count: the set with the most jobs.
    """
    sets = [frozenset((r,)) for r in range(facts.topology.num_ranks)]
    if machine.family == "node":
        sets = [frozenset(ranks) for ranks in facts.topology.ranks_of_node]
    ends = [facts.topology.links[e] for e in facts.allowed if machine.resource in facts.holds[e]]
    near = {r for link in ends for r in (link.dsts if machine.entering else link.srcs)}
    sets = [ranks for ranks in sets if ranks & near]
    found: list[list[BorderJob]] = []
    for ranks in sets:
        jobs = border_jobs(facts, ranks, entering=machine.entering)
        found.append([job for job in jobs if all(machine.resource in facts.holds[e] for e in job.links)])
    return max(found, key=len, default=[]) if facts.multi else [job for jobs in found for job in jobs]


def _last_ends(
    jobs: Sequence[BorderJob], labels: Sequence[int], alpha: int, beta: int, most: int
) -> dict[int, int]:
    """{size of the last batch: earliest end of all batches in ticks}; empty if `labels` are not all proven.

    A label is proven if no batch that leads to its state can end before it. Such a batch starts at the label
    of an earlier state or later.
    """
    releases: dict[frozenset[int], list[int]] = {}
    for job in jobs:
        disjoint = [links for links in releases if links.isdisjoint(job.links)]
        joined = [links for links in releases if not links.isdisjoint(job.links)]
        queue = [job.release, *(release for links in joined for release in releases[links])]
        releases = {links: releases[links] for links in disjoint} | {job.links.union(*joined): queue}
    queues = [sorted(releases[links]) for links in sorted(releases, key=min)]
    if len(labels) == len(jobs) + 1:
        queues = [sorted(job.release for job in jobs)]
    sizes = [len(queue) + 1 for queue in queues]
    if len(labels) != math.prod(sizes) or labels[0] > 0:
        return {}
    strides = [math.prod(sizes[q + 1 :]) for q in range(len(sizes))]
    ends: dict[int, int] = {}
    for place, label in enumerate(labels):
        for queue, size, step in zip(queues, sizes, strides, strict=True):
            done = place // step % size
            for n in range(1, min(most, done) + 1):
                end = max(labels[place - n * step], queue[done - 1]) + alpha + n * beta
                if label > end:
                    return {}
                if place == len(labels) - 1:
                    ends[n] = min(end, ends.get(n, end))
    return ends
