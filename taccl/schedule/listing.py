"""List scheduling of tasks that hold resources: each starts once its predecessors and resources permit.

The most urgent task that can start goes first (Graham, "Bounds on multiprocessing timing anomalies", SIAM
Journal on Applied Mathematics 17, 1969). Tasks are sends, or tiles of computations.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

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
        joins = count - order.num_sends
        tasks = cls([*order.duration, *[0] * joins], [[] for _ in range(count)], [[] for _ in range(count)])
        for resource, send, begin, until in zip(*(each.tolist() for each in order.held), strict=True):
            tasks.holds[send].append((resource, begin, until))
        kept = order.waits.cause < 0
        columns = (each[kept].tolist() for each in (order.waits.source, order.waits.target, order.gaps()))
        for source, target, gap in zip(*columns, strict=True):
            tasks.after[source].append((target, gap))
        return tasks

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
        earliest, start = [0] * len(order), [0] * len(order)
        holds, after = self.holds, self.after
        free: dict[int, int] = defaultdict(int)
        #: {(resource, ticks from a task's start to its hold): heap of priorities of waiting tasks}.
        queues: dict[tuple[int, int], list[int]] = defaultdict(list)
        calls: dict[tuple[int, int], tuple[int, int]] = {}
        # Heap entries: (time, priority, ()) for a task; (time, priority, queue key) for the head of a queue.
        pending: list[tuple[int, int, tuple[int, int] | tuple[()]]] = []
        pending += [(0, place[task], ()) for task in range(len(order)) if not waiting[task]]
        heapq.heapify(pending)

        def call(key: tuple[int, int], now: int) -> None:
            if queue := queues[key]:
                entry = (max(now, free[key[0]] - key[1]), queue[0])
                known = calls.get(key)
                if known is None or entry < known:
                    calls[key] = entry
                    heapq.heappush(pending, (*entry, key))

        while pending:
            now, first, key = heapq.heappop(pending)
            if key:
                if calls.get(key) != (now, first):
                    continue  # a later heap entry of this queue replaced this one
                del calls[key]
                if free[key[0]] - key[1] > now:
                    call(key, now)
                    continue
                heapq.heappop(queues[key])
            task = order[first]
            # Hold that is blocked longest: (least start of the task, resource, ticks from start to hold).
            blocker = None
            for resource, begin, _ in holds[task]:
                if (until := free[resource] - begin) > now:
                    each = (until, resource, begin)
                    blocker = each if blocker is None else max(blocker, each)
            if blocker is not None:
                heapq.heappush(queues[blocker[1:]], first)
                call(blocker[1:], now)
            else:  # comparisons instead of `max`, which takes twice as long
                start[task] = now
                for resource, _, until in holds[task]:
                    if now + until > free[resource]:
                        free[resource] = now + until
                for later, gap in after[task]:
                    if now + gap > earliest[later]:
                        earliest[later] = now + gap
                    waiting[later] -= 1
                    if not waiting[later]:
                        heapq.heappush(pending, (max(earliest[later], now), place[later], ()))
            if key:
                call(key, now)
        return start


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
