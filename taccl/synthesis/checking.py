"""Preparation of a search: its options, roots for impossible sums, transforms, and a given first schedule."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from taccl._internal.deadline import Deadline
from taccl._internal.units import format_size
from taccl.analysis.verification.verify import verify
from taccl.errors import InfeasibleError, InputError, SketchError, TopologyError
from taccl.problem.making import make_problem
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.sketch.reachability import check_reachable, is_possible
from taccl.solvers.registry import OWN_BACKENDS, require_known
from taccl.synthesis.options import Options
from taccl.synthesis.proposers.balanced import BALANCED, cut_balanced
from taccl.synthesis.proposers.baseline_proposals import obeying
from taccl.synthesis.proposers.finer import cut
from taccl.synthesis.proposers.large import COMPILED
from taccl.synthesis.search import Search
from taccl.synthesis.suggesting.chunks import cut_as, improved_schedules
from taccl.synthesis.suggesting.sketched_search import check_proposal
from taccl.synthesis.transforms.requirements import OtherRoots, ReleaseDates, Transform
from taccl.synthesis.transforms.switches import PlainLinks
from taccl.topology.topology import Topology

#: `Result.choice` if the result is the given schedule.
GIVEN = "the schedule given to start from"


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


def transformed(problem: Problem, options: Options, limit: Deadline) -> tuple[Search, list[Transform]]:
    """Remove release dates and in-network reduction from a problem, and set up a search on what remains.

    Returns the search, and the transforms that were applied, which `synthesize` inverts. With transforms, the
    search keeps the transfers of its schedules in memory, since inverting needs them.
    """
    since, transforms = time.monotonic(), list[Transform]()
    if (dates := ReleaseDates.apply(problem.in_its_chunks)) is not None:
        problem, transforms = dates.part, [dates]
        options = replace(options, keep="schedule", spill_dir=None, to_file=False)
    check_options(problem, options)
    if options.backend == BALANCED:
        problem = cut_balanced(problem, policy=options.policy)
    links = PlainLinks.apply(problem)
    plain = problem if links is None else links.part
    if links is not None and options.in_network == "off":
        if links.part is problem:
            feasible(problem, max(0.1, limit.left_s))  # explains a problem that has no schedule at all
            said = "found 'off', but no other links join some ranks than those of switches that add"
            raise InputError(f"{said}; expected 'auto' or 'only'", where="in_network")
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


def _restored(transforms: Sequence[Transform], found: Schedule) -> Schedule:
    """The schedule of the given problem, from one of the transformed problem."""
    for each in reversed(transforms):
        found = each.invert(found)
    return found


def checked_start(problem: Problem, start: Schedule) -> Schedule:
    """Return the given schedule as a verified schedule of the problem.

    It keeps its own number of chunks if the problem leaves that open.

    Raises `InputError` if it is of another problem, or the verifier refuses it.
    """
    asked, own = problem.in_its_chunks, start.problem
    for name, found, expected in (
        ("topology", own.topology, asked.topology),
        ("collective", own.collective.name, asked.collective.name),
        ("size", own.size_bytes, asked.size_bytes),
    ):
        if found != expected:
            ours, theirs = _shown(expected), _shown(found)
            other = f"{theirs} under other costs or another protocol" if ours == theirs else theirs
            raise _refused(f"of another {name}, {other}", f"of {ours}")
    if problem.chunks_open and own.collective != asked.collective:
        parts, rest = divmod(own.collective.num_chunks, asked.collective.num_chunks)
        asked = asked if rest else cut(asked, parts)
    if own.collective != asked.collective or own.chunk_bytes != asked.chunk_bytes:
        counts = (each.collective.num_chunks for each in (own, asked))
        raise _refused(f"in other chunks, {next(counts)}", f"in {next(counts)}, or leave chunks_per_rank out")
    merging = {name: getattr(own.clauses, name) for name in ("merging", "max_merge")}
    default = make_problem(asked.topology, asked.collective, chunk_bytes=asked.chunk_bytes).clauses
    # Without a sketch, the given schedule may merge sends on any link, as baselines do.
    allowed = [asked, asked.with_clauses(**merging)] if asked.clauses == default else [asked]
    for each in allowed:
        schedule = start.under(each)
        verification = verify(schedule)
        if verification.ok:
            return schedule
    fault = verification.violations[0].message
    raise _refused(f"that the verifier refuses ({fault})", "that is valid for the problem")


def _shown(value: Topology | str | int | None) -> str:
    return format_size(value) if isinstance(value, int) else str(getattr(value, "name", value))


def _refused(found: str, expected: str) -> InputError:
    return InputError(f"found a schedule {found}; expected one {expected}", where="start")


def begin_with(whole: Search, start: Schedule) -> None:
    """Add a search to ``whole.others`` that holds the given schedule, in its own chunks."""
    given = whole.beside(start.problem, choice=GIVEN)
    given.offer_whole(start, producer="start", verified=True)
    whole.others.append(given)


def continue_from(search: Search, whole: Search) -> None:
    """Start the search from the known schedules with its number of chunks.

    These are the schedules by which the portfolio chose this number, and the given schedule. A large problem
    adds that of the compiled list scheduler, if no baseline is as early. The search that held the given
    schedule is removed from ``whole.others``.
    """
    best = whole.best
    if search.is_large and best is not None and best.producer == COMPILED and best.problem == search.problem:
        search.offer_whole(best, producer=COMPILED, verified=whole.is_verified)
    if search.backend == "auto" and search.options.keeps_sends:
        for each in improved_schedules(search.problem):
            search.offer_whole(each.under(search.problem), producer=each.producer)
    start = search.options.start
    if start is not None and start.problem == search.problem:
        search.offer_whole(start, producer="start", verified=True)
        whole.others = [each for each in whole.others if each.best is not start or each is search]
