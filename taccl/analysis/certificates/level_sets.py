"""Throughput bounds of cuts along level sets of coordinates, of the Fiedler vector, and of distances.

Cuts around ranks and nodes miss the narrowest cut of a mesh, which goes through its middle. Coordinates, the
vector and distances are functions of the ranks. Each function splits the ranks in two at each of its levels.
The data that one side needs from the other must cross the links in between. Each cut is evaluated on its own,
at prices of the resources on its border, and the bounds of the best cuts are proven. Source of the vector:
Fiedler, "A property of eigenvectors of nonnegative symmetric matrices and its application to graph theory",
Czechoslovak Mathematical Journal 25 (1975).
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Iterator
from fractions import Fraction
from operator import mul

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arrays import distinct, first_rows, lexsort
from taccl._internal.graph_algorithms import fiedler_vector, paths_from_nearest
from taccl.analysis.certificates.cuts import CutDual, SetCharge
from taccl.analysis.certificates.finding.distances import arcs_of, least_time
from taccl.analysis.certificates.finding.volume import Volume, crossing_links
from taccl.topology.recognise import grid_of
from taccl.topology.topology import Topology

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

#: Approximate number of levels at which each function of the ranks is cut; the middle level halves the ranks.
_MOST_LEVELS = 9
#: Number of cuts that are evaluated first, so that some are complete if time is short.
_FIRST_CUTS = 4
#: Number of ranks, far from one another, whose distance functions are used.
_LANDMARKS = 8
#: Number of cuts, with the highest estimates, whose bounds are proven.
_MOST_PROVEN = 3
#: Max ranks for which the Fiedler vector is computed.
_MOST_OF_VECTOR = 5_000
#: `_VECTOR_S`: seconds for the Fiedler vector of more than `_FEW_RANKS` ranks, for which SciPy is imported.
_VECTOR_S, _FEW_RANKS = 0.3, 200
#: Max size of the arrays by which cuts are evaluated together: cuts times link holds, or times chunk kinds.
_MOST_CELLS = 2_000_000
#: Max number of sets of ranks behind shared resources (`behind_shared`) that `node_cut` evaluates.
_MOST_SHARED = 64
#: Max link holds to count in the search for resources that cover the links at one border (about 0.1 s).
_MOST_COVER = 10_000_000
#: Max common multiple by which prices become integers; above it, prices are rounded.
_MOST_PRICE = 10**12


def level_cut(volume: Volume, *, budget_s: float) -> tuple[Fraction, CutDual] | None:
    """(best bound in ticks from a single cut, its witness); None if no cut must be crossed.

    - `budget_s`: Seconds after which no further cuts are tried; the first cuts are always tried, unless it is
      negative.
    """
    if budget_s < 0:
        return None
    deadline, borders = time.monotonic() + budget_s, _Borders(volume)
    found: list[tuple[float, Flags]] = []
    for sides in _in_batches(_sides(volume, deadline), borders.most_at_once):
        found += zip(borders.estimates(sides), sides, strict=True)
    best = heapq.nlargest(_MOST_PROVEN, found, key=lambda each: each[0])
    ranks = (frozenset(np.flatnonzero(side).tolist()) for ticks, side in best if ticks)
    proven = [_proven(volume, borders, (each,)) for each in ranks]
    return max(proven, key=lambda each: each[0], default=None)


def node_cut(volume: Volume, *, in_network: bool = False) -> tuple[Fraction, CutDual] | None:
    """(best bound in ticks from cuts around nodes and ranks, its witness); None if nothing must cross them.

    Cuts are single nodes, single ranks, the ranks behind a shared resource such as a rack's uplink, and their
    complements; for sums, also the partitions into all nodes and into all ranks. The bound needs neither
    symmetries nor a linear program, so it is available if time is short.

    - `in_network`: True if switches are assumed to reduce.
    """
    topology = volume.problem.topology
    nodes = [frozenset(ranks) for ranks in topology.ranks_of_node if ranks]
    everyone = [frozenset([rank]) for rank in range(topology.num_ranks)]
    partitions = [parts for parts in ([nodes] if nodes == everyone else [nodes, everyone]) if len(parts) > 1]
    if not partitions:
        return None
    borders = _Borders(volume)
    best: list[tuple[frozenset[int], ...]] = []
    for parts in partitions:
        if not volume.spreads and not in_network:
            best.append(tuple(parts))
        first = np.argsort(-volume.entering_estimates(parts), kind="stable")
        some = [parts[place] for place in first[: max(1, borders.most_at_once // 2)].tolist()]
        sides = np.zeros((2 * len(some), len(everyone)), dtype=bool)
        for index, ranks in enumerate(some):
            sides[2 * index, sorted(ranks)] = True
            sides[2 * index + 1] = ~sides[2 * index]
        estimates = borders.estimates(sides)
        index = int(np.argmax(estimates))
        if estimates[index]:
            best.append((frozenset(np.flatnonzero(sides[index]).tolist()),))
    sides = borders.behind_shared()
    if len(sides):
        estimates = borders.estimates(sides)
        best.append((frozenset(np.flatnonzero(sides[int(np.argmax(estimates))]).tolist()),))
    proven = [_proven(volume, borders, parts) for parts in best if volume.needed(parts)]
    return max(proven, key=lambda each: each[0], default=None)


def _in_batches(sides: Iterator[Flags], most: int) -> Iterator[Flags]:
    """Stack sets of ranks, and yield them as (num_sets, num_ranks) arrays of at most `most` sets each.

    The first arrays have few sets.
    """
    count = _FIRST_CUTS
    while batch := [*itertools.islice(sides, min(count, most))]:
        yield np.array(batch)
        count *= 2


def _sides(volume: Volume, deadline: float = math.inf) -> Iterator[Flags]:
    """Yield sets of ranks to try as cuts, (num_ranks,) bool, each once.

    They are the ranks at or below a level of one of `_functions`, and the ranks above it. Levels that split
    the ranks most evenly come first.
    """
    tried: set[bytes] = set()
    for place, values in enumerate(_functions(volume, deadline)):
        if place and time.monotonic() > deadline:
            return
        ordered = np.sort(values)
        below = np.flatnonzero(ordered[1:] > ordered[:-1]) + 1
        if len(below) > _MOST_LEVELS:
            share = np.arange(1, _MOST_LEVELS + 1) / (_MOST_LEVELS + 1)
            at = np.searchsorted(below, share * len(values))
            # Ranks with equal values may leave no level at this position, so take the nearest on both sides.
            chosen = distinct(np.concatenate((at, np.maximum(at - 1, 0))))
            below = below[np.minimum(chosen, len(below) - 1)]
        below = below[np.argsort(np.abs(2 * below - len(values)), kind="stable")]
        for level in ordered[below - 1].tolist():
            inside = values <= level
            for side in (inside, ~inside):
                key = side.tobytes()
                if key not in tried:
                    tried.add(key)
                    yield side


def _functions(volume: Volume, deadline: float = math.inf) -> Iterator[Floats]:
    """Yield functions of the ranks, (num_ranks,) float64, whose level sets are the cuts.

    The Fiedler vector is left out if the time until the deadline is too short for it.
    """
    yield from _coordinates(volume.problem.topology)
    graph = _Graph(volume)
    if graph.num_ranks <= _FEW_RANKS or deadline - time.monotonic() > _VECTOR_S:
        yield from graph.eigenvector()
    distances = list(graph.distances())
    yield from (a - b for a, b in itertools.combinations(distances, 2))
    yield from distances


def _coordinates(topology: Topology) -> Iterator[Floats]:
    """Yield grid coordinates of ranks that are numbered row by row, for every grid with that many ranks.

    Those of a torus or mesh come first, along its longest dimension at the front; then grids of two
    dimensions.
    """
    num_ranks, dims = topology.num_ranks, grid_of(topology) or ()
    ranks = np.arange(num_ranks)
    divisors = [m for m in range(1, num_ranks + 1) if num_ranks % m == 0]
    pairs = [(m, n) for m in divisors for n in divisors if n > 1 and num_ranks % (m * n) == 0]
    # In two dimensions, a coordinate varies fastest (m = 1), or slowest (m n = num_ranks).
    pairs.sort(key=lambda pair: (pair[0] * pair[1] < num_ranks and pair[0] > 1, pair))
    sizes = [each.size for each in dims]
    own = sorted(zip([1, *itertools.accumulate(sizes, mul)], sizes, strict=False), key=lambda pair: -pair[1])
    for m, n in dict.fromkeys([*own, *pairs]):
        yield (ranks // m % n).astype(float)


class _Graph:
    """Graph of the ranks, joined by the usable links."""

    def __init__(self, volume: Volume) -> None:
        problem = volume.problem
        self.num_ranks = problem.topology.num_ranks
        link, self.src, self.dst = arcs_of(problem, problem.links_allowed)
        size = int(problem.costs.chunk_units.max(initial=1))
        self.ticks = problem.costs.link_alpha[link] + size * problem.costs.link_beta[link]

    def eigenvector(self) -> Iterator[Floats]:
        """Yield the Fiedler vector of the graph Laplacian, with links weighted by speed.

        It is the eigenvector of the second-smallest eigenvalue. Nothing is yielded if the graph has fewer
        than four ranks, or more than `_MOST_OF_VECTOR`.
        """
        if not 4 <= self.num_ranks <= _MOST_OF_VECTOR or not len(self.ticks):
            return
        speed = self.ticks.max() / np.maximum(self.ticks, 1)
        found = fiedler_vector(self.num_ranks, self.src, self.dst, speed)
        if found is not None:
            yield np.round(found, 9)

    def distances(self) -> Iterator[Floats]:
        """Yield distances from several landmarks to all ranks.

        The first landmark is a rank with the fewest links. Each further one is the rank farthest from those
        before.
        """
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


class _Borders:
    """Links that enter sets of ranks, resources that limit them, and volume that must enter.

    Sets are rows of (num_sets, num_ranks) bool arrays. Columns of links are the usable links, ascending.
    """

    def __init__(self, volume: Volume) -> None:
        self.volume = volume
        problem = volume.problem
        arc, self._src, self._dst = arcs_of(problem, problem.links_allowed)
        self.links, self._first = first_rows(arc)
        self.num_resources = len(problem.topology.resources)
        link, resource, ticks = volume.holds
        at = np.flatnonzero((ticks > 0) & np.isin(link, self.links))
        at = at[lexsort((resource[at], link[at]))]
        self._column = np.searchsorted(self.links, link[at])
        self._resource, self._ticks = resource[at], ticks[at]
        place = np.arange(len(at)) - np.searchsorted(self._column, self._column)
        shape = len(self.links), int(place.max(initial=0)) + 1
        #: (num_links, max holds per link): the resources of each link, ascending; padded with -1.
        self._holds = np.full(shape, -1)
        self._held = np.zeros(shape, dtype=np.int64)
        self._holds[self._column, place], self._held[self._column, place] = self._resource, self._ticks
        self.most_at_once = max(1, _MOST_CELLS // max(1, self._holds.size, volume.num_kinds))

    def behind_shared(self) -> Flags:
        """(num_sets, num_ranks) ranks at either end of a shared resource's links, and their complements.

        At most `_MOST_SHARED` sets, those of resources with the longest total holds first. Sets of one rank,
        or of all ranks but one, are left out.
        """
        num_ranks = self.volume.problem.topology.num_ranks
        held = np.bincount(self._resource, self._ticks, minlength=self.num_resources)
        shared = np.flatnonzero(np.bincount(self._resource, minlength=self.num_resources) > 1)
        if len(shared) * num_ranks > _MOST_CELLS:
            return np.zeros((0, num_ranks), dtype=bool)
        row = np.full(self.num_resources, -1)
        row[shared] = np.arange(len(shared))
        at = np.flatnonzero(row[self._resource] >= 0)
        ends = np.zeros((2, len(shared), num_ranks), dtype=bool)
        arcs = np.append(self._first, len(self._src))
        for place, rank in enumerate((self._src, self._dst)):
            for step in range(int(np.diff(arcs).max(initial=0))):
                has = arcs[self._column[at]] + step < arcs[self._column[at] + 1]
                some = at[has]
                ends[place, row[self._resource[some]], rank[arcs[self._column[some]] + step]] = True
        sides = ends.reshape(-1, num_ranks)
        sizes = sides.sum(axis=1)
        order = np.argsort(-np.tile(held[shared], 2), kind="stable")
        order = order[(sizes[order] > 1) & (sizes[order] < num_ranks - 1)]
        found = {sides[each].tobytes(): sides[each] for each in order.tolist()}.values()
        kept = [*found][: _MOST_SHARED // 2]
        return np.array([side for each in kept for side in (each, ~each)]).reshape(-1, num_ranks)

    def estimates(self, sides: Flags) -> list[float]:
        """Approximate bound of each set in ticks; 0 if some link into it takes no time."""
        enters = sides[:, self._dst] & ~sides[:, self._src]
        crosses = np.logical_or.reduceat(enters, self._first, axis=1) if len(self._first) else enters
        least = self.least_holds(crosses)
        is_held = self._held[:, 0] > 0
        limits = crosses.any(axis=1) & ~(crosses & ~is_held).any(axis=1)
        rate = np.divide(1.0, least, out=np.zeros(least.shape), where=least > 0).sum(axis=1)
        ticks = np.divide(self.volume.needed_in(sides), rate, out=np.zeros(len(sides)), where=rate > 0)
        found: list[float] = np.where(limits, ticks, 0).tolist()
        return found

    def least_holds(self, crosses: Flags) -> NDArray[np.int64]:
        """(num_sets, num_resources) min ticks for which links at a set's border hold a resource; 0 for none.

        Each link counts for one of its resources: the one with the longest total hold by links at the border.

        - `crosses`, (num_sets, num_links) bool: Links at each border.
        """
        in_all = np.empty((len(crosses), self.num_resources))
        for row, crossing in zip(in_all, crosses, strict=True):
            held = self._ticks * crossing[self._column]
            row[:] = np.bincount(self._resource, held, minlength=self.num_resources)
        at, link = np.nonzero(crosses)
        total = np.where(self._holds[link] >= 0, in_all[at[:, None], self._holds[link]], -1.0)
        best = np.argmax(total, axis=1)
        resource, ticks = self._holds[link, best], self._held[link, best]
        least = np.full((len(crosses), self.num_resources), np.iinfo(np.int64).max)
        counts = resource >= 0
        np.minimum.at(least, (at[counts], resource[counts]), ticks[counts])
        least[least == np.iinfo(np.int64).max] = 0
        return least

    def least_holds_of_cover(self, crosses: Flags) -> NDArray[np.int64]:
        """(num_resources,) min ticks for which links at a border hold a resource, by a greedy cover of them.

        The resource that links at the border hold longest takes all of its links. Then the resource that the
        remaining links hold longest takes its links, and so on. After `_MOST_COVER` holds, `least_holds`
        assigns the remaining links.

        - `crosses`, (num_links,) bool: Links at the border.
        """
        least, left = np.zeros(self.num_resources, dtype=np.int64), crosses.copy()
        of_link = np.flatnonzero(left[self._column])
        column, ticks = self._column[of_link], self._ticks[of_link]
        used, resource = np.unique(self._resource[of_link], return_inverse=True)
        work = 0
        while len(column) and work < _MOST_COVER:
            work += len(column)
            longest = int(np.argmax(np.bincount(resource, ticks, minlength=len(used))))
            own = resource == longest
            least[used[longest]] = ticks[own].min()
            left[column[own]] = False
            some = left[column]
            column, resource, ticks = column[some], resource[some], ticks[some]
        if not len(column):
            return least
        further = self.least_holds(left[None])[0]
        both = (least > 0) & (further > 0)
        found: NDArray[np.int64] = np.where(both, np.minimum(least, further), np.maximum(least, further))
        return found


def _proven(volume: Volume, borders: _Borders, parts: tuple[frozenset[int], ...]) -> tuple[Fraction, CutDual]:
    """(bound in ticks from one set or partition, its witness): the better of two covers by resources.

    A cover assigns each link at the border to one of its resources. A link is charged once for each pair of
    parts that it joins.
    """
    entering, pairs = np.unique(crossing_links(volume.problem, parts), return_counts=True)
    crosses = np.isin(borders.links, entering)
    covers = [borders.least_holds(crosses[None])[0], borders.least_holds_of_cover(crosses)]
    if np.array_equal(*covers):
        covers.pop()
    proven = [_priced(volume, parts, entering, pairs, least) for least in covers]
    return max(proven, key=lambda each: each[0])


def _priced(
    volume: Volume,
    parts: tuple[frozenset[int], ...],
    entering: NDArray[np.int64],
    pairs: NDArray[np.int64],
    least: NDArray[np.int64],
) -> tuple[Fraction, CutDual]:
    """(bound in ticks, its witness) with resource prices that charge all links across a cut about equally.

    - `entering`, `pairs`, (num_crossing,): Links at the border, and how many pairs of parts each joins.
    - `least`, (num_resources,): Min hold in ticks of the links that a resource counts for; 0 for none.
    """
    resources = np.flatnonzero(least)
    ticks = least[resources]
    scale = math.lcm(*ticks.tolist())
    if scale > _MOST_PRICE:
        scale = max(_MOST_PRICE, int(ticks.max(initial=1)))
    prices = np.zeros(len(least), dtype=np.int64)
    prices[resources] = [max(1, round(scale / each)) for each in ticks.tolist()]
    is_border = np.zeros(len(volume.problem.topology.links), dtype=bool)
    is_border[entering] = True
    at = np.flatnonzero(is_border[volume.holds[0]])
    link, resource, held = (column[at] for column in volume.holds)
    most = int(prices.max(initial=0)) * int(held.max(initial=0)) * len(at)
    exact = np.int64 if most < 2**63 else object
    first = np.flatnonzero(np.diff(link, prepend=-1))
    paid = np.add.reduceat(prices[resource].astype(exact) * held.astype(exact), first) if len(at) else link
    # A link without holds pays nothing. Few sums differ, which saves most fractions.
    is_paid = len(paid) == len(entering)
    charges = {Fraction(each, n) for each, n in set(zip(paid.tolist(), pairs.tolist(), strict=False))}
    charge = min(charges, default=Fraction(0)) if is_paid else Fraction(0)
    idle = volume.heads_tails.idle(len(prices), is_border)[resources].tolist()
    rates = zip((price * volume.ticks_scale for price in prices[resources].tolist()), idle, strict=True)
    bound = least_time(rates, charge * volume.needed(parts))
    return bound, CutDual(tuple(prices.tolist()), (SetCharge(parts, charge / volume.ticks_scale),))
