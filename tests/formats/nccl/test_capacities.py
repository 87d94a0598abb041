"""Capacities of imported servers, compared with figures derived by hand from each file's text."""

from __future__ import annotations

from typing import NamedTuple

import pytest

import taccl
from taccl.errors import AssumptionWarning
from tests.formats.nccl.drawn_servers import capacity
from tests.formats.nccl.servers import load_quietly, write_dump


class Count(NamedTuple):
    """A file, its arguments, and capacities in GB/s: out of a node, out of its rank 0, and inside it."""

    file: str
    arguments: dict
    num_gpus: int
    node: float
    rank: float
    inside: float


#: Files of public reports, with capacities derived from the GB/s of their links.
#: These are NVLink 25 (nvidia-smi) or 20.6 (NCCL, H100), xGMI 48, and PCIe 12, 24 or 48.
REPORTED = [
    # 4 NVLinks to GPU1, and PCIe 3 to GPU2.
    Count("reported/smi/bridge-plus-one.txt", {}, 3, 0, 0, 4 * 25 + 12),
    # 12 NVLinks to the neighbour and one PCIe 4 link to the rest.
    Count("reported/smi/bridged-pairs.txt", {}, 8, 0, 0, 12 * 25 + 24),
    Count("reported/smi/single-space.txt", {}, 8, 0, 0, 12 * 25 + 24),
    Count("reported/smi/in-a-paste.txt", {}, 8, 0, 0, 12 * 25 + 24),
    Count("reported/bridged-four.txt", {}, 4, 0, 0, 12 * 25 + 24),
    # Two NICs at each of two GPUs.
    Count(
        "reported/smi/four-cards-a-gpu.txt",
        {"nodes": 2, "nic_gb_per_s": 12, "pcie_gb_per_s": 55, "nvlink_joins": "switch"},
        2, 4 * 12, 2 * 12, 18 * 25,
    ),
    Count("reported/smi/four-cards-a-gpu.txt", {"nodes": 2, "nic_gb_per_s": 12}, 2, 4 * 12, 2 * 12, 18 * 25),
    # Two NICs that are near no GPU; eight GPUs are assigned to them alternately.
    Count("reported/smi/four-numa-uneven.txt", {"nodes": 2, "nic_gb_per_s": 12.5}, 8, 2 * 12.5, 12.5, 12.5),
    # Four of six NICs are near GPUs.
    Count("reported/smi/four-of-eight-nics.txt", {"nodes": 2, "nic_gb_per_s": 50}, 8, 4 * 50, 50, 18 * 25),
    Count("reported/smi/four-plain.txt", {}, 4, 0, 0, 12),
    Count("reported/smi/glued-affinity.txt", {}, 4, 0, 0, 12 * 25),
    Count("reported/smi/glued.txt", {"nodes": 2, "nic_gb_per_s": 50}, 2, 2 * 50, 50, 18 * 25),
    # Two GPUs to each of four NICs; two more NICs are far from all.
    Count("reported/smi/nv8-shared-cards.txt", {"nodes": 2, "nic_gb_per_s": 25}, 8, 4 * 25, 25, 8 * 25),
    Count("reported/smi/one-gpu.txt", {"nodes": 2, "nic_gb_per_s": 12.5}, 1, 12.5, 12.5, 0),
    Count("reported/smi/one-plus-three.txt", {}, 4, 0, 0, 12),
    # Two GPUs and two NICs under each of two PCIe switches: a NIC for each GPU.
    Count("reported/smi/ragged.txt", {"nodes": 2, "nic_gb_per_s": 25}, 4, 4 * 25, 25, 12 * 25),
    Count("reported/smi/six-escapes.txt", {}, 6, 0, 0, 12),
    Count("reported/smi/v100x4-two-cards.txt", {"nodes": 2, "nic_gb_per_s": 12.5}, 4, 25, 12.5, 6 * 25),
    Count("nvidia-smi/dgx1.txt", {"nodes": 2, "nic_gb_per_s": 12.5}, 8, 4 * 12.5, 12.5, 6 * 25),
    # Two ports of 25 GB/s for each of four GPUs, in a PCIe 5 slot of 48 by NCCL's figure, or of 55.
    Count("reported/xml/two-ports-a-gpu.xml", {"nodes": 2}, 4, 4 * 48, 48, 18 * 20.6),
    Count("reported/xml/two-ports-a-gpu.xml", {"nodes": 2, "pcie_gb_per_s": 55}, 4, 4 * 50, 50, 18 * 20.6),
    Count("reported/xml/numa-minus-one.xml", {"nodes": 2}, 4, 1.25, 1.25, 24),
    Count("reported/xml/rccl-mesh.xml", {}, 4, 0, 0, 3 * 48),
    Count("reported/xml/rccl-mesh-v1.xml", {}, 4, 0, 0, 3 * 48),
    # Slots without a width; bridges of one lane of PCIe 1, as virtual machines show.
    Count("reported/xml/vm-bridges.xml", {"nodes": 2}, 4, 4 * 50, 50, 18 * 20.6),
    Count("reported/xml/vm-bridges.xml", {"nodes": 1, "nvlinks": {}, "pcie": "always"}, 4, 0, 0, 50),
    Count("nccl-topo/aws-p4d-24xl-topo.xml", {"nodes": 2}, 8, 4 * 12, 12, 12),
    Count("nccl-topo/azure-ncv4-topo.xml", {"nodes": 2}, 4, 12.5, 12.5, 12.5),
    Count("nccl-topo/azure-ndv2-topo.xml", {"nodes": 2}, 8, 24, 24, 24),
    Count("nccl-topo/azure-ndv4-topo.xml", {"nodes": 2}, 8, 8 * 24, 24, 24),
    Count("nccl-topo/azure-ndv5-topo.xml", {"nodes": 2}, 8, 8 * 48, 48, 48),
]  # fmt: skip


def _counted(topology):
    """(GB/s out of node 0, GB/s from rank 0 to other nodes, GB/s from rank 0 to ranks of node 0)."""
    out = [e for e in topology.internode_links if topology.node_of_rank[topology.links[e].src] == 0]
    own = [e for e in out if topology.links[e].src == 0]
    inside = [e for e in topology.links_from[0] if not topology.is_internode(e)]
    return tuple(capacity(topology, links) for links in (out, own, inside))


@pytest.mark.slow
@pytest.mark.parametrize("count", REPORTED, ids=lambda count: count.file.rpartition("/")[2])
def test_reported_file_has_the_capacity_counted_by_hand(shared_data, count):
    """The imported topology has the capacities derived by hand."""
    topology = load_quietly(shared_data / count.file, **count.arguments)
    assert topology.num_ranks == count.num_gpus * topology.num_nodes
    assert _counted(topology) == pytest.approx((count.node, count.rank, count.inside))


def _smi(tmp_path, *rows):
    columns = [row.split()[0] for row in rows]
    lines = ["\t".join(("", *columns, "CPU Affinity", "NUMA Affinity"))]
    lines += ["\t".join(row.split()) + ("\t0-7\t0" if row.startswith("GPU") else "") for row in rows]
    path = tmp_path / "server.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def _near(tmp_path, num_gpus, num_nics, num_nvlinks=18):
    """Dump of GPUs and NICs that are all at the same distance, under one CPU."""
    devices = [f"GPU{i}" for i in range(num_gpus)] + [f"NIC{i}" for i in range(num_nics)]

    def cell(a, b):
        return "X" if a == b else f"NV{num_nvlinks}" if a[0] == b[0] == "G" else "NODE"

    return _smi(tmp_path, *(" ".join((a, *(cell(a, b) for b in devices))) for a in devices))


@pytest.mark.parametrize(
    ("num_gpus", "num_nics", "rank"), [(1, 1, 20), (2, 2, 20), (2, 4, 40), (4, 2, 20), (2, 3, 48), (3, 2, 40)]
)
def test_every_near_nic_is_kept(tmp_path, num_gpus, num_nics, rank):
    """A node sends at the total rate of its NICs of 20 GB/s; a rank at its share, limited by PCIe 5.

    NICs that cannot be divided evenly among the GPUs are used by all; an assumption names NCCL's choice.
    """
    path = _near(tmp_path, num_gpus, num_nics)
    topology = load_quietly(path, nodes=2, nic_gb_per_s=20, nvlink_joins="switch")
    node, own, _ = _counted(topology)
    assert (node, own) == pytest.approx((20 * num_nics, rank))
    told = any("NCCL chooses one of them for each channel" in each for each in topology.assumed)
    assert told == (3 in (num_gpus, num_nics))


@pytest.mark.parametrize(
    ("num_nvlinks", "nic", "rate"),
    [
        (0, 10, 12),
        (4, 10, 12),
        (6, 10, 12),
        (8, 10, 24),
        (12, 10, 24),
        (18, 10, 48),
        (12, 50, 50),
        (0, 25, 25),
    ],
)
def test_pcie_generation_follows_from_nvlinks_or_the_nic(tmp_path, num_nvlinks, nic, rate):
    """PCIe 3 is assumed up to V100, PCIe 4 for A100, PCIe 5 for H100; and at least the NIC's rate."""
    cell = f"NV{num_nvlinks}" if num_nvlinks else "NODE"
    rows = [f"GPU0 X {cell} NODE", f"GPU1 {cell} X NODE", "NIC0 NODE NODE X"]
    topology = load_quietly(_smi(tmp_path, *rows), nic_gb_per_s=nic, pcie="always", nvlink_joins="pairs")
    assert any(each.startswith(f"{rate} GB/s for a PCIe link") for each in topology.assumed)


def test_guess_that_limits_a_given_rate_is_reported(tmp_path):
    """Two NICs of 50 GB/s at a GPU whose PCIe rate is assumed: a note says that it limits 100 GB/s to 50."""
    with pytest.warns(AssumptionWarning):
        topology = taccl.topologies.load(_near(tmp_path, 1, 2), nodes=2, nic_gb_per_s=50)
    assert any("NIC0 + NIC1 (100 GB/s) are reached at 50 GB/s only" in each for each in topology.assumed)
    assert "pcie_gb_per_s=" in topology.assumed[0]


def test_given_rate_limits_without_a_note(tmp_path):
    """A given PCIe rate is not noted as an assumption, whatever it limits."""
    topology = load_quietly(_near(tmp_path, 1, 2), nodes=2, nic_gb_per_s=50, pcie_gb_per_s=55)
    assert not any("only" in each for each in topology.assumed)
    assert _counted(topology)[:2] == pytest.approx((55, 55))


def test_nic_far_from_every_gpu_is_left_out_and_named(tmp_path):
    """A NIC behind the other CPU is left out if another one is near, and a note names it."""
    rows = ["GPU0 X NV18 PIX SYS", "GPU1 NV18 X PIX SYS", "NIC0 PIX PIX X SYS", "NIC1 SYS SYS SYS X"]
    topology = load_quietly(_smi(tmp_path, *rows), nodes=2, nic_gb_per_s=20)
    assert _counted(topology)[0] == pytest.approx(20)
    assert any("NICs NIC1 are unused" in each for each in topology.assumed)


def test_unknown_affinity_joins_no_cpus(tmp_path):
    """With CPU affinity N/A, as in VMs, the cells alone decide which of two NICs of 20 GB/s is near."""
    rows = ["GPU0 X SYS NODE SYS N/A N/A", "GPU1 SYS X SYS NODE N/A N/A"]
    rows += ["NIC0 NODE SYS X SYS", "NIC1 SYS NODE SYS X"]
    topology = load_quietly(_smi(tmp_path, *rows), nodes=2, nic_gb_per_s=20)
    assert _counted(topology)[:2] == pytest.approx((40, 20))
    assert any("the rate between CPUs is unlimited" in each for each in topology.assumed)


def test_earlier_name_of_cells_between_sockets_is_read(tmp_path):
    """SOC, which drivers before 387 print, is read as SYS."""
    rows = ["GPU0 X PHB SOC 0-7", "GPU1 PHB X SOC 0-7", "GPU2 SOC SOC X 8-15"]
    topology = load_quietly(_smi(tmp_path, *rows), cpu_gb_per_s=5)
    across = [e for e, link in enumerate(topology.links) if link.src < 2 <= link.dst]
    assert capacity(topology, across) == pytest.approx(5)


@pytest.mark.parametrize("lanes", ["0", "63", "255"])
def test_width_that_no_slot_has_is_not_known(tmp_path, lanes):
    """VMs show 63 or 255 lanes: the NIC of 25 GB/s is not limited, and the assumption is noted."""
    slot = f'link_speed="8.0 GT/s PCIe" link_width="{lanes}"'
    path = write_dump(
        tmp_path,
        f'<pci busid="0:1:0.0" class="0x030200" {slot}><gpu dev="0" sm="80" rank="0"/></pci>',
        f'<pci busid="0:2:0.0" class="0x020000" {slot}>'
        '<nic><net name="p0" dev="0" speed="200000" port="1" gdr="1"/></nic></pci>',
    )
    topology = load_quietly(path, nodes=2)
    assert _counted(topology)[0] == pytest.approx(25)
    assert any("whose lanes or GT/s the file lacks" in each for each in topology.assumed)


def test_nics_of_unequal_rates_are_used_in_proportion(tmp_path):
    """Ports of 25 and 12.5 GB/s at one GPU send 37.5 GB/s together."""
    net = '<net name="p{0}" dev="{0}" speed="{1}" port="{0}" gdr="1"/>'
    slot = 'link_speed="32.0 GT/s PCIe" link_width="16"'
    path = write_dump(
        tmp_path,
        f'<pci busid="0:1:0.0" class="0x030200" {slot}><gpu dev="0" sm="90" rank="0"/></pci>',
        f'<pci busid="0:2:0.0" class="0x020000" {slot}>'
        f"<nic>{net.format(0, 200000)}{net.format(1, 100000)}</nic></pci>",
    )
    assert _counted(load_quietly(path, nodes=2))[:2] == pytest.approx((37.5, 37.5))


_VIRTUAL = '<nic><net name="veth0" dev="1" speed="10000" port="0" guid="0x1" gdr="0"/></nic>'


def _two_cpus(tmp_path, card):
    """Dump of two CPUs, each with a GPU and a virtual interface; the first also has the NIC `card`."""
    slot = 'link_speed="16.0 GT/s PCIe" link_width="16"'
    cpus = "".join(
        f'<cpu numaid="{n}" arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49">'
        f'<pci busid="0:{n}:0.0" class="0x030200" {slot}><gpu dev="{n}" sm="89" rank="{n}"/></pci>'
        f"{_VIRTUAL}{card * (not n)}</cpu>"
        for n in (0, 1)
    )
    path = tmp_path / "dump.xml"
    path.write_text(f'<system version="1">{cpus}</system>')
    return path


def test_virtual_interfaces_add_nothing_to_a_card(tmp_path):
    """A virtual interface does not count: a node with a NIC of 1 Gbit/s sends 0.125 GB/s."""
    card = (
        '<pci busid="0:9:0.0" class="0x020000" link_speed="8.0 GT/s PCIe" link_width="4">'
        '<nic><net name="eno1" dev="0" speed="1000" port="0" guid="0x0" gdr="0"/></nic></pci>'
    )
    path = _two_cpus(tmp_path, card)
    topology = load_quietly(path, nodes=2)
    assert _counted(topology)[0] == pytest.approx(0.125)
    assert any("virtual and left out: veth0" in each for each in topology.assumed)
    named = load_quietly(path, nodes=2, nics=["veth0"])
    assert _counted(named)[0] == pytest.approx(1.25)


def test_virtual_interfaces_alone_are_one_for_all_cpus(tmp_path):
    """An interface that the file repeats at two CPUs counts once: a node sends 1.25 GB/s."""
    topology = load_quietly(_two_cpus(tmp_path, ""), nodes=2)
    assert _counted(topology)[0] == pytest.approx(1.25)
    assert any("lists at several CPUs is one" in each for each in topology.assumed)


def test_functions_of_one_card_share_its_slot(tmp_path):
    """Ports of one NIC card share its PCIe slot, as NCCL merges them.

    NICs 2.0 and 2.1 of 25 GB/s are ports of a card in a slot of 24 GB/s.
    """
    net = '<nic><net name="p{0}" dev="{0}" speed="200000" port="1" gdr="1"/></nic>'
    slot = 'link_speed="16.0 GT/s PCIe" link_width="16"'
    path = write_dump(
        tmp_path,
        f'<pci busid="0:1:0.0" class="0x030200" {slot}><gpu dev="0" sm="80" rank="0"/></pci>',
        f'<pci busid="0:3:0.0" class="0x030200" {slot}><gpu dev="1" sm="80" rank="1"/></pci>',
        f'<pci busid="0:2:0.0" class="0x020000" {slot}>{net.format(0)}</pci>',
        f'<pci busid="0:2:0.1" class="0x020000" {slot}>{net.format(1)}</pci>',
    )
    assert _counted(load_quietly(path, nodes=2))[:2] == pytest.approx((24, 24))


def test_switches_of_one_bus_id_are_parts_of_their_own(tmp_path):
    """RCCL dumps one bus id for several switches of a tree: each has its own link."""
    slot = 'link_speed="16.0 GT/s PCIe" link_width="16"'
    switch = f'<pci busid="0:9:0.0" class="0x060400" {slot}>{{}}</pci>'
    gpus = [
        f'<pci busid="0:{rank}:0.0" class="0x030200" {slot}><gpu dev="{rank}" sm="80" rank="{rank}"/></pci>'
        for rank in range(4)
    ]
    pairs = (switch.format(gpus[a] + gpus[b]) for a, b in ((0, 1), (2, 3)))
    topology = load_quietly(write_dump(tmp_path, *pairs, version=2))
    across = [e for e, link in enumerate(topology.links) if link.src < 2 <= link.dst]
    assert capacity(topology, across) == pytest.approx(24)


def _rccl(tmp_path, count, gcn, version=2, tclass="0x038000"):
    """Dump of two AMD GPUs with xGMI links between them."""
    gpu = (
        '<pci busid="0:{0}:0.0" class="0x038000" link_speed="16 GT/s" link_width="16">'
        '<gpu dev="{0}" sm="90" gcn="{gcn}" arch="38911" rank="{0}" gdr="1">'
        '<xgmi target="0:{1}:0.0" count="{count}" tclass="{tclass}"/></gpu></pci>'
    )
    gpus = (gpu.format(a, 1 - a, gcn=gcn, count=count, tclass=tclass) for a in (0, 1))
    return write_dump(tmp_path, *gpus, version=version)


@pytest.mark.parametrize(
    ("gcn", "rate"),
    [
        ("906", 24),
        ("908", 24),
        ("910", 36),
        ("gfx90a", 36),
        ("940", 48),
        ("gfx942", 48),
        ("gfx950", 48),
        ("", 24),
    ],
)
def test_xgmi_has_the_rate_of_its_architecture(tmp_path, gcn, rate):
    """Links have RCCL's constants for their architecture, and four links between two dies add up."""
    topology = load_quietly(_rccl(tmp_path, 4, gcn))
    assert _counted(topology)[2] == pytest.approx(4 * rate)
    assert {link.name for link in topology.links} == {"xGMI x4"}


@pytest.mark.parametrize(
    ("gcn", "name"), [("gfx942:sramecc+:xnack-", "gfx942 ("), ("906", "gfx906 ("), ("", "does not name (")]
)
def test_architecture_behind_a_rate_of_xgmi_is_named(tmp_path, gcn, name):
    """The assumption on a rate names the architecture without its features, or says that the file has none."""
    told = next(each for each in load_quietly(_rccl(tmp_path, 4, gcn)).assumed if "xGMI each way" in each)
    assert name in told


@pytest.mark.parametrize(("version", "tclass"), [(1, "0x038000"), (2, "0x120000"), (2, "0x038000")])
def test_both_versions_and_classes_of_rccl_are_read(tmp_path, version, tclass):
    """NCCL's version 1 and RCCL's version 2 are read; AMD's GPUs are display controllers or accelerators."""
    assert len(load_quietly(_rccl(tmp_path, 1, "gfx942", version, tclass)).links) == 2


def test_given_rate_of_xgmi_beats_the_constant(tmp_path):
    """A given rate of 60 GB/s replaces the constant of xGMI links."""
    topology = load_quietly(_rccl(tmp_path, 1, "gfx942"), nvlink_gb_per_s=60)
    assert _counted(topology)[2] == pytest.approx(60)
    assert not any("xGMI each way" in each for each in topology.assumed)


@pytest.mark.parametrize(
    ("mark", "fence"),
    [("> ", "```"), (">", ""), ("> > ", "---"), ("| ", ""), ("    ", "~~~"), ("node-1: ", "")],
)
def test_matrix_in_a_paste_is_read(tmp_path, mark, fence):
    """Quote marks, code fences, a prompt and a host name before each line are ignored."""
    plain = _near(tmp_path, 2, 1)
    quoted = tmp_path / "paste.txt"
    lines = [mark + line for line in plain.read_text().splitlines()]
    quoted.write_text("\n".join(("Hello,", "$ nvidia-smi topo -m", fence, *lines, fence, "thanks")) + "\n")
    assert load_quietly(quoted).links == load_quietly(plain).links


@pytest.mark.parametrize("mark", ["{:3}  ", "{}: ", "{} | ", "2026-01-02T03:04:0{}Z "])
def test_matrix_with_numbered_lines_is_read(tmp_path, mark):
    """Line numbers and timestamps before each line of a matrix are ignored."""
    plain = _near(tmp_path, 2, 1)
    numbered = tmp_path / "numbered.txt"
    lines = plain.read_text().splitlines()
    numbered.write_text("".join(mark.format(i) + line + "\n" for i, line in enumerate(lines, 1)))
    assert load_quietly(numbered).links == load_quietly(plain).links


def test_matrix_with_commas_is_read(tmp_path):
    """A matrix saved as CSV by a spreadsheet is read."""
    plain = _near(tmp_path, 2, 1)
    commas = tmp_path / "matrix.csv"
    commas.write_text(plain.read_text().replace("\t", ","))
    assert load_quietly(commas).links == load_quietly(plain).links


def test_matrix_in_a_markdown_table_is_read(tmp_path):
    """Bars between the cells of a Markdown table are separators."""
    plain = _near(tmp_path, 2, 1)
    table = tmp_path / "table.md"
    lines = ["| " + " | ".join(line.split("\t")) + " |" for line in plain.read_text().splitlines()]
    table.write_text("\n".join((lines[0], "|---" * 6 + "|", *lines[1:])) + "\n")
    assert load_quietly(table).links == load_quietly(plain).links


def test_glued_cells_are_split_and_reported(tmp_path):
    """NODENODE is split into two cells, and NV120-31 into NV12 and 0-31, as the other GPU's row has NV12."""
    rows = ["GPU0 X NV12 NODE NODE", "GPU1 NV12 X NODE NODE", "NIC0 NODE NODE X PIX", "NIC1 NODE NODE PIX X"]
    path = _smi(tmp_path, *rows)
    whole = load_quietly(path)
    text = path.read_text().replace("NODE\tNODE", "NODENODE")
    path.write_text(text)
    glued = load_quietly(path)
    assert glued.links == whole.links
    assert any("'NODENODE' in the row of GPU0 is NODE and NODE" in each for each in glued.assumed)
    path.write_text("GPU0 GPU1CPU Affinity NUMA Affinity\nGPU0 X NV120-31 0\nGPU1 NV12 X 0-31 0\n")
    assert load_quietly(path).links[0].beta_us_per_mb == whole.links[0].beta_us_per_mb


def test_number_of_nvlinks_is_not_split(tmp_path):
    """NV12 in one direction and NV1 in the other are refused as a contradiction; NV12 is not read as NV1 with CPU
    affinity 2."""
    path = _smi(tmp_path, "GPU0 X NV12", "GPU1 NV1 X")
    with pytest.raises(taccl.FormatError, match="NV12 from GPU1 to GPU0|NV1 from GPU1|NV12 from GPU0"):
        load_quietly(path)


def _gpu(rank):
    return (
        f'<pci busid="0:{rank}:0.0" class="0x030200" link_speed="16.0 GT/s" link_width="16">'
        f'<gpu dev="{rank}" sm="80" rank="{rank}"/></pci>'
    )


def _nic(number, *mbit_per_s, width=16):
    nets = "".join(
        f'<net name="p{number}{port}" dev="0" speed="{speed}" port="{port}" gdr="1"/>'
        for port, speed in enumerate(mbit_per_s)
    )
    return (
        f'<pci busid="0:{20 + number}:0.0" class="0x020000" link_speed="16.0 GT/s" link_width="{width}">'
        f"<nic>{nets}</nic></pci>"
    )


def _bridge(number, *below):
    return (
        f'<pci busid="0:{40 + number}:0.0" class="0x060400" link_speed="16.0 GT/s" link_width="16">'
        f"{''.join(below)}</pci>"
    )


def test_bridges_above_a_nic_do_not_make_it_farther(tmp_path):
    """Two NICs of 10 GB/s below one CPU are both kept, although one is behind a bridge."""
    topology = load_quietly(
        write_dump(tmp_path, _gpu(0), _nic(0, 80000), _bridge(0, _nic(1, 80000))), nodes=2
    )
    assert _counted(topology)[:2] == pytest.approx((20, 20))


def test_faster_nic_that_is_farther_is_used(tmp_path):
    """A NIC of 1 Gb/s near the GPU does not prevent use of a farther one of 100 Gb/s."""
    near = _bridge(0, _gpu(0), _nic(0, 1000))
    topology = load_quietly(write_dump(tmp_path, near, _bridge(1, _nic(1, 100000))), nodes=2)
    assert _counted(topology)[:2] == pytest.approx((12.625, 12.625))
    assert not any("fixed shares" in each for each in topology.assumed)


def test_shares_of_ranks_with_some_nics_in_common_are_reported(tmp_path):
    """If a rank shares one of its NICs, a note says so: GPU0 has a slow and a fast NIC, GPU1 only the fast one."""
    near = _bridge(0, _gpu(0), _nic(0, 1000))
    topology = load_quietly(write_dump(tmp_path, near, _bridge(1, _gpu(1), _nic(1, 100000))), nodes=2)
    assert any("in fixed shares" in each for each in topology.assumed)


def test_nics_that_pcie_limits_get_less_of_a_send(tmp_path):
    """A rank's sends are divided among its NICs by the rates that PCIe leaves them.

    Two ports of 25 GB/s in a slot of 12 GB/s, and one of 12 in another slot, send 24 GB/s together.
    """
    cards = _nic(0, 200000, 200000, width=8), _nic(1, 96000)
    topology = load_quietly(write_dump(tmp_path, _gpu(0), *cards), nodes=2)
    assert _counted(topology)[:2] == pytest.approx((24, 24))


@pytest.mark.parametrize("slot", ['link_speed="2.5 GT/s PCIe" link_width="1"', ""])
def test_c2c_takes_the_place_of_pcie(tmp_path, slot):
    """With C2C, as in GH200, a PCIe link of one or unknown lanes does not limit the path to the NIC."""
    gpu = f'<pci busid="9:1:0.0" class="0x030200" {slot}><gpu dev="0" sm="90" rank="0"><c2c bw="22000" count="2"/>'
    topology = load_quietly(write_dump(tmp_path, f"{gpu}</gpu></pci>", _nic(0, 400000, width=32)), nodes=2)
    assert _counted(topology)[:2] == pytest.approx((44, 44))
    assert not any("c2c" in each for each in topology.assumed)


def test_nvlinks_to_a_cpu_take_the_place_of_pcie(tmp_path):
    """With NVLinks to the CPU, as in POWER9, two of 20 GB/s are used instead of two PCIe lanes."""
    gpu = (
        '<pci busid="{0}:0:0.0" class="0x030200" link_speed="8.0 GT/s PCIe" link_width="2">'
        '<gpu dev="{0}" sm="70" rank="{0}"><nvlink target="0:0:0.0" count="2" tclass="0x068001"/></gpu></pci>'
    )
    path = write_dump(tmp_path, gpu.format(0), gpu.format(1), _nic(0, 400000, width=32))
    assert _counted(load_quietly(path, nodes=2)) == pytest.approx((48, 40, 40))


@pytest.mark.parametrize("rates", [{"nic_gb_per_s": 1e15}, {"nic_gb_per_s": 50, "pcie_gb_per_s": 1e-20}])
def test_rates_of_any_size_are_read(tmp_path, rates):
    """Rates far from usual ones are read: the capacity of a node follows from their ratios."""
    path = tmp_path / "server.txt"
    rows = ("\tGPU0\tGPU1\tNIC0\tCPU Affinity", "GPU0\tX\tPHB\tPHB\t0", "GPU1\tPHB\tX\tPHB\t0")
    path.write_text("\n".join([*rows, "NIC0\tPHB\tPHB\tX"]))
    topology = load_quietly(path, nodes=2, **rates)
    betas = [link.beta_us_per_mb for link in topology.links if link.src < 2 <= link.dst]
    assert 1000 / float(min(betas)) == pytest.approx(min(rates.values()))


def _two_levels(vendor, device, outer, inner):
    """Devices of a PCIe switch that shows two levels: two GPUs below one inner switch, two NICs below another."""

    def pci(busid, kind, inside, part=""):
        ids = f'vendor="{vendor}" device="{device}" subsystem_vendor="{vendor}" subsystem_device="{part}"'
        link = 'link_speed="16.0 GT/s PCIe" link_width="16"'
        return f'<pci busid="0000:{busid}:00.0" class="{kind}" {ids if part else ""} {link}>{inside}</pci>'

    gpus = (pci(f"1{i}", "0x030200", f'<gpu dev="{i}" sm="80" rank="{i}" gdr="1"/>') for i in range(2))
    nets = (f'<nic><net name="n{i}" dev="{i}" speed="200000" port="1"/></nic>' for i in range(2))
    nics = (pci(f"2{i}", "0x020700", net) for i, net in enumerate(nets))
    below = "".join(
        pci(busid, "0x060400", "".join(each), inner) for busid, each in (("02", gpus), ("03", nics))
    )
    return pci("01", "0x060400", below, outer)


@pytest.mark.parametrize(("linked", "node"), [(False, 24), (True, 48)])
def test_links_between_switches_avoid_the_cpu(tmp_path, linked, node):
    """Two GPUs reach two NICs below another PCIe switch: over the CPU at 24 GB/s, or over a direct link at 48."""
    inner = _two_levels("0x10b5", "0x9797", "0x1", "0x1")
    for busid, other in (("02", "03"), ("03", "02")):
        start = inner.index("<pci", inner.index(f'busid="0000:{busid}:00.0"'))
        link = f'<pcilink target="0000:{other}:00.0"/>' if linked else ""
        inner = f"{inner[:start]}{link}{inner[start:]}"
    switches = inner[inner.index("<pci", 1) : -len("</pci>")]  # without the outer switch
    topology = load_quietly(write_dump(tmp_path, switches), nodes=2)
    assert _counted(topology)[:2] == pytest.approx((node, 24))
    assert not any("ignored elements" in each for each in topology.assumed)


@pytest.mark.parametrize(
    ("ids", "node"),
    [
        (("0x1000", "0xc010", "0xa096", "0xa096"), 48),
        (("0x1000", "0xc030", "0x0144", "0x1144"), 48),
        (("0x1000", "0xc030", "0x0144", "0x0144"), 24),
        (("0x1000", "0xc010", "0x0144", "0x0144"), 24),
        (("0x10b5", "0xc010", "0xa096", "0xa096"), 24),
    ],
    ids=["PCIe 4", "PCIe 5", "PCIe 5, one level", "another board", "another vendor"],
)
def test_levels_of_a_broadcom_switch_limit_nothing(tmp_path, ids, node):
    """Two GPUs reach two NICs at 24 GB/s each, 16 lanes of PCIe 4, through one switch that shows two levels.

    Through two switches, the link between them carries 24 GB/s.
    """
    topology = load_quietly(write_dump(tmp_path, _two_levels(*ids)), nodes=2)
    assert _counted(topology)[:2] == pytest.approx((node, 24))
    assert (node == 48) == any(
        each.startswith("the two levels of a PCIe switch") for each in topology.assumed
    )
