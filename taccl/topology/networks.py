"""Classes of networks between nodes: latencies and efficiencies with their sources.

The module also lists instance types of clouds, each with its machine model, NICs and class of network.
"""

from __future__ import annotations

from typing import NamedTuple

from taccl.topology.tuning import STEP_BYTES


class Network(NamedTuple):
    """A class of networks between nodes, with its latencies and efficiency.

    - `hop_us`: Latency in us that a hop has in addition to the latency in NCCL's table (`further_us`).
    - `start_us`: Time in us before the first hop of a collective between nodes. `amd_start_us` replaces it
      for hosts with AMD processors, unless None.
    - `post_us`: Time in us that each channel after the first adds to a hop, as hosts post the channels'
      messages one by one.
    - `ll_us`: Time in us that 4 KiB of a channel add to a hop under LL, as hosts look for all flags between
      the data (``src/transport/net.cc``). It replaces `post_us` under LL; 0 where only `post_us` is known.
    - `message_us`: Time in us in which a host posts a message of a ring, if longer than usual
      (`tuning.STEP_POST_US`).
    - `efficiency`: Fraction of the line rate that large messages reach.
    - `stated_us`: Latency in us that the network's plugin reports to NCCL, which chooses algorithms by it.
    - `ll128`: True if NCCL uses LL128 over this network, which needs ordered writes.
    - `source`: Source of these figures.
    - `only`: Algorithms and protocols, such as ``"ring simple"``, that the network's environment allows for
      collectives; empty if it allows all.
    - `step_bytes`: Bytes of a channel's step under simple, 1/8 of the buffer (``NCCL_BUFFSIZE``).
    - `simple_us`: Latency in us that a hop under simple has in addition to NCCL's table; None for twice
      `hop_us`.
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
    amd_start_us: float | None = None
    only: tuple[str, ...] = ()
    step_bytes: int = STEP_BYTES
    simple_us: float | None = None
    ll_us: float = 0.0
    message_us: float = 0.0

    def further_us(self, protocol: str) -> float:
        """Latency in us that a hop has in addition to NCCL's table; simple waits for data and for a flush."""
        if protocol != "simple":
            return self.hop_us
        return 2 * self.hop_us if self.simple_us is None else self.simple_us

    def start_of(self, host: str) -> float:
        """Time in us before the first hop of a collective, on hosts with processors of this maker."""
        return self.amd_start_us if host == "AMD" and self.amd_start_us is not None else self.start_us


_OFI = "aws-ofi-nccl, src/platform-aws.cpp, states 75 us"
_OFI_2 = "aws-ofi-nccl, src/platform-aws.cpp, states 35 us"
#: `NCCL_NVLS_CHUNKSIZE` of aws-ofi-nccl, and of Google's gIB (docs.cloud.google.com, Ray on A4 and A3 Ultra).
_NVLS_CHUNK = 512 << 10
#: Growth of a hop from 8 bytes to 8 KiB, over 3 clusters with H100 and 2 with B200: 2.7 to 3.6 us.
#: One of them is that of NVIDIA/nccl-tests, issue 309, on 2 and on 4 nodes.
_LL_US = 3.0
NETWORKS = {
    each.name: each
    for each in (
        Network("infiniband", 0, 2, 0.6, 0.93, 0, True,
                "published logs of 2 x 8 B200 (hosts of Intel) and 2 x 8 A100 (hosts of AMD)",
                amd_start_us=9, ll_us=_LL_US),
        Network("roce", 0, 2, 0.6, 0.93, 0, True, "as InfiniBand; our choice", amd_start_us=9, ll_us=_LL_US),
        Network("gib", 0, 9, 0.6, 0.93, 0, True,
                "RoCE of Google (gIB): published log of 2 x 1 H200; else as RoCE",
                _NVLS_CHUNK, ll_us=_LL_US),
        Network("roce-pcie", 0, 0, 0.6, 0.65, 0, False,
                "published log of 2 x 1 L40S: no more than 0.65 of 100 Gb/s"),
        Network("efa", 67, 0, 4, 0.86, 75, False, f"{_OFI}; hop: published log of 2 x 8 A100 (p4de)"),
        Network("efa-rdma", 18, 9, 3, 0.9, 75, True,
                f"{_OFI}; hop: published log of 2 x 8 H100 (p5)", _NVLS_CHUNK),
        Network("efa-rdma-2", 9, 9, 3, 0.9, 35, True,
                f"{_OFI_2}; hop: half of that of p5, our choice", _NVLS_CHUNK),
        Network("tcpx", 300, 20, 2, 0.71, 0, False,
                "published log of 2 x 8 H100 (a3-high); Google's guide sets NCCL_PROTO=Simple and "
                "NCCL_ALGO=Ring",
                only=("ring simple",)),
        Network("tcpxo", 38, 20, 2, 0.93, 0, False,
                "published logs of 2 x 8 H100 (a3-mega), without LL128 and NVLS; buffer of 8 MiB: "
                "google/nccl-plugin-gpudirect-tcpxo, tcpxo_scripts",
                only=("ring ll", "tree ll", "ring simple", "tree simple"), step_bytes=1 << 20, simple_us=0),
        Network("slingshot", 0, 0, 3, 0.86, 0, False,
                "published logs of 2 x 4 GH200 of two clusters; posts as EFA with RDMA, also in "
                "each step of a ring: our choice",
                message_us=3),
        Network("efa-host", 6, 0, 4, 0.5, 75, False,
                f"{_OFI}, and sets protocol simple; hop: published log of 2 x 1 T4 (no GPUDirect RDMA)",
                only=("ring simple",)),
        Network("rccl", 0, 0, 0.6, 0.95, 0, True,
                "published logs of 2 x 8 MI308X (RCCL 2.27, NICs of Broadcom) and of 2 x 8 MI300X "
                "(RCCL 2.28: ROCm/rocm-systems, pull request 3272); posts as InfiniBand"),
        Network("rccl-2.22", 0, 180, 0.6, 0.95, 0, False,
                "published log of 2 x 8 MI300X with RCCL 2.22 and NICs of NVIDIA"),
        Network("pollara", 0, 0, 0.6, 0.95, 0, True,
                "published log of 2 x 8 MI355X with NICs of AMD: no start"),
    )
}  # fmt: skip
"""Classes of networks by name."""

#: {class of networks: its name in texts, if it differs}.
NETWORK_TITLES = {
    "infiniband": "InfiniBand", "roce": "RoCE", "gib": "RoCE (gIB)", "roce-pcie": "RoCE", "efa": "EFA",
    "efa-host": "EFA", "efa-rdma": "EFA with RDMA", "efa-rdma-2": "EFA with RDMA", "tcpx": "TCPX",
    "tcpxo": "TCPXO", "slingshot": "Slingshot", "rccl": "RoCE or InfiniBand",
    "rccl-2.22": "RoCE or InfiniBand", "pollara": "Pollara",
}  # fmt: skip


class Instance(NamedTuple):
    """Instance type of a cloud: a machine model with the cloud's own NICs, network and host processors.

    - `nic_gb_per_s`: GB/s in each direction of one NIC, or of all NICs of a rank together if it has several.
    - `host`: Maker of the processors, ``"Intel"`` or ``"AMD"``.
    - `nics_per_rank`: Number of NICs that NCCL sees for a rank. With EFA it is 1, as the plugin joins them.
    """

    machine: str
    ranks_per_nic: int
    nic_gb_per_s: str
    network: str
    source: str
    host: str = "Intel"
    nics_per_rank: int = 1


_AWS = "Amazon, EC2 accelerated computing instances:"
_GCP = "Google, Compute Engine, networking and GPU machines:"
_AZURE = "Microsoft, Azure"
_OCI_NICS = "github.com/oracle-quickstart/oci-hpc-oke, docs/using-rdma-network-interfaces-in-manifests.md"
_OCI_A100 = f"{_OCI_NICS}, and Oracle, Superclusters with RDMA (1.6 Tb/s for eight A100):"
_OCI_B200 = f"{_OCI_NICS} (count), and NVIDIA, DGX B200 data sheet (rate):"
_OCI_GUIDE = "github.com/oracle-quickstart/oci-gpu-quickstarts, READMEs by shape:"
INSTANCES = {
    "p4d.24xlarge": Instance("dgx-a100", 2, "12.5", "efa", f"{_AWS} four NICs of 100 Gb/s"),
    "p4de.24xlarge": Instance("dgx-a100", 2, "12.5", "efa", f"{_AWS} four NICs of 100 Gb/s"),
    "p3dn.24xlarge": Instance("dgx1", 8, "12.5", "efa-host", f"{_AWS} one NIC of 100 Gb/s, eight V100"),
    "g4dn.8xlarge": Instance("t4", 4, "6.25", "efa-host", f"{_AWS} one NIC of 50 Gb/s, one T4"),
    "g4dn.12xlarge": Instance("t4", 4, "6.25", "efa-host", f"{_AWS} one NIC of 50 Gb/s"),
    "g5.48xlarge": Instance("l40s", 8, "12.5", "efa-host", f"{_AWS} one NIC of 100 Gb/s, eight A10G"),
    "p5.48xlarge": Instance(
        "dgx-h100", 1, "50", "efa-rdma", f"{_AWS} 32 NICs of 100 Gb/s, 4 for each GPU", "AMD"
    ),
    "p5en.48xlarge": Instance("h200", 1, "50", "efa-rdma-2", f"{_AWS} 16 NICs of 200 Gb/s, 2 for each GPU"),
    "p6-b200.48xlarge": Instance("b200", 1, "50", "efa-rdma-2", f"{_AWS} eight NICs of 400 Gb/s"),
    "a3-highgpu-8g": Instance("dgx-h100", 2, "25", "tcpx", f"{_GCP} four NICs of 200 Gb/s"),
    "a3-megagpu-8g": Instance("dgx-h100", 1, "25", "tcpxo", f"{_GCP} eight NICs of 200 Gb/s"),
    "a3-ultragpu-8g": Instance("h200", 1, "50", "gib", f"{_GCP} eight NICs of 400 Gb/s"),
    "a4-highgpu-8g": Instance("b200", 1, "50", "gib", f"{_GCP} eight NICs of 400 Gb/s"),
    "nd-a100-v4": Instance(
        "dgx-a100", 1, "25", "infiniband", f"{_AZURE} ND A100 v4: eight NICs of 200 Gb/s", "AMD"
    ),
    "nd-h100-v5": Instance("dgx-h100", 1, "50", "infiniband", f"{_AZURE} ND H100 v5: eight NICs of 400 Gb/s"),
    "nd-h200-v5": Instance("h200", 1, "50", "infiniband", f"{_AZURE} ND H200 v5: eight NICs of 400 Gb/s"),
    "nd-mi300x-v5": Instance("mi300x", 1, "50", "rccl", f"{_AZURE} ND MI300X v5: eight NICs of 400 Gb/s"),
    "BM.GPU4.8": Instance("dgx-a100", 1, "25", "roce", f"{_OCI_A100} 16 NICs of 100 Gb/s", "AMD", 2),
    "BM.GPU.A100-v2.8": Instance("dgx-a100", 1, "25", "roce", f"{_OCI_A100} 16 NICs of 100 Gb/s", "AMD", 2),
    "BM.GPU.H100.8": Instance("dgx-h100", 1, "50", "roce", f"{_OCI_GUIDE} 16 NICs of 200 Gb/s", "Intel", 2),
    "BM.GPU.H200.8": Instance("h200", 1, "50", "roce", f"{_OCI_GUIDE} eight NICs of 400 Gb/s"),
    "BM.GPU.B200.8": Instance("b200", 1, "50", "roce", f"{_OCI_B200} eight NICs of 400 Gb/s"),
    "BM.GPU.MI300X.8": Instance("mi300x", 1, "50", "rccl", f"{_OCI_GUIDE} eight NICs of 400 Gb/s"),
}
"""Instance types of clouds by name."""
