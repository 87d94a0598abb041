"""An independent check of schedules: a slow simulation tick by tick, written unlike the verifier."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from taccl.schedule.schedule import Schedule, Transfer


def is_valid(schedule: Schedule) -> bool:
    """True if a schedule of some dozens of ticks is valid."""
    transfers = list(schedule)
    topology, collective = schedule.problem.topology, schedule.problem.collective
    for t in transfers:
        exists = t.chunk in range(collective.num_chunks) and t.link in range(len(topology.links))
        if not exists or not 0 <= t.start_ticks < t.end_ticks:
            return False
    sends: dict[int, list[Transfer]] = {}
    for t in transfers:
        sends.setdefault(t.group, []).append(t)
    return (
        all(_is_one_send(schedule, send) for send in sends.values())
        and _resources_suffice(schedule, list(sends.values()))
        and all(_is_admitted(schedule, t) for t in transfers)
        and _own_chunks_lead(schedule, transfers)
        and _paths_are_short(schedule, transfers)
        and dates_are_kept(schedule)
        and data_arrives(schedule)
    )


def _ticks(schedule: Schedule, cost, num_bytes: int) -> Fraction:
    us = cost.alpha_us + cost.beta_us_per_mb * Fraction(num_bytes, 1_000_000)
    return us * schedule.problem.costs.ticks_per_us


def _size(schedule: Schedule, send) -> int:
    return sum(schedule.problem.chunk_bytes[t.chunk] for t in send)


def _is_one_send(schedule, send) -> bool:
    clauses, link = schedule.problem.clauses, send[0].link
    if len({t[1:4] for t in send}) > 1 or len({t.chunk for t in send}) < len(send):
        return False
    if len(send) > (clauses.max_merge if link in clauses.merging else 1):
        return False
    ends = schedule.problem.topology.links[link]
    return send[0].end_ticks - send[0].start_ticks == _ticks(schedule, ends, _size(schedule, send))


def _resources_suffice(schedule, sends) -> bool:
    """True if no resource is held by two sends in one tick."""
    marked: dict[tuple[int, int], int] = {}
    for number, send in enumerate(sends):
        for hold in schedule.problem.topology.holds:
            if hold.link != send[0].link:
                continue
            length = int(_ticks(schedule, hold, _size(schedule, send)))
            first = send[0].start_ticks if hold.side == "send" else send[0].end_ticks - length
            for tick in range(first, first + length):
                if marked.setdefault((hold.resource, tick), number) != number:
                    return False
    return True


def _home(schedule, chunk: int) -> set[int]:
    """Ranks from which a chunk spreads: the root of a sum; otherwise origins and ranks that derive it."""
    collective = schedule.problem.collective
    root = collective.chunks[chunk].root
    if collective.combining and root is not None:
        return {root}
    made = {d.rank for d in collective.derivations if d.chunk == chunk}
    return made | set(collective.chunks[chunk].origins)


def _is_reduced(schedule, t) -> bool:
    """True if a send is in the reduce phase: a partial sum, or a complete one that the root lacks."""
    collective = schedule.problem.collective
    data = collective.chunks[t.chunk]
    if not collective.combining or collective.derivations:
        return False
    whole = set(data.origins)
    if any(_parts(schedule, r, t) != whole for r in schedule.problem.topology.links[t.link].srcs):
        return True
    return data.root is not None and _parts(schedule, data.root, t) != whole


def _parts(schedule, rank: int, t) -> set[int]:
    """Ranks whose contributions to the chunk of `t` a rank holds when `t` starts."""
    links = schedule.problem.topology.links
    held = {rank} & set(schedule.problem.collective.chunks[t.chunk].origins)
    before = [a for a in schedule if a.chunk == t.chunk and a.end_ticks <= t.start_ticks]
    for a in sorted(before, key=lambda a: (a.end_ticks, not a.reduce)):
        if rank in links[a.link].dsts and a.start_ticks < a.end_ticks:
            brought = set().union(*(_parts(schedule, src, a) for src in links[a.link].srcs))
            held = held | brought if a.reduce else (brought or held)
    return held


def _is_admitted(schedule, t) -> bool:
    problem = schedule.problem
    clauses, topology, data = problem.clauses, problem.topology, problem.collective.chunks[t.chunk]
    if clauses.links_allowed is not None and t.link not in clauses.links_allowed:
        return False
    is_reduced = _is_reduced(schedule, t)
    limits = clauses.carries_to if is_reduced else clauses.carries_from
    wanted = {data.root} if is_reduced else _home(schedule, t.chunk)
    if t.link in limits and not wanted & limits[t.link]:
        return False
    if clauses.direct_crossing and not problem.collective.derivations:
        for src, dst in itertools.product(topology.links[t.link].srcs, topology.links[t.link].dsts):
            a, b = topology.node_of_rank[src], topology.node_of_rank[dst]
            sources = set(data.origins) if is_reduced else _home(schedule, t.chunk)
            targets = {data.root} if is_reduced and data.root is not None else set(data.destinations)
            if a != b and (
                a not in {topology.node_of_rank[r] for r in sources}
                or b not in {topology.node_of_rank[r] for r in targets}
            ):
                return False
    return True


def _own_chunks_lead(schedule, transfers) -> bool:
    problem = schedule.problem
    for first, second in itertools.permutations(transfers, 2):
        if first.link != second.link or first.link not in problem.clauses.own_first:
            continue
        is_reduced = _is_reduced(schedule, first)
        if is_reduced != _is_reduced(schedule, second):
            continue
        ends = problem.topology.links[first.link]
        if is_reduced:
            roots = problem.collective.chunks
            is_pair = roots[first.chunk].root in ends.dsts and roots[second.chunk].root not in ends.dsts
            gap = first.end_ticks - second.end_ticks
        else:
            mine = set(ends.srcs)
            is_pair = bool(_home(schedule, first.chunk) & mine) and not _home(schedule, second.chunk) & mine
            gap = second.start_ticks - first.start_ticks
        if is_pair and gap < _ticks(schedule, ends, problem.chunk_bytes[first.chunk]):
            return False
    return True


def _paths_are_short(schedule, transfers) -> bool:
    """True if no send's data has crossed more links than the sketch allows, including that send."""
    most, links = schedule.problem.clauses.max_hops, schedule.problem.topology.links

    def passed(t) -> int:
        reduced = _is_reduced(schedule, t)
        before = [
            passed(a)
            for a in transfers
            if a.chunk == t.chunk
            and a.end_ticks <= t.start_ticks
            and set(links[a.link].dsts) & set(links[t.link].srcs)
            and _is_reduced(schedule, a) == reduced
        ]
        if reduced:
            return 1 + max(before, default=0)
        return 1 + (0 if _home(schedule, t.chunk) & set(links[t.link].srcs) else min(before, default=0))

    return most is None or all(passed(t) <= most for t in transfers)


def dates_are_kept(schedule: Schedule) -> bool:
    """True if no data leaves or is added to before its release, and chunks are complete when they are due.

    A sum counts as complete from the last arrival on, even if that is redundant.
    """
    transfers = list(schedule)
    problem, links = schedule.problem, schedule.problem.topology.links
    per_us, sums = problem.costs.ticks_per_us, problem.collective.combining
    release = {(chunk, rank): us * per_us for chunk, rank, us in problem.release_us}
    for t in transfers:
        leaves = [(src, t.start_ticks) for src in links[t.link].srcs]
        lands = [(dst, t.end_ticks) for dst in links[t.link].dsts if t.reduce]
        if any(tick < release.get((t.chunk, rank), tick) for rank, tick in leaves + lands):
            return False
    for chunk, rank, us in problem.due_us:
        own = rank in problem.collective.chunks[chunk].origins
        ticks = [t.end_ticks for t in transfers if t.chunk == chunk and rank in links[t.link].dsts]
        ticks += [release.get((chunk, rank), 0)] * own
        if ticks and (max if sums else min)(ticks) > us * per_us:
            return False
    return True


def data_arrives(schedule) -> bool:
    """True if each send's data is present, ends are complete, and each contribution is counted once.

    Simulates the ticks at which sends start or end: arrivals in every possible order, then departures.
    """
    transfers = list(schedule)
    collective, links = schedule.problem.collective, schedule.problem.topology.links
    sums = collective.combining and not collective.derivations
    ranks = range(collective.num_ranks)
    buffers: dict[tuple[int, int], Counter] = {}
    for chunk, data in enumerate(collective.chunks):
        for rank in data.origins:
            buffers[rank, chunk] = Counter([rank] if sums else ["data"])
    under_way: dict[int, Counter] = {}
    for tick in sorted({0, *(t.start_ticks for t in transfers), *(t.end_ticks for t in transfers)}):
        landing: dict[tuple[int, int], list[tuple[bool, Counter]]] = {}
        for i, t in enumerate(transfers):
            if t.end_ticks == tick:
                for rank in links[t.link].dsts:
                    landing.setdefault((rank, t.chunk), []).append((t.reduce, under_way[i]))
        for place, arrivals in landing.items():
            outcomes = [
                _land(buffers.get(place, Counter()), order, sums)
                for order in itertools.permutations(arrivals)
            ]
            if None in outcomes or any(outcome != outcomes[0] for outcome in outcomes):
                return False
            buffers[place] = outcomes[0]
        for _ in collective.derivations:
            for d in collective.derivations:
                if d.rank in ranks and buffers.get((d.rank, d.source)):
                    buffers[d.rank, d.chunk] = Counter(["data"])
        for i, t in enumerate(transfers):
            if t.start_ticks == tick:
                parts = [buffers.get((rank, t.chunk), Counter()) for rank in links[t.link].srcs]
                if not all(parts):
                    return False
                under_way[i] = sum(parts, Counter()) if sums else Counter(["data"])
                if max(under_way[i].values()) > 1:
                    return False
    for chunk, data in enumerate(collective.chunks):
        whole = Counter(data.origins) if sums else Counter(["data"])
        if any(buffers.get((rank, chunk), Counter()) != whole for rank in data.destinations):
            return False
    return True


def _land(held: Counter, arrivals, sums: bool) -> Counter | None:
    """Content of a buffer after arrivals in this order; None if that is a violation."""
    for adds, value in arrivals:
        if adds:
            held = held + value
            if not sums or max(held.values()) > 1:
                return None
        else:
            if sums and held - value:
                return None
            held = value
    return held
