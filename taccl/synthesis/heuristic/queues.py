"""Schedules along routes that are chosen first such that they load the fabric evenly.

Then comes the order of sends along them: see `taccl.synthesis.heuristic.router`, and
`taccl.synthesis.heuristic.queue_kernel`. Several seeds are tried where that takes no time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from taccl.errors import NoSolutionError
from taccl.synthesis.heuristic.events import is_stopped, part
from taccl.synthesis.heuristic.router import (
    find_paths,
    find_trees,
    path_bytes,
    search_steps,
    sending_ns,
)
from taccl.synthesis.heuristic.sending import Sent, send

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from taccl.synthesis.heuristic.fabric import Demand, Fabric
    from taccl.synthesis.heuristic.router import Routes

__all__ = [
    "SCHEDULER", "SchedulerParameters", "queue_bytes", "send_along_trees", "send_best", "send_queued",
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

#: What a hop takes, in arrays of the kernel, in its columns, and in those of the best so far.
_HOP_BYTES = 61
#: How many hops a chunk has, before its way is known.
_GUESSED_HOPS = 4


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
        return find_paths(fabric, demand, seed=seed, may_relay=routes.may_relay, seconds=seconds)

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
        in_turn = bool(seed // SCHEDULER.tree_orders // len(SCHEDULER.waiting) % 2)
        return find_trees(
            fabric, demand, seed=seed, may_relay=routes.may_relay, waiting=waiting, in_turn=in_turn,
            seconds=seconds,
        )  # fmt: skip

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
            found = send(
                fabric, demand, routes, seed + run, limit, left, in_step=in_step, spill_dir=spill_dir
            )
        if found is not None:
            best = found
            if best.finish_ticks <= target_ticks:
                break
    return None if best is None else replace(best, num_runs=tried)


def queue_bytes(fabric: Fabric, demand: Demand) -> int:
    """Bytes that `send_queued` needs at its peak, within some tens of percent."""
    num_hops = _GUESSED_HOPS * demand.num_chunks if demand.routes is None else len(demand.routes.slot)
    arrays = _HOP_BYTES * num_hops + 50 * demand.num_chunks + 500 * fabric.num_slots
    return path_bytes(fabric, demand) + arrays
