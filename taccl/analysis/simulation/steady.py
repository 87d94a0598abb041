"""Steady state: the shortest interval at which tiles of a large message can follow one another.

Runtimes loop a program over the tiles of a message, so its bandwidth is one tile per interval. With the order
on each resource kept, send s of tile t starts at ``potential[s] + t * interval``. This is feasible if and
only if no cycle of waits is longer than the interval times the number of tiles that it spans. The shortest
interval is therefore the maximum cycle ratio. The search starts from the busiest resource's load. A cycle
that is too long gives the next interval, until longest paths converge, which proves optimality. This is
Dinkelbach's method, as in Lawler, Combinatorial Optimization, 1976, section 3.13. All arithmetic is on
integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arguments import checked
from taccl._internal.arrays import distinct
from taccl._internal.names import shown
from taccl._internal.units import format_rates, format_us, gb_per_s
from taccl.analysis.certificates.certificate import is_exact
from taccl.analysis.simulation.events import Events
from taccl.analysis.simulation.simulation import TimedSend, sends_table
from taccl.errors import InputError
from taccl.schedule.longest_paths import in_enough_bits
from taccl.schedule.schedule import Schedule


@dataclass(frozen=True, eq=False, repr=False)
class SteadyState:
    """Shortest interval between tiles, with the cycle that limits it; see `initiation_interval`.

    Parameters
    ----------
    interval : Fraction
        Microseconds between the starts of consecutive tiles, exact.
    cycle_tiles : int
        Number of tiles that the cycle spans; its length is that many intervals.
    busiest_resource : str
        Name of the resource that one tile holds for the longest time.
    busiest_load : Fraction
        Microseconds for which one tile holds the busiest resource; no interval can be shorter.
    """

    schedule: Schedule
    interval: Fraction
    cycle_tiles: int
    busiest_resource: str
    busiest_load: Fraction
    _waits: tuple[int, ...] = field(repr=False)
    _potentials: tuple[int, ...] = field(repr=False)

    @property
    def interval_us(self) -> float:
        """Microseconds between the starts of consecutive tiles."""
        return float(self.interval)

    @property
    def algbw_gb_per_s(self) -> float | None:
        """Size of a tile divided by the interval, in GB/s; None if the size is unknown."""
        return gb_per_s(self.schedule.problem.size_bytes, self.interval)

    @property
    def busbw_gb_per_s(self) -> float | None:
        """Bus bandwidth in GB/s, as nccl-tests defines it; None if the size is unknown."""
        algbw = self.algbw_gb_per_s
        return None if algbw is None else algbw * self.schedule.problem.collective.busbw_factor

    @property
    def limits(self) -> str:
        """Text that names what prevents a shorter interval."""
        if not self.interval:
            return "no resource is held"
        if self.interval == self.busiest_load:
            return f"{self.busiest_resource} is never idle"
        tiles = f"{self.cycle_tiles} tile{'s' if self.cycle_tiles > 1 else ''}"
        share = float(self.busiest_load / self.interval)
        return (
            f"{len(self.cycle)} sends wait for one another in a cycle over {tiles}; the busiest resource, "
            f"{self.busiest_resource}, is in use for {share:.1%} of the time"
        )

    @cached_property
    def cycle(self) -> tuple[TimedSend, ...]:
        """Sends of the limiting cycle in order, each of which waits for the one before.

        The first send waits for the last send of the previous repetition, whose tile has number 0.
        """
        problem = self.schedule.problem
        events, us = Events(self.schedule, problem), problem.costs.us
        gaps, waits = events.gaps().tolist(), events.waits
        # Begin at a wait for a send rather than a join, so that every join lies between two sends.
        first = next((i for i, w in enumerate(self._waits) if waits.source[w] < events.num_sends), 0)
        steps = []
        now = tile = 0
        for wait in (*self._waits[first:], *self._waits[:first]):
            now, tile, send = now + gaps[wait], tile + int(waits.tile[wait]), int(waits.target[wait])
            if send < events.num_sends:
                ends = us(now), us(now + events.duration[send])
                steps.append(TimedSend(*events.sent(send), *ends, *events.described(wait), tile, send))
        return tuple(steps)

    def check(self) -> bool:
        """True if exact arithmetic confirms the interval.

        The waits must form a cycle whose length is the interval times the tiles that it spans, so no shorter
        interval is feasible. The potentials must satisfy every wait, so the interval itself is feasible.
        """
        if not (is_exact(self.interval, Fraction) and is_exact(self._potentials, tuple[int, ...])):
            return False
        problem = self.schedule.problem
        events = Events(self.schedule, problem)
        gaps, ticks = events.gaps().tolist(), self.interval * problem.costs.ticks_per_us
        sources, targets, *_, spans = (each.tolist() for each in events.waits)
        if not len(events.held[0]):
            return ticks == 0
        if len(self._potentials) != events.num_events or not self._waits:
            return False
        following = (*self._waits[1:], self._waits[0])
        closed = all(targets[a] == sources[b] for a, b in zip(self._waits, following, strict=True))
        tiles = sum(spans[w] for w in self._waits)
        tight = tiles == self.cycle_tiles > 0 and sum(gaps[w] for w in self._waits) == ticks * tiles
        one = ticks.denominator
        feasible = all(
            self._potentials[b] + ticks.numerator * tile >= self._potentials[a] + one * gap
            for a, b, gap, tile in zip(sources, targets, gaps, spans, strict=True)
        )
        return closed and tight and feasible

    def table(self) -> str:
        """Table of the cycle as text, one send per row."""
        return sends_table(self.cycle)

    def __repr__(self) -> str:
        rates = format_rates(self.algbw_gb_per_s, self.schedule.problem.collective.busbw_factor)
        rate = f", {rates}" if rates else ""
        return (
            f"SteadyState({self.schedule.problem.title}: a tile every {format_us(self.interval_us)}{rate}; "
            f"{shown(self.limits, 300)})"
        )


@checked
def initiation_interval(schedule: Schedule) -> SteadyState:
    """Shortest interval at which tiles can follow one another, with the order on each resource kept.

    Several tiles may be in flight at once. On each resource, the first send of a tile follows the last send
    of the previous tile. Sends wait for data of their own tile only. For other sizes or costs, give the
    schedule of a simulation. Example: ``initiation_interval(simulate(schedule, size="1GB").as_schedule())``.

    Raises
    ------
    InputError
        If the schedule does not belong to its problem, or sends wait for one another within one tile.
    """
    problem = schedule.problem
    events = Events(schedule, problem)
    resource, send, begin, until = events.held
    if not len(send):
        return SteadyState(schedule, Fraction(0), 0, "", Fraction(0), (), ())
    loads = np.zeros(len(problem.topology.resources), np.int64)
    np.add.at(loads, resource, until - begin)
    used = distinct(resource)
    busiest = int(used[np.argmax(loads[used])])
    # Waits between successive sends on the busiest resource; the last leads to the next tile's first send.
    load, cycle = int(loads[busiest]), np.flatnonzero(events.waits.cause == busiest).tolist()
    interval = Fraction(load)
    while True:
        potentials, closed = _settle(events, interval)
        if not closed:
            break
        interval, cycle = max((_ratio(events, each), each) for each in closed)
    return SteadyState(
        schedule,
        interval=interval / problem.costs.ticks_per_us,
        cycle_tiles=int(events.waits.tile[cycle].sum()),
        busiest_resource=problem.topology.resources[busiest].name,
        busiest_load=problem.costs.us(load),
        _waits=tuple(cycle),
        _potentials=tuple(potentials.tolist()),
    )


def _ratio(events: Events, cycle: Sequence[int]) -> Fraction:
    rows = np.array(cycle)
    tiles = int(events.waits.tile[rows].sum())
    if not tiles:
        targets = events.waits.target[rows]
        sends = sorted({*targets[targets < events.num_sends].tolist()})
        raise InputError(
            f"sends of groups {', '.join(map(str, sends))} wait for one another; verify the schedule to see "
            "where",
            where="schedule",
        )
    return Fraction(int(events.gaps()[rows].sum()), tiles)


def _settle(events: Events, interval: Fraction) -> tuple[NDArray[Any], list[list[int]]]:
    """Start times (potentials) that satisfy every wait at an interval, or cycles too long for it.

    Returns (potentials, cycles); the potentials are valid if there are no cycles. Their unit is a tick
    divided by the interval's denominator.
    """
    one, step = interval.denominator, interval.numerator
    weights = one * events.gaps().astype(object) - step * events.waits.tile
    weights = in_enough_bits(weights)
    potential, binding = np.zeros(events.num_events, weights.dtype), np.full(events.num_events, -1)
    while True:
        moved, _ = events.levels.postpone(potential, weights, binding, potential)
        closed = _cycles(events, binding) if moved else []
        if closed or not moved:
            return potential, closed


def _cycles(events: Events, binding: NDArray[np.int64]) -> list[list[int]]:
    """Cycles of waits; `binding` has the index of the wait that ends last for each event, or -1."""
    waits, bound = binding.tolist(), binding >= 0
    sources = np.where(bound, events.waits.source[binding], -1).tolist()
    seen = [-1] * len(binding)
    found = []
    for root in range(len(binding)):
        event = root
        while event >= 0 and seen[event] < 0:
            seen[event] = root
            event = sources[event]
        if event >= 0 and seen[event] == root:
            cycle = [waits[event]]
            while (source := int(events.waits.source[cycle[-1]])) != event:
                cycle.append(waits[source])
            found.append(cycle[::-1])
    return found
