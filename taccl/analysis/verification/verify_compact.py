"""The verifier of compact schedules: one pass over the sends in order of start, compiled by numba.

It keeps when each rank first has each chunk, and when each resource is free again; nothing of what made the
schedule is used. A reduction is read backwards, over reversed links: there every rank must receive every
chunk just once, or its contribution would count twice. What it cannot judge it refuses: links of several
ends, and clauses on what a link carries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from taccl.analysis.verification.violation import Verification, Violation
from taccl.errors import InputError
from taccl.schedule.combine import reduction_half, spreading_half
from taccl.schedule.compact import CompactSchedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from taccl.problem import Problem

__all__ = ["verify_compact"]

_BLOCK = 1 << 20
_OK, _ABSENT, _BUSY, _TWICE = 0, 1, 2, 3


class _Fault(NamedTuple):
    """What is wrong: a kind of `KINDS`, and a sentence."""

    kind: str
    text: str


def verify_compact(schedule: CompactSchedule) -> Verification:
    """Whether a compact schedule is valid; the first fault found is the only violation named.

    Raises
    ------
    InputError
        If the problem has links of several ends, or clauses on what a link carries, or the columns are not
        in order of start.
    """
    _check_kind(schedule.problem)
    fault = _outside(schedule) or _faults(schedule)
    finish_us = schedule.finish_us if fault is None or fault.kind != "index" else float("nan")
    violations = () if fault is None else (Violation(fault.kind, fault.text),)
    return Verification(violations, finish_us, schedule.num_transfers, schedule.num_sends, 0)


def _outside(schedule: CompactSchedule) -> _Fault | None:
    """A chunk or link that does not exist, or a time before 0."""
    problem = schedule.problem
    for name, column, count in (
        ("chunk", schedule.chunk, problem.collective.num_chunks),
        ("link", schedule.link, len(problem.topology.links)),
    ):
        if len(column) and not 0 <= int(column.min()) <= int(column.max()) < count:
            return _Fault("index", f"found {name}s {column.min()}-{column.max()}; there are 0-{count - 1}")
    if len(schedule) and int(schedule.start.min()) < 0:
        return _Fault("interval", "a transfer starts before time 0")
    if (np.diff(schedule.start) < 0).any():
        raise InputError("the columns are not in order of start; sort them", where="schedule")
    return None


def _faults(schedule: CompactSchedule) -> _Fault | None:
    problem, reducing = schedule.problem, schedule.num_reducing
    if not problem.collective.combining:
        return (
            _Fault("reduce", "it reduces what is only copied") if reducing else _spreads(schedule, once=False)
        )
    first = CompactSchedule(
        problem, schedule.chunk[:reducing], schedule.link[:reducing], schedule.start[:reducing]
    )
    rest = CompactSchedule(
        spreading_half(problem),
        schedule.chunk[reducing:],
        schedule.link[reducing:],
        schedule.start[reducing:],
    )
    turn = first.finish_ticks
    start = turn - np.concatenate([np.zeros(0, np.int64), *(end for _, _, _, end in first.blocks())])
    order = np.argsort(start, kind="stable")
    backwards = CompactSchedule(reduction_half(problem), first.chunk[order], first.link[order], start[order])
    fault = _spreads(backwards, once=True)
    if fault is not None:
        return _Fault(fault.kind, f"read backwards, the reduction is wrong: {fault.text}")
    if len(rest) and int(rest.start[0]) < turn + _overhang(problem):
        return _Fault("presence", "a copy starts before the reduction has ended")
    return _spreads(rest, once=False)


def _overhang(problem: Problem) -> int:
    """By how many ticks a send may hold a resource beyond its end, at most."""
    costs = problem.costs
    link = np.array([h.link for h in problem.topology.holds], dtype=np.int64)
    most = costs.hold_alpha - costs.link_alpha[link]
    more = costs.hold_beta - costs.link_beta[link]
    return max(0, int((most + np.maximum(more, 0) * int(costs.chunk_units.max(initial=0))).max(initial=0)))


def _spreads(schedule: CompactSchedule, *, once: bool) -> _Fault | None:
    """What is wrong with sends that copy; `once`: a rank must not receive what it has."""
    problem = schedule.problem
    topology, costs = problem.topology, problem.costs
    never = np.iinfo(np.int32).max if schedule.finish_ticks < 2**31 - 1 else np.iinfo(np.int64).max
    since = np.full(
        (topology.num_ranks, problem.collective.num_chunks),
        never,
        dtype=np.int32 if never < 2**31 else np.int64,
    )
    for c, chunk in enumerate(problem.collective.chunks):
        since[list(chunk.origins), c] = 0
    src = np.array([e.src for e in topology.links], dtype=np.int64)
    dst = np.array([e.dst for e in topology.links], dtype=np.int64)
    holds = _Holds(problem)
    free = np.zeros(len(topology.resources), dtype=np.int64)
    allowed = np.zeros(len(topology.links), dtype=bool)
    allowed[list(problem.links_allowed)] = True
    run = _compiled()
    first = 0
    late: list[tuple[NDArray[np.int64], ...]] = []
    for chunk_column, link, start, end in schedule.blocks(_BLOCK):
        if not allowed[link].all():
            at = int(np.argmin(allowed[link]))
            ends = topology.links[link[at]]
            return _Fault("link-not-allowed", f"transfer {first + at}: link {ends} may not be used")
        kind, at = run(
            chunk_column, link, start, end, src, dst, since, free, holds.of_link, holds.resource,
            holds.alpha, holds.beta, costs.chunk_units, once, never,
        )  # fmt: skip
        if kind:
            return _named(problem, kind, first + at, chunk_column[at], link[at], start[at])
        late += holds.received(chunk_column, link, end, costs.chunk_units)
        first += len(start)
    return _overlap(problem, late) or _missing(problem, since, never)


def _check_kind(problem: Problem) -> None:
    clauses, links = problem.clauses, problem.topology.links
    kinds = {
        "chunks made from others": bool(problem.collective.derivations),
        "links of several ends": any(len(e.srcs) + len(e.dsts) > 2 for e in links),
        "clauses on what a link carries": bool(
            clauses.carries_from or clauses.carries_to or clauses.own_first or clauses.direct_crossing
        ),
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
    ) -> list[tuple[NDArray[np.int64], ...]]:
        """(resource, begin, until) of holds on resources that some send holds until its end."""
        if not len(self._table):
            return []
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
        return [(resource, until - length, until)]


def _one_pass(
    chunk: Any, link: Any, start: Any, end: Any, src: Any, dst: Any, since: Any, free: Any,
    hold_of: Any, hold_resource: Any, hold_alpha: Any, hold_beta: Any, units: Any,
    once: bool, never: int,
) -> tuple[int, int]:  # fmt: skip
    """The kind and place of the first fault among sends in order of start."""
    for i in range(len(chunk)):
        e, c, time = link[i], chunk[i], start[i]
        if since[src[e], c] > time:
            return _ABSENT, i
        if once and since[dst[e], c] != never:
            return _TWICE, i
        for h in range(hold_of[e], hold_of[e + 1]):
            r = hold_resource[h]
            length = hold_alpha[h] + units[c] * hold_beta[h]
            if length > 0 and free[r] > time:
                return _BUSY, i
            free[r] = max(free[r], time + length)
        if end[i] < since[dst[e], c]:
            since[dst[e], c] = end[i]
    return _OK, 0


def _compiled() -> Callable[..., tuple[int, int]]:
    try:
        from numba import njit
    except ImportError:
        return _one_pass
    if not _KERNEL:
        _KERNEL.append(njit(cache=True)(_one_pass))
    return _KERNEL[0]


_KERNEL: list[Callable[..., tuple[int, int]]] = []


def _named(problem: Problem, kind: int, i: int, chunk: int, link: int, start: int) -> _Fault:
    ends = problem.topology.links[link]
    name, what = {
        _ABSENT: ("presence", f"rank {ends.src} does not hold the chunk yet"),
        _TWICE: ("double-count", f"rank {ends.dst} receives the chunk twice"),
        _BUSY: ("contention", "a resource that it holds is still held by another"),
    }[kind]
    time_us = float(problem.costs.us(int(start)))
    return _Fault(name, f"transfer {i}, chunk {chunk} over link {ends} at {time_us:.6g} us: {what}")


def _overlap(problem: Problem, late: list[tuple[NDArray[np.int64], ...]]) -> _Fault | None:
    if not late:
        return None
    resource, begin, until = (np.concatenate(each) for each in zip(*late, strict=True))
    keep = until > begin
    resource, begin, until = resource[keep], begin[keep], until[keep]
    order = np.lexsort((until, begin, resource))
    resource, begin, until = resource[order], begin[order], until[order]
    clash = (resource[1:] == resource[:-1]) & (begin[1:] < until[:-1])
    if not clash.any():
        return None
    at = int(np.argmax(clash))
    name, us = problem.topology.resources[int(resource[at])].name, problem.costs.us
    time_us = float(us(int(begin[at + 1])))
    return _Fault("contention", f"{name} is held by two sends at {time_us:.6g} us")


def _missing(problem: Problem, since: NDArray[Any], never: int) -> _Fault | None:
    everyone = problem.topology.num_ranks
    for c, chunk in enumerate(problem.collective.chunks):
        column = since[:, c] if len(chunk.destinations) == everyone else since[list(chunk.destinations), c]
        if (column == never).any():
            at = int(np.argmax(column == never))
            rank = at if len(chunk.destinations) == everyone else chunk.destinations[at]
            return _Fault("postcondition", f"chunk {c} never arrives at rank {rank}")
    return None
