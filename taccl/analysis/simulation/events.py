"""The events of a schedule and what each waits for: the order that it keeps, apart from the times it had.

See `taccl.schedule.precedence` for what a wait says. The waits here follow the schedule's own times, and take
as long as the costs of a problem say that may differ from the schedule's in sizes and costs
(`taccl.analysis.simulation.assumptions`).
"""

from __future__ import annotations

from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from taccl.schedule.precedence import Precedence

if TYPE_CHECKING:
    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule


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
        super().__init__(
            problem, schedule.problem, chunk=schedule.chunk, link=schedule.link, group=schedule.group,
            reduce=schedule.reduce, start=schedule.start, end=schedule.end,
            contributions=schedule.contributions,
        )  # fmt: skip
        columns: list[list[int]] = [list(column) for column in zip(*self.waits, strict=True)] or [[]] * 7
        self.source, self.target, self.after, self.lead, self.extra, self.cause, self.tile = columns
        self.waits.clear()  # a simulation keeps the columns alone: its waits may be millions
        self.waits_of: list[list[int]] = [[] for _ in range(self.num_events)]
        for wait, event in enumerate(self.target):
            self.waits_of[event].append(wait)
        within = ([self.source[w] for w in waits if not self.tile[w]] for waits in self.waits_of)
        self.components = _components(dict(enumerate(within)))

    def gaps(self) -> list[int]:
        """Ticks from the source's start to the target's earliest, of every wait."""
        return [a - b + c for a, b, c in zip(self.after, self.lead, self.extra, strict=True)]


def _components(sources: dict[int, list[int]]) -> list[list[int]]:
    """Strongly connected components of events that wait for others, each after those that it waits for."""
    with suppress(CycleError):  # most often nothing waits for itself
        return [[event] for event in TopologicalSorter(sources).static_order()]
    import networkx as nx

    condensed = nx.condensation(nx.DiGraph(sources))
    return [sorted(condensed.nodes[c]["members"]) for c in reversed([*nx.topological_sort(condensed)])]
