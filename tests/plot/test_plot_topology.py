"""The picture of a topology: positions of ranks, meaning of lines, and utilisation."""

import numpy as np
import pytest

import taccl
from taccl.errors import InputError
from taccl.plot.topology import lay_out, lines_of


def lines_by_kind(topology):
    kinds = {}
    for line in lines_of(topology, lay_out(topology)):
        kinds[line.what] = kinds.get(line.what, 0) + 1
    return kinds


@pytest.mark.slow
def test_every_link_has_a_line():
    """A ring of 8 has 16 links, each a line of its own."""
    assert lines_by_kind(taccl.topologies.parse("ring:8")) == {"link": 16}


def test_switches_have_ports():
    """A DGX-A100 has a switch with two ports for each of 8 ranks; two nodes have 16 links between them."""
    assert lines_by_kind(taccl.topologies.dgx_a100(nodes=2, profile="nominal")) == {"port": 32, "link": 16}


def test_many_links_between_nodes_are_one_line():
    """Two NDv2 have 64 pairs of ranks between nodes, drawn as one line each way, and 32 NVLinks each."""
    assert lines_by_kind(taccl.topologies.ndv2(nodes=2)) == {"link": 64, "between nodes": 2}


def test_borders_of_a_torus_lead_round():
    """Links that wrap around a torus are shown as a kind of their own.

    In a 4x4 torus 16 of 64 links wrap around: 2 directions in each of 4 rows and 4 columns.
    """
    assert lines_by_kind(taccl.topologies.parse("torus:4x4")) == {"link": 48, "wrap-around link": 16}


@pytest.mark.slow
def test_many_ranks_are_drawn_by_node():
    """With very many ranks each dot is a node.

    For 264 ranks in 33 nodes each ordered pair of nodes has a line: 33 * 32.
    """
    topology = taccl.topologies.dgx_a100(nodes=33, profile="nominal")
    assert lay_out(topology).by_node
    assert lines_by_kind(topology) == {"between nodes": 1056}


@pytest.mark.parametrize(
    "name",
    ["ndv2", "dgx2", "hypercube:3", "hypercube:4", "torus:3x3x3", "mesh:3x5", "star:6", "fully-connected:5"],
)
def test_ranks_are_apart(name):
    """In the picture of a topology no two ranks are at the same place."""
    place = lay_out(taccl.topologies.parse(name)).place
    distance = np.linalg.norm(place[:, None] - place[None, :], axis=2) + 9 * np.eye(len(place))
    assert distance.min() > 0.1


@pytest.mark.parametrize("name", ["ndv2", "dgx2", "dgx-a100"])
@pytest.mark.parametrize("nodes", [2, 3])
def test_few_nodes_are_on_one_line(name, nodes):
    """Two or three nodes have their centres at one height, and the ranks of a node are at different heights.

    So a horizontal line between nodes crosses no other rank.
    """
    topology = taccl.topologies.parse(name, nodes=nodes)
    layout = lay_out(topology)
    assert len({y for _, y in layout.centre.tolist()}) == 1
    heights = np.sort(layout.place[list(topology.ranks_of_node[0]), 1])
    assert np.diff(heights).min() > 0.03


def test_loads_are_those_of_the_schedule(exchange):
    """Link 0 is busy all the time, and link 1 half of it; the colour bar is in percent."""
    ax = taccl.plot.topology(exchange.problem.topology, exchange)
    widths = sorted(float(w) for each in ax.collections for w in np.ravel(each.get_linewidths()))
    assert widths[-1] == pytest.approx(0.7 + 2.1)
    assert any("busy share" in other.get_ylabel() for other in ax.figure.axes)


def test_without_a_schedule_the_legend_names_kinds_of_links():
    """Without a schedule the legend names the kinds of links and their bandwidth."""
    ax = taccl.plot.topology(taccl.topologies.ndv2(nodes=2))
    words = " ".join(text.get_text() for text in ax.get_legend().get_texts())
    assert "NVLink" in words
    assert "GB/s" in words
    assert "between nodes" in words


def test_another_topology_is_refused(exchange):
    """The picture of a topology is refused for a schedule on another topology."""
    with pytest.raises(InputError, match="schedule"):
        taccl.plot.topology(taccl.topologies.parse("ring:8"), exchange)
