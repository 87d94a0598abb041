"""Files of the published tool, under both cost models."""

import json
from fractions import Fraction

import pytest

from taccl import collectives
from taccl.errors import InputError, SketchError, TopologyError
from taccl.sketch.library import load_sketch
from taccl.sketch.sketch import Sketch
from taccl.sketch.upstream import load_problem, load_upstream_topology
from taccl.topology.machines import dgx2, ndv2
from tests.foreign import OURS

#: (cost model, sketch, topology file) of our files.
OURS_TOGETHER = [
    *(("upstream", sketch, "hub-64KB") for sketch in ("hub-n1", "hub-n2", "hub-rails-n2", "hub-n3")),
    ("upstream", "three-n1", "three-by-hand"),
    *(
        (cost_model, sketch, topology)
        for cost_model in ("upstream", "physical")
        for sketch, topology in (
            ("ndv2-n1", "ndv2-2MB"), ("ndv2-n2", "ndv2-2MB"), ("ndv2-n4", "ndv2-2MB"),
            ("ndv2-all-n2", "ndv2-2MB"), ("dgx2-n1", "dgx2-4KB"), ("dgx2-n2", "dgx2-4KB"),
            ("dgx2-rails-n2", "dgx2-4KB"),
        )
    ),
]  # fmt: skip
#: File stems of the published tool's sketches; each fits every topology file of its machine.
SKETCHES = {
    "ndv2": (
        "sk-ndv2-n1-cUp6", "sk1-ndv2-n1", "sk1-ndv2-n2", "sk1-ndv2-n4", "sk2-ndv2-n2", "sk2-ndv2-n4",
        "sk3-ndv2-n2",
    ),
    "dgx2": ("sk-dgx2-n1", "sk1-dgx2-n1", "sk1-dgx2-n2", "sk2-dgx2-n2"),
}  # fmt: skip
SIZES = {"ndv2": ("1KB", "32KB", "1MB"), "dgx2": ("1KB", "1MB")}
PAIRS = [(s, f"topo-{m}-{size}") for m, names in SKETCHES.items() for s in names for size in SIZES[m]]

# Number of links of each sketch and topology file, derived by hand.
# Inside a node: 32 for NDv2 (16 NVLink pairs), 16 * 15 = 240 for DGX-2, 2 for our nodes of two ranks.
# The nodes of three-by-hand have 2 + 1 + 1 + 1 + 1 links.
# Each ordered pair of nodes has 1 (sk1), 64 (sk2) or 8 (sk3) links of NDv2, 8 (sk1) or 16 (sk2) of DGX-2.
# Our sketches have a link for each pair of ranks that they name, or 2 * 2 if all ranks are joined.
NUM_LINKS = {
    "sk-ndv2-n1-cUp6": 32, "sk1-ndv2-n1": 32, "sk1-ndv2-n2": 64 + 2, "sk1-ndv2-n4": 128 + 12,
    "sk2-ndv2-n2": 64 + 2 * 64, "sk2-ndv2-n4": 128 + 12 * 64, "sk3-ndv2-n2": 64 + 2 * 8,
    "sk-dgx2-n1": 240, "sk1-dgx2-n1": 240, "sk1-dgx2-n2": 480 + 2 * 8, "sk2-dgx2-n2": 480 + 2 * 16,
    "hub-n1": 2, "hub-n2": 4 + 2, "hub-rails-n2": 4 + 2 * 2, "hub-n3": 6 + 6 * 4, "three-n1": 6,
    "ndv2-n1": 32, "ndv2-n2": 64 + 2, "ndv2-n4": 128 + 12, "ndv2-all-n2": 64 + 2 * 64,
    "dgx2-n1": 240, "dgx2-n2": 480 + 2 * 4, "dgx2-rails-n2": 480 + 2 * 16,
}  # fmt: skip


def files(stem):
    """The path of one of our files."""
    (path,) = (OURS / "upstream-taccl").glob(f"*/{stem}.json")
    return path


@pytest.fixture
def published(shared_data):
    """A function from the stem of a published file to its path."""
    folder = shared_data / "upstream-taccl"

    def path(stem):
        return folder / ("topo" if stem.startswith("topo") else "sketch") / f"{stem}.json"

    return path


@pytest.fixture
def edited(tmp_path):
    """The problem of ndv2-n2 on ndv2-2MB with edits to either file."""

    def load(*, sketch=None, topology=None, **options):
        paths = []
        for stem, edit in (("ndv2-n2", sketch), ("ndv2-2MB", topology)):
            content = json.loads(files(stem).read_text())
            if edit is not None:
                edit(content)
            path = tmp_path / f"{stem}.json"
            path.write_text(json.dumps(content))
            paths.append(path)
        return load_problem(*paths, **options)

    return load


def cost_us(problem, src, dst):
    """Time in us of sending one chunk from `src` to `dst` in the problem."""
    link = problem.topology.links_between(src, dst)[0]
    return problem.costs.us(problem.costs.duration(link, int(problem.costs.chunk_units[0])))


def assert_imports(sketch, topology, cost_model):
    """Assert that the sketch applies to the topology file, for three collectives, with its symmetry."""
    read = load_sketch(sketch)
    for name, per_rank in (("allgather", 1), ("alltoall", None), ("allreduce", 1)):
        problem = load_problem(sketch, topology, collective=name, cost_model=cost_model)
        ranks = problem.topology.num_ranks
        assert len(problem.links_allowed) == NUM_LINKS[sketch.stem]
        assert problem.collective.num_chunks == ranks * read.chunks.per_rank * (per_rank or ranks)
        assert len(problem.clauses.symmetry) == len(read.symmetry)
        assert problem.clauses.direct_crossing == (problem.topology.num_nodes > 1)
        assert problem.topology.cost_model == cost_model


@pytest.mark.parametrize(("cost_model", "sketch", "topology"), OURS_TOGETHER)
def test_every_file_imports(sketch, topology, cost_model):
    """Each of our sketches applies to its topology file."""
    assert_imports(files(sketch), files(topology), cost_model)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sketch", "topology", "cost_model"),
    [(*pair, "upstream") for pair in PAIRS]
    + [(*pair, "physical") for pair in PAIRS if pair[1].endswith("1MB")],
)
def test_every_published_file_imports(published, sketch, topology, cost_model):
    """Each published sketch applies to each topology file of its machine.

    The cost model `physical` ignores the file's costs.
    """
    assert_imports(published(sketch), published(topology), cost_model)


# (sketch, topology file, src, dst, cost of one chunk in the file's unit)
COSTS = [
    ("hub-n2", "hub-64KB", 0, 1, "5"),  # int(5.5)
    ("hub-n2", "hub-64KB", 0, 3, "19.5"),  # 7.5 + int(12 * 1 link / 1 NIC)
    ("hub-n3", "hub-64KB", 0, 1, "5"),  # int(1 + 4 / 1 plane)
    ("hub-n3", "hub-64KB", 1, 4, "55.5"),  # 7.5 + int(12 * 4 / 1)
    ("ndv2-n2", "ndv2-2MB", 0, 1, "12"),  # double NVLink, int(12.5)
    ("ndv2-n2", "ndv2-2MB", 0, 2, "22"),  # single
    ("ndv2-n2", "ndv2-2MB", 2, 13, "64.25"),  # 3.25 + int(61 * 1 / 1)
    ("ndv2-all-n2", "ndv2-2MB", 3, 12, "3907.25"),  # 3.25 + int(61 * 64 / 1) = 3.25 + 3904
    ("dgx2-n1", "dgx2-4KB", 0, 5, "6"),  # int(2.5 + 3.75 / 1)
    ("dgx2-n2", "dgx2-4KB", 4, 23, "42"),  # 40 + int(5.5 * 4 / 8) = 40 + int(2.75)
    ("dgx2-rails-n2", "dgx2-4KB", 0, 16, "51"),  # 40 + int(5.5 * 16 / 8)
]
PUBLISHED_COSTS = [
    ("sk1-ndv2-n2", "topo-ndv2-1MB", 0, 1, "23"),  # double NVLink
    ("sk1-ndv2-n2", "topo-ndv2-1MB", 0, 2, "46"),  # single
    ("sk1-ndv2-n2", "topo-ndv2-1MB", 0, 9, "107.6"),  # 2.6 + int(105 * 1 link / 1 NIC)
    ("sk2-ndv2-n2", "topo-ndv2-1KB", 0, 1, "32"),  # int(32.25)
    ("sk2-ndv2-n2", "topo-ndv2-1KB", 0, 2, "34"),  # int(34.50)
    ("sk2-ndv2-n2", "topo-ndv2-1KB", 3, 12, "916"),  # 260 + int(10.25 * 64 / 1) = 260 + 656
    ("sk3-ndv2-n2", "topo-ndv2-32KB", 3, 11, "288"),  # 26 + int(32.8 * 8) = 26 + 262
    ("sk1-dgx2-n1", "topo-dgx2-1MB", 0, 5, "8"),  # int(0.3 + 8 / 1 plane)
    ("sk1-dgx2-n2", "topo-dgx2-1MB", 1, 16, "107.6"),  # 2.6 + int(105 * 8 / 8)
    ("sk2-dgx2-n2", "topo-dgx2-1KB", 0, 5, "31"),  # int(30 + 1)
    ("sk2-dgx2-n2", "topo-dgx2-1KB", 0, 16, "280"),  # 260 + int(10.25 * 16 / 8) = 260 + 20
]


@pytest.mark.parametrize(("sketch", "topology", "src", "dst", "expected"), COSTS)
@pytest.mark.parametrize("chunk_size", [None, "1MiB", 12345])
def test_cost_of_a_chunk(sketch, topology, src, dst, expected, chunk_size):
    """A chunk's cost is the published tool's, for any given chunk size."""
    problem = load_problem(files(sketch), files(topology), chunk_size=chunk_size)
    assert cost_us(problem, src, dst) == Fraction(expected)


@pytest.mark.parametrize(("sketch", "topology", "src", "dst", "expected"), PUBLISHED_COSTS)
def test_cost_of_a_chunk_of_published_files(published, sketch, topology, src, dst, expected):
    """A chunk's cost is the published tool's, for the files that it ships."""
    problem = load_problem(published(sketch), published(topology))
    assert cost_us(problem, src, dst) == Fraction(expected)


def test_six_merged_chunks_pay_alpha_once():
    """Six chunks merged in one send between nodes pay alpha once: 3.25 + 6 * 61 = 369.25 us."""
    problem = load_problem(files("ndv2-n2"), files("ndv2-2MB"))
    link = problem.topology.links_between(2, 13)[0]
    units = 6 * int(problem.costs.chunk_units[0])
    assert problem.costs.us(problem.costs.duration(link, units)) == Fraction("369.25")
    assert problem.clauses.max_merge == 6
    assert problem.clauses.merging == frozenset(problem.topology.internode_links)


def test_unknown_size():
    """Without a chunk size, bandwidths in GB/s are unknown."""
    sketch, topology = files("ndv2-n2"), files("ndv2-2MB")
    assert load_problem(sketch, topology).size_bytes is None
    assert load_problem(sketch, topology, chunk_size="1MiB").size_bytes == 16 * 2**20
    assert load_problem(sketch, topology, size="16MB").chunk_bytes[0] == 10**6


def test_time_unit():
    """If the unit is a hundredth of a microsecond, a cost of 3907.25 is 39.0725 us."""
    problem = load_problem(files("ndv2-all-n2"), files("ndv2-2MB"), time_unit_us="0.01")
    assert cost_us(problem, 0, 8) == Fraction("39.0725")


def test_switch_ports():
    """The DGX-2 topology has 16 output and 16 input ports beside 240 links; a send holds its link and two
    ports."""
    topology = load_problem(files("dgx2-n1"), files("dgx2-4KB")).topology
    assert len(topology.resources) == 240 + 32
    assert len(topology.holds) == 3 * 240
    out = {h.resource for e in topology.links_from[3] for h in topology.holds_of_link[e]}
    assert len(out) == 15 + 1 + 15  # its links, its port out, the ports into the others


def test_no_ports_without_a_switch():
    """NDv2's links hold only themselves, between two nodes too."""
    topology = load_problem(files("ndv2-n2"), files("ndv2-2MB")).topology
    assert len(topology.holds) == len(topology.links)


def test_remote_ports_beyond_two_nodes():
    """With four nodes, rank 2 sends to three nodes through one port, and rank 5 receives through one."""
    topology = load_problem(files("ndv2-n4"), files("ndv2-2MB")).topology
    assert len(topology.resources) == 140 + 8
    shared = [
        {h.resource for h in topology.holds_of_link[e]}
        for e in topology.links_from[2] if topology.is_internode(e)
    ]  # fmt: skip
    assert len(shared) == 3
    assert len(set.intersection(*shared)) == 1
    hold = topology.holds_of_link[topology.internode_links[0]]
    assert {(h.alpha_us, h.beta_us_per_mb) for h in hold} == {(Fraction("3.25"), Fraction(61))}


def test_equal_switches_are_planes(tmp_path):
    """Two equal switches are two planes: two links per pair, int(2.5 + 3.75 / 2) = 4 each, with separate
    ports."""
    content = json.loads(files("dgx2-n1").read_text())
    content["intranode_sketch"]["switches"] *= 2
    content["intranode_sketch"]["switch_hyperedge_strategy"] *= 2
    path = tmp_path / "planes.json"
    path.write_text(json.dumps(content))
    problem = load_problem(path, files("dgx2-4KB"))
    assert len(problem.links_allowed) == 2 * 240
    assert len(problem.topology.resources) == 2 * (240 + 32)
    assert cost_us(problem, 0, 1) == 4


def test_disjoint_switches(tmp_path):
    """Two switches of eight ranks have ports only for links within a switch.

    Links between the switches hold no port. A chunk takes int(2.5 + 3.75) = 6 us on them.
    """
    content = json.loads(files("dgx2-n1").read_text())
    content["intranode_sketch"].update(
        switches=[list(range(8)), list(range(8, 16))], switch_hyperedge_strategy=["uc-min", "uc-max"]
    )
    content["symmetry_offsets"] = []
    path = tmp_path / "disjoint.json"
    path.write_text(json.dumps(content))
    problem = load_problem(path, files("dgx2-4KB"))
    assert [len(p.links) for p in problem.clauses.switch_policies] == [56, 56]
    assert len(problem.topology.holds) == 240 + 2 * (56 + 56)
    assert cost_us(problem, 0, 9) == 6


@pytest.mark.parametrize(
    ("strategy", "expected"), [("none", "free"), ("minmax", "min-max"), ("maxmin", "max-min")]
)
def test_strategies(edited, strategy, expected):
    """Each strategy in a sketch of the published tool sets our clause on the balance of link use
    (`link_use`)."""
    problem = edited(sketch=lambda s: s["intranode_sketch"].update(strategy=strategy))
    assert problem.clauses.link_use == expected
    assert problem.clauses.objective_weight == Fraction(1, 100)


def test_sketch_in_our_terms():
    """dgx2-n2 keeps its relays, order, policy and chunks per rank."""
    sketch = load_sketch(files("dgx2-n2"))
    assert sketch.internode.connections[4] == (7,)
    assert sketch.internode.relays[4] == (4, 5, 6, 7)
    assert sketch.internode.own_before_relayed
    assert [(s.policy, len(s.ranks)) for s in sketch.switch] == [("min-connections", 16)]
    assert sketch.chunks.per_rank == 2
    assert [(e.offset, e.group) for e in sketch.symmetry] == [(4, 16), (16, 32)]
    assert "weight = 0.01" in sketch.to_toml()  # which is the default, but the file states it


def test_upstream_sketch_on_our_machine():
    """An imported sketch applies to any topology that fits."""
    sketch = load_sketch(files("dgx2-rails-n2"))
    problem = sketch.apply(dgx2(2), collectives.alltoall(32), chunk_size="1KB")
    assert len(problem.links_allowed) == 480 + 32


def test_our_sketch_on_an_upstream_topology(edited):
    """A shipped sketch may be given in place of a file of the published tool; its chunk size applies."""
    ours = load_problem("ndv2/sk1", files("ndv2-2MB"))
    theirs = edited(sketch=lambda s: s["internode_sketch"].update(internode_conn={"0": [1]}))
    assert ours.topology == theirs.topology
    assert ours.chunk_bytes[0] == 10**6


def test_nodes_rescale():
    """The two-node sketch on four nodes is the four-node sketch."""
    two = load_problem(files("ndv2-n2"), files("ndv2-2MB"), nodes=4)
    four = load_problem(files("ndv2-n4"), files("ndv2-2MB"))
    assert two.topology == four.topology
    assert two.clauses.symmetry == four.clauses.symmetry


def test_physical_machine_and_size():
    """The file's name gives machine and chunk size (2 * 2**20 bytes); its costs are ignored."""
    problem = load_problem(files("ndv2-n2"), files("ndv2-2MB"), cost_model="physical")
    assert problem.topology == ndv2(2, profile="taccl")
    assert problem.chunk_bytes[0] == 2 * 2**20
    assert "its costs are replaced by" in problem.notes[-1]


def test_physical_size_may_be_given():
    """A given chunk size overrides the file's name."""
    problem = load_problem(files("ndv2-n2"), files("ndv2-2MB"), cost_model="physical", chunk_size="1MB")
    assert problem.chunk_bytes[0] == 10**6


def test_custom_matrices(tmp_path):
    """Matrices of a custom topology are indexed [destination][source].

    A value 2 in `links` is two links, and the betas have the same order.
    """
    path = tmp_path / "custom.json"
    path.write_text(
        '{"name": "mine", "gpus_per_node": 2, "alpha": 1, "links": [[0, 2], [1, 0]],'
        ' "betas": [[0, 3], [4, 0]], "invbws": [[0, 4.5], [5.5, 0]]}'
    )
    topology = load_upstream_topology(path)
    assert len(topology.links_between(1, 0)) == 2
    assert len(topology.links_between(0, 1)) == 1
    assert topology.links[topology.links_between(1, 0)[0]].beta_us_per_mb == 4
    assert topology.links[topology.links_between(0, 1)[0]].beta_us_per_mb == 5


def test_custom_file():
    """Two links from 0 to 1, none from 2 to 1; costs are indexed [destination][source], and truncated."""
    topology = load_upstream_topology(files("three-by-hand"))
    found = {(e.src, e.dst): e.beta_us_per_mb for e in topology.links}
    assert found == {(1, 0): 4, (2, 0): 3, (0, 1): 7, (0, 2): 9, (1, 2): 4}
    assert len(topology.links_between(0, 1)) == 2


def test_any_other_name_is_all_to_all(tmp_path):
    """A file with one cost and no machine's name joins all ranks of a node."""
    path = tmp_path / "hub.json"
    path.write_text(
        '{"name": "hub", "gpus_per_node": 3, "alpha": 1, "node_betas_list": [3], "node_invbws_list": [4]}'
    )
    assert len(load_upstream_topology(path).links) == 6


def test_machine_overrides_the_files_nics(edited):
    """NDv2 has one NIC, whatever the file says."""
    assert cost_us(edited(topology=lambda t: t.update(nics_per_node=9)), 2, 13) == Fraction("64.25")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda s: s["intranode_sketch"].update(strategy="fast"),
            r"intranode_sketch\.strategy: found 'fast'",
        ),
        (lambda s: s.pop("intranode_sketch"), r"intranode_sketch: found nothing"),
        (lambda s: s.pop("internode_sketch"), "found nnodes 2 and no internode_sketch"),
        (lambda s: s.update(nnodes="2"), r"nnodes: found '2'"),
        (
            lambda s: s["internode_sketch"].update(strategy="switch"),
            r"internode_sketch\.strategy: found 'switch'",
        ),
        (
            lambda s: s["internode_sketch"].update(internode_conn="x"),
            r"internode_sketch\.internode_conn: found 'x'",
        ),
        (
            lambda s: s["internode_sketch"].update(internode_conn={"0": [9]}),
            r"internode_conn: rank 9 does not exist",
        ),
        (
            lambda s: s["internode_sketch"].update(internode_conn={"0": [1], "1": [2, 3]}),
            r"internode_conn: found senders with 1 and with 2 receivers",
        ),
        (lambda s: s["internode_sketch"].update(enforce_orderng=True), "did you mean 'enforce_ordering'"),
        (
            lambda s: s["internode_sketch"].update(gpus_to_sender_rev_map={"2": [2]}),
            r"gpus_to_sender_rev_map: chunk 0",
        ),
        (
            lambda s: s.update(symmetry_offsets=[[1, 8]]),
            r"symmetry_offsets\[0\]: offset 1 .*0->1 \(12 us/MB\)",
        ),
        (lambda s: s.update(symmetry_offsets=[[8]]), r"symmetry_offsets\[0\]\[1\]: found nothing"),
        (lambda s: s["hyperparameters"].update(input_chunkup=0), r"hyperparameters\.input_chunkup: found 0"),
        (
            lambda s: s["intranode_sketch"].update(strategy="switch"),
            r"intranode_sketch: found 0 switches and 0 entries",
        ),
        (
            lambda s: s["intranode_sketch"].update(
                strategy="switch", switches=[[0, 1]], switch_hyperedge_strategy=["min"]
            ),
            r"intranode_sketch\.switch_hyperedge_strategy\[0\]: found 'min'; expected 'uc-min' or 'uc-max'",
        ),
        (
            lambda s: s["intranode_sketch"].update(
                strategy="switch", switches=[[0, 1], [1, 2]], switch_hyperedge_strategy=["uc-min"] * 2
            ),
            r"intranode_sketch\.switches: .*equal or disjoint",
        ),
    ],
)
def test_wrong_sketch_file(edited, edit, message):
    """The error for a wrong field of a sketch file names the field as in the file."""
    with pytest.raises(SketchError, match=rf"ndv2-n2\.json: (.*)?{message}"):
        edited(sketch=edit)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda t: t.pop("alpha"), "alpha: found nothing"),
        (lambda t: t.update(alpha=-1), "alpha: found -1; expected a number that is not negative"),
        (lambda t: t.update(alpha=None), "alpha: found None; expected a number"),
        (lambda t: t.update(remote_beta="105"), "remote_beta: found '105'; expected a number"),
        (lambda t: t.pop("remote_beta"), "remote_beta: found nothing"),
        (lambda t: t.update(remote_beta=0), "remote_beta: the published tool truncates costs"),
        (
            lambda t: t.update(node_invbws_list=[0.9, 46]),
            "node_invbws_list: the published tool truncates costs",
        ),
        (lambda t: t.update(node_betas_list=[23]), "node_betas_list: found 1 entries; expected 2"),
        (lambda t: t.pop("node_betas_list"), "found no node_betas_list"),
        (lambda t: t.update(gpus_per_node=4), "gpus_per_node: found 4; expected 8"),
        (lambda t: t.update(links=[[0]]), "found no betas; expected links and betas and invbws"),
        (lambda t: t.update(gpu_per_node=8), "did you mean 'gpus_per_node'"),
    ],
)
def test_wrong_topology_file(edited, edit, message):
    """A wrong cost, shape or field is named with the file."""
    with pytest.raises(TopologyError, match=rf"ndv2-2MB\.json: (.*)?{message}"):
        edited(topology=edit)


def test_huge_topology_is_refused(tmp_path):
    """A file that asks for more links than memory holds fails before it builds them."""
    path = tmp_path / "huge.json"
    path.write_text(
        '{"name": "hub", "gpus_per_node": 1000000, "alpha": 1, "node_betas_list": [3],'
        ' "node_invbws_list": [4]}'
    )
    with pytest.raises(TopologyError, match="gpus_per_node"):
        load_upstream_topology(path)


def test_swapped_files():
    """A sketch given as topology, and the reverse, is reported as such."""
    with pytest.raises(
        TopologyError, match="found a sketch of the published TACCL tool; expected a topology"
    ):
        load_problem(files("ndv2-n2"), files("ndv2-n2"))
    with pytest.raises(SketchError, match="found a topology of the published TACCL tool; expected a sketch"):
        load_sketch(files("ndv2-2MB"))


def test_sketch_of_another_machine():
    """A DGX-2 sketch on an NDv2 topology is refused, as its switch names ranks that NDv2 lacks."""
    with pytest.raises(
        SketchError, match=r"dgx2-n2\.json: intranode_sketch\.switches.*rank 8 does not exist"
    ):
        load_problem(files("dgx2-n2"), files("ndv2-2MB"))


@pytest.mark.parametrize(
    ("name", "message"),
    [("mine", "expected a name that starts with NDv2 or DGX2"), ("NDv2", "which states no chunk size")],
)
def test_physical_needs_a_machine_and_a_size(edited, name, message):
    """A name that stands for no machine has no physical costs; one without a size needs the chunk size."""
    with pytest.raises(TopologyError, match=f"name: found '{name}'.*{message}"):
        edited(topology=lambda t: t.update(name=name), cost_model="physical")


def test_sketch_without_connections():
    """Under the upstream cost model the sketch must give the links between nodes."""
    with pytest.raises(SketchError, match="internode: found nothing; expected connections between nodes"):
        load_problem(Sketch(nodes=2), files("ndv2-2MB"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cost_model": "real"}, "cost_model: found 'real'"),
        ({"chunk_size": "1MB", "size": "1MB"}, "give one"),
        ({"time_unit_us": 0}, "time_unit_us: found 0"),
        ({"time_unit_us": 1, "cost_model": "physical"}, "time_unit_us: .*leave it out"),
        ({"collective": "allgathr"}, "collective: found 'allgathr'"),
        ({"root": 3}, "root: allgather has no root"),
    ],
)
def test_wrong_argument(edited, options, message):
    """The error for a wrong argument of a reader names the argument."""
    with pytest.raises(InputError, match=message):
        edited(**options)


def test_several_nodes_need_a_sketch():
    """A topology file alone has no links between nodes; asked for two nodes, the error says to give a sketch."""
    path = next((OURS / "upstream-taccl" / "topo").glob("*.json"))
    with pytest.raises(
        TopologyError, match="found 2 nodes; expected one, as only a sketch connects the nodes"
    ):
        load_upstream_topology(path, nodes=2)
