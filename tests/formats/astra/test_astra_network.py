"""Network files of ASTRA-sim: building blocks, units, dimensions, and YAML syntax."""

from fractions import Fraction

import pytest

import taccl
from taccl.errors import FormatError, InputError, TopologyError
from taccl.formats.astra.network import load_astra_network
from tests.effort import brief_synthesis, first_schedule
from tests.foreign import OURS, foreign_files

GB = Fraction(10**12, 2**30)  # us per MB at one of ASTRA-sim's GB/s, of 2**30 bytes


@pytest.fixture
def load(shared_data):
    """Function that loads one of the real files."""
    return lambda name, **arguments: load_astra_network(
        shared_data / "astra-sim" / f"{name}.yml", **arguments
    )


def ours(name, **arguments):
    """Topology of one of the network files that are written by hand for these tests."""
    return load_astra_network(OURS / "astra-sim" / f"{name}.yml", **arguments)


def _write(tmp_path, text):
    path = tmp_path / "network.yml"
    path.write_text(text)
    return path


def _file(topology="[ Ring ]", npus_count="[ 4 ]", bandwidth="[ 50 ]", latency="[ 500 ]"):
    return f"topology: {topology}\nnpus_count: {npus_count}\nbandwidth: {bandwidth}\nlatency: {latency}\n"


def check_switch(topology, num_ranks, alpha_us, gb_per_s):
    """Check a network of one switch: a send takes the latency of two hops, and the time of its bytes once.

    Each rank has a port for sending and one for receiving.
    """
    assert len(topology.links) == num_ranks * (num_ranks - 1)
    assert {link.alpha_us for link in topology.links} == {Fraction(alpha_us)}
    assert {link.beta_us_per_mb for link in topology.links} == {GB / gb_per_s}
    assert sum(resource.name.startswith("port") for resource in topology.resources) == 2 * num_ranks
    assert {hold.alpha_us for hold in topology.holds} == {0}  # pipelined, as in ASTRA-sim


def _pairs(topology):
    return {(link.src, link.dst) for link in topology.links}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::taccl.errors.NumericsWarning")
@pytest.mark.parametrize("path", foreign_files("astra-sim/*.yml"))
def test_allgather_on_every_file_verifies(path):
    """On the topology of every file, a synthesized allgather schedule passes verification."""
    topology = load_astra_network(path)
    problem = taccl.make_problem(topology, taccl.collectives.allgather(topology.num_ranks), chunk_bytes=10**6)
    assert taccl.verify(first_schedule(problem)).ok


def test_ring():
    """A ring has links in both directions, each with 25 * 2**30 bytes/s and 250 ns."""
    topology = ours("ring-3")
    assert _pairs(topology) == {(0, 1), (1, 2), (2, 0), (1, 0), (2, 1), (0, 2)}
    assert {link.beta_us_per_mb for link in topology.links} == {GB / 25}
    assert {link.alpha_us for link in topology.links} == {Fraction(1, 4)}
    assert topology.num_nodes == 1


def test_switch():
    """A send through our file's switch takes 2 * 700.5 ns of latency."""
    check_switch(ours("switch-4"), 4, "1.401", 320)


def test_pairs_of_rings():
    """Ranks 0-2 and 3-5 form rings of 80 GB/s and 40 ns.

    The pairs 0-3, 1-4 and 2-5 are linked at 10 GB/s and 900 ns.
    """
    topology = ours("pairs-of-rings", ranks_per_node=3)
    found = {(e.src, e.dst): (e.beta_us_per_mb, e.alpha_us) for e in topology.links if e.src == 4}
    ring, pair = (GB / 80, Fraction("0.04")), (GB / 10, Fraction("0.9"))
    assert found == {(4, 3): ring, (4, 5): ring, (4, 1): pair}
    assert (len(topology.links), topology.num_nodes) == (2 * 6 + 3 * 2, 2)


@pytest.mark.parametrize("size", [4, 8, 16])
def test_real_ring(load, size):
    """The real ring has links in both directions of 50 * 2**30 bytes/s and 500 ns."""
    topology = load(f"Ring_{size}npus")
    upwards = {(rank, (rank + 1) % size) for rank in range(size)}
    assert _pairs(topology) == upwards | {(dst, src) for src, dst in upwards}
    assert {link.beta_us_per_mb for link in topology.links} == {GB / 50}
    assert {link.alpha_us for link in topology.links} == {Fraction(1, 2)}
    assert topology.num_nodes == 1


def test_real_switch(load):
    """A send through the real file's switch takes 2 * 936.25 ns of latency."""
    check_switch(load("HGX-H100-validated"), 8, "1.8725", 400)


@pytest.mark.filterwarnings("ignore::taccl.errors.NumericsWarning")
def test_ring_allgather_takes_its_time():
    """An allgather on a ring of 3 takes the time of one step, with sends in both directions.

    2**30 / 10 bytes take 4 ms plus 0.25 us.
    """
    topology = ours("ring-3", alpha_meaning="occupies")
    problem = taccl.make_problem(topology, taccl.collectives.allgather(3), chunk_bytes=2**30 // 10)
    result = brief_synthesis(problem, backend="greedy")
    assert result.finish_us == pytest.approx(4000 + 0.25, rel=1e-6)


def test_dimensions(tmp_path):
    """Ranks are numbered with the first dimension fastest, and each dimension has its own links.

    For [2, 3, 4], rank = a + 2 b + 6 c: pairs of neighbours, rings of three, all pairs of four.
    """
    path = _write(
        tmp_path, _file("[Ring, Ring, FullyConnected]", "[2, 3, 4]", "[200, 100, 50]", "[50, 500, 2000]")
    )
    topology = load_astra_network(path, ranks_per_node=6)
    assert topology.num_ranks == 24
    assert topology.num_nodes == 4
    first = {(0, 1): 200, (0, 2): 100, (0, 4): 100, (0, 6): 50, (0, 12): 50, (0, 18): 50}
    found = {(e.src, e.dst): e.beta_us_per_mb for e in topology.links if e.src == 0}
    assert found == {pair: GB / rate for pair, rate in first.items()}
    # 12 pairs, 8 rings of 3 and 6 sets of 4 ranks, in both directions.
    assert len(topology.links) == 24 + 8 * 6 + 6 * 12
    assert {e.alpha_us for e in topology.links} == {Fraction(1, 20), Fraction(1, 2), 2}


def test_switches_of_a_dimension(tmp_path):
    """With dimensions ring 2 and switch 3, each of 3 rings has 2 ranks, and each of 2 switches has 3 ranks."""
    topology = load_astra_network(_write(tmp_path, _file("[Ring, Switch]", "[2, 3]", "[1, 1]", "[0, 0]")))
    assert [switch.ranks for switch in topology.switches] == [(0, 2, 4), (1, 3, 5)]
    assert _pairs(topology) >= {(0, 1), (0, 4), (5, 1)}


@pytest.mark.parametrize(
    "text",
    [
        _file("\n  - Ring # block\n", "\n- 4\n", "[\n  50.0,\n]", "[5e2]"),
        "---\n# comment\n\n" + _file("[ 'Ring' ]", '[ "4" ]').replace("\n", "\r\n"),
        _file() + "faulty_links: { 1: 2 }\n",
    ],
    ids=["by line", "quoted", "other field"],
)
def test_ways_to_write_a_list(tmp_path, text):
    """Lists may be in brackets, also over several lines, or have dashed items; unused fields are noted."""
    topology = load_astra_network(_write(tmp_path, text))
    assert len(topology.links) == 8
    assert {link.alpha_us for link in topology.links} == {Fraction(1, 2)}
    assert any("faulty_links" in each for each in topology.assumed) == ("faulty_links" in text)


def test_every_assumption_is_a_note():
    """Notes state assumptions on units, occupation of links, hops through the switch, and nodes."""
    notes = " ".join(ours("switch-4").told)
    for part in ("2**30", "pipelined", "counts the bytes twice", "ranks_per_node="):
        assert part in notes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            _file(topology="[ Mesh ]"),
            "topology[0]: found 'Mesh'; expected 'Ring', 'FullyConnected' or 'Switch'",
        ),
        (_file(npus_count="[ 0 ]"), "npus_count[0]: found '0'"),
        (_file(npus_count="[ 1 ]"), "found one NPU"),
        (_file(npus_count="[ 4.5 ]"), "npus_count[0]: found '4.5'"),
        (_file(npus_count="[ 4, 2 ]"), "found 2 values of npus_count for 1 dimensions"),
        (_file(npus_count="[ 999999999 ]"), "npus_count: found"),
        (_file(bandwidth="[ 0 ]"), "bandwidth[0]: found 0 GB/s"),
        (_file(bandwidth="[ .inf ]"), "bandwidth[0]: found '.inf'"),
        (_file(latency="[ -1 ]"), "latency[0]: found '-1'"),
        (_file(latency="[ 1e999999999 ]"), "latency[0]: found"),
        (
            _file(latency="500"),
            "line 4: latency: found 500; expected a list with an entry for each dimension: [ 500 ]",
        ),
        (_file(topology="{a: 1}"), "line 1: topology: found no list; expected a list"),
        (_file(latency="[ 500"), "line 5: found invalid YAML: expected ',' or ']'"),
        (_file(latency="[ [500] ]"), "latency[0]: found"),
        (_file(latency="[ *x ]"), "line 4: found invalid YAML: found undefined alias"),
        (_file(latency="[ ]"), "found 0 values of latency"),
        (_file(latency=""), "line 4: latency: found no list; expected a list with"),
        (_file() + "latency: [ 1 ]\n", "line 5: found latency twice"),
        (_file().replace("latency", "delay"), "latency: found nothing"),
        (_file(topology="[ Ring ]" * 1).replace("Ring", ", ".join(["Ring"] * 17)), "topology: found"),
        ("!!python/object:os.system [ x ]\n", "found no fields"),
        ("!!python/object:os.system { x: 1 }\n", "topology: found nothing"),
        (_file(latency="[" * 600), "found invalid YAML: characters or depth"),
        ("a: &a [ x, x ]\nb: &b [ *a, *a ]\ntopology: [ *b, *b ]\n", "topology[0]: found"),
        ("- Ring\n", "found no fields"),
        (_file() + "name: \x07\n", "found invalid YAML"),
    ],
)
def test_wrong_file_is_named_with_its_field(tmp_path, text, message):
    """The error for an invalid network file names the file, and the field or the line."""
    path = _write(tmp_path, text)
    with pytest.raises(FormatError) as caught:
        load_astra_network(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_nodes_must_divide_the_ranks():
    """Four ranks cannot be divided into nodes of three."""
    with pytest.raises(TopologyError, match="divisor of the 4 ranks"):
        ours("switch-4", ranks_per_node=3)
    assert ours("switch-4", ranks_per_node=2).num_nodes == 2


def test_missing_file_is_an_input_error(tmp_path):
    """The error for a missing file names its path."""
    with pytest.raises(InputError, match=r"nothing\.yml"):
        load_astra_network(tmp_path / "nothing.yml")


def test_dimensions_of_one_npu_are_skipped(tmp_path):
    """Dimensions of one NPU are skipped, and a note names them.

    2 x 1 x 4 NPUs have the links of 2 x 4.
    """
    lists = {"bandwidth": "[ 50, 40, 30 ]", "latency": "[ 500, 1, 700 ]"}
    path, plain = tmp_path / "net.yml", tmp_path / "plain" / "net.yml"
    plain.parent.mkdir()
    path.write_text(_file(topology="[ Ring, Switch, Ring ]", npus_count="[ 2, 1, 4 ]", **lists))
    plain.write_text(_file("[ Ring, Ring ]", "[ 2, 4 ]", "[ 50, 30 ]", "[ 500, 700 ]"))
    found = load_astra_network(path)
    assert found.links == load_astra_network(plain).links
    assert any("npus_count[1] are skipped" in note for note in found.notes)
