"""Number of channels of NCCL's messages between two ranks, and the time to fill their pipelines."""

from __future__ import annotations

from math import ceil, log2
from typing import TYPE_CHECKING

import numpy as np

from taccl.topology.tuning import NETWORK_PAIR_VERSION, PAIR_CHANNEL_NETWORK_GB_PER_S, PAIR_PEERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.measure.library_costs import Floats
    from taccl.topology.tuning import PairSizes


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
