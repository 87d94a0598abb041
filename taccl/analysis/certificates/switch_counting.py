"""Switch counting: lower bound from the load on one switch resource, if only switches add contributions.

A send over a reduction link of n sources makes at most n additions. Meanwhile it occupies a resource of the
switch: a pool of slots, or the port of a root. docs/formulation.md, "Switch counting", has the proof.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from taccl.analysis.certificates.certificate import Claim, Witness
from taccl.analysis.certificates.evaluation.facts import Facts, pays, soonest
from taccl.analysis.certificates.finding.distances import least_time
from taccl.analysis.certificates.finding.volume import Volume
from taccl.problem.problem import Problem


@dataclass(frozen=True, slots=True)
class SwitchSums(Witness):
    """Witness of switch counting: index of a resource that reduction links hold."""

    kind, proves = "switch sums", "switch counting"
    preference = 3
    any_chunking = True
    resource: int

    def fits(self, problem: Problem) -> bool:
        """True if the problem has the resource."""
        return 0 <= self.resource < len(problem.topology.resources)

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        if not (facts.only_switches_add and (facts.sums or not facts.collective.combining)):
            return False
        prices = [0] * len(facts.topology.resources)
        prices[self.resource] = 1
        paid, links, need = pays(facts, prices), set[int](), Fraction(0)
        for c, count in facts.alike:
            data = facts.collective.chunks[c]
            meets = len(data.origins) - 1 if facts.sums else len({*data.destinations} - {*data.origins})
            if meets < 1 or not data.destinations:
                continue
            shares = []
            for e in facts.admitted(c, reducing=facts.sums):
                link = facts.topology.links[e]
                ends = len(link.srcs) if facts.sums else len(link.dsts)
                if ends > 1 or not facts.sums:
                    shares.append(paid[e] / min(ends, meets))
                    links.add(e)
            weight = count if facts.by_chunk else count * facts.units[c]
            need += min(shares, default=Fraction(0)) * meets * weight
        return ticks <= facts.rounded(soonest(facts, prices, sorted(links), need))


def switch_counting(volume: Volume) -> Iterator[Claim]:
    """Yield the highest switch-counting bound over all resources; nothing if no resource gives a bound.

    - `volume`: Volume of a problem in which only reducing switches add contributions. Its chunks are sums for
      all ranks, or sums for one rank in reversed time.
    """
    problem, links = volume.problem, volume.problem.topology.links
    sums = problem.collective.sums_up
    if problem.collective.combining and not sums:
        return
    ends = [len(link.srcs if sums else link.dsts) for link in links]
    #: {(additions per chunk, index of the set of links that may carry it): total volume of these chunks}.
    kinds: dict[tuple[int, int], int] = defaultdict(int)
    for c, (data, weight) in enumerate(zip(problem.collective.chunks, volume.weight.tolist(), strict=True)):
        meets = len(data.origins) - 1 if sums else len({*data.destinations} - {*data.origins})
        if meets > 0 and data.destinations:
            kinds[meets, volume.distances.carried(c, reducing=sums)] += weight
    need, chosen = defaultdict[int, Fraction](Fraction), np.zeros(len(links), bool)
    for (meets, number), weight in kinds.items():
        mine = [e for e in sorted(volume.distances.links(number)) if ends[e] > 1 or not sums]
        chosen[mine] = True
        common = set.intersection(*(set(volume.held[e]) for e in mine)) if mine else set[int]()
        for r in common:
            share = min(Fraction(volume.held[e][r], min(ends[e], meets)) for e in mine)
            need[r] += share * meets * weight / volume.ticks_scale
    idle = volume.heads_tails.idle(len(problem.topology.resources), chosen).tolist()
    found = [(least_time([(1, idle[r])], ticks), -r) for r, ticks in sorted(need.items())]
    if not found:
        return
    ticks, r = max(found)[0], -max(found)[1]
    name = problem.topology.resources[r].name
    what = f"contributions reduced in switches, over the rate of {name}"
    yield Claim(-(-ticks // 1) if volume.by_chunk else ticks, what, SwitchSums(r))
