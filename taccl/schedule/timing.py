"""From an order of sends to their exact times: one longest path over what each send waits for.

The producer decides which chunk goes over which link, what merges, and who goes first on every resource;
here each send starts as early as its chunks and its resources let it, in exact ticks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import ArrayLike

from taccl.problem import Problem
from taccl.schedule.listing import Tasks
from taccl.schedule.precedence import Precedence
from taccl.schedule.schedule import Schedule, lacking, schedule_of
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
    """The schedule in which every send starts as early as data, resources and the given order allow.

    - `chunk`, `link`, `group`, `reduce`, `contributions`, (num_transfers,) array_like: As in
      `make_schedule`.
    - `starts`, (num_transfers,) array_like of int: Tentative starts in ticks: the order on each resource is
      that of the holds they imply. They need not be exact, and times in the result are never later when they
      were valid.
    - `ends`, (num_transfers,) array_like of int: Tentative ends in ticks, with `starts`: arrival at the sends
      that read it. Without it a send ends after its own duration.
    - `sequence`, (num_transfers,) array_like of int: Instead of `starts`: sends take their resources in this
      order, and read earlier content.

    Raises `ValueError` if a merged send has two links, a chunk is sent from where it never is, or the order
    contradicts itself.
    """
    if (starts is None) == (sequence is None):
        raise ValueError("give either starts or sequence")
    key = np.asarray(starts if sequence is None else sequence, dtype=np.int64)
    chunk, link = np.asarray(chunk, dtype=np.int64), np.asarray(link, dtype=np.int64)
    group = np.arange(len(key)) if group is None else np.asarray(group)
    if reduce is None:
        nothing = np.zeros(len(key), dtype=bool)
        reduce = nothing if contributions is None else lacking(problem, chunk.tolist(), contributions)
    reduce = np.asarray(reduce, dtype=bool)
    # Sends that start together on one resource keep the order in which they are named.
    _, first, send = np.unique(group, return_index=True, return_inverse=True)
    send = np.argsort(np.argsort(first))[send]
    if sequence is not None:
        times = times_in_order(
            problem, chunk=chunk, link=link, send=send, reduce=reduce, place=key, contributions=contributions
        )
        if times is not None:
            start, end = times
            return schedule_of(
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
