"""The compiled search for ways that load a fabric evenly.

Two steps by turns. Searches for cheapest ways from where chunks start, at prices that rise steeply with the
load of links and resources, add a tree of ways to choose from. Then every chunk by itself, its own load
taken off first, takes the cheapest of the ways that the trees found so far lead it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from taccl.kernels import compiled
from taccl.synthesis.compiled.events import pop, push

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from taccl.synthesis.compiled.fabric import Fabric

__all__ = ["STOPPED", "Search", "Traffic", "choose_ways", "find_tree", "find_trees", "list_hops", "peak_load"]

_NONE = -1
#: What `choose_ways` returns if it was stopped.
STOPPED = -2
_NEVER = 1e300


class Traffic(NamedTuple):
    """What is to be routed: groups of chunks that start at the same ranks, each chunk to one rank.

    Parameters
    ----------
    units : (num_chunks,) int64
        Sizes.
    target : (num_chunks,) int32
    group : (num_chunks,) int32
    size : (num_groups,) int64
        The size of chunk that ways of a group are searched for.
    origin_of, origin : (num_groups + 1,) int64, (num_origins,) int32
        The chunks of group g start at ``origin[origin_of[g]:origin_of[g + 1]]``.
    may_relay : (num_ranks,) bool
        Ranks that chunks may pass which neither start nor end there.
    """

    units: NDArray[np.int64]
    target: NDArray[np.int32]
    group: NDArray[np.int32]
    size: NDArray[np.int64]
    origin_of: NDArray[np.int64]
    origin: NDArray[np.int32]
    may_relay: NDArray[np.bool_]


class Search(NamedTuple):
    """Ways found so far, the load they make, and room for a search.

    Parameters
    ----------
    way : (num_trees, num_groups, num_ranks) int32
        The slot by which a tree leads a group's chunks to a rank; -1 for none.
    tree : (num_chunks,) int32
        The tree that each chunk follows; -1 for none yet.
    load : (num_slots,) float64
        Ticks for which sends take a link.
    resource_load : (num_resources,) float64
    resource_price : (num_resources,) float64
        Of a tick, beyond its time.
    cost, is_done, heap_cost, heap_rank
        Room for a search.
    """

    way: NDArray[np.int32]
    tree: NDArray[np.int32]
    load: NDArray[np.float64]
    resource_load: NDArray[np.float64]
    resource_price: NDArray[np.float64]
    cost: NDArray[np.float64]
    is_done: NDArray[np.bool_]
    heap_cost: NDArray[np.float64]
    heap_rank: NDArray[np.int64]


# In all below: k tree, g group, c chunk, e slot, h hold, q resource, r rank.


@compiled
def find_trees(
    fabric: Fabric,
    traffic: Traffic,
    s: Search,
    k: int,
    steepness: int,
    weight: float,
    peak: float,
    signal: NDArray[np.int64],
) -> None:
    """Fill in tree k of every group at the prices of now; see `choose_ways` for the last four."""
    for q in range(len(s.resource_load)):
        s.resource_price[q] = _price(s.resource_load[q], steepness, weight, peak)
    for g in range(s.way.shape[1]):
        if signal[0]:
            return
        signal[1] = g
        find_tree(fabric, traffic, s, k, g, steepness, weight, peak)


@compiled
def choose_ways(
    fabric: Fabric,
    traffic: Traffic,
    s: Search,
    order: NDArray[np.int64],
    num_trees: int,
    steepness: int,
    weight: float,
    peak: float,
    signal: NDArray[np.int64],
) -> int:
    """Let every chunk, in the order given, take the cheapest of its ways; the first that has none, or -1.

    Once it is stopped, the chunks that are left keep the ways that they have.

    Parameters
    ----------
    num_trees : int
        How many trees there are to choose from.
    steepness : int
        Prices rise by the 2 ** steepness-th power of the load.
    weight : float
        What a tick of the most loaded resource costs beyond its time.
    peak : float
        The load that counts as the most, unless there is more.
    signal : (2,) int64
        It stops once the first is 1. The second becomes the number of chunks, or of groups, that are done.
    """
    most = peak
    for i in range(len(order)):
        if signal[0]:
            return STOPPED
        signal[1] = i
        c = order[i]
        if s.tree[c] >= 0:
            _add_load(fabric, traffic, s, c, -1.0)
        best = _NEVER
        for k in range(num_trees):
            cost = _cost(fabric, traffic, s, c, k, steepness, weight, most)
            if cost < best:
                best = cost
                s.tree[c] = k
        if s.tree[c] < 0:
            return int(c)
        most = max(most, _add_load(fabric, traffic, s, c, 1.0))
    return _NONE


@compiled
def peak_load(s: Search) -> float:
    """Ticks for which the busiest link or resource is taken."""
    most = 0.0
    for e in range(len(s.load)):
        most = max(most, s.load[e])
    for q in range(len(s.resource_load)):
        most = max(most, s.resource_load[q])
    return most


@compiled
def list_hops(
    fabric: Fabric,
    traffic: Traffic,
    way: NDArray[np.int32],
    tree: NDArray[np.int32],
    hop_of: NDArray[np.int64],
    slot: NDArray[Any],
) -> None:
    """Write down every chunk's way, slot after slot; with no room for slots, count them in ``hop_of[c + 1]``.

    Parameters
    ----------
    hop_of : (num_chunks + 1,) int64
    slot : (num_hops,) int32
        Chunk c's way is to be ``slot[hop_of[c]:hop_of[c + 1]]``.
    """
    for c in range(len(traffic.target)):
        k, g, r = tree[c], traffic.group[c], traffic.target[c]
        row = hop_of[c + 1]
        count = 0
        while way[k, g, r] >= 0:
            e = way[k, g, r]
            count += 1
            if len(slot):
                slot[row - count] = e
            r = fabric.src[e]
        if not len(slot):
            hop_of[c + 1] = count


@compiled
def _add_load(fabric: Fabric, traffic: Traffic, s: Search, c: int, sign: float) -> float:
    """Put the load of a chunk on its way, or take it off; the most that any of it has then."""
    most = 0.0
    k, g, r, size = s.tree[c], traffic.group[c], traffic.target[c], traffic.units[c]
    while s.way[k, g, r] >= 0:
        e = s.way[k, g, r]
        s.load[e] += sign * (fabric.own_alpha[e] + size * fabric.own_beta[e])
        most = max(most, s.load[e])
        for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
            q = fabric.hold_resource[h]
            s.resource_load[q] += sign * (fabric.hold_alpha[h] + size * fabric.hold_beta[h])
            most = max(most, s.resource_load[q])
        r = fabric.src[e]
    return most


@compiled
def _cost(
    fabric: Fabric, traffic: Traffic, s: Search, c: int, k: int, steepness: int, weight: float, most: float
) -> float:
    """What the way of a chunk by a tree costs, its own load on it counted in; never, if there is none."""
    g, r, size = traffic.group[c], traffic.target[c], traffic.units[c]
    cost = 0.0
    if s.way[k, g, r] < 0:
        cost = _NEVER
        for i in range(traffic.origin_of[g], traffic.origin_of[g + 1]):
            if traffic.origin[i] == r:
                cost = 0.0
    while s.way[k, g, r] >= 0:
        e = s.way[k, g, r]
        took = fabric.own_alpha[e] + size * fabric.own_beta[e]
        cost += fabric.alpha[e] + size * fabric.beta[e]
        cost += took * _price(s.load[e] + took, steepness, weight, most)
        for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
            took = fabric.hold_alpha[h] + size * fabric.hold_beta[h]
            load = s.resource_load[fabric.hold_resource[h]] + took
            cost += took * _price(load, steepness, weight, most)
        r = fabric.src[e]
    return cost


@compiled
def find_tree(
    fabric: Fabric, traffic: Traffic, s: Search, k: int, g: int, steepness: int, weight: float, most: float
) -> None:
    """Cheapest ways from the origins of a group to all ranks."""
    size = traffic.size[g]
    for r in range(len(s.cost)):
        s.cost[r] = _NEVER
        s.way[k, g, r] = _NONE
        s.is_done[r] = False
    count = 0
    for i in range(traffic.origin_of[g], traffic.origin_of[g + 1]):
        s.cost[traffic.origin[i]] = 0.0
        push(s.heap_cost, s.heap_rank, count, 0.0, traffic.origin[i])
        count += 1
    while count:
        r = pop(s.heap_cost, s.heap_rank, count)
        count -= 1
        if s.is_done[r]:
            continue
        s.is_done[r] = True
        here = s.cost[r]
        if here > 0.0 and not traffic.may_relay[r]:
            continue
        for i in range(fabric.out_of[r], fabric.out_of[r + 1]):
            e = fabric.out_slot[i]
            d = fabric.dst[e]
            if s.is_done[d]:
                continue
            took = fabric.own_alpha[e] + size * fabric.own_beta[e]
            cost = here + fabric.alpha[e] + size * fabric.beta[e]
            cost += took * _price(s.load[e], steepness, weight, most)
            for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
                took = fabric.hold_alpha[h] + size * fabric.hold_beta[h]
                cost += took * s.resource_price[fabric.hold_resource[h]]
            if cost < s.cost[d]:
                s.cost[d] = cost
                s.way[k, g, d] = e
                push(s.heap_cost, s.heap_rank, count, cost, d)
                count += 1


@compiled
def _price(load: float, steepness: int, weight: float, most: float) -> float:
    """What a tick costs beyond its time."""
    x = load / most if most > 0 else 0.0
    for _ in range(steepness):
        x *= x
    return weight * x
