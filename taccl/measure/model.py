"""The cost model that is fitted: what a collective of a stock library takes, by protocol.

    time = launch + scale_p * (base_p + node * hops * hop_p + network * network hops * network hop_p)
           + bytes / (bandwidth * share_p)

Hops and bytes are those of rings and of trees (in a node along its ring); the rest are parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.measure.series import POINT_TO_POINT
from taccl.topology.tuning import LAUNCH, LAUNCH_US, PROTOCOLS, SOURCE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.measure.series import Series

__all__ = ["COLLECTIVES", "LATENCIES", "PARAMETERS", "Parameter", "Work", "priors", "times_us", "work_of"]

COLLECTIVES = ("allreduce", "allgather", "reduce-scatter", "broadcast", "reduce", "alltoall", POINT_TO_POINT)


class Parameter(NamedTuple):
    """What is fitted: its logarithm has a normal prior about that of `value`."""

    name: str
    value: float
    spread: float
    unit: str
    source: str


#: Networks differ far more than NVLinks do; a share of bandwidth is hard to tell from a switch of algorithm.
_SPREADS = {
    "launch": 0.8, "node": 0.7, "network": 1.2, "latency": 0.8, "node_bandwidth": 0.3,
    "network_bandwidth": 1.0, "share": 2.0,
}  # fmt: skip
LATENCIES = ("launch_us", "node_latency", "network_latency", "ll_latency", "ll128_latency", "simple_latency")
PARAMETERS = (*LATENCIES, "node_gb_per_s", "network_gb_per_s", "ll_share", "ll128_share")


def priors(node_gb_per_s: float, network_gb_per_s: float, rates_source: str) -> tuple[Parameter, ...]:
    """Every parameter as it is before anything was measured, in the order of `PARAMETERS`."""
    scale = (SOURCE, "times")
    rows = [
        ("launch_us", LAUNCH_US, _SPREADS["launch"], "us", LAUNCH),
        ("node_latency", 1.0, _SPREADS["node"], scale[1], scale[0]),
        ("network_latency", 1.0, _SPREADS["network"], scale[1], scale[0]),
        *((f"{p.name}_latency", 1.0, _SPREADS["latency"], scale[1], scale[0]) for p in PROTOCOLS),
        ("node_gb_per_s", node_gb_per_s, _SPREADS["node_bandwidth"], "GB/s", rates_source),
        ("network_gb_per_s", network_gb_per_s, _SPREADS["network_bandwidth"], "GB/s", rates_source),
        *((f"{p.name}_share", p.bandwidth_share, _SPREADS["share"], "of it", SOURCE) for p in PROTOCOLS[:-1]),
    ]
    return tuple(Parameter(*row) for row in rows)


@dataclass(frozen=True, slots=True)
class Work:
    """What a collective asks of a machine.

    Parameters
    ----------
    base_us, node_us, network_us : (3,) float64
        By protocol, as the tables have it: the begin, and the hops in nodes and between them.
    volumes : tuple of (float, float)
        For each algorithm that a library may take: of every byte, how much a rank sends inside its node,
        and how much a NIC sends.
    streams : bool
        Whether only the bandwidth tells.
    """

    base_us: NDArray[np.float64]
    node_us: NDArray[np.float64]
    network_us: NDArray[np.float64]
    volumes: tuple[tuple[float, float], ...]
    streams: bool


def work_of(series: Series, ranks_per_nic: int) -> Work:
    """What a series asks of a machine whose NICs serve so many ranks each."""
    n, m = series.num_ranks, series.num_nodes
    g = max(n // m, 1)
    sharing = min(g, ranks_per_nic)
    hops, volumes = _ways(series.collective, n, m, g)
    latencies = []
    for protocol in PROTOCOLS:
        ring = (protocol.ring_base_us, protocol.ring_hop_us, protocol.ring_network_us)
        tree = (protocol.tree_base_us, protocol.tree_hop_us, protocol.tree_network_us)
        of_way = {"ring": ring, "tree": tree}
        each = [
            (base, in_node * hop, between * across)
            for way, (in_node, between) in hops.items()
            for base, hop, across in (of_way[way],)
        ]
        latencies.append(min(each, key=sum))
    base, node, network = (np.array(column) for column in zip(*latencies, strict=True))
    shared = tuple((in_node, across * sharing) for in_node, across in volumes)
    return Work(base, node, network, shared, series.streams)


def _ways(
    collective: str, n: int, m: int, g: int
) -> tuple[dict[str, tuple[int, int]], tuple[tuple[float, float], ...]]:
    """Hops (in nodes, between them) of each algorithm; and bytes of every byte (in a node, at a rank's NIC).

    There is a ring for each rank of a node, so that of what a rank sends one part in `g` leaves the node.
    """
    inside, leaves = (g - 1) / g, (1 / g if m > 1 else 0.0)
    if m == 1:
        inside = 1.0
    levels = ceil(log2(m)) if m > 1 else 0
    between = m - 1
    part = (n - 1) / n
    if collective == "allreduce":
        hops = {"ring": (2 * (n - 1) - 2 * between, 2 * between), "tree": (2 * (g - 1), 2 * levels)}
        ring, tree = (2 * part * inside, 2 * part * leaves), (2 * (g - 1) / g, 2 * between / m / g)
        return hops, (ring, tree) if m > 1 else (ring,)
    if collective in ("allgather", "reduce-scatter"):
        return {"ring": (n - 1 - between, between)}, ((part * inside, part * leaves),)
    if collective in ("broadcast", "reduce"):
        return {"ring": (n - 1 - between, between)}, ((inside, leaves),)
    if collective == POINT_TO_POINT:
        return {"ring": (int(m == 1), int(m > 1))}, ((float(m == 1), float(m > 1)),)
    return {"ring": (int(g > 1), int(m > 1))}, (((g - 1) / n, (n - g) / n),)


def times_us(work: Work, size_bytes: NDArray[np.float64], logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Times by protocol and size, (3, sizes), of parameters by their logarithms."""
    launch, node, network, *rest = np.exp(logs)
    scales, (in_node, across), shares = np.array(rest[:3]), rest[3:5], np.array([*rest[5:], 1.0])
    us_per_byte = min(max(a / in_node, b / across) for a, b in work.volumes) / 1000
    if work.streams:
        return np.broadcast_to(us_per_byte * size_bytes, (3, len(size_bytes)))
    latency = launch + scales * (work.base_us + node * work.node_us + network * work.network_us)
    found: NDArray[np.float64] = latency[:, None] + us_per_byte / shares[:, None] * size_bytes
    return found
