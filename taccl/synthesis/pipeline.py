"""From a problem to a verified schedule: `synthesize`.

``auto`` is a portfolio. The list scheduler runs first, so that there is a verified schedule at any time
limit; then routing, ordering and contiguity; then the folded job shop; then improvement, until the proven
bound is met, nothing gets better any more, or time is up. A named MILP backend runs routing, ordering and
contiguity on that solver alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.verification.verify import verify
from taccl.arguments import checked
from taccl.baselines import baseline
from taccl.deadline import NEVER, Deadline
from taccl.errors import (
    FallbackWarning,
    InfeasibleError,
    InputError,
    NoSolutionError,
    SketchError,
    SolverUnavailableError,
)
from taccl.schedule.combine import concatenate, reduction_half, reverse, spreading_half
from taccl.sketch.reachability import check_reachable
from taccl.solvers.registry import require_known
from taccl.solvers.worker import warm_up
from taccl.synthesis import stages
from taccl.synthesis.backends import package_versions
from taccl.synthesis.choice import choose
from taccl.synthesis.combining import retime
from taccl.synthesis.explaining.explain import explain
from taccl.synthesis.large_search import search_large
from taccl.synthesis.result import Moment, Result, Stage
from taccl.synthesis.search import Options, Search, sound_bound
from taccl.synthesis.suggesting.guided import check_proposal, is_unguided, synthesize_guided
from taccl.synthesis.twins import Twin, find_twin, hand_over

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taccl.analysis.certificates.certificate import Certificate
    from taccl.arguments import Count, Megabytes, Natural, Seconds
    from taccl.problem import Problem
    from taccl.schedule.compact import CompactSchedule
    from taccl.schedule.schedule import Schedule
    from taccl.synthesis.suggesting.proposals import SketchProposal

__all__ = ["synthesize"]

logger = logging.getLogger(__name__)

#: With less time than this the compiled list scheduler, which is compiled when first used, is left out.
_WORTH_COMPILING_S = 5.0
#: Up to so many arrivals of chunks the ring and the pairwise exchange take a moment, and compete.
_MOST_ARRIVALS = 6_000
#: Seconds that they take for each arrival; with less left they are not begun.
_S_PER_ARRIVAL = 2e-4
#: The part of the time limit after which a bound is no longer improved, by what takes long and by anything.
_BOUND_SHARE, _MOST_BOUND_SHARE = 0.2, 0.5
#: The part of it that the compiled list scheduler has without a sketch before one is suggested.
_UNGUIDED_SHARE = 0.5
#: Seconds kept back from the time limit for unfolding and verifying what the last stage found.
_RESERVE_S = 0.2


@checked
def synthesize(
    problem: Problem,
    *,
    backend: str = "auto",
    time_limit_s: Seconds = 30.0,
    threads: Count | None = None,
    seed: Natural = 0,
    memory_limit_mb: Megabytes | None = None,
    log: bool = False,
    progress: Callable[[str, float | None, float | None], None] | None = None,
    sketch: str | SketchProposal = "auto",
    keep: Literal["schedule", "summary"] = "schedule",
    spill_dir: str | os.PathLike[str] | None = None,
    to_file: bool = False,
) -> Result:
    """A verified schedule of a problem, its proven bound, and how it was found.

    Parameters
    ----------
    problem : Problem
    backend : str
        ``"auto"`` (the portfolio), ``"greedy"`` (the list scheduler alone), or one solver for routing and
        contiguity: ``"highs"``, ``"scip"``, ``"cbc"``, ``"gurobi"``, ``"cpsat"``, ``"pulp:NAME"``.
    time_limit_s : float
        Of the whole synthesis, without what is compiled at the first use. What is under way then is given
        up; but where there is no schedule yet, the list scheduler's first run is finished, unless it is that
        of the compiled one.
    threads : int, optional
        Of each solver; default: the cores that this process may use.
    seed : int
        Same problem, options and seed give the same schedule, unless a time limit cut a stage.
    memory_limit_mb : int, optional
        Of each solver's process; and what the compiled list scheduler may take, which works out its need
        before it begins (default: 80 % of the memory that is free).
    log : bool
        Whether solvers write their logs to stderr.
    progress : callable, optional
        Called with (what is being done, best finish in us or None, bound in us or None).
    sketch : str or SketchProposal
        For a problem that has none, and the portfolio: ``"auto"`` also searches under the best sketch that
        is suggested for the problem's chunks, and keeps the better schedule; ``"none"`` does not. A proposal
        of `suggest_sketches` is used instead of the best.
    keep : {"schedule", "summary"}
        Of the compiled list scheduler, whether to keep the transfers, or their figures alone once they are
        verified.
    spill_dir : path, optional
        A new or empty folder for the columns of a schedule too large for memory (`taccl.load_spilled`).
    to_file : bool
        Whether the schedule is to be saved, so that the memory for that counts as well.

    Returns
    -------
    Result
        Ctrl-C returns the best so far, with ``result.interrupted`` set.

    Raises
    ------
    InputError
        If the backend is unknown, the time limit is not positive, or there is not enough memory.
    InfeasibleError
        If no schedule exists.
    SolverUnavailableError
        If the named solver is not installed or not licensed for the problem.
    NoSolutionError
        If nothing was found in time.
    KeyboardInterrupt
        If Ctrl-C came before there was a schedule.
    """
    began = time.monotonic()
    if backend not in ("auto", "greedy"):
        require_known(backend, others=("auto", "greedy"), where="backend")
    if isinstance(sketch, str) and sketch not in ("auto", "none"):
        raise InputError(f"found {sketch!r}; expected 'auto', 'none' or a proposal", where="sketch")
    large, choice = choose(problem, backend, time_limit_s)
    folder = None if spill_dir is None else Path(spill_dir)
    if folder is not None and not large:
        raise InputError(
            f"only the compiled list scheduler spills, and what runs is {choice}; leave it out",
            where="spill_dir",
        )
    _check_feasible(problem, time_limit_s)
    options = Options(threads or _cores(), seed, memory_limit_mb, log, progress, keep, folder, to_file)
    run = partial(_synthesize, options=options)
    alone = backend != "auto" or folder is not None or keep == "summary"
    proposal = None if isinstance(sketch, str) else sketch
    if proposal is not None:
        check_proposal(proposal, problem)
        if alone:
            raise InputError(
                "found a proposal, which guides the portfolio alone; leave it out, or give backend='auto' "
                "and neither keep='summary' nor spill_dir",
                where="sketch",
            )
    elif sketch == "none" or alone or not is_unguided(problem):
        return run(problem, backend=backend, time_limit_s=time_limit_s, began=began)
    first = None
    if large and proposal is None and time_limit_s >= _WORTH_COMPILING_S:
        with contextlib.suppress(NoSolutionError):  # in all of the time there may be one
            first = run(problem, backend=backend, time_limit_s=_UNGUIDED_SHARE * time_limit_s)
        if first is not None and first.stopped in ("bound met", "interrupted"):
            return first
    bound = _bounded(problem, time_limit_s) if first is None else first.bound
    return synthesize_guided(
        bound,
        run,
        began=began,
        time_limit_s=time_limit_s,
        proposal=proposal,
        first=first,
        seed=seed,
        progress=progress,
    )


def _synthesize(
    problem: Problem,
    *,
    backend: str,
    time_limit_s: float,
    options: Options,
    bound: Certificate | None = None,
    began: float | None = None,
    gives_up: bool = False,
) -> Result:
    """Synthesize a problem as it is; its bound is worked out unless given, and time runs from `began`.

    With `gives_up`, `OutOfTime` ends it where time is up before there is a schedule.
    """
    since = time.monotonic()
    began = since if began is None else began
    deadline = began + max(0.05, time_limit_s - _RESERVE_S)
    large, choice = choose(problem, backend, time_limit_s)
    if large:
        return search_large(problem, options, backend=backend, deadline=deadline, choice=choice)
    if backend in ("auto", "cpsat"):
        warm_up("ortools")
    bound = bound or _bounded(problem, time_limit_s)
    proof = Stage("bound", "taccl", "done", time.monotonic() - since, None, bound.bound_us, bound.kind)
    run = partial(_search, backend=backend, options=options, bound=bound, gives_up=gives_up)
    searches: list[Search] = []
    extra: list[Stage] = []
    collective = problem.collective
    if not collective.combining or collective.derivations:
        searches.append(run(problem, deadline=deadline))
        deadline += searches[0].allowed_s
        schedule = _best_of(searches[0])
    else:
        halves = [("reduce: ", _copying(reduction_half(problem)))]
        if any(set(c.destinations) != {c.root} for c in collective.chunks):
            halves.append(("spread: ", _copying(spreading_half(problem))))
        twin = find_twin(halves[0][1], halves[1][1]) if len(halves) == 2 else None
        # With two halves, a fifth of the time is left for making them overlap.
        shares = (1.0,) if len(halves) == 1 else (0.4, 0.67) if twin is None else (0.8, 0.67)
        for (prefix, half), share in zip(halves, shares, strict=True):
            until = time.monotonic() + share * (deadline - time.monotonic())
            known = (searches[0], twin) if searches and twin is not None else None
            search = run(half, deadline=until, prefix=prefix, known=known)
            searches.append(search)
            deadline += search.allowed_s
            if search.interrupted:
                run = partial(run, hurry=True)
        parts = [_best_of(searches[0]), *(_best_of(s) for s in searches[1:])]
        try:
            schedule = _combined(problem, parts)
            if len(searches) == 2 and backend == "auto" and not any(s.interrupted for s in searches):
                schedule, extra = retime(problem, searches, schedule, bound, deadline)
        except KeyboardInterrupt:
            searches[0].interrupted = True
            schedule = _combined(problem, parts)
    verify(schedule).raise_if_failed()
    if backend in ("auto", "greedy") and schedule.finish > bound.bound:
        schedule, beside = _or_baseline(schedule, deadline)
        extra = [*extra, *beside]
    bound, faults = sound_bound(schedule, bound)
    if any(search.interrupted for search in searches):
        stopped = "interrupted"
    elif schedule.finish <= bound.bound:
        stopped = "bound met"
    else:
        late = time.monotonic() >= deadline or any(search.ran_out for search in searches)
        stopped = "time limit" if late else "nothing better found"
    return Result(
        schedule=schedule,
        bound=bound,
        backend=backend,
        stages=(proof, *(stage for search in searches for stage in search.stages), *extra),
        progress=_progress(began, proof, searches, schedule, bound),
        seconds=time.monotonic() - began,
        seed=options.seed,
        versions=package_versions(),
        stopped=stopped,
        notes=(*faults, *_notes(problem, searches)),
        choice=choice,
    )


def _bounded(problem: Problem, time_limit_s: float) -> Certificate:
    """A lower bound in the part of the time that is meant for it."""
    return lower_bound(
        problem, budget_s=_BOUND_SHARE * time_limit_s, limit_s=_MOST_BOUND_SHARE * time_limit_s
    )


def _or_baseline(schedule: Schedule, deadline: float) -> tuple[Schedule, list[Stage]]:
    """The schedule, or a well-known algorithm that obeys the same sketch and finishes sooner."""
    problem, since = schedule.problem, time.monotonic()
    arrivals = sum(len(chunk.destinations) for chunk in problem.collective.chunks)
    if arrivals > _MOST_ARRIVALS or arrivals * _S_PER_ARRIVAL > deadline - since:
        return schedule, []
    better: list[Stage] = []
    for name in ("ring", "pairwise"):
        try:
            other = replace(baseline(name, problem), problem=problem)
        except InputError:  # it is not defined here
            continue
        if other.finish < schedule.finish and verify(other).ok:
            schedule, seconds = other, time.monotonic() - since
            better.append(Stage("baselines", "taccl", "done", seconds, other.finish_us, None, name))
    return schedule, better


def _progress(
    began: float,
    proof: Stage,
    searches: Sequence[Search],
    schedule: Schedule | CompactSchedule,
    bound: Certificate,
) -> tuple[Moment, ...]:
    """What was known when: the bound, the best schedule of every search, and what is returned."""
    found = [replace(each, seconds=each.seconds - began) for search in searches for each in search.found]
    first = Moment(proof.seconds, None, proof.bound_us)
    last = Moment(time.monotonic() - began, schedule.finish_us, bound.bound_us)
    return (first, *found, last)


def _check_feasible(problem: Problem, time_limit_s: float) -> None:
    """Raise `InfeasibleError`, with the clauses that clash, where a sketch keeps a chunk from a destination.

    Raises
    ------
    TopologyError
        If the topology has no way even without the sketch.
    """
    try:
        check_reachable(problem)
    except SketchError as error:
        found = explain(problem, time_limit_s=min(10.0, time_limit_s))
        text = f"{found.reason}; {found.change}" if not found.feasible else str(error)
        raise InfeasibleError(text, conflict=found.conflict) from None


def _copying(half: Problem) -> Problem:
    """A half without the links that would count a contribution twice.

    A link of several sources adds up what they hold: copies must not go there; nor, in a reduction, which is
    searched backwards, over what was a link of several destinations.
    """
    links = half.topology.links
    fit = [e for e in half.links_allowed if len(links[e].srcs) == 1]
    return half if len(fit) == len(half.links_allowed) else half.with_clauses(links_allowed=frozenset(fit))


def _combined(problem: Problem, parts: list[Schedule]) -> Schedule:
    """The reduction turned the right way round, then the spreading, re-timed together."""
    reduction = reverse(parts[0], problem)
    if len(parts) == 1:
        return reduction
    spreading = replace(parts[1], problem=problem)
    return concatenate([reduction, spreading], problem)


def _search(
    problem: Problem,
    *,
    backend: str,
    options: Options,
    bound: Certificate,
    deadline: float,
    prefix: str = "",
    hurry: bool = False,
    known: tuple[Search, Twin] | None = None,
    gives_up: bool = False,
) -> Search:
    """Search one spreading problem with a backend; in a hurry, the first schedule will do.

    `known` is a search of the same problem under other names, and these: what it found will do, too.
    """
    since = time.monotonic()
    own = bound
    if prefix and not hurry and known is None:
        own = _bounded(problem, max(0.0, deadline - since))
    took_s = time.monotonic() - since
    ticks = -int(-own.bound * problem.costs.ticks_per_us // 1)
    if hurry:
        ticks = 0
    elif known is not None:
        ticks = known[0].bound_ticks
    give_up = Deadline(deadline) if gives_up else NEVER
    search = Search(problem, options, deadline, ticks, prefix, give_up=give_up)
    if prefix and not hurry and known is None:
        search.stages.insert(
            0, Stage(prefix + "bound", "taccl", "done", took_s, None, own.bound_us, own.kind)
        )
    limit_s = search.time_left_s()
    try:
        if known is not None and hand_over(known[0], search, known[1]):
            finish = search.best.finish_us if search.best is not None else None
            search.record("renamed", "taccl", "done", since, finish_us=finish, message="the other half's")
        elif hurry or problem.collective.is_met:  # the empty schedule, if there is nothing to send
            stages.greedy(search, budget_s=0.0, max_runs=1)
        elif backend == "auto":
            _portfolio(search, limit_s)
        elif backend == "greedy":
            stages.greedy(search, budget_s=min(limit_s, max(2.0, 0.2 * limit_s)))
            if limit_s >= _WORTH_COMPILING_S:
                stages.compiled(search, budget_s=search.time_left_s())
        else:
            _one_solver(search, backend, limit_s)
    except KeyboardInterrupt:
        search.interrupted = True
        search.best = search.best or search.first
    if search.best is None and search.interrupted:
        raise KeyboardInterrupt
    met = search.best is not None and search.best.finish_ticks <= ticks
    search.ran_out = search.time_left_s() <= 0 and not met
    return search


def _portfolio(search: Search, limit_s: float) -> None:
    """Every stage in turn, until the bound is met, nothing gets better, or time is up."""
    stages.greedy(search, budget_s=min(1.0, 0.1 * limit_s))
    if search.best is None or search.done:
        return
    if limit_s >= _WORTH_COMPILING_S:
        stages.compiled(search, budget_s=0.1 * limit_s)
    if not search.done and len(search.folded.moves) <= _JOINT_MOVES:
        _joint(search, budget_s=min(5.0, 0.3 * limit_s))
    if not search.done:
        pairs = stages.route(search, "highs", budget_s=min(0.25 * limit_s, search.time_left_s()))
        if pairs is not None and not search.done:
            stages.schedule_routing(search, pairs, budget_s=min(4.0, 0.15 * limit_s))
    if not search.done:
        patience = 0.5 if search.prefix else 0.25  # the half of a sum has its share of the time only
        stages.improve(search, patience_s=max(3.0, patience * limit_s))


#: Up to so many moves, routing, ordering and contiguity are solved as one job shop from the start.
_JOINT_MOVES = 600


def _joint(search: Search, *, budget_s: float) -> None:
    """One job shop with every move optional."""
    assert search.best_fold is not None, "the list scheduler runs first"
    stages.job_shop(
        search,
        "joint",
        required=(),
        optional=range(len(search.folded.moves)),
        hint=search.best_fold,
        budget_s=budget_s,
    )


def _one_solver(search: Search, solver: str, limit_s: float) -> None:
    """Routing, ordering and contiguity on one solver; the list scheduler only gives it a first finish."""
    stages.greedy(search, budget_s=0.0, max_runs=1)
    if search.best is None:
        return
    search.first, search.best = search.best, None
    search.found.clear()
    if solver == "cpsat":
        pairs = stages.route(search, solver, budget_s=0.5 * limit_s)
        if pairs is not None and not search.interrupted:
            stages.schedule_routing(search, pairs, budget_s=0.4 * limit_s)
    else:
        stages.route_and_order(search, solver, budget_s=limit_s)
    if search.best is not None:
        return
    last = search.stages[-1]
    if last.status == "unavailable":
        raise SolverUnavailableError(f"{solver} cannot run here: {last.message}; see taccl backends")
    if last.status == "unlicensed" and solver != "highs":
        search.fallback = f"{solver} has no licence for this model ({last.message}); highs was used instead"
        search.best = search.first
        stages.route_and_order(search, "highs", budget_s=search.time_left_s())
    else:
        search.best = search.first
        why = f"{last.status}, {last.message}" if last.message else last.status
        search.fallback = f"{solver} found no schedule ({last.name}: {why}); the list scheduler's is returned"


def _best_of(search: Search) -> Schedule:
    """The best schedule, or the error that says why there is none."""
    if search.best is not None:
        return search.best
    found = explain(search.problem)
    if not found.feasible:
        raise InfeasibleError(f"{found.reason}; {found.change}", conflict=found.conflict)
    raise NoSolutionError(
        f"{search.problem!r}: no schedule found; give more time or loosen the sketch",
        bound_us=search.ticks_to_us(search.bound_ticks),
    )


def _notes(problem: Problem, searches: Sequence[Search]) -> tuple[str, ...]:
    """What a person should know; a fallback is also warned of."""
    notes = list(problem.notes)
    for message in dict.fromkeys(search.fallback for search in searches if search.fallback):
        warnings.warn(message, FallbackWarning, stacklevel=3)
        notes.append(message)
    return tuple(notes)


def _cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
