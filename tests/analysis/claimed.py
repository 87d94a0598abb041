"""Certificates of the claims of one bound family, even if another family gives a larger bound."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from taccl.analysis.certificates.bounds import lower_bound

if TYPE_CHECKING:
    from collections.abc import Iterable

    from taccl.analysis.certificates.certificate import Certificate, Claim
    from taccl.problem.problem import Problem


def claimed(problem: Problem, found: Iterable[Claim]) -> list[Certificate]:
    """A certificate for each claim, with the claim's ticks as its bound."""
    base = lower_bound(problem)
    return [
        replace(
            base,
            bound=Fraction(claim.ticks, problem.costs.ticks_per_us),
            kind=claim.kind,
            limits=claim.limits,
            witness=claim.witness,
        )
        for claim in found
    ]
