"""When to send what, once it is known which way every chunk goes: the list scheduler on given trees.

Reductions and what follows them are scheduled as one, so that they overlap: a contribution waits for all
that it is to include, and a sum spreads as soon as it is complete.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from taccl.schedule.combine import concatenate, reduction_half, reverse, spreading_half
from taccl.schedule.timing import exact_times
from taccl.synthesis.greedy import list_schedule
from taccl.synthesis.orbits import Held, Move, Orbits, Place
if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.synthesis.routes import Tree

__all__ = ["schedule_trees"]

#: (what, chunk, rank or link): "start" of a chunk, its contributions over a link, or its arrival at a rank.
_PlaceName = tuple[str, int, int]


def schedule_trees(
    problem: Problem,
    trees: Sequence[Tree],
    *,
    max_runs: int,
    deadline: float,
    target_ticks: int = 0,
    seed: int = 0,
    producer: str = "greedy",
) -> Schedule | None:
    """The best schedule found in which every chunk goes along its trees; None if the list scheduler fails.

    Parameters
    ----------
    trees : sequence of Tree
        Each reaches all its targets.
    max_runs : int
        How many priorities to try; the first run is always finished.
    deadline : float
        On the clock of `time.monotonic`.
    target_ticks : int
        A finish that is good enough.
    """
    if problem.clauses.own_first and any(tree.reducing for tree in trees):
        return _halves(problem, trees, max_runs=max_runs, deadline=deadline, seed=seed, producer=producer)
    orbits, reducing = _fold(problem, trees)
    tails = _tails(orbits)
    width = sorted(move.duration for move in orbits.moves)[len(orbits.moves) // 2] if orbits.moves else 0
    rng = random.Random(seed)
    best: Schedule | None = None
    limit: int | None = None
    for run in range(max_runs):
        if run and (time.monotonic() > deadline or (best and best.finish_ticks <= target_ticks)):
            break
        noise = (0, 1, 2, 4)[run % 4] * width if run else 0
        priorities = [tail + noise * rng.random() for tail in tails]
        found = list_schedule(orbits, priorities, enter_once=False, limit_ticks=limit)
        if found is None:
            continue
        rows = [(send, number, m) for number, send in enumerate(found.sends) for m in send.moves]
        timed = exact_times(
            problem,
            chunk=[orbits.moves[m].chunk for _, _, m in rows],
            link=[orbits.moves[m].link for _, _, m in rows],
            starts=[send.start_ticks for send, _, _ in rows],
            group=[number for _, number, _ in rows],
            reduce=[m < reducing for _, _, m in rows],
            producer=producer,
        )
        if best is None or timed.finish_ticks < best.finish_ticks:
            best = timed
            limit = timed.finish_ticks
    return best


def _halves(
    problem: Problem,
    trees: Sequence[Tree],
    *,
    max_runs: int,
    deadline: float,
    seed: int,
    producer: str,
) -> Schedule | None:
    """One half after the other: where own chunks go first, reductions are found backwards in time."""
    parts = []
    for half, reducing in ((reduction_half(problem), True), (spreading_half(problem), False)):
        mine = [replace(tree, reducing=False) for tree in trees if tree.reducing == reducing]
        rooted = {tree.chunk: min(tree.origins) for tree in mine}
        if any(rooted[c] != chunk.root for c, chunk in enumerate(problem.collective.chunks)):
            return None
        found = schedule_trees(half, mine, max_runs=max_runs, deadline=deadline, seed=seed)
        if found is None:
            return None
        parts.append(reverse(found, problem) if reducing else replace(found, problem=problem))
    return concatenate(parts, problem, producer=producer)


def _fold(problem: Problem, trees: Sequence[Tree]) -> tuple[Orbits, int]:
    """The sends of all trees as moves of a trivial fold, those that reduce first; how many those are.

    What a rank passes on comes from as many places as it is put together from, so that it waits for all.
    Every link counts as two, one for what is reduced, so that only sends of a kind merge.
    """
    topology, costs = problem.topology, problem.costs
    num_links = len(topology.links)
    spreads = {tree.chunk: tree for tree in trees if not tree.reducing}
    source_of = {(d.chunk, d.rank): d.source for d in problem.collective.derivations}
    inward: dict[tuple[int, int], list[int]] = defaultdict(list)
    for tree in trees:
        for link in dict.fromkeys(tree.link_to.values()) if tree.reducing else ():
            for rank in topology.links[link].dsts:
                inward[tree.chunk, rank].append(link)

    def held_at(c: int, rank: int, *, reducing: bool) -> list[_PlaceName]:
        """The places that a chunk comes to a rank by."""
        if not reducing and rank not in spreads[c].origins:
            return [("there", c, rank)]
        if (c, rank) in source_of and rank not in problem.collective.chunks[c].origins:
            return held_at(source_of[c, rank], rank, reducing=False)
        return [("sum", c, link) for link in inward[c, rank]] or [("start", c, rank)]

    number: dict[_PlaceName, int] = {}
    moves: list[Move] = []
    for tree in sorted(trees, key=lambda tree: not tree.reducing):
        c = tree.chunk
        for link in dict.fromkeys(tree.link_to.values()):
            ends = topology.links[link]
            srcs = [name for rank in ends.srcs for name in held_at(c, rank, reducing=tree.reducing)]
            if tree.reducing:
                dsts: list[_PlaceName] = [("sum", c, link)]
            else:
                dsts = [("there", c, rank) for rank in ends.dsts if tree.link_to.get(rank) == link]
            moves.append(
                Move(
                    chunk=c,
                    link=link,
                    link_orbit=link + (0 if tree.reducing else num_links),
                    srcs=tuple(number.setdefault(name, len(number)) for name in dict.fromkeys(srcs)),
                    dsts=tuple(number.setdefault(name, len(number)) for name in dsts),
                    units=int(costs.chunk_units[c]),
                    duration=costs.duration(link, int(costs.chunk_units[c])),
                    tail_ticks=0,
                    after_ticks=0,
                    is_own=not tree.origins.isdisjoint(ends.srcs) and not tree.reducing,
                )
            )
    into: list[list[int]] = [[] for _ in number]
    out: list[list[int]] = [[] for _ in number]
    for m, move in enumerate(moves):
        for p in move.dsts:
            into[p].append(m)
        for p in move.srcs:
            out[p].append(m)
    places = tuple(
        Place(c, where, 0, kind == "start", kind != "start", tuple(into[p]), tuple(out[p]))
        for p, (kind, c, where) in enumerate(number)
    )
    holds = _holds(problem)
    return Orbits(
        problem=problem,
        group=(),
        places=places,
        moves=tuple(moves),
        link_rep=(*range(num_links), *range(num_links)),
        holds=(*holds, *holds),
        num_resources=len(topology.resources),
        single_path=(False,) * problem.collective.num_chunks,
        link_orbit=tuple(range(num_links)),
        resource_orbit=tuple(range(len(topology.resources))),
    ), sum(len(set(tree.link_to.values())) for tree in trees if tree.reducing)


def _holds(problem: Problem) -> tuple[tuple[Held, ...], ...]:
    costs = problem.costs
    held: list[list[Held]] = [[] for _ in problem.topology.links]
    alphas, betas = costs.hold_alpha.tolist(), costs.hold_beta.tolist()
    for hold, alpha, beta in zip(problem.topology.holds, alphas, betas, strict=True):
        held[hold.link].append(Held(hold.resource, alpha, beta, hold.side == "receive", 1))
    return tuple(tuple(each) for each in held)


def _tails(orbits: Orbits) -> list[int]:
    """Ticks of the longest chain of sends that every move is the first of."""
    tails = [move.duration for move in orbits.moves]
    after = [[m for p in move.dsts for m in orbits.places[p].moves_out] for move in orbits.moves]
    before: list[list[int]] = [[] for _ in orbits.moves]
    left = [len(each) for each in after]
    for m, others in enumerate(after):
        for other in others:
            before[other].append(m)
    ready = [m for m, count in enumerate(left) if not count]
    for m in ready:
        for other in before[m]:
            tails[other] = max(tails[other], orbits.moves[other].duration + tails[m])
            left[other] -= 1
            if not left[other]:
                ready.append(other)
    return tails
