"""What a compiled kernel needs to know of sends between nodes, and of what goes on inside nodes meanwhile.

In a fabric of nodes a chunk has to come into every node once, over one of few slow links: it crosses. In a
reduction the sum of every node crosses once, out of it. Crossings are few, so which links they take, and
when, can be searched well; what happens inside the nodes is counted in summary, by how soon one sum after
another can be there, or one chunk after another be copied to all.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.synthesis.crossing.inside_nodes import Inside, time_sums

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.problem import Problem

__all__ = ["Crossings", "make_crossings", "make_inside"]

#: For so many sums in a row it is known when they can be there.
_MOST_SUMS = 32


class Crossings(NamedTuple):
    """Links between nodes, and what has to cross.

    Crossing ``(t * num_chunks + c) * num_nodes + n`` is the sum of chunk c that leaves node n (t = 0), or the
    chunk that comes into node n (t = 1).

    Parameters
    ----------
    link, src, dst, src_node, dst_node : (num_links,) int64
        The topology's link of every link between nodes, and its ends.
    alpha, beta : (num_links,) int64
        Ticks of a send, and of a unit more.
    between_of, between : (num_nodes ** 2 + 1,), (num_links,) int64
        The links from node a to b are ``between[between_of[k]:between_of[k + 1]]``, k = a * num_nodes + b.
    hold_of, hold_resource, hold_alpha, hold_beta, hold_receives
        Holds of link e are rows ``hold_of[e]:hold_of[e + 1]``; resources are numbered anew.
    units : (num_chunks,) int64
    hop : int
        Ticks of a send inside a node.
    ramp : (num_nodes, _MOST_SUMS) int64
        When the first, second, ... sum of a node can be there; also how long before the end the last, last
        but one, ... chunk has to come in.
    brings, needs : (num_chunks, num_nodes) bool
        Whether a node has something to add to a chunk's sum, and whether one of its ranks wants the chunk.
    is_summed, is_copied : (num_chunks, num_nodes) bool
        Whether it takes sends inside the node to make its sum, or to give the chunk to all that want it.
    origin : (num_chunks,) int64
        The rank where a chunk starts; -1 of one that is reduced.
    meets : (num_chunks,) int64
        The rank where a chunk starts, or its sum has to be complete; -1 where that may be anywhere.
    """

    num_chunks: int
    num_nodes: int
    link: NDArray[np.int64]
    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    src_node: NDArray[np.int64]
    dst_node: NDArray[np.int64]
    alpha: NDArray[np.int64]
    beta: NDArray[np.int64]
    between_of: NDArray[np.int64]
    between: NDArray[np.int64]
    hold_of: NDArray[np.int64]
    hold_resource: NDArray[np.int64]
    hold_alpha: NDArray[np.int64]
    hold_beta: NDArray[np.int64]
    hold_receives: NDArray[np.bool_]
    num_resources: int
    units: NDArray[np.int64]
    hop: int
    ramp: NDArray[np.int64]
    brings: NDArray[np.bool_]
    needs: NDArray[np.bool_]
    is_summed: NDArray[np.bool_]
    is_copied: NDArray[np.bool_]
    origin: NDArray[np.int64]
    meets: NDArray[np.int64]

    def fewest_rounds(self, root: NDArray[np.int64]) -> int:
        """How many crossings there are, over how many can be under way at once: about so many rounds.

        Parameters
        ----------
        root : (num_chunks,) int64
            The node where each chunk starts, or its sum is complete.
        """
        taken: set[int] = set()
        at_once = 0
        for e in range(len(self.link)):
            held = set(self.hold_resource[self.hold_of[e] : self.hold_of[e + 1]].tolist())
            if held.isdisjoint(taken):
                taken |= held
                at_once += 1
        elsewhere = np.arange(self.num_nodes) != root[:, None]
        count = int((self.needs & elsewhere).sum() + (self.brings & elsewhere).sum())
        return max(1, -(-count // max(1, at_once)))


def make_inside(problem: Problem) -> Inside | None:
    """Links inside nodes; None unless they join any two ranks of a node."""
    topology, costs = problem.topology, problem.costs
    num_ranks, num_chunks = topology.num_ranks, problem.collective.num_chunks
    link = np.full((num_ranks, num_ranks), -1, np.int64)
    for e in problem.links_allowed:
        ends = topology.links[e]
        if len(ends.srcs) == 1 == len(ends.dsts) and not topology.is_internode(e):
            link[ends.src, ends.dst] = e
    for ranks in topology.ranks_of_node:
        if (link[np.ix_(ranks, ranks)] < 0).sum() > len(ranks):
            return None
    holds = topology.holds
    by_link = np.argsort(np.array([hold.link for hold in holds]), kind="stable")
    starts_at, wanted = np.zeros((2, num_chunks, num_ranks), bool)
    for c, chunk in enumerate(problem.collective.chunks):
        starts_at[c, list(chunk.origins)] = True
        wanted[c, list(chunk.destinations)] = True
    return Inside(
        link,
        costs.link_alpha.astype(np.int64),
        costs.link_beta.astype(np.int64),
        _offsets([hold.link for hold in holds], len(topology.links)),
        np.array([holds[h].resource for h in by_link], np.int64),
        costs.hold_alpha[by_link].astype(np.int64),
        costs.hold_beta[by_link].astype(np.int64),
        np.array([holds[h].side == "receive" for h in by_link], bool),
        len(topology.resources),
        np.concatenate(([0], np.cumsum([len(ranks) for ranks in topology.ranks_of_node]))).astype(np.int64),
        np.array([rank for ranks in topology.ranks_of_node for rank in ranks], np.int64),
        starts_at,
        wanted,
    )


def make_crossings(problem: Problem, inside: Inside) -> Crossings:
    """Links between nodes, and what has to cross; of chunks that are reduced, or start at one rank each."""
    topology, costs, collective = problem.topology, problem.costs, problem.collective
    node_of = np.array(topology.node_of_rank, np.int64)
    num_nodes, num_chunks = topology.num_nodes, collective.num_chunks
    link = [
        e
        for e in problem.links_allowed
        if topology.is_internode(e) and len(topology.links[e].srcs) == 1 == len(topology.links[e].dsts)
    ]
    src = np.array([topology.links[e].src for e in link], np.int64)
    dst = np.array([topology.links[e].dst for e in link], np.int64)
    pair = node_of[src] * num_nodes + node_of[dst]
    of_link: dict[int, list[int]] = defaultdict(list)
    for h, hold in enumerate(topology.holds):
        of_link[hold.link].append(h)
    rows = [h for e in link for h in of_link[e]]
    holds = [topology.holds[h] for h in rows]
    names, resource = np.unique([hold.resource for hold in holds], return_inverse=True)
    brings, needs = np.zeros((2, num_chunks, num_nodes), bool)
    origin, meets = np.full((2, num_chunks), -1, np.int64)
    for c, chunk in enumerate(collective.chunks):
        if collective.combining:
            brings[c, node_of[list(chunk.origins)]] = True
            if len(chunk.destinations) == 1:
                meets[c] = chunk.destinations[0]
        else:
            origin[c] = meets[c] = chunk.origins[0]
        needs[c, node_of[list(chunk.destinations)]] = True
    each = np.array([len(ranks) for ranks in topology.ranks_of_node])
    fast = inside.link[inside.link >= 0]
    units = int(costs.chunk_units.max())
    took = costs.link_alpha[fast] + units * costs.link_beta[fast]
    ramp = np.zeros((num_nodes, _MOST_SUMS), np.int64)
    for node in range(num_nodes):
        if each[node] > 1:
            time_sums(inside, node, units, ramp[node])
    return Crossings(
        num_chunks,
        num_nodes,
        np.array(link, np.int64),
        src,
        dst,
        node_of[src],
        node_of[dst],
        costs.link_alpha[link].astype(np.int64),
        costs.link_beta[link].astype(np.int64),
        _offsets(pair, num_nodes**2),
        np.argsort(pair, kind="stable"),
        np.concatenate(([0], np.cumsum([len(of_link[e]) for e in link]))).astype(np.int64),
        resource.reshape(-1).astype(np.int64),
        costs.hold_alpha[rows].astype(np.int64),
        costs.hold_beta[rows].astype(np.int64),
        np.array([hold.side == "receive" for hold in holds], bool),
        len(names),
        costs.chunk_units.astype(np.int64),
        int(np.median(took)) if len(fast) else 0,
        ramp,
        brings,
        needs,
        brings & (each > 1),
        needs & (each > 1),
        origin,
        meets,
    )


def _offsets(numbers: NDArray[np.int64] | list[int], count: int) -> NDArray[np.int64]:
    """Where the rows of each number begin, once sorted; one more entry for the end."""
    return np.concatenate(([0], np.cumsum(np.bincount(numbers, minlength=count)))).astype(np.int64)
