"""Ranks numbered anew, so that the algorithm which a library runs in rank order fits the network."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import numpy as np

from taccl.arguments import checked
from taccl.deadline import NEVER, Deadline, OutOfTime
from taccl.errors import InputError
from taccl.placement.algorithms import of_schedule, stock
from taccl.placement.fabric import HostFabric, as_messages, problem_of
from taccl.placement.kernel import TOO_LONG, anneal, prove, tails, timed
from taccl.placement.placement import Placement
from taccl.placement.probe import Probe
from taccl.program.lift import lift
from taccl.program.program import Program
from taccl.schedule.schedule import Schedule
from taccl.topology.clusters import nested_order
from taccl.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from taccl.arguments import Natural, Seconds, Size
    from taccl.topology.topology import Topology

#: Up to so many ranks the best order of all is sought, with a proof.
_PROVABLE = 10
#: Messages that one search looks at, in orders of all of them; at least so many orders; at most.
_MOST_MESSAGES, _FEWEST_TRIES, _MOST_TRIES = 10**8, 1500, 150_000
#: How much worse an order may be at first than the one before; one search for each.
_WARMTHS = (0.003, 0.01, 0.05)
#: Up to so many messages Python times an order sooner than it compiles the function that does.
_FEW_MESSAGES = 12_000
#: Figures within such a part of each other are the same to whoever runs it.
_NOTHING = 1e-6


@checked
def reorder(
    topology: Topology | Probe,
    collective: str = "allreduce",
    algorithm: str | Schedule | Program = "ring",
    size: Size = "100MB",
    *,
    time_limit_s: Seconds = 20.0,
    seed: Natural = 0,
    progress: Callable[[str, float | None, float | None], None] | None = None,
) -> Placement:
    """Which rank should be on which host, so that an algorithm in rank order finishes early.

    The objective is the simulated time of the algorithm on the topology, in which messages share what they
    cross (`taccl.placement.kernel.timed`). Up to ten ranks the order returned is the best of all, unless the
    time limit comes first; `Placement.proven` says which. It is never worse than the order given: rank r on
    host slot r.

    Parameters
    ----------
    topology : Topology or Probe
        The hosts: rank r of the topology is host slot r.
    collective : str
        What is run, e.g. ``"allreduce"``, ``"allgather"`` or ``"alltoall"``.
    algorithm : str, Schedule or Program
        ``"ring"``, ``"rings:4"``, ``"double-tree"``, ``"halving-doubling"``, ``"pairwise"``,
        ``"hierarchical:8"`` (groups of 8 ranks; by default of a node, where nodes are alike); or a schedule
        or program of ours, for as many ranks.
    size : int or str
        The larger of one rank's input and output buffer, e.g. ``"100MB"``.
    time_limit_s : float
        When to stop searching; Ctrl-C stops it too, and the best so far is returned.
    seed : int
        Of the search: the same order each time, unless the time limit cuts it.
    progress : callable, optional
        Told what is going on, and the best time in microseconds and the bound so far.

    Raises
    ------
    InputError
        If the algorithm does not do the collective, or not for so many ranks.
    TopologyError
        If no links lead from one rank to another.
    """
    case, deadline = Case(topology, collective, algorithm, size), Deadline.after(time_limit_s)
    count = case.problem.topology.num_ranks
    given = tuple(range(count))
    before, bound = (case.ticks(each, compiled=not case.is_small) for each in (given, [-1] * count))
    if before > bound:
        bound = max(bound, case.fabric.least_crossing(case.messages))
    best, after, proven = given, before, before <= bound * (1 + _NOTHING)
    if not proven:

        def tell(_seconds: float, doing: str, _part: float | None) -> None:
            if progress is not None:
                progress(doing or "placing ranks", case.us(before), case.us(bound))

        def work() -> tuple[tuple[int, ...], int, bool]:
            found = case.search(given, seed, deadline)
            return case.prove(found, deadline) if count <= _PROVABLE else (*found, False)

        # Nothing better may be known yet, as kernels are compiled when they are first called.
        with suppress(OutOfTime):
            best, after, proven = deadline.run(work, tell=tell)
    if after >= before * (1 - _NOTHING):
        best, after = given, before
    bound = max(bound, after) if proven else min(bound, after)
    return Placement(
        case.problem.topology, case.algorithm, case.size_bytes, best, case.us(before), case.us(after),
        case.us(bound), proven, (case.limits(given, before), case.limits(best, after)),
        case.fabric.distance(int(case.messages.units.max())) / case.problem.costs.ticks_per_us,
    )  # fmt: skip


class Case:
    """One algorithm on one topology, as arrays; parameters and errors as in `reorder`."""

    def __init__(
        self, topology: Topology | Probe, collective: str, algorithm: str | Schedule | Program, size: Size
    ) -> None:
        topology = topology.topology() if isinstance(topology, Probe) else topology
        count, self.size_bytes = topology.num_ranks, parse_size(size, where="size")
        if isinstance(algorithm, Program):
            algorithm = lift(algorithm, topology=topology, size=self.size_bytes)
        if isinstance(algorithm, Schedule):
            self.algorithm = of_schedule(algorithm)
        else:
            sizes = {len(ranks) for ranks in topology.ranks_of_node}
            alike = len(sizes) == 1 and 1 < min(sizes) < count
            self.algorithm = stock(algorithm, collective, count, group=min(sizes) if alike else None)
        num_ranks = self.algorithm.collective.num_ranks
        if num_ranks != count:
            said = f"found a schedule of {num_ranks} ranks for {count} hosts; make them equal"
            raise InputError(said, where="algorithm")
        self.problem = problem_of(self.algorithm, topology, self.size_bytes)
        self.messages, self.fabric = as_messages(self.algorithm, self.problem), HostFabric(self.problem)
        self.relaxed = self.fabric.relaxed(self.messages)
        self.arrays = self.messages, self.fabric.paths, self.relaxed
        self.is_small = len(self.messages.src) <= _FEW_MESSAGES

    def room(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Room for one thread."""
        resources = len(self.fabric.paths.name) + 2 * self.fabric.num_hosts
        return np.zeros(len(self.messages.src), dtype=np.int64), np.zeros(resources, dtype=np.int64)

    def us(self, ticks: int) -> float:
        """Ticks as microseconds."""
        return float(self.problem.costs.us(ticks))

    def ticks(self, order: Sequence[int], *, compiled: bool = True) -> int:
        """The time of an order; of one that is all open (-1), what none can beat."""
        function = timed if compiled else getattr(timed, "py_func", timed)
        return int(function(*self.arrays, np.array(order, dtype=np.int64), TOO_LONG, *self.room()))

    def limits(self, order: Sequence[int], finish: int) -> tuple[str, float]:
        """The resource that is busy for longest, and for which part of the time."""
        most, ticks = self.fabric.busiest(self.messages, np.array(order))
        return self.problem.topology.resources[most].name, ticks / finish

    def search(
        self, given: Sequence[int], seed: int, deadline: Deadline = NEVER
    ) -> tuple[tuple[int, ...], int]:
        """The best order found by changes to the given one, or to one with near hosts together; its ticks."""
        # By what must follow a message an order is given up once it cannot be good.
        tails(self.messages, self.relaxed.anywhere[self.relaxed.kind], self.relaxed.tail)
        nested = nested_order(self.fabric.distance(int(self.messages.units.max())))
        start = min(given, nested, key=self.ticks)
        tries = min(_MOST_TRIES, max(_FEWEST_TRIES, _MOST_MESSAGES // len(self.messages.src)))

        def work(warmth: float, signal: NDArray[np.int64]) -> tuple[tuple[int, ...], int]:
            orders = np.tile(np.array(start, dtype=np.int64), (3, 1))
            draws = np.random.default_rng((seed, int(warmth * 1e6))).random((tries, 5))
            ticks = anneal(*self.arrays, orders, signal, draws, warmth, self.room())
            return tuple(orders[0].tolist()), int(ticks)

        signals = [np.zeros(2, dtype=np.int64) for _ in _WARMTHS]
        with ExitStack() as stack, ThreadPoolExecutor(len(_WARMTHS)) as pool:
            for signal in signals:
                stack.enter_context(deadline.stopping(signal))
            stack.enter_context(deadline.scope("placing ranks"))
            return min(pool.map(work, _WARMTHS, signals), key=lambda found: found[1])

    def prove(
        self, found: tuple[tuple[int, ...], int], deadline: Deadline
    ) -> tuple[tuple[int, ...], int, bool]:
        """The best order of all and its ticks, unless the deadline comes first; and whether it is that."""
        orders = np.tile(np.array(found[0], dtype=np.int64), (3, 1))
        signal = np.zeros(2, dtype=np.int64)
        with deadline.stopping(signal), deadline.scope("proving that no order is better"):
            ticks = prove(*self.arrays, orders, signal, found[1], *self.room())
        return tuple(orders[0].tolist()), int(ticks), bool(signal[1])
