"""Result of a simulation: finish, use of every resource, idle time by cause, and the critical path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from taccl._internal.arguments import Natural, checked
from taccl._internal.names import numbers_table
from taccl._internal.units import format_count, format_size, format_us
from taccl.analysis.simulation.events import JITTER_BITS, EventTimes, WaitedFor, spend
from taccl.errors import InputError
from taccl.problem.problem import Problem
from taccl.schedule.figures import Figures
from taccl.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class TimedSend:
    """A send of a critical path or a cycle, and the wait that determined its start.

    - `chunks`: Indices of the chunks that it carries.
    - `group`: Number of the send in the schedule.
    - `start`, `end`: Exact microseconds. A cycle repeats; time 0 is the start of its last send in the
      previous repetition.
    - `waited_for`: Kind of the wait that ended last before the start; ``"nothing"`` for a send at time 0.
    - `what`: Name of the awaited chunk, resource or clause.
    """

    chunks: tuple[int, ...]
    link: int
    link_name: str
    start: Fraction
    end: Fraction
    waited_for: WaitedFor
    what: str
    tile: int
    group: int

    @property
    def start_us(self) -> float:
        """Start of the send, in microseconds."""
        return float(self.start)

    @property
    def end_us(self) -> float:
        """End of the send, in microseconds."""
        return float(self.end)


def sends_table(sends: Sequence[TimedSend], *, limit: int | None = None) -> str:
    """Table of sends as text, one row each, with at most `limit` sends."""
    rows: list[tuple[str, ...]] = [("start_us", "end_us", "tile", "chunks", "link", "waited for")]
    for send in sends[:limit]:
        times = f"{send.start_us:.3f}", f"{send.end_us:.3f}"
        reason = f"{send.waited_for}: {send.what}" if send.what else send.waited_for
        rows.append((*times, str(send.tile), ",".join(map(str, send.chunks)), send.link_name, reason))
    return numbers_table(rows, hidden=len(sends) + 1 - len(rows))


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """Use of a resource until the finish; all times are exact microseconds.

    - `busy`: A send holds the resource.
    - `idle_for_data`: The next send's chunks are not at its sources yet, or have not reached the resource.
    - `idle_for_clause`: A clause (`own_first`) delays the next send.
    - `idle_for_resource`: The next send waits for another resource.
    - `idle_at_end`: The last send has ended.
    """

    name: str
    num_sends: int
    busy: Fraction
    idle_for_data: Fraction
    idle_for_clause: Fraction
    idle_for_resource: Fraction
    idle_at_end: Fraction

    @property
    def busy_us(self) -> float:
        """Time for which the resource is held, in microseconds."""
        return float(self.busy)

    @property
    def utilisation(self) -> float:
        """Busy fraction of the time until the finish."""
        idle = self.idle_for_data + self.idle_for_clause + self.idle_for_resource + self.idle_at_end
        return float(self.busy / (self.busy + idle)) if self.busy else 0.0


@dataclass(frozen=True, eq=False, repr=False)
class Simulation(Figures):
    """Times of a schedule under a problem's sizes and costs; see `taccl.simulate`.

    Parameters
    ----------
    schedule : Schedule
        The simulated schedule, whose order and merging were kept.
    problem : Problem
        The problem with the assumed sizes and costs.
    """

    schedule: Schedule
    problem: Problem
    tiles: int
    jitter: float
    seed: int
    run: EventTimes = field(repr=False)

    @property
    def ticks_per_us(self) -> int:
        """Resolution of the times in ticks per microsecond; jittered times are finer."""
        return self.problem.costs.ticks_per_us << (JITTER_BITS if self.run.factors is not None else 0)

    def _us(self, ticks: int) -> Fraction:
        return Fraction(int(ticks), self.ticks_per_us)

    @cached_property
    def _lasts(self) -> tuple[tuple[int, int, int], ...]:
        """(ticks, tile, send) of the last arrival in the first tile, in the first two tiles, and so on.

        If several arrivals are equally late, the first counts.
        """
        last, lasts = (0, 0, 0), []
        for tile in range(self.tiles):
            ends = self.run.ends(tile)
            latest = int(ends.max(initial=0))
            if latest > last[0]:
                last = (latest, tile, int(ends.argmax()))
            lasts.append(last)
        return tuple(lasts)

    @property
    def finishes(self) -> tuple[Fraction, ...]:
        """Last arrival of the first tile, of the first two tiles, and so on, in exact microseconds."""
        return tuple(self._us(ticks) for ticks, _, _ in self._lasts)

    @property
    def finish(self) -> Fraction:
        """Last arrival of all tiles, in exact microseconds."""
        return self._us(self._lasts[-1][0])

    @property
    def size_bytes(self) -> int | None:
        """Bytes of all tiles together; None if the problem's size is unknown."""
        size_bytes: int | None = self.problem.size_bytes
        return None if size_bytes is None else self.tiles * size_bytes

    @cached_property
    def critical_path(self) -> tuple[TimedSend, ...]:
        """Sends from time 0 to the finish, each of which waited for the one before."""
        events = self.run.events
        if not events.num_sends:
            return ()
        _, tile, event = self._lasts[-1]
        steps = []
        while True:
            wait = int(self.run.bindings[tile][event])
            if event < events.num_sends:
                waited_for, what = events.described(wait)
                ends = self._us(self.run.starts[tile][event]), self._us(self.run.ends(tile)[event])
                steps.append(TimedSend(*events.sent(event), *ends, waited_for, what, tile, event))
            if wait < 0:
                return tuple(reversed(steps))
            event = int(events.waits.source[wait])
            tile -= int(events.waits.tile[wait])

    @cached_property
    def resources(self) -> tuple[ResourceUse, ...]:
        """Use of every resource that some send holds, busiest first."""
        finish, us, names = self._lasts[-1][0], self._us, self.problem.topology.resources
        return tuple(
            ResourceUse(names[resource].name, count, *map(us, ticks))
            for resource, count, ticks in spend(self.run, finish)
        )

    def as_schedule(self) -> Schedule:
        """Convert to a schedule with the simulated times, for the assumed problem.

        Raises
        ------
        InputError
            If there are several tiles or jitter, which a schedule cannot represent.
        """
        if self.tiles > 1 or self.jitter:
            raise InputError(
                f"found {self.tiles} tiles and jitter {self.jitter:g}; a schedule is one tile without "
                "jitter: simulate that",
                where="tiles, jitter",
            )
        return self.run.events.schedule(self.run.starts[0], producer=self.schedule.producer)

    @checked
    def table(self, *, limit: Natural | None = None) -> str:
        """Table of the resources as text, busiest first: busy and idle microseconds by cause."""
        idle_columns = ("for_data", "for_clause", "for_resource", "at_end")
        rows: list[tuple[str, ...]] = [("resource", "sends", "busy_us", "busy_%", *idle_columns)]
        for use in self.resources[:limit]:
            idle = (use.idle_for_data, use.idle_for_clause, use.idle_for_resource, use.idle_at_end)
            cells = (f"{float(time):.3f}" for time in idle)
            busy = (str(use.num_sends), f"{use.busy_us:.3f}", f"{100 * use.utilisation:.1f}")
            rows.append((use.name, *busy, *cells))
        return numbers_table(rows, hidden=len(self.resources) + 1 - len(rows))

    @checked
    def path_table(self, *, limit: Natural | None = None) -> str:
        """Table of the critical path as text, one send per row."""
        return sends_table(self.critical_path, limit=limit)

    def _repr_html_(self) -> str:
        """HTML for notebooks: the assumptions, the finish, and the busiest resources."""
        from taccl._internal.html import card, facts, table

        problem = self.problem
        figures = [
            ("finish", self.timing),
            ("bandwidth", self.bandwidth_text),
            ("size", format_size(problem.size_bytes) if problem.size_bytes else "not known"),
            ("alpha", problem.topology.alpha_meaning),
            ("tiles", str(self.tiles) if self.tiles > 1 else ""),
            ("jitter", f"{self.jitter:g}, seed {self.seed}" if self.jitter else ""),
            ("critical path", format_count(len(self.critical_path), "send")),
        ]
        rows = [
            (use.name, str(use.num_sends), f"{use.busy_us:.3f}", f"{use.utilisation:.1%}")
            for use in self.resources
        ]
        head = ("resource", "sends", "busy in us", "busy")
        title = f"simulation of {problem.title}"
        return card(title, facts(figures), table(head, rows, limit=5))

    def __repr__(self) -> str:
        problem = self.problem
        size = format_size(problem.size_bytes) if problem.size_bytes else "size unknown"
        details = [size, f"alpha {problem.topology.alpha_meaning}"]
        if self.tiles > 1:
            details.append(f"{self.tiles} tiles")
        if self.jitter:
            details.append(f"jitter {self.jitter:g}, seed {self.seed}")
        rate = f", {self.bandwidth_text}" if self.bandwidth_text else ""
        finish = f"finish {format_us(self.finish_us)}{self.predicted_text}"
        return f"Simulation({problem.title}, {', '.join(details)}: {finish}{rate})"
