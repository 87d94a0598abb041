"""Products of dimensions: `multidim`, its names, and dimensions found in topologies."""

from fractions import Fraction

import numpy as np
import pytest

import taccl
from taccl.errors import TopologyError
from taccl.topologies import dgx_h100, gb200_nvl72, multidim, parse
from taccl.topology import recognise
from taccl.topology.named import as_named, parse_named
from taccl.topology.recognise import dimensions, links_along


def test_ranks_are_numbered_with_the_first_digit_fastest():
    """In a product of 4 by 3 ranks, rank 0's next rank is 1 along the first dimension, 4 along the second."""
    topology = multidim([("switch", 4, 100), ("ring", 3, 50)])
    to = {topology.links[e].dst for e in topology.links_from[0]}
    assert to == {1, 2, 3, 4, 8}


def test_a_bandwidth_is_a_ranks_over_all_its_links():
    """A dimension's bandwidth is that of a rank over all its links.

    At 60 GB/s, a ring's two links have 30 GB/s each. The five links of a fully connected dimension have 12
    GB/s each, and a switch's port has 60 GB/s.
    """
    for kind, each in (("ring", 30), ("fully-connected", 12), ("switch", 60)):
        topology = multidim([(kind, 6, "60GB/s")])
        assert {link.beta_us_per_mb for link in topology.links} == {Fraction(1000, each)}


def test_text_units_and_numbers_say_the_same():
    """Rates and latencies may be text with units or numbers.

    800 Gbps, 100 GB/s and 100 are the same rate; 500 ns, 0.5 us and the default are the same latency.
    """
    forms = [
        [("switch", 4, "800Gbps", "500ns")], [("Switch", "4", "100GB/s", "0.5us")], [("switch", 4, 100)],
        "switch4@100", "switch-4@100@0.5",
    ]  # fmt: skip
    assert len({multidim(form).name for form in forms}) == 1


def test_latency_does_not_occupy_links_unless_asked():
    """Latency does not occupy a link by default, as in ASTRA-sim: a link is free once the bytes have left."""
    assert multidim("ring4@50").alpha_meaning == "pipelined"
    assert multidim("ring4@50", alpha_meaning="occupies").alpha_meaning == "occupies"


@pytest.mark.parametrize("name", ["multidim:switch4@100,ring3@50@0.7", "multidim:fully-connected3@1/3"])
def test_a_name_is_read_back(name):
    """Parsing a topology's name gives the same topology, as a `Topology` or as a `NamedFabric`."""
    topology = parse(name)
    assert topology.name == name and parse(topology.name) == topology
    named = parse_named(name)
    assert named.to_topology() == topology and as_named(topology) == named


def test_a_described_product_has_the_links_of_the_listed_one():
    """`NamedFabric.axis` returns exactly the links that `multidim` lists, with their dimension."""
    topology = parse("multidim:ring4@50,switch3@100,fully-connected4@60,ring2@10")
    fabric = parse_named(topology.name)
    src, dst = (each.ravel() for each in np.indices((96, 96)))
    axis = fabric.axis(src, dst)
    listed = {(link.src, link.dst): link.beta_us_per_mb for link in topology.links}
    pairs = zip(src.tolist(), dst.tolist(), axis.tolist(), strict=True)
    found = {(s, d): fabric.axes[a].beta_us_per_mb for s, d, a in pairs if a >= 0}
    assert found == listed


def test_nodes_cut_the_ranks():
    """``nodes=3`` of a product of 12 ranks makes nodes of 4."""
    assert parse("multidim:switch4@100,ring3@50", nodes=3).ranks_of_node[1] == (4, 5, 6, 7)


def test_a_topology_file_names_a_product(tmp_path):
    """A topology file may contain ``fabric = "multidim:..."``."""
    path = tmp_path / "network.toml"
    path.write_text('schema = 1\nfabric = "multidim:switch4@100,ring3@50"\n')
    assert taccl.topologies.load(path) == parse("multidim:switch4@100,ring3@50")


def test_dimensions_of_size_1_are_skipped():
    """A product with a dimension of size 1 is the product without it, as in files of ASTRA-sim."""
    found = parse("multidim:ring2@100,switch1@50,ring4@25")
    assert found == parse("multidim:ring2@100,ring4@25")
    assert taccl.dimensions(found).sizes == (2, 4)


@pytest.mark.parametrize(
    ("dims", "said"),
    [
        ("switch16", "bandwidth: found none"),
        ([("ring", 4, None)], "bandwidth: found none"),
        ("switch16@0", "found 0 GB/s; expected a positive bandwidth"),
        ("switch0@5", "size: found 0"),
        ("switch1@5,ring1@2", "found one rank; expected a dimension of at least 2 ranks"),
        ("swich4@5", "did you mean 'switch'"),
        ("ring4@-3", "not negative"),
        ("ring4@5TB", "expected GB/s"),
        ("ring4@5@1x", "expected a time"),
        ("", "expected a kind, a size and a bandwidth"),
        ([], "found 0 dimensions"),
        ([5], "expected a kind, a size, a bandwidth"),
        ("switch1024@1,switch1024@1", "expected at most 1000000"),
    ],
)
def test_what_is_no_product_is_refused_in_a_sentence(dims, said):
    """Each refusal names the dimension, what was found and what was expected."""
    with pytest.raises(TopologyError, match="multidim") as caught:
        multidim(dims)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_another_number_of_ranks_is_refused():
    """A product of 4 x 3 is refused for 16 ranks."""
    with pytest.raises(TopologyError, match=r"4 x 3 = 12 ranks; expected .* 16"):
        multidim("switch4@100,ring3@50", num_ranks=16)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("torus:3x5", "ring5@100 ring3@100"), ("mesh:3x4", "line4@50 line3@50"),
        ("hypercube:3", "ring2@50 ring2@50 ring2@50"), ("ring:8", "ring8@100"), ("star:5", "switch5@50"),
        ("fully-connected:6", "fully-connected6@250"), ("torus:2x4", "ring4@100 ring2@50"),
        ("multidim:switch4@100,ring3@50@0.7", "switch4@100 ring3@50@0.7"),
        ("multidim:fully-connected4@9,fully-connected4@9", "fully-connected4@9 fully-connected4@9"),
    ],
)  # fmt: skip
def test_fabrics_are_products(name, expected):
    """The dimensions found in the links of a fabric are those of its definition."""
    assert [str(each) for each in taccl.dimensions(parse(name))] == expected.split()
    assert [str(each) for each in taccl.dimensions(name)] == expected.split()


@pytest.mark.slow
def test_nodes_with_rails_are_products():
    """Four servers of eight GPUs behind NVSwitch are a product of 8 and 4; two racks of 72 likewise."""
    assert taccl.dimensions(dgx_h100(4)).sizes == (8, 4)
    assert taccl.dimensions(gb200_nvl72(2)).sizes == (72, 2)


def test_network_files_of_astra_sim_are_products(tmp_path):
    """The bandwidth in an ASTRA-sim file is per link: 50 * 2**30 bytes/s on each of a ring's two links."""
    path = tmp_path / "network.yml"
    path.write_text(
        "topology: [ Ring, Switch ]\nnpus_count: [ 5, 4 ]\nbandwidth: [ 50, 25 ]\nlatency: [ 500, 250 ]\n"
    )
    dims = taccl.dimensions(taccl.topologies.load(path))
    assert [(each.kind, each.size) for each in dims] == [("ring", 5), ("switch", 4)]
    assert [float(each.bandwidth_gb_per_s) for each in dims] == [100 * 2**30 / 10**9, 25 * 2**30 / 10**9]
    assert [each.alpha_us for each in dims] == [Fraction(1, 2), Fraction(1, 2)]


@pytest.mark.parametrize(
    ("topology", "why"),
    [
        (taccl.topologies.ndv2(2), "are not joined as ranks"),
        (taccl.topologies.dgx2(2), "along no dimension"),
        (parse("torus:4x4").without(links=[(5, 6)]), "no product of dimensions"),
        (parse("torus:4x4").degraded(links={(5, 6): 0.5}), "no product of dimensions"),
    ],
)
def test_what_is_no_product_says_why(topology, why):
    """The error for a topology that is no product names the ranks or the link at fault."""
    with pytest.raises(TopologyError, match=why):
        dimensions(topology)


def test_a_resource_that_ranks_share_makes_no_product():
    """A topology with two dimensions behind one NIC is no product."""
    builder = taccl.topologies.TopologyBuilder("one NIC", [0] * 4)
    nic = [builder.add_resource(f"NIC {rank}") for rank in range(4)]
    for src in range(4):
        for dst in (src ^ 1, src ^ 2):
            link = builder.add_link(src, dst, alpha_us=1, beta_us_per_mb=1)
            builder.add_hold(link, nic[src], alpha_us=0, beta_us_per_mb=1)
    with pytest.raises(TopologyError, match="NIC 0 is shared by two dimensions"):
        dimensions(builder.build())


def test_links_along_lead_to_the_digit():
    """`links_along` gives each rank's link to every other rank that differs in one dimension only."""
    topology = parse("multidim:switch4@100,ring5@50")
    dims = dimensions(topology)
    for axis, table in enumerate(links_along(topology, dims)):
        for rank in range(20):
            for digit in range(dims.sizes[axis]):
                own = dims.digits(np.array([rank]))[axis, 0]
                dst = rank + (digit - own) * dims.strides[axis]
                expected = topology.links_between(rank, dst) if dst != rank else ()
                assert tuple(e for e in (table[rank, digit],) if e >= 0) == expected


def test_dense_fabrics_are_no_grids_by_their_number_of_links(monkeypatch):
    """A fabric with more links than any grid of its ranks is told without a look at its dimensions."""
    monkeypatch.setattr(recognise, "_found", None)
    assert recognise.grid_of(parse("fully-connected:16")) is None
