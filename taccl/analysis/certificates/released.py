"""Bounds of problems in which not everything is there from the start.

What is there from some moment on takes its own bound from that moment: the single-machine relaxation's
argument, with what `lower_bound` proves of the late part in place of a machine. Of a sum, only contributions
that are late count.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from taccl.collective import Collective

if TYPE_CHECKING:
    from fractions import Fraction

    from taccl.problem import Problem

#: Of so many moments bounds are worked out: those after which most seems to be left.
_MOST_MOMENTS = 6


def late_part(problem: Problem, moment: Fraction) -> Problem | None:
    """What cannot be sent before a moment, as a problem that begins with it; None if that is nothing."""
    release = {(chunk, rank): us for chunk, rank, us in problem.release_us}
    collective, chunks, sizes = problem.collective, [], []
    for index, chunk in enumerate(collective.chunks):
        late = tuple(rank for rank in chunk.origins if release.get((index, rank), 0) >= moment)
        if late and (collective.sums_up or late == chunk.origins):
            chunks.append(replace(chunk, origins=late))
            sizes.append(problem.chunk_bytes[index])
    # Relays are those of process groups, which a part of the chunks would not tell.
    if not chunks or collective.derivations or problem.clauses.relays is not None:
        return None
    part = Collective(collective.name, collective.num_ranks, tuple(chunks), collective.combining)
    return replace(
        problem, collective=part, chunk_bytes=tuple(sizes), release_us=(), due_us=(), chunks_open=False
    )


def moments(problem: Problem) -> list[Fraction]:
    """Moments to bound what is late from: late ones, and those with many bytes left."""
    release = {(chunk, rank): us for chunk, rank, us in problem.release_us}
    when = [
        (min(release.get((index, rank), 0) for rank in chunk.origins), problem.chunk_bytes[index])
        for index, chunk in enumerate(problem.collective.chunks)
        if chunk.origins
    ]
    found = sorted({us for _, _, us in problem.release_us if us})
    if len(found) <= _MOST_MOMENTS:
        return found
    last, total = float(found[-1]), sum(size for _, size in when)

    def promise(moment: Fraction) -> float:
        return float(moment) / last + sum(size for us, size in when if us >= moment) / total

    return sorted({found[0], found[-1], *sorted(found, key=promise)[2 - _MOST_MOMENTS :]})
