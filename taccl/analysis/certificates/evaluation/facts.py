"""Problem data as plain numbers, by which certificates are checked.

Costs in ticks, and the links that may carry a chunk, come from the problem, as they do for the code that
finds bounds. Shortest paths, and idle times of resources at the start and the end of a schedule, are computed
here in integers, independently of that code. Costs of sends under dual prices are exact fractions.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from itertools import zip_longest
from typing import Literal

from taccl.problem.costs import link_ends, wide_links
from taccl.problem.problem import Problem

#: Time that stands for never, in ticks.
NEVER = 2**61
#: {rank: [(rank at the other end, length), ...]} over all links.
Arcs = dict[int, list[tuple[int, int]]]


class Facts:
    """Problem data as plain integers, from which the witness of a bound is checked."""

    def __init__(self, problem: Problem, *, divisible: bool, in_network: bool | Literal["only"]) -> None:
        self.problem, self.divisible = problem, divisible
        #: `in_network`: True if all switches are assumed to reduce.
        #: `only_switches_add`: True if only reduction links add contributions.
        self.in_network, self.only_switches_add = in_network is True, in_network == "only"
        self.topology, self.collective, self.clauses = problem.topology, problem.collective, problem.clauses
        self.units = problem.costs.chunk_units.tolist()
        self.by_chunk = not divisible and len(set(self.units)) == 1
        self.alpha = problem.costs.link_alpha.tolist()
        self.beta = problem.costs.link_beta.tolist()
        self.sums = self.collective.sums_up
        self.made_at = {d.chunk: d for d in self.collective.derivations}
        self.allowed = list(problem.links_allowed)
        self.multi = not {*wide_links(self.topology)}.isdisjoint(self.allowed)
        #: `src`, `dst`: Ends of each link; meaningful for links from one rank to one rank.
        self.src, self.dst = (ends.tolist() for ends in link_ends(self.topology))
        self._admitted: dict[tuple[int, ...], list[int]] = {}
        self._out: dict[tuple[int, int, bool], Arcs] = {}
        self._times: dict[tuple[object, ...], dict[int, int]] = {}
        self._when: dict[int | None, dict[int, int]] = {}

    @cached_property
    def holds(self) -> list[dict[int, tuple[int, int, bool]]]:
        """For each link, {resource: (alpha and beta of the hold in ticks, True if it receives)}."""
        found: list[dict[int, tuple[int, int, bool]]] = [{} for _ in self.topology.links]
        alphas, betas = self.problem.costs.hold_alpha.tolist(), self.problem.costs.hold_beta.tolist()
        for hold, alpha, beta in zip(self.topology.holds, alphas, betas, strict=True):
            found[hold.link][hold.resource] = (alpha, beta, hold.side == "receive")
        return found

    def rounded(self, ticks: int | Fraction) -> int | Fraction:
        """Bound in ticks, rounded up for whole chunks, which end at whole ticks."""
        return ticks if self.divisible else math.ceil(ticks)

    def admitted(self, c: int, *, reducing: bool | None) -> list[int]:
        """Links over which a chunk may be copied (`reducing` False), reduced (True), or either (None)."""
        if not self.clauses.said("chunk", "group"):
            return self.allowed
        modes = (False, True) if reducing is None else (reducing,)
        masks = [self.problem.open_links(c, reducing=mode) for mode in modes]
        key = tuple(map(id, masks))  # chunks that clauses treat alike share one mask
        if key not in self._admitted:
            self._admitted[key] = [e for e in self.allowed if any(mask[e] for mask in masks)]
        return self._admitted[key]

    def carried(self, c: int) -> list[int]:
        """Links that may carry a chunk, as a copy or (for sums) in a reduction."""
        return self.admitted(c, reducing=None if self.sums else False)

    def times(
        self, links: Sequence[int], units: int, starts: dict[int, int], *, backwards: bool = False
    ) -> dict[int, int]:
        """{rank: earliest tick at which a chunk from `starts` can reach it}; for `backwards` see below.

        - `starts`: {rank: tick from which it holds the chunk}.
        - `backwards`: True for {rank: min ticks in which a chunk gets from there to a rank in `starts`}.

        A link of several sources waits for the first one only. `links` must be a list that `admitted`
        returned, as results are cached by its identity.
        """
        key = (id(links), units, frozenset(starts.items()), backwards)
        if key not in self._times:
            self._times[key] = self._shortest(self._arcs(links, units, backwards), starts)
        return self._times[key]

    def _arcs(self, links: Sequence[int], units: int, backwards: bool) -> Arcs:
        """Graph of ranks over these links; the length of an arc is the duration of a send."""
        key = (id(links), units, backwards)
        if key not in self._out:
            self._out[key] = self.arcs({e: self.took(e, units) for e in links}, backwards=backwards)
        return self._out[key]

    def took(self, e: int, units: int) -> int:
        """Duration of a send over a link, in ticks."""
        took: int = self.alpha[e] + units * self.beta[e]
        return took

    def arcs(self, lengths: Mapping[int, int], *, backwards: bool = False) -> Arcs:
        """Graph of ranks: an arc from every source to every destination of a link, reversed if `backwards`.

        - `lengths`: {link: length of its arcs}.
        """
        out: Arcs = defaultdict(list)
        for e, length in lengths.items():
            for src in self.topology.links[e].srcs:
                for dst in self.topology.links[e].dsts:
                    a, b = (dst, src) if backwards else (src, dst)
                    out[a].append((b, length))
        return out

    def nearest(self, links: Iterable[int], starts: Collection[int], *, backwards: bool = False) -> list[int]:
        """Min ticks for a chunk to reach 1, 2, ... ranks from one start, over all starts."""
        out = self.arcs({e: self.took(e, self.units[0]) for e in links}, backwards=backwards)
        times = [sorted(shortest_lengths(out, {rank: 0}).values()) for rank in starts]
        return list(map(min, zip_longest(*times, fillvalue=NEVER)))

    def nearest_by_node(
        self, links: Sequence[int], starts: Collection[int], *, backwards: bool = False
    ) -> list[int]:
        """Lower bounds on the times of `nearest`, if links inside nodes take no time."""
        node, lengths = self.topology.node_of_rank, dict[tuple[int, int], int]()
        ranks = set(starts)
        for e in links:
            src, dst = (self.topology.links[e].src, self.topology.links[e].dst)
            ranks.update((src, dst))
            ends = (node[dst], node[src]) if backwards else (node[src], node[dst])
            took = self.took(e, self.units[0])
            lengths[ends] = min(took, lengths.get(ends, took))
        out: Arcs = defaultdict(list)
        for (a, b), length in lengths.items():
            out[a].append((b, length))
        sizes = Counter(node[rank] for rank in ranks)
        times = []
        for start in {node[rank] for rank in starts}:
            there = shortest_lengths(out, {start: 0})
            times.append(sorted(time for other, time in there.items() for _ in range(sizes[other])))
        return list(map(min, zip_longest(*times, fillvalue=NEVER)))

    def _shortest(self, out: Arcs, starts: dict[int, int]) -> dict[int, int]:
        limit = self.clauses.path_limit
        if limit is not None:  # the limit holds twice for sums: to the root, and from it
            return self._over_few_links(out, starts, 2 * limit if self.sums else limit)
        return shortest_lengths(out, starts)

    @staticmethod
    def _over_few_links(out: Arcs, starts: dict[int, int], most: int) -> dict[int, int]:
        """{rank: shortest time} over at most `most` links; each round extends only improved times."""
        best, better = dict(starts), dict(starts)
        while better and most > 0:
            most -= 1
            reached: dict[int, int] = {}
            for rank, time in better.items():
                for other, length in out.get(rank, ()):
                    reached[other] = min(time + length, reached.get(other, time + length))
            better = {rank: time for rank, time in reached.items() if time < best.get(rank, time + 1)}
            best |= better
        return best

    @property
    def spreads_alike(self) -> bool:
        """True if all chunks have one size, none is derived, and all links join one rank to one rank.

        False if switches may reduce (`in_network`). Sums may be present: their contributions spread as
        chunks do.
        """
        return not (self.multi or self.made_at or len(set(self.units)) != 1 or self.in_network)

    @cached_property
    def shared_units(self) -> int:
        """Units of the sums that have contributions of all ranks and are wanted by all.

        0 if switches may add, if a link has several sources or destinations, or if chunks are derived.
        """
        if self.multi or self.made_at or self.in_network or self.only_switches_add or not self.sums:
            return 0
        everyone = set(range(self.topology.num_ranks))
        sizes = zip(self.collective.chunks, self.units, strict=True)
        return sum(
            units for chunk, units in sizes if set(chunk.origins) == everyone == set(chunk.destinations)
        )

    def equal_nodes(self) -> tuple[int, int] | None:
        """Number of nodes, and of ranks of each node; None for a single node, or nodes of unlike sizes."""
        sizes = Counter(self.topology.node_of_rank)
        size, *others = {*sizes.values()}
        return None if others or len(sizes) < 2 else (len(sizes), size)

    def reach(self, between: Sequence[int]) -> int:
        """Max number of ranks of another node to which a rank has links, or from which it has links.

        - `between`: Usable links between nodes.
        """
        node = self.topology.node_of_rank
        there = Counter((self.src[e], node[self.dst[e]]) for e in between)
        here = Counter((self.dst[e], node[self.src[e]]) for e in between)
        return max(*there.values(), *here.values())

    def links_by_place(self) -> tuple[list[int], list[int]]:
        """Usable links inside nodes, and those between nodes."""
        between = {*self.topology.internode_links}
        return [e for e in self.allowed if e not in between], [e for e in self.allowed if e in between]

    def outside(self, ranks: frozenset[int]) -> Iterator[tuple[int, set[int]]]:
        """Yield (chunk, its origins outside `ranks`) for each chunk that cannot be made from inside alone."""
        for c, data in enumerate(self.collective.chunks):
            others = set(data.origins) - ranks
            if others and (self.sums or len(others) == len(data.origins)):
                yield c, others

    def releases(
        self, starts: Iterable[tuple[int, Iterable[int]]], units: int | None = None
    ) -> dict[int, int]:
        """{link: earliest tick at which it can carry one of the chunks}.

        - `starts`: (chunk, its initial ranks) pairs.
        - `units`: Size of each chunk in units; default: the common size of all chunks.
        """
        size = self.units[0] if units is None else units
        found: dict[int, tuple[list[int], dict[int, int]]] = {}
        for c, ranks in starts:
            links = self.carried(c)
            found.setdefault(id(links), (links, {}))[1].update(dict.fromkeys(ranks, 0))
        release: dict[int, int] = {}
        for links, some in found.values():
            there = self.times(links, size, some)
            for e in links:
                time = there.get(self.topology.links[e].src)
                if time is not None:
                    release[e] = min(time, release.get(e, time))
        return release

    def origins(self, c: int, units: int | None = None) -> dict[int, int]:
        """{rank: tick at which a chunk first exists there}; a derived chunk exists once it is made."""
        starts = dict.fromkeys(self.collective.chunks[c].origins, 0)
        if c in self.made_at:
            when = self._made(units).get(c)
            if when is not None:
                starts[self.made_at[c].rank] = when
        return starts

    def _made(self, units: int | None) -> dict[int, int]:
        """{derived chunk: earliest tick at which it is made}; iterates, as sources may be derived chunks."""
        if units not in self._when:
            known = self._when[units] = {}
            chunks_of: dict[int, list[int]] = defaultdict(list)
            for chunk, each in self.made_at.items():
                chunks_of[each.source].append(chunk)
            queue = deque(chunks_of)
            while queue:
                source = queue.popleft()
                size = self.units[source] if units is None else units
                links = self.admitted(source, reducing=False)
                there = self._shortest(self._arcs(links, size, False), self.origins(source, units))
                for chunk in chunks_of[source]:
                    time = there.get(self.made_at[chunk].rank)
                    if time is not None and time < known.get(chunk, time + 1):
                        known[chunk] = time
                        queue += [chunk] if chunk in chunks_of else []
        return self._when[units]

    @cached_property
    def alike(self) -> list[tuple[int, int]]:
        """(one chunk, number of chunks) of each class of equal chunks.

        Equal chunks have the same origins, destinations, size, derivation and admitted links.
        """
        modes = (None, True) if self.sums else (False,)
        kinds: dict[tuple[object, ...], list[int]] = {}
        for c, (data, units) in enumerate(zip(self.collective.chunks, self.units, strict=True)):
            made = tuple(self.origins(c).items()) if c in self.made_at else None
            links = [id(self.admitted(c, reducing=mode)) for mode in modes]
            kinds.setdefault((data, units, made, *links), [c, 0])[1] += 1
        return [(c, count) for c, count in kinds.values()]


def shortest_lengths(
    out: Mapping[int, Iterable[tuple[int, int]]], starts: Mapping[int, int]
) -> dict[int, int]:
    """{rank: length of the shortest path} for all reachable ranks, by Dijkstra's algorithm.

    - `out`: {rank: (other end, length) of each arc out of it}.
    - `starts`: {rank: initial length}.
    """
    best: dict[int, int] = {}
    queue = [(length, rank) for rank, length in starts.items()]
    heapq.heapify(queue)
    while queue:
        length, rank = heapq.heappop(queue)
        if rank not in best:
            best[rank] = length
            for other, more in out.get(rank, ()):
                heapq.heappush(queue, (length + more, other))
    return best


def soonest(facts: Facts, prices: Sequence[int], links: Sequence[int], need: Fraction) -> Fraction:
    """Earliest tick T by which resources can have paid `need`: each pays its price for every tick of a hold.

    Only sends over `links` count. Until time T, a resource can have been held for at most T minus its idle
    ticks.
    """
    idle = _idle(facts, links)
    events = sorted((idle[r], price) for r, price in enumerate(prices) if price and r in idle)
    if need <= 0 or not events:
        return Fraction(0)
    paid, rate, now = Fraction(0), 0, 0
    for when, price in events:
        more = rate * (when - now)
        if paid + more >= need:
            break
        paid, rate, now = paid + more, rate + price, when
    return now + (need - paid) / rate


def _idle(facts: Facts, links: Sequence[int]) -> dict[int, int]:
    """{resource: min ticks idle at a schedule's start and end together}, if only sends over `links` count.

    A link counts for a chunk if it is on a path from an origin to a destination.
    """
    before: dict[int, int] = {}
    after: dict[int, int] = {}
    chosen = set(links)
    for some, units, first, last in _heads_and_tails(facts):
        for e in chosen.intersection(some):
            begins = [first[r] for r in facts.topology.links[e].srcs if r in first]
            ends = [last[r] for r in facts.topology.links[e].dsts if r in last]
            for r, (alpha, beta, receives) in facts.holds[e].items() if begins and ends else ():
                if beta or alpha:
                    # Ticks of a send outside its hold; no fewer for a larger one, as link beta >= hold beta.
                    rest = facts.alpha[e] - alpha + units * (facts.beta[e] - beta)
                    begin = min(begins) + (rest if receives else 0)
                    end = min(ends) + (0 if receives else rest)
                    before[r] = min(begin, before.get(r, begin))
                    after[r] = min(end, after.get(r, end))
    return {r: before[r] + after[r] for r in before}


def lanes(
    facts: Facts, links: Iterable[int], resources: Iterable[int]
) -> tuple[list[tuple[int, int, int]], bool]:
    """Costs of each resource, as from `lane`, and True if every link holds one of the resources.

    Each link counts for the first resource that it holds.
    """
    left, found = set(links), []
    for resource in resources:
        mine = [e for e in left if resource in facts.holds[e]]
        left.difference_update(mine)
        if mine:
            found.append(lane(facts, mine, resource))
    return found, not left


def lane(facts: Facts, links: Sequence[int], resource: int) -> tuple[int, int, int]:
    """Costs (alpha, beta, wait) in ticks of a resource that all of the links hold.

    Alpha and beta are the least of the holds. The wait is the least time of a send outside its hold. If some
    holds start with their sends and others end with theirs, holds may follow one another without a gap; the
    wait is then at most 0.
    """
    holds, longest = [facts.holds[e][resource] for e in links], sum(facts.units)
    waits = [
        facts.alpha[e] - hold[0] + min(0, (facts.beta[e] - hold[1]) * longest)
        for e, hold in zip(links, holds, strict=True)
    ]
    wait = min(waits) if len({hold[2] for hold in holds}) == 1 else min(0, *waits)
    return min(hold[0] for hold in holds), min(hold[1] for hold in holds), wait


def _heads_and_tails(facts: Facts) -> Iterator[tuple[Sequence[int], int, dict[int, int], dict[int, int]]]:
    """Yield the earliest ticks of chunks at ranks, and their min ticks from each rank to a destination.

    There is one item, (links, units, {rank: earliest tick}, {rank: min ticks}), for all chunks with the same
    links and size. A chunk is also wanted by the rank that derives another chunk from it.
    """
    makes: dict[int, set[int]] = defaultdict(set)
    for each in facts.collective.derivations:
        makes[each.source].add(each.rank)
    found: dict[tuple[int, int], tuple[list[int], dict[int, int], dict[int, int]]] = {}
    for c, data in enumerate(facts.collective.chunks):
        units = 0 if facts.divisible else facts.units[c]
        starts = facts.origins(c, 0 if facts.divisible else None)
        wanted = makes[c].union(data.destinations)
        if not facts.sums or (len(starts) == 1 and not facts.collective.updates):
            wanted -= starts.keys()  # these hold the chunk, unless a server has yet to update it
        if not starts or not wanted:
            continue
        links = facts.carried(c)
        _, first, last = found.setdefault((id(links), units), (links, {}, {}))
        for rank, when in starts.items():
            first[rank] = min(when, first.get(rank, when))
        last.update(dict.fromkeys(wanted, 0))
    for (_, units), (links, first, last) in found.items():
        yield links, units, facts.times(links, units, first), facts.times(links, units, last, backwards=True)


def pays(facts: Facts, prices: Sequence[int]) -> list[Fraction]:
    """Cost of sending a chunk over each link, at the given prices of resources per tick.

    If chunk sizes differ or data is divisible, the cost of one unit of data.
    """
    units, alone, together = facts.units[0] if facts.by_chunk else 1, joined(facts), merged(facts)
    costs = []
    for e, held in enumerate(facts.holds):
        alpha = sum(prices[resource] * hold[0] for resource, hold in held.items())
        beta = sum(prices[resource] * hold[1] for resource, hold in held.items())
        costs.append(Fraction(alpha, together if e in facts.clauses.merging else alone) + beta * units)
    return costs


def merged(facts: Facts) -> int:
    """Max volume of a merged send, which pays one alpha: that of `max_merge` unmerged sends, or all data."""
    total = len(facts.units) if facts.by_chunk else sum(facts.units)
    return max(joined(facts), min(facts.clauses.max_merge * joined(facts), total))


def joined(facts: Facts) -> int:
    """Max volume of one unmerged send, which pays one alpha.

    The volume is 1 if chunks are counted. Otherwise it is the units of the largest chunk, or, if data is
    divisible, of all chunks with equal origins and destinations together.
    """
    if facts.by_chunk:
        return 1
    largest: int = max(facts.units)
    if not facts.divisible:
        return largest
    sizes: dict[tuple[frozenset[int], frozenset[int]], int] = defaultdict(int)
    for c, (data, units) in enumerate(zip(facts.collective.chunks, facts.units, strict=True)):
        made = {facts.made_at[c].rank} if c in facts.made_at else set()
        sizes[frozenset(made.union(data.origins)), frozenset(data.destinations)] += units
    return max(largest, *sizes.values())
