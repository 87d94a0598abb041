"""What every stage of a synthesis shares: the clock, the bound, the best verified schedule, the log."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING

from taccl.analysis.verification.verify import verify
from taccl.deadline import NEVER, Deadline
from taccl.sketch.group import symmetry_group
from taccl.synthesis.greedy import unfold
from taccl.synthesis.orbits import fold
from taccl.synthesis.result import ModelRun, Moment, Stage
from taccl.synthesis.timing_group import timing_group

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from taccl.analysis.certificates.certificate import Certificate
    from taccl.problem import Problem
    from taccl.schedule.compact import CompactSchedule
    from taccl.schedule.schedule import Schedule
    from taccl.synthesis.greedy import ListSchedule
    from taccl.synthesis.orbits import Orbits

__all__ = ["Options", "Search", "sound_bound"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """How to search: limits, threads, seed, where news goes, and what is kept of the schedule."""

    threads: int
    seed: int
    memory_limit_mb: int | None
    log: bool
    progress: Callable[[str, float | None, float | None], None] | None
    keep: str = "schedule"
    spill_dir: Path | None = None
    to_file: bool = False


@dataclass
class Search:
    """A search for a schedule of a problem whose chunks spread (a reduction is searched reversed).

    Parameters
    ----------
    deadline : float
        On the clock of `time.monotonic`.
    bound_ticks : int
        A proven lower bound: reaching it ends the search.
    best : Schedule, optional
        The best schedule that the verifier accepts.
    best_fold : ListSchedule, optional
        The same on the timing fold.
    first : Schedule, optional
        The list scheduler's, kept aside while a named solver works alone.
    ran_out : bool
        Whether time was up before the search was.
    fallback : str
        Why `first` was used after all.
    found : list of Moment
        When each best schedule was found, on the clock of `time.monotonic`.
    allowed_s : float
        Seconds that the deadline was put off by.
    give_up : Deadline
        When to stop without a schedule, with `OutOfTime`; by default its first run is always finished.
    unfolded : str
        Why routes are not folded by all symmetries.
    """

    problem: Problem
    options: Options
    deadline: float
    bound_ticks: int
    prefix: str = ""
    stages: list[Stage] = field(default_factory=list)
    best: Schedule | None = None
    best_fold: ListSchedule | None = None
    first: Schedule | None = None
    interrupted: bool = False
    fallback: str = ""
    last_improved: float = 0.0
    ran_out: bool = False
    found: list[Moment] = field(default_factory=list)
    allowed_s: float = 0.0
    give_up: Deadline = NEVER
    unfolded: str = ""

    def __post_init__(self) -> None:
        since = time.monotonic()
        group, timing = symmetry_group(self.problem), timing_group(self.problem)
        self.folded: Orbits = fold(self.problem, timing, give_up=self.give_up)
        self.fold_s = time.monotonic() - since
        times = f"symmetry of {group}, {timing} in time; " if group.generators else ""
        self.record("fold", "taccl", "done", since, message=f"{times}{len(self.folded.moves)} moves")
        self.last_improved = time.monotonic()

    @cached_property
    def routing_fold(self) -> Orbits:
        """For routes: folded by the whole group; where time is too short, only as far as times fold."""
        whole, timing = symmetry_group(self.problem), self.folded.group
        if whole.made_by((g.ranks for g in timing.generators), timing.order):
            return self.folded
        if self.time_left_s() < self.fold_s:
            self.unfolded = f"folded by {timing} of the symmetries, as time is short"
            return self.folded
        return fold(self.problem, whole)

    def time_left_s(self) -> float:
        """Seconds to the deadline; at least 0."""
        return max(0.0, self.deadline - time.monotonic())

    @property
    def done(self) -> bool:
        """Whether there is nothing left to do: the bound is met, time is up, or Ctrl-C came."""
        met = self.best is not None and self.best.finish_ticks <= self.bound_ticks
        return met or self.interrupted or self.time_left_s() <= 0

    def upper_ticks(self) -> int:
        """The finish of the best schedule so far."""
        known = self.best or self.first
        assert known is not None, "the list scheduler runs first"
        return known.finish_ticks

    def offer(self, schedule: ListSchedule, *, producer: str) -> float | None:
        """Unfold, verify and keep a schedule if it is the best; its finish in us, None if it was refused."""
        whole = unfold(self.folded, schedule.sends, producer=producer)
        better = self.best is None or whole.finish_ticks < self.best.finish_ticks
        finish_us = self.offer_whole(whole, producer=producer)
        if better and finish_us is not None:
            self.best_fold = schedule
        return finish_us

    def offer_whole(self, whole: Schedule, *, producer: str) -> float | None:
        """Verify and keep a schedule if it is the best; its finish in us, None if it was refused."""
        if self.best is None or whole.finish_ticks < self.best.finish_ticks:
            verification = verify(whole)
            if not verification.ok:
                logger.error("%s made a schedule that the verifier refuses: %s", producer, verification)
                return None
            self.best = whole
            self.last_improved = time.monotonic()
            bound_us, half = self.ticks_to_us(self.bound_ticks), self.prefix.removesuffix(": ")
            self.found.append(Moment(self.last_improved, whole.finish_us, bound_us, half))
            self.report(producer)
        return whole.finish_us

    def allow(self, seconds: float) -> None:
        """Put the deadline off by what no time limit should count."""
        self.deadline += seconds
        self.allowed_s += seconds

    def report(self, doing: str) -> None:
        """Tell the caller what is going on."""
        if self.options.progress is not None:
            best = self.best.finish_us if self.best is not None else None
            bound = float(self.problem.costs.us(self.bound_ticks))
            self.options.progress(self.prefix + doing, best, bound)

    def record(
        self,
        name: str,
        solver: str,
        status: str,
        since: float,
        *,
        finish_us: float | None = None,
        bound_us: float | None = None,
        message: str = "",
        model: ModelRun | None = None,
    ) -> None:
        """Add a stage that began at `since`."""
        seconds = time.monotonic() - since
        self.stages.append(
            Stage(self.prefix + name, solver, status, seconds, finish_us, bound_us, message, model)
        )

    def ticks_to_us(self, ticks: int | None) -> float | None:
        """Ticks in microseconds."""
        return None if ticks is None else float(self.problem.costs.us(ticks))


def sound_bound(
    schedule: Schedule | CompactSchedule, bound: Certificate
) -> tuple[Certificate, tuple[str, ...]]:
    """The bound; or, where a verified schedule is faster, none and a note, for then the bound is wrong."""
    if schedule.finish >= bound.bound:
        return bound, ()
    logger.error("%r: the bound %r is above a verified schedule", schedule.problem, bound)
    nothing = replace(bound, bound=Fraction(0), kind="none", limits="nothing that is proven", witness=None)
    return nothing, (
        "a fault of taccl's own: its bound was above a verified schedule, and was dropped; report it",
    )
