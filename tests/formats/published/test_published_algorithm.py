"""Algorithms of the published tool: verified with their stated times, and re-timed in their order."""

import json
from collections import Counter
from fractions import Fraction

import pytest

from taccl import collectives
from taccl.analysis.verification.verify import verify
from taccl.errors import FormatError, InputError
from taccl.formats.published.algorithm import load_upstream_algorithm, retimed
from taccl.sketch.upstream import load_problem
from taccl.topology.builder import TopologyBuilder
from taccl.topology.fabrics import ring
from tests.foreign import OURS

OVERLAPPING = "alltoall-dgx2-n2-overlapping"
#: Figures by name: stated finish, actual finish, transfers, sends, collective.
FIGURES = ("stated", "real", "transfers", "sends", "collective")
SAMPLES = [
    ("allgather-ndv2-n2", 968, 968, 240, 234, "allgather"),
    ("allgather-dgx2-n2", Fraction("566.4"), Fraction("566.4"), 1984, 1984, "allgather"),
    ("allreduce-ndv2-n2", Fraction("1943.8"), Fraction("1943.8"), 480, 474, "allreduce"),
    (OVERLAPPING, 2759, 3594, 1504, 1309, "alltoall"),
]
#: Our own sample file whose stated sends overlap; its figures are derived in the tests.
OURS_OVERLAPPING = "alltoall-hub-n2-overlapping"
OUR_SAMPLES = [
    # 5 inside a node; then 7.5 + 2 * 12 for two chunks in one send over 2->1, and 5 for each from there to rank 0.
    ("allgather-hub-n2", Fraction("46.5"), Fraction("46.5"), 12, 11, "allgather"),
    # 5 + 19.5 to the sums; then 19.5 for each of two chunks over 0->3, and 5 for the second at rank 2.
    ("allreduce-hub-n2", Fraction("68.5"), Fraction("68.5"), 24, 24, "allreduce"),
    # 7.5 + 24 for a chunk; the second one is stated to start at 10 instead of 31.5.
    (OURS_OVERLAPPING, Fraction("41.5"), 63, 16, 16, "alltoall"),
]
INPUTS = {
    "allgather-ndv2-n2": ("sk1-ndv2-n2", "topo-ndv2-1MB"),
    "allgather-dgx2-n2": ("sk1-dgx2-n2", "topo-dgx2-1MB"),
    OVERLAPPING: ("sk2-dgx2-n2", "topo-dgx2-1KB"),
}
OUR_INPUTS = {"allgather-hub-n2": "hub-n2", OURS_OVERLAPPING: "hub-rails-n2"}


def our_path(name):
    return OURS / "upstream-taccl" / "algorithm" / f"{name}.json"


def ours(name):
    """Schedule of one of the algorithm files that are written by hand for these tests."""
    return load_upstream_algorithm(our_path(name))


@pytest.fixture(scope="module")
def samples(shared_data):
    """{name: schedule} of the algorithm files that the published tool wrote."""
    folder = shared_data / "upstream-taccl" / "algorithm"
    return {name: load_upstream_algorithm(folder / f"{name}.json") for name, *_ in SAMPLES}


def _small(copies=2, sends=None, **topology):
    """An allgather of `copies` nodes of two ranks, with costs that differ inside and between nodes.

    An inner send costs 3; n chunks from rank 0 to rank 1 of the next node cost 2 + 5n. With two nodes: 0 <->
    1 and 2 <-> 3 inside, 0 -> 3 and 2 -> 1 between nodes.
    """
    ranks = 2 * copies
    if sends is None:
        # Ranks 0 and 1 exchange; 0 sends both chunks in one send; 3 forwards them to 2; likewise in reverse.
        sends = [
            [[0, 0, 1, 0, 0], [1, 1, 0, 0, 0], [2, 2, 3, 0, 0], [3, 3, 2, 0, 0]],
            [[0, 0, 3, 30, 0], [1, 0, 3, 30, 0], [2, 2, 1, 30, 0], [3, 2, 1, 30, 0]],
            [[0, 3, 2, 150, 0], [2, 1, 0, 150, 0], [1, 3, 2, 180, 0], [3, 1, 0, 180, 0]],
        ]
    everyone = list(range(ranks))
    return {
        "sccl_type": "algorithm",
        "name": "by hand",
        "steps": [{"sccl_type": "step", "rounds": 1, "sends": each} for each in sends],
        "collective": {
            "name": f"Allgather(n={ranks})",
            "nodes": ranks,
            "chunks": [{"pre": [c], "post": everyone, "addr": c} for c in everyone],
            "ranks": [{"id": r} for r in everyone],
            "triggers": {},
        },
        "topology": {
            "name": "own",
            "copies": copies,
            "ngpus_per_node": 2,
            "node_links": [[0, 1], [1, 0]],
            "node_invbws": [[0, 3], [3, 0]],
            "remote_invbw": 7,
            "remote_alpha": 2,
            "remote_beta": 5,
            "internode_conn": {"0": [1]},
            "local_switches": [],
        }
        | topology,
    }


def _load(tmp_path, document, **options):
    path = tmp_path / "algorithm.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return load_upstream_algorithm(path, **options)


def _kinds(schedule):
    return Counter(each.kind for each in verify(schedule).violations)


def assert_figures(schedule, stated, real, transfers, sends, collective):
    """Assert an algorithm's stated finish, finish in the stated order, transfers, sends and collective."""
    assert schedule.finish == stated
    assert retimed(schedule).finish == real
    assert verify(retimed(schedule)).ok
    assert (schedule.num_transfers, schedule.num_sends) == (transfers, sends)
    assert schedule.problem.collective.name == collective
    assert schedule.problem.topology.cost_model == "upstream"
    assert schedule.problem.size_bytes is None
    verification = verify(schedule)
    assert verification.ok == (stated == real)
    assert not verification.num_redundant


@pytest.mark.parametrize(("name", *FIGURES), OUR_SAMPLES)
def test_our_samples_have_known_figures(name, stated, real, transfers, sends, collective):
    """Our samples have the figures derived by hand; the overlapping file is valid only in its own order."""
    assert_figures(ours(name), stated, real, transfers, sends, collective)


@pytest.mark.slow
@pytest.mark.parametrize(("name", *FIGURES), SAMPLES)
def test_samples_have_known_figures(samples, name, stated, real, transfers, sends, collective):
    """Every algorithm file of the published tool has the known figures."""
    assert_figures(samples[name], stated, real, transfers, sends, collective)


def test_our_overlapping_sample_is_refused_with_its_overlaps():
    """On each of the four inter-node links, the second chunk starts while the first one travels.

    Chunk 12 goes from rank 0 to rank 2 at 0, for 31.5, and chunk 8 at 10.
    """
    verification = verify(ours(OURS_OVERLAPPING))
    assert _kinds(ours(OURS_OVERLAPPING)) == {"contention": 4}
    first = verification.violations[0]
    assert (first.rank, first.chunk, first.start_us) == (0, 8, 10)
    assert "chunk 12" in first.message
    assert "until 31.5 us" in first.message


def test_overlapping_sample_is_refused_with_its_overlaps(samples):
    """Parts of merged sends start at different times: 106 sends hold a link that is already held.

    Chunk 576 goes alone from rank 0 to rank 16 at 320, for 260 + 20, and chunk 640 at 340.
    """
    verification = verify(samples[OVERLAPPING])
    assert _kinds(samples[OVERLAPPING]) == {"contention": 106}
    first = verification.violations[0]
    assert (first.rank, first.chunk, first.start_us) == (0, 640, 340)
    assert "chunk 576" in first.message
    assert "until 600 us" in first.message


def assert_notes(schedule, units):
    """Assert the notes on an allreduce: ignored buffer maps, and the re-timed second phase."""
    notes = " ".join(schedule.problem.notes)
    assert "buffer maps are ignored" in notes
    assert f"{units} units" in notes
    assert "re-timed" in notes


def test_a_note_states_how_early_our_allreduce_starts_copies():
    """A note says how much too early an allreduce's file starts its copies.

    The file starts copies at 6, one unit after the last reduction starts, but that ends at 24.5, which is 18.5
    later.
    """
    assert_notes(ours("allreduce-hub-n2"), "18.5")
    assert not ours("allgather-hub-n2").problem.notes


def test_a_note_states_how_early_the_allreduce_starts_copies(samples):
    """The note on the published allreduce states that 106.6 = 998.8 - 892.2 units are missing."""
    assert_notes(samples["allreduce-ndv2-n2"], "106.6")
    assert not samples["allgather-ndv2-n2"].problem.notes


def assert_same_topology(schedule, sketch, topology):
    """Assert that links, ports and costs are those of the given sketch and topology files."""
    known = load_problem(sketch, topology).topology
    found = schedule.problem.topology
    assert (found.name, found.machine, found.profile) == (known.name, known.machine, known.profile)
    assert _held(found) == _held(known)


@pytest.mark.parametrize("name", list(OUR_INPUTS))
def test_topology_is_that_of_our_inputs(name):
    """The topology equals that of our input files: one link per pair of nodes, or one per rank with switch
    ports."""
    folder = OURS / "upstream-taccl"
    assert_same_topology(
        ours(name), folder / f"sketch/{OUR_INPUTS[name]}.json", folder / "topo/hub-64KB.json"
    )


@pytest.mark.parametrize("name", list(INPUTS))
def test_topology_is_that_of_the_tools_inputs(samples, shared_data, name):
    """The topology equals that of the published tool's input files."""
    sketch, topology = INPUTS[name]
    folder = shared_data / "upstream-taccl"
    assert_same_topology(samples[name], folder / f"sketch/{sketch}.json", folder / f"topo/{topology}.json")


def _held(topology):
    """Every link, with the resources that it holds."""
    return Counter(
        (
            link,
            frozenset(
                (topology.resources[h.resource].name, h.alpha_us, h.beta_us_per_mb, h.side)
                for h in topology.holds_of_link[index]
            ),
        )
        for index, link in enumerate(topology.links)
    )


def test_small_algorithm_is_as_computed_by_hand(tmp_path):
    """The finish of a small algorithm equals the one computed by hand.

    The exchange takes 3, the sends between nodes 2 + 2 * 5, and two more sends 3 each: 3 + 12 + 6 = 21.
    """
    schedule = _load(tmp_path, _small())
    assert verify(schedule).ok
    assert schedule.finish == 21
    assert (schedule.num_transfers, schedule.num_sends) == (12, 10)
    assert schedule == retimed(schedule)


def test_time_unit_and_chunk_size_scale_times_and_bandwidth(tmp_path):
    """The time unit scales times, and the chunk size bandwidths.

    21 units of 2 us are 42 us; for 4 chunks of 1 KB the bandwidth is 4/42 GB/s.
    """
    schedule = _load(tmp_path, _small(), time_unit_us=2, chunk_size="1KB")
    assert verify(schedule).ok
    assert schedule.finish == 42
    assert schedule.algbw_gb_per_s == pytest.approx(4 / 42)


def test_sends_on_another_topology_are_re_timed(tmp_path):
    """On a ring of 4 in one node, with 1 us per chunk, an algorithm is re-timed without merged sends.

    The ring joins 0-1, 2-3, 0-3 and 2-1. Rank 0 sends its own chunk on during the exchange, then the chunk of
    rank 1, which rank 3 forwards: 3 us.
    """
    topology = ring(4, alpha_us=0, bandwidth_gb_per_s=1000)
    schedule = _load(tmp_path, _small(), topology=topology)
    assert verify(schedule).ok
    assert schedule.finish == 3


def test_unequal_parallel_links_are_named(tmp_path):
    """A file names parallel links by numbers, which a note says if links of another topology differ."""
    builder = TopologyBuilder.continuing(ring(4, alpha_us=0, bandwidth_gb_per_s=1000))
    builder.add_link(0, 1, alpha_us=0, beta_us_per_mb="0.5")
    schedule = _load(tmp_path, _small(), topology=builder.build())
    assert "links are taken by their number in the file" in schedule.problem.notes[-1]
    assert schedule.problem.notes[-1].endswith("here they differ (0->1)")


def test_other_topology_must_fit(tmp_path):
    """For another topology, the number of ranks and every link must match. A time unit is refused, as it
    would have no meaning."""
    with pytest.raises(FormatError, match="4 ranks"):
        _load(tmp_path, _small(), topology=ring(5, alpha_us=0, bandwidth_gb_per_s=1))
    far = _small(sends=[[[0, 0, 2, 0, 0]]])
    with pytest.raises(FormatError, match="no link there"):
        _load(tmp_path, far, topology=ring(4, alpha_us=0, bandwidth_gb_per_s=1))
    with pytest.raises(InputError, match="time_unit_us"):
        _load(tmp_path, _small(), topology=ring(4, alpha_us=0, bandwidth_gb_per_s=1), time_unit_us=1)


def test_remote_ports_serialise_beyond_two_nodes(tmp_path):
    """With three nodes, rank 0 may not send to both others at once; with two links to one node it may."""
    at_once = [[[0, 0, 3, 0, 0], [0, 0, 5, 0, 0]]]
    assert _kinds(_load(tmp_path, _small(copies=3, sends=at_once)))["contention"] == 1
    to_both = _small(sends=[[[0, 0, 3, 0, 0], [0, 0, 2, 0, 0]]], internode_conn={"0": [1, 0]})
    assert not _kinds(_load(tmp_path, to_both))["contention"]


def test_planes_of_a_switch_are_apart(tmp_path):
    """Two planes of a switch carry two simultaneous sends of one rank; one plane carries one."""
    doubled = {"node_links": [[0, 2], [2, 0]]}
    two = _small(sends=[[[0, 0, 1, 0, 0], [0, 0, 1, 0, 1]]], **doubled, local_switches=[[0, 1], [0, 1]])
    one = _small(sends=[[[0, 0, 1, 0, 0], [0, 0, 1, 0, 1]]], **doubled, local_switches=[[0, 1]])
    assert not _kinds(_load(tmp_path, two))["contention"]
    assert _kinds(_load(tmp_path, one))["contention"] == 2  # the port out of rank 0, and the port into rank 1


def test_starts_rounded_down_to_tenths_are_no_overlaps(tmp_path):
    """Starts that a file rounds down to tenths are accepted, though sends then seem to overlap.

    With remote_alpha 2.05, sends end at 15.05 and 27.1, and the file states 15.0.
    """
    document = _small(remote_alpha=2.05)
    assert not verify(_load(tmp_path, _small(remote_alpha=2.2))).ok
    schedule = _load(tmp_path, document)
    assert verify(schedule).ok
    assert schedule.finish == Fraction("21.05")
    assert "rounded down to tenths" in schedule.problem.notes[-1]


def test_a_start_between_ticks_is_kept_within_a_tick(tmp_path):
    """With ticks of one unit, a start at 3.5 is moved to 3."""
    sends = [[[0, 0, 1, 0, 0]], [[0, 0, 3, 35, 0]]]
    schedule = _load(tmp_path, _small(sends=sends))
    assert set(_kinds(schedule)) == {"postcondition"}


def _reduction(sends):
    """An algorithm of two ranks of one node, whose contributions share an address and add up at rank 0."""
    document = _small(copies=1, sends=sends, internode_conn=None, remote_alpha=-1, remote_beta=None)
    document["collective"] |= {
        "name": "Reduce(n=2,root=0)",
        "chunks": [{"pre": [c], "post": [0], "addr": 0} for c in range(2)],
    }
    return document


def test_contributions_to_an_address_are_one_sum(tmp_path):
    """Two chunks of one address that end at rank 0 are a reduction to rank 0."""
    schedule = _load(tmp_path, _reduction([[[0, 1, 0, 0, 0, "rrc"]]]))
    assert schedule.problem.collective == collectives.reduce(2)
    assert verify(schedule).ok
    assert schedule.finish == 3


def test_a_copy_in_place_of_a_reduction_is_refused(tmp_path):
    """A copy in place of a reduction, which drops rank 0's own contribution, is refused."""
    assert "lost-contribution" in _kinds(_load(tmp_path, _reduction([[[0, 1, 0, 0, 0, None]]])))


def test_reducing_in_a_collective_that_does_not_is_refused(tmp_path):
    """A reduction in an allgather is refused."""
    document = _small()
    document["steps"][0]["sends"][0].append("rrc")
    assert _kinds(_load(tmp_path, document))["reduce"] == 1


def assert_early_reduction_is_refused(path, send, tenths, tmp_path):
    """Assert that an allreduce with an early reduction is refused, although its order could be re-timed."""
    document = json.loads(path.read_text())
    sends = [each for step in document["steps"] for each in step["sends"]]
    next(each for each in sends if each[1:4] == send)[3] -= tenths
    schedule = _load(tmp_path, document)
    assert not verify(schedule).ok
    assert retimed(schedule).finish == retimed(load_upstream_algorithm(path)).finish


def test_overlap_inside_a_half_is_not_timed_away(tmp_path):
    """Rank 3 sends at 3 a sum that is complete at 5: refused, not re-timed."""
    assert_early_reduction_is_refused(our_path("allreduce-hub-n2"), [3, 0, 50], 20, tmp_path)


def test_overlap_inside_a_half_of_a_real_file_is_not_timed_away(shared_data, tmp_path):
    """A reduction that starts ten units early is refused in a real file, too."""
    path = shared_data / "upstream-taccl" / "algorithm" / "allreduce-ndv2-n2.json"
    assert_early_reduction_is_refused(path, [0, 2, 460], 100, tmp_path)


@pytest.mark.parametrize(
    ("step", "send", "start", "kind"),
    [
        (0, 1, None, "presence"),  # rank 0 sends on what rank 1 never sent it
        (2, 3, None, "postcondition"),
        (2, 0, 100, "presence"),  # rank 3 hands on at 10 what arrives at 15
        (2, 2, 160, "contention"),  # the send before it takes until 18
    ],
)
def test_faults_are_found(tmp_path, step, send, start, kind):
    """A missing send, or one with another start, gives the expected kind of violation."""
    document = _small()
    if start is None:
        del document["steps"][step]["sends"][send]
    else:
        document["steps"][step]["sends"][send][3] = start
    assert kind in _kinds(_load(tmp_path, document))


def test_retimed_is_none_where_the_order_cannot_be(tmp_path):
    """If rank 3 forwards a chunk before it arrives, there is no re-timed schedule."""
    schedule = _load(tmp_path, _small(sends=[[[0, 3, 2, 0, 0], [0, 0, 3, 30, 0]]]))
    assert "presence" in _kinds(schedule)
    assert retimed(schedule) is None


def test_unknown_collective_keeps_its_name(tmp_path):
    """If chunks differ from the named collective's, they are verified as stated, and the name is kept."""
    document = _small()
    document["collective"]["chunks"][0]["post"] = [1]
    assert _load(tmp_path, document).problem.collective.name == "Allgather(n=4)"


DELETE = object()
BAD = [
    (("sccl_type",), "topology", "sccl_type"),
    (("name",), 5, "name"),
    (("steps",), DELETE, "steps"),
    (("steps",), {}, "steps"),
    (("steps", 0), 7, "steps[0]"),
    (("steps", 0, "sends"), None, "steps[0].sends"),
    (("steps", 1, "sends", 2), [0, 1], "steps[1].sends[2]"),
    (("steps", 1, "sends", 2), [0, 1, 2], "steps[1].sends[2]"),
    (("steps", 1, "sends", 2), "abcde", "steps[1].sends[2]"),
    (("steps", 1, "sends", 2), {"sccl_type": "rank"}, "steps[1].sends[2]"),
    (("steps", 1, "sends", 2), [0, 0, 3, 30, 0, "add"], "steps[1].sends[2]"),
    (("steps", 1, "sends", 2, 0), 4, "steps[1].sends[2]"),
    (("steps", 1, "sends", 2, 1), 4, "steps[1].sends[2]"),
    (("steps", 1, "sends", 2, 2), 2, "steps[1].sends[2]"),
    (("steps", 1, "sends", 2, 3), -1, "steps[1].sends[2]"),
    (("steps", 1, "sends", 2, 3), 1.5, "steps[1].sends[2]"),
    (("steps", 1, "sends", 2, 3), None, "steps[1].sends[2]"),
    (("steps", 1, "sends", 2, 3), True, "steps[1].sends[2]"),
    (("steps", 1, "sends", 2, 3), 10**400, "steps[1].sends[2]"),
    (("steps", 1, "sends", 2, 4), 1, "steps[1].sends[2]"),
    (("collective",), [], "collective"),
    (("collective", "nodes"), 5, "collective.nodes"),
    (("collective", "ranks"), [], "collective.ranks"),
    (("collective", "chunks"), [], "collective.chunks"),
    (("collective", "chunks", 1, "pre"), [9], "chunk 1"),
    (("collective", "chunks", 1, "pre"), [], "chunk 1"),
    (("collective", "chunks", 1, "post"), [1, 1], "chunk 1"),
    (("collective", "chunks", 1, "addr"), DELETE, "collective.chunks[1].addr"),
    (("collective", "chunks", 1, "addr"), 0, "steps[0].sends[1]"),
    (("collective", "triggers"), {"0": {}}, "collective.triggers"),
    (("topology",), DELETE, "topology"),
    (("topology", "copies"), 0, "topology.copies"),
    (("topology", "copies"), 10**9, "collective.nodes"),
    (("topology", "ngpus_per_node"), DELETE, "topology.ngpus_per_node"),
    (("topology", "node_links"), [[0, 1]], "topology: found node_links"),
    (("topology", "node_links"), [[0, 1], [1]], "topology: found node_links"),
    (("topology", "node_links", 0, 1), 10**9, "topology: node_links"),
    (("topology", "node_links", 0, 1), "1", "topology.node_links[0][1]"),
    (("topology", "node_invbws", 0, 1), 0, "topology: own x2: link 1->0"),
    (("topology", "node_invbws", 0, 1), -3, "topology.node_invbws[0][1]"),
    (("topology", "node_invbws", 0, 1), "x", "topology.node_invbws[0][1]"),
    (("topology", "remote_alpha"), DELETE, "topology: remote_alpha"),
    (("topology", "remote_alpha"), True, "topology: remote_alpha"),
    (("topology", "remote_beta"), -1, "topology: remote_beta"),
    (("topology", "remote_beta"), 0, "topology: own x2: link 0->3: found alpha 2 us and beta 0 us"),
    (("topology", "internode_conn"), DELETE, "topology: found no internode_conn"),
    (("topology", "internode_conn"), {"x": [1]}, "topology.internode_conn"),
    (("topology", "internode_conn"), {"0": [7]}, "topology: found internode_conn['0'] '[7]'"),
    (("topology", "local_switches"), [[0, 5]], "topology: found local_switches[0] '[0, 5]'"),
    (("topology", "local_switches"), [[0, 1], [1]], "topology: local_switches"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value", "field"), BAD, ids=[f"{b[0]}={str(b[1])[:12]}" for b in BAD])
def test_bad_fields_are_refused_with_their_place(tmp_path, path, value, field):
    """For every missing, ill-typed or contradictory field the error names file and field."""
    document = _small()
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    if value is DELETE:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    with pytest.raises(FormatError) as caught:
        _load(tmp_path, document)
    text = str(caught.value)
    assert "algorithm.json" in text
    assert field in text
    assert len(text) < 500


@pytest.mark.parametrize(
    "number",
    ["NaN", "Infinity", "1e999999999", "1e-999999999", "1e99999999999999999999", "9" * 5000, "[[[" * 30_000],
    ids=lambda text: text[:12],
)
def test_hostile_numbers_are_refused_at_once(tmp_path, number):
    """Numbers too large for memory, and excessive nesting, are refused before conversion."""
    text = json.dumps(_small()).replace('"remote_beta": 5', f'"remote_beta": {number}')
    with pytest.raises(FormatError, match=r"algorithm\.json"):
        _load(tmp_path, text)


def test_starts_beyond_64_bits_are_refused(tmp_path):
    """A start that exceeds 64 bits in ticks is refused.

    Here it is 10**15 tenths at 10**6 ticks per microsecond.
    """
    document = _small(sends=[[[0, 0, 1, 10**15, 0]]], remote_alpha=2.000001)
    with pytest.raises(FormatError, match="64 bits"):
        _load(tmp_path, document)


@pytest.mark.slow
def test_files_beyond_the_limit_are_refused(tmp_path):
    """A file of 65 MB is refused unread."""
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.truncate(65 * 10**6)
    with pytest.raises(FormatError):
        load_upstream_algorithm(path)
    with pytest.raises(InputError, match="no such file"):
        load_upstream_algorithm(tmp_path / "nothing.json")


def test_bad_unit_and_size_are_refused(tmp_path):
    """A time unit of 0 and a chunk size of 0 are refused."""
    with pytest.raises(InputError, match="time_unit_us"):
        _load(tmp_path, _small(), time_unit_us=0)
    with pytest.raises(InputError, match="chunk_size"):
        _load(tmp_path, _small(), chunk_size=0)
