"""``taccl synthesize``: find a schedule, verify it, and say how good it is."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

import taccl
from taccl.cli.answer import Answer
from taccl.cli.implicit import implicit_answer
from taccl.cli.options import (
    add_problem_options,
    add_sketch,
    add_verb,
    at_least_zero,
    positive,
    problem_from_options,
    seconds,
    settle_topology,
)
from taccl.cli.output import progress_shown, say
from taccl.cli.saving import add_output, check_output, with_file
from taccl.units import parse_size

if TYPE_CHECKING:
    import argparse

__all__ = ["add", "run"]


def add(verbs: Any) -> None:
    """Declare the verb."""
    verb = add_verb(verbs, "synthesize", run, "Find a schedule, verify it, and say how good it is.")
    add_sketch(verb)
    add_problem_options(verb)
    verb.add_argument("--backend", default="auto", metavar="NAME", help="auto, or one of `taccl backends`")
    verb.add_argument("--time-limit", type=seconds, default=30.0, metavar="S", help="seconds (default 30)")
    verb.add_argument("--threads", type=positive, metavar="N", help="threads of a solver")
    verb.add_argument("--memory-limit", metavar="SIZE", help="memory of a solver, e.g. 4GB")
    verb.add_argument("--seed", type=at_least_zero, default=0, metavar="N", help="default 0")
    verb.add_argument("--log", action="store_true", help="show what the solvers say, on stderr")
    add_output(verb)


def run(options: argparse.Namespace) -> Answer:
    """Find a schedule."""
    from taccl.cli.text import result_text

    check_output(options)
    settle_topology(options)
    implicit = implicit_answer(options)
    if implicit is not None:
        return implicit
    problem = problem_from_options(options, reachable=False)  # synthesize explains what cannot be reached
    memory_limit_mb = None
    if options.memory_limit is not None:
        memory_limit_mb = max(1, parse_size(options.memory_limit, where="--memory-limit") // 10**6)
    if options.log:
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(name)s: %(message)s")
    with progress_shown(wanted=not options.log) as progress:
        result = taccl.synthesize(
            problem,
            backend=options.backend,
            time_limit_s=options.time_limit,
            threads=options.threads,
            seed=options.seed,
            memory_limit_mb=memory_limit_mb,
            log=options.log,
            progress=progress,
        )
    if result.interrupted:
        say("warning: stopped by Ctrl-C; this is the best schedule so far")
    elif result.stopped == "time limit":
        say("warning: stopped by the time limit; this is the best schedule so far")
    return with_file(Answer(result_text(result), result.to_dict()), result.schedule, options)
