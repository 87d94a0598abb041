"""The stages of the pipeline, each a function that takes a `Search` and leaves it better or as it was."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from taccl.deadline import Deadline, OutOfTime
from taccl.solvers.solver import solve
from taccl.synthesis import contiguity as contiguity_stage
from taccl.synthesis import jobshop, ordering, routing
from taccl.synthesis.greedy import ListSchedule, Send, critical_priorities, list_schedule
from taccl.synthesis.large import compile_kernels, schedule_large, suits
from taccl.synthesis.result import ModelRun

if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from taccl.solvers.model import MilpModel
    from taccl.solvers.solver import Progress, Solution
    from taccl.synthesis.orbits import Orbits
    from taccl.synthesis.search import Search

__all__ = ["compiled", "greedy", "improve", "job_shop", "route", "route_and_order", "schedule_routing"]

#: Noise, detour penalty and patience of the list scheduler's restarts, in turn.
_NOISES = (0.0, 0.1, 0.5, 2.0, 8.0)
_DETOURS = (1.0, 0.0, 3.0)
_PATIENCES = (0.0, 1.0, 0.5)


def greedy(search: Search, *, budget_s: float, max_runs: int = 10_000) -> None:
    """The list scheduler, with seeded restarts until the bound is met or the budget is spent."""
    since = time.monotonic()
    search.report("greedy")
    patiences = _PATIENCES if any(search.folded.merging) else (0.0,)
    best: ListSchedule | None = None
    runs = 0
    while runs < max_runs and (best is None or (time.monotonic() - since < budget_s and not search.done)):
        priorities = critical_priorities(
            search.folded,
            noise=_NOISES[runs % len(_NOISES)],
            detour=_DETOURS[runs % len(_DETOURS)],
            seed=search.options.seed * 1_000_003 + runs,
        )
        patience = patiences[runs // len(_NOISES) % len(patiences)]
        try:
            found = list_schedule(
                search.folded,
                priorities,
                patience=patience,
                enter_once=runs % 4 < 3,
                limit_ticks=None if best is None else best.finish_ticks,
                deadline=search.give_up if search.best is None else Deadline(search.deadline),
            )
        except OutOfTime:
            if search.best is None:
                raise
            break
        runs += 1
        if found is not None and (best is None or found.finish_ticks < best.finish_ticks):
            best = found
            search.offer(found, producer="greedy")
        if best is None and runs >= 2 * len(_NOISES):
            break
    finish = search.best.finish_us if search.best is not None else None
    status = "done" if best is not None else "no-solution"
    message = f"{runs} run{'s' if runs != 1 else ''}"
    search.record("greedy", "taccl", status, since, finish_us=finish, message=message)


def compiled(search: Search, *, budget_s: float) -> None:
    """The compiled list scheduler, which knows tiers of links but no sketch; where it obeys all clauses."""
    if search.done or not suits(search.problem):
        return
    search.report("greedy (compiled)")
    search.allow(compile_kernels(search.problem))
    since = time.monotonic()
    found = schedule_large(
        search.problem, target_ticks=search.bound_ticks, time_limit_s=budget_s, seed=search.options.seed
    )
    number = {(move.chunk, move.link): m for m, move in enumerate(search.folded.moves)}
    if not search.folded.group.generators and all((t.chunk, t.link) in number for t in found):
        sends = tuple(
            Send(search.folded.link_orbit[t.link], (number[t.chunk, t.link],), t.start_ticks, t.end_ticks)
            for t in found
        )
        finish = search.offer(ListSchedule(sends, found.finish_ticks), producer="greedy (compiled)")
    else:
        finish = search.offer_whole(found.expand(), producer="greedy (compiled)")
    search.record("greedy", "compiled", "done", since, finish_us=finish)


def route(search: Search, solver: str, *, budget_s: float) -> list[tuple[int, int]] | None:
    """The routing MILP on a solver: (chunk, link) pairs, or None where it found nothing."""
    since = time.monotonic()
    search.report(f"routing on {solver}")
    orbits = search.routing_fold
    model = routing.build_routing(orbits, upper_ticks=search.upper_ticks())
    hint = None
    if orbits is search.folded and search.best_fold is not None:
        hint = routing.routing_hint(orbits, model, search.best_fold)
    options = search.options

    def news(progress: Progress) -> None:
        search.report(f"routing on {solver}")

    answer = solve(
        model.model,
        solver,
        time_limit_s=budget_s,
        threads=options.threads,
        seed=options.seed,
        hint=hint,
        memory_limit_mb=options.memory_limit_mb,
        log=options.log,
        on_progress=news,
    )
    search.interrupted |= answer.status == "interrupted"
    size = f"{model.model.num_variables} variables, {model.model.num_rows} rows"
    message = "; ".join(part for part in (answer.message, size, search.unfolded) if part)
    if answer.status == "unlicensed":  # which says the size
        message = answer.message
    search.record(
        "routing",
        solver,
        answer.status,
        since,
        bound_us=answer.bound,
        message=message,
        model=_model_run(model.model, answer),
    )
    return None if answer.values is None else routing.routing_of(orbits, model, answer.values)


def route_and_order(search: Search, solver: str, *, budget_s: float) -> None:
    """Stages 1 to 3 on one solver: routing, the best ordering rule, contiguity."""
    pairs = route(search, solver, budget_s=0.6 * budget_s)
    if pairs is None or search.interrupted:
        return
    since = time.monotonic()
    orbits = search.folded.restrict(pairs)
    ordered = ordering.best_order(orbits)
    if ordered is None:
        search.record("ordering", "taccl", "no-solution", since, message="the routing cannot be scheduled")
        return
    schedule, rule = ordered
    finish = search.offer(_on_fold(search.folded, orbits, schedule), producer=f"{solver} routing, {rule}")
    search.record("ordering", "taccl", "done", since, finish_us=finish, message=rule)
    since = time.monotonic()
    search.report(f"contiguity on {solver}")
    model = contiguity_stage.build_contiguity(orbits, schedule)
    options = search.options
    answer = solve(
        model.model,
        solver,
        time_limit_s=max(1.0, min(0.4 * budget_s, search.time_left_s())),
        threads=options.threads,
        seed=options.seed,
        memory_limit_mb=options.memory_limit_mb,
        log=options.log,
    )
    search.interrupted |= answer.status == "interrupted"
    finish = None
    if answer.values is not None:
        merged = contiguity_stage.merged(orbits, model, answer.values)
        producer = f"{solver} routing, {rule}, contiguity"
        finish = search.offer(_on_fold(search.folded, orbits, merged), producer=producer)
    search.record(
        "contiguity",
        solver,
        answer.status,
        since,
        finish_us=finish,
        bound_us=answer.bound,
        message=answer.message,
        model=_model_run(model.model, answer),
    )


def schedule_routing(search: Search, pairs: Collection[tuple[int, int]], *, budget_s: float) -> None:
    """The job shop on the moves of one routing, from the best ordering rule's schedule."""
    orbits = search.folded.restrict(pairs)
    ordered = ordering.best_order(orbits)
    if ordered is None:
        return
    hint = _on_fold(search.folded, orbits, ordered[0])
    search.offer(hint, producer=f"routing, {ordered[1]}")
    required = routing.needed_moves(search.folded, hint)  # others may enter where the chunk already is
    job_shop(search, "job shop", required=required, optional=(), hint=hint, budget_s=budget_s)


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
) -> ListSchedule | None:
    """Joint ordering and contiguity (and routing, of optional moves) by CP-SAT; offers what it finds."""
    since = time.monotonic()
    search.report(f"{name} on cpsat")
    options = search.options

    def news(progress: dict[str, Any]) -> None:
        search.report(f"{name} on cpsat")

    answer = jobshop.solve(
        search.folded,
        optional=optional,
        required=required,
        upper_ticks=hint.finish_ticks if upper_ticks is None else upper_ticks,
        lower_ticks=search.bound_ticks,
        hint=hint,
        time_limit_s=max(0.2, min(budget_s, search.time_left_s())),
        threads=options.threads,
        seed=options.seed if seed is None else seed,
        memory_limit_mb=options.memory_limit_mb,
        log=options.log,
        on_progress=news,
    )
    search.interrupted |= answer.status == "interrupted"
    finish = None
    if answer.schedule is not None:
        finish = search.offer(answer.schedule, producer=name)
    if record:
        bound = search.ticks_to_us(answer.bound_ticks)
        search.record(
            name, "cpsat", answer.status, since, finish_us=finish, bound_us=bound, message=answer.message
        )
    return answer.schedule


def improve(search: Search, *, patience_s: float) -> None:
    """Large-neighbourhood search: free the routes of some places, keep the rest, re-time everything.

    Places are freed at random, or because their arrivals are close in time. An equally good schedule is
    taken too, so that the search drifts over plateaus. It ends when nothing got better for `patience_s`.
    """
    since = time.monotonic()
    if search.best_fold is None or search.done:
        return
    rng = random.Random(search.options.seed)
    orbits, current = search.folded, search.best_fold
    start_us = search.best.finish_us if search.best is not None else None
    rounds, share, better = 0, 0.2, 0
    search.last_improved = time.monotonic()
    while not search.done and time.monotonic() - search.last_improved < patience_s:
        entered = _entered(orbits, current)
        free = _freed(orbits, current, share, rng)
        required = {m for p, m in entered.items() if p not in free}
        optional = {m for p in free for m in orbits.places[p].moves_in} - required
        budget = min(1.0 + len(optional) / 1000, 4.0)
        found = job_shop(
            search,
            "improve",
            required=required,
            optional=optional,
            hint=current,
            budget_s=budget,
            seed=rng.randrange(2**31),
            record=False,
        )
        rounds += 1
        if found is not None and found.finish_ticks <= current.finish_ticks:
            better += found.finish_ticks < current.finish_ticks
            current = found
        share = min(0.6, max(0.1, share * rng.choice((0.8, 1.0, 1.3))))
    finish = search.best.finish_us if search.best is not None else None
    message = f"{rounds} rounds, {better} better, from {start_us:.4g} us" if start_us is not None else ""
    search.record("improve", "cpsat", "done", since, finish_us=finish, message=message)


def _entered(orbits: Orbits, current: ListSchedule) -> dict[int, int]:
    """The move that enters each place, of those that lead to a destination."""
    needed = routing.needed_moves(orbits, current)
    return {
        p: m
        for send in reversed(current.sends)
        for m in send.moves
        if m in needed
        for p in orbits.moves[m].dsts
    }


def _freed(orbits: Orbits, current: ListSchedule, share: float, rng: random.Random) -> set[int]:
    """Places whose routes are freed: a random share, or those that arrive about one time."""
    if rng.random() < 0.5:
        return {p for p in range(len(orbits.places)) if rng.random() < share}
    needed = routing.needed_moves(orbits, current)
    arrival = {
        p: send.end_ticks
        for send in reversed(current.sends)
        for m in send.moves
        if m in needed
        for p in orbits.moves[m].dsts
    }
    middle = rng.random() * current.finish_ticks
    nearest = sorted(arrival, key=lambda p: (abs(arrival[p] - middle), p))
    return set(nearest[: max(1, int(share * len(nearest)))])


def _model_run(model: MilpModel, answer: Solution) -> ModelRun:
    """The size of a model, and when its solver had what."""
    return ModelRun(
        num_columns=model.num_variables,
        num_rows=model.num_rows,
        num_nonzeros=model.num_nonzeros,
        first_feasible_s=answer.first_feasible_s,
        proof_s=answer.seconds if answer.status == "optimal" else None,
        solver_version=answer.version,
    )


def _on_fold(whole: Orbits, part: Orbits, schedule: ListSchedule) -> ListSchedule:
    """A schedule of a restricted fold in the move numbers of the whole fold."""
    number = {(move.chunk, move.link): m for m, move in enumerate(whole.moves)}
    sends = tuple(
        Send(
            send.link,
            tuple(number[part.moves[m].chunk, part.moves[m].link] for m in send.moves),
            send.start_ticks,
            send.end_ticks,
        )
        for send in schedule.sends
    )
    return ListSchedule(sends, schedule.finish_ticks)
