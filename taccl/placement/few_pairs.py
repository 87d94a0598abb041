"""Clusters of hosts from few pairs: rounds of disjoint pairs, each chosen by what earlier rounds have shown.

Two hosts that a chain of near pairs joins are in one cluster, and a far pair keeps two clusters apart. So a
pair is measured only if it is not known which. Pairs that are held out judge the clusters.

References
----------
B. Eriksson, G. Dasarathy, A. Singh and R. Nowak, "Active clustering: robust and efficient hierarchical
clustering using adaptively selected similarities" (2011), for the number of pairs that clusters need.
"""

from __future__ import annotations

from math import ceil, log2
from typing import TYPE_CHECKING

import numpy as np

from taccl._internal.address_space import require_address_space
from taccl._internal.units import format_count
from taccl.topology.recognise import completed, levels

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Pairs = list[tuple[int, int]]

#: Pairs measured to find clusters, at most: this many times n log2 n.
_MOST = 2
#: Least factor, and least number of standard deviations, between the means of two classes of latencies.
_APART, _DEVIATIONS = 1.2, 4.0
#: Most classes of latencies: pairs in a rack, in a pod, in a zone, and others.
_MOST_CLASSES = 4
#: Rounds of held-out pairs at random, and of pairs inside clusters.
_AT_RANDOM, _INSIDE = 2, 1
#: Part of the variance of held-out pairs that clusters explain at least; our choice.
_EXPLAINED = 0.5


def most_pairs(num_hosts: int) -> int:
    """Most pairs of a probe of few pairs, those held out included; never more than all."""
    rounds = _MOST * ceil(log2(num_hosts)) * 2 + _AT_RANDOM + _INSIDE
    return min(num_hosts * (num_hosts - 1) // 2, rounds * (num_hosts // 2))


class FewPairs:
    """A probe of few pairs as it goes on: `next_round` says what to measure, and `take` learns what it was.

    - `latency_us`: (num_hosts, num_hosts) float64, nan where unknown; the same in both directions.
    """

    def __init__(self, num_hosts: int, seed: int = 0) -> None:
        self.num_hosts, self.rng = num_hosts, np.random.default_rng(seed)
        self.latency_us = np.full((num_hosts, num_hosts), np.nan)
        self.left = _MOST * num_hosts * ceil(log2(num_hosts))
        self.num_rounds = 0
        self.unresolved = 0

    def take(self, pairs: Pairs, latency_us: Sequence[float]) -> None:
        """Learn the latency of each pair of a round."""
        for (a, b), value in zip(pairs, latency_us, strict=True):
            self.latency_us[a, b] = self.latency_us[b, a] = value
        self.left -= len(pairs)
        self.num_rounds += 1

    def next_round(self) -> Pairs:
        """Disjoint pairs to measure next; none if clusters are known, or the pairs are used up."""
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
        """Cluster of every host, level by level, the innermost first; empty if hosts are all alike."""
        classes = self._classes()
        if classes.max() < 1:
            return ()
        label, _, _ = self._components(classes)
        count = int(label.max()) + 1
        if not 1 < count < self.num_hosts:
            return ()
        apart = np.full((count, count), np.nan)
        for a in range(count):
            rows = self.latency_us[label == a]
            for b in range(count):
                known = rows[:, label == b]
                if a != b and not np.isnan(known).all():
                    apart[a, b] = np.nanmedian(known)
        outer = levels(completed(apart)) if count > 2 else []
        return tuple(map(tuple, [label.tolist(), *(each[label].tolist() for each in outer)]))

    def held_out(self, clusters: Sequence[Sequence[int]]) -> list[Pairs]:
        """Rounds of pairs that judge clusters: at random, and inside the innermost."""
        unknown = np.isnan(self.latency_us)
        rounds = []
        inside = np.equal.outer(clusters[0], clusters[0]) if clusters else np.zeros_like(unknown)
        for allowed in (*[unknown] * _AT_RANDOM, *[inside] * _INSIDE):
            pairs = self._matched(allowed & unknown)
            for a, b in pairs:
                unknown[a, b] = unknown[b, a] = False
            rounds.append(pairs)
        return [pairs for pairs in rounds if pairs]

    def _classes(self) -> NDArray[np.int64]:
        """Class of each pair by its latency, 0 for the nearest; -1 where unknown."""
        found = np.full(self.latency_us.shape, -1, dtype=np.int64)
        known = ~np.isnan(self.latency_us)
        if known.any():
            cuts = sorted(_cuts(np.sort(np.log(self.latency_us[np.triu(known)])), _MOST_CLASSES))
            found[known] = np.searchsorted(cuts, np.log(self.latency_us[known]))
        return found

    def _components(
        self, classes: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]:
        """Component of each host by near pairs; components that are apart; evidence that two are apart.

        Two components are apart if a far pair joins them. A third that is not as far from both is evidence.
        """
        require_address_space()
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import connected_components

        count, label = connected_components(csr_array(classes == 0), directed=False)
        first = np.unique(label, return_index=True)[1]
        label = np.argsort(np.argsort(first))[label].astype(np.int64)  # numbered as hosts come
        joins = np.zeros((self.num_hosts, count), dtype=np.float32)
        joins[np.arange(self.num_hosts), label] = 1
        at = [joins.T @ (classes == each) @ joins > 0 for each in range(1, int(classes.max()) + 1)]
        conflicts = np.zeros((count, count), dtype=np.float32)
        for one in at:
            for other in at:
                if one is not other:
                    conflicts += one.astype(np.float32) @ other.T.astype(np.float32)
        return label, np.any(at, axis=0), conflicts.astype(np.int64)

    def _matched(self, allowed: NDArray[np.bool_], cost: NDArray[np.int64] | None = None) -> Pairs:
        """Disjoint pairs among those allowed, greedily in random order, of each the cheapest."""
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


def _cuts(ordered: NDArray[np.float64], most: int) -> list[float]:
    """Values between classes of sorted logarithms: the cut of largest separation, and those on either side.

    The separation is the difference of the means over the standard deviation within.
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
    if high[best] - low[best] < max(_DEVIATIONS * deviation[best], np.log(_APART)):
        return []
    at = int(number[best])
    cut = float(ordered[at - 1] + ordered[at]) / 2
    inner = _cuts(ordered[:at], most - 1)
    return [*inner, cut, *_cuts(ordered[at:], most - 1 - len(inner))]


def explained(latency_us: NDArray[np.float64], held_out: Pairs, clusters: Sequence[Sequence[int]]) -> float:
    """Part of the variance of held-out latencies that clusters explain; at most 1.

    A pair is predicted by the median of pairs in as many common clusters, in logarithms. The part is below 0
    where one median for all pairs would explain more.
    """
    shared = np.zeros(latency_us.shape, dtype=np.int64)
    for each in clusters:
        shared += np.equal.outer(each, each)
    known = ~np.isnan(latency_us)
    rows, columns = np.array(held_out).T
    known[rows, columns] = known[columns, rows] = False
    medians = {each: np.median(latency_us[known & (shared == each)]) for each in np.unique(shared[known])}
    values = np.log(latency_us[rows, columns])
    overall = float(np.median(latency_us[known]))
    guessed = np.log([medians.get(each, overall) for each in shared[rows, columns]])
    spread = float(((values - values.mean()) ** 2).sum())
    return 1.0 - float(((values - guessed) ** 2).sum()) / spread if spread > 0 else 1.0


def verdict(
    plan: FewPairs, latency_us: NDArray[np.float64], held_out: Pairs, clusters: Sequence[Sequence[int]]
) -> str:
    """Assumption of a probe of few pairs, with how well its clusters predict the pairs held out."""
    every = plan.num_hosts * (plan.num_hosts - 1) // 2
    known = int(np.triu(~np.isnan(latency_us), 1).sum())
    said = (
        f"{known} of {every} pairs were measured; others have the median of pairs in as many common clusters"
    )
    if not clusters:
        return f"{said}; no clusters were found: hosts are taken for alike"
    part = explained(latency_us, held_out, clusters)
    held = format_count(len(held_out), "held-out pair")
    if plan.unresolved:
        said += f"; {plan.unresolved} clusters may belong together, as pairs were used up"
    if part < _EXPLAINED:
        return f"{said}; clusters do not explain {held} ({part:.0%} of their variance): measure all pairs"
    return f"{said}; clusters explain {part:.0%} of the variance of {held}"


def found_by(
    plan: FewPairs, measure: Callable[[Pairs], Sequence[float]]
) -> tuple[tuple[tuple[int, ...], ...], Pairs]:
    """Clusters, and the pairs that were held out; `measure` gives the latencies of a round."""
    while pairs := plan.next_round():
        plan.take(pairs, measure(pairs))
    clusters = plan.clusters()
    held: Pairs = []
    for pairs in plan.held_out(clusters):
        measure(pairs)
        held += pairs
    return clusters, held
