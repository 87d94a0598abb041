"""Simulation: replays a schedule under any assumption, keeping its order and its merges.

Nothing here uses the times that a producer worked out. The schedule determines the waits of each send
(`taccl.analysis.simulation.events`); each send is timed once all of its predecessors are. Sends are taken in
that order and not by the clock: ingress is held until a send's end, so that a send may have the later turn
there and yet start first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from taccl.analysis.simulation.assumptions import assume
from taccl.analysis.simulation.events import JITTER_BITS, Events, EventTimes
from taccl.analysis.simulation.simulation import Simulation
from taccl.arguments import Count, Natural, Size, checked
from taccl.errors import InputError
from taccl.names import first_of
from taccl.schedule.schedule import Schedule
from taccl.topology.topology import Topology

#: More sends of all tiles together than this are refused: minutes, and gigabytes.
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

    Every send starts as soon as its chunks are at its sources (of a reduction: everything it is to include
    has arrived) and its resources are free in the order that the schedule keeps. Gaps that the problem's
    clauses ask for (`own_first`) are kept. Under the schedule's own assumptions the finish is the schedule's
    own, exactly, where it starts every send as early as that; a schedule with slack, as one may write by
    hand, finishes earlier here. One that lets sends overlap on a resource finishes later: at its true finish.

    Parameters
    ----------
    size : int or str, optional
        Size as nccl-tests counts it (``"16MB"``): every chunk in proportion, rounded up to whole bytes.
    alpha : {"occupies", "pipelined"}, optional
        Whether a link stays busy during its alpha: the link's own hold then lasts for alpha + bytes * beta,
        or for bytes * beta, and ports of switches follow it. NICs and other resources keep their holds.
    profile : str, optional
        Another profile of the machine's constants, e.g. ``"nominal"``.
    topology : Topology, optional
        One with the same links and holds, and other costs.
    tiles : int
        So many tiles of a large message, each of the problem's size. Every resource serves all sends of a
        tile, in the schedule's order, before those of the next; data is waited for within a tile only.
    jitter : float
        Each send of each tile lasts, and holds its resources, for longer or shorter by a factor of its own,
        drawn evenly between ``1 - jitter`` and ``1 + jitter``.
    seed : int
        Of the factors; the same seed gives the same times.

    Raises
    ------
    InputError
        If an assumption is not one or does not fit the problem, the schedule is none of its problem, or the
        order contradicts itself under the assumptions: sends wait for one another.

    Notes
    -----
    Of several arrivals of a chunk at a rank, the one that is first in the schedule is waited for. A sum that
    is sent on before something else is added waits in turn: what is added arrives a tick later at least.
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
    """Duration factor of every send of every tile, in 2**-JITTER_BITS of its time; joins take none."""
    width = min(round(jitter * 2**JITTER_BITS), 2**JITTER_BITS - 1)
    drawn = np.random.default_rng(seed).integers(-width, width, (tiles, events.num_sends), endpoint=True)
    joins = np.zeros((tiles, events.num_events - events.num_sends), dtype=np.int64)
    factors: NDArray[np.int64] = np.concatenate([drawn, joins], axis=1) + 2**JITTER_BITS
    return factors


def _play(events: Events, tiles: int, factors: NDArray[np.int64] | None) -> EventTimes:
    """Start of every event of every tile, and the wait that was over last."""
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
    """Starts of one tile, after the starts of the tile before it, and the wait that was over last."""
    start, binding = [0] * events.num_events, [-1] * events.num_events
    for component in events.components:
        rounds = 0
        while events.put_off(component, start, binding, gap, before) and len(component) > 1:
            rounds += 1
            # Events that bound each other settle in one round each, unless going round delays them for ever.
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
    """Times as an array; of Python's integers where they need more than 64 bits."""
    try:
        return np.array(times, dtype=np.int64)
    except OverflowError:
        return np.array(times, dtype=object)
