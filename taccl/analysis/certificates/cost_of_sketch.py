"""Costs of a sketch, of whole chunks and of the search, from bounds without each."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from taccl._internal.arguments import Duration, checked
from taccl._internal.deadline import Deadline, OutOfTime
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.certificate import Certificate
from taccl.analysis.certificates.every_cut import stronger
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Prices:
    """Costs of a sketch, of whole chunks and of the search, one by one; see `prices`.

    Parameters
    ----------
    bound : Certificate
        Bound of the declared problem.
    without_sketch : Certificate
        Bound of the same topology and collective without clauses, except those on merging.
    divisible : Certificate
        Bound of the declared problem if data may be cut arbitrarily.
    finish : Fraction, optional
        Finish of a schedule, in microseconds.
    """

    bound: Certificate
    without_sketch: Certificate
    divisible: Certificate
    finish: Fraction | None = None

    @property
    def sketch(self) -> float:
        """Relative increase of the bound due to the sketch."""
        return _ratio(self.bound.bound, self.without_sketch.bound)

    @property
    def chunks(self) -> float:
        """Relative increase of the bound because chunks travel whole."""
        return _ratio(self.bound.bound, self.divisible.bound)

    @property
    def solver(self) -> float | None:
        """Relative gap between the schedule and the bound; None without a schedule."""
        return None if self.finish is None else self.bound.gap(self.finish)

    def __repr__(self) -> str:
        rows = [
            f"bound {self.bound.bound_us:.6g} us, limited by {self.bound.limits}",
            f"  sketch: +{self.sketch:.2%} over {self.without_sketch.bound_us:.6g} us without it",
            f"  whole chunks: +{self.chunks:.2%} over {self.divisible.bound_us:.6g} us for divisible data",
        ]
        if self.finish is not None:
            rows.append(f"  solver: +{self.solver:.2%}, a finish of {float(self.finish):.6g} us")
        return "\n".join(rows)


@checked
def prices(
    problem: Problem, schedule: Schedule | None = None, *, time_limit_s: Duration | None = None
) -> Prices:
    """Costs of the sketch, of whole chunks, and of the search, as relative differences.

    The first two compare lower bounds: with and without the clauses, and for whole and divisible data.

    Parameters
    ----------
    problem : Problem
        Its sketch and its chunks are priced.
    schedule : Schedule, optional
        Its finish is what the search cost.
    time_limit_s : float, optional
        Seconds after which the best bounds so far are compared; `OutOfTime` if one is missing.
    """
    deadline = Deadline.after(math.inf if time_limit_s is None else time_limit_s)
    free = replace(problem.clauses.only("merge"), symmetry=problem.clauses.symmetry)

    def bound(of: Problem, *, divisible: bool, share: float) -> Certificate:
        if time_limit_s is None:
            return lower_bound(of, divisible=divisible)
        part_s = share * deadline.left_s
        try:
            return lower_bound(of, divisible=divisible, budget_s=part_s, limit_s=part_s, end_s=part_s)
        except OutOfTime:
            raise OutOfTime(f"time_limit_s: no bound in {time_limit_s:g} s; give more time") from None

    is_free = free == problem.clauses
    divisible = bound(problem, divisible=True, share=1 / 2 if is_free else 1 / 3)
    whole = bound(problem, divisible=False, share=1.0 if is_free else 1 / 2)
    without = whole if is_free else bound(replace(problem, clauses=free), divisible=False, share=1.0)
    return Prices(
        stronger(whole, divisible), without, divisible, None if schedule is None else schedule.finish
    )


def _ratio(bound: Fraction, other: Fraction) -> float:
    return float(bound / other - 1) if other else 0.0
