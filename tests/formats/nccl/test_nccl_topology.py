"""NCCL topology files: PCIe trees, NVLinks, NICs, and the assumptions for each published file."""

from fractions import Fraction

import pytest

import taccl
from taccl.errors import FormatError, InputError, TopologyError
from taccl.formats.nccl.topology import load_nccl_topology
from tests.effort import first_schedule
from tests.foreign import OURS, foreign_files
from tests.formats.nccl.servers import holders, load_quietly, write_dump
from tests.fuzzing import thinned

# PCIe: lanes * units / 80 GB/s. 16 lanes at 8 GT/s (60 units) are 12 GB/s, at 16 GT/s 24, at 32 GT/s 48.
GEN3, GEN4, GEN5 = Fraction(1000, 12), Fraction(1000, 24), Fraction(1000, 48)
#: Notes of assumptions for files that have only bus ids.
SAID = {
    "aws-g5.48xl": {
        "gpus": [f"0000:00:{device}.0" for device in ("16", "17", "18", "19", "1a", "1b", "1c", "1d")],
        "nics": ["0000:00:15.0"],
    },
    "bare-ids": {"gpus": ["0000:00:03.0", "0000:00:05.0"], "nics": ["0000:00:04.0"]},
}


def _load(path, **arguments):
    return load_nccl_topology(path, **SAID.get(path.name.removesuffix("-topo.xml"), {}) | arguments)


@pytest.fixture
def load(shared_data):
    """Function that loads one of the published files."""
    return lambda name, **arguments: _load(shared_data / "nccl-topo" / f"{name}-topo.xml", **arguments)


def ours(name, **arguments):
    """Topology of one of the files that are written by hand for these tests."""
    return _load(OURS / "nccl-topo" / f"{name}-topo.xml", **arguments)


def _link(topology, src, dst):
    (link,) = topology.links_between(src, dst)
    return link


def _beta(topology, src, dst):
    return topology.links[_link(topology, src, dst)].beta_us_per_mb


def _shared(topology, src, dst):
    """Resources that a send holds besides its link: {name: (beta, side)}."""
    holds = topology.holds_of_link[_link(topology, src, dst)][1:]
    return {topology.resources[h.resource].name: (h.beta_us_per_mb, h.side) for h in holds}


FILES = foreign_files("nccl-topo/*.xml")


@pytest.mark.slow
@pytest.mark.parametrize("path", thinned(FILES))
def test_allgather_on_every_file_verifies(path):
    """On two nodes of every file's machine, an allgather schedule verifies, and assumptions are listed."""
    topology = _load(path, nodes=2)
    problem = taccl.make_problem(topology, taccl.collectives.allgather(topology.num_ranks), chunk_bytes=10**6)
    assert taccl.verify(first_schedule(problem)).ok
    assert any("has no NVLinks" in note for note in topology.assumed) == ("nvswitch" not in path.name)


@pytest.mark.parametrize("path", FILES)
def test_every_pair_of_ranks_is_linked_once_each_way(path):
    """Every pair of ranks has one link each way: with R ranks per node, R (R - 1) in each node and R**2 from each
    node to the other."""
    topology = _load(path, nodes=2)
    size = topology.num_ranks // 2
    assert topology.ranks_of_node == (tuple(range(size)), tuple(range(size, 2 * size)))
    assert len(topology.links) == 2 * size * (size - 1) + 2 * size**2


def test_switches_are_shared():
    """GPUs under one PCIe switch share its uplink.

    There are two GPUs under each switch, at 12 GB/s, and one switch under each CPU. The rate from one Broadwell
    CPU to the other is 6 GB/s.
    """
    topology = ours("two-cpus")
    assert topology.num_ranks == 4
    assert _beta(topology, 0, 1) == GEN3
    assert _beta(topology, 0, 2) == Fraction(1000, 6)
    assert _shared(topology, 0, 2) == {
        "PCIe out of GPU 0000:0a:00.0 of node 0": (GEN3, "send"),
        "CPU 0 to CPU 1 of node 0": (Fraction(1000, 6), "send"),
        "PCIe into PCIe switch aaaa:00:02.0 of node 0": (GEN3, "receive"),
        "PCIe into GPU 0000:1a:00.0 of node 0": (GEN3, "receive"),
    }
    # The uplink out of the switch needs no resource: the slower path between the CPUs carries the same sends.
    across = holders(topology, "CPU 0 to CPU 1 of node 0")
    assert across == {(src, dst) for src in (0, 1) for dst in (2, 3)}
    # With 20 GB/s from CPU to CPU the uplinks, at 12 GB/s, are slower, and are the resources instead.
    faster = ours("two-cpus", cpu_gb_per_s=20)
    assert _beta(faster, 0, 2) == GEN3
    assert holders(faster, "PCIe out of PCIe switch aaaa:00:01.0 of node 0") == across
    assert not holders(faster, "CPU 0 to CPU 1 of node 0")


def check_pairs_share_a_nic(topology, nic, said):
    """Ranks 2 and 3 of two nodes share a NIC: it is held by their sends to the other node, and in reverse."""
    others = range(topology.num_ranks // 2, topology.num_ranks)
    egress = holders(topology, f"NIC {nic} of node 0 egress")
    assert egress == {(src, dst) for src in (2, 3) for dst in others}
    ingress = holders(topology, f"NIC {nic} of node 0 ingress")
    assert ingress == {(src, dst) for src in others for dst in (2, 3)}
    assert any(said in note for note in topology.notes)


def test_pairs_share_a_nic():
    """The NIC under a switch serves the two ranks below it, and 4 ranks of the other node."""
    topology = ours("two-cpus", nodes=2)
    check_pairs_share_a_nic(topology, "0000:1c:00.0", "0000:0c:00.0: 0, 1; 0000:1c:00.0: 2, 3")


def test_one_nic_serves_both_cpus():
    """The only NIC serves ranks at both CPUs, at its own rate.

    40 Gb/s are 200 us per MB. Rank 1 reaches it through 32 GB/s between the CPUs, which is faster.
    """
    topology = ours("to-itself", nodes=2)
    assert {link.beta_us_per_mb for link in topology.links if link.src < 2 and link.dst > 1} == {200}
    assert holders(topology, "NIC lan3 of node 0 egress") == {(src, dst) for src in (0, 1) for dst in (2, 3)}
    assert _shared(topology, 1, 2)["NIC lan3 of node 0 egress"] == (200, "send")


def test_nvlinks_to_the_gpu_itself_are_left_out():
    """GPUs are at 12 GB/s, the assumed rate; 4 NVLinks from each GPU to itself are left out."""
    topology = ours("to-itself")
    assert {link.beta_us_per_mb for link in topology.links} == {GEN3}
    assert "8 NVLinks to the GPU itself are left out" in topology.assumed


def test_a_dump_has_ranks_nvlinks_and_nics():
    """A dump gives ranks, NVLinks into a switch, and NICs.

    Ranks have 2 + 3 NVLinks of 20.6 GB/s into the chips of an NVSwitch, and 10 GB/s and 1.75 us between
    nodes. Rank 0 is the GPU of the higher bus id, whose two lanes of PCIe carry 2 * 120 / 80 = 3 GB/s.
    """
    topology = ours("nvswitch", nodes=2)
    assert _beta(topology, 0, 1) == 1000 / (5 * Fraction("20.6"))
    assert [switch.ranks for switch in topology.switches] == [(0, 1), (2, 3)]
    assert (_beta(topology, 0, 2), _beta(topology, 1, 3)) == (Fraction(1000, 3), 100)
    assert topology.links[_link(topology, 1, 3)].alpha_us == Fraction("1.75")


def test_stated_latencies_are_no_assumptions():
    """Latencies of links are assumptions unless an argument states them, even with the default values."""
    names = ("intranode_alpha_us=", "internode_alpha_us=")
    for arguments, told in (({}, 2), ({"intranode_alpha_us": 0.3, "internode_alpha_us": 2.6}, 0)):
        topology = ours("bare-ids", nodes=2, **arguments)
        assert sum(name in note for name in names for note in topology.assumed) == told
        assert {float(link.alpha_us) for link in topology.links} == {0.3, 2.6}


def test_devices_without_a_class_need_an_argument():
    """Devices without a class are an error, which counts them and names arguments that give their class."""
    path = OURS / "nccl-topo" / "bare-ids-topo.xml"
    with pytest.raises(
        FormatError, match=r"line 4: <system .*3 devices without a class.*gpus=.*nics="
    ) as caught:
        load_nccl_topology(path)
    assert caught.value.where.startswith(str(path))
    topology = ours("bare-ids", nodes=2)
    assert {link.beta_us_per_mb for link in topology.links} == {GEN3}
    assert len(holders(topology, "NIC 0000:00:04.0 of node 0 egress")) == 4
    assert any("cpu_gb_per_s=" in note for note in topology.assumed)


def test_arguments_beat_our_file():
    """Given rates and alphas replace those of the file; one NIC serves all; names may be in capitals."""
    topology = ours(
        "two-cpus", nodes=2, pcie_gb_per_s=20, cpu_gb_per_s=40, nic_gb_per_s=10,
        intranode_alpha_us=1, internode_alpha_us=5, nics=["0000:0C:00.0"],
    )  # fmt: skip
    assert _beta(topology, 0, 2) == 50
    assert _beta(topology, 3, 4) == 100
    assert len(holders(topology, "NIC 0000:0c:00.0 of node 0 egress")) == 16
    assert topology.links[_link(topology, 0, 2)].alpha_us == 1
    assert topology.links[_link(topology, 3, 4)].alpha_us == 5


def test_p4d_shares_pcie_switches(load):
    """GPUs of a p4d under one PCIe switch share its uplink.

    There are two GPUs under each switch, at 12 GB/s, and two switches under each CPU. The rate from one Skylake
    CPU to the other is 10 GB/s.
    """
    topology = load("aws-p4d-24xl")
    assert _beta(topology, 0, 1) == _beta(topology, 0, 2) == GEN3
    assert _beta(topology, 0, 4) == 100
    assert _shared(topology, 0, 1) == {
        "PCIe out of GPU 0000:10:1c.0 of node 0": (GEN3, "send"),
        "PCIe into GPU 0000:10:1d.0 of node 0": (GEN3, "receive"),
    }
    assert _shared(topology, 0, 4) == {
        "PCIe out of GPU 0000:10:1c.0 of node 0": (GEN3, "send"),
        "PCIe out of PCIe switch ffff:ff:01.0 of node 0": (GEN3, "send"),
        "CPU 0 to CPU 1 of node 0": (Fraction(100), "send"),
        "PCIe into PCIe switch ffff:ff:03.0 of node 0": (GEN3, "receive"),
        "PCIe into GPU 0000:90:1c.0 of node 0": (GEN3, "receive"),
    }


def test_p4d_resources_are_held_by_what_passes(load):
    """Sends hold the uplink of every PCIe switch, and the connection of CPUs, that they pass.

    A switch's uplink carries the sends of 2 ranks to the 6 others, and that of a CPU those of 4 ranks to 4.
    """
    topology = load("aws-p4d-24xl")
    out = holders(topology, "PCIe out of PCIe switch ffff:ff:01.0 of node 0")
    assert out == {(src, dst) for src in (0, 1) for dst in range(2, 8)}
    across = holders(topology, "CPU 0 to CPU 1 of node 0")
    assert across == {(src, dst) for src in range(4) for dst in range(4, 8)}


def test_p4d_pairs_share_a_nic(load):
    """The NIC under a switch serves the two ranks below it, and 8 ranks of the other node."""
    check_pairs_share_a_nic(load("aws-p4d-24xl", nodes=2), "0000:20:1b.0", "0000:20:1b.0: 2, 3")


def test_p4de_is_joined_as_p4d(load):
    """The topologies of p4d and p4de have the same links."""
    assert load("aws-p4de-24xl", nodes=2).links == load("aws-p4d-24xl", nodes=2).links


def test_ndv2_shares_one_nic(load):
    """The one NIC of an NDv2, at CPU 0, serves all eight ranks: 24 GB/s to a CPU, and 10 between CPUs."""
    topology = load("azure-ndv2", nodes=2, nic_gb_per_s="12.5")
    assert _beta(topology, 0, 3) == GEN4
    assert _beta(topology, 0, 4) == 100
    assert len(holders(topology, "NIC 0101:00:00.0 of node 0 egress")) == 64
    # 12.5 GB/s take 80 us per MB.
    # Sends of CPU 1's ranks pass the 10 GB/s between CPUs, those of CPU 0's ranks do not.
    assert _beta(topology, 0, 8) == 80
    assert _beta(topology, 4, 8) == 100
    assert _shared(topology, 4, 8)["NIC 0101:00:00.0 of node 0 egress"] == (80, "send")
    assert _shared(topology, 4, 8)["CPU 1 to CPU 0 of node 0"] == (100, "send")


def test_ndv4_numbers_ranks_by_bus_id(load):
    """Ranks are numbered in the order of their bus ids, whatever their CPUs.

    The GPUs of CPUs 0 to 3 have bus ids 3 and 4, 1 and 2, d and e, and b and c, respectively.
    """
    topology = load("azure-ndv4", nodes=2)
    assert _beta(topology, 0, 1) == GEN4
    assert _beta(topology, 0, 2) == Fraction(1000, 16)  # from one Zen 2 to another
    assert "CPU 1 to CPU 0 of node 0" in _shared(topology, 0, 2)
    assert "CPU 3 to CPU 2 of node 0" in _shared(topology, 4, 6)
    assert any("0103:00:00.0: 2; 0104:00:00.0: 3" in note for note in topology.notes)  # a NIC each


def test_ndv4_with_nvlinks_given_is_an_nvswitch(load):
    """12 NVLinks of 20 GB/s into NVSwitch carry 240 GB/s; with `rails` the links equal a DGX-A100's."""
    topology = load("azure-ndv4", nodes=2, nvlinks=12, rails=True)
    machine = taccl.topologies.dgx_a100(
        2,
        constants={
            "nvswitch_alpha_us": "0.3",
            "nvswitch_beta_us_per_mb": Fraction(1000, 240),
            "internode_alpha_us": "2.6",
            "internode_beta_us_per_mb": GEN4,
        },
        profile="nominal",
    )
    assert [link.beta_us_per_mb for link in topology.links] == [link.beta_us_per_mb for link in machine.links]
    assert [(link.src, link.dst) for link in topology.links] == [
        (link.src, link.dst) for link in machine.links
    ]
    assert topology.switches == machine.switches
    assert any("20 GB/s" in note for note in topology.assumed)


def test_ncv4_leaves_out_nvlinks_to_itself(load):
    """Each of four GPUs has its own CPU; eth0 has 100 Gb/s, at CPU 0, and no assumed PCIe rate is lower."""
    topology = load("azure-ncv4", nodes=2)
    assert {link.beta_us_per_mb for link in topology.links} == {80}
    assert _shared(topology, 0, 1)["CPU 0 to CPU 1 of node 0"] == (Fraction(1000, 24), "send")
    assert _shared(topology, 3, 4)["NIC eth0 of node 0 egress"] == (80, "send")
    assert len(holders(topology, "NIC eth0 of node 0 egress")) == 16
    assert "48 NVLinks to the GPU itself are left out" in topology.assumed


def test_ndv5_has_a_switch_for_every_rank(load):
    """Each GPU of an NDv5 has a PCIe switch of its own with a NIC, at 48 GB/s.

    The rate from one Sapphire Rapids CPU to the other is 22 GB/s.
    """
    topology = load("azure-ndv5", nodes=2)
    assert _beta(topology, 0, 3) == _beta(topology, 0, 8) == GEN5
    assert _beta(topology, 0, 4) == Fraction(1000, 22)


def test_g5_needs_an_argument_for_its_gpus(shared_data):
    """The file has only bus ids: the error counts the devices and names the argument."""
    path = shared_data / "nccl-topo" / "aws-g5.48xl-topo.xml"
    with pytest.raises(
        FormatError, match=r"line 12: <system .*9 devices without a class.*gpus=.*nics="
    ) as caught:
        load_nccl_topology(path)
    assert caught.value.where.startswith(str(path))


def test_g5_with_gpus_named(load):
    """The file gives eight GPUs at 12 GB/s, no limit between CPUs, and one NIC at CPU 1."""
    topology = load("aws-g5.48xl", nodes=2)
    assert {link.beta_us_per_mb for link in topology.links} == {GEN3}
    assert len(holders(topology, "NIC 0000:00:15.0 of node 0 egress")) == 64
    assert any("cpu_gb_per_s=" in note for note in topology.assumed)


def test_arguments_beat_the_file(load):
    """Given rates of PCIe, CPUs and NICs, and given alphas, replace those of the file."""
    topology = load(
        "aws-p4d-24xl", nodes=2, pcie_gb_per_s=20, cpu_gb_per_s=40, nic_gb_per_s=10,
        intranode_alpha_us=1, internode_alpha_us=5, nics=["0000:10:1B.0"],
    )  # fmt: skip
    assert _beta(topology, 0, 4) == 50
    assert _shared(topology, 0, 4)["CPU 0 to CPU 1 of node 0"] == (25, "send")
    assert _beta(topology, 7, 8) == 100
    assert len(holders(topology, "NIC 0000:10:1b.0 of node 0 egress")) == 64
    assert topology.links[_link(topology, 0, 4)].alpha_us == 1
    assert topology.links[_link(topology, 7, 8)].alpha_us == 5


PCI = '<pci busid="0:{0}:0.0" class="0x030200" link_speed="8 GT/s" link_width="16">{1}</pci>'


def _gpu(number, nvlinks, rank=None, sm=70):
    """XML of a GPU with NVLinks (target, count, class)."""
    links = "".join(f'<nvlink target="{t}" count="{c}" tclass="{k}"/>' for t, c, k in nvlinks)
    rank = number if rank is None else rank
    return PCI.format(number, f'<gpu dev="{number}" sm="{sm}" rank="{rank}" gdr="1">{links}</gpu>')


def test_dump_with_nvlinks_between_pairs(tmp_path):
    """Pairs of ranks with NVLinks are linked by these, and other pairs are not linked by PCIe.

    On V100 an NVLink has 20 GB/s. Two between 0 and 1 give 25 us per MB, and one between 1 and 2 gives 50.
    """
    gpu = "0x030200"
    path = write_dump(
        tmp_path,
        _gpu(0, [("0:1:0.0", 2, gpu)]),
        _gpu(1, [("0:0:0.0", 2, gpu), ("0:2:0.0", 1, gpu)]),
        _gpu(2, [("0:1:0.0", 1, gpu)]),
    )
    topology = load_nccl_topology(path)
    found = {(link.src, link.dst): link.beta_us_per_mb for link in topology.links}
    assert found == {(0, 1): 25, (1, 0): 25, (1, 2): 50, (2, 1): 50}
    assert {link.name for link in topology.links} == {"NVLink", "NVLink x2"}
    # With pcie="always", PCIe also joins the pair that has no NVLink.
    always = load_nccl_topology(path, pcie="always")
    assert _beta(always, 0, 2) == GEN3


def test_unlike_gpus_have_their_own_nvlinks(tmp_path):
    """Pairs of A100 and of A6000, with two NVLinks each, beside an L40S: 40 and 24 GB/s.

    The assumptions name constants of GPUs with NVLinks alone.
    """
    gpu = "0x030200"
    pairs = [
        _gpu(number, [(f"0:{number ^ 1}:0.0", 2, gpu)], sm=sm) for number, sm in enumerate((80, 80, 86, 86))
    ]
    topology = load_quietly(write_dump(tmp_path, *pairs, _gpu(4, [], sm=89)))
    assert (_beta(topology, 0, 1), _beta(topology, 2, 3)) == (25, Fraction(1000, 24))
    told = [each for each in topology.assumed if "for one NVLink each way" in each]
    assert [each.split("capability ")[1][:3] for each in told] == ["8 (", "8.6"]


@pytest.mark.parametrize(
    ("sm", "rate"), [(60, "18"), (70, "20"), (80, "20"), (86, "12"), (90, "20.6"), (100, "40.1")]
)
def test_nvlinks_into_nvswitch_add_up(tmp_path, sm, rate):
    """Links to several chips of an NVSwitch are one port, at NCCL's rate for the GPU."""
    chips = [("0:a0:0.0", 2, "0x068000"), ("0:a1:0.0", 4, "0x068000")]
    topology = load_nccl_topology(write_dump(tmp_path, *(_gpu(i, chips, sm=sm) for i in range(3))))
    assert {link.beta_us_per_mb for link in topology.links} == {1000 / (6 * Fraction(rate))}
    assert len(topology.switches) == 1
    assert topology.switches[0].ranks == (0, 1, 2)


def test_lost_nvlink_slows_the_port_of_its_rank(tmp_path):
    """Ranks with 6, 6 and 5 NVLinks of 20 GB/s into NVSwitch have ports of 120, 120 and 100 GB/s."""
    devices = [_gpu(i, [("0:a0:0.0", 5 if i == 2 else 6, "0x068000")]) for i in range(3)]
    topology = load_nccl_topology(write_dump(tmp_path, *devices))
    full, lost = Fraction(1000, 120), Fraction(10)
    assert _beta(topology, 0, 1) == full
    assert _beta(topology, 0, 2) == _beta(topology, 2, 1) == lost
    assert _shared(topology, 0, 2) == {
        "port out 0 (NVSwitch of node 0)": (full, "send"),
        "port in 2 (NVSwitch of node 0)": (lost, "receive"),
    }


def test_ranks_of_the_file_are_kept_in_order(tmp_path):
    """GPUs with ranks 9 and 4 become ranks 1 and 0; one without a rank is left out."""
    topology = load_nccl_topology(
        write_dump(tmp_path, _gpu(0, [], rank=9), _gpu(1, [], rank=4), PCI.format(2, ""))
    )
    assert topology.num_ranks == 2
    assert "PCIe out of GPU" not in str(topology.resources)  # one link each way, nothing shared
    assert any("renumbered" in note for note in topology.assumed)
    assert any("1 GPUs without a rank" in note for note in topology.assumed)


def test_net_gives_rate_latency_and_name(tmp_path):
    """200 Gb/s are 40 us per MB; two ports under one PCIe link of 12 GB/s share it."""
    net = '<net name="mlx5_{0}" dev="{0}" speed="200000" port="1" latency="1.5" gdr="1"/>'
    nic = (
        '<pci busid="0:9:0.0" class="0x020700" link_speed="8.0 GT/s PCIe" link_width="16">'
        f"<nic>{net.format(0)}{net.format(1)}</nic></pci>"
    )
    topology = load_nccl_topology(write_dump(tmp_path, _gpu(0, []), _gpu(1, []), nic), nodes=2)
    assert _beta(topology, 0, 2) == GEN3
    assert topology.links[_link(topology, 0, 2)].alpha_us == Fraction("1.5")
    assert holders(topology, "PCIe into NIC 0:9:0.0 of node 0") == {(s, d) for s in (0, 1) for d in (2, 3)}
    assert any("mlx5_0: 0; mlx5_1: 1" in note for note in topology.notes)


def test_devices_without_gpudirect_are_named(tmp_path):
    """NICs and GPUs with gdr=0 pass data between nodes through host memory, which an assumption says."""
    nic = (
        '<pci busid="0:9:0.0" class="0x020700" link_speed="8.0 GT/s PCIe" link_width="16">'
        '<nic><net name="eth9" dev="0" speed="100000" gdr="{}"/></nic></pci>'
    )
    gpus = [_gpu(0, []), _gpu(1, []).replace('gdr="1"', 'gdr="0"')]

    def said(nodes, *devices):
        assumed = load_quietly(write_dump(tmp_path, *devices), nodes=nodes).assumed
        return [each.partition(";")[0] for each in assumed if "GPUDirect" in each]

    assert said(2, *gpus, nic.format(0)) == ["no GPUDirect RDMA (gdr=0) at eth9, 0:1:0.0"]
    assert said(2, *gpus, nic.format(1)) == ["no GPUDirect RDMA (gdr=0) at 0:1:0.0"]
    assert not said(1, *gpus, nic.format(0))
    assert not said(2, gpus[0], nic.format(1))


def test_links_of_amd_are_named_by_their_fabric(tmp_path):
    """A file of AMD GPUs without links between them lacks xGMI links, not NVLinks."""
    devices = [PCI.format(i, f'<gpu dev="{i}" gcn="gfx906" rank="{i}"/>') for i in range(2)]
    assumed = load_quietly(write_dump(tmp_path, *devices, version=2)).assumed
    assert any("no xGMI links between its GPUs" in each for each in assumed)
    assert not any("NVLink" in each for each in assumed)


def _hosts(tmp_path, *nics, count=18):
    """Dump of hosts with two GPUs each, of `count` NVLinks into one NVSwitch, and the given number of NICs."""
    link = f'<nvlink target="fffffff:ffff:ff" count="{count}" tclass="0x068000"/>' if count else ""
    path = tmp_path / "domain.xml"
    path.write_text('<system version="1">' + "".join(
        f'<cpu numaid="0" host_hash="0x{host}" arch="arm64">' + "".join(
            f'<pci busid="0008:0{i}:00.0" class="0x030200" link_speed="32 GT/s" link_width="16">'
            f'<gpu dev="{i}" sm="100" mnnvl="1" rank="{2 * host + i}">{link}</gpu></pci>' for i in range(2)
        ) + "".join(
            f'<pci busid="0000:0{i}:00.0" class="0x020700" link_speed="32 GT/s" link_width="16">'
            f'<nic><net name="mlx5_{i}" dev="{i}" speed="200000"/></nic></pci>' for i in range(num_nics)
        ) + "</cpu>" for host, num_nics in enumerate(nics)
    ) + "</system>")  # fmt: skip
    return path


def test_hosts_of_an_nvlink_domain_are_one_node(tmp_path):
    """NVSwitch joins the GPUs of both hosts, whose bus ids are equal; each GPU has the NIC of its own host."""
    topology = load_quietly(_hosts(tmp_path, 2, 2), nodes=2)
    assert (topology.num_ranks, topology.num_nodes) == (8, 2)
    assert sum(link.name == "NVSwitch" for link in topology.links) == 2 * 4 * 3
    held = holders(topology, "NIC mlx5_1 #3 of node 0 egress")
    assert held == {(3, dst) for dst in range(4, 8)}
    assert "the file's 2 hosts are one node, as NVSwitch joins their GPUs" in topology.assumed


def test_a_cpu_without_a_host_is_of_the_first_host(tmp_path):
    """CPUs are of one host if only some state it."""
    between = '</cpu><cpu numaid="1" host_hash="0x1">'
    topology = load_quietly(write_dump(tmp_path, _gpu(0, []), between, _gpu(1, [])))
    assert [link.name for link in topology.links] == ["PCIe", "PCIe"]


def test_hosts_without_a_common_nvswitch_are_refused(tmp_path):
    """Hosts are refused if no NVSwitch joins them, and a host without NICs if there are several nodes."""
    with pytest.raises(FormatError, match="CPUs of 2 hosts .* whose GPUs no NVSwitch joins"):
        load_nccl_topology(_hosts(tmp_path, 1, 1, count=0))
    with pytest.raises(TopologyError, match="found no NIC on the host of local rank 2"):
        load_quietly(_hosts(tmp_path, 1, 0), nodes=2)


def test_gpus_whose_nvlinks_a_file_lacks_are_named(tmp_path):
    """A GPU without the NVLinks that others have is named: an assumption on one host, an error on several."""
    devices = [_gpu(i, [("ff:ff:f.f", 18, "0x068000")] * (i != 1)) for i in range(3)]
    assumed = load_quietly(write_dump(tmp_path, *devices)).assumed
    assert "GPUs without NVLinks, as the file lists none of theirs: 0:1:0.0" in assumed
    path = _hosts(tmp_path, 1, 1)
    before, link, after = path.read_text().rpartition(
        '<nvlink target="fffffff:ffff:ff" count="18" tclass="0x068000"/>'
    )
    path.write_text(before + after)
    with pytest.raises(FormatError, match="no NVLinks to the NVSwitch that joins the GPUs of 2 hosts"):
        load_nccl_topology(path)
    assert link


@pytest.mark.parametrize("net", ['<net name="n" {}/>', '<nic name="n" {}/>', '<nic><net name="n" {}/></nic>'])
@pytest.mark.parametrize(("speed", "gb_per_s"), [("100000", 12.5), ("200000000", 25)])
def test_speeds_of_nics_are_read_wherever_they_are_stated(tmp_path, net, speed, gb_per_s):
    """Files written by hand state a NIC in fewer elements; a speed of 10 Tbit/s or more is in kbit/s."""
    nic = '<pci busid="0:9:0.0" class="0x020700" link_speed="32 GT/s" link_width="16">{}</pci>'
    path = write_dump(
        tmp_path, _gpu(0, []).replace("8 GT", "32 GT"), nic.format(net.format(f'speed="{speed}"'))
    )
    topology = load_quietly(path, nodes=2)
    assert {float(1000 / link.beta_us_per_mb) for link in topology.links} == {gb_per_s}
    assert any("is in kbit/s" in each for each in topology.assumed) == (gb_per_s == 25)
    assert any("n: 0" in note for note in topology.notes)


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ([_gpu(0, [("0:1:0.0", 2, "0x03")]), _gpu(1, [])], "2 NVLinks from 0:0:0.0 to 0:1:0.0 and 0 back"),
        ([_gpu(0, [("0:1:0.0", 0, "0x03")])], "count=0"),
        ([_gpu(0, [("0:1:0.0", "x", "0x03")])], "count='x'"),
        ([_gpu(0, [("0:7:0.0", 1, "")])], "tclass=''"),
        ([_gpu(0, []), _gpu(0, [])], "0:0:0.0 twice"),
        ([_gpu(0, [], rank=1), _gpu(1, [], rank=1)], "rank 1 2 times"),
        ([PCI.replace("16", "-4").format(0, "")], "link_width=-4"),
        ([PCI.replace("busid", "bus").format(0, "")], "busid ''"),
        ([_gpu(0, []), '<nic><net name="x" speed="fast"/></nic>'], "speed='fast'"),
        ([_gpu(0, []), '<nic><net name="x"/></nic>'], "nic_gb_per_s="),
        ([_gpu(0, []), '<nic><net name="x" speed="1" latency="-1"/></nic>'], "latency='-1'"),
        (["</cpu><cpu>", _gpu(0, []), '</cpu><cpu numaid="0">'], "CPU 0 twice"),
        (['</cpu><cpu numaid="1" host_hash="0x1"/><cpu numaid="2" host_hash="0x2">', _gpu(0, [])], "2 hosts"),
        ([], "no GPU; expected"),
    ],
)
def test_wrong_file_is_named_with_line_and_element(tmp_path, devices, message):
    """The error for an invalid topology file names file, line and element."""
    path = write_dump(tmp_path, *devices)
    with pytest.raises(FormatError) as caught:
        load_nccl_topology(path)
    assert message in caught.value.message
    assert caught.value.where.startswith(f"{path}: line 1: <")


@pytest.mark.parametrize(
    "text",
    [
        "<algo name='x'/>",
        "<system version='2'/>",
        "<system>",
        '<!DOCTYPE system [<!ENTITY a "b">]><system/>',
        '<!DOCTYPE system SYSTEM "file:///etc/passwd"><system/>',
        "<system>" + "<pci>" * 100_000,
        "no XML",
    ],
    ids=["other", "version", "cut short", "entity", "external", "nested", "text"],
)
def test_other_and_hostile_files_are_refused(tmp_path, text):
    """External entities are not read, and nested ones are not expanded."""
    path = tmp_path / "bad.xml"
    path.write_text(text)
    with pytest.raises(FormatError, match="line 1"):
        load_nccl_topology(path)


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({"nodes": 0}, "nodes"),
        ({"nodes": 10**6}, "nodes"),
        ({"nodes": 2}, "nodes"),  # the file has no NIC
        ({"nvlinks": 0}, "nvlinks"),
        ({"nvlinks": {(0, 2): 1}}, "nvlinks"),
        ({"nvlinks": {(0, 1): 1, (1, 0): 2}}, "nvlinks"),
        ({"gpus": 5}, "gpus"),
        ({"pcie": "never"}, "pcie"),
        ({"pcie_gb_per_s": 0}, "pcie_gb_per_s"),
        ({"intranode_alpha_us": -1}, "intranode_alpha_us"),
    ],
)
def test_wrong_argument_is_named(tmp_path, arguments, where):
    """The error for an argument that cannot be used names the argument."""
    path = write_dump(tmp_path, _gpu(0, []), _gpu(1, []))
    with pytest.raises(TopologyError) as caught:
        load_nccl_topology(path, **arguments)
    assert where in caught.value.where


def test_device_that_an_argument_names_must_exist(tmp_path):
    """A bus id that the file lacks is an error, as it may be a misspelling."""
    with pytest.raises(FormatError, match="no device 0:5:0.0, which gpus="):
        load_nccl_topology(write_dump(tmp_path, _gpu(0, [])), gpus=["0:0:0.0", "0:5:0.0"])


def test_missing_file_is_an_input_error(tmp_path):
    """The error for a missing file names its path."""
    with pytest.raises(InputError, match=r"nothing\.xml"):
        load_nccl_topology(tmp_path / "nothing.xml")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "most"),
    [
        (['<nic><net name="x" speed="1"/></nic>'] * 20_000, 1024),
        ([PCI.format(number, "") for number in range(2000)], 1024),
        (["</cpu><cpu>"] * 220, 200),
    ],
    ids=["NICs", "GPUs", "CPUs"],
)
def test_more_than_a_server_has_is_refused(tmp_path, monkeypatch, devices, most):
    """A file with more devices than any server is refused early, in one sentence."""
    monkeypatch.setattr("taccl.formats.nccl.elements._MAX_DEVICES", most)
    with pytest.raises(FormatError, match=f"more than {most} devices|twice"):
        load_nccl_topology(write_dump(tmp_path, *devices))


def test_parts_of_merged_nics_are_left_out(tmp_path):
    """Ports that NCCL merged into one NIC are not counted again: they stay in its file, marked net=0.

    Two ports in a NIC of 400 Gb/s give 50 GB/s, not 100.
    """
    nets = [("p0", 200_000, 0), ("p1", 200_000, 0), ("p0+p1", 400_000, 1)]
    nics = "".join(
        f'<pci busid="0000:12:00.{n}" class="0x020700" link_speed="64.0 GT/s PCIe" link_width="16"><nic>'
        f'<net name="{name}" dev="{n}" speed="{speed}" net="{is_net}" gin="1"/></nic></pci>'
        for n, (name, speed, is_net) in enumerate(nets)
    )
    path = write_dump(
        tmp_path,
        f"""<pci busid="0000:10:00.0" class="0x060400" link_speed="64.0 GT/s PCIe" link_width="16">
        <pci busid="0000:11:00.0" class="0x030200" link_speed="64.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="100" rank="0"/></pci>{nics}</pci>""",
    )
    topology = load_nccl_topology(path, nodes=2)
    assert {link.beta_us_per_mb for link in topology.links} == {20}
    assert any("net=0) are left out (2 times)" in each for each in topology.assumed)


@pytest.mark.parametrize(
    "text", ["<system><gpu dev='0'/></system>", "<system><cpu numaid='0'><gpu dev='0'/></cpu></system>"]
)
def test_gpus_outside_devices_are_refused(tmp_path, text):
    """A GPU that is in no PCIe device, where NCCL would not find it, is an error."""
    path = tmp_path / "loose.xml"
    path.write_text(text.replace("<system>", '<system version="1">'))
    with pytest.raises(FormatError, match=r"found <gpu> in <(system|cpu)>; expected it in a <pci>"):
        load_nccl_topology(path)


_SWITCH = '<nvlink target="0000:90:00.0" count="18" tclass="0x068000"/>'


def _device(bus, ranks, links, parts):
    """A PCIe device with a ``<gpu>`` for each rank; each lists all links of the GPU, as in NCCL's dumps."""
    gpus = "".join(
        f'<gpu dev="{rank}" sm="100" rank="{rank}" mlopart="{part}">{links}</gpu>'
        for rank, part in zip(ranks, parts, strict=True)
    )
    return f'<pci busid="0000:{bus}:00.0" class="0x030200">{gpus}</pci>'


@pytest.mark.parametrize(("parts", "gb_per_s", "links"), [((0, 1), 2618, 9), ((-1, -1), 5000, 18)])
def test_ranks_of_one_gpu_share_its_links(tmp_path, parts, gb_per_s, links):
    """Two partitions of a GPU divide its 18 NVLinks into the NVSwitch; two ranks on it share them.

    NCCL 2.30 lists all NVLinks for each of them. In an alltoall of 16 MB, a GPU sends four messages of 4 MB at
    18 * 40.1 GB/s.
    """
    path = write_dump(tmp_path, _device("10", (0, 1), _SWITCH, parts), _device("11", (2, 3), _SWITCH, parts))
    topology = load_nccl_topology(path, intranode_alpha_us=0)
    rates = {(link.src, link.dst): float(1000 / link.beta_us_per_mb) for link in topology.links}
    assert rates[0, 1] == rates[3, 2] == pytest.approx(gb_per_s)
    assert rates[0, 2] == rates[3, 1] == pytest.approx(links * 40.1)
    assert any(f"{gb_per_s} GB/s between them" in each for each in topology.assumed)
    problem = taccl.make_problem(topology, "alltoall", size_bytes=16_000_000)
    schedule = taccl.baselines.pairwise(problem)
    taccl.verify(schedule).raise_if_failed()
    assert schedule.finish_us == pytest.approx(16e6 / (18 * 40.1e3))


def test_given_nvlinks_join_gpus_that_ranks_share(tmp_path):
    """Pairs in `nvlinks` are pairs of GPUs; two GPUs of two ranks each have no GPU 2.

    As in NCCL, each pair of partitions has a quarter of the links between the two GPUs.
    """
    path = write_dump(tmp_path, _device("10", (0, 1), "", (0, 1)), _device("11", (2, 3), "", (0, 1)))
    topology = load_nccl_topology(path, nvlinks={(0, 1): 2}, nvlink_gb_per_s=20)
    rates = {(link.src, link.dst): float(1000 / link.beta_us_per_mb) for link in topology.links}
    assert rates[0, 2] == rates[1, 2] == rates[3, 0] == pytest.approx(10)
    with pytest.raises(TopologyError, match=r"found \(0, 2\); expected two different GPUs of 0-1"):
        load_nccl_topology(path, nvlinks={(0, 2): 2}, nvlink_gb_per_s=20)


def test_partitions_share_xgmi_links_and_nics(tmp_path):
    """Partitions of two GPUs divide the xGMI link between them, and share the NIC of 12.5 GB/s."""
    links = '<xgmi target="0000:{}:00.0" count="1" tclass="0x038000"/>'
    nic = (
        '<pci busid="0000:20:00.0" class="0x020000"><nic><net name="n0" dev="0" speed="100000"/></nic></pci>'
    )
    devices = [
        _device(bus, ranks, links.format(other), (0, 1)).replace('sm="100"', 'sm="94" gcn="gfx942"')
        for bus, ranks, other in (("10", (0, 1), "11"), ("11", (2, 3), "10"))
    ]
    topology = load_nccl_topology(write_dump(tmp_path, *devices, nic, version=2), nodes=2)
    rates = {(link.src, link.dst): float(1000 / link.beta_us_per_mb) for link in topology.links}
    assert {rates[src, dst] for src in (0, 1) for dst in (2, 3)} == {12}
    (port,) = {each.name for each in topology.resources if "n0 of node 0 egress" in each.name}
    assert holders(topology, port) == {(src, dst) for src in range(4) for dst in range(4, 8)}


def test_gpus_with_fewer_nvlinks_are_named(tmp_path):
    """A GPU that has lost NVLinks to the NVSwitch limits its node."""
    devices = [
        f'<pci busid="0000:1{rank}:00.0" class="0x030200"><gpu dev="{rank}" sm="90" rank="{rank}">'
        f"{_SWITCH.replace('18', count)}</gpu></pci>"
        for rank, count in enumerate(("18", "13", "18"))
    ]
    assumed = load_quietly(write_dump(tmp_path, *devices)).assumed
    assert "GPUs with fewer NVLinks than the 18 of others: 0000:11:00.0 (13)" in assumed
    assert not any("fewer NVLinks" in each for each in load_quietly(write_dump(tmp_path, devices[0])).assumed)
