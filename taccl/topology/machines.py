"""Machine models of servers and racks, any number of nodes.

What all of them share:

- Within a node, ranks are joined pair by pair, by NVLink (NDv2, DGX-1) or xGMI (MI300X, MI355X), or by
  NVSwitch or PCIe, where every rank has one port out and one port in, each held by one send at a time. Links
  between the switches of PCIe are taken to be as fast as their ports.
- Between nodes there is one link for every pair of ranks that may talk, with the alpha and the beta of the
  network. A send over it holds the egress of the source's NIC and the ingress of the destination's NIC,
  which ranks of that NIC share. Egress and ingress are separate. The network between NICs never blocks.
- A port is held for ``overhead + bytes * beta`` (in LogGP's terms, o and G), and a NIC for ``nic_alpha_us +
  bytes * beta``: the rest of alpha is time on the way, during which they serve other messages. So is a link
  itself, but in the published profile `taccl`, where links and ports are held for all of alpha.

Constants come from `taccl.topology.profiles`, and ``constants=`` replaces any of them.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple, Protocol

from taccl._internal.arguments import checked_as
from taccl.errors import TopologyError
from taccl.topology.builder import TopologyBuilder
from taccl.topology.in_network import PROFILES as SWITCHES
from taccl.topology.networks import INSTANCES
from taccl.topology.parts import LinkCost, Network, add_nodes, check_num_links
from taccl.topology.profiles import PCIE, PROFILES, find_profile
from taccl.topology.topology import AlphaMeaning, Topology

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taccl._internal.arguments import Count, Number

_NDV2 = {
    2: ((0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7)),
    1: ((0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6)),
}
_DGX1 = {
    2: ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)),
    1: ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)),
}


_FULL_MESH = dict.fromkeys(combinations(range(8), 2), 1)


class NodeShape(NamedTuple):
    """Links of a node; `pairs` has the links that join two ranks, or is empty behind NVSwitch.

    `nvls` is the profile of an NVSwitch that adds, if it can.
    """

    ranks_per_node: int
    ranks_per_nic: int
    pairs: Mapping[tuple[int, int], int] = {}
    joint: str = "NVSwitch"
    network: str = "InfiniBand"
    nvls: str = ""

    @property
    def has_rails(self) -> bool:
        """True if each rank has a NIC."""
        return self.ranks_per_nic == 1


#: The hybrid cube mesh of NDv2 is in the numbering of TACCL's published topology; that of DGX-1 in the
#: numbering of `nvidia-smi topo -m`.
SHAPES = {
    "ndv2": NodeShape(8, 8, {pair: count for count, pairs in _NDV2.items() for pair in pairs}, "NVLink"),
    "dgx1": NodeShape(8, 2, {pair: count for count, pairs in _DGX1.items() for pair in pairs}, "NVLink"),
    "dgx2": NodeShape(16, 2),
    "dgx-a100": NodeShape(8, 1),
    "dgx-h100": NodeShape(8, 1, nvls="nvls-hopper"),
    "h200": NodeShape(8, 1, nvls="nvls-hopper"),
    "b200": NodeShape(8, 1, nvls="nvls-blackwell"),
    "gb200-nvl72": NodeShape(72, 1, nvls="nvls-blackwell"),
    "mi300x": NodeShape(8, 1, _FULL_MESH, "xGMI", "Ethernet"),
    "mi355x": NodeShape(8, 1, _FULL_MESH, "xGMI", "Ethernet"),
    "t4": NodeShape(4, 4, joint="PCIe", network="Ethernet"),
    **{name: NodeShape(8, 8, joint="PCIe", network="Ethernet") for name in PCIE if name != "t4"},
}
SHAPES |= {
    name: SHAPES[each.machine]._replace(ranks_per_nic=each.ranks_per_nic) for name, each in INSTANCES.items()
}


class _Make(Protocol):
    """Signature of functions that make machines."""

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
        Which constants: {profiles}, or a file that ``taccl fit`` wrote. `taccl.topology.profiles` names
        their sources.
    protocol : str, optional
        By which messages are sent, of those that the profile has; default ``"simple"``.
    rails : bool, optional
        With rails, a rank talks across nodes to the ranks of its own local rank only, as clusters are
        cabled; without, to every rank of every other node. By default where each rank has a NIC.
    nvls : bool
        Whether NVSwitch adds and multicasts (NVLink SHARP), by links of several ends, if it can.
    alpha_meaning : {{"occupies", "pipelined"}}
        Whether a link stays busy during its alpha (during its overhead, where the profile has one).
    constants : mapping of str to number, optional
        Constants of the profile to replace, by name.

    Raises
    ------
    TopologyError
        If `nodes` is not a positive whole number, the machine has no rails or no switch that adds, or
        profile, protocol or a constant is unknown.{notes}
    """
_NDV2_NOTES = """

    Notes
    -----
    The NIC hangs off the PCIe switch of two of the ranks, which is why sketches for NDv2 send off the node
    from one rank and receive on the other. No published rate of that switch is known to us, so the model
    has no resource for it: any pair of ranks may talk across nodes at the NIC's rate."""


def _machine(machine: str, what: str, notes: str = "") -> _Make:
    """The function of a machine under its own name, with its documentation."""

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
            said = f"found True, and {machine} has none; leave it out, or take {', '.join(able)}"
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
        return topology

    make.__name__ = make.__qualname__ = machine.replace("-", "_").replace(".", "_")
    profiles = ", ".join(f'``"{each.name}"``' for each in PROFILES[machine])
    make.__doc__ = _DOC.format(what=what, profiles=profiles, notes=notes)
    return checked_as(TopologyError)(make)


_RAILED = ", and a NIC for each rank."
ndv2 = _machine(
    "ndv2",
    "Azure NDv2: 8 V100 a node in a hybrid cube mesh, and one NIC that all 8 ranks share.",
    _NDV2_NOTES,
)
dgx1 = _machine(
    "dgx1", "DGX-1: 8 V100 a node in a hybrid cube mesh, and four NICs, one for each pair of ranks."
)
dgx2 = _machine("dgx2", "DGX-2: 16 V100 a node behind NVSwitch, and eight NICs, one for each pair of ranks.")
dgx_a100 = _machine("dgx-a100", f"DGX-A100: 8 A100 a node behind NVSwitch{_RAILED}")
dgx_h100 = _machine("dgx-h100", f"DGX-H100: 8 H100 a node behind NVSwitch{_RAILED}")
h200 = _machine("h200", f"H200 server (DGX H200, HGX H200): 8 H200 a node behind NVSwitch{_RAILED}")
b200 = _machine("b200", f"B200 server (DGX B200, HGX B200): 8 B200 a node behind NVSwitch{_RAILED}")
gb200_nvl72 = _machine("gb200-nvl72", f"GB200 NVL72: nodes are racks of 72 GPUs behind NVSwitch{_RAILED}")
mi300x = _machine("mi300x", f"MI300X server: 8 MI300X a node, each joined to each by xGMI{_RAILED}")
mi355x = _machine("mi355x", f"MI355X server: 8 MI355X a node, each joined to each by xGMI{_RAILED}")
_PCIE_NODE = "a node, each on PCIe, and one NIC of 100 Gb/s that all share."
v100_pcie = _machine("v100-pcie", f"Server of 8 V100 with PCIe boards {_PCIE_NODE}")
a100_pcie = _machine("a100-pcie", f"Server of 8 A100 with PCIe boards {_PCIE_NODE}")
h100_pcie = _machine("h100-pcie", f"Server of 8 H100 with PCIe boards {_PCIE_NODE}")
l40s = _machine("l40s", f"Server of 8 L40S, or of other boards on PCIe 4.0 {_PCIE_NODE}")
t4 = _machine("t4", "Server of 4 T4 a node, each on PCIe, and one NIC of 50 Gb/s that all share.")
INSTANCE_TYPES = {
    name: _machine(name, f"{name}: a node as `{each.machine}`, with NICs of its own: {each.source}.")
    for name, each in INSTANCES.items()
}
"""Functions of the instance types of clouds, by name."""
