"""Topology with the latencies and rates of NCCL's tables under one of its algorithms and protocols."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from taccl._internal.caching import cached
from taccl.baselines.channel_schedules import open_gb_per_s
from taccl.measure.model import further_channels
from taccl.topology.in_network import shared_links
from taccl.topology.networks import INSTANCES, NETWORKS
from taccl.topology.parts import thousandths
from taccl.topology.profiles import PROFILES, find_profile, profile_of
from taccl.topology.transform import rescaled
from taccl.topology.tuning import (
    CHANNEL_BYTES,
    NVLS_NETWORK_US,
    NVLS_US,
    PROTOCOLS,
    TREE_SHARE,
    Protocol,
)

if TYPE_CHECKING:
    from taccl.problem.problem import Problem
    from taccl.topology.topology import Topology


def topology_under(problem: Problem, protocol: str, algorithm: str) -> Topology:
    """Topology of a problem under a protocol, with the latency of the channels that the problem's size uses.

    For NVLS and trees, also with the costs in NCCL's tuning tables. Topologies read from files have no
    latencies of protocols; their latency for NVLS, and their bandwidth for trees, are those of the tables.
    """
    topology, size = problem.topology, problem.size_bytes
    assert size is not None, "checked"
    profile, ramp_us = profile_of(topology), Fraction(0)
    if profile is not None and profile.channel is not None and protocol in CHANNEL_BYTES:
        further = float(further_channels(protocol, np.array([float(size)]))[0])
        ramp_us = thousandths(profile.channel.value * Fraction(further))
    found = _launched(topology, protocol, ramp_us)
    if algorithm == "nvls" and (protocol or not topology.machine):
        wide, hop_us = shared_links(found), Fraction(NVLS_US, 2)
        slower = (e._replace(alpha_us=hop_us) if i in wide else e for i, e in enumerate(found.links))
        found = replace(found, links=tuple(slower), assumed=(*found.assumed, table_rates("nvls")))
        row = next((each for each in PROTOCOLS if each.name == protocol), None)
        if row is None:
            return found
        return rescaled(
            found, {(True, "alpha"): _network_factor(topology, row, NVLS_NETWORK_US)}, thousandths
        )
    return _for_trees(problem, protocol, found) if algorithm == "tree" else found


@cached
def _launched(topology: Topology, protocol: str, ramp_us: Fraction) -> Topology:
    """Topology under a protocol, with a launch that takes `ramp_us` longer."""
    found = topology.under(protocol) if protocol else topology
    return replace(found, launch_us=found.launch_us + ramp_us) if ramp_us else found


def _for_trees(problem: Problem, protocol: str, found: Topology) -> Topology:
    """Topology `found` (the problem's, under a protocol) with the latencies and bandwidth of NCCL's trees.

    Fabrics by name, such as a torus, are not in NCCL's tables; their topology stays unchanged.
    """
    from taccl.measure.channel_limits import tree_limit_gb_per_s  # loads all tables of machines

    topology, share = problem.topology, TREE_SHARE
    if topology.machine and protocol not in [each.name for each in PROTOCOLS]:
        return found
    most = tree_limit_gb_per_s(topology)
    if most < float("inf"):
        share = min(share, most / open_gb_per_s(problem, "tree", found))
    return _with_tree_costs(found, protocol, share)


@cached
def _with_tree_costs(topology: Topology, protocol: str, share: float) -> Topology:
    """Topology under a protocol with the latencies of NCCL's trees, and a share of the bandwidth."""
    row = next((each for each in PROTOCOLS if each.name == protocol), None)
    found = replace(topology, assumed=(*topology.assumed, table_rates("tree")))
    slower = 1 / Fraction(str(round(share, 6)))
    factors = {(False, "beta"): slower, (True, "beta"): slower}
    if row is None:
        return rescaled(found, factors, thousandths)
    costs = find_profile(topology.machine, topology.profile).protocols
    base_us = next(each.base_us.value for each in costs if each.name == protocol)
    factors |= {
        (False, "alpha"): Fraction(str(row.tree_hop_us)) / Fraction(str(row.ring_hop_us)),
        (True, "alpha"): _network_factor(topology, row, row.tree_network_us),
    }
    longer = Fraction(str(row.tree_base_us)) / Fraction(str(row.ring_base_us)) - 1
    longer_us = found.launch_us + base_us * longer
    return rescaled(replace(found, launch_us=longer_us), factors, thousandths)


def table_rates(algorithm: str) -> str:
    """Assumption about links under an algorithm of NCCL; times and bounds of its schedules depend on it."""
    most = f"at most {TREE_SHARE:g} of the bandwidth, and a maximum for each channel"
    what = most if algorithm == "tree" else "latencies of switches and their trees"
    return f"links have {algorithm}'s rates in NCCL's tables ({what})"


def _network_factor(topology: Topology, row: Protocol, to_us: float) -> Fraction:
    """Latency of a hop between nodes with `to_us` in NCCL's tables, divided by that of a ring's hop.

    Both include the latency that profiles add for the network of an instance type.
    """
    further_us = 0.0
    if topology.machine in INSTANCES and topology.profile in [e.name for e in PROFILES[topology.machine]]:
        further_us = NETWORKS[INSTANCES[topology.machine].network].further_us(row.name)
    to, ring, further = (Fraction(str(each)) for each in (to_us, row.ring_network_us, further_us))
    return (to + further) / (ring + further)
