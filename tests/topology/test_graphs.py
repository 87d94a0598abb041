"""Topologies from networkx graphs."""

from fractions import Fraction

import networkx as nx
import pytest

from taccl.errors import TopologyError
from taccl.topology.builder import from_networkx


def test_an_undirected_edge_is_a_link_each_way():
    """Edge attributes are read by name; alpha is 0 by default."""
    graph = nx.Graph()
    graph.add_edge("a", "b", bandwidth_gb_per_s=25)
    graph.add_edge("b", "c", beta_us_per_mb=0.1, alpha_us="0.3")
    graph.nodes["c"]["node"] = 1
    topology = from_networkx(graph, name="mine")
    assert [(e.src, e.dst, e.alpha_us, e.beta_us_per_mb) for e in topology.links] == [
        (0, 1, 0, 40), (1, 0, 0, 40), (1, 2, Fraction(3, 10), Fraction(1, 10)),
        (2, 1, Fraction(3, 10), Fraction(1, 10)),
    ]  # fmt: skip
    assert topology.node_of_rank == (0, 0, 1)


def test_numbered_vertices_keep_their_number():
    """Vertices that are numbers become ranks of the same numbers, in whichever order they were added."""
    graph = nx.DiGraph()
    graph.add_edge(1, 0, beta_us_per_mb=1)
    assert [(link.src, link.dst) for link in from_networkx(graph).links] == [(1, 0)]


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({}, "graph: edge 0-1: give either beta_us_per_mb or bandwidth_gb_per_s"),
        ({"beta_us_per_mb": 1, "bandwidth_gb_per_s": 1}, "give either"),
        ({"beta_us_per_mb": 0}, "expected a positive cost"),
        ({"bandwidth_gb_per_s": 0}, "found 0 GB/s"),
        ({"beta_us_per_mb": 1, "alpha_us": -1}, "alpha_us: found -1"),
        ({"beta_us_per_mb": "x"}, "expected a finite number"),
    ],
)
def test_edges_without_a_cost_are_refused(attributes, message):
    """A graph is refused unless every edge has one rate, which is positive."""
    graph = nx.DiGraph()
    graph.add_edge(0, 1, **attributes)
    with pytest.raises(TopologyError, match=message):
        from_networkx(graph)


def test_an_empty_graph_is_refused():
    """A graph without vertices is refused."""
    with pytest.raises(TopologyError, match="found no vertices"):
        from_networkx(nx.DiGraph())


def test_a_vertex_in_no_numbered_node_is_refused():
    """A graph whose node attribute is not a number is refused."""
    graph = nx.DiGraph()
    graph.add_node(0, node="left")
    with pytest.raises(TopologyError, match="graph: node of 0: found 'left'"):
        from_networkx(graph)
