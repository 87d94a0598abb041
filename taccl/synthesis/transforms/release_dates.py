"""Release dates: a problem is searched without them, and the sends of its schedule are timed anew."""

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
