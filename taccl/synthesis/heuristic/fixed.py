"""When to send what, once it is known which way every chunk goes.

Reductions and what follows them are scheduled as one, so that they overlap: a contribution waits for all
that it is to include, and a sum spreads as soon as it is complete. Compiled list scheduling runs forwards and
backwards in time by turns, each way by the order that the other found, which shortens what waits for each
other (forward-backward improvement: Li and Willis, EJOR 56, 1992).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from taccl.costs import hold_columns
from taccl.schedule.combine import concatenate, reduction_half, reverse, spreading_half
from taccl.schedule.timing import exact_times
from taccl.sketch.group import Symmetries
from taccl.synthesis.greedy import list_schedule
from taccl.synthesis.heuristic.fixed_kernel import Network, starts_of, tails_of
from taccl.synthesis.paper.orbits import Held, Move, Orbits, Place

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from numpy.typing import NDArray

    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.synthesis.heuristic.routes import Tree

__all__ = ["Order", "Planner", "Sends", "schedule_trees"]

#: (what, chunk, rank or link): contributions of a "sum" over a link, or the chunk "there" at a rank.
_PlaceName = tuple[str, int, int]


@dataclass(frozen=True)
class Sends:
    """Sends that wait for one another.

    Parameters
    ----------
    chunk, link : (num_sends,) int64
    reduces : (num_sends,) bool
    is_own : (num_sends,) bool
        Whether a chunk that spreads leaves where it starts.
    arcs : (num_arcs, 2) int64
        The second send of a row waits for the first.
    """

    chunk: NDArray[np.int64]
    link: NDArray[np.int64]
    reduces: NDArray[np.bool_]
    is_own: NDArray[np.bool_]
    arcs: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Order:
    """Sends, when they start and end in ticks, and when the last of them ends."""

    sends: Sends
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    finish_ticks: int


class Planner:
    """Finds orders for the sends of trees; what did not change since the last time is not built again."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._blocks: dict[Hashable, Sends] = {}

    def find(
        self, trees: Sequence[Tree], *, turns: int = 10, urgency: NDArray[np.int64] | None = None
    ) -> Order:
        """The best order found of the sends of all trees, no two of them merged.

        Parameters
        ----------
        trees : sequence of Tree
            Each reaches all its targets.
        turns : int
            How often to go forwards and backwards at most.
        urgency : (num_sends,) int64, optional
            What to begin with, higher first; by default the longest chain of sends that is left.
        """
        sends = self.sends(trees)
        onward, backward = self.networks(sends)
        took = onward.duration
        priority = tails_of(backward) if urgency is None else urgency
        best: Order | None = None
        idle = 0
        for _ in range(turns):
            start = starts_of(onward, priority)
            end = start + took
            finish = int(end.max(initial=0))
            idle += 1
            if best is None or finish < best.finish_ticks:
                best, idle = Order(sends, start, end, finish), 0
            priority = starts_of(backward, end) + took
            finish = int(priority.max(initial=0))
            if finish < best.finish_ticks:
                start = finish - priority
                best, idle = Order(sends, start, start + took, finish), 0
            if idle > 1:
                break
        assert best is not None, "there is a turn"
        return best

    def sends(self, trees: Sequence[Tree]) -> Sends:
        """The sends of all trees, chunk by chunk."""
        groups: dict[int, list[Tree]] = {}
        for tree in trees:
            # Chunks that derive from one another wait for one another.
            groups.setdefault(0 if self.problem.collective.derivations else tree.chunk, []).append(tree)
        blocks = []
        for group in groups.values():
            key = tuple((tree.chunk, tree.reducing, *tree.link_to.items()) for tree in group)
            if key not in self._blocks:
                self._blocks[key] = _sends(self.problem, group)
            blocks.append(self._blocks[key])
        first = np.cumsum([0, *(len(block.link) for block in blocks)])
        return Sends(
            np.concatenate([block.chunk for block in blocks]),
            np.concatenate([block.link for block in blocks]),
            np.concatenate([block.reduces for block in blocks]),
            np.concatenate([block.is_own for block in blocks]),
            np.concatenate([block.arcs + begin for block, begin in zip(blocks, first, strict=False)]),
        )

    def networks(self, sends: Sends) -> tuple[Network, Network]:
        """What the kernel needs, forwards and backwards in time."""
        costs, topology, count = self.problem.costs, self.problem.topology, len(sends.link)
        units = costs.chunk_units[sends.chunk]
        duration = costs.link_alpha[sends.link] + units * costs.link_beta[sends.link]
        columns = hold_columns(topology)
        send, hold = columns.of_sends(sends.link)
        hold_of = np.concatenate(([0], np.cumsum(np.bincount(send, minlength=count)))).astype(np.int64)
        length = costs.hold_alpha[hold] + units[send] * costs.hold_beta[hold]
        rest = np.maximum(duration[send] - length, 0)
        resource, receives = columns.resource[hold], columns.receives[hold]

        def network(before: NDArray[np.int64], after: NDArray[np.int64], late: NDArray[np.bool_]) -> Network:
            return Network(
                duration,
                np.bincount(after, minlength=count),
                np.concatenate(([0], np.cumsum(np.bincount(before, minlength=count)))).astype(np.int64),
                after[np.argsort(before, kind="stable")],
                hold_of,
                resource,
                length,
                np.where(late, rest, 0),
                len(topology.resources),
            )

        before, after = sends.arcs[:, 0], sends.arcs[:, 1]
        return network(before, after, receives), network(after, before, ~receives)


def schedule_trees(problem: Problem, trees: Sequence[Tree], order: Order) -> Schedule | None:
    """The schedule in which every chunk goes along its trees, sends merging where they may.

    Parameters
    ----------
    order : Order
        Of the sends of the same trees.

    Returns
    -------
    Schedule or None
        None where own chunks that go first wait for each other.
    """
    clauses, sends = problem.clauses, order.sends
    if clauses.own_first and sends.reduces.any():
        return _halves(problem, trees)
    found: list[Schedule] = []
    if not clauses.own_first:
        found.append(
            exact_times(
                problem,
                chunk=sends.chunk,
                link=sends.link,
                starts=order.start,
                reduce=sends.reduces,
                producer="replan",
            )
        )
    if clauses.own_first or (clauses.max_merge > 1 and clauses.merging):
        merged = _merged(problem, order)
        if merged is not None:
            found.append(merged)
    return min(found, key=lambda schedule: schedule.finish_ticks, default=None)


def _halves(problem: Problem, trees: Sequence[Tree]) -> Schedule | None:
    """One half after the other: where own chunks go first, reductions are found backwards in time."""
    parts = []
    for half, reducing in ((reduction_half(problem), True), (spreading_half(problem), False)):
        mine = [replace(tree, reducing=False) for tree in trees if tree.reducing == reducing]
        found = schedule_trees(half, mine, Planner(half).find(mine))
        if found is None:
            return None
        parts.append(reverse(found, problem) if reducing else replace(found, problem=problem))
    return concatenate(parts, problem, producer="replan")


def _sends(problem: Problem, trees: Sequence[Tree]) -> Sends:
    """The sends of trees, and which waits for which."""
    links = problem.topology.links
    spreads = {tree.chunk: tree for tree in trees if not tree.reducing}
    source_of = {(d.chunk, d.rank): d.source for d in problem.collective.derivations}
    inward: dict[tuple[int, int], list[int]] = defaultdict(list)
    rows = [(tree, link) for tree in trees for link in dict.fromkeys(tree.link_to.values())]
    made_by: dict[_PlaceName, int] = {}
    for m, (tree, link) in enumerate(rows):
        if tree.reducing:
            made_by["sum", tree.chunk, link] = m
        for rank in links[link].dsts:
            if tree.reducing:
                inward[tree.chunk, rank].append(link)
            elif tree.link_to.get(rank) == link:
                made_by["there", tree.chunk, rank] = m

    def held_by(c: int, rank: int, *, reducing: bool) -> list[_PlaceName]:
        """The places that a chunk comes to a rank by; none where it starts."""
        while reducing or rank in spreads[c].origins:
            if (c, rank) not in source_of or rank in problem.collective.chunks[c].origins:
                return [("sum", c, link) for link in inward[c, rank]]
            c, reducing = source_of[c, rank], False
        return [("there", c, rank)]

    arcs = set()
    for m, (tree, link) in enumerate(rows):
        for rank in links[link].srcs:
            for name in held_by(tree.chunk, rank, reducing=tree.reducing):
                arcs.add((made_by[name], m))
    return Sends(
        np.array([tree.chunk for tree, _ in rows], np.int64),
        np.array([link for _, link in rows], np.int64),
        np.array([tree.reducing for tree, _ in rows], bool),
        np.array(
            [not tree.reducing and not tree.origins.isdisjoint(links[link].srcs) for tree, link in rows], bool
        ),
        np.array(sorted(arcs), np.int64).reshape(-1, 2),
    )


def _merged(problem: Problem, order: Order) -> Schedule | None:
    """The sends in the same order of urgency, but merged where they may and own chunks first.

    Every send has a place of its own, and comes from those of the sends that it waits for. Every link counts
    as two, one for what is reduced, so that only sends of a kind merge.
    """
    sends = order.sends
    count, num_links = len(sends.link), len(problem.topology.links)
    before: list[list[int]] = [[] for _ in range(count)]
    after: list[list[int]] = [[] for _ in range(count)]
    for a, b in sends.arcs.tolist():
        before[b].append(a)
        after[a].append(b)
    first = [m for m, others in enumerate(before) if not others]
    start_of = {m: count + i for i, m in enumerate(first)}
    chunks, links = sends.chunk.tolist(), sends.link.tolist()
    units, duration = problem.costs.chunk_units.tolist(), (order.end - order.start).tolist()
    reduces, is_own = sends.reduces.tolist(), sends.is_own.tolist()
    moves = tuple(
        Move(
            chunk=chunks[m],
            link=links[m],
            link_orbit=links[m] + (0 if reduces[m] else num_links),
            srcs=tuple(before[m]) or (start_of[m],),
            dsts=(m,),
            units=units[chunks[m]],
            duration=duration[m],
            tail_ticks=0,
            after_ticks=0,
            is_own=is_own[m],
        )
        for m in range(count)
    )
    places = [
        Place(chunks[m], problem.topology.links[links[m]].dst, 0, False, True, (m,), tuple(after[m]))
        for m in range(count)
    ]
    places += [
        Place(chunks[m], problem.topology.links[links[m]].src, 0, True, False, (), (m,)) for m in first
    ]
    holds = _holds(problem)
    orbits = Orbits(
        problem=problem,
        group=Symmetries(problem),
        places=tuple(places),
        moves=moves,
        link_rep=(*range(num_links), *range(num_links)),
        holds=(*holds, *holds),
        num_resources=len(problem.topology.resources),
        single_path=(False,) * problem.collective.num_chunks,
        link_orbit=tuple(range(num_links)),
        resource_orbit=tuple(range(len(problem.topology.resources))),
    )
    found = list_schedule(orbits, (-order.start).tolist(), enter_once=False)
    if found is None:
        return None
    rows = [(send, number, m) for number, send in enumerate(found.sends) for m in send.moves]
    return exact_times(
        problem,
        chunk=[chunks[m] for _, _, m in rows],
        link=[links[m] for _, _, m in rows],
        starts=[send.start_ticks for send, _, _ in rows],
        group=[number for _, number, _ in rows],
        reduce=[reduces[m] for _, _, m in rows],
        producer="replan",
    )


def _holds(problem: Problem) -> tuple[tuple[Held, ...], ...]:
    costs = problem.costs
    held: list[list[Held]] = [[] for _ in problem.topology.links]
    alphas, betas = costs.hold_alpha.tolist(), costs.hold_beta.tolist()
    for hold, alpha, beta in zip(problem.topology.holds, alphas, betas, strict=True):
        held[hold.link].append(Held(hold.resource, alpha, beta, hold.side == "receive", 1))
    return tuple(tuple(each) for each in held)
