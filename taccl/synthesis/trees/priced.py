"""Trees of sums under prices of resources: a linear program over reduction and broadcast trees.

Each sum follows a pair of trees with a common root. The reduction tree brings the contributions to the root,
and the broadcast tree brings the sum to its destinations. Other ranks may relay. The program chooses the
share of each pair so that the busiest resource is busy for the least time. Its dual prices of resources give
further pairs: the cheapest ones, by a shortest-path heuristic for Steiner trees (column generation). If a
server updates sums, it is their root; otherwise the cheapest root is taken.

References
----------
P. C. Gilmore and R. E. Gomory, "A linear programming approach to the cutting-stock problem", Operations
Research 9 (1961), for column generation. H. Takahashi and A. Matsuyama, "An approximate solution for the
Steiner problem in graphs", Mathematica Japonica 24 (1980), for the trees.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl.problem.costs import hold_columns, link_ends
from taccl.solvers.highs import GrowingProgram

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taccl._internal.arrays import Floats, Ints
    from taccl.problem.chunks import Chunk
    from taccl.problem.problem import Problem

#: `_MOST_ROUNDS`: max solutions of the linear program.
#: `_NEAR`: max relative difference between the program's value and its lower bound at which it ends.
#: `_GAIN`: min relative gain of a pair of trees by the prices, to add it.
#: `_ROOTS`: number of roots for which trees are searched, those with the least mean distance.
_MOST_ROUNDS, _NEAR, _GAIN, _ROOTS = 60, 0.005, 1e-5, 4
#: Price of a hop relative to the highest price of data on a link, so that short trees come first.
_HOP = 1e-7
#: `_SHARPNESS`: exponent per relative load by which rounded loads are compared.
#: `_MOST_MOVES`: max chunks that change their trees after rounding.
_SHARPNESS, _MOST_MOVES = 20.0, 40


class TreePair(NamedTuple):
    """Reduction tree and broadcast tree of a sum.

    - `kind`: Number of the chunks' kind.
    - `inward`: Links of the reduction tree, each after all links that lead to its source.
    - `outward`: Links of the broadcast tree, each after the link that leads to its source.
    """

    kind: int
    inward: tuple[int, ...]
    outward: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TreeShares:
    """Pairs of trees, and the share of its kind's data that follows each pair.

    - `load`, (num_pairs, num_resources): Ticks for which the resources are busy if a pair carries all data of
      its kind.
    - `share`, (num_pairs,): Shares, which add up to 1 for each kind.
    """

    pairs: tuple[TreePair, ...]
    load: Floats
    share: Floats

    @property
    def busy_ticks(self) -> float:
        """Ticks for which the busiest resource is busy, without latencies."""
        return float((self.share @ self.load).max(initial=0.0))


def kinds_of(problem: Problem) -> list[tuple[Chunk, list[int]]]:
    """(a chunk, all chunks of its kind): chunks of a kind have equal ranks, and one server if it updates."""
    updates, found = problem.collective.updates, defaultdict[object, list[int]](list)
    for c, chunk in enumerate(problem.collective.chunks):
        found[chunk.origins, chunk.destinations, chunk.root if updates else None].append(c)
    return [(problem.collective.chunks[some[0]], some) for some in found.values()]


def tree_shares(problem: Problem, is_late: Callable[[], bool]) -> TreeShares | None:
    """Shares of pairs of trees by the linear program; the best so far if `is_late` becomes true.

    None if a rank cannot be reached, or the program was not solved.
    """
    links, kinds = _Links(problem), kinds_of(problem)
    units = [float(problem.costs.chunk_units[some].sum()) for _, some in kinds]
    num_resources = len(links.used)
    scale = sum(units) * float(links.beta.max(initial=0.0)) or 1.0
    program = GrowingProgram(
        np.concatenate((np.zeros(num_resources), -np.ones(len(kinds)))),
        (np.zeros(num_resources, np.int64), np.arange(num_resources), np.ones(num_resources)),
        ([], [1.0]),
        method="simplex",
    )
    pairs: list[TreePair] = []
    loads: list[Floats] = []
    price, worth, value, least = np.full(num_resources, 1 / num_resources), np.zeros(len(kinds)), 0.0, 0.0
    share = np.zeros(0)
    for number in range(_MOST_ROUNDS):
        if number and is_late():
            break
        sides, proven = links.paths(price), 0.0
        added: list[tuple[int, Floats]] = []
        for kind, (chunk, _) in enumerate(kinds):
            pair = links.cheapest(kind, chunk, sides, updates=problem.collective.updates)
            if pair is None:
                return None
            load = links.load(pair) * (units[kind] / scale)
            proven += float(load @ price)
            if not number or load @ price < worth[kind] - _GAIN * value:
                pairs.append(pair)
                loads.append(load)
                added.append((kind, load))
        least = max(least, proven)
        if not added or (number and least >= (1 - _NEAR) * value):
            break
        program.add_rows(_rows(added, num_resources), np.zeros(len(added)))
        found = program.solved()
        if found is None:
            break
        value, price, worth = -found.objective, found.values[:num_resources], found.values[num_resources:]
        share = np.abs(found.duals[1:])
    if not len(share):
        return None
    share = np.append(share, np.zeros(len(pairs) - len(share)))
    # Shares of a kind whose resources have no price may add up to more than 1.
    kind_of = np.array([pair.kind for pair in pairs])
    share = share / np.bincount(kind_of, share)[kind_of]
    return TreeShares(tuple(pairs), np.array(loads) * scale, share)


def _rows(added: Sequence[tuple[int, Floats]], num_resources: int) -> tuple[Ints, Ints, Floats]:
    """Rows of the dual program for new pairs: worth of the kind at most the price of the pair's load."""
    row, column, value = [], [], []
    for number, (kind, load) in enumerate(added):
        busy = np.flatnonzero(load)
        row.append(np.full(len(busy) + 1, number))
        column.append(np.append(busy, num_resources + kind))
        value.append(np.append(-load[busy], 1.0))
    return np.concatenate(row), np.concatenate(column), np.concatenate(value)


def rounded(found: TreeShares, problem: Problem) -> list[int]:
    """Pair of trees of each chunk, by number: whole chunks near the shares, with small loads.

    - `problem`: The problem whose shares were found, with the chunks of each kind cut into equal parts.
    """
    kinds, kind_of = kinds_of(problem), np.array([pair.kind for pair in found.pairs])
    count = np.array([len(some) for _, some in kinds])
    wanted = found.share * count[kind_of]
    number = np.floor(wanted + 1e-9).astype(np.int64)
    load = found.load[:, found.load.any(axis=0)] / count[kind_of][:, None]
    now, goal = number @ load, max(float((wanted @ load).max()), 1e-12)

    def cost(some: Floats) -> Floats:
        result: Floats = np.exp(np.minimum(_SHARPNESS * (some / goal - 1), 500)).sum(axis=-1)
        return result

    own = [np.flatnonzero(kind_of == kind) for kind in range(len(kinds))]
    for some, total in zip(own, count.tolist(), strict=True):
        for _ in range(total - int(number[some].sum())):
            pair = some[np.argmin(cost(now + load[some]))]
            number[pair] += 1
            now = now + load[pair]
    for _ in range(_MOST_MOVES):
        best, move = float(cost(now)) * (1 - 1e-9), None
        for pair in np.flatnonzero(number).tolist():
            some = own[kind_of[pair]]
            costs = cost(now - load[pair] + load[some])
            if costs.min() < best:
                best, move = float(costs.min()), (pair, int(some[np.argmin(costs)]))
        if move is None:
            break
        number[move[0]] -= 1
        number[move[1]] += 1
        now = now - load[move[0]] + load[move[1]]
    pair_of = [0] * problem.collective.num_chunks
    for some, (_, chunks) in zip(own, kinds, strict=True):
        # Copies of different pairs are interleaved evenly.
        places = sorted(
            ((i + 0.5) / number[pair], pair) for pair in some.tolist() for i in range(number[pair])
        )
        for chunk, (_, pair) in zip(chunks, places, strict=True):
            pair_of[chunk] = pair
    return pair_of


class _Side(NamedTuple):
    """Cheapest paths in one direction.

    - `distance`, (num_ranks, num_ranks): Price of the path from a rank, or to it against the links.
    - `first`, (num_ranks, num_ranks): First link of that path; -1 for none.
    - `ahead`, (num_links,): Rank to which a link leads on the path.
    """

    distance: Floats
    first: Ints
    ahead: Ints

    def tree(self, root: int, targets: Sequence[int]) -> list[int]:
        """Links of a tree from the root to the targets; each target joins over the cheapest path."""
        near, joint = self.distance[root].copy(), np.full(len(self.distance), root)
        left, inside, links = {*targets} - {root}, {root}, list[int]()
        while left:
            target = min(left, key=near.__getitem__)
            rank = int(joint[target])
            while rank != target:
                link = int(self.first[rank, target])
                rank = int(self.ahead[link])
                if rank not in inside:
                    links.append(link)
                    inside.add(rank)
                    is_nearer = self.distance[rank] < near
                    near, joint = (
                        np.where(is_nearer, self.distance[rank], near),
                        np.where(is_nearer, rank, joint),
                    )
            left -= inside
        return links


class _Links:
    """Usable links, and the ticks per unit for which they hold resources."""

    def __init__(self, problem: Problem) -> None:
        self.num_ranks = problem.topology.num_ranks
        src, dst = link_ends(problem.topology)
        self.src, self.dst = src.astype(np.int64), dst.astype(np.int64)
        self.allowed, self.holds = np.array(problem.links_allowed, np.int64), hold_columns(problem.topology)
        self.beta = problem.costs.hold_beta.astype(float)
        is_used = np.isin(self.holds.link, self.allowed) & (self.beta > 0)
        self.used, column = np.unique(self.holds.resource[is_used], return_inverse=True)
        self.column = np.full(len(self.beta), -1)
        self.column[is_used] = column

    def load(self, pair: TreePair) -> Floats:
        """(num_used,) ticks per unit for which a pair of trees holds the resources."""
        _, hold = self.holds.of_sends(np.array([*pair.inward, *pair.outward], np.int64))
        hold = hold[self.column[hold] >= 0]
        found: Floats = np.bincount(self.column[hold], self.beta[hold], len(self.used)).astype(np.float64)
        return found

    def paths(self, price: Floats) -> tuple[_Side, _Side]:
        """Cheapest paths along links, and against them, if resources have these prices."""
        is_used = self.column >= 0
        paid = self.beta[is_used] * price[self.column[is_used]]
        cost: Floats = np.bincount(self.holds.link[is_used], paid, len(self.src)).astype(np.float64)
        cost += _HOP * max(float(cost.max(initial=0.0)), 1e-12)
        links = self.allowed[np.argsort(-cost[self.allowed], kind="stable")]
        return self._side(self.src, self.dst, cost, links), self._side(self.dst, self.src, cost, links)

    def _side(self, tail: Ints, ahead: Ints, cost: Floats, links: Ints) -> _Side:
        """Cheapest paths by the Floyd-Warshall algorithm; of parallel links, the last one counts."""
        distance = np.full((self.num_ranks,) * 2, np.inf)
        first = np.full(distance.shape, -1)
        for link in links.tolist():
            distance[tail[link], ahead[link]] = cost[link]
            first[tail[link], ahead[link]] = link
        np.fill_diagonal(distance, 0.0)
        for via in range(self.num_ranks):
            through = distance[:, via, None] + distance[via]
            is_better = through < distance
            distance = np.where(is_better, through, distance)
            first = np.where(is_better, first[:, via, None], first)
        return _Side(distance, first, ahead)

    def cheapest(
        self, kind: int, chunk: Chunk, sides: tuple[_Side, _Side], *, updates: bool
    ) -> TreePair | None:
        """Cheapest pair of trees found for a chunk; None if no root reaches all ranks."""
        outward, inward = sides
        far = outward.distance[:, chunk.destinations].sum(axis=1)
        far = far + inward.distance[:, chunk.origins].sum(axis=1)
        roots = [chunk.root] if updates else np.argsort(far, kind="stable")[:_ROOTS].tolist()
        best, least = None, np.inf
        for root in roots:
            if root is None or not np.isfinite(far[root]):
                continue
            trees = inward.tree(root, chunk.origins), outward.tree(root, chunk.destinations)
            price = sum(
                side.distance[tail[e], side.ahead[e]]
                for side, tail, tree in zip((inward, outward), (self.dst, self.src), trees, strict=True)
                for e in tree
            )
            if price < least:
                best, least = TreePair(kind, tuple(trees[0][::-1]), tuple(trees[1])), price
        return best
