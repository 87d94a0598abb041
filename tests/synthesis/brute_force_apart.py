"""Exhaustive search, tick by tick, for sums in any order of additions.

As `brute_force`, but ranks keep their own contributions and all arrivals as separate values. A send carries
any sum that its sender can form from disjoint sums it holds. No rank is a root, except for clauses that name
the root. A contribution arrives at its rank at its release date; other sums may arrive there before.
If servers update sums, the root of a sum has a further value once the update ends, which all others need.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from tests.synthesis.brute_force import NEVER, TooLarge, _occupied, _Rules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taccl.problem.problem import Problem


def sums_by(problem: Problem, ticks: int, *, max_states: int = 20_000) -> bool:
    """True if some schedule finishes within `ticks`; raises `TooLarge`."""
    return ticks >= 0 and _reaches(_Rules(problem), ticks, max_states)


class _Flight(NamedTuple):
    left: int
    chunk: int
    dst: int
    content: int


class _State(NamedTuple):
    known: tuple[frozenset[int], ...]  # per chunk and rank: the sums there, each a mask of ranks
    flights: tuple[_Flight, ...]
    busy: tuple[int, ...]


@cache
def _sums_of(known: frozenset[int]) -> frozenset[int]:
    """Every sum of pairwise disjoint known sums."""
    made = {0}
    for some in sorted(known):
        made |= {some | other for other in made if not some & other}
    return frozenset(made - {0})


def _reaches(rules: _Rules, horizon: int, max_states: int) -> bool:
    n, chunks = rules.num_ranks, rules.collective.chunks
    full = _wanted(rules)
    known = tuple(
        frozenset({1 << r} if r in data.origins and (c, r) not in rules.release else ())
        for c, data in enumerate(chunks)
        for r in range(n)
    )
    coming = tuple(sorted(_Flight(ticks, c, r, 1 << r) for (c, r), ticks in rules.release.items()))
    states, visited = {_State(known, coming, (0,) * len(rules.topology.resources))}, 0
    for left in range(horizon, -1, -1):
        following: set[_State] = set()
        for state in states:
            landed = _land(rules, state)
            if all(
                _holds(rules, landed, full, c, d) for c, data in enumerate(chunks) for d in data.destinations
            ):
                return True
            if not _in_time(rules, landed, full, left, horizon):
                continue
            for after in _started(rules, landed, full, left):
                visited += 1
                if visited > max_states:
                    raise TooLarge
                if _in_time(rules, after, full, left, horizon):
                    flights = tuple(sorted(f._replace(left=f.left - 1) for f in after.flights))
                    following.add(_State(after.known, flights, tuple(mask >> 1 for mask in after.busy)))
        states = following
    return False


def _wanted(rules: _Rules) -> list[int]:
    """The value of each chunk that may be copied: its full sum, or its updated sum."""
    chunks = rules.collective.chunks
    if rules.collective.updates:
        return [1 << rules.num_ranks] * len(chunks)
    return [sum(1 << r for r in data.origins) for data in chunks]


def _holds(rules: _Rules, state: _State, full: list[int], c: int, rank: int) -> bool:
    """True if a rank has its value of a chunk; the root that updates a sum needs the sum alone."""
    data, known = rules.collective.chunks[c], state.known[c * rules.num_ranks + rank]
    at_root = rules.collective.updates and rank == data.root
    return (sum(1 << r for r in data.origins) if at_root else full[c]) in _sums_of(known)


def _land(rules: _Rules, state: _State) -> _State:
    """Add what arrives now to the values of its rank; a root that has its sum now begins to update it."""
    known, left = list(state.known), [f for f in state.flights if f.left]
    for flight in state.flights:
        if flight.left == 0:
            known[flight.chunk * rules.num_ranks + flight.dst] |= {flight.content}
    for c, data in enumerate(rules.collective.chunks if rules.collective.updates else ()):
        place, done = c * rules.num_ranks + data.root, 1 << rules.num_ranks
        is_begun = done in known[place] or any(
            (f.chunk, f.content, f.dst) == (c, done, data.root) for f in left
        )
        if not is_begun and sum(1 << r for r in data.origins) in _sums_of(known[place]):
            ticks = int(rules.problem.update_ticks[c])
            if ticks:
                left.append(_Flight(ticks, c, data.root, done))
            else:
                known[place] |= {done}
    return _State(tuple(known), tuple(left), state.busy)


def _started(rules: _Rules, state: _State, full: list[int], left: int, first: int = 0) -> Iterator[_State]:
    """Every state reachable by starting any sends now over links numbered `first` and up."""
    yield state
    for link in range(first, len(rules.links)):
        sums = [_useful(rules, state, full, link, c, left) for c in range(rules.num_chunks)]
        for chunks in rules.batches(link, [c for c, some in enumerate(sums) if some]):
            duration = rules.duration(link, chunks)
            busy = _occupied(rules, state.busy, link, chunks)
            if busy is None or duration > left:
                continue
            for contents in itertools.product(*(sums[c] for c in chunks)):
                # Chunks of one send are either all complete copies or all partial sums.
                if len({content == full[c] for c, content in zip(chunks, contents, strict=True)}) > 1:
                    continue
                new = [
                    _Flight(duration, c, dst, content)
                    for c, content in zip(chunks, contents, strict=True)
                    for dst in rules.links[link][1]
                ]
                yield from _started(
                    rules, _State(state.known, (*state.flights, *new), busy), full, left, link + 1
                )


def _useful(rules: _Rules, state: _State, full: list[int], link: int, c: int, left: int) -> list[int]:
    """Sums that a send now over a link may carry and that some receiver cannot form without it."""
    n, (srcs, dsts) = rules.num_ranks, rules.links[link]
    if rules.duration(link, (c,)) > left:
        return []
    data = rules.collective.chunks[c]
    have = frozenset().union(*(state.known[c * n + src] for src in srcs))
    coming = {(f.dst, f.content) for f in state.flights if f.chunk == c}
    updated = full[c] if rules.collective.updates else 0
    return [
        content
        for content in sorted(_sums_of(have))
        if rules.admitted[content != full[c] or data.destinations == (data.root,)][link][c]
        and (content == full[c] or not content & updated)
        and any(
            content not in _sums_of(state.known[c * n + dst]) and (dst, content) not in coming for dst in dsts
        )
    ]


def _in_time(rules: _Rules, state: _State, full: list[int], left: int, horizon: int) -> bool:
    """True if every missing value can still arrive by its shortest path, at the latest when it is due."""
    n = rules.num_ranks
    for c, data in enumerate(rules.collective.chunks):
        places = [(x, content, 0) for x in range(n) for content in state.known[c * n + x]]
        places += [(f.dst, f.content, f.left) for f in state.flights if f.chunk == c]
        for d in data.destinations:
            if _holds(rules, state, full, c, d):
                continue
            most = rules.left(c, d, horizon - left, horizon)
            soonest = _soonest(rules, places, data.origins, c, d)
            if rules.collective.updates and d != data.root:
                by_root = (
                    _soonest(rules, places, data.origins, c, data.root) + rules.distance[c][data.root][d]
                )
                done = (wait + rules.distance[c][x][d] for x, content, wait in places if content == full[c])
                soonest = min(by_root + int(rules.problem.update_ticks[c]), *done, NEVER)
            if not most or soonest > most:
                return False
    return True


def _soonest(
    rules: _Rules, places: list[tuple[int, int, int]], origins: tuple[int, ...], c: int, rank: int
) -> int:
    """Min ticks until all contributions to a sum can have reached a rank, by their shortest paths."""
    waits = dict.fromkeys(origins, NEVER)
    for x, content, wait in places:
        for r in origins:
            if content >> r & 1:
                waits[r] = min(waits[r], wait + rules.distance[c][x][rank])
    return max(waits.values())
