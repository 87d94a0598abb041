"""Sends along routes that are given: their order, and when each starts.

The columns of what is found are filled by the kernel itself, in order of start, and may lie in files.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from taccl.schedule.spill import room_for
from taccl.synthesis.heuristic.events import part, stopping
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
from taccl.synthesis.heuristic.router import sending_ns

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

    from taccl.synthesis.heuristic.fabric import Demand, Fabric
    from taccl.synthesis.heuristic.router import Routes

__all__ = ["Sent", "send", "travel_ticks"]

#: Nanoseconds that it takes to put a hop in order, about.
_ORDER_NS = 70


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
    routes : Routes
        The routes that were taken.
    """

    chunk: NDArray[Any]
    link: NDArray[np.int32]
    start: NDArray[Any]
    finish_ticks: int
    seed: int
    num_runs: int
    routes: Routes

    @property
    def last_start(self) -> int:
        """When the last sends start."""
        return int(self.start[-1:].max(initial=0))

    @property
    def measure(self) -> tuple[int, int]:
        """The smaller the better: the finish, and of schedules that finish alike the sum of all starts."""
        return self.finish_ticks, int(self.start.sum(dtype=np.int64))

    @property
    def columns(self) -> tuple[NDArray[Any], NDArray[np.int32], NDArray[Any]]:
        """(chunk, link, start) of every send in order of start."""
        return self.chunk, self.link, self.start


def send(
    fabric: Fabric,
    demand: Demand,
    routes: Routes,
    seed: int,
    limit: int,
    seconds: float | None,
    *,
    in_step: bool = False,
    spill_dir: str | os.PathLike[str] | None = None,
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
    most = int(np.iinfo(np.int32).max)
    start_type: type[np.int32] | type[np.int64] = np.int32 if routes.peak_ticks <= most else np.int64
    while True:
        queues = _make_queues(fabric, hops, room, start_type, spill_dir)
        scalar = queues.scalar
        sent = partial(_done, scalar[SIGNAL:], num_hops)
        with part("queueing sends", done=sent, steps=sending), stopping(scalar[SIGNAL:], seconds):
            at_most = min(limit, most) if start_type is np.int32 else limit
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
    return Sent(chunk, queues.sent_link, queues.sent_start, finish, seed, 1, routes)


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


def travel_ticks(fabric: Fabric, units: NDArray[np.int64], routes: Routes) -> NDArray[np.int64]:
    """For how long a chunk travels at least from the start of each hop until the last of its ranks has it."""
    hops = _make_hops(fabric, units, routes, 0, np.zeros(2, np.int64))
    ticks: NDArray[np.int64] = np.ceil(-hops.key).astype(np.int64)
    return ticks
