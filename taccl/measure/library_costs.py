"""Cost figures of a machine under a stock library (`Costs`), and an algorithm's times (`Candidate`)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from taccl._internal.arrays import Floats
from taccl.topology.networks import NETWORKS
from taccl.topology.tuning import LAUNCH_EACH_US, LAUNCH_US

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taccl.topology.networks import Network


#: Last version of RCCL that is known to start late between nodes. No log shows 2.23 to 2.26; 2.27 does not.
_LATE_RCCL = (2, 22)


#: Version of NCCL that is assumed where none is stated (our choice: older than the newest, as most are).
ASSUMED_VERSION = (2, 28)


class PairRates(NamedTuple):
    """Rates of messages between ranks of a node.

    - `one`, `all`: Parts of the rate in NCCL's table that one pair reaches, and all pairs of an alltoall.
    - `channel_gb_per_s`: Least rate in GB/s of a channel over NVLink; NCCL's search may find faster ones.
    """

    one: float
    all: float
    channel_gb_per_s: float


#: {GPU generation: rates of pairs}; the empty name stands for all others (our choice).
#: On 8 A100, one pair reaches 195 GB/s, with 13.9 over each of 8 channels, and all pairs reach 255.
#: Source: alltoall of microsoft/superbenchmark (tests/data). NCCL's table has 240, an A100's links have 300.
#: On 8 H100, 4 and 8 channels have 20 GB/s each (sendrecv on ten nodes of xxrjun/nccl-tests-cluster).
PAIR_RATES = {
    "": PairRates(0.87, 0.93, 13.9), "Ampere": PairRates(0.81, 1.06, 13.9),
    "Hopper": PairRates(0.93, 0.93, 20.0), "Blackwell": PairRates(0.93, 0.93, 20.0),
}  # fmt: skip


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
    - `architecture`: AMD's name of the GPUs' architecture, such as ``"gfx942"``; empty for other GPUs.
    - `launch_us`, `launch_source`: Time before the first step, and its origin; empty for the library's usual.
    - `ranks_per_process`: Number of GPUs on which one process enqueues kernels one after another, in
      `serial_launch_us` each, and `channel_launch_us` more for each channel. 0 means all GPUs of a node on
      Volta, and one on other GPUs.
    - `pair_rates`: Rates of messages between ranks of a node.
    - `launch_scale`, `node_latency`, `network_latency`: Factors of the launch and of latencies.
    - `node_rate`, `network_rate`: Factors of rates.
    - `version`: Version of the library; empty for RCCL's newest.
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
    channel_launch_us: float = 0.0
    ranks_per_process: int = 0
    fitted: Mapping[str, tuple[float, float, float]] | None = None
    host: str = "Intel"
    nics_per_rank: int = 1
    pair_rates: PairRates = PAIR_RATES[""]
    launch_scale: float = 1.0
    node_latency: float = 1.0
    network_latency: float = 1.0
    node_rate: float = 1.0
    network_rate: float = 1.0
    launch_source: str = ""
    version: Sequence[int] = ()
    architecture: str = ""

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

    def under(self, version: Sequence[int]) -> Costs:
        """Copy of the costs under a version of the library; under the same if it is empty."""
        is_late = self.network.name == "rccl" and version and tuple(version[:2]) <= _LATE_RCCL
        network = NETWORKS["rccl-2.22"] if is_late else self.network
        return replace(self, network=network, version=tuple(version) or self.version)

    def is_before(self, *version: int) -> bool:
        """True if the library is older than this version; False for an unknown one of RCCL."""
        return bool(self.version) and tuple(self.version[: len(version)]) < version

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
