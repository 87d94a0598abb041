"""Implicit or explicit schedules from plans in which chunks pass one dimension after another.

A passage is the movement of one chunk along one dimension. Its sends are grouped into runs, whose starts the
plan gives (`taccl.baselines.dimension_passes`). No two sends use a link or a port at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arrays import lexsort
from taccl._internal.units import format_about
from taccl.baselines.dimension_passes import ChunkPassage, Pace, PassagePlan, plan_along
from taccl.baselines.forms import fastest
from taccl.errors import CollectiveError, TopologyError
from taccl.problem.costs import Costs, hold_columns
from taccl.problem.problem import Problem
from taccl.schedule.columns import narrow
from taccl.schedule.implicit_schedule import ClassTicks, ImplicitSchedule, Pattern
from taccl.schedule.schedule import Schedule, make_schedule
from taccl.schedule.timing import exact_times
from taccl.topology.named import NamedFabric
from taccl.topology.products import Dimensions
from taccl.topology.recognise import links_along
from taccl.topology.translations import (
    CyclicProduct,
    Translations,
    translations_of_fabric,
    translations_of_topology,
)

#: Max transfers of an explicit schedule.
_MOST_LISTED = 5_000_000
#: Max transfers of a schedule that is re-timed, and also tried with merged sends (about 1 s each).
_MOST_RETIMED = 600_000


def translations_along(dims: Dimensions) -> Translations:
    """Group of translations along all dimensions; raises `TopologyError` if a dimension is a line."""
    if not dims.is_regular:
        raise TopologyError(
            "found a line, whose ranks are not equivalent; expected rings, switches or fully connected "
            "groups",
            where=dims.host.name,
        )
    if isinstance(dims.host, NamedFabric):
        return translations_of_fabric(dims.host)
    return translations_of_topology(dims.host, CyclicProduct(dims.sizes[::-1]))


def paces_of(dims: Dimensions, costs: Costs | ClassTicks) -> tuple[Pace, ...]:
    """Pace along each dimension: ticks for which a send of one piece holds its port, and ticks that it lasts.

    - `costs`: Costs of links, or of classes of links.
    """
    if isinstance(costs, ClassTicks):
        number = {each.dst: g for g, each in enumerate(translations_along(dims).classes)}
        found = [number[stride] for stride in dims.strides]
        return tuple(Pace(max(h[1] for h in costs.holds[g]), int(costs.latency[g])) for g in found)
    assert not isinstance(dims.host, NamedFabric), "costs of links are of a topology"
    columns, units, paces = hold_columns(dims.host), int(costs.chunk_units[0]), []
    for table in links_along(dims.host, dims):
        link = int(table[0, 1])
        _, holds = columns.of_sends(np.array([link]))
        held = costs.hold_alpha[holds] + units * costs.hold_beta[holds]
        paces.append(Pace(int(held.max()), costs.duration(link, units)))
    return tuple(paces)


def implicit_along(
    plan: PassagePlan, shape: Translations, *, chunk_bytes: int, producer: str
) -> ImplicitSchedule:
    """Implicit schedule of a plan: sends of rank 0's pieces or sums, translated to all other ranks."""
    number = np.full(plan.dims.num_ranks, -1, np.int64)
    number[[each.dst for each in shape.classes]] = np.arange(len(shape.classes))
    columns = []
    for each, sends in _sends(plan, np.zeros(1, np.int64)):
        item = each.chunk + plan.num_chunks * sends.item * (plan.collective == "alltoall")
        stride = plan.dims.strides[each.dimension]
        columns.append(
            (
                np.broadcast_to(item, sends.src.shape),
                sends.src,
                sends.dst,
                number[sends.by * stride],
                sends.start,
                np.full(len(sends.src), each.reduces),
            )
        )
    pattern = Pattern.sorted(*(np.concatenate(column) for column in zip(*columns, strict=True)))
    found = ImplicitSchedule(shape, plan.collective, plan.num_chunks, chunk_bytes, pattern, producer)
    assert found.finish_ticks == plan.finish_ticks, "sends are as planned"
    return found


def schedule_along(plan: PassagePlan, problem: Problem, *, producer: str) -> Schedule:
    """Schedule of a plan; plan and problem must have the same number of chunks per rank."""
    chunk, link, start, _, reduce = _columns(plan, problem)
    return Schedule(problem, narrow(chunk), narrow(link), narrow(start), reduce=reduce, producer=producer)


def _columns(plan: PassagePlan, problem: Problem) -> list[NDArray[Any]]:
    """Columns (chunk, link, start, step, reduces) of all sends of a plan, in order of start."""
    num_ranks, num_chunks = plan.dims.num_ranks, plan.num_chunks
    tables = links_along(problem.topology, plan.dims)
    rows, num_steps = [], 0
    for each, sends in _sends(plan, np.arange(num_ranks)):
        chunk = sends.root * num_chunks + each.chunk
        if plan.collective == "alltoall":
            strides, sizes = plan.dims.strides, plan.dims.sizes
            target = sum(
                (sends.root // s + sends.item // s) % n * s for s, n in zip(strides, sizes, strict=True)
            )
            chunk = (sends.root * num_ranks + target) * num_chunks + each.chunk
        stride, size = plan.dims.strides[each.dimension], plan.dims.sizes[each.dimension]
        link = tables[each.dimension][sends.src, sends.dst // stride % size].astype(np.int32)
        step = (num_steps + sends.step).astype(np.int32)
        rows.append((chunk.astype(np.int32), link, sends.start, step, np.full(len(link), each.reduces)))
        num_steps += 1 + int(sends.step.max())
    columns = [np.concatenate(column) for column in zip(*rows, strict=True)]
    order = np.argsort(columns[2], kind="stable")
    return [column[order] for column in columns]


class _PassageSends(NamedTuple):
    """Sends of one passage, i.e. of one chunk along one dimension, as columns.

    - `root`: Rank at which the piece starts, or its sum ends.
    - `item`: In an alltoall, the rank offset from `root` to the piece's destination.
    - `by`: Difference between the digits of `dst` and `src` along the dimension.
    - `start`: Start in ticks; `_of_passage` returns it relative to the start of the run.
    - `run`: Index of the send's run, i.e. of its sequence of consecutive hops.
    - `step`: Number of the step; sends of one step over one link may be merged.
    """

    root: NDArray[np.int64]
    item: NDArray[np.int64]
    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    by: NDArray[np.int64]
    start: NDArray[np.int64]
    run: NDArray[np.int64]
    step: NDArray[np.int64]


def _sends(plan: PassagePlan, roots: NDArray[np.int64]) -> Iterator[tuple[ChunkPassage, _PassageSends]]:
    """Yield each passage (one chunk along one dimension) of a plan with its sends.

    - `roots`: Ranks; sends are for chunks that start at them, or for sums that end at them.
    """
    known: dict[tuple[tuple[int, ...], int, int, bool], _PassageSends] = {}
    for each in plan.passages:
        alike = each.order, each.place, each.chunk % 2, each.reduces
        if alike not in known:
            known[alike] = _of_passage(plan, each, roots)
        found = known[alike]
        yield each, found._replace(start=found.start + np.array(each.begins)[found.run])


def _of_passage(plan: PassagePlan, each: ChunkPassage, roots: NDArray[np.int64]) -> _PassageSends:
    """Sends of one chunk along one dimension (a passage), with starts relative to the start of their run.

    Pieces at one rank have different origins, which differ in the digits of the dimensions that the chunk has
    already passed. In an exchange (alltoall), the pieces differ in the digits of their origin or destination
    in all dimensions but this one.
    """
    axis, dims = each.dimension, plan.dims
    strides, sizes = dims.strides, dims.sizes
    exchange = plan.collective == "alltoall"
    done = each.order[: each.place] if exchange else each.order[each.place + 1 :]
    digits, pieces = dims.digits(roots), np.arange(each.num_pieces)
    here = np.repeat((roots - digits[axis] * strides[axis])[:, None], len(pieces), axis=1)
    number, offset = pieces, np.zeros_like(pieces)
    for k in (k for k in each.order if k != axis) if exchange else done:
        number, by = number // sizes[k], number % sizes[k]
        offset += by * strides[k]
        if k in done:
            here += ((digits[k][:, None] + by) % sizes[k] - digits[k][:, None]) * strides[k]
    held, digit = plan.paces[axis].held, digits[axis][:, None]
    columns: list[list[NDArray[np.int64]]] = []
    step = 0
    for place, run in enumerate(each.runs):
        last = 0
        for begin, hop in run.hops:
            step += begin - hop.turn * len(pieces) * held != last
            last = begin - hop.turn * len(pieces) * held
            goes = np.array(hop.going(len(pieces), each.chunk % 2), np.int64)
            start = begin + np.arange(len(goes)) * held
            ends = [digit + hop.src, digit + hop.dst]
            fits = np.full(len(roots), True)
            if dims.dims[axis].kind == "line":
                fits = ((ends[1] >= 0) & (ends[1] < sizes[axis]))[:, 0]
            src, dst = (here[fits][:, goes] + end[fits] % sizes[axis] * strides[axis] for end in ends)
            way = hop.dst - hop.src
            if each.reduces:
                src, dst, way, start = dst, src, -way, run.busy - held - start
            row = (
                roots[fits][:, None], (hop.target * strides[axis] + offset)[goes], src, dst,
                way % sizes[axis], start, place, step,
            )  # fmt: skip
            columns.append([np.broadcast_to(column, src.shape).ravel() for column in row])
        step += 1
    return _PassageSends(*(np.concatenate(column) for column in zip(*columns, strict=True)))


def listed_along(
    dims: Dimensions,
    problem: Problem,
    orders: Sequence[Sequence[int]],
    *,
    producer: str,
    by_piece: bool = False,
) -> Schedule:
    """Schedule whose chunks pass one dimension after another; sends are merged if that finishes sooner.

    Raises `CollectiveError` if the schedule would have more than `_MOST_LISTED` transfers.

    - `orders`: Order of dimensions for each chunk of a rank, as in `plan_along`.
    - `by_piece`: True if each piece goes on as soon as it has arrived; False if a chunk begins a dimension
      when all its pieces have passed the dimension before.
    """
    num_transfers, name = 2 * len(orders) * dims.num_ranks**2, problem.collective.name
    if num_transfers > _MOST_LISTED:
        raise CollectiveError(
            f"found about {format_about(num_transfers)} transfers; expected at most {_MOST_LISTED}: "
            "use fewer chunks, give hierarchical the dimensions, or synthesize with "
            "backend='dimension-balanced'",
            where=dims.host.name,
        )
    paces = paces_of(dims, problem.costs)
    plan = plan_along(dims, name, orders, paces)
    planned = schedule_along(plan, problem, producer=producer)
    found = [make_schedule(problem, **planned.columns, producer=producer)]
    if num_transfers > _MOST_RETIMED:
        return found[0]
    if by_piece:
        retimed = exact_times(
            problem, chunk=planned.chunk, link=planned.link, starts=planned.start, reduce=planned.reduce,
            producer=producer,
        )  # fmt: skip
        found = [retimed]
    if problem.clauses.merging:
        for doubling in (False, True):
            plan = plan_along(dims, name, orders, paces, doubling=doubling, improve=False)
            found.append(_merged(plan, problem, producer))
    return fastest(found)


def _merged(plan: PassagePlan, problem: Problem, producer: str) -> Schedule:
    """Re-timed schedule of a plan; pieces that cross a link in one step are merged as clauses allow."""
    chunk, link, start, step, reduce = _columns(plan, problem)
    order = lexsort((start, step, link))
    same = (np.diff(link[order]) == 0) & (np.diff(step[order]) == 0)
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
