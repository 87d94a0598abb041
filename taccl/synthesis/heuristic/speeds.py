"""Which links are fast and which are slow, and what ranks can do with the fast ones alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from taccl.synthesis.heuristic.fabric import Floats, Holds, Ints

#: A link belongs to the next slower class when a send takes this many times that of the class's fastest.
_CLASS_RATIO = 1.3
_MAX_CLASSES = 4


def crowded(holds: Holds, src: Ints, dst: Ints, duration: Ints, units: int) -> Ints:
    """Ticks that a send takes where all ranks send at once: those who share a resource wait for each other.

    - `src`, `dst`, `duration`: Of slots as `holds` has them, as is what is returned.
    """
    slowest = duration.copy()
    if len(holds.slot):
        # A rank's own port does not make it slower: it is who else sends, and who else receives, that does.
        crowd = np.full(holds.num_resources, np.iinfo(np.int64).max)
        for end in (src, dst):
            count = int(end.max()) + 1
            pairs = np.sort(holds.resource * count + end[holds.slot])  # sooner than `unique`, which hashes
            resource = pairs[np.diff(pairs, prepend=-1) > 0] // count
            crowd = np.minimum(crowd, np.bincount(resource, minlength=holds.num_resources))
        length = (holds.alpha + units * holds.beta) * crowd[holds.resource]
        np.maximum.at(slowest, holds.slot, length)
    return slowest


def speed_classes(duration: Ints) -> Ints:
    """Classes of similar durations, 0 for the shortest; what is beyond the last class joins it."""
    values = np.unique(duration)
    classes = np.zeros(len(values), np.int64)
    shortest, number = values[0], 0
    for i, value in enumerate(values):
        if value > _CLASS_RATIO * shortest and number < _MAX_CLASSES - 1:
            shortest, number = value, number + 1
        classes[i] = number
    return classes[np.searchsorted(values, duration)]


def components(src: Ints, dst: Ints, speed: Ints, num_ranks: int) -> Ints:
    """By class and rank, who can reach one another over links of faster classes."""
    component = np.tile(np.arange(num_ranks, dtype=np.int64), (int(speed.max(initial=0)) + 1, 1))
    for k in range(1, len(component)):
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        fast = speed < k
        ones = np.ones(int(fast.sum()), np.int8)
        graph = csr_array((ones, (src[fast], dst[fast])), shape=(num_ranks, num_ranks))
        component[k] = connected_components(graph, directed=True, connection="strong")[1]
    return component


def fast_rates(holds: Holds, src: Ints, dst: Ints, speed: Ints, units: int, component: Ints) -> Floats:
    """Chunks a tick into every rank over links of faster classes, from its own component.

    A link counts at its own rate, or, where resources are shared, at its part of the busiest of them.
    """
    rates = np.zeros(component.shape)
    alone = 1.0 / np.maximum(holds.own_alpha + units * holds.own_beta, 1)
    for k in range(1, len(component)):
        fast = (speed < k) & (component[k][src] == component[k][dst])
        rows = np.flatnonzero(fast[holds.slot] & holds.receives)
        length = np.maximum(holds.alpha[rows] + units * holds.beta[rows], 1)
        demanded = np.bincount(
            holds.resource[rows], weights=length * alone[holds.slot[rows]], minlength=holds.num_resources
        )
        crowd = np.ones(len(src))
        np.maximum.at(crowd, holds.slot[rows], demanded[holds.resource[rows]])
        rates[k] = np.bincount(dst[fast], weights=(alone / crowd)[fast], minlength=component.shape[1])
    return rates
