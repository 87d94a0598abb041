"""The events of a schedule, what each waits for, when it happens, and what resources then do with their time.

A schedule's order is kept apart from the times it had. See `taccl.schedule.precedence` for what a wait says.
The waits here follow the schedule's own times, and take as long as the costs of a problem say that may differ
from the schedule's in sizes and costs (`taccl.analysis.simulation.assumptions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from taccl.schedule.listing import Tasks
from taccl.schedule.precedence import CLAUSE, DATA, SUM, Precedence

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule

#: What a send waits for.
WaitedFor = Literal["nothing", "data", "resource", "clause"]
#: A tick is cut into 2**JITTER_BITS where there is jitter, so that jittered times are exact too.
JITTER_BITS = 20


class Events(Precedence):
    """The events of a schedule, with times under the costs of `problem`.

    - `problem`: The schedule's own, or one that differs from it in sizes and costs only.
    - `source`, `target`, `after`, `lead`, `extra`, `cause`, `tile`, (num_waits,) list of int: The waits as
      columns.
    - `waits_of`, (num_events,) list of list of int: The waits of every event.
    - `components` (list of list of int): Events in an order in which each comes after all that it waits for
      within a tile. Events that bound each other, as two ranks that exchange partial sums do, share a
      component.

    Raises `InputError` if chunk, link or group is not one, or a rank sends a chunk that never arrives there.
    """

    def __init__(self, schedule: Schedule, problem: Problem) -> None:
        super().__init__(problem, schedule.problem, **schedule.columns)
        self.components = Tasks.of_sends(self, turns=True).components()
        columns: list[list[int]] = [list(column) for column in zip(*self.waits, strict=True)] or [[]] * 7
        self.source, self.target, self.after, self.lead, self.extra, self.cause, self.tile = columns
        self.waits.clear()  # a simulation keeps the columns alone: its waits may be millions
        self.waits_of: list[list[int]] = [[] for _ in range(self.num_events)]
        for wait, event in enumerate(self.target):
            self.waits_of[event].append(wait)

    def sent(self, send: int) -> tuple[tuple[int, ...], int, str]:
        """What travels in a send: its chunks, over which link, by index and ends."""
        link = self.link[send]
        return self._chunks(send), link, str(self.own.topology.links[link])

    def _chunks(self, event: int) -> tuple[int, ...]:
        return tuple(self.chunk[t] for t in self.transfers[event]) if event < self.num_sends else ()

    def described(self, wait: int) -> tuple[WaitedFor, str]:
        """The kind of a wait and its name: the chunk, the resource or the clause."""
        if wait < 0:
            return "nothing", ""
        cause = self.cause[wait]
        if cause >= 0:
            return "resource", self.own.topology.resources[cause].name
        if cause == CLAUSE:
            return "clause", "own_first"
        mine, brought = self._chunks(self.target[wait]), self._chunks(self.source[wait])
        shared = [chunk for chunk in mine if chunk in brought] or mine
        name = f"chunk{'s' if len(shared) > 1 else ''} {', '.join(map(str, shared))}"
        return "data", f"{name}, to be sent on first" if cause == SUM else name

    def gaps(self) -> list[int]:
        """Ticks from the source's start to the target's earliest, of every wait."""
        return [a - b + c for a, b, c in zip(self.after, self.lead, self.extra, strict=True)]

    def put_off(
        self,
        component: Sequence[int],
        times: list[int],
        binding: list[int],
        gaps: Sequence[int],
        before: Sequence[int] | None = None,
    ) -> bool:
        """Whether some events of a component are later than `times` has it, where these are put off then.

        - `binding`: Is told of each which wait was over last.
        - `before`: Where waits for the tile before count from; None where these do not count.
        """
        moved = False
        for b in component:
            latest = times[b]
            for wait in self.waits_of[b]:
                since = before if self.tile[wait] else times
                if since is not None and since[self.source[wait]] + gaps[wait] > latest:
                    latest, binding[b], moved = since[self.source[wait]] + gaps[wait], wait, True
            times[b] = latest
        return moved


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
