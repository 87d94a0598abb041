"""Cost model for fits: time of a collective of a stock library, by protocol p.

    time = launch + latency + channel * further_channels + bytes / (bandwidth * share_p);
    latency = scale_p * (base_p + node * hops * hop_p) + network * network_hops * network_hop_p.

Hops and bytes are those of a ring, a tree or sums in a switch, whichever is the fastest; a tree passes
through a node along a chain. No protocol scales the network's latency, so logs of one node do not affect it.
The latencies base_p, hop_p and network_hop_p are from NCCL's tables. All other factors and times are fitted:
launch, channel (time of each further channel), scale_p, node and network (factors of latencies), bandwidth
and share_p (share of it that protocol p reaches). NCCL chooses by a model of this form.
"""

from __future__ import annotations

from math import ceil, log2
from typing import NamedTuple

import numpy as np

from taccl._internal.arrays import Floats
from taccl.measure.series import POINT_TO_POINT, Series
from taccl.topology.tuning import (
    CHANNEL_BYTES,
    LAUNCH,
    LAUNCH_US,
    NVLS_NETWORK_US,
    NVLS_US,
    PROTOCOLS,
    SOURCE,
    TREE_SHARE,
    Protocol,
)

COLLECTIVES = ("allreduce", "allgather", "reduce-scatter", "broadcast", "reduce", "alltoall", POINT_TO_POINT)


#: Number of message bytes for which a library uses one channel more, under each protocol; shape (3, 1).
_CHANNEL_BYTES = np.array([[float(CHANNEL_BYTES[each.name])] for each in PROTOCOLS])


#: Greatest value of a parameter without a physical limit.
_NO_MOST = 1e9


class Parameter(NamedTuple):
    """A parameter to fit; its logarithm has a normal prior with mean log(`value`) and deviation `spread`.

    - `least`, `most`: Physical limits of its value.
    """

    name: str
    value: float
    spread: float
    unit: str
    source: str
    least: float = 1e-6
    most: float = _NO_MOST


LATENCIES = ("launch_us", "node_latency", "network_latency", "ll_latency", "ll128_latency", "simple_latency")
PARAMETERS = (*LATENCIES, "node_gb_per_s", "network_gb_per_s", "ll_share", "ll128_share", "channel_us")
#: Max ratio of a hop's latency inside a node, or of a protocol's latencies, to NCCL's table (our choice).
_MOST_SCALE = 5.0
#: Rate in GB/s of the fastest NIC, of 800 Gb/s (NVIDIA, ConnectX-8 SuperNIC data sheet).
_MOST_NIC = 100.0
#: {protocol: (least, greatest) share of the bandwidth}; LL sends a flag with each word.
_SHARES = {"ll": (0.2, 0.5), "ll128": (0.2, 1.0)}
#: Max channels that the model counts; a library adds channels one by one as messages grow.
RAMP_CHANNELS = 8


def priors(
    node_gb_per_s: float, network_gb_per_s: float, rates_source: str, *, is_wire: bool = False
) -> tuple[Parameter, ...]:
    """Priors of all parameters, in the order of `PARAMETERS`.

    - `is_wire`: True if `node_gb_per_s` is that of the wires, which no fitted rate may exceed. NICs may be
      faster than assumed, up to the fastest that exist.
    """
    # Priors are wide for networks, which vary, and for bandwidth shares, which resemble other algorithms.
    scale = 1e-3, _MOST_SCALE
    in_node = node_gb_per_s if is_wire else _NO_MOST
    ranges = ((p, *_SHARES[p.name]) for p in PROTOCOLS[:-1])
    return (
        Parameter("launch_us", LAUNCH_US, 0.8, "us", LAUNCH),
        Parameter("node_latency", 1.0, 0.7, "times", SOURCE, *scale),
        Parameter("network_latency", 1.0, 1.2, "times", SOURCE),
        *(Parameter(f"{p.name}_latency", 1.0, 0.8, "times", SOURCE, *scale) for p in PROTOCOLS),
        Parameter("node_gb_per_s", node_gb_per_s, 0.3, "GB/s", rates_source, most=in_node),
        Parameter("network_gb_per_s", network_gb_per_s, 1.0, "GB/s", rates_source, most=_MOST_NIC),
        *(Parameter(f"{p.name}_share", p.bandwidth_share, 2.0, "share", SOURCE, *at) for p, *at in ranges),
        Parameter("channel_us", 0.3, 1.5, "us", "our choice: a further channel's part in a message"),
    )


class Pattern(NamedTuple):
    """Numbers of hops and data volumes of one algorithm for a collective.

    - `algorithm`: ``"ring"``, ``"tree"``, ``"pairwise"`` or ``"nvls"``, sums in a switch, under simple alone.
    - `node_hops`, `network_hops`: Numbers of successive hops within nodes and between nodes.
    - `node_volume`, `network_volume`: Bytes that a rank sends inside its node and to other nodes, per byte of
      the collective's size. For trees they include a factor for the bandwidth that trees do not reach.
    """

    algorithm: str
    node_hops: int
    network_hops: int
    node_volume: float
    network_volume: float

    def tabled_us(self, protocol: Protocol) -> tuple[float, float, float]:
        """Latencies in us from NCCL's tables: base, all hops within nodes, all hops between nodes."""
        if self.algorithm == "nvls":
            base_us = 0.0 if protocol.name == "simple" else np.inf
            return base_us, NVLS_US, self.network_hops * NVLS_NETWORK_US
        if self.algorithm == "tree":
            hops = protocol.tree_base_us, protocol.tree_hop_us, protocol.tree_network_us
        else:
            hops = protocol.ring_base_us, protocol.ring_hop_us, protocol.ring_network_us
        return hops[0], self.node_hops * hops[1], self.network_hops * hops[2]


class CostTerms(NamedTuple):
    """Latency and bandwidth terms of a collective, for each algorithm of `patterns_of`.

    - `tabled_us`, (3, algorithms, 3 protocols): Base latency, hops within nodes, and hops between nodes.
    - `volumes`, (2, algorithms): Bytes sent by a rank inside its node, and by a NIC, per byte of size.
    - `streams`: True if times depend on bandwidth only.
    - `below`, (algorithms,): Size in bytes from which an algorithm is not used, inf if it always may be.
    - `protocols`: Indices of the protocols that may be used.
    """

    tabled_us: Floats
    volumes: Floats
    streams: bool
    below: Floats
    protocols: tuple[int, ...] = (0, 1, 2)


class Choice(NamedTuple):
    """Algorithm that alone is used from a size in bytes on; without a name, the fastest one at each size."""

    algorithm: str = ""
    size_bytes: float = np.inf


def terms_of(
    series: Series, ranks_per_nic: int, nvls_share: float = 0.0, links_share: float = 1.0,
    choice: Choice = Choice(),
) -> CostTerms:  # fmt: skip
    """Cost terms of a series on a machine whose NICs serve `ranks_per_nic` ranks each.

    - `nvls_share`: Share of a rank's rate that sums in a switch reach; 0 without such switches.
    - `links_share`: Share of a rank's links inside its node that lead to participating ranks.
    - `choice`: Algorithm of large sizes.
    """
    sharing = min(max(series.num_ranks // series.num_nodes, 1), ranks_per_nic)
    found = patterns_of(series.collective, series.num_ranks, series.num_nodes)
    if nvls_share and series.collective == "allreduce" and series.num_ranks > 2 * series.num_nodes:
        found = (*found, nvls_pattern(series.num_ranks, series.num_nodes, 1 / nvls_share))
    tabled = np.array([[each.tabled_us(protocol) for protocol in PROTOCOLS] for each in found])
    volumes = np.array([(each.node_volume / links_share, each.network_volume * sharing) for each in found])
    below = np.array([np.inf if each.algorithm == choice.algorithm else choice.size_bytes for each in found])
    return CostTerms(tabled.transpose(2, 0, 1), volumes.T, series.streams, below)


def patterns_of(collective: str, num_ranks: int, num_nodes: int) -> tuple[Pattern, ...]:
    """Algorithms that a library may use for a collective on ranks in equal nodes.

    There is one ring per rank of a node, so 1 / g of a rank's sends leave a node of g ranks. Hops between
    nodes are those of a chunk on its way round the ring (NCCL's model counts two for each node but one).
    """
    n, m, g = num_ranks, num_nodes, max(num_ranks // num_nodes, 1)
    inside, leaves = ((g - 1) / g, 1 / g) if m > 1 else (1.0, 0.0)

    def ring(hops: int, volume: float) -> Pattern:
        across = ceil(hops * m / n) if m > 1 else 0
        return Pattern("ring", hops - across, across, volume * inside, volume * leaves)

    if collective == "allreduce":
        sent = 2 / TREE_SHARE
        tree = Pattern("tree", 2 * (g - 1), 2 * ceil(log2(m)), sent * (g - 1) / g, sent * (m - 1) / m / g)
        return ring(2 * (n - 1), 2 * (n - 1) / n), tree
    if collective in ("allgather", "reduce-scatter"):
        return (ring(n - 1, (n - 1) / n),)
    if collective in ("broadcast", "reduce"):
        return (ring(n - 1, 1.0),)
    if collective == POINT_TO_POINT:
        return (Pattern("pairwise", int(m == 1), int(m > 1), float(m == 1), float(m > 1)),)
    return (Pattern("pairwise", int(g > 1), int(m > 1), (g - 1) / n, (n - g) / n),)


def nvls_pattern(num_ranks: int, num_nodes: int, node_volume: float) -> Pattern:
    """Hops and data volumes of NVLS, which reduces in the switch of each node, and over trees between nodes.

    The data is split over two trees. For each byte of a tree, a node's NICs send one byte if the node is a
    leaf of the tree, and three bytes otherwise. With two nodes, they send one byte. With three, the trees are
    chains, and they send two bytes in the middle of one.
    """
    n, m = num_ranks, num_nodes
    of_nics = min(m / 2, 2) if m > 1 else 0
    return Pattern("nvls", 2, 2 * ceil(log2(m)), node_volume, of_nics * m / n)


def times_us(terms: CostTerms, size_bytes: Floats, logs: Floats) -> Floats:
    """Times in us, (..., 3 protocols, sizes), under the fastest algorithm that is used at each size.

    - `logs`, (..., parameters): Logarithms of the parameters, in the order of `PARAMETERS`.
    """
    values = np.exp(logs)
    launch, node, network, in_node, across = np.moveaxis(values[..., [0, 1, 2, 6, 7], None], -2, 0)
    scales = values[..., None, 3:6]
    shares = np.append(values[..., 8:10], np.ones_like(values[..., :1]), axis=-1)
    us_per_byte = np.maximum(terms.volumes[0] / in_node, terms.volumes[1] / across) / 1000
    if terms.streams:
        slowest = us_per_byte.min(axis=-1)[..., None, None] * size_bytes
        return np.broadcast_to(slowest, (*logs.shape[:-1], 3, len(size_bytes)))
    base_us, node_us, network_us = terms.tabled_us
    hops = scales * (base_us + node[..., None] * node_us) + network[..., None] * network_us
    latency = launch[..., None] + hops
    rates = us_per_byte[..., None] / shares[..., None, :]
    each = latency[..., None] + rates[..., None] * size_bytes
    fastest: Floats = np.where(size_bytes < terms.below[:, None, None], each, np.inf).min(axis=-3)
    further = _further_channels(size_bytes, _CHANNEL_BYTES)
    times: Floats = fastest + values[..., 10, None, None] * further
    return times


def further_channels(protocol: str, size_bytes: Floats) -> Floats:
    """Number of channels beyond the first that messages of some sizes use, up to `RAMP_CHANNELS`."""
    return _further_channels(size_bytes, np.float64(CHANNEL_BYTES[protocol]))


def _further_channels(size_bytes: Floats, channel_bytes: Floats | np.float64) -> Floats:
    return np.minimum(np.maximum(size_bytes / channel_bytes, 1), RAMP_CHANNELS) - 1
