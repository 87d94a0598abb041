"""Schedules of collectives in which every chunk goes to one rank, such as alltoall.

First ways that load the fabric evenly, then the order of sends along them: see
`taccl.synthesis.compiled.ways` and `taccl.synthesis.compiled.queue_kernel`. Several seeds are tried where
that takes no time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl.errors import NoSolutionError
from taccl.synthesis.compiled.events import stopping
from taccl.synthesis.compiled.queue_kernel import HEAP_FULL, SIGNAL, Hops, Queues, send_along
from taccl.synthesis.compiled.ways import Ways, find_ways, tree_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.synthesis.compiled.fabric import Demand, Fabric

__all__ = ["Sent", "queue_bytes", "send_queued"]

#: By default as many runs as make about so many sends, but no more than the second.
_SENDS = 200_000
_MOST_RUNS = 40
#: How many orders are tried along the same ways.
_ORDERS = 5
#: What a hop takes, in arrays of the kernel and those that it is made from.
_HOP_BYTES = 72
#: How many hops a chunk has, before its way is known.
_GUESSED_HOPS = 4


@dataclass(frozen=True, slots=True)
class Sent:
    """What was found: ways, and when each of their hops starts.

    Parameters
    ----------
    chunk, slot : (num_hops,) int32
    start : (num_hops,) int64
        Ticks.
    finish_ticks : int
    seed : int
        What it was found with.
    num_runs : int
        How many seeds were tried.
    """

    chunk: NDArray[np.int32]
    slot: NDArray[np.int32]
    start: NDArray[np.int64]
    finish_ticks: int
    seed: int
    num_runs: int

    def columns(self, fabric: Fabric) -> tuple[NDArray[Any], NDArray[np.int32], NDArray[Any]]:
        """(chunk, link, start) of every send in order of start, as narrow as may be."""
        order = np.argsort(self.start, kind="stable")
        small: type[np.uint16] | type[np.int32] = np.int32
        if len(self.chunk) and int(self.chunk.max()) < 1 << 16:
            small = np.uint16
        wide = self.finish_ticks > np.iinfo(np.int32).max
        start = self.start[order].astype(np.int64 if wide else np.int32)
        return self.chunk[order].astype(small), fabric.link[self.slot[order]], start


def send_queued(
    fabric: Fabric,
    demand: Demand,
    *,
    num_runs: int | None = None,
    seed: int = 0,
    target_ticks: int = 0,
    time_limit_s: float | None = None,
) -> Sent:
    """The best schedule of several seeds.

    Parameters
    ----------
    demand : Demand
        With a target for every chunk. Its ways, if it has any, are the first that are tried.
    num_runs, target_ticks, time_limit_s
        As in `taccl.synthesis.compiled.scale.spread`; by default there are more runs the fewer sends
        there are.

    Raises
    ------
    CollectiveError
        If a chunk cannot reach its target.
    """
    began = time.monotonic()
    ways = demand.ways or find_ways(fabric, demand, seed=seed)
    may_relay = ways.may_relay
    runs = num_runs or max(1, min(_MOST_RUNS, _SENDS // max(1, len(ways.slot))))
    best: Sent | None = None
    tried = 0
    for run in range(runs):
        seconds, limit = None, 2**62
        if best is not None:
            seconds = None if time_limit_s is None else time_limit_s - (time.monotonic() - began)
            if best.finish_ticks <= target_ticks or (seconds is not None and seconds <= 0):
                break
            limit = best.finish_ticks - 1
        if run and run % _ORDERS == 0:
            ways = find_ways(fabric, demand, seed=seed + run, may_relay=may_relay)
        if best is not None and best.finish_ticks <= ways.peak_ticks:
            continue
        tried += 1
        found = _send(fabric, demand, ways, seed + run, limit, seconds)
        if found is not None:
            best = found
    if best is None:
        raise NoSolutionError("found no schedule along the ways chosen")
    return Sent(best.chunk, best.slot, best.start, best.finish_ticks, best.seed, tried)


def queue_bytes(fabric: Fabric, demand: Demand) -> int:
    """Bytes that `send_queued` needs at its peak, within some tens of percent."""
    num_hops = _GUESSED_HOPS * demand.num_chunks if demand.ways is None else len(demand.ways.slot)
    arrays = _HOP_BYTES * num_hops + 50 * demand.num_chunks + 500 * fabric.num_slots
    return tree_bytes(fabric, demand) + arrays


def _send(
    fabric: Fabric, demand: Demand, ways: Ways, seed: int, limit: int, seconds: float | None
) -> Sent | None:
    """One run of the kernel; None if it passes the limit, or takes longer."""
    hops = _make_hops(fabric, demand, ways, seed)
    room = 8 * fabric.num_slots + 2 * len(fabric.wake_hold) + 1024
    while True:
        queues = _make_queues(fabric, hops, room)
        with stopping(queues.scalar[SIGNAL:], seconds):
            finish = int(send_along(fabric, hops, queues, limit))
        if finish != HEAP_FULL:
            break
        room *= 4
    if finish < 0 or finish > limit:
        return None
    assert (queues.start >= 0).all(), "every hop is let go at last"
    return Sent(hops.chunk, hops.slot, queues.start, finish, seed, 1)


def _make_hops(fabric: Fabric, demand: Demand, ways: Ways, seed: int) -> Hops:
    """The hops, those of chunks that still have far to go first; ties as the seed has it."""
    chunk = np.repeat(np.arange(demand.num_chunks, dtype=np.int32), np.diff(ways.hop_of))
    took = fabric.alpha[ways.slot] + demand.units[chunk] * fabric.beta[ways.slot]
    until = np.concatenate(([0], np.cumsum(took)))
    tail = until[ways.hop_of[chunk + 1]] - until[:-1]
    least = int(took.min(initial=1))
    jitter = np.random.default_rng(seed).random(len(chunk)) * (0.3 * least)
    units = np.array(demand.units, dtype=np.int64)
    return Hops(units, ways.hop_of, ways.slot, chunk, jitter - tail)


def _make_queues(fabric: Fabric, hops: Hops, room: int) -> Queues:
    num_slots, num_hops = fabric.num_slots, len(hops.slot)
    first = np.cumsum(np.bincount(hops.slot, minlength=num_slots))
    return Queues(
        queue_of=np.concatenate(([0], first[:-1])).astype(np.int64),
        queue_size=np.zeros(num_slots, np.int64),
        queue_key=np.empty(num_hops),
        queue_hop=np.empty(num_hops, np.int64),
        resource_left=np.zeros(fabric.num_resources, np.int64),
        free=np.zeros(num_slots, np.int64),
        resource_free=np.zeros(fabric.num_resources, np.int64),
        is_asked=np.zeros(num_slots, bool),
        asked_key=np.empty(num_slots),
        asked=np.empty(num_slots, np.int64),
        event_time=np.empty(room, np.int64),
        event_what=np.empty(room, np.int64),
        scalar=np.zeros(2, np.int64),
        start=np.full(num_hops, -1, np.int64),
    )
