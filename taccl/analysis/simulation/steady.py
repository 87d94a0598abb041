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

from taccl._internal.arguments import checked
from taccl._internal.names import shown
from taccl._internal.units import format_rates, gb_per_s
from taccl.analysis.certificates.certificate import is_exact
from taccl.analysis.simulation.events import Events
from taccl.analysis.simulation.simulation import TimedSend, sends_table
from taccl.errors import InputError
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
        gaps = events.gaps()
        # Begin at a wait for a send rather than a join, so that every join lies between two sends.
        first = next((i for i, w in enumerate(self._waits) if events.source[w] < events.num_sends), 0)
        steps = []
        now = tile = 0
        for wait in (*self._waits[first:], *self._waits[:first]):
            now, tile, send = now + gaps[wait], tile + events.tile[wait], events.target[wait]
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
        gaps, ticks = events.gaps(), self.interval * problem.costs.ticks_per_us
        if not events.uses:
            return ticks == 0
        if len(self._potentials) != events.num_events or not self._waits:
            return False
        following = (*self._waits[1:], self._waits[0])
        closed = all(
            events.target[a] == events.source[b] for a, b in zip(self._waits, following, strict=True)
        )
        tiles = sum(events.tile[w] for w in self._waits)
        tight = tiles == self.cycle_tiles > 0 and sum(gaps[w] for w in self._waits) == ticks * tiles
        one = ticks.denominator
        feasible = all(
            self._potentials[b] + ticks.numerator * tile >= self._potentials[a] + one * gap
            for a, b, gap, tile in zip(events.source, events.target, gaps, events.tile, strict=True)
        )
        return closed and tight and feasible

    def table(self) -> str:
        """Table of the cycle as text, one send per row."""
        return sends_table(self.cycle)

    def __repr__(self) -> str:
        rates = format_rates(self.algbw_gb_per_s, self.schedule.problem.collective.busbw_factor)
        rate = f", {rates}" if rates else ""
        return (
            f"SteadyState({self.schedule.problem.title}: a tile every {self.interval_us:.3f} us{rate}; "
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
    if not events.uses:
        return SteadyState(schedule, Fraction(0), 0, "", Fraction(0), (), ())
    gaps = events.gaps()
    loads = {resource: sum(use.until - use.begin for use in uses) for resource, uses in events.uses.items()}
    busiest = max(loads, key=lambda resource: loads[resource])
    # Waits between successive sends on the busiest resource; the last leads to the next tile's first send.
    after = {events.source[wait]: wait for wait, cause in enumerate(events.cause) if cause == busiest}
    interval, cycle = Fraction(loads[busiest]), [after[use.send] for use in events.uses[busiest]]
    while True:
        potentials, closed = _settle(events, gaps, interval)
        if not closed:
            break
        interval, cycle = max((_ratio(events, gaps, each), each) for each in closed)
    return SteadyState(
        schedule,
        interval=interval / problem.costs.ticks_per_us,
        cycle_tiles=sum(events.tile[wait] for wait in cycle),
        busiest_resource=problem.topology.resources[busiest].name,
        busiest_load=problem.costs.us(loads[busiest]),
        _waits=tuple(cycle),
        _potentials=tuple(potentials),
    )


def _ratio(events: Events, gaps: Sequence[int], cycle: Sequence[int]) -> Fraction:
    tiles = sum(events.tile[wait] for wait in cycle)
    if not tiles:
        sends = sorted({events.target[wait] for wait in cycle if events.target[wait] < events.num_sends})
        raise InputError(
            f"sends of groups {', '.join(map(str, sends))} wait for one another; verify the schedule to see "
            "where",
            where="schedule",
        )
    return Fraction(sum(gaps[wait] for wait in cycle), tiles)


def _settle(events: Events, gaps: Sequence[int], interval: Fraction) -> tuple[list[int], list[list[int]]]:
    """Start times (potentials) that satisfy every wait at an interval, or cycles too long for it.

    Returns (potentials, cycles); the potentials are valid if there are no cycles. Their unit is a tick
    divided by the interval's denominator.
    """
    one, step = interval.denominator, interval.numerator
    weights = [one * gap - step * tile for gap, tile in zip(gaps, events.tile, strict=True)]
    potential, binding = [0] * events.num_events, [-1] * events.num_events
    while True:
        moved = [events.put_off(each, potential, binding, weights, potential) for each in events.components]
        closed = _cycles(events, binding) if any(moved) else []
        if closed or not any(moved):
            return potential, closed


def _cycles(events: Events, binding: Sequence[int]) -> list[list[int]]:
    """Cycles of waits; `binding` has the index of the wait that ends last for each event, or -1."""
    seen = [-1] * len(binding)
    found = []
    for root in range(len(binding)):
        event = root
        while seen[event] < 0:
            seen[event] = root
            if binding[event] < 0:
                break
            event = events.source[binding[event]]
        else:
            if seen[event] == root:
                cycle = [binding[event]]
                while events.source[cycle[-1]] != event:
                    cycle.append(binding[events.source[cycle[-1]]])
                found.append(cycle[::-1])
    return found
