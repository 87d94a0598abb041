"""Link time: a bound on sums on tori, from the link time that a byte occupies, and the hops it must make.

A byte in a short send pays for much latency, and a byte in long sends makes few hops in time. But each rank's
contribution must reach the farthest rank. A linear program on a grid of times finds prices of hops. See
docs/formulation.md, "Link time".
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.analysis.certificates.certificate import Claim, Witness
from taccl.analysis.certificates.evaluation.facts import Facts
from taccl.analysis.certificates.finding.needed_sends import NeededSends
from taccl.problem.costs import link_ends
from taccl.problem.problem import Problem
from taccl.solvers.highs import minimise
from taccl.topology.recognise import grid_of

#: Numbers of time steps to try for the grid, as multiples of n. Here, n latencies fit into the likely bound.
#: The values that usually prove the highest bounds come first.
_STEPS_PER_LATENCY = (2.2, 1.05, 3.0, 1.6)
#: `_MOST_FLOWS`: max number of flows in a linear program (about 0.6 s).
#: `_MOST_RANKS`: max number of ranks.
_MOST_FLOWS, _MOST_RANKS = 7000, 256
#: Max number of linear programs for a grid; each narrows down the horizon.
_ROUNDS = 3
#: Integer value of a price of 1 in a witness.
_SCALE = 10**6


class HopPrice(NamedTuple):
    """Price of a hop, for data of one rank, in sends that start at `start` and take `length` steps.

    - `here`, `there`: Distances of the two ends from the data's rank along all dimensions, ascending.
    - `price`: The price in units of `LinkTime.scale`.
    """

    here: tuple[int, ...]
    there: tuple[int, ...]
    start: int
    length: int
    price: int


@dataclass(frozen=True, slots=True)
class LinkTime(Witness):
    """Witness of link time: a horizon, a grid of times, and prices.

    - `horizon`: Ticks in which no schedule ends, as the prices prove.
    - `sizes`: Sizes of the rings of the torus, all equal; the first digit of a rank varies fastest.
    - `steps`: Number of steps of the grid into which the horizon is divided.
    - `scale`: Integer value of a price of 1.
    - `per_send`: Price of every send, in units of `scale`.
    - `prices`: Prices of hops; hops that are not named are free.
    """

    kind = proves = "link time"
    preference = 12
    any_chunking = True
    horizon: Fraction
    sizes: tuple[int, ...]
    steps: int
    scale: int
    per_send: int
    prices: tuple[HopPrice, ...]

    def fits(self, problem: Problem) -> bool:
        """True if the sizes are those of a torus of all ranks with rings of one size, of at least 3."""
        is_torus = len({*self.sizes}) == 1 and min(self.sizes) >= 3
        return is_torus and math.prod(self.sizes) == problem.topology.num_ranks

    def holds(self, facts: Facts, ticks: Fraction) -> bool:
        """True if no schedule of the problem finishes before `ticks`, evaluated exactly."""
        return ticks <= self.horizon and _is_proven(facts, self)


def link_time_bounds(demand: NeededSends, *, in_network: bool) -> Iterator[Claim]:
    """Yield the link-time bound for sums that have contributions of all ranks and are wanted by all."""
    problem, num_ranks = demand.problem, demand.topology.num_ranks
    if in_network or not demand.single_ended or problem.collective.derivations or num_ranks > _MOST_RANKS:
        return
    dims, everyone = grid_of(demand.topology), set(range(num_ranks))
    units = sum(
        kind.units * count
        for kind, count in demand.classes.items()
        if demand.sums_for_all and everyone == set(kind.data.origins) == set(kind.data.destinations)
    )
    if dims is None or not units or any(each.kind != "ring" for each in dims) or len({*dims.sizes}) > 1:
        return
    if dims.sizes[0] < 3 or not _links_alone(demand):
        return
    links = sorted(demand.allowed)
    alpha, beta = int(problem.costs.link_alpha[links].min()), int(problem.costs.link_beta[links].min())
    if not alpha or not beta:
        return
    grid = _Grid(dims.sizes, len(links), alpha, beta * units)
    facts = Facts(problem, divisible=True, in_network=False)
    for number in _STEPS_PER_LATENCY:
        demand.deadline.check()
        witness = grid.best(math.ceil(number * grid.guess / alpha))
        proven = None if witness is None else _adjusted(facts, witness)
        if proven is not None:
            what = f"time of {len(links)} links for sums that each take {grid.diameter} hops or more"
            yield Claim(proven.horizon, what, proven)


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


def _adjusted(facts: Facts, witness: LinkTime) -> LinkTime | None:
    """Witness with the same prices, and the largest nearby horizon that they prove; None if there is none.

    Prices that prove a horizon also prove a shorter one, in which short sends cost more.
    """
    low, high, best = 800, 1050, None
    while low < high:
        share = (low + high + 1) // 2
        found = replace(witness, horizon=witness.horizon * Fraction(share, 1000))
        if _is_proven(facts, found):
            low, best = share, found
        else:
            high = share - 1
    return best


class _Solved(NamedTuple):
    """Solution of the linear program: least cost of the sends of a byte, and its dual prices."""

    cost: float
    per_send: float
    prices: dict[tuple[int, int, int, int], float]


class _Grid:
    """Linear programs for the least link time per byte on a torus, over a grid of times, reduced by symmetry.

    Ranks at the same distances from rank 0 (in any order of dimensions) form a class. All links are alike.

    - `links`: Number of links.
    - `alpha`: Latency in ticks.
    - `busy`: Ticks for all bytes over one link.
    """

    def __init__(self, sizes: tuple[int, ...], links: int, alpha: int, busy: int) -> None:
        self.sizes, self.links, self.alpha, self.busy = sizes, links, alpha, busy
        size, num_dims = sizes[0], len(sizes)
        self.num_ranks = math.prod(sizes)
        self.directions = 2 * num_dims
        counts: Counter[tuple[tuple[int, ...], tuple[int, ...]]] = Counter()
        for digits in product(range(size), repeat=num_dims):
            here = tuple(sorted(min(digit, size - digit) for digit in digits))
            for k, way in product(range(num_dims), (1, -1)):
                near = (*digits[:k], (digits[k] + way) % size, *digits[k + 1 :])
                counts[here, tuple(sorted(min(digit, size - digit) for digit in near))] += 1
        self.classes = sorted({here for here, _ in counts})
        number = {each: i for i, each in enumerate(self.classes)}
        self.hops = [(number[a], number[b], count) for (a, b), count in counts.items() if sum(b) > sum(a)]
        self.distance = [sum(each) for each in self.classes]
        self.diameter = max(self.distance)
        #: Estimate of the bound in ticks; the search starts near it.
        self.guess = 1.1 * (self.diameter * alpha + busy * 2 * (self.num_ranks - 1) / links)

    def best(self, steps: int) -> LinkTime | None:
        """Witness with the largest horizon found; None if the linear program is too large, or proves none."""
        low, high = self.diameter * float(self.alpha), min(1.1 * self.guess, self.alpha * steps * 0.999)
        best: tuple[float, float, _Solved] | None = None
        below, above = math.inf, -0.1 * high  # cost minus horizon, at `low` and `high`; guesses at first
        horizon = min(0.95 * self.guess, high)
        for _ in range(_ROUNDS):
            found = self.solve(steps, horizon)
            if found is None:
                break
            excess = math.inf if not found.prices else self.busy * found.cost / self.links - horizon
            # Keep the best horizon. If the cost is less than a horizon, the difference is deducted from it.
            if found.prices and (best is None or horizon + min(0.0, excess) > best[0]):
                best = horizon + min(0.0, excess), horizon, found
            if excess > 0:
                low, below = horizon, excess
            else:
                high, above = horizon, excess
            share = 0.5 if below == math.inf else min(0.9, max(0.1, below / (below - above)))
            horizon = low + (high - low) * share
        if best is None:
            return None
        _, horizon, solved = best
        prices = tuple(
            HopPrice(self.classes[a], self.classes[b], start, length, int(price * _SCALE * (1 - 1e-6)))
            for (a, b, start, length), price in sorted(solved.prices.items())
        )
        kept = tuple(each for each in prices if each.price > 0)
        return LinkTime(
            Fraction(round(horizon * 16), 16), self.sizes, steps, _SCALE, int(solved.per_send * _SCALE), kept
        )

    def solve(self, steps: int, horizon: float) -> _Solved | None:
        """Least cost of the sends of a byte that ends by the horizon; no prices if none is found.

        There are no prices if no byte can end by then, or if the linear program is not solved. None if the
        program is too large, or if a step is longer than the latency.
        """
        latency = self.alpha * steps / horizon
        least = math.floor(latency)
        # The number comes first, as the grid of a large sum has billions of sends.
        if least < 1 or (number := self.num_flows(steps, least)) > _MOST_FLOWS:
            return None
        if not number:
            return _Solved(math.inf, 0, {})
        cost = self.costs(latency, steps)
        sends = [(start, m) for start in range(steps) for m in range(least, steps - start + 1)]
        begin, long = np.array(sends, np.int64).T
        parts: list[NDArray[np.int64]] = []
        for hop, (a, b, _) in enumerate(self.hops):
            rest = (self.diameter - self.distance[b]) * least
            some = np.flatnonzero((begin >= self.distance[a] * least) & (steps - begin - long >= rest))
            parts.append(np.stack((np.full(len(some), hop), some)))
        hops, send = np.concatenate(parts, axis=1)
        src, dst, count = np.array(self.hops, np.int64)[hops].T
        # Columns: sends per link, then flows over classes of links, then waits at classes of ranks. Rows:
        # capacities of flows, the number of sends, the target, and balances of classes at each time.
        num_flows, num_sends, points = len(hops), len(sends), len(self.classes) * (steps + 1)
        flow, wait = num_sends + np.arange(num_flows), num_sends + num_flows + np.arange(points)
        balance, rows = num_flows + 2, np.arange(num_flows)
        later = np.flatnonzero(np.arange(points) % (steps + 1))
        target = (self.distance.index(self.diameter) + 1) * (steps + 1) - 1
        entries = [
            (rows, flow, np.ones(num_flows)),
            (rows, send, -count.astype(float)),
            (np.full(num_sends, num_flows), np.arange(num_sends), np.full(num_sends, -float(self.links))),
            (np.array([num_flows + 1]), wait[[target]], np.array([-1.0])),
            (balance + np.arange(points), wait, np.ones(points)),
            (balance + later, wait[later - 1], np.full(len(later), -1.0)),
            (balance + src * (steps + 1) + begin[send], flow, np.ones(num_flows)),
            (balance + dst * (steps + 1) + begin[send] + long[send], flow, np.full(num_flows, -1.0)),
        ]
        upper = np.zeros(balance + points)
        upper[num_flows], upper[num_flows + 1] = -2.0 * (self.num_ranks - 1), -1.0
        upper[balance + self.distance.index(0) * (steps + 1)] = 1.0
        objective = np.zeros(num_sends + num_flows + points)
        objective[:num_sends] = self.links * np.array([cost[m] for m in long.tolist()])
        row, column, value = (np.concatenate(each) for each in zip(*entries, strict=True))
        answer = minimise(objective, (row, column, value), (upper, ()), method="ipm")
        if answer is None:
            return _Solved(math.inf, 0, {})
        duals = np.maximum(-answer.duals, 0.0)
        # Prices are per link and byte; the prices of one rank's data are a share of those of all ranks.
        share = self.directions / self.links
        prices = {
            (a, b, start, length): price * share
            for a, b, start, length, price in zip(
                src.tolist(), dst.tolist(), begin[send].tolist(), long[send].tolist(),
                duals[:num_flows].tolist(), strict=True,
            )
            if price > 1e-9
        }  # fmt: skip
        return _Solved(float(objective @ answer.values), float(duals[num_flows]), prices)

    def num_flows(self, steps: int, least: int) -> int:
        """Number of variables of the linear program: hops with a send that may be part of a path in time.

        - `steps`: Number of time steps.
        - `least`: Min number of steps of a send.
        """
        # Number of lengths of a send that starts as early as possible; a start one step later has one fewer.
        lengths = (
            steps - (self.distance[a] + self.diameter - self.distance[b] + 1) * least + 1
            for a, b, _ in self.hops
        )
        return sum(each * (each + 1) // 2 for each in lengths if each > 0)

    @staticmethod
    def costs(latency: float, steps: int) -> list[float]:
        """`_least_costs` in floating point, a list by length of a send; inf below the latency."""
        least = math.floor(latency)

        def line(m: int, at: float) -> float:
            point = m + 0.5 if m > least else latency + 0.75 * (least + 1 - latency)
            over = point - latency
            return point / over - latency / over**2 * (at - point)

        found = [math.inf] * least + [line(least, least)]
        return found + [min(line(m - 1, m), line(m, m)) for m in range(least + 1, steps + 1)]


def _is_proven(facts: Facts, witness: LinkTime) -> bool:
    """True if the prices prove that no schedule ends before the horizon, over all chunkings."""
    links = facts.allowed
    if not facts.divisible or facts.multi or facts.made_at or facts.in_network or facts.only_switches_add:
        return False
    num_ranks, sizes = facts.topology.num_ranks, witness.sizes
    everyone = set(range(num_ranks))
    units = sum(
        size
        for chunk, size in zip(facts.collective.chunks, facts.units, strict=True)
        if facts.sums and set(chunk.origins) == everyone == set(chunk.destinations)
    )
    alpha, beta = min(facts.alpha[e] for e in links), min(facts.beta[e] for e in links)
    if not units or not alpha or not beta or witness.horizon <= 0 or witness.steps < 1 or witness.scale < 1:
        return False
    if not _is_torus(facts, sizes):
        return False
    latency = alpha * witness.steps / witness.horizon
    least = math.floor(latency)
    if not 1 <= least <= witness.steps:
        return False
    costs = _least_costs(latency, witness.steps)
    if witness.per_send < 0 or any(cost * witness.scale < witness.per_send for cost in costs.values()):
        return False
    # Prices of the data of one rank, added up over the links in all directions.
    total: dict[tuple[int, int], int] = defaultdict(int)
    named: dict[tuple[tuple[int, ...], tuple[int, ...]], dict[tuple[int, int], int]] = defaultdict(dict)
    counts = _hop_counts(sizes)
    for here, there, start, length, price in witness.prices:
        if price < 0 or (here, there) not in counts or (start, length) in named[here, there]:
            return False
        named[here, there][start, length] = price
        total[start, length] += counts[here, there] * price
    for (_, length), price in total.items():
        if length > witness.steps:
            return False
        if length >= least and price > 2 * len(sizes) * (costs[length] * witness.scale - witness.per_send):
            return False
    path = _cheapest_path(counts, named, sizes, witness.steps, least)
    needed = num_ranks * path + 2 * (num_ranks - 1) * witness.per_send
    return bool(witness.horizon * len(links) * witness.scale <= units * beta * needed)


def _is_torus(facts: Facts, sizes: tuple[int, ...]) -> bool:
    """True if each allowed link is the only one from a rank to its neighbour, and has its own resource.

    The link must hold this resource from the start to the end of each send.
    """
    holders = Counter(resource for e in facts.allowed for resource in facts.holds[e])
    ends = set()
    for e in facts.allowed:
        src, dst = facts.src[e], facts.dst[e]
        moved = 0
        for k, size in enumerate(sizes):
            apart = (src // size**k - dst // size**k) % size
            moved += min(apart, size - apart)
        alone = any(
            holders[resource] == 1 and hold[:2] == (facts.alpha[e], facts.beta[e])
            for resource, hold in facts.holds[e].items()
        )
        if moved != 1 or (src, dst) in ends or not alone:
            return False
        ends.add((src, dst))
    return True


def _least_costs(latency: Fraction, steps: int) -> dict[int, Fraction]:
    """{length of a send in steps: its time divided by the time without latency}, or slightly less.

    A send of x steps takes x / (x - latency) times the time of its bytes. The costs, with straight lines
    between whole lengths, are at most that: every line lies below a tangent.
    """
    least = math.floor(latency)

    def tangent(length: int, at: int) -> Fraction:
        """Value at `at` of a tangent to x / (x - latency) that touches it just above `length`."""
        point = length + Fraction(1, 2)
        if length == least:
            point = latency + Fraction(3, 4) * (least + 1 - latency)
        return point / (point - latency) - latency / (point - latency) ** 2 * (at - point)

    found = {least: tangent(least, least)}
    for length in range(least + 1, steps + 1):
        found[length] = min(tangent(length - 1, length), tangent(length, length))
    return found


def _hop_counts(sizes: tuple[int, ...]) -> dict[tuple[tuple[int, ...], tuple[int, ...]], int]:
    """{(distances of a rank from rank 0, those of its neighbour), each ascending: number of links}."""
    size, found = sizes[0], defaultdict[tuple[tuple[int, ...], tuple[int, ...]], int](int)
    for rank in product(range(size), repeat=len(sizes)):
        for k in range(len(sizes)):
            for step in (1, size - 1):
                other = list(rank)
                other[k] = (other[k] + step) % size
                ends = (tuple(sorted(min(each, size - each) for each in end)) for end in (rank, other))
                found[next(ends), next(ends)] += 1
    return dict(found)


def _cheapest_path(
    hops: Iterable[tuple[tuple[int, ...], tuple[int, ...]]],
    prices: dict[tuple[tuple[int, ...], tuple[int, ...]], dict[tuple[int, int], int]],
    sizes: tuple[int, ...],
    steps: int,
    least: int,
) -> int:
    """Least price of a path from rank 0 to the farthest rank, by sends of at least `least` steps each."""
    onward = defaultdict(list)
    for here, there in hops:
        onward[here].append((there, prices.get((here, there), {})))
    found: list[dict[tuple[int, ...], int]] = [{} for _ in range(steps + 1)]
    found[0][(0,) * len(sizes)] = 0
    for now in range(steps + 1):
        for here, paid in (found[now - 1] if now else {}).items():
            found[now][here] = min(paid, found[now].get(here, paid))
        for here, paid in found[now].items():
            for there, named in onward[here]:
                for length in range(least, steps - now + 1):
                    price = paid + named.get((now, length), 0)
                    after = found[now + length]
                    if price < after.get(there, price + 1):
                        after[there] = price
    return found[steps].get(tuple(size // 2 for size in sizes), 0)
