"""Diagnoses on topologies from files of servers agree with those on machines by name."""

from types import SimpleNamespace

import pytest

import taccl
from taccl.errors import InputError
from taccl.explore import measured_machine
from tests.explore.degraded import CASES, node_log
from tests.explore.test_diagnose import judged, rates
from tests.fuzzing import thinned
from tests.nvswitch import matrix, server_xml

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::taccl.errors.AssumptionWarning")]

#: Servers of the published logs, as arguments of `server_xml`.
A100 = {"sm": 80, "nvlinks": 12, "nic_mbit_per_s": 200_000}
H100 = {"sm": 90, "nvlinks": 18}
A3_MEGA = {**H100, "nic_mbit_per_s": 200_000}
V100 = {"sm": 70, "nvlinks": 6, "gpus": 16, "nic_mbit_per_s": 100_000}
#: Name of the GPUs in logs of `node_log`.
H100_NAME = "NVIDIA H100 80GB HBM3"
#: {published log of a healthy machine: its servers}.
HEALTHY = {
    "unseen/ndmv4_x2_allreduce": A100,
    "unseen/ndmv4_x2_allgather": A100,
    "unseen/ndmv4_x1_allreduce": A100,
    "unseen/ndmv4_x1_allgather": A100,
    "unseen/ndmv4_x1_alltoall": A100,
    "a100_p4de.24xlarge_x2_allreduce_aws": {**A100, "nic_mbit_per_s": 100_000, "gpus_per_nic": 2},
    "h100_p5.48xlarge_x2_allreduce_aws": {**H100, "nic_mbit_per_s": 100_000, "nics_per_gpu": 4},
    "p5_x1_allreduce_aws_batch": H100,
    "unseen/mscclpp_fig_h100_x1_nccl_allreduce": H100,
    "h100_a3mega_x2_allreduce_gcp": A3_MEGA,
    "h100_a3mega_gke_x2_allgather_full": A3_MEGA,
    "h100_oci_x2_allreduce_large": {**A3_MEGA, "nics_per_gpu": 2},
    "b200_lambda_x2_allreduce": {"sm": 100, "nvlinks": 18},
    "unseen/l40s_2x1_allreduce": {"sm": 89, "nvlinks": 0, "gpus": 1, "nic_mbit_per_s": 100_000},
    "unseen/dgx2_12gpu_allreduce": V100,
    "unseen/dgx2_12gpu_broadcast": V100,
}


@pytest.fixture
def xml(tmp_path):
    """Function that writes NCCL's XML of a server and returns its path."""

    def written(**server):
        path = tmp_path / "server.xml"
        path.write_text(server_xml(**server))
        return str(path)

    return written


@pytest.mark.parametrize("name", thinned(sorted(HEALTHY), every=6))
def test_healthy_published_logs_are_healthy_on_files(shared_data, xml, name):
    """On a file's topology, a healthy log's bandwidth of large messages is 93 to 110 % of the expected one,
    without a cause."""
    found = judged(str(shared_data / "nccl-tests" / f"{name}.txt"), topology=xml(**HEALTHY[name]))
    assert 0.93 <= found.share <= 1.1
    assert not rates(found) | rates(found, "possible")
    assert "large messages" not in found.verdict


#: {published log of one healthy node: (NVLinks of a GPU, number of GPUs)}.
HEALTHY_NODES = {
    "unseen/ndmv4_x1_allreduce": (12, 8),
    "unseen/ndmv4_x1_allgather": (12, 8),
    "unseen/ndmv4_x1_alltoall": (12, 8),
    "p5_x1_allreduce_aws_batch": (18, 8),
    "unseen/mscclpp_fig_h100_x1_nccl_allreduce": (18, 8),
    "unseen/dgx2_12gpu_allreduce": (6, 16),
}


@pytest.mark.parametrize("name", thinned(sorted(HEALTHY_NODES)))
def test_healthy_published_logs_are_healthy_on_matrices(shared_data, tmp_path, name):
    """On a matrix of ``nvidia-smi topo -m``, NVLinks have NCCL's rate. A healthy log of one node has 93 to
    113 % of the bandwidth that this rate allows."""
    nvlinks, gpus = HEALTHY_NODES[name]
    path = tmp_path / "server.txt"
    path.write_text(matrix(nvlinks, gpus=gpus))
    found = judged(str(shared_data / "nccl-tests" / f"{name}.txt"), topology=str(path))
    assert 0.93 <= found.share <= 1.13
    assert any("GB/s assumed for an NVLink" in note for note in found.notes)


@pytest.mark.parametrize(
    ("name", "rate"), thinned([("Tesla T4", 6), ("NVIDIA L40S", 20), ("NVIDIA H100 PCIe", 40)], every=2)
)
def test_a_matrix_has_the_pcie_rate_of_the_named_gpus(log, tmp_path, name, rate):
    """A matrix without NVLinks does not show the generation of PCIe, which follows from names of GPUs."""
    path = tmp_path / "server.txt"
    path.write_text(matrix(0).replace("NV0", "NODE"))
    found = judged(log(node_log(rate).replace(H100_NAME, name)), topology=str(path))
    assert found.share == pytest.approx(1, rel=0.02)
    assert any(f"{rate} GB/s assumed for a PCIe link" in note for note in found.notes)


def test_limits_on_a_file_are_of_the_algorithm_of_the_verdict(log, tmp_path):
    """Four of 8 H100 use rings, so their busiest resource is a port at its full rate, not at that of NVLS."""
    path = tmp_path / "h100.txt"
    path.write_text(matrix(18))
    gpus = "\n".join(f"#  Rank {r} Group 0 Pid 1 on host0 device {r} [0x00] {H100_NAME}" for r in range(4))
    text = (
        f"# all_reduce_perf\n{gpus}\n# size count type redop root time\n{2**30} {2**28} float sum -1 4500\n"
    )
    (found,) = taccl.diagnose([log(text)], str(path), gains=False).series
    assert "(ring, " in found.verdict
    assert found.limits[0].gb_per_s == pytest.approx(370.8, rel=1e-3)


@pytest.mark.parametrize("name", ["alltoall", "all_gather"])
def test_collectives_on_a_file_have_the_times_of_the_machine(log, tmp_path, name):
    """On a matrix of 8 H100, other collectives than sums have the expected times of the machine by name, too."""
    path = tmp_path / "h100.txt"
    path.write_text(matrix(18))
    rows = "\n".join(f"{size} {size // 4} float none -1 {20 + size / 4e5:.2f}" for size in (1024, 2**30))
    gpus = "\n".join(f"#  Rank {r} Group 0 Pid 1 on host0 device {r} [0x00] {H100_NAME}" for r in range(8))
    text = f"# {name}_perf\n{gpus}\n# size count type redop root time\n{rows}\n"
    found, named = (judged(log(text), topology=on) for on in (str(path), "dgx-h100"))
    assert (found.share, found.usual_us) == pytest.approx((named.share, named.usual_us), rel=1e-3)


def test_servers_on_pcie_are_judged_as_the_machine(log, tmp_path):
    """NCCL's XML states 24 GB/s for PCIe 4.0, of which channels take 20: a healthy log is as expected.

    Small messages have the expected time of the machine by name.
    """
    path = tmp_path / "l40s.xml"
    path.write_text(server_xml(89, 0, gen="16.0", gpus_per_nic=2))
    text = node_log(20.0, latency_us=22.0).replace(H100_NAME, "NVIDIA L40S")
    found, named = (judged(log(text), topology=on) for on in (str(path), "l40s"))
    assert found.verdict.endswith("; as expected")
    assert found.share == pytest.approx(named.share, rel=0.01)
    assert found.usual_us == pytest.approx(named.usual_us, rel=0.01)


def test_an_alltoall_between_nodes_is_within_the_error(shared_data, xml):
    """An alltoall on 2 x 8 A100, 9 % slower than expected by machine and by file, has no likely cause."""
    found = judged(str(shared_data / "nccl-tests/unseen/ndmv4_x2_alltoall.txt"), topology=xml(**A100))
    assert "within the error of the model" in found.verdict
    assert not rates(found)


@pytest.mark.parametrize(("fault", "text"), thinned(CASES))
def test_every_likely_cause_is_the_fault_on_files(log, xml, fault, text):
    """The fault is among the causes, and each cause that is graded likely is the fault, as on machines by
    name."""
    found = judged(log(text), topology=xml(**(H100 if "H100" in text else A100)))
    assert rates(found) <= {fault}
    assert fault == "none" or fault in rates(found) | rates(found, "possible")


def test_the_assumed_network_is_stated(shared_data, xml):
    """Notes name the class of network that is assumed for a file, with the rate that it reaches."""
    logs = [
        str(shared_data / "nccl-tests/unseen" / f"{name}.txt")
        for name in ("ndmv4_x2_allreduce", "l40s_2x1_allreduce")
    ]
    servers = (A100, HEALTHY["unseen/l40s_2x1_allreduce"])
    found = [judged(path, topology=xml(**server)).notes for path, server in zip(logs, servers, strict=True)]
    assert any(
        "93% of the line rate of NICs is assumed to be reached, as on infiniband" in note for note in found[0]
    )
    assert any(
        "65% of the line rate of NICs is assumed to be reached, as on roce-pcie" in note for note in found[1]
    )
    assert not any("line rate" in note for note in judged(logs[0], topology="dgx-a100").notes)


@pytest.mark.parametrize("text", [server_xml(90, 8), matrix(8)], ids=["xml", "topo -m"])
def test_fewer_links_of_hopper_have_nvls(log, tmp_path, text):
    """The published 215 GB/s of busbw on 8 H800 (NVIDIA/nccl issue 1374) are as expected, by NVLS."""
    path = tmp_path / ("h800.xml" if text.startswith("<") else "h800.txt")
    path.write_text(text)
    found = judged(log(node_log(215.0).replace(H100_NAME, "NVIDIA H800")), topology=str(path))
    assert found.share == pytest.approx(1, rel=0.03)
    assert "(NVLS, 218.8" in found.verdict
    assert found.verdict.endswith("; as expected")


@pytest.mark.parametrize(
    ("name", "said"),
    [("NVIDIA A100-SXM4-40GB", "are those of Hopper"), ("NVIDIA H800", "exceed their NVLinks")],
)
def test_ports_of_other_gpus_are_said(log, tmp_path, name, said):
    """If a log names GPUs that do not have the 18 NVLinks of a matrix, a note says so, with the remedy."""
    path = tmp_path / "h100.txt"
    path.write_text(matrix(18))
    notes = judged(log(node_log(235.0).replace(H100_NAME, name)), topology=str(path)).notes
    (note,) = (note for note in notes if "the GPUs are" in note)
    assert f"{name}, but the file's ports of 450 GB/s {said}" in note
    assert "--set nvlink_gb_per_s=" in note


@pytest.mark.parametrize(("name", "gb_per_s"), [("NVIDIA B200", 840.0), (H100_NAME, 470.0)])
def test_equal_matrices_have_the_rate_of_the_named_gpus(log, tmp_path, name, gb_per_s):
    """A matrix shows B200 and H100 alike; the names in the log tell which rate NVLinks have."""
    path = tmp_path / "server.txt"
    path.write_text(matrix(18))
    found = judged(log(node_log(gb_per_s).replace(H100_NAME, name)), topology=str(path))
    assert found.share == pytest.approx(1, rel=0.06)
    assert not any("the GPUs are" in note for note in found.notes)


def test_files_without_nvlinks_are_refused_for_gpus_that_have_them(log, tmp_path):
    """Clouds' virtual NCCL files list no NVLinks, as NCCL finds them: the error names the machine to give."""
    path = tmp_path / "virtual.xml"
    path.write_text(server_xml(sm=90, nvlinks=0))
    where = log(node_log(470.0))
    with pytest.raises(InputError, match=r"found no NVLinks, but the GPUs are NVIDIA H100.* give dgx-h100"):
        judged(where, topology=str(path))


@pytest.mark.parametrize(
    ("line", "note"),
    [
        (
            "NET/OFI Selected provider is efa, fabric is efa-direct (found 32 nics)",
            "names efa as its network",
        ),
        ("Using network Socket", "names sockets as its network"),
        ("NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>", ""),
        ("cudaDriverVersion 12040", "the log names no network"),
    ],
)
def test_the_network_of_debug_lines_is_compared(shared_data, tmp_path, line, note):
    """Lines of NCCL_DEBUG=INFO name the network; a note states if the machine has another one."""
    path = tmp_path / "debug.log"
    text = (shared_data / "nccl-tests" / "h100_a3mega_x2_allreduce_gcp.txt").read_text()
    path.write_text(f"host:14001:14050 [0] NCCL INFO {line}\n{text}")
    notes = [each for each in judged(str(path)).notes if "network" in each]
    assert [note in each for each in notes if "log names" in each] == [True] * bool(note)


@pytest.mark.parametrize("line", ["Using network AWS Libfabric", "NET/OFI Selected provider is cxi"])
def test_a_plugin_for_several_networks_names_none(tmp_path, line):
    """The plugin for libfabric serves Slingshot as well as EFA, so it does not contradict Slingshot."""
    devices = "".join(
        f"#  Rank {rank} Group 0 Pid {rank} on n{rank // 4} device {rank % 4} [0x01] NVIDIA GH200 120GB\n"
        for rank in range(8)
    )
    path = tmp_path / "debug.log"
    path.write_text(
        f"# all_reduce_perf\n{devices}n0:1:2 [0] NCCL INFO {line}\n"
        " 134217728 33554432 float sum -1 1900.0 70.64 123.62 0\n"
    )
    assert not any("its network" in note for note in judged(str(path)).notes)


def test_h20_is_judged_by_alike_links(log):
    """H20 has the NVLinks of H100: logs that name it are judged on dgx-h100, and a note says so."""
    found = judged(log(node_log(470.0).replace(H100_NAME, "NVIDIA H20")))
    assert "the GPUs are NVIDIA H20; dgx-h100, whose links are alike, is assumed (--topology)" in found.notes


def test_bridges_are_judged_by_the_matrix(log, tmp_path):
    """Boards on PCIe that are faster than PCIe have bridges; eight bridged in pairs share paths of PCIe."""
    pair = judged(log(node_log(208.0).replace(H100_NAME, "NVIDIA A100 80GB PCIe")))
    assert "faster than PCIe, as with NVLink bridges" in pair.verdict
    cells = [["X" if a == b else "NV12" if a // 2 == b // 2 else "SYS" for b in range(8)] for a in range(8)]
    head = "\t" + "\t".join(f"GPU{a}" for a in range(8)) + "\tCPU Affinity"
    path = tmp_path / "bridged.txt"
    path.write_text("\n".join([head, *("\t".join([f"GPU{a}", *cells[a], "0-63"]) for a in range(8))]) + "\n")
    text = node_log(20.0).replace(H100_NAME, "NVIDIA A100 80GB PCIe")
    found = judged(log(text), topology=str(path))
    assert rates(found, "possible") == {"one-path"} and not rates(found)
    assert found.usual_us is None and any("states no latencies" in note for note in found.notes)
    assert "large messages: usual for bridged pairs, whose rings share one path of PCIe" in found.verdict
    path.write_text(path.read_text().replace("NV12", "PHB"))
    fast = node_log(90.0).replace(H100_NAME, "NVIDIA A100 80GB PCIe")
    assert "faster than the PCIe links of --topology" in judged(log(fast), topology=str(path)).verdict


@pytest.mark.parametrize(
    ("gpu", "gb_per_s", "said"),
    [
        ("NVIDIA A100 80GB PCIe", 19.5, "as expected of PCIe alone: bridges between pairs of such boards are not in"),
        ("NVIDIA A40", 26.0, "faster than PCIe, as with NVLink bridges: give `nvidia-smi topo -m` as --topology"),
        ("NVIDIA A40", 10.0, "or all channels use one path of PCIe between bridged GPUs)"),
        ("NVIDIA L40S", 19.5, "as expected"), ("NVIDIA L40S", 26.0, "check --topology and the number of ranks"),
    ],
)  # fmt: skip
def test_boards_that_may_be_bridged_ask_for_the_matrix(log, gpu, gb_per_s, said):
    """The names of A100 on PCIe and A40 do not tell bridges, so the verdict does; L40S have none."""
    verdict = judged(log(node_log(gb_per_s, latency_us=22.0).replace(H100_NAME, gpu))).verdict
    assert said in verdict
    assert ("bridge" in verdict) == ("L40S" not in gpu)


def test_files_of_all_nodes_are_diagnosed_and_those_of_one_node_name_the_way_out(shared_data, tmp_path):
    """A JSON file of two nodes is judged with a log of two hosts; one of a single node names the setting `nodes`."""
    source, log = tmp_path / "topo.txt", str(shared_data / "nccl-tests/h100_oci_x2_allreduce_large.txt")
    source.write_text(matrix(18))
    for nodes in (1, 2):
        taccl.convert(str(source), str(tmp_path / f"{nodes}.json"), nodes=nodes, nic_gb_per_s=50)
    assert judged(log, topology=str(tmp_path / "2.json")).series.num_ranks == 16
    with pytest.raises(
        InputError, match="found 16 ranks; .* has 8 here: .*--set nodes=2` makes a file of more"
    ):
        judged(log, topology=str(tmp_path / "1.json"))


def test_a_profile_names_the_machine_of_a_log_without_gpus(tmp_path):
    """The machine of a log that lists no GPUs is that of the given profile file."""
    path = tmp_path / "mine.toml"
    path.write_text('machine = "dgx-h100"\n[constants]\n')
    asked = measured_machine.Machine(None, profile=str(path))
    assert measured_machine._word(SimpleNamespace(num_nodes=1), asked, (), "") == ("dgx-h100", [])
