"""Graph families with unit links, and the linear programs by which two peers time collectives on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import networkx
import numpy as np
from scipy.optimize import linprog
from scipy.sparse import block_diag, csr_matrix, hstack

if TYPE_CHECKING:
    from collections.abc import Sequence


def circulant(num_ranks: int, steps: Sequence[int]) -> networkx.DiGraph:
    """Graph with edges from u to u + s and u - s for each step s."""
    return networkx.circulant_graph(num_ranks, steps).to_directed()


def generalized_kautz(degree: int, num_ranks: int) -> networkx.DiGraph:
    """Graph with edges from u to (-degree * u - a) mod num_ranks for a in 1..degree, without loops."""
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(num_ranks))
    ends = ((u, (-degree * u - a) % num_ranks) for u in range(num_ranks) for a in range(1, degree + 1))
    graph.add_edges_from((u, v) for u, v in ends if u != v)
    return graph


def twisted_cube() -> networkx.DiGraph:
    """Cube of eight ranks, two parallel edges of which are crossed."""
    graph = networkx.hypercube_graph(3)
    graph.remove_edges_from([((0, 0, 0), (1, 0, 0)), ((0, 0, 1), (1, 0, 1))])
    graph.add_edges_from([((0, 0, 0), (1, 0, 1)), ((0, 0, 1), (1, 0, 0))])
    return _numbered(graph)


def grid(*dims: int) -> networkx.DiGraph:
    """Torus; a dimension of two ranks has one edge."""
    return _numbered(networkx.grid_graph(dims, periodic=[size > 2 for size in dims]))


def _numbered(graph: networkx.Graph) -> networkx.DiGraph:
    return networkx.convert_node_labels_to_integers(graph, ordering="sorted").to_directed()


GRAPHS = {
    "circulant 13 {2,3}": circulant(13, (2, 3)),
    "circulant 25 {3,4}": circulant(25, (3, 4)),
    "circulant 41 {4,5}": circulant(41, (4, 5)),
    "Petersen": _numbered(networkx.petersen_graph()),
    "Heawood": _numbered(networkx.heawood_graph()),
    "torus 3x5": grid(3, 5),
    "Q4": grid(2, 2, 2, 2),
    "GenKautz(4,16)": generalized_kautz(4, 16),
    "GenKautz(2,12)": generalized_kautz(2, 12),
    "GenKautz(4,32)": generalized_kautz(4, 32),
    "K4,4": _numbered(networkx.complete_bipartite_graph(4, 4)),
    "Q3": grid(2, 2, 2),
    "twisted Q3": twisted_cube(),
    "torus 3x3": grid(3, 3),
    "torus 3x3x3": grid(3, 3, 3),
}


def bfb(graph: networkx.DiGraph) -> tuple[int, float]:
    """Steps and rounds of a breadth-first-broadcast allgather (Zhao et al., arXiv 2202.03356).

    In step t each rank receives the chunks of ranks at distance t, in shares over its links from ranks at
    distance t - 1. A linear program per rank and step minimizes the load of its most loaded link. A round
    is the time in which a link carries one rank's data.
    """
    distance = dict(networkx.all_pairs_shortest_path_length(graph))
    steps = networkx.diameter(graph)
    rounds = np.zeros((steps + 1, len(graph)))
    for rank in graph:
        into = list(graph.predecessors(rank))
        for step in range(1, steps + 1):
            origins = [origin for origin in graph if distance[origin][rank] == step]
            uses = [
                (row, column)
                for row, origin in enumerate(origins)
                for column, before in enumerate(into)
                if distance[origin][before] == step - 1
            ]
            if not uses:
                continue
            rows, columns = zip(*uses, strict=True)
            ones, each = np.ones(len(uses)), range(len(uses))
            whole = csr_matrix((ones, (rows, each)), (len(origins), len(uses) + 1))
            loads = hstack(
                [csr_matrix((ones, (columns, each)), (len(into), len(uses))), -np.ones((len(into), 1))]
            )
            found = linprog(
                np.r_[np.zeros(len(uses)), 1], loads, np.zeros(len(into)), whole, np.ones(len(origins))
            )
            rounds[step, rank] = found.fun
    return steps, float(rounds.max(axis=1).sum())


def multicommodity(graph: networkx.DiGraph) -> float:
    """Rounds of an alltoall by the max concurrent multicommodity flow (Basu et al., arXiv 2309.13541).

    One commodity for each origin. A round is the time in which a link carries one pair's data.
    """
    edges, num_ranks = list(graph.edges), len(graph)
    incidence = np.zeros((num_ranks, len(edges)))
    for column, (src, dst) in enumerate(edges):
        incidence[src, column], incidence[dst, column] = -1, 1
    balance = block_diag([csr_matrix(np.delete(incidence, origin, axis=0)) for origin in range(num_ranks)])
    balance = hstack([balance, csr_matrix((balance.shape[0], 1))])
    loads = hstack([*[csr_matrix(np.eye(len(edges)))] * num_ranks, -np.ones((len(edges), 1))])
    objective = np.r_[np.zeros(num_ranks * len(edges)), 1]
    equal = np.ones(balance.shape[0])
    found = linprog(objective, loads, np.zeros(len(edges)), balance, equal, method="highs-ipm")
    return float(found.fun)
