"""Sums of some ranks along trees by a linear program, list-scheduled, then improved by ruin and recreate.

Spanning trees (`trees.py`) serve sums that all ranks share. Here, sums are of process groups, of workers and
servers, or of any other ranks, and the remaining ranks may relay (`taccl.synthesis.trees.priced`). Chunks are
numerous enough to follow the shares of the program, and few enough for ruin and recreate.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from taccl._internal.deadline import OutOfTime
from taccl._internal.units import format_count
from taccl.errors import InputError
from taccl.problem.costs import wide_links
from taccl.schedule.listing import listed
from taccl.schedule.timing import exact_times
from taccl.synthesis.improve.improvement import improve_schedule, suits_improvement
from taccl.synthesis.kernels.limits import Limits
from taccl.synthesis.proposers.compiling import have_compiled
from taccl.synthesis.proposers.finer import cut, search_for
from taccl.synthesis.trees.priced import TreeShares, kinds_of, rounded, tree_shares
from taccl.synthesis.trees.roots import has_free_roots

if TYPE_CHECKING:
    from taccl.problem.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.synthesis.search import Search

#: `_MOST_RANKS`, `_MOST_RESOURCES`, `_MOST_KINDS`: max sizes of the linear program (about 0.3 s of CPU).
_MOST_RANKS, _MOST_RESOURCES, _MOST_KINDS = 64, 1_500, 64
#: `_PARTS`: numbers of parts of each chunk, if the number of chunks is open.
#: `_MOST_SENDS`: max sends of a schedule (0.15 s of CPU to list-schedule).
_PARTS, _MOST_SENDS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64), 3_000
#: (number of schedules that are improved, turns of ruin and recreate on each): those that finish first.
_ROUNDS = (6, 1_000), (3, 4_000), (1, 40_000)
#: Share of the time left for these schedules.
_SHARE = 0.4


def sums_of_some(problem: Problem) -> bool:
    """True for sums that not all ranks share or that servers update, if the linear program suits them.

    Throughput rather than latency must limit them, and the sketch may only restrict links.
    """
    collective, topology, costs = problem.collective, problem.topology, problem.costs
    plain = replace(problem.clauses, links_allowed=None)
    if not collective.sums_up or collective.stays_at_roots or collective.is_met or has_free_roots(problem):
        return False
    if topology.num_ranks > _MOST_RANKS or len(topology.resources) > _MOST_RESOURCES:
        return False
    is_long = costs.link_beta * int(costs.chunk_units.max(initial=0)) > costs.link_alpha
    return (
        plain == plain.only("merge")
        and bool(is_long.any())
        and not len(wide_links(topology))
        and suits_improvement(problem)
        and len(kinds_of(problem)) <= _MOST_KINDS
    )


def offer_priced_trees(search: Search) -> Search | None:
    """Propose sums along trees of a linear program, in several numbers of chunks if that number is open.

    Returns a search that holds the schedule, if that is in finer chunks.
    """
    since, problem = time.monotonic(), search.problem
    if search.is_proven:
        return None
    until = search.deadline.sooner(_SHARE * search.deadline.left_s)
    made: list[Schedule] = []
    with suppress(InputError, OutOfTime), until.enforced():
        shares = tree_shares(problem, lambda: until.has_passed)
        if shares is None or shares.busy_ticks / problem.costs.ticks_per_us >= search.earliest_us:
            return None
        for parts in _PARTS if search.is_open else (1,):
            finer = cut(problem, parts) if parts <= min(problem.chunk_bytes) else None
            found = None if finer is None or not suits_improvement(finer) else along(finer, shares)
            if found is None:
                break
            made.append(found)
    made.sort(key=_finish)
    better, said = None, "none better"
    if made and have_compiled(search):
        found = _improved(made, Limits(until, seed=search.options.seed, parameters=search.parameters))
        if found.finish_us < search.earliest_us:
            said = f"sums along trees of a linear program, {format_count(len(found), 'transfer')}"
            if found.problem is problem:
                search.offer_whole(found, producer=found.producer, proposed=True)
            else:
                better = search_for(search, found)
    search.record("priced trees", "compiled", "done", since, finish_us=search.earliest_us, message=said)
    return better


def _improved(made: list[Schedule], limits: Limits) -> Schedule:
    """The earliest of the schedules after rounds of ruin and recreate, each on the best of the one before."""
    for number, turns in _ROUNDS:
        if not limits.deadline.has_passed:
            made = [improve_schedule(each, limits, turns=turns)[0] for each in made[:number]]
            made.sort(key=_finish)
    return made[0]


def _finish(schedule: Schedule) -> Fraction:
    return schedule.finish


def along(problem: Problem, shares: TreeShares) -> Schedule | None:
    """List schedule of sums along pairs of trees by their shares; None if it has too many sends.

    - `problem`: The problem of the shares, with each chunk cut into equal parts.
    """
    rows: list[tuple[int, int, int, int, bool]] = []
    for chunk, number in enumerate(rounded(shares, problem)):
        pair = shares.pairs[number]
        rows += [(0, place, chunk, link, True) for place, link in enumerate(pair.inward)]
        rows += [(1, place, chunk, link, False) for place, link in enumerate(pair.outward)]
    if not 0 < len(rows) <= _MOST_SENDS:
        return None
    _, _, chunks, links, reduce = zip(*sorted(rows), strict=True)
    found = exact_times(
        problem, chunk=chunks, link=links, reduce=reduce, sequence=range(len(rows)), producer="priced trees"
    )
    return listed(found, longest_first=True)
