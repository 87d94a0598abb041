"""The order that a schedule keeps: what each send waits for, read off the schedule's own times.

See `taccl.analysis.simulation.events` for what a wait says.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from taccl.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from taccl.problem import Costs, Problem
    from taccl.schedule.schedule import Schedule

__all__ = ["CLAUSE", "DATA", "SUM", "Order", "Use"]

#: Causes of a wait; a cause that is not negative is the resource.
DATA, SUM, CLAUSE = -1, -2, -3
#: A send waits for no more than so many events one by one; more are joined first.
_FEW = 2


@dataclass(frozen=True, slots=True)
class Use:
    """A send holds a resource from `begin` until `until` ticks after its start."""

    send: int
    begin: int
    until: int


class Order:
    """A schedule's sends while their waits are collected; `own` is by the schedule's own times."""

    def __init__(self, schedule: Schedule, problem: Problem) -> None:
        own = schedule.problem
        self.problem, self.own = problem, own
        num_chunks, num_links = own.collective.num_chunks, len(own.topology.links)
        for name, indices, count in (
            ("chunk", schedule.chunk, num_chunks),
            ("link", schedule.link, num_links),
        ):
            if len(indices) and not (indices.min() >= 0 and indices.max() < count):
                raise InputError(
                    f"found a {name} outside 0-{count - 1}; verify the schedule to see where",
                    where="schedule",
                )
        _, first, send = np.unique(schedule.group, return_index=True, return_inverse=True)
        self.num_sends = self.num_events = len(first)
        self.link: list[int] = schedule.link[first].tolist()
        self.start: list[int] = schedule.start[first].tolist()
        self.end: list[int] = schedule.end[first].tolist()
        columns: dict[str, NDArray[np.int64]] = {
            name: np.asarray(getattr(schedule, name), dtype=np.int64) for name in ("link", "start", "end")
        }
        for name, column in columns.items():
            odd = np.flatnonzero(column != column[first][send])
            if len(odd):
                raise InputError(
                    f"transfers of group {schedule.group[odd[0]]} differ in {name}; expected one send, at "
                    "one time over one link; verify the schedule to see where",
                    where="schedule",
                )
        self.chunk: list[int] = schedule.chunk.tolist()
        self.reduce: list[bool] = schedule.reduce.tolist()
        self.send: list[int] = send.tolist()
        self.transfers: list[list[int]] = [[] for _ in range(self.num_sends)]
        for transfer, s in enumerate(self.send):
            self.transfers[s].append(transfer)
        self.units, self.own_units = (
            self._sum(p.costs.chunk_units, schedule.chunk, send) for p in (problem, own)
        )
        costs, link = problem.costs, np.array(self.link, dtype=np.int64)
        self.duration: list[int] = (costs.link_alpha[link] + self.units * costs.link_beta[link]).tolist()
        self.waits: list[tuple[int, int, int, int, int, int, int]] = []

    def _sum(
        self, units: NDArray[np.int64], chunk: NDArray[np.int32], send: NDArray[np.intp]
    ) -> NDArray[np.int64]:
        total = np.zeros(self.num_sends, dtype=np.int64)
        np.add.at(total, send, units[chunk])
        return total

    def wait(
        self,
        source: int,
        target: int,
        cause: int,
        *,
        after: int = 0,
        lead: int = 0,
        extra: int = 0,
        tile: int = 0,
    ) -> None:
        self.waits.append((source, target, after, lead, extra, cause, tile))

    def join(self, pending: Iterable[tuple[int, int]], cause: int) -> int:
        """A new event, when `after` ticks have passed since each (source, after)."""
        joined = self.num_events
        self.num_events += 1
        for source, after in pending:
            self.wait(source, joined, cause, after=after)
        return joined

    def on_resources(self) -> dict[int, list[Use]]:
        """One send at a time holds a resource, in the order of the schedule; and tile after tile."""
        rows = self._held()
        uses: dict[int, list[Use]] = defaultdict(list)
        for resource, send, begin, until in zip(*(column.tolist() for column in rows), strict=True):
            queue = uses[resource]
            if queue:
                self.wait(queue[-1].send, send, resource, after=queue[-1].until, lead=begin)
            queue.append(Use(send, begin, until))
        for resource, queue in uses.items():
            self.wait(
                queue[-1].send, queue[0].send, resource, after=queue[-1].until, lead=queue[0].begin, tile=1
            )
        return dict(uses)

    def _held(self) -> tuple[NDArray[np.int64], ...]:
        """Resource, send, begin and until of every use, by resource and own time."""
        holds = self.problem.topology.holds
        of_link = np.fromiter((h.link for h in holds), np.int64, len(holds))
        resource_of = np.fromiter((h.resource for h in holds), np.int64, len(holds))
        receiving = np.fromiter((h.side == "receive" for h in holds), bool, len(holds))
        by_link = np.argsort(of_link, kind="stable")
        first = np.searchsorted(of_link[by_link], np.arange(len(self.problem.topology.links) + 1))
        link, start, end, duration = (
            np.array(column, dtype=np.int64) for column in (self.link, self.start, self.end, self.duration)
        )
        counts = first[link + 1] - first[link]
        send = np.repeat(np.arange(self.num_sends), counts)
        place = np.arange(len(send)) - np.repeat(np.cumsum(counts) - counts, counts)
        hold = by_link[np.repeat(first[link], counts) + place]
        resource, receives = resource_of[hold], receiving[hold]

        def span(
            problem: Problem, units: NDArray[np.int64], start: NDArray[np.int64], end: NDArray[np.int64]
        ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
            held = problem.costs.hold_alpha[hold] + units[send] * problem.costs.hold_beta[hold]
            return np.where(receives, end[send] - held, start[send]), np.where(
                receives, end[send], start[send] + held
            )

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
        order = np.lexsort((send, start[send], own_until, own_begin, resource))
        return resource[order], send[order], begin[order], until[order]

    def of_copies(self) -> None:
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
                    self.wait(source, s, DATA, after=duration[source])

    def of_sums(self) -> None:
        """A sum is sent on after all that it is to include arrived, and before anything else does."""
        links = self.own.topology.links
        moments: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
        for transfer, s in enumerate(self.send):
            ends, chunk = links[self.link[s]], self.chunk[transfer]
            # At one moment come first arrivals that are added, then copies, then starts.
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
        duration = self.duration
        included: list[tuple[int, int]] = []  # what the next reader includes: (event, ticks after it)
        readers: list[tuple[int, int]] = []
        copies: list[tuple[int, int]] = []
        when: dict[int, int] = {}  # own arrivals of what is included
        for time, phase, s in moments:
            if phase == 2:
                if not included and not contributes:
                    raise _absent(rank, chunk)
                if len(included) > _FEW:
                    included = [(self.join(included, DATA), 0)]
                for source, after in included:
                    self.wait(source, s, DATA, after=after)
                readers.append((s, 0))
                continue
            lead = duration[s]
            if len(readers) > _FEW:
                readers = [(self.join(readers, SUM), 0)]
            replaced = copies if phase == 0 else included
            before = [each for each in replaced if when.get(each[0], -1) < time]
            for source, after in (*readers, *before):
                self.wait(source, s, SUM, after=after, lead=lead, extra=1)
            when[s] = time
            if phase == 1:
                included = [each for each in included if each not in before]
                copies = [each for each in copies if when[each[0]] == time] + [(s, lead)]
            included.append((s, lead))

    def of_own_first(self) -> None:
        """Where own chunks go before relayed ones, they start (of a reduction: end) a latency apart."""
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
                joined = self.join([(s, self.duration[s]) for s in rest], CLAUSE)
                last = max(self.end[s] for s in rest)
                for s in latency:
                    if last <= self.end[s] - own_latency[s]:
                        self.wait(joined, s, CLAUSE, lead=self.duration[s] - latency[s])
                continue
            joined = self.join(latency.items(), CLAUSE)
            free = max(self.start[s] + ticks for s, ticks in own_latency.items())
            for s in rest:
                if self.start[s] >= free:
                    self.wait(joined, s, CLAUSE)

    def _latencies(self, costs: Costs, transfers: Sequence[int]) -> dict[int, int]:
        """By send, the latency of the largest chunk among some transfers of it."""
        found: dict[int, int] = {}
        for t in transfers:
            s, units = self.send[t], int(costs.chunk_units[self.chunk[t]])
            found[s] = max(found.get(s, 0), costs.duration(self.link[s], units))
        return found

    def _starts(self, chunk: int, reducing: bool) -> set[int | None]:
        """Where a chunk starts to spread, or the root that it is reduced to."""
        collective = self.own.collective
        data = collective.chunks[chunk]
        if reducing:
            return {data.root}
        spreads: set[int | None] = (
            {data.root} if collective.combining and data.root is not None else set(data.origins)
        )
        return spreads | {d.rank for d in collective.derivations if d.chunk == chunk}


def _absent(rank: int, chunk: int) -> InputError:
    return InputError(
        f"rank {rank} sends chunk {chunk}, which it never holds; verify the schedule to see where",
        where="schedule",
    )
