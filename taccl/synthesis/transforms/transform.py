"""Protocol of transforms: `apply` turns a problem into an easier one, `invert` turns its schedule back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule


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
