"""A sketch on a topology and a collective: its clauses as links and ranks."""

import pytest

from taccl import collectives
from taccl.errors import CollectiveError, InputError, SketchError
from taccl.problem.making import make_problem
from taccl.sketch.sketch import Sketch
from taccl.topology.builder import TopologyBuilder
from taccl.topology.machines import dgx2, ndv2
from tests.synthesis.small_problems import linked


def read(text):
    """A sketch from the body of a TOML file."""
    return Sketch.from_toml(f"schema = 1\n{text}", source="a.toml")


def apply(text, topology=None, name="allgather", **options):
    """The problem of a sketch, by default on two NDv2 nodes."""
    topology = ndv2(2) if topology is None else topology
    return read(text).apply(topology, collectives.make(name, topology.num_ranks, **options), chunk_size="1MB")


def internode_pairs(problem):
    """Pairs of ranks in different nodes whose links are still allowed."""
    topology = problem.topology
    return {
        (topology.links[e].src, topology.links[e].dst)
        for e in problem.links_allowed
        if topology.is_internode(e)
    }


def pair_of(problem, link):
    """Sources and destinations of a link."""
    return problem.topology.links[link].src, problem.topology.links[link].dst


def test_no_sketch_is_the_plain_problem():
    """`Sketch()` adds nothing to what `make_problem` gives."""
    topology, collective = ndv2(2), collectives.allgather(16)
    problem = Sketch().apply(topology, collective, chunk_size="1MB")
    assert problem == make_problem(topology, collective, chunk_bytes=10**6)


@pytest.mark.parametrize("collective", ["allgather", "reduce-scatter", "allreduce"])
def test_no_sketch_is_the_plain_problem_on_one_node(collective):
    """On one node `Sketch()` equals the plain problem, even for sizes so small that sums merge sends in a
    node."""
    problem = Sketch().apply(dgx2(), collective, size=16_000)
    assert problem == make_problem(dgx2(), collective, size_bytes=16_000)


@pytest.mark.parametrize(
    ("text", "nodes", "sizes", "chunk_bytes"),
    [
        pytest.param("", 2, {"size": "16MB"}, 10**6, id="16 MB of 16 ranks are chunks of 1 MB"),
        pytest.param("", 1, {"chunk_size": [1, 2, 3, 4, 5, 6, 7, 8]}, 1, id="chunks have sizes of their own"),
        pytest.param("[chunks]\nsize = '2KB'", 1, {}, 2000, id="the file's size holds"),
        pytest.param(
            "[chunks]\nsize = '2KB'", 1, {"chunk_size": "1KB"}, 1000, id="an argument beats the file"
        ),
    ],
)
def test_sizes_of_chunks(text, nodes, sizes, chunk_bytes):
    """Sizes are given for all data, all chunks or each chunk, in the file or in the call."""
    problem = read(text).apply(ndv2(nodes), collectives.allgather(8 * nodes), **sizes)
    assert problem.chunk_bytes[0] == chunk_bytes
    assert len(set(problem.chunk_bytes)) == (8 if isinstance(sizes.get("chunk_size"), list) else 1)


@pytest.mark.parametrize(
    ("ranks", "sizes", "error", "message"),
    [
        (8, {"chunk_size": "1MB", "size": "8MB"}, SketchError, "give one"),
        (8, {}, SketchError, r"a\.toml: chunks\.size: found no size"),
        *((8, {"chunk_size": bad}, InputError, "^chunk_size: ") for bad in ("0", "1 banana", -1)),
        (4, {"chunk_size": 1}, CollectiveError, "over 4 ranks"),
    ],
)
def test_sizes_that_make_no_problem(ranks, sizes, error, message):
    """No size, two conflicting sizes, an invalid size, and other numbers of ranks are refused."""
    with pytest.raises(error, match=message):
        read("").apply(ndv2(1), collectives.allgather(ranks), **sizes)


@pytest.mark.parametrize(
    ("connections", "pairs", "links"),
    [
        # 0 -> 1 over two nodes of 8 ranks is 0 -> 9 and 8 -> 1.
        ("{0 = [1]}", {(0, 9), (8, 1)}, 64 + 2),
        ("'direct-map'", {(i, (i + 8) % 16) for i in range(16)}, 64 + 16),
        ("'fully-connected'", {(i, j) for i in range(16) for j in range(16) if i // 8 != j // 8}, 64 + 128),
    ],
)
def test_connections_hold_for_every_ordered_pair_of_nodes(connections, pairs, links):
    """Connections apply to every ordered pair of nodes; links inside nodes stay. Direct crossing is the
    default."""
    problem = apply(f"[internode]\nconnections = {connections}")
    assert (internode_pairs(problem), len(problem.links_allowed)) == (pairs, links)
    assert (problem.clauses.links_allowed is None) == (links == 64 + 128)


_ONE = "[internode]\nconnections = {0 = [1]}\n"


def _names(clauses):
    """(source, destination) of the NDv2 x2 links that a clause names."""
    links = ndv2(2).links
    return {(links[link].src, links[link].dst) for link in clauses}


@pytest.mark.parametrize(
    ("text", "found", "expected"),
    [
        pytest.param("[internode]", lambda c: c.direct_crossing, True, id="direct where nodes are named"),
        pytest.param("[internode]\ncrossing = 'any'", lambda c: c.direct_crossing, False, id="any crossing"),
        pytest.param("", lambda c: c.direct_crossing, False, id="free without a word of nodes"),
        pytest.param(
            f"{_ONE}own_before_relayed = true",
            lambda c: _names(c.own_first),
            {(0, 9), (8, 1)},
            id="own chunks first, on every connection",
        ),
        pytest.param(
            "[internode]\nconnections = {0 = [1], 2 = [3]}\nrelays = {0 = [0]}",
            lambda c: _names(c.carries_from),
            {(0, 9), (8, 1)},
            id="a sender that relays does not name carries anything",
        ),
        pytest.param(
            "[[switch]]\nranks = [0, 1]", lambda c: c.switch_policies, (), id="a free switch asks nothing"
        ),
        pytest.param(_ONE, lambda c: len(c.merging), 2, id="links that connections drop do not merge"),
        pytest.param("", lambda c: (c.max_merge, len(c.merging)), (6, 128), id="six merge between nodes"),
        pytest.param(
            "[merging]\nlinks = 'all'\nmax = 3",
            lambda c: (c.max_merge, len(c.merging)),
            (3, 64 + 128),
            id="all merge",
        ),
        pytest.param(
            "[merging]\nlinks = 'none'", lambda c: (c.max_merge, len(c.merging)), (1, 0), id="none merge"
        ),
        pytest.param(
            "[objective]\nlink_use = 'min-max'\nweight = 0.3\n[routing]\nslack = 0.2",
            lambda c: (c.link_use, str(c.objective_weight), str(c.routing_slack)),
            ("min-max", "3/10", "1/5"),
            id="numbers are the fractions that a person means",
        ),
        pytest.param(
            f"{_ONE}[[symmetry]]\noffset = 8\ngroup = 16",
            lambda c: [c.where["internode.connections"], c.where["symmetry[0]"]],
            ["a.toml: internode.connections", "a.toml: symmetry[0]"],
            id="clauses remember file and field",
        ),
        pytest.param(
            "[[symmetry]]\noffset = 8\ngroup = 16",
            lambda c: c.symmetry,
            (tuple((rank + 8) % 16 for rank in range(16)),),
            id="offset 8 in 16 swaps the two nodes",
        ),
    ],
)
def test_clauses_of_a_sketch(text, found, expected):
    """Each field of a file gives the expected clause on two NDv2 nodes."""
    assert found(apply(text).clauses) == expected


def test_relays():
    """A relay link carries only chunks of the ranks that the sketch names for it.

    Link 1@A -> 0@B carries chunks from ranks 0 and 1 of A, or rooted at ranks 0 and 1 of B.
    """
    relays = "".join(f"{i} = [{i - 1}, {i}]\n" for i in range(1, 16, 2))
    connections = "".join(f"{i} = [{i - 1}]\n" for i in range(1, 16, 2))
    text = f"[internode.connections]\n{connections}[internode.relays]\n{relays}"
    problem = apply(text, dgx2(2), "allreduce")
    carries_from = {pair_of(problem, e): set(r) for e, r in problem.clauses.carries_from.items()}
    carries_to = {pair_of(problem, e): set(r) for e, r in problem.clauses.carries_to.items()}
    assert len(carries_from) == len(carries_to) == 16
    assert carries_from[1, 16] == {0, 1}
    assert carries_to[1, 16] == {16, 17}
    assert carries_from[19, 2] == {18, 19}
    assert carries_to[19, 2] == {2, 3}


def test_intranode_links():
    """If a sketch names pairs of local ranks, only their links remain inside every node."""
    ring = [0, 1, 3, 2, 6, 7, 5, 4]
    pairs = [[ring[i], ring[(i + 1) % 8]] for i in range(8)]
    problem = apply(f"[intranode]\nlinks = {pairs}")
    inside = [e for e in problem.links_allowed if not problem.topology.is_internode(e)]
    assert len(inside) == 16


def test_switch_policy_for_every_node():
    """A policy for a switch becomes one policy per node, each over the 16 * 15 links of the node's switch."""
    problem = apply(
        f"[[switch]]\nname = 'NVSwitch'\nranks = {list(range(16))}\npolicy = 'min-connections'", dgx2(2)
    )
    policies = problem.clauses.switch_policies
    assert [(p.name, p.policy, len(p.links)) for p in policies] == [
        ("NVSwitch of node 0", "min-connections", 240), ("NVSwitch of node 1", "min-connections", 240)
    ]  # fmt: skip


def test_planes_limit_parallel_links():
    """A switch of two planes uses two of three parallel links."""
    topology = linked("planes", [0, 0], ((0, 1), (1, 0)) * 3, alpha_us=1, beta_us_per_mb=1)
    problem = apply("[[switch]]\nranks = [0, 1]\nplanes = 2", topology)
    assert problem.links_allowed == (0, 1, 2, 3)


def test_symmetry_is_dropped_for_a_root():
    """A broadcast's root is not symmetric under a swap of nodes: the symmetry is dropped, with a note."""
    problem = apply("[[symmetry]]\noffset = 8\ngroup = 16", name="broadcast")
    assert problem.clauses.symmetry == ()
    assert problem.notes == ("symmetry offset 8 in groups of 16 dropped: broadcast has a root",)


def test_symmetry_is_narrowed():
    """A symmetry that the collective lacks is narrowed to those of its powers that the collective has.

    On a DGX-2 with broadcast roots 0 and 8, the shift of all ranks by 2 is narrowed to the shift by 8.
    """
    problem = apply("[[symmetry]]\noffset = 2\ngroup = 16", dgx2(1), "multi-root-broadcast", roots=(0, 8))
    assert problem.clauses.symmetry == (tuple((r + 8) % 16 for r in range(16)),)
    assert problem.notes[0].startswith("symmetry offset 2 in groups of 16 narrowed to offset 8:")


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        pytest.param(
            "[[symmetry]]\noffset = 8\ngroup = 16\nstrict = true",
            "broadcast",
            r"a\.toml: symmetry\[0\]: offset 8 .* broadcast has a root",
            id="a strict one that the collective lacks",
        ),
        # The message names a link and its image, whose costs differ: 23 and 46 us/MB.
        pytest.param(
            "[[symmetry]]\noffset = 1\ngroup = 8",
            "allgather",
            r"a\.toml: symmetry\[0\]: offset 1 in groups of 8 maps link 0->1 \(23 us/MB\) to 1->2, which has 46 us/MB",
            id="one that the topology lacks",
        ),
        # The shift by 4 in groups of 8 fits NDv2, but not the connections: only rank 0 may send.
        pytest.param(
            f"{_ONE}[[symmetry]]\noffset = 4\ngroup = 8",
            "allgather",
            r"0->9 .*internode\.connections.*4->13",
            id="one that the connections lack",
        ),
    ],
)
def test_symmetries_that_do_not_hold_are_refused(text, name, message):
    """The error for a symmetry that does not hold names two links or the root that break it."""
    with pytest.raises(SketchError, match=message):
        apply(text, name=name)


def test_symmetry_that_the_relays_lack():
    """A symmetry of the links is refused if the relays lack it.

    Links 1->16 and 3->18 map to each other, but what they carry does not.
    """
    text = (
        "[internode]\nconnections = 'direct-map'\n[internode.relays]\n"
        + "".join(f"{i} = [{i}, {(i + 1) % 16 if i < 8 else i}]\n" for i in range(8))
        + "".join(f"{i} = [{i}]\n" for i in range(8, 16))
        + "[[symmetry]]\noffset = 2\ngroup = 16"
    )
    with pytest.raises(SketchError, match=r"internode\.relays differ"):
        apply(text, dgx2(2))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[internode]\nconnections = {9=[1]}",
            r"internode\.connections: rank 9 does not exist; ndv2 has local ranks 0-7",
        ),
        ("[internode]\nconnections = {0=[9]}", r"internode\.connections: rank 9 does not exist"),
        ("[internode]\nconnections = {0=[1]}\nrelays = {0=[9]}", r"internode\.relays: rank 9 does not exist"),
        ("[intranode]\nlinks = [[0, 9]]", r"intranode\.links: rank 9 does not exist"),
        (
            "[intranode]\nlinks = [[0, 7]]",
            r"intranode\.links: found 0 -> 7, but ndv2 x2 has no link from rank 0 to",
        ),
        ("[[switch]]\nranks = [0, 9]", r"switch\[0\]\.ranks: rank 9 does not exist"),
        (
            "[[switch]]\nranks = [0, 7]",
            r"switch\[0\]\.ranks: no link that may be used joins two of ranks \[0, 7\]",
        ),
        ("nodes = 4", r"nodes: found 4, but the topology ndv2 x2 has 2"),
        ("machine = 'dgx2'", r"machine: found 'dgx2', but the topology ndv2 x2 is a 'ndv2'"),
        ("[[symmetry]]\noffset = 1\ngroup = 12", r"symmetry\[0\]: .*divides the 16 ranks"),
    ],
)
def test_sketch_that_does_not_fit_the_topology(text, message):
    """The error for a sketch that does not fit names the missing part of the topology, with file and
    field."""
    with pytest.raises(SketchError, match=rf"^a\.toml: {message}"):
        apply(text)


@pytest.mark.parametrize("nodes", [1, 2])
def test_connections_are_checked_on_one_node_too(nodes):
    """An unknown local rank in connections is refused on one node, too."""
    with pytest.raises(SketchError, match="rank 9 does not exist; ndv2 has local ranks 0-7"):
        apply("[internode]\nconnections = {9=[1]}", ndv2(nodes))


def test_connection_without_a_link():
    """A pair of ranks that no link joins is named."""
    builder = TopologyBuilder("two", [0, 0, 1, 1])
    for src, dst in ((0, 1), (1, 0), (2, 3), (3, 2), (0, 2), (2, 0)):
        builder.add_link(src, dst, alpha_us=1, beta_us_per_mb=1)
    with pytest.raises(SketchError, match="found 0 -> 1, but two has no link from rank 0 to rank 3"):
        apply("[internode]\nconnections = {0=[1]}", builder.build())


def test_partitioning_of_the_collective_holds():
    """A collective object's chunks per rank override the sketch's, with a note."""
    problem = apply("[chunks]\nper_rank = 2", chunks_per_rank=1)
    assert problem.collective.num_chunks == 16
    assert "the sketch asks for 2" in problem.notes[0]


def test_machine_may_be_spelt_with_a_dash():
    """DGX_A100 and dgx-a100 in a sketch name the same machine."""
    from taccl.topology.machines import dgx_a100

    apply("machine = 'DGX_A100'", dgx_a100(1))
