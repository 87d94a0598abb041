"""Pipelined collectives along the dimensions of a network: times of each chunk on each dimension.

A *form* lists the hops of a collective along one dimension, step by step: round a ring, direct, or by
doubling. All ranks act alike, with equal numbers of pieces; reductions reverse a form. The two directions of
a ring or a line are *lanes*, which are independent of each other.

Each chunk has its own order of dimensions. It is summed and scattered along one dimension after another, or
gathered along them in the opposite order, or exchanged along each (alltoall). A *passage* is one chunk along
one dimension. A list scheduler determines the starts of passages.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import NamedTuple

from taccl.errors import CollectiveError
from taccl.schedule.implicit_schedule import IMPLICIT_COLLECTIVES
from taccl.schedule.listing import Tasks
from taccl.topology.products import Dimension, Dimensions

#: Default number of chunks per rank; our choice.
NUM_CHUNKS = 64
#: Max runs (tasks of consecutive hops) of a plan; to stay below it, several steps are combined into a run.
_MOST_RUNS = 20_000
#: `_NEAR`: max ratio of a plan's finish to the busiest dimension's time; above it, the plan is improved.
#: `_WORK`: max number of runs (`Run`) scheduled in all tries together; a try schedules each run three times.
#: `_MOST_TRIES`: max number of tries of improvement.
_NEAR, _WORK, _MOST_TRIES = 1.01, 100_000, 150
#: `_A_LITTLE`: standard deviation of random shifts of all chunks, as a share of the finish.
#: `_FAR`: standard deviation of random shifts of a few chunks, as a share of the finish.
_A_LITTLE, _FAR = 0.02, 0.15


class Pace(NamedTuple):
    """Ticks for which a send of one piece of data holds its link or port, and total duration in ticks."""

    held: int
    latency: int


class DigitHop(NamedTuple):
    """Hop of a rank's pieces along a dimension; digits are coordinates there, relative to the rank's own.

    - `src`, `dst`: Digits of the source and the destination of the hop.
    - `turn`: Position among the hops of a step that share a port.
    - `half`: 0 if only even pieces take the hop, 1 if odd ones do, -1 if all do.
    - `target`: Digit of the final destination, in an exchange.
    """

    src: int
    dst: int
    turn: int = 0
    half: int = -1
    target: int = 0

    def going(self, num_pieces: int, parity: int) -> range:
        """Pieces that take the hop, in order; `parity` 1 swaps even and odd ones."""
        return range(num_pieces) if self.half < 0 else range(self.half ^ parity, num_pieces, 2)


class Run(NamedTuple):
    """Consecutive hops in one direction of a dimension (a lane), scheduled as one task.

    - `lane`: 1 upwards or -1 downwards; 0 if the dimension has only one lane.
    - `hops`: (ticks after the run's start, hop) pairs.
    - `busy`: Ticks for which the lane is busy.
    - `lag`: Min ticks from the run's start to the start of the lane's next run of the same passage.
    """

    lane: int
    hops: tuple[tuple[int, DigitHop], ...]
    busy: int
    lag: int


class Form(NamedTuple):
    """Hops along a dimension, by direction (lane) and step; `exchange` is True for an alltoall."""

    lanes: tuple[tuple[tuple[DigitHop, ...], ...], ...]
    exchange: bool

    def runs(self, num_pieces: int, pace: Pace, *, parity: int, most: int) -> Iterator[Run]:
        """Yield tasks (runs) of hops by direction; a step joins the previous step's run unless it must wait.

        - `parity`: 1 to swap even and odd pieces, so that successive chunks balance the directions of a ring.
        - `most`: Max runs per lane.
        """
        for way, lane in zip((1, -1) if len(self.lanes) > 1 else (0,), self.lanes, strict=True):
            steps = [step for step in lane if step[0].going(num_pieces, parity)]
            hops: list[tuple[int, DigitHop]] = []
            begin, fewest = 0, -(-len(steps) // most)
            for place, step in enumerate(steps):
                hops += [(begin + hop.turn * num_pieces * pace.held, hop) for hop in step]
                busy = pace.held * max(
                    hop.turn * num_pieces + len(hop.going(num_pieces, parity)) for hop in step
                )
                # In an alltoall, a step waits for all pieces of the last step. Otherwise it may start sooner.
                # A step with half of the pieces sends them faster than they arrive, so it waits for the last.
                late, last = num_pieces * self.exchange, place + 1 == len(steps)
                if not last and not self.exchange and steps[place + 1][0].half >= 0:
                    final = steps[place + 1][0].going(num_pieces, parity)[-1]
                    late = final - final // 2
                lag = pace.latency + late * pace.held
                if last or (lag > busy and (place + 1) % fewest == 0):
                    yield Run(way, tuple(hops), begin + busy, begin + lag)
                    hops, begin = [], 0
                else:
                    begin += max(busy, lag)


class ChunkPassage(NamedTuple):
    """Gather, reduction (if `reduces`: a gather reversed in time) or exchange of a chunk along one dimension.

    - `order`: Dimensions of the chunk, in the order in which it is reduced or exchanged along them.
    - `place`: Index of this passage's dimension in `order`.
    - `num_pieces`: Pieces of each rank. In a gather or a reduction, product of the sizes of the dimensions
      after `place` in `order`; in an exchange, of all other dimensions.
    - `runs`: Groups of consecutive hops that are scheduled as one task (`Run`).
    - `begins`: Start of each of the `runs` in ticks; empty before scheduling.
    """

    chunk: int
    order: tuple[int, ...]
    place: int
    reduces: bool
    num_pieces: int
    runs: tuple[Run, ...]
    begins: tuple[int, ...] = ()

    @property
    def dimension(self) -> int:
        """Index of the dimension along which the chunk goes."""
        return self.order[self.place]


@dataclass(frozen=True, eq=False)
class PassagePlan:
    """Plan of passages (each of one chunk along one dimension) with their starts, and the finish in ticks."""

    dims: Dimensions
    collective: str
    paces: tuple[Pace, ...]
    num_chunks: int
    passages: tuple[ChunkPassage, ...]
    finish_ticks: int


def plan_along(
    dims: Dimensions,
    collective: str,
    orders: Sequence[Sequence[int]],
    paces: Sequence[Pace],
    *,
    doubling: bool = False,
    improve: bool = True,
) -> PassagePlan:
    """Plan when each chunk passes each dimension, by list scheduling.

    - `collective`: One of `IMPLICIT_COLLECTIVES`.
    - `orders` (sequence of sequence of int): Dimensions of each chunk, in the order in which a reduction or
      an alltoall uses them.
    - `paces`: Costs of a send along each dimension.
    - `doubling`: True for recursive doubling behind switches; by default pieces are sent directly.
    - `improve`: True to try other sequences of chunks if the busiest dimension is often idle.
    """
    if collective not in IMPLICIT_COLLECTIVES:
        raise CollectiveError(
            f"found {collective}; expected one of {', '.join(IMPLICIT_COLLECTIVES)}", where="dimensions"
        )
    exchange = collective == "alltoall"
    if exchange and not dims.is_regular:
        raise CollectiveError(
            "found a line, along which an alltoall has no fixed steps; expected rings, switches or fully "
            "connected groups: synthesize it",
            where=dims.host.name,
        )
    halves = [True] * (collective in ("reduce-scatter", "allreduce"))
    halves += [False] * (collective != "reduce-scatter")
    most = max(1, _MOST_RUNS // (2 * len(orders) * len(dims) * len(halves)))
    forms = [form_of(each, exchange=exchange, doubling=doubling) for each in dims]

    @cache
    def runs(dimension: int, num_pieces: int, parity: int) -> tuple[Run, ...]:
        return tuple(forms[dimension].runs(num_pieces, paces[dimension], parity=parity, most=most))

    passages = []
    for chunk, order in enumerate(orders):
        for reduces in halves:
            places = range(len(order)) if reduces or exchange else reversed(range(len(order)))
            for place in places:
                done = prod(dims.sizes[k] for k in order[place + 1 :])
                pieces = dims.num_ranks // dims.sizes[order[place]] if exchange else done
                found = runs(order[place], pieces, chunk % 2)
                passages.append(ChunkPassage(chunk, tuple(order), place, reduces, pieces, found))
    tasks = _tasks_of(passages, paces)
    starts = _listed(tasks, [each.chunk for each in passages for _ in each.runs], improve=improve)
    begin, finish, put = iter(starts), 0, []
    for each in passages:
        begins = tuple(next(begin) for _ in each.runs)
        tail = paces[each.dimension].latency - paces[each.dimension].held
        finish = max([finish, *(b + run.busy + tail for b, run in zip(begins, each.runs, strict=True))])
        put.append(each._replace(begins=begins))
    return PassagePlan(dims, collective, tuple(paces), len(orders), tuple(put), finish)


def _tasks_of(passages: Sequence[ChunkPassage], paces: Sequence[Pace]) -> Tasks:
    """Scheduling tasks, one for each run: consecutive hops of a chunk in one direction of a dimension.

    Each direction (lane) of a dimension is a resource.
    """
    tasks, done = Tasks(), list[tuple[int, int]]()  # `done`: (task, gap) of runs that ended the last passage
    for number, each in enumerate(passages):
        first, tail = len(tasks.duration), paces[each.dimension].latency - paces[each.dimension].held
        if not number or passages[number - 1].chunk != each.chunk:
            done = []
        way = -1 if each.reduces else 1  # reversed passages use links of the other direction
        numbers = [tasks.add(run.busy, 3 * each.dimension + way * run.lane) for run in each.runs]
        ends = []
        for i, run in enumerate(each.runs):
            is_first = not i or each.runs[i - 1].lane != run.lane
            is_last = first + i == numbers[-1] or each.runs[i + 1].lane != run.lane
            if not is_first:
                before = each.runs[i - 1]
                # A reduction runs in reversed time, so the later of two runs comes first.
                gap = before.lag + run.busy - before.busy if each.reduces else before.lag
                ends_of = (numbers[i], numbers[i - 1]) if each.reduces else (numbers[i - 1], numbers[i])
                tasks.after[ends_of[0]].append((ends_of[1], gap))
            if is_last if each.reduces else is_first:
                for task, gap in done:
                    tasks.after[task].append((numbers[i], gap))
            if is_first if each.reduces else is_last:
                ends.append((numbers[i], run.busy + tail))
        done = ends
    return tasks


def _listed(tasks: Tasks, chunk_of: Sequence[int], *, improve: bool) -> list[int]:
    """Start of each task in ticks, by list scheduling with improvement.

    Earlier chunks go first. Forward-backward improvement then closes gaps: tasks are scheduled in reversed
    time, latest ends first, and again forwards. Random shifts of chunks follow; each is improved in the same
    way, and kept if the finish is no later.

    Source: Valls, Ballestin and Quintanilla, "Justification and RCPSP", European Journal of Operational
    Research 165 (2005).
    """
    busy: dict[int, int] = {}
    for holds in tasks.holds:
        for resource, begin, until in holds:
            busy[resource] = busy.get(resource, 0) + until - begin
    backwards = Tasks(list(tasks.duration), tasks.holds, [[] for _ in tasks.duration])
    for task, after in enumerate(tasks.after):
        for later, gap in after:
            backwards.after[later].append((task, tasks.duration[later] + gap - tasks.duration[task]))

    def settled(urgency: Sequence[tuple[int, ...]]) -> tuple[int, list[int]]:
        for each in (tasks, backwards, tasks):
            starts = each.starts(urgency)
            ends = [start + length for start, length in zip(starts, tasks.duration, strict=True)]
            finish = max(ends, default=0)
            urgency = [(finish - end,) for end in ends]
        return finish, starts

    finish, starts = settled([(chunk, task) for task, chunk in enumerate(chunk_of)])
    rng, num_chunks = random.Random(0), len(set(chunk_of))
    for _ in range(min(_MOST_TRIES, _WORK // (3 * len(chunk_of))) if improve else 0):
        if finish <= _NEAR * max(busy.values()):
            break
        if rng.random() < 0.5:
            moved = [round(rng.gauss(0, _A_LITTLE * finish)) for _ in range(num_chunks)]
        else:
            moved = [0] * num_chunks
            for _ in range(rng.randint(1, 3)):
                moved[rng.randrange(num_chunks)] = round(rng.gauss(0, _FAR * finish))
        found = settled([(start + moved[chunk],) for start, chunk in zip(starts, chunk_of, strict=True)])
        if found[0] <= finish:
            finish, starts = found
    return starts


def form_of(each: Dimension, *, exchange: bool, doubling: bool = False) -> Form:
    """Steps of a collective along a dimension: along a ring or line, direct, or by doubling at a switch."""
    size, is_ring = each.size, each.kind == "ring" and each.size > 2
    if is_ring or each.kind == "line":
        reach = size // 2 if is_ring else size - 1

        def hop(way: int, i: int, far: int) -> DigitHop:
            half = int(way < 0) if is_ring and 2 * far == size else -1
            return DigitHop(way * i, way * (i + 1), far - i - 1, half, way * far % size * exchange)

        return Form(
            tuple(
                tuple(
                    tuple(hop(way, i, far) for far in range(i + 1, reach + 1 if exchange else i + 2))
                    for i in range(reach)
                )
                for way in (1, -1)
            ),
            exchange,
        )
    if each.kind == "switch" and doubling and not exchange:
        bits = [1 << bit for bit in range((size - 1).bit_length())]
        steps = [tuple(DigitHop(i, i + far, i) for i in range(min(far, size - far))) for far in bits]
        return Form((tuple(steps),), exchange)
    port = each.kind == "switch"
    hops = tuple(DigitHop(0, d, (d - 1) * port, target=d * exchange) for d in range(1, size))
    return Form(((hops,),), exchange)
