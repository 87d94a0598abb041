"""The events of a schedule and what each waits for: the order that it keeps, apart from the times it had.

See `taccl.schedule.precedence` for what a wait says. The waits here follow the schedule's own times, and take
as long as the costs of a problem say that may differ from the schedule's in sizes and costs
(`taccl.analysis.simulation.assumptions`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from taccl.schedule.precedence import CLAUSE, DATA, SUM, Precedence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.problem import Problem
    from taccl.schedule.precedence import Use
    from taccl.schedule.schedule import Schedule

__all__ = ["CLAUSE", "DATA", "SUM", "Events", "events_of"]


@dataclass(frozen=True, slots=True)
class Events:
    """The events of a schedule: sends first, in order of the schedule's groups, then joins.

    Parameters
    ----------
    link, duration : (num_sends,) list of int
    transfers : (num_sends,) list of list of int
        The schedule's transfers that travel in each send.
    source, target, after, lead, extra, cause, tile : (num_waits,) list of int
        The waits; see `taccl.schedule.precedence`.
    waits_of : (num_events,) list of list of int
        The waits of every event.
    uses : mapping of resource to list of Use
        In the order that the schedule keeps.
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
        problem,
        schedule.problem,
        chunk=schedule.chunk,
        link=schedule.link,
        group=schedule.group,
        reduce=schedule.reduce,
        start=schedule.start,
        end=schedule.end,
    )
    waits_of: list[list[int]] = [[] for _ in range(order.num_events)]
    successors: list[list[int]] = [[] for _ in range(order.num_events)]
    columns: list[list[int]] = [list(column) for column in zip(*order.waits, strict=True)] or [[]] * 7
    source, target, after, lead, extra, cause, tile = columns
    for wait, (a, b, later) in enumerate(zip(source, target, tile, strict=True)):
        waits_of[b].append(wait)
        if not later:
            successors[a].append(b)
    return Events(
        num_sends=order.num_sends,
        num_events=order.num_events,
        link=order.link,
        duration=order.duration,
        transfers=order.transfers,
        source=source,
        target=target,
        after=after,
        lead=lead,
        extra=extra,
        cause=cause,
        tile=tile,
        waits_of=waits_of,
        uses=order.uses,
        components=_components(successors),
    )


def _components(successors: Sequence[Sequence[int]]) -> list[list[int]]:
    """Strongly connected components, each after those that lead to it."""
    import networkx as nx

    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(successors)))
    graph.add_edges_from((a, b) for a, following in enumerate(successors) for b in following)
    condensed = nx.condensation(graph)
    return [sorted(condensed.nodes[c]["members"]) for c in nx.topological_sort(condensed)]
