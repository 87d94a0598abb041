"""Recursive doubling, and halving as its reverse."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from taccl.arguments import checked
from taccl.baselines.cut import cut_while_it_pays
from taccl.baselines.one_shot import NamedSteps, sums_everywhere
from taccl.baselines.spread import Spread, chunks_of_starts, fastest, require_no_derivations, run
from taccl.errors import CollectiveError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule

#: Step by step, in turns: the partner of every rank.
Steps = list[list[list[int]]]

#: The chunks that go to a rank in the step of a number, or that it keeps for later ones; None for all.
BoundFor = Callable[[int, int, bool], Collection[int] | None]


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
    require_power_of_two(problem, baseline="recursive")
    return cut_while_it_pays(problem, _fastest_order, cut=cut)


def require_power_of_two(problem: Problem, *, baseline: str) -> None:
    """Raise `CollectiveError` unless ranks can be halved down to one, and chunks are not derived."""
    require_no_derivations(problem, baseline=baseline)
    num_ranks = problem.topology.num_ranks
    if num_ranks & (num_ranks - 1):
        raise CollectiveError(
            f"{baseline} needs a power of two, and found {num_ranks} ranks; use ring or hierarchical",
            where="baseline",
        )


def exchange(
    problem: Problem, parts: Sequence[Steps], *, producer: str, bound_for: BoundFor | None = None
) -> Schedule:
    """Any problem by exchanges of all that partners hold; each part of the chunks has steps of its own.

    - `bound_for`: The chunks that, in the step of a number, go to a rank, or that it keeps. Default: all.
    """
    return run(problem, partial(_spread, parts=parts, producer=producer, bound_for=bound_for))


def doubling(problem: Problem, steps: Steps, *, producer: str) -> Schedule:
    """An allreduce in which partners exchange all of what they summed so far."""
    named, chunks = NamedSteps(problem), range(problem.collective.num_chunks)
    summed: list[tuple[int, ...]] = [(rank,) for rank in range(problem.topology.num_ranks)]
    for (partners,) in steps:
        named.step([(chunks, rank, partners[rank], ranks) for rank, ranks in enumerate(summed)])
        summed = [(*ranks, *summed[partners[rank]]) for rank, ranks in enumerate(summed)]
    return named.schedule(producer=producer)


def both_orders(problem: Problem, steps: Steps, *, name: str) -> Schedule:
    """The fastest of exchanges with near or far partners first; of an allreduce, doublings beside them."""
    orders = {"near partners first": steps, "far partners first": steps[::-1]}
    schedules = [exchange(problem, [each], producer=f"{name} ({order})") for order, each in orders.items()]
    if sums_everywhere(problem):
        schedules += [
            doubling(problem, each, producer=f"{name} doubling ({order})") for order, each in orders.items()
        ]
    return fastest(schedules)


def _fastest_order(problem: Problem) -> Schedule:
    ranks = range(problem.topology.num_ranks)
    steps = [[[rank ^ (1 << bit) for rank in ranks]] for bit in range(len(ranks).bit_length() - 1)]
    return both_orders(problem, steps, name="recursive")


def _spread(
    problem: Problem, *, parts: Sequence[Steps], producer: str, bound_for: BoundFor | None
) -> Schedule:
    spread = Spread(problem)
    starts = chunks_of_starts(problem)
    held = [[chunks[part :: len(parts)] for chunks in starts] for part in range(len(parts))]
    for number, step in enumerate(zip(*parts, strict=True)):

        def bound(chunks: list[int], rank: int, *, keeps: bool = False, number: int = number) -> list[int]:
            some = None if bound_for is None else bound_for(number, rank, keeps)
            return chunks if some is None else [c for c in chunks if c in some]

        spread.step(
            (bound(chunks, partners[rank]), rank, partners[rank])
            for turns, of_part in zip(step, held, strict=True)
            for partners in turns
            for rank, chunks in enumerate(of_part)
        )
        # What a rank held longest goes first in the next step.
        held = [
            [
                [
                    *bound(chunks, rank, keeps=True),
                    *(c for partners in turns for c in bound(of_part[partners[rank]], rank)),
                ]
                for rank, chunks in enumerate(of_part)
            ]
            for turns, of_part in zip(step, held, strict=True)
        ]
    return spread.schedule(producer=producer)
