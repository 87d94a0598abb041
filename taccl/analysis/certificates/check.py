"""Check of a bound from its witness, by arithmetic on the problem and without a solver.

An evaluation shares two things with the code that found the bound. The first is the problem data: costs in
ticks, links, and `Problem.open_links`. The second is the time reversal of problems (`readings`).
docs/formulation.md, "Checking", explains why this is sound.
"""

from __future__ import annotations

from fractions import Fraction

from taccl.analysis.certificates.evaluation.facts import Facts
from taccl.analysis.certificates.readings import as_spreading, late_part, turned_round
from taccl.analysis.certificates.witness import Late, Witness
from taccl.problem.problem import Problem


def is_proven(
    problem: Problem, bound: Fraction, witness: Witness | None, *, divisible: bool, in_network: bool
) -> bool:
    """True if the witness proves the bound, in microseconds."""
    if isinstance(witness, Late):
        part, left = late_part(problem, witness.moment_us), bound - witness.moment_us
        return part is not None and is_proven(
            part, left, witness.inner, divisible=divisible, in_network=in_network
        )
    problem = problem.without_moments()  # a bound without release dates holds with them, too
    ticks = bound * problem.costs.ticks_per_us
    if witness is None:
        return ticks <= 0
    if (divisible and not witness.any_chunking) or not witness.fits(problem):
        return False
    reading: Problem | None = as_spreading(problem)
    if reading is not None and getattr(witness, "backwards", False):
        reading = turned_round(reading)
    if reading is None:
        return False
    return witness.holds(Facts(reading, divisible=divisible, in_network=in_network), ticks)
