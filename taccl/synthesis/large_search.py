"""The search of a problem that only the compiled list schedulers reach: a schedule first, then its proof.

Memory is checked before anything is begun. The first run gives a schedule as soon as may be; then the bound
is worked out; then other rules and seeds are tried, as long as there is a gap, time and memory. Each is
stopped in time for what is found to be verified.
"""

from __future__ import annotations

import time
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING

from taccl.analysis.certificates.bounds import lower_bound
from taccl.analysis.certificates.certificate import Certificate
from taccl.analysis.verification.verify import verify
from taccl.errors import NoSolutionError
from taccl.schedule.spill import check_folder, spill
from taccl.schedule.summary import summarize
from taccl.synthesis.backends import package_versions
from taccl.synthesis.compiled.events import watched
from taccl.synthesis.large import compile_kernels, effort, schedule_large
from taccl.synthesis.memory import MOST_EXPANDED, check_memory, memory_need
from taccl.synthesis.result import Moment, Result, Stage
from taccl.synthesis.search import sound_bound
from taccl.units import format_size

if TYPE_CHECKING:
    from taccl.problem import Problem
    from taccl.schedule.compact import CompactSchedule
    from taccl.schedule.schedule import Schedule
    from taccl.synthesis.search import Options

__all__ = ["search_large"]

#: The part of what time is left that the bound may take, and seconds that it gets in any case.
_BOUND_SHARE, _LEAST_BOUND_S = 0.8, 0.5
#: With more chunks than this even the least bound takes seconds, which a search without a schedule has not.
_MOST_BOUNDED = 100_000
#: A better bound is looked for where there is so many times the time that the first one took.
_WORTH_MORE = 3.0
#: Microseconds in which a transfer is verified: of chunks that go to one rank, and of others.
_VERIFIED_US, _SPREAD_US = 2.0, 0.2
#: The part of what time is left that is kept for verifying at most, and what is always granted.
_VERIFIED_SHARE, _BRIEF_S = 0.5, 0.5
#: Progress is told of what takes longer than this.
_TOLD_AFTER_S = 2.0


def search_large(problem: Problem, options: Options, *, backend: str, deadline: float, choice: str) -> Result:
    """A verified schedule by the compiled list schedulers alone.

    Parameters
    ----------
    deadline : float
        On the clock of `time.monotonic`.
    choice : str
        Why these and no others.

    Raises
    ------
    InputError
        If there is not enough memory, or the folder to spill to cannot be used.
    NoSolutionError
        If there was no schedule by the deadline.
    KeyboardInterrupt
        If Ctrl-C came before there was one.
    """
    began = time.monotonic()
    most_runs = _check(problem, options)
    search = _Search(problem, options, deadline)
    search.compile()
    search.run("first rule", num_runs=1)
    search.prove()
    if most_runs is None and search.goes_on:
        search.run("other rules and seeds", num_runs=None)
    return search.result(backend, began, choice)


def _check(problem: Problem, options: Options) -> int | None:
    """Raise `InputError` for what there is no room for; how many runs there is memory for."""
    spilled = options.spill_dir is not None
    if options.spill_dir is not None:
        columns = memory_need(problem).columns
        check_folder(options.spill_dir, num_bytes=(4 if problem.collective.combining else 3) * columns)
        options.spill_dir.mkdir(exist_ok=True)
    return check_memory(
        problem,
        memory_limit_mb=options.memory_limit_mb,
        spilled=spilled,
        summary=options.keep == "summary",
        to_file=options.to_file,
    )


class _Search:
    """The best schedule so far, its bound, and what was done."""

    def __init__(self, problem: Problem, options: Options, deadline: float) -> None:
        self.problem, self.options, self.deadline = problem, options, deadline
        self.best: CompactSchedule | None = None
        self.bound: Certificate | None = None
        self.stages: list[Stage] = []
        self.moments: list[Moment] = []
        self.why_stopped = ""
        self._began = time.monotonic()
        self._verified_s = _verification_s(problem)
        self._left_s: float | None = None

    @property
    def goes_on(self) -> bool:
        """Whether there is something to find, and time for it."""
        met = self.best is not None and self.bound is not None and self.best.finish <= self.bound.bound
        return not met and not self.why_stopped and time.monotonic() < self.deadline

    def compile(self) -> None:
        """Have the kernels compiled, if they are not, and put the deadline off by what that takes."""
        compiling = partial(compile_kernels, self.problem)
        # In this thread Ctrl-C would be lost, as Python code is called by what compiles.
        self.deadline += watched(compiling, patience_s=0.0, tell=self._tell_compiling)[0]

    def run(self, what: str, *, num_runs: int | None) -> None:
        """Runs of the list scheduler; what is better than the best is verified and kept."""
        since = time.monotonic()
        options = self.options
        schedule = partial(
            schedule_large,
            self.problem,
            target_ticks=self._target(),
            seed=options.seed + (self.best is not None),
            num_runs=num_runs,
            spill_dir=options.spill_dir,
        )
        self._report("greedy (compiled)")
        left_s = self.deadline - since
        limit_s = max(0.0, left_s - min(self._verified_s, _VERIFIED_SHARE * left_s))
        try:
            found, why = watched(schedule, seconds=limit_s, tell=partial(self._tell, since))
            self.why_stopped = self.why_stopped or why
            if self.best is None or (found.finish_ticks < self.best.finish_ticks and self._may_verify):
                self._verify(found)
        except TimeoutError:
            self.why_stopped = "time limit"
        except KeyboardInterrupt:
            if self.best is None:
                raise
            self.why_stopped = "interrupted"
        if self.best is None:
            limit_s = max(0.0, self.deadline - self._began)
            more = "more time" if self._left_s is None else f"about {self._left_s:.2g} s more"
            raise NoSolutionError(
                f"{self.problem!r}: no schedule in {limit_s:.3g} s, as {effort(self.problem):.2g} moves "
                f"take longer; give {more}, or fewer chunks",
                bound_us=self._least_bound_us(),
            )
        finish_us = self.best.finish_us
        seconds = time.monotonic() - since
        self.stages.append(
            Stage("greedy", "compiled", self.why_stopped or "done", seconds, finish_us, None, what)
        )

    def _verify(self, found: CompactSchedule) -> None:
        """Verify what was found, and keep it as the best."""
        since = time.monotonic()
        if self._verified_s > _TOLD_AFTER_S:
            self._report(f"verifying {len(found):.2g} transfers, about {self._verified_s:.0f} s left")
        verify(found).raise_if_failed()
        self._verified_s = time.monotonic() - since
        self.best = found
        self.moments.append(Moment(time.monotonic() - self._began, found.finish_us, self._bound_us()))

    @property
    def _may_verify(self) -> bool:
        """Whether there is still the time; somebody who pressed Ctrl-C does not wait for long."""
        left_s = self.deadline - time.monotonic() if self.why_stopped != "interrupted" else 0.0
        return self._verified_s <= max(left_s, _BRIEF_S)

    def prove(self) -> None:
        """The bound, a quick one first; Ctrl-C leaves what there is of it, if anything."""
        since = time.monotonic()
        self._report("bound")
        try:
            self.bound = self._bound(0.0)
            quick_s = time.monotonic() - since
            if self.goes_on and self.deadline - time.monotonic() > _WORTH_MORE * quick_s:
                further = self._bound(_BOUND_SHARE * (self.deadline - time.monotonic()))
                self.bound = max(self.bound, further, key=lambda each: each.bound)
        except KeyboardInterrupt:
            self.why_stopped = "interrupted"
        self.bound = self.bound or _nothing(self.problem)
        seconds = time.monotonic() - since
        self.stages.append(Stage("bound", "taccl", "done", seconds, None, self._bound_us(), self.bound.kind))
        self.moments.append(Moment(time.monotonic() - self._began, None, self._bound_us()))

    def result(self, backend: str, began: float, choice: str) -> Result:
        """What was found, as the caller wants it kept."""
        assert self.best is not None and self.bound is not None, "a run and a proof come first"
        best, options = self.best, self.options
        notes = list(self.problem.notes)
        if self.bound.kind == "none":
            notes.append("it was stopped before a lower bound was proven; give more time, or ask lower_bound")
        schedule: Schedule | CompactSchedule = best
        if options.keep == "summary":
            schedule = summarize(best)
            notes.append(f"the {best.num_transfers} transfers were verified and then dropped, as asked")
        elif options.spill_dir is not None:
            schedule = spill(best, options.spill_dir)
            size = format_size(best.num_bytes)
            notes.append(f"the columns ({size}) are in {options.spill_dir}, and stay there")
        elif best.num_transfers <= MOST_EXPANDED:
            schedule = best.expand()
        bound, faults = sound_bound(best, self.bound)
        stopped = self.why_stopped
        if schedule.finish <= bound.bound:
            stopped = "bound met"
        elif not stopped:
            stopped = "time limit" if time.monotonic() >= self.deadline else "nothing better found"
        seconds = time.monotonic() - began
        last = Moment(seconds, schedule.finish_us, bound.bound_us)
        return Result(
            schedule=schedule,
            bound=bound,
            backend=backend,
            stages=tuple(self.stages),
            seconds=seconds,
            seed=options.seed,
            versions=package_versions(),
            stopped=stopped,
            notes=(*faults, *notes),
            progress=(*self.moments, last),
            choice=choice,
        )

    def _target(self) -> int:
        if self.bound is None:
            return 0
        return -int(-self.bound.bound * self.problem.costs.ticks_per_us // 1)

    def _bound_us(self) -> float | None:
        return None if self.bound is None else self.bound.bound_us

    def _least_bound_us(self) -> float | None:
        """A bound that takes no time to speak of; None where any would take seconds."""
        if self.problem.collective.num_chunks > _MOST_BOUNDED:
            return None
        self.deadline = time.monotonic()
        return self._bound(0.0).bound_us

    def _bound(self, budget_s: float) -> Certificate:
        """A bound that is looked for until the deadline, or half a second where that is past.

        The first claim may take longer, of very large problems some seconds: there is no result without one.
        """
        finish = None if self.best is None else self.best.finish
        left_s = max(_LEAST_BOUND_S, self.deadline - time.monotonic())
        bound, _ = watched(
            partial(lower_bound, self.problem, budget_s=budget_s, limit_s=left_s, finish=finish),
            patience_s=0.0,
            tell=partial(self._tell_bound, left_s),
        )
        return bound

    def _report(self, doing: str) -> None:
        if self.options.progress is not None:
            best = None if self.best is None else self.best.finish_us
            self.options.progress(doing, best, self._bound_us())

    def _tell(self, since: float, past_s: float, doing: str, done: float | None) -> None:
        """Say how far a run is that takes long, and when it will be done."""
        self._left_s = past_s * (1 - done) / done + self._verified_s if done else None
        if past_s < _TOLD_AFTER_S:
            return
        what = f"greedy (compiled), {doing}" if doing else "greedy (compiled)"
        if not done or self._left_s is None:
            self._report(f"{what}, {past_s:.0f} s so far")
            return
        limit_s = self.deadline - since - past_s
        limit = f" (time limit in {limit_s:.0f} s)" if limit_s < self._left_s else ""
        self._report(f"{what}, {done:.0%} done, about {self._left_s:.0f} s left{limit}")

    def _tell_compiling(self, past_s: float, *_: object) -> None:
        if past_s >= _TOLD_AFTER_S:
            self._report(f"compiling, for this time only, {past_s:.0f} s so far")

    def _tell_bound(self, limit_s: float, past_s: float, *_: object) -> None:
        """Say how long the bound may take that takes long."""
        if past_s >= _TOLD_AFTER_S:
            self._report(f"bound, {past_s:.0f} s so far, at most {limit_s - past_s:.0f} s left")


def _verification_s(problem: Problem) -> float:
    """Seconds that the verification of a schedule takes, about."""
    collective = problem.collective
    to_one = not collective.combining and all(len(chunk.destinations) == 1 for chunk in collective.chunks)
    each_us = _VERIFIED_US if to_one else _SPREAD_US
    return memory_need(problem).num_transfers * each_us / 10**6


def _nothing(problem: Problem) -> Certificate:
    return Certificate(problem, Fraction(0), "none", "nothing that is proven", None)
