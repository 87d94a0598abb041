"""Recognise the dimensions of a topology from its links, or the reason why it has none."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise, permutations
from math import log2
from typing import Any

import numpy as np

from taccl._internal.arguments import checked_as
from taccl._internal.arrays import Ints
from taccl._internal.caching import cached
from taccl.errors import TopologyError
from taccl.topology.named import NamedFabric
from taccl.topology.products import Dimension, Dimensions, Kind
from taccl.topology.topology import Topology

#: Cost of a send: alpha and beta of its link, and of each of its holds.
Cost = tuple[tuple[object, ...], ...]


@checked_as(TopologyError)
def dimensions(topology: Topology | NamedFabric | str) -> Dimensions:
    """Find the dimensions whose product is the topology; the first dimension's digit varies fastest.

    Dimensions are found if ranks are numbered in mixed radix: tori, meshes, hypercubes, `multidim`, and nodes
    joined by rails (DGX, GB200 racks). Every link must be along one dimension, with equal costs in each
    dimension. Every resource must be held only by the links of one rank in one dimension.

    Parameters
    ----------
    topology : Topology, NamedFabric or str
        Topology, or the name of a fabric as in ``taccl.topologies.parse``.

    Raises
    ------
    TopologyError
        If the topology is not a product; the message says why.
    """
    from taccl.topology.named import NamedFabric, parse_named

    if isinstance(topology, str):
        topology = parse_named(topology)
    if isinstance(topology, NamedFabric):
        axes = [each for each in topology.axes if each.size > 1]
        return Dimensions(tuple(axes if topology.first_is_fastest else reversed(axes)), topology)
    found = _found(topology)
    if isinstance(found, TopologyError):
        raise TopologyError(found.message, where=found.where)
    return found


def grid_of(topology: Topology) -> Dimensions | None:
    """Dimensions of a torus or mesh (only rings and lines); None for any other topology."""
    # A rank has at most two neighbours along each dimension, of which there are at most log2(num_ranks).
    most = 2 * topology.num_ranks * log2(topology.num_ranks)
    if len(topology.links) > most and len({(link.srcs, link.dsts) for link in topology.links}) > most:
        return None
    found = _found(topology)
    if isinstance(found, TopologyError) or any(each.kind not in ("ring", "line") for each in found.dims):
        return None
    return found


@cached
def _found(topology: Topology) -> Dimensions | TopologyError:
    try:
        return _of_links(topology)
    except TopologyError as error:
        return error


@cached
def links_along(topology: Topology, dims: Dimensions) -> list[Ints]:
    """Links along each dimension: one (num_ranks, size) array per dimension, -1 if there is no link.

    The entry (rank, digit) is the link from the rank to the rank with this digit in the dimension.
    """
    index = _fastest_links(topology)
    ends = np.array(list(index), np.int64).reshape(-1, 2).T
    links = np.array(list(index.values()), np.int64)
    digits = [dims.digits(each) for each in ends]
    tables = [np.full((topology.num_ranks, size), -1, np.int64) for size in dims.sizes]
    for axis, table in enumerate(tables):
        along = digits[0][axis] != digits[1][axis]
        table[ends[0][along], digits[1][axis][along]] = links[along]
    return tables


def _of_links(topology: Topology) -> Dimensions:
    """Find dimensions from a topology's links; make the first as large as possible, then each next one."""
    if any(len(link.srcs) + len(link.dsts) > 2 for link in topology.links):
        raise _none(topology, "it has links of several ends")
    index = _fastest_links(topology)
    cost = _Costs(topology, index)
    num_ranks, stride = topology.num_ranks, 1
    dims: list[Dimension] = []
    while stride < num_ranks:
        rest = num_ranks // stride
        sizes = (n for n in range(rest, 1, -1) if rest % n == 0)
        size = next((n for n in sizes if _kind(cost, 0, stride, n)), None)
        if size is None:
            raise _none(topology, f"ranks 0, {stride}, {2 * stride}, ... make no ring, line or group")
        dims.append(_along(topology, index, cost, stride, size))
        stride *= size
    if not dims:
        raise _none(topology, "it has one rank")
    found = Dimensions(tuple(dims), topology)
    _check_along(topology, found)
    return found


def _fastest_links(topology: Topology) -> dict[tuple[int, int], int]:
    """{(source, destination): link}; the fastest one of parallel links."""
    index: dict[tuple[int, int], int] = {}
    for e, link in enumerate(topology.links):
        other = index.setdefault((link.src, link.dst), e)
        if other != e and link.beta_us_per_mb <= topology.links[other].beta_us_per_mb:
            index[link.src, link.dst] = e
    return index


class _Costs:
    """{(source, destination): cost of the link}; each cost is computed at its first use."""

    def __init__(self, topology: Topology, index: dict[tuple[int, int], int]) -> None:
        self._topology, self._index = topology, index
        self._known: dict[tuple[int, int], Cost] = {}
        self._of_kind: dict[tuple[Any, ...], Cost] = {}

    def __contains__(self, ends: tuple[int, int]) -> bool:
        return ends in self._index

    def __getitem__(self, ends: tuple[int, int]) -> Cost:
        found = self._known.get(ends)
        if found is None:
            index = self._index[ends]
            each, holds = self._topology.links[index], self._topology.holds_of_link[index]
            # Links of one kind mostly share their fractions, whose identities are compared faster.
            shared = [(id(hold.alpha_us), id(hold.beta_us_per_mb), hold.side) for hold in holds]
            kind = (id(each.alpha_us), id(each.beta_us_per_mb), *shared)
            if kind not in self._of_kind:
                kinds = sorted((hold.alpha_us, hold.beta_us_per_mb, hold.side) for hold in holds)
                self._of_kind[kind] = ((each.alpha_us, each.beta_us_per_mb), *kinds)
            found = self._known[ends] = self._of_kind[kind]
        return found

    def get(self, ends: tuple[int, int]) -> Cost | None:
        """Cost of the link from the first rank to the second; None if there is no link."""
        return self[ends] if ends in self._index else None


def _kind(cost: _Costs, first: int, stride: int, size: int) -> Kind | None:
    """Kind of the dimension formed by the `size` ranks `first`, ``first + stride``, and so on.

    None if links are missing or differ in cost.
    """
    ranks = [first + i * stride for i in range(size)]
    both = [pair for a, b in pairwise(ranks) for pair in ((a, b), (b, a))]
    if len({cost.get(pair) for pair in both}) > 1 or both[0] not in cost:
        return None
    known = cost[both[0]]
    if size == 2 or all(cost.get(pair) == known for pair in permutations(ranks, 2)):
        return "ring" if size <= 3 else "fully-connected"
    ends = (stride, (size - 1) * stride)
    if any(pair in cost for pair in permutations(ranks, 2) if abs(pair[0] - pair[1]) not in ends):
        return None
    closed = [cost.get(pair) for pair in ((ranks[0], ranks[-1]), (ranks[-1], ranks[0]))]
    return "ring" if closed == [known, known] else None if any(closed) else "line"


def _along(
    topology: Topology, index: dict[tuple[int, int], int], cost: _Costs, stride: int, size: int
) -> Dimension:
    """Dimension of `size` ranks that are `stride` apart; `TopologyError` if its groups of ranks differ."""
    kind = _kind(cost, 0, stride, size)
    assert kind is not None, "only rank 0's links were examined"
    for first in range(topology.num_ranks):
        if first // stride % size:
            continue
        if _kind(cost, first, stride, size) != kind or cost[first, first + stride] != cost[0, stride]:
            raise _none(
                topology,
                f"ranks {first}, {first + stride}, ... are not joined as ranks 0, {stride}, ... are, which "
                f"make a {kind} of {size}",
            )
    link = topology.links[index[0, stride]]
    beta = max(hold.beta_us_per_mb for hold in topology.holds_of_link[index[0, stride]])
    joined = [rank for rank in range(stride, size * stride, stride) if (0, rank) in index]
    for links in ([index[0, rank] for rank in joined], [index[rank, 0] for rank in joined]):
        held = [{hold.resource for hold in topology.holds_of_link[e]} for e in links]
        shared = Counter(resource for each in held for resource in each).most_common(1)[0]
        if len(held) > 1 and set.intersection(*held) and kind != "line":
            kind = "switch"
        elif kind != "switch" and shared[1] > 1:
            raise _none(topology, f"some links of rank 0 share {topology.resources[shared[0]].name}")
    return Dimension.of_link(kind, size, link.alpha_us, beta)


def _check_along(topology: Topology, dims: Dimensions) -> None:
    """Raise `TopologyError` if a link is along no dimension, or two dimensions or ranks share a resource."""
    holder: dict[tuple[int, str], tuple[int, int]] = {}
    src, dst = (np.array([getattr(link, end) for link in topology.links]) for end in ("src", "dst"))
    differ = dims.digits(src) != dims.digits(dst)
    axes = np.where(differ.sum(axis=0) == 1, differ.argmax(axis=0), -1).tolist()
    for e, (link, axis) in enumerate(zip(topology.links, axes, strict=True)):
        if axis < 0:
            raise _none(topology, f"link {link} is along no dimension of {' x '.join(map(str, dims.sizes))}")
        for hold in topology.holds_of_link[e]:
            rank = link.src if hold.side == "send" else link.dst
            own = axis, rank
            first = holder.setdefault((hold.resource, hold.side), own)
            if first != own:
                name = topology.resources[hold.resource].name
                which = f"ranks {first[1]} and {rank}" if first[0] == own[0] else "two dimensions"
                raise _none(topology, f"{name} is shared by {which}")


def _none(topology: Topology, why: str) -> TopologyError:
    return TopologyError(f"found no product of dimensions: {why}", where=topology.name)
