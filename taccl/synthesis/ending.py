"""The end of a search: its bounds, the reason why it ended, and its result."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from taccl.analysis.certificates.bounds import latency_bound
from taccl.analysis.certificates.scopes import stronger
from taccl.analysis.verification.verify import verify
from taccl.errors import FallbackWarning, warn
from taccl.solvers.registry import package_versions
from taccl.synthesis.bounding import no_bound
from taccl.synthesis.result import Result
from taccl.synthesis.stages import Stages, Trace, TraceEntry

if TYPE_CHECKING:
    from taccl.analysis.certificates.certificate import Certificate
    from taccl.synthesis.search import Search

logger = logging.getLogger(__name__)


def settle(search: Search) -> None:
    """Compute the bounds of a search, and set `stopped`: the reason why it ended."""
    search.look_for_bound()
    bound, _ = _sound_bound(search)
    search.stopped = _why_stopped(search, bound)


def _why_stopped(search: Search, bound: Certificate) -> str:
    """Reason why the search ended, as `Result.stopped` lists them."""
    assert search.best is not None, "there is a schedule"
    if search.interrupted:
        return "interrupted"
    if search.stopped:
        return search.stopped
    if search.best.finish <= bound.bound:
        return "bound met"
    if search.deadline.cancellation.why:
        return search.deadline.cancellation.why
    return "time limit" if search.ran_out or search.deadline.has_passed else "nothing better found"


def result_of(search: Search, choice: str) -> Result:
    """Result of a search: the incumbent, verified if it was not yet, with bound, stages, trace and notes."""
    assert search.best is not None, "there is a schedule"
    if not search.is_verified:
        since = time.monotonic()
        verify(search.best).raise_if_failed()
        search.record("verification", "taccl", "done", since)
    bound, faults = _sound_bound(search)
    stopped = _why_stopped(search, bound)
    options = search.options
    schedule, kept = options.kept(search.best)
    for message in dict.fromkeys(search.fallbacks):
        warn(message, FallbackWarning)
    notes = tuple(dict.fromkeys((*faults, *search.problem.notes, *search.fallbacks, *search.notes, *kept)))
    versions = package_versions()
    search.record("overhead", "taccl", "done", options.began_s, message="time outside the other stages")
    seconds = time.monotonic() - options.began_s
    trace = Trace.of(search.trace, TraceEntry(seconds, schedule.finish_us, bound.bound_us))
    return Result(
        schedule, bound, options.backend, Stages(search.stages), seconds, options.seed, versions,
        stopped, notes, trace, choice, search.dimension_bound,
    )  # fmt: skip


def _sound_bound(search: Search) -> tuple[Certificate, tuple[str, ...]]:
    """(lower bound, messages): the larger of the problem's bound and the bound over all chunkings.

    The bound is zero, with a message, if none was proven in time, or if a verified schedule refutes it.
    """
    assert search.best is not None, "there is a schedule"
    if not (search.interrupted or search.is_strengthened):
        search.is_strengthened = True
        every = search.look_over_all_chunkings(search.bound)
        known = search.bound
        if known is None and every is None:
            has_dates = search.problem.release_us or search.problem.due_us
            known = no_bound(search.problem) if has_dates else latency_bound(search.problem)
        search.bound = stronger(known or no_bound(search.problem), every)
    if search.bound is None:
        fault = "stopped before a lower bound was proven; give more time, or call lower_bound"
    elif search.best.finish >= search.bound.bound:
        return search.bound, ()
    else:
        logger.error("%r: the bound %r is above a verified schedule", search.problem, search.bound)
        fault = "internal error: a bound above a verified schedule was dropped; please report it"
    return no_bound(search.problem), (fault,)
