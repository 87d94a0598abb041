"""Waits of a precedence graph that clauses, release dates and updates without contributions require."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taccl.problem.costs import Costs
    from taccl.schedule.precedence import Precedence

#: Value of `cause` for waits that local-first priority, a release date or such an update requires.
CLAUSE = -3


def add_local_first(order: Precedence) -> None:
    """Add waits for local-first priority: local chunks start at least one latency before relayed ones.

    In a reduction, local chunks end at least one latency after relayed ones. If the given order has this gap,
    the waits keep it. With `Precedence.impose`, they also enforce the gap wherever local chunks come first
    (in a reduction, last).
    """
    if not order.own.clauses.own_first:
        return
    topology, costs, own_costs = order.own.topology, order.problem.costs, order.own.costs
    lanes: dict[tuple[int, bool], list[int]] = defaultdict(list)
    for transfer, s in enumerate(order.send):
        if order.link[s] in order.own.clauses.own_first:
            lanes[order.link[s], order.reduce[transfer]].append(transfer)
    for (link, reducing), members in lanes.items():
        near = set(topology.links[link].dsts if reducing else topology.links[link].srcs)
        own = [t for t in members if not near.isdisjoint(_starts(order, order.chunk[t], reducing))]
        rest = sorted({order.send[t] for t in members} - {order.send[t] for t in own})
        if not own or not rest:
            continue
        latency, own_latency = _latencies(order, costs, own), _latencies(order, own_costs, own)
        if reducing:
            joined = order.join([(s, order.duration[s]) for s in rest], CLAUSE)
            last = max((order.start if order.impose else order.end)[s] for s in rest)
            for s in latency:
                if last <= (order.start[s] if order.impose else order.end[s] - own_latency[s]):
                    order.wait(joined, s, CLAUSE, lead=order.duration[s] - latency[s])
            continue
        joined = order.join(latency.items(), CLAUSE)
        free = max(order.start[s] + (0 if order.impose else gap) for s, gap in own_latency.items())
        for s in rest:
            if order.start[s] >= free:
                order.wait(joined, s, CLAUSE)


def add_releases(order: Precedence) -> None:
    """Add waits for release dates: a rank's initial data is neither sent nor added to before its date.

    A chunk that a rank derives from initial data has the same date.
    """
    released = dict(order.problem.release_ticks)
    if not released:
        return
    for made in order.problem.collective.derivations_in_turn:
        if (made.source, made.rank) in released:
            released[made.chunk, made.rank] = released[made.source, made.rank]
    zero = order.join((), CLAUSE)
    for transfer, s in enumerate(order.send):
        ends, chunk = order.problem.topology.links[order.link[s]], order.chunk[transfer]
        for rank in ends.srcs:
            if (chunk, rank) in released:
                order.wait(zero, s, CLAUSE, released[chunk, rank])
        for rank in ends.dsts:
            if order.reduce[transfer] and (chunk, rank) in released:
                order.wait(zero, s, CLAUSE, released[chunk, rank], lead=order.duration[s])


def add_updates(order: Precedence) -> None:
    """Add waits for updates of sums to which only their server contributes; other updates follow arrivals."""
    if not order.own.collective.updates:
        return
    chunks, zero = order.own.collective.chunks, order.join((), CLAUSE)
    for chunk, s in zip(order.chunk, order.send, strict=True):
        if chunks[chunk].origins == (chunks[chunk].root,):
            order.wait(zero, s, CLAUSE, int(order.problem.update_ticks[chunk]))


def _latencies(order: Precedence, costs: Costs, transfers: Sequence[int]) -> dict[int, int]:
    """{send: ticks that the largest of its chunks in the given transfers would take as a send of its own}."""
    found: dict[int, int] = {}
    for t in transfers:
        s, units = order.send[t], int(costs.chunk_units[order.chunk[t]])
        found[s] = max(found.get(s, 0), costs.duration(order.link[s], units))
    return found


def _starts(order: Precedence, chunk: int, reducing: bool) -> set[int | None]:
    """Ranks where a chunk starts; for a chunk that is reduced, only its root."""
    collective = order.own.collective
    root = collective.chunks[chunk].root
    if reducing or (collective.combining and root is not None):
        return {root}
    return set(collective.starts[chunk])
