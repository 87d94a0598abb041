"""Events of a schedule: what each waits for, when it happens, and busy and idle times of resources.

An event is a send or a join: an event without duration that waits for several sends. Waits, as defined in
`taccl.schedule.precedence`, follow from the schedule's order, not from its times. Their lengths follow from
the costs of a problem whose sizes and costs may differ from the schedule's (`taccl.simulate`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from taccl.problem.problem import Problem
from taccl.schedule.clause_waits import CLAUSE
from taccl.schedule.precedence import DATA, SUM, Precedence
from taccl.schedule.schedule import Schedule

#: Kinds of wait that can delay a send.
WaitedFor = Literal["nothing", "data", "resource", "clause"]
#: With jitter, a tick is divided into 2**JITTER_BITS units, so that jittered times are exact too.
JITTER_BITS = 20


class Events(Precedence):
    """Events of a schedule, with the waits between them under the costs of `problem`.

    - `problem`: The schedule's problem, or one that differs in sizes and costs only.

    Raises `InputError` if a chunk, link or group is invalid, or a rank sends a chunk that never arrives
    there.
    """

    def __init__(self, schedule: Schedule, problem: Problem) -> None:
        super().__init__(problem, schedule.problem, **schedule.columns)

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
        cause = int(self.waits.cause[wait])
        if cause >= 0:
            return "resource", self.own.topology.resources[cause].name
        if cause == CLAUSE:
            return "clause", "own_first"
        mine, brought = self._chunks(self.waits.target[wait]), self._chunks(self.waits.source[wait])
        shared = [chunk for chunk in mine if chunk in brought] or mine
        name = f"chunk{'s' if len(shared) > 1 else ''} {', '.join(map(str, shared))}"
        return "data", f"{name}, to be sent on first" if cause == SUM else name


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

    @property
    def unit(self) -> int:
        """Units of time per tick."""
        return 1 if self.factors is None else 2**JITTER_BITS

    def scale(self, tile: int) -> NDArray[Any]:
        """Factor by which the ticks of each event of a tile are multiplied."""
        return np.ones(self.events.num_events, np.int64) if self.factors is None else self.factors[tile]

    def ends(self, tile: int) -> NDArray[Any]:
        """End of each send of a tile."""
        count = self.events.num_sends
        ends: NDArray[Any] = self.starts[tile][:count] + self.scale(tile)[:count] * self.events.duration
        return ends


def spend(run: EventTimes, finish: int) -> list[tuple[int, int, tuple[int, ...]]]:
    """(resource, number of sends, ticks busy and ticks idle by cause), for used resources, busiest first.

    The ticks add up to the finish: busy, idle for data, idle for a clause, idle for another resource, and
    idle after the last send. Idle time before a send has up to three phases, in this order. The resource is
    idle for data until the send's chunks are at its sources and have reached the resource. It is then idle
    for a clause until every clause admits the send, and then for another resource.
    """
    resource, send, begin, until = run.events.held
    if not len(send):
        return []
    first = np.flatnonzero(np.diff(resource, prepend=-1))
    last = np.append(first[1:], len(send)) - 1
    spent, free = np.zeros((5, len(first)), run.starts[0].dtype), np.zeros(len(first), run.starts[0].dtype)
    for tile, starts in enumerate(run.starts):
        scale = run.scale(tile)[send]
        offset, begins, ends = begin * scale, starts[send] + begin * scale, starts[send] + until * scale
        known = np.concatenate([ends[:1], ends[:-1]])  # end of the previous send on the resource
        known[first] = free
        data, clause = ((_over(run, tile, causes)[send] + offset) for causes in ((DATA, SUM), (CLAUSE,)))
        data = np.minimum(np.maximum(data, known), begins)
        clause = np.minimum(np.maximum(clause, data), begins)
        is_idle = begins > known
        spans = (
            ends - begins,
            *((each * is_idle) for each in (data - known, clause - data, begins - clause)),
        )
        spent[:4] += [np.add.reduceat(each, first) for each in spans]
        free = ends[last]
    spent[4] = finish - free
    counts = len(run.starts) * (last - first + 1)
    found = zip(resource[first].tolist(), counts.tolist(), map(tuple, spent.T.tolist()), strict=True)
    return sorted(found, key=lambda each: -each[2][0])


def _over(run: EventTimes, tile: int, causes: tuple[int, ...]) -> NDArray[Any]:
    """Time at which the last of each event's waits with these causes ends; 0 if there are none."""
    waits, starts, scale = run.events.waits, run.starts[tile], run.scale(tile)
    over = np.zeros(len(starts), starts.dtype)
    rows = np.flatnonzero(np.isin(waits.cause, causes))
    source, target = waits.source[rows], waits.target[rows]
    times = starts[source] + waits.after[rows] * scale[source] - waits.lead[rows] * scale[target]
    np.maximum.at(over, target, times + waits.extra[rows] * run.unit)
    return over
