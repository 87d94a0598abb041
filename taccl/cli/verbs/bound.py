"""``taccl bound``: a proven lower bound on any schedule's finish, its witness, and what it is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import taccl
from taccl.cli.answer import Answer
from taccl.cli.options import add_problem_options, add_sketch, add_verb, problem_from_options

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
    add_problem_options(verb)
    verb.add_argument("--check", action="store_true", help="work the proof out again from its witness alone")


def run(options: argparse.Namespace) -> Answer:
    """Bound a problem."""
    from taccl.cli.text import bound_text, bound_values

    problem = problem_from_options(options)
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
