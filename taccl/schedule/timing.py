"""Exact times of sends in a given order: the longest paths in its precedence graph.

The producer decides the link of each chunk, the merged sends, and the order on every resource. Here each send
starts as early as its chunks and its resources permit, in exact ticks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import ArrayLike

from taccl._internal.arrays import numbered
from taccl.problem.problem import Problem
from taccl.schedule.contributions import Carried
from taccl.schedule.precedence import Precedence
from taccl.schedule.schedule import Schedule, lacking


def exact_times(
    problem: Problem,
    *,
    chunk: ArrayLike,
    link: ArrayLike,
    starts: ArrayLike | None = None,
    ends: ArrayLike | None = None,
    sequence: ArrayLike | None = None,
    group: ArrayLike | None = None,
    reduce: ArrayLike | None = None,
    producer: str = "",
    contributions: Sequence[Collection[int]] | None = None,
) -> Schedule:
    """Schedule in which every send starts as early as data, resources and the given order permit.

    - `chunk`, `link`, `group`, `reduce`, `contributions`, (num_transfers,) array_like: As in
      `make_schedule`.
    - `starts`, (num_transfers,) array_like of int: Tentative starts in ticks, which give the order on each
      resource. They need not be exact. If they are feasible, no send starts later in the result.
    - `ends`, (num_transfers,) array_like of int: Tentative ends in ticks, allowed with `starts`. A send reads
      the arrivals that end by its start. Default: each send's start plus its duration.
    - `sequence`, (num_transfers,) array_like of int: Alternative to `starts`: sends use their resources in
      this order, and read earlier arrivals.

    Raises `ValueError` if a merged send has two links, a rank sends a chunk that it never holds, or the order
    has a cycle.
    """
    if (starts is None) == (sequence is None):
        raise ValueError("give either starts or sequence")
    key = np.asarray(starts if sequence is None else sequence, dtype=np.int64)
    contributions = None if contributions is None else Carried.of(contributions)
    chunk, link = np.asarray(chunk, dtype=np.int64), np.asarray(link, dtype=np.int64)
    if reduce is None:
        nothing = np.zeros(len(key), dtype=bool)
        reduce = nothing if contributions is None else lacking(problem, chunk, contributions)
    reduce = np.asarray(reduce, dtype=bool)
    # Sends that start at the same time on a resource keep the order of the columns.
    send = np.arange(len(key))
    if group is not None:
        _, first, send = numbered(group)
        send = np.argsort(np.argsort(first))[send]
    order = Precedence(
        problem, problem, chunk=chunk, link=link, group=send, reduce=reduce, start=key,
        end=None if ends is None else np.asarray(ends, dtype=np.int64), places=starts is None, impose=True,
        contributions=contributions,
    )  # fmt: skip
    return order.schedule(order.earliest_starts(), producer=producer)
