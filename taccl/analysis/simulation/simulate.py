"""Simulation: replay of a schedule under other assumptions, with its order and its merges kept.

The replay ignores the times computed by the producer. The schedule determines the waits of each send
(`taccl.analysis.simulation.events`); a send is timed after all of its predecessors. Sends are processed in
this order of precedence rather than by start time. Ingress is held until a send's end, so a send may take the
later turn there and still start first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arguments import Count, Natural, Size, checked
from taccl._internal.names import first_of
from taccl.analysis.simulation.assumptions import assume
from taccl.analysis.simulation.events import JITTER_BITS, Events, EventTimes
from taccl.analysis.simulation.simulation import Simulation
from taccl.errors import InputError
from taccl.schedule.schedule import Schedule
from taccl.topology.topology import Topology

#: Max sends of all tiles together; more would take minutes and gigabytes.
_MOST_EVENTS = 100_000_000


@checked
def simulate(
    schedule: Schedule,
    *,
    size: Size | None = None,
    alpha: str | None = None,
    profile: str | None = None,
    topology: Topology | None = None,
    tiles: Count = 1,
    jitter: float = 0.0,
    seed: Natural = 0,
) -> Simulation:
    """Times of a schedule under other assumptions, with its order and its merges kept.

    Every send starts as soon as its chunks are at its sources and its resources are free, in the schedule's
    order. In a reduction, all contributions that the send is to include must have arrived. Gaps required by
    the problem's clauses (`own_first`) are kept. Under the schedule's own assumptions, the finish equals the
    schedule's exactly if every send starts as early as possible. A schedule with slack, such as one written
    by hand, finishes earlier here. One whose sends overlap on a resource finishes later, at its true finish.

    Parameters
    ----------
    size : int or str, optional
        Size as nccl-tests counts it (``"16MB"``): every chunk in proportion, rounded up to whole bytes.
    alpha : {"occupies", "pipelined"}, optional
        With ``"occupies"``, a link's own hold lasts for alpha + bytes * beta, where a machine's profile may
        cap alpha at its overhead. With ``"pipelined"``, it lasts for bytes * beta. Ports of switches follow
        the link. NICs and other resources keep their holds.
    profile : str, optional
        Another profile of the machine's constants, e.g. ``"nominal"``.
    topology : Topology, optional
        Topology with the same links and holds, and other costs.
    tiles : int
        Number of tiles of a large message, each of the problem's size. Every resource serves all sends of a
        tile, in the schedule's order, before those of the next; data is awaited within a tile only.
    jitter : float
        Each send of each tile lasts, and holds its resources, for longer or shorter by its own factor, drawn
        uniformly between ``1 - jitter`` and ``1 + jitter``.
    seed : int
        Seed of the factors; the same seed gives the same times.

    Raises
    ------
    InputError
        If an assumption is unknown or does not fit the problem, if the schedule does not belong to its
        problem, or if the order cannot be kept under the assumptions because sends wait for one another.

    Notes
    -----
    If a chunk arrives at a rank several times, sends wait for the arrival that is first in the schedule. If
    the schedule sends a sum on before a further contribution is added, the addition waits for that send: the
    contribution arrives at least one tick later.
    """
    if not 0 <= jitter < 1:
        raise InputError(f"found {jitter!r}; expected a number of at least 0 and below 1", where="jitter")
    problem = assume(schedule.problem, size=size, alpha=alpha, profile=profile, topology=topology)
    events = Events(schedule, problem)
    if tiles * events.num_events > _MOST_EVENTS:
        raise InputError(
            f"found {tiles} tiles of {events.num_events} sends and joins; expected at most "
            f"{max(1, _MOST_EVENTS // events.num_events)}: each takes about 2 us and 20 bytes to replay; "
            "simulate a few tiles, and add taccl.initiation_interval for each further one",
            where="tiles",
        )
    run = _play(events, tiles, _factors(events, tiles, jitter, seed) if jitter else None)
    return Simulation(schedule, problem, tiles=tiles, jitter=jitter, seed=seed, run=run)


def _factors(events: Events, tiles: int, jitter: float, seed: int) -> NDArray[np.int64]:
    """Duration factor of every send of every tile, in units of 2**-JITTER_BITS; joins last no time."""
    width = min(round(jitter * 2**JITTER_BITS), 2**JITTER_BITS - 1)
    drawn = np.random.default_rng(seed).integers(-width, width, (tiles, events.num_sends), endpoint=True)
    joins = np.zeros((tiles, events.num_events - events.num_sends), dtype=np.int64)
    factors: NDArray[np.int64] = np.concatenate([drawn, joins], axis=1) + 2**JITTER_BITS
    return factors


def _play(events: Events, tiles: int, factors: NDArray[np.int64] | None) -> EventTimes:
    """Start of every event of every tile, and the last wait to end before it."""
    run = EventTimes(events, [], [], factors)
    gaps, before = events.gaps(), None
    for tile in range(tiles):
        if factors is not None:
            gaps = _scaled_gaps(events, run.scale(tile), run.scale(max(tile - 1, 0)))
        before, binding = _play_tile(events, gaps, before)
        run.starts.append(_packed(before))
        run.bindings.append(np.array(binding, dtype=np.int32))
    return run


def _scaled_gaps(events: Events, scale: Sequence[int], scale_before: Sequence[int]) -> list[int]:
    one = 2**JITTER_BITS
    return [
        after * (scale_before if tile else scale)[a] - lead * scale[b] + extra * one
        for a, b, after, lead, extra, tile in zip(
            events.source, events.target, events.after, events.lead, events.extra, events.tile, strict=True
        )
    ]


def _play_tile(
    events: Events, gap: Sequence[int], before: Sequence[int] | None
) -> tuple[list[int], list[int]]:
    """Starts of one tile, given those of the previous tile, and the last wait to end before each event."""
    start, binding = [0] * events.num_events, [-1] * events.num_events
    for component in events.components:
        rounds = 0
        while events.put_off(component, start, binding, gap, before) and len(component) > 1:
            rounds += 1
            # Mutually bounding events settle in one round each, unless a cycle delays them without end.
            if rounds > len(component):
                sends = sorted(event for event in component if event < events.num_sends)
                raise InputError(
                    "the schedule's order cannot be kept under these assumptions: sends of groups "
                    f"{first_of(sends, 6)} would wait for one another; simulate nearer to the schedule's own "
                    "assumptions, or synthesize for these",
                    where="schedule",
                )
    return start, binding


def _packed(times: list[int]) -> NDArray[np.int64] | NDArray[np.object_]:
    """Times as an array; of Python integers if they need more than 64 bits."""
    try:
        return np.array(times, dtype=np.int64)
    except OverflowError:
        return np.array(times, dtype=object)
