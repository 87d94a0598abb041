"""Transforms that drop a requirement for the search and then restore it: dates, and roots of sums.

Release and due dates are met by re-timing the schedule. If a sketch keeps contributions from the root of a
sum, another rank makes the sum.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Self

from taccl._internal.arrays import distinct
from taccl.analysis.verification.verify import verify
from taccl.errors import NoSolutionError
from taccl.problem.problem import Problem
from taccl.schedule.combine import naming_contributions
from taccl.schedule.listing import released
from taccl.schedule.schedule import Schedule, make_schedule
from taccl.sketch.reachability import is_possible, with_moved_roots


@dataclass(frozen=True)
class Transform(ABC):
    """A transform applied to one problem.

    - `problem`: The problem that was given.
    - `part`: The easier problem that is searched instead.
    """

    #: Name of the transform in the table of stages.
    name: ClassVar[str]
    #: Text that the inversion adds to `Result.choice`.
    told: ClassVar[str] = ""

    problem: Problem
    part: Problem

    @classmethod
    @abstractmethod
    def apply(cls, problem: Problem) -> Self | None:
        """Apply the transform to a problem; None if it does not apply."""

    @abstractmethod
    def invert(self, found: Schedule) -> Schedule:
        """Schedule of the original problem, from one of the easier problem.

        Raises `NoSolutionError` if it breaks a requirement of the original problem.
        """


@dataclass(frozen=True)
class ReleaseDates(Transform):
    """A problem without its release dates and due dates."""

    name: ClassVar[str] = "release dates"
    told: ClassVar[str] = "; re-timed for release and due times"

    @classmethod
    def apply(cls, problem: Problem) -> Self | None:
        """Remove the dates; None if there are none."""
        if not (problem.release_us or problem.due_us):
            return None
        return cls(problem, problem.without_dates())

    def invert(self, found: Schedule) -> Schedule:
        """Re-time the found schedule: each send at its earliest start under the release dates.

        Raises `NoSolutionError` if a chunk arrives after its due date.
        """
        for timed in self._timed(found.listable()):
            verdict = verify(timed)
            late = [each for each in verdict.violations if each.kind == "due"]
            if len(late) == len(verdict.violations):
                break
        if late:
            said = f"found no schedule that meets every due time: {late[0].message}"
            raise NoSolutionError(f"{said}; make it due later, or give more time", bound_us=None)
        verdict.raise_if_failed()
        return timed

    def _timed(self, schedule: Schedule) -> Iterator[Schedule]:
        """Yield the schedule re-timed, without and with named contributions, and then after all dates.

        Without names, exchanged sums may wait for each other, or carry other contributions than before. With
        names, they may have come to a rank over more links by the time when they are sent on (`max_hops`).
        Named sums over links of several sources cannot be re-timed, nor can updates be named.
        """
        with suppress(ValueError):
            yield released(self.problem, schedule)
        several = any(len(self.problem.topology.links[e].srcs) > 1 for e in distinct(schedule.link).tolist())
        if self.problem.collective.sums_up and not (self.problem.collective.updates or several):
            yield released(self.problem, naming_contributions(schedule, schedule.problem))
        columns, last = schedule.columns, max(self.problem.release_ticks.values(), default=0)
        columns |= {name: columns[name] + last for name in ("start", "end")}
        yield make_schedule(self.problem, **columns, producer=schedule.producer)


@dataclass(frozen=True)
class OtherRoots(Transform):
    """A problem with each sum rooted at a rank that all contributions reach."""

    name: ClassVar[str] = "other roots"

    @classmethod
    def apply(cls, problem: Problem) -> Self | None:
        """Choose other roots if contributions cannot reach a root; None if no other rank can make a sum."""
        rooted = with_moved_roots(problem) if is_possible(problem) else None
        return None if rooted is None else cls(problem, rooted)

    def invert(self, found: Schedule) -> Schedule:
        """Schedule with the sends of the found one, for the roots that were asked for.

        Raises `NoSolutionError` if the sends break the sketch with these roots.
        """
        schedule = found.under(self.problem)
        if verify(schedule).ok:
            return schedule
        # The verifier accepts a sum made at another rank than its root only if contributions are named.
        named = naming_contributions(found.listable(), self.problem)
        verdict = verify(named)
        if not verdict.ok:
            kinds = ", ".join(sorted({each.kind for each in verdict.violations}))
            said = f"schedules that make sums at other ranks than their roots break the sketch ({kinds})"
            advice = "name roots that all contributions reach"
            raise NoSolutionError(f"{self.problem.title}: {said}; {advice}", bound_us=None)
        return named
