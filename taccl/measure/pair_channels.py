"""Number of channels of NCCL's messages between ranks of a node, and the time to fill their pipelines."""

from __future__ import annotations

from math import ceil, log2
from typing import TYPE_CHECKING

import numpy as np

from taccl.topology.tuning import PAIR_CHUNK_BYTES, PAIR_LEAST_PART, PAIR_MOST_PART

if TYPE_CHECKING:
    from taccl.measure.library_costs import Floats


def pair_channels(num_channels: int, num_links: int, num_ranks: int, message_bytes: Floats) -> Floats:
    """Number of channels that carry a message to each peer, for each message size.

    Small messages have few channels, so that all peers fit into `num_channels`. Large messages have up to two
    channels per NVLink.
    """
    total = _power_above(num_channels)
    most = min(_power_above(2 * num_links), total)
    usual = most
    while usual * num_ranks > total and usual > 1:
        usual //= 2
    num = np.clip(np.ceil(message_bytes / PAIR_LEAST_PART), 1, usual)
    while usual < most:
        num = np.where(message_bytes > num * PAIR_MOST_PART, np.minimum(2 * num, most), num)
        usual *= 2
    return num


def filling_us(message_bytes: Floats, num: Floats, gb_per_s: Floats) -> Floats:
    """Pipeline fill time in us: a receiver can copy a channel's first chunk only once it has arrived.

    - `gb_per_s`: Rate of all channels of the message together.
    """
    chunk = np.minimum(message_bytes / num, PAIR_CHUNK_BYTES)
    return chunk * num / (1000 * gb_per_s)


def _power_above(num: int) -> int:
    """Least power of two that is at least `num`."""
    return 1 << ceil(log2(num))
