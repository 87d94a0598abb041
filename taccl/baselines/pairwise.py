"""Pairwise exchange: every chunk straight from where it starts to where it ends."""

from __future__ import annotations

from collections import defaultdict
from itertools import groupby
from typing import TYPE_CHECKING

from taccl.arguments import checked
from taccl.baselines.cut import cut_while_it_pays
from taccl.baselines.spread import Spread, require_no_derivations, run

if TYPE_CHECKING:
    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule


@checked
def pairwise(problem: Problem, *, cut: bool = True) -> Schedule:
    """A schedule in which, in step s, rank r sends to rank r + s what starts at r and ends at r + s.

    Where no link joins the two, the chunks are relayed over a shortest route. The sketch is left aside, but
    for merging.

    Parameters
    ----------
    problem, cut
        As in `ring`.

    Raises
    ------
    CollectiveError
        If the collective is a scan.
    TopologyError
        If no links lead from one rank to another.

    References
    ----------
    R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in MPICH",
    International Journal of High Performance Computing Applications 19 (2005): long-message alltoall. The
    NVIDIA Collective Communications Library sends alltoall in the same order.
    """
    require_no_derivations(problem, baseline="pairwise")
    return cut_while_it_pays(problem, lambda each: run(each, _exchange), cut=cut)


def _exchange(problem: Problem) -> Schedule:
    spread = Spread(problem)
    num_ranks = problem.topology.num_ranks
    chunks_of_pair: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for c, chunk in enumerate(problem.collective.chunks):
        src = chunk.origins[0]
        for dst in chunk.destinations:
            chunks_of_pair[(dst - src) % num_ranks, src, dst].append(c)
    by_shift = groupby(sorted(chunks_of_pair.items()), key=lambda item: item[0][0])
    for shift, pairs in by_shift:
        if shift:
            spread.step([(chunks, src, dst) for (_, src, dst), chunks in pairs])
    return spread.schedule(producer="pairwise")
