"""Time rank orders for one algorithm on one topology, and search for the best by compiled kernels."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arguments import Size
from taccl._internal.deadline import NEVER, Deadline
from taccl._internal.names import matching
from taccl._internal.units import parse_size
from taccl.errors import InputError
from taccl.placement.algorithms import ALGORITHMS, MOST_PIECES, Algorithm, of_schedule, stock
from taccl.placement.fabric import (
    NO_FLOWS,
    Flows,
    HostFabric,
    HostPaths,
    RankMessages,
    Relaxed,
    Room,
    as_messages,
    chunk_sizes,
    problem_of,
)
from taccl.placement.host_links import HostLinks
from taccl.placement.hosts import MEASURED, ProbedHosts
from taccl.placement.kernel import TOO_LONG, anneal, prove, tails, timed
from taccl.placement.probe import Probe
from taccl.program.lift import lift
from taccl.program.program import Program
from taccl.schedule.schedule import Schedule
from taccl.topology.builder import warn_of_assumptions
from taccl.topology.clusters import nested_order
from taccl.topology.topology import Topology

#: `_MOST_MESSAGES`: max messages timed in one search; long algorithms are timed in fewer rank orders.
#: `_FEWEST_TRIES`, `_MOST_TRIES`: minimum and maximum number of rank orders to try.
_MOST_MESSAGES, _FEWEST_TRIES, _MOST_TRIES = 10**8, 1500, 150_000
#: Initial temperature of each annealing run, as a part of the makespan.
_WARMTHS = (0.003, 0.01, 0.05)
#: Maximum number of messages for which plain Python times an order faster than numba compiles the kernel.
_FEW_MESSAGES = 12_000


class Case:
    """Timing and search of rank orders for one algorithm on one topology; parameters as in `reorder`.

    - `order`: Host of each rank. A double tree without a number of pieces gets the number that is fastest in
      this order.
    - `like`: A case of the same algorithm and size, whose messages are reused.
    - `only`: The only orders that `ticks` and `ends` will time; empty for no such limit. If hosts are
      measured and flows have many messages, paths that these orders do not use are left out.
    - `on_links`: True to count time in the ticks of the topology's links, as a schedule does.
    """

    def __init__(
        self,
        topology: Topology | Probe | ProbedHosts,
        collective: str,
        algorithm: str | Schedule | Program | Algorithm,
        size: Size,
        order: Sequence[int] | None = None,
        *,
        on_links: bool = False,
        like: Case | None = None,
        only: Sequence[Sequence[int]] = (),
    ) -> None:
        topology = self.hosts = _hosts_of(topology, _protocol_of(algorithm))
        count, self.size_bytes = topology.num_ranks, parse_size(size, where="size")
        if isinstance(algorithm, Program):
            algorithm = lift(algorithm, topology=self.topology, size=self.size_bytes)
        if isinstance(algorithm, Algorithm):
            self.algorithm = algorithm
        elif isinstance(algorithm, Schedule):
            self.algorithm = of_schedule(algorithm)
        else:
            sizes = {len(ranks) for ranks in topology.ranks_of_node}
            if matching(algorithm, ALGORITHMS) == "double-tree":
                algorithm = _with_pieces(topology, collective, self.size_bytes, order or range(count))
            alike = len(sizes) == 1 and 1 < min(sizes) < count
            self.algorithm = stock(algorithm, collective, count, group=min(sizes) if alike else None)
        num_ranks = self.algorithm.collective.num_ranks
        if num_ranks != count:
            said = f"found a schedule of {num_ranks} ranks for {count} hosts; make them equal"
            raise InputError(said, where="algorithm")
        if isinstance(topology, ProbedHosts) and not on_links:
            flows = like.relaxed.flows if like else NO_FLOWS
            used = np.full((count, count), not only or not len(flows.src))
            for each in np.array(only, dtype=np.int64):
                used[each[flows.src], each[flows.dst]] = True
            links = HostLinks.of_costs(topology.costs, chunk_sizes(self.algorithm, self.size_bytes), used)
        else:
            links = HostLinks.of_problem(problem_of(self.algorithm, self.topology, self.size_bytes))
        self.ticks_per_us = links.ticks_per_us
        self.chunk_units = links.chunk_units
        if like is not None and np.array_equal(like.chunk_units, self.chunk_units):
            self.messages: RankMessages = like.messages
            self.flows: Flows = like.flows
        else:
            self.messages, self.flows = as_messages(self.algorithm, self.chunk_units)
        self.fabric = HostFabric(links, self.messages)
        self.relaxed: Relaxed = self.fabric.relaxed(self.messages, self.flows)
        self.arrays = self.messages, self.fabric.paths, self.relaxed
        self.is_small = len(self.messages.src) <= _FEW_MESSAGES

    @cached_property
    def bounds(self) -> tuple[RankMessages, HostPaths, Relaxed]:
        """Arrays for the kernels, with tighter bounds for messages of open ranks (ranks without a host)."""
        return self.messages, self.fabric.paths, self.fabric.with_ports(self.relaxed, self.messages)

    @property
    def topology(self) -> Topology:
        """Topology of the hosts; for hosts measured by a probe, it is built at the first access."""
        return self.hosts.topology if isinstance(self.hosts, ProbedHosts) else self.hosts

    def room(self) -> Room:
        """Work arrays for one thread of the compiled kernels that compute the times of orders."""
        return self.fabric.room(self.messages, self.relaxed.flows)

    def us(self, ticks: int) -> float:
        """Convert ticks to microseconds."""
        return float(Fraction(int(ticks), self.ticks_per_us))

    def ticks(self, order: Sequence[int], *, compiled: bool = True, is_relaxed: bool = False) -> int:
        """Makespan of a rank order in ticks; if ranks are open (-1), a lower bound over all their hosts.

        - `compiled`: False to run the kernel as plain Python.
        - `is_relaxed`: True for a lower bound: a message holds each resource as soon as the resource is free.
        """
        return self._timed(order, self.room(), compiled, is_relaxed)

    def ends(self, order: Sequence[int]) -> NDArray[np.int64]:
        """End of each message under a rank order, in ticks; shape (num_messages,)."""
        room = self.room()
        self._timed(order, room, not self.is_small, False)
        return room.end

    def _timed(self, order: Sequence[int], room: Room, compiled: bool, is_relaxed: bool) -> int:
        messages, paths, relaxed = self.bounds if min(order) < 0 else self.arrays
        function = timed
        if not compiled:  # plain Python cannot call the inner kernels that copy the paths of flows
            function, relaxed = getattr(timed, "py_func", timed), relaxed._replace(flows=NO_FLOWS)
        hosts = np.array(order, dtype=np.int64)
        return int(function(messages, paths, relaxed, hosts, TOO_LONG, room, is_relaxed))

    def limits(self, order: Sequence[int], finish: int) -> tuple[str, float]:
        """Name of the busiest resource, and the share of the makespan (`finish`) for which it is busy."""
        most, ticks = self.fabric.busiest(self.messages, np.array(order))
        return most, ticks / finish

    @cached_property
    def nested(self) -> tuple[int, ...]:
        """Order of hosts by hierarchical clustering of their distances, near hosts together."""
        return tuple(nested_order(self.fabric.distance(int(self.messages.units.max()))))

    def search(
        self, given: Sequence[int], seed: int, deadline: Deadline = NEVER, *, effort: float = 1.0
    ) -> tuple[tuple[int, ...], int]:
        """Best order found by simulated annealing, and its makespan in ticks.

        The search starts from the better of `given` and `nested`.

        - `effort`: Part of the usual number of orders to try.
        """
        # Minimum time from the end of each message to the makespan, by which the search rejects orders early.
        tails(self.messages, self.relaxed.anywhere[self.messages.kind], self.relaxed.tail)
        start = min(given, self.nested, key=self.ticks)
        tries = min(_MOST_TRIES, max(_FEWEST_TRIES, _MOST_MESSAGES // len(self.messages.src)))
        tries = max(1, int(effort * tries))

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
        """Best order found by branch and bound, its makespan in ticks, and True if it is proven optimal."""
        orders = np.tile(np.array(found[0], dtype=np.int64), (3, 1))
        signal = np.zeros(2, dtype=np.int64)
        with deadline.stopping(signal), deadline.scope("proving optimality of the order"):
            ticks = prove(*self.bounds, orders, signal, found[1], self.room())
        return tuple(orders[0].tolist()), int(ticks), bool(signal[1])


def _hosts_of(topology: Topology | Probe | ProbedHosts, protocol: str) -> Topology | ProbedHosts:
    """Measured hosts of a probe, or of a topology made from one; otherwise the topology, under a protocol.

    - `protocol`: Protocol of messages; the topology's own if the topology does not know it.
    """
    if isinstance(topology, Probe):
        hosts = ProbedHosts(topology)
        warn_of_assumptions(hosts.name, hosts.costs.assumed)
        return hosts
    if isinstance(topology, ProbedHosts):
        return topology
    if protocol in topology.protocols:
        topology = topology.under(protocol)
    measured: Topology | ProbedHosts = topology.cache.get(MEASURED, topology)
    return measured


def _protocol_of(algorithm: str | Schedule | Program | Algorithm) -> str:
    """Protocol that a program states or a schedule was timed with; empty for other algorithms."""
    if isinstance(algorithm, Program):
        return algorithm.protocol.lower()
    return algorithm.problem.topology.protocol if isinstance(algorithm, Schedule) else ""


def _with_pieces(
    topology: Topology | ProbedHosts, collective: str, size_bytes: int, order: Sequence[int]
) -> str:
    """Name of a double-tree algorithm with the number of pieces that is fastest, a power of two.

    Few pieces save latency, many pipeline better. The search ends after two numbers in succession that are no
    faster.
    """
    best, best_us, slower, pieces = "", float("inf"), 0, 1
    while pieces <= MOST_PIECES and slower < 2 and 2 * pieces <= max(2, size_bytes):
        case = Case(topology, collective, f"double-tree:{pieces}", size_bytes)
        us = case.us(case.ticks(order, compiled=not case.is_small))
        slower = 0 if us < best_us else slower + 1
        if us < best_us:
            best, best_us = case.algorithm.name, us
        pieces *= 2
    return best
