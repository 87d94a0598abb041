"""Throughput of the data that enters a node, over all chunkings.

Such data reaches ports inside the node only after it has crossed between nodes. Data that starts in the node
may use these ports earlier, so a bound on all data does not count this wait. See docs/formulation.md, "Data
into a node".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from taccl.analysis.certificates.certificate import Claim, Witness
from taccl.analysis.certificates.cuts import CutDual, throughput
from taccl.analysis.certificates.evaluation.facts import Facts
from taccl.analysis.certificates.finding.needed_sends import NeededSends
from taccl.analysis.certificates.finding.volume import Volume
from taccl.analysis.certificates.readings import into_node
from taccl.analysis.certificates.throughput import cut_claims

if TYPE_CHECKING:
    from taccl.problem.problem import Problem

#: `_MOST_NODES`: max number of nodes to try that no symmetry maps to one another.
#: `_MOST_S`: max seconds for the linear program of a node.
_MOST_NODES, _MOST_S = 4, 1.0


@dataclass(frozen=True, slots=True)
class NodeData(Witness):
    """Witness for the data that enters `node`: `inner` proves the time that this data needs alone."""

    kind, proves = "data into a node", "throughput"
    preference = CutDual.preference + 1
    any_chunking = True
    node: int
    inner: CutDual

    def fits(self, problem: Problem) -> bool:
        """True if the node and the ranks exist, and there is one price for each resource."""
        return 0 <= self.node < problem.topology.num_nodes and self.inner.fits(problem)

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        part = into_node(facts.problem, self.node)
        if part is None or facts.in_network or facts.only_switches_add:
            return False
        return self.inner.holds(Facts(part, divisible=facts.divisible, in_network=False), ticks)


def node_data_bounds(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Yield throughput bounds of the data that enters a node, if several nodes have ranks."""
    nodes = [frozenset(ranks) for ranks in demand.topology.ranks_of_node]
    if in_network or not 1 < len(nodes) < demand.topology.num_ranks:
        return
    for ranks in demand.different(nodes)[:_MOST_NODES]:
        node = nodes.index(ranks)
        part = into_node(demand.problem, node)
        if part is None:
            continue
        demand.deadline.check()
        needed = NeededSends(part)
        needed.deadline = demand.deadline
        volume = Volume(part, divisible=True, distances=needed.distances)
        budget_s = min(_MOST_S, demand.deadline.left_s)
        found = throughput(volume, needed.symmetries, in_network=False, budget_s=budget_s)
        for claim in cut_claims(volume, found):
            assert isinstance(claim.witness, CutDual), "claims of cuts have the duals of cuts"
            limits = f"{claim.limits}, of data from other nodes"
            yield Claim(claim.ticks, limits, NodeData(node, claim.witness))
