"""Single machine: a resource that chunks must all pass, in batches, with their releases and tails."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from taccl.analysis.certificates.evaluation.facts import Facts
from taccl.analysis.certificates.evaluation.jobs import jobs as border_jobs
from taccl.analysis.certificates.finding.needed_sends import NeededSends
from taccl.analysis.certificates.machine import BorderJob, machine_ticks
from taccl.analysis.certificates.witness import Claim, Witness
from taccl.problem.problem import Problem


@dataclass(frozen=True, slots=True)
class SingleMachine(Witness):
    """A resource that chunks must pass when they enter (or leave) ranks, or nodes (`family`)."""

    kind = proves = "single machine"
    resource: int
    family: str
    entering: bool

    def fits(self, problem: Problem) -> bool:
        """True if the witness names only what the problem has, and nothing twice."""
        is_there = 0 <= self.resource < len(problem.topology.resources)
        return is_there and self.family in ("rank", "node")

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        return ticks <= facts.rounded(_batches(facts, self))


def single_machine(demand: NeededSends) -> Iterator[Claim]:
    """Single-machine bounds: jobs that must all pass one resource, with their releases and tails.

    Sets of ranks are disjoint, so jobs of different sets are different sends. This fails if a link multicasts
    or reduces; each set then counts alone.
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
                    verb = "entering" if entering else "leaving"
                    chunks = f"{len(jobs)} chunks" if len(jobs) > 1 else "a chunk"
                    name = demand.topology.resources[resource].name
                    witness = SingleMachine(resource, family, entering)
                    ticks = machine_ticks(demand.problem, held, jobs)
                    yield Claim(ticks, f"{name}, which {chunks} {verb} a {family} must pass", witness)


def _batches(facts: Facts, machine: SingleMachine) -> int:
    """Single-machine relaxation of the jobs that must pass a resource, in ticks."""
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
    passing = max(found, key=len, default=[]) if facts.multi else [job for jobs in found for job in jobs]
    held = {e: facts.holds[e][machine.resource] for job in passing for e in job.links}
    return machine_ticks(facts.problem, held, passing) if passing else 0
