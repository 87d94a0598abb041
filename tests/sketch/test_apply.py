"""A sketch on a topology and a collective: its clauses as links and ranks."""

import pytest

from taccl import collectives
from taccl.errors import CollectiveError, InputError, SketchError
from taccl.problem.problem import make_problem
from taccl.sketch.sketch import Sketch
from taccl.topology.builder import TopologyBuilder
from taccl.topology.machines import dgx2, ndv2


def read(text):
    """A sketch from the body of a TOML file."""
    return Sketch.from_toml(f"schema = 1\n{text}", source="a.toml")


def apply(text, topology=None, name="allgather", **options):
    """The problem of a sketch, by default on two NDv2 nodes."""
    topology = ndv2(2) if topology is None else topology
    return read(text).apply(topology, collectives.make(name, topology.num_ranks, **options), chunk_size="1MB")


def internode_pairs(problem):
    """Pairs of ranks that may still talk across nodes."""
    topology = problem.topology
    return {
        (topology.links[e].src, topology.links[e].dst)
        for e in problem.links_allowed
        if topology.is_internode(e)
    }


def pair_of(problem, link):
    """The ends of a link."""
    return problem.topology.links[link].src, problem.topology.links[link].dst


def test_no_sketch_is_the_plain_problem():
    """`Sketch()` adds nothing to what `make_problem` gives."""
    topology, collective = ndv2(2), collectives.allgather(16)
    problem = Sketch().apply(topology, collective, chunk_size="1MB")
    assert problem == make_problem(topology, collective, chunk_bytes=10**6)


@pytest.mark.parametrize("collective", ["allgather", "reduce-scatter", "allreduce"])
def test_no_sketch_is_the_plain_problem_on_one_node(collective):
    """Without nodes between which sends merge, and for sums so small that sends in a node merge."""
    problem = Sketch().apply(dgx2(), collective, size=16_000)
    assert problem == make_problem(dgx2(), collective, size_bytes=16_000)


def test_size_instead_of_chunk_size():
    """An allgather of 16 ranks and 16 MB has chunks of 1 MB."""
    problem = Sketch().apply(ndv2(2), collectives.allgather(16), size="16MB")
    assert problem.chunk_bytes[0] == 10**6


def test_a_size_for_every_chunk():
    """Chunks may have their own sizes."""
    problem = Sketch().apply(ndv2(1), collectives.allgather(8), chunk_size=[1, 2, 3, 4, 5, 6, 7, 8])
    assert problem.chunk_bytes == (1, 2, 3, 4, 5, 6, 7, 8)


def test_size_of_the_file():
    """Without an argument, the file's chunk size holds."""
    problem = read("[chunks]\nsize = '2KB'").apply(ndv2(1), collectives.allgather(8))
    assert problem.chunk_bytes[0] == 2000


def test_argument_beats_the_file():
    """With one, the argument holds."""
    problem = read("[chunks]\nsize = '2KB'").apply(ndv2(1), collectives.allgather(8), chunk_size="1KB")
    assert problem.chunk_bytes[0] == 1000


def test_two_sizes_clash():
    """A chunk size and a size cannot both hold."""
    with pytest.raises(SketchError, match="give one"):
        Sketch().apply(ndv2(1), collectives.allgather(8), chunk_size="1MB", size="8MB")


def test_no_size():
    """Without any size there is no problem."""
    with pytest.raises(SketchError, match=r"a\.toml: chunks\.size: found no size"):
        read("").apply(ndv2(1), collectives.allgather(8))


@pytest.mark.parametrize("bad", ["0", "1 banana", -1])
def test_wrong_size(bad):
    """A size that is none is named as the argument."""
    with pytest.raises(InputError, match="^chunk_size: "):
        Sketch().apply(ndv2(1), collectives.allgather(8), chunk_size=bad)


def test_collective_of_another_size():
    """A collective over 8 ranks does not fit 16."""
    with pytest.raises(CollectiveError, match="over 8 ranks"):
        Sketch().apply(ndv2(2), collectives.allgather(8), chunk_size=1)


def test_connections_hold_for_every_ordered_pair_of_nodes():
    """0 -> 1 over two nodes of 8 is 0 -> 9 and 8 -> 1."""
    problem = apply("[internode]\nconnections = {0 = [1]}")
    assert internode_pairs(problem) == {(0, 9), (8, 1)}
    assert len(problem.links_allowed) == 64 + 2


def test_direct_map():
    """Rank i talks to rank i of the other node."""
    pairs = internode_pairs(apply("[internode]\nconnections = 'direct-map'"))
    assert pairs == {(i, i + 8) for i in range(8)} | {(i + 8, i) for i in range(8)}


def test_fully_connected_leaves_every_link():
    """All 64 pairs in both directions, and so no restriction."""
    problem = apply("[internode]\nconnections = 'fully-connected'")
    assert len(internode_pairs(problem)) == 128
    assert problem.clauses.links_allowed is None


def test_relays():
    """On 1@A -> 0@B go chunks that start at ranks 0 and 1 of A, or are rooted at ranks 0 and 1 of B."""
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


def test_sender_without_relays_carries_anything():
    """A sender that relays does not name is not restricted."""
    text = "[internode]\nconnections = {0 = [1], 2 = [3]}\nrelays = {0 = [0]}"
    assert {pair_of(apply(text), e) for e in apply(text).clauses.carries_from} == {(0, 9), (8, 1)}


def test_own_before_relayed():
    """The clause holds on every connection."""
    problem = apply("[internode]\nconnections = {0 = [1]}\nown_before_relayed = true")
    assert {pair_of(problem, e) for e in problem.clauses.own_first} == {(0, 9), (8, 1)}


def test_crossing():
    """Direct by default where the sketch speaks of nodes; free otherwise."""
    assert apply("[internode]").clauses.direct_crossing
    assert not apply("[internode]\ncrossing = 'any'").clauses.direct_crossing
    assert not apply("").clauses.direct_crossing


def test_intranode_links():
    """Only the named pairs remain inside every node."""
    ring = [0, 1, 3, 2, 6, 7, 5, 4]
    pairs = [[ring[i], ring[(i + 1) % 8]] for i in range(8)]
    problem = apply(f"[intranode]\nlinks = {pairs}")
    inside = [e for e in problem.links_allowed if not problem.topology.is_internode(e)]
    assert len(inside) == 16


def test_switch_policy_for_every_node():
    """One policy for each node's switch, over its 16 * 15 links."""
    problem = apply(
        f"[[switch]]\nname = 'NVSwitch'\nranks = {list(range(16))}\npolicy = 'min-connections'", dgx2(2)
    )
    policies = problem.clauses.switch_policies
    assert [(p.name, p.policy, len(p.links)) for p in policies] == [
        ("NVSwitch of node 0", "min-connections", 240), ("NVSwitch of node 1", "min-connections", 240)
    ]  # fmt: skip


def test_free_switch_asks_for_nothing():
    """A policy of free is no term of the objective."""
    assert apply("[[switch]]\nranks = [0, 1]").clauses.switch_policies == ()


def test_planes_limit_parallel_links():
    """A switch of two planes uses two of three parallel links."""
    builder = TopologyBuilder("planes", [0, 0])
    for src, dst in ((0, 1), (1, 0)) * 3:
        builder.add_link(src, dst, alpha_us=1, beta_us_per_mb=1)
    problem = apply("[[switch]]\nranks = [0, 1]\nplanes = 2", builder.build())
    assert problem.links_allowed == (0, 1, 2, 3)


def test_merging():
    """Sends between nodes merge six chunks by default; a sketch may say otherwise."""
    default, every, none = (
        apply(f"[merging]\n{text}").clauses for text in ("", "links='all'\nmax=3", "links='none'")
    )
    assert (default.max_merge, len(default.merging)) == (6, 128)
    assert (every.max_merge, len(every.merging)) == (3, 64 + 128)
    assert (none.max_merge, len(none.merging)) == (1, 0)


def test_merging_only_where_links_may_be_used():
    """Links that the connections drop do not merge."""
    assert len(apply("[internode]\nconnections = {0=[1]}").clauses.merging) == 2


def test_objective_and_slack():
    """Numbers arrive as the fractions that a person means."""
    clauses = apply("[objective]\nlink_use = 'min-max'\nweight = 0.3\n[routing]\nslack = 0.2").clauses
    assert (clauses.link_use, str(clauses.objective_weight), str(clauses.routing_slack)) == (
        "min-max",
        "3/10",
        "1/5",
    )


def test_where_names_file_and_field():
    """Clauses remember the file and the field that they came from."""
    where = apply("[internode]\nconnections = {0=[1]}\n[[symmetry]]\noffset=8\ngroup=16").clauses.where
    assert where["internode.connections"] == "a.toml: internode.connections"
    assert where["symmetry[0]"] == "a.toml: symmetry[0]"


def test_symmetry_becomes_a_permutation():
    """Offset 8 in 16 swaps the two nodes."""
    clauses = apply("[[symmetry]]\noffset = 8\ngroup = 16").clauses
    assert clauses.symmetry == (tuple((r + 8) % 16 for r in range(16)),)


def test_symmetry_is_dropped_for_a_root():
    """Broadcast has a root, which a swap of nodes would move; the notes say so."""
    problem = apply("[[symmetry]]\noffset = 8\ngroup = 16", name="broadcast")
    assert problem.clauses.symmetry == ()
    assert problem.notes == ("symmetry offset 8 in groups of 16 dropped: broadcast has a root",)


def test_symmetry_is_narrowed():
    """Roots 0 and 8 of DGX-2 allow offset 8 of the group that offset 2 generates."""
    problem = apply("[[symmetry]]\noffset = 2\ngroup = 16", dgx2(1), "multi-root-broadcast", roots=(0, 8))
    assert problem.clauses.symmetry == (tuple((r + 8) % 16 for r in range(16)),)
    assert problem.notes[0].startswith("symmetry offset 2 in groups of 16 narrowed to offset 8:")


def test_strict_symmetry_is_refused():
    """With strict = true the same is an error."""
    with pytest.raises(SketchError, match=r"a\.toml: symmetry\[0\]: offset 8 .* broadcast has a root"):
        apply("[[symmetry]]\noffset = 8\ngroup = 16\nstrict = true", name="broadcast")


def test_symmetry_that_the_topology_lacks():
    """The message has a pair of ranks that shows it, at the 23 and 46 us/MB of NDv2's links."""
    with pytest.raises(
        SketchError,
        match=r"a\.toml: symmetry\[0\]: offset 1 in groups of 8 maps link 0->1 \(23 us/MB\) to 1->2, "
        "which has 46 us/MB",
    ):
        apply("[[symmetry]]\noffset = 1\ngroup = 8")


def test_symmetry_that_the_connections_lack():
    """Offset 4 in 8 is NDv2's, but it would have rank 4 send where only rank 0 may."""
    with pytest.raises(SketchError, match=r"0->9 .*internode\.connections.*4->13"):
        apply("[internode]\nconnections = {0=[1]}\n[[symmetry]]\noffset = 4\ngroup = 8")


def test_symmetry_that_the_relays_lack():
    """Links 1->16 and 3->18 map to each other, what they carry does not."""
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
    """The message names the missing part of the topology, with the file and the field."""
    with pytest.raises(SketchError, match=rf"^a\.toml: {message}"):
        apply(text)


def test_connections_are_checked_on_one_node_too():
    """A wrong local rank does not hide until there are two nodes."""
    with pytest.raises(SketchError, match="rank 9 does not exist"):
        apply("[internode]\nconnections = {0=[9]}", ndv2(1))


def test_connection_without_a_link():
    """A pair of ranks that no link joins is named."""
    builder = TopologyBuilder("two", [0, 0, 1, 1])
    for src, dst in ((0, 1), (1, 0), (2, 3), (3, 2), (0, 2), (2, 0)):
        builder.add_link(src, dst, alpha_us=1, beta_us_per_mb=1)
    with pytest.raises(SketchError, match="found 0 -> 1, but two has no link from rank 0 to rank 3"):
        apply("[internode]\nconnections = {0=[1]}", builder.build())


def test_partitioning_of_the_collective_holds():
    """A collective that was made with another partitioning is used as it is, and the notes say so."""
    problem = apply("[chunks]\nper_rank = 2", chunks_per_rank=1)
    assert problem.collective.num_chunks == 16
    assert "the sketch asks for 2" in problem.notes[0]


def test_machine_may_be_spelt_with_a_dash():
    """DGX_A100 and dgx-a100 are one machine."""
    from taccl.topology.machines import dgx_a100

    apply("machine = 'DGX_A100'", dgx_a100(1))
