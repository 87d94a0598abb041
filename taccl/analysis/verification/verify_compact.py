"""The verifier of compact schedules: one pass over the sends in order of start, compiled by numba.

It keeps when each rank first has each chunk, and when each resource is free again; nothing of what made the
schedule is used. The columns are read in blocks, so they may lie in files. A reduction is read backwards,
over reversed links: there every rank must receive every chunk just once, or its contribution would count
twice. What it cannot judge it refuses: links of several ends, and chunks made from others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from taccl.analysis.verification.violation import Verification, Violation
from taccl.errors import InputError
from taccl.schedule.combine import reduction_half, spreading_half
from taccl.schedule.compact import CompactSchedule
from taccl.schedule.summary import ScheduleSummary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from taccl.problem import Problem

__all__ = ["verify_compact"]

_BLOCK = 1 << 18
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
    last = 0
    for first in range(0, len(schedule), _BLOCK):
        start = schedule.start[first : first + _BLOCK]
        if int(start[0]) < last or (start[1:] < start[:-1]).any():
            raise InputError("the columns are not in order of start; sort them", where="schedule")
        last = int(start[-1])
    return None


def _faults(schedule: CompactSchedule) -> _Fault | None:
    problem, reducing = schedule.problem, schedule.num_reducing
    if not problem.collective.combining:
        return (
            _Fault("reduce", "it reduces what is only copied") if reducing else _spreads(schedule, once=False)
        )
    turn, backwards = _backwards(schedule)
    fault = _spreads(backwards, once=True)
    if fault is not None:
        return _Fault(fault.kind, f"read backwards, the reduction is wrong: {fault.text}")
    del backwards
    rest = CompactSchedule(
        spreading_half(problem),
        schedule.chunk[reducing:],
        schedule.link[reducing:],
        schedule.start[reducing:],
    )
    if len(rest) and int(rest.start[0]) < turn + _overhang(problem):
        return _Fault("presence", "a copy starts before the reduction has ended")
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


def _spreads(schedule: CompactSchedule, *, once: bool) -> _Fault | None:
    """What is wrong with sends that copy; `once`: a rank must not receive what it has."""
    problem = schedule.problem
    topology, costs = problem.topology, problem.costs
    places = _Places(schedule)
    src = np.array([e.src for e in topology.links], dtype=np.int64)
    dst = np.array([e.dst for e in topology.links], dtype=np.int64)
    holds = _Holds(problem)
    free = np.zeros(len(topology.resources), dtype=np.int64)
    allowed = np.zeros(len(topology.links), dtype=bool)
    allowed[list(problem.links_allowed)] = True
    run = _compiled()
    first = 0
    late, clauses = _Late(problem), _Clauses(problem)
    for chunk_column, link, start, end in schedule.blocks(_BLOCK):
        if not allowed[link].all():
            at = int(np.argmin(allowed[link]))
            ends = topology.links[link[at]]
            return _Fault("link-not-allowed", f"transfer {first + at}: link {ends} may not be used")
        fault = clauses.broken(chunk_column, link, start, end, first)
        if fault is not None:
            return fault
        leaves = places.of(chunk_column, src[link])
        enters = places.of(chunk_column, dst[link])
        kind, at = run(
            chunk_column, link, start, end, leaves, enters, places.since, free, holds.of_link, holds.resource,
            holds.alpha, holds.beta, costs.chunk_units, once, places.never,
        )  # fmt: skip
        if kind:
            return _named(problem, kind, first + at, chunk_column[at], link[at], start[at])
        clash = late.add(holds.received(chunk_column, link, end, costs.chunk_units), int(start[-1]))
        if clash is not None:
            return clash
        first += len(start)
    return clauses.own_late() or _missing(problem, places)


class _Clauses:
    """What the sketch says of chunks on links, for sends that copy."""

    def __init__(self, problem: Problem) -> None:
        self._problem, clauses = problem, problem.clauses
        topology, chunks = problem.topology, problem.collective.chunks
        self._src = np.array([e.src for e in topology.links], dtype=np.int64)
        self._dst = np.array([e.dst for e in topology.links], dtype=np.int64)
        self._node = np.array(topology.node_of_rank, dtype=np.int64)
        self._is_own_first = _marked(clauses.own_first, len(topology.links))
        self._is_guarded = _marked(clauses.carries_from, len(topology.links))
        #: By link: until when own chunks keep relayed ones waiting, and when the first relayed one starts.
        self._own_until = np.full(len(topology.links), -1, np.int64)
        self._relayed_from = np.full(len(topology.links), np.iinfo(np.int64).max)
        if clauses.own_first:
            self._starts = np.zeros((len(chunks), topology.num_ranks), bool)
            for c, chunk in enumerate(chunks):
                self._starts[c, list(chunk.origins)] = True
        if clauses.direct_crossing:
            num_nodes = int(self._node.max()) + 1
            self._from, self._to = np.zeros((2, len(chunks), num_nodes), bool)
            for c, chunk in enumerate(chunks):
                self._from[c, self._node[list(chunk.origins)]] = True
                self._to[c, self._node[list(chunk.destinations)]] = True
        if clauses.relays is not None:
            groups = problem.collective.process_groups
            self._may_hold = np.zeros((len(groups), topology.num_ranks), bool)
            self._may_hold[:, sorted(clauses.relays)] = True
            for g, group in enumerate(groups):
                self._may_hold[g, list(group.ranks)] = True
            self._group = np.array(problem.collective.group_of_chunk, dtype=np.int64)

    def broken(
        self,
        chunk: NDArray[np.int64],
        link: NDArray[np.int64],
        start: NDArray[np.int64],
        end: NDArray[np.int64],
        first: int,
    ) -> _Fault | None:
        """The first clause that one of some sends breaks."""
        clauses = self._problem.clauses
        src, dst = self._src[link], self._dst[link]
        if clauses.relays is not None:
            group = self._group[chunk]
            bad = ~(self._may_hold[group, src] & self._may_hold[group, dst])
            if bad.any():
                return self._fault("link-not-allowed", "an end of it may not relay", bad, chunk, link, first)
        if clauses.direct_crossing:
            leaves, enters = self._node[src], self._node[dst]
            bad = (leaves != enters) & ~(self._from[chunk, leaves] & self._to[chunk, enters])
            if bad.any():
                text = "it does not lead straight from where the chunk starts to where it is needed"
                return self._fault("direct-crossing", text, bad, chunk, link, first)
        guarded = np.flatnonzero(self._is_guarded[link])
        for i in guarded.tolist():
            e, c = int(link[i]), int(chunk[i])
            if clauses.carries_from[e].isdisjoint(self._problem.collective.chunks[c].origins):
                bad = np.arange(len(link)) == i
                text = f"it carries from ranks {sorted(clauses.carries_from[e])}"
                return self._fault("carries-from", text, bad, chunk, link, first)
        on = np.flatnonzero(self._is_own_first[link])
        if len(on):
            own = self._starts[chunk[on], src[on]]
            np.maximum.at(self._own_until, link[on[own]], end[on[own]])
            np.minimum.at(self._relayed_from, link[on[~own]], start[on[~own]])
        return None

    def own_late(self) -> _Fault | None:
        """A relayed chunk that did not wait for a link's own chunks, once all sends are seen."""
        bad = self._relayed_from < self._own_until
        if not bad.any():
            return None
        ends = self._problem.topology.links[int(np.argmax(bad))]
        text = f"over link {ends} a relayed chunk starts before the link's own chunks are through"
        return _Fault("own-first", text)

    def _fault(
        self,
        kind: str,
        text: str,
        bad: NDArray[np.bool_],
        chunk: NDArray[np.int64],
        link: NDArray[np.int64],
        first: int,
    ) -> _Fault:
        at = int(np.argmax(bad))
        ends = self._problem.topology.links[int(link[at])]
        return _Fault(kind, f"transfer {first + at}, chunk {chunk[at]} over link {ends}: {text}")


def _marked(links: Iterable[int], num_links: int) -> NDArray[np.bool_]:
    marks = np.zeros(num_links, bool)
    marks[list(links)] = True
    return marks


class _Places:
    """Since when each rank has each chunk: of all pairs, or only of those that something is sent to.

    `since` has a last entry for all pairs that nothing is sent to: there no chunk ever is.
    """

    def __init__(self, schedule: CompactSchedule) -> None:
        problem = schedule.problem
        self.num_ranks, self.num_chunks = problem.topology.num_ranks, problem.collective.num_chunks
        narrow = schedule.finish_ticks < 2**31 - 1
        self.never = int(np.iinfo(np.int32 if narrow else np.int64).max)
        chunks = problem.collective.chunks
        origins = np.fromiter((r for c in chunks for r in c.origins), np.int64)
        chunk = np.repeat(np.arange(len(chunks)), [len(c.origins) for c in chunks])
        num_pairs, num_entered = self.num_ranks * self.num_chunks, len(schedule) + len(origins)
        self._keys: NDArray[np.int64] | None = None
        # Sorted keys take twelve bytes for a pair that is entered, and a table four for every pair.
        if num_pairs > 3 * num_entered:
            dst = np.array([e.dst for e in problem.topology.links], dtype=np.int64)
            keys = np.empty(num_entered, np.int64)
            keys[: len(origins)] = chunk * self.num_ranks + origins
            at = len(origins)
            for sent, link, _, _ in schedule.blocks(_BLOCK):
                keys[at : at + len(sent)] = sent * self.num_ranks + dst[link]
                at += len(sent)
            keys.sort()
            self._keys = keys
            num_pairs = len(keys)
        self.since = np.full(num_pairs + 1, self.never, np.int32 if narrow else np.int64)
        self.since[self.of(chunk, origins)] = 0

    def of(self, chunk: NDArray[np.int64], rank: NDArray[np.int64]) -> NDArray[np.int64]:
        """The places of `since` that stand for chunks at ranks."""
        key = chunk * self.num_ranks + rank
        if self._keys is None:
            return key
        place = np.searchsorted(self._keys, key)
        place[place == len(self._keys)] = 0
        place[self._keys[place] != key] = len(self._keys)
        return place


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


def _one_pass(
    chunk: Any, link: Any, start: Any, end: Any, leaves: Any, enters: Any, since: Any, free: Any,
    hold_of: Any, hold_resource: Any, hold_alpha: Any, hold_beta: Any, units: Any,
    once: bool, never: int,
) -> tuple[int, int]:  # fmt: skip
    """The kind and place of the first fault among sends in order of start."""
    for i in range(len(chunk)):
        e, c, time = link[i], chunk[i], start[i]
        if since[leaves[i]] > time:
            return _ABSENT, i
        if once and since[enters[i]] != never:
            return _TWICE, i
        for h in range(hold_of[e], hold_of[e + 1]):
            r = hold_resource[h]
            length = hold_alpha[h] + units[c] * hold_beta[h]
            if length > 0 and free[r] > time:
                return _BUSY, i
            free[r] = max(free[r], time + length)
        since[enters[i]] = min(since[enters[i]], end[i])
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


class _Late:
    """Holds on resources that some send holds until its end, those that later ones may still meet."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._rows = np.zeros((3, 0), np.int64)

    def add(self, rows: NDArray[np.int64], last_start: int) -> _Fault | None:
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
            return _Fault("contention", f"{name} is held by two sends at {time_us:.6g} us")
        self._rows = rows[:, until > last_start]
        return None


def _missing(problem: Problem, places: _Places) -> _Fault | None:
    """The first chunk that does not arrive where it must, some chunks at a time."""
    chunks = problem.collective.chunks
    first = 0
    while first < len(chunks):
        last, count = first, 0
        while last < len(chunks) and count < _BLOCK:
            count += len(chunks[last].destinations)
            last += 1
        wanted = chunks[first:last]
        ranks = np.fromiter((r for c in wanted for r in c.destinations), np.int64, count)
        chunk = np.repeat(np.arange(first, last), [len(c.destinations) for c in wanted])
        never = places.since[places.of(chunk, ranks)] == places.never
        if never.any():
            at = int(np.argmax(never))
            return _Fault("postcondition", f"chunk {chunk[at]} never arrives at rank {ranks[at]}")
        first = last
    return None
