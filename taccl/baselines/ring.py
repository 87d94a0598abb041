"""The ring algorithm, and the search for rings of fast links."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from heapq import heapify, heapreplace
from itertools import permutations, product

import numpy as np
from numpy.typing import ArrayLike

from taccl._internal.arguments import checked
from taccl._internal.caching import cached
from taccl.baselines.chunking import cut_while_it_pays, held_at_start, require_everywhere, run
from taccl.baselines.forms import fastest_form
from taccl.baselines.moves import Ints, Moves, Row, Sends, routed
from taccl.baselines.routes import ShortestRoutes
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.topology.clusters import nested_order
from taccl.topology.topology import Topology

Nodes = Sequence[Sequence[int]]


#: Max partial paths that a search visits, and further ones in each of the searches with random ties after it.
_MAX_VISITS, _FURTHER_VISITS = 20_000, 1250
#: Max searches with random ties; together they visit as many partial paths as the first search.
_MAX_RESTARTS = _MAX_VISITS // _FURTHER_VISITS

#: The search for a ring whose most expensive step is as cheap as possible tries limits on the cost of a step:
#: all in ascending order if there are at most this many, else by bisection.
_FEW_LIMITS = 8

#: Max rings to find.
_MAX_RINGS = 8


@checked
def ring(problem: Problem, *, cut: bool = True) -> Schedule:
    """Ring schedule: every chunk travels along a ring of ranks; reductions run in reverse.

    Four forms are tried, and the `producer` names the fastest. They have one ring, or several to which chunks
    are dealt by the rings' speed. Chunks go all the way round in one direction, or half way in both. Only the
    merging clauses of the sketch apply.

    On NDv2 the ring uses the double links. Steps without a link are relayed.

    Parameters
    ----------
    problem : Problem
        The problem to solve.
    cut : bool
        True to cut chunks, so that every ring has at least one for each rank.

    Raises
    ------
    CollectiveError
        If a chunk does not concern every rank, as in alltoall.
    TopologyError
        If no links lead from one rank to another.

    References
    ----------
    P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", Journal
    of Parallel and Distributed Computing 69 (2009). Several rings that each cross nodes once are used by
    the NVIDIA Collective Communications Library.
    """
    require_everywhere(problem, baseline="ring")
    num_rings = len(find_rings(problem.topology, ShortestRoutes.of(problem).ticks))
    # Cut so that every rank has a chunk on each ring.
    parts = -(-num_rings * problem.topology.num_ranks // max(1, problem.collective.num_chunks))
    make = partial(_fastest_rings, num_rings=num_rings)
    return cut_while_it_pays(problem, make, name="ring", cut=cut, parts=max(2, parts))


def _fastest_rings(problem: Problem, *, num_rings: int) -> Schedule:
    """Fastest schedule over the forms: one or several rings, in one direction or both.

    A single ring is not tried if every rank has a chunk for each of the several rings.
    """
    own = Counter(
        chunk.root if chunk.root is not None else chunk.origins[0] for chunk in problem.collective.chunks
    )
    are_full = min(own[rank] for rank in range(problem.topology.num_ranks)) >= num_rings
    forms = []
    for most in (num_rings,) if are_full else (1, num_rings):
        rings = "1 ring" if most == 1 else f"{most} rings"
        for directions, text in ((1, "one way"), (2, "both ways")):
            spread = partial(_go_round, max_rings=most, directions=directions)
            forms.append((f"ring ({rings}, {text})", run(problem, spread)))
    return fastest_form(problem, forms)


def around(
    order: ArrayLike,
    chunk: ArrayLike,
    place: ArrayLike,
    *,
    directions: int = 1,
    first: int = 0,
    adds: bool = False,
) -> Iterator[Row]:
    """Yield moves of chunks that go round a ring from `place` on; with `adds`, of sums that end there.

    - `order`, (..., size) array: Ranks of the ring, or of several rings, in order.
    - `chunk`, `place`: Chunks, and each one's position on its ring; arrays that broadcast together.
    - `directions`: 1 if chunks go all around in one direction, 2 if half around in each direction.
    - `first`: Step of the first moves.
    """
    order = np.asarray(order)
    size = order.shape[-1]
    forward = size // 2 if directions == 2 else size - 1
    for way, hops in ((1, forward), (-1, size - 1 - forward)):
        for step in range(hops):
            at = np.asarray(place) + way * (step + adds)
            yield first + step, chunk, order[..., at % size], order[..., (at + way) % size], adds


def on_rings(
    rings: Iterable[ArrayLike], holder: Ints, chunk: Ints, dealt: Ints, *, directions: int = 1
) -> Iterator[Row]:
    """Yield moves of chunks from their holders round the rings to which they are dealt.

    - `holder`, `chunk`, `dealt`: Rank, chunk, and index of its ring; arrays of equal length.
    """
    for number, order in enumerate(rings):
        ranks, here = np.argsort(order), np.flatnonzero(dealt == number)
        place = ranks[np.searchsorted(order, holder[here], sorter=ranks)]
        by_place = np.argsort(place, kind="stable")
        yield from around(order, chunk[here][by_place], place[by_place], directions=directions)


def _go_round(problem: Problem, *, max_rings: int, directions: int) -> Sends:
    rings = find_rings(problem.topology, ShortestRoutes.of(problem).ticks)[:max_rings]
    holder, chunk, _ = held_at_start(problem)
    dealt = _dealt([_slowest_step(problem, order) for order in rings], len(chunk))
    return routed(problem, Moves.of(on_rings(rings, holder, chunk, dealt, directions=directions)))


def _dealt(slowest: Sequence[int], count: int) -> Ints:
    """Ring of each chunk, (count,): each chunk in turn goes to the ring that would finish it first."""
    pending = [(ticks, number) for number, ticks in enumerate(slowest)]
    heapify(pending)
    found = np.empty(count, np.int64)
    for i in range(count):
        ticks, number = pending[0]
        found[i] = number
        heapreplace(pending, (ticks + slowest[number], number))
    return found


def _slowest_step(problem: Problem, order: Sequence[int]) -> int:
    """Longest time of a step of a ring, relays included, in ticks; at least 1."""
    costs, routes = problem.costs, ShortestRoutes.of(problem)
    units = int(costs.chunk_units.max(initial=1))
    hops = (routes.route(src, dst) for src, dst in zip(order, [*order[1:], order[0]], strict=True))
    return max(1, *(sum(costs.duration(e, units) for e in route) for route in hops))


@cached
def find_rings(topology: Topology, ticks: tuple[int, ...], most: int = _MAX_RINGS) -> list[list[int]]:
    """Rings as lists of all ranks, best first; different rings share no links inside nodes, if possible.

    Each ring crosses from node to node once, by one link; later rings prefer links that share no resource
    with those of earlier rings. Nodes that share the most network paths (a rack, then a pod) are adjacent. If
    links form no such ring, or nodes differ in size, there is one ring. It passes nodes one by one, with the
    ranks of each node in numerical order, and may need relays.

    - `most`: Max number of rings; each takes as long as the first.
    """
    routes = ShortestRoutes(topology, ticks)
    nodes = near_nodes(topology, routes)
    every_rank = [rank for ranks in nodes for rank in ranks]
    if topology.num_ranks < 3 or len({len(ranks) for ranks in topology.ranks_of_node}) > 1:
        return [every_rank]
    rings: list[list[int]] = []
    used_links: set[int] = set()
    used_resources: set[int] = set()
    while len(rings) < most:
        ring = _next_ring(topology, nodes, routes, used_links, used_resources)
        if ring is None and rings and topology.num_nodes > 1:
            # Behind a crossbar, or once links run out, rings may share links inside nodes.
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
    """Nodes, ordered so that nodes joined by links of low cost are adjacent.

    Their order is unchanged if the links between their first ranks all cost the same, or one is missing.
    """
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
    """Ring that uses none of the given links inside nodes and resources between nodes; None if none is found.

    - `links`, `resources`: Links and resources that earlier rings use.
    """
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
    """Order of local ranks, the same in every node, along which a ring passes through all nodes.

    A link leads from the last rank of a node to the first one of the next node. The slowest step is as fast
    as the search can make it. None if no such order is found.

    - `alternate`: True to traverse every other node backwards, so that rings close if only equal local ranks
      are linked between nodes (rails).
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
    #: {(last local rank, first local rank of the next node): ticks}; with one node, the ring's closing step.
    closings = steps
    if len(nodes) > 1:
        closings = {(a, b): ticks for a, b in pairs if (ticks := crossing(b, a)) is not None}
    closing_costs = sorted(set(closings.values()))
    step_limits = sorted({*steps.values()} or {0})

    def path_within(step_limit: int) -> list[int] | None:
        next_ranks: list[set[int]] = [set() for _ in range(size)]
        for (a, b), ticks in steps.items():
            if ticks <= step_limit:
                next_ranks[a].add(b)
        for closing_limit in (closing_costs[:1] + closing_costs[-1:])[: len(closing_costs)]:
            closing = {pair for pair, ticks in closings.items() if ticks <= closing_limit}
            path = walk(next_ranks, closing, again=step_limit == step_limits[-1])
            if path is not None:
                return path
        return None

    if len(step_limits) <= _FEW_LIMITS:
        return next(filter(None, map(path_within, step_limits)), None)
    best, low, high = None, 0, len(step_limits)
    while low < high:  # bisection: a looser limit leaves all steps of a tighter one
        middle = (low + high) // 2
        path = path_within(step_limits[middle])
        best, low, high = (best, middle + 1, high) if path is None else (path, low, middle)
    return best


def walk(
    next_ranks: Sequence[set[int]], closing: set[tuple[int, int]], shuffled: random.Random | None = None,
    *, again: bool = True,
) -> list[int] | None:  # fmt: skip
    """Hamiltonian path by depth-first search; ranks with few onward links first (Warnsdorff's rule).

    Ties are broken by number, or randomly if `shuffled` is given. None if no path is found.

    - `next_ranks`: Ranks to which each rank may go on.
    - `closing`: Admissible (last, first) pairs of a path.
    - `again`: True to start again after `_MAX_VISITS`, up to `_MAX_RESTARTS` times with random ties.
    """
    path, is_over = _walk(next_ranks, closing, shuffled, _MAX_VISITS)
    for seed in range(_MAX_RESTARTS if again else 0):
        if path is not None or is_over:
            break
        path, is_over = _walk(next_ranks, closing, random.Random(seed), _FURTHER_VISITS)
    return path


def _walk(
    next_ranks: Sequence[set[int]], closing: set[tuple[int, int]], shuffled: random.Random | None, most: int
) -> tuple[list[int] | None, bool]:
    """(path or None, True if the search is over) of one depth-first search of `most` partial paths."""
    visits = 0

    def onward(rank: int, visited: set[int], lasts: set[int]) -> Iterator[int]:
        if lasts <= visited:  # no later rank could close the path
            return iter(())
        left = sorted(next_ranks[rank] - visited)
        if shuffled is not None:
            shuffled.shuffle(left)
        return iter(sorted(left, key=lambda b: len(next_ranks[b] - visited)))

    for start in sorted({first for _, first in closing}):
        path, visited = [start], {start}
        lasts = {last for last, first in closing if first == start}
        branches = [onward(start, visited, lasts)]
        while path:
            if len(path) == len(next_ranks) and (path[-1], start) in closing:
                return path, True
            following = next(branches[-1], None)
            visits += 1
            if visits > most:
                return None, False
            if following is None:
                branches.pop()
                visited.discard(path.pop())
            else:
                path.append(following)
                visited.add(following)
                branches.append(onward(following, visited, lasts))
    return None, True
