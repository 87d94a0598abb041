"""Recursive doubling, and halving as its reverse."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from taccl.arguments import checked
from taccl.baselines.cut import cut_while_it_pays
from taccl.baselines.one_shot import NamedSteps, sums_everywhere
from taccl.baselines.spread import Spread, chunks_of_starts, fastest, require_no_derivations, run
from taccl.errors import CollectiveError

if TYPE_CHECKING:
    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule

__all__ = ["recursive"]


@checked
def recursive(problem: Problem, *, cut: bool = True) -> Schedule:
    """A schedule in which ranks exchange all they hold with one partner a step, log2(num_ranks) steps.

    Partners differ in one bit of their rank. Of the two orders of bits, near or far partners first, the
    faster is returned, and its `producer` names it. An allreduce is done by halving and doubling, or, where
    that is faster, by doubling alone: partners exchange all of what they summed so far. The sketch is left
    aside, but for merging.

    A broadcast becomes a binomial tree, an alltoall a hypercube exchange.

    Parameters
    ----------
    problem, cut
        As in `ring`.

    Raises
    ------
    CollectiveError
        If the number of ranks is not a power of two, or the collective is a scan.
    TopologyError
        If no links lead from one rank to another.

    References
    ----------
    R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in MPICH",
    International Journal of High Performance Computing Applications 19 (2005).
    """
    require_no_derivations(problem, baseline="recursive")
    num_ranks = problem.topology.num_ranks
    if num_ranks & (num_ranks - 1):
        raise CollectiveError(
            f"recursive needs a power of two, and found {num_ranks} ranks; use ring or hierarchical",
            where="baseline",
        )
    return cut_while_it_pays(problem, _fastest_order, cut=cut)


def _fastest_order(problem: Problem) -> Schedule:
    bits = range(problem.topology.num_ranks.bit_length() - 1)
    orders = {"near partners first": tuple(bits), "far partners first": tuple(reversed(bits))}
    schedules = [run(problem, partial(_exchange, order=name, bits=each)) for name, each in orders.items()]
    if sums_everywhere(problem):
        schedules += [_doubling(problem, order=name, bits=each) for name, each in orders.items()]
    return fastest(schedules)


def _doubling(problem: Problem, *, order: str, bits: tuple[int, ...]) -> Schedule:
    steps, chunks = NamedSteps(problem), range(problem.collective.num_chunks)
    summed: list[tuple[int, ...]] = [(rank,) for rank in range(problem.topology.num_ranks)]
    for bit in bits:
        steps.step([(chunks, rank, rank ^ (1 << bit), ranks) for rank, ranks in enumerate(summed)])
        summed = [(*ranks, *summed[rank ^ (1 << bit)]) for rank, ranks in enumerate(summed)]
    return steps.schedule(producer=f"recursive doubling ({order})")


def _exchange(problem: Problem, *, order: str, bits: tuple[int, ...]) -> Schedule:
    spread = Spread(problem)
    held = chunks_of_starts(problem)
    for bit in bits:
        spread.step([(chunks, rank, rank ^ (1 << bit)) for rank, chunks in enumerate(held)])
        # What a rank held longest goes first in the next step.
        held = [[*chunks, *held[rank ^ (1 << bit)]] for rank, chunks in enumerate(held)]
    return spread.schedule(producer=f"recursive ({order})")
