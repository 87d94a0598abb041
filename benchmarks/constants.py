"""Constants of predictions that come from published logs, and substitutes for tests on these logs.

A row of `benchmarks.unseen` is not a test if a constant comes from its log. Such a row has a second figure,
with the constants of other machines instead: leave-one-machine-out.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from taccl.measure.library_costs import PairRates
from taccl.measure.predict import costs_of
from taccl.topology.networks import NETWORKS
from taccl.topology.profiles import PROFILES
from taccl.topology.tuning import LAUNCH_CHANNEL_US, LAUNCH_EACH_US

if TYPE_CHECKING:
    from taccl.measure.library_costs import Costs
    from taccl.topology.networks import Network

#: {log: constants that come from it}; the first word of a constant is its kind.
SOURCE_OF = {
    "a100_p4de.24xlarge_x2_allreduce_aws": "network efa",
    "b200_lambda_x2_allreduce": "network infiniband",
    "h100_p5.48xlarge_x2_allreduce_aws": "network efa-rdma",
    "h100_a3mega_gke_x2_allgather_full": "network tcpxo",
    "h100_a3mega_x2_allreduce_gcp": "network tcpxo",
    "h200_2x1_allgather_1nic_gke": "network gib",
    "mi300x_x1_allreduce_rccl": "protocols",
    "mi300x_x2_allreduce_rccl": "network rccl-2.22",
    "mi355x_x1_allreduce_full": "protocols",
    "mi355x_x1_alltoall_full": "protocols",
    "p5_x1_allreduce_aws_batch": "launch",
    **{f"unseen/dgx2_12gpu_{each}": "host of Volta" for each in ("allgather", "allreduce", "broadcast")},
    "unseen/l40s_2x1_allreduce": "network roce-pcie",
    "unseen/a100_x1_sendrecv_large": "pairs",
    "unseen/ndmv4_x1_alltoall": "pairs",
    "unseen/ndmv4_x2_allreduce": "network infiniband",
    "unseen/ndmv4_x2_alltoall": "pairs",
}
#: Network classes whose constants come from a log of such a network.
_MEASURED = [word.split()[1] for word in dict.fromkeys(SOURCE_OF.values()) if word.startswith("network")]
#: Launch in us to use without the log of 8 H100: the median of three collectives of 1 KB on 8 A100.
_OTHER_LAUNCH_US = 1.9
#: {AMD machine: the other AMD machine}.
_OTHER = {"mi300x": "mi355x", "mi355x": "mi300x"}


def costs_without(topology: str, log: str, network: str | None = None) -> Costs:
    """Costs of a machine, with constants of other machines in place of those that come from a log."""
    costs, kind = costs_of(topology, network=network), SOURCE_OF[log].split()[0]
    if kind == "network":
        return replace(costs, network=_other_network(costs.network.name))
    if kind == "launch":
        return replace(costs, launch_us=_OTHER_LAUNCH_US)
    if kind == "host":
        return replace(costs, serial_launch_us=LAUNCH_EACH_US, channel_launch_us=LAUNCH_CHANNEL_US)
    if kind == "pairs":
        return replace(costs, pair_rates=PairRates(1.0, 1.0, 0.0))
    other = costs_of(_OTHER[topology])
    share = other.node_gb_per_s / _promised(_OTHER[topology])
    return replace(
        costs, launch_us=other.launch_us, fitted=other.fitted, node_gb_per_s=share * _promised(topology),
        serial_launch_us=LAUNCH_EACH_US,
    )  # fmt: skip


def _other_network(name: str) -> Network:
    """Costs of a network class without its log: its plugin's latency, and medians of other classes."""
    own, others = NETWORKS[name], [NETWORKS[each] for each in _MEASURED if each != name]
    return own._replace(
        hop_us=own.stated_us,
        start_us=median(each.start_us for each in others),
        post_us=median(each.post_us for each in others),
        efficiency=median(each.efficiency for each in others),
        amd_start_us=None,
        simple_us=None,
    )


def _promised(machine: str) -> float:
    """GB/s of a rank inside its node, by data sheet."""
    nominal = PROFILES[machine][-1]
    return 7 * 1000 / float(nominal["xgmi_beta_us_per_mb"])
