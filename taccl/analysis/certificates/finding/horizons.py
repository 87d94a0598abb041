"""Search a family of prices over time for those that prove the highest bound (the longest horizon)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import product
from typing import Any, Generic, Protocol, TypeVar


class _HasHorizon(Protocol):
    """A witness with a horizon: the ticks within which no schedule can end."""

    @property
    def horizon(self) -> Fraction: ...


W = TypeVar("W", bound=_HasHorizon)


def neighbours(shape: tuple[int, int], families: Sequence[Sequence[Any]]) -> list[tuple[int, int]]:
    """Shapes, as indices into the families, that differ from one by a step of one index."""
    one, two = shape
    near = (one - 1, two), (one + 1, two), (one, two - 1), (one, two + 1)
    return [(k, m) for k, m in near if 0 <= k < len(families[0]) and 0 <= m < len(families[1])]


class HorizonSearch(Generic[W]):
    """Search for the longest horizon, over a family of prices with two shape parameters.

    - `starts`: Ticks at which the search starts: the first of these that prices prove.
    - `longest`: Ticks above which it proves nothing.
    - `families`: Values to try of the two shape parameters.
    - `shape`: Indices into `families` to try first; later those that proved the last horizon.
    - `check`: Called before each attempt; raises `OutOfTime` once there is no time.
    """

    families: tuple[Sequence[float], Sequence[float]]

    def __init__(
        self, starts: Sequence[float], longest: float, shape: tuple[int, int], check: Callable[[], None]
    ) -> None:
        self.starts, self.longest, self.shape, self.check = starts, longest, shape, check
        self.best: W | None = None

    def witness(self, horizon: float, cells: int, one: float, two: float) -> W | None:
        """Witness with the prices of two shape parameters, if they prove the horizon; else None."""
        raise NotImplementedError

    def lengthened(self, cells: int, steps: tuple[float, ...]) -> Iterator[W]:
        """Lengthen the horizon by each step as often as prices prove it; yield each witness when it is found.

        A caller with little time can thus use the last witness before its deadline.
        """
        if self.best is None:  # find prices that prove anything
            if not any(self._proves(start * (1 + steps[-1]), cells) for start in self.starts):
                return
            yield self._found
        best = float(self._found.horizon)
        for step in steps:
            while self._proves(best * (1 + step), cells):
                best *= 1 + step
                yield self._found

    @property
    def _found(self) -> W:
        assert self.best is not None, "prices proved a horizon"
        return self.best

    def _proves(self, horizon: float, cells: int) -> bool:
        """True if some prices prove that no schedule ends within `horizon` ticks; `best` keeps the witness.

        The last shape of prices that proved a horizon is tried first, then those near it. All are tried as
        long as none has proved one.
        """
        if horizon > self.longest:
            return False
        one, two = self.shape
        shapes = sorted(
            product(*(range(len(each)) for each in self.families)),
            key=lambda each: abs(each[0] - one) + abs(each[1] - two),
        )
        for k, m in shapes if self.best is None else shapes[:5]:
            self.check()
            found = self.witness(horizon, cells, self.families[0][k], self.families[1][m])
            if found is not None:
                self.best, self.shape = found, (k, m)
                return True
        return False
