"""Recursive doubling, swing and bine trees: ranks exchange all they hold with one partner a step.

Halving is doubling as its reverse. The partner of step s of recursive doubling is ``2**s`` away; that of
swing and bine comes, of an even rank, ``1 - 2 + 4 - ... (-2)**s`` after it, and of an odd rank as far before
it: a third less far, and on alternate sides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from taccl.arguments import checked
from taccl.baselines.routes import ShortestRoutes
from taccl.baselines.spread import (
    Steps,
    after_exchange,
    chunks_of_starts,
    cut_while_it_pays,
    fastest,
    require_no_derivations,
    run,
)
from taccl.errors import CollectiveError

if TYPE_CHECKING:
    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.topology.topology import Topology

#: Step by step, in turns: the partner of every rank.
Partners = list[list[list[int]]]

#: A number of every rank in a step, by whether chunks go or are kept: to a rank only those go, and it keeps
#: only those, whose destination has its number; None for all.
Numbers = Callable[[int, bool], Sequence[int] | None]


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
    _require_power_of_two(problem, baseline="recursive")
    ranks = range(problem.topology.num_ranks)
    steps = [[[rank ^ (1 << bit) for rank in ranks]] for bit in range(len(ranks).bit_length() - 1)]
    return cut_while_it_pays(
        problem, partial(_both_orders, steps=steps, name="recursive"), name="recursive", cut=cut
    )


@checked
def swing(problem: Problem, *, cut: bool = True) -> Schedule:
    """A schedule in which ranks exchange with partners that swing from one side to the other, log2 of them.

    One half of the chunks goes to partners on the one side first, the other half on the other, so that both
    directions of a ring are used. On several nodes of one size, nodes and ranks in a node make a grid, as a
    torus cut into nodes by its rows does: partners are by turns in another node and in the same, and the
    chunks have four parts. They spread to far partners first, and sums come from near ones first, as what is
    exchanged with near partners is most. An allreduce is done so, or, where that is faster, by exchanging
    all of what was summed so far. The sketch is left aside, but for merging.

    Parameters
    ----------
    problem, cut
        As in `ring`; chunks are cut so that there are some for every part.

    Raises
    ------
    CollectiveError, TopologyError
        As in `recursive`.

    References
    ----------
    D. De Sensi, T. Bonato, D. Saam and T. Hoefler, "Swing: short-cutting rings for higher bandwidth
    allreduce", NSDI 2024, arXiv:2401.09356.
    """
    _require_power_of_two(problem, baseline="swing")
    parts = _parts(problem.topology)

    def swung(problem: Problem) -> Schedule:
        schedules = [exchange(problem, [steps[::-1] for steps in parts], producer="swing")]
        if _sums_everywhere(problem) and _doubling_us(problem, parts[0]) < schedules[0].finish_us:
            schedules.append(doubling(problem, parts[0], producer="swing doubling"))
        return fastest(schedules)

    return cut_while_it_pays(problem, swung, name="swing", cut=cut)


@checked
def bine(problem: Problem, *, cut: bool = True) -> Schedule:
    """A schedule in which chunks go along binomial trees whose edges are short: those of negabinary numbers.

    The trees of all roots together are exchanges with the partners of `swing`, near or far ones first: the
    faster is returned, and its `producer` names it. Of an allreduce doublings are tried, too, as in
    `recursive`. The sketch is left aside, but for merging.

    Parameters
    ----------
    problem, cut
        As in `ring`.

    Raises
    ------
    CollectiveError, TopologyError
        As in `recursive`.

    References
    ----------
    D. De Sensi et al., "Bine trees: enhancing collective operations by optimizing communication locality",
    SC 2025, arXiv:2508.17311.
    """
    _require_power_of_two(problem, baseline="bine")
    size = problem.topology.num_ranks
    steps = [[[swing_partner(r, step, size) for r in range(size)]] for step in range(size.bit_length() - 1)]
    return cut_while_it_pays(problem, partial(_both_orders, steps=steps, name="bine"), name="bine", cut=cut)


def exchange(
    problem: Problem, parts: Sequence[Partners], *, producer: str, numbers: Numbers = lambda *_: None
) -> Schedule:
    """Any problem by exchanges of all that partners hold; each part of the chunks has steps of its own."""
    return run(problem, partial(_spread, parts=parts, producer=producer, numbers=numbers))


def doubling(problem: Problem, steps: Partners, *, producer: str) -> Schedule:
    """An allreduce in which partners exchange all of what they summed so far."""
    sums, chunks = Steps(problem), range(problem.collective.num_chunks)
    summed: list[tuple[int, ...]] = [(rank,) for rank in range(problem.topology.num_ranks)]
    for turns in steps:
        moves = [(chunks, *ends) for partners in turns for ends in enumerate(partners)]
        sums.step(moves, lambda rank, _: summed[rank])
        summed = after_exchange(summed, turns)
    return sums.schedule(producer=producer)


def _doubling_us(problem: Problem, steps: Partners) -> float:
    """Time for which the bytes of `doubling` keep the busiest resource busy."""
    routes, held = ShortestRoutes.of(problem), problem.topology.holds_of_link
    us_per_mb = np.zeros(len(problem.topology.resources))
    for ends in (ends for turns in steps for partners in turns for ends in enumerate(partners)):
        for hold in (hold for link in routes.route(*ends) for hold in held[link]):
            us_per_mb[hold.resource] += float(hold.beta_us_per_mb)
    return float(us_per_mb.max(initial=0)) * sum(problem.chunk_bytes) / 1e6


def swing_partner(place: int, step: int, size: int, *, mirrored: bool = False) -> int:
    """The place, of `size` on a ring, that exchanges with a place in a step."""
    distance: int = sum((-2) ** i for i in range(step + 1))
    return (place + (distance if place % 2 == mirrored else -distance)) % size


def _require_power_of_two(problem: Problem, *, baseline: str) -> None:
    """Raise `CollectiveError` unless ranks can be halved down to one, and chunks are not derived."""
    require_no_derivations(problem, baseline=baseline)
    num_ranks = problem.topology.num_ranks
    if num_ranks & (num_ranks - 1):
        raise CollectiveError(
            f"{baseline} needs a power of two, and found {num_ranks} ranks; use ring or hierarchical",
            where="baseline",
        )


def _both_orders(problem: Problem, *, steps: Partners, name: str) -> Schedule:
    """The fastest of exchanges with near or far partners first; of an allreduce, doublings beside them."""
    orders = {"near partners first": steps, "far partners first": steps[::-1]}
    schedules = [exchange(problem, [each], producer=f"{name} ({order})") for order, each in orders.items()]
    if _sums_everywhere(problem) and _doubling_us(problem, steps) < fastest(schedules).finish_us:
        schedules += [
            doubling(problem, each, producer=f"{name} doubling ({order})") for order, each in orders.items()
        ]
    return fastest(schedules)


def _sums_everywhere(problem: Problem) -> bool:
    """True if every rank contributes to every chunk and wants its sum."""
    num_ranks, collective = problem.topology.num_ranks, problem.collective
    return collective.sums_up and all(
        len(c.origins) == len(c.destinations) == num_ranks for c in collective.chunks
    )


def _spread(problem: Problem, *, parts: Sequence[Partners], producer: str, numbers: Numbers) -> Schedule:
    spread, ends = Steps(problem), [chunk.destinations for chunk in problem.collective.chunks]
    starts = chunks_of_starts(problem)
    held = [[chunks[part :: len(parts)] for chunks in starts] for part in range(len(parts))]
    for place, step in enumerate(zip(*parts, strict=True)):
        of_rank = {keeps: numbers(place, keeps) for keeps in (False, True)}

        def bound(chunks: list[int], rank: int, of: Sequence[int] | None) -> list[int]:
            return chunks if of is None else [c for c in chunks if of[ends[c][0]] == of[rank]]

        spread.step(
            (bound(chunks, partners[rank], of_rank[False]), rank, partners[rank])
            for turns, of_part in zip(step, held, strict=True)
            for partners in turns
            for rank, chunks in enumerate(of_part)
        )
        # What a rank held longest goes first in the next step.
        held = [
            [
                [
                    *bound(chunks, rank, of_rank[True]),
                    *(c for partners in turns for c in bound(of_part[partners[rank]], rank, of_rank[False])),
                ]
                for rank, chunks in enumerate(of_part)
            ]
            for turns, of_part in zip(step, held, strict=True)
        ]
    return spread.schedule(producer=producer)


def _parts(topology: Topology) -> list[Partners]:
    """The partners of each part: along every dimension first, and on either side."""
    nodes = topology.ranks_of_node
    is_even = len({len(ranks) for ranks in nodes}) == 1
    grid = np.array(nodes if is_even else [range(topology.num_ranks)])
    dims = [dim for dim in (1, 0) if grid.shape[dim] > 1] or [1]
    parts: list[Partners] = []
    for first in range(len(dims)):
        by_turns = [*dims[first:], *dims[:first]]
        steps = sorted(
            (step, turn)
            for turn, dim in enumerate(by_turns)
            for step in range(grid.shape[dim].bit_length() - 1)
        )
        for mirrored in (False, True):
            parts.append([])
            for step, turn in steps:
                size = grid.shape[by_turns[turn]]
                places = [swing_partner(place, step, size, mirrored=mirrored) for place in range(size)]
                partners = np.empty(grid.size, np.int64)
                partners[grid] = grid.take(places, axis=by_turns[turn])
                parts[-1].append([partners.tolist()])
    return parts
