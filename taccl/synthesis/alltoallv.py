"""Schedules of all-to-all exchanges whose sizes change from call to call, such as in a mixture of experts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from taccl._internal.arguments import Bytes, Count, Natural, checked
from taccl.analysis.verification.verify import verify
from taccl.errors import InputError
from taccl.problem.alltoallv import (
    alltoallv_problem,
    borders_of,
    default_chunk_bytes,
    usual_chunk_bytes,
)
from taccl.problem.byte_matrices import checked_sizes
from taccl.schedule.schedule import Schedule
from taccl.sketch.reachability import check_reachable
from taccl.synthesis.problems import asked_topology, exchange_under
from taccl.synthesis.proposers.large import schedule_large, why_not

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from taccl.problem.alltoallv import Borders
    from taccl.topology.topology import Topology

#: `_STEP`: ratio of successive chunk sizes that are tried.
#: `_MOST_CHUNKS`: max number of chunks for chunk sizes below `usual_chunk_bytes`.
#: `_ENOUGH`: ratio of the finish to the lower bound (`Borders`) at which the search ends.
_STEP, _MOST_CHUNKS, _ENOUGH = 4, 30_000, 1.02
#: `_FACTORS`: divisors of the usual chunk size for further ones, of at most `_FEW_CHUNKS` chunks (10 ms).
_FACTORS, _FEW_CHUNKS = (2, 8, 16), 2000


@checked
class AllToAllV:
    """Scheduler of exchanges over one topology: a verified schedule for each matrix of sizes.

    Chunks of pairs with much data are routed over other ranks and their NICs, so that all NICs of a node are
    about equally busy. The topology is prepared once. Several chunk sizes and orders of sends are tried,
    until a schedule is within 2 % of a bound. `taccl.synthesize` takes longer, and may find a better one.

    Parameters
    ----------
    topology : Topology or str
        The topology that carries the data, or a machine or fabric by name.
    nodes, profile, protocol
        As for `taccl.make_problem`. A machine by name has the fastest protocol for each matrix, as in
        `taccl.alltoallv_problem`; this choice takes 0.2 s of CPU or more for each.
    chunk_bytes : int, optional
        Max bytes of a chunk; see `taccl.alltoallv_problem`.
    num_orders : int
        Max orders of sends tried for each chunk size. The time grows in proportion.
    seed : int
        Seed of the order in which routes are searched.

    References
    ----------
    Lei et al., "FAST: An Efficient Scheduler for All-to-All GPU Communication", arXiv 2505.09764 (2025), for
    the problem: skewed exchanges that balance inside nodes before they go between them.
    """

    def __init__(
        self,
        topology: Topology | str,
        *,
        nodes: Count | None = None,
        profile: str | None = None,
        protocol: str | None = None,
        chunk_bytes: Bytes | None = None,
        num_orders: Count = 3,
        seed: Natural = 0,
    ) -> None:
        self.topology, self._protocol = asked_topology(
            topology, nodes=nodes, profile=profile, protocol=protocol
        )
        self.chunk_bytes, self.num_orders, self.seed = chunk_bytes, num_orders, seed
        #: {protocol: topology under it, with its borders}, for those protocols that were chosen.
        self._prepared: dict[str, tuple[Topology, Borders]] = {}

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
            If the topology has hyperedges (multicast or reduction links), or no path for some data.
        """
        table = checked_sizes(sizes, self.topology.num_ranks, self.topology.name)
        protocol, notes = self._chosen(table)
        topology, borders = self._prepared.get(protocol) or self._prepare(protocol)
        enough_us = _ENOUGH * borders.least_us(table)
        best: Schedule | None = None
        finish_us: dict[int, float] = {}
        for chunk_bytes in self._chunk_sizes(topology, table, finish_us):
            problem = alltoallv_problem(topology, table, chunk_bytes=chunk_bytes)
            problem = replace(problem, notes=(*problem.notes, *notes)) if notes else problem
            if said := why_not(problem):
                raise InputError(f"found {said}; taccl.synthesize schedules this exchange", where="topology")
            if math.isinf(enough_us):  # a rank or a node has data, but no links for them
                check_reachable(problem)
            target_ticks = math.floor(enough_us * problem.costs.ticks_per_us)
            found = schedule_large(
                problem, num_runs=self.num_orders, seed=self.seed, target_ticks=target_ticks
            )
            finish_us[chunk_bytes] = found.finish_us
            if best is None or found.finish < best.finish:
                best = found
            if best.finish_us <= enough_us:
                break
        assert best is not None, "there is at least one size of chunks"
        verify(best).raise_if_failed()
        return best

    def _chosen(self, table: NDArray[np.int64]) -> tuple[str, tuple[str, ...]]:
        """(protocol for a matrix, notes on its choice), or (the topology's own protocol, no notes)."""
        if self._protocol != "auto" or len(self.topology.protocols) < 2:
            return self.topology.protocol, ()
        problem = exchange_under(self.topology, table, "auto", chunk_bytes=self.chunk_bytes)
        return problem.topology.protocol, problem.protocol_notes()

    def _prepare(self, protocol: str) -> tuple[Topology, Borders]:
        """Add the topology under a protocol to `_prepared`, and return it with its borders."""
        own = protocol == self.topology.protocol
        topology = self.topology if own else self.topology.under(protocol)
        self._prepared[protocol] = topology, borders_of(topology)
        return self._prepared[protocol]

    def _chunk_sizes(
        self, topology: Topology, table: NDArray[np.int64], finish_us: Mapping[int, float]
    ) -> Iterator[int]:
        """Yield chunk sizes in bytes: the usual, a smaller, a still smaller or a larger one, then others.

        - `topology`: The topology under the protocol of the matrix.
        - `finish_us`: {chunk size: finish in us} of those yielded before.
        """
        if self.chunk_bytes is not None:
            yield self.chunk_bytes
            return
        largest = max(1, int(table.max(initial=0)))  # all larger sizes give one chunk per pair
        usual = usual_chunk_bytes(topology, table)
        first, smaller = min(usual, largest), max(1, usual // _STEP)
        yield first
        if smaller < first and (-(-table // smaller)).sum() <= _MOST_CHUNKS:
            yield smaller
        pays = finish_us.get(smaller, finish_us[first]) < finish_us[first]
        third = max(1, smaller // _STEP) if pays else min(_STEP * usual, largest)
        default = min(default_chunk_bytes(topology, table), largest)
        others = [min(max(1, usual // factor), largest) for factor in _FACTORS]
        for some, most_chunks in (((third, default), _MOST_CHUNKS), (others, _FEW_CHUNKS)):
            for each in some:
                if each not in finish_us and (each >= first or (-(-table // each)).sum() <= most_chunks):
                    yield each

    def __repr__(self) -> str:
        return f"AllToAllV({self.topology.name})"
