"""Shortest times of chunks over links; min idle times of resources at the start and end of a schedule.

The head of a resource is its min idle time at the start of a schedule, the tail that at the end. Only sends
on the path by which a destination first gets a chunk count; they alone deliver everything. Their hold of a
resource begins no sooner than the chunk can reach the sender. After the hold, the chunk must still arrive and
get to a destination. In a schedule that finishes at T, these sends therefore hold a resource for at most T
minus its head and its tail.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arrays import numbered
from taccl._internal.caching import cached
from taccl._internal.graph_algorithms import not_rounded_up, paths_from_nearest, shortest_paths
from taccl.analysis.certificates.finding.gates import FOREVER, Ints
from taccl.problem.chunks import RankSets
from taccl.problem.costs import hold_columns, link_ends, wide_links
from taccl.problem.problem import Problem

Arcs = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
Flags = NDArray[np.bool_]


def shortest_times(problem: Problem, links: Sequence[int] | Ints, units: int) -> NDArray[np.float64]:
    """Shortest times between all ranks over some links, for a chunk of `units`.

    A link of several sources counts as waiting for its first source, which can only shorten times. Paths
    respect the problem's limit on the number of links of a path. For sums, the limit is doubled: it holds on
    the way to the root, and again on the way from it.

    Returns
    -------
    (num_ranks, num_ranks) float64
        Ticks from the row's rank to the column's; inf if there is no path. Whole numbers, exact below 2**53,
        else rounded down.
    """
    num_ranks = problem.topology.num_ranks
    arc, src, dst = arcs_of(problem, links)
    took, limit = (
        problem.costs.link_alpha[arc] + units * problem.costs.link_beta[arc],
        problem.clauses.path_limit,
    )
    if limit is None:
        times = shortest_paths(num_ranks, src, dst, took, np.arange(num_ranks))
    else:
        direct = np.full((num_ranks, num_ranks), np.inf)
        np.minimum.at(direct, (src, dst), took)
        times = _over_few_links(direct, limit * (1 + problem.collective.sums_up))
    times = not_rounded_up(times)
    times.setflags(write=False)
    return times


def _over_few_links(direct: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """Shortest times over at most `most` links, given the times of single links (inf where there is none)."""
    times = np.where(np.eye(len(direct), dtype=bool), 0.0, np.inf)
    into = [(dst, np.flatnonzero(np.isfinite(column))) for dst, column in enumerate(direct.T)]
    for _ in range(min(most, len(direct))):
        before = times.copy()
        for dst, srcs in into:
            over = (before[:, srcs] + direct[srcs, dst]).min(axis=1, initial=np.inf)
            np.minimum(times[:, dst], over, out=times[:, dst])
        if (times == before).all():
            break
    return times


def arcs_of(problem: Problem, links: Sequence[int] | Ints) -> Arcs:
    """(link, source, destination) columns, with a row for every pair of ranks that a link joins."""
    ends, wide = problem.topology.links, wide_links(problem.topology)
    if not wide:
        some, (src, dst) = np.asarray(links, dtype=np.int64), link_ends(problem.topology)
        return some, src[some], dst[some]
    found = [(e, a, b) for e in map(int, links) for a in ends[e].srcs for b in ends[e].dsts]
    table = np.array(found, dtype=np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 1], table[:, 2]


class Distances:
    """Shortest times of a problem's chunks, computed on demand.

    Each set of links that may carry a chunk has an index, so that times are computed once per set and size.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._derived_at = {d.chunk: d.rank for d in problem.collective.derivations}
        self._made: dict[int | None, dict[int, int]] = {}
        #: {bytes of a mask of links, or identities of such masks: index of the link set}.
        self._numbers: dict[bytes | tuple[int, ...], int] = {}
        self._link_sets: list[Ints] = []
        self.cache: dict[Any, Any] = {}
        self._times: dict[tuple[int, int], NDArray[np.float64]] = {}

    def origins(self, c: int, *, units: int | None = None) -> dict[int, int]:
        """{rank: tick at which the chunk first exists there}; a derived chunk exists once it is made."""
        starts = dict.fromkeys(self.problem.collective.chunks[c].origins, 0)
        if c in self._derived_at:
            made = self._when_made(units)
            if c in made:
                starts[self._derived_at[c]] = made[c]
        return starts

    def _when_made(self, units: int | None) -> dict[int, int]:
        """{derived chunk: earliest tick at which it can be made}."""
        if units not in self._made:
            made: dict[int, int] = {}
            self._made[units] = made  # filled in order; `heads` reads the entry of a derived source
            for each in self.problem.collective.derivations_in_turn:
                head = self.heads(each.source, units=units)[each.rank]
                if np.isfinite(head):
                    made[each.chunk] = int(head)
        return self._made[units]

    def heads(self, c: int, *, units: int | None = None) -> NDArray[np.float64]:
        """(num_ranks,) earliest arrival of the chunk at every rank, in ticks; inf if it cannot arrive.

        - `units`: Assumed size of the chunk, and of the chunks that it is derived from; default: their own.
        """
        starts = self.origins(c, units=units)
        if not starts:
            return np.full(self.problem.topology.num_ranks, np.inf)
        size = int(self.problem.costs.chunk_units[c]) if units is None else units
        times = self.times(self.carried(c), size)
        earliest: NDArray[np.float64] = np.min([times[r] + start for r, start in starts.items()], axis=0)
        return earliest

    def to_go(self, c: int, destination: int) -> NDArray[np.float64]:
        """(num_ranks,) least ticks of the chunk from every rank to a destination."""
        return self.times(self.carried(c), int(self.problem.costs.chunk_units[c]))[:, destination]

    def times(self, links: int, units: int) -> NDArray[np.float64]:
        """`shortest_times` over the set of links with this index, for a chunk of `units`."""
        if (links, units) not in self._times:
            self._times[links, units] = shortest_times(self.problem, self._link_sets[links], units)
        return self._times[links, units]

    @cached
    def longest(self, links: int, units: int) -> float:
        """Max ticks from one rank to another, among those that the set of links connects; see `times`."""
        times = self.times(links, units)
        return float(times.max(where=np.isfinite(times), initial=0.0))

    def nearest(
        self, links: int, units: int, ranks: Collection[int], *, backwards: bool = False
    ) -> NDArray[np.float64]:
        """(num_ranks,) least ticks to every rank from the nearest of `ranks`.

        If `backwards`, from every rank to the nearest of `ranks`.
        """
        num_ranks = self.problem.topology.num_ranks
        if len(ranks) == num_ranks:
            return np.zeros(num_ranks)
        if (links, units) in self._times:
            times = self._times[links, units]
            found: NDArray[np.float64] = (times.T if backwards else times)[list(ranks)].min(axis=0)
            return found
        arc, src, dst = self._arcs_by(links, 1 if backwards else 2)
        costs = self.problem.costs
        length = (costs.link_alpha[arc] + units * costs.link_beta[arc]).astype(float)
        ends = (dst, src) if backwards else (src, dst)
        return not_rounded_up(paths_from_nearest(num_ranks, *ends, length, ranks))

    @cached
    def arcs(self, number: int) -> Arcs:
        """(link, source, destination) columns of the set of links with this index; see `arcs_of`."""
        return arcs_of(self.problem, self._link_sets[number])

    @cached
    def _arcs_by(self, number: int, end: int) -> Arcs:
        """Columns of `arcs`, sorted by source (`end` 1) or destination (2) for searches of shortest paths."""
        columns = self.arcs(number)
        order = np.argsort(columns[end], kind="stable")
        return columns[0][order], columns[1][order], columns[2][order]

    @cached
    def links(self, number: int) -> tuple[int, ...]:
        """The links of the set with this index."""
        return tuple(self._link_sets[number].tolist())

    @cached
    def link_set(self, number: int) -> frozenset[int]:
        """The links of the set with this index, as a frozenset."""
        return frozenset(self.links(number))

    def carried(self, c: int, *, reducing: bool | None = False) -> int:
        """Index of the set of links that may carry chunk `c`.

        - `reducing`: False for links that may copy it, True for links that may reduce it, None for both.
        """
        modes = (False, True) if reducing is None else (reducing,)
        masks = [self.problem.open_links(c, reducing=mode) for mode in modes]
        alike = tuple(map(id, masks))  # chunks with equal clauses share their masks
        if alike not in self._numbers:
            is_open = masks[0] if len(masks) == 1 else np.logical_or.reduce(masks)
            number = self._numbers.setdefault(is_open.tobytes(), len(self._link_sets))
            if number == len(self._link_sets):
                self._link_sets.append(np.flatnonzero(is_open))
            self._numbers[alike] = number
        return self._numbers[alike]

    def all_carried(self, *, reducing: bool | None = False) -> Ints:
        """(num_chunks,) index of the set of links that may carry each chunk; see `carried`."""
        modes = (False, True) if reducing is None else (reducing,)
        code = np.zeros(self.problem.collective.num_chunks, np.int64)
        for mode in modes:
            number, masks = self.problem.open_link_sets(reducing=mode)
            code = code * len(masks) + number
        _, first, of_chunk = numbered(code)
        sets = {c: self.carried(c, reducing=reducing) for c in sorted(first.tolist())}
        return np.array([sets[c] for c in first.tolist()], np.int64)[of_chunk]


Proof = TypeVar("Proof")

#: Max times that a linear program is solved; idle ticks are capped each time at the last proven bound.
_MOST_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class HeadsTails:
    """Min ticks before each hold of a resource (head), and after it (tail), in any schedule, as columns.

    Head and tail are `FOREVER` if no required send uses the link.
    """

    link: Ints
    resource: Ints
    head: Ints
    tail: Ints

    def idle(self, num_resources: int, links: NDArray[np.bool_] | None = None) -> Ints:
        """(num_resources,) min ticks, head plus tail, for which each resource is idle; `FOREVER` if unused.

        - `links`, (num_links,) bool: Links whose sends count. Default: all.
        """
        chosen = slice(None) if links is None else links[self.link]
        ends = np.full((2, num_resources), FOREVER)
        for end, ticks in zip(ends, (self.head, self.tail), strict=True):
            np.minimum.at(end, self.resource[chosen], ticks[chosen])
        idle: Ints = np.minimum(ends.sum(axis=0), FOREVER)
        return idle


def heads_and_tails(distances: Distances, *, divisible: bool) -> HeadsTails:
    """Min ticks before (heads) and after (tails) each hold of a resource, in any schedule of a problem.

    The problem's chunks are copied, or are summed for all ranks.

    - `divisible`: True if data may be cut arbitrarily; only alphas count then.
    """
    problem = distances.problem
    holds, costs = hold_columns(problem.topology), problem.costs
    link, resource, receives = holds.link, holds.resource, holds.receives
    head, tail = (np.full(len(link), FOREVER) for _ in range(2))
    for links, units, starts, ends in _groups(distances, divisible=divisible):
        arc, src, dst = distances.arcs(links)
        first, left = (np.full(len(problem.topology.links), np.inf) for _ in range(2))
        np.minimum.at(first, arc, distances.nearest(links, units, starts)[src])
        np.minimum.at(left, arc, distances.nearest(links, units, ends, backwards=True)[dst])
        # `rest`, the time of a send beyond its hold, grows with its size: the smallest gives a lower bound.
        rest = costs.link_alpha[link] - costs.hold_alpha + units * (costs.link_beta[link] - costs.hold_beta)
        for all_ticks, of_link, late in ((head, first, receives), (tail, left, ~receives)):
            found = np.isfinite(first[link]) & np.isfinite(left[link])
            ticks = np.where(found, of_link[link], 0).astype(np.int64) + np.where(late, rest, 0)
            np.minimum(all_ticks, ticks, out=all_ticks, where=found)
    takes_time = costs.hold_beta + costs.hold_alpha > 0
    return HeadsTails(link[takes_time], resource[takes_time], head[takes_time], tail[takes_time])


def _groups(distances: Distances, *, divisible: bool) -> Iterator[tuple[int, int, list[int], list[int]]]:
    """Yield (index of a link set, chunk size in cost units, start ranks, ranks that want a chunk).

    Each link set and size occurs once, with the ranks of all its chunks. The size is 0 if `divisible`.
    """
    collective, sizes = distances.problem.collective, distances.problem.costs.chunk_units
    sums = collective.sums_up
    starts, ends = collective.start_sets, collective.destination_sets
    if collective.derivations:
        wanted = [set(chunk.destinations) for chunk in collective.chunks]
        for each in collective.derivations:
            wanted[each.source].add(each.rank)
        ends = RankSets.of([tuple(sorted(ranks)) for ranks in wanted])
    links = distances.all_carried(reducing=None if sums else False)
    starts_at, ends_at = starts.flags(collective.num_ranks), ends.flags(collective.num_ranks)
    has_all = starts_at & (not sums or starts_at.sum(axis=1, keepdims=True) == 1)
    has_all &= not collective.updates  # only servers have updated sums
    found: dict[tuple[int, int], tuple[Flags, Flags]] = {}
    for (number, units, end), pairs in _by_end(links, 0 * sizes if divisible else sizes, ends, starts):
        lacks = ends_at[end] & ~has_all[pairs]
        if lacks.any():
            none = np.zeros(collective.num_ranks, bool)
            all_starts, all_ends = found.setdefault((number, units), (none, none.copy()))
            all_starts |= starts_at[pairs[lacks.any(axis=1)]].any(axis=0)
            all_ends |= lacks.any(axis=0)
    for (number, units), (all_starts, all_ends) in found.items():
        yield number, units, np.flatnonzero(all_starts).tolist(), np.flatnonzero(all_ends).tolist()


def _by_end(
    links: Ints, sizes: Ints, ends: RankSets, starts: RankSets
) -> Iterator[tuple[tuple[int, int, int], Ints]]:
    """Yield ((link set, size, index of the destinations), indices of the start sets) of chunks.

    Each combination of the first three occurs once, with the distinct start sets of its chunks.
    """
    units, size = np.unique(sizes, return_inverse=True)
    shape = (int(links.max(initial=0)) + 1, len(units), len(ends.sets), len(starts.sets))
    codes = np.ravel_multi_index((links, size, ends.of_chunk, starts.of_chunk), shape)
    codes.sort()  # `numpy.unique` hashes the codes, which takes ten times as long if all differ
    codes = codes[np.flatnonzero(np.diff(codes, prepend=-1))]
    *keys, start = np.unravel_index(codes, shape)
    is_new = np.append(True, (np.diff(keys, axis=1) != 0).any(axis=0))[: len(codes)]
    first = np.flatnonzero(is_new)
    for begin, end in zip(first.tolist(), [*first[1:].tolist(), len(codes)], strict=True):
        number, place, wanted = (int(each[begin]) for each in keys)
        yield (number, int(units[place]), wanted), start[begin:end]


def least_time(prices: Iterable[tuple[int, int]], needed: Fraction) -> Fraction:
    """Least time T at which resources have paid `needed`; each pays its price per tick after its idle ticks.

    - `prices`: (price, idle ticks) of every resource.
    """
    by_idle: dict[int, int] = {}
    for price, idle in prices:
        if price and idle < FOREVER:
            by_idle[idle] = by_idle.get(idle, 0) + price
    time, rate, before = Fraction(0), 0, Fraction(0)
    for idle in sorted(by_idle):
        if rate and (needed + before) / rate <= idle:
            break
        rate += by_idle[idle]
        before += by_idle[idle] * idle
        time = (needed + before) / rate
    return time if needed > 0 else Fraction(0)


def idle_at_most(idle: Ints, known: int) -> Ints:
    """Idle ticks of resources, capped at the known bound; 0 for resources that no send holds.

    In a schedule of T ticks, a resource is held for at most max(0, T - idle). With idle <= known <= T this is
    linear in T, as the program requires.
    """
    return np.where(idle < FOREVER, np.minimum(idle, known), 0)


def proven_in_rounds(
    idle: Ints, known: int, prove: Callable[[int], tuple[Fraction, Proof] | None]
) -> tuple[Fraction, Proof] | None:
    """Best result of a linear program solved repeatedly, with idle ticks capped at the last proven bound.

    - `prove`: Solves the program, given a known bound; returns (bound, proof), or None if it cannot.
    """
    best: tuple[Fraction, Proof] | None = None
    for _ in range(_MOST_ROUNDS):
        found = prove(known)
        if found is None or (best is not None and found[0] <= best[0]):
            break
        best = found
        if known >= int(best[0]) or not ((idle > known) & (idle < FOREVER)).any():
            break
        known = int(best[0])
    return best
