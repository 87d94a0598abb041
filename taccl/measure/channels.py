"""NCCL's channels: those that its search finds, with their speed, and those of messages between two ranks."""

from __future__ import annotations

from math import ceil, log2
from typing import TYPE_CHECKING

import numpy as np

from taccl.topology.tuning import (
    CHANNEL_SPEEDS,
    LEAST_SPEED,
    MAX_CHANNELS,
    NETWORK_PAIR_VERSION,
    PAIR_CHANNEL_NETWORK_GB_PER_S,
    PAIR_PEERS,
    SPLIT_GB_PER_S,
    SPLIT_MANY,
    SPLIT_MANY_GB_PER_S,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl._internal.arrays import Floats
    from taccl.topology.tuning import PairSizes


def searched(generation: str, node_gb_per_s: float, nics: tuple[int, float] | None) -> tuple[int, float]:
    """(number of channels, GB/s of each) that NCCL's search finds.

    NCCL takes the highest total rate; among equal totals, the highest speed. It tries lower speeds down to
    about half of the best so far. Each channel passes all GPUs of a node. On several nodes there is at most
    one channel per NIC, no faster than the NIC. A fast channel is split into two of half the speed.

    - `node_gb_per_s`: Total rate of channels that a GPU's links inside its node carry.
    - `nics`: Number of NICs of a node and their total rate in GB/s; None on one node.
    """
    of_node, of_network = CHANNEL_SPEEDS.get(generation, CHANNEL_SPEEDS[""])
    most, speeds = MAX_CHANNELS, of_node
    if nics is not None:
        most, rate = min(nics[0], MAX_CHANNELS), nics[1] / nics[0]
        speeds = tuple(each for each in of_network if each <= rate) or of_network[-1:]
    num, speed = 0, 0.0
    for each in speeds:
        if num and each <= LEAST_SPEED * speed:
            break
        found = int(max(min(node_gb_per_s / each, most), 1))
        if found * each > num * speed:
            num, speed = found, each
    is_new = generation in ("Hopper", "Blackwell")
    if speed >= SPLIT_GB_PER_S and not (is_new and speed < SPLIT_MANY_GB_PER_S and num > SPLIT_MANY):
        num, speed = num * 2, speed / 2
    return num, speed


def tree_speed(generation: str, node_gb_per_s: float, num: int, speed: float) -> float:
    """GB/s of a tree channel inside nodes.

    NCCL's search begins at `speed` and takes the next speed of its list, again and again. It ends at twice
    `speed` or more, or if `num` channels of the next speed would exceed the node's rate.
    """
    _, of_network = CHANNEL_SPEEDS.get(generation, CHANNEL_SPEEDS[""])
    found = speed
    for faster in sorted(each for each in of_network if each > speed):
        if found >= 2 * speed or faster * num > node_gb_per_s:
            break
        found = faster
    return found


def pair_channels(
    num_channels: int, most: int, num_ranks: int, message_bytes: Floats, sizes: PairSizes
) -> Floats:
    """Number of channels that carry a message to each peer, for each message size.

    Small messages have few channels, so that all peers fit into `num_channels`. Large messages have `most`
    channels: two per NVLink in a node, and `network_channels` between nodes.
    """
    total = power_above(num_channels)
    most = min(power_above(most), total)
    usual = most
    while usual * num_ranks > total and usual > 1:
        usual //= 2
    num = np.clip(np.ceil(message_bytes / sizes.least_part), 1, usual)
    while usual < most:
        num = np.where(message_bytes > num * sizes.most_part, np.minimum(2 * num, most), num)
        usual *= 2
    return num


def network_channels(
    num_channels: int, nics: int, nics_gb_per_s: float, num_ranks: int, version: Sequence[int]
) -> int:
    """Max number of channels of a message between nodes; many ranks leave fewer of them to each peer.

    - `nics`, `nics_gb_per_s`: Number and total rate of a rank's NICs.
    - `version`: Version of NCCL; empty for the newest.
    """
    if version and tuple(version[:2]) < NETWORK_PAIR_VERSION:
        num = 2 if 2 * num_ranks <= 4 * num_channels else 1
        return power_above(max(num, nics))
    num = power_above(max(nics, ceil(nics_gb_per_s / PAIR_CHANNEL_NETWORK_GB_PER_S)))
    while num > 1 and num * ceil(num_ranks / PAIR_PEERS) > power_above(num_channels):
        num //= 2
    return num


def filling_us(message_bytes: Floats, num: Floats, gb_per_s: Floats | float, sizes: PairSizes) -> Floats:
    """Pipeline fill time in us: a receiver can copy a channel's first chunk only once it has arrived.

    - `gb_per_s`: Rate of all channels of the message together.
    """
    chunk = np.full_like(message_bytes, sizes.chunk)
    for below, divisor in sizes.smaller:
        chunk[message_bytes < below] = sizes.chunk / divisor
    return np.minimum(message_bytes / num, chunk) * num / (1000 * gb_per_s)


def power_above(num: int) -> int:
    """Least power of two that is at least `num`."""
    return 1 << ceil(log2(num))
