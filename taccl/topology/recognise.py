"""Recognise structure of a topology: its dimensions (or why it has none), and racks, pods and uplinks.

Dimensions follow from links, racks and pods from distances between hosts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, permutations
from math import log2
from typing import Any

import numpy as np

from taccl._internal.address_space import require_address_space
from taccl._internal.arguments import checked_as
from taccl._internal.arrays import Floats, Ints
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


#: Minimum ratio of the distance between clusters to the distance inside them; our choice.
_LEAST_RATIO = 1.2
#: Maximum number of levels of clusters: racks, pods, and one more.
_MOST_LEVELS = 3
#: Constants of the permutation test for clusters.
#: `_BY_CHANCE`: significance level.
#: `_DEALS`: number of permutations for few hosts.
#: `_MANY`: min number of hosts for fewer permutations, as many as the significance level requires.
#: `_FEWEST_DEALS`: number of permutations after which a test of many hosts ends if the clusters are clear.
#: `_CLEARLY`: clear clusters' test statistic exceeds the permutations' max by this multiple of their range.
#: Clusters are clear by chance in less than 1 of 1,000 tests.
_BY_CHANCE, _DEALS, _MANY = 0.1, 99, 128
_FEWEST_DEALS, _CLEARLY = 3, 20.0
#: `_FEW`: min number of hosts for a permutation test.
#: `_NOISES`: with fewer hosts, distances outside / inside a cluster must exceed 1 by this many asymmetries.
_FEW, _NOISES = 8, 2.0


def levels(distance: Floats) -> list[Ints]:
    """Cluster index of every host, one array per level, innermost first; empty if no clusters are found.

    Hosts are joined by hierarchical clustering with average linkage. A level ends where the distance of the
    next merge exceeds the largest distance before by a minimum factor.
    No levels are returned if a permutation test finds that clusters explain the distances no better than by
    chance. For few hosts there is no such test, and the factor grows with the asymmetry of the distances.

    - `distance`, (num_hosts, num_hosts): Without nan; the mean of both directions counts.
    """
    if len(distance) < 3:
        return []
    require_address_space()
    from scipy.cluster.hierarchy import fcluster

    merges = _merges(distance)
    heights = np.maximum.accumulate(merges[:, 2])
    gaps = heights[1:] / np.maximum(heights[:-1], 1e-300)
    least = _LEAST_RATIO if len(distance) >= _FEW else max(_LEAST_RATIO, 1 + _NOISES * asymmetry(distance))
    apart = [k for k in np.argsort(-gaps, kind="stable")[:_MOST_LEVELS] if gaps[k] >= least]
    if not apart or (len(distance) >= _FEW and _are_by_chance(distance)):
        return []
    found = []
    for k in sorted(apart):
        labels = fcluster(merges, t=heights[k] * (1 + 1e-12), criterion="distance")
        _, first, which = np.unique(labels, return_index=True, return_inverse=True)
        # Clusters are numbered in the order of their first hosts.
        found.append(np.argsort(np.argsort(first))[which].astype(np.int64))
    return found


def common_levels(clusters: Sequence[Sequence[int] | Ints], num_hosts: int) -> Ints:
    """Number of levels at which two hosts are in one cluster, as a matrix over all pairs of hosts.

    - `clusters`: Cluster of every host at each level.
    """
    found = np.zeros((num_hosts, num_hosts), dtype=np.int64)
    for each in clusters:
        found += np.equal.outer(each, each)
    return found


def asymmetry(matrix: Floats) -> float:
    """Median over all pairs of the difference between the two directions, relative to their mean."""
    differ = 2 * abs(matrix - matrix.T) / (matrix + matrix.T)
    return float(np.nanmedian(differ[~np.eye(len(matrix), dtype=bool)]))


def _are_by_chance(distance: Floats) -> bool:
    """True if a permutation test of the cophenetic correlation finds no clusters.

    With average linkage, the height of a merge is the mean distance between the hosts that it joins. The
    correlation is thus the standard deviation of the cophenetic distances over that of the distances. No
    permutation changes the latter, so the test compares sums of squares of the cophenetic distances.

    References
    ----------
    R. R. Sokal and F. J. Rohlf, "The comparison of dendrograms by objective methods", Taxon 11 (1962).
    """
    require_address_space()
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    def squares(pairs: Floats) -> float:
        return _squares(linkage(pairs, "average"))

    count, rng = len(distance), np.random.default_rng(0)
    pairs = squareform((distance + distance.T) / 2, checks=False)
    deals = _DEALS if count < _MANY else round(1 / _BY_CHANCE) - 1
    found = squares(pairs)
    dealt: list[float] = []
    for _ in range(deals):
        dealt.append(squares(rng.permutation(pairs)))
        if count >= _MANY and len(dealt) == _FEWEST_DEALS and found > max(dealt) + _CLEARLY * np.ptp(dealt):
            return False
    return sum(each >= found for each in dealt) > _BY_CHANCE * deals


def _squares(merges: Floats) -> float:
    """Sum of squares of the cophenetic distances of all pairs; `merges` is a result of SciPy's `linkage`."""
    sizes = np.concatenate((np.ones(len(merges) + 1), merges[:, 3]))
    joined = sizes[merges[:, :2].astype(np.int64)].prod(axis=1)
    return float(joined @ merges[:, 2] ** 2)


def nested_order(distance: Floats) -> list[int]:
    """Order of hosts that keeps near hosts adjacent; of two merged clusters, the larger comes first."""
    count = len(distance)
    if count < 2:
        return list(range(count))
    children = _average_linkage((distance + distance.T) / 2)
    sizes = [1] * count
    for first, second in children:
        sizes.append(sizes[first] + sizes[second])
    order: list[int] = []
    pending = [2 * count - 2]
    while pending:
        node = pending.pop()
        if node < count:
            order.append(node)
        else:
            pending += sorted(children[node - count], key=lambda each: (sizes[each], -each))
    return order


def _average_linkage(distance: Floats) -> list[tuple[int, int]]:
    """The two clusters of each merge by average linkage, in ascending order of their distance.

    Cluster i below the number n of hosts is host i; cluster n + k is the result of merge k. The merges are
    those of SciPy's ``linkage``, which takes 0.5 s of CPU to load. Nearest neighbours are followed until two
    are mutual (the nearest-neighbour chain).

    - `distance`, (n, n): Symmetric; the diagonal does not count.

    References
    ----------
    D. Müllner, "Modern hierarchical, agglomerative clustering algorithms", arXiv:1109.2378 (2011).
    """
    count = len(distance)
    far, size, chain = distance.astype(np.float64), np.ones(count), list[int]()
    np.fill_diagonal(far, np.inf)
    merged: list[tuple[float, int, int]] = []
    while len(merged) < count - 1:
        chain = chain or [int(np.argmax(size > 0))]
        near = int(np.argmin(far[chain[-1]]))
        if len(chain) < 2 or far[chain[-1], near] < far[chain[-1], chain[-2]]:
            chain.append(near)
            continue
        gone, kept = sorted((chain.pop(), chain.pop()))
        merged.append((far[gone, kept], gone, kept))
        mean = (size[gone] * far[gone] + size[kept] * far[kept]) / (size[gone] + size[kept])
        far[kept], far[:, kept] = mean, mean
        far[gone], far[:, gone], far[kept, kept] = np.inf, np.inf, np.inf
        size[gone], size[kept] = 0, size[gone] + size[kept]
    cluster, found = list(range(count)), []
    for _, gone, kept in sorted(merged, key=lambda each: each[0]):
        found.append((cluster[gone], cluster[kept]))
        cluster[kept] = count + len(found) - 1
    return found


def completed(distance: Floats) -> Floats:
    """Estimate missing distances (nan) by minimax paths, whose largest step is as small as possible.

    Distances that all hosts of a cluster share thus follow from a sample of pairs.
    """
    unknown = np.isnan(distance)
    np.fill_diagonal(unknown, False)
    if not unknown.any():
        return distance
    require_address_space()
    from scipy.cluster.hierarchy import cophenet, linkage
    from scipy.spatial.distance import squareform

    far = np.where(np.isnan(distance), np.inf, distance)
    far[np.isinf(far)] = 10 * far[np.isfinite(far)].max()
    np.fill_diagonal(far, 0.0)
    over = squareform(cophenet(linkage(squareform((far + far.T) / 2, checks=False), "single")))
    return np.where(unknown, over, distance)


def _merges(distance: Floats) -> Floats:
    require_address_space()
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    even = (distance + distance.T) / 2
    np.fill_diagonal(even, 0.0)
    merges: Floats = linkage(squareform(even, checks=False), "average")
    return merges
