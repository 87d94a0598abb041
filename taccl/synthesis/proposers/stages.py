"""The stages of the portfolio: each a function that takes a `Search` and leaves it better or as it was.

`run` goes through those of a backend in the order of `STAGES`, until the bound is met or time is up. Each
stage knows its share of the time limit, and has nothing to do where it does not apply. Shares count work, so
that they are longer on the clock while the machine is busy; the time limit cuts them off.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from functools import partial

from taccl._internal.cpu_share import busy_factor
from taccl._internal.deadline import NEVER, OutOfTime
from taccl._internal.units import format_us
from taccl.errors import SolverUnavailableError
from taccl.synthesis.improve.improvement import improve_schedule, is_quick
from taccl.synthesis.kernels.limits import Limits
from taccl.synthesis.milp import routing
from taccl.synthesis.parameters import ListParameters
from taccl.synthesis.proposers.greedy import ListSchedule, critical_priorities, list_schedule
from taccl.synthesis.proposers.large_search import have_compiled, offer_compiled
from taccl.synthesis.proposers.solver_stages import alone, job_shop, route, schedule_routed
from taccl.synthesis.search import Search
from taccl.synthesis.symmetry.quotient import Quotient

#: CPU seconds of a run of the list scheduler per hop, by which a budget becomes a number of runs; and how
#: many times the budget the runs may take on a busy machine.
_RUN_S_PER_HOP, _PATIENCE = 6e-6, 4.0
#: Noise of the list scheduler's priorities, relative, in turn.
_NOISES = (0.0, 0.1, 0.5, 2.0, 8.0)
#: Share of the time for the compiled list scheduler; most seconds for a job shop, and for one after routing.
_COMPILED_SHARE, _MOST_JOINT_S, _MOST_JOB_SHOP_S = 0.1, 5.0, 4.0

# Improvement by the job shop: the routes that are freed in every round.

#: Share of chunk-rank states that are free at first, at least and at most; and factors on the share after
#: a round, one of them at random.
_FREE_FIRST, _FREE_LEAST, _FREE_MOST = 0.2, 0.1, 0.6
_FREE_STEPS = (0.8, 1.0, 1.3)
#: Share of rounds that free the last arrivals; the factor on it after a failure; and the share of these that
#: ask for a schedule that meets the bound.
_LAST_SHARE, _LAST_LESS_OFTEN, _LAST_BOUND_SHARE = 0.5, 0.7, 0.7
#: Share of the other rounds that free states at random; the rest free arrivals at about one time.
_RANDOM_SHARE = 0.5
#: Seconds of a round: at least, and for one of the last arrivals; more for every free hop; at most.
_ROUND_S, _LAST_ROUND_S, _ROUND_S_PER_HOP, _MOST_ROUND_S = 1.0, 0.6, 0.001, 4.0


def run(search: Search, backend: str, limit_s: float) -> None:
    """The stages of a backend, in order, until there is nothing left to do.

    Raises `SolverUnavailableError` if the named solver cannot run here; `OutOfTime` if the search gives up
    before there is a schedule.
    """
    for stage in STAGES.get(backend, (partial(_one_solver, solver=backend),)):
        if search.best is None or not search.done:
            stage(search, limit_s)
        if search.best is None:
            return


def _first(search: Search, limit_s: float) -> None:
    scheduling = search.parameters.list
    greedy(search, budget_s=min(scheduling.most_s, scheduling.share * limit_s))


def _alone(search: Search, limit_s: float) -> None:
    scheduling = search.parameters.list
    greedy(search, budget_s=min(limit_s, max(scheduling.least_alone_s, scheduling.alone_share * limit_s)))


def _compiled(search: Search, limit_s: float, *, share: float | None = None) -> None:
    if is_quick(limit_s, search.parameters):
        share = _COMPILED_SHARE if share is None else share
        offer_compiled(search, budget_s=share * limit_s)


def _joint(search: Search, limit_s: float) -> None:
    """One job shop with every hop optional, where there are few."""
    portfolio, num_hops = search.parameters.portfolio, len(search.quotient.hops)
    if num_hops > portfolio.joint_hops or search.best_on_quotient is None:
        return
    budget_s = busy_factor() * min(_MOST_JOINT_S, portfolio.joint_share * limit_s)
    job_shop(
        search,
        "joint",
        required=(),
        optional=range(num_hops),
        hint=search.best_on_quotient,
        budget_s=budget_s,
    )


def _routed(search: Search, limit_s: float) -> None:
    """Routing, then ordering and contiguity as one job shop."""
    portfolio = search.parameters.portfolio
    budget_s = min(busy_factor() * portfolio.routing_share * limit_s, search.deadline.left_s)
    routed = route(search, "highs", budget_s=budget_s)
    if routed is not None and not search.done:
        budget_s = busy_factor() * min(_MOST_JOB_SHOP_S, portfolio.job_shop_share * limit_s)
        schedule_routed(search, routed, "cpsat", budget_s)


def _one_solver(search: Search, limit_s: float, *, solver: str) -> None:
    """Routing, ordering and contiguity on one solver; the list scheduler only gives it a first finish."""
    greedy(search, budget_s=0.0, max_runs=1)
    if search.best is None:
        return
    # Only the solver's schedules count in the trace.
    search.trace[:] = [each for each in search.trace if each.finish_us is None or each.half != search.half]
    own = search.part(search.problem, "", search.deadline, bound=search.bound, rival=search)
    own.quotient = search.quotient
    first_us, half = format_us(search.best.finish_us), f" in the {search.half} half" if search.half else ""
    try:
        alone(own, solver, budget_s=limit_s)
        last = own.stages[-1]
        if own.best is None and last.status == "unavailable":
            raise SolverUnavailableError(f"{solver} cannot run here: {last.message}; see taccl backends")
        unlicensed = own.best is None and last.status == "unlicensed" and solver != "highs"
        if unlicensed:
            search.fallbacks.append(
                f"{solver} has no licence for this model ({last.message}); highs was used instead"
            )
            solver = "highs"
            alone(own, solver, budget_s=search.deadline.left_s)
    finally:
        if own.best is not None and own.best.finish_ticks <= search.best.finish_ticks:
            search.best, search.best_on_quotient, search.is_verified = (
                own.best,
                own.best_on_quotient,
                own.is_verified,
            )
    if own.best is None and not unlicensed:
        last = own.stages[-1]
        why = f"{last.status}, {last.message}" if last.message else last.status
        search.fallbacks.append(
            f"{solver} found no schedule{half} ({last.name}: {why}); the list scheduler's is returned, "
            f"which takes {first_us}"
        )
    elif own.best is not None and own.best is not search.best:
        search.notes.append(
            f"{solver} alone came to {format_us(own.best.finish_us)}{half}; the list scheduler's schedule, "
            f"from which it started, takes {first_us} and is returned"
        )


def greedy(search: Search, *, budget_s: float, max_runs: int = 10_000) -> None:
    """The list scheduler, with seeded restarts until the bound is met or the budget is spent.

    The budget becomes a number of runs, by their time on an idle machine, so that the result does not depend
    on the load. The clock ends it after several times as long.

    Raises `OutOfTime` if the search gives up, and time was up before there was a schedule.
    """
    quotient, scheduling = search.quotient, search.parameters.list
    since = time.monotonic()
    search.report("list scheduler")
    best: ListSchedule | None = None
    runs, most_s = 0, _PATIENCE * budget_s
    max_runs = min(max_runs, _runs_in(budget_s, len(quotient.hops), scheduling))
    while runs < max_runs and (best is None or (time.monotonic() - since < most_s and not search.done)):
        priorities = critical_priorities(
            quotient,
            noise=_NOISES[runs % len(_NOISES)],
            seed=search.options.seed * 1_000_003 + runs,
        )
        try:
            found = list_schedule(
                quotient,
                priorities,
                limit_ticks=None if best is None else best.finish_ticks,
                deadline=search.deadline if search.best is not None or search.gives_up else NEVER,
            )
        except OutOfTime:
            if search.best is None:
                raise
            break
        runs += 1
        if found is not None and (best is None or found.finish_ticks < best.finish_ticks):
            best = found
            search.offer(found, producer="list scheduler")
        if best is None and runs >= 2 * len(_NOISES):
            break
    status = "done" if best is not None else "no-solution"
    message = f"{runs} run{'s' if runs != 1 else ''}"
    search.record("greedy", "taccl", status, since, finish_us=search.best_us, message=message)


def _runs_in(budget_s: float, num_hops: int, scheduling: ListParameters) -> int:
    """Number of runs for a budget, rounded down to a power of 2, as the time that is left varies a little."""
    if budget_s <= 0:
        return 2 * len(_NOISES)  # the first may find nothing
    rounded_s = 2.0 ** math.floor(math.log2(budget_s))
    return max(2 * len(_NOISES), int(rounded_s / (_RUN_S_PER_HOP * max(1, num_hops))))


def ruin_and_recreate(search: Search) -> None:
    """Ruin and recreate over the incumbent's routes and order, until time is up or it finds no more.

    Sums that are kept apart have no trees that it could take out: then of the best that has.
    """
    known = [search.best]
    if search.best is not None and search.best.carries is not None:
        known = [each.under(search.problem) for each in search.earliest]
    if search.done or not known or known[0] is None:
        return
    if not have_compiled(search):
        return
    since, num_transfers = time.monotonic(), known[0].num_transfers
    if num_transfers * search.parameters.ruin.s_per_transfer > search.deadline.left_s:
        said = f"too little time to read {num_transfers} transfers"
        search.record("ruin and recreate", "compiled", "no-solution", since, message=said)
        return
    search.report("improving")
    limits = Limits(
        search.deadline, target_ticks=search.bound_ticks, seed=search.options.seed,
        parameters=search.parameters,
    )  # fmt: skip
    improving = partial(improve_schedule, known[0], limits)
    try:
        better, done = search.deadline.later(search.parameters.large.grace_s).run(improving)
    except OutOfTime:
        search.record("ruin and recreate", "compiled", "no-solution", since, message="no schedule in time")
        return
    finish = search.offer_whole(better, producer="ruin and recreate", proposed=True)
    search.record("ruin and recreate", "compiled", "done", since, finish_us=finish, message=done)


def _improve(search: Search, limit_s: float) -> None:
    """Large-neighbourhood search: free the routes of some states, keep the rest, re-time everything.

    States are freed at random, because chunks arrive there about one time, or because they are the last that
    chunks arrive at. The last kind often asks for a schedule that meets the bound. That leaves little room:
    it is found soon, or not at all, and then tried less often until the incumbent improves. Other rounds
    accept an equally good schedule, so that the search drifts over plateaus. It ends after some time without
    improvement.
    """
    since = time.monotonic()
    if search.done or search.best_on_quotient is None:
        return
    portfolio = search.parameters.portfolio
    patience_s = (portfolio.half_improve_share if search.half else portfolio.improve_share) * limit_s
    patience_s = busy_factor() * max(portfolio.least_improve_s, patience_s)
    rng = random.Random(search.options.seed)
    quotient, current = search.quotient, search.best_on_quotient
    start_us = search.best_us
    rounds, share, better, last_share = 0, _FREE_FIRST, 0, _LAST_SHARE
    search.last_improved = time.monotonic()
    while not search.done and time.monotonic() - search.last_improved < patience_s:
        entering = _entering(quotient, current)
        part, middle, upper_ticks = share, rng.random() * current.finish_ticks, None
        is_last = rng.random() < last_share
        if is_last:
            part, middle = rng.uniform(0.5, 2.0) * _FREE_LEAST, current.finish_ticks
            upper_ticks = search.bound_ticks if rng.random() < _LAST_BOUND_SHARE else None
        if not is_last and rng.random() < _RANDOM_SHARE:
            free = {p for p in range(len(quotient.states)) if rng.random() < share}
        else:
            nearest = sorted(entering, key=lambda p: (abs(entering[p][1] - middle), p))
            free = set(nearest[: max(1, int(part * len(nearest)))])
        required = {m for p, (m, _) in entering.items() if p not in free}
        optional = {m for p in free for m in quotient.states[p].hops_in} - required
        found = job_shop(
            search,
            "improve",
            required=required,
            optional=optional,
            hint=current,
            budget_s=busy_factor()
            * min(
                (_LAST_ROUND_S if is_last else _ROUND_S) + len(optional) * _ROUND_S_PER_HOP,
                _MOST_ROUND_S,
            ),
            upper_ticks=upper_ticks,
            seed=rng.randrange(2**31),
            record=False,
        )
        rounds += 1
        last_share *= _LAST_LESS_OFTEN if is_last else 1.0
        if found is not None and found.finish_ticks <= current.finish_ticks:
            if found.finish_ticks < current.finish_ticks:
                better, last_share = better + 1, _LAST_SHARE
            current = found
        share = min(_FREE_MOST, max(_FREE_LEAST, share * rng.choice(_FREE_STEPS)))
    message = f"{rounds} rounds, {better} better, from {start_us:.4g} us" if start_us is not None else ""
    search.record("improve", "cpsat", "done", since, finish_us=search.best_us, message=message)


#: The stages of every backend; any other is a solver that works alone.
STAGES: dict[str, tuple[Callable[[Search, float], None], ...]] = {
    "auto": (_first, _compiled, _joint, _routed, _improve),
    "greedy": (_alone, partial(_compiled, share=1.0)),
}


def _entering(quotient: Quotient, current: ListSchedule) -> dict[int, tuple[int, int]]:
    """The hop that enters each state, of those that lead to a destination, and when it ends."""
    needed = routing.needed_hops(quotient, current)
    return {
        p: (m, send.end_ticks)
        for send in reversed(current.sends)
        for m in send.hops
        if m in needed
        for p in quotient.hops[m].dsts
    }
