"""Routes of chunks in a schedule, as trees.

A tree leads from a chunk's origins to all ranks that need it. A reduced chunk has a second tree, along which
its contributions are collected. That tree grows from the rank where the sum is complete, against the
direction of its links. So both kinds of trees are read and grown in the same way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule, Transfer
from taccl.topology.topology import Link

#: Largest group number of re-timed sends; each gets its own, as it is no longer merged with others.
_ALONE = -(1 << 40)


@dataclass(slots=True)
class Tree:
    """Tree of links for the broadcast of one chunk, or, if `reducing`, for the sum of its contributions."""

    chunk: int
    reducing: bool  # True: the tree grows against the direction of its links
    origins: set[int]
    targets: set[int]  # ranks that the tree must reach
    #: {rank: link over which the tree reaches it; in a reduction, the link over which the rank sends}.
    link_to: dict[int, int] = field(default_factory=dict)
    #: {rank: send of the schedule that delivered the chunk to it, or collected its contribution}.
    read_from: dict[int, Transfer] = field(default_factory=dict)

    def feeders(self, problem: Problem, rank: int) -> tuple[int, ...]:
        """Ranks at the other end of the link over which the tree reaches `rank`."""
        ends = problem.topology.links[self.link_to[rank]]
        return ends.dsts if self.reducing else ends.srcs

    def drop_loose_ends(self, problem: Problem) -> bool:
        """Remove ranks that are not reached from the origins; true if all targets are still reached."""
        found, more = set(self.origins), set(self.origins)
        while more:
            ahead = self.link_to.keys() - found
            more = {rank for rank in ahead if found.issuperset(self.feeders(problem, rank))}
            found |= more
        self.link_to = {rank: e for rank, e in self.link_to.items() if rank in found}
        self.prune(problem)
        return self.targets <= found

    def prune(self, problem: Problem) -> None:
        """Remove ranks that lead to no target."""
        needed: set[int] = set()
        pending = list(self.targets)
        while pending:
            rank = pending.pop()
            if rank not in needed and rank in self.link_to and rank not in self.origins:
                needed.add(rank)
                pending.extend(self.feeders(problem, rank))
        self.link_to = {rank: e for rank, e in self.link_to.items() if rank in needed}


def read_trees(schedule: Schedule) -> list[Tree]:
    """Routes of a schedule's chunks as trees, in order of chunks, each reduction before its broadcast.

    The collective must have no derived chunks. Only the first arrival of a chunk at a rank counts. If two
    ranks complete a sum simultaneously by exchanging partial sums, one of them becomes the root, and the
    other waits for it. If the partial sums of a chunk do not travel along a tree for another reason, the
    chunk's trees have no links.
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
    """Trees without links for all chunks, to which a search adds links.

    The collective must have no derived chunks (`Derivation`).

    - `roots`: {chunk: rank where its sum is completed}, if it is not the collective's own root.
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
    """Fill a broadcast tree with the first arrival at every rank."""
    for transfer in sorted(transfers, key=lambda t: t.end_ticks):
        for rank in problem.topology.links[transfer.link].dsts:
            if rank not in tree.origins:
                tree.read_from.setdefault(rank, transfer)
    tree.link_to = {rank: transfer.link for rank, transfer in tree.read_from.items()}
    tree.prune(problem)


def _sum_trees(problem: Problem, c: int, transfers: Sequence[Transfer]) -> list[Tree]:
    """Return two trees of one sum: its reduction to the root, and its broadcast from the root.

    If servers update sums, the given root remains, and sends that do not reduce carry the updated sum.
    """
    data, links = problem.collective.chunks[c], problem.topology.links
    assert data.root is not None, "a combining chunk has a root"
    everyone, updates = frozenset(data.origins), problem.collective.updates
    held = {rank: frozenset((rank,)) for rank in data.origins}
    complete = [rank for rank in data.origins if held[rank] == everyone]
    carried: dict[int, frozenset[int]] = {}
    inwards: dict[int, Transfer] = {}
    outwards: list[Transfer] = []
    is_tree = True
    events = [(transfer.start_ticks, 1, t) for t, transfer in enumerate(transfers)]
    events += [(transfer.end_ticks, 0, t) for t, transfer in enumerate(transfers)]
    for _, leaves, t in sorted(events):  # at equal times arrivals come first
        transfer, ends = transfers[t], links[transfers[t].link]
        if leaves:
            carried[t] = frozenset().union(*(held.get(rank, frozenset()) for rank in ends.srcs))
            continue
        is_spread = not transfer.reduce if updates else carried[t] == everyone
        if is_spread:
            outwards.append(transfer)
        else:
            is_tree &= len(ends.dsts) == 1 and not any(rank in inwards for rank in ends.srcs)
            inwards.update(dict.fromkeys(ends.srcs, transfer))
        for rank in ends.dsts:
            was = held.get(rank, frozenset())
            held[rank] = was | carried[t] if transfer.reduce else carried[t]
            if held[rank] == everyone not in (was, carried[t]):
                complete.append(rank)
    exchange = None if updates else _exchange(inwards, links, complete)
    is_tree &= updates or len(complete) == 1 or exchange is not None
    root = complete[0] if is_tree and not updates else data.root
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
    """The send from the first to the second of two ranks that complete a sum by exchanging partial sums.

    None if no two ranks do so.
    """
    if len(complete) != 2 or not inwards.keys() >= set(complete):
        return None
    out, back = (inwards[rank] for rank in complete)
    is_one = [links[each.link].dsts for each in (back, out)] == [(rank,) for rank in complete]
    return out if is_one else None


def _delay(problem: Problem, tree: Tree, since: int) -> None:
    """Delay the sends of a tree until a release date at its root (`since`, in ticks).

    Delayed sends are no longer merged with others.
    """
    there = dict.fromkeys(tree.origins, since)
    num_ranks = problem.topology.num_ranks
    for rank, sent in sorted(tree.read_from.items(), key=lambda each: each[1].start_ticks):
        start = max(sent.start_ticks, *(there.get(r, 0) for r in problem.topology.links[sent.link].srcs))
        if start > sent.start_ticks:
            end, alone = start + sent.end_ticks - sent.start_ticks, _ALONE - tree.chunk * num_ranks - rank
            sent = sent._replace(start_ticks=start, end_ticks=end, group=alone)
            tree.read_from[rank] = sent
        there[rank] = sent.end_ticks
