"""NCCL's tuning tables for protocols and links, used until measurements replace them.

Sources are ``src/graph/tuning.cc`` and ``src/graph/topo.h`` of NCCL 2.30, unless a comment names another file
or says "our choice".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

SOURCE = "NCCL 2.30, tuning tables"
#: Launch time in us; with LL's base and hops it gives 17 us for a small allreduce on 8 H100 (published log).
LAUNCH_US = 1.8
#: Launch time in us on Volta, and its origin.
VOLTA_LAUNCH_US, VOLTA_LAUNCH_SOURCE = 3.8, "NVIDIA, Getting Started with CUDA Graphs, 2019"
#: `LAUNCH_EACH_US`: host time in us to enqueue a collective on each GPU of a process, since Ampere.
#: This time excludes channels. Source: ``doLaunches`` of ``src/group.cc``, and microsoft/superbenchmark.
#: In superbenchmark's tests/data, allreduce and broadcast up to 8 KB take 34.4 us on 8 A100 of one process.
#: `VOLTA_LAUNCH_EACH_US`: host time on Volta. On 12 V100, three collectives take 57 to 61 us.
LAUNCH_EACH_US, VOLTA_LAUNCH_EACH_US = 4.1, 4.9
#: Host time in us that each channel adds on each GPU of a process, on Volta and since Ampere.
#: On 8 A100, 128 KiB to 1 MiB on 4, 8, 16 and 24 channels take 40, 47, 59 and 72 to 76 us (superbenchmark).
#: An alltoall on 32 channels takes 87 us; a broadcast on 12 V100 takes 15 us more on 12 (published log).
VOLTA_LAUNCH_CHANNEL_US, LAUNCH_CHANNEL_US = 0.1, 0.2
#: `KERNEL_LAUNCH_US`: launch time in us of a kernel that runs a whole collective, without base latency.
#: `KERNEL_LAUNCH`: source of `KERNEL_LAUNCH_US`.
KERNEL_LAUNCH_US, KERNEL_LAUNCH = 4.95, "published times of MSCCL++ on A100, docs/performance-ndmv4.md"
#: {GPU generation: (kernel launch time in us, its source)}, for generations that differ from A100.
#: On 8 H100, allreduces of 24, 48 and 72 KB take 6.18, 6.62 and 6.91 us.
KERNEL_LAUNCHES = {"Hopper": (4.25, "published times of MSCCL++ on H100, test/deploy/perf_ndmv5.jsonl")}
LAUNCH = "our choice: from the call to the first step of a kernel"


@dataclass(frozen=True, slots=True)
class Protocol:
    """Costs of a protocol: base time of a collective and time of a hop in us, and share of bandwidth.

    Rings and trees have separate times, for hops inside a node (NVLink) and over the network.
    """

    name: str
    ring_base_us: float
    tree_base_us: float
    ring_hop_us: float
    tree_hop_us: float
    ring_network_us: float
    tree_network_us: float
    bandwidth_share: float


#: Protocols in the order in which libraries use them as messages grow.
PROTOCOLS = (
    Protocol("ll", 6.6, 6.8, 0.6, 0.6, 2.7, 5.0, 0.5),
    Protocol("ll128", 14.0, 14.0, 1.9, 1.25, 4.0, 8.5, 0.92),
    Protocol("simple", 8.4, 8.4, 3.4, 4.0, 14.0, 14.0, 1.0),
)
#: Time in us of a hop over PCIe under ll, ll128 and simple.
PCIE_HOPS_US = {"ring": (1.0, 2.5, 5.7), "tree": (1.0, 1.9, 4.0)}
#: GB/s of an NVLink in one direction, by GPU generation.
NVLINK_GB_PER_S = {"Volta": "20", "Ampere": "20", "Hopper": "20.6", "Blackwell": "40.1"}
#: Maximum rate of LL in GB/s inside a node, by GPU generation.
LL_GB_PER_S = {"Volta": "39", "Ampere": "87.7", "Hopper": "141", "Blackwell": "282"}
#: Time in us of a hop inside a node under LL, for GPU generations that differ from the table.
#: Source: published log of 8 B200, allreduce (14 hops) and allgather (7 hops) of 1 to 16 KB.
LL_HOP_US = {"Blackwell": 1.2}
#: {maker of the hosts' processors: maximum rates of LL in GB/s on two nodes, and on more nodes}.
LL_NETWORK_GB_PER_S = {"Intel": (39.0, 20.4), "AMD": (22.5, 19.0)}
#: {GPU generation: (speeds in a node, speeds between nodes)} in GB/s that NCCL's search tries for a channel.
#: Source: ``src/graph/search.cc``. The empty name stands for all generations before Hopper.
CHANNEL_SPEEDS = {
    "": (
        (40.0, 30.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0),
        (48.0, 30.0, 28.0, 24.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.4, 1.2),
    ),
    "Hopper": (
        (60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0),
        (48.0, 45.0, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, 6.0, 3.0, 2.4, 1.2),
    ),
    "Blackwell": (
        (90.0, 80.0, 70.0, 60.0, 50.0, 45.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0),
        (96.0, 86.0, 80.0, 48.0, 45.1, 42.0, 40.0, 30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, 6.0, 3.0, 2.4),
    ),
}
#: Max ratio of a speed to that of the best channels so far at which NCCL ends its search (same source).
LEAST_SPEED = 0.49
#: `SPLIT_GB_PER_S`: min speed in GB/s of channels that NCCL splits in two (``src/graph/search.cc``).
#: `SPLIT_MANY`: max number of channels for which `SPLIT_GB_PER_S` applies since Hopper.
#: `SPLIT_MANY_GB_PER_S`: since Hopper, this min speed applies if there are more than `SPLIT_MANY` channels.
SPLIT_GB_PER_S, SPLIT_MANY, SPLIT_MANY_GB_PER_S = 25.0, 4, 50.0
#: `TREE_SHARE`: part of a ring's bandwidth that tree allreduces reach.
#: `NVLS_US`: base time in us of reductions in NVSwitch (NVLS).
TREE_SHARE, NVLS_US = 0.92, 25
#: {GPU generation: latency in us of a round of NVLS chunks}, where it differs from a ring's hop under Simple.
NVLS_HOP_US = {"Blackwell": 5.0}
#: {GPU generation: (least time of a round in us, GB/s of each thread block in it)}: a round takes no less.
#: On 8 B200 (published log), rounds of 16, 32, 64 and 128 KiB per chunk take 16, 20 to 23, 29 and 52 us.
#: The last round runs at the switch's rate. A log of another cluster confirms these times.
NVLS_ROUND = {"Blackwell": (11.0, 28.5)}
#: Time in us of a hop between nodes for NVLS reductions joined by trees, and before `NVLS_VERSION`.
NVLS_NETWORK_US, NVLS_OLD_NETWORK_US = 20.9, 14.0
#: `NVLS_VERSION`: first version of NCCL whose model counts the efficiency and the channels of NVLS.
#: `NVLS_OLD_SHARE`: part of the bandwidth of all channels that earlier versions count for allreduces.
NVLS_VERSION, NVLS_OLD_SHARE = (2, 28), 5 / 6
#: Maximum number of ranks per node for NVLS multicasts (``src/include/device.h``).
NVLS_RANKS = 32
#: Time in us of a hop between nodes for NVLS reductions joined by network switches (SHARP).
NVLS_SHARP_US = 18.0
#: Part of the NICs' line rate that SHARP sums, for reductions by NVLS and SHARP.
#: Published: busbw of 533 to 548 GB/s on 2 to 32 nodes of B200, each with NICs of 400 GB/s in total.
#: Source: cluster MD1 of togethercomputer/together-nccl-tests.
SHARP_SHARE = 0.7
#: Constants of CollNet, whose reductions are made in network switches.
#: `COLLNET_DIRECT_US`: (time inside a node, time between nodes) in us, for direct sends in nodes.
#: `COLLNET_CHAIN_US`: (time inside a node, time between nodes) in us, for chains.
#: `COLLNET_ARITY_US`: time in us per further rank of a node, for direct sends.
COLLNET_DIRECT_US, COLLNET_CHAIN_US, COLLNET_ARITY_US = (3.7, 31.0), (2.8, 30.0), 0.4
#: `COLLNET_DIRECT_SHARE`: part of the bandwidth that CollNet with direct sends reaches since Hopper.
#: `COLLNET_DIRECT_RANKS`: max ranks per node for CollNet with direct sends (``src/include/device.h``).
COLLNET_DIRECT_SHARE, COLLNET_DIRECT_RANKS = 0.85, 8
#: Constants of parallel aggregated trees (PAT), for one GPU per node.
#: `PAT_BASE_US`: base time of PAT in us.
#: `PAT_RANK_US`: further time in us per rank.
#: `PAT_HOPS`: number of hops that together take the latency of one hop of a tree between nodes.
#: `PAT_SHARE`: part of the bandwidth that PAT reaches.
PAT_BASE_US, PAT_RANK_US, PAT_HOPS, PAT_SHARE = 8.0, 2.8, 3.5, 0.75
#: `TREE_LL_SHARE`: part of its bandwidth that a tree reaches under LL.
#: `TREE_LL128_SHARES`: parts of its bandwidth that a tree reaches under LL128, on one node and on several.
TREE_LL_SHARE, TREE_LL128_SHARES = 1 / 3.8, (7 / 9, 120 / 128)
#: Maximum GB/s per channel of a tree, by GPU generation: on one node, on two, and on more.
#: This is by NCCL's model. Between nodes, trees under simple exceed it by 8 to 19 %: 49 GB/s on 2 x 2 H100
#: (41.4 here), 45 on a3-mega, and 126 GB/s of reduced data on 2 x 8 A100, where links carry 120.
TREE_CHANNEL = {
    "Volta": (26.5, 18.5, 10.0), "Ampere": (24.0, 23.6, 17.8), "Hopper": (38.7, 41.4, 36.0),
    "Blackwell": (70.0, 42.8, 24.0),
}  # fmt: skip
#: Maximum GB/s per channel of a tree under LL128, by GPU generation: on one node, on two, and on more.
TREE_LL128_CHANNEL = {
    "Volta": (20.0, 20.0, 20.0), "Ampere": (20.0, 20.0, 20.0), "Hopper": (36.7, 36.7, 29.0),
    "Blackwell": (55.6, 31.67, 20.0),
}  # fmt: skip
#: Maximum GB/s per channel of a ring under LL128, by GPU generation.
RING_LL128_CHANNEL = {"Volta": 20.0, "Ampere": 20.0, "Hopper": 36.7, "Blackwell": 40.0}
#: Factor of the limits of Hopper's channels that NCCL before 2.28 (`NVLS_VERSION`) has for Blackwell.
OLD_BLACKWELL = 2.0
#: GB/s per channel that rings reach under simple; NCCL's model has no limit there.
#: Published allgathers: 42 on 8 B200, 41.1 on 2 x 8 H200, 44.6 on 2 x 4 GB300.
RING_CHANNEL = {"Hopper": 41.5, "Blackwell": 41.5}
#: (GPU generation, class of networks) pairs to which the limit `RING_CHANNEL` does not apply.
#: Rings with one channel per 400 Gb/s NIC reach 46 to 48 GB/s over InfiniBand, and 41 over RoCE on Hopper.
#: Sources for Hopper: NVIDIA/nccl-tests, issue 290 (InfiniBand); NVIDIA/nccl, issue 1221 (RoCE).
#: Source for 2 to 64 nodes of B200: two clusters of togethercomputer/together-nccl-tests (another has 38.5).
RING_CHANNEL_FREE = (("Hopper", "infiniband"), ("Blackwell", "infiniband"))
#: `RING_CHUNK_BYTES`: bytes of a chunk of a ring under simple, half of the buffer of a channel.
#: `RING_LL128_BYTES`: unit of chunks under LL128 before `RING_LL128_VERSION`; `RING_LL128_WHOLE_BYTES`: most.
#: Source: ``src/device/all_reduce.h`` and ``src/include/collectives.h`` of NCCL 2.19 and 2.20, ``device.h``.
RING_CHUNK_BYTES, RING_LL128_BYTES, RING_LL128_WHOLE_BYTES = 2 << 20, 19_200, 576_000
RING_LL128_VERSION = (2, 20)
#: {GPU generation: time in which a rank copies a ring's last chunk, as a share of the time to send it}.
#: Published: 0.4 to 0.5 on 4 H100 (xxrjun/nccl-tests-cluster), 0.7 to 2 on 8 A100, none on 8 B200.
RING_COPY = {"Ampere": 1.0, "Hopper": 0.5}
#: Maximum GB/s per channel on one node, two nodes and more, for NVLS reductions joined by trees.
NVLS_CHANNEL = {"Hopper": (0.0, 57.7, 45.5), "Blackwell": (0.0, 96.0, 80.0)}
#: {GPU generation: maximum rate of NVLS between nodes, as a multiple of that of `NVLS_CHANNEL`}.
#: Two racks of GB200 reach 408 GB/s of reduced data, 1.056 times as much (coreweave/nccl-tests, README.md).
#: NVLS of Hopper has no such limit: 486 GB/s of busbw on 2 x 8 H200, where `NVLS_CHANNEL` gives 461.
NVLS_LIMITED = {"Blackwell": 1.056}
#: Part of the bandwidth that a tree reaches, by protocol (ll, ll128, simple), at 64 B, 128 B, ..., 512 MB.
TREE_CORRECTION = (
    (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, *[0.6] * 6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1, 1),
    (*[0.9] * 7, 0.8, 0.7, 0.6, 0.6, *[0.5] * 4, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
)
#: `RING_PLATEAU`: factor on a ring's latency under simple between nodes, before Ampere and since.
#: `PLATEAU_BYTES`: min bytes per channel and rank from which `RING_PLATEAU` applies.
RING_PLATEAU, PLATEAU_BYTES = (1.9, 1.4), 64
#: `NET_POST_US`: time in us that a host takes to post a message to a NIC, by maker of its processor.
#: `SIMPLE_POSTS`: number of messages that a host posts under simple.
NET_POST_US, SIMPLE_POSTS = {"Intel": 1.0, "AMD": 2.0}, 3
#: `STEP_POST_US`: time in us that each channel of a rank adds to a step of a ring between nodes.
#: Published allgathers of 256 KiB to 1 MiB on two DGX A100 (argonne-lcf/alcf-nccl-tests) are then 2 % off.
STEP_POST_US = 1.5
#: `CHANNEL_BYTES`: {protocol: min bytes per channel}; below, NCCL uses fewer channels (``src/enqueue.cc``).
#: For rings under LL, `CHANNEL_BYTES` is the min bytes per channel and rank.
#: `PAIR_LL_BYTES`: max bytes of a message between two ranks under LL.
#: `PAIR_LL_VERSIONS`: NCCL from the first of these versions to before the last has this maximum for each of
#: all channels of a peer, whether the message uses them or not (``addP2pToPlan``).
CHANNEL_BYTES, PAIR_LL_BYTES = {"ll": 512 * 8, "ll128": 640 * 8, "simple": 512 * 64}, 16 << 10
PAIR_LL_VERSIONS = (2, 22), (2, 29)
#: {GPU generation: GB/s of a channel of such a message}; others are bound by the links (our choice).
#: Half of the threads of a channel send, and the others receive: half of LL's rate over 16 channels on H100.
#: On 8 B200, alltoalls of 512 KiB to 4 MiB grow at 4.3 to 6 GB/s per channel (published log).
PAIR_LL_CHANNEL = {"Hopper": 4.4, "Blackwell": 4.4}
#: Bytes of a pack of NCCL's copies (``reduceCopy`` in ``src/device/common_kernel.h``).
#: Buffers whose length is not a multiple of a pack are copied element by element.
PACK_BYTES = 16


class PairSizes(NamedTuple):
    """Sizes in bytes for a message between two ranks: of its chunks, and min and max per channel.

    - `smaller`: [(size, divisor), ...] from large to small sizes: chunks of smaller messages are divided.
    """

    chunk: int
    least_part: int
    most_part: int
    smaller: tuple[tuple[int, int], ...] = ()


#: Sizes for messages between two ranks, over NVLink ("node", under LL "ll") and between nodes ("network").
#: Source: ``src/init.cc``, ``addP2pToPlan``.
PAIR_SIZES = {
    "node": PairSizes(512 << 10, 64 << 10, 16 << 20),
    "ll": PairSizes(32 << 10, 8 << 10, 2 << 20),
    "network": PairSizes(128 << 10, 64 << 10, 128 << 10, ((1 << 20, 2), (128 << 10, 4))),
}
#: GPU generations whose messages between nodes need no flush.
#: Source: ``ncclTopoNeedFlush`` of ``src/graph/paths.cc``.
WITHOUT_FLUSH = ("Hopper", "Blackwell")
#: `PAIR_CHANNEL_NETWORK_GB_PER_S`: GB/s of a channel between nodes, by which NCCL chooses their number.
#: Source: ``src/graph/paths.cc``, since NCCL 2.29.
#: Published: 14.5 to 15.2 with one channel on 16 to 64 nodes of B200 and 10 of H100, 26 with two.
#: `PAIR_PEERS`: peers of a rank to which a channel sends concurrently (``src/include/device.h``).
#: `NETWORK_PAIR_VERSION`: first version of NCCL that chooses the number of channels by these two figures.
PAIR_CHANNEL_NETWORK_GB_PER_S, PAIR_PEERS, NETWORK_PAIR_VERSION = 14.0, 8, (2, 29)


class RcclRanges(NamedTuple):
    """Sizes in bytes up to which RCCL uses LL and LL128 on several nodes, and trees under simple.

    - `tree`: Sizes on two nodes, and on more.
    """

    ll: int
    ll128: int
    tree: tuple[int, int] = (0, 0)


#: {architecture of AMD: {collective: ranges}}, by ``src/graph/tuning.cc`` of RCCL 2.27 (ROCm/rocm-systems).
#: Sizes are those of whole allreduces, and of the parts of one rank for other collectives.
#: `tree` follows from the times that the tables there give trees and rings under simple.
RCCL_RANGES = {
    "gfx942": {
        "allreduce": RcclRanges(512 << 10, 4_415_057, (128 << 20, 512 << 20)),
        "allgather": RcclRanges(96 << 10, 5_046_272), "reduce-scatter": RcclRanges(128 << 10, 3_211_264),
        "broadcast": RcclRanges(8 << 10, 32 << 20), "reduce": RcclRanges(4 << 10, 16 << 20),
    },
    "gfx950": {
        "allreduce": RcclRanges(256 << 10, 70_640_910),
        "allgather": RcclRanges(64 << 10, 8 << 20), "reduce-scatter": RcclRanges(64 << 10, 8 << 20),
        "broadcast": RcclRanges(2 << 10, 16 << 20), "reduce": RcclRanges(16_383, 16 << 20),
    },
}  # fmt: skip
#: Channels of each of RCCL's two trees: half of 64 rings (``connectTrees`` in ``src/graph/connect.cc``).
RCCL_TREE_CHANNELS = 32
#: (min bytes of a chunk, n) for trees under simple (``src/enqueue.cc``).
#: Chunks are halved, down to the min, while a channel has fewer than n per hop from a leaf to the root.
TREE_CHUNKS = ((128 << 10, 8), (64 << 10, 4), (32 << 10, 1))
#: Part of the bandwidth that NVLS reaches, by GPU generation.
NVLS_SHARE = {"Hopper": 0.85, "Blackwell": 0.74}
#: (channels of NVLS, GB/s of each), by GPU generation, as NCCL's search finds them (``src/graph/search.cc``).
#: The search takes its highest speed, with as many channels as the NVLinks carry at this speed.
NVLS_CHANNELS = {"Hopper": (6, 60.0), "Blackwell": (8, 90.0)}
#: Number of GPUs of a node for which `NVLS_CHANNELS` holds.
NVLS_FULL = 8
#: Number of NVLinks of a GPU with `NVLS_CHANNELS`. With fewer links, the rate of NVLS falls in proportion:
#: busbw on H800 (8 links) is 215 GB/s (NVIDIA/nccl, issue 1374), 8/18 of that on H100.
NVLS_LINKS = 18
#: Thread blocks of NVLS, by GPU generation: on one node, and on several (``src/transport/nvls.cc``).
#: On several nodes of Blackwell, `in_switch.nvls_blocks` has the exceptions since `NVLS_TUNING_VERSION`.
NVLS_BLOCKS, NVLS_TUNING_VERSION = {"Hopper": (16, 16), "Blackwell": (24, 32)}, (2, 30)
#: Bytes of a channel's step under simple: 1/8 of a buffer of 4 MiB (``src/init.cc``).
STEP_BYTES = 512 << 10
#: Bytes of an NVLS chunk, unless a network's plugin sets another (``NCCL_NVLS_CHUNKSIZE``).
NVLS_CHUNK_BYTES = 128 << 10
#: `NVLS_MANY_NODES`: number of nodes from which NVLS chunks are limited further (``src/transport/nvls.cc``).
#: `NVLS_MANY_CHUNK_BYTES`: max bytes of an NVLS chunk on `NVLS_MANY_NODES` nodes or more.
NVLS_MANY_NODES, NVLS_MANY_CHUNK_BYTES = 4, 64 << 10
#: Limits (max bytes, n) on NVLS chunks, to apply in order: on one node, on several (``src/enqueue.cc``).
#: An NVLS chunk is limited if the data is less than n chunks for each thread block of each rank of a node.
NVLS_CHUNKS = (
    ((64 << 10, 64), (32 << 10, 8), (16 << 10, 2)),
    ((256 << 10, 32), (128 << 10, 16), (64 << 10, 4), (32 << 10, 1)),
)
#: `CHANNEL_GB_PER_S`: GB/s of one thread block over its channel (our choice: GPUs reach 20 to 40 GB/s).
#: `MAX_CHANNELS`: maximum number of channels.
CHANNEL_GB_PER_S, MAX_CHANNELS = 30, 32
