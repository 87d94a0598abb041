"""From a problem to a verified schedule: `synthesize`.

Transforms make the problem easier to search. Proposers, asked by the budgeter, find schedules of it. The best
is inverted, bound and verified. `taccl.synthesis.transforms.table` and `taccl.synthesis.proposers.table` list
both.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from taccl._internal.arguments import Count, Duration, Megabytes, Natural, Seconds, checked, known_word
from taccl._internal.deadline import NEVER, Deadline, OutOfTime, busy_factor
from taccl._internal.units import format_count, format_us
from taccl.analysis.certificates.certificate import Certificate
from taccl.analysis.certificates.scopes import share_bound_of_every_cut
from taccl.errors import InputError, NoSolutionError
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.synthesis.budget import going_on, run
from taccl.synthesis.checking import check_options, feasible
from taccl.synthesis.memory import check_memory
from taccl.synthesis.options import Observer, Options, SearchState
from taccl.synthesis.parameters import DEFAULTS, SearchParameters
from taccl.synthesis.proposers.balanced import BALANCED, cut_balanced
from taccl.synthesis.proposers.competing import reserve_s, share_baselines
from taccl.synthesis.proposers.compiling import begin_compiling
from taccl.synthesis.proposers.large import effort
from taccl.synthesis.proposers.stages import choose
from taccl.synthesis.proposers.table import APART, FIRST, LAST, propose_all
from taccl.synthesis.result import GAP_MET, Result, Stage, told_of_gap
from taccl.synthesis.search import Search, bound_within
from taccl.synthesis.suggesting.chunks import with_chunks
from taccl.synthesis.suggesting.proposals import SketchProposal
from taccl.synthesis.suggesting.suggest import quick_schedule
from taccl.synthesis.transforms.requirements import ReleaseDates
from taccl.synthesis.transforms.switches import InNetworkUse, PlainLinks, over_links
from taccl.synthesis.transforms.transform import Transform
from taccl.synthesis.warm_start import GIVEN, begin_with, checked_start, continue_from

#: Time limit where none is given, and share of the time after which improvement then ends that finds nothing.
DEFAULT_LIMIT_S, IDLE_SHARE = 30.0, 1 / 3
#: Least seconds of a search, however long what comes before it took.
_LEAST_SEARCH_S = 0.05


@checked
def synthesize(
    problem: Problem,
    *,
    backend: str = "auto",
    policy: Literal["lp", "greedy"] = "lp",
    time_limit_s: Seconds | None = None,
    idle_share: float | None = None,
    threads: Count | None = None,
    seed: Natural = 0,
    memory_limit_mb: Megabytes | None = None,
    log: bool = False,
    progress: Callable[[str, float | None, float | None], None] | None = None,
    on_incumbent: Callable[[Schedule], None] | None = None,
    on_bound: Callable[[Certificate], None] | None = None,
    on_stage: Callable[[Stage], None] | None = None,
    stop_when: Callable[[SearchState], bool] | None = None,
    sketch: str | SketchProposal = "auto",
    keep: Literal["schedule", "summary"] = "schedule",
    spill_dir: str | os.PathLike[str] | None = None,
    to_file: bool = False,
    parameters: SearchParameters = DEFAULTS,
    in_network: InNetworkUse = "auto",
    until_gap: Duration | None = None,
    start: Schedule | None = None,
) -> Result:
    """A verified schedule of a problem, its proven bound, and how it was found.

    Parameters
    ----------
    problem : Problem
        Where it leaves the number of chunks open, that is chosen first, in a part of the time and alike for
        every backend; ``result.schedule.problem`` has the chosen number, and the bound and the gap are over
        all chunkings. Problems with more hops than 3 million take one chunk per rank.
    backend : str
        ``"auto"`` (the portfolio), ``"greedy"`` (the list scheduler alone), or one solver for routing and
        contiguity: ``"highs"``, ``"scip"``, ``"cbc"``, ``"gurobi"``, ``"cpsat"``, ``"pulp:NAME"``; or
        ``"dimension-balanced"``, where the topology is a product (`taccl.dimensions`).
    policy : {"lp", "greedy"}
        How ``"dimension-balanced"`` deals chunks out to orders of dimensions: by the optimal shares, or each
        in turn so that the dimensions' loads are level.
    time_limit_s : float, optional
        Seconds for the whole synthesis, including the compilation of kernels; by default 30. Baselines come
        first, in a fifth of the time (the best usually in a half), so that a schedule exists. The others run
        in the time that the search leaves; work under way at the end is stopped. Without any schedule by
        then the search continues for up to ten seconds.
    idle_share : float, optional
        Share of the time so far, above 0 and below 1: improvement ends once it has found nothing for that.
        Default: a third without a time limit; with one, improvement may use all of it.
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
    on_incumbent : callable, optional
        Called with each schedule that finishes before all earlier ones. It may have another number of chunks
        than the result, and be verified later.
    on_bound : callable, optional
        Called with each bound that is higher than all earlier ones; ``bound.scope`` says of what it is.
    on_stage : callable, optional
        Called with each `Stage` when it ends.
    stop_when : callable, optional
        A stopping rule: called with the `SearchState` after each of these; the search ends once it returns
        true, such as ``lambda state: state.gap < 0.05``.
    sketch : str or SketchProposal
        For a problem that has none, and the portfolio: ``"auto"`` also searches under the best sketch that is
        suggested for the problem's chunks; ``"none"`` does not; a proposal takes the place of the best.
    keep : {"schedule", "summary"}
        Of the compiled list scheduler, the transfers, or their figures alone once they are verified.
    spill_dir : path, optional
        A new or empty folder for the columns of a schedule too large for memory (`taccl.load_spilled`). What
        a baseline does sooner is in memory alone, and a note says so.
    to_file : bool
        Whether the schedule is to be saved, so that the memory for that counts as well.
    parameters : SearchParameters
        The constants of the search; ``SearchParameters.load(path)`` reads them from a TOML file.
    in_network : {"auto", "off", "only"}
        On a topology with switches that add: whether they may add all sums or a share, whichever finishes
        first; must not; or must add all. The bound is of what is allowed.
    until_gap : float, optional
        The search ends once ``result.gap`` is at most this, such as 0.01; ``result.stopped`` says so.
    start : Schedule, optional
        A schedule of the problem, such as an earlier result; it is verified first. The search goes on from
        it, in its chunks where the problem leaves their number open. The result finishes no later.

    Returns
    -------
    Result
        Ctrl-C returns the best so far, with ``result.interrupted`` set.

    Raises
    ------
    InputError
        If the backend is unknown, a limit is out of range, or there is not enough memory; or `start` is of
        another problem or invalid.
    InfeasibleError
        If no schedule exists.
    SolverUnavailableError
        If the named solver is not installed or not licensed for the problem.
    NoSolutionError, KeyboardInterrupt
        If nothing was found in time, or when Ctrl-C came.
    """
    known_word(in_network, get_args(InNetworkUse), "in_network")
    if idle_share is not None and not 0 < idle_share < 1:
        raise InputError(f"found {idle_share!r}; expected a share above 0 and below 1", where="idle_share")
    if time_limit_s is None:
        time_limit_s, idle_share = DEFAULT_LIMIT_S, idle_share or IDLE_SHARE
    began = Deadline.after(time_limit_s)
    is_open = problem.chunks_open and not (problem.release_us or problem.due_us)
    observer = Observer(
        progress=progress, on_incumbent=on_incumbent, on_bound=on_bound, on_stage=on_stage,
        stop_when=stop_when, until_gap=until_gap, is_open=is_open, cancellation=began.cancellation,
    )  # fmt: skip
    options = Options(
        backend, sketch, threads or _cores(), seed, memory_limit_mb, log, observer, keep,
        None if spill_dir is None else Path(spill_dir), to_file, parameters, policy, in_network, idle_share,
        None if start is None else checked_start(problem, start),
    )  # fmt: skip
    limit = replace(began, at_s=options.began_s + time_limit_s)

    whole, transforms = _transformed(problem, options, limit)
    with going_on(whole):  # whatever ends the proposers, the best schedule so far counts
        run(whole, APART)  # servers, and switches that add
        is_settled = _is_settled(whole)
        if whole.options.start is not None:
            begin_with(whole, whole.options.start)
        if not is_settled:
            _check_room(whole)
            begin_compiling(whole)
            run(whole, FIRST)  # baselines
            _search_in_best_chunks(whole).settle()
    is_met = any(each.stopped == "bound met" for each in whole.others)
    if not (is_met or limit.cancellation.why):
        with limit.interruptible():
            run(whole, LAST)  # other baselines
    found = _inverted(whole.earliest_search, whole, transforms, options)
    found = found.over_all_chunkings() if is_open else found
    return found if until_gap is None else told_of_gap(found, until_gap, is_judged=not transforms)


def _transformed(
    problem: Problem, options: Options, limit: Deadline
) -> tuple[Search, list[Transform[Problem, Schedule]]]:
    """The search of a problem without release dates and switches that add; and the transforms of these.

    It keeps the sends of schedules until they are inverted.
    """
    transforms: list[Transform[Problem, Schedule]] = []
    if (dates := ReleaseDates.apply(problem.in_its_chunks)) is not None:
        (problem,), transforms = dates.parts, [dates]
        options = replace(options, keep="schedule", spill_dir=None, to_file=False)
    check_options(problem, options)
    if options.backend == BALANCED:
        problem = cut_balanced(problem, policy=options.policy)
    links = PlainLinks.apply(problem)
    plain = problem if links is None else links.parts[0]
    if links is not None and options.in_network == "off":
        links = None  # the result is one of ranks alone, too
    if links is not None:
        transforms.append(links)
        options = replace(options, keep="schedule", spill_dir=None)
    if transforms:  # figures of the search are not those of the problem
        options.observer.until_gap, options = None, replace(options, start=None)
    whole = Search(replace(plain, chunks_open=False), options, limit, asked=plain, made_by=links)
    names = [each.name for each in transforms] + [BALANCED] * (options.backend == BALANCED)
    if names:
        whole.record("transforms", "taccl", "done", options.began_s, message=", ".join(names))
    return whole, transforms


def _is_settled(whole: Search) -> bool:
    """True if servers or switches alone may make the sums, or no rank can do better than switches do."""
    assert whole.asked is not None, "the whole problem"
    is_only = whole.options.in_network == "only"
    if is_only and not whole.others:
        said = "the sketch leaves switches no schedule; loosen it"
        raise NoSolutionError(f"{whole.asked!r}: {said}", bound_us=None)
    if not whole.others:
        return False
    if is_only or whole.asked.collective.update_us_per_mb is not None:
        return True
    since, bound = time.monotonic(), bound_within(whole.problem, whole.deadline, whole.parameters.budget)
    said = f"{bound.kind}, of ranks alone"
    whole.record("bound", "taccl", "done", since, bound_us=bound.bound_us, message=said)
    return whole.earliest_search.finish <= bound.bound


def _check_room(whole: Search) -> None:
    """Raise `InputError` before any work if memory does not suffice for a schedule of a large problem."""
    problem, options = whole.problem, whole.options
    is_named = options.memory_limit_mb is not None
    if is_named or effort(problem) > options.parameters.suggesting.most_hops:
        left_s = max(0.1, whole.deadline.left_s)
        is_large, _ = choose(problem, options.backend, left_s, options.parameters)
        if is_large:
            check_memory(problem, options)


def _search_in_best_chunks(whole: Search) -> Search:
    """Choose the number of chunks, search the problem in these, and put the search beside the whole.

    While no schedule is known, work goes on beyond the time limit. Raises `OutOfTime` if time is up.
    """
    limit, budget = whole.deadline, whole.parameters.budget
    at_last = limit.later(budget.late_s * busy_factor())
    with limit.enforced(lambda: whole.has_found or at_last.has_passed):
        search = _prepared(whole)
    is_apart = search.best is not None
    whole.others.append(search)
    try:
        if not is_apart:
            continue_from(search, whole)
            with limit.enforced(lambda: whole.has_found or at_last.has_passed):
                propose_all(search)
    except (KeyboardInterrupt, OutOfTime) as error:
        if isinstance(error, KeyboardInterrupt):
            search.interrupt()
        search.ran_out = True
        if search.best is None:
            raise
    if search.best is None:  # a proposer ended without a schedule, and without a word
        said = "the search found no schedule; give more time (--time-limit), or loosen the sketch"
        raise NoSolutionError(f"{search.problem!r}: {said}", bound_us=search.bound_us)
    return search


def _solve(problem: Problem, options: Options, limit: Deadline) -> Schedule:
    """A schedule of a problem that a proposer made of another."""
    found = _search_in_best_chunks(Search(problem, options, limit)).best
    assert found is not None, "there is a schedule"
    return found


def _prepared(whole: Search) -> Search:
    """A search of the problem in the chunks that are best for it, with its roots and its time."""
    since, limit, options, budget = time.monotonic(), whole.deadline, whole.options, whole.parameters.budget
    start, proposals = options.start, whole.proposals
    if start is not None and isinstance(options.sketch, str):
        asked = start.problem
    else:
        asked, proposals = with_chunks(whole)
    share_baselines(asked, whole.problem)
    share_bound_of_every_cut(asked, whole.problem)
    left_s = max(0.1, limit.left_s)
    is_large, choice = choose(asked, options.backend, left_s, options.parameters)
    if options.spill_dir is not None and not is_large:
        said = f"only the compiled list scheduler spills, and what runs is {choice}; leave it out"
        raise InputError(said, where="spill_dir")
    if limit.cancellation.why:  # Ctrl-C came as chunks were chosen: what they were chosen by will do
        quick = quick_schedule(asked, options, NEVER)
        return Search(asked, options, limit, best=quick, stages=whole.stages, choice=choice)
    rooted, apart = feasible(asked, left_s)
    problem = asked if rooted is None else rooted.parts[0]
    if apart is not None:
        choice = f"{apart.producer}: no rank can make a sum for all"
    kept_s = reserve_s(problem, limit.left_s, budget)
    search = Search(
        problem, options, limit.later(-kept_s).at_least(_LEAST_SEARCH_S), best=apart, stages=whole.stages,
        choice=choice, limit_s=left_s, is_large=is_large, proposals=proposals, solve=_solve, made_by=rooted,
    )  # fmt: skip
    chosen = f"{format_count(asked.collective.chunks_per_rank, 'chunk')} per rank"
    search.record("chunks" if whole.is_open else "choice", "taccl", "done", since, message=chosen)
    return search


def _inverted(
    best: Search, whole: Search, transforms: Sequence[Transform[Problem, Schedule]], options: Options
) -> Result:
    """The result of the problem that was asked: the best schedule, inverted, bound and verified."""
    choice = _choice(best, whole)
    if any(isinstance(each, ReleaseDates) for each in transforms):  # whose sends are all needed
        options = replace(options, keep="schedule", spill_dir=None, to_file=False)
    if not best.choice:  # a baseline
        best.ran_out |= whole.ran_out
        best.notes = [*whole.notes, *(note for each in whole.others if each.choice for note in each.notes)]
    roots = [] if best is whole or best.made_by is None else [best.made_by]
    applied = [*roots, *reversed(transforms)]
    if not (best.made_by or best.is_apart):  # the same data, in chunks of its own
        share_bound_of_every_cut(best.problem, whole.problem)
    last = best
    if applied:
        since, schedule = time.monotonic(), best.best
        assert schedule is not None, "there is a schedule"
        for transform in applied:
            schedule = transform.invert([schedule])
            choice += transform.told
        start = options.start  # which the search of a transformed problem did not begin with
        if start is not None and start.finish < schedule.finish:
            schedule, choice = start, GIVEN
        shared = ("stages", "trace", "notes", "fallbacks", "ran_out", "dimension_bound")
        last = Search(
            schedule.problem, options, whole.deadline, best=schedule,
            **{name: getattr(best, name) for name in shared},
        )  # fmt: skip
        names = ", ".join(each.name for each in applied)
        last.record("inverted", "taccl", "done", since, finish_us=last.best_us, message=names)
        is_shared = options.in_network == "only"
        allowed = over_links(last.problem, shared=True) if is_shared else last.problem
        since = time.monotonic()
        last.prove(bound_within(allowed, whole.deadline, options.parameters.budget), since)
    try:
        last.look_for_bound()
        return last.result(choice)
    except KeyboardInterrupt:  # while the best is verified
        last.interrupt()
        return last.result(choice)


def _choice(best: Search, whole: Search) -> str:
    """What ran and why: of the search, or of switches and ranks."""
    made = [each.choice for each in whole.others if each.choice]
    if whole.made_by is not None:
        ranks = [each for each in (*whole.others, whole) if each.best is not None and not each.is_apart]
        if ranks:
            made = [each.choice for each in whole.others if each.is_apart]
            made.append(f"ranks alone: {format_us(min(each.finish for each in ranks))}")
        return "; ".join(made)
    if best.choice:
        return best.choice
    if not any(each.choice and each.best is not None for each in whole.others):
        if whole.deadline.cancellation.why == GAP_MET:
            return "the first schedule, whose gap is as small as asked"
        return "the first schedule, as time was up before another was found"
    return f"{made[0]}; a baseline in other chunks finishes sooner"


def _cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
