"""Run the proposers of a search in order, each in its share of the time, and log each as a stage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from numbers import Real
from typing import TYPE_CHECKING

from taccl._internal.deadline import OutOfTime
from taccl._internal.interrupts import TimeIsUp
from taccl._internal.units import format_s
from taccl.analysis.verification.verify import verify
from taccl.errors import FallbackWarning, InputError, NoSolutionError, TacclError, warn
from taccl.synthesis.proposing import OwnProposer, Proposer, TimedProposer

if TYPE_CHECKING:
    from taccl._internal.deadline import Deadline
    from taccl.problem.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.synthesis.search import Search


#: Min seconds by which a registered proposer exceeds its time limit before the log of stages says so.
_LATE_S = 0.5


def _always(_: Search) -> bool:
    return True


def _no_reason(_: Search) -> str:
    return ""


def nothing(_: Search) -> float:
    """Reserve 0 seconds for a proposer, so that earlier proposers may use up the time limit."""
    return 0.0


@dataclass(frozen=True, slots=True)
class Turn:
    """Proposer in the order of a search, with the conditions under which it runs and its share of time.

    - `is_meant`: True if the options ask for it; otherwise it is left out without a row in the stages.
    - `why_not`: Reason to skip it, shown as a row of the stages; empty if it may run.
    - `reserve_s`: Seconds that earlier proposers must leave for it.
    - `share`: Share of the time left after which it is stopped; None if it ends by itself.
    - `runs_late`: True if it also runs once time is up or the bound is met.
    - `improves`: True if it starts from an earlier schedule, and so is skipped without one.
    """

    proposer: Proposer | OwnProposer
    is_meant: Callable[[Search], bool] = _always
    why_not: Callable[[Search], str] = _no_reason
    reserve_s: Callable[[Search], float] = nothing
    share: float | None = None
    runs_late: bool = False
    improves: bool = False


def run(search: Search, turns: Sequence[Turn]) -> None:
    """Run proposers in order, each with the time that later ones have not reserved.

    Proposers without time left are asked again once no time is reserved.
    """
    meant = [each for each in turns if each.is_meant(search) and each.proposer.supports(search.problem)]
    reserves_s = [
        0.0 if each.reserve_s is nothing or each.why_not(search) else each.reserve_s(search) for each in meant
    ]
    for place, turn in enumerate(meant):
        has_begun = search.has_found
        if turn.improves and not has_begun:
            continue
        if has_begun and search.done and not turn.runs_late:
            search.top.left_out.append((search, turn))
            continue
        with search.keeping(sum(reserves_s[place + 1 :])):
            _ask(search, turn)
    if search is search.top and not search.kept_s:
        _ask_again(search)


def _ask_again(search: Search) -> None:
    """Run the proposers that were left out, in time that was reserved and is not needed.

    If all time was used, one row of the stages lists them. Proposers of a part with another backend than the
    search are not run again, as the search runs the same ones after that part.
    """
    left_out, search.left_out = search.left_out, []
    late: dict[str, None] = {}
    for part, turn in left_out:
        if part.is_met or search.is_met or search.deadline.cancellation.why:
            continue
        if search.deadline.has_passed:
            late[part.prefix + turn.proposer.name] = None
        elif part.backend == search.backend and turn.is_meant(part):
            part.deadline = search.deadline.sooner(search.idle_s)
            _ask(part, turn)
    if late:
        said = f"no time left for {', '.join(late)}"
        search.record("later steps", "taccl", "skipped", time.monotonic(), message=said)


@contextmanager
def going_on(whole: Search) -> Iterator[None]:
    """Context in which Ctrl-C or `NoSolutionError` ends the search without an exception if it has a schedule.

    `OutOfTime` at the deadline is a `NoSolutionError`. If the search has no schedule, the exception is raised
    again.
    """
    try:
        yield
    except KeyboardInterrupt:
        if not whole.has_found:
            raise
        whole.interrupt()
    except NoSolutionError as error:
        if not whole.has_found:
            raise
        whole.ran_out = True
        if not isinstance(error, OutOfTime):
            whole.notes.append(f"the search found no schedule: {error}")


def _ask(search: Search, turn: Turn) -> None:
    """Run one proposer, and propose its schedule as incumbent; if it is skipped, its row gives the reason."""
    proposer, since = turn.proposer, time.monotonic()
    limit_s = search.deadline.left_s * (1.0 if turn.share is None else turn.share)
    why_not = turn.why_not(search) or _too_long(search, proposer, limit_s)
    if why_not:
        row = search.prefix + proposer.name, why_not
        if row not in ((each.name, each.message) for each in search.stages):  # a later turn has the same row
            solver = "taccl" if isinstance(proposer, OwnProposer) else "registered"
            search.record(proposer.name, solver, "skipped", since, message=why_not)
    elif not isinstance(proposer, OwnProposer):
        _ask_registered(search, proposer, limit_s)
    else:
        with search.accounting(proposer.name):
            other = proposer.propose(search)
        if other is not None:
            search.others.append(other)


def _too_long(search: Search, proposer: Proposer | OwnProposer, limit_s: float) -> str:
    """Reason to skip a proposer that estimates more time than it has; empty if there is none."""
    if not isinstance(proposer, TimedProposer):
        return ""
    needed_s = proposer.estimate_s(search.problem)
    if not isinstance(needed_s, Real):
        said = f"estimate_s returned {needed_s!r}; expected seconds"
        raise InputError(said, where=f"proposer {proposer.name}")
    if needed_s <= limit_s:
        return ""
    return f"takes about {format_s(needed_s)}, and there are {format_s(limit_s)} for it"


def _ask_registered(search: Search, proposer: Proposer, limit_s: float) -> None:
    """Run a user's proposer for at most `limit_s` seconds, and propose its schedule if it is valid.

    If it runs past its time limit, its row says for how long.
    """
    since, until = time.monotonic(), search.deadline.sooner(limit_s)
    found, status, message = None, "no-solution", ""
    search.report(proposer.name)
    with _guarded(search, proposer, since) as is_sound:
        try:
            with until.enforced():
                found = proposer.propose(search)
        except (OutOfTime, NoSolutionError) as error:
            message = str(error)
            if isinstance(error, OutOfTime) and until.has_passed:
                status, message = "timed-out", f"stopped after {format_s(limit_s)}, its share of the time"
        except (TimeIsUp, KeyboardInterrupt) as error:  # TimeIsUp: an interrupt by an outer deadline
            status = "interrupted" if isinstance(error, KeyboardInterrupt) else "timed-out"
            search.record(proposer.name, "registered", status, since, message=_late(until))
            raise
    found_us, message = None, _late(until) or message
    if found is not None:
        if not is_sound(found):
            return
        search.offer_whole(found, producer=proposer.name, verified=True)
        status, found_us = "done", found.finish_us
    search.record(proposer.name, "registered", status, since, finish_us=found_us, message=message)


@contextmanager
def _guarded(search: Search, proposer: Proposer, since: float) -> Iterator[Callable[[Schedule], bool]]:
    """Context in which a user's proposer runs: it cannot remove stages, or keep an unverified incumbent.

    The context's value is the judge of its schedules: an invalid one is dropped, with a row in the stages, a
    note and a warning. Raises `InputError` if the proposer changes the problem or sets the incumbent, since
    no later result would be of the given problem, or verified.
    """
    before, rows = _parts(search.problem), [*search.stages]
    kept = search.best, search.is_verified, search.best_on_quotient
    sound: list[Schedule] = []

    def is_sound(schedule: Schedule) -> bool:
        fault = _fault(search, schedule)
        if not fault:
            sound.append(schedule)
            return True
        said = f"the proposer {proposer.name} made a schedule that {fault}; the schedule is dropped"
        if said not in search.notes:
            warn(said, FallbackWarning)
            search.notes.append(said)
            search.record(proposer.name, "registered", "refused", since, message=fault)
        return False

    search.judge = is_sound
    try:
        yield is_sound
    finally:
        search.judge = None
        has_set = not any(search.best is each for each in (kept[0], *sound))
        if has_set:  # also if the proposer was interrupted: no unverified schedule may remain
            search.best, search.is_verified, search.best_on_quotient = kept
        else:
            search.is_verified = kept[1] if search.best is kept[0] else True
        if search.stages[: len(rows)] != rows:
            search.stages[:] = [*rows, *(each for each in search.stages if each not in rows)]
    said = ""
    if has_set:
        said = "it set search.best; expected a schedule that it returns or passes to search.offer_whole"
    elif any(a is not b for a, b in zip(before, _parts(search.problem), strict=True)):
        said = "it changed the problem of the search; expected a proposer that only reads the problem"
    if said:
        raise InputError(said, where=f"proposer {proposer.name}")


def _late(until: Deadline) -> str:
    """Text of the time by which a proposer exceeded its time limit; empty if that is short."""
    over_s = time.monotonic() - until.at_s
    return f"ran {over_s:.1f} s past its time limit" if over_s > _LATE_S else ""


def _parts(problem: Problem) -> list[object]:
    """Values of the fields of a problem and of its parts, compared by identity to find a changed field."""
    every = problem, problem.topology, problem.collective, problem.clauses
    return [getattr(each, field.name) for each in every for field in fields(each)]


def _fault(search: Search, found: Schedule) -> str:
    """Reason why a proposer's schedule is invalid for the problem; empty if it is valid."""
    try:
        if found.problem != search.problem:
            return f"is for another problem, {found.problem!r}"
        verification = verify(found)
    except (AttributeError, TypeError, TacclError) as error:
        return f"cannot be read: {error}"
    return "" if verification.ok else f"the verifier refuses: {verification.violations[0].message}"
