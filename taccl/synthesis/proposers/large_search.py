"""Compiled search of problems too large for MILP: first a schedule, then a bound, then better schedules.

Memory is checked before any work. The first run returns a schedule as soon as possible. Then the bound is
computed. Then other rules and seeds are tried, while there is a gap, time and memory. Each run is stopped
early enough for its schedule to be verified.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from taccl._internal.deadline import Deadline, OutOfTime
from taccl._internal.units import format_about, format_s
from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.certificate import Certificate
from taccl.analysis.verification.verify import verify
from taccl.errors import NoSolutionError, SketchError, TopologyError
from taccl.problem.costs import wide_links
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.schedule.spill import check_folder
from taccl.sketch.reachability import check_reachable
from taccl.synthesis.memory import check_memory, memory_need
from taccl.synthesis.proposers.compiling import have_compiled, why_left_out
from taccl.synthesis.proposers.large import COMPILED, effort, schedule_large, suits
from taccl.synthesis.proposers.queues import VERIFY_US_PER_TRANSFER
from taccl.synthesis.search import Search

#: `_BOUND_SHARE`: share of the time left for the second, better bound.
#: `_LEAST_BOUND_S`: min seconds for the first bound.
#: `_MORE_BOUND_TIMES`: min time left for the second bound, as a multiple of the time that the first one took.
_BOUND_SHARE, _LEAST_BOUND_S, _MORE_BOUND_TIMES = 0.8, 0.25, 3.0
#: With at least this many ranks, the result waits for its first bound, however long that takes.
_PATIENT_RANKS = 1_000
#: `_VERIFY_SHARE`: max share of the time left for verification.
#: `_BRIEF_S`: seconds of verification that are always allowed.
_VERIFY_SHARE, _BRIEF_S = 0.5, 0.5
#: `_SHORT_S`: limit in seconds below which the size alone decides how the first schedule orders its sends.
#: `_ORDER_SHARE`: max share of the limit for that. On two cores beside four busy processes, a command takes
#: about 3.5 s for each second of CPU; loading, paths and verification need twice the time of the order.
_SHORT_S, _ORDER_SHARE = 10.0, 0.13


def search_large(search: Search) -> None:
    """Search by the compiled list schedulers alone; the schedule that is kept is verified.

    Raises `InputError` if there is not enough memory, or if the spill folder cannot be used;
    `NoSolutionError` or `KeyboardInterrupt` if there was no schedule by the deadline, or at Ctrl-C.
    """
    problem, options = search.problem, search.options
    if options.spill_dir is not None:
        columns = memory_need(problem).columns
        check_folder(options.spill_dir, num_bytes=(4 if problem.collective.combining else 3) * columns)
        options.spill_dir.mkdir(exist_ok=True)
    most_runs = check_memory(problem, options)
    runs = _Runs(search)
    if not have_compiled(search):
        raise NoSolutionError(f"{problem.title}: {why_left_out(problem)}", bound_us=search.bound_us)
    if search.best is None:
        runs.run("first rule", num_runs=1)
    runs.prove()
    if most_runs is None and not search.done:
        runs.run("other rules and seeds", num_runs=None)


def offer_compiled(
    search: Search, *, budget_s: float, num_runs: int | None = None, late_s: float | None = None
) -> None:
    """Propose the compiled list scheduler's schedule of the whole problem, without symmetry reduction.

    It is skipped for problems with unsupported features. Hyperedges (multicast and reduction links), which it
    does not support, are left out of the problem first.

    - `budget_s`: Seconds after which no further run starts.
    - `num_runs`: Max runs; None for each rule once.
    - `late_s`: Seconds past the deadline for a first schedule; None for a short grace period.
    """
    problem = search.problem
    is_first = search.best is None and not search.gives_up
    if (search.done and not is_first) or not (suits(problem) or suits(problem := _single_ended(problem))):
        return
    until = Deadline.after(budget_s)
    if not have_compiled(search):
        return
    since, deadline, budget_s = time.monotonic(), search.deadline.at_least(0.0), until.left_s
    if is_first:
        deadline = search.patience.later(search.parameters.large.grace_s if late_s is None else late_s)
        if num_runs == 1:  # the first run may take all the time
            budget_s = max(budget_s, search.deadline.left_s)
    seed, order_s = search.options.seed, _first_order_s(search) if is_first else math.inf
    try:
        found = _found(
            search, problem, deadline, time_limit_s=budget_s, seed=seed, num_runs=num_runs, order_s=order_s
        )
    except OutOfTime:
        search.record("greedy", "compiled", "no-solution", since, message="no schedule in time")
        return
    is_better = search.best is None or found.finish_ticks < search.best.finish_ticks
    # A schedule of unmerged sends is verified now, which takes a tenth of the time for merged ones.
    is_known = found.kept.group is None and problem is search.problem and is_better
    if is_known:
        verify(found).raise_if_failed()
    whole = found if problem is search.problem else found.under(search.problem)
    finish = search.offer_whole(whole, producer=COMPILED, verified=is_known)
    search.record("greedy", "compiled", "done", since, finish_us=finish)


def _first_order_s(search: Search) -> float:
    """Max estimated CPU seconds to order the sends of a first schedule.

    The limit and the size decide, not the time left, so that a busy machine finds the same schedule. Long
    limits have time for other orders.
    """
    options = search.options
    limit_s = options.ends_s - options.began_s + options.delay_s
    return _ORDER_SHARE * limit_s if limit_s < _SHORT_S else math.inf


def _found(
    search: Search,
    problem: Problem,
    deadline: Deadline,
    tell: Callable[[float, str, float | None], None] | None = None,
    **options: Any,
) -> Schedule:
    """Schedule of the compiled list scheduler; raises `OutOfTime` if there is none in time."""
    search.report(COMPILED)
    options |= {"target_ticks": search.bound_ticks, "merges": search.options.keeps_sends}
    schedule = partial(schedule_large, problem, deadline=deadline, parameters=search.parameters, **options)
    return deadline.run(schedule, tell=tell)


def _single_ended(problem: Problem) -> Problem:
    """The problem without hyperedges (multicast, reduction links); unchanged if a destination needs one."""
    fit = frozenset(problem.links_allowed).difference(wide_links(problem.topology))
    alone = problem.with_clauses(links_allowed=fit)
    try:
        check_reachable(alone)
    except (SketchError, TopologyError):
        return problem
    return alone


class _Runs:
    """Runs of the compiled list scheduler, with the estimated times of a run and of the verifier."""

    def __init__(self, search: Search) -> None:
        self.search, self._large = search, search.parameters.large
        self._verify_s = memory_need(search.problem).num_transfers * VERIFY_US_PER_TRANSFER / 10**6
        self._left_s: float | None = None

    def run(self, what: str, *, num_runs: int | None) -> None:
        """Run the list scheduler; a schedule better than the incumbent is verified and kept."""
        search, since = self.search, time.monotonic()
        left_s = search.deadline.left_s
        deadline = search.deadline.sooner(left_s - min(self._verify_s, _VERIFY_SHARE * left_s))
        if search.best is None:
            deadline = search.patience.later(self._large.grace_s)
        status, seed = "done", search.options.seed + (search.best is not None)
        idle_s = None if search.best is None else search.idle_s
        try:
            found = _found(
                search, search.problem, deadline, partial(self._tell, search.deadline, since),
                seed=seed, num_runs=num_runs, time_limit_s=idle_s, spill_dir=search.options.spill_dir,
            )  # fmt: skip
            # After Ctrl-C, only a brief verification is started.
            may_verify = self._verify_s <= max(search.deadline.left_s, _BRIEF_S)
            if search.best is None or (found.finish_ticks < search.best.finish_ticks and may_verify):
                self._verify(found)
        except OutOfTime:
            if search.best is None:
                past_s = time.monotonic() - search.options.began_s
                needed = "more time"
                if self._left_s is not None:  # remaining time, estimated from progress, plus a quarter
                    needed = f"about {format_s(1.25 * (past_s + self._left_s))} in all"
                raise NoSolutionError(
                    f"{search.problem.title}: no schedule in {format_s(past_s)}, as "
                    f"{format_about(effort(search.problem))} hops take longer; give {needed}, "
                    "or fewer chunks",
                    bound_us=search.bound_us,
                ) from None
        if deadline.has_passed:
            search.ran_out, status = True, "interrupted" if search.interrupted else "time limit"
        search.record("greedy", "compiled", status, since, finish_us=search.best_us, message=what)

    def prove(self) -> None:
        """Compute the lower bound, a quick one first; Ctrl-C keeps the bound found so far, if any."""
        search, since = self.search, time.monotonic()
        search.report("bound")
        found: list[Certificate] = []
        try:
            search.bound = self._bound(0.0)
            found.append(search.bound)
            quick_s = time.monotonic() - since
            left_s = search.deadline.left_s
            if not search.is_met and left_s > _MORE_BOUND_TIMES * quick_s:
                found.append(self._bound(_BOUND_SHARE * left_s))
        except OutOfTime:
            search.ran_out = True
        except KeyboardInterrupt:
            search.interrupt()
        if found:
            search.prove(max(found, key=lambda each: each.bound), since)

    def tell(self, what: str, past_s: float, *_: object, limit_s: float = 0.0) -> None:
        """Report how long an activity has been running, and its limit, if it takes long."""
        if past_s >= self._large.told_after_s:
            self.search.report(what.format(past_s, limit_s - past_s))

    def _bound(self, budget_s: float) -> Certificate:
        """Lower bound found until the deadline, or within a fraction of a second if that has passed.

        With at least `_PATIENT_RANKS` ranks the first bound may take longer.
        """
        search, least_s = self.search, _LEAST_BOUND_S
        left_s = max(least_s, search.deadline.left_s)
        waiting = search.problem.topology.num_ranks >= _PATIENT_RANKS
        limit = replace(search.top.deadline, at_s=math.inf) if waiting else search.top.deadline
        finish = None if search.best is None else search.best.finish
        return limit.at_least(least_s).run(
            partial(lower_bound, search.problem, budget_s=budget_s, limit_s=left_s, finish=finish),
            tell=partial(self.tell, "bound, {:.0f} s so far, at most {:.0f} s left", limit_s=left_s),
            patience_s=least_s,
        )

    def _verify(self, found: Schedule) -> None:
        """Verify a schedule, and propose it as incumbent."""
        since = time.monotonic()
        if self._verify_s > self._large.told_after_s:
            self.search.report(
                f"verifying {format_about(len(found))} transfers, about {self._verify_s:.0f} s left"
            )
        verify(found).raise_if_failed()
        self._verify_s = time.monotonic() - since
        self.search.offer_whole(found, producer=COMPILED, verified=True)

    def _tell(self, limit: Deadline, since: float, past_s: float, doing: str, done: float | None) -> None:
        """Report the progress of a long run, and its estimated end."""
        self._left_s = past_s * (1 - done) / done + self._verify_s if done else None
        if past_s < self._large.told_after_s:
            return
        what = f"{COMPILED}, {doing}" if doing else COMPILED
        if not done or self._left_s is None:
            self.search.report(f"{what}, {past_s:.0f} s so far")
            return
        limit_s = limit.at_s - since - past_s
        late = f" (time limit in {limit_s:.0f} s)" if limit_s < self._left_s else ""
        self.search.report(f"{what}, {done:.0%} done, about {self._left_s:.0f} s left{late}")
