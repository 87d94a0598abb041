"""Shortest paths, components, flows and spectra of directed graphs, given as arrays of arcs.

`graph_of` makes a graph for networkx. SciPy computes the rest, except on small graphs: loading its graph
algorithms takes 0.4 s of CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Hashable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taccl._internal.address_space import require_address_space

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

#: Maximum number of nodes for which eigenvectors come from a dense matrix (20 ms); above it, from ARPACK.
_MOST_OF_MATRIX = 200
#: `_DENSE_SHARE`: min ratio of starts * arcs to nodes**3 for which Floyd-Warshall is faster than others.
#: `_MOST_DENSE`: max number of nodes for Floyd-Warshall (about 0.1 s; 0.01 s for 256 nodes).
_DENSE_SHARE, _MOST_DENSE = 0.01, 512
#: Length added to each arc, as SciPy drops arcs of length 0.
#: The added length is far below 1 / number of nodes, so that rounding path lengths down removes it.
_STEP = 2.0**-20
#: Limits of algorithms in rounds, which replace SciPy on small graphs (up to about 0.1 s).
#: A round of Bellman-Ford relaxes each arc once per start; one of the search for components relaxes it once.
#: `_MOST_IN_ROUNDS`: max product of the numbers of starts and arcs; above it, SciPy is used at once.
#: `_FEW_ROUNDS`: number of rounds that are run in any case before SciPy is used.
#: `_ROUNDS_WORK`: max relaxations in further rounds; the second number applies until SciPy is loaded.
_MOST_IN_ROUNDS, _FEW_ROUNDS, _ROUNDS_WORK = 4_000_000, 6, (400_000, 5_000_000)
#: Max arcs, summed over all maximum flows to compute, for which SciPy is not loaded (up to about 0.1 s).
_MOST_FLOW_ARCS = 4_000


def graph_of(pairs: Iterable[tuple[Hashable, Hashable]], nodes: Iterable[Hashable] = ()) -> Any:
    """Undirected `networkx.Graph` of pairs of nodes, and of further nodes.

    Edges are added to an empty graph: ``networkx.Graph(edges)`` loads pandas and PyArrow, in 0.6 s of CPU
    and 200 MB of address space.
    """
    import networkx

    graph = networkx.Graph()
    graph.add_edges_from(pairs)
    graph.add_nodes_from(nodes)
    return graph


def shortest_paths(num_nodes: int, src: Ints, dst: Ints, length: ArrayLike, starts: ArrayLike) -> Floats:
    """(num_starts, num_nodes) lengths of shortest paths from each start; inf where there is none.

    - `length`: Nonnegative whole numbers, (num_arcs,) or one for all arcs.
    """
    starts = np.atleast_1d(starts)
    is_small = num_nodes <= _MOST_DENSE
    if is_small and len(starts) * len(src) > _DENSE_SHARE * num_nodes**3:
        return _dense_shortest_paths(num_nodes, src, dst, length, starts)
    if len(starts) * len(src) <= _MOST_IN_ROUNDS:
        found = np.full((len(starts), num_nodes), np.inf)
        found[np.arange(len(starts)), starts] = 0
        if _settle(found, src, dst, length):
            return found
    if is_small and "scipy.sparse.csgraph" not in sys.modules:
        return _dense_shortest_paths(num_nodes, src, dst, length, starts)
    require_address_space()
    from scipy.sparse.csgraph import dijkstra

    return _without_steps(dijkstra(_shortest_arcs(num_nodes, src, dst, length), indices=starts))


def _dense_shortest_paths(num_nodes: int, src: Ints, dst: Ints, length: ArrayLike, starts: Ints) -> Floats:
    """`shortest_paths` by the algorithm of Floyd and Warshall, in a square matrix of all nodes."""
    found = np.full((num_nodes, num_nodes), np.inf)
    np.minimum.at(found, (src, dst), np.broadcast_to(np.asarray(length, np.float64), len(src)))
    np.fill_diagonal(found, 0)
    for node in range(num_nodes):
        np.minimum(found, found[:, node, None] + found[node], out=found)
    rows: Floats = found[starts]
    return rows


def _settle(found: Floats, src: Ints, dst: Ints, length: ArrayLike) -> bool:
    """Shorten path lengths along arcs until none gets shorter; False if that takes too many rounds.

    Each round relaxes all arcs at once (Bellman-Ford). A few rounds are faster than loading SciPy.

    - `found`, (num_starts, num_nodes): Changed in place; its values are final if true is returned.
    """
    if not len(src):
        return True
    length = np.broadcast_to(length, len(src))
    if (dst[1:] < dst[:-1]).any():
        order = np.argsort(dst, kind="stable")
        src, dst, length = src[order], dst[order], length[order]
    first = np.flatnonzero(np.diff(dst, prepend=-1))
    heads = dst[first]
    for _ in range(_most_rounds(len(found) * len(src))):
        reached = np.minimum.reduceat(found[:, src] + length, first, axis=1)
        if (reached >= found[:, heads]).all():
            return True
        found[:, heads] = np.minimum(found[:, heads], reached)
    return False


def _most_rounds(num_relaxed: int) -> int:
    """Max rounds of `num_relaxed` relaxations each, before SciPy is used."""
    return max(_FEW_ROUNDS, _ROUNDS_WORK["scipy.sparse.csgraph" not in sys.modules] // num_relaxed)


def paths_from_nearest(
    num_nodes: int, src: Ints, dst: Ints, length: ArrayLike, starts: Collection[int]
) -> Floats:
    """(num_nodes,) length of the shortest path to each node from its nearest start; inf if there is none."""
    if len(src) <= _MOST_IN_ROUNDS:
        found = np.full((1, num_nodes), np.inf)
        found[0, [*starts]] = 0
        if _settle(found, src, dst, length):
            nearest: Floats = found[0]
            return nearest
    require_address_space()
    from scipy.sparse.csgraph import dijkstra

    graph = _shortest_arcs(num_nodes, src, dst, length)
    return _without_steps(dijkstra(graph, indices=[*starts], min_only=True))


def whole_paths_from_nearest(
    src: Sequence[int], dst: Sequence[int], length: Sequence[int], starts: Collection[int]
) -> dict[int, int]:
    """{reachable node: length of the shortest path from its nearest start}, for lengths of any size."""
    found, is_shorter = dict.fromkeys(starts, 0), True
    while is_shorter:
        is_shorter = False
        for start, end, more in zip(src, dst, length, strict=True):
            if start in found and (end not in found or found[start] + more < found[end]):
                found[end], is_shorter = found[start] + more, True
    return found


def not_rounded_up(lengths: Floats) -> Floats:
    """Lengths of paths, with those of 2**53 and more reduced by more than the errors of their sums.

    The last axis has an entry for each node. A path has fewer arcs than there are nodes. Each arc adds two
    relative errors of at most 2**-53: of its own length, and of the sum.
    """
    is_large = (lengths >= 2**53) & (lengths < np.inf)
    if not is_large.any():
        return lengths
    share = (2 * lengths.shape[-1] + 4) * 2.0**-53
    return np.where(is_large, np.floor(lengths * (1 - share)), lengths)


def _shortest_arcs(num_nodes: int, src: Ints, dst: Ints, length: ArrayLike) -> Any:
    """Sparse matrix of arc lengths, with the shortest one of parallel arcs."""
    from scipy.sparse import csr_array

    took = np.broadcast_to(np.asarray(length, dtype=np.float64), len(src))
    order = np.lexsort((took, dst, src))
    code = src[order] * num_nodes + dst[order]
    chosen = order[np.concatenate(([True], code[1:] != code[:-1]))] if len(order) else order
    return csr_array((took[chosen] + _STEP, (src[chosen], dst[chosen])), shape=(num_nodes, num_nodes))


def _without_steps(found: Floats) -> Floats:
    whole: Floats = np.floor(found)
    return whole


def strong_components(num_nodes: int, src: Ints, dst: Ints) -> Ints:
    """(num_nodes,) index of each node's strongly connected component."""
    known = _strong_components(num_nodes, src, dst)
    if known is not None:
        return known
    require_address_space()
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    graph = csr_array((np.ones(len(src), np.int8), (src, dst)), shape=(num_nodes, num_nodes))
    found: Ints = connected_components(graph, connection="strong")[1].astype(np.int64)
    return found


def _strong_components(num_nodes: int, src: Ints, dst: Ints) -> Ints | None:
    """`strong_components` without SciPy; None if that takes too many rounds.

    Each node gets the smallest node from which it is reached. Nodes that also reach this node are in its
    component; the search goes on without them.
    """
    every, rounds = np.arange(num_nodes), _most_rounds(max(1, len(src)))
    root_of, is_left = np.full(num_nodes, -1), np.ones(num_nodes, bool)

    def spread(value: Ints, tail: Ints, head: Ints) -> Ints:
        nonlocal rounds
        is_changed = True
        while is_changed and rounds > 0:
            before, rounds = value.copy(), rounds - 1
            np.minimum.at(value, head, value[tail])
            is_changed = bool((value != before).any())
        return value

    while is_left.any():
        inside = is_left[src] & is_left[dst]
        tail, head = src[inside], dst[inside]
        root = spread(every.copy(), tail, head)
        same = root[tail] == root[head]
        returns = spread((root != every).astype(np.int64), head[same], tail[same]) == 0
        if rounds <= 0:
            return None
        root_of[returns & is_left] = root[returns & is_left]
        is_left &= ~returns
    return np.unique(root_of, return_inverse=True)[1].astype(np.int64)


def smallest_of_orbits(permutations: Sequence[ArrayLike], size: int) -> Ints:
    """(size,) smallest index in the orbit of each index under the group that the permutations generate.

    Each round joins the orbits of an index and its image, and then follows labels to their ends. SciPy's
    components would be as fast, but loading them takes 0.3 s.
    """
    orbit = np.arange(size)
    images = [np.asarray(each, dtype=np.int64) for each in permutations]
    is_changed = True
    while is_changed:
        known = orbit
        for each in images:
            image = orbit[each]
            low, joined = np.minimum(orbit, image), orbit.copy()
            np.minimum.at(joined, orbit, low)
            np.minimum.at(joined, image, low)
            while ((further := joined[joined]) != joined).any():
                joined = further
            orbit = joined
        is_changed = bool((orbit != known).any())
    return orbit


def fiedler_vector(num_nodes: int, src: Ints, dst: Ints, weight: Floats) -> Floats | None:
    """(num_nodes,) eigenvector of the graph Laplacian for the second-smallest eigenvalue; None if not found.

    If the eigenvalue is multiple, a fixed vector is projected onto its eigenvectors. Arcs count as
    undirected.
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
    require_address_space()
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
    num_nodes: int,
    src: Ints,
    dst: Ints,
    width: Ints,
    source: int,
    sink: int,
    *,
    num_flows: int = 1,
    enough: float = np.inf,
) -> tuple[int, Ints]:
    """Value of a maximum flow, and the nodes reachable from the source in its residual graph, ascending.

    These nodes are the same for all maximum flows.

    - `width`, (num_arcs,): Capacities, below 2**31 in total; those of parallel arcs are added.
    - `num_flows`: Number of flows that the caller will compute in such graphs; for few, SciPy is not loaded.
    - `enough`: Flow value from which on the caller does not need the nodes; they may then be left out.
    """
    if num_flows * len(src) <= _MOST_FLOW_ARCS and "scipy.sparse.csgraph" not in sys.modules:
        return _maximum_flow(num_nodes, src, dst, width, source, sink)
    require_address_space()
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    shape = (num_nodes, num_nodes)
    graph = coo_array((width.astype(np.int32), (src, dst)), shape=shape).tocsr()
    flow = maximum_flow(graph, source, sink)
    if flow.flow_value >= enough:
        return int(flow.flow_value), np.empty(0, dtype=np.int64)
    has_room = (graph - flow.flow > 0).astype(np.int8)
    behind = breadth_first_order(has_room, source, return_predecessors=False)
    return int(flow.flow_value), np.sort(behind.astype(np.int64))


def _maximum_flow(
    num_nodes: int, src: Ints, dst: Ints, width: Ints, source: int, sink: int
) -> tuple[int, Ints]:
    """`maximum_flow` without SciPy, by the algorithm of Dinic (1970)."""
    room: list[dict[int, int]] = [{} for _ in range(num_nodes)]  # residual capacities
    for tail, head, capacity in zip(src.tolist(), dst.tolist(), width.tolist(), strict=True):
        room[tail][head] = room[tail].get(head, 0) + capacity
        room[head].setdefault(tail, 0)
    value = 0
    while True:
        level = {source: 0}
        order = [source]
        for at in order:
            new = [head for head, capacity in room[at].items() if capacity and head not in level]
            level.update(dict.fromkeys(new, level[at] + 1))
            order += new
        if sink not in level:
            return value, np.array(sorted(order), dtype=np.int64)
        ahead = [
            [head for head in heads if level.get(head) == level.get(at, -2) + 1]
            for at, heads in enumerate(room)
        ]
        path = [source]
        while path:
            at = path[-1]
            if at == sink:
                arcs = list(pairwise(path))
                pushed = min(room[tail][head] for tail, head in arcs)
                for tail, head in arcs:
                    room[tail][head] -= pushed
                    room[head][tail] += pushed
                value += pushed
                path = path[: 1 + next(i for i, (tail, head) in enumerate(arcs) if not room[tail][head])]
                continue
            while ahead[at] and not room[at][ahead[at][-1]]:
                ahead[at].pop()
            if ahead[at]:
                path.append(ahead[at][-1])
                continue
            path.pop()
            if path:
                ahead[path[-1]].pop()
