"""The compiled search for trees that load a fabric evenly, one for every chunk.

Chunk by chunk, again and again: the load of a chunk's tree is taken off, and a new one grown from where the
chunk starts. It reaches the nearest rank that wants the chunk first and goes on from all it has reached,
at prices that rise steeply with the load of links and resources.
Source: Takahashi and Matsuyama, "An approximate solution for the Steiner problem in graphs", Mathematica
Japonica 24 (1980), for growing; prices as in `taccl.synthesis.compiled.ways_kernel`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from taccl.kernels import compiled
from taccl.synthesis.compiled.events import pop, push

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from taccl.synthesis.compiled.fabric import Fabric

__all__ = ["Growth", "Wants", "grow_trees", "list_branches"]

_NONE = -1
_NEVER = 1e300
_FOREVER = float("inf")


class Wants(NamedTuple):
    """Chunks, where each starts, and the ranks that want it.

    Parameters
    ----------
    units : (num_chunks,) int64
        Sizes.
    origin_of, origin : (num_chunks + 1,) int64, int32
        Chunk c starts at ``origin[origin_of[c]:origin_of[c + 1]]``.
    target_of, target : (num_chunks + 1,) int64, int32
        It is wanted by ``target[target_of[c]:target_of[c + 1]]``, none of them an origin.
    may_relay : (num_ranks,) bool
        Ranks that chunks may pass which they neither start at nor are wanted by.
    """

    units: NDArray[np.int64]
    origin_of: NDArray[np.int64]
    origin: NDArray[np.int32]
    target_of: NDArray[np.int64]
    target: NDArray[np.int32]
    may_relay: NDArray[np.bool_]


class Growth(NamedTuple):
    """Trees found so far, the load they make, and room for growing.

    Parameters
    ----------
    way : (num_chunks, num_ranks) int32
        The slot by which a chunk's tree reaches a rank; -1 for none.
    load, resource_load : (num_slots,), (num_resources,) float64
        Ticks for which sends take links and resources.
    price, resource_price : (num_slots,), (num_resources,) float64
        Of a tick, beyond its time.
    cost, depth : (num_ranks,) float64
        What reaching a rank costs, and how long it takes from where the chunk starts.
    came : (num_ranks,) int32
        The slot by which a rank is reached most cheaply.
    busy_until : (num_resources,) float64
        Until when the tree that grows takes what is shared, were it alone.
    path, before : (num_ranks,) int64
        Room for a way.
    is_wanted, is_in_tree : (num_ranks,) bool
    heap_cost, heap_rank
    """

    way: NDArray[np.int32]
    load: NDArray[np.float64]
    resource_load: NDArray[np.float64]
    price: NDArray[np.float64]
    resource_price: NDArray[np.float64]
    cost: NDArray[np.float64]
    depth: NDArray[np.float64]
    came: NDArray[np.int32]
    busy_until: NDArray[np.float64]
    path: NDArray[np.int64]
    before: NDArray[np.int64]
    is_wanted: NDArray[np.bool_]
    is_in_tree: NDArray[np.bool_]
    heap_cost: NDArray[np.float64]
    heap_rank: NDArray[np.int64]


# In all below: c chunk, r rank, e slot, h hold, q resource.


@compiled
def grow_trees(
    fabric: Fabric,
    wants: Wants,
    s: Growth,
    order: NDArray[np.int64],
    steepness: float,
    weight: float,
    patience: float,
    in_turn: bool,
    peak: float,
    dearness: NDArray[np.float64],
    lost: NDArray[np.int64],
    signal: NDArray[np.int64],
) -> float:
    """Grow the tree of every chunk anew, in the order given; ticks for which the busiest resource is taken.

    Once it is stopped, the chunks that are left keep the trees that they have; then they take for ever.

    Parameters
    ----------
    steepness : float
        Prices rise by this power of the load.
    weight : float
        What a tick of the most loaded resource costs beyond its time.
    patience : float
        What a tick costs for which a rank has to wait until the chunk reaches it.
    in_turn : bool
        Whether a rank's waiting counts in that resources it shares send one copy after another.
    peak : float
        The load that counts as the most, unless there is more.
    dearness : (num_slots,) float64
        By how much the time of a send over each link counts.
    lost : (1,) int64
        Set to a chunk that cannot reach a rank that wants it, if there is one.
    signal : (1,) int64
        It stops once this is 1.
    """
    most = max(peak, 1.0)
    _price_all(s, steepness, weight, most)
    for i in range(len(order)):
        if signal[0]:
            return _FOREVER
        c = order[i]
        _count(fabric, wants, s, c, -1.0, steepness, weight, most)
        if not _grow(fabric, wants, s, c, patience, in_turn, dearness):
            lost[0] = c
            return _NEVER
        _count(fabric, wants, s, c, 1.0, steepness, weight, most)
        if peak == 0.0:
            now = _most(fabric, s, c, wants)
            if now > 1.1 * most:
                most = now
                _price_all(s, steepness, weight, most)
    busiest = 0.0
    for e in range(len(s.load)):
        busiest = max(busiest, s.load[e])
    for q in range(len(s.resource_load)):
        busiest = max(busiest, s.resource_load[q])
    return busiest


@compiled
def list_branches(
    fabric: Fabric,
    wants: Wants,
    way: NDArray[np.int32],
    queue: NDArray[np.int64],
    first: NDArray[np.int64],
    following: NDArray[np.int64],
    hop_of: NDArray[np.int64],
    slot: NDArray[np.int32],
) -> None:
    """Write down every chunk's tree, hops of one rank next to one another, those nearer the origin first.

    Parameters
    ----------
    queue, first, following : (num_ranks,) int64
        Room.
    hop_of : (num_chunks + 1,) int64
    slot : (num_hops,) int32
        Chunk c's tree is to be ``slot[hop_of[c]:hop_of[c + 1]]``.
    """
    num_ranks = way.shape[1]
    for c in range(len(wants.units)):
        for r in range(num_ranks):
            first[r] = _NONE
        for r in range(num_ranks):
            if way[c, r] >= 0:
                src = fabric.src[way[c, r]]
                following[r] = first[src]
                first[src] = r
        size = 0
        for i in range(wants.origin_of[c], wants.origin_of[c + 1]):
            queue[size] = wants.origin[i]
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


@compiled
def _price_all(s: Growth, steepness: float, weight: float, most: float) -> None:
    for e in range(len(s.load)):
        s.price[e] = weight * (s.load[e] / most) ** steepness
    for q in range(len(s.resource_load)):
        s.resource_price[q] = weight * (s.resource_load[q] / most) ** steepness


@compiled
def _count(
    fabric: Fabric, wants: Wants, s: Growth, c: int, sign: float, steepness: float, weight: float, most: float
) -> None:
    """Put the load of a chunk's tree on the fabric, or take it off, tree and all."""
    size = wants.units[c]
    for r in range(s.way.shape[1]):
        e = s.way[c, r]
        if e < 0:
            continue
        s.load[e] = max(0.0, s.load[e] + sign * (fabric.own_alpha[e] + size * fabric.own_beta[e]))
        s.price[e] = weight * (s.load[e] / most) ** steepness
        for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
            q = fabric.hold_resource[h]
            held = fabric.hold_alpha[h] + size * fabric.hold_beta[h]
            s.resource_load[q] = max(0.0, s.resource_load[q] + sign * held)
            s.resource_price[q] = weight * (s.resource_load[q] / most) ** steepness
        if sign < 0:
            s.way[c, r] = _NONE


@compiled
def _most(fabric: Fabric, s: Growth, c: int, wants: Wants) -> float:
    """The most that anything a chunk's tree takes is loaded."""
    most = 0.0
    for r in range(s.way.shape[1]):
        e = s.way[c, r]
        if e >= 0:
            most = max(most, s.load[e])
            for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
                most = max(most, s.resource_load[fabric.hold_resource[h]])
    return most


@compiled
def _grow(
    fabric: Fabric,
    wants: Wants,
    s: Growth,
    c: int,
    patience: float,
    in_turn: bool,
    dearness: NDArray[np.float64],
) -> bool:
    """Grow one chunk's tree; whether it reaches all that want it."""
    size = wants.units[c]
    for r in range(len(s.cost)):
        s.cost[r] = _NEVER
        s.is_wanted[r] = False
        s.is_in_tree[r] = False
    if in_turn:
        for q in range(len(s.busy_until)):
            s.busy_until[q] = 0.0
    left = 0
    for i in range(wants.target_of[c], wants.target_of[c + 1]):
        s.is_wanted[wants.target[i]] = True
        left += 1
    count = 0
    for i in range(wants.origin_of[c], wants.origin_of[c + 1]):
        r = wants.origin[i]
        s.cost[r] = 0.0
        s.depth[r] = 0.0
        s.is_in_tree[r] = True
        push(s.heap_cost, s.heap_rank, count, 0.0, r)
        count += 1
    while left:
        if count == 0:
            return False
        key = s.heap_cost[0]
        r = pop(s.heap_cost, s.heap_rank, count)
        count -= 1
        if key != s.cost[r]:
            continue
        if s.is_wanted[r] and not s.is_in_tree[r]:
            if in_turn and _cost_over(fabric, s, s.came[r], size, patience, in_turn, dearness) > key:
                # The tree has come to send over what this way needs: another may be cheaper by now.
                _look_around(fabric, wants, s, r, size, patience, dearness)
                if s.cost[r] > key:
                    push(s.heap_cost, s.heap_rank, count, s.cost[r], r)
                    count += 1
                    continue
            left -= _attach(fabric, wants, s, c, r, in_turn)
            # All on the way here is in the tree from now on, and costs no more to branch off from.
            x = r
            while x >= 0:
                s.cost[x] = patience * s.depth[x]
                if x != r:
                    push(s.heap_cost, s.heap_rank, count, s.cost[x], x)
                    count += 1
                x = s.before[x]
        elif not s.is_in_tree[r] and not wants.may_relay[r]:
            continue
        for i in range(fabric.out_of[r], fabric.out_of[r + 1]):
            e = fabric.out_slot[i]
            d = fabric.dst[e]
            if s.is_in_tree[d]:
                continue
            took = fabric.alpha[e] + size * fabric.beta[e]
            if s.cost[r] + (patience + dearness[e]) * took >= s.cost[d]:
                continue
            cost = _cost_over(fabric, s, e, size, patience, in_turn, dearness)
            if cost < s.cost[d]:
                s.cost[d] = cost
                s.came[d] = e
                s.depth[d] = (_start(fabric, s, e) if in_turn else s.depth[r]) + took
                if count + len(s.cost) >= len(s.heap_cost):
                    count = _tidy(s, count)
                push(s.heap_cost, s.heap_rank, count, cost, d)
                count += 1
    return True


@compiled
def _start(fabric: Fabric, s: Growth, e: int) -> float:
    """When a chunk can start over a link, if there were no other chunks."""
    start = s.depth[fabric.src[e]]
    for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
        if not fabric.hold_receives[h]:
            start = max(start, s.busy_until[fabric.hold_resource[h]])
    return float(start)


@compiled
def _cost_over(
    fabric: Fabric,
    s: Growth,
    e: int,
    size: int,
    patience: float,
    in_turn: bool,
    dearness: NDArray[np.float64],
) -> float:
    """What reaching the end of a link costs, by way of its source."""
    r = fabric.src[e]
    took = fabric.alpha[e] + size * fabric.beta[e]
    waits = _start(fabric, s, e) - s.depth[r] if in_turn else 0.0
    cost = s.cost[r] + patience * (waits + took) + dearness[e] * took
    cost += (fabric.own_alpha[e] + size * fabric.own_beta[e]) * s.price[e]
    for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
        held = fabric.hold_alpha[h] + size * fabric.hold_beta[h]
        cost += held * s.resource_price[fabric.hold_resource[h]]
    return float(cost)


@compiled
def _look_around(
    fabric: Fabric, wants: Wants, s: Growth, r: int, size: int, patience: float, dearness: NDArray[np.float64]
) -> None:
    """Find the cheapest link to a rank anew, from ranks that something is known of."""
    s.cost[r] = _NEVER
    for e in range(fabric.into[r], fabric.into[r + 1]):
        x = fabric.src[e]
        # Of the ranks outside the tree only those that a chunk may pass, and none that waits to be reached.
        if s.cost[x] < _NEVER and (s.is_in_tree[x] or (wants.may_relay[x] and not s.is_wanted[x])):
            cost = _cost_over(fabric, s, e, size, patience, True, dearness)
            if cost < s.cost[r]:
                s.cost[r] = cost
                s.came[r] = e
                s.depth[r] = _start(fabric, s, e) + fabric.alpha[e] + size * fabric.beta[e]


@compiled
def _attach(fabric: Fabric, wants: Wants, s: Growth, c: int, r: int, in_turn: bool) -> int:
    """Put a rank, and all on the way to it, into the tree; how many of them want the chunk.

    ``before`` is set to the rank before each, -1 for the first that was not in the tree's.
    """
    size = wants.units[c]
    found = 0
    length = 0
    x = r
    while not s.is_in_tree[x]:
        s.path[length] = x
        length += 1
        x = fabric.src[s.came[x]]
    before = x
    s.before[before] = _NONE
    for i in range(length - 1, -1, -1):
        x = s.path[i]
        e = s.came[x]
        start = _start(fabric, s, e) if in_turn else s.depth[fabric.src[e]]
        s.depth[x] = start + fabric.alpha[e] + size * fabric.beta[e]
        for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
            if in_turn and not fabric.hold_receives[h]:
                held = fabric.hold_alpha[h] + size * fabric.hold_beta[h]
                s.busy_until[fabric.hold_resource[h]] = start + held
        s.way[c, x] = e
        s.is_in_tree[x] = True
        found += s.is_wanted[x]
        s.before[x] = before
        before = x
    return found


@compiled
def _tidy(s: Growth, count: int) -> int:
    """Leave out of the heap what is stale; how much is left."""
    kept = 0
    for i in range(count):
        key, r = s.heap_cost[i], s.heap_rank[i]
        if key == s.cost[r]:
            push(s.heap_cost, s.heap_rank, kept, key, r)
            kept += 1
    return kept
