"""``taccl synthesize``: find a schedule, verify it, and say how good it is."""

from __future__ import annotations

import logging
import sys
import time
from typing import TYPE_CHECKING, Any

import taccl
from taccl.cli.answer import Answer
from taccl.cli.implicit import check_room, implicit_answer
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
from taccl.cli.suggested import suggested
from taccl.errors import InputError
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
    verb.add_argument(
        "--memory-limit", metavar="SIZE", help="memory of a solver or a large schedule, e.g. 4GB"
    )
    verb.add_argument("--summary", action="store_true", help="of a large schedule keep the figures only")
    verb.add_argument("--spill", metavar="DIR", help="keep the columns of a large schedule in a new folder")
    verb.add_argument("--seed", type=at_least_zero, default=0, metavar="N", help="default 0")
    verb.add_argument("--no-sketch", action="store_true", help="where no sketch is given, suggest none")
    verb.add_argument("--parameters", metavar="FILE", help="constants of the search, from a TOML file")
    verb.add_argument("--log", action="store_true", help="show what the solvers say, on stderr")
    add_output(verb)


def run(options: argparse.Namespace) -> Answer:
    """Find a schedule."""
    from taccl.cli.text import result_text

    check_output(options)
    settle_topology(options)
    if options.output is not None and (options.summary or options.spill is not None):
        raise InputError(
            "found --summary or --spill as well, which leave no schedule to write; leave one of them out",
            where="--output",
        )
    implicit = None if options.summary or options.spill is not None else implicit_answer(options)
    if implicit is not None:
        return implicit
    memory_limit_mb = None
    if options.memory_limit is not None:
        memory_limit_mb = max(1, parse_size(options.memory_limit, where="--memory-limit") // 10**6)
    check_room(options, memory_limit_mb)
    problem = problem_from_options(options, reachable=False)  # synthesize explains what cannot be reached
    if options.log:
        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(name)s: %(message)s")
    with progress_shown(wanted=not options.log) as progress:
        began = time.monotonic()
        problem, sketch = suggested(problem, options, progress)
        result = taccl.synthesize(
            problem,
            backend=options.backend,
            time_limit_s=max(0.1, options.time_limit - (time.monotonic() - began)),
            sketch=sketch,
            threads=options.threads,
            seed=options.seed,
            memory_limit_mb=memory_limit_mb,
            log=options.log,
            progress=progress,
            keep="summary" if options.summary else "schedule",
            spill_dir=options.spill,
            to_file=options.output is not None,
            parameters=taccl.SearchParameters.load(options.parameters)
            if options.parameters
            else taccl.SearchParameters(),
        )
    if result.interrupted:
        say("warning: stopped by Ctrl-C; this is the best schedule so far")
    elif result.stopped == "time limit":
        say("warning: stopped by the time limit; this is the best schedule so far")
    return with_file(Answer(result_text(result), result.to_dict()), result.schedule, options)
