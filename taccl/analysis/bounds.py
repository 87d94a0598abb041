"""Lower bounds on the finish of any schedule of a problem, each with one sentence that says what limits.

`lower_bound` is the best of: latency (the longest shortest path), counting (whole chunks that a rank or a
node must pass, over the rate of the resources they can pass), and the one-machine bound (a resource's
batches, from the releases of its chunks to the tail behind the last one). All hold for the declared
problem: its topology, collective and sketch.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from taccl.analysis.demand import Demand, Job
from taccl.analysis.one_machine import machine_ticks
from taccl.schedule.combine import reduction_half

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from fractions import Fraction

    from taccl.problem import Problem

__all__ = ["Bound", "lower_bound"]


@dataclass(frozen=True, slots=True)
class Bound:
    """A proven lower bound.

    Parameters
    ----------
    bound : Fraction
        Microseconds, exact.
    limits : str
        One sentence that says what limits.
    kind : str
        ``"latency"``, ``"counting"`` or ``"one machine"``; ``"none"`` where nothing must be sent.
    """

    bound: Fraction
    limits: str
    kind: str

    @property
    def bound_us(self) -> float:
        """The bound in microseconds."""
        return float(self.bound)


@dataclass(frozen=True, slots=True)
class _Claim:
    """A bound in ticks."""

    ticks: int
    limits: str
    kind: str


def lower_bound(problem: Problem) -> Bound:
    """The best proven lower bound of the declared problem: topology, collective and sketch."""
    demand = _demand(problem)
    claims = [_latency(demand), *_counting(demand), *_one_machine(demand)]
    best = max(claims, key=lambda claim: claim.ticks)
    return Bound(problem.costs.us(best.ticks), best.limits, best.kind)


def _demand(problem: Problem) -> Demand:
    """What to bound: a sum for one rank is bounded as its reverse, a chunk that spreads from there.

    Where some ranks contribute nothing a reduction may also be copied on, so its reverse is bounded without
    the clauses on which chunks a link carries.
    """
    collective = problem.collective
    to_root = all(chunk.destinations == (chunk.root,) for chunk in collective.chunks)
    if not collective.combining or collective.derivations or not to_root:
        return Demand(problem)
    everyone = set(range(collective.num_ranks))
    if all(set(chunk.origins) == everyone for chunk in collective.chunks):
        return Demand(reduction_half(problem))
    return Demand(reduction_half(problem.with_clauses(carries_from={}, carries_to={})))


def _latency(demand: Demand) -> _Claim:
    """The longest shortest way from where a chunk starts to where it must end."""
    best = _Claim(0, "nothing has to be sent", "none")
    for (data, units), c in demand.example.items():
        if demand.sums_for_all:
            times = demand.distances.times(demand.distances.carried(c, reducing=None), units)
            heads = times[list(data.origins)].max(axis=0)
        else:
            heads = demand.distances.heads(c)
        for target in data.destinations:
            if np.isfinite(heads[target]) and heads[target] > best.ticks:
                what = f"the shortest way of chunk {c} to rank {target}"
                best = _Claim(int(heads[target]), what, "latency")
    return best


def _counting(demand: Demand) -> Iterator[_Claim]:
    """Chunks that must enter or leave a set of ranks, over the rate of all the resources they can pass."""
    if not demand.single_ended:
        return
    for name, sets in demand.families:
        for entering in (True, False):
            covers: list[tuple[int, int, bool]] = []
            for border in demand.borders(sets, entering=entering):
                jobs = border.jobs
                cover = _cover(demand, {e for job in jobs for e in job.links})
                covers += cover * len(border.images)
                early, late = min(job.release for job in jobs), min(job.tail for job in jobs)
                ticks = early + _window(demand, jobs, cover) + late
                which = (
                    demand.topology.node_of_rank[min(border.ranks)] if name == "node" else min(border.ranks)
                )
                verb = "enter" if entering else "leave"
                what = f"{len(jobs)} chunks must {verb} {name} {which} through {_number(cover)}"
                yield _Claim(ticks, what, "counting")
            if demand.sums_for_all and name == "rank" and entering and covers:
                yield from _gossip(demand, covers)


def _gossip(demand: Demand, covers: Sequence[tuple[int, int, bool]]) -> Iterator[_Claim]:
    """A sum that n ranks share takes at least 2(n - 1) sends, whoever adds what.

    Each rank's contribution must leave it and the sum must reach it: until some rank holds the sum, n - 1
    sends have been made at least, and each of the n - 1 others then still needs one.
    """
    sizes, sends = [], 0
    for (data, units), count in demand.classes.items():
        members = set(data.origins) & set(data.destinations)
        if len(members) > 1:
            sends += 2 * (len(members) - 1) * count
            sizes.append(units)
    if sends:
        job = Job(frozenset(), min(sizes), 0, 0, 0)
        what = f"{sends} sends are needed by all ranks together, through {_number(covers)}"
        yield _Claim(_window(demand, [job] * sends, covers), what, "counting")


def _number(cover: Sequence[object]) -> str:
    return f"{len(cover)} resource{'s' if len(cover) != 1 else ''}"


def _cover(demand: Demand, links: set[int]) -> list[tuple[int, int, bool]]:
    """Resources that all the links hold between them: (alpha, beta, merges) of each, at its fastest."""
    cover, left = [], set(links)
    merging = demand.problem.clauses.merging if demand.problem.clauses.max_merge > 1 else frozenset()
    while left:
        users: dict[int, list[int]] = defaultdict(list)
        for e in sorted(left):
            for resource in demand.held[e]:
                users[resource].append(e)
        resource = max(users, key=lambda r: (len(users[r]), -r))
        mine = users[resource]
        alpha = min(demand.held[e][resource][0] for e in mine)
        beta = min(demand.held[e][resource][1] for e in mine)
        cover.append((alpha, beta, any(e in merging for e in mine)))
        left -= set(mine)
    return cover


def _window(demand: Demand, jobs: Sequence[Job], cover: Sequence[tuple[int, int, bool]]) -> int:
    """The shortest time in which the resources together can pass all jobs, whole chunks each."""
    uniform = len({job.units for job in jobs}) == 1
    size, total = min(job.units for job in jobs), sum(job.units for job in jobs)
    max_merge = demand.problem.clauses.max_merge

    def passes(time: int) -> bool:
        done = 0
        for alpha, beta, merges in cover:
            if beta == 0 and (alpha == 0 or not uniform):
                return True
            if not uniform:
                done += time // beta
            elif merges:
                full, rest = divmod(time, alpha + max_merge * size * beta)
                part = max(0, rest - alpha) // (size * beta) if beta else 0
                done += (full * max_merge + min(part, max_merge)) * size
            else:
                done += time // (alpha + size * beta) * size
        return done >= total

    low, high = 0, 1
    while not passes(high):
        high *= 2
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle + 1, high)
    return low


def _one_machine(demand: Demand) -> Iterator[_Claim]:
    """Jobs that must all pass one resource, from their releases to the tail behind the last batch.

    Sets of ranks are disjoint, so jobs of different sets are different sends, unless a link multicasts or
    reduces: then each set counts by itself.
    """
    smallest = np.arange(len(demand.topology.resources))
    for g in demand.group:
        smallest = np.minimum(smallest, np.asarray(g.resources))
    for name, sets in demand.families:
        for entering in (True, False):
            by_resource: dict[int, list[Job]] = defaultdict(list)
            for border in demand.borders(sets, entering=entering):
                mine: dict[int, list[Job]] = defaultdict(list)
                for job in border.jobs:
                    for resource in set.intersection(*(set(demand.held[e]) for e in job.links)):
                        mine[resource].append(job)
                for g in border.images:
                    for resource, some in mine.items():
                        image = g.resources[resource]
                        if smallest[image] != image:
                            continue
                        moved = [_moved(job, g.links) for job in some]
                        if demand.single_ended:
                            by_resource[image].extend(moved)
                        elif len(moved) > len(by_resource[image]):
                            by_resource[image] = moved
            for resource, jobs in sorted(by_resource.items()):
                what = demand.topology.resources[resource].name
                verb = "entering" if entering else "leaving"
                limits = f"{len(jobs)} chunks {verb} a {name} must pass {what}"
                yield _Claim(machine_ticks(demand, resource, jobs), limits, "one machine")


def _moved(job: Job, links: Sequence[int]) -> Job:
    """The job over the images of its links."""
    moved = frozenset(links[e] for e in job.links)
    return Job(moved, job.units, job.release, job.tail, job.onward)
