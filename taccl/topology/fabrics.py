"""Fabrics: ring, mesh, torus, hypercube, fully connected, star and product, as topologies with all links.

Unless said otherwise every link has 50 GB/s and 0.5 us (`taccl.topology.named`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from taccl._internal.arguments import Count, Number, checked_as
from taccl.errors import TopologyError
from taccl.topology.named import BANDWIDTH_GB_PER_S, NamedFabric, fabric
from taccl.topology.products import ALPHA_US, read_dimensions
from taccl.topology.topology import AlphaMeaning  # noqa: TC001  its words are read when one is called

if TYPE_CHECKING:
    from taccl.topology.topology import Topology


@checked_as(TopologyError)
def ring(
    num_ranks: Count,
    *,
    bidirectional: bool = True,
    bandwidth_gb_per_s: Number = BANDWIDTH_GB_PER_S,
    alpha_us: Number = ALPHA_US,
    alpha_meaning: AlphaMeaning = "occupies",
    ranks_per_node: Count | None = None,
) -> Topology:
    """A ring: rank r is linked to ranks r + 1 and r - 1, and the last to the first.

    Parameters
    ----------
    num_ranks : int
        At least 2.
    bidirectional : bool
        Without it ranks send to the next alone.
    bandwidth_gb_per_s : number
        Rate of every link in each direction, in 10**9 bytes a second.
    alpha_us : number
        Latency of every link in microseconds.
    alpha_meaning : {"occupies", "pipelined"}
        Whether a link stays busy during its alpha.
    ranks_per_node : int, optional
        Cuts the ranks, in order, into nodes of this many; by default all ranks are in one node.

    Raises
    ------
    TopologyError
        If the arguments make no fabric.
    """
    made = fabric("ring", (num_ranks,), bandwidth_gb_per_s, alpha_us, alpha_meaning)
    both = made.to_topology(ranks_per_node=ranks_per_node)
    if bidirectional:
        return both
    back = [e for e, link in enumerate(both.links) if link.dst != (link.src + 1) % num_ranks]
    return replace(both.without(links=back), name=both.name)


@checked_as(TopologyError)
def mesh(
    *dims: Count,
    bandwidth_gb_per_s: Number | Sequence[Number] = BANDWIDTH_GB_PER_S,
    alpha_us: Number = ALPHA_US,
    alpha_meaning: AlphaMeaning = "occupies",
    ranks_per_node: Count | None = None,
) -> Topology:
    """A grid of ``dims`` ranks: two are linked, each way, where they are neighbours along one axis.

    Ranks are numbered row by row: the last axis varies fastest.

    Parameters
    ----------
    *dims : int
        Ranks along every axis.
    bandwidth_gb_per_s : number or sequence of number
        Rate of every link in each direction, in 10**9 bytes a second; or one for every axis.
    alpha_us, alpha_meaning, ranks_per_node
        As in `ring`; errors are its, too.
    """
    made = fabric("mesh", dims, bandwidth_gb_per_s, alpha_us, alpha_meaning)
    return made.to_topology(ranks_per_node=ranks_per_node)


@checked_as(TopologyError)
def torus(
    *dims: Count,
    bandwidth_gb_per_s: Number | Sequence[Number] = BANDWIDTH_GB_PER_S,
    alpha_us: Number = ALPHA_US,
    alpha_meaning: AlphaMeaning = "occupies",
    ranks_per_node: Count | None = None,
) -> Topology:
    """A mesh whose axes close into rings; on an axis of 2 the two ranks are linked once, each way.

    Parameters
    ----------
    *dims, bandwidth_gb_per_s, alpha_us, alpha_meaning, ranks_per_node
        As in `mesh`.
    """
    made = fabric("torus", dims, bandwidth_gb_per_s, alpha_us, alpha_meaning)
    return made.to_topology(ranks_per_node=ranks_per_node)


@checked_as(TopologyError)
def hypercube(
    dimension: Count,
    *,
    bandwidth_gb_per_s: Number = BANDWIDTH_GB_PER_S,
    alpha_us: Number = ALPHA_US,
    alpha_meaning: AlphaMeaning = "occupies",
    ranks_per_node: Count | None = None,
) -> Topology:
    """2**dimension ranks; two are linked, each way, where their numbers differ in one bit.

    Parameters
    ----------
    dimension : int
        The number of bits of a rank's number.
    bandwidth_gb_per_s, alpha_us, alpha_meaning, ranks_per_node
        As in `ring`; errors are its, too.
    """
    made = fabric("hypercube", (dimension,), bandwidth_gb_per_s, alpha_us, alpha_meaning)
    return made.to_topology(ranks_per_node=ranks_per_node)


@checked_as(TopologyError)
def fully_connected(
    num_ranks: Count,
    *,
    bandwidth_gb_per_s: Number = BANDWIDTH_GB_PER_S,
    alpha_us: Number = ALPHA_US,
    alpha_meaning: AlphaMeaning = "occupies",
    ranks_per_node: Count | None = None,
) -> Topology:
    """A link for every ordered pair of ranks, each by itself: a rank can send to all others at once.

    Parameters
    ----------
    num_ranks, bandwidth_gb_per_s, alpha_us, alpha_meaning, ranks_per_node
        As in `ring`; errors are its, too.
    """
    made = fabric("fully-connected", (num_ranks,), bandwidth_gb_per_s, alpha_us, alpha_meaning)
    return made.to_topology(ranks_per_node=ranks_per_node)


@checked_as(TopologyError)
def star(
    num_ranks: Count,
    *,
    bandwidth_gb_per_s: Number = BANDWIDTH_GB_PER_S,
    alpha_us: Number = ALPHA_US,
    alpha_meaning: AlphaMeaning = "occupies",
    ranks_per_node: Count | None = None,
) -> Topology:
    """A switch in the middle: a rank sends to any other, to one at a time, and receives from one at a time.

    Every rank has one port out and one port in at the switch, which its sends and its receives hold.

    Parameters
    ----------
    num_ranks, bandwidth_gb_per_s, alpha_us, alpha_meaning, ranks_per_node
        As in `ring`; errors are its, too.
    """
    made = fabric("star", (num_ranks,), bandwidth_gb_per_s, alpha_us, alpha_meaning)
    return made.to_topology(ranks_per_node=ranks_per_node)


@checked_as(TopologyError)
def multidim(
    dims: str | Sequence[Any],
    *,
    alpha_us: Number = ALPHA_US,
    alpha_meaning: AlphaMeaning = "pipelined",
    num_ranks: Count | None = None,
    ranks_per_node: Count | None = None,
) -> Topology:
    """A product of dimensions, e.g. ``multidim([("switch", 16, "100GB/s", "0.5us"), ("ring", 8, 50)])``.

    Ranks are numbered in mixed radix, the first dimension's digit fastest.

    Parameters
    ----------
    dims : sequence of (kind, size, bandwidth[, alpha]), or str
        A kind is ``"ring"`` (both ways), ``"fully-connected"`` or ``"switch"``. The bandwidth is a rank's,
        each way, over all its links of the dimension together: a number of GB/s, ``"100GB/s"`` or
        ``"800Gbps"``. An alpha is a number of microseconds, or ``"0.5us"``. As text:
        ``"switch16@100,ring8@50@0.7us"``.
    alpha_us : number
        Latency of dimensions that say none.
    alpha_meaning : {"occupies", "pipelined"}
        Whether a link stays busy during its alpha; by default it does not, as in ASTRA-sim.
    num_ranks : int, optional
        Refuses dimensions of any other number of ranks.
    ranks_per_node : int, optional
        Cuts the ranks, in order, into nodes of this many; by default all ranks are in one node.

    Raises
    ------
    TopologyError
        If a kind is unknown, a size is less than 2, a bandwidth is missing or not positive, or the product of
        the sizes is not `num_ranks`.
    """
    found = read_dimensions(dims, alpha_us=alpha_us)
    sizes = [each.size for each in found]
    if num_ranks not in (None, prod(sizes)):
        said = f"found {' x '.join(map(str, sizes))} = {prod(sizes)} ranks"
        expected = f"expected dimensions whose product is {num_ranks}, the number of ranks"
        raise TopologyError(f"{said}; {expected}", where="multidim: dims")
    return NamedFabric("multidim", found, alpha_meaning).to_topology(ranks_per_node=ranks_per_node)
