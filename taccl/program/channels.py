"""Channels by name: which of several queues between two ranks a message takes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CHANNELS", "THREADBLOCKS", "channel_chooser"]

CHANNELS = ("single", "round-robin", "by-chunk", "by-peer")
THREADBLOCKS = ("per-direction", "per-peer", "relay")


def channel_chooser(policy: str, num_channels: int, num_ranks: int) -> Callable[[int, int, int], int]:
    """The channel of a message from (src, dst, first chunk), asked in the order of messages."""
    taken: Counter[tuple[int, int]] = Counter()

    def in_turn(src: int, dst: int, _chunk: int) -> int:
        taken[src, dst] += 1
        return (taken[src, dst] - 1) % num_channels

    def by_distance(src: int, dst: int, _chunk: int) -> int:
        apart = min((dst - src) % num_ranks, (src - dst) % num_ranks)  # the same both ways
        return (apart - 1) * num_channels // max(num_ranks // 2, 1)

    return {
        "single": lambda _src, _dst, _chunk: 0,
        "round-robin": in_turn,
        "by-chunk": lambda _src, _dst, chunk: chunk % num_channels,
        "by-peer": by_distance,
    }[policy]
