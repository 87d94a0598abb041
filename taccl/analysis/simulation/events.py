"""The events of a schedule and what each waits for: the order that it keeps, apart from the times it had.

See `taccl.schedule.precedence` for what a wait says. The waits here follow the schedule's own times, and take
as long as the costs of a problem say that may differ from the schedule's in sizes and costs
(`taccl.analysis.simulation.assumptions`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from taccl.schedule.precedence import Precedence

if TYPE_CHECKING:
    from taccl.problem import Problem
    from taccl.schedule.precedence import Use
    from taccl.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Events:
    """The events of a schedule, as `Precedence` has them, with its waits as columns from `source` to `tile`.

    Parameters
    ----------
    waits_of : (num_events,) list of list of int
        The waits of every event.
    components : list of list of int
        Events in an order in which each comes after all that it waits for within a tile. Events that bound
        each other, as two ranks that exchange partial sums do, share a component.
    """

    num_sends: int
    num_events: int
    link: list[int]
    duration: list[int]
    transfers: list[list[int]]
    source: list[int]
    target: list[int]
    after: list[int]
    lead: list[int]
    extra: list[int]
    cause: list[int]
    tile: list[int]
    waits_of: list[list[int]]
    uses: dict[int, list[Use]]
    components: list[list[int]]

    def gaps(self) -> list[int]:
        """Ticks from the source's start to the target's earliest, of every wait."""
        return [a - b + c for a, b, c in zip(self.after, self.lead, self.extra, strict=True)]


def events_of(schedule: Schedule, problem: Problem) -> Events:
    """The events of a schedule, with times under the costs of `problem`.

    Parameters
    ----------
    problem : Problem
        The schedule's own, or one that differs from it in sizes and costs only.

    Raises
    ------
    InputError
        If chunk, link or group is not one, or a rank sends a chunk that never arrives there.
    """
    order = Precedence(
        problem, schedule.problem, chunk=schedule.chunk, link=schedule.link, group=schedule.group,
        reduce=schedule.reduce, start=schedule.start, end=schedule.end,
        contributions=schedule.contributions,
    )  # fmt: skip
    columns: list[list[int]] = [list(column) for column in zip(*order.waits, strict=True)] or [[]] * 7
    source, target, after, lead, extra, cause, tile = columns
    waits_of: list[list[int]] = [[] for _ in range(order.num_events)]
    for wait, event in enumerate(target):
        waits_of[event].append(wait)
    within = [(a, b) for a, b, later in zip(source, target, tile, strict=True) if not later]
    return Events(
        order.num_sends, order.num_events, order.link, order.duration, order.transfers,
        source, target, after, lead, extra, cause, tile,
        waits_of=waits_of, uses=order.uses, components=_components(order.num_events, within),
    )  # fmt: skip


def _components(num_events: int, within: list[tuple[int, int]]) -> list[list[int]]:
    """Strongly connected components of events that wait for others, each after those that it waits for."""
    import networkx as nx

    graph = nx.DiGraph()
    graph.add_nodes_from(range(num_events))
    graph.add_edges_from(within)
    condensed = nx.condensation(graph)
    return [sorted(condensed.nodes[c]["members"]) for c in nx.topological_sort(condensed)]
