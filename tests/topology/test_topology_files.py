"""Topology files: their contents, and messages about mistakes."""

import json
import os
import re
import tomllib
from fractions import Fraction

import pytest

import taccl
from taccl import cli
from taccl.errors import FormatError, TopologyError
from taccl.topology.fabrics import torus
from taccl.topology.files import MAX_FILE_BYTES, load_topology
from taccl.topology.machines import dgx_a100, ndv2

LINK = "schema = 1\nranks_per_node = 2\n[[link]]\nsrc = 0\ndst = 1\n"
NIC = "[[resource]]\nname = 'NIC'\n"


@pytest.fixture
def load(tmp_path):
    """Function that writes a text to a file and loads it as a topology."""

    def load_text(text, name="mine.toml"):
        path = tmp_path / name
        path.write_text(text)
        return load_topology(path)

    return load_text


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (
            'schema = 1\nmachine = "NDv2"\nnodes = 2\nprofile = "nominal"\nalpha_meaning = "pipelined"\n'
            "[constants]\ninternode_beta_us_per_mb = 100.1\n",
            ndv2(
                2,
                profile="nominal",
                alpha_meaning="pipelined",
                constants={"internode_beta_us_per_mb": "100.1"},
            ),
        ),
        ('schema = 1\nmachine = "dgx_a100"\nnodes = 2\nrails = false\n', dgx_a100(2, rails=False)),
    ],
    ids=["with nodes, profile and a constant of one's own", "without rails"],
)
def test_a_machine(load, text, same):
    """A machine is given by name, with fields for its options."""
    assert load(text) == same


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (b"", "a.toml", "the file is empty"),
        (b"\x7fELF\x00\x01", "a.toml", "found binary data"),
        (b"schema = = 1", "a.toml", "found text that is not TOML"),
        (b"{", "a.json", "found text that is not JSON"),
        (b"[" * 100_000, "a.json", "nested too deeply"),
        (None, "missing.toml", "there is no such file"),
        (None, ".", "is a folder"),
        (MAX_FILE_BYTES + 1, "huge.toml", "larger than 64MB"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_topology_file_is_refused(tmp_path, content, name, message):
    """Missing, empty, binary, broken and huge files each have an error of their own (more in test_reading)."""
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        path.touch()
        os.truncate(path, content)
    with pytest.raises(FormatError, match=message):
        load_topology(path)


@pytest.mark.parametrize(
    ("text", "links", "holds", "through"),
    [
        pytest.param(
            "schema = 1\nranks_per_node = 3\n"
            "[[switch]]\nname = 'S'\nranks = [0, 1, 2]\nbandwidth_gb_per_s = 100\n",
            6,
            18,
            (0, 1, 2, 3, 4, 5),
            id="with a rate: links of all pairs, with ports, as in the machine models",
        ),
        pytest.param(
            f"{LINK}beta_us_per_mb = 1\n[[switch]]\nranks = [0, 1]\n",
            1,
            1,
            (0,),
            id="without: those that are there",
        ),
    ],
)
def test_links_of_a_switch(load, text, links, holds, through):
    """A switch either creates links among its ranks, or contains existing ones."""
    topology = load(text)
    assert (len(topology.links), len(topology.holds)) == (links, holds)
    assert topology.switches[0].links == through


def test_a_fabric(load):
    """A fabric has a bandwidth for every axis, nodes, and a name given by the user."""
    topology = load(
        'schema = 1\nname = "mine"\nfabric = "torus:4x4"\nnodes = 4\n'
        "bandwidth_gb_per_s = [50, 25.5]\nalpha_us = 0.7\n"
    )
    same = torus(4, 4, bandwidth_gb_per_s=(50, "25.5"), alpha_us="0.7", ranks_per_node=4)
    assert topology.name == "mine"
    assert topology.links == same.links
    assert topology.node_of_rank == same.node_of_rank


def test_json_has_the_same_schema(load):
    """JSON is recognised by its suffix, or by a leading brace."""
    text = json.dumps({"schema": 1, "machine": "ndv2", "constants": {"nvlink_alpha_us": 0.1}})
    same = ndv2(constants={"nvlink_alpha_us": "0.1"})
    assert load(text, "mine.json") == load(text, "mine.topology") == same


def test_links_of_ones_own(load):
    """Decimals are exact, fractions are accepted, and the file names the topology."""
    topology = load(
        f'{LINK}alpha_us = 0.1\nbandwidth_gb_per_s = 2.5\nbidirectional = true\nname = "wire"\n'
        '[[link]]\nsrc = 1\ndst = 0\nbeta_us_per_mb = "20/3"\n'
    )
    assert topology.name == "mine"
    assert [(str(e), e.alpha_us, e.beta_us_per_mb) for e in topology.links] == [
        ("0->1 (wire)", Fraction(1, 10), 400),
        ("1->0 (wire)", Fraction(1, 10), 400),
        ("1->0", 0, Fraction(20, 3)),
    ]


def test_lists_of_ranks_make_one_link(load):
    """A link with several destinations multicasts; its reversal has several sources and reduces."""
    topology = load(
        "schema = 1\nranks_per_node = 3\n[[link]]\nsrc = 0\ndst = [2, 1]\nbeta_us_per_mb = 1\n"
        "bidirectional = true\nmulticast = true\n"
    )
    assert [(e.srcs, e.dsts) for e in topology.links] == [((0,), (1, 2)), ((1, 2), (0,))]


LINKS = [f"[[link]]\nsrc = {a}\ndst = {b}\nbeta_us_per_mb = 1\n" for a, b in ((0, 1), (0, 2), (0, 3))]
MULTICAST = "[[link]]\nsrc = 0\ndst = [1, 2]\nmulticast = true\nbeta_us_per_mb = 1\n"
SWITCH = "[[switch]]\nranks = [0, 1, 2]\nbeta_us_per_mb = 1\n"


def held_with(topology, link):
    """Ends of all links that hold a resource of the link numbered `link`, that link included."""
    mine = {hold.resource for hold in topology.holds_of_link[link]}
    return {topology.links[hold.link].ends for hold in topology.holds if hold.resource in mine}


@pytest.mark.parametrize(
    ("rest", "shared"),
    [
        # The multicast holds the port out of 0 and those into 1 and 2; only links into 0 hold none of these.
        (SWITCH, {"0->1,2", "0->1", "0->2", "1->2", "2->1"}),
        # Without a switch, the multicast conflicts with the links that it runs over, not with others.
        (f"{LINKS[0]}{LINKS[1]}{LINKS[2]}", {"0->1,2", "0->1", "0->2"}),
        # This multicast conflicts only with multicasts from its source or into its destinations.
        ("[[link]]\nsrc = 0\ndst = [2, 3]\nmulticast = true\nbeta_us_per_mb = 1\n", {"0->1,2", "0->2,3"}),
        ("[[link]]\nsrc = 3\ndst = [0, 2]\nmulticast = true\nbeta_us_per_mb = 1\n", {"0->1,2", "3->0,2"}),
        # The reduction link to 0 holds the ports out of 1 and 2, and into 0.
        # The multicast holds none of these ports, so the two do not conflict.
        (f"{SWITCH}[[link]]\nsrc = [1, 2]\ndst = 0\nbeta_us_per_mb = 1\n",
         {"0->1,2", "0->1", "0->2", "1->2", "2->1"}),
    ],
)  # fmt: skip
def test_a_link_of_several_ends_shares_the_ports_of_its_ranks(load, rest, shared):
    """A multicast holds the ports of its ranks, unless the file gives it ports of its own."""
    text = f"schema = 1\nranks_per_node = 4\n{MULTICAST}{rest}"
    assert held_with(load(text), 0) == shared
    own = load(text.replace("multicast = true", "multicast = true\nown_port = true"))
    assert held_with(own, 0) == {"0->1,2"}


@pytest.mark.parametrize(
    ("fields", "nodes"),
    [
        ("ranks_per_node = 2", (0, 0)),
        ("ranks_per_node = 2\nnodes = 2", (0, 0, 1, 1)),
        ("ranks_per_node = [1, 2]", (0, 1, 1)),
        ("ranks_per_node = [1, 2]\nnodes = 2", (0, 1, 1)),
    ],
)
def test_nodes_of_ones_own(load, fields, nodes):
    """Ranks per node are one number for all nodes, or one for each node."""
    assert load(f"schema = 1\n{fields}\n").node_of_rank == nodes


@pytest.mark.parametrize(
    ("cost", "held"),
    [
        ("", (2, 10)),
        ("alpha_us = 1", (1, 10)),
        ("beta_us_per_mb = 5", (0, 5)),
        ("bandwidth_gb_per_s = 250\nalpha_us = 0.5", (Fraction(1, 2), 4)),
    ],
)
def test_resources_are_held_by_the_links_named(load, cost, held):
    """Links hold a resource for the time that its entry gives, or by default for the link's own."""
    topology = load(
        f"{LINK}alpha_us = 2\nbeta_us_per_mb = 10\n{NIC}links = [[0, 1]]\nside = 'receive'\n{cost}\n"
    )
    nic = topology.holds[-1]
    assert topology.resources[nic.resource].name == "NIC"
    assert (nic.alpha_us, nic.beta_us_per_mb, nic.side) == (*held, "receive")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("schema = 2\nmachine = 'ndv2'", "mine.toml: schema: found 2; expected 1"),
        ("schema = true\nmachine = 'ndv2'", "schema: found True"),
        ("machine = 'ndv2'", "mine.toml: schema: found nothing; .* add it"),
        (
            "schema = 1",
            "found 'schema'; expected one of machine, fabric, node, ranks_per_node; check the path",
        ),
        ("schema = 1\nmachine = 'ndv3'", "mine.toml: machine: found 'ndv3'.* did you mean 'ndv2'"),
        ("schema = 1\nmachine = 'ring:4'", "machine: found 'ring:4', which is not a machine"),
        ("schema = 1\nfabric = 'ndv2'", "fabric: found 'ndv2', which is not a fabric"),
        (
            "schema = 1\nfabric = 'ring:4'\nmachine = 'ndv2'",
            "fabric: found an unknown field; expected one of schema, .*machine",
        ),
        (
            "schema = 1\nmachine = 'ndv2'\nranks_per_node = 3",
            "ranks_per_node: found an unknown field; expected one of schema, .*machine",
        ),
        (
            "schema = 1\nmachine = 'ndv2'\nnode = 2",
            "mine.toml: node: found an unknown field; .*did you mean 'nodes'",
        ),
        ("schema = 1\nmachine = 'ndv2'\nnodes = 0", "mine.toml: nodes: found 0"),
        ("schema = 1\nmachine = 'ndv2'\nnodes = 'two'", "mine.toml: nodes: found 'two'"),
        ("schema = 1\nmachine = 'ndv2'\nrails = true", "ndv2: rails: found True, but ndv2 has none"),
        ("schema = 1\nmachine = 'ndv2'\n[constants]\nspeed = 1", "ndv2 has no constant 'speed'"),
        (
            "schema = 1\nfabric = 'ring:4'\nnodes = 2\nranks_per_node = 2",
            "found both nodes and ranks_per_node",
        ),
        (f"{LINK}beta_us_per_mb = 0", r"mine.toml: link\[0\].beta_us_per_mb: found 0; expected a positive"),
        (f"{LINK}beta_us_per_mb = -1.5", r"link\[0\].beta_us_per_mb: found -1.5; .* not negative"),
        (f"{LINK}beta_us_per_mb = 1\nalpha_us = -1", r"link\[0\].alpha_us: found -1; .* not negative"),
        (f"{LINK}bandwidth_gb_per_s = 0", r"link\[0\].bandwidth_gb_per_s: found 0"),
        (f"{LINK}beta_us_per_mb = nan", r"found NaN; expected a finite number"),
        (f"{LINK}beta_us_per_mb = 1e999999999", r"expected at most 400 digits"),
        (f"{LINK}beta_us_per_mb = '1/0'", r"found '1/0'; expected a finite number"),
        (f"{LINK}beta_us_per_mb = true", r"found True; expected a number"),
        (f"{LINK}beta_us_per_mb = 1\nbandwidth_gb_per_s = 1", r"link\[0\]: found both"),
        (LINK, r"mine.toml: link\[0\]: found no rate"),
        (f"{LINK}own_port = true\nbeta_us_per_mb = 1", "own_port = true on a link between two ranks"),
        (f"{LINK}beta_us_per_mb = 1\nspeed = 1", r"link\[0\].speed: found an unknown field"),
        (LINK.replace("dst = 1", "dst = 2") + "beta_us_per_mb = 1", r"link\[0\].dst: rank 2 does not exist"),
        (LINK.replace("src = 0", "src = 0.5") + "beta_us_per_mb = 1", r"link\[0\].src\[0\]: found 0.5"),
        (LINK.replace("src = 0", "src = -1") + "beta_us_per_mb = 1", r"link\[0\].src\[0\]: found -1"),
        (LINK.replace("src = 0", "src = 1") + "beta_us_per_mb = 1", "joins a rank to itself"),
        (
            f"{LINK}beta_us_per_mb = 1\n{NIC}links = [[1, 0]]",
            r"resource\[0\].links: link 1->0 does not exist",
        ),
        (f"{LINK}beta_us_per_mb = 1\n{NIC}links = [[0, 1, 2, 3]]", r"expected \[source, destination\]"),
        (f"{LINK}beta_us_per_mb = 1\n{NIC}links = [[0, 1]]\nbeta_us_per_mb = 2", "longer than the send"),
        (f"{LINK}beta_us_per_mb = 1\n{2 * (NIC + 'links = [[0, 1]]' + chr(10))}", "found 'NIC' twice"),
        (
            f"{LINK}beta_us_per_mb = 1\n[[switch]]\nranks = [0, 5]",
            r"switch\[0\].ranks: rank 5 does not exist",
        ),
        ("schema = 1\nranks_per_node = [1, 2]\nnodes = 3", "found 2 numbers for 3 nodes"),
        ("schema = 1\nranks_per_node = 1000000000\nnodes = 1000000000", "expected at most 1000000"),
    ],
)
def test_mistakes_are_named_by_file_and_field(load, text, message):
    """The error for an invalid file names file and field, and what was found and expected."""
    with pytest.raises(TopologyError, match=message) as caught:
        load(text)
    assert "\n" not in str(caught.value)
    assert "mine.toml" in str(caught.value)


@pytest.mark.parametrize("name", ["dgx2", "torus:4x4"])
def test_the_name_of_a_machine_is_not_a_file(name):
    """The error for a name in place of a file says what to call, and that call works."""
    with pytest.raises(taccl.InputError, match=re.escape(f"call taccl.topologies.parse({name!r})")):
        taccl.topologies.load(name)
    assert taccl.topologies.parse(name).num_ranks == 16


def test_options_of_a_file_that_is_not_there_do_not_hide_it(tmp_path):
    """A missing file gives the same error with options; a topology file refuses the options."""
    with pytest.raises(taccl.InputError, match="there is no such file"):
        taccl.topologies.load(tmp_path / "dgx2", nodes=8)
    path = tmp_path / "ring.toml"
    taccl.save(taccl.topologies.ring(3), path)
    with pytest.raises(taccl.InputError, match="takes no nodes; leave it out"):
        taccl.topologies.load(path, nodes=2)


def test_large_files_are_read_quickly(tmp_path, monkeypatch):
    """A command parses a topology file at most twice, and links of equal cost share their cost objects."""
    path = tmp_path / "ring.toml"
    listed = "".join(
        f"[[link]]\nsrc = {r}\ndst = {(r + 1) % 8}\nalpha_us = 0.7\nbandwidth_gb_per_s = 12.5\n"
        for r in range(8)
    )
    path.write_text(f"schema = 1\nranks_per_node = [8]\n{listed}")
    parsed, loads = [], tomllib.loads
    monkeypatch.setattr(tomllib, "loads", lambda *args, **named: parsed.append(1) or loads(*args, **named))
    assert cli.main(["bound", str(path), "--collective", "allgather", "--size", "1MB"]) == 0
    assert len(parsed) <= 2
    links = taccl.topologies.load(path).links
    assert len(links) == 8
    assert len({(id(link.alpha_us), id(link.beta_us_per_mb)) for link in links}) == 1
