"""Problems in finer chunks, under the same sketch."""

from __future__ import annotations

from dataclasses import replace

from taccl._internal.units import format_count
from taccl.problem.making import make_problem
from taccl.problem.problem import Problem


def cut(problem: Problem, parts: int) -> Problem:
    """The problem with each chunk cut into `parts`, under the same sketch.

    Without a sketch, the default clauses are derived again for the smaller chunks.
    """
    if parts == 1:
        return problem
    default, size_bytes = by_default(problem), problem.size_bytes
    clauses = None if problem.clauses == default.clauses else problem.clauses
    notes = [note for note in problem.notes if note not in default.notes]  # padding notes are made again
    finer = problem.collective.split(parts)
    return make_problem(problem.topology, finer, size_bytes=size_bytes, clauses=clauses, notes=notes)


def by_default(problem: Problem) -> Problem:
    """The problem with default clauses only."""
    return make_problem(problem.topology, problem.collective, size_bytes=problem.size_bytes)


def with_note_on_chunks(problem: Problem) -> Problem:
    """The problem, with a note on its number of chunks per rank if that is not one."""
    if problem.collective.chunks_per_rank == 1:
        return problem
    cut_into = format_count(problem.collective.chunks_per_rank, "chunk")
    note = f"cut into {cut_into} per rank; chunks_per_rank= (--chunks-per-rank) sets another number"
    return replace(problem, notes=(*problem.notes, note))
