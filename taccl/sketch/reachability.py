"""Whether every chunk can reach its destinations at all, asked before any solver.

Chunks that the clauses treat alike are searched once: an alltoall of 1,024 chunks on 32 ranks in two
nodes takes 64 searches.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from taccl.errors import SketchError, TopologyError
from taccl.problem import Clauses

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

    from taccl.errors import InputError
    from taccl.problem import Problem

__all__ = ["check_reachable"]


def check_reachable(problem: Problem) -> None:
    """Raise an error if a chunk has no path to a destination over links that may carry it.

    Of a combining collective, every contribution needs a path to the chunk's root, and the sum needs one
    from there to every destination.

    Raises
    ------
    SketchError
        Naming the chunk, the ranks and the clause that forbids it.
    TopologyError
        If the topology has no such path even without the sketch.
    """
    search = _Search(problem)
    if search.joins_everything():
        return
    checked = set()
    for index, chunk in enumerate(problem.collective.chunks):
        kind = chunk, search.starts(index), search.makers(index), problem.holders(index)
        if kind in checked:
            continue
        checked.add(kind)
        for src, dst, reducing in search.missing(index):
            raise _explained(problem, index, src, dst, reducing)


class _Search:
    """Breadth-first searches over the links that may carry a chunk, each done once."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._derived: dict[int, list[int]] = defaultdict(list)
        self._makers: dict[int, list[int]] = defaultdict(list)
        sources = {derivation.source for derivation in problem.collective.derivations}
        for derivation in problem.collective.derivations:
            self._derived[derivation.chunk].append(derivation.rank)
            made = problem.collective.chunks[derivation.chunk]
            if not made.origins and (made.destinations or derivation.chunk in sources):
                self._makers[derivation.source].append(derivation.rank)
        self._reached: dict[Hashable, frozenset[int]] = {}
        self._nodes: dict[tuple[int, ...], frozenset[int]] = {}

    def starts(self, index: int) -> tuple[int, ...]:
        """Ranks where a chunk starts, or is made from another."""
        return (*self._problem.collective.chunks[index].origins, *self._derived.get(index, ()))

    def makers(self, index: int) -> tuple[int, ...]:
        """Ranks that must hold a chunk to make another of it, which starts nowhere else."""
        return tuple(self._makers.get(index, ()))

    def joins_everything(self) -> bool:
        """Whether in each process group every rank reaches every rank, whatever the chunk.

        False where a link has several sources.
        """
        clauses, links = self._problem.clauses, self._problem.topology.links
        collective = self._problem.collective
        if any(len(links[e].srcs) > 1 for e in self._problem.links_allowed):
            return False
        if clauses.carries_from or clauses.carries_to or clauses.direct_crossing:
            return False
        for group, chunks in zip(collective.process_groups, collective.chunks_of_group, strict=True):
            for reducing in (False, True) if chunks else ():
                if not self._search(chunks[0], group.ranks[:1], reducing).issuperset(group.ranks):
                    return False
        return True

    def missing(self, index: int) -> Iterator[tuple[int, int, bool]]:
        """Pairs of ranks that a chunk must get between but cannot, and whether it is being reduced."""
        collective = self._problem.collective
        chunk = collective.chunks[index]
        starts = self.starts(index)
        if collective.combining and chunk.root is not None:
            into_root = self._reach(index, (chunk.root,), reducing=True)
            for rank in chunk.origins:
                if rank not in into_root:
                    yield rank, chunk.root, True
            starts = (chunk.root,)
        ends = [rank for rank in (*chunk.destinations, *self.makers(index)) if rank not in starts]
        if ends:
            reached = self._reach(index, starts, reducing=False)
            for rank in ends:
                if rank not in reached:
                    yield starts[0], rank, False

    def _reach(self, index: int, starts: tuple[int, ...], *, reducing: bool) -> frozenset[int]:
        """Ranks that a chunk gets to from `starts`; while it is reduced, ranks that it gets to them from."""
        chunk = self._problem.collective.chunks[index]
        # What `Problem.may_carry` looks at.
        kind = (
            starts, chunk.origins if not reducing and chunk.root is None else None, reducing,
            self._nodes_of(chunk.origins), self._nodes_of(chunk.destinations),
            self._problem.holders(index),
        )  # fmt: skip
        if kind not in self._reached:
            self._reached[kind] = self._search(index, starts, reducing)
        return self._reached[kind]

    def _nodes_of(self, ranks: tuple[int, ...]) -> frozenset[int]:
        """The nodes that some ranks are in."""
        if ranks not in self._nodes:
            node = self._problem.topology.node_of_rank
            self._nodes[ranks] = frozenset(node[r] for r in ranks)
        return self._nodes[ranks]

    def _search(self, index: int, starts: Iterable[int], reducing: bool) -> frozenset[int]:
        """What `_reach` returns.

        A copy goes over a link once all the link's sources have it; a contribution from any of them.
        """
        problem, topology = self._problem, self._problem.topology
        incident = topology.links_to if reducing else topology.links_from
        seen = set(starts)
        queue = list(seen)
        for rank in queue:
            for link in incident[rank]:
                srcs, dsts = topology.links[link].srcs, topology.links[link].dsts
                ends = srcs if reducing else dsts
                if seen.issuperset(ends) or not (reducing or seen.issuperset(srcs)):
                    continue
                if not problem.may_carry(link, index, reducing=reducing):
                    continue
                fresh = set(ends) - seen
                seen |= fresh
                queue.extend(fresh)
        return frozenset(seen)


def _explained(problem: Problem, index: int, src: int, dst: int, reducing: bool) -> InputError:
    """The error for a chunk that cannot get from `src` to `dst`, with the clause that forbids it."""
    name = problem.collective.name
    what = f"{'contribution of rank ' + str(src) + ' to ' if reducing else ''}chunk {index} of {name}"
    path = f"{what} cannot get from rank {src} to rank {dst}"

    def open_without(clauses: Clauses) -> bool:
        candidate = replace(problem, clauses=clauses)
        return (src, dst, reducing) not in set(_Search(candidate).missing(index))

    if not open_without(Clauses()):
        return TopologyError(
            f"{path}: {problem.topology.name} has no path for it; add links, or leave the rank out",
            where="topology",
        )
    guilty = [field for field, clauses in _loosened(problem) if open_without(clauses)]
    if not guilty:
        present = [field for field, _ in _loosened(problem)]
        return SketchError(
            f"{path}: {' and '.join(present)} together leave no path for it; loosen one of them",
            where=problem.clauses.where.get(present[0], problem.clauses.name or "sketch"),
        )
    where = problem.clauses.where.get(guilty[0], f"{problem.clauses.name or 'sketch'}: {guilty[0]}")
    others = f" (or {' or '.join(guilty[1:])})" if guilty[1:] else ""
    return SketchError(f"{path}: {guilty[0]} leaves no path for it; loosen it{others}", where=where)


def _loosened(problem: Problem) -> Iterator[tuple[str, Clauses]]:
    """Every clause that forbids anything, by its field in a sketch, and the clauses without it."""
    clauses, topology = problem.clauses, problem.topology
    if clauses.carries_from or clauses.carries_to:
        yield "internode.relays", replace(clauses, carries_from={}, carries_to={})
    if clauses.links_allowed is not None:
        every = set(range(len(topology.links)))
        internode = set(topology.internode_links)
        for field, links in (
            ("internode.connections", internode), ("intranode.links", every - internode),
        ):  # fmt: skip
            if not links <= clauses.links_allowed:
                yield field, replace(clauses, links_allowed=clauses.links_allowed | links)
    if clauses.relays is not None:
        yield "relays", replace(clauses, relays=None)
    if clauses.direct_crossing:
        yield "internode.crossing", replace(clauses, direct_crossing=False)
