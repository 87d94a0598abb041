"""Protocol of transforms: `apply` turns a problem into easier ones, `invert` turns their schedules back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, Self, TypeVar

from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule

Easier = TypeVar("Easier")
Found = TypeVar("Found")


@dataclass(frozen=True)
class Transform(ABC, Generic[Easier, Found]):
    """A transform applied to one problem.

    - `problem`: The problem that was given.
    - `parts`: The easier problems that are searched instead, in order.
    """

    #: Name of the transform in the table of stages.
    name: ClassVar[str]
    #: Text that the inversion adds to `Result.choice`.
    told: ClassVar[str] = ""

    problem: Problem
    parts: tuple[Easier, ...]

    @classmethod
    @abstractmethod
    def apply(cls, problem: Problem) -> Self | None:
        """Apply the transform to a problem; None if it does not apply."""

    @abstractmethod
    def invert(self, found: Sequence[Found]) -> Schedule:
        """Schedule of the original problem, from one schedule of each part, in order.

        Raises `NoSolutionError` if these cannot be combined.
        """
