"""``taccl bound``: a proven lower bound on any schedule's finish, its witness, and what it is made of."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import taccl
from taccl.cli.options import (
    add_problem_options,
    add_sketch,
    flag_of,
    need_collective,
    problem_from_options,
    schedule_in,
)
from taccl.cli.output import Answer
from taccl.cli.programs import followed, following_text, following_values, held_by, load_program
from taccl.errors import InputError

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from taccl.problem import Problem

#: Whose problem is bounded where a file holds it, and which further options leave nothing to be said.
_OF_NOUN = {"program": ("time_unit_us",), "schedule": ("nodes", "profile", "size")}

EXAMPLES = (
    "taccl bound schedule.json",
    "taccl bound dgx2 --nodes 2 --collective allreduce --size 64MB --check",
)


def add(verb: ArgumentParser) -> None:
    """Declare the options."""
    add_sketch(verb, also="; or a file with a schedule or a program")
    add_problem_options(verb, collective_required=False)
    verb.add_argument("--check", action="store_true", help="work the proof out again from its witness alone")


def run(options: Namespace) -> Answer:
    """Show a proven lower bound on any schedule's finish, and what limits."""
    noun = held_by(options.sketch)
    if noun not in _OF_NOUN:
        need_collective(options)
        from taccl.synthesis.suggesting.chunks import merged

        problem = problem_from_options(options)
        if problem.chunks_open:  # chunks may merge in nodes, too, as they do where that is sooner
            problem = merged(problem) or problem
        return _bounded(problem, options)
    for name in ("collective", "chunks_per_rank", "root", "roots", "cost_model", *_OF_NOUN[noun]):
        if getattr(options, name) is not None:
            said = f"found a {noun}, which says it itself; leave it out"
            raise InputError(said, where=flag_of(name))
    if noun == "program":
        program = load_program(options.sketch)
        schedule = followed(program, options, size=options.size, chunk_size=options.chunk_size)
    else:
        schedule = schedule_in(options.sketch, options)
    answer = _bounded(schedule.problem, options)
    values = answer.values | {noun: following_values(schedule)}
    return replace(answer, text=f"{answer.text}\n  {following_text(schedule, noun)}", values=values)


def _bounded(problem: Problem, options: Namespace) -> Answer:
    from taccl.cli.text import bound_text, bound_values

    prices = taccl.prices(problem)
    granted = taccl.lower_bound(problem, in_network=True) if _shares_sums(problem) else None
    proven = prices.bound.check() if options.check else None
    complaint = "the witness does not prove the bound" if proven is False else ""
    values = bound_values(prices, granted, proven=proven)
    return Answer(bound_text(prices, granted, proven=proven), values, complaint)


def _shares_sums(problem: Problem) -> bool:
    """Whether several ranks need one sum of several: what reduction inside switches would speed up."""
    chunks = problem.collective.chunks
    return problem.collective.combining and any(
        len(chunk.origins) > 1 and len(chunk.destinations) > 1 for chunk in chunks
    )
