"""Every send of a plan along dimensions: as seen from one rank, or of all of them.

Sends are put into passages by the form that suits the dimension (`taccl.baselines.forms`). So the times of
all are known beforehand, and no two meet on a link or a port.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from taccl.baselines.forms import Pace
from taccl.baselines.passages import plan_along
from taccl.collectives import make
from taccl.costs import hold_columns
from taccl.errors import CollectiveError, TopologyError
from taccl.schedule.compact import CompactSchedule
from taccl.schedule.implicit import IMPLICIT_COLLECTIVES, ImplicitSchedule
from taccl.schedule.pattern import ClassTicks, Pattern, ticks_of
from taccl.schedule.timing import exact_times
from taccl.topology.named import NamedFabric
from taccl.topology.recognise import links_along
from taccl.topology.regular import CyclicProduct
from taccl.topology.translations import translations_of_fabric, translations_of_topology

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from taccl.baselines.passages import Passage, Plan
    from taccl.clauses import Clauses
    from taccl.costs import Costs
    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.topology.products import Dimensions
    from taccl.topology.translations import Translations

__all__ = [
    "implicit_along",
    "listed_along",
    "paces_of",
    "require_plain",
    "schedule_along",
    "translations_along",
]

#: A full schedule of more transfers than this is refused.
_MOST_LISTED = 5_000_000
#: Up to so many are merged, which takes longer.
_MOST_MERGED = 40_000
#: A passage has fewer steps than two to this power.
_STEP_BITS = 32


def translations_along(dims: Dimensions) -> Translations:
    """The shifts along every dimension; `TopologyError` where one is a line."""
    if not dims.is_regular:
        raise TopologyError(
            "found a line, along which ranks differ; expected rings, switches and fully connected groups",
            where=dims.host.name,
        )
    if isinstance(dims.host, NamedFabric):
        return translations_of_fabric(dims.host)
    return translations_of_topology(dims.host, CyclicProduct(dims.sizes[::-1]))


def paces_of(dims: Dimensions, costs: Costs | ClassTicks, clauses: Clauses | None = None) -> tuple[Pace, ...]:
    """Ticks of a send of one piece along every dimension; costs are of the links, or of classes of them.

    Clauses say which links merge pieces.
    """
    if isinstance(costs, ClassTicks):
        number = {each.dst: g for g, each in enumerate(translations_along(dims).classes)}
        found = [number[stride] for stride in dims.strides]
        return tuple(Pace(max(h[1] for h in costs.holds[g]), int(costs.latency[g])) for g in found)
    assert not isinstance(dims.host, NamedFabric), "costs of links are of a topology"
    columns, units, paces = hold_columns(dims.host), int(costs.chunk_units[0]), []
    for table in links_along(dims, dims.host):
        link = int(table[0, 1])
        _, holds = columns.of_sends(np.array([link]))
        held = costs.hold_alpha[holds] + units * costs.hold_beta[holds]
        merge = clauses.max_merge if clauses is not None and link in clauses.merging else 1
        alpha = int(costs.hold_alpha[holds].max())
        paces.append(Pace(int(held.max()), costs.duration(link, units), alpha, merge if alpha else 1))
    return tuple(paces)


def implicit_along(plan: Plan, shape: Translations, *, chunk_bytes: int, producer: str) -> ImplicitSchedule:
    """The schedule of a plan as seen from one rank."""
    ticks = ticks_of(shape.classes, chunk_bytes)
    number = np.full(plan.dims.num_ranks, -1, np.int64)
    number[[each.dst for each in shape.classes]] = np.arange(len(shape.classes))
    num_chunks, columns = plan.num_chunks, []
    for each in _sends(plan, np.zeros(1, np.int64)):
        stride, size = plan.dims.strides[each.axis], plan.dims.sizes[each.axis]
        item = each.chunk + num_chunks * each.item * (plan.collective == "alltoall")
        ends = {False: (each.src, each.dst, each.by), True: (each.dst, each.src, (size - each.by) % size)}
        for reduce, start in _halves(plan, each):
            src, dst, by = ends[reduce]
            columns.append((item, src, dst, number[by * stride], start, np.full(len(start), reduce)))
    pattern = Pattern.sorted(*(np.concatenate(column) for column in zip(*columns, strict=True)))
    found = ImplicitSchedule(shape, plan.collective, num_chunks, chunk_bytes, pattern, producer)
    assert found.finish_ticks == plan.finish_ticks and found.ticks.ticks_per_us == ticks.ticks_per_us
    return found


def schedule_along(plan: Plan, problem: Problem, *, producer: str) -> CompactSchedule:
    """The schedule of a plan, send by send; the plan is of as many chunks as the problem has a rank."""
    (chunk, link, start, _), num_reducing = _columns(plan, problem)
    return CompactSchedule(problem, chunk, link, start, producer, num_reducing)


def _columns(plan: Plan, problem: Problem) -> tuple[list[NDArray[Any]], int]:
    """Chunk, link, start, and passage and step of every send; how many of them reduce, which come first."""
    num_ranks, num_chunks = plan.dims.num_ranks, plan.num_chunks
    tables = links_along(plan.dims, problem.topology)
    of_half: dict[bool, list[tuple[NDArray[Any], ...]]] = {True: [], False: []}
    for number, each in enumerate(_sends(plan, np.arange(num_ranks))):
        chunk = each.root * num_chunks + each.chunk
        if plan.collective == "alltoall":
            strides, sizes = plan.dims.strides, plan.dims.sizes
            target = sum(
                (each.root // s + each.item // s) % n * s for s, n in zip(strides, sizes, strict=True)
            )
            chunk = (each.root * num_ranks + target) * num_chunks + each.chunk
        stride, size = plan.dims.strides[each.axis], plan.dims.sizes[each.axis]
        for reduce, start in _halves(plan, each):
            ends = (each.dst, each.src // stride % size) if reduce else (each.src, each.digit)
            link = tables[each.axis][ends].astype(np.int32)
            run = (number << _STEP_BITS) + each.step
            of_half[reduce].append((chunk.astype(np.int32), link, start, run))
    columns: list[list[NDArray[Any]]] = [[], [], [], []]
    num_reducing = 0
    for reduce, rows in of_half.items():
        if rows:
            some = [np.concatenate(column) for column in zip(*rows, strict=True)]
            order = np.argsort(some[2], kind="stable")
            for column, values in zip(columns, some, strict=True):
                column.append(values[order])
            num_reducing += len(order) * reduce
    return [np.concatenate(column) for column in columns], num_reducing


class _Sends(NamedTuple):
    """Sends of a passage as it gathers: of the piece from `root`, in an exchange to the rank `item` away."""

    axis: int
    chunk: NDArray[np.int64]
    root: NDArray[np.int64]
    item: NDArray[np.int64]
    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    digit: NDArray[np.int64]  # of the destination, along the axis
    by: NDArray[np.int64]  # how much it differs from the source's
    start: NDArray[np.int64]
    step: NDArray[np.int64]


def _sends(plan: Plan, roots: NDArray[np.int64]) -> Iterator[_Sends]:
    """The sends of what starts at some ranks, or of sums that end there, passage by passage."""
    known: dict[tuple[tuple[int, ...], int, int], _Sends] = {}
    for each in plan.passages:
        alike = each.order, each.place, len(each.chunks)
        if alike not in known:
            known[alike] = _of_passage(plan, each, roots)
        begin, found = each.begin, known[alike]
        if plan.collective != "alltoall":  # gathered: a reduction turned round in time
            begin = plan.half_ticks - begin - each.timed.span
        yield found._replace(chunk=np.array(each.chunks)[found.chunk], start=found.start + begin)


def _of_passage(plan: Plan, each: Passage, roots: NDArray[np.int64]) -> _Sends:
    """The sends of a passage from its begin on, its chunks numbered from 0.

    Pieces that a rank passes on alike differ in their chunk, and in where they started along the dimensions
    done before; in an exchange, in where they start or go along all others.
    """
    axis, timed, form = each.dimension, each.timed, each.timed.form
    strides, sizes = plan.dims.strides, plan.dims.sizes
    exchange = plan.collective == "alltoall"
    done = each.order[: each.place] if exchange else each.order[each.place + 1 :]
    moving = [k for k in each.order if k != axis] if exchange else list(done)
    digits = plan.dims.digits(roots)
    number = np.arange(len(each.chunks) * prod(sizes[k] for k in moving))
    number, chunk = number // len(each.chunks), number % len(each.chunks)
    here = np.repeat((roots - digits[axis] * strides[axis])[:, None], len(number), axis=1)
    offset = np.zeros_like(number)
    for k in moving:
        number, by = number // sizes[k], number % sizes[k]
        offset += by * strides[k]
        if k in done:
            here += ((digits[k][:, None] + by) % sizes[k] - digits[k][:, None]) * strides[k]
    rows = digits[axis]
    src, dst = form.src[rows][:, :, None], form.dst[rows][:, :, None]
    of_rank = rows if len(timed.offset) > 1 else np.zeros_like(rows)
    goes = timed.goes[of_rank]
    columns = (
        chunk, roots[:, None, None], form.target[:, None] * strides[axis] + offset,
        here[:, None, :] + src * strides[axis], here[:, None, :] + dst * strides[axis],
        dst, (dst - src) % sizes[axis], timed.offset[of_rank], form.step[of_rank][:, :, None],
    )  # fmt: skip
    return _Sends(axis, *(np.broadcast_to(column, goes.shape)[goes] for column in columns))


def listed_along(
    dims: Dimensions, problem: Problem, orders: Sequence[Sequence[int]], *, producer: str
) -> Schedule:
    """The full schedule of a problem whose chunks take orders; with sends merged where that is sooner.

    `CollectiveError` says where it would be too large.
    """
    num_transfers, name = 2 * len(orders) * dims.num_ranks**2, problem.collective.name
    if num_transfers > _MOST_LISTED:
        raise CollectiveError(
            f"found about {num_transfers:.2g} transfers; expected at most {_MOST_LISTED}: take fewer chunks, "
            "give hierarchical the dimensions, or synthesize with backend='dimension-balanced'",
            where=dims.host.name,
        )
    plan = plan_along(dims, name, orders, paces_of(dims, problem.costs))
    found = schedule_along(plan, problem, producer=producer).expand()
    paces = paces_of(dims, problem.costs, problem.clauses)
    if num_transfers > _MOST_MERGED or all(pace.merge == 1 for pace in paces):
        return found
    merged = _merged(plan_along(dims, name, orders, paces), problem, producer)
    return merged if merged.finish <= found.finish else found


def _merged(plan: Plan, problem: Problem, producer: str) -> Schedule:
    """The schedule of a plan whose pieces merge where they go over one link in one step, timed anew."""
    (chunk, link, start, run), num_reducing = _columns(plan, problem)
    reduce = np.arange(len(chunk)) < num_reducing
    order = np.lexsort((start, run, link, ~reduce))
    same = (np.diff(link[order]) == 0) & (np.diff(run[order]) == 0) & (np.diff(reduce[order]) == 0)
    first = np.flatnonzero(np.append(True, ~same))
    place = np.arange(len(order)) - np.repeat(first, np.diff(np.append(first, len(order))))
    merges = np.isin(link[order], list(problem.clauses.merging))
    begins = ~np.append(False, same) | ~merges | (place % problem.clauses.max_merge == 0)
    group = np.empty(len(order), np.int64)
    group[order] = np.cumsum(begins) - 1
    latest = np.zeros(int(begins.sum()), np.int64)
    np.maximum.at(latest, group, start)
    sequence = np.argsort(np.argsort(latest, kind="stable"))[group]
    return exact_times(
        problem, chunk=chunk, link=link, sequence=sequence, group=group, reduce=reduce, producer=producer
    )


def _halves(plan: Plan, each: _Sends) -> Iterator[tuple[bool, NDArray[np.int64]]]:
    """The starts of a passage's sends as they reduce, turned round in time, and as they spread."""
    latency = plan.paces[each.axis].latency
    if plan.collective in ("reduce-scatter", "allreduce"):
        yield True, plan.half_ticks - each.start - latency
    if plan.collective != "reduce-scatter":
        yield False, each.start + (plan.half_ticks if plan.collective == "allreduce" else 0)


def require_plain(problem: Problem, dims: Dimensions) -> None:
    """Raise `CollectiveError` unless a problem is a whole collective that goes along dimensions."""
    collective = problem.collective
    if dims.num_ranks != collective.num_ranks:
        raise CollectiveError(
            f"found dimensions of {dims.num_ranks} ranks; expected {collective.num_ranks}", where="dimensions"
        )
    known = collective.name in IMPLICIT_COLLECTIVES and len(set(problem.chunk_bytes)) == 1
    if not known or collective != make(
        collective.name, collective.num_ranks, chunks_per_rank=collective.chunks_per_rank
    ):
        raise CollectiveError(
            f"found {collective.name} of chunks of its own; expected a whole "
            f"{', '.join(IMPLICIT_COLLECTIVES)}: use another baseline, or synthesize it",
            where="dimensions",
        )
