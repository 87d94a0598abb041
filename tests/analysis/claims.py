"""Certificates of all claims of one finder of bounds, for tests of that finder."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from taccl.analysis.certificates.certificate import Certificate
from taccl.analysis.certificates.finding.needed_sends import NeededSends
from taccl.analysis.certificates.readings import as_spreading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from taccl.analysis.certificates.certificate import Claim
    from taccl.problem.problem import Problem


def certificates_of(
    finder: Callable[..., Iterable[Claim]], problem: Problem, *, divisible: bool = True
) -> list[Certificate]:
    """Certificates of the finder's claims; by default they hold over all chunkings."""
    per_us = problem.costs.ticks_per_us
    return [
        Certificate(problem, Fraction(each.ticks) / per_us, each.kind, each.limits, each.witness, divisible)
        for each in finder(NeededSends(as_spreading(problem)), in_network=False)
    ]
