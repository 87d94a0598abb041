"""The compiled search for ranks that relay, and for sends that lead to no rank that needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taccl.kernels import compiled
from taccl.synthesis.compiled.events import pop, push

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from taccl.synthesis.compiled.fabric import Fabric

__all__ = ["add_ways", "mark_needed"]

_NONE = -1
_NEVER = 2**62
_RELAY_PRICE = 1.25


@compiled
def add_ways(
    fabric: Fabric,
    units: NDArray[np.int64],
    origin_of: NDArray[np.int64],
    origin: NDArray[np.int32],
    wanted: NDArray[np.uint8],
    may_relay: NDArray[np.bool_],
    at_once: int,
    load: NDArray[np.float64],
    resource_load: NDArray[np.float64],
    cost: NDArray[np.int64],
    way: NDArray[np.int64],
    is_done: NDArray[np.bool_],
    is_on_way: NDArray[np.bool_],
    heap_time: NDArray[np.int64],
    heap_what: NDArray[np.int64],
    reach: NDArray[np.int64],
    signal: NDArray[np.int64],
) -> int:
    """Add to the ranks that want each chunk those on its ways; the first chunk that has none, or -1.

    Once it is stopped, the chunks that are left have no ways.

    Parameters
    ----------
    wanted : (num_ranks, ceil(num_chunks / 8)) uint8
        Changed in place.
    may_relay : (num_ranks,) bool
    at_once : int
        Up to so many neighbouring chunks with the same origins share one search.
    load, resource_load
        Ticks for which links and resources are taken so far; zeros to begin with.
    cost, way, is_done, is_on_way, heap_time, heap_what
        Room for the search.
    reach : (num_chunks,) int64
        Set to the cost of the longest way of every chunk.
    signal : (2,) int64
        It stops once the first is 1. The second becomes the number of chunks that are done.
    """
    num_ranks = len(fabric.into) - 1
    most = 1.0
    begin = 0
    while begin < len(units) and not signal[0]:
        signal[1] = begin
        end = begin + 1
        while end < len(units) and end - begin < at_once and _same_origins(origin_of, origin, begin, end):
            end += 1
        for d in range(num_ranks):
            cost[d] = _NEVER
            way[d] = _NONE
            is_done[d] = False
        size = 0
        for i in range(origin_of[begin], origin_of[begin + 1]):
            cost[origin[i]] = 0
            push(heap_time, heap_what, size, 0, origin[i])
            size += 1
        while size:
            r = pop(heap_time, heap_what, size)
            size -= 1
            if is_done[r]:
                continue
            is_done[r] = True
            if way[r] >= 0 and not may_relay[r] and not wanted[r, begin >> 3] >> (begin & 7) & 1:
                continue
            for i in range(fabric.out_of[r], fabric.out_of[r + 1]):
                e = fabric.out_slot[i]
                d = fabric.dst[e]
                busy = load[e]
                for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
                    busy = max(busy, resource_load[fabric.hold_resource[h]])
                took = fabric.alpha[e] + units[begin] * fabric.beta[e]
                # A rank that does not want the chunk is a detour; the most loaded link counts double.
                is_wanted = wanted[d, begin >> 3] >> (begin & 7) & 1
                price = (
                    int(took * (1.0 + 4.0 * (busy / most) ** 2) * (1.0 if is_wanted else _RELAY_PRICE)) + 1
                )
                if not is_done[d] and cost[r] + price < cost[d]:
                    cost[d] = cost[r] + price
                    way[d] = e
                    push(heap_time, heap_what, size, cost[d], d)
                    size += 1
        for c in range(begin, end):
            for d in range(num_ranks):
                is_done[d] = wanted[d, c >> 3] >> (c & 7) & 1
                is_on_way[d] = False
            for d in range(num_ranks):
                if not is_done[d]:
                    continue
                if cost[d] == _NEVER:
                    return c
                reach[c] = max(reach[c], cost[d])
                r = d
                while way[r] >= 0 and not is_on_way[r]:
                    e = way[r]
                    is_on_way[r] = True
                    wanted[r, c >> 3] |= 1 << (c & 7)
                    load[e] += fabric.own_alpha[e] + units[c] * fabric.own_beta[e]
                    most = max(most, load[e])
                    for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
                        q = fabric.hold_resource[h]
                        resource_load[q] += fabric.hold_alpha[h] + units[c] * fabric.hold_beta[h]
                        most = max(most, resource_load[q])
                    r = fabric.src[e]
        begin = end
    return _NONE


@compiled
def _same_origins(origin_of: NDArray[np.int64], origin: NDArray[np.int32], a: int, b: int) -> bool:
    """Whether two chunks start at the same ranks."""
    if origin_of[a + 1] - origin_of[a] != origin_of[b + 1] - origin_of[b]:
        return False
    for i in range(origin_of[a + 1] - origin_of[a]):
        if origin[origin_of[a] + i] != origin[origin_of[b] + i]:
            return False
    return True


@compiled
def mark_needed(
    chunk: NDArray[Any],
    src: NDArray[np.int32],
    dst: NDArray[np.int32],
    needed: NDArray[np.uint8],
    keep: NDArray[np.bool_],
) -> None:
    """Mark the sends that lead to a rank that needs the chunk; `needed` is used up.

    Parameters
    ----------
    chunk, src, dst, keep : (num_sends,)
        In order of start, one send at most for a chunk and destination.
    needed : (num_ranks, ceil(num_chunks / 8)) uint8
        Bits of the chunks that ranks need.
    """
    for t in range(len(chunk) - 1, -1, -1):
        c = int(chunk[t])
        if needed[dst[t], c >> 3] >> (c & 7) & 1:
            keep[t] = True
            needed[src[t], c >> 3] |= 1 << (c & 7)
