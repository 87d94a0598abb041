"""Transforms of a whole problem: from the problem that was asked to its search, and back to the result."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from taccl._internal.deadline import Deadline
from taccl._internal.units import format_us
from taccl.analysis.certificates.certificate import InNetworkGrant
from taccl.analysis.certificates.scopes import share_bound_of_every_cut
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.synthesis.bounding import bound_within
from taccl.synthesis.checking import check_options
from taccl.synthesis.ending import result_of
from taccl.synthesis.options import Options
from taccl.synthesis.proposers.balanced import BALANCED, cut_balanced
from taccl.synthesis.result import GAP_MET, Result
from taccl.synthesis.search import Search
from taccl.synthesis.transforms.requirements import ReleaseDates
from taccl.synthesis.transforms.switches import PlainLinks
from taccl.synthesis.transforms.transform import Transform
from taccl.synthesis.warm_start import GIVEN


def transformed(
    problem: Problem, options: Options, limit: Deadline
) -> tuple[Search, list[Transform[Problem, Schedule]]]:
    """Remove release dates and in-network reduction from a problem, and set up the search of the rest.

    Returns the search, and the transforms that were applied, which `inverted` undoes. With transforms, the
    search keeps the transfers of its schedules in memory, since inverting needs them.
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
        links = None  # the result must not use switches, so the problem without them is the problem asked
    if links is not None:
        transforms.append(links)
        options = replace(options, keep="schedule", spill_dir=None)
    if transforms:  # gap and start refer to the untransformed problem
        options.observer.until_gap, options = None, replace(options, start=None)
    whole = Search(replace(plain, chunks_open=False), options, limit, asked=plain, made_by=links)
    names = [each.name for each in transforms] + [BALANCED] * (options.backend == BALANCED)
    if names:
        whole.record("transforms", "taccl", "done", options.began_s, message=", ".join(names))
    return whole, transforms


def inverted(
    best: Search, whole: Search, transforms: Sequence[Transform[Problem, Schedule]], options: Options
) -> Result:
    """The result for the problem that was asked: the best schedule, transformed back, bound and verified."""
    choice = _choice(best, whole)
    if any(isinstance(each, ReleaseDates) for each in transforms):  # re-timing needs all sends
        options = replace(options, keep="schedule", spill_dir=None, to_file=False)
    if not best.choice:  # found by a baseline
        best.ran_out |= whole.ran_out
        best.notes = [*whole.notes, *(note for each in whole.others if each.choice for note in each.notes)]
    roots = [] if best is whole or best.made_by is None else [best.made_by]
    applied = [*roots, *reversed(transforms)]
    if not (best.made_by or best.is_aggregated):  # same data, in a chunking of its own
        share_bound_of_every_cut(best.problem, whole.problem)
    last = best
    if applied:
        since, schedule = time.monotonic(), best.best
        assert schedule is not None, "there is a schedule"
        for transform in applied:
            schedule = transform.invert([schedule])
            choice += transform.told
        start = options.start  # the search of the transformed problem could not start from it
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
        last.look_for_bound()
        return result_of(last, choice)
    except KeyboardInterrupt:  # during verification
        last.interrupt()
        return result_of(last, choice)


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
        if whole.deadline.cancellation.why == GAP_MET:
            return "the first schedule; its gap meets the requested one"
        return "the first schedule, as no other was found in time"
    return f"{made[0]}; a baseline with other chunks finishes sooner"
