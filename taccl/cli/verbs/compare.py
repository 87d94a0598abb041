"""``taccl compare``: what several backends find for one problem, side by side."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

import taccl
from taccl.cli.options import add_problem_options, problem_from_options
from taccl.cli.output import Answer
from taccl.cli.tables import add_run_options, check_table, run_options, table_answer

EXAMPLES = (
    "taccl compare ndv2/sk1 --collective allgather --backends greedy,highs -o table.csv",
    "taccl compare ring:8 --collective allreduce --size 1MB --seeds 0:3",
)


def add(verb: ArgumentParser) -> None:
    """Declare the options."""
    add_problem_options(verb)
    add_run_options(verb, backends="auto,greedy,highs,scip,cbc,cpsat")


def run(options: Namespace) -> Answer:
    """Show what several backends find for one problem, side by side."""
    check_table(options)
    problem = problem_from_options(options, reachable=False)  # what cannot be reached is a row
    return table_answer(taccl.compare(problem, full=True, **run_options(options)), options)
