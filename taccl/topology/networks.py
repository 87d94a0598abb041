"""Classes of networks between nodes: latencies and efficiencies with their sources.

Also instance types of clouds, each with its machine, NICs and class of network.
"""

from __future__ import annotations

from typing import NamedTuple


class Network(NamedTuple):
    """A class of networks.

    - `hop_us`: Latency in us of a hop in addition to NCCL's table; the simple protocol pays it twice, for
      data and for the flush.
    - `start_us`: Time in us of a collective between nodes before its first hop.
    - `post_us`: Time in us for each further channel's message of a hop, as hosts post them one by one.
    - `efficiency`: Part of the line rate that large messages reach.
    - `stated_us`: Latency in us that the network's plugin reports to NCCL, which chooses algorithms by it.
    - `ll128`: True if NCCL uses LL128 over this network, which needs ordered writes.
    - `source`: Source of these figures.
    - `nvls_chunk_bytes`: Chunk size for reductions in NVSwitch that the plugin sets, on one node as well; 0
      for NCCL's default.
    """

    name: str
    hop_us: float
    start_us: float
    post_us: float
    efficiency: float
    stated_us: float
    ll128: bool
    source: str
    nvls_chunk_bytes: int = 0


_OFI = "aws-ofi-nccl, src/platform-aws.cpp, states 75 us"
_OFI_2 = "aws-ofi-nccl, src/platform-aws.cpp, states 35 us"
_OFI_CHUNK = 512 << 10
NETWORKS = {
    each.name: each
    for each in (
        Network("infiniband", 0, 9, 0.6, 0.93, 0, True, "published log of 2 x 8 B200"),
        Network("roce", 0, 9, 0.6, 0.93, 0, True, "as InfiniBand; our choice"),
        Network(
            "roce-pcie",
            0,
            0,
            0.6,
            0.65,
            0,
            False,
            "published log of 2 x 1 L40S: no more than 0.65 of 100 Gb/s",
        ),
        Network("efa", 67, 0, 4, 0.86, 75, False, f"{_OFI}; a hop from a published log of 2 x 8 A100 (p4de)"),
        Network(
            "efa-rdma",
            18,
            9,
            3,
            0.9,
            75,
            True,
            f"{_OFI}; a hop from a published log of 2 x 8 H100 (p5)",
            _OFI_CHUNK,
        ),
        Network("efa-rdma-2", 9, 9, 3, 0.9, 35, True, f"{_OFI_2}; half a hop of p5: our choice", _OFI_CHUNK),
        Network("tcpx", 45, 20, 2, 0.85, 0, False, "TCPXO's hop, with a lower efficiency: our choice"),
        Network("tcpxo", 38, 20, 2, 0.93, 0, True, "published logs of 2 x 8 H100 (a3-mega)"),
        Network("slingshot", 9, 9, 3, 0.9, 0, False, "as EFA with RDMA at half a hop: our choice"),
        Network("rccl", 0, 180, 0, 0.95, 0, True, "published log of 2 x 8 MI300X"),
    )
}
"""Classes of networks by name."""


class Instance(NamedTuple):
    """An instance type: a machine model with other NICs; GB/s of a NIC in each direction."""

    machine: str
    ranks_per_nic: int
    nic_gb_per_s: str
    network: str
    source: str


_AWS = "Amazon, EC2 accelerated computing instances:"
_GCP = "Google, Compute Engine GPU machine types:"
_AZURE = "Microsoft, Azure"
INSTANCES = {
    "p4d.24xlarge": Instance("dgx-a100", 2, "12.5", "efa", f"{_AWS} four NICs of 100 Gb/s"),
    "p4de.24xlarge": Instance("dgx-a100", 2, "12.5", "efa", f"{_AWS} four NICs of 100 Gb/s"),
    "p5.48xlarge": Instance("dgx-h100", 1, "50", "efa-rdma", f"{_AWS} 32 NICs of 100 Gb/s, 4 for each GPU"),
    "p5en.48xlarge": Instance("h200", 1, "50", "efa-rdma-2", f"{_AWS} 16 NICs of 200 Gb/s, 2 for each GPU"),
    "a3-highgpu-8g": Instance("dgx-h100", 2, "25", "tcpx", f"{_GCP} four NICs of 200 Gb/s"),
    "a3-megagpu-8g": Instance("dgx-h100", 1, "25", "tcpxo", f"{_GCP} eight NICs of 200 Gb/s"),
    "a3-ultragpu-8g": Instance("h200", 1, "50", "roce", f"{_GCP} eight NICs of 400 Gb/s"),
    "nd-a100-v4": Instance("dgx-a100", 1, "25", "infiniband", f"{_AZURE} ND A100 v4: eight NICs of 200 Gb/s"),
    "nd-h100-v5": Instance("dgx-h100", 1, "50", "infiniband", f"{_AZURE} ND H100 v5: eight NICs of 400 Gb/s"),
    "nd-mi300x-v5": Instance("mi300x", 1, "50", "rccl", f"{_AZURE} ND MI300X v5: eight NICs of 400 Gb/s"),
}
"""Instance types of clouds by name."""
