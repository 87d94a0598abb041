"""NCCL's tuning tables for protocols and links, used until a measurement replaces them.

All are from ``src/graph/tuning.cc`` and ``src/graph/topo.h`` of NCCL 2.30, but for those that name another
file or say that they are our choice.
"""

from __future__ import annotations

from dataclasses import dataclass

SOURCE = "NCCL 2.30, tuning tables"
#: With it, LL's base and hops, an allreduce of 1 to 16 KB on 8 H100 takes what a published log says: 17 us.
LAUNCH_US = 1.8
#: Launch of a kernel that runs a whole collective, without NCCL's base latency.
KERNEL_LAUNCH_US, KERNEL_LAUNCH = 4.95, "published times of MSCCL++ on A100, docs/performance-ndmv4.md"
LAUNCH = "our choice: from the call to the first step of a kernel"


@dataclass(frozen=True, slots=True)
class Protocol:
    """Costs of a protocol: microseconds of a collective's start and of a hop, and the share of bandwidth.

    Hops are over NVLink and over the network, each for rings and for trees.
    """

    name: str
    ring_base_us: float
    tree_base_us: float
    ring_hop_us: float
    tree_hop_us: float
    ring_network_us: float
    tree_network_us: float
    bandwidth_share: float


#: In the order in which libraries take them as messages grow.
PROTOCOLS = (
    Protocol("ll", 6.6, 6.8, 0.6, 0.6, 2.7, 5.0, 0.5),
    Protocol("ll128", 14.0, 14.0, 1.9, 1.25, 4.0, 8.5, 0.92),
    Protocol("simple", 8.4, 8.4, 3.4, 4.0, 14.0, 14.0, 1.0),
)
#: us of a hop over PCIe under ll, ll128 and simple.
PCIE_HOPS_US = {"ring": (1.0, 2.5, 5.7), "tree": (1.0, 1.9, 4.0)}
#: GB/s of an NVLink, one way, and what LL moves at most in a node, by generation of GPUs.
NVLINK_GB_PER_S = {"Volta": "20", "Ampere": "20", "Hopper": "20.6", "Blackwell": "40.1"}
LL_GB_PER_S = {"Volta": "39", "Ampere": "87.7", "Hopper": "141", "Blackwell": "282"}
#: GB/s that LL moves at most on two nodes, and on more (hosts with Intel processors).
LL_NETWORK_GB_PER_S = (39.0, 20.4)
#: The part of a ring's bandwidth that sums over trees come to; and what sums in a switch take beside bytes.
TREE_SHARE, NVLS_US = 0.92, 25
#: us of a hop between nodes for sums in switches that trees join.
NVLS_NETWORK_US = 20.9
#: Most ranks of a node for copies by the switch (``src/include/device.h``).
NVLS_RANKS = 32
#: us of a hop between nodes for sums of NVLS that switches of the network (SHARP) join.
NVLS_SHARP_US = 18.0
#: Sums in switches of the network alone (CollNet): us in a node and between nodes, directly and along chains;
#: us for each peer, part of the bandwidth since Hopper, and most ranks of a node (``src/include/device.h``).
COLLNET_DIRECT_US, COLLNET_CHAIN_US, COLLNET_ARITY_US = (3.7, 31.0), (2.8, 30.0), 0.4
COLLNET_DIRECT_SHARE, COLLNET_DIRECT_RANKS = 0.85, 8
#: Parallel aggregated trees (PAT) for one GPU per node: base, us for each rank, hops that one latency covers,
#: and part of the bandwidth.
PAT_BASE_US, PAT_RANK_US, PAT_HOPS, PAT_SHARE = 8.0, 2.8, 3.5, 0.75
#: Part of a tree's bandwidth under LL, and under LL128 in one node and on several.
TREE_LL_SHARE, TREE_LL128_SHARES = 1 / 3.8, (7 / 9, 120 / 128)
#: GB/s of a channel at most, on one node, two nodes and more: trees, trees under LL128, rings under LL128.
TREE_CHANNEL = {
    "Volta": (26.5, 18.5, 10.0), "Ampere": (24.0, 23.6, 17.8), "Hopper": (38.7, 41.4, 36.0),
    "Blackwell": (70.0, 42.8, 24.0),
}  # fmt: skip
TREE_LL128_CHANNEL = {
    "Volta": (20.0, 20.0, 20.0), "Ampere": (20.0, 20.0, 20.0), "Hopper": (36.7, 36.7, 29.0),
    "Blackwell": (55.6, 31.67, 20.0),
}  # fmt: skip
RING_LL128_CHANNEL = {"Volta": 20.0, "Ampere": 20.0, "Hopper": 36.7, "Blackwell": 40.0}
#: The same of sums in switches that trees join.
NVLS_CHANNEL = {"Hopper": (0.0, 57.7, 45.5), "Blackwell": (0.0, 96.0, 80.0)}
#: Part of the bandwidth that a tree reaches, by protocol, at 64 B, 128 B, ..., up to 512 MB.
TREE_CORRECTION = (
    (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, *[0.6] * 6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1, 1),
    (*[0.9] * 7, 0.8, 0.7, 0.6, 0.6, *[0.5] * 4, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
)
#: Factor of a ring's latency under simple between nodes, before Ampere and since, from this many bytes for
#: each channel and rank.
RING_PLATEAU, PLATEAU_BYTES = (1.9, 1.4), 64
#: us in which a host posts a message to a NIC (hosts with Intel processors); simple posts three.
NET_POST_US, SIMPLE_POSTS = 1.0, 3
#: Min bytes per channel: NCCL uses fewer channels for fewer bytes (``src/enqueue.cc``). For rings under LL,
#: the bytes are per rank. Then the max bytes of a message between two ranks that LL carries.
CHANNEL_BYTES, PAIR_LL_BYTES = {"ll": 512 * 8, "ll128": 640 * 8, "simple": 512 * 64}, 16 << 10
#: Sums in a switch, by generation: part of the bandwidth, channels and GB/s of each that the search finds
#: (``src/graph/search.cc``: the highest speed in its table, as often as the NVLinks carry it), and
#: threadblocks on one node and on several (``src/transport/nvls.cc``).
NVLS_SHARE = {"Hopper": 0.85, "Blackwell": 0.74}
NVLS_CHANNELS = {"Hopper": (6, 60.0), "Blackwell": (8, 90.0)}
NVLS_BLOCKS = {"Hopper": (16, 16), "Blackwell": (24, 32)}
#: Bytes of a step of a channel under simple, a buffer of 4 MiB over 8 steps (``src/init.cc``), and of a chunk
#: of sums in a switch, on one node and on several.
STEP_BYTES = 512 << 10
NVLS_CHUNK_BYTES = {"Hopper": (128 << 10, 128 << 10), "Blackwell": (128 << 10, 64 << 10)}
#: (chunk, n): below n chunks of all blocks and ranks, a chunk is halved to this at most; on one node and on
#: several (``src/enqueue.cc``).
NVLS_CHUNKS = (
    ((64 << 10, 64), (32 << 10, 8), (16 << 10, 2)),
    ((256 << 10, 32), (128 << 10, 16), (64 << 10, 4), (32 << 10, 1)),
)
#: Rate of one threadblock over its channel (our choice: GPUs reach 20 to 40 GB/s), and most channels.
CHANNEL_GB_PER_S, MAX_CHANNELS = 30, 32
