"""Probes: matrices that are refused, topologies that they give, and their files."""

import json
import re
import warnings

import numpy as np
import pytest

import taccl
from taccl import Probe
from taccl.errors import AssumptionWarning, FormatError, InputError
from taccl.formats.detection import format_of_content
from taccl.placement.matrices import load_probe
from taccl.topology.clusters import _average_linkage, _squares, completed, levels, nested_order
from tests.foreign import OURS as FOREIGN

OURS = [[0, 5, 9], [5, 0, 9], [9, 9, 0]]
NAMES = ("a", "b", "c")


def distances(racks, *, noise=0.0, pods=None, seed=0):
    """Distances with noise: 10 inside racks, 20 between them, 30 between pods."""
    rng = np.random.default_rng(seed)
    rack = rng.permutation(np.repeat(np.arange(len(racks)), racks))
    pod = np.zeros_like(rack) if pods is None else np.array(pods)[rack]
    far = np.where(pod[:, None] == pod, np.where(rack[:, None] == rack, 10.0, 20.0), 30.0)
    return far * (1 + noise * rng.standard_normal(far.shape)).clip(0.6, 1.4), rack


class TestClusters:
    """Racks and pods found in distances."""

    @pytest.mark.parametrize(
        "racks", [(8,) * 8, (8,) * 20, (13, 9, 8, 8, 8, 7, 6, 5), (2,) * 4, (2, 2), (4, 1, 1)]
    )
    def test_racks_are_found_in_noise(self, racks):
        """With 10 % noise, clusters are exactly the racks."""
        far, rack = distances(racks, noise=0.1)
        found = levels(far)[0]
        assert len(set(zip(found.tolist(), rack.tolist(), strict=True))) == len(racks)

    def test_pods_are_a_level_of_their_own(self):
        """Racks in pods give two levels, of 4 and of 2 clusters."""
        far, _ = distances((4,) * 4, noise=0.05, pods=(0, 0, 1, 1))
        assert [int(labels.max()) + 1 for labels in levels(far)] == [4, 2]

    @pytest.mark.parametrize("num_hosts", [6, 8, 16, 150])
    @pytest.mark.parametrize("noise", [0.0, 0.05, 0.3])
    def test_equal_hosts_are_in_no_racks(self, num_hosts, noise):
        """Random differences between equal hosts give clusters in at most two of ten matrices."""
        rng = np.random.default_rng(1)
        times = 10 if num_hosts < 100 else 1
        matrices = 10 * np.exp(noise * rng.standard_normal((times, num_hosts, num_hosts)))
        assert sum(bool(levels(each)) for each in matrices) <= times // 5

    def test_the_order_keeps_racks_together(self):
        """Larger racks come first in the order."""
        far, rack = distances((2, 5, 3))
        assert [rack[host] for host in nested_order(far)] == [1] * 5 + [2] * 3 + [0] * 2

    def test_a_sample_is_completed(self):
        """An unknown distance between two hosts is estimated from their distances to the same other hosts."""
        far, _ = distances((3, 3))
        holes = far.copy()
        holes[0, 1] = holes[1, 0] = holes[2, 5] = holes[5, 2] = np.nan
        off = ~np.eye(6, dtype=bool)
        assert np.array_equal(completed(holes)[off], far[off])


@pytest.mark.parametrize(
    ("matrix", "complaint"),
    [
        ([[0, 5], [5, 0]], "found 2 x 2 entries for 3 hosts; expected a square"),
        ([[0, 5, 9], [5, 0], [9, 9, 0]], "found rows of different lengths"),
        ([[0, None, 9], [5, 0, 9], [9, 9, 0]], r"found no entry in row 0, column 1 \(a to b\)"),
        ([[0, -5, 9], [5, 0, 9], [9, 9, 0]], r"found -5 in row 0, column 1 \(a to b\), and 5 the other way; expected a number above 0"),
        ([[0, 5, 9], [5, 0, 0], [9, 9, 0]], r"found 0 in row 1, column 2"),
        ([[0, 5, 99], [5, 0, 9], [9, 9, 0]], r"found 99 in row 0, column 2 \(a to c\), and 9 the other way"),
        ([[0, float("inf"), 9], [5, 0, 9], [9, 9, 0]], "found inf in row 0, column 1"),
        ([[0, 1e300, 9], [1e300, 0, 9], [9, 9, 0]], r"found 1e\+300 in row 0.*; expected at most 1e\+09"),
    ],
)  # fmt: skip
def test_bad_matrices_are_named(matrix, complaint):
    """The error for an invalid matrix names row, column and hosts."""
    with pytest.raises(InputError, match=complaint):
        Probe(NAMES, matrix)


def test_nothing_measured_is_refused():
    """A probe without latencies and bandwidths is refused."""
    with pytest.raises(InputError, match="neither latency_us nor bandwidth_gb_per_s"):
        Probe(NAMES)


@pytest.mark.parametrize("level", [(0, 1), (0, 1, -1)])
def test_clusters_that_are_no_numbers_of_hosts_are_refused(level):
    """Each level of clusters must have a number from 0 on for each host."""
    with pytest.raises(InputError, match="clusters: found a level"):
        Probe(NAMES, OURS, clusters=(level,))


def test_clusters_stated_stand_for_those_in_distances(tmp_path):
    """Hosts 0 and 2, which `clusters` puts in one rack, form a node whatever their distance.

    A missing distance is estimated by the median of similar pairs.
    """
    holes = [[0, 5, None], [5, 0, 7], [None, 7, 0]]
    probe = Probe(NAMES, holes, sampled=True, clusters=((0, 1, 0),), assumed=("a guess",))
    assert probe.topology().ranks_of_node == ((0, 2), (1,))
    assert Probe(NAMES, holes, sampled=True, clusters=((0, 0, 0),)).distance[0, 2] == 6
    probe.save(tmp_path / "p.json")
    again = load_probe(tmp_path / "p.json")
    assert (again.clusters, again.assumed) == (probe.clusters, probe.assumed)


def test_a_probe_makes_a_topology():
    """Links have the measured latencies; a rack of two shares an uplink, assumed as fast as a host."""
    topology = Probe(NAMES, OURS).topology()
    links = {(e.src, e.dst): (float(e.alpha_us), float(e.beta_us_per_mb)) for e in topology.links}
    assert links[0, 1] == (5, 80)
    assert links[0, 2] == (9, 80)
    assert topology.ranks_of_node == ((0, 1), (2,))
    assert "uplink of rack 0" in {resource.name for resource in topology.resources}
    assert "every port 12.5 GB/s; uplink oversubscription 4 times" in "; ".join(topology.assumed)


def test_shared_uplinks_follow_the_oversubscription():
    """The rate of a shared uplink follows from the oversubscription.

    Eight hosts of 10 GB/s share 20 GB/s at 4:1, or 50 us per MB; at 1:1 they share nothing.
    """
    far, _ = distances((8, 8))
    probe = Probe(tuple(map(str, range(16))), far)
    shared = probe.topology(bandwidth_gb_per_s=10)
    held = {
        float(hold.beta_us_per_mb)
        for hold in shared.holds
        if shared.resources[hold.resource].name.startswith("uplink")
    }
    assert held == {50.0}
    free = probe.topology(oversubscription=1)
    assert not any("uplink" in resource.name for resource in free.resources)


def test_measured_uplinks_stand_for_assumed_ones():
    """If simultaneous messages revealed a shared path, it replaces the assumed uplinks."""
    probe = Probe(NAMES, OURS, np.full((3, 3), 10.0), uplinks=(((0, 1), 10.0),))
    names = {resource.name for resource in probe.topology().resources}
    assert {"uplink of ranks 0-1", "downlink of ranks 0-1"} <= names
    assert not any("uplinks" in each for each in probe.topology().assumed)


SERVER = [[0, 100, 20, 20], [100, 0, 20, 20], [20, 20, 0, 100], [20, 20, 100, 0]]


@pytest.mark.parametrize(
    "names", [("GPU 0", "GPU 1", "GPU 2", "GPU 3"), ("cuda:0", "cuda:1", "cuda:2", "cuda:3"), ("a",) * 4]
)
def test_gpus_of_one_server_are_one_node_without_uplinks(names):
    """GPUs of one server form no racks, however different their distances."""
    topology = Probe(names, bandwidth_gb_per_s=SERVER).topology()
    assert topology.num_nodes == 1
    assert not any("link of" in resource.name for resource in topology.resources)
    assert any("share a port" in each for each in topology.assumed)


def test_links_of_one_kind_share_a_port():
    """Links of 100 GB/s (NVLink) and 20 (PCIe) work concurrently; sends through one slot are sequential."""
    topology = Probe(("GPU 0", "GPU 1", "GPU 2", "GPU 3"), bandwidth_gb_per_s=SERVER).topology()

    def port(dst):
        (link,) = topology.links_between(0, dst)
        return topology.holds_of_link[link][1].resource

    assert port(2) == port(3) != port(1)


def test_links_of_a_slot_share_it_within_a_socket_and_across():
    """With PCIe at 20 GB/s inside a socket and 10 across, a GPU sends at most 20 GB/s in total."""
    rates = np.where(np.array(SERVER) == 100, 20.0, 10.0)
    topology = Probe(("GPU 0", "GPU 1", "GPU 2", "GPU 3"), bandwidth_gb_per_s=rates).topology()
    ports = {topology.holds_of_link[link][1].resource for link in topology.links_from[0]}
    assert len(ports) == 1


def test_links_with_wires_of_their_own_hold_no_port():
    """If every pair has wires of its own, as with xGMI, all links of a GPU work concurrently."""
    probe = Probe(("GPU 0", "GPU 1", "GPU 2"), bandwidth_gb_per_s=np.full((3, 3), 48.0))
    topology = probe.topology(ports="none")
    assert {len(holds) for holds in topology.holds_of_link} == {1}
    assert not any("port" in each for each in topology.assumed)


@pytest.mark.parametrize(("ports", "is_assumed"), [(None, True), ("shared", False)])
def test_stated_ports_are_no_assumption(ports, is_assumed):
    """Links share ports by default, as an assumption, or because an argument states it."""
    probe = Probe(("GPU 0", "GPU 1", "GPU 2"), bandwidth_gb_per_s=np.full((3, 3), 100.0))
    topology = probe.topology(ports=ports)
    assert {len(holds) for holds in topology.holds_of_link} == {3}
    assert any("ports" in each for each in topology.assumed) == is_assumed


def test_clusters_and_ports_that_are_guessed_are_reported():
    """A warning states that racks are found by clustering and that rates are assumed.

    It is reported at the line of the caller, although a cached property computes the clusters.
    """
    with pytest.warns(AssumptionWarning, match="assumptions, such as") as warned:
        assumed = "; ".join(Probe(NAMES, OURS).topology().assumed)
    assert re.search(r"3 hosts are in 2 clusters.*every port 12\.5 GB/s", assumed)
    assert {each.filename for each in warned} == {__file__}


def test_matrix_of_a_server_allows_what_its_wires_do(shared_data):
    """On a server of two bridged pairs of GPUs, the bound of an allgather of 64 MB is 762 us.

    This is the time of 32 MB into each pair through its two PCIe slots of 21 GB/s.
    """
    topology = taccl.topologies.load(shared_data / "reported" / "logs" / "p2p-two-bridges.txt")
    problem = taccl.make_problem(topology, "allgather", size_bytes=64 * 10**6)
    bound = taccl.lower_bound(problem, divisible=True)
    assert 755 < bound.bound_us < 770


def test_nvlinks_of_pairs_have_wires_of_their_own():
    """On a DGX-1, pairs have two NVLinks, one or none (PCIe); each NVLink counts, and PCIe once per GPU.

    A GPU sends 2 x 48 + 2 x 24 GB/s over NVLinks and 10 over PCIe, so 100 MB from all others take 87.5 MB over
    154 GB/s, or 568 us.
    """
    double = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)]
    single = [(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)]
    rates = np.full((8, 8), 10.0)
    for pairs, rate in ((double, 48.0), (single, 24.0)):
        for a, b in pairs:
            rates[a, b] = rates[b, a] = rate
    probe = Probe(tuple(f"GPU {i}" for i in range(8)), bandwidth_gb_per_s=rates)
    topology = probe.topology()
    assert any("at least 24 GB/s are NVLinks" in each for each in topology.assumed)
    problem = taccl.make_problem(topology, "allgather", size_bytes=100 * 10**6)
    assert taccl.lower_bound(problem, divisible=True).bound_us == pytest.approx(568, rel=0.05)
    assert not _has_wires(np.where(rates == 48.0, 30.0, rates))  # two speeds of PCIe
    assert not _has_wires(np.where(rates == 48.0, 24.0, rates))  # one rate beside PCIe may be PCIe, too


@pytest.mark.parametrize(
    ("gpu", "sum_gb_per_s"),
    [("", 36), ("Tesla V100-SXM2-16GB", 48 + 2 * 24.5), ("NVIDIA GeForce RTX 5090", 36), ("Unheard of", 36)],
)
def test_names_of_gpus_tell_nvlinks_from_pcie(gpu, sum_gb_per_s):
    """All links of four V100 are NVLinks: two to one GPU, one to each other; RTX 5090 have PCIe 5 alone.

    Through one port for all links, a GPU gets 16 MB at 24.5 and 32 MB at 48 GB/s, or 36 GB/s together.
    """
    rates = np.full((4, 4), 24.5)
    for a, b in ((0, 1), (1, 0), (2, 3), (3, 2)):
        rates[a, b] = 48.0
    probe = Probe(
        tuple(f"GPU {i}" for i in range(4)), bandwidth_gb_per_s=rates, gpus=(gpu,) * 4 if gpu else ()
    )
    topology = Probe.from_dict(probe.to_dict()).topology()
    problem = taccl.make_problem(topology, "allgather", size_bytes=64 * 10**6)
    expected_us = 48_000 / sum_gb_per_s
    assert taccl.lower_bound(problem, divisible=True).bound_us == pytest.approx(expected_us, rel=0.05)
    is_of_nvlinks = sum_gb_per_s > 36
    assert is_of_nvlinks == any("as the PCIe slots of Tesla V100" in each for each in topology.assumed)
    assert is_of_nvlinks != any("share a port" in each for each in topology.assumed)


@pytest.mark.parametrize(("count", "rate", "has_wires"), [(8, 48.0, True), (64, 48.0, False)])
def test_a_mesh_of_xgmi_has_a_wire_for_each_pair(count, rate, has_wires):
    """Eight MI300X have 64 GB/s of xGMI to each other, slower than a PCIe 5 slot; 64 partitions share links.

    A GPU gets 56 of the 64 MB over seven links of 48 GB/s in 167 us, not over one of 48 in 1167 us.
    """
    probe = Probe(
        tuple(f"GPU {i}" for i in range(count)), bandwidth_gb_per_s=np.full((count, count), rate),
        gpus=("AMD Instinct MI300X",) * count,
    )  # fmt: skip
    topology = probe.topology()
    said = "at least 48 GB/s are xGMI links with wires of their own, as they join all AMD Instinct MI300X"
    assert has_wires == any(said in each for each in topology.assumed)
    assert has_wires != any("share a port" in each for each in topology.assumed)
    if has_wires:
        problem = taccl.make_problem(topology, "allgather", size_bytes=64 * 10**6)
        assert taccl.lower_bound(problem, divisible=True).bound_us == pytest.approx(167, rel=0.01)


def test_nvlinks_through_a_switch_share_a_port():
    """Eight V100 with 137 GB/s for each pair share their six NVLinks, 150 GB/s, through a switch."""
    names = tuple(f"GPU {i}" for i in range(8))
    probe = Probe(names, bandwidth_gb_per_s=np.full((8, 8), 137.0), gpus=("Tesla V100-SXM3-32GB",) * 8)
    assert not any("wires of their own" in each for each in probe.topology().assumed)


def test_models_of_gpus_are_one_for_each():
    """The number of models must be that of the GPUs."""
    with pytest.raises(InputError, match="probe.gpus: found 2 models for 3 GPUs"):
        Probe(NAMES, OURS, gpus=("NVIDIA L4", "NVIDIA L4"))


def test_bridges_of_two_gpus_are_not_limited_by_a_pcie_slot():
    """A bridge of 52.8 GB/s beside PCIe at 21 is an NVLink of its own, though a PCIe 5 slot is as fast.

    Each pair of four GPUs gets 32 of the 64 MB through its two slots of 21 GB/s, in 762 us.
    """
    rates = np.full((4, 4), 21.0)
    for a, b in ((0, 1), (1, 0), (2, 3), (3, 2)):
        rates[a, b] = 52.8
    topology = Probe(tuple(f"GPU {i}" for i in range(4)), bandwidth_gb_per_s=rates).topology()
    assert any("at least 52.8 GB/s are NVLinks" in each for each in topology.assumed)
    problem = taccl.make_problem(topology, "allgather", size_bytes=64 * 10**6)
    assert taccl.lower_bound(problem, divisible=True).bound_us == pytest.approx(762, rel=0.01)
    assert not _has_wires(np.where(rates == 21.0, 30.0, rates))  # PCIe 5 in a socket and across
    assert not _has_wires(np.where(rates == 21.0, 10.0, np.full((4, 4), 26.0)))  # PCIe 4 in a socket
    several = rates.copy()
    several[0, 2] = several[2, 0] = 52.8
    assert not _has_wires(several)  # a GPU with two fast links may reach both through one port


def _has_wires(rates):
    names = tuple(f"GPU {i}" for i in range(len(rates)))
    return any("NVLinks" in each for each in Probe(names, bandwidth_gb_per_s=rates).topology().assumed)


def test_probes_are_read_back(tmp_path):
    """A saved probe is equal when read, and gives a topology."""
    probe = Probe(NAMES, OURS, np.full((3, 3), 10.0), uplinks=(((0, 1), 10.0),), latency_spread=0.1)
    path = tmp_path / "probe.json"
    probe.save(path)
    assert load_probe(path).to_dict() == probe.to_dict()
    assert taccl.topologies.load(path).num_ranks == 3
    with pytest.raises(InputError, match="the file exists"):
        probe.save(path)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"version": 2}, "found no probe"),
        ({"hosts": ["a"]}, "found 3 x 3 entries for 1 host"),
        ({"uplinks": [{"ranks": [7], "gb_per_s": 1}]}, "expected ranks of the probe"),
        ({"uplinks": 3}, "found a field that is not of its kind"),
        ({"latency_us": "x"}, "no numbers"),
    ],
)
def test_damaged_files_are_refused(tmp_path, change, complaint):
    """The error for a damaged probe file names the fault and the file."""
    path = tmp_path / "probe.json"
    path.write_text(json.dumps(Probe(NAMES, OURS).to_dict() | change))
    with pytest.raises(FormatError, match=complaint):
        load_probe(path)


class TestMatrices:
    """Matrices written by other tools."""

    @pytest.mark.parametrize(
        "text",
        [
            "0,5,9\n5,0,9\n9,9,0\n",
            "a,b,c\n0,5,9\n5,0,9\n9,9,0\n",
            "host,a,b,c\na,,5,9\nb,5,-,9\nc,9,9,x\n",
            "# latency in us\n\na,b,c\n0,5,9\n5,0,9\n9,9,0\n",
        ],
    )
    def test_csv_of_latencies(self, tmp_path, text):
        """A CSV of latencies is read with or without names, for any values on the diagonal."""
        path = tmp_path / "m.csv"
        path.write_text(text)
        probe = load_probe(path)
        assert probe.latency_us[0, 2] == 9
        assert probe.hosts == (NAMES if "a" in text.replace("latency", "") else ("0", "1", "2"))
        assert taccl.topologies.load(path).num_ranks == 3

    @pytest.mark.parametrize("separator", [" ", "\t", ";", ",", " | "])
    def test_distances_along_a_line_are_no_row_numbers(self, tmp_path, separator):
        """The first column 0, 1, 2, 3 is one of distances if the diagonal is zero."""
        rows = [[str(abs(i - j)) for j in range(4)] for i in range(4)]
        path = tmp_path / "m.txt"
        path.write_text("\n".join(map(separator.join, rows)) + "\n")
        assert load_probe(path).latency_us[0].tolist()[1:] == [1, 2, 3]

    @pytest.mark.parametrize("cell", ["nan", "NaN", "NA", "n/a", "None", "x", "-", "", "0"])
    def test_the_first_cell_may_be_no_number(self, tmp_path, cell):
        """The first cell may be a diagonal entry, as pandas and numpy write it, instead of a header."""
        path = tmp_path / "m.csv"
        path.write_text(f"{cell},5,9\n5,{cell},9\n9,9,{cell}\n")
        probe = load_probe(path)
        assert probe.hosts == ("0", "1", "2")

    @pytest.mark.parametrize(
        ("corner", "begin", "num_hosts"), [("-", 1, 4), ("x", 1, 4), ("-", 0, 3), ("", 1, 3), ("us", 1, 3)]
    )
    def test_a_first_row_that_counts(self, tmp_path, corner, begin, num_hosts):
        """Numbers 1, 2, 3 beside the mark of the diagonal are entries; beside another corner they are names."""
        mark = "x" if corner == "x" else "-"
        head = [str(begin + i) for i in range(3)]
        inner = [[mark, "4", "5"], ["4", mark, "6"], ["5", "6", mark]]
        rows = [[corner, *head], *([name, *row] for name, row in zip(head, inner, strict=True))]
        path = tmp_path / "m.csv"
        path.write_text("\n".join(map(",".join, rows)) + "\n")
        assert load_probe(path).num_hosts == num_hosts

    @pytest.mark.parametrize(
        ("text", "lines"),
        [
            (
                "Hello,\n\ntimes in us:\n\n> host,a,b,c\n> a,0,5,9\n> b,5,0,9\n> c,9,9,0\n\nRegards\n",
                "5 to 8",
            ),
            ("latency (us)\n    a   b   c\na  0.0 5.0 9.0\nb  5.0 0.0 9.0\nc  9.0 9.0 0.0\n", "2 to 5"),
            ("us;a;b;c\na;0;5,0;9,0\nb;5,0;0;9,0\nc;9,0;9,0;0\n", ""),
            ("|us|a|b|c|\n|--|--|--|--|\n|a|-|5|9|\n|b|5|-|9|\n|c|9|9|-|\n", ""),
            ("ping in us:\na b c\n- 10 18\n10 - 18\n18 18 -\n", "2 to 5"),
        ],
        ids=["mail", "blanks", "semicolons", "bars", "round trips"],
    )
    def test_a_matrix_amid_text_is_read(self, tmp_path, text, lines):
        """The only matrix of a text is read, whatever separates its cells; a note says which lines it has."""
        path = tmp_path / "mail.txt"
        path.write_text(text)
        assert format_of_content(path).name == "pair-matrix"
        probe = load_probe(path)
        assert (probe.hosts, probe.latency_us[0, 1], probe.latency_us[2, 1]) == (NAMES, 5, 9)
        said = f"the matrix is that of lines {lines}; the text around it is ignored"
        assert [each for each in probe.assumed if "lines" in each] == [said] * bool(lines)

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("one:\nus,a,b\na,0,1\nb,1,0\ntwo:\nus,a,b\na,0,2\nb,2,0\n", "found 2 matrices, at lines 2, 6"),
            ("rank\tus\n0\t1,5\n1\t2,5\n", "found numbers that are no square matrix"),
            ("first second\n1 2 3\n4 5 6\n7 8 9\n10 11 12\n", "found numbers that are no square matrix"),
            # A matrix without all of its rows, as of one pair of nvbandwidth, is named by the line above it.
            (
                "Running it.\nmemcpy SM GPU(row) -> GPU(column) bandwidth (GB/s)\n           0         1         2\n"
                " 0       N/A       N/A    120.5\n\nSUM 1\n",
                "line 2: found 1 row of 3 GPUs; expected one for each",
            ),
            (
                "P2P=Enabled Latency Matrix (us)\n   GPU 0 1\n 0 1.2 2.1\n",
                "line 1: found 1 row of 2 GPUs; expected one for each",
            ),
            (
                "Unidirectional P2P=Enabled Bandwidth Matrix (GB/s)\n   D\\D 0\n 0 900\n",
                "found a matrix of 1 GPU; expected one of two GPUs or more",
            ),
        ],
    )
    def test_a_text_without_one_matrix_is_refused(self, tmp_path, text, complaint):
        """Several matrices, tables that are none, matrices without all rows, and single GPUs are refused."""
        path = tmp_path / "mail.txt"
        path.write_text(text)
        with pytest.raises(FormatError, match=complaint):
            load_probe(path)

    @pytest.mark.parametrize(("unit", "factor"), [("GB/s", 1), ("Gb/s", 8)])
    def test_csv_of_bandwidths(self, tmp_path, unit, factor):
        """The unit of a CSV of bandwidths is given by the first cell or by a comment."""
        path = tmp_path / "m.csv"
        path.write_text(f"{unit},a,b\na,0,16\nb,16,0\n")
        probe = load_probe(path)
        assert probe.latency_us is None
        assert probe.bandwidth_gb_per_s[0, 1] == 16 / factor

    @pytest.mark.parametrize(
        ("unit", "entry", "is_rate", "expected"),
        [
            ("MB/s", 12500, True, 12.5), ("MiB/s", 1000, True, 1.048576), ("Mbit/s", 100_000, True, 12.5),
            ("Gbps", 100, True, 12.5), ("GBps", 100, True, 100), ("gb_per_s", 8, True, 8),
            ("latency (ns)", 1200, False, 1.2), ("ms", 0.5, False, 500), ("(s)", 0.001, False, 1000),
            ("usec", 7, False, 7), ("Bandwidth (Gb/sec)", 100, True, 12.5),
        ],
    )  # fmt: skip
    def test_units_are_converted(self, tmp_path, unit, entry, is_rate, expected):
        """Rates become GB/s and times us, whether the corner or each entry names the unit."""
        for number, text in enumerate((f"{unit},a,b\na,,{entry}\nb,{entry},\n",
                                       f",a,b\na,,{entry} {unit.split()[-1].strip('()')}\n"
                                       f"b,{entry} {unit.split()[-1].strip('()')},\n")):  # fmt: skip
            path = tmp_path / f"{number}.csv"
            path.write_text(text)
            probe = load_probe(path)
            assert not probe.assumed
            values = probe.bandwidth_gb_per_s if is_rate else probe.latency_us
            assert values[0, 1] == pytest.approx(expected)

    def test_an_unnamed_unit_is_an_assumption(self, tmp_path):
        """A matrix without a unit is latencies in us, which its topology lists as an assumption."""
        path = tmp_path / "m.csv"
        path.write_text("host,a,b\na,0,7\nb,7,0\n")
        with pytest.warns(AssumptionWarning):
            topology = taccl.topologies.load(path)
        assert topology.links[0].alpha_us == 7
        assert any(
            "entries are latencies in us, as the file names no unit" in each for each in topology.assumed
        )

    @pytest.mark.parametrize("unit", ["rtt_ms", "round trip (ms)"])
    def test_latencies_are_half_of_round_trips(self, tmp_path, unit):
        """A round trip of 0.12 ms is read as a latency of 60 us, and a note says so."""
        path = tmp_path / "rtt.csv"
        path.write_text(f"{unit},a,b\na,0,0.12\nb,0.12,0\n")
        probe = load_probe(path)
        assert probe.latency_us[0, 1] == pytest.approx(60)
        assert probe.assumed == ("latencies are half of the round-trip times",)

    def test_words_of_comments_are_no_units(self, tmp_path):
        """``us-east`` and ``host(s)`` in a comment that gives the unit GB/s are not read as units."""
        path = tmp_path / "m.csv"
        path.write_text("# host(s) in us-east-1, in GB/s\na,b\n0,7\n7,0\n")
        assert load_probe(path).bandwidth_gb_per_s[0, 1] == 7

    def test_rows_are_matched_by_name(self, tmp_path):
        """Rows in another order than the columns are sorted by name; other names are refused."""
        path = tmp_path / "m.csv"
        path.write_text("us,a,b,c\nc,1,2,0\na,0,3,1\nb,3,0,2\n")
        probe = load_probe(path)
        assert (probe.hosts, probe.latency_us[0, 1], probe.latency_us[2, 1]) == (NAMES, 3, 2)
        path.write_text("us,a,b\nb,1,2\nd,2,1\n")
        with pytest.raises(FormatError, match="found the row 'b' and the column 'a' at one place"):
            load_probe(path)

    @pytest.mark.parametrize("text", ["us,1,2\n1,0,5\n2,5,0\n", ",0,1\n0,0.0,5\n1,5,0.0\n", "p,0,5\nq,5,0\n"])
    def test_numbers_may_be_names(self, tmp_path, text):
        """Numbered rows and columns, as pandas writes them, are not read as figures; names may be in rows only."""
        path = tmp_path / "m.csv"
        path.write_text(text)
        probe = load_probe(path)
        assert (probe.num_hosts, probe.latency_us[0, 1]) == (2, 5)

    def test_a_list_of_pairs(self, tmp_path):
        """A list with two hosts and their figures per row is read. Its head gives the units, and hosts may be
        named by numbers."""
        path = tmp_path / "m.csv"
        path.write_text("src,dst,ms,Gbps\n7,9,2,100\n9,7,3,50\n")
        probe = load_probe(path)
        assert probe.hosts == ("7", "9")
        assert (probe.latency_us[0, 1], probe.bandwidth_gb_per_s[1, 0]) == (2000, 6.25)
        path.write_text("a,b,5 us\na,c,6 us\nc,b,7 us\n")
        probe = load_probe(path)
        assert (probe.latency_us[0, 1], probe.latency_us[1, 0], probe.latency_us[1, 2]) == (5, 5, 7)
        assert probe.assumed == ("3 pairs measured in one direction have the same figure in the other",)

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("GB/s,a,b,c\na,,5,9\nb,5,,9\n", "found 2 x 3 entries for 3 hosts; expected a square"),
            ("GB/s us,a,b\na,,5\nb,5,\n", "found the units GB/s, us; expected one"),
            ("src,dst,us\na,b,5\nb,a,5\na,c,7\n", "found no row for b and c; expected one for every pair"),
            ("a,b,5\nb,a,5\na,b,7\n", "line 3: found the pair 'a' to 'b' again; keep one of its rows"),
            ("a,b,us,ms\np,q,1,1\nq,p,1,1\n", "found two columns of latencies; keep one"),
            ("a,b,us\np,q,1\nq,p,1,1\n", "line 3: found 4 entries; expected 3"),
            (",a,b\na,,5 GB/s\nb,5 MB/s,\n", "found the units GB/s, MB/s; expected one"),
            ("0,5\n5,0\n3,4\n", "found 3 x 2 entries for 2 hosts; expected a square"),
            ("0,5,9\n5,0\n9,9,0\n", "line 2: found 2 entries; expected 3"),
            ("x,a,b\na,0,4\nb,4\n", "line 3: found 1 entries; expected 2"),
            ("0,5,9\n5,0,9\n,9,0\n", r"line 3, column 1: found ''; expected a number for every pair"),
            ("0,5,9\n5,0,far\n9,9,0\n", r"line 2, column 3: found 'far'; expected a number"),
            ("x,a,b\na,0,nan\nb,4,0\n", r"line 2, column 3: found 'nan'; expected a number"),
        ],
    )
    def test_bad_csv_is_named(self, tmp_path, text, complaint):
        """The error for an invalid CSV file names the line, or row and column."""
        path = tmp_path / "m.csv"
        path.write_text(text)
        with pytest.raises(FormatError, match=complaint):
            load_probe(path)

    def test_cuda_sample(self, tmp_path):
        """The unidirectional matrices with peer access enabled are read."""
        path = tmp_path / "p2p.txt"
        path.write_text(
            "[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]\n"
            "Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)\n   D\\D 0 1\n 0 900 11\n 1 11 900\n"
            "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)\n   D\\D 0 1\n 0 900 24\n 1 25 900\n"
            "Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)\n   D\\D 0 1\n 0 900 48\n 1 48 900\n"
            "P2P=Enabled Latency (P2P Writes) Matrix (us)\n   GPU 0 1\n 0 1.2 2.1\n 1 2.2 1.2\n\n"
            "   CPU 0 1\n 0 1.2 2.1\n 1 2.2 1.2\n"
        )
        probe = load_probe(path)
        assert (probe.bandwidth_gb_per_s[0, 1], probe.latency_us[1, 0]) == (24, 2.2)
        # If there are several matrices, the first is used, and the topology says which.
        reads = (
            "Unidirectional P2P=Enabled Bandwidth (P2P Reads) Matrix (GB/s)\n   D\\D 0 1\n 0 9 5\n 1 5 9\n"
        )
        path.write_text(path.read_text() + reads + "Device=0 CANNOT Access Peer Device=1\n")
        probe = load_probe(path)
        assert probe.bandwidth_gb_per_s[0, 1] == 24
        assert "bandwidth is that of 'Unidirectional P2P=Enabled Bandwidth (P2P Writes)" in probe.assumed[0]
        assert "copies between GPUs that cannot access each other" in probe.assumed[-1]

    def test_faster_copies_through_host_memory_are_named(self, tmp_path):
        """If direct copies are slower than those through host memory, an assumption says so."""
        path = tmp_path / "p2p.txt"
        path.write_text(
            "Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)\n   D\\D 0 1\n 0 900 22\n 1 10 900\n"
            "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)\n   D\\D 0 1\n 0 900 10\n 1 10 900\n"
        )
        said = "copies through host memory are faster (22 for 10 GB/s) in 1 of 2 directed pairs, and not used"
        assert load_probe(path).assumed[-1] == said
        path.write_text(path.read_text().replace("900", "0.00"))  # the diagonal does not count
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert load_probe(path).assumed[-1] == said

    def test_cuda_sample_without_peer_access(self, tmp_path):
        """Rates with P2P disabled are read only if there are no others, and the assumptions name them."""
        path = tmp_path / "p2p.txt"
        path.write_text(
            "Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)\n   D\\D 0 1\n 0 900 11\n 1 11 900\n"
        )
        probe = load_probe(path)
        assert probe.bandwidth_gb_per_s[0, 1] == 11
        assert probe.assumed[-1] == "copies pass through host memory, as P2P is disabled"

    def test_two_way_rates_are_halved(self, tmp_path):
        """Without a one-way matrix, a direction has half of the sum that a two-way matrix states."""
        path = tmp_path / "p2p.txt"
        path.write_text("Bidirectional P2P=Enabled Bandwidth (GB/s)\n   D\\D 0 1\n 0 900 48\n 1 50 900\n")
        probe = load_probe(path)
        assert (probe.bandwidth_gb_per_s[0, 1], probe.bandwidth_gb_per_s[1, 0]) == (24, 25)
        assert probe.assumed[0].startswith("bandwidth is half of that of 'Bidirectional")

    def test_nvbandwidth_of_several_hosts(self, tmp_path):
        """GPUs of two hosts that NVLink joins count as one server, and a note says so."""
        path = tmp_path / "nvbandwidth.txt"
        path.write_text(
            "nvbandwidth Version: v0.8\n\nProcess 0 (a): device 0: A GPU (0:1)\nProcess 1 (b): device 0: A GPU (0:1)\n"
            "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n           0         1\n"
            " 0       N/A    798.02\n 1    798.10       N/A\n"
        )
        assert load_probe(path).assumed == ("GPUs of 2 hosts, which NVLink joins, count as one server",)

    def test_pairs_without_peer_access_are_named(self, tmp_path):
        """nvbandwidth leaves out pairs without peer access; the error says which tool measures them."""
        path = tmp_path / "nvbandwidth.txt"
        path.write_text(
            "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n    0    1    2\n"
            "0  N/A   52   N/A\n1   52  N/A  N/A\n2  N/A  N/A   N/A\n"
        )
        with pytest.raises(FormatError, match="pair of GPUs; such GPUs have no peer access; p2pBandwidth"):
            load_probe(path)

    @pytest.mark.parametrize("first", [0, 1])
    def test_models_of_gpus_are_read(self, tmp_path, first):
        """The list of devices above a matrix names the model of each GPU, unless a GPU is missing there."""
        path = tmp_path / "p2p.txt"
        path.write_text(
            "".join(f"Device: {i}, NVIDIA L4, pciBusID: {i}, pciDeviceID: 0\n" for i in range(first, 2))
            + "Unidirectional P2P=Enabled Bandwidth Matrix (GB/s)\n   D\\D 0 1\n 0 900 24\n 1 25 900\n"
        )
        assert load_probe(path).gpus == (("NVIDIA L4",) * 2 if first == 0 else ())

    @pytest.mark.parametrize("label", ["", "[1,0]<stdout>:"])
    def test_rocm_bandwidth_test(self, tmp_path, label):
        """The one-way rates of GPUs are read without those of CPUs, and the models of the GPUs."""
        path = tmp_path / "rocm.txt"
        lines = [
            "          RocmBandwidthTest Version: 2.6.0", "", "          Device: 0,  Example 7003 CPU",
            "          Device: 1,  AMD Instinct MI210,  GPU-aa,  0c:0.0",
            "          Device: 2,  AMD Instinct MI210,  GPU-bb,  43:0.0", "",
            "          Unidirectional copy peak bandwidth GB/s", "", "          D/D    0      1      2", "",
            "          0      N/A    21.5   22.5", "", "          1      20.5   901.5  41.5", "",
            "          2      23.5   42.5   902.5", "", "          Bidirectional copy peak bandwidth GB/s",
            "", "          D/D    0      1      2", "",
        ]  # fmt: skip
        path.write_text("".join(f"{label}{line}\n" for line in lines))
        probe = load_probe(path)
        assert probe.hosts == ("GPU 0", "GPU 1")
        assert [probe.bandwidth_gb_per_s[pair] for pair in ((0, 1), (1, 0))] == [41.5, 42.5]
        assert probe.gpus == ("AMD Instinct MI210",) * 2
        assert probe.assumed == ("CPUs are left out",)
        path.write_text("\n".join(lines).replace("41.5", "N/A "))
        with pytest.raises(FormatError, match="GPUs; such GPUs have no peer access; save the matrix as CSV"):
            load_probe(path)
        path.write_text("\n".join(lines).replace("902.5", "N/A").replace(",  43:0.0", ""))
        with pytest.raises(FormatError, match="line 7: found a matrix of 1 GPU; expected one of two GPUs"):
            load_probe(path)

    @pytest.mark.parametrize("mark", ["", ","], ids=["text", "CSV"])
    def test_transferbench(self, tmp_path, mark):
        """TransferBench names CPUs, which also copy to themselves; spreads and averages are left out."""
        path = tmp_path / "p2p.txt"
        path.write_text(
            "TransferBench v1.50\nUnidirectional copy peak bandwidth GB/s [Local read / Remote write]\n"
            " SRC+EXE\\DST    CPU 00    GPU 00    GPU 01\n  CPU 00  ->     31.5      22.5      23.5\n\n"
            "  GPU 00  ->     33.5     801.5      47.5\n  GPU 00 min     33.0     800.5      46.5\n"
            "  GPU 01  ->     34.5      48.5     802.5\n"
            "              CPU->CPU  CPU->GPU  GPU->CPU  GPU->GPU\n".replace("      ", f"{mark}      ")
        )
        probe = load_probe(path)
        assert probe.hosts == ("GPU 0", "GPU 1")
        assert [probe.bandwidth_gb_per_s[pair] for pair in ((0, 1), (1, 0))] == [47.5, 48.5]

    def test_mpigraph(self, tmp_path):
        """The matrix Send of mpiGraph is read, in MB/s of 2^20 bytes; a row that is missing is named."""
        path = tmp_path / "mpigraph.txt"
        head = "START mpiGraph v1.5\n\nSend max\t4000.0\n\nSend\tn0:0\tn1:1\tn2:2\t\n"
        rows = [f"n{i}:{i} to\t" + "".join(f"{1000.0 * (j - i)}\t" for j in range(3)) for i in range(3)]
        path.write_text(
            "\n".join([head.rstrip(), *rows, "", "Recv\tn0:0\tn1:1\tn2:2\t", "END"]).replace("-", "")
        )
        probe = load_probe(path)
        assert probe.hosts == ("n0", "n1", "n2")
        assert probe.bandwidth_gb_per_s[0, 2] == pytest.approx(2000 * 2**20 / 1e9)
        path.write_text("\n".join([head.rstrip(), *rows]).replace("-", "").replace("1000.0", "1e308"))
        with pytest.raises(FormatError, match=r"in row 0, column 1 \(n0 to n1\).*; expected at most 1e\+06"):
            load_probe(path)
        path.write_text("\n".join([head, *rows[:2]]))
        with pytest.raises(FormatError, match="found 2 rows of 3 hosts"):
            load_probe(path)

    @pytest.mark.parametrize(("arrow", "from_0_to_1"), [("->", 26.5), ("<-", 26.0)])
    def test_nvbandwidth(self, tmp_path, arrow, from_0_to_1):
        """The first matrix of GPUs is read; the arrow gives the direction of the data."""
        path = tmp_path / "nvbandwidth.txt"
        path.write_text(
            "nvbandwidth Version: v0.8\n\nRunning host_to_device_memcpy_ce.\n"
            "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n           0         1\n 0     55.6     55.7\n\n"
            f"Running device_to_device_memcpy_ce.\nmemcpy CE GPU(row) {arrow} GPU(column) bandwidth (GB/s)\n"
            "           0         1\n 0       N/A     26.50\n 1     26.00       N/A\n\nSUM device_to_device 52.5\n"
        )
        probe = load_probe(path)
        assert probe.hosts == ("GPU 0", "GPU 1")
        assert probe.bandwidth_gb_per_s[0, 1] == from_0_to_1
        topology = taccl.topologies.load(path)
        assert {float(link.alpha_us) for link in topology.links} == {0.3}
        assert "every latency 0.3 us" in topology.assumed

    @pytest.mark.parametrize(("before", "after"), [("", ""), ("$ ./nvbandwidth -j\n", "done\n")])
    def test_json_of_nvbandwidth(self, tmp_path, before, after):
        """JSON of nvbandwidth (--json) gives the matrices, and the models of the GPUs, that its text shows."""
        path = tmp_path / "nvbandwidth.json"
        gpus = [f"{i}: NVIDIA H100 80GB HBM3 (00000000:{i}B:00): (n1)" for i in range(2)]
        tests = [
            ("host_to_device_memcpy_ce", "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)", [["55", "56"]]),
            ("device_to_device_bidirectional_memcpy_read_ce", "memcpy CE GPU(row) <-> GPU(column) Total bandwidth (GB/s)",
             [["N/A", "1"], ["1", "N/A"]]),
            ("device_to_device_memcpy_read_ce", "memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)",
             [["N/A", "390.5"], ["391.25", "N/A"]]),
            ("device_to_device_latency_sm", "Device to Device Latency SM GPU(row) <-> GPU(column) (ns)",
             [["N/A", "614"], ["613", "N/A"]]),
        ]  # fmt: skip
        cases = [
            {"name": name, "status": "Passed", "bandwidth_description": said, "bandwidth_matrix": rows}
            for name, said, rows in tests
        ]
        waived = {"name": "device_local_copy", "status": "Waived"}
        for kept, bandwidth in ((cases, 391.25), (cases[:2], None)):
            data = {"version": "v0.8", "GPU Device list": gpus, "testcases": [*kept, waived]}
            path.write_text(f"{before}{json.dumps({'nvbandwidth': data}, indent=3)}\n{after}")
            if bandwidth is None:
                with pytest.raises(
                    FormatError, match="no one-way matrix of GPUs; .*device_to_device_memcpy_read"
                ):
                    load_probe(path)
                continue
            probe = load_probe(path)
            assert (probe.bandwidth_gb_per_s[0, 1], probe.latency_us[1, 0]) == (bandwidth, 0.613)
            assert probe.gpus == ("NVIDIA H100 80GB HBM3",) * 2
            assert taccl.topologies.load(path).num_ranks == 2
        path.write_text('{"nvbandwidth": {"testcases": [3]}}')
        with pytest.raises(FormatError, match="not of its kind"):
            load_probe(path)

    @pytest.mark.parametrize("is_alone", [True, False])
    def test_sums_of_two_way_tests_are_no_rates(self, tmp_path, is_alone):
        """Early versions of nvbandwidth print sums of both directions below the heading of one direction."""
        head = "memcpy SM GPU(row) -> GPU(column) bandwidth (GB/s)\n          0         1\n"
        text, other = (
            f"Running {test}.\n{head}0       N/A     {rate:.2f}\n1     {rate:.2f}       N/A\n\n"
            for test, rate in (
                ("device_to_device_bidirectional_memcpy_read_sm", 50),
                ("device_to_device_memcpy_read_sm", 26),
            )
        )
        path = tmp_path / "nvbandwidth.txt"
        path.write_text(text + other * (not is_alone))
        if is_alone:
            with pytest.raises(FormatError, match="no one-way matrix of GPUs"):
                load_probe(path)
        else:
            assert load_probe(path).bandwidth_gb_per_s[0, 1] == 26

    @pytest.mark.parametrize(
        "label", ["[1,0]<stdout>:", " 0: ", "2026-01-02T03:04:{:02}.6Z ", "{:4}\t", "\x1b[1m"]
    )
    @pytest.mark.parametrize("text", [
        "P2P Connectivity Matrix\n     D\\D     0     1\n     0     1     1\n     1     1     1\n\n"
        "Unidirectional P2P=Enabled Bandwidth Matrix (GB/s)\n   D\\D     0      1\n     0 900.00  24.00\n"
        "     1  25.00 900.00\n\n\n\n\n",
        "nvbandwidth Version: v0.8\n\nRunning device_to_device_memcpy_ce.\n"
        "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n           0         1\n"
        " 0       N/A     24.00\n 1     25.00       N/A\n",
    ])  # fmt: skip
    def test_labels_before_the_lines_are_ignored(self, tmp_path, text, label):
        """Labels of launchers, times and numbers of lines before a matrix are no cells of it."""
        path = tmp_path / "matrix.txt"
        path.write_text("".join(f"{label.format(i)}{line}\n" for i, line in enumerate(text.splitlines(), 5)))
        assert taccl.topologies.load(path).num_ranks == 2
        rates = load_probe(path).bandwidth_gb_per_s
        assert (rates[0, 1], rates[1, 0]) == (24, 25)

    def test_nvbandwidth_with_latencies(self, tmp_path):
        """The matrix of latencies, in ns, is read, too; it must be of the same GPUs."""
        path = tmp_path / "nvbandwidth.txt"
        bandwidths = (
            "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n           0         1\n"
            " 0       N/A    798.02\n 1    798.10       N/A\n\n"
        )
        head = "Device to Device Latency SM GPU(row) <-> GPU(column) (ns)\n"
        path.write_text(f"{bandwidths}{head}       0       1\n 0     N/A  614.25\n 1  613.75     N/A\n")
        topology = taccl.topologies.load(path)
        assert [float(link.alpha_us) for link in topology.links] == [0.614, 0.614]
        assert not any("latency" in each for each in topology.assumed)
        path.write_text(f"{bandwidths}{head}       0\n 0     N/A\n")
        with pytest.raises(FormatError):
            load_probe(path)

    @pytest.mark.parametrize("name", ["latency.csv", "p2p.txt", "pairs.txt"])
    def test_quoted_matrices_are_read(self, tmp_path, name):
        """Matrices are read from quotes of mails (``>``) and code fences."""
        text = (FOREIGN / "pair-matrix" / name).read_text()
        path = tmp_path / name
        path.write_text("```\n" + "".join(f"> {line}\n" for line in text.splitlines()) + "```\n")
        assert format_of_content(path).name == "pair-matrix"
        quoted, plain = load_probe(path), load_probe(FOREIGN / "pair-matrix" / name)
        assert quoted.hosts == plain.hosts
        assert np.array_equal(quoted.distance, plain.distance, equal_nan=True)

    def test_logs_of_pairs(self, tmp_path):
        """An unmeasured direction gets the figure of the reverse; a missing pair is named in an error."""
        latency = "# pair {} {}\n# OSU MPI Latency Test v7.3\n# Size Latency (us)\n1 {}\n8 9.0\n"
        bandwidth = (
            "# pair {} {}\n #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n"
            " 1048576    5000    10000.00    10000.00    0.010\n"
        )
        path = tmp_path / "pairs.txt"
        path.write_text(latency.format("a", "b", 1.5) + bandwidth.format("a", "b"))
        probe = load_probe(path)
        assert probe.bandwidth_gb_per_s is not None
        assert probe.latency_us.tolist()[1][0] == 1.5
        # perftest's MB are 2**20 bytes.
        assert probe.bandwidth_gb_per_s[0, 1] == pytest.approx(10000 * 2**20 / 1e9)
        path.write_text(latency.format("a", "b", 1.5) + latency.format("b", "c", 1.5))
        with pytest.raises(FormatError, match=r"found no entry in row 0, column 2 \(a to c\)"):
            load_probe(path)


def test_squares_of_cophenetic_distances_rank_dendrograms_as_their_correlation():
    """Under average linkage the cophenetic correlation is a monotone function of the sum of squared
    distances."""
    from scipy.cluster.hierarchy import cophenet, linkage

    pairs = np.random.default_rng(0).uniform(1, 2, 10 * 9 // 2)
    correlation, distances = cophenet(linkage(pairs, "average"), pairs)
    assert correlation == pytest.approx(distances.std() / pairs.std())
    assert _squares(linkage(pairs, "average")) == pytest.approx(float((distances**2).sum()))


def test_matrices_of_pages_and_other_locales_are_read(tmp_path):
    """A matrix in a table of HTML, or with decimal commas, has the rates that it shows."""
    printed = "Unidirectional P2P=Enabled Bandwidth Matrix (GB/s)\n D\\D 0 1 2\n 0 900.5 24.5 24.5\n 1 24.5 900.5 24.5\n 2 24.5 24.5 900.5\n"
    cells = [["GB/s", "a", "b"], ["a", "0", "24.5"], ["b", "24.5", "0"]]
    table = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in cells)
    for text in (printed.replace(".", ","), f"<pre>{printed}</pre>", f"<table>{table}</table>"):
        path = tmp_path / "pairs.txt"
        path.write_text(text)
        assert format_of_content(path).name == "pair-matrix"
        rates = load_probe(path).bandwidth_gb_per_s
        assert {rate for rate in rates[~np.eye(len(rates), dtype=bool)]} == {24.5}


def test_commas_between_cells_or_thousands_are_no_decimal_commas(tmp_path):
    """Cells of three digits between commas stay apart, and 12,500 MB/s are not read as 12.5 MB/s."""
    path = tmp_path / "pairs.csv"
    path.write_text("GB/s,a,b,c\na,0,100,200.5\nb,100,0,150\nc,200.5,150,0\n")
    assert load_probe(path).bandwidth_gb_per_s[0, 1:].tolist() == [100, 200.5]
    path.write_text("MB/s a b c\na 0 12,500 12,480\nb 12,500 0 12,470\nc 12,480 12,470 0\n")
    with pytest.raises(FormatError, match="found 2 entries"):
        load_probe(path)


@pytest.mark.parametrize("most", [2, 5, 1000])
def test_clusters_are_those_of_scipy(most):
    """Average linkage joins the same clusters as SciPy's, in the same order, also if many distances are equal."""
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    draw = np.random.default_rng(most)
    for count in range(2, 20):
        far = draw.integers(1, most, (count, count)).astype(float)
        far += far.T
        pairs = squareform(far * ~np.eye(count, dtype=bool))
        known = linkage(pairs, "average")[:, :2].astype(int).tolist()
        assert [sorted(pair) for pair in _average_linkage(far)] == known
