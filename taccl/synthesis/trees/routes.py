"""Routes of chunks along spanning trees that fill a machine, and the turn of each chunk."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.synthesis.proposers.router import Routes
from taccl.synthesis.trees.network import least_time, network_of
from taccl.synthesis.trees.packing import Tree, pack_trees
from taccl.synthesis.trees.splitting import split_switches

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.problem.problem import Problem
    from taccl.synthesis.kernels.fabric import Fabric

    Ints = NDArray[np.int64]


class TreeRoutes(NamedTuple):
    """Routes along trees, and the share of a rank's chunks that go before each chunk, (num_chunks,) float."""

    routes: Routes
    turn: NDArray[np.float64]


def tree_counts(problem: Problem) -> Ints | None:
    """(num_ranks,) number of trees out of each rank; None if some chunk does not go from one rank to all.

    Chunks must be alike in size.
    """
    collective, num_ranks = problem.collective, problem.topology.num_ranks
    if collective.combining or collective.derivations or len(set(problem.costs.chunk_units.tolist())) != 1:
        return None
    origins = [chunk.origins for chunk in collective.chunks]
    is_spread = all(
        len({*chunk.destinations, *chunk.origins}) == num_ranks and len(chunk.origins) == 1
        for chunk in collective.chunks
    )
    return np.bincount([ranks[0] for ranks in origins], minlength=num_ranks) if is_spread else None


def tree_routes(problem: Problem, fabric: Fabric) -> TreeRoutes | None:
    """Routes by which chunks that spread from one rank each to all fill the machine.

    None if no trees are found: see `tree_counts`, `network_of` and `split_switches`.
    """
    counts, network = tree_counts(problem), network_of(problem)
    if counts is None or network is None:
        return None
    units = int(problem.costs.chunk_units[0])
    ticks, capacity = least_time(network, counts, units)
    chosen = split_switches(network, capacity, counts)
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
    return _routes(problem, trees, room, ticks)


def _routes(
    problem: Problem, trees: list[Tree], room: dict[tuple[int, int], list[list[int]]], ticks: int
) -> TreeRoutes:
    """Each chunk along a tree out of its rank, copies of one tree evenly among those of others."""
    chunks_of: dict[int, list[int]] = defaultdict(list)
    for c, chunk in enumerate(problem.collective.chunks):
        chunks_of[chunk.origins[0]].append(c)
    slots: list[list[int]] = [[] for _ in problem.collective.chunks]
    turn = np.zeros(len(slots))
    for root, chunks in chunks_of.items():
        own = [(_from_root(tree), tree.count) for tree in trees if tree.root == root]
        order = sorted(((i + 0.5) / count, k) for k, (_, count) in enumerate(own) for i in range(count))
        for place, (c, (_, k)) in enumerate(zip(chunks, order, strict=True)):
            turn[c] = place / len(chunks)
            slots[c] = [_take(room[edge]) for edge in own[k][0]]
    hop_of = np.concatenate(([0], np.cumsum([len(each) for each in slots]))).astype(np.int64)
    return TreeRoutes(Routes(hop_of, np.fromiter(chain.from_iterable(slots), np.int32), ticks), turn)


def _from_root(tree: Tree) -> list[tuple[int, int]]:
    """The edges of a tree from the root on, those out of one rank next to one another."""
    after: dict[int, list[int]] = defaultdict(list)
    for src, dst in tree.edges:
        after[src].append(dst)
    reached, edges = [tree.root], []
    for src in reached:
        edges += [(src, dst) for dst in after[src]]
        reached += after[src]
    return edges


def _take(room: list[list[int]]) -> int:
    """A link of those between two ranks that has capacity left, which is used up by one."""
    while not room[-1][0]:
        room.pop()
    room[-1][0] -= 1
    return room[-1][1]
