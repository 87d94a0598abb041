"""Shortest paths, components, flows and spectra of directed graphs, given as arrays of arcs.

Small graphs are searched by a few array operations, large ones by SciPy, whose import takes 0.25 s of CPU.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

#: Additions for which shortest paths are relaxed here, in all rounds together (about 20 ms).
_MOST_ADDITIONS = 2_000_000
#: Nodes up to which flows are augmented here.
_MOST_NODES = 40
#: Nodes up to which eigenvectors are found from a full matrix (20 ms).
_MOST_OF_MATRIX = 200
#: Length added to each arc for SciPy, which drops arcs of length 0; far below 1 / number of nodes.
_STEP = 2.0**-20


def shortest_paths(num_nodes: int, src: Ints, dst: Ints, length: ArrayLike, starts: ArrayLike) -> Floats:
    """(num_starts, num_nodes) lengths of shortest paths from each start; inf where there is none.

    - `length`, (num_arcs,) or one for all: Whole numbers of at least 0.
    """
    begins = np.atleast_1d(np.asarray(starts, dtype=np.int64))
    found = np.full((len(begins), num_nodes), np.inf)
    found[np.arange(len(begins)), begins] = 0.0
    return _relaxed(found, src, dst, length, begins)


def paths_from_nearest(
    num_nodes: int, src: Ints, dst: Ints, length: ArrayLike, starts: Collection[int]
) -> Floats:
    """(num_nodes,) lengths of shortest paths from the nearest start, as `shortest_paths` has them."""
    begins = np.array([*starts], dtype=np.int64)
    found = np.full((1, num_nodes), np.inf)
    found[0, begins] = 0
    nearest: Floats = _relaxed(found, src, dst, length, begins)[0]
    return nearest


def _relaxed(found: Floats, src: Ints, dst: Ints, length: ArrayLike, starts: Ints) -> Floats:
    """Lengths of shortest paths, from those of no arcs: a row of them for each start, or one for all."""
    if not len(src):
        return found
    order = np.argsort(dst, kind="stable")
    tail, head = src[order], dst[order]
    took = np.broadcast_to(np.asarray(length, dtype=np.float64), len(src))[order]
    first = np.flatnonzero(np.concatenate(([True], head[1:] != head[:-1])))
    entered = head[first]
    for _ in range(_MOST_ADDITIONS // (len(src) * max(1, len(found)))):
        better = np.minimum(found[:, entered], np.minimum.reduceat(found[:, tail] + took, first, axis=1))
        if np.array_equal(better, found[:, entered]):
            return found
        found[:, entered] = better
    return _by_dijkstra(found.shape, tail, head, took, starts)


def _by_dijkstra(shape: tuple[int, int], src: Ints, dst: Ints, length: Floats, starts: Ints) -> Floats:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    num_rows, num_nodes = shape
    order = np.lexsort((length, dst, src))  # the shortest of parallel arcs first
    code = src[order] * num_nodes + dst[order]
    chosen = order[np.concatenate(([True], code[1:] != code[:-1]))]
    graph = csr_array((length[chosen] + _STEP, (src[chosen], dst[chosen])), shape=(num_nodes, num_nodes))
    found: Floats = np.floor(dijkstra(graph, indices=starts, min_only=num_rows < len(starts)))
    return found.reshape(shape)


def strong_components(num_nodes: int, src: Ints, dst: Ints) -> Ints:
    """(num_nodes,) number of each node's strongly connected component."""
    if len(src) * num_nodes <= _MOST_ADDITIONS // 4:
        reached = np.isfinite(shortest_paths(num_nodes, src, dst, 0, np.arange(num_nodes)))
        return np.unique((reached & reached.T).argmax(axis=1), return_inverse=True)[1]
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    graph = csr_array((np.ones(len(src), np.int8), (src, dst)), shape=(num_nodes, num_nodes))
    found: Ints = connected_components(graph, connection="strong")[1].astype(np.int64)
    return found


def smallest_of_orbits(permutations: Sequence[ArrayLike], size: int) -> Ints:
    """For every index, the smallest index in its orbit under the group that permutations generate."""
    found = np.arange(size)
    images = [np.asarray(each, dtype=np.int64) for each in permutations]
    while True:
        least = found.copy()
        for image in images:
            here, there = least.copy(), least[image]
            low = np.minimum(here, there)
            np.minimum.at(least, here, low)  # roots learn first, so that the rounds are few
            np.minimum.at(least, there, low)
        least = least[least]
        if np.array_equal(least, found):
            return found
        found = least


def fiedler_vector(num_nodes: int, src: Ints, dst: Ints, weight: Floats) -> Floats | None:
    """(num_nodes,) eigenvector of the Laplacian for its second least eigenvalue; None if it is not found.

    Among several, the one nearest to a fixed vector. Arcs count both ways.
    """
    fixed = np.cos(np.arange(num_nodes))
    if num_nodes > _MOST_OF_MATRIX:
        return _by_arpack(num_nodes, src, dst, weight, fixed)
    joined = np.zeros((num_nodes, num_nodes))
    np.add.at(joined, (src, dst), weight)
    joined += joined.T
    values, vectors = np.linalg.eigh(np.diag(joined.sum(axis=1)) - joined)
    span = vectors[:, np.isclose(values, values[1], rtol=1e-9, atol=1e-9 * values[-1])]
    found = span @ (fixed @ span)
    length = float(np.linalg.norm(found))
    return found / length if length > 0 else None


def _by_arpack(num_nodes: int, src: Ints, dst: Ints, weight: Floats, fixed: Floats) -> Floats | None:
    from scipy.sparse import coo_array, diags_array
    from scipy.sparse.linalg import ArpackError, eigsh

    joined = coo_array((weight, (src, dst)), shape=(num_nodes, num_nodes)).tocsr()
    joined = joined + joined.T
    degree = joined.sum(axis=1)
    laplacian = (diags_array(degree) - joined).tocsc()
    try:
        values, vectors = eigsh(laplacian, k=2, sigma=-1e-3 * float(degree.mean()), v0=fixed)
    except (ArpackError, RuntimeError):
        return None
    found: Floats = vectors[:, int(np.argmax(values))]
    return found


def maximum_flow(
    num_nodes: int, src: Ints, dst: Ints, width: Ints, source: int, sink: int
) -> tuple[int, Ints]:
    """Value of a maximum flow, and the nodes that its residual graph reaches from the source.

    - `width`, (num_arcs,): Capacities, below 2**31 in total; those of parallel arcs are added.
    """
    if num_nodes > _MOST_NODES:
        return _by_scipy(num_nodes, src, dst, width, source, sink)
    room = np.zeros((num_nodes, num_nodes), dtype=np.int64)
    np.add.at(room, (src, dst), width)
    value = 0
    while True:
        before = np.full(num_nodes, -1)
        before[source] = source
        front = np.array([source])
        while len(front) and before[sink] < 0:
            open_arcs = (room[front] > 0) & (before < 0)
            reached = np.flatnonzero(open_arcs.any(axis=0))
            before[reached] = front[open_arcs[:, reached].argmax(axis=0)]
            front = reached
        if before[sink] < 0:
            return value, np.flatnonzero(before >= 0)
        path = [sink]
        while path[-1] != source:
            path.append(int(before[path[-1]]))
        heads, tails = np.array(path[:-1]), np.array(path[1:])
        more = int(room[tails, heads].min())
        room[tails, heads] -= more
        room[heads, tails] += more
        value += more


def _by_scipy(num_nodes: int, src: Ints, dst: Ints, width: Ints, source: int, sink: int) -> tuple[int, Ints]:
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    shape = (num_nodes, num_nodes)
    graph = coo_array((width.astype(np.int32), (src, dst)), shape=shape).tocsr()
    flow = maximum_flow(graph, source, sink)
    has_room = (graph - flow.flow > 0).astype(np.int8)
    behind = breadth_first_order(has_room, source, return_predecessors=False)
    return int(flow.flow_value), behind.astype(np.int64)
