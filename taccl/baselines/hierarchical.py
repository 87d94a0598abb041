"""Hierarchical collectives: along one dimension after another, or between nodes and then inside them."""

from __future__ import annotations

from fractions import Fraction
from functools import partial
from itertools import permutations, product
from typing import TYPE_CHECKING, overload

import numpy as np

from taccl._internal.arguments import checked
from taccl._internal.arrays import lexsort
from taccl._internal.units import parse_size
from taccl.baselines.chunking import (
    MANY_CUT,
    busy_by_bytes_us,
    cut_chunks,
    cut_while_it_pays,
    held_at_start,
    may_merge,
    merging,
    require_no_derivations,
    run,
    starts_of,
)
from taccl.baselines.dimension_passes import NUM_CHUNKS, plan_along
from taccl.baselines.dimension_sends import implicit_along, listed_along, paces_of, translations_along
from taccl.baselines.forms import Form, fastest, fastest_form, fastest_in_turn, in_reversed_time
from taccl.baselines.moves import Moves, is_destination, routed, to_destinations
from taccl.baselines.rails import MOST_RAILED, SHAPES, best_cut, by_rails, likely_forms
from taccl.baselines.ring import around, find_rings, on_rings
from taccl.baselines.routes import ShortestRoutes
from taccl.errors import CollectiveError, TopologyError
from taccl.problem.collectives import make
from taccl.problem.costs import ranks_differ
from taccl.schedule.combine import back_in_time, reduce_phase
from taccl.schedule.implicit_schedule import IMPLICIT_COLLECTIVES, ticks_of
from taccl.topology.products import Dimensions
from taccl.topology.recognise import dimensions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from taccl._internal.arguments import Count, Size
    from taccl.baselines.moves import Row, Sends
    from taccl.problem.problem import Problem
    from taccl.schedule.implicit_schedule import ImplicitSchedule
    from taccl.schedule.schedule import Schedule


#: `_chunk_by_chunk` keeps finer chunks if they finish within this share of the time of coarser ones.
_PAYS = Fraction(99, 100)
#: Max chunks times ranks for list scheduling of each form (0.04 s).
_MOST_LISTED = 4_000
#: Max number of dimensions for which all their orders are tried.
_MOST_ENUMERATED = 5
#: Exponent of the norm of the dimensions' loads that is minimised; 4, 8, 16 and infinity were compared.
_NORM = 16


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
    """Schedule along the dimensions of the topology, or between nodes and then inside each.

    On a product of dimensions (`taccl.dimensions`), an allreduce scatters sums along one dimension after
    another, and gathers them in the opposite order; chunks are pipelined. Within a dimension, chunks go round
    a ring, directly, or by doubling.

    On other topologies there are two forms. In the first, chunks go round rings of the ranks with the same
    local rank in all nodes. They then spread in each node, round a ring or directly. In the second, chunks
    cross to these ranks directly, one chunk of each rank after another; each spreads in its node while the
    next one crosses. Where some ranks have no chunks, as in a broadcast, there is a third form. The chunks of
    a rank go to all ranks of its node in turn. They cross along two binary trees or stars of nodes, at the
    same local rank, and spread in each node. In a star, another node passes a chunk on to all others; in a
    helped star, the first node sends some of these copies. Reductions are the reverse of copies. A scatter
    may be the reverse of a gather in the second form. Chunks that cross a link in one step are one message
    where sends may merge. The fastest form is returned, and its `producer` names it. Only the merging clauses
    of the sketch apply.

    Parameters
    ----------
    problem : Problem or Dimensions
        For dimensions the schedule is implicit, which supports any number of ranks.
    cut : bool
        As in `ring`, if `chunks` is not given.
    chunks : int, optional
        Number of chunks per rank; for dimensions, the default is 64.
    order : sequence of int, optional
        Dimensions, numbered from 0, in the order in which a reduction uses them. Default: as declared.
    collective, size
        For dimensions: ``"allreduce"``, ``"reduce-scatter"``, ``"allgather"`` or ``"alltoall"``, and the
        larger of a rank's input and output buffer.

    Raises
    ------
    CollectiveError
        If an order is given and the topology has no dimensions; or if there is one node, nodes differ in
        size, or the collective is a scan.
    TopologyError
        If no links lead from one rank to another, or dimensions differ from rank to rank.

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
                f"{problem.collective.chunks_per_rank} chunks per rank, of at least one byte each",
                where="hierarchical: chunks",
            )
        problem, cut = cut_chunks(problem, parts) if parts > 1 else problem, False
    found: list[Schedule] = []
    try:
        dims = dimensions_of(problem, baseline="hierarchical")
        if len(dims) > 1 or order is not None or chunks is not None:
            along = partial(_along, dims=dims, order=_order(dims, order))
            found.append(cut_while_it_pays(problem, along, name=f"dimensions {order}", cut=cut, merges=True))
    except CollectiveError:
        if order is not None:
            raise
    if order is None and (not found or problem.topology.num_nodes > 1):
        found.append(_between_nodes(problem, cut=cut))
    return fastest(found)


@checked
def dimension_balanced(problem: Problem, *, cut: bool = True) -> Schedule:
    """Schedule whose chunks use the dimensions of the topology in orders that balance their loads.

    Each chunk in turn gets the order that minimises the largest load so far. Chunks that cross a link in one
    step are one message where sends may merge. `taccl.synthesize` with ``backend="dimension-balanced"`` also
    computes the optimal share of each order, and supports larger problems.

    Parameters
    ----------
    problem, cut
        As in `ring`.

    Raises
    ------
    CollectiveError
        If the topology has fewer than two dimensions, or the collective is not an allgather, reduce-scatter,
        allreduce or alltoall of all ranks.

    References
    ----------
    S. Rashidi, W. Won, S. Srinivasan, S. Sridharan and T. Krishna, "Themis: a network bandwidth-aware
    collective scheduling policy for distributed training of DL models", ISCA 2022.
    """
    dims = dimensions_of(problem, baseline="dimension-balanced")
    if len(dims) < 2:
        raise CollectiveError(
            f"found one dimension, {dims[0]}; use ring or pairwise", where="dimension-balanced"
        )
    return cut_while_it_pays(
        problem,
        partial(_balanced, dims=dims),
        name="dimension-balanced",
        cut=cut,
        merges=True,
        even=len(dims),
    )


def _order(dims: Dimensions, order: Sequence[int] | None) -> tuple[int, ...]:
    """The given order of dimensions after a check, or their declared order."""
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
            f"hierarchical needs two or more nodes of one size, but found {problem.topology.num_nodes} of "
            f"{' or '.join(map(str, sizes))} ranks; use ring or pairwise",
            where="baseline",
        )

    copies = reduce_phase(problem) if problem.collective.sums_up else problem
    num_holders, num_ranks = len(set(starts_of(copies).tolist())), problem.topology.num_ranks
    reach_all = all(len(ranks) >= num_ranks - 1 for ranks in copies.collective.destination_sets.sets)

    def in_turn(problem: Problem) -> Schedule:
        forms = (
            (f"hierarchical ({each} inside nodes)", run(problem, partial(_two_levels, inside=each)))
            for each in ("ring", "direct")
        )
        return fastest_form(problem, forms)

    # The best form of a reduction in finer chunks is found in reversed time, which takes half as long.
    is_reversed = problem.collective.stays_at_roots and not ranks_differ(problem.topology)

    wanted = copies.collective.destination_sets.sets
    scatters = copies is problem and 2 * num_holders <= num_ranks and all(len(each) == 1 for each in wanted)

    def in_reversed_order(finer: Problem) -> Sends:
        back = _chunk_by_chunk(back_in_time(finer)).reversed()
        return back._replace(adds=np.zeros(len(back.adds), bool))

    def at_once(finer: Problem) -> Schedule:
        forms: list[Form] = []
        num_chunks = finer.collective.num_chunks
        copies = reduce_phase(finer) if finer.collective.sums_up else finer
        if copies is not finer and is_reversed and num_chunks > problem.collective.num_chunks:
            return in_reversed_time(finer, at_once)
        if 2 * num_holders > num_ranks or num_chunks <= num_ranks:
            forms.append(Form("hierarchical (chunk by chunk)", partial(run, finer, _chunk_by_chunk)))
        if scatters:
            name = "hierarchical (chunk by chunk, in reversed time)"
            forms.append(Form(name, partial(in_reversed_order, finer)))
        rails = []
        if has_rails:
            estimates = likely_forms(copies) if reach_all else dict.fromkeys(product(SHAPES, (1,)), 0.0)
            rails = [
                Form(
                    f"hierarchical ({shape} of nodes)",
                    partial(run, finer, partial(by_rails, over=shape, group=group)),
                    estimate if copies is finer else 0.0,
                )
                for (shape, group), estimate in estimates.items()
            ]
        if rails and num_chunks * num_ranks > _MOST_LISTED:  # `by_rails` keeps a good order
            return fastest_in_turn(finer, (*rails, *forms))
        return fastest_form(finer, ((each.name, each.sends()) for each in (*forms, *rails)), lists=True)

    has_rails, opened, most = 0 < num_holders < num_ranks, problem, 2 * MANY_CUT
    parts, likely = 2, 1
    if has_rails and reach_all and cut:
        opened = merging(problem) if may_merge(problem) else problem
        copies, most = reduce_phase(opened) if problem.collective.sums_up else opened, MOST_RAILED
        likely = best_cut(copies, most_transfers=most)
        parts = max(2, likely // 4)  # estimates are too high where links between nodes share no NIC
    found = cut_while_it_pays(
        opened,
        at_once,
        name="hierarchical",
        cut=cut,
        parts=parts,
        likely=likely,
        pays=_PAYS,
        most_transfers=most,
        asked=problem,
    )
    whole = cut_while_it_pays(problem, in_turn, name="two levels", cut=False)
    if busy_by_bytes_us(problem, whole.chunk, whole.link).max(initial=0) >= found.finish_us:
        return found  # finer chunks hold resources for as long
    return fastest((cut_while_it_pays(problem, in_turn, name="two levels", cut=cut, merges=True), found))


def _two_levels(problem: Problem, *, inside: str) -> Sends:
    """Sends round rings of ranks with the same local rank in all nodes, and then inside each node.

    - `inside`: ``"ring"`` or ``"direct"``.
    """
    topology, (holder, held, _) = problem.topology, held_at_start(problem)
    nodes = np.array(topology.ranks_of_node)
    num_nodes, size = nodes.shape
    first_node, local = (np.array(each)[holder] for each in (topology.node_of_rank, topology.local_rank))
    moves = list(on_rings(nodes.T, holder, held, local))
    # Each rank now holds the chunks of its local rank in every node; send those it has held longest first.
    walk = np.arange(size)
    if inside == "ring":
        ring = find_rings(topology, ShortestRoutes.of(problem).ticks, 1)[0]
        walk = np.array(topology.local_rank)[ring[:size]]
    row, node = (each.ravel() for each in np.indices((len(held), num_nodes)))
    place = np.argsort(walk)[local[row]]
    order = lexsort((row, (node - first_node[row]) % num_nodes, node, place))
    order = order[_wanted_in(problem, nodes)[held[row[order]], node[order]]]
    chunk, node, place = held[row[order]], node[order], place[order]
    if inside == "ring":
        for number, ranks in enumerate(nodes):
            here = node == number
            moves += around(ranks[walk], chunk[here], place[here], directions=2, first=num_nodes - 1)
    else:
        for shift in range(1, size):
            there = nodes[node, (place + shift) % size]
            move = num_nodes - 2 + shift, chunk, nodes[node, place], there, False
            moves.append(to_destinations(problem, move))
    return routed(problem, Moves.of(moves))


def _chunk_by_chunk(problem: Problem) -> Sends:
    """Sends in which each rank's first chunk crosses to all other nodes, then its second one, and so on.

    A chunk crosses to the same local rank of each node. That rank sends it to its whole node while later
    chunks cross.
    """
    topology, (holder, chunk, number) = problem.topology, held_at_start(problem)
    nodes = np.array(topology.ranks_of_node)
    num_nodes, size = nodes.shape
    first, local = (np.array(each)[holder] for each in (topology.node_of_rank, topology.local_rank))
    moves: list[Row] = []
    for turn in range(num_nodes):
        node = (first + turn) % num_nodes
        there = nodes[node, local]
        step = number * (num_nodes - 1) + turn
        if turn:
            moves.append((step - 1, chunk, holder, there, False))
        inside = ((step, chunk, there, nodes[node, (local + k) % size], False) for k in range(1, size))
        moves += [to_destinations(problem, each) for each in inside]
    return routed(problem, Moves.of(moves))


def _wanted_in(problem: Problem, nodes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(num_chunks, num_nodes) bool array: True for nodes in which the chunk has a destination.

    - `nodes`, (num_nodes, size) array: Ranks of each node.
    """
    found: NDArray[np.bool_] = np.logical_or.reduce(is_destination(problem)[:, nodes], axis=2)
    return found[problem.collective.destination_sets.of_chunk]


def _balanced(problem: Problem, *, dims: Dimensions) -> Schedule:
    collective = problem.collective
    exchange = collective.name == "alltoall"
    orders = level_orders(dims, collective.chunks_per_rank, exchange=exchange)
    return listed_along(dims, problem, orders, producer="dimension-balanced (greedy)", by_piece=True)


def level_orders(
    dims: Dimensions, num_chunks: int, *, exchange: bool = False, smooth: bool = False
) -> list[tuple[int, ...]]:
    """Order of dimensions for each chunk; the orders balance the loads of the dimensions.

    Each chunk in turn gets the order that minimises the largest load of a dimension so far. With `smooth`,
    the order minimises a norm of all dimensions' loads. The first criterion uses slow dimensions as early as
    possible, the norm uses them late. Which of the two finishes first depends on the network.

    - `exchange`: True for an alltoall, in which the orders simply rotate.
    """
    total, chosen = np.zeros(len(dims)), []
    for number in range(num_chunks):
        orders = orders_of(dims, total.tolist())
        loads = np.array([dims.loads_us_per_mb(order, exchange=exchange) for order in orders], float)
        # In an alltoall, all orders have equal loads; rotation keeps every dimension busy.
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
    """Index of the row with the least maximum load; ties are broken by the next largest load, and so on."""
    return int(np.lexsort(np.sort(loads, axis=1).round(9).T)[0])


def orders_of(dims: Dimensions, total: Sequence[float]) -> list[tuple[int, ...]]:
    """Candidate orders of the dimensions, given their total loads.

    For few dimensions these are all orders. Otherwise there is one order per first dimension, in which the
    other dimensions follow by rising load.
    """
    count = len(dims)
    turned = [
        (first, *sorted({*range(count)} - {first}, key=lambda k: (total[k], k))) for first in range(count)
    ]
    return turned if count > _MOST_ENUMERATED else list(dict.fromkeys([*turned, *permutations(range(count))]))


def dimensions_of(problem: Problem, *, baseline: str) -> Dimensions:
    """Dimensions of a problem's topology.

    Raises `CollectiveError` if it has none, or if the collective is not supported along dimensions.
    """
    try:
        dims = dimensions(problem.topology)
    except TopologyError as error:
        raise CollectiveError(error.message, where=baseline) from None
    collective = problem.collective
    is_known = collective.name in IMPLICIT_COLLECTIVES
    is_even = is_known and len(set(problem.chunk_bytes)) == 1
    if not is_even or collective != make(
        collective.name, collective.num_ranks, chunks_per_rank=collective.chunks_per_rank
    ):
        raise CollectiveError(
            f"found {collective.name}{' with custom chunks' if is_known else ''}; expected a complete "
            f"{', '.join(IMPLICIT_COLLECTIVES)}: use another baseline, or synthesize it",
            where="dimensions",
        )
    return dims
