"""Throughput bounds: from cuts, found by level sets and linear programs, and from multicommodity flows.

Over all chunkings, the data that enters a node is also bounded alone. It reaches ports inside the node only
after it has crossed between nodes. Data that starts in the node may use these ports earlier, so a bound on
all data does not count this wait. A scatter is bounded in this way in reversed time. See
docs/formulation.md, "Data into a node".
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from fractions import Fraction

from taccl._internal.units import format_count
from taccl.analysis.certificates.certificate import Claim, Witness
from taccl.analysis.certificates.cuts import CutDual, throughput
from taccl.analysis.certificates.evaluation.facts import Facts
from taccl.analysis.certificates.finding.needed_sends import NeededSends
from taccl.analysis.certificates.finding.volume import Volume
from taccl.analysis.certificates.flows import multicommodity
from taccl.analysis.certificates.level_sets import level_cut
from taccl.analysis.certificates.transformed import into_node, ticks_of_part
from taccl.problem.problem import Problem
from taccl.sketch.group import Symmetries

#: `_LEVELS_SHARE`: share of the remaining time in which cuts along level sets are searched.
#: `_FLOWS_SHARE`: share of the remaining time in which multicommodity flows are solved.
_LEVELS_SHARE, _FLOWS_SHARE = 0.1, 0.5


def cut_claims(volume: Volume, found: tuple[Fraction, CutDual] | None) -> Iterator[Claim]:
    """Yield the claim of a cut: its bound, witness, and a text that names its traffic.

    - `found`: (bound in ticks, witness) of the cut; for None, nothing is yielded.
    """
    if found is not None:
        bound, cut = found
        largest = max(cut.charges, key=lambda each: (each.charge, len(each.parts)))
        ticks = math.ceil(bound) if volume.by_chunk else bound
        yield Claim(ticks, _traffic_text(volume, largest.parts), cut)


def throughput_claims(
    volume: Volume,
    symmetries: Symmetries,
    *,
    in_network: bool,
    deadline: float,
    known: int,
    levels: bool = True,
) -> Generator[Claim, None, bool]:
    """Yield throughput bounds from flows, level sets and linear programs over cuts, until `deadline`.

    The generator returns True if time cut off no linear program.
    A claim from a cut is yielded only if it is higher than the one before. Bounds are rounded up to whole
    ticks if chunks of one size travel whole.

    - `known`: A known bound in ticks; a bound below it is of no use.
    - `levels`: False if cuts along level sets are known already.
    """

    def ticks(bound: Fraction) -> int | Fraction:
        return math.ceil(bound) if volume.by_chunk else bound

    def left(share: float) -> float:
        return max(share * (deadline - time.monotonic()), 0.0)

    def along_levels(share: float) -> tuple[Fraction, CutDual] | None:
        return level_cut(volume, budget_s=left(share))

    def programs(share: float) -> tuple[Fraction, CutDual] | None:
        return throughput(volume, symmetries, in_network=in_network, budget_s=left(share), known=known)

    is_solved = yield from _of_flows(volume, symmetries, ticks, budget_s=left(_FLOWS_SHARE), known=known)
    cuts = [(along_levels, _LEVELS_SHARE)] * levels + [(programs, 1.0)]
    if volume.problem.topology.num_nodes > 1:  # the linear program starts with the cuts around nodes
        cuts = [(programs, 1 - _LEVELS_SHARE), (along_levels, 1.0)]
    best = Fraction(0)
    for find, share in cuts:
        until = time.monotonic() + left(share)
        found = find(share)
        is_solved = is_solved and (find is along_levels or time.monotonic() < until)
        if found is not None and found[0] > best:
            best = found[0]
            yield from cut_claims(volume, found)
    return is_solved


def _of_flows(
    volume: Volume,
    symmetries: Symmetries,
    ticks: Callable[[Fraction], int | Fraction],
    *,
    budget_s: float,
    known: int,
) -> Generator[Claim, None, bool]:
    """Yield the multicommodity-flow bound, if nothing is summed and chunks have at most two destinations.

    The generator returns True unless time cut off the linear program.
    """
    one_way = volume.spreads and all(len(chunk.destinations) <= 2 for chunk in volume.collective.chunks)
    if not one_way or budget_s <= 0:
        return not one_way
    flowed = multicommodity(volume, symmetries, budget_s=budget_s, known=known)
    if flowed is None:
        return True
    paths = flowed.witness
    dear = max(range(len(paths.prices)), key=lambda r: paths.prices[r])
    count = sum(price > 0 for price in paths.prices)
    what = f"total traffic over all paths, at the rate of {volume.problem.topology.resources[dear].name}"
    what += f" and {format_count(count - 1, 'other resource')}" if count > 1 else ""
    limits = what if flowed.is_best else f"distance times volume: {what}"
    yield Claim(ticks(flowed.bound), limits, paths)
    return not flowed.is_cut_off


def _traffic_text(volume: Volume, parts: tuple[frozenset[int], ...]) -> str:
    """Text that names the traffic into a set of ranks, or between the parts of a partition."""
    into, out_of = ("out of", "into") if volume.is_reversed else ("into", "out of")
    topology = volume.problem.topology
    if len(parts) > 1:
        if all(len(part) == 1 for part in parts):
            return f"traffic among {len(parts)} ranks that share each sum"
        return f"traffic between {len(parts)} groups of ranks that share each sum"
    ranks = parts[0]
    rest = set(range(topology.num_ranks)) - ranks
    for direction, some in ((into, set(ranks)), (out_of, rest)):
        if len(some) == 1:
            return f"traffic {direction} rank {min(some)}"
        node = topology.node_of_rank[min(some)]
        if some == set(topology.ranks_of_node[node]):
            return f"traffic {direction} node {node}"
    shown = ", ".join(map(str, sorted(ranks)[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"traffic {into} ranks {shown} ({len(ranks)} ranks)"


#: `_MOST_NODES`: max number of nodes to try that no symmetry maps to one another.
#: `_MOST_S`: max seconds for the linear program of a node.
_MOST_NODES, _MOST_S = 4, 1.0


@dataclass(frozen=True, slots=True)
class NodeData(Witness):
    """Witness for the data that enters `node`: `inner` proves the time that this data needs alone.

    - `backwards`: True if the bound is for the time-reversed problem.
    """

    kind, proves = "data into a node", "throughput"
    preference = CutDual.preference + 1
    any_chunking = True
    node: int
    inner: CutDual
    backwards: bool = False

    def fits(self, problem: Problem) -> bool:
        """True if the node and the ranks exist, and there is one price for each resource."""
        return 0 <= self.node < problem.topology.num_nodes and self.inner.fits(problem)

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        part = into_node(facts.problem, self.node)
        if part is None or facts.in_network:
            return False
        ticks /= ticks_of_part(part, facts.problem)
        return self.inner.holds(Facts(part, divisible=facts.divisible, in_network=False), ticks)


def node_data_bounds(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Yield throughput bounds of the data that enters a node, if several nodes have ranks."""
    nodes = [frozenset(ranks) for ranks in demand.topology.ranks_of_node]
    if in_network or not 1 < len(nodes) < demand.topology.num_ranks:
        return
    for needed, backwards in demand.both_directions():
        for ranks in needed.different(nodes)[:_MOST_NODES]:
            node = nodes.index(ranks)
            part = into_node(needed.problem, node)
            if part is None:
                continue
            demand.deadline.check()
            alone = NeededSends(part, is_reversed=needed.is_reversed)
            alone.deadline = demand.deadline
            volume = Volume(part, divisible=True, sends=alone)
            budget_s = min(_MOST_S, demand.deadline.left_s)
            found = throughput(volume, alone.symmetries, in_network=False, budget_s=budget_s)
            for claim in cut_claims(volume, found):
                assert isinstance(claim.witness, CutDual), "claims of cuts have the duals of cuts"
                limits = f"{claim.limits}, of data {'for' if needed.is_reversed else 'from'} other nodes"
                ticks = claim.ticks * ticks_of_part(part, needed.problem)
                yield Claim(ticks, limits, NodeData(node, claim.witness, backwards))
