"""``taccl bound``: a proven lower bound on any schedule's finish, its witness, and what it is made of."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import taccl
from taccl.cli.answer import Answer
from taccl.cli.options import add_problem_options, add_sketch, add_verb, problem_from_options
from taccl.cli.programs import followed, following_text, following_values, holds_program, load_program
from taccl.errors import InputError

if TYPE_CHECKING:
    import argparse

    from taccl.problem import Problem

__all__ = ["add", "run"]


def add(verbs: Any) -> None:
    """Declare the verb."""
    verb = add_verb(
        verbs, "bound", run, "Show a proven lower bound on any schedule's finish, and what limits."
    )
    add_sketch(verb)
    add_problem_options(verb, collective_required=False)
    verb.add_argument("--check", action="store_true", help="work the proof out again from its witness alone")


def run(options: argparse.Namespace) -> Answer:
    """Bound a problem."""
    if holds_program(options.sketch):
        return _of_program(options)
    if options.collective is None:
        raise InputError("found none; give one, e.g. --collective allgather", where="--collective")
    return _bounded(problem_from_options(options), options)


def _of_program(options: argparse.Namespace) -> Answer:
    """Bound the problem that a program solves, and say how near it comes."""
    for name in ("collective", "chunks_per_rank", "root", "roots", "cost_model", "time_unit_us"):
        if getattr(options, name) is not None:
            where = "--" + name.replace("_", "-")
            raise InputError("found a program, which says it itself; leave it out", where=where)
    schedule = followed(
        load_program(options.sketch), options, size=options.size, chunk_size=options.chunk_size
    )
    answer = _bounded(schedule.problem, options)
    return replace(
        answer,
        text=f"{answer.text}\n  {following_text(schedule)}",
        values={**answer.values, "program": following_values(schedule)},
    )


def _bounded(problem: Problem, options: argparse.Namespace) -> Answer:
    from taccl.cli.text import bound_text, bound_values

    prices = taccl.prices(problem)
    granted = taccl.lower_bound(problem, in_network=True) if _shares_sums(problem) else None
    proven = prices.bound.check() if options.check else None
    return Answer(
        bound_text(prices, granted, proven=proven),
        bound_values(prices, granted, proven=proven),
        exit_code=1 if proven is False else 0,
        complaint="the witness does not prove the bound" if proven is False else "",
    )


def _shares_sums(problem: Problem) -> bool:
    """Whether several ranks need one sum of several: what reduction inside switches would speed up."""
    chunks = problem.collective.chunks
    return problem.collective.combining and any(
        len(chunk.origins) > 1 and len(chunk.destinations) > 1 for chunk in chunks
    )
