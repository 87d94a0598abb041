"""Number and speed of the channels that NCCL's search would find on a machine with given rates."""

from __future__ import annotations

from taccl.topology.tuning import (
    CHANNEL_SPEEDS,
    MAX_CHANNELS,
    SPLIT_GB_PER_S,
    SPLIT_MANY,
    SPLIT_MANY_GB_PER_S,
)


def searched(generation: str, node_gb_per_s: float, nics: tuple[int, float] | None) -> tuple[int, float]:
    """(number of channels, GB/s of each) that NCCL's search finds.

    NCCL takes the highest total rate; among equal totals, the highest speed. Each channel passes all GPUs of
    a node. On several nodes there is at most one channel per NIC, no faster than the NIC. A fast channel is
    split into two of half the speed.

    - `node_gb_per_s`: Total rate of channels that a GPU's links inside its node carry.
    - `nics`: Number of NICs of a node and their total rate in GB/s; None on one node.
    """
    of_node, of_network = CHANNEL_SPEEDS.get(generation, CHANNEL_SPEEDS[""])
    most, speeds = MAX_CHANNELS, of_node
    if nics is not None:
        most, rate = min(nics[0], MAX_CHANNELS), nics[1] / nics[0]
        speeds = tuple(each for each in of_network if each <= rate) or of_network[-1:]
    totals = [(int(max(min(node_gb_per_s / each, most), 1)), each) for each in speeds]
    num, speed = max(totals, key=lambda each: (each[0] * each[1], each[1]))
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
