"""Schedules along ways, or along trees, that are chosen first such that they load the fabric evenly.

Then comes the order of sends along them: see `taccl.synthesis.compiled.ways` and
`taccl.synthesis.compiled.trees`, and `taccl.synthesis.compiled.queue_kernel`. Several seeds are tried where
that takes no time.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from taccl.errors import NoSolutionError
from taccl.synthesis.compiled.events import is_stopped, part, stopping
from taccl.synthesis.compiled.sending import Sent, send
from taccl.synthesis.compiled.trees import Grove, find_trees, search_steps
from taccl.synthesis.compiled.ways import find_ways, sending_ns, tree_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from taccl.synthesis.compiled.fabric import Demand, Fabric
    from taccl.synthesis.compiled.ways import Ways

__all__ = ["queue_bytes", "send_along_trees", "send_queued"]

#: By default as many runs as make about so many sends, two at least, but no more than the second.
_SENDS = 200_000
_MOST_RUNS = 40
#: How many orders are tried along the same ways.
_ORDERS = 5
#: The same for trees, of which there are so many runs at most. Each next trees wait less, or more, gladly.
_TREE_ORDERS, _MOST_TREES = 2, 100
_PATIENCE = (0.25, 4.0, 1.0, 16.0)
#: Trees are rerouted so often at most, and until so many sends have been made.
_MOST_TURNS, _TURN_SENDS = 1000, 400_000
_STEEP = (1.0, 4.0, 16.0)
#: So many steps of a search for trees take some ten milliseconds; and so many, a second.
_FEW_STEPS, _MANY_STEPS = 1_000_000, 30_000_000
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
    """The best schedule of several seeds along ways to the one rank that each chunk goes to.

    Parameters
    ----------
    demand : Demand
        With a target for every chunk. Its ways, if it has any, are the first that are tried.
    num_runs, target_ticks, time_limit_s, spill_dir
        As in `taccl.synthesis.compiled.scale.spread`; by default there are more runs the fewer sends
        there are.

    Raises
    ------
    CollectiveError
        If a chunk cannot reach its target.
    """
    ways = demand.ways or find_ways(fabric, demand, seed=seed)
    runs = num_runs or max(2, min(_MOST_RUNS, _SENDS // max(1, len(ways.slot))))

    def find(seed: int, seconds: float | None) -> Ways:
        return find_ways(fabric, demand, seed=seed, may_relay=ways.may_relay, seconds=seconds)

    best = _best(
        fabric, demand, ways, find, orders=_ORDERS, num_runs=runs, seed=seed, target_ticks=target_ticks,
        seconds=time_limit_s, spill_dir=spill_dir,
    )  # fmt: skip
    if best is None:
        raise NoSolutionError("found no schedule along the ways chosen")
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
        Its ways, if it has any, are the first that are tried. Without, trees are only looked for where that
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
    ways = demand.ways
    if ways is None:
        if search_steps(fabric, demand) > _FEW_STEPS or fabric.num_ranks * demand.num_chunks > _SENDS // 2:
            return None
        ways = find_trees(fabric, demand, seed=seed)
    runs = num_runs or max(1, min(_MOST_TREES, _SENDS // max(1, len(ways.slot))))
    if num_runs is None and search_steps(fabric, demand) > _FEW_STEPS:
        runs = min(runs, _TREE_ORDERS * max(1, _MANY_STEPS // max(1, search_steps(fabric, demand))))

    def find(seed: int, seconds: float | None) -> Ways:
        patience = _PATIENCE[seed // _TREE_ORDERS % len(_PATIENCE)]
        in_turn = bool(seed // _TREE_ORDERS // len(_PATIENCE) % 2)
        return find_trees(
            fabric, demand, seed=seed, may_relay=ways.may_relay, patience=patience, in_turn=in_turn,
            seconds=seconds,
        )  # fmt: skip

    began = time.monotonic()
    best = _best(
        fabric, demand, ways, find, orders=_TREE_ORDERS, num_runs=runs, seed=seed, target_ticks=target_ticks,
        seconds=time_limit_s, limit_ticks=limit_ticks, spill_dir=spill_dir,
    )  # fmt: skip
    if num_runs is not None or (best is not None and best.finish_ticks <= target_ticks):
        return best
    left = None if time_limit_s is None else time_limit_s - (time.monotonic() - began)
    return _rerouted(
        fabric, demand, ways if best is None else best.ways, best, limit_ticks, seed, target_ticks, left
    )


def _rerouted(
    fabric: Fabric,
    demand: Demand,
    ways: Ways,
    best: Sent | None,
    limit_ticks: int,
    seed: int,
    target_ticks: int,
    seconds: float | None,
) -> Sent | None:
    """A schedule that finishes earlier than the best so far, along trees that differ in some chunks' ways."""
    began = time.monotonic()
    turns = min(
        _MOST_TURNS,
        _TURN_SENDS // max(1, len(ways.slot)),
        _MANY_STEPS // max(1, search_steps(fabric, demand)),
    )
    grove, rng = Grove(fabric, demand, ways.may_relay), np.random.default_rng(seed)
    grove.plant(ways)
    growth = grove.growth
    for turn in range(turns):
        if is_stopped() or (seconds is not None and time.monotonic() - began > seconds):
            break
        if best is not None and best.finish_ticks <= target_ticks:
            break
        late = np.arange(demand.num_chunks)
        if best is not None and turn % 2:
            late = np.unique(best.chunk[best.start >= best.last_start])
        some = rng.permutation(late)[: rng.integers(1, 4)]
        kept = growth.way[some], growth.load.copy(), growth.resource_load.copy()
        dearness = 1.0 + rng.random(fabric.num_slots)
        patience, steepness = rng.choice(_PATIENCE), rng.choice(_STEEP)
        limit = limit_ticks if best is None else best.finish_ticks
        found = None
        with part(f"rerouting, turn {turn + 1} of {turns}", ahead=turns - turn - 1):
            with stopping(grove.signal, None):
                peak = grove.grow(
                    some, steepness, patience, float(ways.peak_ticks), in_turn=turn % 4 > 1, dearness=dearness
                )
            if peak <= limit:
                found = send(fabric, demand, grove.ways(growth.way, peak), seed + turn, limit, None)
        if found is None or (best is not None and found.measure > best.measure):
            growth.way[some], growth.load[:], growth.resource_load[:] = kept
        else:
            best = found
    return best


def _best(
    fabric: Fabric,
    demand: Demand,
    ways: Ways,
    find: Callable[[int, float | None], Ways],
    *,
    orders: int,
    num_runs: int,
    seed: int,
    target_ticks: int,
    seconds: float | None,
    limit_ticks: int = 2**62,
    spill_dir: str | os.PathLike[str] | None,
) -> Sent | None:
    """The best of several orders along each of several ways; None if none ends within the limit.

    Parameters
    ----------
    ways : Ways
        The first to try.
    find : function of int and float or None to Ways
        Further ones, by seed, and the seconds it may take.
    orders : int
        How many orders are tried along the same ways.
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
        steps = sending_ns(fabric, len(ways.slot))
        with part(name, steps=steps, ahead=steps * (num_runs - run - 1)):
            if run and run % orders == 0:
                try:
                    ways = find(seed + run, left)
                except NoSolutionError:  # there was not the time
                    break
            limit = limit_ticks if best is None else min(limit_ticks, best.finish_ticks - 1)
            if ways.peak_ticks > limit:
                continue
            tried += 1
            in_step = demand.target is not None and run % 2 == 0
            found = send(fabric, demand, ways, seed + run, limit, left, in_step=in_step, spill_dir=spill_dir)
        if found is not None:
            best = found
            if best.finish_ticks <= target_ticks:
                break
    return None if best is None else replace(best, num_runs=tried)


def queue_bytes(fabric: Fabric, demand: Demand) -> int:
    """Bytes that `send_queued` needs at its peak, within some tens of percent."""
    num_hops = _GUESSED_HOPS * demand.num_chunks if demand.ways is None else len(demand.ways.slot)
    arrays = _HOP_BYTES * num_hops + 50 * demand.num_chunks + 500 * fabric.num_slots
    return tree_bytes(fabric, demand) + arrays
