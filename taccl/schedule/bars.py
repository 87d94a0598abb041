"""Sends of a schedule as bars of a Gantt chart, in one row per link, resource or rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arguments import Count, checked
from taccl._internal.arrays import Flags, Floats, Ints, lexsort, numbered
from taccl._internal.names import shown as as_shown
from taccl.problem.costs import hold_columns
from taccl.problem.problem import Problem
from taccl.schedule.columns import check_indices
from taccl.schedule.schedule import Schedule

By = Literal["link", "resource", "rank"]
#: Value of `Bars.chunk` or `Bars.origin` for a merged send whose chunks or origins differ.
SEVERAL = -1


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars of a Gantt chart as columns: each bar is a send, in the row of its link, resource or source rank.

    - `rows`, `number`: Names of the rows shown, from the top; for each row, the index of its link, resource
      or rank.
    - `num_rows`: Number of rows with bars. If it exceeds the number of rows shown, the busiest are shown.
    - `row`: Index of the bar's row in `rows`.
    - `lane`, `num_lanes`: Lane of the bar within its row, and number of lanes of the row. Bars that overlap
      in time have different lanes.
    - `send`: `group` of the send in the schedule.
    - `chunk`, `origin`: Chunk of the send, and rank where it starts (for a sum, its root). `SEVERAL` if those
      of merged chunks differ.
    - `num_hidden`: Number of bars in rows that are not shown.
    """

    rows: tuple[str, ...]
    number: tuple[int, ...]
    num_rows: int
    row: Ints
    lane: Ints
    num_lanes: Ints
    start_us: Floats
    end_us: Floats
    send: Ints
    chunk: Ints
    origin: Ints
    link: Ints
    reduce: Flags
    num_hidden: int


@checked
def bars_of(schedule: Schedule, by: By = "link", *, max_rows: Count = 48) -> Bars:
    """Bars of a schedule, in the `max_rows` busiest rows."""
    problem = schedule.problem
    check_indices(problem, schedule.chunk, schedule.link)
    send = _sends(schedule)
    row, start, end, index, names = _rows(problem, by, send)
    us = 1 / problem.costs.ticks_per_us
    busy = np.bincount(row, weights=end - start, minlength=len(names)) if len(row) else np.zeros(len(names))
    used = np.flatnonzero(np.bincount(row, minlength=len(names)))
    shown = np.sort(used[np.argsort(-busy[used], kind="stable")[:max_rows]])
    place = np.full(len(names), -1, dtype=np.int64)
    place[shown] = np.arange(len(shown))
    kept = np.flatnonzero(place[row] >= 0)
    kept = kept[lexsort((end[kept], start[kept], place[row[kept]]))]
    at = place[row[kept]]
    lane = _lanes(at, start[kept], end[kept])
    num_lanes = np.ones(len(shown), dtype=np.int64)
    np.maximum.at(num_lanes, at, lane + 1)
    of = index[kept]
    return Bars(
        rows=tuple(as_shown(names[each], 100) for each in shown.tolist()), number=tuple(shown.tolist()),
        num_rows=len(used), row=at, lane=lane, num_lanes=num_lanes[at], num_hidden=len(row) - len(kept),
        start_us=start[kept].astype(np.float64) * us, end_us=end[kept].astype(np.float64) * us,
        send=send["group"][of], **{each: send[each][of] for each in ("chunk", "origin", "link", "reduce")},
    )  # fmt: skip


def busy_shares(schedule: Schedule) -> Floats:
    """(num_resources,) share of the schedule's duration during which each resource is busy."""
    check_indices(schedule.problem, schedule.chunk, schedule.link)
    row, start, end, _, names = _rows(schedule.problem, "resource", _sends(schedule))
    finish = schedule.finish_ticks
    if not finish:
        return np.zeros(len(names))
    shares: Floats = np.bincount(row, weights=end - start, minlength=len(names)) / finish
    return shares


def _sends(schedule: Schedule) -> dict[str, NDArray[Any]]:
    """{name: column}, with one value per send: group, link, start, end, reduce, chunk, origin and units."""
    collective = schedule.problem.collective
    made_at = {each.chunk: each.rank for each in collective.derivations}
    origins = np.array(
        [
            chunk.root if collective.combining and chunk.root is not None
            else chunk.origins[0] if chunk.origins
            else made_at[index]
            for index, chunk in enumerate(collective.chunks)
        ],
        dtype=np.int64,
    )  # fmt: skip
    _, first, member = numbered(schedule.group)
    chunk = schedule.chunk.astype(np.int64)
    sends: dict[str, NDArray[Any]] = {
        name: getattr(schedule, name)[first] for name in ("start", "end", "reduce")
    }
    sends |= {name: getattr(schedule, name)[first].astype(np.int64) for name in ("group", "link")}
    for name, column in (("chunk", chunk), ("origin", origins[chunk] if len(chunk) else chunk)):
        differs = np.zeros(len(first), dtype=bool)
        np.logical_or.at(differs, member, column != column[first][member])
        sends[name] = np.where(differs, SEVERAL, column[first])
    units = schedule.problem.costs.chunk_units[chunk] if len(chunk) else chunk
    sends["units"] = np.bincount(member, weights=units, minlength=len(first)).astype(np.int64)
    return sends


def _rows(
    problem: Problem, by: By, send: dict[str, NDArray[Any]]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], list[str]]:
    """Return columns (row, start, end, send) with one value per bar, in ticks, and the names of all rows."""
    topology = problem.topology
    every = np.arange(len(send["link"]))
    if by == "link":
        return send["link"], send["start"], send["end"], every, [str(link) for link in topology.links]
    if by == "rank":
        src = np.array([link.src for link in topology.links], dtype=np.int64)
        names = [f"rank {rank}" for rank in range(topology.num_ranks)]
        return src[send["link"]], send["start"], send["end"], every, names
    costs, columns = problem.costs, hold_columns(topology)
    index, hold = columns.of_sends(send["link"])
    lasts = costs.hold_alpha[hold] + send["units"][index] * costs.hold_beta[hold]
    start = np.where(columns.receives[hold], send["end"][index] - lasts, send["start"][index])
    names = [each.name for each in topology.resources]
    return columns.resource[hold], start, start + lasts, index, names


def _lanes(row: Ints, start: Ints, end: Ints) -> Ints:
    """Lane of each bar: the first one that is free at its start. Bars must be sorted by row, then start."""
    lanes = np.zeros(len(row), dtype=np.int64)
    free: list[int] = []
    current = -1
    for i, (r, begin, until) in enumerate(zip(row.tolist(), start.tolist(), end.tolist(), strict=True)):
        if r != current:
            current, free = r, []
        lane = next((k for k, ends in enumerate(free) if ends <= begin), len(free))
        if lane == len(free):
            free.append(until)
        else:
            free[lane] = until
        lanes[i] = lane
    return lanes
