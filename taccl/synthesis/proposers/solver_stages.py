"""Stages that solvers run: routing, ordering and contiguity, as published; and one job shop for all three.

Each function takes a `Search`, proposes the solver's schedules to it, and records a stage with the size of
its model. The loop of a named solver (`taccl.synthesis.proposers.solver_loop`) is a logic-based Benders
decomposition: the critical path of each schedule gives a cut for the next routing. It ends when no routing
finishes sooner, or time is up. Sources: `taccl.synthesis.milp.jobshop`.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from taccl._internal.deadline import busy_factor
from taccl._internal.units import format_us
from taccl.solvers.model import LinearModel
from taccl.solvers.solver import Solution, solve
from taccl.synthesis.milp import jobshop, ordering, routing
from taccl.synthesis.milp.jobshop import Cut
from taccl.synthesis.milp.solutions import needed_hops, project, routing_hint, routing_of
from taccl.synthesis.proposers.greedy import ListSchedule, expand
from taccl.synthesis.result import ModelRun
from taccl.synthesis.search import Search
from taccl.synthesis.symmetry.quotient import Quotient

#: `_LEAST_S`: min seconds of a job shop.
#: `_LEAST_CONTIGUITY_S`: min seconds of a contiguity model.
_LEAST_S, _LEAST_CONTIGUITY_S = 0.2, 1.0
#: Tolerance, in ticks, when a solver's bound is rounded up to a whole tick.
_TICK_SLACK = 1e-3

#: Difference between the seeds of consecutive calls of `improve_by_job_shop`.
_NEXT_SEED = 1_000_003

#: Message of a job shop that is solved to optimality, but whose finish is later than the bound.
OF_MODEL = "optimal for the routes and the symmetry of this model"

# Improvement by the job shop: constants of the large-neighbourhood search.

#: `_FREE_FIRST`: share of chunk-rank states whose routes are freed in the first round.
#: `_FREE_LEAST`: min share of chunk-rank states whose routes a round frees.
#: `_FREE_MOST`: max share of chunk-rank states whose routes a round frees.
_FREE_FIRST, _FREE_LEAST, _FREE_MOST = 0.2, 0.1, 0.6
#: Factors on the share of freed states, of which one is drawn at random after each round.
_FREE_STEPS = (0.8, 1.0, 1.3)
#: `_LAST_SHARE`: share of rounds that free the routes of the last arrivals.
#: `_LAST_LESS_OFTEN`: factor on `_LAST_SHARE` after each such round; an improvement restores the share.
#: `_LAST_BOUND_SHARE`: share of rounds with free last arrivals that only accept schedules at the bound.
_LAST_SHARE, _LAST_LESS_OFTEN, _LAST_BOUND_SHARE = 0.5, 0.7, 0.7
#: Share of neighbourhoods that free random states; the others free states reached near a random time.
#: Neighbourhoods that free the last arrivals are not counted.
_RANDOM_SHARE = 0.5
#: A round solves a job shop in which some routes are free.
#: `_ROUND_S`: solver time of a round, in s, unless it frees the routes of the last arrivals.
#: `_LAST_ROUND_S`: solver time, in s, of a round that frees the routes of the last arrivals.
#: `_ROUND_S_PER_HOP`: further seconds of a round per optional hop.
#: `_MOST_ROUND_S`: max seconds of any round.
_ROUND_S, _LAST_ROUND_S, _ROUND_S_PER_HOP, _MOST_ROUND_S = 1.0, 0.6, 0.001, 4.0


@dataclass(frozen=True, slots=True)
class Routed:
    """Solution of the routing model.

    - `starts`: {(chunk, link): tentative start in ticks}.
    - `bound_ticks`: Lower bound on the finish of schedules over the model's hops.
    - `is_optimal`: True if the solver proved that the solution is optimal.
    """

    starts: dict[tuple[int, int], int]
    bound_ticks: int
    is_optimal: bool


def route(
    search: Search,
    solver: str,
    *,
    budget_s: float,
    sequenced: Collection[int] = (),
    lower_ticks: int = 0,
    cuts: Sequence[Cut] = (),
    sooner: bool = False,
) -> Routed | None:
    """Solve the routing MILP; None if the solver found nothing.

    With `sooner`, a `Routed` without starts means that no routing finishes sooner (proven).

    - `sequenced`: Resources on which the model also decides the order of sends.
    - `lower_ticks`: Proven lower bound of the model without orders.
    - `cuts`: Sets of hops whose joint duration has a lower bound.
    - `sooner`: True to demand a finish before the incumbent's; the solver then starts without it.
    """
    since = time.monotonic()
    search.report(f"routing on {solver}")
    quotient = search.quotient
    (upper, known), lower = search.known, max(lower_ticks, search.bound_ticks)
    model = routing.RoutingModel(
        quotient, upper_ticks=upper - sooner, lower_ticks=min(lower, upper - sooner), sequenced=sequenced,
        cuts=cuts,
    )  # fmt: skip
    hint = None if known is None or sooner else routing_hint(model, known)
    arrays = model.model.arrays()
    answer = solve(
        arrays,
        solver,
        time_limit_s=budget_s,
        hint=hint,
        on_progress=lambda _: search.report(f"routing on {solver}"),
        **search.of_solvers,
    )
    size = f"{arrays.num_variables} variables, {arrays.num_rows} rows"
    order = f"order on {len(sequenced)} of {quotient.num_resources} resources" if sequenced else ""
    cut = f"{len(cuts)} cuts" if cuts else ""
    if answer.bound is not None:
        answer = replace(answer, bound=model.least_finish(answer.bound))
    proven = ""
    if sooner and answer.status == "infeasible":
        upper_us = float(quotient.problem.costs.us(upper))
        answer = replace(answer, status="optimal", bound=upper_us)
        proven = f"no routing by symmetry and slack finishes before {format_us(upper_us)}"
    message = "; ".join(part for part in (proven, answer.message, size, order, cut) if part)
    if answer.status == "unlicensed":  # the solver's message states the size already
        message = answer.message
    _record(search, "routing", solver, since, arrays, answer, message=message)
    if answer.values is None:
        return Routed({}, upper, True) if proven else None
    bound = 0
    if answer.bound is not None:
        bound = math.ceil(answer.bound * quotient.problem.costs.ticks_per_us - _TICK_SLACK)
    is_optimal = answer.status == "optimal"
    return Routed(routing_of(model, answer.values), bound, is_optimal)


def schedule_routed(search: Search, routed: Routed, solver: str, budget_s: float) -> ListSchedule | None:
    """Best schedule of a routing's hops, ordered and then merged; None if they cannot be scheduled.

    Orders come from the ordering rules and from the routing's tentative starts. The solver decides
    contiguity; CP-SAT decides order and contiguity together, as one job shop.
    """
    since = time.monotonic()
    quotient = search.quotient.restrict(routed.starts)
    ordered = ordering.best_order(quotient, routed.starts)
    if ordered is None:
        search.record("ordering", "taccl", "no-solution", since, message="the routing cannot be scheduled")
        return None
    schedule, rule = ordered
    found, finish = _offer_restricted(search, quotient, schedule, f"{solver} routing, {rule}")
    if solver == "cpsat":
        required = needed_hops(search.quotient, found)  # without hops to ranks that already have the chunk
        better = job_shop(search, "job shop", required=required, optional=(), hint=found, budget_s=budget_s)
        return better or found
    search.record("ordering", "taccl", "done", since, finish_us=finish, message=rule)
    since = time.monotonic()
    search.report(f"contiguity on {solver}")
    model = ordering.ContiguityModel(quotient, schedule)
    limit_s = max(_LEAST_CONTIGUITY_S, min(budget_s, search.deadline.left_s))
    arrays = model.model.arrays()
    answer = solve(arrays, solver, time_limit_s=limit_s, **search.of_solvers)
    finish = None
    if answer.values is not None:
        merged = ordering.merged(model, answer.values)
        producer = f"{solver} routing, {rule}, contiguity"
        merged, finish = _offer_restricted(search, quotient, merged, producer)
        if finish is not None and merged.finish_ticks <= found.finish_ticks:
            found = merged
    _record(search, "contiguity", solver, since, arrays, answer, answer.message, finish)
    return found


def _offer_restricted(
    search: Search, part: Quotient, schedule: ListSchedule, producer: str
) -> tuple[ListSchedule, float | None]:
    """Expand a schedule on a restricted quotient, and propose it to the search.

    Returns the schedule on the whole quotient, and its finish in us (None if refused).
    """
    whole = expand(part, schedule.sends, producer=producer)
    found = project(search.quotient, whole)
    return found, search.offer(found, producer=producer, proposed=True, whole=whole)


def job_shop(
    search: Search,
    name: str,
    *,
    required: Collection[int],
    optional: Collection[int],
    hint: ListSchedule,
    budget_s: float,
    upper_ticks: int | None = None,
    seed: int | None = None,
    record: bool = True,
    producer: str = "job shop",
) -> ListSchedule | None:
    """Joint ordering and contiguity by CP-SAT, and routing of optional hops; proposes its schedule.

    It demands a finish no later than `upper_ticks`, by default that of `hint`. Returns None if CP-SAT finds
    no schedule.
    """
    since = time.monotonic()
    search.report(f"{name} on cpsat")
    options = search.of_solvers
    answer = jobshop.solve(
        search.quotient,
        optional=optional,
        required=required,
        upper_ticks=hint.finish_ticks if upper_ticks is None else upper_ticks,
        lower_ticks=search.bound_ticks,
        hint=hint,
        time_limit_s=max(_LEAST_S, min(budget_s, search.deadline.left_s)),
        on_progress=lambda _: search.report(f"{name} on cpsat"),
        in_turns=search.options.backend == "cpsat",
        **options if seed is None else options | {"seed": seed},
    )
    search.note(answer.status)
    finish = None
    if answer.schedule is not None:
        finish = search.offer(answer.schedule, producer=producer, proposed=True)
    if record:
        said, made = answer.message, answer.schedule
        if answer.status == "optimal" and made is not None and made.finish_ticks > search.bound_ticks:
            said = f"{said}; {OF_MODEL}" if said else OF_MODEL
        found: dict[str, Any] = {"ticks": answer.bound_ticks, "message": said}
        search.record(name, "cpsat", answer.status, since, finish_us=finish, **found)
    return answer.schedule


def improve_by_job_shop(search: Search, patience_s: float | None = None) -> None:
    """Large-neighbourhood search by CP-SAT: free routes of some states, fix the others, re-time all sends.

    A state is a (chunk, rank) pair. Each round frees random states, states with arrivals near one time, or
    the states with the last arrivals. Rounds on the last arrivals often demand a schedule that meets the
    bound, as their models are solved or refuted quickly. These rounds become rarer with each one, until the
    incumbent improves. Rounds without this demand accept an equally good schedule, so that the search drifts
    over plateaus.

    - `patience_s`: Seconds without improvement after which the search ends; None for a share of the
      portfolio's current turn, a pass over its stages.
    """
    since = time.monotonic()
    if search.done or (current := search.known[1]) is None:
        return
    if patience_s is None:
        portfolio = search.parameters.portfolio
        share = portfolio.half_improve_share if search.phase else portfolio.improve_share
        patience_s = max(portfolio.least_improve_s, share * search.turn_s)
    patience_s = min(busy_factor() * patience_s, search.idle_s)
    again = sum(each.name == f"{search.prefix}improve" for each in search.stages)
    rng = random.Random(search.options.seed + _NEXT_SEED * again)
    quotient, start_us = search.quotient, float(search.problem.costs.us(current.finish_ticks))
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
            * min((_LAST_ROUND_S if is_last else _ROUND_S) + len(optional) * _ROUND_S_PER_HOP, _MOST_ROUND_S),
            upper_ticks=upper_ticks,
            seed=rng.randrange(2**31),
            record=False,
            producer="job shop rounds",
        )
        rounds += 1
        last_share *= _LAST_LESS_OFTEN if is_last else 1.0
        if found is not None and found.finish_ticks <= current.finish_ticks:
            if found.finish_ticks < current.finish_ticks:
                better, last_share = better + 1, _LAST_SHARE
            current = found
        share = min(_FREE_MOST, max(_FREE_LEAST, share * rng.choice(_FREE_STEPS)))
    message = f"{rounds} rounds, {better} of them better, from {start_us:.4g} us"
    search.record("improve", "cpsat", "done", since, finish_us=search.best_us, message=message)


def _entering(quotient: Quotient, current: ListSchedule) -> dict[int, tuple[int, int]]:
    """{state: (hop that enters it, arrival in ticks)}, for hops that are needed to reach a destination."""
    needed = needed_hops(quotient, current)
    return {
        p: (m, send.end_ticks)
        for send in reversed(current.sends)
        for m in send.hops
        if m in needed
        for p in quotient.hops[m].dsts
    }


def _record(
    search: Search,
    name: str,
    solver: str,
    since: float,
    model: LinearModel,
    answer: Solution,
    message: str,
    finish_us: float | None = None,
) -> None:
    """Record a stage that solved a linear model, with the model's size and the solver's times."""
    search.note(answer.status)
    run = ModelRun(
        num_columns=model.num_variables,
        num_rows=model.num_rows,
        num_nonzeros=model.num_nonzeros,
        first_feasible_s=answer.first_feasible_s,
        proof_s=answer.seconds if answer.status == "optimal" else None,
        solver_version=answer.version,
        num_nodes=answer.nodes,
    )
    found: dict[str, Any] = {"bound_us": answer.bound, "message": message, "model": run}
    search.record(name, solver, answer.status, since, finish_us=finish_us, **found)
