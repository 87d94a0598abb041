"""Topology files of a few lines: a node, its NICs, and the network."""

from fractions import Fraction

import numpy as np
import pytest

from taccl import collectives
from taccl.analysis.verification.verify import verify
from taccl.baselines import BASELINES
from taccl.errors import TopologyError
from taccl.problem.making import make_problem
from taccl.topology.file_writer import dump_topology
from taccl.topology.files import load_topology
from taccl.topology.machines import dgx1, dgx_h100, mi300x

TWO_SERVERS = """schema = 1
[node]
gpus = 8
fabric = "mesh"
bandwidth_gb_per_s = 64
[nics]
count = 8
bandwidth_gb_per_s = 50
[network]
nodes = 2
rails = true
"""


@pytest.fixture
def load(tmp_path):
    """Function that writes a text to a file and loads it as a topology."""

    def load_text(text):
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return load_topology(path)

    return load_text


def ends_and_rates(topology):
    """Sorted list of (ends, alpha, beta, betas of the link's holds), one entry for each link."""
    return sorted(
        (link.ends, link.alpha_us, link.beta_us_per_mb, [h.beta_us_per_mb for h in topology.holds_of_link[e]])
        for e, link in enumerate(topology.links)
    )


def on_switch(text):
    """`text` of a topology file with a switch instead of the mesh in each server."""
    return text.replace('"mesh"', '"switch"').replace("= 64", "= 450")


def test_two_servers_of_a_full_mesh(load):
    """Two servers of eight GPUs and eight NICs take at most 15 lines, and equal the machine of that name."""
    assert len(TWO_SERVERS.splitlines()) <= 15
    assert ends_and_rates(load(TWO_SERVERS)) == ends_and_rates(mi300x(2, profile="nominal"))


def test_servers_behind_switches(load):
    """A switch gives every GPU a port out and a port in, as NVSwitch does."""
    topology = load(on_switch(TWO_SERVERS))
    assert ends_and_rates(topology) == ends_and_rates(dgx_h100(2, profile="nominal"))
    assert [switch.ranks for switch in topology.switches] == [tuple(range(8)), tuple(range(8, 16))]


def test_the_hybrid_cube_mesh(load):
    """`hybrid` is the hybrid cube mesh of DGX-1, with the given rate per link."""
    topology = load('schema = 1\n[node]\ngpus = 8\nfabric = "hybrid"\nbandwidth_gb_per_s = 25\n')
    assert ends_and_rates(topology) == ends_and_rates(dgx1(profile="nominal"))


@pytest.mark.parametrize(("gpus", "links"), [(1, 0), (2, 2), (3, 6), (5, 10)])
def test_a_ring_joins_neighbours_both_ways(load, gpus, links):
    """In a ring each GPU has a link to the next and to the previous GPU, and none to itself."""
    topology = load(f'schema = 1\n[node]\ngpus = {gpus}\nfabric = "ring"\nbeta_us_per_mb = 1\n')
    assert len(topology.links) == links
    assert {(link.dst - link.src) % gpus for link in topology.links} <= {1, gpus - 1}


def test_latencies_are_those_of_links(load):
    """`alpha_us` of the node applies to links inside nodes, that of `nic` to links between nodes."""
    text = TWO_SERVERS.replace("= 64\n", "= 64\nalpha_us = 1.5\n").replace("= 50\n", "= 50\nalpha_us = 5\n")
    topology = load(text)
    alphas = {(topology.is_internode(e), link.alpha_us) for e, link in enumerate(topology.links)}
    assert alphas == {(False, Fraction(3, 2)), (True, 5)}


def test_without_rails_the_network_joins_all(load):
    """Without rails there are 8 * 8 links between two nodes in each direction."""
    assert len(load(TWO_SERVERS.replace("rails = true\n", "")).internode_links) == 128


@pytest.mark.parametrize(
    ("nics", "nic_of_gpu"),
    [
        ("count = 4", [0, 0, 1, 1, 2, 2, 3, 3]),
        ("count = 1", [0] * 8),
        ("count = 2\ngpus = [[0, 2], 5]", [0, None, 0, None, None, 1, None, None]),
    ],
)
def test_gpus_share_cards(load, nics, nic_of_gpu):
    """GPUs share NICs evenly in order, or as `gpus` says; a GPU without a NIC has no link to other nodes."""
    topology = load(TWO_SERVERS.replace("count = 8", nics))
    names = [resource.name for resource in topology.resources]
    for gpu, nic in enumerate(nic_of_gpu):
        between = [e for e in topology.links_from[gpu] if topology.is_internode(e)]
        held = {names[h.resource] for e in between for h in topology.holds_of_link[e] if h.side == "send"}
        cards = {name for name in held if name.endswith("egress")}
        assert cards == (set() if nic is None else {f"NIC {nic} of node 0 egress"})


def test_cards_of_one_gpu_count_as_one(load):
    """Thirty-two NICs of 12.5 GB/s for eight GPUs are one NIC of 50 GB/s for each."""
    text = TWO_SERVERS.replace("count = 8\nbandwidth_gb_per_s = 50", "count = 32\nbandwidth_gb_per_s = 12.5")
    assert ends_and_rates(load(text)) == ends_and_rates(load(TWO_SERVERS))


@pytest.mark.parametrize(("times", "crossed_us"), [(1, 20), (2, 7 * 5 + 20), (16, 8 * 40)])
def test_an_oversubscribed_network_carries_less(load, times, crossed_us):
    """An uplink limits what the NICs of a node send together.

    Eight NICs of 50 GB/s send through an uplink of 200 GB/s, or through one that is slower than a NIC.
    """
    topology = load(on_switch(TWO_SERVERS).replace("nodes = 2", f"nodes = 2\noversubscription = {times}"))
    problem = make_problem(topology, collectives.allgather(16), chunk_bytes=10**6)
    schedule = BASELINES["hierarchical"](problem, cut=False)
    verify(schedule).raise_if_failed()
    # 1 MB takes 20 us at a NIC, and eight chunks leave at once if no uplink is shared.
    # Otherwise the chunks hold the uplink one after another, for 5 or 40 us each.
    crossings = schedule.end[np.isin(schedule.link, topology.internode_links)]
    assert problem.costs.us(int(crossings.max())) == crossed_us


def test_what_a_few_lines_say_is_written_link_by_link(load, tmp_path):
    """`dump_topology` lists every link and uplink; reading the file gives the same costs."""
    topology = load(TWO_SERVERS.replace("nodes = 2", "nodes = 2\noversubscription = 4"))
    path = tmp_path / "written.toml"
    path.write_text(dump_topology(topology))
    assert ends_and_rates(load_topology(path)) == ends_and_rates(topology)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[nics]\ncount = 8\nbandwidth_gb_per_s = 50\n", "", "nics: found 2 nodes, and no .nics."),
        ("count = 8", "count = 3", "nics.count: found 3 for 8 GPUs, and neither number divides the other"),
        ("count = 8", "count = 2\ngpus = [[0, 1]]", "nics.gpus: found 1 entries for 2 NICs"),
        (
            "count = 8",
            "count = 2\ngpus = [0, 8]",
            r"nics.gpus\[1\]: rank 8 does not exist; a node has GPUs 0-7",
        ),
        ("count = 8", "count = 2\ngpus = [0, [1, 0]]", r"nics.gpus\[1\]: found GPU 0 at NIC 0 too"),
        ('"mesh"', '"torus"', "node.fabric: .*'mesh', 'switch', 'ring' or 'hybrid'"),
        ("gpus = 8", "gpus = 4", None),
        ('gpus = 8\nfabric = "mesh"', 'gpus = 4\nfabric = "hybrid"', "node.gpus: found 4 GPUs"),
        ("nodes = 2", "nodes = 2\noversubscription = 0.5", "network.oversubscription: .*1"),
        (
            "schema = 1",
            "schema = 1\nnodes = 2",
            "nodes: found an unknown field; expected one of schema, name, .*node, nics, network",
        ),
        (
            "schema = 1",
            "schema = 1\nmachine = 'ndv2'",
            "node: found an unknown field; expected one of schema, .*machine",
        ),
        ("bandwidth_gb_per_s = 64\n", "", "found no rate"),
        ("gpus = 8", "gpus = 1000", "node.gpus, network.nodes: found .* links"),
    ],
)
def test_mistakes_are_named(load, old, new, said):
    """The error for an invalid topology file names the field, what was found, and the remedy."""
    assert old in TWO_SERVERS
    text = TWO_SERVERS.replace(old, new)
    if said is None:
        assert load(text).num_ranks == 8
        return
    with pytest.raises(TopologyError, match=said):
        load(text)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            "src = 0\ndst = [1, 2]",
            "found several destinations, .*1, 2.*; give a ..link.. for each, or multicast = true",
        ),
        ("src = [1, 2]\ndst = 0\nbidirectional = true", "found several destinations"),
        ("src = 0\ndst = 1\nmulticast = true", "found multicast = true on a link to one rank"),
    ],
)
def test_a_multicast_must_be_declared(load, fields, said):
    """A list of destinations requires `multicast = true`, and the reverse."""
    with pytest.raises(TopologyError, match=said):
        load(f"schema = 1\nranks_per_node = 3\n[[link]]\n{fields}\nbeta_us_per_mb = 1\n")


def test_a_multicast_beside_links_of_its_own_is_one(load):
    """If a file has links 0 -> 1 and 0 -> 2, a third link to both ranks is a multicast."""
    cost = "beta_us_per_mb = 1\n"
    single = [f"[[link]]\nsrc = 0\ndst = {dst}\n{cost}" for dst in (1, 2)]
    text = f"schema = 1\nranks_per_node = 3\n{{}}[[link]]\nsrc = 0\ndst = [1, 2]\n{cost}"
    assert load(text.format("".join(single))).links[-1].dsts == (1, 2)
    with pytest.raises(TopologyError, match="multicast = true"):
        load(text.format(single[0]))
    with pytest.raises(TopologyError, match="multicast = true on a link|several destinations"):
        load((text + "multicast = false\n").format("".join(single)))


def test_alpha_holds_no_port_for_longer_than_the_overhead(load):
    """Ports, NICs and links are held for the bytes plus an overhead, by default 0.02 us; not for alpha."""
    text = (
        on_switch(TWO_SERVERS)
        .replace("= 450", "= 450\nalpha_us = 2")
        .replace("= 50\n", "= 50\nalpha_us = 9\n")
    )
    topology = load(text.replace("schema = 1", "schema = 1\nlaunch_us = 7"))
    assert {hold.alpha_us for hold in topology.holds} == {Fraction("0.02")}
    assert {link.alpha_us for link in topology.links} == {2, 9}
    assert topology.launch_us == 7
    said = load(text.replace("alpha_us = 2", "alpha_us = 2\noverhead_us = 1.5"))
    held = {hold.alpha_us for hold in said.holds if not said.is_internode(hold.link)}
    assert held == {Fraction("1.5")}


def test_overheads_and_launch_are_written_back(load, tmp_path):
    """Overheads and launch are in a written topology file, overheads link by link."""
    text = (
        on_switch(TWO_SERVERS)
        .replace("= 450", "= 450\nalpha_us = 2")
        .replace("schema = 1", "schema = 1\nlaunch_us = 7")
    )
    topology = load(text)
    (tmp_path / "listed.toml").write_text(dump_topology(topology))
    again = load_topology(tmp_path / "listed.toml")
    assert (again.links, again.launch_us) == (topology.links, topology.launch_us)
    held = [sorted((h.alpha_us, h.beta_us_per_mb, h.side) for h in holds) for holds in again.holds_of_link]
    assert held == [
        sorted((h.alpha_us, h.beta_us_per_mb, h.side) for h in holds) for holds in topology.holds_of_link
    ]


@pytest.mark.parametrize("name", ["ndv2x4", "ndv2x4-multicast", "dgx2x2"])
def test_machines_of_other_experiments_are_read(shared_data, name):
    """Files with four NDv2 nodes, with and without multicasts, and with two DGX-2 are read."""
    topology = load_topology(shared_data / "te-ccl" / f"{name}.toml")
    assert (topology.num_ranks, topology.num_nodes) == ((32, 2) if name == "dgx2x2" else (32, 4))
    assert any(len(link.dsts) > 1 for link in topology.links) == name.endswith("multicast")
