"""Racks, pods and shared uplinks, read off how far hosts are from each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["completed", "levels", "nested_order"]

#: Clusters are told apart where they are farther from each other than within by this factor; our choice.
_APART = 1.2
#: Hosts in racks, racks in pods, and one level more.
_MOST_LEVELS = 3


def levels(distance: NDArray[np.float64]) -> list[NDArray[np.int64]]:
    """The cluster of every host, level by level, from the innermost out; none where hosts are all alike.

    Hosts that are near each other on average are joined first (hierarchical clustering by average linkage).
    Where the next two to be joined are farther apart than all before by a factor, what was joined is a level.

    Parameters
    ----------
    distance : (num_hosts, num_hosts) array
        Symmetric, without holes.
    """
    if len(distance) < 3:
        return []
    from scipy.cluster.hierarchy import fcluster

    merges = _merges(distance)
    heights = np.maximum.accumulate(merges[:, 2])
    gaps = heights[1:] / np.maximum(heights[:-1], 1e-300)
    apart = [k for k in np.argsort(-gaps, kind="stable")[:_MOST_LEVELS] if gaps[k] >= _APART]
    found = []
    for k in sorted(apart):
        labels = fcluster(merges, t=heights[k] * (1 + 1e-12), criterion="distance")
        _, first, which = np.unique(labels, return_index=True, return_inverse=True)
        found.append(np.argsort(np.argsort(first))[which].astype(np.int64))  # numbered as hosts come
    return found


def nested_order(distance: NDArray[np.float64]) -> list[int]:
    """Hosts with those beside each other that are near each other; of two clusters the larger first."""
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

    What is the same for all hosts of a cluster is found so from a sample of pairs.
    """
    unknown = np.isnan(distance)
    np.fill_diagonal(unknown, False)
    if not unknown.any():
        return distance
    from scipy.cluster.hierarchy import cophenet, linkage
    from scipy.spatial.distance import squareform

    far = np.where(np.isnan(distance), np.inf, distance)
    far[np.isinf(far)] = 10 * far[np.isfinite(far)].max()
    np.fill_diagonal(far, 0.0)
    over = squareform(cophenet(linkage(squareform((far + far.T) / 2, checks=False), "single")))
    return np.where(unknown, over, distance)


def _merges(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    even = (distance + distance.T) / 2
    np.fill_diagonal(even, 0.0)
    merges: NDArray[np.float64] = linkage(squareform(even, checks=False), "average")
    return merges
