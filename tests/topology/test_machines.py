"""Machine models: links, costs, and the NICs and ports that each send holds."""

import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import pytest

from taccl.errors import TopologyError
from taccl.topology.machines import (
    b200,
    dgx1,
    dgx2,
    dgx_a100,
    dgx_h100,
    gb200_nvl72,
    h200,
    mi300x,
    mi350x,
    mi355x,
    ndv2,
)  # fmt: skip
from taccl.topology.models import MODELS, library_name
from taccl.topology.networks import INSTANCES
from taccl.topology.profiles import PROFILES, find_profile
from taccl.topology.registry import parse
from tests.effort import cpu_s

RAILED = (dgx_a100, dgx_h100, h200, b200, gb200_nvl72, mi300x, mi355x)
MACHINES = (ndv2, dgx1, dgx2, *RAILED)


def holds_between(topology, src, dst):
    """{resource name: hold} of the one link from `src` to `dst`."""
    (link,) = topology.links_between(src, dst)
    return {topology.resources[hold.resource].name: hold for hold in topology.holds_of_link[link]}


def ingress_gb_per_s(topology, rank):
    """Total rate of all links into a rank, in GB/s."""
    return sum((1000 / topology.links[link].beta_us_per_mb for link in topology.links_to[rank]), Fraction(0))


def test_ndv2_has_the_published_neighbours():
    """Every rank of NDv2 has the four neighbours of TACCL's topology."""
    topology = ndv2()
    neighbours = [{topology.links[link].dst for link in links} for links in topology.links_from]
    assert neighbours == [
        {1, 2, 3, 4}, {0, 2, 3, 5}, {0, 1, 3, 6}, {0, 1, 2, 7},
        {0, 5, 6, 7}, {1, 4, 6, 7}, {2, 4, 5, 7}, {3, 4, 5, 6},
    ]  # fmt: skip


def test_dgx1_has_the_links_that_nvidia_smi_prints(shared_data):
    """The links of dgx1 are those of a real DGX-1's matrix: double for NV2 cells, single for NV1 cells."""
    lines = (shared_data / "nvidia-smi" / "dgx1.txt").read_text().splitlines()
    cells = [line.split()[1:9] for line in lines if line.startswith("GPU") and "\t" in line]
    topology = dgx1(profile="nominal")
    for src, row in enumerate(cells):
        for dst, cell in enumerate(row):
            gb_per_s = [
                1000 / topology.links[link].beta_us_per_mb for link in topology.links_between(src, dst)
            ]
            assert gb_per_s == {"NV1": [25], "NV2": [50]}.get(cell, [])


@pytest.mark.parametrize("make", [ndv2, dgx1])
def test_a_v100_has_six_nvlinks(make):
    """Two double and two single links of 25 GB/s give 150 GB/s into every rank."""
    topology = make(profile="nominal")
    assert {ingress_gb_per_s(topology, rank) for rank in range(8)} == {150}


@pytest.mark.parametrize(("make", "machine", "size"), [(ndv2, "ndv2", 8), (dgx2, "dgx2", 16)])
def test_profile_taccl_is_what_taccl_published(make, machine, size, shared_data):
    """Alphas and betas equal those of TACCL's published 1MB topology files."""
    published = json.loads((shared_data / "upstream-taccl" / "topo" / f"topo-{machine}-1MB.json").read_text())
    topology = make(2, profile="taccl")
    assert size == published["gpus_per_node"]
    inner = [e for i, e in enumerate(topology.links) if not topology.is_internode(i)]
    outer = [topology.links[i] for i in topology.internode_links]
    assert {float(e.alpha_us) for e in inner} == {published["alpha"]}
    assert {float(e.beta_us_per_mb) for e in inner} == set(published["node_betas_list"])
    assert {(float(e.alpha_us), float(e.beta_us_per_mb)) for e in outer} == {
        (published["remote_alpha"], published["remote_beta"])
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "port_gb_per_s", "nic_gb_per_s"),
    [
        (dgx2, 150, "12.5"),
        (dgx_a100, 300, 25),
        (dgx_h100, 450, 50),
        (h200, 450, 50),
        (b200, 900, 50),
        (gb200_nvl72, 900, 50),
        (mi300x, 64, 50),
        (mi355x, "76.8", 50),
        (mi350x, "76.8", 50),
    ],
)
def test_nominal_rates_are_those_of_the_data_sheet(make, port_gb_per_s, nic_gb_per_s):
    """Rates of a rank's port (or of a link between ranks) and of its NIC are those of the data sheet."""
    topology = make(2, profile="nominal")
    size = topology.num_ranks // 2
    (inner,), (outer,) = topology.links_between(0, 1), topology.links_between(0, size)
    assert topology.links[inner].beta_us_per_mb == 1000 / Fraction(port_gb_per_s)
    assert topology.links[outer].beta_us_per_mb == 1000 / Fraction(nic_gb_per_s)


def test_a_switched_send_holds_a_port_out_and_a_port_in():
    """A send holds the source's port out and the destination's port in, for as long as it holds its link."""
    holds = holds_between(dgx2(), 3, 5)
    assert {name: (h.side, h.alpha_us, h.beta_us_per_mb) for name, h in holds.items()} == {
        "link 3->5 (NVSwitch)": ("send", Fraction(3, 10), 8),
        "port out 3 (NVSwitch of node 0)": ("send", Fraction(3, 10), 8),
        "port in 5 (NVSwitch of node 0)": ("receive", Fraction(3, 10), 8),
    }


def test_a_pipelined_switch_holds_ports_without_alpha():
    """With pipelined alpha, holds of ports have no alpha."""
    topology = dgx2(2, alpha_meaning="pipelined")
    assert {hold.alpha_us for hold in topology.holds} == {0}
    assert topology.alpha_meaning == "pipelined"


def test_every_node_of_a_switched_machine_has_a_switch():
    """Each node has a switch, with the node's ranks and the links of every ordered pair of them."""
    topology = dgx2(2)
    assert [switch.ranks for switch in topology.switches] == [tuple(range(16)), tuple(range(16, 32))]
    assert [len(switch.links) for switch in topology.switches] == [16 * 15, 16 * 15]


def test_a_send_across_nodes_holds_egress_and_ingress():
    """A NIC is held for the bytes only, while alpha counts on the link alone."""
    holds = holds_between(ndv2(2), 0, 9)
    assert {name: (h.side, h.alpha_us, h.beta_us_per_mb) for name, h in holds.items()} == {
        "link 0->9 (InfiniBand)": ("send", Fraction(26, 10), 105),
        "NIC 0 of node 0 egress": ("send", 0, 105),
        "NIC 0 of node 1 ingress": ("receive", 0, 105),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "nics"), [(ndv2, 1), (dgx1, 4), (dgx2, 8), *((make, None) for make in RAILED)]
)
def test_ranks_share_nics_as_built(make, nics):
    """Consecutive ranks share a NIC, or have one each: egress resources of a node equal its NICs."""
    topology = make(2)
    nics = nics or topology.num_ranks // 2
    names = [resource.name for resource in topology.resources]
    assert sum(name.endswith("of node 1 egress") for name in names) == nics
    assert sum(name.endswith("of node 1 ingress") for name in names) == nics
    size = topology.num_ranks // 2
    for rank in range(size):
        link = next(i for i in topology.links_from[rank] if topology.is_internode(i))
        held = {topology.resources[h.resource].name for h in topology.holds_of_link[link]}
        assert f"NIC {rank * nics // size} of node 0 egress" in held


def test_every_pair_of_ranks_of_two_nodes_is_linked():
    """Two DGX-2 have 2 * 16 * 16 links between nodes and 2 * 16 * 15 within."""
    topology = dgx2(2)
    assert len(topology.internode_links) == 512
    assert len(topology.links) == 512 + 480


@pytest.mark.parametrize(("make", "gb_per_s"), [(mi300x, 448), (mi355x, "537.6")])
def test_a_rank_of_a_full_mesh_has_seven_links(make, gb_per_s):
    """A rank has a link to each of seven others, with seven times the rate of one in total."""
    topology = make(profile="nominal")
    assert [len(links) for links in topology.links_to] == [7] * 8
    assert ingress_gb_per_s(topology, 3) == Fraction(gb_per_s)
    assert not topology.switches


@pytest.mark.parametrize("make", [make for make in RAILED if make is not gb200_nvl72])
def test_rails_join_equal_local_ranks_only(make):
    """With rails a rank has one link to each other node; without, eight."""
    railed, open_to_all = make(3), make(3, rails=False)
    assert len(railed.internode_links) == 8 * 3 * 2
    assert all(
        railed.local_rank[railed.links[i].src] == railed.local_rank[railed.links[i].dst]
        for i in railed.internode_links
    )
    assert len(open_to_all.internode_links) == 64 * 3 * 2


@pytest.mark.slow
@pytest.mark.parametrize("make", MACHINES)
@pytest.mark.parametrize("nodes", [1, 3])
def test_machines_have_the_nodes_asked_for(make, nodes):
    """A machine has the given number of nodes, with ranks numbered node by node."""
    topology = make(nodes)
    size = topology.num_ranks // nodes
    assert topology.node_of_rank == tuple(rank // size for rank in range(topology.num_ranks))
    assert bool(topology.internode_links) == (nodes > 1)


@pytest.mark.parametrize("nodes", [0, -1, 1.5, True, "2", None])
def test_a_wrong_number_of_nodes_is_refused(nodes):
    """A number of nodes that is not a positive integer is refused."""
    with pytest.raises(TopologyError, match="nodes: found .*; expected a whole number of at least 1"):
        ndv2(nodes)


def test_too_many_nodes_are_refused_at_once():
    """A number of nodes that would not fit in memory is refused before construction."""
    with pytest.raises(TopologyError, match="expected at most 1000000"):
        dgx_h100(10**6)


def test_an_unknown_profile_is_refused_with_the_known_ones():
    """The error for an unknown profile lists the machine's profiles."""
    with pytest.raises(
        TopologyError, match="ndv2: profile: found 'fast'; expected a file, or one of taccl, nominal"
    ):
        ndv2(profile="fast")


def test_a_constant_can_be_replaced():
    """A user's constant replaces that of a profile."""
    topology = ndv2(2, constants={"internode_beta_us_per_mb": 100.5, "nic_alpha_us": "0.1"})
    holds = holds_between(topology, 0, 8)
    nic = holds["NIC 0 of node 0 egress"]
    assert (nic.alpha_us, nic.beta_us_per_mb) == (Fraction(1, 10), Fraction(201, 2))


@pytest.mark.parametrize(
    ("constants", "message"),
    [
        ({"speed": 1}, "ndv2 has no constant 'speed'; it has nvlink_alpha_us"),
        ({"nvlink_alpha_us": -1}, "constants.*nvlink_alpha_us.*: found -1"),
        ({"nvlink_beta_us_per_mb": 0}, "expected alpha >= 0 and beta > 0"),
    ],
)
def test_wrong_constants_are_refused(constants, message):
    """A replaced constant must exist in the profile, and be a valid cost."""
    with pytest.raises(TopologyError, match=message):
        ndv2(constants=constants)


def test_every_constant_names_its_source():
    """Every constant has a source; all machines have a nominal profile."""
    for machine in PROFILES:
        assert "nominal" in [profile.name for profile in PROFILES[machine]]
        for profile in PROFILES[machine]:
            assert profile.machine == machine
            assert all(len(constant.source) > 20 for constant in profile.constants)
            assert all(constant.name.endswith(("_us", "_us_per_mb")) for constant in profile.constants)


def test_no_rate_exceeds_the_data_sheet():
    """Rates of every profile are at most those of the profile ``nominal``, link by link."""
    for profiles in PROFILES.values():
        sheet = next(each for each in profiles if each.name == "nominal")
        for profile in profiles:
            rates = [each for each in profile.constants if each.name.endswith("_beta_us_per_mb")]
            assert all(each.value >= sheet[each.name] for each in rates), profile


@pytest.mark.parametrize("machine", ["ndv2", "dgx1", "dgx2", "p3dn.24xlarge"])
def test_servers_of_v100_have_the_latencies_of_nccl(machine):
    """Profile ``nccl`` has 20 GB/s for each NVLink, NCCL's hops, and the launch on Volta."""
    profile = find_profile(machine, "nccl")
    joint, num = ("nvswitch", 6) if machine == "dgx2" else ("nvlink", 1)
    assert 1000 / profile[f"{joint}_beta_us_per_mb"] == 20 * num
    assert num == 6 or 1000 / profile["nvlink_double_beta_us_per_mb"] == 40
    assert profile[f"{joint}_alpha_us"] == Fraction("3.4")
    assert profile.launch.value == Fraction("3.8")


def test_a_profile_is_found_by_name():
    """Constants of a profile are found by machine, profile and constant name."""
    assert find_profile("dgx2", "taccl")["internode_alpha_us"] == Fraction(13, 5)


@pytest.mark.slow
def test_four_nodes_of_dgx2_are_quick():
    """Four DGX-2 nodes have over four times the links of two, and take less than 12 times the CPU."""
    assert len(dgx2(4).links) == 4 * 240 + 12 * 256 == 4 * len(dgx2(2).links) + 64
    assert cpu_s(lambda: dgx2(4)) < 12 * cpu_s(lambda: dgx2(2))


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("mi300x", "RCCL"),
        ("mi355x", "RCCL"),
        ("nd-mi300x-v5", "RCCL"),
        ("dgx-h100", "NCCL"),
        ("ring:4", "NCCL"),
    ],
)
def test_the_library_of_a_machine_is_that_of_its_gpus(name, library):
    """GPUs of AMD run RCCL; all others, and fabrics, count as those of NCCL."""
    assert library_name(parse(name)) == library


def test_servers_with_xgmi_run_rccl():
    """Links named xGMI show GPUs of AMD, also if the name of a topology does not."""
    links = mi300x().links
    named = replace(mi300x(), name="server", machine="")
    assert library_name(named) == "RCCL"
    assert library_name(replace(named, links=tuple(each._replace(name="") for each in links))) == "NCCL"


@pytest.mark.parametrize("on_pcie", [False, True])
def test_a_gpu_names_one_machine(on_pcie):
    """A model of GPUs is in one machine model on PCIe, and in one other; only V100 are in three others.

    Logs name their GPUs alone, so that those of a model in two machines would need `--topology`.
    """
    models = [model for name, model in MODELS.items() if name not in INSTANCES]
    count = Counter(gpu for each in models if (each.pcie is not None) == on_pcie for gpu in each.gpus)
    assert {gpu for gpu in count if count[gpu] > 1} == (set() if on_pcie else {"V100"})
