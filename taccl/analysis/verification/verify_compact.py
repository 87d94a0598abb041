"""Verifier of compact schedules: one pass over the sends in order of start, compiled by numba.

It tracks the first arrival of each chunk at each rank, and the time from which each resource is free again.
It shares only the problem data with the producers of schedules: costs in ticks, and links and holds as
columns (`Problem.costs`, `taccl.costs`). The verifier of listed schedules recomputes times from fractions
instead, and tests compare the two verifiers. The columns are read in blocks, so they may be memory-mapped
files. Sums are first replayed chunk by chunk, as chunks do not affect each other's buffers. The verifier
refuses inputs that it cannot judge: sends over links of several ends, derived chunks, and chunks with release
or due dates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl.analysis.verification.arrival_table import ArrivalTable, pairs
from taccl.analysis.verification.sketch_clauses import BadSend, SendColumns, SketchClauses
from taccl.analysis.verification.violation import Verification, Violation
from taccl.costs import hold_columns, link_ends
from taccl.errors import InputError
from taccl.schedule.compact import CompactSchedule, ScheduleSummary

if TYPE_CHECKING:
    from taccl.analysis.verification.replay_kernel import HoldRows, Sums
    from taccl.problem import Problem

_BLOCK = 1 << 18


def verify_compact(schedule: CompactSchedule) -> Verification:
    """Verify a compact schedule; only the first fault found is reported.

    Raises `InputError` if it sends over links of several ends, or if the problem has derived chunks, release
    dates or due dates. It is also raised if the columns are not in order of start, or were dropped.
    """
    if isinstance(schedule, ScheduleSummary):
        schedule.blocks()
    _check_kind(schedule)
    violations, num_redundant = [], 0
    try:
        _check_columns(schedule)
        num_redundant = _check_sends(schedule)
    except BadSend as fault:
        violations.append(Violation(fault.kind, str(fault)))
    is_told = not violations or violations[0].kind != "index"  # an invalid index leaves sends without an end
    finish_us = schedule.finish_us if is_told else float("nan")
    return Verification(
        tuple(violations), finish_us, schedule.num_transfers, schedule.num_sends, num_redundant
    )


def _check_columns(schedule: CompactSchedule) -> None:
    """Check that chunks and links exist, and that starts are nonnegative and in order."""
    problem = schedule.problem
    for name, column, count in (
        ("chunk", schedule.chunk, problem.collective.num_chunks),
        ("link", schedule.link, len(problem.topology.links)),
    ):
        if len(column) and not 0 <= int(column.min()) <= int(column.max()) < count:
            raise BadSend("index", f"found {name}s {column.min()}-{column.max()}; there are 0-{count - 1}")
    if len(schedule) and int(schedule.start.min()) < 0:
        raise BadSend("interval", "a transfer starts before time 0")
    last = 0
    for first in range(0, len(schedule), _BLOCK):
        start = schedule.start[first : first + _BLOCK]
        if int(start[0]) < last or (start[1:] < start[:-1]).any():
            raise InputError("the columns are not in order of start; sort them", where="schedule")
        last = int(start[-1])


def _check_sends(schedule: CompactSchedule) -> int:
    """Check data, clauses and resources of all sends; return the number of redundant arrivals."""
    problem = schedule.problem
    clauses = SketchClauses(problem)
    reducing, num_redundant = np.zeros(0, bool), 0
    if problem.collective.combining:
        reducing = np.zeros(len(schedule) if clauses.tells_sums_apart else 0, bool)
        num_redundant = _check_sums(schedule, reducing)
    elif schedule.adds(np.arange(len(schedule))).any():
        raise BadSend("reduce", "it reduces what is only copied")
    num_redundant += _replay(schedule, clauses, reducing)
    _check_paths(schedule, reducing)
    return num_redundant


def _check_sums(schedule: CompactSchedule, reducing: NDArray[np.bool_]) -> int:
    """Check sums; mark the sends that gather sums in `reducing`; return the number of redundant copies."""
    from taccl.analysis.verification.replay_kernel import MISSING, replay_sums

    problem = schedule.problem
    collective = problem.collective
    wanted = flat_sets(collective.destination_sets.sets)
    num_redundant = 0
    for low, high, some in _by_chunk(schedule):
        kind, wrong, which, redundant = replay_sums(
            some.first, some.sums, some.root, some.origins, some.origins_of,
            wanted, collective.destination_sets.of_chunk[low:high], problem.topology.num_ranks,
        )  # fmt: skip
        wrong += low
        if kind == MISSING:
            raise BadSend("postcondition", f"the sum of chunk {wrong} is never whole at rank {which}")
        if kind:
            at, link, start = (int(column[which]) for column in (some.at, some.link, some.sums.start))
            raise _named(problem, kind, at, wrong, link, start)
        if len(reducing):
            reducing[some.at] = some.sums.gathers
        num_redundant += redundant
    return num_redundant


def _check_paths(schedule: CompactSchedule, reducing: NDArray[np.bool_]) -> None:
    """Check that no chunk passes more links than a clause allows."""
    from taccl.analysis.verification.replay_kernel import links_passed

    problem, clauses = schedule.problem, schedule.problem.clauses
    for low, _, some in _by_chunk(schedule) if clauses.said("path") else ():
        sums = some.sums._replace(gathers=reducing[some.at]) if len(reducing) else some.sums
        passed = links_passed(
            some.first, sums, some.root, some.origins, some.origins_of, problem.topology.num_ranks
        )
        for clause in clauses.said("path"):
            most = getattr(clauses, clause.field)
            if not (passed > most).any():
                continue
            which = int(np.argmax(passed > most))
            chunk = low + int(np.searchsorted(some.first, which, side="right")) - 1
            ends = problem.topology.links[int(some.link[which])]
            text = f"the chunk has passed {passed[which]} links by then; expected at most {most}"
            said = f"transfer {some.at[which]}, chunk {chunk} over link {ends}: {text}"
            raise BadSend(clause.violation, said)


class _Some(NamedTuple):
    """Sends of a block of chunks, grouped by chunk and in order of start; `at` are their indices."""

    first: NDArray[np.int64]
    at: NDArray[Any]
    link: NDArray[np.int64]
    sums: Sums
    root: NDArray[np.int64]
    origins: tuple[NDArray[np.int64], NDArray[np.int64]]
    origins_of: NDArray[np.int32]


def _by_chunk(schedule: CompactSchedule) -> Iterator[tuple[int, int, _Some]]:
    """Yield (low, high, sends) for blocks of chunks ``low`` to ``high - 1``."""
    from taccl.analysis.verification.replay_kernel import Sums

    problem = schedule.problem
    collective, costs = problem.collective, problem.costs
    src, dst = link_ends(problem.topology)
    roots = (data.root if collective.combining else None for data in collective.chunks)
    root = np.array([-1 if rank is None else rank for rank in roots], np.int64)
    origins = flat_sets(collective.origin_sets.sets)
    order = np.argsort(schedule.chunk, kind="stable")  # stable: sends of a chunk stay in order of start
    first = np.searchsorted(schedule.chunk, np.arange(len(root) + 1), sorter=order)
    low = 0
    while low < len(root):
        high = max(low + 1, int(np.searchsorted(first, first[low] + _BLOCK)) - 1)
        at, local = order[first[low] : first[high]], first[low : high + 1] - first[low]
        link, start = schedule.link[at].astype(np.int64), schedule.start[at].astype(np.int64)
        chunk = np.repeat(np.arange(low, high), np.diff(local))
        end = start + costs.link_alpha[link] + costs.chunk_units[chunk] * costs.link_beta[link]
        adds = schedule.adds(at)
        lands, gathers = landing_order(chunk, end, adds), np.zeros(len(at), bool)
        sums = Sums(src[link], dst[link], start, end, adds, lands, gathers)
        origins_of = collective.origin_sets.of_chunk[low:high]
        yield low, high, _Some(local, at, link, sums, root[low:high], origins, origins_of)
        low = high


def landing_order(
    chunk: NDArray[np.int64], end: NDArray[np.int64], adds: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Sends in order of chunk and end; at equal ends, additions come first."""
    key = 2 * end + ~adds
    if (np.diff(key)[np.diff(chunk) == 0] >= 0).all():  # e.g. all sends take equally long
        return np.arange(len(end))
    return np.lexsort((key, chunk))


def flat_sets(sets: Sequence[tuple[int, ...]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sets of ranks concatenated, and the offset of each set."""
    return pairs(sets)[1], np.cumsum([0, *map(len, sets)])


def _replay(schedule: CompactSchedule, clauses: SketchClauses, reducing: NDArray[np.bool_]) -> int:
    """Replay sends against links, clauses, resources and copies; return the number of redundant copies."""
    from taccl.analysis.verification.replay_kernel import Arrivals, replay_sends

    problem = schedule.problem
    places = None if problem.collective.combining else ArrivalTable(schedule)
    none = np.zeros(0, np.int64)
    table = Arrivals(problem.topology.num_ranks, none, none, np.zeros((0, 1), np.int32), 0)
    if places is not None:
        words = places.since.view(np.int32).reshape(len(places.since), -1)
        table = Arrivals(places.num_ranks, places.keys, places.first, words, places.never)
    src, dst = link_ends(problem.topology)
    late = _LateHolds(problem)
    held = late.others()
    first = num_redundant = 0
    for chunk, link, start, end in schedule.blocks(_BLOCK):
        gathers = reducing[first : first + len(start)] if len(reducing) else np.zeros(len(start), bool)
        sends = SendColumns(chunk, link, start, end, gathers)
        clauses.check(sends, first)
        kind, at, redundant = replay_sends(sends, src, dst, table, held)
        if kind:
            raise _named(problem, kind, first + at, chunk[at], link[at], start[at])
        late.check(sends, first)
        first += len(start)
        num_redundant += redundant
    clauses.check_order()
    if places is not None:
        _check_arrived(problem, places)
    return num_redundant


def _check_kind(schedule: CompactSchedule) -> None:
    problem = schedule.problem
    several = [i for i, e in enumerate(problem.topology.links) if len(e.srcs) + len(e.dsts) > 2]
    kinds = {
        "chunks that are released or due at times of their own": bool(problem.release_us or problem.due_us),
        "chunks made from others": bool(problem.collective.derivations),
        "links of several ends": bool(several) and bool(np.isin(schedule.link, several).any()),
    }
    for what, is_there in kinds.items():
        if is_there:
            raise InputError(f"found {what}; expand the schedule and verify that", where="schedule")


def _named(problem: Problem, kind: int, i: int, chunk: int, link: int, start: int) -> BadSend:
    ends = problem.topology.links[link]
    name, what = said_of(kind, f"rank {ends.src}", f"rank {ends.dst}")
    time_us = float(problem.costs.us(int(start)))
    return BadSend(name, f"transfer {i}, chunk {chunk} over link {ends} at {time_us:.6g} us: {what}")


def said_of(kind: int, src: str, dst: str) -> tuple[str, str]:
    """Kind of violation and message for a fault code of the replay kernel."""
    from taccl.analysis.verification.replay_kernel import ABSENT, BUSY, DOUBLE, LOST, RACE

    return {
        ABSENT: ("presence", f"{src} does not hold the chunk when the send starts"),
        BUSY: ("contention", "a resource that it holds is still held by another"),
        RACE: ("race", f"at {dst} it arrives together with another value; one replaces the other"),
        DOUBLE: ("double-count", f"it adds contributions that {dst} already holds"),
        LOST: ("lost-contribution", f"it wipes out contributions that {dst} holds"),
    }[kind]


class _LateHolds:
    """Resources that some send holds until its end, with the holds that later sends may still overlap."""

    def __init__(self, problem: Problem) -> None:
        self._problem, self._holds = problem, hold_columns(problem.topology)
        holds = self._holds
        self._is_late = np.isin(holds.resource, holds.resource[holds.receives])
        pairs = np.stack((holds.link, holds.resource))[:, self._is_late]
        #: Max number of rows by which one link holds the same resource.
        self._most_of_one = int(np.unique(pairs, axis=1, return_counts=True)[1].max(initial=0))
        self._rows = np.zeros((4, 0), np.int64)

    def others(self) -> HoldRows:
        """Holds of all other resources, which begin at the start of their sends."""
        from taccl.analysis.verification.replay_kernel import HoldRows

        costs, topology = self._problem.costs, self._problem.topology
        rows = np.flatnonzero(~self._is_late)
        rows = rows[np.argsort(self._holds.link[rows], kind="stable")]
        return HoldRows(
            np.searchsorted(self._holds.link[rows], np.arange(len(topology.links) + 1)).astype(np.int64),
            self._holds.resource[rows], costs.hold_alpha[rows], costs.hold_beta[rows], costs.chunk_units,
            np.zeros(len(topology.resources), dtype=np.int64),
        )  # fmt: skip

    def check(self, sends: SendColumns, first: int) -> None:
        """Check contention of a block of sends, in order of start; `first` is the index of the first send."""
        if not self._is_late.any():
            return
        costs = self._problem.costs
        send, hold = self._holds.of_sends(sends.link)
        send, hold = send[self._is_late[hold]], hold[self._is_late[hold]]
        units, link, end = costs.chunk_units[sends.chunk[send]], sends.link[send], sends.end[send]
        length = costs.hold_alpha[hold] + units * costs.hold_beta[hold]
        took = costs.link_alpha[link] + units * costs.link_beta[link]
        until = np.where(self._holds.receives[hold], end, end - took + length)
        found = np.stack((self._holds.resource[hold], until - length, until, first + send))
        rows = np.concatenate((self._rows, found), axis=1)
        rows = rows[:, np.lexsort((rows[2], rows[1], rows[0]))]
        resource, begin, until, send = rows
        own = np.flatnonzero((resource[1:] == resource[:-1]) & (send[1:] == send[:-1]))
        for _ in range(self._most_of_one - 1):  # one send may hold a resource by several rows
            until[own + 1] = np.maximum(until[own + 1], until[own])
        clash = (resource[1:] == resource[:-1]) & (begin[1:] < until[:-1]) & (send[1:] != send[:-1])
        if clash.any():
            at = int(np.argmax(clash))
            name = self._problem.topology.resources[int(resource[at])].name
            time_us = float(self._problem.costs.us(int(begin[at + 1])))
            raise BadSend("contention", f"{name} is held by two sends at {time_us:.6g} us")
        self._rows = rows[:, until > int(sends.start[-1])]  # no later hold begins before


def _check_arrived(problem: Problem, places: ArrivalTable) -> None:
    """Check that every chunk arrives at all its destinations, in blocks of chunks."""
    destinations = [chunk.destinations for chunk in problem.collective.chunks]
    until = np.cumsum([0, *map(len, destinations)])
    first = 0
    while first < len(destinations):
        last = int(np.searchsorted(until, until[first] + _BLOCK))
        chunk, rank = pairs(destinations[first:last], first=first)
        never = places.since[places.of(chunk, rank)] == places.never
        if never.any():
            at = int(np.argmax(never))
            raise BadSend("postcondition", f"chunk {chunk[at]} never arrives at rank {rank[at]}")
        first = last
