"""Schedules of all-to-all exchanges whose sizes change from call to call, such as in a mixture of experts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from taccl._internal.arguments import Bytes, Count, Natural, checked
from taccl.analysis.verification.verify import verify
from taccl.errors import InputError
from taccl.problem.alltoallv import alltoallv_problem, checked_sizes, usual_chunk_bytes
from taccl.problem.costs import HoldColumns, hold_columns, link_ends
from taccl.schedule.schedule import Schedule
from taccl.synthesis.proposers.large import schedule_large, why_not

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from taccl.topology.topology import Topology

#: `_SHARES`: chunk sizes to try, in order, as multiples of the usual size.
#: `_MOST_CHUNKS`: max number of chunks for sizes below the usual one.
#: `_ENOUGH`: ratio of the finish to the lower bound (`Borders`) at which the search ends.
_SHARES, _MOST_CHUNKS, _ENOUGH = (1.0, 0.25, 4.0, 0.0625), 30_000, 1.045


@checked
class AllToAllV:
    """Scheduler of exchanges over one topology: a verified schedule for each matrix of sizes.

    Chunks of pairs with much data are routed over other ranks and their NICs, so that all NICs of a node are
    about equally busy. The topology is prepared once. Several chunk sizes and orders of sends are tried,
    until a schedule is within 4.5 % of a bound. `taccl.synthesize` takes longer, and may find a better one.

    Parameters
    ----------
    topology : Topology
        The topology that carries the data.
    chunk_bytes : int, optional
        Max bytes of a chunk; see `taccl.alltoallv_problem`.
    num_orders : int
        Max orders of sends tried for each chunk size. Each takes about as long as the first.
    seed : int
        Seed of the order in which routes are searched.

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
        num_orders: Count = 3,
        seed: Natural = 0,
    ) -> None:
        self.topology, self.chunk_bytes, self.num_orders, self.seed = topology, chunk_bytes, num_orders, seed
        self._borders = Borders(topology)

    @checked
    def schedule(self, sizes: ArrayLike) -> Schedule:
        """Schedule an all-to-all exchange of the given sizes, and verify the schedule.

        Parameters
        ----------
        sizes : (num_ranks, num_ranks) array_like of int
            Bytes from the row's rank to the column's rank.

        Raises
        ------
        CollectiveError
            If the matrix does not consist of whole bytes with a row and a column for each rank.
        InputError
            If the topology has hyperedges (multicast or reduction links).
        """
        table = checked_sizes(sizes, self.topology.num_ranks, self.topology.name)
        enough_us = _ENOUGH * self._borders.least_us(table)
        best: Schedule | None = None
        for chunk_bytes in self._chunk_sizes(table):
            problem = alltoallv_problem(self.topology, table, chunk_bytes=chunk_bytes)
            if said := why_not(problem):
                raise InputError(f"found {said}; taccl.synthesize schedules this exchange", where="topology")
            target_ticks = math.floor(enough_us * problem.costs.ticks_per_us)
            found = schedule_large(
                problem, num_runs=self.num_orders, seed=self.seed, target_ticks=target_ticks
            )
            if best is None or found.finish < best.finish:
                best = found
            if best.finish_us <= enough_us:
                break
        assert best is not None, "there is at least one size of chunks"
        verify(best).raise_if_failed()
        return best

    def _chunk_sizes(self, table: NDArray[np.int64]) -> list[int]:
        """Chunk sizes to try, in bytes, in order."""
        if self.chunk_bytes is not None:
            return [self.chunk_bytes]
        usual = usual_chunk_bytes(self.topology, table)
        sizes = dict.fromkeys(max(1, int(usual * share)) for share in _SHARES)
        return [each for each in sizes if each >= usual or (-(-table // each)).sum() <= _MOST_CHUNKS]

    def __repr__(self) -> str:
        return f"AllToAllV({self.topology.name})"


class Borders:
    """Max rates and min latencies of data that leave or enter each rank and each node, for a lower bound."""

    def __init__(self, topology: Topology) -> None:
        inside = np.eye(topology.num_ranks, dtype=bool)
        if 1 < topology.num_nodes < topology.num_ranks:
            nodes = np.array(topology.node_of_rank) == np.arange(topology.num_nodes)[:, None]
            inside = np.concatenate([inside, nodes])
        self.inside = inside
        src, dst = link_ends(topology)
        borders = inside[:, src] & ~inside[:, dst], inside[:, dst] & ~inside[:, src]
        holds, betas = hold_columns(topology), [float(hold.beta_us_per_mb) for hold in topology.holds]
        rates = np.array([10**6 / beta if beta else math.inf for beta in betas])
        alphas = np.array([float(link.alpha_us) for link in topology.links])
        #: Max bytes per us (`rate`) and min latency in us (`lag`) of data that leave (first array) or enter
        #: (second array) each rank, then each node.
        self.rate = [np.array([_rate_across(each, holds, rates) for each in border]) for border in borders]
        self.lag = [np.where(border, alphas, math.inf).min(axis=1, initial=math.inf) for border in borders]

    def least_us(self, table: NDArray[np.int64]) -> float:
        """Lower bound in us on the time of an all-to-all exchange; `table` has the bytes per rank pair."""
        within = (self.inside @ table * self.inside).sum(axis=1)
        crossing = self.inside @ table.sum(axis=1) - within, self.inside @ table.sum(axis=0) - within
        return max(
            float(np.max(num_bytes / rate + lag, where=num_bytes > 0, initial=0.0))
            for num_bytes, rate, lag in zip(crossing, self.rate, self.lag, strict=True)
        )


def _rate_across(crosses: NDArray[np.bool_], holds: HoldColumns, rates: NDArray[np.float64]) -> float:
    """Upper bound in bytes per us on the joint rate of the links in `crosses`, each limited by one resource.

    Links are assigned to resources greedily: a resource that more links use comes first. Infinite without
    links, as no data crosses then.

    - `crosses`, (num_links,): True for the links whose joint rate is bounded.
    - `rates`, (num_holds,): Bytes per us of a link on a resource, for each row of `holds`.
    """
    rows = np.flatnonzero(crosses[holds.link])
    link, resource, rates = holds.link[rows], holds.resource[rows], rates[rows]
    total = 0.0
    while len(link):
        chosen = resource == np.bincount(resource).argmax()
        total += float(rates[chosen].max())
        left = ~np.isin(link, link[chosen])
        link, resource, rates = link[left], resource[left], rates[left]
    return total or math.inf
