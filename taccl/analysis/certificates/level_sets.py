"""Cuts along level sets of coordinates, of the Fiedler vector, and of distances between ranks.

A mesh is narrowest across its middle, which no single rank or node shows. Every function of the ranks splits
them in two at each of its levels. The data that must enter either side crosses the links between the sides.
Each such set is evaluated alone, at prices of the resources at its border, and the best are proven. Source:
Fiedler, "A property of eigenvectors of nonnegative symmetric matrices and its application to graph theory",
Czechoslovak Mathematical Journal 25 (1975), for the vector.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from taccl.analysis.certificates.distances import arcs_of
from taccl.analysis.certificates.heads_tails import least_time
from taccl.analysis.certificates.volume import Volume, crossing_links
from taccl.analysis.certificates.witnesses import CutDual, SetCharge
from taccl.graph_algorithms import fiedler_vector, paths_from_nearest

Floats = NDArray[np.float64]

#: Approximate number of levels to try per function, evenly spaced by rank; one level halves the ranks.
_MOST_LEVELS = 9
#: Ranks, far from one another, from which distances are taken.
_LANDMARKS = 8
#: Number of most promising sets whose bounds are proven.
_MOST_PROVEN = 3
#: Max ranks for which the eigenvector is computed.
_MOST_OF_VECTOR = 5_000
#: Prices above this are rounded.
_MOST_PRICE = 10**12


def level_cut(volume: Volume, *, budget_s: float) -> tuple[Fraction, CutDual] | None:
    """Best bound in ticks by one set of ranks, and its witness; None if nothing crosses any set.

    - `budget_s`: Seconds after which no further sets are tried.
    """
    deadline = time.monotonic() + budget_s
    found: list[tuple[float, int, frozenset[int]]] = []
    tried: set[frozenset[int]] = set()
    for ranks in _sets(volume):
        if time.monotonic() > deadline:
            break
        if ranks not in tried:
            tried.add(ranks)
            shared = _shared_out(volume, ranks)
            if shared is not None:
                ticks = volume.needed((ranks,)) / float((1 / shared[2]).sum())
                found.append((ticks, -len(tried), ranks))
    proven = [_proven(volume, ranks) for _, _, ranks in heapq.nlargest(_MOST_PROVEN, found)]
    return max(proven, key=lambda each: each[0], default=None)


def _sets(volume: Volume) -> Iterator[frozenset[int]]:
    """Yield both sides of the levels of every function."""
    for values in _functions(volume):
        levels, count = np.unique(values, return_counts=True)
        below = np.cumsum(count)[:-1]
        if len(below) > _MOST_LEVELS:
            share = np.arange(1, _MOST_LEVELS + 1) / (_MOST_LEVELS + 1)
            at = np.searchsorted(below, share * len(values))
            # Take the levels on either side of every share, as none may be exactly at it.
            chosen = np.unique(np.concatenate((at, np.maximum(at - 1, 0))))
            levels = levels[:-1][np.minimum(chosen, len(below) - 1)]
        else:
            levels = levels[:-1]
        for level in levels.tolist():
            inside = values <= level
            for side in (inside, ~inside):
                yield frozenset(np.flatnonzero(side).tolist())


def _functions(volume: Volume) -> Iterator[Floats]:
    """Yield functions of the ranks; their level sets are the cuts."""
    yield from _coordinates(volume.problem.topology.num_ranks)
    graph = _Graph(volume)
    yield from graph.eigenvector()
    distances = list(graph.distances())
    yield from (a - b for a, b in itertools.combinations(distances, 2))
    yield from distances


def _coordinates(num_ranks: int) -> Iterator[Floats]:
    """Yield coordinates of ranks that are numbered row by row, for all possible row lengths."""
    ranks = np.arange(num_ranks)
    divisors = [m for m in range(1, num_ranks + 1) if num_ranks % m == 0]
    pairs = [(m, n) for m in divisors for n in divisors if n > 1 and num_ranks % (m * n) == 0]
    # Coordinates of two dimensions first: the innermost (m = 1), then the outermost (m n = num_ranks).
    for m, n in sorted(pairs, key=lambda pair: (pair[0] * pair[1] < num_ranks and pair[0] > 1, pair)):
        yield (ranks // m % n).astype(float)


class _Graph:
    """The ranks, joined by the usable links."""

    def __init__(self, volume: Volume) -> None:
        problem = volume.problem
        self.num_ranks = problem.topology.num_ranks
        link, self.src, self.dst = arcs_of(problem, problem.links_allowed)
        size = int(problem.costs.chunk_units.max(initial=1))
        self.ticks = problem.costs.link_alpha[link] + size * problem.costs.link_beta[link]

    def eigenvector(self) -> Iterator[Floats]:
        """Yield the Fiedler vector (second least eigenvalue) of the Laplacian; fast links weigh more."""
        if not 4 <= self.num_ranks <= _MOST_OF_VECTOR or not len(self.ticks):
            return
        speed = self.ticks.max() / np.maximum(self.ticks, 1)
        found = fiedler_vector(self.num_ranks, self.src, self.dst, speed)
        if found is not None:
            yield np.round(found, 9)

    def distances(self) -> Iterator[Floats]:
        """Yield distances from a rank with the fewest links, then repeatedly from the farthest so far."""
        ticks = self.ticks.astype(float)
        degree = np.bincount(self.src, minlength=self.num_ranks)
        place = int(np.argmin(degree))
        nearest = np.full(self.num_ranks, np.inf)
        for _ in range(min(_LANDMARKS, self.num_ranks)):
            away = paths_from_nearest(self.num_ranks, self.src, self.dst, ticks, [place])
            away = np.where(np.isfinite(away), away, away[np.isfinite(away)].max() + 1)
            yield away
            nearest = np.minimum(nearest, away)
            place = int(np.argmax(nearest))


def _proven(volume: Volume, ranks: frozenset[int]) -> tuple[Fraction, CutDual]:
    """Bound that one set proves, and its witness: prices at which all links at the border pay alike."""
    shared = _shared_out(volume, ranks)
    assert shared is not None, "what takes no time is not proven"
    crosses, resources, ticks = shared
    scale = math.lcm(*ticks.tolist())
    if scale > _MOST_PRICE:
        scale = max(_MOST_PRICE, int(ticks.max()))
    prices = [0] * len(volume.problem.topology.resources)
    for r, each in zip(resources.tolist(), ticks.tolist(), strict=True):
        prices[r] = max(1, round(scale / each))
    charge = min(
        sum(prices[r] * each for r, each in volume.held[e].items()) for e in np.flatnonzero(crosses).tolist()
    )
    idle = volume.heads_tails.idle(len(prices), crosses).tolist()
    rates = zip((price * volume.ticks_scale for price in prices), idle, strict=True)
    bound = least_time(rates, Fraction(charge * volume.needed((ranks,))))
    return bound, CutDual(tuple(prices), (SetCharge((ranks,), Fraction(charge, volume.ticks_scale)),))


def _shared_out(
    volume: Volume, ranks: frozenset[int]
) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]] | None:
    """(links that enter, resources, min hold ticks of each); None if the required sends take no time.

    Each link counts for one of its resources: the one that links at the border hold longest in total.
    """
    if not volume.needed((ranks,)):
        return None
    topology = volume.problem.topology
    crosses = np.zeros(len(topology.links), dtype=bool)
    crosses[crossing_links(volume.problem, (ranks,))] = True
    link, resource, ticks = volume.holds
    at = np.flatnonzero(crosses[link] & (ticks > 0))
    link, resource, ticks = link[at], resource[at], ticks[at]
    in_all = np.bincount(resource, ticks, len(topology.resources))[resource]
    order = np.lexsort((resource, -in_all, link))
    first = order[np.unique(link[order], return_index=True)[1]]
    if not len(first) or len(first) < int(crosses.sum()):
        return None
    chosen, where = np.unique(resource[first], return_inverse=True)
    least = np.full(len(chosen), np.iinfo(np.int64).max)
    np.minimum.at(least, where, ticks[first])
    return crosses, chosen, least
