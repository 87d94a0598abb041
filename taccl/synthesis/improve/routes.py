"""The routes of chunks in a schedule, as trees.

A tree grows from where a chunk starts to all that need it. A chunk that is reduced has a second tree, along
which contributions come in: it grows from the rank where the sum is complete, against the direction of its
links, so that both are read and grown alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule, Transfer
from taccl.topology.topology import Link

#: Groups of sends that are no longer those of a schedule, from here down.
_ALONE = -(1 << 40)


@dataclass(slots=True)
class Tree:
    """Broadcast of one chunk from its origins, or (`reducing`) the reduction of its contributions."""

    chunk: int
    reducing: bool  # links are walked against their direction
    origins: set[int]
    targets: set[int]  # ranks that it must reach
    #: Link by which it reaches each rank; for a rank that sends its contribution, the link it sends over.
    link_to: dict[int, int] = field(default_factory=dict)
    #: Send of the original schedule that delivered it, or took the contribution.
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

    The first of several arrivals of a chunk counts. If two ranks complete a sum at once by exchanging partial
    sums, one is used as its root, and the other waits for it. If partial sums arrive along no tree in any
    other way, the chunk's trees have no links.
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
    """Reduction of a sum at one rank, and its broadcast from there."""
    data, links = problem.collective.chunks[c], problem.topology.links
    assert data.root is not None, "a combining chunk has a root"
    everyone = frozenset(data.origins)
    held = {rank: frozenset((rank,)) for rank in data.origins}
    complete = [rank for rank in data.origins if held[rank] == everyone]
    carried: dict[int, frozenset[int]] = {}
    inwards: dict[int, Transfer] = {}
    outwards: list[Transfer] = []
    is_tree = True
    moments = [(transfer.start_ticks, 1, t) for t, transfer in enumerate(transfers)]
    moments += [(transfer.end_ticks, 0, t) for t, transfer in enumerate(transfers)]
    for _, leaves, t in sorted(moments):  # at one moment arrivals come first
        transfer, ends = transfers[t], links[transfers[t].link]
        if leaves:
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
    exchange = _exchange(inwards, links, complete)
    is_tree &= len(complete) == 1 or exchange is not None
    root = complete[0] if is_tree else data.root
    reduction = Tree(c, True, {root}, set(data.origins) - {root})
    spreading = Tree(c, False, {root}, set(data.destinations) - {root})
    if is_tree:
        reduction.read_from = {rank: transfer for rank, transfer in inwards.items() if rank != root}
        reduction.link_to = {rank: transfer.link for rank, transfer in reduction.read_from.items()}
        reduction.prune(problem)
        _spread(problem, spreading, outwards if exchange is None else [exchange, *outwards])
        if exchange is not None:
            _delay(problem, spreading, max(each.end_ticks for each in reduction.read_from.values()))
    return [reduction, spreading]


def _exchange(
    inwards: Mapping[int, Transfer], links: Sequence[Link], complete: Sequence[int]
) -> Transfer | None:
    """Send of the first of two ranks that complete a sum at once to the other, if both send."""
    if len(complete) != 2 or not inwards.keys() >= set(complete):
        return None
    out, back = (inwards[rank] for rank in complete)
    is_one = [links[each.link].dsts for each in (back, out)] == [(rank,) for rank in complete]
    return out if is_one else None


def _delay(problem: Problem, tree: Tree, since: int) -> None:
    """Have a tree grow from a root that has the chunk from some moment on; sends that move part."""
    there = dict.fromkeys(tree.origins, since)
    num_ranks = problem.topology.num_ranks
    for rank, sent in sorted(tree.read_from.items(), key=lambda each: each[1].start_ticks):
        start = max(sent.start_ticks, *(there.get(r, 0) for r in problem.topology.links[sent.link].srcs))
        if start > sent.start_ticks:
            end, alone = start + sent.end_ticks - sent.start_ticks, _ALONE - tree.chunk * num_ranks - rank
            sent = sent._replace(start_ticks=start, end_ticks=end, group=alone)
            tree.read_from[rank] = sent
        there[rank] = sent.end_ticks
