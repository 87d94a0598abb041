"""Clusters of hosts from latencies of few pairs, measured in rounds of disjoint pairs chosen adaptively.

Two hosts joined by a chain of near pairs are in one cluster, and a far pair separates two clusters. So a pair
is measured only if its class does not follow from earlier measurements. Held-out pairs judge the clusters.

References
----------
B. Eriksson, G. Dasarathy, A. Singh and R. Nowak, "Active clustering: robust and efficient hierarchical
clustering using adaptively selected similarities" (2011), for the number of pairs that clusters need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, log2

import numpy as np

from taccl._internal.address_space import require_address_space
from taccl._internal.arrays import Flags, Floats, Ints
from taccl._internal.units import format_count
from taccl.topology.clusters import common_levels, completed, levels

Pairs = list[tuple[int, int]]


#: Maximum number of pairs measured to find clusters of n hosts, as a multiple of n log2 n.
_MOST = 2
#: `_LEAST_RATIO`: minimum ratio of the mean latencies of two classes of pairs.
#: `_DEVIATIONS`: minimum distance between the mean logarithms of two classes, in standard deviations.
_LEAST_RATIO, _DEVIATIONS = 1.2, 4.0
#: Maximum number of classes of latencies: pairs in a rack, in a pod, in a zone, and others.
_MOST_CLASSES = 4
#: `_AT_RANDOM`: number of rounds of held-out pairs chosen at random.
#: `_INSIDE`: number of rounds of held-out pairs inside clusters.
_AT_RANDOM, _INSIDE = 2, 1
#: Minimum part of the variance of held-out pairs that clusters must explain; our choice.
_EXPLAINED = 0.5


def most_pairs(num_hosts: int) -> int:
    """Maximum number of pairs that a probe of few pairs measures, held-out pairs included."""
    rounds = _MOST * ceil(log2(num_hosts)) * 2 + _AT_RANDOM + _INSIDE
    return min(num_hosts * (num_hosts - 1) // 2, rounds * (num_hosts // 2))


class FewPairs:
    """State of a probe of few pairs: `next_round` chooses the pairs to measure, and `take` records latencies.

    - `latency_us`: (num_hosts, num_hosts) float64, symmetric, nan where unknown.
    - `left`: Number of pairs that may still be measured.
    - `unresolved`: Number of clusters that may yet turn out to belong to another cluster.
    """

    def __init__(self, num_hosts: int, seed: int = 0) -> None:
        self.num_hosts, self.rng = num_hosts, np.random.default_rng(seed)
        self.latency_us = np.full((num_hosts, num_hosts), np.nan)
        self.left = _MOST * num_hosts * ceil(log2(num_hosts))
        self.num_rounds = 0
        self.unresolved = 0

    def take(self, pairs: Pairs, latency_us: Sequence[float]) -> None:
        """Record the latency of each pair of a round."""
        for (a, b), value in zip(pairs, latency_us, strict=True):
            self.latency_us[a, b] = self.latency_us[b, a] = value
        self.left -= len(pairs)
        self.num_rounds += 1

    def next_round(self) -> Pairs:
        """Disjoint pairs to measure next; empty if the clusters are known, or no pairs are left."""
        classes = self._classes()
        if classes.max() < 1:
            tried = self.num_rounds >= ceil(log2(self.num_hosts))
            return [] if tried else self._matched(np.isnan(self.latency_us))[: self.left]
        label, far, conflicts = self._components(classes)
        is_open = ~far & (conflicts < 2)
        np.fill_diagonal(is_open, False)
        self.unresolved = int(is_open.any(axis=0).sum())
        chosen: Pairs = []
        members = [np.flatnonzero(label == each) for each in range(label.max() + 1)]
        for a, b in self._matched(is_open, conflicts)[: max(0, self.left)]:
            pair = int(self.rng.choice(members[a])), int(self.rng.choice(members[b]))
            chosen.append((min(pair), max(pair)))
        return chosen

    def clusters(self) -> tuple[tuple[int, ...], ...]:
        """Cluster number of every host at each level, the innermost level first; empty if none were found."""
        classes = self._classes()
        if classes.max() < 1:
            return ()
        label, _, _ = self._components(classes)
        count = int(label.max()) + 1
        if not 1 < count < self.num_hosts:
            return ()
        separation = np.full((count, count), np.nan)
        for a in range(count):
            rows = self.latency_us[label == a]
            for b in range(count):
                known = rows[:, label == b]
                if a != b and not np.isnan(known).all():
                    separation[a, b] = np.nanmedian(known)
        outer = levels(completed(separation)) if count > 2 else []
        return tuple(map(tuple, [label.tolist(), *(each[label].tolist() for each in outer)]))

    def held_out(self, clusters: Sequence[Sequence[int]]) -> list[Pairs]:
        """Rounds of unmeasured pairs to test clusters: random pairs, then pairs in innermost clusters."""
        unknown = np.isnan(self.latency_us)
        rounds = []
        inside = np.equal.outer(clusters[0], clusters[0]) if clusters else np.zeros_like(unknown)
        for allowed in (*[unknown] * _AT_RANDOM, *[inside] * _INSIDE):
            pairs = self._matched(allowed & unknown)
            for a, b in pairs:
                unknown[a, b] = unknown[b, a] = False
            rounds.append(pairs)
        return [pairs for pairs in rounds if pairs]

    def _classes(self) -> Ints:
        """Class of each pair by its latency, 0 for the nearest; -1 where unknown."""
        found = np.full(self.latency_us.shape, -1, dtype=np.int64)
        known = ~np.isnan(self.latency_us)
        if known.any():
            cuts = sorted(_cuts(np.sort(np.log(self.latency_us[np.triu(known)])), _MOST_CLASSES))
            found[known] = np.searchsorted(cuts, np.log(self.latency_us[known]))
        return found

    def _components(self, classes: Ints) -> tuple[Ints, Flags, Ints]:
        """Components of hosts joined by near pairs, and evidence that pairs of components are far apart.

        Two components are far apart if a measured pair between them is far. Evidence that two are far apart
        is a third component whose distances to the two are of different classes.

        Returns
        -------
        label : (num_hosts,) int64
            Component of each host.
        far : (num_components, num_components) bool
            True if two components are far apart.
        conflicts : (num_components, num_components) int64
            Number of third components, counted for each pair of classes, that show two components far apart.
        """
        require_address_space()
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        count, label = connected_components(csr_array(classes == 0), directed=False)
        first = np.unique(label, return_index=True)[1]
        label = np.argsort(np.argsort(first))[label].astype(np.int64)  # number components by their first host
        joins = np.zeros((self.num_hosts, count), dtype=np.float32)
        joins[np.arange(self.num_hosts), label] = 1
        at = [joins.T @ (classes == each) @ joins > 0 for each in range(1, int(classes.max()) + 1)]
        conflicts = np.zeros((count, count), dtype=np.float32)
        for one in at:
            for other in at:
                if one is not other:
                    conflicts += one.astype(np.float32) @ other.T.astype(np.float32)
        return label, np.any(at, axis=0), conflicts.astype(np.int64)

    def _matched(self, allowed: Flags, cost: Ints | None = None) -> Pairs:
        """Pair hosts greedily in random order, each with its free, allowed partner of least cost."""
        free = np.ones(len(allowed), dtype=bool)
        pairs: Pairs = []
        for a in self.rng.permutation(len(allowed)).tolist():
            if not free[a]:
                continue
            others = np.flatnonzero(allowed[a] & free)
            others = others[others != a]
            if len(others):
                prices = self.rng.random(len(others)) + (0 if cost is None else cost[a, others])
                b = int(others[np.argmin(prices)])
                free[a] = free[b] = False
                pairs.append((min(a, b), max(a, b)))
        return pairs


def _cuts(ordered: Floats, most: int) -> list[float]:
    """Thresholds between classes of sorted logarithms, by recursive cuts at the largest separation.

    Separation is the difference of the means over the standard deviation within the classes.
    """
    count = len(ordered)
    if count < 4 or most < 2:
        return []
    number = np.arange(2, count - 1)
    total, squares = np.cumsum(ordered), np.cumsum(ordered**2)
    low = total[number - 1] / number
    high = (total[-1] - total[number - 1]) / (count - number)
    within = squares[-1] - number * low**2 - (count - number) * high**2
    deviation = np.sqrt(np.maximum(within, 0) / count) + 1e-9
    best = int(np.argmax((high - low) / deviation))
    if high[best] - low[best] < max(_DEVIATIONS * deviation[best], np.log(_LEAST_RATIO)):
        return []
    at = int(number[best])
    cut = float(ordered[at - 1] + ordered[at]) / 2
    inner = _cuts(ordered[:at], most - 1)
    return [*inner, cut, *_cuts(ordered[at:], most - 1 - len(inner))]


def explained(latency_us: Floats, held_out: Pairs, clusters: Sequence[Sequence[int]]) -> float:
    """Fraction, at most 1, of the variance of held-out latencies that clusters explain.

    The prediction for a pair is the median latency of the measured pairs with the same number of common
    clusters. Variances are of logarithms. The fraction is negative if the mean of the held-out pairs predicts
    better.
    """
    shared = common_levels(clusters, len(latency_us))
    known = ~np.isnan(latency_us)
    rows, columns = np.array(held_out).T
    known[rows, columns] = known[columns, rows] = False
    medians = {each: np.median(latency_us[known & (shared == each)]) for each in np.unique(shared[known])}
    values = np.log(latency_us[rows, columns])
    overall = float(np.median(latency_us[known]))
    guessed = np.log([medians.get(each, overall) for each in shared[rows, columns]])
    spread = float(((values - values.mean()) ** 2).sum())
    return 1.0 - float(((values - guessed) ** 2).sum()) / spread if spread > 0 else 1.0


def verdict(plan: FewPairs, latency_us: Floats, held_out: Pairs, clusters: Sequence[Sequence[int]]) -> str:
    """Summary of a probe of few pairs: number measured, and how well clusters predict the other pairs."""
    every = plan.num_hosts * (plan.num_hosts - 1) // 2
    known = int(np.triu(~np.isnan(latency_us), 1).sum())
    said = f"{known} of {every} pairs were measured; others have the median of their cluster level"
    if not clusters:
        return f"{said}; no clusters were found: all hosts are treated as equal"
    part = explained(latency_us, held_out, clusters)
    held = format_count(len(held_out), "held-out pair")
    if plan.unresolved:
        said += f"; {plan.unresolved} clusters may be one, as no pairs are left to test"
    if part < _EXPLAINED:
        return f"{said}; clusters do not explain {held} ({part:.0%} of their variance): measure all pairs"
    return f"{said}; clusters explain {part:.0%} of the variance of {held}"


def found_by(
    plan: FewPairs, measure: Callable[[Pairs], Sequence[float]]
) -> tuple[tuple[tuple[int, ...], ...], Pairs]:
    """Find clusters by rounds of measurements; return the clusters and the held-out pairs.

    - `measure`: Function that returns the latencies of the pairs of a round, in us.
    """
    while pairs := plan.next_round():
        plan.take(pairs, measure(pairs))
    clusters = plan.clusters()
    held: Pairs = []
    for pairs in plan.held_out(clusters):
        measure(pairs)
        held += pairs
    return clusters, held
