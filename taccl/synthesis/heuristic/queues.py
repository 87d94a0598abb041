"""Schedules along routes that are chosen first such that they load the fabric evenly.

Then comes the order of sends along them: see `taccl.synthesis.heuristic.router`, and
`taccl.synthesis.heuristic.queue_kernel`, which fills the columns of what is found in order of start; they
may lie in files. Several seeds are tried where that takes no time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl.errors import NoSolutionError
from taccl.schedule.spill import room_for
from taccl.synthesis.heuristic.events import is_stopped, part, stopping
from taccl.synthesis.heuristic.queue_kernel import (
    HEAP_FULL,
    NUM_SENT,
    OVER_LIMIT,
    SIGNAL,
    Hops,
    Queues,
    join_hops,
    send_along,
)
from taccl.synthesis.heuristic.router import (
    find_paths,
    find_trees,
    search_steps,
    sending_ns,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from numpy.typing import NDArray

    from taccl.synthesis.heuristic.fabric import Demand, Fabric
    from taccl.synthesis.heuristic.router import Routes

__all__ = [
    "SCHEDULER", "SchedulerParameters", "send_along_trees", "send_best", "send_queued",
    "travel_ticks",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class SchedulerParameters:
    """How often sends along routes are put in order.

    Parameters
    ----------
    total_sends, most_runs : int
        By default as many runs as make about so many sends, two at least, but no more than the second.
    path_orders, tree_orders : int
        How many orders are tried along the same paths, and along the same trees.
    most_tree_runs : int
        As `most_runs`, along trees.
    guided_runs : int
        How many runs are made by default where a sketch says which links are open to chunks.
    waiting : tuple of float
        What a tick of waiting costs in the search for trees, by turns.
    few_steps, many_steps : int
        So many steps of a search for trees take some ten milliseconds, which is always granted; and so many,
        a second, which all runs may take.
    """

    total_sends: int = 200_000
    most_runs: int = 40
    path_orders: int = 5
    tree_orders: int = 2
    most_tree_runs: int = 100
    guided_runs: int = 4
    waiting: tuple[float, ...] = (0.25, 4.0, 1.0, 16.0)
    few_steps: int = 1_000_000
    many_steps: int = 30_000_000


SCHEDULER = SchedulerParameters()

#: Nanoseconds that it takes to put a hop in order, about.
_ORDER_NS = 70
_INT32_MAX = int(np.iinfo(np.int32).max)


@dataclass(frozen=True, slots=True)
class Sent:
    """What was found: a row for every hop of the routes, in order of start.

    Parameters
    ----------
    chunk : (num_hops,) uint16 or int32
    link : (num_hops,) int32
        By index of the topology.
    start : (num_hops,) int32 or int64
        Ticks.
    finish_ticks : int
    seed : int
        What it was found with.
    num_runs : int
        How many seeds were tried.
    """

    chunk: NDArray[Any]
    link: NDArray[np.int32]
    start: NDArray[Any]
    finish_ticks: int
    seed: int
    num_runs: int

    @property
    def columns(self) -> tuple[NDArray[Any], NDArray[np.int32], NDArray[Any]]:
        """(chunk, link, start) of every send in order of start."""
        return self.chunk, self.link, self.start


def send_queued(
    fabric: Fabric,
    demand: Demand,
    *,
    num_runs: int | None = None,
    seed: int = 0,
    target_ticks: int = 0,
    time_limit_s: float | None = None,
    spill_dir: str | os.PathLike[str] | None = None,
) -> Sent:
    """The best schedule of several seeds along routes to the one rank that each chunk goes to.

    Parameters
    ----------
    demand : Demand
        With a target for every chunk. Its routes, if it has any, are the first that are tried.
    num_runs, target_ticks, time_limit_s, spill_dir
        As in `taccl.synthesis.heuristic.spreading.spread`; by default there are more runs the fewer sends
        there are.

    Raises
    ------
    CollectiveError
        If a chunk cannot reach its target.
    """
    routes = demand.routes or find_paths(fabric, demand, seed=seed)
    runs = num_runs or max(2, min(SCHEDULER.most_runs, SCHEDULER.total_sends // max(1, len(routes.slot))))

    def find(seed: int, seconds: float | None) -> Routes:
        return find_paths(fabric, demand, seed=seed, seconds=seconds)

    best = send_best(
        fabric, demand, routes, find, orders=SCHEDULER.path_orders, num_runs=runs, seed=seed,
        target_ticks=target_ticks, seconds=time_limit_s, spill_dir=spill_dir,
    )  # fmt: skip
    if best is None:
        raise NoSolutionError("found no schedule along the routes chosen")
    return best


def send_along_trees(
    fabric: Fabric,
    demand: Demand,
    *,
    limit_ticks: int,
    num_runs: int | None = None,
    seed: int = 0,
    target_ticks: int = 0,
    time_limit_s: float | None = None,
    spill_dir: str | os.PathLike[str] | None = None,
) -> Sent | None:
    """The best schedule of several seeds along trees; None if none ends within the limit.

    Parameters
    ----------
    demand : Demand
        Its routes, if it has any, are the first that are tried. Without, trees are only looked for where that
        takes little time.
    limit_ticks : int
        Only what ends by then counts.
    num_runs, target_ticks, time_limit_s, spill_dir
        As in `send_queued`.

    Raises
    ------
    CollectiveError
        If a chunk cannot reach a rank that wants it.
    """
    routes, steps = demand.routes, max(1, search_steps(fabric, demand))
    if routes is None:
        if steps > SCHEDULER.few_steps or fabric.num_ranks * demand.num_chunks > SCHEDULER.total_sends // 2:
            return None
        routes = find_trees(fabric, demand, seed=seed)
    runs = num_runs or max(
        1, min(SCHEDULER.most_tree_runs, SCHEDULER.total_sends // max(1, len(routes.slot)))
    )
    if num_runs is None and steps > SCHEDULER.few_steps:
        runs = min(runs, SCHEDULER.tree_orders * max(1, SCHEDULER.many_steps // steps))

    def find(seed: int, seconds: float | None) -> Routes:
        waiting = SCHEDULER.waiting[seed // SCHEDULER.tree_orders % len(SCHEDULER.waiting)]
        return find_trees(fabric, demand, seed=seed, waiting=waiting, seconds=seconds)

    return send_best(
        fabric, demand, routes, find, orders=SCHEDULER.tree_orders, num_runs=runs, seed=seed,
        target_ticks=target_ticks, seconds=time_limit_s, limit_ticks=limit_ticks, spill_dir=spill_dir,
    )  # fmt: skip


def send_best(
    fabric: Fabric,
    demand: Demand,
    routes: Routes,
    find: Callable[[int, float | None], Routes],
    *,
    orders: int,
    num_runs: int,
    seed: int,
    target_ticks: int,
    seconds: float | None,
    limit_ticks: int = 2**62,
    spill_dir: str | os.PathLike[str] | None,
) -> Sent | None:
    """The best of several orders along each of several routes; None if none ends within the limit.

    Parameters
    ----------
    routes : Routes
        The first to try.
    find : function of int and float or None to Routes
        Further ones, by seed, and the seconds it may take.
    orders : int
        How many orders are tried along the same routes.
    seconds : float, optional
        After which no run but the first begins.
    """
    began = time.monotonic()
    best: Sent | None = None
    tried = 0
    for run in range(num_runs):
        left = None
        if run:
            left = None if seconds is None else seconds - (time.monotonic() - began)
            if is_stopped() or (left is not None and left <= 0):
                break
        name = f"run {run + 1} of {num_runs}" if num_runs > 1 else ""
        steps = sending_ns(fabric, len(routes.slot))
        with part(name, steps=steps, ahead=steps * (num_runs - run - 1)):
            if run and run % orders == 0:
                try:
                    routes = find(seed + run, left)
                except NoSolutionError:  # there was not the time
                    break
            limit = limit_ticks if best is None else min(limit_ticks, best.finish_ticks - 1)
            if routes.peak_ticks > limit:
                continue
            tried += 1
            in_step = demand.target is not None and run % 2 == 0
            found = _send(
                fabric, demand, routes, seed + run, limit, left, in_step=in_step, spill_dir=spill_dir
            )
        if found is not None:
            best = found
            if best.finish_ticks <= target_ticks:
                break
    return None if best is None else replace(best, num_runs=tried)


def travel_ticks(fabric: Fabric, units: NDArray[np.int64], routes: Routes) -> NDArray[np.int64]:
    """For how long a chunk travels at least from the start of each hop until the last of its ranks has it."""
    hops = _make_hops(fabric, units, routes, 0, np.zeros(2, np.int64))
    ticks: NDArray[np.int64] = np.ceil(-hops.key).astype(np.int64)
    return ticks


def _send(
    fabric: Fabric,
    demand: Demand,
    routes: Routes,
    seed: int,
    limit: int,
    seconds: float | None,
    *,
    in_step: bool,
    spill_dir: str | os.PathLike[str] | None,
) -> Sent | None:
    """One run of the kernel; None if it passes the limit, takes longer, or is stopped."""
    num_hops = len(routes.slot)
    sending = sending_ns(fabric, num_hops)
    signal = np.zeros(2, np.int64)
    ordered = partial(_done, signal, demand.num_chunks)
    with (
        part("ordering sends", done=ordered, steps=_ORDER_NS * num_hops, ahead=sending),
        stopping(signal, None),
    ):
        steps = _steps(fabric, demand) if in_step else None
        hops = _make_hops(fabric, demand.units, routes, seed, signal, steps)
    if signal[0]:
        return None
    room = 8 * fabric.num_slots + 2 * len(fabric.wake_hold) + 1024
    start_type: type[np.int32] | type[np.int64] = np.int32 if routes.peak_ticks <= _INT32_MAX else np.int64
    while True:
        queues = _make_queues(fabric, hops, room, start_type, spill_dir)
        scalar = queues.scalar
        sent = partial(_done, scalar[SIGNAL:], num_hops)
        with part("queueing sends", done=sent, steps=sending), stopping(scalar[SIGNAL:], seconds):
            at_most = min(limit, _INT32_MAX) if start_type is np.int32 else limit
            finish = int(send_along(fabric, hops, queues, at_most))
        if finish == OVER_LIMIT and at_most < limit:
            start_type = np.int64
        elif finish == HEAP_FULL:
            room *= 4
        else:
            break
    if finish < 0:
        return None
    assert scalar[NUM_SENT] == num_hops, "every hop is let go at last"
    chunk: NDArray[Any] = queues.sent_chunk
    if demand.num_chunks <= 1 << 16:
        chunk = room_for(num_hops, np.uint16, spill_dir)
        chunk[:] = queues.sent_chunk
    return Sent(chunk, queues.sent_link, queues.sent_start, finish, seed, 1)


def _done(signal: NDArray[np.int64], count: int) -> float:
    """The part that a kernel has done, which counts in the second place."""
    return float(signal[1]) / max(1, count)


def _make_hops(
    fabric: Fabric,
    units: NDArray[np.int64],
    routes: Routes,
    seed: int,
    signal: NDArray[np.int64],
    steps: NDArray[np.int64] | None = None,
) -> Hops:
    """The hops, those of chunks that still have far to go first; ties as the seed has it, or by steps.

    They are of no use once `signal` has stopped it.
    """
    num_chunks = len(routes.hop_of) - 1
    chunk = np.repeat(np.arange(num_chunks, dtype=np.int32), np.diff(routes.hop_of))
    count = len(chunk)
    units = np.array(units, dtype=np.int64)
    took = fabric.beta[routes.slot]
    took *= units[chunk]
    took += fabric.alpha[routes.slot]
    least = int(took.min(initial=1))
    key: NDArray[np.float64]
    if steps is not None:
        key = steps[chunk].astype(np.float64)
        key *= 0.3 * least / fabric.num_ranks
    else:
        key = np.random.default_rng(seed).random(count)
        key *= 0.3 * least
    is_first, next_of, next_end = np.zeros(count, bool), np.zeros(count, np.int32), np.zeros(count, np.int32)
    hops = Hops(units, routes.slot, chunk, is_first, next_of, next_end, key)
    join_hops(fabric, routes.hop_of, hops, np.empty(fabric.num_ranks, np.int64), took, signal)
    key -= took
    if routes.urgent is not None:
        key[routes.urgent] -= 2.0 * took.max(initial=1)
    return hops


def _make_queues(
    fabric: Fabric,
    hops: Hops,
    room: int,
    start: type[np.int32] | type[np.int64],
    spill_dir: str | os.PathLike[str] | None,
) -> Queues:
    num_slots, num_hops = fabric.num_slots, len(hops.slot)
    first = np.cumsum(np.bincount(hops.slot, minlength=num_slots))
    return Queues(
        queue_of=np.concatenate(([0], first[:-1])).astype(np.int64),
        queue_size=np.zeros(num_slots, np.int64),
        queue_key=np.empty(num_hops),
        queue_hop=np.empty(num_hops, np.int32),
        resource_left=np.zeros(fabric.num_resources, np.int64),
        free=np.zeros(num_slots, np.int64),
        resource_free=np.zeros(fabric.num_resources, np.int64),
        is_asked=np.zeros(num_slots, bool),
        asked_key=np.empty(num_slots),
        asked=np.empty(num_slots, np.int64),
        event_time=np.empty(room, np.int64),
        event_what=np.empty(room, np.int64),
        scalar=np.zeros(3, np.int64),
        sent_chunk=room_for(num_hops, np.int32, spill_dir),
        sent_link=room_for(num_hops, np.int32, spill_dir),
        sent_start=room_for(num_hops, start, spill_dir),
    )


def _steps(fabric: Fabric, demand: Demand) -> NDArray[np.int64]:
    """Of every chunk, how far its target is ahead of where it starts, (num_chunks,).

    As in a pairwise exchange, every rank serves first the one after it, then the next, so that no two serve
    the same.
    """
    assert demand.target is not None, "chunks go to one rank each"
    ahead = demand.target.astype(np.int64) - demand.origin[demand.origin_of[:-1]]
    steps: NDArray[np.int64] = ahead % fabric.num_ranks
    return steps
