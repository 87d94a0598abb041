"""Topology as a capacitated network, in which edge splitting replaces switches by direct arcs.

The network has an arc for each resource that data passes. A link is a path of arcs: resources shared near its
source, then its own, then those shared near its destination. Where a link passes from one resource to the
next, the two arcs meet in a node that is no rank: a switch. The topology need not declare switches.

Splitting off a switch moves capacity to an arc that bypasses it, from an arc into the switch and an arc out
of it. Every set of nodes must retain enough incoming capacity; maximum flows determine how much may move.
This is repeated for every switch, until arcs join ranks only. Each arc then stands for the path of a link.

References
----------
A. Frank, "On connectivity properties of Eulerian digraphs" (1988). J. Bang-Jensen, A. Frank and B. Jackson,
"Preserving and increasing local edge-connectivity in mixed graphs", SIAM Journal on Discrete Mathematics 8
(1995). L. Zhao et al., "ForestColl", arXiv 2402.06787 (2024).
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

from taccl._internal.arrays import Ints
from taccl.errors import NoSolutionError
from taccl.problem.costs import hold_columns, link_ends, wide_links
from taccl.synthesis.kernels.flow_kernel import largest_shortfall

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from numpy.typing import NDArray

    from taccl.problem.problem import Problem


#: Max capacity that is computed, so that sums of capacities fit into 64-bit integers.
_MOST_CAPACITY = 2**48
#: Rate assumed for arcs without bandwidth cost, in units per tick.
_UNLIMITED = Fraction(2**40)


@dataclass(frozen=True)
class Network:
    """Directed network of ranks, which are numbered first, and switches.

    - `tail`, `head`, (num_arcs,): Nodes of each arc.
    - `alpha`, `beta`, (num_arcs,): A send of u units occupies an arc for ``alpha + u * beta`` ticks.
    - `share`: Usable share of each arc, such that no switch sends more than it receives.
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
        """Capacities between nodes as a matrix, whose additional last node is the source of all chunks."""
        found = np.zeros((self.num_nodes + 1,) * 2, np.int64)
        np.add.at(found, (self.tail, self.head), np.asarray(capacity, np.int64))
        return found


def network_of(problem: Problem) -> Network | None:
    """The network of a problem's links; None if the order of resources along links is inconsistent."""
    src, dst = (ends.tolist() for ends in link_ends(problem.topology))
    paths, cost = _paths(problem, src, dst)
    firsts = _of_one_rank(paths, src, 0)
    lasts = _of_one_rank(paths, dst, -1)
    joined = _Joined()
    arcs: dict[Hashable, tuple[Hashable, Hashable]] = {}
    for e, path in paths.items():
        begin, end = ("rank", src[e]), ("rank", dst[e])
        if path[0] not in firsts:  # a port shared by several ranks: add an arc from each rank
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
    """({link: its resources in order}, {resource: (alpha, beta) ticks of a send on it}).

    The fewer ranks share a resource, the nearer to these ranks it is on the path. A resource that only one
    link uses is left out unless it is slower than all shared resources of the link.
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
    """Resources that occur only at the given end of paths, and there at a single rank.

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
    """Union-find of points that are joined into nodes."""

    def __init__(self) -> None:
        self._above: dict[Hashable, Hashable] = {}

    def root(self, point: Hashable) -> Hashable:
        """Representative of the node (all points that are joined) that contains `point`."""
        while (above := self._above.get(point, point)) != point:
            self._above[point] = point = self._above.get(above, above)
        return point

    def join(self, one: Hashable, other: Hashable) -> None:
        """Join two points into one node."""
        self._above[self.root(one)] = self.root(other)


def _shares(num_ranks: int, tail: list[int], head: list[int], beta: list[int]) -> tuple[Fraction, ...]:
    """Usable share of each arc's rate, so that no more data can leave a switch than can enter it.

    A switch does not multiply chunks, but minimum cuts would allow it. If more could leave than enter, all
    arcs out of the switch are scaled down equally.
    """
    rate = np.array([Fraction(1, each) if each else _UNLIMITED for each in beta], object)
    share = np.full(len(beta), Fraction(1), object)
    nodes = sorted({*tail, *head} - set(range(num_ranks)))
    for _ in nodes:  # a lower rate into the next switch may lower the rates out of it
        for node in nodes:
            into, out = np.array(head) == node, np.array(tail) == node
            if (received := rate[into].sum()) < (sent := rate[out].sum()):
                rate[out] *= Fraction(received, sent)
                share[out] *= Fraction(received, sent)
    return tuple(share.tolist())


def least_time(network: Network, counts: Ints, units: int) -> tuple[int, Ints]:
    """(least ticks for the arcs to bring every chunk to every rank, (num_arcs,) chunks per arc by then).

    The time is raised cut by cut: maximum flows find a set of nodes with too little incoming capacity, which
    determines the next time.

    - `counts`, (num_ranks,): Number of chunks that start at each rank.
    - `units`: Size of a chunk.
    """
    total, held = int(counts.sum()), (network.alpha + units * network.beta).tolist()
    used = [
        (part.numerator, ticks * part.denominator) for part, ticks in zip(network.share, held, strict=True)
    ]

    def passed(ticks: int) -> Ints:
        return np.array([min(part * ticks // took, total) if took else total for part, took in used])

    sinks, known = np.arange(network.num_ranks), 1
    while (inside := find_cut(network, passed(known), counts, sinks)) is not None:
        entering, needed = _entering(network, inside), total - int(counts[inside[: network.num_ranks]].sum())
        most = known + 1
        while passed(most)[entering].sum() < needed:
            most = known + 2 * (most - known)
        times = range(known + 1, most)
        known = times.start + bisect_left(times, needed, key=lambda t: passed(t)[entering].sum())
    return known, passed(known)


def trees_per_chunk(network: Network, counts: Ints) -> tuple[Fraction, int]:
    """(least ticks per unit of chunk size with arbitrarily fine chunks, parts per chunk that suffice for it).

    Latencies do not count. With that number of parts all capacities are whole numbers; the number is 0 if
    capacities exceed `_MOST_CAPACITY`.
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
    """(num_nodes,) bool: a set of nodes that too few chunks can enter; None if there is none."""
    room, source = network.matrix(capacity), network.num_nodes
    room[source, : network.num_ranks] = counts
    level, total = np.zeros(len(room), np.int64), int(counts.sum())
    if not largest_shortfall(room, source, sinks, total, 1, level):
        return None
    return level[:source] < 0


def _entering(network: Network, inside: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(num_arcs,) bool: True for arcs into a set of nodes."""
    entering = ~inside[network.tail] & inside[network.head]
    if not entering.any():
        raise NoSolutionError("no link enters a set of ranks that needs chunks", bound_us=None)
    return entering


#: Consecutive arcs of the network.
Path = tuple[int, ...]


def split_switches(
    network: Network, capacity: Ints, counts: Ints, *, evenly: bool = True
) -> tuple[dict[int, int] | None, bool]:
    """{link: chunks that it may carry} once all switches are split off, so that all ranks get all chunks.

    It is None if some switch cannot be split off, because it lacks links between some pairs of its ranks.
    The second result is True if links share a switch evenly that could also serve some of them only.

    - `capacity`, (num_arcs,), and `counts`, (num_ranks,): See `least_time`.
    - `evenly`: False if such a switch shall serve its last links only.
    """
    state = _Splitting(network, capacity, counts, evenly=evenly)
    parts = {
        path[i:j]
        for path in network.arcs_of_link.values()
        for i in range(len(path))
        for j in range(i + 1, len(path) + 1)
    }
    for switch in range(network.num_ranks, network.num_nodes):
        into = sorted((path for path in state.left if state.ends(path)[1] == switch), key=state.ends)
        out = sorted((path for path in state.left if state.ends(path)[0] == switch), key=state.ends)
        totals = [sum(map(state.left.__getitem__, paths)) for paths in (into, out)]
        if totals[0] != totals[1]:
            state.lower_to(into if totals[0] > totals[1] else out, min(totals))
        for a, b in _paired(state, switch, into, out):
            if a + b in parts:
                state.lower([a, b], min(state.left[a], state.left[b]), whole=a + b)
        for path in (*into, *out):
            state.lower([path], state.left[path])
            if state.left.pop(path):
                return None, state.is_even
    link_of = {path: link for link, path in network.arcs_of_link.items()}
    return {link_of[path]: count for path, count in state.left.items() if count}, state.is_even


def _paired(state: _Splitting, switch: int, into: list[Path], out: list[Path]) -> list[tuple[Path, Path]]:
    """Pairs of paths into and out of a switch, in the order in which capacity is assigned to them.

    Pairs of ranks with little other capacity between them come first: ranks behind another common switch need
    this switch less. At ties, each port is paired with the next one, then with the one after that, and so on.
    Sends wait least for one another if each port has few partners.
    """
    width = state.widths_without(switch)
    place = {path: i for side in (into, out) for i, path in enumerate(side)}

    def rank(pair: tuple[Path, Path]) -> tuple[int, int]:
        begin, end = state.ends(pair[0])[0], state.ends(pair[1])[1]
        return int(width[begin, end]), (place[pair[1]] - place[pair[0]]) % len(into)

    return sorted(((a, b) for a in into for b in out), key=rank)


class _Splitting:
    """State while switches are split off: remaining capacity of each path, and in total between two nodes.

    The matrix of these totals has a further node, the source of all chunks.

    - `is_even`: True once capacities were lowered in equal proportions.
    """

    def __init__(self, network: Network, capacity: Ints, counts: Ints, *, evenly: bool) -> None:
        self.is_even, self._evenly = False, evenly
        self.left: dict[Path, int] = {(arc,): int(each) for arc, each in enumerate(capacity)}
        self._network, self._total, self._source = network, int(counts.sum()), network.num_nodes
        self._room = network.matrix(capacity)
        self._room[self._source, : network.num_ranks] = counts
        self._sinks, self._level = np.arange(network.num_ranks), np.zeros(len(self._room), np.int64)

    def ends(self, path: Path) -> tuple[int, int]:
        """First and last node of a path."""
        return int(self._network.tail[path[0]]), int(self._network.head[path[-1]])

    def widths_without(self, switch: int) -> Ints:
        """(num_nodes, num_nodes) capacity of the widest path between nodes that avoids a switch."""
        width = self._room[: self._source, : self._source].copy()
        for via in range(len(width)):
            if via != switch:
                np.maximum(width, np.minimum(width[:, via, None], width[via]), out=width)
        return width

    def lower(self, paths: list[Path], most: int, whole: Path | None = None) -> int:
        """Lower capacities of paths by up to `most`, as long as chunks reach all ranks; returns by how much.

        - `whole`: The concatenated path, whose capacity rises by the same amount; None for none.
        """
        if most <= 0:
            return 0
        self._change(paths, most, whole)
        kept = int(largest_shortfall(self._room, self._source, self._sinks, self._total, most, self._level))
        kept = min(kept, most)
        self._change(paths, -kept, whole)
        for path in paths:
            self.left[path] -= most - kept
        if whole is not None and kept < most:
            self.left[whole] = self.left.get(whole, 0) + most - kept
        return most - kept

    def lower_to(self, paths: list[Path], enough: int) -> None:
        """Lower capacities of paths to `enough` in total.

        The first paths are dropped while the others together have twice that much, or one of them has enough.
        The others lose equal proportions. NICs that are faster together than the uplink behind them then have
        idle time. So sends rarely wait for a NIC and the uplink at once.
        """
        total = sum(map(self.left.__getitem__, paths))
        may_share = max(map(self.left.__getitem__, paths), default=0) < enough
        share = 2 if may_share and self._evenly else 1
        self.is_even |= share > 1
        for path in paths:
            left = self.left[path]
            most = left if total - left >= share * enough else 0
            total -= self.lower([path], most)
        excess = total - enough
        shares = [excess * self.left[path] // total for path in paths] if share > 1 else []
        for path, most in zip(paths, shares, strict=False):
            excess -= self.lower([path], most)
        for path in paths:
            excess -= self.lower([path], min(excess, self.left[path]))

    def _change(self, paths: list[Path], amount: int, whole: Path | None) -> None:
        for path in paths:
            self._room[self.ends(path)] -= amount
        if whole is not None:
            self._room[self.ends(whole)] += amount
