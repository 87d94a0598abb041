"""What NCCL would do: an algorithm and a protocol, chosen by its own model of costs.

By that model a collective takes a latency, of launch, base and hops, and its bytes over a bandwidth. It knows
no contention: what its choice takes is what the schedule of that algorithm takes on the topology.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import ceil, log2
from typing import TYPE_CHECKING, NamedTuple

from taccl.arguments import checked
from taccl.baselines.in_network import in_network, switch_links
from taccl.baselines.pairwise import pairwise
from taccl.baselines.ring import rings_apart
from taccl.baselines.tree import tree_of_nodes
from taccl.errors import CollectiveError
from taccl.measure.machine import machine_of
from taccl.measure.model import COLLECTIVES, Way, ways
from taccl.topology.profiles import find_profile
from taccl.topology.tuning import CHANNEL_GB_PER_S, MAX_CHANNELS, NVLS_US, PROTOCOLS, TREE_SHARE
from taccl.units import format_us

if TYPE_CHECKING:
    from collections.abc import Callable

    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.topology.topology import Link, Topology

__all__ = ["Considered", "nccl", "nccl_choices"]

_SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "ring": rings_apart,
    "tree": tree_of_nodes,
    "pairwise": pairwise,
    "nvls": in_network,
}


class Considered(NamedTuple):
    """An algorithm under a protocol, and what it takes by NCCL's model: latency, and bytes over bandwidth.

    Parameters
    ----------
    channels : int
        As many as the bandwidth inside a node needs.
    gb_per_s : float
        Algorithm bandwidth.
    """

    algorithm: str
    protocol: str
    channels: int
    latency_us: float
    gb_per_s: float
    time_us: float

    def __str__(self) -> str:
        return ", ".join(filter(None, (self.algorithm, self.protocol, f"{self.channels} channels")))


@checked
def nccl_choices(problem: Problem) -> tuple[Considered, ...]:
    """Every algorithm under every protocol of the topology's profile, the fastest by NCCL's model first.

    Raises
    ------
    CollectiveError
        If NCCL has no such collective, the size is not known, or nodes differ in size.
    """
    topology, size = problem.topology, problem.size_bytes
    _check(problem)
    assert size is not None, "checked"
    found = []
    for protocol in topology.protocols or ("",):
        machine = machine_of(topology.under(protocol) if protocol else topology)
        rate = max(machine.node_gb_per_s, machine.network_gb_per_s)
        channels = min(2 ** ceil(log2(max(rate / CHANNEL_GB_PER_S, 1))), MAX_CHANNELS)
        known = ways(problem.collective.name, topology.num_ranks, topology.num_nodes)
        nvls = _nvls_ways(problem) if protocol in ("", "simple") else ()
        for way in (*known, *nvls):
            on = _topology(topology, protocol, way.algorithm)
            node_us, network_us = (_hop_us(on, between=between) for between in (False, True))
            if way.algorithm == "nvls":
                node_us = max(float(e.alpha_us) for e in on.links if _is_wide(e))
            latency = float(on.launch_us) + way.node_hops * node_us + way.network_hops * network_us
            shared = way.network_volume * machine.ranks_per_nic
            loads = ((way.node_volume, machine.node_gb_per_s), (shared, machine.network_gb_per_s))
            us_per_kb = max(volume / rate for volume, rate in loads if volume)
            time_us = latency + size * us_per_kb / 1000
            found.append(Considered(way.algorithm, protocol, channels, latency, 1 / us_per_kb, time_us))
    return tuple(sorted(found, key=lambda each: each.time_us))


@checked
def nccl(problem: Problem, *, cut: bool = True) -> Schedule:
    """A schedule such as NCCL would choose, on the topology under the protocol that it would take.

    Its `producer` says which algorithm and protocol; `nccl_choices` has all that were considered.

    Parameters
    ----------
    problem : Problem
        What is to be done, under any protocol.
    cut : bool
        Whether chunks may be cut, for as long as that pays.

    Raises
    ------
    CollectiveError
        If NCCL has no such collective, the size is not known, or nodes differ in size.

    References
    ----------
    The NVIDIA Collective Communications Library, version 2.30: its tuning tables, and the model in which it
    uses them. Where a switch reduces: NVLS.
    """
    best = nccl_choices(problem)[0]
    on = _topology(problem.topology, best.protocol, best.algorithm)
    schedule = _SCHEDULES[best.algorithm](replace(problem, topology=on), cut=cut)
    return replace(
        schedule, producer=f"nccl ({best}: {format_us(best.time_us)} by its model): {schedule.producer}"
    )


def _check(problem: Problem) -> None:
    topology, name = problem.topology, problem.collective.name
    said = ""
    if name not in COLLECTIVES:
        said = f"has no {name}; it has {', '.join(COLLECTIVES[:-1])}"
    elif problem.size_bytes is None:
        said = "chooses by size, and the problem's is not known; give chunks a size"
    elif len({len(ranks) for ranks in topology.ranks_of_node}) > 1 or topology.num_ranks == 1:
        said = "chooses for nodes of equal size, and two ranks or more; take another baseline"
    if said:
        raise CollectiveError(f"nccl {said}", where="baseline")


def _is_wide(link: Link) -> bool:
    return len(link.srcs) + len(link.dsts) > 2


def _nvls_ways(problem: Problem) -> tuple[Way, ...]:
    """Sums in the switch, where one joins all ranks: every byte goes there once, and comes back once."""
    if problem.collective.name != "allreduce":
        return ()
    try:
        adding, _ = switch_links(problem, 0)
    except CollectiveError:
        return ()
    assert adding is not None, "several ranks contribute"
    beta = problem.topology.links[adding].beta_us_per_mb
    volume = float(beta) * machine_of(problem.topology).node_gb_per_s / 1000
    return (Way("nvls", 2, 0, volume, 0.0),)


def _hop_us(topology: Topology, *, between: bool) -> float:
    """The longest alpha of a link between two ranks in a node, or between nodes."""
    links = (
        e for i, e in enumerate(topology.links) if not _is_wide(e) and topology.is_internode(i) == between
    )
    return max((float(e.alpha_us) for e in links), default=0.0)


def _topology(topology: Topology, protocol: str, algorithm: str) -> Topology:
    """The topology under a protocol; for trees with hops, base and bandwidth as the tables have them."""
    if not protocol:
        return topology
    found = topology.under(protocol)
    if algorithm == "nvls":
        hop_us = Fraction(NVLS_US, 2)
        return replace(
            found, links=tuple(replace(e, alpha_us=hop_us) if _is_wide(e) else e for e in found.links)
        )
    row = next((each for each in PROTOCOLS if each.name == protocol), None)
    if algorithm != "tree" or row is None:
        return found
    costs = find_profile(topology.machine, topology.profile).protocols
    base_us = next(each.base_us.value for each in costs if each.name == protocol)
    slower = {
        False: Fraction(str(row.tree_hop_us)) / Fraction(str(row.ring_hop_us)),
        True: Fraction(str(row.tree_network_us)) / Fraction(str(row.ring_network_us)),
    }
    share = Fraction(str(TREE_SHARE))
    links = tuple(
        replace(
            link,
            alpha_us=link.alpha_us * slower[found.is_internode(index)],
            beta_us_per_mb=link.beta_us_per_mb / share,
        )
        for index, link in enumerate(found.links)
    )
    holds = tuple(
        replace(
            hold,
            alpha_us=min(hold.alpha_us, links[hold.link].alpha_us),
            beta_us_per_mb=hold.beta_us_per_mb / share,
        )
        for hold in found.holds
    )
    longer = Fraction(str(row.tree_base_us)) / Fraction(str(row.ring_base_us)) - 1
    return replace(found, links=links, holds=holds, launch_us=found.launch_us + base_us * longer)
