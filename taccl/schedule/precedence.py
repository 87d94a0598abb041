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
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taccl._internal.arrays import Flags, Ints, first_rows, lexsort, numbered, ranges
from taccl.errors import InputError
from taccl.problem.costs import hold_columns
from taccl.problem.problem import Problem
from taccl.schedule.arrivals import Events, chains, events_of, holds_at_start
from taccl.schedule.clause_waits import add_local_first, add_releases, add_updates
from taccl.schedule.columns import check_indices
from taccl.schedule.contributions import Carried, compositions
from taccl.schedule.longest_paths import Levels
from taccl.schedule.schedule import Schedule, make_schedule

#: Causes of a wait in the precedence graph.
#: `DATA`: a send waits for its data to arrive.
#: `SUM`: an arrival waits until the sum that it changes has been read or replaced.
#: Other causes are a clause (`clause_waits.CLAUSE`), or the index of a resource.
DATA, SUM = -1, -2
#: Max events for which a send waits individually; more are combined by a join.
_FEW = 2


class WaitColumns(NamedTuple):
    """Waits as columns, (num_waits,) int64 each: `target` waits for `source`; the module defines the rest."""

    source: Ints
    target: Ints
    after: Ints
    lead: Ints
    extra: Ints
    cause: Ints
    tile: Ints


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
    - `held`: Columns (resource, send, begin, until) of all holds, by resource and in order; times are ticks
      after the send's start.
    - `waits` (WaitColumns): All waits; those for resources come first.

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
        reduce: Flags,
        start: Ints,
        end: Ints | None = None,
        places: bool = False,
        impose: bool = False,
        contributions: Sequence[Collection[int]] | None = None,
    ) -> None:
        self.problem, self.own, self._places, self.impose = problem, own, places, impose
        check_indices(own, chunk, link)
        _, first, send = numbered(group)
        alike = {"link": link, "reduce": reduce} | ({} if end is None else {"start": start, "end": end})
        for name, column in alike.items():
            odd = np.flatnonzero(column != column[first][send])
            if len(odd):
                raise _wrong(
                    f"transfers of group {group[odd[0]]} differ in {name}; expected one link, start and "
                    "end, and one kind (copy or reduce)"
                )
        self._columns: dict[str, Any] = {
            "chunk": chunk, "link": link, "reduce": reduce, "contributions": contributions
        }  # fmt: skip
        self.num_sends = self.num_events = len(first)
        self.link: list[int] = link[first].tolist()
        self._send = send
        self._set_times(chunk, link[first], send, start, None if end is None else end[first])
        self._blocks: list[Sequence[Ints]] = []
        self._single: list[tuple[int, ...]] = []
        self.held = self._held()
        self._on_resources()
        if contributions is not None:
            self._of_contributions(Carried.of(contributions))
        elif own.collective.combining and not own.collective.derivations:
            self._of_sums()
        else:
            self._of_copies()
        add_local_first(self)
        add_releases(self)
        add_updates(self)
        single = np.array(self._single, dtype=np.int64).reshape(-1, len(WaitColumns._fields))
        self.waits = WaitColumns(*map(np.concatenate, zip(*self._blocks, single.T, strict=True)))

    def _set_times(
        self, chunk: NDArray[np.integer], link: NDArray[np.integer], send: Ints, start: Ints, end: Ints | None
    ) -> None:
        """Set the units, the duration, and the given start and end of each send.

        - `chunk`, `send`, `start`, (num_transfers,): Columns of the transfers.
        - `link`, `end`, (num_sends,): Columns of the sends; None for ends that follow from durations.
        """
        self.units, self.own_units = np.zeros((2, self.num_sends), dtype=np.int64)
        np.add.at(self.units, send, self.problem.costs.chunk_units[chunk])
        np.add.at(self.own_units, send, self.own.costs.chunk_units[chunk])
        duration, own_duration = (
            problem.costs.link_alpha[link] + units * problem.costs.link_beta[link]
            for problem, units in ((self.problem, self.units), (self.own, self.own_units))
        )
        latest = np.full(self.num_sends, np.iinfo(np.int64).min)
        np.maximum.at(latest, send, start)
        ends = end if end is not None else latest if self._places else latest + own_duration
        self._durations, self._starts, self._ends = duration, latest, np.asarray(ends, np.int64)
        self.duration: list[int] = duration.tolist()
        self.start: list[int] = latest.tolist()
        self.end: list[int] = ends.tolist()

    @cached_property
    def transfers(self) -> list[list[int]]:
        """Transfers of each send."""
        found: list[list[int]] = [[] for _ in range(self.num_sends)]
        for transfer, s in enumerate(self.send):
            found[s].append(transfer)
        return found

    @cached_property
    def send(self) -> list[int]:
        """Send of each transfer."""
        found: list[int] = self._send.tolist()
        return found

    @cached_property
    def chunk(self) -> list[int]:
        """Chunk of each transfer."""
        found: list[int] = self._columns["chunk"].tolist()
        return found

    @cached_property
    def reduce(self) -> list[bool]:
        """True for each transfer that is a reduction."""
        found: list[bool] = self._columns["reduce"].tolist()
        return found

    @cached_property
    def levels(self) -> Levels:
        """Events in topological levels of the waits."""
        return Levels(self.num_events, self.waits.source, self.waits.target, self.waits.tile > 0)

    def gaps(self) -> Ints:
        """Min ticks from the source's start to the target's start, for every wait."""
        return self.waits.after - self.waits.lead + self.waits.extra

    def earliest_starts(self) -> Ints:
        """(num_events,) earliest start of each event in ticks, with the order on each resource kept.

        Raises `ValueError` if events wait for each other in a cycle of positive length.
        """
        return self.levels.earliest(self.gaps())

    def schedule(self, start: ArrayLike, *, producer: str, problem: Problem | None = None) -> Schedule:
        """Schedule of the sends with the given starts.

        - `start`, (num_events,) or (num_sends,): Starts in ticks of `problem`, whose costs give the
          durations.
        """
        begin = np.asarray(start)[self._send]
        return make_schedule(
            problem or self.problem, **self._columns, group=self._send, start=begin,
            end=begin + self._durations[self._send], producer=producer,
        )  # fmt: skip

    def wait(
        self, source: int, target: int, cause: int, after: int = 0, *, lead: int = 0, extra: int = 0
    ) -> None:
        """Make event `target` wait for event `source`; the module's docstring defines the other arguments."""
        self._single.append((source, target, after, lead, extra, cause, 0))

    def _add(
        self, source: Ints, target: Ints, cause: Ints | int, after: Ints | int = 0, *,
        lead: Ints | int = 0, extra: Ints | int = 0, tile: int = 0,
    ) -> None:  # fmt: skip
        """Add waits by columns, with the arguments of `wait`; a number applies to all waits."""
        self._blocks.append(np.broadcast_arrays(source, target, after, lead, extra, cause, tile))

    def join(self, pending: Iterable[tuple[int, int]], cause: int) -> int:
        """Add a join that waits for each (source, ticks after it) in `pending`; return the join's index."""
        joined = self.num_events
        self.num_events += 1
        for source, after in pending:
            self.wait(source, joined, cause, after)
        return joined

    def _on_resources(self) -> None:
        """Add waits on resources: one send at a time in the given order, each tile after the previous one."""
        resource, send, begin, until = self.held
        same = np.flatnonzero(resource[1:] == resource[:-1])
        first, last = (np.flatnonzero(np.diff(resource, **{end: -1})) for end in ("prepend", "append"))
        for before, after, tile in ((same, same + 1, 0), (last, first, 1)):
            cause = resource[before]
            self._add(send[before], send[after], cause, until[before], lead=begin[after], tile=tile)

    def _held(self) -> tuple[Ints, ...]:
        """(resource, send, begin, until) columns of all holds, sorted by resource and by the given times."""
        columns = hold_columns(self.problem.topology)
        start, end, duration = self._starts, self._ends, self._durations
        send, hold = columns.of_sends(np.array(self.link, dtype=np.int64))
        resource, receives = columns.resource[hold], columns.receives[hold]

        def span(problem: Problem, units: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints]:
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
        order = lexsort((send, resource))
        new = np.flatnonzero(np.diff(resource[order], prepend=-1) | np.diff(send[order], prepend=-1))
        resource, send = resource[order][new], send[order][new]
        own_begin, begin = (np.minimum.reduceat(column[order], new) for column in (own_begin, begin))
        own_until, until = (np.maximum.reduceat(column[order], new) for column in (own_until, until))
        # Holds of a resource are in order of their begins.
        # Ties: zero-length holds first if times are tentative; else by ends of holds, then starts of sends.
        ties = (own_until > own_begin,) if self.impose else (start[send], own_until)
        order = lexsort((send, *ties, own_begin, resource))
        return resource[order], send[order], begin[order], until[order]

    def _of_copies(self) -> None:
        """Add waits for copies: a chunk is sent once it, or a chunk that it derives from, has arrived."""
        reads, arrivals = self._reads_and_arrivals()
        order = lexsort((arrivals.send, self._ends[arrivals.send], arrivals.place))
        place, first = first_rows(arrivals.place[order])
        source = arrivals.send[order][first]
        if self.own.collective.derivations:
            place, source = self._with_derived(place, source)
        wants = reads.of(~holds_at_start(self.own.collective, reads.place))
        row = np.asarray(np.searchsorted(place, wants.place))
        self._require(np.append(place, -1)[row] == wants.place, wants.place)
        before = source[row]
        waits = before >= 0
        self._add(before[waits], wants.send[waits], DATA, self._durations[before[waits]])

    def _with_derived(self, place: Ints, source: Ints) -> tuple[Ints, Ints]:
        """Add derived chunks to (places of chunks, sends that deliver them); send -1 for initial data."""
        collective, count = self.own.collective, self.own.collective.num_chunks
        brought = {p: (self.end[s], s) for p, s in zip(place.tolist(), source.tolist(), strict=True)}
        for chunk, data in enumerate(collective.chunks):
            for rank in data.origins:
                brought[rank * count + chunk] = (-1, -1)
        makes: dict[int, list[int]] = defaultdict(list)
        for each in collective.derivations:
            makes[each.rank * count + each.source].append(each.rank * count + each.chunk)
        pending = [key for key in makes if key in brought]
        while pending:
            origin = pending.pop()
            for made in makes[origin]:
                if brought[origin] < brought.get(made, (2**63, 0)):
                    brought[made] = brought[origin]
                    pending.append(made)
        places, sends = zip(*((p, s) for p, (_, s) in sorted(brought.items())), strict=True)
        return np.array(places), np.array(sends)

    def _reads_and_arrivals(self) -> tuple[Events, Events]:
        chunk, link = (np.asarray(self._columns[name], np.int64) for name in ("chunk", "link"))
        return events_of(self.own, chunk, link, self._send)

    def _require(self, is_held: Flags, place: Ints) -> None:
        """Raise `InputError` if some rank sends a chunk that it does not hold."""
        if not is_held.all():
            raise _absent(*divmod(int(place[~is_held][0]), self.own.collective.num_chunks))

    def _of_contributions(self, carried: Carried) -> None:
        """Add waits for named contributions: a sum is sent after all arrivals of which it is composed.

        A rank composes a sum at its first send, and later sends of this sum reuse it.
        """
        reads, arrivals = self._reads_and_arrivals()
        number, num_sums, num_chunks = carried.number, len(carried.sums), self.own.collective.num_chunks
        until, turn = np.unique(self._ends[arrivals.send], return_inverse=True)
        order = lexsort((turn, arrivals.place))
        arrivals, turn = arrivals.of(order), turn[order]
        index = {ranks: i for i, ranks in enumerate(carried.sums)}
        lone = np.array([index.get((rank,), -1) for rank in range(self.own.topology.num_ranks)])
        has_own = holds_at_start(self.own.collective, reads.place)
        reads = reads.of(~(has_own & (number[reads.transfer] == lone[reads.place // num_chunks])))
        reads = reads.of(lexsort((self._starts[reads.send],)))
        _, first, of_read = numbered(reads.place * num_sums + number[reads.transfer])
        place, wanted, begun = (
            column[first] for column in (reads.place, number[reads.transfer], self._starts[reads.send])
        )
        is_over = np.searchsorted(until, begun, side="right")
        key = arrivals.place * (len(until) + 1) + turn
        end = np.searchsorted(key, place * (len(until) + 1) + is_over)
        row, part, missing = compositions(
            carried,
            wanted,
            np.where(holds_at_start(self.own.collective, place), place // num_chunks, -1),
            np.searchsorted(arrivals.place, place),
            end,
            np.searchsorted(arrivals.place, place, side="right") if self.impose else end,
            number[arrivals.transfer],
        )
        if missing:
            raise _absent(*divmod(int(place[missing[0]]), num_chunks))
        source, every = arrivals.send[part], np.arange(len(place))
        begins, ends = (np.searchsorted(row, every, side=side)[of_read] for side in ("left", "right"))
        data, nothing = np.full(len(of_read), DATA), np.zeros(len(of_read), np.int64)
        self._gather(source, self._durations[source], begins, ends, reads.send, data, nothing, nothing)

    def _of_sums(self) -> None:
        """Add waits for sums in place: a sum is sent after arrivals it includes, before later arrivals.

        A read waits for the last copy and all later arrivals. An arrival waits for all earlier reads; one
        that adds also waits for the last copy, and a copy waits for all that it replaces. Copies that arrive
        at once count as one.
        """
        reads, arrivals = self._reads_and_arrivals()
        copies = ~np.asarray(self._columns["reduce"], bool)[arrivals.transfer]
        send, place = (np.concatenate(each) for each in zip(arrivals[::2], reads[::2], strict=True))
        time = np.concatenate([self._ends[arrivals.send], self._starts[reads.send]])
        # At equal times, reducing arrivals come first, then copies, then starts.
        phase = np.concatenate([copies.astype(np.int64), np.full(len(reads.send), 2)])
        order = lexsort((send, phase, time, place))
        send, place, time, phase = send[order], place[order], time[order], phase[order]
        row = np.arange(len(order))
        is_new = np.diff(place, prepend=-1) != 0
        first = np.maximum.accumulate(np.where(is_new, row, 0))  # first event of the rank and chunk
        is_later = is_new | (np.diff(time, prepend=-1) != 0)
        at_once = np.maximum.accumulate(np.where(is_later, row, 0))  # first event at the same time
        last_copy = np.concatenate([[-1], np.maximum.accumulate(np.where(phase == 1, row, -1))])[:-1]
        since = np.where(last_copy >= first, at_once[last_copy], first)
        adds, copies, begins = (phase == kind for kind in range(3))
        arrives = ~begins
        arrived, copied, begun = (np.cumsum(each) - each for each in (arrives, copies, begins))
        is_held = holds_at_start(self.own.collective, place[begins])
        self._require(is_held | self.impose | (arrived > arrived[since])[begins], place[begins])
        lead = np.where(arrives, self._durations[send], 0)
        extra = arrives.astype(np.int64)
        if self.own.collective.updates:
            rank, chunk = np.divmod(place[begins], self.own.collective.num_chunks)
            roots = np.array([each.root for each in self.own.collective.chunks])
            extra[begins] = np.where(rank == roots[chunk], self.problem.update_ticks[chunk], 0)
        until = np.where(copies, arrived[at_once], arrived)

        def gather(rows: Flags, pool: Flags, begin: Ints, end: Ints, cause: Ints) -> None:
            after = np.where(begins[pool], 0, self._durations[send[pool]])
            self._gather(
                send[pool], after, begin[rows], end[rows], send[rows], cause, lead[rows], extra[rows]
            )

        gather(~adds, arrives, arrived[since], until, np.where(begins, DATA, SUM)[~adds])
        gather(adds, copies, copied[since], copied, np.full(adds.sum(), SUM))
        gather(arrives, begins, begun[first], begun, np.full(arrives.sum(), SUM))

    def _gather(
        self,
        pool: Ints,
        after: Ints,
        begin: Ints,
        end: Ints,
        target: Ints,
        cause: Ints,
        lead: Ints,
        extra: Ints,
    ) -> None:
        """Make each event `target` wait for events ``pool[begin:end]``; long ranges share joins.

        - `after`, (num_pool,) array: Ticks from the start of each event of the pool until its wait is over.
        """
        few = end - begin <= _FEW
        row, each = ranges(begin[few], end[few])
        targets, causes, leads, extras = (column[few][row] for column in (target, cause, lead, extra))
        self._add(pool[each], targets, causes, after[each], lead=leads, extra=extras)
        chain = chains(begin[~few], end[~few])
        join = self.num_events + np.arange(len(chain.begin))
        self.num_events += len(join)
        self._add(join[chain.later - 1], join[chain.later], DATA)
        row, each = ranges(chain.begin, chain.end)
        self._add(pool[each], join[row], DATA, after[each])
        self._add(join[chain.of_row], target[~few], cause[~few], lead=lead[~few], extra=extra[~few])


def _absent(rank: int, chunk: int) -> InputError:
    return _wrong(f"rank {rank} sends chunk {chunk}, which it never holds")


def _wrong(what: str) -> InputError:
    return InputError(f"{what}; verify the schedule to see where", where="schedule")
