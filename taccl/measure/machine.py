"""What a machine model promises: ranks of a node and of a NIC, and bandwidths, read off its links."""

from __future__ import annotations

from dataclasses import dataclass

from taccl.errors import InputError

__all__ = ["Machine", "find_machine"]


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine model as a fit needs it; GB/s are those of data sheets, one way.

    Parameters
    ----------
    node_gb_per_s : float
        What a rank can send inside its node, over all of its links.
    network_gb_per_s : float
        What a NIC can send.
    """

    name: str
    ranks_per_node: int
    ranks_per_nic: int
    node_gb_per_s: float
    network_gb_per_s: float


def find_machine(name: str) -> Machine:
    """The facts of a machine model; `InputError` names the known ones."""
    from taccl.topology.registry import machine_names, parse

    machine = parse(name).machine
    if machine not in machine_names():
        said = f"found {name!r}; expected a machine model ({', '.join(machine_names())})"
        raise InputError(said, where="topology")
    topology = parse(machine, nodes=2, profile="nominal")
    ours = [index for index, link in enumerate(topology.links) if link.src == 0]
    inside = [index for index in ours if not topology.is_internode(index)]
    across = [index for index in ours if topology.is_internode(index)]
    holds: dict[int, dict[int, float]] = {}
    users: dict[int, set[int]] = {}
    for hold in topology.holds:
        users.setdefault(hold.resource, set()).add(topology.links[hold.link].src)
        if hold.side == "send" and topology.links[hold.link].src == 0:
            holds.setdefault(hold.resource, {})[hold.link] = float(hold.beta_us_per_mb)
    rate = float(sum(1000 / topology.links[each].beta_us_per_mb for each in inside))
    shared = [max(betas.values()) for betas in holds.values() if set(inside) <= set(betas)]
    nics = [each for each, betas in holds.items() if set(across) & set(betas)]
    return Machine(
        machine,
        topology.num_ranks // 2,
        max(len(users[each]) for each in nics),
        min([rate, *(1000 / beta for beta in shared if beta)]),
        min(float(1000 / topology.links[each].beta_us_per_mb) for each in across),
    )
