"""The multicommodity bound, from dual prices of resources: no path of a chunk costs less than the cheapest.

It is for chunks with one destination (alltoall, scatter, gather). A linear program of flows has one commodity
per set of origins, on the orbits of a problem's symmetries; its dual prices are the witness. If the program
would be too large, prices are 0 or 1 (`_flat`); the bound is then distance times volume over capacity.
Source: Leighton and Rao, "Multicommodity max-flow min-cut theorems", Journal of the ACM 46 (1999).
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl._internal.graph_algorithms import paths_from_nearest, whole_paths_from_nearest
from taccl.analysis.certificates.certificate import OfPrices
from taccl.analysis.certificates.evaluation.facts import Facts, merged, pays, shortest_lengths, soonest
from taccl.analysis.certificates.finding.distances import Arcs, idle_at_most, least_time, proven_in_rounds
from taccl.analysis.certificates.finding.volume import Volume
from taccl.problem.problem import Problem
from taccl.sketch.group import Symmetries
from taccl.solvers.highs import minimise

#: Limit on the number of variables (flows) of the linear program; above it, the prices of `_flat` are used.
_MAX_FLOWS = 400_000
#: `_FEW_FLOWS`: max variables for the simplex method; larger programs use the interior-point method.
#: `_FLOWS_PER_S`: max variables per second of budget for interior point, which seldom checks the clock.
_FEW_FLOWS, _FLOWS_PER_S = 20_000, 10_000
#: Max integer price.
_PRICE_TOTAL = 10**6
#: `_MOST_EXACT`: max length of a path that double precision adds exactly.
#: `_MOST_WHOLE`: max arcs of all commodities for paths in Python integers (about 1 us per arc and round).
_MOST_EXACT, _MOST_WHOLE = 2**53, 50_000


@dataclass(frozen=True, slots=True)
class FlowDual(OfPrices):
    """Witness: prices of resources per tick of use.

    Each chunk uses resources worth at least the cheapest path to its destination, and all resources together
    are worth their total price in each tick.
    """

    kind, proves = "flow dual", "multicommodity"
    preference = 3
    prices: tuple[int, ...]

    def fits(self, problem: Problem) -> bool:
        """True if there is one price for each resource."""
        return len(self.prices) == len(problem.topology.resources)

    def proven(self, facts: Facts) -> int | Fraction:
        """Bound in ticks that the prices prove, evaluated exactly."""
        return facts.rounded(_priced(facts, self))


@dataclass(frozen=True, slots=True)
class _Commodity:
    """Commodity of the flow program: all chunks with the same origins and links.

    - `volume`: {destination: volume of the chunks for it}.
    - `links`: Index of the set of links that may carry the chunks, for `Distances.arcs`.
    - `count`: Number of commodities in its orbit under symmetry, itself included.
    """

    origins: tuple[int, ...]
    links: int
    volume: dict[int, int]
    count: int


class Flowed(NamedTuple):
    """Multicommodity bound in ticks, with its witness.

    - `is_best`: True if the prices are those of the linear program.
    - `is_cut_off`: True if more time would give these prices.
    """

    bound: Fraction
    witness: FlowDual
    is_best: bool
    is_cut_off: bool


def multicommodity(
    volume: Volume, symmetries: Symmetries, *, budget_s: float = math.inf, known: int = 0
) -> Flowed | None:
    """Bound of the problem, or None if it does not apply.

    A chunk with several destinations counts for the farthest one.

    - `budget_s`: Seconds for the linear program; if they are too few, the prices of `_flat` are used.
    - `known`: A known bound in ticks; a bound below it is of no use.
    """
    if not volume.spreads or volume.collective.derivations:
        return None
    backwards = _ends_in_fewer(volume)
    commodities = list(_commodities(volume, symmetries, backwards=backwards))
    if not commodities:
        return None
    arcs = [volume.distances.arcs(each.links) for each in commodities]
    if backwards:
        arcs = [(link, dst, src) for link, src, dst in arcs]
    idle = volume.heads_tails.idle(len(symmetries.resources))
    num_flows = sum(len(each[0]) for each in arcs)
    solved = num_flows <= min(_MAX_FLOWS, max(_FEW_FLOWS, _FLOWS_PER_S * budget_s))
    deadline = time.monotonic() + budget_s

    def best_of(candidates: Iterable[list[int]]) -> tuple[Fraction, FlowDual]:
        proven = [(_proved(volume, commodities, arcs, idle, w), FlowDual(tuple(w))) for w in candidates]
        return max(proven, key=lambda each: each[0])

    def prove(known: int) -> tuple[Fraction, FlowDual] | None:
        left = deadline - time.monotonic()
        priced = _solve(volume, symmetries, commodities, arcs, idle, left, known) if left > 0 else None
        return None if priced is None else best_of(_rounded(priced, symmetries))

    best = proven_in_rounds(idle, known, prove) if solved else None
    if best is not None:
        return Flowed(*best, is_best=True, is_cut_off=False)
    return Flowed(*best_of(_flat(volume)), is_best=False, is_cut_off=num_flows <= _MAX_FLOWS)


def _ends_in_fewer(volume: Volume) -> bool:
    """True if each chunk has one origin and one destination, and there are fewer destinations than origins.

    Then the program has one commodity per destination, with flows reversed.
    """
    chunks = [
        chunk for chunk in volume.collective.chunks if not set(chunk.destinations) <= set(chunk.origins)
    ]
    if any(len(chunk.origins) != 1 or len(chunk.destinations) != 1 for chunk in chunks):
        return False
    return len({chunk.destinations for chunk in chunks}) < len({chunk.origins for chunk in chunks})


def _commodities(volume: Volume, symmetries: Symmetries, *, backwards: bool) -> Iterator[_Commodity]:
    """Yield one commodity per orbit of (origins, links); if `backwards`, destinations count as origins."""
    chunks, distances = volume.collective.chunks, volume.distances
    number: dict[tuple[tuple[int, ...], int], int] = {}
    of_chunk = np.full(len(chunks), -1)
    volumes: list[dict[int, int]] = []
    for c, chunk in enumerate(chunks):
        targets = set(chunk.destinations) - set(chunk.origins)
        if not targets or not chunk.origins:
            continue
        origins, target = chunk.origins, next(iter(targets))
        if backwards:
            origins, (target,) = (target,), chunk.origins
        if len(targets) > 1:
            heads = distances.heads(c)
            target = max(sorted(targets), key=lambda r: heads[r])
        key = (origins, distances.carried(c))
        if key not in number:
            number[key] = len(volumes)
            volumes.append(defaultdict(int))
        of_chunk[c] = number[key]
        volumes[number[key]][target] += int(volume.weight[c])
    alone = any(len(set(chunk.destinations) - set(chunk.origins)) > 1 for chunk in chunks)
    like = np.arange(len(volumes))  # the first commodity of each orbit
    if not alone:
        for c in np.flatnonzero(of_chunk >= 0).tolist():
            like[of_chunk[c]] = min(like[of_chunk[c]], of_chunk[symmetries.chunks[c]])
        while not np.array_equal(like[like], like):
            like = like[like]
    counts = np.bincount(like, minlength=len(like))
    for (origins, links), i in number.items():
        if like[i] == i:
            yield _Commodity(origins, links, volumes[i], int(counts[i]))


def _solve(
    volume: Volume,
    symmetries: Symmetries,
    commodities: Sequence[_Commodity],
    arcs: Sequence[Arcs],
    idle: NDArray[np.int64],
    budget_s: float,
    known: int,
) -> NDArray[np.float64] | None:
    """Dual prices, (num_resources,), of the program: min T such that all flows arrive by T; None if unsolved.

    No resource may be held for longer than T minus its idle ticks; there is one constraint for each orbit of
    resources.
    """
    num_ranks, num_links = volume.problem.topology.num_ranks, len(volume.problem.topology.links)
    orbits, column, size = np.unique(symmetries.resources, return_inverse=True, return_counts=True)
    holder, resource, held = volume.holds
    ticks = int(held.max(initial=1))
    unit = max(max(each.volume.values()) for each in commodities)
    # Rows: orbits of resources, then (commodity, rank) pairs. Columns: (commodity, arc) pairs, then T.
    number = np.repeat(np.arange(len(commodities)), [len(each[0]) for each in arcs])
    link, src, dst = np.concatenate(arcs, axis=1)
    asked, starts = np.zeros((2, len(commodities), num_ranks))
    for k, each in enumerate(commodities):
        asked[k, [*each.volume]] = np.array([*each.volume.values()]) / unit
        starts[k, [*each.origins]] = 1
    num_flows = len(link)
    end, flow = np.append(dst, src) + num_ranks * np.tile(number, 2), np.tile(np.arange(num_flows), 2)
    sign = np.where(starts.ravel()[end] > 0, 0, np.repeat((1, -1), num_flows))
    counted = sign != 0
    first = np.searchsorted(holder, np.arange(num_links + 1))
    each = (first[1:] - first[:-1])[link]  # number of holds of each flow
    loading = np.repeat(np.arange(num_flows), each)
    hold = first[link][loading] + np.arange(len(loading)) - np.repeat(np.cumsum(each) - each, each)
    orbit = column[resource[hold]]
    count = np.array([each.count for each in commodities])[number]
    load = held[hold] / ticks / size[orbit] * count[loading]
    num_orbits = len(orbits)
    ticks_idle = idle_at_most(idle[orbits], known) * volume.ticks_scale
    answer = minimise(
        np.append(np.zeros(num_flows), 1),
        (
            np.concatenate((orbit, np.arange(num_orbits), num_orbits + end[counted])),
            np.concatenate((loading, np.full(num_orbits, num_flows), flow[counted])),
            np.concatenate((load, np.full(num_orbits, -1.0), sign[counted])),
        ),
        (-ticks_idle / ticks / unit, asked.ravel()),
        method="simplex" if num_flows <= _FEW_FLOWS else "ipm",
        limit_s=budget_s,
    )
    if answer is None:
        return None
    price = np.maximum(-answer.duals[:num_orbits], 0) / size
    per_resource: NDArray[np.float64] = price[column]
    return per_resource


def _rounded(price: NDArray[np.float64], symmetries: Symmetries) -> Iterator[list[int]]:
    """Yield integer prices close to those of the program: as simple ratios, then with more digits."""
    top = float(price.max()) or 1.0
    orbits, column = np.unique(symmetries.resources, return_inverse=True)
    ratios = (price[orbits] / top).tolist()
    simple = [Fraction(ratio).limit_denominator(1000) for ratio in ratios]
    scale = math.lcm(*(ratio.denominator for ratio in simple))
    fine = [round(ratio * _PRICE_TOTAL) for ratio in ratios]
    for each in ([int(ratio * scale) for ratio in simple] if scale <= _PRICE_TOTAL else fine, fine):
        yield [each[i] for i in column.tolist()]


def _flat(volume: Volume) -> Iterator[list[int]]:
    """Yield up to three vectors of prices, each of which is 1 for some resources and 0 for all others.

    Price 1 is given to all used resources, then to resources between nodes, then to resources that several
    links hold.
    """
    topology = volume.problem.topology
    link, resource, _ = volume.holds
    allowed = np.isin(link, volume.problem.links_allowed)
    users = np.bincount(resource[allowed], minlength=len(topology.resources))
    allowed &= np.isin(link, [*topology.internode_links])
    between = np.bincount(resource[allowed], minlength=len(topology.resources))
    for chosen in (users > 0, between > 0, users > 1):
        if chosen.any():
            yield chosen.astype(int).tolist()


def _proved(
    volume: Volume,
    commodities: Sequence[_Commodity],
    arcs: Sequence[Arcs],
    idle: NDArray[np.int64],
    price: Sequence[int],
) -> Fraction:
    """Bound in ticks that prices prove: hold times of resources must pay for the cheapest paths of chunks."""
    num_ranks = volume.problem.topology.num_ranks
    costs = [sum(price[r] * t for r, t in held.items()) for held in volume.held]
    unit = math.gcd(*costs) or 1
    longest = num_ranks * max(costs, default=0)
    is_exact = longest // unit < _MOST_EXACT
    is_whole = not is_exact and sum(len(each[0]) for each in arcs) <= _MOST_WHOLE
    if not (is_exact or is_whole):  # cost of a link in units that double precision adds; at most the real one
        unit = longest // _MOST_EXACT + 1
    pays = np.array([cost // unit for cost in costs], dtype=object if is_whole else float)
    total = 0
    for each, (link, src, dst) in zip(commodities, arcs, strict=True):
        cheapest: Mapping[int, int] | NDArray[np.float64]
        if is_whole:
            ends = src.tolist(), dst.tolist()
            cheapest = whole_paths_from_nearest(*ends, pays[link].tolist(), each.origins)
        else:
            cheapest = paths_from_nearest(num_ranks, src, dst, pays[link], each.origins)
        total += each.count * unit * sum(int(cheapest[r]) * amount for r, amount in each.volume.items())
    return least_time(zip(price, idle.tolist(), strict=True), Fraction(total, volume.ticks_scale))


def _priced(facts: Facts, witness: FlowDual) -> Fraction:
    """Bound in ticks that prices prove, as every chunk pays at least for its cheapest path."""
    if min(witness.prices, default=0) < 0 or facts.sums or facts.collective.derivations:
        return Fraction(0)
    paid = pays(facts, witness.prices)
    scale = merged(facts)
    whole = [int(each * scale) for each in paid]
    total, known = 0, {}
    for c, data in enumerate(facts.collective.chunks):
        targets = set(data.destinations) - set(data.origins)
        if not targets or not data.origins:
            continue
        links = facts.carried(c)
        key = (data.origins, id(links))
        if key not in known:
            out = facts.arcs({e: whole[e] for e in links})
            known[key] = shortest_lengths(out, dict.fromkeys(data.origins, 0))
        weight = 1 if facts.by_chunk else facts.units[c]
        total += weight * max(known[key].get(r, 0) for r in targets)
    return soonest(facts, witness.prices, facts.allowed, Fraction(total, scale))
