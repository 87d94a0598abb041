"""Fabrics: ring, mesh, torus, hypercube, fully connected, star and product, as topologies with all links.

The default cost of a link is 50 GB/s and 0.5 us (`taccl.topology.named`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from taccl._internal.arguments import AtLeastTwo, Count, Number, checked_as
from taccl.errors import TopologyError
from taccl.topology.named import BANDWIDTH_GB_PER_S, NamedFabric, fabric
from taccl.topology.products import ALPHA_US, read_dimensions
from taccl.topology.topology import (
    AlphaMeaning,  # noqa: TC001  `checked_as` reads the name at run time
    Topology,
)


@checked_as(TopologyError)
def ring(
    num_ranks: AtLeastTwo,
    *,
    bidirectional: bool = True,
    bandwidth_gb_per_s: Number = BANDWIDTH_GB_PER_S,
    alpha_us: Number = ALPHA_US,
    alpha_meaning: AlphaMeaning = "occupies",
    ranks_per_node: Count | None = None,
) -> Topology:
    """Ring: rank r is linked to ranks r + 1 and r - 1, and the last rank to the first.

    Parameters
    ----------
    num_ranks : int
        Number of ranks, at least 2.
    bidirectional : bool
        False for links to the next rank only.
    bandwidth_gb_per_s : number
        Rate of every link in each direction, in GB/s (10**9 bytes per second).
    alpha_us : number
        Latency of every link in microseconds.
    alpha_meaning : {"occupies", "pipelined"}
        Whether a link stays busy during its alpha.
    ranks_per_node : int, optional
        Number of consecutive ranks per node; by default all ranks are in one node.

    Raises
    ------
    TopologyError
        If the arguments describe no fabric.
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
    """Grid of ``dims`` ranks, with links in both directions between neighbours along each axis.

    Ranks are numbered row by row: the last axis varies fastest.

    Parameters
    ----------
    *dims : int
        Number of ranks along every axis.
    bandwidth_gb_per_s : number or sequence of number
        Rate of every link in each direction in GB/s (10**9 bytes per second), for all axes or for each.
    alpha_us, alpha_meaning, ranks_per_node
        As in `ring`, with the same errors.
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
    """Mesh whose axes are closed to rings; an axis of size 2 has one link in each direction.

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
    """Hypercube of 2**dimension ranks; links join ranks whose numbers differ in one bit.

    Parameters
    ----------
    dimension : int
        Number of bits of a rank's number.
    bandwidth_gb_per_s, alpha_us, alpha_meaning, ranks_per_node
        As in `ring`, with the same errors.
    """
    made = fabric("hypercube", (dimension,), bandwidth_gb_per_s, alpha_us, alpha_meaning)
    return made.to_topology(ranks_per_node=ranks_per_node)


@checked_as(TopologyError)
def fully_connected(
    num_ranks: AtLeastTwo,
    *,
    bandwidth_gb_per_s: Number = BANDWIDTH_GB_PER_S,
    alpha_us: Number = ALPHA_US,
    alpha_meaning: AlphaMeaning = "occupies",
    ranks_per_node: Count | None = None,
) -> Topology:
    """Independent links between all ordered pairs of ranks: a rank can send to all others at the same time.

    Parameters
    ----------
    num_ranks, bandwidth_gb_per_s, alpha_us, alpha_meaning, ranks_per_node
        As in `ring`, with the same errors.
    """
    made = fabric("fully-connected", (num_ranks,), bandwidth_gb_per_s, alpha_us, alpha_meaning)
    return made.to_topology(ranks_per_node=ranks_per_node)


@checked_as(TopologyError)
def star(
    num_ranks: AtLeastTwo,
    *,
    bandwidth_gb_per_s: Number = BANDWIDTH_GB_PER_S,
    alpha_us: Number = ALPHA_US,
    alpha_meaning: AlphaMeaning = "occupies",
    ranks_per_node: Count | None = None,
) -> Topology:
    """Single switch: a rank sends to one other rank at a time, and receives from one at a time.

    Every rank has one port out and one port in, which its sends and its receives hold.

    Parameters
    ----------
    num_ranks, bandwidth_gb_per_s, alpha_us, alpha_meaning, ranks_per_node
        As in `ring`, with the same errors.
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
    """Product of dimensions, e.g. ``multidim([("switch", 16, "100GB/s", "0.5us"), ("ring", 8, 50)])``.

    Ranks are numbered in mixed radix, the first dimension's digit fastest.

    Parameters
    ----------
    dims : sequence of (kind, size, bandwidth[, alpha]), or str
        The kind is ``"ring"`` (bidirectional), ``"fully-connected"`` or ``"switch"``. The bandwidth is the
        total of a rank's links in the dimension, in each direction: a number in GB/s, ``"100GB/s"`` or
        ``"800Gbps"``. An alpha is a number of us, or ``"0.5us"``. As text: ``"switch16@100,ring8@50@0.7us"``.
        Dimensions of size 1 are skipped.
    alpha_us : number
        Latency in us of dimensions without an alpha.
    alpha_meaning : {"occupies", "pipelined"}
        Whether a link stays busy during its alpha; by default it does not, as in ASTRA-sim.
    num_ranks : int, optional
        Expected number of ranks; an error if the dimensions have another product.
    ranks_per_node : int, optional
        Number of consecutive ranks per node; by default all ranks are in one node.

    Raises
    ------
    TopologyError
        If a kind is unknown, a size is less than 1, all sizes are 1, a bandwidth is missing or not positive,
        or the product of the sizes differs from `num_ranks`.
    """
    found = read_dimensions(dims, alpha_us=alpha_us)
    sizes = [each.size for each in found]
    if num_ranks not in (None, prod(sizes)):
        said = f"found {' x '.join(map(str, sizes))} = {prod(sizes)} ranks"
        expected = f"expected dimensions whose product is {num_ranks}, the number of ranks"
        raise TopologyError(f"{said}; {expected}", where="multidim: dims")
    return NamedFabric("multidim", found, alpha_meaning).to_topology(ranks_per_node=ranks_per_node)
