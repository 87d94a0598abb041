"""Maximum bandwidth of NCCL's tree allreduces and of its messages between nodes, by their channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taccl._internal.caching import cached
from taccl._internal.units import format_count
from taccl.measure.facts import HEALTHY, WITHIN_ERROR
from taccl.measure.library import Run
from taccl.measure.library_costs import ASSUMED_VERSION, Costs
from taccl.measure.machine import import_network, machine_of
from taccl.measure.predict import costs_of, figures_of_generation, known_machines
from taccl.measure.series import POINT_TO_POINT, Series
from taccl.topology.models import MODELS
from taccl.topology.networks import NETWORKS
from taccl.topology.nvls import port_generation
from taccl.topology.profiles import PROFILES
from taccl.topology.topology import Topology
from taccl.topology.tuning import (
    NETWORK_PAIR_VERSION,
    NVLINK_GB_PER_S,
    PAIR_CHANNEL_NETWORK_GB_PER_S,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Max relative error of a rate computed from the rounded cost of a link.
ROUNDED = 0.01


@cached
def tree_limit_gb_per_s(topology: Topology) -> float:
    """Maximum algorithm bandwidth of a tree allreduce in GB/s; inf if the GPUs' generation is unknown.

    The generation follows from the machine, or from the rate of an import's NVSwitch ports. Profiles from
    files have no maximum, as their rates are fitted without one.
    """
    costs = channel_costs(topology)
    if costs is None or costs.fitted is not None:
        return float("inf")
    run = Run(costs, "allreduce", topology.num_ranks, topology.num_nodes, np.zeros(1))
    return run.tree_limit_gb_per_s / 2


def few_channels(costs: Costs, series: Series, version: Sequence[int]) -> str:
    """Clause on the channels of a message between nodes, if these explain its rate; else empty.

    - `version`: version of the library; if empty, the newest counts, which gives a message most channels.
    """
    num_ranks, num_nodes = series.num_ranks, series.num_nodes
    is_message = series.collective == POINT_TO_POINT and not series.streams
    if not is_message or costs.fitted is not None or not 1 < num_nodes <= num_ranks:
        return ""
    costs = costs.under(version or NETWORK_PAIR_VERSION)
    num = Run(costs, POINT_TO_POINT, num_ranks, num_nodes, np.zeros(1)).message_channels
    rate, carried = largest_rate(series), num * PAIR_CHANNEL_NETWORK_GB_PER_S
    full = HEALTHY * costs.nic_gb_per_s
    if carried >= full or not WITHIN_ERROR * carried <= rate < full * costs.network.efficiency:
        return ""
    library = f"NCCL {'.'.join(map(str, costs.version))}"
    return (
        f"{library} gives a message between nodes {format_count(num, 'channel')} of about "
        f"{PAIR_CHANNEL_NETWORK_GB_PER_S:g} GB/s among {num_ranks} ranks"
    )


def largest_rate(series: Series) -> float:
    """Largest bandwidth of a series in GB/s."""
    rows = zip(series.size_bytes, series.times_us, strict=True)
    return max(size / time_us for size, time_us in rows) / 1000


def channel_costs(topology: Topology) -> Costs | None:
    """Costs that determine NCCL's channels on a named machine or imported topology; None if unknown."""
    if topology.machine:
        is_built_in = topology.profile in [each.name for each in PROFILES.get(topology.machine, ())]
        return costs_of(topology.machine) if is_built_in and topology.machine in known_machines() else None
    generation = port_generation(topology)
    if not generation:
        return None
    figures = machine_of(topology)
    most = max(each.num_nvlinks for each in MODELS.values() if each.generation == generation)
    link = float(NVLINK_GB_PER_S[generation])
    node = min(figures.node_gb_per_s * (1 + ROUNDED), most * link)
    network = import_network(topology) or NETWORKS["infiniband"]
    return Costs(
        generation, node, round(node / link), figures.network_gb_per_s, figures.ranks_per_nic, network,
        nvls=any(switch.reduces for switch in topology.switches), nvswitch=True, version=ASSUMED_VERSION,
        **figures_of_generation(generation),
    )  # fmt: skip
