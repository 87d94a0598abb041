"""Read algorithm files of the published TACCL tool (JSON) as schedules that `verify` can check.

The file's own topology is rebuilt under the cost model of the published tool. Every send keeps the start that
the file states, so that the file itself is verified, not a re-timed copy. Sends that start together over the
same link between nodes are one merged send. The stated times have two known inaccuracies:

- Starts are truncated to tenths of the file's unit of time. If a cost is not a whole number of tenths, sends
  seem to overlap by less than a tenth.
- A combining algorithm is joined from two phases. In the file, the second phase begins one unit after the
  last *start* of the first, even if sends are still in flight. The reader moves it after the first phase.

If a file's starts are infeasible for these reasons only, the schedule is that of `retimed`, and the problem's
notes say so. All other faults remain in the schedule, where `verify` finds them. See Shah et al., "TACCL:
Guiding Collective Algorithm Synthesis using Communication Sketches", NSDI 2023.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taccl._internal.arguments import checked
from taccl._internal.names import first_of
from taccl._internal.reading import parse_json, read_text, reads
from taccl._internal.units import BYTES_PER_MB, exact, parse_size
from taccl.analysis.verification.verify import verify
from taccl.errors import FormatError, InputError
from taccl.formats.published.fields import (
    REMEDY,
    AlgorithmFile,
    algorithm_file,
    build_topology,
    collective_of,
)
from taccl.problem.making import make_problem
from taccl.problem.problem import Problem
from taccl.program.messages import unequal_pairs
from taccl.schedule.schedule import Schedule, make_schedule
from taccl.schedule.timing import exact_times
from taccl.topology.topology import Topology

_LIMIT_BYTES = 64 * 10**6
_LAST_TICK = 2**61
_LONGEST_NAME = 200


@checked
@reads("algorithm of the published TACCL tool")
def load_upstream_algorithm(
    path: str | os.PathLike[str],
    *,
    topology: Topology | None = None,
    chunk_size: int | str | None = None,
    time_unit_us: int | float | str | None = None,
) -> Schedule:
    """Load the schedule in a file of the published TACCL tool, with the starts that the file states.

    - `topology`: Another topology for the sends, which are then re-timed in the order that the file states.
    - `chunk_size`: Size of a chunk, which the file does not state. Without it the schedule's ``size_bytes``
      is unknown, and times on another topology are for chunks of 10**6 bytes.
    - `time_unit_us`: Microseconds in the file's unit of time; 1 by default.
    """
    data = parse_json(read_text(path, _LIMIT_BYTES), source=str(path), exact=True)
    unit_us = exact(1 if time_unit_us is None else time_unit_us, where="time_unit_us")
    if unit_us == 0:
        raise InputError("found 0; expected the microseconds in a unit", where="time_unit_us")
    if topology is not None and time_unit_us is not None:
        raise InputError(
            "a time unit applies to the file's costs, which a topology replaces; leave one out",
            where="time_unit_us",
        )
    chunk_bytes = BYTES_PER_MB if chunk_size is None else parse_size(chunk_size, where="chunk_size")
    schedule = read_algorithm(data, str(path), chunk_bytes, unit_us, topology)
    if chunk_size is None:
        schedule = replace(schedule, problem=replace(schedule.problem, size_bytes=None))
    return schedule


def read_algorithm(
    data: dict[str, Any], where: str, chunk_bytes: int, unit_us: Fraction, topology: Topology | None = None
) -> Schedule:
    """Schedule of an algorithm file whose JSON is already parsed, with exact numbers.

    - `where`: Name of the file for error messages.
    - `unit_us`: Microseconds in the file's unit of time.
    """
    file = algorithm_file(data, where=where)
    reducing = any(send.operation for _, send in file.sends)
    built = build_topology(file, chunk_bytes, unit_us, reducing=reducing) if topology is None else topology
    if built.num_ranks != file.num_ranks:
        raise FormatError(
            f"found {file.num_ranks} ranks, but topology {built.name} has {built.num_ranks}; give one of "
            "equal size",
            where=f"{where}: collective.nodes",
        )
    try:
        chunk_of, collective, notes = collective_of(file)
        problem = make_problem(built, collective, chunk_bytes=chunk_bytes, notes=notes)
        _ = problem.costs
    except FormatError:
        raise
    except InputError as error:
        raise FormatError(f"{error}; {REMEDY}", where=where) from None
    columns = _columns(file, problem, chunk_of)
    if topology is None:
        return _as_stated(file, problem, columns, unit_us)
    return _on_other_topology(file, problem, columns)


def retimed(schedule: Schedule) -> Schedule | None:
    """Re-time a schedule: start every send as early as data and resources permit; keep the order of starts.

    The result is feasible even if sends of the given schedule overlap. If none overlap, the result finishes
    no later than the given schedule. Merged sends remain merged.

    Returns
    -------
    Schedule or None
        None if in this order a rank sends a chunk before it has received it, or the transfers of a group
        cannot be one send.
    """
    problem = schedule.problem
    _, first, send = np.unique(schedule.group, return_index=True, return_inverse=True)
    sequence = first[send]
    columns: dict[str, Any] = {
        name: getattr(schedule, name) for name in ("chunk", "link", "group", "reduce", "producer")
    }
    # Collectives that sum need no check: every rank holds a contribution from the start.
    if not problem.collective.sums_up:
        one_by_one = make_schedule(problem, start=sequence, end=sequence + 1, **columns)
        if any(each.kind in ("index", "presence") for each in verify(one_by_one).violations):
            return None
    try:
        return exact_times(problem, sequence=sequence, **columns)
    except ValueError:
        return None


def _columns(file: AlgorithmFile, problem: Problem, chunk_of: dict[int, int]) -> dict[str, Any]:
    """Schedule columns of a file's sends; merges sends that start together on a link between nodes."""
    topology = problem.topology
    parallel: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, link in enumerate(topology.links):
        if len(link.srcs) == len(link.dsts) == 1:
            parallel[link.src, link.dst].append(index)
    across = set(topology.internode_links)
    groups: dict[tuple[int, ...], int] = {}
    rows = []
    for position, (place, send) in enumerate(file.sends):
        if send.chunk not in chunk_of:
            raise FormatError(
                f"found chunk {send.chunk}; expected one of the {len(chunk_of)} of collective.chunks; "
                f"{REMEDY}",
                where=f"{file.where}: {place}",
            )
        links = parallel.get((send.src, send.dst), ())
        if send.number >= len(links):
            found = f"{len(links)} links" if links else "no link"
            raise FormatError(
                f"found link {send.number} from rank {send.src} to rank {send.dst}; topology {topology.name} "
                f"has {found} there; correct the send, or the topology",
                where=f"{file.where}: {place}",
            )
        index, reduces = links[send.number], send.operation is not None
        key = (index, send.start, int(reduces)) if index in across else (index, send.start, -1, position)
        rows.append((chunk_of[send.chunk], index, groups.setdefault(key, len(groups)), reduces))
    table = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    return {
        "chunk": table[0], "link": table[1], "group": table[2], "reduce": table[3].astype(bool),
        "producer": file.name[:_LONGEST_NAME],
    }  # fmt: skip


def _as_stated(file: AlgorithmFile, problem: Problem, columns: dict[str, Any], unit_us: Fraction) -> Schedule:
    """Schedule at the file's stated starts, corrected for rounding and overlapping phases if necessary."""
    costs = problem.costs
    tenth = unit_us / 10 * costs.ticks_per_us
    exact_starts = [send.start * tenth for _, send in file.sends]
    if max(exact_starts, default=Fraction(0)) > _LAST_TICK:
        raise FormatError(
            "found starts that need more than 64 bits at "
            f"{costs.ticks_per_us} ticks per microsecond; check the file",
            where=f"{file.where}: steps",
        )
    start = np.array([math.floor(each) for each in exact_starts], dtype=np.int64)
    link, reduce = columns["link"], columns["reduce"]
    duration = (
        costs.link_alpha[link] + np.bincount(columns["group"])[columns["group"]] * costs.link_beta[link]
    )
    shift = shift_of_second_half(start, start + duration, reduce)
    start = np.where(reduce, start, start + shift)
    schedule = make_schedule(problem, start=start, end=start + duration, **columns)
    steps = np.unique([costs.link_alpha[link], costs.link_beta[link]]).tolist()
    cut = any((each / tenth).denominator > 1 for each in steps) or any(
        e.denominator > 1 for e in exact_starts
    )
    if not shift and (not cut or verify(schedule).ok):
        return schedule
    early = retimed(schedule)
    slack = math.ceil(tenth) if cut else 0
    possible = early is not None and bool(np.all(_by_place(early) <= _by_place(schedule) + slack))
    chosen = early if early is not None and possible else schedule
    notes = []
    if shift:
        notes.append(
            f"{file.where}: the copies are stated to start {float(shift / tenth / 10):g} units before the "
            "last reduction ends, as in the published tool's two phases; they are moved after it"
        )
    if possible:
        why = ", as starts are rounded down to tenths of a unit" if cut else ""
        notes.append(f"{file.where}: the sends are re-timed in the stated order{why}")
    return replace(chosen, problem=replace(problem, notes=(*problem.notes, *notes)))


def shift_of_second_half(start: NDArray[np.int64], end: NDArray[np.int64], reduce: NDArray[np.bool_]) -> int:
    """Ticks to delay copies so that they follow all reductions.

    0 unless all copies start after the last reduction has started.
    """
    if reduce.all() or not reduce.any():
        return 0
    first_copy = int(start[~reduce].min())
    if first_copy <= int(start[reduce].max()):
        return 0
    return max(0, int(end[reduce].max()) - first_copy)


def _by_place(schedule: Schedule) -> NDArray[np.int64]:
    """Starts sorted by link, then chunk, so that two schedules of the same transfers are comparable."""
    return schedule.start[np.lexsort((schedule.start, schedule.chunk, schedule.link))]


def _on_other_topology(file: AlgorithmFile, problem: Problem, columns: dict[str, Any]) -> Schedule:
    """Schedule of the file's sends on another topology, re-timed in the order that the file states."""
    start = np.array([send.start for _, send in file.sends], dtype=np.int64)
    schedule = retimed(make_schedule(problem, start=start, end=start + 1, **columns))
    if schedule is None:
        raise FormatError(
            "found a chunk sent from a rank that it has not reached in the stated order; expected an "
            "executable order; verify the file without another topology first",
            where=f"{file.where}: steps",
        )
    uneven = unequal_pairs(problem.topology, set(schedule.link.tolist()), max(problem.chunk_bytes, default=0))
    if not uneven:
        return schedule
    said = "links are taken by their number in the file, whose parallel links are alike; here they differ"
    note = f"{file.where}: {said} ({first_of(uneven, 3)})"
    return replace(schedule, problem=replace(problem, notes=(*problem.notes, note)))
