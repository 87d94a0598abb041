"""Work of a probe, estimated in advance: rounds, pairs, bytes and minimum time."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from taccl._internal.units import format_count
from taccl.placement.few_pairs import most_pairs
from taccl.placement.hosts import USUAL_GB_PER_S, USUAL_LATENCY_US

#: Number of messages sent before the timed ones.
WARM_UP = 3
#: `FEWER`: ratio of the number of small messages to that of large ones.
#: `FEWEST`: minimum number of large messages in a pass.
FEWER, FEWEST = 4, 3
#: Number of passes over all pairs, so far apart in time that temporary load affects only some of them.
PASSES = 4
#: Minimum number of hosts for a probe of few pairs; with fewer hosts it would measure nearly all pairs.
_FEWEST_HOSTS = 32


@dataclass(frozen=True)
class ProbeWork:
    """Work of a probe: its pairs, rounds, bytes and minimum time.

    - `pairs`, `rounds`: Number in each pass. For a probe of few pairs: the maximum number of pairs, and the
      minimum number of rounds.
    - `num_bytes`: Bytes sent by all ranks in all passes.
    - `least_s`: Minimum time in seconds at the usual latency and rate, if all pairs of a round are measured
      in parallel.
    - `is_few`: True for a probe of few pairs.
    """

    num_ranks: int
    passes: int
    pairs: int
    rounds: int
    num_bytes: int
    least_s: float
    is_few: bool

    def __str__(self) -> str:
        every = self.num_ranks * (self.num_ranks - 1) // 2
        pairs = f"{self.pairs} of {every} pairs in {format_count(self.rounds, 'round')}"
        if self.is_few:
            pairs = f"at most {self.pairs} of {every} pairs"
        passes = f"{self.passes} passes over {pairs}, {self.num_bytes / 1e9:.3g} GB sent"
        usual = f"{USUAL_LATENCY_US:g} us and {USUAL_GB_PER_S:g} GB/s"
        return (
            f"probe of {self.num_ranks} ranks: {passes}; at least {self.least_s:.2g} s at {usual}, longer "
            "where ranks outnumber cores"
        )


def is_few(num_ranks: int) -> bool:
    """True if there are enough ranks that probing only some pairs saves much work."""
    return num_ranks >= _FEWEST_HOSTS


def probe_work(num_ranks: int, *, rounds: int, size: int, repetitions: int, few: bool) -> ProbeWork:
    """Work of a probe of `rounds` rounds, or of few pairs, with large messages of `size` bytes."""
    passes = min(PASSES, repetitions)
    each = repetitions // passes
    large = max(FEWEST, each // FEWER) + WARM_UP
    small = each + WARM_UP
    pairs, together = rounds * (num_ranks // 2), num_ranks // 2
    if few and is_few(num_ranks):
        pairs = most_pairs(num_ranks)
        rounds = ceil(pairs / together)
    pair_bytes = 2 * (large * (size + 1) + 2 * small)
    pair_us = 2 * (2 * (small + large) * USUAL_LATENCY_US + large * size / USUAL_GB_PER_S / 1000)
    return ProbeWork(
        num_ranks, passes, pairs, rounds, passes * pairs * pair_bytes, passes * rounds * pair_us / 1e6,
        few and is_few(num_ranks),
    )  # fmt: skip
