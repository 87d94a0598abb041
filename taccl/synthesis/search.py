"""`Search`, the state of a search: problem, deadline, bound, incumbent, and logs of its stages.

A search may consist of other searches: one for each phase of a reduction, or one for each suggested sketch.
They share the logs, and one cancellation that ends all of them.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

from taccl._internal.deadline import NEVER, Deadline, OutOfTime, busy_factor
from taccl._internal.interrupts import TimeIsUp
from taccl.analysis.certificates.certificate import Certificate
from taccl.analysis.certificates.dimension_bound import DimensionBound
from taccl.analysis.verification.verify import verify
from taccl.errors import FallbackWarning, InputError, NoSolutionError, warn
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.sketch.group import symmetry_group
from taccl.solvers.registry import package_versions
from taccl.synthesis.bounding import look_for_bound, sound_bound
from taccl.synthesis.options import Options
from taccl.synthesis.parameters import SearchParameters
from taccl.synthesis.proposers.greedy import ListSchedule, expand
from taccl.synthesis.result import Result, Stage, Stages, Trace, TraceEntry
from taccl.synthesis.stopping import BOUND_MET, INTERRUPTED, NOTHING_BETTER, TIME_LIMIT
from taccl.synthesis.suggesting.proposals import SketchProposal
from taccl.synthesis.symmetry.quotient import Quotient, take_quotient
from taccl.synthesis.symmetry.timing_group import timing_group
from taccl.synthesis.transforms.requirements import Transform

if TYPE_CHECKING:
    from taccl.synthesis.budget import Turn

logger = logging.getLogger(__name__)


#: Minimum seconds without progress before improvement may end.
_LEAST_IDLE_S = 1.0
#: A step is recorded as a stage if its time that is in no other stage reaches both limits.
#: `_NOTABLE_S`: seconds. `_NOTABLE_SHARE`: share of the time since the search began.
_NOTABLE_S, _NOTABLE_SHARE = 0.03, 0.01
#: Seconds past the deadline of a search after which a solver that has not ended is killed.
_SOLVER_LATE_S = 0.75
#: Share of the limit by which baselines may be late if no time is to be left for the search.
_LATE_SHARE = 0.2


@dataclass
class Search:
    """A search for a schedule of a problem.

    It ends when the incumbent meets the bound, or at the deadline. If no schedule exists by the deadline, the
    first run of the list scheduler is still completed; with `gives_up`, `OutOfTime` is raised instead.
    """

    problem: Problem
    options: Options
    deadline: Deadline
    bound: Certificate | None = None
    gives_up: bool = False
    prefix: str = ""  # prefix of names of stages, such as "reduce: "
    above: Search | None = None  # the search that this one is a part of; None for the outermost
    serves_above: bool = False  # True if its schedules also solve the problem of `above`
    best: Schedule | None = None
    best_on_quotient: ListSchedule | None = None  # the incumbent as a schedule of the quotient
    rival: Search | None = None  # for a search by one solver: the search whose schedule it started from
    is_verified: bool = False  # True if the incumbent was verified; otherwise `result` verifies it
    along_trees: Schedule | None = None  # best schedule that names no contributions, of the outermost problem
    stages: list[Stage] = field(default_factory=list)
    trace: list[TraceEntry] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    fallbacks: list[str] = field(default_factory=list)  # messages on what replaced an option, and why
    last_improved: float = field(default_factory=time.monotonic)
    ran_out: bool = False  # True if time was up before the search ended by itself
    # Bound on algorithms along dimensions; None if none of them ran.
    dimension_bound: DimensionBound | None = None
    kept_s: float = 0.0  # seconds of the time limit that are reserved for later stages
    # For the outermost search: (part, proposer) for each proposer without time left in this part.
    left_out: list[tuple[Search, Turn]] = field(default_factory=list)
    num_ruins: int = 0  # number of runs of ruin and recreate
    on_better: Callable[[Schedule], None] | None = None  # called with each new incumbent
    backend: str = ""  # name of the backend; by default the one in `options`
    limit_s: float = 0.0  # seconds left when the first proposer began
    turn_s: float = 0.0  # seconds of the current turn, of which stages take shares
    is_large: bool | None = None  # True if only the compiled search would end in time; None: not decided yet
    proposals: Sequence[SketchProposal] = ()  # sketches to search under
    asked: Problem | None = None  # the problem as asked, before the number of chunks was chosen
    made_by: Transform | None = None  # transform that made the problem
    # Searches of the same data in other chunks, or with sums by servers or switches.
    others: list[Search] = field(default_factory=list)
    is_aggregated: bool = False  # True if switches make the sums
    choice: str = ""  # name of the search that ran, and the reason; empty for baselines
    # Judge of the schedules that a registered proposer offers while it runs; None: they are not judged.
    judge: Callable[[Schedule], bool] | None = None
    stopped: str = ""  # reason why the search ended; empty until `settle`
    is_proven: bool = False  # True if a schedule meets the bound over all chunkings before the search begins
    is_strengthened: bool = False  # True once the bound was compared with that over all chunkings

    def __post_init__(self) -> None:
        self.backend = self.backend or self.options.backend

    def __setattr__(self, name: str, value: object) -> None:
        """Set a field. The problem is fixed: proposers of users could otherwise replace it."""
        if name == "problem" and name in vars(self):
            raise AttributeError("the problem of a search is fixed; return a schedule of search.problem")
        super().__setattr__(name, value)

    def part(self, problem: Problem, prefix: str, deadline: Deadline, **given: Any) -> Search:
        """A search of another problem, as a part of this search; keyword arguments set its further fields."""
        given |= {each: getattr(self, each) for each in ("stages", "trace", "notes", "fallbacks")}
        given["gives_up"] = given.get("gives_up", False) or self.gives_up
        given.setdefault("backend", self.backend)
        return Search(problem, self.options, deadline, prefix=self.prefix + prefix, above=self, **given)

    def beside(self, problem: Problem, *, deadline: Deadline | None = None, **given: Any) -> Search:
        """Create a search of a variant of the problem, such as one in other chunks or with sums in switches.

        Keyword arguments set its further fields. It adds to the stages and to the trace of this search.
        """
        until = self.deadline if deadline is None else deadline
        return Search(problem, self.options, until, stages=self.stages, trace=self.trace, **given)

    @cached_property
    def quotient(self) -> Quotient:
        """Quotient of the problem by the symmetries that schedules may have."""
        since = time.monotonic()
        group, timing = symmetry_group(self.problem), timing_group(self.problem)
        give_up = self.deadline if self.gives_up else NEVER
        quotient = take_quotient(self.problem, timing, give_up=give_up)
        times = f"{group} symmetries, {timing} valid for times; " if group.generators else ""
        self.record("quotient", "taccl", "done", since, message=f"{times}{len(quotient.hops)} hops")
        return quotient

    @property
    def parameters(self) -> SearchParameters:
        """All constants of the search."""
        return self.options.parameters

    @property
    def bound_ticks(self) -> int:
        """Earliest finish in ticks that the bound allows, rounded up; 0 without a bound."""
        ticks_per_us = self.problem.costs.ticks_per_us
        return 0 if self.bound is None else math.ceil(self.bound.bound * ticks_per_us)

    @property
    def bound_us(self) -> float | None:
        """The bound in microseconds; None without one."""
        return None if self.bound is None else self.bound.bound_us

    @property
    def best_us(self) -> float | None:
        """Finish of the incumbent in microseconds; None without one."""
        return None if self.best is None else self.best.finish_us

    @property
    def best_along_trees(self) -> Schedule | None:
        """The incumbent, or the best schedule that names no contributions if it does; None without one."""
        if self.best is not None and self.best.carries is None:
            return self.best
        return None if self.along_trees is None else self.along_trees.under(self.problem)

    @property
    def is_met(self) -> bool:
        """True if the incumbent meets the bound."""
        has_both = self.bound is not None and self.best is not None
        return has_both and self.best.finish_ticks <= self.bound_ticks  # type: ignore[union-attr]

    @property
    def finish(self) -> Fraction | float:
        """Finish of the incumbent in microseconds, exact; infinite without one."""
        return math.inf if self.best is None else self.best.finish

    @property
    def is_open(self) -> bool:
        """True if the given problem leaves the number of chunks open."""
        return self.asked is not None and self.asked.chunks_open

    @property
    def has_found(self) -> bool:
        """True if this search or one in `others` has a schedule."""
        return any(each.best is not None for each in (self, *self.others))

    @property
    def earliest_us(self) -> float:
        """Earliest finish among this search and `others`, in us; infinity without a schedule."""
        found = [each.best for each in (self, *self.others)]
        return min((each.finish_us for each in found if each is not None), default=math.inf)

    @property
    def earliest_search(self) -> Search:
        """Search with the earliest schedule, this one or one of `others`; at ties, baselines come last."""
        every = (*self.others, self)
        return min(every, key=lambda each: (each.finish, not each.choice))

    @property
    def top(self) -> Search:
        """The outermost search that this one is a part of; itself if there is none."""
        return self if self.above is None else self.above.top

    @property
    def patience(self) -> Deadline:
        """Deadline for a first schedule: until one exists, time reserved for later stages may be used."""
        top = self.top
        return (top.deadline.later(top.kept_s) if top.best is None else self.deadline).at_least(0.0)

    @property
    def of_solvers(self) -> dict[str, Any]:
        """Options of every solver, and the time at which its process is killed unless it has ended."""
        return self.options.of_solvers | {"end_s": self.patience.later(_SOLVER_LATE_S).at_s}

    @property
    def idle_s(self) -> float:
        """Seconds from now after which improvement ends unless it finds a better schedule.

        Infinite if the options have no `idle_share`.
        """
        share = self.options.idle_share
        if share is None:
            return math.inf
        past_s = time.monotonic() - self.options.began_s
        return max(_LEAST_IDLE_S * busy_factor(), past_s * share / (1 - share))

    @property
    def phase(self) -> str:
        """Phase of a reduction: ``"reduce"`` or ``"broadcast"``; empty for a whole problem."""
        return next((name for name in ("reduce", "broadcast") if self.prefix.endswith(f"{name}: ")), "")

    @property
    def interrupted(self) -> bool:
        """True after Ctrl-C."""
        return self.deadline.cancellation.why == "interrupted"

    def interrupt(self) -> None:
        """Cancel the whole search after Ctrl-C, including all searches that this one is a part of."""
        self.deadline.cancellation.interrupt()

    def note(self, status: str) -> None:
        """Cancel the search if a solver's status says that Ctrl-C ended it."""
        if status == "interrupted":
            self.interrupt()

    @property
    def done(self) -> bool:
        """True if the bound is met, time is up, or the search was cancelled, as by Ctrl-C."""
        return self.is_met or self.deadline.has_passed

    @property
    def known(self) -> tuple[int, ListSchedule | None]:
        """(finish in ticks, quotient schedule or None) of the better incumbent of this search and its rival.

        A search by one solver starts from the schedule of another search, which is its rival.
        """
        both = [each for each in (self.rival, self) if each is not None]
        found = [(each.best.finish_ticks, each.best_on_quotient) for each in both if each.best is not None]
        return min(found, key=lambda each: each[0])

    def offer(
        self, schedule: ListSchedule, *, producer: str, proposed: bool = False, whole: Schedule | None = None
    ) -> float | None:
        """Expand a quotient schedule and propose it; return its finish in us, or None if it is invalid.

        - `whole`: The expanded schedule, if the caller expanded it already.
        """
        if whole is None:
            whole = expand(self.quotient, schedule.sends, producer=producer)
        better = self.best is None or whole.finish_ticks < self.best.finish_ticks
        finish_us = self.offer_whole(whole, producer=producer, proposed=proposed)
        if better and finish_us is not None:
            self.best_on_quotient = schedule
        return finish_us

    def offer_whole(
        self, whole: Schedule, *, producer: str, proposed: bool = False, verified: bool = False
    ) -> float | None:
        """Propose a schedule, kept if it is the best; return its finish in us, None if it was refused.

        - `proposed`: True for output of a solver or a compiled kernel, which is verified here and may be
          refused.
        - `verified`: True if the verifier has accepted the schedule already.
        """
        if self.judge is not None:
            if not self.judge(whole):
                return None
            verified = True
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
            if self.on_better is not None:
                self.on_better(whole)
        self._remember(whole)
        return whole.finish_us

    def _remember(self, whole: Schedule) -> None:
        """Keep a schedule of the outermost problem as `along_trees`, if it is the best of these."""
        top, at = self.top, self
        while at.above is not None and at.serves_above:
            at = at.above
        is_best = top.along_trees is None or whole.finish_ticks < top.along_trees.finish_ticks
        if at is top and is_best and whole.carries is None:
            top.along_trees = whole

    def offer_sketched(self, found: Schedule, sketch: str) -> float | None:
        """Propose a schedule found under a sketch, which is also valid without it."""
        producer = f"{found.producer}, sketch {sketch}"
        return self.offer_whole(found.under(self.problem, producer=producer), producer=producer)

    def allow(self, seconds: float) -> None:
        """Postpone the deadline, also of the searches above, by `seconds`, which may be negative."""
        self.deadline = self.deadline.later(seconds)
        if self.above is not None:
            self.above.allow(seconds)

    @contextmanager
    def postponed(self, seconds: float) -> Iterator[None]:
        """Context in which the deadline is later by `seconds`, also of the searches above."""
        self.allow(seconds)
        try:
            yield
        finally:
            self.allow(-seconds)

    @property
    def baselines_take_all(self) -> bool:
        """True if baselines may be late by a large share of the limit, which leaves the search no time.

        That is so for short limits on busy machines. With a longer limit, baselines leave time.
        """
        options = self.options
        return self.deadline.at_s - options.ends_s > _LATE_SHARE * (options.ends_s - options.began_s)

    @contextmanager
    def keeping(self, seconds: float) -> Iterator[None]:
        """Reserve seconds of the time for later stages: the deadline is earlier within the block."""
        self.allow(-seconds)
        self.kept_s += seconds
        yield
        self.kept_s = round(self.kept_s - seconds, 9)  # without rounding errors, 0 once nothing is reserved
        self.allow(seconds)

    def report(self, doing: str) -> None:
        """Report the current activity to the caller, with the finish and bound of the outermost search.

        The figures of a single phase, or of the problem under a sketch, would not hold for the problem asked.
        """
        self.options.observer.report(self.prefix + doing, self.top.best_us, self.top.bound_us)

    def record(
        self, name: str, solver: str, status: str, since: float, *, ticks: int | None = None, **found: Any
    ) -> None:
        """Add a `Stage` that began at `since`; `found` sets its fields, `ticks` a bound in ticks.

        The stages' seconds exclude those of stages nested in them, so that they add up.
        """
        if ticks is not None:
            found["bound_us"] = float(self.problem.costs.us(ticks))
        began_s, seconds = since - self.options.began_s, self._own_s(since)
        stage = Stage(self.prefix + name, solver, status, seconds, began_s=began_s, **found)
        self.stages.append(stage)
        self.options.observer.stage(stage)

    def _own_s(self, since: float) -> float:
        """Seconds from `since` until now, without those of the stages that began in between."""
        began_s = since - self.options.began_s
        within_s = sum(each.seconds for each in self.stages if each.began_s >= began_s)
        return time.monotonic() - since - within_s

    def account(self, name: str, since: float, status: str = "done", message: str = "") -> None:
        """Add a stage for the time since `since` that no other stage covers, unless it is very short."""
        past_s = time.monotonic() - self.options.began_s
        if self._own_s(since) >= max(_NOTABLE_S, _NOTABLE_SHARE * past_s):
            self.record(name, "taccl", status, since, message=message)

    @contextmanager
    def accounting(self, name: str) -> Iterator[None]:
        """Context manager that records, as a stage, the time of its block that no other stage covers."""
        since = time.monotonic()
        try:
            yield
        except (OutOfTime, TimeIsUp):  # TimeIsUp: an interrupt by an outer deadline
            self.account(name, since, "timed-out", "stopped at its time limit")
            raise
        except (NoSolutionError, InputError) as error:  # InputError: such as too little memory
            self.account(name, since, "no-solution", "" if isinstance(error, NoSolutionError) else str(error))
            raise
        except KeyboardInterrupt:
            self.account(name, since, "interrupted", "stopped by Ctrl-C")
            raise
        self.account(name, since, message="time outside its stages")

    @contextmanager
    def kept_at_ctrl_c(self, best: Callable[[], Search | None]) -> Iterator[None]:
        """Context in which Ctrl-C adds the best search so far to `others`, so that its schedule counts."""
        try:
            yield
        except KeyboardInterrupt:
            if (kept := best()) is not None:
                self.others.append(kept)
            raise

    def prove(self, bound: Certificate, since: float) -> None:
        """Keep and log a bound whose computation began at `since`."""
        self.bound = bound
        self.record("bound", "taccl", "done", since, bound_us=bound.bound_us, message=bound.kind)
        self.report_bound(bound)

    def report_bound(self, bound: Certificate) -> None:
        """Report a bound of this search's problem to the caller, and add it to the trace."""
        if self.above is None:
            self.options.observer.bound(bound)
        if not self.serves_above:
            finish_us = None if self.best is None else self.best.finish_us
            self.trace.append(replace(self._entry(finish_us), bound_us=bound.bound_us))

    def settle(self) -> None:
        """Compute the bounds, and set `stopped`: the reason why the search ended."""
        look_for_bound(self)
        bound, _ = sound_bound(self)
        self.stopped = self._why_stopped(bound)

    def _why_stopped(self, bound: Certificate) -> str:
        """Reason why the search ended, as `Result.stopped` lists them."""
        assert self.best is not None, "there is a schedule"
        if self.interrupted:
            return INTERRUPTED
        if self.stopped:
            return self.stopped
        if self.best.finish <= bound.bound:
            return BOUND_MET
        if self.deadline.cancellation.why:
            return self.deadline.cancellation.why
        return TIME_LIMIT if self.ran_out or self.deadline.has_passed else NOTHING_BETTER

    def result(self, choice: str) -> Result:
        """The incumbent, verified if it was not yet, as a result with its bound, stages, trace and notes."""
        assert self.best is not None, "there is a schedule"
        if not self.is_verified:
            since = time.monotonic()
            verify(self.best).raise_if_failed()
            self.record("verification", "taccl", "done", since)
        bound, faults = sound_bound(self)
        stopped = self._why_stopped(bound)
        options = self.options
        schedule, kept = options.kept(self.best)
        for message in dict.fromkeys(self.fallbacks):
            warn(message, FallbackWarning)
        # Most important notes first. Notes on the problem come last, as they were known before the search.
        notes = tuple(dict.fromkeys((*faults, *self.fallbacks, *self.notes, *kept, *self.problem.notes)))
        versions = package_versions()
        self.record("overhead", "taccl", "done", options.began_s, message="time outside the other stages")
        seconds = time.monotonic() - options.began_s
        trace = Trace.of(self.trace, TraceEntry(seconds, schedule.finish_us, bound.bound_us))
        return Result(
            schedule, bound, options.backend, Stages(self.stages), seconds, options.seed, versions,
            stopped, notes, trace, choice, self.dimension_bound,
        )  # fmt: skip

    def _entry(self, finish_us: float | None) -> TraceEntry:
        """Trace entry for the current time; in a phase of a reduction, with the bound of that phase."""
        return TraceEntry(time.monotonic() - self.options.began_s, finish_us, self.bound_us, self.phase)
