"""The times of a simulation's events, and how every resource spends its time until the last of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from taccl.schedule.precedence import CLAUSE, DATA, SUM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from taccl.analysis.simulation.events import Events

#: A tick is cut into 2**JITTER_BITS where there is jitter, so that jittered times are exact too.
JITTER_BITS = 20


@dataclass(frozen=True, slots=True)
class EventTimes:
    """Times of all events: an array per tile, of starts and of the waits that were over last (-1: none)."""

    events: Events
    starts: list[NDArray[Any]]
    bindings: list[NDArray[Any]]
    factors: NDArray[Any] | None

    def scale(self, tile: int) -> Sequence[int]:
        """What the ticks of every event of a tile are multiplied by."""
        if self.factors is None:
            return [1] * self.events.num_events
        scale: list[int] = self.factors[tile].tolist()
        return scale


@dataclass(slots=True)
class Spent:
    """Ticks that a resource was busy, or idle for one of the causes; `until` is when it was last let go."""

    resource: int
    num_sends: int
    busy: int = 0
    for_data: int = 0
    for_clause: int = 0
    for_resource: int = 0
    until: int = 0

    def parts(self, finish: int) -> tuple[int, int, int, int, int]:
        """Busy; idle for data, for a clause, for another resource, and after the last send."""
        return self.busy, self.for_data, self.for_clause, self.for_resource, finish - self.until


def spend(run: EventTimes) -> list[Spent]:
    """What every resource in use spends its time on, the busiest first.

    Before a send holds it, a resource is idle for data until the send's chunks are at its sources and on
    their way to the resource, then for a clause until no clause asks to wait, then for another resource.
    """
    events, num_tiles = run.events, len(run.starts)
    spent = [Spent(resource, num_tiles * len(uses)) for resource, uses in events.uses.items()]
    for tile in range(num_tiles):
        starts, scale = run.starts[tile].tolist(), run.scale(tile)
        for each in spent:
            for use in events.uses[each.resource]:
                offset = use.begin * scale[use.send]
                begin = starts[use.send] + offset
                if begin > each.until:
                    data = _over(run, starts, scale, use.send, (DATA, SUM)) + offset
                    clause = _over(run, starts, scale, use.send, (CLAUSE,)) + offset
                    data = min(max(data, each.until), begin)
                    clause = min(max(clause, data), begin)
                    each.for_data += data - each.until
                    each.for_clause += clause - data
                    each.for_resource += begin - clause
                each.until = starts[use.send] + use.until * scale[use.send]
                each.busy += each.until - begin
    return sorted(spent, key=lambda each: -each.busy)


def _over(
    run: EventTimes, starts: Sequence[int], scale: Sequence[int], send: int, causes: tuple[int, ...]
) -> int:
    """When a send's waits of these causes are over; 0 if there are none."""
    events = run.events
    one = 1 if run.factors is None else 2**JITTER_BITS
    over = 0
    for wait in events.waits_of[send]:
        if events.cause[wait] in causes:
            source = events.source[wait]
            time = starts[source] + events.after[wait] * scale[source]
            over = max(over, time - events.lead[wait] * scale[send] + events.extra[wait] * one)
    return over
