"""Schedules of exchanges whose sizes change from call to call, as those of a mixture of experts do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taccl._internal.arguments import Bytes, Count, Natural, checked
from taccl.analysis.verification.verify import verify
from taccl.errors import InputError
from taccl.problem.alltoallv import alltoallv_problem
from taccl.schedule.schedule import Schedule
from taccl.synthesis.proposers.large import schedule_large, why_not

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from taccl.topology.topology import Topology


@checked
class AllToAllV:
    """Scheduler of exchanges over one topology: a verified schedule for each matrix of sizes.

    Chunks of a pair with much data take ways over other ranks and their NICs, so that all NICs of a node are
    about as busy. What is known of the topology is worked out once. `taccl.synthesize` takes longer, and may
    find a schedule that finishes sooner.

    Parameters
    ----------
    topology : Topology
        What the data goes over.
    chunk_bytes : int, optional
        Bytes of a chunk, at most; as of `taccl.alltoallv_problem`.
    num_orders : int
        Orders of sends that are tried. Each takes about as long as the first.
    seed : int
        Of the order in which routes are searched.

    References
    ----------
    Lei et al., "FAST: An Efficient Scheduler for All-to-All GPU Communication", arXiv 2505.09764 (2025), for
    the problem: skewed exchanges that balance inside nodes before they go between them.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        chunk_bytes: Bytes | None = None,
        num_orders: Count = 1,
        seed: Natural = 0,
    ) -> None:
        self.topology, self.chunk_bytes, self.num_orders, self.seed = topology, chunk_bytes, num_orders, seed

    @checked
    def schedule(self, sizes: ArrayLike) -> Schedule:
        """A verified schedule of an exchange.

        Parameters
        ----------
        sizes : (num_ranks, num_ranks) array_like of int
            Bytes from the row's rank to the column's.

        Raises
        ------
        CollectiveError
            If the matrix is not one of whole bytes with a row and a column for each rank.
        InputError
            If the topology has links of several ends.
        """
        problem = alltoallv_problem(self.topology, sizes, chunk_bytes=self.chunk_bytes)
        if said := why_not(problem):
            raise InputError(f"found {said}; taccl.synthesize schedules this exchange", where="topology")
        found = schedule_large(problem, num_runs=self.num_orders, seed=self.seed)
        verify(found).raise_if_failed()
        return found

    def __repr__(self) -> str:
        return f"AllToAllV({self.topology.name})"
