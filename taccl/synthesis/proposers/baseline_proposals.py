"""Baselines as proposals that compete with the search, if they obey the problem's sketch."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from taccl._internal.caching import cached
from taccl._internal.deadline import Deadline, OutOfTime, busy_factor
from taccl._internal.units import format_s
from taccl.analysis.verification.verify import verify
from taccl.baselines import baseline
from taccl.baselines.chunking import are_pairs, built_within
from taccl.baselines.table import BASELINES, competes_in, num_arrivals, phases_of, row_of
from taccl.baselines.table import build_times as baseline_times
from taccl.errors import InputError
from taccl.problem.alltoallv import is_uneven
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.synthesis.parameters import DEFAULTS, BudgetParameters, SearchParameters
from taccl.synthesis.proposers.balanced import search_balanced
from taccl.synthesis.proposers.compiling import are_kept
from taccl.synthesis.proposers.large import COMPILED, effort, suits
from taccl.synthesis.proposers.large_search import offer_compiled
from taccl.synthesis.search import Search
from taccl.topology.recognise import dimensions, grid_of

#: Max transfers of baselines whose transfers name the contributions that they carry.
_MOST_NAMED = 400_000
#: Estimated CPU seconds to verify a transfer.
_VERIFY_S = 6e-6
#: `_LOAD_S`: CPU seconds to load the compiled list scheduler.
#: `_RUN_S`: CPU seconds of the list scheduler per 10,000 arrivals of copied chunks, and per 10,000 of sums.
#: `_UNEVEN_RUNS`: max runs of the list scheduler, as the first baseline, if pairs exchange unequal bytes.
_LOAD_S, _RUN_S, _UNEVEN_RUNS = 0.5, (0.3, 1.0), 3
#: Limits for the choice of the next baseline while there is no schedule.
#: A baseline's first form is the first schedule that it completes; it may build variants after that.
#: `_SAFE_SHARE`: max share of the time until its deadline that the preferred baseline may need to be next.
#: `_FIRST_TIMES`: otherwise, max build time of the next baseline's first form, as a multiple of the shortest.
#: `_QUICK_S`: a first form that needs at most this number of CPU seconds is never too slow to be next.
#: This is also the least time that the first baseline gets to build variants.
_FIRST_TIMES, _QUICK_S, _SAFE_SHARE = 2.0, 0.3, 0.8
#: Max seconds past its deadline for the first baseline to build variants, once one schedule is complete.
_VARIANTS_S = 1.0
#: Max share of the time left that a baseline may take for `quickest_first` to rank it by preference.
_QUICK_FIRST_SHARE = 0.2
#: Entry of `tried_finer(problem)`: the best forms of recursive multiplying were chosen by their estimates.
BY_ESTIMATE = "multiplying by estimate"

#: `_RESERVE_S_PER_LINK`: CPU seconds of verifier and bound at the end, per link.
#: `_RESERVE_S_PER_TRANSFER`: CPU seconds of verifier and bound at the end, per transfer.
#: `_MOST_RESERVE_SHARE`: max share of the time left to reserve for verifier and bound.
_RESERVE_S_PER_LINK, _RESERVE_S_PER_TRANSFER, _MOST_RESERVE_SHARE = 3e-5, 1.5e-5, 0.4
#: `_BASELINE_S_PER_ARRIVAL`: CPU seconds to build and verify a baseline, per arrival of a chunk.
#: `BASELINE_S_PER_LINK`: CPU seconds to build and verify a baseline, per link.
#: `_NAMED_S_PER_TRANSFER`: CPU seconds to build and verify a transfer that lists its contributions.
_BASELINE_S_PER_ARRIVAL, BASELINE_S_PER_LINK, _NAMED_S_PER_TRANSFER = 6e-5, 2e-5, 1e-5
#: `_LEAST_FIRST_S`: min CPU seconds for baselines before the search.
#: `MOST_FIRST_SHARE`: cap on `_LEAST_FIRST_S`, as a share of the time left.
_LEAST_FIRST_S, MOST_FIRST_SHARE = 1.25, 0.9
#: `_BALANCED_S_PER_TRANSFER`: CPU seconds per transfer of a schedule balanced over dimensions.
#: `_BALANCED_LEAST_S`: max CPU seconds of a balanced schedule that is tried even after the time limit.
_BALANCED_S_PER_TRANSFER, _BALANCED_LEAST_S = 5e-6, 0.3


def competes(search: Search) -> bool:
    """True if baselines compete with the library's own searches; false for a solver that works alone."""
    return search.backend in ("auto", "greedy")


def is_small(problem: Problem) -> bool:
    """True if the problem is latency-bound.

    Either all chunks may merge, also within nodes; or there are sums, and on some link the latency exceeds
    the transmission time of all chunks together.
    """
    collective, clauses, costs = problem.collective, problem.clauses, problem.costs
    beyond = clauses.merging.difference(problem.topology.internode_links)
    if clauses.max_merge >= collective.num_chunks and beyond:
        return True
    allowed, units = np.array(problem.links_allowed, dtype=np.int64), int(costs.chunk_units.sum())
    waits = (costs.link_alpha > units * costs.link_beta)[allowed]
    return collective.sums_up and bool(waits.any())


def reserve_s(problem: Problem, left_s: float, budget: BudgetParameters) -> float:
    """Seconds of `left_s` to reserve for the verifier and the bound at the end."""
    transfers, links = num_arrivals(problem) * phases_of(problem), len(problem.topology.links)
    work_s = _RESERVE_S_PER_LINK * links + _RESERVE_S_PER_TRANSFER * transfers
    kept_s = busy_factor() * max(budget.reserve_s, work_s)
    return max(budget.reserve_s, min(kept_s, _MOST_RESERVE_SHARE * left_s))


def offer_first(search: Search, names: Collection[str] | None = None) -> None:
    """Propose the baselines that fit into a share of the time, in order of preference.

    The baseline that is usually best has a larger share. If its build takes longer than that share, and there
    is no schedule yet, the baseline that is quickest to build comes first. Each baseline is stopped at its
    time limit; then the best schedule that it has completed is proposed.

    - `names`: The only baselines to propose; default: all.
    """
    portfolio = search.parameters.portfolio
    until, until_best = (
        search.deadline.sooner(for_baselines_s(search.deadline, share))
        for share in (portfolio.first_share, portfolio.best_share)
    )
    excluded = () if names is None else {*BASELINES, COMPILED} - {*names}
    _offer_quickest(search, until, until_best, excluded=excluded)


def for_baselines_s(limit: Deadline, share: float, most_share: float = MOST_FIRST_SHARE) -> float:
    """Seconds for baselines before the search: a share of the time, with a minimum.

    The minimum is longer if the machine is busy with other work.

    - `most_share`: Cap on the minimum, as a share of the time left.
    """
    left_s = limit.left_s
    return max(share * left_s, min(most_share * left_s, _LEAST_FIRST_S * busy_factor()))


def offer_rest(search: Search) -> None:
    """Propose the remaining baselines in the remaining time of the search, in order of preference."""
    budget = search.parameters.budget
    until = search.deadline.later(-reserve_s(search.problem, search.deadline.left_s, budget))
    until = until.sooner(search.idle_s)
    if search.best is not None and not until.has_passed:
        _offer_quickest(search, until, until, excluded=(COMPILED,), is_last=True)


def _offer_quickest(
    search: Search, until: Deadline, until_best: Deadline, *, excluded: Collection[str], is_last: bool = False
) -> None:
    """Propose baselines that were not built yet, in order of preference.

    While there is no schedule, the usually best baseline comes first. If it may take too long, one that is
    about as quick to build as the quickest comes first.

    - `until`, `until_best`: Deadlines for each baseline, and for the usually best one.
    - `excluded`: Baselines to leave out.
    - `is_last`: True after the search.
    """
    problem, parameters, since = search.problem, search.parameters, time.monotonic()
    portfolio, best = parameters.portfolio, ""
    if problem.collective.is_met:
        return
    uneven = is_uneven(problem)
    few_hops = 0 if uneven else parameters.choice.few_hops
    builds_s = build_times(problem, portfolio.first_transfers, few_hops)
    begins_s = build_times(problem, portfolio.first_transfers, few_hops, whole=False)
    order = [COMPILED, *preferred(problem)] if uneven else [*preferred(problem), COMPILED]
    left = sorted(builds_s.keys() - {*made_of(problem), *excluded}, key=order.index)
    if not is_last and BY_ESTIMATE in tried_finer(problem):  # "multiplying" is then built after the search
        left = [name for name in left if name != "multiplying"]
    late_s = parameters.budget.late_s * busy_factor()
    late = search.deadline.later(late_s)
    skipped: list[str] = []
    refused = 0
    while left:
        is_known, factor = search.has_found, busy_factor()
        limits = {name: until_best if name == order[0] else until for name in left}
        left_s = {name: limits[name].left_s / factor for name in left}
        name = (_next_better if is_known else _next_first)(left_s, builds_s, begins_s)
        if name is None:
            skipped.extend(left)
            break
        limit = limits[name]
        left.remove(name)
        if name == COMPILED:
            num_runs = _UNEVEN_RUNS if uneven else 1
            offer_compiled(search, budget_s=limit.left_s, num_runs=num_runs, late_s=late_s)
            continue
        verify_s = factor * _VERIFY_S * num_arrivals(problem) * phases_of(problem)
        last = limit if is_known else late
        # Variants of a baseline may finish far sooner than its first form, so they get extra time.
        has_variants = not (is_known or row_of(name).forms_transfers)
        ends = limit.later(_VARIANTS_S if has_variants else -verify_s)
        if not is_known:  # list scheduling of the first form may gain much, as in an alltoall
            ends = ends.at_least(factor * _QUICK_S)
        found = _in_time(name, problem, ends, last)
        with suppress(OutOfTime), (limit.at_least(verify_s) if is_known else late).enforced():
            is_better = found is not None and (search.best is None or found.finish < search.best.finish)
            if found is not None and is_better:
                if verify(found).ok:
                    search.offer_whole(found, producer=found.producer, verified=True)
                    best = name
                else:
                    refused += 1
    none = "none better" if search.has_found else "none"
    none = f"none of {refused} obeys the sketch" if refused and not search.has_found else none
    message = f"{'last' if is_last else 'first'}: {best or none}{left_out(search, skipped)}"
    search.record("baselines", "taccl", "done", since, finish_us=search.best_us, message=message)


def _next_first(
    left_s: Mapping[str, float], builds_s: Mapping[str, float], begins_s: Mapping[str, float]
) -> str:
    """Name of the baseline to build while there is no schedule: the preferred one, if it surely ends in time.

    Otherwise, the most preferred one whose first form is about as quick to build as the quickest.

    - `left_s`: {baseline: CPU seconds until its deadline}, in order of preference.
    - `builds_s`, `begins_s`: {baseline: CPU seconds to build all of its forms, or its first one}.
    """
    preferred = next(iter(left_s))
    if builds_s[preferred] <= _SAFE_SHARE * left_s[preferred]:
        return preferred
    quick_s = max(_FIRST_TIMES * min(begins_s[name] for name in left_s), _QUICK_S)
    return next(name for name in left_s if begins_s[name] <= quick_s)


def _next_better(
    left_s: Mapping[str, float], builds_s: Mapping[str, float], begins_s: Mapping[str, float]
) -> str | None:
    """Name of the baseline to build once there is a schedule: the most preferred one that ends in time.

    If none does, the most preferred one whose first form ends in time; None if there is none. Arguments are
    as for `_next_first`.
    """
    for needed_s in (builds_s, begins_s):
        for name, most_s in left_s.items():
            if needed_s[name] <= most_s:
                return name
    return None


def left_out(search: Search, names: Sequence[str]) -> str:
    """Part of a stage's message that lists the baselines that were not built; empty for no names.

    They were skipped for lack of time, or because the search ended for another reason.
    """
    stopped = search.deadline.cancellation.why
    reason = f"{stopped} before" if stopped else "no time for"
    return f"; {reason} {', '.join(names)}" if names else ""


def _in_time(name: str, problem: Problem, limit: Deadline, last: Deadline) -> Schedule | None:
    """Build a baseline in the problem's own chunks; at a deadline, return its best schedule so far, or None.

    - `limit`: Deadline once the baseline has completed a schedule.
    - `last`: Deadline as long as it has completed none.
    """
    with suppress(InputError):
        found = built_within(problem, lambda: _as_asked(name, problem), limit, lambda: last.has_passed)
        return None if found is None else replace(found, problem=problem)
    return None


def preferred(problem: Problem) -> list[str]:
    """Names of the baselines that searches propose, the one that usually finishes first at the front.

    On tori and meshes that is the bucket algorithm, or Bine trees for small sums on tori of several
    dimensions. Elsewhere it is recursive multiplying.
    """
    grid = grid_of(problem.topology)
    on_grid = grid is not None
    on_torus = grid is not None and len(grid) > 1 and all(each.kind == "ring" for each in grid)
    few_steps = on_torus and is_small(problem)
    is_pairs = are_pairs(problem)

    def place(name: str) -> int:
        row = row_of(name)
        if is_pairs and row.pairs_place is not None:
            return row.pairs_place
        if few_steps and row.small_torus_place is not None:
            return row.small_torus_place
        return row.place if row.grid_place is None or not on_grid else row.grid_place

    return sorted((name for name in BASELINES if competes_in(problem, name)), key=place)


def quickest_first(problem: Problem, left_s: float) -> list[str]:
    """Names of the baselines, those that are built early at the front; without those of too many transfers.

    Baselines that take little time come in order of preference, the others by build time. Little time is a
    small share of the time left, or at most twice the time of the quickest.

    - `left_s`: Seconds left.
    """
    builds_s = build_times(problem, DEFAULTS.portfolio.first_transfers, 2**63)
    share_s = _QUICK_FIRST_SHARE * left_s / busy_factor()
    quick_s = max(share_s, _FIRST_TIMES * min(builds_s.values(), default=0.0))
    order = [*preferred(problem), COMPILED]

    def key(name: str) -> tuple[bool, float, str]:
        is_long = builds_s[name] > quick_s
        return is_long, builds_s[name] if is_long else order.index(name), name

    return sorted(builds_s, key=key)


def build_times(
    problem: Problem, most_transfers: int, few_hops: int, *, whole: bool = True
) -> dict[str, float]:
    """Estimated CPU seconds to build each baseline of at most `most_transfers` transfers, as {name: seconds}.

    One run of the compiled list scheduler is included for problems of more than `few_hops` hops.

    - `whole`: Some baselines build several forms (variants) and keep the best. True for the time of all
      forms, False for that of the first one.
    """
    found = baseline_times(problem, most_transfers, whole=whole)
    if effort(problem) > few_hops and suits(problem) and are_kept(problem):
        each_s = _RUN_S[problem.collective.combining]
        found[COMPILED] = _LOAD_S + each_s * num_arrivals(problem) / 10_000
    return found


def share_baselines(problem: Problem, other: Problem) -> None:
    """Let `problem` reuse the baselines built for `other`, if the two problems are equal apart from notes."""
    if problem is not other and problem == other:
        for name, made in made_of(other).items():
            made_of(problem).setdefault(name, made.under(problem))


def offer_made(search: Search) -> None:
    """Propose the best baseline that was built for the problem before the search and obeys its sketch."""
    for made in sorted(made_of(search.problem).values(), key=lambda made: made.finish):
        if made.finish >= search.finish:
            break
        if verify(made).ok:
            search.offer_whole(made, producer=made.producer, verified=True)


def offer_proven(search: Search) -> bool:
    """Propose a baseline or trial that was made before the search if it meets the bound; True if one does.

    Other baselines are proposed after the search, as exact stages start from its own schedules only.
    """
    if not competes(search) or search.bound is None:
        return False
    for made in (*made_of(search.problem).values(), *trials(search.problem)):
        if made.finish_ticks <= search.bound_ticks and not search.is_met and verify(made).ok:
            search.offer_whole(made.under(search.problem), producer=made.producer, verified=True)
    return search.is_met


@cached
def trials(problem: Problem) -> list[Schedule]:
    """Unverified schedules of the list schedulers by which the number of chunks was chosen."""
    return []


def offer_balanced(search: Search) -> None:
    """Propose the schedule balanced over dimensions, if the problem has many arrivals.

    It is skipped if it would take longer than the time left.
    """
    since, most_s = time.monotonic(), max(search.deadline.left_s, _BALANCED_LEAST_S)
    takes_s = _balanced_s(search.problem, search.parameters)
    if search.is_met or search.interrupted or not takes_s:
        return
    if takes_s > most_s:
        message = f"takes about {format_s(takes_s)}, and there are {format_s(most_s)} for it"
        search.record("dimensions", "taccl", "skipped", since, message=message)
        return
    most = search.parameters.portfolio.balanced_transfers
    search_balanced(search, most_transfers=most, competes=True)


def balanced_s(problem: Problem, left_s: float, parameters: SearchParameters) -> float:
    """Estimated seconds that `offer_balanced` takes; 0 if it will propose nothing."""
    takes_s = _balanced_s(problem, parameters)
    if 0 < takes_s < left_s:
        with suppress(InputError):  # InputError: the topology has no dimensions
            dimensions(problem.topology)
            return takes_s
    return 0.0


def _balanced_s(problem: Problem, parameters: SearchParameters) -> float:
    """Estimated seconds to build the balanced schedule, without the search for dimensions.

    It is 0 if the problem has few arrivals, or too many transfers.
    """
    portfolio, topology = parameters.portfolio, problem.topology
    transfers = 2 * problem.collective.chunks_per_rank * topology.num_ranks**2
    if num_arrivals(problem) <= portfolio.baseline_arrivals or transfers > portfolio.balanced_transfers:
        return 0.0
    return transfers * _BALANCED_S_PER_TRANSFER + len(topology.links) * BASELINE_S_PER_LINK


def baseline_us(name: str, problem: Problem, limit: Deadline, parameters: SearchParameters) -> float:
    """Finish of a baseline in us; infinity if it takes too long, is undefined or breaks the sketch."""
    found = None
    if _takes_s(name, problem, parameters) <= limit.left_s:
        with suppress(OutOfTime), limit.enforced():
            found = obeying(name, problem)
    return math.inf if found is None else found.finish_us


def obeying(name: str, problem: Problem) -> Schedule | None:
    """Baseline in the problem's own chunks; None if it is undefined or breaks the sketch."""
    with suppress(InputError):
        found = _as_asked(name, problem)
        if verify(found).ok:
            return found
    return None


def _takes_s(name: str, problem: Problem, parameters: SearchParameters) -> float:
    """Estimated seconds to build a baseline; infinity if it has too many transfers to compete."""
    collective = problem.collective
    starting, ending = collective.origin_sets.sizes, collective.destination_sets.sizes
    arrivals = num_arrivals(problem)
    if arrivals > parameters.portfolio.baseline_arrivals:
        return math.inf
    if row_of(name).names_contributions:
        return min(int(starting @ ending), _MOST_NAMED) * _NAMED_S_PER_TRANSFER
    return arrivals * _BASELINE_S_PER_ARRIVAL + len(problem.topology.links) * BASELINE_S_PER_LINK


def _as_asked(name: str, problem: Problem) -> Schedule:
    """Schedule of a baseline in the problem's own chunks, as a schedule of the problem under its sketch.

    It is built once, and may break the sketch.
    """
    made = made_of(problem)
    if name not in made:
        made[name] = replace(baseline(name, problem, cut=False), problem=problem)
    return made[name]


@cached
def made_of(problem: Problem) -> dict[str, Schedule]:
    """{name: schedule} of the baselines built for a problem so far."""
    return {}


@cached
def tried_finer(problem: Problem) -> set[str]:
    """Names of the baselines tried in finer chunks for a problem so far."""
    return set()
