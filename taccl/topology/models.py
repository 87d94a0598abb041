"""Table of machine models: shape of a node, rates of its links and NICs, and sources of the rates.

The functions in `machines`, the profiles of constants, the names in `registry` and the predictions are
derived from these rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from taccl.topology.networks import INSTANCES

if TYPE_CHECKING:
    from taccl.topology.topology import Topology

#: Rate of a link or NIC: (GB/s in each direction, source of this figure).
Rate: TypeAlias = tuple[int | str, str]

_NDV2 = {
    2: ((0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7)),
    1: ((0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6)),
}
_DGX1 = {
    2: ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)),
    1: ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)),
}
_FULL_MESH = dict.fromkeys(combinations(range(8), 2), 1)
_FOUR_MESH = dict.fromkeys(combinations(range(4), 2), 1)


class NodeShape(NamedTuple):
    """Shape of a node: its ranks, links and NICs.

    - `pairs`: {pair of local ranks: number of links between them}; empty if a switch joins them.
    - `joint`: Name of the links or the switch inside the node.
    - `network`: Name of the network between nodes.
    - `nvls`: Profile of an NVSwitch that reduces (`taccl.topology.in_network.PROFILES`); empty if it does
      not.
    """

    ranks_per_node: int
    ranks_per_nic: int
    pairs: Mapping[tuple[int, int], int] = {}
    joint: str = "NVSwitch"
    network: str = "InfiniBand"
    nvls: str = ""

    @property
    def has_rails(self) -> bool:
        """True if each rank has a NIC of its own."""
        return self.ranks_per_nic == 1


class Pcie(NamedTuple):
    """PCIe of a server: its version, and the rate in GB/s that NCCL assumes.

    NCCL's rate is that of ``src/graph/topo.cc``, rounded down to a speed listed in ``src/graph/search.cc``.
    """

    version: str
    nccl_gb_per_s: str


class RcclFit(NamedTuple):
    """Costs under RCCL, fitted to published logs by `taccl fit`.

    - `architecture`: AMD's name of the GPUs' architecture.
    - `launch_each_us`: Host time in us to enqueue a collective on each GPU of a process.
    - `protocols`: {protocol: (base in us, hop in us, share of the rate)}.
    """

    architecture: str
    launch_us: str
    launch_each_us: str
    gb_per_s: str
    logs: str
    protocols: Mapping[str, tuple[str, str, str]]


class Model(NamedTuple):
    """A machine model: the shape of a node, and the rates of its links and NICs.

    - `what`: First sentence of the documentation of its function.
    - `gpus`: GPU models in the names of devices that this machine stands for, the machine's own first. Models
      share a machine if their links in a node are alike; on PCIe, if their data sheets state the same version
      of it, with 16 lanes.
    - `bridged`: Boards among `gpus`, on PCIe, that NVLink bridges may join in pairs. Their names do not tell
      if they do.
    - `links`: {kind of link in a node: its rate}.
    - `nic`: Rate of a NIC.
    - `host`: Maker of the hosts' processors, ``"AMD"``, or ``"Intel"`` for all others. It determines the
      maximum rate of LL between nodes and the time to post a message to a NIC in NCCL's model.
    - `nics_per_rank`: Number of NICs that a rank with NICs of its own has; `nic` is their total.
    - `network`: Class of the network of its NICs, a name in `taccl.topology.networks.NETWORKS`. If empty, the
      class is that of the instance type. Without one, it is ``"infiniband"`` for GPUs with NVLink, else
      ``"rccl"``.
    - `generation`, `num_nvlinks`: NVIDIA GPU generation, and number of NVLinks per GPU; empty and 0 for other
      GPUs. If pairs of ranks are linked, each pair has an equal part of a GPU's NVLinks, unless TACCL
      published the constants.
    - `published`: Name of the file in which TACCL published the machine's constants, and {kind of link:
      (us/MB, field of that file)}. None if TACCL published none.
    """

    what: str
    shape: NodeShape
    links: Mapping[str, Rate]
    nic: Rate
    gpus: tuple[str, ...] = ()
    generation: str = ""
    num_nvlinks: int = 0
    pcie: Pcie | None = None
    rccl: RcclFit | None = None
    published: tuple[str, Mapping[str, tuple[str, str]]] | None = None
    notes: str = ""
    host: str = "Intel"
    nics_per_rank: int = 1
    network: str = ""
    bridged: tuple[str, ...] = ()

    @property
    def has_library(self) -> bool:
        """True if the costs of NCCL or RCCL on this machine's GPUs are known."""
        return bool(self.num_nvlinks) or self.pcie is not None or self.rccl is not None


_V100 = "NVIDIA, Tesla V100 GPU Architecture (2017): NVLink 2.0, 25 GB/s per link and direction, 6 links"
_EDR = "EDR InfiniBand, 100 Gb/s"
_V100_LINKS = {"nvlink": (25, _V100), "nvlink_double": (50, f"two links; {_V100}")}
_FEWER = "400 GB/s of NVLink both ways, of eight links"
_GB200 = "NVIDIA, DGX GB Rack Scale Systems User Guide:"
_MI355X, _MI350X = (f"AMD, Instinct {name} data sheet (2025)" for name in ("MI355X", "MI350X"))
_AMD = "AMD, ROCm documentation (2026): eight"
_MESH = {"nvlink": ("46", "node_betas_list[1]"), "nvlink_double": ("23", "node_betas_list[0]")}
_NDV2_NOTES = """

    Notes
    -----
    The NIC is attached to the PCIe switch of two of the ranks, which is why sketches for NDv2 send off the
    node from one rank and receive on the other. No published rate of that switch is known to us, so the model
    has no resource for it: any pair of ranks may send across nodes at the NIC's rate."""
_RAILED = ", and a NIC for each rank."


def _on_pcie(
    what: str, gpus: tuple[str, ...], generation: str, version: str, gb_per_s: str, nccl_gb_per_s: str,
    *, bridged: tuple[str, ...] = (),
) -> Model:  # fmt: skip
    """Server of eight GPUs on PCIe that share one NIC; some models may be `bridged` by NVLink in pairs."""
    return Model(
        f"Server of 8 {what} a node, each on PCIe, and one NIC of 100 Gb/s that all share.",
        NodeShape(8, 8, joint="PCIe", network="Ethernet"),
        {"pcie": (gb_per_s, f"PCI-SIG, PCI Express {version} x16")},
        ("12.5", "one NIC of 100 Gb/s for each node: our choice"),
        gpus,
        generation,
        pcie=Pcie(version, nccl_gb_per_s),
        bridged=bridged,
    )


#: {name: machine model}. The rank numbers of NDv2's cube mesh are those of TACCL's published topology.
#: The rank numbers of DGX-1's cube mesh are those of `nvidia-smi topo -m`.
MODELS: dict[str, Model] = {
    "ndv2": Model(
        "Azure NDv2: 8 V100 per node in a hybrid cube mesh, and one NIC that all 8 ranks share.",
        NodeShape(8, 8, {pair: count for count, pairs in _NDV2.items() for pair in pairs}, "NVLink"),
        _V100_LINKS,
        ("12.5", f"Microsoft, Azure NDv2-series: one {_EDR}, for the virtual machine"),
        ("V100",),
        "Volta",
        6,
        published=("TACCL's published topo-ndv2-1MB.json", _MESH),
        notes=_NDV2_NOTES,
    ),
    "dgx1": Model(
        "DGX-1: 8 V100 per node in a hybrid cube mesh, and four NICs, one for each pair of ranks.",
        NodeShape(8, 2, {pair: count for count, pairs in _DGX1.items() for pair in pairs}, "NVLink"),
        _V100_LINKS,
        ("12.5", f"NVIDIA, DGX-1 With Tesla V100 System Architecture (2017): four {_EDR}"),
        ("V100",),
        "Volta",
        6,
        published=(
            "TACCL's published topo-ndv2-1MB.json (NDv2 has the same V100, NVLink 2.0 and EDR InfiniBand)",
            _MESH,
        ),
    ),
    "dgx2": Model(
        "DGX-2: 16 V100 per node behind NVSwitch, and eight NICs, one for each pair of ranks.",
        NodeShape(16, 2),
        {"nvswitch": (150, f"six links; {_V100}")},
        ("12.5", f"NVIDIA, DGX-2 data sheet (2018): eight {_EDR}"),
        ("V100",),
        "Volta",
        6,
        published=("TACCL's published topo-dgx2-1MB.json", {"nvswitch": ("8", "node_betas_list[0]")}),
    ),
    "dgx-a100": Model(
        f"DGX-A100: 8 A100 per node behind NVSwitch{_RAILED}",
        NodeShape(8, 1),
        {"nvswitch": (300, "NVIDIA, A100 Tensor Core GPU Architecture (2020): NVLink 3, 600 GB/s both ways")},
        (25, "NVIDIA, DGX A100 data sheet (2020): eight single-port HDR InfiniBand, 200 Gb/s"),
        ("A100", "PG509"),
        "Ampere",
        12,
        host="AMD",  # NVIDIA, DGX A100 data sheet (2020): dual AMD Rome 7742
    ),
    "a800": Model(
        f"A800 server (HGX A800): 8 A800 per node behind NVSwitch{_RAILED}",
        NodeShape(8, 1),
        {"nvswitch": (200, f"NVIDIA, A800 Tensor Core GPU data sheet (2022): {_FEWER}")},
        (25, "eight NICs of 200 Gb/s, as in DGX A100: our choice"),
        ("A800",),
        "Ampere",
        8,
    ),
    "dgx-h100": Model(
        f"DGX-H100: 8 H100 per node behind NVSwitch{_RAILED}",
        NodeShape(8, 1, nvls="nvls-hopper"),
        {"nvswitch": (450, "NVIDIA, H100 Tensor Core GPU Architecture (2022): NVLink 4, 900 GB/s both ways")},
        (50, "NVIDIA, DGX H100 data sheet (2022): eight single-port NDR InfiniBand, 400 Gb/s"),
        ("H100", "H20"),
        "Hopper",
        18,
    ),
    "h800": Model(
        f"H800 server (HGX H800): 8 H800 per node behind NVSwitch{_RAILED}",
        NodeShape(8, 1, nvls="nvls-hopper"),
        {"nvswitch": (200, f"NVIDIA, H800 Tensor Core GPU data sheet (2023): {_FEWER}")},
        (50, "eight NICs of 400 Gb/s, as in DGX H100: our choice"),
        ("H800",),
        "Hopper",
        8,
    ),
    "h200": Model(
        f"H200 server (DGX H200, HGX H200): 8 H200 per node behind NVSwitch{_RAILED}",
        NodeShape(8, 1, nvls="nvls-hopper"),
        {"nvswitch": (450, "NVIDIA, H200 Tensor Core GPU data sheet (2024): NVLink 4, 900 GB/s both ways")},
        (50, "NVIDIA, DGX H200 data sheet (2024): eight single-port NDR InfiniBand, 400 Gb/s"),
        ("H200",),
        "Hopper",
        18,
    ),
    "gh200": Model(
        f"Quad GH200 (HPE Cray EX254n): 4 GH200 per node, fully connected by NVLink{_RAILED}",
        NodeShape(4, 1, _FOUR_MESH, "NVLink", "Slingshot"),
        {"nvlink": (150, "HPE, Cray Supercomputing EX254n (2023): NVLink 4, six links between two GPUs")},
        (25, "HPE, Cray Supercomputing EX254n (2023): four Slingshot NICs of 200 Gb/s"),
        ("GH200",),
        "Hopper",
        18,
        network="slingshot",
    ),
    "b200": Model(
        f"B200 server (DGX B200, HGX B200): 8 B200 per node behind NVSwitch{_RAILED}",
        NodeShape(8, 1, nvls="nvls-blackwell"),
        {"nvswitch": (900, "NVIDIA, DGX B200 data sheet (2024): NVLink 5, 14.4 TB/s both ways of 8 GPUs")},
        (50, "NVIDIA, DGX B200 data sheet (2024): eight single-port ConnectX-7, 400 Gb/s"),
        ("B200", "B300"),
        "Blackwell",
        18,
    ),
    "gb200-nvl72": Model(
        f"GB200 NVL72: nodes are racks of 72 GPUs behind NVSwitch{_RAILED}",
        NodeShape(72, 1, nvls="nvls-blackwell"),
        {"nvswitch": (900, f"{_GB200} NVLink 5, 130 TB/s both ways of 72 GPUs")},
        (50, f"{_GB200} a ConnectX-7 of 400 Gb/s for each GPU"),
        ("GB200", "GB300"),
        "Blackwell",
        18,
    ),
    "mi300x": Model(
        f"MI300X server: 8 MI300X per node, fully connected by xGMI{_RAILED}",
        NodeShape(8, 1, _FULL_MESH, "xGMI", "Ethernet"),
        {"xgmi": (64, "AMD, Instinct MI300X data sheet (2023): 7 links to GPUs, 128 GB/s both ways each")},
        (50, f"{_AMD} 400 Gb/s NICs, one for each GPU"),
        ("MI300X", "MI325X"),
        # `launch_each_us` is 4.3 us of MI355X times the ratio of the hosts' boost clocks (our choice).
        # The clocks, in Oracle's shapes: 5.0 GHz (EPYC 9575F, MI355X), 3.8 GHz (Xeon 8480+, MI300X).
        rccl=RcclFit(
            "gfx942",
            "7",
            "5.66",
            "45.2",
            "allreduce, median error 1.6 %; the launch and the share of ll are priors",
            {
                "simple": ("7.69", "3.11", "1"),
                "ll": ("5.46", "0.5", "0.5"),
                "ll128": ("3.05", "0.41", "0.575"),
            },
        ),
    ),
    "mi355x": Model(
        f"MI355X server: 8 MI355X per node, fully connected by xGMI{_RAILED}",
        NodeShape(8, 1, _FULL_MESH, "xGMI", "Ethernet"),
        {"xgmi": ("76.8", f"{_MI355X}: 7 links to GPUs, 153.6 GB/s both ways each")},
        (50, f"{_AMD} Pollara 400, one for each GPU"),
        ("MI355X",),
        network="pollara",
        # In the logs, one process launches 8 GPUs, which hides the latencies of small messages.
        # As logs do not show them, the launch time and the costs of LL are those of MI300X.
        rccl=RcclFit(
            "gfx950",
            "7",
            "4.3",
            "56.5",
            "allreduce and alltoall, median error 5 %; launch and ll as on MI300X",
            {
                "simple": ("11.6", "1.42", "1"),
                "ll": ("5.46", "0.5", "0.5"),
                "ll128": ("8.5", "0.83", "0.86"),
            },
        ),
    ),
    "mi350x": Model(
        f"MI350X server: 8 MI350X per node, fully connected by xGMI{_RAILED}",
        NodeShape(8, 1, _FULL_MESH, "xGMI", "Ethernet"),
        {"xgmi": ("76.8", f"{_MI350X}: 7 links to GPUs, 153.6 GB/s both ways each")},
        (50, f"{_AMD} Pollara 400, one for each GPU"),
        ("MI350X",),
        network="pollara",
        # RCCL's kernels are assumed slower by the ratio of data-sheet engine clocks, 2200 and 2400 MHz.
        # AMD's published allreduce of 8 GiB (361 GB/s) tests the rate.
        # `launch_each_us` is that of MI300X, the slower one of the known hosts (our choice).
        rccl=RcclFit(
            "gfx950",
            "7",
            "5.66",
            "51.8",
            "those of MI355X, with the rate lower and hops longer by the ratio of the engine clocks",
            {
                "simple": ("12.65", "1.55", "1"),
                "ll": ("5.96", "0.545", "0.5"),
                "ll128": ("9.27", "0.905", "0.86"),
            },
        ),
    ),
    # GPUs of g4dn.12xlarge have no peer-to-peer access; NCCL copies through host memory.
    "t4": Model(
        "Server of 4 T4 a node, each on PCIe, and one NIC of 50 Gb/s that all share.",
        NodeShape(4, 4, joint="PCIe", network="Ethernet"),
        {"pcie": ("15.75", "PCI-SIG, PCI Express 3.0 x16")},
        ("6.25", "Amazon, g4dn.12xlarge: one NIC of 50 Gb/s"),
        ("T4",),
        "Volta",
        pcie=Pcie("3.0", "6"),
    ),
    "v100-pcie": _on_pcie(
        "V100 with PCIe boards",
        (
            *("V100", "P100", "P40", "Quadro RTX 5000", "Quadro RTX 6000", "Quadro RTX 8000"),
            *("RTX 2070", "RTX 2080", "TITAN RTX", "TITAN V"),
        ),
        "Volta",
        "3.0",
        "15.75",
        "12",
        bridged=("Quadro RTX 5000", "Quadro RTX 6000", "Quadro RTX 8000", "RTX 2080", "TITAN RTX"),
    ),
    "a100-pcie": _on_pcie(
        "A100 with PCIe boards", ("A100", "A800"), "Ampere", "4.0", "31.5", "20", bridged=("A100", "A800")
    ),
    "h100-pcie": _on_pcie(
        "H100 with PCIe boards",
        ("H100", "H800", "RTX PRO 6000", "RTX 5090"),
        "Hopper",
        "5.0",
        "63",
        "40",
        bridged=("H100", "H800"),
    ),
    "l40s": _on_pcie(
        "L40S, or of other boards on PCIe 4.0",
        (
            *("L40S", "L40", "L20", "L4", "A10", "A10G", "A30", "A40", "A4000", "A4500", "A5000", "A5500"),
            *("A6000", "RTX 4000", "RTX 5000", "RTX 6000", "RTX 3080", "RTX 3090", "RTX 4080", "RTX 4090"),
        ),
        "Ampere",
        "4.0",
        "31.5",
        "20",
        bridged=("A30", "A40", "A4500", "A5000", "A5500", "A6000", "RTX 3090"),
    ),
}
MODELS |= {
    name: MODELS[each.machine]._replace(
        what=f"{name}: a node as `{each.machine}`, with NICs of its own: {each.source}.",
        shape=MODELS[each.machine].shape._replace(ranks_per_nic=each.ranks_per_nic),
        nic=(each.nic_gb_per_s, each.source),
        host=each.host,
        nics_per_rank=each.nics_per_rank,
        published=None,
        notes="",
    )
    for name, each in INSTANCES.items()
}
"""Rows of machine models and of the instance types of clouds, by name."""


def library_name(topology: Topology) -> str:
    """Name of the stock library of a topology's GPUs: ``"RCCL"`` for GPUs of AMD, else ``"NCCL"``.

    GPUs of AMD have xGMI links, or a name such as MI300X in that of the machine. Without a machine, the
    topology's name counts.
    """
    is_named = re.search(r"\bmi\d", topology.machine or topology.name, re.IGNORECASE) is not None
    return "RCCL" if is_named or any(link.name == "xGMI" for link in topology.links) else "NCCL"
