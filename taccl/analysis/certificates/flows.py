"""The multicommodity bound: the best prices of resources when every chunk takes its cheapest way.

For chunks with one destination (alltoall, scatter, gather). A linear program of flows, one commodity per
starting place, on the orbits of a problem's symmetries; its dual prices are the witness. Where it would be
too large, every resource costs the same, which gives distance times volume over capacity.
Source: Leighton and Rao, "Multicommodity max-flow min-cut theorems", Journal of the ACM 46 (1999).
"""

# w price of a resource per tick, f flow of a commodity over an arc

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from taccl.analysis.certificates.distances import Arcs, from_nearest
from taccl.analysis.certificates.gates import FOREVER
from taccl.analysis.certificates.heads_tails import MOST_ROUNDS, least_time, says_more
from taccl.analysis.certificates.volume import Volume
from taccl.analysis.certificates.witnesses import FlowDual
from taccl.sketch.group import Symmetries

#: Programs with more flows than this are not solved.
_MAX_FLOWS = 400_000
#: Up to so many go to the simplex method. The interior-point method, which more go to, looks at the clock
#: seldom: it is begun where there is a second for so many.
_FEW_FLOWS, _FLOWS_PER_S = 20_000, 10_000
#: Whole prices add up to about this, so that ways stay exact in double precision.
_PRICE_TOTAL = 10**6


@dataclass(frozen=True, slots=True)
class _Commodity:
    """What starts at some ranks and may use some links, by destination; `count` others are like it."""

    origins: tuple[int, ...]
    links: int
    volume: dict[int, int]
    count: int


def multicommodity(
    volume: Volume, symmetries: Symmetries, *, budget_s: float = math.inf, known: int = 0
) -> tuple[Fraction, FlowDual, bool] | None:
    """The bound in ticks, its witness, and whether the program was solved; None where it does not apply.

    A chunk with several destinations counts for the farthest.

    - `budget_s`: How long the program may take to solve; every resource costs the same where that is too
      short.
    - `known`: A bound in ticks that is known already: what says less need not be found.
    """
    if not volume.spreads or volume.collective.derivations:
        return None
    commodities = list(_commodities(volume, symmetries))
    if not commodities:
        return None
    arcs = [volume.distances.arcs(each.links) for each in commodities]
    idle = volume.heads_tails.idle(len(symmetries.resources))
    num_flows = sum(len(each[0]) for each in arcs)
    solved = num_flows <= min(_MAX_FLOWS, max(_FEW_FLOWS, _FLOWS_PER_S * budget_s))
    deadline = time.monotonic() + budget_s
    best: tuple[Fraction, FlowDual, bool] | None = None
    for _ in range(MOST_ROUNDS):
        left = max(0.0, deadline - time.monotonic()) if best is not None else budget_s
        priced = _solve(volume, symmetries, commodities, arcs, idle, left, known) if solved else None
        if priced is None and best is not None:
            break
        candidates = list(_flat(volume)) if priced is None else list(_rounded(priced, symmetries))
        proven = [(_proved(volume, commodities, arcs, idle, w), FlowDual(tuple(w))) for w in candidates]
        bound, witness = max(proven, key=lambda each: each[0])
        if best is None or bound > best[0]:
            best = bound, witness, priced is not None
        if priced is None or not says_more(idle, known, bound):
            break
        known = int(bound)
    return best


def _commodities(volume: Volume, symmetries: Symmetries) -> Iterator[_Commodity]:
    """One commodity per orbit of (origins, links)."""
    chunks, distances = volume.collective.chunks, volume.distances
    number: dict[tuple[tuple[int, ...], int], int] = {}
    of_chunk = np.full(len(chunks), -1)
    volumes: list[dict[int, int]] = []
    for c, chunk in enumerate(chunks):
        targets = set(chunk.destinations) - set(chunk.origins)
        if not targets or not chunk.origins:
            continue
        target = next(iter(targets))
        if len(targets) > 1:
            heads = distances.heads(c)
            target = max(sorted(targets), key=lambda r: heads[r])
        key = (chunk.origins, distances.carried(c))
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
    """Prices dual to the least T such that flows arrive and no orbit is held for longer than it can be."""
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    num_ranks = volume.problem.topology.num_ranks
    orbits, column, size = np.unique(symmetries.resources, return_inverse=True, return_counts=True)
    ticks = max((t for held in volume.held for t in held.values()), default=1) or 1
    unit = max(max(each.volume.values()) for each in commodities)
    num_arcs = [len(link) for link, _, _ in arcs]
    first = np.concatenate(([0], np.cumsum(num_arcs))).astype(np.int64)
    last = int(first[-1])  # the variable T
    arrive: tuple[list[NDArray[np.int64]], ...] = ([], [], [])
    load: tuple[list[int], list[int], list[float]] = ([], [], [])
    asked = np.zeros(len(commodities) * num_ranks)
    for k, (each, (link, src, dst)) in enumerate(zip(commodities, arcs, strict=True)):
        flows = first[k] + np.arange(len(link))
        for sign, end in ((1, dst), (-1, src)):
            inner = ~np.isin(end, each.origins)
            arrive[0].append(k * num_ranks + end[inner])
            arrive[1].append(flows[inner])
            arrive[2].append(np.full(int(inner.sum()), sign))
        for target, amount in each.volume.items():
            asked[k * num_ranks + target] += amount / unit
        for flow, e in zip(flows.tolist(), link.tolist(), strict=True):
            for resource, held in volume.held[e].items():
                orbit = int(column[resource])
                load[0].append(orbit)
                load[1].append(flow)
                load[2].append(each.count * held / ticks / int(size[orbit]))
    arrivals = coo_array(
        (np.concatenate(arrive[2]), (np.concatenate(arrive[0]), np.concatenate(arrive[1]))),
        shape=(len(asked), last + 1),
    )
    load[0].extend(range(len(orbits)))
    load[1].extend([last] * len(orbits))
    load[2].extend([-1.0] * len(orbits))
    loads = coo_array((load[2], (load[0], load[1])), shape=(len(orbits), last + 1))
    ticks_idle = np.where(idle[orbits] < FOREVER, np.minimum(idle[orbits], known), 0) * volume.ticks_scale
    objective = np.zeros(last + 1)
    objective[last] = 1
    answer = linprog(
        objective, A_ub=loads.tocsr(), b_ub=-ticks_idle / ticks / unit, A_eq=arrivals.tocsr(), b_eq=asked,
        method="highs-ds" if last <= _FEW_FLOWS else "highs-ipm",
        options={"time_limit": budget_s},
    )  # fmt: skip
    if answer.status != 0:
        return None
    price = np.maximum(-answer.ineqlin.marginals, 0) / size
    per_resource: NDArray[np.float64] = price[column]
    return per_resource


def _rounded(price: NDArray[np.float64], symmetries: Symmetries) -> Iterator[list[int]]:
    """Whole prices near the program's: as simple ratios, and with more digits."""
    top = float(price.max()) or 1.0
    orbits, column = np.unique(symmetries.resources, return_inverse=True)
    ratios = (price[orbits] / top).tolist()
    simple = [Fraction(ratio).limit_denominator(1000) for ratio in ratios]
    scale = math.lcm(*(ratio.denominator for ratio in simple))
    fine = [round(ratio * _PRICE_TOTAL) for ratio in ratios]
    for each in ([int(ratio * scale) for ratio in simple] if scale <= _PRICE_TOTAL else fine, fine):
        yield [each[i] for i in column.tolist()]


def _flat(volume: Volume) -> Iterator[list[int]]:
    """One price for all resources; for those that links between nodes hold; for those that links share."""
    topology = volume.problem.topology
    users: list[set[int]] = [set() for _ in topology.resources]
    for e in volume.problem.links_allowed:
        for resource in volume.held[e]:
            users[resource].add(e)
    between = set(topology.internode_links)
    for chosen in (
        [bool(links) for links in users],
        [bool(links & between) for links in users],
        [len(links) > 1 for links in users],
    ):
        if any(chosen):
            yield [int(each) for each in chosen]


def _proved(
    volume: Volume,
    commodities: Sequence[_Commodity],
    arcs: Sequence[Arcs],
    idle: NDArray[np.int64],
    price: Sequence[int],
) -> Fraction:
    """What prices prove: the price of every chunk's cheapest way is paid by the time that resources have."""
    pays = np.array([sum(price[r] * t for r, t in held.items()) for held in volume.held], dtype=float)
    total = 0
    for each, (link, src, dst) in zip(commodities, arcs, strict=True):
        cheapest = from_nearest(volume.problem.topology.num_ranks, src, dst, pays[link], each.origins)
        total += each.count * sum(int(cheapest[r]) * amount for r, amount in each.volume.items())
    return least_time(zip(price, idle.tolist(), strict=True), Fraction(total, volume.ticks_scale))
