"""Shortest paths, components, orbits and flows, against networkx and cases by hand."""

import sys

import networkx
import numpy as np
import pytest

from taccl._internal import graph_algorithms
from taccl._internal.graph_algorithms import (
    fiedler_vector,
    maximum_flow,
    paths_from_nearest,
    shortest_paths,
    smallest_of_orbits,
    strong_components,
)
from tests.fuzzing import MANY

SEEDS = range(200 if MANY else 20)


def random_graph(seed):
    """(number of nodes, sources, ends, lengths) of random arcs, with parallel arcs, loops and lengths of 0."""
    draw = np.random.default_rng(seed)
    num_nodes, num_arcs = int(draw.integers(2, 12)), int(draw.integers(0, 40))
    ends = draw.integers(0, num_nodes, (2, num_arcs))
    return num_nodes, *ends, draw.integers(0, 5, num_arcs)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("by_scipy", [False, True])
def test_shortest_paths_are_those_of_networkx(seed, by_scipy, monkeypatch):
    """Shortest paths equal networkx's, with arcs of length 0, parallel arcs and several starts.

    Small graphs are solved in rounds over all arcs. If the limit on their size is set to 0, SciPy solves them.
    """
    if by_scipy:
        monkeypatch.setattr(graph_algorithms, "_MOST_IN_ROUNDS", 0)
    num_nodes, src, dst, length = random_graph(seed)
    graph = networkx.MultiDiGraph()
    graph.add_nodes_from(range(num_nodes))
    graph.add_weighted_edges_from(zip(src.tolist(), dst.tolist(), length.tolist(), strict=True))
    found = shortest_paths(num_nodes, src, dst, length, np.arange(num_nodes))
    for start in range(num_nodes):
        known = networkx.single_source_dijkstra_path_length(graph, start)
        assert found[start].tolist() == [known.get(node, np.inf) for node in range(num_nodes)]
    nearest = paths_from_nearest(num_nodes, src, dst, length, [0, 1])
    assert np.array_equal(nearest, found[:2].min(axis=0))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("by_scipy", [False, True])
def test_nodes_of_a_component_reach_each_other(seed, by_scipy, monkeypatch):
    """Two nodes share a component number exactly if each reaches the other, by SciPy and without it."""
    if by_scipy:
        monkeypatch.setattr(graph_algorithms, "_most_rounds", lambda _: 0)
    num_nodes, src, dst, _ = random_graph(seed)
    number = strong_components(num_nodes, src, dst)
    reached = np.isfinite(shortest_paths(num_nodes, src, dst, 1, np.arange(num_nodes)))
    assert np.array_equal(number[:, None] == number, reached & reached.T)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("by_scipy", [False, True])
def test_a_maximum_flow_fills_its_cut(seed, by_scipy, monkeypatch):
    """The capacity of the minimum cut equals the maximum flow, by SciPy and without it."""
    if by_scipy:
        monkeypatch.setattr(graph_algorithms, "_MOST_FLOW_ARCS", -1)
    else:
        monkeypatch.delitem(sys.modules, "scipy.sparse.csgraph", raising=False)
    num_nodes, src, dst, width = random_graph(seed)
    apart = src != dst
    src, dst, width = src[apart], dst[apart], width[apart]
    value, reached = maximum_flow(num_nodes, src, dst, width, 0, num_nodes - 1)
    leaves = np.isin(src, reached) & ~np.isin(dst, reached)
    assert width[leaves].sum() == value
    assert num_nodes - 1 not in reached


def test_maximum_flows_by_scipy_and_without_it_agree():
    """SciPy and Dinic's algorithm find the same value, and the same nodes behind the minimum cut."""
    for seed in SEEDS:
        num_nodes, src, dst, width = random_graph(seed)
        apart = src != dst
        graph = num_nodes, src[apart], dst[apart], width[apart], 0, num_nodes - 1
        value, reached = graph_algorithms._maximum_flow(*graph)
        other, also = maximum_flow(*graph, num_flows=10**9)
        assert (value, reached.tolist()) == (other, also.tolist())


def test_small_graphs_need_no_scipy(monkeypatch):
    """Shortest paths along a line of 20 nodes, its components, and a flow along it, do not load SciPy."""
    for name in [each for each in sys.modules if each.partition(".")[0] == "scipy"]:
        monkeypatch.delitem(sys.modules, name)
    src, dst = np.arange(19), np.arange(1, 20)
    assert shortest_paths(20, src, dst, 1, [0])[0].tolist() == [*range(20)]
    assert maximum_flow(20, src, dst, np.arange(2, 21), 0, 19)[0] == 2
    assert strong_components(20, src, dst).tolist() == [*range(20)]
    assert "scipy" not in sys.modules


def test_a_path_has_a_vector_that_falls_along_it():
    """The second Laplacian eigenvector of the path 0-1-2-3 is monotone along it.

    The full matrix and ARPACK give the same vector up to sign.
    """
    src, dst, weight = np.arange(3), np.arange(1, 4), np.ones(3)
    here = fiedler_vector(4, src, dst, weight)
    steps = np.diff(here)
    assert (steps > 0).all() or (steps < 0).all()
    there = graph_algorithms._by_arpack(4, src, dst, weight, np.cos(np.arange(4)))
    assert np.allclose(np.abs(here @ there), 1)


def test_long_cycles_are_one_orbit():
    """The orbit of a cycle through all indices in a random order has the smallest index 0."""
    order = np.random.default_rng(0).permutation(1000)
    cycle = np.empty(1000, dtype=np.int64)
    cycle[order] = np.roll(order, 1)
    assert not smallest_of_orbits([cycle], 1000).any()


def test_orbits_join_over_several_permutations():
    """Swaps (0 1) and (1 2) make one orbit of three; 3 and 4 stay alone."""
    assert smallest_of_orbits([[1, 0, 2, 3, 4], [0, 2, 1, 3, 4]], 5).tolist() == [0, 0, 0, 3, 4]


def test_orbits_are_the_components_of_networkx():
    """Orbits of random permutations, and of maps that are not permutations, are networkx's components."""
    for seed in SEEDS:
        draw = np.random.default_rng(seed)
        size, count = int(draw.integers(0, 40)), int(draw.integers(0, 4))
        images = [draw.permutation(size) for _ in range(count)]
        images += [np.where(draw.random(size) < 0.1, draw.integers(0, max(1, size), size), np.arange(size))]
        graph = networkx.Graph(list(zip(list(range(size)) * len(images), np.concatenate(images).tolist())))
        graph.add_nodes_from(range(size))
        known = {index: min(orbit) for orbit in networkx.connected_components(graph) for index in orbit}
        assert smallest_of_orbits(images, size).tolist() == [known[index] for index in range(size)]


def test_parallel_paths_add_up():
    """Paths from 0 to 3 over 1 and over 2, with bottlenecks of 1 and 3, carry a flow of 4."""
    src, dst, width = np.array([0, 1, 0, 2]), np.array([1, 3, 2, 3]), np.array([2, 1, 3, 3])
    value, reached = maximum_flow(4, src, dst, width, 0, 3)
    assert (value, reached.tolist()) == (4, [0, 1])
