"""Searches that start from a given schedule (warm start)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taccl._internal.units import format_size
from taccl.analysis.verification.verify import verify
from taccl.errors import InputError
from taccl.problem.making import make_problem
from taccl.problem.problem import Problem
from taccl.schedule.schedule import Schedule
from taccl.synthesis.search import Search
from taccl.synthesis.suggesting.chunks import improved_schedules
from taccl.synthesis.suggesting.cutting import cut

if TYPE_CHECKING:
    from taccl.topology.topology import Topology

#: `Result.choice` if the result is the given schedule.
GIVEN = "the schedule given to start from"


def checked_start(problem: Problem, start: Schedule) -> Schedule:
    """Return the given schedule as a verified schedule of the problem.

    It keeps its own number of chunks if the problem leaves that open.

    Raises `InputError` if it is of another problem, or the verifier refuses it.
    """
    asked, own = problem.in_its_chunks, start.problem
    for name, found, expected in (
        ("topology", own.topology, asked.topology),
        ("collective", own.collective.name, asked.collective.name),
        ("size", own.size_bytes, asked.size_bytes),
    ):
        if found != expected:
            ours, theirs = _shown(expected), _shown(found)
            other = f"{theirs} under other costs or another protocol" if ours == theirs else theirs
            raise _refused(f"of another {name}, {other}", f"of {ours}")
    if problem.chunks_open and own.collective != asked.collective:
        parts, rest = divmod(own.collective.num_chunks, asked.collective.num_chunks)
        asked = asked if rest else cut(asked, parts)
    if own.collective != asked.collective or own.chunk_bytes != asked.chunk_bytes:
        counts = (each.collective.num_chunks for each in (own, asked))
        raise _refused(f"in other chunks, {next(counts)}", f"in {next(counts)}, or leave chunks_per_rank out")
    merging = {name: getattr(own.clauses, name) for name in ("merging", "max_merge")}
    default = make_problem(asked.topology, asked.collective, chunk_bytes=asked.chunk_bytes).clauses
    # Without a sketch, the given schedule may also merge sends on links where this is not the default, as
    # baselines do.
    allowed = [asked, asked.with_clauses(**merging)] if asked.clauses == default else [asked]
    for each in allowed:
        schedule = start.under(each)
        verification = verify(schedule)
        if verification.ok:
            return schedule
    fault = verification.violations[0].message
    raise _refused(f"that the verifier refuses ({fault})", "that is valid for the problem")


def _shown(value: Topology | str | int | None) -> str:
    return format_size(value) if isinstance(value, int) else str(getattr(value, "name", value))


def _refused(found: str, expected: str) -> InputError:
    return InputError(f"found a schedule {found}; expected one {expected}", where="start")


def begin_with(whole: Search, start: Schedule) -> None:
    """Add a search to ``whole.others`` that holds the given schedule, in its own chunks."""
    given = whole.beside(start.problem, choice=GIVEN)
    given.offer_whole(start, producer="start", verified=True)
    whole.others.append(given)


def continue_from(search: Search, whole: Search) -> None:
    """Start the search from the known schedules with its number of chunks.

    These are the schedules by which the portfolio chose this number, and the given schedule. The search that
    held the given schedule is removed from ``whole.others``.
    """
    if search.backend == "auto" and search.options.keeps_sends:
        for each in improved_schedules(search.problem):
            search.offer_whole(each.under(search.problem), producer=each.producer)
    start = search.options.start
    if start is not None and start.problem == search.problem:
        search.offer_whole(start, producer="start", verified=True)
        whole.others = [each for each in whole.others if each.best is not start or each is search]
