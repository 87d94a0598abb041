"""Clusters of hosts, such as racks and pods, and an order of the hosts, from distances between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from taccl._internal.address_space import require_address_space
from taccl._internal.arrays import Floats, Ints

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
