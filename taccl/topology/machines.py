"""Machine models of servers and racks, any number of nodes.

What all of them share:

- Within a node, ranks are joined pair by pair, by NVLink (NDv2, DGX-1) or xGMI (MI300X, MI355X), or by
  NVSwitch, where every rank has one port out and one port in, each held by one send at a time.
- Between nodes there is one link for every pair of ranks that may talk, with the alpha and the beta of the
  network. A send over it holds the egress of the source's NIC and the ingress of the destination's NIC,
  which ranks of that NIC share. Egress and ingress are separate. The network between NICs never blocks.
- A port is held for ``overhead + bytes * beta`` (in LogGP's terms, o and G), and a NIC for ``nic_alpha_us +
  bytes * beta``: the rest of alpha is time on the way, during which they serve other messages. So is a link
  itself, but in the published profile `taccl`, where links and ports are held for all of alpha.

Constants come from `taccl.topology.profiles`, and ``constants=`` replaces any of them.
"""

from __future__ import annotations

from itertools import combinations, permutations
from typing import TYPE_CHECKING, NamedTuple, Protocol

from taccl.arguments import checked_as
from taccl.errors import TopologyError
from taccl.topology.in_network import PROFILES as SWITCHES
from taccl.topology.parts import add_crossbar, add_internode, check_num_links
from taccl.topology.profiles import PROFILES, find_profile
from taccl.topology.topology import AlphaMeaning, Topology, TopologyBuilder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from taccl.arguments import Count, Number

__all__ = [
    "SHAPES", "Shape", "b200", "dgx1", "dgx2", "dgx_a100", "dgx_h100", "gb200_nvl72", "h200", "mi300x",
    "mi355x", "ndv2",
]  # fmt: skip

_NDV2 = {
    2: ((0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7)),
    1: ((0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6)),
}
_DGX1 = {
    2: ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)),
    1: ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)),
}


_FULL_MESH = dict.fromkeys(combinations(range(8), 2), 1)


class Shape(NamedTuple):
    """What a node is made of; `pairs` has the links that join two ranks, or nothing behind NVSwitch.

    `nvls` is the profile of an NVSwitch that adds, if it can.
    """

    ranks_per_node: int
    ranks_per_nic: int
    pairs: Mapping[tuple[int, int], int] = {}
    joint: str = "NVSwitch"
    network: str = "InfiniBand"
    nvls: str = ""


#: The hybrid cube mesh of NDv2 is in the numbering of TACCL's published topology; that of DGX-1 in the
#: numbering of `nvidia-smi topo -m`.
SHAPES = {
    "ndv2": Shape(8, 8, {pair: count for count, pairs in _NDV2.items() for pair in pairs}, "NVLink"),
    "dgx1": Shape(8, 2, {pair: count for count, pairs in _DGX1.items() for pair in pairs}, "NVLink"),
    "dgx2": Shape(16, 2),
    "dgx-a100": Shape(8, 1),
    "dgx-h100": Shape(8, 1, nvls="nvls-hopper"),
    "h200": Shape(8, 1, nvls="nvls-hopper"),
    "b200": Shape(8, 1, nvls="nvls-blackwell"),
    "gb200-nvl72": Shape(72, 1, nvls="nvls-blackwell"),
    "mi300x": Shape(8, 1, _FULL_MESH, "xGMI", "Ethernet"),
    "mi355x": Shape(8, 1, _FULL_MESH, "xGMI", "Ethernet"),
}


class _Make(Protocol):
    """How every machine is made."""

    def __call__(
        self, nodes: Count = 1, *, profile: str = ..., protocol: str | None = None,
        alpha_meaning: AlphaMeaning = "occupies", constants: Mapping[str, Number] | None = None,
    ) -> Topology: ...  # fmt: skip


class _MakeRailed(Protocol):
    """The same of machines with a NIC for each rank."""

    def __call__(
        self, nodes: Count = 1, *, profile: str = ..., protocol: str | None = None, rails: bool = True,
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
        By which messages are sent, of those that the profile has; default ``"simple"``.{rails}
    alpha_meaning : {{"occupies", "pipelined"}}
        Whether a link stays busy during its alpha (during its overhead, where the profile has one).
    constants : mapping of str to number, optional
        Constants of the profile to replace, by name.

    Raises
    ------
    TopologyError
        If `nodes` is not a positive whole number, or profile, protocol or a constant is unknown.{notes}
    """
_RAILS = """
    rails : bool
        With rails, a rank talks across nodes to the ranks of its own local rank only, as clusters are
        cabled; without, to every rank of every other node.
    nvls : bool
        Whether NVSwitch adds and multicasts (NVLink SHARP), by links of several ends; Hopper's and
        Blackwell's can."""
_NDV2_NOTES = """

    Notes
    -----
    The NIC hangs off the PCIe switch of two of the ranks, which is why sketches for NDv2 send off the node
    from one rank and receive on the other. No published rate of that switch is known to us, so the model
    has no resource for it: any pair of ranks may talk across nodes at the NIC's rate."""


def _named(
    make: Callable[..., Topology], machine: str, what: str, notes: str = ""
) -> Callable[..., Topology]:
    """The function of a machine under its own name, with its documentation."""
    make.__name__ = make.__qualname__ = machine.replace("-", "_")
    profiles = ", ".join(f'``"{each.name}"``' for each in PROFILES[machine])
    rails = _RAILS if "rails" in (make.__kwdefaults__ or {}) else ""
    make.__doc__ = _DOC.format(what=what, profiles=profiles, rails=rails, notes=notes)
    return checked_as(TopologyError)(make)


def _machine(machine: str, what: str, notes: str = "") -> _Make:
    def make(
        nodes: Count = 1, *, profile: str = PROFILES[machine][0].name, protocol: str | None = None,
        alpha_meaning: AlphaMeaning = "occupies", constants: Mapping[str, Number] | None = None,
    ) -> Topology:  # fmt: skip
        return _build(machine, nodes, profile, protocol, alpha_meaning, constants)

    return _named(make, machine, what, notes)


def _railed(machine: str, what: str) -> _MakeRailed:
    what += ", and a NIC for each rank."

    def make(
        nodes: Count = 1, *, profile: str = PROFILES[machine][0].name, protocol: str | None = None,
        rails: bool = True, nvls: bool = False, alpha_meaning: AlphaMeaning = "occupies",
        constants: Mapping[str, Number] | None = None,
    ) -> Topology:  # fmt: skip
        return _build(machine, nodes, profile, protocol, alpha_meaning, constants, rails=rails, nvls=nvls)

    return _named(make, machine, what)


ndv2 = _machine(
    "ndv2",
    "Azure NDv2: 8 V100 a node in a hybrid cube mesh, and one NIC that all 8 ranks share.",
    _NDV2_NOTES,
)
dgx1 = _machine(
    "dgx1", "DGX-1: 8 V100 a node in a hybrid cube mesh, and four NICs, one for each pair of ranks."
)
dgx2 = _machine("dgx2", "DGX-2: 16 V100 a node behind NVSwitch, and eight NICs, one for each pair of ranks.")
dgx_a100 = _railed("dgx-a100", "DGX-A100: 8 A100 a node behind NVSwitch")
dgx_h100 = _railed("dgx-h100", "DGX-H100: 8 H100 a node behind NVSwitch")
h200 = _railed("h200", "H200 server (DGX H200, HGX H200): 8 H200 a node behind NVSwitch")
b200 = _railed("b200", "B200 server (DGX B200, HGX B200): 8 B200 a node behind NVSwitch")
gb200_nvl72 = _railed("gb200-nvl72", "GB200 NVL72: nodes are racks of 72 GPUs behind NVSwitch")
mi300x = _railed("mi300x", "MI300X server: 8 MI300X a node, each joined to each by xGMI")
mi355x = _railed("mi355x", "MI355X server: 8 MI355X a node, each joined to each by xGMI")


def _build(
    machine: str,
    nodes: int,
    profile: str,
    protocol: str | None,
    alpha_meaning: AlphaMeaning,
    constants: Mapping[str, Number] | None,
    *,
    rails: bool = False,
    nvls: bool = False,
) -> Topology:
    """The nodes of a machine, each by itself, and then what joins them."""
    shape, kind = SHAPES[machine], SHAPES[machine].joint.lower()
    if nvls and not shape.nvls:
        raise TopologyError(f"{machine} takes no 'nvls': nothing in it adds; leave it out", where="nvls")
    values = find_profile(machine, profile).under(protocol).replaced(constants or {})
    overhead = values.overhead_us(between=False)
    size = shape.ranks_per_node
    joined = [(i, j) for i in range(size) for j in range(size) if i == j or not rails]
    check_num_links(nodes * size**2 + nodes * (nodes - 1) * len(joined), where=f"{machine}: nodes")
    builder = TopologyBuilder(
        f"{machine} x{nodes}",
        [node for node in range(nodes) for _ in range(size)],
        alpha_meaning=alpha_meaning,
        profile=values.name,
        machine=machine,
        protocol=values.protocol,
        launch_us=values.launch_us,
    )
    for node in range(nodes):
        if not shape.pairs:
            add_crossbar(
                builder,
                range(node * size, (node + 1) * size),
                name=f"{shape.joint} of node {node}",
                alpha_us=values[f"{kind}_alpha_us"],
                beta_us_per_mb=values[f"{kind}_beta_us_per_mb"],
                overhead_us=overhead,
                link_name=shape.joint,
                reduces=SWITCHES[shape.nvls] if nvls else None,
            )
        for (a, b), count in sorted(shape.pairs.items()):
            beta = values[f"{kind}_double_beta_us_per_mb" if count > 1 else f"{kind}_beta_us_per_mb"]
            for src, dst in ((a, b), (b, a)):
                builder.add_link(
                    node * size + src,
                    node * size + dst,
                    alpha_us=values[f"{kind}_alpha_us"],
                    beta_us_per_mb=beta,
                    overhead_us=overhead,
                    name=f"{shape.joint} x2" if count > 1 else shape.joint,
                )
    if nodes > 1:
        add_internode(
            builder,
            [(a * size + i, b * size + j) for a, b in permutations(range(nodes), 2) for i, j in joined],
            nic_of_rank={
                node * size + i: f"NIC {i // shape.ranks_per_nic} of node {node}"
                for node in range(nodes)
                for i in range(size)
            },
            alpha_us=values["internode_alpha_us"],
            beta_us_per_mb=values["internode_beta_us_per_mb"],
            nic_alpha_us=values["nic_alpha_us"],
            overhead_us=values.overhead_us(between=True),
            link_name=shape.network,
        )
    topology = builder.build()
    topology.memo["profile"] = values
    return topology
