"""Scopes of bounds: for the problem's chunks or over all chunkings of its data; with or without a sketch.

A finish that meets the bound of its problem is optimal for these chunks. A finish that meets the bound over
all chunkings is optimal for the topology's costs. Differences between bounds in several scopes are the costs
of a sketch, of whole chunks, and of the search (`prices`).
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction

from taccl._internal.arguments import Duration, checked
from taccl._internal.deadline import NEVER, Deadline, OutOfTime, busy_factor
from taccl._internal.units import format_gap, format_us
from taccl.analysis.certificates.bounds import latency_bound, lower_bound, of_size
from taccl.analysis.certificates.certificate import Certificate, InNetworkGrant, OfPrices, by_its_prices
from taccl.analysis.certificates.transformed import merging_freely, without_padding
from taccl.problem.making import default_clauses
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule

#: `_BUDGET_S`: budget of a bound over all chunkings, in seconds.
#: `LIMIT_TIMES`: time limit of the bound's search (`limit_s` of `lower_bound`), as a multiple of the budget.
_BUDGET_S, LIMIT_TIMES = 1.0, 2.0
#: `_END_TIMES`: hard time limit of the search, as a multiple of the budget.
#: `_BRIEF_MOVES`: max chunk-link pairs of a problem for which there is no hard limit.
_END_TIMES, _BRIEF_MOVES = 2.0, 5_000
#: A cached bound is computed again if the budget is at least this factor times the one that it has used up.
_LARGER = 1.5
#: Max chunk-link pairs for the full bound over all chunkings; above it, cuts around nodes and ranks only.
_MOST_MOVES = 100_000_000
#: Max chunks of a problem whose own prices are evaluated over all chunkings (about 0.4 s of CPU).
_MOST_PRICED = 50_000
#: `_LEAST_END_S`: min CPU seconds of the search before a hard limit; with less time, only cuts are evaluated.
#: `_CUT_S_PER_MOVE`: approximate seconds for cuts around nodes and ranks, per chunk-link pair.
#: `_CUT_S`: seconds that cuts around nodes and ranks may take, however small the budget is.
_LEAST_END_S, _CUT_S_PER_MOVE, _CUT_S = 0.3, 4e-10, 0.7
#: Min relative difference at which the bounds for the problem's chunks and over all chunkings are both shown.
_LEAST_DIFFERENCE = Fraction(1, 100)
#: Key of bounds over all chunkings in a problem's cache; the value maps `in_network` to a bound.
_CACHE = f"{__name__}.bound_over_all_chunkings"


def bound_over_all_chunkings(
    bound: Certificate, *, budget_s: float | None = None, most_s: float = math.inf
) -> Certificate | None:
    """Bound over all chunkings for the problem of `bound`; None if it would take too long.

    Padding does not count, as in `lower_bound`. For large problems, the bound is that of cuts around nodes
    and ranks.

    - `budget_s`: Approximate seconds. A cached bound that used up a much smaller budget is computed again.
      Default: a cached bound, or one computed in 1 s.
    - `most_s`: Hard limit in seconds, also for small problems.
    """
    problem = bound.problem
    if bound.divisible:
        return bound
    moves = _num_moves(problem)
    is_large = moves > _MOST_MOVES
    found: dict[InNetworkGrant, _Found] = problem.cache.setdefault(_CACHE, {})
    known = found.get(bound.in_network)
    if known is None or (budget_s is not None and known.used_s * _LARGER < budget_s):
        budget_s = _BUDGET_S if budget_s is None else budget_s
        end_s = min(most_s, math.inf if moves <= _BRIEF_MOVES else _END_TIMES * budget_s)
        if is_large:
            budget_s, end_s = 0.0, max(_CUT_S, end_s)
            if cuts_s(problem) > end_s:
                return None
        elif end_s < busy_factor() * _LEAST_END_S:  # more than cuts would be begun in vain
            end_s = 0.0
        end = Deadline.after(end_s) if end_s < math.inf else NEVER
        try:
            every = lower_bound(
                problem, divisible=True, in_network=bound.in_network, budget_s=budget_s,
                limit_s=LIMIT_TIMES * budget_s, end_s=None if end is NEVER else max(0.0, end.left_s),
            )  # fmt: skip
        except OutOfTime:  # record the failure, so that it is not repeated with the same budget
            known = found[bound.in_network] = _Found(None if known is None else known.bound, budget_s)
            return known.bound
        is_final = is_large or not every.is_cut_off
        every = every if known is None else stronger(every, known.bound)
        known = found[bound.in_network] = _Found(every, math.inf if is_final else budget_s)
    is_weaker = known.bound is not None and known.used_s < math.inf and known.bound.bound < bound.bound
    if is_weaker and isinstance(bound.witness, OfPrices) and problem.collective.num_chunks <= _MOST_PRICED:
        priced = by_its_prices(bound, without_padding(merging_freely(problem.without_dates())))
        if priced is not None:
            priced = of_size(priced, problem.size_bytes)
            known = found[bound.in_network] = _Found(stronger(priced, known.bound), known.used_s)
    return known.bound


def _num_moves(problem: Problem) -> int:
    """Number of pairs of a chunk and a link."""
    return problem.collective.num_chunks * len(problem.topology.links)


def cuts_s(problem: Problem) -> float:
    """Approximate CPU seconds of a bound by cuts around nodes and ranks, the quickest for a large problem."""
    return _num_moves(problem) * _CUT_S_PER_MOVE


def known_bound_over_all_chunkings(bound: Certificate) -> Certificate | None:
    """Bound over all chunkings for the problem of `bound` as computed before; None if none was."""
    found = bound.problem.cache.get(_CACHE, {}).get(bound.in_network)
    return bound if bound.divisible else None if found is None else found.bound


def share_bound_over_all_chunkings(problem: Problem, other: Problem) -> None:
    """Copy cached bounds over all chunkings from `other` to `problem` if both have the same size in bytes."""
    if problem.size_bytes is not None and problem.size_bytes == other.size_bytes:
        problem.cache.setdefault(_CACHE, {}).update(other.cache.get(_CACHE, {}))


@dataclass(frozen=True, slots=True)
class _Found:
    """A cached bound over all chunkings, with the budget in seconds that its search used up.

    - `bound`: None if the search ran out of time.
    - `used_s`: Infinity if the search ended by itself, so that a larger budget gains nothing.
    """

    bound: Certificate | None
    used_s: float


def stronger(bound: Certificate, every: Certificate | None) -> Certificate:
    """Larger of a problem's bound and the one over all chunkings, which holds for the problem, too."""
    return bound if every is None or every.bound <= bound.bound else every


def under_sketch(problem: Problem) -> str:
    """Text for a claim that holds only under the problem's clauses; empty under the default ones.

    Without a sketch, as of a lifted program or a baseline, clauses may still limit merging.
    """
    clauses = problem.clauses
    default = default_clauses(problem)
    merges = clauses.merging >= default.merging and clauses.max_merge >= default.max_merge
    if clauses != clauses.only("merge") or clauses.name:
        return " under this sketch"
    return "" if merges else " under these limits on merging"


def standing(bound: Certificate, finish: Fraction, every: Certificate | None) -> str:
    """Text that the finish is optimal, over all chunkings or for the problem's chunks; empty if unproven."""
    if finish > bound.bound:
        return ""
    is_best = every is not None and finish <= every.bound
    words = "proven best" if is_best else f"optimal for {bound.scope}"
    words += " for this model" if bound.problem.topology.assumed else ""
    return words + under_sketch(bound.problem)


def bound_rows(
    bound: Certificate, every: Certificate | None, *, is_open: bool = False
) -> list[tuple[str, str]]:
    """Rows (label, text) of the bound for a schedule's chunks and of the bound over all chunkings.

    The requested bound comes first. The other is left out if the two differ by at most 1 %.

    - `bound`: Bound for the chunks of a schedule.
    - `every`: Bound over all chunkings, if known.
    - `is_open`: True if the number of chunks was left open, so that `every` was requested.
    """
    if every is None:
        is_proven = bound.kind != "none"
        return [("bound", f"{bound.text}, limited by {bound.limits}" if is_proven else "none proven so far")]
    asked, other = (every, bound) if is_open else (bound, every)
    if bound.bound <= every.bound * (1 + _LEAST_DIFFERENCE):
        return [("bound", f"{format_us(asked.bound)}, limited by {asked.limits}")]
    head = f"for {other.scope}" if is_open else f"over {other.scope}"
    return [
        ("bound", f"{asked.text}, limited by {asked.limits}"),
        (head, f"{format_us(other.bound)}, limited by {other.limits}"),
    ]


def gap_text(
    bound: Certificate, finish: Fraction, every: Certificate | None, *, is_open: bool = False
) -> str:
    """Text of a finish's gap to the bound for the schedule's chunks, and to the bound over all chunkings.

    The gap to the requested bound comes first. Brackets hold the other gap, or what is proven optimal.
    Parameters are those of `bound_rows`.
    """
    bound = stronger(bound, every)
    proven, gap = standing(bound, finish, every), format_gap(bound.gap(finish))
    if every is None or proven.startswith("proven best"):
        return f"{gap} ({proven})" if proven else gap
    gap_of_every = format_gap(every.gap(finish))
    over = f"{gap_of_every} over all chunkings"
    if gap == gap_of_every:
        return f"{over} ({proven})" if proven else over
    if is_open:
        return f"{over} ({proven or f'{gap} for {bound.scope}'})"
    return f"{gap} ({proven}; {over})" if proven else f"{gap} for {bound.scope} ({over})"


@dataclass(frozen=True, slots=True)
class Prices:
    """Relative losses of time due to the sketch, to indivisible chunks, and to the search; see `prices`.

    Parameters
    ----------
    bound : Certificate
        Bound of the declared problem.
    without_sketch : Certificate
        Bound of the same topology and collective without clauses, except those on merging and symmetry.
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
    """Relative losses of time due to the sketch, to indivisible chunks, and to the search.

    The first two compare lower bounds: with and without the clauses, and for indivisible and divisible
    chunks. The third is the gap of the schedule to its bound.

    Parameters
    ----------
    problem : Problem
        Problem with the sketch and the chunks to be judged.
    schedule : Schedule, optional
        Schedule whose gap to the bound is the loss of the search.
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
            if not divisible:
                deadline.check()
            return lower_bound(of, divisible=divisible, budget_s=part_s, limit_s=part_s, end_s=part_s)
        except OutOfTime:
            if not (divisible or of.release_us or of.due_us):
                return latency_bound(of)
            raise OutOfTime(f"time_limit_s: no bound in {time_limit_s:g} s; give more time") from None

    is_free = free == problem.clauses
    divisible = bound(problem, divisible=True, share=3 / 4 if is_free else 1 / 2)
    whole = bound(problem, divisible=False, share=1.0 if is_free else 1 / 2)
    whole = stronger(whole, divisible)
    without = whole
    if not is_free:
        plain = replace(problem, clauses=free)
        without = bound(plain, divisible=False, share=3 / 4)
        # A cost of the sketch is real only if no argument proves more without it.
        if without.bound < whole.bound:
            with suppress(OutOfTime):
                without = stronger(without, bound(plain, divisible=True, share=1.0))
    return Prices(whole, without, divisible, None if schedule is None else schedule.finish)


def _ratio(bound: Fraction, other: Fraction) -> float:
    return float(bound / other - 1) if other else 0.0
