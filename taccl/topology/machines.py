"""Machine models of servers and racks, any number of nodes.

What all of them share:

- Within a node, ranks are joined pair by pair, by NVLink (NDv2, DGX-1) or xGMI (MI300X, MI355X), or by
  NVSwitch, where every rank has one port out and one port in, each held by one send at a time.
- Between nodes there is one link for every pair of ranks that may talk, with the alpha and the beta of the
  network. A send over it holds the egress of the source's NIC and the ingress of the destination's NIC,
  which ranks of that NIC share. Egress and ingress are separate. The network between NICs never blocks.
- A NIC is held for ``bytes * beta`` only (``nic_alpha_us`` is 0): alpha is time on the way, during which the
  NIC serves another rank's message. The link itself is held for alpha too, unless alpha pipelines.

Constants come from `taccl.topology.profiles`, and ``constants=`` replaces any of them.
"""

from __future__ import annotations

from itertools import combinations, permutations
from typing import TYPE_CHECKING, NamedTuple

from taccl.arguments import checked_as
from taccl.errors import TopologyError
from taccl.topology.parts import add_crossbar, add_internode, check_num_links
from taccl.topology.profiles import find_profile
from taccl.topology.topology import AlphaMeaning, Topology, TopologyBuilder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taccl.arguments import Count, Number
    from taccl.topology.profiles import Profile

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
    """What a node is made of; `pairs` has the links that join two ranks, or nothing behind NVSwitch."""

    ranks_per_node: int
    ranks_per_nic: int
    pairs: Mapping[tuple[int, int], int] = {}
    joint: str = "NVLink"
    network: str = "InfiniBand"


#: The hybrid cube mesh of NDv2 is in the numbering of TACCL's published topology; that of DGX-1 in the
#: numbering of `nvidia-smi topo -m`.
SHAPES = {
    "ndv2": Shape(8, 8, {pair: count for count, pairs in _NDV2.items() for pair in pairs}),
    "dgx1": Shape(8, 2, {pair: count for count, pairs in _DGX1.items() for pair in pairs}),
    "dgx2": Shape(16, 2),
    "dgx-a100": Shape(8, 1),
    "dgx-h100": Shape(8, 1),
    "h200": Shape(8, 1),
    "b200": Shape(8, 1),
    "gb200-nvl72": Shape(72, 1),
    "mi300x": Shape(8, 1, _FULL_MESH, "xGMI", "Ethernet"),
    "mi355x": Shape(8, 1, _FULL_MESH, "xGMI", "Ethernet"),
}


@checked_as(TopologyError)
def ndv2(
    nodes: Count = 1,
    *,
    profile: str = "taccl",
    alpha_meaning: AlphaMeaning = "occupies",
    constants: Mapping[str, Number] | None = None,
) -> Topology:
    """Azure NDv2: 8 V100 a node in a hybrid cube mesh, and one NIC that all 8 ranks share.

    Parameters
    ----------
    nodes : int
        Number of nodes.
    profile : {"taccl", "nominal"}
        Which constants; `taccl.topology.profiles` names their sources.
    alpha_meaning : {"occupies", "pipelined"}
        Whether a link stays busy during its alpha.
    constants : mapping of str to number, optional
        Constants of the profile to replace, by name.

    Raises
    ------
    TopologyError
        If `nodes` is not a positive whole number, or the profile or a constant is unknown.

    Notes
    -----
    The NIC hangs off the PCIe switch of two of the ranks, which is why sketches for NDv2 send off the node
    from one rank and receive on the other. No published rate of that switch is known to us, so the model
    has no resource for it: any pair of ranks may talk across nodes at the NIC's rate.
    """
    return _build("ndv2", nodes, profile, alpha_meaning, constants)


@checked_as(TopologyError)
def dgx1(
    nodes: Count = 1,
    *,
    profile: str = "taccl",
    alpha_meaning: AlphaMeaning = "occupies",
    constants: Mapping[str, Number] | None = None,
) -> Topology:
    """DGX-1: 8 V100 a node in a hybrid cube mesh, and four NICs, one for each pair of ranks.

    Parameters
    ----------
    nodes, profile, alpha_meaning, constants
        As in `ndv2`; errors are its, too.
    """
    return _build("dgx1", nodes, profile, alpha_meaning, constants)


@checked_as(TopologyError)
def dgx2(
    nodes: Count = 1,
    *,
    profile: str = "taccl",
    alpha_meaning: AlphaMeaning = "occupies",
    constants: Mapping[str, Number] | None = None,
) -> Topology:
    """DGX-2: 16 V100 a node behind NVSwitch, and eight NICs, one for each pair of ranks.

    Parameters
    ----------
    nodes, profile, alpha_meaning, constants
        As in `ndv2`; errors are its, too.
    """
    return _build("dgx2", nodes, profile, alpha_meaning, constants)


@checked_as(TopologyError)
def dgx_a100(
    nodes: Count = 1,
    *,
    profile: str = "nominal",
    rails: bool = True,
    alpha_meaning: AlphaMeaning = "occupies",
    constants: Mapping[str, Number] | None = None,
) -> Topology:
    """DGX-A100: 8 A100 a node behind NVSwitch, and eight NICs, one for each rank.

    Parameters
    ----------
    nodes, profile, alpha_meaning, constants
        As in `ndv2`, with the one profile ``"nominal"``; errors are its, too.
    rails : bool
        With rails, a rank talks across nodes to the ranks of its own local rank only, as clusters are
        cabled; without, to every rank of every other node.
    """
    return _build("dgx-a100", nodes, profile, alpha_meaning, constants, rails=rails)


@checked_as(TopologyError)
def dgx_h100(
    nodes: Count = 1,
    *,
    profile: str = "nominal",
    rails: bool = True,
    alpha_meaning: AlphaMeaning = "occupies",
    constants: Mapping[str, Number] | None = None,
) -> Topology:
    """DGX-H100: 8 H100 a node behind NVSwitch, and eight NICs, one for each rank.

    Parameters
    ----------
    nodes, profile, rails, alpha_meaning, constants
        As in `dgx_a100`; errors are those of `ndv2`.
    """
    return _build("dgx-h100", nodes, profile, alpha_meaning, constants, rails=rails)


@checked_as(TopologyError)
def h200(
    nodes: Count = 1,
    *,
    profile: str = "nominal",
    rails: bool = True,
    alpha_meaning: AlphaMeaning = "occupies",
    constants: Mapping[str, Number] | None = None,
) -> Topology:
    """H200 server (DGX H200, HGX H200): 8 H200 a node behind NVSwitch, and eight NICs, one for each rank.

    Parameters
    ----------
    nodes, profile, rails, alpha_meaning, constants
        As in `dgx_a100`; errors are those of `ndv2`.
    """
    return _build("h200", nodes, profile, alpha_meaning, constants, rails=rails)


@checked_as(TopologyError)
def b200(
    nodes: Count = 1,
    *,
    profile: str = "nominal",
    rails: bool = True,
    alpha_meaning: AlphaMeaning = "occupies",
    constants: Mapping[str, Number] | None = None,
) -> Topology:
    """B200 server (DGX B200, HGX B200): 8 B200 a node behind NVSwitch, and eight NICs, one for each rank.

    Parameters
    ----------
    nodes, profile, rails, alpha_meaning, constants
        As in `dgx_a100`; errors are those of `ndv2`.
    """
    return _build("b200", nodes, profile, alpha_meaning, constants, rails=rails)


@checked_as(TopologyError)
def gb200_nvl72(
    nodes: Count = 1,
    *,
    profile: str = "nominal",
    rails: bool = True,
    alpha_meaning: AlphaMeaning = "occupies",
    constants: Mapping[str, Number] | None = None,
) -> Topology:
    """GB200 NVL72: racks of 72 GPUs behind NVSwitch, joined by a network, with a NIC for each rank.

    Its nodes are racks.

    Parameters
    ----------
    nodes, profile, rails, alpha_meaning, constants
        As in `dgx_a100`; errors are those of `ndv2`.
    """
    return _build("gb200-nvl72", nodes, profile, alpha_meaning, constants, rails=rails)


@checked_as(TopologyError)
def mi300x(
    nodes: Count = 1,
    *,
    profile: str = "nominal",
    rails: bool = True,
    alpha_meaning: AlphaMeaning = "occupies",
    constants: Mapping[str, Number] | None = None,
) -> Topology:
    """MI300X server: 8 MI300X a node, each joined to each by xGMI, and eight NICs, one for each rank.

    Parameters
    ----------
    nodes, profile, rails, alpha_meaning, constants
        As in `dgx_a100`; errors are those of `ndv2`.
    """
    return _build("mi300x", nodes, profile, alpha_meaning, constants, rails=rails)


@checked_as(TopologyError)
def mi355x(
    nodes: Count = 1,
    *,
    profile: str = "nominal",
    rails: bool = True,
    alpha_meaning: AlphaMeaning = "occupies",
    constants: Mapping[str, Number] | None = None,
) -> Topology:
    """MI355X server: 8 MI355X a node, each joined to each by xGMI, and eight NICs, one for each rank.

    Parameters
    ----------
    nodes, profile, rails, alpha_meaning, constants
        As in `dgx_a100`; errors are those of `ndv2`.
    """
    return _build("mi355x", nodes, profile, alpha_meaning, constants, rails=rails)


def _profile(machine: str, profile: str) -> Profile:
    """The profile of a machine by name, or from a file."""
    if not profile.lower().endswith((".toml", ".json")):
        return find_profile(machine, profile)
    from taccl.topology.profile_files import load_profile

    return load_profile(profile, machine)


def _build(
    machine: str,
    nodes: int,
    profile: str,
    alpha_meaning: AlphaMeaning,
    constants: Mapping[str, Number] | None,
    *,
    rails: bool = False,
) -> Topology:
    """The nodes of a machine, each by itself, and then what joins them."""
    shape, values = SHAPES[machine], _profile(machine, profile).replaced(constants or {})
    size = shape.ranks_per_node
    joined = [(i, j) for i in range(size) for j in range(size) if i == j or not rails]
    check_num_links(nodes * size**2 + nodes * (nodes - 1) * len(joined), where=f"{machine}: nodes")
    builder = TopologyBuilder(
        f"{machine} x{nodes}",
        [node for node in range(nodes) for _ in range(size)],
        alpha_meaning=alpha_meaning,
        profile=values.name,
        machine=machine,
    )
    for node in range(nodes):
        if not shape.pairs:
            add_crossbar(
                builder,
                range(node * size, (node + 1) * size),
                name=f"NVSwitch of node {node}",
                alpha_us=values["nvswitch_alpha_us"],
                beta_us_per_mb=values["nvswitch_beta_us_per_mb"],
                link_name="NVSwitch",
            )
        kind = shape.joint.lower()
        for (a, b), count in sorted(shape.pairs.items()):
            beta = values[f"{kind}_double_beta_us_per_mb" if count > 1 else f"{kind}_beta_us_per_mb"]
            for src, dst in ((a, b), (b, a)):
                builder.add_link(
                    node * size + src,
                    node * size + dst,
                    alpha_us=values[f"{kind}_alpha_us"],
                    beta_us_per_mb=beta,
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
            link_name=shape.network,
        )
    topology = builder.build()
    topology.memo["constants"] = values.constants
    return topology
