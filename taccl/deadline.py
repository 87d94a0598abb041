"""When to stop: a time on the clock, handed down to whatever takes long and looked at as it goes on."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from taccl.errors import NoSolutionError

__all__ = ["NEVER", "Deadline", "OutOfTime"]


class OutOfTime(NoSolutionError):
    """Something was given up as its time was up. Whoever has an earlier answer returns that."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """The time after which work is given up.

    Parameters
    ----------
    at_s : float
        On the clock of `time.monotonic`.
    """

    at_s: float = math.inf

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """So many seconds from now."""
        return cls(time.monotonic() + seconds)

    def sooner(self, seconds: float) -> Deadline:
        """This one, or so many seconds from now, whichever comes first."""
        return Deadline(min(self.at_s, time.monotonic() + seconds))

    @property
    def left_s(self) -> float:
        """Seconds until then; at least 0."""
        return max(0.0, self.at_s - time.monotonic())

    @property
    def has_passed(self) -> bool:
        return time.monotonic() >= self.at_s

    def check(self) -> None:
        """Raise `OutOfTime` once it has passed. To be called where work can be given up."""
        if time.monotonic() >= self.at_s:
            raise OutOfTime("the time limit came first; give more time")


#: Work is finished, however long it takes.
NEVER = Deadline()
