"""Shares of the sums of an allreduce that are rooted at each rank, for spanning trees of least time.

An allreduce may complete each sum at any rank. The reduce phase brings all contributions to the roots. The
broadcast phase brings the sums back, so both phases pack spanning trees with the same roots. A set of ranks
that is slow to enter needs less time if more sums are rooted inside it. A linear program chooses the shares.
Its rows are sets of nodes with too little incoming capacity, which maximum flows find one by one.

References
----------
L. Zhao et al., "ForestColl", arXiv 2402.06787 (2024), on allreduce with a different weight for each root.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from taccl._internal.arrays import Flags, Floats
from taccl.problem.problem import Problem
from taccl.schedule.combine import broadcast_phase, reduce_phase
from taccl.solvers.highs import minimise
from taccl.synthesis.trees.network import Network, find_cut, network_of

#: `_GRID`: units into which all sums are divided; shares and capacities are rounded to it, for integer flows.
#: `_SLACK`: relative excess of capacities that makes up for the rounding.
_GRID, _SLACK = 2**20, 1e-5
#: Min relative reduction of the time for uneven shares to replace even ones.
_PAYS = 1e-3
#: Cost of the largest share, relative to the time for even shares, so that the most even optimum is chosen.
_EVEN = 1e-3
#: Max common denominator of exact shares; other shares are rounded to the grid.
_MOST_PARTS = 720
#: Max difference between a share and a fraction for which both count as equal.
_EQUAL = 1e-6


def has_free_roots(problem: Problem) -> bool:
    """True if each sum may be completed at any rank: contributions of all ranks, wanted by all ranks."""
    collective, num_ranks = problem.collective, problem.topology.num_ranks
    if not collective.sums_up or collective.updates:
        return False
    return all(len(each.origins) == len(each.destinations) == num_ranks for each in collective.chunks)


def root_shares(problem: Problem, is_late: Callable[[], bool]) -> tuple[Fraction, ...] | None:
    """Share of the sums rooted at each rank, for the least time of both phases in arbitrarily fine chunks.

    None if roots are not free, or even shares are as quick, or `is_late` became true.
    """
    if not has_free_roots(problem):
        return None
    networks = [network_of(phase(problem)) for phase in (reduce_phase, broadcast_phase)]
    found = [each for each in networks if each is not None]
    if len(found) < len(networks):
        return None
    rows = _Rows(found, problem.topology.num_ranks)
    for inside in _first_sets(problem):
        for phase, network in enumerate(found):
            rows.add(phase, np.concatenate((inside, np.zeros(network.num_nodes - len(inside), bool))))
    even = _with_all_cuts(rows, found, is_late, is_even=True)
    free = None if even is None else _with_all_cuts(rows, found, is_late, most=(1 - _PAYS) * sum(even[1]))
    return None if free is None else _as_fractions(free[0])


def with_roots(problem: Problem, shares: Sequence[Fraction]) -> Problem:
    """The problem with the sums rooted at ranks by their shares, rounded to whole sums."""
    chunks = problem.collective.chunks
    ends = np.rint(np.cumsum(np.array(shares, float)) * len(chunks)).astype(np.int64)
    roots = np.searchsorted(ends, np.arange(len(chunks)), side="right").tolist()
    pairs = list(zip(map(id, chunks), roots, strict=True))  # parts of a chunk are one object
    first = dict(zip(pairs, chunks, strict=True))
    made = {pair: replace(chunk, root=pair[1]) for pair, chunk in first.items()}
    rooted = tuple(map(made.__getitem__, pairs))
    return replace(problem, collective=replace(problem.collective, chunks=rooted))


class _Rows:
    """Rows of the linear program, one per set of nodes: rate into it * time + shares rooted in it >= 1."""

    def __init__(self, networks: Sequence[Network], num_ranks: int) -> None:
        self.num_ranks, self._networks = num_ranks, networks
        # For the solver's tolerances, rates are relative to the fastest arc, and times to its inverse.
        fastest = min((int(beta) for each in networks for beta in each.beta if beta), default=1)
        self.rates = [
            np.array([float(share * fastest / int(beta)) if beta else np.inf for share, beta in pairs])
            for pairs in (zip(each.share, each.beta, strict=True) for each in networks)
        ]
        self._phase: list[int] = []
        self._rate: list[float] = []
        self._inside: list[Flags] = []

    def add(self, phase: int, inside: Flags) -> None:
        """Add a set of nodes of a phase's network, unless data enters it without bandwidth cost."""
        network = self._networks[phase]
        rate = float(self.rates[phase][~inside[network.tail] & inside[network.head]].sum())
        if np.isfinite(rate):
            self._phase.append(phase)
            self._rate.append(rate)
            self._inside.append(inside[: self.num_ranks])

    def solve(self, even_cost: float, *, is_even: bool) -> tuple[Floats, list[float]] | None:
        """(share of each rank, time of each phase) of least time under the rows so far; None if not solved.

        - `even_cost`: Cost of the largest share.
        - `is_even`: True to give all ranks the same share.
        """
        n, count = self.num_ranks, len(self._rate)
        phases, rates = np.array(self._phase, np.int64), np.array(self._rate)
        row, rank = np.nonzero(np.array(self._inside))
        ranks, largest, caps = np.arange(n), n + len(self.rates), count + np.arange(n)
        entries = [(np.arange(count), n + phases, -rates), (row, rank, np.full(len(row), -1.0))]
        entries += [(caps, ranks, np.ones(n)), (caps, np.full(n, largest), np.full(n, -1.0))]
        entries += [(np.full(n, count + n), ranks, np.ones(n))]
        sums = [1.0]
        if is_even:
            entries += [(np.array([count + n + 1]), np.array([largest]), np.ones(1))]
            sums += [1.0 / n]
        cost = np.zeros(largest + 1)
        cost[n:largest], cost[largest] = 1.0, even_cost
        columns = tuple(map(np.concatenate, zip(*entries, strict=True)))
        upper = np.concatenate((np.full(count, -1.0), np.zeros(n)))
        found = minimise(cost, (columns[0], columns[1], columns[2]), (upper, sums), method="simplex")
        return None if found is None else (found.values[:n], found.values[n:largest].tolist())


def _first_sets(problem: Problem) -> list[Flags]:
    """Sets of ranks that often have the least incoming capacity: single ranks, and nodes."""
    num_ranks, node = problem.topology.num_ranks, np.array(problem.topology.node_of_rank)
    nodes = [node == each for each in np.unique(node)] if 1 < problem.topology.num_nodes < num_ranks else []
    return [*np.eye(num_ranks, dtype=bool), *nodes]


def _with_all_cuts(
    rows: _Rows,
    networks: Sequence[Network],
    is_late: Callable[[], bool],
    *,
    most: float = np.inf,
    is_even: bool = False,
) -> tuple[Floats, list[float]] | None:
    """(share of the sums at each rank, time of each phase) by a linear program with cutting planes.

    Sets of nodes whose capacity a solution exceeds are added as rows. None if the time exceeds `most`, or
    `is_late` became true.
    """
    while not is_late():
        even_cost = _EVEN * most if np.isfinite(most) else 0.0
        found = rows.solve(even_cost, is_even=is_even)
        if found is None or sum(found[1]) > most:
            return None
        shares, times = found
        counts = np.diff(np.rint(np.cumsum(shares) * _GRID), prepend=0.0).astype(np.int64)
        is_complete = True
        for phase, (network, needed) in enumerate(zip(networks, times, strict=True)):
            room = np.ceil(np.minimum(rows.rates[phase] * needed * (1 + _SLACK), 1.0) * _GRID + 1)
            inside = find_cut(network, room.astype(np.int64), counts, np.arange(rows.num_ranks))
            if inside is not None:
                rows.add(phase, inside)
                is_complete = False
        if is_complete:
            return found
    return None


def _as_fractions(shares: Floats) -> tuple[Fraction, ...]:
    """Exact fractions with a denominator of at most `_MOST_PARTS`, else multiples of 1 / `_GRID`."""
    for parts in (*range(1, _MOST_PARTS + 1), _GRID):
        whole = np.rint(shares * parts)
        if whole.sum() == parts and np.abs(whole / parts - shares).max() < _EQUAL:
            break
    else:
        whole = np.diff(np.rint(np.cumsum(shares) * _GRID), prepend=0.0)
    return tuple(Fraction(int(each), parts) for each in whole)
