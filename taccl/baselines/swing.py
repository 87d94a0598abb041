"""Swing and bine trees: exchanges with partners that are nearer than those of recursive doubling.

Where ranks are a power of two, the partner of step s of an even rank comes ``1 - 2 + 4 - ... (-2)**s`` after
it, that of an odd rank as far before it: a third less far than ``2**s``, and on alternate sides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from taccl.arguments import checked
from taccl.baselines.cut import cut_while_it_pays
from taccl.baselines.one_shot import sums_everywhere
from taccl.baselines.recursive import both_orders, doubling, exchange, require_power_of_two
from taccl.baselines.spread import fastest

if TYPE_CHECKING:
    from taccl.baselines.recursive import Steps
    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.topology.topology import Topology


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
    CollectiveError
        If the number of ranks is not a power of two, or the collective is a scan.
    TopologyError
        If no links lead from one rank to another.

    References
    ----------
    D. De Sensi, T. Bonato, D. Saam and T. Hoefler, "Swing: short-cutting rings for higher bandwidth
    allreduce", NSDI 2024, arXiv:2401.09356.
    """
    require_power_of_two(problem, baseline="swing")
    return cut_while_it_pays(problem, _swing, cut=cut)


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
    CollectiveError
        If the number of ranks is not a power of two, or the collective is a scan.
    TopologyError
        If no links lead from one rank to another.

    References
    ----------
    D. De Sensi et al., "Bine trees: enhancing collective operations by optimizing communication locality",
    SC 2025, arXiv:2508.17311.
    """
    require_power_of_two(problem, baseline="bine")
    return cut_while_it_pays(problem, _bine, cut=cut)


def swing_partner(place: int, step: int, size: int, *, mirrored: bool = False) -> int:
    """The place, of `size` on a ring, that exchanges with a place in a step."""
    distance: int = sum((-2) ** i for i in range(step + 1))
    return (place + (distance if place % 2 == mirrored else -distance)) % size


def _bine(problem: Problem) -> Schedule:
    size = problem.topology.num_ranks
    steps = [[[swing_partner(r, step, size) for r in range(size)]] for step in range(size.bit_length() - 1)]
    return both_orders(problem, steps, name="bine")


def _swing(problem: Problem) -> Schedule:
    parts = _parts(problem.topology)
    schedules = [exchange(problem, [steps[::-1] for steps in parts], producer="swing")]
    if sums_everywhere(problem):
        schedules.append(doubling(problem, parts[0], producer="swing doubling"))
    return fastest(schedules)


def _parts(topology: Topology) -> list[Steps]:
    """The partners of each part: along every dimension first, and on either side."""
    nodes = topology.ranks_of_node
    sizes = {len(ranks) for ranks in nodes}
    grid = [list(range(topology.num_ranks))] if len(sizes) > 1 else [list(ranks) for ranks in nodes]
    extents = (len(grid), len(grid[0]))
    dims = [dim for dim in (1, 0) if extents[dim] > 1] or [1]
    place = {rank: (row, column) for row, ranks in enumerate(grid) for column, rank in enumerate(ranks)}

    def partner(rank: int, dim: int, step: int, *, mirrored: bool) -> int:
        at = list(place[rank])
        at[dim] = swing_partner(at[dim], step, extents[dim], mirrored=mirrored)
        return grid[at[0]][at[1]]

    parts = []
    for first in range(len(dims)):
        by_turns = [*dims[first:], *dims[:first]]
        steps = sorted(
            (step, turn) for turn, dim in enumerate(by_turns) for step in range(extents[dim].bit_length() - 1)
        )
        parts += [
            [
                [[partner(rank, by_turns[turn], step, mirrored=mirrored) for rank in sorted(place)]]
                for step, turn in steps
            ]
            for mirrored in (False, True)
        ]
    return parts
