"""What all baselines share: chunks spread step by step, and reductions are that with time turned round.

A baseline says who passes which chunks to whom in every step. Here steps become transfers: over the direct
link, or over a shortest route of relays; never to a rank that holds the chunk already, so that each chunk
takes a tree; never to a rank that neither needs the chunk nor passes it on. A tree that spreads a chunk from
its root over reversed links, run backwards, reduces it to the root (`taccl.schedule.combine`), so a
baseline describes its spreading half only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from taccl.baselines.routes import Routes
from taccl.errors import CollectiveError
from taccl.schedule.combine import concatenate, reduction_half, reverse, spreading_half
from taccl.schedule.timing import exact_times

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule

#: A baseline of more transfers than this is refused: every one is a Python object, and takes its time.
_MOST_TRANSFERS = 2_000_000
#: Up to so many it is seen as they are made whether there are too many.
_FEW_TRANSFERS = 10_000


class Spread:
    """The sends of a problem that does not combine, in the order in which they take their resources.

    `CollectiveError` says that there would be too many transfers, as soon as that is known.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, self.routes = problem, Routes(problem)
        self._check_number(self._least_transfers())
        self._holders = [set(chunk.origins) for chunk in problem.collective.chunks]
        self._move: list[int] = []
        self._chunk: list[int] = []
        self._link: list[int] = []
        self._num_moves = 0

    def step(self, moves: Iterable[tuple[Sequence[int], int, int]]) -> None:
        """Pass chunks on: every move is (chunks, src, dst), and moves go hop by hop side by side."""
        routed = [(chunks, self.routes.route(src, dst)) for chunks, src, dst in moves]
        self._check_number(len(self._chunk))
        for hop in range(max((len(route) for _, route in routed), default=0)):
            for chunks, route in routed:
                if hop < len(route):
                    self._send(chunks, route[hop])

    def schedule(self, *, producer: str) -> Schedule:
        """The schedule of all steps, without the transfers that no destination needs."""
        chunk, link, group = [], [], []
        clauses = self.problem.clauses
        filled: dict[int, int] = {}
        group_of_move: dict[int, int] = {}
        num_groups = 0
        for t in self._needed():
            move = self._move[t]
            merges = clauses.max_merge if self._link[t] in clauses.merging else 1
            if filled.get(move, merges) >= merges:
                group_of_move[move], filled[move] = num_groups, 0
                num_groups += 1
            filled[move] += 1
            chunk.append(self._chunk[t])
            link.append(self._link[t])
            group.append(group_of_move[move])
        return exact_times(
            self.problem, chunk=chunk, link=link, sequence=group, group=group, producer=producer
        )

    def _check_number(self, num_transfers: int) -> None:
        if num_transfers > _MOST_TRANSFERS:
            name = f"{self.problem.collective.name} on {self.problem.topology.name}"
            raise CollectiveError(
                f"{name} takes {num_transfers} transfers or more; expected at most {_MOST_TRANSFERS}: take "
                "fewer ranks, or synthesize it, which lists transfers in less memory",
                where="baseline",
            )

    def _least_transfers(self) -> int:
        """No fewer transfers than this: every rank that lacks a chunk gets it, and a lone one from afar.

        Small problems are not looked at closely.
        """
        chunks = self.problem.collective.chunks
        arrivals = sum(len(set(chunk.destinations) - set(chunk.origins)) for chunk in chunks)
        lone = [chunk for chunk in chunks if len(chunk.origins) == len(chunk.destinations) == 1]
        if arrivals < _FEW_TRANSFERS or not lone:
            return arrivals
        from scipy.sparse.csgraph import dijkstra

        src, dst = np.array([(chunk.origins[0], chunk.destinations[0]) for chunk in lone]).T
        starts, row = np.unique(src, return_inverse=True)
        hops = dijkstra(self.routes.graph, indices=starts, unweighted=True)[row, dst]
        beyond = np.where(np.isfinite(hops), hops, 1) - 1  # what has no route at all is refused later
        return arrivals + int(np.maximum(beyond, 0).sum())

    def _send(self, chunks: Sequence[int], link: int) -> None:
        ends = self.problem.topology.links[link]
        for c in chunks:
            if ends.dst in self._holders[c]:
                continue
            assert ends.src in self._holders[c], f"chunk {c} is not at rank {ends.src}"
            self._holders[c].add(ends.dst)
            self._move.append(self._num_moves)
            self._chunk.append(c)
            self._link.append(link)
        self._num_moves += 1

    def _needed(self) -> list[int]:
        """Transfers that lead to a destination, in order; from the last, each needs the one that fed it."""
        wanted = [set(chunk.destinations) for chunk in self.problem.collective.chunks]
        needed = []
        for t in reversed(range(len(self._chunk))):
            ends, c = self.problem.topology.links[self._link[t]], self._chunk[t]
            if ends.dst in wanted[c]:
                wanted[c].add(ends.src)
                needed.append(t)
        return needed[::-1]


def run(
    problem: Problem,
    spread: Callable[[Problem], Schedule],
    *,
    backwards: Callable[[Problem], Schedule] | None = None,
    roots: Sequence[int] | None = None,
) -> Schedule:
    """The schedule of any problem by an algorithm that spreads chunks.

    - `spread`: From a problem that does not combine to its schedule.
    - `backwards`: The same for what is then turned round in time; `spread` unless given.
    - `roots`: Ranks at which each chunk's sum is gathered, instead of the collective's own.
    """
    if not problem.collective.combining:
        return spread(problem)
    rooted = problem
    if roots is not None:
        pairs = zip(problem.collective.chunks, roots, strict=True)
        chunks = tuple(replace(chunk, root=root) for chunk, root in pairs)
        rooted = replace(problem, collective=replace(problem.collective, chunks=chunks))
    reduced = reverse((backwards or spread)(reduction_half(rooted)), problem)
    if all(chunk.destinations == (chunk.root,) for chunk in rooted.collective.chunks):
        return reduced
    spread_out = spread(spreading_half(rooted))
    return concatenate([reduced, spread_out], problem, producer=spread_out.producer)


def fastest(schedules: Iterable[Schedule]) -> Schedule:
    """The schedule that finishes first; of equals, the first."""
    return min(schedules, key=lambda schedule: schedule.finish_ticks)


def fastest_form(problem: Problem, forms: Iterable[Callable[[Problem], Schedule]]) -> Schedule:
    """The schedule that finishes first, of several ways to spread."""
    return fastest(run(problem, form) for form in forms)


def without_sketch(problem: Problem) -> Problem:
    """The problem with nothing left of its sketch but which links merge, and how much."""
    return replace(problem, clauses=problem.clauses.only("merge"))


def chunks_of_starts(problem: Problem) -> list[list[int]]:
    """The chunks that start at every rank; of several origins the first counts."""
    chunks: list[list[int]] = [[] for _ in range(problem.topology.num_ranks)]
    for c, chunk in enumerate(problem.collective.chunks):
        chunks[chunk.origins[0]].append(c)
    return chunks


def require_no_derivations(problem: Problem, *, baseline: str) -> None:
    """Raise `CollectiveError` for a collective whose chunks derive from one another."""
    if problem.collective.derivations:
        raise CollectiveError(
            f"{baseline} cannot do {problem.collective.name}, whose chunks derive from one another; "
            "synthesize it",
            where="baseline",
        )


def require_everywhere(problem: Problem, *, baseline: str) -> None:
    """Raise `CollectiveError` unless every chunk involves every rank, as its source or its destination."""
    require_no_derivations(problem, baseline=baseline)
    num_ranks = problem.topology.num_ranks
    for chunk in problem.collective.chunks:
        contributors = chunk.origins if problem.collective.combining else chunk.destinations
        if len({*contributors, *chunk.origins}) < num_ranks:
            raise CollectiveError(
                f"{baseline} cannot do {problem.collective.name}, whose chunks do not concern every rank; "
                "use pairwise, recursive or hierarchical",
                where="baseline",
            )
