"""Topologies written to files and read again."""

import warnings
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import taccl
from taccl.errors import ExportError, LossyConversionWarning, TopologyError
from taccl.formats.registry import convert, read
from taccl.topology.builder import TopologyBuilder
from taccl.topology.file_writer import dump_topology
from taccl.topology.files import load_topology
from taccl.topology.topology import Topology
from tests.foreign import foreign_files
from tests.fuzzing import some
from tests.synthesis.small_problems import linked


def said(topology):
    """Content of a topology, independent of the order of its resources and holds."""
    names = [resource.name for resource in topology.resources]
    return {
        "name": topology.name,
        "nodes": topology.node_of_rank,
        "alpha": topology.alpha_meaning,
        "links": topology.links,
        "resources": Counter(names),
        "switches": Counter((s.name, s.ranks, tuple(sorted(s.links))) for s in topology.switches),
        "holds": Counter(
            (h.link, names[h.resource], h.alpha_us, h.beta_us_per_mb, h.side) for h in topology.holds
        ),
    }


def again(topology, folder):
    """Topology after it was written to a file and read."""
    path = folder / "topology.toml"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LossyConversionWarning)
        path.write_text(dump_topology(topology), encoding="utf-8")
    return load_topology(path)


@pytest.mark.parametrize(
    ("name", "nodes"),
    [("ndv2", 2), ("dgx1", 1), ("dgx2", 1), ("dgx-a100", 2), ("torus:2x3", None), ("star:4", None)],
)
def test_machines_and_fabrics_return(name, nodes, tmp_path):
    """A machine or fabric written link by link is the same after reading."""
    topology = taccl.topologies.parse(name, nodes=nodes)
    assert said(again(topology, tmp_path)) == said(topology)


COSTS = st.fractions(min_value=0, max_value=1000, max_denominator=10**6)
RATES = COSTS.filter(bool)
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=8)


@st.composite
def topologies(draw):
    """Random topologies: ranks in any nodes, links of any costs, and resources with any holders and rates."""
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    ranks = range(sum(counts))
    builder = TopologyBuilder(
        draw(TEXTS),
        [node for node, count in enumerate(counts) for _ in range(count)],
        alpha_meaning=draw(st.sampled_from(["occupies", "pipelined"])),
    )
    pairs = [(a, b) for a in ranks for b in ranks if a != b]
    for a, b in draw(st.lists(st.sampled_from(pairs), unique=True, max_size=8)) if pairs else ():
        builder.add_link(
            a, b, alpha_us=draw(COSTS), beta_us_per_mb=draw(RATES), name=draw(st.just("") | TEXTS)
        )
    links = range(len(builder.links))
    for name in draw(st.lists(TEXTS, unique=True, max_size=3)) if builder.links else ():
        resource = builder.add_resource(name)
        holders = draw(st.lists(st.sampled_from(links), unique=True, min_size=1))
        for link in holders:
            ends = builder.links[link]
            share = draw(st.sampled_from([Fraction(1), Fraction(1, 3), Fraction(1, 2)]))
            builder.add_hold(
                link, resource, alpha_us=draw(st.sampled_from([ends.alpha_us, Fraction(0)])),
                beta_us_per_mb=ends.beta_us_per_mb * share, side=draw(st.sampled_from(["send", "receive"])),
            )  # fmt: skip
    return builder.build()


@pytest.mark.slow
@settings(max_examples=some(20, 60), deadline=None)
@given(topology=topologies())
def test_any_topology_returns(topology, tmp_path_factory):
    """For any links, costs, names and shared resources, the topology that is read equals the one written."""
    assert said(again(topology, tmp_path_factory.mktemp("written"))) == said(topology)


#: Files of other tools that can be read without arguments.
WHOLE = [
    each
    for folder in ("nccl-topo", "nvidia-smi", "astra-sim")
    for each in foreign_files(f"{folder}/*")
    if "bare-ids" not in each.id and "aws-" not in each.id and "azure-ndv" not in each.id
]


@pytest.mark.parametrize("path", WHOLE)
def test_other_tools_files_become_topology_files(path, tmp_path):
    """Files of nvidia-smi, NCCL and ASTRA-sim are converted to topology files with the same content."""
    options = {} if path.parent.name == "astra-sim" else {"nodes": 2, "nic_gb_per_s": 12}
    target = tmp_path / "topology.toml"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = convert(path, target, **options)
        expected = read(path, **options)
        found = read(target)
    assert (done.target.name, said(found)) == ("taccl-topology", said(expected))


def test_a_resource_at_two_rates_is_continued(tmp_path):
    """A resource that links hold at two rates, 1 us/MB and 1/3 us/MB, has two entries in the file."""
    builder = TopologyBuilder("shared", [0, 0, 0])
    links = [builder.add_link(0, each, alpha_us=0, beta_us_per_mb=1) for each in (1, 2)]
    port = builder.add_resource("port")
    builder.add_hold(links[0], port, alpha_us=0, beta_us_per_mb=1)
    builder.add_hold(links[1], port, alpha_us=0, beta_us_per_mb="1/3")
    text = dump_topology(builder.build())
    assert text.count('name = "port"') == 2
    assert 'continues = true\nlinks = [[0, 2]]\nbeta_us_per_mb = "1/3"' in text


@pytest.mark.parametrize("other", ["[[link]]\nsrc = 0\ndst = 1\n", "[[switch]]\nranks = [0, 1, 2]\n"])
def test_shared_ports_return(tmp_path, other):
    """A written file lists the resources that a multicast or reduction shares, and reading it adds no others."""
    path = tmp_path / "multicast.toml"
    path.write_text(
        "schema = 1\nranks_per_node = 3\n[[link]]\nsrc = 0\ndst = [1, 2]\nmulticast = true\n"
        f"beta_us_per_mb = 1\nbidirectional = true\n{other}beta_us_per_mb = 1\n"
    )
    topology = read(path)
    written, found = said(again(topology, tmp_path)), said(topology)
    assert {**written, "switches": None} == {**found, "switches": None}  # all links among its ranks, then


def test_lost_names_are_kept_as_a_comment():
    """A machine's name and profile, for which files have no field, are kept as a comment."""
    with pytest.warns(LossyConversionWarning, match="machine and profile"):
        text = dump_topology(taccl.topologies.ndv2(nodes=1))
    assert text.startswith("# From machine ndv2, profile ")


def test_links_without_a_resource_of_their_own_are_refused():
    """A link without a resource of its own cannot be written, as reading would create one."""
    whole = taccl.topologies.ring(3)
    holds = tuple(hold if hold.link else hold._replace(resource=1) for hold in whole.holds)
    bare = Topology("bare", whole.node_of_rank, whole.links, whole.resources, holds)
    with pytest.raises(ExportError, match=r"link 0->1 holds none"):
        dump_topology(bare)


def test_costs_per_chunk_are_refused():
    """A topology with the published tool's costs cannot be written; the message names the call that can."""
    whole = taccl.topologies.ring(3)
    theirs = Topology(
        "theirs", whole.node_of_rank, whole.links, whole.resources, whole.holds, cost_model="upstream"
    )
    with pytest.raises(ExportError, match=r"costs per chunk; save it as JSON: taccl\.save\("):
        dump_topology(theirs)


@pytest.mark.parametrize("names", [("a", "b"), ("a", "a"), ("", "")])
def test_parallel_links_of_two_kinds_return(names, tmp_path):
    """If one of two parallel links holds a port, the file's entry names that link.

    If both links have the same name, the entry has the link's number instead.
    """
    builder = TopologyBuilder("twins", [0, 0])
    builder.add_link(0, 1, alpha_us=0, beta_us_per_mb=1, name=names[0])
    second = builder.add_link(0, 1, alpha_us=0, beta_us_per_mb=2, name=names[1])
    builder.add_hold(second, builder.add_resource("port"), alpha_us=0, beta_us_per_mb=2)
    topology = builder.build()
    assert said(again(topology, tmp_path)) == said(topology)


def test_link_that_an_entry_names_must_exist(tmp_path):
    """If an entry names no existing parallel link, the error shows the link and the entry."""
    path = tmp_path / "twins.toml"
    for which in ('"c"', "2"):
        path.write_text(
            "schema = 1\nranks_per_node = 2\n"
            + '[[link]]\nsrc = 0\ndst = 1\nbeta_us_per_mb = 1\nname = "a"\n' * 2
            + f'[[resource]]\nname = "port"\nlinks = [[0, 1, {which}]]\n'
        )
        with pytest.raises(TopologyError, match=rf"link 0->1 \({which.strip(chr(34))}\) does not exist"):
            load_topology(path)


def test_assumptions_return(tmp_path):
    """The assumptions of an import are written to a field of the file, and read again."""
    topology = replace(taccl.topologies.ring(3), assumed=("a guess", 'another "one"'))
    assert again(topology, tmp_path).assumed == topology.assumed


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("continues = true\nlinks = [[0, 1]]", "no such name above"),
        ('links = [[0, 1]]\n[[resource]]\nname = "port"\nlinks = [[1, 0]]', "'port' twice"),
    ],
)
def test_continued_resources_are_checked(entries, message, tmp_path):
    """A resource's name is repeated only with ``continues = true``, which requires an earlier entry of that name."""
    path = tmp_path / "slip.toml"
    path.write_text(
        "schema = 1\nranks_per_node = 2\n[[link]]\nsrc = 0\ndst = 1\nbeta_us_per_mb = 1\nbidirectional = true\n"
        f'[[resource]]\nname = "port"\n{entries}\n'
    )
    with pytest.raises(TopologyError, match=message):
        load_topology(path)


def test_names_with_half_a_character_are_refused():
    """A name with a lone surrogate is refused: JSON can express it, but UTF-8 cannot."""
    with pytest.raises(ExportError, match="half of one"):
        dump_topology(linked("half \ud800", [0, 0], [(0, 1)], alpha_us=0, beta_us_per_mb=1))
