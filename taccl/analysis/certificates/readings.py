"""Problems as bounds read them: with time turned round, where that leaves less to say."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from taccl.collective import Chunk
from taccl.schedule.combine import reduction_half

if TYPE_CHECKING:
    from taccl.problem import Problem


def as_spreading(problem: Problem) -> Problem:
    """The problem to bound: a sum for one rank is read backwards, as a chunk that spreads from there.

    Where some ranks contribute nothing a reduction may also be copied on, so its reverse is read without the
    clauses on which chunks a link carries and on the paths of chunks.
    """
    collective = problem.collective
    to_root = all(chunk.destinations == (chunk.root,) for chunk in collective.chunks)
    if not collective.combining or collective.derivations or not to_root:
        return problem
    everyone = set(range(collective.num_ranks))
    if all(set(chunk.origins) == everyone for chunk in collective.chunks):
        return reduction_half(problem)
    lost = ("carries_from", "carries_to", *(each.field for each in problem.clauses.said("path")))
    return reduction_half(problem.without_clauses(*lost))


def turned_round(problem: Problem) -> Problem | None:
    """The problem with time turned round; None unless every chunk goes from one rank to one, as it is.

    Without the clause on where chunks start that a link carries, which would be about where they end.
    """
    collective = problem.collective
    single = all(len(chunk.origins) == len(chunk.destinations) == 1 for chunk in collective.chunks)
    if collective.combining or collective.derivations or not single:
        return None
    turned = tuple(Chunk(chunk.destinations, chunk.origins) for chunk in collective.chunks)
    return replace(
        problem.without_clauses("carries_from"),
        topology=problem.topology.reversed(),
        collective=replace(collective, name=f"{collective.name}, backwards", chunks=turned),
    )
