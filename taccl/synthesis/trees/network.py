"""Capacities of a topology as a network: an arc for each resource that bytes pass, nodes where they join.

A link is a path: resources near its source first, then its own, then those near its destination. Where all
links of a resource go on to another, these meet in a node that is no rank, such as a switch. Nothing here
depends on which kind of machine that is.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from taccl.errors import NoSolutionError
from taccl.problem.costs import hold_columns, link_ends, wide_links
from taccl.synthesis.kernels.flow_kernel import largest_shortfall

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from numpy.typing import NDArray

    from taccl.problem.problem import Problem

    Ints = NDArray[np.int64]

#: Capacities above this are not computed, so that sums of them stay whole 64-bit numbers.
_MOST_CAPACITY = 2**48
#: Units per tick over arcs that no bytes hold.
_UNLIMITED = Fraction(2**40)


@dataclass(frozen=True)
class Network:
    """Arcs between ranks, numbered first, and other nodes.

    - `tail`, `head`, (num_arcs,): Nodes.
    - `alpha`, `beta`, (num_arcs,): Ticks for which a send holds an arc, at all and for each unit of its size.
    - `share`: Share of each arc that is used, such that no switch sends more than it receives.
    - `arcs_of_link`: {link: its arcs in order}.
    """

    num_ranks: int
    num_nodes: int
    tail: Ints
    head: Ints
    alpha: Ints
    beta: Ints
    share: tuple[Fraction, ...]
    arcs_of_link: dict[int, tuple[int, ...]]

    def matrix(self, capacity: Sequence[int] | Ints) -> Ints:
        """(num_nodes + 1, num_nodes + 1) capacities; the last node is a source of all chunks."""
        found = np.zeros((self.num_nodes + 1,) * 2, np.int64)
        np.add.at(found, (self.tail, self.head), np.asarray(capacity, np.int64))
        return found


def network_of(problem: Problem) -> Network | None:
    """The network of a problem's links; None if their resources follow one another in no fixed order."""
    src, dst = (ends.tolist() for ends in link_ends(problem.topology))
    paths, cost = _paths(problem, src, dst)
    firsts = _of_one_rank(paths, src, 0)
    lasts = _of_one_rank(paths, dst, -1)
    joined = _Joined()
    arcs: dict[Hashable, tuple[Hashable, Hashable]] = {}
    for e, path in paths.items():
        begin, end = ("rank", src[e]), ("rank", dst[e])
        if path[0] not in firsts:  # which several ranks share: an arc from each
            cost[begin, path[0]] = cost[path[0]]
            path.insert(0, (begin, path[0]))
        if path[-1] not in lasts:
            cost[path[-1], end] = cost[path[-1]]
            path.append((path[-1], end))
        for each in path:
            arcs.setdefault(each, (("tail", each), ("head", each)))
        joined.join(begin, ("tail", path[0]))
        for one, other in pairwise(path):
            joined.join(("head", one), ("tail", other))
        joined.join(("head", path[-1]), end)
    num_ranks = problem.topology.num_ranks
    node: dict[Hashable, int] = {}
    for rank in range(num_ranks):
        if node.setdefault(joined.root(("rank", rank)), rank) != rank:
            return None
    ends = [[node.setdefault(joined.root(end), len(node)) for end in both] for both in arcs.values()]
    tail, head = np.array(ends, np.int64).reshape(-1, 2).T
    if (tail == head).any():
        return None
    number = {each: i for i, each in enumerate(arcs)}
    alpha, beta = np.array([cost[each] for each in arcs], np.int64).T
    share = _shares(num_ranks, tail.tolist(), head.tolist(), beta.tolist())
    arcs_of_link = {e: tuple(number[each] for each in path) for e, path in paths.items()}
    return Network(num_ranks, len(node), tail, head, alpha, beta, share, arcs_of_link)


def _paths(
    problem: Problem, src: list[int], dst: list[int]
) -> tuple[dict[int, list[Hashable]], dict[Hashable, tuple[int, int]]]:
    """{link: its resources in order} and {resource: ticks for which a send holds it, alpha and beta}.

    Those that fewer ranks share are nearer to these. A link's own resource counts where it is slower than all
    that it shares.
    """
    holds, costs, wide = hold_columns(problem.topology), problem.costs, set(wide_links(problem.topology))
    paths: dict[int, list[Hashable]] = {e: [] for e in problem.links_allowed if e not in wide}
    held: dict[int, list[tuple[int, bool]]] = {e: [] for e in paths}
    ends: dict[int, tuple[set[int], set[int], list[int]]] = defaultdict(lambda: (set(), set(), []))
    cost: dict[Hashable, tuple[int, int]] = {}
    columns = (holds.link, holds.resource, holds.receives, costs.hold_alpha, costs.hold_beta)
    for e, r, receives, alpha, beta in zip(*(each.tolist() for each in columns), strict=True):
        if e in paths:
            held[e].append((r, receives))
            ends[r][0].add(src[e])
            ends[r][1].add(dst[e])
            ends[r][2].append(e)
            known = cost.get(r, (0, 0))
            cost[r] = max(known[0], alpha), max(known[1], beta)

    def width(r: int, side: int) -> tuple[int, int, int]:
        return len(ends[r][side]), len(ends[r][2]), r

    for e, path in paths.items():
        shared = [each for each in held[e] if len(ends[each[0]][2]) > 1]
        own = [r for r, _ in held[e] if len(ends[r][2]) == 1]
        path += sorted([r for r, receives in shared if not receives], key=partial(width, side=0))
        slowest = max(own, key=lambda r: cost[r][1], default=None)
        if slowest is not None and all(cost[r][1] < cost[slowest][1] for r, _ in shared):
            path.append(slowest)
        path += sorted([r for r, receives in shared if receives], key=partial(width, side=1))[::-1]
        if not path:
            path.append(("free", e))
            cost["free", e] = 0, 0
    return paths, cost


def _of_one_rank(paths: dict[int, list[Hashable]], ranks: list[int], place: int) -> set[Hashable]:
    """Resources that are at one end of every link that has them, beside one and the same rank.

    - `ranks`: Rank at that end of each link.
    - `place`: 0 for the first end of paths, -1 for the last.
    """
    beside: dict[Hashable, set[int]] = defaultdict(set)
    inside: set[Hashable] = set()
    for e, path in paths.items():
        beside[path[place]].add(ranks[e])
        inside.update(each for each in path if each != path[place])
    return {each for each, found in beside.items() if len(found) == 1} - inside


class _Joined:
    """Points that are joined into nodes (union-find)."""

    def __init__(self) -> None:
        self._above: dict[Hashable, Hashable] = {}

    def root(self, point: Hashable) -> Hashable:
        """The point that stands for all that are joined with one."""
        while (above := self._above.get(point, point)) != point:
            self._above[point] = point = self._above.get(above, above)
        return point

    def join(self, one: Hashable, other: Hashable) -> None:
        """Make two points one node."""
        self._above[self.root(one)] = self.root(other)


def _shares(num_ranks: int, tail: list[int], head: list[int], beta: list[int]) -> tuple[Fraction, ...]:
    """Shares of arcs such that as much may leave a switch as may enter it.

    A switch does not multiply chunks, as minimum cuts would let it. Where more could leave, all arcs out of
    it have the same part of their rate.
    """
    rate = np.array([Fraction(1, each) if each else _UNLIMITED for each in beta], object)
    share = np.full(len(beta), Fraction(1), object)
    nodes = sorted({*tail, *head} - set(range(num_ranks)))
    for _ in nodes:  # a lower rate into the next switch may lower the rates out of that
        for node in nodes:
            into, out = np.array(head) == node, np.array(tail) == node
            if (received := rate[into].sum()) < (sent := rate[out].sum()):
                rate[out] *= Fraction(received, sent)
                share[out] *= Fraction(received, sent)
    return tuple(share.tolist())


def least_time(network: Network, counts: Ints, units: int, known: int = 1) -> tuple[int, Ints]:
    """Least ticks by which arcs bring every chunk to every rank, and chunks that each arc passes by then.

    Raised from cut to cut: a set of nodes that is too narrow, by maximum flows, tells how long it takes.

    - `counts`, (num_ranks,): Number of chunks that start at each rank.
    - `units`: Size of a chunk.
    - `known`: A lower bound in ticks.
    """
    total, held = int(counts.sum()), (network.alpha + units * network.beta).tolist()
    used = [
        (part.numerator, ticks * part.denominator) for part, ticks in zip(network.share, held, strict=True)
    ]

    def passed(ticks: int) -> Ints:
        return np.array([min(part * ticks // took, total) if took else total for part, took in used])

    sinks = np.arange(network.num_ranks)
    while (inside := find_cut(network, passed(known), counts, sinks)) is not None:
        entering, needed = _entering(network, inside), total - int(counts[inside[: network.num_ranks]].sum())
        most = known + 1
        while passed(most)[entering].sum() < needed:
            most = known + 2 * (most - known)
        times = range(known + 1, most)
        known = times.start + bisect_left(times, needed, key=lambda t: passed(t)[entering].sum())
    return known, passed(known)


def trees_per_chunk(network: Network, counts: Ints) -> tuple[Fraction, int]:
    """Least time per unit of a chunk if chunks are cut at will; and the least number of parts that reach it.

    Latencies do not count. The number of parts makes all capacities within that time whole; 0 if capacities
    are too large to be computed.
    """
    total = int(counts.sum())
    beta = [int(each) / share for each, share in zip(network.beta, network.share, strict=True)]
    sinks, time = np.arange(network.num_ranks), Fraction(0)
    while True:
        parts = math.lcm(*((time / each).denominator for each in beta if each))
        if parts * total > _MOST_CAPACITY:
            return time, 0
        chosen = [min(int(parts * time / each), parts * total) if each else parts * total for each in beta]
        inside = find_cut(network, np.array(chosen, np.int64), parts * counts, sinks)
        if inside is None:
            return time, parts
        outside = total - int(counts[inside[: network.num_ranks]].sum())
        rates = (1 / beta[arc] for arc in np.flatnonzero(_entering(network, inside)))
        time = outside / sum(rates, Fraction(0))


def find_cut(network: Network, capacity: Ints, counts: Ints, sinks: Ints) -> NDArray[np.bool_] | None:
    """Nodes that too few chunks can enter, (num_nodes,) bool; None if there is no such set."""
    room, source = network.matrix(capacity), network.num_nodes
    room[source, : network.num_ranks] = counts
    level, total = np.zeros(len(room), np.int64), int(counts.sum())
    if not largest_shortfall(room, source, sinks, total, 1, level):
        return None
    return level[:source] < 0


def _entering(network: Network, inside: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Arcs into a set of nodes, (num_arcs,) bool."""
    entering = ~inside[network.tail] & inside[network.head]
    if not entering.any():
        raise NoSolutionError("no link enters a set of ranks that needs chunks", bound_us=None)
    return entering
