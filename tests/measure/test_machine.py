"""Rates of machine models follow from their links."""

import pytest

import taccl
from taccl.errors import FormatError, InputError
from taccl.formats.nccl.topology import load_nccl_topology
from taccl.measure.gpus import check_alike, machine_by_gpus
from taccl.measure.machine import find_machine, instance_of, machine_of, nodes_of
from taccl.measure.mismatch import rack_mismatch
from taccl.measure.predict import costs_of, known_machines, predict
from taccl.measure.series import Log
from taccl.topology.models import MODELS
from taccl.topology.registry import parse
from tests.nvswitch import server_xml


@pytest.mark.parametrize(("name", "ranks_per_node", "ranks_per_nic", "node", "network"), [
    ("dgx-h100", 8, 1, 450.0, 50.0),  # a port of NVSwitch; a NIC of 400 Gb/s
    ("dgx2", 16, 2, 150.0, 12.5),
    ("ndv2", 8, 8, 150.0, 12.5),  # six NVLinks of 25 GB/s; one NIC of 100 Gb/s for all
])  # fmt: skip
def test_promises(name, ranks_per_node, ranks_per_nic, node, network):
    """A machine has the expected GB/s of a rank inside its node and of a NIC, and ranks per NIC."""
    found = find_machine(name)
    assert (found.ranks_per_node, found.ranks_per_nic) == (ranks_per_node, ranks_per_nic)
    assert (found.node_gb_per_s, found.network_gb_per_s) == pytest.approx((node, network))


@pytest.mark.parametrize("machine", ["dgx-h100", "b200"])
def test_sums_in_switches_do_not_lower_the_rate_between_ranks(machine):
    """A rank sends to another at the full rate of its links, with or without sums in NVSwitch (NVLS)."""
    with_sums, without = (machine_of(parse(machine, nvls=nvls)) for nvls in (True, False))
    assert with_sums.node_gb_per_s == without.node_gb_per_s


@pytest.mark.parametrize(("gpu", "machine"), [
    ("NVIDIA A100-SXM4-80GB", "dgx-a100"), ("NVIDIA A100-PCIE-40GB", "a100-pcie"),
    ("NVIDIA A100 80GB PCIe", "a100-pcie"), ("NVIDIA H100 PCIe", "h100-pcie"), ("NVIDIA H100 NVL", None),
    ("Tesla V100-PCIE-16GB", "v100-pcie"), ("Tesla V100-SXM2-16GB", None), ("NVIDIA L40S", "l40s"),
    ("NVIDIA A10G", "l40s"), ("Tesla T4", "t4"), ("NVIDIA GB300", "gb200-nvl72"), ("NVIDIA GeForce RTX 4090", "l40s"),
    ("AMD Instinct MI325X OAM", "mi300x"), ("AMD Instinct MI350X", "mi350x"), ("NVIDIA H800", "h800"), ("NVIDIA H800 PCIe", "h100-pcie"),
    ("NVIDIA A800-SXM4-80GB", "a800"), ("NVIDIA A800 80GB PCIe", "a100-pcie"), ("NVIDIA L20", "l40s"),
    ("NVIDIA GH200 120GB", "gh200"), ("NVIDIA H20-3e", "dgx-h100"), ("NVIDIA PG509-210", "dgx-a100"),
    ("NVIDIA RTX A6000", "l40s"), ("NVIDIA RTX 6000 Ada Generation", "l40s"),
    ("Quadro RTX 6000", "v100-pcie"), ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "h100-pcie"),
    ("NVIDIA GeForce RTX 5090", "h100-pcie"), ("GeForce RTX 2080 Ti", "v100-pcie"),
    ("Tesla P100-PCIE-16GB", "v100-pcie"), ("Tesla P100-SXM2-16GB", None), ("AMD Instinct MI250X", None),
    ("NVIDIA Graphics Device", None),
])  # fmt: skip
def test_gpu_names_identify_the_machine(gpu, machine):
    """GPU names identify the machine: PCIe boards are not NVSwitch boards, and ambiguous boards give none."""
    assert machine_by_gpus([gpu]) == machine


@pytest.mark.parametrize(
    ("machine", "network", "instance"),
    [
        ("dgx-a100", "efa", "p4d.24xlarge"), ("dgx-h100", "efa", "p5.48xlarge"), ("h200", "efa", "p5en.48xlarge"),
        ("dgx-h100", "tcpx", "a3-highgpu-8g"), ("dgx-h100", "tcpxo", "a3-megagpu-8g"), ("l40s", "efa", ""),
        ("dgx-h100", "roce", ""), ("gh200", "slingshot", ""), ("b200", "efa", "p6-b200.48xlarge"),
    ],
)  # fmt: skip
def test_networks_of_clouds_identify_the_instance_type(machine, network, instance):
    """A network that only clouds have tells the instance type, unless several types differ or none is known."""
    assert instance_of(machine, network) == instance


@pytest.mark.slow
def test_predictions_know_every_machine():
    """One table of machines serves predictions, diagnoses and schedules."""
    names = known_machines()
    assert set(names) == {name for name in taccl.topologies.machine_names() if MODELS[name].has_library}
    assert all(costs_of(name).node_gb_per_s <= find_machine(name).node_gb_per_s for name in names)


@pytest.mark.parametrize("name", ["ring:4", "links.toml", "nowhere"])
def test_only_machine_models_are_fitted(name):
    """Fabrics and files have no profiles and are not offered for fits."""
    with pytest.raises(InputError, match="expected a machine model, by name: ndv2, dgx1") as caught:
        find_machine(name)
    assert "ring:8" not in str(caught.value)


def test_a_file_is_to_be_loaded_first(tmp_path):
    """A file that is given by its path in place of a machine is refused, with the function that reads it."""
    (tmp_path / "links.toml").touch()
    with pytest.raises(InputError, match="for a file give the topology that taccl.topologies.load makes"):
        find_machine(str(tmp_path / "links.toml"))


def test_pcie_boards_among_others_are_mixed():
    """One H100 PCIe among boards with NVLink makes a log of mixed GPUs, as links differ; memory sizes do not."""
    mixed = Log("a.log", (), frozenset({"NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe"}), (), ())
    with pytest.raises(FormatError, match="found mixed GPUs, NVIDIA H100 80GB HBM3, NVIDIA H100 PCIe"):
        check_alike([mixed], "diagnose")
    check_alike(
        [mixed._replace(gpus=frozenset({"NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-40GB"}))], "diagnose"
    )


@pytest.mark.filterwarnings("ignore::taccl.errors.AssumptionWarning")
def test_trays_of_a_rack_are_not_joined_by_nics(tmp_path):
    """A file of one GB200 tray does not show the NVLinks between trays; the sentence names the rack's model."""
    path = tmp_path / "tray.xml"
    path.write_text(server_xml(100, 18, gpus=4))
    one, two = (load_nccl_topology(path, nodes=nodes) for nodes in (1, 2))
    said = rack_mismatch(two, {"NVIDIA GB200"})
    assert said.startswith("NVLink joins up to 72 GPUs of gb200-nvl72, but NICs join the file's nodes of 4")
    assert said.endswith("use --topology gb200-nvl72")
    named = taccl.topologies.dgx_h100(2)
    others = ((one, "NVIDIA GB200"), (two, "NVIDIA B200"), (two, "unknown"), (named, "NVIDIA GB200"))
    assert not any(rack_mismatch(topology, {gpu}) for topology, gpu in others)


def test_estimated_ranks_are_rounded_to_full_nodes():
    """The columns of 64 ranks may show 68: 8 nodes. Few ranks are exact, and a rack may be used in part."""
    assert [nodes_of(num, 8) for num in (4, 8, 12, 64, 68, 93)] == [1, 1, 2, 8, 8, 12]
    assert [nodes_of(num, 72) for num in (64, 72, 128)] == [1, 1, 2]


def test_old_versions_of_rccl_start_later_between_nodes():
    """RCCL 2.22 starts 180 us later between nodes than 2.27; NCCL of that version does not."""
    versions = {(2, 20): "rccl-2.22", (2, 22): "rccl-2.22", (2, 27): "rccl", (): "rccl"}
    assert {each: costs_of("mi300x").under(each).network.name for each in versions} == versions
    assert costs_of("dgx-h100").under((2, 22)).network.name == "infiniband"
    old, new = (predict("mi300x", "allreduce", 8, nodes=2, network=name) for name in ("rccl-2.22", "rccl"))
    assert old.time_us - new.time_us == pytest.approx(180)
