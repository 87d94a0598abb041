"""Topologies from networkx graphs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taccl._internal.arguments import checked_as
from taccl.errors import TopologyError
from taccl.topology.builder import TopologyBuilder
from taccl.topology.parts import beta_of_bandwidth, check_count, exact_cost
from taccl.topology.topology import AlphaMeaning, Topology

if TYPE_CHECKING:
    from collections.abc import Mapping
    from fractions import Fraction

    from networkx import Graph


@checked_as(TopologyError)
def from_networkx(graph: Graph, *, name: str = "", alpha_meaning: AlphaMeaning = "occupies") -> Topology:
    """The topology that a networkx graph draws.

    Parameters
    ----------
    graph : networkx graph of any kind
        An edge needs ``beta_us_per_mb`` or ``bandwidth_gb_per_s``, and may have ``alpha_us`` (default 0)
        and ``name``. An undirected edge is a link each way. A vertex may have ``node`` (default 0), the
        number of the node it lives in. Vertices named 0..R-1 keep their number as ranks; others are
        numbered in the graph's order.
    name : str
        Name of the topology; by default that of the graph.
    alpha_meaning : {"occupies", "pipelined"}
        Whether a link stays busy during its alpha.
    """
    vertices = list(graph.nodes)
    name = name or str(graph.graph.get("name", "")) or "graph"
    if not vertices:
        raise TopologyError("found no vertices; expected at least one", where=name)
    if set(vertices) == set(range(len(vertices))):
        vertices = list(range(len(vertices)))
    rank_of = {vertex: rank for rank, vertex in enumerate(vertices)}
    nodes = [
        check_count(graph.nodes[vertex].get("node", 0), where=f"{name}: node of {vertex}", least=0)
        for vertex in vertices
    ]
    builder = TopologyBuilder(name, nodes, alpha_meaning=alpha_meaning)
    for u, v, attributes in graph.edges(data=True):
        where = f"{name}: edge {u}-{v}"
        alpha = exact_cost(attributes.get("alpha_us", 0), where=f"{where}: alpha_us")
        beta, own = _beta_of_edge(attributes, where), str(attributes.get("name", ""))
        for src, dst in ((u, v),) if graph.is_directed() else ((u, v), (v, u)):
            builder.add_link(rank_of[src], rank_of[dst], alpha_us=alpha, beta_us_per_mb=beta, name=own)
    return builder.build()


def _beta_of_edge(attributes: Mapping[str, Any], where: str) -> Fraction:
    if ("beta_us_per_mb" in attributes) == ("bandwidth_gb_per_s" in attributes):
        raise TopologyError("give either beta_us_per_mb or bandwidth_gb_per_s", where=where)
    if "beta_us_per_mb" in attributes:
        beta = exact_cost(attributes["beta_us_per_mb"], where=f"{where}: beta_us_per_mb")
        if beta == 0:
            raise TopologyError("found 0; expected a positive cost", where=f"{where}: beta_us_per_mb")
        return beta
    return beta_of_bandwidth(attributes["bandwidth_gb_per_s"], where=f"{where}: bandwidth_gb_per_s")
