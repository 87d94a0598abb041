"""Packing of spanning trees within the capacities of a directed graph, and routes of chunks along them.

Trees exist if and only if enough capacity enters each set of nodes: one unit for each tree with its root
outside (Edmonds' theorem). Equal trees of one root are built together as copies, and separated where capacity
runs out. An edge joins a tree with the largest number of copies for which the remaining capacity still
satisfies that condition. A maximum flow determines that number. All arithmetic is on integers.

References
----------
J. Edmonds, "Edge-disjoint branchings", in Combinatorial Algorithms (1973). K. Bérczi and A. Frank, "Packing
arborescences" (2009), on multiplicities. L. Zhao et al., "ForestColl", arXiv 2402.06787 (2024).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arrays import Ints
from taccl.errors import NoSolutionError
from taccl.problem.problem import Problem
from taccl.synthesis.kernels.fabric import Fabric
from taccl.synthesis.kernels.flow_kernel import flow_up_to
from taccl.synthesis.proposers.router import Routes
from taccl.synthesis.trees.network import least_time, network_of, split_switches

#: Max edges tried to extend all copies of a tree at once; then the edge that extends most copies is taken.
_TRIES = 6


@dataclass(frozen=True, slots=True)
class Tree:
    """A spanning tree, with its number of copies.

    - `edges`: In an order from the root, each after the edge that reaches its tail.
    - `count`: Number of copies.
    """

    root: int
    edges: tuple[tuple[int, int], ...]
    count: int


@dataclass(slots=True)
class _Partial:
    """Copies of an unfinished tree: their number, edges, and the distance of each node from the root."""

    count: int
    edges: list[tuple[int, int]]
    distance: NDArray[np.float64]  # inf for nodes not reached

    @property
    def reached(self) -> NDArray[np.bool_]:
        return np.isfinite(self.distance)


def pack_trees(
    capacity: Ints, counts: Sequence[int], length: NDArray[np.float64] | None = None
) -> list[Tree]:
    """Spanning trees out of each root that together use each edge at most as often as its capacity.

    Short trees are preferred: edges near the root are added first.

    Parameters
    ----------
    capacity : (num_nodes, num_nodes) int64
        Number of trees that an edge can carry.
    counts : sequence of int
        Number of trees out of each node.
    length : (num_nodes, num_nodes) float, optional
        Length of each edge; None for 1 each.

    Raises
    ------
    NoSolutionError
        If no such packing exists.
    """
    left, waiting = capacity.astype(np.int64), np.array(counts, np.int64)
    lengths = np.ones(left.shape) if length is None else length
    found: list[Tree] = []
    for root in np.flatnonzero(waiting).tolist():
        distance = np.full(len(left), np.inf)
        distance[root] = 0.0
        begun = [_Partial(int(waiting[root]), [], distance)]
        waiting[root] = 0
        while begun:
            tree, is_tight = begun.pop(), np.zeros(left.shape, bool)
            while len(tree.edges) < len(left) - 1:
                edge, count = _next_edge(tree, left, is_tight, waiting, begun, lengths)
                if count < tree.count:
                    rest = _Partial(tree.count - count, [*tree.edges], tree.distance.copy())
                    begun.append(rest)
                    tree.count = count
                left[edge] -= count
                tree.edges.append(edge)
                tree.distance[edge[1]] = tree.distance[edge[0]] + lengths[edge]
            found.append(Tree(root, tuple(tree.edges), tree.count))
    return found


def _next_edge(
    tree: _Partial,
    left: Ints,
    is_tight: NDArray[np.bool_],
    waiting: Ints,
    begun: Sequence[_Partial],
    lengths: NDArray[np.float64],
) -> tuple[tuple[int, int], int]:
    """(edge that extends a tree, number of copies that it can extend).

    - `is_tight`, (num_nodes, num_nodes): True for edges into sets of nodes whose whole capacity other trees
      need. Such edges stay tight while this tree is built. The function marks those that it finds.
    - `begun`: Other unfinished trees.
    """
    best, most, tried = (0, 0), 0, 0
    for edge in _by_distance(tree, left, lengths):
        if is_tight[edge] or min(tree.count, left[edge]) <= most:
            continue
        if tried >= _TRIES and most:
            break
        tried += 1
        count, inside = _copies(edge, tree, left, waiting, begun)
        if not count:
            is_tight |= ~inside[:, None] & inside
        if count > most:
            best, most = edge, count
        if most == tree.count:
            break
    if not most:
        raise NoSolutionError(
            "no packing of trees: a set of nodes cannot be entered often enough", bound_us=None
        )
    return best, most


def _by_distance(tree: _Partial, left: Ints, lengths: NDArray[np.float64]) -> Iterator[tuple[int, int]]:
    """Edges out of a tree: first those with capacity for all copies, then by distance of the node reached."""
    reached = tree.reached
    tails, heads = np.flatnonzero(reached), np.flatnonzero(~reached)
    room = left[np.ix_(tails, heads)]
    tail, head = np.nonzero(room)
    ends = tree.distance[tails[tail]] + lengths[tails[tail], heads[head]]
    is_short = room[tail, head] < tree.count
    for i in np.lexsort((-room[tail, head], ends, is_short)):
        yield int(tails[tail[i]]), int(heads[head[i]])


def _copies(
    edge: tuple[int, int], tree: _Partial, left: Ints, waiting: Ints, begun: Sequence[_Partial]
) -> tuple[int, NDArray[np.bool_]]:
    """Number of copies of a tree that an edge can extend, and the limiting set as a bool array over nodes.

    The number is the largest for which all trees can still be completed. The limiting set is a minimum cut:
    of all sets that the edge enters, the one with the least capacity in excess of its demand.

    The flow network has an extra node for each unfinished tree of `begun`. Edges lead from the tail of `edge`
    to the extra node, and on to all nodes that this unfinished tree reaches. The capacity of these edges is
    its number of copies.
    """
    tail, head = edge
    num_nodes = len(left)
    room = np.zeros((num_nodes + len(begun),) * 2, np.int64)
    room[:num_nodes, :num_nodes] = left
    room[tail, :num_nodes] += waiting
    for i, other in enumerate(begun, num_nodes):
        room[tail, i] = other.count
        room[i, :num_nodes][other.reached] = other.count
    around = int(waiting.sum()) + sum(other.count for other in begun)
    most = min(tree.count, int(left[edge]))
    level = np.zeros(len(room), np.int64)
    return max(0, int(flow_up_to(room, tail, head, around + most, level)) - around), level[:num_nodes] < 0


class TreeRoutes(NamedTuple):
    """Routes of chunks along trees.

    - `turn`, (num_chunks,): For each chunk, the share of the chunks of the same root that precede it.
    - `is_even`: True if links share some switch evenly that could also serve some of them only.
    """

    routes: Routes
    turn: NDArray[np.float64]
    is_even: bool


def tree_counts(problem: Problem) -> Ints | None:
    """(num_ranks,) number of trees out of each rank; None unless each chunk goes from one rank to all ranks.

    None also if chunks differ in size, or there are reductions.
    """
    collective, num_ranks = problem.collective, problem.topology.num_ranks
    if collective.combining or collective.derivations or len(set(problem.costs.chunk_units.tolist())) != 1:
        return None
    origins, ends = collective.origin_sets, collective.destination_sets
    pairs = np.unique(np.stack((origins.of_chunk, ends.of_chunk)), axis=1).T.tolist()
    if any(len(origins.sets[a]) != 1 or len({*origins.sets[a], *ends.sets[b]}) < num_ranks for a, b in pairs):
        return None
    return np.bincount(_root_of_chunk(problem), minlength=num_ranks)


def _root_of_chunk(problem: Problem) -> Ints:
    """(num_chunks,) the first origin of each chunk."""
    origins = problem.collective.origin_sets
    root = np.array([ranks[0] for ranks in origins.sets], np.int64)
    return root[origins.of_chunk]


def tree_routes(problem: Problem, fabric: Fabric, *, evenly: bool = True) -> TreeRoutes | None:
    """Routes along packed trees, for chunks that each go from one rank to all ranks.

    None if no trees are found: see `tree_counts`, `network_of` and `split_switches`, also for `evenly`.
    """
    counts, network = tree_counts(problem), network_of(problem)
    if counts is None or network is None:
        return None
    units = int(problem.costs.chunk_units[0])
    ticks, capacity = least_time(network, counts, units)
    chosen, is_even = split_switches(network, capacity, counts, evenly=evenly)
    if chosen is None:
        return None
    slot_of = {link: slot for slot, link in enumerate(fabric.link.tolist())}
    room: dict[tuple[int, int], list[list[int]]] = defaultdict(list)
    shape = problem.topology.num_ranks, problem.topology.num_ranks
    matrix, length = np.zeros(shape, np.int64), np.full(shape, np.inf)
    took = fabric.alpha + units * fabric.beta
    for link, count in sorted(chosen.items()):
        slot = slot_of[link]
        ends = int(fabric.src[slot]), int(fabric.dst[slot])
        room[ends].append([count, slot])
        matrix[ends] += count
        length[ends] = min(length[ends], took[slot])
    trees = pack_trees(matrix, counts.tolist(), length)
    routes, turn = _routes(problem, trees, room, ticks)
    return TreeRoutes(routes, turn, is_even)


def _routes(
    problem: Problem, trees: list[Tree], room: dict[tuple[int, int], list[list[int]]], ticks: int
) -> tuple[Routes, NDArray[np.float64]]:
    """Routes and turns of `TreeRoutes`. Each chunk takes a tree out of its rank; copies of trees alternate.

    - `room`: {pair of ranks: [number of chunks, link] for each link between them}.
    """
    root, num_hops = _root_of_chunk(problem), problem.topology.num_ranks - 1
    tree, turn = np.zeros(len(root), np.int64), np.zeros(len(root))
    for rank in np.unique(root):
        chunks = np.flatnonzero(root == rank)
        counts = np.array([each.count if each.root == rank else 0 for each in trees])
        copies = np.concatenate([(np.arange(count) + 0.5) / max(1, count) for count in counts])
        of_copy = np.repeat(np.arange(len(trees)), counts)
        tree[chunks] = of_copy[np.lexsort((of_copy, copies))]
        turn[chunks] = np.arange(len(chunks)) / len(chunks)
    number = {ends: i for i, ends in enumerate(room)}
    edges = np.array([[number[edge] for edge in _from_root(each)] for each in trees])
    by_root = np.argsort(root, kind="stable")
    pair = edges[tree[by_root]].ravel()
    used = np.bincount(pair, minlength=len(room))
    slot = np.empty(len(pair), np.int32)
    # Each link between two ranks carries as many chunks in a row as its capacity allows.
    slot[np.argsort(pair, kind="stable")] = np.concatenate([
        np.repeat([link for _, link in links[::-1]], [count for count, _ in links[::-1]])[:most]
        for links, most in zip(room.values(), used, strict=True)
    ])  # fmt: skip
    slots = np.empty((len(root), num_hops), np.int32)
    slots[by_root] = slot.reshape(slots.shape)
    hop_of = num_hops * np.arange(len(root) + 1, dtype=np.int64)
    return Routes(hop_of, slots.ravel(), ticks), turn


def _from_root(tree: Tree) -> list[tuple[int, int]]:
    """The edges of a tree from the root on, those out of the same node adjacent."""
    after: dict[int, list[int]] = defaultdict(list)
    for src, dst in tree.edges:
        after[src].append(dst)
    reached, edges = [tree.root], []
    for src in reached:
        edges += [(src, dst) for dst in after[src]]
        reached += after[src]
    return edges
