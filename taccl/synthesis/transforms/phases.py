"""Reductions as two broadcast-like phases: split, search of each phase, and the joined schedule.

A combining collective is a reduction, which is a reversed broadcast over reversed links, and the broadcast of
its sums. The schedule of the reduce phase is reversed in time, and the schedules of both phases are
concatenated.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from taccl.analysis.verification.verify import verify
from taccl.errors import InfeasibleError, NoSolutionError, SketchError, TopologyError
from taccl.problem.costs import wide_links
from taccl.problem.problem import Problem
from taccl.schedule.combine import (
    broadcast_phase,
    concatenate,
    reduce_phase,
    reverse,
)
from taccl.schedule.listing import listed
from taccl.schedule.schedule import Schedule
from taccl.schedule.spill import room_for
from taccl.synthesis.search import Search
from taccl.synthesis.transforms.isomorphic import Isomorphism, find_isomorphism, hand_over, renamed

#: Share of the time for the reduce phase; the rest is for the broadcast phase.
_FIRST_SHARE = 0.5
#: Max transfers of schedules of both phases that are list-scheduled again (about 0.2 s of CPU).
_MOST_LISTED = 10_000
#: Share of the time for the reduce phase if its schedule also serves an isomorphic broadcast phase.
_ISOMORPHIC_SHARE = 0.8
#: Max share of the time to join schedules of an isomorphic phase before it ends.
_JOINS_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase of a reduction, as a broadcast-like problem.

    - `name`: ``"reduce"`` or ``"broadcast"``; empty for a problem that is not split.
    """

    name: str
    problem: Problem


def split(problem: Problem) -> tuple[Phase, ...]:
    """Phases of a combining problem, the reduce phase first; any other problem as a single phase.

    A problem with derived chunks is a single phase, too. There is no broadcast phase if every sum stays at
    its root.
    """
    collective = problem.collective
    if not collective.combining or collective.derivations:
        return (Phase("", problem),)
    phases = [Phase("reduce", _copying(reduce_phase(problem)))]
    if not collective.stays_at_roots:
        phases.append(Phase("broadcast", _copying(broadcast_phase(problem))))
    return tuple(phases)


def join(
    problem: Problem,
    found: Iterable[Schedule],
    *,
    retimed: bool = True,
    spill_dir: str | os.PathLike[str] | None = None,
) -> Schedule:
    """Schedule of a problem, from those of its phases in the order of `split`.

    The schedules are consumed one by one, so that each can be freed before the next is made.

    - `retimed`: True to start each send as early as possible, and to let phases overlap (`overlapped`); False
      to keep the times within each phase.
    - `spill_dir`: Folder for the columns of phases that are not re-timed; None for memory.
    """
    schedules = iter(found)
    joined = next(schedules)
    if problem.collective.combining and not problem.collective.derivations:
        joined = reverse(joined, problem) if retimed else _reversed(joined, problem, spill_dir)
        for after in schedules:
            if retimed:
                joined = overlapped(concatenate([joined, after.under(problem)], problem))
            else:
                joined = _one_after_another(joined, after, spill_dir)
    return joined


def overlapped(joined: Schedule) -> Schedule:
    """The joined schedule of two phases, list-scheduled in order of start if it then finishes earlier.

    Sends of either phase then fill idle times of resources before sends of the other one.
    """
    problem = joined.problem
    is_plain = problem.clauses == problem.clauses.only("merge")
    has_phases = problem.collective.sums_up and not problem.collective.stays_at_roots
    if not (has_phases and is_plain) or joined.num_transfers > _MOST_LISTED:
        return joined
    if np.isin(joined.link, wide_links(problem.topology)).any():
        return joined
    return min(joined, listed(joined), key=lambda schedule: schedule.finish_ticks)


def search_phases(search: Search, search_phase: Callable[[Search], None]) -> None:
    """Search each phase of a problem, join the schedules, and propose the result.

    A phase that is isomorphic to the one before takes over its schedule. A problem without phases is searched
    as it is. Nothing is joined if a phase has no schedule.
    """
    phases = split(search.problem)
    if not phases[0].name:
        search_phase(search)
        return
    begun, shares, names = time.monotonic(), [1.0], None
    if len(phases) == 2:
        names = find_isomorphism(*(phase.problem for phase in phases))
        shares = [_FIRST_SHARE if names is None else _ISOMORPHIC_SHARE, 1.0]
    searches: list[Search] = []
    for phase, share in zip(phases, shares, strict=True):
        since, limit = time.monotonic(), search.deadline.sooner(share * search.deadline.left_s)
        part = search.part(phase.problem, f"{phase.name}: ", limit)
        if not searches and names is not None:
            _offer_at_once(search, part, phases[1].problem, names)
        searches.append(part)
        if part is not searches[0] and names is not None:
            part.bound = searches[0].bound
            if hand_over(searches[0], part, names):
                said = "from the other phase"
                part.record("renamed", "taccl", "done", since, finish_us=part.best_us, message=said)
                continue
        search_phase(part)
    search.ran_out = any(part.ran_out for part in searches)
    found = [part.best for part in searches if part.best is not None]
    if len(found) < len(phases):
        return
    if not _adds_up(search.problem, found[0]):
        again = _without_wide_links(phases[0].problem)
        part = search.part(again, "reduce, over plain links: ", search.deadline, bound=searches[0].bound)
        try:
            search_phase(part)
        except (InfeasibleError, NoSolutionError, SketchError, TopologyError):
            if search.best is not None:
                return
            said = "no schedule found that adds each contribution once over links of several sources"
            raise NoSolutionError(
                f"{search.problem.title}: {said}; allow links of one source", bound_us=search.bound_us
            ) from None
        if part.best is None:
            return
        found[0] = part.best.under(phases[0].problem)
    finish_us = _offer_joined(search, found)
    search.record("phases", "taccl", "done", begun, finish_us=finish_us)
    if names is None:  # steps that a phase left out may run later
        for part in searches:
            part.on_better = lambda _: _offer_again(search, searches)


def _offer_joined(search: Search, found: Sequence[Schedule]) -> float | None:
    """Join the schedules of the phases, and propose the result; return its finish in us, None if refused."""
    try:
        whole = join(search.problem, found)
    except KeyboardInterrupt:  # after Ctrl-C, they are joined again, as that is quick
        search.interrupt()
        whole = join(search.problem, found)
    return search.offer_whole(whole, producer=whole.producer)


def _offer_again(search: Search, parts: Sequence[Search]) -> None:
    """Propose the phases' schedules, joined, after a phase found a better one.

    Nothing is proposed if the reduce phase, reversed in time, is no valid reduction (`_adds_up`).
    """
    found = [each.best for each in parts if each.best is not None]
    if _adds_up(search.problem, found[0]):
        _offer_joined(search, found)


def _offer_at_once(search: Search, part: Search, broadcast: Problem, names: Isomorphism) -> None:
    """Join each new schedule of the reduce phase with itself as the broadcast phase, and propose the result.

    So a whole schedule exists from the first one on. The joins take at most a share of the time, after the
    first. A named solver's trace has its own schedules only, and phases with hyperedges may not add up;
    neither is joined before its end.
    """
    if search.backend not in ("auto", "greedy") or wide_links(search.problem.topology):
        return
    begun, spent_s = time.monotonic(), 0.0

    def offer(found: Schedule) -> None:
        nonlocal spent_s
        since = time.monotonic()
        if spent_s > _JOINS_SHARE * (since - begun):
            return
        whole = join(search.problem, [found, renamed(found, broadcast, names)])
        if search.best is None or whole.finish_ticks < search.best.finish_ticks:
            search.offer_whole(whole, producer=whole.producer)
        spent_s += time.monotonic() - since

    part.on_better = offer


def _adds_up(problem: Problem, phase: Schedule) -> bool:
    """True if the reversal of a reduce phase, searched as a broadcast, is a valid reduction.

    A multicast may deliver a chunk to a rank that holds it already or does not need it. In the reversed
    schedule that rank would add its contribution twice, or have none to add.
    """
    if not np.isin(phase.link, wide_links(problem.topology)).any():
        return True
    found = verify(reverse(phase, problem))
    return {each.kind for each in found.violations} <= {"postcondition"}  # the sums have yet to be broadcast


def _without_wide_links(phase: Problem) -> Problem:
    """The phase without hyperedges: over links of one source and one destination only."""
    wide = wide_links(phase.topology)
    return phase.with_clauses(links_allowed=frozenset(phase.links_allowed).difference(wide))


def _copying(phase: Problem) -> Problem:
    """The phase without links that would count a contribution twice.

    A link of several sources adds up their data, so it cannot carry copies. In a reduce phase, which is
    searched reversed, these are the links of several destinations.
    """
    links = phase.topology.links
    fit = [e for e in phase.links_allowed if len(links[e].srcs) == 1]
    return phase if len(fit) == len(phase.links_allowed) else phase.with_clauses(links_allowed=frozenset(fit))


def _reversed(schedule: Schedule, problem: Problem, spill_dir: str | os.PathLike[str] | None) -> Schedule:
    """The reduction given by a broadcast schedule reversed in time."""
    kept, finish, count = schedule.kept, schedule.finish_ticks, len(schedule)
    start = room_for(count, kept.start.dtype, spill_dir)
    at = count  # starts are filled in from the end, as the last send becomes the first
    for _, _, _, end in schedule.blocks():
        start[at - len(end) : at] = finish - end[::-1]
        at -= len(end)
    order = np.argsort(start, kind="stable") if (start[1:] < start[:-1]).any() else None

    def settled(column: NDArray[Any]) -> NDArray[Any]:
        room = room_for(count, column.dtype, spill_dir)
        if order is None:
            room[:] = column
        else:
            np.take(column, order, out=room, mode="clip")
        return room

    chunk, link = settled(kept.chunk[::-1]), settled(kept.link[::-1])
    start = start if order is None else settled(start)
    return Schedule(problem, chunk, link, start, reduce=count, producer=schedule.producer)


def _one_after_another(
    reduction: Schedule, spreading: Schedule, spill_dir: str | os.PathLike[str] | None
) -> Schedule:
    """The reduction, followed by the broadcast once all sums are complete, and updated by servers if any."""
    before, then = reduction.kept, spreading.kept
    after = reduction.finish_ticks + int(reduction.problem.update_ticks.max(initial=0))
    last = after + int(then.start[-1:].max(initial=0))
    columns = []
    for first, second, dtype, later in (
        (before.chunk, then.chunk, before.chunk.dtype, 0),
        (before.link, then.link, before.link.dtype, 0),
        (before.start, then.start, np.int32 if last < 2**31 else np.int64, after),
    ):
        column = room_for(len(first) + len(second), dtype, spill_dir)
        column[: len(first)] = first
        np.add(second, np.int64(later), out=column[len(first) :], casting="unsafe")
        columns.append(column)
    chunk, link, start = columns
    return Schedule(
        reduction.problem, chunk, link, start, reduce=len(before.chunk), producer=reduction.producer
    )
