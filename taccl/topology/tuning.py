"""NCCL's tuning tables for protocols and links, used until a measurement replaces them."""

from __future__ import annotations

from dataclasses import dataclass

SOURCE = "NCCL 2.30, tuning tables"
#: With it, LL's base and hops, 8 bytes summed on 8 H100 take what published logs say: 14 to 25 us.
LAUNCH_US = 7.0
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
#: GB/s of an NVLink, one way, and what LL moves at most in a node, by generation of GPUs.
NVLINK_GB_PER_S = {"Ampere": "20", "Hopper": "20.6", "Blackwell": "40.1"}
LL_GB_PER_S = {"Ampere": "87.7", "Hopper": "141", "Blackwell": "282"}
#: The part of a ring's bandwidth that sums over trees come to; and what sums in a switch take beside bytes.
TREE_SHARE, NVLS_US = 0.92, 25
#: Rate of one threadblock over its channel (our choice: GPUs reach 20 to 40 GB/s), and most channels.
CHANNEL_GB_PER_S, MAX_CHANNELS = 30, 32
