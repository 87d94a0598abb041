"""Chunks that take the dimensions of a network in orders of their own, which level what these have to do."""

from __future__ import annotations

from functools import partial
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np

from taccl.arguments import checked
from taccl.baselines.along import listed_along
from taccl.baselines.cut import cut_while_it_pays
from taccl.collectives import make
from taccl.errors import CollectiveError, TopologyError
from taccl.schedule.implicit import IMPLICIT_COLLECTIVES
from taccl.topology.recognise import dimensions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.topology.products import Dimensions

#: Of up to so many dimensions every order is tried.
_MOST_ENUMERATED = 5
#: The exponent of the norm of loads that is kept least; our choice, of 4, 8, 16 and infinity.
_NORM = 16


@checked
def dimension_balanced(problem: Problem, *, cut: bool = True) -> Schedule:
    """A schedule whose chunks take the dimensions of the topology in orders that level their loads.

    Each chunk in turn takes the order that leaves the busiest dimension least busy. `taccl.synthesize` with
    ``backend="dimension-balanced"`` also knows the optimal shares, and larger problems.

    Parameters
    ----------
    problem, cut
        As in `ring`.

    Raises
    ------
    CollectiveError
        If the topology has not two dimensions, or the collective is no allgather, reduce-scatter, allreduce
        or alltoall of all ranks.

    References
    ----------
    S. Rashidi, W. Won, S. Srinivasan, S. Sridharan and T. Krishna, "Themis: a network bandwidth-aware
    collective scheduling policy for distributed training of DL models", ISCA 2022.
    """
    dims = dimensions_of(problem, baseline="dimension-balanced")
    if len(dims) < 2:
        raise CollectiveError(f"found one dimension, {dims[0]}; use hierarchical", where="dimension-balanced")
    return cut_while_it_pays(problem, partial(_balanced, dims=dims), cut=cut)


def _balanced(problem: Problem, *, dims: Dimensions) -> Schedule:
    collective = problem.collective
    exchange = collective.name == "alltoall"
    orders = level_orders(dims, collective.chunks_per_rank, exchange=exchange)
    return listed_along(dims, problem, orders, producer="dimension-balanced (greedy)")


def level_orders(
    dims: Dimensions, num_chunks: int, *, exchange: bool = False, smooth: bool = False
) -> list[tuple[int, ...]]:
    """For each chunk in turn the order that levels what the dimensions have to do so far.

    It is that whose largest load is least, or (`smooth`) that whose loads have the least norm. The former
    takes long ways through slow dimensions as soon as these have time to spare, the latter spares these too
    long: which is better depends on the network.
    """
    total, chosen = np.zeros(len(dims)), []
    for number in range(num_chunks):
        orders = orders_of(dims, total.tolist())
        loads = np.array([dims.loads_us_per_mb(order, exchange=exchange) for order in orders], float)
        # In an exchange all orders load alike: turns keep every dimension busy.
        if exchange:
            which = number % len(dims)
        elif smooth:
            sums = total + loads
            which = int(((sums / sums.max()) ** _NORM).sum(axis=1).round(9).argmin())
        else:
            which = most_level(total + loads)
        chosen.append(orders[which])
        total += loads[which]
    return chosen


def most_level(loads: NDArray[np.float64]) -> int:
    """The row whose largest load is least; of equals, by the next largest, and so on."""
    return int(np.lexsort(np.sort(loads, axis=1).round(9).T)[0])


def orders_of(dims: Dimensions, total: Sequence[float]) -> list[tuple[int, ...]]:
    """Every order of few dimensions; of many, each first, and the others from the least loaded on."""
    count = len(dims)
    turned = [
        (first, *sorted({*range(count)} - {first}, key=lambda k: (total[k], k))) for first in range(count)
    ]
    return turned if count > _MOST_ENUMERATED else list(dict.fromkeys([*turned, *permutations(range(count))]))


def dimensions_of(problem: Problem, *, baseline: str) -> Dimensions:
    """The dimensions of a problem's topology, for a whole collective that goes along them.

    `CollectiveError` where there are none, or it is another.
    """
    try:
        dims = dimensions(problem.topology)
    except TopologyError as error:
        raise CollectiveError(error.message, where=baseline) from None
    collective = problem.collective
    known = collective.name in IMPLICIT_COLLECTIVES and len(set(problem.chunk_bytes)) == 1
    if not known or collective != make(
        collective.name, collective.num_ranks, chunks_per_rank=collective.chunks_per_rank
    ):
        raise CollectiveError(
            f"found {collective.name} of chunks of its own; expected a whole "
            f"{', '.join(IMPLICIT_COLLECTIVES)}: use another baseline, or synthesize it",
            where="dimensions",
        )
    return dims
