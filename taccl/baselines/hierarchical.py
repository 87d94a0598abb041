"""Hierarchical algorithms: along the dimensions of a network, or between nodes and inside each."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, overload

from taccl.arguments import checked
from taccl.baselines.along import implicit_along, listed_along, paces_of, translations_along
from taccl.baselines.balanced import dimensions_of
from taccl.baselines.cut import cut_chunks, cut_while_it_pays
from taccl.baselines.cycles import find_rings
from taccl.baselines.passages import NUM_CHUNKS, plan_along
from taccl.baselines.ring import pass_round
from taccl.baselines.spread import (
    Steps,
    chunks_of_starts,
    fastest,
    require_no_derivations,
    run,
)
from taccl.errors import CollectiveError
from taccl.schedule.pattern import ticks_of
from taccl.topology.products import Dimensions
from taccl.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taccl.arguments import Count, Size
    from taccl.problem import Problem
    from taccl.schedule.implicit import ImplicitSchedule
    from taccl.schedule.schedule import Schedule


@overload
def hierarchical(
    problem: Problem, *, cut: bool = ..., chunks: Count | None = ..., order: Sequence[int] | None = ...
) -> Schedule: ...
@overload
def hierarchical(
    problem: Dimensions,
    *,
    cut: bool = ...,
    chunks: Count | None = ...,
    order: Sequence[int] | None = ...,
    collective: str = ...,
    size: Size = ...,
) -> ImplicitSchedule: ...
@checked
def hierarchical(
    problem: Problem | Dimensions,
    *,
    cut: bool = True,
    chunks: Count | None = None,
    order: Sequence[int] | None = None,
    collective: str = "allreduce",
    size: Size = "1GB",
) -> Schedule | ImplicitSchedule:
    """A schedule along the dimensions of the topology, or between nodes and then inside each.

    Of a product of dimensions (`taccl.dimensions`): an allreduce scatters sums along one dimension after
    another and gathers them in the opposite order, chunks following one another; within a dimension round a
    ring, straight or by doubling, whichever is soonest done. Else chunks cross to the same local rank of
    other nodes, round a ring of nodes, and then spread in each node, round a ring or straight to each; a
    reduction does the reverse. The fastest is returned, and its `producer` names it. The sketch is left
    aside, but for merging.

    Parameters
    ----------
    problem : Problem or Dimensions
        Of dimensions comes an implicit schedule, for as many ranks as one likes.
    cut : bool
        As in `ring`, where `chunks` is not given.
    chunks : int, optional
        Into how many each rank's part of the data is cut; of dimensions by default 64.
    order : sequence of int, optional
        The dimensions, numbered from 0, as a reduction takes them; by default as they are.
    collective, size
        Of dimensions: ``"allreduce"``, ``"reduce-scatter"``, ``"allgather"`` or ``"alltoall"``, and the
        larger of a rank's input and output buffer.

    Raises
    ------
    CollectiveError
        If there are no dimensions where an order is given; else if there is one node, nodes differ in size,
        or the collective is a scan.
    TopologyError
        If no links lead from one rank to another, or dimensions do not look the same from every rank.

    References
    ----------
    M. Cho, U. Finkler, M. Serrano, D. Kung and H. Hunter, "BlueConnect: decomposing all-reduce for deep
    learning on heterogeneous network hierarchy", IBM Journal of Research and Development 63 (2019).
    """
    if isinstance(problem, Dimensions):
        way = _order(problem, order)
        shape, num_chunks = translations_along(problem), chunks or NUM_CHUNKS
        chunk_bytes = -(-parse_size(size, where="size") // (num_chunks * problem.num_ranks))
        paces = paces_of(problem, ticks_of(shape.classes, chunk_bytes))
        plan = plan_along(problem, collective, [way] * num_chunks, paces)
        return implicit_along(plan, shape, chunk_bytes=chunk_bytes, producer=_producer(way))
    require_no_derivations(problem, baseline="hierarchical")
    if chunks is not None:
        parts, rest = divmod(chunks, problem.collective.chunks_per_rank)
        if rest or chunks * problem.topology.num_ranks > (problem.size_bytes or chunks):
            raise CollectiveError(
                f"found {chunks}; expected a multiple of the problem's "
                f"{problem.collective.chunks_per_rank} chunks a rank, of a byte each at least",
                where="hierarchical: chunks",
            )
        problem, cut = cut_chunks(problem, parts) if parts > 1 else problem, False
    found: list[Schedule] = []
    try:
        dims = dimensions_of(problem, baseline="hierarchical")
        if len(dims) > 1 or order is not None or chunks is not None:
            along = partial(_along, dims=dims, order=_order(dims, order))
            found.append(cut_while_it_pays(problem, along, cut=cut))
    except CollectiveError:
        if order is not None:
            raise
    if order is None and (not found or problem.topology.num_nodes > 1):
        found.append(_between_nodes(problem, cut=cut))
    return fastest(found)


def _order(dims: Dimensions, order: Sequence[int] | None) -> tuple[int, ...]:
    """The order that is given, or the dimensions' own."""
    found = tuple(range(len(dims)) if order is None else order)
    if sorted(found) != list(range(len(dims))):
        raise CollectiveError(
            f"found {list(found)}; expected every dimension 0-{len(dims) - 1} once",
            where="hierarchical: order",
        )
    return found


def _producer(order: Sequence[int]) -> str:
    return f"hierarchical (dimensions {', '.join(str(k + 1) for k in order)})"


def _along(problem: Problem, *, dims: Dimensions, order: tuple[int, ...]) -> Schedule:
    orders = [order] * problem.collective.chunks_per_rank
    return listed_along(dims, problem, orders, producer=_producer(order))


def _between_nodes(problem: Problem, *, cut: bool) -> Schedule:
    sizes = sorted({len(ranks) for ranks in problem.topology.ranks_of_node})
    if problem.topology.num_nodes < 2 or len(sizes) > 1:
        raise CollectiveError(
            f"hierarchical needs two or more nodes of one size, and found {problem.topology.num_nodes} of "
            f"{' or '.join(map(str, sizes))} ranks; use ring",
            where="baseline",
        )

    def made(problem: Problem) -> Schedule:
        return fastest(run(problem, partial(_two_levels, inside=each)) for each in ("ring", "direct"))

    return cut_while_it_pays(problem, made, cut=cut)


def _two_levels(problem: Problem, *, inside: str) -> Schedule:
    topology, spread = problem.topology, Steps(problem)
    nodes, size = topology.ranks_of_node, len(topology.ranks_of_node[0])
    starts = chunks_of_starts(problem)
    columns = [[ranks[local] for ranks in nodes] for local in range(size)]
    pass_round(spread, [(column, [starts[rank] for rank in column]) for column in columns], 1)
    # A rank now holds what started at any rank of its local rank; what it held longest goes first.
    held: list[list[int]] = [[] for _ in starts]
    for column in columns:
        for place, rank in enumerate(column):
            for distance in range(len(column)):
                held[rank] += starts[column[place - distance]]
    path = [topology.local_rank[rank] for rank in find_rings(topology, spread.routes)[0][:size]]
    if inside == "ring":
        walks = [[ranks[local] for local in path] for ranks in nodes]
        pass_round(spread, [(walk, [held[rank] for rank in walk]) for walk in walks], 2)
    else:
        for shift in range(1, size):
            pairs = [(ranks[a], ranks[(a + shift) % size]) for a in range(size) for ranks in nodes]
            spread.step([(held[src], src, dst) for src, dst in pairs])
    return spread.schedule(producer=f"hierarchical ({inside} inside nodes)")
