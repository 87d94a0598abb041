"""The ways that chunks take in a schedule, as trees that can be mended where links are lost.

A tree grows from where a chunk starts to all that need it. A chunk that is reduced has a second tree, along
which contributions come in: it grows from the rank where the sum is complete, against the direction of its
links, so that both are read, mended and lightened alike.
"""

from __future__ import annotations

import heapq
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule, Transfer

__all__ = ["Roads", "Tree", "bare_trees", "lighten", "mend", "read_trees"]

#: How much dearer a send over the busiest resource is than over an idle one.
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
    """

    chunk: int
    reducing: bool
    origins: set[int]
    targets: set[int]
    link_to: dict[int, int] = field(default_factory=dict)
    is_mended: bool = False

    def feeders(self, problem: Problem, rank: int) -> tuple[int, ...]:
        """The ranks that a rank is reached from."""
        ends = problem.topology.links[self.link_to[rank]]
        return ends.dsts if self.reducing else ends.srcs

    def depths(self, problem: Problem, roads: Roads) -> dict[int, tuple[int, int]]:
        """Ranks that the tree reaches from its origins: the ticks of the sends to there, and how many links.

        Over no more links than a chunk may pass.
        """
        fed: dict[int, list[int]] = defaultdict(list)
        waiting: dict[int, int] = {}
        for rank in self.link_to:
            feeders = self.feeders(problem, rank)
            waiting[rank] = len(feeders)
            for feeder in feeders:
                fed[feeder].append(rank)
        depths = dict.fromkeys(self.origins, (0, 0))
        queue = list(self.origins)
        for rank in queue:
            for other in fed[rank]:
                waiting[other] -= 1
                if not waiting[other] and other not in depths:
                    passed = 1 + max(depths[each][1] for each in self.feeders(problem, other))
                    if passed <= roads.most_links:
                        depths[other] = (
                            depths[rank][0] + roads.took(self.link_to[other], self.chunk),
                            passed,
                        )
                        queue.append(other)
        return depths

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


class Roads:
    """The links that chunks may be sent over, and for how many ticks all trees hold every resource.

    Parameters
    ----------
    trees : iterable of Tree
        What is counted to begin with.
    """

    def __init__(self, problem: Problem, trees: Iterable[Tree]) -> None:
        topology, costs = problem.topology, problem.costs
        self.problem = problem
        self.units: list[int] = costs.chunk_units.tolist()
        self.alpha: list[int] = costs.link_alpha.tolist()
        self.beta: list[int] = costs.link_beta.tolist()
        self.held: list[list[tuple[int, int, int]]] = [[] for _ in topology.links]
        alphas, betas = costs.hold_alpha.tolist(), costs.hold_beta.tolist()
        for hold, alpha, beta in zip(topology.holds, alphas, betas, strict=True):
            self.held[hold.link].append((hold.resource, alpha, beta))
        self.ticks = [0] * len(topology.resources)
        self.count(trees)
        self.onward: list[list[tuple[int, int]]] = [[] for _ in range(topology.num_ranks)]
        self.backward: list[list[tuple[int, int]]] = [[] for _ in range(topology.num_ranks)]
        for e in problem.links_allowed:
            ends = topology.links[e]
            if len(ends.srcs) == 1 == len(ends.dsts):
                self.onward[ends.src].append((e, ends.dst))
                self.backward[ends.dst].append((e, ends.src))
        limit = problem.clauses.path_limit
        self.most_links = topology.num_ranks if limit is None else limit
        #: Whether any link that may be used may carry any chunk.
        self.is_free = not problem.clauses.said("chunk", "group")

    def took(self, link: int, chunk: int) -> int:
        """Ticks of a send of a chunk over a link."""
        return self.alpha[link] + self.beta[link] * self.units[chunk]

    def count(self, trees: Iterable[Tree], sign: int = 1) -> None:
        """Count the sends of trees, or (sign -1) take them off."""
        for tree in trees:
            for link in set(tree.link_to.values()):
                for resource, alpha, beta in self.held[link]:
                    self.ticks[resource] += sign * (alpha + beta * self.units[tree.chunk])

    def restore(self, tree: Tree, link_to: dict[int, int]) -> None:
        """Give a tree its links of before."""
        self.count([tree], -1)
        tree.link_to = link_to
        self.count([tree])

    def cut(self, tree: Tree, rank: int) -> None:
        """Take away the link by which a tree reaches a rank."""
        self.restore(tree, {other: link for other, link in tree.link_to.items() if other != rank})

    def busy_after(self, link: int, chunk: int) -> int:
        """The most ticks of any resource of a link, were a chunk sent over it too."""
        units = self.units[chunk]
        return max((self.ticks[q] + a + b * units for q, a, b in self.held[link]), default=0)

    def way(
        self,
        tree: Tree,
        starts: dict[int, tuple[int, int]],
        ends: set[int],
        *,
        below: int | None = None,
    ) -> list[tuple[int, int]] | None:
        """The cheapest way from ranks that a tree reaches to one of others: (rank, link) hop by hop.

        Parameters
        ----------
        starts : dict of rank to (int, int)
            Ticks at which each is reached, and over how many links.
        below : int, optional
            No resource on the way may be held for so many ticks or more.

        Returns
        -------
        list or None
            None where there is no such way.
        """
        chunk, reducing = tree.chunk, tree.reducing
        joins = self.backward if reducing else self.onward
        most = max(*self.ticks, 1)
        cost: dict[int, float] = {rank: ticks for rank, (ticks, _) in starts.items()}
        passed = {rank: links for rank, (_, links) in starts.items()}
        came: dict[int, tuple[int, int]] = {}
        queue: list[tuple[float, int]] = [(ticks, rank) for rank, ticks in cost.items()]
        heapq.heapify(queue)
        done: set[int] = set()
        while queue:
            here, rank = heapq.heappop(queue)
            if rank in done:
                continue
            done.add(rank)
            if rank in ends:
                found = []
                while rank in came:
                    link, before = came[rank]
                    found.append((rank, link))
                    rank = before
                return found[::-1]
            for link, other in joins[rank] if passed[rank] < self.most_links else ():
                if other in done or other in starts:
                    continue
                if not self.is_free and not self.problem.may_carry(link, chunk, reducing=reducing):
                    continue
                busy = self.busy_after(link, chunk)
                if below is not None and busy >= below:
                    continue
                price = here + self.took(link, chunk) * (1 + _BUSY_PRICE * min(1.0, busy / most) ** 3)
                if price < cost.get(other, float("inf")):
                    cost[other] = price
                    came[other], passed[other] = (link, rank), passed[rank] + 1
                    heapq.heappush(queue, (price, other))
        return None


def mend(roads: Roads, trees: Iterable[Tree]) -> bool:
    """Reach every target of every tree again; False if there is no way over links of one rank each end."""
    return all(_mend_one(roads, tree) for tree in trees)


def lighten(roads: Roads, trees: Sequence[Tree], *, ceiling: int, deadline: float) -> None:
    """Lead chunks round the busiest resource while that makes it less busy than it is, down to a ceiling.

    Parameters
    ----------
    ceiling : int
        Ticks; a resource that is held for no longer is left alone.
    deadline : float
        On the clock of `time.monotonic`.
    """
    while time.monotonic() < deadline:
        peak = max(roads.ticks, default=0)
        if peak <= ceiling:
            return
        busiest = roads.ticks.index(peak)
        holders = {e for e, held in enumerate(roads.held) if any(q == busiest for q, _, _ in held)}
        for tree in trees:
            passing = [rank for rank, e in tree.link_to.items() if e in holders]
            if any(_lead_round(roads, tree, rank, peak) for rank in passing):
                break
            if time.monotonic() > deadline:
                return
        else:
            return


def _lead_round(roads: Roads, tree: Tree, rank: int, peak: int) -> bool:
    """Reach a rank by another way, on which nothing gets as busy as the peak; False if there is none."""
    kept = dict(tree.link_to)
    roads.cut(tree, rank)
    if _mend_one(roads, tree, below=peak):
        return True
    roads.restore(tree, kept)
    return False


def _mend_one(roads: Roads, tree: Tree, *, below: int | None = None) -> bool:
    problem = roads.problem
    depths = tree.depths(problem, roads)
    if tree.targets <= depths.keys():
        return True
    roads.count([tree], -1)
    if tree.reducing:
        # A link of several sources brings the contributions of all: those led elsewhere would count twice.
        links = problem.topology.links
        tree.link_to = {r: e for r, e in tree.link_to.items() if len(links[e].srcs) == 1}
        depths = tree.depths(problem, roads)
    roads.count([tree])
    lost = tree.targets - depths.keys()
    while lost:
        ends = _leading_to(problem, tree, lost, depths)
        way = roads.way(tree, depths, ends, below=below)
        if way is None:
            return False
        roads.count([tree], -1)
        tree.link_to.update(way)
        roads.count([tree])
        depths = tree.depths(problem, roads)
        lost = tree.targets - depths.keys()
    roads.count([tree], -1)
    tree.prune(problem)
    roads.count([tree])
    tree.is_mended = True
    return True


def _leading_to(problem: Problem, tree: Tree, lost: set[int], reached: Collection[int]) -> set[int]:
    """Lost targets, and the ranks before them that are cut off with them."""
    ends: set[int] = set()
    pending = list(lost)
    while pending:
        rank = pending.pop()
        if rank not in ends and rank not in reached:
            ends.add(rank)
            if rank in tree.link_to:
                pending.extend(tree.feeders(problem, rank))
    return ends


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
                tree.link_to.setdefault(rank, transfer.link)
    tree.prune(problem)


def _sum_trees(problem: Problem, c: int, transfers: Sequence[Transfer]) -> list[Tree]:
    """How a sum comes together at one rank, and spreads from there."""
    data, links = problem.collective.chunks[c], problem.topology.links
    assert data.root is not None, "a combining chunk has a root"
    everyone = frozenset(data.origins)
    held = {rank: frozenset((rank,)) for rank in data.origins}
    complete = [rank for rank in data.origins if held[rank] == everyone]
    carried: dict[int, frozenset[int]] = {}
    inwards: dict[int, int] = {}
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
            inwards.update(dict.fromkeys(ends.srcs, transfer.link))
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
        reduction.link_to = {rank: link for rank, link in inwards.items() if rank != root}
        reduction.prune(problem)
        _spread(problem, spreading, outwards)
    return [reduction, spreading]


def _events(transfers: Sequence[Transfer]) -> Iterator[tuple[bool, int]]:
    """(whether it is an arrival, transfer) in order of time; at one moment arrivals come first."""
    moments = [(t.start_ticks, 1, i) for i, t in enumerate(transfers)]
    moments += [(t.end_ticks, 0, i) for i, t in enumerate(transfers)]
    for _, starts, i in sorted(moments):
        yield not starts, i
