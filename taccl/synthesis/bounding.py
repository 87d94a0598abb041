"""Lower bounds computed during a search: their time limits, and the choice of the largest valid one."""

from __future__ import annotations

import logging
import math
import time
from fractions import Fraction
from typing import TYPE_CHECKING

from taccl._internal.deadline import OutOfTime, busy_factor
from taccl.analysis.certificates.bounds import latency_bound, lower_bound
from taccl.analysis.certificates.certificate import Certificate, InNetworkGrant
from taccl.analysis.certificates.scopes import (
    LIMIT_TIMES,
    bound_over_all_chunkings,
    known_bound_over_all_chunkings,
    stronger,
)

if TYPE_CHECKING:
    from taccl._internal.deadline import Deadline
    from taccl.problem.problem import Problem
    from taccl.synthesis.parameters import BudgetParameters
    from taccl.synthesis.search import Search

logger = logging.getLogger(__name__)

#: Max share of the time left for work on the bound over all chunkings on a busy machine.
#: The first is that of large problems, the other that of problems whose bound takes fractions of a second.
_MOST_EVERY_SHARE, _BRIEF_EVERY_SHARE = 0.3, 0.25
#: Min wall time of the bound over all chunkings on a busy machine, in units of its `least_every_s`.
_LATE_TIMES = 1.0
#: Min wall seconds for the bound over all chunkings if the search already exceeds its time limit.
_LEAST_LATE_S = 0.1
#: Seconds up to which looking up a known bound makes no row of the stages.
_BRIEF_S = 0.01
#: Max (chunk, link) pairs of a problem whose bound needs no time limit, as it takes fractions of a second.
_BRIEF_HOPS = 5_000


def bound_within(
    problem: Problem,
    limit: Deadline,
    budget: BudgetParameters,
    *,
    kept_s: float = 0.0,
    in_network: InNetworkGrant = False,
) -> Certificate:
    """Compute a lower bound in a share of the time until `limit`; the bound is zero if time is too short.

    - `kept_s`: Seconds reserved for later stages. Later stages use the bound, too, so a part of these seconds
      counts as time for the bound.
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

    - `factor`: Seconds of wall time per second of work, as `busy_factor` returns.
    """
    return factor * problem.collective.num_chunks * len(problem.links_allowed) <= _BRIEF_HOPS


def no_bound(problem: Problem, *, divisible: bool = False) -> Certificate:
    """Lower bound of zero, which proves nothing.

    - `divisible`: True for a bound over all chunkings.
    """
    return Certificate(problem, Fraction(0), "none", "no proof so far", None, divisible)


def look_for_bound(search: Search) -> None:
    """Compute the lower bound of a search's problem in a share of the time, unless it is known already.

    Once time is up, it is computed only if that takes fractions of a second, even on a machine that is busy.
    Otherwise the bound over all chunkings is used, which is also valid for the problem's own chunks.
    """
    is_late = search.deadline.has_passed and not is_brief(search.problem, busy_factor())
    if search.bound is None and not (search.interrupted or is_late):
        since = time.monotonic()
        found = bound_within(search.problem, search.deadline, search.parameters.budget, kept_s=search.kept_s)
        search.prove(found, since)


def look_for_bound_over_all_chunkings(
    search: Search, known: Certificate | None = None, limit_s: float | None = None
) -> Certificate | None:
    """Lower bound over all chunkings; None if the time is too short.

    It is computed again only if it was cut off and now has more time.

    - `known`: A lower bound for the problem's own chunks, if there is one.
    - `limit_s`: Seconds that it may take. Default: a share of the time left.
    """
    budget, since, left_s = search.parameters.budget, time.monotonic(), search.deadline.left_s
    # On a busy machine, the bound's min time is longer, but capped on large problems to keep the time limit.
    least_s, late_least_s = budget.least_every_s * busy_factor(), budget.least_every_s
    if is_brief(search.problem):
        least_s = min(least_s, max(budget.least_every_s, _BRIEF_EVERY_SHARE * left_s))
    else:
        least_s = min(least_s, max(_LATE_TIMES * budget.least_every_s, _MOST_EVERY_SHARE * left_s))
        late_least_s = min(budget.least_every_s, _LEAST_LATE_S)
    late_s, most_s = since - search.options.ends_s, math.inf
    if late_s > 0:
        least_s = min(least_s, max(late_least_s, budget.least_every_s - late_s / LIMIT_TIMES))
        most_s = LIMIT_TIMES * least_s
    every_s = max(least_s, min(budget.most_every_s, budget.bound_share * left_s))
    if limit_s is not None:
        every_s = limit_s / LIMIT_TIMES
    every = bound_over_all_chunkings(known or no_bound(search.problem), budget_s=every_s, most_s=most_s)
    every_us, name = None if every is None else every.bound_us, "bound over all chunkings"
    is_recorded = (name, every_us) in ((each.name, each.bound_us) for each in search.stages)
    if not is_recorded or time.monotonic() - since > _BRIEF_S:
        search.record(name, "taccl", "done", since, bound_us=every_us)
    if every is not None and search.above is None:
        search.report_bound(every)
    return every


def sound_bound(search: Search) -> tuple[Certificate, tuple[str, ...]]:
    """Return (lower bound, messages): the larger of the problem's bound and the bound over all chunkings.

    The bound is zero, with a message, if none was proven in time, or if a verified schedule refutes it.
    After Ctrl-C no bound is computed, but those that are known count.
    """
    assert search.best is not None, "there is a schedule"
    if search.interrupted:
        found = search.bound or no_bound(search.problem)
        every = known_bound_over_all_chunkings(found)
        search.bound = search.bound if every is None else stronger(found, every)
    elif not search.is_strengthened:
        search.is_strengthened = True
        every = look_for_bound_over_all_chunkings(search, search.bound)
        known = search.bound
        if known is None and every is None:
            has_dates = search.problem.release_us or search.problem.due_us
            known = no_bound(search.problem) if has_dates else latency_bound(search.problem)
        search.bound = stronger(known or no_bound(search.problem), every)
    if search.bound is None:
        fault = "stopped before a lower bound was proven; give more time, or call lower_bound"
    elif search.best.finish >= search.bound.bound:
        return search.bound, ()
    else:
        logger.error("%r: the bound %r is above a verified schedule", search.problem, search.bound)
        fault = "internal error: a bound above a verified schedule was dropped; please report it"
    return no_bound(search.problem), (fault,)
