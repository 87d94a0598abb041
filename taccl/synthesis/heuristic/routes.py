"""The routes of chunks in a schedule, as trees that can be mended where links are lost.

A tree grows from where a chunk starts to all that need it. A chunk that is reduced has a second tree, along
which contributions come in: it grows from the rank where the sum is complete, against the direction of its
links, so that both are read and mended alike.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule, Transfer

__all__ = ["Tree", "bare_trees", "mend", "read_trees"]

#: How much more a send over the busiest resource costs than one over an idle resource.
_BUSY_PRICE = 16.0


@dataclass(slots=True)
class Tree:
    """How one chunk spreads from its origins, or (`reducing`) how its contributions come together.

    Parameters
    ----------
    chunk : int
    reducing : bool
        Whether links are walked against their direction.
    origins, targets : set of int
        Ranks that it grows from, and ranks that it must reach.
    link_to : dict of rank to link
        The link by which it reaches a rank; of a rank that sends its contribution, the link it sends over.
    is_mended : bool
        Whether it has got other links since it was read.
    read_from : dict of rank to Transfer
        What brought it to a rank in the schedule that it was read from; of a rank that sends its
        contribution, what took that.
    """

    chunk: int
    reducing: bool
    origins: set[int]
    targets: set[int]
    link_to: dict[int, int] = field(default_factory=dict)
    is_mended: bool = False
    read_from: dict[int, Transfer] = field(default_factory=dict)

    def feeders(self, problem: Problem, rank: int) -> tuple[int, ...]:
        """The ranks that a rank is reached from."""
        ends = problem.topology.links[self.link_to[rank]]
        return ends.dsts if self.reducing else ends.srcs

    def reached(self, problem: Problem) -> dict[int, tuple[int, int]]:
        """Ranks that the tree reaches from its origins: over how many links, and the ticks of the sends.

        Over no more links than a chunk may pass.
        """
        fed: dict[int, list[int]] = defaultdict(list)
        waiting: dict[int, int] = {}
        for rank in self.link_to:
            feeders = self.feeders(problem, rank)
            waiting[rank] = len(feeders)
            for feeder in feeders:
                fed[feeder].append(rank)
        passed = dict.fromkeys(self.origins, (0, 0))
        queue = list(self.origins)
        for rank in queue:
            for other in fed[rank]:
                waiting[other] -= 1
                if not waiting[other] and other not in passed:
                    links = 1 + max(passed[each][0] for each in self.feeders(problem, other))
                    if links <= _most_links(problem):
                        passed[other] = links, passed[rank][1] + self.took(problem, self.link_to[other])
                        queue.append(other)
        return passed

    def took(self, problem: Problem, link: int) -> int:
        """Ticks of a send of its chunk."""
        return problem.costs.duration(link, int(problem.costs.chunk_units[self.chunk]))

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


def mend(problem: Problem, trees: Iterable[Tree]) -> bool:
    """Reach every target of every tree again; False if there is no route over links of one rank each end.

    What is cut off is reached one rank after another, each by the cheapest route: links cost the time that
    they take, and more the longer all trees hold what they hold.
    """
    trees = list(trees)
    broken = [tree for tree in trees if _drop_loose_ends(problem, tree)]
    if not broken:
        return True
    fabric = _Fabric(problem, trees)
    return all(fabric.complete(tree) for tree in broken)


def _most_links(problem: Problem) -> int:
    limit = problem.clauses.path_limit
    return problem.topology.num_ranks if limit is None else limit


def _drop_loose_ends(problem: Problem, tree: Tree) -> bool:
    """Leave out what is not reached from the tree's origins any more; whether that concerns a target."""
    passed = tree.reached(problem)
    if tree.targets <= passed.keys():
        return False
    links = problem.topology.links
    if tree.reducing:
        # A link of several sources brings the contributions of all: those led elsewhere would count twice.
        tree.link_to = {r: e for r, e in tree.link_to.items() if len(links[e].srcs) == 1}
        passed = tree.reached(problem)
    tree.link_to = {rank: e for rank, e in tree.link_to.items() if rank in passed}
    tree.prune(problem)
    return True


class _Fabric:
    """The links that chunks may be sent over, and for how many ticks trees hold every resource."""

    def __init__(self, problem: Problem, trees: Iterable[Tree]) -> None:
        topology, costs = problem.topology, problem.costs
        self.problem = problem
        self.held: list[list[tuple[int, int, int]]] = [[] for _ in topology.links]
        alphas, betas = costs.hold_alpha.tolist(), costs.hold_beta.tolist()
        for hold, alpha, beta in zip(topology.holds, alphas, betas, strict=True):
            self.held[hold.link].append((hold.resource, alpha, beta))
        self.ticks = [0] * len(topology.resources)
        for tree in trees:
            for link in set(tree.link_to.values()):
                self.hold(link, tree.chunk)
        self.joins: dict[bool, list[list[tuple[int, int]]]] = {
            reducing: [[] for _ in range(topology.num_ranks)] for reducing in (False, True)
        }
        for e in problem.links_allowed:
            ends = topology.links[e]
            if len(ends.srcs) == 1 == len(ends.dsts):
                self.joins[False][ends.src].append((e, ends.dst))
                self.joins[True][ends.dst].append((e, ends.src))

    def after(self, link: int, chunk: int) -> Iterator[tuple[int, int]]:
        """Every resource of a link, and its ticks once a chunk is sent over it too."""
        units = int(self.problem.costs.chunk_units[chunk])
        for resource, alpha, beta in self.held[link]:
            yield resource, self.ticks[resource] + alpha + beta * units

    def hold(self, link: int, chunk: int) -> None:
        """Count a send."""
        for resource, ticks in list(self.after(link, chunk)):
            self.ticks[resource] = ticks

    def complete(self, tree: Tree) -> bool:
        """Reach all targets of a tree; whether there are routes."""
        tree.is_mended = True
        passed = tree.reached(self.problem)
        while not tree.targets <= passed.keys():
            route = self.route(tree, passed)
            if not route:
                return False
            for rank, link, before in route:
                links, ticks = passed[before]
                passed[rank] = links + 1, ticks + tree.took(self.problem, link)
                tree.link_to[rank] = link
                self.hold(link, tree.chunk)
        return True

    def route(self, tree: Tree, passed: Mapping[int, tuple[int, int]]) -> list[tuple[int, int, int]]:
        """The cheapest route from what a tree reaches to a target: (rank, link, rank before) of every hop.

        Empty where there is none. Where a chunk may only pass so many links, those of the fewest come first.
        """
        chunk, most, limit = tree.chunk, max(*self.ticks, 1), _most_links(self.problem)
        counts = self.problem.clauses.path_limit is not None
        queue = [(counts * links, float(ticks), links, r, -1, -1) for r, (links, ticks) in passed.items()]
        heapq.heapify(queue)
        came: dict[int, tuple[int, int]] = {}
        while queue:
            first, cost, links, rank, link, before = heapq.heappop(queue)
            if rank in came:
                continue
            came[rank] = link, before
            if rank in tree.targets and rank not in passed:
                route = []
                while came[rank][0] >= 0:
                    route.append((rank, *came[rank]))
                    rank = came[rank][1]
                return route[::-1]
            for e, other in self.joins[tree.reducing][rank] if links < limit else ():
                if other in came or not self.problem.may_carry(e, chunk, reducing=tree.reducing):
                    continue
                busy = max((ticks for _, ticks in self.after(e, chunk)), default=0)
                price = tree.took(self.problem, e) * (1 + _BUSY_PRICE * (busy / most) ** 3)
                heapq.heappush(queue, (first + counts, cost + price, links + 1, other, e, rank))
        return []


def read_trees(schedule: Schedule) -> list[Tree]:
    """The trees of all chunks in a schedule, in order of chunk, the reducing one first.

    Of several arrivals of a chunk the first counts. Where partial sums do not come in along a tree (they are
    exchanged in pairs, say), the chunk's trees have no links.
    """
    problem = schedule.problem
    by_chunk: dict[int, list[Transfer]] = defaultdict(list)
    for transfer in schedule:
        by_chunk[transfer.chunk].append(transfer)
    if problem.collective.combining and not problem.collective.derivations:
        chunks = range(problem.collective.num_chunks)
        return [tree for c in chunks for tree in _sum_trees(problem, c, by_chunk[c])]
    trees = bare_trees(problem)
    for tree in trees:
        _spread(problem, tree, by_chunk[tree.chunk])
    return trees


def bare_trees(problem: Problem, *, roots: Mapping[int, int] | None = None) -> list[Tree]:
    """The trees of all chunks without any links.

    Parameters
    ----------
    roots : mapping of chunk to rank, optional
        Where sums are complete first, if not at the collective's own root.
    """
    collective = problem.collective
    trees: list[Tree] = []
    made_at = {d.chunk: d.rank for d in collective.derivations}
    wanted_by: dict[int, set[int]] = defaultdict(set)
    for derivation in collective.derivations:
        wanted_by[derivation.source].add(derivation.rank)
    for c, data in enumerate(collective.chunks):
        if collective.combining and not collective.derivations:
            root = (roots or {}).get(c, data.root)
            assert root is not None, "a combining chunk has a root"
            trees.append(Tree(c, True, {root}, set(data.origins) - {root}))
            trees.append(Tree(c, False, {root}, set(data.destinations) - {root}))
        else:
            origins = {*data.origins, *((made_at[c],) if c in made_at else ())}
            trees.append(Tree(c, False, origins, {*data.destinations, *wanted_by[c]} - origins))
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
