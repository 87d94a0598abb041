"""Small random steps over links that differ by rank, and exhaustive search for schedules below the bound."""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING

from taccl import Workload
from taccl.errors import InputError, WorkloadError
from taccl.topology.builder import TopologyBuilder
from taccl.workload import fuse, overlap
from taccl.workload.costs import tile_costs
from taccl.workload.exchange import sends_of
from taccl.workload.schedule import _StepTasks
from taccl.workload.step import Step

if TYPE_CHECKING:
    from collections.abc import Iterator
    from fractions import Fraction

    import numpy as np

    from taccl.schedule.listing import Tasks
    from taccl.topology.topology import Topology

#: {layout: collectives that accept an operand in it}.
_COLLECTIVES = {"sliced(0)": ["allgather", "alltoall", "send"], "partial": ["allreduce", "reduce_scatter"]}
_AXIS = {"alltoall": 1, "reduce_scatter": 0}


def uneven_topology(rng: np.random.Generator, num_ranks: int) -> Topology:
    """Links between all pairs of ranks; each rank's ports have their own send and receive rates."""
    builder = TopologyBuilder("uneven", [0] * num_ranks)
    out = [builder.add_resource(f"out {rank}") for rank in range(num_ranks)]
    into = [builder.add_resource(f"into {rank}") for rank in range(num_ranks)]
    sends, receives = rng.choice([1, 1, 2, 4], (2, num_ranks)).tolist()
    alphas = rng.choice([0, 0, 1], num_ranks).tolist()
    for src in range(num_ranks):
        for dst in range(num_ranks):
            if src != dst:
                alpha, here, there = alphas[src], sends[src], receives[dst]
                link = builder.add_link(src, dst, alpha_us=alpha, beta_us_per_mb=max(here, there))
                builder.add_hold(link, out[src], alpha_us=alpha, beta_us_per_mb=here)
                builder.add_hold(link, into[dst], alpha_us=0, beta_us_per_mb=there, side="receive")
    return builder.build()


def random_step(rng: np.random.Generator, num_ranks: int) -> Workload:
    """A random step of one or two chains of kernels and collectives, some in tiles, maybe joined by a last
    kernel."""
    step = Workload("random", num_ranks)
    # Slices of a slice have 0.5 MB, or 256 bytes, which merge where sums are small.
    shape = (4 * num_ranks, num_ranks * int(rng.choice([125_000, 125_000, 64])))
    ends: list[str] = []
    for chain in range(rng.integers(1, 3)):
        names: list[str] = []
        for place in range(rng.integers(1, 3)):
            layout = str(rng.choice([*_COLLECTIVES]))
            kernel, cost = f"k{chain}{place}", float(rng.integers(0, 12))
            step = step.then(kernel, "compute", *names[-1:], shape=shape, layout=layout, cost_us=cost)
            kind = str(rng.choice(_COLLECTIVES[layout]))
            step = step.then(f"c{chain}{place}", kind, kernel, axis=_AXIS.get(kind))
            names += [kernel, f"c{chain}{place}"]
        if rng.random() < 0.5:
            names.append(f"r{chain}")
            step = step.then(names[-1], "relu", names[-2], cost_us=float(rng.integers(0, 12)))
        ends.append(names[-1])
        if rng.random() < 0.5:
            some = names[rng.integers(len(names) - 1) :]
            with suppress(WorkloadError):
                step = overlap(step, some[: rng.integers(2, 5)], tiles=2, axis=int(rng.integers(2)))
    if rng.random() < 0.5:
        read, cost = ends[: rng.integers(1, 3)], float(rng.integers(0, 12))
        step = step.then("z", "compute", *read, shape=shape, layout="sliced(0)", cost_us=cost)
    for one in [each.name for each in step.operations if not each.is_collective]:
        for two in step.readers[one]:
            if step.operation[two].kind == "relu" and rng.random() < 0.5:
                with suppress(WorkloadError):
                    step = fuse(step, one, two)
    return step


def steps_below(step: Step, algorithm: str, *, most_nodes: int) -> Iterator[Step]:
    """Yield schedules that finish before the step's bound: all active ones with the sends of an algorithm.

    The search stops after `most_nodes` partial schedules.
    """
    try:
        sends = sends_of(step.workload, step.topology, algorithm)
    except InputError:  # a baseline that suits other collectives
        return
    tasks = _StepTasks(step.workload, tile_costs(step.workload, step.rates), sends)
    search = _Search(tasks.tasks, step.bound * tasks.per_us, most_nodes)
    for start in search.below():
        yield Step(
            step.workload, step.topology, tuple(tasks.computed_tiles(start)), tasks.sent(start), step.rates
        )


class _Search:
    """Depth-first search over task orders, each task at its first fit: enumerates all active schedules.

    A partial schedule is pruned once a ready task with its tail would end at the limit or later.
    """

    def __init__(self, tasks: Tasks, limit: Fraction, most_nodes: int) -> None:
        self.tasks, self.limit, self.left = tasks, limit, most_nodes
        self.tails, self.waiting = tasks.tails(), [0] * len(tasks.after)
        for after in tasks.after:
            for later, _ in after:
                self.waiting[later] += 1
        self.earliest, self.start = [0] * len(self.tails), [0] * len(self.tails)
        self.busy: dict[int, list[tuple[int, int]]] = defaultdict(list)

    def below(self) -> Iterator[list[int]]:
        """Yield the start times of all tasks for each complete schedule that ends before the limit."""
        return self._next([task for task, number in enumerate(self.waiting) if not number])

    def _next(self, ready: list[int]) -> Iterator[list[int]]:
        self.left -= 1
        if self.left < 0 or any(self.earliest[task] + self.tails[task] >= self.limit for task in ready):
            return
        if not ready:
            yield list(self.start)
            return
        # Tasks that hold no resource delay no other task, so it suffices to start them first.
        free = [task for task in ready if not self.tasks.holds[task]]
        for task in free[:1] or ready:
            at = self._first_fit(task)
            if at + self.tails[task] >= self.limit:
                continue
            self.start[task] = at
            spans = [(r, (at + begin, at + until)) for r, begin, until in self.tasks.holds[task]]
            for resource, span in spans:
                self.busy[resource].append(span)
            before = list(self.earliest)
            opened = []
            for later, gap in self.tasks.after[task]:
                self.earliest[later] = max(self.earliest[later], at + gap)
                self.waiting[later] -= 1
                if not self.waiting[later]:
                    opened.append(later)
            yield from self._next([each for each in ready if each != task] + opened)
            self.earliest = before
            for later, _ in self.tasks.after[task]:
                self.waiting[later] += 1
            for resource, span in spans:
                self.busy[resource].remove(span)

    def _first_fit(self, task: int) -> int:
        """First tick at which all resources of a task are free for its duration."""
        at, moved = self.earliest[task], True
        while moved:
            moved = False
            for resource, begin, until in self.tasks.holds[task]:
                for since, to in self.busy[resource]:
                    if at + begin < to and since < at + until:
                        at, moved = to - begin, True
        return at
