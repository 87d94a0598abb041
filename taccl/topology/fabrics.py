"""Fabrics: ring, mesh, torus, hypercube, fully connected and star, with one cost for every link.

The default costs, 50 GB/s and 0.5 us, stand for no machine: they are the round numbers in common use for
comparing synthesizers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import permutations
from math import prod

from taccl.arguments import Count, Number, checked_as
from taccl.errors import TopologyError
from taccl.topology.parts import (
    LinkCost,
    add_crossbar,
    beta_of_bandwidth,
    check_count,
    check_num_links,
    exact_cost,
    rates_of_axes,
)
from taccl.topology.topology import AlphaMeaning, Topology, TopologyBuilder

BANDWIDTH_GB_PER_S = 50
ALPHA_US = Fraction(1, 2)


@checked_as(TopologyError)
def ring(
    num_ranks: int,
    *,
    bidirectional: bool = True,
    bandwidth_gb_per_s: Number = BANDWIDTH_GB_PER_S,
    alpha_us: Number = ALPHA_US,
    alpha_meaning: AlphaMeaning = "occupies",
    ranks_per_node: Count | None = None,
) -> Topology:
    """A ring: rank r is linked to rank r + 1, and the last to the first.

    Parameters
    ----------
    num_ranks : int
        At least 2.
    bidirectional : bool
        Adds the links the other way round; without it ranks send upwards only.
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
    check_count(num_ranks, where="ring: num_ranks", least=2)
    builder = start_fabric("ring", (num_ranks,), num_ranks, 2 * num_ranks, alpha_meaning, ranks_per_node)
    upwards = [(rank, (rank + 1) % num_ranks) for rank in range(num_ranks)]
    downwards = [(dst, src) for src, dst in upwards] if bidirectional and num_ranks > 2 else []
    return _linked(builder, [[*upwards, *downwards]], alpha_us, bandwidth_gb_per_s)


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
    return _grid("mesh", dims, bandwidth_gb_per_s, alpha_us, alpha_meaning, ranks_per_node)


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
    return _grid("torus", dims, bandwidth_gb_per_s, alpha_us, alpha_meaning, ranks_per_node)


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
    num_ranks = 2 ** min(dimension, 64)
    builder = start_fabric(
        "hypercube", (dimension,), num_ranks, num_ranks * dimension, alpha_meaning, ranks_per_node
    )
    edges = ((rank, rank ^ (1 << bit)) for rank in range(num_ranks) for bit in range(dimension))
    return _linked(builder, [edges], alpha_us, bandwidth_gb_per_s)


@checked_as(TopologyError)
def fully_connected(
    num_ranks: int,
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
    check_count(num_ranks, where="fully-connected: num_ranks", least=2)
    builder = start_fabric(
        "fully-connected", (num_ranks,), num_ranks, num_ranks * (num_ranks - 1), alpha_meaning, ranks_per_node
    )
    return _linked(builder, [permutations(range(num_ranks), 2)], alpha_us, bandwidth_gb_per_s)


@checked_as(TopologyError)
def star(
    num_ranks: int,
    *,
    bandwidth_gb_per_s: Number = BANDWIDTH_GB_PER_S,
    alpha_us: Number = ALPHA_US,
    overhead_us: Number | None = None,
    alpha_meaning: AlphaMeaning = "occupies",
    ranks_per_node: Count | None = None,
) -> Topology:
    """A switch in the middle: a rank sends to any other, to one at a time, and receives from one at a time.

    Every rank has one port out and one port in at the switch, which its sends and its receives hold.

    Parameters
    ----------
    num_ranks, bandwidth_gb_per_s, alpha_us, alpha_meaning, ranks_per_node
        As in `ring`; errors are its, too.
    overhead_us : number, optional
        The part of alpha that keeps ports busy; default: all of it.
    """
    check_count(num_ranks, where="star: num_ranks", least=2)
    builder = start_fabric(
        "star", (num_ranks,), num_ranks, num_ranks * (num_ranks - 1), alpha_meaning, ranks_per_node
    )
    cost = LinkCost(
        exact_cost(alpha_us, where="star: alpha_us"),
        beta_of_bandwidth(bandwidth_gb_per_s, where="star: bandwidth_gb_per_s"),
        None if overhead_us is None else exact_cost(overhead_us, where="star: overhead_us"),
    )
    add_crossbar(builder, range(num_ranks), cost, name="switch")
    return builder.build()


def _grid(
    fabric: str,
    dims: tuple[int, ...],
    bandwidth_gb_per_s: Number | Sequence[Number],
    alpha_us: Number,
    alpha_meaning: AlphaMeaning,
    ranks_per_node: Count | None,
) -> Topology:
    if not dims:
        raise TopologyError("found no axes; expected at least one, e.g. 4, 4", where=f"{fabric}: dims")
    num_ranks = prod(dims)
    builder = start_fabric(fabric, dims, num_ranks, 2 * num_ranks * len(dims), alpha_meaning, ranks_per_node)

    def along(axis: int) -> Iterator[tuple[int, int]]:
        dim, stride = dims[axis], prod(dims[axis + 1 :])
        for rank in range(num_ranks):
            place = rank // stride % dim
            if place + 1 < dim:
                yield from ((rank, rank + stride), (rank + stride, rank))
            elif fabric == "torus" and dim > 2:
                first = rank - (dim - 1) * stride
                yield from ((rank, first), (first, rank))

    return _linked(builder, [along(axis) for axis in range(len(dims))], alpha_us, bandwidth_gb_per_s)


def start_fabric(
    fabric: str,
    dims: Sequence[object],
    num_ranks: int,
    most_links: int,
    alpha_meaning: AlphaMeaning,
    ranks_per_node: Count | None,
) -> TopologyBuilder:
    """A builder for a fabric, once it is known that it has ranks enough, and will fit into memory."""
    check_num_links(most_links, where=fabric)
    check_count(num_ranks, where=f"{fabric}: number of ranks", least=2)
    per_node = ranks_per_node or num_ranks
    if num_ranks % per_node:
        raise TopologyError(
            f"found {per_node}; expected a divisor of the {num_ranks} ranks",
            where=f"{fabric}: ranks_per_node",
        )
    return TopologyBuilder(
        f"{fabric}:{(',' if fabric == 'multidim' else 'x').join(map(str, dims))}",
        [rank // per_node for rank in range(num_ranks)],
        alpha_meaning=alpha_meaning,
        machine=fabric,
    )


def _linked(
    builder: TopologyBuilder,
    edges_of_axes: Sequence[Iterable[tuple[int, int]]],
    alpha_us: Number,
    bandwidth_gb_per_s: Number | Sequence[Number],
) -> Topology:
    """The fabric with a link for every edge, axis by axis."""
    alpha = exact_cost(alpha_us, where=f"{builder.name}: alpha_us")
    where = f"{builder.name}: bandwidth_gb_per_s"
    betas = rates_of_axes(bandwidth_gb_per_s, len(edges_of_axes), where=where)
    for edges, beta in zip(edges_of_axes, betas, strict=True):
        for src, dst in edges:
            builder.add_link(src, dst, alpha_us=alpha, beta_us_per_mb=beta)
    return builder.build()
