"""From a problem to a verified schedule: `synthesize`.

It chooses the search, has it run, and returns the best schedule, verified, with its bound. The searches are

- the **portfolio** (``"auto"``), or the list scheduler or one solver alone: `proposers.stages`;
- the **compiled search**, where there are more hops than models reach: `proposers.large_search`;
- either of them under the best sketches that are suggested: `taccl.synthesis.suggesting.sketched_search`.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from taccl._internal.arguments import Count, Megabytes, Natural, Seconds, checked, known_word
from taccl._internal.cpu_share import busy_factor
from taccl._internal.deadline import NEVER, Deadline, OutOfTime
from taccl._internal.units import format_count, format_us
from taccl.analysis.certificates.certificate import Certificate
from taccl.analysis.certificates.every_cut import share_bound_of_every_cut
from taccl.analysis.verification.verify import verify
from taccl.baselines.in_network import shared_links
from taccl.baselines.servers import servers
from taccl.errors import InfeasibleError, InputError, NoSolutionError, SketchError, TopologyError
from taccl.problem.problem import Problem
from taccl.schedule.combine import naming_contributions
from taccl.schedule.listing import released
from taccl.schedule.schedule import Schedule
from taccl.sketch.reachability import check_reachable, is_possible, rooted_anew
from taccl.solvers.registry import require_known
from taccl.synthesis.backends import OWN_BACKENDS
from taccl.synthesis.explaining.explain import infeasible
from taccl.synthesis.memory import check_memory
from taccl.synthesis.observing import Observer, SearchState
from taccl.synthesis.parameters import DEFAULTS, SearchParameters
from taccl.synthesis.proposers.balanced import BALANCED, cut_balanced
from taccl.synthesis.proposers.competing import (
    for_baselines_s,
    obeying,
    offer_cut,
    offer_first,
    offer_rest,
    reserve_s,
    share_baselines,
)
from taccl.synthesis.proposers.large import effort, suits
from taccl.synthesis.proposers.large_search import compile_telling
from taccl.synthesis.proposers.stages import choose
from taccl.synthesis.proposers.table import propose_all
from taccl.synthesis.result import Result, Stage, TraceEntry
from taccl.synthesis.search import Options, Search, bound_within
from taccl.synthesis.suggesting.chunks import choose_with_sketches, cut
from taccl.synthesis.suggesting.proposals import SketchProposal
from taccl.synthesis.suggesting.sketched_search import check_proposal
from taccl.synthesis.suggesting.suggest import quick_schedule
from taccl.synthesis.transforms.switches import InNetworkUse, by_switches, over_links

#: Share of the time for baselines in finer chunks, where their number is open.
_CUT_SHARE = 0.25
#: Least seconds of a search, however long what comes before it took.
_LEAST_SEARCH_S = 0.05


@checked
def synthesize(
    problem: Problem,
    *,
    backend: str = "auto",
    policy: Literal["lp", "greedy"] = "lp",
    time_limit_s: Seconds = 30.0,
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
    time_limit_s : float
        Seconds for the whole synthesis, including the compilation of kernels. Baselines come first, in a
        fifth of the time (the best usually in a half), so that a schedule exists. The others run in the
        time that the search leaves; work under way at the end is stopped. Without any schedule by then the
        search continues for up to ten seconds.
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
    NoSolutionError, KeyboardInterrupt
        If nothing was found in time, or when Ctrl-C came.
    """
    known_word(in_network, get_args(InNetworkUse), "in_network")
    began = Deadline.after(time_limit_s)
    observer = Observer(
        progress=progress, on_incumbent=on_incumbent, on_bound=on_bound, on_stage=on_stage,
        stop_when=stop_when, cancellation=began.cancellation,
    )  # fmt: skip
    options = Options(
        backend, sketch, threads or _cores(), seed, memory_limit_mb, log, observer, keep,
        None if spill_dir is None else Path(spill_dir), to_file, parameters, policy,
    )  # fmt: skip
    limit = replace(began, at_s=options.began_s + time_limit_s)
    if not (problem.release_us or problem.due_us):
        found = _search_anything(problem, in_network, options, limit)
        return found.over_all_chunkings() if problem.chunks_open else found
    options = replace(options, keep="schedule", spill_dir=None, to_file=False)
    problem = problem.in_its_chunks  # whose chunks have times of their own
    found = _search_anything(problem.without_moments(), in_network, options, limit)
    return _begun_anew(problem, found, bound_within(problem, limit, parameters.budget))


def _search_anything(problem: Problem, in_network: InNetworkUse, options: Options, limit: Deadline) -> Result:
    """Result of a problem without release dates: by switches, servers or ranks."""
    _check_options(problem, options)
    if options.backend == BALANCED:
        problem = cut_balanced(problem, policy=options.policy)
    if in_network == "only" or (in_network == "auto" and shared_links(problem.topology)):
        return _search_with_switches(problem, in_network, options, limit)
    if problem.collective.update_us_per_mb is not None:
        return _served(problem, options, limit)
    return _search_by_ranks(over_links(problem, shared=False), options, limit)


def _search_with_switches(problem: Problem, use: InNetworkUse, options: Options, limit: Deadline) -> Result:
    """The best that switches do; with ``"auto"`` also of ranks, unless a bound says that they lose."""
    budget, since = options.parameters.budget, time.monotonic()
    found, ranks = by_switches(problem, use, limit), None
    tried: list[Any] = [] if found is None else [found]
    alone = over_links(problem, shared=False)
    if use == "auto" and (found is None or found.finish > bound_within(alone, limit, budget).bound):
        # What is kept of the schedule is settled once the best of both is known.
        ranks = _search_by_ranks(alone, replace(options, keep="schedule", spill_dir=None), limit)
        tried.append(ranks.schedule)
    if not tried:
        raise NoSolutionError(
            f"{problem!r}: the sketch leaves switches no schedule; loosen it", bound_us=None
        )
    best = min(tried, key=lambda each: each.finish)
    best = best.under(replace(best.problem, clauses=problem.clauses))
    search = Search(best.problem, options, limit)
    search.best, search.stages = best, [] if ranks is None else list(ranks.stages)
    told = []
    if found is not None:
        search.record("in-network", "taccl", "done", since, finish_us=found.finish_us, message=found.producer)
        told.append(f"switches that add, {found.producer}: {format_us(found.finish)}")
    if ranks is not None:
        told.append(f"ranks alone: {format_us(ranks.schedule.finish)}")
    allowed = over_links(best.problem, shared=True) if use == "only" else best.problem
    search.prove(bound_within(allowed, limit, budget), time.monotonic())
    return search.result("; ".join(told))


def _served(problem: Problem, options: Options, limit: Deadline) -> Result:
    """Schedule of the servers that update sums: no other search knows when they may be sent on."""
    since, found = time.monotonic(), servers(problem, cut=problem.chunks_open)
    found = found.under(replace(found.problem, clauses=problem.clauses))
    search = Search(found.problem, options, limit, best=found)
    search.record("servers", "taccl", "done", since, finish_us=found.finish_us)
    search.look_for_bound()
    return search.result("servers that update sums, in the levels that finish first")


def _search_by_ranks(problem: Problem, options: Options, limit: Deadline) -> Result:
    """The best schedule without switches that add: of the baselines, or of the search after them."""
    whole = Search(replace(problem, chunks_open=False), options, limit)
    _check_room(whole.problem, options, limit)
    competes = options.backend in ("auto", "greedy") and options.keeps_sends
    tried, found = [whole], None
    choice = "the first schedule, as time was up before another was found"
    try:
        if competes:
            offer_first(whole)
            if whole.best is not None:
                whole.look_over_all_chunkings()
            if problem.chunks_open:
                tried.append(offer_cut(whole, cut, limit.sooner(for_baselines_s(limit, _CUT_SHARE))))
        found = _search_in_chunks(problem, options, limit, tried[-1], whole.problem)
        choice = f"{found.choice}; a baseline in other chunks finishes sooner"
    except KeyboardInterrupt:
        if all(each.best is None for each in tried):
            raise
        whole.interrupt()
    except NoSolutionError as error:
        if all(each.best is None for each in tried):
            raise
        whole.ran_out = True
        if not isinstance(error, OutOfTime):
            whole.notes.append(f"the search found no schedule: {error}")
    is_met = found is not None and found.stopped == "bound met"
    if competes and not is_met and not limit.cancellation.why:
        with limit.interruptible():
            tried += _offer_rest(problem, whole, None if found is None else found.schedule)
    best = min(tried, key=lambda each: math.inf if each.best is None else each.best.finish)
    if found is not None and (best.best is None or found.schedule.finish <= best.best.finish):
        stopped = "interrupted" if whole.interrupted else found.stopped
        seconds = time.monotonic() - options.began_s
        return replace(found, stages=tuple(whole.stages), stopped=stopped, seconds=seconds)
    best.ran_out |= whole.ran_out
    best.notes = [*whole.notes, *(() if found is None else found.notes)]
    best.look_for_bound()
    return best.result(choice)


def _offer_rest(problem: Problem, whole: Search, found: Schedule | None) -> list[Search]:
    """Offer the baselines that were not made yet in the time left; a search for those in finer chunks."""
    offer_rest(whole, found)
    if not problem.chunks_open or whole.best is None:
        return []
    kept_s = reserve_s(problem, whole.deadline.left_s, whole.parameters.budget)
    return [offer_cut(whole, cut, whole.deadline.later(-kept_s))]


def _check_room(problem: Problem, options: Options, limit: Deadline) -> None:
    """Raise `InputError` before any work if memory does not suffice for a schedule of a large problem."""
    is_named = options.memory_limit_mb is not None
    if is_named or effort(problem) > options.parameters.suggesting.most_hops:
        is_large, _ = choose(problem, options.backend, max(0.1, limit.left_s), options.parameters)
        if is_large:
            check_memory(problem, options)


def _search_in_chunks(
    problem: Problem, options: Options, limit: Deadline, first: Search, whole: Problem
) -> Result:
    """The best schedule that the search finds, in the chunks that are chosen before it.

    - `first`: A search that may have a schedule. While none is known, work goes on beyond the time limit.
    - `whole`: The problem that baselines were made of.

    Raises `OutOfTime` if only `first` has a schedule when time is up.
    """
    parameters, budget, since = options.parameters, options.parameters.budget, time.monotonic()
    is_open = problem.chunks_open
    at_last = limit.later(budget.late_s * busy_factor())
    known = [first]

    def may_end() -> bool:
        return any(each.best is not None for each in known) or at_last.has_passed

    with limit.enforced(may_end):
        asked, proposals = _with_chunks(problem, options, limit)
        share_baselines(asked, whole)
        share_bound_of_every_cut(asked, whole)
        left_s = max(0.1, limit.left_s)
        is_large, choice = choose(asked, options.backend, left_s, parameters)
        if options.spill_dir is not None and not is_large:
            said = f"only the compiled list scheduler spills, and what runs is {choice}; leave it out"
            raise InputError(said, where="spill_dir")
        if limit.cancellation.why:  # Ctrl-C came as chunks were chosen: what they were chosen by will do
            quick = quick_schedule(asked, options, NEVER)
            return Search(asked, options, limit, best=quick).result(choice)
        problem, apart = _feasible(asked, left_s, parameters)
    kept_s = reserve_s(problem, limit.left_s, budget)
    search = Search(
        problem, options, limit.later(-kept_s).at_least(_LEAST_SEARCH_S), best=apart, stages=first.stages,
        limit_s=left_s, is_large=is_large, proposals=proposals,
    )  # fmt: skip
    search.solve = partial(_search_in_chunks, first=Search(problem, options, search.deadline), whole=problem)
    chosen = f"{format_count(asked.collective.chunks_per_rank, 'chunk')} per rank"
    search.record("chunks" if is_open else "choice", "taccl", "done", since, message=chosen)
    if apart is not None:
        search.look_for_bound()
        return search.result(f"{apart.producer}: no rank can make a sum for all")
    known.append(search)
    try:
        with limit.enforced(may_end):
            propose_all(search)
    except (KeyboardInterrupt, OutOfTime) as error:
        if isinstance(error, KeyboardInterrupt):
            search.interrupt()
        search.ran_out = True
        if search.best is None:
            raise
        search.look_for_bound()
    if search.best is None:  # a stage ended without a schedule, and without a word
        said = "the search found no schedule; give more time (--time-limit), or loosen the sketch"
        raise NoSolutionError(f"{problem!r}: {said}", bound_us=search.bound_us)
    try:
        found = search.result(choice)
    except KeyboardInterrupt:  # while the best is verified
        search.interrupt()
        found = search.result(choice)
    if problem is asked or options.keep == "summary":
        return found
    return _at_own_roots(asked, found, bound_within(asked, limit, budget))


def _at_own_roots(asked: Problem, found: Result, bound: Certificate) -> Result:
    """The result for the problem that was asked, whose sums were searched at other roots.

    Raises `NoSolutionError` if the schedule breaks the sketch that way.
    """
    schedule = found.schedule.under(asked)
    if verify(schedule).ok:
        return replace(found, schedule=schedule, bound=bound)
    # That a sum is whole at another rank than its root is plain only where sends name what they carry.
    named = naming_contributions(found.schedule.listable(), asked)
    verdict = verify(named)
    if not verdict.ok:
        kinds = ", ".join(sorted({each.kind for each in verdict.violations}))
        said = (
            f"sums that are made at other ranks than their roots were found, and break the sketch ({kinds})"
        )
        raise NoSolutionError(f"{asked!r}: {said}; name roots that all contributions reach", bound_us=None)
    return replace(found, schedule=named, bound=bound)


def _begun_anew(problem: Problem, found: Result, bound: Certificate) -> Result:
    """Re-time a release-free schedule under the problem's release dates.

    Raises `NoSolutionError` if something comes later than it is due.
    """
    schedule = found.schedule.listable()
    try:
        timed = released(problem, schedule)
    except (
        ValueError
    ):  # ranks exchange sums, and each send waits for the other's start, unless sums are named
        timed = released(problem, naming_contributions(schedule, schedule.problem))
    verdict = verify(timed)
    late = [each for each in verdict.violations if each.kind == "due"]
    if late:
        said = f"found no schedule in which everything comes when it is due: {late[0].message}"
        raise NoSolutionError(f"{said}; make it due later, or give more time", bound_us=bound.bound_us)
    verdict.raise_if_failed()
    stopped = "nothing better found" if found.stopped == "bound met" else found.stopped
    return replace(
        found, schedule=timed, bound=bound, stopped="bound met" if timed.finish <= bound.bound else stopped,
        trace=(*found.trace, TraceEntry(found.seconds, timed.finish_us, bound.bound_us)),
        choice=f"{found.choice}; its sends begun anew for releases and due times",
    )  # fmt: skip


def _with_chunks(
    problem: Problem, options: Options, limit: Deadline
) -> tuple[Problem, Sequence[SketchProposal]]:
    """The problem in as many chunks as are best, where it leaves that open; and sketches that suit."""
    whole, suggesting = problem.in_its_chunks, options.parameters.suggesting
    sketch = options.sketch
    if not isinstance(sketch, str):
        return _cut_as(sketch, problem), [sketch]
    if not problem.chunks_open:
        return whole, []
    if suits(whole) and max(suggesting.counts) * effort(whole) > suggesting.few_hops:
        compile_telling(whole, options, limit)
    until = limit.sooner(min(suggesting.most_suggest_s, suggesting.chunks_share * limit.left_s))
    give_up = limit.sooner(suggesting.give_up_share * limit.left_s)
    chosen, sketches = choose_with_sketches(
        problem, options, until, give_up=give_up, suggests=sketch == "auto"
    )
    guides = options.backend == "auto" and options.keeps_sends
    return chosen, sketches if guides else []


def _check_options(problem: Problem, options: Options) -> None:
    """Raise `InputError` for arguments that do not fit together, or the problem."""
    backend, sketch = options.backend, options.sketch
    if backend not in OWN_BACKENDS:
        require_known(backend, others=OWN_BACKENDS, where="backend")
    if isinstance(sketch, str):
        if sketch not in ("auto", "none"):
            raise InputError(f"found {sketch!r}; expected 'auto', 'none' or a proposal", where="sketch")
        return
    check_proposal(sketch, _cut_as(sketch, problem))
    if backend != "auto" or not options.keeps_sends:
        raise InputError(
            "found a proposal, which guides the portfolio alone; leave it out, or give backend='auto' "
            "and neither keep='summary' nor spill_dir",
            where="sketch",
        )


def _cut_as(sketch: SketchProposal, problem: Problem) -> Problem:
    """The problem in the chunks of a proposal, where it leaves their number open."""
    if not problem.chunks_open:
        return problem
    return cut(problem.in_its_chunks, sketch.problem.collective.chunks_per_rank)


def _feasible(
    problem: Problem, time_limit_s: float, parameters: SearchParameters
) -> tuple[Problem, Schedule | None]:
    """The problem with sums rooted where they can be made; or what there is where no one rank can make one.

    Raises `InfeasibleError`, with the clauses that clash, where a sketch keeps a chunk from its end.
    """
    try:
        check_reachable(problem)
    except (SketchError, TopologyError) as error:
        if is_possible(problem):
            rooted = rooted_anew(problem)
            apart = obeying("one-shot", problem) if rooted is None else None
            if rooted is not None or apart is not None:
                return rooted or problem, apart
        if isinstance(error, TopologyError):
            raise
        raise infeasible(problem, time_limit_s=time_limit_s) or InfeasibleError(str(error)) from None
    return problem, None


def _cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
