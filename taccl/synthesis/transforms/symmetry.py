"""Symmetry: a problem is searched on its quotient, where each send stands for all of its images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from taccl._internal.deadline import NEVER, Deadline
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.synthesis.proposers.greedy import ListSchedule, expand
from taccl.synthesis.symmetry.quotient import Quotient
from taccl.synthesis.symmetry.take_quotient import take_quotient
from taccl.synthesis.symmetry.timing_group import timing_group
from taccl.synthesis.transforms.transform import Transform


@dataclass(frozen=True)
class Symmetry(Transform[Quotient, ListSchedule]):
    """Quotient of a problem by the symmetries that schedules may have; without these, the problem itself."""

    name: ClassVar[str] = "symmetry"

    @classmethod
    def apply(cls, problem: Problem, *, give_up: Deadline = NEVER) -> Self:
        """Take the quotient. Raises `OutOfTime` at the deadline `give_up`."""
        return cls(problem, (take_quotient(problem, timing_group(problem), give_up=give_up),))

    def invert(self, found: Sequence[ListSchedule], *, producer: str = "list scheduler") -> Schedule:
        """Schedule of the whole problem, pruned and exactly timed."""
        return expand(self.parts[0], found[0].sends, producer=producer)
