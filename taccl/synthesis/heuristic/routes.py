"""The routes of chunks in a schedule, as trees.

A tree grows from where a chunk starts to all that need it. A chunk that is reduced has a second tree, along
which contributions come in: it grows from the rank where the sum is complete, against the direction of its
links, so that both are read and grown alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from taccl.problem import Problem
from taccl.schedule.schedule import Schedule, Transfer


@dataclass(slots=True)
class Tree:
    """How one chunk spreads from its origins, or (`reducing`) how its contributions come together.

    - `reducing`: Whether links are walked against their direction.
    - `origins`, `targets`: Ranks that it grows from, and ranks that it must reach.
    - `link_to` (dict of rank to link): The link by which it reaches a rank; of a rank that sends its
      contribution, the link it sends over.
    - `read_from` (dict of rank to Transfer): What brought it to a rank in the schedule that it was read from;
      of a rank that sends its contribution, what took that.
    """

    chunk: int
    reducing: bool
    origins: set[int]
    targets: set[int]
    link_to: dict[int, int] = field(default_factory=dict)
    read_from: dict[int, Transfer] = field(default_factory=dict)

    def feeders(self, problem: Problem, rank: int) -> tuple[int, ...]:
        """The ranks that a rank is reached from."""
        ends = problem.topology.links[self.link_to[rank]]
        return ends.dsts if self.reducing else ends.srcs

    def drop_loose_ends(self, problem: Problem) -> bool:
        """Leave out what is not reached from its origins any more; whether it reaches all its targets."""
        found, more = set(self.origins), set(self.origins)
        while more:
            ahead = self.link_to.keys() - found
            more = {rank for rank in ahead if found.issuperset(self.feeders(problem, rank))}
            found |= more
        self.link_to = {rank: e for rank, e in self.link_to.items() if rank in found}
        self.prune(problem)
        return self.targets <= found

    def prune(self, problem: Problem) -> None:
        """Leave out ranks that lead to no target."""
        needed: set[int] = set()
        pending = list(self.targets)
        while pending:
            rank = pending.pop()
            if rank not in needed and rank in self.link_to and rank not in self.origins:
                needed.add(rank)
                pending.extend(self.feeders(problem, rank))
        self.link_to = {rank: e for rank, e in self.link_to.items() if rank in needed}


def read_trees(schedule: Schedule) -> list[Tree]:
    """The trees of all chunks in a schedule without derived ones, in order of chunk, the reducing one first.

    Of several arrivals of a chunk the first counts. Where partial sums do not come in along a tree (they are
    exchanged in pairs, say), the chunk's trees have no links.
    """
    problem = schedule.problem
    by_chunk: dict[int, list[Transfer]] = defaultdict(list)
    for transfer in schedule:
        by_chunk[transfer.chunk].append(transfer)
    if problem.collective.combining:
        chunks = range(problem.collective.num_chunks)
        return [tree for c in chunks for tree in _sum_trees(problem, c, by_chunk[c])]
    trees = bare_trees(problem)
    for tree in trees:
        _spread(problem, tree, by_chunk[tree.chunk])
    return trees


def bare_trees(problem: Problem, *, roots: Mapping[int, int] | None = None) -> list[Tree]:
    """The trees of all chunks, none of them derived, without any links.

    - `roots` (mapping of chunk to rank): Where sums are complete first, if not at the collective's own root.
    """
    combines = problem.collective.combining
    trees: list[Tree] = []
    for c, data in enumerate(problem.collective.chunks):
        origins = set(data.origins)
        if combines:
            root = (roots or {}).get(c, data.root)
            assert root is not None, "a combining chunk has a root"
            origins = {root}
            trees.append(Tree(c, True, origins, set(data.origins) - origins))
        trees.append(Tree(c, False, origins, set(data.destinations) - origins))
    return trees


def _spread(problem: Problem, tree: Tree, transfers: Iterable[Transfer]) -> None:
    """Give a tree the first arrival at every rank."""
    for transfer in sorted(transfers, key=lambda t: t.end_ticks):
        for rank in problem.topology.links[transfer.link].dsts:
            if rank not in tree.origins:
                tree.read_from.setdefault(rank, transfer)
    tree.link_to = {rank: transfer.link for rank, transfer in tree.read_from.items()}
    tree.prune(problem)


def _sum_trees(problem: Problem, c: int, transfers: Sequence[Transfer]) -> list[Tree]:
    """How a sum comes together at one rank, and spreads from there."""
    data, links = problem.collective.chunks[c], problem.topology.links
    assert data.root is not None, "a combining chunk has a root"
    everyone = frozenset(data.origins)
    held = {rank: frozenset((rank,)) for rank in data.origins}
    complete = [rank for rank in data.origins if held[rank] == everyone]
    carried: dict[int, frozenset[int]] = {}
    inwards: dict[int, Transfer] = {}
    outwards: list[Transfer] = []
    is_tree = True
    for arrives, t in _events(transfers):
        transfer, ends = transfers[t], links[transfers[t].link]
        if not arrives:
            carried[t] = frozenset().union(*(held.get(rank, frozenset()) for rank in ends.srcs))
            continue
        if carried[t] == everyone:
            outwards.append(transfer)
        else:
            is_tree &= len(ends.dsts) == 1 and not any(rank in inwards for rank in ends.srcs)
            inwards.update(dict.fromkeys(ends.srcs, transfer))
        for rank in ends.dsts:
            was = held.get(rank, frozenset())
            held[rank] = was | carried[t] if transfer.reduce else carried[t]
            if held[rank] == everyone not in (was, carried[t]):
                complete.append(rank)
    is_tree &= len(complete) == 1
    root = complete[0] if is_tree else data.root
    reduction = Tree(c, True, {root}, set(data.origins) - {root})
    spreading = Tree(c, False, {root}, set(data.destinations) - {root})
    if is_tree:
        reduction.read_from = {rank: transfer for rank, transfer in inwards.items() if rank != root}
        reduction.link_to = {rank: transfer.link for rank, transfer in reduction.read_from.items()}
        reduction.prune(problem)
        _spread(problem, spreading, outwards)
    return [reduction, spreading]


def _events(transfers: Sequence[Transfer]) -> Iterator[tuple[bool, int]]:
    """(whether it is an arrival, transfer) in order of time; at one moment arrivals come first."""
    moments = [(t.start_ticks, 1, i) for i, t in enumerate(transfers)]
    moments += [(t.end_ticks, 0, i) for i, t in enumerate(transfers)]
    for _, starts, i in sorted(moments):
        yield not starts, i
