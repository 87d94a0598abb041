"""Racks, pods and shared uplinks, read off how far hosts are from each other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from taccl._internal.address_space import require_address_space

#: Clusters are told apart where they are farther from each other than within by this factor; our choice.
_APART = 1.2
#: Hosts in racks, racks in pods, and one level more.
_MOST_LEVELS = 3
#: How often distances that say nothing may be taken for clusters, told by so many matrices of chance; of many
#: hosts a few will do.
_BY_CHANCE, _DEALS, _MANY = 0.1, 99, 128
#: Of fewer hosts too few matrices differ: clusters must be apart by so many times what directions differ.
_FEW, _NOISES = 8, 2.0


def levels(distance: NDArray[np.float64]) -> list[NDArray[np.int64]]:
    """The cluster of every host, level by level, from the innermost out; none where hosts are all alike.

    Hosts that are near each other on average are joined first (hierarchical clustering by average linkage).
    Where the next two to be joined are farther apart than all before by a factor, what was joined is a level.
    There are none where clusters tell distances no better than they do where the same distances are dealt out
    at random; nor, of few hosts, where the factor is within what the two directions of a pair differ by.

    - `distance`, (num_hosts, num_hosts) array: Without holes; of two directions the mean counts.
    """
    if len(distance) < 3:
        return []
    require_address_space()
    from scipy.cluster.hierarchy import fcluster

    merges = _merges(distance)
    heights = np.maximum.accumulate(merges[:, 2])
    gaps = heights[1:] / np.maximum(heights[:-1], 1e-300)
    least = _APART if len(distance) >= _FEW else max(_APART, 1 + _NOISES * asymmetry(distance))
    apart = [k for k in np.argsort(-gaps, kind="stable")[:_MOST_LEVELS] if gaps[k] >= least]
    if not apart or (len(distance) >= _FEW and _are_by_chance(distance)):
        return []
    found = []
    for k in sorted(apart):
        labels = fcluster(merges, t=heights[k] * (1 + 1e-12), criterion="distance")
        _, first, which = np.unique(labels, return_index=True, return_inverse=True)
        found.append(np.argsort(np.argsort(first))[which].astype(np.int64))  # numbered as hosts come
    return found


def asymmetry(matrix: NDArray[np.float64]) -> float:
    """Median over all pairs of the difference between both directions, relative to their mean."""
    differ = 2 * abs(matrix - matrix.T) / (matrix + matrix.T)
    return float(np.nanmedian(differ[~np.eye(len(matrix), dtype=bool)]))


def _are_by_chance(distance: NDArray[np.float64]) -> bool:
    """True if clusters are noise by a permutation test of the cophenetic correlation.

    By average linkage the hosts that a merge joins are its height apart on average. So the correlation is the
    standard deviation of cophenetic distances over that of distances, which no permutation changes: the sum
    of squares of the former decides.

    References
    ----------
    R. R. Sokal and F. J. Rohlf, "The comparison of dendrograms by objective methods", Taxon 11 (1962).
    """
    require_address_space()
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    def squares(pairs: NDArray[np.float64]) -> float:
        return _squares(linkage(pairs, "average"))

    count, rng = len(distance), np.random.default_rng(0)
    pairs = squareform((distance + distance.T) / 2, checks=False)
    deals = _DEALS if count < _MANY else round(1 / _BY_CHANCE) - 1
    found = squares(pairs)
    return sum(squares(rng.permutation(pairs)) >= found for _ in range(deals)) > _BY_CHANCE * deals


def _squares(merges: NDArray[np.float64]) -> float:
    """Sum of squares of the cophenetic distances of all pairs of hosts; `merges` as of SciPy's `linkage`."""
    sizes = np.concatenate((np.ones(len(merges) + 1), merges[:, 3]))
    joined = sizes[merges[:, :2].astype(np.int64)].prod(axis=1)
    return float(joined @ merges[:, 2] ** 2)


def nested_order(distance: NDArray[np.float64]) -> list[int]:
    """Hosts with those beside each other that are near each other; of two clusters the larger first."""
    require_address_space()
    from scipy.cluster.hierarchy import to_tree

    if len(distance) < 2:
        return list(range(len(distance)))
    order: list[int] = []
    pending = [to_tree(_merges(distance))]
    while pending:
        node = pending.pop()
        if node.is_leaf():
            order.append(int(node.id))
        else:
            pending += sorted((node.left, node.right), key=lambda each: (each.count, -each.id))
    return order


def completed(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same without holes (nan): as far as the farthest step of the best way over pairs that are known.

    Values that all hosts of a cluster share follow from a sample of pairs.
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


def _merges(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    require_address_space()
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    even = (distance + distance.T) / 2
    np.fill_diagonal(even, 0.0)
    merges: NDArray[np.float64] = linkage(squareform(even, checks=False), "average")
    return merges
