"""Requirements left out of a search, and met again by its schedule: release dates, and roots of sums.

The sends of a schedule are timed anew under release and due dates. Where a sketch keeps contributions from
the root of a sum, another rank makes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from taccl.analysis.verification.verify import verify
from taccl.errors import NoSolutionError
from taccl.problem.problem import Problem
from taccl.schedule.combine import naming_contributions
from taccl.schedule.listing import released
from taccl.schedule.schedule import Schedule
from taccl.sketch.reachability import is_possible, rooted_anew
from taccl.synthesis.transforms.transform import Transform


@dataclass(frozen=True)
class ReleaseDates(Transform[Problem, Schedule]):
    """A problem without its release dates and due dates."""

    name: ClassVar[str] = "release dates"
    told: ClassVar[str] = "; its sends begun anew for releases and due times"

    @classmethod
    def apply(cls, problem: Problem) -> Self | None:
        """The transform; None if there are no dates."""
        if not (problem.release_us or problem.due_us):
            return None
        return cls(problem, (problem.without_moments(),))

    def invert(self, found: Sequence[Schedule]) -> Schedule:
        """The same sends, each at its earliest start under the dates.

        Raises `NoSolutionError` if something arrives later than it is due.
        """
        schedule = found[0].listable()
        try:
            timed = released(self.problem, schedule)
        except ValueError:  # exchanged sums wait for each other's start, unless contributions are named
            timed = released(self.problem, naming_contributions(schedule, schedule.problem))
        verdict = verify(timed)
        late = [each for each in verdict.violations if each.kind == "due"]
        if late:
            said = f"found no schedule in which everything comes when it is due: {late[0].message}"
            raise NoSolutionError(f"{said}; make it due later, or give more time", bound_us=None)
        verdict.raise_if_failed()
        return timed


@dataclass(frozen=True)
class OtherRoots(Transform[Problem, Schedule]):
    """A problem with each sum rooted at a rank that all contributions reach."""

    name: ClassVar[str] = "other roots"

    @classmethod
    def apply(cls, problem: Problem) -> Self | None:
        """The transform of a problem whose roots miss something; None if no other rank can make a sum."""
        rooted = rooted_anew(problem) if is_possible(problem) else None
        return None if rooted is None else cls(problem, (rooted,))

    def invert(self, found: Sequence[Schedule]) -> Schedule:
        """The same sends under the roots that were asked for.

        Raises `NoSolutionError` if they break the sketch that way.
        """
        schedule = found[0].under(self.problem)
        if verify(schedule).ok:
            return schedule
        # That a sum is whole at another rank than its root is plain only where sends name what they carry.
        named = naming_contributions(found[0].listable(), self.problem)
        verdict = verify(named)
        if not verdict.ok:
            kinds = ", ".join(sorted({each.kind for each in verdict.violations}))
            said = f"schedules that make sums at other ranks than their roots break the sketch ({kinds})"
            advice = "name roots that all contributions reach"
            raise NoSolutionError(f"{self.problem!r}: {said}; {advice}", bound_us=None)
        return named
