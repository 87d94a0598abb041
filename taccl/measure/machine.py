"""Figures of a machine model: ranks per node and per NIC, and bandwidths of its links."""

from __future__ import annotations

from typing import NamedTuple

from taccl._internal.names import did_you_mean, shown
from taccl.errors import InputError
from taccl.topology.topology import Topology


class Machine(NamedTuple):
    """Figures of a machine model for a fit; rates in GB/s from data sheets, per direction.

    - `node_gb_per_s`: Rate at which a rank can send inside its node, over all of its links.
    - `network_gb_per_s`: Rate at which a NIC can send; 0 for a single node.
    """

    name: str
    ranks_per_node: int
    ranks_per_nic: int
    node_gb_per_s: float
    network_gb_per_s: float


def find_machine(name: str) -> Machine:
    """Figures of a machine model by name; raises `InputError` with the known names."""
    from taccl.topology.registry import machine_names, parse

    known = machine_names()
    try:
        machine = parse(name).machine
    except InputError:
        machine = ""
    if machine not in known:
        said = f"found {shown(repr(name), 200)}; expected a machine model, by name: {', '.join(known)}"
        raise InputError(f"{said}{did_you_mean(name, known)}", where="topology")
    return machine_of(parse(machine, nodes=2, profile="nominal"))


def machine_of(topology: Topology) -> Machine:
    """Figures of any topology, as seen from rank 0; all nodes are assumed alike."""
    ours = topology.links_from[0]
    inside = [e for e in ours if not topology.is_internode(e) and len(topology.links[e].dsts) == 1]
    across = [e for e in ours if topology.is_internode(e)]
    holds: dict[int, dict[int, float]] = {}
    users: dict[int, set[int]] = {}
    for hold in topology.holds:
        users.setdefault(hold.resource, set()).add(topology.links[hold.link].src)
        if hold.side == "send" and topology.links[hold.link].src == 0:
            holds.setdefault(hold.resource, {})[hold.link] = float(hold.beta_us_per_mb)

    def rate(links: list[int]) -> float:
        """Joint rate of links in GB/s, or the rate of the resource that they share."""
        total = float(sum(1000 / topology.links[each].beta_us_per_mb for each in links))
        shared = [max(betas.values()) for betas in holds.values() if set(links) <= set(betas)]
        return min([total, *(1000 / beta for beta in shared if beta)]) if links else 0.0

    nics = [len(users[each]) for each, betas in holds.items() if set(across) & set(betas)]
    per_node = len(topology.ranks_of_node[0])
    return Machine(topology.machine, per_node, max(nics, default=1), rate(inside), rate(across))
