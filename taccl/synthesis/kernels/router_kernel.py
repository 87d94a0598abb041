"""Compiled router: trees of chunks over links whose prices rise with their load.

Rip-up and reroute: repeatedly, for one net after another, the load of its tree is removed. The tree is then
searched again at the prices that result from the other trees. A tree grows from the origins of its net: it
reaches the nearest target first and continues from all ranks reached.

There may be too many chunks with one destination for a tree each. Then a net is a group of chunks with the
same origins, routed to all ranks, several times at different prices. Each chunk takes the cheapest of the
paths in these trees, after its own load is removed.

Sources: McMurchie and Ebeling, "PathFinder: a negotiation-based performance-driven router for FPGAs", FPGA
1995, for rerouting at congestion prices; Takahashi and Matsuyama, "An approximate solution for the Steiner
problem in graphs", Mathematica Japonica 24 (1980), for growing trees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from taccl._internal.kernels import compiled, inner
from taccl.synthesis.kernels.events import pop, push, tidy

if TYPE_CHECKING:
    from taccl.synthesis.kernels.fabric import Bools, Fabric, Floats, Int32s, Ints

_NONE = -1
_NEVER = 1e300  # a cost above all others

#: Indices in the kernels' `signal` array. `STOP`: 1 requests a stop. `DONE`: number of nets or chunks done.
#: `LOST`: a net or chunk without a route; -1 for none.
STOP, DONE, LOST = range(3)


class Nets(NamedTuple):
    """Origins and targets of nets to route; a net is a chunk, or a group of chunks with equal origins."""

    units: Ints  # size of each net
    origin_of: Ints  # net c starts at `origin[origin_of[c]:origin_of[c + 1]]`
    origin: Ints
    #: The targets of net c (a chunk, or chunks routed together) are `target[target_of[c]:target_of[c + 1]]`.
    #: A net without targets is routed to all ranks, and adds no load.
    target_of: Ints
    target: Int32s  # ranks, none of which is an origin


class CongestionPrices(NamedTuple):
    """Constants of the cost of a send: its time, plus a price of resources that rises with their load."""

    exponent: int  # the price is proportional to load ** 2 ** exponent
    weight: float  # price of one tick of use of the most loaded resource, added to the tick itself
    waiting: float  # price of a tick that a rank waits for the net
    most: float  # load in ticks whose price is `weight`; 0.0: the peak load so far


class RoutingState(NamedTuple):
    """Trees found so far, their load, and work arrays of the search."""

    way: Int32s  # by net and rank: the slot by which the net's tree reaches the rank; -1 for none
    load: Floats  # ticks of use of each slot; `resource_load`: of each resource
    resource_load: Floats
    price: Floats  # price of one tick of use of each slot; `resource_price`: of each resource
    resource_price: Floats
    cost: Floats  # cost of reaching each rank
    depth: Floats  # ticks from the net's origin to each rank
    came: Ints  # slot of the cheapest path to each rank
    path: Ints  # ranks from a target back to the tree
    is_wanted: Bools
    is_in_tree: Bools
    heap_cost: Floats
    heap_rank: Ints


class Paths(NamedTuple):
    """Chunks with one destination each, and the candidate trees of each group of chunks with equal origins.

    Each chunk follows one of the trees of its group.
    """

    units: Ints  # size of each chunk
    target: Int32s
    group: Int32s
    way: Int32s  # by tree, group and rank: the slot by which the group's chunks reach the rank; -1 for none
    tree: Int32s  # the tree that each chunk follows; -1 for none yet


# Index names below: c net or chunk, r rank, e slot, h hold, q resource, k tree, g group.


@compiled
def route(
    fabric: Fabric, nets: Nets, s: RoutingState, prices: CongestionPrices, order: Ints, signal: Ints
) -> bool:
    """Route the nets in `order` again, one by one; true if all were routed. Other nets keep their trees."""
    most = max(prices.most, 1.0)
    _price_all(s, prices, most)
    for i in range(len(order)):
        if signal[STOP]:
            return False
        signal[DONE] = i
        c = order[i]
        loads = nets.target_of[c] < nets.target_of[c + 1]
        if loads:
            _load_tree(fabric, nets, s, prices, c, -1.0, most)
        for r in range(s.way.shape[1]):
            s.way[c, r] = _NONE
        if not _grow(fabric, nets, s, prices, c):
            signal[LOST] = c
            return False
        if loads:
            now = _load_tree(fabric, nets, s, prices, c, 1.0, most)
            if prices.most == 0.0 and now > 1.1 * most:
                most = now
                _price_all(s, prices, most)
    return True


@compiled
def choose(
    fabric: Fabric,
    groups: Nets,
    s: RoutingState,
    paths: Paths,
    prices: CongestionPrices,
    order: Ints,
    signal: Ints,
) -> bool:
    """Assign to each chunk, in the given order, the cheapest of its paths; true if all were assigned.

    Chunks that are not in `order` keep their paths.
    """
    most = max(prices.most, 1.0)
    for i in range(len(order)):
        if signal[STOP]:
            return False
        signal[DONE] = i
        c = order[i]
        if paths.tree[c] >= 0:
            _load_path(fabric, s, paths, c, -1.0)
        best = _NEVER
        for k in range(len(paths.way)):
            cost = _path_cost(fabric, groups, s, paths, prices, c, k, most)
            if cost < best:
                best = cost
                paths.tree[c] = k
        if paths.tree[c] < 0:
            signal[LOST] = c
            return False
        most = max(most, _load_path(fabric, s, paths, c, 1.0))
    return True


@compiled
def list_paths(fabric: Fabric, paths: Paths, hop_of: Ints, slot: Int32s) -> None:
    """List each chunk's path as consecutive slots; if `slot` is empty, count its hops in ``hop_of[c + 1]``.

    - `slot`: Output: chunk c's path is ``slot[hop_of[c]:hop_of[c + 1]]``.
    """
    for c in range(len(paths.target)):
        row = hop_of[c + 1]
        count = 0
        e = paths.way[paths.tree[c], paths.group[c], paths.target[c]]
        while e >= 0:
            count += 1
            if len(slot):
                slot[row - count] = e
            e = paths.way[paths.tree[c], paths.group[c], fabric.src[e]]
        if not len(slot):
            hop_of[c + 1] = count


@compiled(allocates=True)
def list_trees(fabric: Fabric, nets: Nets, way: Int32s, hop_of: Ints, slot: Int32s) -> None:
    """List the slots of each net's tree: hops from the same rank adjacent, those nearer to the origin first.

    - `slot`: Output: net c's tree is ``slot[hop_of[c]:hop_of[c + 1]]``.
    """
    num_ranks = way.shape[1]
    queue, first, following = np.empty((3, num_ranks), np.int64)
    for c in range(len(nets.units)):
        for r in range(num_ranks):
            first[r] = _NONE
        for r in range(num_ranks):
            if way[c, r] >= 0:
                src = fabric.src[way[c, r]]
                following[r] = first[src]
                first[src] = r
        size = 0
        for i in range(nets.origin_of[c], nets.origin_of[c + 1]):
            queue[size] = nets.origin[i]
            size += 1
        done = 0
        row = hop_of[c]
        while done < size:
            r = first[queue[done]]
            done += 1
            while r >= 0:
                slot[row] = way[c, r]
                row += 1
                queue[size] = r
                size += 1
                r = following[r]


@inner
def _price(prices: CongestionPrices, load: float, most: float) -> float:
    """Price of a tick on a resource, in addition to the tick itself, at load `load` and peak load `most`."""
    x = load / most
    for _ in range(prices.exponent):
        x *= x
    return prices.weight * x


@inner
def _price_all(s: RoutingState, prices: CongestionPrices, most: float) -> None:
    for e in range(len(s.load)):
        s.price[e] = _price(prices, s.load[e], most)
    for q in range(len(s.resource_load)):
        s.resource_price[q] = _price(prices, s.resource_load[q], most)


@inner
def _load_tree(
    fabric: Fabric, nets: Nets, s: RoutingState, prices: CongestionPrices, c: int, sign: float, most: float
) -> float:
    """Add (`sign` 1) or remove (-1) a net's load along its tree; returns the peak load on the tree."""
    highest = 0.0
    for r in range(s.way.shape[1]):
        e = int(np.int64(s.way[c, r]))
        if e >= 0:
            highest = max(highest, _load(fabric, s, e, nets.units[c], sign))
            s.price[e] = _price(prices, s.load[e], most)
            for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
                q = fabric.hold_resource[h]
                s.resource_price[q] = _price(prices, s.resource_load[q], most)
    return highest


@inner
def _load_path(fabric: Fabric, s: RoutingState, paths: Paths, c: int, sign: float) -> float:
    """Add (`sign` 1) or remove (-1) the load of a chunk; returns the peak load along its path."""
    highest = 0.0
    k, g = paths.tree[c], paths.group[c]
    e = int(np.int64(paths.way[k, g, paths.target[c]]))
    while e >= 0:
        highest = max(highest, _load(fabric, s, e, paths.units[c], sign))
        e = int(np.int64(paths.way[k, g, fabric.src[e]]))
    return highest


@inner
def _load(fabric: Fabric, s: RoutingState, e: int, size: int, sign: float) -> float:
    """Add (`sign` 1) or remove (-1) the load of a send on its link and on the link's resources.

    Returns the peak load of the link and these resources.
    """
    s.load[e] = max(0.0, s.load[e] + sign * (fabric.own_alpha[e] + size * fabric.own_beta[e]))
    highest = s.load[e]
    for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
        q = fabric.hold_resource[h]
        held = fabric.hold_alpha[h] + size * fabric.hold_beta[h]
        s.resource_load[q] = max(0.0, s.resource_load[q] + sign * held)
        highest = max(highest, s.resource_load[q])
    return float(highest)


@inner
def _path_cost(
    fabric: Fabric,
    groups: Nets,
    s: RoutingState,
    paths: Paths,
    prices: CongestionPrices,
    c: int,
    k: int,
    most: float,
) -> float:
    """Cost of a chunk's path in a tree, including its own load; `_NEVER` if the tree has no path for it."""
    g, r, size = paths.group[c], paths.target[c], paths.units[c]
    cost = 0.0
    e = int(np.int64(paths.way[k, g, r]))
    if e < 0:
        cost = _NEVER
        for i in range(groups.origin_of[g], groups.origin_of[g + 1]):
            if groups.origin[i] == r:
                cost = 0.0
    while e >= 0:
        took = fabric.own_alpha[e] + size * fabric.own_beta[e]
        cost += fabric.alpha[e] + size * fabric.beta[e]
        cost += took * _price(prices, s.load[e] + took, most)
        for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
            took = fabric.hold_alpha[h] + size * fabric.hold_beta[h]
            cost += took * _price(prices, s.resource_load[fabric.hold_resource[h]] + took, most)
        e = int(np.int64(paths.way[k, g, fabric.src[e]]))
    return cost


@inner
def _grow(fabric: Fabric, nets: Nets, s: RoutingState, prices: CongestionPrices, c: int) -> bool:
    """Search the tree of one net; true if it reaches all targets."""
    size = nets.units[c]
    for r in range(len(s.cost)):
        s.cost[r] = _NEVER
        s.is_wanted[r] = False
        s.is_in_tree[r] = False
    left = nets.target_of[c + 1] - nets.target_of[c]
    for i in range(nets.target_of[c], nets.target_of[c + 1]):
        s.is_wanted[nets.target[i]] = True
    goes_everywhere = left == 0
    count = 0
    for i in range(nets.origin_of[c], nets.origin_of[c + 1]):
        r = nets.origin[i]
        s.cost[r] = 0.0
        s.depth[r] = 0.0
        s.is_in_tree[r] = True
        count = push(s.heap_cost, s.heap_rank, count, 0.0, r)
    while count and (left or goes_everywhere):
        key = s.heap_cost[0]
        r = pop(s.heap_cost, s.heap_rank, count)
        count -= 1
        if key != s.cost[r]:
            continue
        if s.is_wanted[r] and not s.is_in_tree[r]:
            found, length = _attach(fabric, s, c, r, size)
            left -= found
            # All ranks on this path are in the tree now, so a branch from one of them pays only for waiting.
            for i in range(length + 1):
                x = s.path[i]
                s.cost[x] = prices.waiting * s.depth[x]
                if x != r:
                    count = push(s.heap_cost, s.heap_rank, count, s.cost[x], x)
        for i in range(fabric.out_of[r], fabric.out_of[r + 1]):
            e = fabric.out_slot[i]
            d = fabric.dst[e]
            if s.is_in_tree[d]:
                continue
            took = fabric.alpha[e] + size * fabric.beta[e]
            cost = s.cost[r] + prices.waiting * took + took
            if cost >= s.cost[d]:
                continue
            cost += (fabric.own_alpha[e] + size * fabric.own_beta[e]) * s.price[e]
            for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
                held = fabric.hold_alpha[h] + size * fabric.hold_beta[h]
                cost += held * s.resource_price[fabric.hold_resource[h]]
            if cost < s.cost[d]:
                s.cost[d] = cost
                s.came[d] = e
                s.depth[d] = s.depth[r] + took
                if count + len(s.cost) >= len(s.heap_cost):
                    count = tidy(s.heap_cost, s.heap_rank, s.cost, count)
                count = push(s.heap_cost, s.heap_rank, count, cost, d)
    if goes_everywhere:
        for r in range(len(s.cost)):
            if s.cost[r] < _NEVER and not s.is_in_tree[r]:
                s.way[c, r] = s.came[r]
    return bool(left == 0)


@inner
def _attach(fabric: Fabric, s: RoutingState, c: int, r: int, size: int) -> tuple[int, int]:
    """Add a rank and its path to the tree; returns the number of targets and of ranks added.

    `path` is set to these ranks, followed by the rank of the tree that they branch off from.
    """
    length = 0
    while not s.is_in_tree[r]:
        s.path[length] = r
        length += 1
        r = fabric.src[s.came[r]]
    s.path[length] = r
    found = 0
    for i in range(length - 1, -1, -1):
        x = s.path[i]
        e = s.came[x]
        s.depth[x] = s.depth[s.path[i + 1]] + fabric.alpha[e] + size * fabric.beta[e]
        s.way[c, x] = e
        s.is_in_tree[x] = True
        found += s.is_wanted[x]
    return found, length
