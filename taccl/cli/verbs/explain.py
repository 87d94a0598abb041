"""``taccl explain``: why a sketch admits no schedule, and what would; or what its clauses cost."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from taccl.cli.options import LEAST_S, add_limit, add_options, add_problem_options, problem_from_options
from taccl.cli.output import Answer


def add(verb: ArgumentParser) -> None:
    """Declare the options."""
    add_problem_options(verb)
    add_options(verb, "--backend", help="a solver (default highs)")
    add_limit(verb)


def run(options: Namespace) -> Answer:
    """Say why a sketch admits no schedule and what to change; or what each of its clauses costs."""
    from taccl.synthesis.explaining.explain import explain

    problem = problem_from_options(options, reachable=False)
    left_s = max(LEAST_S, options.deadline.left_s)
    found = explain(problem, backend=options.backend, time_limit_s=left_s)
    complaint = "" if found.feasible else "no schedule exists"
    return Answer(repr(found).removeprefix("Explanation: "), found.to_dict(), complaint)
