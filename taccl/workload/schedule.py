"""Joint schedule of a step's computation and communication.

A computed tile holds the processor of its rank, and a send the resources of its link. One list scheduler
(`taccl.schedule.listing`) starts both. The sends of a collective are chosen for one of its tiles, and
repeated for its other tiles as early as resources permit.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Literal

from taccl._internal.arguments import Count, checked_as
from taccl.errors import WorkloadError
from taccl.schedule.listing import Tasks
from taccl.schedule.precedence import Precedence
from taccl.schedule.schedule import Schedule
from taccl.topology.topology import Topology
from taccl.workload.costs import RATES, Rates, tile_costs
from taccl.workload.exchange import (
    in_balanced_pieces,
    in_best_pieces,
    made_by_baselines,
    parts_by_chunk,
    sends_of,
)
from taccl.workload.protocols import topology_of
from taccl.workload.step import ComputeTile, Step
from taccl.workload.workload import Workload

#: `_SETTLED`: max gap (finish / lower bound - 1) at which a step cut by `in_balanced_pieces` is accepted.
#: Otherwise, the step is also scheduled in its original pieces, and the fastest one is returned.
#: `_FEW_CHUNKS`: a step of at most this many chunks is always scheduled in both; a bound would take longer.
_SETTLED, _FEW_CHUNKS = 0.02, 1_000


@checked_as(WorkloadError)
def schedule_workload(
    workload: Workload,
    topology: Topology | str,
    *,
    nodes: Count | None = None,
    profile: str | None = None,
    protocol: str | None = None,
    rates: Rates | None = None,
    communication_share: float = 0.0,
    order: Literal["together", "program", "in-sequence"] = "together",
    algorithm: str = "synthesized",
) -> Step:
    """Schedule the computation and communication of a step.

    Parameters
    ----------
    workload : Workload
        The step, with as many ranks as the topology.
    topology : Topology or str
        Network between the ranks, or the name of a machine or fabric; all processors are equal.
    nodes, profile, protocol : optional
        As for `taccl.make_problem`. The protocol of a machine by name is that with the least predicted sum of
        times of all collectives, unless it is given. A step has one protocol.
    rates : Rates, optional
        Rates of the processors; by default those of the topology's machine.
    communication_share : float
        Share of each processor reserved for communication, at least 0 and below 1. Computation lasts
        1 / (1 - share) times as long. Ignored for order ``"in-sequence"``.
    order : {"together", "program", "in-sequence"}
        Priority rule of the list scheduler. ``"program"``: program order. ``"together"``: the best of program
        order and two rules by longest path to the end. ``"in-sequence"``: each operation starts after the one
        before has ended at all ranks.
    algorithm : str
        Algorithm of the collectives: ``"synthesized"``, a baseline such as ``"ring"``, or ``"stock"``.
        ``"stock"`` is pairwise exchange for an alltoall and for several groups, and rings otherwise.

    Returns
    -------
    Step
        The scheduled step, which can compute its bound and verify itself.

    Raises
    ------
    WorkloadError
        If the numbers of ranks differ, a cost is unknown, or the share is out of range.

    Examples
    --------
    >>> import taccl
    >>> step = taccl.Workload("layer", 8).then("g", "compute", shape=(64, 8192), layout="partial", cost_us=40)
    >>> step = taccl.workload.overlap(step.then("sum", "allreduce", "g"), ["g", "sum"], tiles=4)
    >>> taccl.workload.schedule_workload(step, taccl.topologies.parse("dgx-a100")).verify()
    StepVerification(ok)
    """
    topology = topology_of(workload, topology, nodes=nodes, profile=profile, protocol=protocol)
    if workload.num_ranks != topology.num_ranks:
        said = f"is of {workload.num_ranks} ranks, and {topology.name} has {topology.num_ranks}"
        raise WorkloadError(f"{said}; make them equal", where=workload.name)
    if not 0 <= communication_share < 1:
        said = f"found {communication_share}; expected a share from 0 to below 1"
        raise WorkloadError(said, where="communication_share")
    rates = RATES.get(topology.machine) if rates is None else rates
    if order == "in-sequence":
        workload, communication_share = replace(workload, overlaps=()), 0.0
    costs = tile_costs(workload, rates, communication_share)

    def scheduled(workload: Workload, whole: Collection[str] = (), best_pieces: bool = False) -> Step:
        sends = sends_of(workload, topology, algorithm, whole=whole, best_pieces=best_pieces)
        tasks = _StepTasks(workload, costs, sends)
        start = tasks.best_starts(order, keeps_turns=best_pieces)
        computed, sent = tuple(tasks.computed_tiles(start)), tasks.sent(start)
        return Step(workload, topology, computed, sent, rates, communication_share)

    if algorithm != "synthesized":
        return scheduled(workload)
    steps: list[Step] = []
    if (balanced := in_balanced_pieces(workload, topology)) is not None:
        steps.append(scheduled(balanced))
        if len(steps[0].problem.chunk_bytes) > _FEW_CHUNKS and steps[0].gap <= _SETTLED:
            return steps[0]
    steps.append(scheduled(workload))
    steps += [scheduled(workload, whole) for whole in made_by_baselines(workload, topology)]
    if (cut := in_best_pieces(workload, topology)) is not None:
        steps.append(scheduled(cut, best_pieces=True))
    return min(steps, key=lambda step: step.finish)


class _StepTasks:
    """Tasks of a step for the list scheduler, with the task whose end completes each tile."""

    def __init__(self, workload: Workload, costs: Mapping[str, Fraction], sends: Schedule) -> None:
        self.workload, self.problem = workload, sends.problem
        columns = {**sends.columns, "end": None}
        self.precedence = Precedence(sends.problem, sends.problem, **columns, places=True, impose=True)
        self.tasks, self.per_us = Tasks.of_sends(self.precedence), sends.problem.costs.ticks_per_us
        #: {(operation, tile, rank): task}. The end of a task in `makes` completes the tile at that rank.
        #: For a collective, the end of a task in `gives` completes the rank's contribution.
        self.makes: dict[tuple[str, int, int], int] = {}
        self.gives: dict[tuple[str, int, int], int] = {}
        #: {task: (position of its tile in program order, number of the tile)}.
        self.place: dict[int, tuple[int, int]] = {}
        for position, (name, tile) in enumerate(workload.tiles):
            self._add_tile(position, name, tile, math.ceil(costs[name] * self.per_us))
        self._tie_sends()

    def _add_tile(self, position: int, name: str, tile: int, ticks: int) -> None:
        for rank in range(self.workload.num_ranks):
            key, processor = (name, tile, rank), len(self.problem.topology.resources) + rank
            task = self.tasks.add(ticks, processor if ticks else None)
            reads = ((*each, rank) for each in self.workload.tiles[name, tile])
            self._after([self.makes[each] for each in reads if each in self.makes], task)
            if self.workload.operation[name].is_collective:
                self.gives[key] = task
                task = self._after([task], self.tasks.add())
            self.makes[key] = task
            self.place[task] = (position, tile)

    def _after(self, sources: Iterable[int], task: int) -> int:
        """Make a task wait for the end of all sources; return the task."""
        for source in sources:
            self.tasks.after[source].append((task, self.tasks.duration[source]))
        return task

    def _tie_sends(self) -> None:
        """Add the dependencies between sends and tiles.

        A send waits until the sender's own contribution is ready. A send that reduces may end only once the
        receiver's contribution is ready. The result is complete at a rank once its last receive has ended.
        """
        after, order, links = self.tasks.after, self.precedence, self.problem.topology.links
        chunks, self.part_of = self.problem.collective.chunks, parts_by_chunk(self.workload)
        for transfer, send in enumerate(order.send):
            chunk, link, ticks = order.chunk[transfer], links[order.link[send]], order.duration[send]
            key = self.part_of[chunk].operation, self.part_of[chunk].tile
            self.place[send] = self.place[self.makes[*key, 0]]
            for rank in link.srcs:
                if rank in chunks[chunk].origins:
                    after[self.gives[*key, rank]].append((send, 0))
            for rank in link.dsts:
                if order.reduce[transfer] and rank in chunks[chunk].origins:
                    after[self.gives[*key, rank]].append((send, -ticks))
                if rank in chunks[chunk].destinations:
                    after[send].append((self.makes[*key, rank], ticks))

    def best_starts(self, order: str, *, keeps_turns: bool = False) -> list[int]:
        """Start tick of each task under the priority rule with the earliest finish.

        - `order`: As in `schedule_workload`.
        - `keeps_turns`: True to try the given order of sends on each resource, too, as of a good schedule.
        """
        if order == "in-sequence":
            self._in_sequence()
        count = len(self.tasks.duration)
        program = [self.place.get(task, (0, 0)) for task in range(count)]
        rules: list[list[tuple[int, ...]]] = [[(*each, task) for task, each in enumerate(program)]]
        if order == "together":
            tails = self.tasks.tails()
            rules.append([(-tail, *program[task], task) for task, tail in enumerate(tails)])
            rules.append([(program[task][1], -tail, task) for task, tail in enumerate(tails)])
        every = [self.tasks.starts(rule) for rule in rules]
        if keeps_turns:
            # Joins of several tasks hold no resource; they come first, so that what follows them is ready.
            turns = sorted(range(count), key=lambda task: (bool(self.tasks.holds[task]), rules[0][task]))
            every.append(self.tasks.starts_in_gaps(sorted(range(count), key=turns.__getitem__)))
        return min(
            every, key=lambda start: max(map(sum, zip(start, self.tasks.duration, strict=True)), default=0)
        )

    def _in_sequence(self) -> None:
        """Make each operation wait until the previous operation of the program has ended at all ranks."""
        mine: dict[int, list[int]] = defaultdict(list)
        for task, (position, _) in sorted(self.place.items()):
            mine[position].append(task)
        before: list[int] = []
        for _, tasks in sorted(mine.items()):
            begin, end = self._after(before, self.tasks.add()), self.tasks.add()
            self.tasks.after[begin] += [(task, 0) for task in tasks]
            before = [self._after(tasks, end)]

    def computed_tiles(self, start: list[int]) -> Iterator[ComputeTile]:
        """Yield all computed tiles of nonzero duration."""
        for key, task in self.makes.items():
            if self.tasks.holds[task]:
                begin, ticks = start[task], self.tasks.duration[task]
                yield ComputeTile(*key, Fraction(begin, self.per_us), Fraction(begin + ticks, self.per_us))

    def sent(self, start: list[int]) -> Schedule:
        """Schedule of all sends, with release and due dates.

        A chunk is released at an origin when the origin's contribution to it is ready. It is due at a
        destination when the first computed tile that reads it starts there.
        """
        begins: dict[tuple[str, int, int], int] = {}  # {(operation, tile, rank): tick of its first read}
        for (name, tile, rank), task in self.makes.items():
            for each in self.workload.tiles[name, tile] if self.tasks.holds[task] else ():
                begins[*each, rank] = min(begins.get((*each, rank), start[task]), start[task])
        release: dict[tuple[int, int], int] = {}
        due: dict[tuple[int, int], int] = {}
        for chunk, part in enumerate(self.part_of):
            key, ends = (part.operation, part.tile), self.problem.collective.chunks[chunk]
            ready = {rank: start[self.gives[*key, rank]] for rank in ends.origins}
            release |= {(chunk, rank): ticks for rank, ticks in ready.items() if ticks}
            due |= {(chunk, rank): begins[*key, rank] for rank in ends.destinations if (*key, rank) in begins}
        release_us, due_us = (
            tuple((*key, Fraction(ticks, self.per_us)) for key, ticks in each.items())
            for each in (release, due)
        )
        problem = replace(self.problem, release_us=release_us, due_us=due_us)
        return self.precedence.schedule(start, producer="workload", problem=problem)
