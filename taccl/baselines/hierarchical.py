"""The two-level algorithm: between nodes among ranks of one local rank, then inside each node."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from taccl.arguments import checked
from taccl.baselines.cut import cut_while_it_pays
from taccl.baselines.cycles import find_rings
from taccl.baselines.ring import pass_round
from taccl.baselines.spread import Spread, chunks_of_starts, fastest_form, require_no_derivations
from taccl.errors import CollectiveError

if TYPE_CHECKING:
    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule

__all__ = ["hierarchical"]


@checked
def hierarchical(problem: Problem, *, cut: bool = True) -> Schedule:
    """A schedule in two levels: chunks cross to the same local rank of other nodes, then spread in each node.

    A reduction does the reverse: inside nodes first, then between them. So allreduce is a reduce-scatter
    inside nodes, an allreduce between nodes, and an allgather inside nodes. Between nodes chunks go round a
    ring of nodes; inside, round a ring of ranks or straight to each: the faster is returned, and its
    `producer` names it. The sketch is left aside, but for merging.

    Parameters
    ----------
    problem, cut
        As in `ring`.

    Raises
    ------
    CollectiveError
        If there is one node, nodes differ in size, or the collective is a scan.
    TopologyError
        If no links lead from one rank to another.

    References
    ----------
    M. Cho, U. Finkler, M. Serrano, D. Kung and H. Hunter, "BlueConnect: decomposing all-reduce for deep
    learning on heterogeneous network hierarchy", IBM Journal of Research and Development 63 (2019).
    """
    require_no_derivations(problem, baseline="hierarchical")
    sizes = sorted({len(ranks) for ranks in problem.topology.ranks_of_node})
    if problem.topology.num_nodes < 2 or len(sizes) > 1:
        raise CollectiveError(
            f"hierarchical needs two or more nodes of one size, and found {problem.topology.num_nodes} of "
            f"{' or '.join(map(str, sizes))} ranks; use ring",
            where="baseline",
        )
    forms = [partial(_two_levels, inside=each) for each in ("ring", "direct")]
    return cut_while_it_pays(problem, partial(fastest_form, forms=forms), cut=cut)


def _two_levels(problem: Problem, *, inside: str) -> Schedule:
    topology, spread = problem.topology, Spread(problem)
    nodes, size = topology.ranks_of_node, len(topology.ranks_of_node[0])
    starts = chunks_of_starts(problem)
    columns = [[ranks[local] for ranks in nodes] for local in range(size)]
    pass_round(spread, [(column, [starts[rank] for rank in column]) for column in columns], 1)
    # A rank now holds what started at any rank of its local rank; what it held longest goes first.
    held: list[list[int]] = [[] for _ in starts]
    for column in columns:
        for place, rank in enumerate(column):
            for distance in range(len(column)):
                held[rank] += starts[column[place - distance]]
    path = [topology.local_rank[rank] for rank in find_rings(topology, spread.routes)[0][:size]]
    if inside == "ring":
        walks = [[ranks[local] for local in path] for ranks in nodes]
        pass_round(spread, [(walk, [held[rank] for rank in walk]) for walk in walks], 2)
    else:
        for shift in range(1, size):
            pairs = [(ranks[a], ranks[(a + shift) % size]) for a in range(size) for ranks in nodes]
            spread.step([(held[src], src, dst) for src, dst in pairs])
    return spread.schedule(producer=f"hierarchical ({inside} inside nodes)")
