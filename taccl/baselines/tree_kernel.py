"""Kernel that gives each share of the data its cheapest trees, under prices of the links in each step.

All shares follow trees to a few ranks, the hubs, and trees from them. A share in turn leaves its trees, and
gets the cheapest ones that are found for it, as in negotiated routing (L. McMurchie and C. Ebeling,
"PathFinder", FPGA 1995). The price of a send is the increase of the smoothed finish that it causes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl._internal.draws import draw_below
from taccl._internal.kernels import compiled, inner
from taccl.baselines.tree_times import (
    arrivals,
    finish_us,
    list_sends,
    order_sends,
    room_for_times,
    weigh,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.baselines.tree_times import Cores, Floats, Grid, Ints, Shares, Times

#: Price of a send in a step in which it costs nothing, relative to the mean time of a step.
_LEAST_PRICE = 1e-7
#: Logarithms of 1 plus less than this are replaced by it.
_SMALL = 1e-3
#: Approximate number of times in a sweep that messages are compared to find which end before which.
_SORTS = 64
#: Finishes whose ratio differs from 1 by no more than this are alike.
_ROUNDING = 1e-12


class Rules(NamedTuple):
    """Rules of a sweep over all shares.

    - `sharp`: Sharpness of the smooth maximum over the links of a step, per us.
    - `clashes`: True if a link that both adds and copies in a step takes a latency longer.
    - `drifts`: True if no link waits for the end of a step on other links (`taccl.baselines.tree_times`).
      All shares must have trees.
    - `tries`: Number of changes that are tried with each tree.
    - `others`: A share tries its own core, and each other core with probability 1 / `others`.
    """

    sharp: float
    clashes: bool
    drifts: bool
    tries: int
    others: int


class Room(NamedTuple):
    """Storage for the trees of one share.

    - `price`: (2, num_classes, num_steps) prices of sends that add, then of those that copy in reversed time.
    - `cost`: (2, num_ranks, num_steps + 1) least cost to collect the data of a rank's subtree by a step.
    - `sent`: Same, including the send to the next rank.
    - `side`: (num_ranks,) which of both rows of a rank in `cost` and `sent` holds; the other is spare.
    - `order`: (num_ranks,) ranks from the leaves to the hubs.
    - `renewed`: (num_ranks,) ranks whose rows a change of a tree renews.
    - `way`, `step`: (2, num_ranks), as in `Shares`, of the trees before.
    - `before`: As in `Times`.
    - `least`, `shape`: (2, num_steps + 1) least cost of a tree by its number of steps, and its number.
    - `weight`: (2, num_classes, num_steps) increase of the finish per us of a message.
    - `orders`: (num_cores, num_shapes, num_ranks) ranks of initial trees from the leaves to the hubs.
    """

    price: Floats
    cost: Floats
    sent: Floats
    side: Ints
    order: Ints
    renewed: Ints
    way: Ints
    step: Ints
    before: Ints
    least: Floats
    shape: Ints
    weight: Floats
    orders: Ints


def room_for_trees(cores: Cores, shares: Shares, times: Times) -> Room:
    """Storage for the trees of one share."""
    num_ranks = shares.way.shape[2]
    _, num_classes, num_steps = shares.sends.shape
    return Room(
        np.empty((2, num_classes, num_steps)),
        np.empty((2, num_ranks, num_steps + 1)),
        np.empty((2, num_ranks, num_steps + 1)),
        np.zeros(num_ranks, np.int64),
        np.empty(num_ranks, np.int64),
        np.empty(num_ranks, np.int64),
        np.empty((2, num_ranks), np.int64),
        np.empty((2, num_ranks), np.int64),
        times.before,
        np.empty((2, num_steps + 1)),
        np.empty((2, num_steps + 1), np.int64),
        np.empty((2, num_classes, num_steps)),
        np.empty(cores.way.shape, np.int64),
    )


@inner
def _count(grid: Grid, cores: Cores, shares: Shares, i: int, sign: int) -> None:
    """Add the sends of a share to the counts, or remove them (`sign` -1)."""
    core, count = shares.core[i], shares.sends
    for half in range(2):
        for v in range(len(grid.near)):
            way = shares.way[half, i, v]
            if way >= 0:
                count[half, grid.kind[half, v, way], shares.step[half, i, v]] += sign
    for j in range(cores.kind.shape[1]):
        if cores.kind[core, j] >= 0:
            count[0, cores.kind[core, j], shares.begin[i] + cores.step[core, j]] += sign


@inner
def _is_open(grid: Grid, cores: Cores, shares: Shares, i: int) -> bool:
    """True if a share of the data has no send that `shares.closed` forbids."""
    core = shares.core[i]
    for half in range(2):
        for v in range(len(grid.near)):
            way = shares.way[half, i, v]
            if way >= 0 and shares.closed[half, grid.kind[half, v, way], shares.step[half, i, v]]:
                return False
    for j in range(cores.kind.shape[1]):
        c = cores.kind[core, j]
        if c >= 0 and shares.closed[0, c, shares.begin[i] + cores.step[core, j]]:
            return False
    return True


@inner
def _busy_us(grid: Grid, count: Ints, c: int, k: int, clashes: bool) -> float:
    """Time in us of a step over links of one class; with `clashes`, alpha more if they add and also copy.

    A message of several steps takes equally long in each.
    """
    span = grid.span[c]
    adds, copies = count[0, c, k - k % span], count[1, c, k - k % span + span - 1]
    both = grid.alpha[c] if clashes and adds > 0 and copies > 0 else 0.0
    return float((grid.alpha[c] + both + (adds + copies) * grid.beta[c]) / span)


@inner
def _smoothed(grid: Grid, count: Ints, sharp: float, clashes: bool, weight: Floats) -> float:
    """Finish in us, with a smooth maximum over the links of each step.

    - `sharp`, `clashes`: As in `Rules`.
    - `weight`: (2, num_classes, num_steps) increase of this finish per us of a message; set.
    """
    _, num_classes, num_steps = count.shape
    total = 0.0
    for k in range(num_steps):
        most, weights = 0.0, 0.0
        for c in range(num_classes):
            busy = _busy_us(grid, count, c, k, clashes)
            weight[0, c, k] = busy
            most = max(most, busy)
        for c in range(num_classes):
            weight[0, c, k] = math.exp(sharp * (weight[0, c, k] - most))
            weights += weight[0, c, k]
        for c in range(num_classes):
            weight[1, c, k] = weight[0, c, k] / weights
        total += most + math.log(weights) / sharp
    for c in range(num_classes):
        span = grid.span[c]
        for k in range(num_steps):
            weight[0, c, k] = 0.0
        for k in range(num_steps):
            for i in range(k - k % span, k - k % span + span):
                weight[0, c, i] += weight[1, c, k] / span
        for k in range(num_steps):
            weight[1, c, k] = weight[0, c, k]
    return total


@inner
def _set_prices(
    grid: Grid, shares: Shares, sharp: float, clashes: bool, drifts: bool, weight: Floats, price: Floats
) -> None:
    """Set the prices of sends that add, then of those that copy, with the steps of these reversed."""
    count = shares.sends
    _, num_classes, num_steps = count.shape
    for c in range(num_classes):
        span = grid.span[c]
        alone = math.expm1(min(sharp * grid.beta[c] / span, 500.0))
        first = math.expm1(min(sharp * (grid.alpha[c] + grid.beta[c]) / span, 500.0))
        for k in range(num_steps):
            for half in range(2):
                other = min(k + span - 1, num_steps - 1) if half == 0 else max(k + 1 - span, 0)
                takes_alpha = drifts or (clashes and count[1 - half, c, other] > 0)
                rise = weight[half, c, k] * (first if takes_alpha and count[half, c, k] == 0 else alone)
                if rise > _SMALL:
                    rise = math.log1p(rise)
                at = k if half == 0 else num_steps - 1 - k
                price[half, c, at] = rise / sharp * span + _LEAST_PRICE * grid.beta[c]
                if at % span > 0 or (shares.closed[half, c, k] and not drifts):
                    price[half, c, at] = np.inf


@inner
def _sort(near: Ints, way: Ints, order: Ints, step: Ints) -> None:
    """Write the ranks to `order`, those deepest in the trees first and hubs last; write depths to `step`."""
    num_ranks, deepest = len(way), 0
    for v in range(num_ranks):
        step[v] = -1
    for v in range(num_ranks):
        u, depth = v, 0
        while way[u] >= 0 and step[u] < 0:
            u, depth = near[u, way[u]], depth + 1
        if step[u] < 0:
            step[u] = 0
        depth += step[u]
        deepest, u = max(deepest, depth), v
        while step[u] < 0:
            step[u] = depth
            u, depth = near[u, way[u]], depth - 1
    place = 0
    for depth in range(deepest, -1, -1):
        for v in range(num_ranks):
            if step[v] == depth:
                order[place] = v
                place += 1


@inner
def _renew(grid: Grid, half: int, way: Ints, v: int, due: int, room: Room) -> None:
    """Set a rank's least costs by each step up to `due` in its spare rows, which then hold."""
    side = room.side
    side[v] = 1 - side[v]
    cost, sent = room.cost[side[v], v], room.sent[side[v], v]
    for k in range(due + 1):
        cost[k] = 0.0
    ways = grid.near.shape[1]
    for each in range(ways):  # neighbours by their ranks
        u = grid.near[v, ways - 2 - 2 * each if 2 * each < ways else 2 * each - ways + 1]
        if u < 0 or way[u] < 0 or grid.near[u, way[u]] != v:
            continue
        given = room.sent[side[u], u]
        if way[v] < 0:
            span = grid.span[grid.kind[half, u, way[u]]]
            for k in range(due + 1):
                cost[k] += given[max(0, k + 1 - span)]
        else:
            before = room.before[half, grid.kind[half, u, way[u]], grid.kind[half, v, way[v]]]
            for k in range(due):
                cost[k] += given[before[k]]
    if way[v] >= 0:
        price, least = room.price[half, grid.kind[half, v, way[v]]], np.inf
        sent[0] = np.inf
        for k in range(due):
            least = min(least, cost[k] + price[k])
            sent[k + 1] = least


@inner
def _total(num_hubs: int, due: int, room: Room) -> float:
    """Least cost of the trees to all hubs by a step."""
    num_ranks = len(room.order)
    last = room.order[num_ranks - 1]
    total = float(room.cost[room.side[last], last, due])
    for i in range(num_ranks - num_hubs, num_ranks - 1):
        total += room.cost[room.side[room.order[i]], room.order[i], due]
    return total


@inner
def _cost(grid: Grid, half: int, way: Ints, num_hubs: int, due: int, room: Room) -> float:
    """Least cost of trees, for hubs due by a step."""
    _sort(grid.near, way, room.order, room.step[half])
    for i in range(len(way)):
        _renew(grid, half, way, room.order[i], due, room)
    return _total(num_hubs, due, room)


@inner
def _time(grid: Grid, half: int, way: Ints, due: int, room: Room) -> None:
    """Set the steps of the sends of the cheapest trees, after `_cost`, for hubs due by a step."""
    num_ranks, step = len(way), room.step[half]
    for i in range(num_ranks - 1, -1, -1):
        v = room.order[i]
        if way[v] < 0:
            step[v] = due
            continue
        u, c, least, latest = grid.near[v, way[v]], grid.kind[half, v, way[v]], np.inf, -1
        if way[u] < 0:
            end = step[u] + 1 - grid.span[c]
        else:
            end = room.before[half, c, grid.kind[half, u, way[u]], step[u]]
        for k in range(end):
            each = room.cost[room.side[v], v, k] + room.price[half, c, k]
            if each < least:
                least, latest = each, k
        step[v] = latest


@inner
def _mutate(
    grid: Grid, half: int, num_hubs: int, due: int, tries: int, room: Room, random: NDArray[np.uint64]
) -> None:
    """Let ranks of the trees `room.way[half]` send to other neighbours, as long as that costs no more."""
    near, way, step, renewed = grid.near, room.way[half], room.step[half], room.renewed
    least = _cost(grid, half, way, num_hubs, due, room)
    for v in range(len(way)):
        step[v] = -1  # last try in which a rank was on the new path
    for i in range(tries):
        v, new = draw_below(random, len(way)), draw_below(random, near.shape[1])
        old = way[v]
        if old < 0 or new == old or near[v, new] < 0:
            continue
        u = near[v, new]
        while u != v and way[u] >= 0:
            step[u] = i
            u = near[u, way[u]]
        if u == v:
            continue
        step[u] = i
        way[v], renewed[0], number = new, v, 1
        for joined in range(2):
            u = near[v, new] if joined else near[v, old]
            while u >= 0 and (joined or step[u] < i):
                renewed[number], number = u, number + 1
                u = near[u, way[u]] if way[u] >= 0 else -1
        for j in range(number):
            _renew(grid, half, way, renewed[j], due, room)
        cost = _total(num_hubs, due, room)
        if cost <= least:
            least = cost
        else:
            way[v] = old
            for j in range(number):
                room.side[renewed[j]] = 1 - room.side[renewed[j]]
    _cost(grid, half, way, num_hubs, due, room)
    _time(grid, half, way, due, room)


@inner
def _choose(grid: Grid, cores: Cores, core: int, room: Room) -> tuple[float, int]:
    """(least cost of all sends of a core, first step of its exchange), over the core's initial trees."""
    orders, least, shape = room.orders[core], room.least, room.shape
    num_shapes, num_ranks = orders.shape
    num_steps, length = room.price.shape[2], cores.length[core]
    for half in range(2):
        for k in range(num_steps + 1):
            least[half, k], shape[half, k] = np.inf, -1
        for s in range(num_shapes):
            for v in range(num_ranks):
                room.order[v] = orders[s, v]
                _renew(grid, half, cores.way[core, s], orders[s, v], num_steps, room)
            for k in range(num_steps + 1):
                total = _total(cores.num_hubs[core], k, room)
                if total < least[half, k]:
                    least[half, k], shape[half, k] = total, s
    best, best_begin = np.inf, -1
    for begin in range(num_steps + 1 - length):
        total = least[0, begin] + least[1, num_steps - length - begin]
        for j in range(cores.kind.shape[1]):
            c = cores.kind[core, j]
            if c >= 0:
                total += room.price[0, c, begin + cores.step[core, j]] if grid.span[c] == 1 else np.inf
        if total < best:
            best, best_begin = total, begin
    return best, best_begin


@inner
def _swap(grid: Grid, cores: Cores, shares: Shares, i: int, core: int, begin: int, room: Room) -> None:
    """Exchange the trees of a share, whose sends are not counted, for those in `room`; count their sends."""
    for half in range(2):
        for v in range(shares.way.shape[2]):
            way, step = shares.way[half, i, v], shares.step[half, i, v]
            shares.way[half, i, v], shares.step[half, i, v] = room.way[half, v], room.step[half, v]
            room.way[half, v], room.step[half, v] = way, step
    shares.core[i], shares.begin[i] = core, begin
    _count(grid, cores, shares, i, 1)


@inner
def _finish_us(
    grid: Grid, count: Ints, times: Times, sharp: float, clashes: bool, drifts: bool, weight: Floats
) -> float:
    """Finish that `reassign` reduces."""
    if drifts:
        return float(arrivals(grid, count, times, 0))
    return float(_smoothed(grid, count, sharp, clashes, weight))


@compiled(vectorizes=True)
def reassign(grid: Grid, cores: Cores, shares: Shares, rules: Rules, times: Times, room: Room) -> bool:
    """Give each share in turn the cheapest trees found for it; false if there are too few steps.

    A share keeps its trees if others do not reduce the finish, which is smoothed unless links drift.

    - `times`, `room`: Storage, as from `room_for_times` and `room_for_trees`.
    """
    num_shares, num_ranks = shares.way.shape[1:]
    num_steps = shares.sends.shape[2]
    num_cores, num_shapes = cores.way.shape[:2]
    sharp, clashes, drifts, weight = rules.sharp, rules.clashes, rules.drifts, room.weight
    for core in range(num_cores):
        for s in range(num_shapes):
            _sort(grid.near, cores.way[core, s], room.orders[core, s], room.step[0])
    for i in range(num_shares if drifts else 0):
        list_sends(grid, cores, shares, i, times)
    order_sends(times)
    finish = _finish_us(grid, shares.sends, times, sharp, clashes, drifts, weight)
    for i in range(num_shares):
        own, own_begin, before = shares.core[i], shares.begin[i], np.inf
        if own >= 0:
            if drifts or _is_open(grid, cores, shares, i):
                before = finish
            _count(grid, cores, shares, i, -1)
        if drifts:
            weigh(grid, shares.sends, times, sharp, weight, i % (1 + num_shares // _SORTS) == 0)
        else:
            _smoothed(grid, shares.sends, sharp, clashes, weight)
        _set_prices(grid, shares, sharp, clashes, drifts, weight, room.price)
        best, core, begin, collects, spreads = np.inf, -1, -1, -1, -1
        for each in range(num_cores):
            if own >= 0 and each != own and draw_below(shares.random, rules.others) > 0:
                continue
            cost, at = _choose(grid, cores, each, room)
            if cost < best:
                best, core, begin = cost, each, at
                collects, spreads = room.shape[0, at], room.shape[1, num_steps - cores.length[each] - at]
        if core < 0:
            if own < 0:
                return False
            _count(grid, cores, shares, i, 1)
            continue
        for half in range(2):
            due = begin if half == 0 else num_steps - cores.length[core] - begin
            for v in range(num_ranks):
                room.way[half, v] = cores.way[core, collects if half == 0 else spreads, v]
            if own == core:
                fresh = _cost(grid, half, room.way[half], cores.num_hubs[core], due, room)
                if _cost(grid, half, shares.way[half, i], cores.num_hubs[core], due, room) <= fresh:
                    for v in range(num_ranks):
                        room.way[half, v] = shares.way[half, i, v]
            _mutate(grid, half, cores.num_hubs[core], due, rules.tries, room, shares.random)
        for v in range(num_ranks):
            room.step[1, v] = num_steps - 1 - room.step[1, v]
        _swap(grid, cores, shares, i, core, begin, room)
        if drifts:
            list_sends(grid, cores, shares, i, times)
            order_sends(times)
        finish = _finish_us(grid, shares.sends, times, sharp, clashes, drifts, weight)
        if finish > before * (1 + _ROUNDING):
            finish = before
            _count(grid, cores, shares, i, -1)
            _swap(grid, cores, shares, i, own, own_begin, room)
            if drifts:
                list_sends(grid, cores, shares, i, times)
                times.live[0] = 1 - times.live[0]
    return True


class Sweeps:
    """Sweeps over all shares, which change their trees; all sweeps use the same storage."""

    def __init__(self, grid: Grid, cores: Cores, shares: Shares) -> None:
        self._arrays, self._times = (grid, cores, shares), room_for_times(grid, cores, shares)
        self._room = room_for_trees(cores, shares, self._times)

    def run(self, rules: Rules) -> bool:
        """Give each share the cheapest trees found for it; false if there are too few steps."""
        return reassign(*self._arrays, rules, self._times, self._room)

    def finish_us(self) -> float:
        """Finish of all shares."""
        return finish_us(*self._arrays, self._times)
