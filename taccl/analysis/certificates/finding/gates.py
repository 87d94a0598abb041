"""Gates: bottleneck resources that cover the links at a border, and their throughput in chunks.

Each link is assigned to one gate, a resource that its sends hold. However sends are merged and ordered, these
holds limit the number of chunks that pass a gate in a given time.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, count, islice, repeat
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arrays import distinct
from taccl._internal.graph_algorithms import not_rounded_up, shortest_paths
from taccl._internal.units import format_count
from taccl.analysis.certificates.certificate import Labels
from taccl.problem.costs import hold_columns, link_ends
from taccl.problem.problem import Problem

if TYPE_CHECKING:
    from collections import Counter


Ints = NDArray[np.int64]

#: Number of ticks that stands for never.
FOREVER = 2**61
#: Max ranks for which all-pairs distances are used.
_MOST_RANKS = 2_048
#: Max nodes for which distances between nodes are used.
_MOST_NODES = 256
#: Numbers of chunks for which the rests of sends are computed together.
_AT_ONCE = 256


class GateCosts:
    """Costs of links, and of their holds on resources, as arrays for chunks of one size.

    A send of n chunks takes ``link_alpha + n * link_beta`` ticks on its link. Each of its holds keeps a
    resource busy for ``alpha + n * beta`` ticks.

    - `units`: Size of each chunk, in the units of `Costs`.
    """

    def __init__(self, problem: Problem, units: int) -> None:
        columns, costs, clauses = hold_columns(problem.topology), problem.costs, problem.clauses
        self.link, self.resource, self.receives = columns.link, columns.resource, columns.receives
        self.alpha, self.beta = costs.hold_alpha, costs.hold_beta * units
        self.link_alpha, self.link_beta = costs.link_alpha, costs.link_beta * units
        self.src, self.dst = link_ends(problem.topology)
        self.num_ranks = problem.topology.num_ranks
        self.node = np.array(problem.topology.node_of_rank, dtype=np.int64)
        self.max_merge = clauses.max_merge
        self.merges = np.zeros(len(self.src), dtype=bool)
        if clauses.max_merge > 1:
            self.merges[sorted(clauses.merging)] = True


@dataclass(frozen=True, slots=True)
class Gates:
    """Bottleneck resources ("gates") that cover a set of links, and their throughput; a link has one gate.

    A send of n chunks, at most `most`, holds a gate for at least ``alpha + n * beta`` ticks. The hold begins
    at least `offset` ticks after the send's start. The send ends at least ``rest[n - 1]`` ticks after the
    start of the hold; this time varies by at most `end_spread`. No send starts before `release`.

    - `rest`, (max n, num_gates); all other arrays, (num_gates,).
    - `of_set`: Index of the set of ranks that the links of the gate enter or leave.
    """

    of_set: Ints
    alpha: Ints
    beta: Ints
    most: Ints
    release: Ints
    offset: Ints
    rest: Ints
    end_spread: Ints

    def passed(self, ticks: Ints) -> Ints:
        """Max number of chunks that pass each gate (bottleneck resource) if it is held for `ticks` ticks."""
        full = self.alpha + self.most * self.beta
        rounds, left = np.divmod(np.maximum(ticks, 0), np.maximum(full, 1))
        part = np.maximum(left - self.alpha, 0) // np.maximum(self.beta, 1) * (self.beta > 0)
        passed: Ints = rounds * self.most + np.minimum(part, self.most)
        return passed

    @property
    def hold(self) -> Ints:
        """Min ticks for which a send of one chunk holds each gate (bottleneck resource)."""
        return self.alpha + self.beta

    def within(self, start: Ints | int, end: Ints | int) -> Ints:
        """Max chunks in sends that start at `start` or later and end at `end` or earlier."""
        time = end - np.maximum(self.release, start) - self.offset
        shape = (len(self.rest),) + (1,) * (time.ndim - 1)
        n = np.arange(1, len(self.rest) + 1).reshape(*shape, 1)  # number of chunks in the last send
        left = time - self.rest.reshape(*shape, time.shape[-1])
        passed: Ints = np.where((left >= 0) & (n <= self.most), n + self.passed(left), 0).max(axis=0)
        return passed

    def arrivals(self, num: int) -> Ints:
        """(num_gates, num) earliest ticks by which 1 to num chunks arrive, in sends from tick 0 on."""
        first = np.full((len(self.of_set), num), FOREVER)
        for n, rest in enumerate(self.rest, 1):  # n chunks in the last send
            found = self._holds(np.arange(1 - n, num + 1 - n)) + rest[:, None]
            may = (self.most >= n)[:, None] & (np.arange(1, num + 1) >= n)
            np.minimum(first, found, out=first, where=may)
        soonest: Ints = first + (self.release + self.offset)[:, None]
        return soonest

    def late_arrivals(self, num: int) -> Ints:
        """(num_gates, num) min ticks until 1 to num chunks have arrived through a gate (bottleneck resource).

        No send ends before time 0, but the first one may have started before it.
        """
        after = self._holds(np.arange(1, num + 1) - self.most[:, None]) - self.end_spread[:, None]
        return np.asarray(np.maximum(after, 0), dtype=np.int64)

    def _holds(self, chunks: Ints) -> Ints:
        """(num_gates, num) min ticks for which sends with `chunks` chunks in total hold a gate (resource)."""
        chunks, most = np.maximum(chunks, 0), self.most[:, None]
        full, part = chunks // most, chunks % most
        alpha, beta = self.alpha[:, None], self.beta[:, None]
        ticks: Ints = full * (alpha + most * beta) + (part > 0) * alpha + part * beta
        return ticks


def gates_of(costs: GateCosts, links: Ints, of_set: Ints, release: Ints | None = None) -> Gates:
    """Greedy cover of links by gates (bottleneck resources), separately for each set in `of_set`.

    The next gate has the highest product of two numbers: the uncovered links that hold it, and the ticks per
    chunk of the shortest of these holds.

    - `links`, (num,) int64: Links to cover; each holds some resource.
    - `of_set`, (num_links,) int64: Index of the set that each link of the topology enters or leaves.
    - `release`, (num_links,) int64: Earliest use of each link of the topology, in ticks; default: 0.
    """
    chosen = np.zeros(len(costs.merges), dtype=bool)
    chosen[links] = True
    at = np.flatnonzero(chosen[costs.link])
    e, r = costs.link[at], costs.resource[at]
    m = np.where(costs.merges[e], costs.max_merge, 1)
    alpha, beta = costs.alpha[at], costs.beta[at]
    share = (costs.max_merge // m) * alpha + costs.max_merge * beta  # ticks per chunk, times `max_merge`
    code = of_set[e] * (int(r.max(initial=0)) + 1) + r
    first, gate = _covered_by(e.tolist(), code.tolist(), share.tolist())
    num_gates = int(gate.max(initial=-1)) + 1
    e, m, alpha, beta, receives = e[first], m[first], alpha[first], beta[first], costs.receives[at][first]

    def least_of(values: Ints) -> Ints:
        found = np.full(num_gates, FOREVER)
        np.minimum.at(found, gate, values)
        return found

    def most_of(values: Ints) -> Ints:
        return -least_of(-values)

    def send(n: Ints | int) -> tuple[Ints, Ints]:
        took, held = costs.link_alpha[e] + n * costs.link_beta[e], alpha + n * beta
        offset = np.where(receives, took - held, 0)
        return offset, took - offset

    none = np.zeros(len(e), dtype=np.int64)
    (offset, rest), (offset_full, rest_full) = send(1), send(m)
    soonest, most = least_of(np.minimum(offset, offset_full)), most_of(m)
    return Gates(
        of_set=least_of(of_set[e]),
        alpha=np.where(most > 1, least_of(alpha), 0),
        beta=np.where(most > 1, least_of(beta), least_of(alpha + beta)),
        most=most,
        release=least_of(none if release is None else release[e]),
        offset=soonest,
        rest=_least_rests(num_gates, gate, m, *(send(n)[1] for n in (0, 1))),
        end_spread=most_of(np.maximum(rest, rest_full)) - least_of(np.minimum(rest, rest_full)),
    )


def _least_rests(num_gates: int, gate: Ints, most: Ints, alpha: Ints, total: Ints) -> Ints:
    """Min ticks from the start of a hold to the end of its send, by its chunks; (max chunks, num_gates).

    - `gate`, `most`, `alpha`, `total`, (num_holds,): Gate of each hold, max chunks, and these ticks for sends
      of no chunk and of one. They grow linearly with the chunks.
    """
    # Most holds of a gate are alike; only distinct ones are compared for each number of chunks.
    lines = np.stack((total, alpha, most, gate))
    lines = lines[:, np.lexsort(lines)]
    is_new = np.ones(lines.shape[1], bool)
    is_new[1:] = (lines[:, 1:] != lines[:, :-1]).any(axis=0)
    total, alpha, most, gate = lines[:, is_new]
    first = np.searchsorted(gate, np.arange(num_gates))
    found = np.full((int(most.max(initial=1)), num_gates), FOREVER)
    for begin in range(0, len(found) if num_gates else 0, _AT_ONCE):
        some = found[begin : begin + _AT_ONCE]
        n = np.arange(begin + 1, begin + len(some) + 1)[:, None]
        ticks = np.where(n <= most, alpha + n * (total - alpha), FOREVER)
        np.minimum.reduceat(ticks, first, axis=1, out=some)
    return found


def _covered_by(links: list[int], codes: list[int], shares: list[int]) -> tuple[Ints, Ints]:
    """Greedy cover of links by gates (resources): (each link's hold on its gate, its gate), as indices."""
    holds: dict[int, list[int]] = {}
    for hold, code in enumerate(codes):
        holds.setdefault(code, []).append(hold)
    queue = [(-len(mine) * min(shares[i] for i in mine), code) for code, mine in holds.items()]
    heapq.heapify(queue)
    taken: set[int] = set()
    first: list[int] = []
    gate: list[int] = []
    number = 0
    while queue:
        weight, code = heapq.heappop(queue)
        mine = [i for i in holds[code] if links[i] not in taken]
        now = -len(mine) * min((shares[i] for i in mine), default=0)
        if now > weight:
            holds[code] = mine
            if mine:
                heapq.heappush(queue, (now, code))
            continue
        taken.update(links[i] for i in mine)
        first += mine
        gate += [number] * len(mine)
        number += 1
    return np.array(first, dtype=np.int64), np.array(gate, dtype=np.int64)


def first_tick(holds: Callable[[int], bool], *, after: int = 0) -> int:
    """Smallest number of ticks, from `after` to `FOREVER`, at which a monotone predicate is true."""
    low, top = after, max(1, 2 * after)
    while top < FOREVER and not holds(top):
        low, top = top, 16 * top
    return bisect_left(range(FOREVER), True, low, min(top, FOREVER), key=holds)


def passed_by(
    problem: Problem, sends: Counter[int], links: Collection[int], *, since: int = 0
) -> tuple[int, str]:
    """Earliest tick by which links can pass the sends, and a text with the number of bottleneck resources.

    Every send counts as the smallest one. Links can be used from tick `since` on.

    - `sends`: {size in units: number of sends}.
    """
    none = np.zeros(len(problem.topology.links), dtype=np.int64)
    costs = GateCosts(problem, min(sends))
    gates = gates_of(costs, np.array(sorted(links), dtype=np.int64), none, none + since)
    number = format_count(len(gates.hold), "resource")
    if not gates.hold.all():
        return since, number
    return first_tick(lambda ticks: int(gates.within(0, ticks).sum()) >= sends.total()), number


def nearest(costs: GateCosts, links: NDArray[np.bool_], starts: Ints, inner: NDArray[np.bool_]) -> Ints:
    """(num_inner,) least ticks in which a chunk from a start reaches 1, 2, ... ranks along shortest paths.

    All times are 0 if more than `_MOST_RANKS` ranks count.

    - `links`, (num_links,) bool: Links that may carry the chunk.
    - `inner`, (num_ranks,) bool: Ranks that count; the ends of links and the starts are among them.
    """
    num = int(np.count_nonzero(inner))
    if num > _MOST_RANKS:
        return np.zeros(num, dtype=np.int64)
    place = np.cumsum(inner) - 1
    took = (costs.link_alpha + costs.link_beta)[links]
    ends = place[costs.src[links]], place[costs.dst[links]]
    times = not_rounded_up(shortest_paths(num, *ends, took, distinct(place[starts])))
    soonest = np.sort(times, axis=1).min(axis=0, initial=np.inf)
    return np.where(np.isfinite(soonest), soonest, FOREVER).astype(np.int64)


def nearest_by_node(
    costs: GateCosts, links: NDArray[np.bool_], starts: Ints, inner: NDArray[np.bool_]
) -> Ints:
    """Lower bounds on the times of `nearest`, from shortest paths between nodes.

    Links inside nodes take no time. All times are 0 if there are more than `_MOST_NODES` nodes.
    """
    sizes = np.bincount(costs.node[inner], minlength=int(costs.node.max()) + 1)
    first = distinct(costs.node[starts])
    if len(sizes) > _MOST_NODES:
        return np.zeros(int(sizes.sum()), dtype=np.int64)
    ends = costs.node[costs.src[links]], costs.node[costs.dst[links]]
    far, took = ends[0] != ends[1], (costs.link_alpha + costs.link_beta)[links]
    times = not_rounded_up(shortest_paths(len(sizes), ends[0][far], ends[1][far], took[far], first))
    soonest = np.sort(np.repeat(times, sizes, axis=1), axis=1).min(axis=0, initial=np.inf)
    return np.where(np.isfinite(soonest), soonest, FOREVER).astype(np.int64)


class Sender(NamedTuple):
    """Arrival times of chunks from a sender: `first`, in ticks after it begins, repeated every `period`."""

    first: tuple[int, ...]
    period: int

    def since(self, begin: int) -> Iterator[int]:
        """Arrival ticks of successive chunks if the sender starts to send at tick `begin`."""
        return (start + after for start in count(begin, self.period) for after in self.first)


def fastest_senders(out: Gates, most: int = 1) -> list[Sender]:
    """Hypothetical senders that together deliver chunks no later than any rank does.

    The i-th sender is no slower than the i-th fastest bottleneck resource of any rank.

    - `out`: Gates of sends, by sending rank.
    - `most`: Max chunks in a send. With 1, chunks are sent one by one, as each can go to another rank.
    """
    out = replace(out, most=np.minimum(out.most, most))
    num = int(out.most.max(initial=1))
    period, first = num // out.most * (out.alpha + out.most * out.beta), out.arrivals(num)
    return [
        Sender(tuple(first[some].min(axis=0).tolist()), int(period[some].min()))
        for some in _by_place(out, period, *first.T)
    ]


def fastest(gates: Gates) -> Gates:
    """Gates (bottleneck resources) of a hypothetical set, which pass chunks no later than those of any set.

    The gates of each set are sorted by hold, alpha, `most` and offset. The i-th gate of the result has the
    best figures of the i-th gates of all sets.
    """
    places = _by_place(gates, gates.hold, gates.alpha, gates.most, gates.offset)

    def least(values: Ints) -> Ints:
        return np.array([values[..., some].min(axis=-1) for some in places], dtype=np.int64).T

    none = np.zeros(len(places), dtype=np.int64)
    return Gates(
        of_set=none,
        alpha=least(gates.alpha),
        beta=least(gates.beta),
        most=-least(-gates.most),
        release=none,
        offset=least(gates.offset),
        rest=np.minimum.accumulate(least(gates.rest)[::-1])[::-1],
        end_spread=-least(-gates.end_spread),
    )


def _by_place(gates: Gates, *keys: Ints) -> list[Ints]:
    """Lists of gate indices: first the first gate of every set, then the second of every set, and so on.

    The gates (bottleneck resources) of each set are sorted by `keys`. Sets with fewer gates are left out of
    the later lists.
    """
    order = np.lexsort((*reversed(keys), gates.of_set))
    _, sizes = np.unique(gates.of_set, return_counts=True)
    place = np.concatenate([np.arange(number) for number in (0, *sizes.tolist())])
    return [order[place == each] for each in range(sizes.max(initial=0))]


def spread_times(
    senders: list[Sender],
    from_outside: Iterable[int],
    num: int,
    *,
    soonest: Iterable[int] = repeat(0),
    num_senders: float = math.inf,
) -> list[int]:
    """Earliest ticks by which 1, 2, ..., `num` ranks can hold data, if each rank then sends data on.

    - `from_outside`: Ticks at which ranks get data from outside, ascending; `FOREVER` stands for never.
    - `soonest`: Lower bounds of the result: for the first rank, the second, and so on.
    - `num_senders`: Max ranks that send to others.
    """
    sources: list[Iterator[int]] = [chain(from_outside, repeat(FOREVER))]
    queue = [(next(sources[0]), 0)]
    when: list[int] = []
    for least in islice(soonest, num):
        now, source = queue[0]
        heapq.heapreplace(queue, (next(sources[source]), source))
        when.append(max(now, least))
        for sender in senders if when[-1] < FOREVER and len(when) <= num_senders else ():
            sources.append(sender.since(when[-1]))
            heapq.heappush(queue, (next(sources[-1]), len(sources) - 1))
    return when


def labels_of(times: Iterable[int]) -> Labels:
    """Labels (ticks, most) of ascending times: before `ticks`, at most `most` of them have passed."""
    found: list[tuple[int, int]] = []
    for number, ticks in enumerate(times):
        if ticks > (found[-1][0] if found else 0):
            found.append((ticks, number))
    return tuple(found)


def sends_of(senders: list[Sender], received: Iterable[int]) -> Iterator[int]:
    """Arrivals of the chunks that all ranks send, as one ascending sequence; ranks send once they hold data.

    - `received`: Ticks at which ranks get data.
    """
    return heapq.merge(*(each.since(begin) for begin in received if begin < FOREVER for each in senders))


#: Number of ticks, whole or fractional.
Time = int | Fraction
#: Max (contribution or byte, rank) pairs that sends can serve by a time: terms (gain, functions of time).
#: The number is the sum over terms of the gain times the least function value.
Served = list[tuple[int, tuple[Callable[[Time], Time], ...]]]


def first_served(served: Served, needed: int) -> Fraction:
    """Least ticks by which sends can serve `needed` (contribution or byte, rank) pairs, exact.

    Between whole ticks every function is linear, so the least of several is concave, and so is the sum.
    Newton's method from the left along tangents therefore never overshoots.
    """

    def reached(ticks: int) -> bool:
        return sum(gain * min(each(ticks) for each in least) for gain, least in served) >= needed

    end = first_tick(reached)
    if not end:
        return Fraction(0)
    start, middle = end - 1, end - Fraction(1, 2)
    lines = [
        (gain, [(each(start), 2 * (each(middle) - each(start))) for each in least]) for gain, least in served
    ]
    time = Fraction(0)
    while time < 1:
        now = [(gain, *min((value + rate * time, rate) for value, rate in some)) for gain, some in lines]
        missing, rate = needed - sum(gain * value for gain, value, _ in now), sum(g * r for g, _, r in now)
        if missing <= 0:
            break
        time = time + Fraction(missing) / rate if rate else Fraction(1)
    return start + min(time, Fraction(1))
