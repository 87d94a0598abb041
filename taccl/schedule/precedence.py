"""The precedence graph of an order of sends: what each of them waits for, and for how long.

An event is the start of a send. It waits for chunks to arrive, and for its turn on every resource. Which
chunk, and whose turn, is read off times: those of a schedule, tentative ones, or places in a sequence. How
long each wait takes follows the costs of a problem, which may differ in sizes and costs from the one that the
times are of.

A wait says ``start[target] >= start[source] + after - lead + extra``: `after` is how long after the
source's start something ends (a hold, the send itself), `lead` how long after the target's own start it is
needed, both in ticks, and `extra` is the one tick by which a sum must be taken before it changes, or for how
long a server updates it before it is. A wait
with `tile` 1 reaches from one tile of a message to the next: the first send on a resource follows the last
one of the tile before. Events beyond the sends are joins, which happen when all that they wait for has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from taccl.costs import hold_columns
from taccl.errors import InputError
from taccl.problem import Costs, Problem
from taccl.schedule.schedule import Schedule, schedule_of

#: Causes of a wait; a cause that is not negative is the resource.
DATA, SUM, CLAUSE = -1, -2, -3
#: A send waits for no more than so many events one by one; more are joined first.
_FEW = 2
#: Arrivals that are tried for a sum before it is given up.
_MOST_STEPS = 100_000
#: Source, target, after, lead, extra, cause, tile; a plain tuple, as there are very many.
Wait = tuple[int, int, int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Use:
    """A send holds a resource from `begin` until `until` ticks after its start."""

    send: int
    begin: int
    until: int


class Arrival(NamedTuple):
    """A sum at a rank: since when, of which ranks (as bits), and the send that brought it (-1: its own)."""

    end: int
    bits: int
    send: int


def bits_of(ranks: Iterable[int]) -> int:
    """A set of ranks as bits."""
    return sum(1 << rank for rank in set(ranks))


def all_bits(sets: Iterable[Collection[int]]) -> list[int]:
    """Sets of ranks as bits; equal sets are read once."""
    rows = [tuple(ranks) for ranks in sets]
    bits = {ranks: bits_of(ranks) for ranks in set(rows)}
    return [bits[ranks] for ranks in rows]


def make_up(wanted: int, arrivals: Sequence[Arrival]) -> list[Arrival] | None:
    """Arrivals with nothing in common that make up a sum, early ones first; None if there are none.

    Which of them is an exact cover, sought depth first: by the lowest rank that is missing. It may be given
    up after very many steps, as if there were none.
    """
    parts, union = [], 0
    for each in arrivals:
        if not each.bits & ~wanted:
            if each.bits & union:
                break
            union |= each.bits
            parts.append(each)
    else:
        if union == wanted:  # they have nothing in common: no other parts make it up
            return parts
    by_lowest: dict[int, list[Arrival]] = defaultdict(list)
    for each in sorted(set(arrivals)):
        if not each.bits & ~wanted:
            by_lowest[each.bits & -each.bits].append(each)
    chosen: list[Arrival] = []
    untried: list[tuple[int, Iterator[Arrival]]] = []
    missing, steps = wanted, 0
    while missing:
        if len(untried) == len(chosen):
            untried.append((missing, iter(by_lowest[missing & -missing])))
        missing, candidates = untried[-1]
        found = next((each for each in candidates if not each.bits & ~missing), None)
        steps += 1
        if found is not None:
            chosen.append(found)
            missing &= ~found.bits
            continue
        untried.pop()
        if not untried or steps > _MOST_STEPS:
            return None
        chosen.pop()
    return chosen


class Precedence:
    """Sends in their order, and their waits.

    - `problem`, `own`: Whose costs say how long waits take, and which the times are of.
    - `chunk`, `link`, `group`, `reduce`, (num_transfers,) array: As in `make_schedule`.
    - `contributions`: The ranks whose sum each transfer carries, where a schedule keeps what arrives apart.
    - `start`, (num_transfers,) array: Tentative starts in ticks of `own`, of which a send's is its latest;
      or (`places`) places in a sequence: sends take resources in this order, and read what came before.
    - `end`, (num_transfers,) array: By default a send ends when it has taken its time.
    - `impose`: Whether times are tentative: where a clause asks for own chunks first, and the order has them
      first, they go first by the gap that it asks for, even if the times do not have it.
    - `num_sends`, `num_events` (int): Sends come first, in order of their groups, then joins.
    - `link`, `start`, `end`, `duration`, (num_sends,) list of int: The times are the given ones; durations
      follow the costs of `problem`.
    - `transfers`, (num_sends,) list of list of int: What travels in each send.
    - `uses` (mapping of resource to list of Use): In order.

    Raises `InputError` if transfers of one group are not one send, or a chunk is sent from a rank where it
    never is.
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
        self.problem, self.own, self._places, self._impose = problem, own, places, impose
        check_indices(own, chunk, link)
        _, first, send = np.unique(group, return_index=True, return_inverse=True)
        timed = [] if end is None else [("start", start), ("end", end)]
        for name, column in (("link", link), ("reduce", reduce), *timed):
            odd = np.flatnonzero(column != column[first][send])
            if len(odd):
                raise _wrong(
                    f"transfers of group {group[odd[0]]} differ in {name}; expected one send, at one time "
                    "over one link, that copies or reduces"
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
        self._of_own_first()
        self._of_releases()

    def schedule(self, start: ArrayLike, *, producer: str, problem: Problem | None = None) -> Schedule:
        """The sends at these starts, in ticks of the problem whose costs say how long they take."""
        begin = np.asarray(start)[self.send]
        return schedule_of(
            problem or self.problem, **self._columns, group=self.send, start=begin,
            end=begin + np.array(self.duration)[self.send], producer=producer,
        )  # fmt: skip

    def _wait(
        self, source: int, target: int, cause: int, after: int = 0, *, lead: int = 0, extra: int = 0
    ) -> None:
        self.waits.append((source, target, after, lead, extra, cause, 0))

    def _join(self, pending: Iterable[tuple[int, int]], cause: int) -> int:
        """A new event, when `after` ticks have passed since each (source, after)."""
        joined = self.num_events
        self.num_events += 1
        for source, after in pending:
            self._wait(source, joined, cause, after)
        return joined

    def _on_resources(self) -> None:
        """One send at a time holds a resource, in the given order; and tile after tile."""
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
        """The uses of every resource, in their order."""
        uses: dict[int, list[Use]] = defaultdict(list)
        for resource, *use in zip(*(column.tolist() for column in self._rows), strict=True):
            uses[resource].append(Use(*use))
        return dict(uses)

    def _held(self) -> tuple[NDArray[np.int64], ...]:
        """Resource, send, begin and until of every use, by resource and own time."""
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
        # A link may hold one resource twice, at its start and at its end: then also in between.
        order = np.lexsort((send, resource))
        new = np.flatnonzero(np.diff(resource[order], prepend=-1) | np.diff(send[order], prepend=-1))
        resource, send = resource[order][new], send[order][new]
        own_begin, begin = (np.minimum.reduceat(column[order], new) for column in (own_begin, begin))
        own_until, until = (np.maximum.reduceat(column[order], new) for column in (own_until, until))
        # What begins at one moment is tentative where it takes time: then those named first go first.
        ties = (own_until > own_begin,) if self._impose else (start[send], own_until)
        order = np.lexsort((send, *ties, own_begin, resource))
        return resource[order], send[order], begin[order], until[order]

    def _of_copies(self) -> None:
        """A chunk is sent on after the arrival that brought it first, or brought what it is made from."""
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
                    self._wait(source, s, DATA, duration[source])

    def _of_contributions(self, contributions: Sequence[Collection[int]]) -> None:
        """A sum is sent once the arrivals that make it up are there, which are kept apart."""
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
        #: The parts of sums that were sent before: the same are taken for each further send after them.
        known: dict[tuple[int, int, int], list[Arrival]] = {}
        for transfer, s in enumerate(self.send):
            chunk, bits, begun = self.chunk[transfer], carried[transfer], self.start[s]
            for rank in links[self.link[s]].srcs:
                if bits == 1 << rank and rank in self.own.collective.chunks[chunk].origins:
                    continue
                parts = known.get((rank, chunk, bits))
                if parts is None or any(part.end > begun for part in parts):
                    here = arrivals[rank, chunk]
                    parts = make_up(bits, [each for each in here if each.end <= begun])
                    if parts is None and self._impose:
                        parts = make_up(bits, here)
                    if parts is None:
                        raise _absent(rank, chunk)
                    known[rank, chunk, bits] = parts
                for part in parts:
                    if part.send >= 0:
                        self._wait(part.send, s, DATA, after=self.duration[part.send])

    def _of_sums(self) -> None:
        """A sum is sent on after all that it is to include arrived, and before anything else does."""
        links = self.own.topology.links
        moments: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
        for transfer, s in enumerate(self.send):
            ends, chunk = links[self.link[s]], self.chunk[transfer]
            # Among equal times: arrivals that are added, then copies, then starts.
            for rank in ends.dsts:
                moments[rank, chunk].append((self.end[s], 0 if self.reduce[transfer] else 1, s))
            for rank in ends.srcs:
                moments[rank, chunk].append((self.start[s], 2, s))
        for (rank, chunk), here in moments.items():
            contributes = rank in self.own.collective.chunks[chunk].origins
            self._of_sum(rank, chunk, sorted(here), contributes=contributes)

    def _of_sum(
        self, rank: int, chunk: int, moments: list[tuple[int, int, int]], *, contributes: bool
    ) -> None:
        duration, update = self.duration, self._update_ticks(rank, chunk)
        included: list[tuple[int, int]] = []  # what the next reader includes: (event, ticks after it)
        readers: list[tuple[int, int]] = []
        copies: list[tuple[int, int]] = []
        when: dict[int, int] = {}  # own arrivals of what is included
        for time, phase, s in moments:
            if phase == 2:
                if not (included or contributes or self._impose):
                    raise _absent(rank, chunk)
                if len(included) > _FEW:
                    included = [(self._join(included, DATA), 0)]
                for source, after in included:
                    self._wait(source, s, DATA, after, extra=update)
                readers.append((s, 0))
                continue
            lead = duration[s]
            if len(readers) > _FEW:
                readers = [(self._join(readers, SUM), 0)]
            replaced = copies if phase == 0 else included
            before = [each for each in replaced if when.get(each[0], -1) < time]
            for source, after in (*readers, *before):
                self._wait(source, s, SUM, after, lead=lead, extra=1)
            when[s] = time
            if phase == 1:
                included = [each for each in included if each not in before]
                copies = [each for each in copies if when[each[0]] == time] + [(s, lead)]
            included.append((s, lead))

    def _update_ticks(self, rank: int, chunk: int) -> int:
        """For how long a chunk's server works on the sum before it sends it on."""
        collective, problem = self.own.collective, self.problem
        if collective.update_us_per_mb is None or rank != collective.chunks[chunk].root:
            return 0
        us = collective.update_us_per_mb * Fraction(problem.chunk_bytes[chunk], 10**6)
        return ceil(us * problem.costs.ticks_per_us)

    def _of_own_first(self) -> None:
        """Local-first priority: own chunks start (in a reduction: end) a latency before relayed ones.

        An order that has the gap keeps it; where it is imposed, one that has own chunks first gets it.
        """
        topology, costs, own_costs = self.own.topology, self.problem.costs, self.own.costs
        lanes: dict[tuple[int, bool], list[int]] = defaultdict(list)
        for transfer, s in enumerate(self.send):
            if self.link[s] in self.own.clauses.own_first:
                lanes[self.link[s], self.reduce[transfer]].append(transfer)
        for (link, reducing), members in lanes.items():
            near = set(topology.links[link].dsts if reducing else topology.links[link].srcs)
            own = [t for t in members if not near.isdisjoint(self._starts(self.chunk[t], reducing))]
            rest = sorted({self.send[t] for t in members} - {self.send[t] for t in own})
            if not own or not rest:
                continue
            latency, own_latency = self._latencies(costs, own), self._latencies(own_costs, own)
            if reducing:
                joined = self._join([(s, self.duration[s]) for s in rest], CLAUSE)
                last = max((self.start if self._impose else self.end)[s] for s in rest)
                for s in latency:
                    if last <= (self.start[s] if self._impose else self.end[s] - own_latency[s]):
                        self._wait(joined, s, CLAUSE, lead=self.duration[s] - latency[s])
                continue
            joined = self._join(latency.items(), CLAUSE)
            free = max(self.start[s] + (0 if self._impose else gap) for s, gap in own_latency.items())
            for s in rest:
                if self.start[s] >= free:
                    self._wait(joined, s, CLAUSE)

    def _of_releases(self) -> None:
        """Initial data of a rank is neither sent nor added to before its release date."""
        released = self.problem.release_ticks
        if not released:
            return
        zero = self._join((), CLAUSE)
        for transfer, s in enumerate(self.send):
            ends, chunk = self.problem.topology.links[self.link[s]], self.chunk[transfer]
            for rank in ends.srcs:
                if (chunk, rank) in released:
                    self._wait(zero, s, CLAUSE, released[chunk, rank])
            for rank in ends.dsts:
                if self.reduce[transfer] and (chunk, rank) in released:
                    self._wait(zero, s, CLAUSE, released[chunk, rank], lead=self.duration[s])

    def _latencies(self, costs: Costs, transfers: Sequence[int]) -> dict[int, int]:
        """{send: latency of its largest chunk among some transfers}."""
        found: dict[int, int] = {}
        for t in transfers:
            s, units = self.send[t], int(costs.chunk_units[self.chunk[t]])
            found[s] = max(found.get(s, 0), costs.duration(self.link[s], units))
        return found

    def _starts(self, chunk: int, reducing: bool) -> set[int | None]:
        """Ranks where a chunk starts to spread, or the root that it is reduced to."""
        collective = self.own.collective
        root = collective.chunks[chunk].root
        if reducing or (collective.combining and root is not None):
            return {root}
        return set(collective.starts[chunk])


def check_indices(problem: Problem, chunk: NDArray[np.integer], link: NDArray[np.integer]) -> None:
    """Raise `InputError` if some transfer is of a chunk or over a link that does not exist."""
    for name, column, count in (
        ("chunk", chunk, problem.collective.num_chunks),
        ("link", link, len(problem.topology.links)),
    ):
        if len(column) and not (column.min() >= 0 and column.max() < count):
            raise _wrong(f"found a {name} outside 0-{count - 1}")


def _absent(rank: int, chunk: int) -> InputError:
    return _wrong(f"rank {rank} sends chunk {chunk}, which it never holds")


def _wrong(what: str) -> InputError:
    return InputError(f"{what}; verify the schedule to see where", where="schedule")
