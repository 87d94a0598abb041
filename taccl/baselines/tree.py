"""The double binary tree algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from taccl._internal.arguments import checked
from taccl.baselines.chunking import cut_while_it_pays, require_everywhere, run, starts_of
from taccl.baselines.forms import fastest_form
from taccl.baselines.moves import Ints, Moves, Row, Sends, routed
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.topology.topology import Topology

#: Edges of a tree: (depth, parent, child), parents before children.
Edges = list[tuple[int, int, int]]


@checked
def tree(problem: Problem, *, cut: bool = True) -> Schedule:
    """Double-tree schedule: half of the chunks use one binary tree, half another.

    Inner ranks of one tree are leaves of the other, so that both trees together use every rank's links in
    both directions. Reductions go up the same trees. Two forms are tried, and the `producer` names the
    faster: trees of ranks, or trees of nodes with a chain of ranks inside each. Only the merging clauses of
    the sketch apply.

    In an allreduce, trees of ranks gather sums at rank 0. Trees of nodes gather them at two ranks of node 0,
    or at all of its ranks, so that different trees use different NICs. In other collectives, chunks have
    their own roots.

    Parameters
    ----------
    problem : Problem
        The problem to solve.
    cut : bool
        True to cut chunks, so that more of them follow one another down the trees.

    Raises
    ------
    CollectiveError, TopologyError
        As in `ring`.

    References
    ----------
    P. Sanders, J. Speck and J. L. Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and
    scan", Parallel Computing 35 (2009). The chains inside nodes are those of the NVIDIA Collective
    Communications Library, version 2.4.
    """
    require_everywhere(problem, baseline="tree")
    members = ("nodes", "ranks") if problem.topology.num_nodes > 1 else ("ranks",)
    return cut_while_it_pays(problem, partial(_both_trees, members=members), name="tree", cut=cut)


def _both_trees(problem: Problem, *, members: Sequence[str]) -> Schedule:
    topology, chunks = problem.topology, problem.collective.chunks
    is_allreduce = all(len(chunk.destinations) == topology.num_ranks for chunk in chunks)
    first = topology.ranks_of_node[0]
    # Heads gather the sums of trees. Two heads half a node apart use different NICs, if the node has several.
    # If all ranks are heads, all NICs are used.
    heads_of: dict[str, list[tuple[int, ...]]] = {
        "nodes": [(first[0], first[len(first) // 2]), first],
        "ranks": [(0,)],
    }
    forms = []
    for each in members:
        # If chunks have roots of their own, these replace the heads, so one choice of heads is enough.
        for heads in heads_of[each] if is_allreduce else heads_of[each][:1]:
            roots = [heads[c // 2 % len(heads)] for c in range(len(chunks))] if is_allreduce else None
            # Time is reversed for the reduction: the chunk that should be reduced first is sent last.
            backwards = partial(_descend, members=each, last_first=True)
            sends = run(problem, partial(_descend, members=each), backwards=backwards, roots=roots)
            forms.append((f"tree (double binary tree of {each})", sends))
    return fastest_form(problem, forms)


def binary_tree(num_places: int) -> Edges:
    """Binary tree of places 0..num_places-1 with root 0, in which odd places are leaves.

    The number of a place's parent is the place's own, with its lowest set bit cleared and the next higher bit
    set. If there is no such place, the bit is only cleared. Place 0 has one child.
    """
    below: list[list[int]] = [[] for _ in range(num_places)]
    for place in range(1, num_places):
        low = place & -place
        up = (place ^ low) | (low << 1)
        below[up if up < num_places else place ^ low].append(place)
    edges: Edges = []
    reached = [(0, 0)]
    for depth, up in reached:
        edges += [(depth, up, place) for place in below[up]]
        reached += [(depth + 1, place) for place in below[up]]
    return edges


def two_trees(members: Sequence[int]) -> tuple[Edges, Edges]:
    """Two binary trees, rooted at the first member, such that no other member has children in both."""
    count = len(members)
    # Renumber so that odd places become even: mirrored if the count is odd, else shifted by one.
    other = [0, *((count - p) if count % 2 else p % (count - 1) + 1 for p in range(1, count))]
    edges = binary_tree(count)
    first = [(depth, members[a], members[b]) for depth, a, b in edges]
    second = [(depth, members[other[a]], members[other[b]]) for depth, a, b in edges]
    return first, second


def _descend(problem: Problem, *, members: str, last_first: bool = False) -> Sends:
    """Sends of even chunks down the first tree of their root, and of odd ones down the second."""
    num_ranks, starts = problem.topology.num_ranks, starts_of(problem)
    odd = np.arange(len(starts)) % 2
    _, first, tree_of = np.unique(2 * starts + odd, return_index=True, return_inverse=True)
    moves: list[Row] = []
    for number in np.argsort(first).tolist():
        root, which = int(starts[first[number]]), int(odd[first[number]])
        if members == "ranks":
            edges = two_trees([(root + place) % num_ranks for place in range(num_ranks)])[which]
        else:
            shared = bool(((starts == root) & (odd != which)).any())
            edges = _trees_of_nodes(problem.topology, root, shared=shared)[which]
        chunks = np.flatnonzero(tree_of == number)
        moves.append(down(edges, chunks[::-1] if last_first else chunks))
    return routed(problem, Moves.of(moves))


def down(edges: Edges, chunks: Ints) -> Row:
    """Moves of chunks that follow one another down a tree: chunk k takes an edge of depth d in step k + d."""
    depth, src, dst = np.array(edges, np.int64).reshape(-1, 3).T
    return np.arange(len(chunks))[:, None] + depth, chunks[:, None], src, dst, False


def _trees_of_nodes(topology: Topology, root: int, *, shared: bool) -> tuple[Edges, Edges]:
    """Two trees of nodes, with a chain in each node from the rank that receives from other nodes.

    If one root has chunks in both trees (`shared`), they enter other nodes at ranks half a node apart.
    """
    count = topology.num_nodes
    nodes = [(topology.node_of_rank[root] + place) % count for place in range(count)]
    both = []
    for which, edges_of_nodes in enumerate(two_trees(nodes)):
        chains = []
        for node in range(count):
            ranks = topology.ranks_of_node[node]
            entry = topology.local_rank[root]
            if which == 1 and shared and node != nodes[0]:
                entry += len(ranks) // 2
            chains.append([ranks[(entry + i) % len(ranks)] for i in range(len(ranks))])
        edges = [
            (depth + place, chain[place], chain[place + 1])
            for depth, chain in [(0, chains[nodes[0]])] + [(d + 1, chains[b]) for d, _, b in edges_of_nodes]
            for place in range(len(chain) - 1)
        ]
        edges += [(depth, chains[a][0], chains[b][0]) for depth, a, b in edges_of_nodes]
        both.append(sorted(edges))
    return both[0], both[1]
