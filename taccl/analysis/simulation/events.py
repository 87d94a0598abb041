"""Events of a schedule: what each waits for, when it happens, and busy and idle times of resources.

An event is a send or a join: an event without duration that waits for several sends. Waits, as defined in
`taccl.schedule.precedence`, follow from the schedule's order, not from its times. Their lengths follow from
the costs of a problem whose sizes and costs may differ from the schedule's (`taccl.simulate`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from taccl.schedule.listing import Tasks
from taccl.schedule.precedence import CLAUSE, DATA, SUM, Precedence

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.problem.problem import Problem
    from taccl.schedule.schedule import Schedule

#: Kinds of wait that can delay a send.
WaitedFor = Literal["nothing", "data", "resource", "clause"]
#: With jitter, a tick is divided into 2**JITTER_BITS units, so that jittered times are exact too.
JITTER_BITS = 20


class Events(Precedence):
    """Events of a schedule, with the waits between them under the costs of `problem`.

    - `problem`: The schedule's problem, or one that differs in sizes and costs only.
    - `source`, `target`, `after`, `lead`, `extra`, `cause`, `tile`, (num_waits,) list of int: Columns of the
      waits; `target` waits for `source`. `taccl.schedule.precedence` defines the others.
    - `waits_of`, (num_events,) list of list of int: Waits of which each event is the target.
    - `components` (list of list of int): Events in topological order of the waits within a tile. Events that
      wait for each other, such as two ranks that exchange partial sums, share a component.

    Raises `InputError` if a chunk, link or group is invalid, or a rank sends a chunk that never arrives
    there.
    """

    def __init__(self, schedule: Schedule, problem: Problem) -> None:
        super().__init__(problem, schedule.problem, **schedule.columns)
        self.components = Tasks.of_sends(self, turns=True).components()
        columns: list[list[int]] = [list(column) for column in zip(*self.waits, strict=True)] or [[]] * 7
        self.source, self.target, self.after, self.lead, self.extra, self.cause, self.tile = columns
        self.waits.clear()  # only the columns are needed; there may be millions of waits
        self.waits_of: list[list[int]] = [[] for _ in range(self.num_events)]
        for wait, event in enumerate(self.target):
            self.waits_of[event].append(wait)

    def sent(self, send: int) -> tuple[tuple[int, ...], int, str]:
        """(chunks, link index, link ends as text) of a send."""
        link = self.link[send]
        return self._chunks(send), link, str(self.own.topology.links[link])

    def _chunks(self, event: int) -> tuple[int, ...]:
        return tuple(self.chunk[t] for t in self.transfers[event]) if event < self.num_sends else ()

    def described(self, wait: int) -> tuple[WaitedFor, str]:
        """(kind of a wait, name of the chunk, resource or clause); ``("nothing", "")`` for wait -1."""
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
        """Min ticks from the source's start to the target's start, for every wait."""
        return [a - b + c for a, b, c in zip(self.after, self.lead, self.extra, strict=True)]

    def put_off(
        self,
        component: Sequence[int],
        times: list[int],
        binding: list[int],
        gaps: Sequence[int],
        before: Sequence[int] | None = None,
    ) -> bool:
        """Postpone events of a component until their waits are over; True if any event moved.

        - `times`: Starts of all events, in ticks; updated in place.
        - `binding`: For each event, the index of the wait that ends last; updated in place.
        - `gaps`: Min ticks from the source's start to the target's start, for each wait.
        - `before`: Starts of the previous tile, for waits across tiles; None ignores these waits.
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
    """Times of all events, with one array per tile.

    - `starts`: Start of each event, in ticks (or finer units with jitter).
    - `bindings`: For each event, the index of the wait that ends last; -1 if the event waits for nothing.
    - `factors`, (tiles, num_events): Duration factors in units of 2**-JITTER_BITS; None without jitter.
    """

    events: Events
    starts: list[NDArray[Any]]
    bindings: list[NDArray[Any]]
    factors: NDArray[Any] | None

    def scale(self, tile: int) -> Sequence[int]:
        """Factor by which the ticks of each event of a tile are multiplied."""
        if self.factors is None:
            return [1] * self.events.num_events
        scale: list[int] = self.factors[tile].tolist()
        return scale


def spend(run: EventTimes, finish: int) -> list[tuple[int, int, tuple[int, ...]]]:
    """Busy and idle ticks of every used resource, busiest first: (resource, number of sends, five times).

    The times add up to the finish: busy, idle for data, idle for a clause, idle for another resource, and
    idle after the last send. Idle time before a send has up to three phases, in this order. The resource is
    idle for data until the send's chunks are at its sources and have reached the resource. It is then idle
    for a clause until every clause admits the send, and then for another resource.
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
    """Time at which the last of a send's waits with these causes ends; 0 if there are none."""
    events = run.events
    one = 1 if run.factors is None else 2**JITTER_BITS
    over = 0
    for wait in events.waits_of[send]:
        if events.cause[wait] in causes:
            source = events.source[wait]
            time = starts[source] + events.after[wait] * scale[source]
            over = max(over, time - events.lead[wait] * scale[send] + events.extra[wait] * one)
    return over
