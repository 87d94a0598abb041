"""Reductions: split into halves that only spread, and joined again, whatever searches the halves.

A combining collective is a reduction, which is a broadcast read backwards over reversed links, and the
broadcast of its sums. The schedule of the first phase is reversed, and both are concatenated.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.verification.verify import verify
from taccl.errors import InfeasibleError, NoSolutionError, SketchError, TopologyError
from taccl.problem.costs import wide_links
from taccl.problem.problem import Problem
from taccl.schedule.combine import (
    concatenate,
    contributions_apart,
    reduction_half,
    reverse,
    spreading_half,
    summed_at_destinations,
)
from taccl.schedule.schedule import Schedule
from taccl.schedule.spill import room_for
from taccl.synthesis.search import Search
from taccl.synthesis.transforms.isomorphic import find_isomorphism, hand_over
from taccl.synthesis.transforms.transform import Transform

#: Share of the time for the reduce phase; and where both phases are one problem. The rest is for the
#: broadcast phase.
_FIRST_SHARE = 0.5
_ISOMORPHIC_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Half:
    """A problem whose chunks spread; its name is ``"reduce"``, ``"spread"``, or empty where none is split."""

    name: str
    problem: Problem


@dataclass(frozen=True)
class Phases(Transform[Problem, Schedule]):
    """The reduce phase of a problem that combines, as a spread, and its broadcast phase if it has one."""

    name: ClassVar[str] = "phases of a reduction"

    @classmethod
    def apply(cls, problem: Problem) -> Self | None:
        """The transform; None for problems whose chunks only spread."""
        halves = split(problem)
        return cls(problem, tuple(half.problem for half in halves)) if halves[0].name else None

    def invert(self, found: Sequence[Schedule]) -> Schedule:
        """The reduction reversed, and the copies behind it, each send as early as it can start."""
        return join(self.problem, found)


@dataclass(frozen=True)
class ContributionsApart(Transform[Problem, Schedule]):
    """A problem with sums as one in which each contribution spreads to all that want the sum."""

    name: ClassVar[str] = "contributions apart"

    @classmethod
    def apply(cls, problem: Problem) -> Self | None:
        """The transform; None if there are no sums."""
        return cls(problem, (contributions_apart(problem),)) if problem.collective.sums_up else None

    def invert(self, found: Sequence[Schedule]) -> Schedule:
        """The same sends, whose contributions are added up where they arrive."""
        return summed_at_destinations(found[0], self.problem)


def split(problem: Problem) -> tuple[Half, ...]:
    """The halves of a problem that combines, the reduction first; any other problem as it is.

    There is no spreading where every sum stays at its root.
    """
    collective = problem.collective
    if not collective.combining or collective.derivations:
        return (Half("", problem),)
    halves = [Half("reduce", _copying(reduction_half(problem)))]
    if not collective.stays_at_roots:
        halves.append(Half("spread", _copying(spreading_half(problem))))
    return tuple(halves)


def join(
    problem: Problem,
    found: Iterable[Schedule],
    *,
    retimed: bool = True,
    spill_dir: str | os.PathLike[str] | None = None,
) -> Schedule:
    """The schedule of a problem, of those of its halves in the order of `split`.

    Each phase is requested once the one before has been reversed, and is released then.

    - `retimed`: True to start each send as early as it can; False to keep the times within each phase.
    - `spill_dir`: Folder for the columns of phases that are not re-timed.
    """
    schedules = iter(found)
    joined = next(schedules)
    if problem.collective.combining and not problem.collective.derivations:
        joined = reverse(joined, problem) if retimed else _reversed(joined, problem, spill_dir)
        for after in schedules:
            if retimed:
                joined = concatenate([joined, after.under(problem)], problem)
            else:
                joined = _one_after_another(joined, after, spill_dir)
    return joined


def search_halves(search: Search, search_half: Callable[[Search], None]) -> None:
    """Search each half of a problem, join what is found, and offer it.

    A half that is isomorphic to the one before takes its schedule. A problem that is not split is searched as
    it is, and nothing is joined where a half has no schedule.
    """
    phases, halves = Phases.apply(search.problem), split(search.problem)
    if phases is None:
        search_half(search)
        return
    begun, shares, names = time.monotonic(), [1.0], None
    if len(halves) == 2:
        names = find_isomorphism(*(half.problem for half in halves))
        shares = [_FIRST_SHARE if names is None else _ISOMORPHIC_SHARE, 1.0]
    searches: list[Search] = []
    for half, share in zip(halves, shares, strict=True):
        since, limit = time.monotonic(), search.deadline.sooner(share * search.deadline.left_s)
        part = search.part(half.problem, f"{half.name}: ", limit)
        searches.append(part)
        if part is not searches[0] and names is not None:
            part.bound = searches[0].bound
            if hand_over(searches[0], part, names):
                said = "the other half's"
                part.record("renamed", "taccl", "done", since, finish_us=part.best_us, message=said)
                continue
        search_half(part)
    search.ran_out = any(part.ran_out for part in searches)
    found = [part.best for part in searches if part.best is not None]
    if len(found) < len(halves):
        return
    if halves[0].name == "reduce" and not _adds_up(search.problem, found[0]):
        again = _without_wide_links(halves[0].problem)
        part = search.part(again, "reduce, over plain links: ", search.deadline, bound=searches[0].bound)
        try:
            search_half(part)
        except (InfeasibleError, NoSolutionError, SketchError, TopologyError):
            if search.best is not None:
                return
            said = "no schedule found that adds each contribution once over links of several sources"
            raise NoSolutionError(
                f"{search.problem!r}: {said}; allow links of one source", bound_us=search.bound_us
            ) from None
        if part.best is None:
            return
        found[0] = part.best.under(halves[0].problem)
    try:
        whole = phases.invert(found)
    except KeyboardInterrupt:  # it is quick, and both phases are there
        search.interrupt()
        whole = phases.invert(found)
    finish_us = search.offer_whole(whole, producer=whole.producer)
    search.record("phases", "taccl", "done", begun, finish_us=finish_us)


def may_keep_apart(problem: Problem, *, most_hops: int) -> bool:
    """True if a problem has few enough contributions to search them as unreduced chunks."""
    if not problem.collective.sums_up:
        return False
    contributions = sum(len(chunk.origins) for chunk in problem.collective.chunks)
    return contributions * len(problem.links_allowed) <= most_hops


def search_apart(search: Search, search_half: Callable[[Search], None]) -> None:
    """Search for a schedule whose ranks keep contributions apart, and offer it where it finishes sooner.

    Every contribution to every chunk spreads to all that want the sum. Small messages gain by it: a sum that
    is made at one rank travels twice.
    """
    if search.best is None or search.done:
        return
    apart = ContributionsApart.apply(search.problem)
    if apart is None:
        return
    since, (problem,), finish = time.monotonic(), apart.parts, search.best.finish
    left_s = search.deadline.left_s
    budget_s = search.parameters.budget.bound_share * left_s
    try:
        bound = lower_bound(problem, budget_s=budget_s, limit_s=left_s, finish=finish)
    except (SketchError, TopologyError) as error:  # clauses admit sums, and not each contribution
        search.record("apart: bound", "taccl", "infeasible", since, message=str(error))
        return
    if bound.bound >= finish:
        search.record("apart: bound", "taccl", "done", since, bound_us=bound.bound_us, message=bound.kind)
        return
    part = search.part(problem, "apart: ", search.deadline, bound=bound)
    search_half(part)
    if part.best is not None:
        whole = apart.invert([part.best])
        if whole.finish < finish and verify(whole).ok:
            search.offer_whole(whole, producer=whole.producer, verified=True)


def _adds_up(problem: Problem, half: Schedule) -> bool:
    """Whether a reduction, searched as a spread, is one when it is turned round.

    A multicast may bring a rank what it has, or needs not: turned round, the rank would add its contribution
    twice, or have none to add.
    """
    if not np.isin(half.link, wide_links(problem.topology)).any():
        return True
    found = verify(reverse(half, problem))
    return {each.kind for each in found.violations} <= {"postcondition"}  # sums are not spread yet


def _without_wide_links(half: Problem) -> Problem:
    """A half over links of one source and one destination alone."""
    wide = wide_links(half.topology)
    return half.with_clauses(links_allowed=frozenset(half.links_allowed).difference(wide))


def _copying(half: Problem) -> Problem:
    """A half without the links that would count a contribution twice.

    A link of several sources adds up what they hold: copies must not go there; nor, in a reduction, which is
    searched backwards, over what was a link of several destinations.
    """
    links = half.topology.links
    fit = [e for e in half.links_allowed if len(links[e].srcs) == 1]
    return half if len(fit) == len(half.links_allowed) else half.with_clauses(links_allowed=frozenset(fit))


def _reversed(schedule: Schedule, problem: Problem, spill_dir: str | os.PathLike[str] | None) -> Schedule:
    """The reduction that a spread is when it is read backwards in time."""
    kept, finish, count = schedule.kept, schedule.finish_ticks, len(schedule)
    start = room_for(count, kept.start.dtype, spill_dir)
    at = count  # the last to start comes first
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
    """The sums, and their copies once all of them are complete."""
    before, then, after = reduction.kept, spreading.kept, reduction.finish_ticks
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
