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
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from taccl._internal.plugins import Plugins

if TYPE_CHECKING:
    from taccl.problem.problem import Problem
    from taccl.schedule.schedule import Schedule
    from taccl.synthesis.search import Search


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


def _is_proposer(thing: object) -> bool:
    return isinstance(thing, Proposer) and isinstance(thing.name, str) and thing.name != ""


#: Proposers of users, and of installed packages by entry points of the group ``taccl.proposers``.
PLUGINS: Plugins[Proposer] = Plugins(
    "taccl.proposers",
    "proposer",
    _is_proposer,
    "an object with a name and the methods supports, estimate_s and propose",
)


def register(proposer: Proposer) -> None:
    """Add a proposer to the portfolio of this process; one of the same name is replaced.

    An installed package registers by an entry point of the group ``taccl.proposers``, which names an object
    with these methods, or a class that makes one; workers of `taccl.compare` know these alone.

    Raises
    ------
    InputError
        If it lacks a name or a method of `Proposer`.
    """
    PLUGINS.register(proposer)


def unregister(name: str) -> None:
    """Take a proposer out of the portfolio of this process.

    Raises
    ------
    InputError
        If none of this name is registered.
    """
    PLUGINS.unregister(name)


def registered() -> list[Proposer]:
    """The proposers of this process, those of installed packages first."""
    return [*PLUGINS.by_name().values()]
