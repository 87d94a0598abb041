"""Rates between two ranks in a log, compared with those of a GPU's links or of a NIC."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from taccl.explore.measured_machine import Machine, topology_of
from taccl.measure.channel_limits import channel_costs, few_channels, largest_rate
from taccl.measure.machine import machine_of
from taccl.measure.series import Series
from taccl.topology.topology import Topology


def link_sentence(
    series: Series,
    machine: Machine,
    gpus: Collection[str],
    placed: Sequence[tuple[Series, Topology, list[str]]],
    version: Sequence[int],
) -> str:
    """Sentence that compares the rate between two ranks with that of a GPU's links or a NIC."""
    rate = largest_rate(series)
    on = next((on for _, on, _ in placed), None)
    if on is None:
        on, _ = topology_of(
            series.on(0, series.num_nodes), machine._replace(nodes=2 if series.num_nodes > 1 else 1), gpus
        )
    figures = machine_of(on)
    between = series.num_nodes > 1
    most = figures.network_gb_per_s if between else figures.node_gb_per_s
    if not most:
        return f"{series.source}: {rate:.4g} GB/s between two ranks; {on.name} has no network to compare with"
    what = "the rate of a NIC" if between else "the rate of a GPU inside its node"
    direct = 0.0 if between else _pair_gb_per_s(on)
    if 0 < direct < most:
        most, what = direct, "the rate of the links between two GPUs"
    said = f"{series.source}: {rate:.4g} GB/s between two ranks, {rate / most:.0%} of {what} ({most:.4g})"
    costs = channel_costs(on)
    clause = "" if costs is None else few_channels(costs, series, version)
    return f"{said}; {clause}: set NCCL_NCHANNELS_PER_NET_PEER" if clause else said


def _pair_gb_per_s(topology: Topology) -> float:
    """Largest rate in GB/s between two ranks of a node, over all their links; 0 if a node has no links."""
    rates: dict[tuple[int, int], float] = {}
    for index, link in enumerate(topology.links):
        if len(link.srcs) == len(link.dsts) == 1 and not topology.is_internode(index):
            pair = link.src, link.dst
            rates[pair] = rates.get(pair, 0.0) + float(1000 / link.beta_us_per_mb)
    return max(rates.values(), default=0.0)
