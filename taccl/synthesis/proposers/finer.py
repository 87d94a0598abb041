"""Problems in finer chunks, and baselines in finer chunks than the search uses, if they finish sooner."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial

from taccl._internal.caching import cached
from taccl._internal.deadline import Deadline, OutOfTime, busy_factor
from taccl._internal.units import format_count, format_s
from taccl.analysis.verification.verify import verify
from taccl.baselines import baseline
from taccl.baselines.buckets import passes
from taccl.baselines.chunking import (
    MANY_CUT,
    are_pairs,
    cut_chunks,
    finest,
    may_merge,
    merging,
    soonest_so_far,
    sums_everywhere,
)
from taccl.baselines.hierarchical import dimensions_of
from taccl.baselines.hubs import hub_sends
from taccl.baselines.rails import estimated_us
from taccl.baselines.table import BASELINES, TABLE, row_of, soonest_us
from taccl.baselines.tree_mixes import MOST_TRANSFERS, soonest_plan
from taccl.errors import CollectiveError, InputError
from taccl.problem.chunks import RankSets
from taccl.problem.making import by_default, make_problem
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.synthesis.bounding import look_for_bound_over_all_chunkings
from taccl.synthesis.proposers.balanced import balanced_schedule, cut_balanced
from taccl.synthesis.proposers.baseline_proposals import (
    MOST_FIRST_SHARE,
    for_baselines_s,
    is_small,
    left_out,
    made_of,
    offer_first,
    preferred,
    tried_finer,
)
from taccl.synthesis.search import Search
from taccl.topology.recognise import grid_of
from taccl.topology.topology import Topology

#: Share of the time to spend on baselines in finer chunks before the search.
_CUT_SHARE = 0.25
#: CPU seconds to cut the data of one rank, even if time is up: whole, it takes many times as long to send.
_LEAST_CUT_S = 0.3
#: `_HUBS_S_PER_TRANSFER`: CPU seconds per transfer to build and verify an allreduce by hubs.
#: `_MIX_SHARE`: share of the time left for mixes of trees on meshes, where they usually finish first.
#: `_REST_SHARE`: max share of the time for hubs that is kept to build the chosen plan.
#: `_BUILD_SHARE`: share of the kept time that building should take; less than 1, as loads of machines vary.
_HUBS_S_PER_TRANSFER, _MIX_SHARE, _REST_SHARE, _BUILD_SHARE = 2.5e-6, 0.85, 0.25, 0.6

#: `_CUT_TRANSFERS`: max transfers of a baseline that is tried in finer chunks, as many as recursive doubling
#: of 64 chunks on 64 ranks has.
#: `_MERGED_TRANSFERS`: max transfers of a baseline that usually gains, if messages may merge (0.1 s of CPU).
_CUT_TRANSFERS, _MERGED_TRANSFERS = 64 * 64 * 6, 100_000

#: `_CUT_VERIFY_S`: min seconds allowed to verify a baseline in finer chunks, even past the deadline.
#: `_VERIFY_TRANSFER_S`: CPU seconds per transfer to verify a baseline in finer chunks.
#: This includes the extra work for merged transfers and listed contributions, of which they have many.
_CUT_VERIFY_S, _VERIFY_TRANSFER_S = 0.5, 2e-5

#: `_AGAIN_S_PER_TRANSFER`: CPU seconds per transfer to build and verify the earliest baseline in more chunks.
#: `_AGAIN_PAYS`: max ratio of its finish to that in half as many chunks, to cut these again.
#: `_AGAIN_GAP`: max gap over all chunkings at which chunks stay as they are.
#: `_AGAIN_TRANSFERS`: max transfers in finer chunks.
_AGAIN_S_PER_TRANSFER, _AGAIN_PAYS, _AGAIN_GAP, _AGAIN_TRANSFERS = 4e-5, 0.995, 0.002, 100_000


def offer_hubs(search: Search) -> Search | None:
    """Propose an allreduce by hubs on a torus or mesh, with merged sends, if its estimate is the earliest.

    `offer_cut` builds it only after many other forms of the bucket algorithm, and not on large tori. Returns
    the search that holds the schedule; None if there is none, or if time is short.
    """
    problem, since, dims = _opened(search.problem), time.monotonic(), grid_of(search.problem.topology)
    if dims is None or not (may_merge(problem) and sums_everywhere(problem)):
        return None
    plan, share = None, search.parameters.portfolio.best_share
    if any(each.kind == "line" for each in dims):
        share = max(share, _MIX_SHARE)
    until = search.deadline.sooner(for_baselines_s(search.deadline, share))
    s_per_transfer = busy_factor() * _HUBS_S_PER_TRANSFER / _BUILD_SHARE
    rest_s = min(_REST_SHARE * until.left_s, MOST_TRANSFERS * s_per_transfer)
    with suppress(OutOfTime), until.enforced():
        plan = soonest_plan(
            problem,
            dims,
            until=until.sooner(until.left_s - rest_s),
            most_transfers=rest_s / s_per_transfer,
        )
    if plan is None and until.has_passed:
        search.record("baselines", "taccl", "skipped", since, message="hubs: no plan in time")
        return None
    until = search.deadline.sooner(for_baselines_s(search.deadline, share))
    if plan is None or plan.estimated_us(problem) >= search.earliest_us:
        return None
    parts = plan.parts_per_chunk(problem)
    takes_s = busy_factor() * _HUBS_S_PER_TRANSFER * parts * plan.num_transfers(problem)
    if parts > min(problem.chunk_bytes):
        return None
    if takes_s > until.left_s:
        said = f"hubs: takes about {format_s(takes_s)}, and {format_s(until.left_s)} are left for it"
        search.record("baselines", "taccl", "skipped", since, message=said)
        return None
    made = None
    with suppress(InputError, OutOfTime), until.enforced():
        finer = merging(cut_chunks(problem, parts) if parts > 1 else problem)
        found = hub_sends(finer, plan).schedule(finer, producer=f"bucket (hubs: {plan})")
        made = search_for(search, found) if found.finish_us < search.earliest_us else None
    said = "hubs: none better" if made is None else f"hubs: {plan}"
    finish_us = search.best_us if made is None else made.best_us
    search.record("baselines", "taccl", "done", since, finish_us=finish_us, message=said)
    return made


def prefers_passes(problem: Problem) -> bool:
    """True if the bucket algorithm usually is the first baseline to finish, and may support the problem."""
    if grid_of(problem.topology) is None:
        return False
    return are_pairs(problem) or (not is_at_one_rank(problem) and preferred(problem)[0] == "bucket")


def offer_passes(search: Search) -> Search | None:
    """Propose the bucket algorithm in finer chunks with merged sends.

    In whole chunks without merging, as among the first baselines, it takes up to three times as long. Returns
    the search that holds the schedule; None if it is not earlier.
    """
    problem, since = _opened(search.problem), time.monotonic()
    if not may_merge(problem):
        return None
    portfolio, budget = search.parameters.portfolio, search.parameters.budget
    until = search.deadline.sooner(for_baselines_s(search.deadline, portfolio.best_share))
    late, made = search.deadline.later(budget.late_s * busy_factor()), None

    def may_end() -> bool:
        return search.has_found or bool(soonest_so_far(problem)) or late.has_passed

    with suppress(InputError, OutOfTime):
        with suppress(OutOfTime), until.enforced(may_end):
            try:
                passes(problem, cut=True)
            except CollectiveError:  # chunks for some of the ranks
                return None
        found = next(iter(soonest_so_far(problem)), None)
        if found is not None and found.finish_us < search.earliest_us:
            with until.at_least(_verify_s(found)).enforced():
                made = search_for(search, found)
    said = "none better" if made is None or made.best is None else made.best.producer
    finish_us = search.best_us if made is None else made.best_us
    message = f"in finer chunks, first: {said}"
    search.record("baselines", "taccl", "done", since, finish_us=finish_us, message=message)
    return made


def _verify_s(found: Schedule) -> float:
    """Seconds allowed to verify a baseline in finer chunks, even past the deadline."""
    return max(_CUT_VERIFY_S, busy_factor() * _VERIFY_TRANSFER_S * found.num_transfers)


def offer_cut(search: Search, until: Deadline) -> Search | None:
    """Propose baselines of few transfers in finer chunks; returns the search that holds the best schedule.

    Returns None if no baseline is better. Baselines that fit into the time left come first, and
    among these the ones that usually gain by finer chunks. At ties, the earliest possible finish decides.
    Baselines that cannot finish sooner than the incumbent are skipped.
    """
    if not search.has_found:
        return None
    problem, since, finish_us = search.problem, time.monotonic(), search.earliest_us
    best: Search | None = None
    open_problem = _opened(problem)  # with an open number of chunks, messages may merge
    producer, tried = "", tried_finer(problem)
    # Each cut has twice as many transfers as the one before, so all cuts take twice as long as the last one.
    most_s, factor = until.left_s / busy_factor(), 2 * MANY_CUT / 10_000
    kind = "root" if is_at_one_rank(problem) else "all"
    usual = {name for name, row in TABLE.items() if row.finer_chunks in (kind, "both")}
    most = _MERGED_TRANSFERS if may_merge(open_problem) else _CUT_TRANSFERS
    few = [
        (
            # Data of one rank is first cut coarsely, so that some schedule is complete in time.
            factor * row_of(name).build_s > most_s and not (kind == "root" and name in usual),
            name not in usual,
            # A whole chunk of one rank takes one of many paths, unlike finer ones.
            0.0 if kind == "root" and name in usual else soonest_us(name, whole),
            name,
        )
        for name, whole in made_of(problem).items()
        if name not in tried and whole.num_transfers <= (most if name in usual else _CUT_TRANSFERS)
    ]
    late: list[str] = []
    for _, _, least_us, name in sorted(few):
        if least_us >= finish_us:
            continue
        if until.has_passed:
            late.append(name)
            continue
        found = None
        limit = until.at_least(busy_factor() * _LEAST_CUT_S) if kind == "root" and best is None else until
        soon = replace(limit, at_s=min(limit.at_s, search.options.ends_s))
        is_over = partial(_is_as_estimated, open_problem, estimated_us(open_problem), limit)
        with suppress(InputError, OutOfTime), search.kept_at_ctrl_c(lambda: best), soon.enforced(is_over):
            found = baseline(name, open_problem)
            tried.add(name)
        if found is None:  # time was up: take the best complete schedule
            found = next(iter(soonest_so_far(open_problem)), None)
        if found is None or found.finish_us >= finish_us:
            continue
        with suppress(InputError, OutOfTime), until.at_least(_verify_s(found)).enforced():
            finer = search_for(search, found)
            if finer is not None:
                best, finish_us, producer = finer, found.finish_us, found.producer
    message = f"in finer chunks: {producer or 'none better'}{left_out(search, late)}"
    search.record("baselines", "taccl", "done", since, finish_us=finish_us, message=message)
    return best


def offer_cut_first(search: Search) -> Search | None:
    """Propose baselines in finer chunks before the search, in a share of the time."""
    most = 1.0 if search.baselines_take_all else MOST_FIRST_SHARE
    limit_s = for_baselines_s(search.deadline, _CUT_SHARE, most)
    return offer_cut(search, search.deadline.sooner(limit_s))


def is_large_on_grid(problem: Problem) -> bool:
    """True if the bucket algorithm usually finishes first, and latency does not limit."""
    return prefers_passes(problem) and not is_small(problem)


def is_hypercube(topology: Topology) -> bool:
    """True for a grid whose dimensions all have two ranks."""
    dims = grid_of(topology)
    return dims is not None and all(each.size == 2 for each in dims)


def offer_usual_on_grid(search: Search) -> Search | None:
    """Propose the baseline in finer chunks that often finishes first with large data, besides `bucket`.

    On hypercubes that is recursive halving and doubling, elsewhere the dimension-balanced one.
    """
    offer_first(search, ["recursive" if is_hypercube(search.problem.topology) else "dimension-balanced"])
    return offer_cut_first(search)


def _is_as_estimated(problem: Problem, estimate_us: float, limit: Deadline) -> bool:
    """True if baselines have completed a schedule as early as estimated, or a limit has passed."""
    found = soonest_so_far(problem)
    return limit.has_passed or (bool(found) and found[0].finish_us <= estimate_us < math.inf)


def offer_cut_again(search: Search, until: Deadline) -> Search | None:
    """Propose the earliest baseline in twice as many chunks, again and again while that pays.

    A baseline ends its own cuts if the next one gains little or takes long, to leave time for the search.
    Returns the search that holds the schedule; None if it is not earlier, or if no baseline is the earliest.
    """
    problem, since, found = _opened(search.problem), time.monotonic(), search.earliest_search.best
    best: Search | None = None
    made = [
        (name, each is not problem)
        for each in (problem, merging(problem))
        for name, cut in finest(each).items()
        if found is not None and name in BASELINES and cut.finish == found.finish
    ]
    every = look_for_bound_over_all_chunkings(search) if made else None
    if found is None or every is None or found.finish <= (1 + _AGAIN_GAP) * every.bound:
        return None
    name, merges = made[0]
    while True:
        parts = 2 * found.problem.collective.chunks_per_rank // problem.collective.chunks_per_rank
        num_transfers, again = 2 * found.num_transfers, None
        takes_s = busy_factor() * _AGAIN_S_PER_TRANSFER * num_transfers
        is_long = num_transfers > _AGAIN_TRANSFERS or takes_s > until.left_s
        if is_long or parts > min(problem.chunk_bytes):
            break
        with suppress(InputError, OutOfTime), search.kept_at_ctrl_c(lambda: best), until.enforced():
            finer = cut_chunks(problem, parts)
            again = baseline(name, merging(finer) if merges else finer, cut=False)
            if again.finish < found.finish:
                best = search_for(search, again) or best
        if again is None or again.finish_us > _AGAIN_PAYS * found.finish_us:
            break
        found = again
    said = "none better" if best is None else f"{name} in {best.problem.collective.chunks_per_rank} per rank"
    finish_us, message = (best or search.earliest_search).best_us, f"in finer chunks: {said}"
    search.record("baselines", "taccl", "done", since, finish_us=finish_us, message=message)
    return best


def is_product(problem: Problem) -> bool:
    """True for a complete collective on a product of several dimensions, such as switches and rings.

    False for machines of several nodes, and for tori and meshes, where other baselines usually finish first.
    """
    collective, topology = problem.collective, problem.topology
    if collective.groups or topology.num_nodes > 1 or grid_of(topology) is not None:
        return False
    with suppress(InputError):
        return len(dimensions_of(problem, baseline="dimension-balanced")) > 1
    return False


def offer_balanced_first(search: Search) -> Search | None:
    """Propose schedules that balance the load of the dimensions, of all ranks or of each process group.

    If the number of chunks is open, it is the one with the earliest planned finish. Returns a search that
    holds the schedule in finer chunks. Returns None if the ranks of a group do not span dimensions of their
    own, or if time is short. Returns None also if the number of chunks is given; `search` then has the
    schedule.
    """
    name = "groups over dimensions" if search.problem.collective.groups else "dimensions"
    since, portfolio = time.monotonic(), search.parameters.portfolio
    until = search.deadline.sooner(for_baselines_s(search.deadline, portfolio.best_share))
    problem = replace(search.problem, chunks_open=search.is_open)
    found, made, said = None, None, ""
    # The first attempt is in fewer chunks, so that a schedule exists if the deadline stops the second.
    for most in (portfolio.first_transfers // 2, 2 * portfolio.first_transfers):
        spent_s = time.monotonic() - since
        try:
            with search.kept_at_ctrl_c(lambda: made), until.enforced():
                finer = cut_balanced(problem, policy=search.options.policy, most_transfers=most)
                if found is not None:
                    parts = finer.collective.num_chunks // found.problem.collective.num_chunks
                    if parts == 1 or parts * spent_s > until.left_s:
                        break
                found = balanced_schedule(finer, most_transfers=most, improve=False)
                assert found is not None, "any finish counts"
                if search.is_open:
                    made = search_for(search, found) or made
                else:
                    search.offer_whole(found, producer=found.producer, verified=True)
        except (InputError, OutOfTime) as error:
            said = str(error)
    if found is None:
        search.record(name, "taccl", "no-solution", since, message=said)
        return None
    search.record(name, "taccl", "done", since, finish_us=found.finish_us)
    return made


@cached
def _opened(problem: Problem) -> Problem:
    """The problem with an open number of chunks; each call returns one and the same object with its cache."""
    return replace(problem, chunks_open=True)


def search_for(search: Search, found: Schedule) -> Search | None:
    """Return a new search that holds `found`, a schedule in finer chunks.

    Returns None if this number of chunks is not allowed, or if the cut makes chunks of other sizes. Returns
    None also if `found` is invalid for the problem in finer chunks.
    """
    suggesting = search.parameters.suggesting
    count = found.problem.collective.chunks_per_rank // search.problem.collective.chunks_per_rank
    if suggesting.counts_only and count not in suggesting.counts:
        return None
    finer, clauses = with_note_on_chunks(cut(search.problem, count)), found.problem.clauses
    if clauses.merging - finer.clauses.merging or clauses.max_merge > finer.clauses.max_merge:
        finer = merging(finer)
    if finer.chunk_bytes != found.problem.chunk_bytes:
        return None
    found = found.under(finer)
    if not verify(found).ok:
        return None
    best = search.beside(finer)
    best.offer_whole(found, producer=found.producer, verified=True)
    return best


def is_at_one_rank(problem: Problem) -> bool:
    """True if one rank is the only origin, or the only destination, of all chunks."""
    return any(map(_is_one_rank, (problem.collective.origin_sets, problem.collective.destination_sets)))


def _is_one_rank(ends: RankSets) -> bool:
    """True if `ends`, the origins or the destinations of all chunks, is one and the same rank."""
    return len(ends.sets) == 1 and len(ends.sets[0]) == 1


def cut(problem: Problem, parts: int) -> Problem:
    """The problem with each chunk cut into `parts`, under the same sketch.

    Without a sketch, the default clauses are derived again for the smaller chunks.
    """
    if parts == 1:
        return problem
    default, size_bytes = by_default(problem), problem.size_bytes
    clauses = None if problem.clauses == default.clauses else problem.clauses
    notes = [note for note in problem.notes if note not in default.notes]  # padding notes are made again
    finer = problem.collective.split(parts)
    return make_problem(problem.topology, finer, size_bytes=size_bytes, clauses=clauses, notes=notes)


def with_note_on_chunks(problem: Problem) -> Problem:
    """The problem, with a note on its number of chunks per rank if that is not one."""
    if problem.collective.chunks_per_rank == 1:
        return problem
    cut_into = format_count(problem.collective.chunks_per_rank, "chunk")
    note = f"cut into {cut_into} per rank; chunks_per_rank= (--chunks-per-rank) sets another number"
    return replace(problem, notes=(*problem.notes, note))
