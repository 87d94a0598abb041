"""Table of the library's proposers, which are all its ways to find a schedule, in the order they run."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from taccl._internal.deadline import Deadline, busy_factor
from taccl._internal.units import format_s, format_us
from taccl.analysis.certificates.scopes import known_bound_over_all_chunkings
from taccl.baselines.table import BASELINES, row_of
from taccl.problem.problem import Problem
from taccl.solvers.registry import OWN_BACKENDS
from taccl.synthesis.bounding import (
    look_for_bound,
    look_for_bound_over_all_chunkings,
    no_bound,
)
from taccl.synthesis.budget import Turn, nothing, run
from taccl.synthesis.improve.improvement import suits_improvement
from taccl.synthesis.proposers.balanced import BALANCED, search_balanced
from taccl.synthesis.proposers.baseline_proposals import (
    balanced_s,
    competes,
    offer_balanced,
    offer_first,
    offer_made,
    offer_proven,
    offer_rest,
    reserve_s,
    share_baselines,
)
from taccl.synthesis.proposers.chains import offer_chains
from taccl.synthesis.proposers.compiling import too_short
from taccl.synthesis.proposers.estimated import offer_estimated
from taccl.synthesis.proposers.finer import (
    is_at_one_rank,
    is_large_on_grid,
    is_product,
    offer_balanced_first,
    offer_cut,
    offer_cut_again,
    offer_cut_first,
    offer_hubs,
    offer_passes,
    offer_usual_on_grid,
    prefers_passes,
)
from taccl.synthesis.proposers.large import effort
from taccl.synthesis.proposers.merged import gathers_or_scatters, offer_merged
from taccl.synthesis.proposers.priced_trees import offer_priced_trees, sums_of_some
from taccl.synthesis.proposers.ruin import ruin_and_recreate
from taccl.synthesis.proposers.stages import search_plain
from taccl.synthesis.proposers.trees import is_worthwhile, may_fill, no_time, offer_trees
from taccl.synthesis.proposing import OwnProposer, registered
from taccl.synthesis.search import Search
from taccl.synthesis.stopping import BOUND_MET
from taccl.synthesis.suggesting.chunks import ROUNDED, offer_nearby
from taccl.synthesis.suggesting.sketched_search import is_unguided, search_guided
from taccl.synthesis.transforms.exchange import (
    exchange_s,
    offer_exchanged,
    offer_optimal_exchange,
    sums_anywhere,
)
from taccl.synthesis.transforms.switches import by_switches
from taccl.topology.recognise import grid_of

#: `_LEAST_ROOT_S`: min CPU seconds for baselines in finer chunks if all data starts or ends at one rank.
#: `_MOST_LATE_S`: max seconds past the time limit for baselines before the search and the verb's end.
#: `_END_S`, `_END_S_PER_LINK`: CPU seconds at the end, to bound, to verify and to print.
_LEAST_ROOT_S, _MOST_LATE_S, _END_S, _END_S_PER_LINK = 0.5, 1.7, 0.08, 1e-5
#: Trials of numbers of chunks precede spanning trees if they take at most about 2 s of CPU.
#: `_TRIAL_HOPS`: max hops of all trials.
#: `_TRIAL_S`: min seconds left on an idle machine.
_TRIAL_HOPS, _TRIAL_S = 300_000, 6.0
#: CPU seconds per hop for the quotient and one list schedule, with which a solver that works alone begins.
_ALONE_S_PER_HOP = 7e-5
#: Share of the time reserved for ruin and recreate if the search does not run under sketches.
_SKETCHED_SHARE = 0.3
#: Max ratio of a finish to the bound over all chunkings at which ruin and recreate keeps a schedule as it is.
_NEAR_BOUND = 1.01


def _by_switches(search: Search) -> None:
    """Propose the best schedule with in-network reduction, by switches alone or together with ranks."""
    asked = search.made_by.problem if search.made_by is not None else search.problem
    since = time.monotonic()
    found = by_switches(asked, search.options.in_network, search.deadline)
    if found is None:
        search.record("in-network", "taccl", "no-solution", since)
        return
    said = f"switches that add, {found.producer}: {format_us(found.finish)}"
    other = search.beside(found.problem, choice=said, is_aggregated=True)
    other.offer_whole(found, producer=found.producer)
    search.others.append(other)
    search.record("in-network", "taccl", "done", since, finish_us=found.finish_us, message=found.producer)


def _may_use_switches(search: Search) -> bool:
    """True if in-network reduction is required, or is allowed and the topology has switches that add."""
    return search.options.in_network == "only" or search.made_by is not None


def _competes_before(search: Search) -> bool:
    """True if baselines run both before the search and after it."""
    return competes(search) and search.options.keeps_sends


def _may_be_first(search: Search) -> bool:
    """True if baselines run before the search: they compete with it, or it may find no schedule in time."""
    return competes(search) or (search.options.keeps_sends and _is_too_short_alone(search))


def _is_too_short_alone(search: Search) -> bool:
    """True if a solver that works alone may have no schedule by the deadline."""
    is_alone = search.backend not in OWN_BACKENDS
    return is_alone and busy_factor() * _ALONE_S_PER_HOP * effort(search.problem) > search.deadline.left_s


def _is_late(search: Search) -> bool:
    """True if there is a schedule and time is up, even if the first baselines may take longer."""
    return search.has_found and time.monotonic() > search.options.ends_s


def _first_baselines(search: Search) -> None:
    if not competes(search):
        search.notes.append(f"time was short for {search.backend} alone, so baselines came first")
    offer_first(search)


def _from_one_rank_first(search: Search) -> Search | None:
    """Propose the baselines that gain most from finer chunks: in the problem's chunks, then in finer ones.

    It runs if all chunks start or end at one rank. Such chunks follow one another along a tree, which is slow
    unless they are cut. So these baselines precede all others, and have a minimum time.
    """
    left_s = search.options.ends_s + _most_late_s(search) - time.monotonic()
    least_s = min(busy_factor() * _LEAST_ROOT_S, left_s)
    with search.postponed(search.deadline.at_least(least_s).at_s - search.deadline.at_s):
        kinds = {"root", "both"} if search.problem.topology.num_nodes > 1 else {"root"}
        offer_first(search, [name for name in BASELINES if row_of(name).finer_chunks in kinds])
        return offer_cut_first(search)


def _most_late_s(search: Search) -> float:
    """Max seconds past the time limit for baselines: what the end of the verb leaves of `_MOST_LATE_S`."""
    end_s = _END_S + _END_S_PER_LINK * len(search.problem.topology.links)
    return max(0.0, _MOST_LATE_S - search.options.late_s - busy_factor() * end_s)


def _has_groups(problem: Problem) -> bool:
    return bool(problem.collective.groups)


def _bound_all_chunkings(search: Search) -> None:
    """Compute the bound over all chunkings before the search uses up the time.

    If time is up already, `Search.result` computes it. If a schedule meets it, and the number of
    chunks is open, no search follows: no schedule in any chunks finishes sooner.
    """
    if not search.deadline.has_passed:
        every = look_for_bound_over_all_chunkings(search)
        is_met = every is not None and search.earliest_search.finish <= every.bound
        search.is_proven = is_met and search.is_open


def _bound_in_rest(search: Search) -> None:
    """Compute the bound over all chunkings in the time left, if its share of the time was too short."""
    left_s, budget = search.deadline.left_s, search.parameters.budget
    kept_s = reserve_s(search.problem, left_s, budget)
    limit_s = min(left_s - kept_s, search.idle_s, budget.last_every_s)
    if limit_s > 0:
        look_for_bound_over_all_chunkings(search, limit_s=limit_s)


def _last_baselines(search: Search) -> None:
    for each in search.others:
        share_baselines(search.problem, each.problem)
    offer_rest(search)


def _finer_next(search: Search) -> Search | None:
    return None if is_at_one_rank(search.problem) and _is_late(search) else offer_cut_first(search)


def _finer_last(search: Search) -> Search | None:
    return offer_cut(search, _until_last(search))


def _finer_still(search: Search) -> Search | None:
    return offer_cut_again(search, _until_last(search))


def _until_last(search: Search) -> Deadline:
    """Deadline of proposers of finer chunks after the search."""
    left_s = search.deadline.left_s
    kept_s = reserve_s(search.problem, left_s, search.parameters.budget)
    return search.deadline.sooner(min(left_s - kept_s, search.idle_s))


def _ruin_finer(search: Search) -> None:
    """Ruin and recreate on the earliest schedule, if it is not in the chunks of the main search.

    Partial sums are then exchanged in the new schedule, too. A schedule near the bound over all chunkings is
    kept, as trees without idle gaps repeat at the rate of the busiest resource.
    """
    earliest, known_us = search.earliest_search, search.earliest_us
    every = known_bound_over_all_chunkings(no_bound(search.problem))
    is_near = every is not None and known_us <= _NEAR_BOUND * every.bound_us
    if _is_beside(search, earliest) and not is_near and suits_improvement(earliest.problem):
        ruin_and_recreate(earliest)
        if search.earliest_us < known_us and sums_anywhere(search.problem):
            offer_exchanged(earliest)


def _exchange_finer(search: Search) -> None:
    """Exchange partial sums in the earliest schedule, if its chunks are not those of the main search."""
    earliest = search.earliest_search
    if _is_beside(search, earliest):
        offer_exchanged(earliest)


def _is_beside(search: Search, earliest: Search) -> bool:
    """True if the earliest schedule is in other chunks than the main search's, and ranks make its sums."""
    return earliest is not search and not earliest.is_aggregated


def _may_be_finer(search: Search) -> bool:
    return search.is_open and _competes_before(search)


def _is_free(search: Search) -> bool:
    """True if any proposer may run: the backend is the portfolio, and schedules keep all sends in memory."""
    return search.backend == "auto" and search.options.keeps_sends


def _may_merge(search: Search) -> bool:
    return _is_free(search) and _may_be_finer(search)


def _along_trees(search: Search) -> Search | None:
    return None if search.is_proven else offer_trees(search)


def _may_grow_trees(search: Search) -> bool:
    """True if trees may improve the schedule, and were not tried before."""
    is_new = all(each.name != _TREES.name for each in search.stages)
    return is_new and _is_free(search) and is_worthwhile(search)


def _may_grow_trees_first(search: Search) -> bool:
    """True if the choice of the number of chunks takes long, compared with trees or with the time left."""
    counts = search.parameters.suggesting.counts
    are_quick = search.is_open and sum(counts) * effort(search.problem) <= _TRIAL_HOPS
    has_time = search.deadline.left_s >= busy_factor() * _TRIAL_S
    return _may_grow_trees(search) and not (are_quick and has_time)


def _may_grow_trees_at_once(search: Search) -> bool:
    """True if trees precede baselines in finer chunks: for data of one rank, trees usually finish sooner."""
    return is_at_one_rank(search.problem) and _may_be_finer(search) and _may_grow_trees(search)


def _may_guide(search: Search) -> bool:
    """True if the search may run under sketches: some were given, or may be suggested."""
    may_suggest = _is_free(search) and search.options.sketch == "auto"
    return bool(search.proposals) or (may_suggest and is_unguided(search.problem, search.parameters))


def _no_time_for_sketches(search: Search) -> str:
    """Reason why no sketch is suggested: too little time for a compiled search; empty if none applies."""
    least_s = search.parameters.choice.compiling_s
    if search.proposals or not search.is_large or search.limit_s >= least_s:
        return ""
    return (
        f"{format_s(search.limit_s)} are left, and the compiled search of a sketch takes {format_s(least_s)}"
    )


def _is_guided(search: Search) -> bool:
    """True if the search runs under sketches."""
    return _may_guide(search) and not _no_time_for_sketches(search)


def _is_plain(search: Search) -> bool:
    return search.backend != BALANCED and not _is_guided(search)


def _improving_s(search: Search) -> float:
    """Seconds reserved for ruin and recreate; 0 if it will not run."""
    is_meant = _is_free(search) and suits_improvement(search.problem) and not too_short(search)
    share = search.parameters.budget.improve_share if _is_guided(search) else _SKETCHED_SHARE
    return is_meant * share * search.limit_s


def _balanced_s(search: Search) -> float:
    """Seconds reserved for the balanced schedule, beyond those reserved for ruin and recreate."""
    most_s = search.parameters.budget.improve_share * search.deadline.left_s
    return max(0.0, balanced_s(search.problem, most_s, search.parameters) - _improving_s(search))


def _balanced(search: Search) -> None:
    """Propose the dimension-balanced schedule, and compute the bound."""
    search_balanced(search, policy=search.options.policy)
    look_for_bound(search)


def _offer_registered(search: Search) -> None:
    """Run the proposers that users registered, each in its share of the time."""
    share = search.parameters.portfolio.registered_share
    run(search, [Turn(each, share=share) for each in registered()])


def _sums_on_torus(problem: Problem) -> bool:
    """True for sums on a torus: hubs are estimated in milliseconds there, unlike mixes of trees on a mesh."""
    dims = grid_of(problem.topology) if sums_anywhere(problem) else None
    return dims is not None and all(each.kind == "ring" for each in dims)


def _sums_on_mesh(problem: Problem) -> bool:
    """True for sums on a grid that is no torus."""
    is_on_grid = sums_anywhere(problem) and grid_of(problem.topology) is not None
    return is_on_grid and not _sums_on_torus(problem)


def _derives(problem: Problem) -> bool:
    return bool(problem.collective.derivations)


def _has_no_updates(problem: Problem) -> bool:
    return not problem.collective.updates


#: Proposers for sums that switches make; no other proposer supports such sums.
AGGREGATING = (Turn(OwnProposer("switches that add", _by_switches, _has_no_updates), _may_use_switches),)
_TREES = OwnProposer("trees", _along_trees, may_fill)
#: Proposers that run before the number of chunks is chosen, so that a schedule exists early.
FIRST: tuple[Turn, ...] = (
    Turn(
        OwnProposer("groups over dimensions", offer_balanced_first, _has_groups),
        lambda search: _is_free(search) and _competes_before(search),
    ),
    Turn(OwnProposer("balanced over dimensions", offer_balanced_first, is_product), _may_be_finer),
    Turn(OwnProposer("recursive multiplying by estimate", offer_estimated, _has_no_updates), _may_be_finer),
    Turn(OwnProposer("pipelined trees", _from_one_rank_first, is_at_one_rank), _may_be_finer),
    Turn(OwnProposer("sums at hubs", offer_hubs, _sums_on_torus), _may_be_finer),
    Turn(OwnProposer("bucket in finer chunks", offer_passes, prefers_passes), _may_be_finer),
    Turn(OwnProposer("sums at hubs", offer_hubs, _sums_on_mesh), _may_be_finer),
    Turn(OwnProposer("usual baseline in finer chunks", offer_usual_on_grid, is_large_on_grid), _may_be_finer),
    Turn(OwnProposer("first baselines", _first_baselines), _may_be_first),
    Turn(_TREES, _may_grow_trees_at_once, no_time, improves=True),
    Turn(OwnProposer("baselines in finer chunks", _finer_next), _may_be_finer, improves=True),
)
#: Proposers that follow them, before the number of chunks is chosen.
SECOND: tuple[Turn, ...] = (
    Turn(OwnProposer("pipelined chains", offer_chains, _derives), _is_free),
    Turn(OwnProposer("bound over all chunkings", _bound_all_chunkings), _competes_before, improves=True),
    Turn(_TREES, _may_grow_trees_first, no_time, improves=True),
    Turn(
        OwnProposer("priced trees", offer_priced_trees, lambda p: p.collective.sums_up and sums_of_some(p)),
        _is_free,
        improves=True,
    ),
)
#: Proposers between the choice of the number of chunks and the search. They are skipped if a trial meets the
#: bound over all chunkings, but for sizes in whole bytes.
THIRD: tuple[Turn, ...] = (Turn(_TREES, _may_grow_trees, no_time, improves=True),)
#: The bound over all chunkings, in the time left after the search.
LAST_BOUND = Turn(OwnProposer("bound over all chunkings", _bound_in_rest), _may_be_finer, improves=True)
#: Proposers in other chunks than the search's, even if its schedule is optimal for these.
LAST_OF_OTHERS: tuple[Turn, ...] = (
    Turn(OwnProposer("nearby chunks", offer_nearby), _may_merge, improves=True),
    Turn(OwnProposer("exchange in finer chunks", _exchange_finer, sums_anywhere), _may_merge, improves=True),
    Turn(OwnProposer("merged messages", offer_merged, gathers_or_scatters), _may_merge, improves=True),
    Turn(OwnProposer("ruin and recreate in finer chunks", _ruin_finer), _may_merge, improves=True),
    LAST_BOUND,
)
#: Proposers that use the time left after the search.
LAST: tuple[Turn, ...] = (
    Turn(OwnProposer("other baselines", _last_baselines), competes, improves=True),
    Turn(OwnProposer("baselines in finer chunks", _finer_last), _may_be_finer, improves=True),
    Turn(OwnProposer("earliest baseline in finer chunks", _finer_still), _may_be_finer, improves=True),
    *LAST_OF_OTHERS,
)
#: The proposers for a whole problem, in order. Phases of a reduction are searched by `stages.STAGES`.
PROPOSERS: tuple[Turn, ...] = (
    Turn(OwnProposer("registered", _offer_registered), _is_free),
    Turn(
        OwnProposer("dimension-balanced", _balanced),
        lambda search: search.backend == BALANCED,
        runs_late=True,
    ),
    Turn(
        OwnProposer("suggested sketches", search_guided),
        lambda search: search.backend != BALANCED and _may_guide(search),
        _no_time_for_sketches,
        runs_late=True,
    ),
    Turn(OwnProposer("search", search_plain), _is_plain, runs_late=True),
    Turn(OwnProposer("baselines", offer_made), competes, runs_late=True),
    Turn(
        OwnProposer("balanced over dimensions", offer_balanced),
        competes,
        reserve_s=_balanced_s,
        runs_late=True,
    ),
    Turn(OwnProposer("exchange", offer_optimal_exchange, sums_anywhere), _is_free, improves=True),
    Turn(
        OwnProposer("ruin and recreate", ruin_and_recreate, suits_improvement),
        _is_free,
        too_short,
        _improving_s,
        improves=True,
    ),
    Turn(
        OwnProposer("exchange", offer_exchanged, sums_anywhere),
        lambda search: search.backend == "auto",
        reserve_s=lambda search: exchange_s(search.problem, search.deadline.left_s),
        runs_late=True,
    ),
)


#: Proposers that improve an existing schedule.
IMPROVERS: tuple[Turn, ...] = tuple(
    replace(each, reserve_s=nothing)
    for each in PROPOSERS
    if each.proposer.name in ("exchange", "ruin and recreate")
)


def propose_first(search: Search) -> None:
    """Run the proposers before the search: baselines, then a bound and spanning trees.

    On a busy machine, baselines may exceed the time limit (`_most_late_s`). They get the CPU time that the
    limit allows on an idle machine. A delayed start of the program counts (`Options.delay_s`).
    """
    options = search.options
    limit_s = options.ends_s - options.began_s
    late_s = min(_most_late_s(search), busy_factor() * (limit_s + options.delay_s) - limit_s)
    with search.postponed(late_s):
        run(search, FIRST)
    for other in search.others:  # made under the postponed deadline
        other.deadline = replace(other.deadline, at_s=min(other.deadline.at_s, search.deadline.at_s))
    run(search, SECOND)


def last_turns(whole: Search) -> tuple[Turn, ...]:
    """Proposers after the search: `LAST`, or `LAST_OF_OTHERS` if no baseline can finish earlier.

    A schedule that meets the bound for its chunks is the earliest in these, and others may merge messages.
    """
    if not any(each.stopped == BOUND_MET for each in whole.others):
        return LAST
    return LAST if whole.is_open and not _is_earliest(whole, whole.earliest_us) else LAST_OF_OTHERS


def _is_earliest(whole: Search, finish_us: float) -> bool:
    """True if no schedule in any chunks is earlier, but for rounding to whole bytes, by the known bound."""
    every = known_bound_over_all_chunkings(no_bound(whole.problem))
    return every is not None and finish_us <= (1 + ROUNDED) * every.bound_us


def propose_all(search: Search, whole: Search) -> None:
    """Run `THIRD` on the whole problem, and `PROPOSERS` on the problem in the chosen number of chunks."""
    if any(each.is_meant(whole) for each in THIRD):
        look_for_bound(search)
        offer_proven(search)
        found_us = [search.best_us, *(each.schedule.finish_us for each in search.proposals)]
        if not _is_earliest(whole, min(filter(None, found_us), default=math.inf)):
            run(whole, THIRD)
    run(search, PROPOSERS)
