"""Options of a search: limits, what is kept of its schedule, callbacks, and stopping rules."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from taccl._internal.deadline import Cancellation
from taccl._internal.units import format_size
from taccl.errors import NoSolutionError
from taccl.schedule.schedule import Schedule
from taccl.synthesis.parameters import DEFAULTS, SearchParameters
from taccl.synthesis.stopping import SearchState, StoppingRule
from taccl.synthesis.suggesting.proposals import SketchProposal

if TYPE_CHECKING:
    from pathlib import Path

    from taccl.analysis.certificates.certificate import Certificate
    from taccl.synthesis.result import Stage

T = TypeVar("T")


class _CallbackFailed(BaseException):
    """Wrapper that carries a callback's exception past the exception handlers of the search."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def called(callback: Callable[..., T], *arguments: object) -> T:
    """Call a user's callback; its exception passes all handlers up to `raising_errors_of_callbacks`."""
    try:
        return callback(*arguments)
    except Exception as error:
        raise _CallbackFailed(error) from error


@contextmanager
def raising_errors_of_callbacks() -> Iterator[None]:
    """Context manager that raises the exception of a callback (`called`) itself, without its wrapper."""
    failed: _CallbackFailed | None = None
    try:
        yield
    except _CallbackFailed as found:
        failed = found
    if failed is not None:  # raised here, as the `except` block would set the wrapper as context
        raise failed.error


class Observer:
    """Callbacks of one search. Each is called in the thread of the search, which waits for it.

    An exception in a callback ends the search, whatever its type (`raising_errors_of_callbacks`).

    Parameters
    ----------
    progress : callable, optional
        Called with (current activity, best finish in us or None, highest bound in us or None).
    on_incumbent : callable, optional
        Called with each schedule of the problem that finishes before all earlier ones.
    on_bound : callable, optional
        Called with each bound that is higher than all earlier ones.
    on_stage : callable, optional
        Called with each stage when it ends.
    rules : sequence of StoppingRule
        Asked after each incumbent, bound and stage; the search ends once one of them is met.
    is_open : bool
        True if only bounds over all chunkings are bounds of the given problem.
    cancellation : Cancellation, optional
        Cancelled to end the search; None for a new one.
    """

    def __init__(
        self,
        *,
        progress: Callable[[str, float | None, float | None], None] | None = None,
        on_incumbent: Callable[[Schedule], None] | None = None,
        on_bound: Callable[[Certificate], None] | None = None,
        on_stage: Callable[[Stage], None] | None = None,
        rules: Sequence[StoppingRule] = (),
        is_open: bool = False,
        cancellation: Cancellation | None = None,
    ) -> None:
        self._progress, self.rules = progress, tuple(rules)
        self._on_incumbent, self._on_bound, self._on_stage = on_incumbent, on_bound, on_stage
        self._is_open, self._asked_bound_us = is_open, 0.0
        #: Maps a schedule of the transformed problem to one of the given problem; None if they are the same.
        #: Schedules for which the mapping raises `NoSolutionError` are not reported.
        self.restored: Callable[[Schedule], Schedule] | None = None
        self._cancellation = Cancellation() if cancellation is None else cancellation
        self._began_s, self._finish_us, self._bound_us = time.monotonic(), math.inf, 0.0
        self._told_finish_us, self._told_bound_us = math.inf, 0.0

    def report(self, doing: str, finish_us: float | None, bound_us: float | None = None) -> None:
        """Report an activity, with the best finish and bound of any report so far.

        Thus the reported figures never get worse, even while a search in other chunks has no schedule yet.
        """
        if self._progress is None:
            return
        self._told_finish_us = min(self._told_finish_us, math.inf if finish_us is None else finish_us)
        self._told_bound_us = max(self._told_bound_us, bound_us or 0.0)
        best_us = self._told_finish_us if self._told_finish_us < math.inf else None
        called(self._progress, doing, best_us, self._told_bound_us or None)

    def incumbent(self, schedule: Schedule) -> None:
        """Report a schedule of the problem, if it is the best so far."""
        if self.restored is not None and (self._on_incumbent is not None or self.rules):
            try:
                schedule = self.restored(schedule)
            except NoSolutionError:
                return
        if schedule.finish_us < self._finish_us:
            self._finish_us = schedule.finish_us
            if self._on_incumbent is not None:
                called(self._on_incumbent, schedule)
            self._judge()

    def bound(self, bound: Certificate) -> None:
        """Report a bound of the problem, if it is the highest so far."""
        if bound.divisible or not self._is_open:
            self._asked_bound_us = max(self._asked_bound_us, bound.bound_us)
        if bound.bound_us > self._bound_us:
            self._bound_us = bound.bound_us
            if self._on_bound is not None:
                called(self._on_bound, bound)
        self._judge()

    def stage(self, stage: Stage) -> None:
        """Report a stage that ended."""
        if self._on_stage is not None:
            called(self._on_stage, stage)
        self._judge()

    def _judge(self) -> None:
        """End the search if it has a schedule and a stopping rule is met."""
        if self._finish_us == math.inf:
            return
        seconds = time.monotonic() - self._began_s
        state = SearchState(seconds, self._finish_us, self._bound_us, self._asked_bound_us)
        for rule in self.rules:
            if called(rule.is_met, state):
                self._cancellation.cancel(rule.reason)


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a search: backend, limits, seed, callbacks, what is kept of the schedule, and all constants.

    - `idle_share`: Share of its elapsed time that improvement may last without progress; None for no limit.
    - `start`: Verified schedule of the problem to start from, in its own chunks; None for no such schedule.
    - `began_s`, `ends_s`: Start and time limit of the synthesis on the clock of `time.monotonic`.
    - `delay_s`: Seconds before the start for which a busy machine delayed the program.
    - `late_s`: Seconds by which `ends_s` is later than the time limit of the program.
    """

    backend: str = "auto"
    sketch: str | SketchProposal = "auto"
    threads: int = 1
    seed: int = 0
    memory_limit_mb: int | None = None
    log: bool = False
    observer: Observer = field(default_factory=Observer)
    keep: str = "schedule"
    spill_dir: Path | None = None
    to_file: bool = False
    parameters: SearchParameters = DEFAULTS
    policy: Literal["lp", "greedy"] = "lp"
    in_network: Literal["auto", "off", "only"] = "auto"
    idle_share: float | None = None
    start: Schedule | None = None
    began_s: float = field(default_factory=lambda: time.monotonic())
    ends_s: float = math.inf
    delay_s: float = 0.0
    late_s: float = 0.0

    @property
    def keeps_sends(self) -> bool:
        """True if all sends of a schedule are kept in memory."""
        return self.spill_dir is None and self.keep != "summary"

    @property
    def unobserved(self) -> Options:
        """The options without callbacks and start, for a search of another problem."""
        return replace(self, observer=Observer(), start=None)

    @property
    def of_solvers(self) -> dict[str, Any]:
        """{name: value} of the options that every solver takes."""
        return {each: getattr(self, each) for each in ("threads", "seed", "memory_limit_mb", "log")}

    def kept(self, schedule: Schedule) -> tuple[Schedule, list[str]]:
        """(the schedule in the form that the caller asked for, notes on that form)."""
        if self.keep == "summary":
            from taccl.schedule.spill import summarize

            said = f"the {schedule.num_transfers} transfers were verified and then dropped, as requested"
            return summarize(schedule), [said]
        if self.spill_dir is not None:
            from taccl.schedule.spill import spill

            said = f"the columns ({format_size(schedule.num_bytes)}) are kept in {self.spill_dir}"
            return spill(schedule, self.spill_dir), [said]
        return schedule, []
