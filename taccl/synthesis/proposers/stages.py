"""The main search, by the compiled list scheduler for large problems, else by the stages of a backend.

If the collective reduces, stages run on its reduce phase and on its broadcast phase.

Stages are proposers for broadcast-like problems (chunks are copied, not summed), listed by backend in
`STAGES`. Each knows its share of the time limit and returns at once if it does not apply. Shares are in
seconds of work, so they last longer on a busy machine, up to the time limit.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from fractions import Fraction
from functools import partial

from taccl._internal.deadline import NEVER, OutOfTime, busy_factor
from taccl._internal.units import format_about, format_s, format_us
from taccl.errors import NoSolutionError, SolverUnavailableError
from taccl.problem.problem import Problem
from taccl.solvers.worker import warm_up
from taccl.synthesis.bounding import look_for_bound
from taccl.synthesis.budget import Turn, run
from taccl.synthesis.improve.improvement import suits_improvement
from taccl.synthesis.parameters import DEFAULTS, SearchParameters
from taccl.synthesis.proposers.baseline_proposals import offer_proven
from taccl.synthesis.proposers.compiling import are_kept, too_short
from taccl.synthesis.proposers.greedy import ListSchedule, critical_priorities, list_schedule
from taccl.synthesis.proposers.large import COMPILED, effort, why_not
from taccl.synthesis.proposers.large_search import offer_compiled, search_large
from taccl.synthesis.proposers.ruin import is_cold, ruin_and_recreate, ruin_early, ruin_within
from taccl.synthesis.proposers.solver_loop import alone
from taccl.synthesis.proposers.solver_stages import improve_by_job_shop, job_shop
from taccl.synthesis.proposing import OwnProposer
from taccl.synthesis.search import Search
from taccl.synthesis.symmetry.timing_group import timing_group
from taccl.synthesis.transforms.phases import search_phases

#: Max hops per second of the time limit for solvers; problems with more are left to the compiled search.
#: The limit on hops is at least `few_hops` and at most `most_hops`, whatever the time limit.
_HOPS_PER_S = 50_000
#: `_RUN_S_PER_HOP`: CPU seconds per hop of a list scheduler's run, to turn a time budget into runs.
#: `_PATIENCE`: max time of list scheduler runs on a busy machine, as a multiple of the budget.
_RUN_S_PER_HOP, _PATIENCE = 6e-6, 4.0
#: `_FIRST_TURN_S`: seconds of the portfolio's first turn (a run of its stages in order).
#: `_REPEATED`: index of the first stage that later turns repeat.
_FIRST_TURN_S, _REPEATED = 4.0, 2
#: `_IMPROVED_SHARE`: share of the time reserved for ruin and recreate after a named solver.
#: `_RUIN_ALONE_SHARE`: share of a named solver's turn for ruin and recreate.
_IMPROVED_SHARE, _RUIN_ALONE_SHARE = 0.25, 0.5
#: {phase, as `Search.phase` returns it: text for messages}.
_IN_PHASE = {"": "", "reduce": " in the reduce phase", "broadcast": " in the broadcast phase"}
#: Min seconds for restarts of the list scheduler before a named solver; with less time, it runs once.
_LEAST_RESTARTS_S = 0.2
#: Relative noise on the list scheduler's priorities, one value per run in rotation.
_NOISES = (0.0, 0.1, 0.5, 2.0, 8.0)
#: Max hops for which the list scheduler also tries paths of any length (about 60 ms per run).
_DETOUR_HOPS = 10_000
#: `_COMPILED_SHARE`: share of a portfolio turn's time for the compiled list scheduler.
#: `_MOST_JOINT_S`: max seconds of the joint job shop.
_COMPILED_SHARE, _MOST_JOINT_S = 0.1, 5.0


def _first(search: Search) -> None:
    greedy(search, budget_s=_first_s(search))


def _first_s(search: Search) -> float:
    """Seconds for the list scheduler, which runs before the other stages."""
    scheduling = search.parameters.list
    return min(scheduling.most_s, scheduling.share * search.turn_s)


def _alone(search: Search) -> None:
    scheduling, limit_s = search.parameters.list, search.limit_s
    greedy(search, budget_s=min(limit_s, max(scheduling.least_alone_s, scheduling.alone_share * limit_s)))


def _compiled(search: Search, *, share: float) -> None:
    offer_compiled(search, budget_s=share * search.turn_s)


def _detour(search: Search) -> None:
    """Run the list scheduler with a routing slack so large that chunks may take paths of any length.

    It runs only for exchanges, in which each chunk has one destination.
    """
    problem, scheduling = search.problem, search.parameters.list
    free = problem.with_clauses(routing_slack=Fraction(problem.topology.num_ranks))
    part = search.part(free, "any path: ", search.deadline, bound=search.bound, gives_up=True)
    with suppress(OutOfTime):
        greedy(part, budget_s=min(scheduling.most_s, scheduling.share * search.limit_s))
    if part.best is not None:
        search.offer_whole(part.best.under(problem), producer="list scheduler, over any path")


def _may_detour(search: Search) -> bool:
    """True for an exchange of few hops."""
    ends = search.problem.collective.destination_sets.sets
    return all(len(ranks) == 1 for ranks in ends) and effort(search.problem) <= _DETOUR_HOPS


def _detours_compiled(search: Search) -> str:
    """Reason to skip `_detour` if kernels are compiled; empty otherwise."""
    return "the compiled list scheduler may use any path" if are_kept(search.problem) else ""


def _joint(search: Search) -> None:
    """Solve routing, ordering and contiguity as one job shop with all hops optional, if the hops are few."""
    portfolio, num_hops = search.parameters.portfolio, len(search.quotient.hops)
    if num_hops > portfolio.joint_hops or search.best_on_quotient is None:
        return
    budget_s = busy_factor() * min(_MOST_JOINT_S, portfolio.joint_share * search.turn_s)
    job_shop(
        search,
        "joint",
        required=(),
        optional=range(num_hops),
        hint=search.best_on_quotient,
        budget_s=budget_s,
        producer="joint job shop",
    )


def _may_ruin_early(search: Search) -> bool:
    """True if ruin and recreate suits the problem and has reserved time, and this is no partial search."""
    is_whole = search.above is None and not search.phase
    return is_whole and search.kept_s > 0 and suits_improvement(search.problem)


def _one_solver(search: Search) -> None:
    """Run one solver in a loop, with ruin and recreate in each turn and in the time left after the loop.

    If the kernels of ruin and recreate are not compiled, it runs only after the loop, in reserved time.
    """
    may_improve = suits_improvement(search.problem) and not too_short(search)
    is_late = may_improve and not are_kept(search.problem)
    search.turn_s = min(_FIRST_TURN_S, search.limit_s)
    with search.keeping(is_late * _IMPROVED_SHARE * search.limit_s):
        _solve_alone(search, improves=may_improve and not is_late)
    if may_improve and search.best is not None and not search.done:
        ruin_and_recreate(search)


def _solve_alone(search: Search, *, improves: bool) -> None:
    """Routing, ordering and contiguity by one solver, started from the list scheduler's schedule.

    - `improves`: True to run ruin and recreate in each turn of the loop.
    """
    solver, budget_s = search.backend, _first_s(search)
    greedy(search, budget_s=budget_s, max_runs=1 if budget_s < _LEAST_RESTARTS_S else 10_000)
    if search.best is None:
        return
    # The trace lists only schedules of the named solver.
    search.trace[:] = [each for each in search.trace if each.finish_us is None or each.phase != search.phase]
    own = search.part(search.problem, "", search.deadline, bound=search.bound, rival=search)
    own.quotient = search.quotient
    start, num_stages = search.best, len(search.stages)
    first_us, phase = format_us(start.finish_us), _IN_PHASE[search.phase]
    first = "the given start" if start is search.options.start else "the list scheduler's schedule"

    def improve() -> None:
        _keep_better(search, own)
        if improves and not search.done:
            ruin_within(search, busy_factor() * _RUIN_ALONE_SHARE * own.turn_s)

    try:
        alone(own, solver, improve)
        last = own.stages[-1]
        if own.best is None and last.status == "unavailable":
            raise SolverUnavailableError(f"{solver} cannot run here: {last.message}; see taccl backends")
        unlicensed = own.best is None and last.status == "unlicensed" and solver != "highs"
        if unlicensed:
            search.fallbacks.append(
                f"{solver} has no licence for this model ({last.message}); highs was used instead"
            )
            solver = "highs"
            search.top.choice = f"{search.backend}, {REPLACED}"
            alone(own, solver, improve)
    finally:
        _keep_better(search, own)
    routings = [each for each in search.stages[num_stages:] if each.name == f"{search.prefix}routing"]
    has_routed = any(each.status in ("optimal", "feasible") for each in routings)
    if own.best is None and not unlicensed:
        last = own.stages[-1] if has_routed or not routings else routings[-1]
        why = f"{last.status}, {last.message}" if last.message else last.status
        if search.best is not start:
            first, first_us = "that of ruin and recreate", format_us(search.best.finish_us)
        search.fallbacks.append(
            f"{solver} found no schedule{phase} ({last.name}: {why}); {first} takes {first_us}"
        )
    elif own.best is not None and not has_routed:
        search.notes.append(f"{solver} found no routing{phase}; job shops on CP-SAT improved {first}")
    elif own.best is not None and search.best is start:
        search.notes.append(
            f"{solver} alone reached {format_us(own.best.finish_us)}{phase}; {first}, from which it "
            f"started, takes {first_us} and is returned"
        )


def _keep_better(search: Search, own: Search) -> None:
    """Make the schedule of a solver's own search the incumbent, unless the incumbent finishes sooner."""
    assert search.best is not None, "the solver started from a schedule"
    if own.best is not None and own.best.finish_ticks <= search.best.finish_ticks:
        search.best, search.best_on_quotient, search.is_verified = (
            own.best,
            own.best_on_quotient,
            own.is_verified,
        )


def greedy(search: Search, *, budget_s: float, max_runs: int = 10_000) -> None:
    """Run the list scheduler with seeded restarts until the bound is met or the budget is spent.

    The budget is converted to a number of runs by their time on an idle machine, so that the result does not
    depend on load. On a busy machine the runs end after `_PATIENCE` times the budget.

    Raises `OutOfTime` if the search has `gives_up` set and time is up before the first schedule.
    """
    quotient, since = search.quotient, time.monotonic()
    search.report("list scheduler")
    best: ListSchedule | None = None
    runs, most_s = 0, _PATIENCE * budget_s
    max_runs = min(max_runs, _runs_in(budget_s, len(quotient.hops)))
    while runs < max_runs and (best is None or (time.monotonic() - since < most_s and not search.done)):
        priorities = critical_priorities(
            quotient, noise=_NOISES[runs % len(_NOISES)], seed=search.options.seed * 1_000_003 + runs
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


def _runs_in(budget_s: float, num_hops: int) -> int:
    """Number of runs for a budget, rounded down to a power of 2 to ignore small differences."""
    if budget_s <= 0:
        return 2 * len(_NOISES)  # more than one run, as the first may find nothing
    rounded_s = 2.0 ** math.floor(math.log2(budget_s))
    return max(2 * len(_NOISES), int(rounded_s / (_RUN_S_PER_HOP * max(1, num_hops))))


#: `_LIST`: list scheduler as a stage of the portfolio.
#: `_LIST_ALONE`: list scheduler as a backend.
_LIST, _LIST_ALONE = (OwnProposer("list scheduler", each) for each in (_first, _alone))
#: `_COMPILED`: compiled list scheduler as a stage of the portfolio.
#: `_COMPILED_ALONE`: compiled list scheduler as a backend.
_COMPILED, _COMPILED_ALONE = (
    OwnProposer(COMPILED, partial(_compiled, share=share)) for share in (_COMPILED_SHARE, 1.0)
)
_ANY_PATH = Turn(
    OwnProposer("list scheduler over any path", _detour), _may_detour, _detours_compiled, improves=True
)
#: Stages of each backend, in order; other backends are solvers that work alone (`ONE_SOLVER`).
STAGES: dict[str, tuple[Turn, ...]] = {
    "auto": (
        Turn(_LIST),
        Turn(_COMPILED, why_not=too_short, improves=True),
        _ANY_PATH,
        Turn(OwnProposer("joint job shop", _joint), improves=True),
        Turn(OwnProposer("ruin and recreate", ruin_early), _may_ruin_early, is_cold, improves=True),
        Turn(OwnProposer("job shop rounds", improve_by_job_shop), improves=True),
    ),
    "greedy": (Turn(_LIST_ALONE), Turn(_COMPILED_ALONE, why_not=too_short, improves=True), _ANY_PATH),
}
#: Part of `Result.choice` if HiGHS ran in place of the named solver, perhaps only in some phases or parts.
REPLACED = "replaced by highs where the licence does not admit the model"
ONE_SOLVER = (Turn(OwnProposer("one solver", _one_solver)),)


def choose(
    problem: Problem, backend: str, time_limit_s: float, parameters: SearchParameters = DEFAULTS
) -> tuple[bool, str]:
    """(True if only the compiled search would end in time, text of the choice with its reasons).

    A problem's size is measured in hops (chunks times links); under a symmetry, one hop per orbit counts.
    """
    if backend not in ("auto", "greedy"):
        return False, f"{backend} alone, as asked"
    limits = parameters.choice
    own = "the portfolio" if backend == "auto" else "the list scheduler"
    most = int(round(min(limits.most_hops, max(limits.few_hops, _HOPS_PER_S * time_limit_s)), -3))
    hops = effort(problem)
    if hops <= most:
        return False, f"{own} (up to {most} hops; here {hops})"
    counted = hops // timing_group(problem).counted
    size = f"about {format_about(hops)} hops, {format_about(counted)} after symmetry reduction"
    if counted <= most:
        return False, f"{own} (up to {most} hops; here {size})"
    unknown = why_not(problem)
    if unknown:
        return False, f"{own}, slow: {size}; not supported by the compiled list scheduler: {unknown}"
    reached = f"limit of {limits.most_hops} for models"
    if counted <= limits.most_hops:
        reached = f"limit of {most} for models in {format_s(time_limit_s)}"
    limited = ", over paths of the fewest links" if problem.clauses.path_limit is not None else ""
    return True, f"the compiled list scheduler{limited}: {size}, more than the {reached}"


def search_plain(search: Search) -> None:
    """Search a problem without suggesting sketches.

    A large problem goes to the compiled list scheduler. On any other problem the stages of the backend run:
    on the reduce phase, then on the broadcast phase, if the collective reduces; else on the whole problem.
    """
    if search.is_large is None:
        search.is_large, _ = choose(search.problem, search.backend, search.deadline.left_s, search.parameters)
    if search.is_large:
        search_large(search)
        return
    if search.backend in ("auto", "cpsat"):
        warm_up("ortools")
    look_for_bound(search)
    if offer_proven(search):
        return
    search_phases(search, _search_spreading)


def _in_turns(search: Search) -> None:
    """Run a backend's stages once; for backend "auto", repeat them in turns of doubling length.

    The first turn has a fixed length, so that results at a given time do not depend on the time limit. The
    search ends after a turn without progress, or once the joint job shop is solved to optimality.
    """
    search.limit_s = search.turn_s = search.deadline.left_s
    stages = STAGES.get(search.backend, ONE_SOLVER)
    if search.backend != "auto":
        run(search, stages)
        return
    kept_s = search.kept_s
    search.turn_s = _FIRST_TURN_S
    run(search, stages)
    proven = f"{search.prefix}joint", "optimal"
    while not search.done and proven not in ((each.name, each.status) for each in search.stages):
        before, search.turn_s = search.finish, 2 * search.turn_s
        run(search, stages[_REPEATED:])
        if search.finish >= before:
            break
    spent_s = kept_s - search.kept_s  # by early runs of ruin and recreate
    search.allow(-spent_s)
    search.kept_s = kept_s


def _search_spreading(search: Search) -> None:
    """Run a backend's stages on a broadcast-like problem; Ctrl-C is raised again if there is no schedule."""
    first = partial(greedy, search, budget_s=0.0, max_runs=1)
    try:
        look_for_bound(search)
        if search.interrupted or search.problem.collective.is_met:  # Ctrl-C, or nothing to send
            first()
        else:
            _in_turns(search)
    except KeyboardInterrupt:
        search.interrupt()
        if search.best is None and search.phase == "broadcast":  # the reduce phase has a schedule already
            first()
    if search.best is None:
        if search.interrupted:
            raise KeyboardInterrupt
        from taccl.synthesis.explaining.explain import infeasible  # seldom needed, and slow to import

        raise infeasible(search.problem) or NoSolutionError(
            f"{search.problem.title}: no schedule found; give more time or loosen the sketch",
            bound_us=search.bound_us,
        )
    search.ran_out = search.deadline.has_passed and not search.is_met
