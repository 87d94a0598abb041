"""Lower bounds within a search: their share of the time, and the bound of zero, which proves nothing."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from taccl._internal.deadline import OutOfTime, busy_factor
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.certificate import Certificate, InNetworkGrant

if TYPE_CHECKING:
    from taccl._internal.deadline import Deadline
    from taccl.problem.problem import Problem
    from taccl.synthesis.parameters import BudgetParameters

#: Max hops of a problem whose bound is computed without a time limit (fractions of a second).
_BRIEF_HOPS = 5_000


def bound_within(
    problem: Problem,
    limit: Deadline,
    budget: BudgetParameters,
    *,
    kept_s: float = 0.0,
    in_network: InNetworkGrant = False,
) -> Certificate:
    """Lower bound, in its share of the time until `limit`; zero, which proves nothing, if that is too short.

    - `kept_s`: Seconds reserved for later stages. These use the bound, too, so a part of their seconds counts
      as time for it.
    - `in_network`: Assumptions on in-network reduction, as for `lower_bound`.
    """
    left_s, share = limit.left_s, budget.bound_share
    limit_s = max(budget.least_bound_s, budget.most_bound_share * left_s, share * (left_s + kept_s))
    end_s = None if is_brief(problem) else max(left_s, budget.last_bound_s / busy_factor())
    try:
        if limit.cancellation.why:
            limit.check()
        return lower_bound(
            problem, in_network=in_network, budget_s=share * left_s, limit_s=limit_s, end_s=end_s
        )
    except OutOfTime:
        return no_bound(problem)


def is_brief(problem: Problem, factor: float = 1.0) -> bool:
    """True if a bound of this problem takes fractions of a second, so that it needs no time limit.

    - `factor`: Seconds per second of work, as `busy_factor` returns.
    """
    return factor * problem.collective.num_chunks * len(problem.links_allowed) <= _BRIEF_HOPS


def no_bound(problem: Problem, *, divisible: bool = False) -> Certificate:
    """Lower bound of zero, which proves nothing.

    - `divisible`: True for a bound over all chunkings.
    """
    return Certificate(problem, Fraction(0), "none", "no proof so far", None, divisible)
