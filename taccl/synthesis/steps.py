"""Proposers: the steps of a search, and other ways to make a schedule that users register.

>>> from taccl.synthesis import register
>>> class Mine:
...     name = "mine"
...     def supports(self, problem):
...         return problem.collective.name == "allgather"
...     def estimate_s(self, problem):
...         return 0.1
...     def propose(self, search):
...         return None  # or a schedule of search.problem
>>> register(Mine())  # doctest: +SKIP
"""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from taccl._internal.deadline import OutOfTime
from taccl.errors import FallbackWarning, InputError, NoSolutionError, TacclError, warn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from taccl.problem.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.synthesis.search import Search

#: Group of entry points by which installed packages register proposers.
ENTRY_POINTS = "taccl.proposers"


class Step:
    """One proposer of a search, with its arguments.

    - `reserve_s`: Seconds that steps before it leave to it.
    """

    __slots__ = ("_given", "_propose", "reserve_s")

    def __init__(self, propose: Callable[..., None], *given: Any, reserve_s: float = 0.0) -> None:
        self._propose, self._given, self.reserve_s = propose, given, reserve_s

    def take(self, search: Search) -> None:
        """Offer what the proposer finds."""
        self._propose(search, *self._given)


def take_steps(search: Search, steps: Sequence[Step]) -> None:
    """Take steps one after another, and let each leave later ones their time."""
    for place, step in enumerate(steps, start=1):
        with search.keeping(sum(each.reserve_s for each in steps[place:])):
            step.take(search)


@runtime_checkable
class Proposer(Protocol):
    """A way to make a schedule of a problem; `taccl.synthesis.register` adds one to the portfolio.

    The portfolio asks it after the first baselines and before its own searches. The verifier checks the
    schedule, and a search goes on from it where it is the best.
    """

    @property
    def name(self) -> str:
        """Name in the table of stages, and as what found a schedule."""

    def supports(self, problem: Problem) -> bool:
        """True if it may find a schedule of the problem."""

    def estimate_s(self, problem: Problem) -> float:
        """About how many seconds it takes. It is left out where a search has less time for it."""

    def propose(self, search: Search) -> Schedule | None:
        """A schedule of ``search.problem``, or None.

        ``search.best`` is the best schedule so far, if any, ``search.deadline`` the end of the time, and
        ``search.options.seed`` the seed. It is stopped when its share of the time is up.
        """


_REGISTERED: dict[str, Proposer] = {}


def register(proposer: Proposer) -> None:
    """Add a proposer to the portfolio of this process; one of the same name is replaced.

    An installed package registers by an entry point of the group ``taccl.proposers``, which names an object
    with these methods, or a class that makes one; workers of `taccl.compare` know these alone.

    Raises
    ------
    InputError
        If it lacks a name or a method of `Proposer`.
    """
    if not isinstance(proposer, Proposer) or not isinstance(proposer.name, str) or not proposer.name:
        said = "expected an object with a name and the methods supports, estimate_s and propose"
        raise InputError(f"found {proposer!r}; {said}", where="proposer")
    _REGISTERED[proposer.name] = proposer


def unregister(name: str) -> None:
    """Take a proposer out of the portfolio of this process.

    Raises
    ------
    InputError
        If none of this name is registered.
    """
    if name not in _REGISTERED:
        known = ", ".join(_REGISTERED) or "none"
        raise InputError(f"found {name!r}; registered: {known}", where="name")
    del _REGISTERED[name]


def registered() -> list[Proposer]:
    """The proposers of this process, those of installed packages first."""
    return [*({each.name: each for each in _installed()} | _REGISTERED).values()]


def offer_registered(search: Search, share: float) -> None:
    """Offer the schedules of the proposers of users.

    - `share`: Of the time that is left, for each of them.
    """
    for proposer in registered():
        if search.done:
            return
        _offer(search, proposer, share)


def _offer(search: Search, proposer: Proposer, share: float) -> None:
    """Offer the schedule of one proposer. A fault of its own is a row of the stages and a warning."""
    problem, since, name = search.problem, time.monotonic(), proposer.name
    if not proposer.supports(problem):
        return
    limit_s = share * search.deadline.left_s
    if proposer.estimate_s(problem) > limit_s:
        message = f"takes about {proposer.estimate_s(problem):.2g} s, and there are {limit_s:.2g} s for it"
        search.record(name, "registered", "skipped", since, message=message)
        return
    search.report(name)
    try:
        with search.deadline.sooner(limit_s).enforced():
            found = proposer.propose(search)
    except (OutOfTime, NoSolutionError) as error:
        search.record(name, "registered", "no-solution", since, message=str(error))
        return
    if found is None:
        search.record(name, "registered", "no-solution", since)
        return
    fault = _fault(search, found)
    if fault:
        said = f"the proposer {name} made a schedule that {fault}; it was dropped"
        warn(said, FallbackWarning)
        search.notes.append(said)
        search.record(name, "registered", "refused", since, message=fault)
        return
    search.offer_whole(found, producer=name, verified=True)
    search.record(name, "registered", "done", since, finish_us=found.finish_us)


def _fault(search: Search, found: Schedule) -> str:
    """The reason why a proposal is no schedule of the problem; empty if it is one."""
    from taccl.analysis.verification.verify import verify

    try:
        if found.problem != search.problem:
            return f"is of another problem, {found.problem!r}"
        verification = verify(found)
    except (AttributeError, TypeError, TacclError) as error:
        return f"cannot be read: {error}"
    return "" if verification.ok else f"the verifier refuses: {verification.violations[0].message}"


@cache
def _installed() -> list[Proposer]:
    """The proposers of installed packages. One that cannot be loaded is left out with a warning."""
    from importlib.metadata import entry_points

    found: list[Proposer] = []
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            loaded = entry.load()
            proposer = loaded() if isinstance(loaded, type) else loaded
        except Exception as error:  # whatever another package raises as it is imported
            warn(f"the proposer {entry.name} could not be loaded ({error}); it is left out", FallbackWarning)
            continue
        if isinstance(proposer, Proposer):
            found.append(proposer)
        else:
            warn(f"the entry point {entry.name} names no proposer; it is left out", FallbackWarning)
    return found
