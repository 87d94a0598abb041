"""Cost figures of a machine under a stock library (`Costs`), and an algorithm's times (`Candidate`)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from taccl.topology.tuning import LAUNCH_EACH_US, LAUNCH_US

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from taccl.topology.networks import Network

    Floats = NDArray[np.float64]


#: `PAIR_SHARE`: part of a node's rate that a single pair reaches (our choice; 0.81 on 8 A100, 0.93 on H100).
#: `ALL_PAIRS_SHARE`: part of it that all pairs of an alltoall reach since Hopper (our choice; 0.85 to 0.93).
#: `AMPERE_ALL_PAIRS_SHARE`: part of it that all pairs reach on Ampere. It exceeds 1, as NCCL's tables state
#: 240 GB/s for a rank whose NVLinks have 300.
#: On 8 A100, copies reach 255 GB/s (alltoall and allgather of microsoft/superbenchmark, tests/data).
PAIR_SHARE, ALL_PAIRS_SHARE, AMPERE_ALL_PAIRS_SHARE = 0.87, 0.93, 1.06
#: Least rate in GB/s of a channel between two ranks over NVLink, from a published log of 8 A100.
#: In that log, eight channels carry a message of 128 MB.
PAIR_CHANNEL_GB_PER_S = 13.9


@dataclass(frozen=True, slots=True)
class Costs:
    """Cost figures of a machine under a stock library; rates in GB/s, one way.

    - `generation`: Generation of NVIDIA's GPUs; empty for AMD's.
    - `node_gb_per_s`, `num_links`: Rate of a rank inside its node by the library's tables, and its NVLinks.
    - `nic_gb_per_s`, `ranks_per_nic`: Wire rate of a NIC, and ranks that share it. If a rank has several
      NICs (`nics_per_rank`), their total.
    - `host`: Maker of the hosts' processors, ``"Intel"`` (or other) or ``"AMD"``.
    - `nvls`: True if switches in nodes reduce data.
    - `sharp`: True if switches between nodes reduce data, by a plugin that users turn on.
    - `nvswitch`: True if a switch joins the ranks of a node.
    - `pcie`: True if ranks of a node communicate over PCIe.
    - `pairs`: {pair of local ranks: number of links between them}; empty if a switch or PCIe joins the ranks.
    - `fitted`: {protocol: (base us, hop us, share)} of libraries without a table, such as RCCL.
    - `launch_us`, `launch_source`: Time before the first step, and its origin; empty for the library's usual.
    - `ranks_per_process`: Number of GPUs on which one process enqueues kernels one after another, in
      `serial_launch_us` each. 0 means all GPUs of a node on Volta, and one on other GPUs.
    - `pair_share`, `all_pairs_share`: Parts of a node's rate for one pair, and for all pairs of an alltoall.
    - `pair_channel_gb_per_s`: Least rate of a channel between two ranks; NCCL's search may find faster ones.
    - `launch_scale`, `node_latency`, `network_latency`: Factors of the launch and of latencies.
    - `node_rate`, `network_rate`: Factors of rates.
    """

    generation: str
    node_gb_per_s: float
    num_links: int
    nic_gb_per_s: float
    ranks_per_nic: int
    network: Network
    nvls: bool = False
    sharp: bool = False
    nvswitch: bool = False
    pcie: bool = False
    pairs: Mapping[tuple[int, int], int] = field(default_factory=dict)
    launch_us: float = LAUNCH_US
    serial_launch_us: float = LAUNCH_EACH_US
    ranks_per_process: int = 0
    fitted: Mapping[str, tuple[float, float, float]] | None = None
    host: str = "Intel"
    nics_per_rank: int = 1
    pair_share: float = PAIR_SHARE
    all_pairs_share: float = ALL_PAIRS_SHARE
    pair_channel_gb_per_s: float = PAIR_CHANNEL_GB_PER_S
    launch_scale: float = 1.0
    node_latency: float = 1.0
    network_latency: float = 1.0
    node_rate: float = 1.0
    network_rate: float = 1.0
    launch_source: str = ""

    def links_share(self, num_ranks: int) -> float:
        """Share of a rank's links that lead to the first `num_ranks` ranks of its node; the least over these.

        Links to other ranks carry nothing. 1 for a single rank, and if no links join pairs of ranks.
        """
        if num_ranks < 2 or not self.pairs:
            return 1.0
        kept = {pair: count for pair, count in self.pairs.items() if max(pair) < num_ranks}
        least, whole = (
            min(sum(count for pair, count in some.items() if rank in pair) for rank in range(num_ranks))
            for some in (kept, self.pairs)
        )
        return least / whole if least else 1.0

    def on_ranks(self, local_ranks: Sequence[int]) -> Costs:
        """Copy of the costs with the local ranks of a node renumbered, so that `local_ranks` come first."""
        others = sorted({rank for pair in self.pairs for rank in pair} - set(local_ranks))
        places = {rank: place for place, rank in enumerate([*local_ranks, *others])}
        return replace(self, pairs={(places[a], places[b]): count for (a, b), count in self.pairs.items()})


class Candidate(NamedTuple):
    """Times of an algorithm under a protocol, at several sizes.

    - `model_us`: Time by the library's own model, by which the library chooses an algorithm.
    - `time_us`: Time that the algorithm's pipeline takes, launch included.
    """

    algorithm: str
    protocol: str
    model_us: Floats
    time_us: Floats
