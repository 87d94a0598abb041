"""Preparation of a search: check its options, find other roots for impossible sums, transform the problem."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from taccl._internal.deadline import Deadline
from taccl.errors import InfeasibleError, InputError, SketchError, TopologyError
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.sketch.reachability import check_reachable, is_possible
from taccl.solvers.registry import OWN_BACKENDS, require_known
from taccl.synthesis.options import Options
from taccl.synthesis.proposers.balanced import BALANCED, cut_balanced
from taccl.synthesis.proposers.competing import obeying
from taccl.synthesis.search import Search
from taccl.synthesis.suggesting.chunks import cut_as
from taccl.synthesis.suggesting.sketched_search import check_proposal
from taccl.synthesis.transforms.requirements import OtherRoots, ReleaseDates
from taccl.synthesis.transforms.switches import PlainLinks
from taccl.synthesis.transforms.transform import Transform


def check_options(problem: Problem, options: Options) -> None:
    """Raise `InputError` for options that are incompatible with each other or with the problem."""
    backend, sketch = options.backend, options.sketch
    if backend not in OWN_BACKENDS:
        require_known(backend, others=OWN_BACKENDS, where="backend")
    if isinstance(sketch, str):
        if sketch not in ("auto", "none"):
            raise InputError(f"found {sketch!r}; expected 'auto', 'none' or a proposal", where="sketch")
        return
    check_proposal(sketch, cut_as(sketch, problem))
    if backend != "auto" or not options.keeps_sends:
        raise InputError(
            "found a proposal, which guides only the portfolio; leave it out, or give backend='auto' "
            "without keep='summary' (--summary) and spill_dir= (--spill)",
            where="sketch",
        )


def feasible(problem: Problem, time_limit_s: float) -> tuple[OtherRoots | None, Schedule | None]:
    """Check that a schedule exists; return (other roots for its sums, schedule without sums), or Nones.

    If contributions cannot reach a root, the transform moves sums to other roots. If no rank can make a sum,
    the schedule sends unreduced contributions. Otherwise both are None. Raises `InfeasibleError`, with the
    clauses that clash, if a sketch keeps a chunk from a destination.
    """
    try:
        check_reachable(problem)
    except (SketchError, TopologyError) as error:
        rooted = OtherRoots.apply(problem)
        one_shot = obeying("one-shot", problem) if rooted is None and is_possible(problem) else None
        if rooted is not None or one_shot is not None:
            return rooted, one_shot
        if isinstance(error, TopologyError):
            raise
        from taccl.synthesis.explaining.explain import infeasible  # seldom needed, and slow to import

        raise infeasible(problem, time_limit_s=time_limit_s) or InfeasibleError(str(error)) from None
    return None, None


def transformed(
    problem: Problem, options: Options, limit: Deadline
) -> tuple[Search, list[Transform[Problem, Schedule]]]:
    """Remove release dates and in-network reduction from a problem, and set up a search on what remains.

    Returns the search, and the transforms that were applied, which `synthesize` inverts. With transforms, the
    search keeps the transfers of its schedules in memory, since inverting needs them.
    """
    since, transforms = time.monotonic(), list[Transform[Problem, Schedule]]()
    if (dates := ReleaseDates.apply(problem.in_its_chunks)) is not None:
        (problem,), transforms = dates.parts, [dates]
        options = replace(options, keep="schedule", spill_dir=None, to_file=False)
    check_options(problem, options)
    if options.backend == BALANCED:
        problem = cut_balanced(problem, policy=options.policy)
    links = PlainLinks.apply(problem)
    plain = problem if links is None else links.parts[0]
    if links is not None and options.in_network == "off":
        links = None  # the result must not use switches, so keep the problem without them
    if links is not None:
        transforms.append(links)
        options = replace(options, keep="schedule", spill_dir=None)
    if transforms:
        observer, options = options.observer, replace(options, start=None)
        observer.rules = tuple(rule for rule in observer.rules if not rule.for_asked)
    if dates is not None:
        options.observer.restored = partial(_restored, transforms)
    whole = Search(replace(plain, chunks_open=False), options, limit, asked=plain, made_by=links)
    names = [each.name for each in transforms] + [BALANCED] * (options.backend == BALANCED)
    if names:
        whole.record("transforms", "taccl", "done", since, message=", ".join(names))
    return whole, transforms


def _restored(transforms: Sequence[Transform[Problem, Schedule]], found: Schedule) -> Schedule:
    """The schedule of the given problem, from one of the transformed problem."""
    for each in reversed(transforms):
        found = each.invert([found])
    return found
