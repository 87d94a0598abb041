"""What NCCL's tuning tables say of protocols, which holds until a measurement says otherwise."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PROTOCOLS", "SOURCE", "Protocol"]

SOURCE = "NCCL 2.30, tuning tables"


@dataclass(frozen=True, slots=True)
class Protocol:
    """How a message is sent: microseconds of a collective's begin and of a hop, and the share of bandwidth.

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
