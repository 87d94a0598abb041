"""`synthesize`: from a problem to a verified schedule.

Transforms turn the problem into one that is easier to search. The budgeter (`taccl.synthesis.budget`) runs
proposers, which find schedules of it. The best schedule is transformed back, compared with a lower bound and
verified. `taccl.synthesis.checking` applies the transforms, and `taccl.synthesis.proposers.table` lists the
proposers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

from taccl._internal.arguments import Count, Megabytes, Natural, Seconds, Share, checked, known_word
from taccl._internal.deadline import NEVER, Deadline, OutOfTime, busy_factor, num_cores
from taccl._internal.garbage import rarely_collected
from taccl._internal.program_start import delay_s, late_s
from taccl._internal.units import format_count, format_us
from taccl.analysis.certificates.certificate import Certificate, InNetworkGrant
from taccl.analysis.certificates.scopes import share_bound_over_all_chunkings
from taccl.errors import CollectiveError, InputError, NoSolutionError
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.synthesis.bounding import bound_within, look_for_bound
from taccl.synthesis.budget import going_on, run
from taccl.synthesis.checking import GIVEN, begin_with, checked_start, continue_from, feasible, transformed
from taccl.synthesis.memory import check_memory
from taccl.synthesis.options import Observer, Options, raising_errors_of_callbacks
from taccl.synthesis.parameters import DEFAULTS, SearchParameters
from taccl.synthesis.proposers.baseline_proposals import reserve_s, share_baselines
from taccl.synthesis.proposers.compiling import begin_compiling
from taccl.synthesis.proposers.large import effort
from taccl.synthesis.proposers.stages import choose
from taccl.synthesis.proposers.table import AGGREGATING, last_turns, propose_all, propose_first
from taccl.synthesis.result import Result, Stage, with_note_on_gap
from taccl.synthesis.search import Search
from taccl.synthesis.stopping import GAP_MET, SearchState, stopping_rules
from taccl.synthesis.suggesting.chunks import with_chunks
from taccl.synthesis.suggesting.proposals import SketchProposal
from taccl.synthesis.suggesting.suggest import quick_schedule
from taccl.synthesis.transforms.requirements import ReleaseDates, Transform
from taccl.synthesis.transforms.switches import InNetworkUse

#: `DEFAULT_LIMIT_S`: default time limit in seconds.
#: `IDLE_SHARE`: share of the elapsed time without progress at which improvement ends if no limit is given.
DEFAULT_LIMIT_S, IDLE_SHARE = 30.0, 1 / 3
#: Minimum seconds for the main search, even if baselines and the choice of chunks used up the time limit.
_LEAST_SEARCH_S = 0.05


@checked
@rarely_collected()
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
    until_gap: Share | None = None,
    start: Schedule | None = None,
) -> Result:
    """Synthesize a verified schedule of a problem, with a proven lower bound and a log of the search.

    Parameters
    ----------
    problem : Problem
        If it leaves the number of chunks open, the search first chooses one, in a share of the time and in
        the same way for every backend. ``result.schedule.problem`` then has the chosen number, and the bound
        and the gap hold over all chunkings. Problems of more than 3 million hops (chunks times links) take
        one chunk per rank.
    backend : str
        ``"auto"`` (the portfolio), ``"greedy"`` (the list scheduler), or one solver for routing and
        contiguity: ``"highs"``, ``"scip"``, ``"cbc"``, ``"gurobi"``, ``"cpsat"``, ``"pulp:NAME"``; or
        ``"dimension-balanced"``, if the topology is a product (`taccl.dimensions`).
    policy : {"lp", "greedy"}
        How ``"dimension-balanced"`` assigns chunks to orders of dimensions: by the optimal shares of a linear
        program, or one chunk after another to the order that balances the load of the dimensions best.
    time_limit_s : float, optional
        Seconds for the whole synthesis, including the compilation of kernels, also as a time such as
        ``"5min"``; default 30. Some baselines run first, in a fifth of the time (the usually best one in up
        to half), so that a schedule exists. The other baselines run in the time that the search leaves. Work
        under way at the end is stopped. If no schedule exists by then, the search continues for up to ten
        seconds. On a busy machine, the first baselines have the CPU time that an idle one would give them,
        and end at most 1.7 s after the limit.
    idle_share : float, optional
        Share of the elapsed time, above 0 and below 1, after which improvement ends if it found nothing
        better. Default: a third if `time_limit_s` is None; otherwise improvement may use the whole time.
    threads : int, optional
        Threads of each solver. Default: the number of cores that this process may use.
    seed : int
        Same problem, options and seed give the same schedule, unless a time limit cut a stage.
    memory_limit_mb : int, optional
        Memory limit of each solver process, and of the compiled list scheduler, which estimates its need
        before it starts (default there: 80 % of the free memory).
    log : bool
        True if solvers write their logs to stderr.
    progress : callable, optional
        Called with (current activity, best finish in us or None, bound in us or None).
    on_incumbent : callable, optional
        Called with each schedule that finishes before all earlier ones. Its number of chunks may differ from
        the result's, and it may not be verified yet.
    on_bound : callable, optional
        Called with each bound that is higher than all earlier ones; ``bound.scope`` says what it holds for.
    on_stage : callable, optional
        Called with each `Stage` when it ends.
    stop_when : callable, optional
        A stopping rule, called with the `SearchState` after each incumbent, bound and stage. The search ends
        once it returns true, such as ``lambda state: state.gap < 0.05``.
    sketch : str or SketchProposal
        Applies to the portfolio, on a problem without a sketch. ``"auto"`` also searches under the best
        sketch suggested for the problem's chunks; ``"none"`` does not; a proposal is used instead of the
        suggestions.
    keep : {"schedule", "summary"}
        What the compiled list scheduler keeps: the transfers, or only totals once they are verified.
    spill_dir : path, optional
        A new or empty folder for the columns of a schedule too large for memory (`taccl.load_spilled`). If a
        baseline finishes first, its schedule stays in memory, and a note says so.
    to_file : bool
        True if the caller will save the schedule, so that the memory check includes saving.
    parameters : SearchParameters
        The constants of the search; ``SearchParameters.load(path)`` reads them from a TOML file.
    in_network : {"auto", "off", "only"}
        Use of switches that can add (in-network reduction). ``"auto"``: switches may add all or some of the
        sums if that finishes first; ``"off"``: none; ``"only"``: all. The bound holds for what is allowed.
    until_gap : float, optional
        The search ends once ``result.gap`` is at most this, such as 0.01 or ``"1%"``, and
        ``result.stopped`` says so. Gaps above 1 are text, such as ``"250%"``.
    start : Schedule, optional
        A schedule of the problem, such as an earlier result, from which the search starts once it is
        verified. If the problem leaves the number of chunks open, the search uses that of this schedule, but
        baselines and spanning trees may have another. The result finishes no later.

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
    began, began_s = Deadline.after(time_limit_s), time.monotonic()
    is_open = problem.chunks_open and not (problem.release_us or problem.due_us)
    observer = Observer(
        progress=progress, on_incumbent=on_incumbent, on_bound=on_bound, on_stage=on_stage,
        rules=stopping_rules(until_gap=until_gap, stop_when=stop_when), is_open=is_open,
        cancellation=began.cancellation,
    )  # fmt: skip
    options = Options(
        backend, sketch, threads or num_cores(), seed, memory_limit_mb, log, observer, keep,
        None if spill_dir is None else Path(spill_dir), to_file, parameters, policy, in_network, idle_share,
        None if start is None else checked_start(problem, start), began_s,
        began_s + time_limit_s, delay_s(), late_s(),
    )  # fmt: skip
    checked_s = time.monotonic()
    limit = replace(began, at_s=began_s + time_limit_s)

    with raising_errors_of_callbacks():
        whole, transforms = transformed(problem, options, limit)
        whole.account("transforms", checked_s)
        if start is not None:
            whole.record("start", "taccl", "done", began_s, finish_us=start.finish_us, message="verified")
        with going_on(whole):  # if an error ends the proposers, the best so far counts
            run(whole, AGGREGATING)  # sums by switches
            is_settled = _is_settled(whole)
            if whole.options.start is not None:
                begin_with(whole, whole.options.start)
            if not is_settled:
                with whole.accounting("preparation"):
                    _check_room(whole)
                    begin_compiling(whole)
                propose_first(whole)
                if not whole.is_proven:
                    _search_in_best_chunks(whole).settle()
        if not (limit.cancellation.why or whole.is_proven):
            with limit.interruptible():
                run(whole, last_turns(whole))
        found = _inverted(whole.earliest_search, whole, transforms, options)
        found = found.over_all_chunkings(at_once=limit.has_passed) if is_open else found
        return found if until_gap is None else with_note_on_gap(found, until_gap, is_judged=not transforms)


def _is_settled(whole: Search) -> bool:
    """True if the schedules by switches end the search, so that none by ranks alone is needed.

    They end it if only switches may make the sums. They also do if their best schedule finishes no
    later than the lower bound for ranks alone. Raises `NoSolutionError` if switches must make the sums, and
    no schedule was found; `CollectiveError` if servers make them.
    """
    assert whole.asked is not None, "the whole problem"
    is_only = whole.options.in_network == "only"
    if is_only and not whole.others:
        if whole.asked.collective.updates:
            said = "found 'only', but servers make the sums of this collective, not switches; leave it out"
            raise CollectiveError(said, where="in_network")
        said = "the sketch admits no schedule with switches; loosen it"
        raise NoSolutionError(f"{whole.asked!r}: {said}", bound_us=None)
    if not whole.others:
        return False
    if is_only:
        return True
    since, bound = time.monotonic(), bound_within(whole.problem, whole.deadline, whole.parameters.budget)
    said = f"{bound.kind}, of ranks alone"
    whole.record("bound", "taccl", "done", since, bound_us=bound.bound_us, message=said)
    return whole.earliest_search.finish <= bound.bound


def _check_room(whole: Search) -> None:
    """Raise `InputError` before the search if a large problem's schedule would not fit into memory."""
    problem, options = whole.problem, whole.options
    is_named = options.memory_limit_mb is not None
    if is_named or effort(problem) > options.parameters.suggesting.most_hops:
        left_s = max(0.1, whole.deadline.left_s)
        is_large, _ = choose(problem, options.backend, left_s, options.parameters)
        if is_large:
            check_memory(problem, options)


def _search_in_best_chunks(whole: Search) -> Search:
    """Choose the number of chunks, search the problem in them, and append this search to ``whole.others``.

    Until a first schedule is found, the search may run past the time limit by up to ``budget.late_s``. Raises
    `NoSolutionError` if it finds none (`OutOfTime` if time was up).
    """
    limit, budget = whole.deadline, whole.parameters.budget
    at_last = limit.later(budget.late_s * busy_factor())
    with whole.accounting("chunks"), limit.enforced(lambda: whole.has_found or at_last.has_passed):
        search = _prepared(whole)
    is_complete = search.best is not None
    whole.others.append(search)
    try:
        if not is_complete:
            continue_from(search, whole)
            with limit.enforced(lambda: whole.has_found or at_last.has_passed):
                propose_all(search, whole)
    except (KeyboardInterrupt, OutOfTime) as error:
        if isinstance(error, KeyboardInterrupt):
            search.interrupt()
        search.ran_out = True
        if search.best is None:
            raise
    if search.best is None:  # all proposers ended without a schedule and without raising an error
        said = "the search found no schedule; give more time (--time-limit), or loosen the sketch"
        raise NoSolutionError(f"{search.problem.title}: {said}", bound_us=search.bound_us)
    return search


def _prepared(whole: Search) -> Search:
    """Set up the search in the best chunking, with other roots if contributions cannot reach a root."""
    since, limit, options, budget = time.monotonic(), whole.deadline, whole.options, whole.parameters.budget
    start, proposals = options.start, whole.proposals
    if start is not None and isinstance(options.sketch, str):
        asked = start.problem
    else:
        asked, proposals = with_chunks(whole)
    share_baselines(asked, whole.problem)
    share_bound_over_all_chunkings(asked, whole.problem)
    left_s = max(0.1, limit.left_s)
    is_large, choice = choose(asked, options.backend, left_s, options.parameters)
    if options.spill_dir is not None and not is_large:
        said = f"only the compiled list scheduler spills, but {choice} runs; leave it out"
        raise InputError(said, where="spill_dir")
    if limit.cancellation.why:  # after Ctrl-C, a quick schedule in the chosen chunks suffices
        quick = quick_schedule(asked, options, NEVER)
        return whole.beside(asked, best=quick, choice=choice)
    rooted, one_shot = feasible(asked, left_s)
    problem = asked if rooted is None else rooted.part
    if one_shot is not None:
        choice = f"{one_shot.producer}: no rank can make a sum for all"
    kept_s = reserve_s(problem, limit.left_s, budget)
    search = whole.beside(
        problem, deadline=limit.later(-kept_s).at_least(_LEAST_SEARCH_S), best=one_shot, choice=choice,
        limit_s=left_s, is_large=is_large, proposals=proposals, made_by=rooted,
    )  # fmt: skip
    chosen = f"{format_count(asked.collective.chunks_per_rank, 'chunk')} per rank"
    search.record("chunks" if whole.is_open else "choice", "taccl", "done", since, message=chosen)
    return search


def _inverted(best: Search, whole: Search, transforms: Sequence[Transform], options: Options) -> Result:
    """The result for the given problem: the best schedule, transformed back and verified."""
    choice = _choice(best, whole)
    if any(isinstance(each, ReleaseDates) for each in transforms):  # re-timing needs all sends
        options = replace(options, keep="schedule", spill_dir=None, to_file=False)
    if not best.choice:  # a baseline found the schedule
        best.ran_out |= whole.ran_out
        best.notes = [*whole.notes, *(note for each in whole.others if each.choice for note in each.notes)]
    roots = [] if best is whole or best.made_by is None else [best.made_by]
    applied = [*roots, *reversed(transforms)]
    if not (best.made_by or best.is_aggregated):  # a search of the same data, in a chunking of its own
        share_bound_over_all_chunkings(best.problem, whole.problem)
    last = best
    if applied:
        since, schedule = time.monotonic(), best.best
        assert schedule is not None, "there is a schedule"
        for transform in applied:
            schedule = transform.invert(schedule)
            choice += transform.told
        start = options.start  # the search of the transformed problem could not use this start
        if start is not None and start.finish < schedule.finish:
            schedule, choice = start, GIVEN
        shared = ("stages", "trace", "notes", "fallbacks", "ran_out", "dimension_bound")
        last = Search(
            schedule.problem, options, whole.deadline, best=schedule,
            **{name: getattr(best, name) for name in shared},
        )  # fmt: skip
        names = ", ".join(each.name for each in applied)
        last.record("inverted", "taccl", "done", since, finish_us=last.best_us, message=names)
        since = time.monotonic()
        grants: InNetworkGrant = "only" if options.in_network == "only" else False
        last.prove(
            bound_within(last.problem, whole.deadline, options.parameters.budget, in_network=grants), since
        )
    try:
        look_for_bound(last)
        return last.result(choice)
    except KeyboardInterrupt:  # Ctrl-C while the bound is computed or the schedule verified
        last.interrupt()
        return last.result(choice)


def _choice(best: Search, whole: Search) -> str:
    """Text for `Result.choice`: what found the schedule and why that ran."""
    made = [each.choice for each in whole.others if each.choice]
    if whole.made_by is not None:
        ranks = [each for each in (*whole.others, whole) if each.best is not None and not each.is_aggregated]
        if ranks:
            made = [each.choice for each in whole.others if each.is_aggregated]
            made.append(f"ranks alone: {format_us(min(each.finish for each in ranks))}")
        return "; ".join(made)
    if best.choice:
        return best.choice
    if not any(each.choice and each.best is not None for each in whole.others):
        stopped = whole.deadline.cancellation.why
        if stopped == GAP_MET:
            return "the first schedule; its gap meets the requested one"
        if stopped:
            return f"the first schedule, after which the search ended: {stopped}"
        if whole.is_proven:
            return "the first schedule; it meets the bound over all chunkings"
        return "the first schedule, as no other was found in time"
    chosen = next(each for each in whole.others if each.choice)
    is_cut_alike = best.problem.chunk_bytes == chosen.problem.chunk_bytes
    return f"{made[0]}; the best schedule is {'of another stage' if is_cut_alike else 'in other chunks'}"
