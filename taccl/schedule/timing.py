"""Exact times of an order of sends: longest paths in its precedence graph.

The producer decides the link of each chunk, the merged sends, and the order on every resource. Here each send
starts as early as its chunks and its resources permit, in exact ticks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import ArrayLike

from taccl.problem.problem import Problem
from taccl.schedule.listing import Tasks
from taccl.schedule.precedence import Precedence
from taccl.schedule.schedule import Schedule, lacking, make_schedule
from taccl.schedule.single_pass import times_in_order


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
    """The earliest schedule: every send starts once data, resources and the given order permit.

    - `chunk`, `link`, `group`, `reduce`, `contributions`, (num_transfers,) array_like: As in
      `make_schedule`.
    - `starts`, (num_transfers,) array_like of int: Tentative starts in ticks, whose holds give the order on
      each resource. They need not be exact. If they are valid, no time in the result is later.
    - `ends`, (num_transfers,) array_like of int: Tentative ends in ticks, with `starts`: arrivals for the
      sends that read them. The default is each send's start plus its duration.
    - `sequence`, (num_transfers,) array_like of int: Alternative to `starts`: sends use their resources in
      this order, and read earlier arrivals.

    Raises `ValueError` if a merged send has two links, a rank sends a chunk that it never holds, or the order
    has a cycle.
    """
    if (starts is None) == (sequence is None):
        raise ValueError("give either starts or sequence")
    key = np.asarray(starts if sequence is None else sequence, dtype=np.int64)
    chunk, link = np.asarray(chunk, dtype=np.int64), np.asarray(link, dtype=np.int64)
    if reduce is None:
        nothing = np.zeros(len(key), dtype=bool)
        reduce = nothing if contributions is None else lacking(problem, chunk.tolist(), contributions)
    reduce = np.asarray(reduce, dtype=bool)
    # Sends that start together on one resource keep the order of the columns.
    send = np.arange(len(key))
    if group is not None:
        _, first, send = np.unique(group, return_index=True, return_inverse=True)
        send = np.argsort(np.argsort(first))[send]
    if sequence is not None:
        times = times_in_order(
            problem, chunk=chunk, link=link, send=send, reduce=reduce, place=key, contributions=contributions
        )
        if times is not None:
            start, end = times
            return make_schedule(
                problem, chunk=chunk, link=link, start=start, end=end, group=send, reduce=reduce,
                producer=producer, contributions=contributions,
            )  # fmt: skip
    order = Precedence(
        problem, problem, chunk=chunk, link=link, group=send, reduce=reduce, start=key,
        end=None if ends is None else np.asarray(ends, dtype=np.int64), places=starts is None, impose=True,
        contributions=contributions,
    )  # fmt: skip
    heads = Tasks.of_sends(order, turns=True).heads()
    return order.schedule(np.array(heads, dtype=np.int64), producer=producer)
