"""Link time: a lower bound for allreduces on tori and meshes, by prices of the time of links and of hops.

A link spends much of a short send on latency, but long sends leave time for few hops. Yet each rank's
contribution must reach the farthest rank. A linear program on a grid of times finds the prices. See
docs/formulation.md, "Link time".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.analysis.certificates.certificate import Claim, Witness
from taccl.analysis.certificates.evaluation.facts import Facts
from taccl.analysis.certificates.finding.link_loads import LinkLoads
from taccl.analysis.certificates.finding.needed_sends import NeededSends
from taccl.problem.costs import link_ends
from taccl.problem.problem import Problem
from taccl.topology.recognise import grid_of

#: Grids of the search: (max number of steps, number of times at which each place has prices of its own).
#: The search uses a rough grid for the approximate horizon, then finer ones.
#: `_PER_LATENCY`: possible numbers of steps per latency; the search uses the largest within the grid's max.
#: Just above whole numbers, rounding to steps changes the costs of sends least.
_GRIDS = (150, 2), (250, 5), (250, 17)
_PER_LATENCY = 24.05, 16.05, 12.05, 8.05, 6.05, 5.05, 4.05, 3.05, 2.05, 1.05
#: `_NEAR`: distance of the logarithm of the links' load from 0 at which the search on the rough grid ends.
#: `_FINER`: approximate ratio of the horizons that the second grid and the rough one prove.
_NEAR, _FINER = 0.1, 1.02
#: Max number of linear programs per grid; each brings the horizon closer to the best provable bound.
_ROUNDS = 4
#: Within a horizon that no schedule meets, links are overloaded: the logarithm of their load is positive.
#: `_MARGIN`: logarithm of the load at which the search for the longest overloaded horizon aims.
#: `_SLOPE`: slope of log load over log horizon, assumed until two horizons have been tried.
_MARGIN, _SLOPE = 0.001, -1.5
#: Share of a horizon that prices still prove once their load has been rounded.
_LESS = 1 - 1e-9
#: Denominator of horizons in ticks.
_TICK = 2**10
#: `_MOST_RANKS`: max number of ranks. `_MOST_STEPS`: max number of steps of a grid.
_MOST_RANKS, _MOST_STEPS = 256, 500
#: Largest price of a step that a witness may have. Larger prices might not fit 64 bits.
_MOST_PRICE = 10**7
#: `_MOST_COST`: largest cost of a send. `_PARTS`: denominator of costs. Both keep sums within 64 bits.
_MOST_COST, _PARTS = 10, 10**8
#: Distances of a rank from a source along all dimensions; ascending if all dimensions are alike.
#: On odd rings they are distances in the direction that the source faces.
Place = tuple[int, ...]
#: Digits of a rank, or 1 or -1 for the direction along each dimension.
Digits = tuple[int, ...]
#: Places of the two ends of a link.
Ends = tuple[Place, Place]


class PlacePrices(NamedTuple):
    """Prices of data at a place, one for each step and one for the end; they fall over time.

    The price of a hop is the difference between the prices at its end and at its start, if that is positive.
    """

    place: Place
    prices: tuple[int, ...]


class TimePrices(NamedTuple):
    """Prices of a tick of link time, one for each step of the grid of times.

    They apply to each link whose ends are at the places `here` and `there`, as seen from some source.
    """

    here: Place
    there: Place
    prices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LinkTime(Witness):
    """Witness of link time: a horizon, a grid of times, and prices.

    - `horizon`: Ticks within which no schedule can end, as the prices prove.
    - `sizes`: Sizes of the dimensions; the first digit of a rank varies fastest.
    - `rings`: True for each dimension that is a ring, False for a line.
    - `steps`: Number of steps of the grid into which the horizon is divided.
    - `per_send`: Price of a send, in addition to the prices of the hops that its data make.
    - `times`: Prices of the time of links; links that are not named are free.
    - `places`: Prices of data at places; at places that are not named they are 0.
    """

    kind = proves = "link time"
    preference = 12
    any_chunking = True
    horizon: Fraction
    sizes: tuple[int, ...]
    rings: tuple[bool, ...]
    steps: int
    per_send: int
    times: tuple[TimePrices, ...]
    places: tuple[PlacePrices, ...]

    def fits(self, problem: Problem) -> bool:
        """True if the sizes are those of a torus or mesh of all ranks, with rings of at least 3 ranks."""
        is_grid = len(self.sizes) == len(self.rings) > 0 and all(
            size >= (3 if ring else 2) for size, ring in zip(self.sizes, self.rings, strict=True)
        )
        return is_grid and math.prod(self.sizes) == problem.topology.num_ranks

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        return ticks <= self.horizon and _is_proven(facts, self)


def link_time_bounds(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Yield the link-time bound for sums that have contributions of all ranks and are wanted by all."""
    problem, num_ranks = demand.problem, demand.topology.num_ranks
    if num_ranks > _MOST_RANKS:
        return
    dims, units = grid_of(demand.topology), demand.shared_units(in_network=in_network)
    if dims is None or not units or not _links_alone(demand):
        return
    links = sorted(demand.allowed)
    alpha, beta = int(problem.costs.link_alpha[links].min()), int(problem.costs.link_beta[links].min())
    if not alpha or not beta:
        return
    facts = Facts(problem, divisible=True, in_network=False)
    loads = LinkLoads(dims, alpha, beta * units)
    horizon = loads.guess
    what = f"time of {len(links)} links for sums that each take {loads.diameter} hops or more"
    for most_steps, knots in _GRIDS:
        tried: dict[float, float] = {}
        for _ in range(_ROUNDS):
            demand.deadline.check()
            if horizon < loads.diameter * alpha:  # as latency alone proves
                return
            steps = _steps(loads, horizon, most_steps)
            whole = Fraction(round(horizon * _TICK), _TICK)
            found = loads.priced(whole, steps, knots, limit_s=demand.deadline.left_s) if steps else None
            if found is None:
                demand.deadline.check()
                break
            times = tuple(TimePrices(*each) for each in found.times)
            places = tuple(PlacePrices(*each) for each in found.places)
            # Prices that load the links less than fully prove a horizon that is shorter by as much.
            less = Fraction(math.floor(whole * Fraction(found.load * _LESS) * _TICK), _TICK)
            proven = whole if found.load > 1 else less
            witness = LinkTime(proven, dims.sizes, loads.rings, steps, found.per_send, times, places)
            is_proven = proven > 0 and _is_proven(facts, witness)
            if is_proven:
                yield Claim(proven, what, witness)
            tried[math.log(horizon)] = excess = math.log(max(found.load, 1e-9))
            horizon = _next_horizon(tried)
            if knots == _GRIDS[0][1] and is_proven and abs(excess) < _NEAR:
                horizon *= _FINER
                break
            if abs(excess) < 3 * _MARGIN and len(tried) > 1:
                break
    demand.deadline.check()  # so that a program cut off by time is solved again if there is more


def _steps(loads: LinkLoads, horizon: float, most: int) -> int:
    """Number of steps of a grid, at most `most` if sends take several; 0 if there would be too many."""
    sizes = [math.ceil(number * horizon / loads.alpha) for number in _PER_LATENCY]
    steps = next((size for size in sizes if size <= most), sizes[-1])
    return steps if steps <= _MOST_STEPS else 0


def _next_horizon(tried: dict[float, float]) -> float:
    """Horizon at which links should be overloaded by `_MARGIN`, from {log of horizon: log of load}."""
    (x, y), *others = sorted(tried.items(), key=lambda each: abs(each[1] - _MARGIN))
    slope = _SLOPE if not others else (others[0][1] - y) / (others[0][0] - x)
    slope = max(-8.0, min(-0.5, slope))
    return math.exp(x + max(-0.5, min(0.5, (_MARGIN - y) / slope)))


def _links_alone(demand: NeededSends) -> bool:
    """True if no two links join the same ranks, and each link holds a resource of its own while it sends."""
    costs = demand.problem.costs
    holders = Counter(resource for e in demand.allowed for resource in demand.held[e])
    src, dst = (ends[sorted(demand.allowed)] for ends in link_ends(demand.topology))
    pairs = set(zip(src.tolist(), dst.tolist(), strict=True))
    return len(pairs) == len(demand.allowed) and all(
        any(
            holders[resource] == 1 and (hold[0], hold[1]) == (costs.link_alpha[e], costs.link_beta[e])
            for resource, hold in demand.held[e].items()
        )
        for e in demand.allowed
    )


def _is_proven(facts: Facts, witness: LinkTime) -> bool:
    """True if the prices prove that no schedule ends before the horizon, over all chunkings."""
    if not facts.divisible or facts.multi or facts.made_at or facts.in_network or facts.only_switches_add:
        return False
    links, num_ranks, steps = facts.allowed, facts.topology.num_ranks, witness.steps
    everyone = set(range(num_ranks))
    units = sum(
        size
        for chunk, size in zip(facts.collective.chunks, facts.units, strict=True)
        if facts.sums and set(chunk.origins) == everyone == set(chunk.destinations)
    )
    alpha, beta = min(facts.alpha[e] for e in links), min(facts.beta[e] for e in links)
    if not units or not alpha or not beta or witness.horizon <= 0 or not 1 <= steps <= _MOST_STEPS:
        return False
    if not _is_grid(facts, witness):
        return False
    latency = Fraction(alpha * steps) / witness.horizon
    least = math.floor(latency)
    if not 1 <= least <= steps or not 0 <= witness.per_send <= _MOST_PRICE * _MOST_STEPS:
        return False
    shape = _Shape(witness.sizes, witness.rings)
    places = _place_prices(witness, shape)
    times = {(here, there): prices for here, there, prices in witness.times}
    if places is None or any(
        len(each) != steps or min(each) < 0 or max(each) > _MOST_PRICE for each in times.values()
    ):
        return False
    start, end = np.triu_indices(steps + 1, least)
    cost = np.array([0] * least + _least_costs(latency, steps), np.int64)[end - start]
    spent = 0
    for alike, number in shape.links.items():
        paid = np.zeros(steps + 1, np.int64)
        named = next((times[hop] for hop, _ in alike if hop in times), None)
        if named is not None:
            paid[1:] = np.cumsum(np.array(named, np.int64))
            spent += number * int(paid[-1])
        total = np.zeros_like(start)
        for hop, count in alike:
            here, there = (places[place] for place in hop)
            total += count * np.maximum(there[end] - here[start], 0)
        if ((total + witness.per_send) > (paid[end] - paid[start]) * cost // _PARTS).any():
            return False
    path = max(0, int(places[shape.farthest][-1] - places[shape.source][0]))
    needed = shape.num_sources * path + 2 * (num_ranks - 1) * witness.per_send
    # The product must be above 0: without prices, both sides of the inequality would be 0.
    return bool(0 < witness.horizon * spent <= units * beta * needed * steps)


def _is_grid(facts: Facts, witness: LinkTime) -> bool:
    """True if each allowed link is the only one from a rank to its neighbour, and has its own resource.

    The link must hold this resource from the start to the end of each send.
    """
    holders = Counter(resource for e in facts.allowed for resource in facts.holds[e])
    ends = set()
    for e in facts.allowed:
        src, dst = facts.src[e], facts.dst[e]
        moved, stride = 0, 1
        for size, ring in zip(witness.sizes, witness.rings, strict=True):
            apart = abs(src // stride % size - dst // stride % size)
            moved += min(apart, size - apart) if ring else apart
            stride *= size
        alone = any(
            holders[resource] == 1 and hold[:2] == (facts.alpha[e], facts.beta[e])
            for resource, hold in facts.holds[e].items()
        )
        if moved != 1 or (src, dst) in ends or not alone:
            return False
        ends.add((src, dst))
    return True


class _Shape:
    """Links of a torus or mesh, grouped by their positions relative to the sources.

    Sources are all ranks of a torus, or the corners of a mesh. On odd rings, each faces either direction.
    """

    def __init__(self, sizes: tuple[int, ...], rings: tuple[bool, ...]) -> None:
        self.sizes, self.rings = sizes, rings
        self.is_even = len({*zip(sizes, rings, strict=True)}) == 1
        shapes = [*zip(sizes, rings, strict=True)]
        self._is_odd = [ring and size % 2 == 1 for size, ring in shapes]
        ranks = product(*(range(size) if ring else (0, size - 1) for size, ring in shapes))
        directions = product(*((1, -1) if odd else (1,) for odd in self._is_odd))
        sources = [*product(ranks, directions)]
        self.num_sources = len(sources)
        first = (0,) * len(sizes), (1,) * len(sizes)
        self.source = self.place(first[0], first)
        self.farthest = self.place([size // 2 if ring else size - 1 for size, ring in shapes], first)
        #: {((hop, number of sources from which the link makes this hop), ...): number of such links}.
        #: Translations map each link of a ring to one from its first rank.
        self.links: Counter[tuple[tuple[Ends, int], ...]] = Counter()
        alike = math.prod(size for size, ring in shapes if ring)
        for src in product(*(range(1 if ring else size) for size, ring in shapes)):
            for k, step in product(range(len(sizes)), (1, -1)):
                end = src[k] + step
                if rings[k] or 0 <= end < sizes[k]:
                    dst = (*src[:k], end, *src[k + 1 :])
                    hops: Counter[Ends] = Counter(
                        (self.place(src, at), self.place(dst, at)) for at in sources
                    )
                    self.links[tuple(sorted(hops.items()))] += alike
        self.hops = {hop for each in self.links for hop, _ in each}

    def place(self, rank: Iterable[int], source: tuple[Digits, Digits]) -> Place:
        """Distances from a source to a rank: on odd rings in the direction that the source faces."""
        found = [way * (x - y) for x, y, way in zip(rank, *source, strict=True)]
        for k, (size, ring) in enumerate(zip(self.sizes, self.rings, strict=True)):
            found[k] = abs(found[k]) if not ring else found[k] % size
            if ring and not self._is_odd[k]:
                found[k] = min(found[k], size - found[k])
        return tuple(sorted(found) if self.is_even else found)


def _place_prices(witness: LinkTime, shape: _Shape) -> dict[Place, NDArray[np.int64]] | None:
    """{place: prices of data by step}; None if prices are given twice, rise over time, or are no place's."""
    found = {place: np.zeros(witness.steps + 1, np.int64) for hop in shape.hops for place in hop}
    given = dict(witness.places)
    if len(given) < len(witness.places) or not given.keys() <= found.keys():
        return None
    for place, prices in given.items():
        if len(prices) != witness.steps + 1 or min(prices) < 0 or max(prices) > _MOST_PRICE * _MOST_STEPS:
            return None
        found[place] = np.array(prices, np.int64)
        if (np.diff(found[place]) > 0).any():
            return None
    return found


def _least_costs(latency: Fraction, steps: int) -> list[int]:
    """Cost per unit of data for sends of `floor(latency)`, ..., `steps` steps, as multiples of 1 / `_PARTS`.

    A send of x steps carries data during x - latency of them. It pays this cost times the prices of its
    steps. The proof needs costs that fall with x. Interpolated linearly, they must be at most
    1 / (x - latency). They are, as they lie below tangents of this convex function.
    """
    least = math.floor(latency)

    def tangent(length: int, at: int) -> Fraction:
        """Value at `at` of a tangent to 1 / (x - latency) that touches it just above `length`."""
        over = length + Fraction(1, 2) - latency
        if length == least:
            over = Fraction(3, 4) * (least + 1 - latency)
        return 1 / over - (at - latency - over) / over**2

    found = [tangent(least, least)]
    for length in range(least + 1, steps + 1):
        found.append(min(found[-1], tangent(length - 1, length), tangent(length, length)))
    return [math.floor(max(Fraction(0), min(each, Fraction(_MOST_COST))) * _PARTS) for each in found]
