"""Collectives balanced over the dimensions of a network: each chunk has its own order of dimensions.

The policy ``"lp"`` assigns orders to chunks by the shares of a linear program (`dimension_bound`).
``"greedy"`` gives each chunk in turn the order that balances the loads of the dimensions.
`taccl.baselines.dimension_passes` plans the passes of each order. `taccl.baselines.dimension_sends` expands
them to a schedule of single sends, or to an implicit one for any number of ranks.

The collectives of process groups run concurrently, each balanced over the dimensions of its group.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from taccl._internal.units import format_about
from taccl.analysis.certificates.dimension_bound import balance, dimension_bound
from taccl.analysis.verification.verify import verify
from taccl.baselines.chunking import cut_chunks
from taccl.baselines.dimension_passes import PassagePlan, plan_along
from taccl.baselines.dimension_sends import implicit_along, paces_of, schedule_along, translations_along
from taccl.baselines.hierarchical import dimensions_of, level_orders, most_level, orders_of
from taccl.errors import CollectiveError, InputError, TopologyError
from taccl.problem.collectives import make
from taccl.problem.costs import Costs, exact_costs
from taccl.problem.making import make_problem
from taccl.problem.problem import Problem
from taccl.schedule.columns import narrow
from taccl.schedule.implicit_schedule import IMPLICIT_COLLECTIVES, ClassTicks, ImplicitSchedule, ticks_of
from taccl.schedule.schedule import MANY, Schedule
from taccl.synthesis.search import Search
from taccl.topology.named import NamedFabric
from taccl.topology.products import Dimensions
from taccl.topology.transform import subset

Policy = Literal["lp", "greedy"]
#: Name of the backend that balances the dimensions of a network.
BALANCED = "dimension-balanced"
#: Max number of chunks per rank to choose; with more, plans finish less than 1 % earlier.
_MOST_CHUNKS = 128
#: Max transfers of a listed schedule; larger ones must be implicit.
MOST_TRANSFERS = 20_000_000
#: Max ratio of the planned finish to the best one so far at which twice as many chunks count as a gain.
_PAYS = Fraction(99, 100)
#: Max ratio of the second-best to the best planned finish at which local search improves both plans.
_NEAR = 1.05
#: Place of errors on process groups.
_WHERE = "dimension-balanced: groups"


def choose_orders(dims: Dimensions, collective: str, num_chunks: int) -> list[tuple[int, ...]]:
    """Assign an order of dimensions to each chunk, in about the shares that a linear program computes."""
    shares, _ = balance(dims, collective)
    orders = list(dict.fromkeys([*shares, *orders_of(dims, [0.0] * len(dims))]))
    loads = np.array([dims.loads_us_per_mb(order) for order in orders], float)
    counts = np.array([int(shares.get(order, 0.0) * num_chunks) for order in orders])
    while counts.sum() < num_chunks:
        counts[most_level(counts @ loads + loads)] += 1
    while True:  # change one chunk's order while that balances the loads better
        total, taken = counts @ loads, np.flatnonzero(counts)
        pairs = (total - loads[taken])[:, None, :] + loads[None, :, :]
        every = np.vstack((total[None, :], pairs.reshape(-1, len(dims))))
        which = most_level(every)
        if np.array_equal(np.sort(every[which]).round(9), np.sort(total).round(9)):
            break
        old, new = divmod(which - 1, len(orders))
        counts[taken[old]] -= 1
        counts[new] += 1
    # Orders alternate, so that every dimension has work at the beginning.
    dealt = [
        ((i + 0.5) / count, order)
        for order, count in zip(orders, counts.tolist(), strict=True)
        for i in range(count)
    ]
    return [order for _, order in sorted(dealt)]


def choose_num_chunks(
    dims: Dimensions, collective: str, size_bytes: int, *, policy: Policy = "lp", most: int = _MOST_CHUNKS
) -> int:
    """Number of chunks per rank, a power of two, with the earliest planned finish."""
    best, best_us = 1, Fraction(-1)
    for bit in range(min(most, max(1, size_bytes // dims.num_ranks)).bit_length()):
        each = -(-size_bytes // (dims.num_ranks << bit))
        costs: Costs | ClassTicks
        if isinstance(dims.host, NamedFabric):
            costs = ticks_of(translations_along(dims).classes, each)
        else:
            costs = exact_costs(dims.host, (each,))
        plan = _planned(dims, collective, 1 << bit, costs, policy, improve=False)
        finish = Fraction(plan.finish_ticks, costs.ticks_per_us)
        if best_us < 0 or finish < _PAYS * best_us:
            best, best_us = 1 << bit, finish
    return best


def cut_balanced(problem: Problem, *, policy: Policy, most_transfers: int = MOST_TRANSFERS) -> Problem:
    """Cut a problem into chunks for the earliest planned finish, if it leaves the number of chunks open.

    - `most_transfers`: Max transfers of the schedule, as `balanced_schedule` counts them.
    """
    name, size_bytes, dims = max(collectives_of(problem), key=lambda each: each[1])
    if not problem.chunks_open:
        return problem
    most = max(1, min(_MOST_CHUNKS, most_transfers // (2 * dims.num_ranks * problem.topology.num_ranks)))
    parts = choose_num_chunks(dims, name, size_bytes, policy=policy, most=most)
    whole = problem.in_its_chunks
    return cut_chunks(whole, parts) if parts > 1 else whole


def collectives_of(problem: Problem) -> list[tuple[str, int, Dimensions]]:
    """(collective, size in bytes, dimensions) of each process group; without groups, of the whole problem."""
    if problem.collective.groups:
        parts = [(part.problem, part.dims) for part in parts_of(problem)]
    else:
        parts = [(problem, dimensions_of(problem, baseline=BALANCED))]
    return [
        (part.collective.name, part.size_bytes or part.chunk_bytes[0] * part.collective.size_chunks, dims)
        for part, dims in parts
    ]


def balanced_schedule(
    problem: Problem,
    *,
    policy: Policy = "lp",
    most_transfers: int,
    sooner_than: Fraction | None = None,
    improve: bool = True,
) -> Schedule | None:
    """Verified schedule along the topology's dimensions; None if it does not finish soon enough.

    Raises `CollectiveError` if the topology has no dimensions, the collective is not supported along
    dimensions, or there are too many transfers; `InputError` if the sketch forbids the schedule.

    - `sooner_than`: Finish to beat, in us; None for any.
    - `improve`: True to improve plans by local search, which takes most of the time.
    """
    collective, num_ranks = problem.collective, problem.topology.num_ranks
    most_ranks = max(dims.num_ranks for *_, dims in collectives_of(problem))
    num_transfers = 2 * collective.chunks_per_rank * most_ranks * num_ranks
    if num_transfers > most_transfers:
        raise CollectiveError(
            f"found about {format_about(num_transfers)} transfers; expected at most {most_transfers}: "
            "use fewer chunks, or use synthesize_implicit, which lists none",
            where=BALANCED,
        )
    producer = f"{BALANCED} ({policy})"

    def along(part: Problem, dims: Dimensions) -> Schedule | None:
        plan = _planned(
            dims, part.collective.name, part.collective.chunks_per_rank, part.costs, policy, improve=improve
        )
        if sooner_than is not None and part.costs.us(plan.finish_ticks) >= sooner_than:
            return None
        return schedule_along(plan, part, producer=producer)

    if collective.groups:
        schedule = schedule_of_groups(problem, along, producer=producer)
    else:
        schedule = along(problem, dimensions_of(problem, baseline=BALANCED))
    if schedule is None:
        return None
    verification = verify(schedule)
    if not verification.ok and collective.groups:
        raise CollectiveError(
            f"groups collide along their dimensions: {verification.violations[0].message}; give groups that "
            "share no links, or use another backend",
            where=BALANCED,
        )
    if not verification.ok and problem.clauses != problem.clauses.only("merge"):
        raise InputError(
            f"the sketch forbids sends along dimensions: {verification.violations[0].message}; leave it "
            "out, or use another backend",
            where=BALANCED,
        )
    verification.raise_if_failed()
    return schedule if schedule.num_transfers > MANY else schedule.in_order()


def search_balanced(
    search: Search, *, policy: Policy = "lp", most_transfers: int | None = None, competes: bool = False
) -> None:
    """Propose the dimension-balanced schedule.

    - `competes`: True to propose the schedule only if it finishes before the incumbent, and to ignore an
      `InputError`.
    """
    since, problem = time.monotonic(), search.problem
    search.report("balancing dimensions")
    sooner_than = search.best.finish if competes and search.best is not None else None
    try:
        found = balanced_schedule(
            problem, policy=policy, most_transfers=most_transfers or MOST_TRANSFERS, sooner_than=sooner_than
        )
    except InputError:
        if competes:
            return
        raise
    if found is None:
        return
    bounds = [dimension_bound(dims, name, size_bytes) for name, size_bytes, dims in collectives_of(problem)]
    bound = max(bounds, key=lambda each: each.bound_us)
    search.dimension_bound = search.dimension_bound if competes else bound
    search.offer_whole(found, producer=found.producer, verified=True)
    search.record("dimensions", "taccl", "done", since, finish_us=found.finish_us, message=bound.limits)


def balanced_implicit(
    dims: Dimensions, collective: str, *, chunk_bytes: int, num_chunks: int, policy: Policy = "lp"
) -> ImplicitSchedule:
    """Implicit schedule of a translation-symmetric network: the sends of one rank stand for those of all."""
    shape = translations_along(dims)
    plan = _planned(dims, collective, num_chunks, ticks_of(shape.classes, chunk_bytes), policy)
    return implicit_along(plan, shape, chunk_bytes=chunk_bytes, producer=f"{BALANCED} ({policy})")


def _planned(
    dims: Dimensions,
    collective: str,
    num_chunks: int,
    costs: Costs | ClassTicks,
    policy: Policy,
    *,
    improve: bool = True,
) -> PassagePlan:
    """Plan with the earliest finish, over up to three assignments of orders to chunks.

    Two assignments balance the loads of dimensions by different criteria. With ``"lp"`` a third follows the
    optimal shares, but rounding of the shares to few chunks may make it worse than the others. An alltoall,
    or a single dimension, has one assignment.
    """
    exchange = collective == "alltoall"
    orders = [level_orders(dims, num_chunks, exchange=exchange)]
    if not exchange and len(dims) > 1:
        orders.append(level_orders(dims, num_chunks, smooth=True))
        orders += [choose_orders(dims, collective, num_chunks)] * (policy == "lp")
    paces = paces_of(dims, costs)
    plans = [plan_along(dims, collective, each, paces, improve=False) for each in orders]
    ranked = sorted(range(len(plans)), key=lambda i: plans[i].finish_ticks)
    if improve:  # improve the best plan, and the second best if it is close
        most = _NEAR * plans[ranked[0]].finish_ticks
        near = [orders[i] for i in ranked[:2] if plans[i].finish_ticks <= most]
        plans += [plan_along(dims, collective, each, paces) for each in near]
    return min(plans, key=lambda plan: plan.finish_ticks)


@dataclass(frozen=True)
class GroupPart:
    """One group's collective, on the topology of its members alone.

    - `chunks`: Indices of its chunks in the problem of all groups.
    - `ranks`: Its members, ascending: rank i of the part is ``ranks[i]``.
    """

    problem: Problem
    dims: Dimensions
    chunks: range
    ranks: tuple[int, ...]


def parts_of(problem: Problem) -> list[GroupPart]:
    """A `GroupPart` for each process group; raises `CollectiveError` if a group spans no dimensions."""
    collective = problem.collective
    found = []
    for group, chunks in zip(collective.process_groups, collective.chunks_of_group, strict=True):
        if group.name not in IMPLICIT_COLLECTIVES or list(group.ranks) != sorted(group.ranks):
            raise CollectiveError(
                f"found {group.name} of ranks {list(group.ranks[:8])}; expected one of "
                f"{', '.join(IMPLICIT_COLLECTIVES)}, of ranks in ascending order",
                where=_WHERE,
            )
        pieces, rest = divmod(group.num_chunks, make(group.name, len(group.ranks)).num_chunks)
        alone = make(group.name, len(group.ranks), chunks_per_rank=max(1, pieces))
        inside = alone.among(group.ranks, num_ranks=collective.num_ranks)
        sizes = set(problem.chunk_bytes[chunks.start : chunks.stop])
        if rest or len(sizes) > 1 or inside.chunks != collective.chunks[chunks.start : chunks.stop]:
            said = f"found {group.name} with custom chunks; expected a complete one, in chunks of one size"
            raise CollectiveError(said, where=_WHERE)
        try:
            topology = subset(problem.topology, ranks=group.ranks)
        except TopologyError as error:
            raise CollectiveError(error.message, where=_WHERE) from None
        part = make_problem(topology, alone, chunk_bytes=sizes.pop())
        found.append(GroupPart(part, dimensions_of(part, baseline=_WHERE), chunks, group.ranks))
    return found


def schedule_of_groups(
    problem: Problem, make_part: Callable[[Problem, Dimensions], Schedule | None], *, producer: str
) -> Schedule | None:
    """One schedule in which all groups run concurrently; None if `make_part` returns None for a group.

    Groups of the same shape share one schedule. The result is not verified: it is invalid if groups
    share resources.

    - `make_part`: Function from a group's problem and dimensions to its schedule.
    """
    made: dict[tuple[Any, ...], Schedule | None] = {}
    columns: list[tuple[NDArray[Any], ...]] = []
    links = {(link.src, link.dst): index for index, link in enumerate(problem.topology.links)}
    for part in parts_of(problem):
        alike = part.dims.dims, part.problem.collective, part.problem.chunk_bytes[0]
        if alike not in made:
            made[alike] = make_part(part.problem, part.dims)
        found = made[alike]
        if found is None:
            return None
        ticks = Fraction(problem.costs.ticks_per_us, found.problem.costs.ticks_per_us)
        if ticks.denominator > 1:
            said = "found costs of the groups' links in other ticks than those of all links"
            raise CollectiveError(said, where=_WHERE)
        inside = found.problem.topology.links
        outside = [links[part.ranks[link.src], part.ranks[link.dst]] for link in inside]
        columns.append(
            (
                np.asarray(found.chunk) + part.chunks.start,
                np.array(outside, np.int64)[found.link],
                np.asarray(found.start) * int(ticks),
                np.asarray(found.reduce),
            )
        )
    chunk, link, start, reduce = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.argsort(start, kind="stable")
    chunk, link, start, reduce = (column[order] for column in (chunk, link, start, reduce))
    return Schedule(problem, narrow(chunk), narrow(link), narrow(start), reduce=reduce, producer=producer)
