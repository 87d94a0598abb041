"""Proposers: algorithms that find schedules; the library's own and those that users register.

>>> from taccl.synthesis import register
>>> class Mine:
...     name = "mine"
...     def supports(self, problem):
...         return problem.collective.name == "allgather"
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
    """An algorithm that finds schedules of a problem; `taccl.synthesis.register` adds one to the portfolio.

    `taccl.synthesis.proposers.table` lists the library's own proposers. The portfolio runs registered
    proposers after the first baselines and before its own searches. The verifier checks the schedule that a
    proposer returns. If that schedule is the best so far, the search continues from it.
    """

    @property
    def name(self) -> str:
        """Name in the table of stages, and as producer of a schedule."""

    def supports(self, problem: Problem) -> bool:
        """True if the proposer may find a schedule of the problem."""

    def propose(self, search: Search) -> Schedule | None:
        """A schedule of ``search.problem``, or None if it finds none.

        ``search.best`` is the best schedule so far in the problem's number of chunks, or None; the first
        baselines, which are built before this number is chosen, are not in it. ``search.deadline`` is the
        time limit, and ``search.options.seed`` the seed. A registered proposer is stopped when its share of
        the time is up. It may pass intermediate schedules to ``search.offer_whole``, and need not return
        these.
        """


@runtime_checkable
class TimedProposer(Proposer, Protocol):
    """A proposer that estimates its run time; the budgeter skips it in a search with less time left."""

    def estimate_s(self, problem: Problem) -> float:
        """Estimated run time in seconds."""


def _any(_: Problem) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class OwnProposer:
    """A built-in proposer, made from functions; its `Turn` reserves time for it, by the search.

    - `propose`: Function that offers its schedules to the search, and records its own stages. A search of the
      same data in other chunks that it returns is added to ``search.others``.
    """

    name: str
    propose: Callable[[Search], Search | None]
    supports: Callable[[Problem], bool] = _any


def _is_proposer(thing: object) -> bool:
    return isinstance(thing, Proposer) and isinstance(thing.name, str) and thing.name != ""


#: Proposers that users registered, and those of installed packages (entry points ``taccl.proposers``).
PLUGINS: Plugins[Proposer] = Plugins(
    "taccl.proposers", "proposer", _is_proposer, "an object with a name and the methods supports and propose"
)


def register(proposer: Proposer) -> None:
    """Add a proposer to the portfolio of this process; it replaces a proposer of the same name.

    An installed package registers a proposer by an entry point in the group ``taccl.proposers``. The entry
    point names an object with the methods of `Proposer`, or a class of such objects. Worker processes of
    `taccl.compare` know only the proposers of packages.

    Raises
    ------
    InputError
        If it lacks a name or a method of `Proposer`.
    """
    PLUGINS.register(proposer)


def unregister(name: str) -> None:
    """Remove a proposer from the portfolio of this process.

    Raises
    ------
    InputError
        If no proposer of this name is registered.
    """
    PLUGINS.unregister(name)


def registered() -> list[Proposer]:
    """The registered proposers of this process, those of installed packages first."""
    return [*PLUGINS.by_name().values()]
