"""Exact times of sends in a given order: longest paths in a precedence graph, or one pass over the sends.

The producer decides the link of each chunk, the merged sends, and the order on every resource. Here each send
starts as early as its chunks and its resources permit, in exact ticks.

One pass is serial schedule generation: in the given order, each send starts once its data is available and
its resources are free. It fails if a send waits for a later one. `Precedence` supports such orders, too, as
it first lists all waits. Most orders of baselines need one pass only; both methods give the same times.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from taccl.problem.problem import Problem
from taccl.schedule.columns import check_indices
from taccl.schedule.contributions import Carried
from taccl.schedule.precedence import Precedence
from taccl.schedule.schedule import Schedule, lacking, make_schedule
from taccl.schedule.waits import (
    Waits,
    events_of,
    wait_for_copies,
    wait_for_named,
    wait_for_resources,
    wait_for_sums,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


def times_in_order(
    problem: Problem,
    *,
    chunk: Ints,
    link: Ints,
    send: Ints,
    reduce: NDArray[np.bool_],
    place: Ints,
    contributions: Sequence[Collection[int]] | None = None,
) -> tuple[Ints, Ints] | None:
    """(start, end) of each transfer in ticks, (num_transfers,) each; None if one pass does not suffice.

    - `chunk`, `link`, `send`, `reduce`, (num_transfers,) array: Columns of the transfers.
    - `place`, (num_transfers,) array: Position of the transfer's send in the order.
    - `contributions`: As in `make_schedule`.
    """
    check_indices(problem, chunk, link)
    collective = problem.collective
    is_special = collective.derivations or collective.update_us_per_mb or problem.clauses.own_first
    if is_special or problem.release_ticks or not len(chunk):
        return None
    _, first = np.unique(send, return_index=True)
    places = np.full(len(first), -1)
    np.maximum.at(places, send, place)
    alike = (link == link[first][send]).all() and (reduce == reduce[first][send]).all()
    if not alike or len(np.unique(places)) < len(places):
        return None
    # Number the sends in their order.
    number = np.argsort(np.argsort(places))
    links = np.zeros(len(first), np.int64)
    links[number] = link[first]
    units = np.zeros(len(first), np.int64)
    np.add.at(units, number[send], problem.costs.chunk_units[chunk])
    waits = Waits(problem.costs.link_alpha[links] + units * problem.costs.link_beta[links])
    reads, arrivals = events_of(problem, chunk, link, number[send])
    if contributions is not None:
        if not wait_for_named(waits, collective, reads, arrivals, Carried.of(contributions)):
            return None
    elif collective.combining:
        wait_for_sums(waits, reads, arrivals, reduce)
    elif not wait_for_copies(waits, collective, reads, arrivals):
        return None
    wait_for_resources(waits, problem, links, units)
    start = waits.starts()[number[send]]
    return start, start + waits.duration[number[send]]


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
    return order.schedule(order.earliest_starts(), producer=producer)
