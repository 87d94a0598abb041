"""List scheduling of tasks that hold resources: each starts once its predecessors and resources permit.

The most urgent task that can start goes first (Graham, "Bounds on multiprocessing timing anomalies", SIAM
Journal on Applied Mathematics 17, 1969). Tasks are sends, or tiles of computations.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from operator import add
from typing import Any

import numpy as np

from taccl._internal.arrays import Ints
from taccl.problem.problem import Problem
from taccl.schedule.longest_paths import Levels
from taccl.schedule.precedence import Precedence
from taccl.schedule.schedule import Schedule


@dataclass(slots=True)
class Tasks:
    """Tasks with the resources that they hold and their precedence constraints; all times in ticks.

    - `duration`: Duration of each task.
    - `holds` (list of list of (resource, begin, until)): Holds of each task, relative to its start.
    - `after` (list of list of (task, gap)): Successors of each task; they start at least `gap` ticks after
      its start.
    """

    duration: list[int] = field(default_factory=list)
    holds: list[list[tuple[int, int, int]]] = field(default_factory=list)
    after: list[list[tuple[int, int]]] = field(default_factory=list)

    @classmethod
    def of_sends(cls, order: Precedence) -> Tasks:
        """Tasks for the sends and joins of a precedence graph, whose order on each resource is left open."""
        count = order.num_events
        joins, (resource, send, begin, until) = count - order.num_sends, order.held
        kept = order.waits.cause < 0
        source, target = order.waits.source[kept], order.waits.target[kept]
        return cls(
            [*order.duration, *[0] * joins],
            _by_task(send, (resource, begin, until), count),
            _by_task(source, (target, order.gaps()[kept]), count),
        )

    def add(self, duration: int = 0, resource: int | None = None) -> int:
        """Add a task, which may hold one resource from its start to its end; return its index."""
        self.duration.append(duration)
        self.holds.append([] if resource is None else [(resource, 0, duration)])
        self.after.append([])
        return len(self.duration) - 1

    def order(self) -> list[int]:
        """Topological order of the tasks; raises `ValueError` if there is a cycle."""
        waiting = self._num_awaited()
        order = [task for task, number in enumerate(waiting) if not number]
        for task in order:  # the list grows: tasks are appended when their last predecessor is done
            for later, _ in self.after[task]:
                waiting[later] -= 1
                if not waiting[later]:
                    order.append(later)
        if len(order) < len(self.after):
            raise ValueError("the order of sends is cyclic: some wait for each other")
        return order

    def _num_awaited(self) -> list[int]:
        """Number of predecessors of each task."""
        number = [0] * len(self.after)
        for after in self.after:
            for later, _ in after:
                number[later] += 1
        return number

    def tails(self) -> list[int]:
        """Tail of each task: least time from its start until it and all its successors have ended."""
        tail = list(self.duration)
        for task in reversed(self.order()):
            for later, gap in self.after[task]:
                tail[task] = max(tail[task], gap + tail[later])
        return tail

    def heads(self) -> list[int]:
        """Head of each task: earliest start under precedence constraints alone, without resources.

        Two ranks that exchange partial sums constrain each other. Such a cycle is feasible if it has no
        positive total gap; else `ValueError` is raised.
        """
        waits = [(task, later, gap) for task, after in enumerate(self.after) for later, gap in after]
        source, target, gap = np.array(waits, np.int64).reshape(-1, 3).T
        levels = Levels(len(self.after), source, target, np.zeros(len(waits), bool))
        found: list[int] = levels.earliest(gap).tolist()
        return found

    def starts(self, urgency: Sequence[tuple[int, ...]]) -> list[int]:
        """Start of each task by list scheduling; tasks with the smallest `urgency` key go first."""
        order = sorted(range(len(urgency)), key=urgency.__getitem__)
        place = [0] * len(order)
        for number, task in enumerate(order):
            place[task] = number
        waiting = self._num_awaited()
        earliest, start, after = [0] * len(order), [0] * len(order), self.after
        # A queue has the waiting tasks that need a resource at the same time after their start.
        every = sorted({(resource, begin) for some in self.holds for resource, begin, _ in some})
        number_of = {queue: number for number, queue in enumerate(every)}
        place_of = {resource: number for number, resource in enumerate({resource for resource, _ in every})}
        queues = [(place_of[resource], begin) for resource, begin in every]
        holds = [
            [(number_of[r, begin], place_of[r], begin, until) for r, begin, until in some]
            for some in self.holds
        ]
        free = [0] * len(place_of)
        #: Heap of the priorities of each queue's tasks; time and priority at which its head is called.
        waits: list[list[int]] = [[] for _ in queues]
        calls: list[tuple[int, int] | None] = [None] * len(queues)
        # Heap entries: (time, priority, -1) for a task; (time, priority, queue) for the head of a queue.
        pending = [(0, place[task], -1) for task in range(len(order)) if not waiting[task]]
        heapq.heapify(pending)
        push, pop = heapq.heappush, heapq.heappop

        def call(queue: int, now: int) -> None:
            if heads := waits[queue]:
                resource, begin = queues[queue]
                since = free[resource] - begin
                entry = (since if since > now else now, heads[0])
                known = calls[queue]
                if known is None or entry < known:
                    calls[queue] = entry
                    push(pending, (*entry, queue))

        while pending:
            now, first, queue = pop(pending)
            if queue >= 0:
                if calls[queue] != (now, first):
                    continue  # a later heap entry of this queue replaced this one
                calls[queue] = None
                resource, begin = queues[queue]
                if free[resource] - begin > now:
                    call(queue, now)
                    continue
                pop(waits[queue])
            task = order[first]
            # Hold that is blocked longest, in the last queue at ties.
            blocker, blocked = -1, now
            for number, resource, begin, _ in holds[task]:
                since = free[resource] - begin
                if since > blocked or (since == blocked and number > blocker >= 0):
                    blocker, blocked = number, since
            if blocker >= 0:
                push(waits[blocker], first)
                call(blocker, now)
            else:  # comparisons instead of `max`, which takes twice as long
                start[task] = now
                for _, resource, _, until in holds[task]:
                    if now + until > free[resource]:
                        free[resource] = now + until
                for later, gap in after[task]:
                    if now + gap > earliest[later]:
                        earliest[later] = now + gap
                    waiting[later] -= 1
                    if not waiting[later]:
                        push(pending, (earliest[later] if earliest[later] > now else now, place[later], -1))
            if queue >= 0:
                call(queue, now)
        return start

    def starts_in_gaps(
        self, stage: Sequence[int] | None = None, urgency: Sequence[int] | None = None
    ) -> list[int]:
        """Start of each task by list scheduling that fills gaps between the holds of a resource.

        - `stage`: Tasks of a smaller stage are placed first if they are ready; default: one stage.
        - `urgency`: Tasks of a stage with equal earliest starts are placed by ascending value.
          Default: first those with the longest tail and the most work left on their resources.
        """
        busy: dict[int, list[tuple[int, int]]] = {}  # {resource: its holds so far, by time}
        left: dict[int, int] = {}  # {resource: total time of its holds to come}
        for holds in self.holds:
            for resource, begin, until in holds:
                busy.setdefault(resource, [])
                left[resource] = left.get(resource, 0) + until - begin
        waiting, earliest, start = self._num_awaited(), [0] * len(self.after), [0] * len(self.after)
        stage, tails = stage or start, self.tails()

        def entry(task: int, now: int) -> tuple[int, int, int, int]:
            urgent = -tails[task] if urgency is None else urgency[task]
            for resource, _, _ in self.holds[task] if urgency is None else ():
                urgent -= left[resource]
            return stage[task], now, urgent, task

        pending = [entry(task, 0) for task, number in enumerate(waiting) if not number]
        heapq.heapify(pending)
        while pending:
            known = heapq.heappop(pending)
            task = known[-1]
            now = _first_gap(busy, self.holds[task], known[1])
            if (new := entry(task, now)) > known:  # another task may precede it now
                heapq.heappush(pending, new)
                continue
            start[task] = now
            for resource, begin, until in self.holds[task]:
                hold = now + begin, now + until
                busy[resource].insert(bisect_left(busy[resource], hold), hold)
                left[resource] -= until - begin
            for later, gap in self.after[task]:
                earliest[later] = max(earliest[later], now + gap)
                waiting[later] -= 1
                if not waiting[later]:
                    heapq.heappush(pending, entry(later, earliest[later]))
        return start


def _first_gap(
    busy: Mapping[int, Sequence[tuple[int, int]]], holds: Sequence[tuple[int, int, int]], now: int
) -> int:
    """Earliest start of a task, from `now` on, at which all its resources have gaps for its holds."""
    tried = -1
    while tried != now:
        tried = now
        for resource, begin, until in holds:
            taken = busy[resource]
            if not taken or taken[-1][1] <= now + begin:
                continue
            place = max(bisect_left(taken, (now + begin,)) - 1, 0)
            while place < len(taken) and taken[place][0] < now + until:
                now = max(now, taken[place][1] - begin)
                place += 1
    return now


def _by_task(task: Ints, columns: Sequence[Ints], count: int) -> list[list[Any]]:
    """Rows of the columns as tuples, in a list for each task; rows of one task keep their order."""
    by_task = np.argsort(task, kind="stable")
    rows = list(zip(*(each[by_task].tolist() for each in columns), strict=True))
    first = np.searchsorted(task[by_task], np.arange(count + 1)).tolist()
    return [rows[low:high] for low, high in pairwise(first)]


def released(problem: Problem, schedule: Schedule) -> Schedule:
    """Re-time the sends of a schedule under other release and due dates, most urgent sends first.

    - `problem`: The schedule's problem with other release and due dates.
    - `schedule`: Schedule whose sends and contents are kept.
    """
    order = Precedence(problem, schedule.problem, **schedule.columns)
    tasks = Tasks.of_sends(order)
    due = {(chunk, rank): int(us * problem.costs.ticks_per_us) for chunk, rank, us in problem.due_us}
    latest = [sum(tasks.duration)] * len(tasks.duration)
    for s, transfers in enumerate(order.transfers):
        ends = problem.topology.links[order.link[s]].dsts
        here = [
            due[order.chunk[t], rank] for t in transfers for rank in ends if (order.chunk[t], rank) in due
        ]
        latest[s] = min((date - tasks.duration[s] for date in here), default=latest[s])
    for task in reversed(tasks.order()):
        latest[task] = min([latest[task], *(latest[later] - gap for later, gap in tasks.after[task])])
    start = tasks.starts(
        [(by, -tail, task) for task, (by, tail) in enumerate(zip(latest, tasks.tails(), strict=True))]
    )
    return order.schedule(start, producer=schedule.producer)


def listed(schedule: Schedule, *, longest_first: bool = False) -> Schedule:
    """Re-time a schedule by list scheduling, with sends in order of start or longest remaining path first.

    Raises `ValueError` if the precedence graph has a cycle, as when ranks exchange partial sums.
    """
    order = Precedence(schedule.problem, schedule.problem, **schedule.columns)
    tasks = Tasks.of_sends(order)
    urgency = [-tail for tail in tasks.tails()]
    if not longest_first:
        urgency = order.start + [0] * (order.num_events - order.num_sends)
    return order.schedule(tasks.starts([(each,) for each in urgency]), producer=schedule.producer)


def gap_filled(schedule: Schedule) -> Schedule:
    """Earliest of three list schedules of copies that fill gaps between the holds of a resource.

    The first places the most work first, the second the longest latency after holds. The third places sends
    of the busiest resources before all others, so that these resources are never idle.
    """
    order = Precedence(schedule.problem, schedule.problem, **schedule.columns)
    tasks = Tasks.of_sends(order)
    load: dict[int, int] = defaultdict(int)
    for holds in tasks.holds:
        for resource, begin, until in holds:
            load[resource] += until - begin
    busiest = [-max((load[resource] for resource, _, _ in holds), default=0) for holds in tasks.holds]
    latency = [
        max((until for _, _, until in holds), default=0) - tail
        for holds, tail in zip(tasks.holds, tasks.tails(), strict=True)
    ]
    able = tasks.starts_in_gaps(), tasks.starts_in_gaps(urgency=latency), tasks.starts_in_gaps(busiest)
    best = min(able, key=lambda start: max(map(add, start, tasks.duration), default=0))
    return order.schedule(best, producer=schedule.producer)
