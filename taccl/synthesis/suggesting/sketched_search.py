"""Search under suggested sketches and without, for problems without a sketch; the better schedule is kept.

Every schedule under a sketch is also valid without it. So schedules are compared on the original problem,
whose bound is used. Sketches do not change the number of chunks here.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence

from taccl._internal.deadline import OutOfTime
from taccl._internal.units import format_s
from taccl.analysis.certificates.certificate import Certificate
from taccl.errors import InputError, NoSolutionError
from taccl.problem.problem import Problem
from taccl.synthesis.bounding import look_for_bound
from taccl.synthesis.parameters import DEFAULTS, SearchParameters
from taccl.synthesis.proposers.baseline_proposals import offer_proven
from taccl.synthesis.proposers.compiling import are_kept, have_compiled
from taccl.synthesis.proposers.large import effort, suits
from taccl.synthesis.proposers.large_search import offer_compiled, search_large
from taccl.synthesis.proposers.stages import search_plain
from taccl.synthesis.search import Search
from taccl.synthesis.suggesting.proposals import SketchProposal
from taccl.synthesis.suggesting.suggest import suggest_for

#: `_PLAIN_SHARE`: share of the time for a first schedule without a sketch.
#: `_COLD_SHARE`: share for the first schedule while worker processes compile the kernels of later searches.
#: `_SUGGEST_SHARE`: share of the time for suggestions.
#: `_SKETCH_SHARE`: share of the remaining time for the search under one sketch.
_PLAIN_SHARE, _COLD_SHARE, _SUGGEST_SHARE, _SKETCH_SHARE = 0.1, 0.4, 0.25, 0.7
#: Share of the time for the compiled search before sketches are suggested.
_LARGE_SHARE = 0.5
#: `_S_PER_HOP`: seconds per hop of the first list schedule; with less left, the compiled scheduler runs.
#: `_LEAST_COMPILED_S`: min seconds left for the compiled list scheduler, which needs no quotient, to run.
_S_PER_HOP, _LEAST_COMPILED_S = 1e-4, 1.0


def is_unguided(problem: Problem, parameters: SearchParameters = DEFAULTS) -> bool:
    """True if a problem has no sketch, has sends to make, and enough hops that a sketch may help."""
    suggesting = parameters.suggesting
    is_between = suggesting.few_hops < effort(problem) <= suggesting.most_hops
    return is_between and _is_plain(problem) and not problem.collective.is_met


def _is_plain(problem: Problem) -> bool:
    """True if a problem has no clauses except on merging."""
    return problem.clauses == problem.clauses.only("merge")


def check_proposal(proposal: SketchProposal, problem: Problem) -> None:
    """Raise `InputError` if a proposal is for another problem, or the problem has a sketch."""
    made_for, fault = proposal.problem, ""
    if not _is_plain(problem):
        fault = f", and a problem that has a sketch already, {problem!r}; leave one out"
    fields = {"topology": "topology", "collective": "collective", "chunk_bytes": "chunk sizes"}
    for field, name in fields.items():
        if getattr(made_for, field) != getattr(problem, field) and not fault:
            fault = f" for another problem, {made_for!r}: its {name} differ; suggest one for this"
    if fault:
        raise InputError(f"found a proposal{fault}", where="sketch")


def search_guided(search: Search) -> None:
    """Search under the best suggested or given sketches, and without.

    A large problem without given sketches is first searched without any, for a share of the time.
    """
    begun, problem, proposals = time.monotonic(), search.problem, list(search.proposals)
    is_searched = bool(search.is_large) and not proposals
    if is_searched:
        limit_s = _LARGE_SHARE * search.deadline.left_s
        part = search.part(
            problem, "", search.deadline.sooner(limit_s), serves_above=True, best=search.best,
            is_verified=search.is_verified,
        )  # fmt: skip
        try:
            search_large(part)
        except NoSolutionError:  # more time may suffice
            is_searched = False
        search.bound, search.ran_out = part.bound, part.ran_out
    if not is_searched:
        look_for_bound(search)
    if search.interrupted or offer_proven(search):
        return
    limit_s = search.deadline.left_s
    if not (is_searched or meets_bound(search)):
        _offer_first(search, limit_s)
    tried: list[SketchProposal] = []
    proposals = proposals or _suggested(search, limit_s)
    for i, sketch in enumerate(proposals):
        if search.done or sketch.bound_us >= (search.best_us or math.inf):
            continue
        since = time.monotonic()
        finish_us = search.offer_sketched(sketch.schedule, sketch.sketch.name)  # the proposal's own schedule
        search.record("suggested", "taccl", "done", since, finish_us=finish_us)
        tried.append(sketch)
        if search.is_met:
            break
        # Proposals with the same finish share the time.
        alike = sum(each.finish_us == sketch.finish_us for each in proposals[i:])
        limit_s = _SKETCH_SHARE / alike * search.deadline.left_s
        with contextlib.suppress(NoSolutionError):
            _search_part(search, sketch.problem, limit_s, bound=sketch.bound)
    if search.best is None:
        # The list scheduler is slower than the compiled one, so it is skipped if that one ran out of time.
        search.gives_up |= search.deadline.has_passed and suits(problem)
        search.is_large = None  # `search_plain` decides again, by the time left
        search_plain(search)
    elif not is_searched and not search.done:
        left_s = search.deadline.left_s
        with contextlib.suppress(InputError, NoSolutionError):  # too little memory, or time
            if effort(problem) * _S_PER_HOP <= left_s:
                _search_part(search, problem, left_s)
            else:
                needed_s = effort(problem) * _S_PER_HOP
                said = f"its first schedule takes about {format_s(needed_s)}, and {format_s(left_s)} are left"
                search.record("search", "taccl", "skipped", time.monotonic(), message=said)
                if left_s >= _LEAST_COMPILED_S:
                    offer_compiled(search, budget_s=left_s)
    if tried:
        search.notes.append(_sketches_note(search, tried))
    search.record("sketches", "taccl", "done", begun, finish_us=search.best_us)


def meets_bound(search: Search) -> bool:
    """True if the schedule of a sketch to search under meets the bound of the search."""
    return search.bound is not None and any(
        each.schedule.finish <= search.bound.bound for each in search.proposals
    )


def _search_part(
    search: Search,
    problem: Problem,
    limit_s: float,
    *,
    bound: Certificate | None = None,
    backend: str = "auto",
) -> None:
    """Search a problem for `limit_s` seconds; its schedules are valid for the problem of `search`."""
    prefix, limit = "" if problem is search.problem else "sketch: ", search.deadline.sooner(limit_s)
    fields = {"bound": bound or search.bound, "gives_up": search.best is not None, "backend": backend}
    part = search.part(problem, prefix, limit, serves_above=True, **fields)
    try:
        search_plain(part)
    finally:
        search.ran_out = part.ran_out


def _offer_first(search: Search, limit_s: float) -> None:
    """Propose first schedules without a sketch, in a share of `limit_s` seconds."""
    problem = search.problem
    first_s = (_PLAIN_SHARE if are_kept(problem) else _COLD_SHARE) * limit_s
    if effort(problem) * _S_PER_HOP <= first_s:
        with contextlib.suppress(OutOfTime):  # the compiled list scheduler runs next
            _search_part(search, problem, first_s, backend="greedy")
    if not (search.is_met or search.interrupted) and suits(problem):
        have_compiled(search)  # compile kernels now, as searches under sketches may need them
        offer_compiled(search, budget_s=search.deadline.left_s, num_runs=1)
    if search.best is None:
        offer_compiled(search, budget_s=search.deadline.left_s, num_runs=1)


def _suggested(search: Search, limit_s: float) -> list[SketchProposal]:
    """Suggested sketches for the problem; none if the search is over."""
    if search.is_met or search.interrupted:
        return []
    since, suggesting = time.monotonic(), search.parameters.suggesting
    give_up = search.deadline.sooner(suggesting.give_up_share * limit_s)
    found: list[SketchProposal] = []
    # No sketch can describe some topologies, such as nodes of different sizes: an InputError.
    with contextlib.suppress(InputError, OutOfTime):
        found = suggest_for(
            [search.problem.collective.chunks_per_rank], lambda _: search.problem, search.options,
            most=suggesting.sketches, give_up=give_up,
            time_limit_s=min(suggesting.most_suggest_s, _SUGGEST_SHARE * limit_s),
        )  # fmt: skip
    if found:
        names = ", ".join(sketch.sketch.name for sketch in found)
        search.record("suggest", "taccl", "done", since, finish_us=found[0].finish_us, message=names)
    else:
        why = "no time to try a sketch" if give_up.has_passed else "no sketch suits"
        search.record("suggest", "taccl", "no-solution", since, message=why)
    return found


def _sketches_note(search: Search, tried: Sequence[SketchProposal]) -> str:
    """Note on the sketch that led to the schedule, or on how many were tried, and on how to disable them."""
    producer = "" if search.best is None else search.best.producer
    ahead = next((each for each in tried if producer.endswith(f"sketch {each.sketch.name}")), None)
    off = "sketch='none' (--no-sketch) disables suggestions"
    if ahead is not None:
        return f"suggested sketch {ahead.sketch.name} led to this schedule (see `taccl suggest`); {off}"
    count = "1 suggested sketch" if len(tried) == 1 else f"{len(tried)} suggested sketches"
    return f"tried {count}; none improved the schedule; {off}"
