"""Machine models of servers and racks, for any number of nodes.

Common model:

- Inside a node, ranks are joined either pairwise, by NVLink (NDv2, DGX-1) or xGMI (MI300X, MI355X), or by
  NVSwitch or PCIe. At these switches every rank has one port out and one port in, each held by one send at a
  time. Links between PCIe switches are assumed to be as fast as the ports.
- Between nodes, there is one link for every pair of ranks that may communicate, with the alpha and beta of
  the network. A send holds the egress of the source's NIC and the ingress of the destination's NIC, which
  ranks of one NIC share. Egress and ingress are independent. The network between NICs is non-blocking.
- A send holds a port for ``overhead + bytes * beta`` (o and G in LogGP). It holds a NIC for ``nic_alpha_us +
  bytes * beta``. The rest of alpha is latency, during which port and NIC serve other messages. The same is
  true of the link itself, except in the published profile `taccl`, where sends hold links and ports for all
  of alpha.

Constants come from `taccl.topology.profiles`; ``constants=`` replaces any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from taccl._internal.arguments import Count, Number, checked_as
from taccl.errors import TopologyError
from taccl.topology.builder import TopologyBuilder
from taccl.topology.in_network import PROFILES as SWITCHES
from taccl.topology.models import MODELS, Model
from taccl.topology.models import NodeShape as NodeShape
from taccl.topology.parts import LinkCost, Network, add_nodes, check_num_links
from taccl.topology.profiles import PROFILES, find_profile, profiles_of
from taccl.topology.topology import AlphaMeaning, Topology

#: {machine model or instance type: shape of its nodes}.
SHAPES: dict[str, NodeShape] = {name: each.shape for name, each in MODELS.items()}


class _Make(Protocol):
    """Signature of the functions that build machine topologies."""

    def __call__(
        self, nodes: Count = 1, *, profile: str = ..., protocol: str | None = None, rails: bool | None = None,
        nvls: bool = False, alpha_meaning: AlphaMeaning = "occupies",
        constants: Mapping[str, Number] | None = None,
    ) -> Topology: ...  # fmt: skip


_DOC = """{what}

    Parameters
    ----------
    nodes : int
        Number of nodes.
    profile : str
        Profile of constants: {profiles}, or a file written by ``taccl fit``. `taccl.topology.profiles` has
        their sources.
    protocol : str, optional
        Protocol of messages, one of the profile's; default ``"simple"``.
    rails : bool, optional
        True to join ranks of different nodes only if their local ranks are equal, as rail-optimised
        clusters are cabled; False to join all. Default: True if each rank has a NIC.
    nvls : bool
        True to add the multicast and reduction links of NVLink SHARP, if NVSwitch supports it.
    alpha_meaning : {{"occupies", "pipelined"}}
        Whether a link stays busy during its alpha (during its overhead, if the profile has one).
    constants : mapping of str to number, optional
        Constants of the profile to replace, by name.

    Raises
    ------
    TopologyError
        If `nodes` is not a positive whole number, rails or NVLink SHARP are not supported, or the profile,
        the protocol or a constant is unknown.{notes}
    """


def _machine(machine: str) -> _Make:
    """Make the function that builds the topology of a machine model; set its name and docstring."""
    model = MODELS[machine]

    def make(
        nodes: Count = 1, *, profile: str = PROFILES[machine][0].name, protocol: str | None = None,
        rails: bool | None = None, nvls: bool = False, alpha_meaning: AlphaMeaning = "occupies",
        constants: Mapping[str, Number] | None = None,
    ) -> Topology:  # fmt: skip
        shape, kind = SHAPES[machine], SHAPES[machine].joint.lower()
        rails = shape.has_rails if rails is None else rails
        if (rails and not shape.has_rails) or (nvls and not shape.nvls):
            name = "rails" if rails and not shape.has_rails else "nvls"
            able = [each for each, s in SHAPES.items() if (s.has_rails if name == "rails" else s.nvls)]
            said = f"found True, but {machine} has none; leave it out, or choose {', '.join(able)}"
            raise TopologyError(said, where=f"{machine}: {name}")
        values = find_profile(machine, profile).under(protocol).replaced(constants or {})
        size = shape.ranks_per_node
        check_num_links(nodes * size, where=f"{machine}: nodes")
        builder = TopologyBuilder(
            f"{machine} x{nodes}", [node for node in range(nodes) for _ in range(size)],
            alpha_meaning=alpha_meaning, profile=values.name, machine=machine, protocol=values.protocol,
            launch_us=values.launch_us,
        )  # fmt: skip
        alpha_us, overhead_us = values[f"{kind}_alpha_us"], values.overhead_us(between=False)
        costs = {1: LinkCost(alpha_us, values[f"{kind}_beta_us_per_mb"], overhead_us)}
        if 2 in shape.pairs.values():
            costs[2] = LinkCost(alpha_us, values[f"{kind}_double_beta_us_per_mb"], overhead_us)
        between = values["internode_alpha_us"], values["internode_beta_us_per_mb"]
        cost = LinkCost(*between, values.overhead_us(between=True))
        nics = {i: i // shape.ranks_per_nic for i in range(size)}
        add_nodes(
            builder, shape.pairs, costs, Network(cost, values["nic_alpha_us"], nics, rails, shape.network),
            switch=shape.joint, link_name=shape.joint, reduces=SWITCHES[shape.nvls] if nvls else None,
            where=f"{machine}: nodes",
        )  # fmt: skip
        topology = builder.build()
        topology.cache["profile"] = values
        usual = shape.has_rails, False, "occupies", None, None
        is_usual = (rails, nvls, alpha_meaning, protocol, constants or None) == usual
        # True if the machine, the number of nodes and the profile's name suffice to build an equal topology.
        topology.cache["is_usual"] = is_usual and profile in (each.name for each in PROFILES[machine])
        return topology

    make.__name__ = make.__qualname__ = machine.replace("-", "_").replace(".", "_")
    profiles = ", ".join(f'``"{each.name}"``' for each in PROFILES[machine])
    make.__doc__ = _DOC.format(what=model.what, profiles=profiles, notes=model.notes)
    return checked_as(TopologyError)(make)


def add_machine(name: str, model: Model) -> None:
    """Register a machine model at run time, like a row of `MODELS`.

    Parameters
    ----------
    name : str
        Name for `taccl.topologies.parse` and the command line.
    model : Model
        The machine model.
    """
    MODELS[name], SHAPES[name], PROFILES[name] = model, model.shape, profiles_of(name, model)
    MACHINES[name] = _machine(name)


#: {machine model or instance type: function that builds its topology}.
MACHINES: dict[str, _Make] = {name: _machine(name) for name in MODELS}
ndv2, dgx1, dgx2 = (MACHINES[name] for name in ("ndv2", "dgx1", "dgx2"))
dgx_a100, dgx_h100 = MACHINES["dgx-a100"], MACHINES["dgx-h100"]
a800, h800, gh200 = (MACHINES[name] for name in ("a800", "h800", "gh200"))
h200, b200, gb200_nvl72 = (MACHINES[name] for name in ("h200", "b200", "gb200-nvl72"))
mi300x, mi350x, mi355x = (MACHINES[name] for name in ("mi300x", "mi350x", "mi355x"))
t4, l40s = MACHINES["t4"], MACHINES["l40s"]
v100_pcie, a100_pcie, h100_pcie = (MACHINES[name] for name in ("v100-pcie", "a100-pcie", "h100-pcie"))
