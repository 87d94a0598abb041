"""Cut counting: whole chunks that must cross the border of a set of ranks, over the rate of its resources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from taccl.analysis.certificates.evaluation.facts import Facts
from taccl.analysis.certificates.evaluation.jobs import fills
from taccl.analysis.certificates.evaluation.jobs import jobs as border_jobs
from taccl.analysis.certificates.finding.gates import passed_by
from taccl.analysis.certificates.finding.needed_sends import NeededSends
from taccl.analysis.certificates.finding.volume import Volume, crossing_links
from taccl.analysis.certificates.gossip import gossip
from taccl.analysis.certificates.witness import Claim, OfRanks


@dataclass(frozen=True, slots=True)
class Border(OfRanks):
    """Sends that must enter (or leave) a set of ranks."""

    kind, proves = "border", "cut counting"
    ranks: frozenset[int]
    entering: bool

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        return _crosses(facts, self, ticks)


def counting(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Count chunks that must enter or leave a set of ranks, over the rate of the resources on the border."""
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
                verb = "enter" if entering else "leave"
                chunks = f"{len(jobs)} chunks" if len(jobs) > 1 else "a chunk"
                what = f"{chunks} that must {verb} {_set_name(demand, name, ranks)} through {resources}"
                yield Claim(ticks + late, what, Border(ranks, entering))


def counted(demand: NeededSends, volume: Volume) -> Iterator[Claim]:
    """Count whole chunks that must enter each rank and node, without times, for very large problems."""
    if not (volume.by_chunk and volume.spreads and demand.single_ended):
        return
    size = int(demand.problem.costs.chunk_units[0])
    for name, sets in demand.families:
        for ranks in demand.different(sets):
            needed = volume.needed((ranks,))
            if needed:
                links = crossing_links(demand.problem, (ranks,)).tolist()
                ticks, resources = passed_by(demand.problem, Counter({size: needed}), links)
                what = f"{needed} chunks that must enter {_set_name(demand, name, ranks)} through {resources}"
                yield Claim(ticks, what, Border(ranks, True))


def _set_name(demand: NeededSends, family: str, ranks: frozenset[int]) -> str:
    return f"{family} {demand.topology.node_of_rank[min(ranks)] if family == 'node' else min(ranks)}"


def _crosses(facts: Facts, border: Border, ticks: Fraction) -> bool:
    """True if no schedule with the required crossings of the border can finish before `ticks`."""
    if facts.multi:
        return False
    jobs = list(border_jobs(facts, border.ranks, entering=border.entering))
    if not jobs:
        return ticks <= 0
    early, late = min(job.release for job in jobs), min(job.tail for job in jobs)
    links = sorted({e for job in jobs for e in job.links})
    return fills(facts, Counter(job.units for job in jobs), links, ticks - late, since=early)
