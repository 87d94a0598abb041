"""``taccl compare``: what several backends find for one problem, side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import taccl
from taccl.cli.options import add_problem_options, add_sketch, add_verb, problem_from_options
from taccl.cli.tables import add_run_options, check_table, run_options, table_answer

if TYPE_CHECKING:
    import argparse

    from taccl.cli.answer import Answer

__all__ = ["add", "run"]


def add(verbs: Any) -> None:
    """Declare the verb."""
    verb = add_verb(verbs, "compare", run, "Show what several backends find for one problem, side by side.")
    add_sketch(verb)
    add_problem_options(verb)
    add_run_options(verb, backends="auto,greedy,highs,scip,cbc,cpsat")


def run(options: argparse.Namespace) -> Answer:
    """Compare backends."""
    check_table(options)
    problem = problem_from_options(options, reachable=False)  # what cannot be reached is a row
    return table_answer(taccl.compare(problem, **run_options(options)), options)
