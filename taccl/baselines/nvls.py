"""NVLS as an algorithm of the baseline ``nccl``: allreduces in which the switch of each node makes sums.

In every node, the switch adds up each chunk, and delivers the sum to one rank. Trees of nodes add up these
sums, and the switches multicast the results.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from taccl.baselines.spread import cut_while_it_pays, without_sketch
from taccl.baselines.tree import two_trees
from taccl.measure.machine import machine_of
from taccl.measure.model import Way, nvls_way
from taccl.schedule.timing import exact_times
from taccl.topology.in_network import shared_links
from taccl.topology.machines import SHAPES
from taccl.topology.nvls import with_nvls
from taccl.topology.profiles import profile_of
from taccl.topology.registry import parse

if TYPE_CHECKING:
    from taccl.problem.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.topology.topology import Topology

#: Finer chunks are kept if they finish within this share of the time of coarser ones.
_PAYS = Fraction(99, 100)


def with_switches(problem: Problem) -> Problem:
    """Add the links of reducing switches (NVLS) to the topology of an allreduce.

    The problem is returned unchanged if it is no allreduce, has clauses other than merging, or has such links
    already. It is also unchanged if its machine has no such switches or no profile, or differs from the
    machine's model in links or costs. For topologies read from files, `with_nvls` decides.
    """
    topology, shape = problem.topology, SHAPES.get(problem.topology.machine)
    if (
        links_of_switches(topology)
        or problem.collective.name != "allreduce"
        or without_sketch(problem) != problem
    ):
        return problem
    if not topology.machine:
        return replace(problem, topology=with_nvls(topology))
    if (profile := profile_of(topology)) is None or shape is None or not shape.nvls:
        return problem
    for rails in {shape.has_rails, False}:
        made = parse(
            topology.machine, nodes=topology.num_nodes, profile=profile.name, rails=rails, nvls=True,
            protocol=topology.protocol or None, alpha_meaning=topology.alpha_meaning,
        )  # fmt: skip
        if tuple(e for e in made.links if len(e.srcs) == len(e.dsts) == 1) == topology.links:
            return replace(problem, topology=made)
    return problem


def links_of_switches(topology: Topology) -> dict[int, tuple[int, int]]:
    """{rank: (reduction link to it, multicast link from it)}, both through the switch of the rank's node."""
    shared = {(topology.links[e].srcs, topology.links[e].dsts): e for e in shared_links(topology)}
    found = {}
    for ranks in topology.ranks_of_node:
        for rank in ranks:
            others = tuple(other for other in ranks if other != rank)
            if (others, (rank,)) in shared and ((rank,), others) in shared:
                found[rank] = shared[others, (rank,)], shared[(rank,), others]
    return found


def nvls_ways(problem: Problem) -> tuple[Way, ...]:
    """NVLS as an algorithm of NCCL's cost model; empty if the problem or its topology does not allow NVLS.

    Each byte goes to the switch of its node once and comes back, and trees join the nodes.
    """
    topology, found = problem.topology, links_of_switches(problem.topology)
    m, n = topology.num_nodes, topology.num_ranks
    joined = all(_rails(topology, rank) for rank in topology.ranks_of_node[0])
    if len(found) < n or problem.collective.name != "allreduce" or not joined:
        return ()
    beta = topology.links[next(iter(found.values()))[0]].beta_us_per_mb
    volume = float(beta) * machine_of(topology).node_gb_per_s / 1000
    return (nvls_way(n, m, volume),)


def _rails(topology: Topology, rank: int) -> dict[tuple[int, int], int]:
    """{(source node, destination node): link} between the ranks that have the same local rank as `rank`.

    Empty if a link is missing; {(0, 0): -1} for a single node.
    """
    place = topology.local_rank[rank]
    heads = [ranks[place] for ranks in topology.ranks_of_node]
    links = {(topology.links[e].src, topology.links[e].dst): e for e in topology.internode_links}
    pairs = [(a, b) for a in range(len(heads)) for b in range(len(heads)) if a != b]
    if any((heads[a], heads[b]) not in links for a, b in pairs):
        return {}
    return {(a, b): links[heads[a], heads[b]] for a, b in pairs} or {(0, 0): -1}


def nvls_schedule(problem: Problem, *, cut: bool) -> Schedule:
    """NVLS schedule: chunks are summed at one rank per node, then over a tree of nodes, and multicast back.

    While the switch adds up one chunk, it multicasts another from the same rank. In a single node this is
    rank 0; with several nodes all ranks take turns, so that every NIC is used.
    """
    return cut_while_it_pays(
        problem, _through_switches, name="nvls", cut=cut, parts=len(problem.topology.ranks_of_node[0]),
        pays=_PAYS,
    )  # fmt: skip


def _through_switches(problem: Problem) -> Schedule:
    topology, nvls = problem.topology, links_of_switches(problem.topology)
    m, of_node = topology.num_nodes, topology.ranks_of_node
    turns = 1 if m == 1 else len(of_node[0])
    rails = [_rails(topology, rank) for rank in of_node[0][:turns]]
    sends: list[tuple[int, int, int, bool]] = []  # (position in the sequence, chunk, link, True if it adds)
    for c in range(problem.collective.num_chunks):
        turn, root = divmod(c, turns)
        edges = two_trees(range(m))[turn % 2]
        last = max((depth + 1 for depth, _, _ in edges), default=0)
        steps = [(0, 0, nvls[ranks[root]][0], True) for ranks in of_node]
        steps += [(last - depth, 1, rails[root][b, a], True) for depth, a, b in edges]
        steps += [(last + 1 + depth, 2, rails[root][a, b], False) for depth, a, b in edges]
        steps += [(2 * last + 1, 3, nvls[ranks[root]][1], False) for ranks in of_node]
        # A step of a chunk comes two rounds after its previous step, where a round has one chunk per root. So
        # roots have time for chunks in both directions, and NICs for data that they forward in both trees.
        sends += [
            (4 * ((turn + 2 * step) * turns + root) + kind, c, e, adds) for step, kind, e, adds in steps
        ]
    places, chunks, links, adds = zip(*sends, strict=True)
    return exact_times(
        problem, chunk=chunks, link=links, sequence=places, reduce=adds, producer="sums in switches"
    )
