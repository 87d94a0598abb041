"""Plans of an allreduce on a mesh by trees of any shape: one tree to a root, and one from it.

Prices of the links in each step decide the trees. Each tree grows by the cheapest path to a rank outside it,
as in the shortest-path heuristic for Steiner trees (H. Takahashi and A. Matsuyama, Math. Japonica 24, 1980).
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl._internal.deadline import NEVER
from taccl.baselines.line_hubs import MeshPlans, images

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl._internal.deadline import Deadline
    from taccl.baselines.hubs import PlanSends
    from taccl.baselines.mix_program import MixProgram
    from taccl.baselines.moves import Flags, Ints
    from taccl.topology.products import Dimensions

    Floats = NDArray[np.float64]

#: Rounds in which each rank of a finished tree may change to a cheaper send.
_SWEEPS = 3
#: Max linear programs of the column generation. Every `_EXACT`-th takes its prices as they are.
_ROUNDS, _EXACT = 16, 4
#: Weight of earlier prices in the prices of other linear programs, which smooths them.
_SLOW = 0.6
#: The column generation ends unless `_PATIENCE` linear programs reduce the finish to less than this share.
_PATIENCE, _PAYS = 6, 0.999
#: Share of the remaining ranks that join a tree at once.
_AT_ONCE = 0.34
#: Max plans that are added per linear program.
_MOST_PLANS = 20
#: Times in us up to this are zero.
_NONE = 1e-9


class TreePlan(NamedTuple):
    """Sends of an allreduce: those of a tree to the root, then those of a tree from it.

    - `step`, `src`, `dst`: One entry per send.
    - `adds`: (num_sends, num_ranks) True for each rank whose contribution the send carries.
    """

    step: Ints
    src: Ints
    dst: Ints
    adds: Flags

    def sends(self, dims: Dimensions) -> PlanSends:
        """Columns of the sends."""
        return self.step, self.src, self.dst, self.adds


class _Trees(NamedTuple):
    """Broadcast trees: the send to each rank, (num_trees, num_ranks).

    - `src`, `step`: Source and step of the send; -1 at the root.
    - `cost`: Sum of prices of each tree; infinite if the steps do not suffice.
    """

    src: Ints
    step: Ints
    cost: Floats


class MeshTrees:
    """Links of a mesh, and the trees over them.

    - `table`, `sizes`: Classes of links and their sizes, as from `classes_of_links`.
    """

    def __init__(self, dims: Dimensions, table: Ints, sizes: Ints) -> None:
        self.sizes, ranks = sizes, np.arange(dims.num_ranks)
        ways = [*product(range(len(dims)), (0, 1))]
        #: (num_neighbours, num_ranks) neighbours; a rank at a border is its own neighbour there.
        self.near = np.stack(
            [
                np.where(table[k, up] >= 0, ranks + (1 if up else -1) * dims.strides[k], ranks)
                for k, up in ways
            ]
        )
        #: (2, num_neighbours, num_ranks) classes of links from each neighbour, then of those to it; -1: none.
        self.kinds = np.stack(
            (
                np.stack(
                    [
                        np.where(table[k, up] >= 0, table[k, 1 - up, near], -1)
                        for (k, up), near in zip(ways, self.near, strict=True)
                    ]
                ),
                np.stack([table[way] for way in ways]),
            )
        )
        #: Ranks that are no images of one another, and the distance from each to the farthest rank.
        self.roots = np.unique(np.stack(images(dims)).min(axis=0))
        digits, last = dims.digits(self.roots), np.array(dims.sizes)[:, None] - 1
        self.reach = np.maximum(digits, last - digits).sum(axis=0)

    def added(
        self,
        plans: MeshPlans,
        closed: Flags,
        program: MixProgram,
        until: Deadline = NEVER,
    ) -> MeshPlans:
        """Plans with trees added that shorten the finish, by column generation.

        - `closed`: (2, num_classes, num_steps) True if a class of links does not copy, or not add, in a step.
        - `program`: The linear program for the shares of the plans; it gets the trees, too.
        - `until`: Deadline after which no more trees are added.
        """
        every, loads, smooth = [*plans.plans], [*plans.loads], None
        finishes: list[float] = []
        known = {load.tobytes() for load in loads}
        for number in range(_ROUNDS):
            if until.has_passed:
                break
            found = program.solved()
            if found is None:
                break
            finishes.append(found.finish_us)
            if number > _PATIENCE and found.finish_us > _PAYS * finishes[-1 - _PATIENCE]:
                break
            # Duals of few plans are far apart, so that prices follow them slowly.
            new = found.prices / self.sizes[:, None]
            smooth = new if smooth is None or number % _EXACT == 0 else (1 - _SLOW) * new + _SLOW * smooth
            new_loads: list[Floats] = []
            for plan in self.cheapest(np.where(closed, np.inf, smooth)):
                load = self._load(plan, smooth.shape)
                if (
                    load.tobytes() not in known
                    and (load.sum(axis=0) * found.prices).sum() < found.plan_price - _NONE
                ):
                    known.add(load.tobytes())
                    every.append(plan)
                    new_loads.append(load)
            if new_loads:
                program.add(np.stack(new_loads))
                loads += new_loads
            elif number % _EXACT == 0:
                break
        return MeshPlans(every, np.stack(loads))

    def _load(self, plan: TreePlan, shape: tuple[int, ...]) -> Floats:
        """(2, num_classes, num_steps) mean copies, then additions, over a link of each class."""
        found, adds = np.zeros((2, *shape)), (~plan.adds.all(axis=1)).astype(np.int64)
        way = (self.near[:, plan.dst] == plan.src).argmax(axis=0)
        kind = self.kinds[0, way, plan.dst]
        np.add.at(found, (adds, kind, plan.step), 1 / self.sizes[kind])
        return found

    def _costs(self, prices: Floats, *, to: bool) -> Floats:
        """(num_steps, num_neighbours, num_ranks) prices of sends between neighbours; infinite if none.

        - `prices`: (num_classes, num_steps).
        - `to`: True for sends to the neighbour, False for those from it.
        """
        kinds = self.kinds[int(to)]
        found: Floats = np.where(kinds >= 0, prices.T[:, kinds], np.inf)
        return found

    def cheapest(self, prices: Floats) -> list[TreePlan]:
        """Cheapest plans found.

        - `prices`: (2, num_classes, num_steps) price of a copy, then of an addition, over a link in a step.
        """
        num_steps = prices.shape[2]
        pairs = [
            (root, start)
            for root, reach in zip(self.roots.tolist(), self.reach.tolist(), strict=True)
            for start in range(reach, num_steps - reach + 1)
        ]
        if not pairs:
            return []
        root, start = np.array(pairs, np.int64).T
        # A reduction is a broadcast in reversed time.
        costs = np.stack((self._costs(prices[0], to=False), self._costs(prices[1], to=True)[::-1]))
        phase = np.repeat((0, 1), len(root))
        trees = _grown(
            self.near,
            np.ascontiguousarray(costs[phase].swapaxes(0, 1)),
            np.tile(root, 2),
            np.concatenate((start, num_steps - start)),
        )
        spread, collect = (_Trees(*(each[phase == k] for each in trees)) for k in (0, 1))
        total = spread.cost + collect.cost
        best = np.argsort(total, kind="stable")[:_MOST_PLANS]
        return [_plan(collect, spread, i, num_steps) for i in best.tolist() if np.isfinite(total[i])]


def _plan(collect: _Trees, spread: _Trees, i: int, num_steps: int) -> TreePlan:
    """Plan of the i-th trees."""
    n = collect.src.shape[1]
    below = np.eye(n, dtype=bool)
    ranks, others = (np.flatnonzero(trees.src[i] >= 0) for trees in (collect, spread))
    for rank in ranks[np.argsort(-collect.step[i, ranks], kind="stable")].tolist():
        below[collect.src[i, rank]] |= below[rank]
    return TreePlan(
        np.concatenate((num_steps - 1 - collect.step[i, ranks], spread.step[i, others])),
        np.concatenate((ranks, spread.src[i, others])),
        np.concatenate((collect.src[i, ranks], others)),
        np.concatenate((below[ranks], np.ones((len(others), n), bool))),
    )


def _grown(near: Ints, costs: Floats, root: Ints, start: Ints) -> _Trees:
    """Cheap broadcast trees, each from its root, which has the data from step `start` on.

    - `costs`: (num_steps, num_trees, num_neighbours, num_ranks) prices of sends from neighbours.
    """
    num_steps, n, trees = len(costs), near.shape[1], np.arange(len(root))
    has = np.full((len(root), n), num_steps + 1)
    has[trees, root] = start
    way, step = np.full(has.shape, -1), np.full(has.shape, -1)
    left = n - 1
    while left > 0:
        price, back = _paths(near, costs, has)
        price[has <= num_steps] = np.inf
        nearest = np.argsort(price, axis=1, kind="stable")[:, : max(1, int(left * _AT_ONCE))]
        left -= nearest.shape[1]
        for rank in nearest.T:
            reached = trees[np.isfinite(price[trees, rank])]
            _go_back(near, back, reached, rank.copy(), has, way, step)
    for _ in range(_SWEEPS):
        _improve(near, costs, has, way, step)
    some = way >= 0
    cost = np.where(some, costs[step, trees[:, None], way, np.arange(n)], 0.0).sum(axis=1)
    cost[some.sum(axis=1) < n - 1] = np.inf
    return _Trees(np.where(some, near[way, np.arange(n)], -1), step, cost)


def _go_back(near: Ints, back: Ints, some: Ints, rank: Ints, has: Ints, way: Ints, step: Ints) -> None:
    """Add the paths to one rank of each tree, back to ranks that have the data; ranks may get it sooner.

    - `back`: As from `_paths`.
    - `some`: Trees that get a path.
    """
    now = np.full(len(rank), back.shape[1] - 1)
    while len(some):
        some = some[has[some, rank[some]] > now[some]]
        j = back[some, now[some], rank[some]]
        now[some] -= 1
        moved, j = some[j >= 0], j[j >= 0]
        to = rank[moved]
        way[moved, to], step[moved, to], has[moved, to] = j, now[moved], now[moved] + 1
        rank[moved] = near[j, to]


def _paths(near: Ints, costs: Floats, has: Ints) -> tuple[Floats, Ints]:
    """Cheapest paths from trees to each rank by the last step.

    Returns their prices, and the neighbour from which each rank first has the data by each step; -1 if none.

    - `has`: Step from which on each rank of a tree has the data.
    """
    num_steps = len(costs)
    back = np.full((len(has), num_steps + 1, has.shape[1]), -1)
    price = np.where(has <= 0, 0.0, np.inf)
    for k in range(num_steps):
        through = price[:, near] + costs[k]
        j = through.argmin(axis=1)
        least = np.take_along_axis(through, j[:, None], axis=1)[:, 0]
        sent = (least < price) & (has > k + 1)
        back[:, k + 1][sent] = j[sent]
        price = np.where(has <= k + 1, 0.0, np.where(sent, least, price))
    return price, back


def _improve(near: Ints, costs: Floats, has: Ints, way: Ints, step: Ints) -> None:
    """Give each rank of the trees, in turn, the cheapest send that leaves all other sends possible."""
    num_steps, n, trees = len(costs), near.shape[1], np.arange(len(has))
    steps = np.arange(num_steps)[:, None]
    for rank in range(n):
        sent_on = (way >= 0) & (near[way, np.arange(n)] == rank)
        due = np.where(sent_on, step, num_steps).min(axis=1)
        possible = (has[:, near[:, rank]][:, None] <= steps) & (steps < due[:, None, None])
        prices = np.where(possible, costs[..., rank].swapaxes(0, 1), np.inf).reshape(len(has), -1)
        k, j = np.divmod(prices.argmin(axis=1), len(near))
        some = trees[(way[:, rank] >= 0) & np.isfinite(prices.min(axis=1))]
        way[some, rank], step[some, rank], has[some, rank] = j[some], k[some], k[some] + 1
