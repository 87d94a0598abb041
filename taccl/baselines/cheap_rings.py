"""Cheap closed paths through all places: exactly by the Held-Karp recursion, or by a beam search."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


#: Approximate number of extended partial paths, over all first places, from which a beam step chooses.
_EXTENDED = 1 << 14


def cheapest_paths(steps: Floats, closing: Floats) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Yield (cost, path) of the cheapest closed path through all places (local ranks), for each first place.

    - `steps`, `closing`: Costs of steps along the path, and of the step from its last to its first place.

    References
    ----------
    M. Held and R. M. Karp, "A dynamic programming approach to sequencing problems", Journal of the Society
    for Industrial and Applied Mathematics 10 (1962).
    """
    size = len(steps)
    everything = (1 << size) - 1
    cost = np.full((everything + 1, size, size), np.inf)  # by visited places, first place, last place
    for place in range(size):
        cost[1 << place, place, place] = 0
    for visited in range(1, everything):
        reached = (cost[visited][:, :, None] + steps).min(axis=1)
        for place in range(size):
            if not visited >> place & 1:
                cost[visited | 1 << place, :, place] = reached[:, place]
    total = cost[everything] + closing.T
    for first in range(size):
        last = int(total[first].argmin())
        if not np.isfinite(total[first, last]):
            continue
        path, visited = [last], everything
        while len(path) < size:
            visited ^= 1 << path[-1]
            path.append(int((cost[visited, first] + steps[:, path[-1]]).argmin()))
        yield float(total[first, last]), tuple(path[::-1])


def cheap_paths(steps: Floats, closing: Floats) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Yield (cost, path) of a cheap closed path through all places, for each first place.

    Arguments are as in `cheapest_paths`. A beam search keeps the cheapest partial paths at each step, as many
    for each first place. If some have the same first, last and visited places, it keeps the cheapest.
    """
    size = len(steps)
    most = max(1, _EXTENDED // max(1, int(np.isfinite(steps).sum())))  # for each first place
    first = last = np.arange(size)
    visited, cost = 1 << first, np.zeros(size)
    parents: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    for _ in range(size - 1):
        is_open = np.isfinite(steps[last]) & (visited[:, None] >> np.arange(size) & 1 == 0)
        parent, last_now = np.nonzero(is_open)
        costs, firsts = cost[parent] + steps[last[parent], last_now], first[parent]
        seen = visited[parent] | 1 << last_now
        order = np.lexsort((costs, last_now, seen, firsts))
        keys = np.array([firsts, seen, last_now])[:, order]
        order = order[np.append(True, (np.diff(keys) != 0).any(axis=0))[: len(order)]]
        order = order[np.lexsort((costs[order], firsts[order]))]
        place = np.arange(len(order)) - np.searchsorted(firsts[order], firsts[order])
        order = order[place < most]
        parent, last, first, visited, cost = (each[order] for each in (parent, last_now, firsts, seen, costs))
        parents.append((parent, last))
    total = cost + closing[last, first]
    for start in range(size):
        ends = np.flatnonzero((first == start) & np.isfinite(total))
        if not len(ends):
            continue
        at = end = int(ends[total[ends].argmin()])
        path = []
        for parent, lasts in reversed(parents):
            path.append(int(lasts[at]))
            at = int(parent[at])
        yield float(total[end]), (start, *path[::-1])
