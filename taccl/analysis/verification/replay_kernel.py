"""The compiled core of the verifier of compact schedules: sends replayed in order of start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numba

if TYPE_CHECKING:
    from typing import Any

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["ABSENT", "BUSY", "OK", "TWICE", "replay_sends"]

#: Of a send: its source has not got the chunk, a resource is held, or its destination has the chunk already.
OK, ABSENT, BUSY, TWICE = 0, 1, 2, 3


@numba.njit(cache=True)
def _place_of(
    chunk: int, rank: int, num_ranks: int, keys: NDArray[np.int64], first: NDArray[np.int64]
) -> int:
    """What `Places.of` returns, looked for among the few keys of the chunk alone."""
    key = chunk * num_ranks + rank
    if len(first) == 0:
        return key
    low, end = first[chunk], first[chunk + 1]
    high = end
    while low < high:
        middle = (low + high) >> 1
        if keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    if low < end and keys[low] == key:
        return int(low)
    return len(keys)


@numba.njit(cache=True)
def replay_sends(
    chunk: NDArray[np.int64], link: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64],
    src: NDArray[np.int64], dst: NDArray[np.int64],
    num_ranks: int, keys: NDArray[np.int64], first: NDArray[np.int64], since: NDArray[Any], never: int,
    free: NDArray[np.int64], hold_of: NDArray[np.int64], hold_resource: NDArray[np.int64],
    hold_alpha: NDArray[np.int64], hold_beta: NDArray[np.int64], units: NDArray[np.int64],
    once: bool,
) -> tuple[int, int]:  # fmt: skip
    """The kind and number of the first fault among sends in order of start.

    Parameters
    ----------
    chunk, link, start, end : (num_sends,)
    src, dst : (num_links,)
    num_ranks, keys, first, since, never
        Of `Places`; `since` is kept up to date.
    free : (num_resources,)
        When each resource is free again; kept up to date.
    hold_of, hold_resource, hold_alpha, hold_beta
        Link e holds what rows ``hold_of[e]:hold_of[e + 1]`` say, from the start of a send.
    units : (num_chunks,)
    once : bool
        Whether a rank must not receive what it has.
    """
    for i in range(len(chunk)):
        e, c, time = link[i], chunk[i], start[i]
        if since[_place_of(c, src[e], num_ranks, keys, first)] > time:
            return ABSENT, i
        enters = _place_of(c, dst[e], num_ranks, keys, first)
        if once and since[enters] != never:
            return TWICE, i
        for h in range(hold_of[e], hold_of[e + 1]):
            r = hold_resource[h]
            length = hold_alpha[h] + units[c] * hold_beta[h]
            if length > 0 and free[r] > time:
                return BUSY, i
            free[r] = max(free[r], time + length)
        since[enters] = min(since[enters], end[i])
    return OK, 0
