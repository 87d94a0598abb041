"""Cost of a sketch, of whole chunks and of the search: the bound beside those without each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.certificate import Certificate
from taccl.analysis.certificates.every_cut import stronger
from taccl.arguments import checked
from taccl.problem import Problem
from taccl.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Prices:
    """Costs of a sketch, of whole chunks and of the search, one by one; see `prices`.

    Parameters
    ----------
    bound : Certificate
        Of the declared problem.
    without_sketch : Certificate
        Of the same topology and collective under no clause.
    divisible : Certificate
        Of the declared problem, if data could be cut at will.
    finish : Fraction, optional
        Of a schedule, in microseconds.
    """

    bound: Certificate
    without_sketch: Certificate
    divisible: Certificate
    finish: Fraction | None = None

    @property
    def sketch(self) -> float:
        """Relative rise of the bound due to the sketch."""
        return _ratio(self.bound.bound, self.without_sketch.bound)

    @property
    def chunks(self) -> float:
        """Relative rise of the bound because chunks travel whole."""
        return _ratio(self.bound.bound, self.divisible.bound)

    @property
    def solver(self) -> float | None:
        """Relative distance of the schedule from the bound; None without a schedule."""
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
def prices(problem: Problem, schedule: Schedule | None = None) -> Prices:
    """Costs of the sketch (a lower limit), of whole chunks, and of the search.

    The first two are ratios of bounds: without the clauses, and for data that may be cut at will.
    """
    free = replace(problem.clauses.only("merge"), symmetry=problem.clauses.symmetry)
    divisible = lower_bound(problem, divisible=True)
    return Prices(
        stronger(lower_bound(problem, divisible=False), divisible),
        lower_bound(replace(problem, clauses=free), divisible=False),
        divisible,
        None if schedule is None else schedule.finish,
    )


def _ratio(bound: Fraction, other: Fraction) -> float:
    return float(bound / other - 1) if other else 0.0
