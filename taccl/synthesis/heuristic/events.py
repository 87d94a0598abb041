"""What compiled event-driven kernels share: a binary heap, whether a send may start, and columns of ticks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taccl.kernels import inner

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.synthesis.heuristic.fabric import Fabric

__all__ = ["is_free", "keep_ticks", "pop", "push", "ticks_in_words", "tidy"]


@inner
def is_free(fabric: Fabric, resource_free: NDArray[np.int64], e: int, size: int, time: int) -> bool:
    """Whether the shared resources of a link are free for a send that starts now.

    - `resource_free` ((num_resources,) int64): When each is free.
    """
    took = fabric.alpha[e] + size * fabric.beta[e]
    for h in range(fabric.hold_of[e], fabric.hold_of[e + 1]):
        lead = took - fabric.hold_alpha[h] - size * fabric.hold_beta[h] if fabric.hold_receives[h] else 0
        if resource_free[fabric.hold_resource[h]] > time + lead:
            return False
    return True


@inner
def push(heap_key: NDArray[Any], heap_what: NDArray[Any], size: int, key: float, what: int) -> None:
    """Put something on a binary heap of `size`, the smallest key first."""
    i = size
    while i > 0:
        parent = (i - 1) >> 1
        if heap_key[parent] <= key:
            break
        heap_key[i], heap_what[i] = heap_key[parent], heap_what[parent]
        i = parent
    heap_key[i], heap_what[i] = key, what


@inner
def pop(heap_key: NDArray[Any], heap_what: NDArray[Any], size: int) -> int:
    """Take what has the smallest key off a binary heap of `size`."""
    first = heap_what[0]
    last = size - 1
    key, what = heap_key[last], heap_what[last]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= last:
            break
        if child + 1 < last and heap_key[child + 1] < heap_key[child]:
            child += 1
        if heap_key[child] >= key:
            break
        heap_key[i], heap_what[i] = heap_key[child], heap_what[child]
        i = child
    heap_key[i], heap_what[i] = key, what
    return int(first)


@inner
def tidy(heap_key: NDArray[Any], heap_what: NDArray[Any], cost: NDArray[np.float64], size: int) -> int:
    """Leave out of a binary heap what no longer has the cost that it was put there for; how much is left."""
    kept = 0
    for i in range(size):
        key, what = heap_key[i], heap_what[i]
        if key == cost[what]:
            push(heap_key, heap_what, kept, key, what)
            kept += 1
    return int(kept)


def ticks_in_words(ticks: NDArray[Any]) -> NDArray[np.int32]:
    """A column of int32 or int64 with its words in rows, so that kernels are compiled for both at once."""
    return ticks.view(np.int32).reshape(len(ticks), ticks.itemsize // 4)


@inner
def keep_ticks(words: NDArray[np.int32], row: int, ticks: int) -> None:
    """Put ticks into a row of words, the low one first, as on all machines that numba compiles for."""
    words[row, 0] = ticks
    if words.shape[1] > 1:
        words[row, 1] = ticks >> 32
