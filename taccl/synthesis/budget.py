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
from taccl.synthesis.proposing import Proposer, TimedProposer

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

    proposer: Proposer
    is_meant: Callable[[Search], bool] = _always
    why_not: Callable[[Search], str] = _no_reason
    reserve_s: Callable[[Search], float] = nothing
    share: float | None = None
    runs_late: bool = False
    improves: bool = False


def run(search: Search, turns: Sequence[Turn]) -> None:
    """Run proposers in order, each with the time that later ones have not reserved.

    Proposers for which no time is left share a row of the stages that lists them.
    """
    meant = [each for each in turns if each.is_meant(search) and each.proposer.supports(search.problem)]
    reserves_s = [
        0.0 if each.reserve_s is nothing or each.why_not(search) else each.reserve_s(search) for each in meant
    ]
    late: list[str] = []
    for place, turn in enumerate(meant):
        has_begun = search.has_found
        if turn.improves and not has_begun:
            continue
        if has_begun and search.done and not turn.runs_late:
            if not (search.is_met or search.deadline.cancellation.why):
                late.append(turn.proposer.name)
            continue
        with search.keeping(sum(reserves_s[place + 1 :])):
            _ask(search, turn)
    if late:
        kept_s, said = search.top.kept_s, f"no time left for {', '.join(dict.fromkeys(late))}"
        said += f", as {kept_s:.1f} s are reserved for further steps" if kept_s > 0 else ""
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
    """Run one proposer, and propose its schedule as incumbent.

    An invalid schedule of a user's proposer is dropped, with a row in the stages and a warning. If it runs
    past its time limit, its row says for how long.

    Raises `InputError` if it changes the problem or sets the incumbent: no later result would be of the given
    problem, or verified.
    """
    why_not = turn.why_not(search)
    proposer, since, is_limited = turn.proposer, time.monotonic(), turn.share is not None
    solver = "registered" if is_limited else "taccl"
    limit_s = search.deadline.left_s * (1.0 if turn.share is None else turn.share)
    if isinstance(proposer, TimedProposer) and not why_not:
        needed_s = proposer.estimate_s(search.problem)
        if not isinstance(needed_s, Real):
            said = f"estimate_s returned {needed_s!r}; expected seconds"
            raise InputError(said, where=f"proposer {proposer.name}")
        if needed_s > limit_s:
            why_not = f"takes about {format_s(needed_s)}, and there are {format_s(limit_s)} for it"
    if why_not:
        row = search.prefix + proposer.name, why_not
        if row not in ((each.name, each.message) for each in search.stages):  # a later turn has the same row
            search.record(proposer.name, solver, "skipped", since, message=why_not)
        return
    found, failed, is_cut, until = None, "", False, search.deadline.sooner(limit_s)
    before = _parts(search.problem) if is_limited else []
    kept, rows = (search.best, search.is_verified, search.best_on_quotient), [*search.stages]
    sound: list[Schedule] = []

    def is_sound(schedule: Schedule) -> bool:
        """True if a schedule of the proposer is valid; otherwise the stages, a note and a warning say why."""
        fault = _fault(search, schedule)
        if fault:
            said = f"the proposer {proposer.name} made a schedule that {fault}; the schedule is dropped"
            if said not in search.notes:
                warn(said, FallbackWarning)
                search.notes.append(said)
                search.record(proposer.name, solver, "refused", since, message=fault)
        else:
            sound.append(schedule)
        return not fault

    if is_limited:
        search.report(proposer.name)
        search.judge = is_sound
    try:
        with until.enforced() if is_limited else search.accounting(proposer.name):
            found = proposer.propose(search)
    except (OutOfTime, NoSolutionError) as error:
        if not is_limited:
            raise
        is_cut = isinstance(error, OutOfTime) and until.has_passed
        failed = f"stopped after {format_s(limit_s)}, its share of the time" if is_cut else str(error)
    except (TimeIsUp, KeyboardInterrupt) as error:  # TimeIsUp: an interrupt by an outer deadline
        if is_limited:
            status = "interrupted" if isinstance(error, KeyboardInterrupt) else "timed-out"
            search.record(proposer.name, solver, status, since, message=_late(until))
        raise
    finally:
        search.judge = None
        has_set = is_limited and not any(search.best is each for each in (kept[0], *sound))
        if has_set:  # also if the proposer was interrupted: no unverified schedule may remain
            search.best, search.is_verified, search.best_on_quotient = kept
        elif is_limited:
            search.is_verified = kept[1] if search.best is kept[0] else True
        if is_limited and search.stages[: len(rows)] != rows:
            search.stages[:] = [*rows, *(each for each in search.stages if each not in rows)]
    if has_set:
        said = "it set search.best; expected a schedule that it returns or passes to search.offer_whole"
        raise InputError(said, where=f"proposer {proposer.name}")
    if is_limited and any(a is not b for a, b in zip(before, _parts(search.problem), strict=True)):
        said = "it changed the problem of the search; expected a proposer that only reads the problem"
        raise InputError(said, where=f"proposer {proposer.name}")
    late = _late(until) if is_limited else ""
    if found is None:
        if is_limited:
            status = "timed-out" if is_cut else "no-solution"
            search.record(proposer.name, solver, status, since, message=late or failed)
        return
    if not is_sound(found):
        return
    search.offer_whole(found, producer=proposer.name, verified=True)
    search.record(proposer.name, solver, "done", since, finish_us=found.finish_us, message=late)


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
