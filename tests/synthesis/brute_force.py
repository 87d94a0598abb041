"""Optimal makespans of tiny problems by exhaustive search, tick by tick, without taccl's schedulers.

A state is the data of every rank, the sends in flight, and the remaining busy time of resources. At every
tick any set of sends may start, also none, so idling and every merge are tried. A state that is no better
than another in any respect is dropped; nothing else is assumed about optimal schedules.

A copy may be sent on as soon as it has arrived, also before the release date of the rank's own copy. So with
release dates an optimum may be below that of valid schedules. Sums here have no dates; those of
`brute_force_apart` have.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import floor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from taccl.problem.problem import Problem

NEVER = 10**6


class TooLarge(Exception):
    """The search visits more states than the limit."""


def optimal_ticks(
    problem: Problem, *, least: int = 0, most: int = 200, max_states: int = 60_000
) -> int | None:
    """Optimal makespan in ticks over all valid schedules; `least` is a known lower bound.

    None if the search visits more than `max_states` states at one horizon.
    """
    rules = _Rules(problem)
    for horizon in range(least, most + 1):
        try:
            if rules.reaches(horizon, max_states):
                return horizon
        except TooLarge:
            return None
    raise AssertionError(f"no schedule within {most} ticks")


def finishes_by(problem: Problem, ticks: int, *, max_states: int = 60_000) -> bool:
    """True if some valid schedule finishes within `ticks`; raises `TooLarge`."""
    return ticks >= 0 and _Rules(problem).reaches(ticks, max_states)


class _Send(NamedTuple):
    link: int
    chunks: tuple[int, ...]
    reduce: bool
    end: int


@dataclass
class _Rules:
    """A problem in ticks, with the topology's exact costs and the rules in the docstring of `Clauses`."""

    problem: Problem

    def __post_init__(self) -> None:
        problem = self.problem
        self.topology, self.collective, self.clauses = problem.topology, problem.collective, problem.clauses
        self.num_ranks, self.num_chunks = problem.topology.num_ranks, problem.collective.num_chunks
        self.links = [(e.srcs, e.dsts) for e in problem.topology.links]
        self.own_first = sorted(self.clauses.own_first)
        per_us = problem.costs.ticks_per_us
        self.release = problem.release_ticks
        self.due = {(chunk, rank): floor(us * per_us) for chunk, rank, us in problem.due_us}
        self._durations: dict[tuple[int, tuple[int, ...]], int] = {}
        self._busy: dict[tuple[int, tuple[int, ...]], list[tuple[int, int]]] = {}
        # If only roots need sums, a rank sends each chunk once and receives none of it afterwards.
        # Its buffer only grows, so a second send would repeat contributions of the first one.
        # This does not hold for links with several sources: all need a contribution, maybe by a copy.
        self.sends_once = all(len(srcs) == len(dsts) == 1 for srcs, dsts in self.links) and all(
            data.destinations == (data.root,) for data in self.collective.chunks
        )
        self.gone = 1 << self.num_ranks

    def left(self, chunk: int, rank: int, now: int, horizon: int) -> int:
        """Ticks left for a chunk to reach a rank by the horizon and by its due date; 0 once that has passed."""
        return max(0, min(horizon, self.due.get((chunk, rank), horizon)) - now)

    def reaches(self, horizon: int, max_states: int) -> bool:
        """True if every chunk can reach its destinations by the horizon."""
        sums = self.collective.combining and not self.collective.derivations
        return (_reaches_with_sums if sums else _reaches)(self, horizon, max_states)

    def _ticks(self, alpha: Fraction, beta: Fraction, num_bytes: int) -> int:
        ticks = (alpha + beta * Fraction(num_bytes, 10**6)) * self.problem.costs.ticks_per_us
        assert ticks.denominator == 1, "brute force wants whole ticks"
        return int(ticks)

    def duration(self, link: int, chunks: Iterable[int]) -> int:
        key = (link, tuple(chunks))
        if key not in self._durations:
            ends, size = self.topology.links[link], sum(self.problem.chunk_bytes[c] for c in key[1])
            self._durations[key] = self._ticks(ends.alpha_us, ends.beta_us_per_mb, size)
        return self._durations[key]

    def busy(self, link: int, chunks: tuple[int, ...]) -> list[tuple[int, int]]:
        """Pairs (resource, bit mask of ticks for which the send holds it); bit 0 is the start of the send."""
        if (link, chunks) not in self._busy:
            self._busy[link, chunks] = self._masks(link, chunks)
        return self._busy[link, chunks]

    def _masks(self, link: int, chunks: tuple[int, ...]) -> list[tuple[int, int]]:
        duration, size = self.duration(link, chunks), sum(self.problem.chunk_bytes[c] for c in chunks)
        masks = []
        for hold in self.topology.holds_of_link[link]:
            length = self._ticks(hold.alpha_us, hold.beta_us_per_mb, size)
            begin = 0 if hold.side == "send" else duration - length
            masks.append((hold.resource, ((1 << length) - 1) << begin))
        return masks

    def home(self, chunk: int) -> set[int]:
        """Ranks from which a chunk spreads: the root of a sum; otherwise origins and ranks that derive it."""
        data = self.collective.chunks[chunk]
        if self.collective.combining and data.root is not None:
            return {data.root}
        return set(data.origins) | {d.rank for d in self.collective.derivations if d.chunk == chunk}

    def members(self, chunk: int) -> Iterable[int]:
        """Ranks of a chunk's process group; without groups, all ranks at which any chunk starts or ends."""
        last = 0
        for group in self.collective.groups:
            last += group.num_chunks
            if chunk < last:
                return group.ranks
        named = {d.rank for d in self.collective.derivations}
        for data in self.collective.chunks:
            named |= {*data.origins, *data.destinations}
            named |= set() if data.root is None else {data.root}
        return named

    @cached_property
    def admitted(self) -> list[list[list[bool]]]:
        """Table [reducing][link][chunk]: True if the link may carry the chunk."""
        return [
            [
                [self._admits(e, c, reducing=reducing) for c in range(self.num_chunks)]
                for e in range(len(self.links))
            ]
            for reducing in (False, True)
        ]

    def _admits(self, link: int, chunk: int, *, reducing: bool) -> bool:
        clauses, data, node = self.clauses, self.collective.chunks[chunk], self.topology.node_of_rank
        if reducing and data.root is None:
            return False
        if clauses.links_allowed is not None and link not in clauses.links_allowed:
            return False
        if clauses.relays is not None:
            holders = {*self.members(chunk), *clauses.relays}
            if not holders.issuperset((*self.links[link][0], *self.links[link][1])):
                return False
        carries = clauses.carries_to if reducing else clauses.carries_from
        mine = {data.root} if reducing else self.home(chunk)
        if link in carries and not mine & carries[link]:
            return False
        leaves = {node[r] for r in self.links[link][0]}
        enters = {node[r] for r in self.links[link][1]}
        if clauses.direct_crossing and leaves != enters and not self.collective.derivations:
            sources = set(data.origins) if reducing else self.home(chunk)
            targets = {data.root} if reducing else set(data.destinations)
            return leaves <= {node[r] for r in sources} and enters <= {node[r] for r in targets}
        return True

    def is_own(self, send: _Send) -> bool:
        """True if a send on a link with local-first priority carries chunks of its own rank."""
        srcs, dsts = self.links[send.link]
        owns = [
            self.collective.chunks[c].root in dsts if send.reduce else bool(self.home(c) & set(srcs))
            for c in send.chunks
        ]
        assert all(owns) or not any(owns), "own and relayed chunks do not merge"
        return owns[0]

    @cached_property
    def distance(self) -> list[list[list[int]]]:
        """Table [chunk][from][to]: shortest ticks over all links that admit the chunk in either phase."""
        table = []
        for c in range(self.num_chunks):
            rows = [[0 if a == b else NEVER for b in range(self.num_ranks)] for a in range(self.num_ranks)]
            for e, (srcs, dsts) in enumerate(self.links):
                if self.admitted[0][e][c] or (self.collective.combining and self.admitted[1][e][c]):
                    for a, b in itertools.product(srcs, dsts):
                        rows[a][b] = min(rows[a][b], self.duration(e, (c,)))
            for via, a, b in itertools.product(range(self.num_ranks), repeat=3):
                rows[a][b] = min(rows[a][b], rows[a][via] + rows[via][b])
            table.append(rows)
        return table

    def batches(self, link: int, candidates: list[int]) -> Iterator[tuple[int, ...]]:
        """Every set of chunks that one send over a link may carry."""
        most = self.clauses.max_merge if link in self.clauses.merging else 1
        for count in range(1, min(most, len(candidates)) + 1):
            yield from itertools.combinations(candidates, count)


class _Lane(NamedTuple):
    """State of a link with local-first priority.

    - `wait`: Ticks before relayed chunks may start.
    - `relayed`: True if a relayed chunk has started.
    """

    wait: int
    relayed: bool


class _State(NamedTuple):
    arrival: tuple[int, ...]  # per chunk and rank: ticks from now, 0 if there, NEVER if not on its way
    busy: tuple[int, ...]  # per resource: mask of busy ticks from now on
    lanes: tuple[_Lane, ...]


def _lanes_after(rules: _Rules, lanes: tuple[_Lane, ...], send: _Send) -> tuple[_Lane, ...] | None:
    """States of links with local-first priority after `send` starts; None if the priority forbids the send.

    A send that reduces changes no state.
    """
    if send.link not in rules.own_first or send.reduce:
        return lanes
    index = rules.own_first.index(send.link)
    lane = lanes[index]
    if rules.is_own(send):
        if lane.relayed:
            return None
        wait = max(lane.wait, *(rules.duration(send.link, (c,)) for c in send.chunks))
        lane = _Lane(wait, False)
    elif lane.wait > 0:
        return None
    else:
        lane = _Lane(0, True)
    return (*lanes[:index], lane, *lanes[index + 1 :])


def _reaches(rules: _Rules, horizon: int, max_states: int) -> bool:
    """True if copies can reach all destinations by the horizon."""
    ranks = range(rules.num_ranks)
    arrival = [
        rules.release.get((c, r), 0) if r in rules.collective.chunks[c].origins else NEVER
        for c in range(rules.num_chunks)
        for r in ranks
    ]
    none = (0,) * len(rules.topology.resources)
    states = {_State(_derived(rules, arrival), none, (_Lane(0, False),) * len(rules.own_first))}
    visited = 0
    for now in range(horizon + 1):
        following: set[_State] = set()
        for state in states:
            for after in _started(rules, state):
                visited += 1
                if visited > max_states:
                    raise TooLarge
                if not _in_time(rules, after.arrival, now, horizon):
                    continue
                if _complete(rules, after.arrival, now, horizon):
                    return True
                following.add(_State(*_tick(rules, after)))
        states = _undominated(following)
    return False


def _derived(rules: _Rules, arrival: list[int]) -> tuple[int, ...]:
    """Arrival times with derived chunks: each is available as soon as its source is."""
    for _ in rules.collective.derivations:
        for d in rules.collective.derivations:
            source = arrival[d.source * rules.num_ranks + d.rank]
            target = d.chunk * rules.num_ranks + d.rank
            arrival[target] = min(arrival[target], source)
    return tuple(arrival)


def _started(rules: _Rules, state: _State, first: int = 0) -> Iterator[_State]:
    """Every state reachable by starting any sends now over links numbered `first` and up."""
    yield state
    for link in range(first, len(rules.links)):
        srcs, dsts = rules.links[link]
        candidates = [
            c
            for c in range(rules.num_chunks)
            if rules.admitted[0][link][c]
            and all(state.arrival[c * rules.num_ranks + r] == 0 for r in srcs)
            and any(state.arrival[c * rules.num_ranks + r] > rules.duration(link, (c,)) for r in dsts)
        ]
        for chunks in rules.batches(link, candidates):
            if link in rules.own_first and len({bool(rules.home(c) & set(srcs)) for c in chunks}) > 1:
                continue
            busy = _occupied(rules, state.busy, link, chunks)
            duration = rules.duration(link, chunks)
            lanes = _lanes_after(rules, state.lanes, _Send(link, chunks, False, duration))
            if busy is None or lanes is None:
                continue
            arrival = list(state.arrival)
            for c, r in itertools.product(chunks, dsts):
                index = c * rules.num_ranks + r
                arrival[index] = min(arrival[index], duration)
            yield from _started(rules, _State(_derived(rules, arrival), busy, lanes), link + 1)


def _occupied(
    rules: _Rules, busy: tuple[int, ...], link: int, chunks: tuple[int, ...]
) -> tuple[int, ...] | None:
    after = list(busy)
    for resource, mask in rules.busy(link, chunks):
        if after[resource] & mask:
            return None
        after[resource] |= mask
    return tuple(after)


def _tick(rules: _Rules, state: _State) -> tuple[tuple[int, ...], tuple[int, ...], tuple[_Lane, ...]]:
    arrival = tuple(a if a in (0, NEVER) else a - 1 for a in state.arrival)
    lanes = tuple(_Lane(max(0, lane.wait - 1), lane.relayed) for lane in state.lanes)
    return arrival, tuple(mask >> 1 for mask in state.busy), lanes


def _in_time(rules: _Rules, arrival: tuple[int, ...], now: int, horizon: int) -> bool:
    """True if every missing chunk can still arrive by its shortest path."""
    n = rules.num_ranks
    for c, data in enumerate(rules.collective.chunks):
        for d in data.destinations:
            soonest = min(arrival[c * n + r] + rules.distance[c][r][d] for r in range(n))
            if soonest > rules.left(c, d, now, horizon) and not any(
                derived.chunk == c for derived in rules.collective.derivations
            ):
                return False
    return True


def _complete(rules: _Rules, arrival: tuple[int, ...], now: int, horizon: int) -> bool:
    """True if every chunk is at its destinations, or arrives within the time left."""
    n = rules.num_ranks
    return all(
        arrival[c * n + d] <= rules.left(c, d, now, horizon)
        for c, data in enumerate(rules.collective.chunks)
        for d in data.destinations
    )


def _undominated(states: set[_State]) -> set[_State]:
    """States that no other equals or beats in every respect."""
    ordered = sorted(states, key=lambda s: (sum(s.arrival), sum(mask.bit_count() for mask in s.busy), s))
    kept: list[_State] = []
    arrivals = np.empty((len(ordered), len(ordered[0].arrival) if ordered else 0), dtype=np.int64)
    for state in ordered:
        mine = np.array(state.arrival)
        rivals = np.flatnonzero((arrivals[: len(kept)] <= mine).all(axis=1))
        if any(_no_worse(kept[i], state) for i in rivals):
            continue
        arrivals[len(kept)] = mine
        kept.append(state)
    return set(kept)


def _no_worse(one: _State, other: _State) -> bool:
    return all(not a & ~b for a, b in zip(one.busy, other.busy, strict=True)) and all(
        a.wait <= b.wait and a.relayed <= b.relayed for a, b in zip(one.lanes, other.lanes, strict=True)
    )


class _Flight(NamedTuple):
    left: int
    chunk: int
    dst: int
    content: int
    reduce: bool


class _Sums(NamedTuple):
    content: tuple[int, ...]  # per chunk and rank: mask of the contributions summed there
    flights: tuple[_Flight, ...]
    busy: tuple[int, ...]


def _reaches_with_sums(rules: _Rules, horizon: int, max_states: int) -> bool:
    """True if every destination can hold its full sum by the horizon; local-first priority is not supported."""
    assert not rules.own_first, "brute force does not order reductions on own-first links"
    assert not rules.release and not rules.due, "brute force adds sums without dates"
    ranks, chunks = range(rules.num_ranks), rules.collective.chunks
    content = tuple(1 << r if r in data.origins else 0 for data in chunks for r in ranks)
    full = [sum(1 << r for r in data.origins) for data in chunks]
    states = {_Sums(content, (), (0,) * len(rules.topology.resources))}
    visited = 0
    for now in range(horizon + 1):
        following: set[_Sums] = set()
        for state in states:
            landed = _land(rules, state)
            if landed is None:
                continue
            if all(
                landed.content[c * rules.num_ranks + d] == full[c]
                for c, data in enumerate(chunks)
                for d in data.destinations
            ):
                return True
            for after in _started_sums(rules, landed, full):
                visited += 1
                if visited > max_states:
                    raise TooLarge
                if _sums_in_time(rules, after, full, horizon - now):
                    flights = tuple(sorted(f._replace(left=f.left - 1) for f in after.flights))
                    following.add(_Sums(after.content, flights, tuple(mask >> 1 for mask in after.busy)))
        states = following
    return False


def _land(rules: _Rules, state: _Sums) -> _Sums | None:
    """Add or store what arrives now; None if a contribution is lost or counted twice."""
    content = list(state.content)
    landing = [f for f in state.flights if f.left == 0]
    places = [f.chunk * rules.num_ranks + f.dst for f in landing]
    for place, flight in zip(places, landing, strict=True):
        if flight.reduce:
            if content[place] & flight.content:
                return None
            content[place] |= flight.content
        elif content[place] & ~flight.content or places.count(place) > 1:
            return None
        else:
            content[place] = flight.content
    return _Sums(tuple(content), tuple(f for f in state.flights if f.left), state.busy)


def _started_sums(rules: _Rules, state: _Sums, full: list[int], first: int = 0) -> Iterator[_Sums]:
    yield state
    for link, reduce in itertools.product(range(first, len(rules.links)), (True, False)):
        srcs, dsts = rules.links[link]
        brought = [_brought(rules, state, full, link, c) for c in range(rules.num_chunks)]
        candidates = [
            c
            for c, brings in enumerate(brought)
            if brings and any(_adds(rules, state, c, dst, brings, reduce) for dst in dsts)
            and not (rules.sends_once and not reduce)
            and all(_may_land(state.content[c * rules.num_ranks + dst], brings, reduce) for dst in dsts)
        ]  # fmt: skip
        for chunks in rules.batches(link, candidates):
            busy = _occupied(rules, state.busy, link, chunks)
            if busy is None:
                continue
            duration = rules.duration(link, chunks)
            new = [_Flight(duration, c, dst, brought[c], reduce) for c in chunks for dst in dsts]
            content = list(state.content)
            for c in chunks if rules.sends_once else ():
                content[c * rules.num_ranks + srcs[0]] = rules.gone
            after = _Sums(tuple(content), (*state.flights, *new), busy)
            yield from _started_sums(rules, after, full, link + 1)


def _brought(rules: _Rules, state: _Sums, full: list[int], link: int, c: int) -> int:
    """Contributions (bit mask) that a send now over a link would carry; 0 if it may not carry the chunk."""
    n, root, (srcs, _) = rules.num_ranks, rules.collective.chunks[c].root, rules.links[link]
    parts = [state.content[c * n + src] for src in srcs]
    if not all(parts) or rules.gone in parts or sum(parts) != sum(1 << r for r in _bits(parts)):
        return 0
    if rules.sends_once and (
        srcs[0] == root or any(f.chunk == c and f.dst == srcs[0] for f in state.flights)
    ):
        return 0
    # While the root or a source lacks contributions, the chunk is in its reduce phase.
    awaited = rules.sends_once or (root is not None and state.content[c * n + root] != full[c])
    reducing = awaited or any(part != full[c] for part in parts)
    return sum(parts) if rules.admitted[reducing][link][c] else 0


def _bits(parts: Iterable[int]) -> set[int]:
    return {r for part in parts for r in range(part.bit_length()) if part >> r & 1}


def _may_land(there: int, brings: int, reduce: bool) -> bool:
    """True if a rank may accept an arrival: a reduction may not count a contribution twice, and a copy may
    not lose one."""
    return not there & brings if reduce else not there & ~brings


def _adds(rules: _Rules, state: _Sums, c: int, dst: int, brings: int, reduce: bool) -> bool:
    """True if a rank that can still use the arrival gains contributions from it."""
    there = state.content[c * rules.num_ranks + dst]
    if there == rules.gone or brings & ~there == 0:
        return False
    return not any(
        f.chunk == c and f.dst == dst and f.content & brings for f in state.flights if f.reduce and reduce
    )


def _sums_in_time(rules: _Rules, state: _Sums, full: list[int], left: int) -> bool:
    """True if every missing contribution can still arrive by its shortest path."""
    n = rules.num_ranks
    for c, data in enumerate(rules.collective.chunks):
        for d in data.destinations:
            if state.content[c * n + d] == full[c]:
                continue
            for r in data.origins:
                bit = 1 << r
                known = [rules.distance[c][x][d] for x in range(n) if state.content[c * n + x] & bit]
                known += [
                    f.left + rules.distance[c][f.dst][d]
                    for f in state.flights
                    if f.chunk == c and f.content & bit
                ]
                if min(known) > left:
                    return False
    return True
