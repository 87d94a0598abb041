"""Machine models: NDv2, DGX-1, DGX-2, DGX-A100 and DGX-H100, any number of nodes.

What all of them share:

- Within a node, ranks are joined by NVLink pair by pair (NDv2, DGX-1), or by NVSwitch, where every rank has
  one port out and one port in, each held by one send at a time.
- Between nodes there is one link for every pair of ranks that may talk, with the alpha and the beta of
  InfiniBand. A send over it holds the egress of the source's NIC and the ingress of the destination's NIC,
  which ranks of that NIC share. Egress and ingress are separate. The network between NICs never blocks.
- A NIC is held for ``bytes * beta`` only (``nic_alpha_us`` is 0): alpha is time on the way, during which the
  NIC serves another rank's message. The link itself is held for alpha too, unless alpha pipelines.

Constants come from `taccl.topology.profiles`, and ``constants=`` replaces any of them.
"""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

from taccl.arguments import checked_as
from taccl.errors import TopologyError
from taccl.topology.parts import add_crossbar, add_internode, check_num_links
from taccl.topology.profiles import PROFILES, Constant, Profile, find_profile
from taccl.topology.topology import AlphaMeaning, Topology, TopologyBuilder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taccl.arguments import Count, Number


__all__ = [
    "PROFILES", "Constant", "Profile", "dgx1", "dgx2", "dgx_a100", "dgx_h100", "find_profile", "ndv2",
]  # fmt: skip

# Hybrid cube mesh of NDv2, in the numbering of TACCL's published topology: pairs with two NVLinks, with one.
_NDV2_DOUBLE = ((0, 1), (0, 4), (1, 3), (2, 3), (2, 6), (4, 5), (5, 7), (6, 7))
_NDV2_SINGLE = ((0, 2), (0, 3), (1, 2), (1, 5), (3, 7), (4, 6), (4, 7), (5, 6))
# The same mesh in the numbering of `nvidia-smi topo -m` on a DGX-1 with V100: NV2 cells, NV1 cells.
_DGX1_DOUBLE = ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7))
_DGX1_SINGLE = ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7))


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
    return _hybrid_mesh(
        "ndv2", nodes, profile, alpha_meaning, constants,
        double=_NDV2_DOUBLE, single=_NDV2_SINGLE, ranks_per_nic=8,
    )  # fmt: skip


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
    return _hybrid_mesh(
        "dgx1", nodes, profile, alpha_meaning, constants,
        double=_DGX1_DOUBLE, single=_DGX1_SINGLE, ranks_per_nic=2,
    )  # fmt: skip


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
    return _switched(
        "dgx2", nodes, profile, alpha_meaning, constants, ranks_per_node=16, ranks_per_nic=2, rails=False
    )


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
    return _switched(
        "dgx-a100", nodes, profile, alpha_meaning, constants, ranks_per_node=8, ranks_per_nic=1, rails=rails
    )


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
    return _switched(
        "dgx-h100", nodes, profile, alpha_meaning, constants, ranks_per_node=8, ranks_per_nic=1, rails=rails
    )


def _hybrid_mesh(
    machine: str,
    nodes: int,
    profile: str,
    alpha_meaning: AlphaMeaning,
    constants: Mapping[str, Number] | None,
    *,
    double: Sequence[tuple[int, int]],
    single: Sequence[tuple[int, int]],
    ranks_per_nic: int,
) -> Topology:
    values = find_profile(machine, profile).replaced(constants or {})
    builder = _start(machine, nodes, values, alpha_meaning, ranks_per_node=8, rails=False)
    for first in range(0, 8 * nodes, 8):
        for a, b in sorted((*double, *single)):
            is_double = (a, b) in double
            beta = values["nvlink_double_beta_us_per_mb" if is_double else "nvlink_beta_us_per_mb"]
            for src, dst in ((a, b), (b, a)):
                builder.add_link(
                    first + src,
                    first + dst,
                    alpha_us=values["nvlink_alpha_us"],
                    beta_us_per_mb=beta,
                    name="NVLink x2" if is_double else "NVLink",
                )
    _join_nodes(builder, nodes, values, ranks_per_node=8, ranks_per_nic=ranks_per_nic, rails=False)
    return builder.build()


def _switched(
    machine: str,
    nodes: int,
    profile: str,
    alpha_meaning: AlphaMeaning,
    constants: Mapping[str, Number] | None,
    *,
    ranks_per_node: int,
    ranks_per_nic: int,
    rails: bool,
) -> Topology:
    values = find_profile(machine, profile).replaced(constants or {})
    builder = _start(machine, nodes, values, alpha_meaning, ranks_per_node=ranks_per_node, rails=rails)
    for node in range(nodes):
        add_crossbar(
            builder,
            range(node * ranks_per_node, (node + 1) * ranks_per_node),
            name=f"NVSwitch of node {node}",
            alpha_us=values["nvswitch_alpha_us"],
            beta_us_per_mb=values["nvswitch_beta_us_per_mb"],
            link_name="NVSwitch",
        )
    _join_nodes(
        builder, nodes, values, ranks_per_node=ranks_per_node, ranks_per_nic=ranks_per_nic, rails=rails
    )
    return builder.build()


def _start(
    machine: str,
    nodes: int,
    values: Profile,
    alpha_meaning: AlphaMeaning,
    *,
    ranks_per_node: int,
    rails: bool,
) -> TopologyBuilder:
    """A builder for `nodes` nodes, once it is known that the topology will fit into memory."""
    pairs = ranks_per_node if rails else ranks_per_node**2
    check_num_links(nodes * ranks_per_node**2 + nodes * (nodes - 1) * pairs, where=f"{machine}: nodes")
    return TopologyBuilder(
        f"{machine} x{nodes}",
        [node for node in range(nodes) for _ in range(ranks_per_node)],
        alpha_meaning=alpha_meaning,
        profile=values.name,
        machine=machine,
    )


def _join_nodes(
    builder: TopologyBuilder,
    nodes: int,
    values: Profile,
    *,
    ranks_per_node: int,
    ranks_per_nic: int,
    rails: bool,
) -> None:
    """Add the links of every ordered pair of nodes, and the NICs that they hold."""
    if nodes == 1:
        return
    local = range(ranks_per_node)
    locals_joined = [(i, i) for i in local] if rails else [(i, j) for i in local for j in local]
    add_internode(
        builder,
        [
            (a * ranks_per_node + i, b * ranks_per_node + j)
            for a, b in permutations(range(nodes), 2)
            for i, j in locals_joined
        ],
        nic_of_rank={
            node * ranks_per_node + i: f"NIC {i // ranks_per_nic} of node {node}"
            for node in range(nodes)
            for i in local
        },
        alpha_us=values["internode_alpha_us"],
        beta_us_per_mb=values["internode_beta_us_per_mb"],
        nic_alpha_us=values["nic_alpha_us"],
        link_name="InfiniBand",
    )
