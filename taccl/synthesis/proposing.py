"""Proposers: ways to find a schedule, those of the library and those that users register, under one protocol.

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

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from taccl.errors import FallbackWarning, InputError, warn

if TYPE_CHECKING:
    from taccl.problem.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.synthesis.search import Search

#: Group of entry points by which installed packages register proposers.
ENTRY_POINTS = "taccl.proposers"


@runtime_checkable
class Proposer(Protocol):
    """A way to find a schedule of a problem; `taccl.synthesis.register` adds one to the portfolio.

    The library's own are listed in `taccl.synthesis.proposers.table`. The portfolio asks registered ones
    after the first baselines and before its own searches. The verifier checks what one returns, and a search
    goes on from it where it is the best.
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
        ``search.options.seed`` the seed. A registered one is stopped when its share of the time is up.
        Schedules that are found on the way go to ``search.offer_whole``, and need not be returned.
        """


def _any(_: Problem) -> bool:
    return True


def _at_once(_: Problem) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class OwnProposer:
    """A proposer of the library, made of functions. Each offers what it finds, and records its stages."""

    name: str
    propose: Callable[[Search], Schedule | None]
    supports: Callable[[Problem], bool] = _any
    estimate_s: Callable[[Problem], float] = _at_once


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
