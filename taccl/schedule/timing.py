"""Exact times of sends in a given order: longest paths in a precedence graph, or one pass over the sends.

The producer decides the link of each chunk, the merged sends, and the order on every resource. Here each send
starts as early as its chunks and its resources permit, in exact ticks.

One pass is serial schedule generation: in the given order, each send starts once its data is available and
its resources are free. It fails if a send waits for a later one. `Precedence` supports such orders, too, as
it first lists all waits. Most orders of baselines need one pass only; both methods give the same times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import partial
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import ArrayLike

from taccl.problem.costs import hold_columns
from taccl.problem.problem import Problem
from taccl.schedule.columns import check_indices
from taccl.schedule.contributions import Arrival, all_bits, make_up
from taccl.schedule.listing import Tasks
from taccl.schedule.precedence import Precedence
from taccl.schedule.schedule import Schedule, lacking, make_schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


#: Tick before every time of a schedule.
_NEVER = -(2**62)


#: Make an `Arrival` from a tuple, in half the time of its constructor.
_arrival = partial(tuple.__new__, Arrival)


class _Contents(Protocol):
    """Interface of a record of what each rank holds, kept during one pass over the sends in order.

    - `overwrites`: True if arrivals change data of the rank, so that they wait for sends that read it.
    """

    overwrites: bool

    def ready(self, rank: int, chunk: int, transfer: int, place: int) -> int | None:
        """Earliest tick at which a rank can send a chunk; None if its data arrives later in the order."""

    def read(self, rank: int, chunk: int, tick: int) -> None:
        """Record that a rank starts to send a chunk at this tick; called if arrivals overwrite data."""

    def changes(self, rank: int, chunk: int, transfer: int) -> int:
        """Earliest tick at which a transfer may arrive: after prior reads and writes of data it changes."""

    def arrive(self, rank: int, chunk: int, transfer: int, place: int, tick: int) -> None:
        """Record that a transfer arrives at this tick."""


class _Copies:
    """Tracker of what ranks hold of copied chunks: a rank has a chunk from its first arrival on."""

    overwrites = False

    def __init__(self, problem: Problem) -> None:
        self._since = {
            (rank, c): 0 for c, chunk in enumerate(problem.collective.chunks) for rank in chunk.origins
        }

    def ready(self, rank: int, chunk: int, transfer: int, place: int) -> int | None:
        return self._since.get((rank, chunk))

    def read(self, rank: int, chunk: int, tick: int) -> None:
        pass

    def changes(self, rank: int, chunk: int, transfer: int) -> int:
        return _NEVER

    def arrive(self, rank: int, chunk: int, transfer: int, place: int, tick: int) -> None:
        self._since.setdefault((rank, chunk), tick)


class _Sums:
    """Tracker of what ranks hold of chunks reduced in place: a send carries the sum of earlier arrivals."""

    overwrites = True

    def __init__(self, reduce: Sequence[bool]) -> None:
        self._reduce = reduce
        #: `_included`: {(rank, chunk): tick of the last included arrival}.
        #: `_copied`: {(rank, chunk): tick of the last copy}.
        #: `_read`: {(rank, chunk): tick of the last read}.
        self._included, self._copied, self._read = (dict[tuple[int, int], int]() for _ in range(3))

    def ready(self, rank: int, chunk: int, transfer: int, place: int) -> int | None:
        return self._included.get((rank, chunk), 0)

    def read(self, rank: int, chunk: int, tick: int) -> None:
        if tick > self._read.get(key := (rank, chunk), _NEVER):
            self._read[key] = tick

    def changes(self, rank: int, chunk: int, transfer: int) -> int:
        replaced, key = self._copied if self._reduce[transfer] else self._included, (rank, chunk)
        read, other = self._read.get(key, _NEVER), replaced.get(key, _NEVER)
        return (read if read > other else other) + 1

    def arrive(self, rank: int, chunk: int, transfer: int, place: int, tick: int) -> None:
        key = (rank, chunk)
        if not self._reduce[transfer]:
            self._included[key] = self._copied[key] = tick
        elif tick > self._included.get(key, _NEVER):
            self._included[key] = tick


class _Named:
    """Tracker of arrivals that ranks keep unreduced; each send adds up the contributions that it names."""

    overwrites = False

    def __init__(self, problem: Problem, contributions: Sequence[Collection[int]]) -> None:
        self._bits = all_bits(contributions)
        self._since: dict[tuple[int, int, int], int] = {}
        self._arrivals: dict[tuple[int, int], list[Arrival]] = defaultdict(list)
        self._ends: dict[int, int] = {}
        own = [Arrival(-1, 1 << rank, -1) for rank in range(problem.topology.num_ranks)]
        for c, chunk in enumerate(problem.collective.chunks):
            for rank in chunk.origins:
                self._since[rank, c, own[rank].bits] = 0
                self._arrivals[rank, c] = [own[rank]]

    def ready(self, rank: int, chunk: int, transfer: int, place: int) -> int | None:
        key = (rank, chunk, self._bits[transfer])
        if key not in self._since:  # compose the sum once; later sends reuse its time
            parts = make_up(self._bits[transfer], self._arrivals[rank, chunk])
            if parts is None:
                return None
            self._since[key] = max(self._ends[part.end] if part.send >= 0 else 0 for part in parts)
        return self._since[key]

    def read(self, rank: int, chunk: int, tick: int) -> None:
        pass

    def changes(self, rank: int, chunk: int, transfer: int) -> int:
        return _NEVER

    def arrive(self, rank: int, chunk: int, transfer: int, place: int, tick: int) -> None:
        bits = self._bits[transfer]
        self._arrivals[rank, chunk].append(_arrival((place, bits, transfer)))
        self._ends[place] = tick
        self._since.setdefault((rank, chunk, bits), tick)  # an arrived sum is relayed unchanged


def times_in_order(
    problem: Problem,
    *,
    chunk: Ints,
    link: Ints,
    send: Ints,
    reduce: NDArray[np.bool_],
    place: Ints,
    contributions: Sequence[Collection[int]] | None = None,
) -> tuple[Ints, Ints] | None:
    """(start, end) of each transfer in ticks, (num_transfers,) each; None if one pass does not suffice.

    - `chunk`, `link`, `send`, `reduce`, (num_transfers,) array: Columns of the transfers.
    - `place`, (num_transfers,) array: Position of the transfer's send in the order.
    - `contributions`: As in `make_schedule`.
    """
    check_indices(problem, chunk, link)
    collective = problem.collective
    is_special = collective.derivations or collective.update_us_per_mb or problem.clauses.own_first
    if is_special or problem.release_ticks or not len(chunk):
        return None
    _, first = np.unique(send, return_index=True)
    places = np.full(len(first), -1)
    np.maximum.at(places, send, place)
    alike = (link == link[first][send]).all() and (reduce == reduce[first][send]).all()
    if not alike or len(np.unique(places)) < len(places):
        return None
    contents: _Contents
    if contributions is not None:
        contents = _Named(problem, contributions)
    else:
        contents = _Sums(reduce.tolist()) if collective.combining else _Copies(problem)
    return _pass(problem, contents, chunk=chunk, send=send, link=link[first], place=places)


def _pass(
    problem: Problem, contents: _Contents, *, chunk: Ints, send: Ints, link: Ints, place: Ints
) -> tuple[Ints, Ints] | None:
    """(start, end) of each transfer in ticks, send by send; None if a send waits for a later one.

    - `chunk`, `send`, (num_transfers,) array: Columns of the transfers.
    - `link`, `place`, (num_sends,) array: Columns of the sends.
    """
    costs, ends = problem.costs, list(map(itemgetter(0, 1), problem.topology.links))
    units = np.zeros(len(link), dtype=np.int64)
    np.add.at(units, send, costs.chunk_units[chunk])
    duration = costs.link_alpha[link] + units * costs.link_beta[link]
    holds = hold_columns(problem.topology)
    holder, hold = holds.of_sends(link)
    held = costs.hold_alpha[hold] + units[holder] * costs.hold_beta[hold]
    receives, last = holds.receives[hold], duration[holder]
    begin, until = np.where(receives, last - held, 0), np.where(receives, last, held)
    rows = list(zip(holds.resource[hold].tolist(), begin.tolist(), until.tolist(), strict=True))
    bounds = np.searchsorted(holder, np.arange(len(link) + 1)).tolist()
    uses = [rows[a:b] for a, b in pairwise(bounds)]
    by_send = np.argsort(send, kind="stable")
    counts = np.searchsorted(send[by_send], np.arange(len(link) + 1)).tolist()
    carried = list(zip(by_send.tolist(), chunk[by_send].tolist(), strict=True))
    over, lasts = link.tolist(), duration.tolist()
    free, start = [0] * len(problem.topology.resources), [0] * len(link)
    overwrites, ready, changes = contents.overwrites, contents.ready, contents.changes
    read, arrive = contents.read, contents.arrive
    # The loop compares times instead of calling `max`, which takes twice as long.
    for number, s in enumerate(np.argsort(place, kind="stable").tolist()):
        (srcs, dsts), us, held_by, transfers = (
            ends[over[s]],
            lasts[s],
            uses[s],
            carried[counts[s] : counts[s + 1]],
        )
        at = 0
        for transfer, c in transfers:
            for rank in srcs:
                since = ready(rank, c, transfer, number)
                if since is None:
                    return None
                if since > at:
                    at = since
            for rank in dsts if overwrites else ():
                since = changes(rank, c, transfer) - us
                if since > at:
                    at = since
        for resource, before, _ in held_by:
            since = free[resource] - before
            if since > at:
                at = since
        for resource, _, after in held_by:
            if at + after > free[resource]:
                free[resource] = at + after
        for transfer, c in transfers:
            for rank in srcs if overwrites else ():
                read(rank, c, at)
            for rank in dsts:
                arrive(rank, c, transfer, number, at + us)
        start[s] = at
    begun = np.array(start, dtype=np.int64)[send]
    return begun, begun + duration[send]


def exact_times(
    problem: Problem,
    *,
    chunk: ArrayLike,
    link: ArrayLike,
    starts: ArrayLike | None = None,
    ends: ArrayLike | None = None,
    sequence: ArrayLike | None = None,
    group: ArrayLike | None = None,
    reduce: ArrayLike | None = None,
    producer: str = "",
    contributions: Sequence[Collection[int]] | None = None,
) -> Schedule:
    """Schedule in which every send starts as early as data, resources and the given order permit.

    - `chunk`, `link`, `group`, `reduce`, `contributions`, (num_transfers,) array_like: As in
      `make_schedule`.
    - `starts`, (num_transfers,) array_like of int: Tentative starts in ticks, which give the order on each
      resource. They need not be exact. If they are feasible, no send starts later in the result.
    - `ends`, (num_transfers,) array_like of int: Tentative ends in ticks, allowed with `starts`. A send reads
      the arrivals that end by its start. Default: each send's start plus its duration.
    - `sequence`, (num_transfers,) array_like of int: Alternative to `starts`: sends use their resources in
      this order, and read earlier arrivals.

    Raises `ValueError` if a merged send has two links, a rank sends a chunk that it never holds, or the order
    has a cycle.
    """
    if (starts is None) == (sequence is None):
        raise ValueError("give either starts or sequence")
    key = np.asarray(starts if sequence is None else sequence, dtype=np.int64)
    chunk, link = np.asarray(chunk, dtype=np.int64), np.asarray(link, dtype=np.int64)
    if reduce is None:
        nothing = np.zeros(len(key), dtype=bool)
        reduce = nothing if contributions is None else lacking(problem, chunk.tolist(), contributions)
    reduce = np.asarray(reduce, dtype=bool)
    # Sends that start at the same time on a resource keep the order of the columns.
    send = np.arange(len(key))
    if group is not None:
        _, first, send = np.unique(group, return_index=True, return_inverse=True)
        send = np.argsort(np.argsort(first))[send]
    if sequence is not None:
        times = times_in_order(
            problem, chunk=chunk, link=link, send=send, reduce=reduce, place=key, contributions=contributions
        )
        if times is not None:
            start, end = times
            return make_schedule(
                problem, chunk=chunk, link=link, start=start, end=end, group=send, reduce=reduce,
                producer=producer, contributions=contributions,
            )  # fmt: skip
    order = Precedence(
        problem, problem, chunk=chunk, link=link, group=send, reduce=reduce, start=key,
        end=None if ends is None else np.asarray(ends, dtype=np.int64), places=starts is None, impose=True,
        contributions=contributions,
    )  # fmt: skip
    heads = Tasks.of_sends(order, turns=True).heads()
    return order.schedule(np.array(heads, dtype=np.int64), producer=producer)
