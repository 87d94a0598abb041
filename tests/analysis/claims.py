"""Certificates of all claims of one finder of bounds, and the schedules that a claim must not exceed."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Any

import taccl
from taccl import collectives
from taccl.analysis.certificates.certificate import Certificate
from taccl.analysis.certificates.finding.needed_sends import NeededSends
from taccl.analysis.certificates.transformed import as_spreading, merging_freely
from tests.effort import brief_synthesis
from tests.fuzzing import MANY
from tests.synthesis.brute_force import TooLarge, finishes_by
from tests.synthesis.brute_force_apart import sums_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from taccl.analysis.certificates.certificate import Claim
    from taccl.problem.problem import Problem


def certificates_of(
    finder: Callable[..., Iterable[Claim]], problem: Problem, *, divisible: bool = False, **options: Any
) -> list[Certificate]:
    """Certificates of the finder's claims, for the problem's chunks or, if `divisible`, over all chunkings."""
    per_us = problem.costs.ticks_per_us
    return [
        Certificate(problem, Fraction(each.ticks) / per_us, each.kind, each.limits, each.witness, divisible)
        for each in finder(NeededSends(as_spreading(problem)), **options)
    ]


def raised(bound: Certificate) -> Certificate:
    """The certificate with a slightly larger bound, which its witness must not prove."""
    return replace(bound, bound=bound.bound + Fraction(1, 10**12))


def both_chunkings(topology: taccl.Topology, name: str) -> list[Problem]:
    """A collective in one chunk of 2 MB per rank and in two of 1 MB, with sends that merge freely.

    The list is empty if a destination cannot be reached.
    """
    found = []
    for parts in (1, 2):
        collective = collectives.make(name, topology.num_ranks, chunks_per_rank=parts)
        with suppress(taccl.InputError):
            found.append(
                merging_freely(taccl.make_problem(topology, collective, chunk_bytes=2 // parts * 10**6))
            )
    return found


def baseline_finishes(problem: Problem, *, cut: bool = True) -> Iterator[Fraction]:
    """Yield the finish in microseconds of each baseline that supports the problem."""
    for function in taccl.baselines.BASELINES.values():
        with suppress(taccl.InputError):
            yield function(problem, cut=cut).finish


def is_unbeaten(problem: Problem, bound: Fraction, *, max_states: int) -> bool:
    """True if exhaustive search ends; asserts that no schedule finishes before `bound` (in microseconds)."""
    spread = problem if problem.release_us or problem.due_us else as_spreading(problem)
    last = ceil(bound * problem.costs.ticks_per_us) - 1
    finds_schedule = sums_by if spread.collective.combining else finishes_by
    try:
        assert not finds_schedule(spread, last, max_states=max_states)
    except TooLarge:
        return False
    return True


def num_decided(
    problems: list[Problem], found: list[Certificate], seed: int, *, max_states: int = 2000,
    most_chunks: int | None = None, baselines: bool = False,
) -> int:  # fmt: skip
    """Number of problems for which exhaustive search ends, none if no certificate claims more than 0.

    Asserts that witnesses prove their bounds, and that no schedule of any problem finishes before the largest.

    - `max_states`: Max states of each exhaustive search.
    - `most_chunks`: Max chunks of problems that are searched; None for any number.
    - `baselines`: True to assert that no baseline finishes before the largest bound either.
    """
    assert all(each.check() for each in found), seed
    best = max((each.bound for each in found), default=Fraction(0))
    if baselines:
        finishes = (finish for problem in problems for finish in baseline_finishes(problem, cut=False))
        assert all(best <= finish for finish in finishes), seed
    small = [each for each in problems if most_chunks is None or each.collective.num_chunks <= most_chunks]
    return sum(best > 0 and is_unbeaten(each, best, max_states=max_states) for each in small)


def ratios(bounds: list[Certificate], problem: Problem, seed: int, *, searched: bool = False) -> list[float]:
    """Finishes of baselines, and in long runs of a search, over each bound; asserts that witnesses prove these."""
    assert all(each.check() for each in bounds), seed
    finishes = [*baseline_finishes(problem)] if bounds else []
    if searched and bounds and MANY:
        finishes.append(brief_synthesis(problem).schedule.finish)
    return [float(finish / each.bound) for finish in finishes for each in bounds]
