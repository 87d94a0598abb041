"""One schedule for all that a step computes and sends.

Tiles of computations hold the processor of their rank, sends what the topology says; both are started by one
list scheduler (`taccl.schedule.listing`). Which sends a collective is made of is found for one tile of it,
and repeated for the others, which follow each other as closely as resources let them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

import numpy as np

from taccl.arguments import checked_as
from taccl.errors import WorkloadError
from taccl.schedule.listing import Tasks
from taccl.schedule.precedence import Precedence
from taccl.schedule.schedule import make_schedule
from taccl.workload.costs import rates_of, tile_us
from taccl.workload.exchange import Exchange, Part, sends_of
from taccl.workload.step import ComputeTile, Step, tiles_read

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taccl.problem import Problem
    from taccl.topology.topology import Topology
    from taccl.workload.costs import Rates
    from taccl.workload.operations import Operation
    from taccl.workload.workload import Workload

__all__ = ["schedule_workload"]

#: Ticks a microsecond where nothing is sent.
_TICKS_PER_US = 10**6


@checked_as(WorkloadError)
def schedule_workload(
    workload: Workload,
    topology: Topology,
    *,
    rates: Rates | None = None,
    communication_share: float = 0.0,
    order: Literal["together", "program", "in-sequence"] = "together",
    algorithm: str = "synthesized",
) -> Step:
    """When every tile of a step is computed and every chunk is sent.

    Parameters
    ----------
    workload : Workload
        Of as many ranks as the topology has.
    topology : Topology
        What data goes over, between processors that are alike.
    rates : Rates, optional
        Of the processors; by default those of the topology's machine.
    communication_share : float
        The share of each processor, from 0 to below 1, that is set aside for communication: computations take
        the rest, and so 1 / (1 - share) as long. In sequence nothing is set aside.
    order : {"together", "program", "in-sequence"}
        What goes first where two could: what the longest way to the end depends on; what comes first in the
        program; or each operation only when the one before has ended everywhere.
    algorithm : str
        How collectives are sent: ``"synthesized"``, or a baseline such as ``"ring"``.

    Returns
    -------
    Step
        With its bound, and its judge.

    Raises
    ------
    WorkloadError
        If ranks differ in number, a cost is not known, or the share is none.

    Examples
    --------
    >>> import taccl
    >>> step = taccl.Workload("layer", 8).then("g", "compute", shape=(64, 8192), layout="partial", cost_us=40)
    >>> step = taccl.workload.overlap(step.then("sum", "allreduce", "g"), ["g", "sum"], tiles=4)
    >>> taccl.workload.schedule_workload(step, taccl.topologies.parse("dgx-a100")).verify()
    StepVerification(ok)
    """
    if workload.num_ranks != topology.num_ranks:
        said = (
            f"is of {workload.num_ranks} ranks, and {topology.name} has {topology.num_ranks}; make them equal"
        )
        raise WorkloadError(said, where=workload.name)
    if not 0 <= communication_share < 1:
        said = f"found {communication_share}; expected a share from 0 to below 1"
        raise WorkloadError(said, where="communication_share")
    rates = rates_of(topology) if rates is None else rates
    share = 0.0 if order == "in-sequence" else communication_share
    if order == "in-sequence":
        workload = replace(workload, overlaps=())
    has_sends = any(operation.is_collective for operation in workload.operations)
    exchange = sends_of(workload, topology, algorithm) if has_sends else None
    return _Builder(workload, topology, rates, share, exchange).step(order)


class _Builder:
    """The tasks of a step, and which of them make each tile of each tensor."""

    def __init__(
        self,
        workload: Workload,
        topology: Topology,
        rates: Rates | None,
        share: float,
        exchange: Exchange | None,
    ) -> None:
        self.workload, self.topology, self.exchange = workload, topology, exchange
        self.rates, self.share = rates, share
        self.tasks, self.per_us = Tasks(), _TICKS_PER_US
        self.chunk_of_send: list[list[int]] = []
        if exchange is not None:
            self.problem = exchange.problem
            self.per_us = self.problem.costs.ticks_per_us
            self.precedence = Precedence(
                self.problem, self.problem, chunk=exchange.chunk, link=exchange.link, group=exchange.group,
                reduce=exchange.reduce, start=exchange.place, places=True, impose=True,
            )  # fmt: skip
            self.tasks = Tasks.of_sends(self.precedence)
        self.is_send = len(self.tasks.duration)
        #: By operation, tile and rank: the task of which the end makes that tile there.
        self.makes: dict[tuple[str, int, int], int] = {}
        #: What gives each chunk's origins what they start with.
        self.gives: dict[tuple[int, int], int] = {}
        self.computed: dict[tuple[str, int, int], int] = {}
        self.place: dict[int, tuple[int, int]] = {}
        self._add_all()

    def _add_all(self) -> None:
        workload = self.workload
        parts = defaultdict(list)
        if self.exchange is not None:
            for part in self.exchange.parts:
                parts[part.operation, part.tile if part.operation in workload.tiles_of else 0].append(part)
            self._index_sends()
        position = 0
        for unit in workload.units:
            for tile in range(workload.tiles_of.get(unit[0].name, (1, 0))[0]):
                for operation in unit:
                    position += 1
                    cost = math.ceil(tile_us(workload, operation, self.rates, self.share) * self.per_us)
                    for rank in range(workload.num_ranks):
                        sources = [
                            self.makes[name, source, rank]
                            for name, source in tiles_read(workload, operation, tile)
                        ]
                        if operation.is_collective:
                            ready = self._after(sources, self.tasks.add())
                            chunks = [
                                c
                                for p in parts[operation.name, tile]
                                for c in range(p.first, p.first + p.chunks)
                            ]
                            self._exchange(operation, tile, rank, chunks, ready)
                        else:
                            processor = len(self.topology.resources) + rank
                            task = self._after(sources, self.tasks.add(cost, processor if cost else None))
                            self.makes[operation.name, tile, rank] = task
                            if cost:
                                self.computed[operation.name, tile, rank] = task
                            self.place[task] = (position, tile)
                    for part in parts[operation.name, tile]:
                        for chunk in range(part.first, part.first + part.chunks):
                            for send in self.sends_of_chunk[chunk]:
                                self.place[send] = (position, tile)

    def _index_sends(self) -> None:
        """By chunk: its sends; by chunk and rank: those that leave it, are added to it, and come to it."""
        assert self.exchange is not None
        self.sends_of_chunk: dict[int, set[int]] = defaultdict(set)
        self.leaves: dict[tuple[int, int], set[int]] = defaultdict(set)
        self.added: dict[tuple[int, int], set[int]] = defaultdict(set)
        self.comes: dict[tuple[int, int], set[int]] = defaultdict(set)
        links, order = self.topology.links, self.precedence
        for transfer, send in enumerate(order.send):
            chunk, ends = order.chunk[transfer], links[order.link[send]]
            self.sends_of_chunk[chunk].add(send)
            for rank in ends.srcs:
                self.leaves[chunk, rank].add(send)
            for rank in ends.dsts:
                self.comes[chunk, rank].add(send)
                if order.reduce[transfer]:
                    self.added[chunk, rank].add(send)

    def _after(self, sources: Iterable[int], task: int) -> int:
        """The task, once all of some have ended."""
        for source in sources:
            self.tasks.after[source].append((task, self.tasks.duration[source]))
        return task

    def _exchange(self, operation: Operation, tile: int, rank: int, chunks: list[int], ready: int) -> None:
        """What a rank sends of its own waits until that is ready; all is there once what comes has come."""
        after, duration = self.tasks.after, self.tasks.duration
        done = self._after([ready], self.tasks.add())
        collective = self.problem.collective
        incoming: set[int] = set()
        for chunk in chunks:
            ends = collective.chunks[chunk]
            if rank in ends.origins:
                self.gives[chunk, rank] = ready
                after[ready] += [(send, 0) for send in sorted(self.leaves[chunk, rank])]
                after[ready] += [(send, -duration[send]) for send in sorted(self.added[chunk, rank])]
            if rank in ends.destinations:
                incoming |= self.comes[chunk, rank]
        self._after(sorted(incoming), done)
        self.makes[operation.name, tile, rank] = done

    def step(self, order: str) -> Step:
        """The best of what the rules of an order lead to."""
        if order == "in-sequence":
            self._in_sequence()
        program = [self.place.get(task, (0, 0)) for task in range(len(self.tasks.duration))]
        rules: list[list[tuple[int, ...]]] = [[(*each, task) for task, each in enumerate(program)]]
        if order == "together":
            tails = self.tasks.tails()
            rules.append([(-tail, *program[task], task) for task, tail in enumerate(tails)])
            rules.append([(program[task][1], -tail, task) for task, tail in enumerate(tails)])
        every = (self.tasks.starts(rule) for rule in rules)
        start = min(
            every, key=lambda found: max(map(sum, zip(found, self.tasks.duration, strict=True)), default=0)
        )
        return self._timed(start)

    def _in_sequence(self) -> None:
        """Each operation after the end of the one before, everywhere."""
        before: int | None = None
        for operation in self.workload.operations:
            now = self.tasks.add()
            if before is not None:
                self._after([before], now)
            before = self.tasks.add()
            mine = [task for (name, *_), task in self.makes.items() if name == operation.name]
            for task in mine:
                self.tasks.after[now].append((task, 0))
                self._after([task], before)
            if operation.is_collective:
                assert self.exchange is not None
                for part in self.exchange.parts:
                    for chunk in (
                        range(part.first, part.first + part.chunks)
                        if part.operation == operation.name
                        else ()
                    ):
                        self.tasks.after[now] += [(send, 0) for send in sorted(self.sends_of_chunk[chunk])]

    def _timed(self, start: list[int]) -> Step:
        us = {task: Fraction(start[task], self.per_us) for task in self.computed.values()}
        tiles = tuple(
            ComputeTile(*key, us[task], us[task] + Fraction(self.tasks.duration[task], self.per_us))
            for key, task in self.computed.items()
        )
        schedule, parts = None, tuple[Part, ...]()
        if self.exchange is not None:
            send = np.array(self.precedence.send, dtype=np.int64)
            begin = np.array(start[: self.precedence.num_sends], dtype=np.int64)
            duration = np.array(self.precedence.duration, dtype=np.int64)
            schedule = make_schedule(
                self._with_moments(start), chunk=self.exchange.chunk, link=self.exchange.link,
                start=begin[send], end=(begin + duration)[send], group=self.exchange.group,
                reduce=self.exchange.reduce, producer="workload",
            )  # fmt: skip
            parts = self.exchange.parts
        return Step(self.workload, self.topology, tiles, schedule, parts, self.rates, self.share)

    def _with_moments(self, start: list[int]) -> Problem:
        """The problem of all sends, with releases as tiles are made, and due times as tiles begin to read."""
        per_us = self.per_us
        release = tuple(
            (chunk, rank, Fraction(start[ready], per_us))
            for (chunk, rank), ready in self.gives.items()
            if start[ready]
        )
        due: dict[tuple[int, int], int] = {}
        assert self.exchange is not None
        readers: dict[tuple[str, int, int], int] = {}
        for (name, tile, rank), task in self.computed.items():
            for source in tiles_read(self.workload, self.workload.operation[name], tile):
                key = (*source, rank)
                readers[key] = min(readers.get(key, start[task]), start[task])
        for part in self.exchange.parts:
            tile = part.tile if part.operation in self.workload.tiles_of else 0
            for chunk in range(part.first, part.first + part.chunks):
                for rank in self.problem.collective.chunks[chunk].destinations:
                    if (part.operation, tile, rank) in readers:
                        due[chunk, rank] = readers[part.operation, tile, rank]
        wanted = tuple((chunk, rank, Fraction(moment, per_us)) for (chunk, rank), moment in due.items())
        return replace(self.problem, release_us=release, due_us=wanted)
