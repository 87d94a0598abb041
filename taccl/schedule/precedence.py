"""Precedence graph of sends in a given order: the events for which each send waits, and how long.

An event is the start of a send. It waits for its chunks to arrive, and for its turn on each resource. Given
times determine these arrivals and turns: times of a schedule, tentative times, or positions in a sequence.
The lengths of waits follow from the costs of a problem, which may differ in sizes and costs from the problem
of the given times.

A wait is the constraint ``start[target] >= start[source] + after - lead + extra``, all in ticks. `after` is
the time from the source's start to the end of its hold, or to its arrival. `lead` is the time from the
target's start until it needs the resource or the data. `extra` is one tick where a sum must be read before it
changes. Where a server updates a sum before it is sent, `extra` is the time that the update takes. If a
message is sent in several tiles, all with the same sends, a wait with `tile` 1 is between two successive
tiles: the first send on a resource waits for the last one of the previous tile. Other waits are within a
tile. Events after the sends are joins, which occur once all their waits are over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taccl.errors import InputError
from taccl.problem.costs import hold_columns
from taccl.problem.problem import Problem
from taccl.schedule.columns import check_indices
from taccl.schedule.contributions import Arrival, all_bits, make_up
from taccl.schedule.schedule import Schedule, make_schedule

if TYPE_CHECKING:
    from taccl.problem.problem import Costs

#: Causes of a wait in the precedence graph.
#: `DATA`: a send waits for its data to arrive.
#: `SUM`: an arrival waits until the sum that it changes has been read or replaced.
#: Other causes are a clause (`CLAUSE`), or the index of a resource.
DATA, SUM = -1, -2
#: Max events for which a send waits individually; more are combined by a join.
_FEW = 2
#: Wait of event `target` for event `source`: (source, target, after, lead, extra, cause, tile).
#: The docstring of this module defines them. Waits are plain tuples, as there may be millions.
Wait = tuple[int, int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Use:
    """Hold of a resource by a send, from `begin` until `until` ticks after the send's start."""

    send: int
    begin: int
    until: int


class Precedence:
    """Precedence graph of the sends of a schedule, in a given order.

    The arguments are:

    - `problem`: Problem whose costs determine the lengths of waits.
    - `own`: Problem to which the given times belong.
    - `chunk`, `link`, `group`, `reduce`, (num_transfers,) array: As in `make_schedule`.
    - `contributions`: Ranks whose sum each transfer carries, if the schedule keeps arrivals unreduced.
    - `start`, (num_transfers,) array: Tentative starts in ticks of `own`; a send's start is the latest of its
      transfers. If `places` is True: positions in a sequence, in which sends use resources and read
      earlier arrivals.
    - `end`, (num_transfers,) array: Ends in ticks of `own`; by default a send ends after its duration.
    - `impose`: True if the times are tentative. Local-first priority then gets its full gap wherever the
      order has local chunks first, even if the times lack the gap.

    The results are:

    - `num_sends`, `num_events` (int): Sends are the first events, in order of their groups; joins follow.
    - `link`, `start`, `end`, `duration`, (num_sends,) list of int: Start and end are the given times in
      ticks; durations follow from the costs of `problem`.
    - `transfers`, (num_sends,) list of list of int: Transfers of each send.
    - `uses` ({resource: list of Use}): Holds of each resource, in order.

    Raises `InputError` if transfers of one group are not one send, or a rank sends a chunk that it never
    holds.
    """

    def __init__(
        self,
        problem: Problem,
        own: Problem,
        *,
        chunk: NDArray[np.integer],
        link: NDArray[np.integer],
        group: NDArray[np.integer],
        reduce: NDArray[np.bool_],
        start: NDArray[np.int64],
        end: NDArray[np.int64] | None = None,
        places: bool = False,
        impose: bool = False,
        contributions: Sequence[Collection[int]] | None = None,
    ) -> None:
        self.problem, self.own, self._places, self.impose = problem, own, places, impose
        check_indices(own, chunk, link)
        _, first, send = np.unique(group, return_index=True, return_inverse=True)
        timed = [] if end is None else [("start", start), ("end", end)]
        for name, column in (("link", link), ("reduce", reduce), *timed):
            odd = np.flatnonzero(column != column[first][send])
            if len(odd):
                raise _wrong(
                    f"transfers of group {group[odd[0]]} differ in {name}; expected one link, start and "
                    "end, and one kind (copy or reduce)"
                )
        self._columns: dict[str, Any] = {
            "chunk": chunk,
            "link": link,
            "reduce": reduce,
            "contributions": contributions,
        }
        self.num_sends = self.num_events = len(first)
        self.link: list[int] = link[first].tolist()
        self.chunk: list[int] = chunk.tolist()
        self.reduce: list[bool] = reduce.tolist()
        self.send: list[int] = send.tolist()
        self.transfers: list[list[int]] = [[] for _ in range(self.num_sends)]
        for transfer, s in enumerate(self.send):
            self.transfers[s].append(transfer)
        self.units, self.own_units = np.zeros((2, self.num_sends), dtype=np.int64)
        np.add.at(self.units, send, problem.costs.chunk_units[chunk])
        np.add.at(self.own_units, send, own.costs.chunk_units[chunk])
        duration, own_duration = (
            p.costs.link_alpha[link[first]] + units * p.costs.link_beta[link[first]]
            for p, units in ((problem, self.units), (own, self.own_units))
        )
        self.duration: list[int] = duration.tolist()
        latest = np.full(self.num_sends, np.iinfo(np.int64).min)
        np.maximum.at(latest, send, start)
        self.start: list[int] = latest.tolist()
        ends = end[first] if end is not None else latest if places else latest + own_duration
        self.end: list[int] = ends.tolist()
        self.waits: list[Wait] = []
        self._rows = self._held()
        self._on_resources()
        if contributions is not None:
            self._of_contributions(contributions)
        elif own.collective.combining and not own.collective.derivations:
            self._of_sums()
        else:
            self._of_copies()
        add_local_first(self)
        add_releases(self)

    def schedule(self, start: ArrayLike, *, producer: str, problem: Problem | None = None) -> Schedule:
        """Schedule of the sends with the given starts.

        - `start`, (num_events,) or (num_sends,): Starts in ticks of `problem`, whose costs give the
          durations.
        """
        begin = np.asarray(start)[self.send]
        return make_schedule(
            problem or self.problem, **self._columns, group=self.send, start=begin,
            end=begin + np.array(self.duration)[self.send], producer=producer,
        )  # fmt: skip

    def wait(
        self, source: int, target: int, cause: int, after: int = 0, *, lead: int = 0, extra: int = 0
    ) -> None:
        """Make event `target` wait for event `source`; the module's docstring defines the other arguments."""
        self.waits.append((source, target, after, lead, extra, cause, 0))

    def join(self, pending: Iterable[tuple[int, int]], cause: int) -> int:
        """Add a join that waits for each (source, ticks after it) in `pending`; return the join's index."""
        joined = self.num_events
        self.num_events += 1
        for source, after in pending:
            self.wait(source, joined, cause, after)
        return joined

    def _on_resources(self) -> None:
        """Add waits on resources: one send at a time in the given order, each tile after the previous one."""
        resource, send, begin, until = self._rows
        same = np.flatnonzero(resource[1:] == resource[:-1])
        first, last = (np.flatnonzero(np.diff(resource, **{end: -1})) for end in ("prepend", "append"))
        for before, after, tile in ((same, same + 1, 0), (last, first, 1)):
            columns = send[before], send[after], until[before], begin[after], resource[before]
            waits = zip(*(column.tolist() for column in columns), strict=True)
            self.waits += [
                (source, to, rest, lead, 0, cause, tile) for source, to, rest, lead, cause in waits
            ]

    @cached_property
    def uses(self) -> dict[int, list[Use]]:
        """{resource: its holds, in order}."""
        uses: dict[int, list[Use]] = defaultdict(list)
        for resource, *use in zip(*(column.tolist() for column in self._rows), strict=True):
            uses[resource].append(Use(*use))
        return dict(uses)

    def _held(self) -> tuple[NDArray[np.int64], ...]:
        """(resource, send, begin, until) columns of all holds, sorted by resource and by the given times."""
        columns = hold_columns(self.problem.topology)
        link, start, end, duration = (
            np.array(column, dtype=np.int64) for column in (self.link, self.start, self.end, self.duration)
        )
        send, hold = columns.of_sends(link)
        resource, receives = columns.resource[hold], columns.receives[hold]

        def span(
            problem: Problem, units: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]
        ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
            held = problem.costs.hold_alpha[hold] + units[send] * problem.costs.hold_beta[hold]
            return np.where(receives, end[send] - held, start[send]), np.where(
                receives, end[send], start[send] + held
            )

        own_begin = own_until = start[send]
        if not self._places:
            own_begin, own_until = span(self.own, self.own_units, start, end)
        begin, until = span(self.problem, self.units, np.zeros_like(duration), duration)
        if not len(send):
            return resource, send, begin, until
        # If a send holds a resource both when it starts and when it ends, it also holds it in between.
        order = np.lexsort((send, resource))
        new = np.flatnonzero(np.diff(resource[order], prepend=-1) | np.diff(send[order], prepend=-1))
        resource, send = resource[order][new], send[order][new]
        own_begin, begin = (np.minimum.reduceat(column[order], new) for column in (own_begin, begin))
        own_until, until = (np.maximum.reduceat(column[order], new) for column in (own_until, until))
        # Holds of a resource are in order of their begins. Among equal begins, holds of zero length come
        # first if times are tentative; otherwise holds are in order of their ends, then of the starts of
        # sends.
        ties = (own_until > own_begin,) if self.impose else (start[send], own_until)
        order = np.lexsort((send, *ties, own_begin, resource))
        return resource[order], send[order], begin[order], until[order]

    def _of_copies(self) -> None:
        """Add waits for copies: a chunk is sent once it, or a chunk that it derives from, has arrived."""
        collective, links = self.own.collective, self.own.topology.links
        duration, end = self.duration, self.end
        brought: dict[tuple[int, int], tuple[int, int]] = {}  # (rank, chunk) -> (arrival, send)
        for transfer, s in enumerate(self.send):
            for rank in links[self.link[s]].dsts:
                key = (rank, self.chunk[transfer])
                brought[key] = min(brought.get(key, (end[s], s)), (end[s], s))
        for chunk, data in enumerate(collective.chunks):
            for rank in data.origins:
                brought[rank, chunk] = (-1, -1)
        makes: dict[tuple[int, int], list[int]] = defaultdict(list)
        for each in collective.derivations:
            makes[each.rank, each.source].append(each.chunk)
        pending = [key for key in makes if key in brought]
        while pending:
            rank, origin = pending.pop()
            for chunk in makes[rank, origin]:
                if brought[rank, origin] < brought.get((rank, chunk), (2**63, 0)):
                    brought[rank, chunk] = brought[rank, origin]
                    pending.append((rank, chunk))
        for transfer, s in enumerate(self.send):
            for rank in links[self.link[s]].srcs:
                if (rank, self.chunk[transfer]) not in brought:
                    raise _absent(rank, self.chunk[transfer])
                source = brought[rank, self.chunk[transfer]][1]
                if source >= 0:
                    self.wait(source, s, DATA, duration[source])

    def _of_contributions(self, contributions: Sequence[Collection[int]]) -> None:
        """Add waits for named contributions: a sum is sent after all arrivals of which it is composed."""
        links = self.own.topology.links
        carried = all_bits(contributions)
        arrivals: dict[tuple[int, int], list[Arrival]] = defaultdict(list)
        for transfer, s in enumerate(self.send):
            for rank in links[self.link[s]].dsts:
                arrivals[rank, self.chunk[transfer]].append(Arrival(self.end[s], carried[transfer], s))
        for (rank, chunk), here in arrivals.items():
            if rank in self.own.collective.chunks[chunk].origins:
                here.append(Arrival(-1, 1 << rank, -1))
            here.sort()
        #: {(rank, chunk, sum): (arrivals that compose the sum, waits for them)}, reused by its later sends.
        known: dict[tuple[int, int, int], tuple[list[Arrival], list[tuple[int, int]]]] = {}
        for transfer, s in enumerate(self.send):
            chunk, bits, begun = self.chunk[transfer], carried[transfer], self.start[s]
            for rank in links[self.link[s]].srcs:
                if bits == 1 << rank and rank in self.own.collective.chunks[chunk].origins:
                    continue
                parts, awaited = known.get((rank, chunk, bits), (None, []))
                if parts is None or any(part.end > begun for part in parts):
                    here = arrivals[rank, chunk]
                    parts = make_up(bits, [each for each in here if each.end <= begun])
                    if parts is None and self.impose:
                        parts = make_up(bits, here)
                    if parts is None:
                        raise _absent(rank, chunk)
                    awaited = [(part.send, self.duration[part.send]) for part in parts if part.send >= 0]
                    if len(awaited) > _FEW:
                        awaited = [(self.join(awaited, DATA), 0)]
                    known[rank, chunk, bits] = parts, awaited
                for source, after in awaited:
                    self.wait(source, s, DATA, after=after)

    def _of_sums(self) -> None:
        """Add waits for sums in place: a sum is sent after arrivals it includes, before later arrivals."""
        links = self.own.topology.links
        changes: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
        for transfer, s in enumerate(self.send):
            ends, chunk = links[self.link[s]], self.chunk[transfer]
            # At equal times, reducing arrivals come first, then copies, then starts.
            for rank in ends.dsts:
                changes[rank, chunk].append((self.end[s], 0 if self.reduce[transfer] else 1, s))
            for rank in ends.srcs:
                changes[rank, chunk].append((self.start[s], 2, s))
        for (rank, chunk), here in changes.items():
            contributes = rank in self.own.collective.chunks[chunk].origins
            self._of_sum(rank, chunk, sorted(here), contributes=contributes)

    def _of_sum(
        self, rank: int, chunk: int, changes: list[tuple[int, int, int]], *, contributes: bool
    ) -> None:
        duration, update = self.duration, self._update_ticks(rank, chunk)
        included: list[tuple[int, int]] = []  # (event, ticks after it) of arrivals in the current sum
        readers: list[tuple[int, int]] = []
        copies: list[tuple[int, int]] = []
        when: dict[int, int] = {}  # {send: its arrival in ticks of the given times}
        for time, phase, s in changes:
            if phase == 2:
                if not (included or contributes or self.impose):
                    raise _absent(rank, chunk)
                if len(included) > _FEW:
                    included = [(self.join(included, DATA), 0)]
                for source, after in included:
                    self.wait(source, s, DATA, after, extra=update)
                readers.append((s, 0))
                continue
            lead = duration[s]
            if len(readers) > _FEW:
                readers = [(self.join(readers, SUM), 0)]
            replaced = copies if phase == 0 else included
            before = [each for each in replaced if when.get(each[0], -1) < time]
            for source, after in (*readers, *before):
                self.wait(source, s, SUM, after, lead=lead, extra=1)
            when[s] = time
            if phase == 1:
                included = [each for each in included if each not in before]
                copies = [each for each in copies if when[each[0]] == time] + [(s, lead)]
            included.append((s, lead))

    def _update_ticks(self, rank: int, chunk: int) -> int:
        """Time in ticks that a chunk's parameter server takes to update a sum; 0 at other ranks."""
        collective, problem = self.own.collective, self.problem
        if collective.update_us_per_mb is None or rank != collective.chunks[chunk].root:
            return 0
        us = collective.update_us_per_mb * Fraction(problem.chunk_bytes[chunk], 10**6)
        return ceil(us * problem.costs.ticks_per_us)


def _absent(rank: int, chunk: int) -> InputError:
    return _wrong(f"rank {rank} sends chunk {chunk}, which it never holds")


def _wrong(what: str) -> InputError:
    return InputError(f"{what}; verify the schedule to see where", where="schedule")


#: Value of `cause` for waits that local-first priority or a release date requires.
CLAUSE = -3


def add_local_first(order: Precedence) -> None:
    """Add waits for local-first priority: local chunks start at least one latency before relayed ones.

    In a reduction, local chunks end at least one latency after relayed ones. If the given order has this gap,
    the waits keep it. With `Precedence.impose`, they also enforce the gap wherever local chunks come first
    (in a reduction, last).
    """
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
    """Add waits for release dates: a rank's initial data is neither sent nor added to before its date."""
    released = order.problem.release_ticks
    if not released:
        return
    zero = order.join((), CLAUSE)
    for transfer, s in enumerate(order.send):
        ends, chunk = order.problem.topology.links[order.link[s]], order.chunk[transfer]
        for rank in ends.srcs:
            if (chunk, rank) in released:
                order.wait(zero, s, CLAUSE, released[chunk, rank])
        for rank in ends.dsts:
            if order.reduce[transfer] and (chunk, rank) in released:
                order.wait(zero, s, CLAUSE, released[chunk, rank], lead=order.duration[s])


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
