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


def spend(run: EventTimes, finish: int) -> list[tuple[int, int, tuple[int, ...]]]:
    """(resource, number of sends, ticks) of every resource in use until the finish, the busiest first.

    The ticks are those it is busy, idle for data, for a clause, for another resource, and after its last
    send. Before a send holds it, a resource is idle for data until the send's chunks are at its sources and
    on their way to the resource, then for a clause until no clause asks to wait, then for another resource.
    """
    tiles = [(starts.tolist(), run.scale(tile)) for tile, starts in enumerate(run.starts)]
    spent = []
    for resource, uses in run.events.uses.items():
        busy = for_data = for_clause = for_resource = until = 0
        for starts, scale in tiles:
            for use in uses:
                offset = use.begin * scale[use.send]
                begin = starts[use.send] + offset
                if begin > until:
                    data = _over(run, starts, scale, use.send, (DATA, SUM)) + offset
                    clause = _over(run, starts, scale, use.send, (CLAUSE,)) + offset
                    data = min(max(data, until), begin)
                    clause = min(max(clause, data), begin)
                    for_data += data - until
                    for_clause += clause - data
                    for_resource += begin - clause
                until = starts[use.send] + use.until * scale[use.send]
                busy += until - begin
        ticks = (busy, for_data, for_clause, for_resource, finish - until)
        spent.append((resource, len(tiles) * len(uses), ticks))
    return sorted(spent, key=lambda each: -each[2][0])


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
