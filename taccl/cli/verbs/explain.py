"""``taccl explain``: why a sketch admits no schedule, and what would; or what its clauses cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taccl.cli.answer import Answer
from taccl.cli.options import add_problem_options, add_sketch, add_verb, problem_from_options, seconds

if TYPE_CHECKING:
    import argparse

__all__ = ["add", "run"]


def add(verbs: Any) -> None:
    """Declare the verb."""
    help = "Say why a sketch admits no schedule and what to change; or what each of its clauses costs."
    verb = add_verb(verbs, "explain", run, help)
    add_sketch(verb)
    add_problem_options(verb)
    verb.add_argument("--backend", default="auto", metavar="NAME", help="a solver (default highs)")
    verb.add_argument("--time-limit", type=seconds, default=30.0, metavar="S", help="seconds (default 30)")


def run(options: argparse.Namespace) -> Answer:
    """Explain a problem."""
    from taccl.synthesis.explaining.explain import explain

    problem = problem_from_options(options, reachable=False)
    found = explain(problem, backend=options.backend, time_limit_s=options.time_limit)
    return Answer(
        repr(found).removeprefix("Explanation: "),
        found.to_dict(),
        exit_code=0 if found.feasible else 1,
        complaint="" if found.feasible else "no schedule exists",
    )
