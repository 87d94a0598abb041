"""The protocol of transforms: `apply` makes easier problems, `invert` a schedule of the whole from theirs."""

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
    """A transform that was applied to a problem.

    - `problem`: The problem that was given.
    - `parts`: What is searched in its place, in order.
    """

    #: Name in the table of stages; and what its inversion adds to the choice that a result states.
    name: ClassVar[str]
    told: ClassVar[str] = ""

    problem: Problem
    parts: tuple[Easier, ...]

    @classmethod
    @abstractmethod
    def apply(cls, problem: Problem) -> Self | None:
        """The transform of a problem; None if it does not apply."""

    @abstractmethod
    def invert(self, found: Sequence[Found]) -> Schedule:
        """The schedule of the problem, from one of each part, in order.

        Raises `NoSolutionError` if they make none.
        """
