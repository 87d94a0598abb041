"""Chunks cut into smaller ones, as libraries cut what they send, for as long as that pays."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from taccl.baselines.spread import without_sketch
from taccl.errors import CollectiveError

if TYPE_CHECKING:
    from collections.abc import Callable

    from taccl.problem import Problem
    from taccl.schedule.schedule import Schedule

#: Finer chunks must finish in this share of the time, or they are not worth their messages.
_PAYS = Fraction(97, 100)
#: Schedules of more transfers are cut no further: each takes its time.
_MANY_TRANSFERS = 20_000
#: None of more than this is made by cutting.
_MOST_TRANSFERS = 100_000


def cut_while_it_pays(
    problem: Problem,
    make: Callable[[Problem], Schedule],
    *,
    cut: bool,
    parts: int = 2,
    pays: Fraction = _PAYS,
) -> Schedule:
    """The schedule of a problem without its sketch, whose chunks are cut for as long as that pays.

    - `make`: From a problem to its schedule.
    - `cut`: Whether chunks may be cut; else they are those of the problem.
    - `parts`: Into how many each is cut first; then into twice as many, and so on.
    - `pays`: Finer chunks must finish in this share of the time.
    """
    problem = without_sketch(problem)
    best = make(problem)
    if not best.num_transfers:
        return best
    most = min(_MOST_TRANSFERS // best.num_transfers, *problem.chunk_bytes)
    parts = min(parts, most)
    while cut and 1 < parts <= most:
        try:
            found = make(cut_chunks(problem, parts))
        except CollectiveError:  # finer than can be done
            break
        if found.finish > pays * best.finish:
            break
        best, parts = found, 2 * parts
        if 2 * found.num_transfers > _MANY_TRANSFERS:
            break
    return best


def cut_chunks(problem: Problem, parts: int) -> Problem:
    """The problem with every chunk cut into equal parts, which follow one another in buffers.

    As with sizes that do not divide into chunks, parts are rounded up to whole bytes, and a note says so.
    """
    collective = problem.collective
    chunks = tuple(chunk for chunk in collective.chunks for _ in range(parts))
    groups = tuple(replace(group, num_chunks=parts * group.num_chunks) for group in collective.groups)
    sizes = tuple(-(-size // parts) for size in problem.chunk_bytes for _ in range(parts))
    padded = ", rounded up to whole bytes" * any(size % parts for size in problem.chunk_bytes)
    return replace(
        problem,
        collective=replace(
            collective, chunks=chunks, groups=groups, chunks_per_rank=parts * collective.chunks_per_rank
        ),
        chunk_bytes=sizes,
        notes=(*problem.notes, f"each chunk is cut into {parts}{padded}"),
    )
