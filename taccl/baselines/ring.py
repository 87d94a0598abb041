"""The ring algorithm: chunks go round, and rings of ranks in which each has a fast link to the next."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import permutations, product
from typing import TYPE_CHECKING

import numpy as np

from taccl.arguments import checked
from taccl.baselines.routes import ShortestRoutes
from taccl.baselines.spread import (
    Steps,
    chunks_of_starts,
    cut_while_it_pays,
    fastest,
    require_everywhere,
    run,
)
from taccl.caching import cached
from taccl.topology.clusters import nested_order

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence

    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.topology.topology import Topology

    Nodes = Sequence[Sequence[int]]

    #: A ring of ranks, and the chunks at each place of it.
    LoadedRing = tuple[Sequence[int], Sequence[Sequence[int]]]


#: How many partial orders one search looks at before it gives up.
_MAX_VISITS = 20_000

#: How many rings a set may have.
_MAX_RINGS = 8


@checked
def ring(problem: Problem, *, cut: bool = True) -> Schedule:
    """A schedule in which every chunk goes round a ring of ranks, and reductions come round it.

    Four forms compete, and the `producer` names the fastest. They have one ring or several, with chunks dealt
    out by the rings' speed. Chunks go round one way, or half of the ring each way. Only the merging clauses
    of the sketch apply.

    NDv2's ring runs over its double links; steps that no link joins are relayed.

    Parameters
    ----------
    problem : Problem
        What is to be done.
    cut : bool
        Whether chunks may be cut, so that every ring has one for each rank, or more.

    Raises
    ------
    CollectiveError
        If a chunk does not concern every rank, as in alltoall.
    TopologyError
        If no links lead from one rank to another.

    References
    ----------
    P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", Journal
    of Parallel and Distributed Computing 69 (2009). Several rings at once, one crossing of nodes each: the
    NVIDIA Collective Communications Library.
    """
    require_everywhere(problem, baseline="ring")
    num_rings = len(find_rings(problem.topology, ShortestRoutes.of(problem).ticks))
    # So that every rank has a chunk on each ring.
    parts = -(-num_rings * problem.topology.num_ranks // max(1, problem.collective.num_chunks))
    make = partial(_fastest_rings, num_rings=num_rings)
    return cut_while_it_pays(problem, make, name="ring", cut=cut, parts=max(2, parts))


def _fastest_rings(problem: Problem, *, num_rings: int) -> Schedule:
    """The fastest form; where every rank has a chunk for each ring, one ring alone is not tried."""
    own = Counter(
        chunk.root if chunk.root is not None else chunk.origins[0] for chunk in problem.collective.chunks
    )
    are_full = min(own[rank] for rank in range(problem.topology.num_ranks)) >= num_rings
    numbers = (None,) if are_full else (1, None)
    return fastest(run(problem, partial(_go_round, max_rings=n, ways=way)) for n in numbers for way in (1, 2))


def pass_round(spread: Steps, rings: Sequence[LoadedRing], ways: int) -> None:
    """Pass chunks round rings, all rings at once: one way, or (`ways` 2) half the ring each way."""
    longest = max((len(order) for order, _ in rings), default=0)
    for step in range(longest - 1):
        moves = []
        for order, chunks_of_place in rings:
            size = len(order)
            forward = size // 2 if ways == 2 else size - 1
            for way, hops in ((1, forward), (-1, size - 1 - forward)):
                if step >= hops:
                    continue
                for place, chunks in enumerate(chunks_of_place):
                    src, dst = (place + way * step) % size, (place + way * (step + 1)) % size
                    moves.append((chunks, order[src], order[dst]))
        spread.step(moves)


def _go_round(problem: Problem, *, max_rings: int | None, ways: int) -> Schedule:
    spread = Steps(problem)
    rings = find_rings(problem.topology, spread.routes.ticks)[:max_rings]
    slowest = [_slowest_step(spread, order) for order in rings]
    num_dealt = [0] * len(rings)
    chunks_of_ring: list[list[list[int]]] = [[[] for _ in order] for order in rings]
    place = [{rank: i for i, rank in enumerate(order)} for order in rings]
    for rank, chunks in enumerate(chunks_of_starts(problem)):
        for c in chunks:
            r = min(range(len(rings)), key=lambda r: ((num_dealt[r] + 1) * slowest[r], r))
            num_dealt[r] += 1
            chunks_of_ring[r][place[r][rank]].append(c)
    pass_round(spread, list(zip(rings, chunks_of_ring, strict=True)), ways)
    number = "1 ring" if len(rings) == 1 else f"{len(rings)} rings"
    return spread.schedule(producer=f"ring ({number}, {'one way' if ways == 1 else 'both ways'})")


def _slowest_step(spread: Steps, order: Sequence[int]) -> int:
    """Longest time of any step of a ring, relays included; at least 1."""
    costs = spread.problem.costs
    units = int(costs.chunk_units.max(initial=1))
    routes = (spread.routes.route(src, dst) for src, dst in zip(order, [*order[1:], order[0]], strict=True))
    return max(1, *(sum(costs.duration(e, units) for e in route) for route in routes))


@cached
def find_rings(topology: Topology, ticks: tuple[int, ...]) -> list[list[int]]:
    """Orders of all ranks, best first; of several, no two use the same links inside nodes.

    Each ring crosses from node to node once, by one link; later rings prefer links that share no resource
    with those of earlier ones. If there is no such ring (no ring of links joins the ranks, or nodes differ),
    ranks follow in numerical order, node by node. Its steps may need relays. Nodes with the most shared
    paths, as in pods of racks, are adjacent in that order.
    """
    routes = ShortestRoutes(topology, ticks)
    nodes = near_nodes(topology, routes)
    every_rank = [rank for ranks in nodes for rank in ranks]
    if topology.num_ranks < 3 or len({len(ranks) for ranks in topology.ranks_of_node}) > 1:
        return [every_rank]
    rings: list[list[int]] = []
    used_links: set[int] = set()
    used_resources: set[int] = set()
    while len(rings) < _MAX_RINGS:
        ring = _next_ring(topology, nodes, routes, used_links, used_resources)
        if ring is None and rings and topology.num_nodes > 1:
            # Behind a crossbar, or once links run out, rings may share them inside nodes.
            ring = _next_ring(topology, nodes, routes, set(), used_resources)
        if ring is None:
            break
        rings.append(ring)
        for src, dst in zip(ring, ring[1:] + ring[:1], strict=True):
            for a, b in ((src, dst), (dst, src)):
                direct = routes.direct(a, b)
                if direct is None:
                    continue
                used_links.add(direct[1])
                if (a, b) == (src, dst) and topology.is_internode(direct[1]):
                    used_resources.update(h.resource for h in topology.holds_of_link[direct[1]])
    return rings or [every_rank]


def near_nodes(topology: Topology, routes: ShortestRoutes) -> Nodes:
    """Nodes in an order that keeps those together whose links hold less; as they are where all are alike."""
    nodes = topology.ranks_of_node
    held = np.zeros((len(nodes), len(nodes)))
    for (i, a), (j, b) in permutations(enumerate(ranks[0] for ranks in nodes), 2):
        direct = routes.direct(a, b)
        if direct is None:
            return nodes
        held[i, j] = sum(float(hold.beta_us_per_mb) for hold in topology.holds_of_link[direct[1]])
    if len(set(held[~np.eye(len(nodes), dtype=bool)].tolist())) < 2:
        return nodes
    return [nodes[i] for i in nested_order(held)]


def _next_ring(
    topology: Topology, nodes: Nodes, routes: ShortestRoutes, links: set[int], resources: set[int]
) -> list[int] | None:
    """A ring without the links inside nodes, and the resources between them, that earlier rings use."""
    for alternate in (False, True) if len(nodes) % 2 == 0 else (False,):
        path = _search(topology, nodes, routes, links, resources, alternate=alternate)
        if path is not None:
            walks = [path[::-1] if alternate and n % 2 else path for n in range(len(nodes))]
            return [ranks[local] for ranks, walk in zip(nodes, walks, strict=True) for local in walk]
    return None


def _search(
    topology: Topology,
    nodes: Nodes,
    routes: ShortestRoutes,
    links: set[int],
    resources: set[int],
    *,
    alternate: bool = False,
) -> list[int] | None:
    """A walk of local ranks, then left for the next node, whose slowest step is as fast as the search finds.

    All nodes have its steps; None without one. If they alternate, every other node is walked the other way
    round. (So rings close where only ranks of one local rank are linked between nodes, as on rails.)
    """
    size = len(nodes[0])

    def slowest(pairs: list[tuple[int, int]], usable: Callable[[int], bool]) -> int | None:
        found = [routes.direct(*pair) for pair in pairs]
        ticks = [each[0] for each in found if each is not None and usable(each[1])]
        return max(ticks) if len(ticks) == len(pairs) else None

    def crossing(first: int, last: int) -> int | None:
        ends = [(first, last) if alternate and n % 2 else (last, first) for n in range(len(nodes))]
        pairs = [
            (nodes[n][out], nodes[(n + 1) % len(nodes)][out if alternate else into])
            for n, (out, into) in enumerate(ends)
        ]
        return slowest(pairs, lambda e: not any(h.resource in resources for h in topology.holds_of_link[e]))

    def between(a: int, b: int) -> int | None:
        pairs = [(r[a], r[b]) for r in nodes] + [(r[b], r[a]) for r in nodes if alternate]
        return slowest(pairs, lambda e: e not in links)

    pairs = list(product(range(size), repeat=2))
    steps = {(a, b): ticks for a, b in pairs if (ticks := between(a, b)) is not None}
    #: From the last of a walk to the first: of the next node, or to where the ring begins.
    closings = steps
    if len(nodes) > 1:
        closings = {(a, b): ticks for a, b in pairs if (ticks := crossing(b, a)) is not None}
    closing_costs = sorted(set(closings.values()))
    for step_limit in sorted({*steps.values()} or {0}):
        ways: list[set[int]] = [set() for _ in range(size)]
        for (a, b), ticks in steps.items():
            if ticks <= step_limit:
                ways[a].add(b)
        for closing_limit in (closing_costs[:1] + closing_costs[-1:])[: len(closing_costs)]:
            closing = {pair for pair, ticks in closings.items() if ticks <= closing_limit}
            path = walk(ways, closing)
            if path is not None:
                return path
    return None


def walk(
    ways: Sequence[set[int]], closing: set[tuple[int, int]], shuffled: random.Random | None = None
) -> list[int] | None:
    """Depth-first search that tries ranks with few ways on first (Warnsdorff's rule); the others by number.

    Or by chance, if `shuffled` is given.
    """
    visits = 0

    def onward(rank: int, visited: set[int]) -> Iterator[int]:
        left = sorted(ways[rank] - visited)
        if shuffled is not None:
            shuffled.shuffle(left)
        return iter(sorted(left, key=lambda b: len(ways[b] - visited)))

    for start in sorted({first for _, first in closing}):
        path, visited = [start], {start}
        branches = [onward(start, visited)]
        while path:
            if len(path) == len(ways) and (path[-1], start) in closing:
                return path
            following = next(branches[-1], None)
            visits += 1
            if visits > _MAX_VISITS:
                return None
            if following is None:
                branches.pop()
                visited.discard(path.pop())
            else:
                path.append(following)
                visited.add(following)
                branches.append(onward(following, visited))
    return None
