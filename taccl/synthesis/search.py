"""A search: its problem, its deadline, its bound, the best schedule so far, and what was done and found when.

A search may be made of others: of the halves of a reduction, and of the problem under suggested sketches.
They share the log, and the cancellation that ends all of them.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from taccl._internal.deadline import NEVER, Deadline, OutOfTime, busy_factor
from taccl.analysis.certificates.bounds import latency_bound, lower_bound
from taccl.analysis.certificates.certificate import Certificate
from taccl.analysis.certificates.dimension_bound import DimensionBound
from taccl.analysis.certificates.scopes import bound_of_every_cut, stronger
from taccl.analysis.verification.verify import verify
from taccl.errors import FallbackWarning, warn
from taccl.problem.problem import Problem
from taccl.schedule.schedule import MANY, Schedule
from taccl.sketch.group import symmetry_group
from taccl.solvers.registry import package_versions
from taccl.synthesis.options import Options
from taccl.synthesis.parameters import BudgetParameters, SearchParameters
from taccl.synthesis.proposers.greedy import ListSchedule
from taccl.synthesis.result import Result, Stage, Stages, Trace, TraceEntry
from taccl.synthesis.suggesting.proposals import SketchProposal
from taccl.synthesis.symmetry.quotient import Quotient
from taccl.synthesis.symmetry.timing_group import timing_group
from taccl.synthesis.transforms.symmetry import Symmetry
from taccl.synthesis.transforms.transform import Transform

logger = logging.getLogger(__name__)


#: A function that finds a schedule of a problem, until a deadline.
Solve = Callable[[Problem, Options, Deadline], Schedule]
#: Max hops of a problem whose bound has no time limit.
_BRIEF_HOPS = 5_000
#: Largest share of the time left that a busy machine adds to the bound over all chunkings.
_MOST_EVERY_SHARE = 0.3
#: Least seconds for improvement to find something.
_LEAST_IDLE_S = 1.0
#: Most times its least seconds that this bound gets past the limit, where the machine is busy.
_LATE_TIMES = 1.0


@dataclass
class Search:
    """A search for a schedule of a problem.

    Reaching the bound ends it. With `gives_up`, `OutOfTime` does where time is up before there is a schedule;
    by default the list scheduler's first run is finished.
    """

    problem: Problem
    options: Options
    deadline: Deadline
    bound: Certificate | None = None
    gives_up: bool = False
    prefix: str = ""  # before the names of its stages
    above: Search | None = None  # that this is a part of
    serves_above: bool = False  # its schedules are schedules of the problem above, too
    best: Schedule | None = None
    best_on_quotient: ListSchedule | None = None  # the same on the timing quotient
    rival: Search | None = None  # of the same problem, that found a schedule: of a solver that works alone
    is_verified: bool = False  # whatever is returned is verified at last
    earliest: list[Schedule] = field(default_factory=list)  # found, along trees
    most_earliest: int = 0  # how many of these are kept, for what may yet be made of them
    exchanged: Schedule | None = None  # the best of these with sums that two ranks complete: along no trees
    exchange_tried: list[Schedule] = field(default_factory=list)  # those that it was tried of
    stages: list[Stage] = field(default_factory=list)
    trace: list[TraceEntry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    fallbacks: list[str] = field(default_factory=list)  # what ran in the place of what was asked for, and why
    last_improved: float = field(default_factory=time.monotonic)
    ran_out: bool = False  # time was up before the search was
    dimension_bound: DimensionBound | None = None  # of algorithms along dimensions, where these were used
    kept_s: float = 0.0  # of the time, for what comes after what is being done
    backend: str = ""  # by default the one that was asked for
    limit_s: float = 0.0  # the time that it had when its proposers began
    turn_s: float = 0.0  # the time that shares of its stages are of
    is_large: bool | None = None  # whether only the compiled search would end in time; None: not decided yet
    proposals: Sequence[SketchProposal] = ()  # sketches to search under
    solve: Solve | None = None  # the search of a problem that is made of this one
    asked: Problem | None = None  # the same with its number of chunks open, where it is
    made_by: Transform[Problem, Schedule] | None = None  # what its problem was made by
    others: list[Search] = field(default_factory=list)  # of the same data, in other chunks or by switches
    is_apart: bool = False  # its schedule is made by servers or switches
    choice: str = ""  # what searched it, and why; empty for baselines
    stopped: str = ""  # why it ended, once that is settled
    _is_strengthened: bool = False  # its bound was compared with that over all chunkings

    def __post_init__(self) -> None:
        self.backend = self.backend or self.options.backend

    def part(self, problem: Problem, prefix: str, deadline: Deadline, **given: Any) -> Search:
        """A search that is a part of this one, of a problem of its own; with fields that are given."""
        given |= {each: getattr(self, each) for each in ("stages", "trace", "notes", "fallbacks")}
        given["gives_up"] = given.get("gives_up", False) or self.gives_up
        given.setdefault("backend", self.backend)
        return Search(problem, self.options, deadline, prefix=self.prefix + prefix, above=self, **given)

    @cached_property
    def quotient(self) -> Quotient:
        """The quotient by the symmetries that times may have."""
        since = time.monotonic()
        group, timing = symmetry_group(self.problem), timing_group(self.problem)
        give_up = self.deadline if self.gives_up else NEVER
        (quotient,) = Symmetry.apply(self.problem, give_up=give_up).parts
        times = f"symmetry of {group}, {timing} in time; " if group.generators else ""
        self.record("quotient", "taccl", "done", since, message=f"{times}{len(quotient.hops)} hops")
        return quotient

    @property
    def parameters(self) -> SearchParameters:
        """Every constant."""
        return self.options.parameters

    @property
    def bound_ticks(self) -> int:
        """The first whole tick that a schedule may finish at by the bound; 0 without one."""
        ticks_per_us = self.problem.costs.ticks_per_us
        return 0 if self.bound is None else math.ceil(self.bound.bound * ticks_per_us)

    @property
    def bound_us(self) -> float | None:
        """The bound in microseconds."""
        return None if self.bound is None else self.bound.bound_us

    @property
    def best_us(self) -> float | None:
        """The incumbent's finish in microseconds."""
        return None if self.best is None else self.best.finish_us

    @property
    def is_met(self) -> bool:
        """True if the incumbent meets the bound."""
        has_both = self.bound is not None and self.best is not None
        return has_both and self.best.finish_ticks <= self.bound_ticks  # type: ignore[union-attr]

    @property
    def finish(self) -> Fraction | float:
        """The incumbent's finish; infinite without one."""
        return math.inf if self.best is None else self.best.finish

    @property
    def is_open(self) -> bool:
        """True if the problem that was asked leaves the number of chunks open."""
        return self.asked is not None and self.asked.chunks_open

    @property
    def has_found(self) -> bool:
        """True if there is a schedule, in its own chunks or others."""
        return any(each.best is not None for each in (self, *self.others))

    @property
    def earliest_us(self) -> float:
        """Finish of the earliest schedule of this and those beside it, in us; infinity without any."""
        found = [each.best for each in (self, *self.others)]
        return min((each.finish_us for each in found if each is not None), default=math.inf)

    @property
    def earliest_search(self) -> Search:
        """The one with the earliest schedule of this and those beside it; baselines come last."""
        every = (*self.others, self)
        return min(every, key=lambda each: (each.finish, not each.choice))

    @property
    def top(self) -> Search:
        """The search that this is a part of, if only of itself."""
        return self if self.above is None else self.above.top

    @property
    def patience(self) -> Deadline:
        """Until when a first schedule is waited for: without one, what time is kept for is of no use."""
        top = self.top
        return (top.deadline.later(top.kept_s) if top.best is None else self.deadline).at_least(0.0)

    @property
    def idle_s(self) -> float:
        """Seconds from now on in which improvement must find something; inf if it may use all of the time."""
        share = self.options.idle_share
        if share is None:
            return math.inf
        past_s = time.monotonic() - self.options.began_s
        return max(_LEAST_IDLE_S * busy_factor(), past_s * share / (1 - share))

    @property
    def half(self) -> str:
        """Phase of a reduction that it searches: ``"reduce"`` or ``"spread"``; empty for a whole problem."""
        return next((name for name in ("reduce", "spread") if self.prefix.endswith(f"{name}: ")), "")

    @property
    def interrupted(self) -> bool:
        """True after Ctrl-C."""
        return self.deadline.cancellation.why == "interrupted"

    def interrupt(self) -> None:
        """End the search, and all that it is a part of."""
        self.deadline.cancellation.cancel("interrupted")

    def note(self, status: str) -> None:
        """End the search where a solver was ended by Ctrl-C."""
        if status == "interrupted":
            self.interrupt()

    @property
    def done(self) -> bool:
        """True if the bound is met, time is up, or Ctrl-C came."""
        return self.is_met or self.deadline.has_passed

    @property
    def known(self) -> tuple[int, ListSchedule | None]:
        """The finish of the best schedule so far, its own or its rival's, and its quotient."""
        both = [each for each in (self.rival, self) if each is not None]
        found = [(each.best.finish_ticks, each.best_on_quotient) for each in both if each.best is not None]
        return min(found, key=lambda each: each[0])

    def offer(
        self, schedule: ListSchedule, *, producer: str, proposed: bool = False, whole: Schedule | None = None
    ) -> float | None:
        """Keep a schedule, expanded, if it is the best; its finish in us, None if it was refused."""
        if whole is None:
            whole = Symmetry(self.problem, (self.quotient,)).invert([schedule], producer=producer)
        better = self.best is None or whole.finish_ticks < self.best.finish_ticks
        finish_us = self.offer_whole(whole, producer=producer, proposed=proposed)
        if better and finish_us is not None:
            self.best_on_quotient = schedule
        return finish_us

    def offer_whole(
        self,
        whole: Schedule,
        *,
        producer: str,
        proposed: bool = False,
        verified: bool = False,
    ) -> float | None:
        """Keep a schedule if it is the best; its finish in us, None if it was refused.

        The verifier checks schedules that a solver has `proposed`, unless it has accepted them already.
        """
        if self.best is None or whole.finish_ticks < self.best.finish_ticks:
            if proposed and not verified:
                verification = verify(whole)
                if not verification.ok:
                    logger.error("%s made a schedule that the verifier refuses: %s", producer, verification)
                    return None
            self.best, self.is_verified = whole, proposed or verified
            self.last_improved = time.monotonic()
            if not self.serves_above or self.above is None:
                self.trace.append(self._entry(whole.finish_us))
                if self.above is None:
                    self.options.observer.incumbent(whole)
            elif self.problem is self.above.problem:
                self.above.offer_whole(whole, producer=whole.producer, verified=self.is_verified)
            else:
                self.above.offer_sketched(whole, self.problem.clauses.name)
            self.report(producer)
        if whole is not self.exchanged:
            self._remember(whole)
        return whole.finish_us

    def _remember(self, whole: Schedule) -> None:
        """Keep a schedule of the problem at the top among the earliest, once, however often it is offered."""
        top, at = self.top, self
        while at.above is not None and at.serves_above:
            at = at.above
        if at is not top or not top.most_earliest or len(whole) > MANY:
            return
        first, *others = (np.array([each.chunk, each.link, each.start]) for each in (whole, *top.earliest))
        if whole.carries is None and not any(np.array_equal(first, each) for each in others):
            earliest = sorted((*top.earliest, whole), key=lambda each: each.finish_ticks)
            top.earliest = earliest[: top.most_earliest]

    def offer_sketched(self, found: Schedule, sketch: str) -> float | None:
        """Offer what was found under a sketch, which is a schedule without it, too."""
        producer = f"{found.producer}, sketch {sketch}"
        return self.offer_whole(found.under(self.problem, producer=producer), producer=producer)

    def allow(self, seconds: float) -> None:
        """Put the deadline off by what no time limit should count."""
        self.deadline = self.deadline.later(seconds)
        if self.above is not None:
            self.above.allow(seconds)

    @contextmanager
    def keeping(self, seconds: float) -> Iterator[None]:
        """Keep some of the time for what comes after."""
        self.allow(-seconds)
        self.kept_s += seconds
        yield
        self.kept_s -= seconds
        self.allow(seconds)

    def report(self, doing: str) -> None:
        """Tell the caller what is going on, with the figures of the whole search.

        The finish of one half, and a bound under a sketch, are none of the problem's.
        """
        self.options.observer.report(self.prefix + doing, self.top.best_us, self.top.bound_us)

    def record(
        self, name: str, solver: str, status: str, since: float, *, ticks: int | None = None, **found: Any
    ) -> None:
        """Add a stage that began at `since`, and what it found: fields of `Stage`, and a bound in ticks.

        Its seconds are those that no stage within it has.
        """
        if ticks is not None:
            found["bound_us"] = float(self.problem.costs.us(ticks))
        began_s = since - self.options.began_s
        within_s = sum(each.seconds for each in self.stages if each.began_s >= began_s)
        seconds = time.monotonic() - since - within_s
        stage = Stage(self.prefix + name, solver, status, seconds, began_s=began_s, **found)
        self.stages.append(stage)
        self.options.observer.stage(stage)

    def look_for_bound(self) -> None:
        """A lower bound in the part of the time that is meant for it, unless there is one.

        Where time is up, the bound over all chunkings, which holds for these chunks, too, is the only one,
        unless both are quick.
        """
        is_late = self.deadline.has_passed and not _is_brief(self.problem)
        if self.bound is None and not (self.interrupted or is_late):
            since = time.monotonic()
            found = bound_within(self.problem, self.deadline, self.parameters.budget, kept_s=self.kept_s)
            self.prove(found, since)

    def look_over_all_chunkings(self, known: Certificate | None = None) -> Certificate | None:
        """The bound over all chunkings, which is sought once, in a part of the time; None if that is short.

        - `known`: A bound of the problem in its chunks.
        """
        budget, since, left_s = self.parameters.budget, time.monotonic(), self.deadline.left_s
        # A busy machine gets more seconds, but few past the limit.
        least_s = budget.least_every_s
        least_s = min(least_s * busy_factor(), max(_LATE_TIMES * least_s, _MOST_EVERY_SHARE * left_s))
        every_s = max(least_s, min(budget.most_every_s, budget.bound_share * left_s))
        every = bound_of_every_cut(known or no_bound(self.problem), budget_s=every_s)
        every_us, name = None if every is None else every.bound_us, "bound over all chunkings"
        if (name, every_us) not in ((each.name, each.bound_us) for each in self.stages):
            self.record(name, "taccl", "done", since, bound_us=every_us)
        if every is not None and self.above is None:
            self.options.observer.bound(every)
        return every

    def prove(self, bound: Certificate, since: float) -> None:
        """Keep a bound that was found since then, and log it."""
        self.bound = bound
        self.record("bound", "taccl", "done", since, bound_us=bound.bound_us, message=bound.kind)
        if self.above is None:
            self.options.observer.bound(bound)
        if not self.serves_above:
            self.trace.append(self._entry(None if self.best is None else self.best.finish_us))

    def settle(self) -> None:
        """Look for the bounds, and settle why the search ended."""
        self.look_for_bound()
        bound, _ = self._sound_bound()
        self.stopped = self._why_stopped(bound)

    def _why_stopped(self, bound: Certificate) -> str:
        """The reason why the search ended."""
        assert self.best is not None, "there is a schedule"
        if self.interrupted:
            return "interrupted"
        if self.stopped:
            return self.stopped
        if self.best.finish <= bound.bound:
            return "bound met"
        if self.deadline.cancellation.why:
            return self.deadline.cancellation.why
        return "time limit" if self.ran_out or self.deadline.has_passed else "nothing better found"

    def result(self, choice: str) -> Result:
        """The incumbent, verified if it is not yet, with its bound and the log."""
        assert self.best is not None, "there is a schedule"
        if not self.is_verified:
            since = time.monotonic()
            verify(self.best).raise_if_failed()
            self.record("verification", "taccl", "done", since)
        bound, faults = self._sound_bound()
        stopped = self._why_stopped(bound)
        options = self.options
        schedule, kept = options.kept(self.best)
        for message in dict.fromkeys(self.fallbacks):
            warn(message, FallbackWarning)
        notes = tuple(dict.fromkeys((*faults, *self.problem.notes, *self.fallbacks, *self.notes, *kept)))
        versions = package_versions()
        self.record("overhead", "taccl", "done", options.began_s, message="what no other stage has")
        seconds = time.monotonic() - options.began_s
        trace = Trace((*self.trace, TraceEntry(seconds, schedule.finish_us, bound.bound_us)))
        return Result(
            schedule, bound, options.backend, Stages(self.stages), seconds, options.seed, versions,
            stopped, notes, trace, choice, self.dimension_bound,
        )  # fmt: skip

    def _entry(self, finish_us: float | None) -> TraceEntry:
        """Present finish and bound; for a phase, its own times."""
        return TraceEntry(time.monotonic() - self.options.began_s, finish_us, self.bound_us, self.half)

    def _sound_bound(self) -> tuple[Certificate, tuple[str, ...]]:
        """The bound, no lower than that over all chunkings; none, with a note, if a schedule refutes it."""
        assert self.best is not None, "there is a schedule"
        if not (self.interrupted or self._is_strengthened):
            self._is_strengthened = True
            every = self.look_over_all_chunkings(self.bound)
            known = self.bound
            if known is None and every is None:
                has_moments = self.problem.release_us or self.problem.due_us
                known = no_bound(self.problem) if has_moments else latency_bound(self.problem)
            self.bound = stronger(known or no_bound(self.problem), every)
        if self.bound is None:
            fault = "it was stopped before a lower bound was proven; give more time, or ask lower_bound"
        elif self.best.finish >= self.bound.bound:
            return self.bound, ()
        else:
            logger.error("%r: the bound %r is above a verified schedule", self.problem, self.bound)
            fault = (
                "a fault of taccl's own: its bound was above a verified schedule, and was dropped; report it"
            )
        return no_bound(self.problem), (fault,)


def bound_within(
    problem: Problem, limit: Deadline, budget: BudgetParameters, *, kept_s: float = 0.0
) -> Certificate:
    """A lower bound in the part of the time until a limit that is meant for it.

    It serves what other time is kept for, too, and so has as large a part of both in any case. It proves
    nothing if even that is too short.
    """
    left_s, share = limit.left_s, budget.bound_share
    limit_s = max(budget.least_bound_s, budget.most_bound_share * left_s, share * (left_s + kept_s))
    end_s = None if _is_brief(problem) else max(left_s, budget.last_bound_s / busy_factor())
    try:
        if limit.cancellation.why:
            limit.check()
        return lower_bound(problem, budget_s=share * left_s, limit_s=limit_s, end_s=end_s)
    except OutOfTime:
        return no_bound(problem)


def _is_brief(problem: Problem) -> bool:
    """True if a bound takes fractions of a second, whatever the time limit."""
    return problem.collective.num_chunks * len(problem.links_allowed) <= _BRIEF_HOPS


def no_bound(problem: Problem, *, divisible: bool = False) -> Certificate:
    """A bound of zero, which proves nothing."""
    return Certificate(problem, Fraction(0), "none", "no proof so far", None, divisible)
