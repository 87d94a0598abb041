"""The verifier of compact schedules: one pass over the sends in order of start, compiled by numba.

It keeps when each rank first has each chunk, and when each resource is free again; nothing of what made the
schedule is used. The columns are read in blocks, so they may lie in files. A reduction is read backwards,
over reversed links: there every rank must receive every chunk just once, or its contribution would count
twice. What it cannot judge it refuses: links of several ends, and chunks made from others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taccl.analysis.verification.copy_clauses import CopyClauses, Fault
from taccl.analysis.verification.places import Places, pairs
from taccl.analysis.verification.violation import Verification, Violation
from taccl.errors import InputError
from taccl.schedule.combine import reduction_half, spreading_half
from taccl.schedule.compact import CompactSchedule
from taccl.schedule.summary import ScheduleSummary

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from taccl.problem import Problem

__all__ = ["verify_compact"]

_BLOCK = 1 << 18


def verify_compact(schedule: CompactSchedule) -> Verification:
    """Whether a compact schedule is valid; the first fault found is the only violation named.

    Raises
    ------
    InputError
        If the problem has links of several ends or chunks made from others, or the columns are not in order
        of start, or were dropped.
    """
    if isinstance(schedule, ScheduleSummary):
        schedule.blocks()
    _check_kind(schedule.problem)
    fault = _outside(schedule) or _faults(schedule)
    finish_us = schedule.finish_us if fault is None or fault.kind != "index" else float("nan")
    violations = () if fault is None else (Violation(fault.kind, fault.text),)
    return Verification(violations, finish_us, schedule.num_transfers, schedule.num_sends, 0)


def _outside(schedule: CompactSchedule) -> Fault | None:
    """A chunk or link that does not exist, or a time before 0."""
    problem = schedule.problem
    for name, column, count in (
        ("chunk", schedule.chunk, problem.collective.num_chunks),
        ("link", schedule.link, len(problem.topology.links)),
    ):
        if len(column) and not 0 <= int(column.min()) <= int(column.max()) < count:
            return Fault("index", f"found {name}s {column.min()}-{column.max()}; there are 0-{count - 1}")
    if len(schedule) and int(schedule.start.min()) < 0:
        return Fault("interval", "a transfer starts before time 0")
    last = 0
    for first in range(0, len(schedule), _BLOCK):
        start = schedule.start[first : first + _BLOCK]
        if int(start[0]) < last or (start[1:] < start[:-1]).any():
            raise InputError("the columns are not in order of start; sort them", where="schedule")
        last = int(start[-1])
    return None


def _faults(schedule: CompactSchedule) -> Fault | None:
    problem, reducing = schedule.problem, schedule.num_reducing
    if not problem.collective.combining:
        return (
            Fault("reduce", "it reduces what is only copied") if reducing else _spreads(schedule, once=False)
        )
    turn, backwards = _backwards(schedule)
    fault = _spreads(backwards, once=True)
    if fault is not None:
        return Fault(fault.kind, f"read backwards, the reduction is wrong: {fault.text}")
    del backwards
    rest = CompactSchedule(
        spreading_half(problem),
        schedule.chunk[reducing:],
        schedule.link[reducing:],
        schedule.start[reducing:],
    )
    if len(rest) and int(rest.start[0]) < turn + _overhang(problem):
        return Fault("presence", "a copy starts before the reduction has ended")
    return _spreads(rest, once=False)


def _backwards(schedule: CompactSchedule) -> tuple[int, CompactSchedule]:
    """When the reduction ends, and the reduction read backwards in time."""
    problem, reducing = schedule.problem, schedule.num_reducing
    first = CompactSchedule(
        problem, schedule.chunk[:reducing], schedule.link[:reducing], schedule.start[:reducing]
    )
    turn = first.finish_ticks
    start: NDArray[Any] = np.empty(reducing, np.int32 if turn < 2**31 else np.int64)
    at = reducing  # the last to start comes first
    for _, _, _, end in first.blocks(_BLOCK):
        start[at - len(end) : at] = turn - end[::-1]
        at -= len(end)
    chunk, link = first.chunk[::-1], first.link[::-1]
    if (start[1:] < start[:-1]).any():  # not where all sends take equally long
        order = np.argsort(start, kind="stable")
        chunk, link, start = chunk[order], link[order], start[order]
    return turn, CompactSchedule(reduction_half(problem), chunk, link, start)


def _overhang(problem: Problem) -> int:
    """By how many ticks a send may hold a resource beyond its end, at most."""
    costs = problem.costs
    link = np.array([h.link for h in problem.topology.holds], dtype=np.int64)
    most = costs.hold_alpha - costs.link_alpha[link]
    more = costs.hold_beta - costs.link_beta[link]
    return max(0, int((most + np.maximum(more, 0) * int(costs.chunk_units.max(initial=0))).max(initial=0)))


def _spreads(schedule: CompactSchedule, *, once: bool) -> Fault | None:
    """What is wrong with sends that copy; `once`: a rank must not receive what it has."""
    from taccl.analysis.verification.replay_kernel import replay_sends

    problem = schedule.problem
    topology, costs = problem.topology, problem.costs
    places = Places(schedule)
    src = np.array([e.src for e in topology.links], dtype=np.int64)
    dst = np.array([e.dst for e in topology.links], dtype=np.int64)
    holds = _Holds(problem)
    free = np.zeros(len(topology.resources), dtype=np.int64)
    allowed = np.zeros(len(topology.links), dtype=bool)
    allowed[list(problem.links_allowed)] = True
    first = 0
    late, clauses = _Late(problem), CopyClauses(problem)
    for chunk_column, link, start, end in schedule.blocks(_BLOCK):
        if not allowed[link].all():
            at = int(np.argmin(allowed[link]))
            ends = topology.links[link[at]]
            return Fault("link-not-allowed", f"transfer {first + at}: link {ends} may not be used")
        fault = clauses.broken(chunk_column, link, start, end, first)
        if fault is not None:
            return fault
        kind, at = replay_sends(
            chunk_column, link, start, end, src, dst, places.num_ranks, places.keys, places.first,
            places.since, places.never, free, holds.of_link, holds.resource, holds.alpha, holds.beta,
            costs.chunk_units, once,
        )  # fmt: skip
        if kind:
            return _named(problem, kind, first + at, chunk_column[at], link[at], start[at])
        clash = late.add(holds.received(chunk_column, link, end, costs.chunk_units), int(start[-1]))
        if clash is not None:
            return clash
        first += len(start)
    return clauses.own_late() or _missing(problem, places)


def _check_kind(problem: Problem) -> None:
    links = problem.topology.links
    kinds = {
        "chunks made from others": bool(problem.collective.derivations),
        "links of several ends": any(len(e.srcs) + len(e.dsts) > 2 for e in links),
    }
    for what, is_there in kinds.items():
        if is_there:
            raise InputError(f"found {what}; expand the schedule and verify that", where="schedule")


class _Holds:
    """Holds by link: those from a send's start as columns, those until its end apart."""

    def __init__(self, problem: Problem) -> None:
        costs, holds = problem.costs, problem.topology.holds
        link = np.array([h.link for h in holds], dtype=np.int64)
        resource = np.array([h.resource for h in holds], dtype=np.int64)
        receives = np.array([h.side == "receive" for h in holds], dtype=bool)
        mixed = np.isin(resource, resource[receives])
        rows = np.flatnonzero(~mixed)
        rows = rows[np.argsort(link[rows], kind="stable")]
        num_links = len(problem.topology.links)
        self.of_link = np.searchsorted(link[rows], np.arange(num_links + 1)).astype(np.int64)
        self.resource, self.alpha, self.beta = resource[rows], costs.hold_alpha[rows], costs.hold_beta[rows]
        late = [
            (
                int(link[h]),
                int(resource[h]),
                int(costs.hold_alpha[h]),
                int(costs.hold_beta[h]),
                bool(receives[h]),
            )
            for h in np.flatnonzero(mixed).tolist()
        ]
        self._link_alpha, self._link_beta = costs.link_alpha, costs.link_beta
        table = np.array(late, dtype=np.int64).reshape(-1, 5)
        self._table = table[np.argsort(table[:, 0], kind="stable")]
        self._first = np.searchsorted(self._table[:, 0], np.arange(num_links + 1))

    def received(
        self,
        chunk: NDArray[np.int64],
        link: NDArray[np.int64],
        end: NDArray[np.int64],
        units: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Rows resource, begin, until: of holds on resources that some send holds until its end."""
        if not len(self._table):
            return np.zeros((3, 0), np.int64)
        count = self._first[link + 1] - self._first[link]
        send = np.repeat(np.arange(len(link)), count)
        row = (
            np.arange(len(send))
            - np.repeat(np.cumsum(count) - count, count)
            + np.repeat(self._first[link], count)
        )
        _, resource, alpha, beta, receives = (column[row] for column in self._table.T)
        length = alpha + units[chunk[send]] * beta
        took = self._link_alpha[link[send]] + units[chunk[send]] * self._link_beta[link[send]]
        until = np.where(receives == 1, end[send], end[send] - took + length)
        return np.stack((resource, until - length, until))


def _named(problem: Problem, kind: int, i: int, chunk: int, link: int, start: int) -> Fault:
    from taccl.analysis.verification.replay_kernel import ABSENT, BUSY, TWICE

    ends = problem.topology.links[link]
    name, what = {
        ABSENT: ("presence", f"rank {ends.src} does not hold the chunk yet"),
        TWICE: ("double-count", f"rank {ends.dst} receives the chunk twice"),
        BUSY: ("contention", "a resource that it holds is still held by another"),
    }[kind]
    time_us = float(problem.costs.us(int(start)))
    return Fault(name, f"transfer {i}, chunk {chunk} over link {ends} at {time_us:.6g} us: {what}")


class _Late:
    """Holds on resources that some send holds until its end, those that later ones may still meet."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._rows = np.zeros((3, 0), np.int64)

    def add(self, rows: NDArray[np.int64], last_start: int) -> Fault | None:
        """Look at further holds; no later one begins before `last_start`."""
        if not rows.shape[1]:
            return None
        rows = np.concatenate((self._rows, rows[:, rows[2] > rows[1]]), axis=1)
        rows = rows[:, np.lexsort((rows[2], rows[1], rows[0]))]
        resource, begin, until = rows
        clash = (resource[1:] == resource[:-1]) & (begin[1:] < until[:-1])
        if clash.any():
            at = int(np.argmax(clash))
            name, us = self._problem.topology.resources[int(resource[at])].name, self._problem.costs.us
            time_us = float(us(int(begin[at + 1])))
            return Fault("contention", f"{name} is held by two sends at {time_us:.6g} us")
        self._rows = rows[:, until > last_start]
        return None


def _missing(problem: Problem, places: Places) -> Fault | None:
    """The first chunk that does not arrive where it must, some chunks at a time."""
    destinations = [chunk.destinations for chunk in problem.collective.chunks]
    until = np.cumsum([0, *map(len, destinations)])
    first = 0
    while first < len(destinations):
        last = int(np.searchsorted(until, until[first] + _BLOCK))
        chunk, rank = pairs(destinations[first:last], first=first)
        never = places.since[places.of(chunk, rank)] == places.never
        if never.any():
            at = int(np.argmax(never))
            return Fault("postcondition", f"chunk {chunk[at]} never arrives at rank {rank[at]}")
        first = last
    return None
