"""Roots of sums: where a sketch keeps contributions from a root, another rank makes the sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from taccl.analysis.verification.verify import verify
from taccl.errors import NoSolutionError
from taccl.problem.problem import Problem
from taccl.schedule.combine import naming_contributions
from taccl.schedule.schedule import Schedule
from taccl.sketch.reachability import is_possible, rooted_anew
from taccl.synthesis.transforms.transform import Transform


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
